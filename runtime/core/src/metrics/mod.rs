//! What a run measures, written where people and tools look.
//!
//! In: numbers and texts by name and step. Out: JSON lines for scripts, TensorBoard event files for curves, plots in
//! the terminal for the eye. Nothing here prints: plots are returned as text.

pub mod jsonl;
pub mod plot;
pub mod tensorboard;
