//! From a compiled recipe and its forecast to a [`Report`].
//!
//! In: programs, plans and forecasts. Out: the plain data that every view shows. Nothing is predicted here:
//! numbers are taken over, summed and divided.

use nrl_base::{SourceId, SourceMap};
use nrl_driver::Compiled;
use nrl_ir::program::{Model as Declared, Stage as Kind, Weights};
use nrl_sim::forecast::{Estimate, Forecast};

use super::data::*;

/// What clusters of ranks that are threads are called.
pub const THREADS: &str = "threads of this process";

/// What a report is made of.
#[derive(Clone, Copy)]
pub struct Made<'a> {
    pub compiled: &'a Compiled,
    /// None where ranks are threads of this process.
    pub forecast: Option<&'a Forecast>,
    pub sources: &'a SourceMap,
    pub file: &'a str,
}

impl Report {
    /// The report of a recipe; what could be changed is left out.
    pub fn of(made: &Made<'_>) -> Report {
        let c = made.compiled;
        let mut report = Report {
            version: VERSION,
            recipe: c.program.name.clone(),
            file: made.file.into(),
            clusters: clusters(c),
            models: (0..c.program.models.len()).map(|i| model(c, i)).collect(),
            memory: memory(made),
            graphs: graphs(c),
            settings: settings(c),
            ..Report::default()
        };
        if let Some(f) = made.forecast {
            report.steps = f.steps.iter().map(|s| step(made, s)).collect();
            report.collectives = f.steps.iter().flat_map(|s| &s.traffic).map(collective).collect();
            report.assumptions = f.assumed.iter().map(assumption).collect();
            report.not_modelled = f.not_modelled.clone();
            report.not_modelled.extend(untimed(c, f));
        }
        let meshes = (0..c.program.meshes.len()).filter(|i| used(made, *i));
        report.layouts = meshes.map(|i| layout(made, i)).collect();
        report.run = run(made, &report);
        super::detail::add(made, &mut report);
        report
    }
}

/// What settings of a framework do to the plan.
fn settings(c: &Compiled) -> Vec<String> {
    let mut out = c.framework.notes.clone();
    if c.framework.unused_reference
        && let Some(m) = c.program.models.first()
    {
        let saved = 2.0 * parameters(m) / 1_073_741_824.0;
        out.push(format!(
            "`loss_fn.reference_policy_kl_penalty` is 0: no reference is loaded or run, which saves {saved:.2} GiB in bf16"
        ));
    }
    out
}

fn clusters(c: &Compiled) -> Vec<Cluster> {
    let one = |x: &nrl_lower::facts::ClusterFacts| {
        let d = &x.device;
        let pool_of = x.part_of.and_then(|(i, _)| Some(c.facts.clusters.get(i)?.name.clone()));
        Cluster {
            name: x.name.clone(),
            device: if d.gpu { d.name.clone() } else { THREADS.into() },
            devices: x.ranks,
            per_node: x.per_node,
            memory_bytes: d.memory_bytes,
            flops_per_second: d.flops,
            memory_bytes_per_second: d.bandwidth,
            link_bytes_per_second: d.link,
            network_bytes_per_second: d.network,
            pool_of,
        }
    };
    c.facts.clusters.iter().map(one).collect()
}

/// Number of weights of a model.
pub fn parameters(m: &Declared) -> f64 {
    let one = |p: &nrl_ir::graph::ParamDecl| {
        let layers = p.repeat.as_ref().map_or(1, |(_, n)| *n) as f64;
        layers * p.dims.iter().map(|d| m.dims.bound(*d) as f64).product::<f64>()
    };
    m.params.iter().map(one).sum()
}

fn model(c: &Compiled, i: usize) -> Model {
    let m = &c.program.models[i];
    let config = |key: &str| m.config.get(key).and_then(serde_json::Value::as_u64);
    let (checkpoint, frozen) = match &m.weights {
        Weights::Directory { path } => (Some(path.clone()), false),
        Weights::Fresh { .. } => (None, false),
        Weights::Frozen { of, .. } => match &c.program.models[*of].weights {
            Weights::Directory { path } => (Some(path.clone()), true),
            _ => (None, true),
        },
    };
    let layers = m.params.iter().filter_map(|p| p.repeat.as_ref().map(|(g, n)| (g, n * p.apart())));
    let mut groups: Vec<(&String, usize)> = layers.collect();
    groups.sort();
    groups.dedup();
    Model {
        name: m.name.clone(),
        checkpoint: checkpoint.map(|path| name_of(&path)),
        family: m.family.clone(),
        parameters: parameters(m),
        layers: groups.iter().map(|(_, n)| n).sum(),
        heads: config("num_attention_heads"),
        kv_heads: config("num_key_value_heads"),
        context_tokens: m.context,
        dtype: if bf16(c, i) { "bf16".into() } else { "f32".into() },
        mesh: c.program.meshes[m.mesh].0.clone(),
        frozen,
    }
}

