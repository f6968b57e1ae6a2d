//! Numbers, batches and bindings for both engines, and runs of the cpu engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nrl_cpu::CpuEngine;
use nrl_interp::{Bindings, Params, Tensor};
use nrl_ir::plan::Plan;
use nrl_ir::{DType, DimId, Graph, Mesh, ParamId};
use nrl_runtime::comm::World;
use nrl_runtime::engine::{
    self, Comm, Engine, EngineError, HostTensor, KvCache, ParamStore, slots_of,
};

use crate::llama::Ids;

/// Numbers in -0.5..0.5 from a fixed sequence.
pub struct Draw(pub u64);

impl Draw {
    pub fn number(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((self.number() + 0.5) * n as f64) as usize % n
    }

    /// Numbers that f32 holds exactly, so that both engines start from the same.
    pub fn tensor(&mut self, shape: &[usize], scale: f64, shift: f64) -> Tensor {
        let n: usize = shape.iter().product();
        let data = (0..n).map(|_| f64::from((self.number() * scale + shift) as f32)).collect();
        Tensor { shape: shape.to_vec(), data }
    }
}

/// One sequence: ids, tokens before the trained ones, old log-probs, advantage.
#[derive(Clone)]
pub struct Sequence {
    pub ids: Vec<usize>,
    pub prompt: usize,
    pub old: Vec<f64>,
    pub adv: f64,
}

pub fn sequences(draw: &mut Draw, lengths: &[(usize, usize)], vocab: usize) -> Vec<Sequence> {
    let one = |(prompt, more): &(usize, usize)| Sequence {
        ids: (0..prompt + more).map(|_| draw.below(vocab)).collect(),
        prompt: *prompt,
        old: (0..*more).map(|_| f64::from((draw.number() - 2.5) as f32)).collect(),
        adv: f64::from((draw.number() * 3.0) as f32),
    };
    lengths.iter().map(one).collect()
}

/// Bindings of the loss for some sequences; `tokens` is the count over the whole batch.
pub fn bind_loss(g: &Graph, i: &Ids, batch: &[Sequence], tokens: usize) -> Bindings {
    let mut named: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let (mut tok, mut act) = (vec![0], vec![0]);
    for s in batch {
        let first = tok[tok.len() - 1];
        named.entry("ids").or_default().extend(s.ids.iter().map(|x| *x as f64));
        for j in s.prompt..s.ids.len() {
            named.entry("act").or_default().push((first + j - 1) as f64);
            named.entry("labels").or_default().push(s.ids[j] as f64);
        }
        named.entry("old").or_default().extend(&s.old);
        named.entry("adv").or_default().push(s.adv);
        tok.push(first + s.ids.len());
        act.push(act[act.len() - 1] + s.ids.len() - s.prompt);
    }
    named.insert("inv_temperature", vec![1.25]);
    named.insert("count.tokens", vec![tokens as f64]);
    let offsets = BTreeMap::from([(i.seq, vec![0, batch.len()]), (i.tok, tok), (i.act, act)]);
    let count = |d: &DimId| offsets[d][offsets[d].len() - 1];
    let tensor = |input: &nrl_ir::graph::Input| Tensor {
        shape: input.ty.dims.iter().map(count).collect(),
        data: named.get(input.name.as_str()).cloned().unwrap_or_default(),
    };
    Bindings {
        inputs: g.inputs.iter().map(tensor).collect(),
        offsets: offsets.clone(),
        bases: vec![],
        slots: vec![],
    }
}

/// Random weights of every parameter and layer; norms near 1.
pub fn weights(g: &Graph, draw: &mut Draw) -> Params {
    let mut out = Params::new();
    for (p, decl) in g.params.iter().enumerate() {
        let shape: Vec<usize> = decl.dims.iter().map(|d| g.dims.bound(*d)).collect();
        let scale = if shape.len() == 1 {
            (0.4, 1.0)
        } else {
            (2.0 / (g.dims.bound(decl.dims[0]) as f64).sqrt(), 0.0)
        };
        for layer in 0..decl.repeat.as_ref().map_or(1, |r| r.1) {
            out.insert((ParamId(p as u32), layer), draw.tensor(&shape, scale.0, scale.1));
        }
    }
    out
}

