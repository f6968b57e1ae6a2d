//! `config.json` of a Hugging Face directory, in one spelling.

use nrl_facts::language_part;
use serde_json::{Map, Value};

/// Whether a model reads more than text.
pub fn is_multimodal(config: &Value) -> bool {
    let beside = ["vision_config", "audio_config", "thinker_config"];
    language_part(config).is_some() || beside.iter().any(|key| config.get(key).is_some())
}

/// How a checkpoint's weights are packed, such as `mxfp4`; none if they are plain numbers.
pub fn quantized(config: &Value) -> Option<&str> {
    let by = config.get("quantization_config").filter(|q| !q.is_null())?;
    Some(by.get("quant_method").and_then(Value::as_str).unwrap_or("an unnamed method"))
}

/// What an architecture has that no model of the library can say.
pub fn beyond(architecture: &str) -> Option<&'static str> {
    let known = [
        ("Qwen3_5", "most of its layers are linear attention (gated delta net)"),
        ("Qwen3Next", "most of its layers are linear attention (gated delta net)"),
        ("Gemma4", "its layers have heads of two sizes, and keys that are values too"),
        ("GlmMoeDsa", "an indexer chooses which keys each token sees"),
        ("Phi3", "it stretches positions by a factor for each pair (longrope)"),
    ];
    known.iter().find(|(name, _)| architecture.starts_with(name)).map(|(_, why)| *why)
}

/// Puts newer spellings into the older ones and refuses what would act and is not supported.
/// Returns the object, or a sentence that says what is wrong.
pub fn normalize(config: &Value) -> Result<Map<String, Value>, String> {
    let Value::Object(whole) = config else {
        return Err("config.json does not hold an object".into());
    };
    let mut o = whole.clone();
    if let Some(part) = language_part(config).and_then(Value::as_object) {
        o.extend(part.clone().into_iter().filter(|(key, _)| key != "architectures"));
    }
    let name = config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or("").to_string();
    positions(&mut o)?;
    scaling(&mut o)?;
    let act = ["hidden_activation", "hidden_act"].iter().find_map(|key| o.get(*key)?.as_str());
    let wanted = if name.starts_with("Gemma3") { "gelu_pytorch_tanh" } else { "silu" };
    if let Some(act) = act.filter(|act| *act != wanted) {
        return Err(format!("hidden_act is `{act}`; these models use `{wanted}`"));
    }
    if o.get("mlp_bias").and_then(Value::as_bool) == Some(true) {
        return Err("mlp_bias is true; a bias in the feed-forward block is not supported".into());
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = o.get(key).filter(|v| !v.is_null()) {
            return Err(format!("{key} is {cap}; logits that are capped are not supported"));
        }
    }
    if o.get("use_bidirectional_attention").and_then(Value::as_bool) == Some(true) {
        return Err("use_bidirectional_attention is true; attention here is causal".into());
    }
    hybrid(&mut o)?;
    let step = o.get("decoder_sparse_step").and_then(Value::as_u64).unwrap_or(1);
    let dense = o.get("mlp_only_layers").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    if step != 1 || dense {
        return Err("only some layers have experts; a mixture in every layer is supported".into());
    }
    let partial = o.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
    if partial != 1.0 && name != "Glm4MoeForCausalLM" {
        return Err(format!("partial_rotary_factor is {partial}; these models turn whole heads"));
    }
    // Where only some layers have a window, the model itself says which.
    if !["Gemma3", "GptOss"].iter().any(|family| name.starts_with(family)) {
        window(&mut o);
    }
    Ok(o)
}

/// Bases and scalings of positions from `rope_parameters`, also where kinds of layers have their own.
fn positions(o: &mut Map<String, Value>) -> Result<(), String> {
    let Some(Value::Object(said)) = o.get("rope_parameters").cloned() else { return Ok(()) };
    let kind = |key: &str| said.get(key).and_then(Value::as_object);
    let all = kind("full_attention").unwrap_or(&said);
    if let Some(near) = kind("sliding_attention") {
        if near.get("rope_type").and_then(Value::as_str).is_some_and(|t| t != "default") {
            return Err(
                "positions of layers with a window are scaled, which is not supported".into()
            );
        }
        o.insert(
            "rope_local_base_freq".into(),
            near.get("rope_theta").cloned().unwrap_or(Value::Null),
        );
    }
    for key in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = all.get(key) {
            o.insert(key.into(), value.clone());
        }
    }
    if all.get("rope_type").and_then(Value::as_str).is_some_and(|t| t != "default") {
        o.insert("rope_scaling".into(), Value::Object(all.clone()));
    }
    Ok(())
}

