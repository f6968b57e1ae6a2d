//! From rewards to advantages: groups, estimators, shaping, teachers, stopping.

use nrl_base::Severity;

use crate::recipe::{Algorithm, Backend, Fact, Recipe, Role};
use crate::rule::{Rule, error, note, warning};
use crate::rules::batch::validates;

/// Rules of algorithms.
pub const RULES: &[Rule] = &[
    error("BATCH-25", "no-learning-signal", "a group of one has no baseline", |r, f| {
        let (Some(group), Some(estimator)) = (&r.batch.group, &r.advantage.estimator) else {
            return;
        };
        let baseline = match estimator.value.as_str() {
            "grpo" | "gdpo" => true,
            "reinforce_plus_plus" => r.advantage.minus_baseline.as_ref().is_some_and(|m| m.value),
            _ => false,
        };
        if r.is(Algorithm::Grpo) && group.value == 1 && baseline {
            let text =
                "every advantage is 0: with 1 sample per prompt the baseline is its own reward";
            f.found(text, &[group, estimator]).help(format!("`{}: 8`", group.name));
        } else if group.value < 1 && r.is_rl() {
            f.found(format!("a group of {} samples is no group", group.value), &[group])
                .help(format!("`{}: 8`", group.name));
        }
    }),
    warning(
        "BATCH-26",
        "no-learning-signal",
        "two samples without the own one have no spread",
        |r, f| {
            let Some(group) =
                r.batch.group.as_ref().filter(|g| g.value == 2 && r.is(Algorithm::Grpo))
            else {
                return;
            };
            let on = |flag: &Option<Fact<bool>>| flag.as_ref().is_some_and(|x| x.value);
            let steering = r.flag("grpo.use_leave_one_out_baseline");
            if on(&r.batch.dynamic_sampling) && on(&steering) {
                f.found(
                    "every prompt is dropped: the spread of one sample is 0",
                    &[group, &steering, &r.batch.dynamic_sampling],
                )
                .severity(Severity::Error)
                .help("`grpo.use_leave_one_out_baseline: false`, or more samples per prompt");
            } else if on(&r.advantage.leave_one_out) && on(&r.advantage.normalize) && grouped(r) {
                f.found(
                    "advantages are never normalized: the spread of one sample is 0",
                    &[group, &r.advantage.leave_one_out, &r.advantage.normalize],
                )
                .help("`use_leave_one_out_baseline: false`, or more samples per prompt");
            }
        },
    ),
    warning(
        "BATCH-27",
        "no-learning-signal",
        "dynamic sampling drops single samples of a group",
        |r, f| {
            let steering = r.flag("grpo.use_leave_one_out_baseline").filter(|s| s.value);
            let dynamic = r.batch.dynamic_sampling.as_ref().filter(|d| d.value);
            let wide = r.batch.group.as_ref().is_some_and(|g| g.value > 2);
            if let (Some(steering), Some(dynamic), true) =
                (steering, dynamic, wide && r.is(Algorithm::Grpo))
            {
                f.found(
                    "dynamic sampling drops the one sample that differs from its group",
                    &[&steering, dynamic],
                )
                .note("its spread is that of the others, which is 0; groups of one less are left")
                .help("`grpo.use_leave_one_out_baseline: false`");
            }
        },
    ),
    error("BATCH-28", "out-of-range", "no round of dynamic sampling is allowed", |r, f| {
        let Some(section) = r.section() else { return };
        let rounds = r.int(&format!("{section}.dynamic_sampling_max_gen_batches"));
        if let (Some(rounds), Some(dynamic)) = (rounds, r.batch.dynamic_sampling.as_ref())
            && dynamic.value
            && rounds.value <= 0
        {
            f.found(
                format!("{} rounds of dynamic sampling fill no batch", rounds.value),
                &[&rounds, dynamic],
            )
            .help(format!("`{}: 10`", rounds.name));
        }
    }),
    error("ALG-18", "not-a-choice", "unknown estimator of GRPO", |r, f| {
        if r.is(Algorithm::Grpo) {
            f.choice("grpo.adv_estimator.name", &["grpo", "gdpo", "reinforce_plus_plus", "opd"]);
        }
    }),
    error("ALG-19", "not-a-choice", "unknown estimator of PPO", |r, f| {
        if r.is(Algorithm::Ppo) {
            f.choice("ppo.adv_estimator.name", &["gae", "raw_reward"]);
        }
    }),
    error("ALG-20", "no-learning-signal", "weights and components of rewards", |r, f| {
        let path = "grpo.adv_estimator.reward_weights";
        let Some(node) = r.node(path) else { return };
        if r.says("grpo.adv_estimator.name", "gdpo") && node.items().len() == 1 {
            f.at("GDPO needs two reward components or more, one weight is given", &[path])
                .help("one weight per named reward of the environment, or `grpo` as estimator");
        }
    }),
    error("ALG-21", "teachers-unused", "distillation without teachers", |r, f| {
        let on = "on_policy_distillation.enabled";
        if r.says("grpo.adv_estimator.name", "opd") && !r.on(on) {
            f.at(
                "the estimator `opd` needs teachers, and none are on",
                &["grpo.adv_estimator.name", on],
            )
            .help(format!("`{on}: true`"));
        }
    }),
    error("ALG-22", "teachers-unused", "teachers whose scores nothing reads", |r, f| {
        let (on, name) = ("on_policy_distillation.enabled", "grpo.adv_estimator.name");
        if r.on(on) && r.has(name) && !r.says(name, "opd") {
            f.at("teachers run and nothing reads their scores", &[name, on])
                .help(format!("`{name}: opd`, or `{on}: false`"));
        }
    }),
    error(
        "ALG-23",
        "needs-another-setting",
        "distillation needs log-probs of the last policy",
        |r, f| {
            let threshold = "grpo.seq_logprob_error_threshold";
            if opd(r) && r.on("loss_fn.force_on_policy_ratio") && !r.has(threshold) {
                f.at(
                    "distillation needs log-probs of the last policy, and they are not computed",
                    &["loss_fn.force_on_policy_ratio", threshold],
                )
                .help("`loss_fn.force_on_policy_ratio: false`");
            }
        },
    ),
    warning("ALG-24", "uncorrected-off-policy", "distillation without its usual loss", |r, f| {
        let wanted = [
            ("loss_fn.disable_ppo_ratio", "true"),
            ("loss_fn.use_importance_sampling_correction", "true"),
        ];
        for (path, value) in wanted.into_iter().filter(|(path, _)| opd(r) && !r.on(path)) {
            f.at("distillation from teachers is made for another loss", &[path])
                .help(format!("`{path}: {value}`"));
        }
        let kind = "loss_fn.truncated_importance_sampling_type";
        if opd(r) && !r.says(kind, "icepop") {
            f.at("distillation from teachers is made for another loss", &[kind])
                .help(format!("`{kind}: icepop`"));
        }
    }),
    error("ALG-25", "teachers-unused", "aliases of teachers that do not exist", |r, f| {
        let base = "on_policy_distillation";
        let map = format!("{base}.teacher_model_by_agent_name");
        let Some(alias) = r.text(&format!("{base}.default_teacher_alias")) else { return };
        if r.on(&format!("{base}.enabled")) && r.node(&format!("{map}.{}", alias.value)).is_none() {
            let names: Vec<String> = r
                .under(&map)
                .iter()
                .filter_map(|p| p.rsplit('.').next().map(str::to_string))
                .collect();
            let near = nrl_base::did_you_mean(&alias.value, names.iter().map(String::as_str));
            f.found(format!("there is no teacher `{}`", alias.value), &[&alias])
                .help(near.unwrap_or_else(|| format!("add it to `{map}`")));
        }
    }),
    error("ALG-26", "backend-cannot", "teachers beside a DTensor policy", |r, f| {
        if let Some(w) =
            r.policy().filter(|w| w.is_torch() && r.on("on_policy_distillation.enabled"))
        {
            f.found("teachers with nodes of their own need a Megatron policy", &[&w.backend])
                .help("train the policy with Megatron");
        }
    }),
    error("ALG-27", "needs-another-setting", "teachers need async rollouts", |r, f| {
        let sync =
            r.generation.as_ref().filter(|g| g.asynchronous.as_ref().is_some_and(|a| !a.value));
        if let Some(g) = sync.filter(|_| r.on("on_policy_distillation.enabled")) {
            f.found("teachers score rollouts of the async engine only", &[&g.asynchronous])
                .help(format!("`{}: true`", g.at("vllm_cfg.async_engine")));
        }
    }),
    error("ALG-28", "reward-shaping", "shaping without its numbers", |r, f| {
        let Some(at) = shaping(r) else { return };
        let keys = ["overlong_buffer_length", "overlong_buffer_penalty", "max_response_length"];
        for key in
            keys.iter().filter(|key| !r.has(&at(key)) && !r.has(&at("stop_properly_penalty_coef")))
        {
            f.at(format!("rewards cannot be shaped without `{key}`"), &[&at(key), &at("enabled")])
                .help(format!("set `{}`, or `stop_properly_penalty_coef`", at(key)));
        }
    }),
    error("ALG-29", "reward-shaping", "shaping outside its range", |r, f| {
        let Some(at) = shaping(r) else { return };
        if let Some(p) = r.num(&at("overlong_buffer_penalty")).filter(|p| p.value < 0.0) {
            f.found(format!("a penalty of {} would be a reward", p.value), &[&p])
                .help(format!("`{}: {}`", p.name, -p.value));
        }
        if let Some(c) =
            r.num(&at("stop_properly_penalty_coef")).filter(|c| !(0.0..=1.0).contains(&c.value))
        {
            f.found(format!("`stop_properly_penalty_coef` = {} is not in 0..1", c.value), &[&c])
                .help("it scales the reward of a truncated answer");
        }
    }),
    error("ALG-30", "reward-shaping", "a buffer of no tokens", |r, f| {
        let Some(at) = shaping(r) else { return };
        if let Some(n) = r.num(&at("overlong_buffer_length")).filter(|n| n.value == 0.0)
            && !r.has(&at("stop_properly_penalty_coef"))
        {
            f.found("a buffer of 0 tokens would divide by 0", &[&n])
                .help(format!("`{}: 128`", n.name));
        }
    }),
    warning("ALG-31", "reward-shaping", "shaping in two ways", |r, f| {
        let Some(at) = shaping(r) else { return };
        let (stop, long) = (at("stop_properly_penalty_coef"), at("overlong_buffer_length"));
        if r.has(&stop) && r.has(&long) {
            f.at(
                "the penalty for long answers is ignored: truncated answers are scaled instead",
                &[&stop, &long],
            )
            .help(format!("`{stop}: null` or `{long}: null`"));
        }
    }),
    warning("ALG-32", "reward-shaping", "shaping that can never act in full", |r, f| {
        let Some(at) = shaping(r) else { return };
        if r.has(&at("stop_properly_penalty_coef")) {
            return;
        }
        let (longest, buffer) =
            (r.int(&at("max_response_length")), r.int(&at("overlong_buffer_length")));
        let new = r.generation.as_ref().and_then(|g| g.max_new.clone());
        if let (Some(longest), Some(new)) = (&longest, &new)
            && longest.value > new.value
        {
            let text = format!(
                "answers end at {} tokens, the full penalty comes at {}",
                new.value, longest.value
            );
            f.found(text, &[longest, new]).help(format!("`{}: {}`", longest.name, new.value));
        }
        if let (Some(longest), Some(buffer)) = (&longest, &buffer)
            && buffer.value > longest.value
        {
            let text = format!(
                "a buffer of {} tokens is longer than the answers of {}",
                buffer.value, longest.value
            );
            f.found(text, &[buffer, longest])
                .help(format!("`{}` below {}", buffer.name, longest.value));
        }
    }),
    error("ALG-33", "reward-shaping", "rewards are scaled from an empty range", |r, f| {
        let Some(section) = r.section() else { return };
        let at = |name: &str| format!("{section}.reward_scaling.{name}");
        let (low, high) = (r.num(&at("source_min")), r.num(&at("source_max")));
        if let (Some(low), Some(high), true) = (low, high, r.on(&at("enabled")))
            && low.value >= high.value
        {
            let text = format!(
                "rewards from {} to {} have no range: they would be NaN",
                low.value, high.value
            );
            f.found(text, &[&low, &high]).help(format!("`{}` below `{}`", low.name, high.name));
        }
    }),
    error("ALG-35", "needs-another-setting", "an early stop without threshold", |r, f| {
        let (metric, limit) =
            (r.text("grpo.stop_at_validation_metric"), "grpo.stop_at_validation_threshold");
        if let (Some(metric), false) = (metric, r.has(limit)) {
            f.at(
                format!("the run is to stop at `{}`, but not at which value", metric.value),
                &[&metric.name, limit],
            )
            .help(format!("`{limit}: 0.9`"));
        }
    }),
    error("ALG-36", "needs-another-setting", "pass@k of one sample", |r, f| {
        let k = r.int("grpo.val_num_generations_per_prompt");
        if r.says("grpo.stop_at_validation_metric", "pass_k")
            && k.as_ref().is_none_or(|k| k.value <= 1)
        {
            f.at(
                "`pass_k` needs several validation samples per prompt",
                &["grpo.stop_at_validation_metric", "grpo.val_num_generations_per_prompt"],
            )
            .help("`grpo.val_num_generations_per_prompt: 4`");
        }
    }),
    error("ALG-37", "unknown-metric", "a stop by something that is not reported", |r, f| {
        if let Some(metric) = r.text("grpo.stop_at_validation_metric") {
            let known = ["accuracy", "avg_length", "pass_k"];
            if !known.contains(&metric.value.as_str()) {
                let near = nrl_base::did_you_mean(&metric.value, known);
                f.found(format!("validation reports no `{}`", metric.value), &[&metric])
                    .help(near.unwrap_or_else(|| format!("one of {}", known.join(", "))));
            }
        }
    }),
    error("ALG-38", "validation-without-data", "validation without data", |r, f| {
        let (Some(section), true) = (r.section(), r.has("data.train")) else { return };
        let rl = r.is_rl() || r.is(Algorithm::Distillation);
        let split = part_has(r, "data.train", "split_validation_size")
            || part_has(r, "data.default", "split_validation_size");
        let gym = r.on("env.should_use_nemo_gym");
        if rl && validates(r) && !r.has("data.validation") && !split && !gym {
            f.at(
                "validation is on and there is no data for it",
                &["data.validation", &format!("{section}.val_period")],
            )
            .help("`data.validation`, `data.train.split_validation_size: 0.05`, or no validation");
        }
    }),
    error("ALG-39", "out-of-range", "no validation sample", |r, f| {
        if let Some(k) = r.int("grpo.val_num_generations_per_prompt").filter(|k| k.value < 1) {
            f.found(format!("{} validation samples per prompt", k.value), &[&k])
                .help(format!("`{}: 1`", k.name));
        }
    }),
    error("ALG-43", "out-of-range", "a threshold that drops every sample", |r, f| {
        let Some(section) = r.section() else { return };
        if let Some(t) =
            r.num(&format!("{section}.seq_logprob_error_threshold")).filter(|t| t.value < 1.0)
        {
            f.found(
                format!(
                    "every sample is dropped: the measured error is at least 1, above {}",
                    t.value
                ),
                &[&t],
            )
            .help(format!("`{}: 2`, or null", t.name));
        }
    }),
    error("ALG-44", "deadlines-disagree", "warm-up of asynchronous PPO", |r, f| {
        let (lead, age) = (r.int("ppo.async_ppo.warmup_generation_lead_steps"), &r.overlap.max_age);
        let start = r.int("ppo.policy_training_start_step");
        let (Some(lead), true) = (lead, r.overlaps() && r.is(Algorithm::Ppo)) else { return };
        if let Some(age) = age.as_ref().filter(|age| lead.value < age.value) {
            let text = format!(
                "generation leads by {} steps, samples may be {} steps old",
                lead.value, age.value
            );
            f.found(text, &[&lead, age]).help(format!("`{}: {}` or more", lead.name, age.value));
        }
        if start.as_ref().is_none_or(|s| s.value == 0) {
            f.found("there is no warm-up for generation to lead", &[&lead, &start])
                .help(format!("`{}: null`", lead.name));
        }
    }),
    warning("ALG-45", "out-of-range", "a run of no steps", |r, f| {
        let Some(steps) = r.keeping.steps.as_ref().filter(|s| s.value < 0) else { return };
        if !r.is(Algorithm::Reward) {
            f.found(
                format!("`{}` = {} does not mean `no limit` here", steps.name, steps.value),
                &[steps],
            )
            .help(format!("`{}: 1000000`", steps.name));
        }
    }),
    error("ALG-46", "no-learning-signal", "a loss of nothing", |r, f| {
        let (p, s) = (r.num("dpo.preference_loss_weight"), r.num("dpo.sft_loss_weight"));
        if let (Some(p), Some(s), true) = (p, s, r.is(Algorithm::Dpo))
            && p.value == 0.0
            && s.value == 0.0
        {
            f.found("both parts of the loss have weight 0", &[&p, &s])
                .help("`dpo.preference_loss_weight: 1`");
        }
    }),
    note("ALG-49", "setting-has-no-effect", "advantages on the GPU beside a data plane", |r, f| {
        let path = "grpo.calculate_advantages_on_gpu";
        if r.on(path) && r.on("data_plane.enabled") {
            f.at(
                "with a data plane advantages are computed where they are",
                &[path, "data_plane.enabled"],
            )
            .help(format!("`{path}: false`"));
        }
    }),
    note("ALG-50", "setting-has-no-effect", "epochs with several loaders", |r, f| {
        let path = "grpo.max_num_epochs";
        let many = r.int(path).is_some_and(|n| n.value > 1);
        if many && r.on("data.use_multiple_dataloader") {
            f.at(
                "with several loaders epochs are not counted",
                &[path, "data.use_multiple_dataloader"],
            )
            .help("`grpo.max_num_steps` ends the run");
        }
    }),
    error("DATA-29", "needs-another-setting", "reward training without a reward model", |r, f| {
        let path = "policy.reward_model_cfg.enabled";
        if r.is(Algorithm::Reward) && !r.on(path) {
            f.at("training a reward model needs a model with a reward head", &[path])
                .help(format!("`{path}: true`"));
        }
    }),
    error(
        "ALG-41",
        "vocabulary-mismatch",
        "teacher and student of different vocabularies",
        |r, f| {
            if !r.is(Algorithm::Distillation) {
                return;
            }
            let teacher = r.workers.iter().find(|w| w.role == Role::Teacher);
            let both =
                (r.policy().and_then(|w| w.model.as_ref()), teacher.and_then(|w| w.model.as_ref()));
            let (Some(student), Some(teacher)) = both else { return };
            let near = (student.vocab as i64 - teacher.vocab as i64).abs() > 1024;
            if near {
                let facts = (
                    Fact::model("vocabulary", student.vocab as i64, &student.name),
                    Fact::model("vocabulary", teacher.vocab as i64, &teacher.name),
                );
                let text = format!(
                    "the student has {} tokens and the teacher {}: their tokenizers differ",
                    student.vocab, teacher.vocab
                );
                f.found(text, &[&facts.0, &facts.1, &r.text("teacher.model_name")])
                    .help("a teacher of the same family, or cross-tokenizer distillation");
            }
        },
    ),
    error(
        "BACK-65",
        "backend-cannot",
        "a single controller with an untested engine or backend",
        |r, f| {
            let Some(w) = r.policy().filter(|_| r.has("async_rl") && r.is(Algorithm::Grpo)) else {
                return;
            };
            if w.is(Backend::Automodel) || w.is(Backend::Dtensor) {
                f.found("the single controller is tested with Megatron only", &[&w.backend])
                    .severity(Severity::Warning)
                    .help("train the policy with Megatron");
            }
        },
    ),
];

/// Whether teachers' scores make the advantages.
fn opd(r: &Recipe) -> bool {
    r.on("on_policy_distillation.enabled") && r.says("grpo.adv_estimator.name", "opd")
}

/// Whether advantages are relative to a group.
fn grouped(r: &Recipe) -> bool {
    r.advantage.estimator.as_ref().is_none_or(|e| e.value == "grpo" || e.value == "gdpo")
}

/// Paths of the shaping of rewards, if it is on.
fn shaping(r: &Recipe) -> Option<impl Fn(&str) -> String + use<>> {
    let section = r.section()?;
    let at = move |name: &str| format!("{section}.reward_shaping.{name}");
    r.on(&at("enabled")).then_some(at)
}

/// Whether a data section, or one of a list of them, has a key.
fn part_has(r: &Recipe, part: &str, key: &str) -> bool {
    let items = r.node(part).map_or(0, |node| node.items().len());
    r.num(&format!("{part}.{key}")).is_some_and(|n| n.value > 0.0)
        || (0..items).any(|i| r.num(&format!("{part}.{i}.{key}")).is_some_and(|n| n.value > 0.0))
}
