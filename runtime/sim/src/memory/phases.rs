//! What stands on a device when: phases of a step one after the other, with their periods.
//!
//! In: what each part takes and in which order a step trains, saves, validates and generates. Out: moments
//! with their residents, the fullest of them, and the steps whose generation follows a step that left
//! something behind. Trainer and engine share the device, or each has its own.

use nrl_ir::program::{Phase, Stage};
use serde::Serialize;

use super::Memory;

/// Parts that come and go, in bytes on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Weights of the trainer, and what stays with them.
    pub weights: f64,
    /// Gradients and optimizer state.
    pub optimizer: f64,
    /// What an update needs besides.
    pub update: f64,
    /// Weights of the engine.
    pub engine: f64,
    /// Keys and values.
    pub pool: f64,
    /// Buffers through which weights go from the trainer to the engine.
    pub staging: f64,
    /// Contexts of drivers, at all times.
    pub context: f64,
}

/// The order of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Order {
    pub steps: usize,
    /// A checkpoint after every so many steps, and validation; never if none.
    pub save: Option<usize>,
    pub validate: Option<usize>,
    /// Validation comes before the checkpoint of the same step.
    pub validate_first: bool,
    /// The state of the optimizer leaves the device only on the way of new weights to the engine; a
    /// generation that finds them there already does not see to it.
    pub tied_to_refit: bool,
}

impl Parts {
    /// Of an update and of sampling beside it, with a pool of `pool` bytes for keys and values.
    pub fn of(update: &Memory, sample: &Memory, pool: f64) -> Parts {
        let of = |m: &Memory, names: &[&str]| -> f64 {
            m.terms.iter().filter(|t| names.contains(&t.name)).map(|t| t.bytes).sum()
        };
        let weights = of(update, &["weights", "adapters"]);
        let optimizer = of(update, &["gradients", "optimizer"]);
        let context = of(update, &["context"]);
        Parts {
            weights,
            optimizer,
            update: update.sum() - weights - optimizer - context,
            engine: of(sample, &["weights"]),
            pool,
            staging: 0.0,
            context,
        }
    }
}

impl Order {
    /// Of a phase with its evaluations and checkpoints. Sampling sees to it each time that the trainer has left.
    pub fn of(phase: &Phase) -> Order {
        let saves = |s: &Stage| matches!(s, Stage::Checkpoint { .. });
        let validates = |s: &Stage| matches!(s, Stage::Evaluate { .. });
        let period = |want: &dyn Fn(&Stage) -> bool| {
            let due = phase.every.iter().filter(|e| e.stages.iter().any(|b| want(&b.stage)));
            due.map(|e| e.period).min()
        };
        let mut ends = phase.every.iter().flat_map(|e| &e.stages);
        let first = ends.find(|b| saves(&b.stage) || validates(&b.stage));
        Order {
            steps: phase.steps,
            save: period(&saves),
            validate: period(&validates),
            validate_first: first.is_some_and(|b| validates(&b.stage)),
            tied_to_refit: false,
        }
    }
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum What {
    Refit,
    Generate,
    Train,
    Save,
    Validate,
}

/// A moment of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// From 1.
    pub step: usize,
    pub what: What,
    pub trainer: f64,
    pub optimizer: f64,
    pub engine: f64,
    pub pool: f64,
    pub other: f64,
}

impl Moment {
    /// Bytes on a device that trainer and engine share.
    pub fn sum(&self) -> f64 {
        self.trainer + self.optimizer + self.engine + self.pool + self.other
    }
}

/// The moments of a run, in order, where trainer and engine share devices.
pub fn moments(parts: &Parts, order: &Order) -> Vec<Moment> {
    let mut run = Run { parts, order, fresh: false, state: true, out: vec![] };
    for step in 1..=order.steps {
        run.generate(step, What::Generate);
        run.train(step);
        let due = |every: Option<usize>| every.is_some_and(|n| n > 0 && step % n == 0);
        let ends = [(due(order.validate), true), (due(order.save), false)];
        let both = if order.validate_first { ends } else { [ends[1], ends[0]] };
        for (is_due, validates) in both {
            match (is_due, validates) {
                (true, true) => run.generate(step, What::Validate),
                (true, false) => run.save(step),
                _ => {}
            }
        }
    }
    run.out
}

struct Run<'a> {
    parts: &'a Parts,
    order: &'a Order,
    /// The engine has the newest weights.
    fresh: bool,
    /// The optimizer's state is on the device.
    state: bool,
    out: Vec<Moment>,
}

