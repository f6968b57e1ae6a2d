//! A model whose next token never depends on anything: logits are `w + b[0] + b[1]`, and its engine in closed form.
//!
//! Ranks, collectives, flat cuts and micro-batches are as in a real plan; only the arithmetic is written out here.

use std::sync::Arc;

use nrl_ir::dim::Dims;
use nrl_ir::graph::{Graph, ParamDecl, ParamId};
use nrl_ir::host::{Builtin, Expr, Func, Value};
use nrl_ir::mesh::Mesh;
use nrl_ir::plan::{ParamLayout, Plan, RankClass};
use nrl_ir::program::*;
use nrl_ir::types::Type;

use crate::comm::Reduce;
use crate::engine::{
    Bindings, Comm, Device, Engine, EngineError, HostTensor, KvCache, ParamStore, Prepared,
};
use crate::rank::Compiled;

/// How weights and state are cut over `n` data-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    Whole(usize),
    Zero1(usize),
    Zero3(usize),
}

const WORDS: usize = 12;

/// The engine; one rank's gradients may be NaN.
#[derive(Clone, Copy, Default)]
pub struct Bandit {
    pub poisoned: Option<usize>,
}

impl Engine for Bandit {
    fn name(&self) -> &'static str {
        "bandit"
    }

    fn device(&self, rank: usize, _: usize, _: usize) -> Box<dyn Device> {
        Box::new(OneRank { plans: vec![], poisoned: self.poisoned == Some(rank) })
    }
}

struct OneRank {
    plans: Vec<Arc<Plan>>,
    poisoned: bool,
}

impl Device for OneRank {
    fn prepare(&mut self, plan: &Arc<Plan>) -> Result<Prepared, EngineError> {
        self.plans.push(plan.clone());
        Ok(Prepared(self.plans.len() - 1))
    }

    fn run(
        &mut self,
        plan: Prepared,
        store: &mut ParamStore,
        _: Option<&mut KvCache>,
        bind: &Bindings,
        comm: &Comm,
    ) -> Result<Vec<HostTensor>, EngineError> {
        let plan = self.plans[plan.0].clone();
        let g = &plan.classes[0].graph;
        let offsets = |name: &str| &bind.offsets[&g.dims.find(name).unwrap()];
        let input =
            |name: &str| &bind.inputs[g.inputs.iter().position(|i| i.name == name).unwrap()];
        let numbers = |name: &str| input(name).f32().unwrap();
        match plan.name.as_str() {
            "generate" => {
                let rows = offsets("row")[1] as usize;
                Ok(vec![HostTensor::F32(logits(&plan, store, comm)?.repeat(rows))])
            }
            "adv" => {
                let (r, valid) = (numbers("r"), numbers("r.valid"));
                let mut adv = vec![0.0; r.len()];
                for w in offsets("seq").windows(2) {
                    let group = w[0] as usize..w[1] as usize;
                    let n: f32 = valid[group.clone()].iter().sum();
                    let mean = r[group.clone()].iter().sum::<f32>() / n.max(1.0);
                    group.for_each(|i| adv[i] = (r[i] - mean) * valid[i]);
                }
                Ok(vec![HostTensor::F32(adv)])
            }
            name => {
                let HostTensor::Id(labels) = input("labels") else { panic!("labels") };
                let l = logits(&plan, store, comm)?;
                let z: f64 = l.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
                let lp: Vec<f32> =
                    labels.iter().map(|t| (f64::from(l[*t as usize]) - z) as f32).collect();
                if name == "forward" {
                    return Ok(vec![HostTensor::F32(lp)]);
                }
                let n = numbers("count.tokens")[0];
                let weight: Vec<f32> = match name {
                    "sft" => vec![1.0 / n; labels.len()],
                    _ => {
                        let (adv, act) = (numbers("adv"), offsets("act"));
                        let of =
                            |i: u32| act.windows(2).position(|w| w[0] <= i && i < w[1]).unwrap();
                        (0..labels.len() as u32).map(|i| adv[of(i)] / n).collect()
                    }
                };
                let mut grad = vec![0.0; WORDS];
                for (t, a) in labels.iter().zip(&weight) {
                    for v in 0..WORDS {
                        let p = (f64::from(l[v]) - z).exp() as f32;
                        grad[v] += a * (p - f32::from(v as u32 == *t));
                    }
                }
                if self.poisoned && name == "update" {
                    grad[3] = f32::NAN;
                }
                accumulate(&plan, store, comm, &grad)?;
                let mut loss = [-lp.iter().zip(&weight).map(|(x, a)| x * a).sum::<f32>()];
                if let Some(all) = comm.along(&["dp".into()]) {
                    all.all_reduce(&mut loss, Reduce::Sum)?;
                }
                Ok(vec![HostTensor::F32(loss.to_vec()), HostTensor::F32(lp)])
            }
        }
    }

