//! `require peak_memory <= ..`: budgets of what plans know, decided by the plans.
//!
//! In: a compiled program and its budgets. Out: an error or a warning per budget that does not hold,
//! and one note that names those that nothing can decide. Time is an estimate: a requirement that only the middle of its
//! interval breaks is a warning.

use nrl_base::{Diagnostic, Severity};
use nrl_lower::{Budget, Limit, Measure};
use nrl_sim::Memory;
use nrl_sim::forecast::{Forecast, Phase, Step};

use crate::{Assume, Compiled, fits, rules};

const GIB: f64 = 1_073_741_824.0;

/// What the budgets of a recipe find.
pub(crate) fn findings(c: &Compiled, budgets: &[Budget], assume: &Assume) -> Vec<Diagnostic> {
    if budgets.is_empty() {
        return vec![];
    }
    let stages = fits::everywhere(c);
    let timed = budgets.iter().any(|b| b.measure == Measure::StepTime);
    let forecast = if timed { crate::forecast(c, assume) } else { None };
    let mut out = vec![];
    let mut open: Vec<(&Budget, &str)> = vec![];
    for b in budgets {
        match b.measure {
            Measure::StepTime => match timely(b, forecast.as_ref()) {
                Ok(found) => out.extend(found),
                Err(why) => open.push((b, why)),
            },
            Measure::PeakMemory => match decided(b, &stages) {
                Ok(found) => out.extend(found),
                Err(why) => open.push((b, why)),
            },
        }
    }
    if let Some((first, _)) = open.first() {
        let what = "a budget is not decided";
        let mut d = Diagnostic::new("not-supported", Severity::Note, what);
        d = d.label(first.span, "nothing measures this");
        for (b, why) in &open {
            d = d.note(format!("`{}`: {why}", b.text));
        }
        out.push(d);
    }
    out
}

/// A memory budget against every stage; the worst one is shown.
fn decided(b: &Budget, stages: &[Memory]) -> Result<Option<Diagnostic>, &'static str> {
    let limit = |m: &Memory| match b.limit {
        Limit::Bytes(x) => Some(x),
        Limit::OfDevice(share) if m.device.memory.is_finite() => Some(share * m.device.memory),
        _ => None,
    };
    let known: Vec<(&Memory, f64)> = stages.iter().filter_map(|m| Some((m, limit(m)?))).collect();
    if stages.is_empty() {
        return Err("the recipe has no stage that computes with a model");
    }
    if known.is_empty() {
        return Err("the memory of this device is not known; give bytes, such as `76 GB`");
    }
    let over = |(m, limit): &(&Memory, f64)| m.sum() - limit;
    let worst = known.iter().max_by(|x, y| over(x).total_cmp(&over(y)));
    let Some((m, limit)) = worst.filter(|(m, limit)| !b.holds(m.sum(), *limit)) else {
        return Ok(None);
    };
    let wants = if b.severity == Severity::Error { "requires" } else { "expects" };
    let text = format!(
        "`{}` needs {} on a rank, the recipe {wants} `{}` ({})",
        m.stage,
        size(m.sum()),
        b.text,
        size(*limit)
    );
    let terms: Vec<String> =
        m.terms.iter().map(|t| format!("{} {} ({})", t.name, size(t.bytes), t.how)).collect();
    let mut d = Diagnostic::new("requirement-fails", b.severity, text).label(b.span, "this budget");
    if let Some(span) = rules::place_of(m.origin) {
        d = d.label(span, "the stage");
    }
    Ok(Some(d.note(terms.join(" + "))))
}

/// A time budget against the slowest step.
fn timely(b: &Budget, forecast: Option<&Forecast>) -> Result<Option<Diagnostic>, &'static str> {
    let Limit::Seconds(limit) = b.limit else { return Err("a step has a time, and no size") };
    let steps = forecast.map(|f| &f.steps[..]).unwrap_or_default();
    let computes = |s: &&Step| s.phases.iter().any(|p| p.seconds.value > 0.0);
    let all = steps.iter().filter(computes);
    let over = |s: &Step| !b.holds(s.seconds.value, limit);
    let worst = all
        .clone()
        .filter(|s| over(s))
        .max_by(|x, y| (x.seconds.value - limit).abs().total_cmp(&(y.seconds.value - limit).abs()));
    if all.count() == 0 {
        return Err("the recipe has no stage that computes with a model");
    }
    let (Some(step), Some(f)) = (worst, forecast) else { return Ok(None) };
    let s = &step.seconds;
    // The end of the interval that is kindest to the budget.
    let sure = !b.holds(s.low, limit) && !b.holds(s.high, limit);
    let severity = if sure { b.severity } else { Severity::Warning };
    let wants = if b.severity == Severity::Error { "requires" } else { "expects" };
    let name = if step.name.is_empty() { String::new() } else { format!(" of `{}`", step.name) };
    let may = if sure { "takes" } else { "may take" };
    let text = format!(
        "a step{name} {may} {} ({} to {}), the recipe {wants} `{}`",
        time(s.value),
        time(s.low),
        time(s.high),
        b.text
    );
    let mut d = Diagnostic::new("requirement-fails", severity, text).label(b.span, "this budget");
    let longest = step.phases.iter().max_by(|x, y| x.seconds.value.total_cmp(&y.seconds.value));
    if let Some(span) = longest.and_then(|p| rules::place_of(p.origin)) {
        d = d.label(span, "most of it");
    }
    let mut phases: Vec<&Phase> = step.phases.iter().collect();
    phases.sort_by(|x, y| y.seconds.value.total_cmp(&x.seconds.value));
    let phases: Vec<String> =
        phases.iter().take(4).map(|p| format!("`{}` {}", p.name, time(p.seconds.value))).collect();
    d = d.note(phases.join(" + "));
    let rates = f.assumed.iter().find(|a| a.what == "rates");
    d = d.note(format!("rates: {}", rates.map_or(&f.device, |a| &a.value)));
    Ok(Some(d.help(nearest(step, longest, limit, f))))
}

/// What brings a step under its limit, by how its longest phase grows.
fn nearest(step: &Step, longest: Option<&Phase>, limit: f64, f: &Forecast) -> String {
    let Some(p) = longest else { return "fewer samples per step".into() };
    let (value, own) = (step.seconds.value, p.seconds.value);
    if value <= limit {
        return "the budget asks for a longer step: more samples, or `<` in place of `>`".into();
    }
    // Samples and devices scale all phases; the longest alone may not be enough.
    let share = (limit / value).max(1e-3);
    let samples = (step.samples * share).floor().max(1.0);
    let devices = (f.devices as f64 / share).ceil();
    let part = p.parts.first().map_or(String::new(), |x| format!(", mostly {}", x.name));
    format!(
        "`{}` is {:.0} % of it{part}; about {samples:.0} samples per step in place of {:.0}, or {devices:.0} ranks in place of {}; \
         `nrlc plan` says what other settings change",
        p.name,
        100.0 * own / value,
        step.samples,
        f.devices
    )
}

/// `12.3 s`, `45.6 ms`.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{:.1} ms", 1e3 * s),
    }
}

/// `3.1 MiB`, `86.5 GiB`.
fn size(bytes: f64) -> String {
    if bytes < GIB {
        format!("{:.2} MiB", bytes / 1_048_576.0)
    } else {
        format!("{:.1} GiB", bytes / GIB)
    }
}
