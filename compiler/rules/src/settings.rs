//! A tree of settings in which each value knows who set it, and where.
//!
//! In: what a loader of configuration files found after inheritance, overrides and interpolation.
//! Out: lookups by dotted path for rules, export and comparison. Maps keep the order of their
//! first appearance. A path that is absent and a path that is `null` are different things:
//! `get` finds the second.

use indexmap::IndexMap;
use nrl_base::Span;

/// Who gave a value its present form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetBy {
    /// The file that was asked for.
    File,
    /// A file that it inherits from.
    Parent,
    /// An override on the command line.
    CommandLine,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    pub by: SetBy,
    /// The key, in the file (or override) that set it last; the value itself for items of lists.
    pub key: Span,
    /// The value as written: an interpolation if it is one.
    pub value: Span,
    /// For an interpolation of one other value: where that value is written.
    pub source: Option<Span>,
}

/// What a setting is.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(IndexMap<String, Node>),
}

/// One setting.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub value: Value,
    pub origin: Origin,
}

/// A typed value with its origin.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Set<T> {
    pub value: T,
    pub origin: Origin,
}

/// A whole recipe, resolved.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    pub root: Node,
}

impl Node {
    /// The child under a key of a map or an index of a list.
    pub fn child(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(map) => map.get(name),
            Value::List(list) => list.get(name.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// The setting at a dotted path below this one.
    pub fn get(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, name| node.child(name))
    }

    /// The entries of a map; none for anything else.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Node)> {
        let map = if let Value::Map(map) = &self.value { Some(map) } else { None };
        map.into_iter().flatten().map(|(name, node)| (name.as_str(), node))
    }

    /// The items of a list; none for anything else.
    pub fn items(&self) -> &[Node] {
        if let Value::List(list) = &self.value { list } else { &[] }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.value == Value::Null
    }
}

impl Settings {
    /// The setting at a dotted path, `null` included.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.root.get(path)
    }

    /// A whole number; numbers without a fraction count.
    pub fn int(&self, path: &str) -> Option<Set<i64>> {
        self.typed(path, |value| match value {
            Value::Int(n) => Some(*n),
            Value::Float(x) if x.fract() == 0.0 && x.abs() < 9e15 => Some(*x as i64),
            _ => None,
        })
    }

    /// A number.
    pub fn float(&self, path: &str) -> Option<Set<f64>> {
        self.typed(path, |value| match value {
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            _ => None,
        })
    }

    /// `true` or `false`.
    pub fn bool(&self, path: &str) -> Option<Set<bool>> {
        self.typed(path, |value| if let Value::Bool(b) = value { Some(*b) } else { None })
    }

    /// A text.
    pub fn text(&self, path: &str) -> Option<Set<&str>> {
        let node = self.get(path)?;
        let Value::Text(text) = &node.value else { return None };
        Some(Set { value: text.as_str(), origin: node.origin })
    }

    /// Whether a flag is set to `true`.
    pub fn on(&self, path: &str) -> bool {
        self.bool(path).is_some_and(|flag| flag.value)
    }

    fn typed<T>(&self, path: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Set<T>> {
        let node = self.get(path)?;
        Some(Set { value: read(&node.value)?, origin: node.origin })
    }
}
