//! Where a value or a layout of a recipe comes from.
//!
//! In: a compiled recipe and a path, such as `policy.layers.wq`, `train.dp` or `opt.beta1`. Out: what it is, who said
//! so, and for inferred values what they follow from.

use std::fmt::Write;

use nrl_base::{SourceMap, Span};
use nrl_ir::plan::ParamLayout;
use nrl_ir::program::Model;
use nrl_lower::paths::Named;
use nrl_syntax::ast::ItemKind;

use crate::input::{Input, Planned};
use crate::report::words::{bytes, count, gib, thousands};

/// Explains a path; or why it cannot be explained.
pub fn explain(input: &Input<'_>, planned: &Planned, path: &str) -> Result<String, String> {
    let mut sources = SourceMap::new();
    let all = input.paths(&mut sources);
    let found = parameter(planned, path)
        .or_else(|| axis(planned, path, &all, &sources))
        .or_else(|| model(planned, path, &all, &sources))
        .or_else(|| written(planned, path, &all, &sources))
        .or_else(|| default(path, &all, &sources))
        .or_else(|| config(planned, path));
    found.ok_or_else(|| {
        let known = known(planned, &all);
        let help = nrl_base::nearest(path, known.iter().map(String::as_str));
        match help {
            Some(near) => format!("nothing is called `{path}`; did you mean `{near}`?"),
            None => format!("nothing is called `{path}`"),
        }
    })
}

/// All that can be explained.
pub fn known(planned: &Planned, all: &[Named]) -> Vec<String> {
    let p = &planned.compiled.program;
    let mut out: Vec<String> = all.iter().map(|n| n.path.clone()).collect();
    for m in &p.models {
        out.push(m.name.clone());
        out.extend(m.params.iter().map(|x| format!("{}.{}", m.name, x.name)));
    }
    out.sort();
    out.dedup();
    out
}

fn place(sources: &SourceMap, span: Span) -> String {
    sources.place(span)
}

/// A weight: dims, how they are cut, what a rank holds.
fn parameter(planned: &Planned, path: &str) -> Option<String> {
    let c = &planned.compiled;
    let p = &c.program;
    let (m, model) = p.models.iter().enumerate().find(|(_, m)| {
        path.strip_prefix(m.name.as_str()).is_some_and(|rest| rest.starts_with('.'))
    })?;
    let name = path.get(model.name.len() + 1..)?.replace("[*]", "");
    let (i, decl) =
        model.params.iter().enumerate().find(|(_, d)| d.name == name || d.path() == name)?;
    let (mesh_name, mesh) = &p.meshes[model.mesh];
    let layout = model.layouts.get(i);
    let mut out = String::new();
    let shape: Vec<String> = decl
        .dims
        .iter()
        .enumerate()
        .map(|(k, d)| {
            let axes = layout.and_then(|l| l.dims.get(k)).filter(|a| !a.is_empty());
            let cut = axes.map_or(String::new(), |a| format!("@{}", a.join("@")));
            format!("{}{cut} {}", model.dims.name(*d), thousands(model.dims.bound(*d) as f64))
        })
        .collect();
    let half = crate::report::is_bf16(c, m);
    let dtype = if half { "bf16" } else { "f32" };
    // Of a pattern of layers, those of all its runs.
    let like = model.params.iter().filter(|p| p.path() == decl.path());
    let number: usize = like.filter_map(|p| p.repeat.as_ref()).map(|(_, n)| n).sum();
    let layers = decl.repeat.as_ref().map_or(String::new(), |_| format!(" in {number} layers"));
    let _ = writeln!(out, "{path}   {dtype}[{}]{layers}", shape.join(", "));
    let _ = writeln!(out, "  checkpoint   {}", decl.checkpoint);
    if let Some(l) = layout {
        cuts(model, decl.dims.len(), l, mesh_name, &mut out);
        let whole: f64 = decl.dims.iter().map(|d| model.dims.bound(*d) as f64).product();
        let ways: usize = l.dims.iter().map(|a| mesh.size_over(a)).product();
        let parts = ways * mesh.size_over(&l.flat);
        let all =
            decl.repeat.as_ref().map_or(1.0, |_| (number as f64 / mesh.size("pp") as f64).ceil());
        let each = whole / parts.max(1) as f64 * all * if half { 2.0 } else { 4.0 };
        let _ = writeln!(out, "  a rank has   1/{parts} of it, {} in all its layers", bytes(each));
    }
    if let Some(span) = planned.compiled.facts.models.get(m).map(|f| f.span) {
        let _ =
            writeln!(out, "  model        {} ({})", model.family, place(&planned.sources, span));
    }
    Some(out)
}

