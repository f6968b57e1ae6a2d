//! Diagnostics for people: graphical on terminals, plain in pipes.
//!
//! In: findings as plain data and the sources they point into. Out: text in the shape
//! `error[code]: headline`, the lines with the labels under them, `help:` and `note:`, and at the
//! end how many there were. Labels in other files than the first are shown as places.

use std::fmt;
use std::io::IsTerminal;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteError, MietteSpanContents,
    SourceCode, SourceSpan, SpanContents,
};
use nrl_base::{Diagnostic, Label, Severity, Source, SourceMap};

/// How findings are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    pub color: bool,
    /// Line drawing characters instead of ASCII.
    pub unicode: bool,
    /// Columns to wrap at.
    pub width: usize,
}

impl Style {
    /// No colors, ASCII only, 100 columns: pipes, logs and tests.
    pub const PLAIN: Style = Style { color: false, unicode: false, width: 100 };

    /// What suits standard error: colors on a terminal unless `NO_COLOR` is set, else plain;
    /// narrower where `COLUMNS` says so.
    pub fn of_stderr() -> Self {
        let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
        let width = columns.map_or(100, |c: usize| c.clamp(40, 100));
        if !std::io::stderr().is_terminal() {
            return Style { width, ..Style::PLAIN };
        }
        let color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Style { color, unicode: true, width }
    }

    fn theme(self) -> GraphicalTheme {
        match (self.color, self.unicode) {
            (true, true) => GraphicalTheme::unicode(),
            (true, false) => GraphicalTheme::ascii(),
            (false, true) => GraphicalTheme::unicode_nocolor(),
            (false, false) => GraphicalTheme::none(),
        }
    }
}

/// All findings one below the other, and the count line; empty if there are none.
pub fn render(diagnostics: &[Diagnostic], sources: &SourceMap, style: Style) -> String {
    let mut out = String::new();
    for diagnostic in diagnostics {
        out.push_str(&render_one(diagnostic, sources, style));
        out.push('\n');
    }
    if let Some(count) = count_line(diagnostics) {
        out.push_str(&count);
        out.push('\n');
    }
    out
}

/// Prints findings to standard error, in the style that suits it.
pub fn print(diagnostics: &[Diagnostic], sources: &SourceMap) {
    eprint!("{}", render(diagnostics, sources, Style::of_stderr()));
}

/// `2 errors, 1 warning`; none if nothing was found.
pub fn count_line(diagnostics: &[Diagnostic]) -> Option<String> {
    let count = |severity| diagnostics.iter().filter(|d| d.severity == severity).count();
    let parts: Vec<String> = [Severity::Error, Severity::Warning, Severity::Note]
        .into_iter()
        .map(|severity| (count(severity), severity.word()))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}{}", if count == 1 { "" } else { "s" }))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// One finding, ending with a line break.
pub fn render_one(diagnostic: &Diagnostic, sources: &SourceMap, style: Style) -> String {
    let mut theme = style.theme();
    let head = format!("{}[{}]:", diagnostic.severity.word(), diagnostic.code);
    let characters = &mut theme.characters;
    for icon in [&mut characters.error, &mut characters.warning, &mut characters.advice] {
        icon.clone_from(&head);
    }
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_width(style.width)
        // Logs and pipes keep long names whole, unless they are said to be narrow.
        .with_wrap_lines(style.unicode || style.width < Style::PLAIN.width)
        .with_break_words(false)
        .with_context_lines(1)
        .without_syntax_highlighting();
    let (shown, apart) = Shown::of(diagnostic, sources);
    let mut out = String::new();
    if handler.render_report(&mut out, &shown).is_err() {
        out = format!("  {head} {}\n", diagnostic.message);
    }
    let notes = diagnostic.notes.iter().map(|note| format!("note: {note}"));
    for line in apart.into_iter().chain(notes) {
        out.push_str("  ");
        out.push_str(&line);
        out.push('\n');
    }
    let lines = out.lines().map(str::trim_end);
    lines.skip_while(|line| line.is_empty()).fold(String::new(), |all, line| all + line + "\n")
}

/// A source under its name, without a copy of its text.
#[derive(Debug)]
struct Named<'a>(&'a Source);

impl SourceCode for Named<'_> {
    fn read_span<'b>(
        &'b self,
        span: &SourceSpan,
        before: usize,
        _after: usize,
    ) -> Result<Box<dyn SpanContents<'b> + 'b>, MietteError> {
        // A context of one line means whole lines and no neighbors; without, the span itself.
        let text = self.0.text();
        let span = if before > 0 { whole_lines(text, span) } else { *span };
        let found = text.read_span(&span, 0, 0)?;
        Ok(Box::new(MietteSpanContents::new_named(
            self.0.name().to_string(),
            found.data(),
            *found.span(),
            found.line(),
            found.column(),
            found.line_count(),
        )))
    }
}

