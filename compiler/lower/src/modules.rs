//! Files of a recipe: the recipe itself, the local files it uses, and the standard library.
//!
//! In: a path and [`Files`]. Out: every module parsed once, with the names each makes visible.
//! Loading stops at cycles; a module that does not parse is kept as far as it does.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Problems, SourceId, SourceMap, Span, nearest};
use nrl_stdlib::STD;
use nrl_syntax::ast::{File, Item, ItemKind, Use, UseOrigin};

use crate::extend::Edited;
use nrl_base::Files;

/// Index of a loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub usize);

/// What a name at the top of a module stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// Item `index` of a module.
    Item(ModuleId, usize),
    Module(ModuleId),
}

/// One parsed file.
#[derive(Debug)]
pub struct Module {
    /// `std.grpo`, or the path of a local file.
    pub name: String,
    pub source: SourceId,
    pub file: Arc<File>,
    /// Own items and imports, by name.
    pub names: IndexMap<String, Global>,
    /// Own and imported recipes: they are no values, so a recipe may be called as a module is.
    pub recipes: IndexMap<String, (ModuleId, usize)>,
}

/// All modules; the entry is the first.
#[derive(Debug, Default)]
pub struct Modules {
    pub list: Vec<Module>,
    /// The module whose names every other sees.
    pub prelude: Option<ModuleId>,
    /// Recipes whose lines are not those of their item, by module and item: they extend others or
    /// are overridden from outside.
    pub edited: BTreeMap<(ModuleId, usize), Edited>,
}

impl Modules {
    pub fn get(&self, id: ModuleId) -> &Module {
        &self.list[id.0]
    }

    pub fn item(&self, id: ModuleId, index: usize) -> &Item {
        &self.list[id.0].file.items[index]
    }

    /// The module whose file has `span`; lines of a recipe may come from several.
    pub fn home(&self, span: Span, otherwise: ModuleId) -> ModuleId {
        let written = |m: ModuleId| self.list.get(m.0).is_some_and(|m| m.source == span.source);
        if written(otherwise) {
            return otherwise;
        }
        self.list.iter().position(|m| m.source == span.source).map_or(otherwise, ModuleId)
    }

    /// A name as seen from `module`: its own, else the prelude's.
    pub fn find(&self, module: ModuleId, name: &str) -> Option<Global> {
        let own = self.get(module).names.get(name).copied();
        own.or_else(|| self.get(self.prelude?).names.get(name).copied())
    }
}

struct Loader<'f> {
    files: &'f dyn Files,
    sources: &'f mut SourceMap,
    problems: &'f mut Problems,
    modules: Modules,
    /// Module ids by name; a module being loaded is there already, so cycles end.
    known: IndexMap<String, ModuleId>,
    /// Local files being loaded, the outermost first.
    loading: Vec<String>,
    /// Where each imported name was imported.
    imports: BTreeMap<(ModuleId, String), Span>,
}

/// Loads `path` and everything it uses.
pub fn load(
    files: &dyn Files,
    sources: &mut SourceMap,
    problems: &mut Problems,
    path: &str,
) -> Option<Modules> {
    let bytes = match files.read(path) {
        Ok(b) => b,
        Err(why) => {
            problems.push(Diagnostic::error("file-not-read", format!("cannot read {path}: {why}")));
            return None;
        }
    };
    if let Some((stem, "yaml" | "yml")) = path.rsplit_once('.') {
        let text =
            format!("{path} is YAML: `nrlc check` reads recipes of NeMo RL, all else needs .nrl");
        let name = stem.rsplit('/').next().unwrap_or(stem);
        problems.push(
            Diagnostic::error("not-supported", text)
                .help(format!("write `nrlc import {path} -o {name}.nrl` first")),
        );
        return None;
    }
    let source = sources.add(path, String::from_utf8_lossy(&bytes).into_owned());
    let (file, found) = nrl_syntax::parse_bytes(source, &bytes);
    problems.extend(found);
    let mut loader = Loader {
        files,
        sources,
        problems,
        modules: Modules::default(),
        known: IndexMap::new(),
        loading: vec![],
        imports: BTreeMap::new(),
    };
    loader.add(plain(path), source, Arc::new(file));
    loader.modules.prelude = loader.standard("std.prelude");
    Some(loader.modules)
}

