//! The paths that a recipe has: which line a path starts from, and the list for suggestions.
//!
//! In: a recipe. Out: every path that `set` and `--set` take, and the nearest to a wrong one.

use nrl_base::{Span, nearest};
use nrl_syntax::ast::{Block, Expr, ExprKind, Recipe, Stmt, StmtKind};

/// Does a path that begins with `head` lead to this line?
pub fn is_head(stmt: &Stmt, head: &str) -> bool {
    match &stmt.kind {
        StmtKind::Bind(b) => b.names.len() == 1 && b.names[0].text == head,
        StmtKind::Mesh(m) => m.name.text == head,
        StmtKind::PlanFor(p) => p.name.text == head,
        StmtKind::Phase(p) => p.name.text == head,
        StmtKind::Run(_) => head == "run" || head == "seed",
        StmtKind::Seed(_) => head == "seed",
        StmtKind::Step(_) => head == "step",
        StmtKind::Every(_) => head == "every",
        StmtKind::Halt(_) => head == "halt",
        StmtKind::Require(_) => head == "require",
        StmtKind::Expect(_) => head == "expect",
        StmtKind::Checkpoint(_) => head == "checkpoint",
        StmtKind::Assume(a) => a.name.text == head,
        StmtKind::Place(_) => head == "place",
        StmtKind::Update(_) => head == "update",
        _ => false,
    }
}

/// A path, and the expression that it names where there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub path: String,
    /// Where its value is written.
    pub value: Option<Span>,
    /// Whether the value is a call that takes further arguments: `path.argument` may then be set.
    pub call: bool,
}

/// All paths of a recipe, in order.
pub fn of(recipe: &Recipe) -> Vec<String> {
    named(recipe).into_iter().map(|n| n.path).collect()
}

/// All paths of a recipe with their values, in order.
pub fn named(recipe: &Recipe) -> Vec<Named> {
    let mut out = vec![];
    for p in &recipe.params {
        put(&mut out, p.name.text.clone(), p.default.as_ref());
    }
    below(&recipe.body, "", &mut out);
    out
}

fn put(out: &mut Vec<Named>, path: String, value: Option<&Expr>) {
    let call = value.is_some_and(|v| matches!(v.kind, ExprKind::Call { .. }));
    out.push(Named { path, value: value.map(|v| v.span), call });
}

/// A path and all that its value has.
fn deep(out: &mut Vec<Named>, path: String, value: &Expr) {
    put(out, path.clone(), Some(value));
    settings(value, &mut |name, inner| put(out, format!("{path}.{name}"), Some(inner)));
}

fn below(block: &Block, prefix: &str, out: &mut Vec<Named>) {
    for stmt in &block.stmts {
        let at = |path: &str| format!("{prefix}{path}");
        match &stmt.kind {
            StmtKind::Bind(b) if b.names.len() == 1 => deep(out, at(&b.names[0].text), &b.value),
            StmtKind::Mesh(m) => m.axes.iter().for_each(|a| {
                put(out, at(&format!("{}.{}", m.name.text, a.name.text)), Some(&a.size))
            }),
            StmtKind::Run(r) => {
                put(out, at("run.steps"), Some(&r.length));
                put(out, at("run.seed"), r.seed.as_ref());
                put(out, at("run.within"), r.within.as_ref());
            }
            StmtKind::Seed(e) => put(out, at("seed"), Some(e)),
            StmtKind::Halt(h) => put(out, at("halt.steps"), h.lasting.as_ref()),
            StmtKind::Assume(a) => put(out, at(&a.name.text), Some(&a.value)),
            StmtKind::Checkpoint(c) => {
                put(out, at("checkpoint.keep"), c.keep.as_ref());
                put(out, at("checkpoint.by"), c.by.as_ref());
            }
            StmtKind::Place(p) => {
                for m in p.models.iter().filter_map(Expr::as_name) {
                    put(out, at(&format!("place.{m}.on")), Some(&p.mesh));
                    match &p.plan {
                        Some(plan) => deep(out, at(&format!("place.{m}.by")), plan),
                        None => put(out, at(&format!("place.{m}.by")), None),
                    }
                }
            }
            StmtKind::Update(u) => {
                put(out, at("update.updates"), u.updates.as_ref());
                put(out, at("update.epochs"), u.epochs.as_ref());
                put(out, at("update.microbatch"), u.microbatch.as_ref());
                put(out, at("update.by"), Some(&u.optimizer));
                put(out, at("update.loss"), u.loss.value.as_deref());
            }
            StmtKind::Phase(p) => {
                put(out, at(&format!("{}.steps", p.name.text)), p.length.as_ref());
                below(&p.body, &format!("{prefix}{}.", p.name.text), out);
            }
            StmtKind::Step(b) => {
                put(out, at("step"), None);
                below(b, &format!("{prefix}step."), out);
            }
            StmtKind::Every(t) => {
                put(out, at("every.steps"), Some(&t.time));
                below(&t.body, &format!("{prefix}every."), out);
            }
            _ => {}
        }
    }
}

/// The named arguments of the calls that an expression is.
fn settings<'e>(e: &'e Expr, see: &mut dyn FnMut(&str, &'e Expr)) {
    match &e.kind {
        ExprKind::Call { args, .. } => {
            for a in args {
                match (&a.name, &a.value.kind) {
                    (Some(n), _) => see(&n.text, &a.value),
                    (None, ExprKind::Record(fields)) => {
                        fields.iter().for_each(|f| see(&f.name.text, &f.value))
                    }
                    _ => {}
                }
            }
        }
        ExprKind::With { base, args } => {
            for a in args {
                if let Some(n) = &a.name {
                    see(&n.text, &a.value);
                }
            }
            settings(base, see);
        }
        ExprKind::Pipe { input, .. } => settings(input, see),
        ExprKind::From { base, .. } => settings(base, see),
        ExprKind::Record(fields) => fields.iter().for_each(|f| see(&f.name.text, &f.value)),
        _ => {}
    }
}

/// The path that could be meant, else what paths start with, or what they may go on with.
pub fn near(path: &str, head: &str, known: &[String]) -> String {
    if let Some(n) = nearest(path, known.iter().map(String::as_str)) {
        return format!("did you mean `{n}`?");
    }
    let below: Vec<&str> =
        known.iter().filter(|k| k.split('.').next() == Some(head)).map(String::as_str).collect();
    if below.iter().any(|k| k.contains('.')) {
        return format!("known are {}", below.join(", "));
    }
    let mut heads: Vec<&str> = known.iter().map(|k| k.split('.').next().unwrap_or(k)).collect();
    heads.dedup();
    format!("paths start with one of {}", heads.join(", "))
}
