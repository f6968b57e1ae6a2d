//! Batch arithmetic: prompts, samples, updates, ranks and micro-batches.

use nrl_base::Severity;

use crate::arithmetic::{divisors, lcm, multiples, one_of};
use crate::recipe::{Algorithm, Fact, Recipe, Role, Shown, Worker};
use crate::rule::{Findings, Rule, error, note, warning};

const CODE: &str = "batch-not-divisible";

/// Rules of batches.
pub const RULES: &[Rule] = &[
    error("BATCH-01", CODE, "a step is not a whole number of updates", |r, f| {
        let Some(all) = r.samples().filter(|_| steps_cut(r)) else { return };
        for w in updated(r) {
            let Some(global) = &w.global_batch else { continue };
            if global.value < 1 || all.value % global.value != 0 {
                let text = format!(
                    "a step of {} samples is not a whole number of updates of {}",
                    all.value, global.value
                );
                f.found(text, &[global, &all]).help(updates_help(r, w, global, &all));
            }
        }
    }),
    // With both the samples of a step (BATCH-03) are shared evenly too.
    error("BATCH-02, BATCH-03", CODE, "an update cannot be shared by the ranks", share_update),
    error("BATCH-04", CODE, "a rank's part of an update is not whole micro-batches", |r, f| {
        for w in updated(r).filter(|w| !w.packs() && !w.is_dynamic()) {
            let (Some(global), Some(micro), Some(dp)) = (&w.global_batch, &w.micro_batch, w.dp())
            else {
                continue;
            };
            let pairs = r.is(Algorithm::Dpo) || r.is(Algorithm::Reward);
            let each = global.value / dp.value;
            if !pairs
                && global.value % dp.value == 0
                && (micro.value < 1 || each % micro.value != 0)
            {
                let text = format!(
                    "{each} samples per rank are not whole micro-batches of {}",
                    micro.value
                );
                f.found(text, &[micro, global, &dp]).help(format!(
                    "`{}` may be {}",
                    micro.name,
                    one_of(&divisors(each, each))
                ));
            }
        }
    }),
    error("BATCH-05", CODE, "a rank's part of a step is not whole logprob batches", |r, f| {
        let (Some(all), Some(w)) = (r.samples().filter(|_| r.is_rl()), r.policy()) else { return };
        let (Some(batch), Some(dp)) = (&w.logprob_batch, w.dp()) else { return };
        let each = all.value / dp.value;
        if !w.packs()
            && !w.is_dynamic()
            && all.value % dp.value == 0
            && (batch.value < 1 || each % batch.value != 0)
        {
            let text = format!(
                "{each} samples per rank are not whole log-prob batches of {}",
                batch.value
            );
            f.found(text, &[batch, &all, &dp]).help(format!(
                "`{}` may be {}",
                batch.name,
                one_of(&divisors(each, each))
            ));
        }
    }),
    warning(
        "BATCH-16, BACK-72",
        "micro-batches-differ",
        "tp of 4 and more with unequal micro-batches",
        |r, f| {
            if r.loss.on_policy.as_ref().is_some_and(|o| o.value) {
                return;
            }
            for w in r.workers.iter().filter(|w| matches!(w.role, Role::Policy | Role::Teacher)) {
                let (Some(tp), Some(micro), Some(batch)) =
                    (&w.mesh.tp, &w.micro_batch, &w.logprob_batch)
                else {
                    continue;
                };
                if tp.value >= 4 && micro.value != batch.value && w.backend.is_some() {
                    let text = format!(
                        "with tp {} training takes {} samples at a time and log-probs {}: rounding would differ",
                        tp.value, micro.value, batch.value
                    );
                    f.found(text, &[batch, micro, tp])
                    .note("row-wise layers over 4 and more ranks round by batch size; NeMo RL refuses it unless told otherwise")
                    .help(format!(
                        "`{}: {}`, tp of 2 or less, `force_on_policy_ratio: true`, or NRL_IGNORE_TP_ACCURACY_CHECK=1",
                        batch.name, micro.value
                    ));
                }
            }
        },
    ),
    error(
        "BATCH-17",
        "one-update-needed",
        "a ratio fixed to one needs one update per step",
        |r, f| {
            if let Some(on) = r.loss.on_policy.as_ref().filter(|o| o.value && r.is_rl()) {
                one_update(r, f, "the ratio is fixed to one", &[on]);
            }
        },
    ),
    error(
        "BATCH-18",
        "one-update-needed",
        "a single controller makes one update per step",
        |r, f| {
            if r.has("async_rl") && r.is(Algorithm::Grpo) {
                one_update(r, f, "the single controller makes one update per step", &[]);
            }
        },
    ),
    error("BATCH-19", CODE, "prompts are not whole parts of several loaders", |r, f| {
        let (Some(prompts), Some(each)) =
            (&r.batch.prompts, r.int("data.num_prompts_per_dataloader"))
        else {
            return;
        };
        let drawn =
            (prompts.value as f64 * r.batch.multiplier.as_ref().map_or(1.0, |m| m.value)) as i64;
        if r.on("data.use_multiple_dataloader") && (each.value < 1 || drawn % each.value != 0) {
            let text =
                format!("{drawn} prompts are not whole parts of {} from each loader", each.value);
            f.found(text, &[&each, prompts, &r.batch.multiplier]).help(format!(
                "`{}` may be {}",
                each.name,
                one_of(&divisors(drawn, drawn))
            ));
        }
    }),
    error(
        "BATCH-20",
        "setting-has-no-effect",
        "more prompts are drawn than dynamic sampling uses",
        |r, f| {
            let dynamic = r.batch.dynamic_sampling.as_ref().is_some_and(|d| d.value);
            if let Some(times) = r.batch.multiplier.as_ref().filter(|m| m.value != 1.0 && !dynamic)
            {
                let text =
                    format!("drawing {} times the prompts needs dynamic sampling", times.value);
                f.found(text, &[times, &r.batch.dynamic_sampling])
                    .help(format!("`{}: 1`, or `use_dynamic_sampling: true`", times.name));
            }
        },
    ),
    warning("BATCH-21", CODE, "prompts drawn are not a whole number", |r, f| {
        let (Some(prompts), Some(times)) = (&r.batch.prompts, &r.batch.multiplier) else { return };
        let drawn = prompts.value as f64 * times.value;
        if drawn.fract() != 0.0 {
            let text =
                format!("{} * {} prompts is cut to {}", prompts.value, times.value, drawn as i64);
            f.found(text, &[times, prompts]).help("choose a multiplier that gives a whole number");
        }
    }),
    error("BATCH-22", CODE, "pairs are not whole micro-batches on every rank", |r, f| {
        if !r.is(Algorithm::Dpo) && !r.is(Algorithm::Reward) {
            return;
        }
        let Some(w) = r.policy() else { return };
        let (Some(global), Some(micro), Some(dp)) = (&w.global_batch, &w.micro_batch, w.dp())
        else {
            return;
        };
        let unit = dp.value.saturating_mul(micro.value);
        if unit < 1 || global.value % unit != 0 {
            let text = format!(
                "{} pairs are not whole micro-batches of {} on dp = {} ranks",
                global.value, micro.value, dp.value
            );
            f.found(text, &[global, micro, &dp])
                .note("a pair is two rows of the model")
                .help(format!("`{}: {}`", global.name, one_of(&multiples(global.value, unit))));
        }
    }),
    error("BATCH-23", "epoch-is-empty", "the data has fewer rows than one step takes", |r, f| {
        let Some(rows) = &r.batch.rows else { return };
        let step = match r.batch.prompts.as_ref() {
            Some(prompts) if r.batch.group.is_some() => Some(prompts.clone()),
            _ => r.policy().and_then(|w| w.global_batch.clone()),
        };
        if let Some(step) = step.filter(|step| step.value > rows.value) {
            let text = format!(
                "the data has {} rows, one step takes {}: the rest is dropped and no step is made",
                rows.value, step.value
            );
            f.found(text, &[&step, rows]).help(format!("`{}: {}` or less", step.name, rows.value));
        }
    }),
    note(
        "BATCH-29",
        "twins-disagree",
        "settings of the estimator differ from their twins",
        |r, f| {
            for (name, what) in [
                ("normalize_rewards", "the estimator reads its own; no one reads the other"),
                (
                    "use_leave_one_out_baseline",
                    "the estimator reads its own; the other steers dynamic sampling and metrics",
                ),
            ] {
                let (a, b) = (format!("grpo.{name}"), format!("grpo.adv_estimator.{name}"));
                let (one, two) = (r.flag(&a), r.flag(&b));
                if let (Some(one), Some(two)) = (one, two)
                    && one.value != two.value
                {
                    f.found(format!("`{a}` and `{b}` disagree"), &[&two, &one])
                        .note(what)
                        .help(format!("`{b}: ${{{a}}}`"));
                }
            }
        },
    ),
    error("BATCH-32", CODE, "validation batches cannot be shared by the ranks", validation_batch),
    error("BATCH-33", "validation-on-nothing", "validation has no batches", |r, f| {
        let (Some(samples), Some(batch)) = (&r.keeping.val_samples, &r.keeping.val_batch) else {
            return;
        };
        if !r.is_rl() || !validates(r) {
            return;
        }
        if batch.value < 1 || samples.value < batch.value {
            let text = format!(
                "{} validation samples fill no batch of {}: validation would run on nothing",
                samples.value, batch.value
            );
            f.found(text, &[samples, batch]).help(format!(
                "`{}: {}` or less",
                batch.name,
                samples.value.max(1)
            ));
        } else if samples.value % batch.value != 0 {
            let rest = samples.value % batch.value;
            let text = format!("{rest} of {} validation samples are dropped", samples.value);
            f.found(text, &[samples, batch]).severity(Severity::Note).help(format!(
                "`{}: {}`",
                samples.name,
                one_of(&multiples(samples.value, batch.value))
            ));
        }
    }),
    error("BATCH-43", "out-of-range", "no pass over the data of a step", |r, f| {
        if let Some(n) = r.int("ppo.ppo_epochs").filter(|n| n.value < 1) {
            f.found(format!("{} passes over the samples make no update", n.value), &[&n])
                .help("`ppo.ppo_epochs: 1` or more");
        }
    }),
];

