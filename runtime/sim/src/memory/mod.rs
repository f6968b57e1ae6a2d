//! Bytes per rank of each stage of a step, by term.
//!
//! Weights, gradients and optimizer state follow from the layouts of the plans (ZeRO stages:
//! Rajbhandari et al. 2020), what layers keep from the plan's backward pass (`profile`), and the rest from how a
//! framework stores and buffers (`stack`, `peak`). `generation` has the pool of keys and values, `phases` what is
//! resident when, `run` what that means for refits, evaluations and checkpoints of a recipe, `host` the memory of
//! nodes and disks. Everything is at the bounds that a recipe states.

pub mod generation;
pub mod host;
pub mod peak;
pub mod phases;
pub mod profile;
mod run;
pub mod stack;

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::cost::elements;
use nrl_ir::plan::{ParamLayout, Plan, peak};
use nrl_ir::program::{Binding, Program, Stage};
use nrl_ir::{DType, DimId, Extent, Graph, Op, ValueId};
use peak::{Load, Offload};
use serde::Serialize;
use stack::{COMMUNICATORS, CONTEXT, Stack};

use crate::work::Sizes;

/// Where a recipe asks for something, as a node's origin.
type Place = Option<(u32, u32, u32)>;

/// A device that a mesh stands for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    pub name: String,
    /// Memory as the driver reports it, in bytes.
    pub memory: f64,
}

/// How the numbers of a model are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Precision {
    F32,
    /// Weights and activations; the rest stays in f32.
    Bf16,
}

/// What is asked about.
pub struct Setup<'a> {
    pub program: &'a Program,
    pub plans: &'a [Plan],
    /// One per mesh of the program; none where ranks are threads of this process.
    pub devices: Vec<Option<Device>>,
    /// One per model of the program.
    pub precisions: Vec<Precision>,
    /// One per optimizer: whether it adds to weights in bf16, without a copy in f32.
    pub bf16_masters: Vec<bool>,
    /// One per model: whether its layers keep what "selective" recomputation keeps.
    pub selective: Vec<bool>,
    /// One per model: what its plan keeps on hosts.
    pub offload: Vec<Offload>,
    /// How updates on devices store and buffer; by the plan if none.
    pub stack: Option<Stack>,
    /// One per mesh: the cluster that it is on. What is on the same one takes turns on its devices.
    pub clusters: Vec<Option<usize>>,
    /// One per generator: bytes of a device that its engine asks for, if it says.
    pub engines: Vec<Option<f64>>,
    pub habits: Habits,
}

/// What a framework keeps where, beyond the layout of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Habits {
    /// The optimizer's state leaves a device only on the way of new weights to an engine (NeMo RL before 0.4,
    /// its issue 1137).
    pub tied_to_refit: bool,
    /// Rank of low-rank adapters beside frozen weights.
    pub adapters: Option<f64>,
    /// Share of the optimizer's state that stays on hosts.
    pub state_on_host: f64,
    /// Weights, gradients and state of the trainer stay on hosts; layers come as they are needed.
    pub all_on_host: bool,
    /// Passes that score store logits in f32, so many rows at once, or those of a whole micro-batch.
    pub logits: Option<Option<usize>>,
    /// Tokens of a micro-batch of such a pass.
    pub score_tokens: Option<usize>,
    /// Bytes of a weight and of a kept number in engines.
    pub engine: Option<(f64, f64)>,
}

impl Habits {
    /// What stays on hosts of a model whose plan keeps `own` there.
    pub fn away(&self, own: Offload) -> Offload {
        Offload {
            optimizer: own.optimizer || self.all_on_host,
            state: own.state.max(self.state_on_host),
            ..own
        }
    }
}

/// A part of what a stage holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    pub name: &'static str,
    pub bytes: f64,
    /// How it comes about, in words with numbers.
    pub how: String,
}

/// Steps of a run at which something stands on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct When {
    /// From 1.
    pub first: usize,
    /// From one to the next; 0 where there is no next.
    pub period: usize,
}

impl When {
    pub const EVERY: When = When { first: 1, period: 1 };

