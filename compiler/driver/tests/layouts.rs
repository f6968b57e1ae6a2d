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

/// Weights that all ranks hold together, each part once.
fn together(p: &Plan) -> f64 {
    let g = &p.classes[0].graph;
    let held: Vec<Vec<usize>> = (0..p.stages()).map(|s| p.held(s)).collect();
    let mut sum = 0.0;
    for (i, l) in p.params.iter().enumerate() {
        let local: f64 = g.params[i].dims.iter().map(|d| g.dims.bound(*d) as f64).product();
        let ranks: usize = l.dims.iter().map(|axes| p.mesh.size_over(axes)).product();
        // What the first and the last stage both hold is one weight.
        let times: usize = held.iter().map(|h| h[i]).sum();
        let times = if g.params[i].repeat.is_none() { times.min(1) } else { times };
        sum += local * (ranks / l.copies) as f64 * times as f64;
    }
    sum
}

fn has(p: &Plan, kind: &str, axis: &str) -> bool {
    p.collectives.iter().any(|c| c.kind == kind && c.axes == [axis])
}

/// However a model is cut, its parts add up to it.
#[test]
fn parts_add_up_to_the_model() {
    let mut rows = 0;
    for (model, axes) in [
        (GPT3, "pp: 8, dp: rest, tp: 8"),
        (GPT3, "pp: 4, dp: 2, cp: 2, tp: 4"),
        (MIXTRAL, "dp: rest, tp: 2, ep: 8"),
        (MIXTRAL, "pp: 2, dp: rest, tp: 4, ep: 4, etp: 2"),
        (QWEN30, "pp: 4, dp: rest, cp: 2, tp: 2, ep: 8"),
        (QWEN30, "dp: rest, tp: 8, ep: 16"),
        (DEEPSEEK, "dp: rest, tp: 4, ep: 32"),
    ] {
        let a = Asked { model, nodes: 8, axes, plan: "plans.megatron(sp: true)", tokens: 4096 };
        let c = compiled(&a);
        let all = weights(&c, &|_| true);
        assert_eq!(together(update(&c)), all, "{axes}");
        rows += 1;
    }
    assert_eq!(rows, 7);
}

/// FLOPs of all ranks together stay those of one, but for what ranks repeat: norms, sums, routing.
#[test]
fn ranks_share_the_work() {
    let one = |model, axes: &str, tokens| {
        let plan = "plans.megatron(sp: true)";
        let c = compiled(&Asked { model, nodes: 1, axes, plan, tokens });
        update(&c).cost.flops
    };
    for model in [GPT3, MIXTRAL, QWEN30] {
        let alone = one(model, "dp: 8", 4096);
        for (axes, ranks) in [
            ("dp: 4, tp: 2", 2.0),
            ("dp: 4, cp: 2", 2.0),
            ("dp: 2, cp: 2, tp: 2", 4.0),
            ("dp: 2, tp: 4", 4.0),
        ] {
            // Where attention is part of the work a ring must see the whole context.
            let ratio = ranks * one(model, axes, 4096) / alone;
            assert!((ratio - 1.0).abs() < 0.02, "{axes}: {ratio}");
        }
    }
    for (model, axes, ranks) in [
        (MIXTRAL, "dp: 8, ep: 8", 1.0),
        (MIXTRAL, "dp: 4, tp: 2, ep: 2, etp: 2", 2.0),
        (MIXTRAL, "dp: 4, tp: 2, ep: 8", 2.0),
        (QWEN30, "dp: 2, tp: 4, ep: 8", 4.0),
        (QWEN30, "dp: 4, cp: 2, ep: 8", 2.0),
    ] {
        let ratio = ranks * one(model, axes, 4096) / one(model, "dp: 8", 4096);
        assert!((ratio - 1.0).abs() < 0.03, "{axes}: {ratio}");
    }
}

