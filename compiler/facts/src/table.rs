//! The table of published checkpoints.

use std::sync::LazyLock;

use crate::{Experts, Hybrid, Latent, ModelFacts};

static TABLE: LazyLock<Vec<ModelFacts>> = LazyLock::new(|| rows(include_str!("../models.csv")));

/// What NeMo RL's own recipes write where the model is a copy that their guide has one make: the model whose
/// dims it has. A directory of that name always wins.
const STAND_INS: &[(&str, &str)] = &[
    (
        "Follow instructions in https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/deepseek.md",
        "deepseek-ai/DeepSeek-V3",
    ),
    ("/path/to/swe1_checkpoint_hf", "Qwen/Qwen3-30B-A3B-Thinking-2507"),
];

/// The row of a name, or of the model that a name stands for.
pub(crate) fn find(name: &str) -> Option<&'static ModelFacts> {
    let meant = STAND_INS.iter().find(|(written, _)| *written == name).map_or(name, |(_, m)| m);
    TABLE.iter().find(|facts| facts.name == meant)
}

pub(crate) fn all() -> &'static [ModelFacts] {
    &TABLE
}

fn rows(text: &str) -> Vec<ModelFacts> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.next().unwrap_or("").split(',').collect();
    lines.filter_map(|line| row(&Row { names: &names, cells: line.split(',').collect() })).collect()
}

struct Row<'a> {
    names: &'a [&'a str],
    cells: Vec<&'a str>,
}

impl Row<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let at = self.names.iter().position(|n| *n == name)?;
        self.cells.get(at).copied().filter(|cell| !cell.is_empty())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    fn float(&self, name: &str) -> Option<f64> {
        self.text(name)?.parse().ok()
    }

    fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }
}

fn row(r: &Row<'_>) -> Option<ModelFacts> {
    let experts = r.number("experts").and_then(|number| {
        Some(Experts {
            number,
            top_k: r.number("top_k")?,
            ffn: r.number("moe_ffn")?,
            shared_ffn: r.number("shared_ffn").unwrap_or(0),
            first_dense: r.number("first_dense").unwrap_or(0),
        })
    });
    let linear_heads = r.text("linear_heads").and_then(|cell| {
        let (keys, values) = cell.split_once('/')?;
        Some((keys.parse().ok()?, values.parse().ok()?))
    });
    Some(ModelFacts {
        name: r.text("model")?.to_string(),
        architecture: r.text("architecture")?.to_string(),
        layers: r.number("layers")?,
        hidden: r.number("hidden")?,
        heads: r.number("heads")?,
        kv_heads: r.number("kv_heads")?,
        head_dim: r.number("head_dim")?,
        ffn: r.number("ffn"),
        vocab: r.number("vocab")?,
        tied: r.flag("tied"),
        qkv_bias: r.flag("qkv_bias"),
        qk_norm: r.flag("qk_norm"),
        max_positions: r.number("max_positions")?,
        rope_theta: r.float("rope_theta"),
        rope_scaling: r.text("rope_scaling").filter(|t| *t != "none").map(str::to_string),
        sliding_window: r.number("sliding_window"),
        experts,
        latent_attention: r.text("mla").is_some(),
        latent: r.text("mla").and_then(latent),
        linear_heads,
        hybrid: r.text("hybrid").and_then(hybrid),
        attention_layers: r.number("attention_layers"),
        multimodal: r.flag("multimodal"),
        params_b: r.float("params_b").zip(r.float("active_b")),
        eos: r.text("eos").unwrap_or("").split('|').filter_map(|id| id.parse().ok()).collect(),
        source: r.text("source").unwrap_or("").to_string(),
    })
}

/// Sizes of `q_lora 1536; kv_lora 512; rope 64; nope 128; v 128`.
fn latent(text: &str) -> Option<Latent> {
    let size = |name: &str| {
        let of = |part: &str| part.trim().strip_prefix(name)?.trim().parse::<u64>().ok();
        text.split(';').find_map(of)
    };
    Some(Latent {
        q: size("q_lora"),
        kv: size("kv_lora")?,
        rope: size("rope")?,
        nope: size("nope")?,
        value: size("v ")?,
    })
}

