//! Text to tokens, comments kept.
//!
//! In: any text. Out: tokens that cover everything but blanks, in order, and what could not be
//! read. Characters without a meaning are reported once per run of them and come out as tokens
//! the grammar can live with, so one slip gives one error.

use nrl_base::{Diagnostic, SourceId, Span};

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TokenKind {
    Word,
    Number,
    Text,
    /// An operator, comma, colon, dot or semicolon.
    Symbol,
    Open,
    Close,
    Newline,
    Comment,
}

/// A token as a byte range of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub kind: TokenKind,
    pub start: usize,
    pub end: usize,
}

impl Token {
    pub(crate) fn text<'a>(&self, source: &'a str) -> &'a str {
        source.get(self.start..self.end).unwrap_or("")
    }
}

/// Tokens and what was wrong with the characters.
pub(crate) struct Lexed {
    pub tokens: Vec<Token>,
    pub problems: Vec<Diagnostic>,
    /// Bytes to write over the masked text: a slip replaced by what was meant.
    pub repairs: Vec<(usize, &'static [u8])>,
}

const SYMBOLS: [&str; 33] = [
    "..=", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "..", "//", ":=", "**", "+", "-", "*",
    "/", "@", "%", "^", "|", "=", "<", ">", ",", ":", ".", "?", ";", "!", "&", "~", "$",
];

/// What people type out of habit, what to say, and what to read instead.
const HABITS: [(&str, &str, &[u8]); 9] = [
    ("&&", "`and`", b"+ "),
    ("||", "`or`", b"+ "),
    ("&", "`and`", b"+"),
    ("!", "`not`", b"-"),
    ("=>", "`->`", b"->"),
    (":=", "`=`", b"= "),
    ("**", "`^`", b"^ "),
    ("~", "`not`", b"-"),
    ("$", "the name alone", b" "),
];

/// Reads all tokens of `text`.
pub(crate) fn lex(source: SourceId, text: &str) -> Lexed {
    let lexed = Lexed { tokens: Vec::new(), problems: Vec::new(), repairs: Vec::new() };
    let mut lexer = Lexer { source, text, bytes: text.as_bytes(), at: 0, out: lexed };
    if text.starts_with('\u{feff}') {
        lexer.at = 3;
    }
    while lexer.at < text.len() {
        lexer.next();
    }
    lexer.out
}

struct Lexer<'a> {
    source: SourceId,
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    out: Lexed,
}

