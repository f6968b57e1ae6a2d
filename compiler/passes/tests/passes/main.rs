//! Laws of the passes, judged by the reference evaluator.

mod common;
mod fusing;
mod generation;
mod gradients;
mod llama;
mod rewrites;
mod sharding;
