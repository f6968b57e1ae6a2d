//! Plans of the language as rules of `shard`, and problems of passes as diagnostics.

use nrl_base::{Diagnostic, SourceId, Span};
use nrl_lower::{PlanRules, StateMode};
use nrl_passes::{DimRule, PathRule, Problem, Rules, State};

/// The rules of `shard` for a plan; a generator keeps whole weights, so it ignores how state is cut.
pub fn of(plan: &PlanRules, generating: bool) -> Rules {
    let batch = plan.dims.iter().filter(|r| r.dim == "seq").flat_map(|r| r.axes.clone()).collect();
    let dims = plan
        .dims
        .iter()
        .filter(|r| r.dim != "seq")
        .map(|r| DimRule { dim: r.dim.clone(), axes: r.axes.clone() })
        .collect();
    let paths = plan
        .paths
        .iter()
        .flat_map(|p| {
            p.dims.iter().map(|(dim, axes)| PathRule {
                path: p.param.clone(),
                dim: dim.clone(),
                axes: axes.clone(),
            })
        })
        .collect();
    let state = match &plan.state {
        _ if generating => State::Whole,
        None => State::Whole,
        Some((StateMode::Zero1, axes, _)) => State::Zero1(axes.clone()),
        Some((StateMode::Zero3, axes, _)) => State::Zero3(axes.clone()),
    };
    Rules { dims, paths, batch, state }
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
    if let Some((source, start, end)) = p.origin {
        d = d.label(Span::new(SourceId(source), start as usize, end as usize), "computed here");
    }
    if p.code == "internal" {
        d = d.note("this is a bug in the compiler; please report it with the recipe");
    }
    d.help_opt(p.help)
}
