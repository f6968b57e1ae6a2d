//! What an editor asks, without a protocol. `§` marks the pointer.

use std::collections::BTreeMap;

use nrl_base::Span;
use nrl_ide::document::Document;
use nrl_ide::sheet::Sheet;

const RECIPE: &str = r#"use std.{clusters, data, grpo, models, optim, plans, rewards}
use "scores.nrl"

## How loud.
enum Loudness { quiet, loud }

record Settings {
  ## Of the loss.
  weight: float = 1.0
  loudness: Loudness = quiet
}

## Scales `x`.
fn scaled(x: f32[tok], by: Settings) -> f32[tok] = x * by.weight

recipe r(group = 4 samples/prompt) {
  run 10 steps
  cpus   = clusters.cpu(ranks: 2)
  mesh m = cpus axes (dp: rest, tp: 1)
  policy = models.llama(
    {hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2},
    tokens: characters("0123456789+=$_é", end: "$", pad: "_"), context: 16 tokens)
  place policy on m by plans.ddp() * plans.tensor_parallel()
  sampler = generator(policy)
  rows    = data.made(100 rows, i -> {prompt: "1+1=", answer: "2"})
  opt     = optim.adamw(lr: 1e-3)
  step {
    all = 8 prompts * group
    s   = sampler.generate(rows.take(8 prompts), group)
    r   = scores.right(s)
    adv = grpo.advantages(r)
    update policy by opt in 1 update, minimising {
      let x = scaled(ratio(logprob(policy, s), s.logprob), {weight: 2.0})
      mean(grpo.clip(x, adv, 0.2..0.28), over: tokens)
    }
  }
}
"#;

const SCORES: &str =
    "## One if right.\nfn right(s: Sample) -> float = number(s.completion == \"2\")\n";

fn files(text: &str) -> BTreeMap<String, String> {
    let text = text.replace('§', "");
    BTreeMap::from([
        ("dir/r.nrl".to_string(), text),
        ("dir/scores.nrl".to_string(), SCORES.to_string()),
    ])
}

/// The recipe with the pointer in front of the `n`-th `part`, `skip` bytes into it.
fn at(part: &str, n: usize, skip: usize) -> (Document, usize) {
    let (place, _) = RECIPE.match_indices(part).nth(n).unwrap_or_else(|| panic!("{part}"));
    (Document::open(&files(RECIPE), "dir/r.nrl", &[]), place + skip)
}

fn labels(text: &str) -> Vec<String> {
    let offset = text.find('§').expect("a pointer");
    nrl_ide::complete(&files(text), "dir/r.nrl", &[], offset).into_iter().map(|c| c.label).collect()
}

fn hover(part: &str, n: usize, skip: usize) -> String {
    let (d, offset) = at(part, n, skip);
    d.hover(offset).unwrap_or_else(|| panic!("nothing at {part}")).text
}

#[test]
fn hover_tells_values_dims_layouts_and_documentation() {
    let shown = hover("all = 8", 0, 0);
    assert!(shown.contains("32 samples"), "{shown}");
    let shown = hover("x, adv", 0, 0);
    assert!(shown.contains("f32[tok@dp]") && shown.contains("set at dir/r.nrl:33:15"), "{shown}");
    let shown = hover("grpo.clip", 0, 6);
    assert!(
        shown.contains("fn clip(ratio: f32[tok]") && shown.contains("clipped surrogate"),
        "{shown}"
    );
    assert!(shown.contains("in std/grpo.nrl:"), "{shown}");
    let shown = hover("group)", 0, 1);
    assert!(
        shown.contains("group = 4 samples/prompt") && shown.contains("set at dir/r.nrl:16:18"),
        "{shown}"
    );
    let shown = hover("scores.right", 0, 8);
    assert!(shown.contains("One if right"), "{shown}");
    let shown = hover("by.weight", 0, 4);
    assert!(shown.contains("weight: float = 1.0") && shown.contains("Of the loss"), "{shown}");
    let shown = hover("sampler.generate", 0, 9);
    assert!(shown.contains("generate(generator, prompts, samples, [max_new]"), "{shown}");
    assert!(hover("adv = ", 0, 0).contains("f32[seq@dp]"));
}

#[test]
fn hints_stand_behind_names_of_tensors_and_computed_numbers() {
    let d = Document::open(&files(RECIPE), "dir/r.nrl", &[]);
    let hints: Vec<(String, String)> = d
        .hints(0, RECIPE.len())
        .into_iter()
        .map(|h| (RECIPE[..h.offset].split_whitespace().last().unwrap().to_string(), h.text))
        .collect();
    let expect = [
        ("all", ": 32 samples"),
        ("r", ": f32[seq@dp]"),
        ("adv", ": f32[seq@dp]"),
        ("x", ": f32[tok@dp]"),
    ];
    let expect: Vec<(String, String)> =
        expect.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    assert_eq!(hints, expect);
}

