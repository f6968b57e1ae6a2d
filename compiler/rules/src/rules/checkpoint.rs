//! Checkpoints, logging and the end of a run.

use nrl_base::Severity;

use crate::arithmetic::{multiples, one_of};
use crate::recipe::{Algorithm, Backend, Fact, Recipe};
use crate::rule::{Findings, Rule, error, note, warning};
use crate::rules::batch::validates;

/// Rules of checkpoints.
pub const RULES: &[Rule] = &[
    error("CKPT-01", "unknown-metric", "a metric without its phase", |r, f| {
        let Some(metric) = kept_by(r) else { return };
        if !metric.value.starts_with("val:") && !metric.value.starts_with("train:") {
            let text = format!(
                "checkpoints are kept by `{}`, which says neither `val:` nor `train:`",
                metric.value
            );
            f.found(text, &[metric])
                .note(first_save(r))
                .help(format!("`{}: \"val:{}\"`", metric.name, metric.value));
        }
    }),
    error("CKPT-02", "unknown-metric", "a metric that nobody reports", |r, f| {
        let Some(metric) = kept_by(r) else { return };
        if let Some(name) = metric.value.strip_prefix("train:") {
            return trained(name, metric, f);
        }
        let Some(name) = metric.value.strip_prefix("val:") else { return };
        let pairs = r.is(Algorithm::Dpo) || r.is(Algorithm::Reward);
        let known: &[&str] = match r.algorithm.as_ref().map(|a| a.value) {
            Some(Algorithm::Grpo) => &["accuracy", "avg_length", "pass_k"],
            Some(Algorithm::Ppo | Algorithm::Distillation) => &["accuracy", "avg_length"],
            Some(Algorithm::Sft) => &["val_loss"],
            // One set of metrics per validation set, each with its name.
            Some(Algorithm::Dpo | Algorithm::Reward) => {
                &["validation-default_loss", "validation-default_accuracy"]
            }
            _ => return,
        };
        // Environments of NeMo Gym and named rewards report metrics of their own.
        let own = r.on("env.should_use_nemo_gym")
            || name.contains('/')
            || pairs && name.starts_with("validation-");
        if !known.contains(&name) && !own {
            let near = nrl_base::did_you_mean(name, known.iter().copied());
            let reported: Vec<String> = known.iter().map(|k| format!("val:{k}")).collect();
            f.found(
                format!(
                    "checkpoints are kept by `{}`; this run reports {}",
                    metric.value,
                    reported.join(", ")
                ),
                &[metric],
            )
            .note(first_save(r))
            .help(near.unwrap_or_else(|| format!("`{}: \"{}\"`", metric.name, reported[0])));
        }
    }),
    note("CKPT-03", "checkpoint-not-kept", "saves between validations", saves_between),
    error("CKPT-04", "backend-cannot", "a format that the first worker cannot write", |r, f| {
        let path = "checkpointing.model_save_format";
        if let Some(w) = r.policy().filter(|w| w.is(Backend::Dtensor) && r.has(path) && saves(r)) {
            f.at(
                "the first DTensor worker writes checkpoints in its own format only",
                &[path, &w.cfg("_v2")],
            )
            .note(first_save(r))
            .help(format!("`{path}: null`, or `{}: true`", w.cfg("_v2")));
        }
    }),
    error("CKPT-05", "not-a-choice", "unknown format of checkpoints", |r, f| {
        if saves(r) {
            f.choice("checkpointing.model_save_format", &["torch_save", "safetensors"]);
        }
    }),
    error("CKPT-06", "options-exclude-each-other", "whole files of torch", |r, f| {
        let (whole, format) =
            ("checkpointing.save_consolidated", "checkpointing.model_save_format");
        if r.on(whole) && r.says(format, "torch_save") && saves(r) {
            f.at("checkpoints are put together only as safetensors", &[whole, format])
                .help(format!("`{format}: safetensors`"));
        }
    }),
    error("CKPT-07", "missing-field", "how many checkpoints to keep", |r, f| {
        let path = "checkpointing.keep_top_k";
        if saves(r) && r.node("checkpointing").is_some() && r.node(path).is_none() {
            f.at("it is not said how many checkpoints to keep", &[path])
                .help(format!("`{path}: 3`, or null for all"));
        }
    }),
    warning("CKPT-08", "needs-another-setting", "saves for recovery that are all kept", |r, f| {
        let (period, keep) = ("checkpointing.ft_save_period", "checkpointing.ft_keep_latest_k");
        if r.has(period) && !r.has(keep) && saves(r) {
            f.at("every checkpoint for recovery is kept", &[period, keep])
                .help(format!("`{keep}: 1`"));
        }
    }),
    error("CKPT-09", "bad-duration", "a time that cannot be read", |r, f| {
        let Some(time) = r.text("checkpointing.checkpoint_must_save_by") else { return };
        let parts: Vec<&str> = time.value.split(':').collect();
        let numbers = parts.iter().all(|p| p.trim().parse::<u32>().is_ok());
        if parts.len() != 4 || !numbers {
            f.found(format!("\"{}\" is not days:hours:minutes:seconds", time.value), &[&time])
                .help(format!("`{}: \"00:03:45:00\"` is 3 h 45 min", time.name));
        }
    }),
    error("CKPT-10", "out-of-range", "a save every no steps", |r, f| {
        if let Some(n) = r.keeping.save_period.as_ref().filter(|n| n.value <= 0 && saves(r)) {
            f.found(format!("a save every {} steps", n.value), &[n])
                .help(format!("`{}: 10`", n.name));
        }
    }),
    warning("CKPT-12", "renamed-setting", "checkpoint settings without their prefix", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            for name in [
                "assume_constant_structure",
                "fully_parallel_save_process_group",
                "fully_parallel_load_process_group",
                "fully_parallel_load_exchange_algo",
            ] {
                let (old, new) = (w.cfg(&format!("checkpoint.{name}")), format!("ckpt_{name}"));
                if r.node(&old).is_some() {
                    f.at(format!("nobody reads `{old}`"), &[&old])
                        .help(format!("rename it to `{new}`"));
                }
            }
        }
    }),
    note("CKPT-14", "checkpoint-not-kept", "checkpoints without the optimizer", |r, f| {
        if r.off("checkpointing.save_optimizer") && saves(r) {
            f.at(
                "a run that goes on from such a checkpoint has a fresh optimizer",
                &["checkpointing.save_optimizer"],
            )
            .help("`checkpointing.save_optimizer: true`");
        }
    }),
    note("CKPT-16", "worth-knowing", "checkpoints on one node", |r, f| {
        let (Some(nodes), Some(dir)) = (&r.cluster.nodes, r.text("checkpointing.checkpoint_dir"))
        else {
            return;
        };
        let local = ["/tmp", "/dev/shm", "/var/tmp"].iter().any(|p| dir.value.starts_with(p));
        if nodes.value > 1 && local && saves(r) {
            f.found(
                format!(
                    "each of {} nodes would write its part to a directory of its own",
                    nodes.value
                ),
                &[&dir, nodes],
            )
            .help("a directory that all nodes see");
        }
    }),
    error("CKPT-17", "unknown-metric", "the worst checkpoints would be kept", |r, f| {
        let (Some(metric), Some(higher)) = (kept_by(r), r.flag("checkpointing.higher_is_better"))
        else {
            return;
        };
        let loss = metric.value.ends_with("loss");
        let good = metric.value.ends_with("accuracy")
            || metric.value.ends_with("reward")
            || metric.value.ends_with("pass_k");
        if (loss && higher.value) || (good && !higher.value) {
            f.found(
                format!("checkpoints with the worst `{}` would be kept", metric.value),
                &[&higher, metric],
            )
            .help(format!("`{}: {}`", higher.name, !higher.value));
        }
    }),
    error("CKPT-19", "missing-field", "a logger without its section", |r, f| {
        for name in ["wandb", "tensorboard", "swanlab", "mlflow"] {
            let (flag, section) = (format!("logger.{name}_enabled"), format!("logger.{name}"));
            if r.on(&flag) && r.node(&section).is_none_or(|n| n.is_null()) {
                f.at(format!("{name} is on and has no section"), &[&section, &flag])
                    .help(format!("`{section}: {{}}`, or `{flag}: false`"));
            }
        }
    }),
    error(
        "BACK-62",
        "options-exclude-each-other",
        "a critic's warm-up with constant checkpoints",
        |r, f| {
            let (start, path) = (
                "ppo.policy_training_start_step",
                "policy.megatron_cfg.checkpoint.ckpt_assume_constant_structure",
            );
            let megatron = r.policy().is_some_and(|w| w.is(Backend::Megatron));
            if r.int(start).is_some_and(|n| n.value > 0)
                && megatron
                && saves(r)
                && r.on("checkpointing.save_optimizer")
                && r.on(path)
            {
                f.at(
                    "before the policy trains its optimizer has another structure",
                    &[path, start],
                )
                .help(format!("`{path}: false`"));
            }
        },
    ),
];

