//! Names in definitions that a recipe does not use are checked too.
//!
//! A walk over every function, model and recipe of the user's own files: each name must be bound
//! by a parameter, a `let`, the file, the standard library, or be one of the words that certain
//! arguments read as written.

use nrl_base::{Diagnostic, Span};
use nrl_syntax::ast::{self, Block, Expr, ExprKind, ItemKind, StmtKind};

use crate::elab::Elab;
use crate::modules::ModuleId;
use crate::value::{Env, Val};

/// Words that arguments such as `over:` and `else:` read as written.
const WORDS: &[&str] = &[
    "tokens", "samples", "groups", "pairs", "tok", "act", "seq", "group", "all", "error", "drop",
    "truncate", "device", "context", "prelude",
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
    module: ModuleId,
    scope: Vec<String>,
}

impl<'a> Elab<'a, '_> {
    /// Checks the names in all function bodies of local files.
    pub fn check_items(&mut self) {
        for (m, module) in self.modules.list.iter().enumerate() {
            if module.name.starts_with("std.") {
                continue;
            }
            for item in &module.file.items {
                if let ItemKind::Fn(f) = &item.kind {
                    let mut names = Names { elab: self, module: ModuleId(m), scope: vec![] };
                    names.function(f);
                }
            }
        }
    }

    /// Is `name` a variant of an enum that the module sees?
    fn is_variant(&self, name: &str) -> bool {
        self.modules.list.iter().flat_map(|m| &m.file.items).any(|i| match &i.kind {
            ItemKind::Enum(e) => e.variants.iter().any(|v| v.name.text == name),
            _ => false,
        })
    }
}

impl<'a> Names<'_, 'a, '_> {
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
                    || self.elab.modules.find(self.module, head).is_some();
                if !known {
                    let what = format!("there is no type `{name}`");
                    let d = Diagnostic::error("unknown-name", what).label(t.span, "not found");
                    let help = nrl_base::did_you_mean(head, TYPES.iter().copied());
                    self.elab.problems.push(d.help_opt(help));
                }
            }
            ast::TypeKind::Optional(inner) => self.ty(inner),
            ast::TypeKind::Within { base, .. } => self.ty(base),
            ast::TypeKind::Tensor { element, .. } => self.ty(element),
            _ => {}
        }
    }

    fn block(&mut self, b: &'a Block) {
        let mark = self.scope.len();
        for s in &b.stmts {
            match &s.kind {
                StmtKind::Bind(bind) => {
                    self.expr(&bind.value);
                    self.scope.extend(bind.names.iter().map(|n| n.text.clone()));
                }
                StmtKind::Expr(e) => self.expr(e),
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
            || self.elab.is_variant(name);
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
                for a in arms {
                    let mark = self.scope.len();
                    if let ast::PatternKind::Name(n) = &a.pattern.kind {
                        self.scope.push(n.clone());
                    }
                    if let ast::PatternKind::Some(p) = &a.pattern.kind
                        && let ast::PatternKind::Name(n) = &p.kind
                    {
                        self.scope.push(n.clone());
                    }
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
