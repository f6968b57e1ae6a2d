//! Rollouts: one sample made in several turns, with tools of an external environment.
//!
//! In: `rollout solve(p, gen)` and its call in a step. Out: samples of the step, or diagnostics. The
//! body is checked here, with types of its own: a chat grows and is never rendered again, tokens
//! that `gen.reply` makes are trained and no others are, and a session of an environment is used
//! once, since each use gives a new one.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::program::{Reward, RewardKind, Stage};
use nrl_syntax::ast::{self, Block, Expr, ExprKind, ItemKind, StmtKind, TypeKind};

use crate::call::ArgVal;
use crate::elab::{El, Elab};
use crate::facts::RolloutFacts;
use crate::modules::{Global, ModuleId};
use crate::units::Unit;
use crate::value::{Env, Samples, Val};

/// What an expression of a rollout is.
#[derive(Clone, PartialEq, Debug)]
enum Ty {
    /// A row of the data: any field may be there.
    Row,
    Generator,
    Chat,
    /// What may be added to a chat: a reply, a tool's answer, a user's turn.
    Turn,
    Text,
    Num,
    Bool,
    /// A session of an environment, by the name of its type.
    Session(String),
    Maybe(Box<Ty>),
    Tuple(Vec<Ty>),
    Sample,
    /// Ends the turns.
    Done,
    Nothing,
}

impl Ty {
    fn words(&self) -> String {
        match self {
            Ty::Row => "a row".into(),
            Ty::Generator => "a generator".into(),
            Ty::Chat => "a chat".into(),
            Ty::Turn => "a turn of a chat".into(),
            Ty::Text => "text".into(),
            Ty::Num => "a number".into(),
            Ty::Bool => "a bool".into(),
            Ty::Session(n) => format!("a {n}"),
            Ty::Maybe(t) => format!("{}, or none", t.words()),
            Ty::Tuple(ts) => format!("{} values", ts.len()),
            Ty::Sample => "a sample".into(),
            Ty::Done => "`done`".into(),
            Ty::Nothing => "nothing".into(),
        }
    }

    fn fits(&self, want: &Ty) -> bool {
        self == want || *self == Ty::Row || *want == Ty::Row
    }
}

/// A name in scope.
#[derive(Clone, Debug)]
struct Bound {
    ty: Ty,
    /// Where a session was used up.
    spent: Option<Span>,
}

type Scope = BTreeMap<String, Bound>;

/// The check of one body.
struct Check<'e, 'a, 's> {
    elab: &'e mut Elab<'a, 's>,
    module: ModuleId,
    replies: usize,
    /// Can a model reply more than once?
    several: bool,
    in_loop: bool,
    /// Environments that the body calls.
    envs: Vec<&'a ast::ExternEnv>,
}

