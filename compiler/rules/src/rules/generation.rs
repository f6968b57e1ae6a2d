//! Engines and sampling.

use nrl_base::Severity;

use crate::recipe::{Algorithm, Backend, Engine, Fact, Generation, Recipe, Role};
use crate::rule::{Findings, Rule, error, note, warning};
use crate::settings::Value;

const CANNOT: &str = "engine-cannot";
const NEEDS: &str = "needs-another-setting";

/// Rules of generation.
pub const RULES: &[Rule] = &[
    error("GEN-01", "missing-field", "no generation", |r, f| {
        let path = "policy.generation";
        let samples = r.is_rl() || r.is(Algorithm::Distillation);
        if samples && r.node("policy").is_some() && !r.has(path) {
            f.at("an algorithm that learns from samples needs generation", &[path])
                .help("inherit `policy.generation` from a base recipe");
        }
    }),
    error("GEN-02", "not-a-choice", "unknown engine", |r, f| {
        if let Some(g) = &r.generation {
            f.choice(&g.at("backend"), &["vllm", "sglang", "trtllm", "megatron", "dynamo"]);
        }
    }),
    error("GEN-03", "missing-field", "the section of the engine", |r, f| {
        let Some(g) = &r.generation else { return };
        let Some(engine) = &g.engine else { return };
        let section = match engine.value {
            Engine::Vllm | Engine::Dynamo => "vllm_cfg",
            Engine::Sglang => "sglang_cfg",
            Engine::Trtllm => "trtllm_cfg",
            Engine::Megatron => "mcore_generation_config",
        };
        if !r.has(&g.at(section)) {
            f.at(
                format!("the engine {} needs `{section}`", engine.value),
                &[&g.at(section), &g.at("backend")],
            )
            .help("inherit it from a base recipe");
        }
    }),
    error("GEN-04", "bad-sampling", "sampling that means nothing", |r, f| {
        let Some(g) = &r.generation else { return };
        for name in ["top_k", "val_top_k"] {
            if let Some(k) = r.int(&g.at(name)).filter(|k| k.value != -1 && k.value < 1) {
                f.found(format!("`{name}` = {} leaves no token", k.value), &[&k])
                    .help(format!("`{}: null` for all tokens, or 1 and more", k.name));
            }
        }
        for name in ["top_p", "val_top_p"] {
            if let Some(p) = r.num(&g.at(name)).filter(|p| !(p.value > 0.0 && p.value <= 1.0)) {
                f.found(format!("`{name}` = {} is not above 0 and up to 1", p.value), &[&p])
                    .help(format!("`{}: 1.0`", p.name));
            }
        }
        if let Some(t) =
            r.num(&g.at("temperature")).filter(|t| t.value < 0.0 || (t.value == 0.0 && r.is_rl()))
        {
            let text = match t.value == 0.0 {
                true => "at temperature 0 all samples of a group are equal".to_string(),
                false => format!("a temperature cannot be {}", t.value),
            };
            f.found(text, &[&t]).help(format!("`{}: 1.0`", t.name));
        }
        if let Some(n) = g.max_new.as_ref().filter(|n| n.value < 1) {
            f.found(format!("{} new tokens are no answer", n.value), &[n])
                .help(format!("`{}: 512`", n.name));
        }
    }),
    error("GEN-05", "engine-cannot", "validation samples otherwise than training", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.is(Algorithm::Grpo)) else { return };
        if g.is(Engine::Vllm) && r.on("env.should_use_nemo_gym") {
            return;
        }
        for name in ["temperature", "top_p", "top_k"] {
            let (train, val) = (g.at(name), g.at(&format!("val_{name}")));
            if r.node(&val).is_some()
                && r.num(&val).map(|x| x.value) != r.num(&train).map(|x| x.value)
            {
                f.at(
                    "validation samples as training does, unless vLLM serves NeMo Gym",
                    &[&val, &train],
                )
                .help(format!("`{val}: ${{{train}}}`"));
            }
        }
    }),
    error("GEN-06", "engine-cannot", "top-k in validation of NeMo Gym", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.on("env.should_use_nemo_gym")) else {
            return;
        };
        let path = g.at("val_top_k");
        if r.int(&path).is_some_and(|k| k.value > 0) {
            f.at("NeMo Gym takes no top-k", &[&path, "env.should_use_nemo_gym"])
                .help(format!("`{path}: null`"));
        }
    }),
    error("GEN-17", CANNOT, "equal images are sent once", |r, f| {
        let path = "grpo.deduplicate_multimodal_data";
        let vllm = r.generation.as_ref().is_none_or(|g| g.is(Engine::Vllm));
        if r.on(path) && (!vllm || r.on("data_plane.enabled")) {
            f.at(
                "equal images are sent once by vLLM without a data plane only",
                &[path, "data_plane.enabled", "policy.generation.backend"],
            )
            .help(format!("`{path}: false`"));
        }
    }),
    error("GEN-18", NEEDS, "video without its limits", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let (video, limit) =
            (g.at("vllm_cfg.video"), g.at("vllm_kwargs.limit_mm_per_prompt.video"));
        if r.has(&video) && !r.has(&limit) {
            f.at("video needs a limit per prompt", &[&limit, &video])
                .help(format!("`{limit}: {{count: 1, num_frames: 8}}`"));
        }
    }),
    error("GEN-19", NEEDS, "metrics of vLLM without their period", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let (on, every) = (
            g.at("vllm_cfg.enable_vllm_metrics_logger"),
            g.at("vllm_cfg.vllm_metrics_logger_interval"),
        );
        let running = r.on(&on) && g.asynchronous.as_ref().is_some_and(|a| a.value);
        if running && r.num(&every).is_none_or(|n| n.value <= 0.0) {
            f.at("metrics of vLLM need a period above 0", &[&every, &on])
                .help(format!("`{every}: 0.5`"));
        }
    }),
    note("GEN-20", "worth-knowing", "a draft model that is not trained", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let path = g.at("vllm_kwargs.speculative_config");
        if r.has(&path)
            && !r.on("policy.draft.enabled")
            && !r.says(&format!("{path}.method"), "mtp")
            && r.has(&format!("{path}.model"))
        {
            f.at("the draft model stays as it is while the policy trains", &[&path])
                .help("`policy.draft.enabled: true`");
        }
    }),
    error("GEN-21", "backend-cannot", "a draft model beside a DTensor policy", |r, f| {
        for w in r.workers.iter().filter(|w| w.is_torch() && w.role == Role::Policy) {
            let path = w.at("draft.enabled");
            if r.on(&path) {
                f.found(
                    "a draft model is trained beside a Megatron policy only",
                    &[&r.flag(&path), &w.backend],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
    error("GEN-22", "backend-cannot", "a draft model with packing", |r, f| {
        for w in r.workers.iter().filter(|w| w.packs() && w.is(Backend::Megatron)) {
            let path = w.at("draft.enabled");
            if r.on(&path) {
                f.found(
                    "a draft model does not go with sequence packing",
                    &[&w.packing, &r.flag(&path)],
                )
                .help(format!("`{}: false`", w.at("sequence_packing.enabled")));
            }
        }
    }),
    error("GEN-27", CANNOT, "TensorRT-LLM without its async engine", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Trtllm)) else { return };
        if g.asynchronous.as_ref().is_some_and(|a| !a.value) {
            f.found("TensorRT-LLM is always asynchronous", &[&g.asynchronous])
                .help(format!("`{}: true`", g.at("trtllm_cfg.async_engine")));
        }
    }),
    error("GEN-30", NEEDS, "a router elsewhere without its address", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Sglang)) else { return };
        let at = |n: &str| g.at(&format!("sglang_cfg.sglang_router_config.{n}"));
        for name in ["router_ip", "router_port"] {
            if r.on(&at("use_external_router")) && !r.has(&at(name)) {
                f.at(
                    format!("a router of your own needs `{name}`"),
                    &[&at(name), &at("use_external_router")],
                )
                .help(format!("set `{}`", at(name)));
            }
        }
    }),
    error("GEN-31", CANNOT, "SGLang apart from training", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Sglang) && g.apart()) else {
            return;
        };
        f.found("SGLang gets its weights on the GPUs of training only", &[&g.colocated, &g.engine])
            .note("refused at the first refit")
            .help(format!("`{}: true`", g.at("colocated.enabled")));
    }),
    error("GEN-34", CANNOT, "Megatron generation in PPO", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.is(Algorithm::Ppo)) else { return };
        if g.is(Engine::Megatron) || (g.apart() && !g.is(Engine::Vllm)) {
            f.found("PPO cannot generate with this engine here", &[&g.engine, &g.colocated])
                .help(format!("`{}: vllm`", g.at("backend")));
        }
    }),
    error("GEN-35", CANNOT, "Megatron generation apart, in distillation", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| r.is(Algorithm::Distillation) && g.apart())
        else {
            return;
        };
        if g.is(Engine::Megatron) {
            f.found(
                "distillation keeps Megatron generation on the GPUs of training",
                &[&g.engine, &g.colocated],
            )
            .help(format!("`{}: true`", g.at("colocated.enabled")));
        }
    }),
    warning("GEN-37", CANNOT, "a broken way to send weights", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Megatron)) else { return };
        let path = g.at("mcore_generation_config.refit_backend");
        if r.says(&path, "nvshmem") {
            f.at("sending weights by nvshmem is broken at present", &[&path])
                .help(format!("`{path}: nccl`"));
        }
        if r.text(&path).is_some_and(|t| !["nccl", "gloo", "nvshmem"].contains(&t.value.as_str())) {
            f.at("weights are sent by nccl or gloo", &[&path])
                .severity(Severity::Error)
                .help(format!("`{path}: nccl`"));
        }
    }),
    error("GEN-38", "not-a-choice", "what becomes of the cache", |r, f| {
        let Some(g) = &r.generation else { return };
        f.choice(
            &g.at("mcore_generation_config.kv_cache_management_mode"),
            &["persist", "offload"],
        );
    }),
    error(
        "GEN-40, PREC-17",
        CANNOT,
        "experts of the inference-optimized transformer",
        inference_experts,
    ),
    error("GEN-41", CANNOT, "what Dynamo cannot do", dynamo),
    error("GEN-42", CANNOT, "options that Dynamo sets itself", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Dynamo)) else { return };
        for name in [
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "model",
            "served_model_name",
            "load_format",
        ] {
            let path = g.at(&format!("vllm_kwargs.{name}"));
            if r.has(&path) {
                f.at("Dynamo sets this option itself", &[&path]).help(format!("remove `{path}`"));
            }
        }
    }),
    error("GEN-43", CANNOT, "replayed routes", |r, f| {
        let path = "policy.router_replay.enabled";
        let (Some(g), Some(w)) = (&r.generation, r.policy().filter(|_| r.on(path))) else { return };
        if !g.is(Engine::Vllm) {
            f.at("routes are recorded by vLLM only", &[path, &g.at("backend")])
                .help(format!("`{path}: false`"));
        }
        if !w.is(Backend::Megatron) {
            f.found("routes are replayed by Megatron only", &[&r.flag(path), &w.backend])
                .help(format!("`{path}: false`"));
        }
        if let Some(vpp) = w.mesh.vpp.as_ref().filter(|v| v.value > 1) {
            f.found(
                "routes are not replayed with pieces of pipeline stages",
                &[vpp, &r.flag(path)],
            )
            .help(format!("`{}: null`", vpp.name));
        }
    }),
    error("GEN-47", "bad-sampling", "how an evaluation counts", evaluation),
    error("GEN-23", CANNOT, "weights of quantized checkpoints at the engine", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm) && r.is_rl()) else {
            return;
        };
        let Some(model) = r.policy().and_then(|w| w.model.as_ref()) else { return };
        let quantized = model.architecture.starts_with("GptOss")
            || model.architecture.starts_with("Mistral3") && model.name.contains("FP8");
        let path = g.at("vllm_cfg.load_format");
        if let Some(format) = r.text(&path).filter(|t| quantized && t.value != "dummy") {
            let model = Fact::model("model", model.name.clone(), &model.name);
            f.found(
                "the engine takes weights of this model from training only",
                &[&format, &model],
            )
            .help(format!("`{path}: dummy`"));
        }
    }),
    note("GEN-24", "setting-has-no-effect", "a draft of no tokens", |r, f| {
        let path = "policy.generation.vllm_kwargs.speculative_config.num_speculative_tokens";
        if let Some(none) = r.int(path).filter(|n| n.value == 0) {
            f.found("no token is drafted: speculative decoding does nothing", &[&none])
                .help(format!("`{path}: 3`, or leave `speculative_config` out"));
        }
    }),
    note("GEN-48", "stop-tokens-missing", "a list of stop tokens leaves some out", |r, f| {
        let Some(g) = &r.generation else { return };
        let path = g.at("stop_token_ids");
        let Some(node) = r.node(&path).filter(|n| !n.items().is_empty()) else { return };
        let given: Vec<u64> = node
            .items()
            .iter()
            .filter_map(|i| if let Value::Int(n) = i.value { u64::try_from(n).ok() } else { None })
            .collect();
        let Some(model) = r.policy().and_then(|w| w.model.as_ref()) else { return };
        let missing: Vec<String> =
            model.eos.iter().filter(|id| !given.contains(id)).map(u64::to_string).collect();
        if !missing.is_empty() && given.len() == node.items().len() {
            let text = format!(
                "{} ends its answers on {} too, which this list leaves out",
                model.name,
                missing.join(" and ")
            );
            f.at(text, &[&path]).help(format!("add {} to `{path}`", missing.join(", ")));
        }
    }),
    note("GEN-07", "setting-has-no-effect", "turns of environments that take one", |r, f| {
        let turns = r.section().and_then(|s| r.int(&format!("{s}.max_rollout_turns")));
        let names = ["data.default.env_name", "data.train.env_name"].map(|p| r.text(p));
        let single = |n: &Fact<String>| {
            ["math", "math_default", "math_multi_reward"].contains(&n.value.as_str())
        };
        let others = r.under("env").iter().any(|p| r.under(p).iter().any(|c| c.ends_with(".cfg")));
        let one =
            !others && names.iter().flatten().count() > 0 && names.iter().flatten().all(single);
        if let Some(turns) = turns.filter(|t| t.value > 1 && one) {
            f.found(
                format!("these environments end after one turn, not {}", turns.value),
                &[&turns, &names[0]],
            )
            .help(format!("`{}: 1`", turns.name));
        }
    }),
    note("GEN-50", "deadlines-disagree", "very long answers", |r, f| {
        let Some(g) =
            r.generation.as_ref().filter(|g| g.asynchronous.as_ref().is_some_and(|a| a.value))
        else {
            return;
        };
        if let Some(n) = g.max_new.as_ref().filter(|n| n.value >= 131_072) {
            f.found(format!("an answer of {} tokens may take longer than 600 s", n.value), &[n])
                .help("NRL_VLLM_ASYNC_TIMEOUT_SECONDS sets another limit");
        }
    }),
    warning("LOAD-23", "setting-has-no-effect", "overrides of the config at the engine", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let path = g.at("vllm_kwargs.hf_overrides");
        if r.has(&path) {
            f.at("this is replaced by `policy.hf_config_overrides`", &[&path])
                .help("move it to `policy.hf_config_overrides`");
        }
    }),
    error("LOAD-19", "renamed-setting", "the checkpoint engine", |r, f| {
        let path = "policy.generation.checkpoint_engine";
        if r.node(path).is_some() {
            f.at(format!("`{path}` is retired"), &[path]).help(
                "`policy.generation.refit_transport: nixl` and `policy.generation.refit_cfg.nixl`",
            );
        }
    }),
    error("LOAD-20", "renamed-setting", "the async engine of Megatron", |r, f| {
        let path = "policy.generation.mcore_generation_config.async_engine";
        if r.node(path).is_some() {
            f.at(format!("`{path}` is retired: Megatron always generates asynchronously"), &[path])
                .help("remove it");
        }
    }),
    note("LOAD-22", "setting-has-no-effect", "an internal key", |r, f| {
        let path = "policy.generation._pad_token_id";
        if r.node(path).is_some() {
            f.at("the trainer sets this itself", &[path]).help("remove it");
        }
    }),
];

