//! Runs the stages of a step in their order.
//!
//! In: the bindings of a step (or of an `every` block), the machine, the data. Out: what each binding holds, and the
//! numbers that the step reports. Stages that share a graph and its inputs share one run of it.

mod graded;
mod graphs;

use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use nrl_ir::program::{Binding, Data, GraphInput, Sampling, Stage};
use serde_json::{Map, json};

use crate::eval;
use crate::reward::Scorer;
use crate::rng::{Stream, hash};
use crate::rollout::Job;
use crate::rollout::batch::{Batch, Prompt};
use crate::run::collect;
use crate::run::error::{Outcome, RunError};
use crate::run::machine::Machine;
use crate::run::source::{Prompts, complete};
use crate::run::value::{Held, Level, Tensor};

/// What the stages of a run work on.
pub struct Shop {
    pub machine: Machine,
    pub data: Vec<Option<Prompts>>,
    pub scorers: Vec<Option<Scorer>>,
}

/// Where a step stands in its run.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub phase: usize,
    /// Counted from 1, in the phase and in the run.
    pub in_phase: usize,
    pub of_phase: usize,
    pub step: u64,
    /// No reward of this run has worked so far.
    pub unscored: bool,
}

/// One pass over a list of bindings.
pub struct Pass<'a> {
    shop: &'a mut Shop,
    list: &'a [Binding],
    place: Place,
    pub held: Vec<Held>,
    pub numbers: IndexMap<String, f64>,
    /// Notes for the reader: a cap that was cut, a reward that failed.
    pub notes: Vec<String>,
    pub failed_rewards: u64,
    pub skipped_updates: u64,
    /// Prompt and completion tokens that went through generation or training.
    tokens: usize,
    seconds: IndexMap<&'static str, f64>,
    runs: Vec<(usize, Vec<GraphInput>, Vec<Tensor>)>,
    /// Models that this step has updated.
    updated: Vec<usize>,
    /// Round of the `collect` that is going on, counted from 1.
    round: usize,
}

