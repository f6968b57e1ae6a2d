//! Seconds of sampling: every decoding step reads the weights and the keys and values so far.
//!
//! In: plain numbers of a model on a group of devices and the samples wanted. Out: seconds.

use serde::Serialize;

use crate::rates::Speed;

/// Samples to be drawn by one replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sampling {
    pub samples: f64,
    pub prompt: f64,
    /// Mean number of new tokens, and the most.
    pub mean: f64,
    pub most: f64,
    /// Bytes of weights, and of keys and values per token, on one device.
    pub weights: f64,
    pub per_token: f64,
    /// FLOPs per token on one device.
    pub flops: f64,
    /// Tokens that the pool holds.
    pub pool: f64,
}

/// How sampling goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Generated {
    pub seconds: f64,
    /// Sequences in flight at most.
    pub batch: f64,
    pub pool: f64,
}

impl Sampling {
    /// Waves of as many sequences as the pool holds, each as long as its longest sample.
    pub fn run(&self, speed: &Speed<'_>) -> Generated {
        let each = self.prompt + self.mean;
        let batch = (self.pool / each).floor().clamp(1.0, self.samples.max(1.0));
        let waves = (self.samples / batch).max(1.0);
        let bytes = self.weights + batch * self.per_token * (self.prompt + self.mean / 2.0);
        let read = bytes / (speed.machine.bandwidth * speed.rates.memory);
        let product = batch * self.flops / (speed.machine.flops * speed.rates.product);
        let steps = self.mean * (waves - 1.0) + self.most;
        Generated { seconds: steps * read.max(product), batch, pool: self.pool }
    }
}
