//! Stages of a step as threads of this process do them, against what is worked out by hand.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::threads::{Seen, Task, tasks};
use nrl_driver::{Assume, Compiled, Options, compile, forecast};
use nrl_sim::calibration::{Calibration, Ranks, Threads};
use nrl_sim::forecast::Source;
use nrl_sim::threads::Host;

/// 4 prompts of 4 tokens, 4 samples of each, on two ranks; an evaluation and a checkpoint now and then.
fn compiled(assume: &str) -> Compiled {
    let text = format!(
        r#"use std.{{clusters, data, models, optim, plans, rewards, grpo}}

recipe tiny {{
  run 10 steps
  cpus   = clusters.cpu(ranks: 2)
  mesh m = cpus axes (fsdp: rest)
  policy = models.llama(
    {{hidden_size: 64, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}},
    tokens: characters("0123456789+=$_", end: "$", pad: "_"), context: 16 tokens)
  place policy on m by plans.fsdp()
  opt = optim.adamw(lr: 1e-3)
  sampler = generator(policy, temperature: 1.0)
  rows = data.made(100 rows, i -> {{prompt: "1+1=", answer: "2"}})
  {assume}
  step {{
    s = sampler.generate(rows.take(4 prompts), 4 samples/prompt, max_new: 8 tokens)
    r = rewards.exact(s)
    adv = grpo.advantages(r, baseline: leave_one_out, scale: std)
    update policy by opt in 2 updates, 16 tokens/microbatch, minimising {{
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.2), over: tokens)
    }}
  }}
  every 5 steps {{
    test = evaluate(sampler, rows, rewards.exact, limit: 8, max_new: 3 tokens)
    checkpoint keep 1 by test.accuracy, and the latest
  }}
}}
"#
    );
    let files = BTreeMap::from([("a.nrl".to_string(), text)]);
    let (c, found) = compile(&files, &mut SourceMap::new(), "a.nrl", &Options::default());
    c.unwrap_or_else(|| panic!("{found:#?}"))
}

fn seen() -> Assume {
    let seen = Seen { rows: 100, prompt: 4.0, answer: Some(2.0) };
    Assume { seen: BTreeMap::from([(0, seen)]), ..Assume::default() }
}

fn stage<'a>(all: &'a [Task], name: &str) -> &'a Task {
    all.iter().find(|t| t.stage == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn stages_have_the_sizes_of_a_run() {
    let c = compiled("assume lengths = always(3 tokens)");
    let all = tasks(&c, &seen(), &c.program.phases[0].step);
    // A rank draws for 2 prompts: one prefill gives the first of 3 tokens of each of 8 samples, two runs the others.
    let g = &stage(&all, "generate").chore;
    assert_eq!(g.passes.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [1.0, 2.0]);
    assert_eq!((g.runs, g.tokens, g.logits), (3.0, 24.0, 24.0 * 14.0));
    // 6 of 8 samples copy 4 tokens of keys and values: 2 x 64 numbers of 4 bytes in one layer.
    assert_eq!(g.copied, 6.0 * 4.0 * 2.0 * 64.0 * 4.0);
    // Weights are cut over the ranks; the generator has them whole: 14 x 64 once, as head and embedding are tied or
    // twice, 4 x 64 x 64 of attention, 3 x 64 x 64 of the feed-forward block, 3 norms.
    let tied = c.program.models[0].params.iter().all(|p| !p.name.contains("head"));
    let numbers = if tied { 896.0 } else { 1792.0 } + 7.0 * 4096.0 + 192.0;
    let (bytes, group) = g.gathered.expect("weights in parts");
    assert_eq!((bytes, group.size), (4.0 * numbers, 2));
    // 16 samples in 2 updates over 2 ranks: 4 each, fed 6 tokens, of which 16 hold two.
    let u = stage(&all, "update");
    assert_eq!((u.micro, u.micro_tokens, u.chore.passes[0].1), (2, 12.0, 2.0));
    assert_eq!((u.chore.runs, u.chore.samples), (4.0, 8.0));
    assert_eq!(stage(&all, "reward").chore.rewards, 16.0);
    assert_eq!(stage(&all, "data").chore.rewards, 4.0);
}

/// A machine on which only rewards and writing take time.
fn measured() -> Calibration {
    let host =
        Host { job: 0.0, run: 0.0, token: 0.0, logit: 0.0, sample: 0.0, reward: 0.5, write: 1e3 };
    let mut rates = Threads::rates();
    (rates.half, rates.launch, rates.link_latency) = (0.0, 0.0, 0.0);
    let one = Ranks {
        ranks: 2,
        threads: 1,
        flops: 1e30,
        bandwidth: 1e30,
        link: 1e30,
        rates,
        host,
        median: 0.02,
        p90: 0.1,
    };
    Calibration { machine: "a box".into(), memory: 8e9, ranks: vec![one], ..Default::default() }
}

#[test]
fn a_forecast_says_what_runs_now_and_then() {
    let c = compiled("assume lengths = always(3 tokens)");
    let assume = Assume { calibration: Some(measured()), ..seen() };
    let f = forecast(&c, &assume).expect("a forecast");
    let step = &f.steps[0];
    // 16 samples and 4 rows at half a second each.
    assert!((step.seconds.value - 10.0).abs() < 1e-6, "{:?}", step.seconds);
    assert_eq!(step.seconds.source, Source::Calibrated);
    assert!((step.seconds.high - 11.0).abs() < 1e-6);
    let [test, checkpoint] = &step.every[..] else { panic!("{:?}", step.every) };
    assert_eq!((test.period, checkpoint.period), (5, 5));
    assert!((test.seconds.value - 4.0).abs() < 1e-6);
    let weights: f64 = checkpoint.seconds.value * 1e3 / (4.0 * 3.0);
    assert!((29_000.0..32_000.0).contains(&weights), "{weights}");
    assert!((step.average() - (10.0 + (4.0 + checkpoint.seconds.value) / 5.0)).abs() < 1e-6);
    // Two ranks share the memory, and threads have no driver.
    assert!(f.memory.iter().all(|m| m.device.memory == 4e9));
    assert!(f.memory.iter().flat_map(|m| &m.terms).all(|t| t.name != "context"));
    assert!(f.assumed.iter().all(|a| a.source != Source::Assumed), "{:?}", f.assumed);
}

#[test]
fn a_machine_that_nobody_measured_is_a_guess_with_a_remedy() {
    let c = compiled("");
    let f = forecast(&c, &Assume::default()).expect("a forecast");
    let rates = f.assumed.iter().find(|a| a.what == "rates").expect("rates");
    assert_eq!(rates.source, Source::Roofline);
    assert!(rates.help.contains("nrlc calibrate"));
    let guessed: Vec<&str> =
        f.assumed.iter().filter(|a| a.source == Source::Assumed).map(|a| a.what.as_str()).collect();
    assert_eq!(guessed, ["prompt length of rows", "output length of rows"]);
    // Answers are guessed to be like the references where those are known.
    let f = forecast(&c, &seen()).expect("a forecast");
    let guess = f.assumed.iter().find(|a| a.what.starts_with("output")).expect("a guess");
    assert_eq!(guess.value, "2.0 tokens");
}
