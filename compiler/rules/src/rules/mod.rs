//! The rules, by subject. A rule is a row: its number in the catalogue, a code, and a function.

mod algorithm;
mod asynchronous;
mod batch;
mod budget;
mod checkpoint;
mod generation;
mod gym;
mod length;
mod loss;
mod mesh;
mod pipeline;
mod rollout_mesh;
mod single_controller;

use crate::rule::Rule;

/// All rules.
pub const TABLES: &[&[Rule]] = &[
    budget::RULES,
    mesh::RULES,
    pipeline::RULES,
    rollout_mesh::RULES,
    batch::RULES,
    length::RULES,
    generation::RULES,
    gym::RULES,
    algorithm::RULES,
    loss::RULES,
    asynchronous::RULES,
    single_controller::RULES,
    checkpoint::RULES,
];
