//! The pipeline as one flat function.
