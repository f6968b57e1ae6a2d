//! One run of a prepared plan: a walk over the graph with values in buffers from the pool.

use std::collections::HashMap;
use std::sync::Arc;

use nrl_ir::kernel::{Output, RowIndex};
use nrl_ir::op::Scan;
use nrl_ir::{Block, DType, DimId, Node, Op, ParamId, ValueId};
use nrl_runtime::engine::{Bindings, Comm, EngineError, HostTensor, KvCache, ParamStore};

use super::code::{BlockCode, KernelCall, Ready, Step};
use super::counted::Counter;
use super::index::{self, Part, Table};
use super::pool::{Buffer, Pool};
use super::product::{Named, Target, contract};
use super::value::{Given, Space, Value, Values, failed};
use super::{ranks, walk};
use crate::jit::{Operand, Place};
use crate::threads::Threads;

/// What a device keeps between runs.
pub struct Tools {
    pub threads: Threads,
    pub pool: Pool,
    pub ropes: HashMap<Vec<u64>, Table>,
    /// A piece of logits.
    pub piece: Vec<f32>,
    /// Where to count what runs do, if it is to be counted.
    pub counter: Option<Counter>,
    /// Multiplications of contractions since they were last counted.
    pub multiplied: usize,
}

pub struct Run<'a> {
    pub(super) tools: &'a mut Tools,
    pub(super) space: Space<'a>,
    pub(super) values: Values<'a>,
    pub(super) grads: &'a mut Vec<Vec<f32>>,
    first: &'a [usize],
    pub(super) cache: Option<&'a mut KvCache>,
    pub(super) comm: &'a Comm,
    /// Loops being run, outermost first: group and current layer.
    pub(super) layers: Vec<(String, usize)>,
}

