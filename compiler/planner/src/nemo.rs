//! What a plan needs of the settings of NeMo RL that the language has no lines for.
//!
//! In: the text that an import gave, and the settings it came from. Out: the text with layouts that the import leaves in its
//! settings block (models beside the policy, uneven stages, experts and tokens cut by Automodel, recomputation), and
//! the habits of the framework: what is stored in how many bytes and where, what is padded. Settings that do
//! nothing to the plan are named.

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

    fn size(&self, key: &str) -> i64 {
        self.int(key).unwrap_or(1).max(1)
    }

    fn megatron(&self) -> bool {
        self.on("megatron_cfg.enabled")
    }

    /// Axes of the mesh of a model with their sizes.
    fn axes(&self) -> Vec<(&'static str, i64)> {
        let keys: &[(&str, &str)] = match self.megatron() {
            true => &[
                ("pp", "megatron_cfg.pipeline_model_parallel_size"),
                ("cp", "megatron_cfg.context_parallel_size"),
                ("tp", "megatron_cfg.tensor_model_parallel_size"),
                ("ep", "megatron_cfg.expert_model_parallel_size"),
                ("etp", "megatron_cfg.expert_tensor_parallel_size"),
            ],
            false => &[
                ("cp", "dtensor_cfg.context_parallel_size"),
                ("tp", "dtensor_cfg.tensor_parallel_size"),
                ("ep", "dtensor_cfg.expert_parallel_size"),
            ],
        };
        keys.iter().map(|(axis, key)| (*axis, self.size(key))).filter(|(_, n)| *n > 1).collect()
    }

    fn cuts(&self, axis: &str) -> bool {
        self.axes().iter().any(|(a, _)| *a == axis)
    }

    /// The plan of a model, as a line has it.
    fn plan(&self) -> String {
        if self.megatron() {
            let mut args = vec![];
            if self.on("megatron_cfg.sequence_parallel") {
                args.push("sp: true".to_string());
            }
            if self.on("megatron_cfg.activation_checkpointing") {
                args.push("recompute: full".to_string());
            }
            return format!("plans.megatron({})", args.join(", "));
        }
        let mut all = vec!["plans.fsdp()", "plans.tensor_parallel()"];
        if self.cuts("cp") {
            all.push("plans.context_parallel()");
        }
        if self.cuts("ep") {
            all.push("plans.expert_parallel()");
        }
        if self.on("dtensor_cfg.sequence_parallel") && self.cuts("tp") {
            all.push("tokens_apart()");
        }
        if self.on("dtensor_cfg.activation_checkpointing") {
            all.push("plans.recomputed()");
        }
        all.join(" * ")
    }

    /// Layers of each stage where the settings make the first or the last one smaller.
    fn split(&self, layers: i64) -> Option<Vec<i64>> {
        let stages = self.size("megatron_cfg.pipeline_model_parallel_size");
        let first = self.int("megatron_cfg.num_layers_in_first_pipeline_stage");
        let last = self.int("megatron_cfg.num_layers_in_last_pipeline_stage");
        let ends = i64::from(first.is_some()) + i64::from(last.is_some());
        if !self.megatron() || stages < 2 || ends == 0 || stages < ends {
            return None;
        }
        let rest = layers - first.unwrap_or(0) - last.unwrap_or(0);
        let inner = stages - ends;
        if rest < inner || inner > 0 && rest % inner != 0 || inner == 0 && rest != 0 {
            return None;
        }
        let inside = (0..inner).map(|_| rest / inner.max(1));
        Some(first.into_iter().chain(inside).chain(last).collect())
    }
}

