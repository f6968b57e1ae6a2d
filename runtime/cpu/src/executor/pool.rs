//! Buffers that are used again.
//!
//! Fresh memory costs a page fault per page, often more than the work done on it; so a device keeps every buffer it
//! once had. A buffer goes back when its last owner drops it. Contents are whatever was there before.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Free buffers by size class.
#[derive(Clone, Default)]
pub struct Pool {
    free: Arc<Mutex<Vec<Vec<Vec<f32>>>>>,
}

/// Numbers on loan from a pool.
pub struct Buffer {
    data: Vec<f32>,
    len: usize,
    class: usize,
    home: Pool,
}

/// Sizes grow by a quarter of a power of two.
fn class_of(len: usize) -> usize {
    let mut class = 0;
    while size_of_class(class) < len {
        class += 1;
    }
    class
}

fn size_of_class(class: usize) -> usize {
    (4 + class % 4) << (class / 4 + 4)
}

impl Pool {
    /// A buffer of `len` numbers, whatever they are.
    pub fn take(&self, len: usize) -> Buffer {
        let class = class_of(len);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // A buffer up to twice as large will do.
        let found = (class..(class + 4).min(free.len())).find(|c| !free[*c].is_empty());
        let taken = found.and_then(|c| Some((c, free[c].pop()?)));
        drop(free);
        let (class, data) = taken.unwrap_or_else(|| (class, vec![0.0; size_of_class(class)]));
        Buffer { data, len, class, home: self.clone() }
    }

    /// A buffer of `len` times `value`.
    pub fn filled(&self, len: usize, value: f32) -> Buffer {
        let mut b = self.take(len);
        b.fill(value);
        b
    }

    /// A copy of `data`.
    pub fn copy(&self, data: &[f32]) -> Buffer {
        let mut b = self.take(data.len());
        b.copy_from_slice(data);
        b
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() <= self.class {
            free.resize_with(self.class + 1, Vec::new);
        }
        free[self.class].push(data);
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[..self.len]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again_and_is_large_enough() {
        let pool = Pool::default();
        for len in [0, 1, 64, 65, 1000, 1 << 20] {
            let b = pool.filled(len, 3.0);
            assert_eq!(b.len(), len);
            assert!(b.data.len() <= (len + len / 4).max(64) + 64);
            let at = b.data.as_ptr();
            drop(b);
            assert_eq!(pool.take(len).data.as_ptr(), at);
        }
        let (a, b) = (pool.copy(&[1.0, 2.0]), pool.copy(&[3.0]));
        assert_eq!((&a[..], &b[..]), (&[1.0, 2.0][..], &[3.0][..]));
    }
}
