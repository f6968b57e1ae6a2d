//! Evaluations and checkpoints beside a step, and the collectives of updates, against hand calculation.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Assume, Compiled, Options, checkpoint_bytes, compile, forecast};
use nrl_sim::forecast::Source;

/// Llama-3.1-8B on one node, trained by samples of its own.
fn recipe(axes: &str, place: &str, every: &str) -> String {
    format!(
        r#"use std.{{clusters, data, grpo, models, optim, plans, rewards}}

recipe r {{
  run 100 steps
  gpus       = clusters.h100(nodes: 1)
  mesh learn = gpus axes ({axes})
  mesh speak = gpus axes (rep: rest)
  policy     = models.load("meta-llama/Llama-3.1-8B-Instruct", dtype: bf16, context: 4096 tokens)
  adam       = optim.adamw(lr: 1e-6)
  sampler    = generator(policy, on: speak, memory: 60 % of device)
  place policy on learn by {place}
  problems = data.jsonl("x.jsonl", prompt: "question", answer: "answer")
  held     = data.jsonl("y.jsonl", prompt: "question", answer: "answer")
  step {{
    s    = sampler.generate(problems.take(64 prompts), 8 samples/prompt, max_new: 1024 tokens)
    gain = grpo.advantages(rewards.boxed_answer(s), baseline: leave_one_out, scale: std)
    old  = logprob(policy, s)
    update policy by adam in 2 updates, 8192 tokens/microbatch, minimising {{
      mean(grpo.clip(ratio(logprob(policy, s), old), gain, 0.2..0.28), over: tokens)
    }}
  }}
  {every}
  assume lengths = lognormal(mean: 300 tokens, p99: 900 tokens)
}}
"#
    )
}

fn compiled(text: &str) -> Compiled {
    let files = BTreeMap::from([("r.nrl".to_string(), text.to_string())]);
    let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    c.unwrap_or_else(|| panic!("{found:#?}"))
}

/// 8.03 G weights in 2 bytes, a copy in 4 and two moments in 4 are 112.4 GB: at the 2 GB/s of a node that are assumed,
/// 56.2 s every 30 steps, four times in a hundred.
#[test]
fn evaluations_and_checkpoints_beside_a_step() {
    let every = "every 10 steps { test = evaluate(sampler, held, rewards.boxed_answer, limit: 128) }\n  \
                 every 30 steps { checkpoint keep 2 }";
    let c = compiled(&recipe("dp: rest", "plans.megatron()", every));
    assert_eq!(checkpoint_bytes(&c), 14.0 * 8_030_261_248.0);
    let f = forecast(&c, &Assume::default()).expect("a machine");
    let step = &f.steps[0];
    let [test, save] = &step.every[..] else { panic!("{:?}", step.every) };
    assert_eq!((test.name.as_str(), test.period, test.times(100)), ("evaluate test", 10, 10));
    assert_eq!((save.name.as_str(), save.period, save.times(100)), ("checkpoint", 30, 4));
    assert!((save.seconds.value - 14.0 * 8_030_261_248.0 / 2e9).abs() < 1e-6);
    assert_eq!(save.seconds.source, Source::Assumed);
    // An evaluation draws 128 samples, a step 512 of the same lengths: no longer than that, and no shorter than
    // the longest sample.
    let sample =
        &step.phases.iter().find(|p| p.name == "sample by sampler").expect("samples").seconds;
    assert!(test.seconds.value < sample.value && test.seconds.value > 0.3 * sample.value);
    let more = test.seconds.value * 10.0 / 100.0 + save.seconds.value * 4.0 / 100.0;
    assert!((step.average() - step.seconds.value - more).abs() < 1e-9);
    assert!((f.total() - 100.0 * step.average()).abs() < 1e-6);
}

/// Rows of a file that is not here are not counted: the plan says so.
#[test]
fn an_evaluation_of_unknown_size_is_named() {
    let every = "every 10 steps { test = evaluate(sampler, held, rewards.boxed_answer) }";
    let c = compiled(&recipe("dp: rest", "plans.megatron()", every));
    let f = forecast(&c, &Assume::default()).expect("a machine");
    assert!(f.steps[0].every.is_empty());
    assert!(f.not_modelled.iter().any(|n| n.contains("`evaluate test`")), "{:?}", f.not_modelled);
}

/// ZeRO-1 over eight ranks sums gradients of four bytes and gathers weights of two, in each of two updates.
#[test]
fn gradients_and_weights_of_updates_are_in_the_traffic() {
    let c = compiled(&recipe("dp: rest", "plans.megatron()", ""));
    let f = forecast(&c, &Assume::default()).expect("a machine");
    let of = |kind: &str| {
        let all = f.steps[0].traffic.iter().filter(|t| t.kind == kind && t.axes == ["dp"]);
        let moved: f64 = all.clone().map(|t| t.calls * t.bytes).sum();
        (moved, all.map(|t| t.ranks).max())
    };
    assert_eq!(of("ReduceScatter"), (2.0 * 4.0 * 8_030_261_248.0, Some(8)));
    assert_eq!(of("GatherWeights"), (2.0 * 2.0 * 8_030_261_248.0, Some(8)));
}

/// Four stages of eight layers each send what a layer hands on: 8,192 tokens at most of 4,096 numbers in 16 bits, once
/// forward and once back for each micro-batch. Collectives of layers are those of one stage.
#[test]
fn stages_of_a_pipeline_send_and_share_the_traffic() {
    let whole = compiled(&recipe("dp: rest, tp: 2", "plans.megatron(sp: true)", ""));
    let cut = compiled(&recipe("dp: rest, tp: 2, pp: 4", "plans.megatron(sp: true)", ""));
    let traffic =
        |c: &Compiled| forecast(c, &Assume::default()).expect("a machine").steps.remove(0);
    let (one, four) = (traffic(&whole), traffic(&cut));
    let sends = four.traffic.iter().filter(|t| t.kind == "Send" && t.phase == "update policy");
    let update = four.phases.iter().find(|p| p.name == "update policy").expect("an update");
    let (calls, bytes) = sends.fold((0.0, 0.0), |a, t| (a.0 + t.calls, t.bytes));
    assert_eq!(calls, 2.0 * 2.0 * update.micro as f64);
    // Ranks of tp have a half of the tokens each.
    assert!((bytes - update.micro_tokens * 4096.0 * 2.0 / 2.0).abs() < 1.0, "{bytes}");
    assert!(one.traffic.iter().all(|t| t.kind != "Send"));
    // Tokens of a step times layers of a rank: a quarter of the layers, four times the tokens of a dp rank.
    let gathers = |s: &nrl_sim::forecast::Step| -> f64 {
        let all = s.traffic.iter().filter(|t| t.kind == "AllGather" && t.axes == ["tp"]);
        all.filter(|t| t.phase == "update policy").map(|t| t.calls * t.bytes).sum()
    };
    assert!((gathers(&four) / gathers(&one) - 1.0).abs() < 0.1);
}
