//! Nodes and GPUs: what is left for training and for generation.

use nrl_rules::recipe::{Algorithm, Cluster, Fact, Recipe, Role};

use super::{environments, scorer_setting, scorers, trains};

/// The machines, and who takes nodes away from the policy.
pub fn cluster(r: &Recipe) -> Cluster {
    let nodes = r.int("cluster.num_nodes");
    let gpus_per_node = r.int("cluster.gpus_per_node");
    let rewards = environments(r).iter().any(|e| e.value == "reward_model");
    let resources = "env.reward_model.resources";
    let reward = |name: &str| r.int(&format!("{resources}.{name}")).filter(|_| rewards);
    let single = nodes.as_ref().is_some_and(|n| n.value == 1);
    let reward_nodes = reward("num_nodes").filter(|_| !single);
    let reward_gpus = reward("gpus_per_node").filter(|_| single);
    let teachers = scorers(r);
    let teacher_nodes = (!teachers.is_empty()).then(|| {
        let each = teachers
            .iter()
            .map(|(alias, _)| scorer_setting(r, alias, "num_nodes").map_or(1, |n| n.value));
        let how = format!("nodes of {} teachers together", teachers.len());
        let base = "on_policy_distillation.non_colocated_teachers.default_teacher_cfg.num_nodes";
        Fact::derived("nodes of teachers", each.sum(), how, &[&r.int(base)])
    });
    let policy_nodes = nodes.as_ref().and_then(|n| {
        let away = reward_nodes.as_ref().map_or(0, |n| n.value)
            + teacher_nodes.as_ref().map_or(0, |n| n.value);
        let left = if n.value == 1 { 1 } else { n.value - away };
        let how = match away {
            0 => "all nodes".to_string(),
            _ => format!("{} nodes - {away} for reward models and teachers", n.value),
        };
        (left > 0).then(|| {
            Fact::derived("nodes of the policy", left, how, &[n, &reward_nodes, &teacher_nodes])
        })
    });
    Cluster { nodes, gpus_per_node, policy_nodes, reward_nodes, reward_gpus, teacher_nodes }
}

/// `1 node`, `12 nodes`.
pub fn counted(n: i64) -> String {
    if n == 1 { "1 node".to_string() } else { format!("{n} nodes") }
}

/// Gives workers and generation their GPUs.
pub fn share(r: &mut Recipe) {
    let (train, rollout) = split(r);
    if let Some(g) = &mut r.generation {
        g.gpus = rollout;
    }
    for w in r.workers.iter_mut().filter(|w| trains(w.role)) {
        w.gpus.clone_from(&train);
    }
    let rewards = reward_gpus(r);
    for w in r.workers.iter_mut().filter(|w| w.role == Role::Reward) {
        w.gpus.clone_from(&rewards);
    }
}

fn reward_gpus(r: &Recipe) -> Option<Fact<i64>> {
    let nodes = r.int("env.reward_model.resources.num_nodes");
    let each = r.int("env.reward_model.resources.gpus_per_node")?;
    let n = nodes.as_ref().map_or(1, |n| n.value);
    let how = format!("{} * {} GPUs", counted(n), each.value);
    Some(Fact::derived("GPUs of the reward model", n * each.value, how, &[&each, &nodes]))
}

/// GPUs of training and of generation.
fn split(r: &Recipe) -> (Option<Fact<i64>>, Option<Fact<i64>>) {
    let c = &r.cluster;
    let (Some(nodes), Some(node)) = (&c.nodes, &c.gpus_per_node) else { return (None, None) };
    if nodes.value < 1 || node.value < 1 {
        return (None, None);
    }
    let gpus = |name: &str, count: i64, how: String, parts: &[&dyn nrl_rules::recipe::Shown]| {
        (count > 0).then(|| Fact::derived(name, count, how, parts))
    };
    let (train, rollout) = ("GPUs of training", "GPUs of generation");
    let all = |name: &str, n: i64| {
        let how = format!("{} * {} GPUs", counted(n), node.value);
        gpus(name, n * node.value, how, &[node, nodes])
    };
    let samples = r.algorithm.as_ref().is_none_or(|a| a.value.samples());
    if !samples || r.is(Algorithm::Eval) || r.is(Algorithm::CrossTokenizer) {
        return (all(train, nodes.value), all(rollout, nodes.value));
    }
    let Some(policy) = c.policy_nodes.as_ref().map(|n| n.value) else { return (None, None) };
    let reward = c.reward_gpus.as_ref().map_or(0, |n| n.value);
    let g = r.generation.as_ref().filter(|g| g.apart());
    let Some(g) = g else {
        if policy == 1 && reward > 0 {
            let how = format!("{} GPUs - {reward} for reward models", node.value);
            let parts: [&dyn nrl_rules::recipe::Shown; 2] = [node, &c.reward_gpus];
            let left = node.value - reward;
            return (gpus(train, left, how.clone(), &parts), gpus(rollout, left, how, &parts));
        }
        return (all(train, policy), all(rollout, policy));
    };
    let own_gpus = r.int(&g.at("colocated.resources.gpus_per_node"));
    let own_nodes = r.int(&g.at("colocated.resources.num_nodes"));
    if policy == 1 {
        let Some(own) = own_gpus else { return (None, None) };
        let how = format!(
            "{} GPUs - {} for generation - {reward} for reward models",
            node.value, own.value
        );
        let left = node.value - own.value - reward;
        let given = format!("{} GPUs of the node", own.value);
        return (gpus(train, left, how, &[node, &own]), gpus(rollout, own.value, given, &[&own]));
    }
    let Some(own) = own_nodes else { return (None, None) };
    let how = format!("({policy} nodes - {} for generation) * {} GPUs", own.value, node.value);
    let left = (policy - own.value) * node.value;
    let given = format!("{} * {} GPUs", counted(own.value), node.value);
    (
        gpus(train, left, how, &[node, &own, nodes]),
        gpus(rollout, own.value * node.value, given, &[&own, node]),
    )
}
