//! Writes a model directory that transformers loads.
//!
//! In: config.json as it was read, the weights by name, and where the tokenizer comes from. Out: a directory with
//! config.json (the original keys, the new dtype), safetensors (in shards with an index above 5 GB) and the tokenizer's
//! files. It is written aside and renamed, so a failed export leaves what was there. A tied head is not written.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::tensor_file::{Dtype, TensorSpec, write_tensors};
use super::tokenizer::Tokenizer;
use crate::files::{FileError, replace_dir, replace_file, write_file};

/// An export that failed.
#[derive(Debug, Error)]
pub enum ExportError {
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Two sources of one head.
    #[error(
        "config.json ties {head} to {embed}, but the trained values differ at row {row}; export with `tie_word_embeddings` false"
    )]
    Untied { head: String, embed: String, row: usize },
    /// The weights could not be had.
    #[error("cannot export {name}: {reason}")]
    Values { name: String, reason: String },
}

impl ExportError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            ExportError::File(e) => e.code(),
            ExportError::Untied { .. } => "tied-head-differs",
            ExportError::Values { .. } => "export-failed",
        }
    }
}

/// Everything about an export but the weights.
pub struct Export<'a> {
    /// The keys of config.json; `ModelConfig::raw` of the model that was loaded.
    pub config: &'a Map<String, Value>,
    /// Directory whose tokenizer, generation and template files are copied.
    pub source: Option<&'a Path>,
    /// Its files are written if it is built in.
    pub tokenizer: Option<&'a Tokenizer>,
    pub dtype: Dtype,
    /// Bytes after which a new file begins.
    pub shard_bytes: u64,
}

/// 5 GB, as transformers cuts.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Files that travel with the weights.
const COMPANIONS: [&str; 11] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "LICENSE",
    "NOTICE",
];

const HEAD: &str = "lm_head.weight";
const EMBED: &str = "model.embed_tokens.weight";

/// Writes the directory at `dir`; `values` is asked for each tensor in turn.
pub fn export<'v>(
    dir: &Path,
    export: &Export,
    specs: &[TensorSpec],
    mut values: impl FnMut(&str) -> io::Result<Cow<'v, [f32]>>,
) -> Result<(), ExportError> {
    let mut specs = specs.to_vec();
    if export.config.get("tie_word_embeddings") == Some(&Value::Bool(true)) {
        drop_tied_head(&mut specs, &mut values)?;
    }
    replace_dir(dir, |partial| {
        write_config(partial, export)?;
        write_companions(partial, export)?;
        write_weights(partial, export, &specs, &mut values)
    })
}

fn drop_tied_head<'v>(
    specs: &mut Vec<TensorSpec>,
    values: &mut impl FnMut(&str) -> io::Result<Cow<'v, [f32]>>,
) -> Result<(), ExportError> {
    let width = |specs: &[TensorSpec]| {
        specs.iter().find(|s| s.name == EMBED).and_then(|s| s.shape.last().copied())
    };
    if !specs.iter().any(|s| s.name == HEAD) {
        return Ok(());
    }
    let Some(width) = width(specs) else { return Ok(()) };
    let mut get = |name: &str| values(name).map_err(|e| failed(name, &e));
    let (head, embed) = (get(HEAD)?, get(EMBED)?);
    let differs = head.iter().zip(embed.iter()).position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(i) = differs.or((head.len() != embed.len()).then_some(0)) {
        return Err(ExportError::Untied {
            head: HEAD.into(),
            embed: EMBED.into(),
            row: i / width.max(1),
        });
    }
    specs.retain(|s| s.name != HEAD);
    Ok(())
}

fn failed(name: &str, error: &io::Error) -> ExportError {
    ExportError::Values { name: name.into(), reason: error.to_string() }
}

fn write_config(dir: &Path, export: &Export) -> Result<(), ExportError> {
    let mut config = export.config.clone();
    // Old transformers know the old key alone, new ones both.
    let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    config.insert(key.into(), export.dtype.torch_name().into());
    if let Some(t) = export.tokenizer.filter(|t| t.is_built_in()) {
        for (key, id) in [("eos_token_id", t.eos()), ("pad_token_id", t.pad())] {
            config.entry(key).or_insert(id.into());
        }
        config.entry("bos_token_id").or_insert(Value::Null);
    }
    Ok(write_json(&dir.join("config.json"), &Value::Object(config))?)
}

fn write_json(path: &Path, value: &Value) -> Result<(), FileError> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    write_file(path, text.as_bytes())
}

fn write_companions(dir: &Path, export: &Export) -> Result<(), ExportError> {
    if let Some(source) = export.source {
        for name in COMPANIONS {
            let from = source.join(name);
            if from.is_file() {
                let bytes = std::fs::read(&from).map_err(|e| FileError::new("read", &from, e))?;
                write_file(&dir.join(name), &bytes)?;
            }
        }
    }
    for (name, content) in export.tokenizer.map(Tokenizer::files).unwrap_or_default() {
        write_file(&dir.join(name), content.as_bytes())?;
    }
    Ok(())
}

fn write_weights<'v>(
    dir: &Path,
    export: &Export,
    specs: &[TensorSpec],
    values: &mut impl FnMut(&str) -> io::Result<Cow<'v, [f32]>>,
) -> Result<(), ExportError> {
    let shards = cut(specs, export.dtype.size(), export.shard_bytes);
    let mut map = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_string(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        write_shard(&dir.join(&name), shard, export.dtype, values)?;
        map.extend(shard.iter().map(|s| (s.name.clone(), Value::from(name.as_str()))));
    }
    if shards.len() > 1 {
        let total: u64 = specs.iter().map(|s| s.count() as u64 * export.dtype.size()).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        write_json(&dir.join("model.safetensors.index.json"), &index)?;
    }
    Ok(())
}

