//! Groups that are kept of several rounds: what `collect` joins.
//!
//! In: what the bindings of one round hold, and which of its groups are kept. Out: the same of the
//! kept groups alone, and rounds put together. Numbers of a whole batch are those of the last round.

use std::sync::Arc;

use crate::rollout::batch::{Batch, Sample};
use crate::run::value::{Held, Level, Tensor};

/// The samples of the groups `kept` of a batch, in order.
fn samples(batch: &Batch, kept: &[usize]) -> Vec<usize> {
    (0..batch.samples.len()).filter(|s| kept.contains(&batch.samples[*s].prompt)).collect()
}

/// What `held` has of the groups `kept` of `batch`.
pub fn part(held: &Held, batch: &Batch, kept: &[usize]) -> Held {
    let of = samples(batch, kept);
    let cut = |t: &Tensor| Tensor::new(t.level, t.pick(batch, &of, kept));
    match held {
        Held::Samples(b) => {
            let prompts = kept.iter().map(|g| b.prompts[*g].clone()).collect();
            let place = |p: usize| kept.iter().position(|g| *g == p).unwrap_or(0);
            let chosen = of.iter().map(|s| &b.samples[*s]);
            let samples = chosen.map(|s| Sample { prompt: place(s.prompt), ..s.clone() }).collect();
            Held::Samples(Arc::new(Batch::new(prompts, samples, b.temperature)))
        }
        Held::Prompts(p) => {
            Held::Prompts(Arc::new(kept.iter().filter_map(|g| p.get(*g).cloned()).collect()))
        }
        Held::Reward { values, valid } => Held::Reward { values: cut(values), valid: cut(valid) },
        Held::Tensor(t) => Held::Tensor(cut(t)),
        other => other.clone(),
    }
}

/// What two rounds hold together.
pub fn join(a: Held, b: Held) -> Held {
    let put = |x: Tensor, y: Tensor| match x.level {
        Level::Scalar => y,
        level => Tensor::new(level, x.data.iter().chain(y.data.iter()).copied().collect()),
    };
    match (a, b) {
        (Held::Samples(x), Held::Samples(y)) => {
            let shift = x.prompts.len();
            let prompts = x.prompts.iter().chain(&y.prompts).cloned().collect();
            let moved = y.samples.iter().map(|s| Sample { prompt: s.prompt + shift, ..s.clone() });
            let samples = x.samples.iter().cloned().chain(moved).collect();
            Held::Samples(Arc::new(Batch::new(prompts, samples, y.temperature)))
        }
        (Held::Prompts(x), Held::Prompts(y)) => {
            Held::Prompts(Arc::new(x.iter().chain(y.iter()).cloned().collect()))
        }
        (Held::Reward { values: x, valid: v }, Held::Reward { values: y, valid: w }) => {
            Held::Reward { values: put(x, y), valid: put(v, w) }
        }
        (Held::Tensor(x), Held::Tensor(y)) => Held::Tensor(put(x, y)),
        (_, b) => b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::value::tests::batch;

    #[test]
    fn kept_groups_of_two_rounds_make_one_batch() {
        // Groups of 2, 1 and 1 samples with 3, 0, 1 and 2 tokens.
        let b = batch(&[(2, &[3, 0]), (1, &[1]), (1, &[2])]);
        let held = Held::Samples(Arc::new(b.clone()));
        let tokens = Tensor::new(Level::Token, vec![1., 2., 3., 4., 5., 6.]);
        let per_sample = Tensor::new(Level::Sample, vec![10., 20., 30., 40.]);
        let per_group = Tensor::new(Level::Group, vec![7., 8., 9.]);
        let first = [0, 2];
        let second = [1];
        let both = |h: &Held| join(part(h, &b, &first), part(h, &b, &second));
        let Held::Samples(s) = both(&held) else { panic!("samples") };
        assert_eq!(s.prompts.len(), 3);
        assert_eq!(s.samples.iter().map(|s| s.prompt).collect::<Vec<_>>(), [0, 0, 1, 2]);
        assert_eq!(s.samples.iter().map(|s| s.ids.len()).collect::<Vec<_>>(), [3, 0, 2, 1]);
        assert_eq!(s.offsets, [0, 3, 3, 5, 6]);
        let numbers = |t: Tensor| match both(&Held::Tensor(t)) {
            Held::Tensor(t) => t.data.to_vec(),
            _ => panic!("a tensor"),
        };
        assert_eq!(numbers(tokens), [1., 2., 3., 5., 6., 4.]);
        assert_eq!(numbers(per_sample), [10., 20., 40., 30.]);
        assert_eq!(numbers(per_group), [7., 9., 8.]);
        assert_eq!(numbers(Tensor::new(Level::Scalar, vec![5.])), [5.]);
    }
}
