//! What stands on devices at refits, evaluations and checkpoints: the order of a run applied to a recipe.
//!
//! In: the stages of a step with their terms, and the blocks that run every so many steps. Out: what a device holds
//! at each kind of moment (`phases`), by term, with the steps at which that happens. A generator on the cluster
//! of its trainer takes turns with it; on another one neither sees the other.

use std::collections::BTreeMap;

use nrl_ir::program::{Phase, Stage};

use super::phases::{Moment, Order, Parts, What, moments};
use super::{Memory, Place, Setup, Term, When};

/// Steps after which periods have shown all they do.
const FAR: usize = 2_000;

/// A generator, its samples and the update that shares its devices.
struct Pair<'a> {
    generator: usize,
    name: &'a str,
    sample: Memory,
    update: Memory,
    staging: f64,
}

impl Setup<'_> {
    fn shared(&self, a: usize, b: usize) -> bool {
        let cluster = |mesh: usize| self.clusters.get(mesh).copied().flatten();
        a == b || cluster(a).is_some() && cluster(a) == cluster(b)
    }

    /// Is a model updated on the devices of a mesh?
    pub(super) fn trains_beside(&self, mesh: usize) -> bool {
        self.program.phases.iter().flat_map(|p| &p.step).any(|b| match b.stage {
            Stage::Update { model, .. } => self.shared(self.program.models[model].mesh, mesh),
            _ => false,
        })
    }

    /// What happens beside the stages of a step.
    pub(super) fn beside(&self, phase: &Phase, own: &[Memory]) -> Vec<Memory> {
        let mut out: Vec<Memory> = vec![];
        let order = Order { tied_to_refit: self.habits.tied_to_refit, ..Order::of(phase) };
        let mut paired = vec![];
        for (generator, origin) in generators(phase) {
            let Some(pair) = self.pair(generator, origin, own) else {
                out.extend(self.evaluations(phase, generator));
                continue;
            };
            let parts = pair.parts();
            paired.push(pair.update.stage.clone());
            for (what, loaded, steps) in kinds(&moments(&parts, &shortened(&order))) {
                let place = place(phase, what, generator).or(origin);
                let Some(m) = pair.memory(phase, what, loaded, place) else { continue };
                let m = Memory { when: When::of(&steps), ..m };
                if !out.iter().any(|o| o.stage == m.stage && o.mesh == m.mesh) {
                    out.push(m);
                }
            }
        }
        if let Some(n) = order.save {
            let alone = own.iter().filter(|m| m.is_update() && !paired.contains(&m.stage));
            let first = n.min(order.steps.max(1));
            let when = When { first, period: if first + n <= order.steps { n } else { 0 } };
            out.extend(alone.map(|m| saved(m, place(phase, What::Save, 0), when)));
        }
        let finite = |m: &Memory| m.device.memory.is_finite();
        out.retain(finite);
        out
    }

    /// A generator whose model is updated on the same devices.
    fn pair(&self, generator: usize, origin: Place, own: &[Memory]) -> Option<Pair<'_>> {
        let g = &self.program.generators[generator];
        let update = own
            .iter()
            .find(|m| m.is_update() && m.model == g.model && self.shared(m.mesh, g.mesh))?
            .clone();
        let sample = self.sampling(generator, format!("sample by {}", g.name), origin)?;
        let m = &self.program.models[g.model];
        // Weights go over one tensor at a time, whole, in 16 bits; experts one by one.
        let whole = |p: &nrl_ir::ParamDecl| -> f64 {
            let dims = p.dims.iter().filter(|d| m.dims.name(**d) != "expert");
            dims.map(|d| m.dims.bound(*d) as f64).product()
        };
        let staging = 2.0 * m.params.iter().map(whole).fold(0.0, f64::max);
        Some(Pair { generator, name: &g.name, sample, update, staging })
    }

    /// Evaluations by a generator that shares devices with no trainer of its model.
    fn evaluations(&self, phase: &Phase, generator: usize) -> Vec<Memory> {
        let mut out = vec![];
        for e in &phase.every {
            for b in &e.stages {
                let is = matches!(b.stage, Stage::Evaluate { generator: g, .. } if g == generator);
                let name = format!("evaluate {}", b.name);
                if let Some(m) = is.then(|| self.sampling(generator, name, b.origin)).flatten() {
                    let first = e.period.min(phase.steps.max(1));
                    let period = if first + e.period <= phase.steps { e.period } else { 0 };
                    out.push(Memory { when: When { first, period }, ..m });
                }
            }
        }
        out
    }
}

