//! What sampling and refits of a recipe take: its models as a serving engine sees them.
//!
//! In: a compiled program, a generator, how many samples of which lengths. Out: seconds, as an engine with continuous
//! batching would take them (`nrl_sim::rollout`), and the moves of a refit (`nrl_sim::refit`).

use nrl_ir::ParamDecl;
use nrl_ir::program::{Model, Stage};
use nrl_lower::facts::Asked;
use nrl_sim::lengths::{ALIKE, Lengths};
use nrl_sim::machine::Machine;
use nrl_sim::refit::{Edge, Held, Paths, Placement, Refit, Transport, Weights, refit};
use nrl_sim::rollout::{
    Dims, Engine, Generated, Load, Refused, Serving, Shard, Speed, Steady, Trainer, generate,
    steady,
};

use crate::Compiled;
use crate::rl::Rl;

/// Share of a device that an engine takes where a recipe does not say.
const SHARE: f64 = 0.85;

/// Samples that a generator draws in a step.
pub(crate) struct Draw<'a> {
    pub prompts: usize,
    pub copies: usize,
    pub law: &'a Lengths,
    pub prompt: f64,
    /// Most new tokens of a sample.
    pub most: f64,
}

/// A generator as an engine on a machine.
pub(crate) struct Sampler {
    pub shard: Shard,
    pub engine: Engine,
    pub replicas: usize,
    /// Tokens that the pool of a replica holds.
    pool: f64,
    /// Windows that its layers have in turn.
    windows: Vec<Option<usize>>,
    speed: Speed,
    /// It is called with whole prompts, on the trainer's devices.
    called: bool,
    /// Tokens that a step keeps, and that it computes.
    pace: (f64, f64),
}

impl Sampler {
    /// The generator with this index, on `machine`, as a stack runs it.
    pub fn of(c: &Compiled, generator: usize, machine: &Machine, rl: Option<&Rl>) -> Sampler {
        let g = &c.program.generators[generator];
        let mesh = &c.program.meshes[g.mesh].1;
        let tp = mesh.size("tp") * mesh.size("rtp");
        let (width, kept) = c.framework.memory.engine.unwrap_or((2.0, 2.0));
        let shard = dims(&c.program.models[g.model]).shard(tp, width, kept);
        let gain = gained(2.0 / width, machine);
        let engine = rl.map_or_else(Engine::default, |r| r.stack.engine.clone());
        let asked = c.facts.generators.get(generator).and_then(|f| f.memory);
        let share = match asked.map(|(a, _)| a) {
            Some(Asked::Share(x)) => x,
            Some(Asked::Bytes(b)) => b / machine.memory,
            _ => SHARE,
        };
        let pool = match asked.map(|(a, _)| a) {
            Some(Asked::Tokens(n)) => n,
            _ => engine.pool(machine, share, &shard),
        };
        let replicas = (mesh.ranks() / tp.max(1) / mesh.size("pp").max(1)).max(1);
        let host = rl.map_or(1.0, |r| r.node().host);
        let mut speed = engine.speed(machine, tp, host, true);
        speed.flops *= gain;
        speed.expert_flops *= gain;
        // Weights of fewer bits are read with as much of the gain.
        speed.weights *= gain * width / 2.0;
        speed.experts *= gain * width / 2.0;
        let accepted = rl.filter(|_| c.framework.guesses).map(|r| r.stack.accepted);
        let pace = accepted.map_or((1.0, 1.0), |kept| (kept, 2.0));
        let windows = windows(&c.plans[g.graph]);
        let called = shares(c, g.model, g.mesh);
        Sampler { shard, engine, replicas, pool, windows, speed, called, pace }
    }

    /// A rank as sequences of such lengths see it: layers with a window keep, and read, less of them.
    fn windowed(&self, draw: &Draw<'_>, lengths: &[u32]) -> (Shard, Serving) {
        let new = lengths.iter().map(|n| f64::from(*n)).sum::<f64>() / lengths.len().max(1) as f64;
        let share = nrl_sim::kept_share(&self.windows, draw.prompt + new);
        let kv_bytes = self.shard.kv_bytes * share;
        (Shard { kv_bytes, ..self.shard.clone() }, self.serving(self.pool / share))
    }

