//! Tensor stages of a step, each one job on the ranks: a graph over the whole batch, a forward pass, an update.
//!
//! In: a batch and the tensors that the stage reads. Out: tensors over the batch, or a report per optimizer step. All
//! ranks run the same number of micro-batches; counts are those of the whole optimizer batch, fixed before it starts,
//! so that a loss does not depend on packing or layout.

use std::sync::Arc;

use nrl_ir::graph::Graph;
use nrl_ir::plan::Plan;

use crate::engine::HostTensor;
use crate::rank::{Compiled, Ranks, Worker, data_axes, free_axes};
use crate::rng::Stream;
use crate::rollout::batch::Batch;
use crate::rollout::is_first;
use crate::run::error::{Outcome, RunError};
use crate::run::optimizer::{self, StepStats};
use crate::run::pack::{Budget, Packed, atoms, pack, split};
use crate::run::value::{Counts, Inputs, Level, Tensor, bind, unpack};

/// The graph that a plan runs.
pub fn planned(plan: &Plan) -> Outcome<&Graph> {
    plan.classes.first().map(|c| &c.graph).ok_or_else(|| RunError::internal("a plan without ranks"))
}

/// Runs `graph` over the whole batch on rank 0; one tensor per output.
pub fn compute(
    ranks: &Ranks,
    setup: &Compiled,
    graph: usize,
    batch: &Arc<Batch>,
    inputs: Inputs,
) -> Outcome<Vec<Tensor>> {
    let plan = setup.plans[graph].clone();
    let batch = batch.clone();
    ranks.one(0, move |w: &mut Worker| {
        let g = planned(&plan)?;
        let samples: Vec<usize> = (0..batch.samples.len()).collect();
        let bind = bind(g, &batch, &samples, &inputs, Counts::of(&batch))?;
        let ready = w.prepare(graph)?;
        let comm = w.comm(&plan.mesh)?.ok_or_else(|| RunError::internal("rank 0 is in no mesh"))?;
        let mut none = crate::engine::ParamStore::default();
        let outputs = w.device.run(ready, &mut none, None, &bind, &comm)?;
        let levels = levels(g)?;
        outputs
            .into_iter()
            .zip(levels)
            .map(|(t, level)| Ok(Tensor::new(level, numbers(t)?)))
            .collect()
    })
}

fn numbers(t: HostTensor) -> Outcome<Vec<f32>> {
    match t {
        HostTensor::F32(x) => Ok(x),
        HostTensor::Id(_) => Err(RunError::internal("a stage gives indices")),
    }
}

fn levels(g: &Graph) -> Outcome<Vec<Level>> {
    g.body.results.iter().map(|v| Level::of(g, g.ty(*v))).collect()
}

/// Must the samples of a prompt run together? They must if a value has one number per prompt.
fn whole_groups(g: &Graph) -> bool {
    g.values.iter().any(|t| t.dims.iter().any(|d| g.dims.name(*d) == "group"))
}

fn budget(g: &Graph, tokens: usize) -> Budget {
    let bound = |name: &str| g.dims.find(name).map_or(usize::MAX, |d| g.dims.bound(d)).max(1);
    Budget { tokens: tokens.min(bound("tok")), sequences: bound("seq") }
}

/// What one rank's micro-batches gave: per micro-batch its samples, then one vector per output.
type Pieces = Vec<(Vec<usize>, Vec<Vec<f32>>)>;

