//! The metrics of runs beside what the planner says of their recipe.
//!
//! In: metrics of nrlc or of NeMo RL, and a forecast that can be made again with the lengths that the run had. Out:
//! a line of a verdict for each phase of a step: the median of its seconds, and how far the prediction is off. The first
//! step of a phase makes buffers and kernels, and does not count. Metrics are lines of JSON (what belongs to a step may be
//! in several), one object of `metric: {step: value}` as NeMo RL dumps its TensorBoard logs, or CSV with a column per
//! metric as W&B exports it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use nrl_sim::forecast::{Forecast, Kind, Source, Step};

use crate::rows::{Line, Summary, Verdict};

/// Names of the seconds of each kind of phase: ours, then those of NeMo RL.
pub const NAMES: [(&str, &[&str]); 5] = [
    ("sample", &["seconds/generate", "timing/train/generation"]),
    ("score", &["seconds/logprob", "timing/train/policy_and_reference_logprobs"]),
    ("update", &["seconds/update", "timing/train/policy_training"]),
    (
        "refit",
        &[
            "seconds/refit",
            "timing/train/prepare_for_generation/total",
            "timing/train/weight_sync",
            "timing/train/prepare_for_generation/transfer_and_update_weights",
        ],
    ),
    ("step", &["seconds/step", "timing/train/total_step_time"]),
];

/// Names of the mean and the largest number of tokens of an answer.
const MEAN: [&str; 3] = [
    "response/length_mean",
    "train/mean_gen_tokens_per_sample",
    "train/gen_tokens_per_sample/mean",
];
const MOST: [&str; 3] =
    ["response/length_max", "train/max_gen_tokens_per_sample", "train/gen_tokens_per_sample/max"];

/// The steps of one phase of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// As in the recipe; empty where the metrics do not tell.
    pub phase: String,
    /// Steps that count.
    pub steps: usize,
    /// Medians by kind, in the order of [`NAMES`].
    pub seconds: Vec<(&'static str, f64)>,
    /// Mean and largest number of tokens of an answer.
    pub lengths: Option<(f64, f64)>,
}

/// Is `text` of metrics, not of a table of rows?
pub fn is_metrics(text: &str) -> bool {
    text.trim_start().starts_with('{')
        || text.lines().next().is_some_and(|header| NAMES.iter().any(|(_, all)| has(header, all)))
}

fn has(header: &str, names: &[&str]) -> bool {
    names.iter().any(|n| header.contains(n))
}

/// The phases of a run, in order.
pub fn read(text: &str) -> Result<Vec<Measured>, String> {
    let mut phases: Vec<(String, Vec<Value>)> = vec![];
    for row in rows(text) {
        let name = row.get("phase").and_then(|p| p.as_str()).unwrap_or("").to_string();
        match phases.iter_mut().find(|(n, _)| *n == name) {
            Some((_, rows)) => put(rows, row),
            None => phases.push((name, vec![row])),
        }
    }
    let found: Vec<Measured> = phases.iter().map(|(name, rows)| measured(name, rows)).collect();
    if found.iter().all(|m| m.seconds.is_empty()) {
        let known: Vec<&str> = NAMES.iter().flat_map(|(_, all)| all.iter().copied()).collect();
        return Err(format!("no step has its seconds: one of {}", known.join(", ")));
    }
    Ok(found)
}

/// A row per step, or several that say which step they are of.
fn rows(text: &str) -> Vec<Value> {
    if let Ok(Value::Object(all)) = serde_json::from_str(text)
        && all.values().any(Value::is_object)
    {
        return by_step(&all);
    }
    if !text.trim_start().starts_with('{') {
        return columns(text);
    }
    // A run that was stopped may have written half a line.
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
}

/// `{metric: {step: value}}` by step.
fn by_step(all: &Map<String, Value>) -> Vec<Value> {
    let mut steps: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    for (name, values) in all {
        for (step, value) in values.as_object().into_iter().flatten() {
            let Ok(step) = step.parse() else { continue };
            steps.entry(step).or_default().insert(name.clone(), value.clone());
        }
    }
    steps.into_values().map(Value::Object).collect()
}

/// CSV; a column may be `name of the run - metric`.
fn columns(text: &str) -> Vec<Value> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let Ok(header) = reader.headers().cloned() else { return vec![] };
    let known =
        |h: &str| NAMES.iter().flat_map(|(_, all)| *all).chain(&MEAN).chain(&MOST).any(|n| *n == h);
    let name = |h: &str| h.rsplit(" - ").next().filter(|n| known(n)).unwrap_or(h).to_string();
    let names: Vec<String> = header.iter().map(name).collect();
    let row = |r: csv::StringRecord| {
        let cells = names.iter().zip(&r);
        let numbers =
            cells.filter_map(|(n, v)| Some((n.clone(), Value::from(v.parse::<f64>().ok()?))));
        Value::Object(numbers.collect())
    };
    reader.records().filter_map(|r| Some(row(r.ok()?))).collect()
}

