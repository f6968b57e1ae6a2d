//! The files that an editor's question is about, parsed once: open ones, what they use, the library.
//!
//! In: paths and [`Files`]. Out: modules with trees as far as their texts can be read, and what each
//! imports. Nothing here is an error: a file that cannot be had is left out.

use std::sync::Arc;

use indexmap::IndexMap;
use nrl_base::{Files, SourceId, SourceMap, Span};
use nrl_syntax::ast::{File, Item, ItemKind, Name, Param, UseOrigin};

/// What an imported name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Import {
    Module(usize),
    /// A module and the index of its item.
    Item(usize, usize),
}

/// One parsed file.
#[derive(Debug)]
pub struct Module {
    /// `std.grpo`, or the path of a local file.
    pub name: String,
    pub source: SourceId,
    pub file: Arc<File>,
    pub imports: IndexMap<String, Import>,
}

impl Module {
    /// Whether it is part of the standard library.
    pub fn is_std(&self) -> bool {
        self.name.starts_with("std.")
    }

    /// The index of the item that declares a name.
    pub fn item(&self, name: &str) -> Option<usize> {
        self.file.items.iter().position(|i| i.name().is_some_and(|n| n.text == name))
    }
}

/// All modules; the first is the file that was asked for.
pub struct World {
    pub sources: SourceMap,
    pub modules: Vec<Module>,
    pub prelude: Option<usize>,
}

struct Loader<'f> {
    files: &'f dyn Files,
    world: World,
}

impl World {
    /// Reads the files at `paths` and everything they use.
    pub fn load(files: &dyn Files, paths: &[&str]) -> World {
        let world = World { sources: SourceMap::new(), modules: vec![], prelude: None };
        let mut loader = Loader { files, world };
        for path in paths {
            loader.local(path);
        }
        loader.world.prelude = loader.standard("std.prelude");
        loader.world
    }

    /// The module of a source.
    pub fn module_of(&self, source: SourceId) -> Option<usize> {
        self.modules.iter().position(|m| m.source == source)
    }

    /// The module called `name`: a path or `std.grpo`.
    pub fn module(&self, name: &str) -> Option<usize> {
        self.modules.iter().position(|m| m.name == name)
    }

    /// An item.
    pub fn item(&self, module: usize, item: usize) -> &Item {
        &self.modules[module].file.items[item]
    }

    /// A name at the top of a module: its own, imported, or of the prelude.
    pub fn global(&self, module: usize, name: &str) -> Option<Import> {
        let here = &self.modules[module];
        let own = here.item(name).map(|i| Import::Item(module, i));
        let prelude = || {
            let p = self.prelude.filter(|p| *p != module)?;
            if name == "prelude" {
                return Some(Import::Module(p));
            }
            self.modules[p].item(name).map(|i| Import::Item(p, i))
        };
        own.or_else(|| here.imports.get(name).copied()).or_else(prelude)
    }

    /// What a name behind a module and a dot stands for.
    pub fn within(&self, module: usize, name: &str) -> Option<Import> {
        let here = &self.modules[module];
        here.item(name).map(|i| Import::Item(module, i)).or_else(|| here.imports.get(name).copied())
    }

    /// Whether a span is in a file of the user's own.
    pub fn is_own(&self, span: Span) -> bool {
        self.module_of(span.source).is_some_and(|m| !self.modules[m].is_std())
    }
}

