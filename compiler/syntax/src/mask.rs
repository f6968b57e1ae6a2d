//! The masked text that the grammar reads, made from tokens.
//!
//! Same length in bytes as the source, so positions agree. Comments become blanks, the inside of
//! a text becomes underscores, and a line break stays only where it ends a line: not inside `( )`
//! or `[ ]`, not behind an operator, not before one. Brackets come out balanced; a bracket that
//! is not closed is reported and its line blanked, so the lines around it are still read.
//! Brackets and prefix operators deeper than 128 are refused here, before anything recurses.

mod extra;

use std::collections::HashMap;
use std::ops::Range;

use nrl_base::{Diagnostic, SourceId, Span};

use crate::lex::{Lexed, Token, TokenKind};

/// How deep brackets, prefix operators and `if`s may nest, all together.
pub(crate) const DEEPEST: usize = 128;

/// What the parser starts from.
pub(crate) struct Masked {
    /// ASCII, as long as the source.
    pub text: String,
    /// One byte range per item.
    pub items: Vec<Range<usize>>,
    /// Doc comments by the byte where the documented thing starts.
    pub docs: HashMap<usize, String>,
    pub problems: Vec<Diagnostic>,
}

/// Masks `text`; nothing but the error if it nests too deep.
pub(crate) fn mask(source: SourceId, text: &str, lexed: &Lexed) -> Result<Masked, Diagnostic> {
    let tokens = &lexed.tokens;
    let mut out = blank(text, lexed);
    let code: Vec<Token> = tokens.iter().copied().filter(|t| !is_trivia(t.kind)).collect();
    too_deep(source, &code)?;
    let matched = match brackets(text, &code, false) {
        Ok(matched) => matched,
        Err(()) => match extra::extra_brace(text, &code) {
            Some(token) => Brackets::without(&token),
            None => brackets(text, &code, true).unwrap_or_default(),
        },
    };
    let problems = matched.faults.iter().map(|fault| fault.report(source, text)).collect();
    matched.apply(&mut out);
    let mut lines = Lines { source, text, out, stack: Vec::new(), nest: 0, items: Vec::new() };
    lines.walk(&code, &matched.dropped)?;
    let items = lines.items;
    let text_out = String::from_utf8(lines.out).unwrap_or_default();
    Ok(Masked { text: text_out, items, docs: docs(text, tokens), problems })
}

/// Refuses brackets that nest too deep, closed or not.
fn too_deep(source: SourceId, code: &[Token]) -> Result<(), Diagnostic> {
    let mut depth = 0usize;
    for token in code {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Err(nesting(source, token));
        }
    }
    Ok(())
}

fn nesting(source: SourceId, token: &Token) -> Diagnostic {
    let span = Span::new(source, token.start, token.end);
    Diagnostic::error("nesting-too-deep", format!("nested deeper than {DEEPEST} levels"))
        .label(span, format!("level {}", DEEPEST + 1))
        .help("give the inner parts names with `x = ...`")
}

fn is_trivia(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Comment | TokenKind::Newline)
}

/// Tokens on a background of blanks, texts filled with underscores, slips repaired.
fn blank(text: &str, lexed: &Lexed) -> Vec<u8> {
    let mut out = vec![b' '; text.len()];
    for token in lexed.tokens.iter().filter(|t| !is_trivia(t.kind)) {
        let range = token.start..token.end;
        if token.kind != TokenKind::Text {
            out[range.clone()].copy_from_slice(&text.as_bytes()[range]);
            continue;
        }
        out[range].fill(b'_');
        if token.end - token.start >= 2 {
            out[token.end - 1] = b'"';
            let raw = text.as_bytes()[token.start] == b'r';
            out[token.start] = if raw { b'r' } else { b'"' };
            if raw && token.end - token.start >= 3 {
                out[token.start + 1] = b'"';
            }
        }
    }
    for (at, repair) in &lexed.repairs {
        out[*at..*at + repair.len()].copy_from_slice(repair);
    }
    out
}

/// What is wrong with one bracket.
enum Fault {
    Unclosed(Token),
    Stray(Token),
    Mismatch { open: Token, close: Token },
}

impl Fault {
    fn report(&self, source: SourceId, text: &str) -> Diagnostic {
        let span = |token: &Token| Span::new(source, token.start, token.end);
        match self {
            Fault::Unclosed(open) => {
                let (bracket, closer) = (open.text(text), closer_of(open.text(text)));
                Diagnostic::error("unbalanced-bracket", format!("`{bracket}` is never closed"))
                    .label(span(open), format!("no `{closer}` belongs to this"))
                    .help(format!("add `{closer}` where it should end"))
            }
            Fault::Stray(close) => {
                let bracket = close.text(text);
                Diagnostic::error("unbalanced-bracket", format!("`{bracket}` closes nothing"))
                    .label(span(close), "nothing is open here")
                    .help(format!("remove this `{bracket}`, or open it before"))
            }
            Fault::Mismatch { open, close } => {
                let (bracket, found) = (open.text(text), close.text(text));
                let closer = closer_of(bracket);
                let message = format!("`{bracket}` is closed by `{found}`");
                Diagnostic::error("unbalanced-bracket", message)
                    .label(span(close), format!("expected `{closer}`"))
                    .label(span(open), "opened here")
                    .help(format!("write `{closer}`"))
            }
        }
    }
}

