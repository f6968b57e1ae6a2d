//! Local shapes and collectives.
//!
//! Takes a graph with global shapes and gives the one that every rank of a mesh runs. The layout of
//! a value follows from its dims alone: each dim is split as the table of [`Rules`] says, in every
//! value; a parameter whose own rule differs is brought to that layout where it is used. What an op
//! owes after it ran on parts is paid by a collective with a reason. Sequences are split over the
//! batch axes by what the host binds: gradients stay owed a sum over them, other numbers without
//! ragged dims are summed where an op, or an output, needs the whole of them. Last, a rule for a
//! ragged dim splits tokens where its axes are still free (`sequence`).

mod batch;
mod experts;
mod layout;
mod local;
mod sequence;

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::op::Ring;
use nrl_ir::plan::ParamLayout;
use nrl_ir::{Block, DType, DimId, Extent, Graph, Mesh, Op};

use crate::rename;
use crate::report::{Origin, Problem, Report};

/// How a plan cuts a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// Dim name to mesh axes, in order: per tensor a row applies if its axes are still free.
    pub dims: Vec<DimRule>,
    /// Rules for one dim of one parameter; they beat `dims`.
    pub paths: Vec<PathRule>,
    /// Axes over which sequences are split.
    pub batch: Vec<String>,
    /// Axes over which the tokens of each sequence are split, attention going around them.
    pub ring: Vec<String>,
    pub state: State,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DimRule {
    pub dim: String,
    pub axes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PathRule {
    /// Path of the parameter, `layers.wo`; `layers[*].wo` is the same.
    pub path: String,
    pub dim: String,
    /// None: the dim stays whole in this parameter.
    pub axes: Vec<String>,
}

/// Where optimizer state lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    /// On every rank.
    #[default]
    Whole,
    /// Cut flat over these axes.
    Zero1(Vec<String>),
    /// Cut flat over these axes, and gradients with it.
    Zero2(Vec<String>),
    /// Cut flat over these axes, and the weights with it.
    Zero3(Vec<String>),
}

impl Rules {
    /// Axes of more than one rank whose ranks have different tokens.
    pub(crate) fn apart(&self, mesh: &Mesh) -> Vec<String> {
        let all = self.batch.iter().chain(&self.ring);
        all.filter(|a| mesh.size(a) > 1).cloned().collect()
    }
}

/// What [`shard`] gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharded {
    pub graph: Graph,
    /// One per parameter.
    pub layouts: Vec<ParamLayout>,
    /// The collectives by reason.
    pub report: Report,
    /// Rules that no dim or parameter of this graph matches, as written.
    pub unused: Vec<String>,
}

/// The program of each rank of `mesh` under `rules`.
///
/// Outputs are whole: gathered over axes that split their static dims, and summed over the batch
/// axes if they have no ragged dim. Problems: `heads-not-divisible`, `dim-not-divisible`,
/// `axis-used-twice`, `dim-kept-whole`, `unknown-axis`.
pub fn shard(graph: &Graph, mesh: &Mesh, rules: &Rules) -> Result<Sharded, Vec<Problem>> {
    let (layout, unused) = layout::Layout::new(graph, mesh, rules)?;
    let mut g = graph.clone();
    ring(&mut g, mesh, rules);
    let body = std::mem::take(&mut g.body);
    let class = batch::classes(&g, &body);
    let mut uses = BTreeMap::new();
    count_uses(&body, &mut uses);
    let layouts = layout.param_layouts(graph, rules, mesh);
    let mut ctx = local::Ctx::new(g, mesh, layout, class, uses, &layouts, rules);
    ctx.cut_dims(rules);
    let body = ctx.graph_body(body).map_err(|p| vec![p])?;
    let (mut g, mut report) = ctx.finish();
    g.body = body;
    split_tokens(&mut g, mesh, rules, &mut report);
    let mut seen = BTreeSet::new();
    let mut twice = vec![];
    axes_used_twice(&g, mesh, &mut seen, &mut twice);
    if !twice.is_empty() {
        return Err(twice);
    }
    rename::compact(&mut g);
    Ok(Sharded { graph: g, layouts, report, unused })
}

