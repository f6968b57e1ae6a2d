//! Ops over sequences: rotary embedding, attention, log-probabilities of labels.
//!
//! Each method brings its operands into the order that the kernels want, which is a copy only if they are not so
//! already, and sets the node's results.

use nrl_ir::op::Attention;
use nrl_ir::{DimId, Node, ValueId};
use nrl_runtime::comm::Group;
use nrl_runtime::engine::{Comm, EngineError};

use super::code::Step;
use super::index;
use super::pool::Buffer;
use super::run::Run;
use super::value::failed;
use super::walk;
use crate::attention::{self, Cached, Heads, Saved};
use crate::logprob::{self, Grads, Labels, Results, Weights};

impl<'a> Run<'a> {
    pub(super) fn rope(
        &mut self,
        node: &Node,
        (tok, hd): (DimId, DimId),
        inv_freq: &[f64],
        how: (f32, bool),
    ) -> Result<(), EngineError> {
        let dims = self.dims(node.args[0]);
        let mut order: Vec<DimId> = vec![tok];
        order.extend(dims.iter().filter(|d| **d != tok && **d != hd));
        order.push(hd);
        let turned = (order != dims).then(|| self.spread(node.args[0], &order)).transpose()?;
        let positions = self.space.positions(tok)?;
        let most = positions.iter().max().map_or(0, |p| *p as usize + 1);
        let table = index::table(&mut self.tools.ropes, inv_freq, most);
        let size = self.space.size(hd)?;
        if 2 * inv_freq.len() > size {
            return failed(format!("rope has {} frequencies for {size} numbers", inv_freq.len()));
        }
        let mut out = self.room(node.outs[0])?;
        let x = turned.as_deref().map_or_else(|| self.values.numbers(node.args[0]), Ok)?;
        index::rope(
            &self.tools.threads,
            &table,
            &positions,
            inv_freq.len(),
            how,
            size,
            x,
            &mut out,
        );
        if turned.is_some() {
            let mut back = self.room(node.outs[0])?;
            walk::spread(&mut self.space, &out, &order, dims, &mut back, false)?;
            out = back;
        }
        self.set(node.outs[0], out);
        Ok(())
    }

    /// The layer whose turn it is; 0 outside of loops.
    pub(super) fn layer(&self) -> usize {
        self.layers.last().map_or(0, |(_, layer)| *layer)
    }

    pub(super) fn heads(&self, attn: &Attention) -> Result<Heads, EngineError> {
        let (q, kv, hd) =
            (self.space.size(attn.q)?, self.space.size(attn.kv)?, self.space.size(attn.hd)?);
        if kv == 0 || !q.is_multiple_of(kv) {
            return failed(format!("{q} query heads do not share {kv} key heads evenly"));
        }
        if attn.vd != attn.hd {
            return failed("values of another head size than keys do not run yet");
        }
        Ok(Heads { q, kv, hd, scale: attn.scale as f32, window: *attn.window.at(self.layer()) })
    }

    /// The logits that stand beside the scores of each query head.
    fn sink(&self, node: &Node) -> Result<Option<&[f32]>, EngineError> {
        node.args.get(3).map(|s| self.values.numbers(*s)).transpose()
    }

    pub(super) fn attention(&mut self, node: &Node, attn: &Attention) -> Result<(), EngineError> {
        let h = self.heads(attn)?;
        let (mut o, mut lse) = (self.room(node.outs[0])?, self.room(node.outs[1])?);
        let x = [
            self.values.numbers(node.args[0])?,
            self.values.numbers(node.args[1])?,
            self.values.numbers(node.args[2])?,
        ];
        attention::forward(
            &self.tools.threads,
            h,
            self.space.offsets(attn.tok)?,
            x,
            self.sink(node)?,
            &mut o,
            &mut lse,
        );
        self.set(node.outs[0], o);
        self.set(node.outs[1], lse);
        Ok(())
    }

    pub(super) fn attention_grad(
        &mut self,
        node: &Node,
        attn: &Attention,
    ) -> Result<(), EngineError> {
        let h = self.heads(attn)?;
        let (mut dq, mut dk, mut dv) =
            (self.room(node.outs[0])?, self.room(node.outs[1])?, self.room(node.outs[2])?);
        let x = |i: usize| self.values.numbers(node.args[i]);
        let saved = Saved { q: x(0)?, k: x(1)?, v: x(2)?, o: x(3)?, lse: x(4)?, d_o: x(5)? };
        attention::backward(
            &self.tools.threads,
            h,
            self.space.offsets(attn.tok)?,
            &saved,
            &mut dq,
            &mut dk,
            &mut dv,
        );
        for (v, b) in node.outs.iter().zip([dq, dk, dv]) {
            self.set(*v, b);
        }
        Ok(())
    }

