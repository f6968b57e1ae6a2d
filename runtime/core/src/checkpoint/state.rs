//! One training state: save, list, load.
//!
//! In and out: [`State`] and a source of tensors. state.json carries a format number and the size of the tensor
//! file; a directory that does not match them is refused.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::data::cursor::Position;
use crate::files::{FileError, replace_dir, replace_file, write_file};
use crate::hf::tensor_file::{Dtype, TensorFile, TensorFileError, TensorSpec, write_tensors};

/// The format written; others are refused.
pub const FORMAT: u32 = 1;

const TENSORS: &str = "state.safetensors";
const STATE: &str = "state.json";
const RECIPE: &str = "recipe.nrl";

/// A checkpoint that cannot be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tensors are broken.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
    /// A tensor that should be saved is not there.
    #[error("cannot save {name}: {reason}")]
    Values { name: String, reason: String },
    /// There is none.
    #[error("{dir} holds no checkpoint to resume from; run without `--resume` to begin there")]
    None { dir: PathBuf },
    /// state.json is broken or belongs to another tensor file.
    #[error("{path} is not a whole checkpoint: {reason}; take an older one")]
    Broken { path: PathBuf, reason: String },
    /// Written by another version.
    #[error("{path} has checkpoint format {found}, this version reads format {FORMAT}")]
    Format { path: PathBuf, found: u32 },
    /// The recipe's model or optimizer has changed.
    #[error("{path} does not fit this recipe: {reason}")]
    Differs { path: PathBuf, reason: String },
}

impl CheckpointError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            CheckpointError::File(e) => e.code(),
            CheckpointError::Tensors(_) | CheckpointError::Broken { .. } => "broken-checkpoint",
            CheckpointError::None { .. } => "no-checkpoint",
            CheckpointError::Format { .. } => "checkpoint-format",
            CheckpointError::Differs { .. } => "checkpoint-differs",
            CheckpointError::Values { .. } => "export-failed",
        }
    }
}

/// Everything of a run that is not a tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Set when saving.
    #[serde(default)]
    pub format: u32,
    /// Steps that were finished.
    pub step: u64,
    pub seed: u64,
    /// Name of the phase that the next step belongs to.
    #[serde(default)]
    pub phase: Option<String>,
    /// Other whole numbers by name: optimizer updates, steps within the phase, samples drawn, ...
    #[serde(default)]
    pub counters: IndexMap<String, u64>,
    /// Where each data set stands.
    #[serde(default)]
    pub cursors: IndexMap<String, Position>,
    /// What was measured last, by name; `keep` chooses by one of them.
    #[serde(default)]
    pub metrics: IndexMap<String, f64>,
    /// `--set` overrides in their order, as written.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// Anything else that the run loop wants back.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// Length of state.safetensors.
    #[serde(default)]
    tensor_bytes: u64,
}

/// A checkpoint on disk.
#[derive(Clone, Debug)]
pub struct Saved {
    pub path: PathBuf,
    pub state: State,
}

/// Name of the directory of a step.
pub fn name_of(step: u64) -> String {
    format!("step-{step:06}")
}

/// Writes `dir/step-NNNNNN`; `values` is asked for each tensor in turn. Returns its path.
pub fn save<'v>(
    dir: &Path,
    state: &State,
    recipe: &str,
    specs: &[TensorSpec],
    mut values: impl FnMut(&str) -> io::Result<Cow<'v, [f32]>>,
) -> Result<PathBuf, CheckpointError> {
    let path = dir.join(name_of(state.step));
    let mut absent = None;
    replace_dir::<CheckpointError>(&path, |partial| {
        let tensors = partial.join(TENSORS);
        let written = replace_file(&tensors, |file| {
            write_tensors(file, specs, Dtype::F32, |name| {
                values(name).inspect_err(|e| absent = Some((name.to_string(), e.to_string())))
            })
        });
        if let Some((name, reason)) = absent.take() {
            return Err(CheckpointError::Values { name, reason });
        }
        written?;
        let tensor_bytes =
            std::fs::metadata(&tensors).map_err(|e| FileError::new("read", &tensors, e))?.len();
        let state = State { format: FORMAT, tensor_bytes, ..state.clone() };
        let text =
            serde_json::to_string_pretty(&state).map_err(|e| broken(&path, e.to_string()))?;
        write_file(&partial.join(STATE), text.as_bytes())?;
        write_file(&partial.join(RECIPE), recipe.as_bytes())?;
        Ok(())
    })?;
    Ok(path)
}