fn closer_of(open: &str) -> char {
    match open {
        "(" => ')',
        "[" => ']',
        _ => '}',
    }
}

/// How the brackets were balanced.
#[derive(Default)]
struct Brackets {
    faults: Vec<Fault>,
    /// Ranges to blank: lines that hold a bracket without a partner.
    blanked: Vec<Range<usize>>,
    /// Closers to write into the gap that ends at the byte.
    added: Vec<(usize, char)>,
    /// Closers to replace.
    replaced: Vec<(usize, char)>,
    /// Tokens that no longer count, by their start.
    dropped: Dropped,
}

#[derive(Default)]
struct Dropped {
    ranges: Vec<Range<usize>>,
    /// Extra closers by the start of the token they precede.
    closers: HashMap<usize, usize>,
}

impl Brackets {
    /// Balanced but for one bracket that closes nothing.
    fn without(token: &Token) -> Brackets {
        let mut found = Brackets::default();
        found.drop_token(token);
        found
    }

    fn drop_token(&mut self, token: &Token) {
        self.faults.push(Fault::Stray(*token));
        self.blanked.push(token.start..token.end);
        self.dropped.ranges.push(token.start..token.end);
    }

    fn apply(&self, out: &mut Vec<u8>) {
        let length = out.len();
        for range in &self.blanked {
            out[range.clone()].fill(b' ');
        }
        for (at, closer) in &self.replaced {
            out[*at] = *closer as u8;
        }
        for (before, closer) in &self.added {
            if *before == length {
                out.push(*closer as u8);
                continue;
            }
            let gap = out[..*before].iter().rposition(|b| *b != b' ').map_or(0, |at| at + 1);
            if gap < *before {
                out[gap] = *closer as u8;
            }
        }
    }
}

/// An open bracket with the column its line starts at.
#[derive(Clone, Copy)]
struct Opened {
    token: Token,
    indent: usize,
    /// Where the statement that holds the bracket starts.
    line_start: usize,
}

/// Pairs brackets. Without `repair` any fault is `Err`; with it, indentation tells what was meant.
fn brackets(text: &str, code: &[Token], repair: bool) -> Result<Brackets, ()> {
    let mut pairing = Pairing { text, repair, open: Vec::new(), found: Brackets::default() };
    let (mut indent, mut line_start) = (0, 0);
    let (mut last_end, mut last_kind) = (0, TokenKind::Newline);
    for token in code {
        let first = line_break_between(text, last_end, token.start) || last_end == 0;
        if first {
            indent = column(text, token.start);
            if repair {
                pairing.close_lines(token, indent, last_kind);
            }
            if pairing.open.last().is_none_or(|open| open.token.text(text) == "{") {
                line_start = token.start;
            }
        }
        match token.kind {
            TokenKind::Open => {
                pairing.open.push(Opened { token: *token, indent, line_start });
                line_start = token.end;
            }
            TokenKind::Close => pairing.close(token, first.then_some(indent))?,
            _ => {}
        }
        (last_end, last_kind) = (token.end, token.kind);
    }
    if !repair && !pairing.open.is_empty() {
        return Err(());
    }
    pairing.close_all(0, text.len());
    Ok(pairing.found)
}

struct Pairing<'a> {
    text: &'a str,
    repair: bool,
    open: Vec<Opened>,
    found: Brackets,
}

