//! Collectives between ranks that are threads of one process.
//!
//! In: the same sequence of calls from every member of a [`Group`]. Out: the same bits on every run, since values are
//! always combined in the order of the group's ranks. Nothing waits for ever: a wait has a deadline, and a rank that
//! panics or fails poisons the [`World`], upon which every other rank's call returns an error that names it.
//!
//! All collectives are one primitive: every member writes its slot, all meet, every member reads the slots it needs.
//! Two sets of slots alternate, so one meeting per exchange is enough. A short wait spins, a long one parks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use thiserror::Error;

/// A collective that could not be completed. Every error poisons the world.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CommError {
    /// Another rank failed first.
    #[error("rank {rank} stopped: {reason}")]
    Stopped { rank: usize, reason: String },
    /// The others did not come in time.
    #[error(
        "rank {rank} waited {seconds:.0} s in {op} for rank {missing}; that rank is stuck or runs another program"
    )]
    Deadline { rank: usize, seconds: f64, op: &'static str, missing: String },
    /// Members called different things.
    #[error(
        "rank {rank} called {op} of {len} values while rank {other} called {other_op} of {other_len}"
    )]
    Mismatch {
        rank: usize,
        op: &'static str,
        len: usize,
        other: usize,
        other_op: &'static str,
        other_len: usize,
    },
    /// A buffer of the wrong length.
    #[error("{op} over {ranks} ranks got {got} values where {expected} are needed")]
    Length { op: &'static str, ranks: usize, got: usize, expected: usize },
    /// A group that does not contain the caller, or names a rank that does not exist.
    #[error("rank {rank} asked for the group {group:?} in a world of {ranks} ranks")]
    Group { rank: usize, group: Vec<usize>, ranks: usize },
}

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    Sum,
    /// NaN wins, so that it stays visible.
    Max,
}

/// Number types that can be exchanged.
pub trait Element: Copy + Default + Send + Sync + 'static {
    #[doc(hidden)]
    fn slot(slot: &Slot) -> &RwLock<Vec<Self>>;
    /// Combines two values.
    fn reduce(self, other: Self, how: Reduce) -> Self;
}

/// What one member shows the others during one exchange.
#[derive(Default)]
pub struct Slot {
    call: Mutex<(&'static str, usize)>,
    f32: RwLock<Vec<f32>>,
    f64: RwLock<Vec<f64>>,
    u32: RwLock<Vec<u32>>,
    u8: RwLock<Vec<u8>>,
}

macro_rules! element {
    ($($t:ident: $max:expr;)*) => {$(
        impl Element for $t {
            fn slot(slot: &Slot) -> &RwLock<Vec<$t>> {
                &slot.$t
            }
            #[inline(always)]
            fn reduce(self, other: $t, how: Reduce) -> $t {
                match how {
                    Reduce::Sum => self + other,
                    Reduce::Max => { let larger: fn($t, $t) -> bool = $max; if larger(other, self) { other } else { self } }
                }
            }
        }
    )*};
}

element! {
    f32: |a, b| a > b || a.is_nan();
    f64: |a, b| a > b || a.is_nan();
    u32: |a, b| a > b;
    u8: |a, b| a > b;
}

/// All ranks of a run.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

struct Shared {
    ranks: usize,
    deadline: Duration,
    stopped: AtomicBool,
    /// The first failure: rank and reason.
    failure: Mutex<Option<(usize, String)>>,
    groups: Mutex<HashMap<Vec<usize>, Arc<Meeting>>>,
}

/// One group's shared state.
struct Meeting {
    ranks: Vec<usize>,
    slots: [Vec<Slot>; 2],
    /// How many exchanges each member has begun.
    begun: Vec<AtomicUsize>,
    arrived: AtomicUsize,
    round: AtomicUsize,
    sleepers: Mutex<()>,
    wake: Condvar,
}

/// One rank's handle, moved into its thread. Dropping it in a panic poisons the world.
pub struct Rank {
    rank: usize,
    shared: Arc<Shared>,
}

/// A set of ranks as one of its members sees it; index 0 is the first of the list that made it.
#[derive(Clone)]
pub struct Group {
    index: usize,
    meeting: Arc<Meeting>,
    shared: Arc<Shared>,
}

/// A lock whose holder panicked is still used: the panic itself has already stopped the world.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A world of `ranks` ranks whose waits end after `deadline`.
    pub fn new(ranks: usize, deadline: Duration) -> World {
        let shared = Shared {
            ranks,
            deadline,
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
            groups: Mutex::new(HashMap::new()),
        };
        World { shared: Arc::new(shared) }
    }

