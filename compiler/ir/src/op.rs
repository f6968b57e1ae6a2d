//! The op table: what a node may compute.
//!
//! Each op is one row: its shape rule ([`crate::infer`]), its layout rule (`passes::shard`), its
//! gradient (`passes::grad`), its cost ([`crate::cost`]), its reference arm (`nrl-interp`) and its
//! kernel (`nrl-cpu`). All of them match on [`Op`] without a wildcard, so a new row cannot be
//! forgotten.

use serde::{Deserialize, Serialize};

use crate::cycle::Cycle;
use crate::dim::DimId;
use crate::graph::{Block, ParamId};
use crate::kernel::Kernel;
use crate::types::DType;

/// Pointwise function of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnaryOp {
    Neg,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    Abs,
    /// -1, 0 or 1.
    Sign,
    /// 1 where `x == 0`, else 0.
    Not,
    /// 1 where x is neither NaN nor infinite, else 0.
    IsFinite,
}

/// Pointwise function of two operands. Comparisons give 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    /// NaN if either is NaN. The gradient goes to the smaller operand, to the left one on ties.
    Min,
    /// NaN if either is NaN. The gradient goes to the larger operand, to the left one on ties.
    Max,
    /// `x ^ y` for `x >= 0`.
    Pow,
    Lt,
    Le,
    Eq,
    And,
    Or,
}

/// How a reduction combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    Sum,
    Max,
}

