//! The largest sum of live intermediate bytes of a plan.

use std::collections::BTreeSet;

use nrl_ir::plan::Plan;
use nrl_ir::{Block, Graph, Op, ValueId};

/// Largest sum of live bytes on a rank, when value `v` takes `bytes(v)`. Weights that are read in
/// place count nothing, gathered ones count while they are needed. `frees` of the plan say when a
/// value is no longer needed.
pub fn peak(plan: &Plan, bytes: &dyn Fn(&Graph, ValueId) -> f64) -> f64 {
    let Some(class) = plan.classes.first() else { return 0.0 };
    let mut walk = Walk { g: &class.graph, frees: &class.frees, at: 0, bytes, peak: 0.0 };
    walk.block(&class.graph.body, 0.0);
    walk.peak
}

struct Walk<'a> {
    g: &'a Graph,
    frees: &'a [Vec<ValueId>],
    /// Nodes walked so far: the index into `frees`.
    at: usize,
    bytes: &'a dyn Fn(&Graph, ValueId) -> f64,
    peak: f64,
}

impl Walk<'_> {
    fn of(&self, v: ValueId) -> f64 {
        (self.bytes)(self.g, v)
    }

    fn block(&mut self, block: &Block, outside: f64) {
        let mut now = outside + block.params.iter().map(|p| self.of(*p)).sum::<f64>();
        let mut in_place: BTreeSet<ValueId> = BTreeSet::new();
        for node in &block.nodes {
            let frees = self.frees.get(self.at).map(Vec::as_slice).unwrap_or_default();
            self.at += 1;
            if matches!(node.op, Op::Use { .. }) {
                in_place.extend(&node.outs);
            } else {
                now += node.outs.iter().map(|v| self.of(*v)).sum::<f64>();
            }
            self.peak = self.peak.max(now);
            if let Op::Scan { scan } = &node.op {
                self.block(&scan.body, now);
            }
            now -= frees.iter().filter(|v| !in_place.contains(v)).map(|v| self.of(*v)).sum::<f64>();
        }
    }
}