    /// The handle of one rank.
    pub fn rank(&self, rank: usize) -> Rank {
        Rank { rank, shared: self.shared.clone() }
    }

    /// The first failure, if any rank has failed.
    pub fn failure(&self) -> Option<(usize, String)> {
        lock(&self.shared.failure).clone()
    }

    /// Runs `body` once per rank, each in a thread of its own, and returns the results in rank order.
    ///
    /// The first failing rank's error is returned; a panic becomes [`CommError::Stopped`].
    pub fn run<T: Send, E: Send + std::fmt::Display + From<CommError>>(
        &self,
        body: impl Fn(&Rank) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, E> {
        let body = &body;
        let results: Vec<_> = std::thread::scope(|scope| {
            let spawn = |r| {
                let rank = self.rank(r);
                scope.spawn(move || {
                    let result = body(&rank);
                    if let Err(e) = &result {
                        rank.stop(&e.to_string());
                    }
                    result
                })
            };
            let threads: Vec<_> = (0..self.shared.ranks).map(spawn).collect();
            threads.into_iter().map(|t| t.join()).collect()
        });
        let first = self.failure();
        let mut good = Vec::new();
        let mut failed = None;
        for (r, result) in results.into_iter().enumerate() {
            match result {
                Ok(Ok(value)) => good.push(value),
                Ok(Err(e)) if first.as_ref().is_some_and(|f| f.0 == r) => return Err(e),
                Ok(Err(e)) => failed = failed.or(Some(e)),
                Err(_) => failed = Some(self.shared.stopped_error().into()),
            }
        }
        failed.map_or(Ok(good), Err)
    }
}

impl Shared {
    fn stop(&self, rank: usize, reason: &str) {
        lock(&self.failure).get_or_insert_with(|| (rank, reason.to_string()));
        self.stopped.store(true, Ordering::SeqCst);
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        for meeting in groups {
            drop(lock(&meeting.sleepers));
            meeting.wake.notify_all();
        }
    }

    fn stopped_error(&self) -> CommError {
        let (rank, reason) = lock(&self.failure).clone().unwrap_or((0, "unknown".into()));
        CommError::Stopped { rank, reason }
    }
}

impl Rank {
    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks of the world.
    pub fn ranks(&self) -> usize {
        self.shared.ranks
    }

    /// Tells every other rank that this one has failed; their waits end with an error.
    pub fn stop(&self, reason: &str) {
        self.shared.stop(self.rank, reason);
    }

    /// The group of all ranks.
    pub fn all(&self) -> Group {
        let ranks = (0..self.shared.ranks).collect();
        Group { index: self.rank, meeting: self.meeting(ranks), shared: self.shared.clone() }
    }

    /// The group of `ranks`, which must contain this rank; every member must name the same list in the same order.
    pub fn group(&self, ranks: &[usize]) -> Result<Group, CommError> {
        let n = self.shared.ranks;
        let bad = || CommError::Group { rank: self.rank, group: ranks.to_vec(), ranks: n };
        let index = ranks.iter().position(|&r| r == self.rank).ok_or_else(bad)?;
        let repeated = ranks.iter().enumerate().any(|(i, r)| ranks[..i].contains(r));
        if repeated || ranks.iter().any(|&r| r >= n) {
            return Err(bad());
        }
        Ok(Group { index, meeting: self.meeting(ranks.to_vec()), shared: self.shared.clone() })
    }

    fn meeting(&self, ranks: Vec<usize>) -> Arc<Meeting> {
        let mut groups = lock(&self.shared.groups);
        groups
            .entry(ranks)
            .or_insert_with_key(|ranks| Arc::new(Meeting::new(ranks.clone())))
            .clone()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop("it panicked");
        }
    }
}

impl Meeting {
    fn new(ranks: Vec<usize>) -> Meeting {
        let slots = || ranks.iter().map(|_| Slot::default()).collect();
        Meeting {
            slots: [slots(), slots()],
            begun: ranks.iter().map(|_| AtomicUsize::new(0)).collect(),
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            sleepers: Mutex::new(()),
            wake: Condvar::new(),
            ranks,
        }
    }
}

/// Pauses before a waiting thread gives way to others, and how often it does so before it parks.
const SPINS: u32 = 400;
const YIELDS: u32 = 40;

/// Values above which an all-reduce is cut into one piece per rank.
const CUT: usize = 4096;

impl Group {
    /// Number of members.
    pub fn size(&self) -> usize {
        self.meeting.ranks.len()
    }

    /// This member's place in the group.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The members' ranks.
    pub fn ranks(&self) -> &[usize] {
        &self.meeting.ranks
    }

