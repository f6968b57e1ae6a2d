//! Findings on their way out: which are accepted, what could fix them, how machines read them.
//!
//! In: the [`Diagnostic`]s of one file and its sources. Out: the same, less what a comment or a baseline
//! accepts, plus findings about the accepting itself (no reason given, nothing left to accept).

mod allow;
mod baseline;
mod fix;
mod formats;

use nrl_base::{Diagnostic, SourceMap, Span};

pub use allow::{Allow, allows};
pub use baseline::{Baseline, Entry};
pub use fix::{Edit, fix};
pub use formats::{Totals, finding_json, github, json_file, json_summary, sarif};

/// Codes that say that a text could not be read: what could not be read cannot be accepted.
const UNREADABLE: [&str; 12] = [
    "bad-escape",
    "bad-number",
    "bad-override",
    "file-not-read",
    "file-too-large",
    "internal",
    "nesting-too-deep",
    "not-utf8",
    "syntax",
    "unbalanced-bracket",
    "unknown-character",
    "unterminated-text",
];

/// Who accepted a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A comment beside it.
    Comment,
    /// The baseline file.
    Baseline,
}

/// A finding that somebody has accepted.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    pub finding: Diagnostic,
    pub by: By,
    pub reason: String,
}

/// What was found in one file that was asked for.
#[derive(Debug, Default)]
pub struct Checked {
    /// The file as it was named.
    pub file: String,
    pub sources: SourceMap,
    /// What is still to be told.
    pub findings: Vec<Diagnostic>,
    pub accepted: Vec<Accepted>,
    /// One line about what was found to be right; none if the check did not come that far.
    pub summary: Option<String>,
    pub milliseconds: f64,
}

impl Checked {
    /// Whether an error is left.
    pub fn failed(&self) -> bool {
        self.findings.iter().any(Diagnostic::is_error)
    }
}

/// Takes out of every file what comments and the baseline accept; adds what is wrong with the accepting.
///
/// Comments count in every file that findings point into; one that accepts nothing is reported if its
/// own file was asked for. The second part is about the baseline file.
pub fn accept(checked: &mut [Checked], baseline: Option<&Baseline>) -> Checked {
    let mut used: Vec<(String, u32)> = Vec::new();
    let mut hit = vec![false; baseline.map_or(0, |b| b.entries.len())];
    for one in checked.iter_mut() {
        let found = std::mem::take(&mut one.findings);
        for finding in found {
            match judge(&finding, &one.sources, baseline, &mut hit) {
                Some((by, reason, place)) => {
                    used.extend(place);
                    one.accepted.push(Accepted { finding, by, reason });
                }
                None => one.findings.push(finding),
            }
        }
    }
    for one in checked.iter_mut() {
        let Some((id, source)) = one.sources.iter().find(|(_, s)| s.name() == one.file) else {
            continue;
        };
        for allow in allows(id, source) {
            let spot = (one.file.clone(), allow.span.start);
            one.findings.extend(allow.problems(used.contains(&spot)));
        }
    }
    baseline.map_or_else(Checked::default, |b| b.problems(&hit, checked))
}

type Judged = (By, String, Option<(String, u32)>);

fn judge(
    finding: &Diagnostic,
    sources: &SourceMap,
    baseline: Option<&Baseline>,
    hit: &mut [bool],
) -> Option<Judged> {
    if UNREADABLE.contains(&finding.code) {
        return None;
    }
    if let Some(span) = finding.span()
        && let Some(source) = sources.get(span.source)
    {
        let line = source.position(span.start as usize).line;
        let mut fitting = allows(span.source, source).into_iter();
        let allow =
            fitting.find(|a| a.covers(line) && a.codes.iter().any(|c| c.name == finding.code));
        if let Some(a) = allow {
            return Some((By::Comment, a.reason, Some((source.name().to_string(), a.span.start))));
        }
    }
    let (file, text) = place_of(finding, sources);
    let at = baseline?
        .entries
        .iter()
        .position(|e| e.code == finding.code && e.file == file && e.text == text)?;
    hit[at] = true;
    Some((By::Baseline, baseline?.entries[at].reason.clone(), None))
}

/// The file of a finding and the text of its line, blanks around it left out.
fn place_of(finding: &Diagnostic, sources: &SourceMap) -> (String, String) {
    let source = |span: Span| sources.get(span.source).map(|s| (s, span));
    match finding.span().and_then(source) {
        Some((source, span)) => {
            let line = source.position(span.start as usize).line;
            (plain(source.name()).to_string(), source.line(line).trim().to_string())
        }
        None => (String::new(), finding.message.clone()),
    }
}

/// A path without `./` in front.
fn plain(path: &str) -> &str {
    let mut path = path;
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    path
}
