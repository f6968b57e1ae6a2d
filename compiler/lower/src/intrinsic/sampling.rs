//! Generators and what they draw: options of sampling, staleness, records.

use nrl_base::{Diagnostic, Span};
use nrl_ir::host::Value;
use nrl_ir::program::{Generator, Sampling, Stage};
use nrl_syntax::ast::{self, BinaryOp, ExprKind};

use super::Args;
use crate::elab::{El, Elab, Stop};
use crate::facts::{Asked, GeneratorFacts};
use crate::units::Unit;
use crate::value::{Drawing, Env, Samples, Stale, Val};

/// Sequences in flight per rank where a recipe names no number.
const SLOTS: usize = 256;

/// What a generator can keep of each token besides its log-probability.
const RECORDS: &[&str] = &["routes", "support"];

impl<'a> Elab<'a, '_> {
    fn sampling(&mut self, a: &mut Args<'a>, base: Sampling) -> El<Sampling> {
        let mut s = base;
        if let Some(g) = a.take("temperature") {
            s.temperature = self.number(&g.val, g.span, "`temperature`")?;
            if s.temperature < 0.0 {
                return self.error(
                    "out-of-range",
                    g.span,
                    format!("the temperature is {}, below 0", s.temperature),
                    "0 is greedy, 1 the model's own distribution",
                );
            }
        }
        if let Some(g) = a.take("top_k").filter(|g| !g.val.is_none()) {
            let k = self.whole(&g.val, g.span, "`top_k`")?;
            if k == 0 {
                return self.error(
                    "out-of-range",
                    g.span,
                    "`top_k` of 0 keeps no token",
                    "leave it out to keep all",
                );
            }
            s.top_k = Some(k);
        }
        if let Some(g) = a.take("top_p").filter(|g| !g.val.is_none()) {
            let p = self.number(&g.val, g.span, "`top_p`")?;
            if !(p > 0.0 && p <= 1.0) {
                return self.error(
                    "out-of-range",
                    g.span,
                    format!("`top_p` is {p}, outside 0..1"),
                    "a share of probability",
                );
            }
            s.top_p = (p < 1.0).then_some(p);
        }
        if let Some(g) = a.take("stop").filter(|g| !g.val.is_none()) {
            s.stop = match &g.val {
                Val::Const(Value::Text(t), _) => vec![t.to_string()],
                Val::Const(Value::List(l), _) => l
                    .iter()
                    .filter_map(|v| if let Value::Text(t) = v { Some(t.to_string()) } else { None })
                    .collect(),
                v => {
                    let kind = v.kind();
                    return self.error(
                        "wrong-type",
                        g.span,
                        format!("`stop` is a text or a list of texts, not {kind}"),
                        "this value",
                    );
                }
            };
        }
        if let Some(g) = a.take("stop_ids").filter(|g| !g.val.is_none()) {
            let Val::Const(Value::List(l), _) = &g.val else {
                return self.error(
                    "wrong-type",
                    g.span,
                    "`stop_ids` is a list of token ids",
                    "this value",
                );
            };
            s.stop_ids = l
                .iter()
                .filter_map(|v| if let Value::Num(x) = v { Some(*x as u32) } else { None })
                .collect();
        }
        Ok(s)
    }

    pub fn generator(&mut self, env: &Env<'a>, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (m, s) = a.need("model");
        let model = self.model_of(&m, s)?;
        let mesh = match a.take("on") {
            Some(g) => match g.val {
                Val::Mesh(i) => Some(i),
                v => {
                    let kind = v.kind();
                    return self.error(
                        "wrong-type",
                        g.span,
                        format!("`on:` takes a mesh, not {kind}"),
                        format!("this is {kind}"),
                    );
                }
            },
            None => None,
        };
        let base = Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            stop: vec![],
            stop_ids: vec![],
            min_new: 0,
        };
        let (temperature_at, support_at) = set_at(&a);
        let sampling = self.sampling(&mut a, base)?;
        let records = self.records(&mut a)?;
        let memory = self.memory(env, &mut a)?;
        let slots = match a.take("slots") {
            Some(g) => self.whole(&g.val, g.span, "`slots`")?.max(1),
            None => SLOTS,
        };
        let graph = self.generate_graph(model, span)?;
        if mesh.is_some() {
            self.meshed.insert(self.out.program.generators.len());
        }
        let mesh = mesh.unwrap_or(0);
        self.out.program.generators.push(Generator {
            name: String::new(),
            model,
            mesh,
            sampling: sampling.clone(),
            graph,
            slots,
        });
        self.out.facts.generators.push(GeneratorFacts { memory });
        let drawing = Drawing { model, sampling, temperature_at, support_at, records, stale: None };
        Ok(Val::Generator(self.out.program.generators.len() - 1, drawing))
    }

    /// `record: [routes, support]`.
    fn records(&mut self, a: &mut Args<'a>) -> El<Vec<String>> {
        let Some(e) = a.take("record").and_then(|g| g.expr) else { return Ok(vec![]) };
        let words = self.words(e, "what to record, such as `[routes]`")?;
        for (word, at) in &words {
            if RECORDS.contains(&word.as_str()) {
                continue;
            }
            let help = nrl_base::did_you_mean(word, RECORDS.iter().copied())
                .unwrap_or_else(|| format!("one of {}", RECORDS.join(", ")));
            let what = format!("a generator cannot record `{word}`");
            return self.fail(
                Diagnostic::error("unknown-name", what).label(*at, "not a record").help(help),
            );
        }
        if !words.is_empty() {
            self.later(e.span, "records of a sampler do not run yet", "these records");
        }
        Ok(words.into_iter().map(|(w, _)| w).collect())
    }

    /// `memory: 60 % of device`, or a number of bytes or tokens.
    fn memory(&mut self, env: &Env<'a>, a: &mut Args<'a>) -> El<Option<(Asked, Span)>> {
        let Some(e) = a.take("memory").and_then(|g| g.expr) else { return Ok(None) };
        let (value, share) = match &e.kind {
            ExprKind::Of { part, whole } if whole.as_name() == Some("device") => (&**part, true),
            _ => (e, false),
        };
        let v = self.expr(env, value)?;
        let asked = match &v {
            Val::Const(Value::Num(x), u) if share && u.is_none() && *x > 0.0 && *x <= 1.0 => {
                Some(Asked::Share(*x))
            }
            Val::Const(Value::Num(x), u) if !share && *u == Unit::of("byte") => {
                Some(Asked::Bytes(*x))
            }
            Val::Const(Value::Num(x), u) if !share && *u == Unit::of("token") => {
                Some(Asked::Tokens(*x))
            }
            _ => None,
        };
        let Some(asked) = asked else {
            let kind = v.kind();
            let what = format!("`memory` is a share of the device, bytes or tokens, not {kind}");
            let d = Diagnostic::error("unit-mismatch", what).label(e.span, "this memory");
            return self.fail(d.help("write `60 % of device` or `40 GB`"));
        };
        if self.out.facts.clusters.iter().all(|c| !c.device.gpu) {
            self.no_effect(
                e.span,
                "`memory` of a generator on CPU ranks does nothing",
                "no device to take it of",
                "leave it out, or say how many sequences are in flight: `slots: 64`",
            );
        }
        Ok(Some((asked, e.span)))
    }

    /// `sampler with (temperature: 0)`.
    pub fn with_settings(
        &mut self,
        env: &Env<'a>,
        base: Val<'a>,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Val<'a>> {
        if let Val::Samples(s) = base {
            return self.stale(env, s, args, span);
        }
        let Val::Generator(i, drawing) = base else {
            let kind = base.kind();
            return self.error(
                "wrong-type",
                span,
                format!("`with` changes settings of a generator, not of {kind}"),
                format!("this is {kind}"),
            );
        };
        let Some(which) = super::find("generator") else { return Err(Stop) };
        let mut given: Vec<Option<super::Given<'a>>> = which.params.iter().map(|_| None).collect();
        for arg in args {
            let name = arg.name.as_ref().map(|n| n.text.as_str()).unwrap_or("");
            let allowed = ["temperature", "top_k", "top_p", "stop", "stop_ids"];
            if !allowed.contains(&name) {
                let help = nrl_base::did_you_mean(name, allowed)
                    .unwrap_or_else(|| format!("one of {}", allowed.join(", ")));
                return self.fail(
                    Diagnostic::error(
                        "unknown-name",
                        format!("a generator has no setting `{name}` to change"),
                    )
                    .label(arg.span, "not a setting")
                    .help(help),
                );
            }
            let Some(at) = which.params.iter().position(|p| p.trim_end_matches('?') == name) else {
                continue;
            };
            given[at] = Some(super::Given {
                val: self.expr(env, &arg.value)?,
                span: arg.value.span,
                expr: None,
            });
        }
        let mut a = Args { which, given, span };
        let (temperature_at, support_at) = set_at(&a);
        let sampling = self.sampling(&mut a, drawing.sampling)?;
        Ok(Val::Generator(
            i,
            Drawing {
                sampling,
                temperature_at: temperature_at.or(drawing.temperature_at),
                support_at: support_at.or(drawing.support_at),
                ..drawing
            },
        ))
    }

    /// `with delay 2`, `with staleness <= 1 step, swap: in_flight`: samples of earlier weights.
    fn stale(
        &mut self,
        env: &Env<'a>,
        mut s: Samples,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Val<'a>> {
        let mut stale: Option<Stale> = None;
        let mut swap: Option<Span> = None;
        for arg in args {
            let name = arg.name.as_ref().map(|n| n.text.as_str());
            match (&arg.value.kind, name) {
                (_, Some("delay")) => {
                    let v = self.expr(env, &arg.value)?;
                    let v = match v {
                        Val::Const(n, u) if u.is_none() => Val::Const(n, Unit::of("step")),
                        v => v,
                    };
                    let steps = self.counted(&v, arg.value.span, "the delay", Unit::of("step"))?;
                    self.out.facts.staleness = Some(steps);
                    stale = Some(Stale { steps, exact: true, span: arg.span });
                }
                (ExprKind::Binary { op: BinaryOp::Le, lhs, rhs, .. }, None)
                    if lhs.as_name() == Some("staleness") =>
                {
                    let v = self.expr(env, rhs)?;
                    let steps = self.counted(&v, rhs.span, "staleness", Unit::of("step"))?;
                    self.out.facts.staleness = Some(steps);
                    stale = Some(Stale { steps, exact: false, span: arg.span });
                }
                (_, Some("swap")) => {
                    let word = arg.value.as_name().unwrap_or("");
                    if !["in_flight", "between_samples"].contains(&word) {
                        let known = ["in_flight", "between_samples"];
                        let help = nrl_base::did_you_mean(word, known)
                            .unwrap_or_else(|| format!("one of {}", known.join(", ")));
                        let what = "`swap` says when new weights are taken";
                        let d = Diagnostic::error("unknown-name", what);
                        return self.fail(d.label(arg.value.span, "not a way").help(help));
                    }
                    swap = Some(arg.span);
                }
                _ => {
                    let known = ["delay", "staleness", "swap"];
                    let help =
                        nrl_base::did_you_mean(name.unwrap_or(""), known).unwrap_or_else(|| {
                            "write `with delay 1` or `with staleness <= 1 step, swap: in_flight`"
                                .into()
                        });
                    let d = Diagnostic::error("unknown-name", "samples have no such setting");
                    return self.fail(d.label(arg.span, "not a setting of samples").help(help));
                }
            }
        }
        if let (Some(at), true) = (swap, stale.as_ref().is_none_or(|x| x.steps == 0 || x.exact)) {
            self.no_effect(
                at,
                "`swap` does nothing to samples of the step's own weights",
                "no other weights come in",
                "remove it, or write `staleness <= 1 step`",
            );
        }
        let Some(drawing) = &mut s.drawing else {
            return self.error(
                "wrong-type",
                span,
                "these samples were not generated",
                "not of a sampler",
            );
        };
        if let Some(stale) = stale.filter(|x| x.steps > 0) {
            self.later(stale.span, "sampling beside training does not run yet", "asked for here");
            drawing.stale = Some(stale);
            self.drawn.insert(s.binding, drawing.clone());
        }
        Ok(Val::Samples(s))
    }

    pub fn generate(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        self.need_step("generation", span)?;
        let (g, sg) = a.need("generator");
        let Val::Generator(generator, mut drawing) = g else {
            let kind = g.kind();
            return self.error(
                "wrong-type",
                sg,
                format!("only a generator generates, not {kind}"),
                format!("this is {kind}"),
            );
        };
        let (p, sp) = a.need("prompts");
        let Val::Prompts { binding } = p else {
            let kind = p.kind();
            return self.fail(
                Diagnostic::error("wrong-type", format!("`generate` takes prompts, not {kind}"))
                    .label(sp, format!("this is {kind}"))
                    .help("write `data.take(32 prompts)`"),
            );
        };
        let (n, sn) = a.need("samples");
        let per = Unit::of("sample").times(&Unit::of("prompt").inverse());
        let copies = self.counted(&n, sn, "the group size", per)?;
        if copies == 0 {
            return self.error(
                "out-of-range",
                sn,
                "a group of 0 samples",
                "at least 1 sample/prompt",
            );
        }
        let max_new = match a.take("max_new") {
            None => None,
            Some(g) if matches!(g.val, Val::Rest) => None,
            Some(g) => Some(self.counted(&g.val, g.span, "`max_new`", Unit::of("token"))?),
        };
        if let Some(g) = a.take("temperature") {
            drawing.sampling.temperature = self.number(&g.val, g.span, "`temperature`")?;
            drawing.temperature_at = Some(g.span);
        }
        if let Some(g) = a.take("min_new") {
            drawing.sampling.min_new =
                self.counted(&g.val, g.span, "`min_new`", Unit::of("token"))?;
            drawing.support_at = Some(g.span);
        }
        if let Some(g) = a.take("deadline") {
            let positive = matches!(&g.val, Val::Const(Value::Num(x), u) if *u == Unit::of("second") && *x > 0.0);
            if !positive {
                let kind = g.val.kind();
                let what = format!("a deadline is a time, not {kind}");
                let d = Diagnostic::error("unit-mismatch", what)
                    .label(g.span, format!("this is {kind}"));
                return self.fail(d.help("write `300 s` or `5 min`"));
            }
            self.later(g.span, "deadlines of generation do not run yet", "this deadline");
        }
        let sampling = drawing.sampling.clone();
        let binding = self.stage(
            "",
            Stage::Generate { generator, copies, max_new, sampling },
            vec![binding],
            span,
        );
        self.drawn.insert(binding, drawing.clone());
        Ok(Val::Samples(Samples { binding, drawing: Some(drawing), side: None, reward: None }))
    }
}

/// Where the temperature and the kept tokens are set.
fn set_at(a: &Args<'_>) -> (Option<Span>, Option<Span>) {
    let at = |name: &str| {
        let i = a.which.params.iter().position(|p| p.trim_end_matches('?') == name)?;
        a.given[i].as_ref().filter(|g| !g.val.is_none()).map(|g| g.span)
    };
    (at("temperature"), at("top_p").or_else(|| at("top_k")))
}
