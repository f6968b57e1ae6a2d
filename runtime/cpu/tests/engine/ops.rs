//! Single ops over awkward dims, and flat optimizers.

use std::collections::BTreeMap;
use std::sync::Arc;

use nrl_cpu::CpuEngine;
use nrl_interp::{Bindings, Params, Rank, Tensor};
use nrl_ir::{BinaryOp, Block, DType, DimId, Graph, Mesh, Op, ReduceOp, Type, UnaryOp};
use nrl_runtime::engine::Engine;

use crate::data::*;
use crate::llama::Build;

struct Dims {
    group: DimId,
    seq: DimId,
    tok: DimId,
    a: DimId,
    b: DimId,
    c: DimId,
}

fn start() -> (Build, Dims) {
    let mut g = Graph::new("ops");
    let group = g.dims.add_ragged("group", None, 8);
    let seq = g.dims.add_ragged("seq", Some(group), 8);
    let tok = g.dims.add_ragged("tok", Some(seq), 64);
    let (a, b, c) =
        (g.dims.add_static("a", 3), g.dims.add_static("b", 5), g.dims.add_static("c", 8));
    (Build { g, block: Block::default() }, Dims { group, seq, tok, a, b, c })
}

fn offsets(d: &Dims) -> BTreeMap<DimId, Vec<usize>> {
    BTreeMap::from([
        (d.group, vec![0, 3]),
        (d.seq, vec![0, 2, 2, 4]),
        (d.tok, vec![0, 4, 4, 9, 11]),
    ])
}

/// The graph with outputs `o0`, `o1`, ..
fn numbered(m: Build, outs: impl AsRef<[nrl_ir::ValueId]>) -> Graph {
    let outs = outs.as_ref().iter().copied();
    let names: Vec<String> = (0..outs.len()).map(|i| format!("o{i}")).collect();
    let outs: Vec<_> = names.iter().map(String::as_str).zip(outs).collect();
    m.finish(&outs)
}

/// Both engines on random inputs.
fn same(what: &str, g: &Graph, d: &Dims) {
    let mut draw = Draw(3);
    let offsets = offsets(d);
    let size = |x: &DimId| offsets.get(x).map_or_else(|| g.dims.bound(*x), |o| o[o.len() - 1]);
    let mut tensor = |input: &nrl_ir::graph::Input| {
        let shape: Vec<usize> = input.ty.dims.iter().map(size).collect();
        match input.ty.dtype {
            DType::Id(of) => {
                let n = shape.iter().product::<usize>();
                Tensor { shape, data: (0..n).map(|_| draw.below(size(&of)) as f64).collect() }
            }
            _ => draw.tensor(&shape, 2.0, 0.0),
        }
    };
    let bind = Bindings {
        inputs: g.inputs.iter().map(&mut tensor).collect(),
        offsets: offsets.clone(),
        ..Bindings::default()
    };
    let mut rank = Rank { bind: bind.clone(), ..Rank::default() };
    let want = nrl_interp::run_one(g, &mut rank).expect("the reference runs");
    let plain = run_one(g, 1, &bind, &Params::new()).0;
    let mut fused = g.clone();
    nrl_passes::fuse(&mut fused, &nrl_passes::FuseConfig::default()).expect("fuses");
    assert_eq!(plain, run_one(&fused, 1, &bind, &Params::new()).0, "{what}: fused = unfused");
    for (i, w) in want.iter().enumerate() {
        close(&format!("{what} {i}"), &plain[i], &w.data, 1e-5);
    }
}

#[test]
fn broadcasting_by_name_in_any_order() {
    let (mut m, d) = start();
    let x = m.input("x", Type::f32([d.tok, d.a, d.b]));
    let mut outs = vec![];
    let dims: [&[DimId]; 10] = [
        &[],
        &[d.tok],
        &[d.seq],
        &[d.group],
        &[d.a],
        &[d.b],
        &[d.b, d.a],
        &[d.seq, d.b],
        &[d.a, d.tok],
        &[d.tok, d.b],
    ];
    for (i, dims) in dims.into_iter().enumerate() {
        let y = m.input(&format!("y{i}"), Type::f32(dims));
        let z = m.bin(BinaryOp::Mul, y, x);
        outs.push(m.bin(BinaryOp::Max, z, y));
    }
    let g = numbered(m, outs);
    same("broadcast", &g, &d);
}

