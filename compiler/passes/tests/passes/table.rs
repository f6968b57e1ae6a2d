//! Walks the op table: every row has a gradient that finite differences confirm, or refuses one.

use std::collections::{BTreeMap, BTreeSet};

use nrl_interp::{Bindings, Tensor};
use nrl_ir::kernel::Kernel;
use nrl_ir::op::{Attention, Conv, Scan, Ssm};
use nrl_ir::{BinaryOp, Block, DType, DimId, Graph, Op, ParamId, ReduceOp, Type, UnaryOp, ValueId};
use nrl_passes::{Recompute, grad};

use crate::common::*;
use crate::llama::{Build, Config, Ids, dims};

/// What is expected of a row.
enum Want {
    /// The gradient through this value is that of finite differences.
    Slope(ValueId),
    /// The gradient is that of the second value, whatever finite differences say.
    Like(ValueId, ValueId),
    /// `grad` refuses with this code.
    Refusal(&'static str, ValueId),
    /// Nothing flows into it.
    Leaf,
}

fn axes() -> Vec<String> {
    vec!["tp".into()]
}

fn conv(i: &Ids) -> Conv {
    Conv { tok: i.tok, taps: i.hd, cached: false, ring: None }
}

/// Groups and heads of attention stand for groups and heads of a mixer.
fn ssm(i: &Ids) -> Ssm {
    Ssm { tok: i.tok, g: i.kv, r: i.d, p: i.q, n: i.hd, cached: false, ring: None }
}

/// One op of each row.
fn rows(i: &Ids) -> Vec<Op> {
    let attn = Attention {
        tok: i.tok,
        q: i.q,
        kv: i.kv,
        hd: i.hd,
        vd: i.hd,
        scale: 0.5,
        window: Some(3).into(),
        ring: None,
    };
    let reason = String::new;
    let (vocab, d, param) = (i.vocab, i.d, ParamId(0));
    let scan = Scan {
        group: "layers".into(),
        first: 0,
        count: 2,
        reverse: false,
        carries: 1,
        body: Block::default(),
    };
    let kernel = Kernel {
        rows: vec![],
        lanes: vec![],
        inputs: vec![],
        code: vec![],
        outputs: vec![],
        reason: reason(),
    };
    let mut ops: Vec<Op> = UnaryOp::ALL.into_iter().map(|op| Op::Unary { op }).collect();
    ops.extend(BinaryOp::ALL.into_iter().map(|op| Op::Binary { op }));
    ops.extend([
        Op::Input { index: 0 },
        Op::Use { param },
        Op::Const { value: 1.0 },
        Op::Select,
        Op::StopGrad,
        Op::Cast { to: DType::Bf16 },
        Op::Broadcast { dims: vec![i.tok, d] },
        Op::Reduce { op: ReduceOp::Sum, over: vec![i.tok] },
        Op::Reduce { op: ReduceOp::Max, over: vec![d] },
        Op::Contract { over: vec![d] },
        Op::Index { dim: vocab },
        Op::ScatterAdd { dim: vocab, dims: vec![vocab, d] },
        Op::TopK { dim: d, k: 2, groups: None },
        Op::Fit { from: d, to: vocab, at: 3 },
        Op::Position { tok: i.tok, dim: vocab },
        Op::Next { dim: i.tok, fill: 0.5 },
        Op::Recur { dim: i.tok, back: true },
        Op::Rope {
            tok: i.tok,
            hd: i.hd,
            inv_freq: vec![0.3, 0.1].into(),
            scale: 1.5,
            inverse: false,
        },
        Op::Attention { attn: attn.clone() },
        Op::AttentionGrad { attn: attn.clone() },
        Op::AttentionCached { attn },
        Op::Conv { conv: conv(i) },
        Op::ConvGrad { conv: conv(i) },
        Op::Ssm { ssm: ssm(i) },
        Op::SsmGrad { ssm: ssm(i) },
        Op::LogProb { vocab, valid: 11, axes: vec![] },
        Op::LogProbGrad { vocab, valid: 11, axes: vec![] },
        Op::LogProbHead { vocab, d, valid: 11, axes: vec![] },
        Op::LogProbHeadGrad { vocab, d, valid: 11, axes: vec![] },
        Op::Scan { scan: Box::new(scan) },
        Op::Accumulate { param },
        Op::AllReduce { op: ReduceOp::Sum, axes: axes(), reason: reason() },
        Op::AllGather { dim: d, full: d, axes: axes(), reason: reason() },
        Op::ReduceScatter { dim: d, part: d, axes: axes(), reason: reason() },
        Op::AllToAll { dim: d, to: d, axes: axes(), reason: reason() },
        Op::GatherParam { param, axes: axes(), reason: reason() },
        Op::ScatterGrad { param, axes: axes(), reason: reason() },
        Op::Fused { kernel: Box::new(kernel) },
    ]);
    ops
}

/// Parameters and inputs that the cases use.
struct Case {
    b: Build,
    i: Ids,
}

impl Case {
    fn new() -> Case {
        let mut g = Graph::new("row");
        let i = dims(&mut g, &Config::default());
        let mut c = Case { b: Build { g, block: Block::default() }, i };
        c.b.param("p", &[i.d], None);
        c.b.param("r", &[i.vocab, i.d], None);
        c.b.param("s", &[i.kv, i.hd], None);
        c.b.param("t", &[i.d], Some(2));
        c.b.param("u", &[i.q], None);
        c
    }

