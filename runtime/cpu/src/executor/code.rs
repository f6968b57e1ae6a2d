//! A plan made ready: per node its kernel, what dies after it, and whether its result goes straight into a gradient.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nrl_ir::kernel::Kernel;
use nrl_ir::op::Scan;
use nrl_ir::plan::Plan;
use nrl_ir::{Block, Graph, Node, Op, ParamId, ValueId};
use nrl_runtime::engine::EngineError;

use super::single::single;
use crate::jit::{Compiled, Jit};

/// A prepared plan.
pub struct Ready {
    pub plan: Arc<Plan>,
    pub code: BlockCode,
    /// Pointwise throughout, so that it may run over flat tensors.
    pub flat: bool,
}

/// What to do at each node of a block.
pub struct BlockCode {
    pub steps: Vec<Step>,
    /// Values defined in the block, its parameters included.
    pub own: Vec<ValueId>,
}

/// What to do at one node.
pub struct Step {
    pub kernel: Option<KernelCall>,
    /// Values that nothing reads after this node.
    pub dies: Vec<ValueId>,
    /// Result `.0` is added to the gradient of `.1` and not kept.
    pub into: Option<(usize, ParamId)>,
    /// The node before it has already done this one.
    pub done: bool,
    /// Body of a scan.
    pub inner: Option<BlockCode>,
}

/// A kernel with what its operands need first.
pub struct KernelCall {
    pub kernel: Kernel,
    pub code: Arc<Compiled>,
    pub spread: Vec<Option<Vec<nrl_ir::DimId>>>,
}

impl Ready {
    /// The graph that all ranks run.
    pub fn graph(&self) -> &Graph {
        &self.plan.classes[0].graph
    }
}

/// Compiles what `plan` needs.
pub fn ready(jit: &Jit, plan: &Arc<Plan>) -> Result<Ready, EngineError> {
    let [class] = &plan.classes[..] else {
        let text = format!(
            "plan `{}` has {} rank classes; this engine runs plans of one",
            plan.name,
            plan.classes.len()
        );
        return Err(EngineError::Unsupported(text));
    };
    let g = &class.graph;
    let code = block(jit, g, &g.body)?;
    let mut flat = true;
    g.body.walk(&mut |n| flat &= is_flat(n));
    Ok(Ready { plan: plan.clone(), code, flat })
}

fn is_flat(n: &Node) -> bool {
    use nrl_ir::kernel::{Instr, Output};
    match &n.op {
        Op::Input { .. } | Op::Const { .. } => true,
        Op::Fused { kernel } => {
            let plain = kernel.outputs.iter().all(|(_, o)| *o == Output::Store);
            plain && !kernel.code.iter().any(|i| matches!(i, Instr::Lanes { .. }))
        }
        op => op.is_pointwise() || matches!(op, Op::Broadcast { .. }),
    }
}

/// Every value that a node reads, those that a loop's body takes from outside included.
fn reads(node: &Node) -> BTreeSet<ValueId> {
    let mut out: BTreeSet<ValueId> = node.args.iter().copied().collect();
    if let Op::Scan { scan } = &node.op {
        out.extend(free(scan));
    }
    out
}

fn free(scan: &Scan) -> BTreeSet<ValueId> {
    let mut read: BTreeSet<ValueId> = scan.body.results.iter().copied().collect();
    let mut own: BTreeSet<ValueId> = scan.body.params.iter().copied().collect();
    for n in &scan.body.nodes {
        read.extend(reads(n));
        own.extend(&n.outs);
    }
    read.difference(&own).copied().collect()
}

fn block(jit: &Jit, g: &Graph, b: &Block) -> Result<BlockCode, EngineError> {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut uses: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
    let mut own: Vec<ValueId> = b.params.clone();
    for (i, n) in b.nodes.iter().enumerate() {
        own.extend(&n.outs);
        for v in &n.outs {
            last.insert(*v, i);
        }
        for v in reads(n) {
            last.insert(v, i);
            uses.entry(v).or_default().push(i);
        }
    }
    let kept: BTreeSet<ValueId> = b.results.iter().copied().collect();
    let mine: BTreeSet<ValueId> = own.iter().copied().collect();
    let mut steps = vec![];
    for node in &b.nodes {
        let inner = match &node.op {
            Op::Scan { scan } => Some(block(jit, g, &scan.body)?),
            _ => None,
        };
        steps.push(Step {
            kernel: kernel(jit, g, node)?,
            dies: vec![],
            into: None,
            done: false,
            inner,
        });
    }
    for (v, i) in last {
        if mine.contains(&v) && !kept.contains(&v) {
            steps[i].dies.push(v);
        }
    }
    for (i, node) in b.nodes.iter().enumerate() {
        for (o, v) in node.outs.iter().enumerate() {
            let Some([reader]) = uses.get(v).map(Vec::as_slice) else { continue };
            if let Op::Accumulate { param } = &b.nodes[*reader].op
                && !kept.contains(v)
                && steps[i].into.is_none()
                && adds(node, o)
            {
                steps[i].into = Some((o, *param));
                steps[*reader].done = true;
            }
        }
    }
    Ok(BlockCode { steps, own })
}

/// Can result `o` of the node be added to a gradient as it is made?
fn adds(node: &Node, o: usize) -> bool {
    match node.op {
        Op::Contract { .. } | Op::ScatterAdd { .. } => true,
        Op::LogProbHeadGrad { .. } => o == 1,
        _ => false,
    }
}

fn kernel(jit: &Jit, g: &Graph, node: &Node) -> Result<Option<KernelCall>, EngineError> {
    let (kernel, spread) = match &node.op {
        Op::Fused { kernel } => ((**kernel).clone(), vec![None; node.args.len()]),
        Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::Cast { .. } | Op::Reduce { .. } => {
            match single(g, node) {
                Some(s) => (s.kernel, s.spread),
                None => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    let code = jit.get(&kernel, &g.dims).map_err(EngineError::Failed)?;
    Ok(Some(KernelCall { kernel, code, spread }))
}
