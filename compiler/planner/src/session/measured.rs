//! A run's own numbers beside the predicted ones.
//!
//! In: metrics of a run, in any form that `runs` reads. Out: medians of the steps by phase, and
//! how far the prediction is off.

use std::fmt::Write;

use super::{Answer, Session};
use crate::report::words::seconds;
use crate::runs::{self, NAMES};

impl Session<'_> {
    pub(super) fn compare(&self, file: &str) -> Answer {
        if file.is_empty() {
            return Answer::failed("write `compare runs/3/metrics.jsonl`");
        }
        let text = match self.files.read(file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(why) => return Answer::failed(format!("cannot read {file}: {why}")),
        };
        let run = match runs::read(&text) {
            Ok(run) => run,
            Err(why) => return Answer::failed(format!("{file}: {why}")),
        };
        let Some(measured) = run.last() else {
            return Answer::failed(format!("{file} has no steps"));
        };
        let mut out = format!("{:<10} {:>10} {:>10} {:>8}\n", "", "predicted", "measured", "error");
        for (kind, _) in NAMES {
            let steps = measured.steps;
            let Some((_, real)) = measured.seconds.iter().find(|(k, _)| *k == kind) else {
                continue;
            };
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
