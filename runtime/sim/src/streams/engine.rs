//! Events of streams: what begins when what it needs is done, and how fast things go that run side by side.
//!
//! In: tasks in lanes, each lane in order, with how many tasks of the other lanes each needs. Out: when each begins and ends, and how
//! long traffic holds up the computation.

use crate::machine::Class;

use super::{Stream, Stretch};

/// A micro-batch; another that computes while the first waits for a collective; weights beside them; the host.
pub(super) const COMPUTE: usize = 0;
pub(super) const SECOND: usize = 1;
pub(super) const WEIGHTS: usize = 2;
pub(super) const HOST: usize = 3;
pub(super) const LANES: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub stream: Stream,
    pub seconds: f64,
    pub link: Class,
    /// The computation of other micro-batches waits for it.
    pub holds: bool,
    /// Tasks of each lane that are done before it begins.
    pub needs: [usize; LANES],
    pub what: &'static str,
}

impl Task {
    /// A stretch of a micro-batch.
    pub fn of(s: &Stretch, needs: [usize; LANES]) -> Task {
        let stream = if s.link == Class::None { Stream::Compute } else { Stream::Exchange };
        let holds = !s.exchange;
        Task { stream, seconds: s.seconds, link: s.link, holds, needs, what: s.what }
    }

    /// A micro-batch waits for the host, which reads sizes.
    pub fn reading(seconds: f64) -> Task {
        let (stream, link, holds) = (Stream::Host, Class::None, false);
        Task { stream, seconds, link, holds, needs: [0; LANES], what: "reading sizes" }
    }

    fn is_of_host(&self) -> bool {
        self.stream == Stream::Host
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub of: [Vec<Task>; LANES],
}

impl Lanes {
    /// Traffic that begins when `after` tasks are computed.
    pub fn weights(&mut self, seconds: [f64; 2], after: usize, what: &'static str) {
        let mut needs = [0; LANES];
        needs[COMPUTE] = after;
        for (seconds, link) in seconds.into_iter().zip([Class::Node, Class::Network]) {
            if seconds > 0.0 {
                let (stream, holds) = (Stream::Weights, false);
                self.of[WEIGHTS].push(Task { stream, seconds, link, holds, needs, what });
            }
        }
    }

    /// Work of the host that begins when `after` tasks are computed.
    pub fn host(&mut self, seconds: f64, after: usize) {
        let mut needs = [0; LANES];
        needs[COMPUTE] = after;
        let what = "launches";
        let (stream, link, holds) = (Stream::Host, Class::None, false);
        self.of[HOST].push(Task { stream, seconds, link, holds, needs, what });
    }

    /// The computation ends when all lanes have.
    pub fn wait_for_all(&mut self) {
        let needs = [0, 0, self.of[WEIGHTS].len(), self.of[HOST].len()];
        self.of[COMPUTE].push(Task::of(&Stretch::EMPTY, needs));
    }
}

/// Runs lanes.
pub(super) struct Engine<'a> {
    lanes: &'a Lanes,
    overlap: f64,
    pub at: f64,
    /// Tasks that are done, by lane.
    pub done: [usize; LANES],
    /// Seconds that the computation waits for traffic in a node and across nodes, or is slowed by it.
    pub held: [f64; 2],
    /// Seconds alone that are left of the task that runs, and when it began.
    left: [Option<(f64, f64)>; LANES],
    /// The micro-batch that computed last.
    turn: usize,
}

/// What is told when a task is done: the engine at that moment, the lane, the task, when it began.
pub(super) type See<'s> = dyn FnMut(&Engine<'_>, usize, &Task, f64) + 's;

impl<'a> Engine<'a> {
    pub fn new(lanes: &'a Lanes, overlap: f64) -> Engine<'a> {
        Engine {
            lanes,
            overlap,
            at: 0.0,
            done: [0; LANES],
            held: [0.0; 2],
            left: [None; LANES],
            turn: SECOND,
        }
    }

    fn next(&self, lane: usize) -> Option<&'a Task> {
        self.lanes.of[lane].get(self.done[lane])
    }

    /// Until nothing can begin any more.
    pub fn run(&mut self, see: &mut See<'_>) {
        loop {
            while self.begin(see) {}
            if self.left.iter().all(Option::is_none) {
                return;
            }
            self.step(see);
        }
    }

