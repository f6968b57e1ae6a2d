//! The loop over phases and steps, and what happens between steps.
//!
//! In: a shop with its weights and data, where the run stands. Out: metrics, samples and checkpoints on the way, a summary at the
//! end. The clock, a halt, a signal or a limit of steps ends it early, with a checkpoint.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use indexmap::IndexMap;
use nrl_ir::program::{Binding, Phase, Sampling, Stage};

use super::{Options, reward_of, total_steps};
use crate::checkpoint::keep::Keep;
use crate::rng::Stream;
use crate::run::error::Outcome;
use crate::run::machine::trained_models;
use crate::run::output::Output;
use crate::run::save::{self, Context, Progress, export_model};
use crate::run::stage::{Pass, Place, Shop, job};
use crate::run::value::Held;
use crate::run::watch::{Event, Shown, StepReport, Summary, Watch};

/// Samples per step in rollouts.jsonl, and on the screen at the end.
const SAMPLES: usize = 32;
const SHOWN: usize = 3;

/// An end before the last step.
pub(super) struct Stopped {
    pub(super) why: String,
    /// Somebody or the clock is waiting: save, and do nothing else.
    pub(super) in_haste: bool,
}

/// A run under way.
pub(super) struct Run<'a> {
    pub(super) shop: Shop,
    pub(super) output: &'a mut Output,
    pub(super) options: &'a Options,
    pub(super) watch: &'a mut dyn Watch,
    pub(super) progress: Progress,
    pub(super) start: Instant,
    /// Seconds of the slowest step so far.
    pub(super) slowest: f64,
    pub(super) noted: Vec<String>,
    /// Step of the newest checkpoint that this run has made.
    pub(super) saved: Option<u64>,
}

