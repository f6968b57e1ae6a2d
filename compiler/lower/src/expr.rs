//! Expressions: evaluation of what is known, nodes for what is not.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::host::{self, Builtin, HostType, Value};
use nrl_ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use nrl_syntax::ast::{self, Expr, ExprKind, ItemKind};

use crate::elab::{El, Elab, Stop};
use crate::modules::Global;
use crate::units::Unit;
use crate::value::{Closure, Env, Samples, Side, Val};

/// How many units of one's own may stand for one another.
pub const OWN_DEPTH: usize = 16;

/// `1 value`, `2 values`.
fn values(n: usize) -> String {
    if n == 1 { "1 value".into() } else { format!("{n} values") }
}

impl<'a> Elab<'a, '_> {
    /// The value of an expression.
    pub fn expr(&mut self, env: &Env<'a>, e: &'a Expr) -> El<Val<'a>> {
        let v = self.value(env, e)?;
        self.note_seen(e.span, &v);
        Ok(v)
    }

    fn value(&mut self, env: &Env<'a>, e: &'a Expr) -> El<Val<'a>> {
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
            ExprKind::Record(fields) => self.record(env, fields, e.span, None),
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
            ExprKind::Range { start, end, .. } => self.range(env, start.as_deref(), end.as_deref()),
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
            ExprKind::Scan(s) => self.scan_tokens(env, s, e.span),
            ExprKind::Collect(c) => self.collect(env, c, e.span),
        }
    }

    fn quantity(&mut self, q: &ast::Quantity, span: Span) -> El<Val<'a>> {
        let (unit, scale) = self.read_unit(&q.unit, span)?;
        Ok(Val::Const(Value::Num(q.value * scale), unit))
    }

    /// The unit of a type such as `samples/prompt`, which has no scale.
    pub fn unit_of(&mut self, factors: &[ast::UnitFactor], span: Span) -> El<Unit> {
        let (unit, scale) = self.read_unit(factors, span)?;
        if scale != 1.0 {
            let what = "the unit of a type is a whole one, such as `s` or `B`";
            return self.error("unknown-unit", span, what, "a multiple of it");
        }
        Ok(unit)
    }

    fn read_unit(&mut self, factors: &[ast::UnitFactor], span: Span) -> El<(Unit, f64)> {
        let home = self.modules.home(span, crate::modules::ModuleId(0));
        match Unit::read(factors, &|name| self.own_unit(home, name, OWN_DEPTH)) {
            Ok(found) => Ok(found),
            Err(name) => {
                let names = self.modules.get(home).names.keys().map(String::as_str);
                let mut units: Vec<&str> = Unit::spellings().collect();
                units.extend(names.filter(|n| self.own_unit(home, n, OWN_DEPTH).is_some()));
                let near = Unit::usual(&name).or_else(|| nearest(&name, units));
                let help = near.map_or_else(
                    || format!("a unit of your own is declared above the recipe: `unit {name}`"),
                    |n| format!("did you mean `{n}`?"),
                );
                self.fail(
                    Diagnostic::error("unknown-unit", format!("`{name}` is not a unit"))
                        .label(span, "this quantity")
                        .help(help),
                )
            }
        }
    }

    /// A unit that a file declares, or imports: in the singular or plural, whichever it is declared in.
    pub fn own_unit(
        &self,
        module: crate::modules::ModuleId,
        name: &str,
        depth: usize,
    ) -> Option<(Unit, f64)> {
        let (home, declared) = self.unit_item(module, name)?;
        let Some(ExprKind::Quantity(q)) = declared.of.as_ref().map(|e| &e.kind) else {
            return declared.of.is_none().then(|| (Unit::own(&declared.name.text), 1.0));
        };
        let depth = depth.checked_sub(1)?;
        let (unit, scale) = Unit::read(&q.unit, &|n| self.own_unit(home, n, depth)).ok()?;
        Some((unit, scale * q.value))
    }

    /// `{a: 1}`; the type of a declared record says what its fields are.
    pub fn record(
        &mut self,
        env: &Env<'a>,
        fields: &'a [ast::RecordValue],
        span: Span,
        of: Option<(crate::modules::ModuleId, &'a ast::Record)>,
    ) -> El<Val<'a>> {
        let mut out: IndexMap<String, Val<'a>> = IndexMap::new();
        for f in fields {
            let declared = of.and_then(|(m, r)| {
                r.fields.iter().find(|d| d.name.text == f.name.text).map(|d| (m, &d.ty))
            });
            let v = match declared {
                Some((m, ty)) => self.expr_for(env, &f.value, m, ty)?,
                None => self.expr(env, &f.value)?,
            };
            if out.insert(f.name.text.clone(), v).is_some() {
                let what = format!("field `{}` is given twice", f.name.text);
                let first = fields.iter().find(|g| g.name.text == f.name.text).unwrap_or(f);
                return self.fail(
                    Diagnostic::error("duplicate-name", what)
                        .label(f.name.span, "second value")
                        .label(first.name.span, "first value")
                        .help("keep one of them"),
                );
            }
        }
        let places = fields.iter().map(|f| (f.name.text.clone(), f.span)).collect();
        self.field_spans.insert(span, places);
        Ok(Val::Record(out))
    }

    fn range(
        &mut self,
        env: &Env<'a>,
        start: Option<&'a Expr>,
        end: Option<&'a Expr>,
    ) -> El<Val<'a>> {
        let mut bound = |e: Option<&'a Expr>, open: f64| match e {
            Some(e) => {
                let v = self.expr(env, e)?;
                if let Val::Const(_, u) = &v
                    && !u.is_none()
                {
                    let what = format!("a range is of plain numbers, not of {u}");
                    let d = Diagnostic::error("unit-mismatch", what);
                    return self.fail(d.label(e.span, format!("this is in {u}")));
                }
                self.number(&v, e.span, "a bound of a range")
            }
            None => Ok(open),
        };
        let (low, high) = (bound(start, f64::NEG_INFINITY)?, bound(end, f64::INFINITY)?);
        Ok(Val::Range(low, high))
    }

    /// A range that numbers are compared with; one the wrong way round holds none. A clip takes two bounds that are no such
    /// range.
    pub fn ascending(&mut self, (low, high): (f64, f64), span: Span) -> El<(f64, f64)> {
        if low <= high {
            return Ok((low, high));
        }
        let what = format!("no number is in {low}..{high}");
        let d = Diagnostic::error("out-of-range", what).label(span, "the wrong way round");
        self.fail(d.help(format!("write `{high}..{low}`")))
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
                    // Types begin with a capital, what can be called does not: a slip keeps to its kind.
                    let capital = |n: &str| n.starts_with(char::is_uppercase);
                    let all = || module.names.keys().map(String::as_str);
                    let alike = all().filter(|n| capital(n) == capital(key));
                    let help = nearest(key, alike)
                        .or_else(|| nearest(key, all()))
                        .map(|n| format!("did you mean `{n}`?"));
                    let text = format!("there is no `{key}` in {}", module.name);
                    self.fail(
                        Diagnostic::error("unknown-name", text)
                            .label(name.span, "not found")
                            .help_opt(help),
                    )
                }
            },
            Val::Layer(l) if key == "it" && l.it.is_some() => {
                Ok(l.it.clone().unwrap_or(Val::Poison))
            }
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
            Val::Pairs { binding } => {
                let side = match key {
                    "chosen" => Side::Chosen,
                    "rejected" => Side::Rejected,
                    _ => {
                        let d = Diagnostic::error("unknown-name", format!("pairs have no `{key}`"));
                        let known = ["chosen", "rejected"];
                        let help = nearest(key, known)
                            .map_or("they have chosen, rejected".into(), |n| {
                                format!("did you mean `{n}`?")
                            });
                        return self.fail(d.label(name.span, "not found").help(help));
                    }
                };
                let (binding, side) = (*binding, Some(side));
                Ok(Val::Samples(Samples { binding, drawing: None, side, reward: None }))
            }
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

    /// The declaration of a unit, and the file that it is in.
    pub fn unit_item(
        &self,
        module: crate::modules::ModuleId,
        name: &str,
    ) -> Option<(crate::modules::ModuleId, &'a ast::UnitDef)> {
        let one = name.strip_suffix('s').unwrap_or(name);
        let spellings = [name.to_string(), one.to_string(), format!("{name}s")];
        spellings.iter().find_map(|n| match self.modules.find(module, n)? {
            Global::Item(m, i) => match &self.modules.item(m, i).kind {
                ItemKind::Unit(u) => Some((m, u)),
                _ => None,
            },
            Global::Module(_) => None,
        })
    }

    /// A variant that stands alone.
    pub fn variant(&mut self, item: &'a ast::Item, key: &str, span: Span) -> El<Val<'a>> {
        let v = self.variant_named(item, key, span)?;
        if v.fields.is_empty() {
            return Ok(Val::Variant { of: item, name: key.into(), vals: vec![] });
        }
        let what = format!("`{key}` holds {}, and none is given", values(v.fields.len()));
        let d = Diagnostic::error("wrong-arguments", what).label(span, "nothing in it");
        let d = if self.is_std(v.span) { d } else { d.label(v.span, "declared here") };
        self.fail(d.help(format!("write `{}`", crate::cover::form(v, "..", &self.types_of(v)))))
    }

    /// `selective([mlp, norm])`: a variant with its values.
    pub fn variant_call(
        &mut self,
        env: &Env<'a>,
        item: &'a ast::Item,
        key: &ast::Name,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Val<'a>> {
        let v = self.variant_named(item, &key.text, key.span)?;
        if let Some(name) = args.iter().find_map(|a| a.name.as_ref()) {
            let what = format!("the values of `{}` have no names", key.text);
            let d = Diagnostic::error("wrong-arguments", what).label(name.span, "a name");
            return self.fail(d.help("give the value alone"));
        }
        if args.len() != v.fields.len() {
            let what = format!(
                "`{}` holds {}, and {} given",
                key.text,
                values(v.fields.len()),
                if args.len() == 1 { "1 is".into() } else { format!("{} are", args.len()) }
            );
            let d = Diagnostic::error("wrong-arguments", what).label(span, "here");
            let d = if self.is_std(v.span) { d } else { d.label(v.span, "declared here") };
            let form = crate::cover::form(v, "..", &self.types_of(v));
            return self.fail(d.help(format!("write `{form}`")));
        }
        let mut vals = vec![];
        for (arg, ty) in args.iter().zip(&v.fields) {
            let home = self.modules.home(ty.span, env.module);
            let given = self.expr_for(env, &arg.value, home, ty)?;
            let what = format!("{}(..)", key.text);
            let mut dims = crate::types::Dims::new();
            vals.push(self.coerce(env, &mut dims, home, given, ty, arg.value.span, &what)?);
        }
        Ok(Val::Variant { of: item, name: key.text.clone(), vals })
    }

    /// The types that a variant holds, as they are written.
    pub fn types_of(&self, v: &ast::Variant) -> Vec<String> {
        v.fields.iter().map(|t| self.sources.text(t.span).to_string()).collect()
    }

    /// The enum that is written before a dot.
    pub fn enum_before(&self, env: &Env<'a>, base: &Expr) -> Option<&'a ast::Item> {
        let (of, name) = match &base.kind {
            ExprKind::Name(n) => (None, n.as_str()),
            ExprKind::Field { base, name } => (Some(base.as_name()?), name.text.as_str()),
            _ => return None,
        };
        if env.get(of.unwrap_or(name)).is_some() {
            return None;
        }
        let home = self.modules.home(base.span, env.module);
        let found = match of {
            None => self.modules.find(home, name)?,
            Some(of) => match self.modules.find(home, of)? {
                Global::Module(m) => *self.modules.get(m).names.get(name)?,
                Global::Item(..) => return None,
            },
        };
        let Global::Item(m, i) = found else { return None };
        Some(self.modules.item(m, i)).filter(|i| matches!(i.kind, ItemKind::Enum(_)))
    }

    /// The variant of an enum that is called `key`.
    pub fn variant_named(
        &mut self,
        item: &'a ast::Item,
        key: &str,
        span: Span,
    ) -> El<&'a ast::Variant> {
        let ItemKind::Enum(e) = &item.kind else { return Err(Stop) };
        if let Some(v) = e.variants.iter().find(|v| v.name.text == key) {
            return Ok(v);
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
        if let (ExprKind::Call { callee, args }, ItemKind::Enum(en)) = (&e.kind, &item.kind)
            && let ExprKind::Name(name) = &callee.kind
            && env.get(name).is_none()
        {
            let variant = en.variants.iter().any(|v| v.name.text == *name);
            let home = self.modules.home(e.span, env.module);
            let other =
                self.modules.find(home, name).is_some() || crate::intrinsic::find(name).is_some();
            if variant || !other {
                let key = ast::Name { text: name.clone(), span: callee.span };
                return self.variant_call(env, item, &key, args, e.span);
            }
        }
        let name = if matches!(e.kind, ExprKind::None) { Some("none") } else { e.as_name() };
        if let (Some(name), ItemKind::Enum(en)) = (name, &item.kind) {
            let variant = en.variants.iter().any(|v| v.name.text == name);
            let bound = env.get(name).is_some();
            let home = self.modules.home(e.span, env.module);
            if !bound && (variant || self.modules.find(home, name).is_none()) {
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
        if let (B::Eq | B::Ne, Ok(Val::Variant { of, .. })) = (op, &a) {
            let of = *of;
            let b = self.expr_for_enum(env, rhs, of)?;
            let same = match &b {
                Val::Variant { .. } => {
                    let a = a?;
                    self.constants(&a, lhs.span)? == self.constants(&b, rhs.span)?
                }
                _ => false,
            };
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
        if op == B::On {
            return self.dist_on(&a, &b, (sa, sb));
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
            (B::Mul, Val::Const(Value::Num(n), u), Val::Loss(y)) if u.is_none() => {
                if *n == 0.0 {
                    self.no_effect(
                        span,
                        "this part of the loss is multiplied by 0",
                        "computed for nothing",
                        "remove it, and what only it needs, such as a reference model",
                    );
                }
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
