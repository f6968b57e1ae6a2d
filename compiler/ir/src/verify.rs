//! What must hold of a graph between passes. A finding here is a defect of a pass, never a user's.
//!
//! - Dims: every id exists; a type has no dim twice; owners are ragged or absent and have no cycle.
//! - Values: defined once, before use, in the block of the use or around it; `index` operands are
//!   indices, arithmetic is on numbers.
//! - Types: those of results are what the shape rule gives; an input's is its declaration's.
//! - Scans: operands, parameters and results match in number and type, carries first; stacks hold
//!   one slice per layer and are read by scans alone.
//! - Parameters: `use` and sinks of a repeated one stand in a scan over its group, within its
//!   layers; sinks are for trained ones.
//! - Outputs: one name per result, no name twice.
//! - Collectives have axes; a gathered or scattered dim has the shard that its whole says.
//! - Kernels: instructions read earlier ones, operands exist, lanes are static.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::dim::DimId;
use crate::graph::{Block, Graph, Node, ParamId, ValueId};
use crate::infer;
use crate::kernel::{Instr, Kernel, Output, RowIndex};
use crate::op::{Op, Scan};
use crate::types::{DType, Type};

/// A property that does not hold, and the node where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub text: String,
    /// Name of the op and its first result.
    pub node: Option<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.node {
            Some(node) => write!(f, "{} (at {node})", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for Broken {}

/// Checks every property of the list above; the first that fails is the error.
pub fn verify(g: &Graph) -> Result<(), Broken> {
    let mut c = Checker { g, defined: BTreeSet::new(), scans: vec![] };
    c.dims().and_then(|()| c.outputs()).map_err(|text| Broken { text, node: None })?;
    c.block(&g.body, &mut BTreeSet::new())
}

type Check = Result<(), String>;

struct Checker<'a> {
    g: &'a Graph,
    /// Every value defined so far, whatever its scope.
    defined: BTreeSet<ValueId>,
    /// Group and layers of the scans around.
    scans: Vec<(String, usize, usize)>,
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(text()) }
}

