//! What a run tells those who watch it.
//!
//! The run loop prints nothing: it reports events, and the command line shows them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

/// A sample to look at.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shown {
    pub prompt: String,
    pub completion: String,
    pub reward: Option<f64>,
}

/// One finished step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    pub phase: String,
    /// Finished steps of the phase, and all of them.
    pub in_phase: usize,
    pub of_phase: usize,
    /// Finished steps of the run, and all of them.
    pub step: u64,
    pub of: u64,
    /// Metrics by name, as in metrics.jsonl.
    pub numbers: IndexMap<String, f64>,
    /// Seconds since the run started, this time.
    pub elapsed: f64,
}

/// The end of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Ended before its last step, and why.
    pub stopped: Option<String>,
    pub dir: PathBuf,
    pub steps: u64,
    pub seconds: f64,
    /// Mean reward of every step that had one.
    pub rewards: Vec<f64>,
    /// Greedy answers to the same prompts, before the first generating phase and now.
    pub before: Vec<Shown>,
    pub now: Vec<Shown>,
    /// Reports of the first and of the last evaluation.
    pub first_eval: IndexMap<String, f64>,
    pub last_eval: IndexMap<String, f64>,
    /// Exported models.
    pub models: Vec<PathBuf>,
    pub checkpoint: Option<PathBuf>,
    pub skipped_updates: u64,
    pub failed_rewards: u64,
}

/// What happened.
pub enum Event<'a> {
    /// The run is about to start.
    Started {
        dir: &'a Path,
        ranks: usize,
        parameters: usize,
        resumed: Option<u64>,
        steps: u64,
    },
    /// Something to know.
    Note(&'a str),
    Phase {
        name: &'a str,
        steps: usize,
    },
    Step(&'a StepReport),
    Evaluated {
        name: &'a str,
        numbers: &'a BTreeMap<String, f64>,
    },
    Saved {
        path: &'a Path,
    },
}

/// Somebody who watches.
pub trait Watch {
    fn event(&mut self, event: Event);
}

/// Nobody.
pub struct Unwatched;

impl Watch for Unwatched {
    fn event(&mut self, _: Event) {}
}
