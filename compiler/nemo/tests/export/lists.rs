//! Schedules, adapters and stages: what is one line here and several settings there.

use std::collections::BTreeMap;

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

/// Megatron's optimizer on hosts, of which the shipped settings of NeMo RL have the share of 0.
#[test]
fn an_optimizer_on_hosts_is_part_of_a_plan() {
    let on = |offload: &str| {
        let own = OWN.replace(
            "  dtensor_cfg: {tensor_parallel_size: 2}\n",
            &format!("  dtensor_cfg: {{enabled: false}}\n  megatron_cfg: {{enabled: true, optimizer: {{lr: 3.0e-7, {offload}}}}}\n"),
        );
        let mut files = files();
        files.insert("examples/configs/own.yaml".into(), own);
        let text = imported(&files);
        (files, text)
    };
    let away = " * plans.offloaded()";
    let key = |name: &str| format!("policy.megatron_cfg.optimizer.optimizer_{name}");
    let (files, text) = on("optimizer_cpu_offload: true, optimizer_offload_fraction: 1.0");
    assert!(text.contains(&format!("by plans.megatron(){away}\n")), "{text}");
    assert!(!text.contains("offload_fraction"), "{text}");
    let at = |text: &str, name: &str| resolved(&files, &exported(&files, text).yaml, &key(name));
    assert_eq!(at(&text, "cpu_offload"), "Bool(true)");
    assert_eq!(at(&text, "offload_fraction"), "Float(1.0)");
    assert_eq!(exported(&files, &text).lost, []);
    // The line is gone: so is the offload, if the settings say it.
    let block = text.replace(away, "").replace(
        "  settings nemo_rl over \"examples/configs/grpo_small.yaml\" {\n",
        "  settings nemo_rl over \"examples/configs/grpo_small.yaml\" {\n    policy.megatron_cfg.optimizer = {optimizer_cpu_offload: true, optimizer_offload_fraction: 1.0}\n",
    );
    assert_eq!(at(&block, "cpu_offload"), "Bool(false)");

    // A part is no line and stays as it is; a line makes it the whole.
    let (files, text) = on("optimizer_cpu_offload: true, optimizer_offload_fraction: 0.5");
    assert!(text.contains("by plans.megatron()\n") && text.contains("0.5"), "{text}");
    let at = |text: &str, name: &str| resolved(&files, &exported(&files, text).yaml, &key(name));
    assert_eq!(at(&text, "cpu_offload"), "Bool(true)");
    assert_eq!(at(&text, "offload_fraction"), "Float(0.5)");
    let whole = text.replace("plans.megatron()", &format!("plans.megatron(){away}"));
    assert_eq!(at(&whole, "offload_fraction"), "Float(1.0)");

    let lost = |plan: &str| {
        let out = exported(&files, &text.replace("plans.megatron()", plan));
        out.lost.into_iter().map(|l| l.what).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(lost("plans.offloaded(optimizer) * plans.megatron()"), "");
    assert!(lost("plans.megatron() * plans.offloaded(activations)").contains("activations"));
    assert!(lost("plans.fsdp() * plans.offloaded()").contains("on DTensor"));
    assert!(lost("plans.megatron(chunks: 2)").contains("virtual_pipeline"));
}

/// PPO on the shipped recipe, with a critic of its own.
fn with_critic(critic: &str) -> (super::Files, String) {
    let own = OWN.replace("grpo: {num_prompts_per_step: 64, max_num_steps: 500}", "grpo: null\nppo:\n  num_prompts_per_step: 64\n  num_generations_per_prompt: 2\n  max_num_steps: 500\n  ppo_epochs: 1\n  adv_estimator: {name: gae, gae_lambda: 0.95, gae_gamma: 1.0}\nvalue_loss_fn: {scale: 0.5, cliprange: 0.2}")
        + &format!("value: {{model_name: Qwen/Qwen3-8B, {critic}}}\n");
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), own);
    let text = imported(&files);
    (files, text)
}

