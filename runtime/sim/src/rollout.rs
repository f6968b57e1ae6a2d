//! Generation as continuous batching over a length distribution.
//!
//! In: what a replica reads, computes and sends for a token, what the device and the serving engine do in
//! a second, and the samples. Out: seconds until half, most and all samples are done, and where they went.
//! Time moves from one event to the next (a sample is admitted, ends, or is pushed out because the pool of
//! keys and values is full); the decode steps between have a closed form, since the batch stays and the
//! context grows by one token per sequence and step. Nothing depends on the number of steps.

mod engine;
mod pipeline;
mod replica;

use serde::Serialize;

pub use engine::{Dims, Engine};
pub use pipeline::{Steady, Trainer, steady};
use replica::Replica;

/// What one rank of a replica reads, computes and sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shard {
    /// Weights that every step reads, in bytes.
    pub weight_bytes: f64,
    /// Weights of all experts of this rank, in bytes.
    pub expert_bytes: f64,
    /// All weights that it holds, in bytes.
    pub held_bytes: f64,
    /// Experts of a layer, and how many a token visits; none if every weight is read by every token.
    pub experts: Option<(f64, f64)>,
    /// FLOPs of a token in weights that every token uses.
    pub flops: f64,
    /// FLOPs of a token in experts.
    pub expert_flops: f64,
    /// Keys and values of a token, in bytes.
    pub kv_bytes: f64,
    /// State of a sequence in state-space mixers, in bytes: read and written for every token.
    pub state_bytes: f64,
    pub layers: f64,
    /// Layers with experts.
    pub expert_layers: f64,
    /// All-reduces of a step.
    pub reductions: f64,
    /// Bytes of one token in one of them.
    pub reduction_bytes: f64,
    /// Ranks that they go over.
    pub tp: usize,
}

/// What device, links and serving engine do. Efficiencies are part of the rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Weights per second, in bytes.
    pub weights: f64,
    /// Weights of experts per second, in bytes: gathered per expert, so slower.
    pub experts: f64,
    /// Keys and values per second, in bytes.
    pub kv: f64,
    /// FLOPs per second.
    pub flops: f64,
    pub expert_flops: f64,
    /// Of an all-reduce: seconds before the first byte, and bytes per second and rank.
    pub reduction: (f64, f64),
    /// Seconds of a layer that no size makes shorter: its kernels, launched from a graph or one by one.
    pub layer: f64,
    /// The same for the routing of a layer with experts.
    pub expert_layer: f64,
    /// Seconds that the engine takes for a step, whatever the batch.
    pub step: f64,
    /// And for every sequence in it: scheduling, sampling, text.
    pub sequence: f64,
}

/// How a replica serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Serving {
    /// Tokens whose keys and values a replica can keep.
    pub pool: f64,
    /// Sequences at once.
    pub sequences: usize,
    /// Tokens of one prefill step.
    pub chunk: f64,
    /// Tokens that a step adds to a sequence: more than 1 with speculation.
    pub pace: f64,
    /// Tokens that a step computes per sequence: 1, and one more for each that is guessed.
    pub computed: f64,
    /// Samples of a prompt prefill it once, and keep it once.
    pub shared_prompts: bool,
}

/// What is to be generated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load<'a> {
    /// Tokens of every sample, those of a prompt next to each other.
    pub lengths: &'a [u32],
    pub group: usize,
    /// Tokens of a prompt.
    pub prompt: f64,
    pub replicas: usize,
    /// A replica gets whole prompts, as one call with all of them does; otherwise samples are dealt one by one.
    pub whole_prompts: bool,
}

/// A sample that no replica can hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Refused {
    /// Its tokens with the prompt, and those of the pool.
    TooLong { tokens: f64, pool: f64 },
    /// Nothing to generate with.
    NoReplicas,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::TooLong { tokens, pool } => {
                write!(
                    f,
                    "a sample of {tokens:.0} tokens, a replica keeps keys and values of {pool:.0}"
                )
            }
            Refused::NoReplicas => write!(f, "no replica to generate with"),
        }
    }
}

/// How it went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Generated {
    /// Until the last sample is done.
    pub seconds: f64,
    /// Until 50, 90 and 99 % of the samples are done.
    pub done: [f64; 3],
    /// Generated, all replicas together.
    pub tokens_per_second: f64,
    /// Shares of the time of all replicas: prefill, decoding, waiting for the slowest replica.
    pub shares: [f64; 3],
    pub preemptions: usize,
    /// Of the slowest replica, over its decode steps.
    pub mean_batch: f64,
    /// Decode steps of the slowest replica.
    pub steps: f64,
    /// Most tokens that a pool held.
    pub kv_peak: f64,
}

