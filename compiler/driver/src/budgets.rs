//! `require peak_memory <= ..`: budgets of what plans know, decided by the plans.
//!
//! In: a compiled program and its budgets. Out: an error or a warning per budget that does not hold,
//! and one note that names those that nothing can decide yet.

use nrl_base::{Diagnostic, Severity};
use nrl_lower::{Budget, Limit, Measure};
use nrl_sim::Memory;

use crate::{Compiled, fits, rules};

const GIB: f64 = 1_073_741_824.0;

/// What the budgets of a recipe find.
pub(crate) fn findings(c: &Compiled, budgets: &[Budget]) -> Vec<Diagnostic> {
    if budgets.is_empty() {
        return vec![];
    }
    let stages = fits::everywhere(c);
    let mut out = vec![];
    let mut open: Vec<(&Budget, &str)> = vec![];
    for b in budgets {
        match b.measure {
            Measure::StepTime => open.push((b, "no plan knows the time of a step yet")),
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

/// `3.1 MiB`, `86.5 GiB`.
fn size(bytes: f64) -> String {
    if bytes < GIB {
        format!("{:.2} MiB", bytes / 1_048_576.0)
    } else {
        format!("{:.1} GiB", bytes / GIB)
    }
}