/// Adds a row; what is of the step of the row before goes into that one.
fn put(rows: &mut Vec<Value>, row: Value) {
    let step = |r: &Value| ["step", "_step"].iter().find_map(|k| r.get(*k)?.as_f64());
    let same = rows.last().is_some_and(|last| step(last).is_some() && step(last) == step(&row));
    match (rows.last_mut().filter(|_| same).and_then(Value::as_object_mut), row) {
        (Some(last), Value::Object(more)) => {
            // W&B leaves cells empty that a later line fills.
            last.extend(more.into_iter().filter(|(_, v)| !v.is_null()));
        }
        (_, row) => rows.push(row),
    }
}

fn measured(name: &str, rows: &[Value]) -> Measured {
    let rows = if rows.len() > 1 { &rows[1..] } else { rows };
    let all = |names: &[&str]| -> Vec<f64> {
        rows.iter().filter_map(|r| names.iter().find_map(|n| r.get(n)?.as_f64())).collect()
    };
    let seconds = NAMES.iter().filter_map(|(kind, names)| Some((*kind, median(all(names))?)));
    let mean = all(&MEAN);
    let lengths = (!mean.is_empty()).then(|| {
        let usual = mean.iter().sum::<f64>() / mean.len() as f64;
        (usual, median(all(&MOST)).unwrap_or(usual))
    });
    Measured { phase: name.into(), steps: rows.len(), seconds: seconds.collect(), lengths }
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// What is said of each phase; `plan` makes the forecast for answers of these lengths, or for those that are assumed.
pub fn verdict(
    file: &str,
    run: &[Measured],
    plan: &dyn Fn(Option<(f64, f64)>) -> Option<Forecast>,
) -> Verdict {
    let mut out = Verdict::default();
    for m in run {
        let forecast = plan(m.lengths);
        let step = forecast.as_ref().and_then(|f| step(f, &m.phase));
        for (kind, measured) in &m.seconds {
            let line = line(file, m, kind, *measured, forecast.as_ref(), step);
            if let Some(e) = line.error {
                let (source, metric) = (line.source.clone(), line.metric.clone());
                let e = e.abs();
                out.summaries.push(Summary {
                    source,
                    metric,
                    rows: m.steps,
                    median: e,
                    p90: e,
                    max: e,
                    ranking: None,
                });
            }
            out.lines.push(line);
        }
    }
    out.said = out.lines.iter().filter(|l| l.predicted.is_some()).count();
    out.not_said = out.lines.len() - out.said;
    out
}

/// The step that a phase of a run is: the one of its name, or the only one.
fn step<'a>(f: &'a Forecast, phase: &str) -> Option<&'a Step> {
    let named = f.steps.iter().find(|s| s.name == phase);
    named.or_else(|| match &f.steps[..] {
        [only] => Some(only),
        all if phase.is_empty() => all.last(),
        _ => None,
    })
}

fn line(
    file: &str,
    m: &Measured,
    kind: &str,
    measured: f64,
    forecast: Option<&Forecast>,
    step: Option<&Step>,
) -> Line {
    let said = step.and_then(|s| predicted(s, kind));
    let why = match (forecast, step, said) {
        (None, ..) => Some("the recipe has no forecast".to_string()),
        (_, None, _) => Some(format!("the recipe has no phase `{}`", m.phase)),
        (.., None) => Some(format!("the plan has no phase of kind `{kind}`")),
        _ => None,
    };
    let phase = if m.phase.is_empty() { String::new() } else { format!(" {}", m.phase) };
    Line {
        line: 0,
        source: format!("{file}{phase}"),
        model: forecast.map_or(String::new(), |f| f.recipe.clone()),
        metric: kind.to_string(),
        unit: "s".into(),
        measured,
        predicted: said.map(|(p, _)| p),
        error: said.map(|(p, _)| p / measured - 1.0),
        provenance: said.map(|(_, s)| s),
        spread: None,
        why,
    }
}

/// Seconds of all phases of a kind in a step, and where they come from.
fn predicted(step: &Step, kind: &str) -> Option<(f64, Source)> {
    if kind == "step" {
        return Some((step.seconds.value, step.seconds.source));
    }
    let wanted = |k: Kind| k.name() == kind;
    let all: Vec<_> = step.phases.iter().filter(|p| wanted(p.kind)).map(|p| p.seconds).collect();
    let source = all.iter().map(|e| e.source).max()?;
    Some((all.iter().map(|e| e.value).sum(), source))
}

#[cfg(test)]
mod tests {
    use nrl_sim::forecast::Estimate;

    use super::*;

