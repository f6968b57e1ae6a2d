//! Notions that recipes of both languages have.
//!
//! In: what a file means. Out: values under one set of names, so that an `.nrl` recipe and one of NeMo RL can be
//! compared.

use nrl_base::SourceMap;
use nrl_ir::program::{Program, Stage, Weights};
use nrl_rules::Recipe;
use nrl_rules::recipe::{Fact, Whence};

use super::{Told, Values, set_by};
use crate::checking::Meaning;

/// The notions of a file, if it means something.
pub fn of(meaning: &Meaning, sources: &SourceMap) -> Option<Values> {
    match (&meaning.compiled, &meaning.recipe) {
        (Some(c), _) => Some(program(&c.program)),
        (_, Some(r)) => Some(recipe(r, sources)),
        _ => None,
    }
}

fn put(out: &mut Values, name: &str, value: Option<String>, from: Option<String>) {
    if let Some(value) = value {
        out.entry(name.to_string()).or_insert(Told { value, from });
    }
}

/// A number without a trailing `.0`.
fn number(x: f64) -> String {
    format!("{x}")
}

fn program(p: &Program) -> Values {
    let mut out = Values::new();
    let mut say = |name: &str, value: Option<String>| put(&mut out, name, value, None);
    say("seed", Some(p.seed.to_string()));
    // The last phase that generates is the one that a recipe of NeMo RL has.
    let sampled = |s: &&nrl_ir::program::Phase| {
        s.step.iter().any(|b| matches!(b.stage, Stage::Generate { .. }))
    };
    let Some(phase) = p.phases.iter().rev().find(sampled).or(p.phases.last()) else { return out };
    say("steps", Some(phase.steps.to_string()));
    let mut prompts = None;
    for b in &phase.step {
        match &b.stage {
            Stage::Take { count, complete: false, .. } => prompts = Some(*count),
            Stage::Generate { copies, max_new, sampling: s, .. } => {
                say("prompts per step", prompts.map(|n| n.to_string()));
                say("samples per prompt", Some(copies.to_string()));
                say("new tokens at most", max_new.map(|n| n.to_string()));
                say("temperature", Some(number(s.temperature)));
                say("top_p", Some(number(s.top_p.unwrap_or(1.0))));
                say("top_k", Some(s.top_k.map_or("none".into(), |k| k.to_string())));
            }
            Stage::Update { model, optimizer, updates, epochs, .. } => {
                let m = &p.models[*model];
                say("updates per step", Some((updates * epochs).to_string()));
                say("context", Some(m.context.to_string()));
                let o = &p.optimizers[*optimizer];
                say("gradient norm at most", o.clip_norm.map(number));
                let mesh = &p.meshes[m.mesh].1;
                say("GPUs", Some(mesh.ranks().to_string()));
                say("tensor parallel size", Some(mesh.size("tp").to_string()));
                say(
                    "data parallel size",
                    Some((mesh.ranks() / mesh.size("tp").max(1)).to_string()),
                );
                if let Weights::Directory { path } = &m.weights {
                    say("model", Some(path.clone()));
                }
            }
            _ => {}
        }
    }
    out
}

fn recipe(r: &Recipe, sources: &SourceMap) -> Values {
    let mut out = Values::new();
    fn told<T>(
        f: Option<&Fact<T>>,
        show: impl Fn(&T) -> String,
        sources: &SourceMap,
    ) -> (Option<String>, Option<String>) {
        let from = f.map(|f| match &f.from {
            Whence::Set(origin) => set_by(*origin, sources),
            Whence::Default => "default".into(),
            Whence::Model(model) => format!("config of {model}"),
            Whence::Derived(how, _) => how.clone(),
        });
        (f.map(|f| show(&f.value)), from)
    }
    let mut say = |name: &str, (value, from): (Option<String>, Option<String>)| {
        put(&mut out, name, value, from)
    };
    let int = |f: Option<&Fact<i64>>| told(f, i64::to_string, sources);
    let float = |f: Option<&Fact<f64>>| told(f, |x| number(*x), sources);
    let section = r.section().unwrap_or("grpo");
    say("seed", int(r.int(&format!("{section}.seed")).as_ref()));
    say("steps", int(r.keeping.steps.as_ref()));
    say("prompts per step", int(r.batch.prompts.as_ref()));
    say("samples per prompt", int(r.batch.group.as_ref()));
    if let Some(g) = &r.generation {
        say("new tokens at most", int(g.max_new.as_ref()));
        say("temperature", float(g.temperature.as_ref()));
        say("top_p", float(g.top_p.as_ref()));
        let k = |k: &i64| if *k > 0 { k.to_string() } else { "none".into() };
        say("top_k", told(g.top_k.as_ref(), k, sources));
    }
    if let Some(w) = r.policy() {
        let samples = r.samples().map(|s| s.value).zip(w.global_batch.as_ref().map(|b| b.value));
        let updates =
            samples.filter(|(s, b)| *b > 0 && s % b == 0).map(|(s, b)| (s / b).to_string());
        let how = w.global_batch.as_ref().map(|b| format!("samples of a step / {}", b.name));
        say("updates per step", (updates, how));
        say("context", int(w.max_length.as_ref()));
        say("gradient norm at most", float(r.num(&format!("{}.max_grad_norm", w.path)).as_ref()));
        say("GPUs", int(w.gpus.as_ref()));
        say("tensor parallel size", int(w.mesh.tp.as_ref()));
        say("data parallel size", int(w.dp().as_ref()));
        say(
            "model",
            told(r.text(&format!("{}.model_name", w.path)).as_ref(), String::clone, sources),
        );
    }
    out
}