#[test]
fn definitions_lead_into_files_and_the_library() {
    for (part, n, skip, place) in [
        ("policy, s", 0, 0, "dir/r.nrl:20:3"),
        ("grpo.advantages", 0, 6, "std/grpo.nrl:"),
        ("scores.right", 0, 8, "dir/scores.nrl:2:4"),
        ("scores.right", 0, 1, "dir/scores.nrl:1:1"),
        ("by.weight", 0, 0, "dir/r.nrl:14:24"),
        ("by.weight", 0, 4, "dir/r.nrl:9:3"),
        ("{weight: 2.0}", 0, 2, "dir/r.nrl:9:3"),
        ("hidden_size: 8", 0, 2, "std/models/llama.nrl:"),
        ("= quiet", 0, 3, "dir/r.nrl:5:17"),
        ("Settings)", 0, 1, "dir/r.nrl:7:8"),
    ] {
        let (d, offset) = at(part, n, skip);
        let found = d.definition(offset).map(|s| d.world.sources.place(s));
        assert!(found.as_ref().is_some_and(|f| f.starts_with(place)), "{part}: {found:?}");
    }
    let (d, offset) = at("sampler.generate", 0, 9);
    assert_eq!(d.definition(offset), None);
}

#[test]
fn a_quantity_leads_to_the_unit_of_ones_own() {
    let text = "use \"shop.nrl\".{dozen}\n\nunit widget\nfn price(n: widgets) = n\nall = 3 widgets/prompt\nbox = 2 dozens\nwait = 3 min\n";
    let files = BTreeMap::from([
        ("r.nrl".to_string(), text.to_string()),
        ("shop.nrl".to_string(), "unit egg\nunit dozen = 12 eggs\n".to_string()),
    ]);
    let d = Document::open(&files, "r.nrl", &[]);
    let place = |part: &str| {
        d.definition(text.find(part).expect(part) + 3).map(|s| d.world.sources.place(s))
    };
    assert_eq!(place("widgets/prompt").as_deref(), Some("r.nrl:3:6"));
    assert_eq!(place("widgets)").as_deref(), Some("r.nrl:3:6"));
    assert_eq!(place("dozens").as_deref(), Some("shop.nrl:2:6"));
    // The language's own units are declared nowhere.
    assert_eq!(d.definition(text.find("min").expect("min") + 1), None);
}

/// The file after a rename at the pointer.
fn renamed(
    part: &str,
    n: usize,
    skip: usize,
    new: &str,
) -> Result<BTreeMap<String, String>, String> {
    let (d, offset) = at(part, n, skip);
    let mut edits = d.rename(offset, new)?;
    edits.sort_by_key(|e| std::cmp::Reverse(e.span.start));
    let mut out = files(RECIPE);
    for e in edits {
        let name = d.world.sources.get(e.span.source).unwrap().name().to_string();
        out.get_mut(&name).unwrap().replace_range(e.span.range(), &e.text);
    }
    Ok(out)
}

#[test]
fn a_rename_changes_every_use_and_only_those() {
    let out = renamed("policy, s", 0, 0, "student").unwrap();
    let text = &out["dir/r.nrl"];
    assert_eq!(text.matches("policy").count(), 0, "{text}");
    assert_eq!(text.matches("student").count(), RECIPE.matches("policy").count());
    // Fields and variants, also where they are bare.
    let out = renamed("weight: float", 0, 0, "factor").unwrap();
    assert!(out["dir/r.nrl"].contains("{factor: 2.0}") && out["dir/r.nrl"].contains("by.factor"));
    let out = renamed("loud }", 0, 0, "noisy").unwrap();
    assert!(out["dir/r.nrl"].contains("{ quiet, noisy }"), "{out:?}");
    // Over files.
    let out = renamed("scores.right", 0, 8, "correct").unwrap();
    assert!(out["dir/r.nrl"].contains("scores.correct(s)"));
    assert!(out["dir/scores.nrl"].contains("fn correct(s: Sample)"));
    // `r` the reward is not `r` the recipe.
    let out = renamed("advantages(r)", 0, 11, "reward").unwrap();
    assert!(
        out["dir/r.nrl"].contains("recipe r(") && out["dir/r.nrl"].contains("reward   = scores")
    );
}

#[test]
fn a_rename_that_would_break_something_is_refused() {
    for (part, skip, new, why) in [
        ("grpo.clip", 6, "cut", "declared in the standard library"),
        ("policy, s", 0, "sampler", "already means something here"),
        ("policy, s", 0, "9x", "not a name"),
        ("policy, s", 0, "match", "word of the language"),
        ("sampler.generate", 9, "make", "part of the language"),
        ("grpo.clip", 0, "g", "renamed with its file"),
        ("quiet, loud", 0, "loud", "already means something here"),
    ] {
        let why_not = renamed(part, 0, skip, new).unwrap_err();
        assert!(why_not.contains(why), "{part}: {why_not}");
    }
}

#[test]
fn references_include_the_declaration() {
    let (d, offset) = at("adv, 0.2", 0, 0);
    let places: Vec<String> =
        d.references(offset).iter().map(|s| d.world.sources.place(*s)).collect();
    assert_eq!(places, ["dir/r.nrl:31:5", "dir/r.nrl:34:25"]);
}

