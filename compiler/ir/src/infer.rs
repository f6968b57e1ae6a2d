//! Shape rules: the types of an op's results from its operands.

use crate::dim::DimId;
use crate::graph::{Graph, ValueId};
use crate::op::{Op, ReduceOp};
use crate::types::{DType, Type};

/// An op that does not fit its operands. `text` is a headline; `args` are the operands at fault.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeError {
    pub text: String,
    pub help: Option<String>,
    /// Positions of the conflicting operands.
    pub args: Vec<usize>,
}

fn err<T>(args: &[usize], text: String) -> Result<T, ShapeError> {
    Err(ShapeError { text, help: None, args: args.to_vec() })
}

/// `[tok, d]` in words.
pub fn show_dims(g: &Graph, dims: &[DimId]) -> String {
    let names: Vec<&str> = dims.iter().map(|d| g.dims.name(*d)).collect();
    format!("[{}]", names.join(", "))
}

/// Dims of a pointwise op over `a` and `b`: the larger operand's.
pub fn broadcast(g: &Graph, a: &[DimId], b: &[DimId]) -> Option<Vec<DimId>> {
    if g.dims.contains(a, b) {
        Some(a.to_vec())
    } else if g.dims.contains(b, a) {
        Some(b.to_vec())
    } else {
        None
    }
}

fn pointwise(g: &Graph, args: &[ValueId]) -> Result<Type, ShapeError> {
    let mut dims: Vec<DimId> = vec![];
    for (i, a) in args.iter().enumerate() {
        let ty = g.ty(*a);
        if !ty.is_float() {
            return err(&[i], format!("arithmetic on an index of type {}", show_type(g, ty)));
        }
        dims = match broadcast(g, &dims, &ty.dims) {
            Some(d) => d,
            None => {
                return Err(ShapeError {
                    text: format!(
                        "{} and {} do not broadcast: neither has all dims of the other",
                        show_dims(g, &dims),
                        show_dims(g, &ty.dims)
                    ),
                    help: Some(
                        "dims are matched by name; rename one with `x[a -> b]`, or reduce it first"
                            .into(),
                    ),
                    args: vec![0, i],
                });
            }
        };
    }
    Ok(Type::f32(dims))
}

/// `f32[tok, d]` in words.
pub fn show_type(g: &Graph, ty: &Type) -> String {
    let dims = if ty.dims.is_empty() { String::new() } else { show_dims(g, &ty.dims) };
    let stack = ty.stack.map_or(String::new(), |n| format!("{n} x "));
    match ty.dtype {
        DType::F32 => format!("{stack}f32{dims}"),
        DType::Bf16 => format!("{stack}bf16{dims}"),
        DType::Id(d) => format!("{stack}id({}){dims}", g.dims.name(d)),
    }
}

fn reduce(g: &Graph, x: &[DimId], over: &[DimId]) -> Result<Vec<DimId>, ShapeError> {
    let mut out: Vec<DimId> = x.to_vec();
    // Owners are reached by first reducing what they own, so go through `over` until stable.
    let mut left: Vec<DimId> = over.to_vec();
    while !left.is_empty() {
        let Some(i) = left.iter().position(|d| out.contains(d)) else {
            return err(
                &[0],
                format!(
                    "cannot reduce over `{}`: {} does not have it",
                    g.dims.name(left[0]),
                    show_dims(g, x)
                ),
            );
        };
        let d = left.remove(i);
        let at = out.iter().position(|o| *o == d).unwrap_or(0);
        match g.dims.owner(d) {
            Some(o) if !out.contains(&o) => out[at] = o,
            _ => {
                out.remove(at);
            }
        }
    }
    Ok(out)
}

fn contract(g: &Graph, a: &[DimId], b: &[DimId], over: &[DimId]) -> Result<Vec<DimId>, ShapeError> {
    for d in over {
        for (i, side) in [a, b].into_iter().enumerate() {
            if !side.contains(d) {
                return err(
                    &[i],
                    format!(
                        "cannot contract over `{}`: {} does not have it",
                        g.dims.name(*d),
                        show_dims(g, side)
                    ),
                );
            }
        }
    }
    let mut out: Vec<DimId> = a.iter().filter(|d| !over.contains(d)).copied().collect();
    out.extend(b.iter().filter(|d| !over.contains(d) && !a.contains(d)));
    Ok(out)
}

