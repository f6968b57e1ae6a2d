//! Speed of the engine's parts next to what the machine can do, on one thread.
//!
//! `cargo bench -p nrl-cpu` prints all; words after `--` choose parts (`gemm`, `attention`, `head`, `step`, `kernel`) and
//! shapes (`smol`, `quick`), which are those of SmolLM2-135M and of the quickstart. The floors are measured in the same process: multiply-adds that wait for nothing, and a long copy.

#[path = "../../../compiler/passes/tests/passes/llama.rs"]
mod llama;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use llama::{Config, Head};
use nrl_cpu::attention::{self, Cached, Heads, Saved};
use nrl_cpu::gemm::{Shape, View, ViewMut, gemm};
use nrl_cpu::jit::{Jit, Operand, Place};
use nrl_cpu::logprob::{Grads, Labels, Results, Weights, head_backward, head_forward};
use nrl_cpu::{CpuEngine, Threads};
use nrl_ir::kernel::{Access, Instr, Kernel, Output, RowIndex};
use nrl_ir::{BinaryOp, DType, Dims, Graph, Mesh, ReduceOp, UnaryOp};
use nrl_passes::{FuseConfig, Recompute, Stage};
use nrl_runtime::comm::World;
use nrl_runtime::engine::{Bindings, Comm, Engine, HostTensor, KvCache, ParamStore, slots_of};

/// Seconds that this thread has worked, where Linux tells; else those on the clock. A busy machine then matters less.
fn worked(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    first.map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns * 1e-9)
}

/// Seconds per call: the least of some rounds of at least 80 ms, since Linux counts in ticks.
fn best(mut f: impl FnMut()) -> f64 {
    let begin = Instant::now();
    f();
    let mut calls = 1;
    let mut least = f64::MAX;
    let mut rounds = 0;
    while rounds < 3 || (begin.elapsed().as_secs_f64() < 0.3 && rounds < 20) {
        let start = worked(begin);
        (0..calls).for_each(|_| f());
        let took = worked(begin) - start;
        if took < 0.08 {
            calls *= 4;
            continue;
        }
        least = least.min(took / f64::from(calls));
        rounds += 1;
    }
    least
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect()
}

/// GFLOP/s of products that stay in the first-level cache.
fn peak() -> f64 {
    let threads = Threads::new(1);
    let (m, n, k) = (96, 96, 64);
    let (a, b, mut c) = (numbers(m * k), numbers(k * n), vec![0.0; m * n]);
    let s = best(|| {
        for _ in 0..50 {
            let out = ViewMut { data: &mut c, row: n, col: 1 };
            gemm(
                &threads,
                Shape { m, n, k },
                out,
                false,
                View { data: &a, row: k, col: 1 },
                View { data: &b, row: n, col: 1 },
            );
        }
    });
    100e-9 * (m * n * k) as f64 / s
}

fn products(threads: &Threads, peak: f64) {
    let smol = [16, 64, 512, 1232]
        .into_iter()
        .flat_map(|m| [(m, 576, 576), (m, 192, 576), (m, 1536, 576), (m, 576, 1536)]);
    let head = [(16, 49152, 576), (256, 1024, 576)];
    let quick = [32, 512, 3000].into_iter().flat_map(|m| [(m, 96, 96), (m, 256, 96), (m, 96, 256)]);
    let back = [(576, 1536, 1232), (96, 256, 3000)];
    for (m, n, k) in smol.chain(head).chain(quick).chain(back) {
        let (a, b, mut c) = (numbers(m * k), numbers(k * n), vec![0.0; m * n]);
        let mut rate = |av: (usize, usize), bv: (usize, usize), add: bool| {
            let s = best(|| {
                let out = ViewMut { data: &mut c, row: n, col: 1 };
                let (a, b) = (
                    View { data: &a, row: av.0, col: av.1 },
                    View { data: &b, row: bv.0, col: bv.1 },
                );
                gemm(threads, Shape { m, n, k }, out, add, a, b);
            });
            2e-9 * (m * n * k) as f64 / s
        };
        let (kn, nk, tn) =
            (rate((k, 1), (n, 1), false), rate((k, 1), (1, k), false), rate((1, m), (n, 1), true));
        let share = 100.0 * kn / peak;
        println!(
            "gemm {m:5} x {n:5} x {k:4}   [k,n] {kn:6.1}  [n,k] {nk:6.1}  a' b {tn:6.1} GFLOP/s   {share:3.0} % of peak"
        );
    }
}

