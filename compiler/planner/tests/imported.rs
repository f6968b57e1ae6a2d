//! A recipe of NeMo RL and what `nrlc import` makes of it have one plan: the same text, the same habits of the software, and
//! so the same seconds, bytes and layouts to choose from.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nrl_base::{Files, SourceMap};
use nrl_planner::input::{Input, Planned, Request};

/// A folder, and texts that the test put over it.
struct Folder {
    below: PathBuf,
    written: BTreeMap<String, String>,
}

impl Files for Folder {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        match self.written.get(path) {
            Some(text) => Ok(text.clone().into_bytes()),
            None => std::fs::read(self.below.join(path)).map_err(|e| e.to_string()),
        }
    }
}

fn open<'f>(files: &'f Folder, path: &str) -> Input<'f> {
    let request = Request { path: path.into(), ..Request::default() };
    let (input, found) = Input::open(files, &request);
    input.unwrap_or_else(|| panic!("{path}: {:?}", found.found))
}

/// Seconds and bytes of a plan, as they are shown.
fn told(planned: &Planned) -> Vec<String> {
    let Some(f) = &planned.forecast else { return vec![] };
    let mut out = vec![format!("{} {}", f.stack, f.rates.product)];
    for s in &f.steps {
        out.push(format!("{} {} {}", s.name, s.seconds.value, s.padding));
        out.extend(s.phases.iter().map(|p| format!("{} {}", p.name, p.seconds.value)));
        out.extend(s.every.iter().map(|e| format!("{} {}", e.name, e.seconds.value)));
    }
    for m in &f.memory {
        let terms = m.terms.iter().map(|t| format!("{} {}", t.name, t.bytes));
        out.push(format!("{} {}", m.stage, terms.collect::<Vec<_>>().join(", ")));
    }
    out
}

/// Compares the plans of a recipe and of its import; whether there are plans.
fn compare(below: &Path, path: &str) -> bool {
    let mut files = Folder { below: below.to_path_buf(), written: BTreeMap::new() };
    let (text, found) =
        nrl_nemo::import(&mut nrl_nemo::Loader::new(&files), &mut SourceMap::new(), path, &[]);
    let text = text.unwrap_or_else(|| panic!("{path}: {found:?}"));
    let beside = format!("{path}.imported.nrl");
    files.written.insert(beside.clone(), text);
    let (yaml, nrl) = (open(&files, path), open(&files, &beside));
    assert_eq!(yaml.text, nrl.text, "{path}");
    for (a, b) in [(&yaml.assume, &nrl.assume), (&yaml.options.assume, &nrl.options.assume)] {
        assert_eq!(a.framework, b.framework, "{path}");
        assert_eq!((&a.stack, a.compute), (&b.stack, b.compute), "{path}");
    }
    let (Some(a), Some(b)) = (yaml.plan().0, nrl.plan().0) else { return false };
    assert_eq!(told(&a), told(&b), "{path}");
    true
}

#[test]
fn our_own_recipes_and_their_imports_have_one_plan() {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nemo_rl");
    let mut planned = vec![];
    for name in [
        "async",
        "controller",
        "distillation",
        "dpo",
        "grpo",
        "gym",
        "megatron",
        "moe",
        "ppo",
        "ppom",
        "rows",
        "sft",
    ] {
        assert!(compare(&below, &format!("{name}.yaml")), "{name} has no plan");
        planned.push(name);
    }
    assert_eq!(planned.len(), 12);
}

#[test]
fn shipped_recipes_and_their_imports_have_one_plan() {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo");
    let Ok(index) = std::fs::read_to_string(below.join("resolved/_index.json")) else {
        println!("skipped: the reference is not here");
        return;
    };
    let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    let paths = index.as_array().expect("a list").iter().filter_map(|e| e["recipe"].as_str());
    let below = below.join("recipes");
    let (mut all, mut planned) = (0, 0);
    for path in paths {
        all += 1;
        planned += usize::from(compare(&below, path));
    }
    println!("{planned} of {all} recipes have a plan, the same from both sides");
    assert!(planned > 140, "{planned} of {all}");
}