/// What one node computes. `args` are named in each row's comment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    // -- leaves ---------------------------------------------------------------------------------
    /// `()`: a value the host binds, by index into [`crate::Graph::inputs`].
    Input { index: usize },
    /// `()`: the weights of a parameter; in a scan body those of the current iteration.
    Use { param: ParamId },
    /// `()`: a scalar.
    Const { value: f64 },
    // -- pointwise ------------------------------------------------------------------------------
    /// `(x)`.
    Unary { op: UnaryOp },
    /// `(a, b)`: one operand's dims contain the other's.
    Binary { op: BinaryOp },
    /// `(cond, a, b)`: `a` where `cond != 0`, else `b`. The side not taken gets a zero gradient,
    /// whatever it holds.
    Select,
    /// `(x)`: the same numbers, no gradient.
    StopGrad,
    /// `(x)`: rounds to another element type and back where the engine computes in f32.
    Cast { to: DType },
    /// `(x)`: repeats `x` over the dims it lacks.
    Broadcast { dims: Vec<DimId> },
    // -- reductions and contractions -------------------------------------------------------------
    /// `(x)`: combines over the dims in `over`. Over a ragged dim alone the result is per segment
    /// (`[tok] -> [seq]`); list the owners too to go further (`over: [tok, seq]`).
    Reduce { op: ReduceOp, over: Vec<DimId> },
    /// `(a, b)`: sums the product over `over`; other shared dims are batch.
    Contract { over: Vec<DimId> },
    // -- indexing -------------------------------------------------------------------------------
    /// `(x, ids: id(dim))`: `x[ids]`, removes `dim` and adds the dims of `ids`. If `dim` is split,
    /// ids are still global, and rows that another rank has are zero here (a sum is owed).
    Index { dim: DimId },
    /// `(ids: id(dim), y)`: adds rows of `y` into zeros of the result's dims; the gradient of `Index`.
    /// If `dim` is split, rows that another rank has are left out.
    ScatterAdd { dim: DimId, dims: Vec<DimId> },
    /// `(x)`: 1 at the `k` largest of `dim`, else 0; of equal ones the first counts. With `groups`,
    /// only among the items of some of them.
    TopK { dim: DimId, k: usize, groups: Option<Groups> },
    /// `(x)`: `from` becomes `to`. If `to` is shorter, its items are those of `from` from `at` on;
    /// if it is longer, those of `from` stand at `at` among zeros. Sizes alone decide which.
    Fit { from: DimId, to: DimId, at: usize },
    // -- sequences ------------------------------------------------------------------------------
    /// `(x[dim])`: the item after each in its segment, `fill` at the last.
    Next { dim: DimId, fill: f64 },
    /// `()`: the place of each token in its sequence, from 0, as an index into `dim`.
    Position { tok: DimId, dim: DimId },
    /// `(u[dim], c[dim])`: `a = u + c * (the a before)` from the first item of each segment to its
    /// last, or with `back` from the last to the first; the `a` before the start is 0.
    Recur { dim: DimId, back: bool },
    /// `(x)`: rotary embedding over `hd` in the half-split form of GPT-NeoX and Hugging Face
    /// (`x1 = x[..hd/2]`, `x2 = x[hd/2..]`) at the position of each token in its sequence.
    /// `inverse` turns the other way: the gradient. With fewer frequencies than `hd/2` only the first
    /// `2 * inv_freq` numbers of a head are turned. Layers of a loop may have frequencies in turn.
    Rope { tok: DimId, hd: DimId, inv_freq: Cycle<Vec<f64>>, scale: f64, inverse: bool },
    /// `(q[tok,q,hd], k[tok,kv,hd], v[tok,kv,vd], sink[q]?) -> (o[tok,q,vd], lse[tok,q])`: causal softmax
    /// attention within each sequence. Query head `i` reads key/value head `i / (q/kv)`. `exp(sink)`
    /// stands in the sum of each row, and so in `lse`, without a value of its own (gpt-oss 2025).
    Attention { attn: Attention },
    /// `(q, k, v, o, lse, do) -> (dq, dk, dv)`.
    AttentionGrad { attn: Attention },
    /// `(q, k, v, sink?) -> o`: the same with keys and values of earlier tokens taken from, and these
    /// appended to, the cache of each sequence; derived from `Attention`, never written.
    AttentionCached { attn: Attention },
    /// `(x[tok, c..], w[c.., taps]) -> y[tok, c..]`: causal depthwise convolution within each
    /// sequence; the last tap is that of the token itself, tokens before the first are 0.
    Conv { conv: Conv },
    /// `(x, w, dy) -> (dx, dw)`.
    ConvGrad { conv: Conv },
    /// `(u[tok,g,r,p], a[tok,g,r], b[tok,g,n], c[tok,g,n]) -> y[tok,g,r,p]`: per head a state of
    /// `[p, n]`, `s = exp(a) * (the s before) + u b'` and `y = s c`, from 0 at the first token of each
    /// sequence (Dao and Gu 2024, "Transformers are SSMs"; `a <= 0` there is a step times the decay).
    Ssm { ssm: Ssm },
    /// `(u, a, b, c, dy) -> (du, da, db, dc)`.
    SsmGrad { ssm: Ssm },
    /// `(logits[r.., vocab], labels: id(vocab)[r..], inv_temperature[]) -> (lp[r..], lse[r..], entropy[r..])`
    /// where `lp = log_softmax(logits * inv_temperature)[label]`. Ids from `valid` on have no
    /// probability.
    LogProb { vocab: DimId, valid: usize, axes: Vec<String> },
    /// `(logits, labels, inv_temperature, lse, entropy, d_lp, d_entropy) -> d_logits`.
    LogProbGrad { vocab: DimId, valid: usize, axes: Vec<String> },
    /// `(h[r.., d], w[vocab, d], labels, inv_temperature) -> (lp, lse, entropy)`: `LogProb` of
    /// `h @ w` without ever storing the logits. `axes` split `vocab` (max, then sum are owed).
    LogProbHead { vocab: DimId, d: DimId, valid: usize, axes: Vec<String> },
    /// `(h, w, labels, inv_temperature, lse, entropy, d_lp, d_entropy) -> (dh, dw)`; `dh` is owed a
    /// sum over `axes`.
    LogProbHeadGrad { vocab: DimId, d: DimId, valid: usize, axes: Vec<String> },
    // -- loops ----------------------------------------------------------------------------------
    /// `(carries.., stacks..) -> (carries.., new stacks..)`: runs `body` once per layer of `group`.
    /// The body's params are the carries, then one slice of each stack; its results are the
    /// carries, then one slice of each new stack. It may read values from outside. A slice belongs
    /// to its layer, whichever way the scan runs.
    Scan { scan: Box<Scan> },
    // -- sinks ----------------------------------------------------------------------------------
    /// `(g) -> ()`: adds to the gradient of a parameter; in a scan body that of the iteration.
    Accumulate { param: ParamId },
    // -- between ranks --------------------------------------------------------------------------
    /// `(x)`: combined over all ranks along `axes`.
    AllReduce { op: ReduceOp, axes: Vec<String>, reason: String },
    /// `(x)`: the shards of `dim` along `axes` put together as `full`, without the padding.
    AllGather { dim: DimId, full: DimId, axes: Vec<String>, reason: String },
    /// `(x)`: summed over `axes`, each rank keeping its shard `part` of `dim`, padded with zeros.
    ReduceScatter { dim: DimId, part: DimId, axes: Vec<String>, reason: String },
    /// `(x)`: items of `dim` go to the ranks along `axes` that have them, as `to`, or come back from
    /// there: routed tokens and the experts that they are for.
    AllToAll { dim: DimId, to: DimId, axes: Vec<String>, reason: String },
    /// `()`: the weights of a parameter whose storage is cut flat over `axes` (zero3), gathered.
    GatherParam { param: ParamId, axes: Vec<String>, reason: String },
    /// `(g) -> ()`: sums the gradient over `axes` and keeps the flat shard (zero3).
    ScatterGrad { param: ParamId, axes: Vec<String>, reason: String },
    // -- after `fuse` ---------------------------------------------------------------------------
    /// `(inputs..) -> (outputs..)`: a group of pointwise ops and reductions as one kernel.
    Fused { kernel: Box<Kernel> },
}