fn attentions(threads: &Threads, peak: f64, shape: &dyn Fn(&str) -> bool) {
    let smol = Heads { q: 9, kv: 3, hd: 64, scale: 0.125, window: None };
    let quick = Heads { q: 4, kv: 4, hd: 24, scale: 0.2, window: None };
    let grouped = Heads { q: 4, kv: 2, hd: 24, scale: 0.2, window: None };
    for (name, h, len, count) in [
        ("smol 1 x 1232", smol, 1232, 1),
        ("smol 16 x 77", smol, 77, 16),
        ("quick 512 x 12", quick, 12, 512),
        ("quick gqa 512 x 12", grouped, 12, 512),
    ] {
        if !shape(name) {
            continue;
        }
        let n = len * count;
        let offsets: Vec<u32> = (0..=count).map(|i| (i * len) as u32).collect();
        let (q, k, v, d_o) = (
            numbers(n * h.q * h.hd),
            numbers(n * h.kv * h.hd),
            numbers(n * h.kv * h.hd),
            numbers(n * h.q * h.hd),
        );
        let (mut o, mut lse) = (vec![0.0; q.len()], vec![0.0; n * h.q]);
        let f =
            best(|| attention::forward(threads, h, &offsets, [&q, &k, &v], None, &mut o, &mut lse));
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]);
        let saved = Saved { q: &q, k: &k, v: &v, o: &o, lse: &lse, d_o: &d_o };
        let b =
            best(|| attention::backward(threads, h, &offsets, &saved, &mut dq, &mut dk, &mut dv));
        let pairs = (count * len * (len + 1) / 2 * h.q * h.hd) as f64;
        let (gf, gb) = (4e-9 * pairs / f, 10e-9 * pairs / b);
        println!(
            "attention {name:18}  forward {:8.1} us {gf:6.1} GFLOP/s ({:.0} %)  backward {:8.1} us {gb:6.1} GFLOP/s ({:.0} %)",
            f * 1e6,
            100.0 * gf / peak,
            b * 1e6,
            100.0 * gb / peak
        );
    }
    let (slots, context, past) = (16usize, 512, 300);
    let width = smol.kv * smol.hd;
    let (mut keys, mut values) =
        (numbers(slots * context * width), numbers(slots * context * width));
    let (q, k, mut o) = (
        numbers(slots * smol.q * smol.hd),
        numbers(slots * width),
        vec![0.0; slots * smol.q * smol.hd],
    );
    let offsets: Vec<u32> = (0..=slots as u32).collect();
    let (bases, place) = (vec![past; slots], (0..slots as u32).collect::<Vec<_>>());
    let c = Cached { offsets: &offsets, bases: &bases, slots: &place, context };
    let s = best(|| {
        attention::cached(threads, smol, &c, [&q, &k, &k], None, &mut keys, &mut values, &mut o)
    });
    let bytes = (2 * slots * past as usize * width * 4) as f64;
    println!(
        "attention decode 16 rows at 300     {:8.1} us   {:.1} GB/s of cache",
        s * 1e6,
        bytes / s * 1e-9
    );
}

fn heads(threads: &Threads, peak: f64) {
    for (name, rows, d, vocab) in [("smol", 1232usize, 576, 49152), ("quick", 3072, 96, 16)] {
        let (h, w) = (numbers(rows * d), numbers(vocab * d));
        let ids: Vec<u32> = (0..rows).map(|i| (i * 37 % vocab) as u32).collect();
        let l = Labels {
            ids: &ids,
            first: 0,
            local: vocab,
            valid: vocab,
            all: vocab,
            inv_temperature: 1.0,
        };
        let w = Weights { data: &w, vocab: d, d: 1 };
        let (mut lp, mut lse, mut entropy, mut piece) =
            (vec![0.0; rows], vec![0.0; rows], vec![0.0; rows], vec![]);
        let f = best(|| {
            let out = Results { lp: &mut lp, lse: &mut lse, entropy: &mut entropy };
            head_forward(threads, &l, (&h, d), w, &mut piece, None, out).expect("one rank");
        });
        let (ones, zeros) = (vec![1.0; rows], vec![0.0; rows]);
        let g = Grads { lse: &lse, entropy: &entropy, d_lp: &ones, d_entropy: &zeros };
        let (mut dh, mut dw) = (vec![0.0; rows * d], vec![0.0; vocab * d]);
        let b =
            best(|| head_backward(threads, &l, (&h, d), w, &g, &mut piece, &mut dh, Some(&mut dw)));
        let flops = 2e-9 * (rows * d * vocab) as f64;
        println!(
            "log_prob head {name:6}  forward {:8.2} ms {:6.1} GFLOP/s ({:.0} %)   backward {:8.2} ms {:6.1} GFLOP/s ({:.0} %)",
            f * 1e3,
            flops / f,
            100.0 * flops / f / peak,
            b * 1e3,
            3.0 * flops / b,
            300.0 * flops / b / peak
        );
    }
}

