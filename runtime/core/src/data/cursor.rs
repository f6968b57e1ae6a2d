//! The order in which rows are taken.
//!
//! In: the number of rows, a seed, whether to shuffle. Out: row numbers, every row once per epoch, in an order that
//! depends on (seed, epoch) alone. The position is three numbers and can be saved; a batch may span two epochs.

use serde::{Deserialize, Serialize};

use super::jsonl::{DataError, DataSet};
use crate::rng::{Stream, Use};

/// A position in a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u64,
    /// Rows of this epoch that were taken.
    pub taken: usize,
    /// Rows of the data set, to recognise other data.
    pub rows: usize,
    /// Of the data set.
    pub fingerprint: u64,
}

/// Walks over a data set for ever.
#[derive(Clone, Debug)]
pub struct Cursor {
    position: Position,
    seed: u64,
    shuffled: bool,
    order: Vec<u32>,
}

impl Cursor {
    /// Starts at the first row of epoch 0.
    pub fn new(data: &DataSet, seed: u64, shuffled: bool) -> Cursor {
        let position =
            Position { epoch: 0, taken: 0, rows: data.len(), fingerprint: data.fingerprint };
        let order = order(data.len(), seed, 0, shuffled);
        Cursor { position, seed, shuffled, order }
    }

    /// Goes on at a saved position; refuses one of other data.
    pub fn restore(
        data: &DataSet,
        seed: u64,
        shuffled: bool,
        saved: &Position,
    ) -> Result<Cursor, DataError> {
        if (saved.rows, saved.fingerprint) != (data.len(), data.fingerprint)
            || saved.taken > saved.rows
        {
            return Err(DataError::Changed {
                path: data.path.clone(),
                saved: saved.rows,
                rows: data.len(),
            });
        }
        let order = order(data.len(), seed, saved.epoch, shuffled);
        Ok(Cursor { position: saved.clone(), seed, shuffled, order })
    }

    /// Where it stands.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The next `n` row numbers.
    pub fn take(&mut self, n: usize) -> Vec<usize> {
        (0..n).map(|_| self.next_row()).collect()
    }

    fn next_row(&mut self) -> usize {
        if self.position.taken == self.order.len() {
            self.position.epoch += 1;
            self.position.taken = 0;
            self.order = order(self.position.rows, self.seed, self.position.epoch, self.shuffled);
        }
        self.position.taken += 1;
        self.order[self.position.taken - 1] as usize
    }
}

/// Row numbers of one epoch (Fisher-Yates).
fn order(rows: usize, seed: u64, epoch: u64, shuffled: bool) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows as u32).collect();
    if shuffled {
        let stream = Stream::new(seed).child(epoch);
        for i in (1..rows).rev() {
            order.swap(i, stream.below(Use::Shuffle, i as u64, i as u64 + 1) as usize);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::jsonl::{BadLines, Column, Kind};
    use super::*;

    fn data(rows: usize) -> DataSet {
        let text: String = (0..rows).map(|i| format!("{{\"p\": \"{i}\"}}\n")).collect();
        DataSet::parse(
            text.as_bytes(),
            Path::new("d"),
            &[Column::new("p", Kind::Text)],
            BadLines::Error,
        )
        .unwrap()
    }

    #[test]
    fn every_epoch_is_a_permutation_and_each_is_another() {
        let mut cursor = Cursor::new(&data(50), 7, true);
        let epochs: Vec<Vec<usize>> = (0..3).map(|_| cursor.take(50)).collect();
        for e in &epochs {
            let mut sorted = e.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        }
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
        assert_ne!(Cursor::new(&data(50), 8, true).take(50), epochs[0]);
        assert_eq!(Cursor::new(&data(3), 8, false).take(7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..6000 {
            *counts.entry(order(3, seed, 0, true)).or_insert(0i32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Six standard deviations of a binomial count with n = 6000, p = 1/6.
        assert!(counts.values().all(|c| (c - 1000).abs() < 6 * 29), "{counts:?}");
    }

    #[test]
    fn a_restored_cursor_goes_on() {
        let data = data(10);
        let mut straight = Cursor::new(&data, 3, true);
        straight.take(17);
        let saved = serde_json::to_string(straight.position()).unwrap();
        let saved: Position = serde_json::from_str(&saved).unwrap();
        let mut again = Cursor::restore(&data, 3, true, &saved).unwrap();
        assert_eq!(again.take(25), straight.take(25));
    }

    #[test]
    fn a_position_of_other_data_is_refused() {
        let cursor = Cursor::new(&data(10), 3, true);
        let e = Cursor::restore(&data(9), 3, true, cursor.position()).unwrap_err();
        assert_eq!(e.code(), "data-changed");
        assert!(e.to_string().contains("it had 10 rows and has 9"), "{e}");
    }
}