#[test]
fn completion_follows_what_is_being_typed() {
    let with =
        |line: &str| RECIPE.replace("    adv = grpo.advantages(r)\n", &format!("    {line}\n"));
    for (line, has, lacks) in [
        ("adv = grpo.§", &["advantages", "clip", "Baseline"][..], &["policy", "step"][..]),
        (
            "adv = grpo.advantages(r, §",
            &["baseline", "scale", "eps", "sampler"],
            &["r_", "max_new"],
        ),
        ("adv = grpo.advantages(r, baseline: §", &["leave_one_out", "zero"], &["population"]),
        ("adv = s.§", &["length", "truncated", "logprob"], &["completion"]),
        ("adv = sampler.§", &["generate"], &["length"]),
        ("b = rows.§", &["take", "shuffled"], &["advantages"]),
        ("adv = po§", &["policy", "pow", "rows", "sampler", "grpo", "scaled"], &["adv"]),
        ("§", &["update", "policy"], &["recipe", "enum"]),
        ("b = rows.take(8 §", &["prompts", "samples"], &["policy"]),
        ("# a comment po§", &[], &["policy", "step"]),
        ("x = {wei§", &[], &["baseline"]),
    ] {
        let found = labels(&with(line));
        for name in has {
            assert!(found.iter().any(|l| l == name), "{line} lacks {name}: {found:?}");
        }
        for name in lacks {
            assert!(!found.iter().any(|l| l == name), "{line} has {name}");
        }
    }
    let found = labels("use std.{da§");
    assert!(found.contains(&"data".into()) && found.contains(&"grpo".into()), "{found:?}");
    let found = labels("use std.models.{§");
    assert!(found.contains(&"llama".into()), "{found:?}");
    let found = labels(
        "use std.{data}\nplan p() {\n  f: @§\n}\nrecipe r {\n  mesh m = c axes (dp: rest, mine: 2)\n}\n",
    );
    assert!(found.contains(&"mine".into()) && found.contains(&"tp".into()), "{found:?}");
    // Fields of the record that a model takes.
    let model = RECIPE.replace("{hidden_size: 8, ", "{hidden_size: 8, §");
    let found = labels(&model);
    assert!(found.contains(&"num_key_value_heads".into()), "{found:?}");
    assert!(!found.contains(&"hidden_size".into()));
    let sample = labels("fn f(s: Sample) -> float = len(s.§)\n");
    assert_eq!(sample[..2], ["prompt", "completion"]);
}

#[test]
fn the_outline_has_items_before_what_they_hold() {
    let d = Document::open(&files(RECIPE), "dir/r.nrl", &[]);
    let names: Vec<String> = d.symbols().into_iter().map(|s| s.name).collect();
    assert_eq!(names[..5], ["Loudness", "quiet", "loud", "Settings", "weight"]);
    assert!(names.contains(&"policy".into()) && names.contains(&"tp".into()));
}

#[test]
fn no_cut_of_a_text_makes_an_answer_fail() {
    let cuts: Vec<usize> =
        (0..RECIPE.len()).step_by(7).filter(|n| RECIPE.is_char_boundary(*n)).collect();
    for cut in cuts {
        let d = Document::open(&files(&RECIPE[..cut]), "dir/r.nrl", &[]);
        let _ = (d.hover(cut), d.complete(cut), d.definition(cut), d.rename(cut, "x"), d.symbols());
        let _ = (d.hints(0, cut), d.references(cut));
    }
}

#[test]
fn settings_of_nemo_recipes_tell_who_set_them() {
    let files = BTreeMap::from([
        ("base.yaml".to_string(), "policy:\n  tp: 2\n  name: llama\n  seq: 512\n".to_string()),
        (
            "child.yaml".to_string(),
            "defaults: base.yaml\npolicy:\n  tp: 4\n  length: ${policy.seq}\n  \n".to_string(),
        ),
    ]);
    let sheet = Sheet::open(&files, "child.yaml");
    let text = sheet.text().to_string();
    let hover = |part: &str| sheet.hover(text.find(part).unwrap() + 1).expect("a hover").text;
    assert!(
        hover("tp: 4").contains("policy.tp: 4") && hover("tp: 4").contains("set at child.yaml:3:3")
    );
    assert!(hover("length").contains("policy.length: 512"), "{}", hover("length"));
    assert!(hover("length").contains("from the value at base.yaml:4:"), "{}", hover("length"));
    let to =
        sheet.definition(text.find("${policy").unwrap() + 3).map(|s: Span| sheet.sources.place(s));
    assert!(to.is_some_and(|p| p.starts_with("base.yaml:4:")));
    let keys: Vec<String> = sheet.complete(text.len() - 1).into_iter().map(|c| c.label).collect();
    assert_eq!(keys[..4], ["tp", "name", "seq", "length"]);
    // And what the section may have besides.
    assert!(keys.contains(&"train_global_batch_size".to_string()), "{keys:?}");
    let base = Sheet::open(&files, "base.yaml");
    assert!(base.hover(10).unwrap().text.contains("policy.tp: 2"));
}
