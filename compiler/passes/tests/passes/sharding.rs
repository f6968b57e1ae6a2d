//! Sharded on any mesh = one rank: outputs, and gradients once what they are owed is summed.

use nrl_interp::{Bindings, Params, Rank, Tensor, run as run_ranks};
use nrl_ir::{Graph, Mesh, ParamId};
use nrl_passes::{
    DimRule, PathRule, Recompute, Rules, Sharded, Stage, State, grad, shard, simplify,
};

use crate::common::*;
use crate::llama::{Config, Head, Ids, build};

pub fn tp() -> Vec<DimRule> {
    ["q", "kv", "f", "vocab"].map(|d| DimRule { dim: d.into(), axes: vec!["tp".into()] }).to_vec()
}

fn axes(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| n.to_string()).collect()
}

/// The part of a global parameter or gradient that `rank` stores.
pub fn place(s: &Sharded, mesh: &Mesh, rank: usize, param: ParamId, global: &Tensor) -> Tensor {
    let dims = &s.graph.param(param).dims;
    let shape: Vec<usize> = dims.iter().map(|d| size(&s.graph, *d)).collect();
    let first: Vec<usize> = dims
        .iter()
        .zip(&shape)
        .map(|(d, n)| {
            s.graph.dims.get(*d).shard.as_ref().map_or(0, |x| mesh.coord_over(rank, &x.axes) * n)
        })
        .collect();
    let mut local = Tensor::filled(shape.clone(), 0.0);
    let (strides, global_strides) = (local.strides(), global.strides());
    for i in 0..local.data.len() {
        let mut at = Some(0);
        for k in 0..shape.len() {
            let j = i / strides[k] % shape[k] + first[k];
            at = at.filter(|_| j < global.shape[k]).map(|a| a + j * global_strides[k]);
        }
        local.data[i] = at.map_or(0.0, |a| global.data[a]);
    }
    let flat = &s.layouts[param.0 as usize].flat;
    if flat.is_empty() {
        return local;
    }
    let part = local.data.len().div_ceil(mesh.size_over(flat));
    let c = mesh.coord_over(rank, flat);
    let data =
        (c * part..(c + 1) * part).map(|i| local.data.get(i).copied().unwrap_or(0.0)).collect();
    Tensor::new([part], data)
}

pub fn place_all(s: &Sharded, mesh: &Mesh, rank: usize, params: &Params) -> Params {
    params.iter().map(|(k, t)| (*k, place(s, mesh, rank, k.0, t))).collect()
}

/// Runs `s` with each rank's share of the batch; gradients come back summed over pending axes.
pub fn run_sharded(
    s: &Sharded,
    mesh: &Mesh,
    binds: Vec<Bindings>,
    params: &Params,
) -> (Vec<Vec<Tensor>>, Vec<Params>) {
    let mut ranks: Vec<Rank> = binds
        .into_iter()
        .enumerate()
        .map(|(r, bind)| Rank { bind, params: place_all(s, mesh, r, params), ..Rank::default() })
        .collect();
    let outs = run_ranks(&s.graph, mesh, &mut ranks).expect("the sharded graph runs");
    let sum = |r: usize, k: &(ParamId, usize)| {
        let group = mesh.group(r, &s.layouts[k.0.0 as usize].pending);
        let mut total = ranks[r].grads[k].clone();
        for m in group.iter().filter(|m| **m != r) {
            total.data.iter_mut().zip(&ranks[*m].grads[k].data).for_each(|(a, b)| *a += b);
        }
        total
    };
    let grads = (0..ranks.len())
        .map(|r| ranks[r].grads.keys().map(|k| (*k, sum(r, k))).collect())
        .collect();
    (outs, grads)
}

/// Rank `r`'s sequences.
pub fn share(batch: &[Sequence], mesh: &Mesh, over: &[String], r: usize) -> Vec<Sequence> {
    let n = mesh.size_over(over);
    batch
        .iter()
        .enumerate()
        .filter(|(j, _)| j % n == mesh.coord_over(r, over))
        .map(|(_, s)| s.clone())
        .collect()
}

pub fn loss_graph(c: &Config) -> (Graph, Ids) {
    let (mut g, i) = build(c, Head::Loss);
    simplify(&mut g, Stage::BeforeGrad).expect("simplifies");
    let mut g = grad(&g, "loss", &Recompute::Full).expect("differentiable");
    simplify(&mut g, Stage::Final).expect("simplifies");
    (g, i)
}