#[test]
fn a_critic_with_a_layout_of_its_own_has_a_mesh_and_comes_back() {
    let apart = "dtensor_cfg: {enabled: true, tensor_parallel_size: 4, sequence_parallel: true, activation_checkpointing: true}, megatron_cfg: {enabled: false}";
    let (files, text) = with_critic(apart);
    for line in [
        "  mesh on_critic = gpus axes (fsdp: rest, tp: 4)\n",
        "  place policy, ref on train by plans.fsdp() * plans.tensor_parallel()",
        "  place critic on on_critic by plans.fsdp() * plans.tensor_parallel() * plans.sequence_parallel() * plans.recomputed()\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    let out = exported(&files, &text.replace("tp: 4)", "tp: 8)"));
    let at = |key: &str| resolved(&files, &out.yaml, &format!("value.{key}"));
    assert_eq!(at("dtensor_cfg.tensor_parallel_size"), "Int(8)");
    assert_eq!(at("dtensor_cfg.sequence_parallel"), "Bool(true)");
    assert_eq!(at("dtensor_cfg.activation_checkpointing"), "Bool(true)");
    assert_eq!(out.lost, []);

    // Pipelines are Megatron's.
    let megatron = text
        .replace("mesh on_critic = gpus axes (fsdp: rest, tp: 4)", "mesh on_critic = gpus axes (pp: 2, dp: rest, tp: 4)")
        .replace("place critic on on_critic by plans.fsdp() * plans.tensor_parallel() * plans.sequence_parallel() * plans.recomputed()", "place critic on on_critic by plans.megatron()");
    let out = exported(&files, &megatron);
    let at = |key: &str| resolved(&files, &out.yaml, &format!("value.{key}"));
    assert_eq!(at("megatron_cfg.enabled"), "Bool(true)");
    assert_eq!(at("megatron_cfg.pipeline_model_parallel_size"), "Int(2)");
    assert_eq!(at("dtensor_cfg.enabled"), "Bool(false)");
    let away = megatron.replace(
        "on_critic by plans.megatron()",
        "on_critic by plans.megatron() * plans.offloaded()",
    );
    let out = exported(&files, &away);
    let at = |section: &str| {
        let key = format!("{section}.megatron_cfg.optimizer.optimizer_cpu_offload");
        out.yaml.contains("optimizer_cpu_offload").then(|| resolved(&files, &out.yaml, &key))
    };
    assert_eq!(at("value").as_deref(), Some("Bool(true)"));
    assert_eq!(out.yaml.matches("optimizer_cpu_offload").count(), 1, "{}", out.yaml);
}

#[test]
fn a_critic_that_is_laid_out_as_the_policy_is_placed_with_it() {
    let (files, text) = with_critic(
        "dtensor_cfg: {enabled: true, tensor_parallel_size: 2}, megatron_cfg: {enabled: false}",
    );
    assert!(text.contains("  place policy, ref, critic on train by plans.fsdp()"), "{text}");
    let out = exported(&files, &text.replace("(fsdp: rest, tp: 2)", "(fsdp: rest, tp: 8)"));
    let at = |key: &str| resolved(&files, &out.yaml, &format!("{key}.tensor_parallel_size"));
    assert_eq!(at("policy.dtensor_cfg"), "Int(8)");
    assert_eq!(at("value.dtensor_cfg"), "Int(8)");
    // Without a backend of its own it is where the policy is, whatever that is.
    let (files, text) = with_critic("optimizer: {kwargs: {lr: 1.0e-6}}");
    assert!(text.contains("  place policy, ref, critic on train by plans.fsdp()"), "{text}");
    assert!(!exported(&files, &text).yaml.contains("dtensor_cfg: {enabled"), "{text}");
}

#[test]
fn a_mesh_that_settings_cannot_say_is_told() {
    let text = imported(&files());
    let more = text
        .replace("  mesh roll", "  mesh on_teacher = gpus axes (fsdp: rest, tp: 8)\n  mesh roll")
        .replace("  sampler = ", "  place teacher on on_teacher by plans.fsdp()\n  sampler = ");
    let lost = exported(&files(), &more).lost;
    assert!(lost.iter().any(|l| l.what.contains("a place of its own for `teacher`")), "{lost:?}");
}

#[test]
fn settings_of_a_recipe_are_those_that_it_was_imported_from() {
    let files = files();
    let text = imported(&files);
    let mut sources = nrl_base::SourceMap::new();
    let id = sources.add("r.nrl", text.as_str());
    let (file, _) = nrl_syntax::parse(id, &text);
    let mut loader = nrl_nemo::Loader::new(&files);
    let path = "examples/configs/own.yaml";
    let yaml = loader.load(&mut sources, path, &[]).0.expect("settings");
    let roots = ["elsewhere/".to_string(), String::new()];
    let said = nrl_nemo::settings(&mut loader, &mut sources, &file, None, &roots);
    let said = said.expect("a shipped recipe").expect("a block");
    for key in ["policy", "grpo", "cluster", "loss_fn", "logger"] {
        let of = |s: &nrl_rules::Settings| format!("{:?}", s.get(key).map(|n| &n.value));
        assert_eq!(bare(&of(&said)), bare(&of(&yaml)), "{key}");
    }
    let without = BTreeMap::from([("r.nrl".to_string(), text.clone())]);
    let mut loader = nrl_nemo::Loader::new(&without);
    let none = nrl_nemo::settings(&mut loader, &mut sources, &file, None, &roots);
    assert!(none.is_err_and(|found| found[0].message.contains("grpo_small.yaml")));
}
