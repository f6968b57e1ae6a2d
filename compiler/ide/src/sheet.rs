//! One NeMo RL recipe as an editor asks about it.
//!
//! In: the path of a YAML file. Out: answers by byte offset: what a key means after inheritance and where the
//! value was set, where it is declared, which keys there are beside it. The file is loaded as
//! `nrlc check` loads it.

use nrl_base::{Files, SourceId, SourceMap, Span};
use nrl_nemo::load;
use nrl_rules::{Node, Origin, SetBy, Settings, Value};

use crate::complete::{Completion, Sort};
use crate::document::Hover;

/// A recipe with all that it inherits.
pub struct Sheet {
    pub sources: SourceMap,
    settings: Option<Settings>,
    here: Option<SourceId>,
    /// Its own text, also where it cannot be loaded.
    text: String,
}

impl Sheet {
    /// Loads a recipe.
    pub fn open(files: &dyn Files, path: &str) -> Sheet {
        let mut sources = SourceMap::new();
        let (settings, _) = load(files, &mut sources, path, &[]);
        let here = sources.iter().find(|(_, s)| s.name() == path).map(|(id, _)| id);
        let text =
            files.read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
        Sheet { sources, settings, here, text }
    }

    /// The recipe's own text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The setting that a key or a value at an offset sets, with its path.
    fn at(&self, offset: usize) -> Option<(String, &Node, Span)> {
        let here = self.here?;
        let mut best: Option<(String, &Node, Span)> = None;
        walk(&self.settings.as_ref()?.root, &mut String::new(), &mut |path, node| {
            let inside = |s: &Span| s.source == here && s.touches(offset) && s.end > s.start;
            let found = [node.origin.key, node.origin.value].into_iter().find(inside);
            if let Some(span) = found
                && best.as_ref().is_none_or(|(_, _, b)| span.end - span.start <= b.end - b.start)
            {
                best = Some((path.to_string(), node, span));
            }
        });
        best
    }

    /// What a key is after inheritance and interpolation, and who set it.
    pub fn hover(&self, offset: usize) -> Option<Hover> {
        if let Some((path, node, span)) = self.at(offset) {
            let text = format!(
                "```yaml\n{path}: {}\n```\n\n{}",
                shown(&node.value),
                self.set_by(node.origin)
            );
            return Some(Hover { span, text });
        }
        // A key that another file sets again.
        let (path, span) = self.key(offset)?;
        let node = self.settings.as_ref()?.get(&path)?;
        let text =
            format!("```yaml\n{path}: {}\n```\n\n{}", shown(&node.value), self.set_by(node.origin));
        Some(Hover { span, text })
    }

    fn set_by(&self, origin: Origin) -> String {
        let place = self.sources.place(origin.key);
        let who = match origin.by {
            SetBy::File => format!("set at {place}"),
            SetBy::Parent => format!("inherited: set at {place}"),
            SetBy::CommandLine => "set on the command line".to_string(),
        };
        match origin.source {
            Some(source) => format!("{who}, from the value at {}", self.sources.place(source)),
            None => who,
        }
    }

    /// Where the value of a key is written: that which an interpolation names, or what set it last.
    pub fn definition(&self, offset: usize) -> Option<Span> {
        if let Some((_, node, span)) = self.at(offset) {
            let target = node.origin.source.unwrap_or(node.origin.key);
            return (target != span).then_some(target);
        }
        let (path, _) = self.key(offset)?;
        Some(self.settings.as_ref()?.get(&path)?.origin.key)
    }

    /// The dotted path of the key on the line of an offset, by indentation.
    fn key(&self, offset: usize) -> Option<(String, Span)> {
        let start = self.text.get(..offset)?.rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next()?;
        let (name, indent) = key_of(line)?;
        let mut path = self.parents(start, indent);
        path.push(name);
        let from = start + indent;
        Some((path.join("."), Span::new(self.here?, from, from + name.len())))
    }

    /// Keys above a line that hold what stands at an indentation.
    fn parents(&self, start: usize, indent: usize) -> Vec<&str> {
        let mut out = vec![];
        let mut indent = indent;
        for line in self.text[..start].lines().rev() {
            if let Some((name, at)) = key_of(line)
                && at < indent
            {
                out.insert(0, name);
                indent = at;
            }
        }
        out
    }

    /// Keys that may stand at an offset: those that the recipe has there, inherited ones among them, then
    /// all others that its section may have.
    pub fn complete(&self, offset: usize) -> Vec<Completion> {
        let Some(before) = self.text.get(..offset) else { return vec![] };
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = &before[start..];
        if line.contains([':', '#']) {
            return vec![];
        }
        let indent = line.len() - line.trim_start().len();
        let path = self.parents(start, indent).join(".");
        let settings = self.settings.as_ref();
        let node = match path.is_empty() {
            true => settings.map(|s| &s.root),
            false => settings.and_then(|s| s.get(&path)),
        };
        let entries = node.into_iter().flat_map(|n| n.entries());
        let completion = |name: &str, detail: String, doc: Option<String>| Completion {
            label: name.to_string(),
            insert: Some(format!("{name}: ")),
            sort: Sort::Setting,
            detail,
            doc,
        };
        let set = entries.map(|(name, node)| {
            completion(name, shown(&node.value), Some(self.set_by(node.origin)))
        });
        let mut out: Vec<Completion> = set.collect();
        for (name, types) in nrl_nemo::schema::known(&path) {
            if !out.iter().any(|c| c.label == name) {
                out.push(completion(name, types, None));
            }
        }
        out
    }
}

/// The key of a line and where it begins.
fn key_of(line: &str) -> Option<(&str, usize)> {
    let indent = line.len() - line.trim_start().len();
    let (name, _) = line[indent..].split_once(':')?;
    let plain = !name.is_empty() && !name.starts_with(['#', '-', '"', '\'']) && !name.contains(' ');
    plain.then_some((name, indent))
}

fn walk<'n>(node: &'n Node, path: &mut String, f: &mut dyn FnMut(&str, &'n Node)) {
    let mut below = |name: &str, child: &'n Node| {
        let length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        f(path, child);
        walk(child, path, f);
        path.truncate(length);
    };
    match &node.value {
        Value::Map(map) => map.iter().for_each(|(name, child)| below(name, child)),
        Value::List(list) => {
            list.iter().enumerate().for_each(|(i, child)| below(&i.to_string(), child))
        }
        _ => {}
    }
}

/// A value on one line.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) => format!("{x:?}"),
        Value::Text(t) => format!("{t:?}"),
        Value::List(items) => {
            let all: Vec<String> = items.iter().map(|n| shown(&n.value)).collect();
            format!("[{}]", all.join(", "))
        }
        Value::Map(map) => {
            let all: Vec<&str> = map.keys().map(String::as_str).collect();
            format!("{{{}}}", all.join(", "))
        }
    }
}
