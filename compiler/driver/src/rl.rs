//! How a stack runs a step that samples: what its trainer, its engine and its refits reach, and what runs beside what.
//!
//! In: a compiled program with generators, what is assumed. Out: the stack of software with its rates, samples packed into
//! micro-batches as it packs them, phases that it leaves out, and the seconds of a step whose samplers have devices
//! of their own.

use nrl_ir::program::{Binding, Stage, Weights};
use nrl_sim::forecast::{Assumed, Estimate, Kind, Phase, Source};
use nrl_sim::lengths::Lengths;
use nrl_sim::machine::Machine;
use nrl_sim::rl_stack::{Node, Packed, RlStack, RlStacks};
use nrl_sim::rollout::{Steady, Trainer};
use nrl_sim::tables::Found;

use crate::Compiled;
use crate::forecast::Assume;

/// Weights above which layers are computed again and passes take no larger micro-batches than updates: NeMo RL's own
/// recipes.
const LARGE: f64 = 100e9;

/// A stack on the devices of a program.
#[derive(Clone, Debug)]
pub(crate) struct Rl {
    pub stack: RlStack,
    node: Option<Node>,
    device: String,
}

/// What is packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub law: &'a Lengths,
    /// Tokens of a prompt, and most new tokens.
    pub prompt: f64,
    pub most: f64,
    pub count: f64,
    pub updates: usize,
    /// Ranks that each take a part.
    pub ways: usize,
    /// Tokens of an update's micro-batch.
    pub budget: usize,
    pub pads: bool,
}

impl Rl {
    /// The stack that runs `c` on devices like `machine`; `None` if it samples nothing, or with a stack that is
    /// known for other work alone.
    pub fn of(c: &Compiled, assume: &Assume, stack: &str, machine: &Machine) -> Option<Rl> {
        if c.program.generators.is_empty() {
            return None;
        }
        let stacks = stacks(assume);
        let stack = stacks.find(stack)?;
        let node = stacks.node(&machine.name).cloned();
        Some(Rl { stack, node, device: machine.name.clone() })
    }

    /// The rates of its trainer.
    pub fn found(&self) -> Found {
        self.stack.found(&self.device, self.node.as_ref())
    }

    /// The node of its devices.
    pub fn node(&self) -> Node {
        self.node.clone().unwrap_or_default()
    }

    /// Seconds of a step that are in no phase.
    pub fn other(&self) -> f64 {
        self.stack.other * self.node().host
    }

    /// Seconds of host work for one of `calls` parts of a batch, with `samples` samples of a rank that are cut over `ring` ranks.
    pub fn host(&self, calls: usize, samples: f64, ring: usize) -> f64 {
        let p = &self.stack.packing;
        let cut = if ring > 1 { samples * p.sequence } else { 0.0 };
        self.node().host * p.call / calls.max(1) as f64 + cut
    }

    /// Tokens of a micro-batch of a pass without an update.
    pub fn scored(&self, budget: usize, weights: f64) -> usize {
        match weights > LARGE {
            true => budget,
            false => (budget as f64 * self.stack.packing.scored) as usize,
        }
    }

    /// Samples in micro-batches.
    pub fn packed(&self, b: &Batch<'_>) -> Packed {
        let cap = b.most.max(1.0) as u32;
        let mut samples = b.law.draw(b.count as usize, 1, cap, 0.0);
        samples.iter_mut().for_each(|l| *l += b.prompt as u32);
        Packed::of(&samples, b.updates, b.ways, b.budget, b.pads, self.stack.packing.rounded)
    }
}

/// The tables of stacks.
pub(crate) fn stacks(assume: &Assume) -> &RlStacks {
    assume.stacks.as_ref().unwrap_or(RlStacks::shipped())
}

/// The name that the weights of a model have; of a frozen copy, those of its original.
pub(crate) fn named(c: &Compiled, model: usize) -> &str {
    match &c.program.models[model].weights {
        Weights::Directory { path } => path,
        Weights::Frozen { of, .. } if *of != model => named(c, *of),
        _ => "",
    }
}

/// Does a step score samples with the model that it trains on them, in one update? Log-probabilities before the update are then
/// those that the update computes itself.
pub(crate) fn scores_itself(step: &[Binding], b: &Binding) -> bool {
    let Stage::Forward { model, .. } = b.stage else { return false };
    let of = |x: &Binding| match x.stage {
        Stage::Update { model, updates, epochs, .. } => Some((model, updates * epochs)),
        _ => None,
    };
    step.iter().filter_map(of).any(|x| x == (model, 1))
}

/// What is assumed where such scores are left out.
pub(crate) fn left_out() -> Assumed {
    Assumed {
        what: "old log-probabilities".into(),
        value: "those of the update itself".into(),
        source: Source::Assumed,
        help: "`loss_fn.force_on_policy_ratio` says so".into(),
    }
}

/// The trainer's part of a step, for samplers that work beside it.
pub(crate) fn beside(phases: &[Phase], delay: usize) -> Trainer {
    let sum = |of: &dyn Fn(Kind) -> bool| -> f64 {
        phases.iter().filter(|p| of(p.kind)).map(|p| p.seconds.value).sum()
    };
    Trainer {
        seconds: sum(&|k| !matches!(k, Kind::Sample | Kind::Refit)),
        hand_over: sum(&|k| k == Kind::Refit),
        delay,
        drain: false,
    }
}

/// Seconds of a step in the steady state, between what they lie: the longer of both sides either way.
pub(crate) fn period(s: &Steady, sampling: Estimate, rest: Estimate) -> Estimate {
    let spread = |e: Estimate| {
        let v = e.value.max(f64::MIN_POSITIVE);
        (e.low / v, e.high / v)
    };
    let (a, b) = (spread(sampling), spread(rest));
    Estimate {
        value: s.period,
        low: s.period * a.0.min(b.0),
        high: s.period * a.1.max(b.1),
        source: sampling.source.max(rest.source),
    }
}
