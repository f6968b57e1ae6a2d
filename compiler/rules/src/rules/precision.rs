//! Number formats of training and of generation.

use crate::recipe::{Algorithm, Backend, Engine, Generation, Recipe, Role, Worker};
use crate::rule::{Rule, error, warning};

const CODE: &str = "precision-conflict";

/// Names of ModelOpt's configurations, as its documentation lists them.
const QUANTIZED: &[&str] = &[
    "FP8_DEFAULT_CFG",
    "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "FP8_KV_CFG",
    "INT4_AWQ_CFG",
    "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
    "INT8_DEFAULT_CFG",
    "INT8_SMOOTHQUANT_CFG",
    "INT8_WEIGHT_ONLY_CFG",
    "MXFP4_DEFAULT_CFG",
    "MXFP4_MLP_WEIGHT_ONLY_CFG",
    "MXFP6_DEFAULT_CFG",
    "MXFP8_DEFAULT_CFG",
    "MXINT8_DEFAULT_CFG",
    "NVFP4_AWQ_CLIP_CFG",
    "NVFP4_AWQ_FULL_CFG",
    "NVFP4_AWQ_LITE_CFG",
    "NVFP4_DEFAULT_CFG",
    "NVFP4_KV_CFG",
    "NVFP4_MLP_ONLY_CFG",
    "NVFP4_MLP_WEIGHT_ONLY_CFG",
    "NVFP4_SVDQUANT_DEFAULT_CFG",
    "W4A8_AWQ_BETA_CFG",
    "W4A8_MXFP4_FP8_CFG",
    "W4A8_NVFP4_FP8_CFG",
];

