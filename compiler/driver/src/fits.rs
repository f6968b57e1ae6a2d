//! Whether each stage fits into the memory of the devices that its mesh stands for.
//!
//! In: a compiled program with the machines it names. Out: an error per stage that does not fit,
//! with its terms and the nearest layout that does.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Severity, SourceMap};
use nrl_ir::Mesh;
use nrl_ir::program::{Stage, Weights};
use nrl_lower::facts::Asked;
use nrl_sim::profile::Profile;
use nrl_sim::{Device, Memory, Precision, Setup, When};

use crate::{Compiled, Files, Options, rules};

const GIB: f64 = 1_073_741_824.0;

/// Bytes per rank of each stage of the program, where its mesh is on devices.
pub fn memory(c: &Compiled) -> Vec<Memory> {
    on(c, None)
}

/// The same for every stage; ranks that are threads of this process share an unknown memory, and
/// hold no context of a driver.
pub(crate) fn everywhere(c: &Compiled) -> Vec<Memory> {
    on(c, Some(Device { name: "this machine".into(), memory: f64::INFINITY }))
}

/// The same where ranks are threads of a machine whose memory may be known.
pub(crate) fn on_machine(c: &Compiled, m: &nrl_sim::machine::Machine) -> Vec<Memory> {
    if m.memory <= 0.0 {
        return vec![];
    }
    let mut all = everywhere(c);
    for stage in &mut all {
        stage.device = Device { name: m.name.clone(), memory: m.memory };
    }
    all
}

fn on(c: &Compiled, otherwise: Option<Device>) -> Vec<Memory> {
    nrl_sim::memory(&setup(c, otherwise))
}

/// What passes keep, by graph and tokens of a micro-batch.
#[derive(Clone, Debug, Default)]
pub struct Profiles(BTreeMap<(usize, usize), Profile>);

/// Bytes of the fullest rank of the updates on one mesh of devices; 0 if there are none.
pub fn update_bytes(c: &Compiled, mesh: usize, profiles: &mut Profiles) -> f64 {
    let setup = setup(c, None);
    let Some(device) = setup.devices.get(mesh).cloned().flatten() else { return 0.0 };
    let mut most: f64 = 0.0;
    for b in c.program.phases.iter().flat_map(|p| &p.step) {
        let Stage::Update { model, graph, optimizer, tokens, .. } = b.stage else { continue };
        if c.program.models[model].mesh != mesh {
            continue;
        }
        let plan = &c.plans[graph];
        let Some(load) = setup.load(model, plan, optimizer) else { continue };
        let profile = profiles
            .0
            .entry((graph, tokens))
            .or_insert_with(|| Profile::of(plan, &load.sizes, load.precision));
        let peak = load.of(profile, &setup.stack(plan), Some(device.memory));
        most = most.max(peak.total());
    }
    most
}

/// Is a model stored in 16 bits? A frozen copy is stored as what it is a copy of.
pub(crate) fn is_bf16(c: &Compiled, model: usize) -> bool {
    let own = |model: usize| c.facts.models.get(model).is_some_and(|facts| facts.bf16);
    match c.program.models[model].weights {
        Weights::Frozen { of, .. } => own(of) || own(model),
        _ => own(model),
    }
}

fn setup(c: &Compiled, otherwise: Option<Device>) -> Setup<'_> {
    let known = |mesh: usize| {
        let cluster = c.facts.meshes.get(mesh)?.cluster?;
        let d = &c.facts.clusters[cluster].device;
        d.gpu.then(|| Device { name: d.name.clone(), memory: d.memory_bytes })
    };
    let device = |mesh: usize| known(mesh).or_else(|| otherwise.clone());
    let precision = |model| if is_bf16(c, model) { Precision::Bf16 } else { Precision::F32 };
    Setup {
        program: &c.program,
        plans: &c.plans,
        devices: (0..c.program.meshes.len()).map(device).collect(),
        precisions: (0..c.program.models.len()).map(precision).collect(),
        bf16_masters: c.facts.bf16_masters.clone(),
        selective: c.selective.clone(),
        offload: c.offload.clone(),
        stack: c.framework.stack.clone(),
        clusters: (0..c.program.meshes.len()).map(|m| c.facts.meshes.get(m)?.cluster).collect(),
        engines: (0..c.program.generators.len()).map(|g| engine(c, g)).collect(),
        habits: c.framework.memory.clone(),
    }
}

