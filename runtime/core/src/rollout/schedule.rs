//! Which sequences run next: continuous batching without an engine in sight.
//!
//! In: prompts with their numbers of copies, a number of slots, bounds of one run. Out: [`Feed`]s, each one run of the
//! model: prompts first (one prefill per prompt, shared by its copies), else one token of every sequence in flight.
//! Slots of ended sequences take the next prompts at once. Feeds depend on the lengths drawn and on nothing else.

use std::collections::VecDeque;

/// Bounds of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub tokens: usize,
    pub sequences: usize,
    /// Slots of the cache.
    pub slots: usize,
}

/// Tokens of one sequence in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub slot: u32,
    /// Tokens already in the cache.
    pub base: u32,
    pub ids: Vec<u32>,
    /// Copies that draw from the logits of the last token, as (sample, slot); none while a prompt is incomplete.
    pub draws: Vec<(usize, u32)>,
}

/// One run of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feed {
    pub pieces: Vec<Piece>,
    /// Are these prompts, whose copies have yet to start?
    pub prefill: bool,
}

/// A sequence in flight.
#[derive(Clone, Copy, Debug)]
struct Active {
    sample: usize,
    base: u32,
    next: u32,
}

/// A prompt on its way into the cache: its tokens, those already fed, and who draws from it.
struct Feeding<'a> {
    ids: &'a [u32],
    done: usize,
    draws: Vec<(usize, u32)>,
}

/// Prompts that wait, and sequences in flight.
pub struct Schedule<'a> {
    limits: Limits,
    /// (prompt, first sample, samples): copies that share one prefill.
    waiting: VecDeque<(&'a [u32], usize, usize)>,
    feeding: VecDeque<Feeding<'a>>,
    /// Free slots, the lowest last.
    free: Vec<u32>,
    /// By slot.
    active: Vec<Option<Active>>,
    /// Slot to decode next, when they do not fit in one run.
    cursor: usize,
}

