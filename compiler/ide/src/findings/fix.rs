//! What to type, as an edit, where a finding's help says it without a choice.
//!
//! In: a finding and its sources. Out: a replacement, or nothing. Help is for people; an edit is made only
//! of three forms of it, and only if the place leaves no doubt: ``did you mean `x`?`` where the wrong name
//! stands once under the first label, ``rename it to `x` `` where a name stands there, and ``write `x` ``
//! where `x` begins like what is there.

use nrl_base::{Diagnostic, SourceMap, Span};

/// A replacement of the text under a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    pub span: Span,
    pub text: String,
}

/// The edit that a finding's help means, if it means exactly one.
pub fn fix(finding: &Diagnostic, sources: &SourceMap) -> Option<Edit> {
    let help = finding.help.as_deref()?;
    let span = finding.span()?;
    let there = sources.text(span);
    let source = sources.get(span.source)?;
    if there.is_empty() || source.name().starts_with("--set ") || source.name().starts_with("std/")
    {
        return None;
    }
    if let Some(name) = inside(help, "did you mean `", "`?") {
        return meant(finding, span, there, name);
    }
    if let Some(name) = inside(help, "rename it to `", "`") {
        let names =
            [there, name].iter().all(|n| n.chars().all(|c| c.is_alphanumeric() || c == '_'));
        return (names && there != name).then(|| Edit { span, text: name.to_string() });
    }
    let text = inside(help, "write `", "`")?;
    let open = text.contains("..") && !there.contains("..") || text.contains("--set");
    let grows = word(text) == word(there) && !word(there).is_empty();
    let closes = there.len() == 1 && text.len() == 1 && !there.chars().all(char::is_alphanumeric);
    ((grows || closes) && !open && text != there).then(|| Edit { span, text: text.to_string() })
}

/// What stands between `open` and `close` if `help` is nothing else.
fn inside<'h>(help: &'h str, open: &str, close: &str) -> Option<&'h str> {
    let text = help.strip_prefix(open)?.strip_suffix(close)?;
    (!text.contains('`') && !text.is_empty()).then_some(text)
}

/// The first run of letters, digits, dots and underscores.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
    &text[..end.unwrap_or(text.len())]
}

/// Replaces the wrong name where it stands under the label: all of it, or one word that the headline quotes.
fn meant(finding: &Diagnostic, span: Span, there: &str, name: &str) -> Option<Edit> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if there.chars().all(|c| is_name(c) || c == '.') {
        return (there != name).then(|| Edit { span, text: name.to_string() });
    }
    let quoted = finding.message.split('`').skip(1).step_by(2);
    for wrong in quoted.filter(|w| !w.is_empty()) {
        let whole = |at: usize| {
            let before = there[..at].chars().next_back().is_none_or(|c| !is_name(c));
            before && there[at + wrong.len()..].chars().next().is_none_or(|c| !is_name(c))
        };
        let mut places = there.match_indices(wrong).map(|(at, _)| at).filter(|at| whole(*at));
        if let (Some(at), None) = (places.next(), places.next()) {
            let start = span.start as usize + at;
            let span = Span::new(span.source, start, start + wrong.len());
            return Some(Edit { span, text: name.to_string() });
        }
    }
    None
}
