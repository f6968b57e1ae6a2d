//! Rotary embedding and causal attention over packed sequences.

use nrl_ir::op::Attention;
use nrl_ir::{DimId, ValueId};

use crate::tensor::each;
use crate::{Error, Interp, Tensor};

/// Attributes of `Op::Rope`.
pub(crate) struct Turn<'a> {
    pub tok: DimId,
    pub hd: DimId,
    pub inv_freq: &'a [f64],
    pub scale: f64,
    pub inverse: bool,
}

/// One head of one sequence: token ranges and head numbers.
struct Head {
    first: usize,
    last: usize,
    q: usize,
    kv: usize,
}

/// Sizes of the attention dims on one rank.
struct Sizes {
    q: usize,
    kv: usize,
    hd: usize,
    vd: usize,
}

impl Interp<'_> {
    /// Position of each token in its sequence, counted from the sequence's first cached token.
    pub(crate) fn positions(&self, r: usize, tok: DimId) -> Result<Vec<usize>, Error> {
        let mut out = vec![];
        for (s, range) in self.sequences(r, tok)?.windows(2).enumerate() {
            let base = self.ranks[r].bind.bases.get(s).copied().unwrap_or(0);
            out.extend((range[0]..range[1]).map(|i| base + i - range[0]));
        }
        Ok(out)
    }

    /// The layer whose turn it is; 0 outside of loops.
    pub(crate) fn current_layer(&self) -> usize {
        self.layers.last().map_or(0, |(_, layer)| *layer)
    }

    pub(crate) fn sequences(&self, r: usize, tok: DimId) -> Result<Vec<usize>, Error> {
        match self.ranks[r].bind.offsets.get(&tok) {
            Some(offsets) => Ok(offsets.clone()),
            None => Ok(vec![0, self.size(r, tok)?]),
        }
    }

    pub(crate) fn rope(&self, r: usize, turn: &Turn, x: ValueId) -> Result<Tensor, Error> {
        let dims = self.dims(x).to_vec();
        let at = |d| {
            dims.iter().position(|x| *x == d).ok_or_else(|| Error("rope over a missing dim".into()))
        };
        let (tok_at, hd_at) = (at(turn.tok)?, at(turn.hd)?);
        let x = self.tensor(r, x)?;
        let stride = x.strides()[hd_at];
        let positions = self.positions(r, turn.tok)?;
        let half = turn.inv_freq.len();
        // Loop over everything but `hd`: the first operand's offset, and the token number.
        let mut sizes = x.shape.clone();
        sizes[hd_at] = 1;
        let table = self.table(r, &dims, &dims)?;
        let mut token = table.clone();
        for (d, column) in token.iter_mut().enumerate() {
            column.iter_mut().enumerate().for_each(|(i, o)| *o = if d == tok_at { i } else { 0 });
        }
        let mut out = x.clone();
        each(&sizes, &[&table, &token], |o| {
            for (j, freq) in turn.inv_freq.iter().enumerate() {
                let angle = positions[o[1]] as f64 * freq;
                let (sin, cos) =
                    if turn.inverse { (-angle.sin(), angle.cos()) } else { angle.sin_cos() };
                let (i1, i2) = (o[0] + j * stride, o[0] + (j + half) * stride);
                out.data[i1] = (x.data[i1] * cos - x.data[i2] * sin) * turn.scale;
                out.data[i2] = (x.data[i2] * cos + x.data[i1] * sin) * turn.scale;
            }
        });
        Ok(out)
    }

    fn attention_sizes(&self, r: usize, attn: &Attention) -> Result<Sizes, Error> {
        Ok(Sizes {
            q: self.size(r, attn.q)?,
            kv: self.size(r, attn.kv)?,
            hd: self.size(r, attn.hd)?,
            vd: self.size(r, attn.vd)?,
        })
    }

    fn heads(&self, r: usize, attn: &Attention, n: &Sizes) -> Result<Vec<Head>, Error> {
        let mut heads = vec![];
        for range in self.sequences(r, attn.tok)?.windows(2) {
            for q in 0..n.q {
                heads.push(Head { first: range[0], last: range[1], q, kv: q / (n.q / n.kv) });
            }
        }
        Ok(heads)
    }

    pub(crate) fn attention(
        &self,
        r: usize,
        attn: &Attention,
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        let n = self.attention_sizes(r, attn)?;
        let (q, k, v) =
            (self.tensor(r, args[0])?, self.tensor(r, args[1])?, self.tensor(r, args[2])?);
        let mut o = Tensor::filled(vec![q.shape[0], n.q, n.vd], 0.0);
        let mut lse = Tensor::filled(q.shape[..2].to_vec(), 0.0);
        let sink = args.get(3).map(|s| self.tensor(r, *s)).transpose()?;
        let window = *attn.window.at(self.current_layer());
        for h in self.heads(r, attn, &n)? {
            for i in h.first..h.last {
                let qi = row(q, n.q, n.hd, i, h.q);
                let start = first_key(window, i - h.first) + h.first;
                let mut scores: Vec<f64> = (start..=i)
                    .map(|j| attn.scale * dot(qi, row(k, n.kv, n.hd, j, h.kv)))
                    .collect();
                scores.extend(sink.map(|s| s.data[h.q]));
                let sum = log_sum_exp(&scores);
                lse.data[i * n.q + h.q] = sum;
                for (j, s) in (start..=i).zip(&scores) {
                    let p = (s - sum).exp();
                    add_scaled(row_mut(&mut o, n.q, n.vd, i, h.q), p, row(v, n.kv, n.vd, j, h.kv));
                }
            }
        }
        Ok(vec![o, lse])
    }

    pub(crate) fn attention_grad(
        &self,
        r: usize,
        attn: &Attention,
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        let n = self.attention_sizes(r, attn)?;
        let t = args.iter().map(|a| self.tensor(r, *a)).collect::<Result<Vec<_>, _>>()?;
        let [q, k, v, o, lse, d_o] = t[..] else {
            return Err(Error("attention_grad takes six operands".into()));
        };
        let zeros = |x: &Tensor| Tensor::filled(x.shape.clone(), 0.0);
        let (mut dq, mut dk, mut dv) = (zeros(q), zeros(k), zeros(v));
        let window = *attn.window.at(self.current_layer());
        for h in self.heads(r, attn, &n)? {
            for i in h.first..h.last {
                let (qi, gi) = (row(q, n.q, n.hd, i, h.q), row(d_o, n.q, n.vd, i, h.q));
                let mean = dot(gi, row(o, n.q, n.vd, i, h.q));
                for j in first_key(window, i - h.first) + h.first..=i {
                    let (kj, vj) = (row(k, n.kv, n.hd, j, h.kv), row(v, n.kv, n.vd, j, h.kv));
                    let p = (attn.scale * dot(qi, kj) - lse.data[i * n.q + h.q]).exp();
                    let ds = attn.scale * p * (dot(gi, vj) - mean);
                    add_scaled(row_mut(&mut dv, n.kv, n.vd, j, h.kv), p, gi);
                    add_scaled(row_mut(&mut dq, n.q, n.hd, i, h.q), ds, kj);
                    add_scaled(row_mut(&mut dk, n.kv, n.hd, j, h.kv), ds, qi);
                }
            }
        }
        Ok(vec![dq, dk, dv])
    }

    pub(crate) fn attention_cached(
        &mut self,
        r: usize,
        attn: &Attention,
        args: &[ValueId],
    ) -> Result<Tensor, Error> {
        let n = self.attention_sizes(r, attn)?;
        let (q, k, v) = (
            self.tensor(r, args[0])?.clone(),
            self.tensor(r, args[1])?.clone(),
            self.tensor(r, args[2])?.clone(),
        );
        let sink = args.get(3).map(|s| self.tensor(r, *s).cloned()).transpose()?;
        let layer = self.current_layer();
        let window = *attn.window.at(layer);
        let (width, values_width) = (n.kv * n.hd, n.kv * n.vd);
        let mut o = Tensor::filled(vec![q.shape[0], n.q, n.vd], 0.0);
        for (s, range) in self.sequences(r, attn.tok)?.windows(2).enumerate() {
            let rank = &mut self.ranks[r];
            let base = rank.bind.bases.get(s).copied().unwrap_or(0);
            let slot = rank.bind.slots.get(s).copied().unwrap_or(s);
            let keys = rank.cache.keys.entry((layer, slot)).or_default();
            let values = rank.cache.values.entry((layer, slot)).or_default();
            let both = [(&mut *keys, &k, width), (&mut *values, &v, values_width)];
            for (cache, new, width) in both {
                cache.truncate(base * width);
                cache.extend(&new.data[range[0] * width..range[1] * width]);
            }
            for i in range[0]..range[1] {
                let position = base + i - range[0];
                let start = first_key(window, position);
                for head in 0..n.q {
                    let kv = head / (n.q / n.kv);
                    let at = |j: usize| j * width + kv * n.hd..j * width + (kv + 1) * n.hd;
                    let qi = row(&q, n.q, n.hd, i, head);
                    let mut scores: Vec<f64> =
                        (start..=position).map(|j| attn.scale * dot(qi, &keys[at(j)])).collect();
                    scores.extend(sink.as_ref().map(|s| s.data[head]));
                    let sum = log_sum_exp(&scores);
                    for (j, score) in (start..=position).zip(&scores) {
                        let p = (score - sum).exp();
                        let value = &values[(j * n.kv + kv) * n.vd..][..n.vd];
                        add_scaled(row_mut(&mut o, n.q, n.vd, i, head), p, value);
                    }
                }
            }
        }
        Ok(o)
    }
}

/// First position that the token at `position` sees.
fn first_key(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |w| (position + 1).saturating_sub(w))
}

fn row(t: &Tensor, heads: usize, hd: usize, tok: usize, head: usize) -> &[f64] {
    &t.data[(tok * heads + head) * hd..][..hd]
}

fn row_mut(t: &mut Tensor, heads: usize, hd: usize, tok: usize, head: usize) -> &mut [f64] {
    &mut t.data[(tok * heads + head) * hd..][..hd]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn add_scaled(to: &mut [f64], scale: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(t, x)| *t += scale * x);
}

/// `log(sum(exp(x)))` without overflow; minus infinity when empty.
pub(crate) fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}
