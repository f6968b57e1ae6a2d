//! The streams of one rank: what it computes, the collectives that hold it, the weights that travel beside it, the host
//! that launches all of it.
//!
//! In: passes over regions of a model, as stretches in the order of the graph with the seconds that each takes alone, how many
//! times each runs, the share of traffic that can be hidden. Out: seconds by what they are spent on, and where asked every task with
//! its start and end. No stream does two things at once; layers that repeat are run until they do, then continued.
//!
//! Whatever runs beside something else is slowed by it. With `overlap` o, two things that run side by side go at 1 / (2 - o) of
//! their speed: the shorter, of m seconds alone, is done after (2 - o) m, the longer, of M, after M + (1 - o) m. So nothing is hidden at
//! o = 0 and the shorter is at o = 1; in between, of traffic T beside work S there is left max(T - o S, (1 - o) T). Two collectives over
//! the same links share them: they go at half their speed, whatever o is.

mod engine;
#[cfg(test)]
mod tests;

use crate::machine::Class;
use crate::rates::Seconds;

use engine::{COMPUTE, Engine, HOST, Lanes, SECOND, Task, WEIGHTS};

/// Computation without a collective in it, or a collective that holds what follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// Seconds on its stream, alone.
    pub seconds: f64,
    /// The links of a collective; none for computation.
    pub link: Class,
    /// Another micro-batch may compute meanwhile: an all-to-all.
    pub exchange: bool,
    /// Seconds that the host takes to launch it.
    pub launch: f64,
    /// Seconds that the host takes before that to read sizes which what comes before has computed.
    pub reads: f64,
    /// The word for pictures.
    pub what: &'static str,
}

impl Stretch {
    const EMPTY: Stretch = Stretch {
        seconds: 0.0,
        link: Class::None,
        exchange: false,
        launch: 0.0,
        reads: 0.0,
        what: "",
    };
}

/// One way through one region: forward or backward.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    pub stretches: Vec<Stretch>,
    /// Weights that are there before it begins, and gradients that leave when it is done: seconds in a node and across nodes.
    pub gathers: [f64; 2],
    pub scatters: [f64; 2],
    /// Seconds of its stretches by what they are spent on.
    pub own: Seconds,
}

/// Layers of a kind beyond so many are not run one by one: those left out take what the two before the last take in the mean.
const RUN: usize = 6;

impl Pass {
    /// Nothing travels beside it and the host waits for nothing: it takes what its parts take.
    pub(crate) fn is_alone(&self) -> bool {
        let still = |x: &[f64; 2]| x[0] + x[1] == 0.0;
        still(&self.gathers)
            && still(&self.scatters)
            && self.stretches.iter().all(|s| s.reads == 0.0)
    }

    /// Seconds on the compute stream, alone.
    fn device(&self) -> f64 {
        self.stretches.iter().map(|s| s.seconds).sum()
    }

    fn host(&self) -> f64 {
        self.stretches.iter().map(|s| s.launch).sum()
    }

    /// Seconds if nothing is beside it.
    fn by_itself(&self) -> Seconds {
        let wait = (self.host() - self.device()).max(0.0);
        Seconds { launch: self.own.launch + wait, ..self.own }
    }
}

/// Passes that follow each other, each with how many times it runs in a row.
pub type Row<'a> = [(&'a Pass, usize)];

/// Seconds of a row, by what they are spent on: of traffic, what nothing hides.
pub fn seconds(row: &Row<'_>, overlap: f64) -> Seconds {
    if row.iter().all(|(p, _)| p.is_alone()) {
        let own = row.iter().map(|(p, n)| (p.by_itself(), *n as f64));
        return own.fold(Seconds::default(), |sum, (s, n)| sum.plus(s, n));
    }
    Rows::of(row).run(overlap, &mut |_| ())
}

/// Share of an exchange that is hidden where another micro-batch computes meanwhile, at least: it takes 20 of the 132 multiprocessors of
/// a device (DeepSeek-V3 report 2024, section 3.2.2).
const EXCHANGE: f64 = 1.0 - 20.0 / 132.0;

/// Seconds of a layer forward for one micro-batch beside the layer backward for another, which computes while the first waits for
/// an all-to-all and the other way round. Of what is exchanged, and of weights, what nothing hides.
pub fn paired(forward: &Pass, backward: &Pass, overlap: f64) -> Seconds {
    let overlap = overlap.max(EXCHANGE);
    let run = |layers: usize| {
        let lanes = pair(forward, backward, layers);
        let mut engine = Engine::new(&lanes, overlap);
        engine.run(&mut |_, _, _, _| ());
        Mark { at: engine.at, held: engine.held }
    };
    let took = run(4).since(&run(2));
    let host = forward.host() + backward.host();
    let at = if took.at.is_nan() { f64::INFINITY } else { f64::max(0.5 * took.at, host) };
    let both = [forward, backward];
    let waits = |link: Class| -> f64 {
        let all = both.iter().flat_map(|p| &p.stretches);
        all.filter(|s| s.link == link && !s.exchange).map(|s| s.seconds).sum()
    };
    let sum = forward.own.plus(backward.own, 1.0);
    let own =
        Seconds { launch: 0.0, node: waits(Class::Node), network: waits(Class::Network), ..sum };
    spent(own, Mark { at, held: took.held.map(|h| 0.5 * h) })
}