impl Pairing<'_> {
    fn close(&mut self, token: &Token, own_line: Option<usize>) -> Result<(), ()> {
        let bracket = token.text(self.text);
        let fits = |open: &Opened, text| closer_of(open.token.text(text)) == first_char(bracket);
        if !self.repair {
            let open = self.open.pop().ok_or(())?;
            return if fits(&open, self.text) { Ok(()) } else { Err(()) };
        }
        if let (Some(indent), "}") = (own_line, bracket) {
            let owner = self
                .open
                .iter()
                .rposition(|open| open.indent == indent && open.token.text(self.text) == "{");
            if let Some(owner) = owner {
                self.close_all(owner + 1, token.start);
            }
        }
        let Some(top) = self.open.last().copied() else {
            self.found.drop_token(token);
            return Ok(());
        };
        if fits(&top, self.text) {
            self.open.pop();
            return Ok(());
        }
        let braces = top.token.text(self.text) == "{" || bracket == "}";
        match self.open.iter().rposition(|open| fits(open, self.text)) {
            Some(owner) if braces => {
                self.close_all(owner + 1, token.start);
                self.open.pop();
            }
            None if braces => self.found.drop_token(token),
            _ => {
                self.found.faults.push(Fault::Mismatch { open: top.token, close: *token });
                let closer = closer_of(top.token.text(self.text));
                self.found.replaced.push((token.start, closer));
                self.open.pop();
            }
        }
        Ok(())
    }

    /// Ends what cannot go on at a new line: an item at the margin, a statement to the left.
    fn close_lines(&mut self, token: &Token, indent: usize, before: TokenKind) {
        if indent == 0 && starts_item(token.text(self.text)) {
            self.close_all(0, token.start);
        }
        if token.kind != TokenKind::Word || before == TokenKind::Symbol {
            return;
        }
        while let Some(top) = self.open.last()
            && top.token.text(self.text) != "{"
            && indent <= top.indent
        {
            self.close_all(self.open.len() - 1, token.start);
        }
    }

    /// Reports everything open above `keep` as unclosed, as if it ended before byte `before`.
    fn close_all(&mut self, keep: usize, before: usize) {
        while self.open.len() > keep {
            let Some(open) = self.open.pop() else { return };
            self.found.faults.push(Fault::Unclosed(open.token));
            let gap = self.text.as_bytes()[..before].iter().rev();
            let room = gap.take_while(|b| b.is_ascii_whitespace()).count();
            let used = self.found.dropped.closers.get(&before).copied().unwrap_or(0);
            if open.token.text(self.text) == "{" && (used < room || before == self.text.len()) {
                self.found.added.push((before, '}'));
                *self.found.dropped.closers.entry(before).or_insert(0) += 1;
                continue;
            }
            let from = open.line_start.min(open.token.start);
            self.found.blanked.push(from..before);
            self.found.dropped.ranges.push(from..before);
        }
    }
}

fn first_char(text: &str) -> char {
    text.chars().next().unwrap_or(' ')
}

fn line_break_between(text: &str, from: usize, to: usize) -> bool {
    text.as_bytes().get(from..to).is_some_and(|gap| gap.contains(&b'\n'))
}

fn column(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().rev().take_while(|b| **b != b'\n').count()
}

fn starts_item(word: &str) -> bool {
    matches!(
        word,
        "use"
            | "fn"
            | "extern"
            | "model"
            | "record"
            | "enum"
            | "plan"
            | "recipe"
            | "rollout"
            | "test"
            | "type"
    )
}

/// Decides line by line which breaks end one, and how deep things nest.
struct Lines<'a> {
    source: SourceId,
    text: &'a str,
    out: Vec<u8>,
    /// Per open bracket: whether it is `{`, and the prefix operators since the last separator.
    stack: Vec<(bool, usize)>,
    nest: usize,
    items: Vec<Range<usize>>,
}

impl Lines<'_> {
    fn walk(&mut self, code: &[Token], dropped: &Dropped) -> Result<(), Diagnostic> {
        let mut start = None;
        let mut top = 0;
        let mut previous: Option<Token> = None;
        let mut ranges = Skips::new(&dropped.ranges);
        for (at, token) in code.iter().enumerate() {
            if ranges.skip(token.start) {
                continue;
            }
            for _ in 0..dropped.closers.get(&token.start).copied().unwrap_or(0) {
                self.leave(&mut top);
            }
            if let Some(before) = previous
                && self.breaks(&before, token, code.get(at + 1))
            {
                self.end_line(before.end, token.start, &mut top);
                if self.stack.is_empty() {
                    self.items.extend(start.take().map(|from| from..token.start));
                }
            }
            let word = token.text(self.text);
            if self.stack.is_empty() && word == ";" {
                self.items.extend(start.take().map(|from| from..token.start));
                previous = None;
                continue;
            }
            start = start.or(Some(token.start));
            self.count(token, previous.as_ref(), &mut top)?;
            previous = Some(*token);
        }
        let end = self.out.len();
        self.items.extend(start.map(|from| from..end));
        Ok(())
    }

    fn leave(&mut self, top: &mut usize) {
        self.nest = self.nest.saturating_sub(*top);
        if let Some((_, outer)) = self.stack.pop() {
            *top = outer;
            self.nest = self.nest.saturating_sub(1);
        }
    }

    fn count(
        &mut self,
        token: &Token,
        previous: Option<&Token>,
        top: &mut usize,
    ) -> Result<(), Diagnostic> {
        let word = token.text(self.text);
        match token.kind {
            TokenKind::Open => {
                self.stack.push((word == "{", *top));
                *top = 0;
                self.nest += 1;
            }
            TokenKind::Close => self.leave(top),
            TokenKind::Symbol if word == "," || word == ";" => {
                self.nest -= (*top).min(self.nest);
                *top = 0;
            }
            _ if nests(word, previous.map(|t| (t.kind, t.text(self.text)))) => {
                *top += 1;
                self.nest += 1;
            }
            _ => {}
        }
        if self.nest <= DEEPEST {
            return Ok(());
        }
        Err(nesting(self.source, token))
    }

    /// Whether the break between two tokens ends a line.
    fn breaks(&self, before: &Token, token: &Token, after: Option<&Token>) -> bool {
        if !line_break_between(self.text, before.end, token.start) {
            return false;
        }
        if self.stack.last().is_some_and(|(braces, _)| !braces) {
            return false;
        }
        !continues_after(before, self.text) && !continues_before(token, after, self.text)
    }

    fn end_line(&mut self, from: usize, to: usize, top: &mut usize) {
        if let Some(at) = self.text.as_bytes()[from..to].iter().position(|b| *b == b'\n') {
            let free = self.out[from + at] == b' ';
            self.out[from + at] = if free { b'\n' } else { self.out[from + at] };
        }
        self.nest = self.nest.saturating_sub(*top);
        *top = 0;
    }
}

