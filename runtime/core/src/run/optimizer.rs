//! One optimizer step on one rank: gradients summed, norm, clip, the pointwise program, weights spread again.
//!
//! In: gradients summed over this rank's micro-batches. They are still owed a sum over their `pending` axes, which
//! happens here once per step: an all-reduce, or a reduce-scatter where the state is cut (zero1). Out: new weights, the
//! same on every rank that holds them. The global norm counts each weight once, whatever replicates it; a norm that is
//! not finite skips the step on all ranks alike. Zero sharding after Rajbhandari et al. 2020.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nrl_ir::host::{self, Func, Value};
use nrl_ir::plan::ParamLayout;
use nrl_ir::program::Optimizer;

use crate::comm::Reduce;
use crate::engine::{Comm, ParamStore};
use crate::rank::Worker;
use crate::run::error::{Outcome, RunError};
use crate::weights::{Placement, is_vector, placements};

/// Values that are summed in one exchange.
const BUCKET: usize = 1 << 20;

/// What an optimizer remembers on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// Steps taken.
    pub updates: u64,
    /// `[state][slot]`: this rank's part of each state tensor.
    pub tensors: Vec<Vec<Vec<f32>>>,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepStats {
    /// Global norm before the clip.
    pub grad_norm: f64,
    pub lr: f64,
    /// The norm was not finite, so nothing was changed.
    pub skipped: bool,
    /// Root mean square of the change, and of the weights.
    pub update_rms: f64,
    pub weight_rms: f64,
}

/// One trained tensor of the model.
struct Tensor {
    slot: usize,
    /// Elements of the local tensor that this rank updates.
    mine: Range<usize>,
    /// Padded length of a rank's part under zero1.
    part: usize,
    decays: bool,
    /// Axes whose ranks hold other elements.
    split: Vec<String>,
    /// Axes to all-reduce over, and then to cut over.
    sum: Vec<String>,
    scatter: Vec<String>,
    /// Axes over which parts of the weight are gathered again.
    gather: Vec<String>,
}

/// Applies `optimizer` to `model`, whose gradients came from `graph`.
pub fn step(w: &mut Worker, model: usize, optimizer: usize, graph: usize) -> Outcome<StepStats> {
    let setup = w.setup.clone();
    let plan = &setup.plans[graph];
    let Some(comm) = w.comm(&plan.mesh)? else { return Ok(StepStats::default()) };
    let config = &setup.program.optimizers[optimizer];
    let tensors = trained(&setup.program.models[model], &plan.params, config, &comm)?;
    let mut store = std::mem::take(&mut w.stores[model]);
    let mut state = w.optimizers[optimizer].take().unwrap_or_default();
    let stats =
        Step { w, comm, config, tensors: &tensors, store: &mut store, state: &mut state }.run();
    w.stores[model] = store;
    w.optimizers[optimizer] = Some(state);
    stats
}

/// Lengths of this rank's part of a state tensor, by slot; 0 for weights that are not trained.
pub fn state_lengths(
    model: &nrl_ir::program::Model,
    layouts: &[ParamLayout],
    mesh: &nrl_ir::Mesh,
) -> Outcome<Vec<usize>> {
    let places = placements(model, layouts)?;
    let mut lengths = vec![];
    for (p, decl) in model.params.iter().enumerate() {
        let layers = decl.repeat.as_ref().map_or(1, |(_, n)| *n);
        let len =
            if decl.trained { places[p].of_state(layout(layouts, p)?).part_len(mesh) } else { 0 };
        lengths.extend(std::iter::repeat_n(len, layers));
    }
    Ok(lengths)
}

fn layout(layouts: &[ParamLayout], param: usize) -> Outcome<&ParamLayout> {
    let found = layouts.iter().find(|l| l.param.0 as usize == param);
    found.ok_or_else(|| RunError::internal(format!("parameter {param} has no layout")))
}

