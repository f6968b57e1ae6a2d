//! Sequence parallelism (Korthikanti et al. 2022): tokens are split over an axis wherever it is
//! still free.
//!
//! Takes the graph of one rank, whose weights an axis splits, and a ragged dim that may be split
//! over the same axis. A sum over the axis that gives whole tokens becomes a reduce-scatter; what is
//! pointwise over tokens then works on parts; an op that needs all tokens, or a weight that the axis
//! splits, gathers them again. Sums over tokens of two parts, such as the gradient of a norm's
//! weight, are owed a sum over the axis. Parts are `ceil(tokens / ranks)` long, the last ones padded
//! with zeros.

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::dim::Shard;
use nrl_ir::op::Scan;
use nrl_ir::{BinaryOp, Block, Dim, DimId, Extent, Graph, Node, Op, ReduceOp, Type, ValueId};

use super::push;
use crate::rename::{Map, renamed};
use crate::report::{Origin, Report};

/// Splits the ragged dim `tok` over `axes` of `ranks` ranks where no other dim is split over them.
pub(super) fn split(
    g: &mut Graph,
    tok: DimId,
    axes: &[String],
    ranks: usize,
    viewed: bool,
    report: &mut Report,
) {
    let dim = g.dims.get(tok).clone();
    let bound = g.dims.bound(tok);
    let part = g.dims.add(Dim {
        extent: Extent::Ragged { owner: None, bound: bound.div_ceil(ranks) },
        shard: Some(Shard { axes: axes.to_vec(), global: bound }),
        ..dim
    });
    let body = std::mem::take(&mut g.body);
    let mut s = Sequence {
        g,
        tok,
        part,
        axes,
        ranks,
        viewed,
        parted: BTreeSet::new(),
        whole: Map::new(),
        parts: Map::new(),
        names: BTreeMap::new(),
        report,
    };
    s.mark(&body.nodes);
    let parted: Vec<ValueId> = s.parted.iter().copied().collect();
    for v in parted {
        let dims = &mut s.g.values[v.0 as usize].dims;
        dims.iter_mut().filter(|d| **d == tok).for_each(|d| *d = part);
    }
    let mut nodes = vec![];
    s.nodes(body.nodes, &mut nodes);
    let results =
        body.results.iter().map(|v| s.gather(*v, "an output", &mut nodes, None)).collect();
    g.body = Block { params: body.params, nodes, results };
}

/// What a node's results are.
#[derive(PartialEq)]
enum Made {
    /// Whole tokens, or none at all.
    Whole,
    /// Parts, of operands that are parts.
    Part,
    /// Parts, as this rank's share of a sum over the axis.
    Share,
    /// One rank's term of a sum over the axis.
    Term,
}

struct Sequence<'a> {
    g: &'a mut Graph,
    tok: DimId,
    part: DimId,
    axes: &'a [String],
    ranks: usize,
    /// Whether experts have ranks of their own: sums of their gradients wait for the update.
    viewed: bool,
    /// Values that hold this rank's part of the tokens.
    parted: BTreeSet<ValueId>,
    /// Parts put together, and wholes cut, in the block at hand.
    whole: Map,
    parts: Map,
    /// Names of the weights.
    names: BTreeMap<ValueId, String>,
    report: &'a mut Report,
}

