//! What a plan needs of the settings of NeMo RL that the language has no lines for.
//!
//! In: settings, of YAML or of the block that an import leaves in a recipe. Out: the habits of the framework: what is stored in
//! how many bytes and where, what is padded, which software it is. Settings that do nothing to the plan are named.

use nrl_base::{Diagnostic, Files, Span};
use nrl_driver::Framework;
use nrl_rules::Settings;
use nrl_rules::settings::Value;
use nrl_sim::{Habits, Stack};

/// Settings that cost or save something that no plan here knows.
const NOTHING: &[(&str, &str)] = &[
    ("policy.megatron_cfg.fine_grained_activation_offloading", "activations stay on the device"),
    ("policy.megatron_cfg.defer_fp32_logits", "logits are counted in f32"),
    ("policy.megatron_cfg.moe_enable_deepep", "tokens go to experts by a plain all-to-all"),
    ("policy.megatron_cfg.moe_shared_expert_overlap", "shared experts run after the others"),
];

/// How an import writes the mesh of teachers with nodes of their own.
const JUDGES: &str = "= judges axes";

/// Settings under one prefix, as those of a model have.
struct At<'s> {
    settings: &'s Settings,
    prefix: &'s str,
}

impl At<'_> {
    fn int(&self, key: &str) -> Option<i64> {
        self.settings.int(&format!("{}.{key}", self.prefix)).map(|n| n.value)
    }

    fn on(&self, key: &str) -> bool {
        self.settings.on(&format!("{}.{key}", self.prefix))
    }

    fn megatron(&self) -> bool {
        self.on("megatron_cfg.enabled")
    }
}

/// The habits that settings give the framework.
pub(crate) fn framework(settings: &Settings, text: &str, before_0_4: bool) -> Framework {
    let policy = At { settings, prefix: "policy" };
    let mut f = Framework {
        memory: Habits { tied_to_refit: before_0_4, ..Habits::default() },
        ..Framework::default()
    };
    stored(&policy, &mut f);
    // Adapters that are lines are in the plan.
    if text.contains("= lora(") {
        f.memory.adapters = None;
    }
    if f.memory.adapters.is_some() {
        let said = "adapters: memory is that of adapters, seconds are those of all weights";
        f.notes.push(said.into());
    }
    scored(&policy, &mut f);
    sampled(&policy, &mut f);
    batched(&policy, settings, &mut f);
    reference(settings, &mut f);
    judged(settings, text, &mut f);
    validated(settings, &mut f);
    let steps = ["grpo", "ppo", "distillation"].map(|s| format!("{s}.max_num_steps"));
    let most = steps.iter().find_map(|p| Some((p, settings.int(p)?.value)));
    if let Some((path, n)) = most.filter(|(_, n)| *n >= 100_000) {
        f.notes
            .push(format!("`{path}` {n}: the data ends before, so the run is shorter than that"));
    }
    if let Some(n) = settings.int("rm.max_num_steps").filter(|n| n.value <= 0) {
        f.notes.push(format!(
            "`rm.max_num_steps` {}: a run ends with its data, whose rows no setting says; the run here is of one step",
            n.value
        ));
    }
    for (path, what) in NOTHING.iter().filter(|(path, _)| settings.on(path)) {
        f.notes.push(format!("`{path}` has no effect here: {what}"));
    }
    f
}

/// Weights, gradients, state of the optimizer.
fn stored(policy: &At<'_>, f: &mut Framework) {
    if policy.megatron() {
        let mut stack = Stack::megatron_plain_loss();
        let ddp = "megatron_cfg.distributed_data_parallel_config";
        if !policy.on(&format!("{ddp}.grad_reduce_in_fp32")) {
            stack.gradients = 2.0;
        }
        let optimizer = "megatron_cfg.optimizer";
        let on = |key: &str| policy.on(&format!("{optimizer}.{key}"));
        if on("use_precision_aware_optimizer") && on("use_distributed_optimizer") && on("bf16") {
            // The copy in f32 keeps the half of its bits that the weight has not (`store_param_remainders` of
            // Transformer Engine, which Megatron-Core turns on).
            stack.master = 2.0;
        }
        f.stack = Some(stack);
        if policy.on("megatron_cfg.optimizer.optimizer_cpu_offload") {
            let key = "policy.megatron_cfg.optimizer.optimizer_offload_fraction";
            let share = policy.settings.float(key).map_or(1.0, |x| x.value);
            f.memory.state_on_host = share.clamp(0.0, 1.0);
            f.notes.push(format!(
                "`{key}`: {:.0} % of the optimizer's state is on hosts, and is stepped there",
                100.0 * share
            ));
        }
        if policy.on("megatron_cfg.peft.enabled") {
            f.memory.adapters = policy.int("megatron_cfg.peft.dim").map(|n| n as f64);
        }
        return;
    }
    if policy.on("dtensor_cfg.cpu_offload") {
        f.memory.all_on_host = true;
        f.notes.push(
            "`policy.dtensor_cfg.cpu_offload`: weights, gradients and state are on hosts; weights come for every \
             pass, beside its computation"
                .into(),
        );
    }
    if policy.on("dtensor_cfg.lora_cfg.enabled") {
        f.memory.adapters = policy.int("dtensor_cfg.lora_cfg.dim").map(|n| n as f64);
    }
}

