//! Host expressions: building them, folding what is known, functions of one sample.

use nrl_base::{Diagnostic, Span};
use nrl_ir::host::{self, Builtin, HostType, Value};
use nrl_syntax::ast;

use crate::elab::{El, Elab, Stop};
use crate::units::Unit;
use crate::value::{Env, Val};

/// Most evaluations of host expressions that one recipe may take before the run.
pub const MOST_NOW: u64 = 10_000_000;

/// Type of a constant.
pub fn type_of(v: &Value) -> HostType {
    match v {
        Value::None => HostType::None,
        Value::Bool(_) => HostType::Bool,
        Value::Num(_) => HostType::Num,
        Value::Text(_) => HostType::Text,
        Value::List(l) => match l.first() {
            Some(x) if l.iter().all(|y| type_of(y) == type_of(x)) => HostType::list(type_of(x)),
            _ => HostType::list(HostType::Any),
        },
        Value::Record(_) => HostType::Any,
    }
}

impl<'a> Elab<'a, '_> {
    /// `v` as a host expression with its type.
    pub fn host(&mut self, v: &Val<'a>, span: Span) -> El<(host::Expr, HostType)> {
        Ok(match v {
            Val::Const(c, _) => (host::Expr::Const(c.clone()), type_of(c)),
            Val::Host(e, t) => (e.clone(), t.clone()),
            Val::List(items) | Val::Tuple(items) => {
                let mut out = vec![];
                let mut ty: Option<HostType> = None;
                for i in items {
                    let (e, t) = self.host(i, span)?;
                    ty = Some(match ty {
                        Some(u) if u != t => HostType::Any,
                        _ => t,
                    });
                    out.push(e);
                }
                (host::Expr::List(out), HostType::list(ty.unwrap_or(HostType::Any)))
            }
            Val::Record(fields) => {
                let mut out = vec![];
                for (k, f) in fields {
                    out.push((k.clone(), self.host(f, span)?.0));
                }
                (host::Expr::Record(out), HostType::Any)
            }
            Val::Poison => return Err(Stop),
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    span,
                    format!("{kind} cannot be used in a function that the host runs"),
                    format!("this is {kind}"),
                );
            }
        })
    }

    /// Calls a builtin: now if every argument is known, else as a node.
    pub fn host_call(&mut self, f: Builtin, args: Vec<(Val<'a>, Span)>, span: Span) -> El<Val<'a>> {
        let (want, result) = f.signature();
        if args.len() != want.len() {
            return self.error(
                "wrong-arguments",
                span,
                format!(
                    "`{}` takes {}, got {}",
                    f.name(),
                    crate::elab::arguments(want.len()),
                    args.len()
                ),
                "this call",
            );
        }
        let mut exprs = vec![];
        for ((v, s), w) in args.iter().zip(&want) {
            let (e, t) = self.host(v, *s)?;
            if !t.fits(w) {
                let maybe = matches!(&t, HostType::Maybe(inner) if inner.fits(w));
                let d = Diagnostic::error(
                    "wrong-type",
                    format!("`{}` takes {}, got {}", f.name(), w.describe(), t.describe()),
                )
                .label(*s, format!("this is {}", t.describe()));
                let help = maybe.then(|| "it may be none: write `text_or(x, \"\")`, `number_or(x, 0.0)` or test `is_none(x)`".to_string());
                return self.fail(d.help_opt(help));
            }
            exprs.push(e);
        }
        if let (Builtin::Matches | Builtin::Capture | Builtin::Captures, [_, pattern]) =
            (f, &exprs[..])
            && matches!(pattern, host::Expr::Const(_))
        {
            // A pattern that is known is read now, not at the first sample.
            let on_nothing = vec![host::Expr::Const(Value::text("")), pattern.clone()];
            let body = host::Expr::Call { f, args: on_nothing };
            let func = host::Func { name: f.name().into(), params: 0, locals: 0, body };
            if let Err(e) = host::call(&func, &[]) {
                return self.error("wrong-type", args[1].1, e.0, "this pattern");
            }
        }
        let known = exprs.iter().all(|e| matches!(e, host::Expr::Const(_)));
        let call = host::Expr::Call { f, args: exprs };
        if known {
            let func = host::Func { name: f.name().into(), params: 0, locals: 0, body: call };
            return self.run_now(&func, span).map(|v| Val::Const(v, Unit::none()));
        }
        Ok(Val::Host(call, result))
    }

    /// Runs a function of nothing now. All of them together have a bound.
    fn run_now(&mut self, func: &host::Func, span: Span) -> El<Value> {
        match host::call_within(func, &[], &mut self.host_left) {
            Ok(v) => Ok(v),
            Err(e) if e.is_too_much() => {
                let what = format!("checking takes more than {MOST_NOW} evaluations");
                let d = Diagnostic::error("too-much-work", what).label(span, "reached here");
                self.fail(
                    d.help("compute it in a row or a reward, where the run does it, or less of it"),
                )
            }
            Err(e) => self.error("wrong-type", span, e.0, "this call"),
        }
    }

    /// Compiles `f` applied to `params` locals of the given types into a host function.
    pub fn host_func(
        &mut self,
        name: &str,
        params: &[HostType],
        span: Span,
        body: impl FnOnce(&mut Self, Vec<Val<'a>>) -> El<Val<'a>>,
    ) -> El<(host::Func, HostType)> {
        let before = std::mem::replace(&mut self.host_slots, params.len());
        // Tensors are out of reach inside.
        let builders = std::mem::take(&mut self.builders);
        let locals = params
            .iter()
            .enumerate()
            .map(|(i, t)| Val::Host(host::Expr::Local(i), t.clone()))
            .collect();
        // At least one slot, so that `let`s know they are in a host function.
        self.host_slots = self.host_slots.max(1);
        let result = body(self, locals).and_then(|v| self.host(&v, span));
        let used = std::mem::replace(&mut self.host_slots, before);
        self.builders = builders;
        let (body, ty) = result?;
        Ok((host::Func { name: name.into(), params: params.len(), locals: used, body }, ty))
    }

    /// `map`, `filter` and `fold` over a list with a lambda.
    pub fn over_list(
        &mut self,
        name: &str,
        list: (Val<'a>, Span),
        rest: &[(Val<'a>, Span)],
        span: Span,
    ) -> El<Val<'a>> {
        let Some((f, fs)) = rest.last() else { return Err(Stop) };
        // Known lists of values that the host cannot hold are walked now.
        if let (Val::Const(Value::List(items), _), "map") = (&list.0, name) {
            let items: Vec<Value> = items.to_vec();
            let mut out = vec![];
            for i in items {
                out.push(self.apply_vals(
                    f.clone(),
                    vec![(Val::constant(i), list.1)],
                    *fs,
                    span,
                )?);
            }
            return Ok(crate::expr::pack_list(out));
        }
        let (e, t) = self.host(&list.0, list.1)?;
        let item = match t {
            HostType::List(t) => *t,
            HostType::Any => HostType::Any,
            t => {
                return self.error(
                    "wrong-type",
                    list.1,
                    format!("`{name}` takes a list, got {}", t.describe()),
                    "not a list",
                );
            }
        };
        let outermost = self.host_slots == 0;
        if outermost {
            self.host_slots = 1;
        }
        let slot = self.host_slots;
        self.host_slots += 1;
        let local = |i: usize, t: &HostType| Val::Host(host::Expr::Local(i), t.clone());
        let made = match name {
            "fold" => {
                let acc = self.host_slots;
                self.host_slots += 1;
                let (init, ti) = self.host(&rest[0].0, rest[0].1)?;
                let v = self.apply_vals(
                    f.clone(),
                    vec![(local(acc, &ti), span), (local(slot, &item), span)],
                    *fs,
                    span,
                )?;
                let (body, _) = self.host(&v, *fs)?;
                (
                    host::Expr::Fold {
                        list: Box::new(e),
                        init: Box::new(init),
                        acc,
                        slot,
                        body: Box::new(body),
                    },
                    ti,
                )
            }
            _ => {
                let v = self.apply_vals(f.clone(), vec![(local(slot, &item), span)], *fs, span)?;
                let (body, t) = self.host(&v, *fs)?;
                let (list, body) = (Box::new(e), Box::new(body));
                if name == "filter" {
                    (host::Expr::Filter { list, slot, body }, HostType::list(item))
                } else {
                    (host::Expr::Map { list, slot, body }, HostType::list(t))
                }
            }
        };
        let slots = self.host_slots;
        if outermost {
            self.host_slots = 0;
            // Nothing of the run is in it if the list was known: fold it away.
            let func =
                host::Func { name: name.into(), params: 0, locals: slots, body: made.0.clone() };
            return self.run_now(&func, span).map(Val::constant);
        }
        Ok(Val::Host(made.0, made.1))
    }

    /// A learning-rate schedule: a function of the update number, or a plain number.
    pub fn schedule(&mut self, v: &Val<'a>, span: Span) -> El<host::Func> {
        match v {
            Val::Const(Value::Num(_), u) if u.is_none() => Ok(host::Func {
                name: "lr".into(),
                params: 1,
                locals: 1,
                body: self.host(v, span)?.0,
            }),
            Val::Closure(_) => {
                let f = v.clone();
                let (func, ty) = self.host_func("lr", &[HostType::Num], span, |me, args| {
                    me.apply_vals(f, args.into_iter().map(|a| (a, span)).collect(), span, span)
                })?;
                if !ty.fits(&HostType::Num) {
                    return self.error(
                        "wrong-type",
                        span,
                        format!("a schedule gives a number, this one gives {}", ty.describe()),
                        "this schedule",
                    );
                }
                Ok(func)
            }
            v => {
                let kind = v.kind();
                let span = self.user_span(span);
                self.error(
                    "wrong-type",
                    span,
                    format!("`lr` takes a schedule or a number, got {kind}"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    /// A function of one sample as a reward of the program.
    pub fn reward(
        &mut self,
        f: &Val<'a>,
        extra: Vec<(Option<&'a ast::Name>, Val<'a>, Span)>,
        span: Span,
    ) -> El<usize> {
        let name = match f {
            Val::Item(_, item) => item.name().map_or("reward", |n| n.text.as_str()).to_string(),
            _ => "reward".to_string(),
        };
        let key = format!(
            "{name}@{:?} {}",
            f_span(f),
            extra
                .iter()
                .map(|(n, v, _)| format!("{:?}={}", n.map(|n| &n.text), describe(v)))
                .collect::<Vec<_>>()
                .join(",")
        );
        if let Some(i) = self.rewards.get(&key) {
            return Ok(*i);
        }
        let reward = match f {
            Val::Item(_, ast::Item { kind: ast::ItemKind::ExternFn(x), .. }) => {
                self.extern_reward(x)?
            }
            _ => {
                let target = f.clone();
                let (func, ty) =
                    self.host_func(&name, &[HostType::Record], span, |me, mut args| {
                        let sample = (None, args.remove(0), span);
                        let mut all = vec![sample];
                        all.extend(extra);
                        me.apply_named(target, all, span, span)
                    })?;
                if !ty.fits(&HostType::maybe(HostType::Num)) {
                    let help = (ty == HostType::Bool)
                        .then(|| "write `number(..)` to make 1 or 0 of a bool".to_string());
                    return self.fail(
                        Diagnostic::error(
                            "wrong-type",
                            format!("a reward is a number, `{name}` gives {}", ty.describe()),
                        )
                        .label(span, "used as a reward")
                        .help_opt(help),
                    );
                }
                let range = match f {
                    Val::Item(m, ast::Item { kind: ast::ItemKind::Fn(d), .. }) => {
                        self.declared_range(*m, d.result.as_ref())?
                    }
                    _ => None,
                };
                nrl_ir::program::Reward {
                    name: name.clone(),
                    kind: nrl_ir::program::RewardKind::Host(func),
                    range,
                }
            }
        };
        self.out.program.rewards.push(reward);
        self.rewards.insert(key, self.out.program.rewards.len() - 1);
        Ok(self.out.program.rewards.len() - 1)
    }

    /// The range of `float in 0..1`.
    fn declared_range(
        &mut self,
        module: crate::modules::ModuleId,
        ty: Option<&'a ast::Type>,
    ) -> El<Option<(f64, f64)>> {
        let Some(ast::Type { kind: ast::TypeKind::Within { range, .. }, .. }) = ty else {
            return Ok(None);
        };
        match self.expr(&Env::new(module), range)? {
            Val::Range(low, high) => Ok(Some(self.ascending((low, high), range.span)?)),
            _ => self.error("wrong-type", range.span, "`in` takes a range", "such as `0..1`"),
        }
    }

    fn extern_reward(&mut self, x: &'a ast::ExternFn) -> El<nrl_ir::program::Reward> {
        let env = Env::new(crate::modules::ModuleId(0));
        let (mut workers, mut deadline_s, mut on_timeout) = (1, 30.0, None);
        for o in &x.options {
            let v = self.expr(&env, &o.value)?;
            match o.name.text.as_str() {
                "workers" => {
                    workers = self.whole(&v, o.value.span, "the number of workers")?.max(1)
                }
                "timeout" | "deadline" => {
                    deadline_s = self.number(&v, o.value.span, "the deadline")?;
                    if deadline_s <= 0.0 {
                        return self.error(
                            "wrong-type",
                            o.span,
                            "the deadline must be positive",
                            "this deadline",
                        );
                    }
                }
                "on_timeout" => {
                    on_timeout = Some(self.number(&v, o.value.span, "the reward on timeout")?)
                }
                other => {
                    return self.error(
                        "unknown-name",
                        o.span,
                        format!("an external reward has no `{other}`"),
                        "use workers, timeout or on timeout",
                    );
                }
            }
        }
        let range = self.declared_range(crate::modules::ModuleId(0), x.result.as_ref())?;
        let kind = nrl_ir::program::RewardKind::Extern {
            command: x.command.value.clone(),
            workers,
            deadline_s,
            on_timeout,
        };
        Ok(nrl_ir::program::Reward { name: x.name.text.clone(), kind, range })
    }
}

fn f_span(f: &Val<'_>) -> Option<Span> {
    match f {
        Val::Item(_, i) => Some(i.span),
        Val::Closure(c) => Some(c.body.span),
        _ => None,
    }
}

fn describe(v: &Val<'_>) -> String {
    match v {
        Val::Const(c, u) => format!("{} {u}", c.to_json()),
        v => v.kind(),
    }
}
