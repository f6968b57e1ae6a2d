//! Loss and gradients.

use nrl_interp::{Params, Rank, Tensor, run as judge};
use nrl_ir::{Graph, Mesh, ParamId};
use nrl_passes::{DimRule, Recompute, Rules, Sharded, Stage, State, fuse, grad, shard, simplify};

use crate::data::*;
use crate::llama::{Config, Head, Ids, build};

fn loss_graph(c: &Config, recompute: &Recompute) -> (Graph, Ids) {
    let (mut g, i) = build(c, Head::Loss);
    simplify(&mut g, Stage::BeforeGrad).expect("simplifies");
    let mut g = grad(&g, "loss", recompute).expect("differentiable");
    simplify(&mut g, Stage::Final).expect("simplifies");
    (g, i)
}

fn fused(g: &Graph) -> Graph {
    let mut g = g.clone();
    fuse(&mut g, &nrl_passes::FuseConfig::default()).expect("fuses");
    g
}

fn agree(what: &str, g: &Graph, got: &Got, outs: &[Tensor], grads: &Params) {
    for (k, want) in outs.iter().enumerate() {
        close(&format!("{what}, output {k}"), &got.0[k], &want.data, 2e-5);
    }
    let (first, _) = nrl_runtime::engine::slots_of(g);
    for ((p, layer), want) in grads {
        let name = &g.param(*p).name;
        close(
            &format!("{what}, gradient of {name} {layer}"),
            &got.1[first[p.0 as usize] + layer],
            &want.data,
            1e-4,
        );
    }
}

fn configs() -> Vec<Config> {
    vec![
        Config::default(),
        Config { tied: true, vocab: 33, window: Some(3), ..Config::default() },
        Config { mixer: true, ..Config::default() },
        Config { d: 24, q: 6, kv: 2, hd: 10, f: 40, layers: 3, ..Config::default() },
    ]
}

const LENGTHS: [(usize, usize); 5] = [(2, 3), (1, 2), (3, 1), (2, 0), (1, 9)];

#[test]
fn loss_and_gradients_agree_with_the_reference() {
    for c in configs() {
        for recompute in [Recompute::None, Recompute::Full] {
            let (g, i) = loss_graph(&c, &recompute);
            let mut draw = Draw(5);
            let params = weights(&g, &mut draw);
            let batch = sequences(&mut draw, &LENGTHS, c.vocab);
            let bind = bind_loss(&g, &i, &batch, 15);
            let mut rank = Rank { bind: bind.clone(), params: params.clone(), ..Rank::default() };
            let want = nrl_interp::run_one(&g, &mut rank).expect("the reference runs");
            let plain = run_one(&g, 1, &bind, &params);
            agree("unfused", &g, &plain, &want, &rank.grads);
            // Fusing and threads change no bits.
            assert!(plain == run_one(&fused(&g), 1, &bind, &params), "fused = unfused for {c:?}");
            assert!(plain == run_one(&fused(&g), 2, &bind, &params), "threads, for {c:?}");
        }
    }
}

#[test]
fn an_empty_batch_gives_no_gradient() {
    let c = Config::default();
    let (g, i) = loss_graph(&c, &Recompute::None);
    let params = weights(&g, &mut Draw(1));
    let bind = bind_loss(&g, &i, &[], 15);
    let (outs, grads) = run_one(&fused(&g), 1, &bind, &params);
    assert_eq!(outs[0], [0.0]);
    assert!(grads.iter().flatten().all(|x| *x == 0.0));
}

#[test]
fn packed_sequences_have_the_log_probs_of_each_alone() {
    let c = Config { mixer: true, ..Config::default() };
    let (g, i) = loss_graph(&c, &Recompute::None);
    let g = fused(&g);
    let mut draw = Draw(8);
    let params = weights(&g, &mut draw);
    let batch = sequences(&mut draw, &LENGTHS, c.vocab);
    let packed = run_one(&g, 1, &bind_loss(&g, &i, &batch, 15), &params).0;
    let mut alone = vec![];
    for s in &batch {
        alone.extend(
            run_one(&g, 1, &bind_loss(&g, &i, std::slice::from_ref(s), 15), &params).0[1].clone(),
        );
    }
    assert_eq!(packed[1], alone);
}

