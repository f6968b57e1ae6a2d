//! Reads config.json.
//!
//! In: the file as transformers writes it (old and new spellings). Out: [`ModelConfig`] with every default filled
//! in as transformers fills it, and the original JSON for export. What this project would compute differently from
//! transformers (another activation, a sliding window that acts, an unknown rope scaling) is refused, never ignored.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

/// Architectures that can be loaded, as config.json names them.
pub const SUPPORTED: [&str; 6] = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "GptOssForCausalLM",
];

/// A config.json that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; the path must be a Hugging Face model directory")]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not JSON.
    #[error("{path} is not JSON: {reason}")]
    Json { path: PathBuf, reason: String },
    /// Another kind of model.
    #[error("{path} declares the architecture {found}, which is not supported; supported are {}", SUPPORTED.join(", "))]
    Architecture { path: PathBuf, found: String },
    /// A key that has no default is missing.
    #[error("{path} lacks `{key}`, which {family} models need")]
    Missing { path: PathBuf, key: String, family: &'static str },
    /// A value of the wrong type.
    #[error("{path}: `{key}` is {found}, and must be {expected}")]
    Type { path: PathBuf, key: String, found: String, expected: &'static str },
    /// A value with a meaning that is not supported.
    #[error("{path}: `{key}` is {found}, which is not supported; {help}")]
    Unsupported { path: PathBuf, key: String, found: String, help: String },
    /// Sizes that contradict each other.
    #[error("{path}: {reason}")]
    Sizes { path: PathBuf, reason: String },
}

impl ConfigError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            ConfigError::Read { .. } => "model-not-found",
            ConfigError::Architecture { .. } => "unsupported-architecture",
            _ => "bad-model-config",
        }
    }
}

/// Families whose parameters are named alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma3,
    GptOss,
}

impl Family {
    fn of(architecture: &str) -> Option<Family> {
        match architecture {
            "LlamaForCausalLM" => Some(Family::Llama),
            "MistralForCausalLM" => Some(Family::Mistral),
            "Qwen2ForCausalLM" => Some(Family::Qwen2),
            "Qwen3ForCausalLM" => Some(Family::Qwen3),
            "Gemma3ForCausalLM" => Some(Family::Gemma3),
            "GptOssForCausalLM" => Some(Family::GptOss),
            _ => None,
        }
    }

    /// The name used in messages and in the standard library.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 => "gemma3",
            Family::GptOss => "gpt_oss",
        }
    }
}

/// How rotary frequencies are stretched beyond the original context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    Yarn {
        factor: f64,
        original: f64,
        beta_fast: f64,
        beta_slow: f64,
        /// What cos and sin are multiplied by.
        attention_factor: f64,
        truncate: bool,
    },
}

/// A decoder-only model of one of the supported families.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    pub family: Family,
    /// The name in config.json, such as `LlamaForCausalLM`.
    pub architecture: String,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Rows of the embedding; may exceed the tokenizer's length.
    pub vocab_size: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub tie_word_embeddings: bool,
    pub max_position_embeddings: usize,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// A bias on the output projection.
    pub o_bias: bool,
    /// Biases on the three products of the MLP.
    pub mlp_bias: bool,
    /// RMS norms on q and k before rope.
    pub qk_norm: bool,
    /// The window, where attention would use one.
    pub sliding_window: Option<usize>,
    /// `float32`, `bfloat16` or `float16`, as the file says.
    pub dtype: Option<String>,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Vec<u32>,
    /// Everything the file says, in its order.
    pub raw: Map<String, Value>,
    /// Where it came from, for messages.
    pub path: PathBuf,
}

