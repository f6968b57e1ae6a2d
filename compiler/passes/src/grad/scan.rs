//! The gradient of a loop: saved stacks in the forward scan, and a scan the other way.
//!
//! Carries of the reverse scan are the cotangents of the carries, then one sum per outside value
//! that the body reads and that needs a gradient. Its stacks are the saved values, the stacks that
//! the forward scan read, and the cotangents of the stacks it made.

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::op::Scan;
use nrl_ir::{BinaryOp, Block, Node, Op, Type, ValueId};

use super::{Cotangents, Ctx, Recompute};
use crate::emit::Emit;
use crate::rename::{self, Map};
use crate::report::Problem;

/// A loop's backward body before its forward values are supplied.
struct Reverse {
    /// Carries and their values before the first iteration.
    params: Vec<ValueId>,
    starts: Vec<ValueId>,
    /// Slices of cotangent stacks and the stacks.
    slices: Vec<(ValueId, ValueId)>,
    nodes: Vec<Node>,
    results: Vec<ValueId>,
    /// The value whose cotangent each result is.
    of: Vec<ValueId>,
}

/// Which forward values a backward body reads, and how it gets them.
#[derive(Default)]
struct Supply {
    saved: BTreeSet<ValueId>,
    /// Slices of stacks the forward scan reads, as body parameters.
    slices: BTreeSet<ValueId>,
    /// Positions of nodes to run again.
    redo: BTreeSet<usize>,
}

