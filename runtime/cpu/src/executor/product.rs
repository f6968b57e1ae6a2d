//! Contractions as matrix products.
//!
//! In: operands and a target, each with its dims in storage order. The dims fall into batch, rows, columns and
//! contraction; each group must be one stride in the tensors that have it, else the tensor is first copied in order.
//! The ragged side is the rows, since a row's bits do not depend on how many there are.

use nrl_ir::DimId;
use nrl_runtime::engine::EngineError;

use super::pool::Pool;
use super::value::{Space, strides};
use super::walk;
use crate::gemm::{Shape, View, ViewMut, gemm};
use crate::threads::Threads;

/// A tensor with named dims.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    pub data: &'a [f32],
    pub dims: &'a [DimId],
}

/// Where a contraction goes.
pub struct Target<'a> {
    pub data: &'a mut [f32],
    /// Storage order; any order of the result's dims.
    pub dims: &'a [DimId],
    pub add: bool,
}

struct Groups {
    batch: Vec<DimId>,
    rows: Vec<DimId>,
    cols: Vec<DimId>,
    inner: Vec<DimId>,
}

/// Stride of a group of dims in a tensor, if it is one: `(stride, count)`.
fn merged(space: &Space, dims: &[DimId], group: &[DimId]) -> Result<Option<usize>, EngineError> {
    let shape = space.shape(dims)?;
    let all = strides(&shape);
    let mut stride = None;
    let mut expected = 0;
    for d in group.iter().rev() {
        let Some(at) = dims.iter().position(|x| x == d) else { return Ok(None) };
        if shape[at] == 1 {
            continue;
        }
        match stride {
            None => stride = Some(all[at]),
            Some(_) if all[at] != expected => return Ok(None),
            Some(_) => {}
        }
        expected = all[at] * shape[at];
    }
    Ok(Some(stride.unwrap_or(1)))
}

/// `out (+)= a b`, summed over `over`; how many numbers were multiplied.
pub fn contract<'x>(
    space: &mut Space,
    threads: &Threads,
    pool: &Pool,
    mut a: Named<'x>,
    mut b: Named<'x>,
    over: &[DimId],
    out: Target,
) -> Result<usize, EngineError> {
    let ragged = |space: &Space, x: &Named, other: &Named| {
        x.dims
            .iter()
            .any(|d| !over.contains(d) && !other.dims.contains(d) && space.graph.dims.is_ragged(*d))
    };
    if !ragged(space, &a, &b) && ragged(space, &b, &a) {
        (a, b) = (b, a);
    }
    let only = |x: &[DimId], f: &dyn Fn(&DimId) -> bool| {
        x.iter().filter(|d| f(d)).copied().collect::<Vec<_>>()
    };
    let shared = |d: &DimId| !over.contains(d) && a.dims.contains(d) && b.dims.contains(d);
    // Inside a group the target's order decides, for the contraction that of the right operand.
    let groups = Groups {
        batch: only(out.dims, &shared),
        rows: only(out.dims, &|d| a.dims.contains(d) && !b.dims.contains(d)),
        cols: only(out.dims, &|d| b.dims.contains(d) && !a.dims.contains(d)),
        inner: only(b.dims, &|d| over.contains(d)),
    };
    let canonical = |x: &[&[DimId]]| x.concat();
    let left = canonical(&[&groups.batch, &groups.rows, &groups.inner]);
    let right = canonical(&[&groups.batch, &groups.inner, &groups.cols]);
    let result = canonical(&[&groups.batch, &groups.rows, &groups.cols]);
    let fits =
        |space: &Space, dims: &[DimId], parts: &[&Vec<DimId>]| -> Result<bool, EngineError> {
            for part in parts {
                if merged(space, dims, part)?.is_none() {
                    return Ok(false);
                }
            }
            Ok(true)
        };
    let (mut copy_a, mut copy_b) = (None, None);
    if !fits(space, a.dims, &[&groups.rows, &groups.inner])? {
        let mut copy = pool.take(a.data.len());
        walk::spread(space, a.data, a.dims, &left, &mut copy, false)?;
        copy_a = Some(copy);
    }
    if !fits(space, b.dims, &[&groups.inner, &groups.cols])? {
        let mut copy = pool.take(b.data.len());
        walk::spread(space, b.data, b.dims, &right, &mut copy, false)?;
        copy_b = Some(copy);
    }
    let a = copy_a.as_deref().map_or(a, |data| Named { data, dims: &left });
    let b = copy_b.as_deref().map_or(b, |data| Named { data, dims: &right });
    if fits(space, out.dims, &[&groups.rows, &groups.cols])? {
        return products(space, threads, a, b, &groups, out);
    }
    let mut copy = pool.take(space.count(&result)?);
    let target = Target { data: &mut copy, dims: &result, add: false };
    let multiplied = products(space, threads, a, b, &groups, target)?;
    walk::spread(space, &copy, &result, out.dims, out.data, out.add)?;
    Ok(multiplied)
}

fn products(
    space: &mut Space,
    threads: &Threads,
    a: Named,
    b: Named,
    g: &Groups,
    out: Target,
) -> Result<usize, EngineError> {
    let stride = |space: &Space, dims: &[DimId], group: &[DimId]| {
        Ok::<_, EngineError>(merged(space, dims, group)?.unwrap_or(1))
    };
    let shape =
        Shape { m: space.count(&g.rows)?, n: space.count(&g.cols)?, k: space.count(&g.inner)? };
    let (ar, ac) = (stride(space, a.dims, &g.rows)?, stride(space, a.dims, &g.inner)?);
    let (br, bc) = (stride(space, b.dims, &g.inner)?, stride(space, b.dims, &g.cols)?);
    let (or, oc) = (stride(space, out.dims, &g.rows)?, stride(space, out.dims, &g.cols)?);
    let batch = space.shape(&g.batch)?;
    if shape.m == 0 || shape.n == 0 || batch.contains(&0) {
        return Ok(0);
    }
    let moves = |space: &mut Space, dims: &[DimId]| walk::steps(space, &g.batch, dims, None);
    let (sa, sb, so) = (moves(space, a.dims)?, moves(space, b.dims)?, moves(space, out.dims)?);
    let mut multiplied = 0;
    walk::each(&batch, &[&sa, &sb, &so], |o| {
        let left = View { data: &a.data[o[0].min(a.data.len())..], row: ar, col: ac };
        let right = View { data: &b.data[o[1].min(b.data.len())..], row: br, col: bc };
        let into = ViewMut { data: &mut out.data[o[2]..], row: or, col: oc };
        gemm(threads, shape, into, out.add, left, right);
        multiplied += shape.m * shape.n * shape.k;
    });
    Ok(multiplied)
}
