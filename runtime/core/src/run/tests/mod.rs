//! The run loop on a model that is one row of logits, whatever the prompt: everything but the compiler and the engine.

mod bandit;

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::watch::{Event, Watch};
use super::*;
use bandit::{Bandit, Cut};

/// Steps, notes and evaluations as they were told.
#[derive(Default)]
struct Seen {
    notes: Vec<String>,
    evaluations: usize,
    saved: usize,
}

impl Watch for Seen {
    fn event(&mut self, event: Event) {
        match event {
            Event::Note(note) => self.notes.push(note.into()),
            Event::Evaluated { .. } => self.evaluations += 1,
            Event::Saved { .. } => self.saved += 1,
            _ => {}
        }
    }
}

fn options(dir: &Path) -> Options {
    Options { root: dir.join("runs"), recipe: "recipe r {}".into(), ..Options::default() }
}

fn go(dir: &Path, cut: Cut, change: impl Fn(&mut Options)) -> (Outcome<Summary>, Seen) {
    let mut o = options(dir);
    change(&mut o);
    let mut seen = Seen::default();
    let result = run(bandit::compiled(cut), &Bandit::default(), &o, &mut seen);
    (result, seen)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Metrics without those that measure time.
fn metrics(run: &Path) -> Vec<Value> {
    let mut all = lines(&run.join("metrics.jsonl"));
    for line in &mut all {
        line.as_object_mut().unwrap().retain(|k, _| !k.contains("second"));
    }
    all
}

fn weights(run: &Path) -> Vec<f32> {
    let c = crate::hf::weights::Checkpoint::open(&run.join("model")).unwrap();
    c.names().iter().flat_map(|s| c.read_f32(&s.name).unwrap()).collect()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn a_run_learns_and_leaves_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let (summary, seen) = go(dir.path(), Cut::Whole(1), |_| ());
    let summary = summary.unwrap();
    let run = dir.path().join("runs/1");
    assert_eq!(
        (summary.dir.clone(), summary.steps, summary.stopped.clone()),
        (run.clone(), 12, None)
    );
    let mean = |r: &[f64]| r.iter().sum::<f64>() / r.len() as f64;
    assert!(
        mean(&summary.rewards[9..]) > mean(&summary.rewards[..3]) + 0.2,
        "{:?}",
        summary.rewards
    );
    // One evaluation is before the first step of the phase.
    assert_eq!((seen.evaluations, seen.saved), (4, 3));
    let accuracy = |e: &indexmap::IndexMap<String, f64>| e["test.accuracy"];
    let (before, after) = (accuracy(&summary.first_eval), accuracy(&summary.last_eval));
    assert!(after > before, "{before} {after} {:?}", summary.rewards);
    let m = metrics(&run);
    assert_eq!(m.len(), 12);
    let keys = [
        "loss",
        "grad_norm",
        "lr",
        "reward/mean",
        "reward/zero_spread_share",
        "response/length_mean",
        "entropy",
    ];
    for key in keys {
        assert!(m[2][key].is_number(), "{key} in {}", m[2]);
    }
    // Trainer and sampler agree before the first update.
    assert!(m[2]["logprob_gap/max"].as_f64().unwrap() < 1e-6);
    assert!(m[5]["test.accuracy"].is_number() && m[4].get("test.accuracy").is_none());
    let samples = lines(&run.join("rollouts.jsonl"));
    assert_eq!(samples.len(), 10 * 16);
    assert!(
        samples[0]["completion"].is_string()
            && samples[0]["adv"].is_number()
            && samples[0]["r"].is_number()
    );
    // One best and the latest stay.
    let kept = crate::checkpoint::state::list(&run.join("checkpoints"));
    assert!((1..=2).contains(&kept.len()) && kept.last().unwrap().state.step == 12);
    assert_eq!((summary.before.len(), summary.now.len()), (3, 3));
    assert!(run.join("model/config.json").exists() && run.join("recipe.nrl").exists());
}

#[test]
fn every_layout_samples_the_same_and_learns_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let cuts = [Cut::Whole(1), Cut::Whole(2), Cut::Zero1(2), Cut::Zero3(3)];
    for cut in cuts {
        go(dir.path(), cut, |o| o.steps = Some(3)).0.unwrap();
    }
    let run = |i: usize| dir.path().join(format!("runs/{i}"));
    let texts = |i: usize| -> Vec<Value> {
        lines(&run(i).join("rollouts.jsonl")).iter().map(|l| l["completion"].clone()).collect()
    };
    let norms = |i: usize| -> Vec<f64> {
        metrics(&run(i)).iter().map(|m| m["grad_norm"].as_f64().unwrap()).collect()
    };
    for i in 2..=cuts.len() {
        assert_eq!(texts(1), texts(i), "{:?}", cuts[i - 1]);
        assert!(close(&weights(&run(1)), &weights(&run(i))), "{:?}", cuts[i - 1]);
        // Trap 18: each weight counts once, however it is stored.
        assert!(
            norms(1).iter().zip(norms(i)).all(|(a, b)| (a - b).abs() < 1e-6 * a),
            "{:?}",
            cuts[i - 1]
        );
    }
    // A sum that is scattered has the bits of one that is not.
    assert_eq!(weights(&run(2)), weights(&run(3)));
}

