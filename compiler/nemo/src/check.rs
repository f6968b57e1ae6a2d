//! Loads a recipe and judges it.
//!
//! In: what `load` takes, and options. Out: the settings, the typed recipe, and all findings by
//! place. Rules run only on settings that loaded without an error.

use nrl_base::{Diagnostic, Files, Problems, SourceMap, Span};
use nrl_rules::Settings;
use nrl_rules::recipe::{Fact, Recipe, Seconds, Version};

use crate::{load, model, schema};

/// How a recipe is judged.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Options {
    /// The version of NeMo RL that it is for.
    pub version: Version,
    /// Seconds after which the job that runs it is ended, if that is known.
    pub job: Option<f64>,
    /// Seconds of a step, where they are predicted: the least, the likely ones, the most.
    pub step: Option<[f64; 3]>,
}

/// A recipe and what was found in it.
#[derive(Debug)]
pub struct Checked {
    pub settings: Option<Settings>,
    pub recipe: Option<Recipe>,
    pub findings: Vec<Diagnostic>,
}

/// Loads the recipe at `path` with `overrides` and judges it.
pub fn check(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    overrides: &[String],
    options: Options,
) -> Checked {
    let (settings, found) = load(files, sources, path, overrides);
    let mut problems = Problems::new();
    problems.extend(found);
    let recipe = settings.clone().map(|s| {
        let mut recipe = model::recipe(s, files, options.version);
        recipe.keeping.first = options.step.and_then(|step| model::first_save(&recipe, step));
        recipe.keeping.job = options.job.map(|seconds| {
            let how = "given with `--time`".to_string();
            Fact::derived("the time of the job", Seconds(seconds), how, &[])
        });
        recipe
    });
    problems.extend(recipe.iter().flat_map(schema::check));
    problems.extend(settings.iter().filter_map(|s| empty(s, path)));
    // Where a section is no mapping, what it lacks is no news.
    let whole = |r: &&Recipe| schema::broken_section(r).is_none();
    for finding in recipe.iter().filter(whole).flat_map(nrl_rules::check) {
        problems.push(finding.diagnostic);
    }
    Checked { settings, recipe, findings: problems.into_sorted() }
}

/// A recipe that sets nothing is a file that was not meant, or was not saved.
fn empty(settings: &Settings, path: &str) -> Option<Diagnostic> {
    let root = &settings.root;
    if root.entries().next().is_some() {
        return None;
    }
    let found = Diagnostic::error("not-a-mapping", format!("{path} sets nothing"));
    let start = Span::new(root.origin.value.source, 0, 0);
    let found = found.label(start, "no section");
    Some(found.help("begin with `defaults: path/to/grpo_math_1B.yaml`, or with `policy:`"))
}