/// Bytes of a device that the engine of a generator asks for, if the recipe says so.
fn engine(c: &Compiled, generator: usize) -> Option<f64> {
    let (asked, _) = c.facts.generators.get(generator)?.memory?;
    let cluster = c.facts.meshes.get(c.program.generators[generator].mesh)?.cluster?;
    match asked {
        Asked::Share(x) => Some(x * c.facts.clusters[cluster].device.memory_bytes),
        Asked::Bytes(b) => Some(b),
        Asked::Tokens(_) => None,
    }
}

/// About stages that do not fit: an error where weights, gradients and optimizer state alone do not,
/// a warning where activations, which an engine may compute again, make the difference. With the
/// nearest layout that does.
pub(crate) fn findings(
    c: &Compiled,
    files: &dyn Files,
    path: &str,
    options: &Options,
) -> Vec<Diagnostic> {
    // An engine that asks for too much is told so where it asks (`pools`).
    let asked = |m: &Memory| m.when == When::EVERY && m.terms.iter().any(|t| t.name == "kv");
    let all = memory(c).into_iter();
    let full: Vec<Memory> = all.filter(|m| m.margin() < 0.0 && !asked(m)).collect();
    if full.is_empty() {
        return vec![];
    }
    let own = Options { recipe: Some(c.program.name.clone()), ..options.clone() };
    let help = help(&tensor_axes(c), files, path, &own);
    full.iter().map(|m| does_not_fit(c, m).help(help.clone())).collect()
}

fn does_not_fit(c: &Compiled, m: &Memory) -> Diagnostic {
    let (_, mesh) = &c.program.meshes[m.mesh];
    let facts = &c.facts.meshes[m.mesh];
    let capacity = m.device.memory / GIB;
    let device = &m.device.name;
    let when =
        if m.when == When::EVERY { String::new() } else { format!(" at {}", m.when.words()) };
    let text = format!(
        "`{}` needs {:.1} GiB on a rank{when}, {device} has {capacity:.1}",
        m.stage,
        m.sum() / GIB
    );
    let terms: Vec<String> = m
        .terms
        .iter()
        .filter(|t| t.bytes >= 0.05 * GIB)
        .map(|t| format!("{} {:.1} ({})", t.name, t.bytes / GIB, t.how))
        .collect();
    let severity = if m.least() > m.device.memory { Severity::Error } else { Severity::Warning };
    let mut d = Diagnostic::new("does-not-fit", severity, text).label(facts.span, axes(mesh));
    if let Some(cluster) = facts.cluster {
        let span = c.facts.clusters[cluster].span;
        d = d.label(span, format!("{device} has {capacity:.1} GiB"));
    }
    if let Some(span) = rules::place_of(m.origin) {
        d = d.label(span, "asked for here");
    }
    d.note(terms.join(" + "))
}

/// `dp 4, tp 2`.
fn axes(mesh: &Mesh) -> String {
    let axes: Vec<String> = mesh.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
    axes.join(", ")
}

/// Name, size of `tp` and largest useful size of it, of each mesh on devices that has such an axis.
fn tensor_axes(c: &Compiled) -> Vec<(String, usize, usize)> {
    let meshes = c.program.meshes.iter().zip(&c.facts.meshes);
    meshes
        .filter(|((_, mesh), _)| mesh.axes.iter().any(|a| a.name == "tp"))
        .filter_map(|((name, mesh), facts)| {
            let cluster = &c.facts.clusters[facts.cluster?];
            let known = cluster.device.gpu && !name.is_empty();
            known.then(|| (name.clone(), mesh.size("tp"), cluster.per_node))
        })
        .collect()
}

/// Which larger tensor parallel size fits, or what else may help.
fn help(
    meshes: &[(String, usize, usize)],
    files: &dyn Files,
    path: &str,
    options: &Options,
) -> String {
    for (mesh, tp, most) in meshes {
        let sizes = std::iter::successors(Some(tp * 2), |n| Some(n * 2)).take_while(|n| n <= most);
        for size in sizes {
            let mut sets = options.sets.clone();
            sets.push(format!("{mesh}.tp={size}"));
            let tried = Options { sets, ..options.clone() };
            let (compiled, _) = crate::compile(files, &mut SourceMap::new(), path, &tried);
            let Some(all) = compiled.map(|c| memory(&c)) else { continue };
            if all.iter().all(|m| m.margin() >= 0.0) {
                let most = all.iter().map(Memory::sum).fold(0.0, f64::max) / GIB;
                return format!("`tp: {size}` on `{mesh}` fits, with {most:.1} GiB at most");
            }
        }
    }
    "fewer tokens per micro-batch, `plans.recomputed()`, a larger axis that cuts weights, or more nodes"
        .into()
}