    /// Of steps in order.
    pub fn of(steps: &[usize]) -> When {
        let first = steps.first().copied().unwrap_or(1);
        When { first, period: steps.get(1).map_or(0, |next| next - first) }
    }

    /// `every step`, `steps 5, 9, ..`.
    pub fn words(self) -> String {
        match self.period {
            1 => "every step".into(),
            0 => format!("step {}", self.first),
            n => format!("steps {}, {}, ..", self.first, self.first + n),
        }
    }
}

/// What the fullest rank holds during one stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// `update policy`.
    pub stage: String,
    /// Where the recipe asks for it, as a node's origin.
    pub origin: Option<(u32, u32, u32)>,
    pub model: usize,
    /// Index of the mesh that it runs on.
    pub mesh: usize,
    pub device: Device,
    pub terms: Vec<Term>,
    /// Steps at which it happens.
    pub when: When,
}

impl Memory {
    fn new(
        stage: String,
        origin: Place,
        (model, mesh): (usize, usize),
        device: Device,
        terms: Vec<Term>,
    ) -> Memory {
        Memory { stage, origin, model, mesh, device, terms, when: When::EVERY }
    }

    /// All terms together, in bytes.
    pub fn sum(&self) -> f64 {
        self.terms.iter().map(|t| t.bytes).sum()
    }

    /// What no engine can do without: weights and optimizer state, and gradients in two bytes.
    pub fn least(&self) -> f64 {
        let part = |t: &Term| match t.name {
            "weights" | "optimizer" => t.bytes,
            "gradients" => t.bytes / 2.0,
            _ => 0.0,
        };
        self.terms.iter().map(part).sum()
    }

    /// Is it an update?
    pub fn is_update(&self) -> bool {
        self.stage.starts_with("update ")
    }

    /// What is left of the device; negative if the stage does not fit.
    pub fn margin(&self) -> f64 {
        self.device.memory - self.sum()
    }
}

pub(crate) const GIB: f64 = 1_073_741_824.0;

/// The stages of every phase that run on devices, in the order of the recipe; then what happens beside them.
pub fn memory(setup: &Setup<'_>) -> Vec<Memory> {
    let mut all = vec![];
    for phase in &setup.program.phases {
        let own: Vec<Memory> = phase.step.iter().filter_map(|b| setup.stage(b)).collect();
        let beside = setup.beside(phase, &own);
        all.extend(own);
        all.extend(beside);
    }
    all
}

