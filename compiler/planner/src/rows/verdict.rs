//! How far predictions are off: per row, per source and metric, and in the order of layouts.
//!
//! In: a table and the rates to use. Out: verdicts as plain data, and as text. Errors are `predicted / measured - 1`.

use std::collections::BTreeMap;
use std::fmt::Write;

use nrl_driver::Timed;
use nrl_sim::forecast::Source;
use nrl_sim::tables::Tables;
use serde::Serialize;

use super::fit::goals;
use super::{Row, Table, calibrate, is_memory, metric};

/// A measured row and what is said of it.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Line in the table.
    pub line: u64,
    pub source: String,
    pub model: String,
    pub metric: String,
    pub unit: String,
    pub measured: f64,
    /// None if the row cannot be said.
    pub predicted: Option<f64>,
    /// `predicted / measured - 1`.
    pub error: Option<f64>,
    /// Where the rates come from; bytes are counted.
    pub provenance: Option<Source>,
    /// Share by which nine of ten such predictions are off at most; none for bytes.
    pub spread: Option<f64>,
    /// Why there is no prediction.
    pub why: Option<String>,
}

/// Errors of one metric of one source; shares, not percent.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub source: String,
    pub metric: String,
    pub rows: usize,
    pub median: f64,
    pub p90: f64,
    pub max: f64,
    /// Of pairs of layouts of one model on as many devices that differ by more than 5 %: the share that is
    /// put in the right order, and the number of such pairs.
    pub ranking: Option<(f64, usize)>,
}

impl Summary {
    /// Is the metric one of seconds, or of a rate?
    pub fn is_time(&self) -> bool {
        !is_memory(&self.metric)
    }
}

/// A whole table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    pub lines: Vec<Line>,
    pub summaries: Vec<Summary>,
    pub said: usize,
    pub not_said: usize,
}

impl Verdict {
    /// Predicts every row with the nearest rates of `tables`.
    pub fn of(table: &Table, tables: &Tables) -> Verdict {
        let lines = table.rows.iter().zip(&table.cases);
        let lines = lines.map(|(row, case)| line(table, row, case, tables)).collect();
        Verdict::summed(table, lines)
    }

    /// Predicts the rows of each publisher with rates fitted to the rows of all others.
    pub fn left_out(table: &Table) -> Verdict {
        let mut publishers: Vec<&str> = goals(table).iter().map(|g| g.row.publisher()).collect();
        publishers.sort_unstable();
        publishers.dedup();
        let tables: BTreeMap<&str, Tables> = publishers
            .iter()
            .map(|p| (*p, calibrate::tables(table, "others", &|r| r.publisher() != *p)))
            .collect();
        // Rows of bytes alone ask for no rates.
        let none = Tables::default();
        let lines = table.rows.iter().zip(&table.cases).map(|(row, case)| {
            line(table, row, case, tables.get(row.publisher()).unwrap_or(&none))
        });
        Verdict::summed(table, lines.collect())
    }

    fn summed(table: &Table, lines: Vec<Line>) -> Verdict {
        let mut groups: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
        for (i, l) in lines.iter().enumerate().filter(|(_, l)| l.error.is_some()) {
            groups.entry((origin(&l.source), l.metric.clone())).or_default().push(i);
        }
        let summaries = groups
            .into_iter()
            .map(|((source, metric), at)| summary(table, &lines, source, metric, &at))
            .collect();
        let said = lines.iter().filter(|l| l.predicted.is_some()).count();
        Verdict { not_said: lines.len() - said, said, summaries, lines }
    }

    /// This verdict and then the other.
    pub fn join(mut self, other: Verdict) -> Verdict {
        self.lines.extend(other.lines);
        self.summaries.extend(other.summaries);
        self.said += other.said;
        self.not_said += other.not_said;
        self
    }

    /// The summaries, the rows that are furthest off, and the rows that cannot be said with their reasons.
    pub fn text(&self, every: bool) -> String {
        let mut out = String::new();
        if every {
            for l in &self.lines {
                let _ = writeln!(out, "{}", one(l));
            }
            out.push('\n');
        }
        let _ = writeln!(
            out,
            "{:<58} {:<21} {:>5} {:>8} {:>8} {:>8}  ranking",
            "source", "metric", "rows", "median", "p90", "max"
        );
        for s in &self.summaries {
            let ranking = s.ranking.map_or(String::new(), |(r, n)| format!("{r:.2} of {n}"));
            let _ = writeln!(
                out,
                "{:<58} {:<21} {:>5} {:>6.1} % {:>6.1} % {:>6.1} %  {ranking}",
                s.source,
                s.metric,
                s.rows,
                100.0 * s.median,
                100.0 * s.p90,
                100.0 * s.max
            );
        }
        let mut why: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for l in &self.lines {
            if let Some(w) = &l.why {
                why.entry(w).or_default().push(l.line);
            }
        }
        let _ = writeln!(out, "\n{} rows predicted, {} not", self.said, self.not_said);
        for (w, lines) in why {
            let some: Vec<String> = lines.iter().take(4).map(u64::to_string).collect();
            let more = if lines.len() > 4 { ", .." } else { "" };
            let _ = writeln!(out, "  {:>4}  {w} (line {}{more})", lines.len(), some.join(", "));
        }
        out
    }
}

