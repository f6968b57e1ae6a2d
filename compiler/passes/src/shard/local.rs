//! Rewrites each node to work on parts, and pays what it owes.

use std::collections::BTreeMap;

use nrl_ir::dim::Shard;
use nrl_ir::op::Scan;
use nrl_ir::plan::ParamLayout;
use nrl_ir::{
    BinaryOp, Block, Dim, DimId, Extent, Graph, Mesh, Node, Op, ParamId, ReduceOp, Type, ValueId,
};

use super::batch::{Class, Classes, wants_whole};
use super::experts::Experts;
use super::layout::Layout;
use super::{Rules, push};
use crate::rename::{self, Map, renamed};
use crate::report::{Origin, Problem, Report};

/// A reduction that a value is still owed.
#[derive(Clone)]
pub(super) struct Owed {
    pub op: ReduceOp,
    pub axes: Vec<String>,
    pub reason: String,
}

pub(super) struct Ctx<'a> {
    pub(super) g: Graph,
    pub(super) mesh: &'a Mesh,
    pub(super) layout: Layout,
    pub(super) class: Classes,
    uses: BTreeMap<ValueId, usize>,
    /// Per parameter, axes over which it is stored flat, and over which its gradient is.
    flat: Vec<Vec<String>>,
    grads: Vec<Vec<String>>,
    /// Axes of more than one rank that split the sequences, and those that split their tokens.
    batch: Vec<String>,
    ring: Vec<String>,
    /// The dims of experts that a view splits.
    pub(super) experts: Option<Experts>,
    pub(super) owed: BTreeMap<ValueId, Owed>,
    /// Values after what they were owed over the table's axes.
    pub(super) paid: Map,
    /// Values after the sum over the batch axes too.
    whole: Map,
    /// Names of parameters read by `use` nodes.
    names: BTreeMap<ValueId, String>,
    /// Dims with another split than values have: by dim and axes.
    variants: BTreeMap<(DimId, Vec<String>), DimId>,
    pub(super) report: Report,
}