/// The scaling of positions under its newer key. Of text alone, positions in three directions are all the same.
fn scaling(o: &mut Map<String, Value>) -> Result<(), String> {
    let Some(Value::Object(mut scaling)) = o.get("rope_scaling").cloned() else { return Ok(()) };
    if let Some(t) = scaling.get("type").cloned() {
        scaling.entry("rope_type").or_insert(t);
    }
    let kind = scaling.get("rope_type").and_then(Value::as_str).unwrap_or("default").to_string();
    if kind == "mrope" {
        scaling.insert("rope_type".into(), "default".into());
    } else if !["default", "linear", "llama3", "yarn"].contains(&kind.as_str()) {
        return Err(format!(
            "rope scaling `{kind}` is not supported; default, linear, llama3 and yarn are"
        ));
    }
    if kind == "yarn" {
        sharpened(o, &mut scaling);
    }
    o.insert("rope_scaling".into(), Value::Object(scaling));
    Ok(())
}

/// What `yarn` leaves to be worked out: the context it starts from, and what multiplies turned queries and keys
/// (transformers, `modeling_rope_utils`).
fn sharpened(o: &mut Map<String, Value>, scaling: &mut Map<String, Value>) {
    const ORIGINAL: &str = "original_max_position_embeddings";
    if let Some(positions) = o.get("max_position_embeddings") {
        scaling.entry(ORIGINAL).or_insert(positions.clone());
    }
    let stretched = |key: &str| scaling.get(key).and_then(Value::as_f64);
    if let (Some(factor), Some(original)) = (stretched("factor"), stretched(ORIGINAL)) {
        // Positions up to here are those that the scaling is for.
        let most = (factor * original) as u64;
        let said = o.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(0);
        o.insert("max_position_embeddings".into(), most.max(said).into());
    }
    let number = |key: &str| scaling.get(key).and_then(Value::as_f64).filter(|x| *x != 0.0);
    if let (Some(factor), Some(one), Some(all)) =
        (number("factor"), number("mscale"), number("mscale_all_dim"))
    {
        let of = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        scaling.entry("attention_factor").or_insert((of(one) / of(all)).into());
    }
}

/// A window that every layer has is only left alone where no sequence is longer.
fn window(o: &mut Map<String, Value>) {
    let context = o.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let window = o.get("sliding_window").and_then(Value::as_u64);
    let used = o.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(true);
    if let Some(w) = window.filter(|w| used && *w < context) {
        o.insert("max_position_embeddings".into(), w.into());
    }
}

/// The order of layers of a hybrid as one text, and what its mixers may not have.
fn hybrid(o: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(kinds) = o.get("layers_block_type").and_then(Value::as_array)
        && o.contains_key("mamba_num_heads")
        && !o.contains_key("hybrid_override_pattern")
    {
        let kind = |v: &Value| match v.as_str() {
            Some("mamba") => Ok('M'),
            Some("attention") => Ok('*'),
            Some("mlp") => Ok('-'),
            Some("moe") => Ok('E'),
            _ => {
                Err(format!("layers_block_type names {v}; mamba, attention, mlp and moe are known"))
            }
        };
        let pattern: String = kinds.iter().map(kind).collect::<Result<_, _>>()?;
        o.insert("hybrid_override_pattern".into(), pattern.into());
    }
    if let Some(pattern) = o.get("hybrid_override_pattern").and_then(Value::as_str) {
        if let Some(other) = pattern.chars().find(|c| !"M*-E".contains(*c)) {
            return Err(format!(
                "hybrid_override_pattern has `{other}`; M, *, - and E are kinds of layers"
            ));
        }
        for key in ["use_bias", "mamba_proj_bias", "attention_bias"] {
            if o.get(key).and_then(Value::as_bool) == Some(true) {
                return Err(format!("{key} is true; a bias of these products is not supported"));
            }
        }
    }
    Ok(())
}