/// Whether validation ever runs.
pub fn validates(r: &Recipe) -> bool {
    let Some(section) = r.section() else { return false };
    r.keeping.val_period.as_ref().is_some_and(|p| p.value > 0)
        || r.on(&format!("{section}.val_at_start"))
        || r.on(&format!("{section}.val_at_end"))
}

/// Whether the samples of a step are cut into updates.
fn steps_cut(r: &Recipe) -> bool {
    r.is_rl() || r.is(Algorithm::Distillation)
}

/// The workers that make updates.
fn updated(r: &Recipe) -> impl Iterator<Item = &Worker> {
    r.workers.iter().filter(|w| matches!(w.role, Role::Policy | Role::Critic))
}

fn share_update(r: &Recipe, f: &mut Findings<'_>) {
    if r.is(Algorithm::Dpo) || r.is(Algorithm::Reward) || r.is(Algorithm::CrossTokenizer) {
        return;
    }
    let all = r.samples().filter(|_| steps_cut(r));
    for w in updated(r) {
        let (Some(global), Some(dp)) = (&w.global_batch, w.dp()) else { continue };
        if global.value % dp.value == 0 && global.value > 0 {
            continue;
        }
        let text =
            format!("an update of {} samples cannot be shared by dp = {}", global.value, dp.value);
        let help = match &all {
            Some(all) => updates_help(r, w, global, all),
            None => format!("`{}: {}`", global.name, one_of(&multiples(global.value, dp.value))),
        };
        f.found(text, &[global, &dp]).help(help);
    }
}

