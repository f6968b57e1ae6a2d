//! Seconds of one item of work on one machine: how far a software stack stays from the data sheet.
//!
//! In: an item, a machine, the [`Rates`] of a stack. Out: seconds, by what they are spent on. A rate is a share of
//! what the data sheet says, or a latency. Collectives: Thakur, Rabenseifner and Gropp 2005 (rings),
//! over the slowest link that a group crosses.

use serde::{Deserialize, Serialize};

use crate::machine::{Class, Group, Machine};
use crate::work::{Collective, Item, Kind};

/// Number type of products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    #[default]
    Bf16,
    Fp8,
    Fp4,
}

/// Seconds per parameter and rank of Adam on a host whose ranks all do so, gradients and weights there and back: what DeepSpeed takes on
/// 8 x H200 (stas00/ml-engineering, training performance).
pub const HOST_ADAM: f64 = 1.6e-9;

/// What a software stack reaches on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Share of the data sheet's FLOP/s that large products reach.
    pub product: f64,
    /// Size of the rows and columns of a product at which it takes twice as long as its FLOPs ask
    /// for, on a device of 312 TFLOP/s; in proportion on faster ones.
    pub half: f64,
    /// Share of the gain of 8 and 4 bits that products keep.
    pub low: f64,
    /// Share of the FLOP/s that attention reaches over a long context, on the half of the square that causal
    /// attention needs.
    pub attention: f64,
    /// Share of that which is left where keys and values go around a ring of ranks.
    pub ring: f64,
    /// Bytes that attention moves per score, forward; twice that backward. 0 where scores stay on the chip; where
    /// they do not, the whole square is computed.
    pub scores: f64,
    /// Share of the memory's bytes/s that passes over memory reach.
    pub memory: f64,
    /// Seconds that the host takes to launch what one item of work is.
    pub launch: f64,
    /// Seconds that each pass of a layer of experts waits for the host to read where rows went.
    pub routing: f64,
    /// Launches besides, per expert of a product of experts: 0 where one kernel does all of them.
    pub each: f64,
    /// Times the passes over logits move what a fused loss moves.
    pub logits: f64,
    /// Share of the links' bytes/s that collectives reach.
    pub link: f64,
    pub network: f64,
    /// A ring that leaves a node uses `members in the node ^ ports` of the node's network ports.
    pub ports: f64,
    /// Seconds of a collective of no bytes, per step of its ring.
    pub link_latency: f64,
    pub network_latency: f64,
    /// Share of the traffic of data parallelism that is hidden behind computation.
    pub overlap: f64,
    /// Share of the traffic of tensor parallelism that is hidden.
    pub tensor_overlap: f64,
    /// Seconds that a stage takes to hand over, besides the bytes.
    pub handover: f64,
    /// Times the optimizer's bytes cross the memory.
    pub update: f64,
    /// Seconds per parameter of an optimizer on the host; 0 where the device has it.
    pub offload: f64,
    /// Seconds of a step besides all of this.
    pub fixed: f64,
    /// Bytes of a number in products.
    pub operand: f64,
    /// What launches an item also computes it: launches add up with the rest.
    pub inline: bool,
    /// A factor on all of it: what a version of the stack, or a kind of model on it, takes more.
    pub factor: f64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            product: 0.75,
            half: 120.0,
            low: 0.6,
            attention: 0.45,
            ring: 1.0,
            scores: 0.0,
            memory: 0.6,
            launch: 10e-6,
            routing: 2e-4,
            each: 0.0,
            logits: 1.0,
            link: 0.65,
            network: 0.65,
            ports: 0.8,
            link_latency: 6e-6,
            network_latency: 20e-6,
            overlap: 0.6,
            tensor_overlap: 0.0,
            handover: 50e-6,
            update: 1.0,
            offload: 0.0,
            fixed: 0.01,
            operand: 2.0,
            inline: false,
            factor: 1.0,
        }
    }
}

/// Seconds by what they are spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    pub product: f64,
    pub attention: f64,
    pub memory: f64,
    /// The device waits for the host.
    pub launch: f64,
    /// Collectives inside a node, and across nodes.
    pub node: f64,
    pub network: f64,
}

impl Seconds {
    /// Each with its word in reports.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("products", self.product),
            ("attention", self.attention),
            ("passes over memory", self.memory),
            ("waiting for launches", self.launch),
            ("collectives in a node", self.node),
            ("collectives across nodes", self.network),
        ]
    }

    pub fn sum(&self) -> f64 {
        self.product + self.attention + self.memory + self.launch + self.node + self.network
    }

    /// Without collectives.
    pub fn compute(&self) -> f64 {
        self.product + self.attention + self.memory + self.launch
    }

    pub fn plus(self, o: Seconds, times: f64) -> Seconds {
        Seconds {
            product: self.product + times * o.product,
            attention: self.attention + times * o.attention,
            memory: self.memory + times * o.memory,
            launch: self.launch + times * o.launch,
            node: self.node + times * o.node,
            network: self.network + times * o.network,
        }
    }
}

/// A machine and the stack that runs on it.
#[derive(Clone, Copy)]
pub struct Speed<'a> {
    pub machine: &'a Machine,
    pub rates: &'a Rates,
    pub compute: Compute,
}