fn cuts(model: &Model, dims: usize, l: &ParamLayout, mesh: &str, out: &mut String) {
    let cut = (0..dims).any(|k| l.dims.get(k).is_some_and(|a| !a.is_empty()));
    let how = match (cut, l.flat.is_empty()) {
        (true, _) => "cut as written above".to_string(),
        (false, true) => "whole on every rank".to_string(),
        (false, false) => String::from("no dim is cut"),
    };
    let _ = writeln!(out, "  layout       {how}, on mesh {mesh}");
    if !l.reason.is_empty() {
        let _ = writeln!(out, "  because      {}", l.reason);
    }
    if !l.flat.is_empty() {
        let _ = writeln!(out, "  gathered     over {} before use (zero3)", l.flat.join(", "));
    }
    if !l.state.is_empty() && l.state != l.flat {
        let _ = writeln!(out, "  state        cut over {} (zero1)", l.state.join(", "));
    }
    if !l.pending.is_empty() && !model.params.is_empty() {
        let _ = writeln!(out, "  gradient     summed over {}", l.pending.join(", "));
    }
}

/// An axis of a mesh: written, or what is left.
fn axis(planned: &Planned, path: &str, all: &[Named], sources: &SourceMap) -> Option<String> {
    let (mesh, name) = path.split_once('.')?;
    let p = &planned.compiled.program;
    let (i, (_, m)) = p.meshes.iter().enumerate().find(|(_, (n, _))| n == mesh)?;
    let axis = m.axes.iter().find(|a| a.name == name)?;
    let mut out = format!("{path} = {}\n", axis.size);
    let written = all.iter().find(|n| n.path == path).and_then(|n| n.value);
    let cluster = planned.compiled.facts.meshes.get(i).and_then(|f| f.cluster);
    let cluster = cluster.map(|k| &planned.compiled.facts.clusters[k]);
    if let Some(span) = written {
        let text = sources.text(span);
        let _ = writeln!(out, "  written      `{text}` at {}", place(sources, span));
        if text.trim() == "rest" {
            let others: Vec<String> = m
                .axes
                .iter()
                .filter(|a| a.name != name)
                .map(|a| format!("{} {}", a.name, a.size))
                .collect();
            let ranks = cluster.map_or(m.ranks(), |c| c.ranks);
            let over =
                if others.is_empty() { "1".into() } else { format!("({})", others.join(" x ")) };
            let _ = writeln!(out, "  follows      {ranks} ranks / {over} = {}", axis.size);
        }
    }
    if let Some(c) = cluster {
        let _ = writeln!(
            out,
            "  ranks        {} of `{}` ({} x {}, {} per node), {}",
            c.ranks,
            c.name,
            c.ranks,
            c.device.name,
            c.per_node,
            place(&planned.sources, c.span)
        );
    }
    let rules = uses(planned, i, name);
    if !rules.is_empty() {
        let _ = writeln!(out, "  cuts         {}", rules.join(", "));
    }
    Some(out)
}

/// What an axis cuts of the models on its mesh.
fn uses(planned: &Planned, mesh: usize, axis: &str) -> Vec<String> {
    let mut out: Vec<String> = vec![];
    for m in planned.compiled.program.models.iter().filter(|m| m.mesh == mesh) {
        for (decl, l) in m.params.iter().zip(&m.layouts) {
            let dims = decl.dims.iter().zip(&l.dims);
            let cut = dims.filter(|(_, axes)| axes.iter().any(|a| a == axis));
            out.extend(cut.map(|(d, _)| format!("dim {}", m.dims.name(*d))));
            if l.flat.iter().any(|a| a == axis) {
                out.push("weights".into());
            } else if l.state.iter().any(|a| a == axis) {
                out.push("optimizer state".into());
            }
            if l.pending.iter().any(|a| a == axis) {
                out.push("sequences".into());
            }
        }
    }
    let mut seen = vec![];
    out.retain(|x| {
        let new = !seen.contains(x);
        seen.push(x.clone());
        new
    });
    out
}

/// A model as a whole.
fn model(planned: &Planned, path: &str, all: &[Named], sources: &SourceMap) -> Option<String> {
    let c = &planned.compiled;
    let (i, m) = c.program.models.iter().enumerate().find(|(_, m)| m.name == path)?;
    let n = crate::report::parameters(m);
    let mut out =
        format!("{path}   a {} of {} parameters, context {}\n", m.family, count(n), m.context);
    if let Some(span) = all.iter().find(|x| x.path == path).and_then(|x| x.value) {
        let _ =
            writeln!(out, "  written      `{}` at {}", sources.text(span), place(sources, span));
    }
    let dtype = if crate::report::is_bf16(c, i) { "bf16" } else { "f32" };
    let (mesh, axes) = &c.program.meshes[m.mesh];
    let axes: Vec<String> = axes.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
    let _ = writeln!(out, "  stored       in {dtype} on mesh {mesh} ({})", axes.join(", "));
    for key in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    ] {
        if let Some(v) = m.config.get(key) {
            let _ = writeln!(out, "  {key:<20} {v}");
        }
    }
    let _ = writeln!(out, "  shape from   {}", shape_source(planned, m));
    for (at, rule) in c.inert.get(i).into_iter().flatten().enumerate() {
        let name = if at == 0 { "inert rules" } else { "" };
        let _ = writeln!(out, "  {name:<12} {rule}");
    }
    Some(out)
}

