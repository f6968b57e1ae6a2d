//! The paths that a recipe has: which line a path starts from, and the list for suggestions.
//!
//! In: a recipe. Out: every path that `set` and `--set` take, and the nearest to a wrong one.

use nrl_base::nearest;
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

/// All paths of a recipe, in order.
pub fn of(recipe: &Recipe) -> Vec<String> {
    let mut out: Vec<String> = recipe.params.iter().map(|p| p.name.text.clone()).collect();
    below(&recipe.body, "", &mut out);
    out
}

fn below(block: &Block, prefix: &str, out: &mut Vec<String>) {
    for stmt in &block.stmts {
        let mut add = |path: String| out.push(format!("{prefix}{path}"));
        match &stmt.kind {
            StmtKind::Bind(b) if b.names.len() == 1 => {
                let name = &b.names[0].text;
                add(name.clone());
                settings(&b.value, &mut |n| add(format!("{name}.{n}")));
            }
            StmtKind::Mesh(m) => {
                m.axes.iter().for_each(|a| add(format!("{}.{}", m.name.text, a.name.text)));
            }
            StmtKind::Run(_) => {
                ["run.steps", "run.seed", "run.within"].iter().for_each(|p| add((*p).into()))
            }
            StmtKind::Seed(_) => add("seed".into()),
            StmtKind::Halt(_) => add("halt.steps".into()),
            StmtKind::Assume(a) => add(a.name.text.clone()),
            StmtKind::Checkpoint(_) => {
                ["checkpoint.keep", "checkpoint.by"].iter().for_each(|p| add((*p).into()));
            }
            StmtKind::Place(p) => {
                for m in p.models.iter().filter_map(Expr::as_name) {
                    add(format!("place.{m}.on"));
                    add(format!("place.{m}.by"));
                }
            }
            StmtKind::Update(_) => {
                [
                    "update.updates",
                    "update.epochs",
                    "update.microbatch",
                    "update.by",
                    "update.loss",
                ]
                .iter()
                .for_each(|p| add((*p).into()));
            }
            StmtKind::Phase(p) => {
                add(format!("{}.steps", p.name.text));
                below(&p.body, &format!("{prefix}{}.", p.name.text), out);
            }
            StmtKind::Step(b) => {
                add("step".into());
                below(b, &format!("{prefix}step."), out);
            }
            StmtKind::Every(t) => {
                add("every.steps".into());
                below(&t.body, &format!("{prefix}every."), out);
            }
            _ => {}
        }
    }
}

/// The named arguments of the calls that an expression is.
fn settings(e: &Expr, see: &mut dyn FnMut(&str)) {
    match &e.kind {
        ExprKind::Call { args, .. } => {
            for a in args {
                match (&a.name, &a.value.kind) {
                    (Some(n), _) => see(&n.text),
                    (None, ExprKind::Record(fields)) => {
                        fields.iter().for_each(|f| see(&f.name.text))
                    }
                    _ => {}
                }
            }
        }
        ExprKind::With { base, args } => {
            args.iter().filter_map(|a| a.name.as_ref()).for_each(|n| see(&n.text));
            settings(base, see);
        }
        ExprKind::Pipe { input, .. } => settings(input, see),
        ExprKind::From { base, .. } => settings(base, see),
        ExprKind::Record(fields) => fields.iter().for_each(|f| see(&f.name.text)),
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
