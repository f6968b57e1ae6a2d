//! What a recipe says of machines, layouts and lengths beyond what the program itself needs.
//!
//! In: clusters, pools, meshes, views and assumptions as elaborated. Out: plain data for plans and
//! reports. Nothing here decides whether a recipe is right.

use nrl_base::Span;
use nrl_ir::Axis;

/// Everything, by index: `Val::Cluster` and the meshes of the program point here.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub clusters: Vec<ClusterFacts>,
    /// One per mesh of the program.
    pub meshes: Vec<MeshFacts>,
    pub views: Vec<ViewFacts>,
    /// One per model of the program.
    pub models: Vec<ModelFacts>,
    /// One per generator of the program.
    pub generators: Vec<GeneratorFacts>,
    /// Does each optimizer of the program add to weights in bf16?
    pub bf16_masters: Vec<bool>,
    pub assumptions: Vec<Assumption>,
    /// The name of a recipe that has a step, and says nowhere how many of them it runs.
    pub unsaid_length: Option<Span>,
    /// Where the time of the run is limited.
    pub limit: Option<Span>,
    /// Means over micro-batches, whose numbers depend on packing and layout.
    pub inexact: Vec<Span>,
    /// Calls of rollouts in which a model replies more than once.
    pub rollouts: Vec<RolloutFacts>,
    /// Validations by the loss of a step.
    pub validations: Vec<Validation>,
    /// How many steps old samples may be, where a recipe says.
    pub staleness: Option<usize>,
}

/// `test = validate(step, data)` in an `every`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validation {
    /// Index of the phase, and steps from one to the next.
    pub phase: usize,
    pub period: usize,
    /// Index of the data set.
    pub data: usize,
}

/// One kind of device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    pub name: String,
    /// Threads of this process otherwise.
    pub gpu: bool,
    pub memory_bytes: f64,
    /// Memory of the host, per node.
    pub host_bytes: f64,
    /// Dense bf16 products, per second.
    pub flops: f64,
    /// Products in 8 bits and in 4 bits, as multiples of that; 1 where the device has none.
    pub fp8: f64,
    pub fp4: f64,
    /// To and from its own memory, bytes per second.
    pub bandwidth: f64,
    /// To the others of its node, bytes per second and direction.
    pub link: f64,
    /// To other nodes, bytes per second and direction.
    pub network: f64,
    /// Devices that share fast links, if those reach beyond a node.
    pub domain: Option<usize>,
}

/// A cluster, or a pool cut from one.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// The name it is bound to.
    pub name: String,
    pub device: Device,
    pub ranks: usize,
    pub per_node: usize,
    /// The cluster that a pool is part of, and its first rank there.
    pub part_of: Option<(usize, usize)>,
    pub span: Span,
}

/// A mesh of the program.
#[derive(Clone, Debug, Default)]
pub struct MeshFacts {
    pub cluster: Option<usize>,
    /// How axes of experts fold the others, if the mesh has such axes.
    pub experts: Option<usize>,
    pub span: Span,
}

/// Axes of a mesh seen as others.
#[derive(Clone, Debug)]
pub struct ViewFacts {
    pub name: String,
    pub mesh: usize,
    /// The axes that it folds.
    pub folds: Vec<String>,
    pub axes: Vec<Axis>,
    pub span: Span,
}

/// What is known of a model besides its parameters.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// Weights are asked for in bf16.
    pub bf16: bool,
    /// One number per token in place of logits.
    pub scalar_head: bool,
    pub span: Span,
}

/// What is known of a generator besides its sampling.
#[derive(Clone, Debug, Default)]
pub struct GeneratorFacts {
    /// What it asks for of the device, and where.
    pub memory: Option<(Asked, Span)>,
}

/// A rollout of several turns.
#[derive(Clone, Debug)]
pub struct RolloutFacts {
    pub name: String,
    /// Index of the model that replies.
    pub model: usize,
    /// Its chat template, where the files of its tokenizer are here.
    pub template: Option<String>,
    /// The call.
    pub span: Span,
}

/// Memory that a generator asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    /// A share of the device, for everything it holds.
    Share(f64),
    /// Bytes per rank, for everything it holds.
    Bytes(f64),
    /// Tokens of keys and values per rank.
    Tokens(f64),
}

/// `assume lengths = lognormal(..)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumption {
    /// `lengths`, `turns` or `latency`.
    pub of: String,
    pub law: Law,
    pub span: Span,
}

/// How an assumed quantity is distributed.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    Lognormal {
        mean: f64,
        p99: f64,
    },
    Uniform {
        low: f64,
        high: f64,
    },
    Always(f64),
    /// As in a file of earlier samples that is not here.
    File(String),
    /// As earlier samples were: tokens of each.
    Measured(Vec<u32>),
}

impl Law {
    /// The mean, where the law says it.
    pub fn mean(&self) -> Option<f64> {
        match self {
            Law::Lognormal { mean, .. } => Some(*mean),
            Law::Uniform { low, high } => Some(0.5 * (low + high)),
            Law::Always(x) => Some(*x),
            Law::File(_) | Law::Measured(_) => None,
        }
    }
}
