//! Laws of the passes, judged by the reference evaluator.

mod between;
mod common;
mod fusing;
mod generation;
mod gradients;
mod llama;
mod random;
mod rewrites;
mod sharding;
mod table;
