//! Mistakes that people make in recipes, each with one message that says what to type.

use super::support::findings;

const RECIPE: &str = r#"use std.{data, grpo, models, optim, rewards}

recipe r(group = 4 samples/prompt, lr = 1e-3) {
  run 10 steps, seed 1
  policy  = models.llama(
    {hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2},
    tokens: characters("0123456789+=$_", end: "$", pad: "_"), context: 16 tokens)
  opt     = optim.adamw(lr: lr)
  sampler = generator(policy, temperature: 1.0)
  rows    = data.made(100 rows, i -> {prompt: "1+1=", answer: "2"})
  step {
    s   = sampler.generate(rows.take(8 prompts), group, max_new: 4 tokens)
    r   = rewards.exact(s)
    adv = grpo.advantages(r)
    update policy by opt in 1 update, minimising {
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.28), over: tokens)
    }
  }
  every 5 steps {
    test = evaluate(sampler, rows, rewards.exact, limit: 8)
    checkpoint keep 2 by test.accuracy, and the latest
  }
}
"#;

/// One change, one headline, and what it says.
fn told(from: &str, to: &str, parts: &[&str]) {
    assert!(RECIPE.contains(from), "`{from}` is not in the recipe");
    let text = RECIPE.replacen(from, to, 1);
    let found = findings(&[("r.nrl", &text)], &[]);
    let headlines = found.lines().filter(|l| !l.starts_with("  ")).count();
    assert_eq!(headlines, 1, "`{to}` is one mistake:\n{found}");
    for part in parts {
        assert!(found.contains(part), "`{to}`: no `{part}` in\n{found}");
    }
    assert!(!found.contains("std/"), "`{to}` is the user's own mistake:\n{found}");
}

#[test]
fn the_recipe_is_right() {
    assert_eq!(findings(&[("r.nrl", RECIPE)], &[]), "");
}

#[test]
fn units_that_people_spell_out() {
    told("run 10 steps", "run 10 seconds", &["unknown-unit", "did you mean `s`?"]);
    told("16 tokens)", "16 gigabytes)", &["unknown-unit", "did you mean `GB`?"]);
    told(
        "16 tokens)",
        "16 GB)",
        &["unit-mismatch: `context` is counted in tokens", "write a number of tokens"],
    );
}

#[test]
fn plans_keep_on_hosts_what_can_be_there() {
    let plan = |what: &str| format!("{RECIPE}\nplan mine() {{\n  offload: {what}\n}}\n");
    let place = "  mesh here = clusters.cpu(ranks: 1) axes (dp: rest)\n  place policy on here by mine()\n  opt     = optim.adamw(lr: lr)";
    for (what, wrong) in
        [("optimizer", false), ("activations", false), ("none", false), ("gradients", true)]
    {
        let text = plan(what)
            .replace("use std.{data", "use std.{clusters, data")
            .replace("  opt     = optim.adamw(lr: lr)", place);
        let found = findings(&[("r.nrl", &text)], &[]);
        assert_eq!(!found.is_empty(), wrong, "{what}: {found}");
        assert!(!wrong || found.contains("gradients"), "{found}");
    }
}

#[test]
fn a_device_has_rates_that_a_plan_can_divide_by() {
    let device = |rate: &str, nodes: usize| {
        let all = [
            "memory: 80 GiB",
            "compute: 989 TFLOP/s",
            "bandwidth: 3 TB/s",
            "link: 450 GB/s",
            "network: 50 GB/s",
        ];
        let name = rate.split(':').next().unwrap_or("");
        let one = |x: &&str| if x.starts_with(name) { rate.to_string() } else { x.to_string() };
        let rates: Vec<String> = all.iter().map(one).collect();
        let line = format!(
            "  mine = gpu_cluster({{name: \"mine\", host: 2 TB, {}}}, {nodes}, 8)\n  opt     =",
            rates.join(", ")
        );
        findings(&[("r.nrl", &RECIPE.replacen("  opt     =", &line, 1))], &[])
    };
    for rate in [
        "memory: 0 GiB",
        "compute: 0 TFLOP/s",
        "bandwidth: 0 TB/s",
        "link: 0 GB/s",
        "network: 0 GB/s",
    ] {
        let name = rate.split(':').next().unwrap_or("");
        let found = device(rate, 2);
        assert!(
            found.starts_with(&format!("out-of-range: `{name}` of `mine` is not above 0")),
            "{rate}: {found}"
        );
        assert!(found.contains(&format!("such as `{name}: ")), "{rate}: {found}");
    }
    // A single node needs no network.
    assert!(!device("network: 0 GB/s", 1).contains("out-of-range"));
}

#[test]
fn a_slip_in_what_is_called_is_not_taken_for_a_type() {
    let place = |plan: &str| {
        let lines = format!(
            "  mesh here = clusters.cpu(ranks: 1) axes (dp: rest)\n  place policy on here by {plan}\n  opt     ="
        );
        let text = RECIPE.replacen("  opt     =", &lines, 1);
        let text = text.replacen("use std.{data", "use std.{clusters, plans, data", 1);
        findings(&[("r.nrl", &text)], &[])
    };
    for (plan, right) in [("plans.offload()", "offloaded"), ("plans.recompute()", "recomputed")] {
        let found = place(plan);
        assert!(found.contains(&format!("did you mean `{right}`?")), "{plan}: {found}");
    }
}