impl<'a> Pass<'a> {
    pub fn new(shop: &'a mut Shop, list: &'a [Binding], place: Place) -> Pass<'a> {
        Pass {
            shop,
            list,
            place,
            held: vec![],
            numbers: IndexMap::new(),
            notes: vec![],
            failed_rewards: 0,
            skipped_updates: 0,
            tokens: 0,
            seconds: IndexMap::new(),
            runs: vec![],
            updated: vec![],
            round: 1,
        }
    }

    /// Runs every stage but checkpoints, which `save` makes once the numbers of this pass are known.
    pub fn run(&mut self) -> Outcome<()> {
        let start = Instant::now();
        for i in 0..self.list.len() {
            let binding = &self.list[i];
            if self.place.in_phase < binding.from {
                self.held.push(Held::Nothing);
                continue;
            }
            let begin = Instant::now();
            let held = self.stage(i, binding).map_err(|e| at_line(e, binding))?;
            self.held.push(held);
            *self.seconds.entry(kind(&binding.stage)).or_default() += begin.elapsed().as_secs_f64();
        }
        let total = start.elapsed().as_secs_f64();
        if self.tokens > 0 {
            self.numbers.insert("tokens_per_second".into(), self.tokens as f64 / total.max(1e-9));
        }
        for (name, s) in std::mem::take(&mut self.seconds) {
            self.numbers.insert(format!("seconds/{name}"), s);
        }
        self.numbers.insert("seconds/step".into(), total);
        Ok(())
    }

    fn stage(&mut self, i: usize, binding: &Binding) -> Outcome<Held> {
        match &binding.stage {
            Stage::Take { data, count, complete } => self.take(*data, *count, *complete),
            Stage::Generate { generator, copies, max_new, sampling } => {
                self.generate(binding, (*generator, *copies, *max_new), sampling)
            }
            Stage::Reward { reward } => self.reward(binding, *reward),
            Stage::Compute { graph, output, inputs, scalars } => {
                let fresh = !self.runs.iter().any(|(g, ..)| g == graph);
                let all = self.outputs(binding, *graph, inputs, scalars, 1.0, None)?;
                if let Some(values) = all.get(*output).filter(|_| fresh) {
                    self.combined(binding, inputs, values);
                }
                Ok(pick(all, *output))
            }
            Stage::Forward { model, graph, output, inputs, temperature, tokens } => {
                let fresh = !self.runs.iter().any(|(g, ..)| g == graph);
                let all = self.outputs(
                    binding,
                    *graph,
                    inputs,
                    &[],
                    *temperature,
                    Some((*model, *tokens)),
                )?;
                if fresh {
                    self.gap(binding, *model, *graph, *output, &all)?;
                }
                Ok(pick(all, *output))
            }
            Stage::Update { .. } => self.update(i, binding),
            Stage::Evaluate { .. } => self.evaluate(binding),
            Stage::Checkpoint { .. } => Ok(Held::Nothing),
            Stage::Collect { first, groups, rounds } => {
                self.collect(binding, *first..i, *groups, *rounds)
            }
        }
    }

    fn data(&mut self, data: usize) -> Outcome<&mut Prompts> {
        self.shop.data[data].as_mut().ok_or_else(|| RunError::internal("data that was not opened"))
    }

    fn take(&mut self, data: usize, count: usize, answers: bool) -> Outcome<Held> {
        let prompts = self.data(data)?.take(count)?;
        if !answers {
            return Ok(Held::Prompts(Arc::new(prompts)));
        }
        let model = self.shop.machine.program().data[data].model;
        let context = self.shop.machine.program().models[model].context;
        let rejected = self.shop.machine.program().data[data].rejected.clone();
        let text = &self.shop.machine.texts[model];
        let batch = complete(prompts, rejected.as_deref(), text, context)?;
        Ok(Held::Samples(Arc::new(batch)))
    }

    fn stream(&self, name: &str) -> Stream {
        let seed = self.shop.machine.program().seed;
        let stream = Stream::new(seed)
            .child(hash(name.as_bytes()))
            .child(self.place.phase as u64)
            .child(self.place.step);
        if self.round > 1 { stream.child(self.round as u64) } else { stream }
    }

    /// Repeats `body` until enough of its groups are kept, or for all rounds.
    fn collect(
        &mut self,
        binding: &Binding,
        body: std::ops::Range<usize>,
        groups: usize,
        rounds: usize,
    ) -> Outcome<Held> {
        let mut kept: Vec<Option<Held>> = vec![None; body.len()];
        let mut found = 0;
        for round in 1..=rounds {
            if round > 1 {
                self.round = round;
                self.runs.clear();
                for j in body.clone() {
                    let b = &self.list[j];
                    let begin = Instant::now();
                    self.held[j] = self.stage(j, b).map_err(|e| at_line(e, b))?;
                    *self.seconds.entry(kind(&b.stage)).or_default() +=
                        begin.elapsed().as_secs_f64();
                }
            }
            let batch = self.held[body.clone()].iter().find_map(|h| match h {
                Held::Samples(b) => Some(b.clone()),
                _ => None,
            });
            let batch = batch.ok_or_else(|| RunError::internal("a collect without samples"))?;
            let cond = match binding.args.first().map(|a| &self.held[*a]) {
                Some(Held::Tensor(t)) => Some(t.data.clone()),
                _ => None,
            };
            let holds =
                |g: &usize| cond.as_ref().is_none_or(|c| c.get(*g).is_some_and(|x| *x != 0.0));
            let chosen: Vec<usize> =
                (0..batch.prompts.len()).filter(holds).take(groups - found).collect();
            found += chosen.len();
            for (slot, held) in kept.iter_mut().zip(&self.held[body.clone()]) {
                let part = collect::part(held, &batch, &chosen);
                *slot = Some(match slot.take() {
                    Some(before) => collect::join(before, part),
                    None => part,
                });
            }
            self.numbers.insert("collect/rounds".into(), round as f64);
            if found >= groups {
                break;
            }
        }
        self.round = 1;
        self.runs.clear();
        for (j, held) in body.zip(kept) {
            self.held[j] = held.unwrap_or(Held::Nothing);
        }
        self.numbers.insert("collect/groups".into(), found as f64);
        if found < groups {
            self.notes.push(format!(
                "only {found} of {groups} groups met the condition in {rounds} rounds; the step learns from those"
            ));
        }
        Ok(Held::Nothing)
    }

    fn generate(
        &mut self,
        binding: &Binding,
        (generator, copies, max_new): (usize, usize, Option<usize>),
        sampling: &Sampling,
    ) -> Outcome<Held> {
        let Some(Held::Prompts(prompts)) = binding.args.first().map(|a| &self.held[*a]) else {
            return Err(RunError::internal(format!("`{}` has no prompts", binding.name)));
        };
        let prompts = prompts.clone();
        let job = job(
            &self.shop.machine,
            generator,
            prompts,
            copies,
            max_new,
            sampling,
            self.stream(&binding.name),
        );
        let (batch, capped) = self.shop.machine.generate(job)?;
        if capped > 0 {
            let context = self.shop.machine.program().models
                [self.shop.machine.program().generators[generator].model]
                .context;
            let most = max_new.unwrap_or(context);
            self.notes.push(format!(
                "`{}`: max_new {most} is cut to what the context of {context} leaves",
                binding.name
            ));
        }
        self.tokens += (0..batch.samples.len()).map(|s| batch.length(s)).sum::<usize>();
        self.lengths(&batch);
        Ok(Held::Samples(Arc::new(batch)))
    }

    fn lengths(&mut self, batch: &Batch) {
        let n = batch.samples.len().max(1) as f64;
        let lengths: Vec<f64> = batch.samples.iter().map(|s| s.ids.len() as f64).collect();
        let truncated = batch.samples.iter().filter(|s| !s.finished).count() as f64;
        let entropies: Vec<f64> =
            batch.samples.iter().flat_map(|s| &s.entropies).map(|x| f64::from(*x)).collect();
        let mut put = |name: &str, x: f64| self.numbers.insert(name.into(), x);
        put("response/length_mean", lengths.iter().sum::<f64>() / n);
        put("response/length_max", lengths.iter().copied().fold(0.0, f64::max));
        put("response/truncated", truncated / n);
        if !entropies.is_empty() {
            put("entropy", entropies.iter().sum::<f64>() / entropies.len() as f64);
        }
    }

    fn batch_of(&self, binding: &Binding) -> Arc<Batch> {
        fn find(list: &[Binding], held: &[Held], args: &[usize]) -> Option<Arc<Batch>> {
            args.iter().find_map(|a| match held.get(*a)? {
                Held::Samples(batch) => Some(batch.clone()),
                _ => find(list, held, &list[*a].args),
            })
        }
        find(self.list, &self.held, &binding.args).unwrap_or_default()
    }

    fn evaluate(&mut self, binding: &Binding) -> Outcome<Held> {
        let Stage::Evaluate { generator, data, limit, copies, sampling, max_new, reward, correct } =
            &binding.stage
        else {
            return Ok(Held::Nothing);
        };
        let prompts: Vec<Arc<Prompt>> = self.data(*data)?.first(limit.unwrap_or(usize::MAX))?;
        let stream = self.stream(&binding.name);
        let job = job(
            &self.shop.machine,
            *generator,
            Arc::new(prompts),
            *copies,
            *max_new,
            sampling,
            stream,
        );
        let (batch, _) = self.shop.machine.generate(job)?;
        let scored = self.score(*reward, &batch)?;
        let numbers = eval::report(&batch, &scored, *copies, *correct);
        for (name, x) in &numbers {
            self.numbers.insert(format!("{}.{name}", binding.name), *x);
        }
        Ok(Held::Numbers(numbers))
    }

    /// The first samples of this pass, prompt by prompt, with the numbers that the step gave them.
    pub fn samples(&self, most: usize) -> Vec<Map<String, serde_json::Value>> {
        let found = self.held.iter().find_map(|h| match h {
            Held::Samples(b) if b.is_sampled() => Some(b.clone()),
            _ => None,
        });
        let Some(batch) = found else { return vec![] };
        let per = |i: usize| {
            let s = &batch.samples[i];
            let prompt = &batch.prompts[s.prompt];
            let mut map = Map::new();
            map.insert("prompt".into(), prompt.text.clone().into());
            map.insert("completion".into(), s.text.clone().into());
            map.insert("answer".into(), prompt.answer.to_json());
            map.insert("row".into(), prompt.number.into());
            map.insert("copy".into(), s.copy.into());
            map.insert("ids".into(), json!(s.ids));
            map.insert("finished".into(), s.finished.into());
            map.insert(
                "logprob_mean".into(),
                json!(s.logprobs.iter().sum::<f32>() / s.logprobs.len().max(1) as f32),
            );
            for (b, held) in self.list.iter().zip(&self.held) {
                match held {
                    Held::Reward { values, valid } if values.data.len() == batch.samples.len() => {
                        let x = (valid.data[i] > 0.0).then_some(values.data[i]);
                        map.insert(b.name.clone(), json!(x));
                    }
                    Held::Tensor(t)
                        if t.level == Level::Sample && t.data.len() == batch.samples.len() =>
                    {
                        map.insert(b.name.clone(), json!(t.data[i]));
                    }
                    _ => {}
                }
            }
            map
        };
        (0..batch.samples.len().min(most)).map(per).collect()
    }
}

