//! The forecast of a recipe whose ranks are threads.
//!
//! In: tasks, the rates and the host of this machine. Out: a [`Forecast`] like that of any other machine: seconds by phase
//! with their parts, what runs now and then beside them, what was assumed.

use nrl_ir::program::{Phase as Section, Stage};
use nrl_sim::calibration::Threads;
use nrl_sim::forecast::{Assumed, Estimate, Forecast, Part, Periodic, Phase, Source, Step, Timing};
use nrl_sim::rates::{Compute, Seconds};

use super::{Cast, Task, on_threads, ranks, tasks};
use crate::forecast::parts;
use crate::{Assume, Compiled, fits};

/// What a step takes on threads of this process; `None` if a mesh is on devices.
pub(crate) fn forecast(c: &Compiled, assume: &Assume) -> Option<Forecast> {
    if !on_threads(c) || c.program.phases.is_empty() {
        return None;
    }
    let ranks = ranks(c);
    let threads = match &assume.calibration {
        Some(calibration) => calibration.find(ranks),
        None => Threads::typical(ranks),
    };
    let mut assumed = vec![];
    let steps =
        c.program.phases.iter().map(|s| step(c, assume, &threads, s, &mut assumed)).collect();
    let help = match threads.source {
        Source::Calibrated => "`nrlc calibrate` measures it again",
        _ => "`nrlc calibrate` measures this machine",
    };
    assumed.push(Assumed {
        what: "rates".into(),
        value: threads.entry.clone(),
        source: threads.source,
        help: help.into(),
    });
    let mut not_modelled = vec![];
    if c.program
        .phases
        .iter()
        .flat_map(|p| &p.step)
        .any(|b| matches!(b.stage, Stage::Collect { .. }))
    {
        not_modelled.push("rounds of `collect` after the first".into());
    }
    not_modelled.push("other programs on this machine".into());
    Some(Forecast {
        recipe: c.program.name.clone(),
        devices: ranks,
        device: "thread".into(),
        stack: "cpu".into(),
        rates: threads.rates.clone(),
        compute: Compute::default(),
        steps,
        memory: fits::on_machine(c, &threads.machine),
        assumed,
        not_modelled,
    })
}

fn step(
    c: &Compiled,
    assume: &Assume,
    threads: &Threads,
    section: &Section,
    assumed: &mut Vec<Assumed>,
) -> Step {
    let cast = Cast { c, assume };
    let (mut samples, mut tokens) = (0.0f64, 0.0f64);
    for b in &section.step {
        // Prompts alone are of no length yet.
        if matches!(b.stage, Stage::Take { complete: false, .. }) {
            continue;
        }
        let Some(s) = cast.samples(&section.step, b) else { continue };
        for a in &s.lengths.assumed {
            if !assumed.contains(a) {
                assumed.push(a.clone());
            }
        }
        samples = samples.max(s.count);
        tokens = tokens.max(s.count * (s.lengths.prompt + s.lengths.mean));
    }
    let all = tasks(c, assume, &section.step);
    let mut phases: Vec<Phase> = all.iter().map(|t| phase(c, threads, t)).collect();
    for (p, t) in phases.iter_mut().zip(&all) {
        let found = t.reward.and_then(|i| crate::forecast::latency(c, i, t.chore.rewards));
        if let Some((seconds, what)) = found {
            p.seconds = p.seconds.plus(seconds);
            assumed.push(what);
        }
    }
    let zero = Estimate { source: Source::Counted, ..Estimate::default() };
    let seconds = phases.iter().fold(zero, |sum, p| sum.plus(p.seconds));
    let budget = section.step.iter().find_map(|b| match &b.stage {
        Stage::Update { tokens, .. } => Some(*tokens as f64),
        _ => None,
    });
    let filled = all.iter().find(|t| t.stage == "update").map(|t| t.micro_tokens);
    let padding = match (budget, filled) {
        (Some(budget), Some(filled)) => (1.0 - filled / budget).clamp(0.0, 1.0),
        _ => 0.0,
    };
    let mut every = vec![];
    for e in &section.every {
        for t in tasks(c, assume, &e.stages) {
            let seconds = phase(c, threads, &t).seconds;
            every.push(Periodic { name: t.name, period: e.period, seconds });
        }
    }
    Step {
        name: section.name.clone(),
        steps: section.steps,
        seconds,
        phases,
        traffic: vec![],
        samples,
        tokens,
        padding,
        every,
    }
}

/// A task as a phase of a step.
fn phase(c: &Compiled, threads: &Threads, t: &Task) -> Phase {
    let pace = threads.pace();
    let passes = t.chore.passes(&pace);
    let beside = t.chore.beside(&pace);
    let mut seconds = beside.sum();
    let mut all: Vec<Part> = vec![];
    let (mut forward, mut backward, mut flops) = (Seconds::default(), Seconds::default(), 0.0);
    for (took, times) in &passes {
        seconds += took.seconds * times;
        forward = forward.plus(took.forward, *times);
        backward = backward.plus(took.backward, *times);
        flops += took.flops * times;
        for p in parts(took, *times) {
            match all.iter_mut().find(|x| x.name == p.name) {
                Some(x) => x.seconds += p.seconds,
                None => all.push(p),
            }
        }
    }
    for p in &mut all {
        if p.name == "waiting for launches" {
            p.name = "starting kernels".into();
        }
    }
    let more = [
        ("drawing tokens", beside.drawing),
        ("gathering weights", beside.weights),
        ("scoring and reading rows", beside.rewards),
        ("writing", beside.writing),
        ("host", beside.host),
    ];
    let more = more.into_iter().filter(|(_, s)| *s > 0.0);
    all.extend(more.map(|(name, seconds)| Part { name: name.into(), seconds }));
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let devices = c.program.meshes.get(t.mesh).map_or(1, |(_, m)| m.ranks());
    let peak = threads.machine.flops * devices as f64;
    let generated = t.generated.map(|g| nrl_sim::generate::Generated { seconds, ..g });
    let job = match (&t.chore.passes[..], t.stage) {
        ([(job, times)], "update" | "logprob") => {
            Some(Timing { job: Box::new(job.clone()), times: *times, rates: threads.rates.clone() })
        }
        _ => None,
    };
    Phase {
        kind: t.kind,
        name: t.name.clone(),
        origin: t.origin,
        model: t.model,
        mesh: t.mesh,
        devices,
        seconds: Estimate::around(seconds, threads.spread + t.spread, threads.source),
        parts: all,
        forward,
        backward,
        flops,
        mfu: (flops > 0.0 && seconds > 0.0).then(|| flops / (seconds * peak)),
        bubble: 0.0,
        micro: t.micro,
        micro_tokens: t.micro_tokens,
        generated,
        job,
    }
}
