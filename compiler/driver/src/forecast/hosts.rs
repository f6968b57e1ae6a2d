//! What a pass or an update moves between devices and hosts.
//!
//! In: what stays on hosts (activations of a plan; weights and gradients of a framework that keeps all there; state that
//! leaves devices while samples are scored), the plan of a pass. Out: bytes of a rank that cross the link to its host: those
//! beside the computation, which hides them as far as it lasts, and those that nothing hides. An optimizer on hosts counts
//! its own way (`train`), a refit the state that makes room for samplers.

use nrl_ir::Mesh;
use nrl_ir::plan::Plan;
use nrl_ir::program::Model;
use nrl_sim::Stack;
use nrl_sim::forecast::{Assumed, Source};
use nrl_sim::profile::Profile;
use nrl_sim::rl_stack::Moves;
use nrl_sim::train::{Job, Took};
use nrl_sim::work::Sizes;

use super::every::parameters;
use super::{Pass, precision};
use crate::Compiled;
use crate::rl::Rl;

/// What of a run of a pass or an update crosses to hosts and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hosted {
    /// Bytes of a rank that cross beside the computation, and those that nothing hides.
    pub beside: f64,
    pub alone: f64,
    /// Bytes per second of a rank's link to its host.
    pub link: f64,
}

impl Hosted {
    /// What `job`, of which a step makes `times`, has on hosts.
    pub(super) fn of(
        c: &Compiled,
        (pass, plan, sizes): (&Pass, &Plan, &Sizes),
        (job, times): (&Job, f64),
        rl: Option<&Rl>,
    ) -> Hosted {
        let away = c.away(pass.model);
        let m = &c.program.models[pass.model];
        let link = rl.map_or_else(|| Moves::default().host, |rl| rl.stack.moves.host);
        let mut h = Hosted { link, ..Hosted::default() };
        let updates = job.update.is_some();
        if away.activations && updates {
            // What layers keep goes while the pass is forward, and comes back while it is backward.
            let profile = Profile::of(plan, sizes, precision(c, pass.model));
            let kept: f64 = profile.groups.iter().map(|g| g.count as f64 * g.stacked).sum();
            h.beside += 2.0 * job.micro as f64 * kept / plan.stages() as f64;
        }
        if c.framework.memory.all_on_host {
            // Weights come for a forward and for a backward pass, as they are stored; gradients go.
            let stack = c.framework.stack.clone().unwrap_or_else(|| Stack::of(plan));
            let weights = stack.weights * part(m, &job.mesh, plan, false);
            let gradients = 4.0 * part(m, &job.mesh, plan, true);
            let once = if updates { 2.0 * weights + gradients } else { weights };
            h.beside += job.micro as f64 * once;
        } else if updates && leaves(c) {
            let state = 12.0 * part(m, &job.mesh, plan, true) * (1.0 - away.of_state());
            h.alone = 2.0 * state / times.max(1.0);
        }
        h
    }

    /// Seconds on the link that nothing hides.
    pub(super) fn crossing(&self, took: &Took) -> f64 {
        if self.link <= 0.0 {
            return 0.0;
        }
        let computed = took.forward.sum() + took.backward.sum() + took.bubble;
        (self.beside / self.link - computed).max(0.0) + self.alone / self.link
    }

    /// What is taken for granted of it.
    pub(super) fn assumed(&self) -> Option<Assumed> {
        (self.beside + self.alone > 0.0).then(|| Assumed {
            what: "links to hosts".into(),
            value: format!("{:.0} GB/s per rank, beside computation", self.link / 1e9),
            source: Source::Interpolated,
            help: "as refits of NeMo RL reach".into(),
        })
    }
}

/// Does the optimizer's state leave the devices before samples are scored? Where samplers share the devices, it is gone
/// already.
fn leaves(c: &Compiled) -> bool {
    let cluster = |mesh: usize| c.facts.meshes.get(mesh).and_then(|m| m.cluster);
    let beside =
        |g: &nrl_ir::program::Generator| cluster(g.mesh) == cluster(c.program.models[g.model].mesh);
    c.framework.scores_without_state && !c.program.generators.iter().any(beside)
}

/// Parameters of which a rank has the weight (or, of trained ones, the state): each is on one rank, but for copies of
/// sharded weights over `dp`.
fn part(m: &Model, mesh: &Mesh, plan: &Plan, trained: bool) -> f64 {
    let sharded = plan.params.iter().any(|l| !l.flat.is_empty());
    let copies = if sharded { mesh.size("dp").max(1) } else { 1 };
    parameters(m, trained) * copies as f64 / mesh.ranks().max(1) as f64
}

#[cfg(test)]
mod tests {
    use nrl_sim::rates::Seconds;

    use super::*;

    /// 40 GB at 20 GB/s are 2 s: a computation of 1.5 s hides all but 0.5 s of them, one of 3 s all. 10 GB that nothing
    /// hides are 0.5 s more.
    #[test]
    fn computation_hides_what_crosses_beside_it() {
        let took = |product: f64| Took {
            forward: Seconds { product, ..Seconds::default() },
            ..Took::default()
        };
        let h = Hosted { beside: 40e9, alone: 0.0, link: 20e9 };
        assert_eq!((h.crossing(&took(1.5)), h.crossing(&took(3.0))), (0.5, 0.0));
        let h = Hosted { alone: 10e9, ..h };
        assert_eq!((h.crossing(&took(1.5)), h.crossing(&took(3.0))), (1.0, 0.5));
    }
}