/// `meta-llama/Llama-3.1-8B` of a path that ends so.
fn name_of(path: &str) -> String {
    let parts: Vec<&str> = path.trim_end_matches('/').rsplitn(3, '/').take(2).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

/// Is a model stored in bf16? A frozen copy is stored as what it copies.
pub fn bf16(c: &Compiled, model: usize) -> bool {
    let own = |i: usize| c.facts.models.get(i).is_some_and(|m| m.bf16);
    match c.program.models[model].weights {
        Weights::Frozen { of, .. } => own(of) || own(model),
        _ => own(model),
    }
}

fn mesh_name(c: &Compiled, mesh: usize) -> String {
    c.program.meshes.get(mesh).map_or_else(String::new, |(name, _)| name.clone())
}

/// The line of a node's origin.
fn line(sources: &SourceMap, origin: Option<(u32, u32, u32)>) -> Option<usize> {
    let (source, start, _) = origin?;
    Some(sources.get(SourceId(source))?.position(start as usize).line)
}

fn memory(made: &Made<'_>) -> Memory {
    let c = made.compiled;
    let all = match made.forecast {
        Some(f) => f.memory.clone(),
        None => nrl_driver::memory(c),
    };
    let stage = |m: &nrl_sim::Memory| Stage {
        name: m.stage.clone(),
        mesh: mesh_name(c, m.mesh),
        line: line(made.sources, m.origin),
        device: m.device.name.clone(),
        device_bytes: m.device.memory,
        bytes: m.sum(),
        margin_bytes: m.margin(),
        share: m.sum() / m.device.memory,
        terms: m
            .terms
            .iter()
            .map(|t| Term { name: t.name.to_string(), bytes: t.bytes, how: t.how.clone() })
            .collect(),
        first_step: m.when.first,
        period: m.when.period,
    };
    let stages: Vec<Stage> = all.iter().map(stage).collect();
    let least = |a: &&Stage, b: &&Stage| a.margin_bytes.total_cmp(&b.margin_bytes);
    let tightest = stages.iter().min_by(least).map(|s| s.name.clone());
    Memory {
        fits: stages.iter().all(|s| s.margin_bytes >= 0.0),
        tightest: tightest.and_then(|t| stages.iter().position(|s| s.name == t)),
        stages,
        hosts: super::hosts::hosts(c),
    }
}

fn step(made: &Made<'_>, s: &nrl_sim::forecast::Step) -> Step {
    let total = s.seconds.value;
    let each: f64 = s.phases.iter().map(|p| p.seconds.value).sum();
    // Phases that are longer together than the step run beside each other, on pools of their own.
    let beside = each > 1.001 * total;
    let mut ends: Vec<(Option<usize>, f64)> = vec![];
    let mut phases = vec![];
    for p in &s.phases {
        let cluster = made.compiled.facts.meshes.get(p.mesh).and_then(|m| m.cluster);
        let lane = if beside { cluster } else { None };
        let at = match ends.iter().position(|(l, _)| *l == lane) {
            Some(at) => at,
            None => {
                ends.push((lane, 0.0));
                ends.len() - 1
            }
        };
        let start = ends[at].1;
        ends[at].1 += p.seconds.value;
        phases.push(phase(made, p, start, total));
    }
    let flops: f64 = s.phases.iter().map(|p| p.flops).sum();
    let devices = made.forecast.map_or(1, |f| f.devices).max(1) as f64;
    let peak = made
        .compiled
        .facts
        .clusters
        .iter()
        .filter(|x| x.device.gpu && x.part_of.is_none())
        .map(|x| x.device.flops * x.ranks as f64)
        .sum::<f64>();
    // Threads have no data sheet: what they do at best is in the share that phases reach.
    let reached = |p: &nrl_sim::forecast::Phase| Some(p.flops / (p.mfu? * p.seconds.value));
    let peak = if peak > 0.0 { peak } else { s.phases.iter().find_map(reached).unwrap_or(0.0) };
    let updates = s.phases.iter().filter(|p| p.bubble > 0.0);
    let (waits, long) =
        updates.fold((0.0, 0.0), |(w, l), p| (w + p.bubble * p.seconds.value, l + p.seconds.value));
    Step {
        name: s.name.clone(),
        steps: s.steps,
        seconds: Number::of(s.seconds),
        dominant: dominant(&phases),
        phases,
        samples: s.samples,
        tokens: s.tokens,
        tokens_per_second_per_device: if total > 0.0 { s.tokens / total / devices } else { 0.0 },
        mfu: if peak * total > 0.0 { flops / (peak * total) } else { 0.0 },
        bubble: if long > 0.0 { waits / long } else { 0.0 },
        padding: s.padding,
        every: s.every.iter().map(|p| every(p, s.steps)).collect(),
        average_seconds: Number::of(s.with_every()),
    }
}

fn every(p: &nrl_sim::forecast::Periodic, steps: usize) -> Every {
    Every {
        name: p.name.clone(),
        period: p.period,
        seconds: Number::of(p.seconds),
        per_step_seconds: Number::of(p.per_step(steps)),
    }
}

fn phase(made: &Made<'_>, p: &nrl_sim::forecast::Phase, start: f64, total: f64) -> Phase {
    Phase {
        name: p.name.clone(),
        kind: p.kind.name().into(),
        mesh: mesh_name(made.compiled, p.mesh),
        line: line(made.sources, p.origin),
        devices: p.devices,
        start_seconds: start,
        seconds: Number::of(p.seconds),
        share: if total > 0.0 { p.seconds.value / total } else { 0.0 },
        parts: p.parts.iter().map(|x| Part { name: x.name.clone(), seconds: x.seconds }).collect(),
        flops: p.flops,
        mfu: p.mfu,
        bubble: p.bubble,
        micro_batches: p.micro,
        micro_batch_tokens: p.micro_tokens,
    }
}

fn dominant(phases: &[Phase]) -> Option<Dominant> {
    let parts = phases.iter().flat_map(|p| p.parts.iter().map(move |x| (p, x)));
    let (p, x) = parts.max_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds))?;
    let total = p.seconds.value / p.share.max(f64::MIN_POSITIVE);
    Some(Dominant {
        phase: p.name.clone(),
        part: x.name.clone(),
        seconds: x.seconds,
        share: x.seconds / total,
    })
}