impl ModelConfig {
    /// Reads `dir/config.json`.
    pub fn open(dir: &Path) -> Result<ModelConfig, ConfigError> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        ModelConfig::parse(&text, &path)
    }

    /// Reads the text of a config.json; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<ModelConfig, ConfigError> {
        let raw: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| ConfigError::Json { path: path.into(), reason: e.to_string() })?;
        let (family, architecture) = architecture(&raw, path)?;
        let gemma = family == Family::Gemma3;
        let keys = Keys { raw: &raw, path, family: family.name() };
        let hidden_size = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.size_or("num_key_value_heads", heads)?;
        let head_dim = keys.head_dim(family, hidden_size, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.sizes(format!(
                "{heads} attention heads cannot be shared by {kv_heads} key/value heads; one must divide the other"
            )));
        }
        keys.activation(if gemma { "gelu_pytorch_tanh" } else { "silu" })?;
        let attention_bias = keys.flag("attention_bias", false)?;
        let max_position_embeddings =
            keys.size_or("max_position_embeddings", default_positions(family))?;
        let (rope_theta, rope_scaling) = super::rope::read(&keys, max_position_embeddings)?;
        Ok(ModelConfig {
            intermediate_size: keys.size("intermediate_size")?,
            num_hidden_layers: keys.size("num_hidden_layers")?,
            vocab_size: keys.size("vocab_size")?,
            rms_norm_eps: keys.number("rms_norm_eps", 1e-6)?,
            tie_word_embeddings: keys.flag("tie_word_embeddings", gemma)?,
            qkv_bias: attention_bias || family == Family::Qwen2,
            o_bias: attention_bias
                && matches!(family, Family::Llama | Family::Qwen3 | Family::GptOss),
            mlp_bias: keys.flag("mlp_bias", false)?,
            qk_norm: gemma || family == Family::Qwen3,
            sliding_window: keys.sliding_window(family)?,
            dtype: keys.dtype()?,
            bos_token_id: keys.ids("bos_token_id")?.first().copied(),
            eos_token_ids: keys.ids("eos_token_id")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            family,
            architecture,
            hidden_size,
            head_dim,
            rope_theta,
            rope_scaling,
            max_position_embeddings,
            path: path.into(),
            raw,
        })
    }

    /// Refuses a context in which a sliding window would act or that lies beyond the trained positions.
    pub fn check_context(&self, context: usize) -> Result<(), ConfigError> {
        match self.sliding_window {
            Some(window) if window < context => Err(ConfigError::Unsupported {
                path: self.path.clone(),
                key: "sliding_window".into(),
                found: window.to_string(),
                help: format!(
                    "a context of {context} tokens would need it; a context of at most {window} tokens does not"
                ),
            }),
            _ if context > self.max_position_embeddings => Err(self.sizes(format!(
                "a context of {context} tokens is beyond `max_position_embeddings`, {}; write a context of at most {0}",
                self.max_position_embeddings
            ))),
            _ => Ok(()),
        }
    }

    fn sizes(&self, reason: String) -> ConfigError {
        ConfigError::Sizes { path: self.path.clone(), reason }
    }
}

fn default_positions(family: Family) -> usize {
    match family {
        Family::Llama => 2048,
        Family::Mistral | Family::Gemma3 | Family::GptOss => 131_072,
        Family::Qwen2 | Family::Qwen3 => 32_768,
    }
}

fn architecture(raw: &Map<String, Value>, path: &Path) -> Result<(Family, String), ConfigError> {
    let named = raw
        .get("architectures")
        .and_then(Value::as_array)
        .and_then(|a| a.first())
        .and_then(Value::as_str);
    let by_type = || match raw.get("model_type").and_then(Value::as_str)? {
        "llama" => Some("LlamaForCausalLM"),
        "mistral" => Some("MistralForCausalLM"),
        "qwen2" => Some("Qwen2ForCausalLM"),
        "qwen3" => Some("Qwen3ForCausalLM"),
        "gemma3_text" => Some("Gemma3ForCausalLM"),
        "gpt_oss" => Some("GptOssForCausalLM"),
        other => Some(other),
    };
    let found = named.or_else(by_type).unwrap_or("(none)").to_string();
    match Family::of(&found) {
        Some(family) => Ok((family, found)),
        None => Err(ConfigError::Architecture { path: path.into(), found }),
    }
}

/// Typed access to the keys of a config.json.
pub(super) struct Keys<'a> {
    pub raw: &'a Map<String, Value>,
    pub path: &'a Path,
    pub family: &'static str,
}