impl Checker<'_> {
    fn dims(&self) -> Check {
        for (id, dim) in self.g.dims.iter() {
            let mut seen = BTreeSet::from([id]);
            let mut at = self.g.dims.owner(id);
            while let Some(o) = at {
                self.dim(o)?;
                ensure(seen.insert(o), || format!("dim `{}` owns itself", dim.name))?;
                at = self.g.dims.owner(o);
            }
            for f in &dim.factors {
                self.dim(*f)?;
            }
        }
        for p in &self.g.params {
            self.distinct(&p.dims).map_err(|e| format!("parameter `{}`: {e}", p.name))?;
            for d in p.checkpoint_dims.iter().flatten() {
                self.dim(*d)?;
                ensure(p.dims.contains(d), || {
                    format!("parameter `{}` has another shape in its checkpoint", p.name)
                })?;
            }
        }
        self.g.inputs.iter().try_for_each(|i| self.ty(&i.ty))?;
        self.g.values.iter().try_for_each(|t| self.ty(t))
    }

    fn dim(&self, d: DimId) -> Check {
        ensure((d.0 as usize) < self.g.dims.len(), || format!("no dim {}", d.0))
    }

    fn distinct(&self, dims: &[DimId]) -> Check {
        dims.iter().try_for_each(|d| self.dim(*d))?;
        let twice = dims.iter().enumerate().find(|(i, d)| dims[..*i].contains(d));
        twice.map_or(Ok(()), |(_, d)| Err(format!("dim `{}` occurs twice", self.g.dims.name(*d))))
    }

    fn ty(&self, ty: &Type) -> Check {
        if let DType::Id(d) = ty.dtype {
            self.dim(d)?;
        }
        self.distinct(&ty.dims)
    }

    fn outputs(&self) -> Check {
        let names = &self.g.outputs;
        ensure(names.len() == self.g.body.results.len(), || {
            "results and output names differ in number".into()
        })?;
        let twice = names.iter().enumerate().find(|(i, n)| names[..*i].contains(n));
        ensure(twice.is_none(), || "two outputs have one name".into())?;
        ensure(self.g.body.params.is_empty(), || "the body of a graph has no parameters".into())
    }

    /// Checks `b`, whose nodes may read what is in `scope`; `scope` gains what `b` defines.
    fn block(&mut self, b: &Block, scope: &mut BTreeSet<ValueId>) -> Result<(), Broken> {
        let here = |text| Broken { text, node: None };
        for p in &b.params {
            self.define(*p, scope).map_err(here)?;
        }
        for node in &b.nodes {
            self.node(node, scope)?;
        }
        b.results.iter().try_for_each(|v| self.visible(*v, scope)).map_err(here)
    }

    fn node(&mut self, node: &Node, scope: &mut BTreeSet<ValueId>) -> Result<(), Broken> {
        let first = node.outs.first().map_or(String::new(), |v| format!(" %{}", v.0));
        let at = |text| Broken { text, node: Some(format!("`{}`{first}", node.op.name())) };
        node.args.iter().try_for_each(|v| self.visible(*v, scope)).map_err(at)?;
        self.operands(node).map_err(at)?;
        if let Op::Scan { scan } = &node.op {
            self.scan_types(scan, node).map_err(at)?;
            self.scans.push((scan.group.clone(), scan.first, scan.count));
            self.block(&scan.body, &mut scope.clone())?;
            self.scans.pop();
        }
        self.attributes(node).map_err(at)?;
        let types = infer::infer(self.g, &node.op, &node.args).map_err(|e| at(e.text))?;
        let differ = types.len() != node.outs.len()
            || types.iter().zip(&node.outs).any(|(t, v)| t != self.g.ty(*v));
        if differ {
            let show = |ts: Vec<&Type>| {
                ts.into_iter().map(|t| infer::show_type(self.g, t)).collect::<Vec<_>>().join(", ")
            };
            let have = show(node.outs.iter().map(|v| self.g.ty(*v)).collect());
            return Err(at(format!(
                "results are {have}, the shape rule gives {}",
                show(types.iter().collect())
            )));
        }
        node.outs.iter().try_for_each(|v| self.define(*v, scope)).map_err(at)
    }

    fn define(&mut self, v: ValueId, scope: &mut BTreeSet<ValueId>) -> Check {
        ensure((v.0 as usize) < self.g.values.len(), || format!("no value %{}", v.0))?;
        ensure(self.defined.insert(v), || format!("%{} is defined twice", v.0))?;
        scope.insert(v);
        Ok(())
    }

    fn visible(&self, v: ValueId, scope: &BTreeSet<ValueId>) -> Check {
        ensure(scope.contains(&v), || format!("%{} is not defined here", v.0))
    }

    /// Number and kind of operands.
    fn operands(&self, node: &Node) -> Check {
        if matches!(node.op, Op::Attention { .. } | Op::AttentionCached { .. }) {
            // The sink may be there or not.
            let n = node.args.len();
            ensure(n == 3 || n == 4, || format!("{n} operands instead of 3 or 4"))?;
        } else if let Some(want) = arity(&node.op) {
            ensure(node.args.len() == want, || {
                format!("{} operands instead of {want}", node.args.len())
            })?;
        }
        let scan = matches!(node.op, Op::Scan { .. });
        let stack = node.args.iter().find(|v| self.g.ty(**v).stack.is_some());
        ensure(scan || stack.is_none(), || "a stack is read outside a scan".into())?;
        let ids: &[usize] = match &node.op {
            Op::Index { .. } | Op::LogProb { .. } | Op::LogProbGrad { .. } => &[1],
            Op::ScatterAdd { .. } => &[0],
            Op::LogProbHead { .. } | Op::LogProbHeadGrad { .. } => &[2],
            Op::Scan { .. } | Op::StopGrad => return Ok(()),
            _ => &[],
        };
        for (i, v) in node.args.iter().enumerate() {
            let wants_id = ids.contains(&i);
            let either = matches!(node.op, Op::Index { .. }) && i == 0;
            ensure(either || wants_id != self.g.ty(*v).is_float(), || {
                format!("operand {i} is {}", infer::show_type(self.g, self.g.ty(*v)))
            })?;
        }
        Ok(())
    }

    fn scan_types(&self, scan: &Scan, node: &Node) -> Check {
        let (args, params, results, outs) =
            (&node.args, &scan.body.params, &scan.body.results, &node.outs);
        ensure(args.len() == params.len() && results.len() == outs.len(), || {
            "a scan passes another number of values".into()
        })?;
        ensure(scan.carries <= params.len().min(results.len()), || "a scan lacks carries".into())?;
        let slice = |v: ValueId| Type { stack: None, ..self.g.ty(v).clone() };
        for i in 0..args.len().max(outs.len()) {
            if i < scan.carries {
                let types = [args[i], params[i], results[i], outs[i]].map(|v| self.g.ty(v));
                ensure(types.iter().all(|t| *t == types[0]), || {
                    format!("carry {i} changes its type")
                })?;
                continue;
            }
            if let (Some(a), Some(p)) = (args.get(i), params.get(i)) {
                let whole = self.g.ty(*a).stack == Some(scan.count) && slice(*a) == *self.g.ty(*p);
                ensure(whole, || format!("operand {i} is no stack of {} slices", scan.count))?;
            }
            if let Some(r) = results.get(i) {
                ensure(self.g.ty(*r).stack.is_none(), || "a stack of stacks".into())?;
            }
        }
        Ok(())
    }

    fn attributes(&self, node: &Node) -> Check {
        match &node.op {
            Op::Input { index } => {
                ensure(*index < self.g.inputs.len(), || format!("no input {index}"))
            }
            Op::Use { param } => self.param(*param, false),
            Op::GatherParam { param, axes, .. } => {
                self.param(*param, false).and_then(|()| some_axes(axes))
            }
            Op::Accumulate { param } => self.param(*param, true),
            Op::ScatterGrad { param, axes, .. } => {
                self.param(*param, true).and_then(|()| some_axes(axes))
            }
            Op::Broadcast { dims } | Op::ScatterAdd { dims, .. } => self.distinct(dims),
            Op::AllReduce { axes, .. } | Op::AllToAll { axes, .. } => some_axes(axes),
            Op::AllGather { dim, full, axes, .. } => {
                some_axes(axes).and_then(|()| self.part(*dim, *full, axes))
            }
            Op::ReduceScatter { dim, part, axes, .. } => {
                some_axes(axes).and_then(|()| self.part(*part, *dim, axes))
            }
            Op::LogProb { vocab, axes, .. }
            | Op::LogProbGrad { vocab, axes, .. }
            | Op::LogProbHead { vocab, axes, .. }
            | Op::LogProbHeadGrad { vocab, axes, .. } => {
                let split = self.g.dims.get(*vocab).shard.as_ref().map_or(&[][..], |s| &s.axes);
                ensure(split == axes, || "axes are not those that split the vocabulary".into())
            }
            Op::Fused { kernel } => self.kernel(kernel, node),
            Op::Rope { hd, inv_freq, .. } => {
                let most = inv_freq.items().iter().map(Vec::len).max().unwrap_or(0);
                let fits = self.g.dims.size(*hd).is_some_and(|n| 2 * most <= n);
                ensure(fits, || "rope turns more numbers than a head has".into())
            }
            Op::Attention { attn } | Op::AttentionGrad { attn } | Op::AttentionCached { attn } => {
                let (q, kv) = (self.g.dims.bound(attn.q), self.g.dims.bound(attn.kv));
                ensure(kv > 0 && q % kv == 0, || {
                    format!("{q} query heads over {kv} key/value heads")
                })
            }
            Op::Const { .. }
            | Op::Conv { .. }
            | Op::ConvGrad { .. }
            | Op::Ssm { .. }
            | Op::SsmGrad { .. }
            | Op::TopK { .. }
            | Op::Fit { .. }
            | Op::Position { .. }
            | Op::Next { .. }
            | Op::Recur { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Select
            | Op::StopGrad
            | Op::Cast { .. }
            | Op::Reduce { .. }
            | Op::Contract { .. }
            | Op::Index { .. }
            | Op::Scan { .. } => Ok(()),
        }
    }

    fn param(&self, param: ParamId, sink: bool) -> Check {
        let Some(p) = self.g.params.get(param.0 as usize) else {
            return Err(format!("no parameter {}", param.0));
        };
        ensure(!sink || p.trained, || {
            format!("a gradient for `{}`, which is not trained", p.name)
        })?;
        let Some((group, layers)) = &p.repeat else { return Ok(()) };
        match self.scans.iter().rev().find(|(g, _, _)| g == group) {
            Some((_, first, count)) => ensure(first + count <= *layers, || {
                format!("`{}` has only {layers} layers", p.name)
            }),
            None => Err(format!("`{}` outside a scan over `{group}`", p.name)),
        }
    }

    /// `part` is `full` split over `axes`.
    fn part(&self, part: DimId, full: DimId, axes: &[String]) -> Check {
        let whole = self.g.dims.bound(full);
        let fits = self
            .g
            .dims
            .get(part)
            .shard
            .as_ref()
            .is_some_and(|s| s.axes == axes && s.global == whole);
        ensure(fits, || {
            format!(
                "`{}` is no part of `{}` over these axes",
                self.g.dims.name(part),
                self.g.dims.name(full)
            )
        })
    }

    fn kernel(&self, k: &Kernel, node: &Node) -> Check {
        ensure(node.args.len() == k.inputs.len(), || {
            "operands and kernel inputs differ in number".into()
        })?;
        ensure(k.lanes.iter().all(|d| !self.g.dims.is_ragged(*d)), || {
            "a ragged dim as lanes".into()
        })?;
        let dims: Vec<DimId> = k.rows.iter().chain(&k.lanes).copied().collect();
        self.distinct(&dims)?;
        for (i, instr) in k.code.iter().enumerate() {
            let reads: Vec<usize> = match instr {
                Instr::Load { input } => {
                    ensure(*input < k.inputs.len(), || format!("no kernel input {input}"))?;
                    vec![]
                }
                Instr::Const { .. } => vec![],
                Instr::Unary { x, .. } | Instr::RoundBf16 { x } | Instr::Lanes { x, .. } => {
                    vec![*x]
                }
                Instr::Binary { a, b, .. } => vec![*a, *b],
                Instr::Select { cond, a, b } => vec![*cond, *a, *b],
            };
            ensure(reads.iter().all(|r| *r < i), || format!("instruction {i} reads a later one"))?;
        }
        for access in &k.inputs {
            if let RowIndex::Segment { of, owner, .. } = access.row {
                self.segments(k, of, owner)?;
            }
        }
        for (id, output) in &k.outputs {
            ensure(*id < k.code.len(), || format!("no instruction {id}"))?;
            if let Output::SumSegments { of, owner } = output {
                self.segments(k, *of, *owner)?;
                ensure(k.rows.len() == 1, || "a segment sum over several dims".into())?;
            }
        }
        Ok(())
    }

    fn segments(&self, k: &Kernel, of: DimId, owner: DimId) -> Check {
        let fits = k.rows.first() == Some(&of)
            && of != owner
            && self.g.dims.owners(of).any(|o| o == owner);
        ensure(fits, || "segments of a dim that is not the first row dim".into())
    }
}