impl Pair<'_> {
    fn parts(&self) -> Parts {
        let other = |t: &&Term| t.name != "weights" && t.name != "context";
        let pool = self.sample.terms.iter().filter(other).map(|t| t.bytes).sum();
        Parts { staging: self.staging, ..Parts::of(&self.update, &self.sample, pool) }
    }

    /// What stands on a device at such a moment; `None` for what a step has a stage of.
    fn memory(&self, phase: &Phase, what: What, loaded: bool, origin: Place) -> Option<Memory> {
        let stage = match (what, loaded) {
            (What::Train, _) | (What::Generate, false) => return None,
            (What::Refit, _) => format!("refit {}", self.name),
            (What::Generate, true) => format!("sample by {} after a checkpoint", self.name),
            (What::Save, _) => return Some(saved(&self.update, origin, When::EVERY)),
            (What::Validate, _) => format!("evaluate {}", evaluation(phase, self.generator)?),
        };
        let of = |m: &Memory, names: &[&str]| -> Vec<Term> {
            m.terms.iter().filter(|t| names.contains(&t.name)).cloned().collect()
        };
        let mut terms = vec![];
        if what == What::Refit {
            terms.extend(of(&self.update, &["weights", "adapters"]));
            let engine = of(&self.sample, &["weights"]).into_iter();
            terms.extend(engine.map(|t| Term { name: "engine", ..t }));
            let how = "the largest tensor, whole, in 16 bits".into();
            terms.push(Term { name: "staging", bytes: self.staging, how });
        } else {
            if loaded {
                let left = of(&self.update, &["gradients", "optimizer"]).into_iter();
                terms.extend(left.map(|t| Term { how: format!("{}, left behind", t.how), ..t }));
            }
            terms.extend(self.sample.terms.iter().filter(|t| t.name != "context").cloned());
        }
        terms.extend(of(&self.update, &["context"]));
        Some(Memory { stage, origin, terms, ..self.sample.clone() })
    }
}

/// A checkpoint of what an update leaves: weights, gradients and state.
fn saved(update: &Memory, origin: Place, when: When) -> Memory {
    let kept = ["weights", "adapters", "gradients", "optimizer", "context"];
    let terms = update.terms.iter().filter(|t| kept.contains(&t.name)).cloned().collect();
    let model = update.stage.trim_start_matches("update ");
    Memory { stage: format!("checkpoint {model}"), origin, terms, when, ..update.clone() }
}

/// Generators that draw in a phase, each with the first place that asks for it.
fn generators(phase: &Phase) -> Vec<(usize, Place)> {
    let mut out: Vec<(usize, Place)> = vec![];
    for b in phase.step.iter().chain(phase.every.iter().flat_map(|e| &e.stages)) {
        if let Stage::Generate { generator, .. } | Stage::Evaluate { generator, .. } = &b.stage
            && !out.iter().any(|(g, _)| g == generator)
        {
            out.push((*generator, b.origin));
        }
    }
    out
}

/// The name of what a generator evaluates.
fn evaluation(phase: &Phase, generator: usize) -> Option<&str> {
    phase.every.iter().flat_map(|e| &e.stages).find_map(|b| match b.stage {
        Stage::Evaluate { generator: g, .. } if g == generator => Some(b.name.as_str()),
        _ => None,
    })
}

/// Where the recipe asks for it.
fn place(phase: &Phase, what: What, generator: usize) -> Place {
    let mut all = phase.every.iter().flat_map(|e| &e.stages);
    let found = all.find(|b| match (&b.stage, what) {
        (Stage::Checkpoint { .. }, What::Save | What::Generate) => true,
        (Stage::Evaluate { generator: g, .. }, What::Validate) => *g == generator,
        _ => false,
    });
    found.and_then(|b| b.origin)
}

/// The order over as many steps as its periods need to come around twice.
fn shortened(order: &Order) -> Order {
    let periods = [order.save, order.validate].into_iter().flatten().filter(|n| *n > 0);
    let around = periods.fold(1usize, |all, n| all.saturating_mul(n / gcd(all, n)));
    let steps = around.saturating_mul(2).saturating_add(2).min(FAR);
    Order { steps: order.steps.min(steps), ..*order }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Kinds of moments in the order they first come, whether state of the optimizer is beside them, and their steps.
fn kinds(moments: &[Moment]) -> Vec<(What, bool, Vec<usize>)> {
    let mut at: BTreeMap<(What, bool), usize> = BTreeMap::new();
    let mut out: Vec<(What, bool, Vec<usize>)> = vec![];
    for m in moments {
        let kind = (m.what, m.optimizer > 0.0);
        let i = *at.entry(kind).or_insert_with(|| {
            out.push((kind.0, kind.1, vec![]));
            out.len() - 1
        });
        if out[i].2.last() != Some(&m.step) {
            out[i].2.push(m.step);
        }
    }
    out
}
