//! Recipes: parameters, bindings, placements, phases; what a step holds is in `step`.

use nrl_base::{Diagnostic, Severity, Span};
use nrl_ir::host::Value;
use nrl_ir::program::{Every, Halt, Phase};
use nrl_syntax::ast::{self, ItemKind, StmtKind};

use crate::elab::{El, Elab, Mode, Stop};
use crate::modules::ModuleId;
use crate::units::Unit;
use crate::value::{Env, Val};

/// Length of a run where a recipe gives none.
const DEFAULT_STEPS: usize = 1;

impl<'a> Elab<'a, '_> {
    /// Elaborates a recipe into the program.
    pub fn recipe(&mut self, module: ModuleId, r: &'a ast::Recipe) {
        self.out.program.name = r.name.text.clone();
        let mut env = Env::new(module);
        for p in &r.params {
            let v = self.recipe_param(&env, p).unwrap_or(Val::Poison);
            env.bind(&p.name.text, v);
        }
        // Without a mesh everything runs on one rank.
        self.out.program.meshes.push((
            "single".into(),
            nrl_ir::Mesh {
                axes: vec![nrl_ir::Axis { name: "dp".into(), size: self.ranks.unwrap_or(1) }],
                views: vec![],
            },
        ));
        let mut steps: Option<(usize, Span)> = None;
        let mut main = PhaseParts::default();
        for stmt in &r.body.stmts {
            match &stmt.kind {
                StmtKind::Run(run) => {
                    let _ = self.run_line(&env, run, &mut steps);
                }
                StmtKind::Phase(p) => {
                    let _ = self.phase(&env, p);
                }
                _ => self.statement(&mut env, stmt, &mut main),
            }
        }
        if let Some(v) = &r.body.value {
            let _ = self.expr(&env, v);
        }
        if main.step.is_some() || !main.every.is_empty() {
            let n = steps.map_or(DEFAULT_STEPS, |(n, _)| n);
            let span = r.name.span;
            if steps.is_none() && self.epochs.is_none() {
                self.out.facts.unsaid_length = Some(span);
            }
            self.finish_phase("main", n, main, &env, span);
        } else if self.out.program.phases.is_empty()
            && r.body.stmts.iter().any(|s| matches!(s.kind, StmtKind::Settings(_)))
        {
            let what = format!("recipe `{}` has only settings of another system", r.name.text);
            self.later(r.name.span, what, "no step and no phase");
        } else if self.out.program.phases.is_empty() && !self.problems.has_errors() {
            let d = Diagnostic::error(
                "nothing-to-run",
                format!("recipe `{}` has no step and no phase", r.name.text),
            )
            .label(r.name.span, "nothing runs")
            .help("write `step { .. }`");
            self.problems.push(d);
        }
        self.follow();
        self.check_contexts();
        self.check_batches();
        if !self.problems.has_errors() {
            self.check_unused(r);
        }
    }

    /// Copies of a model live where it lives, and generators on their model's mesh, unless the
    /// recipe says otherwise.
    fn follow(&mut self) {
        for i in 0..self.out.program.models.len() {
            if let nrl_ir::program::Weights::Frozen { of, .. } = self.out.program.models[i].weights
                && !self.placed.contains(&i)
            {
                self.out.program.models[i].mesh = self.out.program.models[of].mesh;
                self.out.rules[i] = self.out.rules[of].clone();
                self.out.places[i] = self.out.places[of];
            }
        }
        for i in 0..self.out.program.generators.len() {
            if !self.meshed.contains(&i) {
                let model = self.out.program.generators[i].model;
                self.out.program.generators[i].mesh = self.out.program.models[model].mesh;
            }
        }
    }

    /// A parameter: its default, or what `--set` gave, which must be of the same kind.
    fn recipe_param(&mut self, env: &Env<'a>, p: &'a ast::Param) -> El<Val<'a>> {
        let sets = self.current.map_or(&[][..], |e| &e.sets);
        let own = sets.iter().filter(|(n, _)| *n == p.name.text).map(|(_, e)| e);
        let default = match &p.default {
            Some(e) => Some((self.param_value(env, p, e)?, e.span)),
            None => None,
        };
        let mut value = None;
        for e in own {
            let v = self.param_value(env, p, e)?;
            if let Some((d, span)) = &default {
                self.same_kind(&p.name.text, &v, e.span, d, *span)?;
            }
            value = Some(v);
        }
        match value.or(default.map(|(v, _)| v)) {
            Some(v) => Ok(v),
            None => self.fail(
                Diagnostic::error(
                    "wrong-arguments",
                    format!("recipe parameter `{}` has no value", p.name.text),
                )
                .label(p.span, "no default")
                .help(format!("give one: `--set {}=..`", p.name.text)),
            ),
        }
    }

    /// What a parameter is given, which must be of its declared type.
    fn param_value(&mut self, env: &Env<'a>, p: &'a ast::Param, e: &'a ast::Expr) -> El<Val<'a>> {
        let Some(ty) = &p.ty else { return self.expr(env, e) };
        let v = self.expr_for(env, e, env.module, ty)?;
        self.declared_value(env, v, ty, e.span, &p.name.text)
    }

    /// An override keeps the kind and the unit of what it replaces.
    fn same_kind(&mut self, name: &str, v: &Val<'a>, vs: Span, d: &Val<'a>, ds: Span) -> El<()> {
        match (v, d) {
            (Val::Const(Value::Num(x), u), Val::Const(Value::Num(_), w)) if u != w => self.fail(
                Diagnostic::error("unit-mismatch", format!("`{name}` is {w}, this is {u}"))
                    .label(vs, format!("this is {u}"))
                    .label(ds, format!("declared as {w}"))
                    .help(format!("write `--set '{name}={x} {w}'`")),
            ),
            (Val::Const(a, _), Val::Const(b, _))
                if a.kind() == b.kind() || matches!(b, Value::None) =>
            {
                Ok(())
            }
            (Val::Const(..), _) | (_, Val::Const(..)) => {
                let (k, w) = (v.kind(), d.kind());
                self.fail(
                    Diagnostic::error("wrong-type", format!("`{name}` is {w}, not {k}"))
                        .label(vs, format!("this is {k}"))
                        .label(ds, format!("declared as {w}")),
                )
            }
            _ => Ok(()),
        }
    }

    fn run_line(
        &mut self,
        env: &Env<'a>,
        run: &'a ast::Run,
        steps: &mut Option<(usize, Span)>,
    ) -> El<()> {
        if let Some((_, first)) = steps {
            let d = Diagnostic::error("duplicate-name", "two `run` lines in one recipe");
            let d = d.label(run.length.span, "second one").label(*first, "first one");
            return self.fail(d);
        }
        let v = self.expr(env, &run.length)?;
        if matches!(&v, Val::Const(_, u) if *u == Unit::of("epoch")) {
            let n = self.whole(&v, run.length.span, "the length of the run")?;
            self.epochs = Some((n, run.length.span));
        } else {
            let n = self.counted(&v, run.length.span, "the length of the run", Unit::of("step"))?;
            *steps = Some((n, run.length.span));
        }
        if let Some(w) = &run.within {
            let v = self.expr(env, w)?;
            match &v {
                Val::Const(Value::Num(s), u) if *u == Unit::of("second") => {
                    self.out.program.wall_limit_s = Some(*s);
                    self.out.facts.limit = Some(w.span);
                }
                v => {
                    let kind = v.kind();
                    return self.error(
                        "unit-mismatch",
                        w.span,
                        format!("a time limit is in hours, minutes or seconds, not {kind}"),
                        format!("this is {kind}"),
                    );
                }
            }
        }
        if let Some(s) = &run.seed {
            self.seed(env, s)?;
        }
        Ok(())
    }

    fn seed(&mut self, env: &Env<'a>, e: &'a ast::Expr) -> El<()> {
        let v = self.expr(env, e)?;
        self.out.program.seed = self.whole(&v, e.span, "the seed")? as u64;
        Ok(())
    }

    /// One statement of a recipe or phase. A statement that fails poisons the names it binds.
    fn statement(&mut self, env: &mut Env<'a>, stmt: &'a ast::Stmt, parts: &mut PhaseParts<'a>) {
        let result = match &stmt.kind {
            StmtKind::Bind(b) => self.config_bind(env, b),
            StmtKind::Mesh(m) => self.mesh(env, m).map(|v| env.bind(&m.name.text, v)),
            StmtKind::PlanFor(p) => self.plan_for(env, p).map(|v| env.bind(&p.name.text, v)),
            StmtKind::Seed(e) => self.seed(env, e),
            StmtKind::Place(p) => self.place(env, p),
            StmtKind::Step(b) => {
                if let Some((first, _)) = &parts.step {
                    let first: Span = first.span;
                    self.fail(
                        Diagnostic::error("duplicate-name", "two steps in one phase")
                            .label(b.span, "second step")
                            .label(first, "first step"),
                    )
                } else {
                    parts.step = Some((b, env.clone()));
                    Ok(())
                }
            }
            StmtKind::Every(t) => {
                parts.every.push((t, env.clone()));
                Ok(())
            }
            StmtKind::Halt(h) => {
                parts.halts.push(h);
                Ok(())
            }
            StmtKind::Require(es) => {
                es.iter().for_each(|e| self.require(env, e, Severity::Error));
                Ok(())
            }
            StmtKind::Expect(es) => {
                es.iter().for_each(|e| self.require(env, e, Severity::Warning));
                Ok(())
            }
            StmtKind::Assume(a) => self.assume(env, a),
            StmtKind::Expr(e) => self.expr(env, e).map(|_| ()),
            StmtKind::Phase(p) => self.error(
                "misplaced",
                p.name.span,
                "a phase inside a phase",
                "phases stand side by side in a recipe",
            ),
            StmtKind::Run(r) => self.error(
                "misplaced",
                r.length.span,
                "`run` in a phase",
                "write `phase NAME for 100 steps { .. }`",
            ),
            StmtKind::Update(u) => self.error(
                "misplaced",
                u.model.span,
                "`update` outside a step",
                "put it into `step { .. }`",
            ),
            StmtKind::Checkpoint(_) => self.error(
                "misplaced",
                stmt.span,
                "`checkpoint` outside `every`",
                "put it into `every 10 steps { .. }`",
            ),
            StmtKind::Set { .. } | StmtKind::Append { .. } | StmtKind::Remove { .. } => self.error(
                "misplaced",
                stmt.span,
                "overrides stand in a recipe that extends another",
                "not here",
            ),
            StmtKind::Assert(_) | StmtKind::Fails(_) => self.error(
                "misplaced",
                stmt.span,
                "this line stands in a test",
                "write `require ..` in a recipe",
            ),
            StmtKind::Settings(s) => self.settings(s),
            StmtKind::Freeze(paths) => self.freeze(env, paths),
            StmtKind::Pool(p) => self.pool(env, p),
            StmtKind::View(v) => self.view(env, v),
            StmtKind::Publish { what, every } => self.publish(env, what, every, stmt.span),
            StmtKind::From(_) => {
                self.error("misplaced", stmt.span, "`from step` stands in a step", "not here")
            }
        };
        if result.is_err()
            && let StmtKind::Bind(b) = &stmt.kind
        {
            for n in &b.names {
                env.bind(&n.text, Val::Poison);
            }
        } else if result.is_err() {
            match &stmt.kind {
                StmtKind::Mesh(m) => env.bind(&m.name.text, Val::Poison),
                StmtKind::View(v) => env.bind(&v.name.text, Val::Poison),
                StmtKind::Pool(p) => {
                    p.names.iter().for_each(|n| env.bind(&n.text, Val::Poison));
                }
                _ => {}
            }
        }
    }

    fn config_bind(&mut self, env: &mut Env<'a>, b: &'a ast::Bind) -> El<()> {
        let v = self.expr(env, &b.value)?;
        if let [name] = &b.names[..] {
            let name = &name.text;
            let p = &mut self.out.program;
            let slot = match v {
                Val::Model(i) => Some(&mut p.models[i].name),
                Val::Data(i) => Some(&mut p.data[i].name),
                Val::Optimizer(i) => Some(&mut p.optimizers[i].name),
                Val::Generator(i, _) => Some(&mut p.generators[i].name),
                Val::Cluster(i) => Some(&mut self.out.facts.clusters[i].name),
                _ => None,
            };
            if let Some(slot) = slot
                && slot.is_empty()
            {
                slot.clone_from(name);
            } else if let Val::Model(i) = v {
                // A frozen copy keeps a name of its own.
                p.models[i].name.clone_from(name);
            }
        }
        self.bind_names(env, b, v)
    }

    fn place(&mut self, env: &Env<'a>, p: &'a ast::Place) -> El<()> {
        let mesh = match self.expr(env, &p.mesh)? {
            Val::Mesh(i) => i,
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    p.mesh.span,
                    format!("models are placed on a mesh, not on {kind}"),
                    format!("this is {kind}"),
                );
            }
        };
        let rules = match &p.plan {
            None => Default::default(),
            Some(e) => match self.expr(env, e)? {
                Val::Plan(r) => r,
                Val::Item(m, item) if matches!(item.kind, ItemKind::Plan(_)) => {
                    match self.apply_named(Val::Item(m, item), vec![], e.span, e.span)? {
                        Val::Plan(r) => r,
                        _ => return Err(Stop),
                    }
                }
                v => {
                    let kind = v.kind();
                    return self.error(
                        "wrong-type",
                        e.span,
                        format!("`by` takes a plan, not {kind}"),
                        format!("this is {kind}"),
                    );
                }
            },
        };
        for m in &p.models {
            let v = self.expr(env, m)?;
            let model = self.model_of(&v, m.span)?;
            self.out.program.models[model].mesh = mesh;
            self.out.rules[model] = rules.clone();
            self.placed.insert(model);
            self.out.places[model] = p.plan.as_ref().map_or(p.mesh.span, |e| e.span);
            self.check_placement(model);
        }
        Ok(())
    }

    fn phase(&mut self, env: &Env<'a>, p: &'a ast::Phase) -> El<()> {
        self.phase = self.out.program.phases.len();
        let mut inner = env.clone();
        let mut parts = PhaseParts::default();
        for stmt in &p.body.stmts {
            self.statement(&mut inner, stmt, &mut parts);
        }
        let steps = match &p.length {
            Some(e) => {
                let v = self.expr(env, e)?;
                self.counted(&v, e.span, "the length of a phase", Unit::of("step"))?
            }
            None => {
                return self.error(
                    "missing-field",
                    p.name.span,
                    format!("phase `{}` has no length", p.name.text),
                    "write `phase NAME for 100 steps { .. }`",
                );
            }
        };
        if parts.step.is_none() {
            return self.error(
                "nothing-to-run",
                p.name.span,
                format!("phase `{}` has no step", p.name.text),
                "write `step { .. }`",
            );
        }
        self.finish_phase(&p.name.text, steps, parts, &inner, p.name.span);
        Ok(())
    }

    /// Forgets the lines of another step.
    fn clear_step(&mut self) {
        self.stages.clear();
        self.drawn.clear();
        self.updated.clear();
        self.forwards.clear();
        self.from_step = 0;
    }

    fn finish_phase(
        &mut self,
        name: &str,
        steps: usize,
        parts: PhaseParts<'a>,
        env: &Env<'a>,
        span: Span,
    ) {
        let mut phase =
            Phase { name: name.into(), steps, step: vec![], every: vec![], halts: vec![] };
        self.modes.push(Mode::Step);
        let mut step_env = env.clone();
        if let Some((block, env)) = &parts.step {
            step_env = env.clone();
            self.clear_step();
            self.step_block(&mut step_env, block);
        }
        for h in &parts.halts {
            if let Ok((binding, n)) = self.halt(&step_env, h) {
                phase.halts.push(Halt {
                    binding,
                    steps: n,
                    text: self.sources.text(h.cond.span).to_string(),
                });
            }
        }
        phase.step = std::mem::take(&mut self.stages);
        if let Some((epochs, at)) = self.epochs.filter(|_| name == "main") {
            phase.steps = self.epoch_steps(&phase.step, epochs, at);
        }
        for (t, env) in &parts.every {
            let mut env = env.clone();
            self.clear_step();
            let period = match self
                .expr(&env, &t.time)
                .and_then(|v| self.counted(&v, t.time.span, "the period", Unit::of("step")))
            {
                Ok(0) => {
                    let _: El<()> = self.error(
                        "out-of-range",
                        t.time.span,
                        "`every 0 steps`",
                        "at least 1 step",
                    );
                    continue;
                }
                Ok(n) => n,
                Err(Stop) => continue,
            };
            let before = self.out.facts.validations.len();
            self.step_block(&mut env, &t.body);
            for v in &mut self.out.facts.validations[before..] {
                v.period = period;
            }
            phase.every.push(Every { period, stages: std::mem::take(&mut self.stages) });
        }
        self.modes.pop();
        let _ = span;
        self.out.program.phases.push(phase);
    }
}

/// The pieces of a phase as written.
#[derive(Default)]
struct PhaseParts<'a> {
    step: Option<(&'a ast::Block, Env<'a>)>,
    every: Vec<(&'a ast::Timed, Env<'a>)>,
    halts: Vec<&'a ast::Halt>,
}