    pub(super) fn attention_cached(
        &mut self,
        node: &Node,
        attn: &Attention,
    ) -> Result<(), EngineError> {
        let h = self.heads(attn)?;
        let mut o = self.room(node.outs[0])?;
        let offsets = self.space.offsets(attn.tok)?;
        let layer = self.layer();
        let sink = node.args.get(3).map(|s| self.values.numbers(*s)).transpose()?;
        let Some(cache) = self.cache.as_deref_mut() else {
            return failed("generation needs a cache of keys and values");
        };
        if layer >= cache.keys.len() || cache.width != h.kv * h.hd {
            return failed(format!(
                "the cache has {} layers of {}, layer {layer} of {} is needed",
                cache.keys.len(),
                cache.width,
                h.kv * h.hd
            ));
        }
        let (bases, slots) = (self.space.bases, self.space.slots);
        for (s, w) in offsets.windows(2).enumerate() {
            let Some(slot) = slots.get(s) else {
                return failed(format!("sequence {s} has no slot in the cache"));
            };
            let end = bases.get(s).map_or(0, |b| *b as usize) + (w[1] - w[0]) as usize;
            if *slot as usize >= cache.slots || end > cache.context {
                let (slots, context) = (cache.slots, cache.context);
                return failed(format!(
                    "sequence {s} needs {end} tokens in slot {slot}; the cache has {slots} slots of {context}"
                ));
            }
        }
        let c = Cached { offsets, bases, slots, context: cache.context };
        let x = [
            self.values.numbers(node.args[0])?,
            self.values.numbers(node.args[1])?,
            self.values.numbers(node.args[2])?,
        ];
        attention::cached(
            &self.tools.threads,
            h,
            &c,
            x,
            sink,
            &mut cache.keys[layer],
            &mut cache.values[layer],
            &mut o,
        );
        self.set(node.outs[0], o);
        Ok(())
    }

