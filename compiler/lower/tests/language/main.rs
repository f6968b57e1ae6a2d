//! The language: files, recipes that extend others, declared types, tests. Each rule with what
//! keeps it and what breaks it.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

mod extends;
mod limits;
mod mistakes;
mod support;
mod trials;
mod types;
