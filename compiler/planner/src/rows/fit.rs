//! Rates fitted to measured rows.
//!
//! In: goals (a case and the seconds that were measured), where to start. Out: the rates with the smallest error. Rates move in
//! logarithms, by damped least squares on `log(predicted / measured)` whose weights fall for rows that are far off; a rate
//! that the rows do not tell stays where it was.

use nrl_sim::rates::Rates;

use super::{Case, Row, Table, metric};

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

/// Errors beyond this share count in proportion, not by their square.
const USUAL: f64 = 0.05;

/// The rates with the smallest error on `goals`, starting from `from`; moving a rate by a factor of e costs as much as
/// a row that is off by `stay` times [`USUAL`].
pub fn fit(goals: &[Goal<'_>], from: &Rates, stay: f64) -> Rates {
    if goals.is_empty() {
        return from.clone();
    }
    let start = logs(from);
    let (mut at, mut damping) = (start.clone(), 1e-2);
    let mut off = offs(goals, &rates(from, &at));
    let mut least = cost(goals, &off, &at, &start, stay);
    for _ in 0..25 {
        let slopes = slopes(goals, from, &at, &off);
        let before = least;
        while damping < 1e6 {
            let step = step(goals, &slopes, &off, &at, &start, stay, damping);
            let tried = clamped(&at, &step);
            let now = offs(goals, &rates(from, &tried));
            let c = cost(goals, &now, &tried, &start, stay);
            if c < least {
                (at, off, least) = (tried, now, c);
                damping = (damping * 0.3).max(1e-6);
                break;
            }
            damping *= 4.0;
        }
        if before - least < 1e-3 * before {
            break;
        }
    }
    rates(from, &at)
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

fn clamped(at: &[f64], step: &[f64]) -> Vec<f64> {
    let one = |((x, d), (_, low, high)): ((&f64, &f64), &Knob)| {
        (x + d.clamp(-1.5, 1.5)).clamp(low.ln(), high.ln())
    };
    at.iter().zip(step).zip(KNOBS).map(one).collect()
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
    goals.iter().map(|g| (seconds(g) / g.seconds).ln() / USUAL).collect()
}

/// Squares near zero, in proportion far from it.
fn cost(goals: &[Goal<'_>], off: &[f64], at: &[f64], start: &[f64], stay: f64) -> f64 {
    let rows = goals.iter().zip(off).map(|(g, e)| g.weight * 2.0 * ((1.0 + e * e).sqrt() - 1.0));
    let moved = at.iter().zip(start).map(|(x, s)| (stay * (x - s)).powi(2));
    rows.sum::<f64>() + moved.sum::<f64>()
}

/// Change of each row's error with each rate.
fn slopes(goals: &[Goal<'_>], from: &Rates, at: &[f64], off: &[f64]) -> Vec<Vec<f64>> {
    let d = 1e-3;
    let one = |k: usize| {
        if *(KNOBS[k].0)(&mut from.clone()) == 0.0 {
            return vec![0.0; off.len()];
        }
        let mut moved = at.to_vec();
        moved[k] += d;
        let now = offs(goals, &rates(from, &moved));
        now.iter().zip(off).map(|(a, b)| (a - b) / d).collect()
    };
    (0..at.len()).map(one).collect()
}

fn step(
    goals: &[Goal<'_>],
    slopes: &[Vec<f64>],
    off: &[f64],
    at: &[f64],
    start: &[f64],
    stay: f64,
    damping: f64,
) -> Vec<f64> {
    let n = at.len();
    let weights: Vec<f64> =
        goals.iter().zip(off).map(|(g, e)| g.weight / (1.0 + e * e).sqrt()).collect();
    let dot = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).zip(&weights).map(|((x, y), w)| x * y * w).sum()
    };
    let mut m = vec![vec![0.0; n + 1]; n];
    for i in 0..n {
        for j in 0..n {
            m[i][j] = dot(&slopes[i], &slopes[j]);
        }
        m[i][n] = -dot(&slopes[i], off) - stay * stay * (at[i] - start[i]);
        m[i][i] = m[i][i] * (1.0 + damping) + stay * stay + 1e-9;
    }
    solved(m)
}

/// Solves linear equations, given as rows with the right side last, by elimination with pivots.
pub fn solved(mut m: Vec<Vec<f64>>) -> Vec<f64> {
    let n = m.len();
    for i in 0..n {
        let largest = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()));
        m.swap(i, largest.unwrap_or(i));
        if m[i][i].abs() < 1e-300 {
            continue;
        }
        let (above, below) = m.split_at_mut(i + 1);
        let pivot = &above[i];
        for row in below {
            let f = row[i] / pivot[i];
            row.iter_mut().zip(pivot).skip(i).for_each(|(x, p)| *x -= f * p);
        }
    }
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| m[i][k] * x[k]).sum();
        x[i] = if m[i][i].abs() < 1e-300 { 0.0 } else { (m[i][n] - known) / m[i][i] };
    }
    x
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
