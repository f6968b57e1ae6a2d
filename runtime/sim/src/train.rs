//! Seconds of an update: its micro-batches through the pipeline, then gradients and optimizer.
//!
//! In: the plan of a loss with its gradient (or of a forward pass alone), the sizes of a micro-batch, how many of
//! them a rank takes, a machine and a stack. Out: seconds, by what they are spent on and where a stage waits.

use nrl_ir::plan::Plan;
use nrl_ir::{Graph, Mesh};
use serde::Serialize;

use crate::machine::{self, Class, Group};
use crate::pipeline::{Chunk, Pipeline};
use crate::rates::{Compute, HOST_ADAM, Rates, Seconds, Speed};
use crate::reader::Reader;
use crate::streams::{self, Pass, Ran};
use crate::work::{Collective, Item, Kind, Layers, Region, Work};

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
    /// The forward of one micro-batch runs beside the backward of another, so that each computes while the other waits for an
    /// all-to-all: DualPipe (DeepSeek-V3), `overlap_moe_expert_parallel_comm` (Megatron-Core).
    pub paired: bool,
    /// Of the bytes that all-to-alls across nodes would send, the share that they do: less than 1 where a token that several ranks
    /// of a node wait for crosses the network once, or goes in fewer bits.
    pub crossing: f64,
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

