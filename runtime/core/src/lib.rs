//! Models, data, rollouts, rewards, checkpoints and the run loop.

pub mod files;
pub mod rng;
pub mod sampling;
pub mod comm;
pub mod engine;
pub mod hf;
pub mod data;
pub mod reward;
