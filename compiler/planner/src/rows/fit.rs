//! Rates fitted to measured rows.
//!
//! In: goals (a case and the seconds that were measured), where to start. Out: the rates with the smallest error. Rates move in
//! logarithms, by damped least squares on `log(predicted / measured)` whose weights fall for rows that are far off; a rate
//! that the rows do not tell stays where it was.

use nrl_sim::rates::Rates;

use super::{Case, Row, Table, metric};
use crate::least::Problem;

/// A row to fit: its case and the seconds that were measured.
#[derive(Clone, Copy)]
pub struct Goal<'a> {
    pub row: &'a Row,
    pub case: &'a Case,
    pub seconds: f64,
    /// How much the row counts.
    pub weight: f64,
}

impl Goal<'_> {
    /// `log(predicted / measured)`.
    pub fn off(&self, rates: &Rates) -> f64 {
        (self.seconds_of(rates) / self.seconds).ln()
    }

    /// Is it of a layer, not of a step?
    fn of_layer(&self) -> bool {
        self.row.metric.starts_with("layer_")
    }

    /// What the row measures, by the planner.
    fn seconds_of(&self, rates: &Rates) -> f64 {
        match (self.row.metric.as_str(), self.case.layer(rates)) {
            ("layer_fwd_time", Some((forward, _))) => forward,
            ("layer_bwd_time", Some((_, backward))) => backward,
            _ => self.case.time(rates).seconds,
        }
    }
}

/// The rows of a table that measure time.
pub fn goals(table: &Table) -> Vec<Goal<'_>> {
    let rows = table.rows.iter().zip(&table.cases);
    rows.filter_map(|(row, case)| {
        let case = &table.all[*case.as_ref().ok()?];
        let seconds = match row.metric.as_str() {
            "layer_fwd_time" | "layer_bwd_time" => row.value / 1e3,
            _ => metric::measured_seconds(row, case)?,
        };
        (seconds > 0.0).then_some(Goal { row, case, seconds, weight: 1.0 })
    })
    .collect()
}

/// A rate: how to reach it, and between what it stays.
type Knob = (fn(&mut Rates) -> &mut f64, f64, f64);

const KNOBS: &[Knob] = &[
    (|r| &mut r.product, 0.1, 1.0),
    (|r| &mut r.half, 2.0, 2000.0),
    (|r| &mut r.low, 0.05, 1.0),
    (|r| &mut r.attention, 0.02, 1.0),
    (|r| &mut r.scores, 0.5, 80.0),
    (|r| &mut r.memory, 0.05, 1.0),
    (|r| &mut r.launch, 1e-7, 1e-4),
    (|r| &mut r.routing, 1e-6, 0.1),
    (|r| &mut r.link, 0.02, 1.0),
    (|r| &mut r.network, 0.02, 1.2),
    (|r| &mut r.ports, 0.05, 1.0),
    (|r| &mut r.link_latency, 1e-6, 1e-3),
    (|r| &mut r.network_latency, 1e-6, 1e-3),
    (|r| &mut r.overlap, 0.01, 0.99),
    (|r| &mut r.handover, 1e-6, 1e-2),
    (|r| &mut r.update, 0.1, 10.0),
    (|r| &mut r.fixed, 1e-4, 3.0),
];

/// The rates with the smallest error on `goals`, starting from `from`; moving a rate by a factor of e costs as much as
/// a row that is off by `stay` times [`crate::least::USUAL`].
pub fn fit(goals: &[Goal<'_>], from: &Rates, stay: f64) -> Rates {
    if goals.is_empty() {
        return from.clone();
    }
    let off = |at: &[f64]| offs(goals, &rates(from, at));
    let weights: Vec<f64> = goals.iter().map(|g| g.weight).collect();
    let bounds: Vec<(f64, f64)> = KNOBS.iter().map(|(_, low, high)| (*low, *high)).collect();
    let moves = KNOBS.iter().map(|(knob, ..)| *knob(&mut from.clone()) > 0.0).collect();
    let problem = Problem {
        off: &off,
        weights: &weights,
        start: logs(from),
        moves,
        bounds: &bounds,
        stay,
        rounds: 25,
        enough: 1e-3,
    };
    rates(from, &problem.solve())
}

/// Logarithms of the rates; 0 for those that are none, which stay so.
fn logs(r: &Rates) -> Vec<f64> {
    let log = |(knob, low, high): &Knob| {
        let x = *knob(&mut r.clone());
        if x > 0.0 { x.clamp(*low, *high).ln() } else { 0.0 }
    };
    KNOBS.iter().map(log).collect()
}

fn rates(from: &Rates, at: &[f64]) -> Rates {
    let mut r = from.clone();
    for ((knob, ..), x) in KNOBS.iter().zip(at) {
        let rate = knob(&mut r);
        if *rate > 0.0 {
            *rate = x.exp();
        }
    }
    r
}

/// Errors of the rows; several rows of one run that measure the same seconds are timed once.
fn offs(goals: &[Goal<'_>], r: &Rates) -> Vec<f64> {
    let mut timed: Option<(*const Case, f64)> = None;
    let mut seconds = |g: &Goal<'_>| match timed {
        Some((case, s)) if std::ptr::eq(case, g.case) && !g.of_layer() => s,
        _ => {
            let s = g.seconds_of(r);
            timed = (!g.of_layer()).then_some((g.case, s));
            s
        }
    };
    goals.iter().map(|g| (seconds(g) / g.seconds).ln()).collect()
}

/// Is a row in the half that is fitted on? Rows of one run are in the same half, whatever they measure.
pub fn half(row: &Row) -> bool {
    let key = format!(
        "{} {} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {:?} {:?} {:?} {} {}",
        row.source,
        row.task,
        row.model,
        row.layers,
        row.hidden,
        row.heads,
        row.gpus,
        row.tp,
        row.pp,
        row.vpp,
        row.cp,
        row.ep,
        row.fsdp,
        row.recompute,
        row.mbs,
        row.gbs,
        row.seq,
        row.precision,
        row.gpu
    );
    // FNV-1a: the same half on every machine.
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    (hash >> 17) & 1 == 0
}
