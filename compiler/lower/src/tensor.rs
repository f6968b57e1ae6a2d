//! Tensor operations of the language on the graph being built.

use nrl_base::{Diagnostic, Span};
use nrl_ir::host::{self, Value};
use nrl_ir::infer::{ShapeError, show_dims};
use nrl_ir::op::{BinaryOp, Op, UnaryOp};
use nrl_ir::program::GraphInput;
use nrl_ir::{DimId, Type, ValueId};
use nrl_syntax::ast;

use crate::elab::{El, Elab, Mode, Stop};
use crate::value::{Env, Side, StepShape, StepTensor, Tensor, Val, Validity};

impl<'a> Elab<'a, '_> {
    /// Is it (or does it become) a value of a tensor graph, host numbers inside one included?
    pub fn is_tensor(&self, v: &Val<'a>) -> bool {
        matches!(v, Val::Tensor(_) | Val::Step(_) | Val::Param(_))
    }

    /// Wraps a value of the current graph.
    pub fn made(&self, id: ValueId, valid: Option<ValueId>) -> Val<'a> {
        Val::Tensor(Tensor { id, valid, origin: None })
    }

    /// `v` as a value of the current graph.
    pub fn tensor(&mut self, v: &Val<'a>, span: Span) -> El<Tensor> {
        let id = match v {
            Val::Tensor(t) => return Ok(t.clone()),
            Val::Poison => return Err(Stop),
            Val::Step(s) => return self.step_tensor(&s.clone(), span),
            Val::Const(Value::Num(x), u) if u.is_none() => {
                let x = *x;
                self.builder(span)?.constant(x)
            }
            Val::Const(Value::Bool(b), _) => {
                let x = f64::from(*b);
                self.builder(span)?.constant(x)
            }
            Val::Param(p) => {
                let p = *p;
                self.use_param(p, span)?
            }
            Val::Host(e, _) => {
                let func = host::Func {
                    name: "scalar".into(),
                    params: 3,
                    locals: self.host_slots.max(3),
                    body: e.clone(),
                };
                let b = self.builder(span)?;
                let n = b.scalars.iter().position(|f| *f == func).unwrap_or_else(|| {
                    b.scalars.push(func);
                    b.scalars.len() - 1
                });
                b.input(&format!("host.{n}"), Type::f32([]))
            }
            Val::Loss(_) => {
                return self.error(
                    "wrong-type",
                    span,
                    "a loss cannot be used as a tensor",
                    "this is a loss",
                );
            }
            v => {
                let kind = v.kind();
                let help = match v {
                    Val::Item(..) | Val::Closure(_) | Val::Intrinsic(_) | Val::Method(..) => {
                        Some("call it: `f(s)` gives numbers, `f` alone is the function")
                    }
                    Val::Samples(_) => Some(
                        "samples have `logprob`, `length` and `truncated`; a reward of them is a tensor too",
                    ),
                    Val::Model(_) => Some("a model's numbers are `logprob(policy, s)`"),
                    _ => None,
                };
                let d = Diagnostic::error("wrong-type", format!("expected a tensor, got {kind}"));
                let d = d.label(self.user_span(span), format!("this is {kind}"));
                return self.fail(d.help_opt(help.map(str::to_string)));
            }
        };
        Ok(Tensor { id, valid: None, origin: None })
    }

    /// The same values as a node of its own, of which only one side of pairs counts.
    pub fn one_side(&mut self, id: ValueId, side: Side, span: Span) -> El<ValueId> {
        let id = self.tensor_op(Op::Cast { to: nrl_ir::DType::F32 }, &[id], &[span], span)?;
        self.builder(span)?.sides.insert(id, side);
        Ok(id)
    }

    /// 1 where a sample is the chosen answer of its pair (or the rejected one), per sample.
    pub fn side_mask(&mut self, side: Side, span: Span) -> El<ValueId> {
        let field = match side {
            Side::Chosen => "chosen",
            Side::Rejected => "rejected",
        };
        let b = self.builder(span)?;
        let Some(samples) = b.samples else {
            return self.error(
                "misplaced",
                span,
                "these pairs belong to no batch here",
                "this value",
            );
        };
        let name = format!("pairs.{field}");
        let b = self.builder(span)?;
        let seq = b.dim("seq");
        let id = b.input(&name, Type::f32([seq]));
        bind_input(&mut b.inputs, &name, samples, Some(field.into()));
        Ok(id)
    }

    /// Reads a step value as an input of the current graph.
    fn step_tensor(&mut self, s: &StepTensor, span: Span) -> El<Tensor> {
        let name = match (&s.field, self.stages.get(s.binding)) {
            (Some(f), Some(b)) => format!("{}.{f}", b.name),
            (None, Some(b)) => b.name.clone(),
            _ => {
                return self.error(
                    "misplaced",
                    span,
                    "this value belongs to another step",
                    "not available here",
                );
            }
        };
        let samples = s.samples;
        let b = self.builder(span)?;
        if let Some(of) = samples {
            b.samples.get_or_insert(of);
        }
        let dims: Vec<DimId> = match s.shape {
            StepShape::Act => vec![b.dim("act")],
            StepShape::Seq => vec![b.dim("seq")],
            StepShape::Group => vec![b.dim("group")],
            StepShape::Scalar => vec![],
        };
        let mut id = b.input(&name, Type::f32(dims));
        bind_input(&mut b.inputs, &name, s.binding, s.field.clone());
        if let Some(side) = s.side {
            id = self.one_side(id, side, span)?;
        }
        let b = self.builder(span)?;
        let valid = match &s.valid {
            Validity::All => None,
            Validity::Field => {
                let name = format!("{name}.valid");
                let seq = b.dim("seq");
                let v = b.input(&name, Type::f32([seq]));
                bind_input(&mut b.inputs, &name, s.binding, Some("valid".into()));
                Some(v)
            }
            Validity::Binding(binding) => {
                let name = format!("{name}.valid");
                let seq = b.dim("seq");
                let v = b.input(&name, Type::f32([seq]));
                bind_input(&mut b.inputs, &name, *binding, None);
                Some(v)
            }
        };
        Ok(Tensor { id, valid, origin: s.origin.clone() })
    }

    /// Appends a node with one result; shape errors become diagnostics.
    pub fn tensor_op(
        &mut self,
        op: Op,
        args: &[ValueId],
        arg_spans: &[Span],
        span: Span,
    ) -> El<ValueId> {
        let b = self.builder(span)?;
        b.origin = Some((span.source.0, span.start, span.end));
        let made = b.push1(op, args);
        let sides: Vec<Side> = args.iter().filter_map(|a| b.sides.get(a).copied()).collect();
        match (made, &sides[..]) {
            (Err(e), _) => self.shape_error(e, arg_spans, span),
            (Ok(v), []) => Ok(v),
            (Ok(v), [first, rest @ ..]) if rest.iter().all(|s| s == first) => {
                b.sides.insert(v, *first);
                Ok(v)
            }
            (Ok(_), _) => {
                let what = "tokens of the chosen answer and tokens of the rejected one do not meet";
                let d = Diagnostic::error("dim-mismatch", what).label(span, "both here");
                self.fail(d.help("add up each side first: `sum(logprob(m, b.chosen), over: tok)`"))
            }
        }
    }

    /// Reports a shape error at the operands it names.
    pub fn shape_error<T>(&mut self, e: ShapeError, arg_spans: &[Span], span: Span) -> El<T> {
        let mut d = Diagnostic::error("dim-mismatch", e.text);
        for i in &e.args {
            let s = arg_spans.get(*i).copied().unwrap_or(span);
            d = d.label(s, "this operand");
        }
        if d.labels.is_empty() {
            d = d.label(span, "here");
        }
        self.fail(d.help_opt(e.help))
    }

    /// `a op b` where at least one is a tensor.
    pub fn tensor_binary(
        &mut self,
        op: ast::BinaryOp,
        a: &Val<'a>,
        b: &Val<'a>,
        (sa, sb, so, span): (Span, Span, Span, Span),
    ) -> El<Val<'a>> {
        use ast::BinaryOp as B;
        let (x, y) = (self.tensor(a, sa)?, self.tensor(b, sb)?);
        if let (B::Sub | B::Div, Some(p), Some(q)) = (op, &x.origin, &y.origin) {
            self.compare(p, q, span)?;
        }
        let valid = self.both_valid(x.valid, y.valid, span)?;
        let (node, swap, not) = match op {
            B::Add => (BinaryOp::Add, false, false),
            B::Sub => (BinaryOp::Sub, false, false),
            B::Mul => (BinaryOp::Mul, false, false),
            B::Div => (BinaryOp::Div, false, false),
            B::Pow => (BinaryOp::Pow, false, false),
            B::Lt => (BinaryOp::Lt, false, false),
            B::Le => (BinaryOp::Le, false, false),
            B::Gt => (BinaryOp::Lt, true, false),
            B::Ge => (BinaryOp::Le, true, false),
            B::Eq => (BinaryOp::Eq, false, false),
            B::Ne => (BinaryOp::Eq, false, true),
            B::And => (BinaryOp::And, false, false),
            B::Or => (BinaryOp::Or, false, false),
            _ => {
                return self.error(
                    "wrong-type",
                    so,
                    format!("`{}` does not combine tensors", op.text()),
                    "this operator",
                );
            }
        };
        let (args, spans) = if swap { ([y.id, x.id], [sb, sa]) } else { ([x.id, y.id], [sa, sb]) };
        let mut id = self.tensor_op(Op::Binary { op: node }, &args, &spans, span)?;
        if not {
            id = self.tensor_op(Op::Unary { op: UnaryOp::Not }, &[id], &[span], span)?;
        }
        Ok(self.made(id, valid))
    }

    /// Valid where both are.
    pub fn both_valid(
        &mut self,
        a: Option<ValueId>,
        b: Option<ValueId>,
        span: Span,
    ) -> El<Option<ValueId>> {
        match (a, b) {
            (Some(x), Some(y)) if x != y => Ok(Some(self.tensor_op(
                Op::Binary { op: BinaryOp::And },
                &[x, y],
                &[span, span],
                span,
            )?)),
            (x, y) => Ok(x.or(y)),
        }
    }

    /// `a @ b`: contracts every dim the two share.
    pub fn contract(
        &mut self,
        a: Val<'a>,
        b: Val<'a>,
        sa: Span,
        sb: Span,
        span: Span,
    ) -> El<Val<'a>> {
        let (x, y) = (self.tensor(&a, sa)?, self.tensor(&b, sb)?);
        let g = &self.builder(span)?.graph;
        let (dx, dy) = (g.dims_of(x.id).to_vec(), g.dims_of(y.id).to_vec());
        let over: Vec<DimId> = dx.iter().filter(|d| dy.contains(d)).copied().collect();
        let ragged = |ds: &[DimId]| ds.iter().any(|d| g.dims.is_ragged(*d));
        if over.is_empty() {
            let text = format!(
                "`@` contracts dims that both sides share; {} and {} share none",
                show_dims(g, &dx),
                show_dims(g, &dy)
            );
            let (left, right) = (show_dims(g, &dx), show_dims(g, &dy));
            return self.fail(
                Diagnostic::error("dim-mismatch", text)
                    .label(sa, left)
                    .label(sb, right)
                    .help("check which weight this is; dims are matched by name"),
            );
        }
        if ragged(&dx) && ragged(&dy) {
            return self.fail(
                Diagnostic::error(
                    "dim-mismatch",
                    "`@` of two tensors that both run over tokens or samples",
                )
                .label(sa, show_of(&self.builders, &dx))
                .label(sb, show_of(&self.builders, &dy))
                .help("at most one side may have a ragged dim; write `sum(a * b, over: ..)`"),
            );
        }
        let id = self.tensor_op(Op::Contract { over }, &[x.id, y.id], &[sa, sb], span)?;
        Ok(self.made(id, None))
    }

    /// `w[ids]`.
    pub fn index(
        &mut self,
        env: &Env<'a>,
        base: &'a ast::Expr,
        items: &'a [ast::IndexItem],
        span: Span,
    ) -> El<Val<'a>> {
        let b = self.expr(env, base)?;
        let [item] = items else {
            return self.error("wrong-type", span, "one index at a time", "several here");
        };
        match item {
            ast::IndexItem::Expr(e) => {
                let i = self.expr(env, e)?;
                if !self.is_tensor(&b) {
                    return self.intrinsic_vals("at", vec![(b, base.span), (i, e.span)], span);
                }
                let (x, ids) = (self.tensor(&b, base.span)?, self.tensor(&i, e.span)?);
                let Some(dim) = self.builder(span)?.graph.id_of(ids.id) else {
                    return self.error(
                        "wrong-type",
                        e.span,
                        "only ids can index a tensor",
                        "these are not ids",
                    );
                };
                let id =
                    self.tensor_op(Op::Index { dim }, &[x.id, ids.id], &[base.span, e.span], span)?;
                Ok(self.made(id, None))
            }
            _ => self.error("not-supported", span, "this index is not usable here", "this index"),
        }
    }

    /// The dims that `over:` names for a value with dims `of`.
    pub fn over(&mut self, env: &Env<'a>, e: &'a ast::Expr, of: ValueId) -> El<Vec<DimId>> {
        let mut out = vec![];
        let parts: Vec<&'a ast::Expr> = match &e.kind {
            ast::ExprKind::Tuple(items) | ast::ExprKind::List(items) => items.iter().collect(),
            _ => vec![e],
        };
        for p in parts {
            let Some(name) = p.as_name() else {
                return self.error(
                    "wrong-type",
                    p.span,
                    "`over:` takes names of dims",
                    "not a dim",
                );
            };
            if name == "all" {
                return Ok(self.builder(e.span)?.all_dims(of));
            }
            if let Some(Val::Dim(d)) = env.get(name) {
                out.push(*d);
                continue;
            }
            let b = self.builder(e.span)?;
            let have = b.graph.dims_of(of).to_vec();
            // `tok` in a recipe means the trained tokens wherever those are what is there.
            let named =
                |b: &crate::builder::Builder, n: &str| b.has_dim(n).filter(|d| have.contains(d));
            let found = match name {
                "tok" | "act" | "tokens" => named(b, "act").or_else(|| named(b, "tok")),
                "seq" | "samples" => named(b, "seq"),
                "group" | "groups" | "pair" | "pairs" => named(b, "group"),
                _ => None,
            };
            match found {
                Some(d) => out.push(d),
                None => {
                    // Trained tokens are a dim of their own inside, and `tok` to people.
                    let dims = show_dims(&b.graph, &have).replace("act", "tok");
                    let what = format!("cannot reduce over `{name}`: the value has dims {dims}");
                    let d = Diagnostic::error("dim-mismatch", what);
                    let words = ["tokens", "samples", "groups", "pairs", "tok", "seq", "group"];
                    let near = nrl_base::did_you_mean(name, words);
                    return self.fail(d.label(p.span, "not one of its dims").help_opt(near));
                }
            }
        }
        Ok(out)
    }

    /// Fields of a batch of samples.
    pub fn samples_field(&mut self, s: &crate::value::Samples, name: &ast::Name) -> El<Val<'a>> {
        let (shape, known) = match name.text.as_str() {
            "logprob" => (StepShape::Act, s.drawing.is_some()),
            "length" | "truncated" => (StepShape::Seq, true),
            what @ ("routes" | "support") => return self.record_of(s, what, name.span),
            "reward" if s.reward.is_some() => return Ok(self.rollout_reward(s, name.span)),
            _ => {
                let known = ["logprob", "length", "truncated"];
                let help = nrl_base::did_you_mean(&name.text, known)
                    .unwrap_or_else(|| format!("samples have {}", known.join(", ")));
                return self.fail(
                    Diagnostic::error("unknown-name", format!("samples have no `{}`", name.text))
                        .label(name.span, "not found")
                        .help(help),
                );
            }
        };
        if !known {
            return self.error(
                "unknown-name",
                name.span,
                "these samples were not generated, so they have no `logprob`",
                "only generated samples have it",
            );
        }
        let origin = match (shape, &s.drawing) {
            (StepShape::Act, Some(d)) => Some(self.drawn_origin(s, d, name.span)),
            _ => None,
        };
        Ok(Val::Step(StepTensor {
            binding: s.binding,
            field: Some(name.text.clone()),
            shape,
            valid: Validity::All,
            samples: Some(s.binding),
            side: None,
            origin,
        }))
    }

    /// The reward that a rollout ends with, one per sample.
    fn rollout_reward(&mut self, s: &crate::value::Samples, span: Span) -> Val<'a> {
        let reward = s.reward.unwrap_or(0);
        let stage = nrl_ir::program::Stage::Reward { reward };
        let binding = self.stage("", stage, vec![s.binding], span);
        Val::Step(StepTensor {
            binding,
            field: None,
            shape: StepShape::Seq,
            valid: Validity::Field,
            samples: Some(s.binding),
            side: None,
            origin: None,
        })
    }

    /// In which graph may `logprob` of this model be inlined?
    pub fn live_model(&self) -> Option<usize> {
        match self.mode() {
            Mode::Loss { model } => Some(*model),
            _ => None,
        }
    }
}

/// Binds a graph input once.
pub fn bind_input(inputs: &mut Vec<GraphInput>, input: &str, from: usize, field: Option<String>) {
    if !inputs.iter().any(|i| i.input == input) {
        inputs.push(GraphInput { input: input.into(), from, field });
    }
}

fn show_of(builders: &[crate::builder::Builder], dims: &[DimId]) -> String {
    builders.last().map_or(String::new(), |b| show_dims(&b.graph, dims))
}
