//! Operations, pipelines and layers of a report, from the work of each phase.
//!
//! In: what was timed for each phase. Out: each kind of operation with its FLOPs, bytes and seconds, as a roofline
//! shows them, and the schedule of the first micro-batches of each pipeline.

use nrl_sim::forecast::{Phase, Timing};
use nrl_sim::machine::Group;
use nrl_sim::rates::Speed;
use nrl_sim::train::Job;
use nrl_sim::work::{Item, Kind};

use super::build::{Made, bf16};
use super::data::{Operation, Pipeline, Report, Task};

/// Operations of a phase that are listed: those that take longest.
const LISTED: usize = 24;
/// Micro-batches that are drawn: so many times the number of stages.
const DRAWN: usize = 3;

/// Adds operations, pipelines and layers.
pub(super) fn add(made: &Made<'_>, report: &mut Report) {
    let Some(f) = made.forecast else { return };
    for p in f.steps.iter().flat_map(|s| &s.phases) {
        let Some(Timing { job, times, rates }) = &p.job else { continue };
        let Some(machine) = nrl_driver::machine_of(made.compiled, p.mesh) else { continue };
        let speed = Speed { machine: &machine, rates, compute: f.compute };
        let half = p.model.is_some_and(|m| bf16(made.compiled, m));
        report.operations.extend(operations(p, job, *times, &speed, if half { 2.0 } else { 4.0 }));
        report.pipelines.extend(pipeline(p, job, &speed));
        report.layers.extend(super::lanes::layers(p, job, &speed));
    }
}

fn operations(p: &Phase, job: &Job, times: f64, speed: &Speed<'_>, width: f64) -> Vec<Operation> {
    let stages = job.mesh.size("pp").max(1) as f64;
    let none = |_: &[String]| Group::new(1, 1, 1);
    let mut out: Vec<Operation> = vec![];
    for (region, n) in job.work.regions() {
        for item in region.forward.iter().chain(&region.backward) {
            let Some((kind, shape, bytes)) = told(&item.kind, width) else { continue };
            let one = Item { count: 1.0, ..item.clone() };
            // Layers are dealt out to the stages of a pipeline.
            let layers = if n > 1.0 { n / stages } else { n };
            let count = layers * item.count * times * job.micro as f64;
            let (took, _) = speed.items([&one].into_iter(), &none);
            let took = took.product + took.attention + took.memory;
            let seconds = count * speed.rates.factor * took;
            match out.iter_mut().find(|o| o.kind == kind && o.shape == shape) {
                Some(o) => {
                    o.count += count;
                    o.seconds += seconds;
                }
                None => out.push(Operation {
                    phase: p.name.clone(),
                    kind: kind.into(),
                    shape,
                    count,
                    flops: one.flops(),
                    bytes,
                    seconds,
                }),
            }
        }
    }
    out.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    out.truncate(LISTED);
    out
}

/// Kind, shape and bytes of an operation; `None` for collectives.
fn told(kind: &Kind, width: f64) -> Option<(&'static str, String, f64)> {
    Some(match kind {
        Kind::Product { m, n, k, batch } => {
            let times = if *batch == 1.0 { String::new() } else { format!("{batch:.0} x ") };
            let bytes = batch * width * (m * k + k * n + m * n);
            ("product", format!("{times}[{m:.0}, {k:.0}] [{k:.0}, {n:.0}]"), bytes)
        }
        Kind::Attention { tokens, heads, width: size, context, backward } => {
            let way = if *backward { ", backward" } else { "" };
            let shape = format!("{tokens:.0} tokens over {context:.0}, {heads:.0} heads{way}");
            // Queries and results once, keys and values once per pass.
            ("attention", shape, width * 4.0 * tokens * heads * size)
        }
        Kind::Memory { bytes } => {
            ("memory", format!("{} moved", super::words::bytes(*bytes)), *bytes)
        }
        _ => return None,
    })
}

fn pipeline(p: &Phase, job: &Job, speed: &Speed<'_>) -> Option<Pipeline> {
    if job.mesh.size("pp") < 2 {
        return None;
    }
    let (line, factor) = (job.pipeline(speed), speed.rates.factor);
    let stages = line.chunks.len();
    let drawn = job.micro.min(DRAWN * stages);
    let span = line.run(job.micro);
    let tasks = line.trace(drawn).into_iter().map(|e| Task {
        stage: e.stage,
        chunk: e.chunk,
        micro_batch: e.micro,
        backward: e.backward,
        start_seconds: e.start * factor,
        end_seconds: e.end * factor,
    });
    Some(Pipeline {
        phase: p.name.clone(),
        stages,
        chunks: line.chunks.first().map_or(1, Vec::len),
        micro_batches: job.micro,
        seconds: span.seconds * factor,
        bubble: span.bubble(),
        drawn,
        tasks: tasks.collect(),
    })
}
