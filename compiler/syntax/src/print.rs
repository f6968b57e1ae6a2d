//! The formatter: same tokens, same comments, one layout.
//!
//! In: a text that parses. Out: that text with two blanks per level, one blank between tokens where
//! they need it, at most one empty line, `=` and `from` and comments of neighboring lines in one
//! column. Line breaks stay where the author put them, except that lines over 100 columns are
//! broken at pipes, blocks or the widest bracket. Formatting twice changes nothing more, and the
//! tree stays the same (`tests/format.rs`).

mod marks;

use nrl_base::{Diagnostic, SourceId};

use crate::lex::{Token, TokenKind, lex};
use crate::mask::mask;
use crate::parse::parse;
use marks::{Class, Mark, Marks};

/// The column lines should stay within.
const WIDTH: usize = 100;

/// The widest gap that lining up neighbors may open.
const WIDEST_GAP: usize = 14;

/// Formats a whole file; the diagnostics if it has syntax errors.
pub fn format(text: &str) -> Result<String, Vec<Diagnostic>> {
    format_source(SourceId::default(), text)
}

/// Formats a whole file whose diagnostics should name `source`.
pub fn format_source(source: SourceId, text: &str) -> Result<String, Vec<Diagnostic>> {
    let (_, problems) = parse(source, text);
    if problems.iter().any(Diagnostic::is_error) {
        return Err(problems);
    }
    let lexed = lex(source, text);
    let masked = mask(source, text, &lexed).map_err(|diagnostic| vec![diagnostic])?;
    let marks = Marks::of(&masked);
    let mut printer =
        Printer { text, masked: &masked.text, marks, frames: Vec::new(), out: Vec::new() };
    for line in lines(&lexed.tokens, text) {
        printer.line(line);
    }
    line_up(&mut printer.out);
    line_up_comments(&mut printer.out);
    Ok(join(&printer.out))
}

/// One line as written: its tokens, its comment, and whether an empty line stood above.
#[derive(Default)]
struct Line {
    tokens: Vec<Token>,
    comment: Option<Token>,
    spaced: bool,
}

fn lines(tokens: &[Token], text: &str) -> Vec<Line> {
    let mut lines = Lines::default();
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Newline => lines.end(),
            TokenKind::Comment => lines.line.comment = Some(*token),
            TokenKind::Symbol if token.text(text) == ";" => {
                let next = tokens.get(at + 1).map(|next| next.kind);
                let useless = matches!(
                    next,
                    None | Some(TokenKind::Newline | TokenKind::Comment | TokenKind::Close)
                );
                if lines.depth == 0 && !useless {
                    lines.end();
                } else if !useless && next.is_some() && tokens[at + 1].text(text) != ";" {
                    lines.line.tokens.push(*token);
                }
            }
            kind => {
                match kind {
                    TokenKind::Open => lines.depth += 1,
                    TokenKind::Close => lines.depth = lines.depth.saturating_sub(1),
                    _ => {}
                }
                lines.line.tokens.push(*token);
            }
        }
    }
    lines.end();
    lines.done
}

#[derive(Default)]
struct Lines {
    done: Vec<Line>,
    line: Line,
    depth: usize,
    /// Whether an empty line came since the last one that was not.
    empty: bool,
}

impl Lines {
    fn end(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if line.tokens.is_empty() && line.comment.is_none() {
            self.empty = true;
            return;
        }
        line.spaced = std::mem::take(&mut self.empty) && !self.done.is_empty();
        self.done.push(line);
    }
}

/// A bracket that is open, the indent of its line, and whether it holds lines.
struct Frame {
    indent: usize,
    braces: bool,
    /// Whether commas separate what it holds.
    fields: bool,
}

/// One printed line.
struct Printed {
    indent: usize,
    /// Texts, each with the blanks before it.
    words: Vec<(usize, String)>,
    /// The word that neighbors line up on.
    column: Option<(Class, usize)>,
    comment: Option<String>,
    gap: usize,
    spaced: bool,
}

impl Printed {
    fn width_to(&self, word: usize) -> usize {
        let words = self.words.iter().take(word);
        words.map(|(blanks, text)| blanks + text.chars().count()).sum()
    }

