//! Laws on random graphs: gradients, simplified, fused, sharded, printed.

use std::collections::BTreeMap;

use nrl_interp::{Bindings, Tensor};
use nrl_ir::op::Scan;
use nrl_ir::{
    BinaryOp, Block, DType, DimId, Graph, Mesh, Op, ParamId, ReduceOp, Type, UnaryOp, ValueId,
    infer,
};
use nrl_passes::{
    DimRule, FuseConfig, Recompute, Rules, Stage, State, fuse, grad, shard, simplify,
};
use proptest::prelude::*;

use crate::between::sound;
use crate::common::*;
use crate::llama::{Build, Config, Ids, dims};
use crate::sharding::run_sharded;

const F: usize = 4;

/// A graph made from a list of choices: smooth ops over tokens, sequences and static dims.
struct Maker {
    b: Build,
    i: Ids,
    pool: Vec<ValueId>,
    ids: ValueId,
    act: ValueId,
    scan_params: [ParamId; 2],
}

impl Maker {
    fn new() -> Maker {
        let mut g = Graph::new("random");
        let i = dims(&mut g, &Config { f: F, d: 3, vocab: 5, ..Config::default() });
        let mut b = Build { g, block: Block::default() };
        let embed = b.param("embed", &[i.vocab, i.d], None);
        let w = b.param("w", &[i.d, i.f], None);
        let bias = b.param("bias", &[i.f], None);
        let scan_params =
            [b.param("up", &[i.d, i.f], Some(2)), b.param("down", &[i.f, i.d], Some(2))];
        let mut pool: Vec<ValueId> = [embed, w, bias].map(|p| b.weight(p)).to_vec();
        let ids = b.input("ids", Type::id(i.vocab, [i.tok]));
        let act = b.input("act", Type::id(i.tok, [i.act]));
        pool.push(b.input("x", Type::f32([i.tok, i.d])));
        pool.push(b.input("per_act", Type::f32([i.act])));
        pool.push(b.input("per_seq", Type::f32([i.seq])));
        let embedded = b.op(Op::Index { dim: i.vocab }, &[pool[0], ids]);
        pool.push(embedded);
        Maker { b, i, pool, ids, act, scan_params }
    }

    fn dims(&self, v: ValueId) -> Vec<DimId> {
        self.b.g.dims_of(v).to_vec()
    }

    /// At most one ragged dim, at most three dims.
    fn fits(&self, op: &Op, args: &[ValueId]) -> bool {
        let Ok(types) = infer::infer(&self.b.g, op, args) else { return false };
        let dims = &types[0].dims;
        dims.len() <= 3 && dims.iter().filter(|d| self.b.g.dims.is_ragged(**d)).count() <= 1
    }

    fn try_op(&mut self, op: Op, args: &[ValueId]) {
        if self.fits(&op, args) {
            let v = self.b.op(op, args);
            self.pool.push(v);
        }
    }