impl<'a> Elab<'a, '_> {
    /// `solve(problems.take(32 prompts), sampler, 16 samples/prompt)`.
    pub fn rollout(
        &mut self,
        module: ModuleId,
        d: &'a ast::Fn,
        args: Vec<ArgVal<'a>>,
        span: Span,
    ) -> El<Val<'a>> {
        self.need_step("a rollout", span)?;
        let name = &d.name.text;
        let [(_, p, sp), (_, g, sg), (_, n, sn)] = &args[..] else {
            let what =
                format!("`{name}` is called with prompts, a generator and the samples of each");
            let d = Diagnostic::error("wrong-arguments", what).label(span, "this call");
            return self.fail(d.help(format!(
                "write `{name}(data.take(32 prompts), sampler, 16 samples/prompt)`"
            )));
        };
        let Val::Prompts { binding } = p else {
            let kind = p.kind();
            let what = format!("`{name}` takes prompts, not {kind}");
            return self.error("wrong-type", *sp, what, format!("this is {kind}"));
        };
        let Val::Generator(generator, drawing) = g else {
            let kind = g.kind();
            let what = format!("`{name}` takes a generator, not {kind}");
            return self.error("wrong-type", *sg, what, format!("this is {kind}"));
        };
        let per = Unit::of("sample").times(&Unit::of("prompt").inverse());
        let copies = self.counted(n, *sn, "the group size", per)?.max(1);
        let (reward, binding) = (self.check_rollout(module, d, *generator, span)?, *binding);
        self.later(span, "rollouts over several turns do not run yet", "this rollout");
        let sampling = drawing.sampling.clone();
        let stage = Stage::Generate { generator: *generator, copies, max_new: None, sampling };
        let binding = self.stage("", stage, vec![binding], span);
        self.drawn.insert(binding, drawing.clone());
        let drawing = Some(drawing.clone());
        Ok(Val::Samples(Samples { binding, drawing, side: None, reward: Some(reward) }))
    }

    /// Checks the body once; its reward.
    fn check_rollout(
        &mut self,
        module: ModuleId,
        d: &'a ast::Fn,
        generator: usize,
        call: Span,
    ) -> El<usize> {
        let key = format!("rollout {}@{:?}", d.name.text, d.name.span);
        if let Some(r) = self.rewards.get(&key) {
            return Ok(*r);
        }
        let mut scope = Scope::new();
        for p in &d.params {
            let ty = match p.ty.as_ref().map(|t| &t.kind) {
                Some(TypeKind::Name(n)) if n.text() == "Generator" => Ty::Generator,
                _ => Ty::Row,
            };
            scope.insert(p.name.text.clone(), Bound { ty, spent: None });
        }
        if !scope.values().any(|b| b.ty == Ty::Generator) {
            let what = format!("rollout `{}` has no generator to reply with", d.name.text);
            let d =
                Diagnostic::error("missing-field", what).label(d.name.span, "no `gen: Generator`");
            return self
                .fail(d.help("write `rollout name(p: Row, gen: Generator) -> Sample { .. }`"));
        }
        let mut check =
            Check { elab: self, module, replies: 0, several: false, in_loop: false, envs: vec![] };
        let ty = check.block(&mut scope, &d.body)?;
        let (replies, several, envs) = (check.replies, check.several, check.envs);
        if ty != Ty::Sample {
            let at = d.body.value.as_ref().map_or(d.body.span, |v| v.span);
            let d = Diagnostic::error(
                "wrong-type",
                format!("a rollout ends with a sample, not {}", ty.words()),
            );
            return self.fail(d.label(at, "the result").help("write `Sample(c, reward: ..)`"));
        }
        if replies == 0 {
            let what = format!("no token of `{}` is trained", d.name.text);
            let d = Diagnostic::error("no-learning-signal", what)
                .label(d.name.span, "no `gen.reply` in it");
            return self
                .fail(d.help("tokens that `gen.reply(c)` makes are trained, and no others"));
        }
        if several {
            let model = self.out.program.generators[generator].model;
            let template = self.chat_template(model);
            let name = d.name.text.clone();
            let facts = RolloutFacts { name, model, template, span: call };
            self.out.facts.rollouts.push(facts);
        }
        let kind = RewardKind::Extern {
            command: envs.first().map_or(String::new(), |e| e.command.value.clone()),
            workers: 1,
            deadline_s: 30.0,
            on_timeout: None,
        };
        self.out.program.rewards.push(Reward { name: d.name.text.clone(), kind, range: None });
        self.rewards.insert(key, self.out.program.rewards.len() - 1);
        Ok(self.out.program.rewards.len() - 1)
    }
}

impl<'a> Check<'_, 'a, '_> {
    fn error<T>(
        &mut self,
        code: &'static str,
        at: Span,
        what: impl Into<String>,
        label: impl Into<String>,
    ) -> El<T> {
        self.elab.error(code, at, what, label)
    }

    /// Lines, then the value. A line that binds a name of outside changes it there.
    fn block(&mut self, scope: &mut Scope, b: &'a Block) -> El<Ty> {
        let outer: Vec<String> = scope.keys().cloned().collect();
        let result = self.lines(scope, b);
        scope.retain(|n, _| outer.contains(n));
        result
    }

