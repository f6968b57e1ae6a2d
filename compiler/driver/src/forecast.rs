//! What a step of the recipe will take on the machines it names.
//!
//! In: a compiled program, and what is assumed about things only a run can tell (lengths, the software
//! stack). Out: a [`Forecast`]: seconds by phase, bytes by stage, each with its source. The numbers come from the
//! plans that an engine would run.

mod every;
mod hosts;
mod rewards;
mod traffic;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use nrl_ir::program::{Binding, Phase as Section, Stage};
use nrl_lower::facts::Law;
use nrl_sim::Precision;
use nrl_sim::calibration::Calibration;
use nrl_sim::forecast::{Assumed, Estimate, Forecast, Kind, Part, Phase, Source, Step, Traffic};
use nrl_sim::generate::Generated;
use nrl_sim::lengths as law;
use nrl_sim::machine::Machine;
use nrl_sim::rates::{Compute, Rates, Speed};
use nrl_sim::rl_stack::RlStacks;
use nrl_sim::tables::{Found, Tables};
use nrl_sim::train::{Job, Took, Update};
use nrl_sim::work::Sizes;

use crate::regroup::Works;
use crate::rl::{self, Batch, Rl};
use crate::sampler::{self, Draw, Sampler};
use crate::threads::Seen;
use crate::{Compiled, Framework, fits};

pub use every::checkpoint_bytes;
pub(crate) use every::evaluated;
pub use hosts::Hosted;
pub(crate) use rewards::latency;

/// What is taken for granted.
#[derive(Clone, Debug, Default)]
pub struct Assume {
    /// The software that runs, by the family of its calibration: `megatron-bridge`, `torchtitan`; by the plan if
    /// `None`.
    pub stack: Option<String>,
    /// Number type of products.
    pub compute: Compute,
    /// Calibration tables; those that ship if `None`.
    pub tables: Option<Tables>,
    /// What was measured of this machine, for ranks that are threads.
    pub calibration: Option<Calibration>,
    /// Mean and largest number of tokens of answers, as a run had them; what the recipe assumes if `None`.
    pub lengths: Option<(f64, f64)>,
    /// What was seen of the data sets of the program, by index.
    pub seen: BTreeMap<usize, Seen>,
    /// How the software that runs it goes about memory.
    pub framework: Framework,
    /// Evaluations and checkpoints are left out: where plans are compared by their steps alone.
    pub steps_alone: bool,
    /// Stacks that sample and train; those that ship if `None`.
    pub stacks: Option<RlStacks>,
}

/// Lengths of the samples of a step, in tokens.
#[derive(Clone, Debug, PartialEq)]
struct Lengths {
    prompt: f64,
    mean: f64,
    most: f64,
    /// The longest of a few hundred.
    longest: f64,
    law: law::Lengths,
    /// Nothing is known of them.
    guessed: bool,
    assumed: Vec<Assumed>,
}

impl Lengths {
    fn sum(&self) -> f64 {
        self.prompt + self.mean
    }

    /// Tokens of the longest sample of a step.
    fn padded(&self) -> f64 {
        (self.prompt + self.longest).max(self.sum())
    }
}

/// The forecast of a recipe; on threads of this process by what was measured of this machine.
pub fn forecast(c: &Compiled, assume: &Assume) -> Option<Forecast> {
    if let Some(f) = crate::threads::forecast(c, assume) {
        return Some(f);
    }
    let tables = assume.tables.as_ref().unwrap_or_else(|| Tables::shipped());
    let first = (0..c.program.meshes.len()).find_map(|m| machine_of(c, m))?;
    let (stack, found) = rates_of(c, assume, tables, &first);
    let cast = Cast::new(c, assume, &found);
    let (mut assumed, mut open) = (vec![], vec![]);
    let all = c.program.phases.iter();
    let steps: Vec<Step> = all.map(|s| cast.step(s, &mut assumed, &mut open)).collect();
    open.push("contention of the network, clocks of devices".into());
    assumed.push(Assumed {
        what: "rates".into(),
        value: found.entry.clone(),
        source: found.source,
        help: "`nrlc validate ROWS.csv --fit TABLE.json` fits them to measured runs".into(),
    });
    let devices = c.facts.clusters.iter().filter(|x| x.device.gpu && x.part_of.is_none());
    Some(Forecast {
        recipe: c.program.name.clone(),
        devices: devices.map(|x| x.ranks).sum(),
        device: first.name,
        stack,
        rates: found.rates.clone(),
        compute: assume.compute,
        steps,
        memory: fits::memory(c),
        assumed,
        not_modelled: open,
    })
}

