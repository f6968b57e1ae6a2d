//! Passes and updates: what is asked of them, and as jobs that can be timed again and again.
//!
//! In: a stage that works on a graph, its samples. Out: a [`Timed`], which holds no plan and no program, and the phase of a step that
//! it is. [`Passes`] are those of a mesh with their samples, for searches that time them in many layouts.

use std::sync::Arc;

use nrl_ir::program::{Binding, Stage};
use nrl_sim::Precision;
use nrl_sim::forecast::{Assumed, Estimate, Kind, Part, Phase, Timing, Traffic};
use nrl_sim::machine::Machine;
use nrl_sim::rates::{Compute, Rates, Speed};
use nrl_sim::tables::{Found, Tables};
use nrl_sim::train::{Job, Took, Update};
use nrl_sim::work::Sizes;

use super::hosts::Hosted;
use super::lengths::Lengths;
use super::{Assume, Cast, machine_of, traffic};
use crate::regroup::Works;
use crate::rl::{Batch, Rl};
use crate::{Compiled, fits, sampler};

/// A pass or an update that can be timed again and again, on any machine and stack.
#[derive(Clone, Debug)]
pub struct Timed {
    pub job: Job,
    pub machine: Machine,
    /// How often the job runs in a step.
    pub times: f64,
    /// Tokens of a micro-batch on a rank.
    pub tokens: f64,
    /// Seconds of a run besides: host work for every sample.
    pub host: f64,
    /// What hosts hold and compute of it.
    pub hosted: Hosted,
    /// It is a pass of a step that samples, without an update.
    pub called: bool,
}

impl Timed {
    /// Times the job, with the host's part.
    pub fn run(&self, speed: &Speed<'_>) -> Took {
        // A pass of a step that samples ends without an update: its host's part is that of the call.
        let rates = Rates { fixed: 0.0, ..speed.rates.clone() };
        let speed = &if self.called { Speed { rates: &rates, ..*speed } } else { *speed };
        let took = self.job.run(speed);
        let seconds = took.seconds + self.host + self.hosted.crossing(&took);
        Took { seconds, fixed: took.fixed + self.host, ..took }
    }
}

/// What a pass is of.
pub(super) struct Pass {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) model: usize,
    pub(super) graph: usize,
}

/// What a pass goes over.
pub(super) struct Counted<'a> {
    pub(super) updates: usize,
    /// Tokens of a micro-batch.
    pub(super) budget: usize,
    pub(super) count: f64,
    pub(super) lengths: &'a Lengths,
    /// How samples are packed; as many as fit by their mean length if `None`.
    pub(super) rl: Option<&'a Rl>,
}

/// Passes and updates on one mesh, with the samples that they take: the same in every layout.
pub struct Passes {
    all: Vec<Taken>,
    steps: usize,
    rl: Option<Arc<Rl>>,
}

/// A stage of a phase, by their indices, and its samples.
struct Taken {
    at: (usize, usize),
    count: f64,
    lengths: Lengths,
}

impl Passes {
    /// Those on mesh `mesh`.
    pub fn on(c: &Compiled, assume: &Assume, found: &Found, mesh: usize) -> Passes {
        let cast = Cast::new(c, assume, found);
        let mut all = vec![];
        for (i, section) in c.program.phases.iter().enumerate() {
            for (j, b) in section.step.iter().enumerate() {
                let Some((pass, ..)) = cast.asked(&section.step, b) else { continue };
                if c.program.models[pass.model].mesh != mesh || cast.skips(&section.step, b) {
                    continue;
                }
                if let Some((count, lengths)) = cast.samples(&section.step, b) {
                    all.push(Taken { at: (i, j), count, lengths });
                }
            }
        }
        let steps = c.program.phases.iter().map(|p| p.steps).sum();
        Passes { all, steps, rl: cast.rl }
    }

    /// Seconds per step, in the mean over phases.
    pub fn seconds(&self, c: &Compiled, assume: &Assume, found: &Found, works: &mut Works) -> f64 {
        let cast = Cast { c, assume, found, rl: self.rl.clone() };
        let mut seconds = 0.0;
        for taken in &self.all {
            let section = &c.program.phases[taken.at.0];
            let asked = cast.asked(&section.step, &section.step[taken.at.1]);
            let Some((pass, optimizer, updates, epochs, budget)) = asked else { continue };
            let (count, updates) = (taken.count * epochs as f64, updates * epochs);
            let rl = cast.rl.as_deref();
            let all = Counted { updates, budget, count, lengths: &taken.lengths, rl };
            let Some(t) = timed(c, &pass, &all, optimizer, works) else { continue };
            let near = found.near(&t.job, &t.machine.name);
            let (rates, compute) = (&near.rates, assume.compute);
            let took = t.run(&Speed { machine: &t.machine, rates, compute });
            seconds += took.seconds * t.times * section.steps as f64;
        }
        seconds / self.steps.max(1) as f64
    }
}

