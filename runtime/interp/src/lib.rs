//! The reference evaluator in f64.
