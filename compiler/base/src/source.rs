//! Source texts and positions in them.
//!
//! Spans are byte ranges, always on character borders of the text they belong to. Lines and
//! columns count from one; columns count characters, as editors show them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Names one text of a `SourceMap`.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
pub struct SourceId(pub u32);

impl SourceId {
    /// The first id of texts that are part of the program.
    const BUILT_IN: u32 = 1 << 31;

    /// The id of text `index` of the program's own: the same in every map, so trees over it can be
    /// made once and shared.
    pub const fn built_in(index: u32) -> SourceId {
        SourceId(SourceId::BUILT_IN | index)
    }
}

/// A byte range of one source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Span {
    pub source: SourceId,
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// The bytes `start..end` of `source`.
    pub fn new(source: SourceId, start: usize, end: usize) -> Self {
        let clamp = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Span { source, start: clamp(start), end: clamp(end.max(start)) }
    }

    /// The smallest span that holds both; `self` if they are of different sources.
    pub fn to(self, other: Span) -> Span {
        if self.source != other.source {
            return self;
        }
        Span {
            source: self.source,
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The range as indices of the source's text.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Whether `at` lies inside, the end included.
    pub fn touches(self, at: usize) -> bool {
        (self.start as usize..=self.end as usize).contains(&at)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}..{}", self.start, self.end)
    }
}

/// A line and a column, both from one; the column counts characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// One named text with its line starts.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: Cow<'static, str>,
    /// Where each line starts, counted when somebody first asks for a place.
    lines: OnceLock<Vec<usize>>,
}

impl Source {
    fn new(name: String, text: Cow<'static, str>) -> Self {
        Source { name, text, lines: OnceLock::new() }
    }

    fn lines(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            let breaks = self.text.match_indices('\n').map(|(at, _)| at + 1);
            std::iter::once(0).chain(breaks).collect()
        })
    }

    /// The name to print: a path, `--set lr=..`, `std/grpo.nrl`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line and column of a byte offset; past the end means the end.
    pub fn position(&self, offset: usize) -> Position {
        let offset = floor_char(&self.text, offset);
        let lines = self.lines();
        let line = lines.partition_point(|start| *start <= offset);
        let start = lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |s| s.chars().count()) + 1;
        Position { line: line.max(1), column }
    }

    /// The text of a line (from one) without its line break; empty if there is none.
    pub fn line(&self, line: usize) -> &str {
        let lines = self.lines();
        let Some(start) = line.checked_sub(1).and_then(|i| lines.get(i)) else { return "" };
        let end = lines.get(line).copied().unwrap_or(self.text.len());
        self.text.get(*start..end).unwrap_or("").trim_end_matches(['\n', '\r'])
    }
}

fn floor_char(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Every text of a session, by id.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    sources: Vec<Source>,
    built_in: BTreeMap<SourceId, Source>,
}

impl SourceMap {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text under a printable name.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> SourceId {
        let id = SourceId(u32::try_from(self.sources.len()).unwrap_or(u32::MAX));
        self.sources.push(Source::new(name.into(), Cow::Owned(text.into())));
        id
    }

    /// Adds a text of the program's own under its id, [`SourceId::built_in`].
    pub fn add_built_in(&mut self, id: SourceId, name: impl Into<String>, text: &'static str) {
        self.built_in.entry(id).or_insert_with(|| Source::new(name.into(), Cow::Borrowed(text)));
    }

    /// The source of an id, if this map made it.
    pub fn get(&self, id: SourceId) -> Option<&Source> {
        if id.0 >= SourceId::BUILT_IN {
            return self.built_in.get(&id);
        }
        self.sources.get(id.0 as usize)
    }

    /// The text under a span; empty if the span is not of this map.
    pub fn text(&self, span: Span) -> &str {
        self.get(span.source).and_then(|s| s.text().get(span.range())).unwrap_or("")
    }

    /// `name:line:column` of a span's start.
    pub fn place(&self, span: Span) -> String {
        match self.get(span.source) {
            Some(source) => {
                let at = source.position(span.start as usize);
                format!("{}:{}:{}", source.name(), at.line, at.column)
            }
            None => String::from("<unknown>"),
        }
    }

    /// Ids and sources in the order they were added, the program's own last.
    pub fn iter(&self) -> impl Iterator<Item = (SourceId, &Source)> {
        let added = self.sources.iter().enumerate().map(|(at, s)| (SourceId(at as u32), s));
        added.chain(self.built_in.iter().map(|(id, s)| (*id, s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let mut map = SourceMap::new();
        let id = map.add("a.nrl", "é = 1\nx = 22\n");
        let source = map.get(id).unwrap();
        assert_eq!(source.position(0), Position { line: 1, column: 1 });
        assert_eq!(source.position(2), Position { line: 1, column: 2 });
        assert_eq!(source.position(1), Position { line: 1, column: 1 });
        assert_eq!(source.position(7), Position { line: 2, column: 1 });
        assert_eq!(source.position(999), Position { line: 3, column: 1 });
        assert_eq!(source.line(2), "x = 22");
        assert_eq!(source.line(0), "");
        assert_eq!(map.place(Span::new(id, 11, 13)), "a.nrl:2:5");
        assert_eq!(map.text(Span::new(id, 11, 13)), "22");
    }

    #[test]
    fn texts_of_the_program_have_the_same_id_in_every_map() {
        let id = SourceId::built_in(2);
        for others in 0..3 {
            let mut map = SourceMap::new();
            for i in 0..others {
                map.add(format!("{i}.nrl"), "");
            }
            assert!(map.get(id).is_none());
            map.add_built_in(id, "std/a.nrl", "fn f(x: int)\n  = x\n");
            assert_eq!(map.place(Span::new(id, 15, 16)), "std/a.nrl:2:3");
            assert_eq!(map.iter().last().map(|(id, s)| (id, s.name())), Some((id, "std/a.nrl")));
            assert_eq!(map.add("b.nrl", ""), SourceId(others));
        }
    }
}
