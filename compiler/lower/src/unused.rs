//! Lines of a recipe that nothing uses.
//!
//! In: a recipe as written. Out: one warning per binding, mesh, pool or parameter whose name no
//! other line holds. Lines of a step are left out: their numbers are reported.

use std::collections::BTreeSet;

use nrl_syntax::ast::{self, Block, Expr, ExprKind, IndexItem, Name, PlanRuleKind, Stmt, StmtKind};

use crate::elab::Elab;

impl<'a> Elab<'a, '_> {
    /// Warns of names that a recipe binds and never uses.
    pub fn check_unused(&mut self, r: &'a ast::Recipe) {
        let mut seen = Names::default();
        r.params.iter().flat_map(|p| &p.default).for_each(|e| seen.expr(e));
        seen.block(&r.body);
        let mut bound: Vec<(&Name, &str)> = vec![];
        bound.extend(r.params.iter().map(|p| (&p.name, "parameter")));
        bindings(&r.body, &mut bound);
        for (name, what) in bound {
            if seen.used.contains(&name.text) || name.text.starts_with('_') {
                continue;
            }
            self.no_effect(
                name.span,
                format!("{what} `{}` is never used", name.text),
                "nothing reads it",
                "use it, or remove the line",
            );
        }
    }
}

fn bindings<'b>(block: &'b Block, out: &mut Vec<(&'b Name, &'static str)>) {
    for s in &block.stmts {
        match &s.kind {
            StmtKind::Bind(b) => out.extend(b.names.iter().map(|n| (n, "binding"))),
            StmtKind::Mesh(m) => out.push((&m.name, "mesh")),
            StmtKind::Pool(p) => out.extend(p.names.iter().map(|n| (n, "pool"))),
            StmtKind::PlanFor(p) => out.push((&p.name, "plan")),
            StmtKind::Phase(p) => bindings(&p.body, out),
            _ => {}
        }
    }
}

/// Every name that expressions hold.
#[derive(Default)]
struct Names {
    used: BTreeSet<String>,
}

impl Names {
    fn block(&mut self, b: &Block) {
        b.stmts.iter().for_each(|s| self.stmt(s));
        b.value.iter().for_each(|v| self.expr(v));
    }

