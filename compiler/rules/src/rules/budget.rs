//! Who gets which nodes and GPUs: training, generation, reward models, teachers, judges.

use crate::arithmetic::{divisors, one_of};
use crate::recipe::{Algorithm, Fact, Generation, Recipe, Role};
use crate::rule::{Findings, Rule, error, note};

/// Rules of the node budget.
pub const RULES: &[Rule] = &[
    error("MESH-42", "node-budget", "segments do not divide the nodes", |r, f| {
        let (Some(nodes), Some(segment)) = (&r.cluster.nodes, r.int("cluster.segment_size")) else {
            return;
        };
        if segment.value < 1 || nodes.value % segment.value != 0 {
            let text = format!("{} nodes are not whole segments of {}", nodes.value, segment.value);
            f.found(text, &[&segment, nodes]).help(format!(
                "`cluster.segment_size` may be {}, or null",
                one_of(&divisors(nodes.value, nodes.value))
            ));
        }
    }),
    error("MESH-44", "node-budget", "the cluster has no GPUs or no nodes", |r, f| {
        for fact in [&r.cluster.gpus_per_node, &r.cluster.nodes].into_iter().flatten() {
            if fact.value <= 0 {
                f.found(
                    format!("`{}` = {} leaves nothing to run on", fact.name, fact.value),
                    &[fact],
                )
                .help(format!("`{}: 1` or more", fact.name));
            }
        }
    }),
    error("MESH-45", "node-budget", "reward models leave no nodes for the policy", |r, f| {
        let (Some(nodes), Some(reward)) = (&r.cluster.nodes, &r.cluster.reward_nodes) else {
            return;
        };
        let teachers = r.cluster.teacher_nodes.as_ref().map_or(0, |t| t.value);
        if nodes.value > 1 && nodes.value - reward.value <= 0 && teachers == 0 {
            let text = format!(
                "reward models take {} of {} nodes, none is left for the policy",
                reward.value, nodes.value
            );
            f.found(text, &[reward, nodes])
                .help(format!("`cluster.num_nodes: {}` or more", reward.value + 1));
        }
    }),
    error("MESH-46", "node-budget", "reward models leave no GPUs for the policy", |r, f| {
        let (Some(gpus), Some(reward)) = (&r.cluster.gpus_per_node, &r.cluster.reward_gpus) else {
            return;
        };
        if gpus.value > 0 && gpus.value - reward.value <= 0 {
            let text = format!(
                "reward models take {} of the {} GPUs, none is left for the policy",
                reward.value, gpus.value
            );
            f.found(text, &[reward, gpus]).help(format!(
                "`{}: {}` or less",
                reward.name,
                gpus.value - 1
            ));
        }
    }),
    error("MESH-47", "node-budget", "it is not said how many GPUs of the node generate", |r, f| {
        let Some((g, 1)) = apart(r) else { return };
        let path = g.at("colocated.resources.gpus_per_node");
        if r.int(&path).is_none_or(|n| n.value <= 0) {
            let node = r.cluster.gpus_per_node.as_ref().map_or(0, |n| n.value);
            let text = format!(
                "generation has GPUs of its own, but it is not said how many of the {node}"
            );
            f.at(text, &[&path, &g.at("colocated.enabled"), "cluster.gpus_per_node"])
                .help(format!("`{path}: {}`", (node / 2).max(1)));
        }
    }),
    error("MESH-48", "node-budget", "generation asks for nodes of a single node", |r, f| {
        let Some((g, 1)) = apart(r) else { return };
        let Some(nodes) = r.int(&g.at("colocated.resources.num_nodes")) else { return };
        if nodes.value != 1 {
            let text =
                format!("generation asks for {} nodes where the policy has one", nodes.value);
            f.found(text, &[&nodes, &r.cluster.nodes])
                .help(format!("`{}: null`, and say how many GPUs generate", nodes.name));
        }
    }),
    error("MESH-49", "node-budget", "generation leaves no GPU to train", |r, f| {
        let Some((g, 1)) = apart(r) else { return };
        let own = r.int(&g.at("colocated.resources.gpus_per_node"));
        let (Some(own), Some(node)) = (own, &r.cluster.gpus_per_node) else { return };
        let reward = r.cluster.reward_gpus.as_ref().map_or(0, |n| n.value);
        if own.value > 0 && node.value - own.value - reward <= 0 {
            let text = format!(
                "generation takes {} of the {} GPUs, none is left to train",
                own.value, node.value
            );
            f.found(text, &[&own, node, &r.cluster.reward_gpus]).help(format!(
                "`{}: {}`",
                own.name,
                ((node.value - reward) / 2).max(1)
            ));
        }
    }),
    error("MESH-50", "node-budget", "it is not said how many nodes generate", |r, f| {
        let Some((g, nodes)) = apart(r) else { return };
        let path = g.at("colocated.resources.num_nodes");
        if nodes > 1 && r.int(&path).is_none_or(|n| n.value <= 0) {
            let text = format!(
                "generation has nodes of its own, but it is not said how many of the {nodes}"
            );
            f.at(text, &[&path, &g.at("colocated.enabled"), "cluster.num_nodes"]).help(format!(
                "`{path}: {}`, which leaves {} to train",
                nodes / 2,
                nodes - nodes / 2
            ));
        }
    }),
    error("MESH-51", "node-budget", "generation must take whole nodes", |r, f| {
        let Some((g, nodes)) = apart(r) else { return };
        let (path, Some(node)) =
            (g.at("colocated.resources.gpus_per_node"), &r.cluster.gpus_per_node)
        else {
            return;
        };
        let own = r.int(&path);
        if nodes > 1 && own.as_ref().is_none_or(|own| own.value != node.value) {
            let text =
                format!("on several nodes generation takes whole nodes of {} GPUs", node.value);
            let take = r.int(&g.at("colocated.resources.num_nodes")).map_or(0, |n| n.value);
            let left = (nodes - take) * node.value;
            f.at(text, &[&path, "cluster.gpus_per_node"])
                .note(format!("{take} of {nodes} nodes generate: {left} GPUs are left to train"))
                .help(format!("`{path}: {}`", node.value));
        }
    }),
    error("MESH-52", "node-budget", "generation leaves no nodes to train", |r, f| {
        let Some((g, nodes)) = apart(r) else { return };
        let Some(own) = r.int(&g.at("colocated.resources.num_nodes")) else { return };
        if nodes > 1 && own.value >= nodes {
            let text =
                format!("generation takes {} of {nodes} nodes, none is left to train", own.value);
            f.found(text, &[&own, &r.cluster.policy_nodes]).help(format!(
                "`{}: {}`",
                own.name,
                nodes / 2
            ));
        }
    }),
    error("MESH-53", "node-budget", "teachers leave no nodes for the policy", |r, f| {
        let (Some(nodes), Some(teachers)) = (&r.cluster.nodes, &r.cluster.teacher_nodes) else {
            return;
        };
        let reward = r.cluster.reward_nodes.as_ref().map_or(0, |n| n.value);
        if teachers.value > 0 && nodes.value - teachers.value - reward <= 0 {
            let text = format!(
                "teachers take {} of {} nodes, none is left for the policy",
                teachers.value, nodes.value
            );
            f.found(text, &[teachers, nodes])
                .help(format!("`cluster.num_nodes: {}` or more", teachers.value + reward + 1));
        }
        let base =
            "on_policy_distillation.non_colocated_teachers.default_teacher_cfg.gpus_per_node";
        if let (Some(own), Some(node)) = (r.int(base), &r.cluster.gpus_per_node)
            && own.value > node.value
        {
            let text =
                format!("teachers ask for {} GPUs of nodes that have {}", own.value, node.value);
            f.found(text, &[&own, node]).help(format!("`{base}: {}`", node.value));
        }
    }),
    note("MESH-55", "more-nodes-needed", "judge nodes come on top of the cluster", |r, f| {
        let (Some(judges), Some(nodes)) = (r.int("env.nemo_gym.num_gpu_nodes"), &r.cluster.nodes)
        else {
            return;
        };
        if judges.value > 0 {
            let total = judges.value + nodes.value;
            let text = format!(
                "the job needs {total} nodes: {} for judges on top of {}",
                judges.value, nodes.value
            );
            f.found(text, &[&judges, nodes]).help(format!("ask the scheduler for {total} nodes"));
        }
    }),
    error(
        "MESH-57",
        "mesh-does-not-fill",
        "student and teachers must share the batch",
        cross_tokenizer,
    ),
    error(
        "ASYNC-32",
        "node-budget",
        "generation beside a single controller has no GPUs given",
        |r, f| {
            let Some((g, _)) = apart(r) else { return };
            let path = g.at("colocated.resources.gpus_per_node");
            if r.has("async_rl")
                && !r.has(&path)
                && r.cluster.nodes.as_ref().is_none_or(|n| n.value > 1)
            {
                f.at(
                    "a single controller needs the GPUs per node that generate",
                    &[&path, "async_rl"],
                )
                .help(format!("`{path}: 8`"));
            }
        },
    ),
];