/// What was found for the machines and the software of a recipe; `None` without machines.
pub fn rates(c: &Compiled, assume: &Assume, tables: &Tables) -> Option<Found> {
    let first = (0..c.program.meshes.len()).find_map(|m| machine_of(c, m))?;
    Some(rates_of(c, assume, tables, &first).1)
}

fn rates_of(c: &Compiled, assume: &Assume, tables: &Tables, first: &Machine) -> (String, Found) {
    let stack = stack_name(c, assume);
    if assume.tables.is_none()
        && let Some(rl) = Rl::of(c, assume, &stack, first)
    {
        return (rl.stack.stack.clone(), rl.found());
    }
    let found = tables.find(&first.name, &stack, assume.compute);
    (stack, found)
}

fn stack_name(c: &Compiled, assume: &Assume) -> String {
    assume.stack.clone().unwrap_or_else(|| stack_of(c).to_string())
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
            let (rates, compute) = (&found.rates, assume.compute);
            let took = t.run(&Speed { machine: &t.machine, rates, compute });
            seconds += took.seconds * t.times * section.steps as f64;
        }
        seconds / self.steps.max(1) as f64
    }
}

/// The machine that a mesh is on.
pub fn machine_of(c: &Compiled, mesh: usize) -> Option<Machine> {
    let cluster = &c.facts.clusters[c.facts.meshes.get(mesh)?.cluster?];
    let d = &cluster.device;
    d.gpu.then(|| Machine {
        name: d.name.clone(),
        memory: d.memory_bytes,
        host: d.host_bytes,
        flops: d.flops,
        fp8: d.fp8,
        fp4: d.fp4,
        bandwidth: d.bandwidth,
        link: d.link,
        network: d.network,
        per_node: d.domain.unwrap_or(cluster.per_node),
    })
}

/// The software that plans like those of the recipe stand for.
fn stack_of(c: &Compiled) -> &'static str {
    let gathered = c.plans.iter().any(|p| p.params.iter().any(|l| !l.flat.is_empty()));
    match (gathered, c.program.generators.is_empty()) {
        (false, true) => "megatron-bridge",
        (true, true) => "torchtitan",
        (false, false) => "nemo-rl",
        (true, false) => "nemo-rl-dtensor",
    }
}

struct Cast<'a> {
    c: &'a Compiled,
    assume: &'a Assume,
    found: &'a Found,
    /// How steps that sample run.
    rl: Option<Arc<Rl>>,
}

