//! What the rows of local training data look like.
//!
//! In: the path of one file of JSON lines, if the recipe names one that is here. Out: how many rows there are, which
//! names they have, and the first line of each kind that NeMo RL would stop at. Only so much of a file is read as
//! tells its shape.

use std::collections::BTreeSet;

use nrl_base::Files;
use nrl_rules::recipe::{Batch, Fact, Recipe};
use serde_json::{Map, Value};

/// Lines whose contents are looked at; all lines are counted.
const LOOKED_AT: usize = 20_000;

/// Sets of names that are kept.
const SHAPES: usize = 16;

/// The facts of the rows of a batch.
pub(super) fn read(r: &Recipe, files: &dyn Files) -> Batch {
    let mut batch = Batch::default();
    let Some(path) = r.text("data.train.data_path").filter(|p| p.value.ends_with(".jsonl")) else {
        return batch;
    };
    let Ok(bytes) = files.read(&path.value) else { return batch };
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let lines = text.split(|b| *b == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    let count = lines.clone().count() as i64;
    let pairs = r.text("data.train.dataset_name").is_some_and(|n| n.value == "PreferenceDataset");
    let mut seen = BTreeSet::new();
    for (at, line) in lines.take(LOOKED_AT) {
        let Ok(row) = serde_json::from_slice::<Map<String, Value>>(line) else {
            batch.broken_line = Some(at + 1);
            break;
        };
        let names: Vec<String> = row.keys().cloned().collect();
        if seen.len() < SHAPES && seen.insert(names.clone()) {
            batch.shapes.push((at + 1, names));
        }
        if pairs && batch.bad_pair.is_none() {
            batch.bad_pair = pair(&row).map(|why| (at + 1, why));
        }
    }
    batch.fields = batch.shapes.first().map(|(_, names)| path.map(|_| names.clone()));
    // Where a part is kept for validation the rows of training are fewer.
    let split = r.num("data.train.split_validation_size").is_some_and(|n| n.value > 0.0);
    let how = format!("lines of {}", path.value);
    batch.rows = (!split).then(|| Fact::derived("rows of the data", count, how, &[&path]));
    batch
}

/// Why a row does not say which of two answers is better.
fn pair(row: &Map<String, Value>) -> Option<String> {
    let Some(Value::Array(answers)) = row.get("completions") else {
        return Some("it has no list `completions`".into());
    };
    let [first, second] = answers.as_slice() else {
        return Some(format!("it has {} completions, not 2", answers.len()));
    };
    match (first.get("rank"), second.get("rank")) {
        (Some(a), Some(b)) if a == b => Some(format!("both completions have the rank {a}")),
        (Some(_), Some(_)) => None,
        _ => Some("a completion has no `rank`".into()),
    }
}