/// The work of experts goes with how many a token visits, not with how many there are.
#[test]
fn experts_cost_what_is_chosen() {
    let flops = |experts: usize, chosen: usize| {
        let from = "num_experts: 128, num_experts_per_tok: 8";
        let to = format!("num_experts: {experts}, num_experts_per_tok: {chosen}");
        update(&whole(&QWEN30.replace(from, &to))).cost.flops
    };
    // Products of experts: 3 matrices of 2048 by 768, 6 FLOPs per weight, 48 layers, 4096 tokens.
    let each = 6.0 * 3.0 * 2048.0 * 768.0 * 48.0 * 4096.0;
    let more = flops(128, 16) - flops(128, 8);
    assert!((more / (8.0 * each) - 1.0).abs() < 0.01, "{more:.4e} against {:.4e}", 8.0 * each);
    // The router itself: 6 FLOPs for each of 2048 weights per expert.
    let router = 6.0 * 2048.0 * 48.0 * 4096.0 * 128.0;
    let more = flops(256, 8) - flops(128, 8);
    assert!(more < 1.2 * router && more > 0.9 * router, "{more:.4e} against {router:.4e}");
}

/// Tokens are sent as Megatron-LM sends them: per layer a dispatch and a combine forward, the same
/// backward, each of `tokens / tp * k * d` elements.
#[test]
fn tokens_travel_to_their_experts_and_back() {
    let plan = "plans.megatron(sp: true)";
    let axes = "dp: 2, tp: 4, ep: 8";
    let c = compiled(&Asked { model: QWEN30, nodes: 1, axes, plan, tokens: 4096 });
    let p = update(&c);
    let wide = 4.0 * 4096.0 / 4.0 * 8.0 * 2048.0;
    let sent: usize = p
        .collectives
        .iter()
        .filter(|c| c.kind == "all_to_all" && c.bytes == wide)
        .map(|c| c.count)
        .sum();
    assert_eq!(sent, 4 * 48, "{:#?}", p.collectives);
    let expert = p.params.iter().find(|l| p.classes[0].graph.param(l.param).name == "layers.gate");
    let expert = expert.expect("experts");
    assert_eq!(expert.dims.iter().flatten().collect::<Vec<_>>(), ["ep"]);
    assert!(expert.pending.is_empty() && expert.state.is_empty(), "{expert:?}");
    let with = "dp: 2, tp: 4, ep: 4";
    let c = compiled(&Asked { model: QWEN30, nodes: 1, axes: with, plan, tokens: 4096 });
    let p = update(&c);
    let router =
        p.params.iter().find(|l| p.classes[0].graph.param(l.param).name == "layers.router");
    let expert = p.params.iter().find(|l| p.classes[0].graph.param(l.param).name == "layers.gate");
    assert_eq!(expert.map(|l| (&*l.pending[0], &*l.state[0])), Some(("edp", "edp")));
    assert_eq!(router.map(|l| (&*l.pending[0], &*l.state[0])), Some(("dp", "dp")));
    assert!(!has(p, "all_to_all", "tp"));
}

/// Keys and values go around a ring once per layer forward, with their gradients backward.
#[test]
fn keys_and_values_go_around() {
    let plan = "plans.megatron()";
    let c = compiled(&Asked { model: MIXTRAL, nodes: 1, axes: "cp: 8", plan, tokens: 32768 });
    let p = update(&c);
    // 4096 tokens of 8 heads of 128 on each rank, keys and values, four bytes each.
    let once = 2.0 * 4096.0 * 8.0 * 128.0 * 4.0;
    let found: Vec<(f64, usize)> =
        p.collectives.iter().filter(|c| c.kind == "ring").map(|c| (c.bytes, c.count)).collect();
    assert_eq!(found, [(once, 32), (2.0 * once, 32)]);
    assert!(p.params.iter().all(|l| l.pending == ["cp"] && l.state == ["cp"]));
}

