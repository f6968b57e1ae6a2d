//! What two recipes mean differently.

use std::collections::BTreeMap;

use nrl_ide::checking::{Options, check};
use nrl_ide::diff::{By, Difference, diff, human, json};

const RECIPE: &str = r#"use std.{data, grpo, models, optim, rewards}

recipe r(group = 4 samples/prompt, lr = 1e-3) {
  run 10 steps, seed 3
  policy = models.llama(
    {hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2},
    tokens: characters("0123456789+=$_", end: "$", pad: "_"), context: 16 tokens)
  sampler = generator(policy)
  rows    = data.made(100 rows, i -> {prompt: "1+1=", answer: "2"})
  opt     = optim.adamw(lr: lr)
  step {
    s   = sampler.generate(rows.take(8 prompts), group, max_new: 4 tokens)
    adv = grpo.advantages(rewards.exact(s))
    update policy by opt in 2 updates, minimising {
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.28), over: tokens)
    }
  }
}
"#;

fn between(left: (&str, &str), right: (&str, &str)) -> Difference {
    let files =
        BTreeMap::from([left, right].map(|(name, text)| (name.to_string(), text.to_string())));
    let (l, lm) = check(&files, left.0, &Options::default());
    let (r, rm) = check(&files, right.0, &Options::default());
    diff((&lm, &l.sources), (&rm, &r.sources))
        .unwrap_or_else(|| panic!("{:?} {:?}", l.findings, r.findings))
}

fn recipes(change: &[(&str, &str)]) -> Difference {
    let mut text = RECIPE.to_string();
    for (from, to) in change {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    between(("a.nrl", RECIPE), ("b.nrl", &text))
}

fn changed(d: &Difference) -> Vec<(&str, String, String)> {
    let side =
        |t: &Option<nrl_ide::diff::Told>| t.as_ref().map_or("absent".into(), |t| t.value.clone());
    d.changes
        .iter()
        .filter(|c| !c.derived)
        .map(|c| (c.name.as_str(), side(&c.left), side(&c.right)))
        .collect()
}

#[test]
fn text_that_means_the_same_is_the_same() {
    let d = recipes(&[
        ("recipe r(", "# a comment\n\n## Words.\nrecipe r("),
        ("lr = 1e-3", "lr = 0.001"),
    ]);
    assert_eq!((d.by, changed(&d)), (By::Program, vec![]));
    // Lines that do not depend on each other may change places, and a value may get a name.
    let d = recipes(&[
        ("  sampler = generator(policy)\n  rows    =", "  rows    ="),
        ("  opt     = optim", "  sampler = generator(policy)\n  opt     = optim"),
    ]);
    assert_eq!(changed(&d), vec![]);
}

#[test]
fn changes_of_meaning_are_named() {
    let d = recipes(&[
        ("seed 3", "seed 4"),
        ("group = 4", "group = 6"),
        ("in 2 updates", "in 3 updates"),
    ]);
    let expect = [
        ("seed", "3", "4"),
        ("main.step.s.samples per prompt", "4", "6"),
        ("main.step.update.updates", "2", "3"),
    ];
    let found = changed(&d);
    let found: Vec<(&str, &str, &str)> =
        found.iter().map(|(n, a, b)| (*n, a.as_str(), b.as_str())).collect();
    assert_eq!(found, expect);
    // What a loss computes is compared as a computation.
    let d = recipes(&[("0.2..0.28", "0.2..0.3")]);
    assert_eq!(changed(&d).iter().map(|c| c.0).collect::<Vec<_>>(), ["main.step.update.loss"]);
    let d = recipes(&[("optim.adamw(lr: lr)", "optim.adamw(lr: optim.warmup(lr, 5 updates))")]);
    assert_eq!(changed(&d).iter().map(|c| c.0).collect::<Vec<_>>(), ["opt.lr"]);
    assert!(
        changed(&d)[0].2.starts_with("0.0002 at 1, 0.0004 at 2, 0.001 at 5"),
        "{:?}",
        changed(&d)
    );
}

const BASE: &str = "cluster:\n  num_nodes: 1\n  gpus_per_node: 8\npolicy:\n  model_name: x\n  \
                    train_global_batch_size: 64\n  seq: 512\ngrpo:\n  num_prompts_per_step: 16\n  \
                    num_generations_per_prompt: 8\n";

#[test]
fn resolved_settings_are_compared_with_their_origins() {
    let files = BTreeMap::from([
        ("base.yaml".to_string(), BASE.to_string()),
        ("a.yaml".to_string(), "defaults: base.yaml\npolicy:\n  seq: 1024\n".to_string()),
        (
            "b.yaml".to_string(),
            "defaults: base.yaml\npolicy:\n  extra: ${policy.seq}\n".to_string(),
        ),
    ]);
    let of = |name: &str| check(&files, name, &Options::default());
    let ((l, lm), (r, rm)) = (of("a.yaml"), of("b.yaml"));
    let d = diff((&lm, &l.sources), (&rm, &r.sources)).expect("settings");
    assert_eq!(d.by, By::Settings);
    let expect = [("policy.seq", "1024", "512"), ("policy.extra", "absent", "512")];
    let found = changed(&d);
    let found: Vec<(&str, &str, &str)> =
        found.iter().map(|(n, a, b)| (*n, a.as_str(), b.as_str())).collect();
    assert_eq!(found, expect);
    let shown = human(&d);
    assert!(shown.contains("(a.yaml:3:3 -> base.yaml:7:3)"), "{shown}");
    let j: serde_json::Value = serde_json::from_str(&json(&d, "a.yaml", "b.yaml")).expect("JSON");
    assert_eq!((&j["by"], &j["same"]), (&"settings".into(), &false.into()));
    assert_eq!(j["changes"][1]["left"], serde_json::Value::Null);
    // Order is no difference.
    let turned = "policy:\n  b: 1\n  a: 2\n";
    let d = between(("c.yaml", turned), ("d.yaml", "policy:\n  a: 2\n  b: 1\n"));
    assert_eq!(d.changes, vec![]);
}

#[test]
fn numbers_that_follow_are_marked() {
    let two = BASE.replace("num_nodes: 1", "num_nodes: 2").replace("size: 64", "size: 32");
    let d = between(("a.yaml", BASE), ("b.yaml", &two));
    let derived: Vec<(&str, &str)> = d
        .changes
        .iter()
        .filter(|c| c.derived)
        .map(|c| (c.name.as_str(), c.right.as_ref().map_or("", |t| &t.value)))
        .collect();
    // 16 prompts * 8 samples in updates of 32.
    assert!(derived.contains(&("updates per step of policy", "4")), "{derived:?}");
    assert!(derived.contains(&("GPUs of policy", "16")), "{derived:?}");
}

#[test]
fn one_of_each_kind_is_compared_by_notions() {
    let d = between(("a.nrl", RECIPE), ("b.yaml", BASE));
    assert_eq!(d.by, By::Notions);
    let found = changed(&d);
    let found: Vec<(&str, &str, &str)> =
        found.iter().map(|(n, a, b)| (*n, a.as_str(), b.as_str())).collect();
    assert!(found.contains(&("prompts per step", "8", "16")), "{found:?}");
    assert!(found.contains(&("samples per prompt", "4", "8")), "{found:?}");
    // 16 * 8 / 64 updates on one side, 2 on the other.
    assert!(!found.iter().any(|f| f.0 == "updates per step"), "{found:?}");
    assert!(d.unsaid.contains(&"seed".to_string()), "{:?}", d.unsaid);
}
