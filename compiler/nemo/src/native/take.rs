//! The facts that settings hold.

use nrl_rules::settings::{Node, Value};

use super::edits::{engine, megatron};
use super::{Algorithm, Beside, Facts, edits, int, on, same, table, text};

/// The facts of resolved settings: those that mean exactly what the settings say.
pub(crate) fn take(root: &Node, algorithm: Algorithm) -> Facts {
    let on_megatron = megatron(root);
    let mut facts = Facts::new();
    let backend = if on_megatron { "megatron" } else { "fsdp" };
    facts.insert("plan", Value::Text(backend.into()));
    for line in ["mesh", "opt", "loss", "update", "period"] {
        facts.insert(line, Value::Bool(true));
    }
    if algorithm.generates() {
        let vllm = engine(root) == "vllm";
        facts.insert("sampler", Value::Bool(true));
        facts.insert("roll", Value::Bool(vllm));
        if !vllm {
            facts.shift_remove("roll");
        }
        generation(root, &mut facts);
    }
    for row in table::rows(algorithm, on_megatron, engine(root)) {
        let Some(node) = root.get(&row.path) else { continue };
        if fits(row.fact, &node.value) {
            facts.insert(row.fact, node.value.clone());
        }
    }
    special(root, algorithm, &mut facts);
    tidy(root, algorithm, &mut facts);
    facts
}

/// Whether a value is of the kind that a fact is written in.
fn fits(fact: &str, value: &Value) -> bool {
    match fact {
        "steps" | "seed" | "nodes" | "gpus" | "context" | "eval_period" | "save_period"
        | "keep" | "batch" | "prompts" | "group" | "eval_limit" | "tp" | "cp" | "pp" | "ep"
        | "etp" | "rtp" | "rpp" | "rep" | "epochs" | "topk" | "teacher_context"
        | "critic_context" => {
            matches!(value, Value::Int(n) if *n > 0)
        }
        "save" | "over_tokens" | "sp" | "recompute" | "on_policy_kl" | "sequence_ratio"
        | "cispo" | "no_ratio" | "leave_one_out" | "scaled" | "minus_baseline" => {
            matches!(value, Value::Bool(_))
        }
        "dtype" | "teacher_dtype" | "critic_dtype" => {
            matches!(value, Value::Text(t) if dtype_word(t).is_some())
        }
        "model" | "critic" | "teacher" => matches!(value, Value::Text(t) if !t.contains("${")),
        "kl_kind" => matches!(value, Value::Text(t) if matches!(t.as_str(), "k1" | "k2" | "k3")),
        "kl_direction" => {
            matches!(value, Value::Text(t) if matches!(t.as_str(), "forward" | "reverse" | "mixed"))
        }
        "estimator" => {
            matches!(value, Value::Text(t) if t.chars().all(|c| c == '_' || c.is_ascii_lowercase()))
        }
        "config" => is_config(value),
        "memory" => matches!(value, Value::Float(x) if percent(*x).is_some()),
        "top_k" | "top_p" | "dual" | "value_clip" => is_number(value) || value == &Value::Null,
        "clip_norm" => is_number(value) && !is_zero(value),
        _ => is_number(value),
    }
}

/// Whether keys of a `config.json` can be written as a record: words, with plain values.
fn is_config(value: &Value) -> bool {
    let word = |name: &str| {
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
        starts && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    let plain = |value: &Value| match value {
        Value::Bool(_) | Value::Int(_) => true,
        Value::Text(text) => !text.contains("${"),
        value => is_number(value),
    };
    match value {
        Value::Map(map) => {
            let fits = |node: &Node| plain(&node.value) || is_config(&node.value);
            !map.is_empty() && map.iter().all(|(name, node)| word(name) && fits(node))
        }
        _ => false,
    }
}

fn is_zero(value: &Value) -> bool {
    matches!(value, Value::Int(0)) || matches!(value, Value::Float(x) if *x == 0.0)
}

fn is_number(value: &Value) -> bool {
    match value {
        Value::Int(_) => true,
        Value::Float(x) => x.is_finite(),
        _ => false,
    }
}

/// The word of the language for a type of numbers.
pub(crate) fn dtype_word(name: &str) -> Option<&'static str> {
    [("bfloat16", "bf16"), ("float32", "f32"), ("float16", "f16")]
        .into_iter()
        .find(|(theirs, _)| *theirs == name)
        .map(|(_, ours)| ours)
}

