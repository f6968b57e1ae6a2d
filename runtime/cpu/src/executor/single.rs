//! Single nodes as kernels: what `fuse` left alone still runs as machine code, with the same order of sums.
//!
//! In: a pointwise node or a reduction. Out: a [`Kernel`] and, per operand, whether it must first be repeated over all
//! dims of the result. `None` where no kernel can say it.

use nrl_ir::kernel::{Access, Instr, Kernel, Output, RowIndex};
use nrl_ir::{DType, DimId, Graph, Node, Op, ReduceOp};

/// A node as a kernel.
pub struct Single {
    pub kernel: Kernel,
    /// Operands to be repeated over these dims before the call.
    pub spread: Vec<Option<Vec<DimId>>>,
}

/// The kernel of `node`.
pub fn single(g: &Graph, node: &Node) -> Option<Single> {
    let apply = |n: usize| -> Option<Instr> {
        Some(match &node.op {
            Op::Unary { op } => Instr::Unary { op: *op, x: 0 },
            Op::Binary { op } if n == 2 => Instr::Binary { op: *op, a: 0, b: 1 },
            Op::Select if n == 3 => Instr::Select { cond: 0, a: 1, b: 2 },
            Op::Cast { to: DType::Bf16 } => Instr::RoundBf16 { x: 0 },
            _ => return None,
        })
    };
    if let Op::Reduce { op, over } = &node.op {
        return reduction(g, g.dims_of(node.args[0]), *op, over);
    }
    let last = apply(node.args.len())?;
    let space = g.dims_of(node.outs[0]).to_vec();
    let fixed = space.iter().rev().take_while(|d| !g.dims.is_ragged(**d)).count();
    // As many lanes as all operands allow, or as the most willing ones if some must be repeated first.
    let fits = |k: usize| {
        node.args.iter().filter(|a| access(g, g.dims_of(**a), &space, k).is_some()).count()
    };
    let lanes = (0..=fixed).max_by_key(|k| (fits(*k), *k)).unwrap_or(0);
    let mut spread = vec![];
    let mut inputs = vec![];
    for a in &node.args {
        let found = access(g, g.dims_of(*a), &space, lanes);
        spread.push(if found.is_some() { None } else { Some(space.clone()) });
        let along = || access(g, &space, &space, lanes);
        inputs.push(found.or_else(along)?);
    }
    let (rows, lanes) = space.split_at(space.len() - lanes);
    let mut code: Vec<Instr> = (0..inputs.len()).map(|input| Instr::Load { input }).collect();
    code.push(last);
    let outputs = vec![(code.len() - 1, Output::Store)];
    let kernel = Kernel {
        rows: rows.to_vec(),
        lanes: lanes.to_vec(),
        inputs,
        code,
        outputs,
        reason: String::new(),
    };
    // A result that is wider than every operand has to be stored for every lane.
    let wide = kernel.lanes.is_empty() || kernel.is_lane(kernel.outputs[0].0);
    wide.then_some(Single { kernel, spread })
}

/// How an operand over `dims` is read by rows and the last `k` dims of `space`.
fn access(g: &Graph, dims: &[DimId], space: &[DimId], k: usize) -> Option<Access> {
    let (rows, lanes) = space.split_at(space.len() - k);
    let stripped = if k > 0 { dims.strip_suffix(lanes) } else { None };
    let (mine, lanes) = (stripped.unwrap_or(dims), stripped.is_some());
    let product = |dims: &[DimId]| dims.iter().map(|d| g.dims.size(*d)).product::<Option<usize>>();
    if mine.is_empty() {
        return Some(Access { row: RowIndex::None, lanes });
    }
    if let Some(at) = rows.windows(mine.len()).position(|w| w == mine) {
        let div = product(&rows[at + mine.len()..])?;
        let modulo = if at == 0 { 0 } else { product(mine)? };
        return Some(Access { row: RowIndex::Row { div, modulo }, lanes });
    }
    match (mine, rows) {
        ([owner], [of, rest @ ..]) if g.dims.owners(*of).any(|o| o == *owner) => {
            let row = RowIndex::Segment { div: product(rest)?, of: *of, owner: *owner };
            Some(Access { row, lanes })
        }
        _ => None,
    }
}

fn reduction(g: &Graph, dims: &[DimId], op: ReduceOp, over: &[DimId]) -> Option<Single> {
    let fixed = dims.iter().rev().take_while(|d| !g.dims.is_ragged(**d)).count();
    let inner = dims.iter().rev().take(fixed).take_while(|d| over.contains(d)).count();
    let left: Vec<DimId> =
        over.iter().filter(|d| !dims[dims.len() - inner..].contains(d)).copied().collect();
    let chain: Vec<DimId> = dims[..dims.len() - inner].to_vec();
    let (lanes, output) = if left.is_empty() {
        (inner, Output::Store)
    } else if op != ReduceOp::Sum {
        return None;
    } else if let Some(owner) = segments(g, &chain, &left) {
        (inner, Output::SumSegments { of: chain[0], owner })
    } else {
        let kept = if inner > 0 {
            0
        } else {
            dims.iter().rev().take(fixed).take_while(|d| !over.contains(d)).count()
        };
        let mut all: Vec<DimId> = vec![];
        for d in dims[..dims.len() - inner - kept].iter().flat_map(|d| g.dims.owners(*d)) {
            if !all.contains(&d) {
                all.push(d);
            }
        }
        let every = all.len() == left.len() && all.iter().all(|d| left.contains(d));
        if !every {
            return None;
        }
        (inner + kept, Output::SumRows)
    };
    let (rows, lane_dims) = dims.split_at(dims.len() - lanes);
    let row = if rows.is_empty() { RowIndex::None } else { RowIndex::Row { div: 1, modulo: 0 } };
    let mut code = vec![Instr::Load { input: 0 }];
    if inner > 0 {
        code.push(Instr::Lanes { op, x: 0 });
    }
    let kernel = Kernel {
        rows: rows.to_vec(),
        lanes: lane_dims.to_vec(),
        inputs: vec![Access { row, lanes: lanes > 0 }],
        outputs: vec![(code.len() - 1, output)],
        code,
        reason: String::new(),
    };
    Some(Single { kernel, spread: vec![None] })
}

/// The level up to which `[of]` is summed by segment, if `left` says just that.
fn segments(g: &Graph, rows: &[DimId], left: &[DimId]) -> Option<DimId> {
    let [of] = rows else { return None };
    let owner = g.dims.owners(*of).find(|o| !left.contains(o)).filter(|o| o != of)?;
    let levels = g.dims.owners(*of).take_while(|o| *o != owner).count();
    (left.len() == levels).then_some(owner)
}
