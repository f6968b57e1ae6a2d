//! `--set path=expr`: the same grammar, an existing path, provenance in every message.
//!
//! A path names a recipe parameter, `seed`, `run.steps`, an axis of a mesh (`train.tp`), a binding
//! (`policy`), an argument of a binding's call (`policy.path`), the length of a phase (`rl.steps`),
//! and the same inside steps (`step.s.max_new`, `rl.step.update.updates`). The new value replaces
//! the old expression before anything is checked, so checks see it as if it had been written.

use nrl_base::{Diagnostic, Problems, SourceMap, Span, nearest};
use nrl_syntax::ast::{self, Arg, Block, Expr, ExprKind, File, ItemKind, Name, Stmt, StmtKind};

/// Prefix of the printable name of an override's source.
pub const SOURCE_PREFIX: &str = "--set ";

/// Applies overrides of the form `path=expr` to the first recipe of `file` (or the one called
/// `recipe`). Values for recipe parameters are returned, since their kind is checked against the
/// default.
pub fn apply(
    file: &mut File,
    sets: &[String],
    sources: &mut SourceMap,
    problems: &mut Problems,
) -> Vec<(String, Expr)> {
    let mut params = vec![];
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
        let Some(recipe) = file
            .items
            .iter_mut()
            .find_map(|i| if let ItemKind::Recipe(r) = &mut i.kind { Some(r) } else { None })
        else {
            continue;
        };
        let segments: Vec<&str> = path.trim().split('.').collect();
        if let [name] = &segments[..]
            && recipe.params.iter().any(|p| p.name.text == *name)
        {
            params.push(((*name).to_string(), value));
            continue;
        }
        let mut known: Vec<String> = recipe.params.iter().map(|p| p.name.text.clone()).collect();
        if !in_block(&mut recipe.body, &segments, &value, &mut known) {
            let help = near_path(path.trim(), segments[0], &known);
            problems.push(
                Diagnostic::error(
                    "unknown-path",
                    format!("recipe `{}` has no `{path}` to set", recipe.name.text),
                )
                .label(Span::new(source, 0, path.len()), "not found")
                .help(help),
            );
        }
    }
    params
}

/// The path that could be meant, else what paths start with, or what they may go on with.
fn near_path(path: &str, head: &str, known: &[String]) -> String {
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

fn in_block(block: &mut Block, path: &[&str], value: &Expr, known: &mut Vec<String>) -> bool {
    block.stmts.iter_mut().any(|stmt| in_stmt(stmt, path, value, known))
}

/// Runs `f` on what stands below `head`; the paths it finds get `head` in front.
fn below(head: &str, known: &mut Vec<String>, f: impl FnOnce(&mut Vec<String>) -> bool) -> bool {
    let mut inner = vec![];
    let done = f(&mut inner);
    known.extend(inner.into_iter().map(|k| format!("{head}.{k}")));
    done
}

fn in_stmt(stmt: &mut Stmt, path: &[&str], value: &Expr, known: &mut Vec<String>) -> bool {
    let (head, rest) = (path[0], &path[1..]);
    match &mut stmt.kind {
        StmtKind::Bind(b) => {
            known.extend(b.names.iter().map(|n| n.text.clone()));
            if let ExprKind::Call { args, .. } | ExprKind::With { args, .. } = &b.value.kind {
                let named = args.iter().filter_map(|a| a.name.as_ref());
                known.extend(named.map(|n| format!("{}.{}", b.names[0].text, n.text)));
            }
            b.names.len() == 1 && b.names[0].text == head && in_expr(&mut b.value, rest, value)
        }
        StmtKind::Mesh(m) => {
            known.extend(m.axes.iter().map(|a| format!("{}.{}", m.name.text, a.name.text)));
            if m.name.text != head || rest.len() != 1 {
                return false;
            }
            match m.axes.iter_mut().find(|a| a.name.text == rest[0]) {
                Some(a) => {
                    a.size = value.clone();
                    true
                }
                None => false,
            }
        }
        StmtKind::Run(r) => {
            known.extend(["run.steps", "run.seed", "run.within"].map(String::from));
            match path {
                ["run", "steps"] => r.length = with_unit(value, "steps"),
                ["run", "seed"] | ["seed"] => r.seed = Some(value.clone()),
                ["run", "within"] => r.within = Some(value.clone()),
                _ => return false,
            }
            true
        }
        StmtKind::Seed(e) => {
            known.push("seed".into());
            if path != ["seed"] {
                return false;
            }
            *e = value.clone();
            true
        }
        StmtKind::Phase(p) => {
            known.push(format!("{}.steps", p.name.text));
            if p.name.text != head {
                return false;
            }
            if rest == ["steps"] {
                p.length = Some(with_unit(value, "steps"));
                return true;
            }
            !rest.is_empty() && below(head, known, |k| in_block(&mut p.body, rest, value, k))
        }
        StmtKind::Step(b) => {
            known.push("step".into());
            head == "step"
                && !rest.is_empty()
                && below(head, known, |k| in_block(b, rest, value, k))
        }
        StmtKind::Every(t) => {
            head == "every"
                && !rest.is_empty()
                && (rest == ["steps"] && {
                    t.time = with_unit(value, "steps");
                    true
                } || in_block(&mut t.body, rest, value, known))
        }
        StmtKind::Update(u) => {
            known
                .extend(["update.updates", "update.epochs", "update.microbatch"].map(String::from));
            if head != "update" {
                return false;
            }
            match rest {
                ["updates"] => u.updates = Some(with_unit(value, "updates")),
                ["epochs"] => u.epochs = Some(with_unit(value, "epochs")),
                ["microbatch"] => u.microbatch = Some(value.clone()),
                _ => return false,
            }
            true
        }
        _ => false,
    }
}

/// Replaces the expression, or an argument of the call it is.
fn in_expr(e: &mut Expr, path: &[&str], value: &Expr) -> bool {
    let Some(head) = path.first() else {
        *e = value.clone();
        return true;
    };
    match &mut e.kind {
        ExprKind::Call { args, .. } | ExprKind::With { args, .. } => {
            if let Some(a) =
                args.iter_mut().find(|a| a.name.as_ref().is_some_and(|n| n.text == *head))
            {
                return in_expr(&mut a.value, &path[1..], value);
            }
            if path.len() > 1 {
                return false;
            }
            // Given by position or left out: the callee knows its names, and an override wins.
            let name = Name { text: (*head).to_string(), span: value.span };
            args.push(Arg { name: Some(name), value: value.clone(), span: value.span });
            true
        }
        ExprKind::Record(fields) => match fields.iter_mut().find(|f| f.name.text == *head) {
            Some(f) => in_expr(&mut f.value, &path[1..], value),
            None => false,
        },
        ExprKind::Pipe { input, stage } => {
            let named = matches!(&stage.kind, ExprKind::Call { callee, .. } if callee.as_name() == Some(head));
            if named && path.len() > 1 {
                in_expr(stage, &path[1..], value)
            } else {
                in_expr(input, path, value)
            }
        }
        ExprKind::From { base, source } => {
            if *head == "from" && path.len() == 1 {
                in_expr(source, &[], value)
            } else {
                in_expr(base, path, value)
            }
        }
        _ => false,
    }
}

/// `10` where steps are counted may be written without its unit on the command line.
fn with_unit(value: &Expr, unit: &str) -> Expr {
    match &value.kind {
        ExprKind::Int(n) => {
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
