//! Ops between ranks, on whole tensors.

use nrl_ir::{DimId, ReduceOp};
use nrl_runtime::comm::{Group, Reduce};
use nrl_runtime::engine::{Comm, EngineError};

use super::pool::{Buffer, Pool};
use super::value::{Space, failed};

pub fn how(op: ReduceOp) -> Reduce {
    match op {
        ReduceOp::Sum => Reduce::Sum,
        ReduceOp::Max => Reduce::Max,
    }
}

/// Per member of the group, its coordinate over `axes` taken in the order given.
fn places(comm: &Comm, group: &Group, axes: &[String]) -> Vec<usize> {
    group.ranks().iter().map(|r| comm.mesh().coord_over(*r, axes)).collect()
}

/// Sizes before, of and after a dim.
fn around(space: &Space, dims: &[DimId], dim: DimId) -> Result<(usize, usize, usize), EngineError> {
    let Some(at) = dims.iter().position(|d| *d == dim) else {
        return failed("a collective names a dim that its operand lacks");
    };
    Ok((space.count(&dims[..at])?, space.size(dim)?, space.count(&dims[at + 1..])?))
}

/// The shards of `dim` put together as `full`.
pub fn all_gather(
    space: &Space,
    pool: &Pool,
    comm: &Comm,
    axes: &[String],
    (x, dims): (&[f32], &[DimId]),
    (dim, full): (DimId, DimId),
) -> Result<Buffer, EngineError> {
    let (before, local, after) = around(space, dims, dim)?;
    let full = space.size(full)?;
    let mut out = pool.filled(before * full * after, 0.0);
    let mut put = |piece: &[f32], place: usize| {
        let (from, to) = ((place * local).min(full), ((place + 1) * local).min(full));
        for b in 0..before {
            let target = &mut out[(b * full + from) * after..(b * full + to) * after];
            target.copy_from_slice(&piece[b * local * after..][..target.len()]);
        }
    };
    let Some(group) = comm.along(axes) else {
        put(x, 0);
        return Ok(out);
    };
    let mut all = pool.take(x.len() * group.size());
    group.all_gather(x, &mut all)?;
    for (i, place) in places(comm, group, axes).into_iter().enumerate() {
        put(&all[i * x.len()..(i + 1) * x.len()], place);
    }
    Ok(out)
}

/// The sum over ranks, of which this one keeps its part of `dim`.
pub fn reduce_scatter(
    space: &Space,
    pool: &Pool,
    comm: &Comm,
    axes: &[String],
    (x, dims): (&[f32], &[DimId]),
    (dim, part): (DimId, DimId),
) -> Result<Buffer, EngineError> {
    let (before, whole, after) = around(space, dims, dim)?;
    let part = space.size(part)?;
    let size = before * part * after;
    let piece = |into: &mut [f32], place: usize| {
        let (from, to) = ((place * part).min(whole), ((place + 1) * part).min(whole));
        for b in 0..before {
            let source = &x[(b * whole + from) * after..(b * whole + to) * after];
            into[b * part * after..][..source.len()].copy_from_slice(source);
        }
    };
    let mut out = pool.filled(size, 0.0);
    let Some(group) = comm.along(axes) else {
        piece(&mut out, 0);
        return Ok(out);
    };
    let mut all = pool.filled(size * group.size(), 0.0);
    for (i, place) in places(comm, group, axes).into_iter().enumerate() {
        piece(&mut all[i * size..(i + 1) * size], place);
    }
    group.reduce_scatter(&all, &mut out, Reduce::Sum)?;
    Ok(out)
}

/// A weight of `len` numbers from its flat shards.
pub fn gather_flat(
    pool: &Pool,
    comm: &Comm,
    axes: &[String],
    shard: &[f32],
    len: usize,
) -> Result<Buffer, EngineError> {
    let n = shard.len();
    let Some(group) = comm.along(axes) else {
        if n < len {
            return failed(format!("a flat weight has {n} numbers, {len} are needed"));
        }
        return Ok(pool.copy(&shard[..len]));
    };
    let mut all = pool.take(n * group.size());
    group.all_gather(shard, &mut all)?;
    if all.len() < len {
        return failed(format!(
            "the flat shards of a weight have {} numbers, {len} are needed",
            all.len()
        ));
    }
    let mut out = pool.take(len);
    for (i, place) in places(comm, group, axes).into_iter().enumerate() {
        let (from, to) = ((place * n).min(len), ((place + 1) * n).min(len));
        out[from..to].copy_from_slice(&all[i * n..i * n + to - from]);
    }
    Ok(out)
}

/// Adds this rank's flat shard of the summed gradient `g` to `into`.
pub fn scatter_flat(
    pool: &Pool,
    comm: &Comm,
    axes: &[String],
    g: &[f32],
    into: &mut [f32],
) -> Result<(), EngineError> {
    let add = |into: &mut [f32], x: &[f32]| into.iter_mut().zip(x).for_each(|(a, b)| *a += b);
    let Some(group) = comm.along(axes) else {
        add(into, g);
        return Ok(());
    };
    let part = g.len().div_ceil(group.size());
    let mut all = pool.filled(part * group.size(), 0.0);
    for (i, place) in places(comm, group, axes).into_iter().enumerate() {
        let piece = &g[(place * part).min(g.len())..((place + 1) * part).min(g.len())];
        all[i * part..i * part + piece.len()].copy_from_slice(piece);
    }
    let mut mine = pool.take(part);
    group.reduce_scatter(&all, &mut mine, Reduce::Sum)?;
    add(into, &mine);
    Ok(())
}