/// Attributes shared by the attention rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    pub tok: DimId,
    pub q: DimId,
    pub kv: DimId,
    /// Size of queries and keys.
    pub hd: DimId,
    /// Size of values and results; that of queries and keys as a rule.
    pub vd: DimId,
    /// Multiplies `q . k`; `1 / sqrt(head_dim)` as a rule.
    pub scale: f64,
    /// Each token sees itself and the `window - 1` tokens before it; all of them if `None`. Layers of a
    /// loop may differ.
    pub window: Cycle<Option<usize>>,
    /// The ranks over which the tokens of a sequence are cut: their keys and values go around.
    pub ring: Option<Ring>,
}

/// Attributes of a convolution over tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv {
    pub tok: DimId,
    pub taps: DimId,
    /// Goes on from the last tokens of each sequence in a cache; derived, never written.
    pub cached: bool,
    /// The ranks over which the tokens of a sequence are cut.
    pub ring: Option<Ring>,
}

/// Attributes of the rows of state-space models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ssm {
    pub tok: DimId,
    /// Groups of heads that share `b` and `c`, and the heads of one.
    pub g: DimId,
    pub r: DimId,
    /// Size of a head, and of the state of each of its numbers.
    pub p: DimId,
    pub n: DimId,
    /// Goes on from the state of each sequence in a cache; derived, never written.
    pub cached: bool,
    /// The ranks over which the tokens of a sequence are cut; each runs its share of the heads over
    /// all tokens.
    pub ring: Option<Ring>,
}

impl Ssm {
    /// Tokens that kernels take at once, as products of matrices (`chunk_size` of Mamba-2 models and
    /// the default of Megatron-Core).
    pub const CHUNK: f64 = 128.0;

