//! Groups of pointwise ops and reductions as kernels.
//!
//! Greedy, in one walk: a node joins the open groups that hold its operands if one iteration space
//! fits them all, and closes the others it reads from; a closed group becomes one [`Op::Fused`]
//! node. A group never contains a product, attention, an index, rope or a collective, and never a
//! value that only exists after its own reduction over rows. The instructions are those of the
//! nodes in their order, so numbers do not change. What no kernel can say stays a plain node.

mod build;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::op::Scan;
use nrl_ir::{Block, DType, DimId, Graph, Node, Op, ValueId};

use crate::rename;
use crate::report::{Problem, Report};
use space::{Fold, Lanes};

/// Limits of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseConfig {
    /// Most nodes in one group; 1 makes every node its own kernel.
    pub max_group: usize,
    /// Most operands and results of one kernel.
    pub max_edges: usize,
}

impl FuseConfig {
    /// Every node its own kernel.
    pub fn single() -> FuseConfig {
        FuseConfig { max_group: 1, ..FuseConfig::default() }
    }
}

impl Default for FuseConfig {
    fn default() -> FuseConfig {
        FuseConfig { max_group: 64, max_edges: 24 }
    }
}

/// Replaces groups of nodes of `graph` by kernels; the report counts groups by reason.
pub fn fuse(graph: &mut Graph, config: &FuseConfig) -> Result<Report, Problem> {
    let mut body = std::mem::take(&mut graph.body);
    let mut ctx =
        Ctx { g: graph, config: *config, report: Report::default(), known: Known::default() };
    ctx.walk(&mut body)?;
    let report = ctx.report;
    graph.body = body;
    let mut swept = Report::default();
    crate::simplify::sweep(graph, &mut swept);
    rename::compact(graph);
    Ok(report)
}

/// What is known about values defined so far, whatever block they are in.
#[derive(Default)]
struct Known {
    consts: BTreeMap<ValueId, f64>,
    /// Values that are another value, repeated.
    alias: BTreeMap<ValueId, (ValueId, Node)>,
    /// Those of them that a node defines all the same.
    made: BTreeSet<ValueId>,
}

struct Ctx<'a> {
    g: &'a mut Graph,
    config: FuseConfig,
    report: Report,
    known: Known,
}

/// Nodes that will be one kernel.
struct Group {
    space: Vec<DimId>,
    /// Numbers of trailing dims that may be the lanes.
    lanes: Lanes,
    members: Vec<Node>,
    /// Values from outside that members read.
    inputs: BTreeSet<ValueId>,
    /// Results of members with the number of readers not in the group.
    outs: BTreeMap<ValueId, usize>,
    /// Results that exist only after the kernel: reductions over rows.
    late: BTreeSet<ValueId>,
}

/// A block being fused.
struct Open<'a> {
    groups: Vec<Group>,
    /// The new nodes.
    done: Vec<Node>,
    uses: &'a BTreeMap<ValueId, usize>,
}

/// How a node would sit in a group: the space, the lane choices, and how it reads each operand.
struct Fit {
    space: Vec<DimId>,
    lanes: Lanes,
    /// The operand itself, or what it repeats.
    operands: Vec<ValueId>,
    fold: Option<Fold>,
}

