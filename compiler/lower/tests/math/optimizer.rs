//! AdamW, schedules and clipping of `std.optim` against torch.
//!
//! An optimizer is run as the program holds it: its graph over one flat tensor per parameter, its
//! scalars as host functions of `(t, lr, decay)`; once in f64, once with every result rounded to f32.

use std::collections::BTreeMap;

use nrl_interp::{Bindings, Rank, Tensor, run_one};
use nrl_ir::host::{self, Func, Value};
use nrl_ir::program::{Optimizer, Program};
use nrl_ir::{Graph, Op, ValueId};
use serde_json::Value as Json;

use crate::support::{assert_close, fixture, items, number, numbers, program, text};

const BOUND: f64 = 1e-6;
const SIZES: [(&str, usize); 3] = [("a", 4), ("b", 6), ("c", 5)];

/// The generator's `unit(n)`: 24 bits of a multiplicative hash, in -0.5..0.5.
fn unit(n: u64) -> f64 {
    ((n.wrapping_mul(2_654_435_761) % (1 << 32)) >> 8) as f64 / f64::from(1 << 24) - 0.5
}

fn start(p: usize) -> Vec<f64> {
    (0..SIZES[p].1).map(|i| unit(7_000_000 + 1000 * p as u64 + i as u64)).collect()
}

fn gradient(update: u64, p: usize) -> Vec<f64> {
    let of = |i: usize| unit(4096 * update + 64 * p as u64 + i as u64) * (1 + p) as f64;
    (0..SIZES[p].1).map(of).collect()
}

#[test]
fn the_numbers_are_the_generators() {
    let all = fixture("optimizer");
    for (p, row) in items(&all["start"]).iter().enumerate() {
        assert_eq!(start(p), numbers(&row["value"]));
    }
    for row in items(&all["gradient_formula"]) {
        let at = |key: &str| number(&row[key]) as usize;
        let got = gradient(at("update") as u64, at("number"))[at("index")];
        assert_eq!(got, number(&row["value"]));
    }
}

fn call(f: &Func, args: &[f64]) -> f64 {
    let args: Vec<Value> = args.iter().map(|x| Value::Num(*x)).collect();
    match host::call(f, &args) {
        Ok(Value::Num(x)) => x,
        other => panic!("{} gives {other:?}", f.name),
    }
}

/// In which numbers an optimizer runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Numbers {
    F64,
    F32,
}

/// One optimizer over the three parameters.
struct Trainer<'a> {
    graph: &'a Graph,
    opt: &'a Optimizer,
    numbers: Numbers,
    /// `[parameter][w, state..]`.
    tensors: Vec<Vec<Vec<f64>>>,
}

