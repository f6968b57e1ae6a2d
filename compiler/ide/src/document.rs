//! One `.nrl` file as an editor asks about it.
//!
//! In: the path of the file, the other files that are open, and [`Files`]. Out: answers by byte offset:
//! hover, definition, references, renames, symbols, hints; completion is in `complete`. A half-typed text gives
//! the answers that the rest of it allows.

use std::cell::OnceCell;

use nrl_base::{Files, SourceId, Span};
use nrl_ir::program::Weights;
use nrl_lower::seen::{Fact, Seen, lower_seen};
use nrl_lower::{Lowered, Options};

use crate::findings::Edit;
use crate::index::{Def, Index, Kind, Target};
use crate::world::World;

/// A file, understood as far as it goes.
pub struct Document {
    pub path: String,
    pub world: World,
    /// One per module of the world, made when asked for.
    indices: Vec<OnceCell<Index>>,
    seen: Seen,
    /// Axes that split dims, where all models agree.
    layout: Vec<(String, Vec<String>)>,
}

/// What is shown beside the pointer, as Markdown.
#[derive(Clone, PartialEq, Debug)]
pub struct Hover {
    pub span: Span,
    pub text: String,
}

/// What is shown behind a name.
#[derive(Clone, PartialEq, Debug)]
pub struct Hint {
    pub offset: usize,
    pub text: String,
}

/// One line of the outline.
#[derive(Clone, PartialEq, Debug)]
pub struct Symbol {
    pub name: String,
    pub kind: Kind,
    pub span: Span,
    pub whole: Span,
}

impl Document {
    /// Reads a file. References are also looked for in the files `open`.
    pub fn open(files: &dyn Files, path: &str, open: &[&str]) -> Document {
        let mut paths = vec![path];
        paths.extend(open.iter().filter(|p| **p != path));
        let world = World::load(files, &paths);
        let indices = world.modules.iter().map(|_| OnceCell::new()).collect();
        let mut sources = nrl_base::SourceMap::new();
        let (lowered, mut seen) = lower_seen(files, &mut sources, path, &Options::default());
        // The file is the first source of its own elaboration.
        if let Some(here) = world.modules.first().map(|m| m.source) {
            let own = seen.facts.into_iter().filter(|(span, _)| span.source == SourceId(0));
            seen.facts = own.map(|(span, facts)| (Span { source: here, ..span }, facts)).collect();
        }
        let layout = layout(&lowered);
        Document { path: path.to_string(), world, indices, seen, layout }
    }

    /// The text of the file itself.
    pub fn text(&self) -> &str {
        self.world
            .modules
            .first()
            .map_or("", |m| self.world.sources.get(m.source).map_or("", |s| s.text()))
    }

    /// The names of the file itself.
    pub fn index(&self) -> Option<&Index> {
        self.index_of(0)
    }

    /// The names of a module.
    pub fn index_of(&self, module: usize) -> Option<&Index> {
        let cell = self.indices.get(module)?;
        Some(cell.get_or_init(|| Index::of(&self.world, module)))
    }

    /// What stands at an offset, and where it came from.
    pub fn hover(&self, offset: usize) -> Option<Hover> {
        let named = self.index()?.at(offset);
        let fact = self.fact(offset);
        let Some((span, target)) = named else {
            let (span, facts) = fact?;
            let literal = self.world.sources.text(span).len() < 3;
            return (!literal).then(|| Hover { span, text: code(&self.words(facts)) });
        };
        let mut text = match &target {
            Target::Module(m) => {
                let module = &self.world.modules[*m];
                let first = module.file.items.iter().find_map(|i| i.doc.as_deref());
                format!("{}\n\n{}", code(&format!("module {}", module.name)), first.unwrap_or(""))
            }
            Target::Builtin(name) => builtin(name),
            Target::Def(at) => self.told(*at)?,
        };
        // The value of the whole path `a.b`, and of a name where it stands alone or is declared.
        let facts = fact.filter(|(s, _)| s.end == span.end).map(|(_, facts)| facts);
        let facts = facts.or_else(|| match &target {
            Target::Def(at) => self.of_def(self.def(*at)?),
            _ => None,
        });
        if let Some(facts) = facts {
            text.push_str(&format!("\n\n{}", code(&self.words(facts))));
        }
        Some(Hover { span, text: text.trim_end().to_string() })
    }

