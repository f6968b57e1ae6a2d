//! Plans: which axes split which dims, and whether the sizes of a model allow it.

use nrl_base::Diagnostic;
use nrl_syntax::ast::{self, PlanRuleKind};

use crate::call::ArgVal;
use crate::elab::{El, Elab};
use crate::modules::ModuleId;
use crate::value::{DimRule, Env, PathRule, PlanRules, Stages, StateMode, Val, Waits};

impl PlanRules {
    /// Rules of both, those of `self` first.
    pub fn times(mut self, other: PlanRules) -> PlanRules {
        self.dims.extend(other.dims);
        self.paths.extend(other.paths);
        self.state = self.state.or(other.state);
        self.recompute = self.recompute.or(other.recompute);
        self.offload.extend(other.offload);
        self.stages = self.stages.or(other.stages);
        self.later.extend(other.later);
        self.styles.extend(other.styles);
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
            if let Some(c) = &r.cond
                && !self.truth(env, c, "a condition")?
            {
                continue;
            }
            match &r.kind {
                PlanRuleKind::Split { targets, axes, view } => {
                    if let Some(v) = view {
                        self.known_view(env, v, axes)?;
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
                            out.later.push(Waits {
                                axes: axes.iter().map(|a| a.text.clone()).collect(),
                                what: "zero2 does not run yet; zero1 and zero3 do".into(),
                                span: mode.span,
                            });
                            StateMode::Zero2
                        }
                        other => {
                            let help = nrl_base::did_you_mean(other, ["zero1", "zero2", "zero3"]);
                            return self.fail(
                                Diagnostic::error(
                                    "unknown-name",
                                    format!("`{other}` is not a way to cut state"),
                                )
                                .label(mode.span, "zero1, zero2 or zero3")
                                .help_opt(help),
                            );
                        }
                    };
                    out.state = Some((mode, axes.iter().map(|a| a.text.clone()).collect(), r.span));
                }
                PlanRuleKind::Recompute { mode, .. } => {
                    let text = self.choice(env, mode, "recompute", &["selective", "full"])?;
                    out.recompute = Some((text, r.span));
                }
                PlanRuleKind::Offload { what } => {
                    let text = self.choice(env, what, "offload", &["optimizer", "activations"])?;
                    if text != "none" {
                        out.offload.push((text, r.span));
                    }
                }
                PlanRuleKind::Stages { axis, chunks, split, paired, .. } => {
                    let chunks = match chunks {
                        Some(e) => {
                            let v = self.expr(env, e)?;
                            self.whole(&v, e.span, "the number of virtual stages")?.max(1)
                        }
                        None => 1,
                    };
                    let split = match split {
                        Some(e) => self.numbers(env, e)?,
                        None => None,
                    };
                    let paired = match paired {
                        Some(e) => self.truth(env, e, "`paired`")?,
                        None => false,
                    };
                    let (axis, span) = (axis.text.clone(), r.span);
                    if paired {
                        out.later.push(Waits {
                            axes: vec![],
                            what: "paired micro-batches do not run yet".into(),
                            span,
                        });
                    }
                    out.later.push(Waits {
                        axes: vec![axis.clone()],
                        what: "pipeline stages do not run yet".into(),
                        span,
                    });
                    out.stages = Some(Stages { axis, chunks, split, paired, span });
                }
                PlanRuleKind::Reduce { axis, .. } => out.later.push(Waits {
                    axes: vec![axis.text.clone()],
                    what: "reductions in another number type do not run yet".into(),
                    span: r.span,
                }),
            }
        }
        Ok(out)
    }
}

impl<'a> Elab<'a, '_> {
    /// A bool known now, called `what`.
    fn truth(&mut self, env: &Env<'a>, e: &'a ast::Expr, what: &str) -> El<bool> {
        match self.expr(env, e)? {
            Val::Const(nrl_ir::host::Value::Bool(is), _) => Ok(is),
            v => {
                let kind = v.kind();
                let said = format!("{what} must be a bool, not {kind}");
                self.error("wrong-type", e.span, said, format!("this is {kind}"))
            }
        }
    }

    /// A rule names a view that the recipe has; plans of the library name none.
    fn known_view(&mut self, env: &Env<'a>, v: &ast::Name, axes: &[ast::Name]) -> El<()> {
        match env.get(&v.text) {
            Some(Val::View(view)) => {
                let view = self.out.facts.views[*view].clone();
                let Some(axis) = axes.iter().find(|a| !view.axes.iter().any(|x| x.name == a.text))
                else {
                    return Ok(());
                };
                let known: Vec<&str> = view.axes.iter().map(|a| a.name.as_str()).collect();
                let what = format!("view `{}` has no axis `{}`", v.text, axis.text);
                let d =
                    Diagnostic::error("unknown-axis", what).label(axis.span, "not an axis of it");
                self.fail(
                    d.label(view.span, "the view")
                        .help(format!("its axes are {}", known.join(", "))),
                )
            }
            _ => {
                let known: Vec<&str> =
                    env.iter().filter(|(_, x)| matches!(x, Val::View(_))).map(|(n, _)| n).collect();
                let help = nrl_base::did_you_mean(&v.text, known.iter().copied()).unwrap_or_else(|| {
                    "write `view x of m(dp, tp) = (edp: rest, ep: 4)`, and the rule in a plan of the recipe".into()
                });
                let what = format!("there is no view `{}` here", v.text);
                self.fail(
                    Diagnostic::error("unknown-name", what).label(v.span, "not found").help(help),
                )
            }
        }
    }

    /// `none` or one of `words`, by a word or by a value.
    fn choice(
        &mut self,
        env: &Env<'a>,
        e: &'a ast::Expr,
        rule: &str,
        words: &[&str],
    ) -> El<String> {
        let written = e.as_name().filter(|n| words.contains(n));
        let text = match written {
            Some(n) if env.get(n).is_none() => n.to_string(),
            _ => match self.expr(env, e)? {
                Val::Variant { name, .. } => name,
                v if v.is_none() => "none".into(),
                v => v.kind(),
            },
        };
        if text != "none" && !words.contains(&text.as_str()) {
            let all: Vec<String> = words.iter().map(|w| format!("`{w}`")).collect();
            let what = format!("{rule} is `none`, {}, not {text}", all.join(" or "));
            return self.error("wrong-type", e.span, what, "this choice");
        }
        Ok(text)
    }

    /// A list of whole numbers known now.
    fn numbers(&mut self, env: &Env<'a>, e: &'a ast::Expr) -> El<Option<Vec<usize>>> {
        let v = self.expr(env, e)?;
        if v.is_none() {
            return Ok(None);
        }
        let Val::Const(nrl_ir::host::Value::List(items), _) = &v else {
            let kind = v.kind();
            let what = format!("a list of numbers of layers is needed, not {kind}");
            return self.error("wrong-type", e.span, what, "such as `[8, 8, 7, 7]`");
        };
        let mut out = vec![];
        for i in items.iter() {
            out.push(self.whole(&Val::constant(i.clone()), e.span, "a number of layers")?);
        }
        Ok(Some(out))
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
