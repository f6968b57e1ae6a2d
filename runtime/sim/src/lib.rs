//! What a plan costs on a machine that is not here.
//!
//! In: a compiled program, its plans and the devices that its meshes stand for. Out: bytes per rank
//! of each stage, by term, at the bounds that the recipe states; seconds of its phases. The numbers come from walking the
//! plans that an engine would run, and generation from events over a law of lengths; nothing is measured and nothing runs.

mod adapters;
pub mod calibration;
pub mod effects;
pub mod forecast;
pub mod generate;
pub mod lengths;
pub mod machine;
mod memory;
pub mod nearby;
pub mod pipeline;
pub mod rates;
mod reader;
pub mod refit;
pub mod rl_stack;
pub mod rollout;
pub mod streams;
pub mod style;
pub mod tables;
pub mod threads;
pub mod train;
pub mod work;

pub use memory::peak::{Load, Offload, Peak};
pub use memory::stack::Stack;
pub use memory::{
    Device, Habits, Memory, Precision, Setup, Term, When, generation, host, kept_share, memory,
    per_token, phases, profile, stack,
};
