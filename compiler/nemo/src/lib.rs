//! NeMo RL recipes: YAML with inheritance and overrides in, the same out.
//!
//! `load(files, sources, path, overrides)` reads one recipe as NeMo RL does: `defaults` chains,
//! `_override_`, OmegaConf's interpolation, Hydra's overrides. For several recipes make a `Loader`
//! and call its `load`: parents are read once. `Loader::environment` gives the variables that
//! `${oc.env:..}` may name. Each value of the `Settings` says who set it and where. Findings are
//! sorted; without an error among them there are settings, and else there are none.
//! `import` writes a recipe in the language, `export` writes one of the language for NeMo RL, `settings` gives what such a
//! recipe stands for.
//! `check` loads and then judges: unknown keys, and the rules of `nrl_rules`.

mod check;
mod export;
mod import;
mod interpolate;
mod layers;
mod loader;
mod merge;
pub mod model;
mod native;
mod overrides;
mod python;
mod scalar;
pub mod schema;
mod yaml;

pub use check::{Checked, Options, check};
pub use export::{ExportOptions, Exported, Lost, export, settings};
pub use import::{UNSAID_LOSS, import};
pub use loader::Loader;

use nrl_base::{Diagnostic, Files, SourceMap};
use nrl_rules::settings::Settings;

/// How many teachers of on-policy distillation have nodes of their own.
pub fn teachers(settings: &Settings) -> i64 {
    native::teachers(&settings.root)
}

/// The setting that names the teacher which judges, where on-policy distillation says what is learnt.
pub fn judge(settings: &Settings) -> Option<String> {
    let opd = settings.text("grpo.adv_estimator.name").is_some_and(|name| name.value == "opd");
    let (path, _) = native::judge(&settings.root).filter(|_| opd)?;
    Some(path)
}

/// The settings of one recipe, and what was found on the way.
pub fn load(
    files: &dyn Files,
    sources: &mut SourceMap,
    path: &str,
    overrides: &[String],
) -> (Option<Settings>, Vec<Diagnostic>) {
    Loader::new(files).load(sources, path, overrides)
}
