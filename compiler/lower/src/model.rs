//! Models: parameters, dims, and the one forward pass that every use compiles from.

use std::collections::BTreeSet;
use std::rc::Rc;

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span};
use nrl_ir::graph::ParamDecl;
use nrl_ir::host::Value;
use nrl_ir::program::{Model, Tokens, Weights};
use nrl_ir::{DType, DimId, Op, ParamId, Type, ValueId};
use nrl_syntax::ast::{self, ExprKind, ItemKind, MemberKind, TypeKind};

use crate::builder::Builder;
use crate::call::ArgVal;
use crate::elab::{El, Elab, GraphKind, Mode, Stop};
use crate::facts::ModelFacts;
use crate::modules::ModuleId;
use crate::repeat::{Place, next_rows};
use crate::value::{Env, Member, PlanRules, Val};

/// What elaboration needs of a model to build it again in another graph.
#[derive(Clone, Debug)]
pub struct ModelInfo<'a> {
    pub module: ModuleId,
    pub item: &'a ast::Item,
    pub cfg: Val<'a>,
    /// Storage order of each parameter as positions of its declared dims; empty until known.
    pub storage: Vec<Vec<usize>>,
    /// Ids with a meaning: those of the tokenizer.
    pub valid: usize,
    /// One number per token in place of logits.
    pub scalar: bool,
    /// Parameters that no update changes.
    pub frozen: BTreeSet<String>,
    pub lora: Option<Lora>,
}

/// Low-rank additions to some weights, which are then all that is trained.
#[derive(Clone, Debug)]
pub struct Lora {
    pub rank: usize,
    /// What the product of the two factors is multiplied by.
    pub scale: f64,
    pub on: Vec<String>,
}

impl<'a> ModelInfo<'a> {
    pub fn new(module: ModuleId, item: &'a ast::Item, cfg: Val<'a>, valid: usize) -> ModelInfo<'a> {
        ModelInfo {
            module,
            item,
            cfg,
            storage: vec![],
            valid,
            scalar: false,
            frozen: BTreeSet::new(),
            lora: None,
        }
    }
}

/// Dims that a checkpoint stores merged with the dim before them: sizes of heads, of a mixer's heads
/// and state, and heads of a group.
pub fn is_merged(dim: &str) -> bool {
    matches!(dim, "hd" | "vd" | "khd" | "pair" | "mr" | "mp" | "ms")
}