#[test]
fn names_that_are_elsewhere() {
    told("optim.adamw(lr", "adamw(lr", &["there is no `adamw` here", "write `optim.adamw`"]);
    told(
        "grpo, models, optim, rewards}",
        "grpo, models, optim}",
        &["there is no `rewards` here", "write `use std.{rewards}` at the top"],
    );
    told(
        "  opt     =",
        "  m = clusters.cpu(ranks: 1)\n  opt     =",
        &["write `use std.{clusters}` at the top"],
    );
    told("by test.accuracy", "by test.acuracy", &["did you mean `test.accuracy`?"]);
    told("by test.accuracy", "by accuracy", &["unknown-metric", "write `test.accuracy`"]);
    told(
        "over: tokens)",
        "over: token)",
        &["cannot reduce over `token`", "[tok]", "did you mean `tokens`?"],
    );
}

#[test]
fn values_of_another_kind() {
    told("rewards.exact(s)", "rewards.exact", &["expected a tensor, got a function", "call it"]);
    told(
        "grpo.advantages(r)",
        "grpo.advantages(s)",
        &["got a batch of samples", "samples have `logprob`"],
    );
    told(
        "logprob(policy, s)",
        "logprob(s, policy)",
        &["expected a model", "the model comes first"],
    );
    told("update policy by opt", "update opt by policy", &["write `update policy by opt ..`"]);
    told(
        "lr = 1e-3",
        "lr = 1e-3 tokens",
        &["`lr` takes a schedule or a number", "quantity in tokens"],
    );
    told(
        "{prompt: \"1+1=\"",
        "{promt: \"1+1=\"",
        &["missing-field", "write `prompt` in place of `promt`"],
    );
    told("  opt     =", "  x: int = 2.5\n  opt     =", &["`x` must be a whole number, not 2.5"]);
    told("tokens: characters(", "tokens: chars(", &["`chars` takes 1 argument, got 3"]);
}

#[test]
fn signs_that_are_missing_or_another() {
    told(
        "(policy, temperature: 1.0)",
        "(policy temperature: 1.0)",
        &["write a comma: `policy, temperature: ..`"],
    );
    told("over: tokens)", "over tokens)", &["write `over: tokens`"]);
    told("num_attention_heads: 2}", "num_attention_heads 2}", &["write `num_attention_heads: 2`"]);
    told("lr = 1e-3", "lr: 1e-3", &["a value stands behind `=`: `lr = ..`"]);
    told(
        "adv = grpo",
        "adv == grpo",
        &["there is no `adv` here", "write `adv = ..`; `==` compares"],
    );
    told("  every 5 steps {", "  each 5 steps {", &["begins with `every`", "write `every 5 steps"]);
}

#[test]
fn names_given_twice() {
    told("recipe r(", "enum E { a, b, a }\n\nrecipe r(", &["duplicate-name: `E` has `a` twice"]);
    told(
        "recipe r(",
        "record R { a: int, a: float }\n\nrecipe r(",
        &["duplicate-name: `R` has `a` twice"],
    );
}

/// A model of one's own whose layers differ in what they see.
const LAYERED: &str = r#"use std.models.rope.{frequencies}
use std.{data}

record TinyConfig {
  hidden_size: int
  vocab_size: int
  max_position_embeddings: int = 64
}

model tiny(cfg: TinyConfig) {
  dim d = cfg.hidden_size, kv = 2, rep = 1, q = kv * rep, hd = cfg.hidden_size // 2, vocab = cfg.vocab_size
  param embed: [vocab, d] from "embed.weight"
  layers: repeat 4 {
    param wq: [q, hd, d]      from "layers.{i}.q.weight"
    param wk, wv: [kv, hd, d] from "layers.{i}.{k,v}.weight"
    param wo: [d, q, hd]      from "layers.{i}.o.weight"
    param sink: [q]           from "layers.{i}.sinks"
  }
  let turn = [frequencies(100.0, 4), frequencies(10000.0, 2)]
  fn forward(ids: id(vocab)[tok]) -> f32[tok, vocab] {
    let x = for l in layers carrying x = embed[ids] {
      let q = rope(x @ l.wq, turn)
      let k = rope(x @ l.wk, turn)
      x + attention(q, k, x @ l.wv, window: [4, none], sink: l.sink) @ l.wo
    }
    x @ embed
  }
}

recipe r {
  run 10 steps
  policy  = tiny({hidden_size: 8}, tokens: characters("01+=$_", end: "$", pad: "_"), context: 16 tokens)
  sampler = generator(policy)
  rows    = data.made(100 rows, i -> {prompt: "1+1=", answer: "10"})
  step {
    s = sampler.generate(rows.take(8 prompts), 4 samples/prompt)
  }
}
"#;

#[test]
fn layers_that_differ_are_said_in_turn() {
    let found = |from: &str, to: &str| {
        assert!(LAYERED.contains(from), "`{from}`");
        findings(&[("r.nrl", &LAYERED.replacen(from, to, 1))], &[])
    };
    assert_eq!(found("4, none", "4, none"), "");
    assert_eq!(found("[4, none]", "4"), "");
    for window in ["[4, 0]", "[4.5]", "\"four\"", "[]"] {
        let why = found("[4, none]", window);
        assert!(why.starts_with("wrong-type: `window` is a number of tokens"), "{window}: {why}");
    }
    let why = found("frequencies(100.0, 4)", "frequencies(100.0, 6)");
    assert!(why.starts_with("dim-mismatch: 3 frequencies do not turn `hd` of 4"), "{why}");
    let why = found("sink: l.sink", "sink: l.wq");
    assert!(why.contains("attention takes a sink per query head"), "{why}");
    let why = found("x @ embed\n", "rope(x, turn) @ embed\n");
    assert!(
        why.starts_with("misplaced: 2 items for layers in turn, outside of a `for` over layers"),
        "{why}"
    );
}
