//! Pest pairs to the tree.
//!
//! In: the pairs of one item. Out: its node; lines that could not be read become diagnostics and
//! are left out. A builder function gives `None` only if the grammar and this module disagree,
//! which comes out as an error about the item, not as a panic.

mod expr;
mod item;
mod settings;
mod stmt;
mod types;

use std::collections::HashMap;

use nrl_base::{Diagnostic, SourceId, Span};
use nrl_grammar::{Grammar, Rule};
use pest::Parser;
use pest::iterators::Pair;

use crate::ast::{Name, Path, Text};
use crate::errors::{Piece, Place, explain};

/// How many operators and brackets may lie on one way down the tree.
const HEAVIEST: usize = 512;

/// Builds nodes from pairs of one piece of masked text.
pub(crate) struct Build<'a> {
    pub source: SourceId,
    /// The whole source.
    pub original: &'a str,
    /// Where the piece starts in the source.
    pub offset: usize,
    pub docs: &'a HashMap<usize, String>,
    pub problems: &'a mut Vec<Diagnostic>,
    /// Operators and brackets above the node being built.
    pub weight: usize,
}

/// The pairs inside a pair, without keywords and punctuation.
pub(crate) struct Kids<'i> {
    pairs: std::iter::Peekable<std::vec::IntoIter<Pair<'i, Rule>>>,
}

impl<'i> Kids<'i> {
    pub fn of(pair: Pair<'i, Rule>) -> Self {
        let kept: Vec<_> = pair.into_inner().filter(|inner| says_something(inner)).collect();
        Kids { pairs: kept.into_iter().peekable() }
    }

    /// The next pair if it is of the rule.
    pub fn pick(&mut self, rule: Rule) -> Option<Pair<'i, Rule>> {
        self.pairs.next_if(|pair| pair.as_rule() == rule)
    }

    /// The rule of the next pair.
    pub fn rule(&mut self) -> Option<Rule> {
        self.pairs.peek().map(Pair::as_rule)
    }
}

impl<'i> Iterator for Kids<'i> {
    type Item = Pair<'i, Rule>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pairs.next()
    }
}

fn says_something(pair: &Pair<'_, Rule>) -> bool {
    let rule = pair.as_rule();
    let mark = matches!(rule, Rule::assign | Rule::arrow | Rule::colon | Rule::EOI);
    !mark && rule.keyword().is_none()
}

/// Whether the keyword stands directly inside the pair.
pub(crate) fn has(pair: &Pair<'_, Rule>, keyword: Rule) -> bool {
    pair.clone().into_inner().any(|inner| inner.as_rule() == keyword)
}

