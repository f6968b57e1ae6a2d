//! What a runtime executes: one program per rank class, for one target.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::graph::{Block, Graph, ParamId, ValueId};
use crate::mesh::Mesh;
use crate::op::Op;

/// How a parameter is stored on a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamLayout {
    pub param: ParamId,
    /// Per dim of the parameter, the mesh axes that split it (empty: not split). Local sizes are in
    /// the plan's graph.
    pub dims: Vec<Vec<String>>,
    /// Axes over which the *local* weight is cut once more, flat and padded to equal parts: zero3.
    pub flat: Vec<String>,
    /// Axes over which optimizer state and update are cut, flat: zero1. Equals `flat` under zero3.
    pub state: Vec<String>,
    /// Axes over which the gradient is still owed a sum when a micro-batch ends, with the reason.
    pub pending: Vec<String>,
    pub reason: String,
}

/// Ranks that run the same program, told apart by their coordinates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankClass {
    pub name: String,
    pub ranks: usize,
    pub graph: Graph,
    /// Per node of the body (and of scan bodies, in walk order), values not needed after it.
    pub frees: Vec<Vec<ValueId>>,
}

/// One collective, with the reason that put it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collective {
    pub kind: String,
    pub axes: Vec<String>,
    /// Bytes of the operand per call, at the bounds.
    pub bytes: f64,
    /// Calls per run.
    pub count: usize,
    pub reason: String,
}

/// A tensor graph made ready for one mesh and one kind of engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub mesh: Mesh,
    pub params: Vec<ParamLayout>,
    pub classes: Vec<RankClass>,
    pub collectives: Vec<Collective>,
    /// Work per run at the bounds.
    pub cost: Cost,
    /// Largest sum of live intermediate bytes at the bounds.
    pub peak_bytes: f64,
}

/// Largest sum of live intermediate bytes of a run, when value `v` takes `bytes(v)`; `frees` is
/// [`RankClass::frees`]. Weights that are read in place count nothing, gathered ones count while
/// they are needed.
pub fn peak(graph: &Graph, frees: &[Vec<ValueId>], bytes: &dyn Fn(&Graph, ValueId) -> f64) -> f64 {
    let mut walk = Live { graph, frees: frees.iter(), bytes, peak: 0.0 };
    walk.block(&graph.body, 0.0);
    walk.peak
}

struct Live<'a> {
    graph: &'a Graph,
    /// Of the nodes still to come, in walk order.
    frees: std::slice::Iter<'a, Vec<ValueId>>,
    bytes: &'a dyn Fn(&Graph, ValueId) -> f64,
    peak: f64,
}

impl Live<'_> {
    fn sum<'v>(&self, values: impl IntoIterator<Item = &'v ValueId>) -> f64 {
        values.into_iter().map(|v| (self.bytes)(self.graph, *v)).sum()
    }

    fn block(&mut self, block: &Block, outside: f64) {
        let mut now = outside + self.sum(&block.params);
        let mut in_place: BTreeSet<ValueId> = BTreeSet::new();
        for node in &block.nodes {
            let frees = self.frees.next().map(Vec::as_slice).unwrap_or_default();
            if matches!(node.op, Op::Use { .. }) {
                in_place.extend(&node.outs);
            } else {
                now += self.sum(&node.outs);
            }
            self.peak = self.peak.max(now);
            if let Op::Scan { scan } = &node.op {
                self.block(&scan.body, now);
            }
            now -= self.sum(frees.iter().filter(|v| !in_place.contains(v)));
        }
    }
}
