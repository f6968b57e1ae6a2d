//! The evaluator against values from torch (`tests/fixtures/numeric.json`) and from hand calculation.

use std::collections::BTreeMap;

use nrl_interp::{Bindings, Rank, Tensor, run, run_one};
use nrl_ir::dim::Shard;
use nrl_ir::op::Attention;
use nrl_ir::{Block, DType, DimId, Graph, Mesh, Op, ParamDecl, ParamId, ReduceOp, Type, ValueId};
use serde_json::Value;

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/numeric.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture is there"))
        .expect("JSON")
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn close(what: &str, a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 1e-8 * (1.0 + y.abs()), "{what}: {a:?} {b:?}");
    }
}

/// A graph of inputs and one op after another, bound as it is made.
struct Try {
    g: Graph,
    block: Block,
    bind: Bindings,
}

impl Try {
    fn new() -> Try {
        Try { g: Graph::new("try"), block: Block::default(), bind: Bindings::default() }
    }

    fn fixed(&mut self, name: &str, size: usize) -> DimId {
        self.g.dims.add_static(name, size)
    }

    fn ragged(&mut self, name: &str, owner: Option<DimId>, offsets: &[usize]) -> DimId {
        let d = self.g.dims.add_ragged(name, owner, 1000);
        self.bind.offsets.insert(d, offsets.to_vec());
        d
    }

    fn input(&mut self, ty: Type, data: Vec<f64>) -> ValueId {
        let count = |d: &DimId| {
            self.g
                .dims
                .size(*d)
                .unwrap_or_else(|| self.bind.offsets[d][self.bind.offsets[d].len() - 1])
        };
        let shape: Vec<usize> = ty.dims.iter().map(count).collect();
        self.bind.inputs.push(Tensor::new(shape, data));
        let name = format!("input{}", self.bind.inputs.len());
        self.g.input(&mut self.block, &name, ty)
    }

    fn op(&mut self, op: Op, args: &[ValueId]) -> Vec<ValueId> {
        self.g.push(&mut self.block, op, args, None).expect("fits")
    }

    fn graph(&mut self, results: &[ValueId]) -> Graph {
        let mut g = self.g.clone();
        g.body = self.block.clone();
        g.body.results = results.to_vec();
        g.outputs = (0..results.len()).map(|i| i.to_string()).collect();
        g
    }

    fn value(&mut self, v: ValueId) -> Vec<f64> {
        let g = self.graph(&[v]);
        let mut rank = Rank { bind: self.bind.clone(), ..Rank::default() };
        run_one(&g, &mut rank).expect("runs").remove(0).data
    }
}

#[test]
fn log_probabilities_and_entropies() {
    for case in fixture()["log_softmax"].as_array().expect("cases") {
        let (logits, want) = (numbers(&case["logits"]), numbers(&case["log_probs"]));
        let inv_t = 1.0 / case["temperature"].as_f64().expect("a number");
        let mut t = Try::new();
        let n = logits.len();
        let (row, vocab, d) = (t.fixed("row", n), t.fixed("vocab", n), t.fixed("d", 1));
        let repeated = (0..n).flat_map(|_| logits.clone()).collect();
        let x = t.input(Type::f32([row, vocab]), repeated);
        let labels = t.input(Type::id(vocab, [row]), (0..n).map(|i| i as f64).collect());
        let inv_t = t.input(Type::f32([]), vec![inv_t]);
        let outs = t.op(Op::LogProb { vocab, valid: n, axes: vec![] }, &[x, labels, inv_t]);
        close("log-probs", &t.value(outs[0]), &want);
        close("entropy", &t.value(outs[2])[..1], &[case["entropy"].as_f64().expect("a number")]);
        let h = t.input(Type::f32([row, d]), vec![1.0; n]);
        let w = t.input(Type::f32([vocab, d]), logits);
        let head =
            t.op(Op::LogProbHead { vocab, d, valid: n, axes: vec![] }, &[h, w, labels, inv_t]);
        close("log-probs of a head", &t.value(head[0]), &want);
    }
}

