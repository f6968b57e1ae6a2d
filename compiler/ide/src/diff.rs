//! What two recipes mean differently.
//!
//! In: two checked files. Out: the values by name that differ, each with where it came from, in the order of
//! the first file. Two `.nrl` files are compared as programs: settings, schedules, lines of steps, layouts, and
//! what graphs compute, places left out. Two NeMo RL files are compared as resolved settings. One of each is
//! compared by the notions that both have.

mod notions;
mod program;

use indexmap::IndexMap;
use nrl_base::SourceMap;
use nrl_rules::recipe::Fact;
use nrl_rules::{Node, Origin, Recipe, SetBy, Settings, Value};
use serde_json::{Map, json};

use crate::checking::Meaning;
use crate::sheet::shown;

/// A value as it is shown and compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    pub value: String,
    /// Where it was set, if that is known.
    pub from: Option<String>,
}

/// Values by name.
pub type Values = IndexMap<String, Told>;

/// One difference; a side that says nothing is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub name: String,
    pub left: Option<Told>,
    pub right: Option<Told>,
    /// It follows from others.
    pub derived: bool,
}

/// How two files were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Program,
    Settings,
    Notions,
}

impl By {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            By::Program => "program",
            By::Settings => "settings",
            By::Notions => "notions",
        }
    }
}

/// All differences of two files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub by: By,
    pub changes: Vec<Change>,
    /// Names that only one side can say; none but where notions are compared.
    pub unsaid: Vec<String>,
}

/// Mark in front of names that follow from others.
const DERIVED: &str = "= ";

/// Compares two files. `None` if one of them has no meaning.
pub fn diff(
    (left, ls): (&Meaning, &SourceMap),
    (right, rs): (&Meaning, &SourceMap),
) -> Option<Difference> {
    let pair = (&left.compiled, &right.compiled, &left.settings, &right.settings);
    Some(match pair {
        (Some(a), Some(b), _, _) => {
            let changes = compare(&program::values(a), &program::values(b), true);
            Difference { by: By::Program, changes, unsaid: vec![] }
        }
        (_, _, Some(a), Some(b)) => {
            let a = settings(a, left.recipe.as_ref(), ls);
            let b = settings(b, right.recipe.as_ref(), rs);
            Difference { by: By::Settings, changes: compare(&a, &b, true), unsaid: vec![] }
        }
        _ => {
            let (a, b) = (notions::of(left, ls)?, notions::of(right, rs)?);
            let one = |a: &Values, b: &Values| -> Vec<String> {
                a.keys().filter(|k| !b.contains_key(*k)).cloned().collect()
            };
            let unsaid = [one(&a, &b), one(&b, &a)].concat();
            Difference { by: By::Notions, changes: compare(&a, &b, false), unsaid }
        }
    })
}

/// Names whose values differ; with `alone` also those that one side lacks.
fn compare(a: &Values, b: &Values, alone: bool) -> Vec<Change> {
    let mut out = vec![];
    let mut push = |name: &String, left: Option<&Told>, right: Option<&Told>| {
        let derived = name.starts_with(DERIVED);
        let name = name.trim_start_matches(DERIVED).to_string();
        out.push(Change { name, left: left.cloned(), right: right.cloned(), derived });
    };
    for (name, left) in a {
        match b.get(name) {
            Some(right) if right.value == left.value => {}
            None if !alone => {}
            right => push(name, Some(left), right),
        }
    }
    for (name, right) in b.iter().filter(|(name, _)| alone && !a.contains_key(*name)) {
        push(name, None, Some(right));
    }
    out.sort_by_key(|c| c.derived);
    out
}

/// Leaves by path, then numbers that follow from them.
fn settings(all: &Settings, recipe: Option<&Recipe>, sources: &SourceMap) -> Values {
    let mut out = Values::new();
    leaves(&all.root, &mut String::new(), sources, &mut out);
    if let Some(r) = recipe {
        derived(r, &mut out);
    }
    out
}