/// Attention takes twice as long as its FLOPs ask for over so many tokens, on a device of 989 TFLOP/s; in proportion on
/// faster ones (forward passes of FlashAttention-3 over 2 to 16 thousand tokens, Shah et al. 2024, figure 5).
const SHORT: f64 = 560.0;

/// Share of the memory's bytes/s at which products read and write, whatever other passes reach.
const STREAM: f64 = 0.75;

impl Speed<'_> {
    fn peak(&self) -> f64 {
        let m = self.machine;
        let gain = match self.compute {
            Compute::Bf16 => 1.0,
            Compute::Fp8 => m.fp8.max(1.0),
            Compute::Fp4 => m.fp4.max(1.0),
        };
        m.flops * (1.0 + (gain - 1.0) * self.rates.low)
    }

    /// Seconds of items that run one after another, and how many there are; `group` finds the ranks of a
    /// collective. What the host adds comes from the streams.
    pub fn items<'a>(
        &self,
        items: impl Iterator<Item = &'a Item>,
        group: &dyn Fn(&[String]) -> Group,
    ) -> (Seconds, f64) {
        let mut out = Seconds::default();
        let mut kernels = 0.0;
        for item in items {
            let n = item.count;
            match &item.kind {
                Kind::Product { m, n: columns, k, batch } => {
                    out.product += n * self.product(*m, *columns, *k, *batch);
                    if *batch > 1.0 {
                        kernels += n * batch * self.rates.each;
                    }
                }
                Kind::Attention { .. } => out.attention += self.attention(item),
                Kind::Memory { bytes } => out.memory += n * bytes / self.memory(),
                Kind::Collective { kind, axes, bytes } => {
                    let g = group(axes);
                    let took = n * self.collective(*kind, *bytes, g);
                    match g.class {
                        Class::None => continue,
                        Class::Node => out.node += took,
                        Class::Network => out.network += took,
                    }
                }
            }
            kernels += n;
        }
        (out, kernels)
    }

    /// Bytes/s that passes over memory reach.
    pub fn memory(&self) -> f64 {
        self.machine.bandwidth * self.rates.memory
    }

    /// Seconds of a product: few rows or columns leave units idle, operands cross the memory, and what a tile has
    /// summed is written when it is done. Threads write while they compute.
    pub fn product(&self, m: f64, n: f64, k: f64, batch: f64) -> f64 {
        let inline = self.rates.inline;
        let stream = self.machine.bandwidth * self.rates.memory.max(STREAM);
        let (memory, ends) = match inline {
            true => (self.memory(), 1.0 / k),
            false => (stream, 0.0),
        };
        let idle = self.rates.half * self.machine.flops / 312e12 * (1.0 / m + 1.0 / n + ends);
        let seconds = 2.0 * m * n * k / (self.peak() * self.rates.product) * (1.0 + idle);
        let written = if inline { 0.0 } else { self.rates.operand * m * n / memory };
        let bytes = self.rates.operand * (m * k + k * n + m * n);
        batch * f64::max(seconds + written, bytes / memory)
    }

    /// Seconds of attention; where scores go to memory, those of the whole square do.
    fn attention(&self, item: &Item) -> f64 {
        let Kind::Attention { tokens, heads, context, backward, .. } = &item.kind else {
            return 0.0;
        };
        let half = item.flops() / (self.machine.flops * self.rates.attention);
        if self.rates.inline {
            return half;
        }
        if self.rates.scores == 0.0 {
            return half * (1.0 + SHORT * self.machine.flops / 989e12 / context.max(1.0));
        }
        let scores = 2.0 * context * tokens * heads * if *backward { 2.0 } else { 1.0 };
        2.0 * half + item.count * scores * self.rates.scores / self.memory()
    }

    /// Seconds of a collective of `bytes` on each rank of `g`.
    pub fn collective(&self, kind: Collective, bytes: f64, g: Group) -> f64 {
        if g.class == Class::None {
            return 0.0;
        }
        let n = g.size as f64;
        let (m, r) = (self.machine, self.rates);
        let crossing = g.class == Class::Network;
        let link = m.link * r.link;
        let network = m.network * r.network;
        let (wire, latency) = match crossing {
            false => (link, r.link_latency),
            // Rings of several members of a node share its network ports.
            true => (link.min(network * (g.inside as f64).powf(r.ports)), r.network_latency),
        };
        let ring = (n - 1.0) / n;
        let latencies = (n - 1.0).min(2.0 * n.log2());
        match kind {
            Collective::AllReduce => 2.0 * (ring * bytes / wire + latencies * latency),
            Collective::AllGather => (n - 1.0) * bytes / wire + latencies * latency,
            Collective::ReduceScatter
            | Collective::GatherWeights
            | Collective::ScatterGradients => ring * bytes / wire + latencies * latency,
            Collective::Ring => {
                let next = if crossing { network.min(link) } else { link };
                (n - 1.0) * (bytes / next + latency)
            }
            Collective::AllToAll => {
                let outside = (n - g.inside as f64) / n * bytes / network;
                let inside = (g.inside as f64 - 1.0) / n * bytes / link;
                latency + if crossing { outside.max(inside) } else { inside }
            }
            Collective::Send => {
                bytes / (if crossing { network } else { link }) + latency + r.handover
            }
        }
    }
}
