//! FLOPs and bytes of ops, at given sizes of the ragged dims.

use serde::{Deserialize, Serialize};

use crate::dim::DimId;
use crate::graph::{Block, Graph, Node};
use crate::op::Op;
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

/// Number of elements of a value of type `ty` when dim `d` has `size(d)` items.
pub fn elements(ty: &Type, size: &dyn Fn(DimId) -> f64) -> f64 {
    ty.dims.iter().map(|d| size(*d)).product::<f64>() * ty.stack.unwrap_or(1) as f64
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
    let count = |v| elements(g.ty(v), size);
    let moved: f64 = node.args.iter().chain(&node.outs).map(|v| 4.0 * count(*v)).sum();
    let widest = node.args.iter().chain(&node.outs).map(|v| count(*v)).fold(0.0, f64::max);
    let dims = |ds: &[DimId]| ds.iter().map(|d| size(*d)).product::<f64>();
    let mut cost = Cost { flops: 0.0, bytes: moved, comm_bytes: 0.0 };
    match &node.op {
        Op::Input { .. } | Op::Use { .. } | Op::Const { .. } | Op::StopGrad => cost.bytes = 0.0,
        Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::Reduce { .. } | Op::Cast { .. } => {
            cost.flops = widest
        }
        Op::Broadcast { .. } | Op::Index { .. } => {}
        Op::ScatterAdd { .. } | Op::Accumulate { .. } => cost.flops = widest,
        Op::Rope { .. } => cost.flops = 3.0 * widest,
        Op::TopK { .. } | Op::Next { .. } => cost.flops = widest,
        Op::Recur { .. } => cost.flops = 2.0 * widest,
        Op::Contract { over } => {
            cost.flops = 2.0 * node.outs.iter().map(|v| count(*v)).sum::<f64>() * dims(over);
        }
        // Causal: half of the square. The mean context is half the longest segment's bound.
        Op::Attention { attn } => {
            cost.flops = 2.0 * dims(&[attn.tok, attn.q, attn.hd]) * context(g, attn.tok, size)
        }
        Op::AttentionGrad { attn } => {
            cost.flops = 5.0 * dims(&[attn.tok, attn.q, attn.hd]) * context(g, attn.tok, size)
        }
        Op::AttentionCached { attn } => {
            cost.flops = 4.0 * dims(&[attn.tok, attn.q, attn.hd]) * context(g, attn.tok, size)
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
        Op::AllReduce { .. } | Op::AllGather { .. } | Op::ReduceScatter { .. } => {
            cost.comm_bytes = 4.0 * count(node.args[0]);
        }
        Op::GatherParam { param, .. } => cost.comm_bytes = 4.0 * dims(&g.param(*param).dims),
        Op::ScatterGrad { .. } => cost.comm_bytes = 4.0 * count(node.args[0]),
        Op::Fused { kernel } => {
            let space = dims(&kernel.rows) * dims(&kernel.lanes);
            cost.flops = space * kernel.code.len() as f64;
        }
    }
    cost
}

/// Mean number of keys a token sees: half the mean segment length, at least one.
fn context(g: &Graph, tok: DimId, size: &dyn Fn(DimId) -> f64) -> f64 {
    match g.dims.owner(tok) {
        Some(seq) => (size(tok) / size(seq).max(1.0)).max(1.0),
        None => size(tok),
    }
}