/// Splits tokens where a rule says so; decoding, which has a token per sequence, keeps them whole.
fn split_tokens(g: &mut Graph, mesh: &Mesh, rules: &Rules, report: &mut Report) {
    let mut decodes = false;
    g.body.walk(&mut |n| {
        decodes |= match &n.op {
            Op::AttentionCached { .. } => true,
            Op::Ssm { ssm } => ssm.cached,
            _ => false,
        }
    });
    for rule in &rules.dims {
        let axes: Vec<String> = rule.axes.iter().filter(|a| mesh.size(a) > 1).cloned().collect();
        let tok = g.dims.find(&rule.dim).filter(|d| g.dims.is_ragged(*d));
        if let Some(tok) = tok.filter(|_| !decodes && !axes.is_empty()) {
            let viewed = mesh.expert_view().is_some();
            sequence::split(g, tok, &axes, mesh.size_over(&axes), viewed, report);
        }
    }
}

/// Tokens split over the ring: a rank has a share of those of every sequence, and attention knows.
fn ring(g: &mut Graph, mesh: &Mesh, rules: &Rules) {
    let axes: Vec<String> = rules.ring.iter().filter(|a| mesh.size(a) > 1).cloned().collect();
    if axes.is_empty() {
        return;
    }
    let ranks = mesh.size_over(&axes);
    for d in tokens(g) {
        if let Extent::Ragged { bound, .. } = &mut g.dims.get_mut(d).extent {
            *bound = bound.div_ceil(ranks);
        }
    }
    set_ring(&mut g.body, &Ring { axes, ranks });
}

/// The dims of tokens: those that attention runs over, and those of indices into them.
fn tokens(g: &Graph) -> BTreeSet<DimId> {
    let mut found = BTreeSet::new();
    g.body.walk(&mut |n| {
        match &n.op {
            Op::Attention { attn } | Op::AttentionGrad { attn } => found.insert(attn.tok),
            Op::Ssm { ssm } | Op::SsmGrad { ssm } => found.insert(ssm.tok),
            _ => false,
        };
    });
    for ty in &g.values {
        if let DType::Id(d) = ty.dtype
            && found.contains(&d)
        {
            found.extend(ty.dims.iter().filter(|d| g.dims.is_ragged(**d)));
        }
    }
    found
}

fn set_ring(block: &mut Block, ring: &Ring) {
    for node in &mut block.nodes {
        match &mut node.op {
            Op::Scan { scan } => set_ring(&mut scan.body, ring),
            Op::Attention { attn } | Op::AttentionGrad { attn } => attn.ring = Some(ring.clone()),
            Op::Conv { conv } | Op::ConvGrad { conv } => conv.ring = Some(ring.clone()),
            Op::Ssm { ssm } | Op::SsmGrad { ssm } => ssm.ring = Some(ring.clone()),
            _ => {}
        }
    }
}

/// Appends a node with one result of type `ty`.
fn push(
    g: &mut Graph,
    op: nrl_ir::Op,
    args: Vec<nrl_ir::ValueId>,
    ty: nrl_ir::Type,
    out: &mut Vec<nrl_ir::Node>,
    origin: Origin,
) -> nrl_ir::ValueId {
    let v = g.fresh(ty);
    out.push(nrl_ir::Node { op, args, outs: vec![v], origin });
    v
}

fn count_uses(block: &nrl_ir::Block, uses: &mut BTreeMap<nrl_ir::ValueId, usize>) {
    block.walk(&mut |n| {
        n.args.iter().for_each(|v| *uses.entry(*v).or_default() += 1);
        if let nrl_ir::Op::Scan { scan } = &n.op {
            scan.body.results.iter().for_each(|v| *uses.entry(*v).or_default() += 1);
        }
    });
    block.results.iter().for_each(|v| *uses.entry(*v).or_default() += 1);
}

/// No value may have two dims that one axis splits.
fn axes_used_twice(
    g: &Graph,
    mesh: &Mesh,
    seen: &mut BTreeSet<String>,
    problems: &mut Vec<Problem>,
) {
    g.body.walk(&mut |node| {
        for v in &node.outs {
            let mut taken: Vec<(&str, &str)> = vec![];
            for d in g.dims_of(*v) {
                let Some(shard) = &g.dims.get(*d).shard else { continue };
                for axis in shard.axes.iter().filter(|a| mesh.size(a) > 1) {
                    if let Some((_, other)) = taken.iter().find(|(a, _)| a == axis) {
                        let text = format!(
                            "axis `{axis}` splits both `{other}` and `{}` of one value",
                            g.dims.name(*d)
                        );
                        if seen.insert(text.clone()) {
                            problems.push(Problem::new("axis-used-twice", text, node.origin));
                        }
                    }
                    taken.push((axis, g.dims.name(*d)));
                }
            }
        }
    });
}
