//! Accepting findings, edits made of their help, and their formats.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, SourceMap, Span};
use nrl_driver::{Options, compile};
use nrl_ide::findings::{self, Baseline, By, Checked, accept, fix};

/// A file whose lines hold findings: each line with `BAD` has one of code `unknown-name`.
fn checked(file: &str, text: &str) -> Checked {
    let mut sources = SourceMap::new();
    let id = sources.add(file, text);
    let found = text.match_indices("BAD").map(|(at, _)| {
        Diagnostic::warning("unknown-name", "there is no `BAD` here")
            .label(Span::new(id, at, at + 3), "not found")
    });
    let findings = found.collect();
    Checked { file: file.into(), sources, findings, ..Checked::default() }
}

fn codes(c: &Checked) -> Vec<&str> {
    c.findings.iter().map(|d| d.code).collect()
}

#[test]
fn a_comment_accepts_what_its_line_or_the_next_one_holds() {
    let text = "\
a: BAD # nrlc: allow(unknown-name) ours
# nrlc: allow(unknown-name) two lines, one reason
# and another comment

b: BAD
c: BAD
d: \"# nrlc: allow(unknown-name) a text\" # BAD
e: don't # nrlc: allow(unknown-name): BAD reason
";
    let mut all = [checked("a.yaml", text)];
    accept(&mut all, None);
    let [c] = &all;
    let reasons: Vec<&str> = c.accepted.iter().map(|a| a.reason.as_str()).collect();
    assert_eq!(reasons, ["ours", "two lines, one reason", "BAD reason"]);
    assert!(c.accepted.iter().all(|a| a.by == By::Comment));
    // Lines 6 and 7 keep theirs.
    let lines: Vec<String> =
        c.findings.iter().map(|d| c.sources.place(d.span().unwrap())).collect();
    assert_eq!(lines, ["a.yaml:6:4", "a.yaml:7:43"]);
}

#[test]
fn a_comment_without_reason_or_finding_is_reported() {
    let mut all = [checked(
        "a.nrl",
        "x = BAD # nrlc: allow(unknown-name)\ny = 1 # nrlc: allow(unknown-nmae) why\n",
    )];
    accept(&mut all, None);
    assert_eq!(codes(&all[0]), ["allow-without-reason", "unused-allow"]);
    assert_eq!(all[0].findings[1].help.as_deref(), Some("did you mean `unknown-name`?"));
    let edit = fix(&all[0].findings[1], &all[0].sources).unwrap();
    assert_eq!(
        (all[0].sources.text(edit.span), edit.text.as_str()),
        ("unknown-nmae", "unknown-name")
    );
}

#[test]
fn what_cannot_be_read_cannot_be_accepted() {
    let mut sources = SourceMap::new();
    let id = sources.add("a.nrl", "x = (1 # nrlc: allow(syntax) never mind\n");
    let found = Diagnostic::error("syntax", "odd").label(Span::new(id, 0, 1), "here");
    let mut all =
        [Checked { file: "a.nrl".into(), sources, findings: vec![found], ..Checked::default() }];
    accept(&mut all, None);
    assert_eq!(codes(&all[0]), ["syntax", "unused-allow"]);
}

#[test]
fn a_baseline_accepts_by_the_text_of_the_line_and_tells_what_is_stale() {
    let first = [checked("./a.yaml", "a: BAD\nb: BAD\n")];
    let mut written = Baseline::of("base.json", &first, None);
    assert_eq!(written.entries.len(), 2);
    written.entries[0].reason = "known".into();
    let read = Baseline::read("base.json", &written.json()).unwrap();
    // One line moved down, one is gone, one is new.
    let mut later = [checked("a.yaml", "# more\n  a: BAD\nc: BAD\n")];
    let about = accept(&mut later, Some(&read));
    assert_eq!(later[0].accepted.len(), 1);
    assert_eq!(later[0].accepted[0].reason, "known");
    assert_eq!(codes(&later[0]), ["unknown-name"]);
    assert_eq!(codes(&about), ["allow-without-reason", "stale-baseline"]);
    assert!(about.findings[1].labels[0].text.contains("b: BAD"));
    assert_eq!(about.sources.place(about.findings[1].span().unwrap()), "base.json:12:7");
    // Writing it anew keeps the reason and drops what is gone.
    let anew = Baseline::of("base.json", &later, Some(&read));
    let kept: Vec<(&str, &str)> =
        anew.entries.iter().map(|e| (e.text.as_str(), e.reason.as_str())).collect();
    assert_eq!(kept, [("a: BAD", "known"), ("c: BAD", "")]);
}

