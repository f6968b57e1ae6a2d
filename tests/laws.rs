//! The same numbers everywhere: layouts, micro-batches, fusion, caches, packing, resume.

use std::collections::BTreeMap;

use nrl_driver::Options;
use nrl_runtime::hf::weights::Checkpoint;
use serde_json::Value;

use crate::support::model::{Batch, Judge, compile_text, nll_recipe, run};
use crate::support::{Bench, DATA, fixture, recipe};

/// A trained run: the samples it drew and the weights it ended with.
struct Trained {
    samples: Vec<(u64, Vec<u64>)>,
    weights: BTreeMap<String, Vec<f32>>,
    metrics: Vec<Value>,
}

fn lines(b: &Bench, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(b.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

fn trained(b: &Bench, args: &[&str]) -> Trained {
    let mut all = vec!["run", "r.nrl", "--out", "out", "--quiet"];
    all.extend(args);
    b.run(&all).succeeds();
    read(b)
}

fn read(b: &Bench) -> Trained {
    let samples = lines(b, "out/rollouts.jsonl")
        .iter()
        .map(|l| {
            (
                l["step"].as_u64().expect("a step"),
                l["ids"]
                    .as_array()
                    .expect("ids")
                    .iter()
                    .map(|i| i.as_u64().expect("an id"))
                    .collect(),
            )
        })
        .collect();
    let checkpoint = Checkpoint::open(&b.path("out/model")).expect("the exported model");
    let weights = checkpoint
        .names()
        .into_iter()
        .map(|s| (s.name.clone(), checkpoint.read_f32(&s.name).expect("a tensor")))
        .collect();
    Trained { samples, weights, metrics: lines(b, "out/metrics.jsonl") }
}

fn bench(model: &str, change: &[(&str, &str)]) -> Bench {
    let b = Bench::new();
    b.model(model, "model").write("data.jsonl", DATA).write("r.nrl", recipe(change));
    b
}

/// Largest difference of any weight, absolute.
fn weight_gap(a: &Trained, b: &Trained) -> f32 {
    assert_eq!(a.weights.keys().collect::<Vec<_>>(), b.weights.keys().collect::<Vec<_>>());
    let gap = |(x, y): (&f32, &f32)| (x - y).abs();
    a.weights.iter().flat_map(|(n, w)| w.iter().zip(&b.weights[n]).map(gap)).fold(0.0, f32::max)
}

const AXES: &str = "axes (dp: rest, tp: 1)";
const PLAN: &str = "plans.ddp() * plans.tensor_parallel()";

#[test]
fn every_layout_draws_the_same_tokens_and_learns_the_same() {
    for model in ["llama-9-heads", "qwen3", "llama3-tied", "gemma3", "gpt-oss"] {
        let single = trained(&bench(model, &[]), &[]);
        assert_eq!(
            single.samples.iter().filter(|s| s.0 == 1).count(),
            8,
            "all samples of a step are there"
        );
        let mut layouts = vec![
            ("2", "axes (dp: 2)", PLAN),
            ("2", "axes (fsdp: 2)", "plans.fsdp()"),
            ("4", "axes (fsdp: 4)", "plans.fsdp()"),
            ("2", "axes (dp: 2)", "plans.zero1()"),
        ];
        if model == "llama-9-heads" {
            layouts.push(("3", "axes (tp: 3)", PLAN));
        } else {
            layouts.push(("2", "axes (tp: 2)", PLAN));
            layouts.push(("4", "axes (dp: 2, tp: 2)", PLAN));
            layouts.push(("4", "axes (fsdp: 2, tp: 2)", "plans.fsdp() * plans.tensor_parallel()"));
            layouts.push(("2", "axes (tp: 2)", "plans.megatron(sp: true)"));
            layouts.push(("4", "axes (dp: 2, tp: 2)", "plans.megatron(sp: true)"));
        }
        for (ranks, axes, plan) in layouts {
            let ranks = format!("ranks: {ranks}");
            let other =
                trained(&bench(model, &[("ranks: 1", &ranks), (AXES, axes), (PLAN, plan)]), &[]);
            assert_eq!(single.samples, other.samples, "{model} on {axes} by {plan}");
            let gap = weight_gap(&single, &other);
            assert!(gap <= 2e-5, "{model} on {axes} by {plan}: weights differ by {gap:e}");
        }
    }
}

#[test]
fn micro_batches_change_nothing_but_rounding() {
    let whole = trained(&bench("llama", &[]), &[]);
    for tokens in ["120", "60", "30"] {
        let budget = format!("in 1 update, {tokens} tokens/microbatch");
        let cut = trained(&bench("llama", &[("in 1 update", &budget)]), &[]);
        assert_eq!(whole.samples, cut.samples);
        let gap = weight_gap(&whole, &cut);
        assert!(gap <= 2e-5, "{tokens} tokens a micro-batch: weights differ by {gap:e}");
    }
}

#[test]
fn a_run_repeats_and_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
    let four = [("run 2 steps", "run 4 steps"), ("in 1 update", "in 2 updates")];
    let whole = trained(&bench("qwen2", &four), &[]);
    let again = trained(&bench("qwen2", &four), &[]);
    assert_eq!(whole.samples, again.samples);
    assert_eq!(whole.weights, again.weights, "a run repeats");
    let b = bench("qwen2", &four);
    b.run(&["run", "r.nrl", "--out", "out", "--quiet", "--steps", "2"]).succeeds();
    let resumed = trained(&b, &["--resume", "latest"]);
    assert_eq!(whole.samples, resumed.samples, "the resumed run draws what the other drew");
    assert_eq!(whole.weights, resumed.weights, "the resumed run ends with the same bits");
    assert_eq!(whole.metrics.len(), resumed.metrics.len());
}

#[test]
fn a_checkpoint_of_one_mesh_resumes_on_another() {
    let four = [("run 2 steps", "run 4 steps")];
    let whole = trained(&bench("llama", &four), &[]);
    let b = bench("llama", &four);
    b.run(&["run", "r.nrl", "--out", "out", "--quiet", "--steps", "2"]).succeeds();
    let moved = trained(&b, &["--resume", "latest", "--ranks", "2", "--set", "m.tp=2"]);
    assert_eq!(whole.samples, moved.samples);
    let gap = weight_gap(&whole, &moved);
    assert!(gap <= 2e-5, "weights differ by {gap:e}");
}

#[test]
fn the_trainer_gives_the_log_probabilities_that_the_sampler_gave() {
    // Also under a temperature, which both sides apply.
    for model in ["llama3-tied", "gemma3", "gpt-oss"] {
        for change in [&[][..], &[("temperature: 1.0", "temperature: 0.6")][..]] {
            let t = trained(&bench(model, change), &[]);
            for m in &t.metrics {
                let gap = m["logprob_gap/max"].as_f64().expect("the gap is reported");
                assert!(gap <= 1e-4, "{model}, step {}: {gap:e}", m["step"]);
            }
        }
    }
}

#[test]
fn fused_equals_unfused_bit_for_bit_on_the_cpu_engine() {
    for name in ["llama", "qwen2", "qwen3", "gemma3", "gpt-oss", "nemotron_h"] {
        let dir = fixture(name);
        let text = nll_recipe(&dir, "");
        let batch = || Batch {
            sequences: vec![vec![5, 6, 7, 8, 9, 10, 11], vec![20, 21, 22]],
            rows: vec![vec![3, 6], vec![2]],
        };
        let both = [true, false].map(|fuse| {
            compile_text(&text, &Options { fuse, ..Options::default() }).expect("compiles")
        });
        for graph in ["update", "generate"] {
            let [fused, single] =
                both.each_ref().map(|c| run(c, &dir, graph, &batch(), Judge::Cpu));
            assert_eq!(fused.outputs, single.outputs, "{name} {graph}");
            assert_eq!(fused.grads, single.grads, "{name} {graph}");
        }
    }
}

#[test]
fn packed_sequences_equal_separate_ones_bit_for_bit_on_the_cpu_engine() {
    for name in ["llama", "qwen3", "gemma3", "gpt-oss", "nemotron_h"] {
        let dir = fixture(name);
        let c = compile_text(&nll_recipe(&dir, ""), &Options::default()).expect("compiles");
        let sequences: Vec<Vec<u32>> =
            vec![vec![5, 6, 7, 8, 9, 10, 11], vec![20, 21], (30..60).collect()];
        let packed = run(
            &c,
            &dir,
            "update",
            &Batch { sequences: sequences.clone(), rows: vec![] },
            Judge::Cpu,
        );
        let mut apart = vec![];
        for s in sequences {
            apart.extend(
                run(&c, &dir, "update", &Batch { sequences: vec![s], rows: vec![] }, Judge::Cpu)
                    .outputs["logprob"]
                    .clone(),
            );
        }
        assert_eq!(packed.outputs["logprob"], apart, "{name}");
    }
}

#[test]
fn recomputed_and_offloaded_activations_give_the_same_gradients() {
    let dir = fixture("qwen3");
    let batch =
        || Batch { sequences: vec![vec![5, 6, 7, 8, 9, 10, 11], vec![20, 21, 22]], rows: vec![] };
    let full = "place policy on m by plans.ddp() * full() * plans.offloaded()";
    let plan = "\nplan full() {\n  recompute layers: full\n  offload: activations\n}\n";
    let kept = compile_text(&nll_recipe(&dir, ""), &Options::default()).expect("compiles");
    let redone = compile_text(&format!("{}{plan}", nll_recipe(&dir, full)), &Options::default())
        .expect("compiles");
    for judge in [Judge::Interp, Judge::Cpu] {
        let [a, b] = [&kept, &redone].map(|c| run(c, &dir, "update", &batch(), judge));
        for (name, g) in &a.grads {
            let worst =
                g.iter().zip(&b.grads[name]).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(worst <= 1e-6, "{name} on {judge:?}: {worst:e}");
        }
    }
}
