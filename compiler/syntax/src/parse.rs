//! Parsing: the whole file, or one expression, type or override.

use std::collections::{HashMap, HashSet};

use nrl_base::{Diagnostic, Problems, SourceId, Span};
use nrl_grammar::Grammar;
use pest::Parser;
use pest::iterators::Pair;

use crate::ast::{Expr, File, Type};
use crate::build::{Build, Kids, entry};
use crate::errors::{Piece, Place, explain};
use crate::lex::lex;
use crate::mask::{Masked, mask};

/// The largest file, in bytes.
pub const LARGEST: usize = 4 << 20;

/// How many syntax errors one file reports.
const MOST: usize = 64;

/// Reads one file. Always gives a tree; what could not be read is left out and reported.
pub fn parse(source: SourceId, text: &str) -> (File, Vec<Diagnostic>) {
    let mut problems = Problems::new();
    let span = Span::new(source, 0, text.len());
    let mut file = File { items: Vec::new(), span };
    let masked = match prepare(source, text, &mut problems) {
        Some(masked) => masked,
        None => return (file, problems.into_sorted()),
    };
    let mut found = Vec::new();
    for range in &masked.items {
        let item = masked.text.get(range.clone()).unwrap_or("").trim_end_matches([' ', '\n']);
        let piece = Piece {
            span: Span::new(source, range.start, range.start + item.len()),
            masked: item,
            original: text.get(range.start..text.len().min(range.start + item.len())).unwrap_or(""),
            place: Place::Item,
        };
        let build = |build: &mut Build<'_>, pair: Pair<'_, _>| build.item(pair);
        let before = found.len();
        let item = read(source, text, &piece, &masked.docs, &mut found, build);
        if item.is_none()
            && let Some(body) = without_header(&piece, &found[before..])
        {
            let rest = Piece { masked: &body, ..piece };
            read(source, text, &rest, &masked.docs, &mut found, build);
        }
        file.items.extend(item);
    }
    let first = first_causes(text, problems.as_slice(), found);
    problems.extend(first.into_iter().take(MOST));
    (file, problems.into_sorted())
}

/// Leaves out what is found on a line whose characters were already reported.
fn first_causes(text: &str, known: &[Diagnostic], found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let line = |d: &Diagnostic| {
        let start = d.span().map_or(0, |span| span.start as usize);
        text.get(..start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1)
    };
    let characters = known.iter().filter(|d| d.code != "unbalanced-bracket").map(line);
    let characters: HashSet<usize> = characters.collect();
    found.into_iter().filter(|d| !characters.contains(&line(d))).collect()
}

/// Reads a file that may not be text at all.
pub fn parse_bytes(source: SourceId, bytes: &[u8]) -> (File, Vec<Diagnostic>) {
    match utf8(source, bytes) {
        Ok(text) => parse(source, text),
        Err(diagnostic) => {
            (File { items: Vec::new(), span: Span::new(source, 0, 0) }, vec![*diagnostic])
        }
    }
}

/// The text of a file, or `file-too-large` or `not-utf8`.
pub fn utf8(source: SourceId, bytes: &[u8]) -> Result<&str, Box<Diagnostic>> {
    if bytes.len() > LARGEST {
        return Err(Box::new(too_large(source, bytes.len())));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let line = bytes[..at].iter().filter(|b| **b == b'\n').count() + 1;
        let byte = bytes.get(at).copied().unwrap_or(0);
        let message = format!("byte {at} (0x{byte:02x}, line {line}) is not UTF-8 text");
        Box::new(
            Diagnostic::error("not-utf8", message)
                .label(Span::new(source, at, at), "here")
                .help("save the file as UTF-8"),
        )
    })
}

/// Reads one expression, as in `--set path=expr`.
pub fn parse_expr(source: SourceId, text: &str) -> Result<Expr, Vec<Diagnostic>> {
    alone(source, text, Place::Expression, |build, pair| build.expr(pair))
}

/// Reads one type.
pub fn parse_type(source: SourceId, text: &str) -> Result<Type, Vec<Diagnostic>> {
    alone(source, text, Place::Type, |build, pair| build.ty(pair))
}

