//! Rules over a typed recipe: one list for every language it is written in.
//!
//! In: a [`Recipe`], filled by a loader of one of the languages. Out: findings, each with the rule
//! that made it. A rule that needs what the recipe does not know says nothing.

mod arithmetic;
pub mod recipe;
mod rule;
mod rules;
pub mod settings;

pub use recipe::Recipe;
pub use rule::{Finding, Rule};
pub use rules::TABLES;
pub use settings::{Node, Origin, Set, SetBy, Settings, Value};

/// Everything the rules find, in the order of the tables.
pub fn check(recipe: &Recipe) -> Vec<Finding> {
    rule::Findings::of(recipe, TABLES)
}
