//! Types of settings. The trainer reads some texts as numbers; that is told, not refused.

use nrl_base::{Diagnostic, Severity};
use nrl_rules::recipe::{Cause, Fact, Shown};
use nrl_rules::settings::{Node, Value};

use super::keys::Key;

/// What is wrong with the type of a setting.
pub fn wrong(key: &Key, path: &str, node: &Node) -> Option<Diagnostic> {
    if let Some(found) = null_as_text(key, path, node) {
        return Some(found);
    }
    if key.types.is_empty() || key.types.contains(&"any") {
        return None;
    }
    if node.is_null() {
        let text = format!("`{path}` is null, where {} is needed", wanted(key));
        let found = Diagnostic::warning("wrong-type", text);
        return (!key.nullable).then(|| {
            place(found, path, node).help("give it a value, or remove it to inherit one")
        });
    }
    let fits: Vec<Fit> = key.types.iter().map(|t| fit(t, &node.value)).collect();
    if fits.contains(&Fit::Yes) {
        return huge(key, path, node);
    }
    let coerced = fits.contains(&Fit::Read);
    let text = match coerced {
        true => format!("`{path}` is {} and is read as {}", said(&node.value), wanted(key)),
        false => format!("`{path}` is {}, where {} is needed", said(&node.value), wanted(key)),
    };
    let severity = if coerced { Severity::Warning } else { Severity::Error };
    let found = place(Diagnostic::new("wrong-type", severity, text), path, node);
    Some(found.help_opt(advice(key, path, &node.value)))
}

/// Whole numbers that no counter holds, or sizes that no machine has.
fn huge(key: &Key, path: &str, node: &Node) -> Option<Diagnostic> {
    let size = match &node.value {
        Value::Int(n) => n.unsigned_abs() as f64,
        Value::Float(x) => x.abs(),
        _ => return None,
    };
    let name = path.rsplit('.').next().unwrap_or(path);
    let counted =
        ["batch_size", "parallel_size", "_per_step", "_per_prompt", "_per_node", "num_nodes"]
            .iter()
            .any(|end| name.ends_with(end));
    let most = if counted { f64::from(i32::MAX) } else { 9.3e18 };
    if !key.types.contains(&"int") || size <= most {
        return None;
    }
    let text = format!("`{path}` is {}: no run is of that size", said(&node.value));
    Some(place(Diagnostic::error("out-of-range", text), path, node))
}

/// `None` and the like are texts in YAML.
fn null_as_text(key: &Key, path: &str, node: &Node) -> Option<Diagnostic> {
    let Value::Text(text) = &node.value else { return None };
    let typed = !key.types.is_empty() && !key.types.contains(&"any");
    let name_of_nothing =
        matches!(text.as_str(), "None" | "none" | "nil" | "NULL" | "Null" | "null");
    let meant = key.nullable || !key.types.contains(&"text");
    if !(typed && name_of_nothing && meant) {
        return None;
    }
    let said = format!("`{path}` is the text \"{text}\", not null");
    let found = Diagnostic::error("null-as-text", said).help(format!("`{path}: null`"));
    Some(place(found, path, node))
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Fit {
    Yes,
    /// Read as that type by the trainer.
    Read,
    No,
}

fn fit(wanted: &str, value: &Value) -> Fit {
    let yes = |ok: bool| if ok { Fit::Yes } else { Fit::No };
    let read = |ok: bool| if ok { Fit::Read } else { Fit::No };
    match (wanted, value) {
        ("int", Value::Int(_)) | ("num", Value::Int(_) | Value::Float(_)) => Fit::Yes,
        ("int", Value::Float(x)) => yes(x.fract() == 0.0),
        ("int" | "num", Value::Bool(_)) => Fit::Read,
        ("int", Value::Text(text)) => read(text.trim().parse::<i64>().is_ok()),
        ("num", Value::Text(text)) => read(text.trim().parse::<f64>().is_ok()),
        ("bool", Value::Bool(_)) => Fit::Yes,
        ("bool", Value::Int(n)) => read(*n == 0 || *n == 1),
        ("bool", Value::Text(text)) => {
            let words = ["true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"];
            read(words.contains(&text.to_lowercase().as_str()))
        }
        ("text", Value::Text(_)) | ("list", Value::List(_)) | ("map", Value::Map(_)) => Fit::Yes,
        _ => Fit::No,
    }
}

fn wanted(key: &Key) -> String {
    let word = |t: &&str| match *t {
        "int" => "a whole number",
        "num" => "a number",
        "bool" => "true or false",
        "text" => "a text",
        "list" => "a list",
        _ => "a section",
    };
    key.types.iter().map(word).collect::<Vec<_>>().join(" or ")
}

fn said(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => format!("the number {n}"),
        Value::Float(x) => format!("the number {x}"),
        Value::Text(text) => format!("the text \"{text}\""),
        Value::List(_) => "a list".to_string(),
        Value::Map(_) => "a section".to_string(),
    }
}

fn advice(key: &Key, path: &str, value: &Value) -> Option<String> {
    match value {
        Value::Text(text) if text.trim().parse::<f64>().is_ok() => {
            Some(format!("`{path}: {}` without quotes", text.trim()))
        }
        Value::Float(x) if key.types.contains(&"int") => {
            Some(format!("`{path}: {}` or `{}`", x.floor(), x.ceil()))
        }
        Value::Bool(b) if key.types.contains(&"map") => Some(format!("`{path}.enabled: {b}`")),
        Value::Int(n) if key.types.contains(&"text") => Some(format!("`{path}: \"{n}\"`")),
        _ => None,
    }
}

/// Adds where a setting was set.
pub fn place(mut found: Diagnostic, path: &str, node: &Node) -> Diagnostic {
    let value = nrl_rules::recipe::shown(&node.value);
    for Cause { text, span } in Fact::set(path, value, node.origin).causes() {
        found = match span {
            Some(span) => found.label(span, text),
            None => found.note(text),
        };
    }
    found
}
