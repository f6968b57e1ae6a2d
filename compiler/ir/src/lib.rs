//! The language between compiler and runtime.