fn leaves(node: &Node, path: &mut String, sources: &SourceMap, out: &mut Values) {
    let mut below = |name: &str, child: &Node| {
        let length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        leaves(child, path, sources, out);
        path.truncate(length);
    };
    match &node.value {
        Value::Map(map) if !map.is_empty() => {
            map.iter().for_each(|(name, child)| below(name, child))
        }
        value => {
            out.insert(
                path.clone(),
                Told { value: shown(value), from: Some(set_by(node.origin, sources)) },
            );
        }
    }
}

fn set_by(origin: Origin, sources: &SourceMap) -> String {
    match origin.by {
        SetBy::CommandLine => "command line".into(),
        SetBy::File | SetBy::Parent => sources.place(origin.key),
    }
}

/// Sizes that a launch has and no file says.
fn derived(r: &Recipe, out: &mut Values) {
    let mut put = |name: String, value: Option<i64>| {
        if let Some(value) = value {
            out.insert(format!("{DERIVED}{name}"), Told { value: value.to_string(), from: None });
        }
    };
    let number = |f: &Option<Fact<i64>>| f.as_ref().map(|f| f.value);
    let samples = r.samples().map(|s| s.value);
    put("samples per step".into(), samples);
    for w in &r.workers {
        let dp = w.dp().map(|d| d.value);
        let batch = number(&w.global_batch);
        put(format!("GPUs of {}", w.path), number(&w.gpus));
        put(format!("data parallel size of {}", w.path), dp);
        let updates = samples.zip(batch).filter(|(s, b)| *b > 0 && s % b == 0).map(|(s, b)| s / b);
        put(format!("updates per step of {}", w.path), updates);
        let whole = !w.packs() && !w.is_dynamic();
        let micro = number(&w.micro_batch).filter(|m| whole && *m > 0);
        let parts = batch.zip(dp).zip(micro).map(|((b, dp), m)| (b, dp * m));
        let parts = parts.filter(|(b, per)| *per > 0 && b % per == 0).map(|(b, per)| b / per);
        put(format!("micro-batches per update and rank of {}", w.path), parts);
    }
}

/// The differences for people, one below the other.
pub fn human(d: &Difference) -> String {
    let mut out = String::new();
    let side = |t: &Option<Told>| t.as_ref().map_or("absent".to_string(), |t| t.value.clone());
    let width = d.changes.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).min(48);
    for c in &d.changes {
        let from = |t: &Option<Told>| t.as_ref().and_then(|t| t.from.clone());
        let places: Vec<String> = [from(&c.left), from(&c.right)].into_iter().flatten().collect();
        let places =
            if places.is_empty() { String::new() } else { format!("   ({})", places.join(" -> ")) };
        let mark = if c.derived { "=" } else { " " };
        out.push_str(&format!(
            "{mark} {:width$}  {} -> {}{places}\n",
            c.name,
            side(&c.left),
            side(&c.right)
        ));
    }
    if !d.unsaid.is_empty() {
        out.push_str(&format!("  said by one side only: {}\n", d.unsaid.join(", ")));
    }
    out
}

/// The differences as one object; field names do not change.
pub fn json(d: &Difference, left: &str, right: &str) -> String {
    let told = |t: &Option<Told>| {
        t.as_ref().map_or(serde_json::Value::Null, |t| {
            let mut m = Map::new();
            m.insert("value".into(), t.value.as_str().into());
            m.insert("from".into(), t.from.as_deref().into());
            m.into()
        })
    };
    let changes = d.changes.iter().map(|c| {
        json!({"name": c.name, "left": told(&c.left), "right": told(&c.right), "derived": c.derived})
    });
    let all = json!({
        "left": left,
        "right": right,
        "by": d.by.word(),
        "same": d.changes.is_empty(),
        "changes": changes.collect::<Vec<_>>(),
        "unsaid": d.unsaid,
    });
    format!("{all:#}\n")
}
