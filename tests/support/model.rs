//! A checkpoint's graphs on one rank, run by either engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nrl_base::SourceMap;
use nrl_cpu::CpuEngine;
use nrl_driver::{Compiled, Files, Options, compile};
use nrl_interp::{Bindings as Bound, Rank, Tensor};
use nrl_ir::graph::Graph;
use nrl_ir::{DType, Mesh, ParamId};
use nrl_runtime::comm::World;
use nrl_runtime::engine::{Bindings, Comm, Engine, HostTensor, ParamStore, slots_of};
use nrl_runtime::hf::weights::Checkpoint;
use nrl_runtime::weights::{Stored, tensor_name};

/// Files on disk, with one of them given.
struct Given<'a>(&'a str);

impl Files for Given<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        if path == "given.nrl" {
            Ok(self.0.as_bytes().to_vec())
        } else {
            std::fs::read(path).map_err(|e| e.to_string())
        }
    }
}

/// Compiles a recipe given as text.
pub fn compile_text(text: &str, options: &Options) -> Result<Compiled, String> {
    let mut sources = SourceMap::new();
    let (compiled, found) = compile(&Given(text), &mut sources, "given.nrl", options);
    compiled.ok_or_else(|| nrlc::report::render(&found, &sources, nrlc::report::Style::PLAIN))
}

/// Supervised training on a checkpoint: its graphs are `generate` and `update`.
pub fn nll_recipe(dir: &Path, placed: &str) -> String {
    format!(
        r#"use std.{{clusters, data, models, optim, plans, sft}}
recipe r {{
  run 1 steps, seed 1
  cpus   = clusters.cpu(ranks: 1)
  mesh m = cpus axes (dp: rest)
  policy = models.load("{}")
  {placed}
  opt    = optim.adamw(lr: 1e-3)
  greedy = generator(policy, temperature: 0)
  rows   = data.made(64 rows, i -> {{prompt: "a", answer: "b"}})
  step {{
    b = rows.take(4 samples)
    update policy by opt in 1 update, minimising {{ sft.nll(policy, b) }}
  }}
}}
"#,
        dir.display()
    )
}

/// Tokens to run through a graph: every position is a row or a trained token.
pub struct Batch {
    pub sequences: Vec<Vec<u32>>,
    /// For generation graphs: positions asked for, one list per sequence.
    pub rows: Vec<Vec<usize>>,
}

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judge {
    Interp,
    Cpu,
}

/// Outputs by name, and gradients by checkpoint name.
pub struct Ran {
    pub outputs: BTreeMap<String, Vec<f64>>,
    pub grads: BTreeMap<String, Vec<f64>>,
}

/// Runs the first plan called `name` on one rank with the checkpoint's weights.
pub fn run(c: &Compiled, dir: &Path, name: &str, batch: &Batch, judge: Judge) -> Ran {
    let plan = c.plans.iter().find(|p| p.name == name).expect("a plan of that name");
    let g = &plan.classes[0].graph;
    let model = &c.program.models[0];
    let checkpoint = Checkpoint::open(dir).expect("the checkpoint opens");
    let mut weights: Vec<(ParamId, usize, String, Vec<f32>)> = vec![];
    for (i, p) in model.params.iter().enumerate() {
        let stored = Stored::new(p, &model.dims).expect("a storage order");
        for layer in 0..p.repeat.as_ref().map_or(1, |(_, n)| *n) {
            let name = tensor_name(p, layer);
            let file = checkpoint.read_f32(&name).expect("a tensor");
            weights.push((ParamId(i as u32), layer, name, stored.to_storage(&file)));
        }
    }
    let (outputs, grads) = match judge {
        Judge::Interp => on_interp(g, batch, &weights),
        Judge::Cpu => on_cpu(plan, batch, &weights),
    };
    // Gradients go back to the order of the file.
    let grads = grads
        .into_iter()
        .map(|(p, layer, data)| {
            let decl = &model.params[p.0 as usize];
            let stored = Stored::new(decl, &model.dims).expect("a storage order");
            let single: Vec<f32> = data.iter().map(|x| *x as f32).collect();
            (tensor_name(decl, layer), stored.to_file(&single).into_iter().map(f64::from).collect())
        })
        .fold(
            BTreeMap::new(),
            |mut all: BTreeMap<String, Vec<f64>>, (name, grad): (String, Vec<f64>)| {
                // Rows of one tensor come in order.
                let base =
                    nrl_ir::graph::rows_of(&name).map_or(name.clone(), |(base, _)| base.into());
                all.entry(base).or_default().extend(grad);
                all
            },
        );
    Ran { outputs: g.outputs.iter().cloned().zip(outputs).collect(), grads }
}

type Weights = [(ParamId, usize, String, Vec<f32>)];
type Results = (Vec<Vec<f64>>, Vec<(ParamId, usize, Vec<f64>)>);