    /// Dims of the four operands, in order.
    pub fn operands(&self) -> [Vec<DimId>; 4] {
        [
            vec![self.tok, self.g, self.r, self.p],
            vec![self.tok, self.g, self.r],
            vec![self.tok, self.g, self.n],
            vec![self.tok, self.g, self.n],
        ]
    }

    /// FLOPs per token of the forward pass in chunks, for `heads` heads in `groups` of size `p` and
    /// `n`: scores and their product with `u` inside a chunk, the state of each chunk, and what it
    /// adds to the next.
    pub fn flops(groups: f64, heads: f64, p: f64, n: f64) -> f64 {
        2.0 * (groups * Ssm::CHUNK * n + heads * Ssm::CHUNK * p + 2.0 * heads * p * n)
    }
}

/// Ranks that hold parts of the same sequences, each as much of the causal square as any other
/// (Liu et al. 2023; in zigzag order, so that the work is even).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    pub axes: Vec<String>,
    pub ranks: usize,
}

/// Equal runs of a dim's items of which only the best may be chosen from (DeepSeek-V3 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many are chosen from.
    pub keep: usize,
    /// A group counts as the sum of its `by` largest items.
    pub by: usize,
}

impl Groups {
    /// The items of `row` that are not in a chosen group; of equal groups the first counts.
    pub fn left_out(&self, row: &[f64]) -> Vec<bool> {
        let each = row.len() / self.count.max(1);
        let worth = |g: usize| {
            let mut items = row[g * each..(g + 1) * each].to_vec();
            items.sort_by(|a, b| b.total_cmp(a));
            items.iter().take(self.by).sum::<f64>()
        };
        let worths: Vec<f64> = (0..self.count).map(worth).collect();
        let mut order: Vec<usize> = (0..self.count).collect();
        order.sort_by(|a, b| worths[*b].total_cmp(&worths[*a]).then(a.cmp(b)));
        let chosen = &order[..self.keep.min(self.count)];
        (0..row.len()).map(|i| !chosen.contains(&(i / each.max(1)))).collect()
    }
}

/// A loop over layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// Name of the `repeat` whose parameters the body uses.
    pub group: String,
    /// Layers `first..first + count`.
    pub first: usize,
    pub count: usize,
    /// Runs from the last layer to the first.
    pub reverse: bool,
    /// How many of the args and results are carries; the rest are stacks.
    pub carries: usize,
    pub body: Block,
}

impl Op {
    /// Name in the text form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Use { .. } => "use",
            Op::Const { .. } => "const",
            Op::Unary { op } => op.name(),
            Op::Binary { op } => op.name(),
            Op::Select => "select",
            Op::StopGrad => "stop_grad",
            Op::Cast { .. } => "cast",
            Op::Broadcast { .. } => "broadcast",
            Op::Reduce { op: ReduceOp::Sum, .. } => "sum",
            Op::Reduce { op: ReduceOp::Max, .. } => "max_over",
            Op::Contract { .. } => "contract",
            Op::Index { .. } => "index",
            Op::ScatterAdd { .. } => "scatter_add",
            Op::TopK { .. } => "top_k",
            Op::Fit { .. } => "fit",
            Op::Position { .. } => "position",
            Op::Next { .. } => "next",
            Op::Recur { .. } => "recur",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } => "attention",
            Op::AttentionGrad { .. } => "attention_grad",
            Op::AttentionCached { .. } => "attention_cached",
            Op::Conv { .. } => "conv",
            Op::ConvGrad { .. } => "conv_grad",
            Op::Ssm { .. } => "ssm",
            Op::SsmGrad { .. } => "ssm_grad",
            Op::LogProb { .. } => "log_prob",
            Op::LogProbGrad { .. } => "log_prob_grad",
            Op::LogProbHead { .. } => "log_prob_head",
            Op::LogProbHeadGrad { .. } => "log_prob_head_grad",
            Op::Scan { .. } => "scan",
            Op::Accumulate { .. } => "accumulate",
            Op::AllReduce { .. } => "all_reduce",
            Op::AllGather { .. } => "all_gather",
            Op::ReduceScatter { .. } => "reduce_scatter",
            Op::AllToAll { .. } => "all_to_all",
            Op::GatherParam { .. } => "gather_param",
            Op::ScatterGrad { .. } => "scatter_grad",
            Op::Fused { .. } => "fused",
        }
    }

    /// Pointwise over all its operands' elements (may be fused, commutes with `Index` over `tok`).
    pub fn is_pointwise(&self) -> bool {
        matches!(
            self,
            Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::StopGrad | Op::Cast { .. }
        )
    }

    /// Has an effect besides its results, so that it is never dead.
    pub fn is_sink(&self) -> bool {
        matches!(self, Op::Accumulate { .. } | Op::ScatterGrad { .. })
    }
}