impl<'a> Run<'a> {
    /// Checks the bindings; `count` is the size of ragged dims without offsets.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        ready: &'a Ready,
        tools: &'a mut Tools,
        store: &'a mut ParamStore,
        cache: Option<&'a mut KvCache>,
        bind: &'a Bindings,
        inputs: Vec<Given<'a>>,
        comm: &'a Comm,
        count: Option<usize>,
    ) -> Result<Run<'a>, EngineError> {
        let graph = ready.graph();
        let space = Space::new(graph, bind, comm.mesh(), count)?;
        if inputs.len() != graph.inputs.len() {
            return failed(format!(
                "`{}` has {} inputs, {} are bound",
                graph.name,
                graph.inputs.len(),
                inputs.len()
            ));
        }
        for (input, given) in graph.inputs.iter().zip(&inputs) {
            let need = space.count(&input.ty.dims)?;
            if given.len() != need {
                return failed(format!(
                    "input `{}` has {} numbers, {need} are needed",
                    input.name,
                    given.len()
                ));
            }
        }
        let ParamStore { first, weights, grads } = store;
        let values = Values { slots: vec![None; graph.values.len()], inputs, weights };
        Ok(Run { tools, space, values, grads, first, cache, comm, layers: vec![] })
    }

    pub fn block(&mut self, block: &Block, code: &BlockCode) -> Result<(), EngineError> {
        for (node, step) in block.nodes.iter().zip(&code.steps) {
            if !step.done {
                match self.tools.counter.clone() {
                    None => self.node(node, step)?,
                    Some(counter) => {
                        let read = self.operands(node);
                        self.node(node, step)?;
                        self.count(&counter, node, step, &read)?;
                    }
                }
            }
            for v in &step.dies {
                self.values.slots[v.0 as usize] = None;
            }
        }
        Ok(())
    }

    /// An output of the graph.
    pub fn output(&mut self, v: ValueId) -> Result<HostTensor, EngineError> {
        if let Value::Stack(slices) = self.values.get(v)?.clone() {
            let mut all = vec![];
            for s in slices.into_iter().flatten() {
                self.values.slots[v.0 as usize] = Some(s);
                all.extend_from_slice(self.values.numbers(v)?);
            }
            return Ok(HostTensor::F32(all));
        }
        match self.space.graph.ty(v).dtype {
            DType::Id(_) => Ok(HostTensor::Id(self.values.ids(v)?.to_vec())),
            DType::F32 | DType::Bf16 => Ok(HostTensor::F32(self.values.numbers(v)?.to_vec())),
        }
    }

    /// The numbers of an output in a buffer of their own.
    pub fn owned(&mut self, v: ValueId) -> Result<Buffer, EngineError> {
        match self.values.slots[v.0 as usize].take() {
            Some(Value::Numbers(b)) => {
                Ok(Arc::try_unwrap(b).unwrap_or_else(|b| self.tools.pool.copy(&b)))
            }
            other => {
                self.values.slots[v.0 as usize] = other;
                Ok(self.tools.pool.copy(self.values.numbers(v)?))
            }
        }
    }

    pub(super) fn set(&mut self, v: ValueId, b: Buffer) {
        self.values.slots[v.0 as usize] = Some(Value::Numbers(Arc::new(b)));
    }

    pub(super) fn dims(&self, v: ValueId) -> &'a [DimId] {
        let graph: &'a _ = self.space.graph;
        graph.dims_of(v)
    }

    /// A buffer for the value.
    pub(super) fn room(&self, v: ValueId) -> Result<Buffer, EngineError> {
        Ok(self.tools.pool.take(self.space.count(self.dims(v))?))
    }

    /// Layer of `param` that is read here.
    pub(super) fn slot(&self, param: ParamId) -> Result<usize, EngineError> {
        let layer = match &self.space.graph.param(param).repeat {
            Some((group, _)) => {
                self.layers.iter().rev().find(|(g, _)| g == group).map_or(0, |(_, l)| *l)
            }
            None => 0,
        };
        let slot = self.first.get(param.0 as usize).map_or(usize::MAX, |f| f.saturating_add(layer));
        if slot >= self.values.weights.len() {
            return failed(format!(
                "there are no weights for `{}`, layer {layer}",
                self.space.graph.param(param).name
            ));
        }
        Ok(slot)
    }

    /// The gradient of a weight, zeros at first.
    pub(super) fn grad(&mut self, slot: usize) -> Result<Vec<f32>, EngineError> {
        if self.grads.len() < self.values.weights.len() {
            self.grads.resize(self.values.weights.len(), vec![]);
        }
        let mut g = std::mem::take(&mut self.grads[slot]);
        g.resize(self.values.weights[slot].len(), 0.0);
        Ok(g)
    }

    pub(super) fn part(&self, dim: DimId) -> Result<Part, EngineError> {
        let local = self.space.size(dim)?;
        let first = self
            .space
            .graph
            .dims
            .get(dim)
            .shard
            .as_ref()
            .map_or(0, |s| self.comm.coord(&s.axes) * local);
        Ok(Part { dim, first, local })
    }

    fn node(&mut self, node: &Node, step: &Step) -> Result<(), EngineError> {
        let a = &node.args;
        match &node.op {
            Op::Input { index } => {
                self.values.slots[node.outs[0].0 as usize] = Some(Value::Input(*index))
            }
            Op::Use { param } => {
                let slot = self.slot(*param)?;
                let need = self.space.count(&self.space.graph.param(*param).dims)?;
                if self.values.weights[slot].len() != need {
                    let name = &self.space.graph.param(*param).name;
                    return failed(format!(
                        "`{name}` has {} numbers, {need} are needed",
                        self.values.weights[slot].len()
                    ));
                }
                self.values.slots[node.outs[0].0 as usize] = Some(Value::Weight(slot));
            }
            Op::Const { value } => {
                let b = self.tools.pool.filled(1, *value as f32);
                self.set(node.outs[0], b);
            }
            Op::StopGrad | Op::Cast { to: DType::F32 | DType::Id(_) } => {
                self.values.slots[node.outs[0].0 as usize] = Some(self.values.get(a[0])?.clone());
            }
            Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Select
            | Op::Cast { to: DType::Bf16 }
            | Op::Fused { .. } => match &step.kernel {
                Some(call) => self.kernel(call, node)?,
                None => {
                    return Err(EngineError::Unsupported(format!(
                        "`{}` over these dims has no kernel",
                        node.op.name()
                    )));
                }
            },
            Op::Reduce { op, .. } => match &step.kernel {
                Some(call) => self.kernel(call, node)?,
                None => {
                    let mut out = self.room(node.outs[0])?;
                    let (from, to) = (self.dims(a[0]), self.dims(node.outs[0]));
                    walk::reduce(
                        &mut self.space,
                        *op,
                        self.values.numbers(a[0])?,
                        from,
                        to,
                        &mut out,
                    )?;
                    self.set(node.outs[0], out);
                }
            },
            Op::Broadcast { dims } => {
                let out = self.spread(a[0], dims)?;
                self.set(node.outs[0], out);
            }
            Op::Contract { over } => self.contract(node, over, step)?,
            Op::Index { dim } => self.index(node, *dim)?,
            Op::ScatterAdd { dim, dims } => self.scatter_add(node, *dim, dims, step)?,
            Op::TopK { dim, k, groups } => self.top_k(node, *dim, *k, *groups)?,
            Op::Fit { from, to, at } => self.fit(node, *from, *to, *at)?,
            Op::Position { tok, .. } => {
                let positions = self.space.positions(*tok)?;
                self.values.slots[node.outs[0].0 as usize] = Some(Value::Ids(positions.into()));
            }
            Op::AllToAll { .. } => return failed("experts split over ranks do not run yet"),
            Op::Next { dim, fill } => self.next(node, *dim, *fill as f32)?,
            Op::Recur { dim, back } => self.recur(node, *dim, *back)?,
            Op::Rope { tok, hd, inv_freq, scale, inverse } => {
                let inv_freq = inv_freq.at(self.layer());
                self.rope(node, (*tok, *hd), inv_freq, (*scale as f32, *inverse))?
            }
            Op::Attention { attn } => self.attention(node, attn)?,
            Op::AttentionGrad { attn } => self.attention_grad(node, attn)?,
            Op::AttentionCached { attn } => self.attention_cached(node, attn)?,
            Op::Conv { conv } => self.conv(node, conv)?,
            Op::ConvGrad { conv } => self.conv_grad(node, conv)?,
            Op::Ssm { ssm } => self.ssm(node, ssm)?,
            Op::SsmGrad { ssm } => self.ssm_grad(node, ssm)?,
            Op::LogProb { vocab, valid, axes } => self.log_prob(node, (*vocab, *valid), axes)?,
            Op::LogProbGrad { vocab, valid, .. } => self.log_prob_grad(node, (*vocab, *valid))?,
            Op::LogProbHead { vocab, d, valid, axes } => {
                self.log_prob_head(node, (*vocab, *d, *valid), axes)?
            }
            Op::LogProbHeadGrad { vocab, d, valid, .. } => {
                self.log_prob_head_grad(node, (*vocab, *d, *valid), step)?
            }
            Op::Scan { scan } => self.scan(node, scan, step)?,
            Op::Accumulate { param } => {
                let slot = self.slot(*param)?;
                let mut g = self.grad(slot)?;
                let (from, to) = (self.dims(a[0]), &self.space.graph.param(*param).dims);
                walk::spread(&mut self.space, self.values.numbers(a[0])?, from, to, &mut g, true)?;
                self.grads[slot] = g;
            }
            Op::AllReduce { op, axes, .. } => {
                let mut x = if step.dies.contains(&a[0]) {
                    self.owned(a[0])?
                } else {
                    self.tools.pool.copy(self.values.numbers(a[0])?)
                };
                if let Some(group) = self.comm.along(axes) {
                    group.all_reduce(&mut x, ranks::how(*op))?;
                }
                self.set(node.outs[0], x);
            }
            Op::AllGather { dim, full, axes, .. } => {
                let x = (self.values.numbers(a[0])?, self.dims(a[0]));
                let out = ranks::all_gather(
                    &self.space,
                    &self.tools.pool,
                    self.comm,
                    axes,
                    x,
                    (*dim, *full),
                )?;
                self.set(node.outs[0], out);
            }
            Op::ReduceScatter { dim, part, axes, .. } => {
                let x = (self.values.numbers(a[0])?, self.dims(a[0]));
                let out = ranks::reduce_scatter(
                    &self.space,
                    &self.tools.pool,
                    self.comm,
                    axes,
                    x,
                    (*dim, *part),
                )?;
                self.set(node.outs[0], out);
            }
            Op::GatherParam { param, axes, .. } => {
                let slot = self.slot(*param)?;
                let len = self.space.count(&self.space.graph.param(*param).dims)?;
                let out = ranks::gather_flat(
                    &self.tools.pool,
                    self.comm,
                    axes,
                    &self.values.weights[slot],
                    len,
                )?;
                self.set(node.outs[0], out);
            }
            Op::ScatterGrad { param, axes, .. } => {
                let slot = self.slot(*param)?;
                let to: &[DimId] = &self.space.graph.param(*param).dims;
                let ordered = (self.dims(a[0]) != to).then(|| self.spread(a[0], to)).transpose()?;
                let mut g = self.grad(slot)?;
                let x = ordered.as_deref().map_or_else(|| self.values.numbers(a[0]), Ok)?;
                ranks::scatter_flat(&self.tools.pool, self.comm, axes, x, &mut g)?;
                self.grads[slot] = g;
            }
        }
        Ok(())
    }

    /// A value repeated or permuted to be over `to`.
    pub(super) fn spread(&mut self, v: ValueId, to: &[DimId]) -> Result<Buffer, EngineError> {
        let mut out = self.tools.pool.take(self.space.count(to)?);
        let from = self.dims(v);
        walk::spread(&mut self.space, self.values.numbers(v)?, from, to, &mut out, false)?;
        Ok(out)
    }

    fn kernel(&mut self, call: &KernelCall, node: &Node) -> Result<(), EngineError> {
        let rows = self.space.count(&call.kernel.rows)?;
        let mut repeated = vec![];
        for (v, to) in node.args.iter().zip(&call.spread) {
            repeated.push(to.as_ref().map(|to| self.spread(*v, to)).transpose()?);
        }
        let mut maps = vec![];
        for access in &call.kernel.inputs {
            maps.push(match access.row {
                RowIndex::Segment { of, owner, .. } => Some(self.space.map(of, owner)?),
                RowIndex::None | RowIndex::Row { .. } => None,
            });
        }
        let mut places = vec![];
        for (o, (_, how)) in call.kernel.outputs.iter().enumerate() {
            places.push(match how {
                Output::SumSegments { of, owner } => (
                    self.tools.pool.take(self.space.size(*owner)?),
                    Some(self.space.map(*of, *owner)?),
                ),
                Output::Store | Output::SumRows => {
                    (self.tools.pool.take(call.code.length(o, rows).unwrap_or(0)), None)
                }
            });
        }
        let mut operands = vec![];
        for ((v, r), map) in node.args.iter().zip(&repeated).zip(&maps) {
            let data = r.as_deref().map_or_else(|| self.values.numbers(*v), Ok)?;
            operands.push(Operand { data, map: map.as_ref().map_or(&[], |m| &m[..]) });
        }
        let mut targets: Vec<Place> = places
            .iter_mut()
            .map(|(b, map)| Place { data: b, map: map.as_ref().map_or(&[], |m| &m[..]) })
            .collect();
        call.code
            .run(&self.tools.threads, rows, &operands, &mut targets)
            .map_err(EngineError::Failed)?;
        for (v, (b, _)) in node.outs.iter().zip(places) {
            self.set(*v, b);
        }
        Ok(())
    }

    fn contract(&mut self, node: &Node, over: &[DimId], step: &Step) -> Result<(), EngineError> {
        let dims = (self.dims(node.args[0]), self.dims(node.args[1]), self.dims(node.outs[0]));
        let (grad, mut out) = match step.into {
            Some((_, param)) => {
                let slot = self.slot(param)?;
                (Some((slot, param, self.grad(slot)?)), None)
            }
            None => (None, Some(self.room(node.outs[0])?)),
        };
        let (x, y) = (self.values.numbers(node.args[0])?, self.values.numbers(node.args[1])?);
        let (x, y) = (Named { data: x, dims: dims.0 }, Named { data: y, dims: dims.1 });
        let Tools { threads, pool, .. } = &*self.tools;
        let mut multiplied = 0;
        if let Some((slot, param, mut g)) = grad {
            let graph = self.space.graph;
            let target = Target { data: &mut g, dims: &graph.param(param).dims, add: true };
            multiplied = contract(&mut self.space, threads, pool, x, y, over, target)?;
            self.grads[slot] = g;
        } else if let Some(out) = &mut out {
            let target = Target { data: out, dims: dims.2, add: false };
            multiplied = contract(&mut self.space, threads, pool, x, y, over, target)?;
        }
        self.tools.multiplied += multiplied;
        if let Some(out) = out {
            self.set(node.outs[0], out);
        }
        Ok(())
    }

    fn index(&mut self, node: &Node, dim: DimId) -> Result<(), EngineError> {
        let [x, ids] = node.args[..] else { return failed("an index takes two operands") };
        let (dims, id_dims, to) = (self.dims(x), self.dims(ids), self.dims(node.outs[0]));
        let part = self.part(dim)?;
        if let DType::Id(_) = self.space.graph.ty(node.outs[0]).dtype {
            let mut out = vec![0; self.space.count(to)?];
            index::take(
                &mut self.space,
                part,
                (self.values.ids(x)?, dims),
                (self.values.ids(ids)?, id_dims),
                to,
                &mut out,
            )?;
            self.values.slots[node.outs[0].0 as usize] = Some(Value::Ids(Arc::new(out)));
            return Ok(());
        }
        let mut out = self.room(node.outs[0])?;
        index::take(
            &mut self.space,
            part,
            (self.values.numbers(x)?, dims),
            (self.values.ids(ids)?, id_dims),
            to,
            &mut out,
        )?;
        self.set(node.outs[0], out);
        Ok(())
    }

    fn scatter_add(
        &mut self,
        node: &Node,
        dim: DimId,
        dims: &[DimId],
        step: &Step,
    ) -> Result<(), EngineError> {
        let [ids, y] = node.args[..] else { return failed("a scatter takes two operands") };
        let (id_dims, from, part) = (self.dims(ids), self.dims(y), self.part(dim)?);
        if let Some((_, param)) = step.into {
            let slot = self.slot(param)?;
            let mut g = self.grad(slot)?;
            let order: &[DimId] = &self.space.graph.param(param).dims;
            let (ids, y) = (self.values.ids(ids)?, self.values.numbers(y)?);
            index::add(&mut self.space, part, (ids, id_dims), (y, from), order, &mut g)?;
            self.grads[slot] = g;
            return Ok(());
        }
        let mut out = self.tools.pool.filled(self.space.count(dims)?, 0.0);
        let (ids, y) = (self.values.ids(ids)?, self.values.numbers(y)?);
        index::add(&mut self.space, part, (ids, id_dims), (y, from), dims, &mut out)?;
        self.set(node.outs[0], out);
        Ok(())
    }

    fn scan(&mut self, node: &Node, scan: &Scan, step: &Step) -> Result<(), EngineError> {
        let Some(code) = &step.inner else { return failed("a loop was not prepared") };
        let (carried, read) = node.args.split_at(scan.carries);
        let mut carries: Vec<Value> =
            carried.iter().map(|v| self.values.get(*v).cloned()).collect::<Result<_, _>>()?;
        // A value that ends here is handed over, so that its memory comes back as the loop goes.
        for v in carried.iter().filter(|v| step.dies.contains(v)) {
            self.values.slots[v.0 as usize] = None;
        }
        let mut stacks: Vec<Vec<Option<Value>>> = vec![];
        for v in read {
            let Value::Stack(s) = self.values.get(*v)? else {
                return failed(format!("value %{} is not a stack", v.0));
            };
            if s.len() != scan.count {
                return failed(format!(
                    "a stack of {} layers meets a loop over {}",
                    s.len(),
                    scan.count
                ));
            }
            stacks.push(s.clone());
        }
        for v in read.iter().filter(|v| step.dies.contains(v)) {
            self.values.slots[v.0 as usize] = None;
        }
        let body = &scan.body;
        let made = body.results.len() - scan.carries;
        let mut new: Vec<Vec<Option<Value>>> = vec![vec![None; scan.count]; made];
        for turn in 0..scan.count {
            let i = if scan.reverse { scan.count - 1 - turn } else { turn };
            let slices = stacks.iter_mut().map(|s| s[i].take());
            for (p, x) in body
                .params
                .iter()
                .zip(std::mem::take(&mut carries).into_iter().map(Some).chain(slices))
            {
                self.values.slots[p.0 as usize] = x;
            }
            self.layers.push((scan.group.clone(), scan.first + i));
            self.block(body, code)?;
            self.layers.pop();
            let results: Vec<Value> = body
                .results
                .iter()
                .map(|v| self.values.get(*v).cloned())
                .collect::<Result<_, _>>()?;
            for v in &code.own {
                self.values.slots[v.0 as usize] = None;
            }
            for (j, x) in results.into_iter().enumerate() {
                if j < scan.carries {
                    carries.push(x);
                } else {
                    new[j - scan.carries][i] = Some(x);
                }
            }
        }
        let outs = carries.into_iter().chain(new.into_iter().map(Value::Stack));
        for (v, x) in node.outs.iter().zip(outs) {
            self.values.slots[v.0 as usize] = Some(x);
        }
        Ok(())
    }
}
