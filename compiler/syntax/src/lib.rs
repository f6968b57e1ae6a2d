//! Text to AST and back.
//!
//! In: the text of one `.nrl` file. Out: a tree with spans and the syntax errors found, several in
//! one run. Parsing is linear in the text, never fails as a whole and never panics. The way of a
//! text: `lex` (tokens), `mask` (lines and brackets), pest (one item at a time), `build` (tree).

pub mod ast;
mod build;
mod errors;
mod lex;
mod mask;
mod parse;
pub mod print;

pub use parse::{LARGEST, parse, parse_bytes, parse_expr, parse_override, parse_type, utf8};