/// Rules of precision.
pub const RULES: &[Rule] = &[
    error("PREC-01", "not-a-choice", "unknown precision of training", |r, f| {
        for w in r.workers.iter().filter(|w| w.role != Role::Scorer) {
            f.choice(&w.at("precision"), &["bfloat16", "float32", "float16"]);
        }
    }),
    error("PREC-02", "uncorrected-off-policy", "rollouts in FP8 without correction", |r, f| {
        let Some(g) = fp8(r).filter(|_| r.is_rl()) else { return };
        let corrected = r.loss.corrected.as_ref().is_some_and(|c| c.value);
        if !corrected {
            let path = "loss_fn.use_importance_sampling_correction";
            f.at(
                "rollouts in FP8 come from another policy, and nothing corrects for it",
                &[path, &g.at("vllm_cfg.precision")],
            )
            .help(format!("`{path}: true`"));
        }
    }),
    error("PREC-03", CODE, "a cache in FP8 of weights that are not", |r, f| {
        let Some((g, path)) = cache(r) else { return };
        if g.precision.as_ref().is_none_or(|p| p.value != "fp8") {
            f.at("a cache in FP8 needs weights in FP8", &[&path, &g.at("vllm_cfg.precision")])
                .help(format!("`{}: fp8`, or `{path}: auto`", g.at("vllm_cfg.precision")));
        }
    }),
    error("PREC-04, REFIT-20", CODE, "what a cache in FP8 excludes", |r, f| {
        let Some((g, path)) = cache(r).filter(|_| r.is_rl()) else { return };
        let Some(w) = r.policy() else { return };
        if w.is_torch() {
            f.found(
                "only Megatron measures the scales of a cache in FP8",
                &[&r.text(&path), &w.backend],
            )
            .help(format!("`{path}: auto`"));
        }
        if g.asynchronous.as_ref().is_some_and(|a| a.value) {
            f.found(
                "a cache in FP8 does not go with the async engine",
                &[&r.text(&path), &g.asynchronous],
            )
            .help(format!("`{path}: auto`"));
        }
        if w.is(Backend::Megatron) && w.mesh.pp() > 1 {
            f.found(
                "a cache in FP8 does not go with pipeline stages of training",
                &[&r.text(&path), &w.mesh.pp],
            )
            .help(format!("`{path}: auto`"));
        }
    }),
    error("PREC-05", "not-a-choice", "unknown format of the cache", |r, f| {
        if let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) {
            f.choice(&g.at("vllm_cfg.kv_cache_dtype"), &["auto", "fp8", "fp8_e4m3"]);
        }
    }),
    error("PREC-06", CODE, "MXFP8 without FP8", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm)) else { return };
        let path = g.at("vllm_cfg.is_mx");
        if r.on(&path) && fp8(r).is_none() {
            f.at("MXFP8 is a form of FP8, which is off", &[&path, &g.at("vllm_cfg.precision")])
                .help(format!("`{}: fp8`", g.at("vllm_cfg.precision")));
        }
        let pow2 = g.at("vllm_cfg.pow2_weight_scaling_factors");
        if r.on(&path) && r.off(&pow2) {
            f.at("scales of MXFP8 are powers of two", &[&pow2, &path])
                .help(format!("`{pow2}: true`"));
        }
    }),
    error(
        "PREC-08",
        "needs-another-setting",
        "FP8 training without all of its settings",
        |r, f| {
            for (w, at) in eights(r) {
                for name in ["fp8", "fp8_recipe", "fp8_param"] {
                    if !r.has(&at(name)) {
                        f.at(
                            format!("training in FP8 needs `{name}` too"),
                            &[&at(name), &w.cfg("fp8_cfg.enabled")],
                        )
                        .help(format!("set `{}`", at(name)));
                    }
                }
            }
        },
    ),
    error("PREC-09", CODE, "what FP8 training excludes", |r, f| {
        for (w, at) in eights(r) {
            f.choice(&at("fp8"), &["e4m3", "hybrid"]);
            f.choice(&at("fp8_recipe"), &["tensorwise", "delayed", "blockwise", "mxfp8", "custom"]);
            let first = w.cfg("model_overrides.first_last_layers_bf16");
            if r.on(&first) && r.says(&at("fp8_recipe"), "delayed") {
                f.at("delayed scaling has no layers in bf16", &[&at("fp8_recipe"), &first])
                    .help(format!("`{}: blockwise`", at("fp8_recipe")));
            }
            let layers = w.model.as_ref().map(|m| m.layers as i64);
            for name in ["num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"] {
                let n = r.int(&w.cfg(&format!("model_overrides.{name}")));
                if let (Some(n), Some(layers)) = (n, layers)
                    && (n.value < 0 || n.value > layers)
                {
                    f.found(format!("{} layers of {layers} cannot be in bf16", n.value), &[&n])
                        .help(format!("0 to {layers}"));
                }
            }
        }
    }),
    warning("PREC-12", "worth-knowing", "weights in FP8", |r, f| {
        for (_, at) in eights(r) {
            if r.on(&at("fp8_param")) {
                f.at("weights kept in FP8 can give log-prob errors of NaN", &[&at("fp8_param")])
                    .help(format!("`{}: false`", at("fp8_param")));
            }
        }
    }),
    warning(
        "PREC-15",
        "different-distributions",
        "generation of another half precision",
        |r, f| {
            let (Some(g), Some(w)) = (&r.generation, r.policy()) else { return };
            let (Some(own), Some(train)) = (&g.precision, &w.precision) else { return };
            let halves = ["bfloat16", "float16", "bf16", "fp16", "half"];
            let both =
                halves.contains(&own.value.as_str()) && halves.contains(&train.value.as_str());
            if both && own.value.starts_with('b') != train.value.starts_with('b') && r.is_rl() {
                f.found(
                    format!("generation rounds to {} and training to {}", own.value, train.value),
                    &[own, train],
                )
                .help(format!("`{}: ${{{}}}`", own.name, train.name));
            }
        },
    ),
    warning("PREC-20", "different-distributions", "log-probs after other processors", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Vllm) && r.is_rl()) else {
            return;
        };
        let path = g.at("vllm_cfg.logprobs_mode");
        let scaled = g.temperature.as_ref().is_some_and(|t| t.value != 1.0);
        if r.text(&path).is_some_and(|m| m.value.starts_with("raw")) && (g.filters() || scaled) {
            f.at("the engine reports log-probs before temperature and filters, training takes them after", &[&path, &g.at("temperature"), &g.at("top_p")])
                .help(format!("`{path}: processed_logprobs`"));
        }
        for name in ["presence_penalty", "frequency_penalty", "repetition_penalty"] {
            let path = g.at(name);
            let neutral = if name == "repetition_penalty" { 1.0 } else { 0.0 };
            if r.num(&path).is_some_and(|p| p.value != neutral) {
                f.at(format!("training knows no `{name}`"), &[&path])
                    .help(format!("remove `{path}`"));
            }
        }
    }),
    // Beyond the catalogue: training filters its logits as the sampler does, each by its own numbers.
    warning(
        "PREC-22",
        "different-distributions",
        "samples of part of the vocabulary, without a correction",
        |r, f| {
            let Some(g) = r.generation.as_ref().filter(|g| g.filters() && r.is_rl()) else {
                return;
            };
            let corrected = r.loss.corrected.as_ref().is_some_and(|c| c.value);
            if !corrected {
                f.found(
                    "samples are drawn from part of the vocabulary, and nothing corrects where training keeps another part",
                    &[&g.top_p, &g.top_k, &r.loss.corrected],
                )
                .note("engine and trainer round differently at the edge: a token that was drawn may have no probability in training")
                .help(format!(
                    "`{}: 1.0` and `{}: null`, or `loss_fn.use_importance_sampling_correction: true`",
                    g.at("top_p"),
                    g.at("top_k")
                ));
            }
        },
    ),
    // Beyond the catalogue: bf16 has 8 significant bits, so small updates of large weights are lost.
    warning("PREC-23", "update-below-precision", "updates that bf16 rounds away", |r, f| {
        for w in &r.workers {
            let (Some(master), Some(rate)) = (&w.master, &w.rate) else { continue };
            if master.value != "bf16" && master.value != "bfloat16" || rate.value <= 0.0 {
                continue;
            }
            let (largest, lost) = (moved(rate.value), lost(rate.value));
            if lost < 0.5 {
                continue;
            }
            let update = scientific(rate.value);
            let told = f.found(
                format!(
                    "bf16 weights without master copies: an update of {update} rounds away for {} % of weights (typical size {TYPICAL})",
                    whole_percent(lost)
                ),
                &[master, rate],
            );
            told.note(format!(
                "bf16 has 8 significant bits: at {TYPICAL} its numbers are {} apart, and less than half of that changes nothing; {update} changes weights below {} only",
                scientific(spacing(TYPICAL)),
                scientific(largest)
            ))
            .help(match r.settings.is_some() {
                true => format!("`{}: true` (+ 4 bytes per parameter, over dp)", w.cfg("optimizer.use_distributed_optimizer")),
                false => "`master: f32` (+ 4 bytes per parameter, over dp)".to_string(),
            });
        }
    }),
    error("PREC-19", CODE, "padded routes without FP8", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let path = w.cfg("model_overrides.moe_router_padding_for_quantization");
            let old = w.cfg("model_overrides.moe_router_padding_for_fp8");
            for path in [path, old].into_iter().filter(|p| r.on(p)) {
                if !r.on(&w.cfg("fp8_cfg.enabled")) {
                    f.at(
                        "routes are padded for FP8, which is off",
                        &[&path, &w.cfg("fp8_cfg.enabled")],
                    )
                    .help(format!("`{path}: false`"));
                } else if r.says(&w.cfg("moe_token_dispatcher_type"), "allgather") {
                    f.at(
                        "routes are not padded by this dispatcher",
                        &[&path, &w.cfg("moe_token_dispatcher_type")],
                    )
                    .help(format!("`{}: alltoall`", w.cfg("moe_token_dispatcher_type")));
                }
            }
        }
    }),
    error("PREC-15b", "not-a-choice", "unknown precision of vLLM", |r, f| {
        let Some(g) =
            r.generation.as_ref().filter(|g| g.is(Engine::Vllm) && !r.is(Algorithm::Eval))
        else {
            return;
        };
        f.choice(
            &g.at("vllm_cfg.precision"),
            &["bfloat16", "fp8", "float16", "float32", "auto", "half", "bf16", "fp16", "float"],
        );
    }),
    error("REFIT-19", "not-a-choice", "a way to quantize that nobody knows", |r, f| {
        for path in ["policy.quant_cfg", "policy.generation.quant_cfg"] {
            let Some(quant) = r.text(path) else { continue };
            let file = [".yaml", ".yml", ".json"].iter().any(|end| quant.value.ends_with(end));
            let near = nrl_base::nearest(&quant.value, QUANTIZED.iter().copied());
            let known = QUANTIZED.contains(&quant.value.as_str());
            let named = quant.value.ends_with("_CFG") && near.is_none();
            if !(file || known || named) {
                let help = near.map(|near| format!("did you mean `{near}`?"));
                f.found(format!("there is no way to quantize called `{}`", quant.value), &[&quant])
                    .help(
                        help.unwrap_or_else(|| format!("`{path}: NVFP4_DEFAULT_CFG`, or a file")),
                    );
            }
        }
    }),
    warning(
        "REFIT-18",
        "needs-another-setting",
        "quantization without data to calibrate",
        |r, f| {
            let Some(quant) = r.text("policy.quant_cfg") else { return };
            let name = quant.value.to_ascii_lowercase();
            // Scales of weights alone need no data.
            let weights = ["weight_only", "weightonly", "weight-only", "a16"];
            let path = "policy.quant_calib_data";
            if !weights.iter().any(|word| name.contains(word)) && r.text(path).is_none() {
                f.found(
                    "scales of activations are measured on data, and none are named",
                    &[&quant],
                )
                .help(format!("`{path}: cnn_dailymail`, with `policy.quant_calib_size: 512`"));
            }
        },
    ),
];