/// Lanes of both micro-batches over `layers` layers.
fn pair(forward: &Pass, backward: &Pass, layers: usize) -> Lanes {
    let mut lanes = Lanes::default();
    for (lane, pass) in [(COMPUTE, forward), (SECOND, backward)] {
        for s in std::iter::repeat_n(&pass.stretches, layers).flatten() {
            if s.reads > 0.0 {
                lanes.of[lane].push(Task::reading(s.reads));
            }
            lanes.of[lane].push(Task::of(s, [0; engine::LANES]));
        }
        for traffic in [pass.gathers, pass.scatters] {
            lanes.weights(traffic.map(|t| t * layers as f64), 0, "weights");
        }
    }
    lanes
}

/// A task of a stream, as pictures show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    pub stream: Stream,
    pub what: &'static str,
    pub link: Class,
    pub start: f64,
    pub end: f64,
}

/// A stream of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    Compute,
    /// Collectives that the computation waits for.
    Exchange,
    /// Weights that come ahead of the computation and gradients that leave behind it.
    Weights,
    Host,
}

impl Stream {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Compute => "compute",
            Stream::Exchange => "collectives",
            Stream::Weights => "weights",
            Stream::Host => "host",
        }
    }
}

/// What happens while the steady layer of `row` runs (the third, or the last of fewer): its seconds, and tasks from its beginning.
pub fn steady(row: &Row<'_>, overlap: f64) -> (Seconds, Vec<Ran>) {
    let rows = Rows::of(row);
    let mut all = vec![];
    let marks = rows.marks(overlap, &mut |r| all.push(r));
    let at = marks.len().min(3);
    let Some(end) = at.checked_sub(1).map(|i| marks[i]) else { return Default::default() };
    let start = at.checked_sub(2).map_or(Mark::default(), |i| marks[i]);
    let pass = rows.each[at - 1];
    let tasks = all.into_iter().filter(|t| t.end > start.at && t.start < end.at);
    let cut = |t: Ran| Ran {
        start: t.start.max(start.at) - start.at,
        end: t.end.min(end.at) - start.at,
        ..t
    };
    (pass.spent(end.since(&start)), tasks.map(cut).collect())
}

/// A moment: when, and what traffic has held up the computation until then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    at: f64,
    held: [f64; 2],
}

impl Mark {
    fn since(&self, o: &Mark) -> Mark {
        let held = [self.held[0] - o.held[0], self.held[1] - o.held[1]];
        Mark { at: self.at - o.at, held }
    }

    fn plus(&self, o: &Mark, times: f64) -> Mark {
        let held = [self.held[0] + times * o.held[0], self.held[1] + times * o.held[1]];
        Mark { at: self.at + times * o.at, held }
    }
}

impl Pass {
    /// By what `took` of this pass is spent on.
    fn spent(&self, took: Mark) -> Seconds {
        spent(self.own, took)
    }
}

/// What is neither of the parts alone nor held up by traffic waits for the host.
fn spent(own: Seconds, took: Mark) -> Seconds {
    let s = Seconds { node: own.node + took.held[0], network: own.network + took.held[1], ..own };
    let rest = took.at - s.sum();
    // What never ends is not worked out to be nothing.
    let rest = if rest.is_nan() { f64::INFINITY } else { rest.max(0.0) };
    Seconds { launch: s.launch + rest, ..s }
}

/// A row with repeated passes cut short.
struct Rows<'a> {
    each: Vec<&'a Pass>,
    /// Where passes are left out: the one that they are like, and how many.
    more: Vec<(usize, usize)>,
    own: Seconds,
}

