//! What a recipe would gain from other settings, by compiling it with them.
//!
//! In: a recipe and its plan. Out: changes with what they do to the step and to memory, and whether the mathematics
//! stays the same. Every number comes from a plan that was made; a variant that does not compile is left out.

use nrl_driver::Compiled;
use nrl_ir::program::{Stage, Weights};
use nrl_lower::facts::Law;
use nrl_sim::Memory;
use nrl_sim::forecast::Forecast;

use super::data::{Change, MemoryChange};
use crate::edit;
use crate::input::{Input, Planned};

/// How many lines are shown.
const SHOWN: usize = 6;

/// A variant to be tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    pub name: String,
    pub sets: Vec<String>,
    /// Another text, where settings do not reach.
    pub text: Option<String>,
    /// A model whose passes go away.
    pub drops: Option<String>,
    /// Why the mathematics is another one; `None` where it is the same.
    pub differs: Option<String>,
    pub remark: String,
}

/// The best changes: those that make a step shorter, then those that leave more memory.
pub fn changes(input: &Input<'_>, planned: &Planned) -> Vec<Change> {
    let Some(base) = &planned.forecast else { return vec![] };
    let tried = variants(input, planned).into_iter().filter_map(|v| tried(input, base, v));
    let mut all: Vec<Change> = tried.collect();
    let matters = |c: &Change| {
        let seconds = c.seconds_difference.abs() > 0.005 * mean(base);
        seconds || c.memory.iter().any(|m| (m.before_bytes - m.after_bytes).abs() > 1e9)
    };
    all.retain(matters);
    // What does not fit now is helped first by what fits.
    let fits = base.memory.iter().all(|m| m.margin() >= 0.0);
    let saved = |c: &Change| c.memory.first().map_or(0.0, |m| m.before_bytes - m.after_bytes);
    let (mut best, mut rest): (Vec<Change>, Vec<Change>) =
        all.into_iter().partition(|c| c.fits && c.seconds_difference < 0.0);
    best.sort_by(|a, b| a.seconds_difference.total_cmp(&b.seconds_difference));
    rest.retain(|c| c.fits && saved(c) > 0.0 || !fits && saved(c) > 0.0);
    rest.sort_by(|a, b| b.fits.cmp(&a.fits).then(saved(b).total_cmp(&saved(a))));
    if !fits {
        rest.truncate(3);
        best.truncate(SHOWN - rest.len());
        rest.extend(best);
        return rest;
    }
    best.truncate(SHOWN - rest.len().min(2));
    let room = SHOWN - best.len();
    best.extend(rest.into_iter().take(room.min(3)));
    best
}

/// Seconds of a mean step, without what runs now and then.
fn mean(f: &Forecast) -> f64 {
    let all: f64 = f.steps.iter().map(|s| s.seconds.value * s.steps as f64).sum();
    all / f.steps.iter().map(|s| s.steps).sum::<usize>().max(1) as f64
}

fn tried(input: &Input<'_>, base: &Forecast, v: Variant) -> Option<Change> {
    let mut other = input.with_sets(&v.sets);
    other.assume.steps_alone = true;
    if let Some(text) = &v.text {
        other = other.with_text(text.clone());
    }
    let (planned, _) = other.plan();
    let forecast = planned?.forecast?;
    if !same_parts(base, &forecast, v.drops.as_deref()) {
        return None;
    }
    let fits = forecast.memory.iter().all(|m| m.margin() >= 0.0);
    let why = match (&v.differs, v.remark.is_empty()) {
        (Some(why), true) => why.clone(),
        (Some(why), false) => format!("{why}; {}", v.remark),
        (None, _) => v.remark.clone(),
    };
    Some(Change {
        change: v.name,
        set: v.sets,
        step_seconds: mean(&forecast),
        seconds_difference: mean(&forecast) - mean(base),
        memory: moved(&base.memory, &forecast.memory),
        fits,
        same_mathematics: v.differs.is_none(),
        why,
    })
}

/// Are the same stages forecast, but for passes of a model that is gone? A plan of which less is known
/// looks better than it is.
fn same_parts(a: &Forecast, b: &Forecast, gone: Option<&str>) -> bool {
    let names = |f: &Forecast| {
        let phases = f.steps.iter().flat_map(|s| s.phases.iter().map(|p| p.name.clone()));
        let mut all: Vec<String> =
            phases.chain(f.memory.iter().map(|m| format!("bytes of {}", m.stage))).collect();
        all.retain(|name| gone.is_none_or(|gone| !name.ends_with(&format!(" by {gone}"))));
        all.sort();
        all
    };
    names(a) == names(b)
}

/// Stages whose bytes change by more than 50 MB, the largest change first.
fn moved(before: &[Memory], after: &[Memory]) -> Vec<MemoryChange> {
    // Moments beside the stages of a step follow from them.
    let beside = ["refit ", "evaluate ", "checkpoint "];
    let mut out: Vec<MemoryChange> = before
        .iter()
        .filter(|b| !beside.iter().any(|word| b.stage.starts_with(word)))
        .filter_map(|b| {
            let bytes = after.iter().find(|a| a.stage == b.stage)?.sum();
            let change =
                MemoryChange { stage: b.stage.clone(), before_bytes: b.sum(), after_bytes: bytes };
            ((bytes - b.sum()).abs() > 5e7).then_some(change)
        })
        .collect();
    let by = |m: &MemoryChange| (m.after_bytes - m.before_bytes).abs();
    out.sort_by(|a, b| by(b).total_cmp(&by(a)));
    out
}

