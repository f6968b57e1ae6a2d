//! What a plan says that it costs is what the engine does: the same FLOPs, bytes and collectives, to the last one.

use std::sync::Arc;
use std::time::Duration;

use nrl_cpu::{Counted, CpuEngine};
use nrl_interp::Bindings;
use nrl_ir::cost::graph_cost;
use nrl_ir::plan::Plan;
use nrl_ir::{Graph, Mesh};
use nrl_passes::{
    DimRule, Recompute, Rules, Sharded, Stage, State, fuse, grad, incremental, shard, simplify,
};
use nrl_runtime::comm::World;
use nrl_runtime::engine::{Comm, Engine, EngineError, KvCache};
use nrl_sim::Precision;
use nrl_sim::work::{Collective, Item, Kind, Sizes, Work};

use crate::data::*;
use crate::llama::{Config, Head, Ids, build};

/// (tokens before the trained ones, trained tokens).
const LENGTHS: [(usize, usize); 4] = [(2, 4), (1, 7), (3, 1), (2, 4)];

/// Sizes of a micro-batch of sequences of `lengths`, of which `scored` tokens are.
fn sizes(lengths: &[usize], scored: usize) -> Sizes {
    let tokens: usize = lengths.iter().sum();
    let seen: usize = lengths.iter().map(|n| n * (n + 1) / 2).sum();
    Sizes {
        tokens: tokens as f64,
        scored: scored as f64,
        sequences: lengths.len() as f64,
        groups: lengths.len() as f64,
        context: seen as f64 / tokens as f64,
    }
}

/// Totals over what a plan says.
fn said(work: &Work) -> Counted {
    let mut c = Counted::default();
    for (region, n) in work.regions() {
        for item in region.forward.iter().chain(&region.backward) {
            add(&mut c, item, n);
        }
    }
    c
}

fn add(c: &mut Counted, item: &Item, n: f64) {
    match &item.kind {
        Kind::Product { .. } => c.products += n * item.flops(),
        Kind::Attention { .. } => c.attention += n * item.flops(),
        Kind::Memory { bytes } => c.moved += n * item.count * bytes,
        Kind::Collective { kind, bytes, .. } => {
            let name = match kind {
                Collective::AllReduce => "all_reduce",
                Collective::AllGather => "all_gather",
                Collective::ReduceScatter => "reduce_scatter",
                Collective::GatherWeights => "gather_param",
                Collective::ScatterGradients => "scatter_grad",
                Collective::AllToAll | Collective::Ring | Collective::Send => "other",
            };
            *c.sent.entry(name).or_default() += n * item.count * bytes;
        }
    }
}

/// What one rank does, on average over all ranks of `mesh`, in one run of a sharded graph.
fn did(s: &Sharded, mesh: &Mesh, given: &Bindings) -> (Plan, Counted) {
    let plan = Arc::new(nrl_passes::schedule(s.graph.clone(), mesh, vec![]));
    let (engine, counter) = CpuEngine::counting();
    let params = weights(&s.graph, &mut Draw(3));
    let body = |rank: &nrl_runtime::comm::Rank| -> Result<(), EngineError> {
        let mut device = engine.device(rank.rank(), mesh.ranks(), 1);
        let mut store = store(&s.graph, &params);
        for (p, layout) in s.layouts.iter().enumerate() {
            let end = store.first.get(p + 1).copied().unwrap_or(store.weights.len());
            for w in &mut store.weights[store.first[p]..end] {
                // What every rank holds of it; which part does not matter to counts.
                w.truncate(w.len().div_ceil(mesh.size_over(&layout.flat)));
            }
        }
        let comm = Comm::new(rank, mesh)?;
        let ready = device.prepare(&plan)?;
        device.run(ready, &mut store, None, &bindings(&s.graph, given), &comm).map(|_| ())
    };
    World::new(mesh.ranks(), Duration::from_secs(60)).run(body).expect("the plan runs");
    let total = counter.lock().expect("no rank failed").clone();
    let n = mesh.ranks() as f64;
    let each = Counted {
        products: total.products / n,
        attention: total.attention / n,
        moved: total.moved / n,
        sent: total.sent.iter().map(|(k, x)| (*k, x / n)).collect(),
    };
    ((*plan).clone(), each)
}

fn loss_graph(c: &Config, recompute: &Recompute) -> (Graph, Ids) {
    let (mut g, i) = build(c, Head::Loss);
    simplify(&mut g, Stage::BeforeGrad).expect("simplifies");
    let mut g = grad(&g, "loss", recompute).expect("differentiable");
    simplify(&mut g, Stage::Final).expect("simplifies");
    (g, i)
}

fn axes(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_string()).collect()
}

fn agree(what: &str, got: &Counted, want: &Counted) {
    assert!(got.products > 0.0 && got.attention > 0.0 && got.moved > 0.0, "{what}: {got:?}");
    assert_eq!(got.products, want.products, "{what}: FLOPs of products");
    assert_eq!(got.attention, want.attention, "{what}: FLOPs of attention");
    assert_eq!(got.moved, want.moved, "{what}: bytes of passes over memory");
    // The head's sums are all-reduces to a plan.
    let mut sent = got.sent.clone();
    if let Some(x) = sent.remove("log_prob") {
        *sent.entry("all_reduce").or_default() += x;
    }
    assert_eq!(sent, want.sent, "{what}: bytes of collectives");
}