impl<'a> Elab<'a, '_> {
    pub fn cfg_int(&self, cfg: &Val<'a>, key: &str) -> Option<usize> {
        match cfg {
            Val::Record(r) => match r.get(key) {
                Some(Val::Const(Value::Num(x), _)) => Some(*x as usize),
                _ => None,
            },
            _ => None,
        }
    }

    /// `models.llama({..}, tokens: characters(..), context: 32 tokens)`: random weights.
    pub fn fresh_model(
        &mut self,
        module: ModuleId,
        item: &'a ast::Item,
        args: Vec<ArgVal<'a>>,
        span: Span,
    ) -> El<Val<'a>> {
        let (mut cfg, mut tokens, mut context, mut std) = (None, None, None, 0.02);
        let (mut scalar, mut bf16) = (false, false);
        for (n, v, s) in args {
            match n.map(|n| n.text.as_str()) {
                None if cfg.is_none() => cfg = Some((v, s)),
                Some("tokens") => tokens = Some((v, s)),
                Some("context") => {
                    context =
                        Some(self.counted(&v, s, "`context`", crate::units::Unit::of("token"))?)
                }
                Some("init") => std = self.number(&v, s, "`init`")?,
                Some("head") => scalar = self.scalar_head(&v, s)?,
                Some("dtype") => bf16 = self.in_bf16(&v, s),
                other => {
                    let shown = other.unwrap_or("a second configuration");
                    return self.error(
                        "unknown-name",
                        s,
                        format!("a new model has no parameter `{shown}`"),
                        "it takes a configuration, tokens, context, dtype, head and init",
                    );
                }
            }
        }
        let Some((Val::Record(mut fields), sc)) = cfg else {
            return self.error(
                "wrong-arguments",
                span,
                "a new model needs its configuration",
                "write `llama({hidden_size: 96, ..}, tokens: .., context: ..)`",
            );
        };
        let tokens = match tokens {
            Some((Val::Record(t), _)) => Some(self.characters(&t, span)?),
            Some((v, s)) => {
                let kind = v.kind();
                let what = format!("`tokens` is what `characters(..)` makes, not {kind}");
                return self.error("wrong-type", s, what, format!("this is {kind}"));
            }
            None => None,
        };
        let size = match &tokens {
            Some(Tokens::Characters { alphabet, .. }) => alphabet.chars().count(),
            _ => 0,
        };
        if size > 0 {
            fields.entry("vocab_size".into()).or_insert(Val::num(size as f64));
        } else {
            let d = Diagnostic::error("not-supported", "a model without `tokens` cannot run");
            let d = d.label(self.user_span(span), "planned only");
            let example = "write `tokens: characters(\"0123\", end: \"$\", pad: \"_\")`";
            self.out.not_yet.push(d.help(example));
        }
        let (m, record) = self.config_type(module, item, span)?;
        // A model of one's own may do without.
        let declares = |key: &str| match &record.kind {
            ItemKind::Record(r) => r.fields.iter().any(|f| f.name.text == key),
            _ => false,
        };
        if let Some(c) = context.filter(|_| declares("max_position_embeddings")) {
            fields.entry("max_position_embeddings".into()).or_insert(Val::num(c as f64));
        }
        let cfg = self.make_record(m, record, fields, sc)?;
        let vocab = self.cfg_int(&cfg, "vocab_size").unwrap_or(0);
        if size > vocab {
            return self.error(
                "vocabulary-mismatch",
                sc,
                format!("the alphabet has {size} characters, the model {vocab} rows"),
                "leave `vocab_size` out to take the alphabet's",
            );
        }
        let context = context.or(self.cfg_int(&cfg, "max_position_embeddings")).unwrap_or(2048);
        let family = item.name().map_or(String::new(), |n| n.text.clone());
        let eos = match &tokens {
            Some(Tokens::Characters { alphabet, eos, .. }) => {
                alphabet.chars().position(|c| c == *eos)
            }
            _ => None,
        };
        let mut config = self.written_config(&cfg, &family, eos, span)?;
        if scalar && let Some(name) = config["architectures"][0].as_str() {
            let name = name.replace("ForCausalLM", "ForSequenceClassification");
            config["architectures"] = serde_json::json!([name]);
            config["id2label"] = serde_json::json!({"0": "value"});
        }
        let model = Model {
            name: String::new(),
            family,
            weights: Weights::Fresh { std },
            tokens: tokens.unwrap_or(Tokens::Unknown),
            config,
            context,
            dims: Default::default(),
            params: vec![],
            mesh: 0,
            layouts: vec![],
        };
        let valid = if size > 0 { size } else { vocab };
        let info = ModelInfo { scalar, ..ModelInfo::new(module, item, cfg, valid) };
        let made = self.push_model(model, info, span)?;
        if let (Val::Model(m), true) = (&made, bf16) {
            self.out.facts.models[*m].bf16 = true;
        }
        Ok(made)
    }

    /// `dtype: bf16`, which only plans know.
    pub fn in_bf16(&mut self, dtype: &Val<'a>, span: Span) -> bool {
        let bf16 = match dtype {
            Val::Variant { name, .. } => name == "bf16",
            Val::Const(Value::Text(t), _) => &**t == "bf16",
            _ => false,
        };
        if bf16 {
            let d = Diagnostic::error(
                "not-supported",
                "weights in bf16 do not run on the cpu engine yet",
            );
            let d = d.label(self.user_span(span), "asked for here");
            self.out.not_yet.push(d.help("write `dtype: f32`; a bf16 checkpoint loads into it"));
        }
        bf16
    }

    /// The tokenizer that `characters(..)` asks for.
    fn characters(&mut self, t: &IndexMap<String, Val<'a>>, span: Span) -> El<Tokens> {
        let text = |k: &str| match t.get(k) {
            Some(Val::Const(Value::Text(s), _)) => s.to_string(),
            _ => String::new(),
        };
        let (alphabet, end, pad) = (text("alphabet"), text("end"), text("pad"));
        let (Some(eos), Some(padc)) = (end.chars().next(), pad.chars().next()) else {
            return self.error(
                "wrong-arguments",
                span,
                "the end and padding tokens are one character each",
                "in `characters(..)`",
            );
        };
        if !alphabet.contains(eos) || !alphabet.contains(padc) {
            return self.error(
                "wrong-arguments",
                span,
                "the end and padding characters must be in the alphabet",
                "in `characters(..)`",
            );
        }
        Ok(Tokens::Characters { alphabet, eos, pad: padc })
    }

    /// The `config.json` that a new model is exported with.
    fn written_config(
        &mut self,
        cfg: &Val<'a>,
        family: &str,
        eos: Option<usize>,
        span: Span,
    ) -> El<serde_json::Value> {
        let mut json = self.constants(cfg, span)?.to_json();
        let architecture = match family {
            "gemma3" => "Gemma3ForCausalLM",
            "glm4_moe" => "Glm4MoeForCausalLM",
            "gpt_oss" => "GptOssForCausalLM",
            "minimax_m2" => "MiniMaxM2ForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            "qwen3_moe" => "Qwen3MoeForCausalLM",
            "mixtral" => "MixtralForCausalLM",
            "deepseek_v3" => "DeepseekV3ForCausalLM",
            "nemotron_h" => "NemotronHForCausalLM",
            "gpt" => "GPT",
            _ => "LlamaForCausalLM",
        };
        let kind = match family {
            "gemma3" => "gemma3_text",
            "qwen2" | "qwen3" | "qwen3_moe" | "mixtral" | "deepseek_v3" | "gpt" | "glm4_moe"
            | "gpt_oss" | "minimax_m2" | "nemotron_h" => family,
            _ => "llama",
        };
        if let Some(o) = json.as_object_mut() {
            o.insert("architectures".into(), serde_json::json!([architecture]));
            o.insert("model_type".into(), kind.into());
            let act = if family == "gemma3" { "gelu_pytorch_tanh" } else { "silu" };
            o.insert("hidden_act".into(), act.into());
            if family == "gemma3" {
                o.insert("hidden_activation".into(), act.into());
            }
            let pattern = o.get("hybrid_override_pattern").and_then(|p| p.as_str());
            if let Some(layers) = pattern.map(|p| p.chars().count()) {
                o.insert("num_hidden_layers".into(), layers.into());
                o.insert("mlp_hidden_act".into(), "relu2".into());
            }
            o.insert("eos_token_id".into(), eos.into());
        }
        Ok(json)
    }

    /// Adds a model: finds the storage order of its weights from how the forward pass uses them.
    pub fn push_model(
        &mut self,
        mut model: Model,
        mut info: ModelInfo<'a>,
        span: Span,
    ) -> El<Val<'a>> {
        let id = self.models.len();
        if info.storage.is_empty() {
            self.models.push(info.clone());
            let built = self.isolated("storage", |me| {
                if me.models[id].scalar { me.values(id, span) } else { Ok(me.forward(id, span)?.0) }
            });
            self.models.pop();
            let (builder, _) = built?;
            info.storage = storage_orders(&builder);
        }
        self.models.push(info);
        let declared = self.isolated("model", |me| {
            me.instantiate(id)?;
            Ok(())
        });
        let (builder, ()) = match declared {
            Ok(d) => d,
            Err(e) => {
                self.models.pop();
                return Err(e);
            }
        };
        model.dims = builder.graph.dims;
        model.params = builder.graph.params;
        if model.params.iter().any(|p| p.checkpoint.contains("{e}")) {
            let what = "a mixture of experts does not run yet";
            self.later(span, what, "this model");
        }
        let facts = ModelFacts { scalar_head: self.models[id].scalar, span, bf16: false };
        self.out.facts.models.push(facts);
        self.out.program.models.push(model);
        self.out.rules.push(PlanRules::default());
        self.out.places.push(span);
        Ok(Val::Model(id))
    }

    /// Runs `f` with a graph of its own in model mode.
    pub fn isolated<T>(
        &mut self,
        name: &str,
        f: impl FnOnce(&mut Self) -> El<T>,
    ) -> El<(Builder, T)> {
        let outer = std::mem::take(&mut self.builders);
        self.builders.push(Builder::new(name));
        self.modes.push(Mode::Forward);
        let result = f(self);
        self.modes.pop();
        let builder = self.builders.pop();
        self.builders = outer;
        match (builder, result) {
            (Some(b), Ok(t)) => Ok((b, t)),
            _ => Err(Stop),
        }
    }

    /// Declares a model's dims and parameters in the current graph; the names its functions see.
    pub fn instantiate(&mut self, id: usize) -> El<Env<'a>> {
        let info = self.models[id].clone();
        let ItemKind::Model(m) = &info.item.kind else { return Err(Stop) };
        let mut env = Env::new(info.module);
        if let Some(p) = m.params.first() {
            env.bind(&p.name.text, info.cfg.clone());
        }
        for member in &m.members {
            self.member(&mut env, member, None, &info)?;
        }
        if info.scalar {
            self.declare_value_head(&mut env, m, &info)?;
        }
        Ok(env)
    }

    pub fn member(
        &mut self,
        env: &mut Env<'a>,
        member: &'a ast::Member,
        layer: Option<&mut Place>,
        info: &ModelInfo<'a>,
    ) -> El<()> {
        match &member.kind {
            MemberKind::Dims(dims) => {
                for d in dims {
                    self.dim(env, d)?;
                }
            }
            MemberKind::Param(p) => self.params(env, p, layer, info)?,
            MemberKind::Repeat { name, count, members } => {
                let layers = self.repeat(env, name, count, members, info)?;
                env.bind(&name.text, Val::Layers(Rc::new(layers)));
            }
            MemberKind::Let(bind) => {
                let v = self.expr(env, &bind.value)?;
                self.bind_names(env, bind, v)?;
            }
            MemberKind::Fn(f) => {
                let module = info.module;
                let member = Val::Member(Rc::new(Member { module, function: f, env: env.clone() }));
                env.bind(&f.name.text, member);
            }
        }
        Ok(())
    }

    fn dim(&mut self, env: &mut Env<'a>, d: &'a ast::DimDecl) -> El<()> {
        let v = self.expr(env, &d.size)?;
        let size = self.whole(&v, d.size.span, &format!("dim `{}`", d.name.text))?;
        if size == 0 {
            return self.error(
                "out-of-range",
                d.span,
                format!("dim `{}` is 0", d.name.text),
                "a dim has at least one item",
            );
        }
        let factor = |e: &ast::Expr| match e.as_name().and_then(|n| env.get(n)) {
            Some(Val::Dim(d)) => Some(*d),
            _ => None,
        };
        let factors = match &d.size.kind {
            ExprKind::Binary { op: ast::BinaryOp::Mul, lhs, rhs, .. } => {
                factor(lhs).zip(factor(rhs)).map(|(a, b)| vec![a, b])
            }
            _ => None,
        };
        let b = self.builder(d.span)?;
        let id = b.graph.dims.add_static(&d.name.text, size);
        b.graph.dims.get_mut(id).factors = factors.unwrap_or_default();
        env.bind(&d.name.text, Val::Dim(id));
        Ok(())
    }

    fn params(
        &mut self,
        env: &mut Env<'a>,
        p: &'a ast::ParamDecl,
        mut layers: Option<&mut Place>,
        info: &ModelInfo<'a>,
    ) -> El<()> {
        let span = p.names.first().map_or(info.item.span, |n| n.span);
        let exists = match &p.cond {
            Some(c) => self.condition(env, c)?,
            None => true,
        };
        if let Some(tie) = &p.or {
            let tied = match &tie.cond {
                Some(c) => self.condition(env, c)?,
                None => true,
            };
            if tied {
                let target = self.expr(env, &tie.param)?;
                for n in &p.names {
                    env.bind(&n.text, target.clone());
                }
                return Ok(());
            }
        }
        let mut declared: Vec<DimId> = vec![];
        for l in &p.dims {
            match self.expr(env, &l.dim)? {
                Val::Dim(d) => declared.push(d),
                v => {
                    let kind = v.kind();
                    return self.error(
                        "wrong-type",
                        l.span,
                        format!("a parameter's dims are names of dims, not {kind}"),
                        format!("this is {kind}"),
                    );
                }
            }
        }
        for (k, n) in p.names.iter().enumerate() {
            if !exists {
                if let Some(l) = layers.as_deref_mut() {
                    l.params.insert(n.text.clone(), None);
                }
                continue;
            }
            let Some(from) = &p.from else {
                return self.error(
                    "missing-field",
                    n.span,
                    format!("parameter `{}` does not say its name in a checkpoint", n.text),
                    "write `from \"..\"`",
                );
            };
            let Some(checkpoint) = pick(&from.value, k, p.names.len()) else {
                return self.error(
                    "wrong-arguments",
                    from.span,
                    format!(
                        "{} parameters need one `{{a,b}}` group with as many names",
                        p.names.len()
                    ),
                    "this name",
                );
            };
            if info.scalar && layers.is_none() && !self.hidden_uses(info, &n.text) {
                // Only logits read it, and there are none.
                continue;
            }
            let repeat = layers.as_ref().map(|l| (l.group.clone(), l.turns));
            let name = layers.as_ref().map_or(n.text.clone(), |l| format!("{}.{}", l.path, n.text));
            let b = self.builder(span)?;
            let checkpoint = match layers.as_ref() {
                Some(l) => l.numbered(&checkpoint),
                None => checkpoint,
            };
            let checkpoint = next_rows(&b.graph, checkpoint, &declared);
            let index = b.graph.params.len();
            let dims = match info.storage.get(index) {
                Some(order) => order.iter().map(|i| declared[*i]).collect(),
                None => declared.clone(),
            };
            let head = |d| is_merged(b.graph.dims.name(d));
            let checkpoint_dims = merged(&declared, head);
            let trained = info.lora.is_none() && !info.frozen.contains(&name);
            let decl = ParamDecl { name, dims, repeat, checkpoint, checkpoint_dims, trained };
            b.graph.params.push(decl.clone());
            let id = ParamId(index as u32);
            self.declare_factors(info, id, &decl, &n.text, span)?;
            match layers.as_deref_mut() {
                Some(l) => {
                    l.params.insert(n.text.clone(), Some(id));
                }
                None => env.bind(&n.text, Val::Param(id)),
            }
        }
        Ok(())
    }

    fn condition(&mut self, env: &Env<'a>, e: &'a ast::Expr) -> El<bool> {
        match self.expr(env, e)? {
            Val::Const(Value::Bool(b), _) => Ok(b),
            v => {
                let kind = v.kind();
                self.error(
                    "wrong-type",
                    e.span,
                    format!("a condition must be a bool, not {kind}"),
                    format!("this is {kind}"),
                )
            }
        }
    }

    /// Builds the forward pass in the current graph: logits over `tok`, and the vocabulary dim.
    pub fn forward(&mut self, id: usize, span: Span) -> El<(ValueId, DimId)> {
        if self.models[id].scalar {
            let what = "a model with a scalar head has no logits; write `value(model, samples)`";
            return self.error("wrong-type", span, what, "logits are needed here");
        }
        let env = self.instantiate(id)?;
        let f = self.member_fn(id, "forward")?;
        let (t, tok, vocab) = self.over_tokens(env, f, span)?;
        let at = f.body.value.as_ref().map_or(f.body.span, |v| v.span);
        let b = self.builder(span)?;
        let dims = b.graph.dims_of(t).to_vec();
        if dims.len() != 2 || !dims.contains(&tok) || !dims.contains(&vocab) {
            let shown = nrl_ir::infer::show_dims(&b.graph, &dims);
            let what = format!("`forward` must give [tok, vocab], this has dims {shown}");
            return self.error("dim-mismatch", at, what, "the result");
        }
        Ok((t, vocab))
    }

    /// The function of a model with this name.
    pub fn member_fn(&mut self, id: usize, name: &str) -> El<&'a ast::Fn> {
        let item = self.models[id].item;
        let ItemKind::Model(m) = &item.kind else { return Err(Stop) };
        let found = m.members.iter().find_map(|x| match &x.kind {
            MemberKind::Fn(f) if f.name.text == name => Some(f),
            _ => None,
        });
        match found {
            Some(f) => Ok(f),
            None => {
                let what = format!("model `{}` has no `fn {name}`", m.name.text);
                self.error("missing-field", m.name.span, what, "this model")
            }
        }
    }

    /// Runs a function of `ids: id(vocab)[tok]` in the current graph: its result, `tok`, `vocab`.
    pub fn over_tokens(
        &mut self,
        env: Env<'a>,
        f: &'a ast::Fn,
        span: Span,
    ) -> El<(ValueId, DimId, DimId)> {
        let param = f.params.first();
        let of = param.and_then(|p| match &p.ty.as_ref()?.kind {
            TypeKind::Tensor { element, .. } => match &element.kind {
                TypeKind::Id(e) => e.as_name(),
                _ => None,
            },
            _ => None,
        });
        let (Some(param), Some(Val::Dim(vocab))) = (param, of.and_then(|n| env.get(n)).cloned())
        else {
            return self.error(
                "wrong-type",
                f.name.span,
                format!("`{}` takes `ids: id(vocab)[tok]`", f.name.text),
                "this function",
            );
        };
        let b = self.builder(span)?;
        let tok = b.dim("tok");
        let ids = b.input("ids", Type { dtype: DType::Id(vocab), dims: vec![tok], stack: None });
        let mut inner = env;
        inner.bind("tok", Val::Dim(tok));
        inner.bind(&param.name.text, self.made(ids, None));
        let v = self.block(&inner, &f.body)?;
        let at = f.body.value.as_ref().map_or(f.body.span, |v| v.span);
        let t = self.tensor(&v, at)?;
        Ok((t.id, tok, vocab))
    }

    /// Log-probabilities and entropies of the trained tokens, in the current graph.
    pub fn forward_logprob(&mut self, id: usize, span: Span) -> El<(ValueId, ValueId)> {
        self.modes.push(Mode::Forward);
        let logits = self.forward(id, span);
        self.modes.pop();
        let (logits, vocab) = logits?;
        let valid = self.models[id].valid;
        let b = self.builder(span)?;
        let (tok, act) = (b.dim("tok"), b.dim("act"));
        let at = b.input("act", Type::id(tok, [act]));
        let labels = b.input("labels", Type::id(vocab, [act]));
        let inv = b.input("inv_temperature", Type::f32([]));
        let rows = self.tensor_op(Op::Index { dim: tok }, &[logits, at], &[span, span], span)?;
        let b = self.builder(span)?;
        match b.push(Op::LogProb { vocab, valid, axes: vec![] }, &[rows, labels, inv]) {
            Ok(outs) => Ok((outs[0], outs[2])),
            Err(e) => self.shape_error(e, &[span], span),
        }
    }

    /// The graph that scores samples.
    pub fn score_graph(&mut self, id: usize, span: Span) -> El<usize> {
        let (builder, lp) = self.isolated("logprob", |me| Ok(me.forward_logprob(id, span)?.0))?;
        Ok(self.push_graph(builder.finish(&[("logprob", lp)]), GraphKind::Forward { model: id }))
    }

    /// The graph that a generator runs: logits of one position per sequence.
    pub fn generate_graph(&mut self, id: usize, span: Span) -> El<usize> {
        let (builder, out) = self.isolated("generate", |me| {
            let (logits, _) = me.forward(id, span)?;
            let b = me.builder(span)?;
            let (tok, row) = (b.dim("tok"), b.dim("row"));
            let last = b.input("last", Type::id(tok, [row]));
            me.tensor_op(Op::Index { dim: tok }, &[logits, last], &[span, span], span)
        })?;
        let graph = builder.finish(&[("logits", out)]);
        let mut states = false;
        graph.body.walk(&mut |n| states |= matches!(n.op, Op::Conv { .. } | Op::Ssm { .. }));
        if states {
            let what = "generation from the state of a state-space model does not run yet";
            self.later(span, what, "this generator");
        }
        Ok(self.push_graph(graph, GraphKind::Generate { model: id }))
    }
}

