//! From a recipe or a model directory to a program that the runtime can run.

use std::process::ExitCode;
use std::sync::Arc;

use nrl_base::{Diagnostic, SourceMap};
use nrl_ir::program::Sampling;
use nrl_runtime::engine::Engine;
use nrl_runtime::rank::Compiled;
use nrl_runtime::run::error::RunError;

use crate::args::RecipeArgs;
use crate::disk::Disk;
use crate::report;

/// The engine of this machine.
pub fn engine() -> impl Engine {
    nrl_cpu::CpuEngine::new()
}

/// Compiles a recipe; problems go to standard error. An exact one depends neither on packing nor on layout.
pub fn recipe(args: &RecipeArgs, exact: bool) -> Result<Compiled, ExitCode> {
    let mut sources = SourceMap::new();
    let options = nrl_driver::Options {
        sets: args.sets.clone(),
        ranks: args.ranks,
        recipe: args.recipe.clone(),
        // A file that cannot be read has been told of; a run does without it.
        assume: crate::machine::assume(None).unwrap_or_default(),
        ..nrl_driver::Options::default()
    };
    let (compiled, found) = nrl_driver::compile(&Disk, &mut sources, &args.file, &options);
    if let Some(place) = compiled.as_ref().filter(|_| exact).and_then(|c| c.facts.inexact.first()) {
        let what = "`--exact` refuses this recipe: a loss depends on packing and layout";
        let d = Diagnostic::error("loss-depends-on-layout", what)
            .label(*place, "a mean over what is computed at once")
            .help("write `over: tokens`, or run without `--exact`");
        report::print(&[d], &sources);
        return Err(ExitCode::from(1));
    }
    if let Some(first) = compiled.as_ref().and_then(|c| c.not_yet.first()) {
        report::print(std::slice::from_ref(first), &sources);
        return Err(ExitCode::from(1));
    }
    let mut found = found;
    found.extend(compiled.as_ref().and_then(nrl_driver::unsaid));
    let mut compiled = finish(compiled, &found, &sources)?;
    compiled.program.seed = args.seed.unwrap_or(compiled.program.seed);
    Ok(compiled)
}

/// Compiles the model in a directory: graph 0 generates, graph 1 scores.
pub fn model(dir: &str, context: Option<usize>, sampling: Sampling) -> Result<Compiled, ExitCode> {
    let mut sources = SourceMap::new();
    let (compiled, found) = nrl_driver::compile_model(&Disk, &mut sources, dir, context, sampling);
    finish(compiled, &found, &sources)
}

fn finish(
    compiled: Option<nrl_driver::Compiled>,
    found: &[Diagnostic],
    sources: &SourceMap,
) -> Result<Compiled, ExitCode> {
    report::print(found, sources);
    let compiled = compiled.ok_or(ExitCode::from(1))?;
    let plans = compiled.plans.into_iter().map(Arc::new).collect();
    Ok(Compiled { program: compiled.program, plans })
}

/// Shows an error of the run.
pub fn fail(e: &RunError) -> ExitCode {
    let diagnostic = Diagnostic::error(e.code, e.message.clone()).help_opt(e.help.clone());
    report::print(&[diagnostic], &SourceMap::new());
    ExitCode::from(1)
}
