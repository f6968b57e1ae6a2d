//! What a rank does in one pass over one micro-batch, read off a plan.
//!
//! In: the graph of a plan and how many tokens and sequences a micro-batch has. Out: items of work
//! (products with their shapes, attention, passes over memory, collectives) by region of the model:
//! before the layers, one layer of each group, after them. The regions are what a pipeline deals
//! out to its stages. Nothing here knows a machine.

use nrl_ir::op::{Attention, Ssm};
use nrl_ir::plan::Plan;
use nrl_ir::{Block, DType, DimId, Graph, Node, Op, ReduceOp, ValueId};
use serde::Serialize;

use crate::Precision;
use crate::adapters::{self, Adapters};

/// Sizes of the ragged dims of a micro-batch on one data-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sizes {
    pub tokens: f64,
    /// Tokens that are trained or scored.
    pub scored: f64,
    pub sequences: f64,
    /// Prompts.
    pub groups: f64,
    /// Mean over tokens of the number of tokens at or before each in its sequence.
    pub context: f64,
}

impl Sizes {
    /// `tokens` in sequences of `length` each, all of them scored.
    pub fn packed(tokens: f64, length: f64) -> Sizes {
        let sequences = (tokens / length).max(1.0);
        let context = tokens / sequences / 2.0;
        Sizes { tokens, scored: tokens, sequences, groups: sequences, context }
    }

    /// The same on one of the ranks of a ring, which share the tokens of each sequence.
    pub(crate) fn on_rank(&self, g: &Graph) -> Sizes {
        let ring = ring_of(g);
        Sizes { tokens: self.tokens / ring, scored: self.scored / ring, ..*self }
    }

    /// Size of dim `d` of `g`, where `cut` is over how many ranks the plan cuts it.
    pub(crate) fn of(&self, g: &Graph, d: DimId) -> f64 {
        let dim = g.dims.get(d);
        if !g.dims.is_ragged(d) {
            return g.dims.bound(d) as f64;
        }
        let whole = match dim.name.as_str() {
            "tok" => self.tokens,
            "act" => self.scored,
            "seq" | "row" => self.sequences,
            "group" => self.groups,
            _ => return g.dims.bound(d) as f64,
        };
        // A cut ragged dim carries the bound of its part.
        match g.dims.whole(d) {
            Some(all) => whole * g.dims.bound(d) as f64 / (g.dims.bound(all) as f64).max(1.0),
            None => whole,
        }
    }
}

/// How many times as long the kernels of a state-space model take as one pass over what they read and write: of
/// published runs of Nemotron 3 Nano and Super on H100 to GB300 (Megatron-Bridge 26.02 to 26.08) the whole number
/// that leaves no bias.
const STATE_PASSES: f64 = 9.0;

/// What one item does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Kind {
    /// `batch` products of `[m, k]` by `[k, n]`; operands in the compute type.
    Product { m: f64, n: f64, k: f64, batch: f64 },
    /// Attention of `tokens` over `context` earlier ones each.
    Attention { tokens: f64, heads: f64, width: f64, context: f64, backward: bool },
    /// Bytes read and written by one kernel.
    Memory { bytes: f64 },
    /// A collective; `bytes` of its operand on this rank.
    Collective { kind: Collective, axes: Vec<String>, bytes: f64 },
}

/// How a collective moves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Collective {
    AllReduce,
    /// The operand is a part, the result the whole.
    AllGather,
    /// The operand is the whole.
    ReduceScatter,
    /// The operand is what a rank holds for all others.
    AllToAll,
    /// Keys and values passed around a ring.
    Ring,
    /// Weights of one layer gathered before use (zero3); the bytes are those of the whole.
    GatherWeights,
    /// Gradients of one layer summed and scattered (zero3); the bytes are those of the whole.
    ScatterGradients,
    /// To the next stage.
    Send,
}

/// Work that is done `count` times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Item {
    pub kind: Kind,
    pub count: f64,
}

/// Work of one region.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Region {
    pub forward: Vec<Item>,
    pub backward: Vec<Item>,
}

/// A group of equal layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layers {
    pub group: String,
    pub count: usize,
    /// Of one layer.
    pub each: Region,
}

impl Layers {
    /// Turns of `apart` unlike layers as so many times the layers, each the mean of a turn.
    fn average(&mut self, apart: usize) {
        self.count *= apart;
        for item in self.each.forward.iter_mut().chain(&mut self.each.backward) {
            item.count /= apart as f64;
        }
    }
}

