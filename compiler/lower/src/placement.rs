//! Placements: whether the rules of a plan fit the model and the mesh they meet.
//!
//! In: a placed model. Out: diagnostics, and rules of parameters for styles that a checkpoint names.
//! Of a parameter's dim the most specific rule counts: path, then dim, then replicated; the user's own
//! before the library's. Two of equal rank are an error.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Span, divisors, listed};

use crate::elab::{El, Elab};
use crate::intrinsic::Args;
use crate::value::{PathRule, PlanRules, Stages, Style, Val};

/// Dims that several rules may split: samples and tokens.
const SHARED: &[&str] = &["seq", "tok"];

impl<'a> Elab<'a, '_> {
    /// `tp_plan([{path: "layers.*.self_attn.q_proj", style: "colwise"}])`.
    pub fn tp_plan(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (list, s) = a.need("rules");
        let items = match &list {
            Val::List(items) => items.clone(),
            Val::Const(nrl_ir::host::Value::List(items), _) => {
                items.iter().map(|v| Val::constant(v.clone())).collect()
            }
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    s,
                    format!("a list of rules is needed, not {kind}"),
                    "this value",
                );
            }
        };
        let mut rules = PlanRules::default();
        for item in items {
            let text = |key: &str| match &item {
                Val::Record(r) => match r.get(key) {
                    Some(Val::Const(nrl_ir::host::Value::Text(t), _)) => Some(t.to_string()),
                    _ => None,
                },
                Val::Const(nrl_ir::host::Value::Record(r), _) => match r.get(key) {
                    Some(nrl_ir::host::Value::Text(t)) => Some(t.to_string()),
                    _ => None,
                },
                _ => None,
            };
            let (Some(path), Some(style)) = (text("path"), text("style")) else {
                let what = "a rule is a record of two texts";
                return self.error(
                    "wrong-type",
                    s,
                    what,
                    "such as `{path: \"layers.*.mlp.up_proj\", style: \"colwise\"}`",
                );
            };
            let outputs = match style.as_str() {
                "colwise" | "colwise_rep" => true,
                "rowwise" | "rowwise_rep" => false,
                other => {
                    let known = ["colwise", "rowwise", "colwise_rep", "rowwise_rep"];
                    let help = nrl_base::did_you_mean(other, known)
                        .unwrap_or_else(|| format!("one of {}", known.join(", ")));
                    let what = format!("`{other}` is not a way to split a parameter");
                    return self.fail(
                        Diagnostic::error("unknown-name", what).label(s, "this plan").help(help),
                    );
                }
            };
            rules.styles.push(Style { path, outputs, span: self.user_span(s) });
        }
        Ok(Val::Plan(rules))
    }

    /// Rules of parameters for the styles that a checkpoint's own plan names.
    pub fn resolve_styles(&mut self, model: usize) {
        let styles = std::mem::take(&mut self.out.rules[model].styles);
        for s in styles {
            let m = &self.out.program.models[model];
            let found: Vec<PathRule> = m
                .params
                .iter()
                .filter(|p| names(&s.path, &p.checkpoint))
                .map(|p| {
                    let group = p
                        .checkpoint_dims
                        .get(usize::from(!s.outputs))
                        .or(p.checkpoint_dims.first());
                    let split = group.and_then(|g| g.first()).copied();
                    let axes = |d| if Some(d) == split { vec!["tp".to_string()] } else { vec![] };
                    let dims = p.dims.iter().map(|d| (m.dims.name(*d).to_string(), axes(*d)));
                    PathRule { param: p.name.clone(), dims: dims.collect(), span: s.span }
                })
                .collect();
            if found.is_empty() {
                let known: Vec<&str> = m.params.iter().map(|p| p.checkpoint.as_str()).collect();
                let what = format!("`{}` names no parameter of `{}`", s.path, m.name);
                let help = format!("its parameters are stored as {}", known.join(", "));
                let d = Diagnostic::error("rule-matches-nothing", what)
                    .label(s.span, "matches nothing");
                let _: El<()> = self.fail(d.help(help));
            }
            self.out.rules[model].paths.extend(found);
        }
    }

    /// Axes of the mesh that no rule splits anything over: their ranks all do the same.
    fn idle_axes(&mut self, model: usize) {
        let rules = &self.out.rules[model];
        let mut used: Vec<&str> = vec!["rep", "rtp"];
        used.extend(rules.dims.iter().flat_map(|r| &r.axes).map(String::as_str));
        used.extend(
            rules.paths.iter().flat_map(|p| p.dims.iter().flat_map(|d| &d.1)).map(String::as_str),
        );
        used.extend(rules.state.iter().flat_map(|(_, axes, _)| axes).map(String::as_str));
        used.extend(rules.stages.iter().map(|s| s.axis.as_str()));
        let (mesh_name, mesh) = &self.out.program.meshes[self.out.program.models[model].mesh];
        let idle = mesh.axes.iter().filter(|a| a.size > 1 && !used.contains(&a.name.as_str()));
        let found: Vec<String> = idle
            .map(|a| {
                format!(
                    "axis `{}` of `{mesh_name}` is {} and this plan splits nothing over it",
                    a.name, a.size
                )
            })
            .collect();
        let place = self.out.places[model];
        for what in found {
            let help = "its ranks would all do the same; take the axis out, or a plan that uses it";
            self.no_effect(place, what, "laid out here", help);
        }
    }

    /// Two rules of one rank that split one dim differently.
    fn check_ranks(&mut self, model: usize) {
        let rules = self.out.rules[model].clone();
        let mut seen: BTreeMap<(String, String), (Vec<String>, Span)> = BTreeMap::new();
        let dims = rules.dims.iter().filter(|r| !SHARED.contains(&r.dim.as_str())).map(|r| {
            let rank = if r.own { "dim" } else { "library" };
            (rank.to_string(), r.dim.clone(), r.axes.clone(), r.span)
        });
        let paths = rules.paths.iter().flat_map(|p| {
            p.dims.iter().map(|(d, axes)| (p.param.clone(), d.clone(), axes.clone(), p.span))
        });
        let mut wrong = vec![];
        for (rank, dim, axes, span) in dims.chain(paths) {
            let key = (rank.clone(), dim.clone());
            match seen.get(&key) {
                Some((other, first)) if *other != axes => {
                    let of = match rank.as_str() {
                        "dim" | "library" => String::new(),
                        param => format!(" of `{param}`"),
                    };
                    let show = |a: &[String]| match a {
                        [] => "replicated".to_string(),
                        a => format!("over {}", a.join(", ")),
                    };
                    let what = format!(
                        "two rules of equal rank lay out `{dim}`{of}: {} and {}",
                        show(other),
                        show(&axes)
                    );
                    let (first, second) =
                        (self.place_span(*first, model), self.place_span(span, model));
                    wrong.push(
                        Diagnostic::error("rules-conflict", what)
                            .label(second, show(&axes))
                            .label(first, show(other))
                            .help("keep one; a rule of a parameter counts before one of a dim"),
                    );
                }
                Some(_) => {}
                None => {
                    seen.insert(key, (axes, span));
                }
            }
        }
        self.problems.extend(wrong);
    }

    /// What a placement asks of the sizes of its model, and what of it cannot run yet.
    pub fn check_placement(&mut self, model: usize) {
        self.resolve_styles(model);
        self.check_ranks(model);
        self.idle_axes(model);
        let rules = self.out.rules[model].clone();
        let mesh = self.out.program.models[model].mesh;
        for w in &rules.later {
            if w.axes.is_empty() || w.axes.iter().any(|a| self.axis_of(mesh, a) > 1) {
                let span = self.place_span(w.span, model);
                self.later(span, w.what.clone(), "asked for here");
            }
        }
        if let Some(s) = &rules.stages {
            self.check_stages(model, mesh, s);
            self.check_paired(model, mesh, s);
        }
        for (dim, axis, what) in [("expert", "ep", "experts"), ("ef", "etp", "expert columns")] {
            self.check_experts(model, mesh, (dim, axis, what));
        }
    }

    /// The user's own place for a rule: the rule, or where the library's plan is asked for.
    fn place_span(&self, rule: Span, model: usize) -> Span {
        if self.is_std(rule) { self.out.places[model] } else { rule }
    }

    fn check_stages(&mut self, model: usize, mesh: usize, s: &Stages) {
        let pp = self.axis_of(mesh, &s.axis);
        let m = &self.out.program.models[model];
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        groups.extend(
            m.params.iter().filter_map(|p| p.repeat.as_ref().map(|(g, n)| (&**g, *n * p.apart()))),
        );
        let layers: usize = groups.values().sum();
        if layers == 0 {
            return;
        }
        let place = self.place_span(s.span, model);
        let mesh_at = self.out.facts.meshes.get(mesh).map_or(place, |f| f.span);
        if let Some(split) = &s.split {
            let total: usize = split.iter().sum();
            if pp > 1 && (total != layers || split.len() != pp * s.chunks) {
                let (n, stages) = (split.len(), pp * s.chunks);
                let what = format!(
                    "this split gives {total} layers to {n} stages, the model has {layers} layers and {stages} stages"
                );
                let d = Diagnostic::error("layers-not-divisible", what).label(place, "this split");
                let _: El<()> = self.fail(d.label(mesh_at, format!("{} is {pp}", s.axis)));
            }
            return;
        }
        let stages = pp * s.chunks;
        if layers.is_multiple_of(stages) {
            return;
        }
        let mut legal = divisors(layers);
        legal.retain(|n| n.checked_mul(s.chunks).is_some_and(|parts| layers.is_multiple_of(parts)));
        let may = match legal.is_empty() {
            true => format!("`chunks` may be {}", listed(&divisors(layers))),
            false => format!("{} may be {}", s.axis, listed(&legal)),
        };
        let (each, more) = (layers / pp, layers % pp);
        let split: Vec<String> =
            (0..pp.min(64)).map(|i| (each + usize::from(i < more)).to_string()).collect();
        let stages_of = match pp <= layers.min(64) {
            true => format!("; or give the stages: `split [{}]`", split.join(", ")),
            false => String::new(),
        };
        let times =
            if s.chunks > 1 { format!(" with {} chunks each", s.chunks) } else { String::new() };
        let what = format!(
            "{layers} layers do not split evenly over {} = {pp}{times} (remainder {})",
            s.axis,
            layers % stages
        );
        let d = Diagnostic::error("layers-not-divisible", what)
            .label(place, format!("splits {layers} layers into stages"))
            .label(mesh_at, format!("{} is {pp}", s.axis))
            .help(format!("{may}{stages_of}"));
        let _: El<()> = self.fail(d);
    }

    /// Micro-batches side by side hide what experts exchange; without an exchange there is nothing to hide.
    fn check_paired(&mut self, model: usize, mesh: usize, s: &Stages) {
        if !s.paired {
            return;
        }
        let rules = self.out.rules[model].dims.iter().filter(|r| r.dim == "expert");
        let axes: Vec<String> = rules.flat_map(|r| r.axes.clone()).collect();
        let m = &self.out.program.models[model];
        let has = m.dims.find("expert").is_some();
        if has && axes.iter().any(|a| self.axis_of(mesh, a) > 1) {
            return;
        }
        let (name, mesh_name) = (&m.name, &self.out.program.meshes[mesh].0);
        let (what, help) = match axes.first() {
            _ if !has => (
                format!("`paired` hides what experts exchange, and `{name}` has none"),
                "leave `paired` out".to_string(),
            ),
            Some(axis) => (
                format!(
                    "`paired` hides what experts exchange, and those of `{name}` are not split: `{axis}` of `{mesh_name}` is 1"
                ),
                format!("give `{mesh_name}` an axis such as `{axis}: 8`, or leave `paired` out"),
            ),
            None => (
                format!(
                    "`paired` hides what experts exchange, and this plan does not split those of `{name}`"
                ),
                "add a rule such as `expert: @ep`, or leave `paired` out".to_string(),
            ),
        };
        let place = self.place_span(s.span, model);
        let d = Diagnostic::error("needs-another-setting", what).label(place, "paired here");
        let at = self.out.facts.meshes.get(mesh).map_or(place, |f| f.span);
        let _: El<()> = self.fail(d.label(at, "the mesh").help(help));
    }

    fn check_experts(&mut self, model: usize, mesh: usize, (dim, axis, what): (&str, &str, &str)) {
        let n = self.axis_of(mesh, axis);
        if n <= 1 {
            return;
        }
        let m = &self.out.program.models[model];
        let name = m.name.clone();
        let place = self.out.places[model];
        let at = self.out.facts.meshes.get(mesh).map_or(place, |f| f.span);
        let view = self.out.facts.meshes.get(mesh).and_then(|f| f.experts);
        let at = view.map_or(at, |v| self.out.facts.views[v].span);
        let Some(size) = m.dims.find(dim).map(|d| m.dims.bound(d)) else {
            if axis == "ep" {
                self.no_effect(
                    at,
                    format!("`{axis}` is {n} and `{name}` has no experts"),
                    "splits nothing",
                    format!("leave `{axis}` out"),
                );
            }
            return;
        };
        if size.is_multiple_of(n) {
            return;
        }
        let d = Diagnostic::error(
            "dim-not-divisible",
            format!("{size} {what} do not split evenly over {axis} = {n} (remainder {})", size % n),
        )
        .label(at, format!("{axis} is {n}"))
        .label(place, format!("`{name}` is laid out here"))
        .help(format!("{axis} may be {}", listed(&divisors(size))));
        let _: El<()> = self.fail(d);
    }
}

/// Does `layers.*.self_attn.q_proj` name the tensor `model.layers.{i}.self_attn.q_proj.weight`?
fn names(pattern: &str, checkpoint: &str) -> bool {
    let stored = checkpoint.strip_suffix(".weight").unwrap_or(checkpoint);
    let stored = numberless(stored).replace("{e}", "*");
    let bare = stored.strip_prefix("model.").unwrap_or(&stored);
    pattern == stored || pattern.strip_prefix("model.").unwrap_or(pattern) == bare
}

/// A name with `*` for the number of the layer.
fn numberless(name: &str) -> String {
    match name.find("{i").and_then(|start| Some((start, start + name[start..].find('}')?))) {
        Some((start, end)) => format!("{}*{}", &name[..start], &name[end + 1..]),
        None => name.to_string(),
    }
}