pub fn store(g: &Graph, params: &Params) -> ParamStore {
    let (first, total) = slots_of(g);
    let mut weights = vec![vec![]; total];
    for ((p, layer), t) in params {
        weights[first[p.0 as usize] + layer] = t.data.iter().map(|x| *x as f32).collect();
    }
    ParamStore { first, weights, grads: vec![vec![]; total] }
}

pub fn bindings(g: &Graph, b: &Bindings) -> engine::Bindings {
    let host = |(input, t): (&nrl_ir::graph::Input, &Tensor)| match input.ty.dtype {
        DType::Id(_) => HostTensor::Id(t.data.iter().map(|x| *x as u32).collect()),
        DType::F32 | DType::Bf16 => HostTensor::F32(t.data.iter().map(|x| *x as f32).collect()),
    };
    let narrow = |x: &[usize]| x.iter().map(|v| *v as u32).collect::<Vec<_>>();
    engine::Bindings {
        inputs: g.inputs.iter().zip(&b.inputs).map(host).collect(),
        offsets: b.offsets.iter().map(|(d, o)| (*d, narrow(o))).collect(),
        bases: narrow(&b.bases),
        slots: narrow(&b.slots),
    }
}

/// What one rank of the cpu engine gives: outputs, and gradients by slot.
pub type Got = (Vec<Vec<f32>>, Vec<Vec<f32>>);

/// Runs `graph` on all ranks, each with one or more threads.
pub fn run_ranks(
    graph: &Graph,
    mesh: &Mesh,
    threads: usize,
    ranks: &[(Bindings, Params)],
) -> Vec<Got> {
    let plan = Arc::new(nrl_passes::schedule(graph.clone(), mesh, vec![]));
    let engine = CpuEngine::new();
    let body = |rank: &nrl_runtime::comm::Rank| -> Result<Got, EngineError> {
        let (bind, params) = &ranks[rank.rank()];
        let mut device = engine.device(rank.rank(), mesh.ranks(), threads);
        let mut store = store(graph, params);
        let comm = Comm::new(rank, mesh)?;
        let ready = device.prepare(&plan)?;
        let bind = bindings(graph, bind);
        // Twice, so that buffers are used again; the gradients of the second run alone are kept.
        device.run(ready, &mut store, None, &bind, &comm)?;
        store.grads.iter_mut().for_each(|g| g.fill(0.0));
        let out = device.run(ready, &mut store, None, &bind, &comm)?;
        Ok((out.iter().map(|t| t.f32().unwrap_or(&[]).to_vec()).collect(), store.grads))
    };
    World::new(mesh.ranks(), Duration::from_secs(60)).run(body).expect("the plan runs")
}

pub fn run_one(graph: &Graph, threads: usize, bind: &Bindings, params: &Params) -> Got {
    run_ranks(graph, &Mesh::default(), threads, &[(bind.clone(), params.clone())]).remove(0)
}

/// One rank that keeps its cache from run to run.
pub struct Generator {
    plan: Arc<Plan>,
    device: Box<dyn engine::Device>,
    store: ParamStore,
    pub cache: KvCache,
    comm: Comm,
}

impl Generator {
    pub fn new(graph: &Graph, params: &Params, cache: KvCache) -> Generator {
        let plan = Arc::new(nrl_passes::schedule(graph.clone(), &Mesh::default(), vec![]));
        let rank = World::new(1, Duration::from_secs(1)).rank(0);
        let comm = Comm::new(&rank, &Mesh::default()).expect("a world of one");
        Generator {
            plan,
            device: CpuEngine::new().device(0, 1, 1),
            store: store(graph, params),
            cache,
            comm,
        }
    }

    pub fn run(&mut self, bind: &Bindings) -> Result<Vec<f32>, EngineError> {
        let ready = self.device.prepare(&self.plan)?;
        let bind = bindings(&self.plan.classes[0].graph, bind);
        let out =
            self.device.run(ready, &mut self.store, Some(&mut self.cache), &bind, &self.comm)?;
        Ok(out[0].f32().unwrap_or(&[]).to_vec())
    }
}

/// Panics unless `got` is `want` within `bound` of the largest number of `want`.
pub fn close(what: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().filter(|x| x.is_finite()).fold(1e-3, |m: f64, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            f64::from(*g) == *w || (f64::from(*g) - w).abs() <= bound * size,
            "{what}[{i}]: {g} for {w}"
        );
    }
}