impl<'a> Trainer<'a> {
    fn new(program: &'a Program, numbers: Numbers) -> Trainer<'a> {
        let opt = &program.optimizers[0];
        let of = |p: usize| {
            let mut t = vec![start(p)];
            t.resize(1 + opt.state.len(), vec![0.0; SIZES[p].1]);
            t
        };
        let tensors = (0..SIZES.len()).map(of).collect();
        Trainer { graph: &program.graphs[opt.graph], opt, numbers, tensors }
    }

    /// Update `t` with these gradients; `decays` says which parameters decay.
    fn step(&mut self, t: u64, grads: &[Vec<f64>], decays: &[bool]) {
        let lr = call(&self.opt.lr, &[t as f64]);
        for (p, g) in grads.iter().enumerate() {
            let mut inputs = BTreeMap::new();
            inputs.insert("g".to_string(), g.clone());
            let names = std::iter::once("w").chain(self.opt.state.iter().map(String::as_str));
            for (name, x) in names.zip(&self.tensors[p]) {
                inputs.insert(name.to_string(), x.clone());
            }
            for (i, f) in self.opt.scalars.iter().enumerate() {
                let x = call(f, &[t as f64, lr, f64::from(decays[p])]);
                inputs.insert(format!("host.{i}"), vec![x]);
            }
            self.tensors[p] = match self.numbers {
                Numbers::F64 => in_f64(self.graph, &inputs, SIZES[p].1),
                Numbers::F32 => in_f32(self.graph, &inputs, SIZES[p].1),
            };
        }
    }

    fn check(&self, what: &str, rows: &Json) {
        for (p, row) in items(rows).iter().enumerate() {
            assert_eq!(text(&row["parameter"]), SIZES[p].0);
            for (key, got) in ["value", "m", "v"].iter().zip(&self.tensors[p]) {
                let what = format!("{what}, {key} of {}, {:?}", SIZES[p].0, self.numbers);
                assert_close(&what, got, &numbers(&row[*key]), BOUND);
            }
        }
    }
}

fn in_f64(graph: &Graph, inputs: &BTreeMap<String, Vec<f64>>, n: usize) -> Vec<Vec<f64>> {
    let tensor = |i: &nrl_ir::graph::Input| {
        let shape = if i.ty.dims.is_empty() { vec![] } else { vec![n] };
        Tensor::new(shape, inputs[&i.name].clone())
    };
    let bind = Bindings {
        inputs: graph.inputs.iter().map(tensor).collect(),
        offsets: graph.dims.iter().map(|(d, _)| (d, vec![0, n])).collect(),
        ..Bindings::default()
    };
    let mut rank = Rank { bind, ..Rank::default() };
    let out = run_one(graph, &mut rank).expect("the optimizer runs");
    out.into_iter().map(|t| t.data).collect()
}

/// Every node's result rounded to f32, as an engine in f32 without fused operations has it.
fn in_f32(graph: &Graph, inputs: &BTreeMap<String, Vec<f64>>, n: usize) -> Vec<Vec<f64>> {
    let mut values: BTreeMap<ValueId, Vec<f64>> = BTreeMap::new();
    for node in &graph.body.nodes {
        let arg = |j: usize, i: usize| {
            let x = &values[&node.args[j]];
            if x.len() == 1 { x[0] } else { x[i] }
        };
        let wide = node.args.iter().any(|a| values[a].len() > 1)
            || !graph.dims_of(node.outs[0]).is_empty();
        let of = |i: usize| match &node.op {
            Op::Input { index } => inputs[&graph.inputs[*index].name][i],
            Op::Const { value } => *value,
            Op::Unary { op } => op.eval(arg(0, i)),
            Op::Binary { op } => op.eval(arg(0, i), arg(1, i)),
            Op::Broadcast { .. } => arg(0, i),
            op => panic!("`{}` in an optimizer", op.name()),
        };
        let out = (0..if wide { n } else { 1 }).map(|i| f64::from(of(i) as f32)).collect();
        values.insert(node.outs[0], out);
    }
    graph.body.results.iter().map(|r| values[r].clone()).collect()
}

fn adamw(row: &Json, lr: &str, decay: f64, clip: &str) -> Program {
    let betas = numbers(&row["betas"]);
    let line = format!(
        "opt = optim.adamw(lr: {lr}, beta1: {:?}, beta2: {:?}, eps: {:?}, weight_decay: {decay:?}{clip})",
        betas[0],
        betas[1],
        number(&row["eps"])
    );
    program("optim", &line, "")
}

/// The rows of `adamw`, up to update `last`.
fn check_adamw(last: u64, numbers: Numbers) -> usize {
    let all = fixture("optimizer");
    let mut states = 0;
    for row in items(&all["adamw"]) {
        let lr = format!("{:?}", number(&row["lr"]));
        let program = adamw(row, &lr, number(&row["decay"]), "");
        let no_decay: Vec<&str> = items(&row["no_decay"]).iter().map(text).collect();
        let decays: Vec<bool> = SIZES.iter().map(|(n, _)| !no_decay.contains(n)).collect();
        let mut trainer = Trainer::new(&program, numbers);
        for t in 1..=last {
            let grads: Vec<Vec<f64>> = (0..SIZES.len()).map(|p| gradient(t, p)).collect();
            trainer.step(t, &grads, &decays);
            let state = items(&row["states"]).iter().find(|s| number(&s["update"]) as u64 == t);
            if let Some(s) = state {
                trainer.check(&format!("{}, update {t}", text(&row["name"])), &s["parameters"]);
                states += 1;
            }
        }
    }
    states
}

#[test]
fn trap_17_adamw_is_torchs_for_1000_updates() {
    assert_eq!(check_adamw(1000, Numbers::F64), 25);
}

#[test]
fn trap_17_adamw_in_f32_is_torchs_for_1000_updates() {
    assert_eq!(check_adamw(1000, Numbers::F32), 25);
}

#[test]
fn clipping_schedule_and_adamw_together() {
    let all = fixture("optimizer");
    let row = &items(&all["together"])[0];
    let lr = format!(
        "optim.cosine({:?}, {} updates, warmup: {} updates, floor: {:?})",
        number(&row["lr"]),
        row["total"],
        row["warmup"],
        number(&row["lowest"])
    );
    let clip = format!(", clip_norm: {:?}", number(&row["clip_norm"]));
    let program = adamw(row, &lr, number(&row["decay"]), &clip);
    let limit = program.optimizers[0].clip_norm.expect("a clip norm");
    assert_eq!(limit, number(&row["clip_norm"]));
    for numbers_in in [Numbers::F64, Numbers::F32] {
        let mut trainer = Trainer::new(&program, numbers_in);
        for (i, want) in numbers(&row["norms"]).into_iter().enumerate() {
            let t = i as u64 + 1;
            let mut grads: Vec<Vec<f64>> = (0..SIZES.len()).map(|p| gradient(t, p)).collect();
            let norm = grads.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
            assert_close("norm", &[norm], &[want], BOUND);
            let factor = (limit / (norm + 1e-6)).min(1.0);
            grads.iter_mut().flatten().for_each(|g| *g *= factor);
            trainer.step(t, &grads, &[true; 3]);
        }
        trainer.check("together", &row["parameters"]);
    }
}

fn schedule(text: &str) -> Func {
    program("optim", &format!("opt = optim.sgd(lr: {text})"), "").optimizers[0].lr.clone()
}

fn written(row: &Json) -> String {
    let (lr, lowest) = (number(&row["lr"]), number(&row["lowest"]));
    let (warmup, total) = (&row["warmup"], &row["total"]);
    match (text(&row["kind"]), number(warmup) > 0.0) {
        ("constant", true) => format!("optim.warmup({lr:?}, {warmup} updates)"),
        ("constant", false) => format!("optim.constant({lr:?})"),
        (kind, _) => {
            format!(
                "optim.{kind}({lr:?}, {total} updates, warmup: {warmup} updates, floor: {lowest:?})"
            )
        }
    }
}

#[test]
fn schedules_are_torchs() {
    let all = fixture("optimizer");
    for row in items(&all["schedules"]) {
        let text = written(row);
        let f = schedule(&text);
        let got: Vec<f64> = numbers(&row["updates"]).iter().map(|t| call(&f, &[*t])).collect();
        let want = numbers(&row["rates"]);
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= 1e-8 * number(&row["lr"]), "{text}: {got:?}\n{want:?}");
        }
    }
    assert_eq!(items(&all["schedules"]).len(), 7);
}

