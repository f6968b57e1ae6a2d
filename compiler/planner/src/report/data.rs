//! What reports say, as plain data: the one schema behind the screen, the JSON and the page.
//!
//! Seconds, bytes, FLOPs and tokens are what they are called, unscaled; shares are 0 to 1. docs/plan-json.md
//! describes every field, and changes with [`VERSION`]. Fields are only added within a version.

use nrl_sim::forecast::Estimate;
use serde::{Deserialize, Serialize};

/// Version of the schema.
pub const VERSION: u32 = 1;

/// Everything that is said of one recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub version: u32,
    pub recipe: String,
    pub file: String,
    pub clusters: Vec<Cluster>,
    pub models: Vec<Model>,
    pub layouts: Vec<Layout>,
    /// One per phase of the recipe that runs on devices.
    pub steps: Vec<Step>,
    pub run: Run,
    pub memory: Memory,
    pub collectives: Vec<Collective>,
    pub assumptions: Vec<Assumption>,
    pub changes: Vec<Change>,
    pub not_modelled: Vec<String>,
    /// Settings of a framework that the language has no words for, and what they do to the plan.
    pub settings: Vec<String>,
    pub operations: Vec<Operation>,
    pub pipelines: Vec<Pipeline>,
    /// Of passes and updates, forward and backward.
    pub layers: Vec<Layer>,
    pub graphs: Vec<Graph>,
}

/// A kind of device and how many of it there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cluster {
    pub name: String,
    pub device: String,
    pub devices: usize,
    pub per_node: usize,
    pub memory_bytes: f64,
    pub flops_per_second: f64,
    pub memory_bytes_per_second: f64,
    pub link_bytes_per_second: f64,
    pub network_bytes_per_second: f64,
    pub pool_of: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    pub name: String,
    pub checkpoint: Option<String>,
    pub family: String,
    pub parameters: f64,
    pub layers: usize,
    pub heads: Option<u64>,
    pub kv_heads: Option<u64>,
    pub context_tokens: usize,
    pub dtype: String,
    pub mesh: String,
    pub frozen: bool,
}

/// A mesh and what runs on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layout {
    pub mesh: String,
    pub axes: Vec<Axis>,
    pub devices: usize,
    pub train: Option<Train>,
    pub sample: Option<Sample>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Axis {
    pub name: String,
    pub size: usize,
}

/// How a model is trained on a mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Train {
    pub model: String,
    pub layers_per_stage: usize,
    /// On the fullest rank.
    pub weight_bytes: f64,
    pub samples: f64,
    pub updates: usize,
    /// Of one update on one rank.
    pub micro_batches: usize,
    pub micro_batch_tokens: f64,
}

/// How samples are drawn on a mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    pub generator: String,
    pub replicas: usize,
    pub devices_per_replica: usize,
    pub samples_per_replica: f64,
    /// Tokens that the pool of keys and values of a replica holds.
    pub pool_tokens: f64,
    pub pool_sequences_mean: f64,
    pub pool_sequences_longest: f64,
}

/// A number with the interval that nine of ten runs should lie in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Number {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    /// `counted`, `calibrated`, `interpolated`, `roofline` or `guess`.
    pub source: String,
}

impl Number {
    pub(crate) fn of(e: Estimate) -> Number {
        let source = e.source.name().to_lowercase();
        Number { value: e.value, low: e.low, high: e.high, source }
    }

    /// The word on screens: guesses are loud.
    pub fn word(&self) -> String {
        if self.source == "guess" { "GUESS".into() } else { self.source.clone() }
    }
}

/// A step of one phase of the recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    pub name: String,
    pub steps: usize,
    pub seconds: Number,
    pub phases: Vec<Phase>,
    pub samples: f64,
    pub tokens: f64,
    pub tokens_per_second_per_device: f64,
    /// Of all products and attention of the step, against the peak of all devices.
    pub mfu: f64,
    /// Share of updates in which stages of a pipeline wait.
    pub bubble: f64,
    /// Share of the token budget of micro-batches that holds no token.
    pub padding: f64,
    pub dominant: Option<Dominant>,
    /// What runs every so many steps, on top of `seconds`.
    pub every: Vec<Every>,
    /// `seconds` with the shares of what runs now and then.
    pub average_seconds: Number,
}

/// An evaluation or a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Every {
    pub name: String,
    /// Steps from one to the next; it also runs after the last.
    pub period: usize,
    /// Of one time.
    pub seconds: Number,
    /// Its share of each step.
    pub per_step_seconds: Number,
}

/// What most seconds are spent on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dominant {
    pub phase: String,
    pub part: String,
    pub seconds: f64,
    /// Of the step.
    pub share: f64,
}

/// Part of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    pub name: String,
    /// `sample`, `score`, `update`, `refit` or `other`.
    pub kind: String,
    pub mesh: String,
    pub line: Option<usize>,
    pub devices: usize,
    /// From the beginning of the step.
    pub start_seconds: f64,
    pub seconds: Number,
    pub share: f64,
    pub parts: Vec<Part>,
    pub flops: f64,
    pub mfu: Option<f64>,
    pub bubble: f64,
    pub micro_batches: usize,
    pub micro_batch_tokens: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    pub name: String,
    pub seconds: f64,
}

