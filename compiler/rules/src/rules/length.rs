//! Lengths: prompts, answers, micro-batches in tokens, padding and the context of the model.

use nrl_base::Severity;

use crate::arithmetic::{multiples, one_of};
use crate::recipe::{Algorithm, Backend, Engine, Fact, Recipe, Role, Worker};
use crate::rule::{Findings, Rule, error, note, warning};

/// Rules of lengths.
pub const RULES: &[Rule] = &[
    error(
        "BATCH-06",
        "options-exclude-each-other",
        "packing and dynamic batching are both on",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.packs() && w.is_dynamic()) {
                f.found(
                    "sequence packing and dynamic batching are both on",
                    &[&w.dynamic, &w.packing],
                )
                .help(format!("`{}: false`", w.at("dynamic_batching.enabled")));
            }
        },
    ),
    error("BATCH-07", "backend-cannot", "dynamic batching with pipeline stages", |r, f| {
        for w in r.workers.iter().filter(|w| w.is_dynamic() && w.mesh.pp() > 1) {
            f.found("dynamic batching does not go with pipeline stages", &[&w.dynamic, &w.mesh.pp])
                .help("use sequence packing with pipeline stages");
        }
    }),
    warning(
        "BATCH-08",
        "sequence-over-budget",
        "a sequence is longer than a packed micro-batch",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.packs() && w.role != Role::Reward) {
                over_budget(f, w, w.multiple.as_ref().map_or(1, |m| m.value), &w.multiple);
            }
        },
    ),
    warning(
        "BATCH-09",
        "sequence-over-budget",
        "a sequence is longer than a dynamic micro-batch",
        |r, f| {
            for w in
                r.workers.iter().filter(|w| w.is_dynamic() && !w.packs() && w.role != Role::Reward)
            {
                let round = r.int(&w.at("dynamic_batching.sequence_length_round"));
                over_budget(f, w, round.as_ref().map_or(1, |m| m.value), &round);
            }
        },
    ),
    error("BATCH-10", "batch-not-divisible", "fewer sequences than ranks to pack for", |r, f| {
        for w in r.workers.iter().filter(|w| w.packs() && w.role == Role::Policy) {
            let (Some(global), Some(dp)) = (&w.global_batch, w.dp()) else { continue };
            let pairs = r.is(Algorithm::Dpo) || r.is(Algorithm::Reward);
            if pairs && global.value < dp.value {
                let text = format!(
                    "{} sequences cannot fill a bin for each of dp = {} ranks",
                    global.value, dp.value
                );
                f.found(text, &[global, &dp])
                    .help(format!("`{}: {}` or more", global.name, dp.value));
            }
        }
    }),
    error("BATCH-11", "not-a-choice", "unknown packing algorithm", |r, f| {
        for w in r.workers.iter().filter(|w| w.packs()) {
            f.choice(
                &w.at("sequence_packing.algorithm"),
                &[
                    "concatenative",
                    "first_fit_decreasing",
                    "first_fit_shuffle",
                    "modified_first_fit_decreasing",
                ],
            );
        }
    }),
    error("BATCH-12", "not-a-choice", "unknown order of micro-batches", |r, f| {
        for w in &r.workers {
            f.choice(&w.at("sequence_packing.microbatch_order"), &["packer", "largest_first"]);
        }
    }),
    error(
        "BATCH-13",
        "bad-padding-multiple",
        "packed sequences are padded to too small a multiple",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.packs()) {
                let (unit, how) = packed_unit(w);
                let given = w
                    .multiple
                    .clone()
                    .unwrap_or_else(|| Fact::default(w.at("make_sequence_length_divisible_by"), 1));
                if unit > 1 && given.value % unit != 0 && w.role != Role::Scorer {
                    let text = format!(
                        "packed sequences are padded to multiples of {}, {how} needs multiples of {unit}",
                        given.value
                    );
                    f.found(text, &[&given, &w.mesh.cp, &w.mesh.sp, &w.mesh.tp])
                        .help(format!("`{}: {unit}`", given.name));
                }
            }
        },
    ),
    error(
        "BATCH-15",
        "bad-padding-multiple",
        "filtered log-probs need lengths that tp divides",
        |r, f| {
            let Some(g) = r.generation.as_ref().filter(|g| g.filters() && r.is_rl()) else {
                return;
            };
            let Some(w) = r.policy() else { return };
            let tp = w.mesh.tp();
            let given = w.multiple.as_ref().map_or(1, |m| m.value);
            let round = r.int(&w.at("dynamic_batching.sequence_length_round"));
            let rounded = w.is_dynamic() && round.is_some_and(|round| round.value % tp == 0);
            if tp > 1 && given % tp != 0 && !rounded {
                let text = format!(
                    "top-p and top-k in training need lengths that tp {tp} divides, padding is to multiples of {given}"
                );
                f.found(text, &[&w.multiple, &w.mesh.tp, &g.top_p, &g.top_k])
                    .help(format!("`{}: {tp}`", w.at("make_sequence_length_divisible_by")));
            }
        },
    ),
    error(
        "BATCH-35",
        "lengths-disagree",
        "generation may be longer than training accepts",
        |r, f| {
            let Some(g) = &r.generation else { return };
            let (Some(longest), Some(limit)) =
                (&g.max_length, r.policy().and_then(|w| w.max_length.as_ref()))
            else {
                return;
            };
            if longest.value > limit.value && steps(r) {
                let text = format!(
                    "generation may make sequences of {} tokens, training accepts {}",
                    longest.value, limit.value
                );
                let found = f
                    .found(text, &[longest, limit])
                    .help(format!("`{}: ${{{}}}`", longest.name, limit.name));
                if r.on("env.should_use_nemo_gym") {
                    found.severity(Severity::Warning);
                }
            }
        },
    ),
    warning(
        "BATCH-36",
        "prompt-fills-context",
        "a prompt may be longer than a sequence",
        |r, f| {
            let limit = r.policy().and_then(|w| w.max_length.as_ref());
            let (Some(prompt), Some(limit)) = (&r.batch.max_prompt, limit) else { return };
            if prompt.value > limit.value {
                let text = format!(
                    "a prompt may have {} tokens, prompt and answer together {}: nothing could be answered",
                    prompt.value, limit.value
                );
                f.found(text, &[prompt, limit])
                    .help(format!("`{}: {}` or less", prompt.name, limit.value));
            }
        },
    ),
    warning(
        "BATCH-37",
        "lengths-disagree",
        "an answer may be longer than the engine's context",
        |r, f| {
            let Some(g) = &r.generation else { return };
            let (Some(new), Some(limit)) = (&g.max_new, &g.max_length) else { return };
            if new.value > limit.value {
                let text = format!(
                    "answers of {} tokens are cut: the engine's context is {}",
                    new.value, limit.value
                );
                f.found(text, &[new, limit]).help(format!("`{}: {}`", new.name, limit.value));
            }
        },
    ),
    warning(
        "BATCH-38",
        "context-over-model",
        "sequences are longer than the model has positions",
        context,
    ),
    error(
        "BATCH-39",
        "needs-another-setting",
        "log-probs in chunks need logits kept in low precision",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
                let (chunk, defer) = (w.at("logprob_chunk_size"), w.cfg("defer_fp32_logits"));
                if r.int(&chunk).is_some_and(|n| n.value > 0) && !r.on(&defer) {
                    f.at("log-probs in chunks need `defer_fp32_logits`", &[&chunk, &defer])
                        .help(format!("`{defer}: true`, or `{chunk}: null`"));
                }
            }
        },
    ),
    error(
        "BATCH-40",
        "bad-padding-multiple",
        "chunks of log-probs do not split over tp",
        |r, f| {
            let Some(g) = r.generation.as_ref().filter(|g| g.filters() && r.is_rl()) else {
                return;
            };
            let Some(w) = r.policy() else { return };
            let (tp, Some(chunk)) = (w.mesh.tp(), r.int(&w.at("logprob_chunk_size"))) else {
                return;
            };
            if tp > 1 && chunk.value > 0 && chunk.value % tp != 0 {
                let text = format!("chunks of {} tokens do not split over tp {tp}", chunk.value);
                f.found(text, &[&chunk, &w.mesh.tp, &g.top_p, &g.top_k]).help(format!(
                    "`{}: {}`",
                    chunk.name,
                    one_of(&multiples(chunk.value, tp))
                ));
            }
        },
    ),
    error(
        "BATCH-41",
        "bad-padding-multiple",
        "sequences do not fit a teacher's padding",
        |r, f| {
            let Some(given) = r.policy().and_then(|w| w.multiple.as_ref()) else { return };
            for w in r.workers.iter().filter(|w| w.role == Role::Scorer) {
                let (unit, how) = packed_unit(w);
                if unit > 1 && given.value % unit != 0 {
                    let text = format!(
                        "sequences are padded to multiples of {}, {how} of the teacher needs multiples of {unit}",
                        given.value
                    );
                    f.found(text, &[given, &w.mesh.cp, &w.mesh.tp])
                        .help(format!("`{}: {unit}`", given.name));
                }
            }
        },
    ),
    error(
        "BATCH-42",
        "out-of-range",
        "top-k of the teacher's distribution is not in its vocabulary",
        |r, f| {
            let Some(k) = r.int("distillation.topk_logits_k") else { return };
            let vocab = r.policy().and_then(|w| {
                let m = w.model.as_ref()?;
                Some((m.vocab as i64 / w.mesh.tp().max(1), w))
            });
            if k.value <= 0 && r.is(Algorithm::Distillation) {
                f.found(
                    format!("a teacher's top {} of the vocabulary says nothing", k.value),
                    &[&k],
                )
                .help(format!("`{}: 64`", k.name));
            } else if let Some((shard, w)) = vocab.filter(|(shard, _)| k.value > *shard) {
                let text = format!(
                    "the top {} are more than the {shard} tokens of one rank's vocabulary",
                    k.value
                );
                f.found(text, &[&k, &w.mesh.tp]).help(format!("`{}: {shard}` or less", k.name));
            }
        },
    ),
    note("BATCH-24, ASYNC-11", "epoch-is-short", "the data end before the steps", |r, f| {
        let (Some(rows), Some(prompts), Some(steps)) =
            (&r.batch.rows, &r.batch.prompts, &r.keeping.steps)
        else {
            return;
        };
        let epochs =
            r.section().and_then(|s| r.int(&format!("{s}.max_num_epochs"))).filter(|e| e.value > 0);
        let (Some(epochs), true) = (epochs, prompts.value > 0 && rows.value >= prompts.value)
        else {
            return;
        };
        let possible = epochs.value.saturating_mul(rows.value / prompts.value);
        if possible < steps.value && r.is_rl() {
            let text =
                format!("the data end after {possible} steps, {} are asked for", steps.value);
            f.found(text, &[steps, &epochs, rows, prompts]).help(format!(
                "more than {} epochs, or `{}: {possible}`",
                epochs.value, steps.name
            ));
        }
    }),
    note("PREC-21", "worth-knowing", "training divides logits by the temperature too", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.is_rl()) else { return };
        if let Some(t) = g.temperature.as_ref().filter(|t| t.value != 1.0 && t.value > 0.0) {
            let text = format!("log-probs of training are taken at temperature {} too", t.value);
            f.found(text, &[t]).help("nothing to do, if this is meant");
        }
    }),
];