/// vLLM with weights in FP8.
fn fp8(r: &Recipe) -> Option<&Generation> {
    let g = r.generation.as_ref().filter(|g| g.is(Engine::Vllm))?;
    g.precision.as_ref().is_some_and(|p| p.value == "fp8").then_some(g)
}

/// vLLM with a cache in FP8, and where that is said.
fn cache(r: &Recipe) -> Option<(&Generation, String)> {
    let g = r.generation.as_ref().filter(|g| g.is(Engine::Vllm))?;
    let path = g.at("vllm_cfg.kv_cache_dtype");
    r.text(&path).is_some_and(|k| k.value.starts_with("fp8")).then_some((g, path))
}

/// Megatron workers that train in FP8, and the paths of their settings.
fn eights(r: &Recipe) -> Vec<(&Worker, impl Fn(&str) -> String + use<>)> {
    let on = |w: &&Worker| w.is(Backend::Megatron) && r.on(&w.cfg("fp8_cfg.enabled"));
    let workers = r.workers.iter().filter(on);
    workers
        .map(|w| {
            let section = w.cfg("fp8_cfg");
            (w, move |name: &str| format!("{section}.{name}"))
        })
        .collect()
}

/// Deviation of the weights of trained models, in round numbers; most start from it
/// (`initializer_range` of their configurations).
const TYPICAL: f64 = 0.02;