impl Setup<'_> {
    /// What a stage of a step holds.
    fn stage(&self, binding: &Binding) -> Option<Memory> {
        let models = &self.program.models;
        match &binding.stage {
            Stage::Update { model, graph, optimizer, .. } => {
                let (m, plan) = (&models[*model], &self.plans[*graph]);
                let device = self.device(m.mesh)?;
                let terms = match device.memory.is_finite() {
                    true => self.update(*model, plan, *optimizer, &device),
                    false => self.terms(*model, plan, Some(*optimizer), &device),
                };
                let stage = format!("update {}", m.name);
                Some(Memory::new(stage, binding.origin, (*model, m.mesh), device, terms))
            }
            Stage::Forward { model, graph, .. } => {
                let m = &models[*model];
                let device = self.device(m.mesh)?;
                let plan = &self.plans[*graph];
                let mut terms = self.terms(*model, plan, None, &device);
                if let Some(rows) = self.habits.logits.filter(|_| device.memory.is_finite()) {
                    terms.extend(self.scored_logits(*model, plan, rows));
                }
                let stage = format!("score by {}", m.name);
                Some(Memory::new(stage, binding.origin, (*model, m.mesh), device, terms))
            }
            Stage::Generate { generator, .. } => {
                let stage = format!("sample by {}", self.program.generators[*generator].name);
                self.sampling(*generator, stage, binding.origin)
            }
            _ => None,
        }
    }

    fn device(&self, mesh: usize) -> Option<Device> {
        self.devices.get(mesh).cloned().flatten()
    }

    /// What a generator holds while it draws.
    fn sampling(&self, generator: usize, stage: String, origin: Place) -> Option<Memory> {
        let g = &self.program.generators[generator];
        let device = self.device(g.mesh)?;
        let plan = &self.plans[g.graph];
        let mut terms = self.terms(g.model, plan, None, &device);
        let width = if self.precision(g.model) == Precision::Bf16 { 2.0 } else { 4.0 };
        let (weight, kept) = self.habits.engine.unwrap_or((width, width));
        for t in terms.iter_mut().filter(|t| t.name == "weights" && weight != width) {
            t.bytes *= weight / width;
            t.how = format!("{:.3} G parameters of {weight} bytes", t.bytes / weight / 1e9);
        }
        let context = self.program.models[g.model].context;
        let each = per_token(plan, kept, context);
        let asked = self.engines.get(generator).copied().flatten();
        match asked.filter(|_| device.memory.is_finite()) {
            Some(asked) => {
                // Weights, scratch and context are within what an engine asks for; a trainer's context is not.
                terms.retain(|t| t.name == "weights");
                let own: f64 = terms.iter().map(|t| t.bytes).sum();
                let how = "a forward pass, captured graphs: assumed".to_string();
                terms.push(Term { name: "scratch", bytes: generation::SCRATCH, how });
                let bytes = (asked - own - generation::SCRATCH).max(0.0);
                let how = format!("what is left of {:.1} GiB asked for", asked / GIB);
                terms.push(Term { name: "kv", bytes, how });
                if self.trains_beside(g.mesh) {
                    let how = "driver and communicators of the trainer: assumed".to_string();
                    terms.push(Term { name: "context", bytes: CONTEXT + COMMUNICATORS, how });
                }
            }
            None => {
                let context = self.program.models[g.model].context as f64;
                let how = format!("{context} tokens of {each:.0} bytes");
                let kv = Term { name: "kv, one sequence", bytes: each * context, how };
                let at = terms.iter().position(|t| t.name == "context").unwrap_or(terms.len());
                terms.insert(at, kv);
            }
        }
        Some(Memory::new(stage, origin, (g.model, g.mesh), device, terms))
    }

    fn precision(&self, model: usize) -> Precision {
        self.precisions.get(model).copied().unwrap_or(Precision::F32)
    }

    fn terms(
        &self,
        model: usize,
        plan: &Plan,
        optimizer: Option<usize>,
        device: &Device,
    ) -> Vec<Term> {
        let precision = self.precision(model);
        let Some(class) = plan.classes.first() else { return vec![] };
        let g = &class.graph;
        let held = fullest(plan);
        let count = |by: &dyn Fn(&ParamLayout) -> f64| weights(g, &plan.params, &held, by);
        let size = |axes: &[String]| plan.mesh.size_over(axes) as f64;
        let stored = count(&|l| 1.0 / size(&l.flat));
        let width = if precision == Precision::Bf16 { 2.0 } else { 4.0 };
        let term = |name, number: f64, each: f64| Term {
            name,
            bytes: number * each,
            how: format!("{:.3} G parameters of {each} bytes", number / 1e9),
        };
        let mut terms = vec![term("weights", stored, width)];
        if let Some(optimizer) = optimizer {
            let grads = count(&|l| 1.0 / size(&l.grads));
            terms.push(term("gradients", grads, 4.0));
            let moments = self.program.optimizers[optimizer].state.len() as f64;
            let none = self.bf16_masters.get(optimizer) == Some(&true);
            let master = if precision == Precision::Bf16 && !none { 1.0 } else { 0.0 };
            let state = count(&|l| 1.0 / size(&l.state));
            terms.push(term("optimizer", state, 4.0 * (moments + master)));
        }
        terms.push(self.activations(plan, precision));
        if device.memory.is_finite() {
            let how = "driver and communicators: assumed".to_string();
            terms.push(Term { name: "context", bytes: CONTEXT + COMMUNICATORS, how });
        }
        terms
    }

    /// Terms of an update on a device.
    fn update(&self, model: usize, plan: &Plan, optimizer: usize, device: &Device) -> Vec<Term> {
        let Some(load) = self.load(model, plan, optimizer) else { return vec![] };
        let mut terms = load.peak(&self.stack(plan), Some(device.memory)).terms;
        for t in &mut terms {
            if t.name == "weights" && self.habits.all_on_host {
                t.bytes = 0.0;
                t.how = "on the host".into();
            }
        }
        terms
    }

    /// Logits in f32 of a pass that scores.
    fn scored_logits(&self, model: usize, plan: &Plan, rows: Option<usize>) -> Option<Term> {
        let class = plan.classes.first()?;
        let sizes = at_bounds(&class.graph, self.program.models[model].context);
        let head = profile::Profile::of(plan, &sizes, self.precision(model)).head;
        let tokens = self.habits.score_tokens.map_or(1.0, |n| n as f64 / sizes.tokens.max(1.0));
        let all = head.rows * tokens;
        let at_once = rows.map_or(all, |n| all.min(n as f64));
        let columns = head.columns;
        let how = format!("{at_once:.0} rows of {columns:.0} numbers in f32");
        Some(Term { name: "logits", bytes: 4.0 * at_once * columns, how })
    }

    /// An update, one micro-batch at the bounds at a time.
    pub fn load<'p>(&self, model: usize, plan: &'p Plan, optimizer: usize) -> Option<Load<'p>> {
        let class = plan.classes.first()?;
        let moments = self.program.optimizers[optimizer].state.len() as f64;
        Some(Load {
            plan,
            mesh: &plan.mesh,
            precision: self.precision(model),
            sizes: at_bounds(&class.graph, self.program.models[model].context),
            micro: usize::MAX,
            chunks: plan.pipeline.as_ref().map_or(1, |p| p.chunks),
            moments,
            no_master: self.bf16_masters.get(optimizer) == Some(&true),
            selective: self.selective.get(model) == Some(&true),
            offload: self.habits.away(self.offload.get(model).copied().unwrap_or_default()),
            adapters: self.habits.adapters,
        })
    }

    /// How updates of a plan store and buffer.
    pub fn stack(&self, plan: &Plan) -> Stack {
        self.stack.clone().unwrap_or_else(|| Stack::of(plan))
    }

    fn activations(&self, plan: &Plan, precision: Precision) -> Term {
        let stages = plan.stages() as f64;
        // Interleaved, the first stage starts more micro-batches than it has chunks (Korthikanti et al. 2022).
        let chunks = plan.pipeline.as_ref().map_or(1, |p| p.chunks) as f64;
        let more = if chunks > 1.0 { 1.0 + (stages - 1.0) / (stages * chunks) } else { 1.0 };
        let bytes = |g: &Graph, v: ValueId| {
            let ty = g.ty(v);
            let number = elements(&g.dims, ty, &|d| g.dims.bound(d) as f64);
            // A stage of a pipeline saves for its layers, of as many micro-batches as stages follow:
            // together what one micro-batch saves in all layers.
            more * number * value_bytes(g, v, precision)
        };
        let live = plan.classes.first().map_or(0.0, |c| peak(&c.graph, &c.frees, &bytes));
        let tokens: Vec<String> = plan
            .classes
            .iter()
            .flat_map(|c| c.graph.dims.iter().map(move |(_, d)| d))
            .filter(|d| d.name == "tok" && d.shard.is_none())
            .map(|d| match d.extent {
                Extent::Ragged { bound, .. } => bound.to_string(),
                Extent::Static(n) => n.to_string(),
            })
            .take(1)
            .collect();
        let mut how = format!("{} tokens at once", tokens.join(""));
        if stages > 1.0 {
            how += &format!(", {stages} micro-batches in flight");
        }
        Term { name: "activations", bytes: live, how }
    }
}

