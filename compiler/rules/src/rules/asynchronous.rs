//! Training while generating: what it needs, and what it excludes.

use crate::recipe::{Algorithm, Backend, Engine, Recipe, Role};
use crate::rule::{Findings, Rule, error, note, warning};

const CODE: &str = "async-cannot";

/// Rules of asynchronous training.
pub const RULES: &[Rule] = &[
    error("ASYNC-01", CODE, "dynamic sampling", |r, f| {
        without(r, f, "use_dynamic_sampling", "dynamic sampling")
    }),
    error("ASYNC-02", CODE, "scaled rewards", |r, f| {
        without(r, f, "reward_scaling.enabled", "scaled rewards")
    }),
    error("ASYNC-03", CODE, "shaped rewards", |r, f| {
        without(r, f, "reward_shaping.enabled", "shaped rewards")
    }),
    error("ASYNC-04", CODE, "several data loaders", |r, f| {
        if let Some(on) = switch(r).filter(|_| r.on("data.use_multiple_dataloader")) {
            f.at(
                "asynchronous training does not go with several data loaders",
                &["data.use_multiple_dataloader", &on],
            )
            .help("`data.use_multiple_dataloader: false`");
        }
    }),
    error("ASYNC-05", CODE, "an engine that cannot", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.overlaps()) else { return };
        let may: &[Engine] = match r.is(Algorithm::Ppo) {
            true => &[Engine::Vllm],
            false => &[Engine::Vllm, Engine::Megatron, Engine::Trtllm, Engine::Dynamo],
        };
        if let Some(engine) = g.engine.as_ref().filter(|e| !may.contains(&e.value)) {
            let names: Vec<String> = may.iter().map(Engine::to_string).collect();
            let text = format!("asynchronous training cannot use the engine {}", engine.value);
            f.found(text, &[engine, &r.overlap.on]).help(format!("one of {}", names.join(", ")));
        }
    }),
    error("ASYNC-06", CODE, "the engine is not asynchronous", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.overlaps()) else { return };
        let section = match g.engine.as_ref().map(|e| e.value) {
            Some(Engine::Vllm) => "vllm_cfg",
            Some(Engine::Trtllm) => "trtllm_cfg",
            _ => return,
        };
        let path = g.at(&format!("{section}.async_engine"));
        if !r.on(&path) {
            f.at(
                "asynchronous training needs the async engine",
                &[&path, &switch(r).unwrap_or_default()],
            )
            .help(format!("`{path}: true`"));
        }
    }),
    error("ASYNC-07", "uncorrected-off-policy", "old samples without correction", |r, f| {
        let corrected = r.loss.corrected.as_ref().is_some_and(|c| c.value);
        if r.overlaps() && !corrected && r.is_rl() {
            let path = "loss_fn.use_importance_sampling_correction";
            let age = r.overlap.max_age.as_ref().map_or(1, |a| a.value);
            f.at(
                format!("samples may be {age} steps old and nothing in the loss corrects for it"),
                &[path, &switch(r).unwrap_or_default()],
            )
            .help(format!("`{path}: true`"));
        }
    }),
    error("ASYNC-08", CODE, "generation on the GPUs of training", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| r.overlaps() && !g.apart()) else { return };
        if !g.is(Engine::Megatron) {
            f.found(
                "asynchronous training needs GPUs of its own for generation",
                &[&g.colocated, &r.overlap.on],
            )
            .help(format!(
                "`{}: false`, and say which resources generate",
                g.at("colocated.enabled")
            ));
        }
    }),
    warning(
        "ASYNC-09",
        "setting-has-no-effect",
        "old samples without weights in flight",
        |r, f| {
            let path = async_path(r, "in_flight_weight_updates");
            if let Some(age) = r.overlap.max_age.as_ref().filter(|a| a.value > 1 && r.overlaps())
                && !r.on(&path)
            {
                let text = format!(
                    "an age of {} gains nothing while weights wait for generation to stop",
                    age.value
                );
                f.found(text, &[age, &r.flag(&path)])
                    .help(format!("`{path}: true`, or `{}: 1`", age.name));
            }
        },
    ),
    error("ASYNC-10, BATCH-46", "buffer-cannot-fill", "samples may have no age", |r, f| {
        if let Some(age) = r.overlap.max_age.as_ref().filter(|a| a.value <= 0 && r.overlaps()) {
            f.found(format!("with an age of {} the buffer holds nothing", age.value), &[age])
                .help(format!("`{}: 1`", age.name));
        }
    }),
    note("ASYNC-15", "setting-has-no-effect", "caches are recomputed after no update", |r, f| {
        let path = async_path(r, "recompute_kv_cache_after_weight_updates");
        let vllm = r.generation.as_ref().is_some_and(|g| g.is(Engine::Vllm));
        if r.on(&path) && !r.overlaps() && vllm && switch(r).is_some_and(|on| r.off(&on)) {
            f.at(
                "caches are recomputed in asynchronous training only",
                &[&path, &switch(r).unwrap_or_default()],
            )
            .help(format!("`{path}: false`"));
        }
    }),
    error("ASYNC-17", CODE, "what asynchronous PPO excludes", |r, f| {
        if !r.overlaps() || !r.is(Algorithm::Ppo) {
            return;
        }
        if r.on("loss_fn.force_on_policy_ratio") {
            f.at("asynchronous PPO needs ratios", &["loss_fn.force_on_policy_ratio"])
                .help("`loss_fn.force_on_policy_ratio: false`");
        }
        if r.int("ppo.max_num_epochs").is_some_and(|n| n.value != -1) {
            f.at(
                "asynchronous PPO counts steps, not epochs",
                &["ppo.max_num_epochs", "ppo.async_ppo.enabled"],
            )
            .help("`ppo.max_num_epochs: -1`");
        }
        if r.on("env.should_use_nemo_gym") {
            f.at("asynchronous PPO does not go with NeMo Gym", &["env.should_use_nemo_gym"])
                .help("`env.should_use_nemo_gym: false`");
        }
        let kv = r.text("policy.generation.vllm_cfg.kv_cache_dtype");
        if kv.as_ref().is_some_and(|k| k.value.starts_with("fp8")) {
            f.found("asynchronous PPO does not go with a cache in FP8", &[&kv])
                .help("`policy.generation.vllm_cfg.kv_cache_dtype: auto`");
        }
    }),
    error("ASYNC-14", CODE, "weights in flight with Dynamo", |r, f| {
        let path = async_path(r, "in_flight_weight_updates");
        if let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Dynamo) && r.on(&path)) {
            f.at("Dynamo cannot take weights in flight", &[&path, &g.at("backend")])
                .help(format!("`{path}: false`"));
        }
    }),
    error("ASYNC-36", "not-a-choice", "unknown data plane", |_, f| {
        f.choice("data_plane.impl", &["transfer_queue"]);
        f.choice("data_plane.backend", &["simple", "mooncake_cpu"]);
    }),
    error("GEN-44", CODE, "replayed routes with a data plane", |r, f| {
        let path = "policy.router_replay.enabled";
        if r.on(path) && r.overlaps() && r.on("data_plane.enabled") {
            f.at(
                "routes are not replayed in asynchronous training with a data plane",
                &[path, "data_plane.enabled"],
            )
            .help("`data_plane.enabled: false`");
        }
    }),
    note("GEN-29", "twins-disagree", "TensorRT-LLM and the algorithm disagree", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Trtllm) && r.overlaps()) else {
            return;
        };
        for name in ["in_flight_weight_updates", "recompute_kv_cache_after_weight_updates"] {
            let (own, other) = (g.at(&format!("trtllm_cfg.{name}")), async_path(r, name));
            if r.flag(&own).map(|x| x.value) != r.flag(&other).map(|x| x.value)
                && r.has(&own)
                && r.has(&other)
            {
                f.at(format!("`{own}` and `{other}` disagree"), &[&own, &other])
                    .help(format!("`{own}: ${{{other}}}`"));
            }
        }
    }),
    error("VLM-08", CODE, "images with a synchronous launcher", |r, f| {
        let Some(w) = r.workers.iter().find(|w| w.role == Role::Policy) else { return };
        let vision = r.on("policy.is_vlm")
            || r.text("data.default.processor").is_some_and(|p| p.value == "vlm_hf_data_processor");
        if r.overlaps() && vision && !r.on("env.should_use_nemo_gym") && w.is(Backend::Dtensor) {
            f.found("training with images is synchronous", &[&r.overlap.on])
                .help("turn asynchronous training off");
        }
    }),
];

/// Path of a setting of asynchronous training.
fn async_path(r: &Recipe, name: &str) -> String {
    let section = r.section().unwrap_or("grpo");
    format!("{section}.async_{section}.{name}")
}

/// Path of the switch of asynchronous training, if there can be one.
fn switch(r: &Recipe) -> Option<String> {
    r.is_rl().then(|| async_path(r, "enabled")).filter(|_| r.overlap.on.is_some())
}

fn without(r: &Recipe, f: &mut Findings<'_>, name: &str, what: &str) {
    let Some(section) = r.section().filter(|_| r.overlaps()) else { return };
    let path = format!("{section}.{name}");
    if r.on(&path) {
        f.at(
            format!("asynchronous training does not go with {what}"),
            &[&path, &async_path(r, "enabled")],
        )
        .help(format!("`{path}: false`"));
    }
}
