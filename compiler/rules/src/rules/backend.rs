//! What the training backends can and cannot do together.

use nrl_base::Severity;

use crate::recipe::{Algorithm, Backend, Recipe, Role, Worker};
use crate::rule::{Findings, Rule, error, note, warning};

const CODE: &str = "backend-cannot";
const NEEDS: &str = "needs-another-setting";

/// Rules of training backends.
pub const RULES: &[Rule] = &[
    warning("BACK-01", "backend-not-chosen", "the first DTensor worker, by omission", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Dtensor) && w.role != Role::Reward) {
            let path = w.cfg("_v2");
            if r.node(&path).is_none() && r.node(&w.section).is_some() {
                f.at(
                    "the first DTensor worker trains, because `_v2` is not given",
                    &[&path, &w.cfg("enabled")],
                )
                .help(format!("`{path}: true` for Automodel, which every base recipe uses"));
            }
        }
    }),
    error("BACK-04", CODE, "a reward model with Megatron", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.role == Role::Policy) {
            let path = w.at("reward_model_cfg.enabled");
            if r.on(&path) {
                f.found("Megatron trains no reward models", &[&r.flag(&path), &w.backend]).help(
                    format!(
                        "`{}: true` and `{}: false`",
                        w.at("dtensor_cfg.enabled"),
                        w.at("megatron_cfg.enabled")
                    ),
                );
            }
        }
    }),
    error("BACK-05", "not-a-choice", "unknown kind of reward model", |r, f| {
        for w in r.workers.iter().filter(|w| r.on(&w.at("reward_model_cfg.enabled"))) {
            let path = w.at("reward_model_cfg.reward_model_type");
            match w.is(Backend::Dtensor) {
                true => f.choice(&path, &["bradley_terry"]),
                false => f.choice(&path, &["bradley_terry", "regression"]),
            }
        }
    }),
    error("BACK-06", CODE, "a reward model with packing", |r, f| {
        for w in torch(r).filter(|w| w.packs() && w.role == Role::Policy) {
            let path = w.at("reward_model_cfg.enabled");
            if r.on(&path) {
                f.found("reward models are trained without packing", &[&w.packing, &r.flag(&path)])
                    .help(format!("`{}: false`", w.at("sequence_packing.enabled")));
            }
        }
    }),
    error("BACK-07", CODE, "DTensor with context parallelism and packing", |r, f| {
        for w in torch(r).filter(|w| w.mesh.cp() > 1 && w.packs()) {
            f.found(
                "DTensor cannot pack sequences with context parallelism",
                &[&w.packing, &w.mesh.cp],
            )
            .note("Megatron is the other way round: context parallelism needs packing")
            .help(format!(
                "`{}: false`, or `{}: 1`",
                w.at("sequence_packing.enabled"),
                w.cfg("context_parallel_size")
            ));
        }
    }),
    error("BACK-08", CODE, "DTensor with context and sequence parallelism", |r, f| {
        for w in torch(r).filter(|w| w.mesh.cp() > 1 && w.mesh.tp() > 1 && w.mesh.sp()) {
            f.found(
                "DTensor cannot combine context with sequence parallelism",
                &[&w.mesh.sp, &w.mesh.cp, &w.mesh.tp],
            )
            .help(format!("`{}: false`", w.cfg("sequence_parallel")));
        }
    }),
    error("BACK-09", CODE, "Gemma 3 with context parallelism", |r, f| {
        family(r, f, "Gemma3", "Gemma 3")
    }),
    error("BACK-10", CODE, "images with context parallelism", |r, f| {
        for w in torch(r).filter(|w| w.mesh.cp() > 1 && sees(r, w)) {
            f.found("DTensor cannot cut images with context parallelism", &[&w.mesh.cp])
                .help(format!("`{}: 1`", w.cfg("context_parallel_size")));
        }
    }),
    error("BACK-11", CODE, "Qwen 3.5 with context parallelism", |r, f| {
        family(r, f, "Qwen3_5For", "Qwen 3.5")
    }),
    error("BACK-12", CODE, "packing without flash attention", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Automodel) && w.packs()) {
            let path = w.cfg("automodel_kwargs.attn_implementation");
            if r.text(&path).is_some_and(|a| a.value != "flash_attention_2") {
                f.at(
                    "packed sequences need flash_attention_2",
                    &[&path, &w.at("sequence_packing.enabled")],
                )
                .help(format!("`{path}: flash_attention_2`"));
            }
        }
    }),
    error("BACK-13, VLM-01", CODE, "images with packing", |r, f| {
        for w in torch(r).filter(|w| w.packs() && sees(r, w)) {
            f.found("DTensor cannot pack sequences with images", &[&w.packing, &w.backend])
                .help(format!("`{}: false`", w.at("sequence_packing.enabled")));
        }
    }),
    error("BACK-14", CODE, "images with sequence parallelism", |r, f| {
        for w in torch(r).filter(|w| w.mesh.sp() && w.mesh.tp() > 1 && sees(r, w)) {
            f.found("DTensor cannot cut images by sequence", &[&w.mesh.sp, &w.mesh.tp])
                .help(format!("`{}: false`", w.cfg("sequence_parallel")));
        }
    }),
    error("BACK-16", CODE, "YaRN with DTensor", |r, f| {
        for w in torch(r) {
            let (path, kind) = yarn(r, w);
            if kind {
                f.at("DTensor has no YaRN", &[&path, &w.at("dtensor_cfg.enabled")])
                    .help("train with Megatron, or without scaling");
            }
        }
    }),
    error("BACK-17", NEEDS, "YaRN without all of its numbers", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let (path, kind) = yarn(r, w);
            let base = path.trim_end_matches(".rope_type").trim_end_matches(".type").to_string();
            let names = [
                "factor",
                "rope_theta",
                "original_max_position_embeddings",
                "truncate",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
            ];
            let missing: Vec<&str> = names
                .into_iter()
                .filter(|n| kind && r.node(&format!("{base}.{n}")).is_none())
                .collect();
            if !missing.is_empty() {
                f.at(format!("YaRN with Megatron needs `{}` too", missing.join("`, `")), &[&path])
                    .help(format!("add them under `{base}`"));
            }
        }
    }),
    warning("BACK-18", CODE, "CPU offload on one GPU", |r, f| {
        for w in r
            .workers
            .iter()
            .filter(|w| w.is(Backend::Automodel) && w.gpus.as_ref().is_some_and(|g| g.value == 1))
        {
            let path = w.cfg("cpu_offload");
            if r.on(&path) {
                f.found(
                    "Automodel offloads to the CPU on several GPUs only; it refuses to run on one",
                    &[&r.flag(&path), &w.gpus],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
    error("BACK-20", "unknown-name", "what to freeze, misspelt", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Automodel)) {
            freeze(r, f, &w.cfg("automodel_kwargs.freeze_config"), TORCH_FREEZE);
        }
    }),
    error("BACK-21", "unknown-name", "what to freeze, in the other backend's words", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            for path in r.under(&w.cfg("freeze_config")) {
                let name = path.rsplit('.').next().unwrap_or_default();
                if name.ends_with("_tower") {
                    f.at(format!("Megatron does not know `{name}`"), &[&path])
                        .help("its names are freeze_language_model, freeze_vision_model, freeze_vision_projection");
                }
            }
        }
    }),
    error("BACK-22", "not-a-choice", "a plan that is no import path", |r, f| {
        for w in torch(r) {
            let path = w.cfg("custom_parallel_plan");
            if let Some(plan) =
                r.text(&path).filter(|p| !p.value.contains('.') && !p.value.ends_with("_plan"))
            {
                f.found(format!("\"{}\" is no path to import a plan from", plan.value), &[&plan])
                    .help(format!("`{path}: my_package.my_module.my_plan`, or null"));
            }
        }
    }),
    error("BACK-23", "not-a-choice", "an unknown style in a plan", |r, f| {
        for w in torch(r) {
            let known = [
                "colwise",
                "rowwise",
                "colwise_rep",
                "rowwise_rep",
                "colwise_gather_output",
                "sequence_parallel",
            ];
            for path in r.under(&w.cfg("custom_parallel_plan")) {
                f.choice(&path, &known);
            }
        }
    }),
    error("BACK-24", CODE, "sequence parallelism without a plan for it", |r, f| {
        const PLANNED: &[&str] = &["Llama", "Qwen2For", "Qwen3For", "Gemma3"];
        for w in
            r.workers.iter().filter(|w| w.is(Backend::Dtensor) && w.mesh.sp() && w.mesh.tp() > 1)
        {
            let class = class(w);
            let planned =
                PLANNED.iter().any(|p| class.starts_with(p)) || class.starts_with("NemotronH");
            if !class.is_empty() && !planned && !r.has(&w.cfg("custom_parallel_plan")) {
                f.found(
                    format!(
                        "{class} has no plan with sequence parallelism on the first DTensor worker"
                    ),
                    &[&w.mesh.sp, &w.backend],
                )
                .help(format!("`{}: false`", w.cfg("sequence_parallel")));
            }
        }
    }),
    error("BACK-26", CODE, "Nemotron-H on the first worker", |r, f| {
        for w in
            r.workers.iter().filter(|w| w.is(Backend::Dtensor) && class(w).starts_with("NemotronH"))
        {
            if w.mesh.sp() && w.mesh.tp() > 1 {
                f.found(
                    "Nemotron-H has no sequence parallelism on the first DTensor worker",
                    &[&w.mesh.sp],
                )
                .help(format!("`{}: false`", w.cfg("sequence_parallel")));
            }
            if r.has(&w.cfg("custom_parallel_plan")) {
                f.at(
                    "Nemotron-H takes no plan of your own on the first DTensor worker",
                    &[&w.cfg("custom_parallel_plan")],
                )
                .help(format!("`{}: null`", w.cfg("custom_parallel_plan")));
            }
        }
    }),
    error("BACK-31", CODE, "Megatron with context parallelism and no packing", |r, f| {
        for w in r
            .workers
            .iter()
            .filter(|w| w.is(Backend::Megatron) && w.mesh.cp() > 1 && w.role != Role::Scorer)
        {
            if !w.packs() {
                f.found(
                    "Megatron needs sequence packing for context parallelism",
                    &[&w.mesh.cp, &w.packing],
                )
                .help(format!("`{}: true`", w.at("sequence_packing.enabled")));
            }
        }
    }),
    error("BACK-32", CODE, "fused log-probs with context parallelism", |r, f| {
        for w in fused(r).filter(|w| w.mesh.cp() > 1) {
            f.found(
                "fused log-probs do not go with context parallelism",
                &[&r.flag(&w.cfg(FUSED)), &w.mesh.cp],
            )
            .help(format!("`{}: false`", w.cfg(FUSED)));
        }
    }),
    error("BACK-33", CODE, "fused log-probs with packing", |r, f| {
        for w in fused(r).filter(|w| w.packs()) {
            f.found(
                "fused log-probs do not go with packing",
                &[&r.flag(&w.cfg(FUSED)), &w.packing],
            )
            .help(format!("`{}: false`", w.at("sequence_packing.enabled")));
        }
    }),
    error("BACK-34", CODE, "fused log-probs with filtered sampling", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.filters()) else { return };
        for w in fused(r) {
            f.found(
                "fused log-probs know the whole vocabulary only",
                &[&r.flag(&w.cfg(FUSED)), &g.top_p, &g.top_k],
            )
            .help(format!("`{}: false`", w.cfg(FUSED)));
        }
    }),
    error("BACK-35", CODE, "fused log-probs with overlapped gathers", |r, f| {
        for w in fused(r) {
            let path = w.cfg("distributed_data_parallel_config.overlap_param_gather");
            if r.on(&path) {
                f.at("fused log-probs do not go with overlapped gathers", &[&path, &w.cfg(FUSED)])
                    .help(format!("`{path}: false`"));
            }
        }
    }),
    warning("BACK-36", "setting-has-no-effect", "fused log-probs with DTensor", |r, f| {
        for w in torch(r) {
            let path = w.at(&format!("megatron_cfg.{FUSED}"));
            if r.on(&path) {
                f.at("DTensor has no fused log-probs", &[&path, &w.at("dtensor_cfg.enabled")])
                    .help(format!("`{path}: false`"));
            }
        }
    }),
    error("BACK-56", CODE, "cross-tokenizer distillation without Automodel", |r, f| {
        for w in r.workers.iter().filter(|w| r.is(Algorithm::CrossTokenizer) && w.backend.is_some())
        {
            if !w.is(Backend::Automodel) {
                f.found("cross-tokenizer distillation runs on Automodel only", &[&w.backend])
                    .help(format!("`{}: true` with `_v2: true`", w.at("dtensor_cfg.enabled")));
            }
        }
    }),
    error("BACK-57", CODE, "distillation with sequence parallelism and packing", |r, f| {
        for w in torch(r).filter(|w| r.is(Algorithm::Distillation) && w.mesh.sp() && w.packs()) {
            f.found(
                "distillation on DTensor cannot pack with sequence parallelism",
                &[&w.mesh.sp, &w.packing],
            )
            .help(format!("`{}: false`", w.cfg("sequence_parallel")));
        }
    }),
    error("BACK-58", CODE, "a reward model with context parallelism", |r, f| {
        for w in torch(r).filter(|w| r.is(Algorithm::Reward) && w.mesh.cp() > 1) {
            f.found("reward models are trained without context parallelism", &[&w.mesh.cp])
                .help(format!("`{}: 1`", w.cfg("context_parallel_size")));
        }
    }),
    error("BACK-59", CODE, "pairs that are packed", |r, f| {
        let Some(w) = r.policy().filter(|_| r.is(Algorithm::Dpo)) else { return };
        if w.packs() {
            f.found("pairs cannot be packed", &[&w.packing])
                .help(format!("`{}: false`", w.at("sequence_packing.enabled")));
        }
        if w.is_dynamic() {
            f.found("pairs cannot be batched by tokens", &[&w.dynamic])
                .help(format!("`{}: false`", w.at("dynamic_batching.enabled")));
        }
    }),
    error("BACK-60", CODE, "what a critic cannot have", critic),
    error("BACK-61", CODE, "a Megatron critic", |r, f| {
        for w in r.workers.iter().filter(|w| w.role == Role::Critic && w.is(Backend::Megatron)) {
            if let Some(vpp) = w.mesh.vpp.as_ref().filter(|v| v.value > 1) {
                f.found("a critic has no pieces of pipeline stages", &[vpp])
                    .help(format!("`{}: null`", vpp.name));
            }
        }
    }),
    error("BACK-63", CODE, "a fused loss of packed values", |r, f| {
        for w in r.workers.iter().filter(|w| w.role == Role::Critic) {
            let path = w.at("sequence_packing.fuse_loss");
            if r.on(&path) {
                f.at("a critic's loss is not fused", &[&path]).help(format!("`{path}: false`"));
            }
        }
    }),
    note("BACK-66", "worth-knowing", "conversion on several nodes", |r, f| {
        let nodes = r.cluster.nodes.as_ref().filter(|n| n.value > 1);
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.role == Role::Policy) {
            let path = w.cfg("force_reconvert_from_hf");
            if let (Some(nodes), true) = (nodes, r.on(&path)) {
                f.found(
                    "the model is converted anew at each start, where all nodes must see it",
                    &[&r.flag(&path), nodes],
                )
                .help("NRL_MEGATRON_CHECKPOINT_DIR on shared storage");
            }
        }
    }),
    warning("BACK-69", "setting-has-no-effect", "Megatron weights for DTensor", |r, f| {
        let path = "checkpointing.pretrained_checkpoint";
        if let Some(w) = r.policy().filter(|w| w.is_torch() && r.has(path)) {
            f.at(
                "DTensor starts from the Hugging Face model",
                &[path, &w.at("dtensor_cfg.enabled")],
            )
            .help("train with Megatron, or remove it");
        }
    }),
    warning("BACK-70", "setting-has-no-effect", "overrides of a converted model", |r, f| {
        let (path, over) =
            ("checkpointing.pretrained_checkpoint.format", "policy.hf_config_overrides");
        if r.says(path, "megatron_bridge")
            && r.node(over).is_some_and(|n| n.entries().next().is_some())
        {
            f.at("a converted model keeps its own config", &[over, path])
                .help(format!("`{over}: {{}}`"));
        }
    }),
    error("BACK-68", "not-a-choice", "unknown format of weights", |r, f| {
        for base in ["checkpointing.pretrained_checkpoint", "policy.pretrained_checkpoint"] {
            f.choice(&format!("{base}.format"), &["megatron_bridge", "megatron_lm"]);
            if r.has(base) && !r.has(&format!("{base}.path")) {
                f.at("it is not said where the weights are", &[&format!("{base}.path")])
                    .help(format!("`{base}.path: DIR`"));
            }
        }
    }),
    error("BACK-55", CODE, "quantized training with DTensor", |r, f| {
        for w in torch(r).filter(|w| w.role == Role::Policy && r.has(&w.at("quant_cfg"))) {
            f.at(
                "only Megatron trains quantized",
                &[&w.at("quant_cfg"), &w.at("dtensor_cfg.enabled")],
            )
            .help(format!("`{}: null`", w.at("quant_cfg")));
        }
    }),
    error("BACK-54", CODE, "quantized training with fused gradients", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && r.has(&w.at("quant_cfg"))) {
            let path = w.cfg("gradient_accumulation_fusion");
            if r.on(&path) {
                f.at(
                    "quantized training does not fuse the accumulation of gradients",
                    &[&path, &w.at("quant_cfg")],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
];

const FUSED: &str = "use_fused_linear_logprobs";

/// What Automodel can freeze.
const TORCH_FREEZE: &[&str] =
    &["freeze_vision_tower", "freeze_audio_tower", "freeze_language_model"];

fn torch(r: &Recipe) -> impl Iterator<Item = &Worker> {
    r.workers.iter().filter(|w| w.is_torch())
}

fn fused(r: &Recipe) -> impl Iterator<Item = &Worker> {
    r.workers.iter().filter(|w| w.is(Backend::Megatron) && r.on(&w.cfg(FUSED)))
}

/// The class of a worker's model.
fn class(w: &Worker) -> &str {
    w.model.as_ref().map_or("", |m| &m.architecture)
}

/// Whether images, video or sound are trained on.
pub fn sees(r: &Recipe, w: &Worker) -> bool {
    let model = w.model.as_ref().is_some_and(|m| m.multimodal);
    let data = ["data.default.processor", "data.train.processor", "data.processor"];
    let images = data.iter().any(|p| r.says(p, "vlm_hf_data_processor"));
    r.on(&w.at("is_vlm")) || (model && images)
}

fn family(r: &Recipe, f: &mut Findings<'_>, prefix: &str, name: &str) {
    for w in torch(r).filter(|w| w.mesh.cp() > 1 && class(w).starts_with(prefix)) {
        f.found(
            format!("{name} cannot be trained with context parallelism on DTensor"),
            &[&w.mesh.cp, &w.backend],
        )
        .help(format!("`{}: 1`", w.cfg("context_parallel_size")));
    }
}

/// Where a scaling of positions names its kind, and whether it is YaRN.
fn yarn(r: &Recipe, w: &Worker) -> (String, bool) {
    let base = w.at("hf_config_overrides.rope_scaling");
    let path = ["rope_type", "type"].map(|n| format!("{base}.{n}")).into_iter().find(|p| r.has(p));
    let path = path.unwrap_or(base);
    let is = r.says(&path, "yarn");
    (path, is)
}

fn freeze(r: &Recipe, f: &mut Findings<'_>, section: &str, known: &[&str]) {
    for path in r.under(section) {
        let name = path.rsplit('.').next().unwrap_or_default().to_string();
        if !known.contains(&name.as_str()) {
            let near = nrl_base::did_you_mean(&name, known.iter().copied());
            f.at(format!("nothing is called `{name}` here: it would not be frozen"), &[&path])
                .help(near.unwrap_or_else(|| format!("one of {}", known.join(", "))));
        }
    }
}

fn critic(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| w.role == Role::Critic && w.is_torch()) {
        if w.is(Backend::Dtensor) {
            f.found("a critic needs the Automodel worker", &[&w.backend])
                .help(format!("`{}: true`", w.cfg("_v2")));
        }
        if !r.says(&w.at("reward_model_cfg.reward_model_type"), "regression")
            || !r.on(&w.at("reward_model_cfg.enabled"))
        {
            f.at(
                "a critic is a model with a regression head",
                &[&w.at("reward_model_cfg.reward_model_type"), &w.at("reward_model_cfg.enabled")],
            )
            .help(format!(
                "`{}: {{enabled: true, reward_model_type: regression}}`",
                w.at("reward_model_cfg")
            ));
        }
        for (flag, fact, name) in [
            (w.packs(), &w.packing, "sequence_packing.enabled"),
            (w.is_dynamic(), &w.dynamic, "dynamic_batching.enabled"),
        ] {
            if flag {
                f.found("a critic on DTensor is trained in plain batches", &[fact])
                    .help(format!("`{}: false`", w.at(name)));
            }
        }
        if w.mesh.cp() > 1 {
            f.found("a critic on DTensor has no context parallelism", &[&w.mesh.cp])
                .severity(Severity::Error)
                .help(format!("`{}: 1`", w.cfg("context_parallel_size")));
        }
    }
}