/// A share in whole percent.
pub(crate) fn percent(share: f64) -> Option<i64> {
    let whole = (share * 100.0).round();
    (whole / 100.0 == share && (1.0..=100.0).contains(&whole)).then_some(whole as i64)
}

fn generation(root: &Node, facts: &mut Facts) {
    let flag = |path: &str| root.get(path).map(|n| n.value == Value::Bool(true));
    let number = |path: &str| match root.get(path).map(|n| &n.value) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    };
    match flag("policy.generation.colocated.enabled") {
        Some(true) => {
            facts.insert("colocated", Value::Bool(true));
        }
        Some(false) => {
            let resources = "policy.generation.colocated.resources";
            let nodes = number(&format!("{resources}.num_nodes"));
            let gpus = number(&format!("{resources}.gpus_per_node"));
            let left = |n: i64| super::judges::left(root, n);
            let several = number("cluster.num_nodes").is_some_and(|n| left(n) > 1);
            match (several, nodes, gpus) {
                (true, Some(n), Some(g)) if Some(g) == number("cluster.gpus_per_node") => {
                    facts.insert("pool_nodes", Value::Int(n));
                }
                (false, _, Some(g)) => {
                    facts.insert("pool_gpus", Value::Int(g));
                }
                _ => {}
            }
        }
        None => {}
    }
    let context = root.get("policy.max_total_sequence_length").map(|n| &n.value);
    match root.get("policy.generation.max_new_tokens").map(|n| &n.value) {
        Some(max) if Some(max) == context => {
            facts.insert("max_new", Value::Text("rest".into()));
        }
        Some(Value::Int(n)) if *n > 0 => {
            facts.insert("max_new", Value::Int(*n));
        }
        _ => {}
    }
}

/// Facts that are not one setting.
fn special(root: &Node, algorithm: Algorithm, facts: &mut Facts) {
    let get = |path: &str| root.get(path).map(|n| &n.value);
    if let Some(Value::Text(time)) = get("checkpointing.checkpoint_must_save_by")
        && let Some(seconds) = seconds(time)
        && clock(seconds) == *time
    {
        facts.insert("within", Value::Int(seconds));
    }
    if let Some(Value::Text(metric)) = get("checkpointing.metric_name")
        && let Some(name) = metric.strip_prefix("val:")
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    {
        let name = if name == "val_loss" { "loss" } else { name };
        facts.insert("metric", Value::Text(name.into()));
    }
    if !megatron(root)
        && let Some(Value::List(betas)) = get("policy.optimizer.kwargs.betas")
        && let [first, second] = betas.as_slice()
        && is_number(&first.value)
        && is_number(&second.value)
    {
        facts.insert("beta1", first.value.clone());
        facts.insert("beta2", second.value.clone());
    }
    if facts.contains_key("lr") {
        super::schedule::take(root, megatron(root), int(facts, "steps"), facts);
    }
    super::adapter::take(root, megatron(root), facts);
    if megatron(root) && super::hosts::whole(root, "policy") {
        facts.insert("offload", Value::Bool(true));
    }
    if let Some(beside) = Beside::of(algorithm) {
        beside.take(root, facts);
    }
    data(root, algorithm, facts);
    let head = |key: &str| get(&format!("policy.reward_model_cfg.{key}"));
    if algorithm == Algorithm::Rm
        && head("enabled") == Some(&Value::Bool(true))
        && head("reward_model_type") == Some(&Value::Text("bradley_terry".into()))
    {
        facts.insert("scored", Value::Bool(true));
    }
    if let Some(tokens) = super::edits::microbatch(root, algorithm) {
        facts.insert("microbatch", Value::Int(tokens));
    }
    if algorithm == Algorithm::Ppo
        && let Some(lr) = get(super::edits::critic_lr(root)).filter(|v| is_number(v))
    {
        facts.insert("critic_lr", lr.clone());
    }
    if !algorithm.generates() {
        return;
    }
    let batch = match get("policy.train_global_batch_size") {
        Some(Value::Int(n)) if *n > 0 => *n,
        _ => return,
    };
    if let (Some(prompts), Some(group)) = (int(facts, "prompts"), int(facts, "group")) {
        let samples = prompts.saturating_mul(group);
        if samples % batch == 0 {
            facts.insert("updates", Value::Int(samples / batch));
        }
    }
    if algorithm != Algorithm::Distillation {
        correction(root, facts);
    }
    if algorithm == Algorithm::Grpo {
        sampled_again(root, facts);
        overlong(root, facts);
    }
    if algorithm == Algorithm::Grpo
        && text(facts, "estimator") == Some("opd")
        && let Some((_, teacher)) = super::edits::judge(root)
    {
        facts.insert("teacher", Value::Text(teacher.into()));
        super::judges::take(root, facts);
    }
    if algorithm == Algorithm::Grpo && get("grpo.async_grpo.enabled") == Some(&Value::Bool(true)) {
        if let Some(Value::Int(age)) = get("grpo.async_grpo.max_trajectory_age_steps") {
            facts.insert("staleness", Value::Int(*age));
        }
        if get("grpo.async_grpo.in_flight_weight_updates") == Some(&Value::Bool(true)) {
            facts.insert("in_flight", Value::Bool(true));
        }
    }
}

