//! Calibration tables fitted to measured rows.
//!
//! In: a table, which of its rows to take. Out: an entry per device and family of stacks, with factors for what a
//! family's versions, number types and models take more. Fits go from all rows to those of a device, of a family, of a family on a
//! device; each starts from the one before, so that few rows change little.

use std::collections::BTreeMap;

use nrl_sim::rates::{Compute, Rates};
use nrl_sim::tables::{Entry, Tables, Traits, family};

use super::fit::{Goal, fit, goals};
use super::{Row, Table};
use crate::least::solved;

/// Rows of one source beyond this many count less each, so that together they count as many.
const MANY: f64 = 40.0;

/// Tables fitted to the rows of `table` that `take` accepts.
pub fn tables(table: &Table, version: &str, take: &dyn Fn(&Row) -> bool) -> Tables {
    let all: Vec<Goal<'_>> = goals(table).into_iter().filter(|g| take(g.row)).collect();
    let groups = grouped(&all, |g| family(&g.case.asked.stack).to_string());
    let common = fit(&weighed(&all), &Rates::default(), 1.0);
    let mut entries = vec![];
    let mut devices: BTreeMap<String, Rates> = BTreeMap::new();
    for (device, goals) in grouped(&all, |g| g.case.update.machine.name.clone()) {
        devices.insert(device, fit(&weighed(&goals), &common, 1.5));
    }
    for (stack, goals) in groups {
        let scores = if unfused(&stack) { 8.0 } else { 0.0 };
        let each = grouped(&goals, |g| g.case.update.machine.name.clone());
        // A stack on one device starts from what other stacks reach there.
        let from = match &each.iter().collect::<Vec<_>>()[..] {
            [(device, _)] => devices.get(*device).unwrap_or(&common),
            _ => &common,
        };
        entries.extend(stack_entries(&stack, &goals, &Rates { scores, ..from.clone() }));
    }
    for (device, goals) in grouped(&all, |g| g.case.update.machine.name.clone()) {
        let rates = devices.remove(&device).unwrap_or_default();
        entries.push(entry(&device, "any", &goals, rates, BTreeMap::new()));
    }
    entries.push(entry("any", "any", &all, common, BTreeMap::new()));
    Tables { version: version.to_string(), entries }
}

/// How much rates are held where they began when `rows` are fitted: the fewer the rows, the more.
fn hold(rows: usize) -> f64 {
    (40.0 / rows as f64).sqrt().clamp(0.3, 1.5)
}

/// Scores of attention went through memory in these: their kernels were not fused.
fn unfused(stack: &str) -> bool {
    matches!(stack, "megatron-deepspeed" | "megatron-2022")
}

/// Entries of one family: one per device, and one for devices that nobody measured it on.
fn stack_entries(stack: &str, goals: &[Goal<'_>], from: &Rates) -> Vec<Entry> {
    let mut goals = weighed(goals);
    let measured: Vec<f64> = goals.iter().map(|g| g.seconds).collect();
    let mut rates = fit(&goals, from, hold(goals.len()));
    let mut factors = BTreeMap::new();
    let versions: Vec<&str> = goals.iter().map(|g| g.case.asked.stack.as_str()).collect();
    if versions.iter().any(|v| *v != versions[0]) {
        // Rates and factors in turn.
        for _ in 0..2 {
            for (g, seconds) in goals.iter_mut().zip(&measured) {
                g.seconds = *seconds;
            }
            factors = effects(&goals, &rates);
            for g in &mut goals {
                g.seconds /= traits(g).sum(&factors).exp();
            }
            rates = fit(&goals, from, hold(goals.len()));
        }
    }
    let mut out = vec![];
    let each = grouped(&goals, |g| g.case.update.machine.name.clone());
    for (device, own) in &each {
        let own_rates =
            if each.len() == 1 { rates.clone() } else { fit(own, &rates, 2.0 * hold(own.len())) };
        out.push((device.clone(), own.clone(), own_rates));
    }
    out.push(("any".to_string(), goals.clone(), rates));
    out.into_iter()
        .map(|(device, own, rates)| entry(&device, stack, &own, rates, factors.clone()))
        .collect()
}

fn entry(
    device: &str,
    stack: &str,
    goals: &[Goal<'_>],
    rates: Rates,
    factors: BTreeMap<String, f64>,
) -> Entry {
    let mut errors: Vec<f64> = goals.iter().map(|g| g.off(&rates).exp_m1().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let rank = |q: f64| {
        errors.get(((errors.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(0.5)
    };
    let (median, p90) = (rank(0.5), rank(0.9));
    let mut from: Vec<&str> =
        goals.iter().map(|g| g.row.source.split([':', ' ']).next().unwrap_or("")).collect();
    from.sort_unstable();
    from.dedup();
    Entry {
        device: device.into(),
        stack: stack.into(),
        compute: Compute::Bf16,
        rows: goals.len(),
        from: from[..from.len().min(3)].join(", "),
        median,
        p90,
        rates,
        factors,
    }
}

fn grouped<'a>(
    goals: &[Goal<'a>],
    key: impl Fn(&Goal<'_>) -> String,
) -> BTreeMap<String, Vec<Goal<'a>>> {
    let mut out: BTreeMap<String, Vec<Goal<'a>>> = BTreeMap::new();
    for g in goals {
        out.entry(key(g)).or_default().push(*g);
    }
    out
}

/// The same with rows of sources that have many of them counting less.
fn weighed<'a>(goals: &[Goal<'a>]) -> Vec<Goal<'a>> {
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    let source = |g: &Goal<'_>| g.row.source.split(':').next().unwrap_or("").to_string();
    for g in goals {
        *counts.entry(source(g)).or_default() += 1.0;
    }
    let weight = |g: &Goal<'_>| MANY / counts[&source(g)].max(MANY);
    goals.iter().map(|g| Goal { weight: weight(g), ..*g }).collect()
}

fn traits(g: &Goal<'_>) -> Traits {
    g.case.traits(g.row)
}

/// Logarithms of factors by key: the mean of what is left, drawn to zero where rows are few.
fn effects(goals: &[Goal<'_>], rates: &Rates) -> BTreeMap<String, f64> {
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    let of: Vec<Vec<String>> = goals.iter().map(|g| traits(g).keys()).collect();
    for k in of.iter().flatten() {
        let next = keys.len();
        keys.entry(k.clone()).or_insert(next);
    }
    let left: Vec<f64> = goals.iter().map(|g| -g.off(rates)).collect();
    let mut weights = vec![1.0; goals.len()];
    let mut x = vec![0.0; keys.len()];
    for _ in 0..10 {
        let n = keys.len();
        let mut m = vec![vec![0.0; n + 1]; n];
        for ((ks, y), w) in of.iter().zip(&left).zip(&weights) {
            for a in ks {
                for b in ks {
                    m[keys[a]][keys[b]] += w;
                }
                m[keys[a]][n] += w * y;
            }
        }
        for (i, row) in m.iter_mut().enumerate() {
            row[i] += 0.5;
        }
        x = solved(m);
        for (w, (ks, y)) in weights.iter_mut().zip(of.iter().zip(&left)) {
            let off = (y - ks.iter().map(|k| x[keys[k]]).sum::<f64>()).abs();
            *w = 1.0 / f64::max(1.0, off / 0.08);
        }
    }
    keys.into_iter().map(|(k, i)| (k, x[i])).collect()
}
