//! Settings as YAML that OmegaConf reads back as they are.

use nrl_rules::settings::{Node, Value};

use crate::{python, scalar};

/// The widest list on one line.
const WIDE: usize = 88;

/// The lines of a mapping.
pub(super) fn mapping(node: &Node) -> String {
    let mut out = String::new();
    entries(node, 0, &mut out);
    out
}

fn entries(node: &Node, indent: usize, out: &mut String) {
    for (name, below) in node.entries() {
        out.push_str(&" ".repeat(indent));
        out.push_str(&text(name));
        out.push(':');
        value(&below.value, below, indent, out);
    }
}

fn value(value: &Value, node: &Node, indent: usize, out: &mut String) {
    match value {
        Value::Map(map) if !map.is_empty() => {
            out.push('\n');
            entries(node, indent + 2, out);
        }
        Value::List(items) if !items.is_empty() => {
            let line = flow(value);
            if line.len() <= WIDE && !line.contains('{') {
                out.push_str(&format!(" {line}\n"));
                return;
            }
            out.push('\n');
            for item in items {
                out.push_str(&format!("{}- {}\n", " ".repeat(indent + 2), flow(&item.value)));
            }
        }
        value => out.push_str(&format!(" {}\n", flow(value))),
    }
}

/// A value on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) if x.is_nan() => ".nan".into(),
        Value::Float(x) if x.is_infinite() => (if *x > 0.0 { ".inf" } else { "-.inf" }).into(),
        Value::Float(x) => python::float(*x),
        Value::Text(t) => text(t),
        Value::List(items) => {
            let items: Vec<_> = items.iter().map(|item| flow(&item.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let pairs =
                map.iter().map(|(name, node)| format!("{}: {}", text(name), flow(&node.value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A text: plain where it cannot be taken for something else, quoted otherwise.
fn text(text: &str) -> String {
    let first = text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_'));
    let signs = |c: char| c.is_ascii_alphanumeric() || "_-./+".contains(c);
    let plain = first && text.chars().all(signs);
    if plain && matches!(scalar::read(text), Ok(Value::Text(_))) {
        return text.to_string();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