/// Runs `model` forward over the batch by micro-batches of `tokens`; one tensor per output of `graph`.
pub fn forward(
    ranks: &Ranks,
    setup: &Compiled,
    (model, graph, tokens): (usize, usize, usize),
    batch: &Arc<Batch>,
    inputs: Inputs,
) -> Outcome<Vec<Tensor>> {
    let plan = setup.plans[graph].clone();
    let g = planned(&plan)?;
    let axes = free_axes(&plan);
    let atoms = atoms(batch, whole_groups(g));
    let all: Vec<usize> = (0..atoms.len()).collect();
    let packed = pack(&atoms, &all, plan.mesh.size_over(&axes), budget(g, tokens))?;
    let levels = levels(g)?;
    let job = (plan.clone(), batch.clone());
    let parts: Vec<Pieces> = ranks.all(move |w| {
        let (plan, batch) = &job;
        let Some(comm) = w.comm(&plan.mesh)? else { return Ok(vec![]) };
        let g = planned(plan)?;
        let ready = w.prepare(graph)?;
        let mut pieces = vec![];
        for samples in &packed[comm.coord(&axes)] {
            let bind = bind(g, batch, samples, &inputs, Counts::of(batch))?;
            let outputs = w.device.run(ready, &mut w.stores[model], None, &bind, &comm)?;
            let outputs = outputs.into_iter().map(numbers).collect::<Outcome<Vec<_>>>()?;
            if is_first(&comm, &axes) {
                pieces.push((samples.clone(), outputs));
            }
        }
        Ok(pieces)
    })?;
    let pieces: Vec<_> = parts.into_iter().flatten().collect();
    let output = |(i, level): (usize, &Level)| {
        let parts: Vec<_> = pieces.iter().map(|(s, out)| (s.clone(), out[i].clone())).collect();
        unpack(batch, *level, &parts)
    };
    levels.iter().enumerate().map(output).collect()
}

/// An update stage.
#[derive(Clone)]
pub struct Update {
    pub model: usize,
    pub optimizer: usize,
    pub graph: usize,
    pub updates: usize,
    pub epochs: usize,
    /// Budget of a micro-batch, per data-parallel rank.
    pub tokens: usize,
    /// Order of the samples in epoch `e` is that of child `e`.
    pub order: Stream,
    pub inputs: Inputs,
}

/// What one optimizer step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub stats: StepStats,
    pub counts: Counts,
    /// The graph's scalar outputs, over the whole optimizer batch: the loss, then whatever else.
    pub scalars: Vec<(String, f64)>,
    /// Largest, sum and number of differences between the log-probabilities of trainer and sampler, at equal weights.
    pub gap: Option<(f64, f64, usize)>,
    /// Nothing was trained, so nothing was changed.
    pub empty: bool,
}

/// One optimizer batch, packed.
struct Batches {
    counts: Counts,
    packed: Packed,
}

/// Runs all optimizer steps of an update; one report per step.
pub fn update(
    ranks: &Ranks,
    setup: &Compiled,
    batch: &Arc<Batch>,
    job: Update,
) -> Outcome<Vec<Report>> {
    let plan = setup.plans[job.graph].clone();
    let g = planned(&plan)?;
    let axes = data_axes(&plan);
    let atoms = atoms(batch, whole_groups(g));
    let shares = plan.mesh.size_over(&axes);
    if batch.samples.is_empty() {
        return Ok(vec![]);
    }
    let mut batches = vec![];
    for epoch in 0..job.epochs.max(1) {
        for chosen in split(atoms.len(), job.updates.max(1), &job.order.child(epoch as u64)) {
            let samples: Vec<usize> =
                chosen.iter().flat_map(|a| atoms[*a].samples.clone()).collect();
            let counts = Counts::trained(batch, &samples);
            batches.push(Batches {
                counts,
                packed: pack(&atoms, &chosen, shares, budget(g, job.tokens))?,
            });
        }
    }
    let names: Vec<(usize, String)> = scalars(g)?;
    let task = Arc::new(Task { plan: plan.clone(), batch: batch.clone(), job, batches, axes });
    let for_ranks = task.clone();
    let parts: Vec<Vec<Part>> = ranks.all(move |w| for_ranks.run(w))?;
    let steps = task.batches.len();
    (0..steps).map(|u| Ok(combine(&parts, u, task.batches[u].counts, &names))).collect()
}

/// Scalar outputs of a graph.
fn scalars(g: &Graph) -> Outcome<Vec<(usize, String)>> {
    let levels = levels(g)?;
    Ok((0..levels.len())
        .filter(|i| levels[*i] == Level::Scalar)
        .map(|i| (i, g.outputs[i].clone()))
        .collect())
}

