//! Rates of this machine, fitted to stages that ran on it.
//!
//! In: stages that were measured, as tasks of the driver, and what a rank can do at best. Out: rates of the engine and of
//! the host, and what they say of each stage. The fit is that of measured tables ([`crate::least`]).

use nrl_sim::calibration::{Line, Ranks, Threads};
use nrl_sim::machine::Machine;
use nrl_sim::rates::Rates;
use nrl_sim::threads::{Chore, Host, Pace};

use crate::least::Problem;

/// A stage that ran.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The model and the samples, in words.
    pub what: String,
    pub stage: String,
    pub chore: Chore,
    pub seconds: f64,
}

/// What a rank can do at best, and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    pub ranks: usize,
    pub threads: usize,
    pub flops: f64,
    pub bandwidth: f64,
    pub link: f64,
}

/// Reads a number to fit, or sets it.
type Reach = fn(&mut Rates, &mut Host, Option<f64>) -> f64;

/// How to reach a field.
macro_rules! knob {
    ($rates:ident, $host:ident, $place:expr) => {
        |$rates: &mut Rates, $host: &mut Host, x: Option<f64>| {
            let place: &mut f64 = $place;
            if let Some(x) = x {
                *place = x;
            }
            *place
        }
    };
}

/// Numbers to fit, and between what they stay.
const KNOBS: &[(Reach, f64, f64)] = &[
    (knob!(r, _h, &mut r.product), 0.1, 1.2),
    (knob!(r, _h, &mut r.half), 1e3, 1e7),
    (knob!(r, _h, &mut r.attention), 0.005, 1.0),
    (knob!(r, _h, &mut r.memory), 0.02, 10.0),
    (knob!(r, _h, &mut r.launch), 1e-7, 1e-3),
    (knob!(r, _h, &mut r.link), 0.02, 10.0),
    (knob!(r, _h, &mut r.link_latency), 1e-7, 1e-2),
    (knob!(r, _h, &mut r.update), 0.1, 20.0),
    (knob!(_r, h, &mut h.run), 1e-7, 1e-2),
    (knob!(_r, h, &mut h.token), 1e-8, 1e-3),
    (knob!(_r, h, &mut h.logit), 1e-11, 1e-6),
    (knob!(_r, h, &mut h.sample), 1e-8, 1e-3),
];

/// Rates of so many ranks, fitted to what was measured on them; a line for each stage. `host` holds what was measured
/// directly: jobs, rewards, writing.
pub fn fitted(
    best: &Best,
    name: &str,
    memory: f64,
    host: &Host,
    all: &[Measured],
) -> (Ranks, Vec<Line>) {
    let machine = Machine {
        name: name.into(),
        memory: memory / best.ranks as f64,
        host: memory,
        flops: best.flops,
        bandwidth: best.bandwidth,
        link: best.link,
        per_node: best.ranks,
        ..Machine::default()
    };
    let first = (Threads::rates(), host.clone());
    let at = |logs: &[f64]| {
        let (mut r, mut h) = first.clone();
        for ((reach, ..), x) in KNOBS.iter().zip(logs) {
            reach(&mut r, &mut h, Some(x.exp()));
        }
        (r, h)
    };
    let seconds = |(r, h): &(Rates, Host), m: &Measured| {
        m.chore.seconds(&Pace { machine: &machine, rates: r, host: h })
    };
    let off = |logs: &[f64]| -> Vec<f64> {
        let now = at(logs);
        all.iter().map(|m| (seconds(&now, m) / m.seconds).ln()).collect()
    };
    let (mut r, mut h) = first.clone();
    let start =
        KNOBS.iter().map(|(reach, low, high)| reach(&mut r, &mut h, None).clamp(*low, *high).ln());
    let bounds: Vec<(f64, f64)> = KNOBS.iter().map(|(_, low, high)| (*low, *high)).collect();
    let weights = vec![1.0; all.len()];
    let problem = Problem {
        off: &off,
        weights: &weights,
        start: start.collect(),
        moves: vec![true; KNOBS.len()],
        bounds: &bounds,
        stay: 0.1,
        rounds: 60,
        enough: 1e-5,
    };
    let now = at(&problem.solve());
    let lines: Vec<Line> = all
        .iter()
        .map(|m| Line {
            ranks: best.ranks,
            what: m.what.clone(),
            stage: m.stage.clone(),
            measured: m.seconds,
            predicted: seconds(&now, m),
        })
        .collect();
    let (median, p90) = spread(&lines);
    let (rates, host) = now;
    let ranks = Ranks {
        ranks: best.ranks,
        threads: best.threads,
        flops: best.flops,
        bandwidth: best.bandwidth,
        link: best.link,
        rates,
        host,
        median,
        p90,
    };
    (ranks, lines)
}

