//! Elaborating a function, running it on a small batch, reading the reference values.

use std::collections::BTreeMap;

use nrl_base::{Problems, SourceMap};
use nrl_interp::{Bindings, Params, Rank, Tensor, run_one};
use nrl_ir::program::Program;
use nrl_ir::{Graph, ParamId};
use nrl_lower::{Options, lower, lower_fn};
use nrl_passes::{Recompute, grad};
use serde_json::Value as Json;

/// A file of the repository as JSON, if it is there.
pub fn json(path: &str) -> Option<Json> {
    let full = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(full).ok()?;
    Some(serde_json::from_str(&text).expect("the file is JSON"))
}

pub fn fixture(name: &str) -> Json {
    json(&format!("tests/fixtures/{name}.json"))
        .expect("the reference values are in the repository")
}

pub fn number(v: &Json) -> f64 {
    v.as_f64().expect("a number")
}

pub fn numbers(v: &Json) -> Vec<f64> {
    items(v).iter().map(number).collect()
}

pub fn items(v: &Json) -> &[Json] {
    v.as_array().expect("a list")
}

pub fn text(v: &Json) -> &str {
    v.as_str().expect("a text")
}

/// How many samples each group has, and how many trained tokens each sample.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub groups: Vec<usize>,
    pub tokens: Vec<usize>,
}

impl Batch {
    /// Samples of the given lengths, all of one group.
    pub fn of(tokens: &[usize]) -> Batch {
        Batch { groups: vec![tokens.len()], tokens: tokens.to_vec() }
    }
}

/// Outputs and gradients by name.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    pub outputs: BTreeMap<String, Vec<f64>>,
    pub grads: BTreeMap<String, Vec<f64>>,
}

impl Tried {
    pub fn loss(&self) -> f64 {
        self.outputs["loss"][0]
    }
}

fn shown(problems: Problems, sources: &SourceMap) -> Vec<String> {
    let of = |d: &nrl_base::Diagnostic| {
        let at = d.labels.first().map_or("", |l| sources.text(l.span));
        format!("{}: {} at `{at}`; {:?}", d.code, d.message, d.help)
    };
    problems.into_sorted().iter().map(of).collect()
}

/// Function `name` of the module `text`, with the gradient of its loss by `trained`.
pub fn graph(text: &str, name: &str, trained: &[&str]) -> Graph {
    let files = BTreeMap::from([("test.nrl".to_string(), text.to_string())]);
    let mut sources = SourceMap::new();
    let (graph, problems) = lower_fn(&files, &mut sources, "test.nrl", name, trained);
    let problems = shown(problems, &sources);
    assert!(problems.is_empty(), "{problems:#?}\n{text}");
    let graph = graph.expect("no problem, so a graph");
    match trained {
        [] => graph,
        _ => grad(&graph, "loss", &Recompute::None).expect("the loss has a gradient"),
    }
}

