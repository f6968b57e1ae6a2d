//! A model directory as a whole.
//!
//! In: the directory. Out: its parts, checked against each other: the tokenizer must not be longer than the model's
//! vocabulary (shorter is usual; ids beyond it are masked), and the weights must be exactly those that the model
//! declares.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::chat::{ChatError, ChatTemplate};
use super::config::{ConfigError, ModelConfig};
use super::generation::{Generation, GenerationError};
use super::tokenizer::{Tokenizer, TokenizerError};
use super::weights::{Checkpoint, WeightsError};

/// A model directory that cannot be used.
#[derive(Debug, Error)]
pub enum PretrainedError {
    /// There is no such directory.
    #[error(
        "{path} is not a directory; the path must be a Hugging Face model directory on this machine"
    )]
    NotFound { path: PathBuf },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Generation(#[from] GenerationError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// More tokens than rows.
    #[error(
        "the tokenizer of {path} has {tokens} tokens, the model only {rows} rows (`vocab_size` of config.json); take the \
         tokenizer that belongs to the model"
    )]
    Vocabulary { path: PathBuf, tokens: usize, rows: usize },
    /// An id that the model does not have.
    #[error("{path}: the end token {id} (from {source_of}) is outside the model's {rows} rows")]
    StopId { path: PathBuf, id: u32, source_of: &'static str, rows: usize },
}

impl PretrainedError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            PretrainedError::NotFound { .. } => "model-not-found",
            PretrainedError::Config(e) => e.code(),
            PretrainedError::Tokenizer(e) => e.code(),
            PretrainedError::Chat(e) => e.code(),
            PretrainedError::Generation(e) => e.code(),
            PretrainedError::Weights(e) => e.code(),
            PretrainedError::Vocabulary { .. } | PretrainedError::StopId { .. } => {
                "vocabulary-mismatch"
            }
        }
    }
}

/// All parts of a model directory; weights are read on demand.
#[derive(Clone, Debug)]
pub struct Pretrained {
    pub dir: PathBuf,
    pub config: ModelConfig,
    pub tokenizer: Tokenizer,
    pub chat: Option<ChatTemplate>,
    pub generation: Generation,
    pub weights: Checkpoint,
}

impl Pretrained {
    /// Opens and checks a directory.
    pub fn open(dir: &Path) -> Result<Pretrained, PretrainedError> {
        if !dir.is_dir() {
            return Err(PretrainedError::NotFound { path: dir.into() });
        }
        let config = ModelConfig::open(dir)?;
        let tokenizer = Tokenizer::open(dir)?;
        let rows = config.vocab_size;
        if tokenizer.len() > rows {
            return Err(PretrainedError::Vocabulary {
                path: dir.into(),
                tokens: tokenizer.len(),
                rows,
            });
        }
        let chat = ChatTemplate::open(dir, &tokenizer)?;
        let generation = Generation::open(dir, &tokenizer, &config)?;
        if let Some(stop) = generation.stops.iter().find(|s| s.id as usize >= rows) {
            return Err(PretrainedError::StopId {
                path: dir.into(),
                id: stop.id,
                source_of: stop.source,
                rows,
            });
        }
        let weights = Checkpoint::open(dir)?;
        Ok(Pretrained { dir: dir.into(), config, tokenizer, chat, generation, weights })
    }

    /// The chat template, or the error that says there is none.
    pub fn chat(&self) -> Result<&ChatTemplate, PretrainedError> {
        let none = || ChatError::None { path: self.dir.clone() };
        Ok(self.chat.as_ref().ok_or_else(none)?)
    }

