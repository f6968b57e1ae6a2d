//! When the stages of a pipeline are busy: 1F1B, and its interleaved form.
//!
//! In: seconds of a forward and a backward of each chunk of each stage, the number of micro-batches,
//! seconds to hand over. Out: seconds from the first forward to the last backward, and how long each
//! stage waits. One event per chunk and micro-batch; after the pipeline is full its period repeats, so long runs
//! are continued from it. Schedules: Narayanan et al. 2021, sections 2.2.1 and 2.2.2. Where a forward runs beside a backward, stages
//! begin with more forwards, so that neither waits for the stage beside (DeepSeek-V3 report 2024, section 3.2.1).

use serde::Serialize;

/// Seconds of one chunk of layers for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Chunk {
    pub forward: f64,
    pub backward: f64,
    /// Seconds that a forward and a backward beside each other save.
    pub saved: f64,
}

/// A pipeline: `chunks[stage][chunk]`, equally many chunks in each stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pipeline {
    pub chunks: Vec<Vec<Chunk>>,
    /// Seconds to hand a micro-batch to the next stage, either way.
    pub send: f64,
    /// The forward of one micro-batch runs beside the backward of another.
    pub paired: bool,
}

/// A forward or a backward of one chunk for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Event {
    pub stage: usize,
    pub chunk: usize,
    pub micro: usize,
    pub backward: bool,
    /// Seconds from the first forward.
    pub start: f64,
    pub end: f64,
}

/// What a run of a pipeline takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    pub seconds: f64,
    /// Seconds that the busiest stage computes.
    pub busy: f64,
}

impl Span {
    /// Share of the time in which the busiest stage waits.
    pub fn bubble(&self) -> f64 {
        if self.seconds > 0.0 { 1.0 - self.busy / self.seconds } else { 0.0 }
    }
}

impl Pipeline {
    /// Runs `micro` micro-batches.
    pub fn run(&self, micro: usize) -> Span {
        let stages = self.chunks.len();
        let busy = (0..stages).map(|s| self.busy(s, micro)).fold(0.0, f64::max);
        if stages <= 1 || micro == 0 {
            return Span { seconds: busy, busy };
        }
        if let Some((few, many, share)) = self.around(micro) {
            let (few, many) = (self.run(few).seconds, self.run(many).seconds);
            return Span { seconds: few + (many - few) * share, busy };
        }
        let full = if self.paired { 4 * stages } else { 2 * stages };
        if micro <= full + stages {
            return Span { seconds: self.events(micro, &mut |_| ()), busy };
        }
        // The period is that of `stages` micro-batches, which interleaving deals out together.
        let rest = micro % stages;
        let none = &mut |_| ();
        let (short, long) =
            (self.events(full + rest, none), self.events(full + stages + rest, none));
        let more = ((micro - full - rest) / stages) as f64;
        Span { seconds: short + (long - short) * more, busy }
    }

    /// Seconds that a stage computes.
    fn busy(&self, stage: usize, micro: usize) -> f64 {
        let chunks = &self.chunks[stage];
        let sum = chunks.iter().map(|c| c.forward + c.backward).sum::<f64>() * micro as f64;
        let saved = chunks.iter().map(|c| c.saved).sum::<f64>() / chunks.len().max(1) as f64;
        sum - saved * self.pairs(stage, micro)
    }

    /// How many forwards of a stage run beside a backward.
    pub fn pairs(&self, stage: usize, micro: usize) -> f64 {
        if let Some((few, many, share)) = self.around(micro) {
            let (few, many) = (self.pairs(stage, few), self.pairs(stage, many));
            return few + (many - few) * share;
        }
        let parts = self.chunks[stage].len();
        if !self.pairs_up(micro) {
            return 0.0;
        }
        (micro * parts - self.warm(stage, parts, micro)) as f64
    }

    /// Where pairs need full rounds and `micro` makes none: the numbers below and above that do, and how far between them it is.
    fn around(&self, micro: usize) -> Option<(usize, usize, f64)> {
        let stages = self.chunks.len();
        if !self.paired || self.pairs_up(micro) || micro < stages {
            return None;
        }
        let over = micro % stages;
        Some((micro - over, micro - over + stages, over as f64 / stages as f64))
    }

    /// Stages of several chunks take turns in rounds, which have to be full for that.
    fn pairs_up(&self, micro: usize) -> bool {
        let full = self.chunks.iter().all(|s| s.len() == 1);
        self.paired && (full || micro.is_multiple_of(self.chunks.len()))
    }