    fn step(&mut self, choice: (u8, u8, u8)) {
        let pick = |n: u8| self.pool[self.pool.len() - 1 - n as usize % self.pool.len().min(9)];
        let (a, b) = (pick(choice.1), pick(choice.2));
        let i = self.i;
        match choice.0 % 12 {
            0 => self.try_op(Op::Unary { op: UnaryOp::Tanh }, &[a]),
            1 => self.try_op(Op::Unary { op: UnaryOp::Sigmoid }, &[a]),
            2 => self.try_op(Op::Unary { op: UnaryOp::Neg }, &[a]),
            3 => self.try_op(Op::Binary { op: BinaryOp::Add }, &[a, b]),
            4 => self.try_op(Op::Binary { op: BinaryOp::Mul }, &[a, b]),
            5 => self.try_op(Op::Binary { op: BinaryOp::Sub }, &[a, b]),
            6 => {
                let Some(d) = self.dims(a).get(choice.2 as usize % 3).copied() else { return };
                self.try_op(Op::Reduce { op: ReduceOp::Sum, over: vec![d] }, &[a]);
            }
            7 => {
                let other = self.dims(b);
                let over: Vec<DimId> =
                    self.dims(a).into_iter().filter(|d| other.contains(d)).collect();
                let most = 1 + choice.1 as usize % over.len().max(1);
                let over: Vec<DimId> = over.into_iter().take(most).collect();
                if !over.is_empty() && self.fits(&Op::Contract { over: over.clone() }, &[a, b]) {
                    let y = self.b.dot(a, b, &over);
                    let y = self.b.un(UnaryOp::Tanh, y);
                    self.pool.push(y);
                }
            }
            8 => self.try_op(Op::Index { dim: i.tok }, &[a, self.act]),
            9 => self.try_op(Op::Index { dim: i.vocab }, &[a, self.ids]),
            10 => {
                let to =
                    [vec![i.tok, i.d], vec![i.act, i.f], vec![i.tok, i.d, i.f], vec![i.d, i.f]];
                self.try_op(Op::Broadcast { dims: to[choice.2 as usize % 4].clone() }, &[a]);
            }
            _ => {
                let reverse = choice.2.is_multiple_of(2);
                if self.dims(a) == [i.tok, i.d]
                    && self.b.g.dims.contains(&[i.tok, i.d], &self.dims(b))
                {
                    self.scan(a, b, reverse);
                }
            }
        }
    }

    /// Two layers around `x`, which read `free` from outside.
    fn scan(&mut self, x: ValueId, free: ValueId, reverse: bool) {
        let i = self.i;
        let outer = std::mem::take(&mut self.b.block);
        let carry = self.b.g.fresh(Type::f32([i.tok, i.d]));
        self.b.block.params.push(carry);
        let [up, down] = self.scan_params.map(|p| self.b.weight(p));
        let h = self.b.mul(carry, free);
        let h = self.b.dot(h, up, &[i.d]);
        let h = self.b.un(UnaryOp::Tanh, h);
        let h = self.b.dot(h, down, &[i.f]);
        let h = self.b.add(h, carry);
        let h = self.b.un(UnaryOp::Tanh, h);
        self.b.block.results.push(h);
        let body = std::mem::replace(&mut self.b.block, outer);
        let scan = Scan { group: "layers".into(), first: 0, count: 2, reverse, carries: 1, body };
        let y = self.b.op(Op::Scan { scan: Box::new(scan) }, &[x]);
        self.pool.push(y);
    }

    /// A loss of the last values of the pool; and one without ragged dims as a second output.
    fn finish(mut self) -> (Graph, Ids) {
        let mut loss = self.b.c(0.0);
        let last: Vec<ValueId> = self.pool.iter().rev().take(3).copied().collect();
        for v in last {
            let y = self.b.un(UnaryOp::Tanh, v);
            let mut over = vec![];
            for d in self.dims(y).iter().flat_map(|d| self.b.g.dims.owners(*d)) {
                if !over.contains(&d) {
                    over.push(d);
                }
            }
            let y = self.b.sum(y, &over);
            loss = self.b.add(loss, y);
        }
        let whole =
            |v: &&ValueId| self.b.g.dims_of(**v).iter().all(|d| !self.b.g.dims.is_ragged(*d));
        let other = self.pool.iter().rev().find(whole).copied().unwrap_or(loss);
        let i = self.i;
        (self.b.finish(&[("loss", loss), ("other", other)]), i)
    }
}