fn trained(
    model: &nrl_ir::program::Model,
    layouts: &[ParamLayout],
    config: &Optimizer,
    comm: &Comm,
) -> Outcome<Vec<Tensor>> {
    let places: Vec<Placement> = placements(model, layouts)?;
    let (mesh, rank) = (comm.mesh(), comm.rank());
    let mut tensors = vec![];
    let mut slot = 0;
    for (p, decl) in model.params.iter().enumerate() {
        let layers = decl.repeat.as_ref().map_or(1, |(_, n)| *n);
        let layout = layout(layouts, p)?;
        let zero1 = layout.flat.is_empty() && mesh.size_over(&layout.state) > 1;
        let len = places[p].part_len(mesh);
        let state = places[p].of_state(layout);
        let part = state.part_len(mesh);
        let start = if zero1 { (part * mesh.coord_over(rank, &layout.state)).min(len) } else { 0 };
        let (cut, keep): (Vec<String>, Vec<String>) =
            layout.pending.iter().cloned().partition(|a| zero1 && layout.state.contains(a));
        for layer in 0..layers {
            if decl.trained {
                tensors.push(Tensor {
                    slot: slot + layer,
                    mine: start..(start + part).min(len),
                    part,
                    decays: config.decay_norms || !is_vector(decl),
                    split: state.split_axes(),
                    // A sum over some of the state's axes only cannot be scattered over all of them.
                    sum: if cut.len() == layout.state.len() {
                        keep.clone()
                    } else {
                        layout.pending.clone()
                    },
                    scatter: if cut.len() == layout.state.len() { cut.clone() } else { vec![] },
                    gather: if zero1 { layout.state.clone() } else { vec![] },
                });
            }
        }
        slot += layers;
    }
    Ok(tensors)
}

struct Step<'a> {
    w: &'a mut Worker,
    comm: Arc<Comm>,
    config: &'a Optimizer,
    tensors: &'a [Tensor],
    store: &'a mut ParamStore,
    state: &'a mut OptimizerState,
}

