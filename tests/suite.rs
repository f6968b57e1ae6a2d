//! Integration tests, in one binary: each links the whole compiler and runtime.

mod algorithms;
mod bad_input;
mod cases;
mod checking;
mod editors;
mod laws;
mod lsp;
mod machine;
mod nemo;
mod planning;
mod readme;
mod reference;
mod starting;
mod support;