    pub(super) fn labels<'b>(
        &self,
        ids: &'b [u32],
        (vocab, valid): (DimId, usize),
        inv_temperature: f32,
    ) -> Result<Labels<'b>, EngineError> {
        let part = self.part(vocab)?;
        let here = valid.saturating_sub(part.first).min(part.local);
        Ok(Labels {
            ids,
            first: part.first,
            local: part.local,
            valid: here,
            all: valid,
            inv_temperature,
        })
    }

    pub(super) fn group(&self, axes: &[String]) -> Option<&'a Group> {
        let comm: &'a Comm = self.comm;
        if axes.is_empty() { None } else { comm.along(axes) }
    }

    /// A value with `last` as its last dim and the rest as in `rows`; a copy only if it is not so already.
    pub(super) fn ordered(
        &mut self,
        v: ValueId,
        rows: &[DimId],
        last: DimId,
    ) -> Result<(Option<Buffer>, Vec<DimId>), EngineError> {
        let order: Vec<DimId> = rows.iter().copied().chain([last]).collect();
        let copy = if self.dims(v) == order { None } else { Some(self.spread(v, &order)?) };
        Ok((copy, order))
    }

    pub(super) fn log_prob(
        &mut self,
        node: &Node,
        vocab: (DimId, usize),
        axes: &[String],
    ) -> Result<(), EngineError> {
        let a = &node.args;
        let (copy, _) = self.ordered(a[0], self.dims(a[1]), vocab.0)?;
        let (mut lp, mut lse, mut entropy) =
            (self.room(node.outs[0])?, self.room(node.outs[1])?, self.room(node.outs[2])?);
        let l = self.labels(self.values.ids(a[1])?, vocab, self.values.scalar(a[2])?)?;
        let x = copy.as_deref().map_or_else(|| self.values.numbers(a[0]), Ok)?;
        let out = Results { lp: &mut lp, lse: &mut lse, entropy: &mut entropy };
        logprob::forward(&self.tools.threads, &l, x, self.group(axes), out)?;
        for (v, b) in node.outs.iter().zip([lp, lse, entropy]) {
            self.set(*v, b);
        }
        Ok(())
    }

    pub(super) fn grads_of(&self, a: &[ValueId]) -> Result<Grads<'_>, EngineError> {
        let x = |i: usize| self.values.numbers(a[i]);
        Ok(Grads { lse: x(0)?, entropy: x(1)?, d_lp: x(2)?, d_entropy: x(3)? })
    }

    pub(super) fn log_prob_grad(
        &mut self,
        node: &Node,
        vocab: (DimId, usize),
    ) -> Result<(), EngineError> {
        let a = &node.args;
        let (copy, order) = self.ordered(a[0], self.dims(a[1]), vocab.0)?;
        let mut out = self.room(node.outs[0])?;
        let l = self.labels(self.values.ids(a[1])?, vocab, self.values.scalar(a[2])?)?;
        let x = copy.as_deref().map_or_else(|| self.values.numbers(a[0]), Ok)?;
        logprob::backward(&self.tools.threads, &l, x, &self.grads_of(&a[3..])?, &mut out);
        if copy.is_some() {
            let mut back = self.room(node.outs[0])?;
            let to = self.dims(node.outs[0]);
            walk::spread(&mut self.space, &out, &order, to, &mut back, false)?;
            out = back;
        }
        self.set(node.outs[0], out);
        Ok(())
    }

    /// Strides of `[vocab, d]` weights stored in either order.
    pub(super) fn head_strides(
        &self,
        dims: &[DimId],
        vocab: DimId,
        d: DimId,
    ) -> Result<(usize, usize), EngineError> {
        match dims {
            [v, c] if (*v, *c) == (vocab, d) => Ok((self.space.size(d)?, 1)),
            [c, v] if (*v, *c) == (vocab, d) => Ok((1, self.space.size(vocab)?)),
            _ => failed("the head's weights must be over the vocabulary and one other dim"),
        }
    }

    pub(super) fn log_prob_head(
        &mut self,
        node: &Node,
        (vocab, d, valid): (DimId, DimId, usize),
        axes: &[String],
    ) -> Result<(), EngineError> {
        let a = &node.args;
        let (copy, _) = self.ordered(a[0], self.dims(a[2]), d)?;
        let (mut lp, mut lse, mut entropy) =
            (self.room(node.outs[0])?, self.room(node.outs[1])?, self.room(node.outs[2])?);
        let (v, c) = self.head_strides(self.dims(a[1]), vocab, d)?;
        let mut piece = std::mem::take(&mut self.tools.piece);
        let l = self.labels(self.values.ids(a[2])?, (vocab, valid), self.values.scalar(a[3])?)?;
        let h = copy.as_deref().map_or_else(|| self.values.numbers(a[0]), Ok)?;
        let w = Weights { data: self.values.numbers(a[1])?, vocab: v, d: c };
        let out = Results { lp: &mut lp, lse: &mut lse, entropy: &mut entropy };
        logprob::head_forward(
            &self.tools.threads,
            &l,
            (h, self.space.size(d)?),
            w,
            &mut piece,
            self.group(axes),
            out,
        )?;
        self.tools.piece = piece;
        for (v, b) in node.outs.iter().zip([lp, lse, entropy]) {
            self.set(*v, b);
        }
        Ok(())
    }

    pub(super) fn log_prob_head_grad(
        &mut self,
        node: &Node,
        (vocab, d, valid): (DimId, DimId, usize),
        step: &Step,
    ) -> Result<(), EngineError> {
        let a = &node.args;
        let (copy, order) = self.ordered(a[0], self.dims(a[2]), d)?;
        let strides = self.head_strides(self.dims(a[1]), vocab, d)?;
        // Straight into the gradient if that is stored as the weights are.
        let grad = match step.into {
            Some((1, param)) => Some((self.slot(param)?, param)),
            _ => None,
        };
        let same = grad.is_some_and(|(_, p)| self.space.graph.param(p).dims == self.dims(a[1]));
        let (mut g, mut own) = (None, None);
        match grad {
            Some((slot, _)) if same => g = Some((slot, self.grad(slot)?)),
            _ => own = Some(self.tools.pool.filled(self.space.count(self.dims(a[1]))?, 0.0)),
        }
        let mut dh = self.room(node.outs[0])?;
        let mut piece = std::mem::take(&mut self.tools.piece);
        let l = self.labels(self.values.ids(a[2])?, (vocab, valid), self.values.scalar(a[3])?)?;
        let h = copy.as_deref().map_or_else(|| self.values.numbers(a[0]), Ok)?;
        let w = Weights { data: self.values.numbers(a[1])?, vocab: strides.0, d: strides.1 };
        let dw = g.as_mut().map(|(_, g)| &mut g[..]).or(own.as_deref_mut());
        let size = (h, self.space.size(d)?);
        logprob::head_backward(
            &self.tools.threads,
            &l,
            size,
            w,
            &self.grads_of(&a[4..])?,
            &mut piece,
            &mut dh,
            dw,
        );
        self.tools.piece = piece;
        if let Some((slot, g)) = g {
            self.grads[slot] = g;
        } else if let (Some((slot, param)), Some(own)) = (grad, &own) {
            let mut g = self.grad(slot)?;
            let (from, to) = (self.dims(a[1]), &self.space.graph.param(param).dims);
            walk::spread(&mut self.space, own, from, to, &mut g, true)?;
            self.grads[slot] = g;
        } else if let Some(own) = own {
            self.set(node.outs[1], own);
        }
        if copy.is_some() {
            let mut back = self.room(node.outs[0])?;
            let to = self.dims(node.outs[0]);
            walk::spread(&mut self.space, &dh, &order, to, &mut back, false)?;
            dh = back;
        }
        self.set(node.outs[0], dh);
        Ok(())
    }
}
