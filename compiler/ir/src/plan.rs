//! What a runtime executes: one program per rank class, for one target.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Axes over which the gradients that micro-batches add up are cut, flat: zero2 and zero3.
    pub grads: Vec<String>,
    /// Axes over which the gradient is still owed a sum when a micro-batch ends, with the reason.
    pub pending: Vec<String>,
    /// Ranks along the axes in `dims` that hold the same part: more ranks split key/value heads than
    /// there are. The gradient is owed a sum over them too.
    pub copies: usize,
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
    /// Ranks that take part.
    pub ranks: usize,
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
    /// How layers are dealt out to stages, if they are.
    pub pipeline: Option<Pipeline>,
    /// The forward of one micro-batch runs beside the backward of another.
    pub paired: bool,
    /// Work per run at the bounds.
    pub cost: Cost,
    /// Largest sum of live intermediate bytes at the bounds.
    pub peak_bytes: f64,
}

/// Layers dealt out to stages along an axis. The graph of a plan has all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    pub axis: String,
    pub ranks: usize,
    /// Parts that each stage holds: more than one where the schedule is interleaved.
    pub chunks: usize,
    /// In the order of the model; part `i` is on stage `i % ranks`.
    pub parts: Vec<Part>,
    /// Bytes that one part hands to the next, at the bounds.
    pub boundary: f64,
}

/// What runs together on one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Layers of each group, by its name.
    pub layers: Vec<(String, usize)>,
    /// Also what comes before the first layer.
    pub before: bool,
    /// Also what comes after the last layer.
    pub after: bool,
}

impl Pipeline {
    /// All that stage `stage` holds.
    pub fn stage(&self, stage: usize) -> Part {
        let mut all = Part::default();
        for part in self.parts.iter().skip(stage).step_by(self.ranks.max(1)) {
            for (group, n) in &part.layers {
                match all.layers.iter_mut().find(|(g, _)| g == group) {
                    Some((_, m)) => *m += n,
                    None => all.layers.push((group.clone(), *n)),
                }
            }
            all.before |= part.before;
            all.after |= part.after;
        }
        all
    }
}

impl Plan {
    /// Number of stages; 1 without a pipeline.
    pub fn stages(&self) -> usize {
        self.pipeline.as_ref().map_or(1, |p| p.ranks)
    }

    /// How many times a rank of stage `stage` holds each parameter: once per layer that it has. What is
    /// read before and after the layers, such as a tied embedding, is on the first and on the last stage.
    pub fn held(&self, stage: usize) -> Vec<usize> {
        let Some(class) = self.classes.first() else { return vec![] };
        let share = self.pipeline.as_ref().map(|p| p.stage(stage));
        let (before, after) = used_outside(&class.graph);
        let one = |(i, p): (usize, &crate::graph::ParamDecl)| match (&share, &p.repeat) {
            (None, repeat) => repeat.as_ref().map_or(1, |(_, n)| *n),
            (Some(s), Some((group, _))) => {
                let own = s.layers.iter().filter(|(g, _)| g == group);
                own.map(|(_, n)| *n).sum::<usize>().div_ceil(p.apart())
            }
            (Some(s), None) => {
                let (early, late) = (before.contains(&i), after.contains(&i));
                usize::from(s.before && (early || !late) || s.after && late)
            }
        };
        class.graph.params.iter().enumerate().map(one).collect()
    }

    /// What is sent once per update, by the fullest stage: sums of gradients over the ranks that share
    /// a parameter, and new weights gathered from those that each updated a part. Bytes are of four per
    /// element.
    pub fn update_collectives(&self) -> Vec<Collective> {
        let Some(class) = self.classes.first() else { return vec![] };
        let local = |l: &ParamLayout| {
            let dims = &class.graph.param(l.param).dims;
            let number: f64 = dims.iter().map(|d| class.graph.dims.bound(*d) as f64).product();
            4.0 * number / self.mesh.size_over(&l.flat) as f64
        };
        let held: Vec<Vec<usize>> = (0..self.stages()).map(|s| self.held(s)).collect();
        let weight = |h: &Vec<usize>| -> f64 {
            self.params.iter().zip(h).map(|(l, n)| local(l) * *n as f64).sum()
        };
        let fullest = held.iter().max_by(|a, b| weight(a).total_cmp(&weight(b)));
        let mut all = vec![];
        for (l, count) in self.params.iter().zip(fullest.into_iter().flatten()) {
            let p = class.graph.param(l.param);
            if !p.trained || *count == 0 {
                continue;
            }
            let mut put = |kind: &str, axes: &[String], ranks: usize, bytes: f64, what: &str| {
                if ranks > 1 {
                    all.push(Collective {
                        kind: kind.into(),
                        axes: axes.to_vec(),
                        ranks,
                        bytes,
                        count: *count,
                        reason: format!("{what} of `{}`", p.name),
                    });
                }
            };
            let over = |axes: &[String]| self.mesh.size_over(axes);
            let cut: Vec<String> =
                l.state.iter().filter(|a| l.pending.contains(a)).cloned().collect();
            let rest: Vec<String> =
                l.pending.iter().filter(|a| !cut.contains(a)).cloned().collect();
            let split: Vec<String> = l.dims.iter().flatten().cloned().collect();
            put("all_reduce", &split, l.copies, local(l), "gradients of copies");
            put("reduce_scatter", &cut, over(&cut), local(l), "gradients");
            let part = local(l) / over(&cut) as f64;
            put("all_reduce", &rest, over(&rest), part, "gradients");
            let gathered: Vec<String> =
                l.state.iter().filter(|a| !l.flat.contains(a)).cloned().collect();
            let part = local(l) / over(&gathered) as f64;
            put("all_gather", &gathered, over(&gathered), part, "new weights");
        }
        all
    }
}

/// Parameters that are read before the first loop over layers, and after it.
fn used_outside(g: &Graph) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let mut of: BTreeMap<ValueId, usize> = BTreeMap::new();
    let (mut before, mut after, mut passed) = (BTreeSet::new(), BTreeSet::new(), false);
    for node in &g.body.nodes {
        match &node.op {
            Op::Scan { .. } => passed = true,
            Op::Use { param } | Op::GatherParam { param, .. } => {
                of.extend(node.outs.iter().map(|v| (*v, param.0 as usize)));
            }
            _ => {
                let side = if passed { &mut after } else { &mut before };
                side.extend(node.args.iter().filter_map(|a| of.get(a)));
            }
        }
    }
    (before, after)
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
