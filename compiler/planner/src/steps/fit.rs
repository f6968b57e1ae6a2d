//! Stacks fitted to measured steps.
//!
//! In: compiled rows, which of them count, the stacks to start from. Out: the stacks with the smallest error. A handful of
//! numbers moves, in logarithms and by damped least squares on `log(predicted / measured)` of steps and of the phases that
//! rows state; a number that the rows do not tell stays where it was.

use nrl_sim::rl_stack::{RlStack, RlStacks};

use super::{Case, Row};
use crate::least::Problem;

/// How much numbers are held where they began.
pub const STAY: f64 = 0.3;

/// A number: its name, how to reach it, and between what it stays.
struct Knob {
    name: &'static str,
    at: fn(&mut RlStacks) -> Option<&mut f64>,
    low: f64,
    high: f64,
}

fn stack<'a>(s: &'a mut RlStacks, name: &str) -> Option<&'a mut RlStack> {
    s.stacks.iter_mut().find(|s| s.stack == name)
}

fn megatron(s: &mut RlStacks) -> Option<&mut RlStack> {
    stack(s, "nemo-rl")
}

fn dtensor(s: &mut RlStacks) -> Option<&mut RlStack> {
    stack(s, "nemo-rl-dtensor")
}

fn routing(s: &mut RlStacks, version: usize) -> Option<&mut f64> {
    megatron(s)?.versions.get_mut(version)?.routing.as_mut()
}

const KNOBS: &[Knob] = &[
    Knob { name: "product", at: |s| Some(&mut megatron(s)?.rates.product), low: 0.2, high: 1.0 },
    Knob {
        name: "attention",
        at: |s| Some(&mut megatron(s)?.rates.attention),
        low: 0.05,
        high: 0.8,
    },
    Knob { name: "memory", at: |s| Some(&mut megatron(s)?.rates.memory), low: 0.1, high: 0.95 },
    Knob { name: "launch", at: |s| Some(&mut megatron(s)?.rates.launch), low: 5e-6, high: 4e-4 },
    Knob { name: "link", at: |s| Some(&mut megatron(s)?.rates.link), low: 0.1, high: 1.0 },
    Knob { name: "network", at: |s| Some(&mut megatron(s)?.rates.network), low: 0.1, high: 1.2 },
    Knob { name: "fixed", at: |s| Some(&mut megatron(s)?.rates.fixed), low: 0.1, high: 5.0 },
    Knob {
        name: "sequence",
        at: |s| Some(&mut megatron(s)?.packing.sequence),
        low: 1e-3,
        high: 0.2,
    },
    Knob { name: "call", at: |s| Some(&mut megatron(s)?.packing.call), low: 0.05, high: 10.0 },
    Knob { name: "other", at: |s| Some(&mut megatron(s)?.other), low: 0.5, high: 20.0 },
    Knob { name: "routing 0.3", at: |s| routing(s, 0), low: 1e-5, high: 0.02 },
    Knob { name: "routing 0.4", at: |s| routing(s, 1), low: 1e-5, high: 0.02 },
    Knob { name: "routing 0.5", at: |s| routing(s, 2), low: 1e-5, high: 0.02 },
    Knob { name: "routing 0.6", at: |s| routing(s, 3), low: 1e-5, high: 0.02 },
    Knob { name: "routing 0.7", at: |s| routing(s, 4), low: 1e-5, high: 0.02 },
    Knob {
        name: "dtensor product",
        at: |s| Some(&mut dtensor(s)?.rates.product),
        low: 0.2,
        high: 1.0,
    },
    Knob {
        name: "dtensor launch",
        at: |s| Some(&mut dtensor(s)?.rates.launch),
        low: 5e-6,
        high: 1e-3,
    },
    Knob {
        name: "dtensor network",
        at: |s| Some(&mut dtensor(s)?.rates.network),
        low: 0.05,
        high: 1.2,
    },
    Knob {
        name: "dtensor overlap",
        at: |s| Some(&mut dtensor(s)?.rates.overlap),
        low: 0.01,
        high: 0.99,
    },
    Knob {
        name: "dtensor fixed",
        at: |s| Some(&mut dtensor(s)?.rates.fixed),
        low: 0.05,
        high: 10.0,
    },
    Knob { name: "dtensor other", at: |s| Some(&mut dtensor(s)?.other), low: 0.5, high: 20.0 },
    Knob {
        name: "host of GB200",
        at: |s| Some(&mut s.nodes.get_mut(1)?.host),
        low: 0.5,
        high: 3.0,
    },
    Knob {
        name: "product of GB200",
        at: |s| Some(&mut s.nodes.get_mut(1)?.product),
        low: 0.3,
        high: 1.2,
    },
];

/// A fit.
pub struct Fitted {
    pub stacks: RlStacks,
    /// Names and values of what moved.
    pub values: Vec<(&'static str, f64)>,
}

/// Stacks with the smallest error on the rows that `take` accepts, from `from`; moving a number by a factor of e costs as
/// much as a row that is off by `stay` times [`crate::least::USUAL`].
pub fn fit(cases: &[Case], take: &dyn Fn(&Case) -> bool, from: &RlStacks, stay: f64) -> Fitted {
    let cases: Vec<&Case> = cases.iter().filter(|c| take(c)).collect();
    let weights: Vec<f64> = cases.iter().flat_map(|c| weights(&c.row)).collect();
    let bounds: Vec<(f64, f64)> = KNOBS.iter().map(|k| (k.low, k.high)).collect();
    let value = |k: &Knob| (k.at)(&mut from.clone()).copied();
    let log = |k: &Knob| value(k).map_or(0.0, |x| x.clamp(k.low, k.high).ln());
    let off = |at: &[f64]| {
        let stacks = stacks(from, at);
        nrl_driver::each(&cases, &|c| offs(c, &stacks)).into_iter().flatten().collect()
    };
    let problem = Problem {
        off: &off,
        weights: &weights,
        start: KNOBS.iter().map(log).collect(),
        moves: KNOBS.iter().map(|k| value(k).is_some_and(|x| x > 0.0)).collect(),
        bounds: &bounds,
        stay,
        rounds: 12,
        enough: 2e-3,
    };
    let at = problem.solve();
    let values = KNOBS.iter().zip(&at).map(|(k, x)| (k.name, x.exp())).collect();
    Fitted { stacks: stacks(from, &at), values }
}

fn stacks(from: &RlStacks, at: &[f64]) -> RlStacks {
    let mut s = from.clone();
    for (k, x) in KNOBS.iter().zip(at) {
        if let Some(number) = (k.at)(&mut s) {
            *number = x.exp();
        }
    }
    s
}

/// The step counts twice as much as one of its phases.
fn weights(row: &Row) -> Vec<f64> {
    let phases = [row.logprob_s, row.train_s].into_iter().flatten().map(|_| 0.5);
    [1.0].into_iter().chain(phases).collect()
}

/// Logarithms of errors: of the step, and of what the trainer does in it where the row says.
fn offs(case: &Case, stacks: &RlStacks) -> Vec<f64> {
    let count = weights(&case.row).len();
    let Ok(judged) = case.judge(stacks) else { return vec![0.0; count] };
    let wanted = judged.compared.iter().filter(|c| !matches!(c.phase, "sample" | "refit"));
    wanted.map(|c| (c.predicted.max(1e-3) / c.measured).ln()).collect()
}
