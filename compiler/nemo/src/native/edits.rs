//! The settings that facts mean.

use nrl_rules::settings::{Node, Value};

use super::table::{BETA1, BETA2};
use super::take::clock;
use super::{Algorithm, Beside, Facts, int, on, same, table, text};

/// One setting that a fact gives.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Edit {
    pub fact: &'static str,
    pub path: String,
    pub value: Value,
}

/// Whether the Megatron backend trains.
pub(crate) fn megatron(root: &Node) -> bool {
    root.get("policy.megatron_cfg.enabled").is_some_and(|n| n.value == Value::Bool(true))
}

/// The engine that generates.
pub(crate) fn engine(root: &Node) -> &str {
    match root.get("policy.generation.backend").map(|n| &n.value) {
        Some(Value::Text(name)) => name,
        _ => "vllm",
    }
}

/// Where the learning rate of the critic stands.
pub(super) fn critic_lr(root: &Node) -> &'static str {
    match root.get("value.megatron_cfg.enabled").map(|n| &n.value) {
        Some(Value::Bool(true)) => "value.megatron_cfg.optimizer.lr",
        _ => "value.optimizer.kwargs.lr",
    }
}

/// What the facts of a recipe set, given the settings below it.
pub(crate) fn edits(facts: &Facts, below: &Node, algorithm: Algorithm) -> Vec<Edit> {
    let mut out = vec![];
    let on_megatron = match text(facts, "plan") {
        Some(plan) => plan == "megatron",
        None => megatron(below),
    };
    let beside = Beside::of(algorithm);
    let mut rows = table::rows(algorithm, on_megatron, engine(below));
    rows.extend(beside.into_iter().flat_map(|b| b.known(facts, below)));
    for row in rows {
        let said = facts.get(row.fact);
        let old = below.get(&row.path);
        let usual = row.otherwise.as_ref().is_some_and(|usual| Some(usual) == said);
        if usual && old.is_none_or(|old| said.is_some_and(|said| alike(&old.value, said))) {
            continue;
        }
        let Some(value) = said.cloned().or(row.otherwise) else { continue };
        if said.is_some() {
            out.push(Edit { fact: row.fact, path: row.path, value });
        } else if facts.contains_key(row.line)
            && let Some(old) = old
            && !alike(&old.value, &value)
        {
            out.push(Edit { fact: row.line, path: row.path, value });
        }
    }
    let mut put = |fact: &'static str, path: &str, value: Value| {
        out.push(Edit { fact, path: path.to_string(), value });
    };
    backend(facts, below, on_megatron, &mut put);
    if on_megatron {
        super::hosts::edits(facts, below, "policy", ("offload", "plan"), &mut put);
    }
    if let Some(beside) = beside {
        beside.backend(facts, below, &mut put);
    }
    super::schedule::edits(facts, below, on_megatron, &mut put);
    super::adapter::edits(facts, below, on_megatron, &mut put);
    if let (Algorithm::Ppo, Some(lr)) = (algorithm, facts.get("critic_lr")) {
        put("critic_lr", critic_lr(below), lr.clone());
    }
    if let Some(seconds) = int(facts, "within") {
        put("within", "checkpointing.checkpoint_must_save_by", Value::Text(clock(seconds)));
    }
    if let Some(metric) = text(facts, "metric") {
        let metric = if metric == "loss" { "val_loss" } else { metric };
        put("metric", "checkpointing.metric_name", Value::Text(format!("val:{metric}")));
    }
    data(facts, &mut put);
    if let Some(tokens) = int(facts, "microbatch") {
        tokens_each(facts, below, algorithm, tokens, &mut put);
    }
    if algorithm.generates() {
        generation(facts, below, algorithm, &mut put);
    }
    out
}

/// Nothing to change: equal numbers, and `-1` for an absent limit.
fn alike(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Int(n), Value::Float(x)) | (Value::Float(x), Value::Int(n)) => *n as f64 == *x,
        (Value::Int(n), Value::Null) => *n <= 0,
        (Value::Int(a), Value::Int(b)) => a == b || *b == 0 && *a <= 0,
        (old, new) => old == new,
    }
}