impl Run<'_> {
    /// Runs all phases that are left; why it stopped early, if it did.
    pub(super) fn phases(&mut self, resumed: bool) -> Outcome<Option<Stopped>> {
        let setup = self.shop.machine.setup.clone();
        let first = self.progress.phase;
        for (p, phase) in setup.program.phases.iter().enumerate().skip(first) {
            self.progress.phase = p;
            self.watch.event(Event::Phase { name: &phase.name, steps: phase.steps });
            if !(resumed && p == first && self.progress.in_phase > 0) {
                self.open_phase(p, phase)?;
            }
            if let Some(why) = self.steps(p, phase)? {
                return Ok(Some(why));
            }
            self.progress.in_phase = 0;
        }
        self.progress.phase = setup.program.phases.len();
        Ok(None)
    }

    fn open_phase(&mut self, p: usize, phase: &Phase) -> Outcome<()> {
        if p > 0 {
            self.shop.machine.freeze(p)?;
        }
        self.shop.machine.reset_optimizers()?;
        self.progress.halts = vec![0; phase.halts.len()];
        if self.progress.before.is_empty() {
            self.progress.before = self.show(p)?;
        }
        if viewed(phase).is_some() && self.progress.first_eval.is_empty() {
            self.evaluate_before(p, phase)?;
        }
        Ok(())
    }

    /// What the first generating phase starts from.
    fn evaluate_before(&mut self, p: usize, phase: &Phase) -> Outcome<()> {
        let all = phase.every.iter().flat_map(|e| &e.stages);
        let list: Vec<Binding> =
            all.filter(|b| matches!(b.stage, Stage::Evaluate { .. })).cloned().collect();
        let place = Place {
            phase: p,
            in_phase: 0,
            of_phase: phase.steps,
            step: self.progress.step + 1,
            unscored: true,
        };
        let mut pass = Pass::new(&mut self.shop, &list, place);
        pass.run()?;
        for (binding, held) in list.iter().zip(&pass.held) {
            if let Held::Numbers(n) = held {
                self.watch.event(Event::Evaluated { name: &binding.name, numbers: n });
            }
        }
        self.progress.first_eval = evaluated(&pass.numbers);
        self.progress.last_eval = self.progress.first_eval.clone();
        Ok(())
    }

    fn steps(&mut self, p: usize, phase: &Phase) -> Outcome<Option<Stopped>> {
        while self.progress.in_phase < phase.steps {
            let begin = Instant::now();
            let halted = self.step(p, phase)?;
            let seconds = begin.elapsed().as_secs_f64();
            self.slowest = f64::max(self.slowest, seconds);
            let last = p + 1 == self.shop.machine.program().phases.len()
                && self.progress.in_phase == phase.steps;
            if let Some(halt) = halted {
                self.save_now()?;
                return Ok(Some(Stopped { why: format!("halted: {halt}"), in_haste: false }));
            }
            if last {
                break;
            }
            let stopped = |why: String, in_haste| Some(Stopped { why, in_haste });
            let stop = match self.shop.machine.program().wall_limit_s {
                _ if self.options.stop.load(Ordering::SeqCst) => {
                    stopped("interrupted".into(), true)
                }
                _ if self.options.steps.is_some_and(|n| self.progress.step >= n) => {
                    stopped(format!("{} steps were asked for", self.progress.step), false)
                }
                // Time for one more step and for saving must remain.
                Some(limit) if self.start.elapsed().as_secs_f64() + 2.0 * self.slowest > limit => {
                    stopped(format!("the limit of {limit} s is near"), true)
                }
                _ => None,
            };
            if stop.is_some() {
                self.save_now()?;
                return Ok(stop);
            }
        }
        Ok(None)
    }

    /// One step with the blocks that follow it; the halt that applies, if one does.
    fn step(&mut self, p: usize, phase: &Phase) -> Outcome<Option<String>> {
        let place = Place {
            phase: p,
            in_phase: self.progress.in_phase + 1,
            of_phase: phase.steps,
            step: self.progress.step + 1,
            unscored: !self.progress.rewards.iter().any(|r| r.is_finite()),
        };
        let mut pass = Pass::new(&mut self.shop, &phase.step, place);
        pass.run()?;
        let mut numbers = std::mem::take(&mut pass.numbers);
        if place.in_phase == 1 && viewed(phase).is_some() {
            numbers
                .extend(self.progress.first_eval.iter().map(|(n, x)| (format!("before/{n}"), *x)));
        }
        let samples = pass.samples(SAMPLES);
        let mut notes = std::mem::take(&mut pass.notes);
        let halts: Vec<bool> = phase.halts.iter().map(|h| is_true(&pass.held[h.binding])).collect();
        self.progress.failed_rewards += pass.failed_rewards;
        self.progress.skipped_updates += pass.skipped_updates;
        self.progress.in_phase += 1;
        self.progress.step += 1;
        self.progress.rewards.extend(numbers.get("reward/mean"));
        let halted = self.halted(phase, &halts);
        let due = |period: usize| {
            place.in_phase.is_multiple_of(period.max(1)) || place.in_phase == phase.steps
        };
        for every in phase.every.iter().filter(|e| due(e.period)) {
            let mut pass = Pass::new(&mut self.shop, &every.stages, place);
            pass.run()?;
            notes.append(&mut pass.notes);
            for (binding, held) in every.stages.iter().zip(&pass.held) {
                if let Held::Numbers(n) = held {
                    self.watch.event(Event::Evaluated { name: &binding.name, numbers: n });
                }
            }
            let reported = evaluated(&pass.numbers);
            if !reported.is_empty() {
                self.progress.last_eval = reported.clone();
            }
            numbers.extend(reported);
            for binding in &every.stages {
                if let Stage::Checkpoint { keep, by } = &binding.stage {
                    self.checkpoint(Some(&Keep { best: *keep, metric: by.clone(), higher: true }))?;
                }
            }
        }
        self.report(phase, place, numbers, samples, notes);
        Ok(halted)
    }

    fn halted(&mut self, phase: &Phase, now: &[bool]) -> Option<String> {
        self.progress.halts.resize(phase.halts.len(), 0);
        let mut found = None;
        for ((halt, count), now) in phase.halts.iter().zip(&mut self.progress.halts).zip(now) {
            *count = if *now { *count + 1 } else { 0 };
            if *count >= halt.steps.max(1) {
                found.get_or_insert(format!("`{}` held for {count} steps", halt.text));
            }
        }
        found
    }

    /// Writes and shows a step. A log that cannot be written does not end a run.
    fn report(
        &mut self,
        phase: &Phase,
        place: Place,
        numbers: IndexMap<String, f64>,
        samples: Vec<serde_json::Map<String, serde_json::Value>>,
        mut notes: Vec<String>,
    ) {
        let written = self.output.numbers(place.step, &phase.name, &numbers);
        let written =
            samples.into_iter().fold(written, |w, s| w.and(self.output.sample(place.step, s)));
        notes.extend(written.err().map(|e| e.message));
        for note in notes {
            // Said once: the second time only the numbers differ.
            let key: String = note.chars().filter(|c| !c.is_ascii_digit()).collect();
            if !self.noted.contains(&key) {
                self.watch.event(Event::Note(&note));
                self.noted.push(key);
            }
        }
        self.watch.event(Event::Step(&StepReport {
            phase: phase.name.clone(),
            in_phase: place.in_phase,
            of_phase: phase.steps,
            step: place.step,
            of: total_steps(self.shop.machine.program()),
            numbers,
            elapsed: self.start.elapsed().as_secs_f64(),
        }));
    }

    /// Saves before the run stops, unless this step has been saved.
    fn save_now(&mut self) -> Outcome<()> {
        match self.saved == Some(self.progress.step) {
            true => Ok(()),
            false => self.checkpoint(None),
        }
    }

    /// Saves; then removes what `keep` does not keep.
    fn checkpoint(&mut self, keep: Option<&Keep>) -> Outcome<()> {
        let dir = self.output.dir.join("checkpoints");
        let about = Context { recipe: &self.options.recipe, overrides: &self.options.overrides };
        let path = save::save(&dir, &self.shop, &self.progress, &self.progress.last_eval, &about)?;
        if let Some(keep) = keep {
            keep.prune(&dir)?;
        }
        self.saved = Some(self.progress.step);
        self.watch.event(Event::Saved { path: &path });
        Ok(())
    }

    /// Greedy answers to a few prompts of the first generating phase from `p` on, if that is `p` itself.
    fn show(&mut self, p: usize) -> Outcome<Vec<Shown>> {
        let setup = self.shop.machine.setup.clone();
        let Some(view) = setup.program.phases.get(p).and_then(viewed) else { return Ok(vec![]) };
        let Some(data) = &self.shop.data[view.data] else { return Ok(vec![]) };
        let prompts = data.first(SHOWN)?;
        let greedy = Sampling { temperature: 0.0, top_k: None, top_p: None, ..view.sampling };
        let job = job(
            &self.shop.machine,
            view.generator,
            Arc::new(prompts),
            1,
            view.max_new,
            &greedy,
            Stream::new(0),
        );
        let (batch, _) = self.shop.machine.generate(job)?;
        let scored =
            view.reward.and_then(|r| self.shop.scorers[r].as_ref()).map(|s| s.score(&batch));
        let reward = |i: usize| {
            let scored = scored.as_ref()?;
            (scored.valid.data[i] > 0.0).then(|| f64::from(scored.values.data[i]))
        };
        let show = |(i, s): (usize, &crate::rollout::batch::Sample)| Shown {
            prompt: batch.prompts[s.prompt].text.clone(),
            completion: s.text.clone(),
            reward: reward(i),
        };
        Ok(batch.samples.iter().enumerate().map(show).collect())
    }

    pub(super) fn finish(mut self, stopped: Option<Stopped>) -> Outcome<Summary> {
        let setup = self.shop.machine.setup.clone();
        let trained = trained_models(&setup.program);
        let mut models = vec![];
        let in_haste = stopped.as_ref().is_some_and(|s| s.in_haste);
        for m in trained.iter().filter(|_| !in_haste) {
            let name = if trained.len() == 1 {
                "model".to_owned()
            } else {
                format!("model-{}", setup.program.models[*m].name)
            };
            let dir = self.output.dir.join(name);
            export_model(&self.shop.machine, *m, &dir)?;
            models.push(dir);
        }
        let phases = 0..setup.program.phases.len();
        let generating = phases.rev().find(|p| viewed(&setup.program.phases[*p]).is_some());
        let now = match generating {
            Some(p) if !in_haste && !self.progress.before.is_empty() => self.show(p)?,
            _ => vec![],
        };
        let checkpoint = crate::checkpoint::state::latest(&self.output.dir.join("checkpoints"))
            .ok()
            .map(|s| s.path);
        Ok(Summary {
            stopped: stopped.map(|s| s.why),
            dir: self.output.dir.clone(),
            steps: self.progress.step,
            seconds: self.start.elapsed().as_secs_f64(),
            rewards: self.progress.rewards.clone(),
            before: self.progress.before.clone(),
            now,
            first_eval: self.progress.first_eval.clone(),
            last_eval: self.progress.last_eval.clone(),
            models,
            checkpoint,
            skipped_updates: self.progress.skipped_updates,
            failed_rewards: self.progress.failed_rewards,
        })
    }
}

