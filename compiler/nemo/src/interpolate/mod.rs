//! Interpolation: every `${..}` of a merged recipe becomes what it stands for.
//!
//! In: the merged tree and the environment. Out: the same tree without `${..}`, or findings. A value
//! that is one reference becomes the value referred to, of its type and with its place; inside a
//! longer text it is written as Python writes it. Each value is computed once, so one mistake is one
//! finding. Length of chains, number of values and length of texts are bounded.

mod resolvers;
mod syntax;

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;
use nrl_base::{Diagnostic, nearest};
use nrl_rules::settings::{Node, Origin, Value};

use crate::{merge, python};
pub(crate) use syntax::is_one;
use syntax::{Name, Part};

/// The longest chain of references.
const LONGEST: usize = 100;
/// The most values that interpolation makes.
const MOST: usize = 500_000;
/// The most bytes of text that interpolation makes.
const MOST_TEXT: usize = 16 << 20;

/// Why a value has none; what is wrong has been told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Failed;

type Outcome<T> = Result<T, Failed>;

/// The tree with every interpolation resolved. None if there is an error.
pub(crate) fn resolve(
    root: &Node,
    environment: &BTreeMap<String, String>,
) -> (Option<Node>, Vec<Diagnostic>) {
    let mut resolver = Resolver::new(root, environment);
    let resolved = resolver.whole(root, &mut vec![]);
    let failed = resolver.found.iter().any(Diagnostic::is_error);
    (resolved.ok().filter(|_| !failed), resolver.found)
}

/// The resolved value at a path of an unresolved tree, if it has one.
pub(crate) fn at(
    root: &Node,
    path: &[String],
    environment: &BTreeMap<String, String>,
) -> Option<Node> {
    let mut resolver = Resolver::new(root, environment);
    resolver.select(path, None).ok().flatten()
}

/// Where `top` puts a mapping over a reference, the reference is replaced by what it refers to, if
/// that is a mapping.
pub(crate) fn expand_under(base: &mut Node, top: &Node) {
    let mut places = vec![];
    references(base, top, &mut vec![], &mut places);
    for place in places {
        let nothing = BTreeMap::new();
        let Some(target) = at(base, &place, &nothing) else { continue };
        if matches!(target.value, Value::Map(_))
            && let Some(node) = crate::overrides::node_mut(base, &place)
        {
            *node = target;
        }
    }
}

fn references(base: &Node, top: &Node, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let Value::Map(above) = &top.value else { return };
    match &base.value {
        Value::Text(text) if is_one(text) => found.push(path.clone()),
        Value::Map(below) => {
            for (name, top) in above {
                if let Some(base) = below.get(name) {
                    path.push(name.clone());
                    references(base, top, path, found);
                    path.pop();
                }
            }
        }
        _ => {}
    }
}

struct Resolver<'r> {
    root: &'r Node,
    environment: &'r BTreeMap<String, String>,
    /// Values of interpolations with their sizes, by path.
    known: HashMap<Vec<String>, (Outcome<Node>, usize)>,
    /// Paths of interpolations being resolved, outermost first.
    open: Vec<Vec<String>>,
    found: Vec<Diagnostic>,
    count: usize,
    bytes: usize,
}

/// The interpolation that is being resolved.
#[derive(Clone, Copy)]
struct Here<'h> {
    path: &'h [String],
    text: &'h str,
    origin: Origin,
}

impl Here<'_> {
    fn name(&self) -> String {
        self.path.join(".")
    }
}

impl<'r> Resolver<'r> {
    fn new(root: &'r Node, environment: &'r BTreeMap<String, String>) -> Self {
        Resolver {
            root,
            environment,
            known: HashMap::new(),
            open: vec![],
            found: vec![],
            count: 0,
            bytes: 0,
        }
    }

    /// A node with everything below it resolved.
    fn whole(&mut self, node: &Node, path: &mut Vec<String>) -> Outcome<Node> {
        self.counted(1)?;
        let value = match &node.value {
            Value::Text(text) if is_one(text) => return self.interpolated(text, node, path),
            Value::Text(_) if merge::is_missing(node) => return self.missing(node, path),
            Value::List(items) => {
                let mut list = Ok(Vec::with_capacity(items.len()));
                for (at, item) in items.iter().enumerate() {
                    path.push(at.to_string());
                    push(&mut list, self.whole(item, path), |list, item| list.push(item));
                    path.pop();
                }
                Value::List(list?)
            }
            Value::Map(entries) => {
                let mut map = Ok(IndexMap::with_capacity(entries.len()));
                for (name, below) in entries {
                    path.push(name.clone());
                    push(&mut map, self.whole(below, path), |map, value| {
                        map.insert(name.clone(), value);
                    });
                    path.pop();
                }
                Value::Map(map?)
            }
            plain => plain.clone(),
        };
        Ok(Node { value, origin: node.origin })
    }

