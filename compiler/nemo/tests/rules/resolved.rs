//! Resolved recipes of the reference, as settings without places.

use std::path::{Path, PathBuf};

use nrl_base::Span;
use nrl_rules::{Node, Origin, SetBy, Settings, Value};
use serde_json::Value as Json;

pub fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo")
}

pub fn settings(json: &Json) -> Settings {
    Settings { root: node(json) }
}

fn node(json: &Json) -> Node {
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(n) => Value::Int(n),
            None => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::Text(s.clone()),
        Json::Array(items) => Value::List(items.iter().map(node).collect()),
        Json::Object(map) => Value::Map(map.iter().map(|(k, v)| (k.clone(), node(v))).collect()),
    };
    let place = Span::default();
    let origin = Origin { by: SetBy::File, key: place, value: place, source: None };
    Node { value, origin }
}

/// Names and contents of the resolved recipes; empty without the reference.
pub fn all() -> Vec<(String, Json)> {
    let Ok(entries) = std::fs::read_dir(reference().join("resolved")) else { return vec![] };
    let mut names: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    names.sort();
    let kept = names.into_iter().filter(|p| p.extension().is_some_and(|e| e == "json"));
    let mut all = vec![];
    for path in kept {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.starts_with('_') {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push((name, serde_json::from_str(&text).unwrap()));
        }
    }
    all
}