impl UnaryOp {
    pub const ALL: [UnaryOp; 11] = [
        UnaryOp::Neg,
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Sqrt,
        UnaryOp::Rsqrt,
        UnaryOp::Tanh,
        UnaryOp::Sigmoid,
        UnaryOp::Abs,
        UnaryOp::Sign,
        UnaryOp::Not,
        UnaryOp::IsFinite,
    ];

    pub fn name(self) -> &'static str {
        match self {
            UnaryOp::Neg => "neg",
            UnaryOp::Exp => "exp",
            UnaryOp::Log => "log",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::Rsqrt => "rsqrt",
            UnaryOp::Tanh => "tanh",
            UnaryOp::Sigmoid => "sigmoid",
            UnaryOp::Abs => "abs",
            UnaryOp::Sign => "sign",
            UnaryOp::Not => "not",
            UnaryOp::IsFinite => "is_finite",
        }
    }

    /// The function in f64: the reference every engine is judged by.
    pub fn eval(self, x: f64) -> f64 {
        match self {
            UnaryOp::Neg => -x,
            UnaryOp::Exp => x.exp(),
            UnaryOp::Log => x.ln(),
            UnaryOp::Sqrt => x.sqrt(),
            UnaryOp::Rsqrt => 1.0 / x.sqrt(),
            UnaryOp::Tanh => x.tanh(),
            UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            UnaryOp::Abs => x.abs(),
            UnaryOp::Sign if x > 0.0 => 1.0,
            UnaryOp::Sign if x < 0.0 => -1.0,
            UnaryOp::Sign => x * 0.0,
            UnaryOp::Not => f64::from(x == 0.0),
            UnaryOp::IsFinite => f64::from(x.is_finite()),
        }
    }
}

impl BinaryOp {
    pub const ALL: [BinaryOp; 12] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::Pow,
        BinaryOp::Lt,
        BinaryOp::Le,
        BinaryOp::Eq,
        BinaryOp::And,
        BinaryOp::Or,
    ];

    pub fn name(self) -> &'static str {
        match self {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "sub",
            BinaryOp::Mul => "mul",
            BinaryOp::Div => "div",
            BinaryOp::Min => "min",
            BinaryOp::Max => "max",
            BinaryOp::Pow => "pow",
            BinaryOp::Lt => "lt",
            BinaryOp::Le => "le",
            BinaryOp::Eq => "eq",
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
        }
    }

    /// The function in f64: the reference every engine is judged by.
    pub fn eval(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div => a / b,
            BinaryOp::Min if a.is_nan() || b.is_nan() => f64::NAN,
            BinaryOp::Min => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            BinaryOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
            BinaryOp::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
            BinaryOp::Pow => a.powf(b),
            BinaryOp::Lt => f64::from(a < b),
            BinaryOp::Le => f64::from(a <= b),
            BinaryOp::Eq => f64::from(a == b),
            BinaryOp::And => f64::from(a != 0.0 && b != 0.0),
            BinaryOp::Or => f64::from(a != 0.0 || b != 0.0),
        }
    }
}
