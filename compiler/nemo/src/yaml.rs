//! One YAML file as a tree of settings with places.
//!
//! In: the bytes of a file. Out: its mapping, and warnings for scalars that are not what they look
//! like; or one error. Anchors, aliases and merge keys are expanded here, within a bound, so a file
//! of a few lines cannot fill the memory. Nesting is bounded before anything recurses further.

use std::borrow::Cow;
use std::collections::HashMap;

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Severity, SourceId, Span};
use nrl_rules::settings::{Node, Origin, SetBy, Value};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, StrInput, Tag};

use crate::scalar;

/// The largest file that is read.
pub(crate) const LARGEST: usize = 4 << 20;
/// The most values of one file, aliases expanded.
const MOST: usize = 200_000;
/// The deepest nesting.
const DEEPEST: usize = 128;

type Stop = Box<Diagnostic>;

/// The text of a file, or why it is not one.
pub(crate) fn text(name: &str, bytes: Vec<u8>) -> Result<String, Stop> {
    if bytes.len() > LARGEST {
        let mib = bytes.len() as f64 / f64::from(1 << 20);
        let said = format!("{name} has {mib:.1} MiB; a recipe has at most {} MiB", LARGEST >> 20);
        let help = "pass the recipe, not the data it reads";
        return Err(Diagnostic::error("file-too-large", said).help(help).into());
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].split(|b| *b == b'\n').count();
        let said = format!("{name} is not UTF-8 text: line {line} has a byte that is none");
        Diagnostic::error("not-utf8", said).help("save the file as UTF-8")
    })?;
    Ok(text)
}

/// The mapping that a file holds.
pub(crate) fn parse(
    name: &str,
    text: &str,
    source: SourceId,
) -> (Result<Node, Box<Diagnostic>>, Vec<Diagnostic>) {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let skipped = text.len() - body.len();
    if let Some(found) = unprintable(name, text, source) {
        return (Err(found), vec![]);
    }
    let mut reader = Reader {
        name,
        text,
        source,
        skipped,
        starts: char_starts(body),
        parser: Parser::new_from_str(body),
        anchors: HashMap::new(),
        found: vec![],
        count: 0,
        depth: 0,
    };
    let tree = reader.document();
    (tree, reader.found)
}

/// A character that YAML does not allow anywhere, such as a backspace.
fn unprintable(name: &str, text: &str, source: SourceId) -> Option<Stop> {
    let control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    let odd = |(_, c): &(usize, char)| control(*c) || matches!(c, '\u{fffe}' | '\u{ffff}');
    let (at, c) = text.char_indices().find(odd)?;
    let line = text[..at].matches('\n').count() + 1;
    let said = format!(
        "{name}, line {line} is not YAML: it holds the character U+{:04X}, which no YAML may hold",
        u32::from(c)
    );
    let found = Diagnostic::error("yaml-syntax", said);
    let found = found.label(Span::new(source, at, at + c.len_utf8()), "here");
    Some(found.help("remove it, or write it in double quotes, such as `\"\\x01\"`").into())
}

/// Byte offsets of characters; empty where every character is one byte.
fn char_starts(text: &str) -> Vec<u32> {
    if text.is_ascii() {
        return vec![];
    }
    let ends = text.char_indices().map(|(at, _)| at as u32);
    ends.chain([text.len() as u32]).collect()
}

struct Reader<'t> {
    name: &'t str,
    text: &'t str,
    source: SourceId,
    skipped: usize,
    starts: Vec<u32>,
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, (Node, usize)>,
    found: Vec<Diagnostic>,
    count: usize,
    depth: usize,
}

/// A key of a mapping.
struct Key {
    text: String,
    span: Span,
    merge: bool,
}

