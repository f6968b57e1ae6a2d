//! Calls: functions of the language, closures, records, models, plans and intrinsics.
//!
//! A function is expanded where it is called, its parameters bound to values. Dim names in the
//! types of parameters (`w: f32[e]`) stand for whatever dims the arguments have, the same name for
//! the same dim.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::DimId;
use nrl_ir::host::{self, Value};
use nrl_syntax::ast::{self, ItemKind, TypeKind};

use crate::elab::{El, Elab, Stop};
use crate::modules::ModuleId;
use crate::types::Dims;
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
        if let ast::ExprKind::Field { base, name } = &callee.kind
            && let Some(item) = self.enum_before(env, base)
        {
            return self.variant_call(env, item, name, args, span);
        }
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
        // Variants of an enum stand bare where its type is expected.
        let types: Vec<(&'a str, Option<&'a ast::Type>, ModuleId)> = match &f {
            Val::Item(m, item) => match &item.kind {
                ItemKind::Fn(d) => {
                    d.params.iter().map(|p| (p.name.text.as_str(), p.ty.as_ref(), *m)).collect()
                }
                ItemKind::Plan(d) => {
                    d.params.iter().map(|p| (p.name.text.as_str(), p.ty.as_ref(), *m)).collect()
                }
                ItemKind::Model(d) => {
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
            let v = match slot {
                Some((_, Some(ty), m)) => self.expr_for(env, &a.value, *m, ty)?,
                // The head and the type of a new model are words, as in `models.load`.
                None if is_model(&f) && word_of_a_model(&a.value).is_some() => {
                    Val::text(word_of_a_model(&a.value).unwrap_or_default())
                }
                _ => self.expr(env, &a.value)?,
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
                            "this function takes {}, got {}",
                            crate::elab::arguments(c.params.len()),
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
            Val::Member(m) => {
                let (f, mut env) = (m.function, m.env.clone());
                let name = f.name.text.clone();
                self.expand((m.module, format!("{name} of the model")), span, |me| {
                    me.bind_params(&mut env, m.module, &name, &f.params, args, fs, span)?;
                    me.block(&env, &f.body)
                })
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
                ItemKind::Rollout(d) => self.rollout(m, d, args, span),
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
                    format!("`{name}` takes {}", crate::elab::arguments(slots.len())),
                    "one too many",
                );
            }
            // An override of an argument given by position wins.
            if slots[i].is_some() && !crate::overrides::is_added(n, s) {
                return self.error(
                    "wrong-arguments",
                    s,
                    format!("`{}` of `{name}` is given twice", params[i].name.text),
                    "second value",
                );
            }
            slots[i] = Some((v, s));
        }
        let mut dims = Dims::new();
        for (p, slot) in params.iter().zip(slots) {
            let (v, s) = match (slot, &p.default) {
                (Some(x), _) => x,
                (None, Some(e)) => {
                    let v = match &p.ty {
                        Some(ty) => self.expr_for(env, e, module, ty)?,
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
            side: None,
            origin: None,
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
            Val::Variant { name, vals, .. } if vals.is_empty() => Ok(Value::text(name)),
            Val::Variant { name, vals, .. } => {
                let mut out = vec![Value::text(name)];
                for v in vals {
                    out.push(self.constants(v, span)?);
                }
                Ok(Value::list(out))
            }
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

fn word_of_a_model(e: &ast::Expr) -> Option<&str> {
    e.as_name().filter(|n| matches!(*n, "scalar" | "bf16" | "f32"))
}

fn is_model(f: &Val<'_>) -> bool {
    matches!(f, Val::Item(_, i) if matches!(i.kind, ItemKind::Model(_)))
}

fn is_named(ty: &ast::Type, name: &str) -> bool {
    matches!(&ty.kind, TypeKind::Name(p) if p.text() == name)
}