pub fn check(c: &Config, mesh: &Mesh, rules: &Rules) -> Sharded {
    let (g, i) = loss_graph(c);
    let s = shard(&g, mesh, rules).unwrap_or_else(|p| panic!("{p:?}"));
    let mut n = Numbers(5);
    let params = weights(&g, &mut n);
    let batch = sequences(&mut n, &[(2, 3), (1, 2), (3, 1), (2, 0), (1, 4)], c.vocab);
    let tokens = 10;
    let whole = run(&g, &bind_loss(&g, &i, &batch, tokens), &params);
    let shares: Vec<_> = (0..mesh.ranks()).map(|r| share(&batch, mesh, &rules.batch, r)).collect();
    let binds = shares.iter().map(|b| bind_loss(&s.graph, &i, b, tokens)).collect();
    let (outs, grads) = run_sharded(&s, mesh, binds, &params);
    for r in 0..mesh.ranks() {
        let alone = run(&g, &bind_loss(&g, &i, &shares[r], tokens), &params);
        assert!(
            close(&outs[r][0], &whole.0[0], 1e-10),
            "loss of rank {r}: {:?} {:?}",
            outs[r][0],
            whole.0[0]
        );
        assert_close("log-probs, entropies", &outs[r][1..], &alone.0[1..], 1e-10);
        let expected = place_all(&s, mesh, r, &whole.1);
        assert_same_grads(&format!("gradients of rank {r}"), &grads[r], &expected, 1e-10);
    }
    s
}

#[test]
fn data_parallel() {
    let rules =
        Rules { batch: axes(&["dp"]), state: State::Zero1(axes(&["dp"])), ..Rules::default() };
    let s = check(&Config::default(), &Mesh::new(&[("dp", 2)]), &rules);
    assert!(
        s.layouts.iter().all(|l| l.pending == ["dp"] && l.state == ["dp"] && l.flat.is_empty())
    );
    // Only the loss, as an output, is summed inside the graph.
    assert_eq!(s.report.lines.len(), 1, "{:?}", s.report);
}

#[test]
fn fully_sharded() {
    for ranks in [2, 4] {
        let rules = Rules {
            batch: axes(&["fsdp"]),
            state: State::Zero3(axes(&["fsdp"])),
            ..Rules::default()
        };
        let s = check(&Config::default(), &Mesh::new(&[("fsdp", ranks)]), &rules);
        assert!(s.layouts.iter().all(|l| l.pending.is_empty() && l.flat == ["fsdp"]));
    }
}

#[test]
fn tensor_parallel() {
    for tied in [false, true] {
        let c = Config { tied, ..Config::default() };
        let s = check(&c, &Mesh::new(&[("tp", 2)]), &Rules { dims: tp(), ..Rules::default() });
        assert!(s.layouts.iter().all(|l| l.pending.is_empty()));
        assert!(s.report.lines.iter().any(|(r, _)| r == "all_reduce over tp: `layers.wo` sums over `q`, which tp splits"), "{:?}", s.report);
    }
}

#[test]
fn three_ways_with_a_padded_vocabulary() {
    let c = Config { q: 9, kv: 3, f: 6, vocab: 11, hd: 2, tied: true, ..Config::default() };
    check(&c, &Mesh::new(&[("tp", 3)]), &Rules { dims: tp(), ..Rules::default() });
}

/// `tp` rules and tokens split where they leave the axis free.
fn sp() -> Vec<DimRule> {
    let mut rules = tp();
    rules.push(DimRule { dim: "tok".into(), axes: vec!["tp".into()] });
    rules
}

#[test]
fn sequence_parallel() {
    for (ranks, config) in [
        (2, Config::default()),
        (2, Config { tied: true, ..Config::default() }),
        (2, Config { window: Some(3), ..Config::default() }),
        (3, Config { q: 9, kv: 3, f: 6, vocab: 11, hd: 2, tied: true, ..Config::default() }),
    ] {
        let mesh = Mesh::new(&[("tp", ranks)]);
        let s = check(&config, &mesh, &Rules { dims: sp(), ..Rules::default() });
        let lines: Vec<&str> = s.report.lines.iter().map(|l| l.0.as_str()).collect();
        let has = |text: &str| lines.contains(&text);
        assert!(
            has(
                "reduce_scatter over tp: `layers.wo` sums over `q`, which tp splits, and tokens go on in parts"
            ),
            "{lines:#?}"
        );
        assert!(has("all_gather over tp: `layers.wq` needs all of `tok`"), "{lines:#?}");
        assert!(has("all_reduce over tp: a sum over `tok`, which tp splits"), "{lines:#?}");
    }
    let rules = Rules { dims: sp(), batch: axes(&["dp"]), ..Rules::default() };
    check(&Config::default(), &Mesh::new(&[("dp", 2), ("tp", 2)]), &rules);
}

