//! Plain values as the language writes them.

use nrl_rules::settings::{Node, Value};

use crate::python;

/// A value on one line; none for a number that cannot be written.
pub(crate) fn literal(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => "none".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(n) if *n == i64::MIN => return None,
        Value::Int(n) => n.to_string(),
        Value::Float(x) if !x.is_finite() => return None,
        Value::Float(x) => python::float(*x),
        Value::Text(text) => quoted(text),
        Value::List(items) => {
            let items = items.iter().map(|item| literal(&item.value));
            format!("[{}]", items.collect::<Option<Vec<_>>>()?.join(", "))
        }
        Value::Map(map) => {
            let pairs = map.iter().map(|(name, node): (&String, &Node)| {
                Some(format!("{}: {}", key(name), literal(&node.value)?))
            });
            format!("{{{}}}", pairs.collect::<Option<Vec<_>>>()?.join(", "))
        }
    })
}

/// A text in quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A key: a word as it is, anything else in quotes.
pub(crate) fn key(name: &str) -> String {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        name.to_string()
    } else {
        quoted(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_language_has_them() {
        assert_eq!(literal(&Value::Float(1e-6)).unwrap(), "1e-06");
        assert_eq!(literal(&Value::Float(2.0)).unwrap(), "2.0");
        assert_eq!(literal(&Value::Text("a\"b\n".into())).unwrap(), "\"a\\\"b\\n\"");
        assert_eq!(key("odd-key"), "\"odd-key\"");
        assert_eq!(key("0"), "\"0\"");
        assert_eq!(literal(&Value::Float(f64::NAN)), None);
    }
}
