//! Calibration tables fitted to measured rows.
//!
//! In: a table, which of its rows to take. Out: effects that all rows tell together, an entry per family of stacks and device with the
//! rates that they give it, and factors for what a family's versions, number types and models take more. Effects and
//! factors are found in turn.

use std::collections::BTreeMap;

use nrl_sim::effects::{self, Effects};
use nrl_sim::rates::Compute;
use nrl_sim::style::{family, version};
use nrl_sim::tables::{Entry, Tables, Traits};

use super::fit::{Goal, fit, goals};
use super::{Row, Table};
use crate::least::solved;

type Factors = BTreeMap<String, f64>;

/// Tables fitted to the rows of `table` that `take` accepts.
pub fn tables(table: &Table, name: &str, take: &dyn Fn(&Row) -> bool) -> Tables {
    let mut all: Vec<Goal<'_>> = goals(table).into_iter().filter(|g| take(g.row)).collect();
    let measured: Vec<f64> = all.iter().map(|g| g.seconds).collect();
    let mut effects = fit(&all, &Effects::new(), 14);
    let mut versions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for g in &all {
        let stack = &g.case.asked.stack;
        versions.entry(family(stack).to_string()).or_default().push(version(stack));
    }
    let several = |v: &Vec<&str>| v.iter().any(|x| *x != v[0]);
    let apart: Vec<String> =
        versions.iter().filter(|(_, v)| several(v)).map(|(f, _)| f.clone()).collect();
    let mut found: BTreeMap<String, Factors> = BTreeMap::new();
    for _ in 0..if apart.is_empty() { 0 } else { 2 } {
        for (g, seconds) in all.iter_mut().zip(&measured) {
            g.seconds = *seconds;
        }
        for stack in &apart {
            let own: Vec<Goal<'_>> =
                all.iter().filter(|g| family(&g.case.asked.stack) == stack).copied().collect();
            found.insert(stack.clone(), factors(&own, &effects));
        }
        for g in &mut all {
            if let Some(f) = found.get(family(&g.case.asked.stack)) {
                g.seconds /= traits(g).sum(f).exp();
            }
        }
        effects = fit(&all, &effects, 5);
    }
    let entries = grouped(&all, |g| {
        let style = g.case.style();
        (style.name(), style.device)
    });
    let entries = entries.into_iter().map(|((stack, device), own)| {
        let factors = found.get(family(&stack)).cloned().unwrap_or_default();
        entry(device, stack, &own, &effects, factors)
    });
    Tables { version: name.to_string(), entries: entries.collect(), effects: effects.clone() }
}

/// The entry of goals of one stack on one device, whose seconds are without their factors.
fn entry(
    device: String,
    stack: String,
    goals: &[Goal<'_>],
    effects: &Effects,
    factors: Factors,
) -> Entry {
    let rates = effects::rates(&goals[0].case.style(), effects);
    let mut errors: Vec<f64> = goals.iter().map(|g| g.off(&rates).exp_m1().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let rank = |q: f64| errors[((errors.len() as f64 - 1.0) * q).round() as usize];
    let (median, p90) = (rank(0.5), rank(0.9));
    let mut from: Vec<&str> =
        goals.iter().map(|g| g.row.source.split([':', ' ']).next().unwrap_or("")).collect();
    from.sort_unstable();
    from.dedup();
    Entry {
        device,
        stack,
        compute: Compute::Bf16,
        rows: goals.len(),
        from: from[..from.len().min(3)].join(", "),
        median,
        p90,
        rates,
        factors,
    }
}

fn grouped<'a, K: Ord>(
    goals: &[Goal<'a>],
    key: impl Fn(&Goal<'_>) -> K,
) -> BTreeMap<K, Vec<Goal<'a>>> {
    let mut out: BTreeMap<K, Vec<Goal<'a>>> = BTreeMap::new();
    for g in goals {
        out.entry(key(g)).or_default().push(*g);
    }
    out
}

fn traits(g: &Goal<'_>) -> Traits {
    g.case.traits(g.row)
}

/// How many rows a factor is held at zero with: those of one model on one device in one version are nearly rows of their own.
fn hold(key: &str) -> f64 {
    let narrow = key.rsplit_once(" on ").is_some_and(|(_, device)| device.contains(' '));
    if narrow { 2.0 } else { 0.5 }
}

/// Logarithms of factors by key: the mean of what is left, drawn to zero where rows are few.
fn factors(goals: &[Goal<'_>], effects: &Effects) -> BTreeMap<String, f64> {
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    let of: Vec<Vec<String>> = goals.iter().map(|g| traits(g).keys()).collect();
    for k in of.iter().flatten() {
        let next = keys.len();
        keys.entry(k.clone()).or_insert(next);
    }
    let left: Vec<f64> =
        goals.iter().map(|g| -g.off(&effects::rates(&g.case.style(), effects))).collect();
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
        for (key, i) in &keys {
            m[*i][*i] += hold(key);
        }
        x = solved(m);
        for (w, (ks, y)) in weights.iter_mut().zip(of.iter().zip(&left)) {
            let off = (y - ks.iter().map(|k| x[keys[k]]).sum::<f64>()).abs();
            *w = 1.0 / f64::max(1.0, off / 0.08);
        }
    }
    keys.into_iter().map(|(k, i)| (k, x[i])).collect()
}
