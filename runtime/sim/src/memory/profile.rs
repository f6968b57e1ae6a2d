//! What one micro-batch keeps, layer by layer, and how large the weights are, read off a plan.
//!
//! In: the graph of a plan after all passes, and the sizes of a micro-batch. Out, per group of layers:
//! bytes that the plan stacks for its backward pass, and bytes that a pass without recomputation
//! keeps: the forward values that nodes of the backward pass read, whether they are stacked or computed
//! again first. A value that is gathered before it is read counts as its part. Nothing here knows a
//! framework.

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::cost::elements;
use nrl_ir::kernel::{Instr, Kernel};
use nrl_ir::op::{Attention, Scan};
use nrl_ir::plan::Plan;
use nrl_ir::{DimId, Graph, Node, Op, ValueId};
use serde::Serialize;

use super::Precision;
use crate::work::Sizes;

/// Bytes by what a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Kept {
    /// As wide as the model.
    pub stream: f64,
    /// Up to the result of attention: projections, keys, values, normalizers.
    pub attention: f64,
    /// Inside feed-forward blocks, and of routers.
    pub inner: f64,
    /// Tokens on their way to experts.
    pub rows: f64,
}

impl Kept {
    /// All together.
    pub fn sum(&self) -> f64 {
        self.stream + self.attention + self.inner + self.rows
    }
}

/// Equal layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Group {
    pub name: String,
    pub count: usize,
    /// Bytes that the plan stacks per layer.
    pub stacked: f64,
    /// Bytes per layer without recomputation.
    pub kept: Kept,
    /// Bytes handed from layer to layer.
    pub boundary: f64,
    /// Bytes of the results of every second product, of attention, and of what enters.
    pub every_second: f64,
    /// Numbers in what attention results in.
    pub mixed: f64,
    /// Heads times tokens: rows of scores.
    pub score_rows: f64,
    /// Numbers of `boundary`.
    pub stream: f64,
    /// Dims of what is handed on, other than tokens.
    #[serde(skip)]
    model: Vec<DimId>,
    /// Weights of one layer on a rank, gathered.
    pub weights: f64,
    /// Weights of one layer on a rank, one for each shape: of equal experts one.
    pub shapes: f64,
}

/// The end of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Head {
    pub logits: f64,
    /// Tokens scored, and columns of the vocabulary on a rank.
    pub rows: f64,
    pub columns: f64,
    /// Ranks share the vocabulary.
    pub cut: bool,
}

/// A pass over one micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Profile {
    pub groups: Vec<Group>,
    pub head: Head,
    /// Bytes of the hidden states of all tokens that a rank shares with others.
    pub hidden: f64,
    /// Ranks share tokens between products.
    pub shared: bool,
    /// Whether there is a backward pass.
    pub backward: bool,
}

impl Profile {
    /// Of a plan at `sizes`, computing in `precision`.
    pub fn of(plan: &Plan, sizes: &Sizes, precision: Precision) -> Profile {
        let Some(class) = plan.classes.first() else { return Profile::default() };
        let g = &class.graph;
        let sizes = &sizes.on_rank(g);
        let read = Read { g, sizes, precision };
        let mut out = Profile::default();
        for node in &g.body.nodes {
            match &node.op {
                Op::Scan { scan } if scan.reverse => {
                    out.backward = true;
                    if let Some(group) = find(&mut out.groups, scan) {
                        let attention = read.attention(scan);
                        group.kept = read.kept(scan, attention, &group.model);
                    }
                }
                Op::Scan { scan } => read.forward(scan, &mut out),
                Op::LogProbHead { vocab, axes, .. } => {
                    let rows = read.number(node.outs[0]);
                    out.head = read.head(rows, *vocab, !axes.is_empty());
                }
                Op::LogProb { vocab, axes, .. } => {
                    let rows = read.number(node.outs[0]);
                    out.head = read.head(rows, *vocab, !axes.is_empty());
                }
                _ => {}
            }
        }
        out.groups.iter_mut().for_each(|group| group.average(g.layers_of_turn(&group.name)));
        out
    }
}