/// The updates of the recipe's steps, in order.
pub fn updates(c: &Compiled) -> Vec<Timed> {
    let assume = Assume::default();
    let found = Tables::default().find("", "", Compute::Bf16);
    let cast = Cast::new(c, &assume, &found);
    let mut all = vec![];
    for section in &c.program.phases {
        for b in &section.step {
            let Some((pass, optimizer, updates, epochs, budget)) = cast.asked(&section.step, b)
            else {
                continue;
            };
            if optimizer.is_none() {
                continue;
            }
            let Some((count, lengths)) = cast.samples(&section.step, b) else { continue };
            let count = count * epochs as f64;
            let updates = updates * epochs;
            let counted = Counted { updates, budget, count, lengths: &lengths, rl: None };
            all.extend(timed(c, &pass, &counted, optimizer, &mut Works::default()));
        }
    }
    all
}

impl Cast<'_> {
    /// A pass or an update: its optimizer, updates, epochs and tokens of a micro-batch.
    pub(super) fn asked(
        &self,
        step: &[Binding],
        b: &Binding,
    ) -> Option<(Pass, Option<usize>, usize, usize, usize)> {
        let name =
            |what: &str, model: usize| format!("{what} {}", self.c.program.models[model].name);
        match b.stage {
            Stage::Update { model, graph, optimizer, updates, epochs, tokens, .. } => {
                let name = name("update", model);
                let pass = Pass { kind: Kind::Update, name, model, graph };
                Some((pass, Some(optimizer), updates, epochs, tokens))
            }
            Stage::Forward { model, graph, tokens, .. } => {
                let name = name("score by", model);
                // Stacks that sample go by the update's.
                let of = |x: &Binding| match x.stage {
                    Stage::Update { tokens, .. } => Some(tokens),
                    _ => None,
                };
                let usual = self.rl.as_ref().and_then(|rl| {
                    let weights = sampler::dims(&self.c.program.models[model]).params;
                    Some(rl.scored(step.iter().find_map(of)?, weights))
                });
                let tokens = usual.unwrap_or(tokens);
                let pass = Pass { kind: Kind::Score, name, model, graph };
                Some((pass, None, 1, 1, self.c.framework.scored(tokens)))
            }
            _ => None,
        }
    }

    /// A pass over all samples, by micro-batches; with an optimizer if it is an update.
    pub(super) fn pass(
        &self,
        b: &Binding,
        pass: &Pass,
        all: &Counted<'_>,
        optimizer: Option<usize>,
        (traffic, assumed): (&mut Vec<Traffic>, &mut Vec<Assumed>),
    ) -> Option<Phase> {
        let timed = timed(self.c, pass, all, optimizer, &mut Works::default())?;
        let Timed { job, machine, times, .. } = &timed;
        let found = self.found.near(job, &machine.name);
        let speed = Speed { machine, rates: &found.rates, compute: self.assume.compute };
        let took = timed.run(&speed);
        traffic::add(traffic, &pass.name, job, &speed, *times);
        assumed.extend(timed.hosted.assumed().filter(|a| !assumed.contains(a)));
        let mut parts = parts(&took, *times);
        let crossing = timed.hosted.crossing(&took) * times;
        if crossing > 0.0 {
            parts.push(Part { name: "to and from hosts".into(), seconds: crossing });
            parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        }
        let seconds = Estimate::around(took.seconds * times, found.spread, found.source);
        let peak = machine.flops * job.mesh.ranks() as f64;
        Some(Phase {
            kind: pass.kind,
            name: pass.name.clone(),
            origin: b.origin,
            model: Some(pass.model),
            mesh: self.c.program.models[pass.model].mesh,
            devices: job.mesh.ranks(),
            seconds,
            parts,
            forward: nrl_sim::rates::Seconds::default().plus(took.forward, *times),
            backward: nrl_sim::rates::Seconds::default().plus(took.backward, *times),
            flops: took.flops * times,
            mfu: Some(took.flops / (took.seconds * peak)),
            bubble: took.bubble / took.seconds.max(f64::MIN_POSITIVE),
            micro: job.micro,
            micro_tokens: timed.tokens,
            generated: None,
            job: Some(Timing { job: Box::new(timed.job), times: timed.times, rates: found.rates }),
        })
    }
}

