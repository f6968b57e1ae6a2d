//! How a phase of sampling goes, in the numbers that reports show.

use serde::Serialize;

/// How sampling goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Generated {
    pub seconds: f64,
    /// Sequences in flight on a replica: the mean over its steps.
    pub batch: f64,
    /// Tokens that the pool of a replica holds.
    pub pool: f64,
}
