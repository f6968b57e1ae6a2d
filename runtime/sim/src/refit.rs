//! New weights for the samplers, as bytes that move.
//!
//! In: how the trainer holds the weights, how the samplers hold them, and the links between. Out: one edge per
//! move, each with bytes of the busiest rank and seconds. Weights go tensor by tensor in buckets: ranks that hold parts of
//! a tensor give them to each other, a sampler on the same device copies its part, one on another device
//! receives it. The edges of a bucket do not overlap, and every tensor costs host time of its own, which
//! is most of the cost for models with many small experts.

use serde::Serialize;

/// Where samplers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Placement {
    /// On the devices of the trainer, in turn.
    Colocated,
    /// On devices of their own.
    Disaggregated,
}

/// How weights cross between devices that do not share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Transport {
    /// Every sampler receives every tensor whole and keeps its part.
    Broadcast,
    /// Every sampler receives its part only.
    Reshard,
}

/// Weights of a model, and who holds them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weights {
    /// All of them, in bytes as the trainer sends them.
    pub bytes: f64,
    /// Of these, in experts.
    pub expert_bytes: f64,
    /// Tensors by their names in a checkpoint.
    pub tensors: f64,
}

/// The trainer's mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    pub tp: usize,
    pub pp: usize,
    pub ep: usize,
    /// Ranks that each hold a part of what tp, pp and ep leave (ZeRO 3); 1 if weights are whole there.
    pub fsdp: usize,
}

/// Rates of links, efficiencies included, and of the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Paths {
    /// Between devices of a node (or of one NVLink domain), bytes per second.
    pub link: f64,
    /// Devices of it.
    pub domain: usize,
    /// Between nodes, bytes per second and device.
    pub network: f64,
    /// Broadcast from trainers to samplers on other nodes, bytes per second.
    pub broadcast: f64,
    /// From one process to another on the same device, bytes per second.
    pub copy: f64,
    /// Between device and host, bytes per second.
    pub host: f64,
    /// Seconds of a tensor: names, handles, loading.
    pub tensor: f64,
    /// Seconds of every refit: processes are told, caches freed and made.
    pub fixed: f64,
}

impl Paths {
    /// What NeMo RL 0.7 reaches on a machine: fitted on the refits that its documentation and its pull requests
    /// publish.
    pub fn on(machine: &crate::machine::Machine, placement: Placement) -> Paths {
        let apart = placement == Placement::Disaggregated;
        Paths {
            link: 0.6 * machine.link,
            domain: machine.per_node,
            network: 1.17 * machine.network,
            broadcast: 51.5e9,
            copy: 62.3e9,
            host: 20e9,
            tensor: if apart { 25.5e-6 } else { 86.2e-6 },
            fixed: if apart { 0.562 } else { 3.09 },
        }
    }
}

/// A refit to be costed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refit {
    pub weights: Weights,
    pub held: Held,
    /// Ranks of a sampler replica, and replicas.
    pub sampler: (usize, usize),
    pub placement: Placement,
    pub transport: Transport,
    /// Bytes per rank that leave the device before and come back after: optimizer state, gradients.
    pub swapped: f64,
}

/// One move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    pub name: &'static str,
    /// In or out of the busiest rank.
    pub bytes: f64,
    pub seconds: f64,
}

/// The moves of a refit, one after the other.
pub fn refit(r: &Refit, paths: &Paths) -> Vec<Edge> {
    let edge = |name, bytes: f64, rate: f64| Edge { name, bytes, seconds: bytes / rate };
    let mut edges = vec![];
    if r.swapped > 0.0 {
        edges.push(edge("swap", 2.0 * r.swapped, paths.host));
    }
    match (r.placement, r.transport) {
        (Placement::Colocated, _) => {
            let (near, far) = gathered(&r.weights, &r.held, paths.domain);
            edges.push(edge("gather in node", near, paths.link));
            edges.push(edge("gather between nodes", far, paths.network));
            edges.push(edge("copy", r.weights.bytes, paths.copy));
        }
        (Placement::Disaggregated, Transport::Broadcast) => {
            edges.push(edge("broadcast", r.weights.bytes, paths.broadcast));
        }
        (Placement::Disaggregated, Transport::Reshard) => {
            let part = r.weights.bytes / r.sampler.0.max(1) as f64;
            // A trainer rank sends what it alone holds to every replica.
            let shards = r.held.tp * r.held.pp * r.held.ep.max(1) * r.held.fsdp;
            let sent = r.weights.bytes / shards.max(1) as f64 * r.sampler.1 as f64;
            edges.push(edge("reshard", f64::max(part, sent), paths.network));
        }
    }
    let tensors = r.weights.tensors * paths.tensor;
    edges.push(Edge { name: "tensors", bytes: 0.0, seconds: tensors });
    edges.push(Edge { name: "begin and end", bytes: 0.0, seconds: paths.fixed });
    edges.retain(|e| e.seconds > 0.0);
    edges
}