/// The whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    pub steps: usize,
    pub seconds: Number,
    pub devices: usize,
    pub device_hours: f64,
    /// `run .. within`, in seconds.
    pub limit_seconds: Option<f64>,
    pub checkpoint_bytes: f64,
    pub checkpoints_kept: usize,
}

/// Bytes on the fullest rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub fits: bool,
    /// Index of the stage with the least left.
    pub tightest: Option<usize>,
    pub stages: Vec<Stage>,
    pub hosts: Vec<Host>,
}

/// What waits on each node of a cluster at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub cluster: String,
    pub nodes: usize,
    /// Memory of a node; 0 if nobody says.
    pub node_bytes: f64,
    pub bytes: f64,
    /// `enough`, `tight` or `too little`; empty if nobody says how much there is.
    pub room: String,
    pub terms: Vec<Term>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    pub name: String,
    pub mesh: String,
    pub line: Option<usize>,
    pub device: String,
    pub device_bytes: f64,
    pub bytes: f64,
    pub margin_bytes: f64,
    pub share: f64,
    pub terms: Vec<Term>,
    /// The first step at which it happens, from 1, and how many lie between one and the next: 1 for every step, 0
    /// where there is no next.
    pub first_step: usize,
    pub period: usize,
}

impl Stage {
    /// Does it happen at some steps alone?
    pub fn is_now_and_then(&self) -> bool {
        self.period != 1 && self.first_step > 0
    }

    /// `every 10 steps`, `at steps 5, 9, ..`; empty for what every step does.
    pub fn when(&self) -> String {
        match (self.first_step, self.period) {
            (0, _) | (_, 1) => String::new(),
            (first, 0) => format!("at step {first}"),
            (first, n) if first == n => format!("every {n} steps"),
            (first, n) => format!("at steps {first}, {}, ..", first + n),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Term {
    pub name: String,
    pub bytes: f64,
    pub how: String,
}

/// One kind of collective of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collective {
    pub phase: String,
    pub kind: String,
    pub axes: Vec<String>,
    /// `node` or `network`.
    pub link: String,
    pub ranks: usize,
    pub calls: f64,
    pub bytes_per_call: f64,
    pub seconds: f64,
}

/// Something that nobody measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Assumption {
    pub what: String,
    pub value: String,
    pub source: String,
    pub help: String,
}

/// A variant that was compiled, and what it changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    pub change: String,
    /// What to give to `--set`; empty where the text itself is to be edited.
    pub set: Vec<String>,
    pub step_seconds: f64,
    /// New minus old.
    pub seconds_difference: f64,
    pub memory: Vec<MemoryChange>,
    pub fits: bool,
    pub same_mathematics: bool,
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryChange {
    pub stage: String,
    pub before_bytes: f64,
    pub after_bytes: f64,
}

/// One kind of operation of a pass, for the roofline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    pub phase: String,
    /// `product`, `attention` or `memory`.
    pub kind: String,
    pub shape: String,
    /// Runs per step on one rank.
    pub count: f64,
    /// Of one run.
    pub flops: f64,
    pub bytes: f64,
    /// Of all runs of a step.
    pub seconds: f64,
}

/// The stages of a pipeline over the first micro-batches of an update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pipeline {
    pub phase: String,
    pub stages: usize,
    pub chunks: usize,
    pub micro_batches: usize,
    /// Of one update.
    pub seconds: f64,
    pub bubble: f64,
    /// As many micro-batches as are drawn.
    pub drawn: usize,
    pub tasks: Vec<Task>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    pub stage: usize,
    pub chunk: usize,
    pub micro_batch: usize,
    pub backward: bool,
    pub start_seconds: f64,
    pub end_seconds: f64,
}

/// The streams of one rank while one layer goes by, in the midst of its group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layer {
    pub phase: String,
    pub backward: bool,
    pub group: String,
    /// Layers of the group.
    pub layers: usize,
    /// Of one layer for one micro-batch.
    pub seconds: f64,
    /// Sum to `seconds`; of collectives, what nothing hides.
    pub parts: Vec<Part>,
    pub tasks: Vec<StreamTask>,
}

/// What a stream does, from the beginning of the layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamTask {
    /// `compute`, `collectives` that hold it, `weights` that travel beside it, `host`.
    pub stream: String,
    pub what: String,
    /// `node`, `network`, or `none`.
    pub link: String,
    pub start_seconds: f64,
    pub end_seconds: f64,
}

/// What one graph does per run on one rank, at its bounds; counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Graph {
    pub name: String,
    pub bounds: String,
    pub flops: f64,
    pub moved_bytes: f64,
    pub live_bytes: f64,
    pub collectives: Vec<Counted>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counted {
    pub kind: String,
    pub axes: Vec<String>,
    pub count: usize,
    pub bytes: f64,
    pub reason: String,
}
