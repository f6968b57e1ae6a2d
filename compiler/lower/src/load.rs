//! Loading: a Hugging Face directory, or the facts of a published model.
//!
//! In: `models.load(..)`. Out: a model of the program whose dims are those of its `config.json`: the
//! one in the directory, else the one that the table of published models gives. Nothing is
//! downloaded; without a directory a model can be checked and planned with, not run.

use indexmap::IndexMap;
use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::host::Value;
use nrl_ir::program::{Model, Tokens, Weights};
use nrl_syntax::ast::{self, ItemKind, TypeKind};

use crate::config;
use crate::elab::{El, Elab, Stop};
use crate::intrinsic;
use crate::model::ModelInfo;
use crate::modules::ModuleId;
use crate::value::Val;

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
        let written = self.text_of(&p, sp, "`path`")?;
        let path = self.locate(&written, "config.json");
        let (dtype, sd) = a.need("dtype");
        let bf16 = self.in_bf16(&dtype, sd);
        let (head, sh) = a.need("head");
        let scalar = self.scalar_head(&head, sh)?;
        let (ctx, sc) = a.need("context");
        let (anew, sa) = a.need("config");
        let (archs, _) = a.need("architectures");
        let file = format!("{path}/config.json");
        let bytes = match self.files.read(&file) {
            Ok(b) => b,
            Err(why) => self.published(&written, &file, &why, sp)?,
        };
        let mut json: serde_json::Value = match serde_json::from_slice(&bytes) {
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
        if !anew.is_none() {
            let keys = self.constants(&anew, sa)?.to_json();
            config::set(&mut json, &keys);
        }
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
                .label(sp, config::beyond(&name).unwrap_or("this model"))
                .help(help),
            );
        };
        let cfg = self.config_record(module, item, &object, sp)?;
        let limit = self.cfg_int(&cfg, "max_position_embeddings").unwrap_or(usize::MAX);
        let context = if ctx.is_none() { limit } else { self.whole(&ctx, sc, "`context`")? };
        if context > limit {
            self.long.push((self.user_span(sc), context, limit));
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
        if scalar && !written.is_empty() {
            let what = "a new head on weights of a checkpoint does not run yet";
            self.later(self.user_span(sh), what, "this head");
        }
        let info = ModelInfo { scalar, ..ModelInfo::new(module, item, cfg, valid) };
        self.unread(&model.config, sp);
        let made = self.push_model(model, info, sp)?;
        if let (Val::Model(m), true) = (&made, bf16) {
            self.out.facts.models[*m].bf16 = true;
        }
        Ok(made)
    }

    /// What a checkpoint holds beside the weights of a language model, or instead of them, and runs do not read.
    fn unread(&mut self, config: &serde_json::Value, span: Span) {
        let span = self.user_span(span);
        if config::is_multimodal(config) {
            let what = "images and sound are not read: this is planned as its language model, and does not run yet";
            self.later(span, what, "this model");
        }
        if let Some(method) = config::quantized(config) {
            let what = format!("weights packed as {method} are not read yet");
            self.later(span, &what, "this model");
        }
    }

    /// The `config.json` of a published model that is not here.
    fn published(&mut self, name: &str, file: &str, why: &str, span: Span) -> El<Vec<u8>> {
        let span = self.user_span(span);
        let Some(facts) = nrl_facts::model(name) else {
            let known = nrl_facts::models().iter().map(|m| m.name.as_str());
            let near = nearest(name, known).map(|n| format!("did you mean `{n}`? or "));
            let help = format!(
                "{}nothing is downloaded: give the directory that holds config.json, such as `--set policy.path=DIR`",
                near.unwrap_or_default()
            );
            return self.fail(
                Diagnostic::error("model-not-found", format!("cannot read {file}: {why}"))
                    .label(span, "neither a Hugging Face directory nor a model of the table")
                    .help(help),
            );
        };
        let Some(text) = facts.config_json() else {
            let what =
                format!("`{name}` is a {}, which std.models does not have", facts.architecture);
            let label = config::beyond(&facts.architecture).unwrap_or("this model");
            return self.error("unsupported-architecture", span, what, label);
        };
        let what = format!(
            "the weights of `{name}` are not here; its dims are those of the table of published models"
        );
        let folder = file.trim_end_matches("/config.json");
        let d = Diagnostic::error("model-not-found", what).label(span, "this model");
        let d = d.help(format!(
            "put the model into {folder}, or give its directory: `--set policy.path=DIR`"
        ));
        if !self.out.not_yet.contains(&d) {
            self.out.not_yet.push(d);
        }
        Ok(text.into_bytes())
    }

    /// `head: scalar`: one number per token in place of logits.
    pub fn scalar_head(&mut self, v: &Val<'a>, span: Span) -> El<bool> {
        match v {
            v if v.is_none() => Ok(false),
            Val::Variant { name, .. } => Ok(name == "scalar"),
            Val::Const(Value::Text(t), _) if &**t == "scalar" => Ok(true),
            v => {
                let kind = v.kind();
                self.error(
                    "wrong-type",
                    span,
                    format!("`head` is `scalar`, not {kind}"),
                    "this head",
                )
            }
        }
    }

    /// The chat template of a model, where it is here.
    pub fn chat_template(&self, model: usize) -> Option<String> {
        let Tokens::Directory { path } = &self.out.program.models[model].tokens else {
            return None;
        };
        let read = |name: &str| self.files.read(&format!("{path}/{name}")).ok();
        if let Some(bytes) = read("chat_template.jinja") {
            return String::from_utf8(bytes).ok();
        }
        let config = serde_json::from_slice(&read("tokenizer_config.json")?).ok()?;
        nrl_facts::history::template_of(&config)
    }

    pub fn tokenizer_size(&mut self, path: &str, vocab: usize, span: Span) -> El<usize> {
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

    /// The record type of a model's first parameter.
    pub fn config_type(
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
}

impl<'a> Elab<'a, '_> {
    /// Contexts beyond the positions of a model: engines refuse them, trainers go on.
    pub fn check_contexts(&mut self) {
        for (span, context, limit) in std::mem::take(&mut self.long) {
            let what =
                format!("a context of {context} tokens, the model has positions for {limit}");
            let help = "a shorter `context`, or scaled positions: `config: {..}`";
            let d = match self.out.program.generators.is_empty() {
                true => Diagnostic::warning("context-over-model", what),
                false => Diagnostic::error("out-of-range", what),
            };
            let d = d.label(span, format!("at most {limit} tokens"));
            self.problems.push(d.help(help));
        }
    }
}
