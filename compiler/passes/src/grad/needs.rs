//! Which values depend on a trained parameter in a way that has a gradient.

use std::collections::BTreeSet;

use nrl_ir::op::Scan;
use nrl_ir::{BinaryOp, Block, Graph, Node, Op, UnaryOp, ValueId};

pub(super) fn needs(g: &Graph) -> BTreeSet<ValueId> {
    let mut set = BTreeSet::new();
    block(g, &g.body, &mut set);
    set
}

fn block(g: &Graph, b: &Block, set: &mut BTreeSet<ValueId>) {
    for node in &b.nodes {
        if let Op::Scan { scan } = &node.op {
            scan_needs(g, scan, node, set);
        } else if passes(g, node, set) {
            set.extend(&node.outs);
        }
    }
}

/// A carry needs a gradient if it does before the loop or after any iteration.
fn scan_needs(g: &Graph, scan: &Scan, node: &Node, set: &mut BTreeSet<ValueId>) {
    let params = &scan.body.params;
    set.extend(
        params
            .iter()
            .zip(&node.args)
            .filter(|(_, a)| set.contains(a))
            .map(|(p, _)| *p)
            .collect::<Vec<_>>(),
    );
    loop {
        let before = set.len();
        block(g, &scan.body, set);
        for (p, r) in params.iter().zip(&scan.body.results[..scan.carries]) {
            if set.contains(r) {
                set.insert(*p);
            }
        }
        if set.len() == before {
            break;
        }
    }
    for (i, out) in node.outs.iter().enumerate() {
        let from = scan.body.results[i];
        let carried = i < scan.carries && set.contains(&params[i]);
        if set.contains(&from) || carried {
            set.insert(*out);
        }
    }
}

fn passes(g: &Graph, node: &Node, set: &BTreeSet<ValueId>) -> bool {
    let any = |args: &[ValueId]| args.iter().any(|a| set.contains(a));
    match &node.op {
        Op::Use { param } | Op::GatherParam { param, .. } => g.param(*param).trained,
        Op::Input { .. }
        | Op::Const { .. }
        | Op::StopGrad
        | Op::TopK { .. }
        | Op::Position { .. } => false,
        Op::Unary { op: UnaryOp::Sign | UnaryOp::Not | UnaryOp::IsFinite } => false,
        Op::Binary {
            op: BinaryOp::Lt | BinaryOp::Le | BinaryOp::Eq | BinaryOp::And | BinaryOp::Or,
        } => false,
        Op::Select => any(&node.args[1..]),
        Op::Index { .. } => any(&node.args[..1]),
        Op::ScatterAdd { .. } => any(&node.args[1..]),
        Op::Unary { .. }
        | Op::Binary { .. }
        | Op::Cast { .. }
        | Op::Broadcast { .. }
        | Op::Reduce { .. }
        | Op::Contract { .. }
        | Op::Fit { .. }
        | Op::Next { .. }
        | Op::Recur { .. }
        | Op::Rope { .. }
        | Op::Attention { .. }
        | Op::AttentionGrad { .. }
        | Op::AttentionCached { .. }
        | Op::Conv { .. }
        | Op::ConvGrad { .. }
        | Op::Ssm { .. }
        | Op::SsmGrad { .. }
        | Op::LogProb { .. }
        | Op::LogProbGrad { .. }
        | Op::LogProbHead { .. }
        | Op::LogProbHeadGrad { .. }
        | Op::Scan { .. }
        | Op::Accumulate { .. }
        | Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::ScatterGrad { .. }
        | Op::Fused { .. } => any(&node.args),
    }
}
