//! `nrlc check` from outside: exit codes, formats, accepted findings.

use crate::support::Bench;

const GOOD: &str = "use std.{data}\n\nrecipe r {\n  rows = data.made(9 rows, i -> {prompt: \"1\", answer: \"2\"})\n  \
                    step {\n    b = rows.take(8 prompts)\n  }\n}\n";

/// The good recipe with a unit that does not exist, on line 6.
fn bad() -> String {
    GOOD.replace("8 prompts", "8 prompst")
}

#[test]
fn several_files_in_one_process_and_three_exit_codes() {
    let b = Bench::new();
    b.write("good.nrl", GOOD).write("bad.nrl", bad());
    let both = b.run(&["check", "good.nrl", "bad.nrl", "good.nrl"]);
    assert_eq!(both.code, Some(1), "{}", both.err);
    assert_eq!(both.err.matches("error[unknown-unit]").count(), 1, "{}", both.err);
    assert_eq!(both.out.matches("good.nrl: ok in").count(), 2, "{}", both.out);
    assert!(both.out.contains("3 files, 1 with errors"), "{}", both.out);
    // What can be checked is checked beside a file that is not there.
    let missing = b.run(&["check", "bad.nrl", "nothing.nrl"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.err.contains("error[unknown-unit]"), "{}", missing.err);
    for wrong in [["--format", "xml"], ["--deny", "notes"], ["--baseline", "nothing.json"]] {
        assert_eq!(b.run(&["check", "good.nrl", wrong[0], wrong[1]]).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn warnings_fail_only_where_they_are_denied() {
    let b = Bench::new();
    b.write("a.nrl", format!("# nrlc: allow(unknown-unit) nothing to accept\n{GOOD}"));
    assert_eq!(b.run(&["check", "a.nrl"]).code, Some(0));
    let denied = b.run(&["check", "a.nrl", "--deny", "warnings"]);
    assert_eq!(denied.code, Some(1));
    assert!(denied.err.contains("warning[unused-allow]"), "{}", denied.err);
}

#[test]
fn findings_are_accepted_beside_them_or_in_a_baseline() {
    let b = Bench::new();
    b.write("bad.nrl", bad());
    b.write("ours.nrl", bad().replace("prompst)", "prompst)  # nrlc: allow(unknown-unit) a test"));
    let ours = b.run(&["check", "ours.nrl"]);
    assert_eq!((ours.code, ours.err.as_str()), (Some(0), ""));
    assert!(ours.out.contains("ours.nrl: 1 accepted"), "{}", ours.out);
    b.run(&["check", "bad.nrl", "--write-baseline", "base.json"]).succeeds();
    let accepted = b.run(&["check", "bad.nrl", "--baseline", "base.json", "--deny", "warnings"]);
    assert_eq!(accepted.code, Some(1), "a reason is missing: {}", accepted.err);
    let text = std::fs::read_to_string(b.path("base.json")).unwrap();
    b.write("base.json", text.replace("\"reason\": \"\"", "\"reason\": \"a test\""));
    b.run(&["check", "bad.nrl", "--baseline", "base.json", "--deny", "warnings"]).succeeds();
    b.write("bad.nrl", GOOD);
    let stale = b.run(&["check", "bad.nrl", "--baseline", "base.json", "--deny", "warnings"]);
    assert_eq!(stale.code, Some(0), "a note is no warning: {}", stale.err);
    assert!(stale.err.contains("note[stale-baseline]"), "{}", stale.err);
}

#[test]
fn machines_read_standard_output_alone() {
    let b = Bench::new();
    b.write("bad.nrl", bad());
    let json = b.run(&["check", "bad.nrl", "--format", "json"]);
    assert_eq!((json.code, json.err.as_str()), (Some(1), ""));
    let lines: Vec<serde_json::Value> =
        json.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["code"], lines[0]["line"].as_u64()), (&"unknown-unit".into(), Some(6)));
    assert_eq!(lines[0]["fix"]["replacement"], "prompts");
    assert_eq!(lines[2]["exit"], 1);
    let sarif = b.run(&["check", "bad.nrl", "--format", "sarif"]);
    let log: serde_json::Value = serde_json::from_str(&sarif.out).unwrap();
    assert_eq!(log["runs"][0]["results"][0]["ruleId"], "unknown-unit");
    let github = b.run(&["check", "bad.nrl", "--format", "github"]);
    assert!(github.out.starts_with("::error file=bad.nrl,line=6,col="), "{}", github.out);
}

#[test]
fn a_narrow_pipe_gets_narrow_text() {
    let b = Bench::new();
    b.write(
        "bad.nrl",
        "recipe r(lr = 1e-3) {\n  step { x = lr + some_name_that_is_not_there_and_long }\n}\n",
    );
    let o = b.command().env("COLUMNS", "50").args(["check", "bad.nrl"]).output().unwrap();
    let err = String::from_utf8_lossy(&o.stderr).into_owned();
    let head = err.lines().next().unwrap();
    assert!(head.chars().count() <= 60, "{err}");
}