    fn lines(&mut self, scope: &mut Scope, b: &'a Block) -> El<Ty> {
        for s in &b.stmts {
            match &s.kind {
                StmtKind::Bind(bind) => {
                    let ty = self.expr(scope, &bind.value)?;
                    self.bind(scope, bind, ty)?;
                }
                StmtKind::Expr(e) => {
                    self.expr(scope, e)?;
                }
                _ => {
                    let what = "this line cannot stand in a rollout";
                    return self.error("misplaced", s.span, what, "not allowed here");
                }
            }
        }
        match &b.value {
            Some(v) => self.expr(scope, v),
            None => Ok(Ty::Nothing),
        }
    }

    fn bind(&mut self, scope: &mut Scope, bind: &'a ast::Bind, ty: Ty) -> El<()> {
        let types = match (&bind.names[..], ty) {
            ([_], ty) => vec![ty],
            (names, Ty::Tuple(ts)) if ts.len() == names.len() => ts,
            (names, ty) => {
                let what = format!("{} names cannot take {}", names.len(), ty.words());
                return self.error("wrong-type", bind.value.span, what, "this value");
            }
        };
        for (n, ty) in bind.names.iter().zip(types) {
            let old = scope.insert(n.text.clone(), Bound { ty: ty.clone(), spent: None });
            if let Some(old) = old.filter(|o| !ty.fits(&o.ty) && !matches!(o.ty, Ty::Row)) {
                let what =
                    format!("`{}` is {} and would become {}", n.text, old.ty.words(), ty.words());
                return self.error("wrong-type", n.span, what, "another kind of value");
            }
        }
        Ok(())
    }

    fn name(&mut self, scope: &Scope, name: &str, span: Span) -> El<Ty> {
        match scope.get(name) {
            Some(Bound { spent: Some(at), ty }) => {
                let what = format!("`{name}` is {} that was used before", ty.words());
                let d = Diagnostic::error("session-used-twice", what)
                    .label(span, "used again")
                    .label(*at, "used up here");
                self.elab.fail(d.help(format!(
                    "keep what the call gives: `{name}, answer = env.call({name}, ..)`"
                )))
            }
            Some(b) => Ok(b.ty.clone()),
            None if name == "done" && self.in_loop => Ok(Ty::Done),
            None if name == "done" => {
                self.error("misplaced", span, "`done` ends the turns of a `for`", "no turns here")
            }
            None => {
                let known = scope.keys().map(String::as_str);
                let help = nearest(name, known).map(|n| format!("did you mean `{n}`?"));
                let d = Diagnostic::error("unknown-name", format!("there is no `{name}` here"));
                self.elab.fail(d.label(span, "not found").help_opt(help))
            }
        }
    }

    fn expr(&mut self, scope: &mut Scope, e: &'a Expr) -> El<Ty> {
        self.elab.count_work(e.span)?;
        Ok(match &e.kind {
            ExprKind::Int(_) | ExprKind::Float(_) | ExprKind::Quantity(_) => Ty::Num,
            ExprKind::Text(_) => Ty::Text,
            ExprKind::Bool(_) => Ty::Bool,
            ExprKind::None => Ty::Maybe(Box::new(Ty::Row)),
            ExprKind::Name(n) => self.name(scope, n, e.span)?,
            ExprKind::Tuple(xs) if xs.len() == 1 => self.expr(scope, &xs[0])?,
            ExprKind::Tuple(xs) => {
                Ty::Tuple(xs.iter().map(|x| self.expr(scope, x)).collect::<El<_>>()?)
            }
            ExprKind::Field { base, name } => self.field(scope, base, name)?,
            ExprKind::Call { callee, args } => self.call(scope, callee, args, e.span)?,
            ExprKind::Unary { operand, .. } => self.expr(scope, operand)?,
            ExprKind::Binary { op, lhs, rhs, .. } => self.binary(scope, *op, lhs, rhs)?,
            ExprKind::If { cond, then, otherwise } => {
                self.expr(scope, cond)?;
                let mut other = scope.clone();
                let ty = self.expr(scope, then)?;
                let and = match otherwise {
                    Some(o) => self.expr(&mut other, o)?,
                    None => Ty::Nothing,
                };
                join(scope, &other);
                if matches!(ty, Ty::Done | Ty::Nothing) { and } else { ty }
            }
            ExprKind::Match { value, arms } => self.match_(scope, value, arms)?,
            ExprKind::Block(b) => self.block(scope, b)?,
            ExprKind::For(f) => self.turns(scope, f)?,
            _ => {
                return self.error(
                    "not-supported",
                    e.span,
                    "this cannot stand in a rollout",
                    "not usable here",
                );
            }
        })
    }

