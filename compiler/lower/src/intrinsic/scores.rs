//! What models say of samples: log-probabilities, values, distributions and their divergences.

use std::rc::Rc;

use nrl_base::{Diagnostic, Span};
use nrl_ir::program::{BindingId, Stage};
use nrl_ir::{BinaryOp, Op, UnaryOp};

use super::Args;
use crate::builder::Builder;
use crate::elab::{El, Elab, GraphKind, Mode, Stop};
use crate::origin::{Origin, Support};
use crate::value::{Samples, StepShape, StepTensor, Val, Validity};

/// Token budget of a micro-batch where a recipe names none.
const MICROBATCH_TOKENS: usize = 8192;

/// The distribution of a model over the next token, at each trained token of a batch.
#[derive(Clone, Debug)]
pub struct Dist {
    pub model: usize,
    pub samples: Samples,
    /// Only the `.0` likeliest tokens of model `.1`, and the rest as one.
    pub kept: Option<(usize, usize)>,
    pub temperature: f64,
    pub span: Span,
}

impl<'a> Elab<'a, '_> {
    fn samples_of(&mut self, v: Val<'a>, span: Span, what: &str) -> El<Samples> {
        match v {
            Val::Samples(s) => Ok(s),
            Val::Pairs { .. } => self.fail(
                Diagnostic::error("wrong-type", format!("`{what}` takes one side of the pairs"))
                    .label(span, "these are pairs")
                    .help("write `b.chosen` or `b.rejected`"),
            ),
            v => {
                let kind = v.kind();
                let text = format!("`{what}` takes samples, not {kind}");
                self.error("wrong-type", span, text, format!("this is {kind}"))
            }
        }
    }

    /// `logprob(model, samples, temperature:, routes:, on:)`.
    pub fn logprob_call(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (m, sm) = a.need("model");
        let (b, sb) = a.need("samples");
        let model = self.model_of(&m, sm)?;
        let samples = self.samples_of(b, sb, "logprob")?;
        let mut origin = self.origin_of(model, &samples, span);
        if let Some(g) = a.take("temperature").filter(|g| !g.val.is_none()) {
            origin.temperature = self.number(&g.val, g.span, "`temperature`")?;
            origin.temperature_at = Some(g.span);
        }
        if let Some(g) = a.take("routes") {
            self.recorded(&g.val, g.span, "routes", &samples)?;
            if self.out.program.models[model].dims.find("expert").is_none() {
                let name = self.out.program.models[model].name.clone();
                self.no_effect(
                    g.span,
                    format!("`routes` is given and `{name}` has no experts"),
                    "routes nothing",
                    "leave `routes` out",
                );
            } else {
                self.later(g.span, "replay of a sampler's routes does not run yet", "these routes");
            }
        }
        if let Some(g) = a.take("on") {
            self.recorded(&g.val, g.span, "support", &samples)?;
            origin.support =
                samples.drawing.as_ref().map_or(Support::default(), |d| Support::of(&d.sampling));
            origin.support_at = Some(g.span);
            let what = "log-probabilities over the sampler's support do not run yet";
            self.later(g.span, what, "this support");
        }
        let v = self.logprob(model, &samples, origin.temperature, span)?;
        Ok(with_origin(v, origin))
    }

    fn origin_of(&self, model: usize, samples: &Samples, span: Span) -> Origin {
        let name = &self.out.program.models[model].name;
        let of = self.stages.get(samples.binding).map_or("s", |b| b.name.as_str());
        let of = if of.starts_with('%') { ".." } else { of };
        let drawing = samples.drawing.as_ref();
        Origin {
            model,
            version: self.version(model),
            temperature: drawing.map_or(1.0, |d| d.sampling.temperature),
            support: Support::default(),
            samples: samples.binding,
            told: format!("logprob({name}, {of})"),
            span,
            temperature_at: drawing.and_then(|d| d.temperature_at),
            support_at: None,
        }
    }

    /// Checks that `v` is what the sampler of `samples` recorded.
    fn recorded(&mut self, v: &Val<'a>, span: Span, what: &str, samples: &Samples) -> El<()> {
        match v {
            Val::Recorded { what: w, samples: s } if w == what && *s == samples.binding => Ok(()),
            Val::Recorded { what: w, samples: s } if *s == samples.binding => {
                let text = format!("`{what}` of the samples are needed, these are their {w}");
                self.error("wrong-type", span, text, "this record")
            }
            Val::Recorded { .. } => {
                let text = format!("these {what} were recorded of other samples");
                self.error("wrong-type", span, text, "of another batch")
            }
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                let text = format!("the {what} of the samples are needed, not {kind}");
                let d =
                    Diagnostic::error("wrong-type", text).label(span, format!("this is {kind}"));
                self.fail(
                    d.help(format!("write `s.{what}`, of a generator with `record: [{what}]`")),
                )
            }
        }
    }

    /// Log-probabilities of the trained tokens of `samples` under `model`.
    pub fn logprob(
        &mut self,
        model: usize,
        samples: &Samples,
        temperature: f64,
        span: Span,
    ) -> El<Val<'a>> {
        if self.live_model() == Some(model) {
            let known = self.builder(span)?.logprobs.get(&samples.binding).copied();
            let lp = match known {
                Some((lp, _)) => lp,
                None => {
                    if !self.builder(span)?.logprobs.is_empty() {
                        return self.error(
                            "not-supported",
                            span,
                            "a loss over two batches of samples does not run yet",
                            "a second batch",
                        );
                    }
                    let (lp, entropy) = self.forward_logprob(model, span)?;
                    let b = self.builder(span)?;
                    b.samples = Some(samples.binding);
                    b.logprobs.insert(samples.binding, (lp, entropy));
                    b.temperature = Some(temperature);
                    lp
                }
            };
            return self.on_side(lp, samples, span);
        }
        self.in_step("logprob", span)?;
        let temperature = if temperature > 0.0 { temperature } else { 1.0 };
        let moved = self.updated.contains(&model);
        let key = (model, samples.binding, temperature.to_bits(), moved);
        let binding = match self.forwards.get(&key) {
            Some(b) => *b,
            None => {
                let output = self.scored(span, |me| {
                    let (lp, _) = me.forward_logprob(model, span)?;
                    Ok(("logprob", lp))
                })?;
                let b = self.forward_stage(model, output, temperature, samples, span);
                self.forwards.insert(key, b);
                b
            }
        };
        Ok(Val::Step(StepTensor {
            binding,
            field: None,
            shape: StepShape::Act,
            valid: Validity::All,
            samples: Some(samples.binding),
            side: samples.side,
            origin: None,
        }))
    }

    /// A value of the loss graph that belongs to one side of pairs.
    fn on_side(&mut self, id: nrl_ir::ValueId, samples: &Samples, span: Span) -> El<Val<'a>> {
        let Some(side) = samples.side else { return Ok(self.made(id, None)) };
        let id = self.one_side(id, side, span)?;
        Ok(self.made(id, None))
    }

    fn in_step(&mut self, what: &str, span: Span) -> El<()> {
        if matches!(self.mode(), Mode::Config | Mode::Forward | Mode::Rule) {
            let text = format!("`{what}` runs in a step");
            return self.error("misplaced", span, text, "not inside a step here");
        }
        Ok(())
    }

    /// A graph of its own: weights that do not move are scored once, before the update.
    fn scored(
        &mut self,
        span: Span,
        f: impl FnOnce(&mut Self) -> El<(&'static str, nrl_ir::ValueId)>,
    ) -> El<(nrl_ir::Graph, &'static str)> {
        let outer = std::mem::take(&mut self.builders);
        let mut b = Builder::new("forward");
        b.bounds.insert("tok", MICROBATCH_TOKENS);
        b.bounds.insert("act", MICROBATCH_TOKENS);
        self.builders.push(b);
        self.modes.push(Mode::Forward);
        let result = f(self);
        self.modes.pop();
        let builder = self.builders.pop();
        self.builders = outer;
        let _ = span;
        let (name, out) = result?;
        let Some(mut builder) = builder else { return Err(Stop) };
        builder.graph.name = name.into();
        Ok((builder.finish(&[(name, out)]), name))
    }

    fn forward_stage(
        &mut self,
        model: usize,
        (graph, _): (nrl_ir::Graph, &'static str),
        temperature: f64,
        samples: &Samples,
        span: Span,
    ) -> BindingId {
        let graph = self.push_graph(graph, GraphKind::Forward { model });
        let stage = Stage::Forward {
            model,
            graph,
            output: 0,
            inputs: vec![],
            temperature,
            tokens: MICROBATCH_TOKENS,
        };
        self.stage("", stage, vec![samples.binding], span)
    }

    /// `value(critic, s)`: one number per trained token.
    pub fn value_call(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (m, sm) = a.need("model");
        let (b, sb) = a.need("samples");
        let model = self.model_of(&m, sm)?;
        let samples = self.samples_of(b, sb, "value")?;
        if !self.models[model].scalar {
            let name = self.out.program.models[model].name.clone();
            let d = Diagnostic::error("wrong-type", format!("`{name}` gives logits, not values"));
            return self.fail(d.label(sm, "no scalar head").help("load it with `head: scalar`"));
        }
        if self.live_model() == Some(model) {
            let known = self.builder(span)?.values.get(&samples.binding).copied();
            let v = match known {
                Some(v) => v,
                None => {
                    let v = self.forward_values(model, span)?;
                    let b = self.builder(span)?;
                    b.samples = Some(samples.binding);
                    b.values.insert(samples.binding, v);
                    v
                }
            };
            return self.on_side(v, &samples, span);
        }
        self.in_step("value", span)?;
        let graph = self.scored(span, |me| Ok(("value", me.forward_values(model, span)?)))?;
        let binding = self.forward_stage(model, graph, 1.0, &samples, span);
        Ok(Val::Step(StepTensor {
            binding,
            field: None,
            shape: StepShape::Act,
            valid: Validity::All,
            samples: Some(samples.binding),
            side: samples.side,
            origin: None,
        }))
    }

    /// `dist(model, s)`: what the model holds likely at each trained token.
    pub fn dist(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (m, sm) = a.need("model");
        let (b, sb) = a.need("samples");
        let model = self.model_of(&m, sm)?;
        let samples = self.samples_of(b, sb, "dist")?;
        self.in_step("dist", span)?;
        self.later(span, "distributions over the vocabulary do not run yet", "this distribution");
        let temperature = match a.take("temperature").filter(|g| !g.val.is_none()) {
            Some(g) => self.number(&g.val, g.span, "`temperature`")?,
            None => samples.drawing.as_ref().map_or(1.0, |d| d.sampling.temperature),
        };
        Ok(Val::Dist(Rc::new(Dist { model, samples, kept: None, temperature, span })))
    }

    /// `topk(d, 64)`: its 64 likeliest tokens, the others as one.
    pub fn topk(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (d, sd) = a.need("dist");
        let (k, sk) = a.need("k");
        let d = self.dist_of(&d, sd)?;
        let k = self.whole(&k, sk, "`k`")?;
        let ids = self.models[d.model].valid;
        if k == 0 || k > ids {
            let what = format!("the {k} likeliest of {ids} tokens");
            return self.error("out-of-range", sk, what, format!("1 to {ids}"));
        }
        let kept = Some((k, d.model));
        Ok(Val::Dist(Rc::new(Dist { kept, span: a.span, ..(*d).clone() })))
    }

    pub fn dist_of(&mut self, v: &Val<'a>, span: Span) -> El<Rc<Dist>> {
        match v {
            Val::Dist(d) => Ok(d.clone()),
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                let d = Diagnostic::error(
                    "wrong-type",
                    format!("a distribution is needed, not {kind}"),
                );
                self.fail(
                    d.label(span, format!("this is {kind}")).help("write `dist(model, samples)`"),
                )
            }
        }
    }

    /// `dist(student, s) on t`: over the tokens that `t` keeps.
    pub fn dist_on(&mut self, a: &Val<'a>, b: &Val<'a>, at: (Span, Span)) -> El<Val<'a>> {
        let (x, t) = (self.dist_of(a, at.0)?, self.dist_of(b, at.1)?);
        self.comparable(&x, &t, at)?;
        Ok(Val::Dist(Rc::new(Dist { kept: t.kept, ..(*x).clone() })))
    }

    fn comparable(&mut self, x: &Dist, y: &Dist, at: (Span, Span)) -> El<()> {
        if self.vocabulary(x.model) != self.vocabulary(y.model) {
            return self.vocabularies(x.model, y.model, (x.span, y.span));
        }
        if x.samples.binding != y.samples.binding {
            let what = "two distributions over the tokens of different samples";
            let d = Diagnostic::error("dim-mismatch", what).label(at.0, "of these samples");
            return self.fail(d.label(at.1, "of others"));
        }
        Ok(())
    }

    /// `kl(p, q)`: the divergence of `q` from `p` at each trained token.
    pub fn kl(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (p, sp) = a.need("p");
        let (q, sq) = a.need("q");
        let (p, q) = (self.dist_of(&p, sp)?, self.dist_of(&q, sq)?);
        self.comparable(&p, &q, (sp, sq))?;
        if (p.temperature - q.temperature).abs() > 1e-12 || p.kept != q.kept {
            let words = |me: &Self, d: &Dist| {
                let name = &me.out.program.models[d.model].name;
                let kept = d.kept.map_or("all tokens".to_string(), |(k, m)| {
                    format!("the {k} tokens that `{}` keeps", me.out.program.models[m].name)
                });
                format!("dist({name}): {kept}, temperature {}", d.temperature)
            };
            let (x, y) = (words(self, &p), words(self, &q));
            let d = Diagnostic::error(
                "different-distributions",
                "this divergence is of distributions over different tokens",
            );
            return self.fail(
                d.label(sp, x)
                    .label(sq, y)
                    .help("put one on the tokens of the other: `dist(student, s) on t`"),
            );
        }
        // Per token: the teacher's mass from a forward pass of its own, the student's live one.
        let mut parts = vec![];
        for d in [&p, &q] {
            let v = self.logprob(d.model, &d.samples, d.temperature, span)?;
            parts.push(self.tensor(&v, span)?.id);
        }
        let at = [span, span];
        let diff = Op::Binary { op: BinaryOp::Sub };
        let d = self.tensor_op(diff, &[parts[0], parts[1]], &at, span)?;
        let w = self.tensor_op(Op::Unary { op: UnaryOp::Exp }, &[parts[0]], &[span], span)?;
        let id = self.tensor_op(Op::Binary { op: BinaryOp::Mul }, &[w, d], &at, span)?;
        Ok(self.made(id, None))
    }

    /// `s.routes`, `s.support`.
    pub fn record_of(&mut self, s: &Samples, name: &str, span: Span) -> El<Val<'a>> {
        let known = s.drawing.as_ref().is_some_and(|d| d.records.iter().any(|r| r == name));
        if known {
            return Ok(Val::Recorded { what: name.into(), samples: s.binding });
        }
        let d = Diagnostic::error(
            "unknown-name",
            format!("the generator of these samples records no {name}"),
        );
        self.fail(
            d.label(span, "not recorded")
                .help(format!("write `record: [{name}]` where the generator is made")),
        )
    }
}

/// The same values, with where they come from.
fn with_origin(v: Val<'_>, origin: Origin) -> Val<'_> {
    match v {
        Val::Tensor(mut t) => {
            t.origin = Some(Rc::new(origin));
            Val::Tensor(t)
        }
        Val::Step(mut s) => {
            s.origin = Some(Rc::new(origin));
            Val::Step(s)
        }
        v => v,
    }
}