fn inference_experts(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Megatron)) else { return };
    let own = |name: &str| g.at(&format!("mcore_generation_config.{name}"));
    let (impl_own, impl_train) = (own("transformer_impl"), "policy.megatron_cfg.transformer_impl");
    if !r.says(&impl_own, "inference_optimized") && !r.says(impl_train, "inference_optimized") {
        return;
    }
    let moe = r.policy().and_then(|w| w.model.as_ref()).is_some_and(|m| m.is_moe());
    let dtype =
        r.text(&own("moe_router_dtype")).or_else(|| r.text("policy.megatron_cfg.moe_router_dtype"));
    if let Some(dtype) = dtype.filter(|d| moe && d.value != "fp32") {
        f.found("the inference-optimized transformer needs a router in fp32", &[&dtype])
            .help(format!("`{}: fp32`", own("moe_router_dtype")));
    }
    let etp = r
        .int(&own("expert_tensor_parallel_size"))
        .or_else(|| r.int("policy.megatron_cfg.expert_tensor_parallel_size"));
    if let Some(etp) = etp.filter(|e| moe && e.value > 1) {
        f.found("the inference-optimized transformer does not cut experts", &[&etp])
            .help(format!("`{}: 1`", own("expert_tensor_parallel_size")));
    }
    let groups = r.int(&own("moe_router_num_groups"));
    if let Some(groups) = groups.filter(|_| moe) {
        f.found("the inference-optimized transformer has no groups of experts", &[&groups])
            .help(format!("`{}: null`", groups.name));
    }
    let (tp, sp) = (g.tp.as_ref().map_or(1, |t| t.value), own("sequence_parallel"));
    let on = r.flag(&sp).map_or_else(|| r.on("policy.megatron_cfg.sequence_parallel"), |s| s.value);
    if tp > 1 && !on {
        f.found(
            "the inference-optimized transformer with tp needs sequence parallelism",
            &[&g.tp, &r.flag(&sp)],
        )
        .help(format!("`{sp}: true`"));
    }
}

