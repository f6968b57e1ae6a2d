//! Convolutions along tokens and state-space models, inside a model.
//!
//! In: arguments of a call. Out: nodes of the graph being built; shapes are checked there.

use nrl_ir::op::{Conv, Op, Ssm};

use super::Args;
use crate::elab::{El, Elab};
use crate::value::Val;

impl<'a> Elab<'a, '_> {
    /// `convolution(x, w)`: each number of a token with those before it, by filters over a last dim.
    pub(super) fn convolution(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let ((x, sx), (w, sw)) = (a.need("x"), a.need("filters"));
        let (x, w) = (self.tensor(&x, sx)?, self.tensor(&w, sw)?);
        let b = self.builder(a.span)?;
        let tok = b.dim("tok");
        let Some(taps) = b.graph.dims_of(w.id).last().copied() else {
            return self.error("dim-mismatch", sw, "filters have a dim of taps", "no dims");
        };
        let conv = Conv { tok, taps, cached: false, ring: None };
        let id = self.tensor_op(Op::Conv { conv }, &[x.id, w.id], &[sx, sw], a.span)?;
        Ok(self.made(id, None))
    }

    /// `state_space(u, decay, b, c)`: `s = exp(decay) * s + u b'` and `s c`, per head.
    pub(super) fn state_space(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let ((u, su), (d, sd)) = (a.need("u"), a.need("decay"));
        let ((b, sb), (c, sc)) = (a.need("b"), a.need("c"));
        let (u, d) = (self.tensor(&u, su)?, self.tensor(&d, sd)?);
        let (b, c) = (self.tensor(&b, sb)?, self.tensor(&c, sc)?);
        let g = &self.builder(a.span)?.graph;
        let (&[tok, heads, r, p], &[_, _, n]) = (g.dims_of(u.id), g.dims_of(b.id)) else {
            return self.error(
                "dim-mismatch",
                a.span,
                "a state-space model takes [tok, groups, heads, head size] and [tok, groups, state]",
                "these",
            );
        };
        let ssm = Ssm { tok, g: heads, r, p, n, cached: false, ring: None };
        let args = [u.id, d.id, b.id, c.id];
        let id = self.tensor_op(Op::Ssm { ssm }, &args, &[su, sd, sb, sc], a.span)?;
        Ok(self.made(id, None))
    }
}
