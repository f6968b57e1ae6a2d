//! Seconds of an update: its micro-batches through the pipeline, then gradients and optimizer.
//!
//! In: the plan of a loss with its gradient (or of a forward pass alone), the sizes of a micro-batch, how many of
//! them a rank takes, a machine and a stack. Out: seconds, by what they are spent on and where a stage waits.

use nrl_ir::plan::Plan;
use nrl_ir::{Graph, Mesh};
use serde::Serialize;

use crate::machine::{self, Group};
use crate::pipeline::{Chunk, Pipeline};
use crate::rates::{Compute, Rates, Seconds, Speed};
use crate::work::{Collective, Item, Kind, Region, Work};

/// A pass, or an update, to be timed: what a plan gives, without the plan.
#[derive(Clone, Debug)]
pub struct Job {
    pub work: Work,
    pub mesh: Mesh,
    /// Micro-batches of one update on one rank.
    pub micro: usize,
    /// Chunks of layers per stage: 1, or more if the pipeline is interleaved.
    pub chunks: usize,
    /// Layers of each part of the model, in its order, where they are not dealt out evenly.
    pub split: Option<Vec<usize>>,
    /// What an optimizer does at the end; `None` for a pass alone.
    pub update: Option<Update>,
}

/// The end of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Gradients that ranks sum, by the axes they sum over.
    pub sums: Vec<Sum>,
    /// Parameters whose state the fullest rank keeps, and bytes read and written for each.
    pub state: f64,
    pub bytes: f64,
    /// Share of the state that hosts keep and update.
    pub on_host: f64,
}

/// Seconds per parameter and rank of Adam on a host whose ranks all do so, gradients and weights there and back: what DeepSpeed takes on
/// 8 x H200 (stas00/ml-engineering, training performance).
const HOST_ADAM: f64 = 1.6e-9;

/// Gradients that are summed over the same axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    pub axes: Vec<String>,
    /// Bytes of the gradients, and of the weights that go back if each rank updates a part.
    pub gradients: f64,
    pub weights: f64,
}

impl Update {
    /// The update of a plan's parameters on `mesh`: `gradient` bytes per element are sent, `weight` come
    /// back, the optimizer moves `bytes`.
    pub fn of(plan: &Plan, mesh: &Mesh, gradient: f64, weight: f64, bytes: f64) -> Update {
        let mut update = Update { bytes, ..Update::default() };
        let Some(class) = plan.classes.first() else { return update };
        for ((p, layout), held) in class.graph.params.iter().zip(&plan.params).zip(fullest(plan)) {
            if !p.trained || held == 0 {
                continue;
            }
            let local = elements(&class.graph, &p.dims) * held as f64;
            update.state += local / mesh.size_over(&layout.state) as f64;
            if layout.pending.is_empty() {
                continue;
            }
            let back = if layout.state.is_empty() { 0.0 } else { local * weight };
            let sent = local * gradient;
            match update.sums.iter_mut().find(|s| s.axes == layout.pending) {
                Some(s) => {
                    s.gradients += sent;
                    s.weights += back;
                }
                None => update.sums.push(Sum {
                    axes: layout.pending.clone(),
                    gradients: sent,
                    weights: back,
                }),
            }
        }
        update
    }
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

impl Took {
    /// All seconds times `factor`.
    fn times(self, factor: f64) -> Took {
        Took {
            seconds: self.seconds * factor,
            forward: Seconds::default().plus(self.forward, factor),
            backward: Seconds::default().plus(self.backward, factor),
            bubble: self.bubble * factor,
            gradients: self.gradients * factor,
            optimizer: self.optimizer * factor,
            fixed: self.fixed * factor,
            flops: self.flops,
        }
    }
}

impl Job {
    /// Times the job.
    pub fn run(&self, speed: &Speed<'_>) -> Took {
        let work = &self.work;
        let group = |axes: &[String]| machine::group(&self.mesh, axes, speed.machine.per_node);
        let stages = self.stages(speed);
        let span = self.through(&stages, speed).run(self.micro);
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
        if let Some(update) = &self.update {
            let sent: f64 = update.sums.iter().map(|s| s.seconds(speed, &group)).sum();
            // Beside the backward pass of the last micro-batch.
            took.gradients = exposed(sent, busiest.backward.sum(), speed.rates.overlap);
            let device = update.bytes * speed.rates.update / speed.memory();
            let (host, share) = match speed.rates.offload {
                0.0 => (HOST_ADAM, update.on_host),
                each => (each, 1.0),
            };
            took.optimizer = update.state * (share * host + (1.0 - share) * device);
        }
        took.seconds = span.seconds + took.gradients + took.optimizer + took.fixed;
        took.times(speed.rates.factor)
    }

    /// Seconds of a forward and a backward of one layer of each group.
    pub fn layers(&self, speed: &Speed<'_>) -> Vec<(f64, f64)> {
        let each = self.work.layers.iter().map(|l| self.each(&l.each, speed).chunk());
        each.map(|c| (c.forward * speed.rates.factor, c.backward * speed.rates.factor)).collect()
    }