impl<'a> Schedule<'a> {
    /// A schedule of `copies` samples of each prompt; sample `i * copies + c` is copy `c` of prompt `i`. No prompt may
    /// be empty and no limit 0.
    pub fn new(
        prompts: impl Iterator<Item = &'a [u32]>,
        copies: usize,
        limits: Limits,
    ) -> Schedule<'a> {
        let mut waiting = VecDeque::new();
        for (i, ids) in prompts.enumerate() {
            // Copies beyond the slots share another prefill.
            for first in (0..copies).step_by(limits.slots) {
                waiting.push_back((ids, i * copies + first, (copies - first).min(limits.slots)));
            }
        }
        let free = (0..limits.slots as u32).rev().collect();
        Schedule {
            limits,
            waiting,
            feeding: VecDeque::new(),
            free,
            active: vec![None; limits.slots],
            cursor: 0,
        }
    }

    /// The next run; `None` when every sample has ended.
    pub fn next_feed(&mut self) -> Option<Feed> {
        self.admit();
        let pieces = self.prefill();
        if !pieces.is_empty() {
            return Some(Feed { pieces, prefill: true });
        }
        let pieces = self.decode();
        (!pieces.is_empty()).then_some(Feed { pieces, prefill: false })
    }

    fn admit(&mut self) {
        while let Some((ids, first, count)) = self.waiting.front().copied() {
            if count > self.free.len() {
                return;
            }
            self.waiting.pop_front();
            let draws =
                (first..first + count).filter_map(|s| Some((s, self.free.pop()?))).collect();
            self.feeding.push_back(Feeding { ids, done: 0, draws });
        }
    }

    fn prefill(&mut self) -> Vec<Piece> {
        let mut pieces = vec![];
        let mut room = self.limits.tokens;
        while let Some(f) = self.feeding.front_mut() {
            let take = room.min(f.ids.len() - f.done);
            if pieces.len() == self.limits.sequences || take == 0 {
                break;
            }
            let ids = f.ids[f.done..f.done + take].to_vec();
            let slot = f.draws.first().map_or(0, |d| d.1);
            let base = f.done as u32;
            room -= take;
            f.done += take;
            if f.done < f.ids.len() {
                pieces.push(Piece { slot, base, ids, draws: vec![] });
                break;
            }
            pieces.push(Piece { slot, base, ids, draws: std::mem::take(&mut f.draws) });
            self.feeding.pop_front();
        }
        pieces
    }

    fn decode(&mut self) -> Vec<Piece> {
        let most = self.limits.sequences.min(self.limits.tokens);
        let from = |at: usize| {
            (at..self.limits.slots).filter(|s| self.active[*s].is_some()).take(most).collect()
        };
        let mut slots: Vec<usize> = from(self.cursor);
        if slots.is_empty() {
            slots = from(0);
        }
        let piece = |s: &usize| {
            let a = self.active[*s]?;
            let slot = *s as u32;
            Some(Piece { slot, base: a.base, ids: vec![a.next], draws: vec![(a.sample, slot)] })
        };
        let pieces = slots.iter().filter_map(piece).collect();
        self.cursor = slots.last().map_or(0, |s| s + 1);
        pieces
    }

    /// Takes up what was drawn from `feed`: per draw, in order, the token, or `None` if the sample has ended.
    pub fn drawn(&mut self, feed: &Feed, mut next: impl Iterator<Item = Option<u32>>) {
        let mut ended = false;
        for piece in &feed.pieces {
            let base = piece.base + piece.ids.len() as u32;
            for &(sample, slot) in &piece.draws {
                let active = next.next().flatten().map(|next| Active { sample, base, next });
                if active.is_none() {
                    self.free.push(slot);
                    ended = true;
                }
                self.active[slot as usize] = active;
            }
        }
        if ended {
            // The lowest free slot is taken first, so that runs repeat.
            self.free.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a schedule in which sample `s` ends after `lengths[s]` tokens; returns the feeds.
    fn play(prompts: &[Vec<u32>], copies: usize, limits: Limits, lengths: &[usize]) -> Vec<Feed> {
        let mut schedule = Schedule::new(prompts.iter().map(|p| &p[..]), copies, limits);
        let mut drawn = vec![0; lengths.len()];
        let mut feeds = vec![];
        while let Some(feed) = schedule.next_feed() {
            let mut next = vec![];
            for &(sample, _) in feed.pieces.iter().flat_map(|p| &p.draws) {
                drawn[sample] += 1;
                next.push((drawn[sample] < lengths[sample]).then_some(100 + sample as u32));
            }
            schedule.drawn(&feed, next.into_iter());
            feeds.push(feed);
            assert!(feeds.len() < 1000, "the schedule does not end");
        }
        assert_eq!(drawn, lengths);
        feeds
    }

    #[test]
    fn a_prompt_is_fed_once_for_its_group() {
        let limits = Limits { tokens: 64, sequences: 8, slots: 4 };
        let feeds = play(&[vec![1, 2, 3], vec![4]], 2, limits, &[1, 3, 2, 2]);
        assert!(feeds[0].prefill);
        assert_eq!(feeds[0].pieces.iter().map(|p| p.ids.len()).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(feeds[0].pieces[0].draws, [(0, 0), (1, 1)]);
        // Sample 0 ended with its first token; the others decode at the length of their prompt.
        assert_eq!(
            feeds[1].pieces.iter().map(|p| (p.slot, p.base)).collect::<Vec<_>>(),
            [(1, 3), (2, 1), (3, 1)]
        );
        assert_eq!(
            feeds[2].pieces,
            [Piece { slot: 1, base: 4, ids: vec![101], draws: vec![(1, 1)] }]
        );
        assert_eq!(feeds.len(), 3);
    }

    #[test]
    fn freed_slots_are_refilled_before_the_others_end() {
        let limits = Limits { tokens: 64, sequences: 8, slots: 2 };
        let feeds = play(&[vec![1], vec![2], vec![3]], 1, limits, &[1, 5, 3]);
        // Slot 0 is free after the first feed, so prompt 2 starts while sample 1 goes on.
        assert!(feeds[1].prefill && feeds[1].pieces[0].ids == [3] && feeds[1].pieces[0].slot == 0);
        assert_eq!(feeds[2].pieces.len(), 2);
        assert_eq!(feeds.len(), 6);
    }

    #[test]
    fn a_prompt_longer_than_a_run_is_fed_in_pieces() {
        let limits = Limits { tokens: 4, sequences: 8, slots: 2 };
        let feeds = play(&[(0..10).collect()], 2, limits, &[2, 2]);
        let fed: Vec<_> = feeds
            .iter()
            .map(|f| (f.pieces[0].base, f.pieces[0].ids.len(), f.pieces[0].draws.len()))
            .collect();
        assert_eq!(fed, [(0, 4, 0), (4, 4, 0), (8, 2, 2), (10, 1, 1)]);
    }

    #[test]
    fn more_sequences_than_one_run_take_turns() {
        let limits = Limits { tokens: 2, sequences: 2, slots: 3 };
        let feeds = play(&[vec![1]], 3, limits, &[3, 3, 3]);
        let slots: Vec<Vec<u32>> =
            feeds[1..].iter().map(|f| f.pieces.iter().map(|p| p.slot).collect()).collect();
        assert_eq!(slots, [vec![0, 1], vec![2], vec![0, 1], vec![2]]);
    }

    #[test]
    fn a_group_larger_than_the_slots_is_split() {
        let limits = Limits { tokens: 64, sequences: 8, slots: 2 };
        let feeds = play(&[vec![1, 2]], 5, limits, &[2; 5]);
        assert_eq!(feeds.iter().filter(|f| f.prefill).count(), 3);
    }
}
