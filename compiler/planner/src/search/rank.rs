//! The best of many layouts: trainers and generators put together, ranked, and the front of time and memory.
//!
//! In: seconds and bytes of layouts on the mesh that trains. Out: what is shown, each line from a forecast of
//! its own.

use std::collections::{BTreeMap, BTreeSet};

use super::exact::{Exact, Line};
use super::layout::Layout;
use super::screen::Seen;
use super::{Counts, Found, Goal, SearchOptions};
use crate::edit::Differs;
use nrl_driver::{Compiled, each};

/// Puts together what a search found.
pub fn found(
    exact: &Exact<'_>,
    how: &SearchOptions,
    base: &Compiled,
    current: Line,
    mut seen: Vec<Seen>,
    mut counts: Counts,
) -> Found {
    seen.sort_by(|a, b| {
        before(how.goal, (a.seconds, a.bytes), (b.seconds, b.bytes))
            .then_with(|| a.layout.cmp(&b.layout))
    });
    let wanted = wanted(exact, how, &seen);
    counts.compiled += wanted.len();
    let mut lines: Vec<Line> = vec![];
    for line in each(&wanted, &|l: &Layout| exact.of(l)) {
        match line {
            Ok(line) => lines.push(line),
            Err(code) => *counts.left_out.entry(code).or_default() += 1,
        }
    }
    let all = lines.len();
    lines.retain(|l| l.fits);
    if all > lines.len() {
        let why = "the budgets of the recipe, or the generator beside it";
        *counts.left_out.entry(why.into()).or_default() += all - lines.len();
    }
    if current.fits && !lines.iter().any(|l| l.layout == current.layout) {
        lines.push(current.clone());
    }
    lines.sort_by(|a, b| {
        before(how.goal, (a.seconds, a.bytes), (b.seconds, b.bytes))
            .then_with(|| a.layout.cmp(&b.layout))
    });
    let front = front(&lines);
    let recipe = exact.screen.recipe;
    // The whole check, of a few more than are shown.
    lines.truncate(how.top.max(1) + 4);
    let checked = each(&lines, &|l: &Line| recipe.check(written(exact, &l.layout)));
    let mut ranked = vec![];
    for (line, errors) in lines.into_iter().zip(checked) {
        match errors.into_iter().find(|e| !recipe.errors.contains(e)) {
            Some(code) => *counts.left_out.entry(code).or_default() += 1,
            None if ranked.len() < how.top.max(1) => ranked.push(line),
            None => {}
        }
    }
    let best = ranked.first().filter(|l| l.layout != current.layout);
    let old = &recipe.text;
    let text = best.map_or(old.clone(), |l| written(exact, &l.layout));
    let (old_lines, new_lines) = changed(old, &text);
    let clusters = base.facts.clusters.iter().filter(|x| x.device.gpu && x.part_of.is_none());
    let machine = nrl_driver::machine_of(base, exact.screen.sites.train);
    Found {
        recipe: base.program.name.clone(),
        device: machine.map_or(String::new(), |m| m.name),
        devices: clusters.map(|x| x.ranks).sum(),
        memory: exact.screen.space.facts.memory,
        goal: how.goal,
        counts,
        pinned: exact.screen.sites.pins.iter().cloned().collect(),
        current,
        ranked,
        front,
        old_lines,
        new_lines,
        text,
        seen,
    }
}

/// The recipe's text with a layout.
fn written(exact: &Exact<'_>, l: &Layout) -> String {
    let split = exact.screen.space.split(l);
    exact.screen.sites.apply(l, split.as_deref())
}

fn before(goal: Goal, a: (f64, f64), b: (f64, f64)) -> std::cmp::Ordering {
    let (time, memory) = (a.0.total_cmp(&b.0), a.1.total_cmp(&b.1));
    match goal {
        Goal::Time => time.then(memory),
        Goal::Memory => memory.then(time),
    }
}

