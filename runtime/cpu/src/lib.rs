//! The CPU engine: matrix products, fused kernels, attention.

#![allow(unsafe_code)]

pub mod gemm;
mod threads;

pub use threads::Threads;
