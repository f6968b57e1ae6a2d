//! Bytes of a stage, against what is worked out by hand.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Assume, Compiled, Framework, Options, check, memory};
use nrl_sim::{Habits, Memory, When};

/// A llama of these layers, widths and heads on one node of H100, `axes` and `plan` as given.
fn compiled(
    config: &str,
    axes: &str,
    plan: &str,
    tokens: usize,
) -> (Option<Compiled>, Vec<String>) {
    let files = BTreeMap::from([
        ("r.nrl".to_string(), recipe(axes, plan, tokens)),
        ("model/config.json".to_string(), config.to_string()),
    ]);
    let (c, found) = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    let errors = found.iter().filter(|d| d.is_error());
    (c, errors.map(|d| format!("{}: {}", d.code, d.message)).collect())
}

/// A recipe for `model` on one node of H100.
fn recipe(axes: &str, plan: &str, tokens: usize) -> String {
    format!(
        r#"use std.{{clusters, data, models, plans, optim}}

recipe r {{
  run 10 steps
  gpus   = clusters.h100(nodes: 1)
  mesh m = gpus axes ({axes})
  policy = models.load("model", context: 8192 tokens)
  place policy on m by {plan}
  opt = optim.adamw(lr: 1e-5)
  sampler = generator(policy)
  rows = data.made(100 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    s = sampler.generate(rows.take(8 prompts), 8 samples/prompt, max_new: 64 tokens)
    b = rows.take(8 samples)
    update policy by opt in 1 update, {tokens} tokens/microbatch, minimising {{
      mean(-logprob(policy, b), over: tokens)
    }}
  }}
}}
"#
    )
}

fn config(layers: usize, hidden: usize, heads: usize, ffn: usize) -> String {
    format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {hidden},
        "intermediate_size": {ffn}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": false,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu"}}"#
    )
}

fn term(m: &Memory, name: &str) -> f64 {
    m.terms.iter().find(|t| t.name == name).map_or(0.0, |t| t.bytes)
}

/// Llama-3.1-8B has 8,030,261,248 weights; on f32 each takes 4 bytes, its gradient 4, Adam 8.
#[test]
fn states_follow_from_the_layout() {
    let weights = 8_030_261_248.0;
    let eight = config(32, 4096, 32, 14336);
    let (c, errors) = compiled(&eight, "fsdp: rest", "plans.fsdp()", 1024);
    assert!(errors.is_empty(), "{errors:?}");
    let all = memory(&c.expect("compiles"));
    let update = all.iter().find(|m| m.stage == "update policy").expect("an update");
    // ZeRO stage 3 over 8 ranks cuts everything.
    assert_eq!(term(update, "weights"), 4.0 * weights / 8.0);
    assert_eq!(term(update, "gradients"), 4.0 * weights / 8.0);
    assert_eq!(term(update, "optimizer"), 8.0 * weights / 8.0);
}

/// Twelve bytes of state beside four of weights do not fit whole on each rank.
#[test]
fn what_does_not_fit_is_an_error_before_any_run() {
    let eight = config(32, 4096, 32, 14336);
    let (_, errors) = compiled(&eight, "dp: rest", "plans.ddp()", 1024);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("does-not-fit: `update policy` needs 1"), "{errors:?}");
    assert!(errors[0].ends_with("GiB on a rank, H100 has 79.6"), "{errors:?}");
}

/// Keys and values of a token of a 70 B model: 2 * 80 layers * 8 heads * 128 * 2 bytes = 327,680 in
/// bf16, twice that in f32, a fourth of it on each of four ranks.
#[test]
fn keys_and_values_of_a_token() {
    let seventy = config(10, 8192, 64, 28672);
    let plan = "plans.fsdp() * plans.tensor_parallel()";
    // Ten layers of it fit on one node.
    let (c, errors) = compiled(&seventy, "fsdp: rest, tp: 4", plan, 64);
    assert!(errors.is_empty(), "{errors:?}");
    let plans = c.expect("compiles").plans;
    let generate = plans.iter().find(|p| p.name == "generate").expect("a generator");
    assert_eq!(nrl_sim::per_token(generate, 2.0, 1), 327_680.0 / 8.0 / 4.0);
}

/// A frozen copy of a model in bf16 takes two bytes a weight, as the model does.
#[test]
fn a_frozen_copy_is_stored_like_its_model() {
    let text = r#"use std.{clusters, data, models, plans, optim}

recipe r {
  run 10 steps
  gpus   = clusters.h100(nodes: 1)
  mesh m = gpus axes (fsdp: rest)
  policy = models.load("model", dtype: bf16, context: 1024 tokens)
  ref    = frozen(policy)
  place policy, ref on m by plans.fsdp()
  opt  = optim.adamw(lr: 1e-5)
  rows = data.made(100 rows, i -> {prompt: "1+1=", answer: "2"})
  step {
    b    = rows.take(8 samples)
    base = logprob(ref, b)
    update policy by opt in 1 update, 1024 tokens/microbatch, minimising {
      mean(-(logprob(policy, b) - base), over: tokens)
    }
  }
}
"#;
    let files = BTreeMap::from([
        ("r.nrl".to_string(), text.to_string()),
        ("model/config.json".to_string(), config(32, 4096, 32, 14336)),
    ]);
    let (c, found) = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    assert!(!found.iter().any(|d| d.is_error()), "{found:#?}");
    let all = memory(&c.expect("compiles"));
    let score = all.iter().find(|m| m.stage == "score by ref").expect("a score");
    assert_eq!(term(score, "weights"), 2.0 * 8_030_261_248.0 / 8.0);
}