impl Loader<'_> {
    fn add(&mut self, name: String, source: SourceId, file: Arc<File>) -> ModuleId {
        let id = ModuleId(self.modules.list.len());
        self.known.insert(name.clone(), id);
        let mut names = IndexMap::new();
        let mut recipes = IndexMap::new();
        for (i, item) in file.items.iter().enumerate() {
            let Some(n) = item.name() else { continue };
            let first = if matches!(item.kind, ItemKind::Recipe(_)) {
                recipes.insert(n.text.clone(), (id, i)).map(|(_, i)| i)
            } else {
                match names.insert(n.text.clone(), Global::Item(id, i)) {
                    Some(Global::Item(_, i)) => Some(i),
                    _ => None,
                }
            };
            if let Some(first) = first.and_then(|f| file.items[f].name()) {
                self.twice(&n.text, n.span, first.span, "definition");
            }
        }
        let uses: Vec<Use> = file
            .items
            .iter()
            .filter_map(|i| if let ItemKind::Use(u) = &i.kind { Some(u.clone()) } else { None })
            .collect();
        self.modules.list.push(Module { name: name.clone(), source, file, names, recipes });
        self.loading.push(name.clone());
        for u in uses {
            self.use_(id, &name, &u);
        }
        self.loading.pop();
        id
    }

    fn twice(&mut self, name: &str, second: Span, first: Span, what: &str) {
        self.problems.push(
            Diagnostic::error("duplicate-name", format!("`{name}` is defined twice"))
                .label(second, format!("second {what}"))
                .label(first, "first definition"),
        );
    }

    fn use_(&mut self, into: ModuleId, importer: &str, u: &Use) {
        let (module, label) = match &u.origin {
            UseOrigin::File(t) => (self.local(importer, &t.value, t.span), t.value.clone()),
            UseOrigin::Path(p) => {
                let name = p.text();
                if name == "std" {
                    for n in &u.names {
                        let full = format!("std.{}", n.name.text);
                        match self.standard(&full) {
                            Some(m) => {
                                let name = n.alias.as_ref().unwrap_or(&n.name);
                                self.bind(into, &name.text, Global::Module(m), name.span);
                            }
                            None => self.unknown_module(&full, n.name.span),
                        }
                    }
                    return;
                }
                let module = if name.starts_with("std.") {
                    self.standard(&name)
                } else {
                    self.local(importer, &format!("{}.nrl", name.replace('.', "/")), p.span)
                };
                if module.is_none() && name.starts_with("std.") {
                    self.unknown_module(&name, p.span);
                }
                (module, name)
            }
        };
        let Some(module) = module else { return };
        if u.names.is_empty() {
            let last = label
                .trim_end_matches(".nrl")
                .rsplit(['.', '/'])
                .next()
                .unwrap_or(&label)
                .to_string();
            let origin = match &u.origin {
                UseOrigin::File(t) => t.span,
                UseOrigin::Path(p) => p.span,
            };
            let (name, span) =
                u.alias.as_ref().map_or((last, origin), |a| (a.text.clone(), a.span));
            self.bind(into, &name, Global::Module(module), span);
        }
        for n in &u.names {
            let found = self.modules.get(module).names.get(&n.name.text).copied();
            // `use std.models.{llama}` also names submodules.
            let found = found.or_else(|| {
                let full = format!("{}.{}", self.modules.get(module).name, n.name.text);
                self.standard(&full).map(Global::Module)
            });
            let recipe = self.modules.get(module).recipes.get(&n.name.text).copied();
            let name = n.alias.as_ref().unwrap_or(&n.name);
            if let Some(r) = recipe {
                let known = &mut self.modules.list[into.0].recipes;
                let other = known.insert(name.text.clone(), r).filter(|other| *other != r);
                if let Some(other) = other.and_then(|(m, i)| self.modules.item(m, i).name()) {
                    let first = other.span;
                    self.twice(&name.text, name.span, first, "one, imported here");
                }
            }
            match found {
                Some(g) => self.bind(into, &name.text, g, name.span),
                None if recipe.is_some() => {}
                None => {
                    let there = self.modules.get(module);
                    let known = there.names.keys().chain(there.recipes.keys());
                    let help = nearest(&n.name.text, known.map(String::as_str))
                        .map(|s| format!("did you mean `{s}`?"));
                    self.problems.push(
                        Diagnostic::error(
                            "unknown-name",
                            format!("there is no `{}` in {label}", n.name.text),
                        )
                        .label(n.name.span, "not defined there")
                        .help_opt(help),
                    );
                }
            }
        }
    }

    fn bind(&mut self, into: ModuleId, name: &str, g: Global, span: Span) {
        let names = &mut self.modules.list[into.0].names;
        let first = *names.entry(name.to_string()).or_insert(g);
        if first == g {
            self.imports.entry((into, name.to_string())).or_insert(span);
            return;
        }
        let import = self.imports.get(&(into, name.to_string())).copied();
        let own = match first {
            Global::Item(m, i) if m == into => self.modules.item(m, i).name().map(|n| n.span),
            _ => None,
        };
        if let Some(first) = import.or(own) {
            self.twice(name, span, first, "one, imported here");
        }
    }

    fn unknown_module(&mut self, name: &str, span: Span) {
        let help =
            nearest(name, STD.iter().map(|(n, _)| *n)).map(|s| format!("did you mean `{s}`?"));
        self.problems.push(
            Diagnostic::error("unknown-name", format!("the standard library has no `{name}`"))
                .label(span, "not found")
                .help_opt(help),
        );
    }

    fn standard(&mut self, name: &str) -> Option<ModuleId> {
        if let Some(id) = self.known.get(name) {
            return Some(*id);
        }
        let module = nrl_stdlib::find(name)?;
        let source = nrl_stdlib::add_source(self.sources, module);
        Some(self.add(name.to_string(), source, nrl_stdlib::tree(module)))
    }

    fn local(&mut self, importer: &str, path: &str, span: Span) -> Option<ModuleId> {
        let folder = importer.rsplit_once('/').map_or("", |(f, _)| f);
        let full = if folder.is_empty() || path.starts_with('/') {
            plain(path)
        } else {
            plain(&format!("{folder}/{path}"))
        };
        if let Some(at) = self.loading.iter().position(|l| *l == full) {
            let mut chain: Vec<&str> = self.loading[at..].iter().map(String::as_str).collect();
            chain.push(&full);
            self.problems.push(
                Diagnostic::error("import-cycle", format!("{full} uses itself"))
                    .label(span, "used again here")
                    .note(format!("the way back: {}", chain.join(" -> ")))
                    .help("put what both need into a third file"),
            );
            return None;
        }
        if let Some(id) = self.known.get(&full) {
            return Some(*id);
        }
        match self.files.read(&full) {
            Ok(bytes) => {
                let source =
                    self.sources.add(full.clone(), String::from_utf8_lossy(&bytes).into_owned());
                let (file, found) = nrl_syntax::parse_bytes(source, &bytes);
                self.problems.extend(found);
                Some(self.add(full, source, Arc::new(file)))
            }
            Err(why) => {
                self.problems.push(
                    Diagnostic::error("file-not-read", format!("cannot read {full}: {why}"))
                        .label(span, "used here")
                        .help("paths count from the folder of the file that has the `use`"),
                );
                None
            }
        }
    }
}

/// A path without `.` and, where it can be, without `..`, so that one file has one name.
fn plain(path: &str) -> String {
    let mut out: Vec<&str> = vec![];
    for part in path.split('/') {
        match part {
            "." => {}
            "" if !out.is_empty() => {}
            ".." if out.last().is_some_and(|p| !matches!(*p, ".." | "")) => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.join("/")
}