    fn run_flat(
        &mut self,
        _: Prepared,
        names: &[&str],
        tensors: &mut [&mut [f32]],
        scalars: &[(&str, f32)],
    ) -> Result<(), EngineError> {
        assert_eq!((names, scalars[0].0), (&["w", "g", "m"][..], "host.0"));
        let [w, g, m] = tensors else { panic!("three tensors") };
        for ((w, g), m) in w.iter_mut().zip(g.iter()).zip(m.iter_mut()) {
            *m = 0.5 * *m + g;
            *w -= scalars[0].1 * *m;
        }
        Ok(())
    }
}

/// `w + b[0] + b[1]`, gathered where the plan stores them flat.
fn logits(plan: &Plan, store: &ParamStore, comm: &Comm) -> Result<Vec<f32>, EngineError> {
    let mut sum = vec![0.0; WORDS];
    for part in &store.weights {
        let mut whole = part.clone();
        if let Some(group) = comm.along(&plan.params[0].flat) {
            whole = vec![0.0; part.len() * group.size()];
            group.all_gather(part, &mut whole)?;
        }
        sum.iter_mut().zip(whole).for_each(|(s, x)| *s += x);
    }
    Ok(sum)
}

fn accumulate(
    plan: &Plan,
    store: &mut ParamStore,
    comm: &Comm,
    grad: &[f32],
) -> Result<(), EngineError> {
    for (part, out) in store.weights.iter().zip(&mut store.grads) {
        out.resize(part.len(), 0.0);
        let mut mine = grad.to_vec();
        if let Some(group) = comm.along(&plan.params[0].flat) {
            let mut padded = grad.to_vec();
            padded.resize(part.len() * group.size(), 0.0);
            mine = vec![0.0; part.len()];
            group.reduce_scatter(&padded, &mut mine, Reduce::Sum)?;
        }
        out.iter_mut().zip(mine).for_each(|(o, x)| *o += x);
    }
    Ok(())
}

fn func(params: usize, body: Expr) -> Func {
    Func { name: "f".into(), params, locals: params, body }
}

fn num(x: f64) -> Expr {
    Expr::Const(Value::Num(x))
}

fn call(f: Builtin, args: Vec<Expr>) -> Expr {
    Expr::Call { f, args }
}

