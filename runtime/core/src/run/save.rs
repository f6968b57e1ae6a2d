//! Checkpoints of a run, and the way back: on the same mesh or another, bit for bit.
//!
//! In: the machine and the counters of a run. Out: a directory with whole tensors (models that are trained or were
//! frozen on the way, optimizer states) and state.json with everything else: step, phase, data positions, histories.
//! Randomness is keyed by numbers, so it needs no state. Models that can be made again are not stored.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use nrl_ir::program::{Program, Stage, Weights};
use serde::{Deserialize, Serialize};

use crate::checkpoint::state::{self, CheckpointError, Saved, State};
use crate::hf::export::{Export, SHARD_BYTES, export};
use crate::hf::tensor_file::{Dtype, TensorFile, TensorSpec};
use crate::hf::weights::joined;
use crate::run::error::{Outcome, RunError};
use crate::run::machine::{Machine, Whole, trained_models};
use crate::run::output::numbered;
use crate::run::stage::Shop;
use crate::run::watch::Shown;
use crate::weights::{Source, Stored, tensors};

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Phase of the next step, and finished steps of it.
    pub phase: usize,
    pub in_phase: usize,
    /// Finished steps of the run.
    pub step: u64,
    /// Per halt of the phase, how many steps in a row its condition held.
    pub halts: Vec<usize>,
    pub rewards: Vec<f64>,
    pub before: Vec<Shown>,
    pub first_eval: IndexMap<String, f64>,
    pub last_eval: IndexMap<String, f64>,
    pub skipped_updates: u64,
    pub failed_rewards: u64,
}

fn fail(e: CheckpointError) -> RunError {
    RunError::new(e.code(), e.to_string())
}

/// The model that each optimizer updates, if any.
fn optimized(program: &Program) -> BTreeMap<usize, usize> {
    let steps = program.phases.iter().flat_map(|p| &p.step);
    let one = |b: &nrl_ir::program::Binding| match &b.stage {
        Stage::Update { model, optimizer, .. } => Some((*optimizer, *model)),
        _ => None,
    };
    steps.filter_map(one).collect()
}

/// Models whose weights cannot be made again from the recipe.
fn stored_models(program: &Program) -> Vec<usize> {
    let trained = trained_models(program);
    let later =
        |m: usize| matches!(program.models[m].weights, Weights::Frozen { phase, .. } if phase > 0);
    (0..program.models.len()).filter(|m| trained.contains(m) || later(*m)).collect()
}

/// One tensor of a checkpoint.
struct Part {
    whole: usize,
    slot: usize,
    stored: Stored,
}

/// Everything that is stored, by name.
struct Parts {
    specs: Vec<TensorSpec>,
    parts: BTreeMap<String, Part>,
    wholes: Vec<Whole>,
}

impl Parts {
    fn add(
        &mut self,
        program: &Program,
        model: usize,
        prefix: &str,
        whole: Whole,
        trained_only: bool,
    ) -> Outcome<()> {
        let model = &program.models[model];
        for (slot, (p, _, name)) in tensors(&model.params).enumerate() {
            if trained_only && !model.params[p].trained {
                continue;
            }
            let stored = Stored::new(&model.params[p], &model.dims)?;
            let name = format!("{prefix}/{name}");
            self.specs.push(TensorSpec::new(name.clone(), stored.shape.clone()));
            self.parts.insert(name, Part { whole: self.wholes.len(), slot, stored });
        }
        self.wholes.push(whole);
        Ok(())
    }

    fn value(&self, name: &str) -> io::Result<Cow<'static, [f32]>> {
        let part =
            self.parts.get(name).ok_or_else(|| io::Error::other("it is not part of the run"))?;
        Ok(Cow::Owned(part.stored.to_file(&self.wholes[part.whole][part.slot])))
    }
}

