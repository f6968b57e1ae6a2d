//! Loops over any order of dims: repeating, permuting and reducing by name.
//!
//! These serve what no kernel can say; each inner loop still runs along the last dim.

use nrl_ir::{DimId, ReduceOp};
use nrl_runtime::engine::EngineError;

use super::value::{Space, strides};

/// How far each index of one loop dim moves an operand.
#[derive(Clone)]
pub enum Steps {
    /// By this much per item.
    Even(usize),
    /// By a table.
    Table(Vec<usize>),
}

impl Steps {
    fn at(&self, i: usize) -> usize {
        match self {
            Steps::Even(s) => i * s,
            Steps::Table(t) => t[i],
        }
    }
}

/// How an operand over `dims` moves in a loop over `loops`: along the same dim, else along a dim that is cut into its
/// segments. Dims that the loop lacks stay at 0.
pub fn steps(
    space: &mut Space,
    loops: &[DimId],
    dims: &[DimId],
    skip: Option<DimId>,
) -> Result<Vec<Steps>, EngineError> {
    let mut out = vec![Steps::Even(0); loops.len()];
    let sizes = strides(&space.shape(dims)?);
    for (d, stride) in dims.iter().zip(sizes) {
        if Some(*d) == skip {
            continue;
        }
        if let Some(at) = loops.iter().position(|l| l == d) {
            out[at] = match &out[at] {
                Steps::Even(s) => Steps::Even(s + stride),
                Steps::Table(t) => {
                    Steps::Table(t.iter().enumerate().map(|(i, x)| x + i * stride).collect())
                }
            };
            continue;
        }
        let owned = loops.iter().position(|l| space.graph.dims.owners(*l).any(|o| o == *d));
        let Some(at) = owned else { continue };
        let map = space.map(loops[at], *d)?;
        let old = out[at].clone();
        out[at] = Steps::Table(
            map.iter().enumerate().map(|(i, s)| old.at(i) + *s as usize * stride).collect(),
        );
    }
    Ok(out)
}

/// Calls `f` with the operands' offsets at the start of each inner run.
pub fn each_run(shape: &[usize], operands: &[&[Steps]], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let outer = shape.len().saturating_sub(1);
    let mut index = vec![0; outer];
    let mut offsets = vec![0; operands.len()];
    loop {
        for (o, steps) in offsets.iter_mut().zip(operands) {
            *o = index.iter().zip(steps.iter()).map(|(i, s)| s.at(*i)).sum();
        }
        f(&offsets);
        let mut d = outer;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

/// `x` over `from`, repeated or permuted to be over `to`, into `out`; added to it if `add`.
pub fn spread(
    space: &mut Space,
    x: &[f32],
    from: &[DimId],
    to: &[DimId],
    out: &mut [f32],
    add: bool,
) -> Result<(), EngineError> {
    let shape = space.shape(to)?;
    let steps = steps(space, to, from, None)?;
    let width = shape.last().copied().unwrap_or(1);
    let still = Steps::Even(0);
    let inner = steps.last().unwrap_or(&still);
    let mut at = 0;
    each_run(&shape, &[&steps], |o| {
        let row = &mut out[at..at + width];
        at += width;
        match (inner, add) {
            (Steps::Even(1), false) => row.copy_from_slice(&x[o[0]..o[0] + width]),
            (Steps::Even(1), true) => row.iter_mut().zip(&x[o[0]..]).for_each(|(r, x)| *r += x),
            (Steps::Even(0), false) => row.fill(x[o[0]]),
            (_, false) => row.iter_mut().enumerate().for_each(|(i, r)| *r = x[o[0] + inner.at(i)]),
            (_, true) => row.iter_mut().enumerate().for_each(|(i, r)| *r += x[o[0] + inner.at(i)]),
        }
    });
    Ok(())
}

/// `x` over `from` combined into `out` over `to`, in the order of `x`.
pub fn reduce(
    space: &mut Space,
    op: ReduceOp,
    x: &[f32],
    from: &[DimId],
    to: &[DimId],
    out: &mut [f32],
) -> Result<(), EngineError> {
    let shape = space.shape(from)?;
    let steps = steps(space, from, to, None)?;
    let width = shape.last().copied().unwrap_or(1);
    let still = Steps::Even(0);
    let inner = steps.last().unwrap_or(&still);
    out.fill(if op == ReduceOp::Sum { 0.0 } else { f32::NEG_INFINITY });
    let mut at = 0;
    each_run(&shape, &[&steps], |o| {
        for (i, v) in x[at..at + width].iter().enumerate() {
            let r = &mut out[o[0] + inner.at(i)];
            match op {
                ReduceOp::Sum => *r += v,
                ReduceOp::Max if *v > *r || v.is_nan() => *r = *v,
                ReduceOp::Max => {}
            }
        }
        at += width;
    });
    Ok(())
}

/// For each element of a tensor over `loops`, the offsets of several operands.
pub fn each(shape: &[usize], operands: &[&[Steps]], mut f: impl FnMut(&[usize])) {
    let width = shape.last().copied().unwrap_or(1);
    let mut here = vec![0; operands.len()];
    each_run(shape, operands, |o| {
        for i in 0..width {
            for (h, (base, steps)) in here.iter_mut().zip(o.iter().zip(operands)) {
                *h = base + steps.last().map_or(0, |s| s.at(i));
            }
            f(&here);
        }
    });
}