impl<'a> Cast<'a> {
    fn new(c: &'a Compiled, assume: &'a Assume, found: &'a Found) -> Cast<'a> {
        let first = (0..c.program.meshes.len()).find_map(|m| machine_of(c, m));
        let rl = first.and_then(|m| Rl::of(c, assume, &stack_name(c, assume), &m));
        Cast { c, assume, found, rl: rl.map(Arc::new) }
    }

    /// Is a stage one that the software leaves out?
    fn skips(&self, step: &[Binding], b: &Binding) -> bool {
        self.rl.is_some() && self.c.framework.on_policy && rl::scores_itself(step, b)
    }

    fn step(&self, section: &Section, assumed: &mut Vec<Assumed>, open: &mut Vec<String>) -> Step {
        let mut phases = vec![];
        let mut traffic = vec![];
        let (mut samples, mut tokens, mut padding) = (0.0f64, 0.0f64, 0.0);
        for b in &section.step {
            // Prompts alone are of no length yet.
            if matches!(b.stage, Stage::Take { complete: false, .. }) {
                continue;
            }
            let Some((count, lengths)) = self.samples(&section.step, b) else { continue };
            for a in &lengths.assumed {
                if !assumed.contains(a) {
                    assumed.push(a.clone());
                }
            }
            samples = samples.max(count);
            tokens = tokens.max(count * lengths.sum());
            if self.skips(&section.step, b) {
                assumed.push(rl::left_out());
                continue;
            }
            if let Some((pass, optimizer, updates, epochs, budget)) = self.asked(&section.step, b) {
                let (count, updates) = (count * epochs as f64, updates * epochs);
                let rl = self.rl.as_deref();
                let all = Counted { updates, budget, count, lengths: &lengths, rl };
                let told = (&mut traffic, &mut *assumed);
                let made = self.pass(b, &pass, &all, optimizer, told);
                if let (Some(p), Some(_)) = (&made, optimizer) {
                    let full = (budget as f64).max(lengths.sum());
                    padding = match self.c.framework.padded {
                        Some(_) => 1.0 - lengths.sum() / lengths.padded(),
                        None => 1.0 - p.micro_tokens / full,
                    };
                    padding = padding.clamp(0.0, 1.0);
                }
                phases.extend(made);
                continue;
            }
            if let Stage::Reward { reward } = &b.stage {
                phases.extend(self.reward(b, *reward, count, assumed, open));
            }
            if let Stage::Generate { generator, copies, .. } = &b.stage {
                phases.extend(self.sample(b, *generator, *copies, count, &lengths));
                phases.extend(self.refit(&section.step, b, *generator));
            }
        }
        phases.extend(self.around(&phases));
        let seconds = self.together(&section.step, &phases);
        let (name, steps) = (section.name.clone(), section.steps);
        let every = match self.assume.steps_alone {
            true => vec![],
            false => {
                let mut every = self.every(section, assumed, open);
                every.extend(self.validations(section, open));
                every
            }
        };
        Step { name, steps, seconds, phases, traffic, samples, tokens, padding, every }
    }

    /// What a step that samples takes besides its phases.
    fn around(&self, phases: &[Phase]) -> Option<Phase> {
        let rl = self.rl.as_ref().filter(|_| phases.iter().any(|p| p.kind == Kind::Sample))?;
        let trains = phases.iter().find(|p| p.kind == Kind::Update)?;
        let seconds = Estimate::around(rl.other(), 0.5, Source::Interpolated);
        let name = "data, rewards, processes".into();
        Some(Phase::alone(Kind::Other, name, (trains.mesh, trains.devices), seconds))
    }

    /// Seconds of a step: its phases one after the other, or, where samplers have devices of their own and samples may
    /// be older than a step, what both sides come to in the long run.
    fn together(&self, step: &[Binding], phases: &[Phase]) -> Estimate {
        let zero = Estimate { source: Source::Counted, ..Estimate::default() };
        let sum = |sampling: bool| {
            let own = phases.iter().filter(|p| (p.kind == Kind::Sample) == sampling);
            own.fold(zero, |sum, p| sum.plus(p.seconds))
        };
        let cluster = |mesh: usize| self.c.facts.meshes.get(mesh).and_then(|m| m.cluster);
        let trains = phases.iter().find(|p| p.kind == Kind::Update).map(|p| cluster(p.mesh));
        let apart =
            |p: &Phase| p.kind == Kind::Sample && trains.is_some_and(|t| t != cluster(p.mesh));
        let (sampling, rest) = (sum(true), sum(false));
        let delay = self.c.facts.staleness.unwrap_or(0);
        if !phases.iter().any(apart) || delay == 0 {
            return sampling.plus(rest);
        }
        let longer = Estimate {
            value: sampling.value.max(rest.value),
            low: sampling.low.max(rest.low),
            high: sampling.high.max(rest.high),
            source: sampling.source.max(rest.source),
        };
        let trainer = rl::beside(phases, delay);
        let alone = phases.iter().filter(|p| p.kind == Kind::Sample).count() == 1;
        let steady = self.rl.as_ref().filter(|_| alone).and_then(|_| {
            step.iter().find_map(|b| {
                let Stage::Generate { generator, copies, .. } = b.stage else { return None };
                let (count, lengths) = self.samples(step, b)?;
                self.sampler(generator)?.beside(&draw(count, copies, &lengths), &trainer).ok()
            })
        });
        match steady {
            Some(s) => rl::period(&s, sampling, rest),
            None => longer,
        }
    }

    /// A pass or an update: its optimizer, updates, epochs and tokens of a micro-batch.
    fn asked(
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

    /// How many samples a stage works on, and how long they are.
    fn samples(&self, step: &[Binding], b: &Binding) -> Option<(f64, Lengths)> {
        match &b.stage {
            Stage::Take { data, count, complete } => {
                Some((*count as f64, self.lengths(*data, None, *complete)))
            }
            Stage::Generate { generator, copies, max_new, .. } => {
                let take = b.args.iter().find_map(|a| match step.get(*a)?.stage {
                    Stage::Take { data, count, .. } => Some((data, count)),
                    _ => None,
                });
                let (data, rows) = take?;
                let model = self.c.program.generators[*generator].model;
                let context = self.c.program.models[model].context;
                let lengths = self.lengths(data, Some(max_new.unwrap_or(context)), false);
                Some(((rows * copies) as f64, lengths))
            }
            _ => b.args.iter().find_map(|a| self.samples(step, step.get(*a)?)),
        }
    }

    /// Lengths of rows of `data`, with at most `new` tokens drawn for each.
    fn lengths(&self, data: usize, new: Option<usize>, complete: bool) -> Lengths {
        let data = &self.c.program.data[data];
        let context = self.c.program.models[data.model].context as f64;
        let limit = data.at_most.map_or(context, |(n, _)| n as f64);
        let law = self.c.facts.assumptions.iter().find(|a| a.of == "lengths").map(|a| &a.law);
        let guess = |what: &str, value: f64| Assumed {
            what: what.into(),
            value: format!("{value:.0} tokens"),
            source: Source::Assumed,
            help: "`assume lengths = lognormal(mean: .., p99: ..)`, or `from \"rollouts.jsonl\"`"
                .into(),
        };
        let mut assumed = vec![];
        let prompt = if complete { 0.0 } else { (limit / 8.0).clamp(1.0, 128.0) };
        let most = new.map_or(context, |n| n as f64).min(context - prompt).max(1.0);
        let mut guessed = false;
        let given = self.assume.lengths.filter(|_| !complete);
        let law = match law {
            _ if given.is_some() => {
                let mean = given.map_or(most, |(mean, _)| mean.min(most));
                rl::stacks(self.assume).law(rl::named(self.c, data.model), mean)
            }
            Some(Law::Lognormal { mean, p99 }) => {
                law::Lengths::Lognormal { mean: *mean, p99: *p99 }
            }
            Some(Law::Uniform { low, high }) => law::Lengths::Uniform { low: *low, high: *high },
            Some(Law::Always(x)) => law::Lengths::Fixed(*x),
            Some(Law::Measured(all)) => law::Lengths::Measured(all.clone()),
            Some(Law::File(_)) | None => {
                let mean = (most / 4.0).max(1.0);
                guessed = true;
                assumed.push(guess(
                    if complete { "length of samples" } else { "output length" },
                    mean,
                ));
                law::Lengths::Capped { mean, sigma: 0.8, endless: 0.0 }
            }
        };
        if !complete {
            assumed.push(guess("prompt length", prompt));
        }
        // The mean of what is drawn, after the cap.
        let drawn = law.draw(512, 1, most as u32, 0.0);
        let mean = drawn.iter().map(|x| f64::from(*x)).sum::<f64>() / drawn.len() as f64;
        let longest = drawn.iter().copied().max().map_or(mean, f64::from);
        Lengths { prompt, mean, most, longest, law, guessed, assumed }
    }

    /// A pass over all samples, by micro-batches; with an optimizer if it is an update.
    fn pass(
        &self,
        b: &Binding,
        pass: &Pass,
        all: &Counted<'_>,
        optimizer: Option<usize>,
        (traffic, assumed): (&mut Vec<Traffic>, &mut Vec<Assumed>),
    ) -> Option<Phase> {
        let timed = timed(self.c, pass, all, optimizer, &mut Works::default())?;
        let Timed { job, machine, times, .. } = &timed;
        let speed = Speed { machine, rates: &self.found.rates, compute: self.assume.compute };
        let took = timed.run(&speed);
        traffic::add(traffic, &pass.name, job, &speed, *times);
        assumed.extend(timed.hosted.assumed().filter(|a| !assumed.contains(a)));
        let mut parts = parts(&took, *times);
        let crossing = timed.hosted.crossing(&took) * times;
        if crossing > 0.0 {
            parts.push(Part { name: "to and from hosts".into(), seconds: crossing });
            parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        }
        let seconds = Estimate::around(took.seconds * times, self.found.spread, self.found.source);
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
            job: Some((Box::new(timed.job), timed.times)),
        })
    }

