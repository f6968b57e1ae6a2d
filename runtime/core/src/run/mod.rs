//! The run: phases of steps, with evaluations, checkpoints, halts and a way back.
//!
//! In: a compiled program, an engine, options. Out: a directory with metrics, samples, checkpoints and the final model.
//! A step is bindings in order ([`stage`]); what each computes is in [`compute`]; the loop here counts steps, opens and
//! closes phases and saves. A resumed run equals an uninterrupted one bit for bit: everything that a step depends on is
//! in the weights, the optimizer states, the data positions and the step's number.

pub mod collect;
pub mod compute;
pub mod error;
pub mod machine;
pub mod optimizer;
pub mod output;
pub mod pack;
pub mod save;
pub mod source;
pub mod stage;
mod steps;
#[cfg(test)]
mod tests;
pub mod value;
pub mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use nrl_ir::program::{Binding, Program, Stage};

use crate::checkpoint::space::{BYTES_PER_PARAM, Space, Verdict};
use crate::checkpoint::state::Saved;
use crate::engine::Engine;
use crate::files::write_file;
use crate::rank::Compiled;
use crate::reward::Scorer;
use crate::run::error::{Outcome, RunError};
use crate::run::machine::{Machine, trained_models};
use crate::run::output::{Output, next_dir};
use crate::run::save::Progress;
use crate::run::stage::{Pass, Place, Shop, data_of, open_data};
use crate::run::steps::Run;
use crate::run::value::Held;
use crate::run::watch::{Event, Summary, Watch};

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Directory of the run instead of the next free number under `root`.
    pub out: Option<PathBuf>,
    /// Where numbered runs are: `runs`.
    pub root: PathBuf,
    /// `latest`, a run or a checkpoint to go on from.
    pub resume: Option<PathBuf>,
    /// The recipe's text and `--set` overrides, kept with the run.
    pub recipe: String,
    pub overrides: Vec<String>,
    /// Stop, with a checkpoint, after this many steps of the run.
    pub steps: Option<u64>,
    /// Set from outside to end after the step at hand.
    pub stop: Arc<AtomicBool>,
}

/// Runs a program from its first step, or from a checkpoint.
pub fn run(
    setup: Compiled,
    engine: &dyn Engine,
    options: &Options,
    watch: &mut dyn Watch,
) -> Outcome<Summary> {
    let saved = options.resume.as_ref().map(|r| find_saved(r, options)).transpose()?;
    let mut shop = open_shop(setup, engine, true)?;
    let dir = directory(options, saved.as_ref())?;
    let mut output = Output::open(&dir, saved.as_ref().map(|s| s.state.step))?;
    let progress =
        check_space(shop.machine.program(), &dir).and_then(|()| load(&mut shop, saved.as_ref()));
    let progress = match progress {
        Ok(progress) => progress,
        Err(e) => {
            // A numbered directory was made for this run alone, and nothing has happened in it.
            if options.out.is_none() && saved.is_none() {
                std::fs::remove_dir_all(&dir).ok();
            }
            return Err(e);
        }
    };
    write_file(&dir.join("recipe.nrl"), options.recipe.as_bytes())?;
    let program = shop.machine.program();
    watch.event(Event::Started {
        dir: &dir,
        ranks: shop.machine.ranks.count(),
        parameters: trained_models(program).iter().map(|m| parameters(program, *m)).sum(),
        resumed: saved.as_ref().map(|s| s.state.step),
        steps: total_steps(program),
    });
    for note in shop.data.iter().flatten().flat_map(|d| &d.notes) {
        watch.event(Event::Note(note));
    }
    let resumed = saved.is_some();
    let mut run = Run {
        shop,
        output: &mut output,
        options,
        watch,
        progress,
        start: Instant::now(),
        slowest: 0.0,
        noted: vec![],
        saved: None,
    };
    let stopped = run.phases(resumed)?;
    run.finish(stopped)
}

fn find_saved(named: &Path, options: &Options) -> Outcome<Saved> {
    let latest = named.as_os_str() == "latest";
    match options.out.as_ref().filter(|out| latest && out.join("checkpoints").is_dir()) {
        Some(out) => save::find(out, &options.root),
        None => save::find(named, &options.root),
    }
}

fn load(shop: &mut Shop, saved: Option<&Saved>) -> Outcome<Progress> {
    shop.machine.load_initial()?;
    saved.map_or_else(|| Ok(Progress::default()), |s| save::restore(s, shop))
}

