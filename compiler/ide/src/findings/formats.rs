//! Findings for machines: JSON lines, SARIF 2.1.0, GitHub annotations.
//!
//! In: the checked files. Out: text that the command line prints as it is. Lines and columns count from
//! one, columns count characters, ends are exclusive. Field names are documented in
//! `docs/check-output.md` and do not change.

use nrl_base::{Diagnostic, Severity, Source, SourceMap, Span, codes};
use serde_json::{Map, Value, json};

use super::{Accepted, By, Checked, fix};

/// How many findings there are of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub errors: usize,
    pub warnings: usize,
    pub notes: usize,
    pub accepted: usize,
}

impl Totals {
    /// Counts one file.
    pub fn of(checked: &Checked) -> Totals {
        let count = |s| checked.findings.iter().filter(|d| d.severity == s).count();
        Totals {
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            notes: count(Severity::Note),
            accepted: checked.accepted.len(),
        }
    }

    /// Counts all files.
    pub fn sum(all: &[Checked]) -> Totals {
        all.iter().map(Totals::of).fold(Totals::default(), |a, b| Totals {
            errors: a.errors + b.errors,
            warnings: a.warnings + b.warnings,
            notes: a.notes + b.notes,
            accepted: a.accepted + b.accepted,
        })
    }
}

/// Whether a source is a file that others can open.
fn is_file(source: &Source) -> bool {
    !source.name().starts_with("--set ") && source.name() != "the command line"
}

/// The fields of a place, in order.
fn place(span: Span, sources: &SourceMap, out: &mut Map<String, Value>) {
    let Some(source) = sources.get(span.source) else { return };
    let (start, end) = (source.position(span.start as usize), source.position(span.end as usize));
    out.insert("file".into(), source.name().into());
    out.insert("line".into(), start.line.into());
    out.insert("column".into(), start.column.into());
    out.insert("end_line".into(), end.line.into());
    out.insert("end_column".into(), end.column.into());
}

/// One finding as an object.
pub fn finding_json(d: &Diagnostic, sources: &SourceMap, checked: &str) -> Value {
    let mut m = Map::new();
    m.insert("type".into(), "finding".into());
    m.insert("checked".into(), checked.into());
    m.insert("code".into(), d.code.into());
    m.insert("severity".into(), d.severity.word().into());
    m.insert("message".into(), d.message.as_str().into());
    if let Some(span) = d.span() {
        place(span, sources, &mut m);
    }
    let labels = d.labels.iter().map(|l| {
        let mut m = Map::new();
        place(l.span, sources, &mut m);
        m.insert("text".into(), l.text.as_str().into());
        Value::Object(m)
    });
    m.insert("labels".into(), labels.collect());
    m.insert("notes".into(), d.notes.iter().map(|n| Value::from(n.as_str())).collect());
    m.insert("help".into(), d.help.as_deref().into());
    m.insert(
        "fix".into(),
        fix(d, sources).map_or(Value::Null, |e| {
            let mut m = Map::new();
            place(e.span, sources, &mut m);
            m.insert("replacement".into(), e.text.into());
            Value::Object(m)
        }),
    );
    Value::Object(m)
}

/// The lines of one file: its findings, then one about the file.
pub fn json_file(checked: &Checked) -> String {
    let mut out = String::new();
    for d in &checked.findings {
        out.push_str(&finding_json(d, &checked.sources, &checked.file).to_string());
        out.push('\n');
    }
    let t = Totals::of(checked);
    let line = json!({
        "type": "file",
        "checked": checked.file,
        "ok": t.errors == 0,
        "errors": t.errors,
        "warnings": t.warnings,
        "notes": t.notes,
        "accepted": t.accepted,
        "summary": checked.summary,
        "milliseconds": (checked.milliseconds * 100.0).round() / 100.0,
    });
    out.push_str(&line.to_string());
    out.push('\n');
    out
}

/// The last line.
pub fn json_summary(all: &[Checked], exit: u8) -> String {
    let t = Totals::sum(all);
    let line = json!({
        "type": "summary",
        "files": all.len(),
        "errors": t.errors,
        "warnings": t.warnings,
        "notes": t.notes,
        "accepted": t.accepted,
        "exit": exit,
    });
    format!("{line}\n")
}

