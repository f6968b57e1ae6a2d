//! The recipes of `examples/recipes` check: no finding but the note of what cannot run yet.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nrl_base::{Diagnostic, Severity, SourceMap};
use nrl_driver::{Compiled, Options, compile};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes")
}

/// The files beside a recipe.
fn files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder()).expect("the recipes").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(name, std::fs::read_to_string(entry.path()).expect("a text"));
    }
    files
}

fn checked(name: &str, change: &[(&str, &str)]) -> (Option<Compiled>, Vec<Diagnostic>) {
    let mut files = files();
    let text = files.get_mut(name).expect("the recipe");
    for (from, to) in change {
        assert!(text.contains(from), "{name} has `{from}`");
        *text = text.replace(from, to);
    }
    compile(&files, &mut SourceMap::new(), name, &Options::default())
}

fn shown(found: &[Diagnostic]) -> String {
    let line = |d: &Diagnostic| {
        let labels: Vec<&str> = d.labels.iter().map(|l| l.text.as_str()).collect();
        format!(
            "{}[{}]: {} {labels:?} {:?} {:?}",
            d.severity.word(),
            d.code,
            d.message,
            d.notes,
            d.help
        )
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_recipe_checks_and_says_what_cannot_run_yet() {
    let mut count = 0;
    let mut wrong = vec![];
    for (name, text) in files().iter().filter(|(n, _)| n.ends_with(".nrl")) {
        let (compiled, mut found) = checked(name, &[]);
        // A budget of time is not decided by any plan yet, which is a note of its own.
        found.retain(|d| d.message != "a budget is not decided");
        let one_note = found.len() == 1 && found[0].severity == Severity::Note;
        if !one_note || found[0].code != "not-supported" {
            wrong.push(format!("{name}:\n{}", shown(&found)));
        }
        if compiled.as_ref().is_some_and(|c| c.not_yet.is_empty()) {
            wrong.push(format!("{name} would run"));
        }
        if nrl_syntax::print::format(text).as_ref() != Ok(text) {
            wrong.push(format!("{name} is not in the standard layout"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert_eq!(count, 7);
}

#[test]
fn settings_of_another_system_check_and_do_not_run() {
    let settings = "recipe r {\n  settings nemo_rl {\n    policy.precision = \"fp8\"\n  }\n}\n";
    for (text, code, severity) in [
        (settings, "not-supported", Severity::Note),
        ("recipe r {\n  x = 1\n}\n", "nothing-to-run", Severity::Error),
    ] {
        let files = BTreeMap::from([("a.nrl".to_string(), text.to_string())]);
        let (compiled, found) =
            nrl_driver::check(&files, &mut SourceMap::new(), "a.nrl", &Default::default());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].code, found[0].severity), (code, severity));
        assert_eq!(compiled.map_or(0, |c| c.not_yet.len()), usize::from(code == "not-supported"));
    }
}

/// A change of a recipe, the code that it must raise and words of the message or its labels.
struct Mistake<'t> {
    recipe: &'t str,
    change: &'t [(&'t str, &'t str)],
    code: &'t str,
    words: &'t [&'t str],
}

#[test]
fn mistakes_in_recipes_are_found_with_their_code() {
    let mistakes = [
        // Layouts.
        (
            "grpo_math.nrl",
            "(dp: rest, tp: 2)",
            "(dp: rest, tp: 3)",
            "mesh-does-not-fill",
            &["dp rest * tp 3", "8"][..],
        ),
        (
            "grpo_math.nrl",
            "(rep: rest, rtp: 1)",
            "(rep: 4, rtp: 1)",
            "mesh-does-not-fill",
            &["make 4"],
        ),
        ("grpo_math.nrl", "(dp: rest, tp: 2)", "(dp: rest, sp: 2)", "unknown-name", &["sp: true"]),
        (
            "dpo_preferences.nrl",
            "(dp: rest, tp: 2)",
            "(dp: rest, pp: 3)",
            "mesh-does-not-fill",
            &["pp 3"],
        ),
        ("ppo_critic.nrl", "nodes: 2", "nodes: 0", "out-of-range", &["without a GPU"]),
        (
            "moe_async.nrl",
            "split (4 nodes, rest)",
            "split (4 nodes, 3 nodes)",
            "pools-do-not-fit",
            &["56 GPUs", "64"],
        ),
        (
            "moe_async.nrl",
            "split (4 nodes, rest)",
            "split (8 nodes, rest)",
            "pools-do-not-fit",
            &["64 GPUs"],
        ),
        (
            "moe_async.nrl",
            "split (4 nodes, rest)",
            "split (4 steps, rest)",
            "unit-mismatch",
            &["nodes"],
        ),
        ("moe_async.nrl", "ep: 8", "ep: 5", "mesh-does-not-fill", &["ep 5", "32"]),
        ("moe_async.nrl", "tp: 2, ep: 8", "tp: 2, cp: 3", "mesh-does-not-fill", &["cp 3"]),
        (
            "moe_async.nrl",
            "layers[*].router",
            "layers[*].ruter",
            "rule-matches-nothing",
            &["layers.ruter"],
        ),
        ("moe_async.nrl", "record: [routes]", "record: [roots]", "unknown-name", &["roots"]),
        ("moe_async.nrl", ", record: [routes]", "", "unknown-name", &["routes"]),
        (
            "moe_async.nrl",
            "staleness <= 1 step",
            "staleness <= 1 prompt",
            "unit-mismatch",
            &["steps"],
        ),
        (
            "moe_async.nrl",
            "mean(w * grpo",
            "mean(grpo",
            "uncorrected-off-policy",
            &["`s` may be 1 step old"],
        ),
        ("moe_async.nrl", "swap: in_flight", "swap: in_fligt", "unknown-name", &["swap"]),
        (
            "moe_async.nrl",
            "deadline: 300 s",
            "deadline: 300 tokens",
            "unit-mismatch",
            &["deadline"],
        ),
        ("moe_async.nrl", "assume lengths", "assume length", "unknown-name", &["length"]),
        ("moe_async.nrl", "mean: 2500 tokens", "mean: 2500 s", "unit-mismatch", &["token"]),
        // Models.
        ("distill.nrl", "Qwen/Qwen3-32B", "Qwen/Qwen3-33B", "model-not-found", &["Qwen3-33B"]),
        (
            "distill.nrl",
            "Qwen/Qwen3-32B",
            "meta-llama/Llama-3.1-8B",
            "vocabulary-mismatch",
            &["128256", "151936"],
        ),
        (
            "distill.nrl",
            "dist(student, s) on t",
            "dist(student, s)",
            "different-distributions",
            &["64 tokens", "all tokens"],
        ),
        (
            "distill.nrl",
            "topk(dist(teacher, s), 64)",
            "topk(dist(teacher, s), 0)",
            "out-of-range",
            &["likeliest"],
        ),
        ("ppo_critic.nrl", ", head: scalar", "", "wrong-type", &["logits"]),
        (
            "ppo_critic.nrl",
            "context: 8192 tokens, head",
            "context: 262144 tokens, head",
            "out-of-range",
            &["262144"],
        ),
        // Steps.
        (
            "grpo_math.nrl",
            "temperature: 1.0, memory",
            "temperature: 1.0, top_p: 0.8, memory",
            "different-distributions",
            &["s.logprob: top_p 0.8", "full vocabulary"],
        ),
        (
            "grpo_math.nrl",
            "logprob(reference, s)",
            "logprob(reference, s, temperature: 0.5)",
            "different-distributions",
            &["temperature 0.5"],
        ),
        ("grpo_math.nrl", "memory: 60 % of device", "memory: 60 s", "unit-mismatch", &["memory"]),
        ("grpo_math.nrl", "in 2 updates", "in 3 updates", "batch-not-divisible", &["1024"]),
        (
            "dpo_preferences.nrl",
            "take(128 pairs)",
            "take(128 samples)",
            "missing-field",
            &["pairs"],
        ),
        ("dpo_preferences.nrl", ", rejected: \"worse\"", "", "wrong-arguments", &["rejected"]),
        ("dpo_preferences.nrl", "v.accuracy", "v.reward", "unknown-metric", &["v.reward"]),
        (
            "dpo_preferences.nrl",
            "dpo.margin(policy, b)",
            "logprob(policy, b)",
            "wrong-type",
            &["one side"],
        ),
        (
            "ppo_critic.nrl",
            "ppo.clip(ratio(logprob(policy, s), old), even",
            "ppo.clip(ratio(logprob(policy, s), old), ppo.whiten(gain)",
            "loss-depends-on-layout",
            &["micro-batch"],
        ),
        ("ppo_critic.nrl", "= value(critic, s)", "= value(critic, q)", "unknown-name", &["`q`"]),
        ("tools.nrl", "within 5 rounds", "within 1 round", "buffer-cannot-fill", &["16", "32"]),
        ("tools.nrl", " within 5 rounds", "", "missing-field", &["without an end"]),
        ("tools.nrl", "std(mark) > 0", "mark > 0", "dim-mismatch", &["per group"]),
        ("tools.nrl", "words + tool(seen)", "words + seen", "wrong-type", &["turns"]),
        (
            "tools.nrl",
            "box, seen = sandbox.exec",
            "other, seen = sandbox.exec",
            "session-used-twice",
            &["box"],
        ),
        (
            "tools.nrl",
            "sandbox.exec(box, code)",
            "sandbox.run(box, code)",
            "unknown-name",
            &["sandbox"],
        ),
        (
            "tools.nrl",
            "text_or(boxed(words.last), \"\")",
            "boxed(words.last)",
            "wrong-type",
            &["none"],
        ),
        (
            "sft_then_grpo.nrl",
            "logprob(anchor, s)",
            "logprob(anchr, s)",
            "unknown-name",
            &["anchr"],
        ),
    ];
    let mut wrong = vec![];
    for (recipe, from, to, code, words) in mistakes {
        let m = Mistake { recipe, change: &[(from, to)], code, words };
        let (_, found) = checked(m.recipe, m.change);
        let errors: Vec<&Diagnostic> =
            found.iter().filter(|d| d.severity == Severity::Error).collect();
        let text = shown(&found);
        // The same mistake may be made in two lines.
        let right =
            !errors.is_empty() && errors.iter().all(|d| d.code == m.code && !d.labels.is_empty());
        if !right || !m.words.iter().all(|w| text.contains(w)) {
            wrong.push(format!(
                "{recipe}: `{from}` to `{to}` must be {code} with {words:?}:\n{text}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn settings_that_do_nothing_are_warned_of() {
    let settings = [
        ("moe_async.nrl", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B", "`ep` is 8"),
        ("moe_async.nrl", "staleness <= 1 step", "staleness <= 0 steps", "`swap`"),
        (
            "grpo_math.nrl",
            "  exam = problems",
            "  other = problems from \"x.jsonl\"\n  exam = problems",
            "`other` is never used",
        ),
        ("ppo_critic.nrl", "from step 20", "from step 1", "every step"),
    ];
    for (recipe, from, to, what) in settings {
        let change = [(from, to), ("freeze policy.layers[*].router\n", "")];
        let (_, found) = checked(recipe, if from.contains("30B") { &change } else { &change[..1] });
        let warned = found.iter().any(|d| {
            d.code == "setting-has-no-effect"
                && d.severity == Severity::Warning
                && d.message.contains(what)
        });
        assert!(warned, "{recipe}: {to}: {}", shown(&found));
    }
}

#[test]
fn published_models_have_their_published_sizes() {
    // Parameters as their cards state them.
    let sizes = [
        ("grpo_math.nrl", "policy", 8_030_261_248),
        ("moe_async.nrl", "policy", 30_532_122_624),
        ("distill.nrl", "teacher", 32_762_123_264),
    ];
    for (recipe, model, want) in sizes {
        let (compiled, _) = checked(recipe, &[]);
        let program = compiled.expect("it checks").program;
        let m = program.models.iter().find(|m| m.name == model).expect("the model");
        let layers = |p: &nrl_ir::graph::ParamDecl| p.repeat.as_ref().map_or(1, |(_, n)| *n);
        let size = |p: &nrl_ir::graph::ParamDecl| {
            p.dims.iter().map(|d| m.dims.bound(*d)).product::<usize>()
        };
        let total: usize = m.params.iter().map(|p| layers(p) * size(p)).sum();
        assert_eq!(total, want, "{recipe}");
    }
}

#[test]
fn layers_split_evenly_over_the_stages_of_a_pipeline() {
    let model = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B");
    let freeze = ("freeze policy.layers[*].router\n", "");
    let (_, found) = checked("moe_async.nrl", &[model, freeze, ("tp: 2, ep: 8", "tp: 2, pp: 8")]);
    let d = found.iter().find(|d| d.severity == Severity::Error).expect("an error");
    assert_eq!(d.code, "layers-not-divisible");
    assert_eq!(d.message, "36 layers do not split evenly over pp = 8 (remainder 4)");
    let help = d.help.clone().unwrap_or_default();
    assert!(help.contains("1, 2, 3, 4, 6, 9, 12, 18, 36"), "{help}");
    assert!(help.contains("[5, 5, 5, 5, 4, 4, 4, 4]"), "{help}");
}

#[test]
fn the_plan_of_a_checkpoint_lays_out_its_parameters() {
    let styles = [
        ("self_attn.q_proj", "colwise"),
        ("self_attn.k_proj", "colwise"),
        ("self_attn.v_proj", "colwise"),
        ("self_attn.o_proj", "rowwise"),
        ("mlp.gate_proj", "colwise"),
        ("mlp.up_proj", "colwise"),
        ("mlp.down_proj", "rowwise"),
    ];
    let rules: Vec<String> = styles
        .iter()
        .map(|(path, style)| format!("{{path: \"layers.*.{path}\", style: \"{style}\"}}"))
        .collect();
    let plan = format!("plans.zero1() * plans.checkpoint([{}])", rules.join(", "));
    // Without sequence parallelism it needs more than the budget.
    let budget = ("  require peak_memory <= 92 % of device, step_time < 90 s\n", "");
    let (compiled, found) =
        checked("grpo_math.nrl", &[("plans.megatron(sp: true)", &plan), budget]);
    let program = compiled.unwrap_or_else(|| panic!("{}", shown(&found))).program;
    let m = &program.models[0];
    let split = |name: &str| -> Vec<String> {
        let i = m.params.iter().position(|p| p.name == name).expect("the parameter");
        let dims = m.params[i].dims.iter().zip(&m.layouts[i].dims);
        dims.filter(|(_, a)| !a.is_empty())
            .map(|(d, a)| format!("{}@{}", m.dims.name(*d), a.join(",")))
            .collect()
    };
    for (param, want) in
        [("wq", "q@tp"), ("wk", "kv@tp"), ("wo", "q@tp"), ("gate", "f@tp"), ("down", "f@tp")]
    {
        assert_eq!(split(&format!("layers.{param}")), [want], "{param}");
    }
    assert!(split("embed").is_empty());
    for (from, to, code) in [
        ("self_attn.q_proj", "self_attn.query", "rule-matches-nothing"),
        ("rowwise", "row", "unknown-name"),
    ] {
        let wrong = plan.replacen(from, to, 1);
        let (_, found) = checked("grpo_math.nrl", &[("plans.megatron(sp: true)", &wrong), budget]);
        let errors = found.iter().filter(|d| d.severity == Severity::Error);
        assert!(
            errors.clone().count() > 0 && errors.clone().all(|d| d.code == code),
            "{}",
            shown(&found)
        );
    }
}