    const OURS: &str = r#"{"step":1,"phase":"rl","response/length_mean":9.0,"response/length_max":9,"seconds/generate":9.0,"seconds/update":9.0,"seconds/step":18.0}
{"step":2,"phase":"rl","response/length_mean":4.0,"response/length_max":6,"seconds/generate":1.0,"seconds/update":3.0,"seconds/step":4.0}
{"step":3,"phase":"rl","response/length_mean":5.0,"response/length_max":7,"seconds/generate":1.5,"seconds/update":3.0,"seconds/step":4.5}
{"step":4,"phase":"rl","response/length_mean":6.0,"response/length_max":8,"seconds/generate":2.0,"seconds/update":3.5,"seconds/step":5.5}
{"step":5,"pha"#;

    #[test]
    fn a_run_is_read_without_its_first_step() {
        let run = read(OURS).unwrap();
        assert_eq!(run.len(), 1);
        assert_eq!((run[0].phase.as_str(), run[0].steps), ("rl", 3));
        assert_eq!(run[0].seconds, [("sample", 1.5), ("update", 3.0), ("step", 4.5)]);
        assert_eq!(run[0].lengths, Some((5.0, 7.0)));
    }

    #[test]
    fn timings_of_nemo_rl_have_other_names() {
        let text = r#"{"timing/train/generation": 40.0, "timing/train/policy_training": 50.0, "timing/train/total_step_time": 110.0}"#;
        let run = read(text).unwrap();
        assert_eq!(run[0].seconds, [("sample", 40.0), ("update", 50.0), ("step", 110.0)]);
        assert_eq!(run[0].lengths, None);
        assert!(read(r#"{"loss": 1.0}"#).unwrap_err().starts_with("no step has its seconds"));
    }

    /// What a step logs comes in several calls, with what W&B calls the step.
    #[test]
    fn lines_of_a_step_are_one() {
        let text = r#"{"_step": 1, "train/mean_gen_tokens_per_sample": 99.0}
{"_step": 1, "timing/train/total_step_time": 90.0}
{"_step": 2, "train/mean_gen_tokens_per_sample": 795.0, "timing/train/total_step_time": null}
{"_step": 2, "timing/train/total_step_time": 112.0, "timing/train/prepare_for_generation/total": 5.0, "timing/train/prepare_for_generation/transfer_and_update_weights": 3.0}"#;
        let run = read(text).unwrap();
        assert_eq!(run[0].steps, 1);
        assert_eq!(run[0].seconds, [("refit", 5.0), ("step", 112.0)]);
        assert_eq!(run[0].lengths, Some((795.0, 795.0)));
    }

    #[test]
    fn exports_are_read() {
        let dumped = r#"{"train/loss": {"1": 0.1},
 "timing/train/policy_training": {"2": 28.0, "1": 60.0, "10": 30.0, "3": 29.0},
 "timing/train/total_step_time": {"1": 200.0, "2": 112.0, "3": 113.0, "10": 114.0}}"#;
        assert_eq!(read(dumped).unwrap()[0].seconds, [("update", 29.0), ("step", 113.0)]);
        let csv = "Step,grpo 8b - timing/train/total_step_time,grpo 8b - timing/train/total_step_time__MIN\n1,200,200\n2,112,112\n3,113,113\n4,,\n";
        assert!(is_metrics(csv) && is_metrics(dumped) && !is_metrics("model,gpu,metric,value\n"));
        assert_eq!(read(csv).unwrap()[0].seconds, [("step", 113.0)]);
    }

    #[test]
    fn a_phase_is_beside_the_prediction_at_its_own_lengths() {
        let run = read(OURS).unwrap();
        let plan = |lengths: Option<(f64, f64)>| {
            assert_eq!(lengths, Some((5.0, 7.0)));
            let seconds = Estimate::around(4.95, 0.1, Source::Calibrated);
            let step = Step {
                name: "rl".into(),
                steps: 4,
                seconds,
                phases: vec![],
                traffic: vec![],
                samples: 8.0,
                tokens: 40.0,
                padding: 0.0,
                every: vec![],
            };
            Some(Forecast {
                recipe: "r".into(),
                devices: 1,
                device: "thread".into(),
                stack: "cpu".into(),
                rates: nrl_sim::rates::Rates::default(),
                compute: nrl_sim::rates::Compute::default(),
                steps: vec![step],
                memory: vec![],
                assumed: vec![],
                not_modelled: vec![],
            })
        };
        let v = verdict("runs/3", &run, &plan);
        let step = v.lines.iter().find(|l| l.metric == "step").unwrap();
        assert!((step.error.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(step.source, "runs/3 rl");
        let other = v.lines.iter().find(|l| l.metric == "update").unwrap();
        assert_eq!(other.why.as_deref(), Some("the plan has no phase of kind `update`"));
        assert_eq!((v.said, v.not_said), (1, 2));
    }
}
