//! Seconds of an update: its micro-batches through the pipeline, then gradients and optimizer.
//!
//! In: the plan of a loss with its gradient (or of a forward pass alone), the sizes of a micro-batch, how many of
//! them a rank takes, a machine and a stack. Out: seconds, by what they are spent on and where a stage waits.

use nrl_ir::plan::Plan;
use nrl_ir::{Graph, Mesh};
use serde::Serialize;

use crate::Precision;
use crate::machine::{self, Group};
use crate::pipeline::{Chunk, Pipeline};
use crate::rates::{Seconds, Speed};
use crate::work::{Collective, Item, Kind, Region, Sizes, Work};

/// A pass, or an update, to be timed.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pub plan: &'a Plan,
    /// The mesh with its axes; the plan's own, or one that differs in `dp` and `pp` alone.
    pub mesh: &'a Mesh,
    pub precision: Precision,
    /// Of one micro-batch on one data-parallel rank.
    pub sizes: Sizes,
    /// Micro-batches of one update on one rank.
    pub micro: usize,
    /// Chunks of layers per stage: 1, or more if the pipeline is interleaved.
    pub chunks: usize,
    /// Whether an optimizer runs at the end, and bytes that it reads and writes per parameter.
    pub optimizer: Option<f64>,
    /// Bytes of an element of a gradient when it is sent.
    pub gradient: f64,
}

/// What an update, or a pass, takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Took {
    pub seconds: f64,
    /// Of the busiest stage, over all micro-batches.
    pub forward: Seconds,
    pub backward: Seconds,
    /// A stage waits for others.
    pub bubble: f64,
    /// Traffic of data parallelism that nothing hides.
    pub gradients: f64,
    pub optimizer: f64,
    pub fixed: f64,
    /// FLOPs of all ranks.
    pub flops: f64,
}

impl Job<'_> {
    /// Times the job.
    pub fn run(&self, speed: &Speed<'_>) -> Took {
        let work = Work::of(self.plan, &self.sizes, self.precision);
        self.of(&work, speed)
    }

    /// The same with the work already at hand.
    pub fn of(&self, work: &Work, speed: &Speed<'_>) -> Took {
        let per_node = speed.machine.per_node;
        let group = |axes: &[String]| machine::group(self.mesh, axes, per_node);
        let time = |region: &Region, hidden: f64| Each {
            forward: self.pass(&region.forward, speed, &group, hidden),
            backward: self.pass(&region.backward, speed, &group, hidden),
        };
        let before = time(&work.before, 0.0);
        let after = time(&work.after, 0.0);
        let layers: Vec<(usize, Each)> =
            work.layers.iter().map(|l| (l.count, time(&l.each, speed.rates.overlap))).collect();
        let stages = deal(&layers, &before, &after, self.mesh.size("pp"), self.chunks);
        let handed = group(&["pp".to_string()]);
        let send = speed.collective(Collective::Send, work.boundary, handed);
        let chunks: Vec<Vec<Chunk>> =
            stages.iter().map(|s| s.iter().map(Each::chunk).collect()).collect();
        let span = Pipeline { chunks, send }.run(self.micro);
        let n = self.micro as f64;
        let total = |s: &Vec<Each>| s.iter().fold(Each::default(), |a, e| a.plus(*e, 1.0));
        let busiest =
            stages.iter().map(total).max_by(|a, b| a.sum().total_cmp(&b.sum())).unwrap_or_default();
        let mut took = Took {
            forward: Seconds::default().plus(busiest.forward, n),
            backward: Seconds::default().plus(busiest.backward, n),
            bubble: span.seconds - span.busy,
            fixed: speed.rates.fixed,
            flops: work.flops() * n * self.mesh.ranks() as f64 / self.mesh.size("pp") as f64,
            ..Took::default()
        };
        if let Some(bytes) = self.optimizer {
            let (sent, state) = self.update(speed, &group);
            took.gradients = (sent - speed.rates.overlap * took.backward.compute())
                .max((1.0 - speed.rates.overlap) * sent);
            took.optimizer = state * bytes / (speed.machine.bandwidth * speed.rates.memory);
        }
        took.seconds = span.seconds + took.gradients + took.optimizer + took.fixed;
        took
    }

    /// Seconds of items, with weights gathered and gradients scattered beside the computation.
    fn pass(
        &self,
        items: &[Item],
        speed: &Speed<'_>,
        group: &dyn Fn(&[String]) -> Group,
        hidden: f64,
    ) -> Seconds {
        let beside = |i: &&Item| {
            matches!(
                &i.kind,
                Kind::Collective {
                    kind: Collective::GatherWeights | Collective::ScatterGradients,
                    ..
                }
            )
        };
        let own: Vec<Item> = items.iter().filter(|i| !beside(i)).cloned().collect();
        let sent: Vec<Item> = items.iter().filter(beside).cloned().collect();
        let mut s = speed.items(&own, group);
        let keep = 1.0 - speed.rates.tensor_overlap;
        (s.node, s.network) = (s.node * keep, s.network * keep);
        if !sent.is_empty() {
            let t = speed.items(&sent, group);
            let room = hidden * s.compute();
            let all = t.node + t.network;
            let exposed = (all - room).max(0.0) / all.max(f64::MIN_POSITIVE);
            s.node += exposed * t.node;
            s.network += exposed * t.network;
        }
        s
    }

    /// Seconds to sum gradients and to spread new weights, and elements of state, on the fullest stage.
    fn update(&self, speed: &Speed<'_>, group: &dyn Fn(&[String]) -> Group) -> (f64, f64) {
        let Some(class) = self.plan.classes.first() else { return (0.0, 0.0) };
        let pp = self.mesh.size("pp") as f64;
        let (mut sent, mut state) = (0.0, 0.0);
        for (p, layout) in class.graph.params.iter().zip(&self.plan.params) {
            if !p.trained {
                continue;
            }
            let each = elements(&class.graph, p.dims.as_slice());
            let layers = p.repeat.as_ref().map_or(1.0, |(_, n)| (*n as f64 / pp).ceil());
            let local = each * layers;
            state += local / self.mesh.size_over(&layout.state) as f64;
            let axes: &[String] = &layout.pending;
            if axes.is_empty() {
                continue;
            }
            let g = group(axes);
            let bytes = local * self.gradient;
            if layout.state.is_empty() {
                sent += speed.collective(Collective::AllReduce, bytes, g);
            } else {
                sent += speed.collective(Collective::ReduceScatter, bytes, g);
                let weights = local * self.width();
                sent += speed.collective(Collective::ReduceScatter, weights, g);
            }
        }
        (sent, state)
    }

    fn width(&self) -> f64 {
        if self.precision == Precision::Bf16 { 2.0 } else { 4.0 }
    }
}

