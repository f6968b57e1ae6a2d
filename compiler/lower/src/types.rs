//! Declared types: a value against the type of a parameter, a field, a binding or a result.
//!
//! In: a value known to elaboration and a type as written. Out: the value, or one message with the
//! value's place and the declaration's. `none` is taken by `T?` alone. Ranges (`float in 0..1`) and
//! conditions (`int where it > 0`) are checked of values known before the run.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span};
use nrl_ir::DimId;
use nrl_ir::host::{HostType, Value};
use nrl_ir::infer::show_dims;
use nrl_syntax::ast::{self, Expr, ExprKind, ItemKind, TypeKind};

use crate::elab::{El, Elab, Stop};
use crate::modules::{Global, ModuleId};
use crate::units::Unit;
use crate::value::{Env, Val};

/// Dims that the names of parameter types stand for, and where each was first seen.
pub type Dims = IndexMap<String, (DimId, Span)>;

/// What is checked: its name in messages and its place.
#[derive(Clone, Copy)]
pub struct Subject<'w> {
    pub what: &'w str,
    pub span: Span,
}

impl<'a> Elab<'a, '_> {
    /// Checks `v` against a declared type; names of dims bind on first sight.
    pub fn coerce(
        &mut self,
        env: &Env<'a>,
        dims: &mut Dims,
        module: ModuleId,
        v: Val<'a>,
        ty: &'a ast::Type,
        span: Span,
        what: &str,
    ) -> El<Val<'a>> {
        let module = self.modules.home(ty.span, module);
        let of = Subject { what, span };
        match &ty.kind {
            TypeKind::Optional(_) if v.is_none() => Ok(v),
            TypeKind::Optional(inner) => self.coerce(env, dims, module, v, inner, span, what),
            TypeKind::Within { base, range } => {
                let v = self.coerce(env, dims, module, v, base, span, what)?;
                self.in_range(env, &v, range, ty, of)?;
                Ok(v)
            }
            TypeKind::Where { base, cond } => {
                let v = self.coerce(env, dims, module, v, base, span, what)?;
                self.fulfils(module, &v, cond, of)?;
                Ok(v)
            }
            TypeKind::AtMost { base, .. } => self.coerce(env, dims, module, v, base, span, what),
            TypeKind::Tensor { element, dims: want } => {
                if matches!(v, Val::Const(Value::Num(_), _)) && !want.is_empty() {
                    return self.wrong(&v, "a tensor", ty, of);
                }
                let t = self.tensor(&v, span)?;
                let _ = element;
                self.match_dims(env, dims, want, t.id, span, what)?;
                Ok(Val::Tensor(t))
            }
            TypeKind::Unit(factors) => {
                let unit = self.unit_of(factors, ty.span)?;
                self.in_unit(v, &unit, ty, of)
            }
            TypeKind::Name(path) => self.coerce_named(env, dims, module, v, ty, path, of),
            TypeKind::Apply { name, args } if name.text == "list" => {
                self.coerce_list(env, dims, module, v, args, ty, of)
            }
            TypeKind::Apply { name, .. } => self.error(
                "unknown-name",
                name.span,
                format!("there is no type `{}( )`", name.text),
                "only `list(T)` takes a type",
            ),
            TypeKind::Tuple(types) => match v {
                Val::Tuple(vals) if vals.len() == types.len() => {
                    let mut out = vec![];
                    for (v, t) in vals.into_iter().zip(types) {
                        out.push(self.coerce(env, dims, module, v, t, span, what)?);
                    }
                    Ok(Val::Tuple(out))
                }
                v => {
                    let want = format!("a tuple of {}", types.len());
                    self.wrong(&v, &want, ty, of)
                }
            },
            TypeKind::Fn { .. } => match v {
                Val::Closure(_) | Val::Item(..) | Val::Intrinsic(_) => Ok(v),
                v => self.wrong(&v, "a function", ty, of),
            },
            TypeKind::Id(_) | TypeKind::Pending { .. } if v.is_none() => {
                self.wrong(&v, "a tensor", ty, of)
            }
            TypeKind::Id(_) | TypeKind::Pending { .. } => Ok(v),
        }
    }

    /// `what` must be `want`, not what it is.
    fn wrong<T>(&mut self, v: &Val<'a>, want: &str, ty: &ast::Type, of: Subject<'_>) -> El<T> {
        if matches!(v, Val::Poison) {
            return Err(Stop);
        }
        let kind = match v {
            Val::Const(Value::Num(x), u) if u.is_none() && want.contains("whole") => x.to_string(),
            v => v.kind(),
        };
        let d =
            Diagnostic::error("wrong-type", format!("`{}` must be {want}, not {kind}", of.what))
                .label(of.span, format!("this is {kind}"));
        let text = self.sources.text(ty.span).to_string();
        let d = self.declared(d, ty.span, of.span);
        let optional = v.is_none() && !self.is_std(ty.span);
        self.fail(
            d.help_opt(optional.then(|| format!("declare it `{text}?` if it may be left out"))),
        )
    }

    /// Shows the declaration, unless it is the library's or the same place.
    fn declared(&self, d: Diagnostic, ty: Span, value: Span) -> Diagnostic {
        if self.is_std(ty) || ty == value { d } else { d.label(ty, "declared here") }
    }

    fn in_range(
        &mut self,
        env: &Env<'a>,
        v: &Val<'a>,
        range: &'a Expr,
        ty: &'a ast::Type,
        of: Subject<'_>,
    ) -> El<()> {
        let (low, high) = match self.expr(env, range)? {
            Val::Range(low, high) => self.ascending((low, high), range.span)?,
            other => {
                let kind = other.kind();
                let what = format!("`in` takes a range such as `0..1`, not {kind}");
                return self.error("wrong-type", range.span, what, format!("this is {kind}"));
            }
        };
        match v {
            Val::Const(Value::Num(x), _) if !(low..=high).contains(x) => {
                let what = format!("`{}` is {x}, outside {low}..{high}", of.what);
                let d = Diagnostic::error("out-of-range", what).label(of.span, "this value");
                let d = self.declared(d, ty.span, of.span);
                self.fail(d.help(format!("give a number of {low}..{high}")))
            }
            _ => Ok(()),
        }
    }

    /// `where it > 0`, of a value known now.
    fn fulfils(
        &mut self,
        module: ModuleId,
        v: &Val<'a>,
        cond: &'a Expr,
        of: Subject<'_>,
    ) -> El<()> {
        if self.is_tensor(v) || matches!(v, Val::Host(..)) {
            return Ok(());
        }
        let mut env = Env::new(module);
        env.bind("it", v.clone());
        match self.expr(&env, cond)? {
            Val::Const(Value::Bool(true), _) => Ok(()),
            Val::Const(Value::Bool(false), _) => {
                let (shown, text) = (shown(v), self.sources.text(cond.span).to_string());
                let what = format!("`{}` is {shown}, and `{text}` does not hold of it", of.what);
                let d = Diagnostic::error("out-of-range", what).label(of.span, "this value");
                let d = self.declared(d, cond.span, of.span);
                self.fail(d.help("give a value of which it holds"))
            }
            c => {
                let kind = c.kind();
                let what = format!("a condition on a type is a bool, not {kind}");
                self.error("wrong-type", cond.span, what, format!("this is {kind}"))
            }
        }
    }

    fn coerce_list(
        &mut self,
        env: &Env<'a>,
        dims: &mut Dims,
        module: ModuleId,
        v: Val<'a>,
        args: &'a [ast::Type],
        ty: &'a ast::Type,
        of: Subject<'_>,
    ) -> El<Val<'a>> {
        let items = match v {
            Val::List(items) => items,
            Val::Const(Value::List(items), _) => {
                items.iter().map(|i| Val::constant(i.clone())).collect()
            }
            Val::Host(_, HostType::List(_) | HostType::Any) => return Ok(v),
            v => return self.wrong(&v, "a list", ty, of),
        };
        let [item] = args else { return Ok(crate::expr::pack_list(items)) };
        let mut out = vec![];
        for (i, v) in items.into_iter().enumerate() {
            let what = format!("{}[{i}]", of.what);
            out.push(self.coerce(env, dims, module, v, item, of.span, &what)?);
        }
        Ok(crate::expr::pack_list(out))
    }

    /// A number in `unit`, as a plain number: inside of a function the type says the unit.
    fn in_unit(
        &mut self,
        v: Val<'a>,
        unit: &Unit,
        ty: &'a ast::Type,
        of: Subject<'_>,
    ) -> El<Val<'a>> {
        let what = of.what;
        let d = match v {
            Val::Const(Value::Num(x), u) if u == *unit => return Ok(Val::num(x)),
            Val::Const(Value::Num(x), u) if u.is_none() => {
                let d =
                    Diagnostic::error("unit-mismatch", format!("`{what}` needs a unit: {unit}"));
                d.label(of.span, "a plain number").help(format!("write `{x} {unit}`"))
            }
            Val::Const(Value::Num(_), u) => {
                let text = format!("`{what}` is counted in {unit}, not in {u}");
                let d = Diagnostic::error("unit-mismatch", text);
                d.label(of.span, format!("this is in {u}"))
                    .help(format!("write a number of {unit}"))
            }
            v => return self.wrong(&v, &format!("a number of {unit}"), ty, of),
        };
        let d = self.declared(d, ty.span, of.span);
        self.fail(d)
    }

    fn coerce_named(
        &mut self,
        env: &Env<'a>,
        dims: &mut Dims,
        module: ModuleId,
        v: Val<'a>,
        ty: &'a ast::Type,
        path: &'a ast::Path,
        of: Subject<'_>,
    ) -> El<Val<'a>> {
        let name = path.text();
        if let Some(ok) = self.is_builtin(&name, &v) {
            return if ok { Ok(v) } else { self.wrong(&v, article(&name), ty, of) };
        }
        let Some((m, item)) = self.type_item(module, path) else {
            let own = || self.own_unit(module, &name, crate::expr::OWN_DEPTH);
            if let Some(unit) = Unit::type_name(&name) {
                return self.in_unit(v, &unit, ty, of);
            }
            if let Some((unit, scale)) = own() {
                if scale != 1.0 {
                    let what = "the unit of a type is a whole one, such as `s` or `B`";
                    return self.error("unknown-unit", ty.span, what, "a multiple of it");
                }
                return self.in_unit(v, &unit, ty, of);
            }
            let what = format!("there is no type `{name}`");
            return self.error("unknown-name", ty.span, what, "not found");
        };
        match (&item.kind, v) {
            (ItemKind::Type(t), v) => self.expand((m, t.name.text.clone()), of.span, |me| {
                me.coerce(env, dims, m, v, &t.ty, of.span, of.what)
            }),
            (ItemKind::Enum(_), Val::Variant { of: e, name, vals }) if std::ptr::eq(e, item) => {
                Ok(Val::Variant { of: e, name, vals })
            }
            (ItemKind::Enum(e), v) => {
                let known: Vec<&str> = e.variants.iter().map(|x| x.name.text.as_str()).collect();
                self.wrong(&v, &format!("one of {}", known.join(", ")), ty, of)
            }
            (ItemKind::Record(_), Val::Record(fields)) => {
                self.make_record(m, item, fields, of.span)
            }
            (ItemKind::Record(_), Val::Const(Value::Record(fields), _)) => {
                let known = fields.iter().map(|(k, v)| (k.clone(), Val::constant(v.clone())));
                self.make_record(m, item, known.collect(), of.span)
            }
            (_, v) => self.wrong(&v, &name, ty, of),
        }
    }

    /// Is `v` of a type that the language has? None if it has no such type.
    fn is_builtin(&self, name: &str, v: &Val<'a>) -> Option<bool> {
        let number = |v: &Val<'a>| match v {
            Val::Const(Value::Num(_), u) => u.is_none(),
            Val::Dim(_) => true,
            Val::Host(_, t) => t.fits(&HostType::Num),
            _ => false,
        };
        Some(match name {
            "tensor" => {
                self.is_tensor(v)
                    || matches!(v, Val::Const(Value::Num(_), _))
                    || matches!(v, Val::Host(_, HostType::Num | HostType::Any))
            }
            "f32" | "bf16" => self.is_tensor(v) || matches!(v, Val::Const(Value::Num(_), _)),
            "int" => number(v) && !matches!(v, Val::Const(Value::Num(x), _) if x.fract() != 0.0),
            "float" | "number" => number(v) || self.is_tensor(v),
            "bool" => match v {
                Val::Const(Value::Bool(_), _) => true,
                Val::Host(_, t) => t.fits(&HostType::Bool),
                _ => false,
            },
            "text" => match v {
                Val::Const(Value::Text(_), _) => true,
                Val::Host(_, t) => t.fits(&HostType::Text),
                _ => false,
            },
            "record" | "Row" => {
                matches!(v, Val::Record(_) | Val::Const(Value::Record(_), _) | Val::Host(..))
            }
            "range" => matches!(v, Val::Range(..)),
            "Model" => matches!(v, Val::Model(_)),
            "Data" => matches!(v, Val::Data(_)),
            "Samples" => matches!(v, Val::Samples(_)),
            "Pairs" => matches!(v, Val::Pairs { .. }),
            // A record stands for a sample where a test gives one.
            "Sample" => matches!(
                v,
                Val::Host(_, HostType::Record | HostType::Any)
                    | Val::Record(_)
                    | Val::Const(Value::Record(_), _)
            ),
            "Schedule" => matches!(v, Val::Closure(_) | Val::Const(Value::Num(_), _)),
            "Optimizer" => matches!(v, Val::Optimizer(_)),
            "Generator" => matches!(v, Val::Generator(..)),
            "Cluster" => matches!(v, Val::Cluster(_)),
            "Plan" => matches!(v, Val::Plan(_)),
            "loss" => matches!(v, Val::Loss(_)),
            _ => return None,
        })
    }

    /// Binds or checks the dims of a declared tensor type.
    fn match_dims(
        &mut self,
        env: &Env<'a>,
        bound: &mut Dims,
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
                        "group" | "pair" => level(*d) == 1 && g.dims.is_ragged(*d),
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

    /// The result of a function against its declared type.
    pub fn check_result(
        &mut self,
        bound: &IndexMap<String, DimId>,
        module: ModuleId,
        v: Val<'a>,
        ty: &'a ast::Type,
        d: &'a ast::Fn,
        span: Span,
    ) -> El<Val<'a>> {
        let at = d.body.value.as_ref().map_or(d.body.span, |v| v.span);
        let name = &d.name.text;
        match (&ty.kind, &v) {
            (TypeKind::Tensor { dims, .. }, v) if self.is_tensor(v) => {
                let t = self.tensor(v, at)?;
                let mut frame = bound.iter().map(|(n, x)| (n.clone(), (*x, span))).collect();
                let what = format!("the result of {name}");
                self.match_dims(&Env::new(module), &mut frame, dims, t.id, at, &what)?;
                Ok(Val::Tensor(t))
            }
            (TypeKind::Name(p), Val::Loss(_)) if p.text() != "loss" => self.error(
                "wrong-type",
                at,
                format!("`{name}` gives {}, this is a loss", p.text()),
                "the result",
            ),
            (TypeKind::Name(p), v) if p.text() == "loss" && !matches!(v, Val::Loss(_)) => {
                let kind = v.kind();
                self.fail(
                    Diagnostic::error(
                        "expected-loss",
                        format!("`{name}` gives a loss, this is {kind}"),
                    )
                    .label(at, format!("this is {kind}"))
                    .help("write `mean(.., over: tokens)`"),
                )
            }
            // Inside of a function a quantity is a plain number of its unit.
            (_, v) if self.is_known(v) && !self.is_unit(module, ty) => {
                let what = format!("the result of {name}");
                let known = v.clone();
                self.coerce(&Env::new(module), &mut Dims::new(), module, known, ty, at, &what)
            }
            _ => Ok(v),
        }
    }

    /// A value whose type can be told now, without building anything.
    fn is_known(&self, v: &Val<'a>) -> bool {
        matches!(v, Val::Const(..) | Val::Record(_) | Val::Variant { .. } | Val::Range(..))
    }

    /// Does a type say a unit?
    fn is_unit(&self, module: ModuleId, ty: &ast::Type) -> bool {
        match &ty.kind {
            TypeKind::Unit(_) => true,
            TypeKind::Name(p) => match self.type_item(module, p) {
                Some((m, ast::Item { kind: ItemKind::Type(t), .. })) => {
                    // A type that names itself is reported where it is used.
                    t.ty.span != ty.span
                        && !matches!(&t.ty.kind, TypeKind::Name(q) if q.text() == p.text())
                        && self.is_unit(m, &t.ty)
                }
                Some(_) => false,
                None => {
                    let name = p.text();
                    let own = || self.own_unit(module, &name, crate::expr::OWN_DEPTH);
                    Unit::type_name(&name).is_some() || own().is_some()
                }
            },
            TypeKind::Optional(t) => self.is_unit(module, t),
            TypeKind::Within { base, .. }
            | TypeKind::Where { base, .. }
            | TypeKind::AtMost { base, .. } => self.is_unit(module, base),
            _ => false,
        }
    }

    /// The enum, record or named type that a path stands for.
    pub fn type_item(
        &self,
        module: ModuleId,
        path: &ast::Path,
    ) -> Option<(ModuleId, &'a ast::Item)> {
        let (first, rest) = path.names.split_first()?;
        let mut global = self.modules.find(self.modules.home(path.span, module), &first.text)?;
        for n in rest {
            let Global::Module(m) = global else { return None };
            global = *self.modules.get(m).names.get(&n.text)?;
        }
        let Global::Item(m, i) = global else { return None };
        let item = self.modules.item(m, i);
        matches!(item.kind, ItemKind::Enum(_) | ItemKind::Record(_) | ItemKind::Type(_))
            .then_some((m, item))
    }

    /// The enum a type names, if it names one.
    pub fn enum_of(&self, module: ModuleId, ty: &ast::Type) -> Option<&'a ast::Item> {
        match &ty.kind {
            TypeKind::Name(p) => match self.type_item(module, p)? {
                (m, ast::Item { kind: ItemKind::Type(t), .. }) => match &t.ty.kind {
                    // One step only: a type that leads back to itself is reported elsewhere.
                    TypeKind::Name(q) => self
                        .type_item(m, q)
                        .map(|(_, i)| i)
                        .filter(|i| matches!(i.kind, ItemKind::Enum(_))),
                    _ => None,
                },
                (_, item) => matches!(item.kind, ItemKind::Enum(_)).then_some(item),
            },
            TypeKind::Optional(inner) => self.enum_of(module, inner),
            _ => None,
        }
    }

    /// An expression where a type is expected: variants of an enum stand bare, also inside of
    /// records and lists.
    pub fn expr_for(
        &mut self,
        env: &Env<'a>,
        e: &'a Expr,
        module: ModuleId,
        ty: &'a ast::Type,
    ) -> El<Val<'a>> {
        let optional = matches!(ty.kind, TypeKind::Optional(_));
        if let Some(item) = self.enum_of(module, ty) {
            return match &e.kind {
                ExprKind::None if optional => Ok(Val::none()),
                _ => self.expr_for_enum(env, e, item),
            };
        }
        match (&ty.kind, &e.kind) {
            (TypeKind::Optional(inner), _) => self.expr_for(env, e, module, inner),
            (TypeKind::Apply { args, .. }, ExprKind::List(items)) if args.len() == 1 => {
                let vals = items.iter().map(|i| self.expr_for(env, i, module, &args[0]));
                Ok(crate::expr::pack_list(vals.collect::<Result<_, _>>()?))
            }
            (TypeKind::Name(p), ExprKind::Record(fields)) => match self.type_item(module, p) {
                Some((m, ast::Item { kind: ItemKind::Record(r), .. })) => {
                    self.record(env, fields, e.span, Some((m, r)))
                }
                _ => self.expr(env, e),
            },
            _ => self.expr(env, e),
        }
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
        let places = self.field_spans.get(&span).cloned().unwrap_or_default();
        let place = |name: &str| places.iter().find(|(n, _)| n == name).map_or(span, |(_, s)| *s);
        self.unknown_fields(r, &given, &place)?;
        let mut env = Env::new(module);
        let mut out = IndexMap::new();
        for f in &r.fields {
            let (v, at) = match (given.shift_remove(&f.name.text), &f.default) {
                (Some(v), _) => (v, place(&f.name.text)),
                (None, Some(e)) => (self.expr_for(&env, e, module, &f.ty)?, e.span),
                (None, None) => {
                    let what = format!("`{}` needs `{}`", r.name.text, f.name.text);
                    return self.fail(
                        Diagnostic::error("missing-field", what)
                            .label(span, "not given here")
                            .label(f.span, "declared here"),
                    );
                }
            };
            let v = self.coerce(&env, &mut Dims::new(), module, v, &f.ty, at, &f.name.text)?;
            env.bind(&f.name.text, v.clone());
            out.insert(f.name.text.clone(), v);
        }
        Ok(Val::Record(out))
    }

    /// Every given field is one of the record's.
    fn unknown_fields(
        &mut self,
        r: &'a ast::Record,
        given: &IndexMap<String, Val<'a>>,
        place: &dyn Fn(&str) -> Span,
    ) -> El<()> {
        let mut result = Ok(());
        let known = |n: &str| r.fields.iter().any(|f| f.name.text == n);
        for extra in given.keys().filter(|n| !known(n)) {
            let free = r.fields.iter().map(|f| f.name.text.as_str());
            let free = free.filter(|n| !given.contains_key(*n));
            let help = nrl_base::nearest(extra, free).map_or_else(
                || {
                    let all: Vec<&str> = r.fields.iter().map(|f| f.name.text.as_str()).collect();
                    format!("its fields are {}", all.join(", "))
                },
                |n| format!("did you mean `{n}`?"),
            );
            let what = format!("`{}` has no field `{extra}`", r.name.text);
            let d = Diagnostic::error("unknown-name", what).label(place(extra), "given here");
            let d = self.declared(d, r.name.span, place(extra));
            result = self.fail(d.help(help));
        }
        result
    }
}

/// A value in messages.
pub fn shown(v: &Val<'_>) -> String {
    match v {
        Val::Const(Value::Num(x), u) if !u.is_none() => format!("{x} {u}"),
        Val::Const(c, _) => c.to_json().to_string(),
        Val::Variant { name, vals, .. } if vals.is_empty() => name.clone(),
        Val::Variant { name, vals, .. } => {
            let vals: Vec<String> = vals.iter().map(shown).collect();
            format!("{name}({})", vals.join(", "))
        }
        Val::Range(low, high) => format!("{low}..{high}"),
        v => v.kind(),
    }
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