/// A pass over one micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// Embedding, and its gradient.
    pub before: Region,
    pub layers: Vec<Layers>,
    /// Head and loss.
    pub after: Region,
    /// Bytes that one stage hands to the next, forward; the same backward.
    pub boundary: f64,
    /// The plan runs the forward of one micro-batch beside the backward of another.
    pub paired: bool,
}

impl Item {
    /// FLOPs, a multiplication and an addition counted as two.
    pub fn flops(&self) -> f64 {
        self.count
            * match &self.kind {
                Kind::Product { m, n, k, batch } => 2.0 * m * n * k * batch,
                Kind::Attention { tokens, heads, width, context, backward } => {
                    let products = if *backward { 5.0 } else { 2.0 };
                    2.0 * products * tokens * heads * width * context
                }
                _ => 0.0,
            }
    }

    pub(crate) fn is_collective(&self) -> bool {
        matches!(self.kind, Kind::Collective { .. })
    }

    /// Does it travel beside the computation: weights ahead of it, gradients behind it?
    pub(crate) fn is_beside(&self) -> bool {
        let Kind::Collective { kind, .. } = &self.kind else { return false };
        matches!(kind, Collective::GatherWeights | Collective::ScatterGradients)
    }

    /// Does it work on rows that a router sent?
    pub(crate) fn is_routed(&self) -> bool {
        match &self.kind {
            Kind::Product { batch, .. } => *batch > 1.0,
            Kind::Collective { kind, .. } => *kind == Collective::AllToAll,
            _ => false,
        }
    }
}

impl Work {
    /// The work of a plan's graph at `sizes`, with weights and activations in `precision`.
    pub fn of(plan: &Plan, sizes: &Sizes, precision: Precision) -> Work {
        Work::with(plan, sizes, precision, &|_| Adapters::default())
    }

    /// The same as frameworks run it: adapters beside the products of frozen weights.
    pub fn on_stack(plan: &Plan, sizes: &Sizes, precision: Precision) -> Work {
        Work::with(plan, sizes, precision, &Adapters::of)
    }

    fn with(
        plan: &Plan,
        sizes: &Sizes,
        precision: Precision,
        adapters: &dyn Fn(&Graph) -> Adapters,
    ) -> Work {
        let Some(class) = plan.classes.first() else { return Work::default() };
        let g = &class.graph;
        let sizes = &sizes.on_rank(g);
        let count = Count { g, sizes, precision, adapters: adapters(g) };
        let mut work = Work { paired: plan.paired, ..Work::default() };
        let mut passed = Passed::Nothing;
        for node in &g.body.nodes {
            let Op::Scan { scan } = &node.op else {
                if passed == Passed::Layers && gradient_of_head(node) {
                    passed = Passed::Loss;
                }
                let to = match passed {
                    Passed::Nothing => &mut work.before.forward,
                    Passed::Layers => &mut work.after.forward,
                    Passed::Loss => &mut work.after.backward,
                    Passed::Back => &mut work.before.backward,
                };
                count.node(node, to);
                continue;
            };
            let mut items = vec![];
            count.block(&scan.body, &mut items);
            let known = work.layers.iter_mut().find(|l| l.group == scan.group);
            match known {
                Some(layers) if scan.reverse => layers.each.backward.extend(items),
                Some(layers) => layers.each.forward.extend(items),
                None => work.layers.push(Layers {
                    group: scan.group.clone(),
                    count: scan.count,
                    each: Region { forward: items, backward: vec![] },
                }),
            }
            if work.boundary == 0.0 {
                let carried = scan.body.params.iter().take(scan.carries);
                work.boundary = carried.map(|v| count.bytes(*v)).sum();
            }
            passed = if scan.reverse { Passed::Back } else { Passed::Layers };
        }
        for layers in &mut work.layers {
            layers.average(g.layers_of_turn(&layers.group));
        }
        merge(&mut work);
        work
    }

    /// All regions with how often each runs in one pass.
    pub fn regions(&self) -> impl Iterator<Item = (&Region, f64)> {
        let layers = self.layers.iter().map(|l| (&l.each, l.count as f64));
        [(&self.before, 1.0), (&self.after, 1.0)].into_iter().chain(layers)
    }

    /// FLOPs of a pass.
    pub fn flops(&self) -> f64 {
        let of = |items: &[Item]| items.iter().map(Item::flops).sum::<f64>();
        self.regions().map(|(r, n)| n * (of(&r.forward) + of(&r.backward))).sum()
    }
}