impl Lexer<'_> {
    fn next(&mut self) {
        let start = self.at;
        match self.bytes[start] {
            b' ' | b'\t' | b'\r' => self.at += 1,
            b'\n' => self.push(TokenKind::Newline, start + 1),
            b'#' => self.comment(),
            b'/' if self.rest().starts_with("//") && self.opens_line() => self.slashes(),
            b'"' => self.quoted(start),
            b'r' if self.byte(1) == Some(b'"') => self.raw(),
            b'\'' => self.single_quoted(),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let end = self.run(start, |b| b.is_ascii_alphanumeric() || b == b'_');
                self.push(TokenKind::Word, end);
            }
            b'0'..=b'9' => self.number(),
            b'(' | b'[' | b'{' => self.push(TokenKind::Open, start + 1),
            b')' | b']' | b'}' => self.push(TokenKind::Close, start + 1),
            _ => self.symbol(),
        }
    }

    fn push(&mut self, kind: TokenKind, end: usize) {
        self.out.tokens.push(Token { kind, start: self.at, end });
        self.at = end;
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn run(&self, from: usize, keep: impl Fn(u8) -> bool) -> usize {
        let more = self.bytes[from..].iter().take_while(|b| keep(**b)).count();
        from + more
    }

    fn line_end(&self) -> usize {
        let end = self.run(self.at, |b| b != b'\n');
        if end > self.at && self.bytes[end - 1] == b'\r' { end - 1 } else { end }
    }

    fn opens_line(&self) -> bool {
        self.out.tokens.last().is_none_or(|token| token.kind == TokenKind::Newline)
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.source, start, end)
    }

    fn comment(&mut self) {
        let end = self.line_end();
        self.push(TokenKind::Comment, end);
    }

    fn slashes(&mut self) {
        let span = self.span(self.at, self.at + 2);
        self.out.problems.push(
            Diagnostic::error("syntax", "a comment starts with `#`, not with `//`")
                .label(span, "this line starts with an operator")
                .help("write `#`"),
        );
        self.comment();
    }

    fn number(&mut self) {
        let digits = |b: u8| b.is_ascii_digit() || b == b'_';
        let mut end = self.run(self.at, digits);
        if self.bytes.get(end) == Some(&b'.')
            && self.bytes.get(end + 1).is_some_and(u8::is_ascii_digit)
        {
            end = self.run(end + 1, digits);
        }
        if matches!(self.bytes.get(end), Some(b'e' | b'E')) {
            let signed = matches!(self.bytes.get(end + 1), Some(b'+' | b'-'));
            let from = end + 1 + usize::from(signed);
            if self.bytes.get(from).is_some_and(u8::is_ascii_digit) {
                end = self.run(from, |b| b.is_ascii_digit());
            }
        }
        self.push(TokenKind::Number, end);
    }

    fn quoted(&mut self, start: usize) {
        let mut end = start + 1;
        loop {
            match self.bytes.get(end) {
                Some(b'"') => return self.push(TokenKind::Text, end + 1),
                Some(b'\\') if self.bytes.get(end + 1).is_some_and(|b| *b != b'\n') => end += 2,
                Some(b'\n') | None => return self.unterminated(),
                Some(_) => end += 1,
            }
        }
    }

    fn raw(&mut self) {
        let end = self.run(self.at + 2, |b| b != b'"' && b != b'\n');
        match self.bytes.get(end) {
            Some(b'"') => self.push(TokenKind::Text, end + 1),
            _ => self.unterminated(),
        }
    }

    fn unterminated(&mut self) {
        let end = self.line_end();
        let span = self.span(self.at, end);
        self.out.problems.push(
            Diagnostic::error("unterminated-text", "a text is not closed on its line")
                .label(span, "starts here")
                .help("close it with `\"`; a line break inside a text is written `\\n`"),
        );
        self.push(TokenKind::Text, end);
    }

    fn single_quoted(&mut self) {
        let close = self.run(self.at + 1, |b| b != b'\'' && b != b'\n');
        let closed = self.bytes.get(close) == Some(&b'\'');
        let end = if closed { close + 1 } else { self.at + 1 };
        let span = self.span(self.at, end);
        let inside = self.text.get(self.at + 1..close).unwrap_or("").to_string();
        let help = match closed && inside.len() < 60 {
            true => format!("write `\"{inside}\"`"),
            false => String::from("write `\"` on both sides"),
        };
        self.out.problems.push(
            Diagnostic::error("unknown-character", "a text stands in double quotes")
                .label(span, "single quotes have no meaning")
                .help(help),
        );
        if closed {
            self.push(TokenKind::Text, end);
        } else {
            self.at = end;
        }
    }

    fn symbol(&mut self) {
        let found = SYMBOLS.iter().find(|symbol| self.rest().starts_with(**symbol));
        let Some(symbol) = found else { return self.unknown() };
        let start = self.at;
        if let Some((_, meant, repair)) = HABITS.iter().find(|(habit, ..)| habit == symbol) {
            let span = self.span(start, start + symbol.len());
            self.out.problems.push(
                Diagnostic::error("syntax", format!("`{symbol}` is not an operator here"))
                    .label(span, "has no meaning")
                    .help(format!("write {meant}")),
            );
            self.out.repairs.push((start, repair));
        }
        self.push(TokenKind::Symbol, start + symbol.len());
    }

    fn unknown(&mut self) {
        let meant = |c: char| {
            let known = c.is_ascii() && !matches!(c, '\\' | '`') && !c.is_ascii_control();
            known || c.is_ascii_whitespace()
        };
        let run: String = self.rest().chars().take_while(|c| !meant(*c)).take(12).collect();
        let first = run.chars().next().unwrap_or('\u{fffd}');
        let length = self.rest().chars().take_while(|c| !meant(*c)).map(char::len_utf8).sum();
        let end = self.at + std::cmp::max(length, first.len_utf8());
        let end = end.min(self.text.len());
        let span = self.span(self.at, end);
        let shown: String = run.escape_debug().collect();
        let mut found =
            Diagnostic::error("unknown-character", format!("`{shown}` has no meaning here"))
                .label(span, "outside a text and a comment");
        if let Some(plain) = plain_form(first) {
            found = found.help(format!("write `{plain}`"));
            self.out.repairs.push((self.at, plain.as_bytes()));
        } else {
            found = found.help("names are made of a-z, A-Z, 0-9 and `_`");
        }
        self.out.problems.push(found);
        self.at = end;
    }
}

/// The plain spelling of characters that editors and web pages put in their place.
fn plain_form(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{2013}' | '\u{2014}' | '\u{2212}' => "-",
        '\u{201c}' | '\u{201d}' | '\u{201e}' => "\"",
        '\u{00d7}' => "*",
        '\u{2264}' => "<=",
        '\u{2265}' => ">=",
        '\u{2260}' => "!=",
        '\u{2192}' => "->",
        '\u{00a0}' => " ",
        '\u{2026}' => "..",
        _ => return None,
    })
}
