//! The cpu engine, judged by the reference evaluator on the graphs of a small llama: trained and generating, on one
//! rank and on meshes, fused and not.

mod counted;
mod data;
mod generation;
#[path = "../../../../compiler/passes/tests/passes/llama.rs"]
mod llama;
mod ops;
mod training;
