//! Decoding with a cache.

use std::collections::BTreeMap;

use nrl_interp::{Bindings, Tensor};
use nrl_ir::Graph;
use nrl_passes::{Stage, fuse, incremental, simplify};
use nrl_runtime::engine::KvCache;

use crate::data::*;
use crate::llama::{Config, Head, Ids, build};

pub fn bind(g: &Graph, i: &Ids, parts: &[&[usize]], bases: &[usize], slots: &[usize]) -> Bindings {
    let mut tok = vec![0];
    parts.iter().for_each(|p| tok.push(tok[tok.len() - 1] + p.len()));
    let ids: Vec<f64> = parts.iter().flat_map(|p| p.iter().map(|x| *x as f64)).collect();
    let last: Vec<f64> = tok[1..].iter().map(|t| *t as f64 - 1.0).collect();
    let n = parts.len();
    let tensor = |x: &nrl_ir::graph::Input| match x.name.as_str() {
        "ids" => Tensor { shape: vec![ids.len()], data: ids.clone() },
        _ => Tensor { shape: vec![n], data: last.clone() },
    };
    let offsets = BTreeMap::from([(i.seq, vec![0, n]), (i.tok, tok), (i.row, vec![0, n])]);
    Bindings {
        inputs: g.inputs.iter().map(tensor).collect(),
        offsets,
        bases: bases.to_vec(),
        slots: slots.to_vec(),
    }
}

#[test]
fn cached_decoding_has_the_bits_of_the_full_forward_pass() {
    for c in [
        Config::default(),
        Config { window: Some(3), d: 32, q: 6, kv: 2, hd: 16, ..Config::default() },
    ] {
        let (mut g, i) = build(&c, Head::Generate);
        simplify(&mut g, Stage::Final).expect("simplifies");
        let mut step = incremental(&g).expect("causal");
        fuse(&mut g, &nrl_passes::FuseConfig::default()).expect("fuses");
        fuse(&mut step, &nrl_passes::FuseConfig::default()).expect("fuses");
        let params = weights(&g, &mut Draw(4));
        let (a, b) = ([1, 5, 3, 7, 2, 9, 4], [2, 8, 6, 11]);
        let cache = KvCache::new(c.layers, 3, 8, c.kv * c.hd);
        let mut gen_ = Generator::new(&step, &params, cache);
        gen_.run(&bind(&step, &i, &[&a[..4], &b[..2]], &[0, 0], &[2, 0])).expect("prefill");
        gen_.run(&bind(&step, &i, &[&a[4..6], &b[2..3]], &[4, 2], &[2, 0])).expect("a chunk");
        let cached =
            gen_.run(&bind(&step, &i, &[&a[6..], &b[3..]], &[6, 3], &[2, 0])).expect("decode");
        let full = run_one(&g, 1, &bind(&g, &i, &[&a, &b], &[], &[]), &params).0.remove(0);
        assert_eq!(cached, full);
        let mut rank = nrl_interp::Rank {
            bind: bind(&g, &i, &[&a, &b], &[], &[]),
            params,
            ..Default::default()
        };
        let want = nrl_interp::run_one(&g, &mut rank).expect("the reference runs");
        close("logits", &cached, &want[0].data, 2e-5);
        let error = gen_.run(&bind(&step, &i, &[&a[..2]], &[7], &[1])).expect_err("too long");
        assert_eq!(
            error.to_string(),
            "sequence 0 needs 9 tokens in slot 1; the cache has 3 slots of 8"
        );
    }
}