impl Group {
    /// Turns of `apart` unlike layers as so many times the layers, each the mean of a turn.
    fn average(&mut self, apart: usize) {
        let n = apart as f64;
        self.count *= apart;
        let kept = &mut self.kept;
        for x in [
            &mut kept.stream,
            &mut kept.attention,
            &mut kept.inner,
            &mut kept.rows,
            &mut self.stacked,
            &mut self.every_second,
            &mut self.mixed,
            &mut self.score_rows,
            &mut self.weights,
            &mut self.shapes,
        ] {
            *x /= n;
        }
    }
}

fn find<'a>(groups: &'a mut [Group], scan: &Scan) -> Option<&'a mut Group> {
    groups.iter_mut().find(|x| x.name == scan.group)
}

struct Read<'a> {
    g: &'a Graph,
    sizes: &'a Sizes,
    precision: Precision,
}

impl Read<'_> {
    fn size(&self, d: DimId) -> f64 {
        self.sizes.of(self.g, d)
    }

    fn number(&self, v: ValueId) -> f64 {
        elements(&self.g.dims, self.g.ty(v), &|d| self.size(d))
    }

    /// Bytes of a value: wide rows in the compute type, a few numbers per token in f32.
    fn bytes(&self, v: ValueId) -> f64 {
        self.number(v) * super::value_bytes(self.g, v, self.precision)
    }

    fn head(&self, rows: f64, vocab: DimId, cut: bool) -> Head {
        let columns = self.size(vocab);
        Head { logits: rows * columns, rows, columns, cut }
    }

    fn attention<'s>(&self, scan: &'s Scan) -> Option<&'s Attention> {
        scan.body.nodes.iter().find_map(|n| match &n.op {
            Op::Attention { attn } | Op::AttentionGrad { attn } => Some(attn),
            _ => None,
        })
    }

    /// A group as its forward loop shows it.
    fn forward(&self, scan: &Scan, out: &mut Profile) {
        let carries = &scan.body.params[..scan.carries];
        let boundary: f64 = carries.iter().map(|v| self.bytes(*v)).sum();
        let stream: f64 = carries.iter().map(|v| self.number(*v)).sum();
        let stacked: f64 = scan.body.results[scan.carries..].iter().map(|v| self.bytes(*v)).sum();
        if let Some(x) = carries.first() {
            let whole = |d: DimId| self.g.dims.whole(d).map_or(self.size(d), |w| self.size(w));
            let number: f64 = self.g.dims_of(*x).iter().map(|d| whole(*d)).product();
            let cut = number > 1.5 * self.number(*x);
            let hidden = number * boundary / stream.max(1.0);
            out.hidden = out.hidden.max(hidden);
            out.shared |= cut;
        }
        let (weights, shapes) = self.weights(&scan.group);
        let (every_second, mixed, score_rows) = self.products(scan);
        let found = Group {
            name: scan.group.clone(),
            count: scan.count,
            stacked,
            boundary,
            stream,
            every_second: every_second + boundary,
            mixed,
            score_rows,
            weights,
            shapes,
            kept: Kept::default(),
            model: carries.first().map_or(vec![], |v| width(self.g, *v)),
        };
        match find(&mut out.groups, scan) {
            Some(known) => known.count += scan.count,
            None => out.groups.push(found),
        }
    }

    /// Weights of a layer, and of one expert of it.
    fn weights(&self, group: &str) -> (f64, f64) {
        let (mut all, mut shapes) = (0.0, 0.0);
        for p in &self.g.params {
            if p.repeat.as_ref().is_some_and(|(name, _)| name == group) {
                let each = |d: &DimId| self.g.dims.bound(*d) as f64;
                let number: f64 = p.dims.iter().map(each).product();
                all += number;
                if p.dims.len() > 1 {
                    shapes += number / experts(self.g, &p.dims);
                }
            }
        }
        (all, shapes)
    }

    /// Bytes of the results of every second product and of attention; numbers attention results in, and
    /// rows of scores.
    fn products(&self, scan: &Scan) -> (f64, f64, f64) {
        let weights = weight_values(&scan.body.nodes);
        let (mut bytes, mut mixed, mut rows, mut at) = (0.0, 0.0, 0.0, 0);
        for node in &scan.body.nodes {
            match &node.op {
                Op::Contract { .. } if node.args.iter().any(|a| weights.contains(a)) => {
                    if at % 2 == 0 {
                        bytes += self.summed(node.outs[0], &scan.body.nodes);
                    }
                    at += 1;
                }
                Op::Attention { attn } => {
                    bytes += self.bytes(node.outs[0]);
                    mixed += self.number(node.outs[0]);
                    rows += self.size(attn.tok) * self.size(attn.q);
                }
                _ => {}
            }
        }
        (bytes, mixed, rows)
    }

    /// Bytes of a product, after its terms are summed and shared out.
    fn summed(&self, v: ValueId, nodes: &[Node]) -> f64 {
        let sum = nodes
            .iter()
            .find(|n| n.args.first() == Some(&v) && matches!(n.op, Op::ReduceScatter { .. }));
        self.bytes(sum.map_or(v, |n| n.outs[0]))
    }

    /// Forward values that the backward nodes of a reverse loop read, without those that pointwise work
    /// makes of the others.
    fn kept(&self, scan: &Scan, attention: Option<&Attention>, model: &[DimId]) -> Kept {
        let nodes = &scan.body.nodes;
        let reads = Reads::of(scan);
        let mut at_hand = weight_values(nodes);
        let mut kept = Kept::default();
        let mut keep = |v: ValueId| self.put(&mut kept, v, attention, model);
        for v in &scan.body.params[scan.carries..] {
            at_hand.insert(*v);
            if reads.anywhere.contains(v) {
                keep(*v);
            }
        }
        for node in nodes.iter().filter(|n| !n.outs.iter().any(|v| reads.back.contains(v))) {
            let known = |v: &ValueId| at_hand.contains(v);
            let derived: Vec<bool> = match &node.op {
                Op::Fused { kernel } => {
                    let given: Vec<bool> = node.args.iter().map(known).collect();
                    let read: Vec<bool> = node.outs.iter().map(|v| reads.is_read(*v)).collect();
                    derived(kernel, &given, &read)
                }
                Op::Input { .. } | Op::Const { .. } => vec![true; node.outs.len()],
                Op::AllGather { .. } | Op::Broadcast { .. } => vec![node.args.iter().all(known)],
                op if op.is_pointwise() => vec![node.args.iter().all(known)],
                _ => vec![false; node.outs.len()],
            };
            let gathers =
                matches!(node.op, Op::AllGather { .. } | Op::Const { .. } | Op::Input { .. });
            for (v, derived) in node.outs.iter().zip(derived) {
                let read = reads.is_read(*v);
                if read && !gathers && (!derived || reads.whole.contains(v)) && !at_hand.contains(v)
                {
                    keep(*v);
                }
                if derived || read {
                    at_hand.insert(*v);
                }
            }
        }
        kept
    }

    fn put(&self, kept: &mut Kept, v: ValueId, attention: Option<&Attention>, model: &[DimId]) {
        let dims = self.g.dims_of(v);
        let heads = |a: &Attention| [a.hd, a.q, a.kv].iter().any(|d| dims.contains(d));
        let wide = !model.is_empty() && model.iter().all(|d| dims.contains(d));
        let routed = dims.iter().any(|d| is_expert(self.g, *d));
        let to = match () {
            () if wide && routed => &mut kept.rows,
            () if wide => &mut kept.stream,
            () if attention.is_some_and(heads) => &mut kept.attention,
            () => &mut kept.inner,
        };
        *to += self.bytes(v);
    }
}

