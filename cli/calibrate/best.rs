//! What cores, memory and disk do at best.
//!
//! In: how many ranks work at once, and with how many threads each. Out: a rank's FLOP/s of large products, bytes/s of long
//! copies and of exchanges, all ranks working. Each is the best of several rounds, since a machine is never faster than
//! it is.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use nrl_cpu::Threads;
use nrl_cpu::gemm::{Shape, View, ViewMut, gemm};
use nrl_planner::machine::Best;
use nrl_runtime::comm::World;

/// Rows, columns and contraction of the product.
const SIDE: usize = 768;
/// Numbers of a copy: longer than caches.
const LONG: usize = 24 << 20;
/// Numbers that a rank gives to the others.
const PART: usize = 2 << 20;

/// The best of `rounds` rounds in which all ranks do `work` at once: calls per second of the slowest rank.
fn rounds(ranks: usize, rounds: usize, make: &(dyn Fn() -> Box<dyn FnMut()> + Sync)) -> f64 {
    let barrier = Barrier::new(ranks);
    let one = || {
        let mut work = make();
        work();
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            barrier.wait();
            let start = Instant::now();
            work();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    };
    let slowest = std::thread::scope(|s| {
        let threads: Vec<_> = (0..ranks).map(|_| s.spawn(one)).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).fold(0.0, f64::max)
    });
    1.0 / slowest.max(1e-9)
}

/// Measures all of it.
pub fn measure(ranks: usize, threads: usize, quick: bool) -> Best {
    let n = if quick { 6 } else { 12 };
    let product = || -> Box<dyn FnMut()> {
        let pool = Threads::new(threads);
        let numbers = |k: usize| (0..k).map(|i| (i % 13) as f32 - 6.0).collect::<Vec<f32>>();
        let (a, b, mut c) = (numbers(SIDE * SIDE), numbers(SIDE * SIDE), vec![0.0; SIDE * SIDE]);
        Box::new(move || {
            let out = ViewMut { data: &mut c, row: SIDE, col: 1 };
            let view = |data| View { data, row: SIDE, col: 1 };
            gemm(&pool, Shape { m: SIDE, n: SIDE, k: SIDE }, out, false, view(&a), view(&b));
        })
    };
    let copy = || -> Box<dyn FnMut()> {
        let pool = Threads::new(threads);
        let (a, mut b) = (vec![1.0f32; LONG], vec![0.0f32; LONG]);
        Box::new(move || {
            let piece = LONG.div_ceil(pool.count());
            let pieces: Vec<_> = b.chunks_mut(piece).zip(a.chunks(piece)).collect();
            std::thread::scope(|s| {
                for (to, from) in pieces {
                    s.spawn(move || to.copy_from_slice(from));
                }
            });
        })
    };
    let flops = 2.0 * (SIDE as f64).powi(3) * rounds(ranks, n, &product);
    let bandwidth = 8.0 * LONG as f64 * rounds(ranks, n, &copy);
    Best { ranks, threads, flops, bandwidth, link: link(ranks, n).unwrap_or(bandwidth / 2.0) }
}

/// Bytes/s that each rank gets from the others.
fn link(ranks: usize, n: usize) -> Option<f64> {
    if ranks < 2 {
        return None;
    }
    let best = World::new(ranks, Duration::from_secs(60)).run(|rank| {
        let group = rank.group(&(0..ranks).collect::<Vec<_>>())?;
        let (mine, mut all) = (vec![1.0f32; PART], vec![0.0f32; PART * ranks]);
        group.all_gather(&mine, &mut all)?;
        let mut best = f64::INFINITY;
        for _ in 0..n {
            let start = Instant::now();
            group.all_gather(&mine, &mut all)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok::<f64, nrl_runtime::comm::CommError>(best)
    });
    let slowest = best.ok()?.into_iter().fold(0.0, f64::max);
    Some(4.0 * ((ranks - 1) * PART) as f64 / slowest.max(1e-9))
}

/// Bytes/s that are safe on the disk of `near`; what is common where it cannot be written to.
pub fn disk(near: &Path) -> f64 {
    let usual = nrl_sim::threads::Host::default().write;
    let dir = near.parent().filter(|d| d.is_dir()).unwrap_or(Path::new("."));
    let path = dir.join(format!(".nrlc-calibrate-{}", std::process::id()));
    let bytes = vec![7u8; 32 << 20];
    let start = Instant::now();
    let written = std::fs::File::create(&path).and_then(|mut f| {
        std::io::Write::write_all(&mut f, &bytes)?;
        f.sync_all()
    });
    let took = start.elapsed().as_secs_f64();
    // What it was written for is known now.
    std::fs::remove_file(&path).ok();
    if written.is_ok() { bytes.len() as f64 / took.max(1e-6) } else { usual }
}