fn broken(path: &Path, reason: String) -> CheckpointError {
    CheckpointError::Broken { path: path.into(), reason }
}

/// All checkpoints of a directory that can be read, by rising step.
pub fn list(dir: &Path) -> Vec<Saved> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let named =
        |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-"));
    let mut saved: Vec<Saved> = entries
        .flatten()
        .map(|e| e.path())
        .filter(named)
        .filter_map(|p| Saved::open(&p).ok())
        .collect();
    saved.sort_by_key(|s| s.state.step);
    saved
}

/// The newest whole checkpoint of a directory.
pub fn latest(dir: &Path) -> Result<Saved, CheckpointError> {
    list(dir).pop().ok_or_else(|| CheckpointError::None { dir: dir.into() })
}

impl Saved {
    /// Opens one checkpoint and checks that it is whole.
    pub fn open(path: &Path) -> Result<Saved, CheckpointError> {
        let text =
            std::fs::read(path.join(STATE)).map_err(|e| broken(path, format!("{STATE}: {e}")))?;
        let state: State =
            serde_json::from_slice(&text).map_err(|e| broken(path, format!("{STATE}: {e}")))?;
        if state.format != FORMAT {
            return Err(CheckpointError::Format { path: path.into(), found: state.format });
        }
        let found = std::fs::metadata(path.join(TENSORS))
            .map_err(|e| broken(path, format!("{TENSORS}: {e}")))?
            .len();
        if found != state.tensor_bytes {
            return Err(broken(
                path,
                format!("{TENSORS} has {found} bytes, {} were written", state.tensor_bytes),
            ));
        }
        Ok(Saved { path: path.into(), state })
    }

    /// The recipe as it was when the checkpoint was written.
    pub fn recipe(&self) -> Result<String, CheckpointError> {
        let path = self.path.join(RECIPE);
        std::fs::read_to_string(&path).map_err(|e| broken(&self.path, format!("{RECIPE}: {e}")))
    }

    /// The tensors; refuses a checkpoint whose names or shapes are not exactly `specs`.
    pub fn tensors(&self, specs: &[TensorSpec]) -> Result<TensorFile, CheckpointError> {
        let file = self.all_tensors()?;
        let differs =
            |reason: String| Err(CheckpointError::Differs { path: self.path.clone(), reason });
        for spec in specs {
            match file.entries.get(&spec.name) {
                None => return differs(format!("it has no {}", spec.name)),
                Some(e) if e.shape != spec.shape => {
                    return differs(format!(
                        "{} is {:?}, the recipe's is {:?}",
                        spec.name, e.shape, spec.shape
                    ));
                }
                Some(_) => {}
            }
        }
        match file.entries.keys().find(|k| !specs.iter().any(|s| s.name == **k)) {
            Some(extra) => differs(format!("it has {extra}, which the recipe does not know")),
            None => Ok(file),
        }
    }