fn kernels(threads: &Threads) {
    let jit = Jit::new().expect("a compiler for this machine");
    let mut dims = Dims::default();
    let tok = dims.add_ragged("tok", None, 1 << 30);
    let lanes = dims.add_static("d", 576);
    let along = |lanes: bool| Access { row: RowIndex::Row { div: 1, modulo: 0 }, lanes };
    let load = |input| Instr::Load { input };
    let bin = |op, a, b| Instr::Binary { op, a, b };
    use BinaryOp::{Add, Div, Mul, Sub};
    let norm = Kernel {
        rows: vec![tok],
        lanes: vec![lanes],
        inputs: vec![along(true), Access { row: RowIndex::None, lanes: true }],
        code: vec![
            load(0),
            bin(Mul, 0, 0),
            Instr::Lanes { op: ReduceOp::Sum, x: 1 },
            Instr::Const { value: 1.0 / 576.0 },
            bin(Mul, 2, 3),
            Instr::Const { value: 1e-5 },
            bin(Add, 4, 5),
            Instr::Unary { op: UnaryOp::Rsqrt, x: 6 },
            bin(Mul, 0, 7),
            load(1),
            bin(Mul, 8, 9),
        ],
        outputs: vec![(10, Output::Store)],
        reason: String::new(),
    };
    let silu = Kernel {
        rows: vec![tok],
        lanes: vec![lanes],
        inputs: vec![along(true), along(true)],
        code: vec![
            load(0),
            Instr::Unary { op: UnaryOp::Sigmoid, x: 0 },
            bin(Mul, 0, 1),
            load(1),
            bin(Mul, 2, 3),
        ],
        outputs: vec![(4, Output::Store)],
        reason: String::new(),
    };
    let constant = |value| Instr::Const { value };
    // w, g, m, v and two bias corrections.
    let adamw = Kernel {
        rows: vec![tok],
        lanes: vec![],
        inputs: vec![
            along(false),
            along(false),
            along(false),
            along(false),
            Access { row: RowIndex::None, lanes: false },
        ],
        code: vec![
            load(0),
            load(1),
            load(2),
            load(3),
            load(4),
            constant(0.9),
            constant(0.1),
            bin(Mul, 2, 5),
            bin(Mul, 1, 6),
            bin(Add, 7, 8),
            constant(0.999),
            constant(0.001),
            bin(Mul, 3, 10),
            bin(Mul, 1, 1),
            bin(Mul, 13, 11),
            bin(Add, 12, 14),
            Instr::Unary { op: UnaryOp::Sqrt, x: 15 },
            constant(1e-8),
            bin(Add, 16, 17),
            bin(Div, 9, 18),
            bin(Mul, 19, 4),
            bin(Sub, 0, 20),
        ],
        outputs: vec![(21, Output::Store), (9, Output::Store), (15, Output::Store)],
        reason: String::new(),
    };
    for (name, kernel, rows) in [
        ("rms_norm", norm, 1232usize),
        ("silu times up", silu, 1232),
        ("adamw in cache", adamw.clone(), 1 << 15),
        ("adamw", adamw, 1 << 23),
    ] {
        let start = Instant::now();
        let code = jit.get(&kernel, &dims).expect("compiles");
        let compile = start.elapsed();
        let size = |a: &Access| if a.row == RowIndex::None { 1 } else { rows } * if a.lanes { 576 } else { 1 };
        let inputs: Vec<Vec<f32>> =
            kernel.inputs.iter().map(|a| numbers(size(a).max(576))).collect();
        let mut outs: Vec<Vec<f32>> = (0..kernel.outputs.len())
            .map(|o| vec![0.0; code.length(o, rows).unwrap_or(0)])
            .collect();
        let s = best(|| {
            let operands: Vec<Operand> =
                inputs.iter().map(|x| Operand { data: x, map: &[] }).collect();
            let mut places: Vec<Place> =
                outs.iter_mut().map(|o| Place { data: o, map: &[] }).collect();
            code.run(threads, rows, &operands, &mut places).expect("fits");
        });
        let moved: usize = kernel.inputs.iter().map(size).sum::<usize>()
            + outs.iter().map(Vec::len).sum::<usize>();
        println!(
            "kernel {name:15} {:8.1} us  {:6.1} GB/s   compiled in {:.1} ms",
            s * 1e6,
            4e-9 * moved as f64 / s,
            compile.as_secs_f64() * 1e3
        );
    }
}

