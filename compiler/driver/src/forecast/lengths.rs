//! How many samples a stage works on, and how long they are.
//!
//! In: what a recipe assumes of lengths, what a run had, what was seen of data; else a guess that is named. Out: lengths as a law to
//! draw from, with the means that time is counted by.

use nrl_ir::program::{Binding, Stage};
use nrl_lower::facts::Law;
use nrl_sim::forecast::{Assumed, Source};
use nrl_sim::lengths as law;

use super::Cast;
use crate::rl;
use crate::sampler::Draw;

/// Lengths of the samples of a step, in tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lengths {
    pub(super) prompt: f64,
    pub(super) mean: f64,
    pub(super) most: f64,
    /// The longest of a few hundred.
    pub(super) longest: f64,
    pub(super) law: law::Lengths,
    /// Nothing is known of them.
    pub(super) guessed: bool,
    pub(super) assumed: Vec<Assumed>,
}

impl Lengths {
    pub(super) fn sum(&self) -> f64 {
        self.prompt + self.mean
    }

    /// Tokens of the longest sample of a step.
    pub(super) fn padded(&self) -> f64 {
        (self.prompt + self.longest).max(self.sum())
    }
}

/// Samples to draw.
pub(super) fn draw(count: f64, copies: usize, lengths: &Lengths) -> Draw<'_> {
    Draw {
        prompts: (count / copies.max(1) as f64) as usize,
        copies,
        law: &lengths.law,
        prompt: lengths.prompt,
        most: lengths.most,
    }
}

impl Cast<'_> {
    /// How many samples a stage works on, and how long they are.
    pub(super) fn samples(&self, step: &[Binding], b: &Binding) -> Option<(f64, Lengths)> {
        match &b.stage {
            Stage::Take { data, count, complete } => {
                let answers = self.c.program.data[*data].answers();
                let each = if *complete { answers } else { 1 };
                Some(((count * each) as f64, self.lengths(*data, None, *complete)))
            }
            Stage::Generate { generator, copies, max_new, .. } => {
                let take = b.args.iter().find_map(|a| match step.get(*a)?.stage {
                    Stage::Take { data, count, .. } => Some((data, count)),
                    _ => None,
                });
                let (data, rows) = take?;
                let model = self.c.program.generators[*generator].model;
                let context = self.c.program.models[model].context;
                let lengths = self.lengths(data, Some(max_new.unwrap_or(context)), false);
                Some(((rows * copies) as f64, lengths))
            }
            _ => b.args.iter().find_map(|a| self.samples(step, step.get(*a)?)),
        }
    }

    /// Lengths of rows of `data`, with at most `new` tokens drawn for each.
    pub(super) fn lengths(&self, data: usize, new: Option<usize>, complete: bool) -> Lengths {
        let data = &self.c.program.data[data];
        let context = self.c.program.models[data.model].context as f64;
        let limit = data.at_most.map_or(context, |(n, _)| n as f64);
        let law = self.c.facts.assumptions.iter().find(|a| a.of == "lengths").map(|a| &a.law);
        let guess = |what: &str, value: f64| Assumed {
            what: what.into(),
            value: format!("{value:.0} tokens"),
            source: Source::Assumed,
            help: "`assume lengths = lognormal(mean: .., p99: ..)`, or `from \"rollouts.jsonl\"`"
                .into(),
        };
        let mut assumed = vec![];
        let prompt = if complete { 0.0 } else { (limit / 8.0).clamp(1.0, 128.0) };
        let most = new.map_or(context, |n| n as f64).min(context - prompt).max(1.0);
        let mut guessed = false;
        let given = self.assume.lengths.filter(|_| !complete);
        let law = match law {
            _ if given.is_some() => {
                let mean = given.map_or(most, |(mean, _)| mean.min(most));
                rl::stacks(self.assume).law(rl::named(self.c, data.model), mean)
            }
            Some(Law::Lognormal { mean, p99 }) => {
                law::Lengths::Lognormal { mean: *mean, p99: *p99 }
            }
            Some(Law::Uniform { low, high }) => law::Lengths::Uniform { low: *low, high: *high },
            Some(Law::Always(x)) => law::Lengths::Fixed(*x),
            Some(Law::Measured(all)) => law::Lengths::Measured(all.clone()),
            Some(Law::File(_)) | None => {
                let mean = (most / 4.0).max(1.0);
                guessed = true;
                assumed.push(guess(
                    if complete { "length of samples" } else { "output length" },
                    mean,
                ));
                law::Lengths::Capped { mean, sigma: 0.8, endless: 0.0 }
            }
        };
        if !complete {
            assumed.push(guess("prompt length", prompt));
        }
        // The mean of what is drawn, after the cap.
        let drawn = law.draw(512, 1, most as u32, 0.0);
        let mean = drawn.iter().map(|x| f64::from(*x)).sum::<f64>() / drawn.len() as f64;
        let longest = drawn.iter().copied().max().map_or(mean, f64::from);
        Lengths { prompt, mean, most, longest, law, guessed, assumed }
    }
}
