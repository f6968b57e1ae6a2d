//! Files, inheritance, overrides and interpolation, in this order.
//!
//! In: a path and overrides. Out: the settings, or findings that say why not. A `Loader` keeps what
//! it has read, so many recipes over the same parents read each of them once. It belongs to one
//! `SourceMap`: its places are of the map it was first used with.

use std::collections::BTreeMap;
use std::rc::Rc;

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Files, Problems, SourceMap, Span};
use nrl_rules::settings::{Node, Origin, SetBy, Settings, Value};

use crate::{interpolate, merge, overrides, yaml};

/// The longest chain of files.
const LONGEST: usize = 64;

/// Reads recipes; files that several of them inherit are read once.
pub struct Loader<'f> {
    files: &'f dyn Files,
    environment: BTreeMap<String, String>,
    merged: BTreeMap<String, Rc<Merged>>,
}

/// A file with all that it inherits. Warnings are those of the file itself: who checks a recipe
/// can change it, but not what it inherits.
struct Merged {
    tree: Option<Node>,
    found: Vec<Diagnostic>,
    /// The files, each before those that inherit it; the file itself last.
    chain: Vec<String>,
}

/// A file that is being read, and where it was named.
struct Step {
    path: String,
    named: Option<Span>,
}

impl<'f> Loader<'f> {
    /// A loader without environment variables.
    pub fn new(files: &'f dyn Files) -> Self {
        Loader { files, environment: BTreeMap::new(), merged: BTreeMap::new() }
    }

    /// The variables that `${oc.env:NAME}` may name. One that is missing is a warning, since the
    /// machine that checks a recipe is not the one that runs it; the text then stays as written.
    pub fn environment(mut self, variables: BTreeMap<String, String>) -> Self {
        self.environment = variables;
        self
    }

    /// The settings of a recipe with its overrides, and what was found. No settings, some error.
    pub fn load(
        &mut self,
        sources: &mut SourceMap,
        path: &str,
        overrides: &[String],
    ) -> (Option<Settings>, Vec<Diagnostic>) {
        let mut problems = Problems::new();
        let path = clean(path);
        let merged = self.merged(sources, &path, &mut vec![], None);
        problems.extend(merged.found.iter().cloned());
        let Some(mut root) = merged.tree.clone() else {
            return (None, problems.into_sorted());
        };
        let own = root.origin.value.source; // the file that was asked for: it was merged last
        let mut failed = false;
        for text in overrides {
            let id = sources.add("the command line", text.as_str());
            let set = overrides::apply(&mut root, text, id, &self.environment);
            failed |= set.is_err();
            problems.extend(set.unwrap_or_else(Some));
        }
        if failed {
            return (None, problems.into_sorted());
        }
        let (resolved, found) = interpolate::resolve(&root, &self.environment);
        problems.extend(found);
        let settings = resolved.map(|mut root| {
            let by = |span: Span| match sources.get(span.source).map(|s| s.name()) {
                _ if span.source == own => SetBy::File,
                Some("the command line") => SetBy::CommandLine,
                _ => SetBy::Parent,
            };
            who(&mut root, &by);
            Settings { root }
        });
        (settings, problems.into_sorted())
    }

    /// The files of a recipe, each before those that inherit it, the recipe last. Empty before it
    /// was loaded.
    pub fn chain(&self, path: &str) -> Vec<String> {
        self.merged.get(&clean(path)).map_or_else(Vec::new, |merged| merged.chain.clone())
    }

    /// The merged files of a recipe, before overrides and interpolation.
    pub(crate) fn tree(&mut self, sources: &mut SourceMap, path: &str) -> Option<Node> {
        self.merged(sources, &clean(path), &mut vec![], None).tree.clone()
    }

    /// Whether a file can be read.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.read(&clean(path)).is_ok()
    }

    /// The environment variables it was given.
    pub(crate) fn variables(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    fn merged(
        &mut self,
        sources: &mut SourceMap,
        path: &str,
        above: &mut Vec<Step>,
        named: Option<Span>,
    ) -> Rc<Merged> {
        if let Some(known) = self.merged.get(path) {
            return known.clone();
        }
        if let Err(found) = may_inherit(path, above, named) {
            return failed(vec![*found]);
        }
        above.push(Step { path: path.to_string(), named });
        let merged = Rc::new(self.read(sources, path, above).unwrap_or_else(|found| Merged {
            tree: None,
            found,
            chain: vec![],
        }));
        above.pop();
        if merged.tree.is_some() {
            self.merged.insert(path.to_string(), merged.clone());
        }
        merged
    }

    fn read(
        &mut self,
        sources: &mut SourceMap,
        path: &str,
        above: &mut Vec<Step>,
    ) -> Result<Merged, Vec<Diagnostic>> {
        let bytes = self.files.read(path).map_err(|why| vec![unreadable(path, &why, above)])?;
        let text = yaml::text(path, bytes).map_err(|found| vec![*found])?;
        let source = sources.add(path, text.as_str());
        let (tree, mut found) = yaml::parse(path, &text, source);
        let mut tree = tree.map_err(|error| vec![*error])?;
        found.extend(merge::idle_markers(&tree));
        let parents = parents(&mut tree).map_err(|error| vec![*error])?;
        let mut chain: Vec<String> = vec![];
        let tree = match parents {
            None => tree,
            Some(parents) => {
                let empty = Value::Map(IndexMap::new());
                let mut base = Node { value: empty, origin: tree.origin };
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                for (parent, place) in parents {
                    let parent = beside(folder, &parent);
                    let below = self.merged(sources, &parent, above, Some(place));
                    let Some(inherited) = &below.tree else { return Err(below.found.clone()) };
                    found.extend(merge::recipes(&mut base, inherited.clone()));
                    for file in &below.chain {
                        if !chain.contains(file) {
                            chain.push(file.clone());
                        }
                    }
                }
                found.extend(merge::recipes(&mut base, tree));
                if found.iter().any(Diagnostic::is_error) {
                    return Err(found);
                }
                base
            }
        };
        chain.push(path.to_string());
        Ok(Merged { tree: Some(tree), found, chain })
    }
}

