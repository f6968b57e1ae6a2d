//! Between passes: the verifier is content, and printing then parsing gives the same graph.

use nrl_ir::text::{parse, print};
use nrl_ir::verify::verify;
use nrl_ir::{Graph, Mesh};
use nrl_passes::{
    FuseConfig, Recompute, Rules, Stage, State, fuse, grad, incremental, shard, simplify,
};

use crate::llama::{Config, Head, build};
use crate::sharding::tp;

pub fn sound(after: &str, g: &Graph) {
    verify(g).unwrap_or_else(|e| panic!("after {after}: {e}\n{}", print(g)));
    let text = print(g);
    let back = parse(&text).unwrap_or_else(|e| panic!("after {after}: {e}\n{text}"));
    assert!(back == *g, "after {after}: another graph\n{text}\n{}", print(&back));
}

fn through(mut g: Graph, train: bool, recompute: &Recompute, mesh: &Mesh, rules: &Rules) {
    sound("lower", &g);
    if !train {
        g = incremental(&g).expect("causal");
        sound("incremental", &g);
    }
    simplify(&mut g, if train { Stage::BeforeGrad } else { Stage::Final }).expect("simplifies");
    sound("simplify", &g);
    if train {
        g = grad(&g, "loss", recompute).expect("differentiable");
        verify(&g).unwrap_or_else(|e| panic!("after grad: {e}\n{}", print(&g)));
        simplify(&mut g, Stage::Final).expect("simplifies");
        sound("grad", &g);
    }
    let mut g = shard(&g, mesh, rules).expect("legal").graph;
    sound("shard", &g);
    let mut single = g.clone();
    fuse(&mut single, &FuseConfig::single()).expect("fuses");
    sound("fuse, single", &single);
    fuse(&mut g, &FuseConfig::default()).expect("fuses");
    sound("fuse", &g);
}

#[test]
fn every_pass_keeps_the_graph_sound() {
    let axes = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let mesh = Mesh::new(&[("dp", 2), ("fsdp", 2), ("tp", 2)]);
    let rules = Rules {
        dims: tp(),
        batch: axes(&["dp", "fsdp"]),
        state: State::Zero3(axes(&["fsdp"])),
        ..Rules::default()
    };
    let some = Recompute::Selective(axes(&["attention"]));
    for recompute in [Recompute::None, Recompute::Full, some] {
        for tied in [false, true] {
            let c = Config { tied, vocab: 11, ..Config::default() };
            through(build(&c, Head::Loss).0, true, &recompute, &mesh, &rules);
        }
    }
    through(build(&Config::default(), Head::Generate).0, false, &Recompute::None, &mesh, &rules);
}

#[test]
fn a_plain_graph_reads_well() {
    let text = print(&build(&Config::default(), Head::Generate).0);
    let wanted = [
        "  dim tok = ragged(seq) <= 64",
        "  param layers.wq : [d, q, hd] repeat layers 2 trained from \"layers.wq\" [[d], [q], [hd]]",
        "  %2 = index %1, %0 over vocab : f32[tok, d]",
        "    %15 = contract %13, %14 over [d] : f32[tok, q, hd]",
    ];
    for line in wanted {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn broken_graphs_are_found() {
    let (g, _) = build(&Config::default(), Head::Loss);
    let broken = |change: &dyn Fn(&mut Graph)| {
        let mut bad = g.clone();
        change(&mut bad);
        verify(&bad).expect_err("broken").text
    };
    assert_eq!(broken(&|g| g.body.nodes.swap(0, 2)), "%1 is not defined here");
    assert_eq!(broken(&|g| g.outputs[1] = "loss".into()), "two outputs have one name");
    assert!(
        broken(&|g| g.values[2].dims.reverse())
            .starts_with("results are f32[d, tok], the shape rule gives f32[tok, d]")
    );
    assert_eq!(
        broken(&|g| g.params[3].repeat = Some(("blocks".into(), 2))),
        "`layers.attn_norm` outside a scan over `blocks`"
    );
    assert_eq!(
        broken(&|g| g.params[3].repeat = Some(("layers".into(), 1))),
        "`layers.attn_norm` has only 1 layers"
    );
    let twice = broken(&|g| {
        let first = g.body.nodes[0].clone();
        g.body.nodes.push(first);
    });
    assert_eq!(twice, "%0 is defined twice");
}

#[test]
fn texts_that_are_no_graphs() {
    for (text, error) in [
        ("graph g {\n  return\n", "line 2: expected a name, found the end"),
        ("graph g {\n  %0 = jump : f32\n  return\n}", "line 2: no op `jump`"),
        ("graph g {\n  %0 = use w : f32\n}", "line 2: no parameter `w`"),
        ("graph g {\n  dim a = ragged(b) <= 3\n}", "line 2: no dim `b`"),
        ("graph \"g", "line 1: a text does not end on its line"),
    ] {
        assert_eq!(parse(text).expect_err("no graph").to_string(), error);
    }
}