/// Layers and sizes of `MEM*E; heads 64; size 64; state 128; groups 8; conv 4; latent 1024`.
fn hybrid(text: &str) -> Option<Hybrid> {
    let (pattern, sizes) = text.split_once(';')?;
    let size = |name: &str| {
        let of = |part: &str| part.trim().strip_prefix(name)?.trim().parse::<u64>().ok();
        sizes.split(';').find_map(of)
    };
    Some(Hybrid {
        pattern: pattern.trim().to_string(),
        heads: size("heads")?,
        head_dim: size("size")?,
        state: size("state")?,
        groups: size("groups")?,
        conv: size("conv")?,
        latent: size("latent"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_read() {
        let text = include_str!("../models.csv");
        let rows = text.lines().filter(|line| !line.starts_with('#')).count() - 1;
        assert_eq!(all().len(), rows);
        let names: std::collections::BTreeSet<_> = all().iter().map(|m| &m.name).collect();
        assert_eq!(names.len(), rows, "a model stands twice in the table");
    }

    #[test]
    fn names_that_stand_for_a_copy_have_its_dims() {
        for (written, meant) in STAND_INS {
            assert_eq!(find(written), find(meant));
            assert!(find(written).is_some(), "{written}");
        }
        assert!(find("/path/to/model").is_none());
    }

    /// Number of weights of a hybrid, written out layer by layer: within 0.2 % of what is published.
    #[test]
    fn hybrids_have_as_many_weights_as_their_dims_say() {
        let mut seen = 0;
        for m in all().iter().filter(|m| m.architecture == "NemotronHForCausalLM") {
            let h = m.hybrid.as_ref().unwrap();
            assert_eq!(h.pattern.chars().count() as u64, m.layers, "{}", m.name);
            let attention = h.pattern.matches('*').count() as u64;
            assert_eq!(Some(attention), m.attention_layers, "{}", m.name);
            let (d, inner, shared) = (m.hidden, h.heads * h.head_dim, h.groups * h.state);
            let mixer = d * (2 * inner + 2 * shared + h.heads)
                + (inner + 2 * shared) * (h.conv + 1)
                + 3 * h.heads
                + inner
                + inner * d;
            let heads = m.head_dim * (2 * m.heads + 2 * m.kv_heads) * d;
            let experts = m.experts.map_or(0, |e| {
                let width = h.latent.unwrap_or(d);
                let latent = h.latent.map_or(0, |l| 2 * l * d);
                e.number * (d + 1) + 2 * e.number * e.ffn * width + 2 * e.shared_ffn * d + latent
            });
            let layer = |kind: char| match kind {
                'M' => mixer,
                '*' => heads,
                '-' => 2 * d * m.ffn.unwrap(),
                _ => experts,
            };
            let layers: u64 = h.pattern.chars().map(|kind| layer(kind) + d).sum();
            let billions = (layers + 2 * m.vocab * d + d) as f64 / 1e9;
            let (stated, _) = m.params_b.unwrap();
            assert!((billions / stated - 1.0).abs() < 0.002, "{}: {billions} {stated}", m.name);
            seen += 1;
        }
        assert!(seen >= 6, "{seen}");
    }

    /// Number of weights of a dense llama, written out.
    #[test]
    fn dense_rows_have_as_many_weights_as_their_dims_say() {
        for m in all().iter().filter(|m| {
            ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
                .contains(&m.architecture.as_str())
        }) {
            let (h, q, kv) = (m.hidden, m.heads * m.head_dim, m.kv_heads * m.head_dim);
            let bias = if m.qkv_bias { q + 2 * kv } else { 0 };
            let norms = 2 * h + if m.qk_norm { 2 * m.head_dim } else { 0 };
            let layer = 2 * h * q + 2 * h * kv + 3 * h * m.ffn.unwrap() + bias + norms;
            let total = m.layers * layer + m.vocab * h * if m.tied { 1 } else { 2 } + h;
            let billions = total as f64 / 1e9;
            let (stated, _) = m.params_b.unwrap();
            assert!((billions / stated - 1.0).abs() < 0.005, "{}: {billions} {stated}", m.name);
        }
    }
}