#[test]
fn reductions_over_any_dims() {
    let (mut m, d) = start();
    let x = m.input("x", Type::f32([d.tok, d.a, d.b]));
    let t = m.input("t", Type::f32([d.tok]));
    let s = m.input("s", Type::f32([d.a, d.b]));
    let mut outs = vec![];
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let all = vec![d.tok, d.seq, d.group];
        let every = [all.clone(), vec![d.a, d.b]].concat();
        for over in [
            vec![d.b],
            vec![d.a],
            vec![d.a, d.b],
            vec![d.tok],
            all.clone(),
            every,
            vec![d.b, d.tok],
        ] {
            outs.push(m.op(Op::Reduce { op, over }, &[x]));
        }
        for over in [vec![d.tok], vec![d.tok, d.seq], all] {
            outs.push(m.op(Op::Reduce { op, over }, &[t]));
        }
        outs.push(m.op(Op::Reduce { op, over: vec![d.a] }, &[s]));
        outs.push(m.op(Op::Reduce { op, over: vec![d.a, d.b] }, &[s]));
    }
    let g = numbered(m, outs);
    same("reduce", &g, &d);
}

#[test]
fn contractions_over_any_order_of_dims() {
    let (mut m, d) = start();
    let x = m.input("x", Type::f32([d.tok, d.a, d.b]));
    let y = m.input("y", Type::f32([d.tok, d.b, d.c]));
    let w = m.input("w", Type::f32([d.b, d.a, d.c]));
    let v = m.input("v", Type::f32([d.c, d.b]));
    let t = m.input("t", Type::f32([d.tok]));
    let outs = [
        m.dot(x, w, &[d.a, d.b]),
        m.dot(w, x, &[d.a, d.b]),
        m.dot(x, w, &[d.b]),
        m.dot(x, v, &[d.b]),
        m.dot(x, y, &[d.tok]),
        m.dot(x, y, &[d.tok, d.b]),
        m.dot(x, y, &[d.b]),
        m.dot(x, x, &[d.a, d.b]),
        m.dot(t, t, &[d.tok]),
        m.dot(t, y, &[d.tok]),
        m.dot(v, y, &[d.c, d.b]),
    ];
    let g = numbered(m, outs);
    same("contract", &g, &d);
}

#[test]
fn reading_and_adding_by_index() {
    let (mut m, d) = start();
    let x = m.input("x", Type::f32([d.c, d.a]));
    let y = m.input("y", Type::f32([d.tok, d.c]));
    let ids = m.input("ids", Type::id(d.c, [d.tok]));
    let other = m.input("other", Type::id(d.tok, [d.seq]));
    let rows = m.op(Op::Index { dim: d.c }, &[x, ids]);
    let picked = m.op(Op::Index { dim: d.c }, &[y, ids]);
    let last = m.op(Op::Index { dim: d.tok }, &[y, other]);
    let labels = m.op(Op::Index { dim: d.tok }, &[ids, other]);
    let again = m.op(Op::Index { dim: d.c }, &[x, labels]);
    let added = m.op(Op::ScatterAdd { dim: d.c, dims: vec![d.c, d.a] }, &[ids, rows]);
    let turned = m.op(Op::ScatterAdd { dim: d.c, dims: vec![d.a, d.c] }, &[ids, rows]);
    let back = m.op(Op::ScatterAdd { dim: d.c, dims: vec![d.tok, d.c] }, &[ids, picked]);
    let g = m.finish(&[
        ("rows", rows),
        ("picked", picked),
        ("last", last),
        ("again", again),
        ("added", added),
        ("turned", turned),
        ("back", back),
    ]);
    same("index", &g, &d);
}

#[test]
fn broadcast_cast_and_log_probs() {
    let (mut m, d) = start();
    let x = m.input("x", Type::f32([d.seq, d.b]));
    let logits = m.input("logits", Type::f32([d.c, d.tok]));
    let labels = m.input("labels", Type::id(d.c, [d.tok]));
    let t = m.c(0.7);
    let wide = m.op(Op::Broadcast { dims: vec![d.b, d.tok, d.a] }, &[x]);
    let cast = m.op(Op::Cast { to: DType::Bf16 }, &[x]);
    let stop = m.op(Op::StopGrad, &[cast]);
    let lp =
        m.g.push(
            &mut m.block,
            Op::LogProb { vocab: d.c, valid: 7, axes: vec![] },
            &[logits, labels, t],
            None,
        )
        .expect("fits");
    let d_lp = m.un(UnaryOp::Tanh, lp[2]);
    let args = [logits, labels, t, lp[1], lp[2], d_lp, lp[2]];
    let grad = m.op(Op::LogProbGrad { vocab: d.c, valid: 7, axes: vec![] }, &args);
    let g = m.finish(&[
        ("wide", wide),
        ("stop", stop),
        ("lse", lp[1]),
        ("entropy", lp[2]),
        ("grad", grad),
    ]);
    same("others", &g, &d);
}

