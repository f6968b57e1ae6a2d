//! Arithmetic, reductions and sequence operations.

use nrl_base::Diagnostic;
use nrl_ir::Cycle;
use nrl_ir::host::{Builtin, HostType, Value};
use nrl_ir::op::{Attention, BinaryOp, Op, ReduceOp, UnaryOp};

use super::Args;
use crate::elab::{El, Elab, Mode};
use crate::value::{Env, Side, Val};

impl<'a> Elab<'a, '_> {
    pub(super) fn tensor_call(&mut self, env: &Env<'a>, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let name = a.which.name;
        match name {
            "exp" | "log" | "sqrt" | "rsqrt" | "tanh" | "sigmoid" | "abs" | "sign"
            | "is_finite" => {
                let (x, s) = a.need("x");
                if !self.is_tensor(&x) {
                    return self.host_unary(name, x, s, span);
                }
                let t = self.tensor(&x, s)?;
                let op =
                    UnaryOp::ALL.into_iter().find(|u| u.name() == name).unwrap_or(UnaryOp::Abs);
                let id = self.tensor_op(Op::Unary { op }, &[t.id], &[s], span)?;
                Ok(self.made(id, t.valid))
            }
            "min" | "max" | "pow" => {
                let (first, second) = if name == "pow" { ("x", "y") } else { ("a", "b") };
                let ((x, sx), (y, sy)) = (a.need(first), a.need(second));
                if !self.is_tensor(&x) && !self.is_tensor(&y) {
                    let b = Builtin::find(name).unwrap_or(Builtin::Min);
                    return self.host_call(b, vec![(x, sx), (y, sy)], span);
                }
                let (x, y) = (self.tensor(&x, sx)?, self.tensor(&y, sy)?);
                let valid = self.both_valid(x.valid, y.valid, span)?;
                let op = match name {
                    "min" => BinaryOp::Min,
                    "max" => BinaryOp::Max,
                    _ => BinaryOp::Pow,
                };
                let id = self.tensor_op(Op::Binary { op }, &[x.id, y.id], &[sx, sy], span)?;
                Ok(self.made(id, valid))
            }
            "where" => {
                let ((c, sc), (x, sx), (y, sy)) = (a.need("cond"), a.need("a"), a.need("b"));
                let (c, x, y) = (self.tensor(&c, sc)?, self.tensor(&x, sx)?, self.tensor(&y, sy)?);
                let valid = self.both_valid(x.valid, y.valid, span)?;
                let id = self.tensor_op(Op::Select, &[c.id, x.id, y.id], &[sc, sx, sy], span)?;
                Ok(self.made(id, valid))
            }
            "stop" => {
                let (x, s) = a.need("x");
                let t = self.tensor(&x, s)?;
                let id = self.tensor_op(Op::StopGrad, &[t.id], &[s], span)?;
                Ok(self.made(id, t.valid))
            }
            "sum" | "maximum" => {
                let (x, s) = a.need("x");
                let Some(over) = a.take("over").and_then(|g| g.expr) else {
                    return self.host_call(Builtin::Sum, vec![(x, s)], span);
                };
                let t = self.tensor(&x, s)?;
                let dims = self.over(env, over, t.id)?;
                let op = if name == "sum" { ReduceOp::Sum } else { ReduceOp::Max };
                if let Some(side) = self.builder(span)?.sides.get(&t.id).copied() {
                    return self.side_sum(op, t.id, &dims, side, span);
                }
                let id = self.reduce(op, t.id, dims, span)?;
                self.whole_batch(t.id, id, over.span)?;
                Ok(self.made(id, None))
            }
            "mean" => self.mean(env, a),
            "dot" => {
                let ((x, sx), (y, sy)) = (a.need("a"), a.need("b"));
                let (x, y) = (self.tensor(&x, sx)?, self.tensor(&y, sy)?);
                let Some(over) = a.take("over").and_then(|g| g.expr) else {
                    return Err(crate::elab::Stop);
                };
                let over = self.over(env, over, x.id)?;
                let id = self.tensor_op(Op::Contract { over }, &[x.id, y.id], &[sx, sy], span)?;
                Ok(self.made(id, None))
            }
            "valid" => {
                let (x, s) = a.need("x");
                let t = self.tensor(&x, s)?;
                match t.valid {
                    Some(v) => Ok(self.made(v, None)),
                    None => self.ones(t.id, span),
                }
            }
            "ones" => {
                let (x, s) = a.need("x");
                let t = self.tensor(&x, s)?;
                self.ones(t.id, span)
            }
            "rope" => self.rope(a),
            "attention" => self.attention(a),
            "convolution" => self.convolution(a),
            "state_space" => self.state_space(a),
            "log_prob" => {
                let ((x, sx), (i, si)) = (a.need("logits"), a.need("ids"));
                let (x, i) = (self.tensor(&x, sx)?, self.tensor(&i, si)?);
                let b = self.builder(span)?;
                let Some(vocab) = b.graph.id_of(i.id) else {
                    return self.error(
                        "wrong-type",
                        si,
                        "`log_prob` takes ids",
                        "these are not ids",
                    );
                };
                let valid = b.graph.dims.bound(vocab);
                let one = b.constant(1.0);
                let id = self.tensor_op(
                    Op::LogProb { vocab, valid, axes: vec![] },
                    &[x.id, i.id, one],
                    &[sx, si, span],
                    span,
                )?;
                Ok(self.made(id, None))
            }
            "len" => {
                let (x, s) = a.need("x");
                let f = match &x {
                    Val::Const(Value::Text(_), _) | Val::Host(_, HostType::Text) => {
                        Builtin::TextLen
                    }
                    _ => Builtin::ListLen,
                };
                self.host_call(f, vec![(x, s)], span)
            }
            "map" | "filter" => {
                let (list, f) = (a.need("list"), a.need("f"));
                self.over_list(name, list, &[f], span)
            }
            "fold" => {
                let (list, init, f) = (a.need("list"), a.need("init"), a.need("f"));
                self.over_list(name, list, &[init, f], span)
            }
            other => self.error(
                "unknown-name",
                span,
                format!("`{other}` is not usable here"),
                "this call",
            ),
        }
    }

    /// A sum over the tokens of one side of pairs: one number per pair.
    fn side_sum(
        &mut self,
        op: ReduceOp,
        x: nrl_ir::ValueId,
        over: &[nrl_ir::DimId],
        side: Side,
        span: nrl_base::Span,
    ) -> El<Val<'a>> {
        let b = self.builder(span)?;
        let (act, seq) = (b.dim("act"), b.dim("seq"));
        if op != ReduceOp::Sum || over != [act] {
            return self.error(
                "not-supported",
                span,
                "one side of pairs is added up over its tokens",
                "write `sum(.., over: tokens)`",
            );
        }
        let mask = self.side_mask(side, span)?;
        let masked =
            self.tensor_op(Op::Binary { op: BinaryOp::Mul }, &[x, mask], &[span, span], span)?;
        let id = self.reduce(ReduceOp::Sum, masked, vec![act, seq], span)?;
        for v in [masked, id] {
            self.builder(span)?.sides.remove(&v);
        }
        Ok(self.made(id, None))
    }

    /// Inside `minimising` a graph sees one micro-batch: nothing may be reduced to one number there.
    fn whole_batch(
        &mut self,
        from: nrl_ir::ValueId,
        to: nrl_ir::ValueId,
        span: nrl_base::Span,
    ) -> El<()> {
        let live = matches!(self.mode(), Mode::Loss { model } if *model != usize::MAX);
        let b = self.builder(span)?;
        let ragged = |b: &crate::builder::Builder, v| {
            b.graph.dims_of(v).iter().any(|d| b.graph.dims.is_ragged(*d))
        };
        if !live || !ragged(b, from) || ragged(b, to) {
            return Ok(());
        }
        let at = self.user_span(span);
        let d = Diagnostic::error(
            "loss-depends-on-layout",
            "inside `minimising` this adds up one micro-batch, not the batch",
        );
        self.fail(
            d.label(at, "changes with packing and layout")
                .help("move it to a line before the update, or write `mean(.., over: tokens)`"),
        )
    }

    fn host_unary(
        &mut self,
        name: &str,
        x: Val<'a>,
        s: nrl_base::Span,
        span: nrl_base::Span,
    ) -> El<Val<'a>> {
        match Builtin::find(name) {
            Some(b) => self.host_call(b, vec![(x, s)], span),
            None => {
                let kind = x.kind();
                self.error(
                    "wrong-type",
                    s,
                    format!("`{name}` takes a tensor, got {kind}"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    fn ones(&mut self, like: nrl_ir::ValueId, span: nrl_base::Span) -> El<Val<'a>> {
        let b = self.builder(span)?;
        let dims = b.graph.dims_of(like).to_vec();
        let one = b.constant(1.0);
        let id = self.tensor_op(Op::Broadcast { dims }, &[one], &[span], span)?;
        Ok(self.made(id, None))
    }

    /// `mean(x, over: tokens)` is a loss: a sum over the whole optimizer batch divided by a count
    /// fixed before it starts. `mean(x, over: d)` of a static dim is an ordinary mean.
    fn mean(&mut self, env: &Env<'a>, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (x, s) = a.need("x");
        let Some(over) = a.take("over").and_then(|g| g.expr) else { return Err(crate::elab::Stop) };
        let t = self.tensor(&x, s)?;
        let item = over
            .as_name()
            .filter(|n| matches!(*n, "tokens" | "samples" | "groups" | "pairs" | "microbatch"));
        let Some(item) = item else {
            let dims = self.over(env, over, t.id)?;
            let b = self.builder(span)?;
            let sizes: Option<Vec<usize>> = dims.iter().map(|d| b.graph.dims.size(*d)).collect();
            let Some(sizes) = sizes else {
                return self.fail(
                    Diagnostic::error(
                        "loss-depends-on-layout",
                        "a mean over a ragged dim changes with packing and layout",
                    )
                    .label(over.span, "ragged")
                    .help(
                        "write `mean(x, over: tokens)` for a loss, or `sum(x, over: ..) / count`",
                    ),
                );
            };
            let total = self.reduce(ReduceOp::Sum, t.id, dims, span)?;
            let b = self.builder(span)?;
            let n = b.constant(1.0 / sizes.iter().product::<usize>() as f64);
            let id =
                self.tensor_op(Op::Binary { op: BinaryOp::Mul }, &[total, n], &[span, span], span)?;
            return Ok(self.made(id, None));
        };
        if !matches!(self.mode(), Mode::Loss { .. }) {
            return self.fail(
                Diagnostic::error("loss-outside-update", format!("`mean(.., over: {item})` is a loss, which only `update .. minimising` takes"))
                    .label(span, "outside an update")
                    .help("write `average(x)` for the mean over samples, or `sum(x, over: ..)`"),
            );
        }
        let b = self.builder(span)?;
        let dims = b.graph.dims_of(t.id).to_vec();
        let act = b.has_dim("act");
        let per_token = act.is_some_and(|d| dims.contains(&d));
        let seq = b.has_dim("seq");
        let per_sample = seq.is_some_and(|d| dims.contains(&d));
        if b.sides.contains_key(&t.id) {
            let what = "one side of pairs has no mean of its own yet";
            let d = Diagnostic::error("not-supported", what).label(s, "tokens of one side");
            return self
                .fail(d.help("add it up first: `sum(.., over: tokens)`, then `over: pairs`"));
        }
        if item == "microbatch" {
            return self.microbatch_mean(t.id, over.span, span);
        }
        let x = match item {
            "tokens" if per_token => t.id,
            "tokens" => {
                return self.fail(
                    Diagnostic::error(
                        "dim-mismatch",
                        "a mean over tokens needs one number per token",
                    )
                    .label(
                        s,
                        format!(
                            "this has dims {}",
                            self.builders.last().map_or(String::new(), |b| {
                                nrl_ir::infer::show_dims(&b.graph, &dims)
                            })
                        ),
                    )
                    .help("write `over: samples` for one number per sample"),
                );
            }
            // Per sample: the mean over its own tokens first.
            _ if per_token => {
                let over = vec![act.unwrap_or(nrl_ir::DimId(0))];
                let sums = self.reduce(ReduceOp::Sum, t.id, over.clone(), span)?;
                let ones = self.ones(t.id, span)?;
                let ones = self.tensor(&ones, span)?.id;
                let n = self.reduce(ReduceOp::Sum, ones, over, span)?;
                let b = self.builder(span)?;
                let one = b.constant(1.0);
                let n = self.tensor_op(
                    Op::Binary { op: BinaryOp::Max },
                    &[n, one],
                    &[span, span],
                    span,
                )?;
                self.tensor_op(Op::Binary { op: BinaryOp::Div }, &[sums, n], &[span, span], span)?
            }
            _ if per_sample || matches!(item, "groups" | "pairs") => t.id,
            _ => {
                return self.error(
                    "dim-mismatch",
                    s,
                    format!("a mean over {item} needs one number per token or sample"),
                    "this value",
                );
            }
        };
        let b = self.builder(span)?;
        let total = match b.total(x) {
            Ok(v) => v,
            Err(e) => return self.shape_error(e, &[s], span),
        };
        let count = match item {
            "tokens" => "count.tokens",
            "samples" => "count.samples",
            _ => "count.groups",
        };
        let b = self.builder(span)?;
        let n = b.input(count, nrl_ir::Type::f32([]));
        // A batch in which nothing is trained has loss 0.
        let one = b.constant(1.0);
        let n = self.tensor_op(Op::Binary { op: BinaryOp::Max }, &[n, one], &[span, span], span)?;
        let id =
            self.tensor_op(Op::Binary { op: BinaryOp::Div }, &[total, n], &[span, span], span)?;
        Ok(Val::Loss(id))
    }

    /// A mean over whatever is computed at once: its gradient changes with packing and layout.
    fn microbatch_mean(
        &mut self,
        x: nrl_ir::ValueId,
        at: nrl_base::Span,
        span: nrl_base::Span,
    ) -> El<Val<'a>> {
        let place = self.user_span(at);
        self.problems.push(
            Diagnostic::warning(
                "loss-depends-on-layout",
                "this mean is over one micro-batch, so that the gradient changes with packing and dp",
            )
            .label(place, "over what is computed at once")
            .note("two micro-batches of 2 and 8 tokens that add up to 10 each: 3.125 here, 2.0 over all tokens")
            .help("write `over: tokens`, unless it must be as Megatron-LM has it"),
        );
        self.out.facts.inexact.push(place);
        self.later(place, "a mean over a micro-batch does not run yet", "this mean");
        let ones = self.ones(x, span)?;
        let ones = self.tensor(&ones, span)?.id;
        let b = self.builder(span)?;
        let totals = b.total(x).and_then(|t| Ok((t, b.total(ones)?)));
        let (total, n) = match totals {
            Ok(t) => t,
            Err(e) => return self.shape_error(e, &[span], span),
        };
        let id =
            self.tensor_op(Op::Binary { op: BinaryOp::Div }, &[total, n], &[span, span], span)?;
        Ok(Val::Loss(id))
    }

    fn rope(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let ((x, sx), (f, sf)) = (a.need("x"), a.need("inv_freq"));
        let t = self.tensor(&x, sx)?;
        let scale = match a.take("scale") {
            Some(g) => self.number(&g.val, g.span, "`scale`")?,
            None => 1.0,
        };
        let inv_freq = self.frequencies(&f, sf)?;
        let b = self.builder(span)?;
        let dims = b.graph.dims_of(t.id).to_vec();
        let (tok, hd) = match (b.has_dim("tok"), dims.last()) {
            (Some(tok), Some(hd)) if dims.contains(&tok) && *hd != tok => (tok, *hd),
            _ => {
                return self.error(
                    "dim-mismatch",
                    sx,
                    "`rope` turns the last dim of a value over `tok`",
                    "this value",
                );
            }
        };
        let size = b.graph.dims.bound(hd);
        let most = inv_freq.items().iter().map(Vec::len).max().unwrap_or(0);
        if size < 2 * most {
            let name = b.graph.dims.name(hd).to_string();
            return self.error(
                "dim-mismatch",
                sf,
                format!("{most} frequencies do not turn `{name}` of {size}"),
                "at most half as many as the dim has turn it",
            );
        }
        let id = self.tensor_op(
            Op::Rope { tok, hd, inv_freq, scale, inverse: false },
            &[t.id],
            &[sx],
            span,
        )?;
        Ok(self.made(id, None))
    }

    /// A list of inverse frequencies, or a list of such lists that layers take in turn.
    fn frequencies(&mut self, v: &Val<'a>, span: nrl_base::Span) -> El<Cycle<Vec<f64>>> {
        let numbers = |v: &Value| -> Option<Vec<f64>> {
            let Value::List(items) = v else { return None };
            items.iter().map(|v| if let Value::Num(x) = v { Some(*x) } else { None }).collect()
        };
        let tables = match self.constants(v, span)? {
            Value::List(items) => match items.first() {
                Some(Value::List(_)) => items.iter().map(numbers).collect(),
                _ => numbers(&Value::List(items.clone())).map(|one| vec![one]),
            },
            _ => None,
        };
        match tables.and_then(Cycle::new) {
            Some(tables) => self.in_turn(tables, span),
            None => self.error(
                "wrong-type",
                span,
                "`rope` takes a list of inverse frequencies known before the run",
                "not a list of numbers, nor one of such lists for layers in turn",
            ),
        }
    }

    /// `window: 512`, or a list of windows that layers take in turn, `none` where a layer has none.
    fn windows(&mut self, v: &Val<'a>, span: nrl_base::Span) -> El<Cycle<Option<usize>>> {
        let one = |v: &Value| match v {
            Value::None => Some(None),
            Value::Num(n) if *n >= 1.0 && n.fract() == 0.0 => Some(Some(*n as usize)),
            _ => None,
        };
        let windows: Option<Vec<_>> = match self.constants(v, span)? {
            Value::List(items) => items.iter().map(one).collect(),
            item => one(&item).map(|w| vec![w]),
        };
        match windows.and_then(Cycle::new) {
            Some(windows) => self.in_turn(windows, span),
            None => self.error(
                "wrong-type",
                span,
                "`window` is a number of tokens, at least 1, or a list of such and `none` for layers in turn",
                "not this",
            ),
        }
    }

    /// What layers have in turn stands where layers are run over.
    fn in_turn<T>(&mut self, items: Cycle<T>, span: nrl_base::Span) -> El<Cycle<T>> {
        let alone = self.builder(span)?.blocks.len() < 2;
        match items.items().len() {
            n if n > 1 && alone => self.error(
                "misplaced",
                span,
                format!("{n} items for layers in turn, outside of a `for` over layers"),
                "one item here",
            ),
            _ => Ok(items),
        }
    }

    fn attention(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let ((q, sq), (k, sk), (v, sv)) = (a.need("q"), a.need("k"), a.need("v"));
        let (q, k, v) = (self.tensor(&q, sq)?, self.tensor(&k, sk)?, self.tensor(&v, sv)?);
        let b = self.builder(span)?;
        let (dq, dk) = (b.graph.dims_of(q.id).to_vec(), b.graph.dims_of(k.id).to_vec());
        let (&[tok, qh, hd], &[_, kv, _]) = (&dq[..], &dk[..]) else {
            return self.error(
                "dim-mismatch",
                span,
                "attention takes queries, keys and values of [tok, heads, head size]",
                "these",
            );
        };
        let size = b.graph.dims.bound(hd) as f64;
        let (nq, nkv) = (b.graph.dims.bound(qh), b.graph.dims.bound(kv));
        if nkv == 0 || nq % nkv != 0 {
            return self.error(
                "dim-mismatch",
                span,
                format!("{nq} query heads do not share {nkv} key/value heads evenly"),
                "this attention",
            );
        }
        let scale = match a.take("scale") {
            Some(g) => self.number(&g.val, g.span, "`scale`")?,
            None => 1.0 / size.sqrt(),
        };
        let window = match a.take("window") {
            Some(g) => self.windows(&g.val, g.span)?,
            None => None.into(),
        };
        let sink = match a.take("sink") {
            Some(g) if !g.val.is_none() => Some((self.tensor(&g.val, g.span)?.id, g.span)),
            _ => None,
        };
        let vd = self.builder(span)?.graph.dims_of(v.id).last().copied().unwrap_or(hd);
        let attn = Attention { tok, q: qh, kv, hd, vd, scale, window, ring: None };
        let (mut args, mut spans) = (vec![q.id, k.id, v.id], vec![sq, sk, sv]);
        if let Some((id, at)) = sink {
            args.push(id);
            spans.push(at);
        }
        let id = self.tensor_op(Op::Attention { attn }, &args, &spans, span)?;
        Ok(self.made(id, None))
    }
}
