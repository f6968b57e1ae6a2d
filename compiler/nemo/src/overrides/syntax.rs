//! The grammar of Hydra's overrides.
//!
//! In: one argument of the command line. Out: its kind, path and value with places. Values are
//! quoted or bare words, numbers, flags, null, lists and mappings, or casts such as `str(8)`. Sweeps
//! and config groups, which NeMo RL does not have, are refused by name.

use std::ops::Range;

use indexmap::IndexMap;
use nrl_base::{SourceId, Span};
use nrl_rules::settings::{Node, Origin, SetBy, Value};

use crate::python;

/// What an override does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    /// `a=b`: sets what exists.
    Change,
    /// `+a=b`: adds what does not exist.
    Add,
    /// `++a=b`: either.
    Force,
    /// `~a` or `~a=b`: removes.
    Remove,
}

/// One override.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Override {
    pub kind: Kind,
    pub path: Vec<String>,
    pub key: Span,
    pub value: Node,
}

/// What is wrong with an override.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Wrong {
    pub at: Range<usize>,
    pub why: String,
    pub help: String,
}

/// The deepest nesting of a value.
const DEEPEST: usize = 64;

/// Reads an override.
pub(super) fn parse(text: &str, source: SourceId) -> Result<Override, Wrong> {
    let (kind, start) = if text.starts_with("++") {
        (Kind::Force, 2)
    } else if text.starts_with('+') {
        (Kind::Add, 1)
    } else if text.starts_with('~') {
        (Kind::Remove, 1)
    } else {
        (Kind::Change, 0)
    };
    let equals = text.find('=');
    let end = equals.unwrap_or(text.len());
    let path = path(text, start..end)?;
    let span = |range: Range<usize>| Span::new(source, range.start, range.end);
    let key = span(start..end);
    let mut reader = Reader { text, at: end, source, key, depth: 0 };
    let value = match equals {
        None if kind == Kind::Remove => reader.node(Value::Null, start..end),
        None => {
            let help = format!("write `{text}=VALUE`");
            return Err(Wrong { at: 0..text.len(), why: String::from("it has no `=`"), help });
        }
        Some(_) => {
            reader.at += 1;
            reader.blanks();
            if reader.rest().is_empty() {
                reader.node(Value::Text(String::new()), reader.at..reader.at)
            } else {
                reader.only()?
            }
        }
    };
    Ok(Override { kind, path, key, value })
}

