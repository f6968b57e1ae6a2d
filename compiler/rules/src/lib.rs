//! Rules over a typed recipe: one list for every language it is written in.

pub mod settings;

pub use settings::{Node, Origin, Set, SetBy, Settings, Value};