impl Step<'_> {
    fn run(mut self) -> Outcome<StepStats> {
        for t in self.tensors {
            let len = self.store.weights[t.slot].len();
            // A rank whose micro-batches were all empty may not have any gradients.
            self.store.grads[t.slot].resize(len, 0.0);
        }
        sum(self.tensors, &mut self.store.grads, &self.comm)?;
        scatter(self.tensors, &mut self.store.grads, &self.comm)?;
        let mut stats = self.norm()?;
        if stats.grad_norm.is_finite() {
            self.update(&mut stats)?;
        } else {
            stats.skipped = true;
        }
        for t in self.tensors {
            self.store.grads[t.slot].fill(0.0);
        }
        Ok(stats)
    }

    fn norm(&self) -> Outcome<StepStats> {
        let grads = &self.store.grads;
        let squares = |t: &Tensor| vec![sum_squares(&grads[t.slot][t.mine.clone()])];
        let mut norm = [once(self.tensors, &self.comm, squares)?[0].sqrt()];
        // All ranks must decide alike.
        if let Some(all) = self
            .comm
            .along(&self.comm.mesh().axes.iter().map(|a| a.name.clone()).collect::<Vec<_>>())
        {
            all.all_reduce(&mut norm, Reduce::Max)?;
        }
        Ok(StepStats { grad_norm: norm[0], ..StepStats::default() })
    }

    fn update(&mut self, stats: &mut StepStats) -> Outcome<()> {
        let t = self.state.updates + 1;
        stats.lr = number(&self.config.lr, &[t as f64])?;
        let scalars = [self.scalars(t, stats.lr, 0.0)?, self.scalars(t, stats.lr, 1.0)?];
        if let Some(clip) = self.config.clip_norm
            && stats.grad_norm > clip
        {
            let scale = (clip / (stats.grad_norm + 1e-6)) as f32;
            for t in self.tensors {
                self.store.grads[t.slot][t.mine.clone()].iter_mut().for_each(|g| *g *= scale);
            }
        }
        let plan = self.w.prepare(self.config.graph)?;
        let names: Vec<&str> =
            ["w", "g"].into_iter().chain(self.config.state.iter().map(String::as_str)).collect();
        if self.state.tensors.is_empty() {
            self.state.tensors =
                vec![vec![vec![]; self.store.weights.len()]; self.config.state.len()];
        }
        let mut squares = vec![];
        let mut before = vec![];
        for t in self.tensors {
            let weights = &mut self.store.weights[t.slot][t.mine.clone()];
            before.clear();
            before.extend_from_slice(weights);
            let mut slices: Vec<&mut [f32]> =
                vec![&mut *weights, &mut self.store.grads[t.slot][t.mine.clone()]];
            for s in &mut self.state.tensors {
                s[t.slot].resize(t.part, 0.0);
                slices.push(&mut s[t.slot][..t.mine.len()]);
            }
            let scalars: Vec<(&str, f32)> =
                scalars[usize::from(t.decays)].iter().map(|(n, x)| (n.as_str(), *x)).collect();
            self.w.device.run_flat(plan, &names, &mut slices, &scalars)?;
            squares.push(vec![
                difference_squares(weights, &before),
                sum_squares(weights),
                weights.len() as f64,
            ]);
        }
        gather(self.tensors, &mut self.store.weights, &self.comm)?;
        let mut next = squares.into_iter();
        let sums = once(self.tensors, &self.comm, |_| next.next().unwrap_or_default())?;
        if let [change, weight, count] = sums[..] {
            stats.update_rms = (change / count.max(1.0)).sqrt();
            stats.weight_rms = (weight / count.max(1.0)).sqrt();
        }
        self.state.updates = t;
        Ok(())
    }

    fn scalars(&self, t: u64, lr: f64, decay: f64) -> Outcome<Vec<(String, f32)>> {
        let one = |(i, f): (usize, &Func)| {
            Ok((format!("host.{i}"), number(f, &[t as f64, lr, decay])? as f32))
        };
        self.config.scalars.iter().enumerate().map(one).collect()
    }
}

/// Calls a host function that returns a number.
pub fn number(f: &Func, args: &[f64]) -> Outcome<f64> {
    let args: Vec<Value> = args.iter().map(|x| Value::Num(*x)).collect();
    match host::call(f, &args)? {
        Value::Num(x) => Ok(x),
        Value::Bool(b) => Ok(f64::from(b)),
        v => Err(RunError::new(
            "expression-failed",
            format!("`{}` gives a {}, not a number", f.name, v.kind()),
        )),
    }
}

/// Sums what `of` gives for each tensor over all ranks, each element counted once.
fn once(
    tensors: &[Tensor],
    comm: &Comm,
    mut of: impl FnMut(&Tensor) -> Vec<f64>,
) -> Outcome<Vec<f64>> {
    let mut by_axes: BTreeMap<&[String], Vec<f64>> = BTreeMap::new();
    for t in tensors {
        let x = of(t);
        let sums = by_axes.entry(&t.split).or_insert_with(|| vec![0.0; x.len()]);
        sums.iter_mut().zip(x).for_each(|(s, x)| *s += x);
    }
    let mut total: Vec<f64> = vec![0.0];
    for (axes, mut sums) in by_axes {
        if let Some(group) = comm.along(axes) {
            group.all_reduce(&mut sums, Reduce::Sum)?;
        }
        total.resize(sums.len().max(total.len()), 0.0);
        total.iter_mut().zip(sums).for_each(|(t, s)| *t += s);
    }
    Ok(total)
}