#[test]
fn an_optimizer_runs_flat_and_in_place() {
    // Momentum: m = 0.5 m + g, w = w - lr m.
    let mut g = Graph::new("momentum");
    let flat = g.dims.add_ragged("flat", None, usize::MAX);
    let mut b = Build { g, block: Block::default() };
    let ty = || Type::f32([flat]);
    let (w, grad, m) = (b.input("w", ty()), b.input("g", ty()), b.input("m", ty()));
    let lr = b.input("host.0", Type::f32([]));
    let half = b.c(0.5);
    let kept = b.mul(m, half);
    let m = b.add(kept, grad);
    let step = b.mul(m, lr);
    let w = b.bin(BinaryOp::Sub, w, step);
    let plain = b.finish(&[("w", w), ("m", m)]);
    let mut fused = plain.clone();
    nrl_passes::fuse(&mut fused, &nrl_passes::FuseConfig::default()).expect("fuses");
    let n = 100_003;
    for (g, threads) in [(plain, 1), (fused, 2)] {
        let mut device = CpuEngine::new().device(0, 1, threads);
        let ready = device
            .prepare(&Arc::new(nrl_passes::schedule(g, &Mesh::default(), vec![])))
            .expect("compiles");
        let at = |i: usize, k: usize| (i * k % 101) as f32 - 50.0;
        let (mut w, mut m): (Vec<f32>, Vec<f32>) =
            ((0..n).map(|i| at(i, 7)).collect(), (0..n).map(|i| at(i, 3)).collect());
        let mut grad: Vec<f32> = (0..n).map(|i| at(i, 5)).collect();
        device
            .run_flat(
                ready,
                &["w", "g", "m"],
                &mut [&mut w, &mut grad, &mut m],
                &[("host.0", 0.25)],
            )
            .expect("runs");
        for i in 0..n {
            let moment = 0.5 * at(i, 3) + at(i, 5);
            assert_eq!((m[i], w[i], grad[i]), (moment, at(i, 7) - 0.25 * moment, at(i, 5)));
        }
        let missing =
            device.run_flat(ready, &["w", "g", "m"], &mut [&mut w, &mut grad, &mut m], &[]);
        assert_eq!(
            missing.expect_err("no rate").to_string(),
            "input `host.0` of `momentum` is not given"
        );
    }
}

#[test]
fn the_next_item_recurrences_and_the_largest_few() {
    let (mut m, d) = start();
    let u = m.input("u", Type::f32([d.tok]));
    let c = m.input("c", Type::f32([d.tok]));
    let x = m.input("x", Type::f32([d.tok, d.b, d.a]));
    let outs = [
        m.op(Op::Next { dim: d.tok, fill: 0.25 }, &[u]),
        m.op(Op::Recur { dim: d.tok, back: true }, &[u, c]),
        m.op(Op::Recur { dim: d.tok, back: false }, &[u, c]),
        m.op(Op::TopK { dim: d.b, k: 2, groups: None }, &[x]),
        m.op(Op::TopK { dim: d.a, k: 1, groups: None }, &[x]),
    ];
    let g =
        m.finish(&[("n", outs[0]), ("b", outs[1]), ("f", outs[2]), ("k", outs[3]), ("l", outs[4])]);
    same("along", &g, &d);
}

/// Two sequences of 2 and 1 tokens, by hand.
#[test]
fn a_recurrence_restarts_in_each_sequence() {
    let (mut m, d) = start();
    let u = m.input("u", Type::f32([d.tok]));
    let c = m.input("c", Type::f32([d.tok]));
    let next = m.op(Op::Next { dim: d.tok, fill: -1.0 }, &[u]);
    let back = m.op(Op::Recur { dim: d.tok, back: true }, &[u, c]);
    let g = m.finish(&[("next", next), ("back", back)]);
    let t = |x: &[f64]| Tensor::new([x.len()], x.to_vec());
    let bind = Bindings {
        inputs: vec![t(&[1.0, 2.0, 4.0]), t(&[0.5, 9.0, 9.0])],
        offsets: BTreeMap::from([
            (d.group, vec![0, 2]),
            (d.seq, vec![0, 1, 2]),
            (d.tok, vec![0, 2, 3]),
        ]),
        ..Bindings::default()
    };
    let (outs, _) = run_one(&g, 1, &bind, &Params::new());
    assert_eq!(outs[0], [2.0, -1.0, -1.0]);
    assert_eq!(outs[1], [2.0, 2.0, 4.0]);
}