impl Sequence<'_> {
    /// Marks the values that will be parts; they only ever become more.
    fn mark(&mut self, nodes: &[Node]) {
        for node in nodes {
            if let Op::Scan { scan } = &node.op {
                self.mark_scan(scan, node);
            } else if matches!(self.made(node), Made::Part | Made::Share) {
                self.parted.extend(&node.outs);
            }
        }
    }

    fn mark_scan(&mut self, scan: &Scan, node: &Node) {
        for (p, a) in scan.body.params.iter().zip(&node.args) {
            if self.parted.contains(a) {
                self.parted.insert(*p);
            }
        }
        loop {
            self.mark(&scan.body.nodes);
            let carries = scan.body.params.iter().zip(&scan.body.results).take(scan.carries);
            let grown: Vec<ValueId> = carries
                .filter(|(p, r)| self.parted.contains(r) && !self.parted.contains(p))
                .map(|(p, _)| *p)
                .collect();
            if grown.is_empty() {
                break;
            }
            self.parted.extend(grown);
        }
        for (i, (o, r)) in node.outs.iter().zip(&scan.body.results).enumerate() {
            let carried = i < scan.carries && self.parted.contains(&scan.body.params[i]);
            if carried || self.parted.contains(r) {
                self.parted.insert(*o);
            }
        }
    }

    fn made(&self, node: &Node) -> Made {
        let part = |v: &ValueId| self.parted.contains(v);
        match &node.op {
            Op::AllReduce { op: ReduceOp::Sum, axes, .. }
                if axes == self.axes && self.free(node.outs[0]) =>
            {
                Made::Share
            }
            op if op.is_pointwise() || matches!(op, Op::Broadcast { .. }) => {
                let fits = |v: &ValueId| part(v) || self.free(*v) || !self.ragged(*v);
                let all = node.args.iter().any(part) && node.args.iter().all(fits);
                // Repeated over heads that the axis splits, it stands beside whole tokens.
                if all && !self.split(node.outs[0]) { Made::Part } else { Made::Whole }
            }
            // Along other dims, or other axes.
            Op::Fit { .. } | Op::TopK { .. } | Op::AllToAll { .. } if part(&node.args[0]) => {
                Made::Part
            }
            Op::AllGather { dim, .. } | Op::ReduceScatter { dim, .. }
                if part(&node.args[0]) && !self.over_tok(&[*dim]) =>
            {
                Made::Part
            }
            Op::Reduce { over, .. } if part(&node.args[0]) && !self.over_tok(over) => Made::Part,
            Op::Reduce { op: ReduceOp::Sum, .. }
                if part(&node.args[0]) && !self.ragged(node.outs[0]) =>
            {
                Made::Term
            }
            Op::Contract { over } if node.args.iter().any(part) => {
                let split = |v: &ValueId| self.split(*v);
                if node.args.iter().any(split) {
                    Made::Whole
                } else if !self.over_tok(over) {
                    // Only one operand is about tokens, or both are and both can be parts.
                    let fits = |v: &ValueId| part(v) || self.free(*v) || !self.ragged(*v);
                    if node.args.iter().all(fits) { Made::Part } else { Made::Whole }
                } else if node.args.iter().all(|v| part(v) || self.free(*v)) {
                    Made::Term
                } else {
                    Made::Whole
                }
            }
            _ => Made::Whole,
        }
    }

    fn over_tok(&self, over: &[DimId]) -> bool {
        over.iter().any(|d| *d == self.tok || *d == self.part)
    }

    /// Is a dim of the value split over one of the axes?
    fn split(&self, v: ValueId) -> bool {
        self.g.dims_of(v).iter().filter(|d| **d != self.part).any(|d| {
            let shard = self.g.dims.get(*d).shard.as_ref();
            shard.is_some_and(|s| s.axes.iter().any(|a| self.axes.contains(a)))
        })
    }

    fn ragged(&self, v: ValueId) -> bool {
        self.g.dims_of(v).iter().any(|d| self.g.dims.is_ragged(*d))
    }

    /// Could the value be cut along its tokens?
    fn free(&self, v: ValueId) -> bool {
        let dims = self.g.dims_of(v);
        let others = |d: &&DimId| **d != self.tok && self.g.dims.is_ragged(**d);
        dims.contains(&self.tok) && dims.iter().find(others).is_none() && !self.split(v)
    }

    fn nodes(&mut self, nodes: Vec<Node>, out: &mut Vec<Node>) {
        for node in nodes {
            if let Op::Use { param } | Op::GatherParam { param, .. } = &node.op {
                self.names.insert(node.outs[0], self.g.param(*param).name.clone());
            }
            if matches!(node.op, Op::Scan { .. }) {
                self.scan(node, out);
            } else {
                self.node(node, out);
            }
        }
    }

    fn node(&mut self, mut node: Node, out: &mut Vec<Node>) {
        let made = self.remade(&node);
        match made {
            Made::Share => {
                let reason = match node.op {
                    Op::AllReduce { reason, .. } => reason,
                    _ => String::new(),
                };
                self.report.take(&format!("all_reduce over {}: {reason}", self.axes.join(", ")));
                let v = node.args[0];
                node.args[0] = self.gather(v, "a sum", out, node.origin);
                node.op = self.scatter(format!("{reason}, and tokens go on in parts"));
                out.push(node);
            }
            Made::Part => {
                for i in 0..node.args.len() {
                    node.args[i] = self.cut(node.args[i], out, node.origin);
                }
                if let Op::Broadcast { dims } = &mut node.op {
                    dims.iter_mut().filter(|d| **d == self.tok).for_each(|d| *d = self.part);
                }
                out.push(node);
            }
            Made::Term => self.term(node, out),
            Made::Whole => {
                let what = self.names_of(&node);
                for i in 0..node.args.len() {
                    node.args[i] = self.gather(node.args[i], &what, out, node.origin);
                }
                out.push(node);
            }
        }
    }

    /// What the marks say, which were final when this runs.
    fn remade(&self, node: &Node) -> Made {
        let parted = node.outs.iter().any(|o| self.parted.contains(o));
        match &node.op {
            Op::AllReduce { .. } if parted => Made::Share,
            _ if parted => Made::Part,
            _ => match self.made(node) {
                Made::Term => Made::Term,
                _ => Made::Whole,
            },
        }
    }

    /// A sum over tokens of parts: a term of the sum over all ranks.
    fn term(&mut self, mut node: Node, out: &mut Vec<Node>) {
        for i in 0..node.args.len() {
            node.args[i] = self.cut(node.args[i], out, node.origin);
        }
        if let Op::Contract { over } | Op::Reduce { over, .. } = &mut node.op {
            over.iter_mut().filter(|d| **d == self.tok).for_each(|d| *d = self.part);
            // Parts are cut into no sequences: the owners of the tokens go with them.
            over.retain(|d| *d == self.part || !self.g.dims.is_ragged(*d));
        }
        let whole = node.outs[0];
        if self.viewed && self.g.dims_of(whole).iter().any(|d| self.g.dims.get(*d).routed.is_some())
        {
            out.push(node);
            return;
        }
        let ty = self.g.ty(whole).clone();
        let term = self.g.fresh(ty);
        let (origin, axes) = (node.origin, self.axes.to_vec());
        node.outs[0] = term;
        out.push(node);
        let reason = format!("a sum over `{}`, which {} splits", self.name(), axes.join(", "));
        self.report.count(format!("all_reduce over {}: {reason}", axes.join(", ")));
        let op = Op::AllReduce { op: ReduceOp::Sum, axes, reason };
        out.push(Node { op, args: vec![term], outs: vec![whole], origin });
    }

    fn scan(&mut self, mut node: Node, out: &mut Vec<Node>) {
        let Op::Scan { scan } = &mut node.op else { return };
        let cut = |s: &Self, p: &ValueId| s.parted.contains(p);
        for (i, p) in scan.body.params.clone().iter().enumerate() {
            let a = node.args[i];
            node.args[i] = if cut(self, p) {
                self.cut(a, out, node.origin)
            } else {
                self.gather(a, "a loop", out, node.origin)
            };
        }
        let outer = (self.whole.clone(), self.parts.clone());
        let mut nodes = vec![];
        let body = std::mem::take(&mut scan.body);
        self.nodes(body.nodes, &mut nodes);
        let mut results = vec![];
        for (i, r) in body.results.iter().enumerate() {
            let parts = cut(self, &node.outs[i]);
            results.push(if parts {
                self.cut(*r, &mut nodes, node.origin)
            } else {
                self.gather(*r, "a loop", &mut nodes, node.origin)
            });
        }
        (self.whole, self.parts) = outer;
        scan.body = Block { params: body.params, nodes, results };
        out.push(node);
    }

    fn name(&self) -> String {
        self.g.dims.name(self.tok).to_string()
    }

    /// Words for what needs all tokens.
    fn names_of(&self, node: &Node) -> String {
        let weight = node.args.iter().find_map(|a| self.names.get(a));
        weight.map_or_else(|| format!("`{}`", node.op.name()), |n| format!("`{n}`"))
    }

    fn scatter(&mut self, reason: String) -> Op {
        self.report.count(format!("reduce_scatter over {}: {reason}", self.axes.join(", ")));
        Op::ReduceScatter { dim: self.tok, part: self.part, axes: self.axes.to_vec(), reason }
    }

    /// The value with all tokens.
    fn gather(&mut self, v: ValueId, what: &str, out: &mut Vec<Node>, origin: Origin) -> ValueId {
        if !self.parted.contains(&v) {
            return v;
        }
        if self.whole.contains_key(&v) {
            return renamed(&self.whole, v);
        }
        let axes = self.axes.to_vec();
        let reason = format!("{what} needs all of `{}`", self.name());
        self.report.count(format!("all_gather over {}: {reason}", axes.join(", ")));
        let op = Op::AllGather { dim: self.part, full: self.tok, axes, reason };
        let ty = self.swapped(v, self.part, self.tok);
        let whole = push(self.g, op, vec![v], ty, out, origin);
        self.whole.insert(v, whole);
        whole
    }

    /// The value, if it is about tokens, with this rank's part of them.
    fn cut(&mut self, v: ValueId, out: &mut Vec<Node>, origin: Origin) -> ValueId {
        if self.parted.contains(&v) || !self.g.dims_of(v).contains(&self.tok) {
            return v;
        }
        if self.parts.contains_key(&v) {
            return renamed(&self.parts, v);
        }
        // All ranks hold the same numbers: their share of the sum is a slice.
        let by = Op::Const { value: 1.0 / self.ranks as f64 };
        let by = push(self.g, by, vec![], Type::f32([]), out, origin);
        let ty = self.g.ty(v).clone();
        let op = Op::Binary { op: BinaryOp::Mul };
        let scaled = push(self.g, op, vec![v, by], ty, out, origin);
        let op = self.scatter("tokens go on in parts".into());
        let ty = self.swapped(v, self.tok, self.part);
        let part = push(self.g, op, vec![scaled], ty, out, origin);
        self.parts.insert(v, part);
        part
    }

    fn swapped(&self, v: ValueId, from: DimId, to: DimId) -> Type {
        let mut ty = self.g.ty(v).clone();
        ty.dims.iter_mut().filter(|d| **d == from).for_each(|d| *d = to);
        ty
    }
}