/// Number of ranks that attention goes around.
pub(crate) fn ring_of(g: &Graph) -> f64 {
    let mut ranks = 1;
    g.body.walk(&mut |n| {
        let ring = match &n.op {
            Op::Attention { attn } | Op::AttentionGrad { attn } => attn.ring.as_ref(),
            Op::Ssm { ssm } | Op::SsmGrad { ssm } => ssm.ring.as_ref(),
            _ => None,
        };
        ranks = ring.map_or(ranks, |r| r.ranks);
    });
    ranks as f64
}

#[derive(Clone, Copy, PartialEq)]
enum Passed {
    Nothing,
    Layers,
    Loss,
    Back,
}

/// Mean number of tokens that a token sees, where without a window it would be `context`: half a sequence.
fn seen(context: f64, window: Option<usize>) -> f64 {
    let length = 2.0 * context;
    match window.map(|w| w as f64) {
        Some(w) if w < length => w * (1.0 - w / (2.0 * length)),
        _ => context,
    }
}

/// Does the backward pass of the head start here?
fn gradient_of_head(node: &Node) -> bool {
    matches!(
        node.op,
        Op::LogProbHeadGrad { .. }
            | Op::LogProbGrad { .. }
            | Op::Accumulate { .. }
            | Op::ScatterGrad { .. }
    )
}

/// Equal items become one with a higher count, but for those that a collective stands between which holds what follows: where
/// it stands decides what runs beside it.
fn merge(work: &mut Work) {
    let merged = |items: &mut Vec<Item>| {
        let mut out: Vec<Item> = vec![];
        let mut from = 0;
        for item in items.drain(..) {
            let start = if item.is_beside() { 0 } else { from };
            let holds = item.is_collective() && !item.is_beside();
            let known = match holds {
                true => out.last_mut().filter(|o| o.kind == item.kind),
                false => out[start..].iter_mut().find(|o| o.kind == item.kind),
            };
            match known {
                Some(o) => o.count += item.count,
                None => out.push(item),
            }
            if holds {
                from = out.len();
            }
        }
        *items = out;
    };
    let layers = work.layers.iter_mut().map(|l| &mut l.each);
    for region in layers.chain([&mut work.before, &mut work.after]) {
        merged(&mut region.forward);
        merged(&mut region.backward);
    }
}

struct Count<'a> {
    g: &'a Graph,
    sizes: &'a Sizes,
    precision: Precision,
    adapters: Adapters,
}

