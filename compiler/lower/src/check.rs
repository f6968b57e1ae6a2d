//! Names in definitions that a recipe does not use are checked too.
//!
//! A walk over every function, model and recipe of the user's own files: each name must be bound
//! by a parameter, a `let`, the file, the standard library, or be one of the words that certain
//! arguments read as written.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Span};
use nrl_syntax::ast::{self, Block, Expr, ExprKind, ItemKind, StmtKind};

use crate::elab::Elab;
use crate::modules::ModuleId;
use crate::value::{Env, Val};

/// Words that arguments such as `over:` and `else:` read as written.
const WORDS: &[&str] = &[
    "tokens",
    "samples",
    "groups",
    "pairs",
    "tok",
    "act",
    "seq",
    "group",
    "all",
    "error",
    "drop",
    "truncate",
    "device",
    "context",
    "prelude",
    "pair",
    "microbatch",
    "step",
    "staleness",
    "routes",
    "support",
    "in_flight",
    "between_samples",
];

/// Types that the language itself has, besides units.
const TYPES: &[&str] = &[
    "tensor",
    "f32",
    "bf16",
    "int",
    "float",
    "number",
    "bool",
    "text",
    "record",
    "Row",
    "range",
    "Model",
    "Data",
    "Samples",
    "Pairs",
    "Sample",
    "Schedule",
    "Optimizer",
    "Generator",
    "Cluster",
    "Plan",
    "loss",
];

struct Names<'e, 'a, 's> {
    elab: &'e mut Elab<'a, 's>,
    /// Enums by their variants.
    variants: &'e BTreeMap<&'a str, Vec<&'a ast::Item>>,
    module: ModuleId,
    scope: Vec<String>,
}

impl<'a> Elab<'a, '_> {
    /// Checks the names in all function bodies of local files.
    pub fn check_items(&mut self) {
        let mut variants: BTreeMap<&'a str, Vec<&'a ast::Item>> = BTreeMap::new();
        for item in self.modules.list.iter().flat_map(|m| &m.file.items) {
            if let ItemKind::Enum(e) = &item.kind {
                e.variants
                    .iter()
                    .for_each(|v| variants.entry(&v.name.text).or_default().push(item));
            }
        }
        for (m, module) in self.modules.list.iter().enumerate() {
            if module.name.starts_with("std.") {
                continue;
            }
            for item in &module.file.items {
                let variants = &variants;
                let mut names = Names { elab: self, variants, module: ModuleId(m), scope: vec![] };
                names.item(item);
            }
        }
    }
}

impl<'a> Names<'_, 'a, '_> {
    fn item(&mut self, item: &'a ast::Item) {
        match &item.kind {
            ItemKind::Fn(f) => self.function(f),
            // Where tests are run, each finds its own mistakes.
            ItemKind::Test(t) if self.elab.trial.is_none() => self.block(&t.body),
            ItemKind::Record(r) => {
                self.new_type(&r.name);
                self.twice(&r.name, r.fields.iter().map(|f| &f.name));
                r.fields.iter().for_each(|f| self.ty(&f.ty));
            }
            ItemKind::Type(t) => {
                self.new_type(&t.name);
                self.ty(&t.ty);
            }
            ItemKind::Enum(e) => {
                self.new_type(&e.name);
                self.twice(&e.name, e.variants.iter().map(|v| &v.name));
                e.variants.iter().flat_map(|v| &v.fields).for_each(|t| self.ty(t));
            }
            ItemKind::Unit(u) => self.unit(u),
            ItemKind::Recipe(r) => {
                r.params.iter().filter_map(|p| p.ty.as_ref()).for_each(|t| self.ty(t));
            }
            _ => {}
        }
    }

    /// A name that the language already uses for a type.
    fn new_type(&mut self, name: &ast::Name) {
        if TYPES.contains(&name.text.as_str()) {
            let what = format!("`{}` is a type of the language", name.text);
            let d = Diagnostic::error("duplicate-name", what).label(name.span, "defined again");
            self.elab.problems.push(d.help("choose another name"));
        }
    }

    /// Fields of a record and variants of an enum have names of their own.
    fn twice(&mut self, of: &ast::Name, names: impl Iterator<Item = &'a ast::Name>) {
        let mut seen: BTreeMap<&str, Span> = BTreeMap::new();
        for n in names {
            if let Some(first) = seen.insert(&n.text, n.span) {
                let what = format!("`{}` has `{}` twice", of.text, n.text);
                let d = Diagnostic::error("duplicate-name", what).label(n.span, "second one");
                self.elab.problems.push(d.label(first, "first one").help("remove one of them"));
            }
        }
    }