/// `vTrain data/ground_truth_single.csv`: the part of a source that its rows share.
fn origin(source: &str) -> String {
    let start = source.split(':').next().unwrap_or("");
    let start = start.split("benchmark-").next().unwrap_or("");
    start.trim_end_matches('/').chars().take(58).collect()
}

fn line(table: &Table, row: &Row, case: &Result<usize, String>, tables: &Tables) -> Line {
    let mut line = Line {
        line: row.line,
        source: row.source.clone(),
        model: row.model.clone(),
        metric: row.metric.clone(),
        unit: row.unit.clone(),
        measured: row.value,
        predicted: None,
        error: None,
        provenance: None,
        spread: None,
        why: None,
    };
    let case = match case {
        Ok(i) => &table.all[*i],
        Err(why) => {
            line.why = Some(why.clone());
            return line;
        }
    };
    let (asked, Timed { job, machine, .. }) = (&case.asked, &case.update);
    let found = tables.find(&machine.name, &asked.stack, asked.compute).near(job, &machine.name);
    let took = case.time(&found.rates);
    match metric::says(row, case, &took, &found.rates) {
        Some(says) => {
            line.predicted = Some(says.value);
            line.error = Some(says.value / row.value - 1.0);
            let bytes = says.seconds.is_none();
            line.spread = (!bytes).then_some(found.spread);
            line.provenance = Some(if bytes { Source::Counted } else { found.source });
        }
        None => line.why = Some(format!("nothing predicts `{}`", row.metric)),
    }
    line
}

fn one(l: &Line) -> String {
    let head = format!("{:>5}  {:<28} {:<21}", l.line, clip(&l.model, 28), l.metric);
    match (l.predicted, l.error, &l.why) {
        (Some(p), Some(e), _) => format!(
            "{head} measured {:>10.3} predicted {p:>10.3} {:<10} {:>+6.1} %  {}",
            l.measured,
            l.unit,
            100.0 * e,
            l.provenance.map_or("", Source::name)
        ),
        (_, _, Some(why)) => format!("{head} not said: {why}"),
        _ => head,
    }
}

fn clip(text: &str, n: usize) -> String {
    text.chars().take(n).collect()
}

fn summary(table: &Table, lines: &[Line], source: String, metric: String, at: &[usize]) -> Summary {
    let mut errors: Vec<f64> = at.iter().filter_map(|i| lines[*i].error).map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let rank = |q: f64| errors[((errors.len() as f64 - 1.0) * q).round() as usize];
    Summary {
        rows: at.len(),
        median: rank(0.5),
        p90: rank(0.9),
        max: rank(1.0),
        ranking: ranking(table, lines, at),
        source,
        metric,
    }
}

/// The order of pairs of rows: the same model, devices, batch and length, measured more than 5 % apart.
fn ranking(table: &Table, lines: &[Line], at: &[usize]) -> Option<(f64, usize)> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for i in at {
        let r = &table.rows[*i];
        let key = format!(
            "{} {:?} {:?} {:?} {} {:?} {:?} {:?} {} {}",
            r.model,
            r.layers,
            r.hidden,
            r.heads,
            r.gpu,
            r.gpus,
            r.gbs,
            r.seq,
            r.precision,
            r.framework
        );
        groups.entry(key).or_default().push(*i);
    }
    let (mut right, mut all) = (0, 0);
    for rows in groups.values() {
        for (n, a) in rows.iter().enumerate() {
            for b in &rows[n + 1..] {
                let (x, y) = (&lines[*a], &lines[*b]);
                if x.measured.max(y.measured) / x.measured.min(y.measured) <= 1.05 {
                    continue;
                }
                let (Some(p), Some(q)) = (x.predicted, y.predicted) else { continue };
                all += 1;
                right += usize::from((p < q) == (x.measured < y.measured));
            }
        }
    }
    (all > 0).then(|| (right as f64 / all as f64, all))
}
