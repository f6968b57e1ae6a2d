//! Laws of the formatter and the parser, on the corpus and on damaged copies of it.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::path::PathBuf;

use nrl_base::SourceId;
use proptest::prelude::*;

use super::format;
use crate::lex::{TokenKind, lex};
use crate::parse::parse;

fn corpus(kind: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/lang").join(kind);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus exists")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "nrl"))
        .map(|path| {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
            (name.unwrap_or_default(), std::fs::read_to_string(&path).expect("text"))
        })
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The tree as text, without positions.
fn tree(text: &str) -> String {
    let (file, problems) = parse(SourceId(0), text);
    assert!(problems.is_empty(), "{problems:?} in\n{text}");
    let shown = format!("{:?}", file.items);
    let mut out = String::new();
    let mut rest = shown.as_str();
    while let Some(at) = rest.find('@') {
        out.push_str(&rest[..at]);
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        let after = &rest[at + 1..];
        let span = after.find(|c| !digits(c)).unwrap_or(after.len());
        if span == 0 {
            out.push('@');
        }
        rest = &after[span..];
    }
    out + rest
}

fn comments(text: &str) -> Vec<String> {
    let tokens = lex(SourceId(0), text).tokens;
    let comments = tokens.iter().filter(|token| token.kind == TokenKind::Comment);
    comments.map(|token| token.text(text).trim_end().to_string()).collect()
}

/// What must hold of every text that parses.
fn laws(text: &str) {
    let once = format(text).expect("parses");
    let twice = format(&once).unwrap_or_else(|found| panic!("{found:?} in\n{once}"));
    assert_eq!(once, twice, "not stable, from\n{text}");
    assert_eq!(tree(text), tree(&once), "another tree, from\n{text}\nto\n{once}");
    assert_eq!(comments(text), comments(&once), "comments of\n{text}\nto\n{once}");
    assert!(!once.contains("\n\n\n"), "two empty lines in\n{once}");
    assert!(once.lines().all(|line| line.trim_end() == line), "blanks at a line's end in\n{once}");
}

#[test]
fn the_corpus_is_formatted() {
    for (name, text) in corpus("ok") {
        laws(&text);
        assert_eq!(format(&text).as_deref(), Ok(text.as_str()), "{name} is not formatted");
    }
}

#[test]
fn a_text_with_errors_is_not_formatted() {
    for (_, text) in corpus("bad") {
        assert!(format(&text).is_err());
    }
}

#[test]
fn blanks_follow_the_grammar() {
    let cases = [
        ("x=-1", "x = -1\n"),
        ("x = a-  1", "x = a - 1\n"),
        ("x = f ( a , b:2 ) [ i ] . c", "x = f(a, b: 2)[i].c\n"),
        ("x = 8192tokens/microbatch", "x = 8192 tokens/microbatch\n"),
        ("x = a/b", "x = a / b\n"),
        ("x = 5 % of y", "x = 5 % of y\n"),
        ("x = 0 .. 1", "x = 0..1\n"),
        ("x = {a :1 , b: 2 }", "x = {a: 1, b: 2}\n"),
        ("x = a@b", "x = a @ b\n"),
        ("fn f(x:f32[tok @ dp]) -> int? = 1", "fn f(x: f32[tok@dp]) -> int? = 1\n"),
        ("plan p { tok:@dp @cp on x if c; }", "plan p { tok: @dp @cp on x if c }\n"),
        ("mesh m = g axes(tp:2)", "mesh m = g axes (tp: 2)\n"),
        ("x = a with(b: 1)", "x = a with (b: 1)\n"),
        ("x = (a,b) -> a", "x = (a, b) -> a\n"),
        ("x = not(a)", "x = not (a)\n"),
        ("x = layers[*].w[d->e]", "x = layers[*].w[d -> e]\n"),
    ];
    for (from, to) in cases {
        assert_eq!(format(from).as_deref(), Ok(to));
        laws(from);
    }
}

#[test]
fn comments_stay_where_they_are() {
    let text = "# top\n\n\n\n## doc\nfn f() {  # why\n  # inside\n\n  x = 1 # one\n  long = 2 # two\n\n  # last\n}\n# end";
    let want = "# top\n\n## doc\nfn f() {  # why\n  # inside\n\n  x    = 1  # one\n  long = 2  # two\n\n  # last\n}\n# end\n";
    assert_eq!(format(text).as_deref(), Ok(want));
    laws(text);
}

#[test]
fn a_leading_minus_keeps_its_meaning() {
    laws("fn f() {\n  x = a\n  -b\n}\n");
    laws("fn f() {\n  a\n    - b\n}\n");
    let (one, _) = parse(SourceId(0), "fn f() {\n  a\n  - b\n}\n");
    let (two, _) = parse(SourceId(0), "fn f() {\n  a\n  -b\n}\n");
    assert_ne!(one, two);
}

