//! Terms of the memory of rows by line: `terms TABLE.csv LINE..`.

use nrl_planner::rows::{Table, read};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = args.first().and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default();
    let mut rows = read(&text).unwrap_or_default();
    rows.retain(|r| args[1..].contains(&r.line.to_string()));
    let table = Table::new(rows);
    for (row, case) in table.rows.iter().zip(&table.cases) {
        let Ok(i) = case else {
            println!("{} {case:?}", row.line);
            continue;
        };
        println!("{} {} {} measured {}", row.line, row.model, row.metric, row.value);
        println!("{}", table.all[*i].asked.files["r.nrl"]);
        for (name, b) in &table.all[*i].bytes {
            println!("  {name} stage {} kept {:.2}", b.peak.stage, b.kept / 1073741824.0);
            for t in &b.peak.terms {
                println!("    {:<14} {:8.2} GiB  {}", t.name, t.bytes / 1073741824.0, t.how);
            }
        }
    }
}