/// Whether a step trains on samples with training limits.
fn steps(r: &Recipe) -> bool {
    r.is_rl() || r.is(Algorithm::Distillation)
}

/// What the length of each packed sequence must be a multiple of, and why.
fn packed_unit(w: &Worker) -> (i64, String) {
    let (cp, tp, sp) = (w.mesh.cp(), w.mesh.tp(), w.mesh.sp());
    let mut unit = 1;
    let mut why = vec![];
    if cp > 1 {
        unit *= 2 * cp;
        why.push(format!("cp {cp}"));
    }
    if sp && tp > 1 {
        unit *= tp;
        why.push(format!("sequence parallelism over tp {tp}"));
    }
    (unit, why.join(" with "))
}

fn over_budget(f: &mut Findings<'_>, w: &Worker, round: i64, rounded: &Option<Fact<i64>>) {
    let Some(max) = w.max_length.as_ref().filter(|m| m.value > 0) else { return };
    let round = round.max(1);
    let longest = (max.value + round - 1) / round * round;
    for budget in [&w.train_tokens, &w.logprob_tokens].into_iter().flatten() {
        if budget.value < longest {
            let text = format!(
                "one sequence may reach {longest} tokens, a micro-batch holds {}",
                budget.value
            );
            f.found(text, &[budget, max, rounded])
                .note("the first such sequence stops the run")
                .help(format!(
                    "`{}: {longest}`, or `{}: {}`",
                    budget.name,
                    max.name,
                    budget.value / round * round
                ));
        }
    }
}

