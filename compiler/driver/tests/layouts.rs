//! Layouts of models over many ranks: parameters, work and messages, against what is published or
//! worked out by hand.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile};
use nrl_ir::plan::Plan;

/// What a recipe is made of here.
#[derive(Clone, Copy)]
struct Asked<'t> {
    model: &'t str,
    nodes: usize,
    axes: &'t str,
    plan: &'t str,
    /// Tokens of a micro-batch.
    tokens: usize,
}

fn recipe(a: &Asked<'_>) -> String {
    let Asked { model, nodes, axes, plan, tokens } = a;
    format!(
        r#"use std.{{clusters, data, models, plans, optim}}

recipe r {{
  run 10 steps
  gpus   = clusters.h100(nodes: {nodes})
  mesh m = gpus axes ({axes})
  policy = models.{model}
  place policy on m by {plan}
  opt  = optim.adamw(lr: 1e-5)
  rows = data.made(100 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    b = rows.take(64 samples)
    update policy by opt in 1 update, {tokens} tokens/microbatch, minimising {{
      mean(-logprob(policy, b), over: tokens)
    }}
  }}
}}
"#
    )
}

fn tried(a: &Asked<'_>) -> (Option<Compiled>, Vec<String>) {
    let files = BTreeMap::from([("r.nrl".to_string(), recipe(a))]);
    let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    let errors = found.iter().filter(|d| d.is_error());
    (c, errors.map(|d| format!("{}: {} {:?}", d.code, d.message, d.help)).collect())
}

fn compiled(a: &Asked<'_>) -> Compiled {
    let (c, errors) = tried(a);
    c.unwrap_or_else(|| panic!("{}: {errors:?}", a.axes))
}

fn update(c: &Compiled) -> &Plan {
    c.plans.iter().find(|p| p.name.starts_with("update")).expect("an update")
}

/// Weights of the model of a recipe.
fn weights(c: &Compiled, only: &dyn Fn(&str) -> bool) -> f64 {
    let m = &c.program.models[0];
    let one = |p: &nrl_ir::ParamDecl| {
        let n: f64 = p.dims.iter().map(|d| m.dims.bound(*d) as f64).product();
        n * p.repeat.as_ref().map_or(1.0, |(_, n)| *n as f64)
    };
    m.params.iter().filter(|p| only(&p.name)).map(one).sum()
}

const GPT3: &str = "gpt({hidden_size: 12288, num_hidden_layers: 96, num_attention_heads: 96, vocab_size: 51200}, dtype: bf16, context: 2048 tokens)";
const MIXTRAL: &str = "mixtral({hidden_size: 4096, intermediate_size: 14336, num_local_experts: 8, num_experts_per_tok: 2, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 32000}, dtype: bf16, context: 4096 tokens)";
const QWEN30: &str = "qwen3_moe({hidden_size: 2048, moe_intermediate_size: 768, num_experts: 128, num_experts_per_tok: 8, norm_topk_prob: true, num_hidden_layers: 48, num_attention_heads: 32, num_key_value_heads: 4, head_dim: 128, vocab_size: 151936}, dtype: bf16, context: 4096 tokens)";
const DEEPSEEK: &str = "deepseek_v3({hidden_size: 7168, intermediate_size: 18432, moe_intermediate_size: 2048, num_hidden_layers: 61, first_k_dense_replace: 3, num_attention_heads: 128, q_lora_rank: 1536, kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, n_routed_experts: 256, n_shared_experts: 1, num_experts_per_tok: 8, n_group: 8, topk_group: 4, routed_scaling_factor: 2.5, vocab_size: 129280}, dtype: bf16, context: 4096 tokens)";

fn whole(model: &str) -> Compiled {
    let plan = "plans.fsdp()";
    compiled(&Asked { model, nodes: 8, axes: "fsdp: rest", plan, tokens: 4096 })
}

/// Weights as published: GPT-3 by the formula of Narayanan et al. (2021) and its last norm, Mixtral
/// 8x7B and Qwen3-30B-A3B as their checkpoints have them, DeepSeek-V3 as Hugging Face counts it
/// without the layer for multi-token prediction.
#[test]
fn models_have_the_weights_of_their_namesakes() {
    let all = |_: &str| true;
    let (l, h, v, s) = (96.0, 12288.0, 51200.0, 2048.0);
    let gpt3 = 12.0 * l * h * h + 13.0 * l * h + (v + s) * h + 2.0 * h;
    assert_eq!(weights(&whole(GPT3), &all), gpt3);
    assert_eq!(weights(&whole(MIXTRAL), &all), 46_702_792_704.0);
    assert_eq!(weights(&whole(QWEN30), &all), 30_532_122_624.0);
    assert_eq!(weights(&whole(DEEPSEEK), &all), 671_026_419_200.0);
}

/// Forward and backward take 6 FLOPs per token and weight that a token uses (Kaplan et al. 2020), and
/// the attention products: `12 l q hd s / 2` for causal ones.
#[test]
fn work_follows_the_weights_that_a_token_uses() {
    let attention = |layers: f64, width: f64| 6.0 * layers * width * 4096.0 * 7.0 / 6.0;
    let rows = [
        (GPT3, 174.6e9, 96.0 * 12288.0 * 0.5 * 2.0, 96.0),
        (MIXTRAL, 12.88e9, 4096.0, 32.0),
        (QWEN30, 3.35e9, 4096.0, 48.0),
        (DEEPSEEK, 37.55e9, 128.0 * 160.0, 61.0),
    ];
    for (model, used, width, layers) in rows {
        let c = whole(model);
        let plan = update(&c);
        let g = &plan.classes[0].graph;
        let per_token = plan.cost.flops / 4096.0;
        let rough = 6.0 * used;
        assert!(
            per_token > rough * 0.9 && per_token < rough * 1.35,
            "{model}: {per_token:.4e} against {rough:.4e}, attention {:.3e} {:?}",
            attention(layers, width),
            g.dims.iter().map(|(_, d)| &d.name).collect::<Vec<_>>()
        );
    }
}
