//! Steps as lines of a verdict, in the words and shape of other tables.
//!
//! In: a report. Out: a line per measured number and per row that cannot be said, summaries by version and over all versions.

use std::collections::BTreeMap;

use super::{Judged, Report};
use crate::rows::{Line, Summary, Verdict};

/// The verdict on rows whose version or source contains `only`.
pub fn verdict(report: &Report, only: Option<&str>) -> Verdict {
    let wanted = |text: &str| only.is_none_or(|o| text.contains(o));
    let mut lines = vec![];
    let mut groups: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for j in report.judged.iter().filter(|j| wanted(&j.row.version) || wanted(&j.row.source)) {
        for line in said(j) {
            for version in [j.row.version.clone(), "all versions".to_string()] {
                let key = (format!("steps, {version}"), line.metric.clone());
                groups.entry(key).or_default().push(line.error.unwrap_or(0.0).abs());
            }
            lines.push(line);
        }
    }
    let rows = lines.iter().filter(|l| l.metric == "step").count();
    if only.is_none() {
        lines.extend(report.left_out.iter().map(|(line, why)| not_said(*line, why)));
    }
    let summaries =
        groups.into_iter().map(|((source, metric), errors)| summary(source, metric, errors));
    let summaries = summaries.collect();
    let not_said = lines.iter().filter(|l| l.why.is_some()).count();
    Verdict { lines, summaries, said: rows, not_said }
}

fn said(j: &Judged) -> Vec<Line> {
    let provenance = Some(j.source);
    let of = |c: &super::Compared| Line {
        line: j.line as u64,
        source: format!("{} {}", j.row.version, j.row.source),
        model: j.row.model.clone(),
        metric: c.phase.to_string(),
        unit: "s".into(),
        measured: c.measured,
        predicted: Some(c.predicted),
        error: Some(c.error()),
        provenance,
        spread: None,
        why: None,
    };
    j.compared.iter().map(of).collect()
}

fn not_said(line: usize, why: &str) -> Line {
    Line {
        line: line as u64,
        source: String::new(),
        model: String::new(),
        metric: "step".into(),
        unit: "s".into(),
        measured: 0.0,
        predicted: None,
        error: None,
        provenance: None,
        spread: None,
        why: Some(why.to_string()),
    }
}

fn summary(source: String, metric: String, mut errors: Vec<f64>) -> Summary {
    errors.sort_by(f64::total_cmp);
    let rank = |q: f64| errors[((errors.len() as f64 - 1.0) * q).round() as usize];
    Summary {
        rows: errors.len(),
        median: rank(0.5),
        p90: rank(0.9),
        max: rank(1.0),
        ranking: None,
        source,
        metric,
    }
}
