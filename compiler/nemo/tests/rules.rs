//! The rules on recipes that run: no false alarms. And on recipes with one mistake: each is found.

#![expect(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests read and print")]

#[path = "rules/anything.rs"]
mod anything;
#[path = "rules/base.rs"]
mod base;
#[path = "rules/cases.rs"]
mod cases;
#[path = "rules/mutants.rs"]
mod mutants;
#[path = "rules/pages.rs"]
mod pages;
#[path = "rules/quiet.rs"]
mod quiet;
#[path = "rules/resolved.rs"]
mod resolved;
#[path = "rules/shipped.rs"]
mod shipped;
#[path = "rules/table.rs"]
mod table;
#[path = "rules/tricks.rs"]
mod tricks;
