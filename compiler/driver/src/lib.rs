//! The pipeline as one flat function: `lower -> simplify -> grad -> shard -> fuse -> schedule`.
//!
//! In: a recipe's path, files, options. Out: the program and one plan per graph, or diagnostics.
//! Each phase has one timing label; the text form can be had after any of them; the verifier runs
//! between phases in debug builds. No I/O happens here.

mod budgets;
mod cores;
mod emit;
mod fits;
mod forecast;
mod framework;
mod lasting;
mod pools;
mod regroup;
mod rl;
mod rules;
mod sampler;
mod signal;
pub mod threads;
mod typed;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nrl_base::{Diagnostic, Problems, SourceMap};
use nrl_ir::plan::Plan;
use nrl_ir::program::{Program, Sampling, Weights};
use nrl_ir::{Graph, Mesh};
use nrl_lower::{GraphKind, Lowered};
use nrl_passes::{
    FuseConfig, Recompute, Sharded, Stage, fuse, grad, incremental, pipeline, schedule, shard,
    simplify,
};
use nrl_sim::Offload;

pub use cores::each;
pub use fits::{Profiles, memory, update_bytes};
pub use forecast::{Assume, Passes, Timed, checkpoint_bytes, forecast, machine_of, rates, updates};
pub use framework::Framework;
pub use lasting::unsaid;
pub use nrl_lower::facts::Facts;
pub use nrl_lower::{Budget, Files, Limit, Measure, STD, docs, lower_tests, trial};
pub use regroup::{Regroup, Works};

/// The phases, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Lower,
    Simplify,
    Grad,
    Shard,
    Fuse,
    Schedule,
}

impl Phase {
    pub const ALL: [Phase; 6] =
        [Phase::Lower, Phase::Simplify, Phase::Grad, Phase::Shard, Phase::Fuse, Phase::Schedule];

    /// The word used for the phase everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Lower => "lower",
            Phase::Simplify => "simplify",
            Phase::Grad => "grad",
            Phase::Shard => "shard",
            Phase::Fuse => "fuse",
            Phase::Schedule => "schedule",
        }
    }

    /// The phase called `name`.
    pub fn find(name: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// What to compile, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// `path=expr` overrides.
    pub sets: Vec<String>,
    /// Number of ranks instead of the cluster's.
    pub ranks: Option<usize>,
    /// Recipe to run; the first of the file if `None`.
    pub recipe: Option<String>,
    /// Put pointwise nodes into groups; otherwise each is a kernel of its own.
    pub fuse: bool,
    /// Keep the text form of every graph after this phase.
    pub emit: Option<Phase>,
    /// What budgets of time are decided with.
    pub assume: Assume,
    /// Seconds after which the job that runs it is ended, if that is known.
    pub job: Option<f64>,
}

impl Options {
    fn lowering(&self) -> nrl_lower::Options {
        nrl_lower::Options {
            sets: self.sets.clone(),
            ranks: self.ranks,
            recipe: self.recipe.clone(),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sets: vec![],
            ranks: None,
            recipe: None,
            fuse: true,
            emit: None,
            assume: Assume::default(),
            job: None,
        }
    }
}

/// A compiled recipe.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    pub program: Program,
    /// One per [`Program::graphs`].
    pub plans: Vec<Plan>,
    /// Text of each graph after the phase asked for.
    pub emitted: Vec<String>,
    /// Seconds per phase, summed over graphs.
    pub timings: Vec<(&'static str, Duration)>,
    /// Machines, views and assumptions that the recipe names.
    pub facts: Facts,
    /// What checks and cannot run yet: an error each. A run must show the first and stop.
    pub not_yet: Vec<Diagnostic>,
    /// Per model: whether some of its activations are computed again.
    pub selective: Vec<bool>,
    /// Per model: what its plan keeps on hosts.
    pub offload: Vec<Offload>,
    /// Per model: rules of the library's plans that can do nothing for it, and why.
    pub inert: Vec<Vec<String>>,
    /// Demands on what only plans know.
    pub budgets: Vec<Budget>,
    /// How the software that runs it goes about memory, as far as the language does not say.
    pub framework: Framework,
}

