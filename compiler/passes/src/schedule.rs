//! The plan of a sharded, fused graph: when values die, what is sent, and what it costs.
//!
//! Order is the graph's own. Lifetimes are per node in walk order: a value that a loop's body reads
//! from outside dies at the loop's node, after its last iteration; a value of a body dies in it.

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::cost::{elements, graph_cost};
use nrl_ir::plan::{Collective, ParamLayout, Part, Pipeline, Plan, RankClass, peak};
use nrl_ir::{Block, Graph, Mesh, Op, ReduceOp, ValueId};

use crate::rename;

/// The plan of `graph` on `mesh`. All ranks are one class: they differ by coordinates alone.
pub fn schedule(graph: Graph, mesh: &Mesh, layouts: Vec<ParamLayout>) -> Plan {
    let mut walk = Walk { g: &graph, mesh, frees: vec![], collectives: vec![] };
    let kept: BTreeSet<ValueId> = graph.body.results.iter().copied().collect();
    walk.block(&graph.body, &kept, 1);
    let Walk { frees, collectives, .. } = walk;
    let peak_bytes = peak(&graph, &frees, &bytes);
    let cost = graph_cost(&graph, &|d| graph.dims.bound(d) as f64);
    let class = RankClass { name: "all".into(), ranks: mesh.ranks(), graph: graph.clone(), frees };
    Plan {
        name: graph.name.clone(),
        mesh: mesh.clone(),
        params: layouts,
        classes: vec![class],
        collectives,
        pipeline: None,
        paired: false,
        cost,
        peak_bytes,
    }
}

/// Deals the layers of `plan` out to `chunks` parts on each rank along `axis`, as many to each as
/// `split` says; evenly without it, the first parts taking one more of what remains.
pub fn pipeline(plan: &mut Plan, axis: &str, chunks: usize, split: Option<&[usize]>) {
    let ranks = plan.mesh.size(axis);
    let Some(class) = plan.classes.first().filter(|_| ranks > 1) else { return };
    let g = &class.graph;
    let mut groups: Vec<(String, usize)> = vec![];
    let (mut boundary, mut back) = (0.0, false);
    for node in &g.body.nodes {
        let Op::Scan { scan } = &node.op else { continue };
        back |= scan.reverse;
        if boundary == 0.0 {
            boundary = scan.body.params[..scan.carries].iter().map(|v| bytes(g, *v)).sum();
        }
        if !groups.iter().any(|(name, _)| *name == scan.group) {
            groups.push((scan.group.clone(), scan.count * g.layers_of_turn(&scan.group)));
        }
    }
    let total: usize = groups.iter().map(|(_, n)| n).sum();
    let number = ranks * chunks.max(1);
    let share = |i: usize| match split {
        Some(given) => given.get(i).copied().unwrap_or(0),
        None => total / number + usize::from(i < total % number),
    };
    let mut left = groups.into_iter().peekable();
    let mut parts = vec![];
    for i in 0..number {
        let mut part = Part { before: i == 0, after: i + 1 == number, ..Part::default() };
        let mut want = share(i);
        while let Some((name, n)) = left.peek_mut().filter(|_| want > 0) {
            let taken = want.min(*n);
            part.layers.push((name.clone(), taken));
            (*n, want) = (*n - taken, want - taken);
            if *n == 0 {
                left.next();
            }
        }
        parts.push(part);
    }
    plan.collectives.push(Collective {
        kind: "send".into(),
        axes: vec![axis.into()],
        ranks: 2,
        bytes: boundary,
        count: (number - 1) * if back { 2 } else { 1 },
        reason: format!("the layers are stages over {axis}"),
    });
    let axis = axis.to_string();
    plan.pipeline = Some(Pipeline { axis, ranks, chunks: chunks.max(1), parts, boundary });
}

struct Walk<'a> {
    g: &'a Graph,
    mesh: &'a Mesh,
    frees: Vec<Vec<ValueId>>,
    collectives: Vec<Collective>,
}

/// Bytes of a value at the bounds.
fn bytes(g: &Graph, v: ValueId) -> f64 {
    4.0 * elements(&g.dims, g.ty(v), &|d| g.dims.bound(d) as f64)
}

