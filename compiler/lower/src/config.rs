//! `config.json` of a Hugging Face directory, in one spelling.

use serde_json::{Map, Value};

/// Puts newer spellings into the older ones and refuses what would act and is not supported.
/// Returns the object, or a sentence that says what is wrong.
pub fn normalize(config: &Value) -> Result<Map<String, Value>, String> {
    let Value::Object(o) = config else { return Err("config.json does not hold an object".into()) };
    let mut o = o.clone();
    if let Some(Value::Object(rope)) = o.get("rope_parameters").cloned() {
        if let Some(theta) = rope.get("rope_theta") {
            o.insert("rope_theta".into(), theta.clone());
        }
        if rope.get("rope_type").and_then(Value::as_str).is_some_and(|t| t != "default") {
            o.insert("rope_scaling".into(), Value::Object(rope));
        }
    }
    if let Some(Value::Object(scaling)) = o.get("rope_scaling").cloned() {
        let mut scaling = scaling;
        if let Some(t) = scaling.get("type").cloned() {
            scaling.entry("rope_type").or_insert(t);
        }
        let kind =
            scaling.get("rope_type").and_then(Value::as_str).unwrap_or("default").to_string();
        let yarn = kind == "yarn" && o.contains_key("kv_lora_rank");
        if !yarn && !["default", "linear", "llama3"].contains(&kind.as_str()) {
            return Err(format!(
                "rope scaling `{kind}` is not supported; default, linear and llama3 are"
            ));
        }
        o.insert("rope_scaling".into(), Value::Object(scaling));
    }
    if let Some(act) = o.get("hidden_act").and_then(Value::as_str)
        && act != "silu"
    {
        return Err(format!("hidden_act is `{act}`; these models use `silu`"));
    }
    if o.get("mlp_bias").and_then(Value::as_bool) == Some(true) {
        return Err("mlp_bias is true; a bias in the feed-forward block is not supported".into());
    }
    let step = o.get("decoder_sparse_step").and_then(Value::as_u64).unwrap_or(1);
    let dense = o.get("mlp_only_layers").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    if step != 1 || dense {
        return Err("only some layers have experts; a mixture in every layer is supported".into());
    }
    let context = o.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let window = o.get("sliding_window").and_then(Value::as_u64);
    let used = o.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(true);
    if let Some(w) = window.filter(|w| used && *w < context) {
        o.insert("max_position_embeddings".into(), w.into());
    }
    Ok(o)
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