fn whole_lines(text: &str, span: &SourceSpan) -> SourceSpan {
    let (start, end) = (span.offset().min(text.len()), span.offset() + span.len());
    let bytes = text.as_bytes();
    let start = bytes[..start].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let end = end.clamp(start, text.len());
    let rest = bytes[end..].iter().position(|b| *b == b'\n');
    let end = end + rest.unwrap_or(text.len() - end);
    (start, end - start).into()
}

/// A finding as miette wants to see it.
struct Shown<'a> {
    diagnostic: &'a Diagnostic,
    source: Option<Named<'a>>,
    labels: Vec<LabeledSpan>,
}

impl<'a> Shown<'a> {
    /// The labels of the first label's file, and the others as `name:line:column: text`.
    fn of(diagnostic: &'a Diagnostic, sources: &'a SourceMap) -> (Self, Vec<String>) {
        let mut shown = Shown { diagnostic, source: None, labels: Vec::new() };
        let Some(first) = diagnostic.span() else { return (shown, Vec::new()) };
        let Some(source) = sources.get(first.source) else { return (shown, Vec::new()) };
        let here = |label: &&Label| label.span.source == first.source;
        let apart = diagnostic.labels.iter().filter(|label| !here(label));
        let apart = apart.map(|label| format!("--> {}: {}", sources.place(label.span), label.text));
        let apart = apart.collect();
        let labels = diagnostic.labels.iter().filter(here).enumerate();
        shown.labels = labels.map(|(at, label)| labeled(label, source.text(), at == 0)).collect();
        shown.source = Some(Named(source));
        (shown, apart)
    }
}

fn labeled(label: &Label, text: &str, primary: bool) -> LabeledSpan {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let start = floor(label.span.start as usize).unwrap_or(0);
    let end = floor(label.span.end as usize).unwrap_or(start).max(start);
    let words = (!label.text.is_empty()).then(|| label.text.clone());
    match primary {
        true => LabeledSpan::new_primary_with_span(words, (start, end - start)),
        false => LabeledSpan::new_with_span(words, (start, end - start)),
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.diagnostic.message)
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.diagnostic, f)
    }
}

impl std::error::Error for Shown<'_> {}

impl miette::Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
            Severity::Note => miette::Severity::Advice,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.diagnostic.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().cloned()))
    }
}

#[cfg(test)]
mod tests {
    use nrl_base::{SourceId, Span};

    use super::*;

    fn two_facts() -> (SourceMap, Diagnostic) {
        let mut sources = SourceMap::new();
        let text = "recipe r {\n  mesh m = cluster axes (dp: rest, tp: 2)\n\n\n  place p on m\n}\n";
        let id = sources.add("smol.nrl", text);
        let at = |part: &str| {
            let start = text.find(part).unwrap();
            Span::new(id, start, start + part.len())
        };
        let found = Diagnostic::error("heads-not-divisible", "9 heads cannot be split over tp = 2")
            .label(at("tp: 2"), "tp is 2")
            .label(at("place p"), "splits dim `q` (9) over tp")
            .note("q comes from config.json")
            .help("write `tp: 1`");
        (sources, found)
    }

    #[test]
    fn both_facts_are_shown_with_what_to_type() {
        let (sources, found) = two_facts();
        insta::assert_snapshot!(render(&[found], &sources, Style::PLAIN), @r"
          error[heads-not-divisible]: 9 heads cannot be split over tp = 2
           ,-[smol.nrl:2:36]
         2 |   mesh m = cluster axes (dp: rest, tp: 2)
           :                                    ^^|^^
           :                                      `-- tp is 2
           `----
           ,-[smol.nrl:5:3]
         5 |   place p on m
           :   ^^^|^^^
           :      `-- splits dim `q` (9) over tp
           `----
          help: write `tp: 1`
          note: q comes from config.json

        1 error
        ");
    }

    #[test]
    fn a_label_in_another_file_is_shown_as_a_place() {
        let (mut sources, found) = two_facts();
        let other = sources.add("std/plans.nrl", "x\ny\n");
        let found = found.label(Span::new(other, 2, 3), "the rule");
        let out = render(&[found], &sources, Style::PLAIN);
        assert!(out.contains("--> std/plans.nrl:2:1: the rule"), "{out}");
    }

    #[test]
    fn findings_are_counted_by_kind() {
        let error = Diagnostic::error("syntax", "a");
        let warning = Diagnostic::warning("syntax", "b");
        let all = [error.clone(), warning, error];
        assert_eq!(count_line(&all).as_deref(), Some("2 errors, 1 warning"));
        assert_eq!(count_line(&[]), None);
    }

    #[test]
    fn spans_outside_their_text_do_no_harm() {
        let mut sources = SourceMap::new();
        let id = sources.add("a.nrl", "é");
        for (start, end) in [(0, 0), (1, 1), (1, 9), (7, 9)] {
            let found = Diagnostic::error("syntax", "odd").label(Span::new(id, start, end), "here");
            assert!(render(&[found], &sources, Style::PLAIN).contains("error[syntax]: odd"));
        }
        let stray = Diagnostic::error("syntax", "odd").label(Span::new(SourceId(9), 0, 1), "here");
        assert!(render(&[stray], &sources, Style::PLAIN).contains("error[syntax]: odd"));
    }
}
