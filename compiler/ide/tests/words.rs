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
