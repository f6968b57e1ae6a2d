//! Files of a recipe: the recipe itself, the local files it uses, and the standard library.
//!
//! In: a path and [`Files`]. Out: every module parsed once, with the names each makes visible.
//! Loading stops at cycles; a module that does not parse is kept as far as it does.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Problems, SourceId, SourceMap, Span, nearest};
use nrl_syntax::ast::{File, Item, ItemKind, Use, UseOrigin};

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
    pub file: File,
    /// Own items and imports, by name.
    pub names: IndexMap<String, Global>,
}

/// All modules; the entry is the first.
#[derive(Debug, Default)]
pub struct Modules {
    pub list: Vec<Module>,
    /// The module whose names every other sees.
    pub prelude: Option<ModuleId>,
    /// Overrides of recipe parameters.
    pub params: Vec<(String, nrl_syntax::ast::Expr)>,
}

impl Modules {
    pub fn get(&self, id: ModuleId) -> &Module {
        &self.list[id.0]
    }

    pub fn item(&self, id: ModuleId, index: usize) -> &Item {
        &self.list[id.0].file.items[index]
    }

    /// A name as seen from `module`: its own, else the prelude's.
    pub fn find(&self, module: ModuleId, name: &str) -> Option<Global> {
        let own = self.get(module).names.get(name).copied();
        own.or_else(|| self.get(self.prelude?).names.get(name).copied())
    }
}

/// The standard library, by module name.
pub const STD: &[(&str, &str)] = &[
    ("std.prelude", include_str!("../../../stdlib/prelude.nrl")),
    ("std.clusters", include_str!("../../../stdlib/clusters.nrl")),
    ("std.data", include_str!("../../../stdlib/data.nrl")),
    ("std.grpo", include_str!("../../../stdlib/grpo.nrl")),
    ("std.models", include_str!("../../../stdlib/models.nrl")),
    ("std.models.llama", include_str!("../../../stdlib/models/llama.nrl")),
    ("std.models.qwen2", include_str!("../../../stdlib/models/qwen2.nrl")),
    ("std.models.qwen3", include_str!("../../../stdlib/models/qwen3.nrl")),
    ("std.models.rope", include_str!("../../../stdlib/models/rope.nrl")),
    ("std.optim", include_str!("../../../stdlib/optim.nrl")),
    ("std.plans", include_str!("../../../stdlib/plans.nrl")),
    ("std.rewards", include_str!("../../../stdlib/rewards.nrl")),
    ("std.sft", include_str!("../../../stdlib/sft.nrl")),
];

struct Loader<'f> {
    files: &'f dyn Files,
    sources: &'f mut SourceMap,
    problems: &'f mut Problems,
    modules: Modules,
    /// Module ids by name; a module being loaded is there already, so cycles end.
    known: IndexMap<String, ModuleId>,
}

/// Loads `path` and everything it uses. `text` is its text if the caller already has it.
pub fn load(
    files: &dyn Files,
    sources: &mut SourceMap,
    problems: &mut Problems,
    path: &str,
    edit: &mut dyn FnMut(&mut File, &mut SourceMap, &mut Problems),
) -> Option<Modules> {
    let bytes = match files.read(path) {
        Ok(b) => b,
        Err(why) => {
            problems.push(Diagnostic::error("file-not-read", format!("cannot read {path}: {why}")));
            return None;
        }
    };
    let source = sources.add(path, String::from_utf8_lossy(&bytes).into_owned());
    let (mut file, found) = nrl_syntax::parse_bytes(source, &bytes);
    problems.extend(found);
    edit(&mut file, sources, problems);
    let mut loader =
        Loader { files, sources, problems, modules: Modules::default(), known: IndexMap::new() };
    loader.add(path.to_string(), source, file);
    loader.modules.prelude = loader.standard("std.prelude");
    Some(loader.modules)
}

