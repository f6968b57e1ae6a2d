//! Models: parameters, dims, and the one forward pass that every use compiles from.

use std::rc::Rc;

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::graph::ParamDecl;
use nrl_ir::host::Value;
use nrl_ir::program::{Model, Tokens, Weights};
use nrl_ir::{DType, DimId, Op, ParamId, Type, ValueId};
use nrl_syntax::ast::{self, ExprKind, ItemKind, MemberKind, TypeKind};

use crate::builder::Builder;
use crate::call::ArgVal;
use crate::config;
use crate::elab::{El, Elab, GraphKind, Mode, Stop};
use crate::intrinsic;
use crate::modules::ModuleId;
use crate::value::{Env, Layers, PlanRules, Val};

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
}

impl<'a> Elab<'a, '_> {
    /// A path of the recipe: beside it, else from the working directory.
    pub fn locate(&self, path: &str, probe: &str) -> String {
        let beside = if self.folder.is_empty() || path.starts_with('/') {
            path.to_string()
        } else {
            format!("{}/{path}", self.folder)
        };
        let full = |p: &str| if probe.is_empty() { p.to_string() } else { format!("{p}/{probe}") };
        if beside != path
            && self.files.read(&full(&beside)).is_err()
            && self.files.read(&full(path)).is_ok()
        {
            return path.to_string();
        }
        beside
    }

    /// `models.load(path)`: a Hugging Face directory.
    pub fn load_model(&mut self, mut a: intrinsic::Args<'a>) -> El<Val<'a>> {
        let (p, sp) = a.need("path");
        let path = self.text_of(&p, sp, "`path`")?;
        let path = self.locate(&path, "config.json");
        let (dtype, sd) = a.need("dtype");
        if matches!(&dtype, Val::Variant { name, .. } if name == "bf16") {
            return self.fail(
                Diagnostic::error(
                    "not-supported",
                    "weights in bf16 do not run on the cpu engine yet",
                )
                .label(sd, "asked for here")
                .help("write `dtype: f32`; a bf16 checkpoint loads into it"),
            );
        }
        let (ctx, sc) = a.need("context");
        let (archs, _) = a.need("architectures");
        let file = format!("{path}/config.json");
        let bytes = match self.files.read(&file) {
            Ok(b) => b,
            Err(why) => {
                return self.fail(
                    Diagnostic::error("model-not-found", format!("cannot read {file}: {why}"))
                        .label(sp, "a Hugging Face directory is expected here")
                        .help("nothing is downloaded: give the directory that holds config.json, such as `--set policy.path=DIR`"),
                );
            }
        };
        let json: serde_json::Value = match serde_json::from_slice(&bytes) {
            Ok(j) => j,
            Err(e) => {
                return self.error(
                    "bad-model-config",
                    sp,
                    format!("{file} is not JSON: {e}"),
                    "this model",
                );
            }
        };
        let object = match config::normalize(&json) {
            Ok(o) => o,
            Err(why) => {
                return self.error("bad-model-config", sp, format!("{file}: {why}"), "this model");
            }
        };
        let name = object
            .get("architectures")
            .and_then(|a| a.get(0))
            .and_then(|a| a.as_str())
            .unwrap_or("(none)")
            .to_string();
        let Val::Record(archs) = archs else { return Err(Stop) };
        let Some(Val::Item(module, item)) = archs.get(&name).cloned() else {
            let known: Vec<&str> = archs.keys().map(String::as_str).collect();
            let help = nearest(&name, known.iter().copied()).map_or_else(
                || format!("supported: {}", known.join(", ")),
                |n| format!("did you mean `{n}`? supported: {}", known.join(", ")),
            );
            return self.fail(
                Diagnostic::error(
                    "unsupported-architecture",
                    format!(
                        "{file} asks for the architecture `{name}`, which std.models does not have"
                    ),
                )
                .label(sp, "this model")
                .help(help),
            );
        };
        let cfg = self.config_record(module, item, &object, sp)?;
        let limit = self.cfg_int(&cfg, "max_position_embeddings").unwrap_or(usize::MAX);
        let context = if ctx.is_none() { limit } else { self.whole(&ctx, sc, "`context`")? };
        if context > limit {
            return self.error(
                "out-of-range",
                sc,
                format!("a context of {context} tokens, the model has positions for {limit}"),
                format!("at most {limit} tokens"),
            );
        }
        let vocab = self.cfg_int(&cfg, "vocab_size").unwrap_or(0);
        let valid = self.tokenizer_size(&path, vocab, sp)?;
        let model = Model {
            name: String::new(),
            family: item.name().map_or(String::new(), |n| n.text.clone()),
            weights: Weights::Directory { path: path.clone() },
            tokens: Tokens::Directory { path },
            config: json,
            context,
            dims: Default::default(),
            params: vec![],
            mesh: 0,
            layouts: vec![],
        };
        let info = ModelInfo { module, item, cfg, storage: vec![], valid };
        self.push_model(model, info, sp)
    }

    fn tokenizer_size(&mut self, path: &str, vocab: usize, span: Span) -> El<usize> {
        let file = format!("{path}/tokenizer.json");
        let Ok(bytes) = self.files.read(&file) else { return Ok(vocab) };
        let json = match serde_json::from_slice(&bytes) {
            Ok(j) => j,
            Err(e) => {
                return self.error(
                    "bad-model-config",
                    span,
                    format!("{file} is not JSON: {e}"),
                    "this model",
                );
            }
        };
        let size = config::tokenizer_size(&json).unwrap_or(vocab);
        if size > vocab {
            return self.fail(
                Diagnostic::error("vocabulary-mismatch", format!("the tokenizer has {size} ids, the model {vocab} rows"))
                    .label(span, "this model")
                    .help("the tokenizer belongs to another checkpoint, or tokens were added without resizing the model"),
            );
        }
        Ok(size)
    }

    fn cfg_int(&self, cfg: &Val<'a>, key: &str) -> Option<usize> {
        match cfg {
            Val::Record(r) => match r.get(key) {
                Some(Val::Const(Value::Num(x), _)) => Some(*x as usize),
                _ => None,
            },
            _ => None,
        }
    }

    /// The record type of a model's first parameter.
    fn config_type(
        &mut self,
        module: ModuleId,
        item: &'a ast::Item,
        span: Span,
    ) -> El<(ModuleId, &'a ast::Item)> {
        let ItemKind::Model(m) = &item.kind else { return Err(Stop) };
        let ty = m.params.first().and_then(|p| p.ty.as_ref());
        if let Some(ast::Type { kind: TypeKind::Name(path), .. }) = ty
            && let Some(crate::modules::Global::Item(m, i)) =
                self.modules.find(module, &path.text())
            && matches!(self.modules.item(m, i).kind, ItemKind::Record(_))
        {
            return Ok((m, self.modules.item(m, i)));
        }
        self.error(
            "wrong-type",
            span,
            "a model takes one configuration record",
            "its first parameter must have a record type",
        )
    }

    /// The keys of `config.json` that the model's record names.
    fn config_record(
        &mut self,
        module: ModuleId,
        item: &'a ast::Item,
        object: &serde_json::Map<String, serde_json::Value>,
        span: Span,
    ) -> El<Val<'a>> {
        let (m, record) = self.config_type(module, item, span)?;
        let ItemKind::Record(r) = &record.kind else { return Err(Stop) };
        let mut given = IndexMap::new();
        for f in &r.fields {
            match object.get(&f.name.text) {
                Some(serde_json::Value::Null) | None => {}
                Some(v) => {
                    given.insert(f.name.text.clone(), Val::constant(Value::from_json(v)));
                }
            }
        }
        self.make_record(m, record, given, span)
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
        for (n, v, s) in args {
            match n.map(|n| n.text.as_str()) {
                None if cfg.is_none() => cfg = Some((v, s)),
                Some("tokens") => tokens = Some((v, s)),
                Some("context") => {
                    context =
                        Some(self.counted(&v, s, "`context`", crate::units::Unit::of("token"))?)
                }
                Some("init") => std = self.number(&v, s, "`init`")?,
                other => {
                    let shown = other.unwrap_or("a second configuration");
                    return self.error(
                        "unknown-name",
                        s,
                        format!("a new model has no parameter `{shown}`"),
                        "it takes a configuration, tokens, context and init",
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
        let Some((Val::Record(t), _)) = tokens else {
            return self.error(
                "wrong-arguments",
                span,
                "a new model needs `tokens`",
                "write `tokens: characters(\"0123\", end: \"$\", pad: \"_\")`",
            );
        };
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
        let size = alphabet.chars().count();
        if !alphabet.contains(eos) || !alphabet.contains(padc) {
            return self.error(
                "wrong-arguments",
                span,
                "the end and padding characters must be in the alphabet",
                "in `characters(..)`",
            );
        }
        fields.entry("vocab_size".into()).or_insert(Val::num(size as f64));
        if let Some(c) = context {
            fields.entry("max_position_embeddings".into()).or_insert(Val::num(c as f64));
        }
        let (m, record) = self.config_type(module, item, span)?;
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
        let config =
            self.written_config(&cfg, &family, alphabet.chars().position(|c| c == eos), span)?;
        let model = Model {
            name: String::new(),
            family,
            weights: Weights::Fresh { std },
            tokens: Tokens::Characters { alphabet, eos, pad: padc },
            config,
            context,
            dims: Default::default(),
            params: vec![],
            mesh: 0,
            layouts: vec![],
        };
        let info = ModelInfo { module, item, cfg, storage: vec![], valid: size };
        self.push_model(model, info, span)
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
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        let kind = if family.starts_with("qwen") { family } else { "llama" };
        if let Some(o) = json.as_object_mut() {
            o.insert("architectures".into(), serde_json::json!([architecture]));
            o.insert("model_type".into(), kind.into());
            o.insert("hidden_act".into(), "silu".into());
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
                let (logits, _) = me.forward(id, span)?;
                Ok(logits)
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
        self.out.program.models.push(model);
        self.out.rules.push(PlanRules::default());
        self.out.places.push(span);
        Ok(Val::Model(id))
    }

    /// Runs `f` with a graph of its own in model mode.
    fn isolated<T>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> El<T>) -> El<(Builder, T)> {
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
    fn instantiate(&mut self, id: usize) -> El<Env<'a>> {
        let info = self.models[id].clone();
        let ItemKind::Model(m) = &info.item.kind else { return Err(Stop) };
        let mut env = Env::new(info.module);
        if let Some(p) = m.params.first() {
            env.bind(&p.name.text, info.cfg.clone());
        }
        for member in &m.members {
            self.member(&mut env, member, None, &info)?;
        }
        Ok(env)
    }

    fn member(
        &mut self,
        env: &mut Env<'a>,
        member: &'a ast::Member,
        layers: Option<&mut Layers>,
        info: &ModelInfo<'a>,
    ) -> El<()> {
        match &member.kind {
            MemberKind::Dims(dims) => {
                for d in dims {
                    self.dim(env, d)?;
                }
            }
            MemberKind::Param(p) => self.params(env, p, layers, info)?,
            MemberKind::Repeat { name, count, members } => {
                let v = self.expr(env, count)?;
                let count = self.whole(&v, count.span, "the number of layers")?;
                let mut layers = Layers { name: name.text.clone(), count, params: IndexMap::new() };
                for m in members {
                    self.member(env, m, Some(&mut layers), info)?;
                }
                env.bind(&name.text, Val::Layers(Rc::new(layers)));
            }
            MemberKind::Let(bind) => {
                let v = self.expr(env, &bind.value)?;
                self.bind_names(env, bind, v)?;
            }
            MemberKind::Fn(_) => {}
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
        mut layers: Option<&mut Layers>,
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
            let repeat = layers.as_ref().map(|l| (l.name.clone(), l.count));
            let name = repeat.as_ref().map_or(n.text.clone(), |(g, _)| format!("{g}.{}", n.text));
            let b = self.builder(span)?;
            let index = b.graph.params.len();
            let dims = match info.storage.get(index) {
                Some(order) => order.iter().map(|i| declared[*i]).collect(),
                None => declared.clone(),
            };
            let checkpoint_dims = merged(&declared, |d| b.graph.dims.name(d) == "hd");
            b.graph.params.push(ParamDecl {
                name,
                dims,
                repeat,
                checkpoint,
                checkpoint_dims,
                trained: true,
            });
            let id = ParamId(index as u32);
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
        let env = self.instantiate(id)?;
        let item = self.models[id].item;
        let ItemKind::Model(m) = &item.kind else { return Err(Stop) };
        let forward = m.members.iter().find_map(|x| match &x.kind {
            MemberKind::Fn(f) if f.name.text == "forward" => Some(f),
            _ => None,
        });
        let Some(f) = forward else {
            return self.error(
                "missing-field",
                m.name.span,
                format!("model `{}` has no `fn forward`", m.name.text),
                "this model",
            );
        };
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
                "`forward` takes `ids: id(vocab)[tok]`",
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
        let b = self.builder(span)?;
        let dims = b.graph.dims_of(t.id).to_vec();
        if dims.len() != 2 || !dims.contains(&tok) || !dims.contains(&vocab) {
            let shown = nrl_ir::infer::show_dims(&b.graph, &dims);
            return self.error(
                "dim-mismatch",
                at,
                format!("`forward` must give [tok, vocab], this has dims {shown}"),
                "the result",
            );
        }
        Ok((t.id, vocab))
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
        Ok(self.push_graph(builder.finish(&[("logits", out)]), GraphKind::Generate { model: id }))
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

/// Checkpoint dims: the head size is stored merged with the heads before it, as Hugging Face does.
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