impl Ctx<'_> {
    fn walk(&mut self, block: &mut Block) -> Result<(), Problem> {
        let uses = self.uses(block);
        let mut open = Open { groups: vec![], done: vec![], uses: &uses };
        for node in std::mem::take(&mut block.nodes) {
            self.place(node, &mut open)?;
        }
        for v in block.results.clone() {
            self.materialize(v, &mut open)?;
        }
        while !open.groups.is_empty() {
            self.close(0, &mut open)?;
        }
        block.nodes = open.done;
        Ok(())
    }

    /// How often each value is read. Who reads a repeated value reads what it repeats.
    fn uses(&self, block: &Block) -> BTreeMap<ValueId, usize> {
        let mut source: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let mut uses = BTreeMap::new();
        let mut read = |v: ValueId, source: &BTreeMap<ValueId, ValueId>| {
            for v in std::iter::successors(Some(v), |v| source.get(v).copied()) {
                *uses.entry(v).or_default() += 1;
            }
        };
        for node in &block.nodes {
            match self.repeats(node) {
                true => {
                    source.insert(node.outs[0], node.args[0]);
                }
                false => rename::reads(node).into_iter().for_each(|v| read(v, &source)),
            }
        }
        block.results.iter().for_each(|v| read(*v, &source));
        uses
    }

    /// Does the node give its operand again, maybe repeated?
    fn repeats(&self, node: &Node) -> bool {
        matches!(node.op, Op::Broadcast { .. } | Op::StopGrad | Op::Cast { to: DType::F32 })
            && self.is_float(node)
    }

    fn place(&mut self, mut node: Node, open: &mut Open) -> Result<(), Problem> {
        if let Op::Const { value } = &node.op {
            self.known.consts.insert(node.outs[0], *value);
            open.done.push(node);
            return Ok(());
        }
        if self.repeats(&node) {
            self.known.alias.insert(node.outs[0], (node.args[0], node));
            return Ok(());
        }
        let fusable = matches!(
            node.op,
            Op::Unary { .. }
                | Op::Binary { .. }
                | Op::Select
                | Op::Reduce { .. }
                | Op::Cast { to: DType::Bf16 }
        );
        if fusable && self.is_float(&node) && self.join(&node, open)? {
            return Ok(());
        }
        for v in rename::reads(&node) {
            self.materialize(v, open)?;
        }
        if let Op::Scan { scan } = &mut node.op {
            let mut body = std::mem::take(&mut scan.body);
            self.walk(&mut body)?;
            **scan = Scan { body, ..(**scan).clone() };
        }
        open.done.push(node);
        Ok(())
    }

    fn is_float(&self, node: &Node) -> bool {
        node.args
            .iter()
            .chain(&node.outs)
            .all(|v| self.g.ty(*v).is_float() && self.g.ty(*v).stack.is_none())
    }

    /// What `v` repeats in the end.
    fn root(&self, v: ValueId) -> ValueId {
        let mut v = v;
        while let Some((source, _)) = self.known.alias.get(&v) {
            v = *source;
        }
        v
    }

    /// Makes sure a node before the end of `open.done` defines `v`.
    fn materialize(&mut self, v: ValueId, open: &mut Open) -> Result<(), Problem> {
        if let Some((source, node)) = self.known.alias.get(&v).cloned() {
            self.materialize(source, open)?;
            if self.known.made.insert(v) {
                open.done.push(node);
            }
            return Ok(());
        }
        if let Some(i) = open.groups.iter().position(|g| g.outs.contains_key(&v)) {
            self.close(i, open)?;
        }
        Ok(())
    }

    /// Puts `node` into a group, old or new; false if no kernel can say it.
    fn join(&mut self, node: &Node, open: &mut Open) -> Result<bool, Problem> {
        let reads: Vec<ValueId> = node.args.iter().map(|v| self.root(*v)).collect();
        let holding: Vec<usize> = (0..open.groups.len())
            .rev()
            .filter(|i| {
                reads.iter().any(|v| {
                    open.groups[*i].outs.contains_key(v) && !open.groups[*i].late.contains(v)
                })
            })
            .collect();
        let sharing: Vec<usize> = (0..open.groups.len())
            .rev()
            .filter(|i| {
                !holding.contains(i) && reads.iter().any(|v| open.groups[*i].inputs.contains(v))
            })
            .collect();
        // All groups that hold operands; else one of them; else a neighbour; else a new group.
        let mut tries: Vec<Vec<usize>> = vec![];
        if holding.len() > 1 {
            tries.push(holding.clone());
        }
        tries.extend(holding.iter().chain(&sharing).map(|i| vec![*i]));
        tries.push(vec![]);
        for groups in tries {
            if let Some(fit) = self.fits(node, &groups, open) {
                self.put(node.clone(), fit, groups, open)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Can `node` join the union of `groups`?
    fn fits(&self, node: &Node, groups: &[usize], open: &Open) -> Option<Fit> {
        let members: usize = groups.iter().map(|i| open.groups[*i].members.len()).sum();
        if members + 1 > self.config.max_group {
            return None;
        }
        let mut fit = self.own_space(node)?;
        let mut inputs = BTreeSet::new();
        let mut outs: BTreeMap<ValueId, usize> = BTreeMap::new();
        for i in groups {
            let group = &open.groups[*i];
            let (space, lanes) =
                space::unite(self.g, &fit.space, &fit.lanes, &group.space, &group.lanes)?;
            (fit.space, fit.lanes) = (space, lanes);
            inputs.extend(&group.inputs);
            outs.extend(group.outs.iter().map(|(v, n)| (*v, *n)));
            if node.args.iter().any(|v| group.late.contains(&self.root(*v))) {
                return None;
            }
        }
        for v in &inputs {
            fit.lanes = fit.lanes.and(&space::readable(self.g, self.g.dims_of(*v), &fit.space));
        }
        for i in 0..fit.operands.len() {
            self.place_operand(node, i, &mut fit, &mut inputs, &mut outs)?;
        }
        outs.insert(node.outs[0], open.uses.get(&node.outs[0]).copied().unwrap_or(0));
        let leaving = outs.values().filter(|n| **n > 0).count();
        let none = fit.lanes.is_empty() || inputs.len() + leaving > self.config.max_edges;
        (!none).then_some(fit)
    }

    /// Decides how operand `i` is read: inside the group, or as an input.
    fn place_operand(
        &self,
        node: &Node,
        i: usize,
        fit: &mut Fit,
        inputs: &mut BTreeSet<ValueId>,
        outs: &mut BTreeMap<ValueId, usize>,
    ) -> Option<()> {
        let mut v = fit.operands[i];
        if self.known.consts.contains_key(&v) {
            return Some(());
        }
        if let Some(readers) = outs.get_mut(&v) {
            *readers = readers.saturating_sub(1);
            fit.lanes = fit.lanes.and(&space::inside(self.g.dims_of(v), &fit.space));
            return Some(());
        }
        let reads = |v: ValueId| space::readable(self.g, self.g.dims_of(v), &fit.space);
        if fit.lanes.and(&reads(v)).is_empty() {
            v = node.args[i];
            fit.operands[i] = v;
        }
        // A repeated value of the group itself would have to exist before the kernel has run.
        let mut chain = std::iter::successors(Some(v), |v| self.known.alias.get(v).map(|a| a.0));
        if chain.any(|s| outs.contains_key(&s)) {
            return None;
        }
        fit.lanes = fit.lanes.and(&reads(v));
        inputs.insert(v);
        Some(())
    }

    /// The space of `node` alone.
    fn own_space(&self, node: &Node) -> Option<Fit> {
        let mut operands: Vec<ValueId> = node.args.iter().map(|v| self.root(*v)).collect();
        let Op::Reduce { op, over } = &node.op else {
            let space = self.g.dims_of(node.outs[0]).to_vec();
            // Some operand must make the result as wide as it is: a repeated one, if no other.
            let wide = |v: ValueId| {
                space
                    .last()
                    .is_none_or(|d| self.g.dims.is_ragged(*d) || self.g.dims_of(v).contains(d))
            };
            if !operands.iter().any(|v| wide(*v)) {
                let i = node.args.iter().position(|v| wide(*v))?;
                operands[i] = node.args[i];
            }
            let lanes = Lanes::of(self.g, &space);
            return Some(Fit { space, lanes, operands, fold: None });
        };
        let x = node.args[0];
        let space = self.g.dims_of(x).to_vec();
        let fold = space::fold(self.g, &space, *op, over)?;
        let lanes = Lanes::of(self.g, &space).and(&fold.lanes(space.len()));
        // The reduction is over the operand's own space: what it repeats is read as an input.
        let same = self.g.dims_of(operands[0]) == space;
        let operands = if same { operands } else { vec![x] };
        (!lanes.is_empty()).then_some(Fit { space, lanes, operands, fold: Some(fold) })
    }

    fn put(
        &mut self,
        node: Node,
        fit: Fit,
        mut groups: Vec<usize>,
        open: &mut Open,
    ) -> Result<(), Problem> {
        for v in &fit.operands {
            let inside = groups.iter().any(|i| open.groups[*i].outs.contains_key(v));
            if inside || self.known.consts.contains_key(v) {
                continue;
            }
            let before = open.groups.len();
            let marks: Vec<ValueId> =
                groups.iter().map(|i| open.groups[*i].members[0].outs[0]).collect();
            self.materialize(*v, open)?;
            if open.groups.len() != before {
                groups = marks
                    .iter()
                    .filter_map(|m| open.groups.iter().position(|g| g.outs.contains_key(m)))
                    .collect();
            }
        }
        groups.sort_unstable();
        let mut merged = Group {
            space: vec![],
            lanes: fit.lanes,
            members: vec![],
            inputs: BTreeSet::new(),
            outs: BTreeMap::new(),
            late: BTreeSet::new(),
        };
        for i in groups.into_iter().rev() {
            let mut group = open.groups.remove(i);
            group.members.append(&mut merged.members);
            merged.members = group.members;
            merged.inputs.extend(group.inputs);
            merged.outs.extend(group.outs);
            merged.late.extend(group.late);
        }
        merged.space = fit.space;
        for v in &fit.operands {
            match merged.outs.get_mut(v) {
                Some(readers) => *readers = readers.saturating_sub(1),
                None if self.known.consts.contains_key(v) => {}
                None => {
                    merged.inputs.insert(*v);
                }
            }
        }
        let out = node.outs[0];
        merged.outs.insert(out, open.uses.get(&out).copied().unwrap_or(0));
        if fit.fold.is_some_and(|f| f.over_rows()) {
            merged.late.insert(out);
        }
        merged.members.push(Node { args: fit.operands, ..node });
        open.groups.push(merged);
        Ok(())
    }

    /// Turns group `i` into a node.
    fn close(&mut self, i: usize, open: &mut Open) -> Result<(), Problem> {
        let group = open.groups.remove(i);
        let node = build::kernel(self.g, &group, &self.known.consts)?;
        if let Op::Fused { kernel } = &node.op {
            self.report.count(kernel.reason.clone());
        }
        open.done.push(node);
        Ok(())
    }
}
