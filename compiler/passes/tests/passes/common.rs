//! Numbers for the test graphs, and comparisons.

use std::collections::BTreeMap;

use nrl_interp::{Bindings, Params, Rank, Tensor, run_one};
use nrl_ir::{DimId, Extent, Graph, ParamId};

use crate::llama::Ids;

/// Numbers in -0.5..0.5 from a fixed multiplicative sequence.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() + 0.5) * n as f64) as usize % n
    }
    pub fn tensor(&mut self, shape: &[usize], scale: f64, shift: f64) -> Tensor {
        let n = shape.iter().product();
        Tensor::new(shape, (0..n).map(|_| self.next() * scale + shift).collect())
    }
}

/// One sequence of a batch.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub ids: Vec<usize>,
    /// Tokens before the trained ones; at least one.
    pub prompt: usize,
    pub old: Vec<f64>,
    pub adv: f64,
}

pub fn sequences(n: &mut Numbers, lengths: &[(usize, usize)], vocab: usize) -> Vec<Sequence> {
    lengths
        .iter()
        .map(|(prompt, more)| Sequence {
            ids: (0..prompt + more).map(|_| n.below(vocab)).collect(),
            prompt: *prompt,
            old: (0..*more).map(|_| n.next() - 2.5).collect(),
            adv: n.next() * 3.0,
        })
        .collect()
}

/// Bindings of the llama loss for some of the sequences; `tokens` is the count over all of them.
pub fn bind_loss(g: &Graph, i: &Ids, batch: &[Sequence], tokens: usize) -> Bindings {
    let mut by_name: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let (mut tok, mut act) = (vec![0], vec![0]);
    for s in batch {
        let first = tok[tok.len() - 1];
        by_name.entry("ids").or_default().extend(s.ids.iter().map(|x| *x as f64));
        for j in s.prompt..s.ids.len() {
            by_name.entry("act").or_default().push((first + j - 1) as f64);
            by_name.entry("labels").or_default().push(s.ids[j] as f64);
        }
        by_name.entry("old").or_default().extend(&s.old);
        by_name.entry("adv").or_default().push(s.adv);
        tok.push(first + s.ids.len());
        act.push(act[act.len() - 1] + s.ids.len() - s.prompt);
    }
    by_name.insert("inv_temperature", vec![1.25]);
    by_name.insert("count.tokens", vec![tokens as f64]);
    let offsets = BTreeMap::from([(i.seq, vec![0, batch.len()]), (i.tok, tok), (i.act, act)]);
    let inputs = g
        .inputs
        .iter()
        .map(|input| {
            let data = by_name.get(input.name.as_str()).cloned().unwrap_or_default();
            let count = |d: &DimId| offsets.get(d).map_or(0, |o| o[o.len() - 1]);
            let shape: Vec<usize> = input.ty.dims.iter().map(count).collect();
            Tensor::new(shape, data)
        })
        .collect();
    Bindings { inputs, offsets, bases: vec![], slots: vec![] }
}

pub fn size(g: &Graph, d: DimId) -> usize {
    match &g.dims.get(d).extent {
        Extent::Static(n) => *n,
        Extent::Ragged { .. } => panic!("a parameter over a ragged dim"),
    }
}

/// Random weights of every parameter and layer; norms near 1.
pub fn weights(g: &Graph, n: &mut Numbers) -> Params {
    let mut out = Params::new();
    for (p, decl) in g.params.iter().enumerate() {
        let shape: Vec<usize> = decl.dims.iter().map(|d| size(g, *d)).collect();
        for layer in 0..decl.repeat.as_ref().map_or(1, |r| r.1) {
            let (scale, shift) = if shape.len() == 1 { (0.4, 1.0) } else { (1.2, 0.0) };
            out.insert((ParamId(p as u32), layer), n.tensor(&shape, scale, shift));
        }
    }
    out
}

/// Outputs and gradients of one rank.
pub fn run(g: &Graph, bind: &Bindings, params: &Params) -> (Vec<Tensor>, Params) {
    let mut rank = Rank { bind: bind.clone(), params: params.clone(), ..Rank::default() };
    let out = run_one(g, &mut rank).expect("the graph runs");
    (out, rank.grads)
}

pub fn close(a: &Tensor, b: &Tensor, bound: f64) -> bool {
    a.shape == b.shape
        && a.data
            .iter()
            .zip(&b.data)
            .all(|(x, y)| (x - y).abs() <= bound * (1.0 + x.abs().max(y.abs())) || x == y)
}

pub fn assert_close(what: &str, a: &[Tensor], b: &[Tensor], bound: f64) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!(close(x, y, bound), "{what} {i}:\n{x:?}\n{y:?}");
    }
}

pub fn assert_same_grads(what: &str, a: &Params, b: &Params, bound: f64) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>(), "{what}");
    for (k, x) in a {
        assert!(close(x, &b[k], bound), "{what}, parameter {k:?}:\n{x:?}\n{:?}", b[k]);
    }
}

/// Largest relative error of `grads` against central differences of output `loss`, over a sample
/// of elements of every parameter.
pub fn finite_difference_error(
    g: &Graph,
    bind: &Bindings,
    params: &Params,
    grads: &Params,
    per_param: usize,
) -> f64 {
    let mut worst: f64 = 0.0;
    let mut n = Numbers(99);
    for (key, w) in params {
        if !g.param(key.0).trained {
            continue;
        }
        let zero = Tensor::filled(w.shape.clone(), 0.0);
        let grad = grads.get(key).unwrap_or(&zero);
        for _ in 0..per_param.min(w.data.len()) {
            let i = n.below(w.data.len());
            let h = 1e-5;
            let at = |x: f64| {
                let mut moved = params.clone();
                if let Some(t) = moved.get_mut(key) {
                    t.data[i] += x;
                }
                run(g, bind, &moved).0[0].data[0]
            };
            let slope = (at(h) - at(-h)) / (2.0 * h);
            let error = (slope - grad.data[i]).abs() / (1e-3 + slope.abs().max(grad.data[i].abs()));
            worst = worst.max(error);
        }
    }
    worst
}
