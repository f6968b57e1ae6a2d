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
  rows = data.made(100 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    b = rows.take(8 samples)
    update policy by opt in 1 update, {} tokens/microbatch, minimising {{
      mean(-logprob(policy, b), over: tokens)
    }}
  }}
}}
"#,
        c.nodes, c.axes, c.tokens, c.plan, c.tokens
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

/// Twelve layers of Llama-3-70B on Megatron-Core, allocated and reserved on B200 (SimuMax 1.2 tables).
#[test]
fn megatron_core() {
    let stack = Stack::megatron();
    for (axes, allocated, reserved) in
        [("dp: rest, tp: 4", 39.07, 40.18), ("dp: rest, tp: 8", 28.29, 29.12)]
    {
        let p = peak(&Case { axes, ..SEVENTY }, &stack, 4, false);
        close(axes, allocated, p.allocated(), 2.0, &p);
        close(axes, reserved, p.reserved(), 5.0, &p);
    }
}
