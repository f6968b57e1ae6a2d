//! The rules, by subject. A rule is a row: its number in the catalogue, a code, and a function.

mod algorithm;
mod asynchronous;
mod backend;
mod batch;
mod budget;
mod checkpoint;
mod data;
mod generation;
mod gym;
mod history;
mod length;
mod lora;
mod loss;
mod memory;
mod mesh;
mod moe;
mod optimizer;
mod pipeline;
mod precision;
mod refit;
mod rollout_mesh;
mod single_controller;
mod time;
mod vision;

use crate::rule::Rule;

/// All rules.
pub const TABLES: &[&[Rule]] = &[
    budget::RULES,
    mesh::RULES,
    pipeline::RULES,
    rollout_mesh::RULES,
    batch::RULES,
    length::RULES,
    backend::RULES,
    memory::RULES,
    optimizer::RULES,
    generation::RULES,
    gym::RULES,
    refit::RULES,
    algorithm::RULES,
    loss::RULES,
    asynchronous::RULES,
    single_controller::RULES,
    checkpoint::RULES,
    time::RULES,
    history::RULES,
    data::RULES,
    precision::RULES,
    lora::RULES,
    moe::RULES,
    vision::RULES,
];
