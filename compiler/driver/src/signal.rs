//! Whether what an update weighs its samples with can be anything but zero.
//!
//! Evaluates the computations between rewards and updates, which are pure arithmetic, on rewards
//! that all differ. An advantage that is zero for them is zero for ever: one sample per prompt and
//! a baseline of the group, for instance. No reward of the recipe runs.

use std::collections::BTreeMap;

use nrl_base::Diagnostic;
use nrl_interp::{Bindings, Rank, Tensor, run_one};
use nrl_ir::program::{Binding, Phase, Stage};
use nrl_ir::{DType, DimId, Graph};

use crate::{Compiled, rules};

/// Prompts that are tried.
const PROMPTS: usize = 2;

/// An error per update that can never learn from its rewards.
pub(crate) fn findings(c: &Compiled) -> Vec<Diagnostic> {
    let of_phase = |phase: &Phase| {
        let step = &phase.step;
        let updates = step.iter().filter(|b| matches!(b.stage, Stage::Update { .. }));
        updates.filter_map(|update| zero(c, step, update)).collect::<Vec<_>>()
    };
    c.program.phases.iter().flat_map(of_phase).collect()
}

fn zero(c: &Compiled, step: &[Binding], update: &Binding) -> Option<Diagnostic> {
    let Stage::Update { inputs, .. } = &update.stage else { return None };
    let (sampled, copies) = step.iter().find_map(|b| match b.stage {
        Stage::Generate { copies, .. } => Some((b, copies)),
        _ => None,
    })?;
    for input in inputs {
        let from = step.get(input.from)?;
        let Stage::Compute { graph, output, inputs: read, .. } = &from.stage else { continue };
        let rewarded =
            |b: &nrl_ir::program::GraphInput| matches!(step[b.from].stage, Stage::Reward { .. });
        if !read.iter().any(rewarded) {
            continue;
        }
        let values = try_out(&c.program.graphs[*graph], copies, *output)?;
        if values.iter().all(|v| *v == 0.0) {
            let text = if copies == 1 {
                "every advantage is 0: with 1 sample/prompt the baseline is the sample's own reward"
                    .to_string()
            } else {
                format!("`{}` is 0 for every sample, whatever the rewards are", from.name)
            };
            let d = Diagnostic::error("no-learning-signal", text);
            let d = match rules::place_of(sampled.origin) {
                Some(span) => d.label(span, format!("{copies} samples of each prompt")),
                None => d,
            };
            let d = match rules::place_of(from.origin) {
                Some(span) => d.label(span, "these are always 0"),
                None => d,
            };
            return Some(d.help("take more samples of each prompt, such as `8 samples/prompt`"));
        }
    }
    None
}

/// An output of a computation over the samples of a batch, for inputs that all differ.
fn try_out(g: &Graph, copies: usize, output: usize) -> Option<Vec<f64>> {
    let sizes = BTreeMap::from([("group", PROMPTS), ("seq", PROMPTS * copies)]);
    let mut offsets = BTreeMap::new();
    for (id, dim) in g.dims.iter().filter(|(id, _)| g.dims.is_ragged(*id)) {
        let owners = g.dims.owner(id).and_then(|o| sizes.get(g.dims.name(o)).copied());
        let each = match (dim.name.as_str(), owners) {
            ("group", _) => PROMPTS,
            ("seq", Some(_)) => copies,
            // Three trained tokens in each sample.
            _ => 3,
        };
        let cuts = owners.unwrap_or(1);
        offsets.insert(id, (0..=cuts).map(|i| i * each).collect::<Vec<usize>>());
    }
    let size = |d: &DimId| match g.dims.size(*d) {
        Some(n) => n,
        None => offsets.get(d).and_then(|o| o.last().copied()).unwrap_or(0),
    };
    let mut drawn = 0;
    let inputs = g.inputs.iter().map(|input| {
        let shape: Vec<usize> = input.ty.dims.iter().map(size).collect();
        let count = shape.iter().product::<usize>();
        let data = (0..count).map(|_| {
            drawn += 1;
            let whole = input.name.ends_with(".valid") || input.name.starts_with("count.");
            match input.ty.dtype {
                DType::Id(_) => 0.0,
                _ if whole => 1.0,
                // Multiples of an irrational number: no two alike.
                _ => (f64::from(drawn) * 0.618_033_988_749_895).fract(),
            }
        });
        Tensor::new(shape, data.collect())
    });
    let inputs = inputs.collect();
    let bind = Bindings { inputs, offsets, bases: vec![], slots: vec![] };
    let mut rank = Rank { bind, ..Rank::default() };
    let mut out = run_one(g, &mut rank).ok()?;
    (output < out.len()).then(|| out.swap_remove(output).data)
}