impl Keys<'_> {
    /// The value, where null counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.raw.get(key).filter(|v| !v.is_null())
    }

    pub fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing { path: self.path.into(), key: key.into(), family: self.family }
    }

    pub fn wrong(&self, key: &str, value: &Value, expected: &'static str) -> ConfigError {
        ConfigError::Type {
            path: self.path.into(),
            key: key.into(),
            found: value.to_string(),
            expected,
        }
    }

    pub fn unsupported(
        &self,
        key: &str,
        found: impl ToString,
        help: impl Into<String>,
    ) -> ConfigError {
        let (path, found) = (self.path.into(), found.to_string());
        ConfigError::Unsupported { path, key: key.into(), found, help: help.into() }
    }

    fn sizes(&self, reason: String) -> ConfigError {
        ConfigError::Sizes { path: self.path.into(), reason }
    }

    fn size(&self, key: &str) -> Result<usize, ConfigError> {
        let value = self.get(key).ok_or_else(|| self.missing(key))?;
        match value.as_u64().filter(|&n| n > 0) {
            Some(n) => Ok(n as usize),
            None => Err(self.wrong(key, value, "a whole number above 0")),
        }
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        if self.get(key).is_some() { self.size(key) } else { Ok(default) }
    }

    pub fn number(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_f64().ok_or_else(|| self.wrong(key, v, "a number")),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| self.wrong(key, v, "true or false")),
        }
    }

    fn ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        token_ids(value).ok_or_else(|| self.wrong(key, value, "a token id or a list of token ids"))
    }

    fn head_dim(&self, family: Family, hidden: usize, heads: usize) -> Result<usize, ConfigError> {
        let head_dim = match family {
            Family::Qwen3 => self.size_or("head_dim", 128)?,
            Family::Gemma3 => self.size_or("head_dim", 256)?,
            _ if self.get("head_dim").is_some() => self.size("head_dim")?,
            _ if !hidden.is_multiple_of(heads) => {
                return Err(self.sizes(format!(
                    "`hidden_size` {hidden} is not a multiple of {heads} attention heads, and `head_dim` is not given"
                )));
            }
            _ => hidden / heads,
        };
        if head_dim % 2 != 0 {
            return Err(self.sizes(format!(
                "`head_dim` is {head_dim}, and rotary positions need an even number"
            )));
        }
        Ok(head_dim)
    }

    fn activation(&self, wanted: &str) -> Result<(), ConfigError> {
        let named =
            ["hidden_activation", "hidden_act"].iter().find_map(|k| Some((k, self.get(k)?)));
        match named.map(|(k, v)| (k, v.as_str().unwrap_or(""))) {
            None | Some((_, "swish")) => Ok(()),
            Some((_, name)) if name == wanted => Ok(()),
            Some((key, other)) => Err(self.unsupported(key, other, format!("only `{wanted}` is"))),
        }
    }

    /// The window if all layers of this model would use it. Where only some do, the model itself says which.
    fn sliding_window(&self, family: Family) -> Result<Option<usize>, ConfigError> {
        let layers = self.get("layer_types").and_then(Value::as_array);
        let sliding_layers = layers.map(|l| l.iter().any(|t| t == "sliding_attention"));
        let acts = match family {
            Family::Gemma3 | Family::GptOss => false,
            Family::Llama => sliding_layers.unwrap_or(false),
            Family::Mistral => sliding_layers.unwrap_or(true),
            Family::Qwen2 | Family::Qwen3 => {
                self.flag("use_sliding_window", false)? && sliding_layers.unwrap_or(true)
            }
        };
        match self.get("sliding_window") {
            Some(_) if acts => Ok(Some(self.size("sliding_window")?)),
            _ => Ok(None),
        }
    }

    fn dtype(&self) -> Result<Option<String>, ConfigError> {
        let Some((key, value)) =
            ["dtype", "torch_dtype"].iter().find_map(|k| Some((k, self.get(k)?)))
        else {
            return Ok(None);
        };
        let name = value.as_str().ok_or_else(|| self.wrong(key, value, "the name of a dtype"))?;
        Ok(Some(name.trim_start_matches("torch.").to_string()))
    }
}