/// Llama-3.1-70B on tp 4 and pp 4: 20 of 80 layers of 855,654,400 weights and the embedding, or the head,
/// of 1,050,673,152, split over four: 4.54 G on the first and on the last stage.
#[test]
fn stages_hold_their_layers() {
    let model = "llama({hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8, vocab_size: 128256}, dtype: bf16, context: 8192 tokens)";
    let axes = "pp: 4, dp: rest, tp: 4";
    let at = |plan| compiled(&Asked { model, nodes: 8, axes, plan, tokens: 8192 });
    let c = at("plans.megatron(sp: true)");
    let p = update(&c);
    let g = &p.classes[0].graph;
    let on = |p: &Plan, stage: usize| -> f64 {
        let local = |i: usize| -> f64 {
            g.params[i].dims.iter().map(|d| g.dims.bound(*d) as f64).product()
        };
        p.held(stage).iter().enumerate().map(|(i, n)| local(i) * *n as f64).sum()
    };
    let per_stage: Vec<f64> = (0..4).map(|s| (on(p, s) / 1e7).round() / 100.0).collect();
    assert_eq!(per_stage, [4.54, 4.28, 4.28, 4.54]);
    let pipeline = p.pipeline.as_ref().expect("stages");
    assert_eq!(pipeline.parts.len(), 4);
    // Tokens are in parts of a fourth between layers.
    assert_eq!(pipeline.boundary, 4.0 * 8192.0 / 4.0 * 8192.0);
    assert!(has(p, "send", "pp"));
    let c = at("plans.megatron(sp: true, chunks: 5)");
    let p = update(&c).pipeline.as_ref().expect("stages");
    assert_eq!((p.chunks, p.parts.len(), p.parts[7].layers[0].1), (5, 20, 4));
    assert_eq!(p.stage(3).layers, [("layers".to_string(), 20)]);
    assert!(p.stage(3).after && !p.stage(3).before);
}

/// Key/value heads fewer than ranks stand on several: 4 heads on 8 ranks twice each.
#[test]
fn few_key_heads_are_copied() {
    let plan = "plans.megatron(sp: true)";
    let c = compiled(&Asked { model: QWEN30, nodes: 1, axes: "tp: 8", plan, tokens: 4096 });
    let p = update(&c);
    let g = &p.classes[0].graph;
    for l in &p.params {
        let name = &g.param(l.param).name;
        let of_keys = ["layers.wk", "layers.wv"].contains(&&**name);
        assert_eq!(l.copies, if of_keys { 2 } else { 1 }, "{name}");
    }
    let sums = p.update_collectives();
    assert!(sums.iter().any(|c| c.kind == "all_reduce" && c.ranks == 2 && c.axes == ["tp"]));
    assert!(c.not_yet.iter().any(|d| d.message.contains("same key/value heads")));
    let (_, errors) = tried(&Asked { model: QWEN30, nodes: 3, axes: "tp: 24", plan, tokens: 4096 });
    assert!(errors.iter().any(|e| e.starts_with("heads-not-divisible")), "{errors:?}");
}

/// What each stage of ZeRO, and hybrid sharding, sends once per update.
#[test]
fn state_is_cut_and_gathered() {
    let of = |axes: &str, plan: &str| {
        let c = compiled(&Asked { model: MIXTRAL, nodes: 1, axes, plan, tokens: 4096 });
        let p = update(&c).clone();
        let mut kinds: Vec<String> = p
            .update_collectives()
            .iter()
            .map(|c| format!("{} {}", c.kind, c.axes.join("+")))
            .collect();
        kinds.sort();
        kinds.dedup();
        (p, kinds)
    };
    let (_, ddp) = of("dp: 8", "plans.ddp()");
    assert_eq!(ddp, ["all_reduce dp"]);
    let (_, zero1) = of("dp: 8", "plans.zero1()");
    assert_eq!(zero1, ["all_gather dp", "reduce_scatter dp"]);
    let (two, zero2) = of("dp: 8", "plans.zero2()");
    assert_eq!(zero2, ["all_gather dp"]);
    assert!(has(&two, "scatter_grad", "dp") && !has(&two, "gather_param", "dp"));
    assert!(two.params.iter().all(|l| l.grads == ["dp"] && l.flat.is_empty()));
    let (hybrid, hsdp) = of("dp: 2, fsdp: 4", "plans.hsdp()");
    assert_eq!(hsdp, ["all_reduce dp"]);
    assert!(has(&hybrid, "gather_param", "fsdp"));
    let sums = hybrid.update_collectives();
    let bytes: f64 = sums.iter().map(|c| c.bytes * c.count as f64).sum();
    assert_eq!(bytes, 4.0 * 46_702_792_704.0 / 4.0);
}

