//! Recipes to programs: names, units, dims, and elaboration.
//!
//! In: a path, [`Files`], overrides. Out: a [`Lowered`] program (tensor graphs with global shapes
//! and named dims, host expressions, the step graph) and diagnostics. Elaboration is a partial
//! evaluation: what a recipe says before the run is computed here, what only the run knows becomes
//! a node. It is total: functions cannot recurse, loops run over lists or layers.

mod adapt;
mod budget;
mod builder;
mod call;
mod check;
mod cluster;
mod config;
mod control;
mod cover;
pub mod docs;
mod elab;
mod expr;
mod extend;
pub mod facts;
mod host;
mod intrinsic;
mod lengths;
mod load;
mod model;
mod modules;
mod origin;
mod overrides;
pub mod paths;
mod placement;
mod plan;
mod probe;
mod recipe;
mod repeat;
mod rollout;
mod scan;
pub mod seen;
mod settings;
mod step;
mod tensor;
pub mod trial;
mod types;
mod units;
mod unused;
mod value;
mod walk;

use nrl_base::{Diagnostic, Problems, SourceMap, Span};
use nrl_ir::program::Sampling;
use nrl_syntax::ast::{ItemKind, Recipe};

pub use budget::{Budget, Limit, Measure};
pub use elab::{GraphKind, Lowered};
pub use nrl_base::Files;
pub use nrl_stdlib::STD;
pub use probe::lower_fn;
pub use trial::lower_tests;
pub use value::{DimRule, PathRule, PlanRules, StateMode};

use elab::{Elab, Mode};
use modules::{Module, ModuleId, Modules};
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
    let (mut found, problems, seen) = every(files, sources, path, options, (false, seen));
    (found.pop().unwrap_or_default(), problems, seen)
}

/// The paths that the recipe of [`lower`] has, with where their values are written.
pub fn recipe_paths(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
) -> Vec<paths::Named> {
    let mut problems = Problems::new();
    let Some(mut modules) = modules::load(files, sources, &mut problems, path) else {
        return vec![];
    };
    extend::compose(&mut modules, &mut problems);
    let Some(index) = choose(&mut modules, options, sources, &mut problems, path) else {
        return vec![];
    };
    match modules.edited.get(&(ModuleId(0), index)) {
        Some(edited) => paths::named(&edited.recipe),
        None => match &modules.get(ModuleId(0)).file.items[index].kind {
            ItemKind::Recipe(recipe) => paths::named(recipe),
            _ => vec![],
        },
    }
}

/// Lowers every recipe in `path`: the one that [`lower`] gives first, then the others, without
/// overrides. What several share is reported once.
pub fn lower_every(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
) -> (Vec<Lowered>, Problems) {
    let (found, problems, _) = every(files, sources, path, options, (true, None));
    (found, problems)
}

fn every(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
    (others, seen): (bool, Option<seen::Seen>),
) -> (Vec<Lowered>, Problems, Option<seen::Seen>) {
    let mut problems = Problems::new();
    let Some(mut modules) = modules::load(files, sources, &mut problems, path) else {
        return (vec![], problems, seen);
    };
    extend::compose(&mut modules, &mut problems);
    let chosen = choose(&mut modules, options, sources, &mut problems, path);
    if problems.has_errors() && seen.is_none() {
        return (vec![], problems, seen);
    }
    let folder = path.rsplit_once('/').map_or("", |(f, _)| f);
    let mut elab = Elab::new(&modules, files, sources, folder, options.ranks);
    elab.seen = seen;
    elab.check_items();
    let items = elab.problems.as_slice().len();
    if let Some(index) = chosen {
        elab.recipe_item(ModuleId(0), index);
    }
    let mut found = elab.problems.into_found();
    let seen = elab.seen;
    let mut out = vec![elab.out];
    let rest = recipes_of(modules.get(ModuleId(0))).map(|(i, _)| i).filter(|i| Some(*i) != chosen);
    for index in rest.filter(|_| others) {
        let mut elab = Elab::new(&modules, files, sources, folder, None);
        elab.recipe_item(ModuleId(0), index);
        let new = elab.problems.into_found().into_iter();
        let new: Vec<_> = new.filter(|d| !found[items..].iter().any(|f| same(f, d))).collect();
        found.extend(new);
        out.push(elab.out);
    }
    problems.extend(found);
    if !problems.has_errors() {
        let notes: Vec<_> = out.iter().filter_map(|o| not_yet(&o.not_yet, sources)).collect();
        problems.extend(notes);
    }
    (out, problems, seen)
}

