//! Rules of recipes on `.nrl` files: what they find, and that they find nothing in the examples.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::Path;

use nrl_base::{Diagnostic, Severity, SourceMap};
use nrl_driver::{Options, check};

const RECIPE: &str = r#"use std.{clusters, data, grpo, models, optim, plans, rewards}

recipe r(prompts = 16 prompts, copies = 8 samples/prompt) {
  run 10 steps
  gpus   = clusters.h100(nodes: 2)
  mesh m = gpus axes (dp: rest, tp: 2)
  policy = models.load("meta-llama/Llama-3.1-8B-Instruct", dtype: bf16, context: 4096 tokens)
  place policy on m by plans.megatron(sp: true)
  opt     = optim.adamw(lr: 1e-6)
  sampler = generator(policy)
  rows    = data.jsonl("rows.jsonl", prompt: "q", answer: "a") | at_most(1024 tokens, else: drop)
  step {
    s   = sampler.generate(rows.take(prompts), copies, max_new: 1024 tokens)
    adv = grpo.advantages(rewards.exact(s), baseline: leave_one_out, scale: std)
    update policy by opt in 1 update, 8192 tokens/microbatch, minimising {
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.28), over: tokens)
    }
  }
}
"#;

fn all_findings(changes: &[(&str, &str)]) -> (Vec<Diagnostic>, SourceMap) {
    let mut text = RECIPE.to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "`{from}` is not in the recipe");
        text = text.replace(from, to);
    }
    let files = BTreeMap::from([("r.nrl".to_string(), text)]);
    let mut sources = SourceMap::new();
    let found = check(&files, &mut sources, "r.nrl", &Options::default()).1;
    (found, sources)
}

/// Errors and warnings.
fn findings(changes: &[(&str, &str)]) -> (Vec<Diagnostic>, SourceMap) {
    let (mut found, sources) = all_findings(changes);
    found.retain(|d| d.severity != Severity::Note);
    (found, sources)
}

fn codes(changes: &[(&str, &str)]) -> Vec<&'static str> {
    findings(changes).0.iter().map(|d| d.code).collect()
}

#[test]
fn a_good_recipe_has_no_findings() {
    assert_eq!(codes(&[]), [""; 0], "{:#?}", findings(&[]).0);
}

#[test]
fn a_pool_may_be_a_part_of_a_node() {
    let pools =
        "gpus   = clusters.h100(nodes: 1)\n  pool learn, speak = gpus split (rest, 4 ranks)";
    let apart = [
        ("gpus   = clusters.h100(nodes: 2)", pools),
        ("mesh m = gpus axes", "mesh m = learn axes"),
        (
            "sampler = generator(policy)",
            "mesh g = speak axes (rep: rest)\n  sampler = generator(policy, on: g)",
        ),
    ];
    assert_eq!(codes(&apart), [""; 0], "{:#?}", findings(&apart).0);
}

#[test]
fn one_sample_of_each_prompt_cannot_teach() {
    let (found, sources) = findings(&[("copies = 8 samples", "copies = 1 samples")]);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].code, "no-learning-signal");
    assert_eq!(
        found[0].message,
        "every advantage is 0: with 1 sample/prompt the baseline is the sample's own reward"
    );
    let at = sources.text(found[0].labels[0].span);
    assert!(at.starts_with("sampler.generate("), "{at}");
}

#[test]
fn a_tensor_parallel_group_over_two_nodes_is_told() {
    let model = ("meta-llama/Llama-3.1-8B-Instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct");
    let (found, _) = all_findings(&[("tp: 2", "tp: 16"), model]);
    let told: Vec<_> = found.iter().filter(|d| d.code == "group-crosses-nodes").collect();
    assert_eq!(told.len(), 1, "{found:#?}");
    let (found, _) = all_findings(&[("tp: 2", "tp: 8"), model]);
    assert!(!found.iter().any(|d| d.code == "group-crosses-nodes"), "{found:#?}");
}

#[test]
fn a_sequence_over_the_budget_of_a_micro_batch_is_told() {
    let (found, _) = findings(&[("8192 tokens/microbatch", "1536 tokens/microbatch")]);
    assert_eq!(found.iter().map(|d| d.code).collect::<Vec<_>>(), ["sequence-over-budget"]);
    let text = format!("{:?}", found[0]);
    assert!(text.contains("2048") && text.contains("1536"), "{text}");
}

#[test]
fn the_examples_have_no_findings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut tried, mut bad) = (0, vec![]);
    for folder in ["examples", "examples/recipes"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder of examples") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|e| e != "nrl") || path.ends_with("smollm2_grpo.nrl") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("an example");
            // Files beside an example are named and not read by a check.
            let mut files = BTreeMap::from([("r.nrl".to_string(), text)]);
            files.insert("tools.txt".to_string(), "Use the tools.".to_string());
            let mut found = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default()).1;
            found.retain(|d| d.severity != Severity::Note);
            bad.extend(found.iter().map(|d| {
                let notes = d.notes.join("; ");
                format!("{}: {}: {} ({notes})", path.display(), d.code, d.message)
            }));
            tried += 1;
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(tried >= 8, "{tried} examples");
}

/// A line of a parent in another file is shown there.
#[test]
fn findings_about_an_inherited_step_are_in_its_file() {
    let child =
        "use \"base.nrl\".{r}\n\nrecipe child extends r {\n  set copies = 1 samples/prompt\n}\n";
    let files = BTreeMap::from([
        ("base.nrl".to_string(), RECIPE.to_string()),
        ("child.nrl".to_string(), child.to_string()),
    ]);
    let mut sources = SourceMap::new();
    let found = check(&files, &mut sources, "child.nrl", &Options::default()).1;
    let zero = found.iter().find(|d| d.code == "no-learning-signal");
    let zero = zero.unwrap_or_else(|| panic!("{found:#?}"));
    let place = sources.place(zero.labels[0].span);
    assert!(place.starts_with("base.nrl:"), "{place}");
    assert!(sources.text(zero.labels[0].span).starts_with("sampler.generate"), "{place}");
}
