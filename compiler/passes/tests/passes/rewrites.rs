//! `simplify`: the rows fire, and the numbers stay.

use nrl_ir::{BinaryOp, Block, Graph, Op, Type, UnaryOp, ValueId};
use nrl_passes::{Recompute, Report, Stage, grad, simplify};

use crate::common::*;
use crate::llama::{Build, Config, Head, build, dims};

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

/// `build` makes results from `x: [tok, d]`; gives what is left of them and the report.
fn rewritten(build: impl Fn(&mut Build, ValueId) -> Vec<ValueId>) -> (Vec<&'static str>, Report) {
    let mut g = Graph::new("rows");
    let i = dims(&mut g, &Config::default());
    let mut b = Build { g, block: Block::default() };
    let x = b.input("x", Type::f32([i.tok, i.d]));
    let names = ["a", "b", "c", "d"];
    let outs: Vec<_> = names.into_iter().zip(build(&mut b, x)).collect();
    let mut g = b.finish(&outs);
    let report = simplify(&mut g, Stage::Final).expect("simplifies");
    crate::between::sound("simplify", &g);
    (g.body.nodes.iter().map(|n| n.op.name()).collect(), report)
}

#[test]
fn each_row_fires() {
    let (left, report) = rewritten(|b, x| {
        let (one, zero) = (b.c(1.0), b.c(0.0));
        let y = b.mul(one, x);
        let y = b.add(y, zero);
        let y = b.un(UnaryOp::Neg, y);
        let y = b.un(UnaryOp::Neg, y);
        let y = b.bin(BinaryOp::Div, y, one);
        let dims = b.g.dims_of(x).to_vec();
        let y = b.op(Op::Broadcast { dims }, &[y]);
        vec![b.op(Op::StopGrad, &[y])]
    });
    assert_eq!(left, ["input"]);
    for row in ["x * 1", "x + 0", "neg neg", "x / 1", "same dims", "stop_grad"] {
        assert_eq!(report.times(row), 1, "{row}: {report:?}");
    }
    let (left, report) = rewritten(|b, x| {
        let (two, three) = (b.c(2.0), b.c(3.0));
        let six = b.mul(two, three);
        let picked = b.op(Op::Select, &[six, x, two]);
        let dims = b.g.dims_of(x).to_vec();
        let wide = b.op(Op::Broadcast { dims }, &[six]);
        vec![b.mul(picked, wide)]
    });
    assert_eq!(left, ["input", "const", "mul"]);
    let fired =
        ["constant folding", "known condition", "implicit broadcast"].map(|r| report.times(r));
    assert_eq!(fired, [1, 1, 1], "{report:?}");
}

#[test]
fn equal_expressions_are_computed_once_and_others_kept() {
    let (left, report) = rewritten(|b, x| {
        let (a, c) = (b.un(UnaryOp::Exp, x), b.un(UnaryOp::Exp, x));
        let unused = b.mul(a, a);
        b.un(UnaryOp::Tanh, unused);
        vec![b.add(a, c), b.bin(BinaryOp::Sub, a, c)]
    });
    assert_eq!(left, ["input", "exp", "add", "sub"]);
    assert_eq!((report.times("common subexpression"), report.times("dead code")), (1, 2));
    // 0 * x is not 0 where x is infinite.
    let (left, _) = rewritten(|b, x| {
        let zero = b.c(0.0);
        vec![b.mul(x, zero)]
    });
    assert_eq!(left, ["input", "const", "mul"]);
}