/// Names a state tensor of an optimizer.
fn state_prefix(program: &Program, optimizer: usize, state: &str) -> String {
    format!("optimizer.{optimizer}.{}/{state}", program.optimizers[optimizer].name)
}

/// What of a run is not in its tensors.
pub struct Context<'a> {
    pub recipe: &'a str,
    pub overrides: &'a [String],
}

/// Writes a checkpoint into `dir` and returns its path.
pub fn save(
    dir: &Path,
    shop: &Shop,
    progress: &Progress,
    metrics: &IndexMap<String, f64>,
    about: &Context,
) -> Outcome<PathBuf> {
    let machine = &shop.machine;
    let program = machine.program();
    let mut parts = Parts { specs: vec![], parts: BTreeMap::new(), wholes: vec![] };
    for m in stored_models(program) {
        parts.add(program, m, &program.models[m].name, machine.whole(m)?, false)?;
    }
    let mut counters = IndexMap::new();
    for (o, model) in optimized(program) {
        counters.insert(format!("updates.{o}"), machine.updates(o)?);
        for (i, name) in program.optimizers[o].state.iter().enumerate() {
            if let Some(whole) = machine.whole_state(o, model, i)? {
                parts.add(program, model, &state_prefix(program, o, name), whole, true)?;
            }
        }
    }
    let cursors = shop
        .data
        .iter()
        .enumerate()
        .filter_map(|(i, d)| Some((format!("data.{i}"), d.as_ref()?.position().clone())));
    let mut state = State::default();
    state.step = progress.step;
    state.seed = program.seed;
    state.phase = program.phases.get(progress.phase).map(|p| p.name.clone());
    state.counters = counters;
    state.cursors = cursors.collect();
    state.metrics = metrics.clone();
    state.overrides = about.overrides.to_vec();
    state.extra.insert("progress".into(), serde_json::to_value(progress).unwrap_or_default());
    state::save(dir, &state, about.recipe, &parts.specs, |name| parts.value(name)).map_err(fail)
}

/// The checkpoint that `--resume` names: `latest`, a run or a checkpoint.
pub fn find(named: &Path, root: &Path) -> Outcome<Saved> {
    if named.as_os_str() == "latest" {
        let newest = numbered(root).into_iter().rev().map(|(_, dir)| dir.join("checkpoints"));
        let found = newest.filter_map(|d| state::latest(&d).ok()).next();
        return found.ok_or_else(|| fail(CheckpointError::None { dir: root.into() }));
    }
    if named.join("state.json").exists() {
        return Saved::open(named).map_err(fail);
    }
    let inner = named.join("checkpoints");
    state::latest(if inner.is_dir() { &inner } else { named }).map_err(fail)
}

/// Puts weights, optimizers and data where they were, and returns how far the run was.
pub fn restore(saved: &Saved, shop: &mut Shop) -> Outcome<Progress> {
    let program = &shop.machine.setup.clone().program;
    let differs =
        |reason: String| fail(CheckpointError::Differs { path: saved.path.clone(), reason });
    let broken =
        |reason: String| fail(CheckpointError::Broken { path: saved.path.clone(), reason });
    if saved.state.seed != program.seed {
        return Err(differs(format!(
            "its seed is {}, the recipe's is {}",
            saved.state.seed, program.seed
        )));
    }
    let progress = saved
        .state
        .extra
        .get("progress")
        .cloned()
        .ok_or_else(|| broken("it has no progress".into()))?;
    let progress: Progress = serde_json::from_value(progress).map_err(|e| broken(e.to_string()))?;
    restore_weights(saved, &mut shop.machine)?;
    let file = saved.all_tensors().map_err(fail)?;
    for (o, m) in optimized(program) {
        let updates = saved.state.counters.get(&format!("updates.{o}")).copied().unwrap_or(0);
        if updates == 0 {
            continue;
        }
        let states = &program.optimizers[o].state;
        let wholes = states
            .iter()
            .map(|s| read_whole(&file, program, m, &state_prefix(program, o, s)))
            .collect::<Outcome<_>>()?;
        shop.machine.restore_optimizer(o, m, updates, wholes)?;
    }
    for (i, data) in shop.data.iter_mut().enumerate() {
        if let (Some(data), Some(at)) = (data, saved.state.cursors.get(&format!("data.{i}"))) {
            data.restore(&program.data[i], program.seed, at)?;
        }
    }
    Ok(progress)
}

