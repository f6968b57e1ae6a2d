//! What an engine does for a rank: it prepares plans and runs them on the rank's weights.
//!
//! A rank owns one [`Device`] and, per model, one [`ParamStore`]. Everything a plan needs besides
//! weights comes in [`Bindings`]; ragged dims get their counts there. Engines never see a recipe.

use std::collections::BTreeMap;
use std::sync::Arc;

use nrl_ir::graph::Graph;
use nrl_ir::plan::Plan;
use nrl_ir::{DimId, Mesh, ParamId};

use crate::comm::{CommError, Group, Rank};

/// A dense tensor between host and engine, row major.
#[derive(Clone, Debug, PartialEq)]
pub enum HostTensor {
    F32(Vec<f32>),
    Id(Vec<u32>),
}

impl HostTensor {
    /// The numbers, if it holds any.
    pub fn f32(&self) -> Option<&[f32]> {
        match self {
            HostTensor::F32(x) => Some(x),
            HostTensor::Id(_) => None,
        }
    }
}

/// What one run of a plan is bound to.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// One tensor per [`Graph::inputs`].
    pub inputs: Vec<HostTensor>,
    /// Segment offsets of each ragged dim: `owner items + 1` numbers from 0 to the dim's count. A
    /// dim without an owner has `[0, count]`.
    pub offsets: BTreeMap<DimId, Vec<u32>>,
    /// Per item of `seq` (empty when nothing is cached): tokens already in the cache, which is
    /// also the position of the sequence's first token here.
    pub bases: Vec<u32>,
    /// Per item of `seq`: its slot in the [`KvCache`].
    pub slots: Vec<u32>,
}

/// Keys and values of sequences in flight: per layer, per slot, `[context, kv, hd]`.
#[derive(Debug, Default)]
pub struct KvCache {
    /// Tokens a slot can hold.
    pub context: usize,
    pub slots: usize,
    /// `kv * hd` of this rank.
    pub width: usize,
    /// `[layer][slot * context * width ..]`.
    pub keys: Vec<Vec<f32>>,
    pub values: Vec<Vec<f32>>,
}

impl KvCache {
    pub fn new(layers: usize, slots: usize, context: usize, width: usize) -> KvCache {
        let layer = || vec![0.0; slots * context * width];
        KvCache {
            context,
            slots,
            width,
            keys: (0..layers).map(|_| layer()).collect(),
            values: (0..layers).map(|_| layer()).collect(),
        }
    }

    /// Copies the first `tokens` entries of slot `from` to slot `to` in every layer: a prompt's
    /// prefill shared by its group.
    pub fn copy_slot(&mut self, from: usize, to: usize, tokens: usize) {
        let stride = self.context * self.width;
        for layer in self.keys.iter_mut().chain(&mut self.values) {
            layer.copy_within(from * stride..from * stride + tokens * self.width, to * stride);
        }
    }
}

/// The local weights of one model on one rank. Slot order: parameters in order, each repeated one
/// taking one slot per layer ([`slots_of`]).
#[derive(Clone, Debug, Default)]
pub struct ParamStore {
    /// Index of the first slot of each parameter.
    pub first: Vec<usize>,
    /// Weights in storage order; the flat shard under zero3.
    pub weights: Vec<Vec<f32>>,
    /// Gradient accumulators, same shapes; empty vectors until the first backward pass.
    pub grads: Vec<Vec<f32>>,
}

impl ParamStore {
    /// Slot of `param` in layer `layer` (0 for a parameter outside any `repeat`).
    pub fn slot(&self, param: ParamId, layer: usize) -> usize {
        self.first[param.0 as usize] + layer
    }
}

/// First slot of each parameter, and the number of slots in all.
pub fn slots_of(graph: &Graph) -> (Vec<usize>, usize) {
    let mut first = vec![];
    let mut total = 0;
    for p in &graph.params {
        first.push(total);
        total += p.repeat.as_ref().map_or(1, |(_, n)| *n);
    }
    (first, total)
}

/// A plan made ready by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prepared(pub usize);

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{0}")]
    Unsupported(String),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error("{0}")]
    Failed(String),
}

/// One rank of an engine.
pub trait Device: Send {
    /// Compiles what the plan needs. Preparing the same plan twice is cheap.
    fn prepare(&mut self, plan: &Arc<Plan>) -> Result<Prepared, EngineError>;

    /// Runs a prepared plan: reads weights, adds to gradients, appends to the cache, returns one
    /// tensor per graph output.
    fn run(
        &mut self,
        plan: Prepared,
        store: &mut ParamStore,
        cache: Option<&mut KvCache>,
        bind: &Bindings,
        comm: &Comm,
    ) -> Result<Vec<HostTensor>, EngineError>;

    /// Runs a pointwise plan over `[flat]` in place: `inputs` are bound to the graph inputs called
    /// `names`, and each output overwrites the input of the same name. Scalars are inputs of one
    /// number.
    fn run_flat(
        &mut self,
        plan: Prepared,
        names: &[&str],
        tensors: &mut [&mut [f32]],
        scalars: &[(&str, f32)],
    ) -> Result<(), EngineError>;
}

/// Makes the devices of one process.
pub trait Engine: Send + Sync {
    /// Name for messages and plans: `cpu`, `interp`.
    fn name(&self) -> &'static str;

    /// A device for `rank` of `ranks`, which may use `threads` cores.
    fn device(&self, rank: usize, ranks: usize, threads: usize) -> Box<dyn Device>;
}

/// A rank's place in a mesh, and its groups along the axes.
pub struct Comm {
    mesh: Mesh,
    rank: usize,
    groups: BTreeMap<Vec<String>, Group>,
}

impl Comm {
    /// The communicators of `rank` along every combination of the mesh's axes.
    pub fn new(rank: &Rank, mesh: &Mesh) -> Result<Comm, CommError> {
        let mut groups = BTreeMap::new();
        for mask in 1..1_usize << mesh.axes.len() {
            let axes: Vec<String> = mesh
                .axes
                .iter()
                .enumerate()
                .filter(|(i, _)| mask >> i & 1 == 1)
                .map(|(_, a)| a.name.clone())
                .collect();
            groups.insert(axes.clone(), rank.group(&mesh.group(rank.rank(), &axes))?);
        }
        Ok(Comm { mesh: mesh.clone(), rank: rank.rank(), groups })
    }

    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Coordinate over `axes` taken together, major first.
    pub fn coord(&self, axes: &[String]) -> usize {
        self.mesh.coord_over(self.rank, axes)
    }

    /// The group along `axes`; `None` if it has one member.
    pub fn along(&self, axes: &[String]) -> Option<&Group> {
        let known: Vec<String> = self
            .mesh
            .axes
            .iter()
            .filter(|a| axes.contains(&a.name))
            .map(|a| a.name.clone())
            .collect();
        self.groups.get(&known).filter(|g| g.size() > 1)
    }
}
