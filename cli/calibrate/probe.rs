//! Small recipes whose steps are measured: a llama of random weights that samples, scores and updates.
//!
//! In: a shape, and a number of ranks. Out: seconds of each stage, as the metrics of a run would have them, with what the
//! driver says the stage does. Sizes lie between those of the quickstart and of two layers of a model of 135 M weights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nrl_base::{Diagnostic, SourceMap};
use nrl_driver::threads::{Seen, tasks};
use nrl_driver::{Assume, Options};
use nrl_planner::machine::Measured;
use nrl_runtime::rank::Compiled;
use nrl_runtime::reward::Scorer;
use nrl_runtime::run::error::RunError;
use nrl_runtime::run::machine::Machine;
use nrl_runtime::run::stage::{Pass, Place, Shop, open_data};

use crate::load;

/// A model and the samples of its step.
pub struct Probe {
    hidden: usize,
    ffn: usize,
    layers: usize,
    heads: usize,
    kv: usize,
    vocab: usize,
    prompts: usize,
    copies: usize,
    /// Tokens of a prompt, and drawn for it.
    prompt: usize,
    new: usize,
    /// Weights cut over the ranks.
    cut: bool,
}

/// What a probe found.
pub struct Found {
    pub stages: Vec<Measured>,
    /// Seconds of a job of nothing, and of a sample that a reward looks at.
    pub job: f64,
    pub reward: f64,
}

/// The probes; fewer of them if it is to be quick.
pub fn all(quick: bool) -> Vec<Probe> {
    let shape = |(hidden, ffn, layers, heads, kv, vocab), (prompts, copies, prompt, new), cut| {
        Probe { hidden, ffn, layers, heads, kv, vocab, prompts, copies, prompt, new, cut }
    };
    let mut all = vec![
        shape((64, 192, 2, 4, 2, 24), (32, 8, 6, 6), false),
        shape((128, 384, 4, 4, 2, 64), (16, 8, 12, 10), false),
        shape((256, 768, 3, 4, 2, 1024), (8, 8, 40, 6), true),
        shape((576, 1536, 2, 9, 3, 8192), (8, 8, 32, 4), true),
    ];
    if !quick {
        all.extend([
            shape((64, 192, 2, 4, 2, 24), (8, 2, 8, 8), false),
            shape((128, 384, 2, 4, 4, 64), (4, 4, 120, 24), false),
            shape((576, 1536, 1, 9, 3, 16384), (4, 8, 24, 6), true),
            shape((96, 256, 4, 4, 2, 40), (64, 8, 6, 6), false),
        ]);
    }
    all
}

impl Probe {
    /// In a few words.
    pub fn what(&self) -> String {
        let (n, tokens) = (self.prompts * self.copies, self.prompt + self.new);
        format!("{} x {}, vocabulary {}, {n} x {tokens}", self.layers, self.hidden, self.vocab)
    }

    fn recipe(&self, ranks: usize) -> String {
        let digits = "0123456789$_";
        let more = (0x4e00..).filter_map(char::from_u32).take(self.vocab - digits.len());
        let alphabet: String = digits.chars().chain(more).collect();
        let (axis, plan) = if self.cut { ("fsdp", "fsdp") } else { ("dp", "ddp") };
        let Probe { hidden, ffn, layers, heads, kv, prompts, copies, prompt, new, .. } = self;
        let context = (prompt + new).next_multiple_of(16);
        format!(
            r#"use std.{{clusters, data, grpo, models, optim, plans, rewards}}

recipe probe {{
  run 8 steps, seed 7
  cpus   = clusters.cpu(ranks: {ranks})
  mesh m = cpus axes ({axis}: rest)
  policy = models.llama(
    {{hidden_size: {hidden}, intermediate_size: {ffn}, num_hidden_layers: {layers}, num_attention_heads: {heads},
      num_key_value_heads: {kv}}},
    tokens: characters("{alphabet}", end: "$", pad: "_"), context: {context} tokens, init: 0.02)
  place policy on m by plans.{plan}()
  opt     = optim.adamw(lr: 1e-5, clip_norm: 1.0)
  sampler = generator(policy, temperature: 1.0)
  rows    = data.made(100000 rows, i -> {{prompt: random_text("0123456789", {prompt}, i), answer: "0"}})
  assume lengths = always({new} tokens)
  step {{
    s   = sampler.generate(rows.take({prompts} prompts), {copies} samples/prompt, max_new: {new} tokens, min_new: {new} tokens)
    old = logprob(policy, s)
    r   = rewards.exact(s)
    adv = grpo.advantages(r, baseline: leave_one_out, scale: std)
    update policy by opt in 1 update, 4096 tokens/microbatch, minimising {{
      mean(grpo.clip(ratio(logprob(policy, s), old), adv, 0.2..0.2), over: tokens)
    }}
  }}
}}
"#
        )
    }
}

