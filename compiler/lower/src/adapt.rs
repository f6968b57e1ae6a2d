//! What is trained of a model, and heads in place of logits: `freeze`, `lora`, `head: scalar`.
//!
//! In: lines of a recipe that name a model. Out: models whose parameters say what is trained, and
//! graphs of one number per token. A path that matches nothing is an error.

use nrl_base::{Diagnostic, Span};
use nrl_ir::graph::ParamDecl;
use nrl_ir::{DimId, Op, ParamId, Type, ValueId};
use nrl_syntax::ast::{self, ExprKind, TypeKind};

use crate::elab::{El, Elab, Stop};
use crate::intrinsic::Args;
use crate::model::{Lora, ModelInfo};
use crate::value::{Env, Val};

/// Name of the weights of a scalar head.
const VALUE_HEAD: &str = "value_head";

impl<'a> Elab<'a, '_> {
    /// `freeze policy.layers[*].router`.
    pub fn freeze(&mut self, env: &Env<'a>, paths: &'a [ast::Expr]) -> El<()> {
        for e in paths {
            let (head, path) = self.model_path(e)?;
            let v = self.expr(env, head)?;
            let model = self.model_of(&v, head.span)?;
            let found = self.params_at(model, &path, e.span)?;
            for p in found {
                let decl = &mut self.out.program.models[model].params[p];
                decl.trained = false;
                self.models[model].frozen.insert(decl.name.clone());
            }
        }
        Ok(())
    }

    /// `policy.layers[*].wo` as the model and `layers.wo`; the model alone as an empty path.
    fn model_path(&mut self, e: &'a ast::Expr) -> El<(&'a ast::Expr, String)> {
        let (base, name) = match &e.kind {
            ExprKind::Name(_) => return Ok((e, String::new())),
            ExprKind::Field { base, name } => (&**base, name.text.clone()),
            ExprKind::Index { base, items } => match &items[..] {
                [ast::IndexItem::All(_)] => return self.model_path(base),
                _ => {
                    let what = "some layers of a stack are not frozen alone; write `layers[*]`";
                    return self.error("not-supported", e.span, what, "these layers");
                }
            },
            _ => {
                let what = "a path of a model, such as `policy.layers[*].wo`, is needed";
                return self.error("wrong-type", e.span, what, "not a path");
            }
        };
        let (head, path) = self.model_path(base)?;
        Ok((head, if path.is_empty() { name } else { format!("{path}.{name}") }))
    }

    /// Parameters that a path names: itself, or everything below it.
    fn params_at(&mut self, model: usize, path: &str, span: Span) -> El<Vec<usize>> {
        let m = &self.out.program.models[model];
        let below = format!("{path}.");
        let hit = |n: &str| path.is_empty() || n == path || n.starts_with(&below);
        let found: Vec<usize> = (0..m.params.len()).filter(|i| hit(&m.params[*i].path())).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let known: Vec<&str> = m.params.iter().map(|p| p.name.as_str()).collect();
        let help = nrl_base::did_you_mean(path, known.iter().copied())
            .unwrap_or_else(|| format!("its parameters are {}", known.join(", ")));
        let what = format!("`{path}` is not a parameter of `{}`", m.name);
        self.fail(
            Diagnostic::error("rule-matches-nothing", what)
                .label(span, "matches nothing")
                .help(help),
        )
    }

    /// `lora(policy, rank: 16, on: [wq, wv])`: the same weights, frozen, with trained factors.
    pub fn lora(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = a.span;
        let (m, sm) = a.need("model");
        let base = self.model_of(&m, sm)?;
        let (r, sr) = a.need("rank");
        let rank = self.whole(&r, sr, "`rank`")?;
        if rank == 0 {
            return self.error("out-of-range", sr, "`rank` is 0", "at least 1");
        }
        let scale = match a.take("alpha").filter(|g| !g.val.is_none()) {
            Some(g) => self.number(&g.val, g.span, "`alpha`")? / rank as f64,
            None => 1.0,
        };
        let Some(on) = a.take("on").and_then(|g| g.expr) else { return Err(Stop) };
        let names = self.words(on, "the names of parameters, such as `[wq, wv]`")?;
        for (name, at) in &names {
            let last = |n: &str| n.rsplit('.').next() == Some(name.as_str());
            let params = &self.out.program.models[base].params;
            if params.iter().any(|p| last(&p.name)) {
                continue;
            }
            let known: Vec<&str> =
                params.iter().filter_map(|p| p.name.rsplit('.').next()).collect();
            let help = nrl_base::did_you_mean(name, known.iter().copied())
                .unwrap_or_else(|| format!("its parameters are {}", known.join(", ")));
            let what =
                format!("`{name}` is not a parameter of `{}`", self.out.program.models[base].name);
            return self.fail(
                Diagnostic::error("rule-matches-nothing", what)
                    .label(*at, "matches nothing")
                    .help(help),
            );
        }
        self.later(span, "low-rank adapters do not run yet", "these adapters");
        let mut model = self.out.program.models[base].clone();
        model.name.clear();
        let mut info = ModelInfo { storage: vec![], ..self.models[base].clone() };
        info.lora = Some(Lora { rank, scale, on: names.into_iter().map(|(n, _)| n).collect() });
        let made = self.push_model(model, info, span)?;
        if let Val::Model(i) = &made {
            self.out.facts.models[*i].bf16 = self.out.facts.models[base].bf16;
            self.out.rules[*i] = self.out.rules[base].clone();
            self.out.places[*i] = self.out.places[base];
        }
        Ok(made)
    }

    /// A list of bare words.
    pub fn words(&mut self, e: &'a ast::Expr, what: &str) -> El<Vec<(String, Span)>> {
        let items = match &e.kind {
            ExprKind::List(items) => &items[..],
            _ => std::slice::from_ref(e),
        };
        let mut out = vec![];
        for i in items {
            match i.as_name() {
                Some(n) => out.push((n.to_string(), i.span)),
                None => {
                    let text = format!("{what} are needed");
                    return self.error("wrong-type", i.span, text, "not a name");
                }
            }
        }
        Ok(out)
    }

    /// The two factors of a parameter that `lora` names, and how a use of it is made of them.
    pub fn declare_factors(
        &mut self,
        info: &ModelInfo<'a>,
        id: ParamId,
        of: &ParamDecl,
        name: &str,
        span: Span,
    ) -> El<()> {
        let Some(lora) = info.lora.as_ref().filter(|l| l.on.iter().any(|n| n == name)) else {
            return Ok(());
        };
        let b = self.builder(span)?;
        let rank = match b.graph.dims.find("rank") {
            Some(d) => d,
            None => b.graph.dims.add_static("rank", lora.rank),
        };
        // Weights of experts are one matrix each, and so are their factors.
        let stacked = usize::from(of.checkpoint.contains("{e}"));
        let groups = of.checkpoint_dims.clone();
        let (each, matrix) = groups.split_at(stacked.min(groups.len()));
        let Some((outer, inner)) = matrix.split_first() else { return Ok(()) };
        let mut factor = |suffix: &str, groups: Vec<Vec<DimId>>| {
            let param = ParamId(b.graph.params.len() as u32);
            b.graph.params.push(ParamDecl {
                name: format!("{}.{suffix}", of.name),
                dims: groups.concat(),
                repeat: of.repeat.clone(),
                checkpoint: of.checkpoint.replace(".weight", &format!(".{suffix}.weight")),
                checkpoint_dims: groups,
                trained: true,
            });
            param
        };
        let first = factor("lora_A", [each, &[vec![rank]], inner].concat());
        let second = factor("lora_B", [each, &[outer.clone(), vec![rank]]].concat());
        b.factors.insert(id, (first, second, rank, lora.scale));
        Ok(())
    }

    /// A use of a parameter: its weights, with the product of its factors if it has them.
    pub fn use_param(&mut self, p: ParamId, span: Span) -> El<ValueId> {
        let w = self.tensor_op(Op::Use { param: p }, &[], &[], span)?;
        let Some((a, b, rank, scale)) = self.builder(span)?.factors.get(&p).copied() else {
            return Ok(w);
        };
        let a = self.tensor_op(Op::Use { param: a }, &[], &[], span)?;
        let b = self.tensor_op(Op::Use { param: b }, &[], &[], span)?;
        let at = [span, span];
        let product = self.tensor_op(Op::Contract { over: vec![rank] }, &[b, a], &at, span)?;
        let scale = self.builder(span)?.constant(scale);
        let mul = Op::Binary { op: nrl_ir::BinaryOp::Mul };
        let scaled = self.tensor_op(mul, &[product, scale], &at, span)?;
        self.tensor_op(Op::Binary { op: nrl_ir::BinaryOp::Add }, &[w, scaled], &at, span)
    }

    /// Does the part of a model below its logits read a parameter of this name?
    pub fn hidden_uses(&self, info: &ModelInfo<'a>, name: &str) -> bool {
        let ast::ItemKind::Model(m) = &info.item.kind else { return true };
        m.members.iter().all(|x| match &x.kind {
            ast::MemberKind::Fn(f) if f.name.text == "hidden" => {
                crate::unused::names_of(&f.body).contains(name)
            }
            _ => true,
        })
    }

    /// Declares the weights of a scalar head over the dim that `hidden` gives.
    pub fn declare_value_head(
        &mut self,
        env: &mut Env<'a>,
        m: &'a ast::Model,
        info: &ModelInfo<'a>,
    ) -> El<()> {
        let hidden = m.members.iter().find_map(|x| match &x.kind {
            ast::MemberKind::Fn(f) if f.name.text == "hidden" => Some(f),
            _ => None,
        });
        let dim = hidden.and_then(|f| match &f.result.as_ref()?.kind {
            TypeKind::Tensor { dims, .. } => dims.iter().find_map(|l| match l.dim.as_name() {
                Some(n) if n != "tok" => env.get(n).cloned(),
                _ => None,
            }),
            _ => None,
        });
        let Some(Val::Dim(d)) = dim else {
            let what = format!(
                "model `{}` takes no scalar head: it has no `fn hidden(ids) -> f32[tok, d]`",
                m.name.text
            );
            return self.error("missing-field", info.item.span, what, "this model");
        };
        let b = self.builder(info.item.span)?;
        let id = ParamId(b.graph.params.len() as u32);
        b.graph.params.push(ParamDecl {
            name: VALUE_HEAD.into(),
            dims: vec![d],
            repeat: None,
            checkpoint: "score.weight".into(),
            checkpoint_dims: vec![vec![], vec![d]],
            trained: !info.frozen.contains(VALUE_HEAD),
        });
        env.bind(VALUE_HEAD, Val::Param(id));
        Ok(())
    }

    /// One number per token position, in the current graph.
    pub fn values(&mut self, id: usize, span: Span) -> El<ValueId> {
        let env = self.instantiate(id)?;
        let f = self.member_fn(id, "hidden")?;
        let head = env.get(VALUE_HEAD).cloned().unwrap_or(Val::Poison);
        let (h, ..) = self.over_tokens(env, f, span)?;
        let h = self.made(h, None);
        let v = self.contract(h, head, span, span, span)?;
        Ok(self.tensor(&v, span)?.id)
    }

    /// The values of the trained tokens, in the current graph.
    pub fn forward_values(&mut self, id: usize, span: Span) -> El<ValueId> {
        self.modes.push(crate::elab::Mode::Forward);
        let all = self.values(id, span);
        self.modes.pop();
        let all = all?;
        let b = self.builder(span)?;
        let (tok, act) = (b.dim("tok"), b.dim("act"));
        let at = b.input("act", Type::id(tok, [act]));
        self.tensor_op(Op::Index { dim: tok }, &[all, at], &[span, span], span)
    }
}