/// Dynamic sampling: how many prompts a round tries, and how many rounds there are.
fn sampled_again(root: &Node, facts: &mut Facts) {
    let get = |key: &str| root.get(&format!("grpo.{key}")).map(|n| &n.value);
    let (Some(Value::Bool(true)), Some(Value::Int(rounds)), Some(prompts)) = (
        get("use_dynamic_sampling"),
        get("dynamic_sampling_max_gen_batches"),
        int(facts, "prompts"),
    ) else {
        return;
    };
    let tried = match get("batch_multiplier") {
        Some(Value::Int(times)) => times.checked_mul(prompts),
        Some(Value::Float(times)) => {
            let tried = times * prompts as f64;
            (tried.fract() == 0.0 && tried < 1e12).then_some(tried as i64)
        }
        _ => None,
    };
    if let Some(tried) = tried.filter(|tried| *tried > 0 && *rounds > 0) {
        facts.insert("rounds", Value::Int(*rounds));
        facts.insert("tried", Value::Int(tried));
    }
}

/// The penalty for long answers, where no answer can be longer than its limit.
fn overlong(root: &Node, facts: &mut Facts) {
    let get = |key: &str| root.get(&format!("grpo.reward_shaping.{key}")).map(|n| &n.value);
    let proper = get("stop_properly_penalty_coef").is_none_or(|v| *v == Value::Null);
    if get("enabled") != Some(&Value::Bool(true)) || !proper {
        return;
    }
    let (Some(Value::Int(limit)), Some(Value::Int(buffer)), Some(penalty)) = (
        get("max_response_length"),
        get("overlong_buffer_length"),
        get("overlong_buffer_penalty").filter(|v| is_number(v)),
    ) else {
        return;
    };
    let longest = root.get("policy.generation.max_new_tokens").map(|n| &n.value);
    let within = matches!(longest, Some(Value::Int(longest)) if longest <= limit);
    if within && (1..=*limit).contains(buffer) {
        facts.insert("overlong_limit", Value::Int(*limit));
        facts.insert("overlong_buffer", Value::Int(*buffer));
        facts.insert("overlong_penalty", penalty.clone());
    }
}

fn correction(root: &Node, facts: &mut Facts) {
    let get = |key: &str| root.get(&format!("loss_fn.{key}")).map(|n| n.value.clone());
    if get("use_importance_sampling_correction") != Some(Value::Bool(true)) {
        return;
    }
    let kind = match get("truncated_importance_sampling_type") {
        Some(Value::Text(kind)) if kind == "tis" || kind == "icepop" => kind,
        Some(Value::Text(kind)) if kind == "seq-mask-tis" => "seq_mask_tis".into(),
        Some(Value::Null) | None => "weight".into(),
        _ => return,
    };
    let max = get("truncated_importance_sampling_ratio").filter(is_number);
    let min = get("truncated_importance_sampling_ratio_min").filter(is_number);
    match (kind.as_str(), max, min) {
        ("weight", None, None) => {}
        ("tis", Some(max), None) => {
            facts.insert("correction_max", max);
        }
        ("tis" | "icepop" | "seq_mask_tis", Some(max), Some(min)) => {
            facts.insert("correction_max", max);
            facts.insert("correction_min", min);
        }
        _ => return,
    }
    facts.insert("correction", Value::Text(kind));
}