/// What the nodes of a reverse loop read.
#[derive(Default)]
struct Reads {
    /// Values that depend on what comes from behind.
    back: BTreeSet<ValueId>,
    /// Forward values that backward nodes read whole: products, attention. What is gathered before
    /// counts as its part.
    whole: BTreeSet<ValueId>,
    /// Forward values that pointwise backward nodes read.
    soft: BTreeSet<ValueId>,
    /// Values that any node reads.
    anywhere: BTreeSet<ValueId>,
}

impl Reads {
    fn of(scan: &Scan) -> Reads {
        let mut r = Reads::default();
        let mut gathered: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        r.back.extend(&scan.body.params[..scan.carries]);
        for node in &scan.body.nodes {
            r.anywhere.extend(&node.args);
            if let (Op::AllGather { .. }, Some(v)) = (&node.op, node.outs.first()) {
                gathered.insert(*v, node.args[0]);
            }
            if !node.args.iter().any(|a| r.back.contains(a)) {
                continue;
            }
            let soft = node.op.is_pointwise() || matches!(node.op, Op::Fused { .. });
            for a in node.args.iter().filter(|a| !r.back.contains(a)) {
                let a = gathered.get(a).unwrap_or(a);
                if soft {
                    r.soft.insert(*a)
                } else {
                    r.whole.insert(*a)
                };
            }
            r.back.extend(&node.outs);
        }
        r
    }

