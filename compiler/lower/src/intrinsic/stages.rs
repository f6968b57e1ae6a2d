//! Models, data, optimizers, generators, and what a step does with them.

use nrl_base::Diagnostic;
use nrl_ir::host::{self, HostType, Value};
use nrl_ir::program::{
    BadLines, Chat, Data, Generator, Optimizer, Sampling, Source, Stage, TooLong, Weights,
};
use nrl_ir::{Op, Type};

use super::Args;
use crate::builder::Builder;
use crate::elab::{El, Elab, GraphKind, Mode, Stop};
use crate::units::Unit;
use crate::value::{Env, Samples, StepShape, StepTensor, Val, Validity};

/// Token budget of a micro-batch where a recipe names none.
const MICROBATCH_TOKENS: usize = 8192;
/// Sequences in flight per rank where a recipe names no number.
const SLOTS: usize = 256;

impl<'a> Elab<'a, '_> {
    pub(super) fn stage_call(&mut self, env: &Env<'a>, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        match a.which.name {
            "json_lines" => self.json_lines(a),
            "made_rows" => self.made_rows(a),
            "file" => {
                let (p, s) = a.need("path");
                let path = self.text_of(&p, s, "`path`")?;
                let path = self.locate(&path, "");
                match self.files.read(&path) {
                    Ok(b) => Ok(Val::text(&String::from_utf8_lossy(&b))),
                    Err(why) => self.error(
                        "file-not-read",
                        s,
                        format!("cannot read {path}: {why}"),
                        "this file",
                    ),
                }
            }
            "load_model" => self.load_model(a),
            "characters" => {
                let mut part = |me: &mut Self, name: &str| {
                    let (v, s) = a.need(name);
                    me.text_of(&v, s, &format!("`{name}`"))
                };
                let (alphabet, end, pad) =
                    (part(self, "alphabet")?, part(self, "end")?, part(self, "pad")?);
                let record = [("alphabet", alphabet), ("end", end), ("pad", pad)];
                Ok(Val::Record(
                    record.into_iter().map(|(k, v)| (k.to_string(), Val::text(&v))).collect(),
                ))
            }
            "frozen" => {
                let (m, s) = a.need("model");
                let of = self.model_of(&m, s)?;
                let mut model = self.out.program.models[of].clone();
                model.weights = Weights::Frozen { of, phase: self.phase };
                self.push_model(model, self.models[of].clone(), span)
            }
            "optimizer" => self.optimizer(a),
            "generator" => self.generator(a),
            "generate" => self.generate(a),
            "take" => self.take(a),
            "chat" => {
                let (d, s) = a.need("data");
                let (m, sm) = a.need("model");
                let model = self.model_of(&m, sm)?;
                let system = match a.take("system") {
                    Some(g) if !g.val.is_none() => Some(self.text_of(&g.val, g.span, "`system`")?),
                    _ => None,
                };
                self.with_data(&d, s, |data| {
                    data.model = model;
                    data.chat = Some(Chat { system });
                })
            }
            "at_most" => {
                let (d, s) = a.need("data");
                let (n, sn) = a.need("limit");
                let limit = self.counted(&n, sn, "the limit", Unit::of("token"))?;
                let policy = match a.take("else").and_then(|g| g.expr) {
                    None => TooLong::Error,
                    Some(e) => match e.as_name() {
                        Some("error") => TooLong::Error,
                        Some("drop") => TooLong::Drop,
                        Some("truncate") => TooLong::Truncate,
                        _ => {
                            return self.error(
                                "wrong-type",
                                e.span,
                                "`else:` is one of error, drop, truncate",
                                "not one of them",
                            );
                        }
                    },
                };
                self.with_data(&d, s, |data| data.at_most = Some((limit, policy)))
            }
            "shuffled" => {
                let (d, s) = a.need("data");
                self.with_data(&d, s, |data| data.shuffled = true)
            }
            "from" => {
                let (d, s) = a.need("data");
                let (p, sp) = a.need("path");
                let path = self.text_of(&p, sp, "`from`")?;
                let path = self.locate(&path, "");
                self.with_data(&d, s, |data| {
                    data.source = Source::JsonLines { path };
                    data.shuffled = false;
                })
            }
            "logprob" => {
                let (m, sm) = a.need("model");
                let (b, sb) = a.need("samples");
                let model = self.model_of(&m, sm)?;
                let Val::Samples(samples) = b else {
                    let kind = b.kind();
                    return self.error(
                        "wrong-type",
                        sb,
                        format!("`logprob` takes samples, not {kind}"),
                        format!("this is {kind}"),
                    );
                };
                self.logprob(model, &samples, span)
            }
            "evaluate" => self.evaluate(a),
            _ => {
                let _ = env;
                Err(Stop)
            }
        }
    }

    pub fn model_of(&mut self, v: &Val<'a>, span: nrl_base::Span) -> El<usize> {
        match v {
            Val::Model(m) => Ok(*m),
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                self.error(
                    "wrong-type",
                    span,
                    format!("expected a model, got {kind}"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    /// A whole number in `unit`.
    pub fn counted(
        &mut self,
        v: &Val<'a>,
        span: nrl_base::Span,
        what: &str,
        unit: Unit,
    ) -> El<usize> {
        if let Val::Const(Value::Num(x), u) = v
            && *u != unit
        {
            let (x, u) = (*x, u.clone());
            return self.fail(
                Diagnostic::error(
                    "unit-mismatch",
                    format!("{what} is counted in {unit}, this is {u}"),
                )
                .label(span, format!("this is {u}"))
                .help(format!("write `{x} {unit}`")),
            );
        }
        self.whole(v, span, what)
    }

    fn with_data(
        &mut self,
        v: &Val<'a>,
        span: nrl_base::Span,
        edit: impl FnOnce(&mut Data),
    ) -> El<Val<'a>> {
        let Val::Data(i) = v else {
            let kind = v.kind();
            return self.error(
                "wrong-type",
                span,
                format!("expected a data set, got {kind}"),
                format!("this is {kind}"),
            );
        };
        let mut data = self.out.program.data[*i].clone();
        edit(&mut data);
        self.out.program.data.push(data);
        Ok(Val::Data(self.out.program.data.len() - 1))
    }

    fn json_lines(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (p, s) = a.need("path");
        let path = self.text_of(&p, s, "`path`")?;
        let path = self.locate(&path, "");
        let (c, sc) = a.need("prompt");
        let prompt = self.text_of(&c, sc, "`prompt`")?;
        let (c, sc) = a.need("answer");
        let answer = if c.is_none() { None } else { Some(self.text_of(&c, sc, "`answer`")?) };
        let bad_lines = match a.need("bad_lines").0 {
            Val::Variant { name, .. } if name == "skip" => BadLines::Skip,
            _ => BadLines::Error,
        };
        self.push_data(Source::JsonLines { path }, &prompt, answer, bad_lines)
    }

    fn made_rows(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (n, s) = a.need("rows");
        let rows = self.whole(&n, s, "`rows`")?;
        if rows == 0 {
            return self.error("empty-data", s, "a data set of 0 rows", "nothing to take from");
        }
        let (f, sf) = a.need("make");
        let (make, ty) = self.host_func("row", &[HostType::Num], sf, |me, args| {
            me.apply_vals(f, args.into_iter().map(|v| (v, sf)).collect(), sf, sf)
        })?;
        self.check_row(&make.body, &ty, sf)?;
        self.push_data(
            Source::Made { rows, make },
            "prompt",
            Some("answer".into()),
            BadLines::Error,
        )
    }

    /// A made row is a record with a prompt, as far as that can be seen.
    fn check_row(&mut self, body: &host::Expr, ty: &HostType, span: nrl_base::Span) -> El<()> {
        if !matches!(ty, HostType::Any | HostType::Record) {
            let what = format!("a made row is a record {{prompt, answer}}, not {}", ty.describe());
            return self.error("wrong-type", span, what, format!("this gives {}", ty.describe()));
        }
        let fields = match body {
            host::Expr::Let { body, .. } => return self.check_row(body, ty, span),
            host::Expr::Record(fields) => fields.iter().map(|(k, _)| k.clone()).collect(),
            host::Expr::Const(Value::Record(r)) => r.keys().cloned().collect::<Vec<_>>(),
            _ => return Ok(()),
        };
        if fields.iter().any(|k| k == "prompt") {
            return Ok(());
        }
        let has = fields.join(", ");
        let d = Diagnostic::error("missing-field", "a made row has no `prompt`");
        let d = d.label(span, format!("it has {has}"));
        self.fail(d.help("write `{prompt: .., answer: ..}`"))
    }

    fn push_data(
        &mut self,
        source: Source,
        prompt: &str,
        answer: Option<String>,
        bad_lines: BadLines,
    ) -> El<Val<'a>> {
        let data = Data {
            name: String::new(),
            source,
            prompt: prompt.into(),
            answer,
            model: 0,
            chat: None,
            at_most: None,
            shuffled: false,
            bad_lines,
        };
        self.out.program.data.push(data);
        Ok(Val::Data(self.out.program.data.len() - 1))
    }

    fn optimizer(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (lr, s) = a.need("lr");
        let lr = self.schedule(&lr, s)?;
        let clip_norm = match a.take("clip_norm") {
            Some(g) if !g.val.is_none() => {
                let x = self.number(&g.val, g.span, "`clip_norm`")?;
                if x <= 0.0 {
                    return self.error(
                        "out-of-range",
                        g.span,
                        format!("`clip_norm` must be positive, not {x}"),
                        "leave it out for no clipping",
                    );
                }
                Some(x)
            }
            _ => None,
        };
        let decay_norms = matches!(a.take("decay_norms"), Some(g) if matches!(g.val, Val::Const(Value::Bool(true), _)));
        let (state, ss) = a.need("state");
        let state: Vec<String> = match &state {
            Val::Const(Value::List(l), _) => l
                .iter()
                .filter_map(|v| if let Value::Text(t) = v { Some(t.to_string()) } else { None })
                .collect(),
            _ => {
                return self.error(
                    "wrong-type",
                    ss,
                    "`state` is a list of names",
                    "such as [\"m\", \"v\"]",
                );
            }
        };
        let (rule, sr) = a.need("rule");
        let outer = std::mem::take(&mut self.builders);
        self.builders.push(Builder::new("optimizer"));
        self.modes.push(Mode::Rule);
        let result = self.optimizer_rule(rule, &state, sr, span);
        self.modes.pop();
        let builder = self.builders.pop();
        self.builders = outer;
        let outs = result?;
        let Some(builder) = builder else { return Err(Stop) };
        let scalars = builder.scalars.clone();
        let names: Vec<&str> =
            std::iter::once("w").chain(state.iter().map(String::as_str)).collect();
        let outputs: Vec<(&str, nrl_ir::ValueId)> = names.into_iter().zip(outs).collect();
        let graph = self.push_graph(builder.finish(&outputs), GraphKind::Optimizer);
        self.out.program.optimizers.push(Optimizer {
            name: String::new(),
            lr,
            clip_norm,
            state,
            graph,
            scalars,
            decay_norms,
        });
        Ok(Val::Optimizer(self.out.program.optimizers.len() - 1))
    }

    /// Runs the rule on `w, g, state.., t, lr, decay` and returns the new `w, state..`.
    fn optimizer_rule(
        &mut self,
        rule: Val<'a>,
        state: &[String],
        sr: nrl_base::Span,
        span: nrl_base::Span,
    ) -> El<Vec<nrl_ir::ValueId>> {
        let b = self.builder(span)?;
        let flat = b.graph.dims.add_ragged("flat", None, 1 << 30);
        let mut args: Vec<(Val<'a>, nrl_base::Span)> = vec![];
        for name in ["w", "g"].into_iter().chain(state.iter().map(String::as_str)) {
            let b = self.builder(span)?;
            let v = b.input(name, Type::f32([flat]));
            args.push((self.made(v, None), span));
        }
        for i in 0..3 {
            args.push((Val::Host(nrl_ir::host::Expr::Local(i), HostType::Num), span));
        }
        let v = self.apply_vals(rule, args, sr, span)?;
        let vals = match v {
            Val::Tuple(vals) => vals,
            v => vec![v],
        };
        if vals.len() != state.len() + 1 {
            return self.error(
                "wrong-arguments",
                sr,
                format!(
                    "the rule gives {} tensors, the weights and {} of state are needed",
                    vals.len(),
                    state.len()
                ),
                "this rule",
            );
        }
        let mut out = vec![];
        for v in &vals {
            let t = self.tensor(v, sr)?;
            out.push(self.tensor_op(Op::Broadcast { dims: vec![flat] }, &[t.id], &[sr], sr)?);
        }
        Ok(out)
    }

    /// Adds a graph to the program.
    pub fn push_graph(&mut self, graph: nrl_ir::Graph, kind: GraphKind) -> usize {
        self.out.program.graphs.push(graph);
        self.out.kinds.push(kind);
        self.out.program.graphs.len() - 1
    }

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

    fn generator(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
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
        let sampling = self.sampling(&mut a, base)?;
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
        Ok(Val::Generator(self.out.program.generators.len() - 1, sampling))
    }

    /// `sampler with (temperature: 0)`.
    pub fn with_settings(
        &mut self,
        env: &Env<'a>,
        base: Val<'a>,
        args: &'a [nrl_syntax::ast::Arg],
        span: nrl_base::Span,
    ) -> El<Val<'a>> {
        let Val::Generator(i, sampling) = base else {
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
        let sampling = self.sampling(&mut a, sampling)?;
        Ok(Val::Generator(i, sampling))
    }

    fn need_step(&mut self, what: &str, span: nrl_base::Span) -> El<()> {
        match self.mode() {
            Mode::Step => Ok(()),
            Mode::Loss { .. } => self.error(
                "misplaced",
                span,
                format!("{what} cannot run inside `minimising`"),
                "move it to a line before the update",
            ),
            _ => self.error(
                "misplaced",
                span,
                format!("{what} runs in a step"),
                "not inside a step here",
            ),
        }
    }

    fn generate(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        self.need_step("generation", span)?;
        let (g, sg) = a.need("generator");
        let Val::Generator(generator, mut sampling) = g else {
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
            sampling.temperature = self.number(&g.val, g.span, "`temperature`")?;
        }
        if let Some(g) = a.take("min_new") {
            sampling.min_new = self.counted(&g.val, g.span, "`min_new`", Unit::of("token"))?;
        }
        let binding = self.stage(
            "",
            Stage::Generate { generator, copies, max_new, sampling: sampling.clone() },
            vec![binding],
            span,
        );
        Ok(Val::Samples(Samples { binding, sampling: Some(sampling) }))
    }

    fn take(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        self.need_step("`take`", span)?;
        let (d, sd) = a.need("data");
        let Val::Data(data) = d else {
            let kind = d.kind();
            return self.error(
                "wrong-type",
                sd,
                format!("`take` takes from a data set, not {kind}"),
                format!("this is {kind}"),
            );
        };
        let (n, sn) = a.need("count");
        let complete = match &n {
            Val::Const(Value::Num(_), u) if *u == Unit::of("prompt") => false,
            Val::Const(Value::Num(_), u) if *u == Unit::of("sample") => true,
            v => {
                let kind = v.kind();
                return self.fail(
                    Diagnostic::error("unit-mismatch", format!("`take` counts prompts (to generate from) or samples (with their answers), not {kind}"))
                        .label(sn, format!("this is {kind}"))
                        .help("write `take(32 prompts)` or `take(256 samples)`"),
                );
            }
        };
        let count = self.whole(&n, sn, "the count")?;
        if count == 0 {
            return self.error("out-of-range", sn, "`take` of 0 rows", "at least 1");
        }
        if complete && self.out.program.data[data].answer.is_none() {
            return self.fail(
                Diagnostic::error("missing-field", "samples to learn from need an answer, and this data set names no answer column")
                    .label(sd, "no answer column")
                    .help("write `answer: \"column\"` where the data is read"),
            );
        }
        if let Source::Made { rows, .. } = &self.out.program.data[data].source
            && count > *rows
        {
            let rows = *rows;
            return self.error(
                "epoch-is-empty",
                sn,
                format!("the data set has {rows} rows, one step takes {count}"),
                "more than there are",
            );
        }
        let binding = self.stage("", Stage::Take { data, count, complete }, vec![], span);
        Ok(if complete {
            Val::Samples(Samples { binding, sampling: None })
        } else {
            Val::Prompts { binding }
        })
    }

    fn evaluate(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        self.need_step("evaluation", span)?;
        let (g, sg) = a.need("generator");
        let Val::Generator(generator, sampling) = g else {
            let kind = g.kind();
            return self.error(
                "wrong-type",
                sg,
                format!("`evaluate` takes a generator, not {kind}"),
                format!("this is {kind}"),
            );
        };
        let (d, sd) = a.need("data");
        let Val::Data(data) = d else {
            let kind = d.kind();
            return self.error(
                "wrong-type",
                sd,
                format!("`evaluate` takes a data set, not {kind}"),
                format!("this is {kind}"),
            );
        };
        let (f, sf) = a.need("reward");
        let reward = self.reward(&f, vec![], sf)?;
        let mut whole = |me: &mut Self, name: &str, default: Option<usize>| match a.take(name) {
            Some(g) if matches!(g.val, Val::Rest) || g.val.is_none() => Ok(None),
            Some(g) => me.whole(&g.val, g.span, &format!("`{name}`")).map(Some),
            None => Ok(default),
        };
        let copies = whole(self, "samples", Some(1))?.unwrap_or(1).max(1);
        let limit = whole(self, "limit", None)?;
        let max_new = whole(self, "max_new", None)?;
        let correct = match a.take("correct") {
            Some(g) => self.number(&g.val, g.span, "`correct`")?,
            None => 1.0,
        };
        let stage =
            Stage::Evaluate { generator, data, limit, copies, sampling, max_new, reward, correct };
        let binding = self.stage("", stage, vec![], span);
        Ok(Val::Report(self.stages[binding].name.clone()))
    }

    /// Log-probabilities of the trained tokens of `samples` under `model`.
    fn logprob(&mut self, model: usize, samples: &Samples, span: nrl_base::Span) -> El<Val<'a>> {
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
                    lp
                }
            };
            return Ok(self.made(lp, None));
        }
        if matches!(self.mode(), Mode::Config | Mode::Forward | Mode::Rule) {
            return self.error(
                "misplaced",
                span,
                "`logprob` runs in a step",
                "not inside a step here",
            );
        }
        // Weights that do not move are scored once, before the update.
        let outer = std::mem::take(&mut self.builders);
        let mut b = Builder::new("logprob");
        b.bounds.insert("tok", MICROBATCH_TOKENS);
        b.bounds.insert("act", MICROBATCH_TOKENS);
        self.builders.push(b);
        self.modes.push(Mode::Forward);
        let result = self.forward_logprob(model, span);
        self.modes.pop();
        let builder = self.builders.pop();
        self.builders = outer;
        let (lp, _) = result?;
        let Some(builder) = builder else { return Err(Stop) };
        let graph =
            self.push_graph(builder.finish(&[("logprob", lp)]), GraphKind::Forward { model });
        let temperature = temperature_of(samples);
        let stage = Stage::Forward {
            model,
            graph,
            output: 0,
            inputs: vec![],
            temperature,
            tokens: MICROBATCH_TOKENS,
        };
        let binding = self.stage("", stage, vec![samples.binding], span);
        Ok(Val::Step(StepTensor {
            binding,
            field: None,
            shape: StepShape::Act,
            valid: Validity::All,
            samples: Some(samples.binding),
        }))
    }
}

/// Temperature of the distribution that samples were drawn from; greedy ones count as 1.
pub fn temperature_of(samples: &Samples) -> f64 {
    match &samples.sampling {
        Some(s) if s.temperature > 0.0 => s.temperature,
        _ => 1.0,
    }
}
