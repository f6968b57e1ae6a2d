//! Low-rank adapters as frameworks compute them: beside the frozen product, not inside its weights.
//!
//! In: the graph of a plan, where `weights + b a` is a value and its gradient another. Out: which of its nodes a framework does not
//! run (sums and gradients as large as the weights) and which it runs over tokens instead (`x a`, then `b`). The result is the
//! same; `x (w + b a) = x w + (x a) b` (Hu et al. 2021, section 4.1).

use std::collections::BTreeSet;

use nrl_ir::{Block, DimId, Graph, Node, Op, ValueId};

use crate::work::{Item, Kind};

/// Nodes that adapters change, by the values that they make.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    /// Not run.
    left_out: BTreeSet<ValueId>,
    /// Products of an adapter with another, or with a gradient of weights.
    low_rank: BTreeSet<ValueId>,
}

impl Adapters {
    /// The adapters of a graph; none in one without products of weights.
    pub fn of(g: &Graph) -> Adapters {
        let mut a = Adapters::default();
        let mut wanted = BTreeSet::new();
        g.body.walk(&mut |n| {
            if matches!(n.op, Op::Contract { .. }) && !over_tokens(g, n) {
                a.low_rank.extend(&n.outs);
                wanted.extend(&n.args);
            }
        });
        if !a.low_rank.is_empty() {
            a.block(g, &g.body, &mut wanted);
        }
        a
    }

    fn block(&mut self, g: &Graph, block: &Block, wanted: &mut BTreeSet<ValueId>) {
        // Backwards: what only a product of weights wants is not made.
        for node in block.nodes.iter().rev() {
            if let Op::Scan { scan } = &node.op {
                self.block(g, &scan.body, wanted);
            }
            let asked = node.outs.iter().any(|v| wanted.contains(v));
            match &node.op {
                Op::Contract { over } if asked && ragged(g, over) => {
                    self.left_out.extend(&node.outs);
                }
                op if asked && plain(op) && !over_tokens(g, node) => {
                    self.left_out.extend(&node.outs);
                    wanted.extend(&node.args);
                }
                _ => {}
            }
        }
        // Forwards: sums of weights and products of weights.
        for node in &block.nodes {
            let made = node.args.iter().any(|v| self.low_rank.contains(v));
            if made && plain(&node.op) && !over_tokens(g, node) {
                self.left_out.extend(&node.outs);
            }
        }
    }

    /// Is the node not run?
    pub fn leave_out(&self, node: &Node) -> bool {
        node.outs.iter().any(|v| self.left_out.contains(v))
    }

    /// Is the node a product of an adapter?
    pub fn low_rank(&self, node: &Node) -> bool {
        node.outs.iter().any(|v| self.low_rank.contains(v))
    }
}

/// What takes the place of a product `[m, k] [k, n]` of weights, `batch` of them, where `tokens` go through each. A sum over the
/// rank is that of the forward pass.
pub fn over(tokens: f64, m: f64, n: f64, k: f64, batch: f64) -> Vec<Item> {
    let product = |m: f64, n: f64, k: f64| Kind::Product { m, n, k, batch };
    let kinds = if k <= m.min(n) {
        // Down and up, and the sum with what the frozen weights make.
        let sum = Kind::Memory { bytes: batch * 3.0 * tokens * (m + n) };
        vec![product(tokens, k, m), product(tokens, n, k), sum]
    } else {
        // Gradients of one adapter and of what it read.
        let (rank, wide) = (m.min(n), m.max(n));
        vec![product(wide, rank, tokens), product(tokens, rank, wide)]
    };
    kinds.into_iter().map(|kind| Item { kind, count: 1.0 }).collect()
}

fn plain(op: &Op) -> bool {
    op.is_pointwise() || matches!(op, Op::Fused { .. })
}

fn ragged(g: &Graph, dims: &[DimId]) -> bool {
    dims.iter().any(|d| g.dims.is_ragged(*d))
}

fn over_tokens(g: &Graph, node: &Node) -> bool {
    node.args.iter().chain(&node.outs).any(|v| ragged(g, g.dims_of(*v)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 16 beside a product of 8192 by 1024 for 4096 tokens: 2 T r (in + out) forward, twice that backward.
    #[test]
    fn adapters_cost_what_their_rank_says() {
        let flops = |items: Vec<Item>| items.iter().map(Item::flops).sum::<f64>();
        let (t, r) = (4096.0, 16.0);
        let forward = 2.0 * t * r * (8192.0 + 1024.0);
        assert_eq!(flops(over(t, 8192.0, 1024.0, r, 1.0)), forward);
        let backward =
            flops(over(t, 8192.0, r, 1024.0, 1.0)) + flops(over(t, r, 1024.0, 8192.0, 1.0));
        assert_eq!(backward, 2.0 * forward);
    }
}