/// Loads the models that a checkpoint holds.
pub fn restore_weights(saved: &Saved, machine: &mut Machine) -> Outcome<()> {
    let setup = machine.setup.clone();
    let program = &setup.program;
    for m in stored_models(program) {
        let model = &program.models[m];
        let file = saved.all_tensors().map_err(fail)?;
        let prefix = model.name.clone();
        let missing = tensors(&model.params)
            .find(|(_, _, n)| !file.entries.contains_key(&format!("{prefix}/{n}")));
        if let Some((_, _, name)) = missing {
            let reason = format!("it has no {prefix}/{name}");
            return Err(fail(CheckpointError::Differs { path: saved.path.clone(), reason }));
        }
        machine.load(
            m,
            Source::Read(Box::new(move |name| read(&file, &format!("{prefix}/{name}")))),
        )?;
    }
    Ok(())
}

fn read(file: &TensorFile, name: &str) -> Outcome<Vec<f32>> {
    file.read_f32(name).map_err(|e| RunError::new("broken-checkpoint", e.to_string()))
}

fn read_whole(file: &TensorFile, program: &Program, model: usize, prefix: &str) -> Outcome<Whole> {
    let model = &program.models[model];
    let one = |(p, _, name): (usize, usize, String)| {
        let decl = &model.params[p];
        if !decl.trained {
            return Ok(vec![].into());
        }
        let stored = Stored::new(decl, &model.dims)?;
        Ok(stored.to_storage(&read(file, &format!("{prefix}/{name}"))?).into())
    };
    tensors(&model.params).map(one).collect()
}

/// Writes a model as a Hugging Face directory.
pub fn export_model(machine: &Machine, model: usize, dir: &Path) -> Outcome<()> {
    let program = machine.program();
    let text = &machine.texts[model];
    let source = match &program.models[model].tokens {
        nrl_ir::program::Tokens::Directory { path } => Some(Path::new(path)),
        nrl_ir::program::Tokens::Characters { .. } | nrl_ir::program::Tokens::Unknown => None,
    };
    let mut parts = Parts { specs: vec![], parts: BTreeMap::new(), wholes: vec![] };
    parts.add(program, model, "", machine.whole(model)?, false)?;
    // Names in the directory are those of the checkpoint alone.
    let own: Vec<(String, Vec<usize>)> = parts
        .specs
        .iter()
        .map(|s| (s.name.trim_start_matches('/').to_string(), s.shape.clone()))
        .collect();
    let tensors = joined(&own);
    let specs: Vec<TensorSpec> =
        tensors.iter().map(|(name, shape, _)| TensorSpec::new(name, shape.clone())).collect();
    let empty = serde_json::Map::new();
    let config = program.models[model].config.as_object().unwrap_or(&empty);
    let about = Export {
        config,
        source,
        tokenizer: Some(&text.tokenizer),
        dtype: Dtype::F32,
        shard_bytes: SHARD_BYTES,
    };
    let value = |name: &str| {
        let held = tensors.iter().find(|t| t.0 == name).map_or(&[][..], |t| &t.2);
        match held {
            [one] => parts.value(&format!("/{one}")),
            many => {
                let mut all = vec![];
                for part in many {
                    all.extend_from_slice(&parts.value(&format!("/{part}"))?);
                }
                Ok(all.into())
            }
        }
    };
    export(dir, &about, &specs, value).map_err(|e| RunError::new(e.code(), e.to_string()))
}
