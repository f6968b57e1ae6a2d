//! The step graph: RL stages and the values that flow between them.
//!
//! A [`Program`] is a recipe after elaboration: models, data, optimizers, generators, rewards and
//! the stages of each phase. Tensor work is in [`Program::graphs`]; the passes turn each graph into
//! the plan of the same index. Stages are in topological order ([`step_graph`] gives the petgraph
//! form for printing and checks).
//!
//! Names of graph inputs are a contract between `lower` and the runtime:
//!
//! | input | type | meaning |
//! |---|---|---|
//! | `ids` | `id(vocab)[tok]` | all tokens of the packed sequences, prompt then completion |
//! | `act` | `id(tok)[act]` | for each trained token, the position whose logits predict it |
//! | `labels` | `id(vocab)[act]` | the trained tokens themselves |
//! | `last` | `id(tok)[row]` | generation: the position to sample from, one per sequence |
//! | `inv_temperature` | `[]` | `1 / temperature` of the policy's distribution |
//! | `count.tokens`, `count.samples`, `count.groups` | `[]` | counts over the whole optimizer batch |
//! | `x` | `[act]`, `[seq]`, `[group]` or `[]` | the value bound to `x` earlier in the step |
//! | `x.valid` | `[seq]` | 1 where the reward `x` did not fail, else 0 (`x` itself is 0 there) |
//! | `s.logprob` | `[act]` | log-probabilities under the sampling distribution |
//! | `s.length`, `s.truncated` | `[seq]` | trained tokens; 1 where no stop token was drawn |
//! | `host.N` | `[]` | scalar host expression `N` of the stage |
//!
//! Ragged dims of these graphs are named `tok` (of `seq`), `act` (of `seq`), `seq` (of `group`),
//! `group`, and `row` (of nothing).

use petgraph::graph::DiGraph;
use serde::{Deserialize, Serialize};

use crate::dim::Dims;
use crate::graph::Graph;
use crate::graph::ParamDecl;
use crate::host;
use crate::mesh::Mesh;
use crate::plan::ParamLayout;

/// A recipe after elaboration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    pub seed: u64,
    /// Stop, with a checkpoint, before this many seconds.
    pub wall_limit_s: Option<f64>,
    pub meshes: Vec<(String, Mesh)>,
    pub models: Vec<Model>,
    pub data: Vec<Data>,
    pub optimizers: Vec<Optimizer>,
    pub generators: Vec<Generator>,
    pub rewards: Vec<Reward>,
    pub graphs: Vec<Graph>,
    pub phases: Vec<Phase>,
}

/// Where a model's weights come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Weights {
    /// A Hugging Face directory.
    Directory { path: String },
    /// Normal draws with this standard deviation (norm weights 1, biases 0), keyed by the seed.
    Fresh { std: f64 },
    /// A copy of another model's weights when `phase` starts (phase 0: before training).
    Frozen { of: usize, phase: usize },
}

/// The tokenizer of a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Tokens {
    /// `tokenizer.json` and companions of the model's directory.
    Directory { path: String },
    /// One token per character, in this order; the end token and the padding token are characters.
    Characters { alphabet: String, eos: char, pad: char },
    /// None: the model can be planned, and reads no text.
    Unknown,
}

/// A model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
    pub name: String,
    /// Name of the `.nrl` model, `llama`.
    pub family: String,
    pub weights: Weights,
    pub tokens: Tokens,
    /// `config.json`, as loaded or as it will be exported.
    pub config: serde_json::Value,
    /// Longest sequence, in tokens.
    pub context: usize,
    pub dims: Dims,
    pub params: Vec<ParamDecl>,
    /// Index into [`Program::meshes`].
    pub mesh: usize,
    /// Filled by `shard`, in the order of `params`.
    pub layouts: Vec<ParamLayout>,
}

/// How one JSON Lines file, or a function of the row number, becomes prompts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Data {
    pub name: String,
    pub source: Source,
    /// Column with the prompt: text, or a list of chat messages.
    pub prompt: String,
    /// Column with the reference answer, if the recipe names one; `s.answer` in rewards.
    pub answer: Option<String>,
    /// Column with a worse answer: rows are pairs, and `answer` is the one that was chosen.
    pub rejected: Option<String>,
    /// Index of the model whose tokenizer and template render the prompts.
    pub model: usize,
    /// Render with the chat template, with this system message if any.
    pub chat: Option<Chat>,
    /// Longest prompt, and what happens to longer ones.
    pub at_most: Option<(usize, TooLong)>,
    pub shuffled: bool,
    pub bad_lines: BadLines,
}