    /// Near 1.
    fn p(&mut self) -> ValueId {
        self.b.weight(ParamId(0))
    }

    /// Of both signs, over `[vocab, d]`.
    fn r(&mut self) -> ValueId {
        self.b.weight(ParamId(1))
    }

    /// An input over `dims` times a parameter.
    fn x(&mut self, name: &str, dims: &[DimId], w: ValueId) -> ValueId {
        let x = self.b.input(name, Type::f32(dims.to_vec()));
        self.b.mul(x, w)
    }

    fn heads(&mut self) -> [ValueId; 3] {
        let i = self.i;
        let s = self.b.weight(ParamId(2));
        let q = self.b.input("q", Type::f32([i.tok, i.q, i.hd]));
        let p = self.b.sum(s, &[i.kv]);
        let q = self.b.mul(q, p);
        [q, self.x("k", &[i.tok, i.kv, i.hd], s), self.x("v", &[i.tok, i.kv, i.hd], s)]
    }

    /// A value and filters, both with weights in them.
    fn filtered(&mut self) -> [ValueId; 2] {
        let i = self.i;
        let s = self.b.weight(ParamId(2));
        let x = self.b.sum(s, &[i.hd]);
        [self.x("x", &[i.tok, i.kv], x), s]
    }

    /// Operands of a state-space model, each with weights in it; decays are negative.
    fn states(&mut self) -> [ValueId; 4] {
        let i = self.i;
        let (p, s) = (self.p(), self.b.weight(ParamId(2)));
        let u = self.x("u", &[i.tok, i.kv, i.d, i.q], p);
        let a = self.x("a", &[i.tok, i.kv, i.d], p);
        let a = self.b.mul(a, a);
        let a = self.b.un(UnaryOp::Neg, a);
        [u, a, self.x("b", &[i.tok, i.kv, i.hd], s), self.x("c", &[i.tok, i.kv, i.hd], s)]
    }

    fn labels(&mut self) -> [ValueId; 2] {
        let i = self.i;
        [self.b.input("labels", Type::id(i.vocab, [i.tok])), self.b.input("inv_t", Type::f32([]))]
    }

    /// The number to differentiate: all of `y` with changing weights.
    fn weigh(&mut self, y: ValueId) -> ValueId {
        let dims = self.b.g.dims_of(y).to_vec();
        let name = format!("weights{}", y.0);
        let y = self.x(&name, &dims, y);
        let mut over = vec![];
        for d in dims.iter().flat_map(|d| self.b.g.dims.owners(*d)) {
            if !over.contains(&d) {
                over.push(d);
            }
        }
        self.b.sum(y, &over)
    }

    fn all(&mut self, op: Op, args: &[ValueId]) -> Vec<ValueId> {
        self.b.g.push(&mut self.b.block, op, args, None).expect("the row fits")
    }

    /// Both results that have a gradient, as one number.
    fn log_probs(&mut self, outs: &[ValueId]) -> Want {
        let both = [self.weigh(outs[0]), self.weigh(outs[2])];
        Want::Slope(self.b.add(both[0], both[1]))
    }