    /// Begins all that can begin; true if some of it, which takes no time, is done already.
    fn begin(&mut self, see: &mut See<'_>) -> bool {
        // Micro-batches take turns.
        let order = if self.turn == COMPUTE { [1, 0, 2, 3] } else { [0, 1, 2, 3] };
        for lane in order {
            let Some(task) = self.next(lane).filter(|_| self.left[lane].is_none()) else {
                continue;
            };
            let ready = task.needs.iter().zip(&self.done).all(|(n, d)| n <= d);
            if !ready || self.is_taken(lane, task) {
                continue;
            }
            if task.holds {
                self.turn = lane;
            }
            self.left[lane] = Some((task.seconds, self.at));
            if task.seconds <= 0.0 {
                self.finish(lane, see);
                return true;
            }
        }
        false
    }

    /// Does the other micro-batch do what `task` does: compute, or exchange?
    fn is_taken(&self, lane: usize, task: &Task) -> bool {
        let other = match lane {
            COMPUTE => SECOND,
            SECOND => COMPUTE,
            _ => return false,
        };
        let other = self.runs(other);
        other.is_some_and(|o| o.holds == task.holds && !o.is_of_host() && !task.is_of_host())
    }

    fn runs(&self, lane: usize) -> Option<&'a Task> {
        self.next(lane).filter(|_| self.left[lane].is_some())
    }

    /// Goes on to the next end of a task.
    fn step(&mut self, see: &mut See<'_>) {
        let running = [0, 1, 2, 3].map(|l| self.runs(l));
        let rates = [0, 1, 2, 3].map(|l| self.rate(&running, l));
        let mut dt = f64::INFINITY;
        for (left, rate) in self.left.iter().zip(rates) {
            if let Some((left, _)) = left {
                dt = dt.min(left / rate);
            }
        }
        if !dt.is_finite() {
            // On a machine without a rate nothing ever ends.
            self.at = f64::INFINITY;
            self.left = [None; LANES];
            self.done = [0, 1, 2, 3].map(|l| self.lanes.of[l].len());
            return;
        }
        self.hold(&running, &rates, dt);
        self.at += dt;
        for lane in 0..LANES {
            let Some((left, _)) = &mut self.left[lane] else { continue };
            *left -= dt * rates[lane];
            let whole = running[lane].map_or(0.0, |t| t.seconds);
            if *left <= 1e-12 * whole {
                self.finish(lane, see);
            }
        }
    }

    fn finish(&mut self, lane: usize, see: &mut See<'_>) {
        let Some(task) = self.next(lane) else { return };
        let began = self.left[lane].take().map_or(self.at, |(_, began)| began);
        self.done[lane] += 1;
        see(self, lane, task, began);
    }

    /// The share of its speed at which what runs in `lane` goes. The host slows nothing.
    fn rate(&self, running: &[Option<&Task>; LANES], lane: usize) -> f64 {
        let Some(task) = running[lane].filter(|t| !t.is_of_host()) else { return 1.0 };
        let mut slow = 1.0;
        for other in (0..HOST).filter(|o| *o != lane) {
            let Some(o) = running[other].filter(|o| !o.is_of_host()) else { continue };
            slow += match task.link == o.link && task.link != Class::None {
                true => 1.0,
                false => 1.0 - self.overlap,
            };
        }
        1.0 / slow
    }

    /// Notes for how much of `dt` traffic holds up the computation.
    fn hold(&mut self, running: &[Option<&Task>; LANES], rates: &[f64; LANES], dt: f64) {
        let two = !self.lanes.of[SECOND].is_empty();
        let computes = |l: &usize| running[*l].is_some_and(|t| !two || t.holds);
        let subject = [COMPUTE, SECOND].into_iter().find(computes);
        let lost = match subject {
            Some(l) => dt * (1.0 - rates[l]),
            // It waits for weights; if for nothing that travels, for the host.
            None if two => dt,
            None => match self.next(COMPUTE) {
                Some(t) if t.needs[WEIGHTS] > self.done[WEIGHTS] => dt,
                _ => return,
            },
        };
        let others = (0..HOST).filter(|l| Some(*l) != subject);
        let links: Vec<usize> = others
            .filter_map(|l| match running[l]?.link {
                Class::None => None,
                Class::Node => Some(0),
                Class::Network => Some(1),
            })
            .collect();
        for l in &links {
            self.held[*l] += lost / links.len() as f64;
        }
    }
}
