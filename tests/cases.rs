//! Field reports of other systems, as tests of our own. Those that concern one part are tested
//! there; `docs/dev/cases.md` lists all with the tests that hold them.

use nrl_driver::Options;

use crate::support::model::{compile_text, nll_recipe};
use crate::support::{Bench, DATA, recipe};

fn tiny(change: &[(&str, &str)]) -> Bench {
    let b = Bench::new();
    b.model("llama", "model").write("data.jsonl", DATA).write("r.nrl", recipe(change));
    b
}

/// A model may state a head size that is not hidden / heads; everything counts with it.
#[test]
fn c75_the_head_size_is_the_configs_own() {
    let b = Bench::new();
    let config = r#"{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "num_hidden_layers": 36,
        "vocab_size": 151936, "tie_word_embeddings": true, "rope_theta": 1000000, "max_position_embeddings": 40960}"#;
    b.write("qwen3-4b/config.json", config);
    let c =
        compile_text(&nll_recipe(&b.path("qwen3-4b"), ""), &Options::default()).expect("compiles");
    let model = &c.program.models[0];
    // Published: 4.02 G parameters.
    assert_eq!(nrlc::check::parameters(model), 4_022_468_096);
    let shape = |name: &str| -> Vec<usize> {
        let p = model.params.iter().find(|p| p.name == name).expect("the parameter");
        p.checkpoint_dims.iter().map(|g| g.iter().map(|d| model.dims.bound(*d)).product()).collect()
    };
    assert_eq!(shape("layers.wq"), [4096, 2560]);
    assert_eq!(shape("layers.wk"), [1024, 2560]);
    assert_eq!(shape("layers.wo"), [2560, 4096]);
}

/// `max_new` is a cap: it is cut to what the context leaves, and that is said.
#[test]
fn c85_max_new_is_a_cap() {
    let ran = tiny(&[("max_new: 6 tokens", "max_new: 200 tokens")]).run(&["run", "r.nrl"]);
    ran.succeeds();
    let told = format!("{}{}", ran.out, ran.err);
    assert!(told.contains("200") && told.contains("context"), "the cut is told:\n{told}");
}

/// Prompts that are too long are an error, dropped, or cut, as the recipe says, with a count.
#[test]
fn c85_long_prompts_follow_the_declared_policy() {
    let long = format!(
        "{{\"question\": \"{}\", \"answer\": \"a\"}}\n",
        "the mill stood at the river ".repeat(4)
    );
    for (policy, ok) in [("error", false), ("drop", true), ("truncate", true)] {
        let limit = format!("answer: \"answer\") | at_most(12 tokens, else: {policy})");
        let b = tiny(&[("answer: \"answer\")", &limit)]);
        b.write("data.jsonl", format!("{DATA}{long}"));
        let ran = b.run(&["run", "r.nrl"]);
        if ok {
            ran.succeeds();
            assert!(
                format!("{}{}", ran.out, ran.err).contains("1 "),
                "the row is counted:\n{}{}",
                ran.out,
                ran.err
            );
        } else {
            ran.fails("prompt-too-long", &["the first in row 3", "12"]);
        }
    }
}

/// Some rewards fail: they leave their group and are counted; the run goes on.
#[test]
fn c81_a_failed_reward_is_not_a_zero() {
    let b = tiny(&[(
        "fn short(s: Sample) -> float = 1.0 / (1.0 + len(s.completion))",
        "fn short(s: Sample) -> float = if len(s.completion) > 8 { log(0.0 - 1.0) } else { 1.0 }",
    )]);
    let ran = b.run(&["run", "r.nrl", "--out", "out"]);
    let metrics = std::fs::read_to_string(b.path("out/metrics.jsonl")).unwrap_or_default();
    if ran.code == Some(0) {
        for line in metrics.lines() {
            let m: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let (failed, mean) =
                (m["reward/failed"].as_f64().unwrap_or(0.0), m["reward/mean"].as_f64());
            assert!(
                failed == 0.0 || mean.is_none_or(|x| (x - 1.0).abs() < 1e-6),
                "failed rewards are not in the mean: {line}"
            );
        }
    } else {
        ran.fails("reward-failed", &["short"]);
    }
}

/// One of four answers never comes: it is a failed reward, and the step is done with the others.
#[test]
fn c93_a_stuck_answer_fails_and_the_step_goes_on() {
    let b = tiny(&[
        (
            "fn short(s: Sample) -> float = 1.0 / (1.0 + len(s.completion))",
            "extern fn short(s: Sample) -> float from \"sh grade.sh\", 4 workers, timeout 1 s",
        ),
        ("run 2 steps", "run 1 step"),
        ("take(2 prompts), 4 samples/prompt", "take(2 prompts), 2 samples/prompt"),
    ]);
    // The examples that a run starts with are two calls; the third, which is of the step, hangs.
    b.write(
        "grade.sh",
        "while read line; do\n  if mkdir one 2> /dev/null || mkdir two 2> /dev/null; then :; elif mkdir three 2> /dev/null; then sleep 1000; fi\n  \
         id=$(echo \"$line\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/')\n  echo \"{\\\"id\\\": $id, \\\"reward\\\": 0.5}\"\ndone\n",
    );
    b.run(&["run", "r.nrl", "--out", "out"]).succeeds();
    let metrics = std::fs::read_to_string(b.path("out/metrics.jsonl")).expect("metrics");
    let first: serde_json::Value =
        serde_json::from_str(metrics.lines().next().expect("a step")).expect("JSON");
    assert_eq!(first["reward/failed"].as_f64(), Some(1.0), "{first}");
    assert_eq!(first["reward/mean"].as_f64(), Some(0.5), "{first}");
}

/// The pages that map traps and reports to tests name tests that exist.
#[test]
fn the_named_tests_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    let mut folders = vec![root.join("tests"), root.join("compiler"), root.join("runtime")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                code.push_str(&std::fs::read_to_string(path).expect("a source"));
            }
        }
    }
    for page in ["docs/dev/traps.md", "docs/dev/cases.md"] {
        let text = std::fs::read_to_string(root.join(page)).expect("the page");
        let mut named = 0;
        for word in text.split('`').skip(1).step_by(2) {
            let name = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if name && word.contains('_') && !word.starts_with("NRL_") && word != "max_new" {
                assert!(code.contains(&format!("fn {word}(")), "{page} names `{word}`");
                named += 1;
            }
        }
        assert!(named >= 5, "{page} names {named} tests");
    }
}
