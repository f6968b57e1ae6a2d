//! Every recipe of the reference loads to what NeMo RL's own loader made of it.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "tests read files and tell"
)]

use std::path::{Path, PathBuf};

use nrl_base::{Diagnostic, Files, SourceMap};
use nrl_nemo::Loader;
use serde_json::Value as Json;

mod common;
use common::difference;

struct Below(PathBuf);

impl Files for Below {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(self.0.join(path)).map_err(|e| e.to_string())
    }
}

/// The folder of the reference, if it is there.
fn reference() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo");
    folder.join("resolved/_index.json").exists().then_some(folder)
}

fn json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn recipes_resolve_as_with_nemo_rl() {
    let Some(folder) = reference() else {
        println!("skipped: the reference is not here");
        return;
    };
    let index = json(&folder.join("resolved/_index.json"));
    let recipes = index.as_array().expect("a list");
    let files = Below(folder.join("recipes"));
    let mut loader = Loader::new(&files);
    let mut sources = SourceMap::new();
    let mut wrong = vec![];
    let mut warned: Vec<Diagnostic> = vec![];
    for entry in recipes {
        let path = entry["recipe"].as_str().expect("a path");
        let (settings, found) = loader.load(&mut sources, path, &[]);
        let resolved =
            json(&folder.join("resolved").join(entry["resolved"].as_str().expect("a name")));
        match settings {
            None => wrong.push(format!("{path}: {}", found[0].message)),
            Some(settings) => wrong.extend(
                difference("", &settings.root, &resolved).map(|why| format!("{path}{why}")),
            ),
        }
        let mut chain = loader.chain(path);
        chain.reverse();
        let expected = entry["chain"].as_array().expect("a list");
        if &chain != expected {
            wrong.push(format!("{path}: chain {chain:?}"));
        }
        warned.extend(found);
    }
    println!("{} of {} recipes resolve equally", recipes.len() - wrong.len(), recipes.len());
    warned.dedup();
    for warning in warned {
        println!("{}: {} {}", warning.code, sources.place(warning.labels[0].span), warning.message);
    }
    assert!(recipes.len() > 200, "only {} recipes", recipes.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