/// What the help names fits, and nothing smaller does.
#[test]
fn the_help_names_the_smallest_size_that_fits() {
    let plan = "plans.ddp() * plans.tensor_parallel()";
    let sixteen = config(32, 5120, 40, 22528);
    let text = recipe("dp: rest, tp: 1", plan, 1024);
    let files =
        BTreeMap::from([("r.nrl".to_string(), text), ("model/config.json".to_string(), sixteen)]);
    let with = |sets: &[String]| {
        let options = Options { sets: sets.to_vec(), ..Options::default() };
        let found = check(&files, &mut SourceMap::new(), "r.nrl", &options).1;
        found.into_iter().find(|d| d.code == "does-not-fit")
    };
    let help = with(&[]).and_then(|d| d.help).expect("a help");
    let size: usize = help
        .strip_prefix("`tp: ")
        .and_then(|rest| rest.split('`').next())
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{help}"));
    assert!(size > 2, "{help}");
    assert!(with(&[format!("m.tp={size}")]).is_none(), "{help}");
    assert!(with(&[format!("m.tp={}", size / 2)]).is_some(), "{help}");
}

/// A recipe whose periods are given, on one node of H100; the generator shares the devices of its trainer.
fn periodic(every: &str) -> String {
    let text = recipe("fsdp: rest", "plans.fsdp()", 1024);
    let text = text.replace("generator(policy)", "generator(policy, memory: 60 % of device)");
    let rows = "  rows = data.made";
    let held =
        "  held = data.made(40 rows, i -> {prompt: \"1+1=\", answer: \"2\"})\n  rows = data.made";
    let text = text.replacen(rows, held, 1).replace("use std.{", "use std.{rewards, ");
    let end = text.rfind('}').expect("a recipe ends");
    format!("{}{every}}}\n", &text[..end])
}

fn stages(text: &str, tied: bool) -> Vec<Memory> {
    let eight = config(32, 4096, 32, 14336);
    let files = BTreeMap::from([
        ("r.nrl".to_string(), text.to_string()),
        ("model/config.json".to_string(), eight),
    ]);
    let habits = Habits { tied_to_refit: tied, ..Habits::default() };
    let framework = Framework { memory: habits, ..Framework::default() };
    let assume = Assume { framework, ..Assume::default() };
    let options = Options { assume, ..Options::default() };
    let (c, found) = check(&files, &mut SourceMap::new(), "r.nrl", &options);
    memory(&c.unwrap_or_else(|| panic!("{found:#?}")))
}

const EVERY: &str = "  every 4 steps { test = evaluate(sampler, held, rewards.boxed_answer) }\n  \
                     every 2 steps { checkpoint keep 2 }\n";

/// NeMo RL issue 1137: with validation every 4 steps and checkpoints every 2, the steps after both (5 and 9)
/// sample beside the optimizer's state where offloading hangs on a refit; without, no step does.
#[test]
fn c41_a_step_after_validation_and_checkpoint() {
    let text = periodic(EVERY);
    let late = "sample by sampler after a checkpoint";
    let tied = stages(&text, true);
    let found =
        tied.iter().find(|m| m.stage == late).expect("a step that samples beside the state");
    assert_eq!(found.when, When { first: 5, period: 4 });
    // 8.03 G parameters of f32 over 8 ranks: two moments, and the gradients beside them.
    let eighth = 8_030_261_248.0 / 8.0;
    assert_eq!((term(found, "optimizer"), term(found, "gradients")), (8.0 * eighth, 4.0 * eighth));
    let plain = tied.iter().find(|m| m.stage == "sample by sampler").expect("samples");
    assert_eq!((plain.when, term(plain, "optimizer")), (When::EVERY, 0.0));
    assert!((found.sum() - plain.sum() - 12.0 * eighth).abs() < 1.0);
    let free = stages(&text, false);
    assert!(free.iter().all(|m| m.stage != late), "{free:#?}");
}

/// What else stands on the devices: 60 % of 79.6 GiB while sampling, weights twice and the largest tensor while
/// new ones go over, weights, gradients and state while they are saved.
#[test]
fn moments_of_a_run() {
    let all = stages(&periodic(EVERY), false);
    let of =
        |stage: &str| all.iter().find(|m| m.stage == stage).unwrap_or_else(|| panic!("{all:#?}"));
    let sample = of("sample by sampler");
    let context = term(sample, "context");
    assert!((sample.sum() - context - 0.6 * sample.device.memory).abs() < 1.0);
    let number = 8_030_261_248.0;
    let refit = of("refit sampler");
    assert_eq!(term(refit, "weights"), 4.0 * number / 8.0);
    assert_eq!(term(refit, "engine"), 4.0 * number);
    // The embedding: 128,256 tokens of 4,096 numbers.
    assert_eq!(term(refit, "staging"), 2.0 * 128_256.0 * 4096.0);
    let save = of("checkpoint policy");
    assert_eq!(save.when, When { first: 2, period: 2 });
    assert_eq!(save.sum() - term(save, "context"), 16.0 * number / 8.0);
    let test = of("evaluate test");
    assert_eq!((test.when, test.sum()), (When { first: 4, period: 4 }, sample.sum()));
}

/// A moment that does not fit is found by a check, with the steps at which it happens.
#[test]
fn a_refit_that_does_not_fit() {
    // Weights in f32 whole on each rank of eight, and once more for the engine.
    let wide = config(96, 4096, 32, 14336);
    let text = periodic(EVERY).replace("memory: 60", "memory: 96");
    let files =
        BTreeMap::from([("r.nrl".to_string(), text), ("model/config.json".to_string(), wide)]);
    let (_, found) = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    let said: Vec<&str> = found.iter().map(|d| d.message.as_str()).collect();
    assert!(said.iter().any(|m| m.starts_with("`refit sampler` needs ")), "{said:#?}");
}
