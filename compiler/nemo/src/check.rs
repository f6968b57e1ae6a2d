//! Loads a recipe and judges it.
//!
//! In: what `load` takes, and options. Out: the settings, the typed recipe, and all findings by
//! place. Rules run only on settings that loaded without an error.

use nrl_base::{Diagnostic, Files, Problems, SourceMap};
use nrl_rules::Settings;
use nrl_rules::recipe::{Recipe, Version};

use crate::{load, model, schema};

/// How a recipe is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The version of NeMo RL that it is for.
    pub version: Version,
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
    let recipe = settings.clone().map(|s| model::recipe(s, files, options.version));
    problems.extend(recipe.iter().flat_map(schema::check));
    for finding in recipe.iter().flat_map(nrl_rules::check) {
        problems.push(finding.diagnostic);
    }
    Checked { settings, recipe, findings: problems.into_sorted() }
}
