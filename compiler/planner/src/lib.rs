//! Predictions that people can check, and layouts that are better.
//!
//! In: recipes, tables of measured runs. Out: what the planner says of each measured row, with its error; rates
//! fitted to rows. Everything is predicted from plans that the compiler makes.

pub mod edit;
pub mod explain;
pub mod input;
pub mod least;
pub mod machine;
mod nemo;
pub mod report;
pub mod rows;
pub mod runs;
pub mod search;
pub mod session;
pub mod steps;
