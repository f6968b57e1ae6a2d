//! Small recipes and overrides beside what OmegaConf 2.3 and Hydra 1.3 make of them.
//!
//! `omegaconf.json` holds files, overrides and the outcome of those libraries, with the resolvers
//! and the inheritance of NeMo RL added: a value, or the kind of the error.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_nemo::Loader;
use serde_json::Value as Json;

mod common;
use common::difference;

#[test]
fn small_recipes_mean_what_omegaconf_and_hydra_make_of_them() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/omegaconf.json");
    let text = std::fs::read_to_string(path).expect("the cases");
    let cases: Vec<Json> = serde_json::from_str(&text).expect("a list");
    let mut wrong = vec![];
    for case in &cases {
        let texts = case["files"].as_object().expect("files").iter();
        let files: BTreeMap<String, String> = texts
            .map(|(name, text)| (name.clone(), text.as_str().expect("a text").into()))
            .collect();
        let sets = case["overrides"].as_array().expect("a list").iter();
        let sets: Vec<String> = sets.map(|s| s.as_str().expect("a text").into()).collect();
        let variables = BTreeMap::from([("HOME_DIR".to_string(), "/data".to_string())]);
        let mut loader = Loader::new(&files).environment(variables);
        let (settings, found) = loader.load(&mut SourceMap::new(), "r.yaml", &sets);
        let name = &case["name"];
        match (settings, case.get("value")) {
            (None, None) => {}
            (Some(settings), Some(value)) => {
                wrong.extend(difference("", &settings.root, value).map(|d| format!("{name}{d}")));
            }
            (None, Some(_)) => wrong.push(format!("{name}: {}", found[0].message)),
            (Some(_), None) => wrong.push(format!("{name}: no error, but {}", case["error"])),
        }
    }
    assert!(cases.len() > 150, "only {} cases", cases.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
