//! Ops between ranks: each rank's result is read off the values of its group.

use nrl_ir::{DimId, Node, Op, ParamId, ReduceOp, ValueId};

use crate::logprob::Logits;
use crate::ops::combine;
use crate::tensor::each;
use crate::{Error, Interp, Tensor};

impl Interp<'_> {
    /// Runs `node` on all ranks if it is an op between ranks.
    pub(crate) fn between_ranks(&mut self, node: &Node) -> Result<bool, Error> {
        let ranks = 0..self.ranks.len();
        let mut outs: Vec<Vec<Tensor>> = vec![];
        match &node.op {
            Op::AllReduce { op, axes, .. } => {
                for r in ranks {
                    outs.push(vec![self.all_reduce(r, *op, axes, node.args[0])?]);
                }
            }
            Op::AllGather { dim, full, axes, .. } => {
                for r in ranks {
                    outs.push(vec![self.all_gather(r, node, *dim, *full, axes)?]);
                }
            }
            Op::ReduceScatter { dim, part, axes, .. } => {
                for r in ranks {
                    outs.push(vec![self.reduce_scatter(r, node, *dim, *part, axes)?]);
                }
            }
            Op::GatherParam { param, axes, .. } => {
                for r in ranks {
                    outs.push(vec![self.gather_param(r, *param, axes)?]);
                }
            }
            Op::ScatterGrad { param, axes, .. } => self.scatter_grad(*param, axes, node.args[0])?,
            Op::LogProb { vocab, valid, axes } => {
                let logits = self.every_rank(|i, r| {
                    Ok(Logits {
                        x: i.tensor(r, node.args[0])?.clone(),
                        dims: i.dims(node.args[0]).to_vec(),
                    })
                })?;
                for r in ranks {
                    outs.push(self.log_prob(r, &logits, *vocab, *valid, axes, &node.args[1..])?);
                }
            }
            Op::LogProbHead { vocab, d, valid, axes } => {
                let logits = self
                    .every_rank(|i, r| i.head_logits(r, *d, *vocab, node.args[0], node.args[1]))?;
                for r in ranks {
                    outs.push(self.log_prob(r, &logits, *vocab, *valid, axes, &node.args[2..])?);
                }
            }
            _ => return Ok(false),
        }
        for (r, ts) in outs.into_iter().enumerate() {
            for (v, t) in node.outs.iter().zip(ts) {
                self.set(r, *v, t);
            }
        }
        Ok(true)
    }

    fn every_rank<T>(&self, f: impl Fn(&Self, usize) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        (0..self.ranks.len()).map(|r| f(self, r)).collect()
    }

    fn all_reduce(
        &self,
        r: usize,
        op: ReduceOp,
        axes: &[String],
        x: ValueId,
    ) -> Result<Tensor, Error> {
        let group = self.mesh.group(r, axes);
        let mut out = self.tensor(group[0], x)?.clone();
        for member in &group[1..] {
            let other = self.tensor(*member, x)?;
            if other.shape != out.shape {
                return Err(Error(format!("all_reduce of %{} over unlike shapes", x.0)));
            }
            out.data.iter_mut().zip(&other.data).for_each(|(a, b)| *a = combine(op, *a, *b));
        }
        Ok(out)
    }

    fn all_gather(
        &self,
        r: usize,
        node: &Node,
        dim: DimId,
        full: DimId,
        axes: &[String],
    ) -> Result<Tensor, Error> {
        let group = self.mesh.group(r, axes);
        let (from, to) = (self.dims(node.args[0]), self.dims(node.outs[0]));
        let local = self.size(r, dim)?;
        let (stride, _) = self.axis_stride(r, from, dim)?;
        let others: Vec<DimId> = from.iter().map(|d| if *d == dim { full } else { *d }).collect();
        debug_assert_eq!(others, to);
        let mut out = Tensor { shape: self.shape(r, to)?, data: vec![] };
        let mut table = self.table(r, to, from)?;
        let at = to.iter().position(|d| *d == full).unwrap_or(0);
        table[at].fill(0);
        let item = self.table(r, to, &[full])?;
        let parts =
            group.iter().map(|m| self.tensor(*m, node.args[0])).collect::<Result<Vec<_>, _>>()?;
        each(&out.shape, &[&table, &item], |o| {
            out.data.push(parts[o[1] / local].data[o[0] + o[1] % local * stride]);
        });
        Ok(out)
    }

    fn reduce_scatter(
        &self,
        r: usize,
        node: &Node,
        dim: DimId,
        part: DimId,
        axes: &[String],
    ) -> Result<Tensor, Error> {
        let sum = self.all_reduce(r, ReduceOp::Sum, axes, node.args[0])?;
        let (from, to) = (self.dims(node.args[0]), self.dims(node.outs[0]));
        let (stride, n) = self.axis_stride(r, from, dim)?;
        let first = self.mesh.coord_over(r, axes) * self.size(r, part)?;
        let mut table = self.table(r, to, from)?;
        let at = to.iter().position(|d| *d == part).unwrap_or(0);
        table[at].fill(0);
        let item = self.table(r, to, &[part])?;
        let mut out = Tensor { shape: self.shape(r, to)?, data: vec![] };
        each(&out.shape, &[&table, &item], |o| {
            let i = first + o[1];
            out.data.push(if i < n { sum.data[o[0] + i * stride] } else { 0.0 });
        });
        Ok(out)
    }

    /// Stride and size of `dim` in a tensor over `dims`.
    fn axis_stride(&self, r: usize, dims: &[DimId], dim: DimId) -> Result<(usize, usize), Error> {
        let at = dims
            .iter()
            .position(|d| *d == dim)
            .ok_or_else(|| Error("no such dim to gather or scatter".into()))?;
        Ok((self.zeros(r, dims)?.strides()[at], self.size(r, dim)?))
    }

    fn gather_param(&self, r: usize, param: ParamId, axes: &[String]) -> Result<Tensor, Error> {
        let mut out = self.zeros(r, &self.graph.param(param).dims)?;
        let mut flat = vec![];
        for member in self.mesh.group(r, axes) {
            flat.extend(&self.weight(member, param)?.data);
        }
        if flat.len() < out.data.len() {
            return Err(Error(format!(
                "the flat shards of `{}` are too short",
                self.graph.param(param).name
            )));
        }
        flat.truncate(out.data.len());
        out.data = flat;
        Ok(out)
    }

    fn scatter_grad(&mut self, param: ParamId, axes: &[String], g: ValueId) -> Result<(), Error> {
        let full = self.every_rank(|i, r| i.to_param_order(r, g, param))?;
        for r in 0..self.ranks.len() {
            let group = self.mesh.group(r, axes);
            let part = full[r].data.len().div_ceil(group.len());
            let first = self.mesh.coord_over(r, axes) * part;
            let sum = |i: usize| {
                group.iter().map(|m| full[*m].data.get(i).copied().unwrap_or(0.0)).sum::<f64>()
            };
            let shard = Tensor::new([part], (first..first + part).map(sum).collect());
            self.add_grad(r, param, shard);
        }
        Ok(())
    }
}