/// Two phases: two supervised steps, then ten of policy gradient for answers that hold a 7.
pub fn compiled(cut: Cut) -> Compiled {
    let (ranks, flat, state) = match cut {
        Cut::Whole(n) => (n, false, false),
        Cut::Zero1(n) => (n, false, true),
        Cut::Zero3(n) => (n, true, true),
    };
    let mesh = Mesh::new(&[("dp", ranks)]);
    let axes = |on: bool| if on { vec!["dp".to_string()] } else { vec![] };
    let layouts = |generating: bool| -> Vec<ParamLayout> {
        let one = |(p, dims): (u32, usize)| ParamLayout {
            param: ParamId(p),
            dims: vec![vec![]; dims],
            flat: axes(flat && !generating),
            state: axes(state && !generating),
            grads: axes(flat && !generating),
            pending: axes(!flat),
            copies: 1,
            reason: String::new(),
        };
        [(0, 1), (1, 2)].map(one).to_vec()
    };
    let mut dims = Dims::default();
    let vocab = dims.add_static("vocab", WORDS);
    let one = dims.add_static("one", 1);
    let param = |name: &str, repeat, dims: Vec<nrl_ir::DimId>| ParamDecl {
        name: name.into(),
        checkpoint_dims: dims.iter().map(|d| vec![*d]).collect(),
        dims,
        repeat,
        checkpoint: format!("{name}.{{i}}.weight"),
        trained: true,
    };
    let params = vec![
        param("w", None, vec![vocab]),
        param("b", Some(("layers".into(), 2)), vec![vocab, one]),
    ];
    let graphs = graphs(&dims, &params);
    let alone = Mesh::new(&[("dp", 1)]);
    let plan = |g: &Graph| {
        let (mesh, params) = match g.name.as_str() {
            "adv" | "optimizer" => (alone.clone(), vec![]),
            name => (mesh.clone(), layouts(name == "generate")),
        };
        let classes = vec![RankClass {
            name: "all".into(),
            ranks: mesh.ranks(),
            graph: g.clone(),
            frees: vec![],
        }];
        Arc::new(Plan {
            name: g.name.clone(),
            mesh,
            params,
            classes,
            collectives: vec![],
            pipeline: None,
            paired: false,
            cost: Default::default(),
            peak_bytes: 0.0,
        })
    };
    let plans = graphs.iter().map(plan).collect();
    let model = Model {
        name: "policy".into(),
        family: "bandit".into(),
        weights: Weights::Fresh { std: 0.3 },
        tokens: Tokens::Characters { alphabet: "0123456789$_".into(), eos: '$', pad: '_' },
        config: serde_json::json!({"model_type": "bandit", "vocab_size": WORDS}),
        context: 9,
        dims,
        params,
        mesh: 0,
        layouts: layouts(false),
    };
    let sampling = Sampling {
        temperature: 1.0,
        top_k: None,
        top_p: None,
        stop: vec![],
        stop_ids: vec![],
        min_new: 0,
    };
    let generator = Generator {
        name: "sampler".into(),
        model: 0,
        mesh: 0,
        sampling: sampling.clone(),
        graph: 0,
        slots: 3,
    };
    let field = |name: &str| Expr::Field { of: Box::new(Expr::Local(0)), name: name.into() };
    let seven = call(
        Builtin::Number,
        vec![call(Builtin::Contains, vec![field("completion"), Expr::Const(Value::text("7"))])],
    );
    let made = Expr::Record(vec![
        (
            "prompt".into(),
            call(
                Builtin::RandomText,
                vec![Expr::Const(Value::text("0123")), num(3.0), Expr::Local(0)],
            ),
        ),
        ("answer".into(), Expr::Const(Value::text("12"))),
    ]);
    let program = Program {
        name: "bandit".into(),
        seed: 5,
        wall_limit_s: None,
        meshes: vec![("m".into(), mesh)],
        models: vec![model],
        data: vec![Data {
            name: "problems".into(),
            source: Source::Made { rows: 10, make: func(1, made) },
            prompt: "prompt".into(),
            answer: Some("answer".into()),
            rejected: None,
            model: 0,
            chat: None,
            at_most: None,
            shuffled: true,
            bad_lines: BadLines::Error,
        }],
        optimizers: ["sft", "rl"]
            .map(|name| Optimizer {
                name: name.into(),
                lr: func(1, num(0.4)),
                clip_norm: Some(5.0),
                state: vec!["m".into()],
                graph: 4,
                scalars: vec![func(3, Expr::Local(1))],
                decay_norms: false,
            })
            .to_vec(),
        generators: vec![generator],
        rewards: vec![Reward {
            name: "score".into(),
            kind: RewardKind::Host(func(1, seven)),
            range: None,
        }],
        graphs,
        phases: vec![
            Phase {
                name: "sft".into(),
                steps: 2,
                step: supervised(),
                every: vec![],
                halts: vec![],
            },
            Phase {
                name: "rl".into(),
                steps: 10,
                step: reinforced(&sampling),
                every: vec![every(&sampling)],
                halts: vec![],
            },
        ],
    };
    Compiled { program, plans }
}

