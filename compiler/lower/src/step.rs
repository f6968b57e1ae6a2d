//! Steps: lines that become stages, updates and the batches they share, checkpoints.

use nrl_base::{Diagnostic, SourceId, Span};
use nrl_ir::program::Stage;
use nrl_ir::{DimId, ValueId};
use nrl_syntax::ast::{self, StmtKind};

use crate::builder::Builder;
use crate::elab::{El, Elab, GraphKind, Mode, Stop};
use crate::units::Unit;
use crate::value::{Env, StepShape, StepTensor, Val, Validity};

/// What an evaluation reports.
const REPORTED: [&str; 6] = ["accuracy", "reward", "pass_at_k", "length", "truncated", "failed"];

impl<'a> Elab<'a, '_> {
    pub fn step_block(&mut self, env: &mut Env<'a>, block: &'a ast::Block) {
        for stmt in &block.stmts {
            self.builders.clear();
            let result = match &stmt.kind {
                StmtKind::Bind(b) => self.step_bind(env, b),
                StmtKind::Update(u) => self.update(env, u),
                StmtKind::Checkpoint(c) => self.checkpoint(env, c, stmt.span),
                StmtKind::Expr(e) => self.compared(env, e),
                StmtKind::From(t) => self.guarded(env, t),
                StmtKind::Publish { what, every } => self.publish(env, what, every, stmt.span),
                _ => self.error(
                    "misplaced",
                    stmt.span,
                    "this line cannot stand in a step",
                    "not allowed here",
                ),
            };
            if result.is_err()
                && let StmtKind::Bind(b) = &stmt.kind
            {
                for n in &b.names {
                    env.bind(&n.text, Val::Poison);
                }
            }
        }
        self.builders.clear();
        if let Some(v) = &block.value {
            let _ = self.expr(env, v);
            self.builders.clear();
        }
    }

    /// A line that is a value alone; `adv == f(r)` of a new name was meant to bind it.
    fn compared(&mut self, env: &mut Env<'a>, e: &'a ast::Expr) -> El<()> {
        if let ast::ExprKind::Binary { op: ast::BinaryOp::Eq, lhs, .. } = &e.kind
            && let Some(name) = lhs.as_name()
            && env.get(name).is_none()
            && self.modules.find(self.modules.home(lhs.span, env.module), name).is_none()
        {
            env.bind(name, Val::Poison);
            let d = Diagnostic::error("unknown-name", format!("there is no `{name}` here"));
            let d = d.label(lhs.span, "compared, and never given a value");
            return self.fail(d.help(format!("write `{name} = ..`; `==` compares")));
        }
        self.expr(env, e).map(|_| ())
    }

    /// `from step 20 { .. }`: its lines run from that step of the phase on.
    fn guarded(&mut self, env: &Env<'a>, t: &'a ast::Timed) -> El<()> {
        let v = self.expr(env, &t.time)?;
        let v = match v {
            Val::Const(n, u) if u.is_none() => Val::Const(n, Unit::of("step")),
            v => v,
        };
        let from = self.counted(&v, t.time.span, "the first step", Unit::of("step"))?;
        if from <= 1 {
            self.no_effect(
                t.time.span,
                format!("`from step {from}` is every step"),
                "steps count from 1",
                "remove the block's frame, or give a later step",
            );
        }
        let before = std::mem::replace(&mut self.from_step, from);
        let mut inner = env.clone();
        self.step_block(&mut inner, &t.body);
        self.from_step = before;
        Ok(())
    }

    /// `publish policy every 2 steps`.
    pub fn publish(
        &mut self,
        env: &Env<'a>,
        what: &'a [ast::Expr],
        every: &'a Option<ast::Expr>,
        span: Span,
    ) -> El<()> {
        for e in what {
            match self.expr(env, e)? {
                Val::Model(_) | Val::Generator(..) => {}
                v => {
                    let kind = v.kind();
                    let text = format!("a model or a generator is published, not {kind}");
                    return self.error("wrong-type", e.span, text, format!("this is {kind}"));
                }
            }
        }
        if let Some(e) = every {
            let v = self.expr(env, e)?;
            self.counted(&v, e.span, "the period", Unit::of("step"))?;
        }
        self.later(
            span,
            "a generator follows its model by itself; other times do not run yet",
            "this line",
        );
        Ok(())
    }

    pub fn step_bind(&mut self, env: &mut Env<'a>, b: &'a ast::Bind) -> El<()> {
        let v = self.expr(env, &b.value)?;
        let v = match (&b.names[..], v) {
            ([name], v) => self.settle(v, &name.text, b.value.span)?,
            (names, Val::Tuple(vals)) if vals.len() == names.len() => {
                // All parts come from one graph.
                let mut out = vec![];
                let builder = self.builders.pop();
                for (v, n) in vals.into_iter().zip(names) {
                    if let Some(b) = &builder {
                        self.builders.push(b.clone());
                    }
                    out.push(self.settle(v, &n.text, b.value.span)?);
                }
                Val::Tuple(out)
            }
            (_, v) => v,
        };
        self.bind_names(env, b, v)
    }

    /// Ends a line of a step: what its graph computes becomes a stage, and stages get its name.
    pub fn settle(&mut self, v: Val<'a>, name: &str, span: Span) -> El<Val<'a>> {
        match v {
            Val::Tensor(t) => {
                let Some(builder) = self.builders.pop() else { return Err(Stop) };
                self.compute(builder, t.id, t.valid, name, span, t.origin)
            }
            Val::Step(s) => {
                self.rename(s.binding, name);
                Ok(Val::Step(s))
            }
            Val::Samples(s) => {
                self.rename(s.binding, name);
                Ok(Val::Samples(s))
            }
            Val::Prompts { binding } => {
                self.rename(binding, name);
                Ok(Val::Prompts { binding })
            }
            Val::Pairs { binding } => {
                self.rename(binding, name);
                Ok(Val::Pairs { binding })
            }
            Val::Report(old) => {
                if let Some(i) = self.stages.iter().position(|b| b.name == old) {
                    self.rename(i, name);
                }
                if let Some(m) = self.metrics.remove(&old) {
                    self.metrics.insert(name.into(), m);
                }
                Ok(Val::Report(name.into()))
            }
            Val::Loss(_) => self.error(
                "loss-outside-update",
                span,
                "a loss outside `update`",
                "only `update .. minimising` takes a loss",
            ),
            v => Ok(v),
        }
    }

    /// Gives an anonymous binding its name.
    pub fn rename(&mut self, binding: usize, name: &str) {
        if let Some(b) = self.stages.get_mut(binding)
            && b.name.starts_with('%')
        {
            b.name = name.into();
        }
    }

    /// Makes a stage of the graph built by one line.
    pub fn compute(
        &mut self,
        builder: Builder,
        id: ValueId,
        valid: Option<ValueId>,
        name: &str,
        span: Span,
        origin: Option<std::rc::Rc<crate::origin::Origin>>,
    ) -> El<Val<'a>> {
        let side = builder.sides.get(&id).copied();
        let dims = builder.graph.dims_of(id).to_vec();
        let is = |n: &str, d: DimId| builder.has_dim(n) == Some(d);
        let shape = match &dims[..] {
            [] => StepShape::Scalar,
            [d] if is("act", *d) => StepShape::Act,
            [d] if is("seq", *d) => StepShape::Seq,
            [d] if is("group", *d) => StepShape::Group,
            _ => {
                let shown = nrl_ir::infer::show_dims(&builder.graph, &dims);
                return self.error("dim-mismatch", span, format!("a step keeps numbers per token, sample or group, or one number, not {shown}"), "this value");
            }
        };
        let samples = builder.samples;
        let (inputs, scalars) = (builder.inputs.clone(), builder.scalars.clone());
        let mut args: Vec<usize> = samples.into_iter().collect();
        for i in &inputs {
            if !args.contains(&i.from) {
                args.push(i.from);
            }
        }
        let mut outputs = vec![(name, id)];
        let valid_name = format!("{name}.valid");
        if let Some(v) = valid {
            outputs.push((&valid_name, v));
        }
        let graph = self.push_graph(builder.finish(&outputs), GraphKind::Batch);
        let stage = |output| Stage::Compute {
            graph,
            output,
            inputs: inputs.clone(),
            scalars: scalars.clone(),
        };
        let binding = self.stage(name, stage(0), args.clone(), span);
        let validity = match valid {
            Some(_) => Validity::Binding(self.stage(&valid_name, stage(1), args, span)),
            None => Validity::All,
        };
        let valid = validity;
        Ok(Val::Step(StepTensor { binding, field: None, shape, valid, samples, side, origin }))
    }

    pub fn halt(&mut self, env: &Env<'a>, h: &'a ast::Halt) -> El<(usize, usize)> {
        self.builders.clear();
        let v = self.expr(env, &h.cond)?;
        let name = format!("halt.{}", self.stages.len());
        let v = self.settle(v, &name, h.cond.span)?;
        let Val::Step(StepTensor { binding, shape: StepShape::Scalar, .. }) = v else {
            let kind = v.kind();
            return self.fail(
                Diagnostic::error(
                    "wrong-type",
                    format!("`halt when` needs one number per step, not {kind}"),
                )
                .label(h.cond.span, format!("this is {kind}"))
                .help("reduce it: `share(..)`, `average(..)`, `sum(.., over: all)`"),
            );
        };
        let steps = match &h.lasting {
            Some(e) => {
                let v = self.expr(env, e)?;
                self.counted(&v, e.span, "how long the condition must hold", Unit::of("step"))?
                    .max(1)
            }
            None => 1,
        };
        Ok((binding, steps))
    }

    pub fn update(&mut self, env: &mut Env<'a>, u: &'a ast::Update) -> El<()> {
        let v = self.expr(env, &u.model)?;
        let model = self.model_of(&v, u.model.span)?;
        if matches!(self.out.program.models[model].weights, nrl_ir::program::Weights::Frozen { .. })
        {
            return self.error(
                "wrong-type",
                u.model.span,
                "a frozen model cannot be updated",
                "it was made by `frozen(..)`",
            );
        }
        let optimizer = match self.expr(env, &u.optimizer)? {
            Val::Optimizer(o) => o,
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    u.optimizer.span,
                    format!("`by` takes an optimizer, not {kind}"),
                    format!("this is {kind}"),
                );
            }
        };
        let count =
            |me: &mut Self, e: &'a Option<ast::Expr>, what: &str, unit: Unit, default: usize| {
                match e {
                    Some(e) => {
                        let v = me.expr(env, e)?;
                        let n = me.counted(&v, e.span, what, unit)?;
                        if n == 0 {
                            me.error("out-of-range", e.span, format!("{what} is 0"), "at least 1")
                        } else {
                            Ok(n)
                        }
                    }
                    None => Ok(default),
                }
            };
        let updates = count(self, &u.updates, "the number of updates", Unit::of("update"), 1)?;
        let epochs = count(self, &u.epochs, "the number of epochs", Unit::of("epoch"), 1)?;
        let budget = Unit::of("token").times(&Unit::of("microbatch").inverse());
        let tokens = count(self, &u.microbatch, "the micro-batch", budget, 8192)?;
        if let Some(s) = u.settings.first() {
            return self.error(
                "unknown-name",
                s.span,
                "`update` has no such setting",
                "not a setting",
            );
        }
        self.builders.clear();
        let mut builder = Builder::new("update");
        builder.bounds.insert("tok", tokens);
        builder.bounds.insert("act", tokens);
        self.builders.push(builder);
        self.modes.push(Mode::Loss { model });
        let loss = self.block(env, &u.loss);
        self.modes.pop();
        let builder = self.builders.pop();
        let loss = loss?;
        let Some(mut builder) = builder else { return Err(Stop) };
        let at = u.loss.value.as_ref().map_or(u.loss.span, |v| v.span);
        let Val::Loss(loss) = loss else {
            let kind = loss.kind();
            return self.fail(
                Diagnostic::error(
                    "expected-loss",
                    format!("`minimising` needs a loss, this is {kind}"),
                )
                .label(at, format!("this is {kind}"))
                .help("write `mean(.., over: tokens)`, or `over: samples`"),
            );
        };
        let scored = builder.logprobs.iter().next().map(|(s, x)| (*s, *x));
        let valued = builder.values.keys().next().copied();
        let Some(samples) = scored.map(|(s, _)| s).or(valued) else {
            let name = self.out.program.models[model].name.clone();
            return self.fail(
                Diagnostic::error(
                    "no-learning-signal",
                    format!("this loss does not depend on `{name}`"),
                )
                .label(at, "no `logprob` of the updated model in it")
                .help(format!("use `logprob({name}, samples)` in the loss")),
            );
        };
        self.check_staleness(samples, &builder, at)?;
        let mut outputs = vec![("loss", loss)];
        if let Some((_, (lp, entropy))) = scored {
            outputs.push(("entropy", self.mean_entropy(&mut builder, entropy, at)?));
            outputs.push(("logprob", lp));
        }
        let (inputs, scalars) = (builder.inputs.clone(), builder.scalars.clone());
        let temperature = builder.temperature.filter(|t| *t > 0.0);
        let graph = self.push_graph(builder.finish(&outputs), GraphKind::Update { model });
        let mut args = vec![samples];
        for i in &inputs {
            if !args.contains(&i.from) {
                args.push(i.from);
            }
        }
        self.check_updates(samples, updates, u)?;
        let temperature = temperature.unwrap_or_else(|| self.temperature_of(samples));
        self.updated.insert(model);
        let stage = Stage::Update {
            model,
            optimizer,
            graph,
            inputs,
            temperature,
            updates,
            epochs,
            tokens,
            scalars,
        };
        self.stage("update", stage, args, u.model.span);
        Ok(())
    }

    /// Entropy per trained token.
    fn mean_entropy(&mut self, builder: &mut Builder, entropy: ValueId, at: Span) -> El<ValueId> {
        let n = builder.input("count.tokens", nrl_ir::Type::f32([]));
        // A batch without a trained token has entropy 0, not 0 / 0.
        let one = builder.constant(1.0);
        let mean = builder
            .binary(nrl_ir::BinaryOp::Max, n, one)
            .and_then(|n| Ok((builder.total(entropy)?, n)))
            .and_then(|(t, n)| builder.binary(nrl_ir::BinaryOp::Div, t, n));
        match mean {
            Ok(v) => Ok(v),
            Err(e) => self.shape_error(e, &[at], at),
        }
    }

    /// Samples of earlier weights need a loss that knows what drew them.
    fn check_staleness(&mut self, samples: usize, builder: &Builder, at: Span) -> El<()> {
        let Some(stale) = self.drawn.get(&samples).and_then(|d| d.stale.clone()) else {
            return Ok(());
        };
        let mut open: Vec<&nrl_ir::program::GraphInput> = builder.inputs.iter().collect();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(i) = open.pop() {
            if i.from == samples && i.field.as_deref() == Some("logprob") {
                return Ok(());
            }
            let inputs = match &self.stages[i.from].stage {
                Stage::Compute { inputs, .. } | Stage::Forward { inputs, .. } => inputs,
                _ => continue,
            };
            if seen.insert(i.from) {
                open.extend(inputs);
            }
        }
        let name = self.stages[samples].name.clone();
        let name = if name.starts_with('%') { "the samples".into() } else { format!("`{name}`") };
        let (n, s) = (stale.steps, if stale.steps == 1 { "" } else { "s" });
        let age = if stale.exact { "are" } else { "may be" };
        let verb = if name.starts_with('`') { age.replace("are", "is") } else { age.to_string() };
        let what =
            format!("{name} {verb} {n} step{s} old and nothing in this loss corrects for it");
        let d = Diagnostic::error("uncorrected-off-policy", what)
            .label(at, "uses nothing that the sampler says of its tokens")
            .label(stale.span, format!("{n} step{s}"));
        let none = if stale.exact { "`delay 0`" } else { "`staleness <= 0 steps`" };
        self.fail(d.help(format!(
            "multiply by `tis(old, s.logprob, max: 2.0)` with `old = logprob(policy, s)`, or write {none}"
        )))
    }

    /// Temperature of the samples that a binding makes.
    pub fn temperature_of(&self, samples: usize) -> f64 {
        match &self.stages[samples].stage {
            Stage::Generate { sampling, .. } if sampling.temperature > 0.0 => sampling.temperature,
            _ => 1.0,
        }
    }

    /// Samples per step must be shared evenly by the updates, and by the data-parallel ranks.
    pub fn check_updates(&mut self, samples: usize, updates: usize, u: &'a ast::Update) -> El<()> {
        let (count, made) = match &self.stages[samples].stage {
            Stage::Generate { copies, .. } => {
                let prompts = self.stages[samples].args.first().map(|p| &self.stages[*p].stage);
                let Some(Stage::Take { count, .. }) = prompts else { return Ok(()) };
                let phase = self.out.program.phases.len();
                match self.collected.get(&(phase, samples)) {
                    Some(groups) => {
                        (groups * copies, format!("{groups} groups * {copies} samples"))
                    }
                    None => (count * copies, format!("{count} prompts * {copies} samples")),
                }
            }
            Stage::Take { count, .. } => (*count, format!("{count} samples")),
            _ => return Ok(()),
        };
        if count % updates != 0 {
            let span = u.updates.as_ref().map_or(u.model.span, |e| e.span);
            let legal: Vec<String> =
                (1..=count.min(64)).filter(|n| count % n == 0).map(|n| n.to_string()).collect();
            return self.fail(
                Diagnostic::error(
                    "batch-not-divisible",
                    format!("{made} = {count} cannot be cut into {updates} equal updates"),
                )
                .label(span, format!("{updates} updates"))
                .help(format!("numbers of updates that divide it: {}", legal.join(", "))),
            );
        }
        Ok(())
    }

    /// A batch must be shared evenly by the ranks that split sequences.
    pub fn check_batches(&mut self) {
        let mut found = vec![];
        for (p, phase) in self.out.program.phases.iter().enumerate() {
            for b in &phase.step {
                let Stage::Update { model, updates, .. } = &b.stage else { continue };
                let Some(model) = self.out.program.models.get(*model) else { continue };
                let mesh = &self.out.program.meshes[model.mesh].1;
                let ranks = mesh.size("dp") * mesh.size("fsdp");
                let samples = b.args.first().map(|s| &phase.step[*s]);
                let count = match samples.map(|s| (&s.stage, &s.args)) {
                    Some((Stage::Generate { copies, .. }, args)) => {
                        match args.first().map(|p| &phase.step[*p].stage) {
                            Some(Stage::Take { count, .. }) => {
                                let at = b.args.first().map_or((p, 0), |s| (p, *s));
                                self.collected.get(&at).unwrap_or(count) * copies
                            }
                            _ => continue,
                        }
                    }
                    Some((Stage::Take { count, .. }, _)) => *count,
                    _ => continue,
                };
                let per = count / (*updates).max(1);
                if per % ranks.max(1) != 0 {
                    found.push((per, ranks, b.origin));
                }
            }
        }
        for (per, ranks, origin) in found {
            let legal: Vec<String> =
                (1..=per.min(64)).filter(|n| per % n == 0).map(|n| n.to_string()).collect();
            let span = origin.map_or_else(Span::default, |(source, start, end)| {
                Span::new(SourceId(source), start as usize, end as usize)
            });
            self.problems.push(
                Diagnostic::error(
                    "batch-not-divisible",
                    format!(
                        "an update of {per} samples cannot be shared by {ranks} data-parallel ranks"
                    ),
                )
                .label(span, format!("{per} samples per update"))
                .help(format!("make dp one of {}, or change the batch", legal.join(", "))),
            );
        }
    }

    /// The metrics of an evaluation.
    fn reported(&self, of: &str) -> &[&'static str] {
        self.metrics.get(of).map_or(&REPORTED[..], Vec::as_slice)
    }

    /// A metric without its evaluation, `accuracy` where `test.accuracy` is meant, is told as that.
    fn reported_by_nobody(&mut self, env: &Env<'a>, by: &'a ast::Expr) -> El<()> {
        let ast::ExprKind::Name(key) = &by.kind else { return Ok(()) };
        if env.get(key).is_some() {
            return Ok(());
        }
        let reports = env.iter().filter_map(|(_, v)| match v {
            Val::Report(of) if self.reported(of).contains(&key.as_str()) => Some(of),
            _ => None,
        });
        let full: Vec<String> = reports.map(|of| format!("`{of}.{key}`")).collect();
        if full.is_empty() {
            return Ok(());
        }
        let what = format!("`{key}` is a metric of an evaluation, and of which is not said");
        let d = Diagnostic::error("unknown-metric", what).label(by.span, "of which evaluation?");
        self.fail(d.help(format!("write {}", full.join(" or "))))
    }

    pub fn checkpoint(&mut self, env: &Env<'a>, c: &'a ast::Checkpoint, span: Span) -> El<()> {
        let keep = match &c.keep {
            Some(e) => {
                let v = self.expr(env, e)?;
                self.whole(&v, e.span, "the number of checkpoints")?
            }
            None => 1,
        };
        if let Some(e) = &c.by {
            self.reported_by_nobody(env, e)?;
        }
        let by = match &c.by {
            Some(e) => match self.expr(env, e)? {
                Val::Metric(m) => {
                    let (of, key) = m.rsplit_once('.').unwrap_or(("", &m));
                    let known = self.reported(of);
                    if !known.contains(&key) {
                        let near = nrl_base::nearest(key, known.iter().copied());
                        let help = near
                            .map(|n| format!("did you mean `{of}.{n}`?"))
                            .unwrap_or_else(|| format!("a report has {}", known.join(", ")));
                        return self.fail(
                            Diagnostic::error(
                                "unknown-metric",
                                format!(
                                    "checkpoints are kept by `{m}`, which no evaluation reports"
                                ),
                            )
                            .label(e.span, "not reported")
                            .help(help),
                        );
                    }
                    Some(m)
                }
                v => {
                    let kind = v.kind();
                    return self.error(
                        "wrong-type",
                        e.span,
                        format!("`by` takes a metric such as `test.accuracy`, not {kind}"),
                        format!("this is {kind}"),
                    );
                }
            },
            None => None,
        };
        self.stage("checkpoint", Stage::Checkpoint { keep, by }, vec![], span);
        Ok(())
    }
}