    /// Compares the stored weights with those the model declares (names and shapes); a tied head may be stored besides.
    pub fn account(&self, wanted: &[(String, Vec<usize>)]) -> Result<(), PretrainedError> {
        const HEAD: &str = "lm_head.weight";
        const EMBED: &str = "model.embed_tokens.weight";
        let tied = self.config.tie_word_embeddings && !wanted.iter().any(|w| w.0 == HEAD);
        let allowed: &[&str] = if tied { &[HEAD] } else { &[] };
        self.weights.account(wanted, allowed).map_err(WeightsError::Account)?;
        if tied {
            self.weights.check_tied(HEAD, EMBED).map_err(WeightsError::Account)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::{Value, json};

    use super::super::config::tests::llama;
    use super::super::export::{Export, SHARD_BYTES, export};
    use super::super::tensor_file::{Dtype, TensorSpec};
    use super::super::tokenizer::tests::write_small;
    use super::*;

    /// A directory with a tied model of two rows per width and `head` stored if given.
    fn model(vocab: usize, head: Option<f32>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut config = llama();
        config["vocab_size"] = vocab.into();
        config["eos_token_id"] = 1.into();
        let mut specs = vec![TensorSpec::new("model.embed_tokens.weight", [2, 2])];
        specs.extend(head.map(|_| TensorSpec::new("lm_head.weight", [2, 2])));
        let values = |name: &str| {
            let last = if name == "lm_head.weight" { head.unwrap_or(0.0) } else { 4.0 };
            Ok(Cow::from(vec![1.0, 2.0, 3.0, last]))
        };
        let raw = config.as_object().unwrap();
        let e = Export {
            config: raw,
            source: None,
            tokenizer: None,
            dtype: Dtype::F32,
            shard_bytes: SHARD_BYTES,
        };
        export(&dir.path().join("m"), &e, &specs, values).unwrap();
        config["tie_word_embeddings"] = true.into();
        std::fs::write(dir.path().join("m/config.json"), config.to_string()).unwrap();
        write_small(&dir.path().join("m"), json!({"bos_token": "<s>", "eos_token": "</s>"}));
        dir
    }

    fn open(dir: &tempfile::TempDir) -> Result<Pretrained, PretrainedError> {
        Pretrained::open(&dir.path().join("m"))
    }

    /// Case c80: padded rows are the model's, masked in sampling.
    #[test]
    fn the_vocabulary_is_the_models() {
        let p = open(&model(16, None)).unwrap();
        assert_eq!((p.config.vocab_size, p.tokenizer.len()), (16, 11));
        let e = open(&model(10, None)).unwrap_err();
        assert_eq!(e.code(), "vocabulary-mismatch");
        assert!(e.to_string().contains("has 11 tokens, the model only 10 rows"), "{e}");
    }

    #[test]
    fn a_stored_tied_head_is_accepted_only_if_equal() {
        let wanted = [("model.embed_tokens.weight".to_string(), vec![2, 2])];
        open(&model(16, None)).unwrap().account(&wanted).unwrap();
        open(&model(16, Some(4.0))).unwrap().account(&wanted).unwrap();
        let e = open(&model(16, Some(5.0))).unwrap().account(&wanted).unwrap_err();
        assert_eq!(e.code(), "tied-head-differs");
        let e = open(&model(16, None)).unwrap().account(&[("other".into(), vec![1])]).unwrap_err();
        assert_eq!(e.code(), "checkpoint-mismatch");
    }

    #[test]
    fn parts_that_are_absent_or_wrong_are_told() {
        let dir = model(16, None);
        let p = open(&dir).unwrap();
        assert_eq!(p.chat().unwrap_err().code(), "no-chat-template");
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(p.dir.join("config.json")).unwrap()).unwrap();
        config["eos_token_id"] = 40.into();
        std::fs::write(p.dir.join("config.json"), config.to_string()).unwrap();
        let e = open(&dir).unwrap_err();
        assert!(
            e.to_string()
                .ends_with("the end token 40 (from config.json) is outside the model's 16 rows"),
            "{e}"
        );
        let e = Pretrained::open(Path::new("no/such/model")).unwrap_err();
        assert_eq!(e.code(), "model-not-found");
    }
}
