//! Data sets: JSON lines read whole before anything runs, and the order in which their rows are taken.
//!
//! In: a file, the columns that the recipe names, a policy for bad lines. Out: rows with all their fields, and a
//! cursor whose position can be saved and restored.

pub mod cursor;
pub mod jsonl;