    fn serving(&self, pool: f64) -> Serving {
        Serving {
            pool,
            sequences: 1024,
            chunk: 16_384.0,
            pace: self.pace.0,
            computed: self.pace.1,
            shared_prompts: true,
        }
    }

    fn load<'a>(&self, draw: &Draw<'_>, lengths: &'a [u32]) -> Load<'a> {
        Load {
            lengths,
            group: draw.copies.max(1),
            prompt: draw.prompt,
            replicas: self.replicas,
            whole_prompts: self.called,
        }
    }

    /// Draws samples; also how many tokens of such sequences the pool of a replica holds.
    pub fn run(&self, draw: &Draw<'_>) -> Result<(Generated, f64), Refused> {
        let lengths = draw.lengths();
        let (shard, serving) = self.windowed(draw, &lengths);
        let drawn = generate(&shard, &self.speed, &serving, &self.load(draw, &lengths))?;
        Ok((drawn, serving.pool))
    }

    /// Draws samples while a trainer works on earlier ones.
    pub fn beside(&self, draw: &Draw<'_>, trainer: &Trainer) -> Result<Steady, Refused> {
        let lengths = draw.lengths();
        let (shard, serving) = self.windowed(draw, &lengths);
        steady(&shard, &self.speed, &serving, &self.load(draw, &lengths), trainer)
    }
}

/// The windows of the layers of a plan that generates, in turn; those of its first loop.
fn windows(plan: &nrl_ir::plan::Plan) -> Vec<Option<usize>> {
    let mut found = None;
    for class in plan.classes.iter().take(1) {
        class.graph.body.walk(&mut |n| {
            if let nrl_ir::Op::AttentionCached { attn } = &n.op {
                found.get_or_insert_with(|| attn.window.items().to_vec());
            }
        });
    }
    found.unwrap_or_default()
}

impl Draw<'_> {
    fn lengths(&self) -> Vec<u32> {
        self.law.draw(self.prompts, self.copies, self.most.max(1.0) as u32, ALIKE)
    }
}

/// What samplers gain from weights of `fewer` times less bits: rollouts of Qwen3-8B in fp8 are 1.48 times as fast (NeMo
/// RL, pull request 1212).
fn gained(fewer: f64, machine: &Machine) -> f64 {
    if machine.fp8 > 1.0 { 1.0 + 0.5 * (fewer - 1.0).max(0.0) } else { 1.0 }
}

/// Are a model and a mesh on the same devices?
fn shares(c: &Compiled, model: usize, mesh: usize) -> bool {
    let cluster = |mesh: usize| c.facts.meshes.get(mesh).and_then(|m| m.cluster);
    cluster(c.program.models[model].mesh) == cluster(mesh)
}

/// The moves that bring a model's new weights to the samplers of a generator.
pub(crate) fn moves(
    c: &Compiled,
    generator: usize,
    machine: &Machine,
    rl: Option<&Rl>,
) -> Vec<Edge> {
    let g = &c.program.generators[generator];
    let model = &c.program.models[g.model];
    let (held, sampled) = (&c.program.meshes[model.mesh].1, &c.program.meshes[g.mesh].1);
    let d = dims(model);
    let same = shares(c, g.model, g.mesh);
    let on_host = c.away(g.model).of_state();
    let placement = if same { Placement::Colocated } else { Placement::Disaggregated };
    let layers: f64 = model.params.iter().map(tensors).sum();
    let tp = sampled.size("tp") * sampled.size("rtp");
    let r = Refit {
        weights: Weights {
            bytes: 2.0 * d.params,
            expert_bytes: 2.0 * d.expert_params,
            tensors: layers + 3.0 * d.experts.map_or(0.0, |(n, _)| n) * d.expert_layers,
        },
        held: Held {
            tp: held.size("tp"),
            pp: held.size("pp"),
            ep: held.size("ep"),
            fsdp: held.size("fsdp"),
        },
        sampler: (tp, sampled.ranks() / tp.max(1)),
        placement,
        transport: Transport::Broadcast,
        // Master weights and two moments in four bytes leave the device for sampling, if they are there.
        swapped: if same { 12.0 * (1.0 - on_host) * d.params / held.ranks() as f64 } else { 0.0 },
    };
    let paths = match rl {
        Some(rl) => {
            let quantized = c.framework.memory.engine.is_some_and(|(width, _)| width < 2.0);
            rl.stack.paths(machine, &rl.node(), placement, quantized)
        }
        None => Paths::on(machine, placement),
    };
    refit(&r, &paths)
}