    fn is_read(&self, v: ValueId) -> bool {
        self.whole.contains(&v) || self.soft.contains(&v)
    }
}

/// Which results of a kernel follow from operands at hand (`given`) and results that are kept anyway because
/// backward nodes read them (`read`). One number per row counts as at hand.
fn derived(kernel: &Kernel, given: &[bool], read: &[bool]) -> Vec<bool> {
    let mut known = vec![false; kernel.code.len()];
    let mut out = vec![false; kernel.outputs.len()];
    for (i, instr) in kernel.code.iter().enumerate() {
        let follows = match instr {
            Instr::Load { input } => given.get(*input) == Some(&true),
            Instr::Const { .. } | Instr::Lanes { .. } => true,
            Instr::Unary { x, .. } | Instr::RoundBf16 { x } => known[*x],
            Instr::Binary { a, b, .. } => known[*a] && known[*b],
            Instr::Select { cond, a, b } => known[*cond] && known[*a] && known[*b],
        };
        known[i] = follows || !kernel.is_lane(i);
        for (o, (at, _)) in kernel.outputs.iter().enumerate() {
            if *at == i {
                out[o] = follows;
                known[i] |= read.get(o) == Some(&true);
            }
        }
    }
    out
}

/// Dims of a value that are no tokens.
fn width(g: &Graph, v: ValueId) -> Vec<DimId> {
    g.dims_of(v).iter().filter(|d| !g.dims.is_ragged(**d)).copied().collect()
}

/// A dim over experts, by the name that plans cut it by.
fn is_expert(g: &Graph, d: DimId) -> bool {
    g.dims.get(d).routed.is_some() || g.dims.name(d) == "expert"
}

/// Experts on a rank that a weight has a part for; 1 if it is no weight of experts.
pub(super) fn experts(g: &Graph, dims: &[DimId]) -> f64 {
    let own = dims.iter().filter(|d| dims.len() > 2 && is_expert(g, **d));
    own.map(|d| g.dims.bound(*d) as f64).product()
}

/// Values that hold weights: read, gathered, or made of nothing else.
fn weight_values(nodes: &[Node]) -> BTreeSet<ValueId> {
    let mut out = BTreeSet::new();
    for n in nodes {
        let leaf = matches!(n.op, Op::Use { .. } | Op::GatherParam { .. });
        let of_weights = !n.args.is_empty() && n.args.iter().all(|a| out.contains(a));
        if leaf || of_weights {
            out.extend(&n.outs);
        }
    }
    out
}