/// Values of every input, and offsets of every ragged dim.
fn bound(g: &Graph, batch: &Batch) -> (Vec<Vec<f64>>, BTreeMap<nrl_ir::DimId, Vec<usize>>) {
    let starts: Vec<usize> = batch
        .sequences
        .iter()
        .scan(0, |at, s| {
            *at += s.len();
            Some(*at - s.len())
        })
        .collect();
    let ids: Vec<f64> = batch.sequences.iter().flatten().map(|i| f64::from(*i)).collect();
    let cumulative = |counts: Vec<usize>| -> Vec<usize> {
        std::iter::once(0)
            .chain(counts.into_iter().scan(0, |at, n| {
                *at += n;
                Some(*at)
            }))
            .collect()
    };
    // Every token but the last of its sequence predicts the next.
    let act: Vec<f64> = batch
        .sequences
        .iter()
        .zip(&starts)
        .flat_map(|(s, at)| (0..s.len() - 1).map(move |i| (at + i) as f64))
        .collect();
    let labels: Vec<f64> =
        batch.sequences.iter().flat_map(|s| s[1..].iter().map(|i| f64::from(*i))).collect();
    let last: Vec<f64> = batch
        .rows
        .iter()
        .zip(&starts)
        .flat_map(|(r, at)| r.iter().map(move |p| (at + p) as f64))
        .collect();
    let inputs = g
        .inputs
        .iter()
        .map(|i| match i.name.as_str() {
            "ids" => ids.clone(),
            "act" => act.clone(),
            "labels" => labels.clone(),
            "last" => last.clone(),
            "inv_temperature" => vec![1.0],
            "count.tokens" => vec![act.len() as f64],
            other => panic!("input `{other}`"),
        })
        .collect();
    let n = batch.sequences.len();
    let mut offsets = BTreeMap::new();
    for (id, d) in g.dims.iter() {
        if !g.dims.is_ragged(id) {
            continue;
        }
        let o = match d.name.as_str() {
            "tok" => cumulative(batch.sequences.iter().map(Vec::len).collect()),
            "act" => cumulative(batch.sequences.iter().map(|s| s.len() - 1).collect()),
            "seq" => (0..=n).collect(),
            "group" => vec![0, n],
            "row" => vec![0, batch.rows.iter().map(Vec::len).sum()],
            other => panic!("dim `{other}`"),
        };
        offsets.insert(id, o);
    }
    (inputs, offsets)
}

fn on_interp(g: &Graph, batch: &Batch, weights: &Weights) -> Results {
    let (inputs, offsets) = bound(g, batch);
    let mut rank = Rank::default();
    let sized = |dims: &[nrl_ir::DimId]| -> Vec<usize> {
        dims.iter()
            .map(|d| g.dims.size(*d).unwrap_or_else(|| offsets[d].last().copied().unwrap_or(0)))
            .collect()
    };
    for (p, layer, _, data) in weights {
        let shape = sized(&g.param(*p).dims);
        rank.params
            .insert((*p, *layer), Tensor::new(shape, data.iter().map(|x| f64::from(*x)).collect()));
    }
    let inputs =
        inputs.into_iter().zip(&g.inputs).map(|(x, i)| Tensor::new(sized(&i.ty.dims), x)).collect();
    let n = batch.sequences.len();
    rank.bind =
        Bound { inputs, offsets: offsets.clone(), bases: vec![0; n], slots: (0..n).collect() };
    let out = nrl_interp::run_one(g, &mut rank).expect("the reference runs");
    let grads = rank.grads.into_iter().map(|((p, l), t)| (p, l, t.data)).collect();
    (out.into_iter().map(|t| t.data).collect(), grads)
}

fn on_cpu(plan: &nrl_ir::plan::Plan, batch: &Batch, weights: &Weights) -> Results {
    let g = &plan.classes[0].graph;
    let (inputs, offsets) = bound(g, batch);
    let (first, n) = slots_of(g);
    let mut store = ParamStore { first, weights: vec![vec![]; n], grads: vec![vec![]; n] };
    for (p, layer, _, data) in weights {
        let slot = store.slot(*p, *layer);
        store.weights[slot] = data.clone();
    }
    let inputs = inputs
        .into_iter()
        .zip(&g.inputs)
        .map(|(x, i)| match i.ty.dtype {
            DType::Id(_) => HostTensor::Id(x.into_iter().map(|v| v as u32).collect()),
            _ => HostTensor::F32(x.into_iter().map(|v| v as f32).collect()),
        })
        .collect();
    let count = batch.sequences.len() as u32;
    let offsets =
        offsets.into_iter().map(|(d, o)| (d, o.into_iter().map(|x| x as u32).collect())).collect();
    let bind =
        Bindings { inputs, offsets, bases: vec![0; count as usize], slots: (0..count).collect() };
    let world = World::new(1, Duration::from_secs(60));
    let comm = Comm::new(&world.rank(0), &Mesh::new(&[("dp", 1)])).expect("a communicator");
    let mut device = CpuEngine::new().device(0, 1, 1);
    let ready = device.prepare(&Arc::new(plan.clone())).expect("the plan is prepared");
    let width = |name: &str| g.dims.find(name).and_then(|d| g.dims.size(d)).unwrap_or(1);
    let layers =
        g.params.iter().filter_map(|p| p.repeat.as_ref().map(|(_, n)| *n)).max().unwrap_or(1);
    let mut cache =
        nrl_runtime::engine::KvCache::new(layers, count as usize, 128, width("kv") * width("hd"));
    let out =
        device.run(ready, &mut store, Some(&mut cache), &bind, &comm).expect("the engine runs");
    let out = out
        .into_iter()
        .map(|t| t.f32().expect("numbers").iter().map(|x| f64::from(*x)).collect())
        .collect();
    let mut grads = vec![];
    for (p, layer, _, _) in weights {
        let slot = store.slot(*p, *layer);
        if !store.grads[slot].is_empty() {
            grads.push((*p, *layer, store.grads[slot].iter().map(|x| f64::from(*x)).collect()));
        }
    }
    (out, grads)
}
