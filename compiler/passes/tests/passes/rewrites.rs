//! `simplify`: the rows fire, and the numbers stay.

use nrl_ir::{Op, ValueId};
use nrl_passes::{Recompute, Stage, grad, simplify};

use crate::common::*;
use crate::llama::{Config, Head, build};

#[test]
fn the_head_runs_on_selected_rows_and_stores_no_logits() {
    let c = Config { tied: true, ..Config::default() };
    let (g, i) = build(&c, Head::Loss);
    let mut small = g.clone();
    let report = simplify(&mut small, Stage::BeforeGrad).expect("simplifies");
    assert_eq!(report.times("head in log_prob"), 1, "{report:?}");
    let over_tok: Vec<&str> = small
        .body
        .nodes
        .iter()
        .filter(|n| n.outs.iter().any(|v: &ValueId| small.dims_of(*v).contains(&i.tok)))
        .map(|n| n.op.name())
        .collect();
    // Only the inputs, the embedding and the layers still run over all tokens.
    assert_eq!(over_tok, ["input", "index", "scan"], "{report:?}");
    assert!(!small.body.nodes.iter().any(|n| matches!(n.op, Op::LogProb { .. })));

    let mut n = Numbers(3);
    let params = weights(&g, &mut n);
    let batch = sequences(&mut n, &[(2, 3), (3, 1)], c.vocab);
    let bind = bind_loss(&g, &i, &batch, 4);
    assert_close("outputs", &run(&small, &bind, &params).0, &run(&g, &bind, &params).0, 1e-12);
    let mut a = grad(&small, "loss", &Recompute::Full).expect("differentiable");
    simplify(&mut a, Stage::Final).expect("simplifies");
    let b = grad(&g, "loss", &Recompute::None).expect("differentiable");
    assert_same_grads("gradients", &run(&a, &bind, &params).1, &run(&b, &bind, &params).1, 1e-10);
}