/// Reads `path=expr`, as `--set` takes it: the path and the value.
pub fn parse_override(source: SourceId, text: &str) -> Result<(Expr, Expr), Vec<Diagnostic>> {
    // `override_only` is two pairs; the first call keeps the path, the second the value.
    let mut path = None;
    let value = alone(source, text, Place::Override, |build, pair| {
        if path.is_none() {
            path = build.expr(pair);
            return None;
        }
        build.value(pair)
    })?;
    match path {
        Some(path) => Ok((path, value)),
        None => Err(vec![not_understood(source, text)]),
    }
}

fn not_understood(source: SourceId, text: &str) -> Diagnostic {
    Diagnostic::error("syntax", "this is not understood")
        .label(Span::new(source, 0, text.len()), "here")
}

fn alone<T>(
    source: SourceId,
    text: &str,
    place: Place,
    build: impl FnMut(&mut Build<'_>, Pair<'_, nrl_grammar::Rule>) -> Option<T>,
) -> Result<T, Vec<Diagnostic>> {
    let mut problems = Problems::new();
    let Some(mut masked) = prepare(source, text, &mut problems) else {
        return Err(problems.into_sorted());
    };
    masked.text = masked.text.replace('\n', " ");
    let piece = Piece {
        span: Span::new(source, 0, text.len()),
        masked: masked.text.trim_end(),
        original: text,
        place,
    };
    let mut found = Vec::new();
    let built = read(source, text, &piece, &masked.docs, &mut found, build);
    problems.extend(found);
    match built {
        Some(built) if !problems.has_errors() => Ok(built),
        _ if problems.is_empty() => Err(vec![not_understood(source, text)]),
        _ => Err(problems.into_sorted()),
    }
}

/// Size, characters and brackets; `None` if reading on makes no sense.
fn prepare(source: SourceId, text: &str, problems: &mut Problems) -> Option<Masked> {
    if text.len() > LARGEST {
        problems.push(too_large(source, text.len()));
        return None;
    }
    let mut lexed = lex(source, text);
    let mut found = std::mem::take(&mut lexed.problems);
    found.truncate(MOST);
    problems.extend(found);
    match mask(source, text, &lexed) {
        Ok(mut masked) => {
            masked.problems.truncate(MOST);
            problems.extend(std::mem::take(&mut masked.problems));
            Some(masked)
        }
        Err(diagnostic) => {
            problems.push(diagnostic);
            None
        }
    }
}

fn too_large(source: SourceId, bytes: usize) -> Diagnostic {
    let (megabytes, limit) = (bytes as f64 / 1e6, LARGEST >> 20);
    let message = format!("the file has {megabytes:.1} MB; a recipe has at most {limit} MiB");
    Diagnostic::error("file-too-large", message)
        .label(Span::new(source, 0, 0), "this file")
        .help("data belongs into a file of its own, read with `data.jsonl(\"...\")`")
}

/// An item whose header is broken with a plain header instead, so that errors of its body show too.
fn without_header(piece: &Piece<'_>, found: &[Diagnostic]) -> Option<String> {
    let header = match piece.masked.split([' ', '(']).next()? {
        "recipe" => "recipe x",
        "model" => "model x",
        "fn" => "fn x()",
        "test" => "test x",
        _ => return None,
    };
    let mut depth = 0usize;
    let bytes = piece.masked.as_bytes();
    let open = bytes.iter().enumerate().rev().find_map(|(at, b)| {
        match b {
            b'}' => depth += 1,
            b'{' => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0).then_some(at)
    })?;
    let wrong = found.first()?.span()?.start as usize;
    if bytes[open] != b'{' || open < header.len() || wrong > piece.span.start as usize + open {
        return None;
    }
    let blanks = " ".repeat(open - header.len());
    Some(format!("{header}{blanks}{}", &piece.masked[open..]))
}

/// Parses one piece and builds what it holds.
fn read<T>(
    source: SourceId,
    text: &str,
    piece: &Piece<'_>,
    docs: &HashMap<usize, String>,
    problems: &mut Vec<Diagnostic>,
    mut build: impl FnMut(&mut Build<'_>, Pair<'_, nrl_grammar::Rule>) -> Option<T>,
) -> Option<T> {
    let pairs = match Grammar::parse(entry(piece.place), piece.masked) {
        Ok(mut pairs) => pairs.next()?,
        Err(error) => {
            problems.push(explain(piece, &error));
            return None;
        }
    };
    let offset = piece.span.start as usize;
    let mut builder = Build { source, original: text, offset, docs, problems, weight: 0 };
    Kids::of(pairs).filter_map(|pair| build(&mut builder, pair)).last()
}
