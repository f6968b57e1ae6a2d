//! What a recipe will cost, for people and for programs.
//!
//! In: a compiled recipe and its forecast. Out: a [`Report`], plain data, and its views: one screen of text, JSON,
//! a page for browsers, and the comparison of two. All views show the same numbers.

mod build;
mod changes;
mod compare;
mod data;
mod detail;
mod hosts;
mod html;
mod lanes;
mod picture;
mod screen;
pub mod words;

pub use build::{Made, bf16 as is_bf16, parameters};
pub use changes::{Variant, changes, variants};
pub use compare::{Comparison, Row};
pub use data::*;
pub use html::page;
pub use screen::{screen, verdict};
