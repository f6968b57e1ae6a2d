//! Which settings exist: names, types, what must be there, what nobody reads.
//!
//! In: settings and the typed recipe. Out: findings about names and types. The table is `keys.txt`
//! beside this crate. Maps that the trainer hands on as they are have no known names: their keys
//! are never judged.

mod inactive;
mod keys;
mod losses;
mod required;
mod types;
mod unknown;

use nrl_base::Diagnostic;
use nrl_rules::recipe::Recipe;
use nrl_rules::settings::{Node, Value};

use keys::{Key, Schema};

/// What the schema finds in a recipe.
pub fn check(recipe: &Recipe) -> Vec<Diagnostic> {
    let Some(settings) = &recipe.settings else { return vec![] };
    let mut walk = Walk { schema: keys::schema(), recipe, found: vec![] };
    walk.section(&settings.root, "", "", true);
    let mut found = walk.found;
    if broken_section(recipe).is_some() {
        return found;
    }
    found.extend(required::missing(recipe));
    found.extend(inactive::unread(recipe));
    found.extend(losses::foreign(recipe));
    found
}

/// The first section at the top level that is neither a mapping nor null, where a mapping is needed.
pub fn broken_section(recipe: &Recipe) -> Option<&str> {
    let settings = recipe.settings.as_ref()?;
    let schema = keys::schema();
    let broken = |(name, node): &(&str, &Node)| {
        let section = schema.key("", name).is_some_and(|(key, _)| key.types.contains(&"map"));
        let mapping = matches!(node.value, Value::Map(_) | Value::Null);
        section && !mapping && *name != "data"
    };
    settings.root.entries().find(broken).map(|(name, _)| name)
}

/// Names that the section at a dotted path may have, with their types; for editors.
pub fn known(path: &str) -> Vec<(&'static str, String)> {
    let schema = keys::schema();
    let mut section = String::new();
    for part in path.split('.').filter(|p| !p.is_empty()) {
        let Some((key, home)) = schema.key(&section, part) else { return vec![] };
        section = schema.resolve(&format!("{home}{part}"), key);
    }
    let types = |name: &str| {
        let key = schema.key(&section, name).map(|(key, _)| key).filter(|key| !key.dead)?;
        let optional = if key.nullable { " or null" } else { "" };
        Some(format!("{}{optional}", key.types.join(" or ")))
    };
    schema.names(&section).into_iter().filter_map(|n| Some((n, types(n)?))).collect()
}

/// Walks settings beside the table.
struct Walk<'r> {
    schema: &'static Schema,
    recipe: &'r Recipe,
    found: Vec<Diagnostic>,
}

impl Walk<'_> {
    /// Checks the entries of the map at `path`, whose names are those of `section`.
    fn section(&mut self, node: &Node, section: &str, path: &str, open: bool) {
        for (name, child) in node.entries() {
            let full = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
            match self.schema.key(section, name) {
                Some((key, home)) => self.known(child, key, &format!("{home}{name}"), &full),
                None => self.found.extend(unknown::key(
                    self.recipe,
                    self.schema,
                    section,
                    &full,
                    child,
                    open,
                )),
            }
        }
    }

    fn known(&mut self, node: &Node, key: &Key, section: &str, path: &str) {
        if key.dead {
            self.found.push(unknown::dead(key, path, node));
            return;
        }
        if let Some(problem) = types::wrong(key, path, node) {
            self.found.push(problem);
            return;
        }
        if key.free || !self.schema.has(section) && key.like.is_none() {
            return;
        }
        let section = self.schema.resolve(section, key);
        match &node.value {
            Value::Map(_) => self.section(node, &section, path, key.open),
            Value::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.section(item, &section, &format!("{path}.{at}"), true);
                }
            }
            _ => {}
        }
    }
}