/// Three sequences, or every second of them from `first`.
fn bind(g: &Graph, i: &Ids, first: usize, stride: usize) -> Bindings {
    let lengths = [(3, 2), (1, 0), (4, 3)];
    let mut n = Numbers(11);
    let (mut tok, mut act) = (vec![0], vec![0]);
    let mut data: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (s, (t, a)) in lengths.into_iter().enumerate() {
        let mut draw = |k: usize| (0..k).map(|_| 2.0 * n.next()).collect::<Vec<_>>();
        let (x, per_act, per_seq) = (draw(t * 3), draw(a), draw(1));
        let ids: Vec<f64> = draw(t).iter().map(|z| ((z + 1.0) * 2.4).floor()).collect();
        let picks: Vec<f64> =
            draw(a).iter().map(|z| ((z + 1.0) * 0.49 * t as f64).floor()).collect();
        if s % stride != first {
            continue;
        }
        let start = tok[tok.len() - 1];
        data.entry("x").or_default().extend(x);
        data.entry("per_act").or_default().extend(per_act);
        data.entry("per_seq").or_default().extend(per_seq);
        data.entry("ids").or_default().extend(ids);
        data.entry("act").or_default().extend(picks.iter().map(|p| p + start as f64));
        tok.push(start + t);
        act.push(act[act.len() - 1] + a);
    }
    let offsets = BTreeMap::from([(i.seq, vec![0, tok.len() - 1]), (i.tok, tok), (i.act, act)]);
    let inputs = g.inputs.iter().map(|x| {
        let count = |d: &DimId| offsets.get(d).map_or(3, |o| o[o.len() - 1]);
        let shape: Vec<usize> = x.ty.dims.iter().map(count).collect();
        debug_assert!(matches!(x.ty.dtype, DType::F32 | DType::Id(_)));
        Tensor::new(shape, data.get(x.name.as_str()).cloned().unwrap_or_default())
    });
    Bindings { inputs: inputs.collect(), offsets: offsets.clone(), bases: vec![], slots: vec![] }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn passes_keep_the_numbers(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 4..24), max_group in 1usize..20) {
        let mut m = Maker::new();
        choices.into_iter().for_each(|c| m.step(c));
        let (g, i) = m.finish();
        sound("making", &g);
        let params = weights(&g, &mut Numbers(13));
        let whole = bind(&g, &i, 0, 1);
        let plain = run(&g, &whole, &params);
        let mut g = g;
        simplify(&mut g, Stage::BeforeGrad).expect("simplifies");
        sound("simplify", &g);
        assert_close("simplified", &run(&g, &whole, &params).0, &plain.0, 1e-10);
        let mut back = match grad(&g, "loss", &Recompute::None) {
            Ok(back) => back,
            // No choice reached a weight.
            Err(p) => { prop_assert_eq!(p.code, "nothing-to-train"); return Ok(()) }
        };
        let reference = run(&back, &whole, &params);
        let error = finite_difference_error(&g, &whole, &params, &reference.1, 3);
        prop_assert!(error < 1e-4, "gradients differ by {}", error);
        let full = grad(&g, "loss", &Recompute::Full).expect("differentiable");
        assert_same_grads("recomputed", &run(&full, &whole, &params).1, &reference.1, 1e-10);
        simplify(&mut back, Stage::Final).expect("simplifies");
        sound("grad", &back);
        assert_same_grads("simplified gradients", &run(&back, &whole, &params).1, &reference.1, 1e-10);
        let mut fused = back.clone();
        fuse(&mut fused, &FuseConfig { max_group, max_edges: 12 }).expect("fuses");
        sound("fuse", &fused);
        let out = run(&fused, &whole, &params);
        assert_close("fused", &out.0, &reference.0, 1e-10);
        assert_same_grads("fused gradients", &out.1, &reference.1, 1e-10);

        let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]);
        let dp = vec!["dp".to_string()];
        let rules = Rules {
            dims: vec![DimRule { dim: "f".into(), axes: vec!["tp".into()] }],
            paths: vec![],
            batch: dp.clone(),
            ring: vec![],
            state: if max_group.is_multiple_of(2) { State::Zero3(dp) } else { State::Zero1(dp) },
        };
        let s = shard(&back, &mesh, &rules).expect("legal");
        sound("shard", &s.graph);
        let binds = (0..4).map(|r| bind(&s.graph, &i, r / 2, 2)).collect();
        let (outs, grads) = run_sharded(&s, &mesh, binds, &params);
        for r in 0..4 {
            assert_close("sharded", &outs[r], &reference.0, 1e-9);
            let expected = crate::sharding::place_all(&s, &mesh, r, &reference.1);
            assert_same_grads("sharded gradients", &grads[r], &expected, 1e-9);
        }
    }
}
