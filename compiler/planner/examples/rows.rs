//! Errors of predictions on a table of measured runs: `rows TABLE.csv WHAT [TEXT]`, where WHAT is `half` (fitted on half of
//! the runs, tested on the others), `out` (each source tested with tables of the others), `all` (fitted and tested
//! on all; written to `TEXT`).

use std::collections::BTreeSet;
use std::time::Instant;

use nrl_planner::rows::{Row, Table, Verdict, calibrate, fit, is_memory, read};
use nrl_sim::tables::Tables;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map_or("", String::as_str);
    let text = std::fs::read_to_string(arg(0)).unwrap_or_default();
    let mut rows = read(&text).unwrap_or_default();
    rows.retain(|r| !is_memory(&r.metric));
    let start = Instant::now();
    let table = Table::new(rows);
    println!("{} cases, {:.0} s", table.all.len(), start.elapsed().as_secs_f64());
    match arg(1) {
        "half" => {
            let tables = calibrate::tables(&table, "half", &|r: &Row| fit::half(r));
            show(&table, &tables, arg(2), &|r| !fit::half(r));
        }
        "out" => {
            let sources: BTreeSet<String> = table.rows.iter().map(|r| group(&r.source)).collect();
            for s in sources.iter().filter(|s| s.contains(arg(2))) {
                let tables = calibrate::tables(&table, "out", &|r: &Row| group(&r.source) != *s);
                show(&table, &tables, "", &|r| group(&r.source) == *s);
            }
        }
        _ => {
            let tables = calibrate::tables(&table, "1", &|_| true);
            show(&table, &tables, arg(3), &|_| true);
            if !arg(2).is_empty() {
                let json = serde_json::to_string_pretty(&tables).unwrap_or_default();
                std::fs::write(arg(2), json + "\n").unwrap_or_default();
            }
        }
    }
    println!("{:.0} s", start.elapsed().as_secs_f64());
}

fn group(source: &str) -> String {
    source.split([':', ' ']).next().unwrap_or("").to_string()
}

fn show(table: &Table, tables: &Tables, every: &str, want: &dyn Fn(&Row) -> bool) {
    let mut verdict = Verdict::of(table, tables);
    let lines = verdict.lines.iter().zip(&table.rows);
    let keep: Vec<bool> = lines.map(|(_, r)| want(r)).collect();
    verdict = verdict.of_lines(table, &keep);
    print!("{}", verdict.text(false));
    for l in &verdict.lines {
        if let (false, true, Some(e)) = (every.is_empty(), l.source.contains(every), l.error) {
            println!("{} {} {} {:.3} {:+.1} %", l.line, l.model, l.metric, l.measured, 100.0 * e);
        }
    }
}
