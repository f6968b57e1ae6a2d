//! How long a run lasts, beside the limits on its time.
//!
//! In: a compiled program whose time is limited, by itself or by the job that runs it. Out: what the rules
//! say of its first checkpoint. The time of a step is the forecast; loading is not counted.

use nrl_base::{Diagnostic, Severity, Span};
use nrl_ir::program::{Every, Stage};
use nrl_rules::recipe::{Fact, Keeping, Reached, Recipe, Seconds};
use nrl_rules::{Origin, SetBy};
use nrl_sim::forecast::Forecast;

use crate::{Compiled, Options, rules};

/// What is wrong with the limits of a run.
pub(crate) fn findings(c: &Compiled, options: &Options) -> Vec<Diagnostic> {
    let stops =
        c.program.wall_limit_s.map(|s| set("the limit of the run", Seconds(s), c.facts.limit));
    let job = options.job.map(job);
    if stops.is_none() && job.is_none() {
        return vec![];
    }
    let first = crate::forecast(c, &options.assume).and_then(|f| reached(c, &f));
    // Without a schedule a run that has a limit saves once, at its end.
    let scheduled = c.program.phases.iter().any(|p| p.every.iter().any(saves));
    let first = first.filter(|_| scheduled || stops.is_none());
    let keeping = Keeping { stops, job, first, ..Keeping::default() };
    let recipe = Recipe { keeping, ..Recipe::default() };
    nrl_rules::check(&recipe).into_iter().map(|finding| finding.diagnostic).collect()
}

/// A run whose length is not said makes one step, which few people mean.
pub fn unsaid(c: &Compiled) -> Option<Diagnostic> {
    let span = c.facts.unsaid_length?;
    let what = format!("`{}` has no `run` line: it makes one step", c.program.name);
    let d = Diagnostic::new("no-run-line", Severity::Note, what).label(span, "this recipe");
    Some(d.help("write `run 1000 steps`, or `run 1 step` if one is meant"))
}

/// The limit that a job has from outside.
pub(crate) fn job(seconds: f64) -> Fact<Seconds> {
    Fact::derived("the time of the job", Seconds(seconds), "given with `--time`".into(), &[])
}

fn set<T>(name: &str, value: T, span: Option<Span>) -> Fact<T> {
    match span {
        Some(at) => {
            let origin = Origin { by: SetBy::File, key: at, value: at, source: None };
            Fact::set(name, value, origin)
        }
        None => Fact::default(name, value),
    }
}

fn saves(every: &Every) -> bool {
    every.stages.iter().any(|b| matches!(b.stage, Stage::Checkpoint { .. }))
}

/// When the first checkpoint of the schedule is due: in the first phase that has one, or behind the last step.
fn reached(c: &Compiled, forecast: &Forecast) -> Option<Reached> {
    let (mut steps, mut after, mut low, mut high) = (0, 0.0, 0.0, 0.0);
    for (phase, step) in c.program.phases.iter().zip(&forecast.steps) {
        let s = &step.seconds;
        let first = phase.every.iter().filter(|e| saves(e)).min_by_key(|e| e.period);
        let here = first.map_or(phase.steps, |e| e.period.min(phase.steps));
        let n = here as f64;
        (after, low, high) = (after + n * s.value, low + n * s.low, high + n * s.high);
        steps += here;
        let last = std::ptr::eq(phase, c.program.phases.last()?);
        if first.is_none() && !last {
            continue;
        }
        let origin = first.and_then(|e| {
            let save = e.stages.iter().find(|b| matches!(b.stage, Stage::Checkpoint { .. }))?;
            rules::place_of(save.origin)
        });
        let name = if first.is_some() { "steps between checkpoints" } else { "steps of the run" };
        return Some(Reached {
            period: set(name, i64::try_from(here).ok()?, origin),
            step: i64::try_from(steps).ok()?,
            after: Seconds(after),
            low: Seconds(low),
            high: Seconds(high),
            each: Seconds(s.value),
        });
    }
    None
}