/// Qwen3-235B-A22B at 16 bytes per weight: state of experts 105.75 GiB on a rank of pp 4 and ep 8, half
/// of it on pp 8 (the open case of a mixture that did not fit).
#[test]
fn state_of_experts_is_cut_by_stages_and_experts() {
    let model = "qwen3_moe({hidden_size: 4096, moe_intermediate_size: 1536, num_experts: 128, num_experts_per_tok: 8, norm_topk_prob: true, num_hidden_layers: 94, num_attention_heads: 64, num_key_value_heads: 4, head_dim: 128, vocab_size: 151936}, dtype: bf16, context: 4096 tokens)";
    let stages = |pp: usize| -> String {
        let each: Vec<String> =
            (0..pp).map(|i| (94 / pp + usize::from(i < 94 % pp)).to_string()).collect();
        each.join(", ")
    };
    for (pp, nodes, want) in [(4, 4, 105.75), (8, 8, 52.88)] {
        let plan = "mine";
        let axes = format!("pp: {pp}, dp: rest, ep: 8");
        let a = Asked { model, nodes, axes: &axes, plan, tokens: 4096 };
        let rule = format!(
            "plan own() {{\n  layers: stages over pp, split [{}]\n}}\n\nrecipe r {{",
            stages(pp)
        );
        let text = recipe(&a)
            .replace("recipe r {", &rule)
            .replace("by mine", "by own() * plans.megatron(sp: true)");
        let files = BTreeMap::from([("r.nrl".to_string(), text)]);
        let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
        let c = c.unwrap_or_else(|| panic!("{found:?}"));
        let p = update(&c);
        let g = &p.classes[0].graph;
        let experts = |stage: usize| -> f64 {
            let held = p.held(stage);
            let of = |i: usize| g.params[i].dims.iter().any(|d| g.dims.get(*d).routed.is_some());
            let local = |i: usize| -> f64 {
                g.params[i].dims.iter().map(|d| g.dims.bound(*d) as f64).product()
            };
            (0..held.len()).filter(|i| of(*i)).map(|i| local(i) * held[i] as f64).sum()
        };
        let mean = (0..pp).map(experts).sum::<f64>() / pp as f64;
        let gib = (16.0 * mean / 1_073_741_824.0 * 100.0).round() / 100.0;
        assert_eq!(gib, want, "pp {pp}");
        let expert =
            p.params.iter().find(|l| g.param(l.param).name == "layers.up").expect("experts");
        assert!(expert.state.is_empty(), "no rank has the same experts");
    }
}

/// Report c09: 40 query and 8 KV heads are split over 1, 2, 4, 8 and, each KV head on five ranks, 40; the message
/// lists them.
#[test]
fn all_sizes_that_40_and_8_heads_allow() {
    let model = "llama(\n    {hidden_size: 5120, intermediate_size: 17920, num_hidden_layers: 2, \
        num_attention_heads: 40, num_key_value_heads: 8},\n    \
        tokens: characters(\"0123456789+=$_\", end: \"$\", pad: \"_\"), context: 64 tokens)";
    let legal = |tp: usize| {
        let axes = format!("dp: rest, tp: {tp}");
        let asked =
            Asked { model, nodes: tp, axes: &axes, plan: "plans.megatron(sp: false)", tokens: 64 };
        let (_, errors) = tried(&asked);
        let heads: Vec<&String> =
            errors.iter().filter(|e| e.starts_with("heads-not-divisible")).collect();
        assert!(heads.iter().all(|e| e.contains("1, 2, 4, 8, 40")), "{heads:?}");
        assert_eq!(heads.len(), errors.len(), "{errors:?}");
        heads.is_empty()
    };
    let sizes = [1, 2, 4, 5, 8, 10, 16, 20, 40];
    let all: Vec<usize> = sizes.into_iter().filter(|tp| legal(*tp)).collect();
    assert_eq!(all, [1, 2, 4, 8, 40]);
}
