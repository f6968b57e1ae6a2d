//! Settings that must be there: the trainer reads them without a default, often late in a run.

use nrl_base::Diagnostic;
use nrl_rules::recipe::{Algorithm, Backend, Engine, Recipe};

/// More missing settings than this are told in one finding.
const APART: usize = 5;

const ALL: &[&str] = &[
    "cluster.num_nodes",
    "cluster.gpus_per_node",
    "policy.model_name",
    "policy.tokenizer",
    "policy.train_global_batch_size",
    "policy.train_micro_batch_size",
    "policy.max_total_sequence_length",
    "policy.precision",
    "policy.make_sequence_length_divisible_by",
    "policy.offload_optimizer_for_logprob",
    "policy.sequence_packing.enabled",
    "policy.dynamic_batching.enabled",
    "data.max_input_seq_length",
    "data.shuffle",
    "data.train",
    "checkpointing.enabled",
    "checkpointing.checkpoint_dir",
    "checkpointing.metric_name",
    "checkpointing.higher_is_better",
    "checkpointing.save_period",
    "checkpointing.save_optimizer",
    "checkpointing.checkpoint_must_save_by",
    "logger.log_dir",
    "logger.wandb_enabled",
    "logger.tensorboard_enabled",
    "logger.monitor_gpus",
];

const GRPO: &[&str] = &[
    "grpo.num_prompts_per_step",
    "grpo.num_generations_per_prompt",
    "grpo.max_num_steps",
    "grpo.max_rollout_turns",
    "grpo.val_period",
    "grpo.val_batch_size",
    "grpo.max_val_samples",
    "grpo.seed",
    "loss_fn.reference_policy_kl_penalty",
    "loss_fn.ratio_clip_min",
    "loss_fn.ratio_clip_max",
    "policy.logprob_batch_size",
    "data.num_workers",
    "data.use_multiple_dataloader",
];

const PPO: &[&str] = &[
    "ppo.num_prompts_per_step",
    "ppo.num_generations_per_prompt",
    "ppo.max_num_steps",
    "value.model_name",
    "value.train_global_batch_size",
    "value.train_micro_batch_size",
];

const SUPERVISED: &[&str] =
    &["max_num_steps", "val_period", "val_global_batch_size", "val_micro_batch_size", "seed"];

const GENERATION: &[&str] = &[
    "policy.generation.backend",
    "policy.generation.max_new_tokens",
    "policy.generation.temperature",
    "policy.generation.top_p",
    "policy.generation.top_k",
    "policy.generation.val_temperature",
    "policy.generation.val_top_p",
    "policy.generation.val_top_k",
    "policy.generation.stop_token_ids",
    "policy.generation.stop_strings",
    "policy.generation.colocated.enabled",
    "policy.generation.colocated.resources.gpus_per_node",
    "policy.generation.colocated.resources.num_nodes",
];

const VLLM: &[&str] = &[
    "policy.generation.vllm_cfg.tensor_parallel_size",
    "policy.generation.vllm_cfg.pipeline_parallel_size",
    "policy.generation.vllm_cfg.expert_parallel_size",
    "policy.generation.vllm_cfg.gpu_memory_utilization",
    "policy.generation.vllm_cfg.max_model_len",
    "policy.generation.vllm_cfg.async_engine",
    "policy.generation.vllm_cfg.precision",
    "policy.generation.vllm_cfg.kv_cache_dtype",
    "policy.generation.vllm_cfg.enforce_eager",
];

const MEGATRON_GENERATION: &[&str] = &[
    "policy.generation.mcore_generation_config.max_model_len",
    "policy.generation.mcore_generation_config.buffer_size_gb",
    "policy.generation.mcore_generation_config.num_cuda_graphs",
    "policy.generation.mcore_generation_config.block_size_tokens",
    "policy.generation.mcore_generation_config.enable_chunked_prefill",
    "policy.generation.mcore_generation_config.max_tokens",
];

const MEGATRON: &[&str] = &[
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "sequence_parallel",
    "activation_checkpointing",
    "optimizer",
    "scheduler",
    "distributed_data_parallel_config",
    "freeze_moe_router",
    "moe_router_dtype",
    "moe_router_load_balancing_type",
    "moe_router_bias_update_rate",
    "moe_permute_fusion",
    "moe_token_dispatcher_type",
    "moe_enable_deepep",
    "moe_shared_expert_overlap",
    "apply_rope_fusion",
    "bias_activation_fusion",
    "gradient_accumulation_fusion",
    "empty_unused_memory_level",
];

const DTENSOR: &[&str] = &[
    "tensor_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "activation_checkpointing",
    "cpu_offload",
    "custom_parallel_plan",
];

/// One finding per missing setting; one for all if they are many.
pub fn missing(r: &Recipe) -> Vec<Diagnostic> {
    let absent: Vec<String> = needed(r).into_iter().filter(|path| r.node(path).is_none()).collect();
    if absent.len() > APART {
        let shown = absent[..APART].join("`, `");
        let text =
            format!("{} settings that must be there are missing, such as `{shown}`", absent.len());
        let found = Diagnostic::error("missing-field", text);
        let help = "inherit a whole recipe: `defaults: path/to/grpo_math_1B.yaml`";
        return vec![place(r, found, &absent[0]).help(help)];
    }
    let one = |path: &String| {
        let found =
            Diagnostic::error("missing-field", format!("`{path}` is not set, and has no default"));
        place(r, found, path).help(format!("set `{path}`, or inherit it from a base recipe"))
    };
    absent.iter().map(one).collect()
}

fn place(r: &Recipe, mut found: Diagnostic, path: &str) -> Diagnostic {
    for cause in r.setting(path) {
        found = match cause.span {
            Some(span) => found.label(span, cause.text),
            None => found.note(cause.text),
        };
    }
    found
}

fn needed(r: &Recipe) -> Vec<String> {
    let Some(algorithm) = r.algorithm.as_ref().map(|a| a.value) else { return vec![] };
    let mut all: Vec<String> = vec![];
    let mut add = |paths: &[&str]| all.extend(paths.iter().map(ToString::to_string));
    if algorithm == Algorithm::Eval {
        return vec![];
    }
    add(ALL);
    match algorithm {
        Algorithm::Grpo => add(GRPO),
        Algorithm::Ppo => add(PPO),
        Algorithm::Distillation => add(&["teacher.model_name"]),
        _ => {}
    }
    if let Some(g) = r.generation.as_ref().filter(|_| algorithm.is_rl()) {
        add(GENERATION);
        match g.engine.as_ref().map(|e| e.value) {
            Some(Engine::Vllm) => add(VLLM),
            Some(Engine::Megatron) => add(MEGATRON_GENERATION),
            _ => {}
        }
    }
    if let (Algorithm::Sft | Algorithm::Dpo | Algorithm::Reward, Some(section)) =
        (algorithm, r.section())
    {
        all.extend(SUPERVISED.iter().map(|name| format!("{section}.{name}")));
    }
    if let Some(w) = r.policy() {
        let names = if w.is(Backend::Megatron) { MEGATRON } else { DTENSOR };
        if w.backend.is_some() {
            all.extend(names.iter().map(|name| w.cfg(name)));
        }
    }
    all
}