    fn width(&self) -> usize {
        self.indent + self.width_to(self.words.len())
    }
}

struct Printer<'a> {
    text: &'a str,
    masked: &'a str,
    marks: Marks,
    frames: Vec<Frame>,
    out: Vec<Printed>,
}

impl Printer<'_> {
    fn line(&mut self, line: Line) {
        let goes_on = line.tokens.first().is_some_and(|token| self.goes_on(token));
        self.part(line, goes_on);
    }

    /// Whether the break before a token does not end the line above.
    fn goes_on(&self, token: &Token) -> bool {
        if self.frames.last().is_some_and(|frame| !frame.braces) || self.out.is_empty() {
            return false;
        }
        let before = self.masked.get(..token.start).unwrap_or("").trim_end_matches(' ');
        if before.ends_with(',') && self.frames.last().is_some_and(|frame| frame.fields) {
            return false;
        }
        !before.ends_with(['\n', ';', '{']) && !before.is_empty() && !self.starts_item(token)
    }

    fn starts_item(&self, token: &Token) -> bool {
        self.marks.items.binary_search(&token.start).is_ok()
    }

    fn part(&mut self, line: Line, goes_on: bool) {
        let indent = self.indent(&line, goes_on);
        let words = self.words(&line.tokens);
        let width: usize =
            indent + words.iter().map(|(gap, w)| gap + w.chars().count()).sum::<usize>();
        if width > WIDTH
            && let Some(parts) = self.split(&line)
        {
            for (part, goes_on) in parts {
                self.part(part, goes_on);
            }
            return;
        }
        self.push(line, indent, words);
    }

    fn indent(&self, line: &Line, goes_on: bool) -> usize {
        let closes = line.tokens.first().is_some_and(|token| token.kind == TokenKind::Close);
        match self.frames.last() {
            Some(frame) if closes => frame.indent,
            Some(frame) => frame.indent + if goes_on { 4 } else { 2 },
            None if goes_on => 2,
            None => 0,
        }
    }

    fn push(&mut self, line: Line, indent: usize, words: Vec<(usize, String)>) {
        for token in &line.tokens {
            match token.kind {
                TokenKind::Open => {
                    let mark = self.marks.at(token.start);
                    let braces = token.text(self.text) == "{" && mark != Some(Mark::TightBrace);
                    self.frames.push(Frame { indent, braces, fields: mark == Some(Mark::Fields) });
                }
                TokenKind::Close => {
                    self.frames.pop();
                }
                _ => {}
            }
        }
        let column = line.tokens.iter().enumerate().find_map(|(at, token)| {
            match self.marks.at(token.start) {
                Some(Mark::Column(class)) => Some((class, at)),
                _ => None,
            }
        });
        let closes = line.tokens.first().is_some_and(|token| token.kind == TokenKind::Close);
        let opened = self.out.last().is_some_and(|last| {
            last.comment.is_none() && last.words.last().is_some_and(|(_, word)| word == "{")
        });
        let comment = line.comment.map(|token| token.text(self.text).trim_end().to_string());
        let spaced = line.spaced && !closes && !opened;
        self.out.push(Printed { indent, words, column, comment, gap: 2, spaced });
    }

    /// The texts of tokens with the blanks between them.
    fn words(&self, tokens: &[Token]) -> Vec<(usize, String)> {
        let mut previous: Option<&Token> = None;
        let mut words = Vec::with_capacity(tokens.len());
        for token in tokens {
            let gap = previous.is_some_and(|before| self.spaced(before, token));
            words.push((usize::from(gap), token.text(self.text).to_string()));
            previous = Some(token);
        }
        words
    }

    /// Whether a blank stands between two tokens of one line.
    fn spaced(&self, before: &Token, token: &Token) -> bool {
        let (left, right) = (before.text(self.text), token.text(self.text));
        let (left_mark, right_mark) = (self.marks.at(before.start), self.marks.at(token.start));
        if before.kind == TokenKind::Open || token.kind == TokenKind::Close {
            let both = before.kind == TokenKind::Open && token.kind == TokenKind::Close;
            let brace = if before.kind == TokenKind::Open { left } else { right };
            let tight = match before.kind {
                TokenKind::Open => left_mark == Some(Mark::TightBrace),
                _ => right_mark == Some(Mark::TightBrace),
            };
            return !both && matches!(brace, "{" | "}") && !tight;
        }
        if matches!(right, "," | ";" | ":" | "?") || left == "." || right == "." {
            return false;
        }
        if matches!(left, ".." | "..=") || matches!(right, ".." | "..=") {
            return false;
        }
        if matches!(left_mark, Some(Mark::Unary | Mark::Tight | Mark::AxisSplit))
            || right_mark == Some(Mark::Tight)
        {
            return false;
        }
        if matches!(right, "(" | "[") && right_mark != Some(Mark::Spaced) {
            let attached = matches!(before.kind, TokenKind::Word | TokenKind::Close);
            return !attached && left != "?";
        }
        true
    }

    /// Parts of a line that is too long, each with whether it goes on with the part before.
    fn split(&self, line: &Line) -> Option<Vec<(Line, bool)>> {
        let tokens = &line.tokens;
        let cuts = self.block_cuts(tokens).or_else(|| self.cuts_before(tokens, &["|"]));
        let cuts = cuts.or_else(|| self.cuts_before(tokens, &["+", "-"]));
        let cuts = cuts.or_else(|| self.bracket_cuts(tokens))?;
        let goes_on = tokens.first().is_some_and(|token| self.goes_on(token));
        let mut parts: Vec<(Line, bool)> = Vec::new();
        let mut from = 0;
        let mut pipes = goes_on;
        for cut in cuts.iter().map(|cut| cut.at).chain([tokens.len()]) {
            let mut piece = tokens.get(from..cut).unwrap_or(&[]).to_vec();
            while piece.last().is_some_and(|token| token.text(self.text) == ";") {
                piece.pop();
            }
            if !piece.is_empty() {
                let part = Line { tokens: piece, comment: None, spaced: false };
                parts.push((part, pipes));
            }
            from = cut;
            pipes = cuts.iter().any(|c| c.at == cut && c.goes_on);
        }
        parts.first_mut()?.0.spaced = line.spaced;
        parts.last_mut()?.0.comment = line.comment;
        (parts.len() > 1).then_some(parts)
    }

    /// Before each of the operators that stands outside brackets.
    fn cuts_before(&self, tokens: &[Token], operators: &[&str]) -> Option<Vec<Cut>> {
        let mut cuts = Vec::new();
        let mut depth = 0usize;
        for (at, token) in tokens.iter().enumerate() {
            match token.kind {
                TokenKind::Open => depth += 1,
                TokenKind::Close => depth = depth.checked_sub(1)?,
                _ if depth == 0
                    && at > 0
                    && operators.contains(&token.text(self.text))
                    && self.marks.at(token.start) != Some(Mark::Unary) =>
                {
                    cuts.push(Cut { at, goes_on: true });
                }
                _ => {}
            }
        }
        (!cuts.is_empty()).then_some(cuts)
    }

    /// Around the lines of the first block that opens and closes on the line.
    fn block_cuts(&self, tokens: &[Token]) -> Option<Vec<Cut>> {
        let holds_lines = |at: usize| {
            let token = &tokens[at];
            token.text(self.text) == "{" && self.marks.at(token.start) != Some(Mark::TightBrace)
        };
        let (open, close) = groups(tokens).into_iter().find(|(open, _)| holds_lines(*open))?;
        if close == open + 1 {
            return None;
        }
        let mut cuts = vec![Cut { at: open + 1, goes_on: false }];
        let fields = self.marks.at(tokens[open].start) == Some(Mark::Fields);
        cuts.extend(self.level(tokens, open, close, if fields { "," } else { ";" }));
        cuts.push(Cut { at: close, goes_on: false });
        Some(cuts)
    }

    /// Around the arguments of the widest bracket that is not inside another.
    fn bracket_cuts(&self, tokens: &[Token]) -> Option<Vec<Cut>> {
        let width = |(open, close): &(usize, usize)| tokens[*close].end - tokens[*open].start;
        let (open, close) = groups(tokens).into_iter().max_by_key(width)?;
        if close == open + 1 {
            return None;
        }
        let mut cuts = vec![Cut { at: open + 1, goes_on: false }];
        cuts.extend(self.level(tokens, open, close, ","));
        cuts.push(Cut { at: close, goes_on: false });
        Some(cuts)
    }

    /// Behind each separator directly inside a bracket.
    fn level(&self, tokens: &[Token], open: usize, close: usize, separator: &str) -> Vec<Cut> {
        let mut depth = 0usize;
        let mut cuts = Vec::new();
        for (at, token) in tokens.iter().enumerate().take(close).skip(open + 1) {
            match token.kind {
                TokenKind::Open => depth += 1,
                TokenKind::Close => depth = depth.saturating_sub(1),
                _ if depth == 0 && at + 1 < close && token.text(self.text) == separator => {
                    cuts.push(Cut { at: at + 1, goes_on: false });
                }
                _ => {}
            }
        }
        cuts
    }
}

