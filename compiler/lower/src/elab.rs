//! The elaborator: one walk over a recipe that checks it and builds its program.
//!
//! In: loaded modules. Out: a [`Program`] with its tensor graphs, and diagnostics. An expression
//! that fails pushes one diagnostic and yields `Err(Stop)`; the statement it stands in binds
//! [`Val::Poison`], so that one mistake is one message.

use std::collections::{BTreeMap, BTreeSet};

use nrl_base::{Diagnostic, Problems, SourceMap, Span, nearest};
use nrl_ir::program::{Binding, BindingId, Program, Stage};
use nrl_syntax::ast;

use crate::builder::Builder;
use crate::extend::Edited;
use crate::facts::Facts;
use crate::model::ModelInfo;
use crate::modules::{Global, ModuleId, Modules};
use crate::value::{Drawing, Env, PlanRules, Val};
use nrl_base::Files;

/// An error that has been reported.
#[derive(Clone, Copy, Debug)]
pub struct Stop;

/// Result of elaborating something.
pub type El<T> = Result<T, Stop>;

/// What a tensor graph is for: decides which passes it goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphKind {
    /// Over the whole batch, on the host.
    Batch,
    /// Through a model, no gradient.
    Forward { model: usize },
    /// Through a model, with the gradient of its first output.
    Update { model: usize },
    /// Through a model with a cache.
    Generate { model: usize },
    /// Over flat weights.
    Optimizer,
}

/// A recipe after elaboration.
#[derive(Debug, Default)]
pub struct Lowered {
    pub program: Program,
    /// What each of [`Program::graphs`] is for.
    pub kinds: Vec<GraphKind>,
    /// Layout rules and recompute choice of each model.
    pub rules: Vec<PlanRules>,
    /// Where each model was placed or made, for messages.
    pub places: Vec<Span>,
    /// Requirements that plans decide.
    pub budgets: Vec<crate::budget::Budget>,
    /// Machines, views and assumptions.
    pub facts: Facts,
    /// What checks and cannot run yet: one error each, for `run`.
    pub not_yet: Vec<Diagnostic>,
}

/// Where in a recipe elaboration stands.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Top level: configuration.
    Config,
    /// Inside a step or an `every`.
    Step,
    /// Inside `minimising` for this model.
    Loss { model: usize },
    /// Inside a model's function.
    Forward,
    /// Inside an optimizer's rule.
    Rule,
}

/// Deepest expansion of definitions in definitions.
const MAX_DEPTH: usize = 64;

/// Most expressions that one recipe may evaluate before the run.
const MAX_WORK: usize = 4_000_000;

/// State of the walk.
pub struct Elab<'a, 's> {
    /// Names that were not found, each told of once.
    pub unknown: std::collections::BTreeSet<String>,
    pub modules: &'a Modules,
    pub files: &'s dyn Files,
    pub sources: &'s SourceMap,
    pub problems: Problems,
    pub out: Lowered,
    pub models: Vec<ModelInfo<'a>>,
    /// The tensor graph being built, and those around it.
    pub builders: Vec<Builder>,
    pub modes: Vec<Mode>,
    /// Bindings of the step or `every` being elaborated.
    pub stages: Vec<Binding>,
    /// Next free local of the host function being compiled.
    pub host_slots: usize,
    /// Wrappers of `let`s inside the host function being compiled.
    pub phase: usize,
    /// Functions being expanded, to refuse recursion.
    pub calls: Vec<(ModuleId, String)>,
    /// Where the user's own files call what is being expanded, the innermost last.
    pub call_sites: Vec<Span>,
    /// Expressions evaluated so far.
    pub work: usize,
    /// Evaluations of host expressions that are left.
    pub host_left: u64,
    /// Rewards by identity of function and arguments.
    pub rewards: BTreeMap<String, usize>,
    pub folder: String,
    pub ranks: Option<usize>,
    /// Models that `place` named, and generators whose mesh was given.
    pub placed: BTreeSet<usize>,
    pub meshed: BTreeSet<usize>,
    /// What expressions are, if an editor asks.
    pub seen: Option<crate::seen::Seen>,
    /// The recipe being elaborated: its lines, and its changes if it has any.
    pub body: Option<&'a ast::Block>,
    pub current: Option<&'a Edited>,
    /// Where the fields of a written record stand, by the place of the record.
    pub field_spans: BTreeMap<Span, Vec<(String, Span)>>,
    /// How the samples of the step being elaborated were drawn.
    pub drawn: BTreeMap<BindingId, Drawing>,
    /// Models that the lines so far of the step have updated.
    pub updated: BTreeSet<usize>,
    /// Reports whose numbers are not those of `evaluate`.
    pub metrics: BTreeMap<String, Vec<&'static str>>,
    /// Forward passes of this step that are there already: model, samples, temperature, after its
    /// update.
    pub forwards: BTreeMap<(usize, BindingId, u64, bool), BindingId>,
    /// Contexts that are longer than their model was made for: where, how long, and what it was made for.
    pub long: Vec<(Span, usize, usize)>,
    /// `run 1 epoch`.
    pub epochs: Option<(usize, Span)>,
    /// Groups that a `collect` gives, by phase and samples.
    pub collected: BTreeMap<(usize, BindingId), usize>,
    /// Step from which the lines being elaborated run.
    pub from_step: usize,
    /// Numbers given to the test being elaborated.
    pub trial: Option<crate::trial::Trial>,
}

