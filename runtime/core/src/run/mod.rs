//! The run loop.

pub mod compute;
pub mod error;
pub mod optimizer;
pub mod pack;
pub mod value;
