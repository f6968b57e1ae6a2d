//! Which samples run together: optimizer batches, ranks, micro-batches.
//!
//! In: the lengths of the samples, a budget of tokens. Out: for each rank the same number of micro-batches, some of them
//! empty, none over the budget; a sample is never split, nor a prompt's samples where the graph needs them together.
//! The order that cuts a batch into updates is keyed by the seed alone, so it is the same on any layout.

use crate::rng::{Stream, Use};
use crate::rollout::batch::Batch;
use crate::run::error::{Outcome, RunError};
use crate::run::value::fed;

/// Samples that stay together.
#[derive(Clone, Debug, PartialEq)]
pub struct Atom {
    pub samples: std::ops::Range<usize>,
    /// Tokens that are fed.
    pub tokens: usize,
}

/// Bounds of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    pub tokens: usize,
    pub sequences: usize,
}

/// Samples of each micro-batch of each rank.
pub type Packed = Vec<Vec<Vec<usize>>>;

/// The atoms of a batch: its samples, or its prompts with all their samples.
pub fn atoms(batch: &Batch, whole_groups: bool) -> Vec<Atom> {
    let ranges = if whole_groups {
        batch.groups()
    } else {
        (0..batch.samples.len()).map(|i| i..i + 1).collect()
    };
    let tokens = |r: &std::ops::Range<usize>| r.clone().map(|i| fed(batch, i)).sum();
    ranges.into_iter().map(|samples| Atom { tokens: tokens(&samples), samples }).collect()
}

/// The atoms of each of `updates` optimizer batches; shuffled if there is more than one.
pub fn split(count: usize, updates: usize, order: &Stream) -> Vec<Vec<usize>> {
    let mut ids: Vec<usize> = (0..count).collect();
    if updates > 1 {
        // Fisher and Yates.
        for i in (1..count).rev() {
            ids.swap(i, order.below(Use::Shuffle, i as u64, i as u64 + 1) as usize);
        }
    }
    (0..updates).map(|u| ids[count * u / updates..count * (u + 1) / updates].to_vec()).collect()
}

/// Shares out atoms: each to the rank with the fewest tokens, longest first, then first fit into micro-batches.
pub fn pack(atoms: &[Atom], chosen: &[usize], ranks: usize, budget: Budget) -> Outcome<Packed> {
    let mut order = chosen.to_vec();
    order.sort_by_key(|a| (std::cmp::Reverse(atoms[*a].tokens), *a));
    let mut loads = vec![0; ranks];
    let mut bins: Vec<Vec<(Budget, Vec<usize>)>> = vec![vec![]; ranks];
    for a in order {
        let atom = &atoms[a];
        if atom.tokens > budget.tokens || atom.samples.len() > budget.sequences {
            return Err(too_long(atom, budget));
        }
        let rank = (0..ranks).min_by_key(|r| (loads[*r], *r)).unwrap_or(0);
        // An atom without tokens still takes a place.
        loads[rank] += atom.tokens.max(1);
        let fits = |b: &Budget| b.tokens >= atom.tokens && b.sequences >= atom.samples.len();
        let bin = match bins[rank].iter().position(|(left, _)| fits(left)) {
            Some(i) => i,
            None => {
                bins[rank].push((budget, vec![]));
                bins[rank].len() - 1
            }
        };
        let (left, samples) = &mut bins[rank][bin];
        left.tokens -= atom.tokens;
        left.sequences -= atom.samples.len();
        samples.extend(atom.samples.clone());
    }
    let most = bins.iter().map(Vec::len).max().unwrap_or(0);
    let finish = |bins: Vec<(Budget, Vec<usize>)>| {
        let mut list: Vec<Vec<usize>> = bins.into_iter().map(|(_, samples)| samples).collect();
        list.iter_mut().for_each(|s| s.sort_unstable());
        list.resize(most, vec![]);
        list
    };
    Ok(bins.into_iter().map(finish).collect())
}

