//! The tutorial tells the truth: its files check, its mistakes raise what it says, its commands are
//! commands on files it has.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;

use nrl_base::Severity;
use nrl_ide::checking::{Options, check};

const COMMANDS: [&str; 7] = ["check", "run", "test", "diff", "plan", "import", "explain"];

/// The fenced blocks of the page: kind and text.
fn blocks() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial.md");
    let page = std::fs::read_to_string(path).expect("the tutorial is there");
    let mut out = vec![];
    for (i, part) in page.split("\n```").enumerate() {
        if i % 2 == 1 {
            let (kind, text) = part.split_once('\n').expect("a kind, then lines");
            out.push((kind.to_string(), format!("{text}\n")));
        }
    }
    out
}

#[test]
fn every_block_of_the_tutorial_holds() {
    let mut files = BTreeMap::from([(
        "train.jsonl".to_string(),
        "{\"question\": \"1+1?\", \"answer\": \"2\"}\n".repeat(64),
    )]);
    let blocks = blocks();
    let mut seen = BTreeMap::<&str, usize>::new();
    for (i, (kind, text)) in blocks.iter().enumerate() {
        *seen.entry(kind).or_default() += 1;
        match kind.as_str() {
            "nrl" | "yaml" => {
                let name = text.lines().next().and_then(|l| l.strip_prefix("# ")).expect("a name");
                files.insert(name.to_string(), text.clone());
                let (checked, _) = check(&files, name, &Options::default());
                let found: Vec<String> = checked
                    .findings
                    .iter()
                    .filter(|d| d.severity != Severity::Note)
                    .map(|d| format!("{}[{}]: {}", d.severity.word(), d.code, d.message))
                    .collect();
                let told =
                    blocks.get(i + 1).filter(|(k, t)| k == "text" && t.starts_with("error["));
                match told {
                    Some((_, told)) => {
                        assert!(
                            found.iter().any(|f| f.starts_with(told.trim())),
                            "{name}: {found:#?}"
                        );
                    }
                    None => assert!(found.is_empty(), "{name}: {found:#?}"),
                }
                if kind == "nrl" {
                    assert_eq!(
                        nrl_syntax::print::format(text).as_ref(),
                        Ok(text),
                        "{name}: `nrlc fmt`"
                    );
                }
            }
            "console" => {
                for line in text.lines() {
                    let words: Vec<&str> = line.split(' ').collect();
                    assert_eq!(words[..2], ["$", "nrlc"], "{line}");
                    assert!(COMMANDS.contains(&words[2]), "{line}");
                    let known =
                        words[3..].iter().filter(|w| w.ends_with(".nrl") || w.ends_with(".yaml"));
                    let made = line.split(" -o ").nth(1);
                    for file in known.filter(|f| Some(**f) != made) {
                        assert!(files.contains_key(*file), "{line}: there is no {file}");
                    }
                }
            }
            "text" => {}
            other => panic!("a block of kind `{other}`"),
        }
    }
    assert!(seen["nrl"] >= 7 && seen["yaml"] == 1 && seen["console"] >= 5, "{seen:?}");
}