fn context(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| matches!(w.role, Role::Policy | Role::Teacher)) {
        let (Some(max), Some(model)) = (&w.max_length, &w.model) else { continue };
        let overrides = w.at("hf_config_overrides");
        let own = r.int(&format!("{overrides}.max_position_embeddings"));
        let scaled = r.has(&format!("{overrides}.rope_scaling"));
        let positions = match &own {
            Some(own) => own.clone(),
            None => Fact::model("positions", model.max_positions as i64, &model.name),
        };
        // Models without position embeddings have no such limit.
        if scaled || model.rope_theta.is_none() || positions.value < 1 {
            continue;
        }
        let engine =
            r.generation.as_ref().filter(|g| w.role == Role::Policy && !g.is(Engine::Megatron));
        let served =
            engine.and_then(|g| g.max_length.as_ref()).filter(|l| l.value > positions.value);
        let help = format!(
            "`{}: {}`, or declare a rope scaling under `{overrides}`",
            max.name, positions.value
        );
        if let Some(served) = served {
            let text = format!(
                "the engine is to serve {} tokens, {} has {} positions",
                served.value, model.name, positions.value
            );
            f.found(text, &[served, &positions]).severity(Severity::Error).help(help);
        } else if max.value > positions.value {
            let text = format!(
                "sequences of {} tokens are longer than the {} positions of {}",
                max.value, positions.value, model.name
            );
            f.found(text, &[max, &positions]).help(help);
        }
    }
}