impl Walk<'_> {
    fn bytes(&self, v: ValueId) -> f64 {
        bytes(self.g, v)
    }

    /// Walks a block that runs `times` per run of the plan.
    fn block(&mut self, block: &Block, kept: &BTreeSet<ValueId>, times: usize) {
        let last = last_uses(block);
        let mut held: BTreeSet<ValueId> = block.params.iter().copied().collect();
        for (i, node) in block.nodes.iter().enumerate() {
            let at = self.frees.len();
            self.frees.push(vec![]);
            self.collective(node, times);
            held.extend(&node.outs);
            if let Op::Scan { scan } = &node.op {
                let results = scan.body.results.iter().copied().collect();
                self.block(&scan.body, &results, times * scan.count);
            }
            let mut dead = BTreeSet::new();
            for v in rename::reads(node).into_iter().chain(node.outs.iter().copied()) {
                if last.get(&v).is_none_or(|l| *l <= i) && !kept.contains(&v) && held.remove(&v) {
                    dead.insert(v);
                }
            }
            self.frees[at] = dead.into_iter().collect();
        }
    }

    fn collective(&mut self, node: &nrl_ir::Node, times: usize) {
        let of_arg = || self.bytes(node.args[0]);
        let (kind, axes, bytes, reason) = match &node.op {
            Op::AllReduce { op: ReduceOp::Sum, axes, reason } => {
                ("all_reduce", axes, of_arg(), reason.clone())
            }
            Op::AllReduce { op: ReduceOp::Max, axes, reason } => {
                ("all_reduce max", axes, of_arg(), reason.clone())
            }
            Op::AllGather { axes, reason, .. } => ("all_gather", axes, of_arg(), reason.clone()),
            Op::ReduceScatter { axes, reason, .. } => {
                ("reduce_scatter", axes, of_arg(), reason.clone())
            }
            Op::AllToAll { axes, reason, .. } => ("all_to_all", axes, of_arg(), reason.clone()),
            Op::GatherParam { axes, reason, .. } => {
                ("gather_param", axes, self.bytes(node.outs[0]), reason.clone())
            }
            Op::ScatterGrad { axes, reason, .. } => {
                ("scatter_grad", axes, of_arg(), reason.clone())
            }
            Op::Attention { attn } | Op::AttentionGrad { attn } => {
                let Some(ring) = &attn.ring else { return };
                // Backward, their gradients go around with keys and values.
                let times = if matches!(node.op, Op::AttentionGrad { .. }) { 2.0 } else { 1.0 };
                let bytes = times * (self.bytes(node.args[1]) + self.bytes(node.args[2]));
                let verb = if ring.axes.len() == 1 { "splits" } else { "split" };
                let reason = format!(
                    "attention needs keys and values of all of `{}`, which {} {verb}",
                    self.g.dims.name(attn.tok),
                    ring.axes.join(", ")
                );
                ("ring", &ring.axes, bytes, reason)
            }
            Op::Ssm { ssm } | Op::SsmGrad { ssm } => {
                let Some(ring) = &ssm.ring else { return };
                let bytes = node.args.iter().chain(&node.outs).map(|v| self.bytes(*v)).sum();
                let verb = if ring.axes.len() == 1 { "splits" } else { "split" };
                let reason = format!(
                    "a state-space model needs all of `{}`, which {} {verb}, for its share of the heads",
                    self.g.dims.name(ssm.tok),
                    ring.axes.join(", ")
                );
                ("all_to_all", &ring.axes, bytes, reason)
            }
            // Per row: a maximum, then sums of exp, of exp times logit, and of the label's logit.
            Op::LogProb { vocab, axes, .. } | Op::LogProbHead { vocab, axes, .. }
                if !axes.is_empty() =>
            {
                let verb = if axes.len() == 1 { "splits" } else { "split" };
                let reason = format!(
                    "log-probabilities over `{}`, which {} {verb}",
                    self.g.dims.name(*vocab),
                    axes.join(", ")
                );
                ("log_prob", axes, 4.0 * self.bytes(node.outs[0]), reason)
            }
            _ => return,
        };
        let same = |c: &&mut Collective| {
            c.kind == kind && c.axes == *axes && c.bytes == bytes && c.reason == reason
        };
        match self.collectives.iter_mut().find(same) {
            Some(c) => c.count += times,
            None => {
                self.collectives.push(Collective {
                    kind: kind.into(),
                    axes: axes.clone(),
                    ranks: self.mesh.size_over(axes),
                    bytes,
                    count: times,
                    reason,
                });
            }
        }
    }
}

/// Position of the last node that reads each value.
fn last_uses(block: &Block) -> BTreeMap<ValueId, usize> {
    let mut last = BTreeMap::new();
    for (i, node) in block.nodes.iter().enumerate() {
        last.extend(rename::reads(node).into_iter().map(|v| (v, i)));
    }
    last
}