/// Passes that give log-probabilities.
fn scored(policy: &At<'_>, f: &mut Framework) {
    let chunk = policy.int("logprob_chunk_size").filter(|n| *n > 0);
    f.memory.logits = Some(chunk.map(|n| n as usize));
    if let Some(n) = chunk {
        f.notes.push(format!(
            "`policy.logprob_chunk_size` {n} acts on passes that score; it has no effect on updates"
        ));
    }
    let bound = ["sequence_packing", "dynamic_batching"]
        .iter()
        .find(|k| policy.on(&format!("{k}.enabled")))
        .and_then(|k| policy.int(&format!("{k}.logprob_mb_tokens")));
    let samples = policy.int("logprob_batch_size").or(policy.int("train_micro_batch_size"));
    let context = policy.int("max_total_sequence_length");
    let padded = samples.zip(context).map(|(n, c)| n.saturating_mul(c));
    f.memory.score_tokens = bound.or(padded).filter(|n| *n > 0).map(|n| n as usize);
    f.scores_without_state = policy.on("offload_optimizer_for_logprob");
}

/// The engine.
fn sampled(policy: &At<'_>, f: &mut Framework) {
    let text = |key: &str| {
        let found = policy.settings.text(&format!("policy.generation.{key}"));
        found.map_or("", |t| t.value).to_string()
    };
    let weight = if text("vllm_cfg.precision").contains("fp8") { 1.0 } else { 2.0 };
    let kept = if text("vllm_cfg.kv_cache_dtype").contains("fp8") { 1.0 } else { 2.0 };
    if (weight, kept) != (2.0, 2.0) {
        f.memory.engine = Some((weight, kept));
    }
    f.guesses = settings_of(policy, "policy.generation.vllm_kwargs.speculative_config");
    let backend = text("backend");
    if !matches!(backend.as_str(), "" | "vllm") {
        f.notes.push(format!(
            "`policy.generation.backend` {backend}: seconds and memory of sampling are those of vLLM"
        ));
    }
}

fn settings_of(at: &At<'_>, path: &str) -> bool {
    section(at.settings, path)
}

/// Is there such a section? One that is set to nothing is none.
fn section(settings: &Settings, path: &str) -> bool {
    settings.get(path).is_some_and(|node| matches!(node.value, Value::Map(_)))
}

/// Samples side by side, or packed.
fn batched(policy: &At<'_>, settings: &Settings, f: &mut Framework) {
    let packs = policy.on("sequence_packing.enabled") || policy.on("dynamic_batching.enabled");
    let updates = policy.int("train_micro_batch_size").filter(|n| *n > 0);
    if let (false, Some(n)) = (packs, updates) {
        let scores = policy.int("logprob_batch_size").filter(|n| *n > 0).unwrap_or(n);
        // Preference pairs are counted as pairs.
        let pairs = ["dpo", "rm"].iter().any(|s| section(settings, s));
        let each = if pairs { 2 } else { 1 };
        f.padded = Some((n as usize * each, scores as usize * each));
        f.notes.push(format!(
            "neither `policy.sequence_packing` nor `policy.dynamic_batching` is on: micro-batches of {n} \
             are padded to the longest sample of a step"
        ));
    }
}