    /// A unit of one's own is new, and if it is a multiple, then of a unit that there is.
    fn unit(&mut self, u: &'a ast::UnitDef) {
        let name = u.name.text.as_str();
        let other = [name.to_string(), format!("{name}s"), name.trim_end_matches('s').to_string()];
        if let Some(known) = other.iter().find(|n| crate::units::Unit::is_known(n)) {
            let what = format!("`{known}` is a unit of the language");
            let d = Diagnostic::error("duplicate-name", what).label(u.name.span, "defined again");
            self.elab.problems.push(d.help("choose another name"));
            return;
        }
        let Some(of) = &u.of else { return };
        let mut way = vec![];
        if self.leads_back(u, self.module, u, &mut way) {
            // A circle is told of once, at the first of its units.
            if way.iter().all(|w| u.name.span.start <= w.start) {
                let what = format!("the unit `{name}` is defined through itself");
                let d = Diagnostic::error("recursion", what).label(of.span, "leads back to it");
                self.elab.problems.push(d.help(format!("write `unit {name}` for one of its own")));
            }
            return;
        }
        let ExprKind::Quantity(q) = &of.kind else { return };
        let known = |f: &ast::UnitFactor| self.elab.unit_item(self.module, &f.name.text).is_some();
        if !q.unit.iter().any(known) {
            let _ = self.elab.expr(&Env::new(self.module), of);
        }
    }

    /// Whether the units that a unit is a multiple of lead back to `to`.
    fn leads_back(
        &self,
        u: &ast::UnitDef,
        module: ModuleId,
        to: &ast::UnitDef,
        way: &mut Vec<Span>,
    ) -> bool {
        let Some(ExprKind::Quantity(q)) = u.of.as_ref().map(|e| &e.kind) else { return false };
        q.unit.iter().any(|f| {
            let Some((m, next)) = self.elab.unit_item(module, &f.name.text) else { return false };
            if std::ptr::eq(next, to) {
                return true;
            }
            if way.contains(&next.name.span) {
                return false;
            }
            way.push(next.name.span);
            self.leads_back(next, m, to, way)
        })
    }

    fn function(&mut self, f: &'a ast::Fn) {
        let mark = self.scope.len();
        for p in &f.params {
            self.scope.push(p.name.text.clone());
            p.ty.iter().for_each(|t| self.ty(t));
            if let Some(ast::Type { kind: ast::TypeKind::Tensor { dims, .. }, .. }) = &p.ty {
                self.scope.extend(dims.iter().filter_map(|l| l.dim.as_name()).map(str::to_string));
            }
        }
        f.result.iter().for_each(|t| self.ty(t));
        self.block(&f.body);
        self.scope.truncate(mark);
    }

    fn ty(&mut self, t: &'a ast::Type) {
        match &t.kind {
            ast::TypeKind::Name(path) => {
                let name = path.text();
                let head = name.split('.').next().unwrap_or(&name);
                let known = TYPES.contains(&head)
                    || crate::units::Unit::type_name(head).is_some()
                    || self.elab.own_unit(self.module, head, crate::expr::OWN_DEPTH).is_some()
                    || self.elab.modules.find(self.module, head).is_some();
                if !known {
                    let what = format!("there is no type `{name}`");
                    let d = Diagnostic::error("unknown-name", what).label(t.span, "not found");
                    let own = self.elab.modules.get(self.module).names.keys().map(String::as_str);
                    let help = nrl_base::did_you_mean(head, TYPES.iter().copied().chain(own));
                    self.elab.problems.push(d.help_opt(help));
                }
            }
            ast::TypeKind::Optional(inner) => self.ty(inner),
            ast::TypeKind::Within { base, .. } | ast::TypeKind::AtMost { base, .. } => {
                self.ty(base)
            }
            ast::TypeKind::Where { base, cond } => {
                self.ty(base);
                self.scope.push("it".into());
                self.expr(cond);
                self.scope.pop();
            }
            ast::TypeKind::Tuple(types) | ast::TypeKind::Apply { args: types, .. } => {
                types.iter().for_each(|t| self.ty(t));
            }
            ast::TypeKind::Fn { params, result } => {
                params.iter().for_each(|t| self.ty(t));
                self.ty(result);
            }
            ast::TypeKind::Tensor { element, .. } => self.ty(element),
            _ => {}
        }
    }

