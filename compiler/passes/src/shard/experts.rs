//! Tokens on their way to the experts that a router chose for them, and back.
//!
//! On a mesh with a view for experts, each rank holds some of them (`ep`), or parts of their columns
//! (`etp`). A value over tokens and experts is *at home* when a rank has it for its own tokens and all
//! experts, and *at work* when it has its own experts for the tokens that were sent to it. What repeats tokens over the experts, or
//! reads what the router chose, ends at home; it is sent by an all-to-all over `ep`, then gathered
//! over `etp`. A sum over the experts takes the same way back. Rows are counted as if the choice were balanced.

use nrl_ir::dim::Shard;
use nrl_ir::{DimId, Extent, Node, Op, ReduceOp, Routed, Type, ValueId};

use super::local::{Ctx, Owed};
use super::{Rules, push};
use crate::report::Origin;

/// One dim of experts in its three places.
#[derive(Clone, Debug)]
pub(super) struct Experts {
    /// All experts, of the rank's own tokens.
    pub home: DimId,
    /// The rank's experts, of the tokens sent to it.
    pub there: DimId,
    /// The same with the tokens of all ranks that share the experts' columns.
    pub work: DimId,
    pub ep: Vec<String>,
    pub etp: Vec<String>,
    /// Axes whose ranks hold the same tokens, and send a share of them each.
    pub over: Vec<String>,
}

