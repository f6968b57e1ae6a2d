//! Expressions: evaluation of what is known, nodes for what is not.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::host::{self, Builtin, HostType, Value};
use nrl_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use nrl_syntax::ast::{self, Expr, ExprKind, ItemKind};

use crate::elab::{El, Elab, Stop};
use crate::units::Unit;
use crate::value::{Closure, Env, Val};

impl<'a> Elab<'a, '_> {
    /// The value of an expression.
    pub fn expr(&mut self, env: &Env<'a>, e: &'a Expr) -> El<Val<'a>> {
        self.count_work(e.span)?;
        match &e.kind {
            ExprKind::Int(i) => Ok(Val::num(*i as f64)),
            ExprKind::Float(x) => Ok(Val::num(*x)),
            ExprKind::Quantity(q) => self.quantity(q, e.span),
            ExprKind::Text(s) => Ok(Val::text(s)),
            ExprKind::Bool(b) => Ok(Val::bool(*b)),
            ExprKind::None => Ok(Val::none()),
            ExprKind::Some(x) => self.expr(env, x),
            ExprKind::Name(n) => self.name(env, n, e.span),
            ExprKind::List(items) => {
                let vals =
                    items.iter().map(|i| self.expr(env, i)).collect::<Result<Vec<_>, _>>()?;
                Ok(pack_list(vals))
            }
            ExprKind::Tuple(items) => {
                Ok(Val::Tuple(items.iter().map(|i| self.expr(env, i)).collect::<Result<_, _>>()?))
            }
            ExprKind::Record(fields) => self.record(env, fields),
            ExprKind::Call { callee, args } => self.call_expr(env, callee, args, e.span),
            ExprKind::Field { base, name } => {
                let base_val = self.expr(env, base)?;
                self.field(base_val, name, e.span)
            }
            ExprKind::Index { base, items } => self.index(env, base, items, e.span),
            ExprKind::Unary { op, operand } => {
                let x = self.expr(env, operand)?;
                self.unary(*op, x, e.span)
            }
            ExprKind::Binary { op, lhs, rhs, op_span } => {
                self.binary_expr(env, *op, lhs, rhs, *op_span, e.span)
            }
            ExprKind::Range { start, end, .. } => {
                self.range(env, start.as_deref(), end.as_deref(), e.span)
            }
            ExprKind::If { cond, then, otherwise } => {
                self.if_(env, cond, then, otherwise.as_deref(), e.span)
            }
            ExprKind::Match { value, arms } => self.match_(env, value, arms),
            ExprKind::Pipe { input, stage } => self.pipe(env, input, stage, e.span),
            ExprKind::From { base, source } => {
                let (b, s) = (self.expr(env, base)?, self.expr(env, source)?);
                self.intrinsic_vals("from", vec![(b, base.span), (s, source.span)], e.span)
            }
            ExprKind::With { base, args } => {
                let b = self.expr(env, base)?;
                self.with_settings(env, b, args, e.span)
            }
            ExprKind::For(f) => self.for_(env, f, e.span),
            ExprKind::Lambda { params, body } => {
                Ok(Val::Closure(std::rc::Rc::new(Closure { params, body, env: env.clone() })))
            }
            ExprKind::Block(b) => self.block(env, b),
            ExprKind::Rest => Ok(Val::Rest),
            ExprKind::Of { part, whole } => match (&part.kind, whole.as_name()) {
                (ExprKind::Rest, Some("context")) => Ok(Val::Rest),
                _ => self.error(
                    "not-supported",
                    e.span,
                    "a share `of` something is not usable here",
                    "this part",
                ),
            },
            ExprKind::Scan(_) => self.error(
                "not-supported",
                e.span,
                "`scan` over tokens does not run yet",
                "this scan",
            ),
            ExprKind::Collect(_) => {
                self.error("not-supported", e.span, "`collect` does not run yet", "this loop")
            }
        }
    }

    fn quantity(&mut self, q: &ast::Quantity, span: Span) -> El<Val<'a>> {
        match Unit::read(&q.unit) {
            Ok((unit, scale)) => Ok(Val::Const(Value::Num(q.value * scale), unit)),
            Err(name) => {
                let help =
                    nearest(&name, Unit::spellings()).map(|n| format!("did you mean `{n}`?"));
                self.fail(
                    Diagnostic::error("unknown-unit", format!("`{name}` is not a unit"))
                        .label(span, "this quantity")
                        .help_opt(help),
                )
            }
        }
    }

    fn record(&mut self, env: &Env<'a>, fields: &'a [ast::RecordValue]) -> El<Val<'a>> {
        let mut out: IndexMap<String, Val<'a>> = IndexMap::new();
        for f in fields {
            let v = self.expr(env, &f.value)?;
            if out.insert(f.name.text.clone(), v).is_some() {
                return self.error(
                    "duplicate-name",
                    f.name.span,
                    format!("field `{}` is given twice", f.name.text),
                    "second value",
                );
            }
        }
        Ok(Val::Record(out))
    }

    fn range(
        &mut self,
        env: &Env<'a>,
        start: Option<&'a Expr>,
        end: Option<&'a Expr>,
        span: Span,
    ) -> El<Val<'a>> {
        let mut bound = |e: Option<&'a Expr>, open: f64| match e {
            Some(e) => {
                let v = self.expr(env, e)?;
                self.number(&v, e.span, "a bound of a range")
            }
            None => Ok(open),
        };
        let (low, high) = (bound(start, f64::NEG_INFINITY)?, bound(end, f64::INFINITY)?);
        let _ = span;
        Ok(Val::Range(low, high))
    }

    /// A plain number known now; dims count as their size.
    pub fn number(&mut self, v: &Val<'a>, span: Span, what: &str) -> El<f64> {
        match v {
            Val::Const(Value::Num(x), _) => Ok(*x),
            Val::Dim(d) => match self.builders.last().and_then(|b| b.graph.dims.size(*d)) {
                Some(n) => Ok(n as f64),
                None => self.error(
                    "wrong-type",
                    span,
                    format!("{what} must be known before the run"),
                    "a dim whose size is known at run time",
                ),
            },
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                self.error(
                    "wrong-type",
                    span,
                    format!("{what} must be a number, not {kind}"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    /// A whole number known now.
    pub fn whole(&mut self, v: &Val<'a>, span: Span, what: &str) -> El<usize> {
        let x = self.number(v, span, what)?;
        if x.fract() != 0.0 || !(0.0..9.0e15).contains(&x) {
            return self.error(
                "wrong-type",
                span,
                format!("{what} must be a whole number, not {x}"),
                "this value",
            );
        }
        Ok(x as usize)
    }

    /// A text known now.
    pub fn text_of(&mut self, v: &Val<'a>, span: Span, what: &str) -> El<String> {
        match v {
            Val::Const(Value::Text(s), _) => Ok(s.to_string()),
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                self.error(
                    "wrong-type",
                    span,
                    format!("{what} must be text, not {kind}"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    fn field(&mut self, base: Val<'a>, name: &ast::Name, span: Span) -> El<Val<'a>> {
        let key = name.text.as_str();
        match &base {
            Val::Poison => Err(Stop),
            Val::Const(Value::None, _) => Ok(Val::none()),
            Val::Const(Value::Record(r), _) => {
                Ok(r.get(key).map_or(Val::none(), |v| Val::constant(v.clone())))
            }
            Val::Record(r) => match r.get(key) {
                Some(v) => Ok(v.clone()),
                None => {
                    let help = nearest(key, r.keys().map(String::as_str))
                        .map(|n| format!("did you mean `{n}`?"));
                    self.fail(
                        Diagnostic::error("unknown-name", format!("there is no field `{key}`"))
                            .label(name.span, "not found")
                            .help_opt(help),
                    )
                }
            },
            Val::Range(low, _) if key == "low" => Ok(Val::num(*low)),
            Val::Range(_, high) if key == "high" => Ok(Val::num(*high)),
            Val::Module(m) => match self.modules.get(*m).names.get(key).copied() {
                Some(crate::modules::Global::Item(m, i)) => self.item(m, i),
                Some(crate::modules::Global::Module(m)) => Ok(Val::Module(m)),
                None => {
                    let module = self.modules.get(*m);
                    let help = nearest(key, module.names.keys().map(String::as_str))
                        .map(|n| format!("did you mean `{n}`?"));
                    let text = format!("there is no `{key}` in {}", module.name);
                    self.fail(
                        Diagnostic::error("unknown-name", text)
                            .label(name.span, "not found")
                            .help_opt(help),
                    )
                }
            },
            Val::Layer(l) => match l.params.get(key) {
                Some(Some(p)) => Ok(Val::Param(*p)),
                Some(None) => self.error(
                    "unknown-name",
                    name.span,
                    format!("`{key}` does not exist for this model's configuration"),
                    "its `if` is false",
                ),
                None => {
                    let help = nearest(key, l.params.keys().map(String::as_str))
                        .map(|n| format!("did you mean `{n}`?"));
                    self.fail(
                        Diagnostic::error(
                            "unknown-name",
                            format!("`{}` has no parameter `{key}`", l.name),
                        )
                        .label(name.span, "not found")
                        .help_opt(help),
                    )
                }
            },
            Val::Host(e, t) => self.host_field(e.clone(), t, name),
            Val::Report(binding) => Ok(Val::Metric(format!("{binding}.{key}"))),
            Val::Samples(s) => self.samples_field(&s.clone(), name),
            Val::Item(_, item) if matches!(item.kind, ItemKind::Enum(_)) => {
                self.variant(item, key, name.span)
            }
            _ => match crate::intrinsic::find(key) {
                Some(i) if i.method => Ok(Val::Method(Box::new(base), i)),
                _ => {
                    let kind = base.kind();
                    let help = nearest(key, crate::intrinsic::methods())
                        .map(|n| format!("did you mean `{n}`?"));
                    self.fail(
                        Diagnostic::error("unknown-name", format!("{kind} has no `{key}`"))
                            .label(name.span, "not found")
                            .label(span, format!("this is {kind}"))
                            .help_opt(help),
                    )
                }
            },
        }
    }

    /// Fields of the sample record of a reward; rows keep any field.
    fn host_field(&mut self, e: host::Expr, t: &HostType, name: &ast::Name) -> El<Val<'a>> {
        let key = name.text.as_str();
        let of_sample =
            |t| Ok(Val::Host(host::Expr::Field { of: Box::new(e.clone()), name: key.into() }, t));
        match (t, key) {
            (HostType::Any, _) => Ok(Val::Host(
                host::Expr::Call {
                    f: Builtin::Get,
                    args: vec![e, host::Expr::Const(Value::text(key))],
                },
                HostType::Any,
            )),
            (HostType::Record, "prompt" | "completion") => of_sample(HostType::Text),
            (HostType::Record, "answer") => of_sample(HostType::maybe(HostType::Text)),
            (HostType::Record, "tokens") => of_sample(HostType::Num),
            (HostType::Record, "finished") => of_sample(HostType::Bool),
            (HostType::Record, "row") => of_sample(HostType::Any),
            (HostType::Record, _) => {
                let known = ["prompt", "completion", "answer", "tokens", "finished", "row"];
                let help = nearest(key, known).map_or_else(
                    || {
                        format!(
                            "a sample has {}; fields of the data row are in `row`",
                            known.join(", ")
                        )
                    },
                    |n| format!("did you mean `{n}`?"),
                );
                self.fail(
                    Diagnostic::error("unknown-name", format!("a sample has no `{key}`"))
                        .label(name.span, "not found")
                        .help(help),
                )
            }
            _ => {
                let kind = t.describe();
                self.error(
                    "unknown-name",
                    name.span,
                    format!("a {kind} has no `{key}`"),
                    "not found",
                )
            }
        }
    }

    fn variant(&mut self, item: &'a ast::Item, key: &str, span: Span) -> El<Val<'a>> {
        let ItemKind::Enum(e) = &item.kind else { return Err(Stop) };
        if e.variants.iter().any(|v| v.name.text == key) {
            return Ok(Val::Variant { of: item, name: key.into() });
        }
        let known: Vec<&str> = e.variants.iter().map(|v| v.name.text.as_str()).collect();
        let help = nearest(key, known.iter().copied()).map_or_else(
            || format!("one of {}", known.join(", ")),
            |n| format!("did you mean `{n}`?"),
        );
        self.fail(
            Diagnostic::error("unknown-name", format!("`{}` has no `{key}`", e.name.text))
                .label(span, "not one of its variants")
                .help(help),
        )
    }

    /// An expression where an enum is expected: a bare variant name may stand for itself.
    pub fn expr_for_enum(
        &mut self,
        env: &Env<'a>,
        e: &'a Expr,
        item: &'a ast::Item,
    ) -> El<Val<'a>> {
        if let (Some(name), ItemKind::Enum(en)) = (e.as_name(), &item.kind) {
            let variant = en.variants.iter().any(|v| v.name.text == name);
            let bound = env.get(name).is_some();
            if !bound && (variant || self.modules.find(env.module, name).is_none()) {
                return self.variant(item, name, e.span);
            }
        }
        self.expr(env, e)
    }

    fn unary(&mut self, op: ast::UnaryOp, x: Val<'a>, span: Span) -> El<Val<'a>> {
        match (op, &x) {
            (ast::UnaryOp::Neg, Val::Const(Value::Num(n), u)) => {
                Ok(Val::Const(Value::Num(-n), u.clone()))
            }
            (ast::UnaryOp::Not, Val::Const(Value::Bool(b), _)) => Ok(Val::bool(!b)),
            (ast::UnaryOp::Neg, Val::Host(..)) => {
                self.host_call(Builtin::Neg, vec![(x, span)], span)
            }
            (ast::UnaryOp::Not, Val::Host(..)) => {
                self.host_call(Builtin::Not, vec![(x, span)], span)
            }
            (ast::UnaryOp::Neg, Val::Loss(l)) => {
                let l = *l;
                let v = self.tensor_op(Op::Unary { op: UnaryOp::Neg }, &[l], &[span], span)?;
                Ok(Val::Loss(v))
            }
            (op, _) if self.is_tensor(&x) => {
                let t = self.tensor(&x, span)?;
                let op = if op == ast::UnaryOp::Neg { UnaryOp::Neg } else { UnaryOp::Not };
                let id = self.tensor_op(Op::Unary { op }, &[t.id], &[span], span)?;
                Ok(self.made(id, t.valid))
            }
            _ => {
                let kind = x.kind();
                self.error(
                    "wrong-type",
                    span,
                    format!("{kind} has no negative"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    fn binary_expr(
        &mut self,
        env: &Env<'a>,
        op: ast::BinaryOp,
        lhs: &'a Expr,
        rhs: &'a Expr,
        op_span: Span,
        span: Span,
    ) -> El<Val<'a>> {
        use ast::BinaryOp as B;
        if op == B::Contract {
            let (a, b) = (self.expr(env, lhs), self.expr(env, rhs));
            return self.contract(a?, b?, lhs.span, rhs.span, span);
        }
        let a = self.expr(env, lhs);
        if let (B::Eq | B::Ne, Ok(Val::Variant { of, name })) = (op, &a) {
            let (of, name) = (*of, name.clone());
            let b = self.expr_for_enum(env, rhs, of)?;
            let same = matches!(&b, Val::Variant { name: n, .. } if *n == name);
            return Ok(Val::bool(same == (op == B::Eq)));
        }
        let b = self.expr(env, rhs);
        let (a, b) = (a?, b?);
        self.binary(op, a, b, (lhs.span, rhs.span, op_span, span))
    }

    /// `a op b` of two values. `spans` are those of a, b, the operator and the whole.
    pub fn binary(
        &mut self,
        op: ast::BinaryOp,
        a: Val<'a>,
        b: Val<'a>,
        spans: (Span, Span, Span, Span),
    ) -> El<Val<'a>> {
        use ast::BinaryOp as B;
        let (sa, sb, so, span) = spans;
        if matches!(a, Val::Poison) || matches!(b, Val::Poison) {
            return Err(Stop);
        }
        if matches!(a, Val::Loss(_)) || matches!(b, Val::Loss(_)) {
            return self.loss_arithmetic(op, a, b, spans);
        }
        if let (Val::Plan(x), Val::Plan(y), B::Mul) = (&a, &b, op) {
            return Ok(Val::Plan(x.clone().times(y.clone())));
        }
        if self.is_tensor(&a) || self.is_tensor(&b) {
            return self.tensor_binary(op, &a, &b, spans);
        }
        let a = self.sized(a);
        let b = self.sized(b);
        if let (Val::Const(Value::Num(x), u), Val::Const(Value::Num(y), v)) = (&a, &b) {
            return self.arithmetic(op, (*x, u), (*y, v), spans);
        }
        if op == B::Add && self.is_textual(&a) && self.is_textual(&b) {
            return self.host_call(Builtin::Concat, vec![(a, sa), (b, sb)], span);
        }
        let args = vec![(a, sa), (b, sb)];
        let swap = |v: Vec<(Val<'a>, Span)>| v.into_iter().rev().collect::<Vec<_>>();
        let not = |me: &mut Self, v: El<Val<'a>>| -> El<Val<'a>> {
            let v = v?;
            me.host_call(Builtin::Not, vec![(v, span)], span)
        };
        match op {
            B::Add => self.host_call(Builtin::Add, args, span),
            B::Sub => self.host_call(Builtin::Sub, args, span),
            B::Mul => self.host_call(Builtin::Mul, args, span),
            B::Div => self.host_call(Builtin::Div, args, span),
            B::FloorDiv => {
                let q = self.host_call(Builtin::Div, args, span)?;
                self.host_call(Builtin::Floor, vec![(q, span)], span)
            }
            B::Rem => self.host_call(Builtin::Mod, args, span),
            B::Pow => self.host_call(Builtin::Pow, args, span),
            B::Eq => self.host_call(Builtin::Eq, args, span),
            B::Ne => {
                let v = self.host_call(Builtin::Eq, args, span);
                not(self, v)
            }
            B::Lt => self.host_call(Builtin::Lt, args, span),
            B::Le => self.host_call(Builtin::Le, args, span),
            B::Gt => self.host_call(Builtin::Lt, swap(args), span),
            B::Ge => self.host_call(Builtin::Le, swap(args), span),
            B::And => self.host_call(Builtin::And, args, span),
            B::Or => self.host_call(Builtin::Or, args, span),
            B::To | B::On | B::In | B::Contract => self.error(
                "wrong-type",
                so,
                format!("`{}` does not combine these", op.text()),
                "this operator",
            ),
        }
    }

    /// A dim used as a number is its size.
    fn sized(&self, v: Val<'a>) -> Val<'a> {
        match v {
            Val::Dim(d) => match self.builders.last().and_then(|b| b.graph.dims.size(d)) {
                Some(n) => Val::num(n as f64),
                None => v,
            },
            v => v,
        }
    }

    fn is_textual(&self, v: &Val<'a>) -> bool {
        matches!(v, Val::Const(Value::Text(_), _) | Val::Host(_, HostType::Text))
    }

    fn arithmetic(
        &mut self,
        op: ast::BinaryOp,
        (x, u): (f64, &Unit),
        (y, v): (f64, &Unit),
        spans: (Span, Span, Span, Span),
    ) -> El<Val<'a>> {
        use ast::BinaryOp as B;
        let same =
            matches!(op, B::Add | B::Sub | B::Eq | B::Ne | B::Lt | B::Le | B::Gt | B::Ge | B::Rem);
        if same && u != v {
            return self.fail(
                Diagnostic::error("unit-mismatch", format!("`{}` of {u} and {v}", op.text()))
                    .label(spans.0, u.to_string())
                    .label(spans.1, v.to_string())
                    .help("give both the same unit, or multiply by the ratio of the two, such as `16 samples/prompt`"),
            );
        }
        let num = |x: f64, u: Unit| Ok(Val::Const(Value::Num(x), u));
        match op {
            B::Add => num(x + y, u.clone()),
            B::Sub => num(x - y, u.clone()),
            B::Mul => num(x * y, u.times(v)),
            B::Div | B::FloorDiv if y == 0.0 => {
                self.error("wrong-type", spans.1, "division by zero", "this is 0")
            }
            B::Div => num(x / y, u.times(&v.inverse())),
            B::FloorDiv => num((x / y).floor(), u.times(&v.inverse())),
            B::Rem => num(x - y * (x / y).floor(), u.clone()),
            B::Pow if u.is_none() && v.is_none() => num(x.powf(y), Unit::none()),
            B::Eq => Ok(Val::bool(x == y)),
            B::Ne => Ok(Val::bool(x != y)),
            B::Lt => Ok(Val::bool(x < y)),
            B::Le => Ok(Val::bool(x <= y)),
            B::Gt => Ok(Val::bool(x > y)),
            B::Ge => Ok(Val::bool(x >= y)),
            _ => self.error(
                "wrong-type",
                spans.2,
                format!("`{}` does not combine numbers", op.text()),
                "this operator",
            ),
        }
    }

    fn loss_arithmetic(
        &mut self,
        op: ast::BinaryOp,
        a: Val<'a>,
        b: Val<'a>,
        (sa, sb, so, span): (Span, Span, Span, Span),
    ) -> El<Val<'a>> {
        use ast::BinaryOp as B;
        let node = |op| Op::Binary { op };
        match (op, &a, &b) {
            (B::Add | B::Sub, Val::Loss(x), Val::Loss(y)) => {
                let op = if op == B::Add { BinaryOp::Add } else { BinaryOp::Sub };
                Ok(Val::Loss(self.tensor_op(node(op), &[*x, *y], &[sa, sb], span)?))
            }
            (B::Mul, Val::Const(Value::Num(_), u), Val::Loss(y)) if u.is_none() => {
                let x = self.tensor(&a, sa)?.id;
                Ok(Val::Loss(self.tensor_op(node(BinaryOp::Mul), &[x, *y], &[sa, sb], span)?))
            }
            (B::Mul | B::Div, Val::Loss(x), Val::Const(Value::Num(_), u)) if u.is_none() => {
                let op = if op == B::Mul { BinaryOp::Mul } else { BinaryOp::Div };
                let y = self.tensor(&b, sb)?.id;
                Ok(Val::Loss(self.tensor_op(node(op), &[*x, y], &[sa, sb], span)?))
            }
            _ => {
                let (ka, kb) = (a.kind(), b.kind());
                self.fail(
                    Diagnostic::error("wrong-type", format!("`{}` of {ka} and {kb}", op.text()))
                        .label(so, "losses add, and are scaled by numbers")
                        .help("do the arithmetic inside `mean(.., over: tokens)`"),
                )
            }
        }
    }

    fn if_(
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

    fn match_(&mut self, env: &Env<'a>, value: &'a Expr, arms: &'a [ast::Arm]) -> El<Val<'a>> {
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
        for arm in arms {
            let mut inner = env.clone();
            let hit = match (&arm.pattern.kind, &v) {
                (ast::PatternKind::Any, _) => true,
                (ast::PatternKind::None, v) => v.is_none(),
                (ast::PatternKind::Name(n), Val::Variant { of, name }) => {
                    let of = *of;
                    self.variant(of, n, arm.pattern.span)?;
                    n == name
                }
                (ast::PatternKind::Name(n), v) => {
                    inner.bind(n, v.clone());
                    true
                }
                (ast::PatternKind::Value(p), Val::Const(v, _)) => {
                    let p = self.expr(env, p)?;
                    match &p {
                        Val::Const(p, _) => p == v,
                        Val::Range(low, high) => {
                            matches!(v, Value::Num(x) if (*low..=*high).contains(x))
                        }
                        _ => false,
                    }
                }
                (ast::PatternKind::Some(p), v) if !v.is_none() => {
                    if let ast::PatternKind::Name(n) = &p.kind {
                        inner.bind(n, v.clone());
                    }
                    true
                }
                _ => false,
            };
            if hit {
                return self.expr(&inner, &arm.value);
            }
        }
        let shown = match &v {
            Val::Const(v, _) => v.to_json().to_string(),
            Val::Variant { name, .. } => name.clone(),
            v => v.kind(),
        };
        self.no_match(&shown, value.span)
    }

    fn no_match<T>(&mut self, shown: &str, span: Span) -> El<T> {
        let what = format!("no arm of this `match` takes {shown}");
        self.error("no-match", span, what, format!("the value is {shown}"))
    }

    /// `match` of a value that the host knows: a chain of choices, the last arm taking the rest.
    fn match_host(
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
    fn pattern_host(
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

    fn pipe(&mut self, env: &Env<'a>, input: &'a Expr, stage: &'a Expr, span: Span) -> El<Val<'a>> {
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
            ([one], v) => env.bind(&one.text, v),
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

    /// `for l in layers carrying x { .. }`: a scan over the layers of a model.
    fn for_(&mut self, env: &Env<'a>, f: &'a ast::For, span: Span) -> El<Val<'a>> {
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
        let mut inner = env.clone();
        inner.bind(&f.var.text, Val::Layer(layers.clone()));
        let b = self.builder(span)?;
        let params: Vec<_> = starts
            .iter()
            .map(|s| {
                let t = b.graph.ty(*s).clone();
                b.graph.fresh(t)
            })
            .collect();
        b.blocks.push(nrl_ir::Block { params: params.clone(), ..Default::default() });
        for (c, p) in f.carrying.iter().zip(&params) {
            inner.bind(&c.name.text, self.made(*p, None));
        }
        let value = self.block(&inner, &f.body);
        let results = value.and_then(|v| {
            let vals = match v {
                Val::Tuple(vals) => vals,
                v => vec![v],
            };
            vals.iter().map(|v| Ok(self.tensor(v, f.body.span)?.id)).collect::<El<Vec<_>>>()
        });
        let b = self.builder(span)?;
        let Some(mut body) = b.blocks.pop() else { return Err(Stop) };
        let results = results?;
        let b = self.builder(span)?;
        let fits = results.len() == starts.len()
            && results.iter().zip(&starts).all(|(r, s)| {
                let (r, s) = (b.graph.dims_of(*r), b.graph.dims_of(*s));
                r.len() == s.len() && r.iter().all(|d| s.contains(d))
            });
        if !fits {
            let show = |vs: &[nrl_ir::ValueId]| {
                vs.iter()
                    .map(|v| nrl_ir::infer::show_dims(&b.graph, b.graph.dims_of(*v)))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let (got, want) = (show(&results), show(&starts));
            return self.fail(
                Diagnostic::error(
                    "dim-mismatch",
                    format!("the loop carries {want} but its body ends with {got}"),
                )
                .label(f.body.value.as_ref().map_or(f.body.span, |v| v.span), got)
                .label(f.var.span, format!("carried: {want}")),
            );
        }
        body.results = results;
        let scan = nrl_ir::op::Scan {
            group: layers.name.clone(),
            first: 0,
            count: layers.count,
            reverse: false,
            carries: starts.len(),
            body,
        };
        let outs = match b.push(Op::Scan { scan: Box::new(scan) }, &starts) {
            Ok(o) => o,
            Err(e) => return self.shape_error(e, &[span], span),
        };
        let mut vals: Vec<Val<'a>> = outs.into_iter().map(|o| self.made(o, None)).collect();
        Ok(if vals.len() == 1 { vals.remove(0) } else { Val::Tuple(vals) })
    }

    /// Reduces over named dims.
    pub fn reduce(
        &mut self,
        op: ReduceOp,
        x: nrl_ir::ValueId,
        over: Vec<nrl_ir::DimId>,
        span: Span,
    ) -> El<nrl_ir::ValueId> {
        if over.is_empty() {
            return Ok(x);
        }
        self.tensor_op(Op::Reduce { op, over }, &[x], &[span], span)
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

/// A list of constants is a constant.
pub fn pack_list(vals: Vec<Val<'_>>) -> Val<'_> {
    let plain: Option<Vec<Value>> = vals
        .iter()
        .map(|v| match v {
            Val::Const(c, u) if u.is_none() => Some(c.clone()),
            _ => None,
        })
        .collect();
    match plain {
        Some(items) => Val::constant(Value::list(items)),
        None => Val::List(vals),
    }
}