/// The text with what the import left in its settings block.
pub(crate) fn laid_out(text: &str, settings: &Settings) -> String {
    let policy = At { settings, prefix: "policy" };
    let name = settings.text("policy.model_name").map_or("", |t| t.value);
    let layers = nrl_facts::model(name).map(|m| m.layers as i64);
    let split = layers.and_then(|n| policy.split(n));
    let cluster = |line: &str| line.split_whitespace().nth(3).unwrap_or("gpus").to_string();
    let on = text.lines().find(|l| l.trim_start().starts_with("mesh train = ")).map(cluster);
    let mut out = String::new();
    for line in text.lines() {
        let mut line = line.to_string();
        if line.trim_start().starts_with("place policy") {
            if let (Some((place, _)), false) = (line.split_once(" by "), policy.megatron()) {
                line = format!("{place} by {}", policy.plan());
            }
            if let Some(split) = split.as_ref().filter(|_| !line.contains("split:")) {
                let parts: Vec<String> = split.iter().map(i64::to_string).collect();
                let argument = format!("split: [{}]", parts.join(", "));
                line = with_argument(&line, &argument);
            }
            out += &line;
            out.push('\n');
            for (model, prefix) in [("teacher", "teacher"), ("critic", "value")] {
                let bound = |l: &str| l.starts_with(model) && l.contains("= models.load(");
                if text.lines().any(|l| bound(l.trim_start())) {
                    out += &beside(model, &At { settings, prefix }, on.as_deref());
                }
            }
            continue;
        }
        if line.trim_start().starts_with("update policy by ") {
            line = with_budget(&line, settings);
        }
        out += &line;
        out.push('\n');
    }
    if out.contains("tokens_apart()") {
        out += "\nplan tokens_apart() {\n  tok: @tp\n}\n";
    }
    out
}

/// The line of an update with tokens of a micro-batch, where the import has left them in the block.
fn with_budget(line: &str, settings: &Settings) -> String {
    let policy = At { settings, prefix: "policy" };
    let packs = ["sequence_packing", "dynamic_batching"];
    let bound = packs.iter().find(|k| policy.on(&format!("{k}.enabled")));
    let rows = if settings.get("dpo").is_some() { 2 } else { 1 };
    let samples = policy.int("train_micro_batch_size").zip(policy.int("max_total_sequence_length"));
    let tokens = match bound {
        Some(key) => policy.int(&format!("{key}.train_mb_tokens")),
        None => samples.map(|(n, context)| n.saturating_mul(context).saturating_mul(rows)),
    };
    match (tokens.filter(|n| *n > 0), line.split_once(", minimising")) {
        (Some(n), Some((head, tail))) if !head.contains("tokens/microbatch") => {
            format!("{head}, {n} tokens/microbatch, minimising{tail}")
        }
        _ => line.to_string(),
    }
}

/// A mesh and a layout for a model beside the policy; that of the policy where settings have none for it.
fn beside(model: &str, at: &At<'_>, cluster: Option<&str>) -> String {
    let Some(cluster) = cluster else { return String::new() };
    let known = ["megatron_cfg", "dtensor_cfg"];
    let own = known.iter().any(|k| at.settings.get(&format!("{}.{k}", at.prefix)).is_some());
    let policy = At { settings: at.settings, prefix: "policy" };
    let at = if own { at } else { &policy };
    let first = if at.megatron() { "dp" } else { "fsdp" };
    // Stages stand furthest apart, ranks of tensor parallelism side by side.
    let (stages, inner): (Vec<_>, Vec<_>) = at.axes().into_iter().partition(|(a, _)| *a == "pp");
    let mut sizes: Vec<String> = stages.iter().map(|(axis, n)| format!("{axis}: {n}")).collect();
    sizes.push(format!("{first}: rest"));
    sizes.extend(inner.iter().map(|(axis, n)| format!("{axis}: {n}")));
    format!(
        "  mesh on_{model} = {cluster} axes ({})\n  place {model} on on_{model} by {}\n",
        sizes.join(", "),
        at.plan()
    )
}

