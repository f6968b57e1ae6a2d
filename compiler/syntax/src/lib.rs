//! Text to AST and back.
//!
//! In: the text of one `.nrl` file. Out: a tree with spans and the syntax errors found, several in
//! one run. Parsing is linear in the text, never fails as a whole and never panics.

pub mod ast;
