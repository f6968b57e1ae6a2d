//! Changes to the text of a recipe that leave the rest of it as it is.
//!
//! In: a recipe, a path and a value as they are typed. Out: the text with the value in its place, laid out by the
//! formatter. What stands in another file is set by a line in the recipe itself.

use nrl_base::{SourceId, SourceMap, Span};
use nrl_lower::paths::Named;
use nrl_syntax::ast::{BinaryOp, Expr, ExprKind, ItemKind, Recipe, Stmt, StmtKind};

use crate::input::Input;

/// The text of `input` with `path` set to `value`; `None` if nothing has the path.
pub fn set(input: &Input<'_>, path: &str, value: &str) -> Option<String> {
    let mut sources = SourceMap::new();
    let all = input.paths(&mut sources);
    // The file itself is the first source.
    let own = |s: &Span| s.source == SourceId(0);
    let named = all.iter().find(|n| n.path == path);
    let edited = match named.and_then(|n| n.value) {
        Some(span) if own(&span) => {
            let old = input.text.get(span.range())?;
            Some(splice(&input.text, span, &with_unit(old, value)))
        }
        Some(_) => line(input, path, value),
        None => match new_argument(&all, path) {
            Some((span, name)) if own(&span) => argument(&input.text, span, name, value),
            _ => unit_part(input, path, value),
        },
    }?;
    Some(nrl_syntax::print::format(&edited).unwrap_or(edited))
}

/// `text` with what stands at `span` replaced.
fn splice(text: &str, span: Span, new: &str) -> String {
    let mut out = text.to_string();
    out.replace_range(span.range(), new);
    out
}

/// A bare number takes the unit of what it replaces.
fn with_unit(old: &str, value: &str) -> String {
    let bare = value.chars().all(|c| c.is_ascii_digit() || c == '.');
    match old.split_once(' ') {
        Some((number, unit))
            if bare
                && number.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '_')
                && !unit.contains([' ', '(']) =>
        {
            format!("{value} {unit}")
        }
        _ => value.to_string(),
    }
}

/// The call that takes the last name of a path as a further argument.
fn new_argument<'p>(all: &[Named], path: &'p str) -> Option<(Span, &'p str)> {
    let (owner, name) = path.rsplit_once('.')?;
    let call = all.iter().find(|n| n.path == owner && n.call)?;
    Some((call.value?, name))
}

fn argument(text: &str, call: Span, name: &str, value: &str) -> Option<String> {
    let written = text.get(call.range())?;
    let body = written.strip_suffix(')')?;
    let comma = if body.trim_end().ends_with(['(', ',']) { "" } else { ", " };
    Some(splice(text, call, &format!("{body}{comma}{name}: {value})")))
}

/// A setting of a line that has none: `run.within`, `update.updates`, `update.microbatch`.
fn unit_part(input: &Input<'_>, path: &str, value: &str) -> Option<String> {
    let (file, _) = nrl_syntax::parse(SourceId(0), &input.text);
    let recipe = recipe(&file, input.options.recipe.as_deref())?;
    let (owner, name) = path.rsplit_once('.')?;
    let mut at = None;
    statements(&recipe.body.stmts, &mut |s| match (&s.kind, owner, name) {
        (StmtKind::Run(r), "run", "within") if r.within.is_none() => {
            at = Some((r.length.span.end as usize, format!(" within {value}")));
        }
        (StmtKind::Run(r), "run", "seed") if r.seed.is_none() => {
            let end = r.within.as_ref().map_or(r.length.span.end, |w| w.span.end);
            at = Some((end as usize, format!(", seed {value}")));
        }
        _ => {}
    });
    let (at, new) = at?;
    let mut out = input.text.clone();
    out.insert_str(at, &new);
    Some(out)
}

/// A `set` line at the end of the recipe: what it changes stands in the file of its base.
fn line(input: &Input<'_>, path: &str, value: &str) -> Option<String> {
    let (file, _) = nrl_syntax::parse(SourceId(0), &input.text);
    let recipe = recipe(&file, input.options.recipe.as_deref())?;
    recipe.extends.as_ref()?;
    let end = recipe.body.span.end as usize;
    let close = input.text.get(..end)?.rfind('}')?;
    let mut out = input.text.clone();
    out.insert_str(close, &format!("\n  set {path} = {value}\n"));
    Some(out)
}

/// The recipe to run.
pub fn recipe<'f>(file: &'f nrl_syntax::ast::File, name: Option<&str>) -> Option<&'f Recipe> {
    let mut all = file.items.iter().filter_map(|i| match &i.kind {
        ItemKind::Recipe(r) => Some(r),
        _ => None,
    });
    match name {
        Some(name) => all.find(|r| r.name.text == name),
        None => all.next(),
    }
}

/// All statements, those of phases, steps and other blocks among them.
pub fn statements<'s>(stmts: &'s [Stmt], see: &mut dyn FnMut(&'s Stmt)) {
    for s in stmts {
        see(s);
        match &s.kind {
            StmtKind::Phase(p) => statements(&p.body.stmts, see),
            StmtKind::Step(b) => statements(&b.stmts, see),
            StmtKind::Every(t) => statements(&t.body.stmts, see),
            _ => {}
        }
    }
}

/// The text without the terms of losses that mention `name`; `None` if there are none to take away.
pub fn without_terms(input: &Input<'_>, name: &str) -> Option<String> {
    let (file, _) = nrl_syntax::parse(SourceId(0), &input.text);
    let recipe = recipe(&file, input.options.recipe.as_deref())?;
    let mut cuts = vec![];
    statements(&recipe.body.stmts, &mut |s| {
        if let StmtKind::Update(u) = &s.kind
            && let Some(loss) = &u.loss.value
        {
            terms(loss, name, &input.text, &mut cuts);
        }
    });
    let mut out = input.text.clone();
    cuts.sort_unstable();
    for (from, to) in cuts.iter().rev() {
        out.replace_range(*from..*to, "");
    }
    (!cuts.is_empty()).then_some(out)
}

/// The byte ranges of `+ term` where the term mentions a name.
fn terms(e: &Expr, name: &str, text: &str, cuts: &mut Vec<(usize, usize)>) {
    let ExprKind::Binary { op: BinaryOp::Add, lhs, rhs, .. } = &e.kind else { return };
    let mentions = |e: &Expr| {
        let written = text.get(e.span.range()).unwrap_or("");
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        written.split(|c: char| !word(c)).any(|w| w == name)
    };
    match (mentions(lhs), mentions(rhs)) {
        (_, true) => {
            cuts.push((lhs.span.end as usize, rhs.span.end as usize));
            terms(lhs, name, text, cuts);
        }
        (true, false) if !matches!(lhs.kind, ExprKind::Binary { op: BinaryOp::Add, .. }) => {
            cuts.push((lhs.span.start as usize, rhs.span.start as usize));
        }
        (true, false) => terms(lhs, name, text, cuts),
        (false, false) => {}
    }
}

/// A line that one of two texts has, by its number there, from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Differs<'t> {
    Gone(usize, &'t str),
    Come(usize, &'t str),
}

/// Lines in which two texts differ, in order: those outside of the longest common sequence.
pub fn lines<'t>(old: &'t str, new: &'t str) -> Vec<Differs<'t>> {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut common = vec![vec![0u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = match a[i] == b[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut out = vec![];
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || common[i + 1][j] >= common[i][j + 1]) {
            out.push(Differs::Gone(i + 1, a[i]));
            i += 1;
        } else {
            out.push(Differs::Come(j + 1, b[j]));
            j += 1;
        }
    }
    out
}