/// The item of the recipe to run, with overrides made.
fn choose(
    modules: &mut Modules,
    options: &Options,
    sources: &mut SourceMap,
    problems: &mut Problems,
    path: &str,
) -> Option<usize> {
    let entry = modules.get(ModuleId(0));
    let recipes: Vec<(usize, &Recipe)> = recipes_of(entry).collect();
    let chosen = match &options.recipe {
        Some(name) => recipes.iter().find(|(_, r)| r.name.text == *name),
        None => recipes.first(),
    };
    let start = Span::new(entry.source, 0, 0);
    match (chosen, &options.recipe) {
        (None, Some(name)) => {
            let known: Vec<&str> = recipes.iter().map(|(_, r)| r.name.text.as_str()).collect();
            let help = nrl_base::nearest(name, known.iter().copied())
                .map(|n| format!("did you mean `{n}`?"));
            let help = help.or((!known.is_empty()).then(|| format!("it has {}", known.join(", "))));
            let what = format!("{path} has no recipe `{name}`");
            problems.push(
                Diagnostic::error("unknown-name", what).label(start, "nothing here").help_opt(help),
            );
        }
        (None, None)
            if !entry.file.items.iter().any(|i| {
                i.name().is_some() || matches!(i.kind, ItemKind::Test(_) | ItemKind::Pool(_))
            }) && !problems.has_errors() =>
        {
            problems.push(
                Diagnostic::error("nothing-to-run", format!("{path} has no recipe"))
                    .label(start, "nothing here"),
            );
        }
        _ => {}
    }
    let (index, recipe) = *chosen?;
    if !options.sets.is_empty() {
        let key = (ModuleId(0), index);
        let mut edited =
            modules.edited.get(&key).cloned().unwrap_or_else(|| extend::Edited::of(recipe));
        overrides::apply(&mut edited, &options.sets, sources, problems);
        modules.edited.insert(key, edited);
    }
    Some(index)
}

fn recipes_of(module: &Module) -> impl Iterator<Item = (usize, &Recipe)> {
    module.file.items.iter().enumerate().filter_map(|(i, item)| match &item.kind {
        ItemKind::Recipe(r) => Some((i, r)),
        _ => None,
    })
}

/// Do two findings say the same of the same place?
fn same(a: &Diagnostic, b: &Diagnostic) -> bool {
    a.code == b.code
        && a.message == b.message
        && a.labels.iter().map(|l| l.span).eq(b.labels.iter().map(|l| l.span))
}

/// Headline of the note that a recipe is more than engines run; a plan does without it.
pub const CANNOT_RUN: &str = "this recipe checks, and cannot run yet";

/// One note that names everything that checks and cannot run yet.
fn not_yet(found: &[Diagnostic], sources: &SourceMap) -> Option<Diagnostic> {
    let first = found.first()?;
    let line = |d: &Diagnostic| {
        let span = d.span()?;
        let source = sources.get(span.source)?;
        Some(source.position(span.start as usize).line)
    };
    let mut d = Diagnostic::new("not-supported", nrl_base::Severity::Note, CANNOT_RUN);
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
    let Some(modules) = modules::load(&both, sources, &mut problems, "model.nrl") else {
        return (Lowered::default(), problems);
    };
    let mut elab = Elab::new(&modules, &both, sources, "", Some(1));
    elab.out.program.meshes.push(("single".into(), nrl_ir::Mesh::new(&[("dp", 1)])));
    if let Ok(policy) = elab.name(&Env::new(ModuleId(0)), "policy", Span::default()) {
        let span = Span::default();
        let built = elab.model_of(&policy, span).and_then(|m| {
            let graph = elab.generate_graph(m, span)?;
            let slots = 8;
            elab.out.facts.generators.push(facts::GeneratorFacts::default());
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
        elab.check_contexts();
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