/// Loss and gradients of a whole llama through the executor.
fn steps(peak: f64, shape: &dyn Fn(&str) -> bool) {
    let smol = Config {
        vocab: 49152,
        d: 576,
        q: 9,
        kv: 3,
        hd: 64,
        f: 1536,
        layers: 30,
        tied: true,
        window: None,
        mixer: false,
    };
    let quick = Config {
        vocab: 16,
        d: 96,
        q: 4,
        kv: 2,
        hd: 24,
        f: 256,
        layers: 3,
        tied: true,
        window: None,
        mixer: false,
    };
    for (name, c, len, count) in
        [("smol 16 x 77", smol, 77, 16), ("quick 512 x 12", quick, 12, 512)]
    {
        if !shape(name) {
            continue;
        }
        let (mut g, ids) = llama::build(&c, Head::Loss);
        for d in [ids.seq, ids.tok, ids.act] {
            g.dims.get_mut(d).extent =
                nrl_ir::Extent::Ragged { owner: g.dims.owner(d), bound: 1 << 20 };
        }
        nrl_passes::simplify(&mut g, Stage::BeforeGrad).expect("simplifies");
        let mut g = nrl_passes::grad(&g, "loss", &Recompute::None).expect("differentiable");
        nrl_passes::simplify(&mut g, Stage::Final).expect("simplifies");
        nrl_passes::fuse(&mut g, &FuseConfig::default()).expect("fuses");
        let (bind, mut store) = bound(&g, &ids, len, count);
        let weights: usize = store.weights.iter().map(Vec::len).sum();
        let plan = Arc::new(nrl_passes::schedule(g, &Mesh::default(), vec![]));
        let mut device = CpuEngine::new().device(0, 1, 1);
        let start = Instant::now();
        let ready = device.prepare(&plan).expect("compiles");
        let compile = start.elapsed().as_secs_f64();
        let comm =
            Comm::new(&World::new(1, std::time::Duration::from_secs(1)).rank(0), &Mesh::default())
                .expect("a world of one");
        let s = best(|| {
            device.run(ready, &mut store, None, &bind, &comm).expect("runs");
        });
        let rate = 6e-9 * (weights * len * count) as f64 / s;
        println!(
            "step {name:15} {:9.1} ms  {rate:6.1} GFLOP/s by 6 x weights x tokens ({:.0} %)   compiled in {:.0} ms",
            s * 1e3,
            100.0 * rate / peak,
            compile * 1e3
        );
    }
}