    fn want(&mut self, op: &Op) -> Want {
        let i = self.i;
        let one = op.clone();
        match op {
            Op::Input { .. } | Op::Const { .. } => Want::Leaf,
            Op::Use { .. } => Want::Slope(self.p()),
            Op::Unary { op: u } => {
                let positive = matches!(u, UnaryOp::Log | UnaryOp::Sqrt | UnaryOp::Rsqrt);
                let x = if positive { self.p() } else { self.r() };
                let y = self.b.op(one, &[x]);
                // Besides the op itself something must depend on a weight: steps have no slope.
                Want::Slope(self.b.add(y, x))
            }
            Op::Binary { op: bin } => {
                let (p, r) = (self.p(), self.r());
                let r = if *bin == BinaryOp::Pow { self.b.mul(r, r) } else { r };
                let y = self.b.op(one.clone(), &[r, p]);
                let half = self.b.c(0.5);
                let r2 = self.b.add(r, half);
                let z = if *bin == BinaryOp::Div { y } else { self.b.op(one, &[p, r2]) };
                let z = if *bin == BinaryOp::Pow { y } else { z };
                let y = self.b.add(y, z);
                Want::Slope(self.b.add(y, r))
            }
            Op::Select => {
                let (p, r) = (self.p(), self.r());
                let cond = self.b.input("cond", Type::id(i.vocab, [i.tok]));
                let picked = self.b.op(Op::Index { dim: i.vocab }, &[r, cond]);
                let zero = self.b.c(0.0);
                let cond = self.b.bin(BinaryOp::Lt, zero, picked);
                Want::Slope(self.b.op(one, &[cond, picked, p]))
            }
            Op::StopGrad => {
                let r = self.r();
                let still = self.b.op(one, &[r]);
                let (y, twice) = (self.b.mul(r, still), self.b.c(0.5));
                let square = self.b.mul(r, r);
                Want::Like(y, self.b.mul(square, twice))
            }
            Op::Cast { .. } => {
                let r = self.r();
                Want::Like(self.b.op(one, &[r]), r)
            }
            Op::Broadcast { .. } => {
                let p = self.p();
                Want::Slope(self.b.op(one, &[p]))
            }
            Op::Reduce { .. } => {
                let p = self.p();
                let x = self.x("x", &[i.tok, i.d], p);
                Want::Slope(self.b.op(one, &[x]))
            }
            Op::Contract { .. } => {
                let (p, r) = (self.p(), self.r());
                let x = self.x("x", &[i.tok, i.d], p);
                Want::Slope(self.b.op(one, &[x, r]))
            }
            Op::Index { .. } => {
                let (r, ids) = (self.r(), self.labels()[0]);
                Want::Slope(self.b.op(one, &[r, ids]))
            }
            Op::ScatterAdd { .. } => {
                let (p, ids) = (self.p(), self.labels()[0]);
                let x = self.x("x", &[i.tok, i.d], p);
                Want::Slope(self.b.op(one, &[ids, x]))
            }
            Op::TopK { .. } => {
                let (p, r) = (self.p(), self.r());
                let y = self.b.op(one, &[r]);
                // A mask is a step: its product has the slope of the other factor.
                Want::Slope(self.b.mul(y, p))
            }
            Op::Next { .. } | Op::Recur { .. } => {
                let p = self.p();
                let x = self.x("x", &[i.tok, i.d], p);
                let x = self.b.sum(x, &[i.d]);
                let args = [x, x];
                let n = if matches!(op, Op::Next { .. }) { 1 } else { 2 };
                Want::Refusal("not-differentiable", self.b.op(one, &args[..n]))
            }
            Op::Rope { .. } => {
                let [_, k, _] = self.heads();
                Want::Slope(self.b.op(one, &[k]))
            }
            Op::Attention { .. } => {
                let [q, k, v] = self.heads();
                let sink = self.b.weight(ParamId(4));
                let plain = self.all(one.clone(), &[q, k, v])[0];
                let sunk = self.all(one, &[q, k, v, sink])[0];
                let both = [self.weigh(plain), self.weigh(sunk)];
                Want::Slope(self.b.add(both[0], both[1]))
            }
            Op::AttentionCached { .. } => {
                let qkv = self.heads();
                Want::Refusal("not-differentiable", self.b.op(one, &qkv))
            }
            Op::AttentionGrad { attn } => {
                let qkv = self.heads();
                let o = self.all(Op::Attention { attn: attn.clone() }, &qkv);
                let args = [qkv[0], qkv[1], qkv[2], o[0], o[1], o[0]];
                Want::Refusal("not-differentiable", self.all(one, &args)[0])
            }
            Op::Conv { .. } => {
                let args = self.filtered();
                Want::Slope(self.b.op(one, &args))
            }
            Op::ConvGrad { .. } => {
                let [x, w] = self.filtered();
                Want::Refusal("not-differentiable", self.all(one, &[x, w, x])[0])
            }
            Op::Ssm { .. } => {
                let args = self.states();
                Want::Slope(self.b.op(one, &args))
            }
            Op::SsmGrad { .. } => {
                let [u, a, b, c] = self.states();
                Want::Refusal("not-differentiable", self.all(one, &[u, a, b, c, u])[0])
            }
            Op::LogProb { .. } => {
                let (p, r, [labels, inv_t]) = (self.p(), self.r(), self.labels());
                let x = self.x("x", &[i.tok, i.d], p);
                let logits = self.b.dot(x, r, &[i.d]);
                let outs = self.all(one, &[logits, labels, inv_t]);
                self.log_probs(&outs)
            }
            Op::LogProbHead { .. } => {
                let (p, r, [labels, inv_t]) = (self.p(), self.r(), self.labels());
                let x = self.x("x", &[i.tok, i.d], p);
                let outs = self.all(one, &[x, r, labels, inv_t]);
                self.log_probs(&outs)
            }
            Op::LogProbGrad { valid, .. } => {
                let (p, r, [labels, inv_t]) = (self.p(), self.r(), self.labels());
                let x = self.x("x", &[i.tok, i.d], p);
                let logits = self.b.dot(x, r, &[i.d]);
                let lp = self.all(
                    Op::LogProb { vocab: i.vocab, valid: *valid, axes: vec![] },
                    &[logits, labels, inv_t],
                );
                let args = [logits, labels, inv_t, lp[1], lp[2], lp[0], lp[0]];
                Want::Refusal("not-differentiable", self.b.op(one, &args))
            }
            Op::LogProbHeadGrad { valid, .. } => {
                let (p, r, [labels, inv_t]) = (self.p(), self.r(), self.labels());
                let x = self.x("x", &[i.tok, i.d], p);
                let head = Op::LogProbHead { vocab: i.vocab, d: i.d, valid: *valid, axes: vec![] };
                let lp = self.all(head, &[x, r, labels, inv_t]);
                let args = [x, r, labels, inv_t, lp[1], lp[2], lp[0], lp[0]];
                Want::Refusal("not-differentiable", self.all(one, &args)[0])
            }
            Op::Scan { scan } => Want::Slope(self.scan((**scan).clone())),
            Op::AllReduce { .. } => {
                let p = self.p();
                Want::Refusal("internal", self.b.op(one, &[p]))
            }
            Op::Fit { .. } => {
                let p = self.p();
                Want::Slope(self.b.op(one, &[p]))
            }
            Op::Position { .. } => {
                let (r, ids) = (self.r(), self.b.op(one, &[]));
                Want::Slope(self.b.op(Op::Index { dim: i.vocab }, &[r, ids]))
            }
            Op::AllGather { .. } | Op::ReduceScatter { .. } | Op::AllToAll { .. } => {
                let p = self.p();
                Want::Refusal("internal", self.b.op(one, &[p]))
            }
            Op::GatherParam { .. } => Want::Refusal("internal", self.b.op(one, &[])),
            // Without results nothing can flow back into them.
            Op::Accumulate { .. } | Op::ScatterGrad { .. } | Op::Fused { .. } => Want::Leaf,
        }
    }

