//! Hugging Face model directories, in and out.
//!
//! In: a directory with config.json, safetensors files, tokenizer.json and their companions. Out: typed
//! configuration, weights as f32, a tokenizer, a chat template and the stop set, each checked against the others
//! before anything runs. Export writes a directory that transformers loads.

pub mod chat;
pub mod config;
pub mod export;
pub mod generation;
pub mod pretrained;
pub mod rope;
pub mod stream;
pub mod tensor_file;
pub mod tokenizer;
pub mod weights;

/// Shows at most `limit` of the names, and how many were left out.
pub(crate) fn abbreviate(names: &[String], limit: usize) -> String {
    let shown = names[..names.len().min(limit)].join(", ");
    match names.len().saturating_sub(limit) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
