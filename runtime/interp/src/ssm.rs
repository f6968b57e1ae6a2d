//! Convolutions along tokens and state-space models, one token after the other, and their gradients.
//!
//! Every sequence starts from a state of zeros. The gradient goes back from the last token with the
//! states of all of them at hand.

use std::ops::Range;

use nrl_ir::ValueId;
use nrl_ir::op::{Conv, Ring, Ssm};

use crate::{Error, Interp, Tensor};

/// Sizes of the dims of a state-space model on one rank.
#[derive(Clone, Copy)]
struct Sizes {
    g: usize,
    r: usize,
    p: usize,
    n: usize,
}

/// Where the numbers of one head of one token stand.
struct At {
    /// Of `u` and `y`, each `p` long.
    u: Range<usize>,
    a: usize,
    /// Of `b` and `c`, each `n` long.
    b: Range<usize>,
}

impl Sizes {
    fn at(&self, t: usize, head: usize) -> At {
        let (row, group) = (t * self.g * self.r + head, t * self.g + head / self.r);
        At { u: row * self.p..(row + 1) * self.p, a: row, b: group * self.n..(group + 1) * self.n }
    }
}

impl Interp<'_> {
    pub(crate) fn conv(&self, r: usize, conv: &Conv, args: &[ValueId]) -> Result<Tensor, Error> {
        self.only_whole(r, conv.cached, conv.ring.as_ref())?;
        let (x, w) = (self.tensor(r, args[0])?, self.tensor(r, args[1])?);
        let taps = self.size(r, conv.taps)?;
        let mut y = Tensor::filled(x.shape.clone(), 0.0);
        self.taps(r, conv, taps, w.data.len(), |to, from, tap| {
            y.data[to] += w.data[tap] * x.data[from];
        })?;
        Ok(y)
    }

    pub(crate) fn conv_grad(
        &self,
        r: usize,
        conv: &Conv,
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        self.only_whole(r, conv.cached, conv.ring.as_ref())?;
        let (x, w, dy) =
            (self.tensor(r, args[0])?, self.tensor(r, args[1])?, self.tensor(r, args[2])?);
        let taps = self.size(r, conv.taps)?;
        let mut dx = Tensor::filled(x.shape.clone(), 0.0);
        let mut dw = Tensor::filled(w.shape.clone(), 0.0);
        self.taps(r, conv, taps, w.data.len(), |to, from, tap| {
            dx.data[from] += w.data[tap] * dy.data[to];
            dw.data[tap] += x.data[from] * dy.data[to];
        })?;
        Ok(vec![dx, dw])
    }

    /// Calls `f` with a number of the result, one of the operand that it reads, and the tap between them.
    fn taps(
        &self,
        r: usize,
        conv: &Conv,
        taps: usize,
        weights: usize,
        mut f: impl FnMut(usize, usize, usize),
    ) -> Result<(), Error> {
        let width = weights / taps.max(1);
        for range in self.sequences(r, conv.tok)?.windows(2) {
            for t in range[0]..range[1] {
                for before in 0..taps.min(t - range[0] + 1) {
                    for c in 0..width {
                        let tap = c * taps + taps - 1 - before;
                        f(t * width + c, (t - before) * width + c, tap);
                    }
                }
            }
        }
        Ok(())
    }

    fn ssm_sizes(&self, r: usize, s: &Ssm) -> Result<Sizes, Error> {
        let size = |d| self.size(r, d);
        Ok(Sizes { g: size(s.g)?, r: size(s.r)?, p: size(s.p)?, n: size(s.n)? })
    }

    pub(crate) fn ssm(&self, r: usize, ssm: &Ssm, args: &[ValueId]) -> Result<Tensor, Error> {
        self.only_whole(r, ssm.cached, ssm.ring.as_ref())?;
        let z = self.ssm_sizes(r, ssm)?;
        let x = self.four(r, args)?;
        let mut y = Tensor::filled(x[0].shape.clone(), 0.0);
        for range in self.sequences(r, ssm.tok)?.windows(2) {
            for head in 0..z.g * z.r {
                let mut state = vec![0.0; z.p * z.n];
                for t in range[0]..range[1] {
                    let at = z.at(t, head);
                    step(z, &x, &at, &mut state);
                    let c = &x[3].data[at.b.clone()];
                    for (y, row) in y.data[at.u].iter_mut().zip(state.chunks(z.n)) {
                        *y = row.iter().zip(c).map(|(s, c)| s * c).sum();
                    }
                }
            }
        }
        Ok(y)
    }

    pub(crate) fn ssm_grad(
        &self,
        r: usize,
        ssm: &Ssm,
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        self.only_whole(r, ssm.cached, ssm.ring.as_ref())?;
        let z = self.ssm_sizes(r, ssm)?;
        let (x, dy) = (self.four(r, args)?, self.tensor(r, args[4])?);
        let mut grads: Vec<Tensor> =
            x.iter().map(|x| Tensor::filled(x.shape.clone(), 0.0)).collect();
        for range in self.sequences(r, ssm.tok)?.windows(2) {
            for head in 0..z.g * z.r {
                // The state before each token, and after the last.
                let mut states = vec![vec![0.0; z.p * z.n]];
                for t in range[0]..range[1] {
                    let mut state = states[t - range[0]].clone();
                    step(z, &x, &z.at(t, head), &mut state);
                    states.push(state);
                }
                let mut ds = vec![0.0; z.p * z.n];
                for t in (range[0]..range[1]).rev() {
                    let at = z.at(t, head);
                    let (before, after) = (&states[t - range[0]], &states[t - range[0] + 1]);
                    let decay = x[1].data[at.a].exp();
                    for i in 0..z.p {
                        let (u, dy) = (at.u.start + i, dy.data[at.u.start + i]);
                        for j in 0..z.n {
                            let (s, b) = (i * z.n + j, at.b.start + j);
                            ds[s] += dy * x[3].data[b];
                            grads[3].data[b] += dy * after[s];
                            grads[0].data[u] += ds[s] * x[2].data[b];
                            grads[2].data[b] += ds[s] * x[0].data[u];
                            grads[1].data[at.a] += ds[s] * decay * before[s];
                            ds[s] *= decay;
                        }
                    }
                }
            }
        }
        Ok(grads)
    }

    /// Generation has states only of sequences that begin here, and a rank whole sequences.
    fn only_whole(&self, r: usize, cached: bool, ring: Option<&Ring>) -> Result<(), Error> {
        if cached && self.ranks[r].bind.bases.iter().any(|b| *b > 0) {
            let text = "generation from the state of a state-space model does not run yet";
            return Err(Error(text.into()));
        }
        match ring {
            Some(_) => {
                Err(Error("a state-space model over parts of sequences does not run yet".into()))
            }
            None => Ok(()),
        }
    }

    fn four(&self, r: usize, args: &[ValueId]) -> Result<[&Tensor; 4], Error> {
        let x = |i: usize| self.tensor(r, args[i]);
        Ok([x(0)?, x(1)?, x(2)?, x(3)?])
    }
}

/// The state after a token: `exp(a) s + u b'`.
fn step(z: Sizes, x: &[&Tensor; 4], at: &At, state: &mut [f64]) {
    let decay = x[1].data[at.a].exp();
    let (u, b) = (&x[0].data[at.u.clone()], &x[2].data[at.b.clone()]);
    for (row, u) in state.chunks_mut(z.n).zip(u) {
        for (s, b) in row.iter_mut().zip(b) {
            *s = decay * *s + u * b;
        }
    }
}
