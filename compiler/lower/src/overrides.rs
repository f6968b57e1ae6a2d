//! Changes to a recipe by path: `--set path=expr`, and `set`, `append`, `remove` of a child.
//!
//! A path names a recipe parameter, `seed`, `run.steps`, an axis of a mesh (`train.tp`), a binding
//! (`policy`), an argument of a binding's call (`policy.path`), the length of a phase (`rl.steps`),
//! and the same inside steps (`step.s.max_new`, `rl.step.update.updates`). The tree is changed
//! before anything is checked, so checks see it as if it had been written so, with the places of
//! the change. What a path may name is listed in `paths`.

use nrl_base::{Diagnostic, Problems, SourceMap, Span};
use nrl_syntax::ast::{self, Arg, Block, Expr, ExprKind, Name, Stmt, StmtKind};

use crate::extend::Edited;
use crate::paths;

/// Prefix of the printable name of an override's source.
pub const SOURCE_PREFIX: &str = "--set ";

/// What is done to the place that a path names.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'e> {
    Set(&'e Expr),
    Append(&'e Expr),
    Remove,
}

impl Edit<'_> {
    /// The word of the statement.
    pub fn word(self) -> &'static str {
        match self {
            Edit::Set(_) => "set",
            Edit::Append(_) => "append to",
            Edit::Remove => "remove",
        }
    }
}

