//! The collectives of passes and updates, on one rank in one step.
//!
//! In: the work of a pass, the gradients of its update, the mesh and the speed of its links. Out: calls, bytes and seconds
//! by kind and axes, before anything of it is hidden behind computation.

use nrl_sim::forecast::Traffic;
use nrl_sim::machine;
use nrl_sim::rates::Speed;
use nrl_sim::train::Job;
use nrl_sim::work::{Collective, Kind};

/// Collectives of one phase.
struct Links<'a> {
    out: &'a mut Vec<Traffic>,
    phase: &'a str,
    job: &'a Job,
    speed: &'a Speed<'a>,
}

/// Adds the collectives of a job that runs `times` times in a step.
pub(super) fn add(out: &mut Vec<Traffic>, phase: &str, job: &Job, speed: &Speed<'_>, times: f64) {
    let mut links = Links { out, phase, job, speed };
    let stages = job.mesh.size("pp").max(1) as f64;
    let passes = times * job.micro as f64;
    for (region, n) in job.work.regions() {
        // Layers are dealt out to the stages of a pipeline.
        let layers = if n > 1.0 { n / stages } else { n };
        for item in region.forward.iter().chain(&region.backward) {
            let Kind::Collective { kind, axes, bytes } = &item.kind else { continue };
            let weights = matches!(kind, Collective::GatherWeights | Collective::ScatterGradients);
            // Under a pipeline weights stay gathered from the first micro-batch to the last.
            let passes = if weights && stages > 1.0 { times } else { passes };
            links.put(*kind, axes, *bytes, layers * item.count * passes);
        }
    }
    let Some(update) = &job.update else { return };
    if stages > 1.0 {
        let hops = passes * job.chunks.max(1) as f64;
        links.put(Collective::Send, &["pp".to_string()], job.handed_over(), 2.0 * hops);
    }
    for sum in &update.sums {
        if sum.weights == 0.0 {
            links.put(Collective::AllReduce, &sum.axes, sum.gradients, times);
        } else {
            links.put(Collective::ReduceScatter, &sum.axes, sum.gradients, times);
            links.put(Collective::GatherWeights, &sum.axes, sum.weights, times);
        }
    }
}

impl Links<'_> {
    fn put(&mut self, kind: Collective, axes: &[String], bytes: f64, calls: f64) {
        let group = machine::group(&self.job.mesh, axes, self.speed.machine.per_node);
        if group.size == 1 || bytes <= 0.0 {
            return;
        }
        let seconds = calls * self.speed.collective(kind, bytes, group);
        let (kind, class) = (format!("{kind:?}"), group.class.name().to_string());
        let same = |t: &&mut Traffic| {
            t.phase == self.phase && t.kind == kind && t.axes == axes && t.bytes == bytes
        };
        match self.out.iter_mut().find(same) {
            Some(t) => {
                t.calls += calls;
                t.seconds += seconds;
            }
            None => self.out.push(Traffic {
                phase: self.phase.into(),
                kind,
                axes: axes.to_vec(),
                class,
                ranks: group.size,
                calls,
                bytes,
                seconds,
            }),
        }
    }
}