    /// The tensors, whatever they are.
    pub fn all_tensors(&self) -> Result<TensorFile, CheckpointError> {
        Ok(TensorFile::open(&self.path.join(TENSORS))?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn specs() -> Vec<TensorSpec> {
        vec![TensorSpec::new("model/w", [2, 1]), TensorSpec::new("opt.m/w", [2, 1])]
    }

    pub(crate) fn save_step(dir: &Path, step: u64, metrics: &[(&str, f64)]) -> PathBuf {
        let metrics = metrics.iter().map(|(k, v)| (k.to_string(), *v)).collect();
        let state = State { step, seed: 42, metrics, ..State::default() };
        save(dir, &state, "recipe r { }", &specs(), |_| Ok(vec![step as f32, -0.0].into())).unwrap()
    }

    #[test]
    fn a_state_comes_back_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let position = Position { epoch: 2, taken: 7, rows: 9, fingerprint: u64::MAX };
        let state = State {
            step: 12,
            seed: u64::MAX,
            phase: Some("rl".into()),
            counters: [("updates".to_string(), 24)].into_iter().collect(),
            cursors: [("problems".to_string(), position)].into_iter().collect(),
            metrics: [("test.accuracy".to_string(), 0.1 + 0.2)].into_iter().collect(),
            overrides: vec!["lr=1e-4".into()],
            ..State::default()
        };
        let values = [f32::from_bits(0x3f80_0001), f32::NAN];
        let path =
            save(dir.path(), &state, "recipe r { }", &specs(), |_| Ok(values.to_vec().into()))
                .unwrap();
        assert!(path.ends_with("step-000012"));
        let saved = latest(dir.path()).unwrap();
        let State { format, tensor_bytes, .. } = saved.state;
        assert_eq!(saved.state, State { format, tensor_bytes, ..state });
        assert_eq!(saved.recipe().unwrap(), "recipe r { }");
        let read = saved.tensors(&specs()).unwrap().read_f32("opt.m/w").unwrap();
        assert_eq!(read.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), values.map(f32::to_bits));
    }

    #[test]
    fn the_latest_whole_one_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(latest(dir.path()).unwrap_err().code(), "no-checkpoint");
        for step in [5, 10, 15] {
            save_step(dir.path(), step, &[]);
        }
        std::fs::write(dir.path().join("step-000015/state.safetensors"), b"half").unwrap();
        std::fs::create_dir(dir.path().join(".step-000020.partial-1-1")).unwrap();
        assert_eq!(latest(dir.path()).unwrap().state.step, 10);
        let e = Saved::open(&dir.path().join("step-000015")).unwrap_err();
        assert!(e.to_string().contains("state.safetensors has 4 bytes"), "{e}");
    }

    #[test]
    fn a_failed_save_keeps_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        save_step(dir.path(), 5, &[]);
        let state = State { step: 5, ..State::default() };
        let e = save(dir.path(), &state, "new", &specs(), |name| match name {
            "model/w" => Ok(vec![9.0, 9.0].into()),
            _ => Err(io::Error::other("rank 1 stopped")),
        });
        assert_eq!(e.unwrap_err().to_string(), "cannot save opt.m/w: rank 1 stopped");
        let full = |_: &str| Ok(Cow::from(vec![0.0f32; 3]));
        assert!(save(dir.path(), &state, "new", &specs(), full).is_err());
        let saved = latest(dir.path()).unwrap();
        assert_eq!(saved.recipe().unwrap(), "recipe r { }");
        assert_eq!(saved.tensors(&specs()).unwrap().read_f32("model/w").unwrap(), [5.0, 0.0]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_model_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let saved = Saved::open(&save_step(dir.path(), 5, &[])).unwrap();
        let mut other = specs();
        other[0].shape = vec![4, 1];
        let e = saved.tensors(&other).unwrap_err();
        assert!(e.to_string().ends_with("model/w is [2, 1], the recipe's is [4, 1]"), "{e}");
        let e = saved.tensors(&specs()[..1]).unwrap_err();
        assert!(e.to_string().ends_with("it has opt.m/w, which the recipe does not know"), "{e}");
        let path = saved.path.join("state.json");
        let text =
            std::fs::read_to_string(&path).unwrap().replace("\"format\": 1", "\"format\": 9");
        std::fs::write(&path, text).unwrap();
        assert_eq!(Saved::open(&saved.path).unwrap_err().code(), "checkpoint-format");
    }
}