impl Compiled {
    /// What of a model stays on hosts, by its plan and by the habits of the framework.
    pub fn away(&self, model: usize) -> Offload {
        let own = self.offload.get(model).copied().unwrap_or_default();
        self.framework.memory.away(own)
    }
}

/// Compiles the recipe in `path`. `None` if a problem is an error.
pub fn compile(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
) -> (Option<Compiled>, Vec<Diagnostic>) {
    let start = Instant::now();
    let (lowered, problems) = nrl_lower::lower(files, sources, path, &options.lowering());
    finish(lowered, problems, start.elapsed(), options)
}

/// Compiles every recipe in `path`. The result is that of [`compile`], the findings are of all.
pub fn check(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    options: &Options,
) -> (Option<Compiled>, Vec<Diagnostic>) {
    let start = Instant::now();
    let (every, mut problems) = nrl_lower::lower_every(files, sources, path, &options.lowering());
    let lowering = start.elapsed();
    if problems.has_errors() {
        return (None, problems.into_sorted());
    }
    let mut first = None;
    for (i, lowered) in every.into_iter().enumerate() {
        let (compiled, found) = finish(lowered, Problems::new(), lowering, options);
        problems.extend(found);
        problems.extend(compiled.iter().flat_map(|c| fits::findings(c, files, path, options)));
        problems.extend(compiled.iter().flat_map(pools::findings));
        problems.extend(compiled.iter().flat_map(|c| lasting::findings(c, options)));
        problems.extend(compiled.iter().filter_map(lasting::unsaid));
        if i == 0 {
            first = compiled;
        }
    }
    (first.filter(|_| !problems.has_errors()), problems.into_sorted())
}

/// Compiles the model in directory `dir` for generation and scoring: graph 0 generates, graph 1
/// gives the log-probabilities of `labels`.
pub fn compile_model(
    files: &dyn Files,
    sources: &mut SourceMap,
    dir: &str,
    context: Option<usize>,
    sampling: Sampling,
) -> (Option<Compiled>, Vec<Diagnostic>) {
    let start = Instant::now();
    let (lowered, problems) = nrl_lower::lower_model(files, sources, dir, context, sampling);
    finish(lowered, problems, start.elapsed(), &Options::default())
}

fn finish(
    lowered: Lowered,
    mut problems: Problems,
    lowering: Duration,
    options: &Options,
) -> (Option<Compiled>, Vec<Diagnostic>) {
    if problems.has_errors() {
        return (None, problems.into_sorted());
    }
    let mut pipeline = Pipeline {
        lowered,
        problems: Problems::new(),
        options,
        timings: vec![("lower", lowering)],
        emitted: vec![],
    };
    let plans = pipeline.run();
    problems.extend(pipeline.problems.as_slice().to_vec());
    let failed = problems.has_errors();
    let selective =
        |r: &nrl_lower::PlanRules| r.recompute.as_ref().is_some_and(|(m, _)| m == "selective");
    let selective = pipeline.lowered.rules.iter().map(selective).collect();
    let offload = pipeline.lowered.rules.iter().map(rules::away).collect();
    let p = &pipeline.lowered.program;
    let plans_of = p.models.iter().zip(&pipeline.lowered.rules);
    let inert = plans_of.map(|(m, plan)| rules::inert(plan, m, &p.meshes[m.mesh])).collect();
    let compiled = Compiled {
        program: pipeline.lowered.program,
        plans,
        emitted: pipeline.emitted,
        timings: pipeline.timings,
        facts: pipeline.lowered.facts,
        not_yet: pipeline.lowered.not_yet,
        selective,
        offload,
        inert,
        budgets: pipeline.lowered.budgets,
        framework: options.assume.framework.clone(),
    };
    if !failed {
        problems.extend(budgets::findings(&compiled, &compiled.budgets, &options.assume));
        problems.extend(signal::findings(&compiled));
        let recipes = typed::recipes(&compiled);
        let found = recipes.iter().flat_map(nrl_rules::check);
        problems.extend(found.map(|finding| finding.diagnostic));
    }
    let failed = problems.has_errors();
    ((!failed).then_some(compiled), problems.into_sorted())
}

