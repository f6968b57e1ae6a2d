//! The tree of a parsed file, as written: names are not resolved, units not checked.
//!
//! Every node has a span. Bodies of functions, recipes, phases and steps are all `Block`s of
//! `Stmt`s; which statement is legal where is for the resolver to say. Items are in `ast/item.rs`,
//! statements in `ast/stmt.rs`, expressions and types in `ast/expr.rs`.

mod expr;
mod item;
mod stmt;

pub use expr::*;
pub use item::*;
pub use stmt::*;

use nrl_base::Span;
use serde::{Deserialize, Serialize};

/// An identifier.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Name {
    pub text: String,
    pub span: Span,
}

/// A text literal, escapes already replaced.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Text {
    pub value: String,
    pub span: Span,
}

/// Names joined by dots: `std.models`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Path {
    pub names: Vec<Name>,
    pub span: Span,
}

impl Path {
    /// The path as it is written.
    pub fn text(&self) -> String {
        self.names.iter().map(|name| name.text.as_str()).collect::<Vec<_>>().join(".")
    }
}
