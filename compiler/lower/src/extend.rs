//! `recipe b extends a { .. }`: the lines of `a`, changed by those of `b`.
//!
//! In: loaded modules. Out: for every recipe that extends another, the tree of the whole recipe.
//! `set`, `append` and `remove` are the changes of `--set`; other lines of the child are put in
//! where they are first used, else at the end. Every line keeps its place, so a message shows the
//! base's line and the child's, and a name means what it means in the file it is written in.

use std::collections::{BTreeMap, BTreeSet};

use nrl_base::{Diagnostic, Problems, Span, nearest};
use nrl_syntax::ast::{Expr, ItemKind, Name, Path, Recipe, Stmt, StmtKind, UseOrigin};

use crate::modules::{Global, ModuleId, Modules};
use crate::overrides::{self, Edit};
use crate::walk;

/// A recipe with its changes made.
#[derive(Clone, Debug)]
pub struct Edited {
    pub recipe: Recipe,
    /// New values of parameters, the last one counts; each must be of the kind of the default.
    pub sets: Vec<(String, Expr)>,
    /// The recipes it extends, the nearest first.
    pub bases: Vec<Name>,
    /// What a child took away.
    pub removed: Vec<(String, Span)>,
}

impl Edited {
    /// A recipe as written.
    pub fn of(recipe: &Recipe) -> Edited {
        Edited { recipe: recipe.clone(), sets: vec![], bases: vec![], removed: vec![] }
    }
}

type Key = (ModuleId, usize);

/// Composes every recipe that extends another.
pub fn compose(modules: &mut Modules, problems: &mut Problems) {
    let mut failed = BTreeSet::new();
    for m in 0..modules.list.len() {
        for i in 0..modules.list[m].file.items.len() {
            let key = (ModuleId(m), i);
            if recipe(modules, key).is_some_and(|r| r.extends.is_some()) {
                one(modules, key, &mut vec![], &mut failed, problems);
            }
        }
    }
}

fn recipe(modules: &Modules, key: Key) -> Option<&Recipe> {
    match &modules.item(key.0, key.1).kind {
        ItemKind::Recipe(r) => Some(r),
        _ => None,
    }
}

/// The composed recipe `key`; none if it, or one it extends, has an error.
fn one(
    modules: &mut Modules,
    key: Key,
    open: &mut Vec<Key>,
    failed: &mut BTreeSet<Key>,
    problems: &mut Problems,
) -> Option<Edited> {
    let own = recipe(modules, key)?.clone();
    let Some(base) = &own.extends else { return Some(Edited::of(&own)) };
    if let Some(done) = modules.edited.get(&key) {
        return Some(done.clone());
    }
    if failed.contains(&key) {
        return None;
    }
    open.push(key);
    let made = match find(modules, key, base) {
        Err(d) => {
            problems.extend(d.map(|d| *d));
            None
        }
        Ok(next) if open.contains(&next) => {
            let what = format!("recipe `{}` extends itself", own.name.text);
            let d = Diagnostic::error("recursion", what).label(base.span, "leads back to it");
            let at = open.iter().position(|k| *k == next).unwrap_or(0);
            let chain = open[at..].iter().chain([&next]);
            let names = chain.filter_map(|k| recipe(modules, *k)).map(|r| r.name.text.as_str());
            let d = d.note(format!("the way back: {}", names.collect::<Vec<_>>().join(" -> ")));
            // All of the circle are wrong for this one reason.
            failed.extend(open.iter().copied());
            problems.push(d);
            None
        }
        Ok(next) => match one(modules, next, open, failed, problems) {
            Some(base) => {
                let before = problems.as_slice().len();
                let made = joined(base, &own, problems);
                (problems.as_slice().len() == before).then_some(made)
            }
            None => None,
        },
    };
    open.pop();
    match &made {
        Some(e) => {
            modules.edited.insert(key, e.clone());
        }
        None => {
            failed.insert(key);
        }
    }
    made
}

