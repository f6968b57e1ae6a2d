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

/// What a software stack reaches on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Share of the data sheet's FLOP/s that large products reach.
    pub product: f64,
    /// FLOPs of a product at which its rate is half of that.
    pub product_half: f64,
    /// Share of the FLOP/s that attention reaches, forward and backward.
    pub attention: f64,
    pub attention_back: f64,
    /// Share of the memory's bytes/s that passes over memory reach.
    pub memory: f64,
    /// Seconds that the host takes to launch a kernel.
    pub launch: f64,
    /// Share of the links' bytes/s that collectives reach.
    pub link: f64,
    pub network: f64,
    /// Seconds of a collective of no bytes, per step of its ring.
    pub link_latency: f64,
    pub network_latency: f64,
    /// Share of the traffic of data parallelism that is hidden behind computation.
    pub overlap: f64,
    /// Share of the traffic of tensor parallelism that is hidden.
    pub tensor_overlap: f64,
    /// Seconds of a step besides all of this.
    pub fixed: f64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            product: 0.70,
            product_half: 2e9,
            attention: 0.45,
            attention_back: 0.35,
            memory: 0.75,
            launch: 8e-6,
            link: 0.75,
            network: 0.75,
            link_latency: 6e-6,
            network_latency: 15e-6,
            overlap: 0.6,
            tensor_overlap: 0.0,
            fixed: 0.02,
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

impl Speed<'_> {
    fn peak(&self) -> f64 {
        let m = self.machine;
        m.flops
            * match self.compute {
                Compute::Bf16 => 1.0,
                Compute::Fp8 => m.fp8.max(1.0),
                Compute::Fp4 => m.fp4.max(1.0),
            }
    }

    /// Seconds of items that run one after another; `group` finds the ranks of a collective.
    pub fn items(&self, items: &[Item], group: &dyn Fn(&[String]) -> Group) -> Seconds {
        let mut out = Seconds::default();
        let mut kernels = 0.0;
        for item in items {
            let n = item.count;
            match &item.kind {
                Kind::Product { m, n: columns, k, batch } => {
                    out.product += n * self.product(*m, *columns, *k, *batch);
                    kernels += n;
                }
                Kind::Attention { backward, .. } => {
                    let share =
                        if *backward { self.rates.attention_back } else { self.rates.attention };
                    out.attention += item.flops() / (self.machine.flops * share);
                    kernels += n;
                }
                Kind::Memory { bytes } => {
                    out.memory += n * bytes / (self.machine.bandwidth * self.rates.memory);
                    kernels += n;
                }
                Kind::Collective { kind, axes, bytes } => {
                    let g = group(axes);
                    let took = n * self.collective(*kind, *bytes, g);
                    match g.class {
                        Class::None => {}
                        Class::Node => out.node += took,
                        Class::Network => out.network += took,
                    }
                    kernels += n;
                }
            }
        }
        // The host runs ahead of the device, or the device waits for it.
        let busy = out.product + out.attention + out.memory;
        out.launch = (kernels * self.rates.launch - busy).max(0.0);
        out
    }

    /// Seconds of a product: its rate grows with its size, and its operands cross the memory.
    pub fn product(&self, m: f64, n: f64, k: f64, batch: f64) -> f64 {
        let flops = 2.0 * m * n * k;
        let rate = self.peak() * self.rates.product * flops / (flops + self.rates.product_half);
        let bytes = 2.0 * (m * k + k * n + m * n);
        batch * f64::max(flops / rate, bytes / (self.machine.bandwidth * self.rates.memory))
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
            // A ring for each member of a node, each over a network port of its own.
            true => (link.min(network * g.inside as f64), r.network_latency),
        };
        let ring = (n - 1.0) / n;
        let latencies = (n - 1.0).min(2.0 * n.log2());
        match kind {
            Collective::AllReduce => 2.0 * (ring * bytes / wire + latencies * latency),
            Collective::AllGather => (n - 1.0) * bytes / wire + latencies * latency,
            Collective::ReduceScatter
            | Collective::GatherWeights
            | Collective::ScatterGradients => ring * bytes / wire + latencies * latency,
            Collective::Ring => (n - 1.0) * (bytes / wire + latency),
            Collective::AllToAll => {
                let outside = (n - g.inside as f64) / n * bytes / network;
                let inside = (g.inside as f64 - 1.0) / n * bytes / link;
                latency + if crossing { outside.max(inside) } else { inside }
            }
            Collective::Send => bytes / (if crossing { network } else { link }) + latency,
        }
    }
}
