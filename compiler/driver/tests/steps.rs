//! Steps of reinforcement learning against what NVIDIA published of NeMo RL 0.3 (averages over steps 22 to 29, H100).

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Assume, Options, compile, forecast};
use nrl_sim::forecast::Kind;

/// A published step: 64 prompts x 32 samples, 4 updates, 4,096 tokens a sequence.
struct Published {
    model: &'static str,
    nodes: usize,
    axes: &'static str,
    rtp: usize,
    mean: usize,
    p99: usize,
    /// Seconds: sampling, both passes of log-probabilities, updates.
    sample: f64,
    score: f64,
    update: f64,
}

fn recipe(p: &Published) -> String {
    format!(
        r#"use std.{{clusters, data, grpo, models, optim, plans, rewards}}

recipe r {{
  run 10 steps, seed 42
  gpus       = clusters.h100(nodes: {})
  mesh learn = gpus axes ({})
  mesh speak = gpus axes (rep: rest, rtp: {})
  policy     = models.load("{}", dtype: bf16, context: 4096 tokens)
  reference  = frozen(policy)
  adam       = optim.adamw(lr: 1e-6)
  sampler    = generator(policy, on: speak, temperature: 1.0, memory: 60 % of device)
  place policy, reference on learn by plans.megatron(sp: true)
  problems = data.jsonl("x.jsonl", prompt: "question", answer: "answer")
  step {{
    s    = sampler.generate(problems.take(64 prompts), 32 samples/prompt, max_new: rest of context)
    gain = grpo.advantages(rewards.boxed_answer(s), baseline: leave_one_out, scale: std)
    old  = logprob(policy, s)
    w    = tis(old, s.logprob, max: 2.0)
    update policy by adam in 4 updates, 4096 tokens/microbatch, minimising {{
      let now = logprob(policy, s)
      mean(w * grpo.clip(ratio(now, old), gain, 0.2..0.28), over: tokens)
        + 0.01 * mean(k3(now, logprob(reference, s)), over: tokens)
    }}
  }}
  assume lengths = lognormal(mean: {} tokens, p99: {} tokens)
}}
"#,
        p.nodes, p.axes, p.rtp, p.model, p.mean, p.p99
    )
}

#[test]
fn phases_of_published_steps() {
    let all = [
        Published {
            model: "meta-llama/Llama-3.1-8B-Instruct",
            nodes: 1,
            axes: "dp: rest",
            rtp: 1,
            mean: 795,
            p99: 2400,
            sample: 58.0,
            score: 18.0,
            update: 28.0,
        },
        Published {
            model: "meta-llama/Llama-3.1-70B",
            nodes: 8,
            axes: "pp: 4, dp: rest, tp: 4",
            rtp: 4,
            mean: 398,
            p99: 2472,
            sample: 84.0,
            score: 18.0,
            update: 28.0,
        },
        Published {
            model: "Qwen/Qwen3-32B",
            nodes: 8,
            axes: "pp: 2, dp: rest, tp: 4",
            rtp: 4,
            mean: 3283,
            p99: 4000,
            sample: 96.0,
            score: 40.0,
            update: 68.0,
        },
        Published {
            model: "Qwen/Qwen3-30B-A3B",
            nodes: 8,
            axes: "dp: rest, tp: 2, ep: 8",
            rtp: 4,
            mean: 3251,
            p99: 4000,
            sample: 78.0,
            score: 23.0,
            update: 50.0,
        },
    ];
    for p in all {
        let files = BTreeMap::from([("r.nrl".to_string(), recipe(&p))]);
        let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
        let c = c.unwrap_or_else(|| panic!("{found:#?}"));
        let assume = Assume { stack: Some("nemo-rl 0.3".into()), ..Assume::default() };
        let step = forecast(&c, &assume).expect("a machine").steps.remove(0);
        let sum = |kind| -> f64 {
            step.phases.iter().filter(|x| x.kind == kind).map(|x| x.seconds.value).sum()
        };
        let near = |what: &str, predicted: f64, measured: f64, share: f64| {
            let off = predicted / measured - 1.0;
            let model = p.model;
            assert!(off.abs() <= share, "{model} {what}: {predicted:.1} s, {measured} measured");
        };
        near("sample", sum(Kind::Sample), p.sample, 0.2);
        near("score", sum(Kind::Score), p.score, 0.3);
        near("update", sum(Kind::Update), p.update, 0.3);
    }
}

/// A pair has two answers: a step of 128 pairs computes 256 samples, of eight FLOPs a weight and token where layers are computed again
/// (Korthikanti et al. 2022) and two where they are only scored.
#[test]
fn both_answers_of_a_pair_are_computed() {
    let text = include_str!("../../../examples/recipes/dpo_preferences.nrl");
    let text = text.replace("  step {", "  assume lengths = always(1000 tokens)\n  step {");
    let files = BTreeMap::from([("r.nrl".to_string(), text)]);
    let mut sources = SourceMap::new();
    let (compiled, found) = compile(&files, &mut sources, "r.nrl", &Options::default());
    let compiled = compiled.unwrap_or_else(|| panic!("{found:?}"));
    let f = forecast(&compiled, &Assume::default()).expect("a forecast");
    let step = &f.steps[0];
    assert_eq!((step.samples, step.tokens), (256.0, 256e3));
    let of = |kind: Kind| step.phases.iter().find(|p| p.kind == kind).expect("a phase").flops;
    // Llama-3.1-8B without its embedding; attention adds 3 % at this length.
    let weights = 7.505e9;
    for (kind, each) in [(Kind::Update, 8.0), (Kind::Score, 2.0)] {
        let share = of(kind) / (each * weights * step.tokens);
        assert!((0.95..1.1).contains(&share), "{kind:?} {share}");
    }
}