/// Generation with GPUs of its own, and the nodes that it shares with training.
fn apart(r: &Recipe) -> Option<(&Generation, i64)> {
    if r.is(Algorithm::Eval) {
        return None;
    }
    let g = r.generation.as_ref().filter(|g| g.apart())?;
    Some((g, r.cluster.policy_nodes.as_ref()?.value))
}

fn cross_tokenizer(r: &Recipe, f: &mut Findings<'_>) {
    if !r.is(Algorithm::CrossTokenizer) {
        return;
    }
    let Some(policy) = r.policy() else { return };
    let Some(global) = &policy.global_batch else { return };
    for w in r.workers.iter().filter(|w| matches!(w.role, Role::Policy | Role::Teacher)) {
        let Some(dp) = w.dp() else { continue };
        if global.value % dp.value != 0 {
            let text = format!("a batch of {} cannot be shared by dp = {}", global.value, dp.value);
            f.found(text, &[global, &dp])
                .help(format!("`{}` a multiple of {}", global.name, dp.value));
        }
        if w.role == Role::Teacher && r.cluster.nodes.as_ref().is_some_and(|n| n.value > 1) {
            let (own, other) = (w.mesh.tp() * w.mesh.cp(), policy.mesh.tp() * policy.mesh.cp());
            if own != other {
                let text = format!(
                    "on several nodes tp * cp of teacher ({own}) and student ({other}) must agree"
                );
                let facts: [&Option<Fact<i64>>; 2] = [&w.mesh.tp, &policy.mesh.tp];
                f.found(text, &[facts[0], facts[1]]).help("give both the same tp and cp");
            }
        }
    }
}