impl Ctx<'_> {
    /// Gives the experts of a view their places, once dims have their local sizes.
    pub(super) fn cut_experts(&mut self, rules: &Rules) {
        let mesh = self.mesh;
        let Some(view) = mesh.expert_view() else { return };
        let routed = |(_, d): &(DimId, &nrl_ir::Dim)| d.routed.is_some();
        let Some(work) = self.g.dims.iter().find(routed).map(|(d, _)| d) else { return };
        let live = |a: &str| -> Vec<String> {
            Some(a.to_string()).filter(|a| mesh.size(a) > 1).into_iter().collect()
        };
        let (ep, etp) = (live("ep"), live("etp"));
        let apart = rules.apart(mesh);
        let tokens_cut = rules
            .dims
            .iter()
            .filter(|r| self.g.dims.find(&r.dim).is_some_and(|d| self.g.dims.is_ragged(d)));
        let cut: Vec<String> = tokens_cut.flat_map(|r| r.axes.clone()).collect();
        let same = |a: &&String| mesh.size(a) > 1 && !apart.contains(a) && !cut.contains(a);
        let over: Vec<String> = view.folds.iter().filter(same).cloned().collect();
        let Some(Routed { chosen, .. }) = self.g.dims.get(work).routed else { return };
        let shares = mesh.size_over(&over);
        let at = |copies: usize| Some(Routed { chosen, copies, over: shares });
        let global =
            self.g.dims.get(work).shard.as_ref().map_or(self.g.dims.bound(work), |s| s.global);
        let mut plain = self.g.dims.get(work).clone();
        (plain.extent, plain.shard, plain.routed) = (Extent::Static(global), None, at(1));
        let (one, two) = (ep.is_empty(), etp.is_empty());
        let home = if one && two { work } else { self.g.dims.add(plain.clone()) };
        let there = if two {
            work
        } else if one {
            home
        } else {
            let part = Extent::Static(global.div_ceil(mesh.size_over(&ep)));
            let shard = Some(Shard { axes: ep.clone(), global });
            self.g.dims.add(nrl_ir::Dim { extent: part, shard, ..plain })
        };
        self.g.dims.get_mut(work).routed = at(mesh.size_over(&etp));
        self.experts = Some(Experts { home, there, work, ep, etp, over });
    }

    /// Handles a node that sends tokens to experts, or sums over them.
    pub(super) fn routed(&mut self, node: &Node, out: &mut Vec<Node>) -> bool {
        let Some(x) = self.experts.clone() else { return false };
        let has = |me: &Self, v: ValueId| me.g.dims_of(v).contains(&x.work);
        let (from, to) = match (node.args.first(), node.outs.first()) {
            (Some(a), Some(o)) => (has(self, *a), has(self, *o)),
            _ => return false,
        };
        let ragged =
            |me: &Self, v: ValueId| me.g.dims_of(v).iter().any(|d| me.g.dims.is_ragged(*d));
        match &node.op {
            Op::Broadcast { .. } | Op::Fit { .. } if !from && to && ragged(self, node.outs[0]) => {
                self.send(node, &x, out);
                true
            }
            Op::Reduce { op: ReduceOp::Sum, over }
                if from && over.contains(&x.work) && ragged(self, node.args[0]) =>
            {
                self.bring(node, &x, out);
                true
            }
            Op::Fit { .. } if from && !to && ragged(self, node.args[0]) => {
                self.bring(node, &x, out);
                true
            }
            _ => false,
        }
    }

    /// The node at home, then its result to the experts.
    fn send(&mut self, node: &Node, x: &Experts, out: &mut Vec<Node>) {
        let origin = node.origin;
        let target = node.outs[0];
        let arg = self.pay(node.args[0], out);
        let at = |me: &Self, d: DimId| swapped(me.g.ty(target), x.work, d);
        let mut op = node.op.clone();
        match &mut op {
            Op::Broadcast { dims } => {
                dims.iter_mut().filter(|d| **d == x.work).for_each(|d| *d = x.home)
            }
            Op::Fit { to, .. } => *to = x.home,
            _ => {}
        }
        let ty = at(self, x.home);
        let mut v = push(&mut self.g, op, vec![arg], ty, out, origin);
        if !x.ep.is_empty() {
            let ty = at(self, x.there);
            v = self.exchange(
                v,
                (x.home, x.there),
                ty,
                x,
                "tokens go to their experts",
                out,
                origin,
            );
        }
        if !x.etp.is_empty() {
            let reason = "each rank has some columns of the experts and needs all of their tokens"
                .to_string();
            self.report.count(format!("all_gather over {}: {reason}", x.etp.join(", ")));
            let op = Op::AllGather { dim: x.there, full: x.work, axes: x.etp.clone(), reason };
            let ty = at(self, x.work);
            v = push(&mut self.g, op, vec![v], ty, out, origin);
        }
        self.became(target, v);
    }

    /// The operand back home, then the node there.
    fn bring(&mut self, node: &Node, x: &Experts, out: &mut Vec<Node>) {
        let origin = node.origin;
        let source = node.args[0];
        let whole = self.g.ty(source).clone();
        let owed = self.owed.remove(&source);
        let mut v = match owed {
            Some(_) => source,
            None => self.pay(source, out),
        };
        if !x.etp.is_empty() {
            if owed.is_none() {
                v = self.scale(v, 1.0 / self.mesh.size_over(&x.etp) as f64, out, origin);
            }
            let reason = "each rank has some columns of the experts".to_string();
            self.report.count(format!("reduce_scatter over {}: {reason}", x.etp.join(", ")));
            let op = Op::ReduceScatter { dim: x.work, part: x.there, axes: x.etp.clone(), reason };
            v = push(&mut self.g, op, vec![v], swapped(&whole, x.work, x.there), out, origin);
        }
        if !x.ep.is_empty() {
            let ty = swapped(&whole, x.work, x.home);
            v = self.exchange(
                v,
                (x.there, x.home),
                ty,
                x,
                "results come back from the experts",
                out,
                origin,
            );
        }
        let mut op = node.op.clone();
        match &mut op {
            Op::Reduce { over, .. } => {
                over.iter_mut().filter(|d| **d == x.work).for_each(|d| *d = x.home)
            }
            Op::Fit { from, .. } => *from = x.home,
            _ => {}
        }
        let last = Node { op, args: vec![v], outs: node.outs.clone(), origin };
        out.push(last);
        if !x.over.is_empty() {
            let reason =
                format!("{} have the same tokens and send a share each", x.over.join(", "));
            let owed = Owed { op: ReduceOp::Sum, axes: x.over.clone(), reason };
            self.owed.insert(node.outs[0], owed);
        }
    }

    /// Later readers of `v` read `now`.
    fn became(&mut self, v: ValueId, now: ValueId) {
        if let Some(class) = self.class.get(&v).copied() {
            self.class.insert(now, class);
        }
        self.paid.insert(v, now);
    }

    #[allow(clippy::too_many_arguments)]
    fn exchange(
        &mut self,
        v: ValueId,
        (dim, to): (DimId, DimId),
        ty: Type,
        x: &Experts,
        reason: &str,
        out: &mut Vec<Node>,
        origin: Origin,
    ) -> ValueId {
        self.report.count(format!("all_to_all over {}: {reason}", x.ep.join(", ")));
        let op = Op::AllToAll { dim, to, axes: x.ep.clone(), reason: reason.into() };
        push(&mut self.g, op, vec![v], ty, out, origin)
    }
}

fn swapped(ty: &Type, from: DimId, to: DimId) -> Type {
    let mut ty = ty.clone();
    ty.dims.iter_mut().filter(|d| **d == from).for_each(|d| *d = to);
    ty
}