/// What is worth trying, in the order of the recipe.
pub fn variants(input: &Input<'_>, planned: &Planned) -> Vec<Variant> {
    let c = &planned.compiled;
    let mut sources = nrl_base::SourceMap::new();
    let paths = input.paths(&mut sources);
    let has = |path: &str| paths.iter().any(|n| n.path == path);
    let text = |path: &str| {
        let span = paths.iter().find(|n| n.path == path)?.value?;
        Some(sources.text(span).to_string())
    };
    let mut out = vec![];
    axes(c, &has, &mut out);
    plans(c, &text, &mut out);
    offload(planned, &text, &mut out);
    for path in paths.iter().map(|n| n.path.as_str()) {
        if path.ends_with("update.microbatch") {
            budgets(path, text(path), &mut out);
        }
        if path.ends_with("update.updates") {
            updates(path, text(path), &mut out);
        }
        if path.ends_with(".max_new") {
            lengths(c, path, &mut out);
        }
    }
    references(input, c, &mut out);
    out
}

/// Double and half of every axis that cuts models.
fn axes(c: &Compiled, has: &dyn Fn(&str) -> bool, out: &mut Vec<Variant>) {
    for (i, (mesh, m)) in c.program.meshes.iter().enumerate() {
        let gpu = c.facts.meshes.get(i).and_then(|f| f.cluster);
        if gpu.is_none_or(|k| !c.facts.clusters[k].device.gpu) {
            continue;
        }
        for axis in m.axes.iter().filter(|a| ["tp", "rtp", "pp", "cp"].contains(&a.name.as_str())) {
            let path = format!("{mesh}.{}", axis.name);
            if !has(&path) {
                continue;
            }
            let sizes = [Some(axis.size * 2), (axis.size > 1).then_some(axis.size / 2)];
            for size in sizes.into_iter().flatten() {
                out.push(Variant {
                    name: format!("{mesh} {} {} -> {size}", axis.name, axis.size),
                    sets: vec![format!("{path}={size}")],
                    text: None,
                    drops: None,
                    differs: None,
                    remark: String::new(),
                });
            }
        }
    }
}

/// Sequence parallelism and recomputation of the plans of models that are trained.
fn plans(c: &Compiled, text: &dyn Fn(&str) -> Option<String>, out: &mut Vec<Variant>) {
    let mut seen = vec![];
    for b in c.program.phases.iter().flat_map(|p| &p.step) {
        let Stage::Update { model, .. } = &b.stage else { continue };
        let (name, mesh) = (&c.program.models[*model].name, c.program.models[*model].mesh);
        let path = format!("place.{name}.by");
        let Some(plan) = text(&path).filter(|_| !seen.contains(model)) else { continue };
        seen.push(*model);
        let mut put = |argument: &str, value: &str, remark: &str| {
            out.push(Variant {
                name: format!("{argument}: {value}"),
                sets: vec![format!("{path}.{argument}={value}")],
                text: None,
                drops: None,
                differs: None,
                remark: remark.into(),
            })
        };
        let written = |argument: &str| text(&format!("{path}.{argument}"));
        if plan.contains("megatron") {
            let on = written("sp").as_deref() == Some("true");
            if !on && c.program.meshes[mesh].1.size("tp") > 1 {
                put("sp", "true", "tokens outside of products are split over tp");
            }
            let m = &c.program.models[*model];
            let apart = m.dims.find("expert").is_some() && c.program.meshes[mesh].1.size("ep") > 1;
            // NeMo RL has no key for it.
            let elsewhere = c.framework.stack.is_some();
            if apart && !elsewhere && written("paired").as_deref() != Some("true") {
                put("paired", "true", "micro-batches compute while others wait for experts");
            }
            let now = written("recompute").unwrap_or_else(|| "none".into());
            for other in ["none", "selective", "full"].into_iter().filter(|o| *o != now) {
                put("recompute", other, "");
            }
        } else if !plan.contains("recomputed") {
            out.push(Variant {
                name: "plans.recomputed()".into(),
                sets: vec![format!("{path}={plan} * plans.recomputed()")],
                text: None,
                drops: None,
                differs: None,
                remark: String::new(),
            });
        }
    }
}

/// The optimizer on hosts, where an update does not fit.
fn offload(planned: &Planned, text: &dyn Fn(&str) -> Option<String>, out: &mut Vec<Variant>) {
    let Some(f) = &planned.forecast else { return };
    for m in f.memory.iter().filter(|m| m.is_update() && m.margin() < 0.0) {
        let away = planned.compiled.away(m.model);
        let path = format!("place.{}.by", planned.compiled.program.models[m.model].name);
        let Some(plan) = text(&path).filter(|_| away.of_state() == 0.0) else {
            continue;
        };
        out.push(Variant {
            name: "plans.offloaded()".into(),
            sets: vec![format!("{path}={plan} * plans.offloaded()")],
            text: None,
            drops: None,
            differs: None,
            remark: String::new(),
        });
    }
}

