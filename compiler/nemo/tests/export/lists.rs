//! Schedules, adapters and stages: what is one line here and several settings there.

use super::{OWN, exported, files, imported, resolved};

/// Settings as shown for tests, without places.
fn bare(shown: &str) -> Vec<&str> {
    let word = |w: &&str| ["Int(", "Float(", "Text(", "Null"].iter().any(|kind| w.contains(kind));
    shown.split_whitespace().filter(word).collect()
}

#[test]
fn schedules_are_lines_and_come_back() {
    let rise = |n: u32, start: &str| {
        format!(
            "{{name: torch.optim.lr_scheduler.LinearLR, kwargs: {{start_factor: {start}, end_factor: 1.0, total_iters: {n}}}}}"
        )
    };
    let flat = "{name: torch.optim.lr_scheduler.ConstantLR, kwargs: {factor: 1.0, total_iters: 10000000000}}";
    let cosine =
        "{name: torch.optim.lr_scheduler.CosineAnnealingLR, kwargs: {T_max: 480, eta_min: 1.0e-9}}";
    let fall = "{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 1.0, end_factor: 0.0, total_iters: 480}}";
    let odd = "{name: torch.optim.lr_scheduler.StepLR, kwargs: {step_size: 10}}";
    for (scheduler, line) in [
        ("null".to_string(), "lr: 3e-07,"),
        (
            format!("[{}, {flat}, {{milestones: [20]}}]", rise(20, "0.01")),
            "lr: optim.warmup(3e-07, 20 updates)",
        ),
        (
            format!("[{}, {cosine}, {{milestones: [20]}}]", rise(20, "0.1")),
            "lr: optim.cosine(3e-07, 500 updates, 20 updates, floor: 1e-09)",
        ),
        (
            format!("[{}, {fall}, {{milestones: [20]}}]", rise(20, "0.1")),
            "lr: optim.linear(3e-07, 500 updates, 20 updates)",
        ),
        // Rises that end elsewhere than the next part begins are no line, and neither is what PyTorch alone knows.
        (
            format!("[{}, {flat}, {{milestones: [10]}}]", rise(20, "0.1")),
            "lr: optim.from_settings(3e-07)",
        ),
        (format!("[{odd}]"), "lr: optim.from_settings(3e-07)"),
    ] {
        let own = OWN.replace(
            "  generation: {vllm",
            &format!("  scheduler: {scheduler}\n  generation: {{vllm"),
        );
        let mut files = files();
        files.insert("examples/configs/own.yaml".into(), own.clone());
        let text = imported(&files);
        assert!(text.contains(line), "{line}\nin\n{text}");
        let before = resolved(&files, &own, "policy.scheduler");
        let out = exported(&files, &text);
        let after = resolved(&files, &out.yaml, "policy.scheduler");
        assert_eq!(bare(&before), bare(&after), "{}", out.yaml);
    }
}

#[test]
fn a_schedule_that_is_written_is_set() {
    let files = files();
    let text = imported(&files);
    assert!(text.contains("optim.warmup(3e-07, 50 updates)"), "{text}");
    let change = |to: &str| text.replace("optim.warmup(3e-07, 50 updates)", to);
    let whole = |yaml: &str, path: &str| resolved(&files, yaml, path);
    let out = exported(
        &files,
        &change("optim.cosine(3e-07, 400 updates, warmup: 40 updates, floor: 1e-08)"),
    );
    assert_eq!(whole(&out.yaml, "policy.scheduler.0.kwargs.total_iters"), "Int(40)");
    assert_eq!(whole(&out.yaml, "policy.scheduler.1.kwargs.T_max"), "Int(360)");
    assert_eq!(whole(&out.yaml, "policy.scheduler.1.kwargs.eta_min"), "Float(1e-8)");
    assert_eq!(whole(&out.yaml, "policy.scheduler.2.milestones.0"), "Int(40)");
    let out = exported(&files, &change("3e-07"));
    assert_eq!(whole(&out.yaml, "policy.scheduler"), "Null");
    let out = exported(&files, &change("optim.from_settings(3e-07)"));
    assert_eq!(whole(&out.yaml, "policy.scheduler.0.kwargs.total_iters"), "Int(50)");

    let megatron = text
        .replace("axes (fsdp: rest, tp: 2)", "axes (dp: rest, tp: 2)")
        .replace("plans.fsdp() * plans.tensor_parallel()", "plans.megatron(sp: true)")
        .replace(
            "optim.warmup(3e-07, 50 updates)",
            "optim.linear(3e-07, 400 updates, 40 updates, floor: 1e-08)",
        );
    let out = exported(&files, &megatron);
    let at = |key: &str| whole(&out.yaml, &format!("policy.megatron_cfg.{key}"));
    assert_eq!(at("scheduler.lr_decay_style"), "Text(\"linear\")");
    assert_eq!(at("scheduler.lr_decay_iters"), "Int(400)");
    assert_eq!(at("scheduler.lr_warmup_iters"), "Int(40)");
    assert_eq!(at("optimizer.min_lr"), "Float(1e-8)");
}