/// Layouts worth a forecast: the best trainers and those of the front, each with the best generators.
fn wanted(exact: &Exact<'_>, how: &SearchOptions, seen: &[Seen]) -> Vec<Layout> {
    let space = exact.screen.space;
    let mut pools: BTreeMap<Option<usize>, Vec<&Seen>> = BTreeMap::new();
    for s in seen {
        pools.entry(s.layout.nodes).or_default().push(s);
    }
    let shared = pools.len() == 1;
    let most = if shared { how.top.max(1) * 2 } else { how.top.max(4) / 2 };
    let mut out: BTreeSet<Layout> = BTreeSet::new();
    for all in pools.values() {
        // Of layouts that take the same the plainest is enough.
        let mut distinct = all.clone();
        distinct.dedup_by(|b, a| (a.seconds, a.bytes) == (b.seconds, b.bytes));
        let mut trainers: Vec<&Layout> = distinct.iter().take(most).map(|s| &s.layout).collect();
        trainers.extend(points(all).into_iter().take(12).map(|s| &s.layout));
        let Some(first) = trainers.first() else { continue };
        let samplers: Vec<Layout> =
            space.sampling().into_iter().map(|rtp| Layout { rtp, ..(*first).clone() }).collect();
        let mut tried: Vec<(Option<usize>, f64, f64)> = vec![];
        if samplers.len() > 1 {
            let lines = each(&samplers, &|l: &Layout| exact.of(l));
            for line in lines.into_iter().flatten().filter(|l| l.fits) {
                tried.push((line.layout.rtp, line.seconds, line.bytes));
            }
        } else {
            tried.extend(samplers.iter().map(|l| (l.rtp, 0.0, 0.0)));
        }
        tried.sort_by(|a, b| before(how.goal, (a.1, a.2), (b.1, b.2)));
        for (i, l) in trainers.iter().enumerate() {
            // Other generators beside the best few trainers alone.
            let number = if i < 3 { 3 } else { 1 };
            for (rtp, ..) in tried.iter().take(number) {
                out.insert(Layout { rtp: *rtp, ..(*l).clone() });
            }
        }
    }
    let mut out: Vec<Layout> = out.into_iter().collect();
    stale(exact, how, seen, &mut out);
    out
}

/// The best layout with other ages of weights, where they may change and the recipe has any.
fn stale(exact: &Exact<'_>, how: &SearchOptions, seen: &[Seen], out: &mut Vec<Layout>) {
    let sites = exact.screen.sites;
    let (Some(own), Some(best)) = (sites.current.staleness, seen.first()) else { return };
    if how.keep_maths || sites.pins.contains("staleness") {
        return;
    }
    for n in [1, 2, 4, 8].into_iter().filter(|n| *n != own) {
        out.push(Layout { staleness: Some(n), ..best.layout.clone() });
    }
}

/// Those that no other beats in both.
fn points<'s>(all: &[&'s Seen]) -> Vec<&'s Seen> {
    let mut sorted: Vec<&Seen> = all.to_vec();
    sorted.sort_by(|a, b| before(Goal::Time, (a.seconds, a.bytes), (b.seconds, b.bytes)));
    let mut least = f64::INFINITY;
    sorted.retain(|s| {
        let better = s.bytes < least;
        least = least.min(s.bytes);
        better
    });
    sorted
}

/// The front of lines, the fastest first.
fn front(lines: &[Line]) -> Vec<Line> {
    let mut sorted: Vec<&Line> = lines.iter().collect();
    sorted.sort_by(|a, b| before(Goal::Time, (a.seconds, a.bytes), (b.seconds, b.bytes)));
    let mut least = f64::INFINITY;
    let mut out = vec![];
    for l in sorted {
        // Less than one part in a hundred is no gain.
        if l.bytes < 0.99 * least {
            least = l.bytes;
            out.push(l.clone());
        }
    }
    out
}

/// Lines that differ: what is there, and what would be.
pub fn changed(old: &str, new: &str) -> (Vec<String>, Vec<String>) {
    let (mut gone, mut come) = (vec![], vec![]);
    for line in crate::edit::lines(old, new) {
        match line {
            Differs::Gone(_, text) => gone.push(text.to_string()),
            Differs::Come(_, text) => come.push(text.to_string()),
        }
    }
    (gone, come)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_differ_are_shown() {
        let old = "a\nb\nc\nd\n";
        let new = "a\nx\nc\nd\ne\n";
        let (gone, come) = changed(old, new);
        assert_eq!(gone, ["b"]);
        assert_eq!(come, ["x", "e"]);
    }
}
