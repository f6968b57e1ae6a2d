//! A small llama built node by node: grouped queries, rotary embedding, rms norms, swiglu, tied or
//! untied head; with a clipped policy loss over trained tokens, or logits of last tokens.

use nrl_ir::op::{Attention, Conv, Scan, Ssm};
use nrl_ir::{
    BinaryOp, Block, Cycle, DimId, Graph, Op, ParamDecl, ParamId, ReduceOp, Type, UnaryOp, ValueId,
};

#[derive(Clone, Debug)]
pub struct Config {
    pub vocab: usize,
    pub d: usize,
    pub q: usize,
    pub kv: usize,
    pub hd: usize,
    pub f: usize,
    pub layers: usize,
    pub tied: bool,
    /// The window of every other layer, from the first on; then these turn by frequencies of their own, part of a head,
    /// and every query head has a sink.
    pub window: Option<usize>,
    /// A state-space mixer after attention, its groups cut as key/value heads are.
    pub mixer: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vocab: 12,
            d: 6,
            q: 4,
            kv: 2,
            hd: 4,
            f: 8,
            layers: 2,
            tied: false,
            window: None,
            mixer: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Outputs `loss`, `lp`, `entropy`.
    Loss,
    /// Output `logits[row, vocab]`.
    Generate,
}

/// Dims of the graph.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    pub seq: DimId,
    pub tok: DimId,
    pub act: DimId,
    pub row: DimId,
    pub vocab: DimId,
    pub d: DimId,
    pub q: DimId,
    pub kv: DimId,
    pub hd: DimId,
    pub f: DimId,
}

pub struct Build {
    pub g: Graph,
    pub block: Block,
}

impl Build {
    pub fn op(&mut self, op: Op, args: &[ValueId]) -> ValueId {
        self.g.push1(&mut self.block, op, args, None).expect("the test graph fits")
    }
    pub fn bin(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        self.op(Op::Binary { op }, &[a, b])
    }
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.bin(BinaryOp::Mul, a, b)
    }
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.bin(BinaryOp::Add, a, b)
    }
    pub fn un(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        self.op(Op::Unary { op }, &[x])
    }
    pub fn c(&mut self, value: f64) -> ValueId {
        self.op(Op::Const { value }, &[])
    }
    pub fn sum(&mut self, x: ValueId, over: &[DimId]) -> ValueId {
        self.op(Op::Reduce { op: ReduceOp::Sum, over: over.to_vec() }, &[x])
    }
    pub fn dot(&mut self, a: ValueId, b: ValueId, over: &[DimId]) -> ValueId {
        self.op(Op::Contract { over: over.to_vec() }, &[a, b])
    }
    pub fn weight(&mut self, param: ParamId) -> ValueId {
        self.op(Op::Use { param }, &[])
    }
    pub fn input(&mut self, name: &str, ty: Type) -> ValueId {
        self.g.input(&mut self.block, name, ty)
    }
    pub fn param(&mut self, name: &str, dims: &[DimId], repeat: Option<usize>) -> ParamId {
        self.g.params.push(ParamDecl {
            name: name.into(),
            dims: dims.to_vec(),
            repeat: repeat.map(|n| ("layers".into(), n)),
            checkpoint: name.into(),
            checkpoint_dims: dims.iter().map(|d| vec![*d]).collect(),
            trained: true,
        });
        ParamId(self.g.params.len() as u32 - 1)
    }
    pub fn finish(mut self, outputs: &[(&str, ValueId)]) -> Graph {
        self.block.results = outputs.iter().map(|o| o.1).collect();
        self.g.outputs = outputs.iter().map(|o| o.0.into()).collect();
        self.g.body = self.block;
        self.g
    }
}

pub fn dims(g: &mut Graph, c: &Config) -> Ids {
    let seq = g.dims.add_ragged("seq", None, 8);
    Ids {
        seq,
        tok: g.dims.add_ragged("tok", Some(seq), 64),
        act: g.dims.add_ragged("act", Some(seq), 64),
        row: g.dims.add_ragged("row", None, 8),
        vocab: g.dims.add_static("vocab", c.vocab),
        d: g.dims.add_static("d", c.d),
        q: g.dims.add_static("q", c.q),
        kv: g.dims.add_static("kv", c.kv),
        hd: g.dims.add_static("hd", c.hd),
        f: g.dims.add_static("f", c.f),
    }
}

