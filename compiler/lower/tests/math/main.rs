//! The mathematics of the standard library against values from outside: losses, advantages,
//! optimizers, rewards.
//!
//! Each test elaborates `.nrl` text, runs its graph in the f64 interpreter, and compares with torch
//! or with numbers worked out by hand. Where the reference values come from:
//! `tests/reference/README.md`.

#![expect(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests read files")]

mod advantages;
mod along;
mod golden;
mod losses;
mod optimizer;
mod rewards;
mod support;
mod tried;
