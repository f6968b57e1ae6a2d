//! Plans of the language as rules of `shard`, and problems of passes as diagnostics.

use nrl_base::{Diagnostic, SourceId, Span};
use nrl_ir::Mesh;
use nrl_ir::program::Model;
use nrl_lower::{PlanRules, StateMode};
use nrl_passes::{DimRule, PathRule, Problem, Rules, State};
use nrl_sim::Offload;

/// The axis whose ranks hold parts of the same sequences, with attention going around them.
const RING: &str = "cp";

/// The axis of meshes that only generate whose ranks share one copy of the weights.
const SHARES: &str = "rtp";

/// The rules of `shard` for a plan on `mesh`. Axes that the mesh lacks are inert: a model and its
/// generator may live on different ones. A generator keeps whole weights, so it ignores how state is cut.
pub fn of(plan: &PlanRules, mesh: &Mesh, generating: bool) -> Rules {
    let has = |axis: &String| mesh.has(axis);
    let known = |axes: &[String]| axes.iter().filter(|a| has(a)).cloned().collect::<Vec<_>>();
    let axes = |r: &nrl_lower::DimRule| known(&r.axes);
    let (ring, _): (Vec<String>, Vec<String>) =
        plan.dims.iter().filter(|r| r.dim == "tok").flat_map(axes).partition(|a| a == RING);
    let batch = plan.dims.iter().filter(|r| r.dim == "seq").flat_map(axes).collect();
    let dims = plan
        .dims
        .iter()
        // `d: replicated` has no axes to begin with; a rule whose axes are elsewhere says nothing.
        .filter(|r| r.dim != "seq" && (r.axes.is_empty() || !axes(r).is_empty()))
        .filter(|r| r.dim != "tok" || !axes(r).iter().any(|a| a == RING))
        .map(|r| DimRule { dim: r.dim.clone(), axes: axes(r) });
    let mut dims: Vec<DimRule> = dims.collect();
    if generating && mesh.size(SHARES) > 1 {
        // Engines split heads and columns whatever the plan of the trainer is.
        for dim in ["q", "kv", "f", "sf", "ef", "vocab"] {
            if !dims.iter().any(|r| r.dim == dim) {
                dims.push(DimRule { dim: dim.into(), axes: vec![SHARES.into()] });
            }
        }
    }
    let path = |p: &nrl_lower::PathRule| {
        let param = p.param.clone();
        let one = move |(dim, axes): &(String, Vec<String>)| PathRule {
            path: param.clone(),
            dim: dim.clone(),
            axes: known(axes),
        };
        p.dims.iter().map(one).collect::<Vec<_>>()
    };
    let state = match &plan.state {
        Some((mode, axes, _)) if !generating && !known(axes).is_empty() => match mode {
            StateMode::Zero1 => State::Zero1(known(axes)),
            StateMode::Zero2 => State::Zero2(known(axes)),
            StateMode::Zero3 => State::Zero3(known(axes)),
        },
        _ => State::Whole,
    };
    let paths = plan.paths.iter().flat_map(path).collect();
    Rules { dims, paths, batch, ring, state }
}

/// What a plan keeps on hosts.
pub fn away(plan: &PlanRules) -> Offload {
    let has = |what: &str| plan.offload.iter().any(|(w, _)| w == what);
    Offload {
        activations: has("activations"),
        state: if has("optimizer") { 1.0 } else { 0.0 },
        ..Offload::default()
    }
}

/// Rules of the library in a plan that can do nothing for a model on its mesh, and why, once each.
pub fn inert(plan: &PlanRules, model: &Model, (name, mesh): &(String, Mesh)) -> Vec<String> {
    let has = |dim: &str| model.dims.iter().any(|(_, d)| d.name == dim);
    let mut out: Vec<String> = vec![];
    for rule in plan.dims.iter().filter(|r| !r.own && !r.axes.is_empty()) {
        // Samples and tokens belong to every model.
        let shared = matches!(rule.dim.as_str(), "seq" | "tok" | "group");
        let why = if !shared && !has(&rule.dim) {
            format!("{} has no dim `{}`", model.family, rule.dim)
        } else if rule.axes.iter().all(|a| !mesh.has(a)) {
            format!("mesh {name} has no axis `{}`", rule.axes.join(" or "))
        } else {
            continue;
        };
        let line = format!("`{}: @{}`: {why}", rule.dim, rule.axes.join(" @"));
        if !out.contains(&line) {
            out.push(line);
        }
    }
    out
}

/// The place of a node or of a stage.
pub fn place_of(origin: Option<(u32, u32, u32)>) -> Option<Span> {
    origin.map(|(source, start, end)| Span::new(SourceId(source), start as usize, end as usize))
}

/// A pass's problem at its place, or where the model was placed.
pub fn diagnostic(p: Problem, place: Option<Span>) -> Diagnostic {
    let mut d = Diagnostic::error(p.code, p.text);
    if let Some(span) = place {
        d = d.label(
            span,
            p.split.as_ref().map_or("laid out here".to_string(), |s| {
                format!("splits dim `{}` ({}) over {}", s.dim, s.size, s.axis)
            }),
        );
    }
    if let Some(span) = place_of(p.origin) {
        d = d.label(span, "computed here");
    }
    if p.code == "internal" {
        d = d.note("this is a bug in the compiler; please report it with the recipe");
    }
    d.help_opt(p.help)
}