fn dynamo(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Dynamo)) else { return };
    let engine = g.at("backend");
    if !g.apart() {
        f.found("Dynamo needs GPUs of its own", &[&g.colocated, &g.engine])
            .help(format!("`{}: false`", g.at("colocated.enabled")));
    }
    let set = [
        ("refit_transport", "another way to send weights"),
        ("quant_cfg", "quantized rollouts"),
        ("vllm_kwargs.speculative_config", "a draft model"),
        ("vllm_kwargs.quantization", "quantized weights"),
    ];
    for (name, what) in set {
        let path = g.at(name);
        if r.has(&path) {
            f.at(format!("Dynamo does not go with {what}"), &[&path, &engine])
                .help(format!("`{path}: null`"));
        }
    }
    for name in ["real_quant", "vllm_cfg.is_mx"] {
        if r.on(&g.at(name)) {
            f.at(format!("Dynamo does not go with `{name}`"), &[&g.at(name), &engine])
                .help(format!("`{}: false`", g.at(name)));
        }
    }
    let fixed = [
        ("vllm_cfg.precision", "bfloat16"),
        ("vllm_cfg.kv_cache_dtype", "auto"),
        ("vllm_cfg.logprobs_mode", "processed_logprobs"),
    ];
    for (name, value) in fixed {
        let path = g.at(name);
        if r.has(&path) && !r.says(&path, value) {
            f.at(format!("with Dynamo `{name}` is {value}"), &[&path, &engine])
                .help(format!("`{path}: {value}`"));
        }
    }
    for name in ["vllm_cfg.num_first_layers_in_bf16", "vllm_cfg.num_last_layers_in_bf16"] {
        if r.int(&g.at(name)).is_some_and(|n| n.value != 0) {
            f.at("Dynamo has one precision for all layers", &[&g.at(name), &engine])
                .help(format!("`{}: 0`", g.at(name)));
        }
    }
    let stops = r.node(&g.at("stop_strings")).map_or(0, |n| n.items().len());
    if stops > 32 {
        f.at(
            format!("Dynamo takes 32 stop strings, not {stops}"),
            &[&g.at("stop_strings"), &engine],
        )
        .help("give fewer");
    }
}

