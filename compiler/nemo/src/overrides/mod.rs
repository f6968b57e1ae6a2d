//! Overrides of the command line: `a.b=c`, `+a.b=c`, `++a.b=c`, `~a.b`.
//!
//! In: the merged tree, before interpolation, and one override. Out: the tree changed, or what is
//! wrong. A plain override changes what exists; a mapping given to a mapping is merged into it.

mod syntax;

use std::collections::BTreeMap;

use indexmap::IndexMap;
use nrl_base::{Diagnostic, SourceId, Span, nearest};
use nrl_rules::settings::{Node, Origin, SetBy, Value};

use crate::{interpolate, merge, python};
use syntax::{Kind, Override};

/// Changes the tree by one override. A setting that NeMo RL knows and the recipe lacks is set, with
/// a warning: NeMo RL itself wants it added.
pub(crate) fn apply(
    root: &mut Node,
    text: &str,
    source: SourceId,
    environment: &BTreeMap<String, String>,
) -> Result<Option<Diagnostic>, Diagnostic> {
    let set = syntax::parse(text, source).map_err(|wrong| {
        let at = Span::new(source, wrong.at.start, wrong.at.end);
        let said = format!("the override `{text}` is not one: {}", wrong.why);
        Diagnostic::error("bad-override", said).label(at, "here").help(wrong.help)
    })?;
    let work = Work { text, set: &set, environment };
    match set.kind {
        Kind::Remove => work.remove(root),
        Kind::Add => work.add(root),
        Kind::Change if node_mut(root, &set.path).is_none() && work.is_setting(root) => {
            let warning = work.not_there();
            return work.force(root).map(|()| Some(warning));
        }
        Kind::Change => work.change(root),
        Kind::Force => work.force(root),
    }
    .map(|()| None)
}

/// The node at a path.
pub(crate) fn node_mut<'n>(root: &'n mut Node, path: &[String]) -> Option<&'n mut Node> {
    path.iter().try_fold(root, |node, name| match &mut node.value {
        Value::Map(map) => map.get_mut(name),
        Value::List(items) => items.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    })
}

struct Work<'w> {
    text: &'w str,
    set: &'w Override,
    environment: &'w BTreeMap<String, String>,
}