/// Filters of a convolution and a state-space model of 3 groups of 5 heads, with both gradients.
#[test]
fn states_go_from_token_to_token_of_a_sequence() {
    use nrl_ir::op::{Conv, Ssm};
    let (mut m, d) = start();
    let n = m.g.dims.add_static("n", 4);
    let conv = Conv { tok: d.tok, taps: n, cached: false, ring: None };
    let x = m.input("x", Type::f32([d.tok, d.a, d.b]));
    let w = m.input("w", Type::f32([d.a, d.b, n]));
    let y = m.op(Op::Conv { conv: conv.clone() }, &[x, w]);
    let back = m.g.push(&mut m.block, Op::ConvGrad { conv }, &[x, w, y], None).expect("fits");
    let ssm = Ssm { tok: d.tok, g: d.a, r: d.b, p: d.c, n, cached: false, ring: None };
    let u = m.input("u", Type::f32([d.tok, d.a, d.b, d.c]));
    let a = m.input("a", Type::f32([d.tok, d.a, d.b]));
    let b = m.input("b", Type::f32([d.tok, d.a, n]));
    let c = m.input("c", Type::f32([d.tok, d.a, n]));
    let z = m.op(Op::Ssm { ssm: ssm.clone() }, &[u, a, b, c]);
    let grads = m.g.push(&mut m.block, Op::SsmGrad { ssm }, &[u, a, b, c, z], None).expect("fits");
    let g = numbered(m, [vec![y], back, vec![z], grads].concat());
    same("states", &g, &d);
}

/// `s = e^a s + u b`, `y = s c` by hand over two sequences of 2 and 1 tokens; filters of two taps.
#[test]
fn a_state_restarts_in_each_sequence() {
    use nrl_ir::op::{Conv, Ssm};
    let (mut m, d) = start();
    let one = m.g.dims.add_static("one", 1);
    let [g1, r, p] = ["g", "r", "p"].map(|s| m.g.dims.add_static(s, 1));
    let taps = m.g.dims.add_static("taps", 2);
    let u = m.input("u", Type::f32([d.tok, g1, r, p]));
    let a = m.input("a", Type::f32([d.tok, g1, r]));
    let b = m.input("b", Type::f32([d.tok, g1, one]));
    let c = m.input("c", Type::f32([d.tok, g1, one]));
    let w = m.input("w", Type::f32([g1, r, p, taps]));
    let ssm = Ssm { tok: d.tok, g: g1, r, p, n: one, cached: false, ring: None };
    let y = m.op(Op::Ssm { ssm }, &[u, a, b, c]);
    let conv = Conv { tok: d.tok, taps, cached: false, ring: None };
    let z = m.op(Op::Conv { conv }, &[u, w]);
    let g = m.finish(&[("y", y), ("z", z)]);
    let t = |shape: &[usize], x: &[f64]| Tensor::new(shape.to_vec(), x.to_vec());
    let half = 0.5f64.ln();
    let bind = Bindings {
        inputs: vec![
            t(&[3, 1, 1, 1], &[1.0, 2.0, 4.0]),
            t(&[3, 1, 1], &[half, half, half]),
            t(&[3, 1, 1], &[1.0, 3.0, 1.0]),
            t(&[3, 1, 1], &[1.0, 1.0, 2.0]),
            t(&[1, 1, 1, 2], &[10.0, 1.0]),
        ],
        offsets: BTreeMap::from([
            (d.group, vec![0, 2]),
            (d.seq, vec![0, 1, 2]),
            (d.tok, vec![0, 2, 3]),
        ]),
        ..Bindings::default()
    };
    let (outs, _) = run_one(&g, 1, &bind, &Params::new());
    // States 1, then 0.5 + 2 * 3, then 4 anew.
    assert_eq!(outs[0], [1.0, 6.5, 8.0]);
    assert_eq!(outs[1], [1.0, 12.0, 4.0]);
}
