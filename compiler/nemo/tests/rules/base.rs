//! The small recipes of our own, and checking a change to one of them.

use std::collections::BTreeMap;
use std::path::Path;

use nrl_base::{Diagnostic, SourceMap};
use nrl_nemo::{Checked, Options};

/// The small recipes by file name.
pub fn files() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nemo_rl");
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let read = |e: std::fs::DirEntry| {
        let text = std::fs::read_to_string(e.path()).unwrap();
        (e.file_name().into_string().unwrap(), text)
    };
    let mut all: BTreeMap<String, String> = entries.map(read).collect();
    // Data for `rows.yaml`: twelve rows and a blank line.
    let rows = "{\"question\": \"1+1\", \"answer\": \"2\"}\n".repeat(12) + "\n";
    let pair = |ranks: &[u32]| {
        let answer = |rank| format!("{{\"rank\": {rank}, \"completion\": []}}");
        let answers: Vec<String> = ranks.iter().map(answer).collect();
        format!("{{\"context\": [], \"completions\": [{}]}}\n", answers.join(", "))
    };
    for (name, text) in [
        ("broken.jsonl", format!("{rows}{{\"question\": \n")),
        ("mixed.jsonl", format!("{rows}{{\"question\": \"1+1\"}}\n")),
        ("pairs.jsonl", pair(&[0, 1]).repeat(300)),
        ("ties.jsonl", pair(&[0, 1]).repeat(300) + &pair(&[1, 1])),
        ("three.jsonl", pair(&[0, 1]).repeat(300) + &pair(&[0, 1, 2])),
    ] {
        all.insert(name.to_string(), text);
    }
    all.insert("rows.jsonl".to_string(), rows);
    // Conversations in which the model thinks before each answer.
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"1+1\"}, \
        {\"role\": \"assistant\", \"content\": \"<think>\\none more\\n</think>\\n\\n2\"}, \
        {\"role\": \"user\", \"content\": \"+1\"}, \
        {\"role\": \"assistant\", \"content\": \"<think>\\nagain\\n</think>\\n\\n3\"}]}\n";
    all.insert("chats.jsonl".to_string(), chat.repeat(200));
    all
}

/// Checks one of them with overrides. `@job=3600` and `@step=90` are what is known besides: seconds of the job
/// and of a step.
pub fn check(files: &BTreeMap<String, String>, path: &str, overrides: &[&str]) -> Checked {
    let known = |name: &str| overrides.iter().find_map(|o| o.strip_prefix(name)?.parse().ok());
    let step = known("@step=").map(|s: f64| [0.8 * s, s, 1.25 * s]);
    let options = Options { job: known("@job="), step, ..Options::default() };
    let overrides = overrides.iter().filter(|o| !o.starts_with('@'));
    let overrides: Vec<String> = overrides.map(ToString::to_string).collect();
    nrl_nemo::check(files, &mut SourceMap::new(), path, &overrides, options)
}

/// Findings as lines.
pub fn shown(found: &[Diagnostic]) -> String {
    let line = |d: &Diagnostic| {
        format!("  {} {}: {} (help: {:?})", d.severity.word(), d.code, d.message, d.help)
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}
