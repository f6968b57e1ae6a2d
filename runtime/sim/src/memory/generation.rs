//! The pool of keys and values of a generation engine, and the share of a device it may ask for.
//!
//! In: what a token takes and how many bytes there are. Out: blocks, tokens, and whether the longest
//! sequence fits. An engine asks for a share of the whole device at start, whatever others hold of it
//! already (paged attention: Kwon et al. 2023).

use serde::Serialize;

/// What an engine needs beside weights and keys and values: a forward pass, captured graphs. Assumed.
pub const SCRATCH: f64 = 1.5 * super::GIB;

/// A pool of equal blocks of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pool {
    pub bytes: f64,
    /// Bytes of keys and values of one token, in all layers of a rank.
    pub per_token: f64,
    /// Tokens per block.
    pub block: usize,
}

impl Pool {
    /// Whole blocks.
    pub fn blocks(&self) -> usize {
        (self.bytes / (self.per_token * self.block as f64)).max(0.0) as usize
    }

    /// Tokens that fit.
    pub fn tokens(&self) -> usize {
        self.blocks() * self.block
    }

    /// Bytes that a sequence of `length` takes.
    pub fn of(&self, length: usize) -> f64 {
        length as f64 * self.per_token
    }

    /// Sequences of `length` that fit at once.
    pub fn sequences(&self, length: usize) -> usize {
        self.blocks() / length.div_ceil(self.block.max(1)).max(1)
    }
}

/// An engine that shares a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Engine {
    /// Memory of the device, in bytes.
    pub device: f64,
    /// What others hold when the engine starts.
    pub resident: f64,
    /// The share of the device that it asks for.
    pub share: f64,
    /// Its weights, and what a forward pass needs.
    pub weights: f64,
    pub scratch: f64,
}

impl Engine {
    /// Bytes that it asks for.
    pub fn wanted(&self) -> f64 {
        self.share * self.device
    }

    /// Bytes that are free when it starts.
    pub fn free(&self) -> f64 {
        self.device - self.resident
    }

    /// Whether it starts.
    pub fn starts(&self) -> bool {
        self.wanted() <= self.free()
    }

    /// The largest share with which it starts.
    pub fn most(&self) -> f64 {
        (self.free() / self.device).max(0.0)
    }

    /// What is left for keys and values.
    pub fn pool(&self) -> f64 {
        (self.wanted() - self.weights - self.scratch).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::GIB;

    /// 28 layers of 4 heads: 57,344 bytes a token; 0.4 GiB are 468 blocks of 16, 7,488 tokens, fewer than
    /// one sequence of 8,192, which needs 0.4375 GiB.
    #[test]
    fn a_pool_smaller_than_a_sequence() {
        let per_token = 2.0 * 28.0 * 4.0 * 128.0 * 2.0;
        assert_eq!(per_token, 57_344.0);
        let pool = Pool { bytes: 0.4 * GIB, per_token, block: 16 };
        assert_eq!((pool.blocks(), pool.tokens()), (468, 7488));
        assert_eq!(pool.sequences(8192), 0);
        assert_eq!(pool.of(8192) / GIB, 0.4375);
    }

    /// A share is of the whole device: 0.9 of 79.15 GiB are 71.24, and 59.32 are free (kvcached issue 29).
    #[test]
    fn a_share_of_what_is_not_free() {
        let engine = |device: f64, resident: f64| Engine {
            device: device * GIB,
            resident: resident * GIB,
            share: 0.9,
            weights: 0.0,
            scratch: 0.0,
        };
        let e = engine(79.15, 19.83);
        let two = |x: f64| (x / GIB * 100.0).round() / 100.0;
        assert_eq!((two(e.wanted()), two(e.free())), (71.24, 59.32));
        assert!(!e.starts());
        assert_eq!((e.most() * 1000.0).floor() / 1000.0, 0.749);
        let small = engine(22.05, 22.05 - 19.77);
        assert_eq!((two(small.wanted()), two(small.free())), (19.85, 19.77));
        assert!(!small.starts());
    }
}