/// The recipe that `extends` names. An error without words has been reported with its `use`.
fn find(modules: &Modules, (module, _): Key, path: &Path) -> Result<Key, Option<Box<Diagnostic>>> {
    let mut at = module;
    let Some((last, above)) = path.names.split_last() else { return Err(None) };
    for n in above {
        match modules.get(at).names.get(&n.text) {
            Some(Global::Module(m)) => at = *m,
            _ if is_used(modules, at, &n.text) => return Err(None),
            _ => {
                let known = modules.get(at).names.iter();
                let files = known.filter(|(_, g)| matches!(g, Global::Module(_)));
                let help = nearest(&n.text, files.map(|(n, _)| n.as_str()));
                let d = Diagnostic::error("unknown-name", format!("there is no `{}` here", n.text))
                    .label(n.span, "not a file that is used");
                return Err(some(d.help(help.map_or_else(
                    || format!("write `use \"{}.nrl\"` above", n.text),
                    |n| format!("did you mean `{n}`?"),
                ))));
            }
        }
    }
    if let Some(key) = modules.get(at).recipes.get(&last.text) {
        return Ok(*key);
    }
    if let Some(Global::Item(m, i)) = modules.get(at).names.get(&last.text) {
        let what = format!("`{}` is no recipe", path.text());
        let d = Diagnostic::error("wrong-type", what).label(path.span, "a recipe extends a recipe");
        let there = modules.item(*m, *i).name().map(|n| n.span);
        return Err(some(match there {
            Some(s) => d.label(s, "defined here"),
            None => d,
        }));
    }
    let help = nearest(&last.text, modules.get(at).recipes.keys().map(String::as_str))
        .map(|n| format!("did you mean `{n}`?"));
    let what = format!("there is no recipe `{}`", path.text());
    Err(some(Diagnostic::error("unknown-name", what).label(path.span, "not found").help_opt(help)))
}

fn some(d: Diagnostic) -> Option<Box<Diagnostic>> {
    Some(Box::new(d))
}

/// Does a `use` of the module name this, though the file could not be read?
fn is_used(modules: &Modules, module: ModuleId, name: &str) -> bool {
    modules.get(module).file.items.iter().any(|i| match &i.kind {
        ItemKind::Use(u) => match (&u.alias, &u.origin) {
            (Some(a), _) => a.text == name,
            (None, UseOrigin::File(t)) => {
                let file = t.value.trim_end_matches(".nrl");
                file.rsplit('/').next() == Some(name)
            }
            (None, UseOrigin::Path(p)) => p.names.last().is_some_and(|n| n.text == name),
        },
        _ => false,
    })
}

/// `base` with the lines of `child`.
fn joined(base: Edited, child: &Recipe, problems: &mut Problems) -> Edited {
    let mut out = base;
    out.bases.insert(0, out.recipe.name.clone());
    out.recipe.name = child.name.clone();
    out.recipe.extends.clone_from(&child.extends);
    for p in &child.params {
        match out.recipe.params.iter_mut().find(|b| b.name.text == p.name.text) {
            Some(b) => {
                if let Some(e) = &p.default {
                    out.sets.push((p.name.text.clone(), e.clone()));
                }
                if p.ty.is_some() {
                    b.ty.clone_from(&p.ty);
                }
            }
            None => out.recipe.params.push(p.clone()),
        }
    }
    let mut lines: Vec<Stmt> = child.body.stmts.clone();
    if let Some(v) = &child.body.value {
        lines.push(Stmt { doc: None, kind: StmtKind::Expr((**v).clone()), span: v.span });
    }
    if let Some(v) = out.recipe.body.value.take() {
        let span = v.span;
        out.recipe.body.stmts.push(Stmt { doc: None, kind: StmtKind::Expr(*v), span });
    }
    let mut new = vec![];
    for line in lines {
        let (path, edit) = match &line.kind {
            StmtKind::Set { path, value } => (path, Edit::Set(value)),
            StmtKind::Append { path, value } => (path, Edit::Append(value)),
            StmtKind::Remove { path } => (path, Edit::Remove),
            _ => {
                new.push(line);
                continue;
            }
        };
        let Some(names) = overrides::names_of(path) else {
            let d = Diagnostic::error("misplaced", "this is no path");
            problems.push(d.label(path.span, "write names and dots, such as `step.s.max_new`"));
            continue;
        };
        if matches!(edit, Edit::Remove)
            && let [name] = &names[..]
        {
            out.removed.push(((*name).to_string(), path.span));
        }
        if let Err(d) = overrides::change(&mut out, &names, path.span, edit) {
            problems.push(*d);
        }
    }
    new.retain(|line| match clash(&out.recipe, line) {
        Some(d) => {
            problems.push(d);
            false
        }
        None => true,
    });
    merge(&mut out.recipe.body.stmts, new);
    out.recipe.body.span = child.body.span;
    out
}

