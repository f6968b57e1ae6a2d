//! What tests share: settings beside JSON.

use nrl_rules::settings::{Node, Value};
use serde_json::Value as Json;

/// The first path at which they differ: kinds of numbers count.
pub fn difference(path: &str, ours: &Node, theirs: &Json) -> Option<String> {
    let differs = || Some(format!("{path}: {:?}, not {theirs}", ours.value));
    let same = match (&ours.value, theirs) {
        (Value::Null, Json::Null) => true,
        (Value::Bool(a), Json::Bool(b)) => a == b,
        (Value::Int(a), Json::Number(b)) => b.as_i64() == Some(*a) && !b.is_f64(),
        (Value::Float(a), Json::Number(b)) => b.is_f64() && b.as_f64() == Some(*a),
        (Value::Text(a), Json::String(b)) => a == b,
        (Value::List(a), Json::Array(b)) => {
            if a.len() != b.len() {
                return differs();
            }
            let pairs = a.iter().zip(b).enumerate();
            return pairs
                .map(|(i, (a, b))| difference(&format!("{path}.{i}"), a, b))
                .find_map(|d| d);
        }
        (Value::Map(a), Json::Object(b)) => {
            if a.len() != b.len() || a.keys().any(|key| !b.contains_key(key)) {
                let (ours, theirs) = (a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
                return Some(format!("{path}: keys {ours:?}, not {theirs:?}"));
            }
            let below =
                |(key, node): (&String, &Node)| difference(&format!("{path}.{key}"), node, &b[key]);
            return a.iter().find_map(below);
        }
        _ => false,
    };
    if same { None } else { differs() }
}