impl Count<'_> {
    fn block(&self, block: &Block, to: &mut Vec<Item>) {
        block.nodes.iter().for_each(|n| self.node(n, to));
    }

    fn size(&self, d: DimId) -> f64 {
        self.sizes.of(self.g, d)
    }

    fn elements(&self, v: ValueId) -> f64 {
        nrl_ir::cost::elements(&self.g.dims, self.g.ty(v), &|d| self.size(d))
    }

    /// Bytes of a value: rows of many numbers in the compute type, one number per token in f32.
    fn bytes(&self, v: ValueId) -> f64 {
        let ty = self.g.ty(v);
        let fixed: f64 =
            ty.dims.iter().filter_map(|d| self.g.dims.size(*d)).map(|n| n as f64).product();
        let wide = match (self.precision, ty.dtype) {
            (_, DType::Bf16) => 2.0,
            (Precision::Bf16, DType::F32) if fixed >= 64.0 => 2.0,
            _ => 4.0,
        };
        self.elements(v) * wide
    }

    fn weight(&self) -> f64 {
        if self.precision == Precision::Bf16 { 2.0 } else { 4.0 }
    }

    fn node(&self, node: &Node, to: &mut Vec<Item>) {
        if self.adapters.leave_out(node) {
            return;
        }
        let mut put = |kind: Kind| to.push(Item { kind, count: 1.0 });
        let moved = || node.args.iter().chain(&node.outs).map(|v| self.bytes(*v)).sum::<f64>();
        let over = |ds: &[DimId]| ds.iter().map(|d| self.size(*d)).product::<f64>();
        match &node.op {
            Op::Input { .. } | Op::Use { .. } | Op::Const { .. } | Op::StopGrad => {}
            Op::Position { .. } => {}
            // A sum into the gradient, part of the product that made it.
            Op::Accumulate { .. } => {}
            Op::Scan { scan } => self.block(&scan.body, to),
            Op::Contract { over: summed } => match self.product(node, summed) {
                Kind::Product { m, n, k, batch } if self.adapters.low_rank(node) => {
                    let tokens = self.sizes.tokens * self.routed(node).unwrap_or(1.0);
                    to.extend(adapters::over(tokens, m, n, k, batch));
                }
                kind => put(kind),
            },
            Op::Attention { attn } => {
                to.extend(self.attention(attn, false));
                self.ring(attn, node, 1.0, to);
            }
            Op::AttentionGrad { attn } => {
                to.extend(self.attention(attn, true));
                self.ring(attn, node, 2.0, to);
            }
            Op::AttentionCached { attn } => to.extend(self.attention(attn, false)),
            // One pass over memory each; forward and its gradient read what they need once.
            Op::Conv { .. } | Op::ConvGrad { .. } => put(Kind::Memory { bytes: moved() }),
            Op::Ssm { ssm } => self.states(ssm, node, 1.0, to),
            Op::SsmGrad { ssm } => self.states(ssm, node, 3.0, to),
            Op::LogProbHead { vocab, d, .. } => {
                let rows = self.elements(node.outs[0]);
                let (n, k) = (self.size(*vocab), self.size(*d));
                put(Kind::Product { m: rows, n, k, batch: 1.0 });
                put(Kind::Memory { bytes: 4.0 * rows * n });
                self.partial(node, to);
            }
            Op::LogProbHeadGrad { vocab, d, .. } => {
                let rows = self.elements(node.args[2]);
                let (n, k) = (self.size(*vocab), self.size(*d));
                // The logits again, then the gradients of both operands.
                put(Kind::Product { m: rows, n, k, batch: 1.0 });
                put(Kind::Product { m: rows, n: k, k: n, batch: 1.0 });
                put(Kind::Product { m: n, n: k, k: rows, batch: 1.0 });
                put(Kind::Memory { bytes: 4.0 * rows * n });
            }
            // Rows of a table, not the table; sums read what they add to.
            Op::Index { .. } => put(Kind::Memory { bytes: 2.0 * self.bytes(node.outs[0]) }),
            Op::ScatterAdd { .. } => {
                let rows = node.args.iter().map(|v| self.bytes(*v));
                let moved: f64 = rows.fold(0.0, f64::max);
                let smallest = self.bytes(node.outs[0]).min(moved);
                put(Kind::Memory { bytes: 3.0 * smallest })
            }
            Op::AllReduce { op: ReduceOp::Sum | ReduceOp::Max, axes, .. } => {
                put(self.sent(Collective::AllReduce, axes, self.bytes(node.args[0])))
            }
            Op::AllGather { axes, .. } => {
                put(self.sent(Collective::AllGather, axes, self.bytes(node.args[0])))
            }
            Op::ReduceScatter { axes, .. } => {
                put(self.sent(Collective::ReduceScatter, axes, self.bytes(node.args[0])))
            }
            Op::AllToAll { axes, .. } => {
                put(self.sent(Collective::AllToAll, axes, self.bytes(node.args[0])))
            }
            Op::GatherParam { param, axes, .. } => {
                let bytes = over(&self.g.param(*param).dims) * self.weight();
                put(self.sent(Collective::GatherWeights, axes, bytes))
            }
            Op::ScatterGrad { param, axes, .. } => {
                let bytes = over(&self.g.param(*param).dims) * self.weight();
                put(self.sent(Collective::ScatterGradients, axes, bytes))
            }
            Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Select
            | Op::Cast { .. }
            | Op::Broadcast { .. }
            | Op::Reduce { .. }
            | Op::TopK { .. }
            | Op::Fit { .. }
            | Op::Next { .. }
            | Op::Recur { .. }
            | Op::Rope { .. }
            | Op::LogProb { .. }
            | Op::LogProbGrad { .. }
            | Op::Fused { .. } => put(Kind::Memory { bytes: moved() }),
        }
    }

    fn sent(&self, kind: Collective, axes: &[String], bytes: f64) -> Kind {
        Kind::Collective { kind, axes: axes.to_vec(), bytes }
    }

    /// Per row: a maximum, then sums of exp, of exp times logit, and of the label's logit.
    fn partial(&self, node: &Node, to: &mut Vec<Item>) {
        let (Op::LogProb { axes, .. } | Op::LogProbHead { axes, .. }) = &node.op else { return };
        if !axes.is_empty() {
            let bytes = 4.0 * self.elements(node.outs[0]);
            let kind = self.sent(Collective::AllReduce, axes, bytes);
            to.push(Item { kind, count: 4.0 });
        }
    }

    /// Rows, columns, summed and batched sizes of a contraction.
    fn product(&self, node: &Node, summed: &[DimId]) -> Kind {
        let of = |v: ValueId| self.g.dims_of(v).to_vec();
        let (a, b) = (of(node.args[0]), of(node.args[1]));
        let shared = |d: &DimId| a.contains(d) && b.contains(d);
        let size =
            |ds: &mut dyn Iterator<Item = &DimId>| ds.map(|d| self.size(*d)).product::<f64>();
        let m = size(&mut a.iter().filter(|d| !summed.contains(d) && !shared(d)));
        let n = size(&mut b.iter().filter(|d| !summed.contains(d) && !shared(d)));
        let batch = size(&mut a.iter().filter(|d| !summed.contains(d) && shared(d)));
        let k = size(&mut summed.iter());
        // An expert multiplies the rows that were sent to it.
        let ragged = |ds: &[DimId]| ds.iter().any(|d| self.g.dims.is_ragged(*d));
        let share = self.routed(node).unwrap_or(1.0);
        let (m, n, k) = match (ragged(summed), ragged(&a), ragged(&b)) {
            (true, _, _) => (m, n, k * share),
            (_, true, _) => (m * share, n, k),
            (_, _, true) => (m, n * share, k),
            _ => (m, n, k),
        };
        Kind::Product { m, n, k, batch }
    }

    /// Share of the tokens that an expert of a product gets.
    fn routed(&self, node: &Node) -> Option<f64> {
        let mut dims = self.g.dims_of(node.args[0]).iter();
        let (d, routed) = dims.find_map(|d| Some((*d, self.g.dims.get(*d).routed?)))?;
        Some(routed.rows() / self.size(d).max(1.0))
    }

    /// Keys and values that go around the ranks that hold the sequence; with their gradients, `times` 2.
    fn ring(&self, attn: &Attention, node: &Node, times: f64, to: &mut Vec<Item>) {
        let Some(ring) = &attn.ring else { return };
        let bytes = times * (self.bytes(node.args[1]) + self.bytes(node.args[2]));
        to.push(Item { kind: self.sent(Collective::Ring, &ring.axes, bytes), count: 1.0 });
    }

    /// A state-space model in chunks: products inside and between chunks, which run as attention does, then
    /// operands, results and the states of chunks, in 32 bits. Ranks that share sequences trade tokens
    /// for heads before and after it.
    fn states(&self, ssm: &Ssm, node: &Node, times: f64, to: &mut Vec<Item>) {
        let mut put = |kind: Kind| to.push(Item { kind, count: 1.0 });
        let (tokens, groups) = (self.size(ssm.tok), self.size(ssm.g));
        let (heads, p, n) = (groups * self.size(ssm.r), self.size(ssm.p), self.size(ssm.n));
        let flops = times
            * tokens
            * if ssm.cached { 6.0 * heads * p * n } else { Ssm::flops(groups, heads, p, n) };
        // Two products per head and token of `width`, as attention over so many tokens has.
        let context = flops / (4.0 * tokens * heads * p).max(1.0);
        put(Kind::Attention { tokens, heads, width: p, context, backward: false });
        let operands: f64 = node.args.iter().chain(&node.outs).map(|v| self.bytes(*v)).sum();
        let chunks = if ssm.cached { tokens } else { tokens / Ssm::CHUNK };
        // Written, passed on and read again.
        let moved = operands + times * 4.0 * 4.0 * chunks * heads * p * n;
        put(Kind::Memory { bytes: moved * if ssm.cached { 1.0 } else { STATE_PASSES } });
        if let Some(ring) = &ssm.ring {
            put(self.sent(Collective::AllToAll, &ring.axes, operands));
        }
    }

    /// An item for each window that layers have in turn, with the share of layers that have it.
    fn attention(&self, attn: &Attention, backward: bool) -> Vec<Item> {
        let windows = attn.window.items();
        let mut items: Vec<Item> = vec![];
        for window in windows {
            let kind = Kind::Attention {
                tokens: self.size(attn.tok),
                heads: self.size(attn.q),
                // Products of keys and of values: their mean size.
                width: (self.size(attn.hd) + self.size(attn.vd)) / 2.0,
                context: seen(self.sizes.context, *window),
                backward,
            };
            let share = 1.0 / windows.len() as f64;
            match items.iter_mut().find(|i| i.kind == kind) {
                Some(item) => item.count += share,
                None => items.push(Item { kind, count: share }),
            }
        }
        items
    }
}