    /// A declaration in words: its head, where it is, its documentation.
    fn told(&self, at: Span) -> Option<String> {
        let def = self.def(at)?;
        let mut text = code(&self.head(def));
        if let Some(doc) = &def.doc {
            text.push_str(&format!("\n\n{doc}"));
        }
        if !self.is_here(at) {
            text.push_str(&format!("\n\nin {}", self.world.sources.place(at)));
        } else if let Some(value) = def.value {
            text.push_str(&format!("\n\nset at {}", self.world.sources.place(value)));
        }
        Some(text)
    }

    fn is_here(&self, span: Span) -> bool {
        self.world.modules.first().is_some_and(|m| m.source == span.source)
    }

    /// The declaration whose name stands there, in any module.
    pub(crate) fn def(&self, at: Span) -> Option<&Def> {
        self.index_of(self.world.module_of(at.source)?)?.def(at)
    }

    /// `fn clip(ratio: f32[tok], ..) -> f32[tok]`, `lr = 3e-4`: a declaration without its body.
    fn head(&self, def: &Def) -> String {
        let text = self.world.sources.text(def.whole);
        let whole = matches!(
            def.kind,
            Kind::Record | Kind::Enum | Kind::Field | Kind::Variant | Kind::Parameter
        );
        if whole && text.len() < 600 {
            return if def.kind == Kind::Variant {
                format!("{} (variant)", def.name)
            } else {
                text.to_string()
            };
        }
        let mut depth = 0;
        for (at, c) in text.char_indices() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                '{' if depth <= 0 => return text[..at].trim_end().to_string(),
                '=' if depth <= 0 && def.kind == Kind::Function => {
                    return text[..at].trim_end().to_string();
                }
                '\n' if depth <= 0 => return text[..at].trim_end().to_string(),
                _ => {}
            }
        }
        text.to_string()
    }

    /// The facts of the smallest expression around an offset.
    pub(crate) fn fact(&self, offset: usize) -> Option<(Span, &Vec<Fact>)> {
        let here = self.world.modules.first()?.source;
        let around = self.seen.facts.iter().filter(|(s, _)| s.source == here && s.touches(offset));
        around.min_by_key(|(s, _)| s.end - s.start).map(|(s, f)| (*s, f))
    }

    /// The facts of the value that a name is bound to.
    pub(crate) fn of_def(&self, def: &Def) -> Option<&Vec<Fact>> {
        if !self.is_here(def.span) {
            return None;
        }
        let bound = def
            .value
            .filter(|_| matches!(def.kind, Kind::Local | Kind::Constant | Kind::Parameter));
        let used = || {
            let uses = self.index()?.uses.iter().filter(|u| u.target == Target::Def(def.span));
            uses.map(|u| u.span).find_map(|s| self.seen.facts.get(&s))
        };
        // A loop's variable is not the list it runs over.
        let bound =
            bound.filter(|v| v.start > def.span.start).and_then(|v| self.seen.facts.get(&v));
        bound.filter(|_| !self.world.sources.text(def.whole).starts_with("for ")).or_else(used)
    }

    fn words(&self, facts: &[Fact]) -> String {
        facts.iter().map(|f| self.shown(f, true)).collect::<Vec<_>>().join("\n")
    }

    /// A fact with its layout, and with `sizes` the sizes of its dims.
    fn shown(&self, fact: &Fact, sizes: bool) -> String {
        if fact.dims.is_empty() {
            return fact.text.clone();
        }
        let head = fact.text.split('[').next().unwrap_or("f32");
        let dims: Vec<String> = fact.dims.iter().map(|(d, _)| self.split(d)).collect();
        let known: Vec<String> =
            fact.dims.iter().filter_map(|(d, n)| n.map(|n| format!("{d} = {n}"))).collect();
        let sizes = if sizes && !known.is_empty() {
            format!("   # {}", known.join(", "))
        } else {
            String::new()
        };
        format!("{head}[{}]{sizes}", dims.join(", "))
    }

    /// A dim with the axes that split it.
    fn split(&self, dim: &str) -> String {
        match self.layout.iter().find(|(d, _)| d == dim) {
            Some((_, axes)) => format!("{dim}@{}", axes.join("@")),
            None => dim.to_string(),
        }
    }

    /// Dims, layouts and computed numbers behind the names that they are bound to.
    pub fn hints(&self, from: usize, to: usize) -> Vec<Hint> {
        let Some(index) = self.index() else { return vec![] };
        let mut out = vec![];
        for def in index.defs.iter().filter(|d| matches!(d.kind, Kind::Local | Kind::Constant)) {
            let end = def.span.end as usize;
            let Some(value) = def.value.filter(|v| v.start > def.span.start) else { continue };
            if end < from
                || end > to
                || index.defs.iter().filter(|d| d.value == Some(value)).count() > 1
            {
                continue;
            }
            let Some([fact]) = self.seen.facts.get(&value).map(Vec::as_slice) else { continue };
            let written = self.world.sources.text(value);
            let number = fact.text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let tensor = fact.text.starts_with("f32") || fact.text.starts_with("id(");
            let literal = written.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                && !written.contains(' ');
            let same = written == fact.text || literal;
            if tensor || number && !same && fact.text.len() <= 30 {
                out.push(Hint { offset: end, text: format!(": {}", self.shown(fact, false)) });
            }
        }
        out.sort_by_key(|h| h.offset);
        out
    }

    /// Where what stands at an offset is declared: a place in any of the world's sources.
    pub fn definition(&self, offset: usize) -> Option<Span> {
        match self.index()?.at(offset)?.1 {
            Target::Def(span) => Some(span),
            Target::Module(m) => Some(Span::new(self.world.modules[m].source, 0, 0)),
            Target::Builtin(_) => None,
        }
    }

    /// All places that mean the same as the name at an offset, its declaration among them.
    pub fn references(&self, offset: usize) -> Vec<Span> {
        let Some((_, target)) = self.index().and_then(|i| i.at(offset)) else { return vec![] };
        let mut out: Vec<Span> = vec![];
        for module in (0..self.world.modules.len()).filter(|m| !self.world.modules[*m].is_std()) {
            let Some(index) = self.index_of(module) else { continue };
            out.extend(index.uses.iter().filter(|u| u.target == target).map(|u| u.span));
            out.extend(index.defs.iter().filter(|d| target == Target::Def(d.span)).map(|d| d.span));
        }
        out.sort();
        out.dedup();
        out
    }

    /// The edits that give the name at an offset another one; or why that cannot be.
    pub fn rename(&self, offset: usize, new: &str) -> Result<Vec<Edit>, String> {
        let (_, target) = self.renamable(offset)?;
        let Some(def) = self.def(target) else { return Err("nothing here has a name".into()) };
        let word = new.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !word || new.starts_with(|c: char| c.is_ascii_digit()) || new.is_empty() {
            return Err(format!("`{new}` is not a name: letters, digits and `_`"));
        }
        if crate::words::RESERVED.contains(&new) {
            return Err(format!("`{new}` is a word of the language"));
        }
        let places = self.references(offset);
        for place in &places {
            if let Some(other) = self.taken(*place, new, def) {
                return Err(format!(
                    "`{new}` already means something here: {}",
                    self.world.sources.place(other)
                ));
            }
        }
        // A use under another name (`use x.{a as b}`) keeps it.
        let same = places.into_iter().filter(|p| self.world.sources.text(*p) == def.name);
        Ok(same.map(|span| Edit { span, text: new.to_string() }).collect())
    }

    /// The name at an offset and its declaration, if a rename could change it.
    pub fn renamable(&self, offset: usize) -> Result<(Span, Span), String> {
        match self.index().and_then(|i| i.at(offset)) {
            None => Err("nothing here has a name".into()),
            Some((_, Target::Builtin(name))) => Err(format!("`{name}` is part of the language")),
            Some((_, Target::Module(_))) => Err("a module is renamed with its file".into()),
            Some((_, Target::Def(at))) if !self.world.is_own(at) => {
                let place = self.world.sources.place(at);
                Err(format!("it is declared in the standard library, at {place}"))
            }
            Some((span, Target::Def(at))) => Ok((span, at)),
        }
    }

    /// A declaration called `new` that would be mixed up with `def` at a place.
    fn taken(&self, place: Span, new: &str, def: &Def) -> Option<Span> {
        let module = self.world.module_of(place.source)?;
        let index = self.index_of(module)?;
        let member = matches!(def.kind, Kind::Field | Kind::Variant);
        let near = if member {
            let types = index.defs.iter().filter(|d| matches!(d.kind, Kind::Record | Kind::Enum));
            let owner = types.filter(|d| d.whole.to(def.span) == d.whole);
            let owner = owner.min_by_key(|d| d.whole.end - d.whole.start)?;
            index.defs.iter().find(|d| {
                d.name == new && d.kind == def.kind && owner.whole.to(d.span) == owner.whole
            })
        } else {
            let seen = |d: &&Def| d.visible.contains(&(place.start as usize)) || overlap(d, def);
            index.defs.iter().filter(|d| d.name == new).find(seen)
        };
        near.map(|d| d.span)
    }

    /// The outline of the file.
    pub fn symbols(&self) -> Vec<Symbol> {
        let Some(index) = self.index() else { return vec![] };
        let mut out: Vec<Symbol> = index
            .defs
            .iter()
            .filter(|d| d.kind != Kind::Parameter)
            .map(|d| Symbol { name: d.name.clone(), kind: d.kind, span: d.span, whole: d.whole })
            .collect();
        out.sort_by_key(|s| (s.whole.start, std::cmp::Reverse(s.whole.end)));
        out
    }
}

