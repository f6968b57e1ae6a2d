//! A compiled program as the rules of recipes see it.
//!
//! In: a program and its machines. Out: a typed recipe per phase: what a
//! NeMo RL recipe states in settings, this one states in lines. What the language has already
//! proved (heads, axes, batches) is not stated again.

use nrl_base::Span;
use nrl_facts::ModelFacts;
use nrl_facts::history;
use nrl_ir::host::{self, Value};
use nrl_ir::program::{Binding, Optimizer, Phase, Program, Stage, TooLong, Weights};
use nrl_rules::recipe::{Algorithm, Batch, Cluster, Fact, Generation, Mesh, Recipe, Role, Worker};
use nrl_rules::{Origin, SetBy};

use crate::{Compiled, rules};

fn fact<T>(name: impl Into<String>, value: T, span: Option<Span>) -> Fact<T> {
    match span {
        Some(at) => {
            let origin = Origin { by: SetBy::File, key: at, value: at, source: None };
            Fact::set(name, value, origin)
        }
        None => Fact::default(name, value),
    }
}

/// A typed recipe for each phase that updates a model.
pub(crate) fn recipes(c: &Compiled) -> Vec<Recipe> {
    let reader = Reader { c, p: &c.program };
    c.program.phases.iter().filter_map(|phase| reader.phase(phase)).collect()
}

struct Reader<'a> {
    c: &'a Compiled,
    p: &'a Program,
}

/// The size of a first update as a multiple of the learning rate, where the size of the gradient does not matter.
fn update_size(p: &Program, opt: &Optimizer) -> Option<f64> {
    let (a, b) = (first_update(p, opt, 1.0)?.abs(), first_update(p, opt, 0.25)?.abs());
    (a > 0.0 && (a - b).abs() < 1e-3 * a).then_some(a)
}

/// How far the first update moves a weight that is zero, at a learning rate of 1.
fn first_update(p: &Program, opt: &Optimizer, gradient: f64) -> Option<f64> {
    let g = &p.graphs[opt.graph];
    let scalars = opt.scalars.iter().map(|f| {
        let args = [1.0, 1.0, 0.0].map(Value::Num);
        match host::call(f, &args) {
            Ok(Value::Num(x)) => Some(x),
            _ => None,
        }
    });
    let scalars: Vec<f64> = scalars.collect::<Option<_>>()?;
    let inputs = g.inputs.iter().map(|input| {
        let x = match input.name.as_str() {
            "g" => gradient,
            name => match name.strip_prefix("host.").and_then(|n| n.parse::<usize>().ok()) {
                Some(n) => scalars.get(n).copied().unwrap_or(0.0),
                None => 0.0,
            },
        };
        let shape: Vec<usize> = input.ty.dims.iter().map(|_| 1).collect();
        nrl_interp::Tensor::new(shape, vec![x])
    });
    let offsets =
        g.dims.iter().filter(|(id, _)| g.dims.is_ragged(*id)).map(|(id, _)| (id, vec![0, 1]));
    let bind = nrl_interp::Bindings {
        inputs: inputs.collect(),
        offsets: offsets.collect(),
        bases: vec![],
        slots: vec![],
    };
    let mut rank = nrl_interp::Rank { bind, ..Default::default() };
    let out = nrl_interp::run_one(g, &mut rank).ok()?;
    out.first()?.data.first().copied()
}

/// The largest learning rate of a schedule over `total` updates, tried at 64 of them.
fn largest(lr: &host::Func, total: usize) -> Option<f64> {
    let tries = total.clamp(1, 64);
    let at = |i: usize| 1 + (i * (total.max(1) - 1)) / (tries - 1).max(1);
    let rate = |t: usize| match host::call(lr, &[Value::Num(t as f64)]) {
        Ok(Value::Num(x)) => Some(x),
        _ => None,
    };
    (0..tries).filter_map(|i| rate(at(i))).max_by(f64::total_cmp)
}

