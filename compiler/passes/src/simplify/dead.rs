//! Dead code: nodes whose results nobody reads, stacks nobody reads, and stacks no body reads.

use std::collections::BTreeSet;

use nrl_ir::op::Scan;
use nrl_ir::{Block, Graph, Node, Op, ValueId};

use crate::report::Report;

pub(crate) fn sweep(g: &mut Graph, report: &mut Report) {
    let mut live: BTreeSet<ValueId> = g.body.results.iter().copied().collect();
    block(&mut g.body, &mut live, report);
}

/// Drops dead nodes of `b`, last first; `live` gains what the others read.
fn block(b: &mut Block, live: &mut BTreeSet<ValueId>, report: &mut Report) {
    let mut kept = vec![];
    for mut node in std::mem::take(&mut b.nodes).into_iter().rev() {
        if !has_effect(&node) && !node.outs.iter().any(|v| live.contains(v)) {
            report.count("dead code");
            continue;
        }
        let Node { op, args, outs, .. } = &mut node;
        if let Op::Scan { scan } = op {
            drop_results(scan, outs, live, report);
            live.extend(&scan.body.results);
            block(&mut scan.body, live, report);
            drop_slices(scan, args, live, report);
        }
        live.extend(&node.args);
        kept.push(node);
    }
    kept.reverse();
    b.nodes = kept;
}

fn has_effect(node: &Node) -> bool {
    match &node.op {
        Op::Scan { scan } => scan.body.nodes.iter().any(has_effect),
        Op::AttentionCached { .. } => true,
        op => op.is_sink(),
    }
}

/// New stacks that nobody reads.
fn drop_results(
    scan: &mut Scan,
    outs: &mut Vec<ValueId>,
    live: &BTreeSet<ValueId>,
    report: &mut Report,
) {
    for i in (scan.carries..outs.len()).rev() {
        if !live.contains(&outs[i]) {
            outs.remove(i);
            scan.body.results.remove(i);
            report.count("dead stack");
        }
    }
}

/// Slices that the body does not read.
fn drop_slices(
    scan: &mut Scan,
    args: &mut Vec<ValueId>,
    live: &BTreeSet<ValueId>,
    report: &mut Report,
) {
    for i in (scan.carries..args.len()).rev() {
        if !live.contains(&scan.body.params[i]) {
            args.remove(i);
            scan.body.params.remove(i);
            report.count("dead stack");
        }
    }
}
