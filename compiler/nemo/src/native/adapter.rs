//! Low-rank adapters and stages of uneven size: lists that both sides say in words of their own.
//!
//! Adapters: `on: [wq, wk, ..]` names weights of the library's dense models, NeMo RL names modules of Megatron
//! (`linear_qkv`) or of Hugging Face (`q_proj`). Stages: `split: [7, 7, 7, 6]` names all, NeMo RL the first
//! and the last. What has no form on the other side is told by `lost`.

use nrl_rules::settings::{Node, Value};

use super::{Facts, int, text};

/// The weights of a dense layer, in the order of the library.
const ALL: &[&str] = &["wq", "wk", "wv", "wo", "gate", "up", "down"];

/// Modules of each backend, with the weights that they are.
const MEGATRON: &[(&str, &[&str])] = &[
    ("linear_qkv", &["wq", "wk", "wv"]),
    ("linear_proj", &["wo"]),
    ("linear_fc1", &["gate", "up"]),
    ("linear_fc2", &["down"]),
];
const DTENSOR: &[(&str, &[&str])] = &[
    ("q_proj", &["wq"]),
    ("k_proj", &["wk"]),
    ("v_proj", &["wv"]),
    ("o_proj", &["wo"]),
    ("gate_proj", &["gate"]),
    ("up_proj", &["up"]),
    ("down_proj", &["down"]),
];

/// Classes whose layers have those weights.
const DENSE: &[&str] =
    &["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];

fn section(megatron: bool) -> &'static str {
    if megatron { "policy.megatron_cfg.peft" } else { "policy.dtensor_cfg.lora_cfg" }
}

fn modules(megatron: bool) -> &'static [(&'static str, &'static [&'static str])] {
    if megatron { MEGATRON } else { DTENSOR }
}

fn texts(root: &Node, path: &str) -> Option<Vec<String>> {
    match root.get(path).map(|n| &n.value) {
        None | Some(Value::Null) => Some(vec![]),
        Some(Value::List(items)) => items
            .iter()
            .map(|item| match &item.value {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            })
            .collect(),
        Some(_) => None,
    }
}

/// The weights that settings adapt; none if they adapt nothing, or what the library does not name.
fn adapted(root: &Node, megatron: bool) -> Option<Vec<&'static str>> {
    let at = |key: &str| format!("{}.{key}", section(megatron));
    let is = |key: &str| root.get(&at(key)).is_some_and(|n| n.value == Value::Bool(true));
    if !is("enabled") || !texts(root, &at("exclude_modules"))?.is_empty() {
        return None;
    }
    let targets = texts(root, &at("target_modules"))?;
    match (targets.is_empty(), megatron || is("match_all_linear")) {
        (true, true) => return Some(ALL.to_vec()),
        (true, false) => return None,
        (false, _) if !megatron && is("match_all_linear") => return None,
        _ => {}
    }
    let mut found = vec![];
    for target in &targets {
        let name = target.trim_start_matches("*.").trim_start_matches('*');
        let (_, weights) = modules(megatron).iter().find(|(module, _)| *module == name)?;
        found.extend(weights.iter().copied());
    }
    Some(ALL.iter().copied().filter(|word| found.contains(word)).collect())
}

/// The facts of adapters and of stages.
pub(super) fn take(root: &Node, megatron: bool, facts: &mut Facts) {
    let known = text(facts, "model").and_then(nrl_facts::model);
    if let Some(model) = known
        && DENSE.contains(&model.architecture.as_str())
        && let Some(on) = adapted(root, megatron)
    {
        let at = |key: &str| root.get(&format!("{}.{key}", section(megatron))).map(|n| &n.value);
        if let (Some(Value::Int(rank)), Some(alpha @ (Value::Int(_) | Value::Float(_)))) =
            (at("dim"), at("alpha"))
            && *rank > 0
        {
            facts.insert("lora_rank", Value::Int(*rank));
            facts.insert("lora_alpha", alpha.clone());
            let word =
                |word: &&str| Node { value: Value::Text(word.to_string()), origin: root.origin };
            facts.insert("lora_on", Value::List(on.iter().map(word).collect()));
        }
    }
    if let (true, Some(model), Some(pp)) = (megatron, known, int(facts, "pp"))
        && let Some(stages) = stages(root, model.layers as i64, pp)
    {
        let node = |n: &i64| Node { value: Value::Int(*n), origin: root.origin };
        facts.insert("split", Value::List(stages.iter().map(node).collect()));
    }
}

