//! The items of a region as a pass over streams.
//!
//! In: items in the order of the graph, the mesh, a machine and a stack. Out: stretches of computation and the collectives between
//! them with their seconds, the traffic that travels beside them, what the host launches.

use nrl_ir::Mesh;

use crate::machine::{self, Class, Group};
use crate::rates::{Seconds, Speed};
use crate::streams::{Pass, Stretch};
use crate::work::{Collective, Item, Kind};

/// How sharply a pass takes the longer of what the device and the host need, since neither kernels nor launches are even: the exponent
/// of a norm.
const SHARP: f64 = 8.0;

/// Reads passes.
pub(crate) struct Reader<'a> {
    pub mesh: &'a Mesh,
    pub speed: &'a Speed<'a>,
    /// How often weights travel for a micro-batch.
    pub weights: f64,
    /// Of the bytes of all-to-alls across nodes, the share that is sent.
    pub crossing: f64,
    /// Kinds of computation are kept apart, for pictures.
    pub fine: bool,
}

impl Reader<'_> {
    /// A pass over `items`.
    pub fn pass(&self, items: &[Item]) -> Pass {
        let rates = self.speed.rates;
        let group = |axes: &[String]| machine::group(self.mesh, axes, self.speed.machine.per_node);
        let mut pass = Pass::default();
        let mut read = false;
        let ring = items.iter().any(around).then_some(rates.ring).filter(|r| *r > 0.0);
        for item in items {
            let fewer = self.fewer(item, &group);
            let item = fewer.as_ref().unwrap_or(item);
            let (mut took, kernels) = self.speed.items(std::iter::once(item), &group);
            if item.is_beside() {
                self.beside(item, &took, &mut pass);
                continue;
            }
            let keep = 1.0 - rates.tensor_overlap;
            (took.node, took.network) = (took.node * keep, took.network * keep);
            took.attention /= ring.unwrap_or(1.0);
            pass.own = pass.own.plus(took, 1.0);
            let reads = item.is_routed() && !read;
            read |= reads;
            self.stretch(item, &took, kernels * rates.launch, reads, &group, &mut pass.stretches);
        }
        if rates.inline {
            launched(&mut pass)
        } else {
            uneven(&mut pass)
        }
        pass
    }

    /// An all-to-all across nodes that sends fewer bytes.
    fn fewer(&self, item: &Item, group: &dyn Fn(&[String]) -> Group) -> Option<Item> {
        let Kind::Collective { kind: Collective::AllToAll, axes, bytes } = &item.kind else {
            return None;
        };
        if self.crossing == 1.0 || group(axes).class != Class::Network {
            return None;
        }
        let bytes = bytes * self.crossing;
        let kind = Kind::Collective { kind: Collective::AllToAll, axes: axes.clone(), bytes };
        Some(Item { kind, ..*item })
    }

    fn beside(&self, item: &Item, took: &Seconds, pass: &mut Pass) {
        let ahead = matches!(item.kind, Kind::Collective { kind: Collective::GatherWeights, .. });
        let to = if ahead { &mut pass.gathers } else { &mut pass.scatters };
        to[0] += took.node * self.weights;
        to[1] += took.network * self.weights;
    }

    /// Adds an item to the last stretch, or begins one with it.
    fn stretch(
        &self,
        item: &Item,
        took: &Seconds,
        launch: f64,
        reads: bool,
        group: &dyn Fn(&[String]) -> Group,
        to: &mut Vec<Stretch>,
    ) {
        let (link, exchange) = match &item.kind {
            Kind::Collective { kind, axes, .. } => {
                (group(axes).class, *kind == Collective::AllToAll)
            }
            _ => (Class::None, false),
        };
        if item.is_collective() && link == Class::None {
            return;
        }
        let what = if self.fine || item.is_collective() { word(&item.kind) } else { "computation" };
        let seconds = took.sum();
        let reads = if reads { self.speed.rates.routing } else { 0.0 };
        match to.last_mut().filter(|s| s.what == what && s.link == link && reads == 0.0) {
            Some(s) => {
                s.seconds += seconds;
                s.launch += launch;
            }
            None => to.push(Stretch { seconds, link, exchange, launch, reads, what }),
        }
    }
}

/// Do keys and values go around here?
fn around(item: &Item) -> bool {
    matches!(item.kind, Kind::Collective { kind: Collective::Ring, .. })
}

/// What an item does, in a word or two.
fn word(kind: &Kind) -> &'static str {
    match kind {
        Kind::Product { batch, .. } if *batch > 1.0 => "experts",
        Kind::Product { .. } => "products",
        Kind::Attention { .. } => "attention",
        Kind::Memory { .. } => "passes over memory",
        Kind::Collective { kind, .. } => match kind {
            Collective::AllReduce => "all-reduce",
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllToAll => "all-to-all",
            Collective::Ring => "ring",
            Collective::GatherWeights => "weights",
            Collective::ScatterGradients => "gradients",
            Collective::Send => "send",
        },
    }
}

/// What launches an item also computes it.
fn launched(pass: &mut Pass) {
    for s in &mut pass.stretches {
        s.seconds += s.launch;
        pass.own.launch += s.launch;
        s.launch = 0.0;
    }
}

/// Where host and device are about as fast, some launches come late.
fn uneven(pass: &mut Pass) {
    let sum = |of: fn(&Stretch) -> f64| pass.stretches.iter().map(of).sum::<f64>();
    let (device, host) = (sum(|s| s.seconds), sum(|s| s.launch));
    let longer = f64::max(device, host);
    if longer <= 0.0 {
        return;
    }
    let norm = (device / longer).powf(SHARP) + (host / longer).powf(SHARP);
    let late = norm.powf(1.0 / SHARP);
    for s in &mut pass.stretches {
        s.seconds *= late;
        s.launch *= late;
    }
    pass.own.launch += device * (late - 1.0);
}
