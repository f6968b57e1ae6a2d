//! Options of losses, and which go together.

use nrl_base::Severity;

use crate::recipe::{Algorithm, Backend, Recipe};
use crate::rule::{Findings, Rule, error, note, warning};

const EXCLUDE: &str = "options-exclude-each-other";
const NEEDS: &str = "needs-another-setting";
const TIS: &str = "loss_fn.truncated_importance_sampling_type";
const MAX: &str = "loss_fn.truncated_importance_sampling_ratio";
const MIN: &str = "loss_fn.truncated_importance_sampling_ratio_min";
const SEQUENCE: &str = "loss_fn.sequence_level_importance_ratios";
const CORRECT: &str = "loss_fn.use_importance_sampling_correction";
const KL: &str = "loss_fn.reference_policy_kl_penalty";

/// Rules of losses.
pub const RULES: &[Rule] = &[
    error("ALG-01", EXCLUDE, "ratios by sequence with a loss by token", |r, f| {
        if r.on(SEQUENCE) && !r.off("loss_fn.token_level_loss") && rl(r) {
            f.at(
                "ratios by sequence need a loss by sequence",
                &[SEQUENCE, "loss_fn.token_level_loss"],
            )
            .help("`loss_fn.token_level_loss: false`");
        }
    }),
    error("ALG-02", EXCLUDE, "CISPO with options of other losses", |r, f| {
        if !r.on("loss_fn.use_cispo") || !rl(r) {
            return;
        }
        let flags = ["loss_fn.disable_ppo_ratio", "loss_fn.force_on_policy_ratio", SEQUENCE];
        for path in flags.into_iter().filter(|path| r.on(path)) {
            f.at(format!("CISPO does not go with `{path}`"), &[path, "loss_fn.use_cispo"])
                .help(format!("`{path}: false`"));
        }
        if r.has("loss_fn.ratio_clip_c") {
            f.at("CISPO has no second clip", &["loss_fn.ratio_clip_c", "loss_fn.use_cispo"])
                .help("`loss_fn.ratio_clip_c: null`");
        }
        if r.off("loss_fn.token_level_loss") {
            f.at("CISPO is a loss by token", &["loss_fn.token_level_loss", "loss_fn.use_cispo"])
                .help("`loss_fn.token_level_loss: true`");
        }
    }),
    error("ALG-03", NEEDS, "truncated weights without weights", |r, f| {
        if r.has(TIS) && !r.on(CORRECT) && rl(r) {
            f.at("weights are truncated that are not applied", &[TIS, CORRECT])
                .help(format!("`{CORRECT}: true`"));
        }
    }),
    error("ALG-04", "not-a-choice", "unknown truncation of weights", |r, f| {
        if rl(r) {
            f.choice(TIS, &["tis", "icepop", "seq-mask-tis"]);
        }
    }),
    error("ALG-05", NEEDS, "truncation without its bound", |r, f| {
        if r.has(TIS) && rl(r) && r.num(MAX).is_none_or(|m| m.value <= 0.0) {
            f.at("truncated weights need a positive bound", &[MAX, TIS])
                .help(format!("`{MAX}: 2.0`"));
        }
    }),
    error("ALG-06", "out-of-range", "a lower bound above the upper", |r, f| {
        let (Some(low), Some(high)) = (r.num(MIN), r.num(MAX)) else { return };
        if low.value > high.value && rl(r) {
            f.found(
                format!("weights cannot be from {} to {}", low.value, high.value),
                &[&low, &high],
            )
            .help(format!("`{MIN}` below {}", high.value));
        }
    }),
    error("ALG-07", NEEDS, "masking without a lower bound", |r, f| {
        let masks = r.says(TIS, "icepop") || r.says(TIS, "seq-mask-tis");
        if masks && !r.has(MIN) && rl(r) {
            f.at("this truncation needs a lower bound too", &[MIN, TIS])
                .help(format!("`{MIN}: 0.5`"));
        }
    }),
    error("ALG-08", EXCLUDE, "masks by sequence with ratios by sequence", |r, f| {
        if r.says(TIS, "seq-mask-tis") && r.on(SEQUENCE) && rl(r) {
            f.at("`seq-mask-tis` does not go with ratios by sequence", &[TIS, SEQUENCE])
                .help(format!("`{TIS}: tis`"));
        }
    }),
    error("ALG-09", NEEDS, "a bound without a truncation", |r, f| {
        if r.has(MAX) && !r.has(TIS) && rl(r) {
            f.at("a bound for weights is given, but not what is done with it", &[MAX, TIS])
                .note("refused at the first training step")
                .help(format!("`{TIS}: tis`, or `{MAX}: null`"));
        }
    }),
    error("ALG-10", "out-of-range", "a second clip below one", |r, f| {
        if let Some(c) = r.num("loss_fn.ratio_clip_c").filter(|c| c.value <= 1.0 && rl(r)) {
            f.found(format!("the second clip of {} must be above 1", c.value), &[&c])
                .help("`loss_fn.ratio_clip_c: 3`, or null");
        }
    }),
    error("ALG-11", "not-a-choice", "unknown estimate of the divergence", |r, f| {
        if rl(r) {
            f.choice("loss_fn.reference_policy_kl_type", &["k1", "k2", "k3"]);
        }
    }),
    error("ALG-12", "out-of-range", "a negative weight of the divergence", |r, f| {
        if let Some(kl) = r.loss.kl.as_ref().filter(|kl| kl.value < 0.0) {
            f.found(format!("the divergence from the reference cannot weigh {}", kl.value), &[kl])
                .note("the reference would not be loaded, and then be missing")
                .help(format!("`{}: 0` or more", kl.name));
        }
    }),
    error("ALG-13", EXCLUDE, "a divergence whose log-probs are skipped", |r, f| {
        let Some(section) = r.section() else { return };
        let skip = format!("{section}.skip_reference_policy_logprobs_calculation");
        if r.on(&skip)
            && r.loss.kl.as_ref().is_some_and(|kl| kl.value != 0.0)
            && r.is(Algorithm::Grpo)
        {
            f.at("log-probs of the reference are skipped, and the loss weighs them", &[&skip, KL])
                .help(format!("`{KL}: 0`, or `{skip}: false`"));
        }
    }),
    error("ALG-14", EXCLUDE, "a divergence in rewards without log-probs", |r, f| {
        let Some(section) = r.section() else { return };
        let threshold = format!("{section}.seq_logprob_error_threshold");
        if in_reward(r)
            && r.on("loss_fn.force_on_policy_ratio")
            && !r.has(&threshold)
            && r.is(Algorithm::Grpo)
        {
            f.at(
                "the divergence in rewards needs log-probs that are not computed",
                &["loss_fn.use_kl_in_reward", "loss_fn.force_on_policy_ratio"],
            )
            .help("`loss_fn.force_on_policy_ratio: false`");
        }
    }),
    error("ALG-15", "setting-has-no-effect", "a divergence that enters nothing", |r, f| {
        let name = r.text("grpo.adv_estimator.name");
        let ignores =
            name.as_ref().is_some_and(|n| ["grpo", "gdpo", "opd"].contains(&n.value.as_str()));
        if in_reward(r) && ignores && r.is(Algorithm::Grpo) {
            f.at(
                "the divergence leaves the loss, and this estimator does not put it into rewards",
                &["loss_fn.use_kl_in_reward", "grpo.adv_estimator.name", KL],
            )
            .help("`loss_fn.use_kl_in_reward: false`, or `reinforce_plus_plus` as estimator");
        }
    }),
    warning("ALG-16", "setting-has-no-effect", "clamps that rewards do not use", |r, f| {
        for (path, usual) in
            [("loss_fn.kl_input_clamp_value", 20.0), ("loss_fn.kl_output_clamp_value", 10.0)]
        {
            if in_reward(r) && r.num(path).is_some_and(|v| v.value != usual) && rl(r) {
                f.at(
                    format!("in rewards the divergence is always clamped to {usual}"),
                    &[path, "loss_fn.use_kl_in_reward"],
                )
                .help(format!("`{path}: {usual}`"));
            }
        }
    }),
    note("ALG-17", "setting-has-no-effect", "log-probs are computed all the same", |r, f| {
        let Some(section) = r.section() else { return };
        let threshold = format!("{section}.seq_logprob_error_threshold");
        if r.on("loss_fn.force_on_policy_ratio") && r.has(&threshold) && r.is_rl() {
            f.at(
                "log-probs are computed for the threshold: a ratio of one saves no time",
                &["loss_fn.force_on_policy_ratio", &threshold],
            )
            .help("nothing to do, if this is meant");
        }
    }),
    error("ALG-40", "not-a-choice", "unknown divergence of distillation", |r, f| {
        if r.is(Algorithm::Distillation) {
            f.choice("loss_fn.kl_type", &["forward", "reverse", "mixed"]);
            if let Some(w) =
                r.num("loss_fn.mixed_kl_weight").filter(|w| !(0.0..=1.0).contains(&w.value))
            {
                f.found(format!("a mixture cannot be {} forward", w.value), &[&w])
                    .help("`loss_fn.mixed_kl_weight: 0.5`");
            }
        }
    }),
    error("ALG-42", EXCLUDE, "options of cross-tokenizer distillation", cross_tokenizer),
    warning("ALG-47", "out-of-range", "clips in the wrong order", |r, f| {
        let (Some(low), Some(high)) =
            (r.num("loss_fn.ratio_clip_min"), r.num("loss_fn.ratio_clip_max"))
        else {
            return;
        };
        if low.value > high.value && r.is_rl() {
            f.found(
                format!("the ratio may fall by {} but rise by only {}", low.value, high.value),
                &[&low, &high],
            )
            .help(format!(
                "usually the other way: `ratio_clip_min: {}`, `ratio_clip_max: {}`",
                high.value, low.value
            ));
        }
        if let Some(low) = Some(low).filter(|low| low.value > 1.0) {
            f.found(format!("the ratio cannot fall by {}: it is positive", low.value), &[&low])
                .severity(Severity::Error)
                .help("`loss_fn.ratio_clip_min: 0.2`");
        }
    }),
    warning("ALG-48", "uncorrected-off-policy", "several updates without a ratio", |r, f| {
        let path = "loss_fn.disable_ppo_ratio";
        let (Some(all), Some(w)) = (r.samples(), r.policy()) else { return };
        let Some(global) = w.global_batch.as_ref().filter(|g| g.value > 0) else { return };
        if r.on(path) && r.is_rl() && all.value / global.value > 1 {
            let text = format!(
                "{} updates per step without a ratio: all but the first learn from another policy's samples",
                all.value / global.value
            );
            f.found(text, &[&r.flag(path), global, &all])
                .help(format!("`{}: {}`, or `{path}: false`", global.name, all.value));
        }
    }),
    error("ALG-51", "out-of-range", "a negative weight of good examples", |r, f| {
        if let Some(w) = r.num("loss_fn.positive_example_nll_weight").filter(|w| w.value < 0.0) {
            f.found(format!("good examples cannot weigh {}", w.value), &[&w])
                .help(format!("`{}: 0`", w.name));
        }
    }),
    note("ALG-52", "worth-knowing", "the reference of an adapter", |r, f| {
        let kl = r.loss.kl.as_ref().filter(|kl| kl.value > 0.0 && r.is_rl());
        if let (Some(kl), Some(w)) =
            (kl, r.policy().filter(|w| w.adapts() && w.is(Backend::Megatron)))
        {
            f.found("the reference is the model without adapters", &[kl, &w.lora])
                .help("nothing to do, if this is meant");
        }
    }),
];

