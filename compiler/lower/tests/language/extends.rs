//! Files that use files, recipes that extend recipes, one mechanism with `--set`.

use super::support::{findings, lowered};

const BASE: &str = r#"use std.{data, models, optim, rewards, sft}

recipe base(group = 4 samples/prompt, lr = 1e-3) {
  run 10 steps, seed 1
  policy = models.llama(
    {hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2},
    tokens: characters("0123456789+=$_", end: "$", pad: "_"), context: 16 tokens)
  opt     = optim.adamw(lr: lr)
  sampler = generator(policy, temperature: 0.5, stop_ids: [3])
  rows    = data.made(100 rows, i -> made(i))
  step {
    s = sampler.generate(rows.take(8 prompts), group, max_new: 4 tokens)
    r = rewards.exact(s)
    update policy by opt in 2 updates, minimising {
      mean(-logprob(policy, s), over: tokens)
    }
  }
  every 5 steps {
    test = evaluate(sampler, rows, rewards.exact, limit: 8)
  }
}

fn made(i: int) -> Row = {prompt: "1+1=", answer: "2"}
"#;

fn child(body: &str) -> String {
    format!("use \"./base.nrl\"\n\nrecipe child extends base.base {{\n{body}\n}}\n")
}

fn of_child(body: &str) -> String {
    findings(&[("child.nrl", &child(body)), ("base.nrl", BASE)], &[])
}

#[test]
fn a_child_sets_appends_and_removes() {
    let text = child(
        "  set group = 2 samples/prompt\n  set run.steps = 3\n  set seed = 7\n  \
         set policy.hidden_size = 16\n  set sampler.temperature = 0.25\n  \
         append sampler.stop_ids = 5\n  set step.update.updates = 1\n  set every.steps = 2\n  \
         set step.s.max_new = 2 tokens",
    );
    let out = lowered(&[("child.nrl", &text), ("base.nrl", BASE)], &[], None);
    let p = &out.program;
    assert_eq!((p.name.as_str(), p.seed), ("child", 7));
    assert_eq!((p.phases[0].steps, p.phases[0].every[0].period), (3, 2));
    assert_eq!(p.generators[0].sampling.temperature, 0.25);
    assert_eq!(p.generators[0].sampling.stop_ids, [3, 5]);
    let hidden = p.models[0].params.iter().find(|p| p.name == "norm").expect("a norm");
    assert_eq!(p.models[0].dims.bound(hidden.dims[0]), 16);
    let removed = child("  remove every\n  remove sampler.stop_ids\n  remove step.update.updates");
    let out = lowered(&[("child.nrl", &removed), ("base.nrl", BASE)], &[], None);
    assert!(out.program.phases[0].every.is_empty());
    assert!(out.program.generators[0].sampling.stop_ids.is_empty());
}

#[test]
fn the_command_line_wins_over_the_child_and_the_child_over_the_base() {
    let text = child("  set run.steps = 3\n  set sampler.temperature = 0.25");
    let files = [("child.nrl", text.as_str()), ("base.nrl", BASE)];
    let out = lowered(&files, &["run.steps=9"], None);
    assert_eq!(out.program.phases[0].steps, 9);
    assert_eq!(out.program.generators[0].sampling.temperature, 0.25);
}

#[test]
fn names_mean_what_they_mean_in_their_own_file() {
    // `made` and `rewards` are the base's; `mine` and its `made` the child's.
    let text = child("  set rows = data.made(50 rows, i -> made(i))")
        .replace("use \"./base.nrl\"", "use \"./base.nrl\"\nuse std.{data}")
        + "\nfn made(i: int) -> Row = {prompt: \"2+2=\", answer: \"4\"}\n";
    let out = lowered(&[("child.nrl", &text), ("base.nrl", BASE)], &[], None);
    let made = format!("{:?}", out.program.data[0]);
    assert!(made.contains("2+2=") && !made.contains("1+1="), "{made}");
}