/// A layer in the midst of its group, on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub group: String,
    /// Layers of the group.
    pub count: usize,
    pub backward: bool,
    /// Sum to what the layer takes; of traffic, what nothing hides.
    pub seconds: Seconds,
    /// From its beginning.
    pub tasks: Vec<Ran>,
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
    /// One micro-batch, without a pipeline or an update; more of them pair up if the plan says so.
    pub fn alone(work: Work, mesh: Mesh) -> Job {
        let (micro, chunks, split, update) = (1, 1, None, None);
        let paired = work.paired;
        Job { work, mesh, micro, chunks, split, paired, crossing: 1.0, update }
    }

    /// Times the job.
    pub fn run(&self, speed: &Speed<'_>) -> Took {
        let work = &self.work;
        let group = |axes: &[String]| machine::group(&self.mesh, axes, speed.machine.per_node);
        let stages = self.stages(speed);
        let line = self.through(&stages, speed);
        let span = line.run(self.micro);
        let n = self.micro as f64;
        let total = |(i, s): (usize, &Vec<Each>)| {
            let pairs = line.pairs(i, self.micro) / (n * s.len().max(1) as f64);
            s.iter().fold(Each::default(), |a, e| a.plus(*e, 1.0)).beside(pairs)
        };
        let all = stages.iter().enumerate().map(total);
        let busiest = all.max_by(|a, b| a.sum().total_cmp(&b.sum())).unwrap_or_default();
        let mut took = Took {
            forward: Seconds::default().plus(busiest.forward, n),
            backward: Seconds::default().plus(busiest.backward, n),
            bubble: span.seconds - span.busy,
            fixed: speed.rates.fixed,
            flops: work.flops() * n * self.mesh.ranks() as f64 / self.mesh.size("pp") as f64,
            ..Took::default()
        };
        if let Some(update) = &self.update {
            let mut sent = [0.0; 2];
            for s in &update.sums {
                let g = group(&s.axes);
                sent[usize::from(g.class == Class::Network)] += s.seconds(speed, g);
            }
            // Beside the backward pass of the last micro-batch.
            took.gradients = streams::behind(sent, &busiest.backward, speed.rates.overlap);
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
        let passes = self.passes(speed);
        let each = (0..passes.layers.len()).map(|group| {
            let content = Content { layers: vec![(group, 1)], ..Content::default() };
            passes.each(&content, speed.rates.overlap, false).chunk()
        });
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

    /// The pipeline that the micro-batches go through.
    pub fn pipeline(&self, speed: &Speed<'_>) -> Pipeline {
        self.through(&self.stages(speed), speed)
    }

    fn through(&self, stages: &[Vec<Each>], speed: &Speed<'_>) -> Pipeline {
        let handed = machine::group(&self.mesh, &["pp".to_string()], speed.machine.per_node);
        let send = speed.collective(Collective::Send, self.handed_over(), handed);
        let chunks = stages.iter().map(|s| s.iter().map(Each::chunk).collect()).collect();
        Pipeline { chunks, send, paired: self.paired }
    }

    /// Seconds of each chunk of each stage.
    fn stages(&self, speed: &Speed<'_>) -> Vec<Vec<Each>> {
        let passes = self.passes(speed);
        let layers: Vec<usize> = self.work.layers.iter().map(|l| l.count).collect();
        let split = self.split.as_deref().unwrap_or_default();
        let dealt = deal(&layers, self.mesh.size("pp"), self.chunks, split);
        // Most chunks hold the same.
        let mut known: Vec<(&Content, Each)> = vec![];
        let mut each = |c| match known.iter().find(|(k, _)| *k == c) {
            Some((_, e)) => *e,
            None => {
                let e = passes.each(c, speed.rates.overlap, self.paired);
                known.push((c, e));
                e
            }
        };
        dealt.iter().map(|s| s.iter().map(&mut each).collect()).collect()
    }

    /// The passes over each region.
    fn passes(&self, speed: &Speed<'_>) -> Passes {
        let work = &self.work;
        // Head and loss stay in 16 bits.
        let memory = speed.rates.memory / speed.rates.logits;
        let rates = Rates { memory, ..speed.rates.clone() };
        let after = Speed { compute: Compute::Bf16, rates: &rates, ..*speed };
        Passes {
            before: self.both(&work.before, speed),
            layers: work.layers.iter().map(|l| self.both(&l.each, speed)).collect(),
            after: self.both(&work.after, &after),
        }
    }

    fn both(&self, region: &Region, speed: &Speed<'_>) -> Both {
        let r = self.reader(speed, false);
        Both { forward: r.pass(&region.forward), backward: r.pass(&region.backward) }
    }

    fn reader<'a>(&'a self, speed: &'a Speed<'a>, fine: bool) -> Reader<'a> {
        let (weights, crossing) = (self.weights(), self.crossing);
        Reader { mesh: &self.mesh, speed, weights, crossing, fine }
    }

    /// What the streams of a rank do while a layer goes by, forward and backward: of the group that takes longest, in its midst.
    pub fn streams(&self, speed: &Speed<'_>) -> Vec<Layer> {
        let reader = self.reader(speed, true);
        let both = |l: &Layers| Both {
            forward: reader.pass(&l.each.forward),
            backward: reader.pass(&l.each.backward),
        };
        let time = |b: &Both, n: usize| (b.forward.own.sum() + b.backward.own.sum()) * n as f64;
        let all = self.work.layers.iter().map(|l| (l, both(l)));
        let longest = all.max_by(|(a, x), (b, y)| time(x, a.count).total_cmp(&time(y, b.count)));
        let Some((layers, both)) = longest else { return vec![] };
        let parts = self.mesh.size("pp") * self.chunks.max(1);
        let count = layers.count.div_ceil(parts);
        let factor = speed.rates.factor;
        let passes = [(&both.forward, false), (&both.backward, true)];
        let some = passes.into_iter().filter(|(p, _)| !p.stretches.is_empty());
        some.map(|(pass, backward)| {
            let (seconds, tasks) = streams::steady(&[(pass, count)], speed.rates.overlap);
            let slower = |t: Ran| Ran { start: t.start * factor, end: t.end * factor, ..t };
            Layer {
                group: layers.group.clone(),
                count: layers.count,
                backward,
                seconds: Seconds::default().plus(seconds, factor),
                tasks: tasks.into_iter().map(slower).collect(),
            }
        })
        .collect()
    }

    /// How often weights travel for a micro-batch: under a pipeline they stay gathered from the first to the last.
    fn weights(&self) -> f64 {
        if self.mesh.size("pp") > 1 { 1.0 / self.micro as f64 } else { 1.0 }
    }
}

/// Forward and backward over a region.
struct Both {
    forward: Pass,
    backward: Pass,
}

/// The regions of a model.
struct Passes {
    before: Both,
    layers: Vec<Both>,
    after: Both,
}

