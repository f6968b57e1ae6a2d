//! What splitting the sequences over ranks does to values without ragged dims.

use std::collections::BTreeMap;

use nrl_ir::op::Scan;
use nrl_ir::{BinaryOp, Block, Graph, Node, Op, ReduceOp, UnaryOp, ValueId};

/// A value across the ranks that hold different sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Zero everywhere: whole and partial at once.
    Zero,
    /// Equal on all ranks.
    Same,
    /// The sum over the ranks is the value.
    Partial,
    /// The maximum over the ranks is the value.
    PartialMax,
    /// About this rank's own items.
    Items,
}

use Class::{Items, Partial, PartialMax, Same, Zero};

pub(super) type Classes = BTreeMap<ValueId, Class>;

/// Class of every value, if operands are made whole where [`wants_whole`] says so.
pub(super) fn classes(g: &Graph, body: &Block) -> Classes {
    let mut classes = Classes::new();
    block(g, body, &mut classes);
    classes
}

fn block(g: &Graph, b: &Block, classes: &mut Classes) {
    for node in &b.nodes {
        if let Op::Scan { scan } = &node.op {
            scan_classes(g, scan, node, classes);
            continue;
        }
        let args = of(classes, &node.args);
        for out in &node.outs {
            classes.insert(*out, class(g, node, &args, *out));
        }
    }
}

fn scan_classes(g: &Graph, scan: &Scan, node: &Node, classes: &mut Classes) {
    for (p, a) in scan.body.params.iter().zip(&node.args) {
        let c = classes.get(a).copied().unwrap_or(Same);
        classes.insert(*p, c);
    }
    // A carry only ever moves up in `join`, so a few rounds settle it.
    for _ in 0..4 {
        block(g, &scan.body, classes);
        for (p, r) in scan.body.params.iter().zip(&scan.body.results[..scan.carries]) {
            let joined = join(classes[p], classes[r]);
            classes.insert(*p, joined);
        }
    }
    for (i, (out, r)) in node.outs.iter().zip(&scan.body.results).enumerate() {
        let c = if i < scan.carries { classes[&scan.body.params[i]] } else { classes[r] };
        classes.insert(*out, c);
    }
}

/// Class of a carry that enters as `a` and comes back as `b`; a partial one is made whole if the
/// other is.
fn join(a: Class, b: Class) -> Class {
    match (a, b) {
        (Items, _) | (_, Items) => Items,
        (Zero, c) | (c, Zero) => c,
        (Partial, Partial) => Partial,
        _ => Same,
    }
}

fn of(classes: &Classes, vs: &[ValueId]) -> Vec<Class> {
    vs.iter().map(|v| classes.get(v).copied().unwrap_or(Same)).collect()
}

fn has_ragged(g: &Graph, v: ValueId) -> bool {
    g.dims_of(v).iter().any(|d| g.dims.is_ragged(*d))
}

/// Class of result `out`.
fn class(g: &Graph, node: &Node, args: &[Class], out: ValueId) -> Class {
    if has_ragged(g, out) {
        return Items;
    }
    if let Op::Const { value } = &node.op {
        return if *value == 0.0 { Zero } else { Same };
    }
    match linear(node, args) {
        Some(c) => c,
        None if matches!(node.op, Op::Reduce { op: ReduceOp::Max, .. }) && args[0] == Items => {
            PartialMax
        }
        None => Same,
    }
}

/// Class of a result without ragged dims, if the op may run on partial operands.
fn linear(node: &Node, args: &[Class]) -> Option<Class> {
    let sums = |c: Class| matches!(c, Partial | Zero);
    let whole = |c: Class| matches!(c, Same | Zero);
    match &node.op {
        Op::Unary { op: UnaryOp::Neg } | Op::StopGrad | Op::Broadcast { .. } => match args[0] {
            c @ (Zero | Partial) => Some(c),
            _ => None,
        },
        Op::Reduce { op: ReduceOp::Sum, .. } => match args[0] {
            Items => Some(Partial),
            c @ (Zero | Partial) => Some(c),
            _ => None,
        },
        Op::Binary { op: BinaryOp::Add | BinaryOp::Sub } => match (args[0], args[1]) {
            (Zero, Zero) => Some(Zero),
            (a, b) if sums(a) && sums(b) => Some(Partial),
            _ => None,
        },
        Op::Binary { op: BinaryOp::Mul } => match (args[0], args[1]) {
            (Partial, c) | (c, Partial) if whole(c) => Some(Partial),
            _ => None,
        },
        Op::Binary { op: BinaryOp::Div } if args[0] == Partial && args[1] == Same => Some(Partial),
        Op::Select if whole(args[0]) && sums(args[1]) && sums(args[2]) => Some(Partial),
        Op::Contract { .. } => match (args[0], args[1]) {
            (Items, c) | (c, Items) if c == Items || whole(c) => Some(Partial),
            (Partial, c) | (c, Partial) if whole(c) => Some(Partial),
            _ => None,
        },
        Op::ScatterAdd { .. } if matches!(args[1], Items | Partial) => Some(Partial),
        Op::LogProbHeadGrad { .. } | Op::ConvGrad { .. } if args[0] == Items => Some(Partial),
        _ => None,
    }
}

/// Must partial operands of `node` be made whole before it runs? (Scans: see `local`.)
pub(super) fn wants_whole(g: &Graph, classes: &Classes, node: &Node) -> bool {
    match &node.op {
        Op::Accumulate { .. } | Op::ScatterGrad { .. } => false,
        _ if node.outs.iter().any(|o| has_ragged(g, *o)) => true,
        _ => linear(node, &of(classes, &node.args)).is_none(),
    }
}
