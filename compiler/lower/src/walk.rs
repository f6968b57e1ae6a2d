//! A walk over every expression of a statement, in the order written.
//!
//! In: a statement, a block or an expression. Out: one call per expression, the outer before the
//! inner. Patterns and types hold no names of values, so they are left out.

use nrl_syntax::ast::{
    Arg, Block, Carry, Expr, ExprKind, IndexItem, PlanRule, PlanRuleKind, Stmt, StmtKind,
};

/// Calls `see` with every expression of a statement.
pub fn stmt<'a>(s: &'a Stmt, see: &mut dyn FnMut(&'a Expr)) {
    match &s.kind {
        StmtKind::Bind(b) => expr(&b.value, see),
        StmtKind::Expr(e) | StmtKind::Seed(e) => expr(e, see),
        StmtKind::Mesh(m) => {
            expr(&m.cluster, see);
            m.axes.iter().for_each(|a| expr(&a.size, see));
        }
        StmtKind::Pool(p) => {
            expr(&p.cluster, see);
            p.parts.iter().for_each(|e| expr(e, see));
        }
        StmtKind::View(v) => v.axes.iter().for_each(|a| expr(&a.size, see)),
        StmtKind::PlanFor(p) => {
            expr(&p.base, see);
            p.rules.iter().for_each(|r| rule(r, see));
        }
        StmtKind::Run(r) => {
            expr(&r.length, see);
            r.within.iter().chain(&r.seed).for_each(|e| expr(e, see));
        }
        StmtKind::Place(p) => {
            p.models.iter().for_each(|e| expr(e, see));
            expr(&p.mesh, see);
            p.plan.iter().for_each(|e| expr(e, see));
        }
        StmtKind::Freeze(es) | StmtKind::Require(es) | StmtKind::Expect(es) => {
            es.iter().for_each(|e| expr(e, see));
        }
        StmtKind::Phase(p) => {
            p.length.iter().for_each(|e| expr(e, see));
            block(&p.body, see);
        }
        StmtKind::Step(b) => block(b, see),
        StmtKind::Every(t) | StmtKind::From(t) => {
            expr(&t.time, see);
            block(&t.body, see);
        }
        StmtKind::Halt(h) => {
            expr(&h.cond, see);
            h.lasting.iter().for_each(|e| expr(e, see));
        }
        StmtKind::Assume(a) => expr(&a.value, see),
        StmtKind::Checkpoint(c) => c.keep.iter().chain(&c.by).for_each(|e| expr(e, see)),
        StmtKind::Update(u) => {
            expr(&u.model, see);
            expr(&u.optimizer, see);
            let counts = u.updates.iter().chain(&u.epochs).chain(&u.microbatch);
            counts.for_each(|e| expr(e, see));
            args(&u.settings, see);
            block(&u.loss, see);
        }
        StmtKind::Publish { what, every } => what.iter().chain(every).for_each(|e| expr(e, see)),
        StmtKind::Set { path, value } | StmtKind::Append { path, value } => {
            expr(path, see);
            expr(value, see);
        }
        StmtKind::Assert(a) => {
            expr(&a.cond, see);
            a.within.iter().for_each(|e| expr(e, see));
        }
        StmtKind::Fails(f) => block(&f.body, see),
        StmtKind::Remove { path } => expr(path, see),
        StmtKind::Settings(_) => {}
    }
}

fn rule<'a>(r: &'a PlanRule, see: &mut dyn FnMut(&'a Expr)) {
    r.cond.iter().for_each(|e| expr(e, see));
    match &r.kind {
        PlanRuleKind::Recompute { mode: e, .. } | PlanRuleKind::Offload { what: e } => expr(e, see),
        PlanRuleKind::Stages { chunks, split, paired, .. } => {
            chunks.iter().chain(split).chain(paired).for_each(|e| expr(e, see));
        }
        // Their targets are names of the model.
        _ => {}
    }
}

/// Calls `see` with every expression of a block.
pub fn block<'a>(b: &'a Block, see: &mut dyn FnMut(&'a Expr)) {
    b.stmts.iter().for_each(|s| stmt(s, see));
    b.value.iter().for_each(|e| expr(e, see));
}

fn args<'a>(list: &'a [Arg], see: &mut dyn FnMut(&'a Expr)) {
    list.iter().for_each(|a| expr(&a.value, see));
}

fn carries<'a>(list: &'a [Carry], see: &mut dyn FnMut(&'a Expr)) {
    list.iter().flat_map(|c| &c.start).for_each(|e| expr(e, see));
}

/// Calls `see` with `e` and every expression in it.
pub fn expr<'a>(e: &'a Expr, see: &mut dyn FnMut(&'a Expr)) {
    see(e);
    match &e.kind {
        ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Quantity(_)
        | ExprKind::Text(_)
        | ExprKind::Bool(_)
        | ExprKind::None
        | ExprKind::Name(_)
        | ExprKind::Rest => {}
        ExprKind::Some(x) | ExprKind::Field { base: x, .. } => expr(x, see),
        ExprKind::Unary { operand, .. } => expr(operand, see),
        ExprKind::List(items) | ExprKind::Tuple(items) => items.iter().for_each(|i| expr(i, see)),
        ExprKind::Record(fields) => fields.iter().for_each(|f| expr(&f.value, see)),
        ExprKind::Call { callee, args: list } => {
            expr(callee, see);
            args(list, see);
        }
        ExprKind::With { base, args: list } => {
            expr(base, see);
            args(list, see);
        }
        ExprKind::Index { base, items } => {
            expr(base, see);
            for i in items {
                if let IndexItem::Expr(x) = i {
                    expr(x, see);
                }
            }
        }
        ExprKind::Binary { lhs, rhs, .. } => {
            expr(lhs, see);
            expr(rhs, see);
        }
        ExprKind::Range { start, end, .. } => start.iter().chain(end).for_each(|x| expr(x, see)),
        ExprKind::If { cond, then, otherwise } => {
            expr(cond, see);
            expr(then, see);
            otherwise.iter().for_each(|x| expr(x, see));
        }
        ExprKind::Match { value, arms } => {
            expr(value, see);
            arms.iter().for_each(|a| expr(&a.value, see));
        }
        ExprKind::Pipe { input, stage } => {
            expr(input, see);
            expr(stage, see);
        }
        ExprKind::From { base, source } => {
            expr(base, see);
            expr(source, see);
        }
        ExprKind::For(f) => {
            expr(&f.over, see);
            carries(&f.carrying, see);
            f.until.iter().for_each(|x| expr(x, see));
            block(&f.body, see);
        }
        ExprKind::Scan(s) => {
            carries(&s.carrying, see);
            block(&s.body, see);
        }
        ExprKind::Lambda { body, .. } => expr(body, see),
        ExprKind::Block(b) => block(b, see),
        ExprKind::Of { part, whole } => {
            expr(part, see);
            expr(whole, see);
        }
        ExprKind::Collect(c) => {
            expr(&c.count, see);
            c.cond.iter().chain(&c.within).for_each(|x| expr(x, see));
            block(&c.body, see);
        }
    }
}
