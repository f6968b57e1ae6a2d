//! Settings by path, as facts.

use super::{Cause, Fact, Recipe, Shown};
use crate::settings::{Node, Value};

impl Recipe {
    /// The setting at a path, `null` included.
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.settings.as_ref()?.get(path)
    }

    /// Whether a path is set to something else than `null`.
    pub fn has(&self, path: &str) -> bool {
        self.node(path).is_some_and(|node| !node.is_null())
    }

    /// Whether a flag is `true`.
    pub fn on(&self, path: &str) -> bool {
        self.flag(path).is_some_and(|flag| flag.value)
    }

    /// Whether a flag is written and `false`.
    pub fn off(&self, path: &str) -> bool {
        self.flag(path).is_some_and(|flag| !flag.value)
    }

    /// A flag.
    pub fn flag(&self, path: &str) -> Option<Fact<bool>> {
        self.read(path, |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A whole number; a text that is one counts, as it does when a recipe is loaded. No size of
    /// a recipe is as large as 2^31: such a number is not known, so products of two fit.
    pub fn int(&self, path: &str) -> Option<Fact<i64>> {
        let whole = self.read(path, |value| match value {
            Value::Int(n) => Some(*n),
            Value::Float(x) if x.fract() == 0.0 && x.abs() < 9e15 => Some(*x as i64),
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        });
        whole.filter(|n| i32::try_from(n.value).is_ok())
    }

    /// A number.
    pub fn num(&self, path: &str) -> Option<Fact<f64>> {
        self.read(path, |value| match value {
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        })
    }

    /// A text.
    pub fn text(&self, path: &str) -> Option<Fact<String>> {
        self.read(path, |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// The texts of a list; other items are left out.
    pub fn texts(&self, path: &str) -> Vec<Fact<String>> {
        let items = self.node(path).map(Node::items).unwrap_or_default();
        items
            .iter()
            .filter_map(|item| match &item.value {
                Value::Text(text) => Some(Fact::set(path, text.clone(), item.origin)),
                _ => None,
            })
            .collect()
    }

    /// Whether a path is this text.
    pub fn says(&self, path: &str, text: &str) -> bool {
        self.text(path).is_some_and(|t| t.value == text)
    }

    /// Paths of the entries of a map.
    pub fn under(&self, path: &str) -> Vec<String> {
        let names = self.node(path).into_iter().flat_map(Node::entries);
        names.map(|(name, _)| format!("{path}.{name}")).collect()
    }

    /// How a setting is shown: with its value, or as missing in the section that lacks it.
    pub fn setting(&self, path: &str) -> Vec<Cause> {
        if let Some(node) = self.node(path) {
            return Fact::set(path, shown(&node.value), node.origin).causes();
        }
        let mut parent = path;
        while let Some((above, _)) = parent.rsplit_once('.') {
            if let Some(node) = self.node(above) {
                let text = format!("`{path}` is not set");
                return vec![Cause { text, span: Some(node.origin.key) }];
            }
            parent = above;
        }
        vec![Cause { text: format!("`{path}` is not set"), span: None }]
    }

    fn read<T>(&self, path: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Fact<T>> {
        let node = self.node(path)?;
        Some(Fact::set(path, read(&node.value)?, node.origin))
    }
}

/// A value as it is written, long ones cut.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Text(text) => format!("\"{text}\""),
        Value::List(items) if items.len() <= 8 => {
            let items: Vec<String> = items.iter().map(|item| shown(&item.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Map(map) => format!("a section with {} keys", map.len()),
    }
}
