//! Which setting holds which fact, where the value is the same on both sides.

use nrl_rules::settings::Value;

use super::Algorithm;

/// What `optim.adamw` takes where a recipe says nothing.
pub(crate) const BETA1: f64 = 0.9;
pub(crate) const BETA2: f64 = 0.999;
pub(crate) const EPS: f64 = 1e-8;

/// A fact, the line it belongs to, where it stands, and what it is if the line,
/// or the settings, do not say it.
pub(super) struct Row {
    pub fact: &'static str,
    /// The fact that says that the line exists.
    pub line: &'static str,
    pub path: String,
    pub otherwise: Option<Value>,
}

fn row(fact: &'static str, line: &'static str, path: impl Into<String>) -> Row {
    Row { fact, line, path: path.into(), otherwise: None }
}

fn or(fact: &'static str, line: &'static str, path: impl Into<String>, value: Value) -> Row {
    Row { fact, line, path: path.into(), otherwise: Some(value) }
}

/// The rows of an algorithm on a backend.
pub(super) fn rows(algorithm: Algorithm, megatron: bool, engine: &str) -> Vec<Row> {
    let section = algorithm.section();
    let mut rows = vec![
        row("steps", "steps", format!("{section}.max_num_steps")),
        row("seed", "seed", format!("{section}.seed")),
        row("nodes", "nodes", "cluster.num_nodes"),
        row("gpus", "gpus", "cluster.gpus_per_node"),
        row("model", "model", "policy.model_name"),
        row("dtype", "dtype", "policy.precision"),
        row("context", "context", "policy.max_total_sequence_length"),
        row("config", "config", "policy.hf_config_overrides"),
        or("eval_period", "period", format!("{section}.val_period"), Value::Int(0)),
        row("save_period", "save", "checkpointing.save_period"),
        row("keep", "save", "checkpointing.keep_top_k"),
        or("save", "period", "checkpointing.enabled", Value::Bool(false)),
    ];
    backend(&mut rows, megatron);
    if algorithm.generates() {
        sampling(&mut rows, section, engine);
    }
    match algorithm {
        Algorithm::Grpo => grpo(&mut rows),
        Algorithm::Ppo => ppo(&mut rows),
        Algorithm::Dpo => dpo(&mut rows),
        Algorithm::Distillation => distillation(&mut rows),
        Algorithm::Sft | Algorithm::Rm => {
            rows.push(row("batch", "batch", "policy.train_global_batch_size"));
        }
    }
    rows
}