fn overlap(a: &Def, b: &Def) -> bool {
    a.visible.start < b.visible.end && b.visible.start < a.visible.end
}

fn code(text: &str) -> String {
    format!("```nrl\n{text}\n```")
}

/// A built-in function in words.
fn builtin(name: &str) -> String {
    let params = nrl_lower::seen::builtin(name).map_or(&[][..], |b| b.params);
    let shown: Vec<String> = params
        .iter()
        .map(|p| match p.strip_suffix('?') {
            Some(p) => format!("[{p}]"),
            None => (*p).to_string(),
        })
        .collect();
    let call = if shown.is_empty() {
        format!("{name}(..)")
    } else {
        format!("{name}({})", shown.join(", "))
    };
    format!("{}\n\nbuilt in", code(&call))
}

/// What splits each dim in values, as `shard` will have it: by the first rule for the dim whose axes the
/// mesh has. Empty where models differ or parameters have rules of their own.
fn layout(lowered: &Lowered) -> Vec<(String, Vec<String>)> {
    let p = &lowered.program;
    let own = |i: &usize| !matches!(p.models[*i].weights, Weights::Frozen { .. });
    let mut models = (0..p.models.len()).filter(own).filter(|i| *i < lowered.rules.len());
    let Some(first) = models.next() else { return vec![] };
    let rules = &lowered.rules[first];
    let same =
        models.all(|m| lowered.rules[m] == *rules && p.models[m].mesh == p.models[first].mesh);
    let Some((_, mesh)) =
        p.meshes.get(p.models[first].mesh).filter(|_| same && rules.paths.is_empty())
    else {
        return vec![];
    };
    let mut out: Vec<(String, Vec<String>)> = vec![];
    for r in &rules.dims {
        let has = |a: &&String| mesh.axes.iter().any(|x| x.name == **a);
        let known: Vec<&String> = r.axes.iter().filter(has).collect();
        if known.is_empty() && !r.axes.is_empty() || out.iter().any(|(d, _)| *d == r.dim) {
            continue;
        }
        let live = known.into_iter().filter(|a| mesh.size(a) > 1).cloned().collect();
        out.push((r.dim.clone(), live));
    }
    // Whole samples are split, and their tokens with them.
    if let Some((_, axes)) = out.iter().find(|(d, _)| d == "seq").cloned() {
        out.push(("tok".into(), axes));
    }
    out.retain(|(_, axes)| !axes.is_empty());
    out
}
