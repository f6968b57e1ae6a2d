//! The pages of `docs/errors` tell the truth: the first `nrl` block of a page raises its code and
//! nothing else, the blocks after it are the fix and raise nothing.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nrl_base::{Diagnostic, SourceMap};
use nrl_lower::{Options, lower_every};

/// Codes of phases after elaboration, which the driver's tests raise; their examples elaborate.
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

/// Codes of reading the file; tested where files are read.
const READING: &[&str] = &[
    "bad-escape",
    "bad-number",
    "file-too-large",
    "nesting-too-deep",
    "not-utf8",
    "syntax",
    "unbalanced-bracket",
    "unknown-character",
    "unterminated-text",
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The blocks of a page fenced as `kind`, in order.
fn blocks(page: &str, kind: &str) -> Vec<String> {
    let open = format!("```{kind}\n");
    let parts = page.split(open.as_str()).skip(1);
    parts.map(|p| p.split("```").next().unwrap_or("").to_string()).collect()
}

/// What elaborating `text` finds. A first line `# --set path=value` is an override.
fn findings(text: &str) -> Vec<Diagnostic> {
    let mut files = BTreeMap::new();
    files.insert("example.nrl".to_string(), text.to_string());
    let sets = text.lines().filter_map(|l| l.strip_prefix("# --set ").map(str::to_string));
    let options = Options { sets: sets.collect(), ..Options::default() };
    let (_, problems) = lower_every(&files, &mut SourceMap::new(), "example.nrl", &options);
    problems.into_sorted()
}

fn shown(found: &[Diagnostic]) -> String {
    let line = |d: &Diagnostic| format!("{}: {} (help: {:?})", d.code, d.message, d.help);
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_first_example_of_a_page_raises_its_code_and_the_fix_nothing() {
    let mut wrong = vec![];
    let mut tested = 0;
    for (slug, _) in nrl_base::codes::CODES {
        if READING.contains(slug) {
            continue;
        }
        let path = docs().join(format!("errors/{slug}.md"));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{slug}: {e}"));
        for (i, block) in blocks(&page, "nrl").iter().enumerate() {
            let mut found = findings(block);
            // Examples of other codes are fragments: not all they bind is used.
            found.retain(|d| d.code == *slug || d.code != "setting-has-no-effect");
            // What cannot run yet may still be right.
            found.retain(|d| d.code == *slug || d.severity != nrl_base::Severity::Note);
            let raises = i == 0 && !LATER.contains(slug);
            let right = match raises {
                true => found.len() == 1 && found[0].code == *slug,
                false => found.is_empty(),
            };
            if !right {
                wrong.push(format!("{slug}, block {i}:\n{}", shown(&found)));
            }
            if raises
                && found.first().is_some_and(|d| d.labels.is_empty())
                && found[0].code == *slug
            {
                wrong.push(format!("{slug} does not say where"));
            }
            tested += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(tested > 40, "only {tested} examples found");
}

#[test]
fn every_page_says_what_why_and_how_to_fix() {
    for (slug, _) in nrl_base::codes::CODES {
        let page = std::fs::read_to_string(docs().join(format!("errors/{slug}.md"))).unwrap();
        assert!(page.starts_with(&format!("# {slug}\n")), "{slug}: the title is the code");
        for part in ["## Why it is a", "## Example", "## Fix"] {
            assert!(page.contains(part), "{slug} has no part {part:?}");
        }
    }
}

/// A range that numbers are compared with goes up; two bounds of a clip are no such range.
#[test]
fn a_range_the_wrong_way_round_is_told_what_to_write() {
    let body = "  run 1 step\n  policy = models.llama({hidden_size: 8, intermediate_size: 16, \
                num_hidden_layers: 1, num_attention_heads: 2}, tokens: characters(\"01$_\", end: \"$\", \
                pad: \"_\"), context: 16 tokens)\n  sampler = generator(policy)\n  \
                rows = data.made(100 rows, i -> {prompt: \"1\", answer: \"0\"})\n  \
                step { s = sampler.generate(rows.take(8 prompts), 4 samples/prompt) }\n";
    let recipe = |params: &str, more: &str| {
        format!("use std.{{data, models}}\n\nrecipe r{params} {{\n{more}{body}}}\n")
    };
    let told = |text: String| {
        let found = findings(&text);
        found.iter().map(|d| (d.code, d.message.clone(), d.help.clone())).collect::<Vec<_>>()
    };
    let one =
        |what: &str, help: &str| vec![("out-of-range", what.to_string(), Some(help.to_string()))];
    let reversed = one("no number is in 10..2", "write `2..10`");
    assert_eq!(told(recipe("(k: int in 10..2 = 3)", "  require k > 0\n")), reversed);
    let matched = "  k = match 3 {\n    10..2 -> 1\n    _ -> 2\n  }\n  require k > 0\n";
    assert_eq!(told(recipe("", matched)), reversed);
    assert_eq!(told(recipe("(k: int in 2..10 = 3)", "  require k > 0\n")), vec![]);
    assert_eq!(told(recipe("(k: int in 3..3 = 3)", "  require k > 0\n")), vec![]);
}
