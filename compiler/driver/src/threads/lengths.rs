//! How long prompts and samples are: as assumed, as seen in the data, or guessed.
//!
//! In: a data set, what the recipe assumes, what somebody has looked up in the data. Out: tokens, with a line for each
//! guess.

use nrl_lower::facts::Law;
use nrl_sim::forecast::{Assumed, Source};

use crate::{Assume, Compiled};

/// What the rows of a data set look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Rows there are, after those too long were dropped.
    pub rows: usize,
    /// Mean tokens of a prompt.
    pub prompt: f64,
    /// Mean tokens of a reference answer with its end; `None` without answers.
    pub answer: Option<f64>,
}

/// Lengths of the samples of a stage, in tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lengths {
    pub prompt: f64,
    pub mean: f64,
    pub most: f64,
    /// Share by which guesses may be off.
    pub spread: f64,
    pub assumed: Vec<Assumed>,
}

/// Shares by which lengths may be off: of what is like reference answers, and of what nobody knows.
const NEAR_SPREAD: f64 = 0.25;
const SPREAD: f64 = 1.0;

/// An answer may be this many times as long as the reference before that says nothing about it.
const FAR: f64 = 8.0;

/// Lengths of rows of `data`, with at most `new` tokens drawn for each.
pub(super) fn of(
    c: &Compiled,
    assume: &Assume,
    data: usize,
    new: Option<usize>,
    complete: bool,
) -> Lengths {
    let d = &c.program.data[data];
    let context = c.program.models[d.model].context as f64;
    let seen = assume.seen.get(&data);
    let mut assumed = vec![];
    let mut guess = |what: &str, value: f64, help: &str| {
        assumed.push(Assumed {
            what: format!("{what} of {}", d.name),
            value: format!("{value:.1} tokens"),
            source: Source::Assumed,
            help: help.into(),
        });
        value
    };
    let mut spread: f64 = 0.0;
    let prompt = match seen {
        Some(s) => s.prompt,
        None => {
            spread = SPREAD;
            let limit = d.at_most.map_or(context, |(n, _)| n as f64);
            guess("prompt length", (limit / 2.0).max(1.0), "put the data where the recipe says")
        }
    };
    let answer = seen.and_then(|s| s.answer);
    let most = new.map_or(context, |n| n as f64).min(context - prompt).max(1.0);
    if complete {
        let mean = match answer {
            Some(a) => a,
            None => {
                spread = SPREAD;
                guess("answer length", (most / 4.0).max(1.0), "put the data where the recipe says")
            }
        };
        return Lengths { prompt, mean: mean.min(most), most, spread, assumed };
    }
    if let Some((mean, longest)) = assume.lengths {
        let mean = mean.min(most).max(1.0);
        return Lengths { prompt, mean, most: longest.min(most).max(mean), spread, assumed };
    }
    let law = c.facts.assumptions.iter().find(|a| a.of == "lengths").map(|a| &a.law);
    let (mean, most) = match law {
        Some(Law::Lognormal { mean, p99 }) => (mean.min(most), most.min(p99 * 1.6)),
        Some(Law::Uniform { low, high }) => (((low + high) / 2.0).min(most), high.min(most)),
        Some(Law::Always(x)) => (x.min(most), x.min(most)),
        Some(Law::Measured(all)) if !all.is_empty() => {
            let sum: f64 = all.iter().map(|n| f64::from(*n)).sum();
            let longest = all.iter().max().map_or(most, |n| f64::from(*n));
            ((sum / all.len() as f64).min(most), longest.min(most))
        }
        Some(Law::File(_) | Law::Measured(_)) | None => {
            let help =
                "`assume lengths from \"rollouts.jsonl\"`, or `= lognormal(mean: .., p99: ..)`";
            let near = answer.filter(|a| most <= FAR * a);
            spread = spread.max(if near.is_some() { NEAR_SPREAD } else { SPREAD });
            let mean = near.map_or(most / 4.0, |a| a.min(most)).max(1.0);
            (guess("output length", mean, help), most)
        }
    };
    Lengths { prompt, mean, most: most.max(mean), spread, assumed }
}