fn backend(
    facts: &Facts,
    below: &Node,
    on_megatron: bool,
    put: &mut impl FnMut(&'static str, &str, Value),
) {
    if facts.contains_key("plan") {
        for (path, is) in [
            ("policy.megatron_cfg.enabled", on_megatron),
            ("policy.dtensor_cfg.enabled", !on_megatron),
        ] {
            if below.get(path).is_some() || is {
                put("plan", path, Value::Bool(is));
            }
        }
    }
    if on_megatron {
        return;
    }
    betas(facts, below, put);
}

fn whole(root: &Node, path: &str) -> Option<i64> {
    match root.get(path).map(|n| &n.value) {
        Some(Value::Int(n)) if *n > 0 => Some(*n),
        _ => None,
    }
}

/// The section that bounds the tokens of a micro-batch, if one does.
fn bound(root: &Node) -> Option<String> {
    let sections = ["policy.sequence_packing", "policy.dynamic_batching"];
    let on = |section: &&&str| {
        let enabled = root.get(&format!("{section}.enabled"));
        enabled.is_some_and(|n| n.value == Value::Bool(true))
    };
    sections.iter().find(on).map(|section| format!("{section}.train_mb_tokens"))
}

/// Tokens of one sample, or of both answers of a pair.
fn sample_tokens(algorithm: Algorithm, context: i64) -> i64 {
    let rows = if matches!(algorithm, Algorithm::Dpo | Algorithm::Rm) { 2 } else { 1 };
    context.saturating_mul(rows)
}

/// The most tokens of a micro-batch: what packing allows, or whole samples of full length.
pub(super) fn microbatch(root: &Node, algorithm: Algorithm) -> Option<i64> {
    match bound(root) {
        Some(path) => whole(root, &path),
        None => {
            let context = whole(root, "policy.max_total_sequence_length")?;
            let samples = whole(root, "policy.train_micro_batch_size")?;
            samples.checked_mul(sample_tokens(algorithm, context))
        }
    }
}

/// Tokens of a micro-batch as samples of full length, or as the bound of packing.
fn tokens_each(
    facts: &Facts,
    below: &Node,
    algorithm: Algorithm,
    tokens: i64,
    put: &mut impl FnMut(&'static str, &str, Value),
) {
    let context = int(facts, "context").or(whole(below, "policy.max_total_sequence_length"));
    let each = context.map(|context| sample_tokens(algorithm, context)).filter(|each| *each > 0);
    let samples = each.filter(|each| tokens % each == 0).map(|each| tokens / each);
    match (bound(below), samples) {
        (None, Some(samples)) => {
            put("microbatch", "policy.train_micro_batch_size", Value::Int(samples));
        }
        (Some(path), Some(samples)) if derived(below, &path, each) => {
            put("microbatch", "policy.train_micro_batch_size", Value::Int(samples));
        }
        (Some(path), _) => put("microbatch", &path, Value::Int(tokens)),
        (None, None) => {}
    }
}

/// The bound of packing where it is set by itself: a line of tokens then means the bound.
pub(crate) fn own_bound(root: &Node) -> Option<(String, Value)> {
    let path = bound(root)?;
    let tokens = whole(root, &path)?;
    (!derived(root, &path, Some(tokens))).then_some((path, Value::Int(tokens)))
}

/// Whether a bound is samples of full length, so that it follows from both.
fn derived(below: &Node, path: &str, each: Option<i64>) -> bool {
    let context = whole(below, "policy.max_total_sequence_length");
    let samples = whole(below, "policy.train_micro_batch_size");
    let product = context.zip(samples).and_then(|(context, n)| context.checked_mul(n));
    each.is_some() && product.is_some() && product == whole(below, path)
}

/// Both decays stand in one list.
fn betas(facts: &Facts, below: &Node, put: &mut impl FnMut(&'static str, &str, Value)) {
    let path = "policy.optimizer.kwargs.betas";
    let old = below.get(path).map(|n| &n.value);
    let said = facts.contains_key("beta1") || facts.contains_key("beta2");
    if !facts.contains_key("opt") || (!said && old.is_none()) {
        return;
    }
    let fact = |name: &str, usual: f64| facts.get(name).cloned().unwrap_or(Value::Float(usual));
    let at = |value| Node { value, origin: below.origin };
    let pair = vec![at(fact("beta1", BETA1)), at(fact("beta2", BETA2))];
    let new = Value::List(pair);
    if said || old.is_some_and(|old| !same(old, &new)) {
        put(if said { "beta1" } else { "opt" }, path, new);
    }
}

fn data(facts: &Facts, put: &mut impl FnMut(&'static str, &str, Value)) {
    for (fact, path) in [
        ("data_file", "data.train.data_path"),
        ("data_name", "data.train.dataset_name"),
        ("prompt_key", "data.train.input_key"),
        ("answer_key", "data.train.output_key"),
        ("held_file", "data.validation.data_path"),
        ("held_name", "data.validation.dataset_name"),
        ("held_share", "data.train.split_validation_size"),
        ("reward", "data.default.env_name"),
    ] {
        if let Some(value) = facts.get(fact) {
            put(fact, path, value.clone());
        }
    }
}

fn generation(
    facts: &Facts,
    below: &Node,
    algorithm: Algorithm,
    put: &mut impl FnMut(&'static str, &str, Value),
) {
    let colocated = below.get("policy.generation.colocated.enabled");
    if on(facts, "colocated") && colocated.is_some_and(|n| n.value != Value::Bool(true)) {
        put("colocated", "policy.generation.colocated.enabled", Value::Bool(true));
    }
    let resources = "policy.generation.colocated.resources";
    if let Some(nodes) = int(facts, "pool_nodes") {
        put("pool_nodes", "policy.generation.colocated.enabled", Value::Bool(false));
        put("pool_nodes", &format!("{resources}.num_nodes"), Value::Int(nodes));
        let gpus = facts.get("gpus").or(below.get("cluster.gpus_per_node").map(|n| &n.value));
        if let Some(gpus) = gpus {
            put("pool_nodes", &format!("{resources}.gpus_per_node"), gpus.clone());
        }
    }
    if let Some(gpus) = int(facts, "pool_gpus") {
        put("pool_gpus", "policy.generation.colocated.enabled", Value::Bool(false));
        put("pool_gpus", &format!("{resources}.gpus_per_node"), Value::Int(gpus));
    }
    let context = facts.get("context").cloned();
    let context =
        context.or(below.get("policy.max_total_sequence_length").map(|n| n.value.clone()));
    match (facts.get("max_new"), context) {
        (Some(Value::Int(n)), _) => {
            put("max_new", "policy.generation.max_new_tokens", Value::Int(*n));
        }
        (Some(_), Some(context)) => put("max_new", "policy.generation.max_new_tokens", context),
        _ => {}
    }
    let number = |fact: &str, path: String| {
        int(facts, fact).or(match below.get(&path).map(|n| &n.value) {
            Some(Value::Int(n)) => Some(*n),
            _ => None,
        })
    };
    let section = algorithm.section();
    let prompts = number("prompts", format!("{section}.num_prompts_per_step"));
    let group = number("group", format!("{section}.num_generations_per_prompt"));
    if let (Some(updates), Some(prompts), Some(group)) = (int(facts, "updates"), prompts, group)
        && updates > 0
    {
        let batch = prompts.saturating_mul(group) / updates;
        put("updates", "policy.train_global_batch_size", Value::Int(batch));
    }
    if algorithm != Algorithm::Distillation {
        correction(facts, below, put);
    }
    if algorithm == Algorithm::Grpo {
        staleness(facts, below, put);
        sampled_again(facts, below, put);
        overlong(facts, below, put);
        if let (Some(teacher), Some((path, _))) = (facts.get("teacher"), judge(below)) {
            put("teacher", &path, teacher.clone());
        }
        super::judges::edits(facts, below, put);
    }
}

fn sampled_again(facts: &Facts, below: &Node, put: &mut impl FnMut(&'static str, &str, Value)) {
    let (Some(rounds), Some(tried), Some(prompts)) =
        (int(facts, "rounds"), int(facts, "tried"), int(facts, "prompts").filter(|n| *n > 0))
    else {
        return;
    };
    put("rounds", "grpo.use_dynamic_sampling", Value::Bool(true));
    put("rounds", "grpo.dynamic_sampling_max_gen_batches", Value::Int(rounds));
    let path = "grpo.batch_multiplier";
    let times = match tried % prompts {
        0 => Value::Int(tried / prompts),
        _ => Value::Float(tried as f64 / prompts as f64),
    };
    if below.get(path).is_none_or(|old| !alike(&old.value, &times)) {
        put("rounds", path, times);
    }
}

fn overlong(facts: &Facts, below: &Node, put: &mut impl FnMut(&'static str, &str, Value)) {
    let at = |key: &str| format!("grpo.reward_shaping.{key}");
    let Some(limit) = facts.get("overlong_limit") else { return };
    put("overlong_limit", &at("enabled"), Value::Bool(true));
    put("overlong_limit", &at("max_response_length"), limit.clone());
    for (fact, key) in [
        ("overlong_buffer", "overlong_buffer_length"),
        ("overlong_penalty", "overlong_buffer_penalty"),
    ] {
        if let Some(value) = facts.get(fact) {
            put("overlong_limit", &at(key), value.clone());
        }
    }
    let coefficient = at("stop_properly_penalty_coef");
    if below.get(&coefficient).is_some_and(|n| n.value != Value::Null) {
        put("overlong_limit", &coefficient, Value::Null);
    }
}

/// The teacher of on-policy distillation that judges where no other is named: its path and its model.
pub(crate) fn judge(root: &Node) -> Option<(String, &str)> {
    let section = "on_policy_distillation";
    let models = root.get(&format!("{section}.teacher_model_by_agent_name"))?;
    let usual = match root.get(&format!("{section}.default_teacher_alias")).map(|n| &n.value) {
        Some(Value::Text(alias)) => models.child(alias).map(|n| (alias.as_str(), n)),
        _ => models.entries().next(),
    };
    let (alias, node) = usual?;
    let Value::Text(model) = &node.value else { return None };
    let plain = !model.contains("${") && !alias.contains('.');
    plain.then(|| (format!("{section}.teacher_model_by_agent_name.{alias}"), model.as_str()))
}

fn correction(facts: &Facts, below: &Node, put: &mut impl FnMut(&'static str, &str, Value)) {
    let at = |key: &str| format!("loss_fn.{key}");
    let Some(kind) = text(facts, "correction") else {
        let on = below.get(&at("use_importance_sampling_correction"));
        if facts.contains_key("loss") && on.is_some_and(|n| n.value == Value::Bool(true)) {
            put("loss", &at("use_importance_sampling_correction"), Value::Bool(false));
        }
        return;
    };
    put("correction", &at("use_importance_sampling_correction"), Value::Bool(true));
    let named = match kind {
        "weight" => Value::Null,
        kind => Value::Text(kind.replace('_', "-")),
    };
    let mut pairs = vec![("truncated_importance_sampling_type", named)];
    for (key, fact) in [
        ("truncated_importance_sampling_ratio", "correction_max"),
        ("truncated_importance_sampling_ratio_min", "correction_min"),
    ] {
        pairs.push((key, facts.get(fact).cloned().unwrap_or(Value::Null)));
    }
    for (key, value) in pairs {
        if value != Value::Null || below.get(&at(key)).is_some() {
            put("correction", &at(key), value);
        }
    }
}

fn staleness(facts: &Facts, below: &Node, put: &mut impl FnMut(&'static str, &str, Value)) {
    let at = |key: &str| format!("grpo.async_grpo.{key}");
    match int(facts, "staleness") {
        Some(age) => {
            put("staleness", &at("enabled"), Value::Bool(true));
            put("staleness", &at("max_trajectory_age_steps"), Value::Int(age));
            let swap = on(facts, "in_flight");
            if swap || below.get(&at("in_flight_weight_updates")).is_some() {
                put("staleness", &at("in_flight_weight_updates"), Value::Bool(swap));
            }
        }
        None if facts.contains_key("sampler")
            && below.get(&at("enabled")).is_some_and(|n| n.value == Value::Bool(true)) =>
        {
            put("sampler", &at("enabled"), Value::Bool(false));
        }
        None => {}
    }
}