impl Data {
    /// Samples that a row gives where it comes with its answers: two of a pair.
    pub fn answers(&self) -> usize {
        if self.rejected.is_some() { 2 } else { 1 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Source {
    JsonLines {
        path: String,
    },
    /// `rows` rows, each the record that `make(i)` returns.
    Made {
        rows: usize,
        make: host::Func,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chat {
    pub system: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TooLong {
    Error,
    Drop,
    /// Keep the last tokens.
    Truncate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BadLines {
    Error,
    Skip,
}

/// An optimizer: a pointwise program over flat weights.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Optimizer {
    pub name: String,
    /// Learning rate at update `t`, counted from 1.
    pub lr: host::Func,
    /// Global gradient norm above which gradients are scaled down.
    pub clip_norm: Option<f64>,
    /// Names of the state tensors, zero at first: `m`, `v`.
    pub state: Vec<String>,
    /// Graph with inputs `w`, `g`, the state, `host.N`; outputs `w` and the state. `[flat]` each.
    pub graph: usize,
    /// `host.N` as functions of `(t, lr, decay)`: `decay` is 1 for a parameter that weight decay
    /// applies to, else 0.
    pub scalars: Vec<host::Func>,
    /// Does weight decay apply to parameters with fewer than two dims (norms, biases)?
    pub decay_norms: bool,
}

/// Options of sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub stop: Vec<String>,
    pub stop_ids: Vec<u32>,
    /// Stop ids are not drawn before this many tokens.
    pub min_new: usize,
}

/// A generator follows its model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generator {
    pub name: String,
    pub model: usize,
    /// Index into [`Program::meshes`].
    pub mesh: usize,
    pub sampling: Sampling,
    /// Graph of the model with a cache: inputs `ids`, `last`; output `logits[row, vocab]`. Prefill
    /// and decode are the same graph with other counts.
    pub graph: usize,
    /// Sequences in flight per rank.
    pub slots: usize,
}

/// A reward: a function of one sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reward {
    pub name: String,
    pub kind: RewardKind,
    /// Values outside are failures.
    pub range: Option<(f64, f64)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RewardKind {
    /// Written in `.nrl`; its argument is the sample record (`prompt`, `completion`, `answer`,
    /// `row`, `tokens`, `finished`).
    Host(host::Func),
    /// A supervised process.
    Extern { command: String, workers: usize, deadline_s: f64, on_timeout: Option<f64> },
}

/// A stretch of steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub steps: usize,
    pub step: Vec<Binding>,
    pub every: Vec<Every>,
    pub halts: Vec<Halt>,
}

/// Stages that run after every `period` steps and after the last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Every {
    pub period: usize,
    pub stages: Vec<Binding>,
}

/// Stops the phase when `binding` of the step is nonzero `steps` times in a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Halt {
    pub binding: usize,
    pub steps: usize,
    /// The condition as written.
    pub text: String,
}

/// Index of a binding in its list.
pub type BindingId = usize;

/// `name = stage(args)`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub name: String,
    pub stage: Stage,
    /// Earlier bindings of the same list that the stage reads.
    pub args: Vec<BindingId>,
    /// First step of the phase that runs it, counted from 1; 0 for all.
    pub from: usize,
    /// Line in the recipe: a run has no sources to find it in.
    pub line: u32,
    /// Where it is written, as a node's.
    pub origin: Option<(u32, u32, u32)>,
}

/// One stage of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Stage {
    /// The next `count` rows. Rows with an answer are complete samples when `complete`
    /// (supervised training: the answer's tokens and the end token are trained).
    Take { data: usize, count: usize, complete: bool },
    /// `(rows)`: `copies` samples of each.
    Generate { generator: usize, copies: usize, max_new: Option<usize>, sampling: Sampling },
    /// `(samples)`: one number per sample.
    Reward { reward: usize },
    /// `(samples?, tensors..)`: a tensor graph over the whole batch, on one rank. Graph input names
    /// are bound to the bindings of the same name. One binding per output: this one is `output`.
    Compute { graph: usize, output: usize, inputs: Vec<GraphInput>, scalars: Vec<host::Func> },
    /// `(samples, tensors..)`: the same through a model, on its mesh, by micro-batches.
    Forward {
        model: usize,
        graph: usize,
        output: usize,
        inputs: Vec<GraphInput>,
        temperature: f64,
        tokens: usize,
    },
    /// `(samples, tensors..)`: minimises the loss of `graph`.
    Update {
        model: usize,
        optimizer: usize,
        graph: usize,
        inputs: Vec<GraphInput>,
        temperature: f64,
        updates: usize,
        epochs: usize,
        /// Token budget of a micro-batch, per data-parallel rank.
        tokens: usize,
        scalars: Vec<host::Func>,
    },
    /// `(kept?)`: repeats the bindings from `first` to this one, at most `rounds` times, until
    /// `groups` of their groups were kept (nonzero in `kept`; all without it). Afterwards those
    /// bindings hold the kept groups of all rounds.
    Collect { first: BindingId, groups: usize, rounds: usize },
    /// `()`: samples each row of held-out data `copies` times and scores it.
    Evaluate {
        generator: usize,
        data: usize,
        /// Rows used, in order; all if `None`.
        limit: Option<usize>,
        copies: usize,
        sampling: Sampling,
        max_new: Option<usize>,
        reward: usize,
        /// A sample is correct when its reward is at least this.
        correct: f64,
    },
    /// `()`: a checkpoint; keep the `keep` best by a metric (`test.accuracy`, higher is better),
    /// and the latest.
    Checkpoint { keep: usize, by: Option<String> },
}

/// What a graph input is bound to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GraphInput {
    /// Name of the input in the graph.
    pub input: String,
    /// The binding that supplies it, as an index into the stage's list.
    pub from: BindingId,
    /// Field of it: `logprob`, `length`, `truncated` of samples, `valid` of a reward.
    pub field: Option<String>,
}

/// The stages of a step as a petgraph graph: nodes are binding ids, edges are reads.
pub fn step_graph(bindings: &[Binding]) -> DiGraph<BindingId, ()> {
    let mut g = DiGraph::new();
    let nodes: Vec<_> = (0..bindings.len()).map(|i| g.add_node(i)).collect();
    for (i, b) in bindings.iter().enumerate() {
        for a in &b.args {
            g.add_edge(nodes[*a], nodes[i], ());
        }
    }
    g
}