#[test]
fn new_lines_come_before_the_lines_that_use_them() {
    let text = child("  half = lr / 2\n  quarter = half / 2\n  set opt = optim.adamw(lr: quarter)")
        .replace("use \"./base.nrl\"", "use \"./base.nrl\"\nuse std.{optim}");
    lowered(&[("child.nrl", &text), ("base.nrl", BASE)], &[], None);
}

#[test]
fn chains_go_through_files_and_parameters_are_overridden() {
    let grand = "use \"mid/child.nrl\".{child}\n\nrecipe top(group = 8 samples/prompt) extends child {\n  \
                 set run.steps = 4\n}\n";
    let mid =
        "use \"../base.nrl\" as below\n\nrecipe child extends below.base {\n  set seed = 5\n}\n";
    let files = [("top.nrl", grand), ("mid/child.nrl", mid), ("base.nrl", BASE)];
    let out = lowered(&files, &[], None);
    assert_eq!((out.program.seed, out.program.phases[0].steps), (5, 4));
    let wrong = grand.replace("8 samples/prompt", "8 steps");
    let files = [("top.nrl", wrong.as_str()), ("mid/child.nrl", mid), ("base.nrl", BASE)];
    let found = findings(&files, &[]);
    assert!(
        found.starts_with("unit-mismatch: `group` is samples/prompt, this is steps\n"),
        "{found}"
    );
    assert!(found.contains("top.nrl:3:") && found.contains("base.nrl:3:"), "{found}");
}

#[test]
fn a_path_that_does_not_exist_names_the_nearest() {
    let found = of_child("  set step.s.max_nw = 2 tokens\n  set run.stpes = 4\n  remove opt.decay");
    assert_eq!(
        found,
        "unknown-path: recipe `child` has no `run.stpes` to set\n  child.nrl:5:7 `run.stpes`: not found\n  \
         help: did you mean `run.steps`?\n\
         unknown-path: recipe `child` has no `opt.decay` to remove\n  child.nrl:6:10 `opt.decay`: not found\n  \
         help: known are opt, opt.lr\n"
    );
}

#[test]
fn an_unknown_argument_shows_both_recipes() {
    let found = of_child("  set step.s.max_nw = 2 tokens");
    assert!(found.contains("has no parameter `max_nw`"), "{found}");
    assert!(found.contains("child.nrl:4:23"), "{found}");
}

#[test]
fn what_a_child_breaks_in_the_base_says_so() {
    let found = of_child("  remove opt");
    let want = "unknown-name: there is no `opt` here\n  base.nrl:14:22 `opt`: not found\n  \
                child.nrl:4:10 `opt`: `opt` is removed here\n  \
                note: recipe `child` (child.nrl:3:8) extends `base` (base.nrl:3:8)\n";
    assert_eq!(found, want);
}

#[test]
fn what_cannot_be_edited_is_refused() {
    let found = of_child("  append opt = 3");
    assert!(found.starts_with("misplaced: cannot append to `opt`: only a list"), "{found}");
    let found = of_child("  remove step");
    assert!(found.starts_with("misplaced: cannot remove `step`: a recipe needs it"), "{found}");
    let found = of_child("  remove lr");
    assert!(found.starts_with("misplaced: `lr` is a parameter; it can only be set"), "{found}");
    let found = of_child("  opt = 3");
    assert!(
        found.starts_with("duplicate-name: `opt` is bound by the recipe it extends"),
        "{found}"
    );
    assert!(found.contains("help: write `set opt = ..`"), "{found}");
    let found = of_child("  run 5 steps");
    assert!(found.starts_with("duplicate-name: the recipe it extends has a `run` line"), "{found}");
}