fn path(text: &str, range: Range<usize>) -> Result<Vec<String>, Wrong> {
    let path = text.get(range.clone()).unwrap_or("");
    let wrong =
        |why: String, help: &str| Err(Wrong { at: range.clone(), why, help: help.to_string() });
    let help = "write a path of words: `policy.generation.temperature=0.8`";
    if path.contains(['/', '@', ':']) {
        return wrong(format!("`{path}` names a config group, which recipes do not have"), help);
    }
    let fits = |word: &str| {
        let number = word.bytes().all(|b| b.is_ascii_digit());
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '$');
        let first = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '$');
        !word.is_empty() && (number || word.starts_with(first) && word.chars().all(inner))
    };
    match path.split('.').find(|word| !fits(word)) {
        Some("") => wrong(String::from("its path is empty, or has an empty part"), help),
        Some(word) => wrong(format!("`{word}` is no name of a key"), help),
        None => Ok(path.split('.').map(str::to_string).collect()),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    source: SourceId,
    key: Span,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    fn node(&self, value: Value, range: Range<usize>) -> Node {
        let span = Span::new(self.source, range.start, range.end);
        let origin = Origin { by: SetBy::CommandLine, key: self.key, value: span, source: None };
        Node { value, origin }
    }

    fn wrong<T>(&self, why: impl Into<String>, help: impl Into<String>) -> Result<T, Wrong> {
        let end = self.at + self.peek().map_or(0, char::len_utf8);
        Err(Wrong { at: self.at..end, why: why.into(), help: help.into() })
    }

    /// The whole value.
    fn only(&mut self) -> Result<Node, Wrong> {
        let value = self.element("")?;
        self.blanks();
        match self.peek() {
            None => Ok(value),
            Some(',') => self.wrong(
                "values behind commas are a sweep, and one recipe is one run",
                "write `[1,2]` for a list, or quote the text",
            ),
            Some(c) => self.wrong(format!("`{c}` is left over"), "quote the value: `path='..'`"),
        }
    }

    /// A value, up to one of the closing signs.
    fn element(&mut self, close: &str) -> Result<Node, Wrong> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.wrong(format!("it is nested deeper than {DEEPEST}"), "use a file");
        }
        self.blanks();
        let value = match self.peek() {
            Some('[') => self.list()?,
            Some('{') => self.map()?,
            Some(quote @ ('\'' | '"')) => self.quoted(quote)?,
            _ => self.bare(close)?,
        };
        self.depth -= 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Node, Wrong> {
        let start = self.at;
        let items = self.between(']', |reader, items: &mut Vec<Node>| {
            items.push(reader.element(",]")?);
            Ok(())
        })?;
        let items = items.into_iter().map(|mut item| {
            item.origin.key = item.origin.value;
            item
        });
        Ok(self.node(Value::List(items.collect()), start..self.at))
    }

    fn map(&mut self) -> Result<Node, Wrong> {
        let start = self.at;
        let map = self.between('}', |reader, map: &mut IndexMap<String, Node>| {
            let key = reader.at;
            let length = reader.rest().find([':', ',', '}', '{', '[', ']']);
            let name = reader.rest().get(..length.unwrap_or(0)).unwrap_or("").trim_end();
            reader.at = key + length.unwrap_or(reader.rest().len());
            if name.is_empty() || name.contains(['\'', '"']) || reader.peek() != Some(':') {
                return reader.wrong("a mapping holds `key: value`, keys bare", "write `{a: 1}`");
            }
            reader.at += 1;
            let mut value = reader.element(",}")?;
            value.origin.key = Span::new(reader.source, key, key + name.len());
            map.insert(name.to_string(), value);
            Ok(())
        })?;
        Ok(self.node(Value::Map(map), start..self.at))
    }

    /// What stands between brackets, the closing one included.
    fn between<C: Default>(
        &mut self,
        close: char,
        mut one: impl FnMut(&mut Self, &mut C) -> Result<(), Wrong>,
    ) -> Result<C, Wrong> {
        let mut all = C::default();
        self.at += 1;
        self.blanks();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(all);
        }
        loop {
            self.blanks();
            one(self, &mut all)?;
            self.blanks();
            match self.peek() {
                Some(',') => self.at += 1,
                Some(c) if c == close => {
                    self.at += 1;
                    return Ok(all);
                }
                _ => return self.wrong(format!("`{close}` is missing"), "close the bracket"),
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Node, Wrong> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let slashes = self.rest().len() - self.rest().trim_start_matches('\\').len();
            self.at += slashes;
            match self.peek() {
                None => {
                    return self.wrong("a quote is not closed", format!("end it with `{quote}`"));
                }
                Some(c) if c == quote => {
                    text.push_str(&"\\".repeat(slashes / 2));
                    self.at += 1;
                    if slashes.is_multiple_of(2) {
                        break;
                    }
                    text.push(c);
                }
                Some(c) => {
                    text.push_str(&"\\".repeat(slashes));
                    text.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        let value = self.node(Value::Text(text), start..self.at);
        self.blanks();
        match self.peek() {
            None | Some(',' | ']' | '}' | ')') => Ok(value),
            Some(_) => self.wrong("something stands behind a quoted text", "quote all of it"),
        }
    }

    fn bare(&mut self, close: &str) -> Result<Node, Wrong> {
        let start = self.at;
        let mut text = String::new();
        let mut plain = true;
        while let Some(c) = self.peek() {
            match c {
                _ if close.contains(c) => break,
                ',' | ']' | '}' => break,
                '$' if self.rest().starts_with("${") => {
                    let Some(end) = self.rest().find('}') else {
                        return self.wrong("`${` is not closed", "end it with `}`");
                    };
                    if self.rest()[2..end].contains("${") {
                        return self.wrong(
                            "an interpolation inside another ends at the first `}` on a command line",
                            "quote the value: `path='${mul:${a},2}'`",
                        );
                    }
                    text.push_str(&self.rest()[..=end]);
                    self.at += end + 1;
                    plain = false;
                    continue;
                }
                '\\' => {
                    let next = self.rest()[1..].chars().next();
                    let kept = next.filter(|c| "\\()[]{}:=, \t".contains(*c));
                    text.push(kept.unwrap_or('\\'));
                    self.at += 1 + kept.map_or(0, char::len_utf8);
                    plain = false;
                    continue;
                }
                '(' if plain => return self.call(text.trim(), start),
                c if c.is_ascii_alphanumeric() || "_/-+.$%*@?|: \t".contains(c) => text.push(c),
                c => {
                    let help = format!("quote the value: `path='..{c}..'`");
                    return self.wrong(format!("`{c}` cannot stand in a bare value"), help);
                }
            }
            self.at += c.len_utf8();
        }
        let end = start + self.text[start..self.at].trim_end().len();
        let word = text.trim_end();
        if word.is_empty() {
            return self.wrong("a value is missing", "write `null` for none, or `''`");
        }
        let value = if plain { python::literal(word) } else { Value::Text(word.to_string()) };
        Ok(self.node(value, start..end))
    }

    /// A cast: `int(x)`, `float(x)`, `str(x)`, `bool(x)`.
    fn call(&mut self, name: &str, start: usize) -> Result<Node, Wrong> {
        let casts = ["int", "float", "str", "bool"];
        if !casts.contains(&name) {
            let sweeps = ["choice", "range", "interval", "glob", "sort", "shuffle", "tag"];
            let why = match sweeps.contains(&name) {
                true => format!("`{name}(..)` is a sweep, and one recipe is one run"),
                false => format!("`{name}(..)` is no cast: there are {}", casts.join(", ")),
            };
            return self.wrong(why, "quote the value if it is a text");
        }
        self.at += 1;
        let inner = self.element(")")?;
        self.blanks();
        if self.peek() != Some(')') {
            return self.wrong("`)` is missing", "a cast takes one value");
        }
        self.at += 1;
        match cast(name, &inner.value) {
            Some(value) => Ok(self.node(value, start..self.at)),
            None => {
                let why = format!("{} is no `{name}`", python::repr(&inner.value));
                let at = inner.origin.value.range();
                Err(Wrong { at, why, help: String::from("give a value that can be cast") })
            }
        }
    }
}

fn cast(name: &str, value: &Value) -> Option<Value> {
    let read = |text: &str| python::literal(text.trim());
    match (name, value) {
        ("str", Value::Bool(flag)) => Some(Value::Text(flag.to_string())),
        ("str", Value::Null) => Some(Value::Text(String::from("null"))),
        ("str", value @ (Value::Text(_) | Value::Int(_) | Value::Float(_))) => {
            Some(Value::Text(python::text(value)))
        }
        ("int" | "float", Value::Text(text)) => match read(text) {
            Value::Text(_) => None,
            value => cast(name, &value),
        },
        ("int", Value::Int(n)) => Some(Value::Int(*n)),
        ("int", Value::Float(x)) if x.abs() < 9e15 => Some(Value::Int(x.trunc() as i64)),
        ("int", Value::Bool(flag)) => Some(Value::Int(i64::from(*flag))),
        ("float", Value::Int(n)) => Some(Value::Float(*n as f64)),
        ("float", Value::Float(x)) => Some(Value::Float(*x)),
        ("float", Value::Bool(flag)) => Some(Value::Float(if *flag { 1.0 } else { 0.0 })),
        ("bool", Value::Bool(flag)) => Some(Value::Bool(*flag)),
        ("bool", Value::Int(n)) => Some(Value::Bool(*n != 0)),
        ("bool", Value::Float(x)) => Some(Value::Bool(*x != 0.0)),
        ("bool", Value::Text(text)) => match read(text) {
            Value::Bool(flag) => Some(Value::Bool(flag)),
            _ => None,
        },
        _ => None,
    }
}
