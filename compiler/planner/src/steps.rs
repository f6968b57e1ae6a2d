//! Published steps of reinforcement learning beside what the planner says of them.
//!
//! In: rows of a table of whole steps (model, devices, layout, lengths, seconds by phase), stacks as data. Out: seconds by phase for
//! every row, errors, and the rows that cannot be said, each with the reason. A row becomes dims of
//! a model, a mesh of trainers, replicas of samplers and a law of lengths; nothing is known of a row but its columns.

mod passes;
mod row;
mod shape;
mod stack;
mod verdict;

use nrl_sim::lengths::Lengths;
use nrl_sim::refit::{Held, Placement, Refit, Transport, refit};
use nrl_sim::rl_step::{Rhythm, RlStep, Sampler, TrainerSeconds, rl_step};
use nrl_sim::rollout::{Load, Serving};
use serde::Serialize;

pub use passes::{Mesh, Pass, Passes};
pub use row::{Backend, Row, read};
pub use shape::Shape;
pub use stack::{Stack, Stacks};
pub use verdict::verdict;

/// One number beside its measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub phase: &'static str,
    pub predicted: f64,
    pub measured: f64,
}

impl Compared {
    /// Share by which the prediction is above the measurement.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// A row and what was said of it.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Line of the table.
    pub line: usize,
    pub row: Row,
    /// Whether the stack's rates are those of this very version.
    pub known: bool,
    pub step: RlStep,
    /// `step`, then the phases that the row states.
    pub compared: Vec<Compared>,
}

/// A table of rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub judged: Vec<Judged>,
    /// Line of the table, and why nothing is said of it.
    pub left_out: Vec<(usize, String)>,
}

impl Report {
    /// Errors of `phase`, as shares, without sign, the smallest first.
    pub fn errors(&self, phase: &str) -> Vec<f64> {
        let all = self.judged.iter().flat_map(|j| &j.compared);
        let mut errors: Vec<f64> =
            all.filter(|c| c.phase == phase).map(|c| c.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors
    }
}

/// Whether `text` is a table of steps: one that is has a column for the seconds of one.
pub fn is_steps(text: &str) -> bool {
    text.lines().next().is_some_and(|header| header.split(',').any(|name| name == "step_s"))
}

/// Predicts every row of `text`.
pub fn validate(text: &str, stacks: &Stacks) -> Result<Report, String> {
    let mut report = Report::default();
    for (line, row) in read(text)? {
        match row.and_then(|row| judge(line, row, stacks)) {
            Ok(judged) => report.judged.push(judged),
            Err(why) => report.left_out.push((line, why)),
        }
    }
    Ok(report)
}

fn judge(line: usize, row: Row, stacks: &Stacks) -> Result<Judged, String> {
    let step = predict(&row, stacks)?;
    let scored = step.seconds("logprob") + step.seconds("reference");
    let pairs = [
        ("step", step.total, Some(row.step_s)),
        ("sample", step.seconds("sample"), row.gen_s),
        ("logprob", scored, row.logprob_s),
        ("update", step.seconds("update"), row.train_s),
        ("refit", step.seconds("refit"), row.refit_s),
    ];
    let compared = pairs
        .into_iter()
        .filter_map(|(phase, predicted, m)| {
            m.map(|measured| Compared { phase, predicted, measured })
        })
        .collect();
    let known = row.version.starts_with(&stacks.find(&row.version, row.backend)?.version);
    Ok(Judged { line, row, known, step, compared })
}

/// Tokens of a prompt, assumed: the tables count 100 to 130 more tokens per sample than were generated.
const PROMPT: u32 = 110;

/// The step of a row.
pub fn predict(row: &Row, stacks: &Stacks) -> Result<RlStep, String> {
    let shape = Shape::of(&row.model)?;
    let stack = stacks.find(&row.version, row.backend)?;
    let device = stacks.device(&row.gpu)?;
    let machine = &device.machine;
    let cap = row.max_seq.saturating_sub(PROMPT).max(1);
    let (sigma, endless) = (stacks.sigma(&row.model), stacks.endless);
    let law = Lengths::Capped { mean: row.avg_seq, sigma, endless };
    let lengths = law.draw(row.prompts, row.group, cap, stacks.alike);
    let tokens: Vec<u32> = lengths.iter().map(|l| l + PROMPT).collect();

    let pass =
        Pass { shape: &shape, mesh: &row.mesh, tokens: &tokens, device, rates: &stack.passes };
    let fp8 = if row.fp8 { machine.fp8.max(1.0) } else { 1.0 };
    let budget = row.max_seq as usize * row.micro;
    let scored = if shape.recomputes { budget } else { 2 * budget };
    let update = pass.update(row.updates(), budget, fp8);
    let forward = pass.forward(scored, fp8);
    // One update per batch makes the old log-probabilities those of the update itself.
    let skip = stack.skips_old && row.updates() == 1;

    let width = if row.fp8 { 1.0 } else { 2.0 };
    let shard = shape.dims.shard(row.gen_tp, width, 2.0);
    let share = if row.colocated { 0.6 } else { 0.8 };
    let mut speed = stack.engine.speed(machine, row.gen_tp, device.host, true);
    speed.flops *= fp8;
    speed.expert_flops *= fp8;
    let guesses = stack.guesses && shape.guesses;
    let serving = Serving {
        pool: stack.engine.pool(machine, share, &shard),
        sequences: 1024,
        chunk: 16_384.0,
        pace: if guesses { stack.accepted } else { 1.0 },
        computed: if guesses { 2.0 } else { 1.0 },
        shared_prompts: true,
    };
    let load = Load {
        lengths: &lengths,
        group: row.group,
        prompt: f64::from(PROMPT),
        replicas: row.gen_gpus / row.gen_tp,
        whole_prompts: row.colocated,
    };
    let sampler = Sampler {
        shard: &shard,
        speed: &speed,
        serving: &serving,
        load: &load,
        call: stack.engine.call,
    };
    let trainer = TrainerSeconds {
        logprob: if skip { 0.0 } else { forward },
        reference: forward,
        update,
        refit: refit_seconds(row, &shape, stack, device),
        reward: 0.0,
        other: stack.other * device.host,
    };
    let rhythm = match row.delay {
        0 => Rhythm::InTurn,
        delay => Rhythm::Beside { delay, drain: stack.drains },
    };
    rl_step(&sampler, &trainer, rhythm).map_err(|e| e.to_string())
}

fn refit_seconds(row: &Row, shape: &Shape, stack: &Stack, device: &stack::Device) -> f64 {
    let width = 2.0;
    let m = &row.mesh;
    let ranks = (m.tp * m.pp * m.cp * m.dp) as f64;
    let placement = if row.colocated { Placement::Colocated } else { Placement::Disaggregated };
    let r = Refit {
        weights: shape.weights(width),
        held: Held {
            tp: m.tp,
            pp: m.pp,
            ep: m.ep,
            fsdp: if row.backend == Backend::Dtensor { m.dp } else { 1 },
        },
        sampler: (row.gen_tp, row.gen_gpus / row.gen_tp),
        placement,
        transport: Transport::Broadcast,
        // Master weights and two moments in four bytes leave the device for sampling.
        swapped: if row.colocated { 12.0 * shape.dims.params / ranks } else { 0.0 },
    };
    refit(&r, &stack.paths(device, placement)).iter().map(|e| e.seconds).sum()
}

#[cfg(test)]
mod tests;