impl Loader<'_> {
    fn add(&mut self, name: String, source: SourceId, file: Arc<File>) -> usize {
        let at = self.world.modules.len();
        self.world.modules.push(Module { name, source, file, imports: IndexMap::new() });
        self.imports(at);
        at
    }

    fn local(&mut self, path: &str) -> Option<usize> {
        if let Some(at) = self.world.module(path) {
            return Some(at);
        }
        let bytes = self.files.read(path).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let source = self.world.sources.add(path, text.as_str());
        let (file, _) = nrl_syntax::parse(source, &text);
        Some(self.add(path.to_string(), source, Arc::new(file)))
    }

    fn standard(&mut self, name: &str) -> Option<usize> {
        if let Some(at) = self.world.module(name) {
            return Some(at);
        }
        let module = nrl_stdlib::find(name)?;
        let source = nrl_stdlib::add_source(&mut self.world.sources, module);
        Some(self.add(name.to_string(), source, nrl_stdlib::tree(module)))
    }

    fn imports(&mut self, at: usize) {
        let importer = self.world.modules[at].name.clone();
        let uses: Vec<_> = self.world.modules[at]
            .file
            .items
            .iter()
            .filter_map(|i| if let ItemKind::Use(u) = &i.kind { Some(u.clone()) } else { None })
            .collect();
        for u in uses {
            let (module, last) = match &u.origin {
                UseOrigin::Path(p) if p.text() == "std" => {
                    for n in &u.names {
                        if let Some(m) = self.standard(&format!("std.{}", n.name.text)) {
                            self.bind(at, n.alias.as_ref().unwrap_or(&n.name), Import::Module(m));
                        }
                    }
                    continue;
                }
                UseOrigin::Path(p) if p.text().starts_with("std.") => {
                    (self.standard(&p.text()), p.names.last().map(|n| n.text.clone()))
                }
                UseOrigin::Path(p) => {
                    let path = beside(&importer, &format!("{}.nrl", p.text().replace('.', "/")));
                    (self.local(&path), p.names.last().map(|n| n.text.clone()))
                }
                UseOrigin::File(t) => {
                    let stem =
                        t.value.trim_end_matches(".nrl").rsplit('/').next().map(String::from);
                    (self.local(&beside(&importer, &t.value)), stem)
                }
            };
            let Some(module) = module else { continue };
            if u.names.is_empty() {
                let name = u.alias.as_ref().map(|a| a.text.clone()).or(last).unwrap_or_default();
                self.world.modules[at].imports.entry(name).or_insert(Import::Module(module));
            }
            for n in &u.names {
                let inner = self.world.within(module, &n.name.text);
                let below = format!("{}.{}", self.world.modules[module].name, n.name.text);
                let found = inner.or_else(|| self.standard(&below).map(Import::Module));
                if let Some(found) = found {
                    self.bind(at, n.alias.as_ref().unwrap_or(&n.name), found);
                }
            }
        }
    }

    fn bind(&mut self, at: usize, name: &Name, import: Import) {
        self.world.modules[at].imports.entry(name.text.clone()).or_insert(import);
    }
}

/// A path as seen from the file that names it.
fn beside(importer: &str, path: &str) -> String {
    let folder = importer.rsplit_once('/').map_or("", |(f, _)| f);
    match folder.is_empty() || path.starts_with('/') {
        true => path.to_string(),
        false => format!("{folder}/{path}"),
    }
}

/// The parameters of an item that can be called.
pub fn params(item: &Item) -> &[Param] {
    match &item.kind {
        ItemKind::Fn(f) | ItemKind::Rollout(f) => &f.params,
        ItemKind::ExternFn(f) => &f.params,
        ItemKind::Model(m) => &m.params,
        ItemKind::Plan(p) => &p.params,
        ItemKind::Recipe(r) => &r.params,
        _ => &[],
    }
}

/// A field of a record or a variant of an enum.
pub struct Member<'i> {
    pub name: &'i Name,
    pub doc: Option<&'i str>,
    pub span: Span,
}

/// Fields of a record or variants of an enum.
pub fn members(item: &Item) -> Vec<Member<'_>> {
    match &item.kind {
        ItemKind::Record(r) => r
            .fields
            .iter()
            .map(|f| Member { name: &f.name, doc: f.doc.as_deref(), span: f.span })
            .collect(),
        ItemKind::Enum(e) => e
            .variants
            .iter()
            .map(|v| Member { name: &v.name, doc: v.doc.as_deref(), span: v.span })
            .collect(),
        _ => vec![],
    }
}
