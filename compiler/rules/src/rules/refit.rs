//! How weights get from training to generation.

use crate::recipe::{Algorithm, Backend, Engine, Generation, Recipe, Worker};
use crate::rule::{Findings, Rule, error, warning};

const CODE: &str = "refit-cannot";

/// Rules of refits.
pub const RULES: &[Rule] = &[
    error("REFIT-01", "not-a-choice", "an unknown way to send weights", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let path = g.at("refit_transport");
        if r.text(&path).is_some_and(|t| !t.value.contains(':')) {
            f.choice(&path, &["nccl_reshard", "vllm_s3_sparse", "vllm_zmq_sparse", "nixl"]);
        }
    }),
    error("REFIT-02", CODE, "a way to send weights that is vLLM's", |r, f| {
        let Some(g) =
            r.generation.as_ref().filter(|g| !g.is(Engine::Vllm) && !g.is(Engine::Dynamo))
        else {
            return;
        };
        let path = g.at("refit_transport");
        if r.has(&path) && g.engine.is_some() {
            f.at("only vLLM can choose how weights are sent", &[&path, &g.at("backend")])
                .help(format!("`{path}: null`"));
        }
    }),
    error(
        "REFIT-03",
        "needs-another-setting",
        "a transport of one's own without options",
        |r, f| {
            let Some((g, way)) = transport(r) else { return };
            let section = g.at("refit_cfg");
            let given = r.node(&section).is_some_and(|n| n.child(&way).is_some());
            if way.contains(':') && !given {
                f.at(
                    "a transport of your own needs its options",
                    &[&g.at("refit_transport"), &section],
                )
                .help(format!("`{section}: {{\"{way}\": {{}}}}`"));
            }
        },
    ),
    error("REFIT-04", CODE, "resetting encoders with a transport", |r, f| {
        let Some((g, _)) = transport(r) else { return };
        let path = g.at("vllm_cfg.reset_encoder_cache_after_weight_update");
        if r.on(&path) {
            f.at("encoders are not reset with a transport", &[&path, &g.at("refit_transport")])
                .help(format!("`{path}: false`"));
        }
    }),
    error("REFIT-05", CODE, "what direct resharding cannot do", reshard),
    error("REFIT-06", CODE, "what sparse updates cannot do", |r, f| {
        let Some((g, way)) = transport(r).filter(|(_, way)| way.ends_with("_sparse")) else {
            return;
        };
        let path = g.at("refit_transport");
        if !g.apart() {
            f.found(
                format!("{way} needs GPUs of its own for generation"),
                &[&r.text(&path), &g.colocated],
            )
            .help(format!("`{}: false`", g.at("colocated.enabled")));
        }
        if let Some(w) = r.policy().filter(|w| w.is_torch()) {
            f.found(format!("{way} needs a Megatron policy"), &[&r.text(&path), &w.backend])
                .help("train with Megatron");
        }
        if r.says(&g.at("vllm_cfg.precision"), "fp8") {
            f.at(format!("{way} sends no FP8"), &[&path, &g.at("vllm_cfg.precision")])
                .help(format!("`{}: bfloat16`", g.at("vllm_cfg.precision")));
        }
        if r.has(&g.at("quant_cfg")) {
            f.at(format!("{way} sends no quantized weights"), &[&path, &g.at("quant_cfg")])
                .help(format!("`{}: null`", g.at("quant_cfg")));
        }
    }),
    error(
        "REFIT-07",
        "needs-another-setting",
        "sparse updates through a bucket without name",
        |r, f| {
            let Some((g, _)) = transport(r).filter(|(_, way)| way == "vllm_s3_sparse") else {
                return;
            };
            let path = g.at("refit_cfg.sparse.s3_bucket");
            if !r.has(&path) {
                f.at(
                    "it is not said through which bucket weights go",
                    &[&path, &g.at("refit_transport")],
                )
                .help(format!("`{path}: NAME`"));
            }
        },
    ),
    error("REFIT-08, REFIT-09", CODE, "a transport outside GRPO", |r, f| {
        let Some((g, way)) = transport(r) else { return };
        let sparse = way.ends_with("_sparse");
        if r.is(Algorithm::Ppo) || (sparse && r.is(Algorithm::Distillation)) {
            f.at(format!("{way} is for GRPO"), &[&g.at("refit_transport")])
                .help(format!("`{}: null`", g.at("refit_transport")));
        }
    }),
    error("REFIT-10", CODE, "nixl on the GPUs of training", |r, f| {
        let Some((g, _)) = transport(r).filter(|(g, way)| way == "nixl" && !g.apart()) else {
            return;
        };
        f.found(
            "nixl sends weights to other GPUs",
            &[&r.text(&g.at("refit_transport")), &g.colocated],
        )
        .help(format!("`{}: null`", g.at("refit_transport")));
    }),
    error("REFIT-11", CODE, "nixl with more GPUs that generate than train", |r, f| {
        let Some((g, _)) = transport(r).filter(|(_, way)| way == "nixl") else { return };
        let train = r.policy().and_then(|w| w.gpus.as_ref());
        if let (Some(train), Some(own)) = (train, &g.gpus)
            && train.value < own.value
        {
            f.found(
                format!(
                    "nixl needs as many GPUs that train ({}) as generate ({})",
                    train.value, own.value
                ),
                &[own, train],
            )
            .help("give generation fewer nodes");
        }
    }),
    error("REFIT-12", "out-of-range", "buckets of nixl", |r, f| {
        let Some((g, _)) = transport(r).filter(|(_, way)| way == "nixl") else { return };
        let path = g.at("refit_cfg.nixl.update_weights_bucket_memory_ratio");
        if let Some(x) = r.num(&path).filter(|x| !(x.value > 0.0 && x.value < 1.0)) {
            f.found(format!("buckets cannot take {} of the memory", x.value), &[&x])
                .help(format!("`{path}: 0.05`"));
        }
    }),
    error("REFIT-13", CODE, "experts sent in parts", |r, f| {
        let Some((g, _)) = transport(r).filter(|(_, way)| way == "nixl") else { return };
        let path = g.at("refit_cfg.nixl.shard_expert_weights");
        if !r.on(&path) {
            return;
        }
        if r.says(&g.at("vllm_cfg.precision"), "fp8") {
            f.at("experts in FP8 are sent whole", &[&path, &g.at("vllm_cfg.precision")])
                .help(format!("`{path}: false`"));
        }
        if r.on(&g.at("vllm_kwargs.enable_eplb")) {
            f.at("experts that move are sent whole", &[&path, &g.at("vllm_kwargs.enable_eplb")])
                .help(format!("`{path}: false`"));
        }
    }),
    error("REFIT-14", "out-of-range", "no buffer for weights", |r, f| {
        if let Some(x) = r.num("policy.refit_buffer_size_gb").filter(|x| x.value <= 0.0) {
            f.found(format!("weights do not go through a buffer of {} GB", x.value), &[&x])
                .help(format!("`{}: 4`, or null", x.name));
        }
    }),
    error("REFIT-15", CODE, "quantized weights on the GPU", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let path = g.at("real_quant_export_cpu_offload");
        if r.off(&path) && (g.apart() || r.has(&g.at("refit_transport"))) {
            f.at(
                "quantized weights stay on the GPU only on the way to an engine on the same GPUs",
                &[&path, &g.at("colocated.enabled")],
            )
            .help(format!("`{path}: true`"));
        }
    }),
    error("REFIT-16", CODE, "quantized here and not there", |r, f| {
        let Some(g) = &r.generation else { return };
        let (on, quant) = (g.at("real_quant"), g.at("quant_cfg"));
        if r.on(&on) && !r.has(&quant) {
            f.at("it is not said how weights are quantized", &[&quant, &on])
                .help(format!("set `{quant}`"));
        }
        if r.on(&on) && r.has(&quant) && !r.has("policy.quant_cfg") {
            f.at("generation is quantized and training is not", &["policy.quant_cfg", &quant])
                .help(format!("`policy.quant_cfg: ${{{quant}}}`"));
        }
    }),
    error("REFIT-17", CODE, "quantized experts with expert parallelism", |r, f| {
        let Some(g) =
            r.generation.as_ref().filter(|g| g.is(Engine::Vllm) && r.on(&g.at("real_quant")))
        else {
            return;
        };
        if let Some(ep) = g.ep.as_ref().filter(|e| e.value > 1) {
            f.found(
                "quantized experts are not spread by vLLM",
                &[ep, &r.flag(&g.at("real_quant"))],
            )
            .help(format!("`{}: 1`", ep.name));
        }
    }),
    warning(
        "PREC-16",
        "setting-has-no-effect",
        "layers kept in bf16 beside none in FP8",
        |r, f| {
            let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
            let fp8 = g.precision.as_ref().is_some_and(|p| p.value == "fp8");
            for name in ["num_first_layers_in_bf16", "num_last_layers_in_bf16"] {
                let path = g.at(&format!("vllm_cfg.{name}"));
                if let Some(n) = r.int(&path).filter(|n| n.value > 0 && !fp8) {
                    f.found("all layers are in bf16", &[&n, &g.precision])
                        .help(format!("`{path}: 0`"));
                }
            }
        },
    ),
];

