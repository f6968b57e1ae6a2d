//! Memory of updates against what was measured and published elsewhere.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile};
use nrl_ir::Mesh;
use nrl_sim::work::Sizes;
use nrl_sim::{Load, Offload, Peak, Precision, Stack};

const GIB: f64 = 1_073_741_824.0;

/// A model and how it is laid out.
#[derive(Clone, Copy)]
struct Case {
    layers: usize,
    hidden: usize,
    heads: usize,
    kv: usize,
    ffn: usize,
    vocab: usize,
    family: &'static str,
    axes: &'static str,
    plan: &'static str,
    nodes: usize,
    tokens: usize,
}

const SEVENTY: Case = Case {
    layers: 12,
    hidden: 8192,
    heads: 64,
    kv: 8,
    ffn: 28672,
    vocab: 128256,
    family: "llama",
    axes: "dp: rest, tp: 4",
    plan: "plans.megatron(sp: true)",
    nodes: 1,
    tokens: 4096,
};

fn compiled(c: &Case) -> Compiled {
    let config = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "{}", "hidden_size": {},
        "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
        "num_key_value_heads": {}, "head_dim": 128, "vocab_size": {}, "tie_word_embeddings": false,
        "max_position_embeddings": 1048576, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu"}}"#,
        c.family, c.hidden, c.ffn, c.layers, c.heads, c.kv, c.vocab
    );
    let text = format!(
        r#"use std.{{clusters, data, models, plans, optim}}

recipe r {{
  run 10 steps
  gpus   = clusters.b200(nodes: {})
  mesh m = gpus axes ({})
  policy = models.load("model", dtype: bf16, context: {} tokens)
  place policy on m by {}
  opt = optim.adamw(lr: 1e-5)
  rows = data.made(10000 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    b = rows.take({} samples)
    update policy by opt in 1 update, {} tokens/microbatch, minimising {{
      mean(-logprob(policy, b), over: tokens)
    }}
  }}
}}
"#,
        c.nodes,
        c.axes,
        c.tokens,
        c.plan,
        8 * c.nodes,
        c.tokens
    );
    let files =
        BTreeMap::from([("r.nrl".to_string(), text), ("model/config.json".to_string(), config)]);
    let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    c.unwrap_or_else(|| panic!("{found:#?}"))
}

fn peak(c: &Case, stack: &Stack, micro: usize, selective: bool) -> Peak {
    let compiled = compiled(c);
    let plan = compiled.plans.iter().find(|p| p.name.starts_with("update")).expect("an update");
    let mesh: Mesh = plan.mesh.clone();
    let load = Load {
        plan,
        mesh: &mesh,
        precision: Precision::Bf16,
        sizes: Sizes::packed(c.tokens as f64, c.tokens as f64),
        micro,
        chunks: 1,
        moments: 2.0,
        no_master: false,
        selective,
        offload: Offload::default(),
        adapters: None,
    };
    load.peak(stack, None)
}

/// Measured GiB and what is predicted are this close.
fn close(what: &str, measured: f64, predicted: f64, percent: f64, peak: &Peak) {
    let off = 100.0 * (predicted / GIB / measured - 1.0);
    assert!(off.abs() <= percent, "{what}: {measured} measured, {off:+.1} %: {peak}");
}

/// Four layers of a 405 B llama with 16 key and value heads.
const FOUR: Case = Case { layers: 4, hidden: 16384, heads: 128, kv: 16, ffn: 53248, ..SEVENTY };

/// Layers of Llama-3 on Megatron-Core, allocated and reserved on B200, GiB (SimuMax 1.2 tables).
#[test]
fn megatron_core() {
    let stack = Stack::megatron();
    let twelve = |axes| Case { axes, ..SEVENTY };
    let four = |axes| Case { axes, ..FOUR };
    for (case, allocated, reserved) in [
        (twelve("dp: rest, tp: 4"), 39.07, 40.18),
        (twelve("dp: rest, tp: 8"), 28.29, 29.12),
        (four("dp: rest, tp: 2"), 81.59, 84.7),
        (four("dp: rest, tp: 4"), 52.89, 54.65),
        (four("dp: rest, tp: 8"), 38.57, 39.83),
        (four("pp: 2, dp: rest"), 87.08, 92.26),
    ] {
        let p = peak(&case, &stack, 4, false);
        close(case.axes, allocated, p.allocated(), 2.0, &p);
        close(case.axes, reserved, p.reserved(), 5.0, &p);
    }
}

/// Llama-3 on torchtitan of December 2024: the most reserved on H100, GiB.
#[test]
fn torchtitan() {
    let eight = Case {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv: 8,
        ffn: 14336,
        axes: "fsdp: rest",
        plan: "plans.fsdp() * plans.recomputed()",
        nodes: 16,
        tokens: 16384,
        ..SEVENTY
    };
    let fsdp = Stack::fsdp();
    let p = peak(&eight, &fsdp, 1, true);
    close("8B, 128 GPUs, compiled", 62.0, p.reserved(), 6.0, &p);
    // Eight GPUs, a fourth of 131,072 tokens on each.
    let long = Case { nodes: 1, tokens: 32768, ..eight };
    let p = peak(&long, &fsdp, 1, false);
    close("8B, long", 84.0, p.reserved(), 9.0, &p);
    let seventy = Case {
        layers: 80,
        axes: "fsdp: rest, tp: 8",
        plan: "plans.fsdp() * plans.megatron(sp: true, recompute: full)",
        nodes: 32,
        tokens: 131072,
        ..SEVENTY
    };
    let p = peak(&seventy, &fsdp, 1, false);
    close("70B", 71.9, p.reserved(), 5.0, &p);
}