impl<'a, 's> Elab<'a, 's> {
    pub fn new(
        modules: &'a Modules,
        files: &'s dyn Files,
        sources: &'s SourceMap,
        folder: &str,
        ranks: Option<usize>,
    ) -> Self {
        Elab {
            unknown: Default::default(),
            modules,
            files,
            sources,
            problems: Problems::new(),
            out: Lowered::default(),
            models: vec![],
            builders: vec![],
            modes: vec![Mode::Config],
            stages: vec![],
            host_slots: 0,
            phase: 0,
            calls: vec![],
            call_sites: vec![],
            work: 0,
            host_left: crate::host::MOST_NOW,
            rewards: BTreeMap::new(),
            folder: folder.into(),
            ranks,
            placed: BTreeSet::new(),
            meshed: BTreeSet::new(),
            seen: None,
            body: None,
            current: None,
            field_spans: BTreeMap::new(),
            drawn: BTreeMap::new(),
            updated: BTreeSet::new(),
            metrics: BTreeMap::new(),
            forwards: BTreeMap::new(),
            long: vec![],
            epochs: None,
            collected: BTreeMap::new(),
            from_step: 0,
            trial: None,
        }
    }

    /// Reports and stops. What is found in the standard library is reported at the user's call.
    pub fn fail<T>(&mut self, mut d: Diagnostic) -> El<T> {
        if let (Some(first), Some(site)) = (d.span(), self.call_sites.last())
            && self.is_std(first)
        {
            d.labels.insert(0, nrl_base::Label { span: *site, text: "in this call".into() });
        }
        self.problems.push(d);
        Err(Stop)
    }

    /// Notes that something checks and cannot run yet.
    pub fn later(&mut self, span: Span, what: impl Into<String>, label: impl Into<String>) {
        let span = self.user_span(span);
        let d = Diagnostic::error("not-supported", what).label(span, label);
        if !self.out.not_yet.contains(&d) {
            self.out.not_yet.push(d);
        }
    }

    /// Warns of a setting that changes nothing.
    pub fn no_effect(
        &mut self,
        span: Span,
        what: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        let span = self.user_span(span);
        let d = Diagnostic::warning("setting-has-no-effect", what).label(span, label).help(help);
        if !self.problems.as_slice().contains(&d) {
            self.problems.push(d);
        }
    }

    /// The place in the user's own files that led to a span of the library.
    pub fn user_span(&self, span: Span) -> Span {
        match self.call_sites.last() {
            Some(site) if self.is_std(span) => *site,
            _ => span,
        }
    }

    /// Does a span lie in the standard library?
    pub fn is_std(&self, span: Span) -> bool {
        self.modules.list.iter().any(|m| m.source == span.source && m.name.starts_with("std."))
    }

    /// Runs `f` as the expansion of something that could lead back to itself.
    pub fn expand<T>(
        &mut self,
        key: (ModuleId, String),
        site: Span,
        f: impl FnOnce(&mut Self) -> El<T>,
    ) -> El<T> {
        let name = key.1.clone();
        if !name.is_empty() && self.calls.contains(&key) {
            let what = format!("`{name}` is defined by itself");
            let why = "a definition cannot use itself, directly or through others";
            return self.error("recursion", site, what, why);
        }
        if self.calls.len() >= MAX_DEPTH {
            let what = format!("definitions are nested more than {MAX_DEPTH} deep");
            return self.error("recursion", site, what, "the next one");
        }
        let own = !self.is_std(site);
        self.calls.push(key);
        if own {
            self.call_sites.push(site);
        }
        let result = f(self);
        if own {
            self.call_sites.pop();
        }
        self.calls.pop();
        result
    }