#[test]
fn trap_19_update_1_learns_and_the_schedule_ends_where_the_run_ends() {
    let all = fixture("optimizer");
    for row in items(&all["schedules"]) {
        let text = written(row);
        let f = schedule(&text);
        let (total, lowest) = (number(&row["total"]), number(&row["lowest"]));
        assert!(call(&f, &[1.0]) > 0.0, "{text}");
        let peak = number(&row["lr"]);
        for t in 1..=total as usize {
            let lr = call(&f, &[t as f64]);
            assert!((-1e-18..=peak * (1.0 + 1e-12)).contains(&lr), "{text}: {lr} at {t}");
        }
        let end = call(&f, &[total]);
        assert!((end - lowest).abs() <= 1e-12 * peak, "{text} ends at {end}");
        assert!((call(&f, &[total + 100.0]) - end).abs() <= 1e-12 * peak, "{text} after its end");
    }
    // No schedule divides by nothing.
    for text in [
        "optim.linear(1e-3, 1 update)",
        "optim.cosine(1e-3, 5 updates, warmup: 5 updates)",
        "optim.linear(1e-3, 5 updates, warmup: 5 updates)",
        "optim.warmup(1e-3, 1 update)",
        "optim.warmup(1e-3, 0 updates)",
    ] {
        let f = schedule(text);
        assert!((1..10).all(|t| call(&f, &[f64::from(t)]).is_finite()), "{text}");
    }
}

#[test]
fn sgd_is_the_formula() {
    let program = program("optim", "opt = optim.sgd(lr: 0.5)", "");
    let mut trainer = Trainer::new(&program, Numbers::F64);
    let grads: Vec<Vec<f64>> = (0..3).map(|p| gradient(1, p)).collect();
    trainer.step(1, &grads, &[true; 3]);
    for (p, grad) in grads.iter().enumerate() {
        let want: Vec<f64> = start(p).iter().zip(grad).map(|(w, g)| w - 0.5 * g).collect();
        assert_close("sgd", &trainer.tensors[p][0], &want, 1e-15);
    }
}
