//! The CPU engine: matrix products, fused kernels, attention.
