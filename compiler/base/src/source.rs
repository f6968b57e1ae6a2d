//! Source texts and positions in them.
//!
//! Spans are byte ranges, always on character borders of the text they belong to. Lines and
//! columns count from one; columns count characters, as editors show them.

use std::fmt;

/// Names one text of a `SourceMap`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct SourceId(pub u32);

/// A byte range of one source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
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
    text: String,
    lines: Vec<usize>,
}

impl Source {
    fn new(name: String, text: String) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(breaks).collect();
        Source { name, text, lines }
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
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |s| s.chars().count()) + 1;
        Position { line: line.max(1), column }
    }

    /// The text of a line (from one) without its line break; empty if there is none.
    pub fn line(&self, line: usize) -> &str {
        let Some(start) = line.checked_sub(1).and_then(|i| self.lines.get(i)) else { return "" };
        let end = self.lines.get(line).copied().unwrap_or(self.text.len());
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
}

impl SourceMap {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text under a printable name.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> SourceId {
        let id = SourceId(u32::try_from(self.sources.len()).unwrap_or(u32::MAX));
        self.sources.push(Source::new(name.into(), text.into()));
        id
    }

    /// The source of an id, if this map made it.
    pub fn get(&self, id: SourceId) -> Option<&Source> {
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

    /// Ids and sources in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = (SourceId, &Source)> {
        self.sources.iter().enumerate().map(|(at, s)| (SourceId(at as u32), s))
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
}
