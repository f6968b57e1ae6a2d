//! Seconds of a stage whose ranks are threads of one process.
//!
//! In: the passes that a rank makes, and how often the host does what beside them. Out: seconds. The thread that launches
//! a pass also computes it, and draws tokens and scores samples in between, so all of it adds up.

use serde::{Deserialize, Serialize};

use crate::machine::{Group, Machine};
use crate::rates::{Compute, Rates, Speed};
use crate::train::{Job, Took};
use crate::work::Collective;

/// Seconds of what a host does besides running plans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// A job handed to all ranks, until the last has answered.
    pub job: f64,
    /// A run of a plan: what it is bound to, and its outputs.
    pub run: f64,
    /// A drawn token, and each logit that it is drawn from.
    pub token: f64,
    pub logit: f64,
    /// A sample that is packed, sorted and turned into text.
    pub sample: f64,
    /// A sample that a reward written in the recipe looks at, and a row of data that a function makes.
    pub reward: f64,
    /// Bytes/s written to disk, until they are safe there.
    pub write: f64,
}

impl Default for Host {
    /// What a core of a few GHz takes, about.
    fn default() -> Host {
        Host {
            job: 50e-6,
            run: 20e-6,
            token: 1e-6,
            logit: 2e-9,
            sample: 2e-6,
            reward: 4e-6,
            write: 5e8,
        }
    }
}

/// A stage of a step on the busiest rank.
#[derive(Clone, Debug, Default)]
pub struct Chore {
    /// Passes of a model and updates, and how often each runs.
    pub passes: Vec<(Job, f64)>,
    pub jobs: f64,
    pub runs: f64,
    /// Tokens drawn, and logits of the rows that they are drawn from.
    pub tokens: f64,
    pub logits: f64,
    pub samples: f64,
    /// Samples times rewards that look at them.
    pub rewards: f64,
    /// Bytes copied by the rank: prompts that several samples continue.
    pub copied: f64,
    /// Weights put together for a generator: bytes of the whole, and who holds parts of it.
    pub gathered: Option<(f64, Group)>,
    /// Bytes written to disk.
    pub written: f64,
}

/// Seconds of a stage by what they are spent on, besides its passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    pub drawing: f64,
    pub weights: f64,
    pub rewards: f64,
    pub writing: f64,
    pub host: f64,
}

impl Beside {
    pub fn sum(&self) -> f64 {
        self.drawing + self.weights + self.rewards + self.writing + self.host
    }
}

/// What threads reach: a rank's part of the machine, the rates of the engine on it, the host.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    pub machine: &'a Machine,
    pub rates: &'a Rates,
    pub host: &'a Host,
}

impl Pace<'_> {
    pub fn speed(&self) -> Speed<'_> {
        Speed { machine: self.machine, rates: self.rates, compute: Compute::Bf16 }
    }
}

impl Chore {
    /// What the passes take, each with how often it runs.
    pub fn passes(&self, pace: &Pace<'_>) -> Vec<(Took, f64)> {
        self.passes.iter().map(|(job, times)| (job.run(&pace.speed()), *times)).collect()
    }

    /// What the host takes beside them.
    pub fn beside(&self, pace: &Pace<'_>) -> Beside {
        let h = pace.host;
        let gathered = self.gathered.map_or(0.0, |(bytes, group)| {
            let part = bytes / group.size as f64;
            pace.speed().collective(Collective::AllGather, part, group)
                + (bytes + part) / pace.speed().memory()
        });
        Beside {
            drawing: self.tokens * h.token + self.logits * h.logit,
            weights: gathered,
            rewards: self.rewards * h.reward,
            writing: self.written / h.write,
            host: self.jobs * h.job
                + self.runs * h.run
                + self.samples * h.sample
                + 2.0 * self.copied / pace.speed().memory(),
        }
    }

    /// All of it.
    pub fn seconds(&self, pace: &Pace<'_>) -> f64 {
        let passes: f64 = self.passes(pace).iter().map(|(took, n)| took.seconds * n).sum();
        passes + self.beside(pace).sum()
    }
}

#[cfg(test)]
mod tests {
    use nrl_ir::Mesh;

    use super::*;
    use crate::machine::Class;
    use crate::work::{Item, Kind, Region, Work};

    /// 2e9 FLOPs at 1e9 FLOP/s, twice, a launch of a tenth of a second each; 3 jobs of a second; 10 tokens.
    #[test]
    fn threads_do_one_thing_after_another() {
        let item = Item { kind: Kind::Product { m: 1e3, n: 1e3, k: 1e3, batch: 1.0 }, count: 1.0 };
        let region = Region { forward: vec![item], backward: vec![] };
        let work = Work { after: region, ..Work::default() };
        let job = Job::alone(work, Mesh::default());
        let machine =
            Machine { flops: 1e9, bandwidth: 1e12, link: 1e3, per_node: 2, ..Machine::default() };
        let rates = Rates {
            product: 1.0,
            half: 0.0,
            memory: 1.0,
            launch: 0.1,
            link: 1.0,
            link_latency: 0.0,
            fixed: 0.0,
            inline: true,
            ..Rates::default()
        };
        let host = Host { job: 1.0, token: 0.5, run: 0.0, logit: 0.0, ..Host::default() };
        let pace = Pace { machine: &machine, rates: &rates, host: &host };
        let chore = Chore { passes: vec![(job, 2.0)], jobs: 3.0, tokens: 10.0, ..Chore::default() };
        assert!((chore.seconds(&pace) - (2.0 * 2.1 + 3.0 + 5.0)).abs() < 1e-6);
        // Half of 2000 bytes comes from the other rank, at 1000 bytes/s.
        let group = Group { size: 2, inside: 2, class: Class::Node };
        let chore = Chore { gathered: Some((2e3, group)), ..Chore::default() };
        assert!((chore.seconds(&pace) - 1.0).abs() < 1e-6);
    }
}