impl Run<'_> {
    fn push(&mut self, step: usize, what: What, moment: Moment) {
        let other = moment.other + self.parts.context;
        self.out.push(Moment { step, what, other, ..moment });
    }

    fn blank() -> Moment {
        let what = What::Train;
        Moment { step: 0, what, trainer: 0.0, optimizer: 0.0, engine: 0.0, pool: 0.0, other: 0.0 }
    }

    /// New weights for the engine if it lacks them, then samples.
    fn generate(&mut self, step: usize, what: What) {
        let p = self.parts;
        if !self.fresh || !self.order.tied_to_refit {
            self.state = false;
        }
        if !self.fresh {
            let (trainer, engine, other) = (p.weights, p.engine, p.staging);
            self.push(step, What::Refit, Moment { trainer, engine, other, ..Self::blank() });
            self.fresh = true;
        }
        let optimizer = if self.state { p.optimizer } else { 0.0 };
        let (engine, pool) = (p.engine, p.pool);
        self.push(step, what, Moment { optimizer, engine, pool, ..Self::blank() });
    }

    fn train(&mut self, step: usize) {
        let p = self.parts;
        (self.state, self.fresh) = (true, false);
        let (trainer, optimizer, other) = (p.weights, p.optimizer, p.update);
        self.push(step, What::Train, Moment { trainer, optimizer, other, ..Self::blank() });
    }

    /// A checkpoint reads weights and state from the device.
    fn save(&mut self, step: usize) {
        let p = self.parts;
        self.state = true;
        let (trainer, optimizer) = (p.weights, p.optimizer);
        self.push(step, What::Save, Moment { trainer, optimizer, ..Self::blank() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps whose generation begins while state of the optimizer is on the device.
    fn critical(moments: &[Moment]) -> Vec<usize> {
        let left = |m: &&Moment| m.what == What::Generate && m.optimizer > 0.0;
        let mut steps: Vec<usize> = moments.iter().filter(left).map(|m| m.step).collect();
        steps.dedup();
        steps
    }

    /// The fullest moment.
    fn fullest(moments: &[Moment]) -> Option<&Moment> {
        moments.iter().reduce(|a, b| if b.sum() > a.sum() { b } else { a })
    }

    fn order(validate: usize, save: usize, steps: usize, tied: bool) -> Order {
        Order {
            steps,
            save: Some(save),
            validate: Some(validate),
            validate_first: true,
            tied_to_refit: tied,
        }
    }

    const PARTS: Parts = Parts {
        weights: 2.0,
        optimizer: 12.0,
        update: 9.0,
        engine: 2.0,
        pool: 30.0,
        staging: 1.0,
        context: 0.0,
    };

    /// Validation refits; a checkpoint after it brings the state back, and the next generation finds
    /// its weights there and offloads nothing (NeMo RL issue 1137: periods of 4 and 2, steps 5 and 9;
    /// periods of 20 and 10, step 21).
    #[test]
    fn a_step_after_validation_and_checkpoint() {
        // The engine keeps the weights of a validation until the next update.
        let run = moments(&PARTS, &order(4, 2, 9, true));
        assert_eq!(critical(&run), [5, 9]);
        let most = fullest(&run).expect("moments");
        assert_eq!((most.step, most.what, most.sum()), (5, What::Generate, 44.0));
        assert_eq!(critical(&moments(&PARTS, &order(20, 10, 30, true))), [21]);
    }

    /// With the state offloaded before every generation no step is left with it.
    #[test]
    fn offloading_before_every_generation() {
        let run = moments(&PARTS, &order(4, 2, 9, false));
        assert!(critical(&run).is_empty());
        assert_eq!(fullest(&run).expect("moments").sum(), 32.0);
    }

    /// 36 GiB of a trainer, 14.2 of an engine, 2 of staging, 33.3 of keys and values: 52.2 while weights are copied, then 47.5 once the
    /// trainer has left, and never the 85.5 of all at once (NeMo RL issue 191).
    #[test]
    fn an_engine_wakes_in_two() {
        let parts =
            Parts { weights: 36.0, engine: 14.2, staging: 2.0, pool: 33.3, ..Parts::default() };
        let run = moments(&parts, &Order { steps: 2, ..Order::default() });
        for (what, sum) in [(What::Refit, 52.2), (What::Generate, 47.5)] {
            let of = run.iter().filter(|m| m.what == what);
            assert!(of.clone().count() == 2 && of.clone().all(|m| (m.sum() - sum).abs() < 1e-9));
        }
        assert!(fullest(&run).expect("moments").sum() < 85.5);
    }
}
