//! `docs/std.md` is what the standard library says of itself: module headers, signatures, comments.
//!
//! `NRL_BLESS=1 cargo test -p nrl-lower --test library` writes the page anew.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::fmt::Write as _;
use std::path::Path;

const INTRO: &str = "# The standard library

Everything here is written in `.nrl` and can be read, copied beside a recipe and changed: `nrlc explain std.grpo >
grpo.nrl`, then `use \"grpo.nrl\"`. Names of `std.prelude` need no `use`. [language.md](language.md) has the functions of
the language itself. This page is made from the comments in `stdlib/`.
";

/// Words that begin an item.
const ITEMS: [&str; 6] = ["fn ", "plan ", "enum ", "record ", "model ", "extern fn "];

/// The item that begins at `text`, up to its body, on one line; an enum with its variants.
fn signature(text: &str) -> String {
    let whole = text.starts_with("enum ");
    let mut depth = 0;
    let mut end = text.len();
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' | '=' | '\n' if depth == 0 && !whole => {
                end = i;
                break;
            }
            '}' if whole => {
                end = i + 1;
                break;
            }
            _ => {}
        }
    }
    let line = text[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("( ", "(").replace(" )", ")")
}

/// One module: its header, then each item with its comment.
fn section(name: &str, text: &str) -> String {
    let mut out = format!("\n## {name}\n");
    let mut comment: Vec<&str> = vec![];
    let mut at = 0;
    for line in text.lines() {
        let rest = &text[at..];
        at += line.len() + 1;
        if let Some(words) = line.strip_prefix("## ") {
            comment.push(words);
        } else if ITEMS.iter().any(|w| line.starts_with(w)) {
            let _ = write!(out, "\n- `{}`", signature(rest));
            if !comment.is_empty() {
                let _ = write!(out, "\n  {}", comment.join("\n  "));
            }
            comment.clear();
        } else if line.is_empty() && !comment.is_empty() {
            let _ = write!(out, "\n{}\n", comment.join("\n"));
            comment.clear();
        }
    }
    out.push('\n');
    out
}

#[test]
fn the_page_of_the_standard_library_is_up_to_date() {
    let mut page = INTRO.to_string();
    for (name, text) in nrl_lower::STD {
        page += &section(name, text);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/std.md");
    if std::env::var_os("NRL_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "run `NRL_BLESS=1 cargo test -p nrl-lower --test library` and read the difference";
    assert!(found == page, "docs/std.md is not what stdlib/ says; {how}");
}

#[test]
fn the_library_and_the_examples_are_in_the_standard_layout() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let examples = std::fs::read_dir(folder).unwrap().filter_map(|e| {
        let path = e.unwrap().path();
        let nrl = path.extension().is_some_and(|x| x == "nrl");
        nrl.then(|| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()))
    });
    let library = nrl_lower::STD.iter().map(|(name, text)| (name.to_string(), text.to_string()));
    for (name, text) in library.chain(examples) {
        let formatted = nrl_syntax::print::format(&text).unwrap();
        assert!(formatted == text, "{name} is not in the standard layout: run `nrlc fmt`");
    }
}