/// Sets keys anew, those inside of an object one by one.
pub fn set(config: &mut Value, keys: &Value) {
    match (config, keys) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                set(old.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (config, keys) => *config = keys.clone(),
    }
}

/// Number of ids a `tokenizer.json` knows: one past the largest.
pub fn tokenizer_size(json: &Value) -> Option<usize> {
    let ids = |v: &Value| v.as_u64().map(|i| i as usize + 1);
    let vocab = match json.get("model")?.get("vocab")? {
        Value::Object(v) => v.values().filter_map(ids).max(),
        Value::Array(v) => Some(v.len()),
        _ => None,
    };
    let added = json.get("added_tokens").and_then(Value::as_array);
    let added = added.and_then(|a| a.iter().filter_map(|t| ids(t.get("id")?)).max());
    vocab.into_iter().chain(added).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(config: &Value) -> String {
        normalize(config).err().unwrap_or_default()
    }

    #[test]
    fn kinds_of_layers_have_positions_of_their_own_in_either_spelling() {
        let base = json!({"architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh"});
        let with = |more: Value| {
            let mut config = base.clone();
            set(&mut config, &more);
            normalize(&config).map(|o| {
                ["rope_theta", "rope_local_base_freq", "rope_scaling"].map(|k| o[k].clone())
            })
        };
        let old = with(json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}));
        let new = with(json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}));
        let (old, new) = (old.unwrap(), new.unwrap());
        assert_eq!(old[..2], new[..2]);
        assert_eq!(old[2]["factor"], new[2]["factor"]);
        assert_eq!(new[2]["rope_type"], "linear");
        let scaled = with(json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}}));
        assert!(scaled.is_err_and(|e| e.contains("layers with a window are scaled")));
    }

    /// Both of a name: 131,072 positions stretched twice (a recipe of NeMo RL), and the factor that transformers makes
    /// of `mscale` where both are given: 1 if they are equal.
    #[test]
    fn yarn_says_how_far_it_reaches() {
        let of = |scaling: Value| {
            let config = json!({"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 131_072,
                "rope_scaling": scaling});
            normalize(&config).unwrap()
        };
        let twice =
            json!({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 131_072});
        assert_eq!(of(twice)["max_position_embeddings"], 262_144);
        let o = of(
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768,
            "mscale": 1.0, "mscale_all_dim": 1.0}),
        );
        assert_eq!(o["max_position_embeddings"], 131_072);
        assert_eq!(o["rope_scaling"]["attention_factor"], 1.0);
    }

    #[test]
    fn the_language_part_of_a_model_that_sees_is_read() {
        let config = json!({"architectures": ["Qwen2_5OmniForConditionalGeneration"],
            "thinker_config": {"audio_config": {}, "text_config": {"hidden_size": 2048, "architectures": ["other"],
                "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}}});
        assert!(is_multimodal(&config));
        let o = normalize(&config).unwrap();
        assert_eq!(o["hidden_size"], 2048);
        assert_eq!(o["architectures"][0], "Qwen2_5OmniForConditionalGeneration");
        assert_eq!(o["rope_scaling"]["rope_type"], "default");
        assert!(!is_multimodal(&o["rope_scaling"]));
    }

    #[test]
    fn what_would_be_computed_otherwise_is_refused() {
        let llama = |more: Value| {
            let mut config = json!({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"});
            set(&mut config, &more);
            refused(&config)
        };
        assert_eq!(llama(json!({})), "");
        assert!(llama(json!({"hidden_act": "gelu"})).contains("these models use `silu`"));
        assert!(llama(json!({"partial_rotary_factor": 0.5})).contains("turn whole heads"));
        assert!(llama(json!({"final_logit_softcapping": 30.0})).contains("capped"));
        assert!(llama(json!({"use_bidirectional_attention": true})).contains("causal"));
        assert!(llama(json!({"rope_scaling": {"rope_type": "longrope"}})).contains("`longrope`"));
        let packed = json!({"quantization_config": {"quant_method": "mxfp4"}});
        assert_eq!((quantized(&packed), quantized(&json!({}))), (Some("mxfp4"), None));
    }
}