/// A reference that nothing weighs is not kept.
fn reference(settings: &Settings, f: &mut Framework) {
    let kl = settings.float("loss_fn.reference_policy_kl_penalty").map(|x| x.value);
    f.unused_reference = kl == Some(0.0) && settings.get("grpo").is_some();
    f.on_policy = settings.on("loss_fn.force_on_policy_ratio");
}

/// Teachers with nodes of their own.
fn judged(settings: &Settings, text: &str, f: &mut Framework) {
    let teachers = nrl_nemo::teachers(settings);
    let section = "on_policy_distillation";
    if teachers > 0 && !text.contains(JUDGES) {
        f.notes.push(format!(
            "`{section}.non_colocated_teachers`: NODES OF TEACHERS ARE NOT COUNTED: no line gives them a pool `judges`"
        ));
    } else if teachers > 1 {
        f.notes.push(format!(
            "`{section}`: {teachers} teachers share `judges`; one model stands for all, and each takes an equal share \
             of the samples"
        ));
    }
}

/// Rows of a validation by the loss.
fn validated(settings: &Settings, f: &mut Framework) {
    let of = |key: &str| {
        let all = ["sft", "dpo", "rm"].map(|s| settings.int(&format!("{s}.{key}")));
        all.into_iter().flatten().next().map(|n| n.value).filter(|n| *n > 0)
    };
    let rows = of("val_batches").zip(of("val_global_batch_size"));
    f.validated = rows.map(|(batches, rows)| batches.saturating_mul(rows) as usize);
}

/// What a plan cannot be made of: a file that trains nothing, a model that is left open or stands for one.
pub(crate) fn refused(settings: &Settings, file: &str, files: &dyn Files) -> Option<Diagnostic> {
    let has = |name: &str| section(settings, name);
    let trains = ["grpo", "ppo", "dpo", "sft", "distillation", "rm"];
    if !trains.into_iter().any(has) {
        let what = format!("{file} trains nothing: it has none of the sections of a recipe");
        let help = format!("a plan is of a recipe with {}", trains.join(", "));
        return Some(Diagnostic::error("not-supported", what).help(help));
    }
    let head = settings.text("policy.reward_model_cfg.reward_model_type").map(|t| t.value);
    let scores = settings.on("policy.reward_model_cfg.enabled") && head == Some("bradley_terry");
    if !trains[..5].iter().any(|name| has(name)) && !scores {
        let what = format!("{file} trains a reward model that is not one of Bradley and Terry");
        let help = "a plan needs `policy.reward_model_cfg`: {enabled: true, reward_model_type: bradley_terry}";
        return Some(Diagnostic::error("not-supported", what).help(help));
    }
    if settings.get("teachers").is_some_and(|n| n.value != Value::Null) {
        let what = format!("{file} distils across vocabularies, of which no plan is made yet");
        let help = "the language has no projection from one vocabulary to another: a plan is of a student and a teacher \
                    with one vocabulary, in the section `teacher`";
        return Some(Diagnostic::error("not-supported", what).help(help));
    }
    let sections = ["policy", "teacher", "value"].into_iter().filter(|s| has(s));
    let paths = sections.map(|s| format!("{s}.model_name")).chain(nrl_nemo::judge(settings));
    let open: Vec<(String, Span, String)> = paths
        .filter_map(|path| {
            let node = settings.get(&path)?;
            let what = left_open(&path, &node.value, files)?;
            Some((path, node.origin.value, what))
        })
        .collect();
    let (_, _, what) = open.first()?;
    let named = open.iter().map(|(path, ..)| format!(" {path}=Qwen/Qwen3-8B"));
    let help = format!("name one, such as `nrlc plan {file}{}`", named.collect::<String>());
    let d = Diagnostic::error("model-not-found", what.clone()).help(help);
    Some(open.iter().fold(d, |d, (_, at, _)| d.label(*at, "no model")))
}

/// Why a setting names no model, if it names none.
fn left_open(path: &str, value: &Value, files: &dyn Files) -> Option<String> {
    match value {
        Value::Null => Some(format!("`{path}` is left open")),
        Value::Text(t) if t.contains("???") => Some(format!("`{path}` is left open")),
        Value::Text(t) if t.starts_with("/path/to") => {
            let absent = files.read(&format!("{t}/config.json")).is_err();
            absent.then(|| format!("`{path}` stands for a model of yours: `{t}`"))
        }
        _ => None,
    }
}