struct Pipeline<'o> {
    lowered: Lowered,
    problems: Problems,
    options: &'o Options,
    timings: Vec<(&'static str, Duration)>,
    emitted: Vec<String>,
}

impl Pipeline<'_> {
    /// The plans of all graphs; none after the first that cannot be had.
    fn run(&mut self) -> Vec<Plan> {
        self.axes_exist();
        let mut plans = vec![];
        for (plan, one) in self.each() {
            self.problems.extend(one.problems.as_slice().to_vec());
            self.emitted.extend(one.emitted);
            for (name, spent) in one.timings {
                add_time(&mut self.timings, name, spent);
            }
            match plan {
                Some(plan) => plans.push(plan),
                None => return vec![],
            }
        }
        self.layouts(&plans);
        self.copies(&plans);
        plans
    }

    /// Every graph through all phases, on all cores.
    fn each(&self) -> Vec<(Option<Plan>, Told)> {
        let graphs = self.lowered.program.graphs.iter().zip(&self.lowered.kinds);
        let all: Vec<_> = graphs.enumerate().collect();
        each(&all, &|(i, (graph, kind))| {
            let mut one =
                One { lowered: &self.lowered, options: self.options, told: Told::default() };
            let plan = one.graph(*i, (*graph).clone(), **kind);
            (plan, one.told)
        })
    }

    /// An axis in a rule of the user's own is one of some mesh; the library's may be of none.
    fn axes_exist(&mut self) {
        let meshes = self.lowered.program.meshes.iter().map(|(_, m)| m);
        let views = self.lowered.facts.views.iter().flat_map(|v| &v.axes);
        let known: BTreeSet<&str> =
            meshes.flat_map(|m| &m.axes).chain(views).map(|a| a.name.as_str()).collect();
        for rules in &self.lowered.rules {
            let dims = rules
                .dims
                .iter()
                .filter(|r| r.own)
                .flat_map(|r| r.axes.iter().map(|a| (a, r.span)));
            let paths = rules
                .paths
                .iter()
                .flat_map(|p| p.dims.iter().flat_map(|(_, axes)| axes.iter().map(|a| (a, p.span))));
            for (axis, span) in dims.chain(paths).filter(|(a, _)| !known.contains(a.as_str())) {
                let shown: Vec<&str> = known.iter().copied().collect();
                let help = nrl_base::did_you_mean(axis, shown.iter().copied())
                    .unwrap_or_else(|| format!("axes of the meshes are {}", shown.join(", ")));
                self.problems.push(
                    Diagnostic::error("unknown-axis", format!("no mesh has an axis `{axis}`"))
                        .label(span, "this rule")
                        .help(help),
                );
            }
        }
    }

    /// Heads of keys and values on several ranks each are planned, and do not run.
    fn copies(&mut self, plans: &[Plan]) {
        for (plan, kind) in plans.iter().zip(self.lowered.kinds.clone()) {
            let Some(copies) = plan.params.iter().map(|l| l.copies).max().filter(|n| *n > 1) else {
                continue;
            };
            let what = format!("{copies} ranks with the same key/value heads do not run yet");
            let mut d = Diagnostic::error("not-supported", what);
            if let Some(place) = model_of(kind).and_then(|m| self.lowered.places.get(m)) {
                d = d.label(*place, "laid out here");
            }
            if !self.lowered.not_yet.contains(&d) {
                self.lowered.not_yet.push(d);
            }
        }
    }

    /// Storage layouts of the models, from any plan that reads their weights on their own mesh.
    fn layouts(&mut self, plans: &[Plan]) {
        for m in 0..self.lowered.program.models.len() {
            let at = |want: fn(GraphKind) -> bool| {
                self.lowered.kinds.iter().position(|k| model_of(*k) == Some(m) && want(*k))
            };
            let own = at(|k| matches!(k, GraphKind::Update { .. }))
                .or_else(|| at(|k| matches!(k, GraphKind::Forward { .. })));
            let found = own.or_else(|| at(|_| true));
            if let Some(plan) = found.and_then(|i| plans.get(i)) {
                self.lowered.program.models[m].layouts = plan.params.clone();
            }
        }
        // A frozen copy is stored as what it copies.
        for m in 0..self.lowered.program.models.len() {
            if let Weights::Frozen { of, .. } = self.lowered.program.models[m].weights
                && self.lowered.program.models[m].layouts.is_empty()
            {
                self.lowered.program.models[m].layouts =
                    self.lowered.program.models[of].layouts.clone();
            }
        }
    }
}