fn rms_norm(b: &mut Build, x: ValueId, w: ValueId, d: DimId, n: usize) -> ValueId {
    let xx = b.mul(x, x);
    let sum = b.sum(xx, &[d]);
    let scale = b.c(1.0 / n as f64);
    let mean = b.mul(sum, scale);
    let eps = b.c(1e-5);
    let mean = b.add(mean, eps);
    let r = b.un(UnaryOp::Rsqrt, mean);
    let y = b.mul(x, r);
    b.mul(y, w)
}

/// Weights of a state-space mixer: one convolution, a step per head, states.
struct Mixer {
    r: DimId,
    p: DimId,
    n: DimId,
    taps: DimId,
    /// Values, filters, steps, both shared sides, and the way back.
    params: [ParamId; 6],
}

impl Mixer {
    fn new(b: &mut Build, i: &Ids, layers: Option<usize>) -> Mixer {
        let [r, p, n, taps] =
            [("r", 3), ("p", 2), ("n", 4), ("taps", 3)].map(|(s, n)| b.g.dims.add_static(s, n));
        let mut param = |name: &str, dims: &[DimId]| b.param(name, dims, layers);
        let params = [
            param("layers.wu", &[i.d, i.kv, r, p]),
            param("layers.filters", &[i.kv, r, p, taps]),
            param("layers.wt", &[i.d, i.kv, r]),
            param("layers.wb", &[i.d, i.kv, n]),
            param("layers.wc", &[i.d, i.kv, n]),
            param("layers.wm", &[i.kv, r, p, i.d]),
        ];
        Mixer { r, p, n, taps, params }
    }

    fn run(&self, b: &mut Build, i: &Ids, h: ValueId) -> ValueId {
        let [wu, filters, wt, wb, wc, wm] = self.params.map(|p| b.weight(p));
        let u = b.dot(h, wu, &[i.d]);
        let conv = Conv { tok: i.tok, taps: self.taps, cached: false, ring: None };
        let u = b.op(Op::Conv { conv }, &[u, filters]);
        let t = b.dot(h, wt, &[i.d]);
        let t = b.un(UnaryOp::Sigmoid, t);
        let u = b.mul(u, t);
        let a = b.un(UnaryOp::Neg, t);
        let (left, right) = (b.dot(h, wb, &[i.d]), b.dot(h, wc, &[i.d]));
        let ssm =
            Ssm { tok: i.tok, g: i.kv, r: self.r, p: self.p, n: self.n, cached: false, ring: None };
        let y = b.op(Op::Ssm { ssm }, &[u, a, left, right]);
        b.dot(y, wm, &[i.kv, self.r, self.p])
    }
}

