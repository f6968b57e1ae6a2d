//! What an editor and a CI job ask of the compiler, as pure functions over sources.
//!
//! In: paths and [`nrl_base::Files`] (open buffers over a disk), findings as plain data. Out: accepted and
//! remaining findings, their formats for machines, edits. No protocol, no printing, no file access: the
//! command line carries the answers, tests ask without it.

pub mod checking;
mod complete;
pub mod diff;
pub mod document;
pub mod findings;
pub mod index;
pub mod sheet;
pub mod utf16;
pub mod words;
pub mod world;

pub use complete::{Completion, Sort, complete, has_gap};