/// The way that weights are sent by vLLM, if it is chosen.
fn transport(r: &Recipe) -> Option<(&Generation, String)> {
    let g = r.generation.as_ref().filter(|g| g.is(Engine::Vllm))?;
    Some((g, r.text(&g.at("refit_transport"))?.value))
}

fn reshard(r: &Recipe, f: &mut Findings<'_>) {
    let Some((g, _)) = transport(r).filter(|(_, way)| way == "nccl_reshard") else { return };
    let path = g.at("refit_transport");
    if !g.apart() {
        f.found("weights are resharded to other GPUs", &[&r.text(&path), &g.colocated])
            .help(format!("`{path}: null`"));
    }
    for name in ["vllm_kwargs.enable_eplb", "real_quant"] {
        if r.on(&g.at(name)) {
            f.at(format!("direct resharding does not go with `{name}`"), &[&g.at(name), &path])
                .help(format!("`{}: false`", g.at(name)));
        }
    }
    if let Some(pp) = g.pp.as_ref().filter(|p| p.value > 1) {
        f.found("weights are not resharded to pipeline stages of vLLM", &[pp, &r.text(&path)])
            .help(format!("`{}: 1`", pp.name));
    }
    let tp = g.tp.as_ref().map_or(1, |t| t.value);
    if let Some(ep) = g.ep.as_ref().filter(|e| e.value != 1 && e.value != tp) {
        f.found("weights are resharded to experts over all of tp, or none", &[ep, &g.tp])
            .help(format!("`{}: {tp}`", ep.name));
    }
    if let Some(w) = r.policy() {
        trainer(r, f, w, &path);
    }
}

fn trainer(r: &Recipe, f: &mut Findings<'_>, w: &Worker, path: &str) {
    if !w.is(Backend::Megatron) {
        f.found("weights are resharded from Megatron only", &[&r.text(path), &w.backend])
            .help(format!("`{path}: null`"));
        return;
    }
    for size in [&w.mesh.etp, &w.mesh.vpp].into_iter().flatten().filter(|s| s.value > 1) {
        f.found(
            format!("direct resharding does not go with `{}`", size.name),
            &[size, &r.text(path)],
        )
        .help(format!("`{}: 1`", size.name));
    }
    for name in [
        "pipeline_model_parallel_layout",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    ] {
        let own = w.cfg(name);
        if r.has(&own) && !r.off(&own) {
            f.at(format!("direct resharding does not go with `{name}`"), &[&own, path])
                .help(format!("`{own}: null`"));
        }
    }
}
