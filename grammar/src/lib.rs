//! The pest grammar of `.nrl` files, and its rules in the words of a user.
//!
//! In: masked text (see the head of `lexical.pest`). Out: pest pairs. Rule names never reach a
//! user: `describe` is exhaustive, so a new rule cannot be forgotten.

// What the derive writes names it where pest has no `std`.
extern crate alloc;

mod describe;

/// The parser; entry points are the rules ending in `_only`.
#[derive(pest_derive::Parser)]
#[grammar = "lexical.pest"]
#[grammar = "types.pest"]
#[grammar = "exprs.pest"]
#[grammar = "stmts.pest"]
#[grammar = "items.pest"]
pub struct Grammar;
