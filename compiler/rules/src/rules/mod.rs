//! The rules, by subject. A rule is a row: its number in the catalogue, a code, and a function.

mod algorithm;
mod batch;
mod budget;
mod length;
mod loss;
mod mesh;
mod pipeline;
mod rollout_mesh;

use crate::rule::Rule;

/// All rules.
pub const TABLES: &[&[Rule]] = &[
    budget::RULES,
    mesh::RULES,
    pipeline::RULES,
    rollout_mesh::RULES,
    batch::RULES,
    length::RULES,
    algorithm::RULES,
    loss::RULES,
];
