//! What differs from layer to layer of one loop, in turn: a window here and none there, two kinds of positions.
//!
//! In: an item per layer, or of as many layers as repeat. Out: the item of any layer, counted from the first of its group.
//! There is always at least one item, and never more than repeat, so that equal layers compare as equal.

use serde::{Deserialize, Serialize};

/// Items that layers take in turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cycle<T>(Vec<T>);

impl<T: PartialEq> Cycle<T> {
    /// The items of layers 0, 1, ..; none if there are no items.
    pub fn new(mut items: Vec<T>) -> Option<Cycle<T>> {
        let n = items.len();
        let repeats = |p: &usize| (*p..n).all(|i| items[i] == items[i - p]);
        let period = (1..=n).find(repeats)?;
        items.truncate(period);
        Some(Cycle(items))
    }
}

impl<T> Cycle<T> {
    /// The item of a layer.
    pub fn at(&self, layer: usize) -> &T {
        &self.0[layer % self.0.len()]
    }

    /// The items of the first layers, until they repeat.
    pub fn items(&self) -> &[T] {
        &self.0
    }
}

/// The same in every layer.
impl<T> From<T> for Cycle<T> {
    fn from(item: T) -> Cycle<T> {
        Cycle(vec![item])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_kept_until_they_repeat() {
        let near_far = Cycle::new(vec![5, 5, 0, 5, 5, 0, 5]).unwrap();
        assert_eq!(near_far.items(), [5, 5, 0]);
        assert_eq!((0..7).map(|l| *near_far.at(l)).collect::<Vec<_>>(), [5, 5, 0, 5, 5, 0, 5]);
        assert_eq!(Cycle::new(vec![3, 3, 3]), Some(Cycle::from(3)));
        assert_eq!(Cycle::new(vec![1, 2, 2]).unwrap().items(), [1, 2, 2]);
        assert_eq!(Cycle::<usize>::new(vec![]), None);
    }
}