fn rl(r: &Recipe) -> bool {
    r.is_rl() && r.has("loss_fn")
}

fn in_reward(r: &Recipe) -> bool {
    r.loss.kl_in_reward.as_ref().is_some_and(|k| k.value)
        && r.loss.kl.as_ref().is_some_and(|k| k.value != 0.0)
}

fn cross_tokenizer(r: &Recipe, f: &mut Findings<'_>) {
    if !r.is(Algorithm::CrossTokenizer) {
        return;
    }
    if r.on("loss_fn.xtoken_loss") && !r.on("loss_fn.gold_loss") {
        f.at(
            "`xtoken_loss` is a form of `gold_loss`, which is off",
            &["loss_fn.xtoken_loss", "loss_fn.gold_loss"],
        )
        .help("`loss_fn.gold_loss: true`");
    }
    f.choice("loss_fn.kd_loss_mode", &["sum", "averaged_logits", "select_teacher"]);
    let sums = r.says("loss_fn.kd_loss_mode", "sum");
    if !sums && r.has("loss_fn.kd_loss_mode") {
        if r.has("loss_fn.sum_weights_metric") {
            f.at(
                "weights of teachers are for summed losses",
                &["loss_fn.sum_weights_metric", "loss_fn.kd_loss_mode"],
            )
            .help("`loss_fn.kd_loss_mode: sum`, or no metric");
        }
        if r.on("loss_fn.normalize_teacher_by_vocab") {
            f.at(
                "losses are normalized by vocabulary only where they are summed",
                &["loss_fn.normalize_teacher_by_vocab", "loss_fn.kd_loss_mode"],
            )
            .help("`loss_fn.kd_loss_mode: sum`, or no normalization");
        }
    }
    let teachers = r.node("teachers").map_or(0, |n| n.items().len());
    let weights: Vec<_> =
        (0..teachers).filter_map(|i| r.num(&format!("teachers.{i}.weight"))).collect();
    if !weights.is_empty()
        && weights.len() == teachers
        && weights.iter().map(|w| w.value).sum::<f64>() == 0.0
    {
        f.found("the weights of all teachers are 0 together", &[&weights[0]]).help("`weight: 1`");
    }
}