    fn counted(&mut self, values: usize) -> Outcome<()> {
        self.count += values;
        if self.count <= MOST {
            return Ok(());
        }
        self.too_much(format!("interpolation makes more than {MOST} values"))
    }

    fn missing(&mut self, node: &Node, path: &[String]) -> Outcome<Node> {
        let name = path.join(".");
        let said = format!("`{name}` is mandatory (`???`), and no file or override sets it");
        let found = Diagnostic::error("value-missing", said);
        let found = found.label(node.origin.value, "left open here");
        self.fail(
            found.help(format!("add `{name}=VALUE` to the command line, or set it in the recipe")),
        )
    }

    fn interpolated(&mut self, text: &str, node: &Node, path: &[String]) -> Outcome<Node> {
        if let Some((_, size)) = self.known.get(path) {
            self.counted(*size)?;
            return self.known.get(path).map_or(Err(Failed), |(known, _)| known.clone());
        }
        let here = Here { path, text, origin: node.origin };
        if self.open.iter().any(|open| open == path) {
            return self.circle(here);
        }
        if self.open.len() == LONGEST {
            let said =
                format!("`{}` is reached through more than {LONGEST} references", here.name());
            return self.too_much(said);
        }
        self.open.push(path.to_vec());
        let value = self.text(here);
        self.open.pop();
        let size = value.as_ref().map_or(0, size);
        self.counted(size)?;
        self.known.insert(path.to_vec(), (value.clone(), size));
        value
    }

    fn circle(&mut self, here: Here) -> Outcome<Node> {
        let from = self.open.iter().position(|open| open == here.path).unwrap_or(0);
        let names = self.open[from..].iter().map(|path| path.join("."));
        let circle = names.chain([here.name()]).collect::<Vec<_>>().join(" -> ");
        self.wrong(here, format!("`{}` refers to itself: {circle}", here.name()), None)
    }

    fn text(&mut self, here: Here) -> Outcome<Node> {
        let parts = match syntax::parse(here.text) {
            Ok(parts) => parts,
            Err(why) => {
                let said = format!("`{}` is `{}`: {why}", here.name(), here.text);
                return self.wrong(here, said, None);
            }
        };
        if let Some(variable) = self.unset(&parts) {
            return self.kept(here, &variable);
        }
        if let [part @ (Part::Path(..) | Part::Call(..))] = parts.as_slice() {
            let node = self.part(part, here)?;
            let source = node.origin.source.unwrap_or(node.origin.value);
            let referred = matches!(part, Part::Path(..)).then_some(source);
            let source = referred.filter(|span| *span != here.origin.value);
            return Ok(Node { value: node.value, origin: Origin { source, ..here.origin } });
        }
        let value = Value::Text(self.joined(&parts, here)?);
        Ok(Node { value, origin: here.origin })
    }