/// Bytes that a trainer rank receives until it has had every tensor whole, inside its node and from others.
/// Axes lie on ranks in the order tp, ep or fsdp, pp.
fn gathered(w: &Weights, held: &Held, domain: usize) -> (f64, f64) {
    let (mut near, mut far) = (0.0, 0.0);
    let parts = [
        (w.bytes - w.expert_bytes, [held.tp, held.fsdp, held.pp]),
        (w.expert_bytes, [1, held.ep.max(held.fsdp), held.pp]),
    ];
    for (bytes, axes) in parts {
        let ranks: usize = axes.iter().product();
        if ranks == 0 || bytes == 0.0 {
            continue;
        }
        let inside = ranks.min(domain);
        near += bytes * (inside as f64 - 1.0) / ranks as f64;
        far += bytes * (ranks - inside) as f64 / ranks as f64;
    }
    (near, far)
}

/// Rewards: `samples` calls of `seconds` each, `workers` at a time, none longer than `deadline`.
pub fn rewards(samples: usize, workers: usize, seconds: f64, deadline: Option<f64>) -> f64 {
    let waves = samples.div_ceil(workers.max(1)) as f64;
    waves * deadline.map_or(seconds, |d| seconds.min(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> Paths {
        Paths {
            link: 400.0,
            domain: 8,
            network: 40.0,
            broadcast: 100.0,
            copy: 1000.0,
            host: 50.0,
            tensor: 0.5,
            fixed: 3.0,
        }
    }

    fn seventy() -> Refit {
        Refit {
            weights: Weights { bytes: 1600.0, expert_bytes: 0.0, tensors: 2.0 },
            held: Held { tp: 4, pp: 4, ep: 1, fsdp: 1 },
            sampler: (4, 16),
            placement: Placement::Colocated,
            transport: Transport::Broadcast,
            swapped: 0.0,
        }
    }

    fn total(r: &Refit) -> f64 {
        refit(r, &paths()).iter().map(|e| e.seconds).sum()
    }

    /// 16 parts of 100: seven come from the node, eight from the other one. 1.75 + 20 + 1.6 + 1 + 3.
    #[test]
    fn parts_are_gathered_near_and_far() {
        let edges = refit(&seventy(), &paths());
        let of = |name| edges.iter().find(|e| e.name == name).map(|e| (e.bytes, e.seconds));
        assert_eq!(of("gather in node"), Some((700.0, 1.75)));
        assert_eq!(of("gather between nodes"), Some((800.0, 20.0)));
        assert_eq!(of("copy"), Some((1600.0, 1.6)));
        assert!((total(&seventy()) - 27.35).abs() < 1e-9);
    }

    /// Weights that are whole on every rank move only from process to process.
    #[test]
    fn whole_weights_are_only_copied() {
        let r = Refit { held: Held { tp: 1, pp: 1, ep: 1, fsdp: 1 }, ..seventy() };
        assert!((total(&r) - (1.6 + 1.0 + 3.0)).abs() < 1e-9);
    }

    /// A quarter each way is less than everything to everybody: 1600 / 4 received, 1600 / 16 sent 16 times.
    #[test]
    fn parts_move_faster_than_the_whole() {
        let apart = Refit { placement: Placement::Disaggregated, ..seventy() };
        assert!((total(&apart) - (16.0 + 1.0 + 3.0)).abs() < 1e-9);
        let r = Refit { transport: Transport::Reshard, ..apart };
        let edges = refit(&r, &paths());
        assert_eq!((edges[0].bytes, edges[0].seconds), (1600.0, 40.0));
        let few = refit(&Refit { sampler: (4, 2), ..r }, &paths());
        assert_eq!((few[0].bytes, few[0].seconds), (400.0, 10.0));
    }

    #[test]
    fn rewards_come_in_waves_that_a_deadline_cuts() {
        assert_eq!(rewards(10, 4, 2.0, None), 6.0);
        assert_eq!(rewards(10, 4, 2.0, Some(0.5)), 1.5);
        assert_eq!(rewards(0, 4, 2.0, None), 0.0);
    }
}
