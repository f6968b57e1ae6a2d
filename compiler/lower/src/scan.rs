//! Along the tokens of a batch: `scan`, `next`, `collect`, and the largest few of a dim.
//!
//! In: expressions of a step. Out: nodes of its batch graph. A scan is a linear recurrence: what it
//! carries enters its body once, times something and plus something. It restarts in each sequence,
//! and the tokens that are not trained are not in it.

use nrl_base::{Diagnostic, Severity, Span};
use nrl_ir::op::Groups;
use nrl_ir::program::Stage;
use nrl_ir::{Op, ValueId};
use nrl_syntax::ast::{self, BinaryOp, Expr, ExprKind, UnaryOp};

use crate::elab::{El, Elab, Mode, Stop};
use crate::intrinsic::Args;
use crate::units::Unit;
use crate::value::{Env, StepShape, StepTensor, Val};

/// `of * carry + plus`; a part that is not there is none.
struct Linear<'a> {
    of: Option<Val<'a>>,
    plus: Option<Val<'a>>,
}

impl<'a> Elab<'a, '_> {
    /// `scan back delta carrying a = 0 { delta + 0.9 * a }`.
    pub fn scan_tokens(&mut self, env: &Env<'a>, s: &'a ast::Scan, span: Span) -> El<Val<'a>> {
        let [carry] = &s.carrying[..] else {
            let what = format!("a scan carries one value, this one {}", s.carrying.len());
            return self.error("not-supported", span, what, "this scan");
        };
        if let Some(e) = &carry.start {
            let v = self.expr(env, e)?;
            if self.number(&v, e.span, "the start of a scan")? != 0.0 {
                let what = "a scan starts at 0";
                return self.error("not-supported", e.span, what, "another start");
            }
        }
        let mut inner = env.clone();
        for n in &s.inputs {
            let v = self.name(env, &n.text, n.span)?;
            let t = self.tensor(&v, n.span)?;
            inner.bind(&n.text, Val::Tensor(t));
        }
        for stmt in &s.body.stmts {
            let ast::StmtKind::Bind(b) = &stmt.kind else {
                let what = "only `x = ..` lines may stand in a scan";
                return self.error("misplaced", stmt.span, what, "not allowed here");
            };
            if crate::unused::names_in(&b.value).contains(&carry.name.text) {
                return self.not_linear(&carry.name.text, b.value.span);
            }
            let v = self.expr(&inner, &b.value)?;
            self.bind_names(&mut inner, b, v)?;
        }
        let Some(body) = &s.body.value else {
            return self.error("misplaced", s.body.span, "this scan has no value", "its last line");
        };
        let parts = self.linear(&inner, body, &carry.name.text)?;
        let zero = || Val::num(0.0);
        let u = self.per_token(&parts.plus.unwrap_or_else(zero), body.span)?;
        let c = self.per_token(&parts.of.unwrap_or_else(zero), body.span)?;
        let dim = self.builder(span)?.dim("act");
        let op = Op::Recur { dim, back: s.back };
        let id = self.tensor_op(op, &[u, c], &[body.span, body.span], span)?;
        Ok(self.made(id, None))
    }

    fn not_linear<T>(&mut self, carry: &str, span: Span) -> El<T> {
        let what = format!("`{carry}` is carried, so that it may only be added to and multiplied");
        let d = Diagnostic::error("not-supported", what).label(span, "not linear in it");
        self.fail(d.help(format!("write the last line as `x + y * {carry}`")))
    }

    /// Splits an expression by what it carries.
    fn linear(&mut self, env: &Env<'a>, e: &'a Expr, carry: &str) -> El<Linear<'a>> {
        if !crate::unused::names_in(e).contains(carry) {
            return Ok(Linear { of: None, plus: Some(self.expr(env, e)?) });
        }
        let at = (e.span, e.span, e.span, e.span);
        match &e.kind {
            ExprKind::Name(_) => Ok(Linear { of: Some(Val::num(1.0)), plus: None }),
            ExprKind::Tuple(items) if items.len() == 1 => self.linear(env, &items[0], carry),
            ExprKind::Unary { op: UnaryOp::Neg, operand } => {
                let x = self.linear(env, operand, carry)?;
                let mut neg = |v: Option<Val<'a>>| match v {
                    Some(v) => self.binary(BinaryOp::Mul, Val::num(-1.0), v, at).map(Some),
                    None => Ok(None),
                };
                Ok(Linear { of: neg(x.of)?, plus: neg(x.plus)? })
            }
            ExprKind::Binary { op: op @ (BinaryOp::Add | BinaryOp::Sub), lhs, rhs, .. } => {
                let (x, y) = (self.linear(env, lhs, carry)?, self.linear(env, rhs, carry)?);
                let mut join = |a: Option<Val<'a>>, b: Option<Val<'a>>| match (a, b) {
                    (Some(a), Some(b)) => self.binary(*op, a, b, at).map(Some),
                    (None, Some(b)) if *op == BinaryOp::Sub => {
                        self.binary(BinaryOp::Mul, Val::num(-1.0), b, at).map(Some)
                    }
                    (a, b) => Ok(a.or(b)),
                };
                Ok(Linear { of: join(x.of, y.of)?, plus: join(x.plus, y.plus)? })
            }
            ExprKind::Binary { op: op @ (BinaryOp::Mul | BinaryOp::Div), lhs, rhs, .. } => {
                let (x, y) = (self.linear(env, lhs, carry)?, self.linear(env, rhs, carry)?);
                let (part, by, left) = match (x.of.is_some(), y.of.is_some()) {
                    (true, false) => (x, y.plus, true),
                    (false, true) if *op == BinaryOp::Mul => (y, x.plus, false),
                    _ => return self.not_linear(carry, e.span),
                };
                let Some(by) = by else { return Err(Stop) };
                let mut scale = |v: Option<Val<'a>>| match v {
                    Some(v) if left => self.binary(*op, v, by.clone(), at).map(Some),
                    Some(v) => self.binary(*op, by.clone(), v, at).map(Some),
                    None => Ok(None),
                };
                Ok(Linear { of: scale(part.of)?, plus: scale(part.plus)? })
            }
            _ => self.not_linear(carry, e.span),
        }
    }

    /// A value repeated to be one number per trained token.
    fn per_token(&mut self, v: &Val<'a>, span: Span) -> El<ValueId> {
        let t = self.tensor(v, span)?;
        let act = self.builder(span)?.dim("act");
        self.tensor_op(Op::Broadcast { dims: vec![act] }, &[t.id], &[span], span)
    }

    /// `next(x, else: 0)`: the value of the token after, in its sequence.
    pub fn next_token(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (x, s) = a.need("x");
        let t = self.tensor(&x, s)?;
        let fill = match a.take("else") {
            Some(g) => self.number(&g.val, g.span, "`else`")?,
            None => 0.0,
        };
        let b = self.builder(span)?;
        let dims = b.graph.dims_of(t.id).to_vec();
        let act = b.has_dim("act").filter(|d| dims == [*d]);
        let Some(dim) = act else {
            let shown = nrl_ir::infer::show_dims(&b.graph, &dims);
            let what = format!("`next` takes one number per token, not {shown}");
            return self.error("dim-mismatch", s, what, format!("this has dims {shown}"));
        };
        let id = self.tensor_op(Op::Next { dim, fill }, &[t.id], &[s], span)?;
        Ok(self.made(id, None))
    }

    /// `top_k(x, 8, over: expert)`: 1 at the 8 largest, else 0.
    pub fn largest_few(&mut self, env: &Env<'a>, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (x, s) = a.need("x");
        let t = self.tensor(&x, s)?;
        let (k, sk) = a.need("k");
        let k = self.whole(&k, sk, "`k`")?;
        let Some(over) = a.take("over").and_then(|g| g.expr) else { return Err(Stop) };
        let dims = self.over(env, over, t.id)?;
        let [dim] = dims[..] else {
            let what = "`top_k` chooses along one dim";
            return self.error("dim-mismatch", over.span, what, "not one");
        };
        let mut groups = None;
        if let Some(g) = a.take("groups") {
            let count = self.whole(&g.val, g.span, "`groups`")?;
            let mut number = |name: &str, otherwise: usize| match a.take(name) {
                Some(g) => self.whole(&g.val, g.span, &format!("`{name}`")),
                None => Ok(otherwise),
            };
            let (keep, by) = (number("keep", count)?, number("by", 1)?);
            groups = (keep < count).then_some(Groups { count, keep, by });
        }
        let id = self.tensor_op(Op::TopK { dim, k, groups }, &[t.id], &[s], span)?;
        Ok(self.made(id, None))
    }

    /// `collect 64 groups where std(r) > 0 within 10 rounds { .. }`.
    pub fn collect(&mut self, env: &Env<'a>, c: &'a ast::Collect, span: Span) -> El<Val<'a>> {
        if !matches!(self.mode(), Mode::Step) {
            let what = "`collect` runs in a step";
            return self.error("misplaced", span, what, "not inside a step here");
        }
        let v = self.expr(env, &c.count)?;
        let groups = self.counted(&v, c.count.span, "what is collected", Unit::of("group"))?;
        let Some(within) = &c.within else {
            let d = Diagnostic::error("missing-field", "a `collect` without an end");
            let d = d.label(span, "it could go on for ever");
            return self.fail(d.help("write `within 10 rounds` before the block"));
        };
        let v = self.expr(env, within)?;
        let rounds = self.counted(&v, within.span, "the limit", Unit::of("round"))?;
        if groups == 0 || rounds == 0 {
            let at = if groups == 0 { c.count.span } else { within.span };
            return self.error("out-of-range", at, "nothing would be collected", "at least 1");
        }
        let first = self.stages.len();
        let mut kept = vec![];
        let mut inner = env.clone();
        for stmt in &c.body.stmts {
            self.builders.clear();
            let ast::StmtKind::Bind(b) = &stmt.kind else {
                let what = "only `x = ..` lines may stand in a `collect`";
                return self.error("misplaced", stmt.span, what, "not allowed here");
            };
            self.step_bind(&mut inner, b)?;
        }
        self.builders.clear();
        if let Some(cond) = &c.cond {
            let v = self.expr(&inner, cond)?;
            let name = format!("kept.{}", self.stages.len());
            let v = self.settle(v, &name, cond.span)?;
            let Val::Step(StepTensor { shape: StepShape::Group, binding, .. }) = v else {
                let kind = v.kind();
                let what = "`where` of a `collect` needs one number per group";
                let d = Diagnostic::error("dim-mismatch", what)
                    .label(cond.span, format!("this is {kind}"));
                return self.fail(d.help("such as `std(r) > 0`"));
            };
            kept.push(binding);
            self.builders.clear();
        }
        let makes = |b: &nrl_ir::program::Binding| matches!(b.stage, Stage::Generate { .. });
        let sampled: Vec<usize> =
            (first..self.stages.len()).filter(|i| makes(&self.stages[*i])).collect();
        let [samples] = sampled[..] else {
            let what = format!(
                "a `collect` draws one batch of samples in each round, not {}",
                sampled.len()
            );
            let d = Diagnostic::error("not-supported", what).label(c.body.span, "these lines");
            return self.fail(d.help("write one line with `sampler.generate(..)` in it"));
        };
        let phase = self.out.program.phases.len();
        self.collected.insert((phase, samples), groups);
        self.check_rounds(samples, (groups, rounds), c.count.span, within.span)?;
        self.forwards.clear();
        self.stage("collect", Stage::Collect { first, groups, rounds }, kept, span);
        let Some(value) = &c.body.value else {
            let what = "this `collect` has no value";
            return self.error("misplaced", c.body.span, what, "its last line, such as `(s, r)`");
        };
        let v = self.expr(&inner, value)?;
        let v = match v {
            Val::Tuple(vals) => {
                let builder = self.builders.pop();
                let mut out = vec![];
                for v in vals {
                    if let (Val::Tensor(_), Some(b)) = (&v, &builder) {
                        self.builders.push(b.clone());
                    }
                    out.push(self.settle(v, "", value.span)?);
                }
                Val::Tuple(out)
            }
            v => self.settle(v, "", value.span)?,
        };
        self.builders.clear();
        Ok(v)
    }

    /// Where it is assumed how many groups are kept, the rounds should be enough for them.
    fn expect_rounds(&mut self, count: usize, (groups, rounds): (usize, usize), within: Span) {
        let kept = self.out.facts.assumptions.iter().find(|a| a.of == "kept");
        let Some((share, span)) = kept.and_then(|a| Some((a.law.mean()?, a.span))) else { return };
        let need = (groups as f64 / (count as f64 * share)).ceil() as usize;
        if need <= rounds {
            return;
        }
        let each = count as f64 * share;
        let what = format!(
            "about {need} rounds give {groups} groups where {} % are kept, {rounds} are allowed",
            (share * 1000.0).round() / 10.0
        );
        let d = Diagnostic::new("buffer-cannot-fill", Severity::Warning, what)
            .label(within, format!("{rounds} rounds of {count} prompts"))
            .label(span, format!("{} groups of each round", (each * 100.0).round() / 100.0))
            .note("a step that finds fewer groups learns from those, and says so")
            .help(format!(
                "write `within {need} rounds`, or take {} prompts in each",
                (groups as f64 / (rounds as f64 * share)).ceil()
            ));
        self.problems.push(d);
    }

    /// All rounds together must be able to give the groups.
    fn check_rounds(
        &mut self,
        samples: usize,
        (groups, rounds): (usize, usize),
        at: Span,
        within: Span,
    ) -> El<()> {
        let prompts = self.stages[samples].args.first().map(|p| &self.stages[*p].stage);
        let Some(Stage::Take { count, .. }) = prompts else { return Ok(()) };
        let count = *count;
        if rounds * count >= groups {
            self.expect_rounds(count, (groups, rounds), within);
            return Ok(());
        }
        let most = rounds * count;
        let what = format!(
            "{rounds} rounds of {count} prompts give {most} groups at most, {groups} are collected"
        );
        let need = groups.div_ceil(count);
        let d = Diagnostic::error("buffer-cannot-fill", what).label(at, format!("{groups} groups"));
        self.fail(
            d.label(within, format!("{rounds} rounds"))
                .help(format!("write `within {need} rounds` or more, or take more prompts")),
        )
    }
}