#[test]
fn adapters_are_a_line_and_come_back() {
    let own = OWN.replace(
        "dtensor_cfg: {tensor_parallel_size: 2}",
        "dtensor_cfg: {tensor_parallel_size: 2, lora_cfg: {enabled: true, dim: 16, alpha: 32, match_all_linear: false, target_modules: [q_proj, v_proj]}}",
    );
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), own);
    let text = imported(&files);
    assert!(text.contains("base   = models.load("), "{text}");
    assert!(text.contains("policy = lora(base, rank: 16, alpha: 32, on: [wq, wv])\n"), "{text}");
    let out = exported(&files, &text);
    assert_eq!(
        bare(&resolved(&files, &out.yaml, "policy.dtensor_cfg.lora_cfg")),
        bare(&resolved(&files, &files["examples/configs/own.yaml"], "policy.dtensor_cfg.lora_cfg"))
    );

    let more = exported(
        &files,
        &text.replace(
            "rank: 16, alpha: 32, on: [wq, wv]",
            "rank: 8, on: [wq, wk, wv, wo, gate, up, down]",
        ),
    );
    let at = |yaml: &str, key: &str| resolved(&files, yaml, key);
    assert_eq!(at(&more.yaml, "policy.dtensor_cfg.lora_cfg.dim"), "Int(8)");
    assert_eq!(at(&more.yaml, "policy.dtensor_cfg.lora_cfg.alpha"), "Int(8)");
    assert_eq!(at(&more.yaml, "policy.dtensor_cfg.lora_cfg.match_all_linear"), "Bool(true)");
    assert_eq!(at(&more.yaml, "policy.dtensor_cfg.lora_cfg.target_modules"), "List([])");

    let megatron = text
        .replace("axes (fsdp: rest, tp: 2)", "axes (dp: rest, tp: 2)")
        .replace("plans.fsdp() * plans.tensor_parallel()", "plans.megatron(sp: true)");
    let lost = exported(&files, &megatron).lost;
    assert!(lost.iter().any(|l| l.what.contains("wq, wk and wv")), "{lost:?}");
    let whole = exported(&files, &megatron.replace("on: [wq, wv]", "on: [wq, wk, wv]"));
    assert_eq!(at(&whole.yaml, "policy.megatron_cfg.peft.dim"), "Int(16)");
    assert!(at(&whole.yaml, "policy.megatron_cfg.peft.target_modules").contains("linear_qkv"));
    assert_eq!(whole.lost, []);
}

/// Qwen3-8B has 36 layers: 8 + 10 + 10 + 8.
#[test]
fn stages_of_uneven_size_and_keys_of_the_model_are_arguments() {
    let own = OWN
        .replace("  dtensor_cfg: {tensor_parallel_size: 2}\n", "  dtensor_cfg: {enabled: false}\n  megatron_cfg: {enabled: true, pipeline_model_parallel_size: 4, num_layers_in_first_pipeline_stage: 8, num_layers_in_last_pipeline_stage: 8}\n  hf_config_overrides: {max_position_embeddings: 65536}\n");
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), own);
    let text = imported(&files);
    assert!(text.contains("plans.megatron(split: [8, 10, 10, 8])"), "{text}");
    assert!(text.contains("config: {max_position_embeddings: 65536}"), "{text}");
    let out = exported(
        &files,
        &text.replace("[8, 10, 10, 8]", "[9, 10, 10, 7]").replace("65536", "32768"),
    );
    let at = |key: &str| resolved(&files, &out.yaml, &format!("policy.{key}"));
    assert_eq!(at("megatron_cfg.num_layers_in_first_pipeline_stage"), "Int(9)");
    assert_eq!(at("megatron_cfg.num_layers_in_last_pipeline_stage"), "Int(7)");
    assert_eq!(at("hf_config_overrides.max_position_embeddings"), "Int(32768)");
    let lost = exported(&files, &text.replace("[8, 10, 10, 8]", "[8, 9, 11, 8]")).lost;
    assert!(lost.iter().any(|l| l.what.contains("first and the last stage")), "{lost:?}");
}