    /// Counts one evaluated expression; functions that call functions can be short and endless.
    pub fn count_work(&mut self, span: Span) -> El<()> {
        self.work += 1;
        match self.work {
            n if n < MAX_WORK => Ok(()),
            MAX_WORK => {
                let what = format!("checking takes more than {MAX_WORK} evaluations");
                self.error("too-much-work", span, what, "reached here")
            }
            _ => Err(Stop),
        }
    }

    /// Reports a headline with one label and stops.
    pub fn error<T>(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> El<T> {
        self.fail(Diagnostic::error(code, message).label(span, label))
    }

    pub fn mode(&self) -> &Mode {
        self.modes.last().unwrap_or(&Mode::Config)
    }

    /// Appends a stage to the step being built.
    pub fn stage(
        &mut self,
        name: &str,
        stage: Stage,
        args: Vec<BindingId>,
        span: Span,
    ) -> BindingId {
        let name =
            if name.is_empty() { format!("%{}", self.stages.len()) } else { name.to_string() };
        let from = self.from_step;
        let origin = Some((span.source.0, span.start, span.end));
        let line = self.sources.get(span.source);
        let line = line.map_or(0, |s| s.position(span.start as usize).line as u32);
        self.stages.push(Binding { name, stage, args, from, line, origin });
        self.stages.len() - 1
    }

    /// Resolves a name: locals, the module's names, intrinsics.
    pub fn name(&mut self, env: &Env<'a>, name: &str, span: Span) -> El<Val<'a>> {
        if let Some(v) = env.get(name) {
            return match v {
                Val::Poison => Err(Stop),
                v => Ok(v.clone()),
            };
        }
        // A line of a recipe may come from the file of the recipe that it extends.
        let home = self.modules.home(span, env.module);
        match self.modules.find(home, name) {
            Some(Global::Item(m, i)) => return self.item(m, i),
            Some(Global::Module(m)) => return Ok(Val::Module(m)),
            None => {}
        }
        if name == "prelude"
            && let Some(p) = self.modules.prelude
        {
            return Ok(Val::Module(p));
        }
        if let Some(i) = crate::intrinsic::find(name) {
            return Ok(Val::Intrinsic(i));
        }
        let d = Diagnostic::error("unknown-name", format!("there is no `{name}` here"))
            .label(span, "not found");
        if let Some(later) = self.bound_later(name, span) {
            let d = d.label(later, "bound here, further down");
            return self.fail(d.help(format!("move this line below, or that of `{name}` above")));
        }
        let removed = self.current.iter().flat_map(|e| &e.removed).find(|(n, _)| n == name);
        if let Some((_, place)) = removed {
            return self.fail(d.label(*place, format!("`{name}` is removed here")));
        }
        if !self.unknown.insert(name.to_string()) {
            return Err(Stop);
        }
        let help = self.suggest(env, name);
        self.fail(d.help_opt(help))
    }

    /// Where the recipe binds `name` on a line after `span`.
    fn bound_later(&self, name: &str, span: Span) -> Option<Span> {
        let mut found = None;
        bindings(&self.body?.stmts, &mut |n| {
            let after = n.span.source != span.source || n.span.start > span.start;
            if n.text == name && after && found.is_none() {
                found = Some(n.span);
            }
        });
        found
    }

    /// Elaborates the recipe that is item `index` of a module, with the changes made to it. What is
    /// found in a line that it took from another recipe says so.
    pub fn recipe_item(&mut self, module: ModuleId, index: usize) {
        let modules = self.modules;
        let item = modules.item(module, index);
        let ast::ItemKind::Recipe(written) = &item.kind else { return };
        self.current = modules.edited.get(&(module, index));
        // What it extends had an error, which has been reported.
        if written.extends.is_some() && self.current.is_none() {
            return;
        }
        let recipe = self.current.map_or(written, |e| &e.recipe);
        let before = self.problems.as_slice().len();
        self.body = Some(&recipe.body);
        self.recipe(module, recipe);
        let bases = self.current.map_or(&[][..], |e| &e.bases);
        let (Some(base), name) = (bases.first(), &written.name) else { return };
        let place = |n: &ast::Name| self.sources.place(n.span);
        let note = format!(
            "recipe `{}` ({}) extends `{}` ({})",
            name.text,
            place(name),
            base.text,
            place(base)
        );
        let mut found = std::mem::take(&mut self.problems).into_found();
        for d in found.iter_mut().skip(before) {
            let own = |s: Span| {
                s.source == item.span.source && item.span.range().contains(&(s.start as usize))
            };
            if !d.labels.first().is_some_and(|l| own(l.span)) {
                d.notes.push(note.clone());
            }
        }
        self.problems.extend(found);
    }

    /// The value of a top-level item.
    pub fn item(&mut self, module: ModuleId, index: usize) -> El<Val<'a>> {
        let item = self.modules.item(module, index);
        if let ast::ItemKind::Const(bind) = &item.kind {
            let name = bind.names.first().map_or(String::new(), |n| n.text.clone());
            let value = &bind.value;
            return self.expand((module, name), value.span, |me| me.expr(&Env::new(module), value));
        }
        Ok(Val::Item(module, item))
    }

    /// The nearest name that could be meant.
    pub fn suggest(&self, env: &Env<'a>, name: &str) -> Option<String> {
        if let Some(found) = self.elsewhere(env, name) {
            return Some(found);
        }
        let mut known: Vec<&str> = env.iter().map(|(n, _)| n).collect();
        for m in std::iter::once(env.module).chain(self.modules.prelude) {
            known.extend(self.modules.get(m).names.keys().map(String::as_str));
        }
        for n in crate::intrinsic::names() {
            known.push(n);
        }
        nearest(name, known).map(|n| format!("did you mean `{n}`?"))
    }

    /// A module that has a name: one that the file uses, else one of the library, or that is one.
    fn elsewhere(&self, env: &Env<'a>, name: &str) -> Option<String> {
        for (called, global) in &self.modules.get(env.module).names {
            if let Global::Module(m) = global
                && self.modules.get(*m).names.contains_key(name)
            {
                return Some(format!("`{called}` has it: write `{called}.{name}`"));
            }
        }
        let std = nrl_stdlib::STD;
        if std.iter().any(|(module, _)| module.strip_prefix("std.") == Some(name)) {
            return Some(format!("write `use std.{{{name}}}` at the top"));
        }
        let defines = format!("\nfn {name}(");
        let (module, _) = std.iter().find(|(_, text)| text.contains(&defines))?;
        let last = module.rsplit('.').next()?;
        let way = module.strip_suffix(last)?;
        Some(format!("{module} has it: write `use {way}{{{last}}}` and `{last}.{name}`"))
    }

    /// The graph being built.
    pub fn builder(&mut self, span: Span) -> El<&mut Builder> {
        if self.builders.is_empty() {
            if matches!(self.mode(), Mode::Step) {
                self.builders.push(Builder::new("batch"));
            } else {
                return self.error(
                    "tensor-outside-step",
                    span,
                    "tensors can only be computed in a step or in a model",
                    "a tensor here",
                );
            }
        }
        match self.builders.last_mut() {
            Some(b) => Ok(b),
            None => Err(Stop),
        }
    }
}

/// Calls `see` with every name that the lines of a recipe bind.
fn bindings(stmts: &[ast::Stmt], see: &mut dyn FnMut(&ast::Name)) {
    for stmt in stmts {
        match &stmt.kind {
            ast::StmtKind::Bind(b) => b.names.iter().for_each(&mut *see),
            ast::StmtKind::Mesh(m) => see(&m.name),
            ast::StmtKind::View(v) => see(&v.name),
            ast::StmtKind::Pool(p) => p.names.iter().for_each(&mut *see),
            ast::StmtKind::Phase(p) => bindings(&p.body.stmts, see),
            ast::StmtKind::Step(b) => bindings(&b.stmts, see),
            ast::StmtKind::Every(t) => bindings(&t.body.stmts, see),
            _ => {}
        }
    }
}

/// `1 argument`, `3 arguments`.
pub fn arguments(n: usize) -> String {
    if n == 1 { "1 argument".into() } else { format!("{n} arguments") }
}
