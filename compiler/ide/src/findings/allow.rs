//! Comments that accept findings: `# nrlc: allow(code) reason`, on the line or in the lines above it.
//!
//! In: the text of a file, `.nrl` or YAML. Out: the comments, with the line each speaks about. A `#` inside
//! of a text is no comment.

use nrl_base::{Diagnostic, Source, SourceId, Span, codes, did_you_mean};

/// A code inside the parentheses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    pub name: String,
    pub span: Span,
}

/// One comment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allow {
    pub codes: Vec<Code>,
    pub reason: String,
    /// From `nrlc:` to the end of the line.
    pub span: Span,
    /// The line it stands on, and the line it speaks about if it stands alone.
    line: usize,
    about: usize,
}

impl Allow {
    /// Whether it speaks about the line.
    pub fn covers(&self, line: usize) -> bool {
        self.about == line
    }

    /// What is wrong with the comment itself.
    pub fn problems(&self, used: bool) -> Vec<Diagnostic> {
        let mut out = vec![];
        let names: Vec<&str> = self.codes.iter().map(|c| c.name.as_str()).collect();
        if !used {
            let unknown = self.codes.iter().find(|c| codes::summary(&c.name).is_none());
            let found = match unknown {
                Some(code) => Diagnostic::warning(
                    "unused-allow",
                    format!("there is no code `{}` to allow", code.name),
                )
                .label(code.span, "not a code")
                .help_opt(did_you_mean(&code.name, codes::CODES.iter().map(|(c, _)| *c))),
                None => Diagnostic::warning(
                    "unused-allow",
                    format!("nothing is found that `allow({})` would accept", names.join(", ")),
                )
                .label(self.span, format!("about line {}", self.about))
                .help("remove the comment, or move it to the line of the finding"),
            };
            out.push(found);
        }
        if self.reason.is_empty() {
            out.push(
                Diagnostic::warning(
                    "allow-without-reason",
                    format!("`allow({})` does not say why", names.join(", ")),
                )
                .label(self.span, "no reason behind it")
                .help(format!("write `nrlc: allow({}) why this is right here`", names.join(", "))),
            );
        }
        out
    }
}

/// All such comments of a file, in order.
pub fn allows(id: SourceId, source: &Source) -> Vec<Allow> {
    let text = source.text();
    if !text.contains("nrlc:") {
        return vec![];
    }
    let mut out: Vec<Allow> = vec![];
    let mut start = 0;
    for (index, line) in text.split('\n').enumerate() {
        if let Some(at) = comment(line) {
            let alone = line[..at].trim().is_empty();
            out.extend(read(&line[at..], (id, start + at), index + 1, alone));
        }
        start += line.len() + 1;
    }
    // A comment that stands alone speaks about the next line that is not blank and no comment.
    let lines: Vec<&str> = text.split('\n').collect();
    for allow in &mut out {
        if allow.about == 0 {
            let below = lines.iter().enumerate().skip(allow.line);
            let next = below
                .map(|(i, l)| (i + 1, l.trim()))
                .find(|(_, l)| !l.is_empty() && !l.starts_with('#'));
            allow.about = next.map_or(allow.line + 1, |(line, _)| line);
        }
    }
    out
}

/// Where the comment of a line begins.
fn comment(line: &str) -> Option<usize> {
    let mut quote = None;
    let mut before = ' ';
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match quote {
            Some('"') if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            // An apostrophe opens a text only where one can begin: not in `don't`.
            None if c == '"' || c == '\'' && !before.is_alphanumeric() => quote = Some(c),
            None if c == '#' => return Some(at),
            None => {}
        }
        before = c;
    }
    None
}

/// `# nrlc: allow(a, b) reason`, as it stands from the `#` on.
fn read(comment: &str, (id, start): (SourceId, usize), line: usize, alone: bool) -> Option<Allow> {
    let body = comment.trim_start_matches('#');
    let marked = body.trim_start();
    let rest = marked.strip_prefix("nrlc:")?;
    let mark = start + comment.len() - marked.len();
    let call = rest.trim_start().strip_prefix("allow")?.trim_start().strip_prefix('(')?;
    let (inside, reason) = call.split_once(')')?;
    let first = start + comment.len() - call.len();
    let mut at = first;
    let mut codes = vec![];
    for part in inside.split(',') {
        let name = part.trim();
        if !name.is_empty() {
            let from = at + part.len() - part.trim_start().len();
            codes.push(Code {
                name: name.to_string(),
                span: Span::new(id, from, from + name.len()),
            });
        }
        at += part.len() + 1;
    }
    let reason = reason.trim().trim_start_matches([':', '-', '—', '–']).trim().to_string();
    let end = start + comment.trim_end().len();
    let about = if alone { 0 } else { line };
    Some(Allow { codes, reason, span: Span::new(id, mark, end), line, about })
}
