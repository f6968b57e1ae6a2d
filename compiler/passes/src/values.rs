//! Tables keyed by value.
//!
//! Ids count from 0 in every graph and [`compact`](crate::rename::compact) closes the gaps, so a table is a plain
//! list with a place per id: a look-up costs one index, whatever the size of the graph.

use nrl_ir::ValueId;

/// What is known about some values of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Values<T>(Vec<Option<T>>);

impl<T> Values<T> {
    pub fn new() -> Values<T> {
        Values(vec![])
    }

    pub fn get(&self, v: &ValueId) -> Option<&T> {
        self.0.get(v.0 as usize)?.as_ref()
    }

    pub fn contains_key(&self, v: &ValueId) -> bool {
        self.get(v).is_some()
    }

    pub fn insert(&mut self, v: ValueId, what: T) {
        *self.place(v) = Some(what);
    }

    fn place(&mut self, v: ValueId) -> &mut Option<T> {
        let i = v.0 as usize;
        if i >= self.0.len() {
            self.0.resize_with(i + 1, || None);
        }
        &mut self.0[i]
    }
}

impl<T: Default> Values<T> {
    /// What is known about `v`, which is the default so far if nothing is.
    pub fn of(&mut self, v: ValueId) -> &mut T {
        self.place(v).get_or_insert_with(T::default)
    }
}

impl<T> Default for Values<T> {
    fn default() -> Values<T> {
        Values::new()
    }
}

impl<T> Extend<(ValueId, T)> for Values<T> {
    fn extend<I: IntoIterator<Item = (ValueId, T)>>(&mut self, all: I) {
        all.into_iter().for_each(|(v, what)| self.insert(v, what));
    }
}

impl<T> FromIterator<(ValueId, T)> for Values<T> {
    fn from_iter<I: IntoIterator<Item = (ValueId, T)>>(all: I) -> Values<T> {
        let mut values = Values::new();
        values.extend(all);
        values
    }
}
