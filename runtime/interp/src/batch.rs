//! A graph over a small batch that is given as lists, for tests.
//!
//! In: a graph over `group`, `seq` and `act`, how many samples each group has and how many tokens
//! each sample, numbers by input. Out: the numbers of its outputs. The counts of the batch are
//! known by it; a mask `x.valid` that is not given is 1.

use std::collections::BTreeMap;

use nrl_ir::Graph;

use crate::{Bindings, Error, Rank, Tensor, run_one};

/// Runs `graph` on one batch.
pub fn run_batch(
    graph: &Graph,
    groups: &[usize],
    tokens: &[usize],
    values: &BTreeMap<String, Vec<f64>>,
) -> Result<Vec<Vec<f64>>, Error> {
    let mut bind = Bindings::default();
    for (id, dim) in graph.dims.iter() {
        let offsets = match dim.name.as_str() {
            "act" | "tok" => offsets(tokens),
            "seq" => offsets(groups),
            _ => vec![0, groups.len()],
        };
        bind.offsets.insert(id, offsets);
    }
    let trained = tokens.iter().filter(|n| **n > 0).count();
    let mut inputs = vec![];
    for input in &graph.inputs {
        let size = |d| bind.offsets.get(d).and_then(|o| o.last()).copied().unwrap_or(0);
        let shape: Vec<usize> = input.ty.dims.iter().map(size).collect();
        let n: usize = shape.iter().product();
        let data = match (values.get(&input.name), input.name.as_str()) {
            (Some(v), _) => v.clone(),
            (None, "count.tokens") => vec![tokens.iter().sum::<usize>() as f64],
            (None, "count.samples") => vec![trained as f64],
            (None, "count.groups") => vec![groups.len() as f64],
            (None, name) if name.ends_with(".valid") => vec![1.0; n],
            (None, name) => return Err(Error(format!("`{name}` has no numbers"))),
        };
        if data.len() != n {
            let what = format!("`{}` has {} numbers, not {n}", input.name, data.len());
            return Err(Error(what));
        }
        inputs.push(Tensor::new(shape, data));
    }
    bind.inputs = inputs;
    let outputs = run_one(graph, &mut Rank { bind, ..Rank::default() })?;
    Ok(outputs.into_iter().map(|t| t.data).collect())
}

fn offsets(sizes: &[usize]) -> Vec<usize> {
    let mut out = vec![0];
    for n in sizes {
        out.push(out[out.len() - 1] + n);
    }
    out
}