/// Is the model of a generator updated in a step?
pub(crate) fn follows(step: &[nrl_ir::program::Binding], model: usize) -> bool {
    step.iter().any(|b| matches!(b.stage, Stage::Update { model: m, .. } if m == model))
}

/// Tensors of a parameter, without those of experts.
fn tensors(p: &ParamDecl) -> f64 {
    if p.dims.len() > 2 && p.checkpoint.contains("{e}") {
        return 0.0;
    }
    p.repeat.as_ref().map_or(1.0, |(_, n)| *n as f64)
}

/// Dims of a model as generation sees them.
pub(crate) fn dims(m: &Model) -> Dims {
    let size = |name: &str| m.dims.find(name).map(|d| m.dims.bound(d) as f64);
    let config = |key: &str| m.config.get(key).and_then(|v| v.as_f64());
    let number = |p: &ParamDecl| -> f64 {
        let each: f64 = p.dims.iter().map(|d| m.dims.bound(*d) as f64).product();
        each * p.repeat.as_ref().map_or(1.0, |(_, n)| *n as f64)
    };
    let routed =
        |p: &&ParamDecl| p.dims.len() > 2 && p.dims.iter().any(|d| m.dims.name(*d) == "expert");
    let mut groups: Vec<(&str, usize)> = vec![];
    for (group, n, p) in
        m.params.iter().filter_map(|p| Some((&p.repeat.as_ref()?.0, p.repeat.as_ref()?.1, p)))
    {
        if !groups.iter().any(|(g, _)| g == group) {
            groups.push((group, n * p.apart()));
        }
    }
    let layers: f64 = groups.iter().map(|(_, n)| *n as f64).sum();
    let expert = m.params.iter().find(|p| routed(p));
    // Layers that have a parameter of this name.
    let having = |path: &str| -> f64 {
        let own = m.params.iter().filter(|p| p.path() == path);
        own.filter_map(|p| p.repeat.as_ref()).map(|(_, n)| *n as f64).sum()
    };
    // A hybrid has one block a layer; its mixers keep a state in place of keys and values.
    let mixers = having("layers.a_log");
    let state =
        mixers * ["mg", "mr", "mp", "ms"].map(|d| size(d).unwrap_or(1.0)).iter().product::<f64>();
    let latent = config("kv_lora_rank").map(|n| n + config("qk_rope_head_dim").unwrap_or(0.0));
    let kv = size("kv").unwrap_or(1.0);
    let embedding = m.params.iter().find(|p| p.name == "embed").map_or(0.0, number);
    let head = m.params.iter().any(|p| p.name == "head");
    Dims {
        layers,
        hidden: size("d").unwrap_or(1.0),
        params: m.params.iter().map(number).sum(),
        embedding: if head { embedding } else { 0.0 },
        expert_params: m.params.iter().filter(routed).map(number).sum(),
        experts: size("expert")
            .filter(|_| expert.is_some())
            .zip(config("num_experts_per_tok").or_else(|| config("num_experts_per_token"))),
        expert_layers: expert.map_or(0.0, |p| match p.repeat {
            Some(_) => having(&p.path()),
            None => 0.0,
        }),
        attention_layers: if mixers > 0.0 { having("layers.wk") } else { layers },
        state,
        state_groups: size("mg").filter(|_| mixers > 0.0).unwrap_or(1.0) as usize,
        kv_width: latent.unwrap_or(2.0 * kv * size("hd").unwrap_or(1.0)),
        kv_heads: if latent.is_some() { 1 } else { kv as usize },
        reductions: if mixers > 0.0 { 1.0 } else { 2.0 },
    }
}
