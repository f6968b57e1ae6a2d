//! Control: choices, pipelines, blocks, loops over layers.

use std::rc::Rc;

use nrl_base::{Diagnostic, Span};
use nrl_ir::host::{self, Builtin, HostType, Value};
use nrl_ir::{Op, ValueId};
use nrl_syntax::ast::{self, Expr, ExprKind};

use crate::elab::{El, Elab, Stop};
use crate::value::{Env, Layer, Run, Val};

impl<'a> Elab<'a, '_> {
    pub fn if_(
        &mut self,
        env: &Env<'a>,
        cond: &'a Expr,
        then: &'a Expr,
        otherwise: Option<&'a Expr>,
        span: Span,
    ) -> El<Val<'a>> {
        let c = self.expr(env, cond)?;
        match c {
            Val::Const(Value::Bool(true), _) => self.expr(env, then),
            Val::Const(Value::Bool(false), _) => match otherwise {
                Some(o) => self.expr(env, o),
                None => Ok(Val::none()),
            },
            Val::Host(c, HostType::Bool | HostType::Any) => {
                let t = self.expr(env, then)?;
                let o = match otherwise {
                    Some(o) => self.expr(env, o)?,
                    None => Val::none(),
                };
                let (t, tt) = self.host(&t, then.span)?;
                let (o, ot) = self.host(&o, otherwise.map_or(span, |o| o.span))?;
                let ty = HostType::either(tt, ot);
                Ok(Val::Host(
                    host::Expr::If { cond: Box::new(c), then: Box::new(t), other: Box::new(o) },
                    ty,
                ))
            }
            c if self.is_tensor(&c) => self.fail(
                Diagnostic::error(
                    "wrong-type",
                    "`if` chooses before the run; a tensor is known only then",
                )
                .label(cond.span, "a tensor")
                .help("write `where(cond, a, b)`"),
            ),
            c => {
                let kind = c.kind();
                self.error(
                    "wrong-type",
                    cond.span,
                    format!("the condition of `if` is {kind}, not a bool"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    pub fn match_(&mut self, env: &Env<'a>, value: &'a Expr, arms: &'a [ast::Arm]) -> El<Val<'a>> {
        let v = self.expr(env, value)?;
        match &v {
            Val::Host(e, t) => return self.match_host(env, (e.clone(), t.clone()), value, arms),
            v if self.is_tensor(v) => {
                return self.fail(
                    Diagnostic::error(
                        "wrong-type",
                        "`match` chooses before the run; a tensor is known only then",
                    )
                    .label(value.span, "a tensor")
                    .help("write `where(cond, a, b)`"),
                );
            }
            _ => {}
        }
        self.covers(&v, value, arms)?;
        for arm in arms {
            let mut inner = env.clone();
            let hit = self.takes(env, &mut inner, &arm.pattern, &v, value.span)?;
            if hit {
                return self.expr(&inner, &arm.value);
            }
        }
        let shown = crate::types::shown(&v);
        self.no_match(&shown, value.span)
    }

    /// Whether a pattern takes a value; the names that it binds go into `inner`.
    fn takes(
        &mut self,
        env: &Env<'a>,
        inner: &mut Env<'a>,
        p: &'a ast::Pattern,
        v: &Val<'a>,
        at: Span,
    ) -> El<bool> {
        Ok(match (&p.kind, v) {
            (ast::PatternKind::Any, _) => true,
            (ast::PatternKind::None, Val::Variant { of, name, .. }) => {
                self.variant(of, "none", p.span)?;
                name == "none"
            }
            (ast::PatternKind::None, v) => v.is_none(),
            (ast::PatternKind::Name(n), Val::Variant { of, name, .. }) => {
                let declared = self.variant_named(of, n, p.span)?;
                if !declared.fields.is_empty() {
                    let form = crate::cover::form(declared, "_", &[]);
                    let what = format!("`{n}` holds values, which its pattern must name");
                    let d = Diagnostic::error("wrong-arguments", what).label(p.span, "not here");
                    return self.fail(d.help(format!("write `{form}`, or names in place of `_`")));
                }
                n == name
            }
            (ast::PatternKind::Name(n), v) => {
                inner.bind(n, v.clone());
                true
            }
            (ast::PatternKind::Variant { path, args }, Val::Variant { of, name, vals }) => {
                let Some(key) = path.names.last() else { return Ok(false) };
                let declared = self.variant_named(of, &key.text, key.span)?;
                if declared.fields.len() != args.len() {
                    let form = crate::cover::form(declared, "_", &[]);
                    let what = format!(
                        "`{}` holds {} values, this pattern names {}",
                        key.text,
                        declared.fields.len(),
                        args.len()
                    );
                    let d = Diagnostic::error("wrong-arguments", what).label(p.span, "here");
                    return self.fail(d.help(format!("write `{form}`, or names in place of `_`")));
                }
                if key.text != *name {
                    return Ok(false);
                }
                for (p, v) in args.iter().zip(vals) {
                    if !self.takes(env, inner, p, v, at)? {
                        return Ok(false);
                    }
                }
                true
            }
            (ast::PatternKind::Tuple(ps), Val::Tuple(vs)) if ps.len() == vs.len() => {
                for (p, v) in ps.iter().zip(vs) {
                    if !self.takes(env, inner, p, v, at)? {
                        return Ok(false);
                    }
                }
                true
            }
            (ast::PatternKind::Value(pattern), Val::Const(v, u)) => {
                let x = self.expr(env, pattern)?;
                match &x {
                    Val::Const(Value::Num(_), w) if u != w => {
                        let what = format!("this `match` is of {u}, the pattern of {w}");
                        let d = Diagnostic::error("unit-mismatch", what);
                        let d = d.label(pattern.span, format!("this is {w}"));
                        return self.fail(d.label(at, format!("this is {u}")));
                    }
                    Val::Const(x, _) => x == v,
                    Val::Range(low, high) => {
                        let (low, high) = self.ascending((*low, *high), pattern.span)?;
                        matches!(v, Value::Num(x) if (low..=high).contains(x))
                    }
                    _ => false,
                }
            }
            (ast::PatternKind::Some(p), v) if !v.is_none() => self.takes(env, inner, p, v, at)?,
            _ => false,
        })
    }

    /// The arms of a `match` of an enum, a bool or what may be none take all there is.
    fn covers(&mut self, v: &Val<'a>, value: &'a Expr, arms: &'a [ast::Arm]) -> El<()> {
        let of = match v {
            Val::Variant { of, .. } => Some(*of),
            _ => None,
        };
        let gap = crate::cover::missing(arms, of).map(|m| (m, value.span));
        if let Some((missing, span)) = gap {
            let what = format!("this `match` does not take {}", missing.join(", "));
            let d = Diagnostic::error("no-match", what).label(span, "not all of it is taken");
            return self.fail(d.help(format!("add an arm `{} -> ..`, or `_ -> ..`", missing[0])));
        }
        if let Some((second, first)) = crate::cover::never(arms, of) {
            return self.fail(
                Diagnostic::error("unreachable-arm", "this arm is never taken")
                    .label(second, "never reached")
                    .label(first, "takes all that it could")
                    .help("remove it, or move it up"),
            );
        }
        Ok(())
    }

    pub fn no_match<T>(&mut self, shown: &str, span: Span) -> El<T> {
        let what = format!("no arm of this `match` takes {shown}");
        self.error("no-match", span, what, format!("the value is {shown}"))
    }

    /// `match` of a value that the host knows: a chain of choices, the last arm taking the rest.
    pub fn match_host(
        &mut self,
        env: &Env<'a>,
        (v, t): (host::Expr, HostType),
        value: &'a Expr,
        arms: &'a [ast::Arm],
    ) -> El<Val<'a>> {
        let mut choices: Vec<(host::Expr, host::Expr, HostType)> = vec![];
        let mut rest = None;
        for arm in arms {
            let mut inner = env.clone();
            let cond = self.pattern_host(&mut inner, (&v, &t), &arm.pattern)?;
            let result = self.expr(&inner, &arm.value)?;
            let (e, ty) = self.host(&result, arm.value.span)?;
            match cond {
                Some(c) => choices.push((c, e, ty)),
                None => {
                    rest = Some((e, ty));
                    break;
                }
            }
        }
        if rest.is_none() && covers_maybe(arms) {
            rest = choices.pop().map(|(_, e, t)| (e, t));
        }
        let Some((mut out, mut ty)) = rest else {
            let what = "this `match` of a value known at run time has no arm for the rest";
            let d = Diagnostic::error("no-match", what).label(value.span, t.describe());
            return self.fail(d.help("end it with `_ -> ..`"));
        };
        for (cond, then, t) in choices.into_iter().rev() {
            ty = HostType::either(t, ty);
            let (cond, then, other) = (Box::new(cond), Box::new(then), Box::new(out));
            out = host::Expr::If { cond, then, other };
        }
        Ok(Val::Host(out, ty))
    }

    /// When a pattern takes the value `v`; none if always. Names it binds go into `env`.
    pub fn pattern_host(
        &mut self,
        env: &mut Env<'a>,
        (v, t): (&host::Expr, &HostType),
        p: &'a ast::Pattern,
    ) -> El<Option<host::Expr>> {
        let call = |f, args| host::Expr::Call { f, args };
        let is_none = || call(Builtin::IsNone, vec![v.clone()]);
        Ok(match &p.kind {
            ast::PatternKind::Any => None,
            ast::PatternKind::Name(n) => {
                env.bind(n, Val::Host(v.clone(), t.clone()));
                None
            }
            ast::PatternKind::None => Some(is_none()),
            ast::PatternKind::Some(inner) => {
                let present = match t {
                    HostType::Maybe(t) => (**t).clone(),
                    t => t.clone(),
                };
                let not_none = call(Builtin::Not, vec![is_none()]);
                match self.pattern_host(env, (v, &present), inner)? {
                    Some(c) => Some(call(Builtin::And, vec![not_none, c])),
                    None => Some(not_none),
                }
            }
            ast::PatternKind::Value(e) => match self.expr(env, e)? {
                Val::Range(low, high) => {
                    let (low, high) = self.ascending((low, high), e.span)?;
                    let n = |x: f64| host::Expr::Const(Value::Num(x));
                    let above = call(Builtin::Le, vec![n(low), v.clone()]);
                    let below = call(Builtin::Le, vec![v.clone(), n(high)]);
                    Some(call(Builtin::And, vec![above, below]))
                }
                x => {
                    let (x, _) = self.host(&x, e.span)?;
                    Some(call(Builtin::Eq, vec![v.clone(), x]))
                }
            },
            _ => {
                let what = format!("this pattern does not take {}", t.describe());
                return self.error("wrong-type", p.span, what, "this pattern");
            }
        })
    }

    pub fn pipe(
        &mut self,
        env: &Env<'a>,
        input: &'a Expr,
        stage: &'a Expr,
        span: Span,
    ) -> El<Val<'a>> {
        let first = self.expr(env, input)?;
        match &stage.kind {
            ExprKind::Call { callee, args } => {
                let f = self.expr(env, callee)?;
                self.apply(env, f, Some((first, input.span)), args, callee.span, span)
            }
            _ => {
                let f = self.expr(env, stage)?;
                self.apply(env, f, Some((first, input.span)), &[], stage.span, span)
            }
        }
    }

    /// Statements of a function body, then its value. `let`s of host values become locals of the
    /// host function being compiled.
    pub fn block(&mut self, env: &Env<'a>, block: &'a ast::Block) -> El<Val<'a>> {
        let mut env = env.clone();
        let mut lets: Vec<(usize, host::Expr)> = vec![];
        for stmt in &block.stmts {
            match &stmt.kind {
                ast::StmtKind::Bind(bind) => {
                    let v = self.expr(&env, &bind.value)?;
                    let v = match v {
                        Val::Host(e, t)
                            if self.host_slots > 0 && !matches!(e, host::Expr::Local(_)) =>
                        {
                            let slot = self.host_slots;
                            self.host_slots += 1;
                            lets.push((slot, e));
                            Val::Host(host::Expr::Local(slot), t)
                        }
                        v => v,
                    };
                    self.bind_names(&mut env, bind, v)?;
                }
                ast::StmtKind::Expr(e) => {
                    self.expr(&env, e)?;
                }
                _ => {
                    return self.error(
                        "misplaced",
                        stmt.span,
                        "only `let` lines may stand in a function",
                        "not allowed here",
                    );
                }
            }
        }
        let Some(value) = &block.value else {
            return self.error(
                "misplaced",
                block.span,
                "this block has no value",
                "its last line must be an expression",
            );
        };
        let v = self.expr(&env, value)?;
        if lets.is_empty() {
            return Ok(v);
        }
        let (mut e, t) = self.host(&v, value.span)?;
        for (slot, value) in lets.into_iter().rev() {
            e = host::Expr::Let { slot, value: Box::new(value), body: Box::new(e) };
        }
        Ok(Val::Host(e, t))
    }

    /// Binds the names of `x = v` or `a, b = v`.
    pub fn bind_names(&mut self, env: &mut Env<'a>, bind: &'a ast::Bind, v: Val<'a>) -> El<()> {
        match (&bind.names[..], v) {
            ([one], v) => {
                let v = match &bind.ty {
                    Some(ty) => self.declared_value(env, v, ty, bind.value.span, &one.text)?,
                    None => v,
                };
                env.bind(&one.text, v);
            }
            (names, Val::Tuple(vals)) if names.len() == vals.len() => {
                for (n, v) in names.iter().zip(vals) {
                    env.bind(&n.text, v);
                }
            }
            (names, v) => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    bind.value.span,
                    format!("{} names cannot take {kind}", names.len()),
                    format!("this is {kind}"),
                );
            }
        }
        Ok(())
    }

    /// A value against the type that is written beside its name. It keeps its unit.
    pub fn declared_value(
        &mut self,
        env: &Env<'a>,
        v: Val<'a>,
        ty: &'a ast::Type,
        span: Span,
        what: &str,
    ) -> El<Val<'a>> {
        let unit = match &v {
            Val::Const(_, u) => Some(u.clone()),
            _ => None,
        };
        let mut dims = crate::types::Dims::new();
        match (self.coerce(env, &mut dims, env.module, v, ty, span, what)?, unit) {
            (Val::Const(x, _), Some(u)) => Ok(Val::Const(x, u)),
            (v, _) => Ok(v),
        }
    }

    /// `for l in layers carrying x { .. }`: a scan over the layers of a model.
    pub fn for_(&mut self, env: &Env<'a>, f: &'a ast::For, span: Span) -> El<Val<'a>> {
        let over = self.expr(env, &f.over)?;
        let Val::Layers(layers) = over else {
            let kind = over.kind();
            return self.error(
                "wrong-type",
                f.over.span,
                format!("`for` runs over the layers of a model, not {kind}"),
                format!("this is {kind}"),
            );
        };
        let mut starts = vec![];
        for c in &f.carrying {
            let v = match &c.start {
                Some(e) => self.expr(env, e)?,
                None => self.name(env, &c.name.text, c.name.span)?,
            };
            starts.push(self.tensor(&v, c.name.span)?.id);
        }
        for run in &layers.runs {
            starts = self.turns(env, f, run, &starts, span)?;
        }
        let mut vals: Vec<Val<'a>> = starts.into_iter().map(|o| self.made(o, None)).collect();
        Ok(if vals.len() == 1 { vals.remove(0) } else { Val::Tuple(vals) })
    }

    /// The scan of one run: its body is that of the loop, once for each layer of a turn.
    fn turns(
        &mut self,
        env: &Env<'a>,
        f: &'a ast::For,
        run: &Run<'a>,
        starts: &[ValueId],
        span: Span,
    ) -> El<Vec<ValueId>> {
        let b = self.builder(span)?;
        let params: Vec<_> = starts
            .iter()
            .map(|s| {
                let t = b.graph.ty(*s).clone();
                b.graph.fresh(t)
            })
            .collect();
        b.blocks.push(nrl_ir::Block { params: params.clone(), ..Default::default() });
        let mut carried = Ok(params);
        for layer in &run.layers {
            carried = carried.and_then(|c| self.turn(env, f, layer, &c));
        }
        let b = self.builder(span)?;
        let Some(mut body) = b.blocks.pop() else { return Err(Stop) };
        body.results = carried?;
        let scan = nrl_ir::op::Scan {
            group: run.group.clone(),
            first: 0,
            count: run.turns,
            reverse: false,
            carries: starts.len(),
            body,
        };
        let b = self.builder(span)?;
        match b.push(Op::Scan { scan: Box::new(scan) }, starts) {
            Ok(o) => Ok(o),
            Err(e) => self.shape_error(e, &[span], span),
        }
    }

    /// The body of a loop for one layer: what it carries on.
    fn turn(
        &mut self,
        env: &Env<'a>,
        f: &'a ast::For,
        layer: &Rc<Layer<'a>>,
        carried: &[ValueId],
    ) -> El<Vec<ValueId>> {
        let mut inner = env.clone();
        inner.bind(&f.var.text, Val::Layer(layer.clone()));
        for (c, p) in f.carrying.iter().zip(carried) {
            inner.bind(&c.name.text, self.made(*p, None));
        }
        let vals = match self.block(&inner, &f.body)? {
            Val::Tuple(vals) => vals,
            v => vec![v],
        };
        let results =
            vals.iter().map(|v| Ok(self.tensor(v, f.body.span)?.id)).collect::<El<Vec<_>>>()?;
        let b = self.builder(f.body.span)?;
        let fits = results.len() == carried.len()
            && results.iter().zip(carried).all(|(r, s)| {
                let (r, s) = (b.graph.dims_of(*r), b.graph.dims_of(*s));
                r.len() == s.len() && r.iter().all(|d| s.contains(d))
            });
        if fits {
            return Ok(results);
        }
        let show = |vs: &[ValueId]| {
            vs.iter()
                .map(|v| nrl_ir::infer::show_dims(&b.graph, b.graph.dims_of(*v)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (got, want) = (show(&results), show(carried));
        self.fail(
            Diagnostic::error(
                "dim-mismatch",
                format!("the loop carries {want} but its body ends with {got}"),
            )
            .label(f.body.value.as_ref().map_or(f.body.span, |v| v.span), got)
            .label(f.var.span, format!("carried: {want}")),
        )
    }
}

/// Do the arms take both `none` and `some x`?
fn covers_maybe(arms: &[ast::Arm]) -> bool {
    let none = |a: &ast::Arm| matches!(a.pattern.kind, ast::PatternKind::None);
    let some = |a: &ast::Arm| match &a.pattern.kind {
        ast::PatternKind::Some(p) => {
            matches!(p.kind, ast::PatternKind::Any | ast::PatternKind::Name(_))
        }
        _ => false,
    };
    arms.iter().any(none) && arms.iter().any(some)
}
