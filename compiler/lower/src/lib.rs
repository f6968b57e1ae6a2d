//! Recipes to programs: names, units, dims, and elaboration.
//!
//! In: a path, [`Files`], overrides. Out: a [`Lowered`] program (tensor graphs with global shapes
//! and named dims, host expressions, the step graph) and diagnostics. Elaboration is a partial
//! evaluation: what a recipe says before the run is computed here, what only the run knows becomes
//! a node. It is total: functions cannot recurse, loops run over lists or layers.

mod builder;
mod call;
mod check;
mod cluster;
mod config;
mod control;
mod elab;
mod expr;
pub mod facts;
mod host;
mod intrinsic;
mod model;
mod modules;
mod overrides;
mod plan;
mod probe;
mod recipe;
pub mod seen;
mod step;
mod tensor;
mod units;
mod unused;
mod value;

use nrl_base::{Diagnostic, Problems, SourceMap, Span};
use nrl_ir::program::Sampling;
use nrl_syntax::ast::ItemKind;

pub use elab::{GraphKind, Lowered, Requirement};
pub use modules::STD;
pub use nrl_base::Files;
pub use probe::lower_fn;
pub use value::{DimRule, PathRule, PlanRules, StateMode};

use elab::{Elab, Mode};
use modules::ModuleId;
use value::Env;

/// What to lower besides the file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `path=expr` overrides.
    pub sets: Vec<String>,
    /// Number of ranks instead of the cluster's.
    pub ranks: Option<usize>,
    /// Recipe to run; the first if `None`.
    pub recipe: Option<String>,
}

/// Lowers the recipe in `path`. The program is only meaningful if no problem is an error.
pub fn lower(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
) -> (Lowered, Problems) {
    let (lowered, problems, _) = elaborate(files, sources, path, options, None);
    (lowered, problems)
}

/// Lowers; with somewhere to keep what is seen it goes on behind syntax errors.
fn elaborate(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
    seen: Option<seen::Seen>,
) -> (Lowered, Problems, Option<seen::Seen>) {
    let mut problems = Problems::new();
    let mut params = vec![];
    let loaded =
        modules::load(files, sources, &mut problems, path, &mut |file, sources, problems| {
            if let Some(name) = &options.recipe {
                // The recipe asked for comes first.
                file.items.sort_by_key(
                    |i| !matches!(&i.kind, ItemKind::Recipe(r) if r.name.text == *name),
                );
            }
            params = overrides::apply(file, &options.sets, sources, problems);
        });
    let Some(mut modules) = loaded else { return (Lowered::default(), problems, seen) };
    modules.params = params;
    if problems.has_errors() && seen.is_none() {
        return (Lowered::default(), problems, seen);
    }
    let folder = path.rsplit_once('/').map_or("", |(f, _)| f);
    let mut elab = Elab::new(&modules, files, sources, folder, options.ranks);
    elab.seen = seen;
    let entry = modules.get(ModuleId(0));
    let recipe = entry
        .file
        .items
        .iter()
        .find_map(|i| if let ItemKind::Recipe(r) = &i.kind { Some(r) } else { None });
    elab.check_items();
    match recipe {
        Some(r) => elab.recipe(ModuleId(0), r),
        None => {
            if !entry.file.items.iter().any(|i| i.name().is_some()) {
                let span = Span::new(entry.source, 0, 0);
                elab.problems.push(
                    Diagnostic::error("nothing-to-run", format!("{path} has no recipe"))
                        .label(span, "nothing here"),
                );
            }
        }
    }
    problems.extend(elab.problems.as_slice().to_vec());
    if !problems.has_errors() {
        problems.extend(not_yet(&elab.out.not_yet, sources));
    }
    (elab.out, problems, elab.seen)
}

/// One note that names everything that checks and cannot run yet.
fn not_yet(found: &[Diagnostic], sources: &SourceMap) -> Option<Diagnostic> {
    let first = found.first()?;
    let line = |d: &Diagnostic| {
        let span = d.span()?;
        let source = sources.get(span.source)?;
        Some(source.position(span.start as usize).line)
    };
    let what = "this recipe checks, and cannot run yet";
    let mut d = Diagnostic::new("not-supported", nrl_base::Severity::Note, what);
    d.labels.extend(first.labels.first().cloned());
    for f in found {
        let at = line(f).map_or(String::new(), |l| format!("line {l}: "));
        d = d.note(format!("{at}{}", f.message));
    }
    Some(d.help_opt(first.help.clone()))
}

/// A program that only generates from and scores with the model in directory `dir`: one generator
/// (graph 0) and one scoring graph (graph 1, output `logprob`).
pub fn lower_model(
    files: &dyn Files,
    sources: &mut SourceMap,
    dir: &str,
    context: Option<usize>,
    sampling: Sampling,
) -> (Lowered, Problems) {
    let quoted = serde_json::Value::from(dir).to_string();
    let context = context.map_or(String::new(), |c| format!(", context: {c} tokens"));
    let text = format!("use std.models\npolicy = models.load({quoted}{context})\n");
    let mut memory = std::collections::BTreeMap::new();
    memory.insert("model.nrl".to_string(), text);
    let both = Both(&memory, files);
    let mut problems = Problems::new();
    let Some(modules) =
        modules::load(&both, sources, &mut problems, "model.nrl", &mut |_, _, _| {})
    else {
        return (Lowered::default(), problems);
    };
    let mut elab = Elab::new(&modules, &both, sources, "", Some(1));
    elab.out.program.meshes.push(("single".into(), nrl_ir::Mesh::new(&[("dp", 1)])));
    if let Ok(policy) = elab.name(&Env::new(ModuleId(0)), "policy", Span::default()) {
        let span = Span::default();
        let built = elab.model_of(&policy, span).and_then(|m| {
            let graph = elab.generate_graph(m, span)?;
            let slots = 8;
            elab.out.program.generators.push(nrl_ir::program::Generator {
                name: "sampler".into(),
                model: m,
                mesh: 0,
                sampling,
                graph,
                slots,
            });
            elab.score_graph(m, span)
        });
        let _ = built;
    }
    elab.modes.push(Mode::Config);
    problems.extend(elab.problems.as_slice().to_vec());
    (elab.out, problems)
}

/// Files of the first, else of the second.
struct Both<'a>(&'a dyn Files, &'a dyn Files);

impl Files for Both<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        self.0.read(path).or_else(|_| self.1.read(path))
    }
}
