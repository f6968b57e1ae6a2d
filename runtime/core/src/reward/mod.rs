//! Rewards of completions.

pub mod extern_;