    fn field(&mut self, scope: &mut Scope, base: &'a Expr, name: &ast::Name) -> El<Ty> {
        let ty = self.expr(scope, base)?;
        match (&ty, name.text.as_str()) {
            (Ty::Row, _) => Ok(Ty::Text),
            (Ty::Chat, "last") => Ok(Ty::Text),
            (Ty::Chat, "tokens" | "turns") => Ok(Ty::Num),
            (ty, other) => {
                let d =
                    Diagnostic::error("unknown-name", format!("{} has no `{other}`", ty.words()));
                let help =
                    (*ty == Ty::Chat).then(|| "a chat has last, tokens and turns".to_string());
                self.elab.fail(d.label(name.span, "not found").help_opt(help))
            }
        }
    }

    fn binary(
        &mut self,
        scope: &mut Scope,
        op: ast::BinaryOp,
        lhs: &'a Expr,
        rhs: &'a Expr,
    ) -> El<Ty> {
        use ast::BinaryOp as B;
        let (x, y) = (self.expr(scope, lhs)?, self.expr(scope, rhs)?);
        match (op, &x, &y) {
            (B::Add, Ty::Chat, Ty::Turn) => Ok(Ty::Chat),
            (B::Add, Ty::Chat, other) => {
                let what = format!("a chat grows by turns, not by {}", other.words());
                let d = Diagnostic::error("wrong-type", what)
                    .label(rhs.span, format!("this is {}", other.words()));
                self.elab.fail(d.help("write `tool(text)` or `user(text)`, or `gen.reply(c)`"))
            }
            (B::Add, a, b) if a.fits(&Ty::Text) && b.fits(&Ty::Text) => Ok(Ty::Text),
            (B::Add | B::Sub | B::Mul | B::Div, a, b) if a.fits(&Ty::Num) && b.fits(&Ty::Num) => {
                Ok(Ty::Num)
            }
            (B::Eq | B::Ne | B::Lt | B::Le | B::Gt | B::Ge, a, b) if a.fits(b) => Ok(Ty::Bool),
            (B::And | B::Or, Ty::Bool, Ty::Bool) => Ok(Ty::Bool),
            (op, a, b) => {
                let what = format!("`{}` of {} and {}", op.text(), a.words(), b.words());
                self.error("wrong-type", lhs.span.to(rhs.span), what, "does not combine these")
            }
        }
    }

    fn match_(&mut self, scope: &mut Scope, value: &'a Expr, arms: &'a [ast::Arm]) -> El<Ty> {
        let v = self.expr(scope, value)?;
        let before = scope.clone();
        let mut result = Ty::Nothing;
        for (i, arm) in arms.iter().enumerate() {
            let mut inner = before.clone();
            let bound = match (&arm.pattern.kind, &v) {
                (ast::PatternKind::Some(p), Ty::Maybe(t)) => match &p.kind {
                    ast::PatternKind::Name(n) => Some((n.clone(), (**t).clone())),
                    _ => None,
                },
                (ast::PatternKind::Name(n), v) => Some((n.clone(), v.clone())),
                _ => None,
            };
            let hidden = bound.as_ref().and_then(|(n, _)| inner.get(n).cloned());
            if let Some((n, ty)) = &bound {
                inner.insert(n.clone(), Bound { ty: ty.clone(), spent: None });
            }
            let ty = self.expr(&mut inner, &arm.value)?;
            if let Some((n, _)) = &bound {
                match hidden {
                    Some(h) => inner.insert(n.clone(), h),
                    None => inner.remove(n),
                };
            }
            if !matches!(ty, Ty::Done | Ty::Nothing) {
                result = ty;
            }
            if i == 0 {
                *scope = inner;
            } else {
                join(scope, &inner);
            }
        }
        Ok(result)
    }