    /// A carry, a value from outside, a stack in and a stack out, all with gradients.
    fn scan(&mut self, mut scan: Scan) -> ValueId {
        let i = self.i;
        let (p, r) = (self.p(), self.r());
        let x = self.x("x", &[i.tok, i.d], p);
        let stacked = self.one_scan(scan.clone(), x, r, None);
        scan.reverse = true;
        let outs = self.one_scan(scan, stacked[0], r, Some(stacked[1]));
        let y = self.b.sum(stacked[0], &[i.d]);
        self.b.mul(outs[0], y)
    }

    fn one_scan(
        &mut self,
        mut scan: Scan,
        x: ValueId,
        free: ValueId,
        stack: Option<ValueId>,
    ) -> Vec<ValueId> {
        let i = self.i;
        let outer = std::mem::take(&mut self.b.block);
        let carry = self.b.g.fresh(Type::f32([i.tok, i.d]));
        self.b.block.params.push(carry);
        let mut h = carry;
        if stack.is_some() {
            let slice = self.b.g.fresh(Type::f32([i.tok, i.d]));
            self.b.block.params.push(slice);
            h = self.b.mul(h, slice);
        }
        let t = self.b.weight(ParamId(3));
        h = self.b.mul(h, t);
        let u = self.b.dot(h, free, &[i.d]);
        let u = self.b.un(UnaryOp::Tanh, u);
        let u = self.b.dot(u, free, &[i.vocab]);
        let half = self.b.c(0.3);
        let u = self.b.mul(u, half);
        let next = self.b.add(u, carry);
        self.b.block.results.extend([next, h]);
        scan.body = std::mem::replace(&mut self.b.block, outer);
        let args: Vec<ValueId> = [x].into_iter().chain(stack).collect();
        self.all(Op::Scan { scan: Box::new(scan) }, &args)
    }
}

fn bind(g: &Graph, i: &Ids) -> Bindings {
    let offsets = BTreeMap::from([
        (i.seq, vec![0, 3]),
        (i.tok, vec![0, 2, 2, 5]),
        (i.act, vec![0, 0, 0, 0]),
        (i.row, vec![0, 0]),
    ]);
    let mut n = Numbers(7);
    let inputs = g.inputs.iter().map(|x| {
        let shape: Vec<usize> =
            x.ty.dims
                .iter()
                .map(|d| offsets.get(d).map_or_else(|| size(g, *d), |o| o[o.len() - 1]))
                .collect();
        match x.ty.dtype {
            DType::Id(_) => Tensor::new(
                shape.clone(),
                (0..shape.iter().product()).map(|_| n.below(11) as f64).collect(),
            ),
            _ => n.tensor(&shape, 2.0, 0.2),
        }
    });
    Bindings { inputs: inputs.collect(), offsets: offsets.clone(), bases: vec![], slots: vec![] }
}

#[test]
fn every_row_has_its_gradient() {
    let names: Vec<Op> = rows(&Case::new().i);
    let distinct: BTreeSet<&str> = names.iter().map(Op::name).collect();
    assert_eq!(distinct.len(), names.len(), "one op of each row");
    for op in names {
        let mut c = Case::new();
        let want = c.want(&op);
        let loss = |c: &mut Case, y: ValueId| match c.b.g.dims_of(y).is_empty() {
            true => y,
            false => c.weigh(y),
        };
        let name = op.name();
        match want {
            Want::Leaf => {}
            Want::Slope(y) => {
                let y = loss(&mut c, y);
                let (i, g) = (c.i, c.b.finish(&[("loss", y)]));
                let params = weights(&g, &mut Numbers(3));
                let bind = bind(&g, &i);
                for recompute in [Recompute::None, Recompute::Full] {
                    let back =
                        grad(&g, "loss", &recompute).unwrap_or_else(|p| panic!("{name}: {p:?}"));
                    nrl_ir::verify::verify(&back).unwrap_or_else(|e| panic!("{name}: {e}"));
                    let (_, grads) = run(&back, &bind, &params);
                    assert!(!grads.is_empty(), "{name}");
                    let error = finite_difference_error(&g, &bind, &params, &grads, 8);
                    assert!(error < 1e-5, "{name}: {error}");
                }
            }
            Want::Like(y, z) => {
                let (y, z) = (loss(&mut c, y), loss(&mut c, z));
                let (i, g) = (c.i, c.b.finish(&[("y", y), ("z", z)]));
                let params = weights(&g, &mut Numbers(3));
                let mut bind = bind(&g, &i);
                // Both are weighed alike.
                let last = bind.inputs.len() - 1;
                bind.inputs[last] = bind.inputs[last - 1].clone();
                let of = |loss| {
                    run(&grad(&g, loss, &Recompute::None).expect("differentiable"), &bind, &params)
                        .1
                };
                assert_same_grads(name, &of("y"), &of("z"), 1e-12);
            }
            Want::Refusal(code, y) => {
                let y = loss(&mut c, y);
                let g = c.b.finish(&[("loss", y)]);
                assert_eq!(
                    grad(&g, "loss", &Recompute::None).expect_err(name).code,
                    code,
                    "{name}"
                );
            }
        }
    }
}

/// `loss(p)` of one number `p`, with its gradient.
fn slope_at(p: f64, f: impl Fn(&mut Build, ValueId) -> ValueId) -> (f64, f64) {
    let mut b = Build { g: Graph::new("point"), block: Block::default() };
    let param = b.param("p", &[], None);
    let x = b.weight(param);
    let y = f(&mut b, x);
    let g = b.finish(&[("loss", y)]);
    let params = [((param, 0), Tensor::scalar(p))].into();
    let (out, grads) = run(
        &grad(&g, "loss", &Recompute::None).expect("differentiable"),
        &Bindings::default(),
        &params,
    );
    (out[0].data[0], grads[&(param, 0)].data[0])
}

#[test]
fn a_side_not_taken_gives_zero_whatever_it_holds() {
    // exp overflows on the side not taken: 0 * inf must not become NaN.
    let guarded = slope_at(1000.0, |b, x| {
        let (zero, big) = (b.c(0.0), b.un(UnaryOp::Exp, x));
        let big = b.mul(big, big);
        let y = b.op(Op::Select, &[zero, big, x]);
        b.mul(y, x)
    });
    assert_eq!(guarded, (1e6, 2000.0));
    let log = slope_at(0.0, |b, x| {
        let (zero, log) = (b.c(0.0), b.un(UnaryOp::Log, x));
        b.op(Op::Select, &[zero, log, x])
    });
    assert_eq!(log, (0.0, 1.0));
}

#[test]
fn ties_go_to_the_left() {
    let min = slope_at(2.0, |b, x| {
        let (two, three) = (b.c(2.0), b.c(3.0));
        let scaled = b.mul(x, three);
        let left = b.bin(BinaryOp::Min, x, two);
        let right = b.bin(BinaryOp::Max, two, x);
        let y = b.mul(left, three);
        let y = b.add(y, right);
        b.add(y, scaled)
    });
    // The left operand of `min` gets all of it, the right one of `max` nothing.
    assert_eq!(min.1, 3.0 + 3.0);
    let clamp = |p| {
        slope_at(p, |b, x| {
            let (low, high) = (b.c(-1.0), b.c(1.0));
            let y = b.bin(BinaryOp::Max, x, low);
            b.bin(BinaryOp::Min, y, high)
        })
    };
    assert_eq!(
        [clamp(-2.0).1, clamp(-1.0).1, clamp(0.5).1, clamp(1.0).1, clamp(2.0).1],
        [0.0, 1.0, 1.0, 1.0, 0.0]
    );
}

#[test]
fn what_cannot_be_trained_is_said() {
    let mut b = Build { g: Graph::new("still"), block: Block::default() };
    let param = b.param("p", &[], None);
    let x = b.weight(param);
    let y = b.op(Op::StopGrad, &[x]);
    let g = b.finish(&[("loss", y)]);
    assert_eq!(grad(&g, "loss", &Recompute::None).expect_err("nothing").code, "nothing-to-train");
    let mut c = Case::new();
    let (p, r, [labels, inv_t]) = (c.p(), c.r(), c.labels());
    let x = c.x("x", &[c.i.tok, c.i.d], p);
    let logits = c.b.dot(x, r, &[c.i.d]);
    let lse = c
        .all(Op::LogProb { vocab: c.i.vocab, valid: 12, axes: vec![] }, &[logits, labels, inv_t])
        [1];
    let y = c.weigh(lse);
    let g = c.b.finish(&[("loss", y)]);
    assert_eq!(grad(&g, "loss", &Recompute::None).expect_err("lse").code, "not-differentiable");
}