fn elements(g: &Graph, dims: &[nrl_ir::DimId]) -> f64 {
    dims.iter().map(|d| g.dims.bound(*d) as f64).product()
}

/// Seconds of one region, or chunk, for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Each {
    forward: Seconds,
    backward: Seconds,
}

impl Each {
    fn plus(self, o: Each, times: f64) -> Each {
        Each {
            forward: self.forward.plus(o.forward, times),
            backward: self.backward.plus(o.backward, times),
        }
    }

    fn sum(&self) -> f64 {
        self.forward.sum() + self.backward.sum()
    }

    fn chunk(&self) -> Chunk {
        Chunk { forward: self.forward.sum(), backward: self.backward.sum() }
    }
}

/// Deals layers out to `pp` stages of `chunks` chunks each, in order: chunk `c` of stage `s` holds part
/// `c * pp + s`. What comes before the layers goes with the first part, what comes after with the last.
fn deal(
    layers: &[(usize, Each)],
    before: &Each,
    after: &Each,
    pp: usize,
    chunks: usize,
) -> Vec<Vec<Each>> {
    let parts = pp * chunks.max(1);
    let total: usize = layers.iter().map(|(n, _)| n).sum();
    let mut stages = vec![vec![Each::default(); chunks.max(1)]; pp];
    let mut first = 0;
    for part in 0..parts {
        // Uneven numbers give the earlier parts one more.
        let count = total / parts + usize::from(part < total % parts);
        let slot = &mut stages[part % pp][part / pp];
        let mut start = 0;
        for (n, each) in layers {
            let from = first.max(start);
            let to = (first + count).min(start + n);
            if to > from {
                *slot = slot.plus(*each, (to - from) as f64);
            }
            start += n;
        }
        first += count;
    }
    if let Some(slot) = stages.first_mut().and_then(|s| s.first_mut()) {
        *slot = slot.plus(*before, 1.0);
    }
    if let Some(slot) = stages.last_mut().and_then(|s| s.last_mut()) {
        *slot = slot.plus(*after, 1.0);
    }
    stages
}