    /// Bytes that a rank hands to the next stage: ranks that hold the same ones send a part each.
    pub fn handed_over(&self) -> f64 {
        let tp = ["tp".to_string()];
        let sequence = |i: &Item| {
            matches!(&i.kind, Kind::Collective { kind: Collective::ReduceScatter, axes, .. }
                if axes[..] == tp)
        };
        let layers = self.work.layers.iter().flat_map(|l| &l.each.forward);
        let cut = layers.into_iter().any(sequence);
        self.work.boundary / if cut { 1.0 } else { self.mesh.size("tp") as f64 }
    }

    fn each(&self, region: &Region, speed: &Speed<'_>) -> Each {
        Each {
            forward: self.pass(&region.forward, speed),
            backward: self.pass(&region.backward, speed),
        }
    }

    /// The pipeline that the micro-batches go through.
    pub fn pipeline(&self, speed: &Speed<'_>) -> Pipeline {
        self.through(&self.stages(speed), speed)
    }

    fn through(&self, stages: &[Vec<Each>], speed: &Speed<'_>) -> Pipeline {
        let handed = machine::group(&self.mesh, &["pp".to_string()], speed.machine.per_node);
        let send = speed.collective(Collective::Send, self.handed_over(), handed);
        let chunks = stages.iter().map(|s| s.iter().map(Each::chunk).collect()).collect();
        Pipeline { chunks, send }
    }

    /// Seconds of each chunk of each stage.
    fn stages(&self, speed: &Speed<'_>) -> Vec<Vec<Each>> {
        let work = &self.work;
        let before = self.each(&work.before, speed);
        // Head and loss stay in 16 bits.
        let memory = speed.rates.memory / speed.rates.logits;
        let rates = Rates { memory, ..speed.rates.clone() };
        let after = Speed { compute: Compute::Bf16, rates: &rates, ..*speed };
        let after = self.each(&work.after, &after);
        let layers: Vec<(usize, Each)> =
            work.layers.iter().map(|l| (l.count, self.each(&l.each, speed))).collect();
        let split = self.split.as_deref().unwrap_or_default();
        deal(&layers, &before, &after, self.mesh.size("pp"), self.chunks, split)
    }

    /// Seconds of items, with weights gathered and gradients scattered beside the computation.
    fn pass(&self, items: &[Item], speed: &Speed<'_>) -> Seconds {
        let group = |axes: &[String]| machine::group(&self.mesh, axes, speed.machine.per_node);
        let (mut s, kernels) = speed.items(items.iter().filter(|i| !beside(i)), &group);
        let keep = 1.0 - speed.rates.tensor_overlap;
        (s.node, s.network) = (s.node * keep, s.network * keep);
        if items.iter().any(beside) {
            let (mut t, _) = speed.items(items.iter().filter(|i| beside(i)), &group);
            if self.mesh.size("pp") > 1 {
                // Under a pipeline weights stay gathered from the first micro-batch to the last.
                t = Seconds::default().plus(t, 1.0 / self.micro as f64);
            }
            let all = t.node + t.network;
            let share = exposed(all, s.sum(), speed.rates.overlap) / all.max(f64::MIN_POSITIVE);
            s.node += share * t.node;
            s.network += share * t.network;
        }
        s = speed.launched(s, kernels);
        if items.iter().any(routed) {
            s.launch += speed.rates.routing;
        }
        s
    }
}

/// Does the item run on a stream of its own?
fn beside(i: &Item) -> bool {
    let Kind::Collective { kind, .. } = &i.kind else { return false };
    matches!(kind, Collective::GatherWeights | Collective::ScatterGradients)
}

/// Does the item work on rows that a router sent?
fn routed(i: &Item) -> bool {
    match &i.kind {
        Kind::Product { batch, .. } => *batch > 1.0,
        Kind::Collective { kind, .. } => *kind == Collective::AllToAll,
        _ => false,
    }
}

/// Seconds of traffic that `work` seconds beside it do not hide, where `share` of it can be hidden.
fn exposed(traffic: f64, work: f64, share: f64) -> f64 {
    f64::max(traffic - share * work, (1.0 - share) * traffic)
}

impl Sum {
    fn seconds(&self, speed: &Speed<'_>, group: &dyn Fn(&[String]) -> Group) -> f64 {
        let g = group(&self.axes);
        if self.weights == 0.0 {
            return speed.collective(Collective::AllReduce, self.gradients, g);
        }
        speed.collective(Collective::ReduceScatter, self.gradients, g)
            + speed.collective(Collective::GatherWeights, self.weights, g)
    }
}

/// How often the stage of a plan with the most to update holds each parameter.
fn fullest(plan: &Plan) -> Vec<usize> {
    let Some(class) = plan.classes.first() else { return vec![] };
    let number = |held: &Vec<usize>| -> f64 {
        let trained = class.graph.params.iter().zip(held).filter(|(p, _)| p.trained);
        trained.map(|(p, n)| elements(&class.graph, &p.dims) * *n as f64).sum()
    };
    let stages = (0..plan.stages()).map(|s| plan.held(s));
    stages.max_by(|a, b| number(a).total_cmp(&number(b))).unwrap_or_default()
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
    split: &[usize],
) -> Vec<Vec<Each>> {
    let parts = pp * chunks.max(1);
    let total: usize = layers.iter().map(|(n, _)| n).sum();
    let mut stages = vec![vec![Each::default(); chunks.max(1)]; pp];
    let mut first = 0;
    for part in 0..parts {
        // Uneven numbers give the earlier parts one more.
        let even = total / parts + usize::from(part < total % parts);
        let count = split.get(part).copied().unwrap_or(even);
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