/// Puts one of some harmless things between tokens, where the line structure allows it.
fn stretched(text: &str, picks: &[u8]) -> String {
    let tokens = lex(SourceId(0), text).tokens;
    let mut out = String::new();
    let mut open: Vec<&str> = Vec::new();
    let mut end = 0;
    for (at, token) in tokens.iter().enumerate() {
        out.push_str(&text[end..token.start]);
        let word = token.text(text);
        let loose = matches!(open.last(), Some(&"(" | &"["));
        let unit = at > 0 && matches!(tokens[at - 1].text(text), "/") || word == "/";
        match picks[at % picks.len()] % 16 {
            0 | 1 if !unit && token.kind != TokenKind::Comment => out.push_str("   "),
            2 if loose && token.kind == TokenKind::Word && !unit => out.push_str("\n \n"),
            3 if loose && token.kind == TokenKind::Word && !unit => out.push_str(" # note\n"),
            4 if token.kind == TokenKind::Newline => out.push_str("\n\n\n"),
            5 if token.kind == TokenKind::Newline => out.push_str("   "),
            _ => {}
        }
        out.push_str(word);
        match token.kind {
            TokenKind::Open => open.push(word),
            TokenKind::Close => {
                open.pop();
            }
            _ => {}
        }
        end = token.end;
    }
    out + &text[end..]
}

/// Everything on as few lines as it can stand on.
fn squeezed(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let code = line.split(" #").next().unwrap_or("").trim();
        if code.starts_with('#') || code.is_empty() {
            continue;
        }
        let glue =
            if out.ends_with('{') || code.starts_with('}') || out.is_empty() { " " } else { "; " };
        let continues =
            code.starts_with(['|', '+']) || code.starts_with("with") || out.ends_with(',');
        out.push_str(
            if continues || out.ends_with(['(', '[', '=']) || code.starts_with([')', ']']) {
                " "
            } else {
                glue
            },
        );
        out.push_str(code);
    }
    out
}

#[test]
fn long_lines_are_broken_and_stay_stable() {
    for (_, text) in corpus("ok") {
        let text = squeezed(&text);
        laws(&text);
    }
}

/// Tokens that make programs which nearly parse.
const SOUP: [&str; 44] = [
    "recipe r ",
    "fn f(x: int) ",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "\n",
    "\n",
    ";",
    ",",
    ":",
    "=",
    "->",
    "x",
    "y.z",
    "1",
    "2.5 s",
    "\"t\"",
    "if ",
    "then ",
    "else ",
    "for l in ",
    "match ",
    "step ",
    "+",
    "-",
    " - ",
    "@",
    "..",
    "|",
    "not ",
    "some ",
    "none",
    "with ",
    "update p by o minimising ",
    "rest",
    "# c\n",
    "## d\n",
    "%",
    "run 5 steps",
    "model m ",
    "param w: [d] from \"a\"",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stretched_programs_obey_the_laws(file in 0usize..64, picks in prop::collection::vec(any::<u8>(), 97)) {
        let files = corpus("ok");
        let (_, text) = &files[file % files.len()];
        laws(&stretched(text, &picks));
    }

    #[test]
    fn damaged_programs_give_errors_not_panics(file in 0usize..64, cut in any::<prop::sample::Index>(), length in 0usize..40) {
        let files = corpus("ok");
        let text = &files[file % files.len()].1;
        let floor = |at: usize| (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let from = floor(cut.index(text.len()));
        let to = floor((from + length).min(text.len()));
        let damaged = format!("{}{}", &text[..from], &text[to..]);
        if parse(SourceId(0), &damaged).1.is_empty() {
            laws(&damaged);
        }
    }

    #[test]
    fn soup_gives_errors_not_panics(picks in prop::collection::vec(0usize..SOUP.len(), 0..60)) {
        let text: String = picks.iter().map(|pick| SOUP[*pick]).collect();
        let (_, problems) = parse(SourceId(0), &text);
        for problem in &problems {
            let span = problem.span().expect("a place");
            prop_assert!(span.end as usize <= text.len(), "{problem:?} in {text:?}");
            prop_assert!(text.get(span.range()).is_some(), "{problem:?} in {text:?}");
        }
        if problems.is_empty() {
            laws(&text);
        }
    }

    #[test]
    fn any_text_gives_errors_not_panics(text in "\\PC{0,80}") {
        let (_, problems) = parse(SourceId(0), &text);
        for problem in &problems {
            prop_assert!(text.get(problem.span().expect("a place").range()).is_some());
        }
    }
}

/// A semicolon that begins a line is dropped, and the words above what follows stay its words.
#[test]
fn words_beside_idle_semicolons_stay_where_they_are() {
    let body = "fn f(x: float) -> float = x\n";
    for start in [";## d\n", ";;## d\n", "## d\n;\n", "; ## d\n", "## d\n;", "## d\n;\n## e\n"] {
        let text = format!("{start}{body}");
        let printed = format(&text).expect("it is formatted");
        assert_eq!(tree(&text), tree(&printed), "{text:?} became {printed:?}");
    }
}
