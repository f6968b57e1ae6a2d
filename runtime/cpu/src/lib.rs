//! The CPU engine: matrix products, fused kernels, attention, state-space models.

#![allow(unsafe_code)]

pub mod attention;
pub mod executor;
pub mod gemm;
pub mod jit;
pub mod logprob;
pub mod simd;
pub mod ssm;
mod threads;

pub use executor::{Counted, Counter, CpuEngine};
pub use threads::Threads;
