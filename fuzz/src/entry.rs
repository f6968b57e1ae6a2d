//! Entry points of fuzzing: bytes in, a panic out where a law is broken.
//!
//! Each returns the codes of what was found, so that a loop without coverage can tell inputs apart.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, SourceId, SourceMap};
use nrl_ide::document::Document;
use nrl_ide::sheet::Sheet;

/// Codes of findings, in order of place.
pub type Codes = Vec<&'static str>;

/// A name and what it runs.
pub type Entry = (&'static str, fn(&[u8]) -> Codes);

/// All entry points by name.
pub const ALL: [Entry; 6] = [
    ("parse", parse),
    ("fmt", fmt),
    ("check", check),
    ("editor", editor),
    ("yaml", yaml),
    ("import", import),
];

fn codes(found: &[Diagnostic]) -> Codes {
    found.iter().map(|d| d.code).collect()
}

/// Findings point into their texts, at borders of characters.
fn inside(found: &[Diagnostic], sources: &SourceMap) {
    for d in found {
        for label in &d.labels {
            let Some(source) = sources.get(label.span.source) else { panic!("no source: {d:?}") };
            assert!(
                source.text().get(label.span.range()).is_some(),
                "a label outside of its text: {d:?}"
            );
        }
        assert!(nrl_base::codes::summary(d.code).is_some(), "no code {}", d.code);
        assert!(d.code != "internal", "{d:?}");
    }
}

/// Reads a file, and the same as an expression, a type and an override.
pub fn parse(data: &[u8]) -> Codes {
    let (_, found) = nrl_syntax::parse_bytes(SourceId(0), data);
    if let Ok(text) = std::str::from_utf8(data) {
        let mut sources = SourceMap::new();
        sources.add("a.nrl", text);
        inside(&found, &sources);
        if text.len() < 400 {
            let _ = nrl_syntax::parse_expr(SourceId(0), text);
            let _ = nrl_syntax::parse_type(SourceId(0), text);
            let _ = nrl_syntax::parse_override(SourceId(0), text);
        }
    }
    codes(&found)
}

/// The tree without its places.
fn tree(text: &str) -> String {
    let (file, _) = nrl_syntax::parse(SourceId(0), text);
    let shown = format!("{:?}", file.items);
    let mut out = String::with_capacity(shown.len());
    let mut rest = shown.as_str();
    // A span is shown as `@12..34`; in a text that says so it goes from both trees alike.
    while let Some(at) = rest.find('@') {
        out.push_str(&rest[..at]);
        rest = rest[at + 1..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    }
    out + rest
}

/// Formats: once is enough, and the meaning stays.
pub fn fmt(data: &[u8]) -> Codes {
    let Ok(text) = std::str::from_utf8(data) else { return vec!["not-utf8"] };
    match nrl_syntax::print::format(text) {
        Err(found) => codes(&found),
        Ok(once) => {
            let twice = nrl_syntax::print::format(&once);
            assert_eq!(twice.as_ref(), Ok(&once), "formatting twice is not formatting once");
            assert_eq!(tree(&once), tree(text), "formatting changes the tree");
            vec![]
        }
    }
}

/// Compiles a recipe.
pub fn check(data: &[u8]) -> Codes {
    let text = String::from_utf8_lossy(data).into_owned();
    let files = BTreeMap::from([("a.nrl".to_string(), text)]);
    let mut sources = SourceMap::new();
    let options = nrl_driver::Options::default();
    let (_, found) = nrl_driver::compile(&files, &mut sources, "a.nrl", &options);
    inside(&found, &sources);
    codes(&found)
}

/// Asks an editor's questions in the middle of a recipe.
pub fn editor(data: &[u8]) -> Codes {
    let text = String::from_utf8_lossy(data).into_owned();
    let at = (data.len() / 2..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let files = BTreeMap::from([("a.nrl".to_string(), text)]);
    let d = Document::open(&files, "a.nrl", &[]);
    let _ = (d.hover(at), d.definition(at), d.references(at), d.rename(at, "other"), d.symbols());
    let hints = d.hints(0, usize::MAX);
    let found = nrl_ide::complete(&files, "a.nrl", &[], at);
    // Not codes, but they tell inputs apart as well.
    vec![
        if hints.is_empty() { "without hints" } else { "with hints" },
        if found.len() > 200 {
            "many"
        } else if found.is_empty() {
            "none"
        } else {
            "few"
        },
    ]
}

/// What a fuzzed recipe may inherit from.
const BASE: &str = include_str!("../seeds/grpo.yaml");

/// Loads and judges a recipe of NeMo RL; a first line `#! a.b=c` is an override.
pub fn yaml(data: &[u8]) -> Codes {
    let text = String::from_utf8_lossy(data).into_owned();
    let overrides: Vec<String> = text
        .lines()
        .next()
        .and_then(|l| l.strip_prefix("#! "))
        .map(str::to_string)
        .into_iter()
        .collect();
    let middle = (text.len() / 2..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let files =
        BTreeMap::from([("a.yaml".to_string(), text), ("base.yaml".to_string(), BASE.to_string())]);
    let mut sources = SourceMap::new();
    let options = nrl_nemo::Options::default();
    let checked = nrl_nemo::check(&files, &mut sources, "a.yaml", &overrides, options);
    inside(&checked.findings, &sources);
    let sheet = Sheet::open(&files, "a.yaml");
    let _ = (sheet.hover(middle), sheet.complete(middle), sheet.definition(middle));
    codes(&checked.findings)
}

/// Imports a recipe of NeMo RL; what comes out can be read.
pub fn import(data: &[u8]) -> Codes {
    let text = String::from_utf8_lossy(data).into_owned();
    let files =
        BTreeMap::from([("a.yaml".to_string(), text), ("base.yaml".to_string(), BASE.to_string())]);
    let mut sources = SourceMap::new();
    let mut loader = nrl_nemo::Loader::new(&files);
    let (written, found) = nrl_nemo::import(&mut loader, &mut sources, "a.yaml", &[]);
    inside(&found, &sources);
    let Some(written) = written else { return codes(&found) };
    let (_, problems) = nrl_syntax::parse(SourceId(0), &written);
    assert!(problems.is_empty(), "an import cannot be read: {problems:?}\n{written}");
    // How much of it the language says, in steps.
    vec!["imported"; written.lines().count() / 8]
}
