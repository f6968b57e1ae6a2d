//! `config.json` in and out.

use serde_json::{Map, Value, json};

use crate::{Experts, Hybrid, Latent, ModelFacts};

/// The configuration of the language model, where that is a part of a model that reads images or sound too.
pub fn language_part(config: &Value) -> Option<&Value> {
    let inner = config.get("thinker_config").unwrap_or(config);
    ["text_config", "llm_config"].iter().find_map(|key| inner.get(key).filter(|v| v.is_object()))
}

/// Reads the dims of a `config.json`; a model with several inputs keeps them in `text_config`.
pub(crate) fn read(name: &str, text: &str) -> Result<ModelFacts, String> {
    let whole: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let inner = language_part(&whole);
    let config = inner.unwrap_or(&whole);
    let number = |keys: &[&str]| keys.iter().find_map(|key| config.get(key)?.as_u64());
    // What published checkpoints of Gemma 3 leave to their class.
    let gemma = config.get("model_type").and_then(Value::as_str) == Some("gemma3_text");
    let left_out = |key: &str| match key {
        "num_attention_heads" => Some(8),
        "vocab_size" => Some(262_208),
        "max_position_embeddings" => Some(131_072),
        _ => None,
    };
    let need = |keys: &[&str]| {
        let stated = number(keys).or(left_out(keys[0]).filter(|_| gemma));
        stated.ok_or_else(|| format!("it states no `{}`", keys[0]))
    };
    let heads = need(&["num_attention_heads"])?;
    let hidden = need(&["hidden_size"])?;
    let latent = config.get("kv_lora_rank").is_some_and(Value::is_u64);
    let head_dim = if latent {
        number(&["qk_nope_head_dim"]).unwrap_or(0) + number(&["qk_rope_head_dim"]).unwrap_or(0)
    } else {
        number(&["head_dim"]).unwrap_or(hidden / heads.max(1))
    };
    let flag =
        |key: &str, default: bool| config.get(key).and_then(Value::as_bool).unwrap_or(default);
    let architecture = whole
        .pointer("/architectures/0")
        .and_then(Value::as_str)
        .unwrap_or("unknown architecture")
        .to_string();
    let qwen2 = architecture.starts_with("Qwen2");
    let keys = number(&["linear_num_key_heads"]);
    Ok(ModelFacts {
        name: name.to_string(),
        layers: need(&["num_hidden_layers"])?,
        hidden,
        heads,
        kv_heads: number(&["num_key_value_heads"]).unwrap_or(heads),
        head_dim,
        ffn: number(&["intermediate_size"]),
        vocab: need(&["vocab_size"])?,
        tied: whole
            .get("tie_word_embeddings")
            .or(config.get("tie_word_embeddings"))
            .and_then(Value::as_bool)
            .unwrap_or(false),
        qkv_bias: flag("attention_bias", qwen2),
        qk_norm: ["Qwen3", "Gemma3", "MiniMax"].iter().any(|f| architecture.starts_with(f)),
        max_positions: need(&["max_position_embeddings"])?,
        rope_theta: theta(config, &architecture),
        rope_scaling: positions(config),
        sliding_window: number(&["sliding_window"]).filter(|_| flag("use_sliding_window", true)),
        experts: experts(config),
        latent_attention: latent,
        latent: number(&["kv_lora_rank"]).and_then(|kv| {
            Some(Latent {
                q: number(&["q_lora_rank"]).filter(|q| *q > 0),
                kv,
                rope: number(&["qk_rope_head_dim"])?,
                nope: number(&["qk_nope_head_dim"])?,
                value: number(&["v_head_dim"])?,
            })
        }),
        linear_heads: keys.zip(number(&["linear_num_value_heads"])),
        attention_layers: hybrid(config).map(|h| h.pattern.matches('*').count() as u64),
        hybrid: hybrid(config),
        multimodal: inner.is_some() || whole.get("vision_config").is_some(),
        params_b: None,
        eos: ids(config.get("eos_token_id").or(whole.get("eos_token_id"))),
        source: "config.json".to_string(),
        architecture,
    })
}

