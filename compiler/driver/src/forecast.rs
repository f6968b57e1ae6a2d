//! What a step of the recipe will take on the machines it names.
//!
//! In: a compiled program, and what is assumed about things only a run can tell (lengths, the software
//! stack). Out: a [`Forecast`]: seconds by phase, bytes by stage, each with its source. The numbers come from the
//! plans that an engine would run.

mod every;
mod hosts;
mod lengths;
mod passes;
mod rewards;
mod sampling;
mod traffic;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use nrl_ir::program::{Binding, Phase as Section, Stage};
use nrl_sim::calibration::Calibration;
use nrl_sim::forecast::{Assumed, Estimate, Forecast, Kind, Phase, Source, Step};
use nrl_sim::machine::Machine;
use nrl_sim::rates::Compute;
use nrl_sim::rl_stack::RlStacks;
use nrl_sim::tables::{Found, Tables};

use crate::rl::{self, Rl};
use crate::threads::Seen;
use crate::{Compiled, Framework, fits};

pub use every::checkpoint_bytes;
pub(crate) use every::evaluated;
use lengths::draw;
pub(crate) use passes::parts;
use passes::{Counted, Pass, precision, timed};
pub use passes::{Passes, Timed, updates};
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
}