/// Parameters on a rank that holds each `held` times, each scaled by `by` its layout.
fn weights(
    g: &Graph,
    layouts: &[ParamLayout],
    held: &[usize],
    by: &dyn Fn(&ParamLayout) -> f64,
) -> f64 {
    let local = |l: &ParamLayout| -> f64 {
        g.param(l.param).dims.iter().map(|d| g.dims.bound(*d) as f64).product()
    };
    layouts.iter().zip(held).map(|(l, n)| local(l) * by(l) * *n as f64).sum()
}

/// How many times the stage with the most weights holds each parameter.
fn fullest(plan: &Plan) -> Vec<usize> {
    let Some(class) = plan.classes.first() else { return vec![] };
    let stored = |l: &ParamLayout| 1.0 / plan.mesh.size_over(&l.flat) as f64;
    let number = |held: &Vec<usize>| weights(&class.graph, &plan.params, held, &stored);
    let stages = (0..plan.stages()).map(|s| plan.held(s));
    stages.max_by(|a, b| number(a).total_cmp(&number(b))).unwrap_or_default()
}

/// Parameters that are read before the first loop over layers, and after it.
pub(crate) fn uses(g: &Graph) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let mut of: BTreeMap<ValueId, usize> = BTreeMap::new();
    let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
    let mut looped = false;
    for n in &g.body.nodes {
        match &n.op {
            Op::Use { param } | Op::GatherParam { param, .. } => {
                of.extend(n.outs.iter().map(|v| (*v, param.0 as usize)));
            }
            Op::Scan { .. } => looped = true,
            _ => {
                let read = n.args.iter().filter_map(|a| of.get(a).copied());
                if looped { after.extend(read) } else { before.extend(read) }
            }
        }
    }
    (before, after)
}