/// The base of the rotary embedding; 10,000 where a model that has one does not say.
fn theta(config: &Value, architecture: &str) -> Option<f64> {
    let said = config.get("rope_theta").or(config.pointer("/rope_parameters/rope_theta"));
    let none = architecture.starts_with("NemotronH");
    said.and_then(Value::as_f64).or(Some(10_000.0)).filter(|_| !none)
}

fn experts(config: &Value) -> Option<Experts> {
    let number = |keys: &[&str]| keys.iter().find_map(|key| config.get(key)?.as_u64());
    let shared =
        number(&["shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"]);
    let ffn = number(&["moe_intermediate_size"]).or(number(&["intermediate_size"]))?;
    Some(Experts {
        number: number(&["num_experts", "num_local_experts", "n_routed_experts"])?,
        top_k: number(&["num_experts_per_tok"])?,
        ffn,
        shared_ffn: shared.unwrap_or(number(&["n_shared_experts"]).unwrap_or(0) * ffn),
        first_dense: number(&["first_k_dense_replace"]).unwrap_or(0),
    })
}

/// What is said of positions beside their base: `linear factor 8; local theta 10000`.
fn positions(config: &Value) -> Option<String> {
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    let parts = [
        config.get("rope_scaling").and_then(scaling),
        number("rope_local_base_freq").map(|theta| format!("local theta {theta}")),
        number("rotary_dim").map(|n| format!("partial rotary: rotary_dim {n}")),
    ];
    let said: Vec<String> = parts.into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Mixers of a config.json that has a pattern of layers, or a list of their kinds.
fn hybrid(config: &Value) -> Option<Hybrid> {
    let number = |keys: &[&str]| keys.iter().find_map(|key| config.get(key)?.as_u64());
    let pattern = config.get("hybrid_override_pattern").and_then(Value::as_str);
    Some(Hybrid {
        pattern: pattern.map(str::to_string).or_else(|| kinds(config))?,
        heads: number(&["mamba_num_heads"])?,
        head_dim: number(&["mamba_head_dim"])?,
        state: number(&["ssm_state_size"])?,
        groups: number(&["n_groups"])?,
        conv: number(&["conv_kernel"])?,
        latent: number(&["moe_latent_size"]).filter(|n| *n > 0),
    })
}

/// The pattern that a list of kinds of layers, `layers_block_type`, says.
fn kinds(config: &Value) -> Option<String> {
    let kind = |v: &Value| match v.as_str()? {
        "mamba" => Some('M'),
        "attention" => Some('*'),
        "mlp" => Some('-'),
        "moe" => Some('E'),
        _ => None,
    };
    config.get("layers_block_type")?.as_array()?.iter().map(kind).collect()
}

/// `llama3 factor 8 ..` of a `rope_scaling` map.
fn scaling(value: &Value) -> Option<String> {
    let map = value.as_object()?;
    let kind = map.get("rope_type").or(map.get("type"))?.as_str()?;
    let short = [
        ("factor", "factor"),
        ("low_freq_factor", "low"),
        ("high_freq_factor", "high"),
        ("original_max_position_embeddings", "orig"),
        ("mscale", "mscale"),
    ];
    let words = short
        .iter()
        .filter_map(|(key, word)| Some(format!(" {word} {}", map.get(*key)?.as_f64()?)));
    if let Some(section) = map.get("mrope_section").and_then(Value::as_array) {
        let sizes: Vec<String> = section.iter().map(ToString::to_string).collect();
        return Some(format!("{kind} [{}]", sizes.join(";")));
    }
    let whole = match map.get("truncate").and_then(Value::as_bool) {
        Some(truncate) => format!(" truncate {truncate}"),
        None => String::new(),
    };
    (kind != "default").then(|| format!("{kind}{}{whole}", words.collect::<String>()))
}

fn ids(value: Option<&Value>) -> Vec<u64> {
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).collect(),
        Some(one) => one.as_u64().into_iter().collect(),
        None => Vec::new(),
    }
}

