//! Ops that go along one dim: the next item, a linear recurrence, the largest few.
//!
//! Each walks the items in order on one thread: they run over numbers per token of a batch, not
//! over activations.

use nrl_ir::op::Groups;
use nrl_ir::{DimId, Node};
use nrl_runtime::engine::EngineError;

use super::run::Run;

impl Run<'_> {
    pub(super) fn next(&mut self, node: &Node, dim: DimId, fill: f32) -> Result<(), EngineError> {
        let positions = self.space.positions(dim)?;
        let mut out = self.room(node.outs[0])?;
        let x = self.values.numbers(node.args[0])?;
        for (i, y) in out.iter_mut().enumerate() {
            *y = if positions.get(i + 1).is_none_or(|p| *p == 0) { fill } else { x[i + 1] };
        }
        self.set(node.outs[0], out);
        Ok(())
    }

    pub(super) fn recur(&mut self, node: &Node, dim: DimId, back: bool) -> Result<(), EngineError> {
        let positions = self.space.positions(dim)?;
        let mut out = self.room(node.outs[0])?;
        let (u, c) = (self.values.numbers(node.args[0])?, self.values.numbers(node.args[1])?);
        let n = positions.len();
        let mut before = 0.0;
        for step in 0..n {
            let i = if back { n - 1 - step } else { step };
            let last = positions.get(i + 1).is_none_or(|p| *p == 0);
            let starts = if back { last } else { positions[i] == 0 };
            before = if starts { u[i] } else { u[i] + c[i] * before };
            out[i] = before;
        }
        self.set(node.outs[0], out);
        Ok(())
    }

    /// Items of one dim cut out of a longer one, or put among zeros.
    pub(super) fn fit(
        &mut self,
        node: &Node,
        from: DimId,
        to: DimId,
        at: usize,
    ) -> Result<(), EngineError> {
        let dims = self.dims(node.args[0]);
        let i = dims.iter().position(|d| *d == from).unwrap_or(0);
        let (n, m) = (self.space.size(from)?, self.space.size(to)?);
        let step: usize = self.space.count(&dims[i + 1..])?;
        let mut out = self.room(node.outs[0])?;
        let x = self.values.numbers(node.args[0])?;
        out.fill(0.0);
        let (source, target) = if m <= n { (at, 0) } else { (0, at) };
        let run = n.min(m) * step;
        for row in 0..x.len() / (n * step).max(1) {
            let (s, t) = (row * n * step + source * step, row * m * step + target * step);
            out[t..t + run].copy_from_slice(&x[s..s + run]);
        }
        self.set(node.outs[0], out);
        Ok(())
    }

    pub(super) fn top_k(
        &mut self,
        node: &Node,
        dim: DimId,
        k: usize,
        groups: Option<Groups>,
    ) -> Result<(), EngineError> {
        let dims = self.dims(node.args[0]);
        let at = dims.iter().position(|d| *d == dim).unwrap_or(0);
        let n = self.space.size(dim)?;
        let step: usize = self.space.count(&dims[at + 1..])?;
        let mut out = self.room(node.outs[0])?;
        let x = self.values.numbers(node.args[0])?;
        out.fill(0.0);
        let mut order: Vec<usize> = vec![];
        for first in (0..x.len()).filter(|i| (i / step).is_multiple_of(n)) {
            let at = |i: usize| x[first + i * step];
            let row = groups.map(|_| (0..n).map(|i| f64::from(at(i))).collect::<Vec<_>>());
            let out_of = groups.zip(row).map(|(x, row)| x.left_out(&row));
            order.clear();
            order.extend((0..n).filter(|i| out_of.as_ref().is_none_or(|o| !o[*i])));
            order.sort_by(|a, b| at(*b).total_cmp(&at(*a)).then(a.cmp(b)));
            order.iter().take(k).for_each(|i| out[first + i * step] = 1.0);
        }
        self.set(node.outs[0], out);
        Ok(())
    }
}