/// The numbers of evaluations: `test.accuracy`.
fn evaluated(numbers: &IndexMap<String, f64>) -> IndexMap<String, f64> {
    numbers.iter().filter(|(n, _)| n.contains('.')).map(|(n, x)| (n.clone(), *x)).collect()
}

/// What the samples on the screen come from.
struct View {
    generator: usize,
    data: usize,
    reward: Option<usize>,
    max_new: Option<usize>,
    sampling: Sampling,
}

/// The evaluation of a phase, or its first generation.
fn viewed(phase: &Phase) -> Option<View> {
    let evaluation = phase.every.iter().flat_map(|e| &e.stages).find_map(|b| match &b.stage {
        Stage::Evaluate { generator, data, reward, max_new, sampling, .. } => Some(View {
            generator: *generator,
            data: *data,
            reward: Some(*reward),
            max_new: *max_new,
            sampling: sampling.clone(),
        }),
        _ => None,
    });
    let generates = phase.step.iter().find_map(|b| match &b.stage {
        Stage::Generate { generator, max_new, sampling, .. } => {
            let Stage::Take { data, .. } = &phase.step[*b.args.first()?].stage else { return None };
            let reward = phase.step.iter().find_map(reward_of);
            Some(View {
                generator: *generator,
                data: *data,
                reward,
                max_new: *max_new,
                sampling: sampling.clone(),
            })
        }
        _ => None,
    })?;
    Some(evaluation.unwrap_or(generates))
}

/// Is the number that a halt looks at other than 0?
fn is_true(held: &Held) -> bool {
    match held {
        Held::Tensor(t) => t.data.first().is_some_and(|x| *x != 0.0),
        _ => false,
    }
}