/// `f(a)` of a line that ends in a call, with one more argument.
fn with_argument(line: &str, argument: &str) -> String {
    let code = line.split("  #").next().unwrap_or(line).trim_end();
    match code.strip_suffix(')') {
        Some(open) if open.ends_with('(') => format!("{open}{argument})"),
        Some(open) => format!("{open}, {argument})"),
        None => line.to_string(),
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
    batched(&policy, &mut f);
    reference(settings, &mut f);
    let steps = ["grpo", "ppo", "distillation"].map(|s| format!("{s}.max_num_steps"));
    let most = steps.iter().find_map(|p| Some((p, settings.int(p)?.value)));
    if let Some((path, n)) = most.filter(|(_, n)| *n >= 100_000) {
        f.notes
            .push(format!("`{path}` {n}: the data ends before, so the run is shorter than that"));
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
        f.stack = Some(stack);
        if policy.on("megatron_cfg.optimizer.optimizer_cpu_offload") {
            let key = "policy.megatron_cfg.optimizer.optimizer_offload_fraction";
            let share = policy.settings.float(key).map_or(1.0, |x| x.value);
            f.memory.state_on_host = share.clamp(0.0, 1.0);
            f.notes.push(format!(
                "`{key}`: {:.0} % of the optimizer's state is on hosts; SECONDS OF ITS WAY are not counted",
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
            "`policy.dtensor_cfg.cpu_offload`: weights, gradients and state are on hosts; SECONDS OF THEIR \
             WAY are not counted"
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
    if policy.on("offload_optimizer_for_logprob") {
        f.notes.push(
            "`policy.offload_optimizer_for_logprob` has no effect here: passes that score are counted without state"
                .into(),
        );
    }
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
    at.settings.get(path).is_some_and(|node| matches!(node.value, Value::Map(_)))
}

/// Samples side by side, or packed.
fn batched(policy: &At<'_>, f: &mut Framework) {
    let packs = policy.on("sequence_packing.enabled") || policy.on("dynamic_batching.enabled");
    let updates = policy.int("train_micro_batch_size").filter(|n| *n > 0);
    if let (false, Some(n)) = (packs, updates) {
        let scores = policy.int("logprob_batch_size").filter(|n| *n > 0).unwrap_or(n);
        f.padded = Some((n as usize, scores as usize));
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

    /// Megatron's `num_layers_in_{first,last}_pipeline_stage`: the layers between are dealt out evenly (94 layers with 11 at
    /// the end over 8 leave 83 for 7, which do not divide; with 11 at both ends, 72 for 6).
    #[test]
    fn layers_of_uneven_stages() {
        let split = |pp: i64, ends: &str, layers: i64| {
            let yaml = format!(
                "policy:\n  megatron_cfg: {{enabled: true, pipeline_model_parallel_size: {pp}, {ends}}}\n"
            );
            At { settings: &settings(&yaml), prefix: "policy" }.split(layers)
        };
        let both = "num_layers_in_first_pipeline_stage: 11, num_layers_in_last_pipeline_stage: 11";
        assert_eq!(split(8, both, 94), Some(vec![11, 12, 12, 12, 12, 12, 12, 11]));
        assert_eq!(split(8, "num_layers_in_last_pipeline_stage: 11", 94), None);
        assert_eq!(split(4, "num_layers_in_last_pipeline_stage: 6", 27), Some(vec![7, 7, 7, 6]));
        assert_eq!(split(2, both, 22), Some(vec![11, 11]));
        assert_eq!(split(4, "sequence_parallel: true", 28), None);
    }

    #[test]
    fn models_beside_the_policy_have_a_place() {
        let yaml = "policy:\n  megatron_cfg: {enabled: true}\nteacher:\n  megatron_cfg: {enabled: false}\n  \
                    dtensor_cfg: {enabled: true, tensor_parallel_size: 4, activation_checkpointing: true}\n";
        let text = "recipe r {\n  mesh train = gpus axes (dp: rest)\n  teacher = models.load(\"t\")\n  \
                    place policy on train by plans.megatron()\n}\n";
        let out = laid_out(text, &settings(yaml));
        let lines: Vec<&str> = out.lines().map(str::trim).collect();
        assert_eq!(lines[4], "mesh on_teacher = gpus axes (fsdp: rest, tp: 4)", "{out}");
        let place = "place teacher on on_teacher by plans.fsdp() * plans.tensor_parallel() * plans.recomputed()";
        assert_eq!(lines[5], place, "{out}");
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
        assert_eq!(f.memory.engine, Some((1.0, 2.0)));
        let packed = yaml.replace(
            "policy:\n",
            "policy:\n  sequence_packing: {enabled: true, logprob_mb_tokens: 8192}\n",
        );
        let f = framework(&settings(&packed), "", false);
        assert_eq!((f.memory.score_tokens, f.padded), (Some(8192), None));
    }
}