/// Puts new lines before the first line that uses what they bind, else at the end.
fn merge(stmts: &mut Vec<Stmt>, new: Vec<Stmt>) {
    if new.is_empty() {
        return;
    }
    let end = stmts.len();
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for (i, s) in stmts.iter().enumerate() {
        walk::stmt(s, &mut |e| {
            e.as_name().map(|n| used.entry(n.to_string()).or_insert(i));
        });
    }
    // From the last to the first, so that a line comes before the new lines that use it.
    let mut places = vec![end; new.len()];
    for (line, place) in new.iter().zip(&mut places).rev() {
        let first = bound(line).filter_map(|n| used.get(&n.text)).min();
        *place = first.copied().unwrap_or(end);
        let at = *place;
        walk::stmt(line, &mut |e| {
            if let Some(n) = e.as_name() {
                let first = used.entry(n.to_string()).or_insert(at);
                *first = at.min(*first);
            }
        });
    }
    let mut lines: Vec<(usize, usize, Stmt)> =
        places.into_iter().zip(new).map(|(at, s)| (at, 0, s)).collect();
    lines.extend(std::mem::take(stmts).into_iter().enumerate().map(|(i, s)| (i, 1, s)));
    // Stable: lines of one place stay in the order written, new ones before the old one.
    lines.sort_by_key(|(at, old, _)| (*at, *old));
    stmts.extend(lines.into_iter().map(|(_, _, s)| s));
}

/// The names that a line of a recipe binds.
fn bound(stmt: &Stmt) -> impl Iterator<Item = &Name> {
    let (many, one) = match &stmt.kind {
        StmtKind::Bind(b) => (&b.names[..], None),
        StmtKind::Pool(p) => (&p.names[..], None),
        StmtKind::Mesh(m) => (&[][..], Some(&m.name)),
        StmtKind::View(v) => (&[][..], Some(&v.name)),
        StmtKind::PlanFor(p) => (&[][..], Some(&p.name)),
        StmtKind::Phase(p) => (&[][..], Some(&p.name)),
        _ => (&[][..], None),
    };
    many.iter().chain(one)
}

/// A line of a child that the base has too.
fn clash(base: &Recipe, line: &Stmt) -> Option<Diagnostic> {
    for n in bound(line) {
        let mut names = base.body.stmts.iter().flat_map(bound);
        if let Some(first) = names.find(|b| b.text == n.text) {
            let what = format!("`{}` is bound by the recipe it extends", n.text);
            return Some(
                Diagnostic::error("duplicate-name", what)
                    .label(n.span, "bound again")
                    .label(first.span, "first bound here")
                    .help(format!("write `set {} = ..`", n.text)),
            );
        }
    }
    let (what, help) = match &line.kind {
        StmtKind::Run(_) => ("run", "write `set run.steps = ..`"),
        StmtKind::Step(_) => ("step", "change its lines: `set step.NAME = ..`"),
        StmtKind::Seed(_) => ("seed", "write `set seed = ..`"),
        _ => return None,
    };
    let same = |s: &&Stmt| std::mem::discriminant(&s.kind) == std::mem::discriminant(&line.kind);
    let first = base.body.stmts.iter().find(same)?;
    Some(
        Diagnostic::error("duplicate-name", format!("the recipe it extends has a `{what}` line"))
            .label(line.span, "second one")
            .label(first.span, "first one")
            .help(help),
    )
}
