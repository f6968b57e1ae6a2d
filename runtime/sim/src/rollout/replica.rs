//! One replica of a serving engine, from event to event.
//!
//! In: samples, in the order of their submission. Out: when each ended. A sample is admitted if the pool
//! has room for its tokens and a hundredth to spare (vLLM's watermark); if the pool fills up, the sample admitted last
//! goes back to the head of the queue and its tokens are computed again later.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Refused, Serving, Shard, Speed};

/// Keys and values come in blocks of 16 tokens (vLLM's default): half of one is lost per sequence.
const BLOCK_LOSS: f64 = 8.0;

struct Waiting {
    /// Steps that it needs in all, and those that it had.
    steps: u64,
    had: u64,
    /// The batch that it belongs to.
    batch: usize,
}

struct Running {
    steps: u64,
    /// The step of the replica in which it would have started, had it never stopped.
    start: u64,
    batch: usize,
}

pub(super) struct Replica<'a> {
    shard: &'a Shard,
    speed: &'a Speed,
    serving: &'a Serving,
    /// Tokens that each sample keeps, and computes, of its prompt.
    prompt: f64,
    prompt_share: f64,
    waiting: VecDeque<Waiting>,
    /// By the step in which they end.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    running: Vec<Option<Running>>,
    step: u64,
    /// Tokens that attention reads in a step, and that the pool holds.
    context: f64,
    used: f64,
    /// Nothing is admitted before the next event: the pool has just been full.
    full: bool,
    pub now: f64,
    pub steps: f64,
    pub sequence_steps: f64,
    pub prefill_seconds: f64,
    pub preemptions: usize,
    pub peak: f64,
    /// When samples ended, and of which batch.
    pub ended: Vec<(f64, usize)>,
}

