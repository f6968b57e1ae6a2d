//! Limits on the time of a run, and what is saved before them.

use nrl_base::Severity;

use crate::recipe::{Fact, Reached, Recipe, Seconds, Shown};
use crate::rule::{Findings, Rule, error};

const CODE: &str = "no-checkpoint-in-time";

/// Rules of time.
pub const RULES: &[Rule] = &[
    // Beyond the catalogue: a limit from outside has to be known.
    error("CKPT-30", CODE, "a run that outlives its job", |r, f| {
        let (Some(stops), Some(job)) = (&r.keeping.stops, &r.keeping.job) else { return };
        if stops.value < job.value {
            return;
        }
        let text = format!(
            "the run saves and stops after {}, the job ends after {}",
            stops.value, job.value
        );
        // Ten minutes for saving, or a tenth of short jobs.
        let before = Seconds(job.value.0 - 600f64.min(0.1 * job.value.0));
        f.found(text, &[stops, job]).help(match r.settings.is_some() {
            true => format!("`{}: \"{}\"`", stops.name, days(before)),
            false => format!("`within {}`, which leaves time to save", typed(before)),
        });
    }),
    error("CKPT-31", CODE, "a first checkpoint behind the limit", first),
];

/// The limit that comes first.
fn limit(r: &Recipe) -> Option<&Fact<Seconds>> {
    let (own, job) = (r.keeping.stops.as_ref(), r.keeping.job.as_ref());
    match (own, job) {
        (Some(own), Some(job)) if job.value < own.value => Some(job),
        (Some(own), _) => Some(own),
        (None, job) => job,
    }
}

fn first(r: &Recipe, f: &mut Findings<'_>) {
    let (Some(limit), Some(first)) = (limit(r), &r.keeping.first) else { return };
    if first.after <= limit.value {
        return;
    }
    let own = r.keeping.stops.as_ref() == Some(limit);
    // NeMo RL saves as its own limit nears, which is what that limit is for.
    if own && r.settings.is_some() {
        return;
    }
    let sure = first.low > limit.value;
    let (who, how) = match (own, sure) {
        (true, _) => ("run", "predicted"),
        (false, true) => ("job", "predicted"),
        (false, false) => ("job", "likely"),
    };
    let text = format!(
        "the {who} ends after {}; the first checkpoint is at step {}, {how} at {}",
        limit.value, first.step, first.after
    );
    let facts: [&dyn Shown; 2] = [&first.period, limit];
    let mut told = f.found(text, &facts).note(format!(
        "steps take about {}, so step {} is done after {} to {}; loading is not counted",
        first.each, first.step, first.low, first.high
    ));
    if own {
        told = told.note(
            "as its limit nears the run saves once, without an evaluation; what stops it before loses everything",
        );
    }
    if !sure {
        told = told.severity(Severity::Warning);
    }
    told.help(fits(r, first, limit));
}

/// A period that fits into the limit, or a limit that fits the period.
fn fits(r: &Recipe, first: &Reached, limit: &Fact<Seconds>) -> String {
    let before = first.after.0 - first.each.0 * first.period.value as f64;
    let most = ((limit.value.0 - before) / first.each.0).floor();
    let other = match r.settings.is_some() {
        true => "`checkpointing.checkpoint_must_save_by`".to_string(),
        false => format!("`within {}`", typed(Seconds((1.1 * first.high.0).max(1.0)))),
    };
    if most < 1.0 {
        return format!("one step takes longer than the limit; {other} gives more time");
    }
    // Half of what fits, so that a late step loses little.
    let every = (most / 2.0).ceil() as i64;
    match r.settings.is_some() {
        true => format!("`{}: {every}`, or {other}, which saves in time", first.period.name),
        false => format!("`every {every} steps {{ .. }}`, or {other}"),
    }
}

/// `03:50:00` as NeMo RL writes it.
fn days(Seconds(s): Seconds) -> String {
    let minutes = (s / 60.0).floor().max(1.0) as u64;
    format!("{:02}:{:02}:{:02}:00", minutes / 1440, minutes / 60 % 24, minutes % 60)
}

/// `230 min`, as it is typed in a recipe.
fn typed(Seconds(s): Seconds) -> String {
    match s {
        s if s >= 7200.0 && (s / 360.0).fract() == 0.0 => format!("{} h", s / 3600.0),
        s if s >= 120.0 => format!("{} min", (s / 60.0).floor()),
        s => format!("{} s", s.floor().max(1.0)),
    }
}
