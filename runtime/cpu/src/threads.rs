//! A rank's threads.
//!
//! Work is cut into tiles of output, never into parts of a sum, so that results do not depend on how many threads
//! there are. Each rank has a pool of its own; with one thread there is no pool and no hand-over at all.

use rayon::prelude::*;

/// The threads of one rank.
pub struct Threads {
    count: usize,
    pool: Option<rayon::ThreadPool>,
}

impl Threads {
    /// `count` threads, at least one. If the system refuses to start them the rank works alone.
    pub fn new(count: usize) -> Threads {
        let build = || rayon::ThreadPoolBuilder::new().num_threads(count).build().ok();
        let pool = if count > 1 { build() } else { None };
        Threads { count: if pool.is_some() { count } else { 1 }, pool }
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `task` for each of `0..tasks`, in any order.
    pub fn each(&self, tasks: usize, task: impl Fn(usize) + Sync + Send) {
        match &self.pool {
            Some(pool) if tasks > 1 => {
                pool.install(|| (0..tasks).into_par_iter().with_max_len(1).for_each(task))
            }
            _ => (0..tasks).for_each(task),
        }
    }
}

/// A pointer that several tasks write through, each to places of its own.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32, usize);

// SAFETY: only an address is shared; `slice` puts the duty of disjointness on its caller.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn new(data: &mut [f32]) -> Shared {
        Shared(data.as_mut_ptr(), data.len())
    }

    /// The address of number `start`.
    ///
    /// # Safety
    /// What is reached through it must not be reached by another task, and the data must still be borrowed.
    pub unsafe fn at(&self, start: usize) -> *mut f32 {
        assert!(start <= self.1, "a task writes outside its tensor");
        // SAFETY: in bounds by the check above.
        unsafe { self.0.add(start) }
    }

    /// `len` numbers from `start`.
    ///
    /// # Safety
    /// No other slice in use may overlap, and the data must still be borrowed.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.1, "a task writes outside its tensor");
        // SAFETY: in bounds by the check above; disjoint by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