impl<'a> Replica<'a> {
    pub fn new(
        shard: &'a Shard,
        speed: &'a Speed,
        serving: &'a Serving,
        prompt: f64,
        group: usize,
    ) -> Replica<'a> {
        let share = if serving.shared_prompts { group.max(1) as f64 } else { 1.0 };
        Replica {
            shard,
            speed,
            serving,
            prompt,
            prompt_share: prompt / share,
            waiting: VecDeque::new(),
            ends: BinaryHeap::new(),
            running: vec![],
            step: 0,
            context: 0.0,
            used: 0.0,
            full: false,
            now: 0.0,
            steps: 0.0,
            sequence_steps: 0.0,
            prefill_seconds: 0.0,
            preemptions: 0,
            peak: 0.0,
            ended: vec![],
        }
    }

    /// Queues a sample of `length` tokens.
    pub fn submit(&mut self, length: u32, batch: usize) -> Result<(), Refused> {
        let tokens = self.prompt + f64::from(length) + self.loss();
        if tokens > self.serving.pool {
            return Err(Refused::TooLong { tokens, pool: self.serving.pool });
        }
        let steps = (f64::from(length) / self.serving.pace).ceil().max(1.0) as u64;
        self.waiting.push_back(Waiting { steps, had: 0, batch });
        Ok(())
    }

    /// Tokens of the pool that a sample takes beside its own: of its last block, and for its state.
    fn loss(&self) -> f64 {
        BLOCK_LOSS + self.shard.state_bytes / self.shard.kv_bytes.max(1.0)
    }

    /// Samples that run or wait.
    pub fn inside(&self) -> usize {
        self.ends.len() + self.waiting.len()
    }

    /// Runs until nothing is left.
    pub fn run(&mut self) {
        while self.advance(f64::INFINITY) {}
    }

    /// Goes on to the next event, or to `until`, if that is sooner. False if there was nothing to do.
    pub fn advance(&mut self, until: f64) -> bool {
        self.admit();
        let Some(Reverse((first, _))) = self.ends.peek().copied() else {
            return false;
        };
        let batch = self.ends.len() as f64;
        let base = self.shard.step(self.speed, self.serving, batch);
        let grown = batch * self.serving.pace;
        let wanted = first - self.step;
        // The only sample left fits: `submit` has seen to that.
        let room = match self.ends.len() {
            1 => wanted,
            _ => ((self.serving.pool - self.used) / grown).floor().max(0.0) as u64,
        };
        let mut steps = wanted.min(room);
        if until.is_finite() {
            steps = steps.min(self.steps_until(until - self.now, base, grown));
        }
        self.now += self.seconds(steps as f64, base, grown);
        self.step += steps;
        self.steps += steps as f64;
        self.sequence_steps += steps as f64 * batch;
        self.context += grown * steps as f64;
        self.used += grown * steps as f64;
        self.peak = self.peak.max(self.used);
        if steps == wanted {
            self.finish();
        } else if steps == room {
            self.push_out();
        }
        true
    }

    /// Seconds of `steps` steps from here: each reads what the one before read and `grown` tokens more.
    fn seconds(&self, steps: f64, base: f64, grown: f64) -> f64 {
        let read = steps * self.context + grown * steps * (steps - 1.0) / 2.0;
        steps * base + read * self.shard.kv_bytes / self.speed.kv
    }

    /// Whole steps that fit into `seconds`; the one that begins before the end counts.
    fn steps_until(&self, seconds: f64, base: f64, grown: f64) -> u64 {
        let per = self.shard.kv_bytes / self.speed.kv;
        let (a, b) = (per * grown / 2.0, base + per * (self.context - grown / 2.0));
        let steps = if a * seconds <= 1e-12 * b * b {
            seconds / b
        } else {
            ((b * b + 4.0 * a * seconds).sqrt() - b) / (2.0 * a)
        };
        steps.max(0.0).ceil() as u64
    }

    fn admit(&mut self) {
        let mut tokens = 0.0;
        let batch = self.ends.len() as f64;
        while let Some(next) = self.waiting.front() {
            let had = next.had as f64 * self.serving.pace;
            let kept = self.prompt_share + had + self.loss();
            let spare = self.ends.len() as f64 * self.serving.pace + 0.01 * self.serving.pool;
            let room = self.used + kept + spare <= self.serving.pool && !self.full;
            if self.ends.len() >= self.serving.sequences.max(1) || !(room || self.ends.is_empty()) {
                break;
            }
            let Some(w) = self.waiting.pop_front() else { break };
            tokens += if had > 0.0 { self.prompt + had } else { self.prompt_share };
            self.context += self.prompt + had;
            self.used += kept;
            self.ends.push(Reverse((self.step + w.steps - w.had, self.running.len())));
            let start = self.step.wrapping_sub(w.had);
            self.running.push(Some(Running { steps: w.steps, start, batch: w.batch }));
        }
        let seconds = self.shard.prefill(self.speed, self.serving, tokens, batch);
        self.now += seconds;
        self.prefill_seconds += seconds;
    }

    fn finish(&mut self) {
        while let Some(Reverse((end, id))) = self.ends.peek().copied() {
            if end > self.step {
                break;
            }
            self.ends.pop();
            if let Some(r) = self.running[id].take() {
                self.release(r.steps);
                self.ended.push((self.now, r.batch));
            }
        }
        if self.ends.is_empty() {
            (self.context, self.used) = (0.0, 0.0);
            self.running.clear();
        }
        self.full = false;
    }

    fn release(&mut self, steps: u64) {
        let tokens = steps as f64 * self.serving.pace;
        self.context -= self.prompt + tokens;
        self.used -= self.prompt_share + tokens + self.loss();
    }

    fn push_out(&mut self) {
        while self.running.last().is_some_and(Option::is_none) {
            self.running.pop();
        }
        self.full = true;
        let Some(Some(r)) = self.running.pop() else { return };
        let id = self.running.len();
        self.ends.retain(|Reverse((_, i))| *i != id);
        let had = self.step.wrapping_sub(r.start);
        self.release(had);
        self.preemptions += 1;
        self.waiting.push_front(Waiting { steps: r.steps, had, batch: r.batch });
    }
}