/// What an import has to leave to the settings, and what no plan is true without.
pub(crate) fn unsaid(settings: &Settings, text: &str, file: &str) -> Option<Diagnostic> {
    unsaid_loss(settings, text, file).or_else(|| unsaid_nodes(settings, text, file))
}

/// Teachers whose nodes lines do not say.
fn unsaid_nodes(settings: &Settings, text: &str, file: &str) -> Option<Diagnostic> {
    let judged = nrl_nemo::teachers(settings) > 0 && text.contains("opd.advantages(");
    if !judged || text.contains(JUDGES) {
        return None;
    }
    let section = "on_policy_distillation.non_colocated_teachers";
    let node = settings.get(&format!("{section}.teacher_overrides")).or(settings.get(section))?;
    let what = format!("{file} gives its teachers nodes that differ, of which no plan is made yet");
    let help = format!(
        "a plan is of teachers with the same whole nodes: `{section}.default_teacher_cfg` with the `gpus_per_node` of \
         the cluster, no `teacher_overrides`, and nodes left for the policy"
    );
    let d = Diagnostic::error("not-supported", what).label(node.origin.key, "these nodes");
    Some(d.help(help))
}

/// A loss that lines do not say.
fn unsaid_loss(settings: &Settings, text: &str, file: &str) -> Option<Diagnostic> {
    text.contains(nrl_nemo::UNSAID_LOSS).then_some(())?;
    let at = |key: &str| settings.get(&format!("loss_fn.{key}"));
    let kind = at("truncated_importance_sampling_type");
    let kind = kind.filter(|_| settings.on("loss_fn.use_importance_sampling_correction"));
    let node = kind.or(settings.get("loss_fn"));
    let what = format!("the loss of {file} has no form in the language");
    let help = "a plan is of a loss with `ratio_clip_min` and `ratio_clip_max`, corrected by `tis`, `icepop` or \
                `seq-mask-tis` with their ratios";
    let d = Diagnostic::error("not-supported", what).help(help);
    Some(match (kind, node) {
        (Some(_), Some(node)) => {
            d.label(node.origin.value, "this correction, with the ratios beside it")
        }
        (_, Some(node)) => d.label(node.origin.key, "this loss"),
        _ => d,
    })
}

/// The software whose rates count.
pub(crate) fn stack(settings: &Settings) -> &'static str {
    let policy = At { settings, prefix: "policy" };
    if policy.megatron() { "nemo-rl" } else { "nemo-rl-dtensor" }
}

/// Are products of training in 8 bits?
pub(crate) fn trains_in_fp8(settings: &Settings) -> bool {
    let policy = At { settings, prefix: "policy" };
    policy.megatron() && policy.on("megatron_cfg.fp8_cfg.enabled")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nrl_base::SourceMap;

    use super::*;

    fn settings(yaml: &str) -> Settings {
        let files = BTreeMap::from([("r.yaml".to_string(), yaml.to_string())]);
        let (settings, found) = nrl_nemo::load(&files, &mut SourceMap::new(), "r.yaml", &[]);
        settings.unwrap_or_else(|| panic!("{found:#?}"))
    }

    #[test]
    fn settings_become_habits() {
        let yaml = "policy:\n  train_micro_batch_size: 2\n  logprob_batch_size: 4\n  max_total_sequence_length: 1024\n  \
                    logprob_chunk_size: 256\n  dtensor_cfg: {enabled: true, cpu_offload: true}\n  generation:\n    \
                    vllm_cfg: {precision: fp8}\n";
        let f = framework(&settings(yaml), "", true);
        assert!(f.memory.all_on_host && f.memory.tied_to_refit);
        assert_eq!(f.memory.logits, Some(Some(256)));
        assert_eq!((f.memory.score_tokens, f.padded), (Some(4096), Some((2, 4))));
        // Two answers of a pair.
        let pairs = framework(&settings(&format!("{yaml}dpo: {{seed: 1}}\n")), "", true);
        assert_eq!(pairs.padded, Some((4, 8)));
        assert_eq!(f.memory.engine, Some((1.0, 2.0)));
        let packed = yaml.replace(
            "policy:\n",
            "policy:\n  sequence_packing: {enabled: true, logprob_mb_tokens: 8192}\n",
        );
        let f = framework(&settings(&packed), "", false);
        assert_eq!((f.memory.score_tokens, f.padded), (Some(8192), None));
    }
}
