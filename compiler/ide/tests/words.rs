//! The lists of words are the grammar's.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeSet;
use std::path::Path;

use nrl_ide::words::{INSIDE, ITEMS, RESERVED, STATEMENTS};

/// Every text of letters in the rules `kw_..`, in `reserved`, and of the word operators.
fn grammar() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../grammar");
    let mut out = BTreeSet::new();
    let mut reserved = false;
    for file in ["lexical", "types", "exprs", "stmts", "items"] {
        let text =
            std::fs::read_to_string(folder.join(format!("{file}.pest"))).expect("the grammar");
        for line in text.lines() {
            reserved = line.starts_with("reserved") || reserved && !line.starts_with('}');
            let operators = file == "exprs" && line.contains("!ident_char");
            if line.starts_with("kw_") || reserved || operators {
                let quoted = line.split('"').skip(1).step_by(2);
                let words =
                    quoted.filter(|w| w.len() > 1 && w.chars().all(|c| c.is_ascii_lowercase()));
                out.extend(words.map(str::to_string));
            }
        }
    }
    out
}

#[test]
fn editors_know_every_word_of_the_grammar_and_no_other() {
    let lists = RESERVED.iter().chain(&ITEMS).chain(&STATEMENTS).chain(&INSIDE);
    let known: BTreeSet<String> = lists.map(|w| w.to_string()).collect();
    let grammar = grammar();
    let missing: Vec<_> = grammar.difference(&known).collect();
    let extra: Vec<_> = known.difference(&grammar).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, extra {extra:?}");
}

fn editor(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../editors");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn words() -> BTreeSet<String> {
    RESERVED.iter().chain(&ITEMS).chain(&STATEMENTS).chain(&INSIDE).map(|w| w.to_string()).collect()
}

#[test]
fn vim_colors_every_word_once() {
    let text = editor("vim/syntax/nrl.vim");
    let groups = ["Control", "Operator", "Constant", "Item", "Statement", "Inside"];
    let lines = groups.map(|g| format!("syntax keyword nrl{g} "));
    let found: Vec<String> = text
        .lines()
        .filter_map(|l| lines.iter().find_map(|g| l.strip_prefix(g.as_str())))
        .flat_map(|l| l.split_whitespace().map(str::to_string))
        .collect();
    assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), words());
    assert_eq!(found.len(), words().len(), "a word is in two groups");
}

#[test]
fn vs_code_colors_every_word_once() {
    let text = editor("vscode/syntaxes/nrl.tmLanguage.json");
    let grammar: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let groups = ["control", "operator", "constant", "item", "statement", "inside"];
    let found: Vec<String> = groups
        .iter()
        .flat_map(|g| {
            let pattern = grammar["repository"][g]["match"].as_str().expect("a pattern");
            let words =
                pattern.strip_prefix(r"\b(").and_then(|p| p.strip_suffix(r")\b")).expect("words");
            words.split('|').map(str::to_string).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), words());
    assert_eq!(found.len(), words().len(), "a word is in two groups");
    // What the patterns include exists.
    for pattern in grammar["patterns"].as_array().expect("patterns") {
        let name = pattern["include"].as_str().and_then(|i| i.strip_prefix('#')).expect("a name");
        assert!(!grammar["repository"][name].is_null(), "{name}");
    }
}