    /// A generator as an engine on its machine.
    fn sampler(&self, generator: usize) -> Option<Sampler> {
        let machine = machine_of(self.c, self.c.program.generators[generator].mesh)?;
        Some(Sampler::of(self.c, generator, &machine, self.rl.as_deref()))
    }

    fn sample(
        &self,
        b: &Binding,
        generator: usize,
        copies: usize,
        count: f64,
        lengths: &Lengths,
    ) -> Option<Phase> {
        let c = self.c;
        let g = &c.program.generators[generator];
        let mesh = &c.program.meshes[g.mesh].1;
        let sampler = self.sampler(generator)?;
        let (drawn, pool) = sampler.run(&draw(count, copies, lengths)).ok()?;
        let call = sampler.engine.call;
        let seconds = drawn.seconds + call;
        let shares = ["prefill", "decoding", "waiting for the slowest replica"];
        let mut parts: Vec<Part> = shares
            .iter()
            .zip(drawn.shares)
            .map(|(name, x)| Part { name: (*name).into(), seconds: x * drawn.seconds })
            .collect();
        parts.push(Part { name: "around the call".into(), seconds: call });
        let flops = (sampler.shard.flops + sampler.shard.expert_flops) * sampler.shard.tp as f64;
        let source = if lengths.guessed { Source::Assumed } else { Source::Interpolated };
        Some(Phase {
            kind: Kind::Sample,
            name: format!("sample by {}", g.name),
            origin: b.origin,
            model: Some(g.model),
            mesh: g.mesh,
            devices: mesh.ranks(),
            seconds: Estimate::around(seconds, if lengths.guessed { 1.0 } else { 0.25 }, source),
            parts,
            forward: Default::default(),
            backward: Default::default(),
            flops: flops * count * lengths.sum(),
            mfu: None,
            bubble: 0.0,
            micro: 1,
            micro_tokens: 0.0,
            generated: Some(Generated { seconds, batch: drawn.mean_batch, pool }),
            job: None,
        })
    }