/// Median and ninth decile of |predicted / measured - 1|.
pub fn spread(lines: &[Line]) -> (f64, f64) {
    let mut errors: Vec<f64> =
        lines.iter().map(|l| (l.predicted / l.measured - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let rank = |q: f64| {
        let at = (errors.len().saturating_sub(1) as f64 * q).round() as usize;
        errors.get(at).copied().unwrap_or(1.0)
    };
    (rank(0.5), rank(0.9))
}

#[cfg(test)]
mod tests {
    use nrl_ir::Mesh;
    use nrl_sim::train::Job;
    use nrl_sim::work::{Item, Kind, Region, Work};

    use super::*;

    fn chore(m: f64, n: f64, k: f64, bytes: f64, count: f64) -> Chore {
        let items = vec![
            Item { kind: Kind::Product { m, n, k, batch: 1.0 }, count },
            Item { kind: Kind::Memory { bytes }, count },
        ];
        let after = Region { forward: items, backward: vec![] };
        let work = Work { after, ..Work::default() };
        Chore { passes: vec![(Job::alone(work, Mesh::default()), 1.0)], ..Chore::default() }
    }

    /// Stages whose seconds were worked out by other rates are explained by rates that say the same of yet others.
    #[test]
    fn rates_that_made_the_seconds_are_found() {
        let best = Best { ranks: 1, threads: 1, flops: 1e11, bandwidth: 1e10, link: 1e9 };
        // At 70 GFLOP/s, 4 GB/s and 9 microseconds a kernel; small dims cost nothing.
        let seconds = |m: f64, n: f64, k: f64, bytes: f64, count: f64| {
            count * (2.0 * m * n * k / 7e10 + bytes / 4e9 + 2.0 * 9e-6)
        };
        let sizes = [
            (4096.0, 4096.0, 4096.0, 4.0, 3.0),
            (8192.0, 4096.0, 2048.0, 4e6, 2.0),
            (2048.0, 8192.0, 4096.0, 4e8, 1.0),
            (3.0, 3.0, 3.0, 36.0, 500.0),
            (3.0, 3.0, 3.0, 36.0, 90.0),
            (64.0, 4096.0, 4096.0, 8e7, 5.0),
            (5.0, 4.0, 3.0, 3e8, 7.0),
        ];
        let all: Vec<Measured> = sizes
            .iter()
            .map(|&(m, n, k, b, c)| Measured {
                what: "made".into(),
                stage: "update".into(),
                chore: chore(m, n, k, b, c),
                seconds: seconds(m, n, k, b, c),
            })
            .collect();
        let (ranks, lines) = fitted(&best, "a box", 1e9, &Host::default(), &all);
        assert!(ranks.p90 < 0.04, "{lines:?}");
        assert!((ranks.rates.launch / 9e-6 - 1.0).abs() < 0.1, "{:?}", ranks.rates);
        assert!((ranks.rates.memory / 0.4 - 1.0).abs() < 0.1, "{:?}", ranks.rates);
    }
}
