//! Training steered by a single controller (`async_rl`).

use crate::recipe::{Algorithm, Engine, Fact, Recipe};
use crate::rule::{Findings, Rule, error, warning};

const CODE: &str = "async-cannot";
const LATE: &str = "deadlines-disagree";

/// Rules of the single controller.
pub const RULES: &[Rule] = &[
    error("ASYNC-18", CODE, "two ways to overlap", |r, f| {
        if on(r) && r.has("grpo.async_grpo") {
            f.at(
                "a single controller does not go with `grpo.async_grpo`",
                &["grpo.async_grpo", "async_rl"],
            )
            .help("`grpo.async_grpo: null`");
        }
    }),
    error("ASYNC-19", CODE, "no data plane", |r, f| {
        if on(r) && !r.on("data_plane.enabled") {
            f.at("a single controller needs a data plane", &["data_plane.enabled", "async_rl"])
                .help("`data_plane.enabled: true`");
        }
    }),
    error("ASYNC-20", CODE, "validation", |r, f| {
        if !on(r) {
            return;
        }
        if r.keeping.val_period.as_ref().is_some_and(|p| p.value > 0) {
            f.at("a single controller does not validate", &["grpo.val_period", "async_rl"])
                .help("`grpo.val_period: 0`");
        }
        for path in ["grpo.val_at_start", "grpo.val_at_end"].into_iter().filter(|p| r.on(p)) {
            f.at("a single controller does not validate", &[path, "async_rl"])
                .help(format!("`{path}: false`"));
        }
    }),
    error("ASYNC-21", CODE, "several data loaders", |r, f| {
        if on(r) && r.on("data.use_multiple_dataloader") {
            f.at(
                "a single controller has one data loader",
                &["data.use_multiple_dataloader", "async_rl"],
            )
            .help("`data.use_multiple_dataloader: false`");
        }
    }),
    error("ASYNC-22", CODE, "NeMo Gym with another engine than vLLM", |r, f| {
        let vllm = r.generation.as_ref().is_none_or(|g| g.is(Engine::Vllm));
        if on(r) && r.on("env.should_use_nemo_gym") && !vllm {
            f.at(
                "a single controller runs NeMo Gym with vLLM only",
                &["policy.generation.backend", "async_rl"],
            )
            .help("`policy.generation.backend: vllm`");
        }
    }),
    error(
        "ASYNC-23",
        "uncorrected-off-policy",
        "the readiest samples without correction",
        |r, f| {
            if !on(r) || !r.says("async_rl.sampler.name", "ready_first") {
                return;
            }
            let path = "loss_fn.use_importance_sampling_correction";
            if !r.on(path) {
                f.at(
                    "the readiest samples come first and nothing corrects for their age",
                    &[path, "async_rl.sampler.name"],
                )
                .help(format!("`{path}: true`"));
            }
            if r.on("loss_fn.force_on_policy_ratio") {
                f.at(
                    "samples of any age come first, and the ratio is fixed to one",
                    &["loss_fn.force_on_policy_ratio", "async_rl.sampler.name"],
                )
                .help("`loss_fn.force_on_policy_ratio: false`");
            }
        },
    ),
    warning(
        "ASYNC-24",
        "uncorrected-off-policy",
        "samples of older weights without correction",
        |r, f| {
            let path = "loss_fn.use_importance_sampling_correction";
            let age = lead(r);
            if let Some(age) = age.filter(|a| on(r) && a.value > 0 && !r.on(path))
                && !r.says("async_rl.sampler.name", "ready_first")
            {
                let text = format!(
                    "samples may be {} versions old and nothing in the loss corrects for it",
                    age.value
                );
                f.found(text, &[&age, &r.flag(path)])
                    .help(format!("`{path}: true`, or `{}: 0`", age.name));
            }
        },
    ),
    error("ASYNC-25", "unknown-metric", "checkpoints by validation, which does not run", |r, f| {
        let Some(metric) = r.keeping.metric.as_ref().filter(|_| on(r)) else { return };
        if !metric.value.starts_with("train:") && r.on("checkpointing.enabled") {
            f.found(
                format!("checkpoints are kept by `{}`, but nothing is validated", metric.value),
                &[metric],
            )
            .help(format!("`{}: \"train:reward\"`", metric.name));
        }
    }),
    error(
        "ASYNC-26",
        "options-exclude-each-other",
        "a divergence whose log-probs are skipped",
        |r, f| {
            let skip = "grpo.skip_reference_policy_logprobs_calculation";
            if on(r) && r.on(skip) && r.loss.kl.as_ref().is_some_and(|kl| kl.value != 0.0) {
                f.at(
                    "log-probs of the reference are skipped, and the loss weighs them",
                    &[skip, "loss_fn.reference_policy_kl_penalty"],
                )
                .help(format!("`{skip}: false`"));
            }
        },
    ),
    error(
        "BATCH-44",
        "buffer-cannot-fill",
        "a step has fewer groups than streaming waits for",
        |r, f| {
            let (Some(prompts), Some(groups)) =
                (&r.batch.prompts, r.int("async_rl.min_groups_for_streaming_train"))
            else {
                return;
            };
            if on(r) && groups.value > prompts.value {
                let text = format!(
                    "training starts at {} groups, a step has {}",
                    groups.value, prompts.value
                );
                f.found(text, &[&groups, prompts])
                    .help(format!("`{}: {}` or less", groups.name, prompts.value));
            }
        },
    ),
    error(
        "BATCH-45",
        "buffer-cannot-fill",
        "a step waits for more groups than the buffer holds",
        |r, f| {
            let (Some(prompts), Some(size)) =
                (&r.batch.prompts, r.int("async_rl.max_buffered_rollouts"))
            else {
                return;
            };
            let gated = r.text("async_rl.sampler.name").is_none_or(|n| n.value == "in_order");
            let ahead = r.int("async_rl.sampler.max_lookahead_versions").map_or(1, |n| n.value);
            let need = prompts.value * (ahead + 1);
            if on(r) && gated && size.value < need {
                let text = format!(
                    "a step waits for {} groups, the buffer of {} holds no {} versions of them: it would wait for ever",
                    prompts.value,
                    size.value,
                    ahead + 1
                );
                f.found(text, &[&size, prompts]).help(format!(
                    "`{}: {need}` ({} prompts * (lookahead {ahead} + 1))",
                    size.name, prompts.value
                ));
            }
        },
    ),
    warning("ASYNC-33", "buffer-cannot-fill", "prompts in flight", |r, f| {
        let (Some(prompts), Some(flight)) =
            (&r.batch.prompts, r.int("async_rl.max_inflight_prompts"))
        else {
            return;
        };
        if on(r) && flight.value < prompts.value {
            let text = format!(
                "{} prompts in flight are less than the {} of a step",
                flight.value, prompts.value
            );
            f.found(text, &[&flight, prompts])
                .help(format!("`{}: {}`", flight.name, prompts.value));
        }
        if let Some(size) =
            r.int("async_rl.max_buffered_rollouts").filter(|s| on(r) && flight.value > s.value)
        {
            let text =
                format!("{} prompts in flight do not fit a buffer of {}", flight.value, size.value);
            f.found(text, &[&flight, &size]).help(format!("`{}: {}`", flight.name, size.value));
        }
    }),
    error("ASYNC-31", "out-of-range", "a negative age", |r, f| {
        for name in ["max_staleness_versions", "max_lookahead_versions"] {
            if let Some(n) = r.int(&format!("async_rl.sampler.{name}")).filter(|n| n.value < 0) {
                f.found(format!("samples cannot be {} versions old", n.value), &[&n])
                    .help(format!("`{}: 0` or more", n.name));
            }
        }
        f.choice(
            "async_rl.sampler.name",
            &["in_order", "weight_fifo", "windowed", "ready_first", "custom"],
        );
        if r.says("async_rl.sampler.name", "custom")
            && r.text("async_rl.sampler.target").is_none_or(|t| !t.value.contains(':'))
        {
            f.at(
                "a sampler of your own needs a target \"module:Class\"",
                &["async_rl.sampler.target", "async_rl.sampler.name"],
            )
            .help("`async_rl.sampler.target: \"mymodule:MySampler\"`");
        }
    }),
    error("ASYNC-27", LATE, "budgets of dropped prompts", |r, f| {
        let at = |name: &str| format!("async_rl.rollout_failure.{name}");
        for name in [
            "max_replacement_attempts",
            "max_data_attempts_per_prompt",
            "max_infra_attempts_per_prompt",
        ] {
            if let Some(n) = r.int(&at(name)).filter(|n| on(r) && n.value < 1) {
                f.found(format!("{} attempts are none", n.value), &[&n])
                    .help(format!("`{}: 1` or more", n.name));
            }
        }
        let reserve = r.int(&at("replacement_reserve_prompts"));
        if let (Some(n), Some(p)) = (reserve, &r.batch.prompts)
            && on(r)
            && n.value > p.value
        {
            f.found(
                format!("a reserve of {} prompts is more than the {} of a step", n.value, p.value),
                &[&n, p],
            )
            .help(format!("`{}: {}` or less", n.name, p.value));
        }
    }),
    error(
        "ASYNC-28",
        "setting-has-no-effect",
        "deadlines of the rollouts that do not run",
        |r, f| {
            let (native, gym) =
                ("async_rl.rollout_failure.native", "async_rl.rollout_failure.nemo_gym");
            let uses = r.on("env.should_use_nemo_gym");
            let unused = if uses { native } else { gym };
            let given = r.under(unused).into_iter().find(|p| p.ends_with("_timeout_s") && r.has(p));
            if let Some(path) = given.filter(|_| on(r)) {
                f.at(
                    format!("`{unused}` is about rollouts that this recipe does not run"),
                    &[&path, "env.should_use_nemo_gym"],
                )
                .help(format!("`{unused}: null`"));
            }
        },
    ),
    error("ASYNC-29", LATE, "deadlines that cross", deadlines),
    error("ASYNC-30", CODE, "a router for rollouts that need none", |r, f| {
        let path = "async_rl.generation_router.enabled";
        if on(r) && r.on(path) && !r.on("env.should_use_nemo_gym") {
            f.at("requests are routed for NeMo Gym only", &[path, "env.should_use_nemo_gym"])
                .help(format!("`{path}: false`"));
        }
    }),
    error("GEN-46", "needs-another-setting", "a router without servers", |r, f| {
        let (path, http) =
            ("async_rl.generation_router.enabled", "policy.generation.vllm_cfg.expose_http_server");
        if on(r) && r.on(path) && !r.on(http) {
            f.at("a router needs engines with a server", &[http, path])
                .help(format!("`{http}: true`"));
        }
    }),
    error("GEN-36", "engine-cannot", "Megatron generation apart from training", |r, f| {
        if let Some(g) =
            r.generation.as_ref().filter(|g| on(r) && g.is(Engine::Megatron) && g.apart())
        {
            f.found(
                "a single controller keeps Megatron generation on the GPUs of training",
                &[&g.engine, &g.colocated],
            )
            .help(format!("`{}: true`", g.at("colocated.enabled")));
        }
    }),
    error("LOAD-21", "renamed-setting", "names that were retired", |r, f| {
        let names = [
            ("async_rl.watchdog", "async_rl.stall_watchdog"),
            ("async_rl.fleet_health", "async_rl.generation_fleet_health"),
            ("async_rl.policy_router", "async_rl.generation_router"),
        ];
        for (old, new) in names.into_iter().filter(|(old, _)| r.node(old).is_some()) {
            f.at(format!("`{old}` is now `{new}`"), &[old]).help(format!("rename it to `{new}`"));
        }
    }),
];

