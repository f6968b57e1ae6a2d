//! A whole step of reinforcement learning: its phases, one after the other or beside each other.
//!
//! In: what generation costs, and seconds of everything that the trainer does. Out: phases in order, how much of each is seen
//! in the step time, and the step time. In turn, on one set of devices, everything is seen. On
//! two sets the trainer's phases are, and generation as far as the trainer waits for it.

use serde::Serialize;

use crate::rollout::{
    Generated, Load, Refused, Serving, Shard, Speed, Steady, Trainer, generate, steady,
};

/// How samplers and trainers share time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Rhythm {
    /// One after the other.
    InTurn,
    /// At the same time: samples may be `delay` updates old; `drain` waits for running samples at an update.
    Beside { delay: usize, drain: bool },
}

/// Seconds of what the trainer does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrainerSeconds {
    /// Log-probabilities under the policy before the update; 0 if the recipe needs none.
    pub logprob: f64,
    /// Log-probabilities under the reference.
    pub reference: f64,
    pub update: f64,
    pub refit: f64,
    pub reward: f64,
    /// Data, advantages, metrics, processes that wait for each other.
    pub other: f64,
}

/// What a sampler costs and gets.
#[derive(Clone, Copy, Debug)]
pub struct Sampler<'a> {
    pub shard: &'a Shard,
    pub speed: &'a Speed,
    pub serving: &'a Serving,
    pub load: &'a Load<'a>,
    /// Seconds of a call that generate nothing: waking up, collecting texts.
    pub call: f64,
}

/// A phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    /// The part that makes the step longer.
    pub exposed: f64,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RlStep {
    pub phases: Vec<Phase>,
    pub total: f64,
    /// Every replica from idle to idle.
    pub generated: Generated,
    /// If samplers and trainers work at the same time.
    pub steady: Option<Steady>,
}

impl RlStep {
    /// Seconds of the phase called `name`; 0 if there is none.
    pub fn seconds(&self, name: &str) -> f64 {
        self.phases.iter().filter(|p| p.name == name).map(|p| p.seconds).sum()
    }
}

/// Predicts a step.
pub fn rl_step(
    sampler: &Sampler<'_>,
    trainer: &TrainerSeconds,
    rhythm: Rhythm,
) -> Result<RlStep, Refused> {
    let generated = generate(sampler.shard, sampler.speed, sampler.serving, sampler.load)?;
    let t = trainer;
    let mut phases =
        vec![Phase { name: "sample", seconds: generated.seconds + sampler.call, exposed: 0.0 }];
    let seen = [
        ("logprob", t.logprob),
        ("reference", t.reference),
        ("update", t.update),
        ("refit", t.refit),
        ("reward", t.reward),
        ("other", t.other),
    ];
    phases.extend(seen.map(|(name, seconds)| Phase { name, seconds, exposed: seconds }));
    let (total, steady) = match rhythm {
        Rhythm::InTurn => {
            phases[0].exposed = phases[0].seconds;
            (phases.iter().map(|p| p.seconds).sum(), None)
        }
        Rhythm::Beside { delay, drain } => {
            // Rewards run where samples end, beside the trainer.
            let seconds = t.logprob + t.reference + t.update + t.other;
            let beside = Trainer { seconds, hand_over: t.refit, delay, drain };
            let s = steady(sampler.shard, sampler.speed, sampler.serving, sampler.load, &beside)?;
            let late = if delay == 0 { sampler.call + t.reward } else { 0.0 };
            phases[0].seconds = s.generation + sampler.call;
            phases[0].exposed = s.trainer_waits + if delay == 0 { sampler.call } else { 0.0 };
            for p in &mut phases {
                if p.name == "reward" && delay > 0 {
                    p.exposed = 0.0;
                }
            }
            (s.period + late, Some(s))
        }
    };
    Ok(RlStep { phases, total, generated, steady })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rhythm: Rhythm) -> RlStep {
        let shard = Shard { weight_bytes: 10.0, layers: 1.0, tp: 1, ..Shard::default() };
        let speed = Speed {
            weights: 1e3,
            experts: 1e3,
            kv: 1e3,
            flops: 1e3,
            expert_flops: 1e3,
            reduction: (0.0, 1e3),
            layer: 0.0,
            expert_layer: 0.0,
            step: 0.0,
            sequence: 0.0,
        };
        let serving = Serving {
            pool: 1e6,
            sequences: 64,
            chunk: 8192.0,
            pace: 1.0,
            computed: 1.0,
            shared_prompts: true,
        };
        let load =
            Load { lengths: &[400; 4], group: 1, prompt: 10.0, replicas: 1, whole_prompts: true };
        let sampler =
            Sampler { shard: &shard, speed: &speed, serving: &serving, load: &load, call: 0.5 };
        let trainer = TrainerSeconds {
            logprob: 1.0,
            reference: 1.0,
            update: 3.0,
            refit: 0.25,
            reward: 0.5,
            other: 1.0,
        };
        rl_step(&sampler, &trainer, rhythm).unwrap()
    }

    /// 400 steps of 10 ms and half a second around them, then 6.75 s of everything else.
    #[test]
    fn in_turn_everything_adds_up() {
        let s = step(Rhythm::InTurn);
        assert!((s.total - 11.25).abs() < 1e-9, "{}", s.total);
        assert!(s.phases.iter().all(|p| p.exposed == p.seconds));
    }

    /// The trainer needs 6 s and a quarter for weights, samples 4 s: nothing of them is seen.
    #[test]
    fn beside_the_trainer_samples_are_hidden() {
        let s = step(Rhythm::Beside { delay: 1, drain: false });
        assert!((s.total - 6.25).abs() < 1e-9, "{}", s.total);
        assert_eq!(s.phases[0].exposed, 0.0);
        let exposed: f64 = s.phases.iter().map(|p| p.exposed).sum();
        assert!((exposed - s.total).abs() < 1e-9);
        let waits = step(Rhythm::Beside { delay: 0, drain: false });
        assert!((waits.total - 11.25).abs() < 1e-9, "{}", waits.total);
        let exposed: f64 = waits.phases.iter().map(|p| p.exposed).sum();
        assert!((exposed - waits.total).abs() < 1e-9);
    }
}
