//! Settings in layers: a recipe that is shipped, a block on it, and what lines of the language say.
//!
//! `Layers::meaning` is what both import and export agree on: the block over the shipped recipe, the
//! edits of the lines over that, interpolation last. `differences` is what one tree has to be told
//! to become another.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use nrl_rules::settings::{Node, Value};

use crate::interpolate;
use crate::native::{Algorithm, Edit, Facts, edits, same};

/// One line of a block: a path with its value, or without one a path that is removed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    pub path: Vec<String>,
    pub value: Option<Value>,
}

/// What a recipe means.
pub(crate) struct Meaning {
    pub root: Node,
    pub edits: Vec<Edit>,
}

/// A shipped recipe and the environment.
pub(crate) struct Layers<'l> {
    /// The shipped recipe before interpolation.
    pub base: &'l Node,
    pub environment: &'l BTreeMap<String, String>,
}

impl Layers<'_> {
    /// The settings of a block and facts; none if interpolation fails.
    pub fn meaning(
        &self,
        block: &[Line],
        facts: &Facts,
        algorithm: Option<Algorithm>,
    ) -> Option<Meaning> {
        let mut root = self.base.clone();
        for line in block {
            set(&mut root, &line.path, line.value.clone());
        }
        let below = interpolate::resolve(&root, self.environment).0?;
        let edits = algorithm.map_or_else(Vec::new, |a| edits(facts, &below, a));
        for edit in &edits {
            let path: Vec<String> = edit.path.split('.').map(str::to_string).collect();
            set(&mut root, &path, Some(edit.value.clone()));
        }
        let root = interpolate::resolve(&root, self.environment).0?;
        Some(Meaning { root, edits })
    }

    /// Whether the shipped recipe derives the value at a path.
    pub fn derives(&self, path: &[String]) -> bool {
        let node = path.iter().try_fold(self.base, |node, name| node.child(name));
        matches!(node.map(|n| &n.value), Some(Value::Text(text)) if interpolate::is_one(text))
    }
}

/// Sets or removes the value at a path; what is no mapping on the way becomes one.
pub(crate) fn set(node: &mut Node, path: &[String], value: Option<Value>) {
    let Some((name, rest)) = path.split_first() else {
        node.value = value.unwrap_or(Value::Null);
        return;
    };
    if value.is_none() && node.child(name).is_none() {
        return;
    }
    let origin = node.origin;
    let fresh = || Node { value: Value::Map(IndexMap::new()), origin };
    if !matches!(node.value, Value::Map(_)) {
        node.value = fresh().value;
    }
    let Value::Map(map) = &mut node.value else { return };
    if rest.is_empty() && value.is_none() {
        map.shift_remove(name);
    } else {
        set(map.entry(name.clone()).or_insert_with(fresh), rest, value);
    }
}

/// What `from` has to be told to become `to`.
pub(crate) fn differences(from: &Node, to: &Node) -> Vec<Line> {
    let mut found = vec![];
    differ(from, to, &mut vec![], &mut found);
    found
}

fn differ(from: &Node, to: &Node, path: &mut Vec<String>, found: &mut Vec<Line>) {
    let (Value::Map(old), Value::Map(new)) = (&from.value, &to.value) else {
        if !same(&from.value, &to.value) {
            found.push(Line { path: path.clone(), value: Some(to.value.clone()) });
        }
        return;
    };
    for (name, value) in new {
        path.push(name.clone());
        match old.get(name) {
            Some(old) => differ(old, value, path, found),
            None => found.push(Line { path: path.clone(), value: Some(value.value.clone()) }),
        }
        path.pop();
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        path.push(name.clone());
        found.push(Line { path: path.clone(), value: None });
        path.pop();
    }
}
