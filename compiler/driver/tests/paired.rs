//! Micro-batches side by side, as a plan asks for it: when they may, and what they take and keep.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile, memory, updates};
use nrl_sim::rates::{Compute, Rates, Speed};
use nrl_sim::train::{Job, Took};

/// Qwen3-30B-A3B, and a dense model.
const MIXTURE: &str = "qwen3_moe({hidden_size: 2048, moe_intermediate_size: 768, num_experts: 128, num_experts_per_tok: 8, norm_topk_prob: true, num_hidden_layers: 48, num_attention_heads: 32, num_key_value_heads: 4, head_dim: 128, vocab_size: 151936}, dtype: bf16, context: 4096 tokens)";
const DENSE: &str = "llama({hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256}, dtype: bf16, context: 4096 tokens)";

fn tried(model: &str, axes: &str, plan: &str) -> (Option<Compiled>, Vec<String>) {
    let text = format!(
        r#"use std.{{clusters, data, models, plans, optim}}

plan mine() {{
  layers: stages over pp, paired true
}}

recipe r {{
  run 10 steps
  gpus   = clusters.h100(nodes: 4)
  mesh m = gpus axes ({axes})
  policy = models.{model}
  place policy on m by {plan}
  opt  = optim.adamw(lr: 1e-5)
  rows = data.made(500000 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    b = rows.take(500000 samples)
    update policy by opt in 1 update, 4096 tokens/microbatch, minimising {{
      mean(-logprob(policy, b), over: tokens)
    }}
  }}
}}
"#
    );
    let files = BTreeMap::from([("r.nrl".to_string(), text)]);
    let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    let errors = found.iter().filter(|d| d.is_error());
    (c, errors.map(|d| format!("{}: {} {:?}", d.code, d.message, d.help)).collect())
}

fn compiled(axes: &str, plan: &str) -> Compiled {
    let (c, errors) = tried(MIXTURE, axes, plan);
    c.unwrap_or_else(|| panic!("{axes} {plan}: {errors:?}"))
}

#[test]
fn only_experts_apart_give_something_to_hide() {
    let paired = "plans.megatron(paired: true)";
    for (model, axes, plan, parts) in [
        (DENSE, "dp: rest", paired, ["`policy` has none", "leave `paired` out"]),
        (MIXTURE, "dp: rest", paired, ["`ep` of `m` is 1", "`ep: 8`"]),
        (MIXTURE, "dp: rest, pp: 2", "mine() * plans.ddp()", ["this plan does not split", "@ep"]),
    ] {
        let (c, errors) = tried(model, axes, plan);
        assert!(c.is_none(), "{axes} {plan}");
        assert!(errors[0].starts_with("needs-another-setting"), "{errors:?}");
        assert!(parts.iter().all(|p| errors[0].contains(p)), "{errors:?}");
    }
    for plan in ["plans.megatron(paired: true)", "mine() * plans.megatron()"] {
        let c = compiled("dp: rest, ep: 8", plan);
        assert!(updates(&c)[0].job.paired, "{plan}");
        let later: Vec<&str> = c.not_yet.iter().map(|d| &*d.message).collect();
        assert!(later.iter().any(|d| d.contains("paired")), "{later:?}");
    }
    assert!(!updates(&compiled("dp: rest, ep: 8", "plans.megatron()"))[0].job.paired);
    let (_, errors) = tried(MIXTURE, "dp: rest, ep: 8", "plans.megatron(paired: 2)");
    assert!(errors[0].contains("bool"), "{errors:?}");
}

fn took(c: &Compiled) -> (Job, Took) {
    let all = updates(c);
    let t = &all[0];
    let rates = Rates::default();
    let speed = Speed { machine: &t.machine, rates: &rates, compute: Compute::Bf16 };
    (t.job.clone(), t.job.run(&speed))
}

/// What is saved is at most what was exchanged, and something of it on any mesh where it crosses nodes.
#[test]
fn what_experts_exchange_is_hidden_and_nothing_else() {
    for axes in ["dp: rest, ep: 32", "dp: rest, ep: 16", "pp: 2, dp: rest, ep: 16"] {
        for chunks in [1, 2] {
            let plan = |more: &str| format!("plans.megatron(chunks: {chunks}{more})");
            let (_, apart) = took(&compiled(axes, &plan("")));
            let (job, beside) = took(&compiled(axes, &plan(", paired: true")));
            assert!(job.micro > 4, "{axes}: {} micro-batches", job.micro);
            let exchanged = apart.forward.plus(apart.backward, 1.0);
            let most = exchanged.network + exchanged.node + exchanged.launch;
            let saved = apart.seconds - beside.seconds;
            assert!(
                saved > 0.1 * exchanged.network && saved <= most,
                "{axes} {chunks}: {apart:?} {beside:?}"
            );
        }
    }
}

/// Layers are kept of one micro-batch more; on stages of one part, of twice as many (two for each stage that follows).
#[test]
fn a_pair_keeps_layers_of_more_micro_batches() {
    let kept = |axes: &str, plan: &str| {
        let all = memory(&compiled(axes, plan));
        let update = all.iter().find(|m| m.stage.starts_with("update")).expect("an update");
        update.terms.iter().find(|t| t.name == "activations").map_or(0.0, |t| t.bytes)
    };
    // Interleaved, the first of 2 stages of 2 chunks keeps (2 - 1) * 2 + 2 * 1 + 1 of them, so 5 / 2 of its own layers.
    for (axes, chunks, times) in [
        ("dp: rest, ep: 8", 1, 2.0),
        ("pp: 2, dp: rest, ep: 8", 1, 2.0),
        ("pp: 2, dp: rest, ep: 8", 2, 6.0 / 5.0),
    ] {
        let plan = |more: &str| format!("plans.megatron(chunks: {chunks}{more})");
        let more = kept(axes, &plan(", paired: true")) / kept(axes, &plan(""));
        assert!((more / times - 1.0).abs() < 1e-9, "{axes} {chunks}: {more} for {times}");
    }
}