/// Result types of `op` applied to `args`.
pub fn infer(g: &Graph, op: &Op, args: &[ValueId]) -> Result<Vec<Type>, ShapeError> {
    let dims = |i: usize| g.dims_of(args[i]);
    let like = |i: usize| Type::f32(dims(i).to_vec());
    Ok(match op {
        Op::Input { index } => vec![g.inputs[*index].ty.clone()],
        Op::Use { param } | Op::GatherParam { param, .. } => {
            vec![Type::f32(g.param(*param).dims.clone())]
        }
        Op::Const { .. } => vec![Type::f32([])],
        Op::Unary { .. } | Op::Binary { .. } | Op::Select => vec![pointwise(g, args)?],
        Op::StopGrad => vec![g.ty(args[0]).clone()],
        Op::Cast { .. } => vec![like(0)],
        Op::Broadcast { dims: to } => {
            if !g.dims.contains(to, dims(0)) {
                return err(
                    &[0],
                    format!("{} does not broadcast to {}", show_dims(g, dims(0)), show_dims(g, to)),
                );
            }
            vec![Type::f32(to.clone())]
        }
        Op::Reduce { over, op } => {
            let _: ReduceOp = *op;
            vec![Type::f32(reduce(g, dims(0), over)?)]
        }
        Op::Contract { over } => vec![Type::f32(contract(g, dims(0), dims(1), over)?)],
        Op::Index { dim } => {
            match g.id_of(args[1]) {
                Some(d) if d == *dim => {}
                Some(d) => {
                    return err(
                        &[1],
                        format!(
                            "an index into `{}` cannot index `{}`",
                            g.dims.name(d),
                            g.dims.name(*dim)
                        ),
                    );
                }
                None => return err(&[1], "only an index can stand in brackets".into()),
            }
            if !dims(0).contains(dim) {
                return err(
                    &[0],
                    format!(
                        "{} has no dim `{}` to index",
                        show_dims(g, dims(0)),
                        g.dims.name(*dim)
                    ),
                );
            }
            let mut out = dims(1).to_vec();
            out.extend(dims(0).iter().filter(|d| *d != dim && !dims(1).contains(d)));
            vec![Type { dtype: g.ty(args[0]).dtype, dims: out, stack: None }]
        }
        Op::ScatterAdd { dims: to, .. } => vec![Type::f32(to.clone())],
        Op::TopK { dim, k, groups } => {
            let size = g.dims.size(*dim).unwrap_or(0);
            if !dims(0).contains(dim) || *k == 0 || *k > size {
                return err(
                    &[0],
                    format!(
                        "the {k} largest of `{}` ({size}) in {}",
                        g.dims.name(*dim),
                        show_dims(g, dims(0))
                    ),
                );
            }
            if let Some(x) = groups
                && (x.count == 0 || !size.is_multiple_of(x.count) || x.keep * (size / x.count) < *k)
            {
                return err(
                    &[0],
                    format!(
                        "{k} of `{}` ({size}) from {} of {} groups",
                        g.dims.name(*dim),
                        x.keep,
                        x.count
                    ),
                );
            }
            vec![like(0)]
        }
        Op::Fit { from, to, at } => {
            let (n, m) = (g.dims.size(*from).unwrap_or(0), g.dims.size(*to).unwrap_or(0));
            if !dims(0).contains(from) || n == 0 || m == 0 || at + n.min(m) > n.max(m) {
                return err(
                    &[0],
                    format!(
                        "`{}` ({n}) does not fit `{}` ({m}) at {at} in {}",
                        g.dims.name(*from),
                        g.dims.name(*to),
                        show_dims(g, dims(0))
                    ),
                );
            }
            vec![swap(like(0), *from, *to)]
        }
        Op::Position { tok, dim } => vec![Type::id(*dim, [*tok])],
        Op::Next { dim, .. } | Op::Recur { dim, .. } => {
            for (i, a) in args.iter().enumerate() {
                if g.dims_of(*a) != [*dim] || !g.dims.is_ragged(*dim) {
                    return err(
                        &[i],
                        format!(
                            "`{}` goes along one ragged dim, not {}",
                            op.name(),
                            show_dims(g, g.dims_of(*a))
                        ),
                    );
                }
            }
            vec![like(0)]
        }
        Op::Rope { tok, hd, .. } => {
            for d in [tok, hd] {
                if !dims(0).contains(d) {
                    return err(
                        &[0],
                        format!(
                            "rope turns `{}` by position in `{}`; {} lacks one of them",
                            g.dims.name(*hd),
                            g.dims.name(*tok),
                            show_dims(g, dims(0))
                        ),
                    );
                }
            }
            vec![like(0)]
        }
        Op::Attention { attn } => {
            let each = [(0, attn.q, attn.hd), (1, attn.kv, attn.hd), (2, attn.kv, attn.vd)];
            for (i, head, size) in each {
                let want = [attn.tok, head, size];
                if dims(i) != want {
                    return err(
                        &[i],
                        format!(
                            "attention takes {} here, got {}",
                            show_dims(g, &want),
                            show_dims(g, dims(i))
                        ),
                    );
                }
            }
            if args.len() > 3 && dims(3) != [attn.q] {
                return err(
                    &[3],
                    format!(
                        "attention takes a sink per query head, {}, got {}",
                        show_dims(g, &[attn.q]),
                        show_dims(g, dims(3))
                    ),
                );
            }
            let o = Type::f32([attn.tok, attn.q, attn.vd]);
            vec![o, Type::f32([attn.tok, attn.q])]
        }
        Op::AttentionGrad { .. } => vec![like(0), like(1), like(2)],
        Op::AttentionCached { attn } => vec![Type::f32([attn.tok, attn.q, attn.vd])],
        Op::Conv { conv } | Op::ConvGrad { conv } => {
            let mut want = vec![conv.tok];
            want.extend(dims(1).iter().filter(|d| **d != conv.taps));
            if dims(1).last() != Some(&conv.taps) || dims(0) != want {
                return err(
                    &[0, 1],
                    format!(
                        "a convolution takes a value over {} and a filter per item of its other \
                         dims, got {} and {}",
                        show_dims(g, &want),
                        show_dims(g, dims(0)),
                        show_dims(g, dims(1))
                    ),
                );
            }
            match op {
                Op::Conv { .. } => vec![like(0)],
                _ => vec![like(0), like(1)],
            }
        }
        Op::Ssm { ssm } | Op::SsmGrad { ssm } => {
            for (i, want) in ssm.operands().iter().enumerate() {
                if dims(i) != want {
                    return err(
                        &[i],
                        format!(
                            "a state-space model takes {} here, got {}",
                            show_dims(g, want),
                            show_dims(g, dims(i))
                        ),
                    );
                }
            }
            match op {
                Op::Ssm { .. } => vec![like(0)],
                _ => (0..4).map(like).collect(),
            }
        }
        Op::LogProb { vocab, .. } => {
            if !dims(0).contains(vocab) || g.id_of(args[1]) != Some(*vocab) {
                return err(
                    &[0, 1],
                    format!(
                        "log-probabilities need logits over `{0}` and labels id({0})",
                        g.dims.name(*vocab)
                    ),
                );
            }
            vec![like(1), like(1), like(1)]
        }
        Op::LogProbHead { .. } => vec![like(2), like(2), like(2)],
        Op::LogProbGrad { .. } => vec![like(0)],
        Op::LogProbHeadGrad { .. } => vec![like(0), like(1)],
        Op::Scan { scan } => {
            let mut out: Vec<Type> = (0..scan.carries).map(|i| g.ty(args[i]).clone()).collect();
            for r in &scan.body.results[scan.carries..] {
                let mut ty = g.ty(*r).clone();
                ty.stack = Some(scan.count);
                out.push(ty);
            }
            out
        }
        Op::Accumulate { param } | Op::ScatterGrad { param, .. } => {
            let want = &g.param(*param).dims;
            if dims(0).len() != want.len() || !want.iter().all(|d| dims(0).contains(d)) {
                return err(
                    &[0],
                    format!(
                        "gradient of `{}` has dims {}, not {}",
                        g.param(*param).name,
                        show_dims(g, dims(0)),
                        show_dims(g, want)
                    ),
                );
            }
            vec![]
        }
        Op::AllReduce { .. } => vec![like(0)],
        Op::AllGather { dim, full, .. } => vec![swap(like(0), *dim, *full)],
        Op::ReduceScatter { dim, part: to, .. } | Op::AllToAll { dim, to, .. } => {
            vec![swap(like(0), *dim, *to)]
        }
        Op::Fused { kernel } => {
            kernel.outputs.iter().map(|(i, out)| Type::f32(kernel_dims(kernel, *i, out))).collect()
        }
    })
}

fn swap(mut ty: Type, from: DimId, to: DimId) -> Type {
    for d in &mut ty.dims {
        if *d == from {
            *d = to;
        }
    }
    ty
}

fn kernel_dims(k: &crate::kernel::Kernel, at: usize, out: &crate::kernel::Output) -> Vec<DimId> {
    use crate::kernel::Output;
    let lanes = k.is_lane(at);
    let mut dims = match out {
        Output::Store => k.rows.clone(),
        Output::SumRows => vec![],
        Output::SumSegments { owner, .. } => vec![*owner],
    };
    if lanes {
        dims.extend(&k.lanes);
    }
    dims
}
