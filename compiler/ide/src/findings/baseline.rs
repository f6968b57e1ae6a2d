//! The baseline: findings that a project has accepted, with reasons, in a file of its own.
//!
//! In: JSON, `{"version": 1, "findings": [{"code", "file", "text", "message", "reason"}]}`. A finding is in it
//! if its code, its file and the text of its line are; so lines may move. Out: the same, written by
//! `--write-baseline`, which keeps the reasons that were there.

use nrl_base::{Diagnostic, SourceMap, Span};
use serde_json::{Map, Value, json};

use super::{Checked, UNREADABLE, place_of, plain};

/// One accepted finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub code: String,
    pub file: String,
    /// The line, blanks around it left out.
    pub text: String,
    /// The headline when it was written; for readers.
    pub message: String,
    pub reason: String,
}

/// A whole baseline.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    pub path: String,
    pub entries: Vec<Entry>,
    /// The file as read, for places in it.
    text: String,
}

impl Baseline {
    /// Reads a baseline; says what is wrong with the file if it is none.
    pub fn read(path: &str, text: &str) -> Result<Baseline, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| format!("{path} is not JSON: {e}"))?;
        if value["version"] != json!(1) {
            return Err(format!("{path} is not a baseline of version 1"));
        }
        let list =
            value["findings"].as_array().ok_or_else(|| format!("{path} has no list `findings`"))?;
        let mut entries = vec![];
        for (i, item) in list.iter().enumerate() {
            let field = |name: &str| item[name].as_str().map(str::to_string);
            let need = |name: &str| {
                field(name).ok_or_else(|| format!("{path}: finding {} has no text `{name}`", i + 1))
            };
            entries.push(Entry {
                code: need("code")?,
                file: plain(&need("file")?).to_string(),
                text: need("text")?,
                message: field("message").unwrap_or_default(),
                reason: field("reason").unwrap_or_default(),
            });
        }
        Ok(Baseline { path: path.to_string(), entries, text: text.to_string() })
    }

    /// The findings that are left, and those an old baseline already held with their reasons.
    pub fn of(path: &str, checked: &[Checked], old: Option<&Baseline>) -> Baseline {
        let mut entries: Vec<Entry> = vec![];
        for one in checked {
            let held =
                one.accepted.iter().filter(|a| a.by == super::By::Baseline).map(|a| &a.finding);
            for finding in one.findings.iter().chain(held).filter(|d| !UNREADABLE.contains(&d.code))
            {
                let (file, text) = place_of(finding, &one.sources);
                let same = |e: &&Entry| e.code == finding.code && e.file == file && e.text == text;
                if entries.iter().any(|e| same(&e)) {
                    continue;
                }
                let reason =
                    old.and_then(|b| b.entries.iter().find(same)).map(|e| e.reason.clone());
                entries.push(Entry {
                    code: finding.code.to_string(),
                    file,
                    text,
                    message: finding.message.clone(),
                    reason: reason.unwrap_or_default(),
                });
            }
        }
        entries.sort_by(|a, b| (&a.file, &a.text, &a.code).cmp(&(&b.file, &b.text, &b.code)));
        Baseline { path: path.to_string(), entries, text: String::new() }
    }

    /// The file.
    pub fn json(&self) -> String {
        let list = self.entries.iter().map(|e| {
            let mut m = Map::new();
            for (name, value) in [
                ("code", &e.code),
                ("file", &e.file),
                ("text", &e.text),
                ("message", &e.message),
                ("reason", &e.reason),
            ] {
                m.insert(name.into(), Value::from(value.as_str()));
            }
            Value::Object(m)
        });
        let all = json!({"version": 1, "findings": list.collect::<Vec<_>>()});
        format!("{all:#}\n")
    }

    /// Entries without a reason, and entries of files that were checked and not found again.
    pub(super) fn problems(&self, hit: &[bool], checked: &[Checked]) -> Checked {
        let mut sources = SourceMap::new();
        let id = sources.add(self.path.clone(), self.text.clone());
        let place = |at: usize| {
            // The n-th "code" of the file is that of the n-th entry.
            let start = self.text.match_indices("\"code\"").nth(at).map_or(0, |(i, _)| i);
            let line = self.text[start..].find('\n').map_or(self.text.len(), |n| start + n);
            Span::new(id, start, line)
        };
        let mut findings = vec![];
        let bare = self.entries.iter().filter(|e| e.reason.trim().is_empty()).count();
        if let Some(first) = self.entries.iter().position(|e| e.reason.trim().is_empty()) {
            let span = place(first);
            let what = match bare {
                1 => "1 accepted finding has no reason".to_string(),
                n => format!("{n} accepted findings have no reason"),
            };
            findings.push(
                Diagnostic::warning("allow-without-reason", what)
                    .label(span, "the first of them")
                    .help("fill in `\"reason\"`"),
            );
        }
        let seen = |file: &str| {
            checked.iter().any(|c| c.sources.iter().any(|(_, s)| plain(s.name()) == file))
        };
        for (at, entry) in
            self.entries.iter().enumerate().filter(|(at, e)| !hit[*at] && seen(&e.file))
        {
            let span = place(at);
            findings.push(
                Diagnostic::new(
                    "stale-baseline",
                    nrl_base::Severity::Note,
                    format!("`{}` is no longer found in {}", entry.code, entry.file),
                )
                .label(span, format!("was at `{}`", entry.text))
                .help(format!(
                    "remove the entry, or write `nrlc check --write-baseline {}`",
                    self.path
                )),
            );
        }
        Checked { file: self.path.clone(), sources, findings, ..Checked::default() }
    }
}