fn number(text: &str) -> Option<(u64, &str)> {
    let (digits, unit) = text.split_once(' ')?;
    Some((digits.replace('_', "").parse().ok()?, unit))
}

/// Double and half of the tokens of a micro-batch.
fn budgets(path: &str, text: Option<String>, out: &mut Vec<Variant>) {
    let Some(text) = text else { return };
    let Some((n, unit)) = number(&text) else { return };
    for to in [n * 2, n / 2] {
        out.push(Variant {
            name: format!("{n} -> {to} {unit}"),
            sets: vec![format!("{path}={to} {unit}")],
            text: None,
            drops: None,
            differs: None,
            remark: String::new(),
        });
    }
}

/// One update in place of several.
fn updates(path: &str, text: Option<String>, out: &mut Vec<Variant>) {
    let Some(text) = text else { return };
    let Some((n, _)) = number(&text).filter(|(n, _)| *n > 1) else { return };
    out.push(Variant {
        name: format!("{n} updates -> 1"),
        sets: vec![format!("{path}=1 update")],
        text: None,
        drops: None,
        differs: Some(format!("one optimizer step of {n} times the batch; the ratio stays 1")),
        remark: String::new(),
    });
}

/// Half as many new tokens at most.
fn lengths(c: &Compiled, path: &str, out: &mut Vec<Variant>) {
    let steps = c.program.phases.iter().flat_map(|p| &p.step);
    let found = steps.filter_map(|b| match &b.stage {
        Stage::Generate { generator, max_new, .. } => {
            let model = c.program.generators[*generator].model;
            Some(max_new.unwrap_or(c.program.models[model].context))
        }
        _ => None,
    });
    let Some(most) = found.max() else { return };
    let to = most / 2;
    let law = c.facts.assumptions.iter().find(|a| a.of == "lengths").map(|a| &a.law);
    let share = law.and_then(|law| beyond(law, to as f64));
    let cuts = share.map_or("cuts long samples".to_string(), |s| {
        format!("cuts {} of samples", super::words::percent(s))
    });
    out.push(Variant {
        name: format!("max_new {most} -> {to}"),
        sets: vec![format!("{path}={to} tokens")],
        text: None,
        drops: None,
        differs: Some(cuts),
        remark: String::new(),
    });
}

/// Share of samples that are longer than `most` tokens.
fn beyond(law: &Law, most: f64) -> Option<f64> {
    Some(match law {
        Law::Lognormal { mean, p99 } => {
            // mean = exp(m + s^2 / 2) and p99 = exp(m + 2.326 s), so s is the smaller root.
            const Z99: f64 = 2.3263;
            let s = Z99 - (Z99 * Z99 - 2.0 * (p99 / mean).ln()).max(0.0).sqrt();
            let m = mean.ln() - s * s / 2.0;
            1.0 - normal((most.ln() - m) / s.max(1e-9))
        }
        Law::Uniform { low, high } => ((high - most) / (high - low)).clamp(0.0, 1.0),
        Law::Always(x) => f64::from(u8::from(*x > most)),
        Law::Measured(all) => {
            let longer = all.iter().filter(|x| f64::from(**x) > most).count();
            longer as f64 / all.len().max(1) as f64
        }
        Law::File(_) => return None,
    })
}

/// The normal distribution function (Abramowitz and Stegun 1964, formula 26.2.17).
fn normal(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let sum = [0.319_381_53, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429]
        .iter()
        .rev()
        .fold(0.0, |sum, b| (sum + b) * t);
    let tail = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum;
    if x >= 0.0 { 1.0 - tail } else { tail }
}

/// Losses without the terms of frozen copies.
fn references(input: &Input<'_>, c: &Compiled, out: &mut Vec<Variant>) {
    for m in &c.program.models {
        if !matches!(m.weights, Weights::Frozen { .. }) {
            continue;
        }
        if let Some(text) = edit::without_terms(input, &m.name) {
            out.push(Variant {
                name: format!("without `{}`", m.name),
                sets: vec![],
                text: Some(text),
                drops: Some(m.name.clone()),
                differs: Some("drops its term of the loss".into()),
                remark: String::new(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_long_samples_follow_the_law() {
        // Quantiles of the standard normal from printed tables.
        assert!((normal(1.96) - 0.975).abs() < 1e-4);
        assert!((normal(-1.0) - 0.1587).abs() < 1e-4);
        let law = Law::Lognormal { mean: 398.0, p99: 2472.0 };
        assert!((beyond(&law, 2472.0).unwrap() - 0.01).abs() < 1e-4);
        assert_eq!(beyond(&Law::Uniform { low: 0.0, high: 100.0 }, 75.0), Some(0.25));
        assert_eq!(beyond(&Law::Always(5.0), 6.0), Some(0.0));
    }
}
