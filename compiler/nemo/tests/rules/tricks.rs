//! Files that are no recipes, and tricks of YAML: one error each, at its place, or none where the trick is allowed.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, SourceMap};
use nrl_nemo::Options;

use crate::base::{files, shown};

/// Errors of a child of the small GRPO recipe, each as `code at line`.
fn errors(text: &str, more: &[(&str, &str)]) -> (Vec<String>, String) {
    let mut files: BTreeMap<String, String> = files();
    files.insert("trick.yaml".to_string(), text.to_string());
    for (name, text) in more {
        files.insert((*name).to_string(), (*text).to_string());
    }
    let mut sources = SourceMap::new();
    let checked = nrl_nemo::check(&files, &mut sources, "trick.yaml", &[], Options::default());
    let place = |d: &Diagnostic| {
        let place = d.span().map(|s| sources.place(s)).unwrap_or_default();
        let line = place.split(':').nth(1).unwrap_or("?").to_string();
        format!("{} at {line}", d.code)
    };
    let found = checked.findings.iter().filter(|d| d.is_error()).map(place).collect();
    (found, shown(&checked.findings))
}

/// What is wrong with the lines below `defaults: grpo.yaml`.
const ONE_ERROR: &[(&str, &str)] = &[
    ("policy:\n\ttrain_global_batch_size: 8", "yaml-syntax at 3"),
    ("grpo:\n  seed: 1\n  seed: 2", "duplicate-key at 4"),
    ("grpo: {seed: 1, seed: 2}", "duplicate-key at 2"),
    ("grpo: {seed: 3}\n---\ngrpo: {seed: 4}", "yaml-syntax at 3"),
    ("x: &a [*a]", "yaml-syntax at 2"),
    ("x: &a {b: *a}", "yaml-syntax at 2"),
    ("x: *nope", "yaml-syntax at 2"),
    ("foo: {<<: 3}", "yaml-syntax at 2"),
    ("x: !!python/object/apply:os.system ['ls']", "yaml-syntax at 2"),
    ("grpo: {seed: !!python/name:os.system }", "yaml-syntax at 2"),
    ("grpo: {seed: !custom 3}", "yaml-syntax at 2"),
    ("x: !!set {a, b}", "yaml-syntax at 2"),
    ("x: !!binary aGVsbG8=", "yaml-syntax at 2"),
    ("null: 4", "yaml-syntax at 2"),
    ("? [a, b]\n: 3", "yaml-syntax at 2"),
    ("{a: 1}: 2", "yaml-syntax at 2"),
    ("a: 'abc", "yaml-syntax at 2"),
    ("grpo:\n  seed: 1\n val: 2", "yaml-syntax at 4"),
    ("grpo: seed: 1", "yaml-syntax at 2"),
    ("a: x\u{1}y", "yaml-syntax at 2"),
    ("a: x\u{0}y", "yaml-syntax at 2"),
    ("a: ${b}\nb: ${a}", "unresolved-interpolation at 2"),
    ("a: ${a}", "unresolved-interpolation at 2"),
    ("a: ${foo:1,2}", "unresolved-interpolation at 2"),
    ("a: '${b'", "unresolved-interpolation at 2"),
    ("a: '${}'", "unresolved-interpolation at 2"),
    ("grpo: {x: '${.....seed}'}", "unresolved-interpolation at 2"),
    ("policy: {train_global_batch_size: '${div:4,0}'}", "unresolved-interpolation at 2"),
    ("policy: {train_global_batch_size: '${mul:a,2}'}", "unresolved-interpolation at 2"),
    ("policy: [1]", "wrong-type at 2"),
    ("policy: hi", "wrong-type at 2"),
    ("loss_fn: 3", "wrong-type at 2"),
    ("policy: {train_global_batch_size: 9223372036854775807}", "out-of-range at 2"),
    ("policy: {train_global_batch_size: 1e30}", "out-of-range at 2"),
    ("grpo: {seed: 99999999999999999999999999}", "out-of-range at 2"),
];

/// What YAML and NeMo RL allow.
const RIGHT: &[&str] = &[
    "grpo: &g {seed: 3}\nmine: {<<: *g, x: 1}",
    "a: &a {x: 1}\nb: &b {y: 2}\nmine: {<<: [*a, *b]}",
    "grpo: {seed: !!int '3'}",
    "policy: {max_grad_norm: .inf}",
    "\"grpo\": {'seed': 3}",
    "grpo: {seed: 3}\n...",
    "grpo: {\n  seed: 3,\n  val_period: 10,\n}",
    "policy: {train_global_batch_size: \"${mul:${grpo.num_prompts_per_step},${grpo.num_generations_per_prompt}}\"}",
    "policy: {train_global_batch_size: ???}",
    "grpo: {seed: 1_000}",
];

#[test]
fn each_trick_is_one_error_at_its_line() {
    let mut wrong = vec![];
    for (lines, expected) in ONE_ERROR {
        let (found, all) = errors(&format!("defaults: grpo.yaml\n{lines}\n"), &[]);
        if found != [*expected] {
            wrong.push(format!("{lines:?}: {found:?}, not {expected}\n{all}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_allowed_is_no_error() {
    let mut wrong = vec![];
    for lines in RIGHT {
        let text = format!("defaults: grpo.yaml\n{lines}\n");
        for text in [text.clone(), format!("\u{feff}{text}"), text.replace('\n', "\r\n")] {
            let (found, all) = errors(&text, &[]);
            if !found.is_empty() {
                wrong.push(format!("{text:?}:\n{all}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_inherited_must_be_files() {
    for (text, expected, word) in [
        ("defaults: nothing.yaml\n", "broken-inheritance at 1", "nothing.yaml"),
        ("defaults: [grpo.yaml, nothing.yaml]\n", "broken-inheritance at 1", "nothing.yaml"),
        ("defaults: trick.yaml\n", "broken-inheritance at 1", "itself"),
        ("defaults: other.yaml\n", "broken-inheritance at 1", "itself"),
        ("defaults: 3\n", "broken-inheritance at 1", "paths of files"),
        ("defaults:\n  - grpo.yaml\n  - _self_\n", "broken-inheritance at 3", "_self_"),
        ("defaults:\n  - grpo.yaml\n  - model: llama\n", "broken-inheritance at 3", "groups"),
        ("- a\n- b\n", "not-a-mapping at 1", "a list"),
        ("hello\n", "not-a-mapping at 1", "single value"),
        ("", "not-a-mapping at 1", "nothing"),
        ("# later\n", "not-a-mapping at 1", "nothing"),
    ] {
        let (found, all) = errors(text, &[("other.yaml", "defaults: trick.yaml\n")]);
        assert_eq!(found, [expected], "{text:?}\n{all}");
        assert!(all.contains(word), "{word} in\n{all}");
    }
}

/// A child that names one stop word where its parent names three most likely meant a fourth.
#[test]
fn a_shorter_list_with_something_new_is_told() {
    let parent = "defaults: grpo.yaml\npolicy: {generation: {stop_strings: [a, b, c]}}\n";
    let child = |list: &str| {
        let text = format!("defaults: p.yaml\npolicy: {{generation: {{stop_strings: {list}}}}}\n");
        errors(&text, &[("p.yaml", parent)]).1.contains("a list replaces")
    };
    assert!(child("[d]"));
    assert!(!child("[a]") && !child("[a, b, c, d]") && !child("null"));
}
