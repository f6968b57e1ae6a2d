//! Diagnostics as plain data, and the collector that orders them.
//!
//! One headline that stands alone, the facts that conflict with their spans, and what to type.
//! Headlines are lower case without a full stop and name the user's own things with both values.

use crate::Span;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Severity {
    Error,
    Warning,
    Note,
}

impl Severity {
    /// The word printed before the code.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// One fact at one place.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Label {
    pub span: Span,
    pub text: String,
}

/// One finding. `code` is a slug of `codes::CODES` and names a page of `docs/errors`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Diagnostic {
    pub code: &'static str,
    pub severity: Severity,
    pub message: String,
    /// The first label is the place of the finding; the others are the facts it conflicts with.
    pub labels: Vec<Label>,
    pub notes: Vec<String>,
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error without labels yet.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(code, Severity::Error, message)
    }

    /// A warning without labels yet.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(code, Severity::Warning, message)
    }

    /// A finding of any severity without labels yet.
    pub fn new(code: &'static str, severity: Severity, message: impl Into<String>) -> Self {
        let message = message.into();
        Diagnostic { code, severity, message, labels: Vec::new(), notes: Vec::new(), help: None }
    }

    /// Adds a fact at a place.
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// Adds a line of explanation.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// Says what to type.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// Says what to type, if something is known.
    pub fn help_opt(mut self, text: Option<String>) -> Self {
        self.help = text.or(self.help);
        self
    }

    /// Where it was found, if anywhere in a source.
    pub fn span(&self) -> Option<Span> {
        self.labels.first().map(|label| label.span)
    }

    /// Whether it stops compilation.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Collects findings; hands them out by place, each once.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    found: Vec<Diagnostic>,
}

impl Problems {
    /// An empty collector.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one finding.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.found.push(diagnostic);
    }

    /// Adds several findings.
    pub fn extend(&mut self, diagnostics: impl IntoIterator<Item = Diagnostic>) {
        self.found.extend(diagnostics);
    }

    /// Whether any finding stops compilation.
    pub fn has_errors(&self) -> bool {
        self.found.iter().any(Diagnostic::is_error)
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Everything found so far, in the order of arrival.
    pub fn as_slice(&self) -> &[Diagnostic] {
        &self.found
    }

    /// The findings, in the order in which they were found.
    pub fn into_found(self) -> Vec<Diagnostic> {
        self.found
    }

    /// All findings by source and place, errors first at one place, doubles removed.
    pub fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|d| (d.span().is_none(), d.span(), d.severity));
        let mut seen = std::collections::HashSet::new();
        self.found.retain(|d| seen.insert(d.clone()));
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SourceId;

    #[test]
    fn problems_come_out_by_place_and_once() {
        let at = |start| Span::new(SourceId(0), start, start + 1);
        let mut problems = Problems::new();
        problems.push(Diagnostic::error("syntax", "no place"));
        problems.push(Diagnostic::warning("syntax", "late").label(at(9), ""));
        problems.push(Diagnostic::error("syntax", "early").label(at(2), ""));
        problems.push(Diagnostic::error("syntax", "early").label(at(2), ""));
        let order: Vec<_> = problems.into_sorted().into_iter().map(|d| d.message).collect();
        assert_eq!(order, ["early", "late", "no place"]);
    }
}
