//! Algorithms besides GRPO, run on CPU ranks: preference pairs, a critic, frozen weights, blocks that
//! begin later. What must hold comes from outside: a first loss of ln 2, weights that do not move,
//! the same numbers on any layout.

use std::collections::BTreeMap;

use nrl_runtime::hf::weights::Checkpoint;
use serde_json::Value;

use crate::support::Bench;

const MODEL: &str = "{hidden_size: 16, intermediate_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2},
    tokens: characters(\"0123456789+=$_\", end: \"$\", pad: \"_\"), context: 16 tokens";

fn metrics(b: &Bench) -> Vec<Value> {
    let text = std::fs::read_to_string(b.path("out/metrics.jsonl")).expect("metrics");
    text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

fn weights(b: &Bench, model: &str) -> BTreeMap<String, Vec<f32>> {
    let checkpoint =
        Checkpoint::open(&b.path(&format!("out/{model}"))).expect("the exported model");
    let read = |name: &str| checkpoint.read_f32(name).expect("a tensor");
    checkpoint.names().into_iter().map(|s| (s.name.clone(), read(&s.name))).collect()
}

fn run(text: &str) -> Bench {
    let b = Bench::new();
    b.write("r.nrl", text);
    b.run(&["run", "r.nrl", "--out", "out", "--quiet"]).succeeds();
    b
}

fn dpo(layout: &str) -> String {
    format!(
        r#"use std.{{clusters, data, dpo, models, optim, plans}}
recipe r {{
  run 2 epochs, seed 3
  cpus   = clusters.cpu(ranks: 1)
  mesh m = cpus axes (dp: rest, tp: 1)
  policy = models.llama({MODEL})
  ref    = frozen(policy)
  place policy, ref on m by plans.ddp() * plans.tensor_parallel()
  opt    = optim.adamw(lr: 1e-2)
  # The worse answer is longer, so that the two sides have different numbers of tokens.
  votes  = data.made(32 rows, i -> {{prompt: show(i % 7) + "+1=", answer: show(i % 7 + 1), worse: "00" + show(i % 5)}}, rejected: "worse")
  step {{
    b    = votes.take(16 pairs)
    base = dpo.margin(ref, b)
    update policy by opt in 2 updates, 128 tokens/microbatch, minimising {{
      mean(dpo.preference(dpo.margin(policy, b), base, beta: 0.5), over: pairs)
    }}
    now = dpo.accuracy(dpo.margin(policy, b), base)
  }}
}}
"#
    )
    .replace("ranks: 1", layout.split('|').next().unwrap_or("ranks: 1"))
    .replace("(dp: rest, tp: 1)", layout.split('|').nth(1).unwrap_or("(dp: rest, tp: 1)"))
}

/// With scores that are near 0 at first, -ln sigmoid(difference) is near ln 2; what tells the answers apart brings it down.
#[test]
fn reward_models_start_near_ln_2_and_learn() {
    let text = dpo("ranks: 1")
        .replace(&format!("models.llama({MODEL})"), &format!("models.llama({MODEL}, head: scalar)"))
        .replace("  ref    = frozen(policy)\n", "")
        .replace("policy, ref on m", "policy on m")
        .replace("    base = dpo.margin(ref, b)\n", "")
        .replace("    now = dpo.accuracy(dpo.margin(policy, b), base)\n", "")
        .replace(
            "dpo.preference(dpo.margin(policy, b), base, beta: 0.5)",
            "-log_sigmoid(score(policy, b.chosen) - score(policy, b.rejected))",
        )
        .replace("run 2 epochs", "run 10 epochs")
        .replace(", dpo, ", ", ");
    let score = "\nfn score(m: Model, b: Samples) -> f32[pair] {\n  let all  = value(m, b)\n  let last = \
                 next(ones(all), else: 0.0) == 0.0\n  sum(all * last, over: tokens)\n}\n";
    let losses: Vec<f64> = metrics(&run(&(text + score)))
        .iter()
        .map(|m| m["loss"].as_f64().expect("a loss"))
        .collect();
    // Ten epochs of 32 rows by 16.
    assert_eq!(losses.len(), 20);
    assert!((losses[0] - 2.0_f64.ln()).abs() < 0.2, "{losses:?}");
    assert!(losses[19] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn preference_pairs_start_at_ln_2_and_learn_the_same_on_any_layout() {
    let single = run(&dpo("ranks: 1"));
    let losses: Vec<f64> =
        metrics(&single).iter().map(|m| m["loss"].as_f64().expect("a loss")).collect();
    // Two epochs of 32 rows by 16.
    assert_eq!(losses.len(), 4);
    assert!(
        losses[0] < 2.0_f64.ln() + 1e-6,
        "no pair is worse than undecided at first: {losses:?}"
    );
    assert!(losses[0] > 0.5 && losses[3] < losses[0], "{losses:?}");
    let one = weights(&single, "model");
    for layout in ["ranks: 2|(dp: 2, tp: 1)", "ranks: 2|(dp: 1, tp: 2)"] {
        let other = run(&dpo(layout));
        for (name, w) in weights(&other, "model") {
            let gap = w.iter().zip(&one[&name]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(gap <= 2e-5, "{layout}: `{name}` differs by {gap:e}");
        }
    }
}

#[test]
fn one_update_of_pairs_starts_at_ln_2_exactly() {
    let text = dpo("ranks: 1").replace("in 2 updates", "in 1 update");
    let first = metrics(&run(&text))[0]["loss"].as_f64().expect("a loss");
    assert!((first - 2.0_f64.ln()).abs() < 1e-6, "{first}");
}

#[test]
fn frozen_parameters_do_not_move_and_the_others_do() {
    let text = |steps: usize| {
        format!(
            r#"use std.{{data, models, optim, sft}}
recipe r {{
  run {steps} steps, seed 3
  policy = models.llama({MODEL})
  freeze policy.embed, policy.layers[*].wq
  opt  = optim.adamw(lr: 1e-2)
  rows = data.made(64 rows, i -> {{prompt: show(i % 7) + "+1=", answer: show(i % 7 + 1)}})
  step {{
    b = rows.take(16 samples)
    update policy by opt in 1 update, 2 epochs, minimising {{ sft.nll(policy, b) }}
  }}
}}
"#
        )
    };
    let (early, late) = (weights(&run(&text(1)), "model"), weights(&run(&text(4)), "model"));
    let mut moved = 0;
    for (name, w) in &late {
        let still = name.contains("embed_tokens") || name.contains("q_proj");
        let same = *w == early[name];
        assert_eq!(still, same, "`{name}`");
        moved += usize::from(!same);
    }
    assert!(moved > 10, "{moved} tensors moved");
}

#[test]
fn a_critic_learns_alone_before_the_policy_does() {
    let text = format!(
        r#"use std.{{data, models, optim, ppo, rewards}}
recipe r {{
  run 4 steps, seed 3
  policy  = models.llama({MODEL})
  critic  = models.llama({MODEL}, head: scalar)
  opt_p   = optim.adamw(lr: 1e-3)
  opt_c   = optim.adamw(lr: 1e-2)
  sampler = generator(policy)
  rows    = data.made(64 rows, i -> {{prompt: show(i % 7) + "+1=", answer: show(i % 7 + 1)}})
  step {{
    s     = sampler.generate(rows.take(8 prompts), 4 samples/prompt, max_new: 4 tokens)
    r     = 1.0 - 0.2 * s.length + 0.0 * rewards.exact(s)
    old   = logprob(policy, s)
    guess = value(critic, s)
    adv, target = ppo.gae(ppo.at_last_token(r, guess), guess)
    even = ppo.whiten(adv)
    error = sum((target - guess) * (target - guess), over: all) / sum(ones(guess), over: all)
    update critic by opt_c in 1 update, 4 epochs, minimising {{
      mean(ppo.value_loss(value(critic, s), target, guess), over: tokens)
    }}
    from step 3 {{
      update policy by opt_p in 2 updates, minimising {{
        mean(ppo.clip(ratio(logprob(policy, s), old), even, 0.2..0.28), over: tokens)
      }}
    }}
  }}
}}
"#
    );
    let b = run(&text);
    let m = metrics(&b);
    assert_eq!(m.len(), 4);
    for (i, line) in m.iter().enumerate() {
        let critic = line["critic/loss"].as_f64().expect("the critic learns in every step");
        assert!(critic.is_finite() && critic > 0.0, "{line}");
        assert_eq!(line["policy/loss"].is_number(), i >= 2, "step {}: {line}", i + 1);
    }
    let (first, last) = (m[0]["critic/loss"].as_f64(), m[3]["critic/loss"].as_f64());
    assert!(last < first, "the critic gets better: {first:?} to {last:?}");
    // Both are exported, the critic with its own head.
    assert!(weights(&b, "model-critic").contains_key("score.weight"));
    assert!(weights(&b, "model-policy").contains_key("lm_head.weight"));
}

#[test]
fn groups_are_collected_over_rounds() {
    let text = |cond: &str| {
        format!(
            r#"use std.{{data, grpo, models, optim, rewards}}
recipe r {{
  run 2 steps, seed 3
  policy  = models.llama({MODEL})
  opt     = optim.adamw(lr: 1e-3)
  sampler = generator(policy)
  rows    = data.made(64 rows, i -> {{prompt: show(i % 7) + "+1=", answer: show(i % 7 + 1)}})
  step {{
    s, adv = collect 6 groups where {cond} within 4 rounds {{
      tried = sampler.generate(rows.take(4 prompts), 4 samples/prompt, max_new: 4 tokens)
      r     = rewards.overlong(tried, limit: 4 tokens, buffer: 4 tokens)
      (tried, grpo.advantages(r))
    }}
    groups = sum(ones(spread(adv)), over: all)
    update policy by opt in 2 updates, minimising {{
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.28), over: tokens)
    }}
  }}
}}
"#
        )
    };
    let b = run(&text("std(r) >= 0"));
    for m in metrics(&b) {
        // Every group is kept: four in the first round, two of the second.
        assert_eq!(
            (m["collect/groups"].as_f64(), m["collect/rounds"].as_f64()),
            (Some(6.0), Some(2.0))
        );
        assert!(
            m["loss"].is_number() && m["logprob_gap/max"].as_f64().expect("a gap") < 1e-5,
            "{m}"
        );
    }
    let some = metrics(&run(&text("std(r) > 0")));
    assert!(some.iter().all(|m| m["collect/groups"].as_f64().expect("a number") <= 6.0));
    // Nothing meets it: all rounds are tried, and nothing is learned.
    let none = metrics(&run(&text("std(r) < 0")));
    for m in &none {
        assert_eq!(
            (m["collect/groups"].as_f64(), m["collect/rounds"].as_f64()),
            (Some(0.0), Some(4.0))
        );
    }
}

#[test]
fn a_recipe_that_only_checks_is_refused_by_run_with_one_error() {
    let recipes = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/recipes");
    for (name, code) in [("grpo_math", "not-supported"), ("tools", "not-supported")] {
        let b = Bench::new();
        let file = format!("{recipes}/{name}.nrl");
        let checked = b.run(&["check", &file]);
        checked.succeeds();
        assert!(checked.err.contains("cannot run yet"), "{}", checked.err);
        b.run(&["run", &file]).fails(code, &["H100"]);
    }
    // On CPU ranks what is left is that the weights are not here.
    let b = Bench::new();
    let text = std::fs::read_to_string(format!("{recipes}/sft_then_grpo.nrl")).expect("the recipe");
    let text = text
        .replace("clusters.h100(nodes: 1)", "clusters.cpu(ranks: 2)")
        .replace(", dtype: bf16", "");
    b.write("r.nrl", text);
    b.run(&["check", "r.nrl"]).succeeds();
    b.run(&["run", "r.nrl"]).fails("model-not-found", &["Qwen/Qwen2.5-1.5B"]);
}
