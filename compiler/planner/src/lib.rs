//! Predictions that people can check, and layouts that are better.
//!
//! In: recipes, tables of measured runs. Out: what the planner says of each measured row, with its error; rates
//! fitted to rows. Everything is predicted from plans that the compiler makes.

pub mod edit;
pub mod input;
pub mod report;
pub mod rows;
