//! What a recipe's step will take, as reports show it.
//!
//! Every number says where it comes from and between what it may lie. Seconds are of one step, bytes are of
//! the fullest rank.

use serde::{Deserialize, Serialize};

use crate::Memory;
use crate::generate::Generated;
use crate::rates::{Compute, Rates, Seconds};
use crate::train::Job;

/// Where a number comes from, the surest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Counted from the plan.
    Counted,
    /// Measured on this very machine and stack, and fitted.
    Calibrated,
    /// Fitted on a neighbor: the same device with another stack, or the other way around.
    Interpolated,
    /// Rates of the data sheet with shares that are common.
    Roofline,
    /// A guess about what only a run can tell.
    #[default]
    Assumed,
}

impl Source {
    /// The word in reports; guesses are in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Source::Counted => "counted",
            Source::Calibrated => "calibrated",
            Source::Interpolated => "interpolated",
            Source::Roofline => "roofline",
            Source::Assumed => "GUESS",
        }
    }
}

/// A number, the interval in which nine of ten runs should lie, and its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub source: Source,
}

impl Estimate {
    /// `value`, a factor of `1 + spread` either way.
    pub fn around(value: f64, spread: f64, source: Source) -> Estimate {
        Estimate { value, low: value / (1.0 + spread), high: value * (1.0 + spread), source }
    }

    /// The sum; its source is the least sure one. Errors add, since they have common causes.
    pub fn plus(self, o: Estimate) -> Estimate {
        Estimate {
            value: self.value + o.value,
            low: self.low + o.low,
            high: self.high + o.high,
            source: self.source.max(o.source),
        }
    }
}

/// What a phase of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Sample,
    Score,
    Update,
    Refit,
    Other,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sample => "sample",
            Kind::Score => "score",
            Kind::Update => "update",
            Kind::Refit => "refit",
            Kind::Other => "other",
        }
    }
}

/// One phase of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    pub kind: Kind,
    /// `update policy`.
    pub name: String,
    /// The line that asks for it, as a node's origin.
    pub origin: Option<(u32, u32, u32)>,
    pub model: Option<usize>,
    /// Index of the mesh that it runs on.
    pub mesh: usize,
    /// Devices of that mesh.
    pub devices: usize,
    pub seconds: Estimate,
    /// Of the busiest stage of the pipeline: what the seconds are spent on.
    pub parts: Vec<Part>,
    /// Seconds by what engines do, forward and backward; zero for phases that are not passes.
    pub forward: Seconds,
    pub backward: Seconds,
    /// Of all devices together.
    pub flops: f64,
    /// Share of the peak in use; `None` where no products run.
    pub mfu: Option<f64>,
    /// Share of the phase in which stages of a pipeline wait.
    pub bubble: f64,
    /// Micro-batches of one update or pass on one rank, and tokens in each.
    pub micro: usize,
    pub micro_tokens: f64,
    /// How a phase of sampling goes.
    pub generated: Option<Generated>,
    /// What was timed; `None` for phases that are no passes.
    #[serde(skip)]
    pub job: Option<Timing>,
}

/// A job, how often it runs in a step, and the rates that it was timed with.
#[derive(Clone, Debug)]
pub struct Timing {
    pub job: Box<Job>,
    pub times: f64,
    pub rates: Rates,
}

impl Phase {
    /// Seconds on `devices` of mesh `mesh`, and nothing else: what is no pass over a model.
    pub fn alone(
        kind: Kind,
        name: String,
        (mesh, devices): (usize, usize),
        seconds: Estimate,
    ) -> Phase {
        Phase {
            kind,
            name,
            origin: None,
            model: None,
            mesh,
            devices,
            seconds,
            parts: vec![],
            forward: Default::default(),
            backward: Default::default(),
            flops: 0.0,
            mfu: None,
            bubble: 0.0,
            micro: 1,
            micro_tokens: 0.0,
            generated: None,
            job: None,
        }
    }
}

/// Seconds of a phase spent on one thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    pub name: String,
    pub seconds: f64,
}

/// One kind of collective in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    pub phase: String,
    pub kind: String,
    pub axes: Vec<String>,
    /// `node` or `network`.
    pub class: String,
    pub ranks: usize,
    /// Calls per step on one rank, and bytes per call.
    pub calls: f64,
    pub bytes: f64,
    pub seconds: f64,
}

/// Something that nobody measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumed {
    pub what: String,
    pub value: String,
    pub source: Source,
    /// How to replace it.
    pub help: String,
}

/// A step of one phase of the recipe.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The phase's name; empty if the recipe has one.
    pub name: String,
    pub steps: usize,
    pub seconds: Estimate,
    pub phases: Vec<Phase>,
    pub traffic: Vec<Traffic>,
    /// Samples of a step, and tokens of all of them.
    pub samples: f64,
    pub tokens: f64,
    /// Share of a micro-batch's budget that holds no token.
    pub padding: f64,
    /// What runs after every so many steps, on top of `seconds`.
    pub every: Vec<Periodic>,
}

/// An evaluation or a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Periodic {
    /// `evaluate test`.
    pub name: String,
    /// Steps from one to the next; it also runs after the last.
    pub period: usize,
    /// Of one time.
    pub seconds: Estimate,
}

impl Periodic {
    /// How often it runs in so many steps.
    pub fn times(&self, steps: usize) -> usize {
        steps.div_ceil(self.period.max(1))
    }

    /// Its share of each of so many steps.
    pub fn per_step(&self, steps: usize) -> Estimate {
        let share = self.times(steps) as f64 / steps.max(1) as f64;
        let e = self.seconds;
        Estimate { value: e.value * share, low: e.low * share, high: e.high * share, ..e }
    }
}

impl Step {
    /// Seconds of a step with its share of what runs now and then.
    pub fn with_every(&self) -> Estimate {
        self.every.iter().fold(self.seconds, |sum, p| sum.plus(p.per_step(self.steps)))
    }

    /// Its middle.
    pub fn average(&self) -> f64 {
        self.with_every().value
    }
}

/// What a recipe will cost.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    pub recipe: String,
    pub devices: usize,
    pub device: String,
    pub stack: String,
    /// What the stack reaches, and on which number type of products.
    pub rates: Rates,
    pub compute: Compute,
    pub steps: Vec<Step>,
    pub memory: Vec<Memory>,
    pub assumed: Vec<Assumed>,
    /// What no number here takes into account.
    pub not_modelled: Vec<String>,
}

impl Forecast {
    /// Seconds of all steps.
    pub fn total(&self) -> f64 {
        self.steps.iter().map(|s| s.average() * s.steps as f64).sum()
    }

    /// The stage with the least memory left.
    pub fn tightest(&self) -> Option<&Memory> {
        self.memory.iter().min_by(|a, b| a.margin().total_cmp(&b.margin()))
    }
}
