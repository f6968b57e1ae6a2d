//! Lines of a recipe that nothing uses.
//!
//! In: a recipe as written. Out: one warning per binding, mesh, pool or parameter whose name no
//! other line holds. Lines of a step are left out: their numbers are reported.

use std::collections::BTreeSet;

use nrl_syntax::ast::{self, Block, Expr, Name, PlanRuleKind, StmtKind};

use crate::elab::Elab;
use crate::walk;

impl<'a> Elab<'a, '_> {
    /// Warns of names that a recipe binds and never uses.
    pub fn check_unused(&mut self, r: &'a ast::Recipe) {
        let mut seen = BTreeSet::new();
        let mut see = |e: &Expr| seen.extend(e.as_name().map(str::to_string));
        r.params.iter().flat_map(|p| &p.default).for_each(|e| walk::expr(e, &mut see));
        used(&r.body, &mut seen);
        let mut bound: Vec<(&Name, &str)> = vec![];
        bound.extend(r.params.iter().map(|p| (&p.name, "parameter")));
        bindings(&r.body, &mut bound);
        for (name, what) in bound {
            if seen.contains(&name.text) || name.text.starts_with('_') {
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

/// Every name that the lines of a block hold.
fn used(block: &Block, out: &mut BTreeSet<String>) {
    walk::block(block, &mut |e| out.extend(e.as_name().map(str::to_string)));
    paths(block, out);
}

/// Every name that the expressions of a block hold.
pub fn names_of(block: &Block) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    used(block, &mut out);
    out
}

/// Every name that an expression holds.
pub fn names_in(e: &Expr) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    walk::expr(e, &mut |x| out.extend(x.as_name().map(str::to_string)));
    out
}

/// The meshes, models and views that lines name without an expression.
fn paths(block: &Block, out: &mut BTreeSet<String>) {
    let first = |p: &ast::Path| p.names.first().map(|n| n.text.clone());
    for s in &block.stmts {
        match &s.kind {
            StmtKind::View(v) => out.extend(first(&v.mesh)),
            StmtKind::PlanFor(p) => {
                out.extend(p.mesh.iter().chain(&p.model).filter_map(first));
                for r in &p.rules {
                    if let PlanRuleKind::Split { view: Some(v), .. } = &r.kind {
                        out.insert(v.text.clone());
                    }
                }
            }
            StmtKind::Phase(p) => paths(&p.body, out),
            StmtKind::Step(b) => paths(b, out),
            StmtKind::Every(t) | StmtKind::From(t) => paths(&t.body, out),
            _ => {}
        }
    }
}