fn shape_source(planned: &Planned, m: &Model) -> String {
    let path = match &m.weights {
        nrl_ir::program::Weights::Directory { path } => path.clone(),
        nrl_ir::program::Weights::Frozen { of, .. } => {
            return format!("the model it copies, `{}`", planned.compiled.program.models[*of].name);
        }
        nrl_ir::program::Weights::Fresh { .. } => return "the recipe".into(),
    };
    let known = nrl_facts::models().iter().find(|f| path.ends_with(&f.name));
    known.map_or(format!("{path}/config.json"), |f| {
        format!("the table of published checkpoints: {} ({})", f.name, f.source)
    })
}

/// A value that the recipe writes.
fn written(planned: &Planned, path: &str, all: &[Named], sources: &SourceMap) -> Option<String> {
    let named = all.iter().find(|n| n.path == path)?;
    let Some(span) = named.value else {
        return Some(format!("{path}   is not written; the language's default holds\n"));
    };
    let mut out = format!("{path} = {}\n", sources.text(span));
    let _ = writeln!(out, "  written      at {}", place(sources, span));
    let name = path.rsplit('.').next().unwrap_or(path);
    if name == "microbatch"
        && let Some(f) = &planned.forecast
    {
        for p in f.steps.iter().flat_map(|s| &s.phases).filter(|p| p.kind.name() == "update") {
            let _ = writeln!(
                out,
                "  {:<12} {} micro-batches of {} tokens per rank and update",
                p.name,
                p.micro,
                thousands(p.micro_tokens)
            );
        }
    }
    Some(out)
}

/// An argument that is left out: the default of the function.
fn default(path: &str, all: &[Named], sources: &SourceMap) -> Option<String> {
    let (owner, name) = path.rsplit_once('.')?;
    let call = all.iter().find(|n| n.path == owner && n.call)?.value?;
    let text = sources.text(call);
    let (callee, _) = text.split_once('(')?;
    let (module, function) = callee.trim().rsplit_once('.')?;
    let module = format!("std.{module}");
    let (_, std) = nrl_driver::STD.iter().find(|(n, _)| *n == module)?;
    let (file, _) = nrl_syntax::parse(nrl_base::SourceId(0), std);
    let item = file.items.iter().find(|i| i.name().is_some_and(|n| n.text == function))?;
    let params = match &item.kind {
        ItemKind::Fn(f) => &f.params,
        ItemKind::Plan(p) => &p.params,
        ItemKind::Model(m) => &m.params,
        _ => return None,
    };
    let p = params.iter().find(|p| p.name.text == name)?;
    let value = p.default.as_ref().map(|d| std.get(d.span.range()).unwrap_or(""));
    let mut out = match value {
        Some(v) => format!("{path} = {v}\n"),
        None => format!("{path}   must be given\n"),
    };
    let _ = writeln!(
        out,
        "  default      of `{module}.{function}`, called at {}",
        place(sources, call)
    );
    if let Some(doc) = &item.doc {
        let _ = writeln!(out, "  it says      {}", doc.lines().next().unwrap_or(""));
    }
    Some(out)
}

/// A setting of the model's configuration.
fn config(planned: &Planned, path: &str) -> Option<String> {
    let (model, key) = path.split_once('.')?;
    let m = planned.compiled.program.models.iter().find(|m| m.name == model)?;
    let value = m.config.get(key)?;
    let from = shape_source(planned, m);
    Some(format!("{path} = {value}\n  from         {from}\n"))
}

/// GiB of a stage by term, for `why memory`.
pub fn memory(planned: &Planned, word: &str) -> Option<String> {
    let all = match &planned.forecast {
        Some(f) => f.memory.clone(),
        None => nrl_driver::memory(&planned.compiled),
    };
    let mut out = String::new();
    for m in all.iter().filter(|m| word.is_empty() || m.stage.contains(word)) {
        let _ = writeln!(
            out,
            "{}   {} GiB of the {} that {} has{}",
            m.stage,
            gib(m.sum()),
            gib(m.device.memory),
            m.device.name,
            if m.when == nrl_sim::When::EVERY {
                String::new()
            } else {
                format!(", at {}", m.when.words())
            }
        );
        for t in &m.terms {
            let _ = writeln!(out, "  {:<18} {:>7}   {}", t.name, gib(t.bytes), t.how);
        }
        let _ = writeln!(out, "  {:<18} {:>7}   {} GiB left", "sum", gib(m.sum()), gib(m.margin()));
    }
    (!out.is_empty()).then_some(out)
}
