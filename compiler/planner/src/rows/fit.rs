//! Rates fitted to measured rows.
//!
//! In: a table, which of its rows to fit on. Out: the rates with the smallest error, found by moving one rate at a
//! time (in factors, so that all stay positive) while that helps. The error is the mean of |log(predicted / measured)|, so that a few
//! odd rows do not decide.

use std::collections::BTreeMap;

use nrl_sim::rates::Rates;
use nrl_sim::tables::{Entry, Tables};

use super::{Case, Row, Table, metric};

/// A row to fit: its case and the seconds that were measured.
pub struct Goal<'a> {
    pub row: &'a Row,
    pub case: &'a Case,
    pub seconds: f64,
}

/// The rows of a table that measure time.
pub fn goals(table: &Table) -> Vec<Goal<'_>> {
    let rows = table.rows.iter().zip(&table.cases);
    rows.filter_map(|(row, case)| {
        let case = &table.all[*case.as_ref().ok()?];
        let seconds = metric::measured_seconds(row, case)?;
        (seconds > 0.0).then_some(Goal { row, case, seconds })
    })
    .collect()
}

/// Mean of |log(predicted / measured)|.
pub fn error(goals: &[&Goal<'_>], rates: &Rates) -> f64 {
    let one = |g: &&Goal<'_>| (g.case.time(rates).seconds / g.seconds).ln().abs();
    goals.iter().map(one).sum::<f64>() / goals.len().max(1) as f64
}

/// A rate by name: how to reach it, and between what it stays.
type Knob = (fn(&mut Rates) -> &mut f64, f64, f64);

const KNOBS: &[Knob] = &[
    (|r| &mut r.product, 0.1, 1.0),
    (|r| &mut r.product_half, 1e6, 1e11),
    (|r| &mut r.attention, 0.02, 1.0),
    (|r| &mut r.attention_back, 0.02, 1.0),
    (|r| &mut r.memory, 0.1, 1.0),
    (|r| &mut r.launch, 1e-7, 1e-4),
    (|r| &mut r.link, 0.02, 1.0),
    (|r| &mut r.network, 0.02, 1.0),
    (|r| &mut r.link_latency, 1e-6, 1e-3),
    (|r| &mut r.network_latency, 1e-6, 1e-3),
    (|r| &mut r.overlap, 0.01, 0.99),
    (|r| &mut r.fixed, 1e-4, 3.0),
];

/// The rates with the smallest error on `goals`, starting from `from`.
pub fn fit(goals: &[&Goal<'_>], from: &Rates) -> Rates {
    let mut best = from.clone();
    if goals.is_empty() {
        return best;
    }
    let mut least = error(goals, &best);
    let mut step = 1.6f64;
    while step > 1.01 {
        let before = least;
        for (knob, low, high) in KNOBS {
            for factor in [step, 1.0 / step] {
                let mut tried = best.clone();
                let x = knob(&mut tried);
                *x = (*x * factor).clamp(*low, *high);
                let e = error(goals, &tried);
                if e < least {
                    (best, least) = (tried, e);
                }
            }
        }
        if least > before * 0.999 {
            step = step.sqrt();
        }
    }
    best
}

/// Tables fitted to the rows of `table` that `take` accepts: an entry per device, stack and number type.
pub fn tables(table: &Table, version: &str, take: &dyn Fn(&Row) -> bool) -> Tables {
    let all: Vec<Goal<'_>> = goals(table).into_iter().filter(|g| take(g.row)).collect();
    let mut groups: BTreeMap<(String, String, String), Vec<&Goal<'_>>> = BTreeMap::new();
    for g in &all {
        let a = &g.case.asked;
        let key = (g.case.update.machine.name.clone(), a.stack.clone(), format!("{:?}", a.compute));
        groups.entry(key).or_default().push(g);
    }
    let shipped = Tables::shipped();
    let entries = groups.into_iter().map(|((device, stack, _), goals)| {
        let compute = goals[0].case.asked.compute;
        let from = shipped.find(&device, &stack, compute).rates;
        let rates = fit(&goals, &from);
        let mut errors: Vec<f64> =
            goals.iter().map(|g| (g.case.time(&rates).seconds / g.seconds - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let rank = |q: f64| errors[((errors.len() as f64 - 1.0) * q).round() as usize];
        let source = goals[0].row.source.split(':').next().unwrap_or("").to_string();
        let (median, p90) = (rank(0.5), rank(0.9));
        let rows = goals.len();
        Entry { device, stack, compute, rows, from: source, median, p90, rates }
    });
    Tables { version: version.to_string(), entries: entries.collect() }
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
