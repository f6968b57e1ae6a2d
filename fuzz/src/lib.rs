//! Entry points and mutations of fuzzing, for libFuzzer's targets; `compiler/ide/tests/fuzz.rs` takes them as well.

pub mod entry;
pub mod mutate;