    /// `for turn in 1..=6 carrying b, c until done { .. }`.
    fn turns(&mut self, scope: &mut Scope, f: &'a ast::For) -> El<Ty> {
        if !matches!(f.over.kind, ExprKind::Range { start: Some(_), end: Some(_), .. }) {
            let what = "turns are counted: `for turn in 1..=6`";
            return self.error("wrong-type", f.over.span, what, "not a range with both ends");
        }
        if let ExprKind::Range { start: Some(start), end: Some(end), .. } = &f.over.kind
            && let (ExprKind::Int(low), ExprKind::Int(high)) = (&start.kind, &end.kind)
            && low > high
        {
            let what = format!("no turn is in {low}..{high}");
            let d = Diagnostic::error("out-of-range", what);
            let d = d.label(f.over.span, "the wrong way round");
            return self.elab.fail(d.help(format!("write `{high}..={low}`")));
        }
        for c in &f.carrying {
            if let Some(e) = &c.start {
                let ty = self.expr(scope, e)?;
                scope.insert(c.name.text.clone(), Bound { ty, spent: None });
            } else {
                self.name(scope, &c.name.text, c.name.span)?;
            }
        }
        let mut inner = scope.clone();
        inner.insert(f.var.text.clone(), Bound { ty: Ty::Num, spent: None });
        let before = std::mem::replace(&mut self.in_loop, true);
        let body = self.lines(&mut inner, &f.body);
        self.in_loop = before;
        body?;
        for (n, b) in &inner {
            let (Some(at), Some(outside)) = (b.spent, scope.get(n)) else { continue };
            if outside.spent.is_none() {
                let what = format!("`{n}` is {} that the next turn would use again", b.ty.words());
                let carried = f.carrying.iter().any(|c| c.name.text == *n);
                let help = if carried {
                    format!("keep what the call gives: `{n}, answer = env.call({n}, ..)`")
                } else {
                    format!("carry it: `carrying {n}`, and keep what the call gives")
                };
                let d = Diagnostic::error("session-used-twice", what).label(at, "used up here");
                return self.elab.fail(d.label(f.var.span, "in each turn").help(help));
            }
        }
        for c in &f.carrying {
            if let Some(b) = inner.get(&c.name.text) {
                scope.insert(c.name.text.clone(), b.clone());
            }
        }
        Ok(Ty::Nothing)
    }

