//! What waits on the hosts of a cluster while its devices do something else.
//!
//! In: a compiled recipe. Out: bytes per node by term, for each cluster whose trainers leave their devices: to an engine
//! that takes them, or because the framework keeps state on hosts. What nobody counts (object stores, loaders,
//! the page cache) comes on top, so four fifths of a node are tight.

use nrl_driver::Compiled;
use nrl_ir::program::{Stage, Weights};
use nrl_sim::host::{self, Room};

use super::build::parameters;
use super::data::{Host, Term};

/// One per cluster of devices on which something waits.
pub(super) fn hosts(c: &Compiled) -> Vec<Host> {
    (0..c.facts.clusters.len()).filter_map(|i| on(c, i)).collect()
}

/// Numbers of a parameter in all layers.
fn count(m: &nrl_ir::program::Model, p: &nrl_ir::ParamDecl) -> f64 {
    let layers = p.repeat.as_ref().map_or(1.0, |(_, n)| *n as f64);
    layers * p.dims.iter().map(|d| m.dims.bound(*d) as f64).product::<f64>()
}

fn on(c: &Compiled, cluster: usize) -> Option<Host> {
    let x = &c.facts.clusters[cluster];
    let here = |mesh: usize| c.facts.meshes.get(mesh).and_then(|m| m.cluster) == Some(cluster);
    let stages = || c.program.phases.iter().flat_map(|p| &p.step);
    let samples = stages().any(|b| match b.stage {
        Stage::Generate { generator, .. } => here(c.program.generators[generator].mesh),
        _ => false,
    });
    let model = |i: usize| &c.program.models[i];
    let mut trained: Vec<usize> = stages()
        .filter_map(|b| match b.stage {
            Stage::Update { model, .. } => Some(model),
            _ => None,
        })
        .filter(|m| here(model(*m).mesh))
        .collect();
    trained.sort_unstable();
    trained.dedup();
    if !x.device.gpu || trained.is_empty() {
        return None;
    }
    let frozen = (0..c.program.models.len())
        .filter(|m| samples && here(model(*m).mesh))
        .filter(|m| matches!(model(*m).weights, Weights::Frozen { .. }));
    let nodes = x.ranks.div_ceil(x.per_node.max(1)).max(1);
    let ranks = x.per_node.min(x.ranks);
    let mut terms: Vec<Term> = vec![];
    let mut put = |i: usize, optimizer: bool, weights: bool, share: f64| {
        let all = &model(i).params;
        let frozen = all.iter().filter(|p| optimizer && !p.trained).map(|p| count(model(i), p));
        let parameters = parameters(model(i)) - frozen.sum::<f64>();
        let all = host::Host { parameters, nodes, ranks, optimizer, weights, ..Default::default() };
        terms.extend(all.terms().into_iter().map(|t| Term {
            name: format!("{} of {}", t.name.trim_start_matches("host "), model(i).name),
            bytes: t.bytes * share,
            how: t.how,
        }));
    };
    for m in trained {
        let away = c.away(m);
        let whole = samples || away.optimizer;
        let share = if samples { 1.0 } else { away.of_state() };
        put(m, share > 0.0, false, share);
        put(m, false, whole, 1.0);
    }
    frozen.for_each(|m| put(m, false, true, 1.0));
    let bytes: f64 = terms.iter().map(|t| t.bytes).sum();
    let has = x.device.host_bytes;
    let room = match host::room(bytes, has) {
        _ if has <= 0.0 => "",
        Room::Enough => "enough",
        Room::Tight => "tight",
        Room::TooLittle => "too little",
    };
    (bytes > 0.0).then(|| Host {
        cluster: x.name.clone(),
        nodes,
        node_bytes: has,
        bytes,
        room: room.into(),
        terms,
    })
}