/// `"a.{gate,up}.w"` for parameter `k` of `n`: picks from the group with a comma.
fn pick(from: &str, k: usize, n: usize) -> Option<String> {
    let group = from.match_indices('{').find_map(|(i, _)| {
        let end = from[i..].find('}')? + i;
        from[i..end].contains(',').then_some((i, end))
    });
    match group {
        Some((i, end)) => {
            let names: Vec<&str> = from[i + 1..end].split(',').map(str::trim).collect();
            (names.len() == n).then(|| format!("{}{}{}", &from[..i], names[k], &from[end + 1..]))
        }
        None => (n == 1).then(|| from.to_string()),
    }
}

/// Checkpoint dims: the head size is stored merged with the heads before it, as Hugging Face does, and pairs with the
/// dim that they belong to.
fn merged(dims: &[DimId], is_head_size: impl Fn(DimId) -> bool) -> Vec<Vec<DimId>> {
    let mut out: Vec<Vec<DimId>> = vec![];
    for d in dims {
        match out.last_mut() {
            Some(last) if is_head_size(*d) => last.push(*d),
            _ => out.push(vec![*d]),
        }
    }
    out
}

/// Contraction-major storage for weights that only contractions read: their first contraction's
/// dims come first. Weights that are indexed keep the declared order.
fn storage_orders(builder: &Builder) -> Vec<Vec<usize>> {
    let g = &builder.graph;
    let mut orders: Vec<Option<Vec<usize>>> = vec![None; g.params.len()];
    let mut indexed = vec![false; g.params.len()];
    let mut uses: Vec<(ValueId, ParamId)> = vec![];
    for block in &builder.blocks {
        block.walk(&mut |n| {
            if let Op::Use { param } = n.op {
                uses.push((n.outs[0], param));
            }
        });
    }
    let param_of = |v: &ValueId| uses.iter().find(|(u, _)| u == v).map(|(_, p)| *p);
    for block in &builder.blocks {
        block.walk(&mut |n| match &n.op {
            Op::Contract { over } => {
                for p in n.args.iter().filter_map(param_of) {
                    let dims = &g.param(p).dims;
                    let mut order: Vec<usize> =
                        (0..dims.len()).filter(|i| over.contains(&dims[*i])).collect();
                    order.extend((0..dims.len()).filter(|i| !over.contains(&dims[*i])));
                    orders[p.0 as usize].get_or_insert(order);
                }
            }
            Op::Index { .. } => {
                if let Some(p) = param_of(&n.args[0]) {
                    indexed[p.0 as usize] = true;
                }
            }
            _ => {}
        });
    }
    orders
        .into_iter()
        .zip(indexed)
        .zip(&g.params)
        .map(|((order, indexed), p)| match order {
            Some(o) if !indexed => o,
            _ => (0..p.dims.len()).collect(),
        })
        .collect()
}
