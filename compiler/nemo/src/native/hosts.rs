//! The optimizer on hosts, as `plans.offloaded()` says it and as Megatron holds it.
//!
//! In: settings, or the fact that a plan keeps the optimizer on hosts. Out: the one from the other. Megatron's `optimizer_cpu_offload` goes
//! with a share; the whole of it is a line, a part of it stays in the settings. DTensor's `cpu_offload` keeps weights and gradients
//! there too, which no line says.

use nrl_rules::settings::{Node, Value};

use super::{Facts, on};

/// Whether an optimizer is on hosts as a whole, of the section of a model.
pub(super) fn whole(root: &Node, section: &str) -> bool {
    let at = |key: &str| root.get(&path(section, key)).map(|n| &n.value);
    at("cpu_offload") == Some(&Value::Bool(true)) && at("offload_fraction").is_some_and(is_one)
}

/// The settings of a plan, where those below say otherwise.
pub(super) fn edits(
    facts: &Facts,
    below: &Node,
    section: &str,
    (fact, plan): (&'static str, &'static str),
    put: &mut impl FnMut(&'static str, &str, Value),
) {
    let (flag, share) = (path(section, "cpu_offload"), path(section, "offload_fraction"));
    match (on(facts, fact), whole(below, section)) {
        (true, false) => {
            put(fact, &flag, Value::Bool(true));
            if !below.get(&share).is_some_and(|n| is_one(&n.value)) {
                put(fact, &share, Value::Float(1.0));
            }
        }
        (false, true) if facts.contains_key(plan) => put(fact, &flag, Value::Bool(false)),
        _ => {}
    }
}

fn path(section: &str, key: &str) -> String {
    format!("{section}.megatron_cfg.optimizer.optimizer_{key}")
}

fn is_one(value: &Value) -> bool {
    matches!(value, Value::Int(1)) || matches!(value, Value::Float(x) if *x == 1.0)
}
