//! Calibration tables fitted to measured rows.
//!
//! In: a table, which of its rows to take. Out: effects that all rows tell together, an entry per family of stacks and device with the
//! rates that they give it, and the runs themselves with what rates leave unexplained of each (`nrl_sim::nearby`). What versions, number types
//! and models of a family with several versions take more is kept out of its effects: effects and runs are found in turn.

use std::collections::BTreeMap;

use nrl_sim::effects::{self, Effects};
use nrl_sim::nearby::{self, Run, Setting};
use nrl_sim::rates::Compute;
use nrl_sim::style::{family, version};
use nrl_sim::tables::{Entry, Tables};

use super::fit::{Goal, fit, goals, once};
use super::{Row, Table};
use crate::least::solved;

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
    for _ in 0..if apart.is_empty() { 0 } else { 2 } {
        for (g, seconds) in all.iter_mut().zip(&measured) {
            g.seconds = *seconds;
        }
        let mut found: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
        for stack in &apart {
            found.insert(stack, runs(&of_family(&all, stack), &effects));
        }
        for g in &mut all {
            if let Some(runs) = found.get(family(&g.case.asked.stack)) {
                g.seconds /= nearby::said(runs, &g.case.setting()).what.exp();
            }
        }
        effects = fit(&all, &effects, 5);
    }
    let entries = grouped(&all, |g| {
        let style = g.case.style();
        (style.name(), style.device)
    });
    let entries = entries.into_iter();
    let entries = entries.map(|((stack, device), own)| entry(device, stack, &own, &effects));
    let entries = entries.collect();
    for (g, seconds) in all.iter_mut().zip(&measured) {
        g.seconds = *seconds;
    }
    let families = versions.into_keys();
    let runs = families.map(|f| (f.to_lowercase(), runs(&of_family(&all, &f), &effects))).collect();
    Tables { version: name.to_string(), entries, effects, runs }
}

fn of_family<'a>(goals: &[Goal<'a>], stack: &str) -> Vec<Goal<'a>> {
    goals.iter().filter(|g| family(&g.case.asked.stack) == stack).copied().collect()
}

/// The entry of goals of one stack on one device.
fn entry(device: String, stack: String, goals: &[Goal<'_>], effects: &Effects) -> Entry {
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

/// Deviation of a run that is repeated, as a logarithm, and from where on what is left of a run counts in proportion.
const AGAIN: f64 = 0.03;
const FAR: f64 = 0.05;

/// Goals of one family as runs whose pulls together say what rates leave unexplained: kriging with what runs may differ by
/// when they are repeated, which is more for those that are far from what the others say (an M-estimator by
/// weights that are found again; Huber 1964).
fn runs(goals: &[Goal<'_>], effects: &Effects) -> Vec<Run> {
    let goals = once(goals);
    let settings: Vec<Setting> = goals.iter().map(|g| g.case.setting()).collect();
    let left: Vec<f64> =
        goals.iter().map(|g| -g.off(&effects::rates(&g.case.style(), effects))).collect();
    let of = |a: &Setting, b: &Setting| a.shares(b) + a.lies_by(b);
    let alike: Vec<Vec<f64>> =
        settings.iter().map(|a| settings.iter().map(|b| of(a, b)).collect()).collect();
    let mut may: Vec<f64> = goals.iter().map(|g| AGAIN * AGAIN / g.weight).collect();
    let mut pulls = vec![];
    for _ in 0..4 {
        let mut m = alike.clone();
        for (i, row) in m.iter_mut().enumerate() {
            row[i] += may[i];
            row.push(left[i]);
        }
        pulls = solved(m);
        for (i, may) in may.iter_mut().enumerate() {
            let said: f64 = alike[i].iter().zip(&pulls).map(|(k, p)| k * p).sum();
            let far = ((left[i] - said).abs() / FAR).max(1.0);
            *may = AGAIN * AGAIN / goals[i].weight * far;
        }
    }
    settings.into_iter().zip(pulls).map(|(setting, pull)| Run { setting, pull }).collect()
}
