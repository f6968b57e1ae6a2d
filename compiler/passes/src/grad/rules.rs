//! The gradient of each op: cotangents of its operands from those of its results.

use nrl_ir::{BinaryOp, DimId, Node, Op, ReduceOp, UnaryOp, ValueId};

use super::Ctx;
use crate::emit::Emit;
use crate::report::Problem;

/// Pairs of operand and cotangent.
type Pairs = Vec<(ValueId, ValueId)>;

impl Ctx<'_> {
    /// The row of `node`'s op. `cots` has one entry per result, at least one of them given.
    pub(super) fn rule(
        &mut self,
        node: &Node,
        cots: &[Option<ValueId>],
        e: &mut Emit,
    ) -> Result<Pairs, Problem> {
        let a = &node.args;
        let first = cots[0];
        Ok(match &node.op {
            Op::Use { param } => {
                if let (Some(g), true) = (first, self.g.param(*param).trained) {
                    e.all(&mut self.g, Op::Accumulate { param: *param }, &[g])?;
                }
                vec![]
            }
            Op::Input { .. }
            | Op::Const { .. }
            | Op::StopGrad
            | Op::TopK { .. }
            | Op::Position { .. } => vec![],
            Op::Fit { from, to, at } => {
                let op = Op::Fit { from: *to, to: *from, at: *at };
                vec![(a[0], e.one(&mut self.g, op, &[given(first, node)?])?)]
            }
            Op::Next { .. } | Op::Recur { .. } => {
                return Err(not_differentiable(
                    &format!("`{}` along tokens has no gradient", node.op.name()),
                    node,
                ));
            }
            Op::Unary { op } => self.unary(*op, node, given(first, node)?, e)?,
            Op::Binary { op } => self.binary(*op, node, given(first, node)?, e)?,
            Op::Select => {
                let g = given(first, node)?;
                let (taken, other) = self.sides(a[0], g, e)?;
                vec![(a[1], taken), (a[2], other)]
            }
            Op::Cast { .. } | Op::Broadcast { .. } => vec![(a[0], given(first, node)?)],
            Op::Reduce { op: ReduceOp::Sum, .. } => {
                let g = given(first, node)?;
                vec![(a[0], self.spread(g, a[0], e)?)]
            }
            Op::Reduce { op: ReduceOp::Max, over } => {
                self.max_over(node, over, given(first, node)?, e)?
            }
            Op::Contract { .. } => {
                let g = given(first, node)?;
                let mut pairs = vec![];
                for (x, other) in [(a[0], a[1]), (a[1], a[0])] {
                    if self.needs.contains(&x) {
                        pairs.push((x, self.contract(g, other, x, e)?));
                    }
                }
                pairs
            }
            Op::Index { dim } => {
                let op = Op::ScatterAdd { dim: *dim, dims: self.g.dims_of(a[0]).to_vec() };
                vec![(a[0], e.one(&mut self.g, op, &[a[1], given(first, node)?])?)]
            }
            Op::ScatterAdd { dim, .. } => {
                let g =
                    e.one(&mut self.g, Op::Index { dim: *dim }, &[given(first, node)?, a[0]])?;
                vec![(a[1], g)]
            }
            Op::Rope { tok, hd, inv_freq, scale, inverse } => {
                let op = Op::Rope {
                    tok: *tok,
                    hd: *hd,
                    inv_freq: inv_freq.clone(),
                    scale: *scale,
                    inverse: !inverse,
                };
                vec![(a[0], e.one(&mut self.g, op, &[given(first, node)?])?)]
            }
            Op::Attention { attn } => {
                if cots[1].is_some() {
                    return Err(not_differentiable(
                        "the normaliser of attention has no gradient",
                        node,
                    ));
                }
                let g = given(first, node)?;
                let args = [a[0], a[1], a[2], node.outs[0], node.outs[1], g];
                let grads = e.all(&mut self.g, Op::AttentionGrad { attn: attn.clone() }, &args)?;
                let mut pairs: Pairs = a.iter().copied().zip(grads).collect();
                if let Some(sink) = a.get(3).filter(|s| self.needs.contains(s)) {
                    pairs.push((*sink, self.sink(node, *sink, g, attn.vd, e)?));
                }
                pairs
            }
            Op::Conv { conv } => {
                let op = Op::ConvGrad { conv: conv.clone() };
                let grads = e.all(&mut self.g, op, &[a[0], a[1], given(first, node)?])?;
                a.iter().copied().zip(grads).collect()
            }
            Op::Ssm { ssm } => {
                let op = Op::SsmGrad { ssm: ssm.clone() };
                let args = [a[0], a[1], a[2], a[3], given(first, node)?];
                let grads = e.all(&mut self.g, op, &args)?;
                a.iter().copied().zip(grads).collect()
            }
            Op::LogProb { vocab, valid, axes } => {
                let (d_lp, d_entropy) = self.log_prob_cotangents(node, cots, e)?;
                let op = Op::LogProbGrad { vocab: *vocab, valid: *valid, axes: axes.clone() };
                let args = [a[0], a[1], a[2], node.outs[1], node.outs[2], d_lp, d_entropy];
                self.no_temperature_gradient(a[2], node)?;
                vec![(a[0], e.one(&mut self.g, op, &args)?)]
            }
            Op::LogProbHead { vocab, d, valid, axes } => {
                let (d_lp, d_entropy) = self.log_prob_cotangents(node, cots, e)?;
                let op =
                    Op::LogProbHeadGrad { vocab: *vocab, d: *d, valid: *valid, axes: axes.clone() };
                let args = [a[0], a[1], a[2], a[3], node.outs[1], node.outs[2], d_lp, d_entropy];
                self.no_temperature_gradient(a[3], node)?;
                let grads = e.all(&mut self.g, op, &args)?;
                vec![(a[0], grads[0]), (a[1], grads[1])]
            }
            Op::AttentionGrad { .. }
            | Op::ConvGrad { .. }
            | Op::SsmGrad { .. }
            | Op::LogProbGrad { .. }
            | Op::LogProbHeadGrad { .. } => {
                return Err(not_differentiable(
                    &format!("`{}` has no second derivative", node.op.name()),
                    node,
                ));
            }
            Op::AttentionCached { .. } => {
                return Err(not_differentiable("attention over a cache has no gradient", node));
            }
            Op::Scan { .. }
            | Op::Accumulate { .. }
            | Op::AllReduce { .. }
            | Op::AllGather { .. }
            | Op::ReduceScatter { .. }
            | Op::AllToAll { .. }
            | Op::GatherParam { .. }
            | Op::ScatterGrad { .. }
            | Op::Fused { .. } => {
                return Err(Problem::internal(
                    format!("gradient of `{}` asked too late", node.op.name()),
                    node.origin,
                ));
            }
        })
    }

    fn unary(
        &mut self,
        op: UnaryOp,
        node: &Node,
        g: ValueId,
        e: &mut Emit,
    ) -> Result<Pairs, Problem> {
        let (x, y) = (node.args[0], node.outs[0]);
        let grad = match op {
            UnaryOp::Neg => self.neg(g, e)?,
            UnaryOp::Exp => self.times(g, y, e)?,
            UnaryOp::Log => self.over(g, x, e)?,
            UnaryOp::Sqrt => {
                let half = e.constant(&mut self.g, 0.5)?;
                let scaled = self.over(g, y, e)?;
                self.times(scaled, half, e)?
            }
            UnaryOp::Rsqrt => {
                let square = e.binary(&mut self.g, BinaryOp::Mul, y, y)?;
                let cube = e.binary(&mut self.g, BinaryOp::Mul, square, y)?;
                let factor = e.constant(&mut self.g, -0.5)?;
                let slope = e.binary(&mut self.g, BinaryOp::Mul, cube, factor)?;
                self.times(g, slope, e)?
            }
            UnaryOp::Tanh => {
                let square = e.binary(&mut self.g, BinaryOp::Mul, y, y)?;
                let one = e.constant(&mut self.g, 1.0)?;
                let slope = e.binary(&mut self.g, BinaryOp::Sub, one, square)?;
                self.times(g, slope, e)?
            }
            UnaryOp::Sigmoid => {
                let one = e.constant(&mut self.g, 1.0)?;
                let rest = e.binary(&mut self.g, BinaryOp::Sub, one, y)?;
                let slope = e.binary(&mut self.g, BinaryOp::Mul, y, rest)?;
                self.times(g, slope, e)?
            }
            UnaryOp::Abs => {
                let sign = e.unary(&mut self.g, UnaryOp::Sign, x)?;
                self.times(g, sign, e)?
            }
            UnaryOp::Sign | UnaryOp::Not | UnaryOp::IsFinite => return Ok(vec![]),
        };
        Ok(vec![(x, grad)])
    }

    /// Of a sink, per row: it takes `exp(sink - lse)` of what the other weights share, and has no value.
    fn sink(
        &mut self,
        node: &Node,
        sink: ValueId,
        g: ValueId,
        vd: DimId,
        e: &mut Emit,
    ) -> Result<ValueId, Problem> {
        let (o, lse) = (node.outs[0], node.outs[1]);
        let less = e.binary(&mut self.g, BinaryOp::Sub, sink, lse)?;
        let share = e.unary(&mut self.g, UnaryOp::Exp, less)?;
        let along = e.binary(&mut self.g, BinaryOp::Mul, g, o)?;
        let sum = Op::Reduce { op: ReduceOp::Sum, over: vec![vd] };
        let along = e.one(&mut self.g, sum, &[along])?;
        let taken = e.binary(&mut self.g, BinaryOp::Mul, share, along)?;
        self.neg(taken, e)
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        node: &Node,
        g: ValueId,
        e: &mut Emit,
    ) -> Result<Pairs, Problem> {
        let (a, b, y) = (node.args[0], node.args[1], node.outs[0]);
        Ok(match op {
            BinaryOp::Add => vec![(a, g), (b, g)],
            BinaryOp::Sub => vec![(a, g), (b, self.neg(g, e)?)],
            BinaryOp::Mul => {
                let mut pairs = vec![];
                for (x, other) in [(a, b), (b, a)] {
                    if self.needs.contains(&x) {
                        pairs.push((x, self.times(g, other, e)?));
                    }
                }
                pairs
            }
            BinaryOp::Div => {
                let by_a = self.over(g, b, e)?;
                let mut pairs = vec![(a, by_a)];
                if self.needs.contains(&b) {
                    let by_b = self.times(by_a, y, e)?;
                    pairs.push((b, self.neg(by_b, e)?));
                }
                pairs
            }
            BinaryOp::Min | BinaryOp::Max => {
                let (small, large) = if op == BinaryOp::Min { (a, b) } else { (b, a) };
                let left = e.binary(&mut self.g, BinaryOp::Le, small, large)?;
                let (to_a, to_b) = self.sides(left, g, e)?;
                vec![(a, to_a), (b, to_b)]
            }
            BinaryOp::Pow => self.pow(a, b, y, g, e)?,
            BinaryOp::Lt | BinaryOp::Le | BinaryOp::Eq | BinaryOp::And | BinaryOp::Or => vec![],
        })
    }

    /// `y = a ^ b`: `b * a^(b-1)` and `y * log(a)`, the latter 0 where `a` is 0.
    fn pow(
        &mut self,
        a: ValueId,
        b: ValueId,
        y: ValueId,
        g: ValueId,
        e: &mut Emit,
    ) -> Result<Pairs, Problem> {
        let mut pairs = vec![];
        if self.needs.contains(&a) {
            let one = e.constant(&mut self.g, 1.0)?;
            let less = e.binary(&mut self.g, BinaryOp::Sub, b, one)?;
            let power = e.binary(&mut self.g, BinaryOp::Pow, a, less)?;
            let slope = e.binary(&mut self.g, BinaryOp::Mul, b, power)?;
            pairs.push((a, self.times(g, slope, e)?));
        }
        if self.needs.contains(&b) {
            let log = e.unary(&mut self.g, UnaryOp::Log, a)?;
            let slope = e.binary(&mut self.g, BinaryOp::Mul, y, log)?;
            let zero = e.constant(&mut self.g, 0.0)?;
            let slope = e.select(&mut self.g, a, slope, zero)?;
            pairs.push((b, self.times(g, slope, e)?));
        }
        Ok(pairs)
    }

    /// Equal shares among the elements that are the maximum.
    fn max_over(
        &mut self,
        node: &Node,
        over: &[DimId],
        g: ValueId,
        e: &mut Emit,
    ) -> Result<Pairs, Problem> {
        let (x, y) = (node.args[0], node.outs[0]);
        let dims = self.g.dims_of(x).to_vec();
        let top = e.arrange(&mut self.g, y, &dims)?;
        let hit = e.binary(&mut self.g, BinaryOp::Eq, x, top)?;
        let ties =
            e.one(&mut self.g, Op::Reduce { op: ReduceOp::Sum, over: over.to_vec() }, &[hit])?;
        let share = e.binary(&mut self.g, BinaryOp::Div, g, ties)?;
        let share = self.spread(share, x, e)?;
        let (taken, _) = self.sides(hit, share, e)?;
        Ok(vec![(x, taken)])
    }

    /// The cotangent of `x` in `contract(x, other)`, in the order of `x` if one of the two argument
    /// orders gives it.
    fn contract(
        &mut self,
        g: ValueId,
        other: ValueId,
        x: ValueId,
        e: &mut Emit,
    ) -> Result<ValueId, Problem> {
        let want = self.g.dims_of(x).to_vec();
        let have = self.g.dims_of(g).to_vec();
        let over: Vec<DimId> = self
            .g
            .dims_of(other)
            .iter()
            .filter(|d| have.contains(d) && !want.contains(d))
            .copied()
            .collect();
        let dims = |a: ValueId, b: ValueId| {
            let mut dims: Vec<DimId> =
                self.g.dims_of(a).iter().filter(|d| !over.contains(d)).copied().collect();
            let more: Vec<DimId> = self
                .g
                .dims_of(b)
                .iter()
                .filter(|d| !over.contains(d) && !dims.contains(d))
                .copied()
                .collect();
            dims.extend(more);
            dims
        };
        let swap = dims(g, other) != want && dims(other, g) == want;
        let args = if swap { [other, g] } else { [g, other] };
        e.one(&mut self.g, Op::Contract { over }, &args)
    }

    /// `g` repeated over the dims of `x`.
    fn spread(&mut self, g: ValueId, x: ValueId, e: &mut Emit) -> Result<ValueId, Problem> {
        let dims = self.g.dims_of(x).to_vec();
        let out = e.arrange(&mut self.g, g, &dims)?;
        self.mark(out, self.masked.contains(&g));
        Ok(out)
    }

    fn log_prob_cotangents(
        &mut self,
        node: &Node,
        cots: &[Option<ValueId>],
        e: &mut Emit,
    ) -> Result<(ValueId, ValueId), Problem> {
        if cots[1].is_some() {
            return Err(not_differentiable("the log-sum-exp of the logits has no gradient", node));
        }
        let rows = self.g.dims_of(node.outs[0]).to_vec();
        let mut of = |c: Option<ValueId>| c.map_or_else(|| e.splat(&mut self.g, 0.0, &rows), Ok);
        Ok((of(cots[0])?, of(cots[2])?))
    }

    fn no_temperature_gradient(
        &self,
        inv_temperature: ValueId,
        node: &Node,
    ) -> Result<(), Problem> {
        match self.needs.contains(&inv_temperature) {
            true => Err(not_differentiable("a temperature has no gradient", node)),
            false => Ok(()),
        }
    }

    fn neg(&mut self, g: ValueId, e: &mut Emit) -> Result<ValueId, Problem> {
        let out = e.unary(&mut self.g, UnaryOp::Neg, g)?;
        self.mark(out, self.masked.contains(&g));
        Ok(out)
    }

    fn times(&mut self, g: ValueId, factor: ValueId, e: &mut Emit) -> Result<ValueId, Problem> {
        let out = e.binary(&mut self.g, BinaryOp::Mul, g, factor)?;
        self.guard(g, out, e)
    }

    fn over(&mut self, g: ValueId, divisor: ValueId, e: &mut Emit) -> Result<ValueId, Problem> {
        let out = e.binary(&mut self.g, BinaryOp::Div, g, divisor)?;
        self.guard(g, out, e)
    }

    /// `product`, but exactly 0 where `g` is a zero from a side not taken.
    fn guard(&mut self, g: ValueId, product: ValueId, e: &mut Emit) -> Result<ValueId, Problem> {
        if !self.masked.contains(&g) {
            return Ok(product);
        }
        let zero = e.constant(&mut self.g, 0.0)?;
        let out = e.select(&mut self.g, g, product, zero)?;
        self.mark(out, true);
        Ok(out)
    }

    /// `g` where `cond`, else 0; and the other way round.
    fn sides(
        &mut self,
        cond: ValueId,
        g: ValueId,
        e: &mut Emit,
    ) -> Result<(ValueId, ValueId), Problem> {
        let zero = e.constant(&mut self.g, 0.0)?;
        let taken = e.select(&mut self.g, cond, g, zero)?;
        let other = e.select(&mut self.g, cond, zero, g)?;
        self.mark(taken, true);
        self.mark(other, true);
        Ok((taken, other))
    }
}

fn given(cot: Option<ValueId>, node: &Node) -> Result<ValueId, Problem> {
    cot.ok_or_else(|| Problem::internal("a result without a cotangent", node.origin))
}

fn not_differentiable(text: &str, node: &Node) -> Problem {
    Problem::new("not-differentiable", text, node.origin)
        .help("use `stop(..)` if the loss should not learn through it")
}
