//! The corpus `tests/lang`, the pages `docs/errors`, and the limits.
//!
//! A file of `bad` ends with its findings, one a line: `#> line:column code: headline`.
//! `NRL_BLESS=1` writes them anew; read the difference.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nrl_base::{Diagnostic, SourceId, SourceMap};
use nrl_syntax::{LARGEST, parse, parse_bytes};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).expect("the folder exists");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|ext| ext == ending)).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

fn listed(text: &str, found: &[Diagnostic]) -> Vec<String> {
    let mut sources = SourceMap::new();
    let id = sources.add("", text);
    let line = |d: &Diagnostic| {
        let source = sources.get(id).expect("added");
        let at = source.position(d.span().map_or(0, |span| span.start as usize));
        format!("#> {}:{} {}: {}", at.line, at.column, d.code, d.message)
    };
    found.iter().map(line).collect()
}

#[test]
fn good_files_parse_without_findings() {
    for path in files("tests/lang/ok", "nrl") {
        let bytes = std::fs::read(&path).expect("readable");
        let (file, found) = parse_bytes(SourceId(0), &bytes);
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
        assert!(!file.items.is_empty());
    }
}

#[test]
fn bad_files_give_the_findings_they_list() {
    for path in files("tests/lang/bad", "nrl") {
        let text = std::fs::read_to_string(&path).expect("text");
        let body: String =
            text.lines().filter(|l| !l.starts_with("#>")).map(|l| format!("{l}\n")).collect();
        let (_, found) = parse(SourceId(0), &body);
        let got = listed(&body, &found);
        if std::env::var_os("NRL_BLESS").is_some() {
            std::fs::write(&path, format!("{body}{}\n", got.join("\n"))).expect("writable");
            continue;
        }
        let want: Vec<_> = text.lines().filter(|line| line.starts_with("#>")).collect();
        assert_eq!(got, want, "{}", path.display());
        assert!(got.len() > 1, "{}: several errors in one run", path.display());
    }
}

fn code_blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut parts = page.split("```nrl\n");
    parts.next();
    for part in parts {
        blocks.push(part.split("```").next().unwrap_or("").to_string());
    }
    blocks
}

#[test]
fn the_first_example_of_a_page_raises_its_code_and_the_others_nothing() {
    let of_this_crate = [
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
    for slug in of_this_crate {
        let page = std::fs::read_to_string(root().join(format!("docs/errors/{slug}.md")));
        let page = page.unwrap_or_else(|error| panic!("{slug}: {error}"));
        let blocks = code_blocks(&page);
        let first = blocks.first().unwrap_or_else(|| panic!("{slug} has no example"));
        let bytes = match slug {
            "file-too-large" => first.repeat(LARGEST / first.len() + 1).into_bytes(),
            "not-utf8" => first.chars().map(|c| c as u8).collect(),
            _ => first.clone().into_bytes(),
        };
        let (_, found) = parse_bytes(SourceId(0), &bytes);
        assert!(!found.is_empty(), "{slug} is not raised");
        assert!(found.iter().all(|d| d.code == slug), "{slug}: {found:#?}");
        for fixed in &blocks[1..] {
            let (_, found) = parse(SourceId(0), fixed);
            assert!(found.is_empty(), "{slug}: the fix has findings {found:#?}");
        }
    }
}

fn only(bytes: &[u8]) -> Diagnostic {
    let start = Instant::now();
    let (_, mut found) = parse_bytes(SourceId(0), bytes);
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn ten_thousand_parentheses_give_one_error() {
    for closed in [0, 10_000, 9_999] {
        let text = format!("x = {}1{}\n", "(".repeat(10_000), ")".repeat(closed));
        assert_eq!(only(text.as_bytes()).code, "nesting-too-deep");
    }
}

const BRACED: &str = "\
recipe r {
  run 3 steps
  policy = models.load(\"m\", dtype: bf16)
  step {
    b = rows.take(8 samples)
    update policy by opt in 1 update, minimising {
      sft.nll(policy, b)
    }
  }
  every 2 steps {
    checkpoint keep 1
  }
}

fn f(x: float) -> float {
  if x > 0 { x } else { 0 }
}
";

/// One more `}`, behind a line or on one of its own: one error, and what stands around it is read.
#[test]
fn one_brace_too_many_is_one_error() {
    let lines: Vec<&str> = BRACED.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, l)| !l.is_empty()) {
        let indent = " ".repeat(line.len() - line.trim_start().len());
        for more in [format!("{line} }}"), format!("{line}\n{indent}}}")] {
            let mut edited: Vec<&str> = lines.clone();
            edited[at] = &more;
            let text = edited.join("\n") + "\n";
            let (file, found) = parse(SourceId(0), &text);
            assert_eq!(found.len(), 1, "{text}\n{found:#?}");
            assert_eq!(found[0].message, "`}` closes nothing", "{text}");
            assert_eq!(file.items.len(), 2, "{text}");
            // The brace that is meant, or one that could be left out as well.
            let span = found[0].span().expect("a place");
            let wrong = text[..span.start as usize].matches('\n').count();
            let near = [at, at + 1].contains(&wrong)
                || text.lines().nth(wrong).is_some_and(|l| l.trim() == "}");
            assert!(near, "line {wrong}, not {at}\n{text}");
        }
    }
    // At the margin it looks like the end of the item, and what follows is indented.
    let (_, found) = parse(SourceId(0), &BRACED.replacen("  step {", "}\n  step {", 1));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].span().map(|s| s.start as usize), BRACED.find("  step {"));
}