fn graphs(dims: &Dims, params: &[ParamDecl]) -> Vec<Graph> {
    let make = |name: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]| {
        let mut g = Graph::new(name);
        g.dims = dims.clone();
        g.params = params.to_vec();
        let vocab = g.dims.find("vocab").unwrap();
        let group = g.dims.add_ragged("group", None, 64);
        let seq = g.dims.add_ragged("seq", Some(group), 64);
        let tok = g.dims.add_ragged("tok", Some(seq), 40);
        let act = g.dims.add_ragged("act", Some(seq), 40);
        let row = g.dims.add_ragged("row", None, 64);
        let mut block = nrl_ir::Block::default();
        let ty = |over: &str| match over {
            "act" => Type::f32([act]),
            "seq" => Type::f32([seq]),
            "row" => Type::f32([row, vocab]),
            _ => Type::f32([]),
        };
        for (input, over) in inputs {
            let t = match *input {
                "ids" => Type::id(vocab, [tok]),
                "labels" => Type::id(vocab, [act]),
                "last" => Type::id(tok, [row]),
                _ => ty(over),
            };
            g.input(&mut block, input, t);
        }
        for (output, over) in outputs {
            let v = g.fresh(ty(over));
            block.results.push(v);
            g.outputs.push((*output).into());
        }
        g.body = block;
        g
    };
    vec![
        make("generate", &[("ids", ""), ("last", "")], &[("logits", "row")]),
        make("forward", &[("ids", ""), ("labels", "")], &[("logprob", "act")]),
        make("adv", &[("r", "seq"), ("r.valid", "seq")], &[("adv", "seq")]),
        make(
            "update",
            &[("labels", ""), ("count.tokens", ""), ("adv", "seq")],
            &[("loss", ""), ("logprob", "act")],
        ),
        make("optimizer", &[], &[]),
        make("sft", &[("labels", ""), ("count.tokens", "")], &[("loss", ""), ("logprob", "act")]),
    ]
}

fn binding(name: &str, stage: Stage, args: &[usize]) -> Binding {
    Binding { name: name.into(), stage, args: args.to_vec(), from: 0, line: 1, origin: None }
}

fn update(optimizer: usize, graph: usize, updates: usize, inputs: Vec<GraphInput>) -> Stage {
    Stage::Update {
        model: 0,
        optimizer,
        graph,
        inputs,
        temperature: 1.0,
        updates,
        epochs: 1,
        tokens: 40,
        scalars: vec![],
    }
}

fn input(name: &str, from: usize, field: Option<&str>) -> GraphInput {
    GraphInput { input: name.into(), from, field: field.map(String::from) }
}

fn supervised() -> Vec<Binding> {
    vec![
        binding("b", Stage::Take { data: 0, count: 6, complete: true }, &[]),
        binding("update", update(0, 5, 1, vec![]), &[0]),
    ]
}

fn reinforced(sampling: &Sampling) -> Vec<Binding> {
    let generate =
        Stage::Generate { generator: 0, copies: 4, max_new: None, sampling: sampling.clone() };
    let inputs = vec![input("r", 2, None), input("r.valid", 2, Some("valid"))];
    vec![
        binding("p", Stage::Take { data: 0, count: 4, complete: false }, &[]),
        binding("s", generate, &[0]),
        binding("r", Stage::Reward { reward: 0 }, &[1]),
        binding("adv", Stage::Compute { graph: 2, output: 0, inputs, scalars: vec![] }, &[1, 2]),
        binding(
            "old",
            Stage::Forward {
                model: 0,
                graph: 1,
                output: 0,
                inputs: vec![],
                temperature: 1.0,
                tokens: 40,
            },
            &[1],
        ),
        binding("update", update(1, 3, 2, vec![input("adv", 3, None)]), &[1, 3]),
    ]
}

fn every(sampling: &Sampling) -> Every {
    let evaluate = Stage::Evaluate {
        generator: 0,
        data: 0,
        limit: Some(5),
        copies: 3,
        sampling: sampling.clone(),
        max_new: Some(4),
        reward: 0,
        correct: 1.0,
    };
    let keep = Stage::Checkpoint { keep: 1, by: Some("test.accuracy".into()) };
    Every {
        period: 4,
        stages: vec![binding("test", evaluate, &[]), binding("checkpoint", keep, &[])],
    }
}
