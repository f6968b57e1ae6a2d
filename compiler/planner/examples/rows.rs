//! What `nrlc validate` prints, without the rest of the program: `rows TABLE.csv [half] [SOURCE]`.

use nrl_planner::rows::{Row, Table, Verdict, fit, read};
use nrl_sim::tables::Tables;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = args.first().and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default();
    let half = args.iter().any(|a| a == "half");
    let every = args.iter().any(|a| a == "all");
    let only = args.iter().skip(1).find(|a| *a != "half" && *a != "all").cloned();
    let mut rows: Vec<Row> = read(&text).unwrap_or_default();
    rows.retain(|r| only.as_ref().is_none_or(|o| r.source.contains(o.as_str())));
    let tables = Tables::shipped();
    let verdict = if half {
        let fitted = fit::tables(&Table::new(rows.clone()), "half", &fit::half).entries;
        rows.retain(|r| !fit::half(r));
        Verdict::of(&Table::new(rows), &tables.with(fitted))
    } else {
        Verdict::of(&Table::new(rows), &tables)
    };
    print!("{}", verdict.text(every));
}