/// Sizes of a micro-batch at the bounds of a graph, in sequences as long as `context` at most.
fn at_bounds(g: &Graph, context: usize) -> Sizes {
    let bound = |name: &str| {
        let whole = g.dims.iter().find(|(_, d)| d.name == name && d.shard.is_none());
        whole.map_or(0.0, |(id, _)| g.dims.bound(id) as f64)
    };
    // A rank of a ring has a share of the tokens.
    let ring = crate::work::ring_of(g);
    let tokens = ring * bound("tok");
    let longest = tokens.min(context as f64);
    Sizes {
        tokens,
        scored: (ring * bound("act")).min(tokens),
        sequences: bound("seq"),
        groups: bound("group"),
        context: longest / 2.0,
    }
}

/// Bytes of an element of a value.
fn value_bytes(g: &Graph, v: ValueId, precision: Precision) -> f64 {
    let ty = g.ty(v);
    let fixed: f64 =
        ty.dims.iter().filter_map(|d: &DimId| g.dims.size(*d)).map(|n| n as f64).product();
    let vector = fixed >= 64.0 && ty.dims.iter().any(|d| g.dims.is_ragged(*d));
    match (precision, ty.dtype) {
        (_, DType::Bf16) => 2.0,
        (Precision::Bf16, DType::F32) if vector => 2.0,
        _ => 4.0,
    }
}

/// Bytes that one token of a sequence of `length` takes in the cache of keys and values of a rank, in all layers.
/// Layers with a window keep that many tokens and no more.
pub fn per_token(plan: &Plan, width: f64, length: usize) -> f64 {
    let Some(class) = plan.classes.first() else { return 0.0 };
    let g = &class.graph;
    let mut bytes = 0.0;
    for node in &g.body.nodes {
        let Op::Scan { scan } = &node.op else { continue };
        scan.body.walk(&mut |n| {
            if let Op::AttentionCached { attn } = &n.op {
                let size = |d| g.dims.bound(d) as f64;
                let layers = scan.first..scan.first + scan.count;
                let windows: Vec<_> = layers.map(|l| *attn.window.at(l)).collect();
                let layers = scan.count as f64 * kept_share(&windows, length as f64);
                bytes += size(attn.kv) * (size(attn.hd) + size(attn.vd)) * width * layers;
            }
        });
    }
    bytes / plan.stages() as f64
}

/// Share of the tokens of a sequence of `length` that layers keep, which have these windows in turn.
pub fn kept_share(windows: &[Option<usize>], length: f64) -> f64 {
    let of = |w: &Option<usize>| w.map_or(1.0, |w| (w as f64 / length.max(1.0)).min(1.0));
    if windows.is_empty() {
        1.0
    } else {
        windows.iter().map(of).sum::<f64>() / windows.len() as f64
    }
}
