//! Reading and adding rows by index, and rotary embedding.
//!
//! Over a dim that is split between ranks, indices count over all ranks: rows that this rank lacks are zero, and what
//! is added to them is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use nrl_ir::DimId;
use nrl_runtime::engine::EngineError;

use super::value::{Space, failed, strides};
use super::walk;
use crate::threads::{Shared, Threads};

/// A dim of which this rank has a part.
#[derive(Clone, Copy)]
pub struct Part {
    pub dim: DimId,
    /// First index that this rank has, and how many.
    pub first: usize,
    pub local: usize,
}

impl Part {
    /// Place of an index on this rank.
    fn place(&self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|i| *i < self.local)
    }
}

/// Do `dims` start with the part's dim, and is the other tensor the same with the indices' dims in its place?
fn by_rows(part: &Part, dims: &[DimId], ids: &[DimId], other: &[DimId]) -> bool {
    let rest = dims.get(1..).unwrap_or(&[]);
    dims.first() == Some(&part.dim)
        && other.len() == ids.len() + rest.len()
        && other.starts_with(ids)
        && other.ends_with(rest)
        && !rest.iter().any(|d| ids.contains(d))
}

/// `x[ids]` over `to`.
pub fn take<T: Copy + Default>(
    space: &mut Space,
    part: Part,
    (x, dims): (&[T], &[DimId]),
    (ids, id_dims): (&[u32], &[DimId]),
    to: &[DimId],
    out: &mut [T],
) -> Result<(), EngineError> {
    if by_rows(&part, dims, id_dims, to) {
        let width = space.count(&dims[1..])?;
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(width.max(1))) {
            match part.place(*id) {
                Some(i) => row.copy_from_slice(&x[i * width..(i + 1) * width]),
                None => row.fill(T::default()),
            }
        }
        return Ok(());
    }
    let (stride, shape) = (stride(space, dims, part.dim)?, space.shape(to)?);
    let a = walk::steps(space, to, id_dims, None)?;
    let b = walk::steps(space, to, dims, Some(part.dim))?;
    let mut at = 0;
    walk::each(&shape, &[&a, &b], |o| {
        out[at] = part.place(ids[o[0]]).map_or(T::default(), |i| x[o[1] + i * stride]);
        at += 1;
    });
    Ok(())
}

/// Adds `y` over `from` into the rows of `out` (over `dims`) that `ids` name.
pub fn add(
    space: &mut Space,
    part: Part,
    (ids, id_dims): (&[u32], &[DimId]),
    (y, from): (&[f32], &[DimId]),
    dims: &[DimId],
    out: &mut [f32],
) -> Result<(), EngineError> {
    if by_rows(&part, dims, id_dims, from) {
        let width = space.count(&dims[1..])?;
        for (id, row) in ids.iter().zip(y.chunks_exact(width.max(1))) {
            if let Some(i) = part.place(*id) {
                out[i * width..(i + 1) * width].iter_mut().zip(row).for_each(|(o, x)| *o += x);
            }
        }
        return Ok(());
    }
    let (stride, shape) = (stride(space, dims, part.dim)?, space.shape(from)?);
    let a = walk::steps(space, from, id_dims, None)?;
    let b = walk::steps(space, from, dims, Some(part.dim))?;
    let mut at = 0;
    walk::each(&shape, &[&a, &b], |o| {
        if let Some(i) = part.place(ids[o[0]]) {
            out[o[1] + i * stride] += y[at];
        }
        at += 1;
    });
    Ok(())
}

fn stride(space: &Space, dims: &[DimId], dim: DimId) -> Result<usize, EngineError> {
    match dims.iter().position(|d| *d == dim) {
        Some(at) => Ok(strides(&space.shape(dims)?)[at]),
        None => failed(format!("there is no dim `{}` to index", space.graph.dims.name(dim))),
    }
}

/// Cosines and sines by position, `[position, half]` each.
pub type Table = Arc<(Vec<f32>, Vec<f32>)>;

/// The table of `inv_freq` for positions below `count`.
pub fn table(known: &mut HashMap<Vec<u64>, Table>, inv_freq: &[f64], count: usize) -> Table {
    let key: Vec<u64> = inv_freq.iter().map(|f| f.to_bits()).collect();
    if let Some(t) = known.get(&key).filter(|t| t.0.len() >= count * inv_freq.len()) {
        return t.clone();
    }
    let (mut cos, mut sin) = (vec![], vec![]);
    for p in 0..count.next_power_of_two().max(64) {
        for f in inv_freq {
            let (s, c) = (p as f64 * f).sin_cos();
            cos.push(c as f32);
            sin.push(s as f32);
        }
    }
    let table = Arc::new((cos, sin));
    known.insert(key, table.clone());
    table
}

/// Turns `x [tok, .., hd]`, whose tokens have `heads` vectors of `hd` numbers each.
pub fn rope(
    threads: &Threads,
    table: &Table,
    positions: &[u32],
    half: usize,
    (scale, inverse): (f32, bool),
    hd: usize,
    x: &[f32],
    out: &mut [f32],
) {
    let size = if positions.is_empty() { 0 } else { x.len() / positions.len() };
    let shared = Shared::new(out);
    let step = positions.len().div_ceil(4 * threads.count()).max(64);
    threads.each(positions.len().div_ceil(step), |task| {
        for t in task * step..positions.len().min((task + 1) * step) {
            let at = positions[t] as usize * half;
            let (cos, sin) = (&table.0[at..at + half], &table.1[at..at + half]);
            // SAFETY: each token belongs to one task.
            let token = unsafe { shared.slice(t * size, size) };
            for (o, x) in
                token.chunks_exact_mut(hd).zip(x[t * size..(t + 1) * size].chunks_exact(hd))
            {
                turn(o, x, cos, sin, scale, inverse);
            }
        }
    });
}

fn turn(out: &mut [f32], x: &[f32], cos: &[f32], sin: &[f32], scale: f32, inverse: bool) {
    let half = cos.len();
    let (x1, rest) = x.split_at(half);
    let (x2, tail) = rest.split_at(half);
    let (o1, rest) = out.split_at_mut(half);
    let (o2, o3) = rest.split_at_mut(half);
    o3.copy_from_slice(tail);
    let sign = if inverse { -1.0 } else { 1.0 };
    for i in 0..half {
        let s = sign * sin[i];
        o1[i] = (x1[i] * cos[i] - x2[i] * s) * scale;
        o2[i] = (x2[i] * cos[i] + x1[i] * s) * scale;
    }
}
