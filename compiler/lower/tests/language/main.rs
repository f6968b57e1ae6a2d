//! The language: files, recipes that extend others, declared types, tests. Each rule with what
//! keeps it and what breaks it.

mod extends;
mod support;
mod types;