/// The graph and its dims.
pub fn build(c: &Config, head: Head) -> (Graph, Ids) {
    let mut g = Graph::new("llama");
    let i = dims(&mut g, c);
    let mut b = Build { g, block: Block::default() };
    let n = Some(c.layers);
    let embed = b.param("embed", &[i.vocab, i.d], None);
    let norm = b.param("norm", &[i.d], None);
    let out = if c.tied { embed } else { b.param("head", &[i.vocab, i.d], None) };
    let attn_norm = b.param("layers.attn_norm", &[i.d], n);
    let wq = b.param("layers.wq", &[i.d, i.q, i.hd], n);
    let wk = b.param("layers.wk", &[i.d, i.kv, i.hd], n);
    let wv = b.param("layers.wv", &[i.d, i.kv, i.hd], n);
    let q_norm = b.param("layers.q_norm", &[i.hd], n);
    let wo = b.param("layers.wo", &[i.q, i.hd, i.d], n);
    let mlp_norm = b.param("layers.mlp_norm", &[i.d], n);
    let gate = b.param("layers.gate", &[i.d, i.f], n);
    let up = b.param("layers.up", &[i.d, i.f], n);
    let down = b.param("layers.down", &[i.f, i.d], n);
    let sink = c.window.map(|_| b.param("layers.sink", &[i.q], n));
    let mixer = c.mixer.then(|| Mixer::new(&mut b, &i, n));

    let ids = b.input("ids", Type::id(i.vocab, [i.tok]));
    let w = b.weight(embed);
    let x = b.op(Op::Index { dim: i.vocab }, &[w, ids]);
    let outer = std::mem::take(&mut b.block);
    let p = b.g.fresh(Type::f32([i.tok, i.d]));
    b.block.params.push(p);
    let w = b.weight(attn_norm);
    let h = rms_norm(&mut b, p, w, i.d, c.d);
    let far: Vec<f64> = (0..c.hd / 2).map(|j| 0.3 / (1.0 + j as f64)).collect();
    let near = c.window.map(|_| vec![0.7]);
    let freqs = Cycle::new(near.into_iter().chain([far]).collect()).expect("frequencies");
    let rope = |b: &mut Build, x| {
        let inv_freq = freqs.clone();
        b.op(Op::Rope { tok: i.tok, hd: i.hd, inv_freq, scale: 1.0, inverse: false }, &[x])
    };
    let w = b.weight(wq);
    let q = b.dot(h, w, &[i.d]);
    let w = b.weight(q_norm);
    let q = rms_norm(&mut b, q, w, i.hd, c.hd);
    let q = rope(&mut b, q);
    let w = b.weight(wk);
    let k = b.dot(h, w, &[i.d]);
    let k = rope(&mut b, k);
    let w = b.weight(wv);
    let v = b.dot(h, w, &[i.d]);
    let attn = Attention {
        tok: i.tok,
        q: i.q,
        kv: i.kv,
        hd: i.hd,
        vd: i.hd,
        scale: 1.0 / (c.hd as f64).sqrt(),
        window: Cycle::new(vec![c.window, None]).expect("windows"),
        ring: None,
    };
    let mut args = vec![q, k, v];
    args.extend(sink.map(|s| b.weight(s)));
    let o = b.op(Op::Attention { attn }, &args);
    let w = b.weight(wo);
    let o = b.dot(o, w, &[i.q, i.hd]);
    let x1 = b.add(p, o);
    let x1 = match &mixer {
        Some(m) => {
            let mixed = m.run(&mut b, &i, h);
            b.add(x1, mixed)
        }
        None => x1,
    };
    let w = b.weight(mlp_norm);
    let h = rms_norm(&mut b, x1, w, i.d, c.d);
    let w = b.weight(gate);
    let a = b.dot(h, w, &[i.d]);
    let s = b.un(UnaryOp::Sigmoid, a);
    let a = b.mul(a, s);
    let w = b.weight(up);
    let u = b.dot(h, w, &[i.d]);
    let m = b.mul(a, u);
    let w = b.weight(down);
    let m = b.dot(m, w, &[i.f]);
    let x2 = b.add(x1, m);
    b.block.results.push(x2);
    let body = std::mem::replace(&mut b.block, outer);
    let scan = Scan {
        group: "layers".into(),
        first: 0,
        count: c.layers,
        reverse: false,
        carries: 1,
        body,
    };
    let x = b.op(Op::Scan { scan: Box::new(scan) }, &[x]);
    let w = b.weight(norm);
    let h = rms_norm(&mut b, x, w, i.d, c.d);
    let w = b.weight(out);
    let logits = b.dot(h, w, &[i.d]);
    if head == Head::Generate {
        let last = b.input("last", Type::id(i.tok, [i.row]));
        let rows = b.op(Op::Index { dim: i.tok }, &[logits, last]);
        return (b.finish(&[("logits", rows)]), i);
    }
    let act = b.input("act", Type::id(i.tok, [i.act]));
    let labels = b.input("labels", Type::id(i.vocab, [i.act]));
    let inv_t = b.input("inv_temperature", Type::f32([]));
    let rows = b.op(Op::Index { dim: i.tok }, &[logits, act]);
    let lp_op = Op::LogProb { vocab: i.vocab, valid: c.vocab, axes: vec![] };
    let lp = b.g.push(&mut b.block, lp_op, &[rows, labels, inv_t], None).expect("fits");
    let (lp, entropy) = (lp[0], lp[2]);
    let loss = policy_loss(&mut b, &i, lp, entropy);
    (b.finish(&[("loss", loss), ("lp", lp), ("entropy", entropy)]), i)
}

/// `sum(max(-A r, -A clip(r)) - 0.01 entropy) / tokens`.
fn policy_loss(b: &mut Build, i: &Ids, lp: ValueId, entropy: ValueId) -> ValueId {
    let old = b.input("old", Type::f32([i.act]));
    let adv = b.input("adv", Type::f32([i.seq]));
    let count = b.input("count.tokens", Type::f32([]));
    let diff = b.bin(BinaryOp::Sub, lp, old);
    let ratio = b.un(UnaryOp::Exp, diff);
    let (low, high) = (b.c(0.8), b.c(1.2));
    let clipped = b.bin(BinaryOp::Max, ratio, low);
    let clipped = b.bin(BinaryOp::Min, clipped, high);
    let (t1, t2) = (b.mul(ratio, adv), b.mul(clipped, adv));
    let t = b.bin(BinaryOp::Min, t1, t2);
    let bonus = b.c(0.01);
    let bonus = b.mul(entropy, bonus);
    let t = b.add(t, bonus);
    let t = b.un(UnaryOp::Neg, t);
    let sum = b.sum(t, &[i.act, i.seq]);
    b.bin(BinaryOp::Div, sum, count)
}
