//! Conditions of a recipe, and what checking may cost.

use super::support::{findings, of_lines};

#[test]
fn conditions_show_both_sides_and_expectations_only_warn() {
    assert_eq!(of_lines("", "  n = 6\n  require n % 3 == 0, n > 5\n  expect n == 6"), "");
    let found = of_lines("", "  n = 6\n  require n % 4 == 0");
    let want = "requirement-fails: `n % 4 == 0` does not hold\n  a.nrl:8:11 `n % 4 == 0`: required here\n  \
                note: left is 2, right is 0\n";
    assert_eq!(found, want);
    let found = of_lines("", "  n = 6\n  expect n == 7");
    assert!(
        found.starts_with("requirement-fails: `n == 7` is expected and does not hold"),
        "{found}"
    );
    let found = of_lines("", "  require 3");
    assert!(found.starts_with("wrong-type: a requirement is a bool, not a number"), "{found}");
}

#[test]
fn budgets_say_what_they_compare() {
    assert_eq!(
        of_lines(
            "",
            "  require peak_memory <= 92 % of device, step_time < 90 s, 2 GB > peak_memory"
        ),
        ""
    );
    let one = |line: &str, part: &str| {
        let found = of_lines("", &format!("  require {line}"));
        assert!(found.contains(part), "{found}");
    };
    one(
        "peak_memory <= 90 s",
        "unit-mismatch: `peak_memory` is in bytes, this is a quantity in seconds",
    );
    one("step_time < 3", "unit-mismatch: `step_time` is in seconds, this is a number");
    one("step_time < 90 % of device", "wrong-type: a share is one of the memory of a device");
    one("peak_memory <= 120 % of device", "out-of-range: a device has no 120 % of its memory");
    one("peak_memory + 1 GB < 3 GB", "wrong-type: a budget compares one measure with one number");
    one("peak_memory == 3 GB", "wrong-type: a budget compares one measure with one number");
}

#[test]
fn work_before_the_run_has_a_bound() {
    let found =
        of_lines("", "  a = sum(map(range(1000000), i -> sum(map(range(1000000), j -> i * j))))");
    assert!(found.starts_with("too-much-work: checking takes more than"), "{found}");
    let found = of_lines("", "  a = fold(range(100), \"a\", (t, i) -> t + t)");
    assert!(found.starts_with("too-much-work: checking takes more than"), "{found}");
    let found = of_lines("", "  a = sum(filter(range(100000), i -> i % 2 == 0))");
    assert_eq!(found, "");
    let found = of_lines("", "  a = map(range(10), i -> first(split(\"a\", \"\")))");
    assert!(found.starts_with("wrong-type: `split` needs a separator"), "{found}");
}

/// Qwen2.5-Math is made for 4,096 positions; recipes that train it on more say so.
#[test]
fn keys_of_a_published_model_can_be_set_anew() {
    let load = |more: &str| {
        let line =
            format!("  m = models.load(\"Qwen/Qwen2.5-Math-7B\", context: 16384 tokens{more})");
        of_lines("use std.{models}\n", &line)
    };
    let found = load("");
    // Trainers go on with positions that a model has never seen, engines do not.
    assert!(found.contains("context-over-model: a context of 16384 tokens"), "{found}");
    let sampled = of_lines(
        "use std.{models}\n",
        "  m = models.load(\"Qwen/Qwen2.5-Math-7B\", context: 16384 tokens)\n  g = generator(m)",
    );
    assert!(sampled.contains("out-of-range: a context of 16384 tokens"), "{sampled}");
    let enough = load(", config: {max_position_embeddings: 16384}");
    assert!(
        enough.starts_with("not-supported: this recipe checks, and cannot run yet"),
        "{enough}"
    );
    let few = load(", config: {max_position_embeddings: 8192}");
    assert!(few.contains("positions for 8192"), "{few}");
}

/// Report c95: 8 groups of 8 prompts a round, of which 5 % are kept, are 8 / 0.4 = 20 rounds.
#[test]
fn rounds_too_few_for_what_is_kept_are_told() {
    let told = |kept: &str, rounds: usize| {
        let text = format!(
            "use std.{{data, models, rewards}}\n\nrecipe r {{\n  run 10 steps\n  policy = models.llama(\n    \
             {{hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2}},\n    \
             tokens: characters(\"0123456789+=$_\", end: \"$\", pad: \"_\"), context: 16 tokens)\n  \
             sampler = generator(policy)\n  rows = data.made(100 rows, i -> {{prompt: \"1\", answer: \"2\"}})\n  {kept}\n  \
             step {{\n    s = collect 8 groups where std(r) > 0 within {rounds} rounds {{\n      \
             t = sampler.generate(rows.take(8 prompts), 4 samples/prompt)\n      r = rewards.exact(t)\n      t\n    }}\n  }}\n}}\n"
        );
        findings(&[("a.nrl", &text)], &[])
    };
    let found = told("assume kept = 5 %", 10);
    assert!(
        found.starts_with(
            "buffer-cannot-fill: about 20 rounds give 8 groups where 5 % are kept, 10 are allowed"
        ),
        "{found}"
    );
    assert!(
        found.contains("help: write `within 20 rounds`, or take 16 prompts in each"),
        "{found}"
    );
    assert_eq!(told("assume kept = 5 %", 20), "");
    assert_eq!(told("", 1), "");
    assert!(told("", 0).starts_with("out-of-range: nothing would be collected"));
    let found = told("assume kept = 1.5", 10);
    assert!(
        found.starts_with("out-of-range: the share of groups that a `collect` keeps"),
        "{found}"
    );
    let found = told("assume kep = 5 %", 10);
    assert!(found.contains("did you mean `kept`?"), "{found}");
}