    fn all<'e>(&mut self, es: impl IntoIterator<Item = &'e Expr>) {
        es.into_iter().for_each(|e| self.expr(e));
    }

    fn stmt(&mut self, s: &Stmt) {
        match &s.kind {
            StmtKind::Bind(b) => self.expr(&b.value),
            StmtKind::Expr(e) | StmtKind::Seed(e) => self.expr(e),
            StmtKind::Mesh(m) => {
                self.expr(&m.cluster);
                self.all(m.axes.iter().map(|a| &a.size));
            }
            StmtKind::Pool(p) => {
                self.expr(&p.cluster);
                self.all(&p.parts);
            }
            StmtKind::View(v) => {
                self.path(&v.mesh);
                self.all(v.axes.iter().map(|a| &a.size));
            }
            StmtKind::PlanFor(p) => self.plan(p),
            StmtKind::Run(r) => {
                self.all(std::iter::once(&r.length).chain(&r.within).chain(&r.seed))
            }
            StmtKind::Place(p) => {
                self.all(&p.models);
                self.all(std::iter::once(&p.mesh).chain(&p.plan));
            }
            StmtKind::Freeze(es) | StmtKind::Require(es) | StmtKind::Expect(es) => self.all(es),
            StmtKind::Phase(p) => {
                self.all(&p.length);
                self.block(&p.body);
            }
            StmtKind::Step(b) => self.block(b),
            StmtKind::Every(t) | StmtKind::From(t) => {
                self.expr(&t.time);
                self.block(&t.body);
            }
            StmtKind::Halt(h) => self.all(std::iter::once(&h.cond).chain(&h.lasting)),
            StmtKind::Assume(a) => self.expr(&a.value),
            StmtKind::Checkpoint(c) => self.all(c.keep.iter().chain(&c.by)),
            StmtKind::Update(u) => {
                self.all([&u.model, &u.optimizer]);
                self.all(u.updates.iter().chain(&u.epochs).chain(&u.microbatch));
                self.all(u.settings.iter().map(|a| &a.value));
                self.block(&u.loss);
            }
            StmtKind::Publish { what, every } => self.all(what.iter().chain(every)),
            StmtKind::Set { path, value } | StmtKind::Append { path, value } => {
                self.all([path, value]);
            }
            StmtKind::Remove { path } => self.expr(path),
        }
    }

    fn path(&mut self, p: &ast::Path) {
        self.used.extend(p.names.first().map(|n| n.text.clone()));
    }

    fn plan(&mut self, p: &ast::PlanFor) {
        p.mesh.iter().chain(&p.model).for_each(|m| self.path(m));
        self.expr(&p.base);
        for r in &p.rules {
            self.all(&r.cond);
            match &r.kind {
                PlanRuleKind::Split { view, .. } => {
                    self.used.extend(view.iter().map(|v| v.text.clone()));
                }
                PlanRuleKind::Recompute { mode, .. } => self.expr(mode),
                PlanRuleKind::Stages { chunks, split, .. } => self.all(chunks.iter().chain(split)),
                _ => {}
            }
        }
    }

    fn expr(&mut self, e: &Expr) {
        match &e.kind {
            ExprKind::Name(n) => {
                self.used.insert(n.clone());
            }
            ExprKind::Some(x) | ExprKind::Field { base: x, .. } => self.expr(x),
            ExprKind::Unary { operand, .. } => self.expr(operand),
            ExprKind::List(xs) | ExprKind::Tuple(xs) => self.all(xs),
            ExprKind::Record(fields) => self.all(fields.iter().map(|f| &f.value)),
            ExprKind::Call { callee: x, args } | ExprKind::With { base: x, args } => {
                self.expr(x);
                self.all(args.iter().map(|a| &a.value));
            }
            ExprKind::Index { base, items } => {
                self.expr(base);
                for i in items {
                    if let IndexItem::Expr(x) = i {
                        self.expr(x);
                    }
                }
            }
            ExprKind::Binary { lhs, rhs, .. } => self.all([&**lhs, rhs]),
            ExprKind::Range { start, end, .. } => {
                self.all(start.iter().chain(end).map(|x| &**x));
            }
            ExprKind::If { cond, then, otherwise } => {
                self.all([&**cond, then]);
                self.all(otherwise.iter().map(|x| &**x));
            }
            ExprKind::Match { value, arms } => {
                self.expr(value);
                self.all(arms.iter().map(|a| &a.value));
            }
            ExprKind::Pipe { input: a, stage: b }
            | ExprKind::From { base: a, source: b }
            | ExprKind::Of { part: a, whole: b } => self.all([&**a, b]),
            ExprKind::For(f) => {
                self.expr(&f.over);
                self.carried(&f.carrying);
                self.all(&f.until);
                self.block(&f.body);
            }
            ExprKind::Scan(s) => {
                self.used.extend(s.inputs.iter().map(|n| n.text.clone()));
                self.carried(&s.carrying);
                self.block(&s.body);
            }
            ExprKind::Collect(c) => {
                self.all(std::iter::once(&c.count).chain(&c.cond).chain(&c.within));
                self.block(&c.body);
            }
            ExprKind::Lambda { body, .. } => self.expr(body),
            ExprKind::Block(b) => self.block(b),
            ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Quantity(_)
            | ExprKind::Text(_)
            | ExprKind::Bool(_)
            | ExprKind::None
            | ExprKind::Rest => {}
        }
    }

    fn carried(&mut self, carries: &[ast::Carry]) {
        for c in carries {
            self.used.insert(c.name.text.clone());
            self.all(&c.start);
        }
    }
}