fn whole(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Reader<'_> {
    fn phase(&self, phase: &Phase) -> Option<Recipe> {
        let (update, model, updates, tokens) = phase.step.iter().find_map(|b| match &b.stage {
            Stage::Update { model, updates, tokens, .. } => Some((b, *model, *updates, *tokens)),
            _ => None,
        })?;
        let mut recipe = Recipe { cluster: self.cluster(model), ..Recipe::default() };
        let at = |b: &Binding| rules::place_of(b.origin);
        let sampled = phase.step.iter().find_map(|b| match &b.stage {
            Stage::Generate { generator, copies, max_new, sampling } => {
                Some((b, *generator, *copies, *max_new, sampling.clone()))
            }
            _ => None,
        });
        let taken = phase.step.iter().find_map(|b| match b.stage {
            Stage::Take { data, count, .. } => Some((b, data, count)),
            _ => None,
        });
        let kind = if sampled.is_some() { Algorithm::Grpo } else { Algorithm::Sft };
        recipe.algorithm = Some(fact("the algorithm", kind, at(update)));
        let (name, mut worker) = (&self.p.models[model].name, self.worker(model));
        let mut prompt = None;
        if let Some((b, data, count)) = taken {
            let data = &self.p.data[data];
            prompt = data.at_most.filter(|(_, how)| *how != TooLong::Error).map(|(n, _)| whole(n));
            let prompts = fact("prompts of a step", whole(count), at(b));
            let group = sampled
                .as_ref()
                .map(|(b, _, copies, ..)| fact("samples of each prompt", whole(*copies), at(b)));
            let samples = whole(count * group.as_ref().map_or(1, |g| g.value as usize));
            let how = format!("{samples} samples of a step in {updates} updates");
            let each = samples / whole(updates.max(1));
            worker.global_batch =
                Some(Fact::derived("samples of an update", each, how, &[&prompts]));
            let max_prompt = prompt.map(|n| fact("longest prompt", n, at(b)));
            recipe.batch = Batch { prompts: Some(prompts), group, max_prompt, ..Batch::default() };
        }
        let context = whole(self.p.models[model].context);
        let longest = match (prompt, sampled.as_ref().and_then(|s| s.3)) {
            (Some(prompt), Some(new)) => context.min(prompt.saturating_add(whole(new))),
            _ => context,
        };
        let named = format!("longest sequence of `{name}`");
        worker.max_length = Some(fact(named, longest, self.model_span(model)));
        let budget = fact("tokens of a micro-batch", whole(tokens), at(update));
        worker.train_tokens = Some(budget);
        worker.packing = Some(Fact::default("packing", true));
        if let Some((master, rate)) = self.precision(phase, update, model) {
            (worker.master, worker.rate) = (Some(master), Some(rate));
        }
        recipe.workers.push(worker);
        recipe.history = self.history(phase);
        recipe.generation = sampled.map(|(b, generator, _, max_new, sampling)| {
            let g = &self.p.generators[generator];
            let (mesh_name, mesh) = &self.p.meshes[g.mesh];
            let span = self.c.facts.meshes.get(g.mesh).map(|m| m.span);
            let tp = mesh.size("rtp").max(mesh.size("tp"));
            Generation {
                path: g.name.clone(),
                gpus: Some(fact(format!("ranks of `{mesh_name}`"), whole(mesh.ranks()), span)),
                tp: Some(fact(format!("tp of `{mesh_name}`"), whole(tp), span)),
                max_new: max_new.map(|n| fact("longest answer", whole(n), at(b))),
                temperature: Some(fact("temperature", sampling.temperature, at(b))),
                ..Generation::default()
            }
        });
        Some(recipe)
    }

    /// The format of the weights that an update adds to, and the size of its largest update.
    fn precision(
        &self,
        phase: &Phase,
        update: &Binding,
        model: usize,
    ) -> Option<(Fact<String>, Fact<f64>)> {
        let Stage::Update { optimizer, updates, epochs, .. } = update.stage else { return None };
        let bf16 = self.c.facts.models.get(model).is_some_and(|m| m.bf16);
        let kept = self.c.facts.bf16_masters.get(optimizer) == Some(&true);
        let opt = &self.p.optimizers[optimizer];
        let total = phase.steps * updates * epochs;
        if !bf16 || !kept {
            return None;
        }
        let each = update_size(self.p, opt)?;
        let master =
            fact("weights that updates are added to", "bf16".to_string(), self.model_span(model));
        let rate = each * largest(&opt.lr, total)?;
        let how = format!("the largest of {total} updates of `{}`", opt.name);
        Some((master, Fact::derived("learning rate", rate, how, &[])))
    }

    /// What the chat template does to the turns of the phase's rollout.
    fn history(&self, phase: &Phase) -> Option<nrl_rules::recipe::History> {
        let drawn = |b: &Binding| matches!(b.stage, Stage::Generate { .. });
        let spans: Vec<_> = phase
            .step
            .iter()
            .filter(|b| drawn(b))
            .filter_map(|b| rules::place_of(b.origin))
            .collect();
        let rollout = self.c.facts.rollouts.iter().find(|r| spans.contains(&r.span))?;
        let name = match &self.p.models[rollout.model].weights {
            Weights::Directory { path } => path.clone(),
            _ => return None,
        };
        let none = serde_json::Value::Null;
        let (found, how) = match &rollout.template {
            Some(template) => (history::of_template(template, &none), "rendered here"),
            None => (history::of_model(&name, &none), "known of its family"),
        };
        let told = match found? {
            history::History::Kept => return None,
            history::History::Rewritten(how) => how,
            history::History::Unthinking => "drops all <think> blocks".to_string(),
        };
        let what = format!("the chat template of {name}");
        Some(nrl_rules::recipe::History {
            turns: fact("replies of several turns", rollout.name.clone(), Some(rollout.span)),
            rewritten: Some(Fact::derived(what, told, how.to_string(), &[])),
            kept: true,
        })
    }

    fn model_span(&self, model: usize) -> Option<Span> {
        self.c.facts.models.get(model).map(|m| m.span)
    }

    fn cluster(&self, model: usize) -> Cluster {
        let mesh = self.p.models[model].mesh;
        let cluster = self.c.facts.meshes.get(mesh).and_then(|m| m.cluster);
        let Some(cluster) = cluster.map(|i| &self.c.facts.clusters[i]) else {
            return Cluster::default();
        };
        if !cluster.device.gpu || cluster.per_node == 0 {
            return Cluster::default();
        }
        // A pool may be part of a node.
        let per_node = cluster.per_node.min(cluster.ranks).max(1);
        let nodes = whole(cluster.ranks.div_ceil(per_node));
        let span = Some(cluster.span);
        Cluster {
            nodes: Some(fact("nodes", nodes, span)),
            gpus_per_node: Some(fact("GPUs of a node", whole(per_node), span)),
            ..Cluster::default()
        }
    }

    fn worker(&self, model: usize) -> Worker {
        let m = &self.p.models[model];
        let (mesh_name, mesh) = &self.p.meshes[m.mesh];
        let span = self.c.facts.meshes.get(m.mesh).map(|f| f.span);
        let axis = |name: &str| {
            let there = mesh.axes.iter().any(|a| a.name == name);
            let what = format!("{name} of `{mesh_name}`");
            there.then(|| fact(what, whole(mesh.size(name)), span))
        };
        let mut worker = Worker::new(Role::Policy, m.name.clone());
        let what = format!("ranks of `{mesh_name}`");
        worker.gpus = Some(fact(what, whole(mesh.ranks()), span));
        worker.mesh = Mesh {
            tp: axis("tp"),
            cp: axis("cp"),
            pp: axis("pp"),
            ep: axis("ep"),
            etp: axis("etp"),
            ..Mesh::default()
        };
        worker.model = ModelFacts::from_config(&m.name, &m.config.to_string()).ok();
        worker
    }
}
