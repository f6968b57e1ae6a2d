//! Decoding with a cache = the full forward pass.

use std::collections::BTreeMap;

use nrl_interp::{Bindings, Rank, Tensor, run_one};
use nrl_ir::{Block, Graph, Op, ReduceOp, Type};
use nrl_passes::{Stage, incremental, simplify};

use crate::common::*;
use crate::llama::{Build, Config, Head, Ids, build, dims};

fn bind(g: &Graph, i: &Ids, parts: &[&[usize]], bases: &[usize]) -> Bindings {
    let mut tok = vec![0];
    parts.iter().for_each(|p| tok.push(tok[tok.len() - 1] + p.len()));
    let ids: Vec<f64> = parts.iter().flat_map(|p| p.iter().map(|x| *x as f64)).collect();
    let last: Vec<f64> = tok[1..].iter().map(|t| *t as f64 - 1.0).collect();
    let n = parts.len();
    let inputs = g
        .inputs
        .iter()
        .map(|x| match x.name.as_str() {
            "ids" => Tensor::new([ids.len()], ids.clone()),
            _ => Tensor::new([n], last.clone()),
        })
        .collect();
    let offsets = BTreeMap::from([(i.seq, vec![0, n]), (i.tok, tok), (i.row, vec![0, n])]);
    Bindings { inputs, offsets, bases: bases.to_vec(), slots: (0..n).collect() }
}

#[test]
fn cached_decoding_is_the_full_forward_pass() {
    for window in [None, Some(3)] {
        let c = Config { window, ..Config::default() };
        let (mut g, i) = build(&c, Head::Generate);
        simplify(&mut g, Stage::Final).expect("simplifies");
        let step = incremental(&g).expect("causal");
        let mut n = Numbers(4);
        let params = weights(&g, &mut n);
        let (a, b) = ([1, 5, 3, 7, 2, 9, 4], [2, 8, 6, 11]);
        let mut rank = Rank { params: params.clone(), ..Rank::default() };
        rank.bind = bind(&step, &i, &[&a[..4], &b[..2]], &[0, 0]);
        run_one(&step, &mut rank).expect("prefill");
        rank.bind = bind(&step, &i, &[&a[4..6], &b[2..3]], &[4, 2]);
        run_one(&step, &mut rank).expect("a chunk");
        rank.bind = bind(&step, &i, &[&a[6..], &b[3..]], &[6, 3]);
        let cached = run_one(&step, &mut rank).expect("decode");
        let full = run(&g, &bind(&g, &i, &[&a, &b], &[]), &params).0;
        assert_close("logits", &cached, &full, 1e-12);
    }
}

#[test]
fn a_mean_over_tokens_cannot_generate() {
    let mut g = Graph::new("bad");
    let i = dims(&mut g, &Config::default());
    let mut b = Build { g, block: Block::default() };
    let ids = b.input("x", Type::f32([i.tok]));
    let kv = b.input("k", Type::f32([i.tok, i.kv, i.hd]));
    let q = b.input("q", Type::f32([i.tok, i.q, i.hd]));
    let attn = nrl_ir::op::Attention {
        tok: i.tok,
        q: i.q,
        kv: i.kv,
        hd: i.hd,
        vd: i.hd,
        scale: 1.0,
        window: None.into(),
        ring: None,
    };
    let o = b.op(Op::Attention { attn }, &[q, kv, kv]);
    let total = b.op(Op::Reduce { op: ReduceOp::Sum, over: vec![i.tok] }, &[ids]);
    let o = b.mul(o, total);
    let g = b.finish(&[("o", o)]);
    let p = incremental(&g).expect_err("a sum over tokens");
    assert_eq!(p.code, "not-causal");
    assert_eq!(
        p.text,
        "`sum` mixes all tokens of `tok`, so the model cannot generate token by token"
    );
}
