//! Ops that one rank computes alone.

use nrl_ir::op::Groups;
use nrl_ir::{BinaryOp, DType, DimId, Node, Op, ParamId, ReduceOp, ValueId};

use crate::tensor::each;
use crate::{Error, Interp, Tensor};

impl Interp<'_> {
    /// The results of `node` on rank `r`.
    pub(crate) fn local(&mut self, r: usize, node: &Node) -> Result<Vec<Tensor>, Error> {
        let args = &node.args;
        Ok(match &node.op {
            Op::Input { index } => vec![self.bound_input(r, *index)?],
            Op::Use { param } => vec![self.weight(r, *param)?.clone()],
            Op::Const { value } => vec![Tensor::scalar(*value)],
            Op::Unary { op } => vec![self.pointwise(r, node, |x| op.eval(x[0]))?],
            Op::Binary { op } => vec![self.pointwise(r, node, |x| op.eval(x[0], x[1]))?],
            Op::Select => {
                vec![self.pointwise(r, node, |x| if x[0] != 0.0 { x[1] } else { x[2] })?]
            }
            Op::StopGrad => vec![self.tensor(r, args[0])?.clone()],
            Op::Cast { to } => {
                let round = |x: &[f64]| if *to == DType::Bf16 { round_bf16(x[0]) } else { x[0] };
                vec![self.pointwise(r, node, round)?]
            }
            Op::Broadcast { dims } => {
                vec![self.broadcast(r, self.tensor(r, args[0])?, self.dims(args[0]), dims)?]
            }
            Op::Reduce { op, .. } => vec![self.reduce(r, *op, args[0], node.outs[0])?],
            Op::Contract { over } => {
                vec![self.contract(r, args[0], args[1], over, self.dims(node.outs[0]))?]
            }
            Op::Index { dim } => vec![self.index(r, *dim, args[0], args[1], node.outs[0])?],
            Op::ScatterAdd { dim, dims } => {
                vec![self.scatter_add(r, *dim, dims, args[0], args[1])?]
            }
            Op::TopK { dim, k, groups } => vec![self.top_k(r, *dim, *k, *groups, args[0])?],
            Op::Fit { from, to, at } => vec![self.fit(r, (*from, *to, *at), args[0])?],
            Op::Position { tok, .. } => {
                let at: Vec<f64> = self.positions(r, *tok)?.iter().map(|p| *p as f64).collect();
                vec![Tensor::new(vec![at.len()], at)]
            }
            Op::Next { dim, fill } => {
                let (x, ends) = (self.tensor(r, args[0])?, self.ends(r, *dim)?);
                let next = |i: usize| if ends[i] { *fill } else { x.data[i + 1] };
                vec![Tensor::new(x.shape.clone(), (0..ends.len()).map(next).collect())]
            }
            Op::Recur { dim, back } => vec![self.recur(r, *dim, *back, args)?],
            Op::Rope { tok, hd, inv_freq, scale, inverse } => {
                let turn = crate::attention::Turn {
                    tok: *tok,
                    hd: *hd,
                    inv_freq: inv_freq.at(self.current_layer()),
                    scale: *scale,
                    inverse: *inverse,
                };
                vec![self.rope(r, &turn, args[0])?]
            }
            Op::Attention { attn } => self.attention(r, attn, args)?,
            Op::AttentionGrad { attn } => self.attention_grad(r, attn, args)?,
            Op::AttentionCached { attn } => vec![self.attention_cached(r, attn, args)?],
            Op::Conv { conv } => vec![self.conv(r, conv, args)?],
            Op::ConvGrad { conv } => self.conv_grad(r, conv, args)?,
            Op::Ssm { ssm } => vec![self.ssm(r, ssm, args)?],
            Op::SsmGrad { ssm } => self.ssm_grad(r, ssm, args)?,
            Op::LogProbGrad { vocab, valid, .. } => {
                vec![self.log_prob_grad(r, *vocab, *valid, args)?]
            }
            Op::LogProbHeadGrad { vocab, d, valid, .. } => {
                self.log_prob_head_grad(r, *vocab, *d, *valid, args)?
            }
            Op::Accumulate { param } => {
                let g = self.to_param_order(r, args[0], *param)?;
                self.add_grad(r, *param, g);
                vec![]
            }
            Op::Fused { kernel } => self.fused(r, kernel, args)?,
            Op::LogProb { .. }
            | Op::LogProbHead { .. }
            | Op::Scan { .. }
            | Op::AllReduce { .. }
            | Op::AllGather { .. }
            | Op::ReduceScatter { .. }
            | Op::AllToAll { .. }
            | Op::GatherParam { .. }
            | Op::ScatterGrad { .. } => {
                return Err(Error(format!("`{}` runs on all ranks at once", node.op.name())));
            }
        })
    }

    /// Is each item of a ragged dim the last of its segment?
    fn ends(&self, r: usize, dim: DimId) -> Result<Vec<bool>, Error> {
        let owner = self.graph.dims.owner(dim).unwrap_or(dim);
        let of = self.segments(r, dim, owner)?;
        let last = |i: usize| owner != dim && of.get(i + 1) != of.get(i);
        Ok((0..of.len()).map(|i| i + 1 == of.len() || last(i)).collect())
    }

    fn recur(&self, r: usize, dim: DimId, back: bool, args: &[ValueId]) -> Result<Tensor, Error> {
        let (u, c) = (self.tensor(r, args[0])?, self.tensor(r, args[1])?);
        let ends = self.ends(r, dim)?;
        let mut out = Tensor::filled(u.shape.clone(), 0.0);
        let mut before = 0.0;
        for step in 0..ends.len() {
            let i = if back { ends.len() - 1 - step } else { step };
            let starts = if back { ends[i] } else { i == 0 || ends[i - 1] };
            before = u.data[i] + if starts { 0.0 } else { c.data[i] * before };
            out.data[i] = before;
        }
        Ok(out)
    }

    /// Items of one dim cut out of a longer one, or put among zeros.
    fn fit(
        &self,
        r: usize,
        (from, to, at): (DimId, DimId, usize),
        x: ValueId,
    ) -> Result<Tensor, Error> {
        let dims = self.dims(x);
        let x = self.tensor(r, x)?;
        let i = dims.iter().position(|d| *d == from).unwrap_or(0);
        let (n, m, step) = (x.shape[i], self.size(r, to)?, x.strides()[i]);
        let mut shape = x.shape.clone();
        shape[i] = m;
        let mut out = Tensor::filled(shape, 0.0);
        let (source, target) = if m <= n { (at, 0) } else { (0, at) };
        let run = n.min(m) * step;
        for row in 0..x.data.len() / (n * step).max(1) {
            let (s, t) = (row * n * step + source * step, row * m * step + target * step);
            out.data[t..t + run].copy_from_slice(&x.data[s..s + run]);
        }
        Ok(out)
    }

    fn top_k(
        &self,
        r: usize,
        dim: DimId,
        k: usize,
        groups: Option<Groups>,
        x: ValueId,
    ) -> Result<Tensor, Error> {
        let dims = self.dims(x);
        let x = self.tensor(r, x)?;
        let at = dims.iter().position(|d| *d == dim).unwrap_or(0);
        let (n, step) = (x.shape[at], x.strides()[at]);
        let mut out = Tensor::filled(x.shape.clone(), 0.0);
        for first in (0..x.data.len()).filter(|i| (i / step).is_multiple_of(n)) {
            let row: Vec<f64> = (0..n).map(|i| x.data[first + i * step]).collect();
            let out_of = groups.map_or(vec![false; n], |x| x.left_out(&row));
            let mut order: Vec<usize> = (0..n).filter(|i| !out_of[*i]).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            order.iter().take(k).for_each(|i| out.data[first + i * step] = 1.0);
        }
        Ok(out)
    }

    fn bound_input(&self, r: usize, index: usize) -> Result<Tensor, Error> {
        let input = &self.graph.inputs[index];
        let bound = self.ranks[r].bind.inputs.get(index);
        let t = bound.ok_or_else(|| Error(format!("input `{}` is not bound", input.name)))?;
        let want = self.shape(r, &input.ty.dims)?;
        if t.shape != want {
            return Err(Error(format!(
                "input `{}` has shape {:?}, not {want:?}",
                input.name, t.shape
            )));
        }
        Ok(t.clone())
    }

    fn pointwise(&self, r: usize, node: &Node, f: impl Fn(&[f64]) -> f64) -> Result<Tensor, Error> {
        let dims = self.dims(node.outs[0]);
        let mut out = Tensor { shape: self.shape(r, dims)?, data: vec![] };
        let mut operands = vec![];
        let mut tables = vec![];
        for a in &node.args {
            operands.push(self.tensor(r, *a)?);
            tables.push(self.table(r, dims, self.dims(*a))?);
        }
        let mut x = vec![0.0; operands.len()];
        each(&out.shape, &tables.iter().collect::<Vec<_>>(), |o| {
            for i in 0..x.len() {
                x[i] = operands[i].data[o[i]];
            }
            out.data.push(f(&x));
        });
        Ok(out)
    }

    fn reduce(&self, r: usize, op: ReduceOp, x: ValueId, to: ValueId) -> Result<Tensor, Error> {
        let (from, to) = (self.dims(x), self.dims(to));
        let x = self.tensor(r, x)?;
        let start = match op {
            ReduceOp::Sum => 0.0,
            ReduceOp::Max => f64::NEG_INFINITY,
        };
        let mut out = Tensor::filled(self.shape(r, to)?, start);
        each(&x.shape, &[&self.table(r, from, from)?, &self.table(r, from, to)?], |o| {
            out.data[o[1]] = combine(op, out.data[o[1]], x.data[o[0]]);
        });
        Ok(out)
    }

    pub(crate) fn contract(
        &self,
        r: usize,
        a: ValueId,
        b: ValueId,
        over: &[DimId],
        to: &[DimId],
    ) -> Result<Tensor, Error> {
        let loops: Vec<DimId> = to.iter().chain(over).copied().collect();
        let (x, y) = (self.tensor(r, a)?, self.tensor(r, b)?);
        let mut out = self.zeros(r, to)?;
        let tables = [
            self.table(r, &loops, to)?,
            self.table(r, &loops, self.dims(a))?,
            self.table(r, &loops, self.dims(b))?,
        ];
        each(&self.shape(r, &loops)?, &[&tables[0], &tables[1], &tables[2]], |o| {
            out.data[o[0]] += x.data[o[1]] * y.data[o[2]];
        });
        Ok(out)
    }

    fn index(
        &self,
        r: usize,
        dim: DimId,
        x: ValueId,
        ids: ValueId,
        out: ValueId,
    ) -> Result<Tensor, Error> {
        let to = self.dims(out);
        let (first, _) = self.part(r, dim)?;
        let (stride, at) = self.stride(r, self.dims(x), dim)?;
        let local = self.size(r, dim)?;
        let tables =
            [self.table(r, to, self.dims(ids))?, self.table_without(r, to, self.dims(x), at)?];
        let (x, ids) = (self.tensor(r, x)?, self.tensor(r, ids)?);
        let mut out = Tensor { shape: self.shape(r, to)?, data: vec![] };
        each(&out.shape, &[&tables[0], &tables[1]], |o| {
            let id = (ids.data[o[0]] as usize).wrapping_sub(first);
            out.data.push(if id < local { x.data[o[1] + id * stride] } else { 0.0 });
        });
        Ok(out)
    }

    fn scatter_add(
        &self,
        r: usize,
        dim: DimId,
        dims: &[DimId],
        ids: ValueId,
        y: ValueId,
    ) -> Result<Tensor, Error> {
        let from = self.dims(y);
        let (first, _) = self.part(r, dim)?;
        let (stride, at) = self.stride(r, dims, dim)?;
        let local = self.size(r, dim)?;
        let tables = [
            self.table(r, from, self.dims(ids))?,
            self.table_without(r, from, dims, at)?,
            self.table(r, from, from)?,
        ];
        let (ids, y) = (self.tensor(r, ids)?, self.tensor(r, y)?);
        let mut out = self.zeros(r, dims)?;
        each(&y.shape, &[&tables[0], &tables[1], &tables[2]], |o| {
            let id = (ids.data[o[0]] as usize).wrapping_sub(first);
            if id < local {
                out.data[o[1] + id * stride] += y.data[o[2]];
            }
        });
        Ok(out)
    }

    /// Stride and position of `dim` in a tensor over `dims`.
    fn stride(&self, r: usize, dims: &[DimId], dim: DimId) -> Result<(usize, usize), Error> {
        let at = dims.iter().position(|d| *d == dim);
        let at =
            at.ok_or_else(|| Error(format!("no dim `{}` to index", self.graph.dims.name(dim))))?;
        Ok((self.zeros(r, dims)?.strides()[at], at))
    }

    /// [`Interp::table`] with the dim at position `skip` left at 0.
    fn table_without(
        &self,
        r: usize,
        loops: &[DimId],
        dims: &[DimId],
        skip: usize,
    ) -> Result<crate::tensor::Table, Error> {
        let full = self.table(r, loops, dims)?;
        let Some(at) = loops.iter().position(|l| *l == dims[skip]) else {
            // The dim may still have been found as an owner of a loop dim: take that part out.
            let mut one = full;
            let (stride, _) = self.stride(r, dims, dims[skip])?;
            if let Some(at) =
                loops.iter().position(|l| self.graph.dims.owners(*l).any(|o| o == dims[skip]))
            {
                for (o, s) in one[at].iter_mut().zip(self.segments(r, loops[at], dims[skip])?) {
                    *o -= s * stride;
                }
            }
            return Ok(one);
        };
        let mut one = full;
        one[at].fill(0);
        Ok(one)
    }

    /// A gradient in the storage order of its parameter.
    pub(crate) fn to_param_order(
        &self,
        r: usize,
        g: ValueId,
        param: ParamId,
    ) -> Result<Tensor, Error> {
        self.broadcast(r, self.tensor(r, g)?, self.dims(g), &self.graph.param(param).dims)
    }

    pub(crate) fn add_grad(&mut self, r: usize, param: ParamId, g: Tensor) {
        let layer = self.layer(param);
        match self.ranks[r].grads.get_mut(&(param, layer)) {
            Some(sum) => sum.data.iter_mut().zip(&g.data).for_each(|(s, x)| *s += x),
            None => {
                self.ranks[r].grads.insert((param, layer), g);
            }
        }
    }
}

/// One step of a reduction.
pub(crate) fn combine(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Max => BinaryOp::Max.eval(a, b),
    }
}

/// Nearest bf16, ties to even.
pub(crate) fn round_bf16(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    if x.is_nan() {
        return x;
    }
    let odd = bits >> 16 & 1;
    f64::from(f32::from_bits(bits.wrapping_add(0x7fff + odd) & 0xffff_0000))
}
