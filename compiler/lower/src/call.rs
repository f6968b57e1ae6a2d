//! Calls: functions of the language, closures, records, models, plans and intrinsics.
//!
//! A function is expanded where it is called, its parameters bound to values. Dim names in the
//! types of parameters (`w: f32[e]`) stand for whatever dims the arguments have, the same name for
//! the same dim.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::DimId;
use nrl_ir::host::{self, HostType, Value};
use nrl_ir::infer::show_dims;
use nrl_syntax::ast::{self, ItemKind, TypeKind};

use crate::elab::{El, Elab, Stop};
use crate::modules::{Global, ModuleId};
use crate::units::Unit;
use crate::value::{Env, StepShape, StepTensor, Val, Validity};

/// One evaluated argument.
pub type ArgVal<'a> = (Option<&'a ast::Name>, Val<'a>, Span);

impl<'a> Elab<'a, '_> {
    /// `callee(args)`.
    pub fn call_expr(
        &mut self,
        env: &Env<'a>,
        callee: &'a ast::Expr,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Val<'a>> {
        let f = self.expr(env, callee)?;
        self.apply(env, f, None, args, callee.span, span)
    }

    /// Applies `f` to written arguments, after a first one that is already a value.
    pub fn apply(
        &mut self,
        env: &Env<'a>,
        f: Val<'a>,
        first: Option<(Val<'a>, Span)>,
        args: &'a [ast::Arg],
        fs: Span,
        span: Span,
    ) -> El<Val<'a>> {
        if let Val::Intrinsic(i) = f {
            return self.intrinsic_call(env, i, first, args, span);
        }
        if let Val::Method(base, i) = f {
            return self.intrinsic_call(env, i, Some((*base, fs)), args, span);
        }
        // Arguments of an enum type may be bare variant names.
        let types: Vec<(&'a str, Option<&'a ast::Type>, ModuleId)> = match &f {
            Val::Item(m, item) => match &item.kind {
                ItemKind::Fn(d) => {
                    d.params.iter().map(|p| (p.name.text.as_str(), p.ty.as_ref(), *m)).collect()
                }
                ItemKind::Plan(d) => {
                    d.params.iter().map(|p| (p.name.text.as_str(), p.ty.as_ref(), *m)).collect()
                }
                _ => vec![],
            },
            _ => vec![],
        };
        let shift = usize::from(first.is_some());
        let mut vals: Vec<ArgVal<'a>> = first.into_iter().map(|(v, s)| (None, v, s)).collect();
        for (i, a) in args.iter().enumerate() {
            let slot = match &a.name {
                Some(n) => types.iter().find(|t| t.0 == n.text),
                None => types.get(i + shift),
            };
            let en = slot.and_then(|(_, ty, m)| self.enum_of(*m, ty.as_ref()?));
            let v = match en {
                Some(item) => self.expr_for_enum(env, &a.value, item)?,
                None => self.expr(env, &a.value)?,
            };
            vals.push((a.name.as_ref(), v, a.value.span));
        }
        self.apply_named(f, vals, fs, span)
    }

    /// Applies `f` to positional values.
    pub fn apply_vals(
        &mut self,
        f: Val<'a>,
        args: Vec<(Val<'a>, Span)>,
        fs: Span,
        span: Span,
    ) -> El<Val<'a>> {
        self.apply_named(f, args.into_iter().map(|(v, s)| (None, v, s)).collect(), fs, span)
    }

    /// Applies `f` to values, some by name.
    pub fn apply_named(
        &mut self,
        f: Val<'a>,
        args: Vec<ArgVal<'a>>,
        fs: Span,
        span: Span,
    ) -> El<Val<'a>> {
        match f {
            Val::Closure(c) => {
                if c.params.len() != args.len() {
                    return self.error(
                        "wrong-arguments",
                        span,
                        format!(
                            "this function takes {} arguments, got {}",
                            c.params.len(),
                            args.len()
                        ),
                        "this call",
                    );
                }
                let mut env = c.env.clone();
                for (p, (_, v, _)) in c.params.iter().zip(args) {
                    env.bind(&p.text, v);
                }
                let key = (env.module, String::new());
                self.expand(key, span, |me| me.expr(&env, c.body))
            }
            Val::Intrinsic(i) => {
                let named: Vec<_> =
                    args.iter().filter_map(|(n, _, s)| n.map(|n| (n.text.clone(), *s))).collect();
                if let Some((n, s)) = named.first() {
                    return self.error(
                        "wrong-arguments",
                        *s,
                        format!("`{}` takes `{n}` by position here", i.name),
                        "named",
                    );
                }
                self.intrinsic_vals(
                    i.name,
                    args.into_iter().map(|(_, v, s)| (v, s)).collect(),
                    span,
                )
            }
            Val::Item(m, item) => match &item.kind {
                ItemKind::Fn(d) => self.call_fn(m, d, args, fs, span),
                ItemKind::ExternFn(_) => self.map_reward(Val::Item(m, item), args, span),
                ItemKind::Record(_) => {
                    let [(_, Val::Record(fields), s)] = &args[..] else {
                        return self.error(
                            "wrong-arguments",
                            span,
                            "a record is made from one record value",
                            "write `Name({field: value})`",
                        );
                    };
                    self.make_record(m, item, fields.clone(), *s)
                }
                ItemKind::Model(_) => self.fresh_model(m, item, args, span),
                ItemKind::Plan(p) => {
                    let key = (m, p.name.text.clone());
                    self.expand(key, span, |me| me.plan_call(m, p, args, span))
                }
                _ => self.error("not-callable", fs, "this cannot be called", "not a function"),
            },
            Val::Model(_) => self.error(
                "not-callable",
                fs,
                "a model is not called; write `logprob(model, samples)`",
                "this is a model",
            ),
            Val::Poison => Err(Stop),
            f => {
                let kind = f.kind();
                self.error(
                    "not-callable",
                    fs,
                    format!("{kind} cannot be called"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    fn call_fn(
        &mut self,
        module: ModuleId,
        d: &'a ast::Fn,
        args: Vec<ArgVal<'a>>,
        fs: Span,
        span: Span,
    ) -> El<Val<'a>> {
        let takes_sample =
            d.params.first().and_then(|p| p.ty.as_ref()).is_some_and(|t| is_named(t, "Sample"));
        if takes_sample && matches!(args.first(), Some((_, Val::Samples(_), _))) {
            let item = self
                .modules
                .get(module)
                .file
                .items
                .iter()
                .find(|i| matches!(&i.kind, ItemKind::Fn(x) if std::ptr::eq(x, d)));
            let Some(item) = item else { return Err(Stop) };
            return self.map_reward(Val::Item(module, item), args, span);
        }
        let key = (module, d.name.text.clone());
        self.expand(key, span, |me| {
            let mut env = Env::new(module);
            let bound =
                me.bind_params(&mut env, module, &d.name.text, &d.params, args, fs, span)?;
            let v = me.block(&env, &d.body)?;
            match &d.result {
                Some(ty) => me.check_result(&bound, module, v, ty, d, span),
                None => Ok(v),
            }
        })
    }

    /// Binds arguments to parameters, by position then by name; fills defaults; checks types.
    pub fn bind_params(
        &mut self,
        env: &mut Env<'a>,
        module: ModuleId,
        name: &str,
        params: &'a [ast::Param],
        args: Vec<ArgVal<'a>>,
        fs: Span,
        span: Span,
    ) -> El<IndexMap<String, DimId>> {
        let mut slots: Vec<Option<(Val<'a>, Span)>> = params.iter().map(|_| None).collect();
        let mut next = 0;
        for (n, v, s) in args {
            let i = match n {
                None => {
                    next += 1;
                    next - 1
                }
                Some(n) => match params.iter().position(|p| p.name.text == n.text) {
                    Some(i) => i,
                    None => {
                        let known: Vec<&str> =
                            params.iter().map(|p| p.name.text.as_str()).collect();
                        let help = nearest(&n.text, known.iter().copied()).map_or_else(
                            || format!("it takes {}", known.join(", ")),
                            |k| format!("did you mean `{k}`?"),
                        );
                        return self.fail(
                            Diagnostic::error(
                                "unknown-name",
                                format!("`{name}` has no parameter `{}`", n.text),
                            )
                            .label(n.span, "not a parameter")
                            .help(help),
                        );
                    }
                },
            };
            if i >= slots.len() {
                return self.error(
                    "wrong-arguments",
                    s,
                    format!("`{name}` takes {} arguments", slots.len()),
                    "one too many",
                );
            }
            // An override of an argument given by position wins.
            if slots[i].is_some() && !self.is_override(s) {
                return self.error(
                    "wrong-arguments",
                    s,
                    format!("`{}` of `{name}` is given twice", params[i].name.text),
                    "second value",
                );
            }
            slots[i] = Some((v, s));
        }
        let mut dims: IndexMap<String, (DimId, Span)> = IndexMap::new();
        for (p, slot) in params.iter().zip(slots) {
            let (v, s) = match (slot, &p.default) {
                (Some(x), _) => x,
                (None, Some(e)) => {
                    let en = p.ty.as_ref().and_then(|t| self.enum_of(module, t));
                    let v = match en {
                        Some(item) => self.expr_for_enum(env, e, item)?,
                        None => self.expr(env, e)?,
                    };
                    (v, e.span)
                }
                (None, None) => {
                    return self.fail(
                        Diagnostic::error(
                            "wrong-arguments",
                            format!("`{name}` needs `{}`", p.name.text),
                        )
                        .label(if span == fs { fs } else { span }, "not given here")
                        .label(p.span, "declared here"),
                    );
                }
            };
            let v = match &p.ty {
                Some(ty) => self.coerce(env, &mut dims, module, v, ty, s, &p.name.text)?,
                None => v,
            };
            for (n, (d, _)) in &dims {
                if env.get(n).is_none() {
                    env.bind(n, Val::Dim(*d));
                }
            }
            env.bind(&p.name.text, v);
        }
        Ok(dims.into_iter().map(|(n, (d, _))| (n, d)).collect())
    }

    /// Checks `v` against a declared type; names of dims bind on first sight.
    fn coerce(
        &mut self,
        env: &Env<'a>,
        dims: &mut IndexMap<String, (DimId, Span)>,
        module: ModuleId,
        v: Val<'a>,
        ty: &'a ast::Type,
        span: Span,
        what: &str,
    ) -> El<Val<'a>> {
        let wrong = |me: &mut Self, v: &Val<'a>, want: &str| {
            let kind = v.kind();
            me.error(
                "wrong-type",
                span,
                format!("`{what}` must be {want}, not {kind}"),
                format!("this is {kind}"),
            )
        };
        match &ty.kind {
            TypeKind::Optional(inner) if v.is_none() => {
                let _ = inner;
                Ok(v)
            }
            TypeKind::Optional(inner) => self.coerce(env, dims, module, v, inner, span, what),
            TypeKind::Within { base, range } => {
                let v = self.coerce(env, dims, module, v, base, span, what)?;
                if let (Val::Const(Value::Num(x), _), Val::Range(low, high)) =
                    (&v, self.expr(env, range)?)
                    && !(low..=high).contains(x)
                {
                    return self.error(
                        "out-of-range",
                        span,
                        format!("`{what}` is {x}, outside {low}..{high}"),
                        "this value",
                    );
                }
                Ok(v)
            }
            TypeKind::Tensor { element, dims: want } => {
                if matches!(v, Val::Const(Value::Num(_), _)) && !want.is_empty() {
                    return wrong(self, &v, "a tensor");
                }
                let t = self.tensor(&v, span)?;
                let _ = element;
                self.match_dims(env, dims, want, t.id, span, what)?;
                Ok(Val::Tensor(t))
            }
            TypeKind::Name(path) => {
                let name = path.text();
                let ok = match (name.as_str(), &v) {
                    ("tensor", v) => {
                        self.is_tensor(v)
                            || matches!(
                                v,
                                Val::Const(Value::Num(_), _)
                                    | Val::Host(_, HostType::Num | HostType::Any)
                            )
                    }
                    ("f32" | "bf16", v) => {
                        self.is_tensor(v) || matches!(v, Val::Const(Value::Num(_), _))
                    }
                    ("int", Val::Const(Value::Num(x), u)) => x.fract() == 0.0 && u.is_none(),
                    ("float" | "number", Val::Const(Value::Num(_), u)) => u.is_none(),
                    ("int" | "float" | "number", Val::Dim(_)) => true,
                    ("int" | "float" | "number", Val::Host(_, t)) => t.fits(&HostType::Num),
                    ("float" | "number", v) if self.is_tensor(v) => true,
                    ("bool", Val::Const(Value::Bool(_), _)) => true,
                    ("bool", Val::Host(_, t)) => t.fits(&HostType::Bool),
                    ("text", Val::Const(Value::Text(_), _)) => true,
                    ("text", Val::Host(_, t)) => t.fits(&HostType::Text),
                    (
                        "record" | "Row",
                        Val::Record(_) | Val::Const(Value::Record(_), _) | Val::Host(..),
                    ) => true,
                    ("range", Val::Range(..)) => true,
                    ("Model", Val::Model(_)) => true,
                    ("Data", Val::Data(_)) => true,
                    ("Samples", Val::Samples(_)) => true,
                    ("Sample", Val::Host(_, HostType::Record | HostType::Any)) => true,
                    ("Schedule", Val::Closure(_) | Val::Const(Value::Num(_), _)) => true,
                    ("Optimizer", Val::Optimizer(_)) => true,
                    ("Generator", Val::Generator(..)) => true,
                    ("Cluster", Val::Cluster(_)) => true,
                    ("Plan", Val::Plan(_)) => true,
                    ("loss", Val::Loss(_)) => true,
                    (
                        "int" | "float" | "number" | "bool" | "text" | "record" | "Row" | "range"
                        | "Model" | "Data" | "Samples" | "Sample" | "Schedule" | "Optimizer"
                        | "Generator" | "Cluster" | "Plan" | "loss",
                        _,
                    ) => false,
                    (n, _) => return self.coerce_named(env, module, v, ty, n, span, what),
                };
                if ok { Ok(v) } else { wrong(self, &v, article(&name)) }
            }
            TypeKind::Apply { name, .. } if name.text == "list" => {
                let ok = matches!(
                    &v,
                    Val::List(_)
                        | Val::Const(Value::List(_), _)
                        | Val::Host(_, HostType::List(_) | HostType::Any)
                );
                if ok { Ok(v) } else { wrong(self, &v, "a list") }
            }
            TypeKind::Fn { .. } => match v {
                Val::Closure(_) | Val::Item(..) | Val::Intrinsic(_) => Ok(v),
                v => wrong(self, &v, "a function"),
            },
            TypeKind::Id(_)
            | TypeKind::Tuple(_)
            | TypeKind::Apply { .. }
            | TypeKind::AtMost { .. }
            | TypeKind::Pending { .. } => Ok(v),
        }
    }

    /// Units, enums and records by name.
    fn coerce_named(
        &mut self,
        env: &Env<'a>,
        module: ModuleId,
        v: Val<'a>,
        ty: &'a ast::Type,
        name: &str,
        span: Span,
        what: &str,
    ) -> El<Val<'a>> {
        if let Some(unit) = Unit::type_name(name) {
            return match v {
                // Inside the function it is a plain number of that unit.
                Val::Const(Value::Num(x), u) if u == unit => Ok(Val::num(x)),
                Val::Const(Value::Num(x), u) if u.is_none() => self.fail(
                    Diagnostic::error("unit-mismatch", format!("`{what}` needs a unit: {unit}"))
                        .label(span, "a plain number")
                        .help(format!("write `{x} {unit}`")),
                ),
                Val::Const(Value::Num(_), u) => self.fail(
                    Diagnostic::error(
                        "unit-mismatch",
                        format!("`{what}` is counted in {unit}, not in {u}"),
                    )
                    .label(span, format!("this is in {u}"))
                    .help(format!("write a number of {unit}")),
                ),
                v => {
                    let kind = v.kind();
                    self.error(
                        "wrong-type",
                        span,
                        format!("`{what}` must be a number of {unit}, not {kind}"),
                        format!("this is {kind}"),
                    )
                }
            };
        }
        if let Some(item) = self.enum_of(module, ty) {
            return match &v {
                Val::Variant { of, .. } if std::ptr::eq(*of, item) => Ok(v),
                _ => {
                    let ItemKind::Enum(e) = &item.kind else { return Err(Stop) };
                    let known: Vec<&str> =
                        e.variants.iter().map(|x| x.name.text.as_str()).collect();
                    let kind = v.kind();
                    self.fail(
                        Diagnostic::error(
                            "wrong-type",
                            format!("`{what}` must be one of {}, not {kind}", known.join(", ")),
                        )
                        .label(span, format!("this is {kind}")),
                    )
                }
            };
        }
        let head = name.split('.').next().unwrap_or(name);
        match self.modules.find(module, head) {
            Some(Global::Item(m, i)) => {
                let item = self.modules.item(m, i);
                match (&item.kind, v) {
                    (ItemKind::Record(_), Val::Record(fields)) => {
                        self.make_record(m, item, fields, span)
                    }
                    (ItemKind::Record(_), Val::Const(Value::Record(fields), _)) => {
                        let fields = fields
                            .iter()
                            .map(|(k, v)| (k.clone(), Val::constant(v.clone())))
                            .collect();
                        self.make_record(m, item, fields, span)
                    }
                    (_, v) => {
                        let kind = v.kind();
                        self.error(
                            "wrong-type",
                            span,
                            format!("`{what}` must be {name}, not {kind}"),
                            format!("this is {kind}"),
                        )
                    }
                }
            }
            _ => {
                let _ = env;
                self.error(
                    "unknown-name",
                    ty.span,
                    format!("there is no type `{name}`"),
                    "not found",
                )
            }
        }
    }

    /// Binds or checks the dims of a declared tensor type.
    fn match_dims(
        &mut self,
        env: &Env<'a>,
        bound: &mut IndexMap<String, (DimId, Span)>,
        want: &'a [ast::Layout],
        id: nrl_ir::ValueId,
        span: Span,
        what: &str,
    ) -> El<()> {
        let b = self.builder(span)?;
        let have = b.graph.dims_of(id).to_vec();
        let g = &b.graph;
        let names: Vec<&str> = want.iter().map(|l| l.dim.as_name().unwrap_or("?")).collect();
        let shown = show_dims(g, &have);
        let expected = format!("[{}]", names.join(", "));
        let level = |d: DimId| g.dims.owners(d).count();
        let mut ok = have.len() == want.len();
        let mut conflict: Option<Span> = None;
        let mut left = have.clone();
        if ok {
            for n in &names {
                // A name seen before, or one of the caller's model, is that dim.
                let known =
                    bound.get(*n).map(|(d, s)| (*d, Some(*s))).or_else(|| match env.get(n) {
                        Some(Val::Dim(d)) => Some((*d, None)),
                        _ => None,
                    });
                let at = match known {
                    Some((d, s)) => {
                        let at = left.iter().position(|x| *x == d);
                        if at.is_none() {
                            conflict = s;
                        }
                        at
                    }
                    None => left.iter().position(|d| match *n {
                        "tok" => level(*d) == 3,
                        "seq" => level(*d) == 2,
                        "group" => level(*d) == 1 && g.dims.is_ragged(*d),
                        _ => !g.dims.is_ragged(*d),
                    }),
                };
                let Some(at) = at else {
                    ok = false;
                    break;
                };
                bound.entry((*n).to_string()).or_insert((left.remove(at), span));
            }
        }
        if ok {
            return Ok(());
        }
        let mut d = Diagnostic::error(
            "dim-mismatch",
            format!("`{what}` must have dims {expected}, got {shown}"),
        )
        .label(span, format!("this has dims {shown}"));
        if let (Some(a), Some(b)) = (want.first(), want.last()) {
            d = d.label(a.span.to(b.span), "declared here");
        }
        if let Some(first) = conflict {
            d = d.label(first, "the same name stands for a dim of this one");
        }
        let help = match (&names[..], have.len()) {
            (["tok"], 1) => Some("this value is one number per sample or group; it broadcasts to tokens in arithmetic".to_string()),
            (["seq"], 1) => Some("this value is not one number per sample; write `sum(x, over: tok)` to add up the tokens of each sample".to_string()),
            _ => None,
        };
        self.fail(d.help_opt(help))
    }

    fn check_result(
        &mut self,
        bound: &IndexMap<String, DimId>,
        module: ModuleId,
        v: Val<'a>,
        ty: &'a ast::Type,
        d: &'a ast::Fn,
        span: Span,
    ) -> El<Val<'a>> {
        let at = d.body.value.as_ref().map_or(d.body.span, |v| v.span);
        match (&ty.kind, &v) {
            (TypeKind::Tensor { dims, .. }, v) if self.is_tensor(v) => {
                let t = self.tensor(v, at)?;
                let mut frame = bound.iter().map(|(n, x)| (n.clone(), (*x, span))).collect();
                let env = Env::new(module);
                self.match_dims(
                    &env,
                    &mut frame,
                    dims,
                    t.id,
                    at,
                    &format!("the result of {}", d.name.text),
                )?;
                Ok(Val::Tensor(t))
            }
            (TypeKind::Name(p), Val::Const(Value::Num(x), u))
                if p.text() == "int" && (x.fract() != 0.0 || !u.is_none()) =>
            {
                self.error(
                    "wrong-type",
                    at,
                    format!("`{}` gives an int, this is {x}", d.name.text),
                    "the result",
                )
            }
            (TypeKind::Name(p), Val::Loss(_)) if p.text() != "loss" => self.error(
                "wrong-type",
                at,
                format!("`{}` gives {}, this is a loss", d.name.text, p.text()),
                "the result",
            ),
            (TypeKind::Name(p), v) if p.text() == "loss" && !matches!(v, Val::Loss(_)) => {
                let kind = v.kind();
                self.fail(
                    Diagnostic::error(
                        "expected-loss",
                        format!("`{}` gives a loss, this is {kind}", d.name.text),
                    )
                    .label(at, format!("this is {kind}"))
                    .help("write `mean(.., over: tokens)`"),
                )
            }
            _ => Ok(v),
        }
    }

    /// The enum a type names, if it names one.
    pub fn enum_of(&self, module: ModuleId, ty: &ast::Type) -> Option<&'a ast::Item> {
        let path = match &ty.kind {
            TypeKind::Name(p) => p,
            TypeKind::Optional(inner) => return self.enum_of(module, inner),
            _ => return None,
        };
        let mut global = self.modules.find(module, &path.names.first()?.text)?;
        for n in &path.names[1..] {
            let Global::Module(m) = global else { return None };
            global = *self.modules.get(m).names.get(&n.text)?;
        }
        let Global::Item(m, i) = global else { return None };
        let item = self.modules.item(m, i);
        matches!(item.kind, ItemKind::Enum(_)).then_some(item)
    }

    /// A record value with defaults filled in; defaults may use earlier fields.
    pub fn make_record(
        &mut self,
        module: ModuleId,
        item: &'a ast::Item,
        mut given: IndexMap<String, Val<'a>>,
        span: Span,
    ) -> El<Val<'a>> {
        let ItemKind::Record(r) = &item.kind else { return Err(Stop) };
        let mut env = Env::new(module);
        let mut out = IndexMap::new();
        for f in &r.fields {
            let v = match (given.shift_remove(&f.name.text), &f.default) {
                (Some(v), _) => v,
                (None, Some(e)) => match self.enum_of(module, &f.ty) {
                    Some(en) => self.expr_for_enum(&env, e, en)?,
                    None => self.expr(&env, e)?,
                },
                (None, None) => {
                    return self.fail(
                        Diagnostic::error(
                            "missing-field",
                            format!("`{}` needs `{}`", r.name.text, f.name.text),
                        )
                        .label(span, "not given here")
                        .label(f.span, "declared here"),
                    );
                }
            };
            let mut dims = IndexMap::new();
            let v = self.coerce(&env, &mut dims, module, v, &f.ty, span, &f.name.text)?;
            env.bind(&f.name.text, v.clone());
            out.insert(f.name.text.clone(), v);
        }
        if let Some(extra) = given.keys().next() {
            let help = nearest(extra, r.fields.iter().map(|f| f.name.text.as_str()))
                .map(|n| format!("did you mean `{n}`?"));
            return self.fail(
                Diagnostic::error(
                    "unknown-name",
                    format!("`{}` has no field `{extra}`", r.name.text),
                )
                .label(span, "given here")
                .help_opt(help),
            );
        }
        Ok(Val::Record(out))
    }

    /// A function of one sample applied to a batch: one number per sample.
    fn map_reward(&mut self, f: Val<'a>, mut args: Vec<ArgVal<'a>>, span: Span) -> El<Val<'a>> {
        if args.is_empty() {
            return self.error("wrong-arguments", span, "a reward takes samples", "none given");
        }
        let (_, first, s) = args.remove(0);
        let Val::Samples(samples) = first else {
            let kind = first.kind();
            return self.error(
                "wrong-type",
                s,
                format!("a reward takes samples, not {kind}"),
                format!("this is {kind}"),
            );
        };
        let reward = self.reward(&f, args, span)?;
        let binding =
            self.stage("", nrl_ir::program::Stage::Reward { reward }, vec![samples.binding], span);
        Ok(Val::Step(StepTensor {
            binding,
            field: None,
            shape: StepShape::Seq,
            valid: Validity::Field,
            samples: Some(samples.binding),
        }))
    }

    /// Host constants of a record, for configurations.
    pub fn constants(&mut self, v: &Val<'a>, span: Span) -> El<Value> {
        match v {
            Val::Const(c, _) => Ok(c.clone()),
            Val::Record(fields) => {
                let mut out = vec![];
                for (k, f) in fields {
                    out.push((k.clone(), self.constants(f, span)?));
                }
                Ok(Value::record(out))
            }
            Val::Variant { name, .. } => Ok(Value::text(name)),
            v => {
                let (e, _) = self.host(v, span)?;
                match e {
                    host::Expr::Const(c) => Ok(c),
                    _ => self.error(
                        "wrong-type",
                        span,
                        "this must be known before the run",
                        "known only at run time",
                    ),
                }
            }
        }
    }
}

fn is_named(ty: &ast::Type, name: &str) -> bool {
    matches!(&ty.kind, TypeKind::Name(p) if p.text() == name)
}

fn article(name: &str) -> &str {
    match name {
        "int" => "a whole number",
        "float" | "number" => "a plain number",
        "bool" => "a bool",
        "text" => "text",
        "tensor" | "f32" | "bf16" => "a tensor",
        "record" | "Row" => "a record",
        "range" => "a range such as `0.2..0.28`",
        "Schedule" => "a schedule or a number",
        "loss" => "a loss",
        other => other,
    }
}
