//! Speed of the engine's parts next to what the machine can do.

use std::time::Instant;
use nrl_cpu::{Threads, gemm::*};

fn best(mut f: impl FnMut()) -> f64 {
    f();
    let mut t = f64::MAX;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 0.15 {
        let s = Instant::now();
        f();
        t = t.min(s.elapsed().as_secs_f64());
    }
    t
}

fn main() {
    let th = Threads::new(1);
    for (m, n, k) in [(16,576,576),(16,1536,576),(16,576,1536),(64,1536,576),(512,1536,576),(1232,576,576),(1232,1536,576),(1232,576,1536),(1232,192,576),(256,2048,576),(16,49152,576),
        (32,96,96),(32,256,96),(32,96,256),(512,256,96),(3000,96,96),(3000,256,96),(3000,96,256),(3000,24,96),(96,96,3000),(96,256,3000),(576,1536,1232)] {
        let a = vec![0.5f32; m*k]; let b = vec![0.25f32; k*n]; let mut o = vec![0f32; m*n];
        let kn = best(|| gemm(&th, Shape{m,n,k}, ViewMut{data:&mut o,row:n,col:1}, false, View{data:&a,row:k,col:1}, View{data:&b,row:n,col:1}));
        let nk = best(|| gemm(&th, Shape{m,n,k}, ViewMut{data:&mut o,row:n,col:1}, false, View{data:&a,row:k,col:1}, View{data:&b,row:1,col:k}));
        let tn = best(|| gemm(&th, Shape{m,n,k}, ViewMut{data:&mut o,row:n,col:1}, true, View{data:&a,row:1,col:m}, View{data:&b,row:n,col:1}));
        let f = 2e-9*(m*n*k) as f64;
        println!("{m:5}x{n:5}x{k:5}  kn {:6.1}  nk {:6.1}  tn+ {:6.1}  GFLOP/s   {:.1} us", f/kn, f/nk, f/tn, kn*1e6);
    }
}