    /// Forwards before the first backward.
    fn warm(&self, stage: usize, parts: usize, micro: usize) -> usize {
        let stages = self.chunks.len();
        let later = stages - stage - 1;
        let warm = match (parts, self.pairs_up(micro)) {
            (1, false) => later,
            (1, true) => 2 * later + 1,
            (_, paired) => 2 * later + (parts - 1) * stages + usize::from(paired),
        };
        warm.min(micro * parts)
    }

    /// Every forward and backward of `micro` micro-batches, as pictures show them.
    pub fn trace(&self, micro: usize) -> Vec<Event> {
        let mut out = vec![];
        if !self.chunks.is_empty() && micro > 0 {
            self.events(micro, &mut |e| out.push(e));
        }
        out
    }

    /// Every forward and backward in the order of its stage, each as soon as what it needs is there.
    fn events(&self, micro: usize, see: &mut dyn FnMut(Event)) -> f64 {
        let stages = self.chunks.len();
        let parts = self.chunks[0].len();
        let orders: Vec<Vec<Task>> = (0..stages).map(|s| self.order(s, parts, micro)).collect();
        // When forwards and backwards are done, by stage.
        let mut done = [false, true].map(|_| vec![vec![f64::NAN; parts * micro]; stages]);
        let mut next = vec![0; stages];
        let mut clock = vec![0.0f64; stages];
        let mut left: usize = orders.iter().map(Vec::len).sum();
        while left > 0 {
            let before = left;
            for s in 0..stages {
                while let Some(task) = orders[s].get(next[s]) {
                    let at = |t: &Task| t.chunk * micro + t.micro;
                    let (mut ready, cost) =
                        (self.ready(task, s, &done, micro), self.chunks[s][task.chunk]);
                    let mut took = if task.back { cost.backward } else { cost.forward };
                    // The backward beside it.
                    let other = orders[s].get(next[s] + 1).filter(|_| task.joined);
                    if let Some(o) = other {
                        let back = self.chunks[s][o.chunk];
                        let late = self.ready(o, s, &done, micro);
                        // One that is not there yet counts.
                        ready = if late.is_nan() { late } else { ready.max(late) };
                        took += back.backward - 0.5 * (cost.saved + back.saved);
                    }
                    if ready.is_nan() {
                        break;
                    }
                    let start = clock[s].max(ready);
                    let end = start + took;
                    clock[s] = end;
                    for t in std::iter::once(task).chain(other) {
                        let (chunk, backward) = (t.chunk, t.back);
                        see(Event { stage: s, chunk, micro: t.micro, backward, start, end });
                        done[usize::from(t.back)][s][at(t)] = end;
                        next[s] += 1;
                        left -= 1;
                    }
                }
            }
            if left == before {
                // An order that waits for itself: as if stages did not overlap.
                return self.chunks.iter().flatten().map(|c| c.forward + c.backward).sum::<f64>()
                    * micro as f64;
            }
        }
        clock.into_iter().fold(0.0, f64::max)
    }

    /// When what a task needs is there; not a number until it is known.
    fn ready(&self, task: &Task, s: usize, done: &[Vec<Vec<f64>>; 2], micro: usize) -> f64 {
        let (c, stages, parts) = (task.chunk, self.chunks.len(), self.chunks[s].len());
        let at = |c: usize| c * micro + task.micro;
        let [forward, backward] = done;
        match (task.back, s) {
            (false, 0) if c == 0 => 0.0,
            (false, 0) => forward[stages - 1][at(c - 1)] + self.send,
            (false, _) => forward[s - 1][at(c)] + self.send,
            (true, _) if s + 1 < stages => backward[s + 1][at(c)] + self.send,
            (true, _) if c + 1 < parts => backward[0][at(c + 1)] + self.send,
            (true, _) => forward[s][at(c)],
        }
    }

    /// What stage `s` does, in order: some forwards, then one forward and one backward in turn, then the
    /// backwards that are left.
    fn order(&self, s: usize, parts: usize, micro: usize) -> Vec<Task> {
        let (total, stages) = (micro * parts, self.chunks.len());
        let warm = self.warm(s, parts, micro);
        let nth = |k: usize, back: bool, joined: bool| {
            let (chunk, micro) = deal(k, stages, parts, micro);
            Task { back, chunk: if back { parts - 1 - chunk } else { chunk }, micro, joined }
        };
        let mut tasks: Vec<Task> = (0..warm).map(|k| nth(k, false, false)).collect();
        for k in 0..total - warm {
            tasks.push(nth(warm + k, false, self.pairs_up(micro)));
            tasks.push(nth(k, true, false));
        }
        tasks.extend((total - warm..total).map(|k| nth(k, true, false)));
        tasks
    }
}

