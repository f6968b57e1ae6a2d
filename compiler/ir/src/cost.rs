//! FLOPs and bytes of ops, at given sizes of the ragged dims.

use serde::{Deserialize, Serialize};

use crate::dim::{DimId, Dims};
use crate::graph::{Block, Graph, Node};
use crate::op::{Attention, Op, Ssm};
use crate::types::Type;

/// Counted work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Multiply and add count as two.
    pub flops: f64,
    /// Bytes of operands read and results written.
    pub bytes: f64,
    /// Bytes handed to collectives.
    pub comm_bytes: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, o: Cost) {
        self.flops += o.flops;
        self.bytes += o.bytes;
        self.comm_bytes += o.comm_bytes;
    }
}

/// Number of elements of a value of type `ty` when dim `d` has `size(d)` items. Experts count where
/// the router chose them, see [`crate::dim::Routed`].
pub fn elements(dims: &Dims, ty: &Type, size: &dyn Fn(DimId) -> f64) -> f64 {
    product(dims, &ty.dims, size) * ty.stack.unwrap_or(1) as f64
}

/// Number of elements over `ds`.
pub fn product(dims: &Dims, ds: &[DimId], size: &dyn Fn(DimId) -> f64) -> f64 {
    let about_tokens = ds.iter().any(|d| dims.is_ragged(*d));
    let count = |d: &DimId| match dims.get(*d).routed {
        Some(routed) if about_tokens => routed.rows(),
        _ => size(*d),
    };
    ds.iter().map(count).product()
}

/// Work of a whole graph.
pub fn graph_cost(g: &Graph, size: &dyn Fn(DimId) -> f64) -> Cost {
    block_cost(g, &g.body, size)
}

fn block_cost(g: &Graph, block: &Block, size: &dyn Fn(DimId) -> f64) -> Cost {
    let mut total = Cost::default();
    for node in &block.nodes {
        total += node_cost(g, node, size);
    }
    total
}