impl Passes {
    /// Seconds of a chunk for one micro-batch.
    fn each(&self, c: &Content, overlap: f64, paired: bool) -> Each {
        let mut row: Vec<(&Both, usize)> = vec![];
        row.extend(c.before.then_some((&self.before, 1)));
        row.extend(c.layers.iter().map(|(group, n)| (&self.layers[*group], *n)));
        row.extend(c.after.then_some((&self.after, 1)));
        let forward: Vec<(&Pass, usize)> = row.iter().map(|(b, n)| (&b.forward, *n)).collect();
        let backward: Vec<(&Pass, usize)> =
            row.iter().rev().map(|(b, n)| (&b.backward, *n)).collect();
        let mut each = Each {
            forward: streams::seconds(&forward, overlap),
            backward: streams::seconds(&backward, overlap),
            both: None,
        };
        if paired {
            // Layers go side by side; what is around them goes by itself.
            let ends = [(c.before, &self.before), (c.after, &self.after)];
            let ends = ends.into_iter().filter(|(here, _)| *here).map(|(_, b)| b);
            let one = |p: &Pass| streams::seconds(&[(p, 1)], overlap);
            let around = ends.fold(Seconds::default(), |sum, b| {
                sum.plus(one(&b.forward), 1.0).plus(one(&b.backward), 1.0)
            });
            each.both = Some(c.layers.iter().fold(around, |sum, (group, n)| {
                let b = &self.layers[*group];
                sum.plus(streams::paired(&b.forward, &b.backward, overlap), *n as f64)
            }));
        }
        each
    }
}

impl Sum {
    fn seconds(&self, speed: &Speed<'_>, g: Group) -> f64 {
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

/// Seconds of a chunk for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Each {
    forward: Seconds,
    backward: Seconds,
    /// Of a forward and a backward side by side, where they can be.
    both: Option<Seconds>,
}

impl Each {
    fn plus(self, o: Each, times: f64) -> Each {
        Each {
            forward: self.forward.plus(o.forward, times),
            backward: self.backward.plus(o.backward, times),
            both: o.both.map(|b| self.both.unwrap_or_default().plus(b, times)),
        }
    }

    fn sum(&self) -> f64 {
        self.forward.sum() + self.backward.sum()
    }

    fn chunk(&self) -> Chunk {
        let (forward, backward) = (self.forward.sum(), self.backward.sum());
        let saved = self.both.map_or(0.0, |b| forward + backward - b.sum());
        Chunk { forward, backward, saved }
    }

    /// Where a share `pairs` of the forwards runs beside a backward: what they take together is dealt out as they take it apart.
    fn beside(self, pairs: f64) -> Each {
        let Some(both) = self.both else { return self };
        let (f, b) = (self.forward, self.backward);
        let part = |of: fn(&Seconds) -> f64, own: &Seconds| {
            let sum = of(&f) + of(&b);
            let share = if sum > 0.0 { of(own) / sum } else { 0.5 };
            (1.0 - pairs) * of(own) + pairs * share * of(&both)
        };
        let each = |own: &Seconds| Seconds {
            product: part(|s| s.product, own),
            attention: part(|s| s.attention, own),
            memory: part(|s| s.memory, own),
            launch: part(|s| s.launch, own),
            node: part(|s| s.node, own),
            network: part(|s| s.network, own),
        };
        Each { forward: each(&f), backward: each(&b), both: None }
    }
}

/// What a chunk of a stage holds: layers as (group, number).
#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    before: bool,
    layers: Vec<(usize, usize)>,
    after: bool,
}

/// Deals groups of so many layers out to `pp` stages of `chunks` chunks each, in order: chunk `c` of stage `s` holds part
/// `c * pp + s`. What comes before the layers goes with the first part, what comes after with the last.
fn deal(layers: &[usize], pp: usize, chunks: usize, split: &[usize]) -> Vec<Vec<Content>> {
    let parts = pp * chunks.max(1);
    let total: usize = layers.iter().sum();
    let mut stages = vec![vec![Content::default(); chunks.max(1)]; pp];
    let mut first = 0;
    for part in 0..parts {
        // Uneven numbers give the earlier parts one more.
        let even = total / parts + usize::from(part < total % parts);
        let count = split.get(part).copied().unwrap_or(even);
        let slot = &mut stages[part % pp][part / pp];
        (slot.before, slot.after) = (part == 0, part + 1 == parts);
        let mut start = 0;
        for (group, n) in layers.iter().enumerate() {
            let from = first.max(start);
            let to = (first + count).min(start + n);
            if to > from {
                slot.layers.push((group, to - from));
            }
            start += n;
        }
        first += count;
    }
    stages
}

#[cfg(test)]
mod tests;