#[test]
fn only_recipes_are_extended_and_circles_are_refused() {
    let one = |text: &str| findings(&[("a.nrl", text), ("base.nrl", BASE)], &[]);
    let found = one("use \"base.nrl\"\nrecipe a extends base.bse {\n}\n");
    assert!(found.contains("there is no recipe `base.bse`"), "{found}");
    assert!(found.contains("did you mean `base`?"), "{found}");
    let found = one("use \"base.nrl\"\nrecipe a extends base.made {\n}\n");
    assert!(found.starts_with("wrong-type: `base.made` is no recipe"), "{found}");
    let found = one("recipe a extends b {\n}\nrecipe b extends c {\n}\nrecipe c extends a {\n}\n");
    let want = "recursion: recipe `c` extends itself\n  a.nrl:5:18 `a`: leads back to it\n  \
                note: the way back: a -> b -> c -> a\n";
    assert_eq!(found, want);
}

#[test]
fn files_are_found_once_and_say_what_is_wrong() {
    let a = "use \"b.nrl\"\nuse \"./c/../b.nrl\" as other\n\nfn f(x: float) -> float = b.g(x) + other.g(x)\n";
    let b = "fn g(x: float) -> float = 2 * x\n";
    assert_eq!(findings(&[("a.nrl", a), ("b.nrl", b)], &[]), "");
    let found = findings(&[("a.nrl", a)], &[]);
    assert!(found.contains("file-not-read: cannot read b.nrl"), "{found}");
    let circle = "use \"a.nrl\"\n\nfn g(x: float) -> float = 2 * x\n";
    let found = findings(&[("a.nrl", a), ("b.nrl", circle)], &[]);
    assert!(found.contains("import-cycle: a.nrl uses itself"), "{found}");
    assert!(found.contains("note: the way back: a.nrl -> b.nrl -> a.nrl"), "{found}");
    let twice = "use \"b.nrl\".{g}\n\nfn g(x: float) -> float = 3 * x\n";
    let found = findings(&[("a.nrl", twice), ("b.nrl", b)], &[]);
    assert!(found.starts_with("duplicate-name: `g` is defined twice"), "{found}");
    assert!(found.contains("a.nrl:1:14") && found.contains("a.nrl:3:4"), "{found}");
    let two = "use \"b.nrl\".{g}\nuse \"c.nrl\".{g}\n";
    let found = findings(&[("a.nrl", two), ("b.nrl", b), ("c.nrl", b)], &[]);
    assert!(found.contains("a.nrl:2:14") && found.contains("a.nrl:1:14"), "{found}");
}

#[test]
fn every_recipe_of_a_file_is_checked() {
    let text = BASE.to_string()
        + "\nrecipe second extends base {\n  set opt = optim.adamw(lrr: 1e-3)\n}\n";
    let found = findings(&[("a.nrl", &text)], &[]);
    assert!(found.starts_with("unknown-name: `adamw` has no parameter `lrr`"), "{found}");
    // What two recipes share is said once.
    let broken = text.replace("rewards.exact(s)", "rewards.exct(s)").replace("lrr", "lr");
    let found = findings(&[("a.nrl", &broken)], &[]);
    assert_eq!(found.matches("unknown-name").count(), 1, "{found}");
    let missing = lowered_error(BASE);
    assert!(
        missing.contains("a.nrl has no recipe `bse`") && missing.contains("did you mean `base`?")
    );
}

fn lowered_error(text: &str) -> String {
    let mut sources = nrl_base::SourceMap::new();
    let files = std::collections::BTreeMap::from([("a.nrl".to_string(), text.to_string())]);
    let options = nrl_lower::Options { recipe: Some("bse".into()), ..Default::default() };
    let (_, problems) = nrl_lower::lower(&files, &mut sources, "a.nrl", &options);
    super::support::shown(&problems.into_sorted(), &sources)
}

#[test]
fn a_broken_header_does_not_hide_its_body() {
    let text = "recipe tiny(x = ) {\n  run 10 steps\n  a = 3 +\n  b = = 4\n}\n";
    let found = findings(&[("a.nrl", text)], &[]);
    assert!(found.contains("a.nrl:1:") && found.contains("a.nrl:4:"), "{found}");
}
