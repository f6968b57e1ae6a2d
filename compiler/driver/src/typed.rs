//! A compiled program as the rules of recipes see it.
//!
//! In: a program and its machines. Out: a typed recipe per phase: what a
//! NeMo RL recipe states in settings, this one states in lines. What the language has already
//! proved (heads, axes, batches) is not stated again.

use nrl_base::Span;
use nrl_facts::ModelFacts;
use nrl_ir::program::{Binding, Phase, Program, Stage, TooLong};
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
        recipe.workers.push(worker);
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