/// Tensors of the same `axes`, in groups of about [`BUCKET`] values.
fn buckets<'a>(
    tensors: &'a [Tensor],
    axes: impl Fn(&'a Tensor) -> &'a [String],
) -> Vec<(&'a [String], Vec<&'a Tensor>)> {
    let mut by_axes: BTreeMap<&[String], Vec<Vec<&Tensor>>> = BTreeMap::new();
    let mut sizes: BTreeMap<&[String], usize> = BTreeMap::new();
    for t in tensors.iter().filter(|t| !axes(t).is_empty()) {
        let lists = by_axes.entry(axes(t)).or_default();
        let size = sizes.entry(axes(t)).or_insert(BUCKET);
        if *size >= BUCKET {
            lists.push(vec![]);
            *size = 0;
        }
        *size += t.part;
        if let Some(list) = lists.last_mut() {
            list.push(t);
        }
    }
    by_axes.into_iter().flat_map(|(a, lists)| lists.into_iter().map(move |l| (a, l))).collect()
}

fn sum(tensors: &[Tensor], grads: &mut [Vec<f32>], comm: &Comm) -> Outcome<()> {
    for (axes, list) in buckets(tensors, |t| &t.sum) {
        let Some(group) = comm.along(axes) else { continue };
        if let [t] = list[..] {
            group.all_reduce(&mut grads[t.slot], Reduce::Sum)?;
            continue;
        }
        let mut buffer: Vec<f32> = vec![];
        for t in &list {
            buffer.extend_from_slice(&grads[t.slot]);
        }
        group.all_reduce(&mut buffer, Reduce::Sum)?;
        let mut at = 0;
        for t in &list {
            let grad = &mut grads[t.slot];
            let n = grad.len();
            grad.copy_from_slice(&buffer[at..at + n]);
            at += n;
        }
    }
    Ok(())
}

fn scatter(tensors: &[Tensor], grads: &mut [Vec<f32>], comm: &Comm) -> Outcome<()> {
    for (axes, list) in buckets(tensors, |t| &t.scatter) {
        let Some(group) = comm.along(axes) else { continue };
        let width: usize = list.iter().map(|t| t.part).sum();
        let mut buffer = vec![0.0; width * group.size()];
        for j in 0..group.size() {
            let mut at = j * width;
            for t in &list {
                let grad = &grads[t.slot];
                let piece = &grad[(j * t.part).min(grad.len())..((j + 1) * t.part).min(grad.len())];
                buffer[at..at + piece.len()].copy_from_slice(piece);
                at += t.part;
            }
        }
        let mut mine = vec![0.0; width];
        group.reduce_scatter(&buffer, &mut mine, Reduce::Sum)?;
        let mut at = 0;
        for t in &list {
            grads[t.slot][t.mine.clone()].copy_from_slice(&mine[at..at + t.mine.len()]);
            at += t.part;
        }
    }
    Ok(())
}

fn gather(tensors: &[Tensor], weights: &mut [Vec<f32>], comm: &Comm) -> Outcome<()> {
    for (axes, list) in buckets(tensors, |t| &t.gather) {
        let Some(group) = comm.along(axes) else { continue };
        let width: usize = list.iter().map(|t| t.part).sum();
        let mut mine = vec![0.0; width];
        let mut at = 0;
        for t in &list {
            mine[at..at + t.mine.len()].copy_from_slice(&weights[t.slot][t.mine.clone()]);
            at += t.part;
        }
        let mut all = vec![0.0; width * group.size()];
        group.all_gather(&mine, &mut all)?;
        for j in 0..group.size() {
            let mut at = j * width;
            for t in &list {
                let weight = &mut weights[t.slot];
                let range = (j * t.part).min(weight.len())..((j + 1) * t.part).min(weight.len());
                let n = range.len();
                weight[range].copy_from_slice(&all[at..at + n]);
                at += t.part;
            }
        }
    }
    Ok(())
}

/// Sum of squares in f64 in a fixed order: eight lanes, then their sum.
fn sum_squares(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let chunks = x.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for c in chunks {
        for i in 0..8 {
            lanes[i] += f64::from(c[i]) * f64::from(c[i]);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

fn difference_squares(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}