impl Work<'_> {
    fn name(&self) -> String {
        self.set.path.join(".")
    }

    fn existing(&self, root: &Node) -> Option<Node> {
        interpolate::at(root, &self.set.path, self.environment).filter(|node| !node.is_null())
    }

    /// Whether the path is a known setting of a section that the recipe has.
    fn is_setting(&self, root: &Node) -> bool {
        let Some((last, above)) = self.set.path.split_last() else { return false };
        let section = above.iter().try_fold(root, |node, name| node.child(name));
        let there = section.is_some_and(|node| matches!(node.value, Value::Map(_)));
        there
            && !above.is_empty()
            && crate::schema::known(&above.join(".")).iter().any(|(name, _)| name == last)
    }

    fn not_there(&self) -> Diagnostic {
        let said = format!("`{}` is not in the recipe, and is added", self.name());
        let found = Diagnostic::warning("unknown-path", said).label(self.set.key, "set here");
        found.help(format!("write `++{}`: NeMo RL wants to be told that it is new", self.text))
    }

    fn change(&self, root: &mut Node) -> Result<(), Diagnostic> {
        let value = self.set.value.clone();
        let Some(node) = node_mut(root, &self.set.path) else { return Err(self.unknown(root)) };
        if let (Value::Map(below), Value::Map(above)) = (&node.value, &value.value)
            && let Some(path) = new_key(below, above, &self.name())
        {
            return Err(self.unknown_inside(&path));
        }
        self.put(node, value)
    }

    fn add(&self, root: &mut Node) -> Result<(), Diagnostic> {
        let container = matches!(self.set.value.value, Value::Map(_) | Value::List(_));
        if !container && let Some(old) = self.existing(root) {
            let said = format!("`{}` exists already: {}", self.name(), python::repr(&old.value));
            let found = Diagnostic::error("unknown-path", said).label(self.set.key, "added here");
            let rest = self.text.trim_start_matches('+');
            return Err(found
                .label(old.origin.value, "set here")
                .help(format!("write `{rest}` to change it")));
        }
        self.force(root)
    }

    fn force(&self, root: &mut Node) -> Result<(), Diagnostic> {
        let Some((last, above)) = self.set.path.split_last() else { return Ok(()) };
        let mut node = root;
        for name in above {
            node = match self.step(node, name)? {
                Some(node) => node,
                None => return Err(self.no_item(name)),
            };
        }
        if let Some(old) = node_mut(node, std::slice::from_ref(last)) {
            return self.put(old, self.set.value.clone());
        }
        match &mut node.value {
            Value::List(_) => Err(self.no_item(last)),
            Value::Map(map) => {
                map.insert(last.clone(), self.set.value.clone());
                Ok(())
            }
            other => {
                let map = IndexMap::from([(last.clone(), self.set.value.clone())]);
                *other = Value::Map(map);
                Ok(())
            }
        }
    }

    /// The child of a name, made if there is none; none for a place that a list lacks.
    fn step<'n>(&self, node: &'n mut Node, name: &str) -> Result<Option<&'n mut Node>, Diagnostic> {
        if !matches!(node.value, Value::Map(_) | Value::List(_)) {
            node.value = Value::Map(IndexMap::new());
        }
        let key = self.set.key;
        let origin = Origin { by: SetBy::CommandLine, key, value: key, source: None };
        let fresh = || Node { value: Value::Map(IndexMap::new()), origin };
        Ok(match &mut node.value {
            Value::Map(map) => Some(map.entry(name.to_string()).or_insert_with(fresh)),
            Value::List(items) => name.parse::<usize>().ok().and_then(|at| items.get_mut(at)),
            _ => None,
        })
    }

    fn put(&self, node: &mut Node, value: Node) -> Result<(), Diagnostic> {
        if !matches!((&node.value, &value.value), (Value::Map(_) | Value::List(_), Value::Map(_)))
            && !matches!((&node.value, &value.value), (Value::Map(_), Value::List(_)))
        {
            *node = value;
            return Ok(());
        }
        let mut found = vec![];
        merge::over(node, value, &self.name(), &mut found);
        found.into_iter().next().map_or(Ok(()), Err)
    }

    fn remove(&self, root: &mut Node) -> Result<(), Diagnostic> {
        let Some(old) = self.existing(root) else { return Err(self.unknown(root)) };
        let wanted = &self.set.value;
        if !wanted.is_null() && !same(&wanted.value, &old.value) {
            let (given, is) = (python::repr(&wanted.value), python::repr(&old.value));
            let said = format!("`{}` is {is}, not {given}, so it is not removed", self.name());
            let found = Diagnostic::error("bad-override", said);
            let found = found.label(wanted.origin.value, "expected here");
            let help = format!("write `~{}` to remove it whatever it is", self.name());
            return Err(found.label(old.origin.value, "set here").help(help));
        }
        let (last, above) = match self.set.path.split_last() {
            Some(parts) => parts,
            None => return Ok(()),
        };
        match node_mut(root, above).map(|node| &mut node.value) {
            Some(Value::Map(map)) if map.contains_key(last) => {
                map.shift_remove(last);
                Ok(())
            }
            Some(Value::List(_)) => {
                let said =
                    format!("`{}` is an item of a list, which `~` cannot remove", self.name());
                let found = Diagnostic::error("bad-override", said).label(self.set.key, "here");
                Err(found.help(format!("give the whole list: `{}=[..]`", above.join("."))))
            }
            _ => Err(self.unknown(root)),
        }
    }

    fn no_item(&self, name: &str) -> Diagnostic {
        let said = format!("`{}` leads into a list, which has no item `{name}`", self.name());
        let help = "give the whole list: `path=[..]`";
        Diagnostic::error("unknown-path", said).label(self.set.key, "here").help(help)
    }

    fn unknown_inside(&self, path: &str) -> Diagnostic {
        let said = format!("there is no `{path}` in the recipe");
        let found = Diagnostic::error("unknown-path", said).label(self.set.key, "set here");
        found.help(format!("write `++{}` to add new keys", self.text))
    }

    fn unknown(&self, root: &Node) -> Diagnostic {
        let path = &self.set.path;
        let mut node = root;
        let mut known = 0;
        while let Some(below) = path.get(known).and_then(|name| node.child(name)) {
            node = below;
            known += 1;
        }
        let name = path.get(known).map_or("", String::as_str);
        let said = format!("there is no `{}` in the recipe", self.name());
        let found = Diagnostic::error("unknown-path", said).label(self.set.key, "set here");
        let join = |found: &str| {
            let (above, below) = (&path[..known], &path[(known + 1).min(path.len())..]);
            let parts = above.iter().map(String::as_str).chain([found]);
            parts.chain(below.iter().map(String::as_str)).collect::<Vec<_>>().join(".")
        };
        let near = nearest(name, node.entries().map(|(name, _)| name)).map(join);
        let near = near.or_else(|| elsewhere(root, path));
        let add = format!("write `++{}` to add it", self.text.trim_start_matches(['+', '~']));
        found.help(match (near, self.set.kind) {
            (Some(near), Kind::Remove) => format!("did you mean `~{near}`?"),
            (None, Kind::Remove) => String::from("leave it out: there is nothing to remove"),
            (Some(near), _) => format!("did you mean `{near}`? {add}"),
            (None, _) => add,
        })
    }
}

/// A path that ends like a path that does not exist, if there is just one.
fn elsewhere(root: &Node, path: &[String]) -> Option<String> {
    fn search(node: &Node, at: &str, last: &str, found: &mut Vec<String>) {
        for (name, below) in node.entries() {
            let path = if at.is_empty() { name.to_string() } else { format!("{at}.{name}") };
            search(below, &path, last, found);
            if name == last {
                found.push(path);
            }
        }
    }
    let mut found = vec![];
    search(root, "", path.last()?, &mut found);
    if found.len() == 1 { found.pop() } else { None }
}

/// The path of the first key that only `above` has.
fn new_key(
    below: &IndexMap<String, Node>,
    above: &IndexMap<String, Node>,
    path: &str,
) -> Option<String> {
    above.iter().find_map(|(name, value)| {
        let path = format!("{path}.{name}");
        match (below.get(name).map(|node| &node.value), &value.value) {
            (None, _) => Some(path),
            (Some(Value::Map(below)), Value::Map(above)) => new_key(below, above, &path),
            _ => None,
        }
    })
}

/// Equality as Python has it: 1 and 1.0 are one, and places do not count.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Int(n), Value::Float(x)) | (Value::Float(x), Value::Int(n)) => *n as f64 == *x,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.value, &b.value))
        }
        (Value::Map(a), Value::Map(b)) => {
            let has =
                |(name, x): (&String, &Node)| b.get(name).is_some_and(|y| same(&x.value, &y.value));
            a.len() == b.len() && a.iter().all(has)
        }
        (Value::List(_) | Value::Map(_), _) | (_, Value::List(_) | Value::Map(_)) => false,
        (a, b) => a == b,
    }
}
