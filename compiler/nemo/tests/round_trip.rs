//! Import, export, load: every recipe of the reference comes back as it was.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "tests read files and tell"
)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nrl_base::{Files, SourceMap};
use nrl_nemo::{ExportOptions, Exported, Loader, export, import};
use serde_json::Value as Json;

mod common;
use common::difference;

/// The reference, and files that the test wrote over it.
struct Over {
    below: PathBuf,
    written: RefCell<BTreeMap<String, String>>,
}

impl Files for Over {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        if let Some(text) = self.written.borrow().get(path) {
            return Ok(text.clone().into_bytes());
        }
        std::fs::read(self.below.join(path)).map_err(|e| e.to_string())
    }
}

fn reference() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo");
    folder.join("resolved/_index.json").exists().then_some(folder)
}

fn json(path: &Path) -> Json {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

fn exported(files: &Over, text: &str) -> Exported {
    let mut sources = SourceMap::new();
    let id = sources.add("recipe.nrl", text);
    let (file, problems) = nrl_syntax::parse(id, text);
    assert!(problems.is_empty(), "{problems:?}\n{text}");
    let options = ExportOptions {
        root: "",
        defaults: &|over| format!("../{over}"),
        config: &|name| format!("{name}.yaml"),
        recipe: None,
    };
    export(&mut Loader::new(files), &mut sources, &file, &options)
        .unwrap_or_else(|found| panic!("{found:?}\n{text}"))
}

#[test]
fn every_recipe_comes_back_as_it_was() {
    let Some(folder) = reference() else {
        println!("skipped: the reference is not here");
        return;
    };
    let index = json(&folder.join("resolved/_index.json"));
    let files = Over { below: folder.join("recipes"), written: RefCell::default() };
    let mut loader = Loader::new(&files);
    let mut sources = SourceMap::new();
    let (mut wrong, mut alone, mut lines, mut told, mut yaml) = (vec![], vec![], 0, 0, 0);
    let recipes = index.as_array().expect("a list");
    for entry in recipes {
        let path = entry["recipe"].as_str().expect("a path");
        let (text, found) = import(&mut loader, &mut sources, path, &[]);
        let text = text.unwrap_or_else(|| panic!("{path}: {found:?}"));
        if let Ok(out) = std::env::var("NRL_IMPORTED") {
            let name = path.replace('/', "__").replace(".yaml", ".nrl");
            std::fs::write(Path::new(&out).join(name), &text).expect("written");
        }
        let out = exported(&files, &text);
        files.written.borrow_mut().insert("child/r.yaml".into(), out.yaml.clone());
        let (settings, found) =
            Loader::new(&files).load(&mut SourceMap::new(), "child/r.yaml", &[]);
        let resolved =
            json(&folder.join("resolved").join(entry["resolved"].as_str().expect("a name")));
        match settings {
            None => wrong.push(format!("{path}: {}\n{}", found[0].message, out.yaml)),
            Some(settings) => wrong.extend(
                difference("", &settings.root, &resolved).map(|why| format!("{path}{why}")),
            ),
        }
        if !out.yaml.contains("\ndefaults: ") {
            alone.push(path);
        }
        let block = text.find("  settings nemo_rl").expect("a block");
        lines += text[..block].lines().count();
        told += text[block..].lines().count() - 3;
        yaml += out.yaml.lines().count();
        assert!(out.lost.is_empty(), "{path}: {:?}", out.lost);
    }
    let n = recipes.len();
    println!("{} of {n} recipes come back equal", n - wrong.len());
    println!("{} stand alone: {alone:?}", alone.len());
    println!("lines {}, of the block {}, YAML {} (mean)", lines / n, told / n, yaml / n);
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}