/// One token for each of 16 sequences of 300.
fn decode(peak: f64) {
    let c = Config {
        vocab: 49152,
        d: 576,
        q: 9,
        kv: 3,
        hd: 64,
        f: 1536,
        layers: 30,
        tied: true,
        window: None,
        mixer: false,
    };
    let (mut g, ids) = llama::build(&c, Head::Generate);
    for d in [ids.seq, ids.tok, ids.row] {
        g.dims.get_mut(d).extent =
            nrl_ir::Extent::Ragged { owner: g.dims.owner(d), bound: 1 << 20 };
    }
    nrl_passes::simplify(&mut g, Stage::Final).expect("simplifies");
    let mut g = nrl_passes::incremental(&g).expect("causal");
    nrl_passes::fuse(&mut g, &FuseConfig::default()).expect("fuses");
    let mut store = weights_of(&g);
    let weights: usize = store.weights.iter().map(Vec::len).sum();
    let n = 16;
    let id = |input: &nrl_ir::graph::Input| match input.name.as_str() {
        "ids" => HostTensor::Id((0..n).map(|i| i * 97).collect()),
        _ => HostTensor::Id((0..n).collect()),
    };
    let offsets = BTreeMap::from([
        (ids.seq, vec![0, n]),
        (ids.tok, (0..=n).collect()),
        (ids.row, vec![0, n]),
    ]);
    let bind = Bindings {
        inputs: g.inputs.iter().map(id).collect(),
        offsets,
        bases: vec![300; n as usize],
        slots: (0..n).collect(),
    };
    let mut cache = KvCache::new(c.layers, n as usize, 512, c.kv * c.hd);
    let plan = Arc::new(nrl_passes::schedule(g, &Mesh::default(), vec![]));
    let mut device = CpuEngine::new().device(0, 1, 1);
    let ready = device.prepare(&plan).expect("compiles");
    let comm =
        Comm::new(&World::new(1, std::time::Duration::from_secs(1)).rank(0), &Mesh::default())
            .expect("a world of one");
    let s = best(|| {
        device.run(ready, &mut store, Some(&mut cache), &bind, &comm).expect("runs");
    });
    let rate = 2e-9 * (weights * n as usize) as f64 / s;
    println!(
        "decode smol 16 at 300   {:9.1} ms  {rate:6.1} GFLOP/s ({:.0} %), weights at {:.1} GB/s",
        s * 1e3,
        100.0 * rate / peak,
        4e-9 * weights as f64 / s
    );
}

fn bound(g: &Graph, ids: &llama::Ids, len: usize, count: usize) -> (Bindings, ParamStore) {
    let cut = |n: usize| (0..=count).map(|i| (i * n) as u32).collect::<Vec<u32>>();
    let offsets = BTreeMap::from([
        (ids.seq, vec![0, count as u32]),
        (ids.tok, cut(len)),
        (ids.act, cut(len - 1)),
    ]);
    let inputs = g.inputs.iter().map(|input| {
        let n: usize =
            input.ty.dims.iter().map(|d| offsets[d][offsets[d].len() - 1] as usize).product();
        let vocab = g.dims.bound(ids.vocab);
        match input.ty.dtype {
            DType::Id(d) if d == ids.vocab => {
                HostTensor::Id((0..n).map(|i| (i * 37 % vocab) as u32).collect())
            }
            DType::Id(_) => HostTensor::Id(
                (0..n).map(|i| (i / (len - 1) * len + i % (len - 1)) as u32).collect(),
            ),
            _ => HostTensor::F32(numbers(n).iter().map(|x| x + 1.0).collect()),
        }
    });
    let bind =
        Bindings { inputs: inputs.collect(), offsets: offsets.clone(), ..Bindings::default() };
    (bind, weights_of(g))
}

fn weights_of(g: &Graph) -> ParamStore {
    let (first, total) = slots_of(g);
    let mut store = ParamStore { first, weights: vec![], grads: vec![vec![]; total] };
    for p in &g.params {
        let n: usize = p.dims.iter().map(|d| g.dims.bound(*d)).product();
        let scale = if p.dims.len() == 1 { 1.0 } else { 0.1 };
        for _ in 0..p.repeat.as_ref().map_or(1, |r| r.1) {
            store.weights.push(numbers(n).iter().map(|x| x * scale).collect());
        }
    }
    store
}

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|c| name == c);
    let models = ["smol", "quick"];
    let named = |name: &str| {
        models.into_iter().filter(|m| chosen.iter().any(|c| c == m)).all(|m| name.starts_with(m))
    };
    let shape = move |name: &str| named(name);
    let threads = Threads::new(1);
    let peak = peak();
    println!("floors: {peak:.1} GFLOP/s in cache; {:?}", nrl_cpu::simd::level());
    if wanted("gemm") {
        products(&threads, peak);
    }
    if wanted("attention") {
        attentions(&threads, peak, &shape);
    }
    if wanted("head") {
        heads(&threads, peak);
    }
    if wanted("step") {
        steps(peak, &shape);
        decode(peak);
    }
    if wanted("kernel") {
        let (from, mut to) = (numbers(1 << 25), vec![0.0f32; 1 << 25]);
        let copy = best(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        println!("floor: {:.1} GB/s read and written", 8.0 * from.len() as f64 / copy * 1e-9);
        kernels(&threads);
    }
}