/// Runs `graph` on `batch`. `x.valid` is 1 unless it is among the values; counts follow from the
/// batch unless they are. Weights without a gradient have gradient 0.
pub fn run(graph: &Graph, batch: &Batch, values: &[(&str, Vec<f64>)]) -> Tried {
    let given: BTreeMap<&str, &Vec<f64>> = values.iter().map(|(n, v)| (*n, v)).collect();
    let running = |sizes: &[usize]| {
        let mut out = vec![0];
        out.extend(sizes.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }));
        out
    };
    let mut bind = Bindings::default();
    for (id, dim) in graph.dims.iter() {
        let offsets = match dim.name.as_str() {
            "act" => running(&batch.tokens),
            "seq" => running(&batch.groups),
            _ => vec![0, batch.groups.len()],
        };
        bind.offsets.insert(id, offsets);
    }
    let shape = |dims: &[nrl_ir::DimId]| -> Vec<usize> {
        dims.iter().map(|d| bind.offsets[d].last().copied().unwrap_or(0)).collect()
    };
    let known = |name: &str, n: usize| -> Vec<f64> {
        if let Some(v) = given.get(name) {
            return v.to_vec();
        }
        match name {
            "count.tokens" => vec![batch.tokens.iter().sum::<usize>() as f64],
            "count.samples" => vec![batch.tokens.iter().filter(|n| **n > 0).count() as f64],
            "count.groups" => vec![batch.groups.len() as f64],
            _ if name.ends_with(".valid") => vec![1.0; n],
            _ => panic!("no value for `{name}`"),
        }
    };
    let tensor = |name: &str, dims: &[nrl_ir::DimId]| {
        let shape = shape(dims);
        let n = shape.iter().product();
        let data = known(name, n);
        assert_eq!(data.len(), n, "`{name}` has the wrong number of values");
        Tensor::new(shape, data)
    };
    let inputs = graph.inputs.iter().map(|i| tensor(&i.name, &i.ty.dims)).collect();
    let mut params = Params::new();
    for (p, decl) in graph.params.iter().enumerate() {
        params.insert((ParamId(p as u32), 0), tensor(&decl.name, &decl.dims));
    }
    bind.inputs = inputs;
    let mut rank = Rank { bind, params, ..Rank::default() };
    let outputs = run_one(graph, &mut rank).expect("the graph runs");
    let outputs = graph.outputs.iter().cloned().zip(outputs.into_iter().map(|t| t.data)).collect();
    let mut grads = BTreeMap::new();
    for (p, decl) in graph.params.iter().enumerate() {
        let key = (ParamId(p as u32), 0);
        let zero = || vec![0.0; rank.params[&key].data.len()];
        let g = rank.grads.get(&key).map_or_else(zero, |t| t.data.clone());
        grads.insert(decl.name.clone(), g);
    }
    Tried { outputs, grads }
}

/// `|a - b| <= bound`, relative for numbers above 1; equal NaNs and infinities are close.
pub fn close(a: f64, b: f64, bound: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound * (1.0_f64).max(b.abs())
}

pub fn assert_close(what: &str, got: &[f64], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let bad = got.iter().zip(want).position(|(a, b)| !close(*a, *b, bound));
    assert!(bad.is_none(), "{what}, item {}:\n{got:?}\n{want:?}", bad.unwrap_or(0));
}

/// A recipe over eight rows of data with these lines and this line in its step.
fn elaborated(uses: &str, lines: &str, step: &str) -> (Program, Vec<String>) {
    let text = format!(
        "use std.{{data, {uses}}}\nrecipe test {{\n  rows = data.made(8 rows, i -> {{prompt: \"0\", answer: \"1\"}})\n  {lines}\n  step {{\n    b = rows.take(8 samples)\n    {step}\n  }}\n}}\n"
    );
    let files = BTreeMap::from([("test.nrl".to_string(), text)]);
    let mut sources = SourceMap::new();
    let (lowered, problems) = lower(&files, &mut sources, "test.nrl", &Options::default());
    (lowered.program, shown(problems, &sources))
}

/// The program of such a recipe, which must have no problem.
pub fn program(uses: &str, lines: &str, step: &str) -> Program {
    let (program, mut problems) = elaborated(uses, lines, step);
    // Tests bind what only they look at.
    problems.retain(|p| !p.starts_with("setting-has-no-effect"));
    assert!(problems.is_empty(), "{problems:#?}\n{lines}\n{step}");
    program
}

/// The problems of such a recipe.
pub fn problems(uses: &str, lines: &str, step: &str) -> Vec<String> {
    elaborated(uses, lines, step).1
}

/// What keeps function `name` of the module `text` from being tried.
pub fn refusal(text: &str, name: &str, trained: &[&str]) -> Vec<String> {
    let files = BTreeMap::from([("test.nrl".to_string(), text.to_string())]);
    let mut sources = SourceMap::new();
    let (graph, problems) = lower_fn(&files, &mut sources, "test.nrl", name, trained);
    assert!(graph.is_none(), "{text}");
    shown(problems, &sources)
}
