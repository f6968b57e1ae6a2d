//! Models beside the policy: teachers with nodes of their own, types of numbers and lengths.

use super::{Files, estimated, exported, imported, resolved};

/// On-policy distillation from teachers that have nodes of their own.
fn with_teachers(models: &str, each: &str) -> (Files, String) {
    let more = format!(
        "
on_policy_distillation:
  enabled: true
  teacher_model_by_agent_name: {{{models}}}
  default_teacher_alias: usual
  non_colocated_teachers: {{enabled: true, default_teacher_cfg: {{{each}}}}}
"
    );
    let mut files = estimated("name: opd", &more);
    let own = files.get_mut("examples/configs/own.yaml").expect("a recipe");
    *own = own.replace("cluster: {num_nodes: 2", "cluster: {num_nodes: 8");
    let text = imported(&files);
    (files, text)
}

#[test]
fn teachers_with_nodes_of_their_own_have_a_pool_and_come_back() {
    let (files, text) = with_teachers(
        "code: Qwen/Qwen3-14B, usual: Qwen/Qwen3-32B, mail: Qwen/Qwen3-32B",
        "num_nodes: 2, tensor_model_parallel_size: 4, precision: bf16",
    );
    // Two checkpoints are two teachers with two nodes each.
    for line in [
        "  pool trainers, judges = gpus split (rest, 4 nodes)\n",
        "  mesh train = trainers axes (fsdp: rest, tp: 2)\n",
        "  mesh on_teacher = judges axes (dp: rest, tp: 4)\n",
        "  mesh roll = trainers axes (rep: rest)\n",
        "  teacher = models.load(\"Qwen/Qwen3-32B\", dtype: bf16)\n",
        "  place teacher on on_teacher by plans.megatron()\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    let each = |yaml: &str, key: &str| {
        let section = "on_policy_distillation.non_colocated_teachers.default_teacher_cfg";
        resolved(&files, yaml, &format!("{section}.{key}"))
    };
    let out = exported(&files, &text);
    assert_eq!(out.lost, []);
    assert_eq!(each(&out.yaml, "num_nodes"), "Int(2)");
    let changed = text
        .replace("(rest, 4 nodes)", "(rest, 6 nodes)")
        .replace("judges axes (dp: rest, tp: 4)", "judges axes (pp: 2, dp: rest, tp: 8)")
        .replace("on on_teacher by plans.megatron()", "on on_teacher by plans.megatron(sp: true)");
    let out = exported(&files, &changed);
    assert_eq!(each(&out.yaml, "num_nodes"), "Int(3)");
    assert_eq!(each(&out.yaml, "tensor_model_parallel_size"), "Int(8)");
    assert_eq!(each(&out.yaml, "pipeline_model_parallel_size"), "Int(2)");
    assert_eq!(each(&out.yaml, "sequence_parallel"), "Bool(true)");
    let all = resolved(&files, &out.yaml, "policy.generation.colocated.enabled");
    assert_eq!(all, "Bool(true)");
}

#[test]
fn teachers_with_parts_of_nodes_have_no_line() {
    let (files, text) = with_teachers("usual: Qwen/Qwen3-32B", "num_nodes: 1, gpus_per_node: 4");
    assert!(text.contains("place policy, ref, teacher on train"), "{text}");
    assert!(!text.contains("pool "), "{text}");
    let out = exported(&files, &text);
    let path = "on_policy_distillation.non_colocated_teachers.default_teacher_cfg.gpus_per_node";
    assert_eq!(resolved(&files, &out.yaml, path), "Int(4)");
}
