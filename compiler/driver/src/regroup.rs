//! The same program with other sizes that no graph depends on, without compiling it again.
//!
//! In: a compiled program, a mesh of it, other sizes of its axes, of chunks and of micro-batches. Out: the program as
//! the compiler would make it from a recipe with these sizes. That holds while the same axes are above
//! 1 and those that cut tensors (`tp`, `cp`, `ep`, `etp`) stay as they are; `Work` of sizes that came before is kept.

use std::collections::HashMap;

use nrl_ir::Mesh;
use nrl_ir::dim::Extent;
use nrl_ir::plan::Plan;
use nrl_ir::program::Stage;
use nrl_passes::pipeline;
use nrl_sim::Precision;
use nrl_sim::work::{Sizes, Work};

use crate::Compiled;

/// Other sizes of a mesh and of what runs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regroup<'a> {
    /// Index of the mesh.
    pub mesh: usize,
    /// Axes, and their sizes; others stay as they are.
    pub axes: &'a [(&'a str, usize)],
    /// Parts of the model per stage, and layers of each part if they are uneven.
    pub chunks: usize,
    pub split: Option<&'a [usize]>,
    /// Tokens of a micro-batch of updates.
    pub tokens: Option<usize>,
    /// Layers keep what "selective" recomputation keeps.
    pub selective: bool,
    /// Whether the optimizer and its state are on hosts; as it is if `None`.
    pub offload: Option<bool>,
}

/// Work of graphs by the sizes that it was asked for, and micro-batches by what decides how samples are packed.
#[derive(Clone, Debug, Default)]
pub struct Works {
    work: HashMap<(usize, [u64; 5], bool), Work>,
    packed: HashMap<(usize, usize, usize, bool), (usize, Sizes)>,
}

impl Works {
    /// The work of graph `index`, whose plan is `plan`.
    pub fn of(&mut self, index: usize, plan: &Plan, sizes: &Sizes, precision: Precision) -> Work {
        let s = sizes;
        let bits = [s.tokens, s.scored, s.sequences, s.groups, s.context].map(f64::to_bits);
        let key = (index, bits, precision == Precision::Bf16);
        self.work.entry(key).or_insert_with(|| Work::on_stack(plan, sizes, precision)).clone()
    }

    /// Micro-batches of a rank and the sizes of one, for graph `index` on so many `ways` with a `budget` of tokens; `pads` if each
    /// is filled up. `pack` makes those that are new.
    pub(crate) fn packed(
        &mut self,
        (index, ways, budget, pads): (usize, usize, usize, bool),
        pack: impl FnOnce() -> (usize, Sizes),
    ) -> (usize, Sizes) {
        *self.packed.entry((index, ways, budget, pads)).or_insert_with(pack)
    }
}

impl Compiled {
    /// Changes the sizes.
    pub fn regroup(&mut self, to: &Regroup<'_>) {
        let Some((_, mesh)) = self.program.meshes.get_mut(to.mesh) else { return };
        resize(mesh, to.axes);
        let mesh = mesh.clone();
        let generators = &self.program.generators;
        let models = &self.program.models;
        let mut graphs = vec![];
        let mut updates = vec![];
        for b in self.program.phases.iter_mut().flat_map(|p| &mut p.step) {
            match &mut b.stage {
                Stage::Update { model, graph, tokens, .. } if models[*model].mesh == to.mesh => {
                    graphs.push(*graph);
                    if let Some(n) = to.tokens {
                        updates.push((*graph, *tokens, n));
                        *tokens = n;
                    }
                }
                Stage::Forward { model, graph, .. } if models[*model].mesh == to.mesh => {
                    graphs.push(*graph);
                }
                Stage::Generate { generator, .. } if generators[*generator].mesh == to.mesh => {
                    graphs.push(generators[*generator].graph);
                }
                _ => {}
            }
        }
        let kept = self.selective.iter_mut().zip(&mut self.offload);
        for ((selective, away), model) in kept.zip(models) {
            if model.mesh == to.mesh {
                *selective = to.selective;
                if let Some(on_host) = to.offload {
                    away.state = if on_host { 1.0 } else { 0.0 };
                }
            }
        }
        graphs.sort_unstable();
        graphs.dedup();
        for i in graphs {
            if let Some(plan) = self.plans.get_mut(i) {
                plan.mesh = mesh.clone();
                dealt(plan, to);
            }
        }
        for (i, old, n) in updates {
            if let Some(plan) = self.plans.get_mut(i) {
                bounds(plan, old, n);
            }
        }
    }
}

/// Gives axes other sizes; those of a view that nothing names take what the others leave.
fn resize(mesh: &mut Mesh, sizes: &[(&str, usize)]) {
    let size = |name: &str| sizes.iter().find(|(n, _)| *n == name).map(|(_, s)| *s);
    for a in &mut mesh.axes {
        a.size = size(&a.name).unwrap_or(a.size);
    }
    let folded =
        |v: &nrl_ir::mesh::View| -> usize { v.folds.iter().map(|f| mesh.size(f)).product() };
    let all: Vec<usize> = mesh.views.iter().map(folded).collect();
    for (view, all) in mesh.views.iter_mut().zip(all) {
        let given: usize = view.axes.iter().filter(|a| a.name != "edp").map(|a| a.size).product();
        for a in view.axes.iter_mut().filter(|a| a.name == "edp") {
            a.size = all / given.max(1);
        }
    }
}

/// Deals the layers of a plan out to stages anew.
fn dealt(plan: &mut Plan, to: &Regroup<'_>) {
    let Some(old) = plan.pipeline.take() else { return };
    plan.collectives.retain(|c| c.kind != "send" || c.axes != [old.axis.clone()]);
    pipeline(plan, &old.axis, to.chunks, to.split);
}

/// Gives the tokens of a micro-batch another bound; ranks that share them have a part each.
fn bounds(plan: &mut Plan, old: usize, new: usize) {
    let part = |bound: usize| {
        let ranks = (old as f64 / bound.max(1) as f64).round().max(1.0);
        new.div_ceil(ranks as usize)
    };
    for class in &mut plan.classes {
        let dims = &mut class.graph.dims;
        let tokens = |d: &nrl_ir::Dim| matches!(&*d.name, "tok" | "act");
        let ids: Vec<_> = dims.iter().filter(|(_, d)| tokens(d)).map(|(id, _)| id).collect();
        for id in ids {
            let dim = dims.get_mut(id);
            if let Some(shard) = &mut dim.shard {
                shard.global = part(shard.global);
            }
            if let Extent::Ragged { bound, .. } = &mut dim.extent {
                *bound = part(*bound);
            }
        }
    }
}