/// Groups of heads cut as key/value heads are, beside every other way to cut.
#[test]
fn state_spaces_on_any_mesh() {
    let c = Config { mixer: true, ..Config::default() };
    let dp = Rules { batch: axes(&["dp"]), ..Rules::default() };
    check(&c, &Mesh::new(&[("dp", 2)]), &dp);
    check(&c, &Mesh::new(&[("tp", 2)]), &Rules { dims: tp(), ..Rules::default() });
    check(&c, &Mesh::new(&[("tp", 2)]), &Rules { dims: sp(), ..Rules::default() });
    let both = Mesh::new(&[("dp", 2), ("tp", 2)]);
    let state = State::Zero3(axes(&["dp"]));
    let rules = Rules { batch: axes(&["dp"]), dims: sp(), state, ..Rules::default() };
    check(&c, &both, &rules);
}

#[test]
fn products_of_axes() {
    let both = Mesh::new(&[("dp", 2), ("tp", 2)]);
    let rules = Rules { dims: tp(), batch: axes(&["dp"]), ..Rules::default() };
    check(&Config::default(), &both, &rules);
    let mesh = Mesh::new(&[("dp", 2), ("fsdp", 2), ("tp", 2)]);
    let rules = Rules {
        dims: tp(),
        batch: axes(&["dp", "fsdp"]),
        state: State::Zero3(axes(&["fsdp"])),
        ..Rules::default()
    };
    let s = check(&Config::default(), &mesh, &rules);
    assert!(s.layouts.iter().all(|l| l.pending == ["dp"]));
}

#[test]
fn an_axis_of_one_rank_changes_nothing() {
    let (g, _) = loss_graph(&Config::default());
    let rules = Rules {
        dims: tp(),
        batch: axes(&["dp"]),
        state: State::Zero3(axes(&["dp"])),
        ..Rules::default()
    };
    let s = shard(&g, &Mesh::new(&[("dp", 1), ("tp", 1)]), &rules).expect("legal");
    assert_eq!(s.graph, g);
    assert!(s.report.lines.is_empty());
}

#[test]
fn a_parameter_may_keep_its_own_split() {
    let path = |path: &str, dim: &str, over: &[&str]| PathRule {
        path: path.into(),
        dim: dim.into(),
        axes: axes(over),
    };
    let paths = vec![
        path("embed", "vocab", &[]),
        path("embed", "d", &["tp"]),
        path("layers[*].up", "f", &[]),
    ];
    let s = check(
        &Config::default(),
        &Mesh::new(&[("tp", 2)]),
        &Rules { dims: tp(), paths, ..Rules::default() },
    );
    assert_eq!(s.layouts[0].dims, [axes(&[]), axes(&["tp"])]);
    assert!(s.unused.is_empty());
}

#[test]
fn generation_gathers_logits() {
    let c = Config { vocab: 11, ..Config::default() };
    let (mut g, i) = build(&c, Head::Generate);
    simplify(&mut g, Stage::Final).expect("simplifies");
    let mesh = Mesh::new(&[("tp", 2)]);
    let s = shard(&g, &mesh, &Rules { dims: tp(), ..Rules::default() }).expect("legal");
    let mut n = Numbers(8);
    let params = weights(&g, &mut n);
    let mut bind = bind_loss(&g, &i, &sequences(&mut n, &[(3, 0), (2, 0)], c.vocab), 1);
    bind.offsets.insert(i.row, vec![0, 2]);
    let last = g.inputs.iter().position(|x| x.name == "last").expect("an input");
    bind.inputs[last] = Tensor::new([2], vec![2.0, 4.0]);
    let one = run(&g, &bind, &params).0;
    let (outs, _) = run_sharded(&s, &mesh, vec![bind.clone(), bind], &params);
    assert_close("logits", &outs[0], &one, 1e-12);
    assert_close("logits", &outs[1], &one, 1e-12);
}

#[test]
fn problems_name_both_numbers() {
    let (g, _) = loss_graph(&Config { q: 9, kv: 3, ..Config::default() });
    let problems = shard(&g, &Mesh::new(&[("tp", 2)]), &Rules { dims: tp(), ..Rules::default() })
        .expect_err("9 heads");
    let p = &problems[0];
    assert_eq!(
        (p.code, p.text.as_str()),
        ("heads-not-divisible", "9 attention heads cannot be split over tp = 2")
    );
    assert_eq!(p.split.as_ref().map(|s| s.legal.clone()), Some(vec![1, 3, 9]));

    let (g, _) = loss_graph(&Config { f: 9, ..Config::default() });
    let problems = shard(&g, &Mesh::new(&[("tp", 2)]), &Rules { dims: tp(), ..Rules::default() })
        .expect_err("9 columns");
    assert_eq!(problems[0].code, "dim-not-divisible");
    assert_eq!(problems[0].text, "dim `f` of size 9 cannot be split over tp = 2");

    let problems = shard(&g, &Mesh::new(&[("dp", 2)]), &Rules { dims: tp(), ..Rules::default() })
        .expect_err("no tp");
    assert_eq!(problems[0].code, "unknown-axis");
}
