//! Hybrids of state-space mixers, attention and experts: weights as published, depth as a few loops, parts that add up,
//! and plans of training and generation.

use std::collections::{BTreeMap, BTreeSet};

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, compile};
use nrl_ir::Op;
use nrl_ir::plan::Plan;

fn recipe(model: &str, axes: &str, plan: &str) -> String {
    format!(
        r#"use std.{{clusters, data, models, optim, plans, rewards}}

recipe r {{
  run 10 steps
  gpus   = clusters.h100(nodes: 8)
  mesh m = gpus axes ({axes})
  policy = models.load("nvidia/NVIDIA-{model}", dtype: bf16, context: 4096 tokens)
  place policy on m by {plan}
  sampler = generator(policy)
  opt  = optim.adamw(lr: 1e-5)
  rows = data.made(100 rows, i -> {{prompt: "1+1=", answer: "2"}})
  step {{
    s = sampler.generate(rows.take(64 prompts), 4 samples/prompt, max_new: 64 tokens)
    update policy by opt in 1 update, 4096 tokens/microbatch, minimising {{
      mean(-logprob(policy, s), over: tokens)
    }}
  }}
}}
"#
    )
}

fn tried(model: &str, axes: &str, plan: &str) -> (Option<Compiled>, Vec<String>) {
    let files = BTreeMap::from([("r.nrl".to_string(), recipe(model, axes, plan))]);
    let (c, found) = compile(&files, &mut SourceMap::new(), "r.nrl", &Options::default());
    let errors = found.iter().filter(|d| d.is_error());
    (c, errors.map(|d| format!("{}: {} {:?}", d.code, d.message, d.help)).collect())
}

fn compiled(model: &str, axes: &str, plan: &str) -> Compiled {
    let (c, errors) = tried(model, axes, plan);
    c.unwrap_or_else(|| panic!("{model} {axes}: {errors:?}"))
}

fn plan<'c>(c: &'c Compiled, name: &str) -> &'c Plan {
    c.plans.iter().find(|p| p.name.starts_with(name)).expect("a plan of that name")
}

fn weights(c: &Compiled) -> f64 {
    let m = &c.program.models[0];
    let one = |p: &nrl_ir::ParamDecl| {
        let n: f64 = p.dims.iter().map(|d| m.dims.bound(*d) as f64).product();
        n * p.repeat.as_ref().map_or(1.0, |(_, n)| *n as f64)
    };
    m.params.iter().map(one).sum()
}

/// Nemotron Nano 9B v2 (8.888 billion), Nemotron 3 Nano (31.578) and Super (120.669, without the
/// block for multi-token prediction), as their checkpoints and reports count them.
#[test]
fn hybrids_have_the_weights_of_their_namesakes() {
    for (model, billions, bodies) in [
        ("Nemotron-Nano-9B-v2", 8.888, 40),
        ("Nemotron-3-Nano-30B-A3B-BF16", 31.578, 14),
        ("Nemotron-3-Super-120B-A12B-BF16", 120.669, 27),
    ] {
        let c = compiled(model, "fsdp: rest", "plans.fsdp()");
        let all = weights(&c) / 1e9;
        assert!((all / billions - 1.0).abs() < 1e-3, "{model}: {all}");
        // Layers that stand in loop bodies, each with one norm in front.
        let g = &plan(&c, "update").classes[0].graph;
        let norms = g.params.iter().filter(|p| p.path() == "layers.norm").count();
        assert!(norms <= bodies, "{model}: {norms} layers in bodies");
        let layers: usize = g
            .params
            .iter()
            .filter(|p| p.path() == "layers.norm")
            .filter_map(|p| p.repeat.as_ref())
            .map(|(_, n)| n)
            .sum();
        let named: BTreeSet<String> = g
            .params
            .iter()
            .filter(|p| p.path() == "layers.norm")
            .flat_map(|p| (0..p.repeat.as_ref().map_or(1, |(_, n)| *n)).map(|i| p.tensor(i)))
            .collect();
        assert_eq!(named.len(), layers, "{model}: each layer has a name of its own");
        assert!(named.contains(&format!("backbone.layers.{}.norm.weight", layers - 1)));
    }
}

/// The rows of `in_proj` are those of its five parts, in order: gate, values, both shared sides, steps.
#[test]
fn parts_of_a_tensor_follow_one_another() {
    let c = compiled("Nemotron-3-Nano-30B-A3B-BF16", "fsdp: rest", "plans.fsdp()");
    let rows: Vec<_> = c.program.models[0]
        .params
        .iter()
        .filter(|p| p.tensor(0).starts_with("backbone.layers.0.mixer.in_proj"))
        .filter_map(|p| p.rows().map(|(_, r)| r))
        .collect();
    assert_eq!(rows, [0..4096, 4096..8192, 8192..9216, 9216..10240, 10240..10304]);
}

/// Weights that all ranks hold together, each part once.
fn together(p: &Plan) -> f64 {
    let g = &p.classes[0].graph;
    let held = p.held(0);
    let one = |(i, l): (usize, &nrl_ir::plan::ParamLayout)| {
        let local: f64 = g.params[i].dims.iter().map(|d| g.dims.bound(*d) as f64).product();
        let ranks: usize = l.dims.iter().map(|axes| p.mesh.size_over(axes)).product();
        local * (ranks / l.copies) as f64 * held[i] as f64
    };
    p.params.iter().enumerate().map(one).sum()
}

#[test]
fn a_hybrid_is_cut_by_groups_of_heads_and_experts() {
    let model = "Nemotron-3-Nano-30B-A3B-BF16";
    for axes in ["dp: rest, tp: 2, ep: 8", "dp: rest, cp: 2, tp: 8, ep: 4"] {
        let c = compiled(model, axes, "plans.megatron(sp: true)");
        assert_eq!(together(plan(&c, "update")), weights(&c), "{axes}");
    }
    let (c, errors) = tried(model, "dp: rest, tp: 16", "plans.megatron()");
    assert!(
        c.is_none() && errors[0].contains("of size 8 cannot be split over tp = 16"),
        "{errors:?}"
    );
    // 52 layers in two stages.
    let c = compiled(model, "pp: 2, dp: rest, tp: 2, ep: 4", "plans.megatron(sp: true)");
    let parts = &plan(&c, "update").pipeline.as_ref().expect("stages").parts;
    let layers: Vec<usize> = parts.iter().map(|p| p.layers.iter().map(|(_, n)| n).sum()).collect();
    assert_eq!(layers, [26, 26]);
}

/// Generation goes on from states; `run` is told that it cannot.
#[test]
fn generation_is_planned_and_not_run() {
    let c = compiled("Nemotron-3-Nano-30B-A3B-BF16", "dp: rest, tp: 2, ep: 4", "plans.megatron()");
    let mut cached = 0;
    plan(&c, "generate").classes[0].graph.body.walk(&mut |n| {
        if let Op::Ssm { ssm } = &n.op {
            assert!(ssm.cached);
            cached += 1;
        }
    });
    assert!(cached > 0);
    let later = "generation from the state of a state-space model does not run yet";
    assert!(c.not_yet.iter().any(|d| d.message == later), "{:?}", c.not_yet);
}
