//! Fused = unfused, in the model's own graphs and in loops; plans of the result.

use nrl_ir::kernel::{Instr, Output};
use nrl_ir::{Graph, Mesh, Op};
use nrl_passes::{FuseConfig, Rules, State, fuse, schedule, shard};

use crate::common::*;
use crate::llama::{Config, Head, build};
use crate::sharding::{loss_graph, run_sharded, share, tp};

fn count(g: &Graph, f: impl Fn(&Op) -> bool) -> usize {
    let mut n = 0;
    g.body.walk(&mut |node| n += usize::from(f(&node.op)));
    n
}

fn loose(op: &Op) -> bool {
    matches!(op, Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::Reduce { .. })
}

#[test]
fn fused_equals_unfused() {
    let c = Config::default();
    let (g, i) = loss_graph(&c);
    let mut n = Numbers(21);
    let params = weights(&g, &mut n);
    let batch = sequences(&mut n, &[(2, 3), (1, 0), (3, 4)], c.vocab);
    let bind = bind_loss(&g, &i, &batch, 7);
    let plain = run(&g, &bind, &params);
    let mut kernels = vec![];
    for max_group in [1, 3, 64] {
        let mut fused = g.clone();
        fuse(&mut fused, &FuseConfig { max_group, ..FuseConfig::default() }).expect("fuses");
        let out = run(&fused, &bind, &params);
        assert_close("outputs", &out.0, &plain.0, 1e-12);
        assert_same_grads("gradients", &out.1, &plain.1, 1e-12);
        assert_eq!(count(&fused, loose), 0, "every pointwise op and reduction is in a kernel");
        kernels.push(count(&fused, |op| matches!(op, Op::Fused { .. })));
    }
    assert!(kernels[2] * 4 < kernels[0], "{kernels:?}");
}

#[test]
fn an_rms_norm_is_one_kernel() {
    let (mut g, _) = build(&Config::default(), Head::Generate);
    nrl_passes::simplify(&mut g, nrl_passes::Stage::Final).expect("simplifies");
    fuse(&mut g, &FuseConfig::default()).expect("fuses");
    let Some(Op::Fused { kernel }) =
        g.body.nodes.iter().map(|n| &n.op).find(|op| matches!(op, Op::Fused { .. }))
    else {
        panic!("the last norm is a kernel");
    };
    assert_eq!(kernel.inputs.len(), 2);
    assert_eq!(kernel.lanes.len(), 1);
    assert_eq!(kernel.outputs.len(), 1);
    assert_eq!(kernel.outputs[0].1, Output::Store);
    assert_eq!(kernel.code.iter().filter(|i| matches!(i, Instr::Lanes { .. })).count(), 1);
    // The last norm; in the layer the norm, the one of q, the first sum with its norm, swiglu, the last sum.
    assert_eq!(count(&g, |op| matches!(op, Op::Fused { .. })), 6);
}

#[test]
fn a_plan_frees_everything_once() {
    let c = Config::default();
    let (g, i) = loss_graph(&c);
    let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]);
    let rules = Rules {
        dims: tp(),
        batch: vec!["dp".into()],
        state: State::Zero1(vec!["dp".into()]),
        ..Rules::default()
    };
    let mut s = shard(&g, &mesh, &rules).expect("legal");
    let mut n = Numbers(22);
    let params = weights(&g, &mut n);
    let batch = sequences(&mut n, &[(2, 3), (1, 2), (3, 4)], c.vocab);
    let binds: Vec<_> = (0..4)
        .map(|r| bind_loss(&s.graph, &i, &share(&batch, &mesh, &rules.batch, r), 9))
        .collect();
    let plain = run_sharded(&s, &mesh, binds.clone(), &params);
    fuse(&mut s.graph, &FuseConfig::default()).expect("fuses");
    let fused = run_sharded(&s, &mesh, binds, &params);
    for r in 0..4 {
        assert_close("outputs", &fused.0[r], &plain.0[r], 1e-12);
        assert_same_grads("gradients", &fused.1[r], &plain.1[r], 1e-12);
    }
    let plan = schedule(s.graph.clone(), &mesh, s.layouts.clone());
    let class = &plan.classes[0];
    let mut nodes = 0;
    class.graph.body.walk(&mut |_| nodes += 1);
    assert_eq!(class.frees.len(), nodes);
    let mut freed: Vec<_> = class.frees.iter().flatten().collect();
    let all = freed.len();
    freed.sort();
    freed.dedup();
    assert_eq!(freed.len(), all, "no value dies twice");
    let ar = plan
        .collectives
        .iter()
        .find(|c| c.reason == "`layers.wo` sums over `q`, which tp splits")
        .expect("listed");
    // [tok 64, d 6] in f32, forward and again in the backward pass, in two layers.
    assert_eq!((ar.bytes, ar.count), (4.0 * 64.0 * 6.0, 4));
    assert!(plan.peak_bytes > 0.0 && plan.cost.flops > 0.0);
}