/// The layout of the model of a section.
pub(super) fn layout(section: &str, megatron: bool) -> Vec<Row> {
    let (backend, axes): (_, &[(&'static str, &str)]) = match megatron {
        true => (
            "megatron_cfg",
            &[
                ("tp", "tensor_model_parallel_size"),
                ("cp", "context_parallel_size"),
                ("pp", "pipeline_model_parallel_size"),
                ("ep", "expert_model_parallel_size"),
                ("etp", "expert_tensor_parallel_size"),
            ],
        ),
        false => (
            "dtensor_cfg",
            &[
                ("tp", "tensor_parallel_size"),
                ("cp", "context_parallel_size"),
                ("ep", "expert_parallel_size"),
            ],
        ),
    };
    let at = |key: &str| format!("{section}.{backend}.{key}");
    let choices = [("sp", "sequence_parallel"), ("recompute", "activation_checkpointing")];
    let sizes = axes.iter().map(|(fact, key)| or(fact, "mesh", at(key), Value::Int(1)));
    let choices = choices.iter().map(|(fact, key)| or(fact, "plan", at(key), Value::Bool(false)));
    sizes.chain(choices).collect()
}

fn backend(rows: &mut Vec<Row>, megatron: bool) {
    rows.extend(layout("policy", megatron));
    if megatron {
        let at = |key: &str| format!("policy.megatron_cfg.{key}");
        rows.extend([
            row("lr", "opt", at("optimizer.lr")),
            row("weight_decay", "opt", at("optimizer.weight_decay")),
            or("beta1", "opt", at("optimizer.adam_beta1"), Value::Float(BETA1)),
            or("beta2", "opt", at("optimizer.adam_beta2"), Value::Float(BETA2)),
            or("eps", "opt", at("optimizer.adam_eps"), Value::Float(EPS)),
            row("clip_norm", "opt", at("optimizer.clip_grad")),
        ]);
    } else {
        rows.extend([
            row("lr", "opt", "policy.optimizer.kwargs.lr"),
            row("weight_decay", "opt", "policy.optimizer.kwargs.weight_decay"),
            or("eps", "opt", "policy.optimizer.kwargs.eps", Value::Float(EPS)),
            row("clip_norm", "opt", "policy.max_grad_norm"),
        ]);
    }
}

fn sampling(rows: &mut Vec<Row>, section: &str, engine: &str) {
    let at = |key: &str| format!("policy.generation.{key}");
    rows.extend([
        row("prompts", "prompts", format!("{section}.num_prompts_per_step")),
        row("group", "group", format!("{section}.num_generations_per_prompt")),
        row("eval_limit", "eval_period", format!("{section}.max_val_samples")),
        row("temperature", "sampler", at("temperature")),
        or("top_p", "sampler", at("top_p"), Value::Float(1.0)),
        or("top_k", "sampler", at("top_k"), Value::Null),
    ]);
    if engine == "vllm" {
        let one = || Value::Int(1);
        rows.extend([
            or("rtp", "roll", at("vllm_cfg.tensor_parallel_size"), one()),
            or("rpp", "roll", at("vllm_cfg.pipeline_parallel_size"), one()),
            or("rep", "roll", at("vllm_cfg.expert_parallel_size"), one()),
            row("memory", "sampler", at("vllm_cfg.gpu_memory_utilization")),
        ]);
    }
}

fn clipped(rows: &mut Vec<Row>) {
    let at = |key: &str| format!("loss_fn.{key}");
    let no = || Value::Bool(false);
    rows.extend([
        row("clip_low", "loss", at("ratio_clip_min")),
        row("clip_high", "loss", at("ratio_clip_max")),
        or("dual", "loss", at("ratio_clip_c"), Value::Null),
        or("kl", "loss", at("reference_policy_kl_penalty"), Value::Float(0.0)),
        row("kl_kind", "kl", at("reference_policy_kl_type")),
        or("on_policy_kl", "kl", at("use_on_policy_kl_approximation"), no()),
        or("over_tokens", "loss", at("token_level_loss"), Value::Bool(true)),
        or("sequence_ratio", "loss", at("sequence_level_importance_ratios"), no()),
        or("cispo", "loss", at("use_cispo"), no()),
        or("no_ratio", "loss", at("disable_ppo_ratio"), no()),
    ]);
}

fn grpo(rows: &mut Vec<Row>) {
    clipped(rows);
    rows.extend([
        or("estimator", "advantages", "grpo.adv_estimator.name", Value::Text("grpo".into())),
        row("leave_one_out", "advantages", "grpo.adv_estimator.use_leave_one_out_baseline"),
        row("scaled", "advantages", "grpo.adv_estimator.normalize_rewards"),
        row("minus_baseline", "advantages", "grpo.adv_estimator.minus_baseline"),
    ]);
}

fn ppo(rows: &mut Vec<Row>) {
    clipped(rows);
    rows.extend([
        row("critic", "critic", "value.model_name"),
        row("critic_dtype", "critic", "value.precision"),
        row("critic_context", "critic", "value.max_total_sequence_length"),
        row("gamma", "gae", "ppo.adv_estimator.gae_gamma"),
        row("lambda", "gae", "ppo.adv_estimator.gae_lambda"),
        row("epochs", "update", "ppo.ppo_epochs"),
        row("value_clip", "value_loss", "value_loss_fn.cliprange"),
        row("value_scale", "value_loss", "value_loss_fn.scale"),
    ]);
}

fn dpo(rows: &mut Vec<Row>) {
    rows.extend([
        row("batch", "batch", "policy.train_global_batch_size"),
        row("beta", "loss", "dpo.reference_policy_kl_penalty"),
        row("preference", "loss", "dpo.preference_loss_weight"),
        or("nll", "loss", "dpo.sft_loss_weight", Value::Int(0)),
    ]);
}

fn distillation(rows: &mut Vec<Row>) {
    rows.extend([
        row("teacher", "teacher", "teacher.model_name"),
        row("teacher_dtype", "teacher", "teacher.precision"),
        row("teacher_context", "teacher", "teacher.max_total_sequence_length"),
        row("topk", "loss", "distillation.topk_logits_k"),
        row("kl_direction", "loss", "loss_fn.kl_type"),
        row("mix", "loss", "loss_fn.mixed_kl_weight"),
    ]);
}
