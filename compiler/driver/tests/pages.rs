//! The documentation compiles: every example of `docs/language.md` through all phases, and the
//! pages of codes that phases after elaboration raise.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::Path;

use nrl_base::{Diagnostic, SourceMap};
use nrl_driver::{Options, check};

/// Codes of the phases after elaboration whose pages have a recipe as their example.
const LATER: &[&str] = &[
    "dim-not-divisible",
    "does-not-fit",
    "engine-over-memory",
    "heads-not-divisible",
    "host-memory",
    "kv-pool-too-small",
    "no-checkpoint-in-time",
    "no-run-line",
    "not-causal",
    "nothing-to-train",
    "rule-matches-nothing",
    "update-below-precision",
];

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The recipes of a page, in order.
fn examples(page: &str) -> Vec<String> {
    let parts = page.split("```nrl\n").skip(1);
    parts.map(|p| p.split("```").next().unwrap_or("").to_string()).collect()
}

/// What compiling `text` finds. A line `# --set path=value` is an override; what follows a line
/// `# --- NAME` is the file of that name.
fn findings(text: &str) -> Vec<Diagnostic> {
    let mut parts = text.split("# --- ");
    let mut files = BTreeMap::new();
    files.insert("example.nrl".to_string(), parts.next().unwrap_or("").to_string());
    for part in parts {
        let (name, body) = part.split_once('\n').expect("a file after its name");
        files.insert(name.to_string(), body.to_string());
    }
    let sets = text.lines().filter_map(|l| l.strip_prefix("# --set ").map(str::to_string));
    let options = Options { sets: sets.collect(), ..Options::default() };
    let mut found = check(&files, &mut SourceMap::new(), "example.nrl", &options).1;
    // What cannot run yet is a note.
    found.retain(|d| d.severity != nrl_base::Severity::Note || d.code == "no-run-line");
    found
}

#[test]
fn the_examples_of_the_language_page_compile() {
    let examples = examples(&page("language.md"));
    assert!(examples.len() > 8, "only {} examples found", examples.len());
    for text in examples {
        let found = findings(&text);
        assert!(found.is_empty(), "{text}\n{found:#?}");
    }
}

#[test]
fn the_pages_of_later_phases_raise_their_codes() {
    for slug in LATER {
        let examples = examples(&page(&format!("errors/{slug}.md")));
        assert!(examples.len() >= 2, "{slug} has no example with a fix");
        let found = findings(&examples[0]);
        assert_eq!(found.iter().map(|d| d.code).collect::<Vec<_>>(), [*slug], "{found:#?}");
        assert!(!found[0].labels.is_empty() && found[0].help.is_some(), "{found:#?}");
        for fixed in &examples[1..] {
            let found = findings(fixed);
            assert!(found.is_empty(), "{slug}: {found:#?}");
        }
    }
}

#[test]
fn rules_of_ones_own_plan_for_parameters_match() {
    let page = page("language.md");
    let text = examples(&page).into_iter().find(|t| t.contains("plan mine()")).unwrap();
    let with = |from: &str, to: &str| {
        let found = findings(&text.replace(from, to));
        found.iter().map(|d| (d.code, d.message.clone(), d.help.clone())).collect::<Vec<_>>()
    };
    let one = |m: &str, h: &str| vec![("rule-matches-nothing", m.to_string(), Some(h.to_string()))];
    let wrong = one("`layers.wqq` is not a parameter of the model", "did you mean `layers.wq`?");
    assert_eq!(with("layers[*].wq:", "layers[*].wqq:"), wrong);
    let wrong = one("parameter `layers.wq` has no dim `kv`", "its dims are d, q, hd");
    assert_eq!(with("layers[*].wq: [d, q@tp, hd]", "layers[*].wq: [d, kv@tp, hd]"), wrong);
}
