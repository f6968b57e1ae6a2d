//! Lines win over the settings block, and what NeMo RL cannot say is listed.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_nemo::{ExportOptions, Exported, Loader, export, import};

#[path = "export/lists.rs"]
mod lists;
#[path = "export/losses.rs"]
mod losses;
#[path = "export/teachers.rs"]
mod teachers;

/// A small recipe of the shape that NeMo RL ships.
const SHIPPED: &str = r#"
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  max_num_steps: 1000
  val_period: 10
  max_val_samples: 256
  seed: 42
  adv_estimator: {name: grpo, normalize_rewards: true, use_leave_one_out_baseline: true}
loss_fn:
  reference_policy_kl_penalty: 0.01
  reference_policy_kl_type: k3
  ratio_clip_min: 0.2
  ratio_clip_max: 0.2
  ratio_clip_c: null
  use_importance_sampling_correction: false
  truncated_importance_sampling_type: null
  truncated_importance_sampling_ratio: null
  token_level_loss: true
checkpointing: {enabled: true, metric_name: "val:accuracy", keep_top_k: 3, save_period: 10}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  tokenizer: {name: "${policy.model_name}"}
  train_global_batch_size: 512
  train_micro_batch_size: 4
  max_total_sequence_length: 512
  precision: bfloat16
  dtensor_cfg: {enabled: true, _v2: true, tensor_parallel_size: 1, context_parallel_size: 1}
  megatron_cfg:
    enabled: false
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 1
    sequence_parallel: false
    activation_checkpointing: false
    optimizer: {lr: 5.0e-6, weight_decay: 0.01, adam_beta1: 0.9, adam_beta2: 0.999, adam_eps: 1e-8, clip_grad: 1.0}
    scheduler: {lr_warmup_iters: 13}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length},${policy.train_micro_batch_size}}
  max_grad_norm: 1.0
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5.0e-6, weight_decay: 0.01, betas: [0.9, 0.999], eps: 1e-8}}
  scheduler:
    - {name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.1, end_factor: 1.0, total_iters: 50}}
    - {name: torch.optim.lr_scheduler.ConstantLR, kwargs: {factor: 1.0, total_iters: 10000000000}}
    - {milestones: [50]}
  generation:
    backend: vllm
    max_new_tokens: ${policy.max_total_sequence_length}
    temperature: 1.0
    top_p: 1.0
    top_k: null
    vllm_cfg: {tensor_parallel_size: 1, gpu_memory_utilization: 0.6}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
data:
  train: {dataset_name: OpenMathInstruct-2, split_validation_size: 0.05}
  validation: null
  default: {env_name: math}
env: {math: {num_workers: 8}}
cluster: {num_nodes: 1, gpus_per_node: 1}
"#;

const OWN: &str = "
defaults: grpo_small.yaml
grpo: {num_prompts_per_step: 64, max_num_steps: 500}
policy:
  model_name: Qwen/Qwen3-8B
  max_total_sequence_length: 4096
  dtensor_cfg: {tensor_parallel_size: 2}
  optimizer: {kwargs: {lr: 3.0e-7}}
  generation: {vllm_kwargs: {max_num_seqs: 256}}
cluster: {num_nodes: 2, gpus_per_node: 8}
logger: {wandb: {name: mine}}
";

type Files = BTreeMap<String, String>;

fn files() -> Files {
    let at = |name: &str, text: &str| (format!("examples/configs/{name}"), text.to_string());
    BTreeMap::from([at("grpo_small.yaml", SHIPPED), at("own.yaml", OWN)])
}

fn imported(files: &Files) -> String {
    let mut loader = Loader::new(files);
    let (text, found) =
        import(&mut loader, &mut SourceMap::new(), "examples/configs/own.yaml", &[]);
    assert_eq!(found, []);
    text.expect("a text")
}

fn exported(files: &Files, text: &str) -> Exported {
    let mut sources = SourceMap::new();
    let id = sources.add("r.nrl", text);
    let (file, problems) = nrl_syntax::parse(id, text);
    assert_eq!(problems, [], "{text}");
    let options = ExportOptions {
        root: "",
        defaults: &|over| over.rsplit('/').next().unwrap_or(over).to_string(),
        config: &|name| format!("{name}.yaml"),
        recipe: None,
    };
    export(&mut Loader::new(files), &mut sources, &file, &options).expect("an export")
}

/// What an exported file sets, by the real loader.
fn resolved(files: &Files, yaml: &str, path: &str) -> String {
    let mut files = files.clone();
    files.insert("examples/configs/out.yaml".into(), yaml.into());
    let mut sources = SourceMap::new();
    let loaded = nrl_nemo::load(&files, &mut sources, "examples/configs/out.yaml", &[]);
    let settings = loaded.0.unwrap_or_else(|| panic!("{:?}\n{yaml}", loaded.1));
    format!("{:?}", settings.get(path).unwrap_or_else(|| panic!("{path}\n{yaml}")).value)
}