/// A break before a token of a line.
struct Cut {
    at: usize,
    goes_on: bool,
}

/// Brackets that open and close on the line and are inside no other such bracket.
fn groups(tokens: &[Token]) -> Vec<(usize, usize)> {
    let mut open: Vec<usize> = Vec::new();
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Open => open.push(at),
            TokenKind::Close => {
                if let Some(from) = open.pop() {
                    found.retain(|(inner, _)| *inner < from);
                    found.push((from, at));
                }
            }
            _ => {}
        }
    }
    found
}

/// Runs of neighboring lines for which `same` holds.
fn runs(out: &[Printed], same: impl Fn(&Printed, &Printed) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for at in 1..=out.len() {
        let joined = at < out.len() && !out[at].spaced && same(&out[at - 1], &out[at]);
        if !joined {
            runs.push(start..at);
            start = at;
        }
    }
    runs
}

/// Puts the `=` of neighboring bindings, or the `from` of neighboring params, into one column.
fn line_up(out: &mut [Printed]) {
    let kind = |line: &Printed| line.column.map(|(class, _)| (class, line.indent));
    for run in runs(out, |a, b| kind(a).is_some() && kind(a) == kind(b)) {
        let ends: Vec<usize> =
            out[run.clone()].iter().filter_map(|l| Some(l.width_to(l.column?.1))).collect();
        let (Some(widest), Some(least)) = (ends.iter().max(), ends.iter().min()) else { continue };
        if widest - least > WIDEST_GAP {
            continue;
        }
        for (line, end) in out[run].iter_mut().zip(&ends) {
            if let Some((_, word)) = line.column
                && let Some((gap, _)) = line.words.get_mut(word)
            {
                *gap += widest - end;
            }
        }
    }
}

/// Puts the comments behind neighboring lines into one column where that fits.
fn line_up_comments(out: &mut [Printed]) {
    let behind = |line: &Printed| line.comment.is_some() && !line.words.is_empty();
    for run in runs(out, |a, b| behind(a) && behind(b)) {
        let widest = out[run.clone()].iter().map(Printed::width).max().unwrap_or(0);
        let longest = out[run.clone()]
            .iter()
            .filter_map(|line| line.comment.as_ref())
            .map(|comment| comment.chars().count())
            .max();
        if widest + 2 + longest.unwrap_or(0) > WIDTH {
            continue;
        }
        for line in &mut out[run] {
            line.gap = widest + 2 - line.width();
        }
    }
}

fn join(out: &[Printed]) -> String {
    let mut text = String::new();
    for line in out {
        if line.spaced {
            text.push('\n');
        }
        text.extend(std::iter::repeat_n(' ', line.indent));
        for (gap, word) in &line.words {
            text.extend(std::iter::repeat_n(' ', *gap));
            text.push_str(word);
        }
        if let Some(comment) = &line.comment {
            if !line.words.is_empty() {
                text.extend(std::iter::repeat_n(' ', line.gap));
            }
            text.push_str(comment);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