/// Writes the dims as a `config.json`, for the families whose models the library has.
pub(crate) fn write(m: &ModelFacts) -> Option<String> {
    let kind = match m.architecture.as_str() {
        "LlamaForCausalLM" => "llama",
        "MistralForCausalLM" => "mistral",
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        "Qwen3MoeForCausalLM" => "qwen3_moe",
        "DeepseekV3ForCausalLM" => "deepseek_v3",
        "Glm4MoeLiteForCausalLM" => "glm4_moe_lite",
        "Glm4MoeForCausalLM" => "glm4_moe",
        "Gemma3ForCausalLM" => "gemma3_text",
        "Gemma3ForConditionalGeneration" => "gemma3",
        "GptOssForCausalLM" => "gpt_oss",
        "MiniMaxM2ForCausalLM" => "minimax_m2",
        "Qwen2_5_VLForConditionalGeneration" => "qwen2_5_vl",
        "Qwen2_5OmniForConditionalGeneration" => "qwen2_5_omni",
        "Qwen3OmniMoeForConditionalGeneration" => "qwen3_omni_moe",
        "Mistral3ForConditionalGeneration" => "mistral3",
        "NemotronHForCausalLM" => "nemotron_h",
        _ => return None,
    };
    let gemma = kind.starts_with("gemma3");
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| {
        config.insert(key.to_string(), value);
    };
    put("architectures", json!([m.architecture]));
    put("model_type", json!(kind));
    put("hidden_size", json!(m.hidden));
    put("intermediate_size", json!(m.ffn));
    put("num_hidden_layers", json!(m.layers));
    put("num_attention_heads", json!(m.heads));
    put("num_key_value_heads", json!(m.kv_heads));
    put("head_dim", json!(m.head_dim));
    put("vocab_size", json!(m.vocab));
    put("tie_word_embeddings", json!(m.tied));
    put("max_position_embeddings", json!(m.max_positions));
    if let Some(h) = &m.hybrid {
        put("hybrid_override_pattern", json!(h.pattern));
        put("mamba_num_heads", json!(h.heads));
        put("mamba_head_dim", json!(h.head_dim));
        put("ssm_state_size", json!(h.state));
        put("n_groups", json!(h.groups));
        put("conv_kernel", json!(h.conv));
        put("use_conv_bias", json!(true));
        put("mamba_hidden_act", json!("silu"));
        put("mlp_hidden_act", json!("relu2"));
        put("layer_norm_epsilon", json!(1e-5));
    } else {
        put("rope_theta", json!(m.rope_theta?));
        let fine = gemma || kind.starts_with("qwen") || kind == "minimax_m2";
        put("rms_norm_eps", json!(if fine { 1e-6 } else { 1e-5 }));
        put("hidden_act", json!(if gemma { "gelu_pytorch_tanh" } else { "silu" }));
    }
    put("torch_dtype", json!("bfloat16"));
    put("eos_token_id", json!(m.eos));
    for part in m.rope_scaling.iter().flat_map(|text| text.split("; ")) {
        if let Some(theta) = part.strip_prefix("local theta ") {
            put("rope_local_base_freq", json!(theta.parse::<f64>().ok()?));
        } else if let Some(turned) = part.strip_prefix("partial rotary: rotary_dim ") {
            put("rotary_dim", json!(turned.parse::<u64>().ok()?));
        } else {
            put("rope_scaling", rope(part)?);
        }
    }
    if let (Some(window), true) = (m.sliding_window, gemma || kind == "gpt_oss") {
        put("sliding_window", json!(window));
    }
    if gemma {
        // Scores are by the size of a head, in the largest model by hidden size over heads.
        let even = m.hidden / m.heads;
        put("query_pre_attn_scalar", json!(if m.hidden > 5000 { even } else { 256 }));
    }
    if m.multimodal {
        put("vision_config", json!({}));
    }
    if m.qkv_bias && matches!(kind, "gpt_oss" | "glm4_moe") {
        put("attention_bias", json!(true));
    }
    if let Some(l) = m.latent {
        put("q_lora_rank", json!(l.q.unwrap_or(0)));
        put("kv_lora_rank", json!(l.kv));
        put("qk_rope_head_dim", json!(l.rope));
        put("qk_nope_head_dim", json!(l.nope));
        put("v_head_dim", json!(l.value));
    }
    if let (Some(e), "gpt_oss" | "minimax_m2") = (m.experts, kind) {
        put("num_local_experts", json!(e.number));
        put("num_experts_per_tok", json!(e.top_k));
    } else if let (Some(e), "deepseek_v3" | "glm4_moe_lite" | "glm4_moe") = (m.experts, kind) {
        put("n_routed_experts", json!(e.number));
        put("num_experts_per_tok", json!(e.top_k));
        put("moe_intermediate_size", json!(e.ffn));
        put("n_shared_experts", json!(e.shared_ffn / e.ffn));
        put("first_k_dense_replace", json!(e.first_dense));
        put("norm_topk_prob", json!(true));
    } else if let (Some(e), Some(h)) = (m.experts, &m.hybrid) {
        put("n_routed_experts", json!(e.number));
        put("num_experts_per_tok", json!(e.top_k));
        put("moe_intermediate_size", json!(e.ffn));
        put("moe_shared_expert_intermediate_size", json!(e.shared_ffn));
        put("moe_latent_size", json!(h.latent.unwrap_or(0)));
        put("norm_topk_prob", json!(true));
    } else if let Some(e) = m.experts {
        put("num_experts", json!(e.number));
        put("num_experts_per_tok", json!(e.top_k));
        put("moe_intermediate_size", json!(e.ffn));
        put("norm_topk_prob", json!(true));
        put("decoder_sparse_step", json!(1));
    }
    Some(Value::Object(config).to_string())
}

