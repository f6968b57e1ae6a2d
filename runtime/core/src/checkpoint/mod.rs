//! Training states on disk.
//!
//! In: the tensors of a run by name (weights and optimizer moments, whole, not cut by rank), its counters and
//! positions, the recipe's text. Out: a directory `step-000100` with state.safetensors, state.json and recipe.nrl,
//! written aside and renamed, so that half a checkpoint never exists. Values are stored as f32 bit for bit, so a
//! resumed run equals an uninterrupted one.

pub mod keep;
pub mod space;
pub mod state;