#[test]
fn depth_without_brackets_is_bounded_too() {
    let deep = [
        "x = ".to_string() + &"-".repeat(100_000) + "1",
        "x = ".to_string() + &"not ".repeat(100_000) + "a",
        "x = ".to_string() + &"if a then b else ".repeat(50_000) + "c",
        "x = ".to_string() + &"a -> ".repeat(50_000) + "c",
        "x = ".to_string() + &"some ".repeat(50_000) + "c",
        "x = 2".to_string() + &" ^ 2".repeat(50_000),
        "x = 1".to_string() + &" + 1".repeat(100_000),
        "x = a".to_string() + &".b".repeat(100_000),
        "x = a".to_string() + &"[0]".repeat(100_000),
        "fn f(x: int".to_string() + &"?".repeat(100_000) + ") = x",
    ];
    for text in deep {
        assert_eq!(only(text.as_bytes()).code, "nesting-too-deep", "{}", &text[..40]);
    }
}

#[test]
fn the_deepest_legal_nesting_parses_on_a_small_stack() {
    let legal = [
        format!("x = {}1{}\n", "(".repeat(128), ")".repeat(128)),
        format!("x = {}1{}\n", "{ ".repeat(128), " }".repeat(128)),
        format!("x = {}1{}\n", "f([".repeat(64), "])".repeat(64)),
        format!("x = {}1{}\n", "if a { ".repeat(64), " }".repeat(64)),
        format!("fn f(x: {}int{}) = x\n", "list(".repeat(100), ")".repeat(100)),
    ];
    for text in legal {
        let run = move || {
            let (_, found) = parse(SourceId(0), &text);
            assert!(found.is_empty(), "{found:?}");
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run).expect("a thread");
        assert!(thread.join().is_ok());
    }
}

#[test]
fn fifty_megabytes_give_one_error_at_once() {
    let bytes = b"x = 1\n".repeat(50_000_000 / 6);
    let start = Instant::now();
    let found = only(&bytes);
    assert!(start.elapsed() < Duration::from_millis(500));
    assert_eq!(found.code, "file-too-large");
    assert!(found.message.contains("50.0 MB") && found.message.contains("4 MiB"));
}

#[test]
fn bytes_that_are_not_text_give_their_place() {
    let found = only(b"a = 1\nb = \"\xff\"\n");
    assert_eq!(found.code, "not-utf8");
    assert_eq!(found.message, "byte 11 (0xff, line 2) is not UTF-8 text");
}

#[test]
fn time_grows_with_the_text_and_no_faster() {
    let recipe = std::fs::read_to_string(root().join("tests/lang/ok/01-grpo.nrl")).expect("text");
    let seconds = |copies: usize| {
        let text = recipe.repeat(copies);
        let start = Instant::now();
        let (_, found) = parse(SourceId(0), &text);
        assert!(found.is_empty());
        start.elapsed().as_secs_f64()
    };
    seconds(20);
    let (small, large) = (seconds(40), seconds(320));
    assert!(large < 8.0 * 6.0 * small + 0.5, "40 copies {small} s, 320 copies {large} s");
}