fn data(root: &Node, algorithm: Algorithm, facts: &mut Facts) {
    let get = |path: &str| match root.get(path).map(|n| &n.value) {
        Some(Value::Text(text)) if !text.contains("${") => Some(text.clone()),
        _ => None,
    };
    let pairs = [
        ("data_file", "data.train.data_path"),
        ("data_name", "data.train.dataset_name"),
        ("held_file", "data.validation.data_path"),
        ("held_name", "data.validation.dataset_name"),
    ];
    for (fact, path) in pairs {
        if let Some(text) = get(path) {
            facts.insert(fact, Value::Text(text));
        }
    }
    if facts.contains_key("data_file") {
        facts.shift_remove("data_name");
        for (fact, path) in
            [("prompt_key", "data.train.input_key"), ("answer_key", "data.train.output_key")]
        {
            if let Some(text) = get(path) {
                facts.insert(fact, Value::Text(text));
            }
        }
    }
    if facts.contains_key("held_file") {
        facts.shift_remove("held_name");
    }
    if let Some(Value::Float(share)) =
        root.get("data.train.split_validation_size").map(|n| &n.value)
        && percent(*share).is_some()
        && !facts.contains_key("held_file")
        && !facts.contains_key("held_name")
    {
        facts.insert("held_share", Value::Float(*share));
    }
    if algorithm.generates()
        && let Some(name) = get("data.default.env_name")
        && !name.is_empty()
    {
        facts.insert("reward", Value::Text(name));
    }
}

/// Leaves out what lines do not say or what would not come back as it was.
fn tidy(root: &Node, algorithm: Algorithm, facts: &mut Facts) {
    if !on(facts, "save") {
        for fact in ["save_period", "keep", "metric"] {
            facts.shift_remove(fact);
        }
    }
    if int(facts, "eval_period").is_none() {
        facts.shift_remove("eval_limit");
    }
    // What is kept by an evaluation stands beside it.
    if facts.get("eval_period") != facts.get("save_period") {
        facts.shift_remove("metric");
    }
    if facts.get("kl").is_none_or(is_zero) {
        for fact in ["kl_kind", "on_policy_kl"] {
            facts.shift_remove(fact);
        }
    }
    for line in ["clip_low", "clip_high"] {
        if matches!(algorithm, Algorithm::Grpo | Algorithm::Ppo) && !facts.contains_key(line) {
            facts.shift_remove("loss");
        }
    }
    if facts.contains_key("estimator") {
        facts.insert("advantages", Value::Bool(true));
    }
    let estimator = text(facts, "estimator").unwrap_or("grpo").to_string();
    if !matches!(estimator.as_str(), "grpo" | "gdpo") {
        facts.shift_remove("leave_one_out");
        facts.shift_remove("scaled");
    }
    if estimator != "reinforce_plus_plus" {
        facts.shift_remove("minus_baseline");
    }
    if text(facts, "kl_direction") != Some("mixed") {
        facts.shift_remove("mix");
    }
    for (fact, line) in [("gamma", "gae"), ("value_scale", "value_loss")] {
        if facts.contains_key(fact) {
            facts.insert(line, Value::Bool(true));
        }
    }
    // What an edit would change is left to the settings.
    for _ in 0..4 {
        let wrong: Vec<&'static str> = edits(facts, root, algorithm)
            .into_iter()
            .filter(|edit| !root.get(&edit.path).is_some_and(|n| same(&n.value, &edit.value)))
            .map(|edit| edit.fact)
            .collect();
        if wrong.is_empty() {
            return;
        }
        for fact in wrong {
            facts.shift_remove(fact);
        }
    }
}

/// Seconds of `DD:HH:MM:SS`.
pub(crate) fn seconds(time: &str) -> Option<i64> {
    let parts: Vec<i64> = time.split(':').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    match parts.as_slice() {
        [d, h, m, s] => Some(((d * 24 + h) * 60 + m) * 60 + s),
        _ => None,
    }
}

/// `DD:HH:MM:SS` of seconds.
pub(crate) fn clock(seconds: i64) -> String {
    let (m, s) = (seconds / 60, seconds % 60);
    let (h, m) = (m / 60, m % 60);
    format!("{:02}:{:02}:{m:02}:{s:02}", h / 24, h % 24)
}
