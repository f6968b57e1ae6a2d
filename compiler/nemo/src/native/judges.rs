//! Teachers of on-policy distillation with nodes of their own.
//!
//! In: settings that give teachers nodes beside those of the policy, or lines that give the teacher a pool. Out: the nodes of
//! all teachers together, the layout of one, and the settings that they mean. Teachers that differ in what they are given
//! have no line; a plan says so.

use nrl_rules::settings::{Node, Value};

use super::{Facts, int, on};

/// What every teacher is given.
const EACH: &str = "on_policy_distillation.non_colocated_teachers.default_teacher_cfg";

/// Axes of a teacher by the setting that holds their size.
const AXES: [(&str, &str); 4] = [
    ("teacher_pp", "pipeline_model_parallel_size"),
    ("teacher_cp", "context_parallel_size"),
    ("teacher_tp", "tensor_model_parallel_size"),
    ("teacher_ep", "expert_model_parallel_size"),
];

/// What NeMo RL takes for GPUs of a node where a teacher names none.
const GPUS: i64 = 8;

fn get<'r>(root: &'r Node, path: &str) -> Option<&'r Value> {
    root.get(path).map(|n| &n.value)
}

fn each(root: &Node, key: &str, otherwise: i64) -> i64 {
    match get(root, &format!("{EACH}.{key}")) {
        Some(Value::Int(n)) if *n > 0 => *n,
        _ => otherwise,
    }
}

/// How many teachers have nodes of their own: one per checkpoint, or one per name.
pub(crate) fn teachers(root: &Node) -> i64 {
    let section = "on_policy_distillation";
    let on = |key: &str| get(root, &format!("{section}.{key}")) == Some(&Value::Bool(true));
    if !on("enabled") || !on("non_colocated_teachers.enabled") {
        return 0;
    }
    let models = root.get(&format!("{section}.teacher_model_by_agent_name"));
    let shared = get(root, &format!("{section}.deduplicate_shared_teacher_checkpoints"))
        != Some(&Value::Bool(false));
    let mut seen: Vec<&Value> = vec![];
    for (_, node) in models.into_iter().flat_map(Node::entries) {
        if !shared || !seen.contains(&&node.value) {
            seen.push(&node.value);
        }
    }
    seen.len() as i64
}

/// Nodes of all teachers together, if all are given the same whole nodes.
fn nodes(root: &Node) -> Option<i64> {
    let teachers = teachers(root);
    let own = root.get("on_policy_distillation.non_colocated_teachers.teacher_overrides");
    let alike = own.is_none_or(|node| node.entries().next().is_none());
    let whole =
        get(root, "cluster.gpus_per_node") == Some(&Value::Int(each(root, "gpus_per_node", GPUS)));
    let all = teachers.checked_mul(each(root, "num_nodes", 1))?;
    let fits = matches!(get(root, "cluster.num_nodes"), Some(Value::Int(n)) if *n > all);
    (teachers > 0 && alike && whole && fits).then_some(all)
}

/// Nodes that are left to the policy and its samplers.
pub(super) fn left(root: &Node, nodes_of_all: i64) -> i64 {
    nodes_of_all - nodes(root).unwrap_or(0)
}

/// The facts of the teachers.
pub(super) fn take(root: &Node, facts: &mut Facts) {
    let Some(nodes) = nodes(root) else { return };
    facts.insert("judges", Value::Int(nodes));
    facts.insert("teacher_plan", Value::Text("megatron".into()));
    for (fact, key) in AXES {
        facts.insert(fact, Value::Int(each(root, key, 1)));
    }
    facts.insert("teacher_sp", Value::Bool(splits_tokens(root, facts)));
    let precision = get(root, &format!("{EACH}.precision"));
    if precision.is_none_or(|p| *p == Value::Text("bf16".into())) {
        facts.insert("teacher_dtype", Value::Text("bfloat16".into()));
    }
}

/// Whether a teacher splits tokens: what it does not say is as for the policy.
fn splits_tokens(below: &Node, facts: &Facts) -> bool {
    let of = |path: &str| match get(below, path) {
        Some(Value::Bool(flag)) => Some(*flag),
        _ => None,
    };
    let policy = || match facts.contains_key("sp") {
        true => on(facts, "sp"),
        false => of("policy.megatron_cfg.sequence_parallel").unwrap_or(false),
    };
    of(&format!("{EACH}.sequence_parallel")).unwrap_or_else(policy)
}

/// The settings that the facts mean.
pub(super) fn edits(facts: &Facts, below: &Node, put: &mut impl FnMut(&'static str, &str, Value)) {
    let (Some(all), teachers) = (int(facts, "judges"), teachers(below)) else { return };
    if teachers == 0 {
        return;
    }
    let mut whole = |fact: &'static str, key: &str, value: i64, otherwise: i64| {
        if each(below, key, otherwise) != value {
            put(fact, &format!("{EACH}.{key}"), Value::Int(value));
        }
    };
    if all % teachers == 0 {
        whole("judges", "num_nodes", all / teachers, 1);
    }
    let gpus = facts.get("gpus").or(get(below, "cluster.gpus_per_node"));
    if let Some(Value::Int(gpus)) = gpus {
        whole("judges", "gpus_per_node", *gpus, GPUS);
    }
    for (fact, key) in AXES {
        let size = int(facts, fact).unwrap_or(1);
        whole(if facts.contains_key(fact) { fact } else { "judges" }, key, size, 1);
    }
    if on(facts, "teacher_sp") != splits_tokens(below, facts) {
        let path = format!("{EACH}.sequence_parallel");
        put("teacher_sp", &path, Value::Bool(on(facts, "teacher_sp")));
    }
}
