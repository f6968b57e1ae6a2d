//! Models, data, rollouts, rewards, checkpoints and the run loop.

pub mod files;
pub mod rng;
pub mod sampling;
pub mod comm;
pub mod engine;
pub mod hf;
pub mod data;
pub mod reward;
pub mod rank;
pub mod rollout;
pub mod run;
pub mod text;
pub mod weights;
pub mod checkpoint;
pub mod metrics;
pub mod eval;
