//! Plans and sessions on the command line.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const RECIPE: &str = "examples/recipes/grpo_math.nrl";

fn nrlc(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nrlc"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nrlc starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    child.wait_with_output().expect("nrlc ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_session_in_a_pipe_answers_without_a_prompt_and_goes_on_after_an_error() {
    let lines = "set learn.tp = 4\nset learn.tp = 3\nwhy memory update\nquit\nprice 5 steps\n";
    let out = nrlc(&["repl", RECIPE], lines);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.starts_with("learn   dp 4  tp 2 -> dp 2  tp 4"), "{said}");
    assert!(said.contains("error: ") && said.contains("weights"), "{said}");
    assert!(!said.contains("nrl>") && !said.contains("GPU-hours on"), "{said}");
}

#[test]
fn a_plan_is_a_screen_json_and_a_comparison() {
    let screen = nrlc(&["plan", RECIPE], "");
    let said = text(&screen.stdout);
    assert!(said.starts_with("plan grpo_math") && said.contains("IF YOU CHANGE"), "{said}");
    assert!(!said.contains('\u{1b}'), "no colors in a pipe");
    let json = nrlc(&["plan", RECIPE, "--format", "json"], "");
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(report["version"], 1);
    assert_eq!(report["run"]["devices"], 8);
    let same = nrlc(&["plan", RECIPE, "--against", RECIPE], "");
    assert!(text(&same.stdout).contains("no difference"), "{}", text(&same.stdout));
    let why = nrlc(&["explain", RECIPE, "learn.dp"], "");
    assert!(text(&why.stdout).contains("8 ranks / (tp 2) = 4"), "{}", text(&why.stdout));
    let yaml = nrlc(&["plan", "examples/nemo_rl/megatron.yaml", "--gpu", "h200"], "");
    assert!(text(&yaml.stdout).contains("8 x H200"), "{}", text(&yaml.stdout));
}