/// A generation job of a stage.
pub fn job(
    machine: &Machine,
    generator: usize,
    prompts: Arc<Vec<Arc<Prompt>>>,
    copies: usize,
    max_new: Option<usize>,
    sampling: &Sampling,
    stream: Stream,
) -> Job {
    let model = machine.program().generators[generator].model;
    let text = machine.texts[model].clone();
    Job {
        generator,
        prompts,
        copies,
        max_new,
        options: sampling.clone(),
        stream,
        text,
        on_token: None,
    }
}

fn pick(outputs: Vec<Tensor>, output: usize) -> Held {
    outputs.into_iter().nth(output).map_or(Held::Nothing, Held::Tensor)
}

fn field_of(batch: &Batch, field: &str) -> Option<Tensor> {
    let per = |f: &dyn Fn(&crate::rollout::batch::Sample) -> f32| {
        Tensor::new(Level::Sample, batch.samples.iter().map(f).collect())
    };
    match field {
        "logprob" => {
            let data: Vec<f32> =
                batch.samples.iter().flat_map(|s| s.logprobs.iter().copied()).collect();
            (data.len() == batch.tokens()).then(|| Tensor::new(Level::Token, data))
        }
        "length" => Some(per(&|s| s.ids.len() as f32)),
        "truncated" => Some(per(&|s| f32::from(!s.finished))),
        "chosen" => Some(per(&|s| f32::from(s.copy == 0))),
        "rejected" => Some(per(&|s| f32::from(s.copy == 1))),
        _ => None,
    }
}

