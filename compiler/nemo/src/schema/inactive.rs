//! Sections that nobody reads with this recipe's choices: the other backend, other engines, other
//! algorithms. Base recipes carry them on purpose; what a child or an override writes there is told.

use nrl_base::{Diagnostic, Severity};
use nrl_rules::recipe::{Backend, Engine, Recipe, Role};
use nrl_rules::settings::{Node, SetBy, Value};

use super::types::place;

/// Settings written where nobody reads them.
pub fn unread(r: &Recipe) -> Vec<Diagnostic> {
    let inherits = r.settings.as_ref().is_some_and(|s| by(&s.root, SetBy::Parent));
    let mut found = vec![];
    for (section, why) in sections(r) {
        let Some(node) = r.node(&section).filter(|n| !n.is_null()) else { continue };
        let mut written = vec![];
        leaves(node, &section, &mut written);
        let line = |path: &String, node: &Node, severity, count: usize| {
            let text = match count {
                1 => format!("`{path}` does nothing: {why}"),
                n => format!("`{path}` and {} more of `{section}` do nothing: {why}", n - 1),
            };
            place(Diagnostic::new("setting-has-no-effect", severity, text), path, node)
                .help(format!("remove it, or choose what reads `{section}`"))
        };
        let typed: Vec<_> =
            written.iter().filter(|(_, n)| n.origin.by == SetBy::CommandLine).collect();
        if let Some((path, node)) = typed.first() {
            found.push(line(path, node, Severity::Warning, typed.len()));
        }
        let own: Vec<_> = written.iter().filter(|(_, n)| n.origin.by == SetBy::File).collect();
        if let Some((path, node)) = own.first().filter(|_| inherits) {
            found.push(line(path, node, Severity::Note, own.len()));
        }
    }
    found
}

/// Sections that nobody reads, and why.
fn sections(r: &Recipe) -> Vec<(String, String)> {
    let mut all = vec![];
    for w in r.workers.iter().filter(|w| w.role != Role::Scorer) {
        let Some(backend) = &w.backend else { continue };
        let why = format!("{} trains the {}", backend.value, w.role);
        if w.is(Backend::Megatron) {
            for name in ["dtensor_cfg", "optimizer", "scheduler"] {
                all.push((w.at(name), why.clone()));
            }
        } else {
            all.push((w.at("megatron_cfg"), why));
        }
    }
    if let Some(g) = &r.generation
        && let Some(engine) = &g.engine
    {
        let why = format!("{} generates", engine.value);
        let read: &[&str] = match engine.value {
            Engine::Vllm | Engine::Dynamo => &["vllm_cfg", "vllm_kwargs", "dynamo_cfg"],
            Engine::Sglang => &["sglang_cfg"],
            Engine::Trtllm => &["trtllm_cfg", "trtllm_kwargs"],
            Engine::Megatron => &["mcore_generation_config"],
        };
        for name in [
            "vllm_cfg",
            "vllm_kwargs",
            "sglang_cfg",
            "trtllm_cfg",
            "trtllm_kwargs",
            "mcore_generation_config",
        ] {
            if !read.contains(&name) {
                all.push((g.at(name), why.clone()));
            }
        }
    }
    if let (Some(algorithm), Some(own)) = (&r.algorithm, r.section()) {
        for name in ["grpo", "ppo", "dpo", "sft", "rm"] {
            if name != own {
                all.push((name.to_string(), format!("this is {}", algorithm.value)));
            }
        }
    }
    all
}

/// Values below a section that somebody wrote, without the switches that choose a backend.
fn leaves<'n>(node: &'n Node, path: &str, out: &mut Vec<(String, &'n Node)>) {
    if let Value::Map(_) = node.value {
        for (name, child) in node.entries() {
            if name != "enabled" && name != "_v2" {
                leaves(child, &format!("{path}.{name}"), out);
            }
        }
    } else {
        out.push((path.to_string(), node));
    }
}

fn by(node: &Node, who: SetBy) -> bool {
    node.origin.by == who
        || node.entries().any(|(_, child)| by(child, who))
        || node.items().iter().any(|item| by(item, who))
}
