//! Memory rows of the open table against predictions, each through recipe, compiler and plan.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use std::collections::BTreeMap;
use std::path::Path;

use nrl_planner::rows::{Table, is_memory, read};

/// Errors in percent by source and metric; and rows that cannot be said, with the reason.
type Errors = BTreeMap<(String, String), Vec<(f64, String)>>;

fn errors() -> Option<(Errors, BTreeMap<String, usize>)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/planner/validation_open.csv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("{} is not here: nothing is compared", path.display());
        return None;
    };
    let rows = read(&text).expect("a table").into_iter().filter(|r| is_memory(&r.metric)).collect();
    let table = Table::new(rows);
    let (mut out, mut none): (Errors, BTreeMap<String, usize>) = Default::default();
    for (row, case) in table.rows.iter().zip(&table.cases) {
        let source = row.source.split([' ', '/']).next().unwrap_or("").to_string();
        let said = match case {
            Ok(i) => {
                nrl_planner::rows::bytes_of(row, &table.all[*i]).ok_or("no figure".to_string())
            }
            Err(why) => Err(why.clone()),
        };
        match said {
            Ok(x) if row.value > 0.0 => {
                let error = 100.0 * (x / row.value - 1.0);
                let what = format!(
                    "{} {} {} seq {} mbs {} tp {} pp {} {}: {} measured, {x:.2}",
                    row.task,
                    row.model,
                    row.gpu,
                    row.seq.unwrap_or(0.0),
                    row.mbs.unwrap_or(0.0),
                    row.tp.unwrap_or(1),
                    row.pp.unwrap_or(1),
                    row.recompute,
                    row.value
                );
                let detail = case
                    .as_ref()
                    .ok()
                    .map(|i| {
                        table.all[*i]
                            .bytes
                            .values()
                            .map(|b| b.peak.to_string())
                            .collect::<Vec<_>>()
                            .join(" | ")
                    })
                    .unwrap_or_default();
                out.entry((source, row.metric.clone()))
                    .or_default()
                    .push((error, format!("{what} {detail}")));
            }
            Ok(_) => {}
            Err(why) => {
                *none.entry(format!("{source} {} {}: {why}", row.metric, row.model)).or_default() +=
                    1
            }
        }
    }
    Some((out, none))
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
    sorted[at - 1]
}

#[test]
fn peaks_and_activations_of_the_open_rows() {
    let Some((errors, none)) = errors() else { return };
    let mut all = vec![];
    for ((source, metric), list) in &errors {
        let mut e: Vec<f64> = list.iter().map(|(x, _)| x.abs()).collect();
        e.sort_by(f64::total_cmp);
        println!(
            "{source:20} {metric:34} n {:3}  median {:5.2}  p90 {:5.2}  max {:5.2}",
            e.len(),
            quantile(&e, 0.5),
            quantile(&e, 0.9),
            e[e.len() - 1]
        );
        for (x, what) in list.iter().filter(|(x, _)| x.abs() > 6.0) {
            println!("    {x:+6.1} % {what}");
        }
        if metric.contains("peak") || metric.contains("activation") {
            all.extend(e);
        }
    }
    for (why, n) in &none {
        println!("{n:3} rows not said: {why}");
    }
    all.sort_by(f64::total_cmp);
    let (median, p90) = (quantile(&all, 0.5), quantile(&all, 0.9));
    println!("{} rows: median {median:.2} %, p90 {p90:.2} %", all.len());
    assert!(median <= 5.0 && p90 <= 12.0, "median {median:.2} %, p90 {p90:.2} %");
    for ((source, metric), list) in
        errors.iter().filter(|((s, m), _)| s == "Korthikanti" && m.contains("activation"))
    {
        let worst = list.iter().map(|(x, _)| x.abs()).fold(0.0, f64::max);
        assert!(worst <= 3.0, "{source} {metric}: {worst:.2} %");
    }
}
