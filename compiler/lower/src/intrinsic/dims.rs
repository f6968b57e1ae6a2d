//! Dims of a value changed: cut, put among zeros, repeated, handed to experts; positions of tokens.
//!
//! In: arguments of a call inside a model. Out: nodes of the graph being built.

use nrl_ir::{DimId, Op, Routed};

use super::Args;
use crate::elab::{El, Elab};
use crate::value::Val;

impl<'a> Elab<'a, '_> {
    /// `fit(x, from: a, to: b, at: 3)`: dim `a` cut to, or put among the zeros of, dim `b`.
    pub fn fit(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let at = match a.take("at") {
            Some(g) => self.whole(&g.val, g.span, "`at`")?,
            None => 0,
        };
        let (from, to) = (self.dim_arg(&mut a, "from")?, self.dim_arg(&mut a, "to")?);
        let (x, s) = a.need("x");
        let t = self.tensor(&x, s)?;
        let id = self.tensor_op(Op::Fit { from, to, at }, &[t.id], &[s], a.span)?;
        Ok(self.made(id, None))
    }

    /// `route(kept, k, from: choice, to: expert)`: what a router chose, under the dim of the experts.
    /// It is zero but for `k` experts of each token, so that no more are counted.
    pub fn route(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (k, sk) = a.need("k");
        let chosen = self.whole(&k, sk, "`k`")?;
        let (from, to) = (self.dim_arg(&mut a, "from")?, self.dim_arg(&mut a, "to")?);
        let (x, s) = a.need("x");
        let t = self.tensor(&x, s)?;
        let b = self.builder(a.span)?;
        let experts = b.graph.dims.bound(to);
        if chosen == 0 || chosen > experts {
            let what = format!("{chosen} of {experts} experts");
            return self.error("out-of-range", sk, what, "at least 1, at most all of them");
        }
        b.graph.dims.get_mut(to).routed = Some(Routed { chosen, copies: 1, over: 1 });
        let id = self.tensor_op(Op::Fit { from, to, at: 0 }, &[t.id], &[s], a.span)?;
        Ok(self.made(id, None))
    }

    /// `position(in: pos)`: the place of each token in its sequence, as an index into `pos`.
    pub fn position(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let dim = self.dim_arg(&mut a, "in")?;
        let b = self.builder(a.span)?;
        let tok = b.dim("tok");
        let id = self.tensor_op(Op::Position { tok, dim }, &[], &[], a.span)?;
        Ok(self.made(id, None))
    }

    fn dim_arg(&mut self, a: &mut Args<'a>, name: &str) -> El<DimId> {
        match a.need(name) {
            (Val::Dim(d), _) => Ok(d),
            (v, s) => {
                let kind = v.kind();
                self.error("wrong-type", s, format!("`{name}` is a dim, not {kind}"), "this value")
            }
        }
    }

    /// `repeated(x, to: expert)`: the same for each of them.
    pub fn repeated(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let over = self.dim_arg(&mut a, "to")?;
        let (x, s) = a.need("x");
        let t = self.tensor(&x, s)?;
        let mut dims = self.builder(a.span)?.graph.dims_of(t.id).to_vec();
        let at = dims.len().min(1);
        dims.insert(at, over);
        let id = self.tensor_op(Op::Broadcast { dims }, &[t.id], &[s], a.span)?;
        Ok(self.made(id, None))
    }
}