    fn call(
        &mut self,
        scope: &mut Scope,
        callee: &'a Expr,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Ty> {
        if let ExprKind::Field { base, name } = &callee.kind {
            if let Some(env) =
                base.as_name().filter(|n| !scope.contains_key(*n)).and_then(|n| self.env(n))
            {
                return self.env_call(scope, env, name, args, span);
            }
            let ty = self.expr(scope, base)?;
            if ty == Ty::Generator && name.text == "reply" {
                return self.reply(scope, args, span);
            }
            let help = if ty == Ty::Generator {
                Some("a generator has `reply`".to_string())
            } else {
                None
            };
            let d =
                Diagnostic::error("unknown-name", format!("{} has no `{}`", ty.words(), name.text));
            return self.elab.fail(d.label(name.span, "not found").help_opt(help));
        }
        let Some(name) = callee.as_name() else {
            return self.error(
                "not-callable",
                callee.span,
                "this cannot be called",
                "not a function",
            );
        };
        let text = |n: usize| vec![Ty::Text; n];
        let (want, named, gives): (Vec<Ty>, &[&str], Ty) = match name {
            "chat" => (vec![], &["system", "user"], Ty::Chat),
            "tool" | "user" => (text(1), &[], Ty::Turn),
            "between" => (text(3), &[], Ty::Maybe(Box::new(Ty::Text))),
            "boxed" => (text(1), &[], Ty::Maybe(Box::new(Ty::Text))),
            "text_or" => (vec![Ty::Maybe(Box::new(Ty::Text)), Ty::Text], &[], Ty::Text),
            "show" => (vec![Ty::Num], &[], Ty::Text),
            "trim" | "lower" | "upper" | "file" => (text(1), &[], Ty::Text),
            "contains" | "starts_with" | "ends_with" => (text(2), &[], Ty::Bool),
            "Sample" => (vec![Ty::Chat], &["reward"], Ty::Sample),
            _ => {
                let known =
                    ["chat", "tool", "user", "between", "boxed", "text_or", "Sample", "contains"];
                let help = nearest(name, known).map(|n| format!("did you mean `{n}`?"));
                let d =
                    Diagnostic::error("unknown-name", format!("a rollout cannot call `{name}`"));
                return self.elab.fail(d.label(callee.span, "not usable here").help_opt(help));
            }
        };
        let mut next = 0;
        for a in args {
            let ty = self.expr(scope, &a.value)?;
            let expected = match &a.name {
                Some(n) if named.contains(&n.text.as_str()) => {
                    if n.text == "reward" {
                        Ty::Num
                    } else {
                        Ty::Text
                    }
                }
                Some(n) => {
                    let help = nearest(&n.text, named.iter().copied())
                        .map(|k| format!("did you mean `{k}`?"));
                    let what = format!("`{name}` has no parameter `{}`", n.text);
                    let d =
                        Diagnostic::error("unknown-name", what).label(n.span, "not a parameter");
                    return self.elab.fail(d.help_opt(help));
                }
                None => {
                    next += 1;
                    match want.get(next - 1) {
                        Some(t) => t.clone(),
                        None => {
                            let what = format!("`{name}` takes {} arguments", want.len());
                            return self.error("wrong-arguments", a.span, what, "one too many");
                        }
                    }
                }
            };
            self.fits(&ty, &expected, a.value.span, name)?;
        }
        let reward = name != "Sample"
            || args.iter().any(|a| a.name.as_ref().is_some_and(|n| n.text == "reward"));
        if next < want.len() || !reward {
            let what = if reward {
                format!("`{name}` needs {} arguments", want.len())
            } else {
                "a sample needs its `reward`".into()
            };
            return self.error("wrong-arguments", span, what, "not given here");
        }
        Ok(gives)
    }

    fn fits(&mut self, ty: &Ty, want: &Ty, at: Span, of: &str) -> El<()> {
        let maybe = matches!(want, Ty::Maybe(t) if ty.fits(t));
        if ty.fits(want) || maybe {
            return Ok(());
        }
        let d = Diagnostic::error(
            "wrong-type",
            format!("`{of}` takes {}, not {}", want.words(), ty.words()),
        );
        let help = matches!(ty, Ty::Maybe(_))
            .then(|| "it may be none: write `text_or(x, \"\")`".to_string());
        self.elab.fail(d.label(at, format!("this is {}", ty.words())).help_opt(help))
    }