#[test]
fn import_writes_lines_and_one_block() {
    let text = imported(&files());
    for line in [
        "  run 500 steps, seed 42\n",
        "  mesh train = gpus axes (fsdp: rest, tp: 2)\n",
        "models.load(\"Qwen/Qwen3-8B\", dtype: bf16, context: 4096 tokens)\n",
        "sampler.generate(problems.take(64 prompts), 16 samples/prompt, max_new: rest of context)\n",
        "update policy by opt in 2 updates, 16384 tokens/microbatch, minimising {\n",
        "  settings nemo_rl over \"examples/configs/grpo_small.yaml\" {\n",
        "    policy.generation.vllm_kwargs = {max_num_seqs: 256}\n",
        "    logger = {wandb: {name: \"mine\"}}\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    let block = &text[text.find("  settings").expect("a block")..];
    assert_eq!(block.lines().count(), 5, "{block}");
    assert_eq!(nrl_syntax::print::format(&text).as_deref(), Ok(text.as_str()));
}

/// A recipe with the estimator of an algorithm.
fn estimated(estimator: &str, more: &str) -> Files {
    let own = OWN.replace(
        "max_num_steps: 500}",
        &format!("max_num_steps: 500, adv_estimator: {{{estimator}}}}}"),
    );
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), own + more);
    files
}

#[test]
fn estimators_are_calls_of_the_library() {
    let teachers = "
on_policy_distillation:
  enabled: true
  teacher_model_by_agent_name: {code: Qwen/Qwen3-14B, usual: Qwen/Qwen3-32B}
  default_teacher_alias: usual
";
    for (estimator, more, lines, change, path, is) in [
        (
            "name: reinforce_plus_plus, minus_baseline: true",
            "",
            [
                "adv = reinforce_plus_plus.advantages(r, old, baseline: mean)\n",
                "mean(ppo.clip(ratio(logprob(policy, s), old), adv, 0.2..0.2), over: tokens)\n",
                "use std.{clusters, data, grpo, models, optim, plans, ppo, reinforce_plus_plus, rewards}\n",
            ],
            ("baseline: mean", "baseline: zero"),
            "grpo.adv_estimator.minus_baseline",
            "Bool(false)",
        ),
        (
            "name: gdpo, use_leave_one_out_baseline: false",
            "",
            [
                "adv = gdpo.advantages(gdpo.part(r, baseline: mean, scale: std), valid(r))",
                "mean(grpo.clip(ratio(logprob(policy, s), old), adv, 0.2..0.2), over: tokens)\n",
                "use std.{clusters, data, gdpo, grpo, models, optim, plans, rewards}\n",
            ],
            ("scale: std", "scale: unscaled"),
            "grpo.adv_estimator.normalize_rewards",
            "Bool(false)",
        ),
        (
            "name: opd",
            teachers,
            [
                "  teacher = models.load(\"Qwen/Qwen3-32B\")\n",
                "adv = opd.advantages(logprob(teacher, s), old)  # more teachers are named below\n",
                "use std.{clusters, data, grpo, models, opd, optim, plans, ppo, rewards}\n",
            ],
            ("Qwen/Qwen3-32B\")", "Qwen/Qwen3-8B\")"),
            "on_policy_distillation.teacher_model_by_agent_name.usual",
            "Text(\"Qwen/Qwen3-8B\")",
        ),
    ] {
        let files = estimated(estimator, more);
        let text = imported(&files);
        for line in lines {
            assert!(text.contains(line), "{line}\nin\n{text}");
        }
        let out = exported(&files, &text);
        assert!(out.lost.is_empty(), "{:?}", out.lost);
        let name = estimator.split([',', ' ']).nth(1).expect("a name");
        let said = resolved(&files, &out.yaml, "grpo.adv_estimator.name");
        assert_eq!(said, format!("Text({name:?})"));
        let changed = exported(&files, &text.replace(change.0, change.1));
        assert_eq!(resolved(&files, &changed.yaml, path), is, "{}", changed.yaml);
    }
}