/// Updates that divide the step and that the ranks can share; or a number of prompts that has one.
fn updates_help(r: &Recipe, w: &Worker, global: &Fact<i64>, all: &Fact<i64>) -> String {
    let dp = w.dp().map_or(1, |dp| dp.value);
    let mut fits: Vec<i64> =
        divisors(all.value, all.value).into_iter().filter(|u| u % dp == 0).collect();
    fits.sort_by_key(|u| (u - global.value).abs());
    fits.truncate(3);
    fits.sort_unstable();
    if !fits.is_empty() {
        return format!("`{}: {}`", global.name, one_of(&fits));
    }
    format!(
        "{} samples have no divisor that is a multiple of {dp}: {}{}",
        all.value,
        prompts_help(r, dp, global.value),
        nodes_help(r, w, global.value)
    )
}

/// Nodes of training with which the ranks can share the update as it is: `; or 8 nodes (dp 8)`.
fn nodes_help(r: &Recipe, w: &Worker, global: i64) -> String {
    let (Some(node), Some(gpus)) = (&r.cluster.gpus_per_node, &w.gpus) else {
        return String::new();
    };
    let (per, copy) = (node.value.max(1), w.mesh.copy().max(1));
    let now = gpus.value / per;
    // More nodes than there are is a slip, and the search would take long.
    if !(2..=65_536).contains(&now) {
        return String::new();
    }
    let fits = |n: i64| n > 0 && (n * per) % copy == 0 && global % (n * per / copy).max(1) == 0;
    let below = (1..now).rev().find(|n| fits(*n));
    let above = (now + 1..=2 * now + 1).find(|n| fits(*n));
    let one = |n: i64| format!("; or {n} nodes of training (dp {})", n * per / copy);
    below.into_iter().chain(above).map(one).collect()
}