/// Work of one node; a scan counts its body once per layer.
pub fn node_cost(g: &Graph, node: &Node, size: &dyn Fn(DimId) -> f64) -> Cost {
    let count = |v| elements(&g.dims, g.ty(v), size);
    let moved: f64 = node.args.iter().chain(&node.outs).map(|v| 4.0 * count(*v)).sum();
    let widest = node.args.iter().chain(&node.outs).map(|v| count(*v)).fold(0.0, f64::max);
    let dims = |ds: &[DimId]| ds.iter().map(|d| size(*d)).product::<f64>();
    let mut cost = Cost { flops: 0.0, bytes: moved, comm_bytes: 0.0 };
    match &node.op {
        Op::Input { .. }
        | Op::Use { .. }
        | Op::Const { .. }
        | Op::StopGrad
        | Op::Position { .. } => cost.bytes = 0.0,
        Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::Reduce { .. } | Op::Cast { .. } => {
            cost.flops = widest
        }
        Op::Broadcast { .. } | Op::Index { .. } | Op::Fit { .. } => {}
        Op::ScatterAdd { .. } | Op::Accumulate { .. } => cost.flops = widest,
        Op::Rope { .. } => cost.flops = 3.0 * widest,
        Op::TopK { .. } | Op::Next { .. } => cost.flops = widest,
        Op::Recur { .. } => cost.flops = 2.0 * widest,
        Op::Contract { over } => {
            let mut space = g.dims_of(node.outs[0]).to_vec();
            space.extend(over);
            cost.flops = 2.0 * product(&g.dims, &space, size);
        }
        // Per pair of a query and a key: a product of `hd` for the score, one of `vd` for the value.
        Op::Attention { attn } => {
            let pair = 2.0 * (size(attn.hd) + size(attn.vd));
            cost.flops = dims(&[attn.tok, attn.q]) * causal(g, attn, size) * pair;
            cost.comm_bytes = around(attn, 4.0 * (count(node.args[1]) + count(node.args[2])));
        }
        // The score again, its gradient, and those of values, queries and keys.
        Op::AttentionGrad { attn } => {
            let pair = 2.0 * (3.0 * size(attn.hd) + 2.0 * size(attn.vd));
            cost.flops = dims(&[attn.tok, attn.q]) * causal(g, attn, size) * pair;
            cost.comm_bytes = around(attn, 8.0 * (count(node.args[1]) + count(node.args[2])));
        }
        Op::AttentionCached { attn } => {
            let pair = 2.0 * (size(attn.hd) + size(attn.vd));
            let all = context(g, attn, size);
            let keys = over_layers(attn, |w| w.map_or(all, |w| all.min(w as f64)));
            cost.flops = dims(&[attn.tok, attn.q]) * keys * pair
        }
        Op::Conv { conv } => cost.flops = 2.0 * count(node.outs[0]) * size(conv.taps),
        Op::ConvGrad { conv } => cost.flops = 4.0 * count(node.outs[0]) * size(conv.taps),
        // The backward pass computes states again, and the gradients of both factors of each product.
        Op::Ssm { ssm } | Op::SsmGrad { ssm } => {
            let back = matches!(node.op, Op::SsmGrad { .. });
            let heads = dims(&[ssm.g, ssm.r]);
            let once = match ssm.cached {
                true => 6.0 * heads * dims(&[ssm.p, ssm.n]),
                false => Ssm::flops(size(ssm.g), heads, size(ssm.p), size(ssm.n)),
            };
            cost.flops = if back { 3.0 } else { 1.0 } * size(ssm.tok) * once;
            cost.comm_bytes = if ssm.ring.is_some() { moved } else { 0.0 };
        }
        Op::LogProb { .. } => cost.flops = 4.0 * widest,
        Op::LogProbGrad { .. } => cost.flops = 4.0 * widest,
        Op::LogProbHead { vocab, d, .. } => {
            cost.flops = 2.0 * count(node.outs[0]) * dims(&[*vocab, *d])
        }
        Op::LogProbHeadGrad { vocab, d, .. } => {
            cost.flops = 6.0 * count(node.args[2]) * dims(&[*vocab, *d])
        }
        Op::Scan { scan } => {
            cost = Cost::default();
            let once = block_cost(g, &scan.body, size);
            let n = scan.count as f64;
            cost += Cost {
                flops: once.flops * n,
                bytes: once.bytes * n,
                comm_bytes: once.comm_bytes * n,
            };
        }
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. } => {
            cost.comm_bytes = 4.0 * count(node.args[0]);
        }
        Op::GatherParam { param, .. } => cost.comm_bytes = 4.0 * dims(&g.param(*param).dims),
        Op::ScatterGrad { .. } => cost.comm_bytes = 4.0 * count(node.args[0]),
        Op::Fused { kernel } => {
            let mut space = kernel.rows.clone();
            space.extend(&kernel.lanes);
            cost.flops = product(&g.dims, &space, size) * kernel.code.len() as f64;
        }
    }
    cost
}

/// Bytes that go around a ring.
fn around(attn: &Attention, bytes: f64) -> f64 {
    if attn.ring.is_some() { bytes } else { 0.0 }
}

/// Mean number of keys a token of a whole sequence sees: half of them, of a window those inside it.
fn causal(g: &Graph, attn: &Attention, size: &dyn Fn(DimId) -> f64) -> f64 {
    let all = context(g, attn, size);
    over_layers(attn, |window| match window.map(|w| w as f64) {
        Some(w) if w < all => w * (1.0 - w / (2.0 * all)),
        _ => all / 2.0,
    })
}

/// Mean over the layers of a number that depends on their window.
fn over_layers(attn: &Attention, of: impl Fn(Option<usize>) -> f64) -> f64 {
    let windows = attn.window.items();
    windows.iter().map(|w| of(*w)).sum::<f64>() / windows.len() as f64
}

/// Mean number of tokens of a sequence, at least one; those of all ranks of a ring.
fn context(g: &Graph, attn: &Attention, size: &dyn Fn(DimId) -> f64) -> f64 {
    let ranks = attn.ring.as_ref().map_or(1, |r| r.ranks) as f64;
    match g.dims.owner(attn.tok) {
        Some(seq) => (ranks * size(attn.tok) / size(seq).max(1.0)).max(1.0),
        None => ranks * size(attn.tok),
    }
}