    /// `gen.reply(c, max_new: 512 tokens, stop: "</code>")`: the only tokens that are trained.
    fn reply(&mut self, scope: &mut Scope, args: &'a [ast::Arg], span: Span) -> El<Ty> {
        self.replies += 1;
        self.several |= self.in_loop || self.replies > 1;
        let mut chat = false;
        for a in args {
            let ty = self.expr(scope, &a.value)?;
            match a.name.as_ref().map(|n| n.text.as_str()) {
                None => {
                    chat = true;
                    self.fits(&ty, &Ty::Chat, a.value.span, "reply")?;
                }
                Some("max_new") => {
                    let v = self.elab.expr(&Env::new(self.module), &a.value)?;
                    self.elab.counted(&v, a.value.span, "`max_new`", Unit::of("token"))?;
                }
                Some("stop") => self.fits(&ty, &Ty::Text, a.value.span, "stop")?,
                Some(other) => {
                    let what = format!("`reply` has no parameter `{other}`");
                    let help =
                        nearest(other, ["max_new", "stop"]).map(|k| format!("did you mean `{k}`?"));
                    let d =
                        Diagnostic::error("unknown-name", what).label(a.span, "not a parameter");
                    return self.elab.fail(d.help_opt(help));
                }
            }
        }
        if !chat {
            return self.error(
                "wrong-arguments",
                span,
                "`reply` needs the chat it goes on from",
                "not given here",
            );
        }
        Ok(Ty::Turn)
    }

    fn env(&mut self, name: &str) -> Option<&'a ast::ExternEnv> {
        let Some(Global::Item(m, i)) = self.elab.modules.find(self.module, name) else {
            return None;
        };
        let modules = self.elab.modules;
        match &modules.item(m, i).kind {
            ItemKind::ExternEnv(e) => {
                self.envs.push(e);
                Some(e)
            }
            _ => None,
        }
    }

    fn env_call(
        &mut self,
        scope: &mut Scope,
        env: &'a ast::ExternEnv,
        name: &ast::Name,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Ty> {
        let Some(f) = env.fns.iter().find(|f| f.name.text == name.text) else {
            let known: Vec<&str> = env.fns.iter().map(|f| f.name.text.as_str()).collect();
            let help = nearest(&name.text, known.iter().copied()).map_or_else(
                || format!("it has {}", known.join(", ")),
                |n| format!("did you mean `{n}`?"),
            );
            let d = Diagnostic::error(
                "unknown-name",
                format!("`{}` has no `{}`", env.name.text, name.text),
            );
            return self.elab.fail(
                d.label(name.span, "not found").label(env.name.span, "declared here").help(help),
            );
        };
        if args.len() != f.params.len() {
            let what =
                format!("`{}` takes {} arguments, got {}", name.text, f.params.len(), args.len());
            let d = Diagnostic::error("wrong-arguments", what).label(span, "this call");
            return self.elab.fail(d.label(f.span, "declared here"));
        }
        for (a, p) in args.iter().zip(&f.params) {
            let ty = self.expr(scope, &a.value)?;
            let want = p.ty.as_ref().map_or(Ty::Row, |t| self.declared(t));
            self.fits(&ty, &want, a.value.span, &name.text)?;
            if let (Ty::Session(_), Some(n)) = (&ty, a.value.as_name())
                && let Some(b) = scope.get_mut(n)
            {
                b.spent = Some(a.value.span);
            }
        }
        f.result.as_ref().map_or(Ok(Ty::Nothing), |t| Ok(self.declared(t)))
    }

    /// A type of a signature; a name that is nothing else is a session's.
    fn declared(&self, t: &ast::Type) -> Ty {
        match &t.kind {
            TypeKind::Within { base, .. } | TypeKind::AtMost { base, .. } => self.declared(base),
            TypeKind::Optional(t) => Ty::Maybe(Box::new(self.declared(t))),
            TypeKind::Tuple(ts) => Ty::Tuple(ts.iter().map(|t| self.declared(t)).collect()),
            TypeKind::Name(p) => match p.text().as_str() {
                "text" => Ty::Text,
                "int" | "float" | "number" => Ty::Num,
                "bool" => Ty::Bool,
                "Row" | "record" => Ty::Row,
                other if self.elab.modules.find(self.module, other).is_some() => Ty::Row,
                other => Ty::Session(other.into()),
            },
            _ => Ty::Row,
        }
    }
}

/// What is spent in one branch is spent.
fn join(scope: &mut Scope, other: &Scope) {
    for (n, b) in other {
        if let (Some(at), Some(mine)) = (b.spent, scope.get_mut(n)) {
            mine.spent.get_or_insert(at);
        }
    }
}
