//! Models, data, rollouts, rewards, checkpoints and the run loop.

pub mod checkpoint;
pub mod comm;
pub mod data;
pub mod engine;
pub mod eval;
pub mod files;
pub mod hf;
pub mod metrics;
pub mod rank;
pub mod reward;
pub mod rng;
pub mod rollout;
pub mod run;
pub mod sampling;
pub mod text;
pub mod weights;
