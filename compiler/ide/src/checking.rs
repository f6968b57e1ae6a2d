//! One file of any kind, checked.
//!
//! In: a path; its ending decides what it is. Out: findings, one line about what is right, and what later
//! questions need: the compiled program of an `.nrl` file, the settings and the typed recipe of a
//! NeMo RL file.

use nrl_base::{Files, SourceMap};
use nrl_driver::Compiled;
use nrl_rules::recipe::Version;
use nrl_rules::{Recipe, Settings};

use crate::findings::Checked;

/// What a file is written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    Nrl,
    /// A recipe of NeMo RL.
    Nemo,
}

impl Language {
    /// By the ending of the path.
    pub fn of(path: &str) -> Language {
        let ending = path.rsplit_once('.').map_or("", |(_, e)| e);
        match ending.eq_ignore_ascii_case("yaml") || ending.eq_ignore_ascii_case("yml") {
            true => Language::Nemo,
            false => Language::Nrl,
        }
    }
}

/// How files are checked.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--set` of `.nrl` recipes.
    pub sets: Vec<String>,
    pub ranks: Option<usize>,
    pub recipe: Option<String>,
    /// Overrides of NeMo RL recipes, as its command line takes them.
    pub overrides: Vec<String>,
    pub version: Version,
    /// What budgets of time are decided with.
    pub assume: nrl_driver::Assume,
    /// Seconds after which the job that runs it is ended, if that is known.
    pub job: Option<f64>,
    /// Seconds of a step of a NeMo RL recipe, where they are predicted.
    pub step: Option<[f64; 3]>,
}

/// What a file turned out to be.
#[derive(Debug, Default)]
pub struct Meaning {
    pub compiled: Option<Compiled>,
    pub settings: Option<Settings>,
    pub recipe: Option<Recipe>,
}

/// Checks the file at `path`.
pub fn check(files: &dyn Files, path: &str, options: &Options) -> (Checked, Meaning) {
    let mut sources = SourceMap::new();
    let mut meaning = Meaning::default();
    let mut summary = None;
    let findings = match Language::of(path) {
        Language::Nrl => {
            let driver = nrl_driver::Options {
                sets: options.sets.clone(),
                ranks: options.ranks,
                recipe: options.recipe.clone(),
                assume: options.assume.clone(),
                job: options.job,
                ..nrl_driver::Options::default()
            };
            let (compiled, found) = nrl_driver::check(files, &mut sources, path, &driver);
            meaning.compiled = compiled;
            found
        }
        Language::Nemo => {
            let nemo = nrl_nemo::Options {
                version: options.version,
                job: options.job,
                step: options.step,
            };
            let found = nrl_nemo::check(files, &mut sources, path, &options.overrides, nemo);
            summary = found.settings.as_ref().map(|s| about(s, found.recipe.as_ref()));
            (meaning.settings, meaning.recipe) = (found.settings, found.recipe);
            found.findings
        }
    };
    (Checked { file: path.into(), sources, findings, summary, ..Checked::default() }, meaning)
}

/// `grpo, Megatron, 8 nodes of 8 GPUs; 412 settings`, as far as it is known.
fn about(settings: &Settings, recipe: Option<&Recipe>) -> String {
    let mut parts = vec![];
    if let Some(r) = recipe {
        parts.extend(r.algorithm.as_ref().map(|a| format!("{:?}", a.value).to_lowercase()));
        if let (Some(n), Some(g)) = (&r.cluster.nodes, &r.cluster.gpus_per_node) {
            let many = |n: i64, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
            parts.push(format!("{} of {}", many(n.value, "node"), many(g.value, "GPU")));
        }
    }
    parts.push(format!("{} settings", leaves(&settings.root)));
    parts.join(", ")
}

/// Values that are neither maps nor lists of more.
fn leaves(node: &nrl_rules::Node) -> usize {
    match &node.value {
        nrl_rules::Value::Map(map) => map.values().map(leaves).sum(),
        nrl_rules::Value::List(items) => items.iter().map(leaves).sum(),
        _ => 1,
    }
}
