//! Logits, log-probabilities and gradients against transformers (`tests/reference`).

use std::path::PathBuf;

use nrl_driver::Options;
use serde_json::Value;

use crate::support::fixture;
use crate::support::model::{Batch, Judge, compile_text, nll_recipe, run};

const MODELS: [&str; 9] = [
    "llama",
    "llama3-tied",
    "mistral",
    "qwen2",
    "qwen3",
    "llama-9-heads",
    "gemma3",
    "gpt-oss",
    "nemotron_h",
];

/// A checkpoint and its reference values.
struct Case {
    name: String,
    dir: PathBuf,
    values: Value,
}

/// The checked-in checkpoints, and those that `NRL_CHECKPOINTS=DIR=VALUES.json,..` names (values
/// by `tests/reference/check_directory.py`).
fn cases(judge: Judge) -> Vec<Case> {
    let read = |p: PathBuf| -> Value {
        serde_json::from_str(&std::fs::read_to_string(p).expect("reference values")).expect("JSON")
    };
    let own = MODELS.iter().map(|name| Case {
        name: (*name).into(),
        dir: fixture(name),
        values: read(fixture(name).join("reference.json")),
    });
    let more = std::env::var("NRL_CHECKPOINTS").unwrap_or_default();
    let given = more.split(',').filter_map(|x| x.split_once('=')).map(|(dir, values)| Case {
        name: dir.into(),
        dir: dir.into(),
        values: read(values.into()),
    });
    match judge {
        // The reference engine is for small models.
        Judge::Interp => own.collect(),
        Judge::Cpu => own.chain(given).collect(),
    }
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(|x| x.as_f64().unwrap_or(f64::NEG_INFINITY)).collect()
}

fn sequences(r: &Value) -> Vec<Vec<u32>> {
    r["input_ids"]
        .as_array()
        .expect("sequences")
        .iter()
        .map(|s| numbers(s).into_iter().map(|x| x as u32).collect())
        .collect()
}

/// Largest difference, absolute.
fn gap(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

fn logits_match(judge: Judge, bound: f64) {
    for Case { name, dir, values: r } in cases(judge) {
        let c = compile_text(&nll_recipe(&dir, ""), &Options::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let sequences = sequences(&r);
        let wanted: Vec<(usize, usize, Vec<f64>)> = r["logits"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|x| {
                (
                    x["sequence"].as_u64().unwrap_or(0) as usize,
                    x["position"].as_u64().unwrap_or(0) as usize,
                    numbers(&x["values"]),
                )
            })
            .collect();
        let rows: Vec<Vec<usize>> = (0..sequences.len())
            .map(|s| wanted.iter().filter(|w| w.0 == s).map(|w| w.1).collect())
            .collect();
        let got = run(&c, &dir, "generate", &Batch { sequences, rows }, judge);
        let want: Vec<f64> = wanted.into_iter().flat_map(|w| w.2).collect();
        let worst = gap(&got.outputs["logits"], &want);
        assert!(worst <= bound, "{name} on {judge:?}: logits off by {worst:e}");
    }
}

fn gradients_match(judge: Judge, bound: f64) {
    for Case { name, dir, values: r } in cases(judge) {
        let c = compile_text(&nll_recipe(&dir, ""), &Options::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = run(&c, &dir, "update", &Batch { sequences: sequences(&r), rows: vec![] }, judge);
        // Ids beyond the tokenizer have no probability here.
        let key = if r.get("token_log_probs_of_known_ids").is_some() {
            "token_log_probs_of_known_ids"
        } else {
            "token_log_probs"
        };
        let want: Vec<f64> = r[key].as_array().expect("rows").iter().flat_map(numbers).collect();
        let worst = gap(&got.outputs["logprob"], &want);
        assert!(worst <= bound, "{name} on {judge:?}: log-probabilities off by {worst:e}");
        if key != "token_log_probs" {
            continue;
        }
        let loss = r["loss"].as_f64().expect("a loss");
        assert!(
            (got.outputs["loss"][0] - loss).abs() <= bound * loss,
            "{name}: loss {} is not {loss}",
            got.outputs["loss"][0]
        );
        for (tensor, norm) in r["gradient_norms"].as_object().expect("norms") {
            let g =
                got.grads.get(tensor).unwrap_or_else(|| panic!("{name}: no gradient of {tensor}"));
            let ours = g.iter().map(|x| x * x).sum::<f64>().sqrt();
            let norm = norm.as_f64().expect("a number");
            assert!(
                (ours - norm).abs() <= bound * norm.max(1e-3),
                "{name} on {judge:?}: gradient of {tensor} has norm {ours}, not {norm}"
            );
            let Some(head) = r.get("gradient_heads").map(|h| numbers(&h[tensor])) else { continue };
            let worst = gap(&g[..head.len()], &head);
            assert!(
                worst <= bound * norm.max(1e-3),
                "{name} on {judge:?}: gradient of {tensor} is off by {worst:e}"
            );
        }
    }
}

#[test]
fn logits_equal_transformers_on_the_reference_engine() {
    logits_match(Judge::Interp, 2e-5);
}

#[test]
fn gradients_equal_transformers_on_the_reference_engine() {
    gradients_match(Judge::Interp, 2e-5);
}

#[test]
fn logits_equal_transformers_on_the_cpu_engine() {
    logits_match(Judge::Cpu, 1e-4);
}

#[test]
fn gradients_equal_transformers_on_the_cpu_engine() {
    gradients_match(Judge::Cpu, 1e-4);
}

#[test]
fn greedy_continuations_equal_transformers_on_the_cpu_engine() {
    for Case { name, dir, values: r } in cases(Judge::Cpu) {
        let c = compile_text(&nll_recipe(&dir, ""), &Options::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        for g in r["greedy"].as_array().expect("continuations") {
            let ids = |k: &str| numbers(&g[k]).into_iter().map(|x| x as u32).collect::<Vec<u32>>();
            let (mut row, want) = (ids("prompt"), ids("ids"));
            let start = row.len();
            while row.len() < start + want.len() {
                let batch = Batch { sequences: vec![row.clone()], rows: vec![vec![row.len() - 1]] };
                let logits = &run(&c, &dir, "generate", &batch, Judge::Cpu).outputs["logits"];
                let best = logits
                    .iter()
                    .enumerate()
                    .fold(0, |b, (i, x)| if *x > logits[b] { i } else { b });
                row.push(best as u32);
            }
            assert_eq!(row[start..], want[..], "{name}");
        }
    }
}