impl Build<'_> {
    /// The pair's place, without the blanks behind it.
    pub fn span(&self, pair: &Pair<'_, Rule>) -> Span {
        let text = pair.as_str();
        let start = self.offset + pair.as_span().start();
        let end = start + text.trim_end_matches([' ', '\n']).len();
        let last = self.original.len();
        Span::new(self.source, start.min(last), end.min(last))
    }

    pub fn doc(&self, pair: &Pair<'_, Rule>) -> Option<String> {
        self.docs.get(&(self.offset + pair.as_span().start())).cloned()
    }

    pub fn name(&self, pair: &Pair<'_, Rule>) -> Name {
        Name { text: pair.as_str().to_string(), span: self.span(pair) }
    }

    pub fn names(&self, pair: Pair<'_, Rule>) -> Vec<Name> {
        pair.into_inner().map(|inner| self.name(&inner)).collect()
    }

    pub fn path(&self, pair: Pair<'_, Rule>) -> Path {
        let span = self.span(&pair);
        Path { names: self.names(pair), span }
    }

    /// A text literal with its escapes replaced.
    pub fn text(&mut self, pair: &Pair<'_, Rule>) -> Text {
        let span = self.span(pair);
        let written = self.original.get(span.range()).unwrap_or("");
        let raw = written.strip_prefix('r');
        let body = raw.unwrap_or(written);
        let body = body.strip_prefix(['"', '\'']).unwrap_or(body);
        let body = body.strip_suffix(['"', '\'']).unwrap_or(body);
        let value = match raw {
            Some(_) => body.to_string(),
            None => self.unescape(body, span.start as usize + 1),
        };
        Text { value, span }
    }

    fn unescape(&mut self, body: &str, start: usize) -> String {
        let mut value = String::with_capacity(body.len());
        let mut rest = body;
        while let Some(at) = rest.find('\\') {
            value.push_str(&rest[..at]);
            let escape = &rest[at..];
            let (meant, length) = read_escape(escape);
            match meant {
                Some(c) => value.push(c),
                None => self.bad_escape(escape, start + body.len() - escape.len(), length),
            }
            rest = escape.get(length..).unwrap_or("");
        }
        value.push_str(rest);
        value
    }

    fn bad_escape(&mut self, escape: &str, at: usize, length: usize) {
        let span = Span::new(self.source, at, at + length);
        let shown = escape.get(..length).unwrap_or("\\");
        self.problems.push(
            Diagnostic::error("bad-escape", format!("`{shown}` is not an escape"))
                .label(span, "inside this text")
                .help(format!("write `\\{shown}` for a backslash, or a raw text: `r\"...\"`"))
                .note("escapes are \\n \\t \\r \\0 \\\\ \\\" and \\u{1f600}"),
        );
    }

    /// Goes `more` operators down; an error the first time that is too deep.
    pub fn enter(&mut self, more: usize, pair: &Pair<'_, Rule>) -> bool {
        self.weight += more;
        if self.weight <= HEAVIEST {
            return true;
        }
        let span = self.span(pair);
        let message = format!("one expression holds more than {HEAVIEST} operators");
        self.problems.push(
            Diagnostic::error("nesting-too-deep", message)
                .label(
                    Span::new(self.source, span.start as usize, span.start as usize + 1),
                    "starts here",
                )
                .help("give parts of it names with `x = ...`"),
        );
        false
    }

    pub fn leave(&mut self, more: usize) {
        self.weight -= more.min(self.weight);
    }

    /// Reports a line that is not what the place holds.
    pub fn bad_line(&mut self, pair: &Pair<'_, Rule>, place: Place) {
        let span = self.span(pair);
        let masked = pair.as_str();
        let original = self.original.get(span.range()).unwrap_or("");
        let piece = Piece { span, masked, original, place };
        self.problems.push(why(&piece));
    }
}

/// Reads a piece again, alone, to find out why it cannot be read.
pub(crate) fn why(piece: &Piece<'_>) -> Diagnostic {
    match Grammar::parse(entry(piece.place), piece.masked) {
        Err(error) => explain(piece, &error),
        Ok(_) => {
            let text = piece.original.split_whitespace().next().unwrap_or("");
            Diagnostic::error("syntax", format!("`{text}` cannot stand here"))
                .label(piece.span, "not understood here")
        }
    }
}

/// The entry rule of a place.
pub(crate) fn entry(place: Place) -> Rule {
    match place {
        Place::Item => Rule::item_only,
        Place::Statement => Rule::stmt_only,
        Place::Member => Rule::member_only,
        Place::Field => Rule::field_only,
        Place::Variant => Rule::variant_only,
        Place::Rule => Rule::rule_only,
        Place::Signature => Rule::signature_only,
        Place::Arm => Rule::arm_only,
        Place::Expression => Rule::expr_only,
        Place::Type => Rule::type_only,
        Place::Override => Rule::override_only,
        Place::Setting => Rule::setting_only,
    }
}

/// The character an escape stands for, and how long the escape is.
fn read_escape(escape: &str) -> (Option<char>, usize) {
    let Some(kind) = escape.chars().nth(1) else { return (None, escape.len()) };
    let plain = match kind {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        '0' => '\0',
        '\\' | '"' => kind,
        'u' => return read_unicode(escape),
        _ => return (None, 1 + kind.len_utf8()),
    };
    (Some(plain), 2)
}

fn read_unicode(escape: &str) -> (Option<char>, usize) {
    let digits = escape.strip_prefix("\\u{").and_then(|rest| rest.split_once('}'));
    let Some((digits, _)) = digits else { return (None, 2) };
    let value = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
    (value, digits.len() + 4)
}