/// The distance of neighbors in bf16 (7 bits behind the leading one) at `x`.
fn spacing(x: f64) -> f64 {
    (x.abs().log2().floor() - 7.0).exp2()
}

/// Below this size a weight in bf16 changes by an update of size `u`: half a distance is `u` or less.
fn moved(u: f64) -> f64 {
    ((2.0 * u).log2().floor() + 8.0).exp2()
}

/// The share of normal weights of the typical deviation that an update of size `u` leaves as they are.
fn lost(u: f64) -> f64 {
    1.0 - erf(moved(u) / (TYPICAL * std::f64::consts::SQRT_2))
}

/// The error function, to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26).
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let terms = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = terms.iter().fold(0.0, |sum, a| (sum + a) * t);
    1.0 - sum * (-x * x).exp()
}

/// `5e-7`, `1.2e-4`, `0.5`: two digits.
fn scientific(x: f64) -> String {
    if x >= 0.01 {
        return format!("{}", (x * 1000.0).round() / 1000.0);
    }
    let text = format!("{x:.1e}");
    text.replace(".0e", "e")
}

/// Whole percent, never 100 where something is left.
fn whole_percent(share: f64) -> u32 {
    (share * 100.0).round().min(99.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0.02 is between 2^-6 and 2^-5, so its neighbors are 2^-13 away; twice 5e-7 is just over 2^-20, the
    /// distance between 2^-13 and 2^-12. Of a normal law 0.97 % is within 0.0122 deviations.
    #[test]
    fn what_rounds_away_in_bf16() {
        assert_eq!(spacing(0.02), 2f64.powi(-13));
        assert_eq!(moved(5e-7), 2f64.powi(-12));
        assert!((lost(5e-7) - 0.9903).abs() < 1e-4, "{}", lost(5e-7));
        assert!(lost(1e-3) < 1e-6);
        assert_eq!(scientific(5e-7), "5e-7");
        assert_eq!(scientific(spacing(0.02)), "1.2e-4");
        assert!((erf(1.0) - 0.842_700_793).abs() < 2e-7);
    }
}