fn write_shard<'v>(
    path: &Path,
    specs: &[TensorSpec],
    dtype: Dtype,
    values: &mut impl FnMut(&str) -> io::Result<Cow<'v, [f32]>>,
) -> Result<(), ExportError> {
    // A value that cannot be had is told apart from a file that cannot be written.
    let mut absent = None;
    let written = replace_file(path, |file| {
        write_tensors(file, specs, dtype, |name| {
            values(name).inspect_err(|e| absent = Some(failed(name, e)))
        })
    });
    match absent {
        Some(error) => Err(error),
        None => Ok(written?),
    }
}

/// Tensors in their order, cut so that no file but one of a single tensor exceeds `limit` bytes.
fn cut(specs: &[TensorSpec], size: u64, limit: u64) -> Vec<Vec<TensorSpec>> {
    let mut shards: Vec<Vec<TensorSpec>> = vec![Vec::new()];
    let mut held = 0;
    for spec in specs {
        let bytes = spec.count() as u64 * size;
        if held > 0 && held + bytes > limit {
            shards.push(Vec::new());
            held = 0;
        }
        held += bytes;
        if let Some(last) = shards.last_mut() {
            last.push(spec.clone());
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::super::config::ModelConfig;
    use super::super::config::tests::llama;
    use super::super::weights::Checkpoint;
    use super::*;

    fn specs() -> Vec<TensorSpec> {
        vec![
            TensorSpec::new(EMBED, [2, 2]),
            TensorSpec::new("model.norm.weight", [2]),
            TensorSpec::new(HEAD, [2, 2]),
        ]
    }

    fn values(head: f32) -> impl FnMut(&str) -> io::Result<Cow<'static, [f32]>> {
        move |name| match name {
            EMBED => Ok(vec![1.0, 2.0, 3.0, 4.0].into()),
            HEAD => Ok(vec![1.0, 2.0, 3.0, head].into()),
            "model.norm.weight" => Ok(vec![0.5, 0.25].into()),
            other => Err(io::Error::other(format!("no {other}"))),
        }
    }

    fn config(tied: bool) -> Map<String, Value> {
        let mut value = llama();
        value["tie_word_embeddings"] = tied.into();
        value["my_own_key"] = "kept".into();
        value.as_object().unwrap().clone()
    }

    fn settings<'a>(config: &'a Map<String, Value>) -> Export<'a> {
        Export {
            config,
            source: None,
            tokenizer: None,
            dtype: Dtype::F32,
            shard_bytes: SHARD_BYTES,
        }
    }

    #[test]
    fn an_export_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("tokenizer.json"), "t").unwrap();
        std::fs::write(source.join("unrelated.bin"), "u").unwrap();
        let (out, config) = (dir.path().join("out"), config(false));
        let e = Export { source: Some(&source), dtype: Dtype::Bf16, ..settings(&config) };
        export(&out, &e, &specs(), values(9.0)).unwrap();
        let read = ModelConfig::open(&out).unwrap();
        assert_eq!(
            (read.dtype.as_deref(), &read.raw["my_own_key"]),
            (Some("bfloat16"), &json!("kept"))
        );
        let keys = |m: &Map<String, Value>| m.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&read.raw), keys(&config));
        let weights = Checkpoint::open(&out).unwrap();
        assert_eq!(weights.read_f32(HEAD).unwrap(), [1.0, 2.0, 3.0, 9.0]);
        assert_eq!(std::fs::read(out.join("tokenizer.json")).unwrap(), b"t");
        assert!(!out.join("unrelated.bin").exists());
    }

    #[test]
    fn a_tied_head_is_left_out_only_if_it_is_the_embedding() {
        let dir = tempfile::tempdir().unwrap();
        let (out, config) = (dir.path().join("out"), config(true));
        export(&out, &settings(&config), &specs(), values(4.0)).unwrap();
        let names: Vec<_> =
            Checkpoint::open(&out).unwrap().names().into_iter().map(|s| s.name).collect();
        assert_eq!(names, [EMBED, "model.norm.weight"]);
        let e = export(&out, &settings(&config), &specs(), values(5.0)).unwrap_err();
        assert!(matches!(e, ExportError::Untied { row: 1, .. }), "{e}");
    }

    #[test]
    fn large_weights_are_cut_into_shards() {
        let dir = tempfile::tempdir().unwrap();
        let (out, config) = (dir.path().join("out"), config(false));
        let e = Export { shard_bytes: 20, ..settings(&config) };
        export(&out, &e, &specs(), values(4.0)).unwrap();
        assert!(
            out.join("model-00003-of-00003.safetensors").exists()
                && !out.join("model.safetensors").exists()
        );
        let index: Value = serde_json::from_slice(
            &std::fs::read(out.join("model.safetensors.index.json")).unwrap(),
        )
        .unwrap();
        assert_eq!(index["metadata"]["total_size"], 40);
        assert_eq!(
            Checkpoint::open(&out).unwrap().read_f32("model.norm.weight").unwrap(),
            [0.5, 0.25]
        );
    }

    #[test]
    fn a_failed_export_leaves_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let (out, config) = (dir.path().join("out"), config(false));
        export(&out, &settings(&config), &specs(), values(4.0)).unwrap();
        let mut more = specs();
        more.push(TensorSpec::new("absent", [1]));
        let e = export(&out, &settings(&config), &more, values(9.0)).unwrap_err();
        assert_eq!(e.to_string(), "cannot export absent: no absent");
        assert_eq!(Checkpoint::open(&out).unwrap().read_f32(HEAD).unwrap()[3], 4.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