/// Trap 25.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    for cut in [Cut::Whole(2), Cut::Zero3(2)] {
        let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
        go(dir.path(), cut, |o| o.out = Some(whole.clone())).0.unwrap();
        // The second stop is at the end of a phase.
        let stopped =
            go(dir.path(), cut, |o| (o.out, o.steps) = (Some(parts.clone()), Some(5))).0.unwrap();
        assert_eq!(stopped.stopped.as_deref(), Some("5 steps were asked for"));
        go(dir.path(), cut, |o| (o.resume, o.steps) = (Some(parts.clone()), Some(6))).0.unwrap();
        let rest = go(dir.path(), cut, |o| o.resume = Some(parts.join("checkpoints/step-000006")))
            .0
            .unwrap();
        assert_eq!((rest.dir.clone(), rest.steps), (parts.clone(), 12));
        assert_eq!(weights(&whole), weights(&parts));
        assert_eq!(metrics(&whole), metrics(&parts));
        assert_eq!(lines(&whole.join("rollouts.jsonl")), lines(&parts.join("rollouts.jsonl")));
        for d in [whole, parts] {
            std::fs::remove_dir_all(d).unwrap();
        }
    }
}

/// Case c77.
#[test]
fn a_run_resumes_on_another_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let whole = go(dir.path(), Cut::Whole(1), |_| ()).0.unwrap();
    for cut in [Cut::Zero1(2), Cut::Zero3(3)] {
        let out = dir.path().join(format!("{cut:?}"));
        go(dir.path(), Cut::Zero3(4), |o| (o.out, o.steps) = (Some(out.clone()), Some(5)))
            .0
            .unwrap();
        go(dir.path(), cut, |o| o.resume = Some(out.clone())).0.unwrap();
        assert!(close(&weights(&whole.dir), &weights(&out)), "{cut:?}");
    }
}

#[test]
fn resume_latest_takes_the_newest_run_that_has_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let none = go(dir.path(), Cut::Whole(1), |o| o.resume = Some("latest".into())).0.unwrap_err();
    assert_eq!(none.code, "no-checkpoint");
    go(dir.path(), Cut::Whole(1), |o| o.steps = Some(2)).0.unwrap();
    std::fs::create_dir(dir.path().join("runs/7")).unwrap();
    let rest = go(dir.path(), Cut::Whole(1), |o| o.resume = Some("latest".into())).0.unwrap();
    assert_eq!((rest.dir, rest.steps), (dir.path().join("runs/1"), 12));
}

#[test]
fn an_interrupt_finishes_the_step_and_saves() {
    let dir = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(true));
    let (summary, seen) = go(dir.path(), Cut::Whole(1), |o| o.stop = stop.clone());
    let summary = summary.unwrap();
    assert_eq!((summary.steps, summary.stopped.as_deref()), (1, Some("interrupted")));
    assert_eq!(seen.saved, 1);
    assert!(summary.checkpoint.unwrap().ends_with("step-000001"));
    // Nothing but the checkpoint was waited for.
    assert!(summary.models.is_empty());
}

/// Trap 18: a norm that is not finite skips the update on all ranks alike, and is counted.
#[test]
fn a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Seen::default();
    let setup = bandit::compiled(Cut::Zero1(2));
    let engine = Bandit { poisoned: Some(1) };
    let o = Options { steps: Some(4), ..options(dir.path()) };
    let summary = run(setup, &engine, &o, &mut seen).unwrap();
    // Two updates a step.
    assert_eq!(summary.skipped_updates, 4);
    assert!(
        seen.notes.iter().any(|n| n == "2 updates skipped: the gradient norm is not finite"),
        "{:?}",
        seen.notes
    );
    // The weights are those that the supervised phase left.
    let sft = go(dir.path(), Cut::Zero1(2), |o| o.steps = Some(2)).0.unwrap();
    assert_eq!(weights(&summary.dir), weights(&sft.dir));
}

/// Case c81.
#[test]
fn a_reward_that_fails_everywhere_in_the_first_step_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = bandit::compiled(Cut::Whole(1));
    setup.program.rewards[0].range = Some((7.0, 8.0));
    let e = run(setup, &Bandit::default(), &options(dir.path()), &mut Seen::default()).unwrap_err();
    assert_eq!(e.code, "reward-failed");
    assert!(
        e.message.starts_with("reward `score` failed for all 15 samples of step 3: the reward is"),
        "{e}"
    );
}

#[test]
fn a_place_that_cannot_be_written_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let e =
        go(dir.path(), Cut::Whole(1), |o| o.out = Some(dir.path().join("file/run"))).0.unwrap_err();
    assert!(e.message.contains("cannot make the directory"), "{e}");
}

#[test]
fn a_checkpoint_can_be_evaluated_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let summary = go(dir.path(), Cut::Whole(2), |_| ()).0.unwrap();
    let of = |path: Option<&Path>| {
        evaluate(bandit::compiled(Cut::Whole(1)), &Bandit::default(), path).unwrap()
    };
    let trained = of(Some(&summary.dir));
    assert_eq!(trained.len(), 1);
    assert_eq!(trained[0].0, "test");
    assert!(trained[0].1["accuracy"] > of(None)[0].1["accuracy"]);
    assert_eq!(trained, of(Some(&summary.dir.join("model"))));
}

/// Trap 9: without a trained token there is no optimizer step, hence no decay and no count.
#[test]
fn nothing_trained_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = bandit::compiled(Cut::Whole(2));
    for b in &mut setup.program.phases[1].step {
        if let Stage::Generate { max_new, .. } = &mut b.stage {
            *max_new = Some(0);
        }
    }
    setup.program.phases.remove(0);
    let o = Options { steps: Some(2), ..options(dir.path()) };
    let summary = run(setup, &Bandit::default(), &o, &mut Seen::default()).unwrap();
    assert_eq!(metrics(&summary.dir)[1]["updates_empty"], 2.0);
    let e = crate::checkpoint::state::latest(&summary.dir.join("checkpoints")).unwrap();
    assert_eq!(e.state.counters["updates.1"], 0);
}