pub(super) fn precision(c: &Compiled, model: usize) -> Precision {
    if fits::is_bf16(c, model) { Precision::Bf16 } else { Precision::F32 }
}

pub(super) fn timed(
    c: &Compiled,
    pass: &Pass,
    all: &Counted<'_>,
    optimizer: Option<usize>,
    works: &mut Works,
) -> Option<Timed> {
    let index = c.program.models[pass.model].mesh;
    let machine = machine_of(c, index)?;
    let mesh = &c.program.meshes[index].1;
    let plan = &c.plans[pass.graph];
    let ways = (mesh.size("dp") * mesh.size("fsdp")) as f64;
    let length = all.lengths.sum();
    // A rank takes whole samples; a micro-batch holds at least one.
    let per_rank = (all.count / ways / all.updates as f64).max(1.0);
    // Samples side by side are all as long as the longest; packed ones fill the budget.
    let (fit, length) = match c.framework.padded {
        Some((updates, _)) if optimizer.is_some() => (updates as f64, all.lengths.padded()),
        Some((_, scores)) => (scores as f64, all.lengths.padded()),
        None => ((all.budget as f64 / length).floor().max(1.0), length),
    };
    let (micro, sizes) = match all.rl.filter(|_| c.framework.padded.is_none()) {
        Some(rl) => {
            let (ways, pads) = (ways as usize, plan.pipeline.is_some());
            let by = (pass.graph, ways, all.budget, pads);
            works.packed(by, || packed(all, rl, ways, pads))
        }
        None => {
            let micro = (per_rank / fit).ceil().max(1.0);
            (micro as usize, Sizes::packed(per_rank * length / micro, length))
        }
    };
    let called = all.rl.is_some() && optimizer.is_none();
    let host = all.rl.map_or(0.0, |rl| rl.host(all.updates, per_rank, mesh.size("cp")));
    let precision = precision(c, pass.model);
    let weight = if precision == Precision::Bf16 { 2.0 } else { 4.0 };
    let update = optimizer.map(|o| {
        // Gradient, master copy and moments read; moments, master copy and weight written.
        let moments = c.program.optimizers[o].state.len() as f64;
        let bytes = 4.0 + 8.0 * (moments + 1.0) + weight;
        let on_host = c.away(pass.model).of_state();
        Update { on_host, ..Update::of(plan, mesh, 4.0, weight, bytes) }
    });
    let work = works.of(pass.graph, plan, &sizes, precision);
    let pipeline = plan.pipeline.as_ref();
    let layers = |p: &nrl_ir::plan::Part| p.layers.iter().map(|(_, n)| n).sum();
    let job = Job {
        micro,
        chunks: pipeline.map_or(1, |p| p.chunks),
        split: pipeline.map(|p| p.parts.iter().map(layers).collect()),
        update,
        ..Job::alone(work, mesh.clone())
    };
    let times = all.updates as f64;
    let hosted = Hosted::of(c, (pass, plan, &sizes), (&job, times), all.rl);
    Some(Timed { job, machine, times, tokens: sizes.tokens, host, hosted, called })
}

/// Micro-batches of a rank, and the sizes of one, as a stack packs samples.
fn packed(all: &Counted<'_>, rl: &Rl, ways: usize, pads: bool) -> (usize, Sizes) {
    let p = rl.packed(&Batch {
        law: &all.lengths.law,
        prompt: all.lengths.prompt,
        most: all.lengths.most,
        count: all.count,
        updates: all.updates,
        ways,
        budget: all.budget,
        pads,
    });
    let sizes = Sizes {
        tokens: p.tokens,
        scored: p.tokens,
        sequences: p.sequences,
        groups: p.sequences,
        context: p.context,
    };
    (p.micro, sizes)
}

/// What the seconds are spent on, the longest first.
pub(crate) fn parts(took: &Took, times: f64) -> Vec<Part> {
    let beside = [
        ("pipeline bubble", took.bubble),
        ("gradients and weights", took.gradients),
        ("optimizer", took.optimizer),
        ("fixed", took.fixed),
    ];
    let both = took.forward.plus(took.backward, 1.0).named().into_iter();
    let mut parts: Vec<Part> = both
        .chain(beside)
        .filter(|(_, s)| *s > 0.0)
        .map(|(name, s)| Part { name: name.into(), seconds: s * times })
        .collect();
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    parts
}