/// A token id or a list of token ids.
pub(super) fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(list) => list.iter().map(one).collect(),
        single => Some(vec![one(single)?]),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
            "max_position_embeddings": 64, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2
        })
    }

    /// The llama of the tests with some keys replaced; null removes a key's value.
    pub(crate) fn with(changes: Value) -> Result<ModelConfig, ConfigError> {
        let mut value = llama();
        for (k, v) in changes.as_object().unwrap() {
            value[k] = v.clone();
        }
        ModelConfig::parse(&value.to_string(), Path::new("m/config.json"))
    }

    #[test]
    fn defaults_follow_transformers() {
        let c = with(json!({"num_key_value_heads": null})).unwrap();
        assert_eq!(
            (c.num_key_value_heads, c.head_dim, c.qkv_bias, c.o_bias, c.qk_norm),
            (4, 2, false, false, false)
        );
        assert_eq!(
            (c.dtype.as_deref(), c.bos_token_id, c.eos_token_ids),
            (Some("float32"), Some(1), vec![2])
        );
        let c = with(json!({"head_dim": 6, "attention_bias": true})).unwrap();
        assert_eq!((c.head_dim, c.qkv_bias, c.o_bias), (6, true, true));
        let qwen2 = json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4, "use_sliding_window": false,
            "eos_token_id": [3, 4], "dtype": "bfloat16"});
        let c = with(qwen2).unwrap();
        assert_eq!(
            (c.family, c.qkv_bias, c.o_bias, c.sliding_window),
            (Family::Qwen2, true, false, None)
        );
        assert_eq!((c.eos_token_ids, c.dtype.as_deref()), (vec![3, 4], Some("bfloat16")));
        let c = with(json!({"architectures": ["Qwen3ForCausalLM"]})).unwrap();
        assert_eq!((c.head_dim, c.qk_norm, c.qkv_bias), (128, true, false));
    }

    #[test]
    fn an_unsupported_architecture_is_named_with_its_file() {
        let e = with(json!({"architectures": ["GPT2LMHeadModel"]})).unwrap_err();
        assert_eq!(e.code(), "unsupported-architecture");
        assert_eq!(
            e.to_string(),
            "m/config.json declares the architecture GPT2LMHeadModel, which is not supported; supported are \
             LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Gemma3ForCausalLM, \
             GptOssForCausalLM"
        );
    }

    #[test]
    fn what_would_act_differently_is_refused() {
        let e = with(json!({"hidden_act": "gelu"})).unwrap_err();
        assert_eq!(
            e.to_string(),
            "m/config.json: `hidden_act` is gelu, which is not supported; only `silu` is"
        );
        let c =
            with(json!({"architectures": ["MistralForCausalLM"], "sliding_window": 32})).unwrap();
        c.check_context(32).unwrap();
        let e = c.check_context(40).unwrap_err();
        assert!(e.to_string().contains("`sliding_window` is 32"), "{e}");
        assert!(e.to_string().contains("at most 32 tokens does not"), "{e}");
        let e = with(json!({})).unwrap().check_context(65).unwrap_err();
        assert!(e.to_string().contains("65 tokens is beyond `max_position_embeddings`, 64"), "{e}");
    }

    #[test]
    fn broken_values_are_named() {
        let e = with(json!({"hidden_size": "big"})).unwrap_err();
        assert_eq!(
            e.to_string(),
            "m/config.json: `hidden_size` is \"big\", and must be a whole number above 0"
        );
        let e = with(json!({"vocab_size": null})).unwrap_err();
        assert_eq!(e.to_string(), "m/config.json lacks `vocab_size`, which llama models need");
        let e = with(json!({"num_key_value_heads": 3})).unwrap_err();
        assert!(e.to_string().contains("4 attention heads cannot be shared by 3"), "{e}");
        let e = ModelConfig::open(Path::new("does/not/exist")).unwrap_err();
        assert!(e.to_string().starts_with("cannot read does/not/exist/config.json"), "{e}");
        let e = ModelConfig::parse("{", Path::new("c.json")).unwrap_err();
        assert!(e.to_string().starts_with("c.json is not JSON: EOF"), "{e}");
    }
}