fn too_long(atom: &Atom, budget: Budget) -> RunError {
    let (n, most) = (atom.samples.len(), budget.tokens);
    let what =
        if n > 1 { format!("the {n} samples of one prompt have") } else { "one sample has".into() };
    RunError::new(
        "sequence-over-budget",
        format!("{what} {} tokens, a micro-batch holds {most}", atom.tokens),
    )
    .help(format!(
        "write `{} tokens/microbatch`, or a smaller `max_new`",
        atom.tokens.next_multiple_of(256)
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::value::tests::batch;

    fn single(lengths: &[usize]) -> Vec<Atom> {
        lengths.iter().enumerate().map(|(i, n)| Atom { samples: i..i + 1, tokens: *n }).collect()
    }

    const WIDE: Budget = Budget { tokens: 100, sequences: 100 };

    #[test]
    fn ranks_run_equally_often_and_empty_ones_are_padded() {
        let atoms = single(&[90, 10, 80]);
        let packed = pack(&atoms, &[0, 1, 2], 2, WIDE).unwrap();
        assert_eq!(
            packed,
            [vec![vec![0], vec![]], vec![vec![1, 2], vec![]]].map(|mut r| {
                r.truncate(1);
                r
            })
        );
        let packed = pack(&single(&[60, 60, 60]), &[0, 1, 2], 2, WIDE).unwrap();
        assert_eq!(packed, [vec![vec![0], vec![2]], vec![vec![1], vec![]]]);
    }

    /// Report c13: what is packed is what is fed. 19 sequences of 25 tokens are 475, which 512 hold. Aligned to 4 they
    /// are 28 each: 18 of them are 504 and the last one is for another micro-batch, never for 532 tokens.
    #[test]
    fn bins_are_filled_with_the_lengths_that_are_fed() {
        let budget = Budget { tokens: 512, sequences: 100 };
        let packed = |length: usize| {
            let all: Vec<usize> = (0..19).collect();
            let packed = pack(&single(&[length; 19]), &all, 1, budget).unwrap();
            packed[0].iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(packed(25), [19]);
        assert_eq!(packed(25usize.next_multiple_of(2)), [19]);
        assert_eq!(packed(25usize.next_multiple_of(4)), [18, 1]);
    }

    #[test]
    fn a_sample_over_the_budget_is_named() {
        let e = pack(&single(&[101]), &[0], 1, WIDE).unwrap_err();
        assert_eq!(e.code, "sequence-over-budget");
        assert_eq!(e.message, "one sample has 101 tokens, a micro-batch holds 100");
    }

    #[test]
    fn prompts_stay_whole_where_asked() {
        let b = batch(&[(2, &[3, 0]), (1, &[1])]);
        assert_eq!(
            atoms(&b, true),
            [Atom { samples: 0..2, tokens: 4 }, Atom { samples: 2..3, tokens: 1 }]
        );
        assert_eq!(atoms(&b, false).len(), 3);
    }

    #[test]
    fn updates_share_a_batch_in_an_order_of_the_seed() {
        let order = Stream::new(1);
        let parts = split(10, 3, &order);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 4]);
        let mut all: Vec<usize> = parts.concat();
        assert_ne!(all, (0..10).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        assert_eq!(parts, split(10, 3, &order));
        assert_ne!(parts, split(10, 3, &Stream::new(2)));
        assert_eq!(split(4, 1, &order), [[0, 1, 2, 3]]);
    }

    proptest! {
        #[test]
        fn every_sample_runs_once_within_the_budget(
            lengths in proptest::collection::vec(0usize..100, 0..40), ranks in 1usize..5, sequences in 1usize..9,
        ) {
            let atoms = single(&lengths);
            let chosen: Vec<usize> = (0..lengths.len()).collect();
            let packed = pack(&atoms, &chosen, ranks, Budget { tokens: 100, sequences }).unwrap();
            let counts: Vec<usize> = packed.iter().map(Vec::len).collect();
            prop_assert!(counts.iter().all(|c| *c == counts[0]));
            let mut seen: Vec<usize> = packed.iter().flatten().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, chosen);
            for micro in packed.iter().flatten() {
                prop_assert!(micro.len() <= sequences);
                prop_assert!(micro.iter().map(|s| lengths[*s]).sum::<usize>() <= 100);
            }
        }
    }
}