#[test]
fn a_file_that_is_no_baseline_is_refused() {
    for (text, why) in [
        ("[", "base.json is not JSON"),
        ("{}", "base.json is not a baseline of version 1"),
        (r#"{"version": 1}"#, "base.json has no list `findings`"),
        (
            r#"{"version": 1, "findings": [{"code": "x"}]}"#,
            "base.json: finding 1 has no text `file`",
        ),
    ] {
        let found = Baseline::read("base.json", text).unwrap_err();
        assert!(found.starts_with(why), "{found}");
    }
}

/// The findings of a recipe in memory.
fn compiled(text: &str) -> (Vec<Diagnostic>, SourceMap) {
    let mut sources = SourceMap::new();
    let files = BTreeMap::from([("a.nrl".to_string(), text.to_string())]);
    let (_, found) = compile(&files, &mut sources, "a.nrl", &Options::default());
    (found, sources)
}

#[test]
fn help_becomes_an_edit_where_it_says_one_thing() {
    let recipe = |take: &str| {
        format!(
            "use std.{{data}}\n\nrecipe r {{\n  problems = data.made(9 rows, i -> {{prompt: \"é\", answer: \"2\"}})\n  step {{\n    b = {take}\n  }}\n}}\n"
        )
    };
    for (wrong, right) in [
        ("problems.take(8 prompst)", "problems.take(8 prompts)"),
        ("problem.take(8 prompts)", "problems.take(8 prompts)"),
        ("problems.tkae(8 prompts)", "problems.take(8 prompts)"),
    ] {
        let (found, sources) = compiled(&recipe(wrong));
        assert_eq!(found.len(), 1, "{found:?}");
        let edit = fix(&found[0], &sources).unwrap_or_else(|| panic!("no edit for {:?}", found[0]));
        let mut text = recipe(wrong);
        text.replace_range(edit.span.range(), &edit.text);
        assert_eq!(text, recipe(right));
    }
    let mut sources = SourceMap::new();
    let id = sources.add("a.yaml", "lenght: 3\n");
    let d = Diagnostic::error("unknown-name", "odd").label(Span::new(id, 0, 6), "");
    let edit = fix(&d.help("rename it to `length`"), &sources).expect("an edit");
    assert_eq!((edit.span.range(), edit.text.as_str()), (0..6, "length"));
    // Text with a choice, or with a gap to fill, is for people.
    for help in
        ["write `a` or `b`", "write `mean(.., over: tokens)`", "write `--set x=1`", "move it"]
    {
        let mut sources = SourceMap::new();
        let id = sources.add("a.nrl", "mean(x)");
        let d = Diagnostic::error("syntax", "odd").label(Span::new(id, 0, 7), "").help(help);
        assert_eq!(fix(&d, &sources), None, "{help}");
    }
}

#[test]
fn json_lines_carry_places_in_characters() {
    let (found, sources) = compiled("é = 1\nx = \"é\" + y2\n");
    let c = Checked { file: "a.nrl".into(), findings: found, sources, ..Checked::default() };
    let out = findings::json_file(&c);
    let lines: Vec<serde_json::Value> =
        out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let first = &lines[0];
    assert_eq!(first["type"], "finding");
    assert_eq!(first["code"], "unknown-character");
    assert_eq!((first["line"].as_u64(), first["column"].as_u64()), (Some(1), Some(1)));
    assert_eq!((first["end_line"].as_u64(), first["end_column"].as_u64()), (Some(1), Some(2)));
    let file = lines.last().unwrap();
    assert_eq!((&file["type"], file["ok"].as_bool()), (&serde_json::json!("file"), Some(false)));
    let summary: serde_json::Value =
        serde_json::from_str(&findings::json_summary(&[c], 1)).unwrap();
    assert_eq!(summary["exit"], 1);
    assert_eq!(summary["errors"].as_u64(), Some(lines.len() as u64 - 1));
}

#[test]
fn annotations_are_escaped_as_github_reads_them() {
    let mut sources = SourceMap::new();
    let id = sources.add("a,b:c.yaml", "key: 100%\nother: 1\n");
    let d = Diagnostic::warning("wrong-type", "100% is\nno number")
        .label(Span::new(id, 5, 9), "here")
        .label(Span::new(id, 10, 15), "another fact")
        .help("write `1`");
    let c = Checked { file: "x.yaml".into(), sources, findings: vec![d], ..Checked::default() };
    assert_eq!(
        findings::github(&c),
        "::warning file=a%2Cb%3Ac.yaml,line=1,col=6,endColumn=10,title=nrlc wrong-type::100%25 is%0Ano number\
         %0Aa,b:c.yaml:2:1: another fact%0Ahelp: write `1`\n"
    );
}

#[test]
fn a_sarif_log_has_rules_regions_fixes_and_suppressions() {
    let mut all = [checked("dir/a b.yaml", "a: BAD # nrlc: allow(unknown-name) ours\nb: BAD\n")];
    all[0].findings[1].help = Some("did you mean `GOOD`?".into());
    accept(&mut all, None);
    let log: serde_json::Value = serde_json::from_str(&findings::sarif(&all, "1.2.3")).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "unknown-name");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let region = &results[0]["locations"][0]["physicalLocation"]["region"];
    assert_eq!((region["startLine"].as_u64(), region["startColumn"].as_u64()), (Some(2), Some(4)));
    let location = &results[0]["locations"][0]["physicalLocation"]["artifactLocation"];
    assert_eq!(location["uri"], "dir/a%20b.yaml");
    let change = &results[0]["fixes"][0]["artifactChanges"][0]["replacements"][0];
    assert_eq!(change["insertedContent"]["text"], "GOOD");
    assert_eq!(results[0]["ruleIndex"], 0);
    assert_eq!(results[1]["suppressions"][0]["justification"], "ours");
    assert_eq!(results[1]["suppressions"][0]["kind"], "inSource");
}