/// Numbers of prompts whose samples the ranks can share, with updates near the one that is asked for.
fn prompts_help(r: &Recipe, dp: i64, update: i64) -> String {
    let (Some(prompts), Some(group)) = (&r.batch.prompts, &r.batch.group) else {
        return format!("a multiple of {dp} samples");
    };
    let unit = lcm(group.value, dp) / group.value.max(1);
    let near = multiples(prompts.value, unit);
    let size = |p: &i64| {
        let all = p.saturating_mul(group.value);
        let fits = divisors(all, all).into_iter().filter(|u| u % dp == 0);
        fits.min_by_key(|u| (u - update).abs()).unwrap_or(all)
    };
    let sizes: Vec<i64> = near.iter().map(size).collect();
    format!("`{}: {}`, with updates of {} samples", prompts.name, one_of(&near), one_of(&sizes))
}

fn one_update(r: &Recipe, f: &mut Findings<'_>, why: &str, facts: &[&dyn Shown]) {
    let (Some(all), Some(w)) = (r.samples(), r.policy()) else { return };
    let Some(global) = &w.global_batch else { return };
    if all.value != global.value {
        let text = format!(
            "{why}, but a step of {} samples is not one update of {}",
            all.value, global.value
        );
        let mut shown: Vec<&dyn Shown> = vec![global, &all];
        shown.extend(facts);
        f.found(text, &shown).help(format!("`{}: {}`", global.name, all.value));
    }
}

fn validation_batch(r: &Recipe, f: &mut Findings<'_>) {
    let (Some(section), Some(w)) = (r.section(), r.policy()) else { return };
    let trains = [Algorithm::Sft, Algorithm::Dpo, Algorithm::Reward];
    let silent = r.keeping.val_period.as_ref().is_some_and(|p| p.value <= 0) && !validates(r);
    if silent || !trains.iter().any(|a| r.is(*a)) {
        return;
    }
    let global = r.int(&format!("{section}.val_global_batch_size"));
    let micro = r.int(&format!("{section}.val_micro_batch_size"));
    let (Some(global), Some(dp)) = (global, w.dp()) else { return };
    let each = global.value / dp.value;
    if global.value < 1 || global.value % dp.value != 0 {
        let text =
            format!("a validation batch of {} cannot be shared by dp = {}", global.value, dp.value);
        f.found(text, &[&global, &dp]).help(format!(
            "`{}: {}`",
            global.name,
            one_of(&multiples(global.value, dp.value))
        ));
    } else if let Some(micro) = micro.filter(|_| !w.packs() && !w.is_dynamic())
        && (micro.value < 1 || each % micro.value != 0)
    {
        let unit = if r.is(Algorithm::Sft) { "samples" } else { "pairs" };
        let text = format!(
            "{each} validation {unit} per rank are not whole micro-batches of {}",
            micro.value
        );
        let rows = format!("{each} pairs are {} rows of the model", 2 * each);
        let found = f.found(text, &[&micro, &global, &dp]);
        let found = if unit == "pairs" { found.note(rows) } else { found };
        found.help(format!(
            "`{}` may be {}, or `{}: {}`",
            micro.name,
            one_of(&divisors(each, each)),
            global.name,
            dp.value.saturating_mul(micro.value.max(1))
        ));
    }
}