impl<'a> Rows<'a> {
    fn of(row: &Row<'a>) -> Rows<'a> {
        let mut rows = Rows { each: vec![], more: vec![], own: Seconds::default() };
        for (pass, n) in row {
            if *n > RUN {
                rows.more.push((rows.each.len() + RUN - 2, n - RUN));
            }
            rows.each.extend(std::iter::repeat_n(*pass, RUN.min(*n)));
            rows.own = rows.own.plus(pass.own, *n as f64);
        }
        rows
    }

    fn run(&self, overlap: f64, see: &mut dyn FnMut(Ran)) -> Seconds {
        let marks = self.marks(overlap, see);
        let Some(mut took) = marks.last().copied() else { return Seconds::default() };
        for (like, n) in &self.more {
            took = took.plus(&marks[*like].since(&marks[like - 2]), 0.5 * *n as f64);
        }
        spent(self.own, took)
    }

    /// When each pass is done; the last is done when all streams are.
    fn marks(&self, overlap: f64, see: &mut dyn FnMut(Ran)) -> Vec<Mark> {
        let (lanes, ends) = self.lanes();
        let mut engine = Engine::new(&lanes, overlap);
        let mut marks = Vec::with_capacity(ends.len());
        engine.run(&mut |e, lane, task, start| {
            if lane == COMPUTE && ends.get(marks.len()) == Some(&e.done[COMPUTE]) {
                marks.push(Mark { at: e.at, held: e.held });
            }
            if e.at > start {
                see(Ran {
                    stream: task.stream,
                    what: task.what,
                    link: task.link,
                    start,
                    end: e.at,
                });
            }
        });
        let end = Mark { at: engine.at, held: engine.held };
        marks.truncate(ends.len().saturating_sub(1));
        // Passes that never end do so when all of it does.
        marks.resize(ends.len(), end);
        marks
    }

    /// Tasks by lane, and how many of the compute stream are done when each pass is.
    fn lanes(&self) -> (Lanes, Vec<usize>) {
        let mut lanes = Lanes::default();
        let mut ends = Vec::with_capacity(self.each.len());
        let mut begins = Vec::with_capacity(self.each.len());
        // What the host has yet to launch of the stretch before.
        let mut rest = 0.0;
        if let Some(first) = self.each.first() {
            lanes.weights(first.gathers, 0, "weights");
        }
        for (i, pass) in self.each.iter().enumerate() {
            let begin = lanes.of[COMPUTE].len();
            let ready = lanes.of[WEIGHTS].len();
            if let Some(last) = i.checked_sub(1).map(|l| self.each[l]) {
                lanes.weights(last.scatters, begin, "gradients");
            }
            if let Some(next) = self.each.get(i + 1) {
                lanes.weights(next.gathers, begin, "weights");
            }
            begins.push(begin);
            // The host is one pass ahead at most.
            let ahead = |n: usize| (i + 1).checked_sub(n).map_or(0, |k| begins[k]);
            let empty = Stretch::EMPTY;
            let stretches = if pass.stretches.is_empty() { &[empty] } else { &pass.stretches[..] };
            for (j, s) in stretches.iter().enumerate() {
                let at = lanes.of[COMPUTE].len();
                lanes.host(rest, ahead(if j == 0 { 3 } else { 2 }));
                if s.reads > 0.0 {
                    lanes.host(s.reads, at);
                }
                rest = s.launch;
                let mut needs = [0; engine::LANES];
                needs[HOST] = lanes.of[HOST].len();
                needs[WEIGHTS] = if j == 0 { ready } else { 0 };
                lanes.of[COMPUTE].push(Task::of(s, needs));
            }
            ends.push(lanes.of[COMPUTE].len());
        }
        if let Some(last) = self.each.last() {
            lanes.weights(last.scatters, lanes.of[COMPUTE].len(), "gradients");
        }
        lanes.host(rest, begins.last().copied().unwrap_or(0));
        lanes.wait_for_all();
        (lanes, ends)
    }
}

/// What is left of `sent` seconds of traffic (in a node, across nodes) that travel beside passes that take `beside` in all, and may
/// end after them.
pub fn behind(sent: [f64; 2], beside: &Seconds, overlap: f64) -> f64 {
    let all = sent[0] + sent[1];
    let work = beside.sum();
    let shared = [beside.node, beside.network].iter().zip(sent).any(|(b, s)| *b > 0.0 && s > 0.0);
    if all == 0.0 || !shared {
        return f64::max(all - overlap * work, (1.0 - overlap) * all);
    }
    // Collectives of the passes are spread over them.
    const SLICES: usize = 8;
    let mut lanes = Lanes::default();
    let stretch =
        |s: f64, link: Class| Stretch { seconds: s / SLICES as f64, link, ..Stretch::EMPTY };
    for _ in 0..SLICES {
        for s in [
            stretch(beside.compute(), Class::None),
            stretch(beside.node, Class::Node),
            stretch(beside.network, Class::Network),
        ] {
            lanes.of[COMPUTE].push(Task::of(&s, [0; engine::LANES]));
        }
    }
    lanes.weights(sent, 0, "gradients");
    let mut engine = Engine::new(&lanes, overlap);
    engine.run(&mut |_, _, _, _| ());
    engine.at - work
}