impl Shard {
    /// Seconds of a decode step of `batch` sequences without reading keys and values.
    pub fn step(&self, speed: &Speed, serving: &Serving, batch: f64) -> f64 {
        let tokens = batch * serving.computed;
        let mut t = self.pass(speed, tokens);
        t += self.layers * speed.layer + self.expert_layers * speed.expert_layer;
        t += 2.0 * batch * self.state_bytes / speed.kv;
        t + speed.step + speed.sequence * batch
    }

    /// Seconds of one pass over the weights with `tokens` tokens: reading or computing, whichever is longer
    /// (roofline), and the all-reduces.
    fn pass(&self, speed: &Speed, tokens: f64) -> f64 {
        let mut t = f64::max(self.weight_bytes / speed.weights, self.flops * tokens / speed.flops);
        if let Some((number, top)) = self.experts {
            // Uniform routing: the share of experts that at least one of the tokens visits.
            let touched = 1.0 - (1.0 - top / number).max(0.0).powf(tokens);
            t += f64::max(
                self.expert_bytes * touched / speed.experts,
                self.expert_flops * tokens / speed.expert_flops,
            );
        }
        if self.tp > 1 {
            let part = 2.0 * (self.tp as f64 - 1.0) / self.tp as f64;
            let bytes = part * tokens * self.reduction_bytes;
            t += self.reductions * (speed.reduction.0 + bytes / speed.reduction.1);
        }
        t
    }

    /// Seconds that `tokens` tokens of prompts add, in chunks, to decode steps of `batch` sequences: chunks ride
    /// along with decode steps, which pay for launches, the engine and reading the weights.
    pub fn prefill(&self, speed: &Speed, serving: &Serving, tokens: f64, batch: f64) -> f64 {
        let chunks = (tokens / serving.chunk).ceil();
        if chunks < 1.0 {
            return 0.0;
        }
        let decoded = batch * serving.computed;
        let with = self.pass(speed, decoded + tokens / chunks);
        chunks * (with - self.pass(speed, decoded))
    }
}

/// Generates all samples of `load`, every replica on its own, from idle to idle.
pub fn generate(
    shard: &Shard,
    speed: &Speed,
    serving: &Serving,
    load: &Load<'_>,
) -> Result<Generated, Refused> {
    if load.replicas == 0 {
        return Err(Refused::NoReplicas);
    }
    let mut out = Generated::default();
    let mut ends = Vec::with_capacity(load.lengths.len());
    let (mut busy, mut prefill, mut tokens) = (0.0, 0.0, 0.0);
    for lengths in deal(load) {
        let mut replica = Replica::new(shard, speed, serving, load.prompt, load.group);
        for l in &lengths {
            replica.submit(*l, 0)?;
        }
        replica.run();
        tokens += lengths.iter().map(|l| f64::from(*l)).sum::<f64>();
        busy += replica.now;
        prefill += replica.prefill_seconds;
        out.preemptions += replica.preemptions;
        out.kv_peak = out.kv_peak.max(replica.peak);
        if replica.now >= out.seconds {
            out.seconds = replica.now;
            out.steps = replica.steps;
            out.mean_batch = replica.sequence_steps / replica.steps.max(1.0);
        }
        ends.extend(replica.ended.iter().map(|(at, _)| *at));
    }
    if out.seconds == 0.0 {
        return Ok(out);
    }
    ends.sort_by(f64::total_cmp);
    let at = |share: f64| ends[((ends.len() as f64 * share).ceil() as usize).max(1) - 1];
    out.done = [at(0.5), at(0.9), at(0.99)];
    out.tokens_per_second = tokens / out.seconds;
    let whole = out.seconds * load.replicas as f64;
    out.shares = [prefill / whole, (busy - prefill) / whole, 1.0 - busy / whole];
    Ok(out)
}

/// The samples of each replica that has any.
fn deal(load: &Load<'_>) -> Vec<Vec<u32>> {
    let n = load.lengths.len();
    let replicas = load.replicas.min(n);
    if !load.whole_prompts {
        let of = |r: usize| load.lengths.iter().skip(r).step_by(replicas).copied().collect();
        return (0..replicas).map(of).collect();
    }
    // As equal parts as possible, in order; a prompt is cut only where there are fewer prompts than replicas.
    (0..replicas).map(|r| load.lengths[n * r / replicas..n * (r + 1) / replicas].to_vec()).collect()
}

#[cfg(test)]
mod tests;
