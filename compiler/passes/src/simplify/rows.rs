//! The rewrite rows. Each looks at one old node and its new operands, and gives new results.

use nrl_ir::{BinaryOp, DimId, Node, Op, UnaryOp, ValueId, infer};

use super::{Ctx, Stage};
use crate::emit::Emit;
use crate::rename::renamed;
use crate::report::Problem;

/// Name of the row that fired, and the new results.
type Fired = Option<(&'static str, Vec<ValueId>)>;

impl Ctx<'_> {
    pub(super) fn rewrite(
        &mut self,
        node: &Node,
        args: &[ValueId],
        e: &mut Emit,
    ) -> Result<Fired, Problem> {
        if let Some(folded) = self.constants(node, args, e)? {
            return Ok(Some(("constant folding", vec![folded])));
        }
        if let Some((row, same)) = self.neutral(node, args) {
            return Ok(Some((row, vec![same])));
        }
        if let Some(out) = self.repeated_operand(node, args, e)? {
            return Ok(Some(("implicit broadcast", vec![out])));
        }
        match &node.op {
            Op::Index { dim } => self.index(node, *dim, args, e),
            Op::LogProb { vocab, valid, axes } => {
                self.absorb_head(node, *vocab, *valid, axes, args, e)
            }
            _ => Ok(None),
        }
    }

    /// Pointwise ops on numbers known here.
    fn constants(
        &mut self,
        node: &Node,
        args: &[ValueId],
        e: &mut Emit,
    ) -> Result<Option<ValueId>, Problem> {
        let known: Option<Vec<f64>> = args.iter().map(|a| self.splats.get(a).copied()).collect();
        let (Some(x), false) = (known, args.is_empty()) else { return Ok(None) };
        let value = match &node.op {
            Op::Unary { op } => op.eval(x[0]),
            Op::Binary { op } => op.eval(x[0], x[1]),
            Op::Select => {
                if x[0] != 0.0 {
                    x[1]
                } else {
                    x[2]
                }
            }
            _ => return Ok(None),
        };
        let c = e.constant(self.g, value)?;
        self.splats.insert(c, value);
        let dims = self.g.dims_of(node.outs[0]).to_vec();
        let out = e.arrange(self.g, c, &dims)?;
        self.splats.insert(out, value);
        if out != c {
            self.repeats.insert(out, c);
        }
        Ok(Some(out))
    }

    /// Ops that give one of their operands back.
    fn neutral(&self, node: &Node, args: &[ValueId]) -> Option<(&'static str, ValueId)> {
        let is = |i: usize, x: f64| self.splats.get(&args[i]) == Some(&x);
        let full = |i: usize| self.g.ty(args[i]) == self.g.ty(node.outs[0]);
        let (row, i) = match &node.op {
            Op::Binary { op: BinaryOp::Mul } if is(1, 1.0) => ("x * 1", 0),
            Op::Binary { op: BinaryOp::Mul } if is(0, 1.0) => ("x * 1", 1),
            Op::Binary { op: BinaryOp::Div } if is(1, 1.0) => ("x / 1", 0),
            Op::Binary { op: BinaryOp::Add | BinaryOp::Sub } if is(1, 0.0) => ("x + 0", 0),
            Op::Binary { op: BinaryOp::Add } if is(0, 0.0) => ("x + 0", 1),
            Op::Select => match self.splats.get(&args[0]) {
                Some(c) => ("known condition", if *c != 0.0 { 1 } else { 2 }),
                None => return None,
            },
            Op::Broadcast { .. } => ("same dims", 0),
            Op::Reduce { over, .. } if over.is_empty() => ("same dims", 0),
            Op::StopGrad if self.stage == Stage::Final => ("stop_grad", 0),
            Op::Unary { op: UnaryOp::Neg } => return self.double_negation(node),
            _ => return None,
        };
        full(i).then_some((row, args[i]))
    }

    fn double_negation(&self, node: &Node) -> Option<(&'static str, ValueId)> {
        let inner = self.defs.get(&node.args[0])?;
        matches!(inner.op, Op::Unary { op: UnaryOp::Neg })
            .then(|| ("neg neg", renamed(&self.map, inner.args[0])))
    }

    /// A pointwise op repeats its operands by itself, if another one has all the dims.
    fn repeated_operand(
        &mut self,
        node: &Node,
        args: &[ValueId],
        e: &mut Emit,
    ) -> Result<Option<ValueId>, Problem> {
        if !matches!(
            node.op,
            Op::Unary { .. } | Op::Binary { .. } | Op::Select | Op::Broadcast { .. }
        ) {
            return Ok(None);
        }
        let mut plain = args.to_vec();
        for i in 0..args.len() {
            let Some(source) = self.repeats.get(&args[i]).copied() else { continue };
            let with_repeat = std::mem::replace(&mut plain[i], source);
            let fits = infer::infer(self.g, &node.op, &plain);
            if fits.is_err() || fits.is_ok_and(|t| t[0] != *self.g.ty(node.outs[0])) {
                plain[i] = with_repeat;
            }
        }
        if plain == args {
            return Ok(None);
        }
        let out = e.one(self.g, node.op.clone(), &plain)?;
        self.note(&node.op, &plain, &[out]);
        Ok(Some(out))
    }

    /// `index(f(x), ids)` to `f(index(x, ids))`, where nobody reads the rest of `f(x)`.
    fn index(
        &mut self,
        node: &Node,
        dim: DimId,
        args: &[ValueId],
        e: &mut Emit,
    ) -> Result<Fired, Problem> {
        let Some(inner) = self.defs.get(&node.args[0]).copied() else { return Ok(None) };
        let uses = self.uses.get(&node.args[0]).copied().unwrap_or_default();
        if uses.all != uses.indexed || inner.outs.len() != 1 || !self.g.dims.is_ragged(dim) {
            return Ok(None);
        }
        let ids = args[1];
        let operands: Vec<ValueId> = inner.args.iter().map(|v| renamed(&self.map, *v)).collect();
        let row = match &inner.op {
            op if op.is_pointwise() => "index of pointwise",
            Op::Reduce { over, .. } if self.over_other_static(over, dim) => "index of reduction",
            Op::Fit { .. } => "index of part",
            Op::Contract { over } if self.over_other_static(over, dim) => "index of product",
            _ => return Ok(None),
        };
        let having: Vec<bool> =
            operands.iter().map(|x| self.g.dims_of(*x).contains(&dim)).collect();
        let product = matches!(inner.op, Op::Contract { .. });
        if product && having.iter().filter(|h| **h).count() != 1 {
            return Ok(None);
        }
        if !operands.iter().zip(&having).all(|(x, has)| *has || self.reads_alike(*x, dim, ids)) {
            return Ok(None);
        }
        let mut selected = vec![];
        for (x, has) in operands.iter().zip(&having) {
            selected.push(if *has { e.one(self.g, Op::Index { dim }, &[*x, ids])? } else { *x });
        }
        if product && having[1] {
            selected.swap(0, 1);
        }
        let fits = infer::infer(self.g, &inner.op, &selected);
        if fits.is_err() {
            return Ok(None);
        }
        let out = e.one(self.g, inner.op.clone(), &selected)?;
        let (mut have, mut want) =
            (self.g.dims_of(out).to_vec(), self.g.dims_of(node.outs[0]).to_vec());
        have.sort();
        want.sort();
        Ok((have == want).then(|| (row, vec![out])))
    }

    fn over_other_static(&self, over: &[DimId], dim: DimId) -> bool {
        over.iter().all(|d| *d != dim && !self.g.dims.is_ragged(*d))
    }

    /// Does an operand without `dim` mean the same beside the selected rows as beside all? It must
    /// not have the ids' own dims, and owners of `dim` must own the ids too.
    fn reads_alike(&self, x: ValueId, dim: DimId, ids: ValueId) -> bool {
        let rows = self.g.dims_of(ids);
        self.g.dims_of(x).iter().all(|d| {
            let above = self.g.dims.owners(dim).any(|o| o == *d);
            let above_rows = rows.iter().any(|r| self.g.dims.owners(*r).any(|o| o == *d));
            above == above_rows && !rows.contains(d)
        })
    }

    /// `log_prob(contract(h, w))` with logits nobody else reads: they are never stored.
    fn absorb_head(
        &mut self,
        node: &Node,
        vocab: DimId,
        valid: usize,
        axes: &[String],
        args: &[ValueId],
        e: &mut Emit,
    ) -> Result<Fired, Problem> {
        let Some(inner) = self.defs.get(&node.args[0]).copied() else { return Ok(None) };
        let Op::Contract { over } = &inner.op else { return Ok(None) };
        let once = self.uses.get(&node.args[0]).is_some_and(|u| u.all == 1);
        let [d] = over[..] else { return Ok(None) };
        if !once {
            return Ok(None);
        }
        let is_head = |v: &ValueId| {
            let dims = self.g.dims_of(*v);
            dims.len() == 2 && dims.contains(&vocab) && dims.contains(&d)
        };
        let (h, w) = match (is_head(&inner.args[0]), is_head(&inner.args[1])) {
            (false, true) => (inner.args[0], inner.args[1]),
            (true, false) => (inner.args[1], inner.args[0]),
            _ => return Ok(None),
        };
        let op = Op::LogProbHead { vocab, d, valid, axes: axes.to_vec() };
        let operands = [renamed(&self.map, h), renamed(&self.map, w), args[1], args[2]];
        Ok(Some(("head in log_prob", e.all(self.g, op, &operands)?)))
    }
}
