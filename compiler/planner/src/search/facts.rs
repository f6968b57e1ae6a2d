//! Sizes of a recipe's model and machines that decide which layouts are legal.
//!
//! In: a compiled recipe. Out: heads, experts, layers, parameters by what cuts them, ranks, memory.

use nrl_driver::Compiled;
use nrl_ir::program::{Model, Stage};

use super::sites::{Sites, stages};

/// What a search must know of the model that is trained, and of where.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Heads of queries.
    pub heads: usize,
    /// Columns of feed-forward blocks; none where there are none.
    pub columns: Option<usize>,
    pub experts: Option<usize>,
    pub expert_columns: Option<usize>,
    pub layers: usize,
    /// Weights of layers that `tp` cuts, those of experts, and those outside of layers.
    pub dense: f64,
    pub routed: f64,
    pub outside: f64,
    pub context: usize,
    /// Ranks of the mesh that trains, ranks of a node, bytes of a device.
    pub ranks: usize,
    pub per_node: usize,
    pub memory: f64,
    /// Heads of the generator's model, and ranks of its mesh.
    pub sampling: Option<(usize, usize)>,
    /// Samples of an update.
    pub samples: usize,
}

/// Numbers in the weights of a model.
pub fn parameters(m: &Model) -> usize {
    let each = |p: &nrl_ir::ParamDecl| {
        p.dims.iter().map(|d| m.dims.bound(*d)).product::<usize>()
            * p.repeat.as_ref().map_or(1, |(_, n)| *n)
    };
    m.params.iter().map(each).sum()
}

impl Facts {
    /// The facts of a recipe.
    pub fn of(c: &Compiled, sites: &Sites) -> Option<Facts> {
        let updated = stages(c).find_map(|s| match s {
            Stage::Update { model, .. } if c.program.models[*model].mesh == sites.train => {
                Some(*model)
            }
            _ => None,
        })?;
        let m = &c.program.models[updated];
        let size = |name: &str| m.dims.find(name).map(|d| m.dims.bound(d));
        let cluster = &c.facts.clusters[c.facts.meshes[sites.train].cluster?];
        // Models that lack a kind of layer have its dims with one item.
        let some = |name: &str| size(name).filter(|n| *n > 1);
        let heads = size("q")?;
        let mut facts = Facts {
            // Mixers are cut by groups of their heads.
            heads: some("mg").map_or(heads, |groups| common(heads, groups)),
            columns: some("f"),
            experts: some("expert"),
            expert_columns: some("ef"),
            layers: 0,
            dense: 0.0,
            routed: 0.0,
            outside: 0.0,
            context: m.context,
            ranks: c.program.meshes[sites.train].1.ranks(),
            per_node: cluster.device.domain.unwrap_or(cluster.per_node),
            memory: cluster.device.memory_bytes,
            sampling: sites
                .sample
                .map(|mesh| (size("q").unwrap_or(1), c.program.meshes[mesh].1.ranks())),
            samples: samples(c, updated),
        };
        let mut groups = std::collections::BTreeMap::new();
        let expert = m.dims.find("expert");
        for p in &m.params {
            let number = p.dims.iter().map(|d| m.dims.bound(*d) as f64).product::<f64>();
            match &p.repeat {
                None => facts.outside += number,
                Some((group, n)) => {
                    groups.insert(group.clone(), *n * p.apart());
                    let to = match p.dims.len() > 2 && p.dims.iter().any(|d| Some(*d) == expert) {
                        true => &mut facts.routed,
                        false => &mut facts.dense,
                    };
                    *to += number * *n as f64;
                }
            }
        }
        facts.layers = groups.values().sum();
        Some(facts)
    }
}

/// The largest number that divides both.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

/// Samples that one update of `model` learns from.
fn samples(c: &Compiled, model: usize) -> usize {
    for phase in &c.program.phases {
        for b in &phase.step {
            let Stage::Update { model: m, updates, .. } = &b.stage else { continue };
            if *m == model
                && let Some(n) = b.args.iter().find_map(|a| taken(&phase.step, *a, 0))
            {
                return (n / updates.max(&1)).max(1);
            }
        }
    }
    usize::MAX
}

fn taken(step: &[nrl_ir::program::Binding], at: usize, depth: usize) -> Option<usize> {
    let b = step.get(at).filter(|_| depth < 64)?;
    let earlier =
        |copies: usize| b.args.iter().find_map(|a| taken(step, *a, depth + 1)).map(|n| n * copies);
    match &b.stage {
        Stage::Take { count, .. } => Some(*count),
        Stage::Generate { copies, .. } => earlier(*copies),
        _ => earlier(1),
    }
}