fn kind(stage: &Stage) -> &'static str {
    match stage {
        Stage::Take { .. } => "data",
        Stage::Generate { .. } => "generate",
        Stage::Reward { .. } => "reward",
        Stage::Compute { .. } => "compute",
        Stage::Forward { .. } => "logprob",
        Stage::Update { .. } => "update",
        Stage::Evaluate { .. } => "evaluate",
        Stage::Checkpoint { .. } => "checkpoint",
        Stage::Collect { .. } => "collect",
    }
}

fn at_line(e: RunError, binding: &Binding) -> RunError {
    if binding.line == 0 || e.message.contains("(line ") {
        return e;
    }
    RunError { message: format!("{} (line {}: `{}`)", e.message, binding.line, binding.name), ..e }
}

/// Data sets that a list of bindings reads, with whether they are only evaluated on.
pub fn data_of(list: &[Binding]) -> Vec<usize> {
    let one = |b: &Binding| match &b.stage {
        Stage::Take { data, .. } | Stage::Evaluate { data, .. } => Some(*data),
        _ => None,
    };
    list.iter().filter_map(one).collect()
}

/// Opens one data set.
pub fn open_data(machine: &Machine, data: &Data) -> Outcome<Prompts> {
    let program = machine.program();
    Prompts::open(
        data,
        &machine.texts[data.model],
        program.models[data.model].context,
        program.seed,
    )
}