#[test]
fn sampling_again_and_the_price_of_length_are_lines() {
    let dynamic = "use_dynamic_sampling: true, batch_multiplier: 3, \
                   dynamic_sampling_max_gen_batches: 10";
    let shaping = |limit| {
        format!(
            "reward_shaping: {{enabled: true, max_response_length: {limit}, \
             overlong_buffer_length: 512, overlong_buffer_penalty: 1, \
             stop_properly_penalty_coef: null}}"
        )
    };
    let with = |more: &str| {
        let mut files = files();
        let own = OWN.replace("max_num_steps: 500}", &format!("max_num_steps: 500, {more}}}"));
        files.insert("examples/configs/own.yaml".into(), own);
        files
    };
    let files = with(&format!("{dynamic}, {}", shaping(4096)));
    let text = imported(&files);
    for line in [
        "    s, r = collect 64 groups where std(reward) > 0 within 10 rounds {\n",
        "sampler.generate(\n        problems.take(192 prompts),\n",
        "      reward = rewards.boxed_answer(tried)\n",
        "rewards.overlong(tried, limit: 4096 tokens, buffer: 512 tokens, penalty: 1)",
        "adv = grpo.advantages(r, baseline: leave_one_out, scale: std)\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    assert!(!text.contains("use_dynamic_sampling"), "{text}");
    for (from, to, path, is) in [
        ("192 prompts", "128 prompts", "grpo.batch_multiplier", "Int(2)"),
        ("192 prompts", "96 prompts", "grpo.batch_multiplier", "Float(1.5)"),
        ("collect 64", "collect 48", "grpo.num_prompts_per_step", "Int(48)"),
        ("10 rounds", "4 rounds", "grpo.dynamic_sampling_max_gen_batches", "Int(4)"),
        ("buffer: 512", "buffer: 256", "grpo.reward_shaping.overlong_buffer_length", "Int(256)"),
    ] {
        assert!(text.contains(from), "{from}\n{text}");
        let out = exported(&files, &text.replace(from, to));
        assert!(out.lost.is_empty(), "{:?}", out.lost);
        assert_eq!(resolved(&files, &out.yaml, path), is, "{}", out.yaml);
        assert_eq!(resolved(&files, &out.yaml, "grpo.use_dynamic_sampling"), "Bool(true)");
    }
    let out = exported(&files, &text.replace("std(reward) > 0", "std(reward) > 0.1"));
    assert_eq!(out.lost.len(), 1, "{:?}", out.lost);

    let files = with(&shaping(4096));
    let text = imported(&files);
    assert!(text.contains("\n      + rewards.overlong(s, limit: 4096 tokens, "), "{text}");
    let out = exported(&files, &text);
    assert!(out.lost.is_empty(), "{:?}", out.lost);
    assert_eq!(resolved(&files, &out.yaml, "grpo.reward_shaping.enabled"), "Bool(true)");

    // An answer may be longer than the limit: NeMo RL then takes off more than the penalty.
    let text = imported(&with(&shaping(2048)));
    assert!(!text.contains("rewards.overlong"), "{text}");
}

#[test]
fn an_unchanged_recipe_exports_its_differences_alone() {
    let files = files();
    let out = exported(&files, &imported(&files));
    assert!(out.lost.is_empty(), "{:?}", out.lost);
    assert_eq!(resolved(&files, &out.yaml, "policy.tokenizer.name"), "Text(\"Qwen/Qwen3-8B\")");
    assert_eq!(
        resolved(&files, &out.yaml, "policy.sequence_packing.train_mb_tokens"),
        "Int(16384)"
    );
    assert!(!out.yaml.contains("train_mb_tokens"), "derived values stay derived\n{}", out.yaml);
    assert!(out.yaml.contains("\ndefaults: grpo_small.yaml\n"));
    assert_eq!(
        out.launch,
        "COMMAND=\"uv run python examples/run_grpo.py --config own.yaml\" \\\n  sbatch --nodes=2 \
         --gres=gpu:8 --account=ACCOUNT --partition=PARTITION --time=TIME ray.sub\n"
    );
}

#[test]
fn edited_lines_change_the_settings() {
    let files = files();
    let text = imported(&files);
    let changed = |from: &str, to: &str, path: &str| {
        assert!(text.contains(from), "{from}\n{text}");
        let out = exported(&files, &text.replace(from, to));
        resolved(&files, &out.yaml, path)
    };
    for (from, to, path, is) in [
        ("3e-07", "1e-06", "policy.optimizer.kwargs.lr", "Float(1e-6)"),
        ("tp: 2", "tp: 4", "policy.dtensor_cfg.tensor_parallel_size", "Int(4)"),
        (", tp: 2", "", "policy.dtensor_cfg.tensor_parallel_size", "Int(1)"),
        ("context: 4096", "context: 8192", "policy.train_micro_batch_size", "Int(2)"),
        ("16384 tokens", "32768 tokens", "policy.sequence_packing.train_mb_tokens", "Int(32768)"),
        ("in 2 updates", "in 4 updates", "policy.train_global_batch_size", "Int(256)"),
        ("0.2..0.2", "0.2..0.28", "loss_fn.ratio_clip_max", "Float(0.28)"),
        ("0.01 * mean", "0.05 * mean", "loss_fn.reference_policy_kl_penalty", "Float(0.05)"),
        (
            "baseline: leave_one_out",
            "baseline: mean",
            "grpo.adv_estimator.use_leave_one_out_baseline",
            "Bool(false)",
        ),
        (
            "over: tokens)\n        +",
            "over: samples)\n        +",
            "loss_fn.token_level_loss",
            "Bool(false)",
        ),
        (
            "temperature: 1.0",
            "temperature: 1.0, top_p: 0.9",
            "policy.generation.top_p",
            "Float(0.9)",
        ),
        (
            "60 % of device",
            "85 % of device",
            "policy.generation.vllm_cfg.gpu_memory_utilization",
            "Float(0.85)",
        ),
        ("nodes: 2", "nodes: 16", "cluster.num_nodes", "Int(16)"),
        (
            "run 500 steps",
            "run 500 steps within 4 h",
            "checkpointing.checkpoint_must_save_by",
            "Text(\"00:04:00:00\")",
        ),
        ("every 10 steps", "every 25 steps", "checkpointing.save_period", "Int(25)"),
        (
            "plans.fsdp() * plans.tensor_parallel()",
            "plans.megatron(sp: true)",
            "policy.megatron_cfg.tensor_model_parallel_size",
            "Int(2)",
        ),
        (
            "plans.fsdp() * plans.tensor_parallel()",
            "plans.megatron(sp: true)",
            "policy.dtensor_cfg.enabled",
            "Bool(false)",
        ),
        (
            "max_new: rest of context)",
            "max_new: rest of context) with staleness <= 1 step",
            "grpo.async_grpo.enabled",
            "Bool(true)",
        ),
        (
            "axes (rep: rest)",
            "axes (rep: rest, rtp: 4)",
            "policy.generation.vllm_cfg.tensor_parallel_size",
            "Int(4)",
        ),
        (
            "max_num_seqs: 256",
            "max_num_seqs: 64",
            "policy.generation.vllm_kwargs.max_num_seqs",
            "Int(64)",
        ),
    ] {
        assert_eq!(changed(from, to, path), is, "{from} -> {to}");
    }
    let pool = "pool trainers, rollers = gpus split (rest, 1 node)\n  mesh roll  = rollers";
    assert_eq!(
        changed("mesh roll  = gpus", pool, "policy.generation.colocated.enabled"),
        "Bool(false)"
    );
}

#[test]
fn names_and_arithmetic_are_read() {
    let files = files();
    let text = imported(&files)
        .replace("recipe own {", "recipe own(lr = 2e-6, n = 2) {")
        .replace("3e-07", "lr")
        .replace("64 prompts", "32 * n prompts".replace("32 * n prompts", "prompts").as_str())
        .replace("  run 500 steps", "  prompts = 16 prompts * n\n  run 500 steps");
    let out = exported(&files, &text);
    assert_eq!(resolved(&files, &out.yaml, "policy.optimizer.kwargs.lr"), "Float(2e-6)");
    assert_eq!(resolved(&files, &out.yaml, "grpo.num_prompts_per_step"), "Int(32)");
}

#[test]
fn what_has_no_form_is_listed() {
    let files = files();
    let text = imported(&files).replace("rewards.boxed_answer(s)", "mine(s)").replace(
        "  every 10 steps",
        "  halt when share(r == 0) > 95 % for 5 steps\n  every 10 steps",
    ) + "\nextern fn mine(s: Sample) -> float from \"python mine.py\"\n";
    let lost: Vec<String> = exported(&files, &text).lost.into_iter().map(|l| l.what).collect();
    assert_eq!(
        lost,
        [
            "a reward of your own has no form",
            "`halt when` has no form",
            "`mine` is a process of your own"
        ]
    );
}

#[test]
fn paired_micro_batches_are_no_setting() {
    let files = files();
    let by = "by plans.fsdp() * plans.tensor_parallel()";
    let text = imported(&files);
    assert!(text.contains(by), "{text}");
    let lost = |plan: &str| exported(&files, &text.replace(by, plan)).lost;
    let paired = lost("by plans.megatron(paired: true)");
    assert_eq!(paired.len(), 1, "{paired:?}");
    assert!(paired[0].what.contains("paired micro-batches have no form"), "{paired:?}");
    assert!(lost("by plans.megatron(paired: false)").is_empty());
}

#[test]
fn a_recipe_without_a_block_goes_over_the_recipe_that_fits() {
    let text = imported(&files());
    let (lines, _) = text.split_at(text.find("  settings").expect("a block"));
    let mut files = files();
    files.insert("examples/configs/grpo_math_1B.yaml".into(), SHIPPED.into());
    let out = exported(&files, &format!("{lines}}}\n"));
    assert!(out.yaml.contains("\ndefaults: grpo_math_1B.yaml\n"), "{}", out.yaml);
    assert_eq!(resolved(&files, &out.yaml, "policy.model_name"), "Text(\"Qwen/Qwen3-8B\")");
}
