//! What a file says over what it inherits: mappings key by key, all else replaced.
//!
//! In: the tree so far and a tree on top. Out: one tree; each value keeps the place that set it
//! last. `???` on top leaves what is below. `_override_: true` in a section at the top level drops
//! the inherited section first; deeper it does nothing but stay in the recipe, which is told.

use nrl_base::{Diagnostic, Severity};
use nrl_rules::settings::{Node, Origin, Value};

const MARKER: &str = "_override_";

/// `top` over `base`, both whole recipes; what cannot be merged is told.
pub(crate) fn recipes(base: &mut Node, mut top: Node) -> Vec<Diagnostic> {
    if let (Value::Map(below), Value::Map(sections)) = (&mut base.value, &mut top.value) {
        for (name, section) in sections {
            let Value::Map(map) = &mut section.value else { continue };
            if map.get(MARKER).is_some_and(|flag| flag.value == Value::Bool(true)) {
                map.shift_remove(MARKER);
                below.shift_remove(name);
            }
        }
    }
    crate::interpolate::expand_under(base, &top);
    let mut found = vec![];
    over(base, top, "", &mut found);
    found
}

/// `top` over `base`, which stands at `path`.
pub(crate) fn over(base: &mut Node, top: Node, path: &str, found: &mut Vec<Diagnostic>) {
    if is_missing(&top) {
        return;
    }
    let origin = top.origin;
    match (&mut base.value, top.value) {
        (Value::Map(below), Value::Map(above)) => {
            for (name, value) in above {
                match below.get_mut(&name) {
                    Some(old) => {
                        let dot = if path.is_empty() { "" } else { "." };
                        over(old, value, &format!("{path}{dot}{name}"), found);
                    }
                    None => {
                        below.insert(name, value);
                    }
                }
            }
            base.origin = origin;
        }
        (Value::List(_), Value::Map(_)) => {
            found.push(unlike(path, "list", base, "mapping", origin))
        }
        (Value::Map(_), Value::List(_)) => {
            found.push(unlike(path, "mapping", base, "list", origin))
        }
        (old, value) => {
            found.extend(shorter(old, &value, path, base.origin, origin));
            *base = Node { value, origin };
        }
    }
}

/// A list of words that replaces a longer one and names something new: was it meant to be added?
fn shorter(
    old: &Value,
    new: &Value,
    path: &str,
    below: Origin,
    above: Origin,
) -> Option<Diagnostic> {
    let (Value::List(old), Value::List(new)) = (old, new) else { return None };
    let plain = |n: &Node| matches!(n.value, Value::Text(_) | Value::Int(_));
    let fresh = new.iter().any(|n| plain(n) && !old.iter().any(|o| o.value == n.value));
    if new.len() >= old.len() || !fresh || !old.iter().chain(new).all(plain) {
        return None;
    }
    let said = format!(
        "`{path}` has {} of {} items: a list replaces the inherited one, it adds nothing to it",
        new.len(),
        old.len()
    );
    let found = Diagnostic::new("worth-knowing", Severity::Note, said);
    let found = found.label(above.key, "this list").label(below.key, "replaces this one");
    Some(found.help("write the inherited items here as well, if they are meant"))
}

fn unlike(path: &str, below: &str, base: &Node, above: &str, origin: Origin) -> Diagnostic {
    let said = format!("`{path}` is a {above} here and a {below} below: they cannot be merged");
    let found = Diagnostic::error("wrong-type", said);
    let found = found.label(origin.key, format!("a {above}"));
    let found = found.label(base.origin.key, format!("a {below}"));
    found.help(format!("make it a {below} as well, or set it to null in a file between the two"))
}

/// Whether a value is the mark of a value that another file must give.
pub(crate) fn is_missing(node: &Node) -> bool {
    matches!(&node.value, Value::Text(text) if text == "???")
}

/// Markers below the top level, which do nothing.
pub(crate) fn idle_markers(tree: &Node) -> Vec<Diagnostic> {
    let mut found = vec![];
    for (section, inside) in tree.entries() {
        for (name, below) in inside.entries() {
            idle_below(section, &format!("{section}.{name}"), below, &mut found);
        }
    }
    found
}

fn idle_below(section: &str, path: &str, node: &Node, found: &mut Vec<Diagnostic>) {
    for (name, below) in node.entries() {
        if name != MARKER {
            idle_below(section, &format!("{path}.{name}"), below, found);
            continue;
        }
        let said = format!("`{path}.{MARKER}` does nothing: `{path}` is still merged");
        let help = format!(
            "`{MARKER}` works in a section at the top level alone: move it to `{section}`, or set \
             each key of `{path}` that should differ"
        );
        let warning = Diagnostic::warning("idle-override-marker", said);
        found.push(warning.label(below.origin.key, "not at the top level").help(help));
    }
    for (at, item) in node.items().iter().enumerate() {
        idle_below(section, &format!("{path}.{at}"), item, found);
    }
}