    fn joined(&mut self, parts: &[Part], here: Here) -> Outcome<String> {
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Plain(plain) => text.push_str(plain),
                part => text.push_str(&python::text(&self.part(part, here)?.value)),
            }
        }
        self.bytes += text.len();
        if self.bytes > MOST_TEXT {
            return self.too_much(String::from("interpolation makes more than 16 MiB of text"));
        }
        Ok(text)
    }

    fn part(&mut self, part: &Part, here: Here) -> Outcome<Node> {
        match part {
            Part::Plain(text) => Ok(Node { value: Value::Text(text.clone()), origin: here.origin }),
            Part::Path(dots, names) => {
                let path = self.path(*dots, names, here)?;
                match self.select(&path, Some(here))? {
                    Some(node) => Ok(node),
                    None => self.nothing_there(&path, here),
                }
            }
            Part::Call(name, args) => {
                let value = self.call(name, args, here)?;
                Ok(Node { value, origin: here.origin })
            }
        }
    }

    /// The absolute path that names stand for.
    fn path(&mut self, dots: usize, names: &[Name], here: Here) -> Outcome<Vec<String>> {
        if dots > here.path.len() {
            let said =
                format!("`{}` is `{}`: {dots} dots lead out of the recipe", here.name(), here.text);
            return self.wrong(here, said, None);
        }
        let mut path = match dots {
            0 => vec![],
            dots => here.path[..here.path.len() - dots].to_vec(),
        };
        for name in names {
            match name {
                Name::Word(word) => path.push(word.clone()),
                Name::Of(part) => {
                    let value = self.part(part, here)?.value;
                    match value {
                        Value::Text(word) => path.extend(word.split('.').map(str::to_string)),
                        Value::Int(n) => path.push(n.to_string()),
                        other => {
                            let said = format!(
                                "`{}` is `{}`: {} is no name of a key",
                                here.name(),
                                here.text,
                                python::repr(&other)
                            );
                            return self.wrong(here, said, None);
                        }
                    }
                }
            }
        }
        Ok(path)
    }

    /// The resolved value at a path, references on the way followed.
    fn select(&mut self, path: &[String], here: Option<Here>) -> Outcome<Option<Node>> {
        let root = self.root;
        let mut node = root;
        for (depth, name) in path.iter().enumerate() {
            if let Value::Text(text) = &node.value
                && is_one(text)
            {
                let inside = self.interpolated(text, node, &path[..depth])?;
                return Ok(path[depth..]
                    .iter()
                    .try_fold(&inside, |n, name| n.child(name))
                    .cloned());
            }
            let Some(below) = node.child(name) else { return Ok(None) };
            node = below;
        }
        if let Some(here) = here
            && here.path.starts_with(path)
            && !is_text(node)
        {
            let said = format!("`{}` refers to `{}`, which holds it", here.name(), path.join("."));
            return self.wrong(here, said, None);
        }
        self.whole(node, &mut path.to_vec()).map(Some)
    }

    fn nothing_there<T>(&mut self, path: &[String], here: Here) -> Outcome<T> {
        let wanted = path.join(".");
        let root = self.root;
        let mut node = root;
        let mut known = 0;
        while let Some(below) = path.get(known).and_then(|name| node.child(name)) {
            node = below;
            known += 1;
        }
        let name = path.get(known).map_or("", String::as_str);
        let close = nearest(name, node.entries().map(|(name, _)| name)).map(|found| {
            let rest = &path[(known + 1).min(path.len())..];
            let parts = path[..known].iter().map(String::as_str).chain([found]);
            parts.chain(rest.iter().map(String::as_str)).collect::<Vec<_>>().join(".")
        });
        let help = match close {
            Some(close) => format!("did you mean `{close}`?"),
            None => format!("set `{wanted}` in the recipe or a file it inherits"),
        };
        let said = format!("`{}` is `{}`, but there is no `{wanted}`", here.name(), here.text);
        self.wrong(here, said, Some(help))
    }

    fn unset(&self, parts: &[Part]) -> Option<String> {
        parts.iter().find_map(|part| resolvers::unset(part, self.environment))
    }

    /// A text that needs a variable which is not set: it stays as it is written.
    fn kept(&mut self, here: Here, variable: &str) -> Outcome<Node> {
        let said = format!(
            "`{}` needs the environment variable {variable}, which is not set here",
            here.name()
        );
        let found = Diagnostic::warning("variable-not-set", said);
        let help = format!(
            "set {variable} where the recipe runs, or give a default: `${{oc.env:{variable},/path}}`"
        );
        self.found.push(found.label(here.origin.value, "used here").help(help));
        Ok(Node { value: Value::Text(here.text.to_string()), origin: here.origin })
    }

    fn wrong<T>(&mut self, here: Here, said: String, help: Option<String>) -> Outcome<T> {
        let found = Diagnostic::error("unresolved-interpolation", said);
        self.fail(found.label(here.origin.value, "written here").help_opt(help))
    }

    /// Told once: what follows is a consequence.
    fn too_much<T>(&mut self, said: String) -> Outcome<T> {
        if self.found.iter().any(|found| found.code == "too-much-work") {
            return Err(Failed);
        }
        let found = Diagnostic::error("too-much-work", said);
        let start = self.root.origin.value;
        let start = nrl_base::Span { end: start.start, ..start };
        let help = "a recipe refers to single settings; look for references that multiply";
        self.fail(found.label(start, "in this recipe").help(help))
    }

    fn fail<T>(&mut self, found: Diagnostic) -> Outcome<T> {
        if !self.found.contains(&found) {
            self.found.push(found);
        }
        Err(Failed)
    }
}

fn is_text(node: &Node) -> bool {
    matches!(node.value, Value::Text(_))
}

/// The number of values of a tree.
fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// Collects what succeeds until something has failed.
fn push<C, T>(all: &mut Outcome<C>, one: Outcome<T>, add: impl FnOnce(&mut C, T)) {
    match (all.as_mut(), one) {
        (Ok(all), Ok(one)) => add(all, one),
        (_, Err(failed)) => *all = Err(failed),
        (Err(_), Ok(_)) => {}
    }
}