fn some_axes(axes: &[String]) -> Check {
    let distinct: BTreeMap<&String, ()> = axes.iter().map(|a| (a, ())).collect();
    ensure(!axes.is_empty() && distinct.len() == axes.len(), || {
        "a collective needs distinct axes".into()
    })
}

/// Number of operands; `None` if it varies.
fn arity(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Input { .. } | Op::Use { .. } | Op::Const { .. } | Op::Position { .. } => 0,
        Op::GatherParam { .. } => 0,
        Op::Unary { .. }
        | Op::StopGrad
        | Op::Cast { .. }
        | Op::Broadcast { .. }
        | Op::Reduce { .. }
        | Op::Rope { .. }
        | Op::TopK { .. }
        | Op::Fit { .. }
        | Op::Next { .. }
        | Op::Accumulate { .. }
        | Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::ScatterGrad { .. } => 1,
        Op::Binary { .. }
        | Op::Contract { .. }
        | Op::Index { .. }
        | Op::ScatterAdd { .. }
        | Op::Conv { .. }
        | Op::Recur { .. } => 2,
        Op::ConvGrad { .. } => 3,
        Op::Ssm { .. } => 4,
        Op::SsmGrad { .. } => 5,
        Op::Select | Op::LogProb { .. } => 3,
        Op::LogProbHead { .. } => 4,
        Op::AttentionGrad { .. } => 6,
        Op::LogProbGrad { .. } => 7,
        Op::LogProbHeadGrad { .. } => 8,
        Op::Attention { .. } | Op::AttentionCached { .. } | Op::Scan { .. } | Op::Fused { .. } => {
            return None;
        }
    })
}
