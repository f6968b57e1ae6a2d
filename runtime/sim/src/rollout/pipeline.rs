//! Samplers and trainers that work at the same time, in the steady state.
//!
//! In: what generation costs, the seconds of a training step and of handing over weights, and how
//! many updates old a sample may be. Out: seconds per step. Weights of version `v` make samples of the steps `v` to `v + delay`
//! and no later ones; a step trains when its samples are all there. With a delay of 0 one side waits for the
//! other; with more, the tail of one batch runs beside the next batch, so neither the slowest sample nor
//! throughput alone decides.

use serde::Serialize;

use super::replica::Replica;
use super::{Load, Refused, Serving, Shard, Speed};
use crate::lengths::shuffled;

/// The steady state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Steady {
    /// From one update to the next.
    pub period: f64,
    /// From the first sample of a batch that may start to the last that ends.
    pub generation: f64,
    /// The trainer waits for samples, in every period.
    pub trainer_waits: f64,
    /// The sampler has nothing that it may do, in every period.
    pub sampler_waits: f64,
    pub preemptions: usize,
    pub mean_batch: f64,
    pub kv_peak: f64,
}

/// What happens beside generation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trainer {
    /// Everything of a step on the trainer's side but the hand-over of weights, in seconds.
    pub seconds: f64,
    /// Weights are handed over: both sides stand still.
    pub hand_over: f64,
    /// Updates between the weights that made a sample and those that it trains, at most.
    pub delay: usize,
    /// New weights wait until no sample runs; otherwise samples go on with them.
    pub drain: bool,
}

/// The steady state of one replica and the trainer.
///
/// The replica stands for all: it gets samples from everywhere in the distribution, and the longest of all,
/// since a step waits for that one wherever it runs.
pub fn steady(
    shard: &Shard,
    speed: &Speed,
    serving: &Serving,
    load: &Load<'_>,
    trainer: &Trainer,
) -> Result<Steady, Refused> {
    if load.replicas == 0 {
        return Err(Refused::NoReplicas);
    }
    let mine = share(load);
    let versions = 3 * trainer.delay + 8;
    let mut run = Run {
        replica: Replica::new(shard, speed, serving, load.prompt, load.group),
        // As many as are asked for at a time: the samples of `delay` steps.
        limit: mine.len() * trainer.delay.max(1),
        mine,
        released: vec![],
        done: vec![],
        submitted: (0, 0),
        idle: 0.0,
    };
    let mut updates = vec![(0.0, 0.0, 0.0)];
    let mut waits = 0.0;
    for version in 0..versions {
        let since = run.replica.now;
        run.release(version + trainer.delay);
        run.until_done(version)?;
        let start = since.max(run.done[version].0);
        waits += start - since;
        let end = start + trainer.seconds;
        run.until(end)?;
        if trainer.drain {
            run.drain();
        }
        run.replica.now = run.replica.now.max(end) + trainer.hand_over;
        updates.push((run.replica.now, waits, run.idle));
    }
    let first = trainer.delay + 4;
    let n = (versions - first) as f64;
    let (from, to) = (updates[first], updates[versions]);
    let span: Vec<f64> = (first..versions).map(|b| run.done[b].0 - run.released[b]).collect();
    Ok(Steady {
        period: (to.0 - from.0) / n,
        generation: span.iter().sum::<f64>() / n,
        trainer_waits: (to.1 - from.1) / n,
        sampler_waits: (to.2 - from.2) / n,
        preemptions: run.replica.preemptions,
        mean_batch: run.replica.sequence_steps / run.replica.steps.max(1.0),
        kv_peak: run.replica.peak,
    })
}

struct Run<'a> {
    replica: Replica<'a>,
    mine: Vec<u32>,
    limit: usize,
    /// When each batch was allowed to start; and when its last sample ended, after how many.
    released: Vec<f64>,
    done: Vec<(f64, usize)>,
    /// The next sample to submit: batch and place in it.
    submitted: (usize, usize),
    idle: f64,
}

impl Run<'_> {
    fn release(&mut self, last: usize) {
        while self.released.len() <= last {
            self.released.push(self.replica.now);
            self.done.push((self.replica.now, 0));
        }
    }

    fn until_done(&mut self, batch: usize) -> Result<(), Refused> {
        while self.done[batch].1 < self.mine.len() {
            self.event(f64::INFINITY)?;
        }
        Ok(())
    }

    fn until(&mut self, end: f64) -> Result<(), Refused> {
        while self.replica.now < end {
            if !self.event(end)? {
                self.idle += end - self.replica.now;
                self.replica.now = end;
            }
        }
        Ok(())
    }

    fn event(&mut self, until: f64) -> Result<bool, Refused> {
        while self.submitted.0 < self.released.len() && self.replica.inside() < self.limit {
            let (batch, i) = self.submitted;
            if let Some(length) = self.mine.get(i) {
                self.replica.submit(*length, batch)?;
                self.submitted.1 += 1;
            } else {
                self.submitted = (batch + 1, 0);
            }
        }
        let went = self.replica.advance(until);
        self.count();
        Ok(went)
    }

    fn drain(&mut self) {
        self.replica.run();
        self.count();
    }

    fn count(&mut self) {
        for (at, batch) in self.replica.ended.drain(..) {
            let (last, number) = self.done[batch];
            self.done[batch] = (last.max(at), number + 1);
        }
    }
}

/// The samples of a batch that one replica gets: from the middle of each part of the sorted lengths, and the
/// longest of all.
fn share(load: &Load<'_>) -> Vec<u32> {
    let mut sorted = load.lengths.to_vec();
    sorted.sort_unstable();
    let n = sorted.len();
    let count = n.div_ceil(load.replicas);
    let mut mine: Vec<u32> = (0..count).map(|i| sorted[(2 * i + 1) * n / (2 * count)]).collect();
    if let (Some(last), Some(longest)) = (mine.last_mut(), sorted.last()) {
        *last = *longest;
    }
    shuffled(count, 0).into_iter().map(|i| mine[i]).collect()
}
