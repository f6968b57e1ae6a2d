//! Whatever a setting is set to, checking ends and says something or nothing.

use std::collections::BTreeSet;

use nrl_rules::settings::{Node, Value};

use crate::base::{check, files};

/// Paths of all values and sections of a recipe.
fn leaves(node: &Node, path: &str, out: &mut BTreeSet<String>) {
    let join =
        |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
    if let Value::Map(map) = &node.value
        && !map.is_empty()
    {
        node.entries().for_each(|(name, child)| leaves(child, &join(name), out));
    }
    if !path.is_empty() {
        out.insert(path.to_string());
    }
}

#[test]
fn no_value_of_any_setting_stops_the_checker() {
    let files = files();
    let values = [
        "0",
        "-1",
        "3",
        "2147483647",
        "9223372036854775807",
        "1.0e308",
        "null",
        "[]",
        "{}",
        "text",
    ];
    let mut tried = 0;
    for base in [
        "megatron.yaml",
        "moe.yaml",
        "controller.yaml",
        "ppo.yaml",
        "dpo.yaml",
        "distillation.yaml",
        "eval.yaml",
    ] {
        let clean = check(&files, base, &[]);
        let mut paths = BTreeSet::new();
        leaves(&clean.settings.unwrap().root, "", &mut paths);
        for (at, path) in paths.iter().enumerate() {
            // Each setting meets some of the values in each recipe, and all of them in all.
            for value in values.iter().skip(at % 5).step_by(5) {
                check(&files, base, &[&format!("++{path}={value}")]);
                tried += 1;
            }
        }
    }
    assert!(tried > 2_000, "only {tried}");
}