/// Why an edit was not made.
#[derive(Debug)]
pub enum Missed {
    /// Nothing has this path.
    NotFound,
    /// Several lines have it.
    Several(Vec<Span>),
    /// It exists, and cannot be edited so: what it is.
    Refused(&'static str, Span),
}

type Done = Result<(), Missed>;

/// Applies overrides of the form `path=expr` to a recipe.
pub fn apply(
    edited: &mut Edited,
    sets: &[String],
    sources: &mut SourceMap,
    problems: &mut Problems,
) {
    for set in sets {
        let source = sources.add(format!("{SOURCE_PREFIX}{set}"), set.clone());
        let whole = Span::new(source, 0, set.len());
        let Some((path, text)) = set.split_once('=') else {
            problems.push(
                Diagnostic::error("bad-override", format!("`{set}` is not an override"))
                    .label(whole, "no `=` here")
                    .help("write `--set path=value`"),
            );
            continue;
        };
        let (value, found) = parse_value(source, path.len() + 1, text);
        problems.extend(found);
        let Some(value) = value else { continue };
        let segments: Vec<&str> = path.trim().split('.').collect();
        let span = Span::new(source, 0, path.len());
        if let Err(d) = change(edited, &segments, span, Edit::Set(&value)) {
            problems.push(*d);
        }
    }
}

/// Makes one change, or says why it cannot be made.
pub fn change(
    edited: &mut Edited,
    path: &[&str],
    span: Span,
    edit: Edit<'_>,
) -> Result<(), Box<Diagnostic>> {
    let recipe = &mut edited.recipe;
    let shown = path.join(".");
    if let [name] = path
        && let Some(p) = recipe.params.iter().find(|p| p.name.text == *name)
    {
        let Edit::Set(value) = edit else {
            let what = format!("`{name}` is a parameter; it can only be set");
            let d = Diagnostic::error("misplaced", what).label(span, "a parameter");
            return Err(Box::new(d.label(p.span, "declared here")));
        };
        edited.sets.push(((*name).to_string(), value.clone()));
        return Ok(());
    }
    let name = recipe.name.text.clone();
    let d = match in_block(&mut recipe.body, path, edit) {
        Ok(()) => return Ok(()),
        Err(Missed::NotFound) => {
            let known = paths::of(recipe);
            let what = format!("recipe `{name}` has no `{shown}` to {}", edit.word());
            Diagnostic::error("unknown-path", what).label(span, "not found").help(paths::near(
                &shown,
                path.first().unwrap_or(&""),
                &known,
            ))
        }
        Err(Missed::Several(places)) => {
            let what = format!("`{shown}` names {} lines of recipe `{name}`", places.len());
            let d = Diagnostic::error("ambiguous-path", what).label(span, "which of them?");
            places
                .into_iter()
                .fold(d, |d, p| d.label(p, "one"))
                .help("give the lines names, or change the expressions they use")
        }
        Err(Missed::Refused(why, place)) => {
            Diagnostic::error("misplaced", format!("cannot {} `{shown}`: {why}", edit.word()))
                .label(span, "this path")
                .label(place, "what it names")
        }
    };
    Err(Box::new(d))
}

/// Parses the value; positions count from the start of the override. Bare words that are not
/// expressions are not guessed to be text, but a path is: it says so with `/`.
fn parse_value(
    source: nrl_base::SourceId,
    offset: usize,
    text: &str,
) -> (Option<Expr>, Vec<Diagnostic>) {
    let span = Span::new(source, offset, offset + text.len());
    if text.trim_start().starts_with(['/', '~'])
        || text.trim_start().starts_with("./")
        || text.trim_start().starts_with("../")
    {
        return (Some(Expr { kind: ExprKind::Text(text.trim().to_string()), span }), vec![]);
    }
    // Blanks keep the positions of the value those of the whole override.
    let padded = format!("{}{text}", " ".repeat(offset));
    match nrl_syntax::parse_expr(source, &padded) {
        Ok(e) => (Some(e), vec![]),
        Err(found) => (None, found),
    }
}

/// Edits the one line of a block that the path leads to.
fn in_block(block: &mut Block, path: &[&str], edit: Edit<'_>) -> Done {
    let Some(head) = path.first() else { return Err(Missed::NotFound) };
    let mut at: Vec<usize> =
        (0..block.stmts.len()).filter(|i| paths::is_head(&block.stmts[*i], head)).collect();
    if at.iter().any(|i| matches!(block.stmts[*i].kind, StmtKind::Seed(_))) {
        at.retain(|i| matches!(block.stmts[*i].kind, StmtKind::Seed(_)));
    }
    if matches!((path, edit), (["require" | "expect"], Edit::Remove)) && !at.is_empty() {
        block.stmts.retain(|s| !paths::is_head(s, head));
        return Ok(());
    }
    let chosen = match &at[..] {
        [] => return Err(Missed::NotFound),
        [one] => *one,
        // Several `every` or `update` lines: the one that has the rest of the path.
        several => {
            let mut missed = Missed::NotFound;
            let mut fits = vec![];
            if path.len() == 1 {
                let places = several.iter().map(|i| block.stmts[*i].span);
                return Err(Missed::Several(places.collect()));
            }
            for i in several {
                match in_stmt(&mut block.stmts[*i].clone(), path, edit) {
                    Ok(()) => fits.push(*i),
                    Err(Missed::NotFound) => {}
                    Err(why) => missed = why,
                }
            }
            match &fits[..] {
                [] => return Err(missed),
                [one] => *one,
                fits => {
                    return Err(Missed::Several(
                        fits.iter().map(|i| block.stmts[*i].span).collect(),
                    ));
                }
            }
        }
    };
    if path.len() == 1 && matches!(edit, Edit::Remove) {
        return match &block.stmts[chosen].kind {
            StmtKind::Step(_) | StmtKind::Run(_) | StmtKind::Phase(_) => {
                Err(Missed::Refused("a recipe needs it", block.stmts[chosen].span))
            }
            _ => {
                block.stmts.remove(chosen);
                Ok(())
            }
        };
    }
    in_stmt(&mut block.stmts[chosen], path, edit)
}

/// Sets or removes something that may be left out.
fn optional(slot: &mut Option<Expr>, edit: Edit<'_>, unit: &str, span: Span) -> Done {
    match edit {
        Edit::Set(value) => *slot = Some(with_unit(value, unit)),
        Edit::Remove if slot.is_some() => *slot = None,
        Edit::Remove => return Err(Missed::NotFound),
        Edit::Append(_) => return Err(Missed::Refused("it is no list", span)),
    }
    Ok(())
}

/// Sets something that must be there.
fn needed(slot: &mut Expr, edit: Edit<'_>, unit: &str) -> Done {
    match edit {
        Edit::Set(value) => *slot = with_unit(value, unit),
        Edit::Remove => return Err(Missed::Refused("the line needs it", slot.span)),
        Edit::Append(_) => return Err(Missed::Refused("it is no list", slot.span)),
    }
    Ok(())
}

fn in_stmt(stmt: &mut Stmt, path: &[&str], edit: Edit<'_>) -> Done {
    let (span, rest) = (stmt.span, &path[1..]);
    match (&mut stmt.kind, rest) {
        (StmtKind::Bind(b), rest) => in_expr(&mut b.value, rest, edit),
        (StmtKind::Mesh(m), [axis]) => {
            let Some(at) = m.axes.iter().position(|a| a.name.text == *axis) else {
                return Err(Missed::NotFound);
            };
            if matches!(edit, Edit::Remove) {
                m.axes.remove(at);
                return Ok(());
            }
            needed(&mut m.axes[at].size, edit, "")
        }
        (StmtKind::Run(r), ["steps"]) => needed(&mut r.length, edit, "steps"),
        (StmtKind::Run(r), ["within"]) => optional(&mut r.within, edit, "", span),
        (StmtKind::Run(r), ["seed"]) => optional(&mut r.seed, edit, "", span),
        // `seed` alone is that of the `run` line.
        (StmtKind::Run(r), []) => optional(&mut r.seed, edit, "", span),
        (StmtKind::Seed(e), []) => needed(e, edit, ""),
        (StmtKind::Phase(p), ["steps"]) => optional(&mut p.length, edit, "steps", span),
        (StmtKind::Phase(p), rest) => in_block(&mut p.body, rest, edit),
        (StmtKind::Step(b), rest) => in_block(b, rest, edit),
        (StmtKind::Every(t), ["steps"]) => needed(&mut t.time, edit, "steps"),
        (StmtKind::Every(t), rest) => in_block(&mut t.body, rest, edit),
        (StmtKind::Halt(h), ["steps"]) => optional(&mut h.lasting, edit, "steps", span),
        (StmtKind::Checkpoint(c), ["keep"]) => optional(&mut c.keep, edit, "", span),
        (StmtKind::Checkpoint(c), ["by"]) => optional(&mut c.by, edit, "", span),
        (StmtKind::Assume(a), []) => needed(&mut a.value, edit, ""),
        (StmtKind::Place(p), [m, ..]) if !p.models.iter().any(|x| x.as_name() == Some(m)) => {
            Err(Missed::NotFound)
        }
        (StmtKind::Place(p), [_, "on"]) => needed(&mut p.mesh, edit, ""),
        (StmtKind::Place(p), [_, "by"]) => optional(&mut p.plan, edit, "", span),
        (StmtKind::Place(p), [_, "by", rest @ ..]) => match &mut p.plan {
            Some(plan) => in_expr(plan, rest, edit),
            None => Err(Missed::NotFound),
        },
        (StmtKind::Update(u), ["updates"]) => optional(&mut u.updates, edit, "updates", span),
        (StmtKind::Update(u), ["epochs"]) => optional(&mut u.epochs, edit, "epochs", span),
        (StmtKind::Update(u), ["microbatch"]) => optional(&mut u.microbatch, edit, "", span),
        (StmtKind::Update(u), ["loss"]) => {
            if let Edit::Set(value) = edit {
                u.loss.stmts.clear();
                u.loss.value = Some(Box::new(value.clone()));
                return Ok(());
            }
            Err(Missed::Refused("an update needs it", u.loss.span))
        }
        (StmtKind::Update(u), ["by"]) => needed(&mut u.optimizer, edit, ""),
        (StmtKind::Update(u), [name, rest @ ..]) => {
            in_args(&mut u.settings, name, rest, edit, false)
        }
        _ => Err(Missed::NotFound),
    }
}

/// Edits the expression, or an argument of the call it is.
fn in_expr(e: &mut Expr, path: &[&str], edit: Edit<'_>) -> Done {
    let Some((head, rest)) = path.split_first() else { return whole(e, edit) };
    match &mut e.kind {
        ExprKind::Call { args, .. } => in_args(args, head, rest, edit, true),
        ExprKind::With { base, args } => {
            if args.iter().any(|a| a.name.as_ref().is_some_and(|n| n.text == *head)) {
                return in_args(args, head, rest, edit, true);
            }
            match (&base.kind, edit) {
                // `sampler with (temperature: 0)` has no other place for a setting.
                (ExprKind::Name(_), Edit::Set(_)) => in_args(args, head, rest, edit, true),
                _ => in_expr(base, path, edit),
            }
        }
        ExprKind::Record(fields) => {
            let at = fields.iter().position(|f| f.name.text == *head).ok_or(Missed::NotFound)?;
            if rest.is_empty() && matches!(edit, Edit::Remove) {
                fields.remove(at);
                return Ok(());
            }
            in_expr(&mut fields[at].value, rest, edit)
        }
        ExprKind::Pipe { input, stage } => {
            let named = matches!(&stage.kind, ExprKind::Call { callee, .. } if callee.as_name() == Some(head))
                || stage.as_name() == Some(head);
            if !named {
                return in_expr(input, path, edit);
            }
            if rest.is_empty() && matches!(edit, Edit::Remove) {
                *e = (**input).clone();
                return Ok(());
            }
            in_expr(stage, rest, edit)
        }
        ExprKind::From { base, source } => {
            if *head == "from" && rest.is_empty() {
                whole(source, edit)
            } else {
                in_expr(base, path, edit)
            }
        }
        _ => Err(Missed::NotFound),
    }
}

fn whole(e: &mut Expr, edit: Edit<'_>) -> Done {
    match edit {
        Edit::Set(value) => *e = value.clone(),
        Edit::Remove => {
            return Err(Missed::Refused("only whole lines and arguments are removed", e.span));
        }
        Edit::Append(value) => match &mut e.kind {
            ExprKind::List(items) => items.push(value.clone()),
            ExprKind::Pipe { .. } => {
                let span = e.span.to(value.span);
                let input = Box::new(e.clone());
                *e = Expr { kind: ExprKind::Pipe { input, stage: Box::new(value.clone()) }, span };
            }
            _ => return Err(Missed::Refused("only a list `[..]` or a pipe `a | b` grows", e.span)),
        },
    }
    Ok(())
}

/// Edits an argument. One that was given by position or left out is added if `adds`: the callee
/// knows its names, and what an override gives wins.
fn in_args(args: &mut Vec<Arg>, head: &str, rest: &[&str], edit: Edit<'_>, adds: bool) -> Done {
    let named = |a: &Arg| a.name.as_ref().is_some_and(|n| n.text == head);
    if let Some(at) = args.iter().position(named) {
        if rest.is_empty() && matches!(edit, Edit::Remove) {
            args.remove(at);
            return Ok(());
        }
        return in_expr(&mut args[at].value, rest, edit);
    }
    // `{hidden_size: 32}` given by position: its fields are reached through the call.
    for a in args.iter_mut().filter(|a| a.name.is_none()) {
        if let ExprKind::Record(fields) = &a.value.kind
            && fields.iter().any(|f| f.name.text == head)
        {
            let mut path = vec![head];
            path.extend(rest);
            return in_expr(&mut a.value, &path, edit);
        }
    }
    match edit {
        Edit::Set(value) if rest.is_empty() && adds => {
            let name = Name { text: head.to_string(), span: value.span };
            args.push(Arg { name: Some(name), value: value.clone(), span: value.span });
            Ok(())
        }
        _ => Err(Missed::NotFound),
    }
}

/// Was this argument put there by an override? Its name and its value have one place.
pub fn is_added(name: Option<&Name>, value: Span) -> bool {
    name.is_some_and(|n| n.span == value)
}

/// The names of a written path, `step.s.max_new`.
pub fn names_of(path: &Expr) -> Option<Vec<&str>> {
    match &path.kind {
        ExprKind::Name(n) => Some(vec![n]),
        ExprKind::Field { base, name } => {
            let mut names = names_of(base)?;
            names.push(&name.text);
            Some(names)
        }
        _ => None,
    }
}

/// `10` where something is counted may be written without its unit.
fn with_unit(value: &Expr, unit: &str) -> Expr {
    match &value.kind {
        ExprKind::Int(n) if !unit.is_empty() => {
            let name = Name { text: unit.into(), span: value.span };
            let q = ast::Quantity {
                value: *n as f64,
                text: n.to_string(),
                whole: true,
                unit: vec![ast::UnitFactor { name, power: 1 }],
            };
            Expr { kind: ExprKind::Quantity(q), span: value.span }
        }
        _ => value.clone(),
    }
}