impl Loader<'_> {
    fn add(&mut self, name: String, source: SourceId, file: File) -> ModuleId {
        let id = ModuleId(self.modules.list.len());
        self.known.insert(name.clone(), id);
        let mut names = IndexMap::new();
        for (i, item) in file.items.iter().enumerate() {
            let Some(n) = item.name() else { continue };
            if names.insert(n.text.clone(), Global::Item(id, i)).is_some() {
                let first = file
                    .items
                    .iter()
                    .find_map(|x| x.name().filter(|m| m.text == n.text))
                    .map(|m| m.span);
                let d =
                    Diagnostic::error("duplicate-name", format!("`{}` is defined twice", n.text))
                        .label(n.span, "second definition");
                self.problems.push(match first {
                    Some(span) => d.label(span, "first definition"),
                    None => d,
                });
            }
        }
        let uses: Vec<(Use, Span)> = file
            .items
            .iter()
            .filter_map(|i| {
                if let ItemKind::Use(u) = &i.kind { Some((u.clone(), i.span)) } else { None }
            })
            .collect();
        self.modules.list.push(Module { name: name.clone(), source, file, names });
        for (u, span) in uses {
            self.use_(id, &name, &u, span);
        }
        id
    }

    fn use_(&mut self, into: ModuleId, importer: &str, u: &Use, span: Span) {
        let (module, label) = match &u.origin {
            UseOrigin::File(t) => (self.local(importer, &t.value, t.span), t.value.clone()),
            UseOrigin::Path(p) => {
                let name = p.text();
                if name == "std" {
                    for n in &u.names {
                        let full = format!("std.{}", n.name.text);
                        match self.standard(&full) {
                            Some(m) => self.bind(
                                into,
                                &n.alias.as_ref().unwrap_or(&n.name).text.clone(),
                                Global::Module(m),
                            ),
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
            let name = u.alias.as_ref().map_or(last, |a| a.text.clone());
            self.bind(into, &name, Global::Module(module));
        }
        for n in &u.names {
            let found = self.modules.get(module).names.get(&n.name.text).copied();
            // `use std.models.{llama}` also names submodules.
            let found = found.or_else(|| {
                let full = format!("{}.{}", self.modules.get(module).name, n.name.text);
                self.standard(&full).map(Global::Module)
            });
            match found {
                Some(g) => self.bind(into, &n.alias.as_ref().unwrap_or(&n.name).text.clone(), g),
                None => {
                    let help = nearest(
                        &n.name.text,
                        self.modules.get(module).names.keys().map(String::as_str),
                    )
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
        let _ = span;
    }

    fn bind(&mut self, into: ModuleId, name: &str, g: Global) {
        self.modules.list[into.0].names.entry(name.to_string()).or_insert(g);
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
        let (_, text) = STD.iter().find(|(n, _)| *n == name)?;
        let source = self.sources.add(format!("{}.nrl", name.replace('.', "/")), *text);
        let (file, found) = nrl_syntax::parse(source, text);
        self.problems.extend(found);
        Some(self.add(name.to_string(), source, file))
    }

    fn local(&mut self, importer: &str, path: &str, span: Span) -> Option<ModuleId> {
        let folder = importer.rsplit_once('/').map_or("", |(f, _)| f);
        let full = if folder.is_empty() || path.starts_with('/') {
            path.to_string()
        } else {
            format!("{folder}/{path}")
        };
        if let Some(id) = self.known.get(&full) {
            return Some(*id);
        }
        match self.files.read(&full) {
            Ok(bytes) => {
                let source =
                    self.sources.add(full.clone(), String::from_utf8_lossy(&bytes).into_owned());
                let (file, found) = nrl_syntax::parse_bytes(source, &bytes);
                self.problems.extend(found);
                Some(self.add(full, source, file))
            }
            Err(why) => {
                self.problems.push(
                    Diagnostic::error("file-not-read", format!("cannot read {full}: {why}"))
                        .label(span, "used here"),
                );
                None
            }
        }
    }
}
