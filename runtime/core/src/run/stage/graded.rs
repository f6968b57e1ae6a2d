//! Rewards of a batch, and the numbers of them that a step reports.

use nrl_ir::program::{Binding, GraphInput};

use super::Pass;
use crate::reward::Scored;
use crate::rollout::batch::Batch;
use crate::run::error::{Outcome, RunError};
use crate::run::value::{Held, Level, Tensor};

impl Pass<'_> {
    pub(super) fn reward(&mut self, binding: &Binding, reward: usize) -> Outcome<Held> {
        let batch = self.batch_of(binding);
        let scored = self.score(reward, &batch)?;
        let name = self.shop.machine.program().rewards[reward].name.clone();
        let name = if name.is_empty() { binding.name.clone() } else { name };
        let (mean, _) =
            moments(&valid_values(&scored.values, &scored.valid, 0..batch.samples.len()));
        self.numbers.insert(format!("reward/{name}"), mean);
        *self.numbers.entry("reward/failed".into()).or_insert(0.0) += scored.failed as f64;
        *self.numbers.entry("reward/abstained".into()).or_insert(0.0) += scored.abstained as f64;
        if !self.numbers.contains_key("reward/mean") {
            self.spread(&batch, &scored.values, &scored.valid);
        }
        Ok(Held::Reward { values: scored.values, valid: scored.valid })
    }

    /// The numbers of the reward that is learned from.
    pub(super) fn spread(&mut self, batch: &Batch, values: &Tensor, valid: &Tensor) {
        let (mean, std) = moments(&valid_values(values, valid, 0..batch.samples.len()));
        let flat = batch.groups().into_iter().filter(|g| {
            let of = valid_values(values, valid, g.clone());
            of.windows(2).all(|w| w[0] == w[1])
        });
        let share = flat.count() as f64 / batch.prompts.len().max(1) as f64;
        let mut put = |name: &str, x: f64| self.numbers.insert(format!("reward/{name}"), x);
        put("mean", mean);
        put("std", std);
        put("zero_spread_share", share);
    }

    /// A number per sample made of several rewards is the reward that is learned from.
    pub(super) fn combined(&mut self, binding: &Binding, inputs: &[GraphInput], values: &Tensor) {
        let valid: Vec<Tensor> = inputs
            .iter()
            .filter(|i| i.field.is_none())
            .filter_map(|i| {
                if let Held::Reward { valid, .. } = &self.held[i.from] {
                    Some(valid.clone())
                } else {
                    None
                }
            })
            .collect();
        if valid.len() < 2 || values.level != Level::Sample {
            return;
        }
        let all = (0..values.data.len())
            .map(|s| valid.iter().map(|v| v.data[s]).fold(1.0, f32::min))
            .collect();
        let batch = self.batch_of(binding);
        self.spread(&batch, values, &Tensor::new(Level::Sample, all));
    }

    pub(super) fn score(&mut self, reward: usize, batch: &Batch) -> Outcome<Scored> {
        let scorer = self.shop.scorers[reward].as_ref();
        let scorer = scorer.ok_or_else(|| RunError::internal("a reward that was not started"))?;
        let scored = scorer.score(batch);
        let (failed, all) = (scored.failed, batch.samples.len());
        self.failed_rewards += failed as u64;
        let reason = scored.reason.clone().unwrap_or_default();
        if failed == all && all > 0 && self.place.unscored {
            let what = format!(
                "reward `{}` failed for all {all} samples of step {}: {reason}",
                scorer.name(),
                self.place.step
            );
            return Err(RunError::new("reward-failed", what)
                .help("mend the reward, or try it on one sample first"));
        }
        if failed > 0 {
            self.notes.push(format!(
                "reward `{}` failed for {failed} of {all} samples: {reason}",
                scorer.name()
            ));
        }
        Ok(scored)
    }
}

fn valid_values(values: &Tensor, valid: &Tensor, range: std::ops::Range<usize>) -> Vec<f64> {
    range.filter(|i| valid.data[*i] > 0.0).map(|i| f64::from(values.data[i])).collect()
}

/// Mean and standard deviation; not numbers if there are none.
fn moments(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    (mean, (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
}