#[test]
fn rotary_embedding() {
    for case in fixture()["rotated"].as_array().expect("cases") {
        let position = case["position"].as_u64().expect("a number") as usize;
        let theta = case["theta"].as_f64().expect("a number");
        let (x, want) = (numbers(&case["input"]), numbers(&case["output"]));
        let half = x.len() / 2;
        let mut t = Try::new();
        let seq = t.ragged("seq", None, &[0, 2]);
        let tok = t.ragged("tok", Some(seq), &[0, 3, 4]);
        let hd = t.fixed("hd", x.len());
        t.bind.bases = vec![0, position];
        let rows = [vec![0.0; 3 * x.len()], x.clone()].concat();
        let v = t.input(Type::f32([tok, hd]), rows);
        let inv_freq: Vec<f64> = (0..half).map(|j| theta.powf(-(j as f64) / half as f64)).collect();
        let rope =
            |inverse| Op::Rope { tok, hd, inv_freq: inv_freq.clone().into(), scale: 1.0, inverse };
        let y = t.op(rope(false), &[v])[0];
        close("rotated", &t.value(y)[3 * x.len()..], &want);
        let back = t.op(rope(true), &[y])[0];
        close("turned back", &t.value(back)[3 * x.len()..], &x);
    }
}

#[test]
fn attention_by_hand() {
    let mut t = Try::new();
    let seq = t.ragged("seq", None, &[0, 2]);
    let tok = t.ragged("tok", Some(seq), &[0, 1, 4]);
    let (q, kv, hd) = (t.fixed("q", 2), t.fixed("kv", 1), t.fixed("hd", 1));
    // One sequence of one token, one of three; the second query head is zero: it takes means.
    let queries = t.input(Type::f32([tok, q, hd]), vec![1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    let keys = t.input(Type::f32([tok, kv, hd]), vec![5.0, 0.0, 2.0_f64.ln(), 3.0_f64.ln()]);
    let values = t.input(Type::f32([tok, kv, hd]), vec![7.0, 6.0, 3.0, 9.0]);
    let attn = Attention { tok, q, kv, hd, vd: hd, scale: 1.0, window: None.into(), ring: None };
    let o = t.op(Op::Attention { attn: attn.clone() }, &[queries, keys, values]);
    // Weights of the first head are 1; 1 : 2; 1 : 2 : 3.
    close("attention", &t.value(o[0]), &[7.0, 7.0, 6.0, 6.0, 4.0, 4.5, 39.0 / 6.0, 6.0]);
    close("normalisers", &t.value(o[1])[2..6], &[0.0, 0.0, 3.0_f64.ln(), 2.0_f64.ln()]);
    let near = t.op(
        Op::Attention { attn: Attention { window: Some(2).into(), ..attn } },
        &[queries, keys, values],
    );
    close("window of two", &t.value(near[0])[6..], &[33.0 / 5.0, 6.0]);
}

#[test]
fn segments_meet_their_items() {
    let mut t = Try::new();
    let group = t.ragged("group", None, &[0, 2]);
    let seq = t.ragged("seq", Some(group), &[0, 2, 3]);
    let tok = t.ragged("tok", Some(seq), &[0, 2, 2, 5]);
    let per_seq = t.input(Type::f32([seq]), vec![10.0, 20.0, 30.0]);
    let x = t.input(Type::f32([tok]), vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    let sum = t.op(Op::Binary { op: nrl_ir::BinaryOp::Add }, &[x, per_seq])[0];
    close("broadcast by segment", &t.value(sum), &[11.0, 12.0, 33.0, 34.0, 35.0]);
    let total = |t: &mut Try, over: &[DimId]| {
        let v = t.op(Op::Reduce { op: ReduceOp::Sum, over: over.to_vec() }, &[x])[0];
        t.value(v)
    };
    close("per sequence", &total(&mut t, &[tok]), &[3.0, 0.0, 12.0]);
    close("per group", &total(&mut t, &[tok, seq]), &[3.0, 12.0]);
    close("in all", &total(&mut t, &[tok, seq, group]), &[15.0]);
    let top = t.op(Op::Reduce { op: ReduceOp::Max, over: vec![tok] }, &[x])[0];
    assert_eq!(t.value(top), [2.0, f64::NEG_INFINITY, 5.0]);
}

#[test]
fn rounding_to_bf16() {
    for case in fixture()["bf16"]["rounded"].as_array().expect("cases") {
        let of = |key: &str| case[key].as_f64().expect("a number");
        let mut t = Try::new();
        let x = t.input(Type::f32([]), vec![of("f32")]);
        let y = t.op(Op::Cast { to: DType::Bf16 }, &[x])[0];
        assert_eq!(t.value(y), [of("bf16")]);
    }
}

#[test]
fn collectives_by_hand() {
    let mut t = Try::new();
    let part = t.fixed("f", 2);
    let full = t.fixed("f", 3);
    t.g.dims.get_mut(part).shard = Some(Shard { axes: vec!["tp".into()], global: 3 });
    t.g.params.push(ParamDecl {
        name: "w".into(),
        dims: vec![full],
        repeat: None,
        checkpoint: "w".into(),
        checkpoint_dims: vec![vec![full]],
        trained: true,
    });
    let axes = || vec!["tp".to_string()];
    let x = t.input(Type::f32([part]), vec![0.0; 2]);
    let sum =
        t.op(Op::AllReduce { op: ReduceOp::Sum, axes: axes(), reason: String::new() }, &[x])[0];
    let max =
        t.op(Op::AllReduce { op: ReduceOp::Max, axes: axes(), reason: String::new() }, &[x])[0];
    let whole =
        t.op(Op::AllGather { dim: part, full, axes: axes(), reason: String::new() }, &[x])[0];
    let again = t
        .op(Op::ReduceScatter { dim: full, part, axes: axes(), reason: String::new() }, &[whole])
        [0];
    let param = ParamId(0);
    let w = t.op(Op::GatherParam { param, axes: axes(), reason: String::new() }, &[])[0];
    t.op(Op::ScatterGrad { param, axes: axes(), reason: String::new() }, &[whole]);
    let g = t.graph(&[sum, max, whole, again, w]);
    let rank = |x: [f64; 2], w: [f64; 2]| {
        let bind = Bindings { inputs: vec![Tensor::new([2], x.to_vec())], ..Bindings::default() };
        Rank {
            bind,
            params: BTreeMap::from([((param, 0), Tensor::new([2], w.to_vec()))]),
            ..Rank::default()
        }
    };
    // The last item of the second rank is padding.
    let mut ranks = [rank([1.0, 2.0], [7.0, 8.0]), rank([3.0, 0.0], [9.0, 0.0])];
    let outs = run(&g, &Mesh::new(&[("tp", 2)]), &mut ranks).expect("runs");
    let data = |r: usize| outs[r].iter().map(|t| t.data.clone()).collect::<Vec<_>>();
    let shared = [vec![4.0, 2.0], vec![3.0, 2.0], vec![1.0, 2.0, 3.0]];
    for (r, own) in [[2.0, 4.0], [6.0, 0.0]].into_iter().enumerate() {
        assert_eq!(data(r)[..3], shared);
        assert_eq!(data(r)[3], own, "summed over both ranks, then cut");
        assert_eq!(data(r)[4], [7.0, 8.0, 9.0]);
        assert_eq!(ranks[r].grads[&(param, 0)].data, own);
    }
}

#[test]
fn what_is_not_bound_is_named() {
    let mut t = Try::new();
    let d = t.fixed("d", 2);
    let x = t.input(Type::f32([d]), vec![1.0, 2.0]);
    let g = t.graph(&[x]);
    let error = run_one(&g, &mut Rank::default()).expect_err("nothing is bound");
    assert_eq!(error.to_string(), "input `input1` is not bound");
}