/// Evaluates a program's models as they are in `checkpoint` (a run, a checkpoint of one, or a model directory).
pub fn evaluate(
    setup: Compiled,
    engine: &dyn Engine,
    checkpoint: Option<&Path>,
) -> Outcome<Vec<(String, BTreeMap<String, f64>)>> {
    let mut shop = open_shop(setup, engine, false)?;
    shop.machine.load_initial()?;
    if let Some(path) = checkpoint {
        load_from(&mut shop.machine, path)?;
    }
    let setup = shop.machine.setup.clone();
    let lists = setup
        .program
        .phases
        .iter()
        .flat_map(|p| p.every.iter().map(|e| &e.stages).chain([&p.step]));
    let evaluations: Vec<Binding> = lists
        .flatten()
        .filter(|b| matches!(b.stage, Stage::Evaluate { .. }))
        .map(|b| Binding { args: vec![], ..b.clone() })
        .collect();
    if evaluations.is_empty() {
        return Err(RunError::new("nothing-to-run", "the recipe has no `evaluate`")
            .help("add `every 10 steps { test = evaluate(sampler, held_out, reward: score) }`"));
    }
    let mut results: Vec<(String, BTreeMap<String, f64>)> = vec![];
    let place = Place { phase: 0, in_phase: 1, of_phase: 1, step: 1, unscored: true };
    let mut pass = Pass::new(&mut shop, &evaluations, place);
    pass.run()?;
    for (binding, held) in evaluations.iter().zip(&pass.held) {
        if let (Held::Numbers(numbers), false) =
            (held, results.iter().any(|(n, _)| *n == binding.name))
        {
            results.push((binding.name.clone(), numbers.clone()));
        }
    }
    Ok(results)
}

fn load_from(machine: &mut Machine, path: &Path) -> Outcome<()> {
    if path.join("config.json").exists() {
        for m in trained_models(&machine.setup.program.clone()) {
            let source = machine::open(&machine.setup.program.models[m], path)?;
            machine.load(m, crate::weights::Source::Files(source))?;
        }
        return Ok(());
    }
    save::restore_weights(&save::find(path, path)?, machine)
}

fn open_shop(setup: Compiled, engine: &dyn Engine, training: bool) -> Outcome<Shop> {
    let machine = Machine::start(setup, engine)?;
    let setup = machine.setup.clone();
    let program = &setup.program;
    let every = program.phases.iter().flat_map(|p| p.every.iter().map(|e| &e.stages[..]));
    let steps = program.phases.iter().filter(|_| training).map(|p| &p.step[..]);
    let lists: Vec<&[Binding]> = every.chain(steps).collect();
    let wanted: Vec<usize> = lists.iter().flat_map(|l| data_of(l)).collect();
    let data = program
        .data
        .iter()
        .enumerate()
        .map(|(i, d)| wanted.contains(&i).then(|| open_data(&machine, d)).transpose());
    let data = data.collect::<Outcome<_>>()?;
    let used: Vec<usize> = lists.iter().flat_map(|l| l.iter()).filter_map(reward_of).collect();
    let scorers = program
        .rewards
        .iter()
        .enumerate()
        .map(|(i, r)| used.contains(&i).then(|| Scorer::start(r)).transpose());
    let scorers = scorers.collect::<Outcome<_>>()?;
    Ok(Shop { machine, data, scorers })
}

fn reward_of(binding: &Binding) -> Option<usize> {
    match &binding.stage {
        Stage::Reward { reward } | Stage::Evaluate { reward, .. } => Some(*reward),
        _ => None,
    }
}

fn directory(options: &Options, saved: Option<&Saved>) -> Outcome<PathBuf> {
    if let Some(out) = &options.out {
        return Ok(out.clone());
    }
    // runs/3/checkpoints/step-000100 goes on in runs/3.
    let above = saved.and_then(|s| s.path.parent()?.parent().map(Path::to_path_buf));
    above.map_or_else(|| next_dir(&options.root), Ok)
}

/// Refuses a run whose checkpoints cannot fit.
fn check_space(program: &Program, dir: &Path) -> Outcome<()> {
    let stages = program.phases.iter().flat_map(|p| p.every.iter().flat_map(|e| &e.stages));
    let keep = stages
        .filter_map(
            |b| if let Stage::Checkpoint { keep, .. } = &b.stage { Some(*keep) } else { None },
        )
        .max();
    let Some(keep) = keep else { return Ok(()) };
    let params: usize = trained_models(program).iter().map(|m| parameters(program, *m)).sum();
    let Ok(space) = Space::at(dir, params as u64, BYTES_PER_PARAM, keep) else { return Ok(()) };
    match (space.verdict(), space.problem(dir)) {
        (Verdict::DoesNotFit, Some(problem)) => Err(RunError::new("disk-full", problem)),
        _ => Ok(()),
    }
}

fn parameters(program: &Program, model: usize) -> usize {
    let model = &program.models[model];
    let of = |(p, _, _): (usize, usize, String)| {
        model.params[p].dims.iter().map(|d| model.dims.bound(*d)).product::<usize>()
    };
    crate::weights::tensors(&model.params).map(of).sum()
}

fn total_steps(program: &Program) -> u64 {
    program.phases.iter().map(|p| p.steps as u64).sum()
}