impl<'a> Ctx<'a> {
    pub fn new(
        g: Graph,
        mesh: &'a Mesh,
        layout: Layout,
        class: Classes,
        uses: BTreeMap<ValueId, usize>,
        layouts: &[ParamLayout],
        rules: &Rules,
    ) -> Ctx<'a> {
        let ring = rules.ring.iter().filter(|a| mesh.size(a) > 1).cloned().collect();
        Ctx {
            g,
            mesh,
            layout,
            class,
            uses,
            flat: layouts.iter().map(|l| l.flat.clone()).collect(),
            grads: layouts.iter().map(|l| l.grads.clone()).collect(),
            batch: rules.apart(mesh),
            ring,
            experts: None,
            owed: BTreeMap::new(),
            paid: Map::new(),
            whole: Map::new(),
            names: BTreeMap::new(),
            variants: BTreeMap::new(),
            report: Report::default(),
        }
    }

    pub fn finish(self) -> (Graph, Report) {
        (self.g, self.report)
    }

    /// Gives dims their local sizes, and parameters with a split of their own dims of their own.
    pub fn cut_dims(&mut self, rules: &Rules) {
        let before = self.g.dims.clone();
        for (d, axes) in &self.layout.dims {
            let size = before.bound(*d);
            let dim = self.g.dims.get_mut(*d);
            dim.extent = Extent::Static(size.div_ceil(self.mesh.size_over(axes)));
            dim.shard = Some(Shard { axes: axes.clone(), global: size });
        }
        self.cut_experts(rules);
        for p in 0..self.g.params.len() {
            for (i, axes) in self.layout.params[p].clone().iter().enumerate() {
                let d = self.g.params[p].dims[i];
                let own = self.variant(d, axes);
                self.g.params[p].dims[i] = own;
                for group in &mut self.g.params[p].checkpoint_dims {
                    group.iter_mut().filter(|x| **x == d).for_each(|x| *x = own);
                }
            }
        }
    }

    /// The unsplit dim that `d`, maybe a variant, is a split of.
    fn whole_dim(&mut self, d: DimId) -> DimId {
        let base = self.variants.iter().find(|(_, v)| **v == d).map_or(d, |((base, _), _)| *base);
        self.variant(base, &[])
    }

    /// The dim that is `d` split over `axes`.
    pub(super) fn variant(&mut self, d: DimId, axes: &[String]) -> DimId {
        if self.layout.dims.get(&d).map_or(&[][..], Vec::as_slice) == axes
            || self.g.dims.is_ragged(d)
        {
            return d;
        }
        if let Some(v) = self.variants.get(&(d, axes.to_vec())) {
            return *v;
        }
        let dim = self.g.dims.get(d).clone();
        let global = dim.shard.as_ref().map_or(self.g.dims.bound(d), |s| s.global);
        let shard = (!axes.is_empty()).then(|| Shard { axes: axes.to_vec(), global });
        let extent = Extent::Static(global.div_ceil(self.mesh.size_over(axes)));
        let v = self.g.dims.add(Dim { extent, shard, ..dim });
        self.variants.insert((d, axes.to_vec()), v);
        v
    }

    pub fn graph_body(&mut self, body: Block) -> Result<Block, Problem> {
        let mut out = vec![];
        self.nodes(body.nodes, &mut out)?;
        let mut results = vec![];
        for (v, name) in body.results.iter().zip(self.g.outputs.clone()) {
            results.push(self.output(*v, &name, &mut out));
        }
        Ok(Block { params: body.params, nodes: out, results })
    }

    /// An output is whole: no part of a dim, no share of a sum.
    fn output(&mut self, v: ValueId, name: &str, out: &mut Vec<Node>) -> ValueId {
        let reason =
            format!("output `{name}` sums over sequences, which {} split", self.batch.join(", "));
        let mut v = self.make_whole(v, &reason, out, None);
        for d in self.g.dims_of(v).to_vec() {
            if let Some(shard) = self.g.dims.get(d).shard.clone() {
                let full = self.variant(d, &[]);
                let reason = format!("output `{name}` needs all of `{}`", self.g.dims.name(d));
                v = self.gather(v, d, full, &shard.axes, reason, out, None);
            }
        }
        v
    }

    fn nodes(&mut self, nodes: Vec<Node>, out: &mut Vec<Node>) -> Result<(), Problem> {
        nodes.into_iter().try_for_each(|node| self.node(node, out))
    }

    fn node(&mut self, mut node: Node, out: &mut Vec<Node>) -> Result<(), Problem> {
        if let Op::Scan { .. } = &node.op {
            return self.scan(node, out);
        }
        if self.routed(&node, out) {
            return Ok(());
        }
        let whole = wants_whole(&self.g, &self.class, &node);
        let shares =
            |v: &ValueId| matches!(self.class.get(v), Some(Class::Partial | Class::PartialMax));
        // What is a share over the batch axes as well cannot wait: the other operand may be none.
        if !(whole && node.args.iter().any(shares)) && self.defer(&node, out) {
            return Ok(());
        }
        let owes = self.owes(&node);
        for i in 0..node.args.len() {
            let v = node.args[i];
            node.args[i] = if whole {
                let reason = format!(
                    "`{}` needs a sum over all sequences, which {} split",
                    node.op.name(),
                    self.batch.join(", ")
                );
                self.make_whole(v, &reason, out, node.origin)
            } else {
                self.pay(v, out)
            };
        }
        self.set_axes(&mut node.op);
        match &node.op {
            Op::Use { param } => self.use_param(*param, &node, out),
            Op::Accumulate { param } => {
                let param = *param;
                self.accumulate(param, node, out);
            }
            _ => {
                for (i, owed) in owes {
                    self.owed.insert(node.outs[i], owed);
                }
                out.push(node);
            }
        }
        Ok(())
    }

    /// A sum of two values that are owed the same sum is owed it once.
    fn defer(&mut self, node: &Node, out: &mut Vec<Node>) -> bool {
        let Op::Binary { op: BinaryOp::Add } = node.op else { return false };
        let [a, b] = node.args[..] else { return false };
        let (Some(x), Some(y)) = (self.owed.get(&a), self.owed.get(&b)) else { return false };
        let once = |v| self.uses.get(&v) == Some(&1);
        if x.op != ReduceOp::Sum
            || y.op != ReduceOp::Sum
            || x.axes != y.axes
            || !once(a)
            || !once(b)
        {
            return false;
        }
        let mut both = x.clone();
        if !both.reason.contains(&y.reason) {
            both.reason = format!("{}; {}", x.reason, y.reason);
        }
        self.owed.insert(node.outs[0], both);
        out.push(node.clone());
        true
    }

    /// What each result of `node` is owed once it has run on parts.
    fn owes(&self, node: &Node) -> Vec<(usize, Owed)> {
        let split = |d: &DimId| self.layout.dims.get(d);
        let over = |dims: &[DimId]| -> Vec<(DimId, Vec<String>)> {
            dims.iter().filter_map(|d| Some((*d, split(d)?.clone()))).collect()
        };
        let which = |cut: &[(DimId, Vec<String>)]| {
            let dims: Vec<String> =
                cut.iter().map(|(d, _)| format!("`{}`", self.g.dims.name(*d))).collect();
            let axes: Vec<String> = cut.iter().flat_map(|(_, a)| a.clone()).collect();
            let verb = if axes.len() == 1 { "splits" } else { "split" };
            (format!("{}, which {} {verb}", dims.join(" and "), axes.join(", ")), axes)
        };
        let by = |default: &str| {
            let name = node.args.iter().find_map(|a| self.names.get(a));
            name.map_or(default.to_string(), |n| format!("`{n}`"))
        };
        let owed = |op, cut: &[(DimId, Vec<String>)], what: String| {
            let (which, axes) = which(cut);
            Owed { op, axes, reason: format!("{what} over {which}") }
        };
        match &node.op {
            Op::Contract { over: dims } if !over(dims).is_empty() => {
                vec![(0, owed(ReduceOp::Sum, &over(dims), format!("{} sums", by("a product"))))]
            }
            Op::Reduce { op, over: dims }
                if !self.ring.is_empty() && self.per_sequence(dims, node) =>
            {
                let axes = self.ring.clone();
                let reason = format!("a sum over tokens, which {} split", axes.join(", "));
                vec![(0, Owed { op: *op, axes, reason })]
            }
            Op::Reduce { op, over: dims } if !over(dims).is_empty() => {
                let what = if *op == ReduceOp::Sum { "a sum" } else { "a maximum" };
                vec![(0, owed(*op, &over(dims), what.into()))]
            }
            Op::Index { dim } if split(dim).is_some() => {
                vec![(
                    0,
                    owed(ReduceOp::Sum, &over(&[*dim]), format!("{} gives rows", by("an index"))),
                )]
            }
            Op::LogProbHeadGrad { vocab, .. } if split(vocab).is_some() => {
                vec![(
                    0,
                    owed(
                        ReduceOp::Sum,
                        &over(&[*vocab]),
                        format!("the gradient through {} sums", by("the head")),
                    ),
                )]
            }
            _ => vec![],
        }
    }

    /// Does a sum over tokens give a number per sequence?
    fn per_sequence(&self, over: &[DimId], node: &Node) -> bool {
        let ragged = |d: &DimId| self.g.dims.is_ragged(*d);
        over.iter().any(ragged) && self.g.dims_of(node.outs[0]).iter().any(ragged)
    }

    fn set_axes(&self, op: &mut Op) {
        if let Op::LogProb { vocab, axes, .. }
        | Op::LogProbGrad { vocab, axes, .. }
        | Op::LogProbHead { vocab, axes, .. }
        | Op::LogProbHeadGrad { vocab, axes, .. } = op
        {
            *axes = self.layout.dims.get(vocab).cloned().unwrap_or_default();
        }
    }

    fn scan(&mut self, mut node: Node, out: &mut Vec<Node>) -> Result<(), Problem> {
        let origin = node.origin;
        let Op::Scan { scan } = &mut node.op else { return Ok(()) };
        for v in rename::free_values(scan) {
            self.pay(v, out);
        }
        let reason =
            format!("a loop needs a sum over all sequences, which {} split", self.batch.join(", "));
        for (i, a) in node.args.iter_mut().enumerate() {
            let carried = self.class.get(&scan.body.params[i]) == Some(&Class::Same);
            *a =
                if carried { self.make_whole(*a, &reason, out, origin) } else { self.pay(*a, out) };
        }
        let body = std::mem::take(&mut scan.body);
        let mut nodes = vec![];
        // Values from outside that the body needs whole are made so once, inside it.
        let outer = self.whole.clone();
        self.nodes(body.nodes, &mut nodes)?;
        let mut results = vec![];
        for (i, v) in body.results.iter().enumerate() {
            let carried = i < scan.carries && self.class.get(&body.params[i]) == Some(&Class::Same);
            results.push(if carried {
                self.make_whole(*v, &reason, &mut nodes, origin)
            } else {
                self.pay(*v, &mut nodes)
            });
        }
        self.whole = outer;
        scan.body = Block { params: body.params, nodes, results };
        **scan = Scan { body: std::mem::take(&mut scan.body), ..(**scan).clone() };
        out.push(node);
        Ok(())
    }

    /// `v` after the reductions that the table's axes owe it.
    pub(super) fn pay(&mut self, v: ValueId, out: &mut Vec<Node>) -> ValueId {
        let Some(owed) = self.owed.remove(&v) else { return renamed(&self.paid, v) };
        let origin = out.iter().rev().find(|n| n.outs.contains(&v)).and_then(|n| n.origin);
        let sum = self.all_reduce(v, owed, out, origin);
        self.paid.insert(v, sum);
        if let Some(class) = self.class.get(&v).copied() {
            self.class.insert(sum, class);
        }
        sum
    }

    /// `v` paid, and combined over the batch axes if it is a share.
    fn make_whole(
        &mut self,
        v: ValueId,
        reason: &str,
        out: &mut Vec<Node>,
        origin: Origin,
    ) -> ValueId {
        let paid = self.pay(v, out);
        let op = match self.class.get(&v) {
            Some(Class::Partial) => ReduceOp::Sum,
            Some(Class::PartialMax) => ReduceOp::Max,
            _ => return paid,
        };
        if self.batch.is_empty() {
            return paid;
        }
        if let Some(whole) = self.whole.get(&v) {
            return *whole;
        }
        let owed = Owed { op, axes: self.batch.clone(), reason: reason.into() };
        let whole = self.all_reduce(paid, owed, out, origin);
        self.whole.insert(v, whole);
        self.class.insert(whole, Class::Same);
        whole
    }

    fn all_reduce(
        &mut self,
        v: ValueId,
        owed: Owed,
        out: &mut Vec<Node>,
        origin: Origin,
    ) -> ValueId {
        self.report.count(format!("all_reduce over {}: {}", owed.axes.join(", "), owed.reason));
        let ty = self.g.ty(v).clone();
        push(
            &mut self.g,
            Op::AllReduce { op: owed.op, axes: owed.axes, reason: owed.reason },
            vec![v],
            ty,
            out,
            origin,
        )
    }

    fn use_param(&mut self, param: ParamId, node: &Node, out: &mut Vec<Node>) {
        let decl = self.g.param(param).clone();
        let flat = self.flat[param.0 as usize].clone();
        let target = self.g.dims_of(node.outs[0]).to_vec();
        self.names.insert(node.outs[0], decl.name.clone());
        let op = if flat.is_empty() {
            Op::Use { param }
        } else {
            let reason =
                format!("`{}` is stored in flat parts over {}", decl.name, flat.join(", "));
            self.report.count(format!("gather_param over {}: {reason}", flat.join(", ")));
            Op::GatherParam { param, axes: flat, reason }
        };
        if decl.dims == target {
            out.push(Node { op, ..node.clone() });
            return;
        }
        let v = push(&mut self.g, op, vec![], Type::f32(decl.dims.clone()), out, node.origin);
        let moved = self.relayout(v, &target, &decl.name, out, node.origin);
        self.paid.insert(node.outs[0], moved);
    }

    fn accumulate(&mut self, param: ParamId, mut node: Node, out: &mut Vec<Node>) {
        let decl = self.g.param(param).clone();
        let mut v = node.args[0];
        let same = matches!(self.class.get(&v), Some(Class::Same));
        if same && !self.batch.is_empty() {
            // Every rank has all of it, and a sum over the batch axes is to come.
            v = self.scale(v, 1.0 / self.mesh.size_over(&self.batch) as f64, out, node.origin);
        }
        let order = self.g.dims_of(v).to_vec();
        let global = |g: &Graph, d: DimId| g.dims.name(d).to_string();
        let target: Vec<DimId> = order
            .iter()
            .map(|d| {
                let same = decl.dims.iter().find(|p| *p == d);
                let named =
                    || decl.dims.iter().find(|p| global(&self.g, **p) == global(&self.g, *d));
                *same.or_else(named).unwrap_or(d)
            })
            .collect();
        v = self.relayout(v, &target, &decl.name, out, node.origin);
        node.args[0] = v;
        let flat = self.grads[param.0 as usize].clone();
        if !flat.is_empty() {
            let reason =
                format!("`{}` is stored in flat parts over {}", decl.name, flat.join(", "));
            self.report.count(format!("scatter_grad over {}: {reason}", flat.join(", ")));
            node.op = Op::ScatterGrad { param, axes: flat, reason };
        }
        out.push(node);
    }

    pub(super) fn scale(
        &mut self,
        v: ValueId,
        by: f64,
        out: &mut Vec<Node>,
        origin: Origin,
    ) -> ValueId {
        let c = push(&mut self.g, Op::Const { value: by }, vec![], Type::f32([]), out, origin);
        let ty = self.g.ty(v).clone();
        push(&mut self.g, Op::Binary { op: BinaryOp::Mul }, vec![v, c], ty, out, origin)
    }

    /// `v` with each dim replaced by the one in `target`: another split of the same dim. Gathers come
    /// first, so that no axis ever splits two dims.
    fn relayout(
        &mut self,
        mut v: ValueId,
        target: &[DimId],
        name: &str,
        out: &mut Vec<Node>,
        origin: Origin,
    ) -> ValueId {
        let source = self.g.dims_of(v).to_vec();
        let moved: Vec<(usize, DimId, DimId)> = source
            .iter()
            .zip(target)
            .enumerate()
            .filter(|(_, (a, b))| a != b)
            .map(|(i, (a, b))| (i, *a, *b))
            .collect();
        let reason =
            |g: &Graph, d: DimId| format!("`{name}` has its own split of `{}`", g.dims.name(d));
        for (_, from, to) in &moved {
            if let Some(shard) = self.g.dims.get(*from).shard.clone() {
                let full =
                    if self.g.dims.get(*to).shard.is_none() { *to } else { self.whole_dim(*from) };
                v = self.gather(v, *from, full, &shard.axes, reason(&self.g, *from), out, origin);
            }
        }
        for (i, from, to) in &moved {
            if let Some(shard) = self.g.dims.get(*to).shard.clone() {
                // All ranks hold the same numbers: their share of the sum is a slice.
                v = self.scale(v, 1.0 / self.mesh.size_over(&shard.axes) as f64, out, origin);
                let mut ty = self.g.ty(v).clone();
                let whole = std::mem::replace(&mut ty.dims[*i], *to);
                let reason = reason(&self.g, *from);
                self.report
                    .count(format!("reduce_scatter over {}: {reason}", shard.axes.join(", ")));
                let op = Op::ReduceScatter { dim: whole, part: *to, axes: shard.axes, reason };
                v = push(&mut self.g, op, vec![v], ty, out, origin);
            }
        }
        v
    }

    #[allow(clippy::too_many_arguments)]
    fn gather(
        &mut self,
        v: ValueId,
        dim: DimId,
        full: DimId,
        axes: &[String],
        reason: String,
        out: &mut Vec<Node>,
        origin: Origin,
    ) -> ValueId {
        let mut ty = self.g.ty(v).clone();
        ty.dims.iter_mut().filter(|d| **d == dim).for_each(|d| *d = full);
        self.report.count(format!("all_gather over {}: {reason}", axes.join(", ")));
        push(
            &mut self.g,
            Op::AllGather { dim, full, axes: axes.to_vec(), reason },
            vec![v],
            ty,
            out,
            origin,
        )
    }
}