fn failed(found: Vec<Diagnostic>) -> Rc<Merged> {
    Rc::new(Merged { tree: None, found, chain: vec![] })
}

/// Takes `defaults` out of a file: the files it inherits, in order.
fn parents(tree: &mut Node) -> Result<Option<Vec<(String, Span)>>, Box<Diagnostic>> {
    let Value::Map(map) = &mut tree.value else { return Ok(None) };
    let Some(named) = map.shift_remove("defaults") else { return Ok(None) };
    let items = match named.value {
        Value::List(items) => items,
        _ => vec![named],
    };
    let path = |item: Node| match item.value {
        Value::Text(path) if path == "_self_" => {
            let said = "`defaults` names `_self_`, which Hydra knows and NeMo RL does not";
            let found = Diagnostic::error("broken-inheritance", said);
            let found = found.label(item.origin.value, "not a file");
            Err(found.help("remove it: a file always stands on what it inherits").into())
        }
        Value::Text(path) if !path.trim().is_empty() => Ok((path, item.origin.value)),
        _ => {
            let said = "`defaults` takes the paths of files: one text, or a list of texts";
            let found = Diagnostic::error("broken-inheritance", said);
            let found = found.label(item.origin.value, "not a path");
            Err(found.help(match item.value {
                Value::Map(_) => {
                    "Hydra's config groups have no meaning here; name a file: `defaults: ../grpo_math_1B.yaml`"
                }
                _ => "write `defaults: ../grpo_math_1B.yaml`",
            }).into())
        }
    };
    items.into_iter().map(path).collect::<Result<_, Box<Diagnostic>>>().map(Some)
}

fn may_inherit(path: &str, above: &[Step], named: Option<Span>) -> Result<(), Box<Diagnostic>> {
    let again = above.iter().position(|step| step.path == path);
    if again.is_none() && above.len() < LONGEST {
        return Ok(());
    }
    let names = above.iter().skip(again.unwrap_or(0)).map(|s| s.path.as_str());
    let chain = names.chain([path]).collect::<Vec<_>>().join(" -> ");
    let said = match again {
        Some(_) => format!("a recipe inherits from itself: {chain}"),
        None => format!("a recipe inherits through more than {LONGEST} files: {chain}"),
    };
    let mut found = Diagnostic::error("broken-inheritance", said);
    if let Some(span) = named {
        found = found.label(span, "this closes the circle");
    }
    for span in again.map(|at| &above[at + 1..]).unwrap_or_default().iter().filter_map(|s| s.named)
    {
        found = found.label(span, "named here");
    }
    Err(found.help("remove one of these `defaults`").into())
}

fn unreadable(path: &str, why: &str, above: &[Step]) -> Diagnostic {
    let Some(span) = above.last().and_then(|step| step.named) else {
        return Diagnostic::error("file-not-read", format!("cannot read {path}: {why}"));
    };
    let chain = above.iter().map(|s| s.path.as_str()).collect::<Vec<_>>().join(" -> ");
    let said = format!("cannot read {path}, which `defaults` names: {why}");
    let folder = above.iter().rev().nth(1).map_or("", |s| s.path.as_str());
    let help = format!("the path is taken from the folder of {folder}");
    let found = Diagnostic::error("broken-inheritance", said).label(span, "named here");
    found.note(format!("inherited through {chain}")).help(help)
}

/// A path as seen from a folder.
fn beside(folder: &str, path: &str) -> String {
    if path.starts_with('/') || folder.is_empty() {
        return clean(path);
    }
    clean(&format!("{folder}/{path}"))
}

/// A path without `.` and, where that is known, without `..`.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = vec![];
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if path.starts_with('/') => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    if path.starts_with('/') { format!("/{joined}") } else { joined }
}

fn who(node: &mut Node, by: &impl Fn(Span) -> SetBy) {
    node.origin = Origin { by: by(node.origin.key), ..node.origin };
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| who(item, by)),
        Value::Map(map) => map.values_mut().for_each(|value| who(value, by)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_folder_that_names_them() {
        assert_eq!(beside("a/b", "../c.yaml"), "a/c.yaml");
        assert_eq!(beside("a", "../../c.yaml"), "../c.yaml");
        assert_eq!(beside("", "./c.yaml"), "c.yaml");
        assert_eq!(beside("a", "/x/./c.yaml"), "/x/c.yaml");
    }
}