impl<'t> Reader<'t> {
    fn document(&mut self) -> Result<Node, Stop> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(_) => {}
                Event::StreamEnd => return Ok(node(Value::Map(IndexMap::new()), span)),
                first => {
                    let tree = self.value(first, span)?;
                    self.ends()?;
                    return self.root(tree);
                }
            }
        }
    }

    /// A recipe is one mapping; a document of null is an empty one.
    fn root(&self, tree: Node) -> Result<Node, Stop> {
        let is = match &tree.value {
            Value::Map(_) => return Ok(tree),
            Value::Null => return Ok(node(Value::Map(IndexMap::new()), tree.origin.value)),
            Value::List(_) => "a list",
            _ => "a single value",
        };
        let said = format!("{} is {is}; a recipe is a mapping of sections", self.name);
        let found = Diagnostic::error("not-a-mapping", said);
        let place = self.first_line(tree.origin.value);
        Err(found.label(place, "here").help("begin with `policy:`, `cluster:` and so on").into())
    }

    fn first_line(&self, span: Span) -> Span {
        let text = self.text.get(span.range()).unwrap_or("");
        let length = text.find('\n').unwrap_or(text.len());
        Span::new(self.source, span.start as usize, span.start as usize + length)
    }

    /// Nothing may follow the first document.
    fn ends(&mut self) -> Result<(), Stop> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::DocumentEnd => {}
                Event::StreamEnd => return Ok(()),
                _ => {
                    let said = format!("{} holds more than one YAML document", self.name);
                    let found = Diagnostic::error("yaml-syntax", said).label(span, "a second one");
                    return Err(found.help("keep one: remove the line `---`").into());
                }
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Stop> {
        match self.parser.next_event() {
            Some(Ok((event, at))) => {
                let span = self.span(at.start.index(), at.end.index());
                Ok((event, span))
            }
            Some(Err(error)) => Err(self.broken(&error)),
            None => Ok((Event::StreamEnd, self.span(usize::MAX, usize::MAX))),
        }
    }

    fn broken(&self, error: &ScanError) -> Stop {
        let span = self.span(error.marker().index(), error.marker().index() + 1);
        let line = self.text.get(..span.start as usize).unwrap_or("").matches('\n').count() + 1;
        if error.info().contains("recursion limit") {
            let said = format!("{} is nested deeper than {DEEPEST} levels", self.name);
            return Diagnostic::error("nesting-too-deep", said).label(span, "here").into();
        }
        let said = format!("{}, line {line} is not YAML: {}", self.name, error.info());
        let mut found = Diagnostic::error("yaml-syntax", said).label(span, "read up to here");
        let here = self.text.lines().nth(line - 1).unwrap_or("");
        if here.trim_start_matches(' ').starts_with('\t') {
            found = found.help("indent with spaces: YAML knows no tabs");
        } else if error.info().contains("anchor") {
            found = found.help("define the anchor with `&name` above its use");
        }
        found.into()
    }

    fn span(&self, start: usize, end: usize) -> Span {
        let byte = |at: usize| {
            let inner = match self.starts.get(at) {
                Some(byte) => *byte as usize,
                None if self.starts.is_empty() => at.min(self.text.len() - self.skipped),
                None => self.text.len() - self.skipped,
            };
            inner + self.skipped
        };
        Span::new(self.source, byte(start), byte(end))
    }

    /// A span without the blanks at its end.
    fn tight(&self, span: Span) -> Span {
        let text = self.text.get(span.range()).unwrap_or("");
        Span::new(self.source, span.start as usize, span.start as usize + text.trim_end().len())
    }

    fn counted(&mut self, values: usize, span: Span) -> Result<(), Stop> {
        self.count += values;
        if self.count <= MOST {
            return Ok(());
        }
        let said = format!("{} holds more than {MOST} values, aliases expanded", self.name);
        let help = "a recipe has some hundreds of values; write what the aliases repeat once";
        let found = Diagnostic::error("too-much-work", said).label(self.first_line(span), "here");
        Err(found.help(help).into())
    }

    fn value(&mut self, event: Event<'t>, span: Span) -> Result<Node, Stop> {
        self.counted(1, span)?;
        let before = self.count - 1;
        let (read, anchor) = match event {
            Event::Alias(id) => return self.alias(id, span),
            Event::Scalar(text, style, anchor, tag) => {
                (self.scalar(&text, style, tag, span)?, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.collection_tag(tag, "seq", span)?;
                (self.nested(span, Self::sequence)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.collection_tag(tag, "map", span)?;
                (self.nested(span, Self::mapping)?, anchor)
            }
            _ => {
                let said = format!("{} ends in the middle of a value", self.name);
                return Err(Diagnostic::error("yaml-syntax", said).label(span, "here").into());
            }
        };
        if anchor > 0 {
            let size = self.count - before;
            self.counted(size, span)?;
            self.anchors.insert(anchor, (read.clone(), size));
        }
        Ok(read)
    }

    fn nested(
        &mut self,
        span: Span,
        inside: fn(&mut Self, Span) -> Result<Node, Stop>,
    ) -> Result<Node, Stop> {
        if self.depth == DEEPEST {
            let said = format!("{} is nested deeper than {DEEPEST} levels", self.name);
            let place = self.first_line(span);
            return Err(Diagnostic::error("nesting-too-deep", said).label(place, "here").into());
        }
        self.depth += 1;
        let read = inside(self, span);
        self.depth -= 1;
        read
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<Node, Stop> {
        let Some((mut value, size)) = self.anchors.get(&id).cloned() else {
            let said = format!("an anchor of {} contains itself", self.name);
            return Err(Diagnostic::error("yaml-syntax", said).label(span, "here").into());
        };
        self.counted(size, span)?;
        let written = value.origin.source.unwrap_or(value.origin.value);
        value.origin = Origin { by: SetBy::File, key: span, value: span, source: Some(written) };
        Ok(value)
    }

    fn sequence(&mut self, start: Span) -> Result<Node, Stop> {
        let mut items = vec![];
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(node(Value::List(items), self.tight(start.to(span))));
            }
            items.push(self.value(event, span)?);
        }
    }

    fn mapping(&mut self, start: Span) -> Result<Node, Stop> {
        let mut own: IndexMap<String, Node> = IndexMap::new();
        let mut merged = vec![];
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                let whole = self.tight(start.to(span));
                return Ok(node(Value::Map(combined(merged, own)), whole));
            }
            let key = self.key(event, span)?;
            let (event, span) = self.next()?;
            let mut value = self.value(event, span)?;
            if key.merge {
                self.merge_key(value, &mut merged)?;
                continue;
            }
            value.origin.key = key.span;
            if let Some(first) = own.get(&key.text) {
                return Err(self.twice(&key, first.origin.key));
            }
            own.insert(key.text, value);
        }
    }

    fn twice(&self, key: &Key, first: Span) -> Stop {
        let line = |span: Span| {
            self.text.get(..span.start as usize).unwrap_or("").matches('\n').count() + 1
        };
        let said = format!(
            "`{}` is given twice in one mapping: lines {} and {}",
            key.text,
            line(first),
            line(key.span)
        );
        let found = Diagnostic::error("duplicate-key", said).label(key.span, "again here");
        found.label(first, "first here").help("keep one of the two").into()
    }

    fn key(&mut self, event: Event<'t>, span: Span) -> Result<Key, Stop> {
        let Event::Scalar(text, style, _, tag) = event else {
            let said = String::from("a key is a list, a mapping or an alias; keys are words");
            return Err(Diagnostic::error("yaml-syntax", said).label(span, "here").into());
        };
        let plain = style == ScalarStyle::Plain && tag.is_none();
        if plain && text == "<<" {
            return Ok(Key { text: String::new(), span, merge: true });
        }
        let read = if plain { scalar::read(&text) } else { Ok(Value::Text(text.to_string())) };
        let text = match read {
            Ok(Value::Int(n)) => n.to_string(),
            Ok(Value::Null) => {
                let said = String::from("a key is empty or `null`; keys are words");
                return Err(Diagnostic::error("yaml-syntax", said).label(span, "here").into());
            }
            Ok(value) => {
                if plain {
                    self.surprised(&text, &value, span);
                }
                text.to_string()
            }
            Err(_) => text.to_string(),
        };
        Ok(Key { text, span, merge: false })
    }

    fn merge_key(&self, value: Node, merged: &mut Vec<Node>) -> Result<(), Stop> {
        let place = value.origin.value;
        let parts = match value.value {
            Value::Map(_) => vec![value],
            Value::List(items) => items,
            _ => vec![node(Value::Null, place)],
        };
        if parts.iter().any(|part| !matches!(part.value, Value::Map(_))) {
            let said = String::from("`<<` takes a mapping or a list of mappings");
            return Err(Diagnostic::error("yaml-syntax", said).label(place, "here").into());
        }
        merged.extend(parts);
        Ok(())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<Cow<'t, Tag>>,
        span: Span,
    ) -> Result<Node, Stop> {
        let as_text = || Value::Text(text.to_string());
        let value = match tag {
            Some(tag) => self.tagged(text, &tag, span)?,
            None if style != ScalarStyle::Plain => as_text(),
            None => match scalar::read(text) {
                Ok(value) => {
                    self.surprised(text, &value, span);
                    value
                }
                Err(why) => {
                    let said = format!("`{text}` cannot be read: {why}");
                    let found = Diagnostic::error("yaml-syntax", said).label(span, "here");
                    return Err(found.help(format!("write `\"{text}\"` if it is a text")).into());
                }
            },
        };
        Ok(node(value, self.tight(span)))
    }

    fn tagged(&self, text: &str, tag: &Tag, span: Span) -> Result<Value, Stop> {
        let core = tag.handle == "tag:yaml.org,2002:" || tag.handle == "!!";
        let bare = tag.handle == "!" && tag.suffix.is_empty();
        let read = match tag.suffix.as_str() {
            _ if bare => Some(Value::Text(text.to_string())),
            "str" if core => Some(Value::Text(text.to_string())),
            "null" if core => Some(Value::Null),
            "int" | "float" | "bool" if core => scalar::read(text).ok(),
            _ => None,
        };
        let fits = match (&read, tag.suffix.as_str()) {
            (Some(Value::Int(n)), "float") => return Ok(Value::Float(*n as f64)),
            (Some(Value::Int(_)), "int") | (Some(Value::Float(_)), "float") => true,
            (Some(Value::Bool(_)), "bool") => true,
            (_, "int" | "float" | "bool") => false,
            (read, _) => read.is_some(),
        };
        match read {
            Some(value) if fits => Ok(value),
            _ => Err(self.bad_tag(tag, span)),
        }
    }

    fn collection_tag(
        &self,
        tag: Option<Cow<'t, Tag>>,
        kind: &str,
        span: Span,
    ) -> Result<(), Stop> {
        match tag {
            Some(tag) if tag.suffix != kind => Err(self.bad_tag(&tag, span)),
            _ => Ok(()),
        }
    }

    fn bad_tag(&self, tag: &Tag, span: Span) -> Stop {
        let said = format!("the tag `{tag}` does not fit here, or no recipe may use it");
        let found = Diagnostic::error("yaml-syntax", said).label(self.first_line(span), "here");
        found.help("write the value without a tag").into()
    }

    fn surprised(&mut self, text: &str, value: &Value, span: Span) {
        if let Some((said, help)) = scalar::surprise(text, value) {
            let found = Diagnostic::warning("yaml-reads-otherwise", said);
            self.found.push(found.label(self.tight(span), "read so by YAML 1.1").help(help));
        } else if let Some((said, help)) = scalar::undotted(text, value) {
            let found = Diagnostic::new("yaml-reads-otherwise", Severity::Note, said);
            self.found.push(found.label(self.tight(span), "a number, here").help(help));
        }
    }
}

fn node(value: Value, span: Span) -> Node {
    Node { value, origin: Origin { by: SetBy::File, key: span, value: span, source: None } }
}

/// Merged mappings first, the first named of them winning; then the mapping's own keys.
fn combined(merged: Vec<Node>, own: IndexMap<String, Node>) -> IndexMap<String, Node> {
    if merged.is_empty() {
        return own;
    }
    let mut all = IndexMap::new();
    for part in merged.into_iter().rev() {
        if let Value::Map(map) = part.value {
            all.extend(map);
        }
    }
    all.extend(own);
    all
}