    fn block(&mut self, b: &'a Block) {
        let mark = self.scope.len();
        for s in &b.stmts {
            match &s.kind {
                StmtKind::Bind(bind) => {
                    bind.ty.iter().for_each(|t| self.ty(t));
                    self.expr(&bind.value);
                    self.scope.extend(bind.names.iter().map(|n| n.text.clone()));
                }
                StmtKind::Expr(e) => self.expr(e),
                StmtKind::Assert(a) => {
                    self.expr(&a.cond);
                    a.within.iter().for_each(|e| self.expr(e));
                }
                _ => {}
            }
        }
        if let Some(v) = &b.value {
            self.expr(v);
        }
        self.scope.truncate(mark);
    }

    fn name(&mut self, name: &str, span: Span) {
        let known = self.scope.iter().any(|s| s == name)
            || self.elab.modules.find(self.module, name).is_some()
            || crate::intrinsic::find(name).is_some()
            || WORDS.contains(&name)
            || self.variants.contains_key(name);
        if !known {
            let mut env = Env::new(self.module);
            for s in &self.scope {
                env.bind(s, Val::Poison);
            }
            let help = self.elab.suggest(&env, name);
            self.elab.problems.push(
                Diagnostic::error("unknown-name", format!("there is no `{name}` here"))
                    .label(span, "not found")
                    .help_opt(help),
            );
        }
    }

    /// Arms that name variants of one enum take all of them.
    fn arms(&mut self, value: Span, arms: &'a [ast::Arm]) {
        let named = arms.iter().find_map(|a| match &a.pattern.kind {
            ast::PatternKind::Name(n) => self.variants.get(n.as_str()),
            ast::PatternKind::Variant { path, .. } => {
                self.variants.get(path.names.last()?.text.as_str())
            }
            _ => None,
        });
        let Some([item]) = named.map(Vec::as_slice) else { return };
        if let Some(missing) = crate::cover::missing(arms, Some(item)) {
            let what = format!("this `match` does not take {}", missing.join(", "));
            let d = Diagnostic::error("no-match", what).label(value, "not all of it is taken");
            let help = format!("add an arm `{} -> ..`, or `_ -> ..`", missing[0]);
            self.elab.problems.push(d.help(help));
        }
    }

    fn expr(&mut self, e: &'a Expr) {
        match &e.kind {
            ExprKind::Name(n) => self.name(n, e.span),
            ExprKind::Call { callee, args } => {
                self.expr(callee);
                args.iter().for_each(|a| self.expr(&a.value));
            }
            ExprKind::Field { base, .. } => self.expr(base),
            ExprKind::Index { base, items } => {
                self.expr(base);
                for i in items {
                    if let ast::IndexItem::Expr(e) = i {
                        self.expr(e);
                    }
                }
            }
            ExprKind::Unary { operand, .. } => self.expr(operand),
            ExprKind::Binary { lhs, rhs, .. } => {
                self.expr(lhs);
                self.expr(rhs);
            }
            ExprKind::If { cond, then, otherwise } => {
                self.expr(cond);
                self.expr(then);
                otherwise.iter().for_each(|o| self.expr(o));
            }
            ExprKind::Match { value, arms } => {
                self.expr(value);
                self.arms(value.span, arms);
                for a in arms {
                    let mark = self.scope.len();
                    bound(&a.pattern, &mut self.scope);
                    self.expr(&a.value);
                    self.scope.truncate(mark);
                }
            }
            ExprKind::Lambda { params, body } => {
                let mark = self.scope.len();
                self.scope.extend(params.iter().map(|p| p.text.clone()));
                self.expr(body);
                self.scope.truncate(mark);
            }
            ExprKind::Block(b) => self.block(b),
            ExprKind::List(items) | ExprKind::Tuple(items) => {
                items.iter().for_each(|i| self.expr(i))
            }
            ExprKind::Record(fields) => fields.iter().for_each(|f| self.expr(&f.value)),
            ExprKind::Range { start, end, .. } => {
                start.iter().chain(end).for_each(|x| self.expr(x))
            }
            ExprKind::Pipe { input, stage } => {
                self.expr(input);
                self.expr(stage);
            }
            ExprKind::With { base, args } => {
                self.expr(base);
                args.iter().for_each(|a| self.expr(&a.value));
            }
            ExprKind::Some(x) => self.expr(x),
            _ => {}
        }
    }
}

/// The names that a pattern binds.
fn bound(p: &ast::Pattern, names: &mut Vec<String>) {
    match &p.kind {
        ast::PatternKind::Name(n) => names.push(n.clone()),
        ast::PatternKind::Some(inner) => bound(inner, names),
        ast::PatternKind::Tuple(all) | ast::PatternKind::Variant { args: all, .. } => {
            all.iter().for_each(|p| bound(p, names));
        }
        ast::PatternKind::Any | ast::PatternKind::None | ast::PatternKind::Value(_) => {}
    }
}