    /// New weights for the samplers of a model that the step updates.
    fn refit(&self, step: &[Binding], b: &Binding, generator: usize) -> Option<Phase> {
        let c = self.c;
        let g = &c.program.generators[generator];
        if !sampler::follows(step, g.model) {
            return None;
        }
        let machine = machine_of(c, g.mesh)?;
        let edges = sampler::moves(c, generator, &machine, self.rl.as_deref());
        let seconds: f64 = edges.iter().map(|e| e.seconds).sum();
        let devices = c.program.meshes[g.mesh].1.ranks();
        let seconds = Estimate::around(seconds, 0.4, Source::Interpolated);
        Some(Phase {
            origin: b.origin,
            model: Some(g.model),
            parts: edges.iter().map(|e| Part { name: e.name.into(), seconds: e.seconds }).collect(),
            ..Phase::alone(Kind::Refit, format!("refit {}", g.name), (g.mesh, devices), seconds)
        })
    }
}

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

/// Samples to draw.
fn draw(count: f64, copies: usize, lengths: &Lengths) -> Draw<'_> {
    Draw {
        prompts: (count / copies.max(1) as f64) as usize,
        copies,
        law: &lengths.law,
        prompt: lengths.prompt,
        most: lengths.most,
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

fn precision(c: &Compiled, model: usize) -> Precision {
    if fits::is_bf16(c, model) { Precision::Bf16 } else { Precision::F32 }
}

fn timed(
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
        let away = c.away(pass.model);
        let on_host = if away.optimizer { 1.0 } else { away.state };
        Update { on_host, ..Update::of(plan, mesh, 4.0, weight, bytes) }
    });
    let work = works.of(pass.graph, plan, &sizes, precision);
    let pipeline = plan.pipeline.as_ref();
    let layers = |p: &nrl_ir::plan::Part| p.layers.iter().map(|(_, n)| n).sum();
    let job = Job {
        work,
        mesh: mesh.clone(),
        micro,
        chunks: pipeline.map_or(1, |p| p.chunks),
        split: pipeline.map(|p| p.parts.iter().map(layers).collect()),
        paired: false,
        crossing: 1.0,
        update,
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

/// What a pass is of.
struct Pass {
    kind: Kind,
    name: String,
    model: usize,
    graph: usize,
}

/// What a pass goes over.
struct Counted<'a> {
    updates: usize,
    /// Tokens of a micro-batch.
    budget: usize,
    count: f64,
    lengths: &'a Lengths,
    /// How samples are packed; as many as fit by their mean length if `None`.
    rl: Option<&'a Rl>,
}

/// What the seconds are spent on, the longest first.
pub(crate) fn parts(took: &Took, times: f64) -> Vec<Part> {
    let (f, b) = (&took.forward, &took.backward);
    let mut parts: Vec<Part> = [
        ("products", f.product + b.product),
        ("attention", f.attention + b.attention),
        ("passes over memory", f.memory + b.memory),
        ("waiting for launches", f.launch + b.launch),
        ("collectives in a node", f.node + b.node),
        ("collectives across nodes", f.network + b.network),
        ("pipeline bubble", took.bubble),
        ("gradients and weights", took.gradients),
        ("optimizer", took.optimizer),
        ("fixed", took.fixed),
    ]
    .into_iter()
    .filter(|(_, s)| *s > 0.0)
    .map(|(name, s)| Part { name: name.into(), seconds: s * times })
    .collect();
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    parts
}