/// What adapters and stages set.
pub(super) fn edits(
    facts: &Facts,
    below: &Node,
    megatron: bool,
    put: &mut impl FnMut(&'static str, &str, Value),
) {
    if let (Some(rank), Some(on)) = (facts.get("lora_rank"), words(facts)) {
        let at = |key: &str| format!("{}.{key}", section(megatron));
        put("lora_rank", &at("enabled"), Value::Bool(true));
        put("lora_rank", &at("dim"), rank.clone());
        // The library scales by `alpha / rank`, and by 1 where no alpha is said.
        let alpha = facts.get("lora_alpha").unwrap_or(rank);
        put("lora_rank", &at("alpha"), alpha.clone());
        if let Some(named) = named(&on, megatron)
            && adapted(below, megatron).as_deref() != Some(&on[..])
        {
            let node =
                |name: &&str| Node { value: Value::Text(name.to_string()), origin: below.origin };
            let all = on.len() == ALL.len();
            let list = if all { vec![] } else { named.iter().map(node).collect() };
            put("lora_rank", &at("target_modules"), Value::List(list));
            if !megatron {
                put("lora_rank", &at("match_all_linear"), Value::Bool(all));
            }
            if below.get(&at("exclude_modules")).is_some() {
                put("lora_rank", &at("exclude_modules"), Value::List(vec![]));
            }
        }
    }
    if let (true, Some(stages)) = (megatron, split(facts)) {
        let layers = stages.iter().sum();
        if self::stages(below, layers, stages.len() as i64).as_ref() != Some(&stages)
            && ends(&stages)
        {
            let at =
                |which: &str| format!("policy.megatron_cfg.num_layers_in_{which}_pipeline_stage");
            for (which, n) in [("first", stages.first()), ("last", stages.last())] {
                put("split", &at(which), n.map_or(Value::Null, |n| Value::Int(*n)));
            }
        }
    }
}

/// What has no form in NeMo RL, if something has not.
pub(crate) fn lost(facts: &Facts, megatron: bool) -> Option<&'static str> {
    if let Some(on) = words(facts)
        && named(&on, megatron).is_none()
    {
        return Some(
            "adapters on these weights have no form: modules take wq, wk and wv, or gate and up, together",
        );
    }
    if facts.contains_key("lora_rank") && words(facts).is_none() {
        return Some("adapters on these weights have no form");
    }
    let odd = split(facts).is_some_and(|stages| !ends(&stages));
    odd.then_some("only the first and the last stage can have a size of their own")
}

/// The weights that a line adapts, in order; none if one of them is not of a dense layer.
fn words(facts: &Facts) -> Option<Vec<&'static str>> {
    let Some(Value::List(items)) = facts.get("lora_on") else { return None };
    let word = |item: &Node| match &item.value {
        Value::Text(text) => ALL.iter().copied().find(|word| word == text),
        _ => None,
    };
    let said: Vec<&str> = items.iter().map(word).collect::<Option<_>>()?;
    Some(ALL.iter().copied().filter(|word| said.contains(word)).collect())
}

/// The modules that are exactly these weights.
fn named(on: &[&str], megatron: bool) -> Option<Vec<&'static str>> {
    let mut names = vec![];
    for (module, weights) in modules(megatron) {
        match weights.iter().filter(|word| on.contains(word)).count() {
            0 => {}
            n if n == weights.len() => names.push(*module),
            _ => return None,
        }
    }
    Some(names)
}

fn split(facts: &Facts) -> Option<Vec<i64>> {
    let Some(Value::List(items)) = facts.get("split") else { return None };
    let whole = |item: &Node| match item.value {
        Value::Int(n) if n > 0 => Some(n),
        _ => None,
    };
    items.iter().map(whole).collect::<Option<Vec<_>>>().filter(|stages| stages.len() > 1)
}

/// Whether only the ends differ.
fn ends(stages: &[i64]) -> bool {
    let inner = stages.get(1..stages.len() - 1).unwrap_or(&[]);
    inner.windows(2).all(|pair| pair[0] == pair[1])
}

/// Layers of each stage, where the first or the last has a size of its own.
fn stages(root: &Node, layers: i64, pp: i64) -> Option<Vec<i64>> {
    let at = |key: &str| root.get(&format!("policy.megatron_cfg.{key}")).map(|n| &n.value);
    let size = |which: &str| match at(&format!("num_layers_in_{which}_pipeline_stage")) {
        Some(Value::Int(n)) if *n > 0 => Some(Some(*n)),
        None | Some(Value::Null) => Some(None),
        Some(_) => None,
    };
    let (first, last) = (size("first")?, size("last")?);
    let whole = |key: &str| {
        matches!(at(key), None | Some(Value::Null | Value::Bool(false) | Value::Int(1)))
    };
    let plain = [
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "virtual_pipeline_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "pipeline_model_parallel_layout",
    ];
    if first.or(last).is_none() || !(2..=1024).contains(&pp) || !plain.iter().all(|key| whole(key))
    {
        return None;
    }
    let inner = pp - i64::from(first.is_some()) - i64::from(last.is_some());
    let rest = layers - first.unwrap_or(0) - last.unwrap_or(0);
    let even = if inner == 0 { rest == 0 } else { rest > 0 && rest % inner == 0 };
    if !even {
        return None;
    }
    let middle = (0..inner).map(|_| rest / inner.max(1));
    Some(first.into_iter().chain(middle).chain(last).collect())
}
