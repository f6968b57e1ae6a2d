//! Where a completion ends.
//!
//! In: the tokenizer's end token, every end id of generation_config.json and config.json, and the recipe's own. Out:
//! the stop set with the source of each id. A completion is finished if its last kept token is in the set; that
//! token is kept and trained, nothing after it is.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

use super::config::{ModelConfig, token_ids};
use super::tokenizer::Tokenizer;

/// A generation_config.json that cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {reason}")]
pub struct GenerationError {
    pub path: PathBuf,
    pub reason: String,
}

impl GenerationError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        "bad-generation-config"
    }
}

/// A token that ends a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct StopId {
    pub id: u32,
    /// The file or the recipe that names it.
    pub source: &'static str,
}

/// What a model directory says about generating.
#[derive(Clone, Debug, Default)]
pub struct Generation {
    pub stops: Vec<StopId>,
    /// What generation_config.json recommends; shown, never applied unasked.
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<u64>,
}

impl Generation {
    /// Reads generation_config.json if there is one and joins all end ids.
    pub fn open(
        dir: &Path,
        tokenizer: &Tokenizer,
        config: &ModelConfig,
    ) -> Result<Generation, GenerationError> {
        let path = dir.join("generation_config.json");
        let fail = |reason: String| GenerationError { path: path.clone(), reason };
        let table: Map<String, Value> = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|e| fail(format!("it is not a JSON table: {e}")))?,
            Err(_) => Map::new(),
        };
        let listed = table.get("eos_token_id").unwrap_or(&Value::Null);
        let listed = token_ids(listed)
            .ok_or_else(|| fail(format!("`eos_token_id` is {listed}, not a token id or a list")))?;
        let mut generation = Generation {
            stops: Vec::new(),
            temperature: table.get("temperature").and_then(Value::as_f64),
            top_p: table.get("top_p").and_then(Value::as_f64),
            top_k: table.get("top_k").and_then(Value::as_u64),
        };
        generation.add(tokenizer.eos(), "the tokenizer");
        generation.add(listed, "generation_config.json");
        generation.add(config.eos_token_ids.iter().copied(), "config.json");
        Ok(generation)
    }

    fn add(&mut self, ids: impl IntoIterator<Item = u32>, source: &'static str) {
        for id in ids {
            if !self.stops.iter().any(|s| s.id == id) {
                self.stops.push(StopId { id, source });
            }
        }
    }

    /// The same with the recipe's own stop ids.
    pub fn with_recipe(mut self, ids: &[u32]) -> Generation {
        self.add(ids.iter().copied(), "the recipe");
        self
    }

    /// The stop ids in rising order.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.stops.iter().map(|s| s.id).collect();
        ids.sort_unstable();
        ids
    }
}

/// How much of a completion counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Tokens up to and including the end token.
    pub length: usize,
    /// Whether there was an end token; if not, the completion was cut off.
    pub finished: bool,
}

/// Cuts a completion after its first end token.
pub fn keep(completion: &[u32], stops: &[u32]) -> Kept {
    match completion.iter().position(|id| stops.contains(id)) {
        Some(at) => Kept { length: at + 1, finished: true },
        None => Kept { length: completion.len(), finished: false },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::config::tests::with;
    use super::super::tokenizer::tests::write_small;
    use super::*;

    #[test]
    fn the_stop_set_is_the_union_of_all_sources() {
        let dir = tempfile::tempdir().unwrap();
        write_small(dir.path(), json!({"eos_token": "</s>"}));
        let t = Tokenizer::open(dir.path()).unwrap();
        let config = with(json!({"eos_token_id": [2, 1]})).unwrap();
        let file = dir.path().join("generation_config.json");
        std::fs::write(&file, r#"{"eos_token_id": [1, 10], "temperature": 0.6, "top_k": 20}"#)
            .unwrap();
        let g = Generation::open(dir.path(), &t, &config).unwrap();
        assert_eq!(g.stop_ids(), [1, 2, 10]);
        assert_eq!(g.stops[1], StopId { id: 10, source: "generation_config.json" });
        assert_eq!((g.temperature, g.top_k, g.top_p), (Some(0.6), Some(20), None));
        assert_eq!(g.with_recipe(&[7, 1]).stop_ids(), [1, 2, 7, 10]);
        std::fs::write(&file, r#"{"eos_token_id": 9}"#).unwrap();
        assert_eq!(Generation::open(dir.path(), &t, &config).unwrap().stop_ids(), [1, 2, 9]);
        std::fs::write(&file, r#"{"eos_token_id": "x"}"#).unwrap();
        let e = Generation::open(dir.path(), &t, &config).unwrap_err();
        assert!(
            e.to_string().ends_with("`eos_token_id` is \"x\", not a token id or a list"),
            "{e}"
        );
        std::fs::remove_file(&file).unwrap();
        assert_eq!(Generation::open(dir.path(), &t, &config).unwrap().stop_ids(), [1, 2]);
    }

    /// Case c60.
    #[test]
    fn the_end_token_is_kept_and_nothing_after_it() {
        assert_eq!(keep(&[5, 6, 106, 0, 0], &[1, 106]), Kept { length: 3, finished: true });
        assert_eq!(keep(&[5, 6, 7], &[1, 106]), Kept { length: 3, finished: false });
        assert_eq!(keep(&[], &[1]), Kept { length: 0, finished: false });
    }
}
