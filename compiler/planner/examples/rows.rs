//! Errors of predictions on a table of measured runs, by source: `rows TABLE.csv [SOURCE]`.

use nrl_planner::rows::{Table, fit, read};
use nrl_sim::rates::Rates;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_default();
    let only = args.next().unwrap_or_default();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let rows: Vec<_> =
        read(&text).unwrap_or_default().into_iter().filter(|r| r.source.contains(&only)).collect();
    let start = std::time::Instant::now();
    let table = Table::new(rows);
    println!(
        "{} rows, {} cases, {:.1} s",
        table.rows.len(),
        table.all.len(),
        start.elapsed().as_secs_f64()
    );
    let mut why: std::collections::BTreeMap<&str, usize> = Default::default();
    for e in table.cases.iter().filter_map(|c| c.as_ref().err()) {
        *why.entry(e).or_default() += 1;
    }
    for (e, n) in why {
        println!("  {n} not said: {e}");
    }
    let goals = fit::goals(&table);
    let mut sources: Vec<String> = goals.iter().map(|g| name(&g.row.source)).collect();
    sources.sort();
    sources.dedup();
    for source in sources {
        let of: Vec<&fit::Goal<'_>> =
            goals.iter().filter(|g| name(&g.row.source) == source).collect();
        let half: Vec<&fit::Goal<'_>> = of.iter().step_by(2).copied().collect();
        let other: Vec<&fit::Goal<'_>> = of.iter().skip(1).step_by(2).copied().collect();
        let before = report(&of, &Rates::default());
        let rates = fit::fit(&half, &Rates::default());
        println!(
            "{source}: {} rows  default {before}  fitted on half {}  on the other {}",
            of.len(),
            report(&half, &rates),
            report(&other, &rates)
        );
        println!("    {rates:?}");
    }
    println!("{:.1} s", start.elapsed().as_secs_f64());
}

fn name(source: &str) -> String {
    source
        .split(':')
        .next()
        .unwrap_or("")
        .chars()
        .take(60)
        .collect::<String>()
        .split("benchmark-")
        .next()
        .unwrap_or("")
        .to_string()
}

fn report(goals: &[&fit::Goal<'_>], rates: &Rates) -> String {
    let mut errors: Vec<f64> =
        goals.iter().map(|g| (g.case.time(rates).seconds / g.seconds - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let at = |q: f64| {
        errors.get(((errors.len() as f64 - 1.0) * q) as usize).copied().unwrap_or(0.0) * 100.0
    };
    format!("{:.1}/{:.1}/{:.1}", at(0.5), at(0.9), at(1.0))
}