/// Stages that run on devices and have no seconds.
fn untimed(c: &Compiled, f: &Forecast) -> Vec<String> {
    let mut out = vec![];
    for (phase, step) in c.program.phases.iter().zip(&f.steps) {
        for b in &phase.step {
            let what = match &b.stage {
                Kind::Generate { generator, .. } => {
                    format!("sample by {}", c.program.generators[*generator].name)
                }
                Kind::Forward { model, .. } => {
                    format!("score by {}", c.program.models[*model].name)
                }
                Kind::Update { model, .. } => {
                    format!("update {}", c.program.models[*model].name)
                }
                _ => continue,
            };
            if !step.phases.iter().any(|p| p.origin == b.origin || p.name == what) {
                out.push(format!("SECONDS OF `{what}`"));
            }
        }
    }
    out
}

fn collective(t: &nrl_sim::forecast::Traffic) -> Collective {
    Collective {
        phase: t.phase.clone(),
        kind: words(&t.kind),
        axes: t.axes.clone(),
        link: t.class.clone(),
        ranks: t.ranks,
        calls: t.calls,
        bytes_per_call: t.bytes,
        seconds: t.seconds,
    }
}

/// `all-reduce` of `AllReduce`.
fn words(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

pub(super) fn assumption(a: &nrl_sim::forecast::Assumed) -> Assumption {
    Assumption {
        what: a.what.clone(),
        value: a.value.clone(),
        source: a.source.name().to_lowercase(),
        help: a.help.clone(),
    }
}

/// Does anything run on a mesh? One that a recipe names and nobody uses is of no interest.
fn used(made: &Made<'_>, mesh: usize) -> bool {
    match made.forecast {
        Some(f) => f.steps.iter().flat_map(|s| &s.phases).any(|p| p.mesh == mesh),
        None => made.compiled.program.models.iter().any(|m| m.mesh == mesh),
    }
}

fn layout(made: &Made<'_>, index: usize) -> Layout {
    let c = made.compiled;
    let (name, mesh) = &c.program.meshes[index];
    let axes = mesh.axes.iter().map(|a| Axis { name: a.name.clone(), size: a.size }).collect();
    let mut out =
        Layout { mesh: name.clone(), axes, devices: mesh.ranks(), train: None, sample: None };
    let Some(f) = made.forecast else { return out };
    for step in &f.steps {
        let of = |kind| step.phases.iter().find(|p| p.mesh == index && p.kind == kind);
        if let (None, Some(p)) = (&out.train, of(nrl_sim::forecast::Kind::Update)) {
            out.train = train(made, step, p);
        }
        if let (None, Some(p)) = (&out.sample, of(nrl_sim::forecast::Kind::Sample)) {
            out.sample = sample(made, step, p);
        }
    }
    out
}

fn train(
    made: &Made<'_>,
    step: &nrl_sim::forecast::Step,
    p: &nrl_sim::forecast::Phase,
) -> Option<Train> {
    let c = made.compiled;
    let model = p.model?;
    let mesh = &c.program.meshes[p.mesh].1;
    let stages = mesh.size("pp").max(1);
    let stage = made.forecast?.memory.iter().find(|m| m.stage == p.name);
    let weights = stage.and_then(|m| m.terms.iter().find(|t| t.name == "weights"));
    let updates = c.program.phases.iter().flat_map(|x| &x.step).find_map(|b| match &b.stage {
        Kind::Update { model: m, updates, epochs, .. } if *m == model && b.origin == p.origin => {
            Some(updates * epochs)
        }
        _ => None,
    });
    let layers = self::model(c, model).layers;
    Some(Train {
        model: c.program.models[model].name.clone(),
        layers_per_stage: layers.div_ceil(stages),
        weight_bytes: weights.map_or(0.0, |t| t.bytes),
        samples: step.samples,
        updates: updates.unwrap_or(1),
        micro_batches: p.micro,
        micro_batch_tokens: p.micro_tokens,
    })
}

fn sample(
    made: &Made<'_>,
    step: &nrl_sim::forecast::Step,
    p: &nrl_sim::forecast::Phase,
) -> Option<Sample> {
    let c = made.compiled;
    let g = p.generated.as_ref()?;
    let mesh = &c.program.meshes[p.mesh].1;
    let group: usize = ["tp", "rtp", "pp"].iter().map(|a| mesh.size(a)).product();
    let replicas = (mesh.ranks() / group.max(1)).max(1);
    let mean = step.tokens / step.samples.max(1.0);
    let context = c.program.models[p.model?].context as f64;
    Some(Sample {
        generator: p.name.trim_start_matches("sample by ").into(),
        replicas,
        devices_per_replica: group,
        samples_per_replica: step.samples / replicas as f64,
        pool_tokens: g.pool,
        pool_sequences_mean: g.pool / mean.max(1.0),
        pool_sequences_longest: g.pool / context.max(1.0),
    })
}

fn run(made: &Made<'_>, report: &Report) -> Run {
    let c = made.compiled;
    let devices = match made.forecast {
        Some(f) => f.devices,
        None => report.layouts.iter().map(|l| l.devices).max().unwrap_or(1),
    };
    let zero = Estimate::default();
    let mut seconds = Number { source: "counted".into(), ..Number::of(zero) };
    if let Some(f) = made.forecast {
        let sum = f.steps.iter().fold(None::<Estimate>, |sum, s| {
            let n = s.steps as f64;
            let e = s.with_every();
            let e = Estimate { value: e.value * n, low: e.low * n, high: e.high * n, ..e };
            Some(sum.map_or(e, |sum| sum.plus(e)))
        });
        seconds = Number::of(sum.unwrap_or(zero));
    }
    Run {
        steps: c.program.phases.iter().map(|p| p.steps).sum(),
        device_hours: seconds.value / 3600.0 * devices as f64,
        seconds,
        devices,
        limit_seconds: c.program.wall_limit_s,
        checkpoint_bytes: nrl_driver::checkpoint_bytes(c),
        checkpoints_kept: kept(c),
    }
}

/// How many checkpoints are kept at most.
fn kept(c: &Compiled) -> usize {
    let all = c.program.phases.iter().flat_map(|p| &p.every).flat_map(|e| &e.stages);
    let keep = all.filter_map(|b| match &b.stage {
        Kind::Checkpoint { keep, by } => Some(keep + usize::from(by.is_some())),
        _ => None,
    });
    keep.max().unwrap_or(0)
}

fn graphs(c: &Compiled) -> Vec<Graph> {
    let one = |(plan, graph): (&nrl_ir::plan::Plan, &nrl_ir::Graph)| Graph {
        name: plan.name.clone(),
        bounds: bounds(graph),
        flops: plan.cost.flops,
        moved_bytes: plan.cost.bytes,
        live_bytes: plan.peak_bytes,
        collectives: plan
            .collectives
            .iter()
            .map(|x| Counted {
                kind: x.kind.clone(),
                axes: x.axes.clone(),
                count: x.count,
                bytes: x.bytes,
                reason: x.reason.clone(),
            })
            .collect(),
    };
    c.plans.iter().zip(&c.program.graphs).map(one).collect()
}

/// `tok <= 8192, seq <= 16`.
fn bounds(g: &nrl_ir::Graph) -> String {
    let of: Vec<String> = g
        .dims
        .iter()
        .filter(|(id, _)| g.dims.is_ragged(*id))
        .map(|(id, d)| format!("{} <= {}", d.name, g.dims.bound(id)))
        .collect();
    of.join(", ")
}