/// Walks sorted ranges beside the tokens.
struct Skips {
    ranges: Vec<Range<usize>>,
    at: usize,
}

impl Skips {
    fn new(ranges: &[Range<usize>]) -> Self {
        let mut ranges = ranges.to_vec();
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Skips { ranges: merged, at: 0 }
    }

    fn skip(&mut self, byte: usize) -> bool {
        while self.ranges.get(self.at).is_some_and(|range| range.end <= byte) {
            self.at += 1;
        }
        self.ranges.get(self.at).is_some_and(|range| range.contains(&byte))
    }
}

/// Whether the grammar goes one level deeper at this token without a bracket.
fn nests(word: &str, previous: Option<(TokenKind, &str)>) -> bool {
    let operand_before = previous.is_some_and(|(kind, text)| match kind {
        TokenKind::Number | TokenKind::Text | TokenKind::Close => true,
        TokenKind::Word => !matches!(text, "and" | "or" | "not" | "then" | "else" | "if" | "some"),
        _ => text == "?",
    });
    match word {
        "not" | "some" | "if" | "match" | "for" | "scan" | "->" | "^" | "?" | "else" => true,
        "-" => !operand_before,
        _ => false,
    }
}

fn continues_after(token: &Token, text: &str) -> bool {
    let word = token.text(text);
    match token.kind {
        TokenKind::Symbol => !matches!(word, "%" | "?" | ";"),
        TokenKind::Word => matches!(
            word,
            "and"
                | "or"
                | "not"
                | "then"
                | "else"
                | "with"
                | "by"
                | "minimising"
                | "minimizing"
                | "in"
                | "where"
                | "within"
                | "until"
                | "carrying"
        ),
        _ => false,
    }
}

fn continues_before(token: &Token, after: Option<&Token>, text: &str) -> bool {
    let word = token.text(text);
    match token.kind {
        TokenKind::Symbol if word == "-" => after.is_some_and(|next| next.start > token.end),
        TokenKind::Symbol => !matches!(word, ";" | "?" | "!" | "~" | "$"),
        TokenKind::Word if word == "from" => after.is_some_and(|t| t.kind == TokenKind::Text),
        TokenKind::Word => matches!(word, "and" | "or" | "with" | "then" | "else"),
        _ => false,
    }
}

/// Doc comments that stand directly above something.
fn docs(text: &str, tokens: &[Token]) -> HashMap<usize, String> {
    let mut docs = HashMap::new();
    let mut lines: Vec<&str> = Vec::new();
    let (mut breaks, mut own_line) = (0, true);
    for token in tokens {
        match token.kind {
            TokenKind::Newline => {
                breaks += 1;
                own_line = true;
                if breaks > 1 {
                    lines.clear();
                }
            }
            TokenKind::Comment => {
                breaks = 0;
                match doc_text(token.text(text)) {
                    Some(line) if own_line => lines.push(line),
                    _ => lines.clear(),
                }
            }
            // A semicolon that begins a line says nothing, is not printed, and parts what is around it.
            _ if own_line && token.text(text) == ";" => lines.clear(),
            _ => {
                if !lines.is_empty() {
                    docs.insert(token.start, lines.join("\n"));
                    lines.clear();
                }
                (breaks, own_line) = (0, false);
            }
        }
    }
    docs
}

fn doc_text(comment: &str) -> Option<&str> {
    let rest = comment.strip_prefix("##")?;
    if rest.starts_with('#') {
        return None;
    }
    Some(rest.strip_prefix(' ').unwrap_or(rest).trim_end())
}
