//! Dead code: nodes whose results nobody reads, stacks nobody reads, and stacks no body reads.

use nrl_ir::op::Scan;
use nrl_ir::{Block, Graph, Node, Op, ValueId};

use crate::report::Report;
use crate::values::Values;

/// Values that somebody reads.
type Live = Values<()>;

fn live(all: &[ValueId]) -> impl Iterator<Item = (ValueId, ())> {
    all.iter().map(|v| (*v, ()))
}

pub(crate) fn sweep(g: &mut Graph, report: &mut Report) {
    let mut read: Live = live(&g.body.results).collect();
    block(&mut g.body, &mut read, report);
}

/// Drops dead nodes of `b`, last first; `read` gains what the others read.
fn block(b: &mut Block, read: &mut Live, report: &mut Report) {
    let mut kept = vec![];
    for mut node in std::mem::take(&mut b.nodes).into_iter().rev() {
        if !has_effect(&node) && !node.outs.iter().any(|v| read.contains_key(v)) {
            report.count("dead code");
            continue;
        }
        let Node { op, args, outs, .. } = &mut node;
        if let Op::Scan { scan } = op {
            drop_results(scan, outs, read, report);
            read.extend(live(&scan.body.results));
            block(&mut scan.body, read, report);
            drop_slices(scan, args, read, report);
        }
        read.extend(live(&node.args));
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
fn drop_results(scan: &mut Scan, outs: &mut Vec<ValueId>, read: &Live, report: &mut Report) {
    for i in (scan.carries..outs.len()).rev() {
        if !read.contains_key(&outs[i]) {
            outs.remove(i);
            scan.body.results.remove(i);
            report.count("dead stack");
        }
    }
}

/// Slices that the body does not read.
fn drop_slices(scan: &mut Scan, args: &mut Vec<ValueId>, read: &Live, report: &mut Report) {
    for i in (scan.carries..args.len()).rev() {
        if !read.contains_key(&scan.body.params[i]) {
            args.remove(i);
            scan.body.params.remove(i);
            report.count("dead stack");
        }
    }
}