/// A `rope_scaling` map of `llama3 factor 8 low 1 high 4 orig 8192`, or of `mrope [16;24;24]`.
fn rope(text: &str) -> Option<Value> {
    let mut words = text.split(' ');
    let mut map = Map::new();
    let kind = words.next()?;
    map.insert("rope_type".into(), json!(kind));
    if kind == "mrope" {
        let sizes = words.next()?.trim_matches(['[', ']']).split(';');
        let sizes: Result<Vec<u64>, _> = sizes.map(str::parse).collect();
        map.insert("mrope_section".into(), json!(sizes.ok()?));
        return words.next().is_none().then_some(Value::Object(map));
    }
    while let (Some(word), Some(number)) = (words.next(), words.next()) {
        let key = match word {
            "truncate" => {
                map.insert(word.into(), json!(number.parse::<bool>().ok()?));
                continue;
            }
            "factor" => "factor",
            "low" => "low_freq_factor",
            "high" => "high_freq_factor",
            "orig" => "original_max_position_embeddings",
            "mscale" => "mscale",
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        let whole = key == "original_max_position_embeddings";
        map.insert(key.into(), if whole { json!(number as u64) } else { json!(number) });
    }
    Some(Value::Object(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_config_reads_back_as_the_same_dims() {
        let mut written = 0;
        for m in crate::models() {
            let Some(text) = m.config_json() else { continue };
            let back = read(&m.name, &text).unwrap();
            written += 1;
            let dims = |m: &ModelFacts| {
                (
                    m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.tied,
                    m.experts,
                )
            };
            assert_eq!(dims(&back), dims(m), "{}", m.name);
            assert_eq!(back.rope_scaling, m.rope_scaling, "{}", m.name);
            assert_eq!((back.eos, back.max_positions), (m.eos.clone(), m.max_positions));
        }
        assert!(written > 30, "{written}");
    }

    #[test]
    fn a_nested_text_config_is_found() {
        let text = r#"{"architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "text_config": {"num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16,
              "num_key_value_heads": 2, "intermediate_size": 11008, "vocab_size": 151936,
              "max_position_embeddings": 128000}, "tie_word_embeddings": true}"#;
        let facts = read("x", text).unwrap();
        assert!(facts.multimodal && facts.tied);
        assert_eq!((facts.heads, facts.kv_heads, facts.head_dim), (16, 2, 128));
        assert!(read("x", "{}").unwrap_err().contains("num_attention_heads"));
    }
}
