//! Tokens of the text form.

use super::parse::ParseError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    /// `%5`.
    Value(u32),
    Word(String),
    Number(String),
    Text(String),
    Mark(char),
    /// What follows `//` on its line.
    Note(String),
    End,
}

/// Tokens with their lines, counted from one.
pub(super) fn tokens(text: &str) -> Result<Vec<(Tok, usize)>, ParseError> {
    let mut out = vec![];
    for (i, line) in text.lines().enumerate() {
        line_tokens(line, i + 1, &mut out)?;
    }
    out.push((Tok::End, text.lines().count()));
    Ok(out)
}

fn line_tokens(text: &str, line: usize, out: &mut Vec<(Tok, usize)>) -> Result<(), ParseError> {
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let (tok, len) = if let Some(note) = rest.strip_prefix("//") {
            (Tok::Note(note.trim().into()), rest.len())
        } else if c == '"' {
            text_token(rest, line)?
        } else if let Some(digits) = rest.strip_prefix('%').map(digits).filter(|d| !d.is_empty()) {
            let n = digits
                .parse()
                .map_err(|_| ParseError { line, text: format!("%{digits} is too large") })?;
            (Tok::Value(n), digits.len() + 1)
        } else if c.is_ascii_digit()
            || c == '-' && rest[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            let n = number(rest);
            (Tok::Number(n.into()), n.len())
        } else if rest.starts_with("-inf") {
            (Tok::Number("-inf".into()), 4)
        } else if c.is_alphabetic() || c == '_' {
            let len = rest
                .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.')))
                .unwrap_or(rest.len());
            (Tok::Word(rest[..len].into()), len)
        } else {
            (Tok::Mark(c), c.len_utf8())
        };
        out.push((tok, line));
        rest = rest[len..].trim_start();
    }
    Ok(())
}

fn digits(s: &str) -> &str {
    &s[..s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len())]
}

/// The number that `s` begins with: `-1.5e-7`. The dots of `0..2` are no part of it.
fn number(s: &str) -> &str {
    let mut len = usize::from(s.starts_with('-'));
    len += digits(&s[len..]).len();
    if let Some(rest) = s[len..].strip_prefix('.') {
        let more = digits(rest).len();
        len += if more > 0 { more + 1 } else { 0 };
    }
    if let Some(rest) = s[len..].strip_prefix('e') {
        let sign = usize::from(rest.starts_with(['-', '+']));
        let more = digits(&rest[sign..]).len();
        len += if more > 0 { 1 + sign + more } else { 0 };
    }
    &s[..len]
}

/// A quoted text and its length with the quotes; `\x` stands for `x`, `\n` and `\t` as usual.
fn text_token(s: &str, line: usize) -> Result<(Tok, usize), ParseError> {
    let mut out = String::new();
    let mut chars = s.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Ok((Tok::Text(out), i + 1)),
            '\\' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, c)) => out.push(c),
                None => break,
            },
            c => out.push(c),
        }
    }
    Err(ParseError { line, text: "a text does not end on its line".into() })
}
