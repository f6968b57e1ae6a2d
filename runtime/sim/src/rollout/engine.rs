//! What a serving engine reaches on a machine, and what a model costs on one of its ranks.
//!
//! In: a machine and the shares of its data sheet that an engine reaches; dims of a model. Out: [`Speed`] and
//! [`Shard`] for the simulation. Shares and latencies are data, one set per version of a stack.

use serde::{Deserialize, Serialize};

use super::{Shard, Speed};
use crate::machine::Machine;

/// Shares of a data sheet, and latencies in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Of the memory's bytes/s: weights, weights of experts, keys and values.
    pub weights: f64,
    pub experts: f64,
    pub kv: f64,
    /// Of the FLOP/s.
    pub product: f64,
    pub expert_product: f64,
    /// Of the links' bytes/s in an all-reduce.
    pub link: f64,
    pub network: f64,
    /// Seconds of an all-reduce of no bytes: inside a domain per doubling of ranks, and per domain that a ring
    /// goes on to.
    pub link_latency: f64,
    pub network_latency: f64,
    /// Kernels of a layer; routing of a layer with experts.
    pub layer: f64,
    pub expert_layer: f64,
    /// As many times longer are these without captured graphs.
    pub eager: f64,
    /// The engine's own work in a step, and for each sequence.
    pub step: f64,
    pub sequence: f64,
    /// Around a call that generates a batch: waking up, collecting texts.
    pub call: f64,
    /// Bytes of a device's part that are neither weights nor keys and values.
    pub reserve: f64,
}

impl Default for Engine {
    /// vLLM as NeMo RL 0.7 runs it: fitted on the steps that its documentation publishes.
    fn default() -> Engine {
        Engine {
            weights: 0.838,
            experts: 0.64,
            kv: 0.9,
            product: 0.5,
            expert_product: 0.25,
            link: 0.5,
            network: 0.5,
            link_latency: 4.92e-6,
            network_latency: 35.8e-6,
            layer: 22.4e-6,
            expert_layer: 22.7e-6,
            eager: 5.0,
            step: 2.12e-3,
            sequence: 48.9e-6,
            call: 2.55,
            reserve: 3e9,
        }
    }
}

impl Engine {
    /// What this engine does on `machine` with replicas of `tp` ranks, on hosts that take `host` times as
    /// long as those of the calibration.
    pub fn speed(&self, machine: &Machine, tp: usize, host: f64, graphs: bool) -> Speed {
        let domain = machine.per_node.max(1);
        let doublings = (tp.min(domain).max(1) as f64).log2();
        let near = self.link_latency * doublings;
        let reduction = if tp <= domain {
            (near, machine.link * self.link)
        } else {
            // Inside, across over the links of all ranks of a node, inside again.
            let across = machine.network * self.network * domain as f64;
            let inside = machine.link * self.link;
            let others = tp.div_ceil(domain) as f64 - 1.0;
            let latency = near + self.network_latency * others;
            (latency, 1.0 / (1.0 / across + 1.0 / inside))
        };
        let launches = if graphs { 1.0 } else { self.eager * host };
        Speed {
            weights: machine.bandwidth * self.weights,
            experts: machine.bandwidth * self.experts,
            kv: machine.bandwidth * self.kv,
            flops: machine.flops * self.product,
            expert_flops: machine.flops * self.expert_product,
            reduction,
            layer: self.layer * launches,
            expert_layer: self.expert_layer * launches,
            step: self.step * host,
            sequence: self.sequence * host,
        }
    }

    /// Tokens that a replica keeps, where an engine may fill `share` of a device.
    pub fn pool(&self, machine: &Machine, share: f64, shard: &Shard) -> f64 {
        let held = shard.held_bytes + self.reserve;
        (machine.memory * share - held).max(0.0) / shard.kv_bytes.max(1.0)
    }
}

/// Dims of a model as far as generation sees them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dims {
    pub layers: f64,
    pub hidden: f64,
    /// Weights, embedding and head included.
    pub params: f64,
    /// Of these, in the embedding: looked up, not read. None where the head shares it.
    pub embedding: f64,
    /// Of these, in experts that not every token visits; their number in a layer, and how many a token visits.
    pub expert_params: f64,
    pub experts: Option<(f64, f64)>,
    /// Layers with experts.
    pub expert_layers: f64,
    /// Layers that keep keys and values.
    pub attention_layers: f64,
    /// Numbers that such a layer keeps of a token, and over how many ranks they can be cut: heads of keys and values.
    pub kv_width: f64,
    pub kv_heads: usize,
    /// Numbers of the state of a sequence in all state-space mixers, and over how many ranks it can be cut.
    pub state: f64,
    pub state_groups: usize,
    /// All-reduces of a layer under tensor parallelism.
    pub reductions: f64,
}

impl Dims {
    /// A rank of `tp`, with `width` bytes per weight and `kv` per kept number.
    pub fn shard(&self, tp: usize, width: f64, kv: f64) -> Shard {
        let ranks = tp.max(1) as f64;
        let every = self.params - self.expert_params - self.embedding;
        let visited = self.experts.map_or(0.0, |(n, k)| self.expert_params * k / n);
        let cut = tp.clamp(1, self.kv_heads.max(1)) as f64;
        Shard {
            weight_bytes: every * width / ranks,
            expert_bytes: self.expert_params * width / ranks,
            held_bytes: self.params * width / ranks,
            experts: self.experts,
            flops: 2.0 * every / ranks,
            expert_flops: 2.0 * visited / ranks,
            kv_bytes: self.attention_layers * self.kv_width * kv / cut,
            // In 32 bits, as serving engines keep it.
            state_bytes: 4.0 * self.state / tp.clamp(1, self.state_groups.max(1)) as f64,
            layers: self.layers,
            expert_layers: self.expert_layers,
            reductions: self.layers * self.reductions,
            reduction_bytes: 2.0 * self.hidden,
            tp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama-3.1-70B over four ranks: 128 KiB of keys and values per token and layer group, 35.3 GB of weights.
    #[test]
    fn dims_of_a_dense_model_become_bytes_of_a_rank() {
        let dims = Dims {
            layers: 80.0,
            hidden: 8192.0,
            params: 70.554e9,
            embedding: 128_256.0 * 8192.0,
            attention_layers: 80.0,
            kv_width: 2.0 * 8.0 * 128.0,
            kv_heads: 8,
            reductions: 2.0,
            ..Dims::default()
        };
        let s = dims.shard(4, 2.0, 2.0);
        assert_eq!(s.kv_bytes, 81_920.0);
        assert!((s.held_bytes / 35.28e9 - 1.0).abs() < 1e-3);
        assert_eq!(s.reductions, 160.0);
        // Eight heads over sixteen ranks: each is kept twice.
        assert_eq!(dims.shard(16, 2.0, 2.0).kv_bytes, 40_960.0);
    }

    /// Qwen3-30B-A3B: 8 of 128 experts, so a token reads a sixteenth of them.
    #[test]
    fn a_token_computes_the_experts_it_visits() {
        let dims = Dims {
            params: 30.532e9,
            expert_params: 28.991e9,
            experts: Some((128.0, 8.0)),
            ..Dims::default()
        };
        let s = dims.shard(1, 2.0, 2.0);
        assert!((s.expert_flops / (2.0 * 1.812e9) - 1.0).abs() < 1e-3);
    }
}
