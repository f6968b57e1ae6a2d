//! Seconds of rewards that are processes of their own.
//!
//! In: workers and deadline of such a reward, how many samples it scores, what the recipe assumes of its latency. Out: an
//! estimate between nothing and the deadline of every call; its middle is what is assumed, or 0. Nobody has
//! measured it, so it is a guess.

use nrl_ir::program::{Binding, RewardKind};
use nrl_lower::facts::Law;
use nrl_sim::forecast::{Assumed, Estimate, Kind, Part, Phase, Source};

use super::Cast;
use crate::Compiled;

/// What the command of a reward starts with that an environment of NeMo RL gives: its deadline is not in the recipe.
const ENVIRONMENT: &str = "nemo_rl environment ";

/// What `count` calls take; `None` for rewards written in the recipe, and for environments of which nothing is known.
pub(crate) fn latency(c: &Compiled, reward: usize, count: f64) -> Option<(Estimate, Assumed)> {
    let r = &c.program.rewards[reward];
    let RewardKind::Extern { command, workers, deadline_s, .. } = &r.kind else { return None };
    let law = c.facts.assumptions.iter().find(|a| a.of == "latency").map(|a| &a.law);
    let each = law.and_then(mean).map(|s| s.min(*deadline_s));
    if each.is_none() && command.starts_with(ENVIRONMENT) {
        return None;
    }
    let rounds = (count / (*workers).max(1) as f64).ceil();
    let high = rounds * deadline_s;
    let value = rounds * each.unwrap_or(0.0);
    let seconds = Estimate { value, low: 0.5 * value, high, source: Source::Assumed };
    let plural = if *workers == 1 { "" } else { "s" };
    let assumed = Assumed {
        what: format!("seconds of the reward `{}`", r.name),
        value: match each {
            Some(s) => {
                format!("{value:.1}: {s} each, {count:.0} calls on {workers} worker{plural}")
            }
            None => format!(
                "0, and at most {high:.0}: {count:.0} calls on {workers} worker{plural}, {deadline_s} each"
            ),
        },
        source: Source::Assumed,
        help: "`assume latency = always(1 s)`".into(),
    };
    Some((seconds, assumed))
}

/// Seconds of a call in the mean.
fn mean(law: &Law) -> Option<f64> {
    match law {
        Law::Always(x) => Some(*x),
        Law::Lognormal { mean, .. } => Some(*mean),
        Law::Uniform { low, high } => Some((low + high) / 2.0),
        Law::File(_) | Law::Measured(_) => None,
    }
}

impl Cast<'_> {
    /// The phase of a reward that `count` samples wait for.
    pub(super) fn reward(
        &self,
        b: &Binding,
        reward: usize,
        count: f64,
        assumed: &mut Vec<Assumed>,
        open: &mut Vec<String>,
    ) -> Option<Phase> {
        let program = &self.c.program;
        let r = &program.rewards[reward];
        let RewardKind::Extern { .. } = r.kind else { return None };
        let Some((seconds, what)) = latency(self.c, reward, count) else {
            open.push(format!("seconds of the reward `{}`", r.name));
            return None;
        };
        assumed.push(what);
        let mesh = program.models.first().map_or(0, |m| m.mesh);
        let part = Part { name: "waiting for answers".into(), seconds: seconds.value };
        let devices = program.meshes.get(mesh).map_or(1, |(_, m)| m.ranks());
        let name = format!("reward {}", r.name);
        Some(Phase {
            origin: b.origin,
            parts: vec![part],
            ..Phase::alone(Kind::Other, name, (mesh, devices), seconds)
        })
    }
}
