//! Rewards of completions.
//!
//! In: a batch of samples. Out: one number per sample, or a failure, which is not a number: it is counted, its sample
//! has `valid` 0 and takes no part in its group. A reward that says none abstains, and is left out likewise.

pub mod extern_;
pub mod host;

use std::time::Duration;

use nrl_ir::host::Value;
use nrl_ir::program::{Reward, RewardKind};

use crate::reward::extern_::{Extern, Outcome as One, Pool};
use crate::rollout::batch::Batch;
use crate::run::error::{Outcome, RunError};
use crate::run::value::{Level, Tensor};

/// The rewards of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// 0 where there is none.
    pub values: Tensor,
    /// 1 where there is one.
    pub valid: Tensor,
    pub failed: usize,
    pub abstained: usize,
    /// Why the first failure failed.
    pub reason: Option<String>,
}

/// A reward that is ready to score.
pub struct Scorer {
    reward: Reward,
    pool: Option<Pool>,
}

impl Scorer {
    /// Starts the processes of an extern reward.
    pub fn start(reward: &Reward) -> Outcome<Scorer> {
        let pool = match &reward.kind {
            RewardKind::Host(_) => None,
            RewardKind::Extern { command, workers, deadline_s, .. } => {
                let settings = Extern {
                    command: command.clone(),
                    workers: *workers,
                    deadline: Duration::from_secs_f64(*deadline_s),
                    dir: None,
                    range: reward.range,
                };
                Some(Pool::start(settings).map_err(|e| RunError::new(e.code(), e.to_string()))?)
            }
        };
        Ok(Scorer { reward: reward.clone(), pool })
    }

    /// Name in the recipe.
    pub fn name(&self) -> &str {
        &self.reward.name
    }

    /// Scores every sample.
    pub fn score(&self, batch: &Batch) -> Scored {
        let records = (0..batch.samples.len()).map(|i| host::record(batch, i));
        let outcomes = match (&self.reward.kind, &self.pool) {
            (RewardKind::Extern { on_timeout, .. }, Some(pool)) => {
                let json: Vec<_> = records.map(|r| r.to_json()).collect();
                pool.score(&json).into_iter().map(|o| timeout(o, *on_timeout)).collect()
            }
            (RewardKind::Host(f), _) => {
                host::score(f, self.reward.range, &records.collect::<Vec<Value>>())
            }
            (RewardKind::Extern { .. }, None) => {
                vec![One::Failed("the command is not running".into()); batch.samples.len()]
            }
        };
        collect(outcomes)
    }
}

fn timeout(outcome: One, instead: Option<f64>) -> One {
    match (outcome, instead) {
        (One::Failed(why), Some(x)) if why.starts_with("no answer within") => One::Value(x),
        (outcome, _) => outcome,
    }
}

fn collect(outcomes: Vec<One>) -> Scored {
    let number = |o: &One| if let One::Value(x) = o { *x as f32 } else { 0.0 };
    let valid = |o: &One| if let One::Value(_) = o { 1.0 } else { 0.0 };
    let reason = outcomes
        .iter()
        .find_map(|o| if let One::Failed(why) = o { Some(why.clone()) } else { None });
    Scored {
        values: Tensor::new(Level::Sample, outcomes.iter().map(number).collect()),
        valid: Tensor::new(Level::Sample, outcomes.iter().map(valid).collect()),
        failed: outcomes.iter().filter(|o| matches!(o, One::Failed(_))).count(),
        abstained: outcomes.iter().filter(|o| **o == One::Abstained).count(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case c81: a failure is not a reward.
    #[test]
    fn failures_and_abstentions_are_counted_and_left_out() {
        let failed = |why: &str| One::Failed(why.into());
        let scored = collect(vec![
            failed("boom"),
            failed("bang"),
            One::Value(1.0),
            One::Value(0.0),
            One::Abstained,
        ]);
        assert_eq!(*scored.values.data, [0., 0., 1., 0., 0.]);
        assert_eq!(*scored.valid.data, [0., 0., 1., 1., 0.]);
        assert_eq!((scored.failed, scored.abstained), (2, 1));
        assert_eq!(scored.reason.as_deref(), Some("boom"));
    }

    #[test]
    fn a_timeout_has_a_value_only_where_one_is_written() {
        let late = || One::Failed("no answer within 2 s; the process was killed".into());
        assert_eq!(timeout(late(), Some(0.0)), One::Value(0.0));
        assert_eq!(timeout(late(), None), late());
        assert_eq!(
            timeout(One::Failed("crashed".into()), Some(0.0)),
            One::Failed("crashed".into())
        );
    }
}
