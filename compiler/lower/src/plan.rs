//! Plans and meshes: which axes split which dims.

use nrl_base::Diagnostic;
use nrl_ir::Mesh;
use nrl_syntax::ast::{self, PlanRuleKind};

use crate::call::ArgVal;
use crate::elab::{El, Elab};
use crate::modules::ModuleId;
use crate::value::{DimRule, Env, PathRule, PlanRules, StateMode, Val};

impl PlanRules {
    /// Rules of both, those of `self` first.
    pub fn times(mut self, other: PlanRules) -> PlanRules {
        self.dims.extend(other.dims);
        self.paths.extend(other.paths);
        self.state = self.state.or(other.state);
        self.recompute = self.recompute.or(other.recompute);
        self
    }
}

impl<'a> Elab<'a, '_> {
    /// `plans.fsdp()`.
    pub fn plan_call(
        &mut self,
        module: ModuleId,
        p: &'a ast::Plan,
        args: Vec<ArgVal<'a>>,
        span: nrl_base::Span,
    ) -> El<Val<'a>> {
        let mut env = Env::new(module);
        self.bind_params(&mut env, module, &p.name.text, &p.params, args, p.name.span, span)?;
        Ok(Val::Plan(self.rules(&env, &p.rules, module == ModuleId(0))?))
    }

    /// `plan mine for llama on m = base with { .. }`.
    pub fn plan_for(&mut self, env: &Env<'a>, p: &'a ast::PlanFor) -> El<Val<'a>> {
        let base = match self.expr(env, &p.base)? {
            Val::Plan(r) => r,
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    p.base.span,
                    format!("a plan is made from a plan, not {kind}"),
                    format!("this is {kind}"),
                );
            }
        };
        let own = self.rules(env, &p.rules, true)?;
        Ok(Val::Plan(own.times(base)))
    }

    fn rules(&mut self, env: &Env<'a>, rules: &'a [ast::PlanRule], own: bool) -> El<PlanRules> {
        let mut out = PlanRules::default();
        for r in rules {
            if let Some(c) = &r.cond {
                match self.expr(env, c)? {
                    Val::Const(nrl_ir::host::Value::Bool(true), _) => {}
                    Val::Const(nrl_ir::host::Value::Bool(false), _) => continue,
                    v => {
                        let kind = v.kind();
                        return self.error(
                            "wrong-type",
                            c.span,
                            format!("a condition must be a bool, not {kind}"),
                            format!("this is {kind}"),
                        );
                    }
                }
            }
            match &r.kind {
                PlanRuleKind::Split { targets, axes, view } => {
                    if let Some(v) = view {
                        return self.error(
                            "not-supported",
                            v.span,
                            "views of a mesh do not run yet",
                            "this view",
                        );
                    }
                    for t in targets {
                        let Some(dim) = t.as_name() else {
                            return self.error(
                                "wrong-type",
                                t.span,
                                "a rule names dims",
                                "not a name",
                            );
                        };
                        out.dims.push(DimRule {
                            dim: dim.into(),
                            axes: axes.iter().map(|a| a.text.clone()).collect(),
                            span: r.span,
                            own,
                        });
                    }
                }
                PlanRuleKind::Layout { target, dims } => {
                    let Some(param) = path_text(target) else {
                        return self.error(
                            "wrong-type",
                            target.span,
                            "a layout rule names a parameter, such as `layers[*].wo`",
                            "not a parameter",
                        );
                    };
                    let dims = dims
                        .iter()
                        .filter_map(|l| {
                            Some((
                                l.dim.as_name()?.to_string(),
                                l.axes.iter().map(|a| a.text.clone()).collect(),
                            ))
                        })
                        .collect();
                    out.paths.push(PathRule { param, dims, span: r.span });
                }
                PlanRuleKind::State { mode, axes } => {
                    let mode = match mode.text.as_str() {
                        "zero1" => StateMode::Zero1,
                        "zero3" => StateMode::Zero3,
                        "zero2" => {
                            return self.error(
                                "not-supported",
                                mode.span,
                                "zero2 does not run yet",
                                "zero1 and zero3 do",
                            );
                        }
                        other => {
                            let help = nrl_base::did_you_mean(other, ["zero1", "zero3"]);
                            return self.fail(
                                Diagnostic::error(
                                    "unknown-name",
                                    format!("`{other}` is not a way to cut state"),
                                )
                                .label(mode.span, "zero1 or zero3")
                                .help_opt(help),
                            );
                        }
                    };
                    out.state = Some((mode, axes.iter().map(|a| a.text.clone()).collect(), r.span));
                }
                PlanRuleKind::Recompute { mode, .. } => {
                    let text = mode.as_name().map_or_else(
                        || {
                            if matches!(mode.kind, ast::ExprKind::None) {
                                "none".into()
                            } else {
                                String::new()
                            }
                        },
                        str::to_string,
                    );
                    if text != "none" && text != "full" {
                        return self.error(
                            "not-supported",
                            mode.span,
                            "recompute is `none` or `full`",
                            "this choice",
                        );
                    }
                    out.recompute = Some((text, r.span));
                }
                PlanRuleKind::Stages { axis, .. } => {
                    return self.error(
                        "not-supported",
                        axis.span,
                        "pipeline stages do not run yet",
                        "this axis",
                    );
                }
                PlanRuleKind::Reduce { axis, .. } => {
                    return self.error(
                        "not-supported",
                        axis.span,
                        "reductions in another dtype do not run yet",
                        "this axis",
                    );
                }
            }
        }
        Ok(out)
    }

    /// `mesh m = cluster axes (dp: rest, tp: 2)`.
    pub fn mesh(&mut self, env: &Env<'a>, m: &'a ast::Mesh) -> El<Val<'a>> {
        let ranks = match self.expr(env, &m.cluster)? {
            Val::Cluster { ranks } => ranks.unwrap_or(1),
            v => {
                let kind = v.kind();
                return self.error(
                    "wrong-type",
                    m.cluster.span,
                    format!("a mesh is made of a cluster, not {kind}"),
                    format!("this is {kind}"),
                );
            }
        };
        let mut axes: Vec<(String, Option<usize>)> = vec![];
        for a in &m.axes {
            let known = ["dp", "fsdp", "tp", "rep", "rtp"];
            if !known.contains(&a.name.text.as_str()) {
                let later = ["pp", "cp", "ep", "etp", "sp"].contains(&a.name.text.as_str());
                let code = if later { "not-supported" } else { "unknown-name" };
                let text = if later {
                    format!("axis `{}` does not run yet", a.name.text)
                } else {
                    format!("there is no axis `{}`", a.name.text)
                };
                let help = (!later).then(|| nrl_base::did_you_mean(&a.name.text, known)).flatten();
                let help = help.unwrap_or_else(|| format!("axes are {}", known.join(", ")));
                return self
                    .fail(Diagnostic::error(code, text).label(a.span, "this axis").help(help));
            }
            if axes.iter().any(|(n, _)| *n == a.name.text) {
                return self.error(
                    "duplicate-name",
                    a.span,
                    format!("axis `{}` is given twice", a.name.text),
                    "second size",
                );
            }
            let size = match self.expr(env, &a.size)? {
                Val::Rest => None,
                v => Some(self.whole(&v, a.size.span, &format!("axis `{}`", a.name.text))?),
            };
            if size == Some(0) {
                return self.error(
                    "out-of-range",
                    a.span,
                    format!("axis `{}` has size 0", a.name.text),
                    "at least 1",
                );
            }
            axes.push((a.name.text.clone(), size));
        }
        let product: usize = axes.iter().filter_map(|(_, s)| *s).product();
        let rests = axes.iter().filter(|(_, s)| s.is_none()).count();
        let span = m
            .axes
            .first()
            .map_or(m.name.span, |a| a.span.to(m.axes.last().map_or(a.span, |b| b.span)));
        let written = axes
            .iter()
            .map(|(n, s)| format!("{n} {}", s.map_or("rest".into(), |s| s.to_string())))
            .collect::<Vec<_>>()
            .join(" * ");
        if rests > 1 {
            return self.error("mesh-does-not-fill", span, "only one axis can be `rest`", written);
        }
        if (rests == 0 && product != ranks) || (rests == 1 && ranks % product != 0) {
            let divisors: Vec<String> =
                (1..=ranks).filter(|n| ranks % n == 0).map(|n| n.to_string()).collect();
            return self.fail(
                Diagnostic::error(
                    "mesh-does-not-fill",
                    format!(
                        "mesh `{}` needs {written} ranks, the cluster has {ranks}",
                        m.name.text
                    ),
                )
                .label(span, format!("the sizes given make {product}"))
                .label(m.cluster.span, format!("{ranks} ranks"))
                .help(if rests == 1 {
                    format!("{product} must divide {ranks}; sizes that do: {}", divisors.join(", "))
                } else {
                    format!("make the product {ranks}, or write `rest` for one axis")
                }),
            );
        }
        let axes = axes
            .into_iter()
            .map(|(name, s)| nrl_ir::Axis { name, size: s.unwrap_or(ranks / product.max(1)) })
            .collect();
        self.out.program.meshes.push((m.name.text.clone(), Mesh { axes }));
        Ok(Val::Mesh(self.out.program.meshes.len() - 1))
    }
}

/// `layers[*].wo` as `layers.wo`; a plain name as itself.
fn path_text(e: &ast::Expr) -> Option<String> {
    match &e.kind {
        ast::ExprKind::Name(n) => Some(n.clone()),
        ast::ExprKind::Field { base, name } => Some(format!("{}.{}", path_text(base)?, name.text)),
        ast::ExprKind::Index { base, items } if matches!(items[..], [ast::IndexItem::All(_)]) => {
            path_text(base)
        }
        _ => None,
    }
}