/// Scalars are whole on every rank: graphs sum them over the ranks that split sequences.
fn combine(parts: &[Vec<Part>], u: usize, counts: Counts, names: &[(usize, String)]) -> Report {
    let mut report = Report { counts, empty: counts.tokens == 0, ..Report::default() };
    for (i, part) in parts.iter().filter_map(|p| p.get(u)).filter(|p| p.counts).enumerate() {
        if i == 0 {
            report.stats = part.stats;
            report.scalars =
                names.iter().map(|(_, n)| n.clone()).zip(part.scalars.iter().copied()).collect();
        }
        if let Some((max, sum, n)) = part.gap {
            let g = report.gap.get_or_insert((0.0, 0.0, 0));
            *g = (g.0.max(max), g.1 + sum, g.2 + n);
        }
    }
    report
}

struct Task {
    plan: Arc<Plan>,
    batch: Arc<Batch>,
    job: Update,
    batches: Vec<Batches>,
    axes: Vec<String>,
}

/// What one rank did in one optimizer step.
struct Part {
    stats: StepStats,
    scalars: Vec<f64>,
    gap: Option<(f64, f64, usize)>,
    /// This rank is the first of those that ran the same micro-batches.
    counts: bool,
}

impl Task {
    fn run(&self, w: &mut Worker) -> Outcome<Vec<Part>> {
        let Some(comm) = w.comm(&self.plan.mesh)? else { return Ok(vec![]) };
        let g = planned(&self.plan)?;
        let levels = levels(g)?;
        let (coord, counts) = (comm.coord(&self.axes), is_first(&comm, &self.axes));
        let ready = w.prepare(self.job.graph)?;
        let mut parts = vec![];
        for (u, batch) in self.batches.iter().enumerate() {
            let mut part = Part { stats: StepStats::default(), scalars: vec![], gap: None, counts };
            part.scalars.resize(levels.iter().filter(|l| **l == Level::Scalar).count(), 0.0);
            // Every rank knows the counts, so all of them leave out the same steps.
            if batch.counts.tokens > 0 {
                for samples in &batch.packed[coord] {
                    let bind = bind(g, &self.batch, samples, &self.job.inputs, batch.counts)?;
                    let outputs =
                        w.device.run(ready, &mut w.stores[self.job.model], None, &bind, &comm)?;
                    let outputs = outputs.into_iter().map(numbers).collect::<Outcome<Vec<_>>>()?;
                    let scalars = outputs.iter().zip(&levels).filter(|(_, l)| **l == Level::Scalar);
                    for (s, (x, _)) in part.scalars.iter_mut().zip(scalars) {
                        *s += x.first().map_or(0.0, |x| f64::from(*x));
                    }
                    if u == 0 {
                        let logprobs = (0..outputs.len())
                            .find(|i| levels[*i] == Level::Token && is_logprob(&g.outputs[*i]));
                        if let Some(i) = logprobs {
                            add_gap(&mut part.gap, &self.batch, samples, &outputs[i]);
                        }
                    }
                }
                part.stats =
                    optimizer::step(w, self.job.model, self.job.optimizer, self.job.graph)?;
            }
            parts.push(part);
        }
        Ok(parts)
    }
}

/// Does an output of this name hold log-probabilities of the trained tokens?
pub fn is_logprob(output: &str) -> bool {
    output == "logprob" || output.ends_with(".logprob")
}

/// Compares `ours`, the log-probabilities of `samples`' tokens, with those they were drawn at.
pub fn add_gap(
    gap: &mut Option<(f64, f64, usize)>,
    batch: &Batch,
    samples: &[usize],
    ours: &[f32],
) {
    let drawn = samples.iter().flat_map(|s| &batch.samples[*s].logprobs);
    for (a, b) in ours.iter().zip(drawn) {
        let d = f64::from(a - b).abs();
        let g = gap.get_or_insert((0.0, 0.0, 0));
        // A NaN must stay visible.
        *g = (if d > g.0 || d.is_nan() { d } else { g.0 }, g.1 + d, g.2 + 1);
    }
}