    /// Replaces `data` by the members' sum or maximum, element by element, in group order.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], how: Reduce) -> Result<(), CommError> {
        if self.size() == 1 {
            return Ok(());
        }
        const OP: &str = "all_reduce";
        let n = data.len();
        if n <= CUT {
            let mine = data.to_vec();
            return self.exchange(OP, n, &mine, |i, theirs| combine(data, theirs, i == 0, how));
        }
        let piece = |i: usize| n * i / self.size()..n * (i + 1) / self.size();
        let mine = piece(self.index);
        let mut sum = vec![T::default(); mine.len()];
        self.exchange(OP, n, data, |i, theirs| {
            combine(&mut sum, &theirs[mine.clone()], i == 0, how)
        })?;
        self.exchange(OP, n, &sum, |i, theirs| data[piece(i)].copy_from_slice(theirs))
    }

    /// Fills `out` with every member's `data` in group order; all must be of one length.
    pub fn all_gather<T: Element>(&self, data: &[T], out: &mut [T]) -> Result<(), CommError> {
        self.expect("all_gather", out.len(), data.len() * self.size())?;
        let n = data.len();
        self.exchange("all_gather", n, data, |i, theirs| {
            out[i * n..(i + 1) * n].copy_from_slice(theirs)
        })
    }

    /// Every member's `data`, which may differ in length, in group order.
    pub fn all_gather_ragged<T: Element>(&self, data: &[T]) -> Result<Vec<Vec<T>>, CommError> {
        let mut out = Vec::with_capacity(self.size());
        self.exchange("all_gather_ragged", 0, data, |_, theirs| out.push(theirs.to_vec()))?;
        Ok(out)
    }

    /// Fills `out` with this member's piece of the reduced `data`; `data` holds one piece per member.
    pub fn reduce_scatter<T: Element>(
        &self,
        data: &[T],
        out: &mut [T],
        how: Reduce,
    ) -> Result<(), CommError> {
        self.expect("reduce_scatter", data.len(), out.len() * self.size())?;
        let mine = self.index * out.len()..(self.index + 1) * out.len();
        self.exchange("reduce_scatter", data.len(), data, |i, theirs| {
            combine(out, &theirs[mine.clone()], i == 0, how)
        })
    }

    /// Replaces `data` by that of the member at `root` (its place in the group).
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), CommError> {
        let mine = if self.index == root { data.to_vec() } else { Vec::new() };
        self.exchange("broadcast", data.len(), &mine, |i, theirs| {
            if i == root {
                data.copy_from_slice(theirs);
            }
        })
    }

    /// Waits until every member is here.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.exchange::<u8>("barrier", 0, &[], |_, _| ())
    }

    fn expect(&self, op: &'static str, got: usize, expected: usize) -> Result<(), CommError> {
        if got == expected {
            return Ok(());
        }
        self.fail(CommError::Length { op, ranks: self.size(), got, expected })
    }

    fn fail(&self, error: CommError) -> Result<(), CommError> {
        self.shared.stop(self.meeting.ranks[self.index], &error.to_string());
        Err(error)
    }

    /// Shows `mine` to the others, then reads every member's slot in group order.
    fn exchange<T: Element>(
        &self,
        op: &'static str,
        len: usize,
        mine: &[T],
        mut read: impl FnMut(usize, &[T]),
    ) -> Result<(), CommError> {
        let meeting = &*self.meeting;
        if self.shared.stopped.load(Ordering::Acquire) {
            return Err(self.shared.stopped_error());
        }
        let turn = meeting.begun[self.index].fetch_add(1, Ordering::Relaxed);
        let slots = &meeting.slots[turn % 2];
        *lock(&slots[self.index].call) = (op, len);
        {
            let mut slot =
                T::slot(&slots[self.index]).write().unwrap_or_else(PoisonError::into_inner);
            slot.clear();
            slot.extend_from_slice(mine);
        }
        self.meet(op, turn)?;
        for (i, slot) in slots.iter().enumerate() {
            let (other_op, other_len) = *lock(&slot.call);
            if (other_op, other_len) != (op, len) {
                let rank = meeting.ranks[self.index];
                let other = meeting.ranks[i];
                return self.fail(CommError::Mismatch {
                    rank,
                    op,
                    len,
                    other,
                    other_op,
                    other_len,
                });
            }
            read(i, &T::slot(slot).read().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }

    /// Returns when all members have begun exchange number `turn`.
    fn meet(&self, op: &'static str, turn: usize) -> Result<(), CommError> {
        let meeting = &*self.meeting;
        let arrived = meeting.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived == (turn + 1) * self.size() {
            meeting.round.store(turn + 1, Ordering::Release);
            // Taking the lock orders this after a sleeper's last look at `round`.
            drop(lock(&meeting.sleepers));
            meeting.wake.notify_all();
            return Ok(());
        }
        let done = || meeting.round.load(Ordering::Acquire) > turn;
        let stopped = || self.shared.stopped.load(Ordering::Acquire);
        for i in 0..SPINS + YIELDS {
            if done() {
                return Ok(());
            }
            if stopped() {
                return Err(self.shared.stopped_error());
            }
            if i < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let start = Instant::now();
        let mut guard = lock(&meeting.sleepers);
        while !done() {
            if stopped() {
                return Err(self.shared.stopped_error());
            }
            let Some(left) = self.shared.deadline.checked_sub(start.elapsed()) else {
                drop(guard);
                return self.late(op, turn);
            };
            guard =
                meeting.wake.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn late(&self, op: &'static str, turn: usize) -> Result<(), CommError> {
        let absent = self.meeting.ranks.iter().zip(&self.meeting.begun);
        let absent: Vec<String> = absent
            .filter(|(_, n)| n.load(Ordering::Relaxed) <= turn)
            .map(|(r, _)| r.to_string())
            .collect();
        let rank = self.meeting.ranks[self.index];
        let seconds = self.shared.deadline.as_secs_f64();
        self.fail(CommError::Deadline { rank, seconds, op, missing: absent.join(", ") })
    }
}

fn combine<T: Element>(into: &mut [T], theirs: &[T], first: bool, how: Reduce) {
    if first {
        into.copy_from_slice(theirs);
        return;
    }
    match how {
        Reduce::Sum => {
            into.iter_mut().zip(theirs).for_each(|(a, &b)| *a = a.reduce(b, Reduce::Sum))
        }
        Reduce::Max => {
            into.iter_mut().zip(theirs).for_each(|(a, &b)| *a = a.reduce(b, Reduce::Max))
        }
    }
}

/// A mesh of ranks: named axes, the last one varying fastest with the rank number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    axes: Vec<(String, usize)>,
}

impl Axes {
    /// A mesh from (name, size) pairs.
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, usize)>) -> Axes {
        Axes { axes: axes.into_iter().map(|(n, s)| (n.into(), s)).collect() }
    }

    /// Product of the sizes.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|a| a.1).product()
    }

    /// Place of `rank` along `axis`; 0 if the mesh has no such axis.
    pub fn coordinate(&self, rank: usize, axis: &str) -> usize {
        let mut rest = rank;
        for (name, size) in self.axes.iter().rev() {
            if name == axis {
                return rest % size;
            }
            rest /= size;
        }
        0
    }

    /// Ranks that differ from `rank` only along the named axes, in rising order.
    pub fn group(&self, rank: usize, along: &[&str]) -> Vec<usize> {
        let fixed = |r: usize| {
            self.axes
                .iter()
                .filter(|(n, _)| !along.contains(&n.as_str()))
                .all(|(n, _)| self.coordinate(r, n) == self.coordinate(rank, n))
        };
        (0..self.ranks()).filter(|&r| fixed(r)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(n: usize) -> World {
        World::new(n, Duration::from_secs(20))
    }

    #[test]
    fn reductions_are_in_rank_order_and_alike_on_all_ranks() {
        for n in [1, 2, 3, 4] {
            for len in [1, 7, CUT, CUT + 5, 3 * CUT] {
                let value = |rank: usize, i: usize| {
                    ((i * 31 + rank * 17) % 97) as f32 * 0.1 + 1e6 * (rank as f32 - 1.0)
                };
                let expected: Vec<f32> =
                    (0..len).map(|i| (1..n).fold(value(0, i), |a, r| a + value(r, i))).collect();
                let got = world(n).run::<_, CommError>(|rank| {
                    let mut data: Vec<f32> = (0..len).map(|i| value(rank.rank(), i)).collect();
                    rank.all().all_reduce(&mut data, Reduce::Sum)?;
                    Ok(data)
                });
                for data in got.unwrap() {
                    assert_eq!(data, expected);
                }
            }
        }
    }

    #[test]
    fn max_shows_nan() {
        let got = world(2).run::<_, CommError>(|rank| {
            let mut data = [[1.0, 5.0, f64::NAN], [2.0, -1.0, 7.0]][rank.rank()];
            rank.all().all_reduce(&mut data, Reduce::Max)?;
            Ok(data)
        });
        for data in got.unwrap() {
            assert_eq!(data[..2], [2.0, 5.0]);
            assert!(data[2].is_nan());
        }
    }

    #[test]
    fn the_other_collectives_move_the_right_pieces() {
        let got = world(3).run::<_, CommError>(|rank| {
            let (all, r) = (rank.all(), rank.rank() as u32);
            let mut gathered = [0; 6];
            all.all_gather(&[r, 10 + r], &mut gathered)?;
            let mut piece = [0; 2];
            all.reduce_scatter(&gathered, &mut piece, Reduce::Sum)?;
            let mut sent = [r; 3];
            all.broadcast(&mut sent, 2)?;
            let ragged = all.all_gather_ragged(&vec![r as u8; r as usize])?;
            Ok((gathered, piece, sent, ragged))
        });
        for (r, (gathered, piece, sent, ragged)) in got.unwrap().into_iter().enumerate() {
            assert_eq!(gathered, [0, 10, 1, 11, 2, 12]);
            assert_eq!(piece, [3 * gathered[2 * r], 3 * gathered[2 * r + 1]]);
            assert_eq!(sent, [2; 3]);
            assert_eq!(ragged, [vec![], vec![1], vec![2, 2]]);
        }
    }

    #[test]
    fn groups_of_a_mesh_work_side_by_side() {
        let mesh = Axes::new([("dp", 2), ("tp", 2)]);
        assert_eq!(mesh.group(3, &["tp"]), [2, 3]);
        assert_eq!(mesh.group(3, &["dp"]), [1, 3]);
        assert_eq!(mesh.group(1, &["dp", "tp"]), [0, 1, 2, 3]);
        assert_eq!(
            (mesh.coordinate(2, "dp"), mesh.coordinate(2, "tp"), mesh.coordinate(2, "cp")),
            (1, 0, 0)
        );
        let got = world(4).run::<_, CommError>(|rank| {
            let tp = rank.group(&mesh.group(rank.rank(), &["tp"]))?;
            let dp = rank.group(&mesh.group(rank.rank(), &["dp"]))?;
            let mut total = 0.0;
            for i in 0..500 {
                let mut a = [rank.rank() as f64 + f64::from(i)];
                tp.all_reduce(&mut a, Reduce::Sum)?;
                dp.all_reduce(&mut a, Reduce::Sum)?;
                total += a[0];
            }
            Ok(total)
        });
        let each: f64 = (0..500).map(|i| 6.0 + 4.0 * f64::from(i)).sum();
        assert_eq!(got.unwrap(), [each; 4]);
    }

    #[derive(Debug, PartialEq, Error)]
    enum Failure {
        #[error("the disk is full")]
        Disk,
        #[error(transparent)]
        Comm(#[from] CommError),
    }

    #[test]
    fn a_failing_rank_frees_the_others_and_its_own_error_is_told() {
        let seen = Mutex::new(Vec::new());
        let got = world(3).run(|rank| {
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(30));
                return Err::<(), _>(Failure::Disk);
            }
            let e = rank.all().barrier().unwrap_err();
            lock(&seen).push(e.to_string());
            Err(e.into())
        });
        assert_eq!(got, Err(Failure::Disk));
        assert_eq!(*lock(&seen), vec!["rank 1 stopped: the disk is full"; 2]);
    }

    #[test]
    fn a_panicking_rank_frees_the_others() {
        let world = world(2);
        let other = world.rank(0);
        let thread = std::thread::spawn({
            let rank = world.rank(1);
            move || {
                let _held = rank;
                std::panic::resume_unwind(Box::new("boom"));
            }
        });
        let error = other.all().barrier().unwrap_err();
        assert_eq!(error, CommError::Stopped { rank: 1, reason: "it panicked".into() });
        assert!(thread.join().is_err());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let world = World::new(3, Duration::from_millis(50));
        let start = Instant::now();
        let error = world.rank(0).all().barrier().unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(error.to_string().contains("in barrier for rank 1, 2;"), "{error}");
        assert!(matches!(world.rank(1).all().barrier(), Err(CommError::Stopped { rank: 0, .. })));
    }

    #[test]
    fn different_calls_are_told_apart() {
        let got = world(2).run::<(), CommError>(|rank| {
            let mut data = vec![0f32; 3 + rank.rank()];
            rank.all().all_reduce(&mut data, Reduce::Sum)
        });
        assert!(matches!(got, Err(CommError::Mismatch { .. })), "{got:?}");
        let bad = world(2).rank(0).group(&[1]);
        assert!(matches!(bad, Err(CommError::Group { .. })));
        let short = world(2).rank(0).all().all_gather(&[1f32], &mut [0.0; 3]);
        assert!(
            short
                .unwrap_err()
                .to_string()
                .starts_with("all_gather over 2 ranks got 3 values where 2")
        );
    }
}