#[derive(Clone, Copy)]
struct Task {
    back: bool,
    chunk: usize,
    micro: usize,
    /// The next task runs beside it.
    joined: bool,
}

/// Chunk and micro-batch of the `k`-th forward: `stages` micro-batches go through a chunk together.
fn deal(k: usize, stages: usize, parts: usize, micro: usize) -> (usize, usize) {
    if parts == 1 {
        return (0, k);
    }
    let round = k / (stages * parts);
    // The last round may have fewer micro-batches.
    let wide = stages.min(micro - round * stages);
    let inside = k - round * stages * parts;
    (inside / wide, round * stages + inside % wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(stages: usize, parts: usize, forward: f64, backward: f64) -> Pipeline {
        let chunk = Chunk { forward, backward, saved: 0.0 };
        Pipeline { chunks: vec![vec![chunk; parts]; stages], send: 0.0, paired: false }
    }

    #[test]
    fn one_forward_one_backward_waits_for_all_but_one_stage() {
        // Narayanan et al. 2021: the bubble is (p - 1)(t_f + t_b).
        for (p, m) in [(2, 1), (4, 8), (8, 64), (3, 500)] {
            let span = even(p, 1, 1.0, 2.0).run(m);
            assert_eq!(span.seconds, 3.0 * (m + p - 1) as f64, "p {p} m {m}");
        }
    }

    #[test]
    fn interleaving_divides_the_bubble_by_the_number_of_chunks() {
        for (p, v, m) in [(4, 2, 8), (4, 4, 16), (8, 5, 64)] {
            let span = even(p, v, 1.0 / v as f64, 2.0 / v as f64).run(m);
            let want = 3.0 * m as f64 + 3.0 * (p - 1) as f64 / v as f64;
            assert!((span.seconds - want).abs() < 1e-9, "p {p} v {v} m {m}: {span:?}, {want}");
        }
    }

    #[test]
    fn the_slowest_stage_sets_the_pace() {
        let mut p = even(4, 1, 1.0, 2.0);
        p.chunks[2][0] = Chunk { forward: 2.0, backward: 4.0, saved: 0.0 };
        let span = p.run(1000);
        assert_eq!(span.busy, 6000.0);
        assert!(span.seconds > 6000.0 && span.seconds < 6020.0, "{span:?}");
    }

    #[test]
    fn a_trace_has_every_task_once_and_ends_with_the_run() {
        let p = even(4, 2, 1.0, 2.0);
        let all = p.trace(8);
        assert_eq!(all.len(), 2 * 4 * 2 * 8);
        let end = all.iter().map(|e| e.end).fold(0.0, f64::max);
        assert_eq!(end, p.run(8).seconds);
        for s in 0..4 {
            let mut own: Vec<_> = all.iter().filter(|e| e.stage == s).collect();
            own.sort_by(|a, b| a.start.total_cmp(&b.start));
            assert!(own.windows(2).all(|w| w[0].end <= w[1].start), "stage {s} does two things");
        }
    }

    #[test]
    fn a_forward_beside_a_backward_sets_the_pace() {
        // 2.5 s for both where one after the other takes 3.
        for (p, v) in [(1, 1), (4, 1), (8, 1), (4, 2)] {
            let mut line = even(p, v, 1.0, 2.0);
            line.paired = true;
            line.chunks.iter_mut().flatten().for_each(|c| c.saved = 0.5);
            let more = line.run(40 * p + p).seconds - line.run(40 * p).seconds;
            assert!((more - 2.5 * (p * v) as f64).abs() < 1e-9, "p {p} v {v}: {more}");
        }
    }

    #[test]
    fn any_number_of_micro_batches_ends() {
        for p in 1..6 {
            for v in 1..4 {
                for m in 1..30 {
                    let mut line = even(p, v, 1.0, 2.0);
                    let span = line.run(m);
                    assert!(span.seconds >= span.busy && span.seconds.is_finite());
                    line.paired = true;
                    line.chunks.iter_mut().flatten().for_each(|c| c.saved = 0.5);
                    let both = line.run(m);
                    assert!(both.seconds >= both.busy - 1e-9, "p {p} v {v} m {m}: {both:?}");
                    // Fewer than a round may have no order but one after the other.
                    let full = v == 1 || m >= p;
                    let most = 3.0 * (v * (m + 2 * p)) as f64;
                    assert!(!full || both.seconds < most, "p {p} v {v} m {m}: {both:?}");
                }
            }
        }
    }
}
