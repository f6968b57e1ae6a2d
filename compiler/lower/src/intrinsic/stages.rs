//! Models, data, optimizers, generators, and what a step does with them.

use nrl_base::Diagnostic;
use nrl_ir::host::{self, HostType, Value};
use nrl_ir::program::{BadLines, Chat, Data, Optimizer, Source, Stage, TooLong, Weights};
use nrl_ir::{Op, Type};

use super::Args;
use crate::builder::Builder;
use crate::elab::{El, Elab, GraphKind, Mode, Stop};
use crate::units::Unit;
use crate::value::{Env, Samples, Val};

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
            "generator" => self.generator(env, a),
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
            "evaluate" => self.evaluate(a),
            "held_out" => self.held_out(a),
            "validate" => self.validate(a),
            _ => Err(Stop),
        }
    }

    pub fn model_of(&mut self, v: &Val<'a>, span: nrl_base::Span) -> El<usize> {
        match v {
            Val::Model(m) => Ok(*m),
            Val::Poison => Err(Stop),
            v => {
                let kind = v.kind();
                let d = Diagnostic::error("wrong-type", format!("expected a model, got {kind}"));
                let d = d.label(span, format!("this is {kind}"));
                self.fail(d.help_opt(match v {
                    Val::Samples(_) => Some("the model comes first: `logprob(policy, s)`".into()),
                    Val::Optimizer(_) => Some("write `update policy by opt ..`".to_string()),
                    _ => None,
                }))
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
            // A number of another unit is not the number that is meant.
            let help = match u.is_none() {
                true => format!("write `{x} {unit}`"),
                false => format!("write a number of {unit}"),
            };
            return self.fail(
                Diagnostic::error(
                    "unit-mismatch",
                    format!("{what} is counted in {unit}, this is {u}"),
                )
                .label(span, format!("this is {u}"))
                .help(help),
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
        let pair = self.pair_columns(&mut a, answer.is_some())?;
        let (answer, rejected) = match pair {
            Some((chosen, rejected)) => (Some(chosen), Some(rejected)),
            None => (answer, None),
        };
        let bad_lines = match a.need("bad_lines").0 {
            Val::Variant { name, .. } if name == "skip" => BadLines::Skip,
            _ => BadLines::Error,
        };
        let made = self.push_data(Source::JsonLines { path }, &prompt, answer, bad_lines)?;
        if let Val::Data(d) = &made {
            self.out.program.data[*d].rejected = rejected;
        }
        Ok(made)
    }

    /// `chosen:` and `rejected:`, which come together and in place of `answer:`.
    fn pair_columns(&mut self, a: &mut Args<'a>, answer: bool) -> El<Option<(String, String)>> {
        let mut columns = vec![];
        for name in ["chosen", "rejected"] {
            let (v, s) = a.need(name);
            if !v.is_none() {
                columns.push((self.text_of(&v, s, &format!("`{name}`"))?, s));
            }
        }
        match &columns[..] {
            [] => Ok(None),
            [(c, _), (r, _)] if !answer => Ok(Some((c.clone(), r.clone()))),
            [(_, s), ..] => {
                let what = "pairs have a chosen and a rejected answer, and no other";
                let d = Diagnostic::error("wrong-arguments", what).label(*s, "given here");
                self.fail(d.help("write `chosen: \"column\", rejected: \"column\"`"))
            }
        }
    }

    /// `held_out(data, 2 %)`: rows that are kept apart.
    fn held_out(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let (d, s) = a.need("data");
        let (n, sn) = a.need("share");
        let share = self.number(&n, sn, "the share")?;
        if !(share > 0.0 && share < 1.0) {
            let what = format!("a share of {} % of the rows", share * 100.0);
            return self.error("out-of-range", sn, what, "more than 0 % and less than 100 %");
        }
        self.later(a.span, "rows held out of a data set do not run yet", "these rows");
        self.with_data(&d, s, |_| {})
    }

    /// `validate(step, data)`: the loss of a step, without its update.
    fn validate(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        self.need_step("validation", span)?;
        let step = a.take("step").and_then(|g| g.expr);
        if step.and_then(|e| e.as_name()) != Some("step") {
            let at = step.map_or(span, |e| e.span);
            let what = "`validate` takes the step that it tries: `validate(step, data)`";
            return self.error("wrong-type", at, what, "not `step`");
        }
        let (d, sd) = a.need("data");
        let Val::Data(data) = d else {
            let kind = d.kind();
            let what = format!("`validate` takes a data set, not {kind}");
            return self.error("wrong-type", sd, what, format!("this is {kind}"));
        };
        self.later(span, "validation by a step's loss does not run yet", "this validation");
        let phase = self.out.program.phases.len();
        self.out.facts.validations.push(crate::facts::Validation { phase, period: 0, data });
        let name = format!("%{}", self.stages.len());
        let metrics: &[&str] = if self.out.program.data[data].rejected.is_some() {
            &["loss", "accuracy", "margin"]
        } else {
            &["loss"]
        };
        self.metrics.insert(name.clone(), metrics.to_vec());
        Ok(Val::Report(name))
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
        let (c, sc) = a.need("rejected");
        let rejected = if c.is_none() { None } else { Some(self.text_of(&c, sc, "`rejected`")?) };
        let source = Source::Made { rows, make };
        let made = self.push_data(source, "prompt", Some("answer".into()), BadLines::Error)?;
        if let Val::Data(d) = &made {
            self.out.program.data[*d].rejected = rejected;
        }
        Ok(made)
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
        let d = d.label(self.user_span(span), format!("it has {has}"));
        let near = nrl_base::nearest("prompt", fields.iter().map(String::as_str));
        self.fail(d.help(near.map_or_else(
            || "write `{prompt: .., answer: ..}`".to_string(),
            |n| format!("write `prompt` in place of `{n}`"),
        )))
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
            rejected: None,
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
        let master = a.take("master");
        let bf16 = matches!(&master, Some(g) if matches!(&g.val, Val::Variant { name, .. } if name == "bf16"));
        if bf16 {
            self.later(span, "weights kept in bf16 do not run yet", "this optimizer");
        }
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
        self.out.facts.bf16_masters.push(bf16);
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

    pub fn need_step(&mut self, what: &str, span: nrl_base::Span) -> El<()> {
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
        let pairs = matches!(&n, Val::Const(_, u) if *u == Unit::of("pair"));
        let complete = match &n {
            Val::Const(Value::Num(_), u) if *u == Unit::of("prompt") => false,
            Val::Const(Value::Num(_), u) if *u == Unit::of("sample") || pairs => true,
            v => {
                let kind = v.kind();
                return self.fail(
                    Diagnostic::error("unit-mismatch", format!("`take` counts prompts (to generate from), samples (with their answers) or pairs, not {kind}"))
                        .label(sn, format!("this is {kind}"))
                        .help("write `take(32 prompts)` or `take(256 samples)`"),
                );
            }
        };
        let count = self.whole(&n, sn, "the count")?;
        if count == 0 {
            return self.error("out-of-range", sn, "`take` of 0 rows", "at least 1");
        }
        let rejected = self.out.program.data[data].rejected.is_some();
        if pairs != rejected && complete {
            let (what, help) = if pairs {
                (
                    "pairs need two answers, and this data set names one column at most",
                    "write `chosen: \"column\", rejected: \"column\"` where the data is read",
                )
            } else {
                (
                    "these rows are pairs of a chosen and a rejected answer",
                    "write `take(128 pairs)`",
                )
            };
            let d = Diagnostic::error("missing-field", what).label(sd, "this data set");
            return self.fail(d.help(help));
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
        Ok(if pairs {
            Val::Pairs { binding }
        } else if complete {
            Val::Samples(Samples { binding, drawing: None, side: None, reward: None })
        } else {
            Val::Prompts { binding }
        })
    }

    fn evaluate(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        self.need_step("evaluation", span)?;
        let (g, sg) = a.need("generator");
        let Val::Generator(generator, drawing) = g else {
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
        let sampling = drawing.sampling;
        let stage =
            Stage::Evaluate { generator, data, limit, copies, sampling, max_new, reward, correct };
        let binding = self.stage("", stage, vec![], span);
        Ok(Val::Report(self.stages[binding].name.clone()))
    }
}
