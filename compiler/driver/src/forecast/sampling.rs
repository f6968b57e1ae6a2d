//! Phases of generators: drawing samples, and new weights for what draws them.

use nrl_ir::program::Binding;
use nrl_sim::forecast::{Estimate, Kind, Part, Phase, Source};
use nrl_sim::generate::Generated;

use super::lengths::{Lengths, draw};
use super::{Cast, machine_of};
use crate::sampler::{self, Sampler};

impl Cast<'_> {
    /// A generator as an engine on its machine.
    pub(super) fn sampler(&self, generator: usize) -> Option<Sampler> {
        let machine = machine_of(self.c, self.c.program.generators[generator].mesh)?;
        Some(Sampler::of(self.c, generator, &machine, self.rl.as_deref()))
    }

    pub(super) fn sample(
        &self,
        b: &Binding,
        generator: usize,
        copies: usize,
        count: f64,
        lengths: &Lengths,
    ) -> Option<Phase> {
        let c = self.c;
        let g = &c.program.generators[generator];
        let mesh = &c.program.meshes[g.mesh].1;
        let sampler = self.sampler(generator)?;
        let (drawn, pool) = sampler.run(&draw(count, copies, lengths)).ok()?;
        let call = sampler.engine.call;
        let seconds = drawn.seconds + call;
        let shares = ["prefill", "decoding", "waiting for the slowest replica"];
        let mut parts: Vec<Part> = shares
            .iter()
            .zip(drawn.shares)
            .map(|(name, x)| Part { name: (*name).into(), seconds: x * drawn.seconds })
            .collect();
        parts.push(Part { name: "around the call".into(), seconds: call });
        let flops = (sampler.shard.flops + sampler.shard.expert_flops) * sampler.shard.tp as f64;
        let source = if lengths.guessed { Source::Assumed } else { Source::Interpolated };
        Some(Phase {
            kind: Kind::Sample,
            name: format!("sample by {}", g.name),
            origin: b.origin,
            model: Some(g.model),
            mesh: g.mesh,
            devices: mesh.ranks(),
            seconds: Estimate::around(seconds, if lengths.guessed { 1.0 } else { 0.25 }, source),
            parts,
            forward: Default::default(),
            backward: Default::default(),
            flops: flops * count * lengths.sum(),
            mfu: None,
            bubble: 0.0,
            micro: 1,
            micro_tokens: 0.0,
            generated: Some(Generated { seconds, batch: drawn.mean_batch, pool }),
            job: None,
        })
    }

    /// New weights for the samplers of a model that the step updates.
    pub(super) fn refit(&self, step: &[Binding], b: &Binding, generator: usize) -> Option<Phase> {
        let c = self.c;
        let g = &c.program.generators[generator];
        if !sampler::follows(step, g.model) {
            return None;
        }
        let machine = machine_of(c, g.mesh)?;
        let edges = sampler::moves(c, generator, &machine, self.rl.as_deref());
        let seconds: f64 = edges.iter().map(|e| e.seconds).sum();
        let devices = c.program.meshes[g.mesh].1.ranks();
        let seconds = Estimate::around(seconds, 0.4, Source::Interpolated);
        Some(Phase {
            origin: b.origin,
            model: Some(g.model),
            parts: edges.iter().map(|e| Part { name: e.name.into(), seconds: e.seconds }).collect(),
            ..Phase::alone(Kind::Refit, format!("refit {}", g.name), (g.mesh, devices), seconds)
        })
    }
}