#[test]
fn training_does_what_its_plan_says() {
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
    let tied = Config { tied: true, ..Config::default() };
    let wide = Config { d: 24, q: 6, kv: 2, hd: 10, f: 40, layers: 3, ..Config::default() };
    let cases = [
        (Config::default(), Mesh::default(), Rules::default()),
        (tied.clone(), Mesh::default(), Rules::default()),
        (wide, Mesh::new(&[("dp", 2)]), dp.clone()),
        (Config::default(), Mesh::new(&[("fsdp", 2)]), fsdp(&[])),
        (tied, Mesh::new(&[("tp", 2)]), Rules { dims: tp.clone(), ..Rules::default() }),
        (Config::default(), Mesh::new(&[("fsdp", 2), ("tp", 2)]), fsdp(&sp)),
        (Config::default(), Mesh::new(&[("dp", 2), ("tp", 2)]), Rules { dims: tp, ..dp }),
    ];
    for (c, mesh, rules) in cases {
        for recompute in [Recompute::None, Recompute::Full] {
            let (g, i) = loss_graph(&c, &recompute);
            let mut s = shard(&g, &mesh, &rules).unwrap_or_else(|p| panic!("{p:?}"));
            fuse(&mut s.graph, &nrl_passes::FuseConfig::default()).expect("fuses");
            let batch = sequences(&mut Draw(5), &LENGTHS, c.vocab);
            let bind = bind_loss(&s.graph, &i, &batch, 16);
            let (plan, got) = did(&s, &mesh, &bind);
            let lengths: Vec<usize> = LENGTHS.iter().map(|(a, b)| a + b).collect();
            let sizes = sizes(&lengths, LENGTHS.iter().map(|(_, n)| n).sum());
            let want = said(&Work::of(&plan, &sizes, Precision::F32));
            let what = format!("{c:?} on {mesh:?}, {recompute:?}");
            agree(&what, &got, &want);
            let counts =
                |d| s.graph.dims.size(d).map_or_else(|| of(&s.graph, d, &sizes), |n| n as f64);
            let cost = graph_cost(&s.graph, &counts);
            let whole: f64 =
                got.sent.iter().filter(|(k, _)| **k != "log_prob").map(|(_, x)| x).sum();
            assert_eq!(cost.comm_bytes, whole, "{what}: bytes by `ir::cost`");
        }
    }
}

/// Size of a ragged dim; a part of `tok` has its share of the tokens.
fn of(g: &Graph, d: nrl_ir::DimId, sizes: &Sizes) -> f64 {
    let whole = g.dims.whole(d).unwrap_or(d);
    let share = g.dims.bound(d) as f64 / g.dims.bound(whole) as f64;
    share
        * match g.dims.name(whole) {
            "tok" => sizes.tokens,
            "act" => sizes.scored,
            _ => sizes.sequences,
        }
}

#[test]
fn decoding_does_what_its_plan_says() {
    let c = Config { d: 24, q: 6, kv: 2, hd: 10, f: 40, layers: 3, ..Config::default() };
    let (mut g, i) = build(&c, Head::Generate);
    simplify(&mut g, Stage::Final).expect("simplifies");
    let mut step = incremental(&g).expect("causal");
    fuse(&mut step, &nrl_passes::FuseConfig::default()).expect("fuses");
    let (engine, counter) = CpuEngine::counting();
    let plan = Arc::new(nrl_passes::schedule(step.clone(), &Mesh::default(), vec![]));
    let rank = World::new(1, Duration::from_secs(1)).rank(0);
    let comm = Comm::new(&rank, &Mesh::default()).expect("a world of one");
    let mut device = engine.device(0, 1, 2);
    let mut store = store(&step, &weights(&step, &mut Draw(4)));
    let mut cache = KvCache::new(c.layers, 3, 16, c.kv * c.hd);
    let ready = device.prepare(&plan).expect("it compiles");
    for (parts, bases) in [(&[&[1, 5, 3, 7][..], &[2, 8]][..], [0, 0]), (&[&[2], &[6]], [4, 2])] {
        *counter.lock().expect("no rank failed") = Counted::default();
        let bind = bindings(&step, &crate::generation::bind(&step, &i, parts, &bases, &[2, 0]));
        device.run(ready, &mut store, Some(&mut cache), &bind, &comm).expect("it runs");
        let tokens: usize = parts.iter().map(|p| p.len()).sum();
        let seen: usize =
            parts.iter().zip(bases).map(|(p, b)| (1..=p.len()).map(|n| n + b).sum::<usize>()).sum();
        let sizes = Sizes {
            tokens: tokens as f64,
            scored: 0.0,
            sequences: parts.len() as f64,
            groups: parts.len() as f64,
            context: seen as f64 / tokens as f64,
        };
        let want = said(&Work::of(&plan, &sizes, Precision::F32));
        let got = counter.lock().expect("no rank failed").clone();
        agree(&format!("{bases:?}"), &got, &want);
    }
}
