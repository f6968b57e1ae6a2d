//! Renaming and listing of values, nested blocks included.

use std::collections::BTreeSet;

use nrl_ir::op::Scan;
use nrl_ir::{Block, Graph, Node, Op, Type, ValueId};

use crate::values::Values;

/// New names of values; those not listed keep theirs.
pub(crate) type Map = Values<ValueId>;

pub(crate) fn renamed(map: &Map, v: ValueId) -> ValueId {
    map.get(&v).copied().unwrap_or(v)
}

/// Renames every operand, result and parameter of `nodes` in place.
pub(crate) fn rename_nodes(nodes: &mut [Node], map: &Map) {
    for node in nodes {
        node.args.iter_mut().chain(&mut node.outs).for_each(|v| *v = renamed(map, *v));
        if let Op::Scan { scan } = &mut node.op {
            rename_block(&mut scan.body, map);
        }
    }
}

pub(crate) fn rename_block(block: &mut Block, map: &Map) {
    block.params.iter_mut().chain(&mut block.results).for_each(|v| *v = renamed(map, *v));
    rename_nodes(&mut block.nodes, map);
}

/// A copy of `node` whose results, and everything defined inside it, are new values; `map` learns
/// the new names.
pub(crate) fn copy_node(g: &mut Graph, node: &Node, map: &mut Map) -> Node {
    let mut defined = node.outs.clone();
    if let Op::Scan { scan } = &node.op {
        defined.extend(&scan.body.params);
        scan.body.walk(&mut |n| {
            defined.extend(&n.outs);
            if let Op::Scan { scan } = &n.op {
                defined.extend(&scan.body.params);
            }
        });
    }
    for v in defined {
        let ty = g.ty(v).clone();
        let fresh = g.fresh(ty);
        map.insert(v, fresh);
    }
    let mut copy = [node.clone()];
    rename_nodes(&mut copy, map);
    let [copy] = copy;
    copy
}

/// Everything a node reads: operands, and values from outside that its body reads.
pub(crate) fn reads(node: &Node) -> Vec<ValueId> {
    let mut out = node.args.clone();
    if let Op::Scan { scan } = &node.op {
        out.extend(free_values(scan));
    }
    out
}

/// Values from outside that the body of `scan` reads, in order of first use.
pub(crate) fn free_values(scan: &Scan) -> Vec<ValueId> {
    let mut defined: BTreeSet<ValueId> = scan.body.params.iter().copied().collect();
    let mut free = vec![];
    for node in &scan.body.nodes {
        free.extend(reads(node).into_iter().filter(|v| !defined.contains(v)));
        defined.extend(&node.outs);
    }
    free.extend(scan.body.results.iter().filter(|v| !defined.contains(v)));
    let mut seen = BTreeSet::new();
    free.retain(|v| seen.insert(*v));
    free
}

/// Numbers values in order of definition and drops those no node defines.
pub(crate) fn compact(g: &mut Graph) {
    let mut order = vec![];
    list_block(&g.body, &mut order);
    let map: Map = order.iter().enumerate().map(|(i, v)| (*v, ValueId(i as u32))).collect();
    g.values = order
        .iter()
        .map(|v| std::mem::replace(&mut g.values[v.0 as usize], Type::f32([])))
        .collect();
    rename_block(&mut g.body, &map);
}

fn list_block(block: &Block, order: &mut Vec<ValueId>) {
    order.extend(&block.params);
    for node in &block.nodes {
        if let Op::Scan { scan } = &node.op {
            list_block(&scan.body, order);
        }
        order.extend(&node.outs);
    }
}