/// The part of a global parameter that `rank` stores.
fn place(s: &Sharded, mesh: &Mesh, rank: usize, param: ParamId, global: &Tensor) -> Tensor {
    let dims = &s.graph.param(param).dims;
    let shape: Vec<usize> = dims.iter().map(|d| s.graph.dims.bound(*d)).collect();
    let coord =
        |d| s.graph.dims.get(d).shard.as_ref().map_or(0, |x| mesh.coord_over(rank, &x.axes));
    let first: Vec<usize> = dims.iter().zip(&shape).map(|(d, n)| coord(*d) * n).collect();
    let mut local = Tensor { data: vec![0.0; shape.iter().product()], shape };
    let (strides, wide) = (local.strides(), global.strides());
    for x in 0..local.data.len() {
        let index: Vec<usize> =
            (0..local.shape.len()).map(|k| x / strides[k] % local.shape[k] + first[k]).collect();
        if index.iter().zip(&global.shape).all(|(i, n)| i < n) {
            local.data[x] = global.data[index.iter().zip(&wide).map(|(i, s)| i * s).sum::<usize>()];
        }
    }
    let flat = &s.layouts[param.0 as usize].flat;
    if flat.is_empty() {
        return local;
    }
    let part = local.data.len().div_ceil(mesh.size_over(flat));
    let from = mesh.coord_over(rank, flat) * part;
    let data = (from..from + part).map(|i| local.data.get(i).copied().unwrap_or(0.0)).collect();
    Tensor { shape: vec![part], data }
}

fn axes(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_string()).collect()
}

#[test]
fn meshes_agree_with_the_reference() {
    let tp: Vec<DimRule> =
        ["q", "kv", "f", "vocab"].map(|d| DimRule { dim: d.into(), axes: axes(&["tp"]) }).to_vec();
    let mut sp = tp.clone();
    sp.push(DimRule { dim: "tok".into(), axes: axes(&["tp"]) });
    let dp = Rules { batch: axes(&["dp"]), ..Rules::default() };
    let fsdp = |tp: &[DimRule]| Rules {
        dims: tp.to_vec(),
        batch: axes(&["fsdp"]),
        state: State::Zero3(axes(&["fsdp"])),
        ..Rules::default()
    };
    let odd = Config { q: 9, kv: 3, f: 6, vocab: 11, hd: 2, tied: true, ..Config::default() };
    let cases = [
        (Config::default(), Mesh::new(&[("dp", 2)]), dp.clone()),
        (Config::default(), Mesh::new(&[("fsdp", 4)]), fsdp(&[])),
        (
            Config { mixer: true, ..Config::default() },
            Mesh::new(&[("fsdp", 2), ("tp", 2)]),
            fsdp(&sp),
        ),
        (
            Config::default(),
            Mesh::new(&[("tp", 2)]),
            Rules { dims: tp.clone(), ..Rules::default() },
        ),
        (
            Config { window: Some(3), ..Config::default() },
            Mesh::new(&[("tp", 2)]),
            Rules { dims: tp.clone(), ..Rules::default() },
        ),
        (odd.clone(), Mesh::new(&[("tp", 3)]), Rules { dims: tp.clone(), ..Rules::default() }),
        (odd, Mesh::new(&[("tp", 3)]), Rules { dims: sp.clone(), ..Rules::default() }),
        (Config::default(), Mesh::new(&[("fsdp", 2), ("tp", 2)]), fsdp(&sp)),
        (Config::default(), Mesh::new(&[("dp", 2), ("tp", 2)]), Rules { dims: tp.clone(), ..dp }),
        (
            Config { tied: true, ..Config::default() },
            Mesh::new(&[("fsdp", 2), ("tp", 2)]),
            fsdp(&tp),
        ),
    ];
    for (c, mesh, rules) in cases {
        let (g, i) = loss_graph(&c, &Recompute::Full);
        let mut s = shard(&g, &mesh, &rules).unwrap_or_else(|p| panic!("{p:?}"));
        s.graph = fused(&s.graph);
        let mut draw = Draw(6);
        let params = weights(&g, &mut draw);
        let batch = sequences(&mut draw, &LENGTHS, c.vocab);
        let ranks: Vec<Rank> = (0..mesh.ranks())
            .map(|r| {
                let n = mesh.size_over(&rules.batch);
                let mine: Vec<Sequence> = batch
                    .iter()
                    .enumerate()
                    .filter(|(j, _)| j % n == mesh.coord_over(r, &rules.batch))
                    .map(|(_, s)| s.clone())
                    .collect();
                let local: Params =
                    params.iter().map(|(k, t)| (*k, place(&s, &mesh, r, k.0, t))).collect();
                Rank { bind: bind_loss(&s.graph, &i, &mine, 15), params: local, ..Rank::default() }
            })
            .collect();
        let given: Vec<_> = ranks.iter().map(|r| (r.bind.clone(), r.params.clone())).collect();
        let got = run_ranks(&s.graph, &mesh, 1, &given);
        let mut judged = ranks;
        let want = judge(&s.graph, &mesh, &mut judged).expect("the reference runs");
        for r in 0..mesh.ranks() {
            agree(&format!("rank {r} of {mesh:?}"), &s.graph, &got[r], &want[r], &judged[r].grads);
        }
    }
}