/// Whether a single controller steers this recipe.
fn on(r: &Recipe) -> bool {
    r.has("async_rl") && r.is(Algorithm::Grpo)
}

/// How many versions old a sample may be.
fn lead(r: &Recipe) -> Option<Fact<i64>> {
    let name = r.text("async_rl.sampler.name").map(|n| n.value);
    match name.as_deref() {
        Some("in_order") | None => r.int("async_rl.sampler.max_lookahead_versions"),
        _ => r.int("async_rl.sampler.max_staleness_versions"),
    }
}

fn deadlines(r: &Recipe, f: &mut Findings<'_>) {
    if !on(r) {
        return;
    }
    let at = |name: &str| r.num(&format!("async_rl.{name}"));
    // Each pair: the first must not be above the second; `strict`: nor equal.
    let pairs = [
        ("rollout_failure.backoff_base_s", "rollout_failure.max_backoff_s", false),
        (
            "generation_fleet_health.probe_timeout_s",
            "generation_fleet_health.probe_interval_s",
            true,
        ),
        ("generation_router.port_range_low", "generation_router.port_range_high", false),
        ("generation_router.connect_timeout_s", "generation_router.backend_timeout_s", false),
        ("stall_watchdog.interval_s", "stall_watchdog.stall_timeout_s", true),
        ("rollout_failure.native.generation_timeout_s", "stall_watchdog.stall_timeout_s", true),
        ("rollout_failure.native.env_timeout_s", "stall_watchdog.stall_timeout_s", true),
        ("rollout_failure.nemo_gym.rollout_timeout_s", "stall_watchdog.stall_timeout_s", true),
        (
            "generation_router.backend_timeout_s",
            "rollout_failure.nemo_gym.rollout_timeout_s",
            false,
        ),
    ];
    for (low, high, strict) in pairs {
        let (Some(low), Some(high)) = (at(low), at(high)) else { continue };
        if low.value > high.value || (strict && low.value == high.value) {
            let word = if strict { "must be below" } else { "must not be above" };
            let text =
                format!("`{}` = {} {word} `{}` = {}", low.name, low.value, high.name, high.value);
            f.found(text, &[&low, &high]).help(format!("`{}` above {}", high.name, low.value));
        }
    }
}
