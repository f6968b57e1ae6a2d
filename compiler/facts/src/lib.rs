//! What is known of a model without downloading it: heads, layers, experts, vocabulary.
//!
//! In: a name as Hugging Face spells it, or the text of a `config.json`. Out: [`ModelFacts`] of the
//! text model. The table is `models.csv` beside this crate, a row per checkpoint with its source;
//! a local `config.json` always wins over it. Nothing here reads a file.

mod config;
pub mod history;
mod table;

pub use config::language_part;

/// Dims of a text model, as its configuration says them.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelFacts {
    /// Name of the checkpoint.
    pub name: String,
    /// Class of the model, such as `LlamaForCausalLM`.
    pub architecture: String,
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Size of a head; of the query and key part with latent attention.
    pub head_dim: u64,
    /// Width of the dense feed-forward; none if every layer has experts.
    pub ffn: Option<u64>,
    pub vocab: u64,
    /// Whether the head shares the embedding.
    pub tied: bool,
    pub qkv_bias: bool,
    pub qk_norm: bool,
    /// Longest sequence that positions are made for, in tokens.
    pub max_positions: u64,
    pub rope_theta: Option<f64>,
    /// Kind and numbers of the rope scaling, such as `llama3 factor 8 low 1 high 4 orig 8192`.
    pub rope_scaling: Option<String>,
    /// Tokens that local attention looks back.
    pub sliding_window: Option<u64>,
    pub experts: Option<Experts>,
    /// Whether keys and values are kept as one latent vector.
    pub latent_attention: bool,
    /// Its sizes.
    pub latent: Option<Latent>,
    /// Key and value heads of gated-delta (linear attention) layers.
    pub linear_heads: Option<(u64, u64)>,
    /// State-space mixers and the order of layers, of a hybrid.
    pub hybrid: Option<Hybrid>,
    /// Layers with full attention, where they are not all.
    pub attention_layers: Option<u64>,
    /// Whether images, video or sound go in beside text.
    pub multimodal: bool,
    /// Number of weights in billions: all, and those that one token uses.
    pub params_b: Option<(f64, f64)>,
    /// Token ids that end a text.
    pub eos: Vec<u64>,
    /// Where these facts come from.
    pub source: String,
}

/// The experts of a mixture.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Experts {
    pub number: u64,
    /// Experts that a token visits.
    pub top_k: u64,
    /// Width of one expert.
    pub ffn: u64,
    /// Summed width of the experts that every token visits.
    pub shared_ffn: u64,
    /// Dense layers before the first layer with experts.
    pub first_dense: u64,
}

/// Sizes of latent attention (DeepSeek-V2, 2024).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latent {
    /// Rank of the queries; none if they are made in one product.
    pub q: Option<u64>,
    /// Size of the vector that keys and values are kept as.
    pub kv: u64,
    /// Parts of a head of keys with and without positions, and size of a head of values.
    pub rope: u64,
    pub nope: u64,
    pub value: u64,
}

/// Layers of several kinds, some of them state-space mixers (Mamba-2, Dao and Gu 2024).
#[derive(Clone, PartialEq, Debug)]
pub struct Hybrid {
    /// The kind of each layer: `M` a mixer, `*` attention, `-` feed-forward, `E` experts.
    pub pattern: String,
    /// Heads of a mixer, their size, the state of each of their numbers, groups that share it.
    pub heads: u64,
    pub head_dim: u64,
    pub state: u64,
    pub groups: u64,
    /// Tokens that its convolution sees.
    pub conv: u64,
    /// Size of the vector that experts work on, where it is not the model's.
    pub latent: Option<u64>,
}

/// The facts of a published checkpoint.
pub fn model(name: &str) -> Option<&'static ModelFacts> {
    table::find(name)
}

/// Every checkpoint of the table, by name.
pub fn models() -> &'static [ModelFacts] {
    table::all()
}

impl ModelFacts {
    /// The facts that the text of a `config.json` states, or what is wrong with it.
    pub fn from_config(name: &str, text: &str) -> Result<ModelFacts, String> {
        config::read(name, text)
    }

    /// The `config.json` of this model as far as dims go; none for a model that is more than a
    /// stack of attention, feed-forward and state-space mixers (gated delta nets).
    pub fn config_json(&self) -> Option<String> {
        config::write(self)
    }

    /// Whether the model has experts.
    pub fn is_moe(&self) -> bool {
        self.experts.is_some()
    }
}
