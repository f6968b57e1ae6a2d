//! A model as the planner of steps sees it.
//!
//! In: the name in a table. Out: dims from the table of checkpoints, how many weights are in experts.

use nrl_facts::ModelFacts;
use nrl_sim::refit::Weights;
use nrl_sim::rollout::Dims;
use serde::Serialize;

/// Dims of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    pub name: String,
    pub dims: Dims,
    /// Weights of the head.
    pub head: f64,
    /// Width of queries and of values over all heads, together: twice this by the context are FLOPs of a token's attention.
    pub attention_width: f64,
    /// Whether recipes for this model compute activations again.
    pub recomputes: bool,
    /// Whether it brings a head that guesses the token after the next.
    pub guesses: bool,
}

/// Numbers kept of a token by latent attention: 512, and 64 with positions (DeepSeek-V2, section 2.1).
const LATENT: f64 = 576.0;

impl Shape {
    /// The shape of `model`: a checkpoint's name, or its last part, with or without `-Instruct` or `-Base`.
    pub fn of(model: &str) -> Result<Shape, String> {
        let plain = model.trim_end_matches("-Base").trim_end_matches("-Instruct");
        let wanted = [model, plain];
        let last = |m: &'static ModelFacts| m.name.rsplit('/').next().unwrap_or(&m.name);
        let bare = |m: &'static ModelFacts| {
            last(m).trim_start_matches("NVIDIA-").trim_end_matches("-BF16")
        };
        let all = nrl_facts::models();
        let found = wanted
            .iter()
            .find_map(|w| all.iter().find(|m| m.name == *w || last(m) == *w || bare(m) == *w));
        let facts = found.ok_or_else(|| format!("nothing is known of the model `{model}`"))?;
        let (total, active) =
            facts.params_b.ok_or_else(|| format!("`{model}` has an unknown number of weights"))?;
        Ok(shape(facts, total * 1e9, active * 1e9))
    }

    /// What a refit moves, with `width` bytes per weight.
    pub fn weights(&self, width: f64) -> Weights {
        let d = &self.dims;
        // Per layer: four of attention, two norms, three of a feed-forward; three per expert.
        let experts = d.experts.map_or(0.0, |(n, _)| n);
        Weights {
            bytes: d.params * width,
            expert_bytes: d.expert_params * width,
            tensors: 9.0 * d.layers + 3.0 * experts * d.expert_layers,
        }
    }
}

fn shape(m: &ModelFacts, total: f64, active: f64) -> Shape {
    let layers = m.layers as f64;
    let attention = m.attention_layers.map_or(layers, |n| n as f64);
    let hybrid = m.attention_layers.is_some() && m.linear_heads.is_none();
    let table = (m.vocab * m.hidden) as f64;
    let mut dims = Dims {
        layers,
        hidden: m.hidden as f64,
        params: total,
        embedding: if m.tied { 0.0 } else { table },
        attention_layers: attention,
        kv_width: if m.latent_attention { LATENT } else { 2.0 * (m.kv_heads * m.head_dim) as f64 },
        kv_heads: if m.latent_attention { 1 } else { m.kv_heads as usize },
        // Hybrids of state space layers have one block per layer, others two.
        reductions: if hybrid { 1.0 } else { 2.0 },
        ..Dims::default()
    };
    if let Some(e) = &m.experts {
        let (n, k) = (e.number as f64, e.top_k as f64);
        // All but `k` of `n` experts are what is not active.
        dims.expert_params = (total - active) * n / (n - k).max(1.0);
        dims.experts = Some((n, k));
        dims.expert_layers = match hybrid {
            // Every other layer, but for attention.
            true => (layers - attention) / 2.0,
            false => layers - e.first_dense as f64,
        };
    }
    Shape {
        name: m.name.clone(),
        head: table,
        attention_width: 2.0 * (m.heads * m.head_dim) as f64,
        recomputes: total > 100e9,
        guesses: m.architecture.starts_with("DeepseekV3"),
        dims,
    }
}
