//! Names that do not exist, stand in the wrong section, or that nobody reads.

use nrl_base::{Diagnostic, Severity, nearest};
use nrl_rules::recipe::Recipe;
use nrl_rules::settings::{Node, SetBy};

use super::keys::{Key, Schema};
use super::types::place;

/// A name that its section does not have. In an open section only a near miss is told.
pub fn key(
    recipe: &Recipe,
    schema: &Schema,
    section: &str,
    path: &str,
    node: &Node,
    open: bool,
) -> Option<Diagnostic> {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    if name.starts_with('_') {
        return None;
    }
    let within = if parent.is_empty() { "a recipe".to_string() } else { format!("`{parent}`") };
    if let Some(near) = nearest(name, schema.names(section)) {
        let text = format!("there is no `{name}` in {within}; did you mean `{near}`?");
        let known = if parent.is_empty() { near.to_string() } else { format!("{parent}.{near}") };
        let found = place(Diagnostic::error("unknown-name", text), path, node);
        return Some(
            match recipe.node(&known) {
                // What is in force meanwhile.
                Some(now) => place(found, &known, now),
                None => found.note(format!("`{known}` is not set")),
            }
            .help(format!("rename it to `{near}`")),
        );
    }
    let homes = schema.homes(name);
    let mut others: Vec<String> = homes
        .iter()
        .filter(|home| **home != section && (name.contains('_') || home.starts_with(parent)))
        .map(|home| if home.is_empty() { name.to_string() } else { format!("{home}.{name}") })
        .collect();
    // A name of every algorithm belongs to the one that runs.
    if let (true, Some(own)) = (others.len() > 4, recipe.section()) {
        others.retain(|other| other.starts_with(&format!("{own}.")));
    }
    if (1..=4).contains(&others.len()) && node.entries().next().is_none() {
        let text = format!("`{name}` has no meaning in {within}");
        let severity = if open { Severity::Warning } else { Severity::Error };
        let found = place(Diagnostic::new("misplaced", severity, text), path, node);
        return Some(found.help(format!("it belongs to `{}`", others.join("` or `"))));
    }
    if open {
        return None;
    }
    let text = format!("there is no `{name}` in {within}: nobody reads it");
    let severity = if schema.strict(section) { Severity::Error } else { Severity::Warning };
    let found = place(Diagnostic::new("unknown-name", severity, text), path, node);
    Some(found.help("remove it, or see whether it belongs to another section"))
}

/// A name that was known once, or only ever copied. Quiet where a parent wrote it.
pub fn dead(key: &Key, path: &str, node: &Node) -> Diagnostic {
    let severity = match node.origin.by {
        SetBy::Parent => Severity::Note,
        SetBy::File | SetBy::CommandLine => Severity::Warning,
    };
    let found = match key.to {
        Some(to) if to.rsplit('.').next() == path.rsplit('.').next() => {
            let text = format!("nobody reads `{path}`");
            Diagnostic::new("misplaced", severity, text).help(format!("it belongs to `{to}`"))
        }
        Some(to) => Diagnostic::new("renamed-setting", severity, format!("nobody reads `{path}`"))
            .help(format!("it is now `{to}`")),
        None => {
            let text = format!("nobody reads `{path}`");
            Diagnostic::new("setting-has-no-effect", severity, text).help("remove it")
        }
    };
    place(found, path, node)
}