fn evaluation(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = r.generation.as_ref().filter(|_| r.is(Algorithm::Eval)) else { return };
    if let Some(engine) = g.engine.as_ref().filter(|e| e.value != Engine::Vllm) {
        f.found(format!("evaluation generates with vLLM, not {}", engine.value), &[engine])
            .help(format!("`{}: vllm`", g.at("backend")));
    }
    if let Some(metric) = r.text("eval.metric")
        && !["pass@k", "cons@k"].contains(&metric.value.as_str())
    {
        f.found(
            format!("an evaluation counts pass@k or cons@k, not `{}`", metric.value),
            &[&metric],
        )
        .help("`eval.metric: pass@k`");
    }
    let (k, n) = (r.int("eval.k_value"), r.int("eval.num_tests_per_prompt"));
    if let (Some(k), Some(n)) = (&k, &n)
        && (k.value < 1 || k.value > n.value)
    {
        f.found(format!("k = {} of {} samples per prompt", k.value, n.value), &[k, n])
            .help(format!("`eval.k_value` from 1 to {}", n.value));
    }
    several(f, g, &n);
}

fn several(f: &mut Findings<'_>, g: &Generation, n: &Option<Fact<i64>>) {
    let Some(n) = n.as_ref().filter(|n| n.value > 1) else { return };
    let greedy = g.temperature.as_ref().is_some_and(|t| t.value == 0.0)
        || g.top_k.as_ref().is_some_and(|k| k.value == 1);
    if greedy {
        f.found(
            format!("{} greedy samples are all equal", n.value),
            &[n, &g.temperature, &g.top_k],
        )
        .help(format!("`{}: 1.0`, or one sample", g.at("temperature")));
    }
}