/// What one graph had to tell on its way.
#[derive(Default)]
struct Told {
    problems: Problems,
    timings: Vec<(&'static str, Duration)>,
    emitted: Vec<String>,
}

/// One graph on its way through the phases.
struct One<'a> {
    lowered: &'a Lowered,
    options: &'a Options,
    told: Told,
}

impl One<'_> {
    /// The graph through all phases.
    fn graph(&mut self, index: usize, graph: Graph, kind: GraphKind) -> Option<Plan> {
        self.after(Phase::Lower, &graph);
        let mut g = graph;
        self.timed(Phase::Simplify, |me| {
            let stage = if matches!(kind, GraphKind::Update { .. }) {
                Stage::BeforeGrad
            } else {
                Stage::Final
            };
            if matches!(kind, GraphKind::Generate { .. }) {
                g = me.report(incremental(&g))?;
            }
            me.report(simplify(&mut g, stage))
        })?;
        self.after(Phase::Simplify, &g);
        if let GraphKind::Update { model } = kind {
            let recompute = match &self.lowered.rules[model].recompute {
                Some((r, _)) if r == "full" => Recompute::Full,
                _ => Recompute::None,
            };
            self.timed(Phase::Grad, |me| {
                g = me.report(grad(&g, "loss", &recompute))?;
                me.report(simplify(&mut g, Stage::Final))
            })?;
        }
        self.after(Phase::Grad, &g);
        self.params_matched(kind)?;
        let (mesh, rules) = self.target(index, kind);
        let sharded = self.timed(Phase::Shard, |me| match shard(&g, &mesh, &rules) {
            Ok(s) => Some(s),
            Err(found) => {
                let model = model_of(kind);
                for p in found {
                    let d =
                        rules::diagnostic(p, model.and_then(|m| me.lowered.places.get(m).copied()));
                    me.told.problems.push(d);
                }
                None
            }
        })?;
        let Sharded { graph: mut g, layouts, unused, .. } = sharded;
        self.unmatched(kind, &unused);
        self.after(Phase::Shard, &g);
        let config = if self.options.fuse { FuseConfig::default() } else { FuseConfig::single() };
        self.timed(Phase::Fuse, |me| me.report(fuse(&mut g, &config)))?;
        self.after(Phase::Fuse, &g);
        let stages = model_of(kind).and_then(|m| self.lowered.rules[m].stages.clone());
        let plan = self.timed(Phase::Schedule, |_| {
            let mut plan = schedule(g, &mesh, layouts);
            if let Some(s) = &stages {
                pipeline(&mut plan, &s.axis, s.chunks, s.split.as_deref());
                plan.paired = s.paired && matches!(kind, GraphKind::Update { .. });
            }
            Some(plan)
        })?;
        if let Some(c) = plan.classes.first() {
            let text = c.graph.clone();
            self.after(Phase::Schedule, &text);
        }
        Some(plan)
    }

    /// The mesh and the layout rules a graph is made for.
    fn target(&self, index: usize, kind: GraphKind) -> (Mesh, nrl_passes::Rules) {
        let p = &self.lowered.program;
        match kind {
            GraphKind::Batch | GraphKind::Optimizer => {
                (Mesh::new(&[("dp", 1)]), nrl_passes::Rules::default())
            }
            GraphKind::Forward { model } | GraphKind::Update { model } => {
                let mesh = &p.meshes[p.models[model].mesh].1;
                (mesh.clone(), rules::of(&self.lowered.rules[model], mesh, false))
            }
            GraphKind::Generate { model } => {
                let mesh = p
                    .generators
                    .iter()
                    .find(|g| g.graph == index)
                    .map_or(p.models[model].mesh, |g| g.mesh);
                let mesh = &p.meshes[mesh].1;
                (mesh.clone(), rules::of(&self.lowered.rules[model], mesh, true))
            }
        }
    }

    /// A rule of the user's own that matches nothing is an error; the library's are inert.
    fn unmatched(&mut self, kind: GraphKind, unused: &[String]) {
        let Some(model) = model_of(kind) else { return };
        let rules = &self.lowered.rules[model];
        for r in rules.dims.iter().filter(|r| {
            r.own
                && r.dim != "seq"
                && unused.iter().any(|u| *u == r.dim || u.starts_with(&format!("{}:", r.dim)))
        }) {
            let known: Vec<&str> = self.lowered.program.models[model]
                .dims
                .iter()
                .map(|(_, d)| d.name.as_str())
                .collect();
            let help = nrl_base::did_you_mean(&r.dim, known.iter().copied());
            self.told.problems.push(
                Diagnostic::error(
                    "rule-matches-nothing",
                    format!("this rule splits `{}`, which the model does not have", r.dim),
                )
                .label(r.span, "matches nothing")
                .help_opt(help),
            );
        }
    }

    /// Rules for parameters name parameters and dims that the model has.
    fn params_matched(&mut self, kind: GraphKind) -> Option<()> {
        let Some(model) = model_of(kind) else { return Some(()) };
        let mut wrong = vec![];
        for r in &self.lowered.rules[model].paths {
            let m = &self.lowered.program.models[model];
            let param = m.params.iter().find(|p| p.name == r.param || p.path() == r.param);
            let (what, help) = match param {
                None => {
                    let help = nrl_base::did_you_mean(&r.param, m.params.iter().map(|p| &*p.name));
                    (format!("`{}` is not a parameter of the model", r.param), help)
                }
                Some(p) => {
                    let has = |d: &str| p.dims.iter().any(|x| m.dims.name(*x) == d);
                    let Some((d, _)) = r.dims.iter().find(|(d, _)| !has(d)) else { continue };
                    let known: Vec<&str> = p.dims.iter().map(|x| m.dims.name(*x)).collect();
                    let help = format!("its dims are {}", known.join(", "));
                    (format!("parameter `{}` has no dim `{d}`", r.param), Some(help))
                }
            };
            let d = Diagnostic::error("rule-matches-nothing", what);
            wrong.push(d.label(r.span, "matches nothing").help_opt(help));
        }
        let all_matched = wrong.is_empty();
        self.told.problems.extend(wrong);
        all_matched.then_some(())
    }

    fn timed<T>(&mut self, phase: Phase, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let start = Instant::now();
        let result = f(self);
        let spent = start.elapsed();
        add_time(&mut self.told.timings, phase.name(), spent);
        result
    }

    fn report<T>(&mut self, r: Result<T, nrl_passes::Problem>) -> Option<T> {
        match r {
            Ok(t) => Some(t),
            Err(p) => {
                self.told.problems.push(rules::diagnostic(p, None));
                None
            }
        }
    }

    /// Verifies, and keeps the text if this is the phase asked for.
    fn after(&mut self, phase: Phase, g: &Graph) {
        if self.options.emit == Some(phase) {
            self.told.emitted.push(emit::graph(g));
        }
    }
}

fn add_time(timings: &mut Vec<(&'static str, Duration)>, name: &'static str, spent: Duration) {
    match timings.iter_mut().find(|(n, _)| *n == name) {
        Some((_, t)) => *t += spent,
        None => timings.push((name, spent)),
    }
}

fn model_of(kind: GraphKind) -> Option<usize> {
    match kind {
        GraphKind::Forward { model }
        | GraphKind::Update { model }
        | GraphKind::Generate { model } => Some(model),
        GraphKind::Batch | GraphKind::Optimizer => None,
    }
}
