//! Laws of the passes, judged by the reference evaluator.

mod common;
mod gradients;
mod llama;
mod rewrites;
mod sharding;