/// Metrics of training are many; a near miss of a usual one is told.
fn trained(name: &str, metric: &Fact<String>, f: &mut Findings<'_>) {
    let usual =
        ["loss", "reward", "grad_norm", "accuracy", "gen_kl_error", "token_mult_prob_error"];
    if usual.contains(&name) {
        return;
    }
    if let Some(near) = nrl_base::nearest(name, usual) {
        f.found(format!("no run reports `{}`", metric.value), &[metric])
            .help(format!("did you mean `train:{near}`?"));
    }
}

/// Whether checkpoints are saved.
fn saves(r: &Recipe) -> bool {
    r.keeping.on.as_ref().is_some_and(|on| on.value)
}

/// When such a run would end.
fn first_save(r: &Recipe) -> String {
    match r.keeping.save_period.as_ref().filter(|n| n.value > 0) {
        Some(n) => format!("the run would stop at its first save, step {}", n.value),
        None => "the run would stop at its first save".to_string(),
    }
}

/// The metric that decides which checkpoints stay.
fn kept_by(r: &Recipe) -> Option<&crate::recipe::Fact<String>> {
    // A text that stands for null is another mistake.
    let named = |m: &&crate::recipe::Fact<String>| !m.value.eq_ignore_ascii_case("none");
    r.keeping.metric.as_ref().filter(|_| saves(r)).filter(named)
}

fn saves_between(r: &Recipe, f: &mut Findings<'_>) {
    let (Some(metric), Some(save)) = (kept_by(r), r.keeping.save_period.as_ref()) else { return };
    if !metric.value.starts_with("val:") || r.has("async_rl") {
        return;
    }
    if !validates(r) {
        f.found(
            format!("checkpoints are kept by `{}`, and nothing is validated", metric.value),
            &[metric, &r.keeping.val_period],
        )
        .severity(Severity::Warning)
        .help(format!("turn validation on, or `{}: null`", metric.name));
        return;
    }
    let Some(val) = r.keeping.val_period.as_ref().filter(|v| v.value > 0) else { return };
    if save.value > 0 && save.value % val.value != 0 {
        let text = format!(
            "saves every {} steps fall between validations every {}",
            save.value, val.value
        );
        f.found(text, &[save, val])
            .note("such a checkpoint has no metric and is not kept as one of the best")
            .help(format!("`{}: {}`", save.name, one_of(&multiples(save.value, val.value))));
    }
}
