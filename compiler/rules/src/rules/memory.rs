//! Recomputation, offload, fusions and CUDA graphs of Megatron.

use crate::recipe::{Backend, Fact, Recipe, Worker};
use crate::rule::{Findings, Rule, error, warning};

const CODE: &str = "memory-options";

const MODULES: &[&str] =
    &["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"];
const OFFLOAD: &[&str] = &[
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
];

/// Rules of memory.
pub const RULES: &[Rule] = &[
    error("BACK-37", "not-a-choice", "unknown depth of recomputation", |r, f| {
        for w in megatron(r) {
            f.choice(&w.cfg("recompute_granularity"), &["full", "selective"]);
        }
    }),
    error("BACK-38, MOE-12", CODE, "what to recompute", recompute),
    error("BACK-39", "not-a-choice", "unknown attention", |r, f| {
        for w in megatron(r) {
            f.choice(&w.cfg("attention_backend"), &["flash", "fused", "unfused", "local", "auto"]);
        }
    }),
    error("BACK-40", CODE, "what to offload", offload),
    error("BACK-49", CODE, "CUDA graphs of training", |r, f| {
        for w in megatron(r) {
            let path = w.cfg("cuda_graph_impl");
            f.choice(&path, &["none", "local", "transformer_engine", "full_iteration"]);
            let full = r.on(&w.cfg("activation_checkpointing"))
                && r.text(&w.cfg("recompute_granularity")).is_none_or(|g| g.value == "full");
            let graphs = r.says(&path, "local") || r.says(&path, "transformer_engine");
            if graphs && full {
                f.at(
                    "layers in CUDA graphs cannot be recomputed in full",
                    &[&path, &w.cfg("recompute_granularity"), &w.cfg("activation_checkpointing")],
                )
                .help(format!(
                    "`{}: selective`, or `{path}: none`",
                    w.cfg("recompute_granularity")
                ));
            }
        }
    }),
    warning("BACK-52", CODE, "whole iterations in graphs", |r, f| {
        for w in megatron(r) {
            let check = ["check_for_nan_in_loss_and_grad", "check_for_nan_in_grad"];
            let found = check
                .iter()
                .flat_map(|n| [w.cfg(n), w.cfg(&format!("distributed_data_parallel_config.{n}"))])
                .find(|p| r.on(p));
            if let (Some(path), true) = (found, r.says(&w.cfg("cuda_graph_impl"), "full_iteration"))
            {
                f.at(
                    "a graph of a whole iteration cannot stop at NaN: it is turned off",
                    &[&path, &w.cfg("cuda_graph_impl")],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
    error("BACK-50", CODE, "a fused bias with another activation", |r, f| {
        for w in megatron(r) {
            let (path, name) =
                (w.cfg("bias_activation_fusion"), w.cfg("model_overrides.activation_func"));
            if r.on(&path) && r.says(&name, "squared_relu") {
                f.at("squared ReLU is not fused with its bias", &[&path, &name])
                    .help(format!("`{path}: false`"));
            }
        }
    }),
    warning("BACK-51", "backend-cannot", "fused rotation of latent attention", |r, f| {
        for w in megatron(r) {
            let path = w.cfg("apply_rope_fusion");
            let Some(model) = w.model.as_ref().filter(|m| m.latent_attention) else { continue };
            if r.on(&path) {
                let model = Fact::model("model", model.name.clone(), &model.name);
                f.found(
                    "the fused rotation of Megatron does not fit latent attention",
                    &[&r.flag(&path), &model],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
    error("BACK-53", CODE, "determinism with fusions", |r, f| {
        for w in megatron(r) {
            let (on, fusion) = (
                w.cfg("model_overrides.deterministic_mode"),
                w.cfg("model_overrides.cross_entropy_loss_fusion"),
            );
            if r.on(&on) && r.on(&fusion) {
                f.at("a fused cross entropy is not deterministic", &[&fusion, &on])
                    .help(format!("`{fusion}: false`"));
            }
        }
    }),
    error(
        "BACK-44",
        "options-exclude-each-other",
        "an override of what has a name of its own",
        |r, f| {
            const FIRST: &[&str] = &[
                "tensor_model_parallel_size",
                "pipeline_model_parallel_size",
                "context_parallel_size",
                "expert_model_parallel_size",
                "expert_tensor_parallel_size",
                "num_layers_in_first_pipeline_stage",
                "num_layers_in_last_pipeline_stage",
                "sequence_parallel",
                "pipeline_dtype",
                "recompute_granularity",
                "recompute_modules",
                "apply_rope_fusion",
                "bias_activation_fusion",
                "gradient_accumulation_fusion",
                "attention_backend",
                "transformer_impl",
                "cuda_graph_impl",
                "moe_router_dtype",
                "moe_router_load_balancing_type",
                "moe_router_bias_update_rate",
                "moe_token_dispatcher_type",
                "moe_enable_deepep",
                "moe_shared_expert_overlap",
                "moe_permute_fusion",
                "mtp_num_layers",
            ];
            for w in megatron(r) {
                for path in r.under(&w.cfg("model_overrides")) {
                    let name = path.rsplit('.').next().unwrap_or_default();
                    if FIRST.contains(&name) {
                        f.at(format!("`{name}` has a name of its own"), &[&path, &w.cfg(name)])
                            .help(format!("move it to `{}`", w.cfg(name)));
                    }
                }
            }
        },
    ),
];

fn megatron(r: &Recipe) -> impl Iterator<Item = &Worker> {
    r.workers.iter().filter(|w| w.is(Backend::Megatron))
}

fn recompute(r: &Recipe, f: &mut Findings<'_>) {
    for w in megatron(r) {
        let path = w.cfg("recompute_modules");
        let moe = w.model.as_ref().map(|m| m.is_moe());
        let latent = w.model.as_ref().map(|m| m.latent_attention);
        for module in r.texts(&path) {
            let name = module.value.as_str();
            if !MODULES.contains(&name) {
                let near = nrl_base::did_you_mean(name, MODULES.iter().copied());
                f.found(format!("nothing called `{name}` can be recomputed"), &[&module])
                    .help(near.unwrap_or_else(|| format!("one of {}", MODULES.join(", "))));
            }
            if name == "mla_up_proj" && latent == Some(false) {
                f.found("only latent attention has an `mla_up_proj`", &[&module])
                    .help("remove it from the list");
            }
            if matches!(name, "moe" | "moe_act" | "shared_experts") && moe == Some(false) {
                f.found(format!("a model without experts has no `{name}`"), &[&module])
                    .help("remove it from the list");
            }
            let grouped = w.cfg("moe_grouped_gemm");
            if name == "moe_act" && r.off(&grouped) {
                f.found(
                    "`moe_act` is recomputed with grouped GEMMs only",
                    &[&module, &r.flag(&grouped)],
                )
                .help(format!("`{grouped}: true`"));
            }
            let overlap = w.cfg("moe_shared_expert_overlap");
            if name == "shared_experts" && r.on(&overlap) {
                f.found(
                    "shared experts are not recomputed while they overlap",
                    &[&module, &r.flag(&overlap)],
                )
                .help(format!("`{overlap}: false`"));
            }
        }
    }
}

fn offload(r: &Recipe, f: &mut Findings<'_>) {
    for w in megatron(r) {
        let (on, path) = (w.cfg("fine_grained_activation_offloading"), w.cfg("offload_modules"));
        if !r.on(&on) {
            continue;
        }
        let modules = r.texts(&path);
        if modules.is_empty() {
            f.at("it is not said what to offload", &[&path, &on])
                .help(format!("`{path}: [core_attn, attn_proj]`"));
        }
        let has = |name: &str| modules.iter().any(|m| m.value == name);
        for module in &modules {
            let name = module.value.as_str();
            if !OFFLOAD.contains(&name) {
                let near = nrl_base::did_you_mean(name, OFFLOAD.iter().copied());
                f.found(format!("nothing called `{name}` can be offloaded"), &[module])
                    .help(near.unwrap_or_else(|| format!("one of {}", OFFLOAD.join(", "))));
            }
            let experts = matches!(name, "expert_fc1" | "moe_act" | "fused_group_mlp");
            if experts && w.model.as_ref().is_some_and(|m| !m.is_moe()) {
                f.found(format!("a model without experts has no `{name}`"), &[module])
                    .help("remove it from the list");
            }
            if name == "attn_proj" && !has("core_attn") {
                f.found("`attn_proj` is offloaded together with `core_attn`", &[module])
                    .help("add core_attn");
            }
            if name == "fused_group_mlp" && (has("expert_fc1") || has("moe_act")) {
                f.found("`fused_group_mlp` holds `expert_fc1` and `moe_act` already", &[module])
                    .help("remove those");
            }
        }
    }
}