impl Ctx<'_> {
    pub(super) fn scan(
        &mut self,
        node: &mut Node,
        cots: &[Option<ValueId>],
        e: &mut Emit,
    ) -> Result<Vec<(ValueId, ValueId)>, Problem> {
        let args = node.args.clone();
        let Op::Scan { scan } = &mut node.op else {
            return Err(Problem::internal("not a scan", node.origin));
        };
        let mut reverse = self.reverse_body(scan, &args, cots, e)?;
        let supply = self.supply(&scan.body, scan.carries, &reverse);
        let mut map = Map::new();
        let mut stacks: Vec<(ValueId, ValueId)> = vec![];
        for v in &supply.saved {
            let ty = self.g.ty(*v).clone();
            let stack = self.g.fresh(Type { stack: Some(scan.count), ..ty.clone() });
            scan.body.results.push(*v);
            node.outs.push(stack);
            let slice = self.g.fresh(ty);
            map.insert(*v, slice);
            stacks.push((slice, stack));
        }
        for v in &supply.slices {
            let at = scan.body.params.iter().position(|p| p == v).unwrap_or(0);
            let ty = self.g.ty(*v).clone();
            let slice = self.g.fresh(ty);
            map.insert(*v, slice);
            stacks.push((slice, args[at]));
        }
        stacks.extend(&reverse.slices);
        let mut nodes: Vec<Node> = vec![];
        for i in &supply.redo {
            nodes.push(rename::copy_node(&mut self.g, &scan.body.nodes[*i], &mut map));
        }
        rename::rename_nodes(&mut reverse.nodes, &map);
        nodes.extend(reverse.nodes);
        let carries = reverse.params.len();
        let body = Block {
            params: reverse.params.into_iter().chain(stacks.iter().map(|s| s.0)).collect(),
            nodes,
            results: reverse.results.iter().map(|v| rename::renamed(&map, *v)).collect(),
        };
        let back = Scan {
            group: scan.group.clone(),
            first: scan.first,
            count: scan.count,
            reverse: !scan.reverse,
            carries,
            body,
        };
        let operands: Vec<ValueId> =
            reverse.starts.into_iter().chain(stacks.iter().map(|s| s.1)).collect();
        let outs = e.all(&mut self.g, Op::Scan { scan: Box::new(back) }, &operands)?;
        Ok(reverse.of.into_iter().zip(outs).collect())
    }

    /// The backward nodes of one iteration, still in terms of the forward body's values.
    fn reverse_body(
        &mut self,
        scan: &mut Scan,
        args: &[ValueId],
        cots: &[Option<ValueId>],
        e: &mut Emit,
    ) -> Result<Reverse, Problem> {
        let free: Vec<ValueId> =
            rename::free_values(scan).into_iter().filter(|v| self.needs.contains(v)).collect();
        let mut r = Reverse {
            params: vec![],
            starts: vec![],
            slices: vec![],
            nodes: vec![],
            results: vec![],
            of: vec![],
        };
        let mut inner = Emit::default();
        inner.origin = e.origin;
        let mut inner_cots = Cotangents::new();
        let (carries, slices) = scan.body.params.split_at(scan.carries);
        for (j, p) in carries.iter().enumerate() {
            if self.needs.contains(p) {
                let start = self.or_zero(cots[j], *p, e)?;
                let cot = self.carry(&mut r, *p, start);
                self.add(&mut inner_cots, scan.body.results[j], cot, &mut inner)?;
                r.of.push(args[j]);
            }
        }
        let mut sums = vec![];
        for v in &free {
            let start = self.or_zero(None, *v, e)?;
            sums.push(self.carry(&mut r, *v, start));
            r.of.push(*v);
        }
        for (j, result) in scan.body.results.iter().enumerate().skip(scan.carries) {
            if let (Some(stack), true) = (cots[j], self.needs.contains(result)) {
                let ty = self.g.ty(*result).clone();
                let slice = self.g.fresh(ty);
                r.slices.push((slice, stack));
                self.add(&mut inner_cots, *result, slice, &mut inner)?;
            }
        }
        let (carries, slices) = (carries.to_vec(), slices.to_vec());
        self.backward(&mut scan.body.nodes, &mut inner_cots, &mut inner)?;
        for p in &needed(&self.needs, &carries) {
            r.results.push(self.or_zero(inner_cots.get(p).copied(), *p, &mut inner)?);
        }
        for (v, sum) in free.iter().zip(sums) {
            r.results.push(match inner_cots.get(v) {
                Some(cot) => inner.binary(&mut self.g, BinaryOp::Add, sum, *cot)?,
                None => sum,
            });
        }
        for (p, stack) in slices.iter().zip(&args[scan.carries..]) {
            if self.needs.contains(p) {
                r.results.push(self.or_zero(inner_cots.get(p).copied(), *p, &mut inner)?);
                r.of.push(*stack);
            }
        }
        r.nodes = inner.nodes;
        Ok(r)
    }

    /// A carry of the reverse scan for the cotangent of `like`.
    fn carry(&mut self, r: &mut Reverse, like: ValueId, start: ValueId) -> ValueId {
        let ty = Type::f32(self.g.dims_of(like).to_vec());
        let cot = self.g.fresh(ty);
        r.params.push(cot);
        r.starts.push(start);
        cot
    }

    fn or_zero(
        &mut self,
        cot: Option<ValueId>,
        like: ValueId,
        e: &mut Emit,
    ) -> Result<ValueId, Problem> {
        let dims = self.g.dims_of(like).to_vec();
        cot.map_or_else(|| e.splat(&mut self.g, 0.0, &dims), Ok)
    }

    /// Decides for every forward value that `reverse` reads: saved, read again, or computed again.
    fn supply(&self, body: &Block, carries: usize, reverse: &Reverse) -> Supply {
        let mut made: BTreeMap<ValueId, usize> = BTreeMap::new();
        for (i, node) in body.nodes.iter().enumerate() {
            made.extend(node.outs.iter().map(|v| (*v, i)));
        }
        let cheap = match self.recompute {
            Recompute::None => self.cheap(body, carries, reverse),
            _ => BTreeSet::new(),
        };
        let mut supply = Supply::default();
        let mut todo: Vec<ValueId> = reverse.nodes.iter().flat_map(rename::reads).collect();
        todo.extend(&reverse.results);
        let mut seen = BTreeSet::new();
        let carries: BTreeSet<ValueId> = body.params.iter().take(carries).copied().collect();
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            if carries.contains(&v) {
                supply.saved.insert(v);
            } else if body.params.contains(&v) {
                supply.slices.insert(v);
            } else if let Some(i) = made.get(&v) {
                let node = &body.nodes[*i];
                if self.keeps(node, v) && !cheap.contains(&v) {
                    supply.saved.insert(v);
                } else {
                    supply.redo.insert(*i);
                    todo.extend(rename::reads(node));
                }
            }
        }
        supply
    }

    /// Values that a chain of pointwise ops makes of what is saved anyway, and that only pointwise ops
    /// of the backward pass read: a normalized input, the inside of an activation. Computing them again costs
    /// less than keeping them, and no collective hides in between.
    fn cheap(&self, body: &Block, carries: usize, reverse: &Reverse) -> BTreeSet<ValueId> {
        let mut read: BTreeSet<ValueId> = reverse.results.iter().copied().collect();
        let mut whole: BTreeSet<ValueId> = read.clone();
        for node in &reverse.nodes {
            read.extend(rename::reads(node));
            if !node.op.is_pointwise() {
                whole.extend(rename::reads(node));
            }
        }
        let mut at_hand: BTreeSet<ValueId> = body.params[carries..].iter().copied().collect();
        at_hand.extend(body.params[..carries].iter().filter(|v| read.contains(v)));
        let mut cheap = BTreeSet::new();
        let mut inside: BTreeSet<ValueId> =
            body.nodes.iter().flat_map(|n| n.outs.clone()).collect();
        inside.extend(&body.params);
        for node in &body.nodes {
            let leaf = matches!(node.op, Op::Input { .. } | Op::Use { .. } | Op::Const { .. });
            let derived = node.op.is_pointwise()
                && rename::reads(node).iter().all(|v| at_hand.contains(v) || !inside.contains(v));
            for v in &node.outs {
                if leaf || derived || read.contains(v) {
                    at_hand.insert(*v);
                }
                if derived && !whole.contains(v) {
                    cheap.insert(*v);
                }
            }
        }
        cheap
    }

    /// Is the result `v` of `node` stacked?
    fn keeps(&self, node: &Node, v: ValueId) -> bool {
        let leaf = matches!(node.op, Op::Input { .. } | Op::Use { .. } | Op::Const { .. });
        if leaf || self.g.ty(v).stack.is_some() {
            return false;
        }
        match self.recompute {
            Recompute::None => true,
            Recompute::Full => false,
            Recompute::Selective(ops) => ops.iter().any(|o| o == node.op.name()),
        }
    }
}

fn needed(needs: &BTreeSet<ValueId>, of: &[ValueId]) -> Vec<ValueId> {
    of.iter().filter(|v| needs.contains(v)).copied().collect()
}