/// Workflow commands of GitHub: one line per finding.
pub fn github(checked: &Checked) -> String {
    let mut out = String::new();
    for d in &checked.findings {
        let kind = match d.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "notice",
        };
        let mut fields = vec![];
        let source = d.span().and_then(|s| Some((s, checked.sources.get(s.source)?)));
        match source.filter(|(_, source)| is_file(source)) {
            Some((span, source)) => {
                let start = source.position(span.start as usize);
                let end = source.position(span.end as usize);
                fields.push(("file", source.name().to_string()));
                fields.push(("line", start.line.to_string()));
                if start.line == end.line {
                    fields.push(("col", start.column.to_string()));
                    fields.push(("endColumn", end.column.to_string()));
                } else {
                    fields.push(("endLine", end.line.to_string()));
                    fields.push(("col", start.column.to_string()));
                }
            }
            None => fields.push(("file", checked.file.clone())),
        }
        fields.push(("title", format!("nrlc {}", d.code)));
        let fields: Vec<String> =
            fields.iter().map(|(k, v)| format!("{k}={}", property(v))).collect();
        out.push_str(&format!(
            "::{kind} {}::{}\n",
            fields.join(","),
            data(&told(d, &checked.sources))
        ));
    }
    out
}

/// Headline, the facts elsewhere, help and notes, one per line.
fn told(d: &Diagnostic, sources: &SourceMap) -> String {
    let mut lines = vec![d.message.clone()];
    let others = d.labels.iter().skip(1).filter(|l| !l.text.is_empty());
    lines.extend(others.map(|l| format!("{}: {}", sources.place(l.span), l.text)));
    lines.extend(d.help.iter().map(|h| format!("help: {h}")));
    lines.extend(d.notes.iter().map(|n| format!("note: {n}")));
    lines.join("\n")
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// One SARIF log with one run over all files.
pub fn sarif(all: &[Checked], version: &str) -> String {
    let mut used: Vec<&'static str> = all
        .iter()
        .flat_map(|c| c.findings.iter().chain(c.accepted.iter().map(|a| &a.finding)))
        .map(|d| d.code)
        .collect();
    used.sort_unstable();
    used.dedup();
    let rules = used.iter().map(|code| {
        json!({
            "id": code,
            "shortDescription": {"text": codes::summary(code).unwrap_or(code)},
            "help": {"text": format!("nrlc explain {code}")},
        })
    });
    let mut results = vec![];
    for c in all {
        results.extend(c.findings.iter().map(|d| result(d, c, &used, None)));
        results.extend(c.accepted.iter().map(|a| result(&a.finding, c, &used, Some(a))));
    }
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "nrlc",
                "semanticVersion": version,
                "rules": rules.collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    format!("{log:#}\n")
}

fn result(d: &Diagnostic, c: &Checked, rules: &[&str], accepted: Option<&Accepted>) -> Value {
    let level = d.severity.word();
    let mut m = Map::new();
    m.insert("ruleId".into(), d.code.into());
    m.insert("ruleIndex".into(), rules.iter().position(|r| *r == d.code).into());
    m.insert("level".into(), level.into());
    m.insert("message".into(), json!({"text": told(d, &c.sources)}));
    let main = d.span().and_then(|s| physical(s, &c.sources));
    let whole = json!({"artifactLocation": {"uri": uri(&c.file)}});
    m.insert("locations".into(), json!([{"physicalLocation": main.unwrap_or(whole)}]));
    let related: Vec<Value> = d
        .labels
        .iter()
        .skip(1)
        .filter_map(|l| Some((physical(l.span, &c.sources)?, l)))
        .enumerate()
        .map(|(i, (p, l))| json!({"id": i + 1, "physicalLocation": p, "message": {"text": l.text}}))
        .collect();
    if !related.is_empty() {
        m.insert("relatedLocations".into(), related.into());
    }
    if let Some(edit) = fix(d, &c.sources)
        && let Some(p) = physical(edit.span, &c.sources)
    {
        let change = json!({
            "artifactLocation": p["artifactLocation"],
            "replacements": [{
                "deletedRegion": p["region"],
                "insertedContent": {"text": edit.text},
            }],
        });
        let text = d.help.clone().unwrap_or_default();
        m.insert(
            "fixes".into(),
            json!([{"description": {"text": text}, "artifactChanges": [change]}]),
        );
    }
    if let Some(a) = accepted {
        let kind = if a.by == By::Comment { "inSource" } else { "external" };
        m.insert("suppressions".into(), json!([{"kind": kind, "justification": a.reason}]));
    }
    Value::Object(m)
}

fn physical(span: Span, sources: &SourceMap) -> Option<Value> {
    let source = sources.get(span.source).filter(|s| is_file(s))?;
    let (start, end) = (source.position(span.start as usize), source.position(span.end as usize));
    Some(json!({
        "artifactLocation": {"uri": uri(source.name())},
        "region": {
            "startLine": start.line,
            "startColumn": start.column,
            "endLine": end.line,
            "endColumn": end.column,
        },
    }))
}

/// A path as a relative or absolute URI reference.
fn uri(path: &str) -> String {
    let mut out = String::new();
    if path.starts_with('/') {
        out.push_str("file://");
    }
    for b in super::plain(path).bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                out.push(b as char)
            }
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}
