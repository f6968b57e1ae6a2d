//! A run's own numbers beside the predicted ones.
//!
//! In: a `metrics.jsonl` of nrlc, or JSON lines with the timings of NeMo RL. Out: medians of the steps by phase, and
//! how far the prediction is off.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Answer, Session};
use crate::report::words::seconds;
use crate::runs::NAMES;

impl Session<'_> {
    pub(super) fn compare(&self, file: &str) -> Answer {
        if file.is_empty() {
            return Answer::failed("write `compare runs/3/metrics.jsonl`");
        }
        let text = match self.files.read(file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(why) => return Answer::failed(format!("cannot read {file}: {why}")),
        };
        let measured = medians(&text);
        if measured.is_empty() {
            let known: Vec<&str> = NAMES.iter().flat_map(|(_, all)| all.iter().copied()).collect();
            let said = format!("{file} has no seconds of steps: one of {}", known.join(", "));
            return Answer::failed(said);
        }
        let mut out = format!("{:<10} {:>10} {:>10} {:>8}\n", "", "predicted", "measured", "error");
        for (kind, _) in NAMES {
            let Some((real, steps)) = measured.get(kind) else { continue };
            let predicted = self.predicted(kind);
            let (shown, error) = match predicted {
                Some(p) => (seconds(p), format!("{:+.0} %", 100.0 * (p / real - 1.0))),
                None => ("-".into(), "-".into()),
            };
            let real = seconds(*real);
            let _ = writeln!(out, "{kind:<10} {shown:>10} {real:>10} {error:>8}   {steps} steps");
        }
        Answer::said(out)
    }

    /// Seconds of all phases of a kind in a step.
    fn predicted(&self, kind: &str) -> Option<f64> {
        let step = self.report.steps.last()?;
        if kind == "step" {
            return Some(step.seconds.value);
        }
        let of: Vec<f64> =
            step.phases.iter().filter(|p| p.kind == kind).map(|p| p.seconds.value).collect();
        (!of.is_empty()).then(|| of.iter().sum())
    }
}

/// The median of each kind and the number of its steps; the first step warms up and does not count.
fn medians(text: &str) -> BTreeMap<&'static str, (f64, usize)> {
    let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let rows: Vec<serde_json::Value> =
        text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    for row in rows.iter().skip(usize::from(rows.len() > 1)) {
        for (kind, names) in NAMES {
            let found = names.iter().find_map(|n| row.get(n)?.as_f64());
            if let Some(x) = found {
                all.entry(kind).or_default().push(x);
            }
        }
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        (all[all.len() / 2], all.len())
    };
    all.into_iter().map(|(k, v)| (k, median(v))).collect()
}
