//! Rotary frequencies, as transformers computes them from config.json.
//!
//! In: `rope_theta` and `rope_scaling` (or `rope_parameters`), under the old key `type` or the new `rope_type`.
//! Out: one inverse frequency per pair of a head's dims, in f64. Llama 3's scaling keeps short waves, divides long
//! ones and blends between; yarn is Peng et al. 2023 with the same ramp as transformers.

use std::f64::consts::TAU;

use serde_json::Value;

use super::config::{ConfigError, Keys, ModelConfig, RopeScaling};

/// `head_dim / 2` inverse frequencies; angle = position * frequency.
pub fn rope_inv_freq(cfg: &ModelConfig) -> Vec<f64> {
    let dim = cfg.head_dim as f64;
    let plain = (0..cfg.head_dim / 2).map(|i| cfg.rope_theta.powf(-2.0 * i as f64 / dim));
    match &cfg.rope_scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        &RopeScaling::Llama3 { factor, low, high, original } => {
            plain.map(|f| llama3(f, factor, low, high, original)).collect()
        }
        &RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
            let edge =
                |turns: f64| dim * (original / (turns * TAU)).ln() / (2.0 * cfg.rope_theta.ln());
            let (mut first, mut last) = (edge(beta_fast), edge(beta_slow));
            if truncate {
                (first, last) = (first.floor(), last.ceil());
            }
            let (first, last) = (first.max(0.0), last.min(dim - 1.0));
            let width = if first == last { 0.001 } else { last - first };
            plain
                .enumerate()
                .map(|(i, f)| {
                    let stretched = ((i as f64 - first) / width).clamp(0.0, 1.0);
                    f / factor * stretched + f * (1.0 - stretched)
                })
                .collect()
        }
    }
}

/// What cos and sin are multiplied by: 1 except under yarn.
pub fn rope_attention_factor(cfg: &ModelConfig) -> f64 {
    match cfg.rope_scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        _ => 1.0,
    }
}

fn llama3(freq: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wave = TAU / freq;
    if wave < original / high {
        freq
    } else if wave > original / low {
        freq / factor
    } else {
        let smooth = (original / wave - low) / (high - low);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

/// Base and scaling from the keys of config.json.
pub(super) fn read(keys: &Keys, positions: usize) -> Result<(f64, RopeScaling), ConfigError> {
    let partial = keys.number("partial_rotary_factor", 1.0)?;
    if partial != 1.0 {
        return Err(keys.unsupported("partial_rotary_factor", partial, "only 1 is"));
    }
    let parameters = keys.get("rope_parameters");
    let name = if parameters.is_some() { "rope_parameters" } else { "rope_scaling" };
    let Some(value) = parameters.or_else(|| keys.get("rope_scaling")) else {
        return Ok((keys.number("rope_theta", 10_000.0)?, RopeScaling::None));
    };
    // Where kinds of layers have positions of their own, those without a window have these.
    let value = value.get("full_attention").unwrap_or(value);
    let table = value.as_object().ok_or_else(|| keys.wrong(name, value, "a table"))?;
    let inner = Keys { raw: table, path: keys.path, family: keys.family };
    let theta = inner.number("rope_theta", keys.number("rope_theta", 10_000.0)?)?;
    let kind = ["rope_type", "type"].iter().find_map(|k| inner.get(k));
    let kind = kind.map_or(Some("default"), Value::as_str).unwrap_or("");
    let need = |key: &str| match inner.get(key) {
        Some(_) => inner.number(key, 0.0),
        None => Err(keys.missing(&format!("{name}.{key}"))),
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
            original: need("original_max_position_embeddings")?,
        },
        "yarn" => yarn(&inner, need("factor")?, positions as f64)?,
        other => {
            let help = "supported are default, linear, llama3 and yarn";
            return Err(keys.unsupported(&format!("{name}.rope_type"), other, help));
        }
    };
    Ok((theta, scaling))
}

fn yarn(keys: &Keys, factor: f64, positions: f64) -> Result<RopeScaling, ConfigError> {
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let (m, all) = (keys.number("mscale", 0.0)?, keys.number("mscale_all_dim", 0.0)?);
    let default = if m != 0.0 && all != 0.0 { mscale(m) / mscale(all) } else { mscale(1.0) };
    let truncate = keys.get("truncate").and_then(Value::as_bool).unwrap_or(true);
    Ok(RopeScaling::Yarn {
        factor,
        original: keys.number("original_max_position_embeddings", positions)?,
        beta_fast: keys.number("beta_fast", 32.0)?,
        beta_slow: keys.number("beta_slow", 1.0)?,
        attention_factor: keys.number("attention_factor", default)?,
        truncate,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::config::tests::with;
    use super::*;

    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 2e-6 * expected.abs(), "{got} is not {expected}");
    }

    /// Case c64: the factor of the file is the one that acts.
    #[test]
    fn llama3_scaling_uses_the_factor_of_the_file() {
        let scaling = |factor: f64, key: &str| {
            let mut s = json!({"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192});
            s[key] = "llama3".into();
            let c =
                with(json!({"rope_theta": 500000.0, "head_dim": 64, "rope_scaling": s})).unwrap();
            rope_inv_freq(&c)
        };
        for key in ["rope_type", "type"] {
            let f = scaling(32.0, key);
            assert_eq!(f.len(), 32);
            let expected = [
                (0, 1.0),
                (14, 0.003_211_446),
                (16, 0.000_429_556_8),
                (18, 1.946_164e-5),
                (31, 9.418_307e-8),
            ];
            for (i, value) in expected {
                assert!((f[i] - value).abs() < 5e-7 * value, "{i}: {} is not {value}", f[i]);
            }
        }
        let f = scaling(8.0, "rope_type");
        assert!((f[16] - 5.2485e-4).abs() < 1e-8 && (f[18] - 7.7847e-5).abs() < 1e-9);
    }

    #[test]
    fn the_new_spelling_carries_base_and_scaling() {
        let c = with(
            json!({"rope_theta": null, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
        );
        assert_eq!(c.unwrap().rope_theta, 1e6);
        let c =
            with(json!({"head_dim": 4, "rope_scaling": {"type": "linear", "factor": 4}})).unwrap();
        assert_eq!(rope_inv_freq(&c), [0.25, 0.0025]);
    }

    /// Values of transformers 4.57 (`ROPE_INIT_FUNCTIONS["yarn"]`), which computes in f32.
    #[test]
    fn yarn_equals_transformers() {
        let c = with(
            json!({"head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 4096,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}}),
        );
        let c = c.unwrap();
        let expected = [
            1.0,
            0.3162277638912201,
            0.08125000447034836,
            0.019764237105846405,
            0.0043750000186264515,
            0.0007905694656074047,
            0.0002500000118743628,
            7.905694656074047e-05,
        ];
        for (got, want) in rope_inv_freq(&c).into_iter().zip(expected) {
            close(got, want);
        }
        close(rope_attention_factor(&c), 1.138629436111989);
    }

    #[test]
    fn unknown_and_incomplete_scalings_are_refused() {
        let e = with(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}})).unwrap_err();
        assert_eq!(
            e.to_string(),
            "m/config.json: `rope_scaling.rope_type` is dynamic, which is not supported; supported are default, \
             linear, llama3 and yarn"
        );
        let e = with(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})).unwrap_err();
        assert!(e.to_string().contains("lacks `rope_scaling.low_freq_factor`"), "{e}");
        assert!(with(json!({"partial_rotary_factor": 0.5})).is_err());
    }
}