fn failed(e: RunError) -> Diagnostic {
    Diagnostic::error(e.code, e.message).help_opt(e.help)
}

/// Runs a probe on so many ranks.
pub fn run(p: &Probe, ranks: usize, quick: bool) -> Result<Found, Diagnostic> {
    let files = BTreeMap::from([("probe.nrl".to_string(), p.recipe(ranks))]);
    let (compiled, found) =
        nrl_driver::compile(&files, &mut SourceMap::new(), "probe.nrl", &Options::default());
    let Some(compiled) = compiled else {
        let none = || Diagnostic::error("internal", "a probe does not compile");
        return Err(found.into_iter().find(Diagnostic::is_error).unwrap_or_else(none));
    };
    let seen = Seen { rows: 100_000, prompt: p.prompt as f64, answer: None };
    let assume = Assume { seen: BTreeMap::from([(0, seen)]), ..Assume::default() };
    let section = compiled.program.phases[0].clone();
    let tasks = tasks(&compiled, &assume, &section.step);
    let mut shop = open(compiled).map_err(failed)?;
    let job = job(&shop).map_err(failed)?;
    let mut seen: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let begin = Instant::now();
    let (least, limit) = if quick { (2, 0.6) } else { (3, 1.5) };
    for step in 1..=24 {
        let place =
            Place { phase: 0, in_phase: step, of_phase: 24, step: step as u64, unscored: false };
        let mut pass = Pass::new(&mut shop, &section.step, place);
        pass.run().map_err(failed)?;
        // The first step makes buffers and kernels.
        if step > 1 {
            for (name, x) in &pass.numbers {
                if let Some(stage) = name.strip_prefix("seconds/") {
                    seen.entry(stage.to_string()).or_default().push(*x);
                }
            }
        }
        if step > least && begin.elapsed().as_secs_f64() > limit {
            break;
        }
    }
    let usual = |stage: &str| seen.get(stage).map_or(0.0, |all| median(all));
    let stages = tasks
        .into_iter()
        .filter(|t| ["generate", "logprob", "update"].contains(&t.stage))
        .map(|t| Measured {
            what: p.what(),
            stage: t.stage.into(),
            chore: t.chore,
            seconds: usual(t.stage),
        })
        .filter(|m| m.seconds > 0.0)
        .collect();
    let samples = (p.prompts * p.copies) as f64;
    Ok(Found { stages, job, reward: usual("reward") / samples })
}

fn open(compiled: nrl_driver::Compiled) -> Result<Shop, RunError> {
    let plans = compiled.plans.into_iter().map(Arc::new).collect();
    let setup = Compiled { program: compiled.program, plans };
    let mut machine = Machine::start(setup, &load::engine())?;
    machine.load_initial()?;
    let program = machine.program();
    let data =
        program.data.iter().map(|d| open_data(&machine, d).map(Some)).collect::<Result<_, _>>()?;
    let scorers =
        program.rewards.iter().map(|r| Scorer::start(r).map(Some)).collect::<Result<_, _>>()?;
    Ok(Shop { machine, data, scorers })
}

/// Seconds of a job that does nothing.
fn job(shop: &Shop) -> Result<f64, RunError> {
    let mut all = vec![];
    for _ in 0..50 {
        let start = Instant::now();
        shop.machine.ranks.all(|_| Ok(()))?;
        all.push(start.elapsed().as_secs_f64());
    }
    Ok(median(&all))
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}
