//! What the bindings before the step say: machines, models, optimizers, generators, data.

use nrl_rules::settings::{Node, Origin, SetBy, Value};
use nrl_syntax::ast::{Expr, ExprKind};

use super::Reader;
use super::calls::{Call, calls, name_of, text_of};
use crate::export::plain;

impl<'a> Reader<'a> {
    pub(super) fn setup(&mut self, name: &str, call: &Call<'a>) {
        match call.callee.as_str() {
            callee if callee.starts_with("clusters.") => {
                for arg in ["nodes", "gpus"] {
                    let value = call.named(arg).and_then(|e| self.number(e));
                    let fact = if arg == "nodes" { "nodes" } else { "gpus" };
                    self.say(fact, value);
                }
                self.nodes = crate::native::int(&self.facts, "nodes");
            }
            "models.load" => self.model(name, call),
            "lora" if self.roles.policy == Some(name) => self.adapters(call),
            "optim.adamw" if self.roles.critic_opt == Some(name) => {
                let lr = call.named("lr").and_then(|e| self.number(e));
                self.say("critic_lr", lr);
            }
            "optim.adamw" if self.roles.opt.is_none_or(|opt| opt == name) => self.optimizer(call),
            "optim.sgd" => self.lose(call.span, "this optimizer is set in the settings block"),
            "generator" => {
                self.mark("sampler");
                for fact in ["temperature", "top_p", "top_k", "memory"] {
                    let value = call.named(fact).and_then(|e| self.number(e));
                    self.say(fact, value);
                }
            }
            "data.jsonl" | "data.hub" => self.data(name, call),
            callee if callee.ends_with(".held_out") => {
                let share = call.args.first().and_then(|arg| self.number(&arg.value));
                self.say("held_share", share);
            }
            _ => {}
        }
    }

    fn model(&mut self, name: &str, call: &Call<'a>) {
        let path = call.args.first().and_then(|arg| text_of(&arg.value)).map(Value::Text);
        let policy = self.roles.policy == Some(name) || self.roles.adapted == Some(name);
        let [model, dtype_of, context_of] = match call.named("head").is_some() && !policy {
            true => ["critic", "critic_dtype", "critic_context"],
            false if self.roles.policy.is_some() && !policy => {
                ["teacher", "teacher_dtype", "teacher_context"]
            }
            false => ["model", "dtype", "context"],
        };
        self.say(model, path);
        let dtype = call.named("dtype").and_then(name_of).and_then(|word| {
            let known = [("bf16", "bfloat16"), ("f32", "float32"), ("f16", "float16")];
            known.into_iter().find(|(ours, _)| *ours == word)
        });
        self.say(dtype_of, dtype.map(|(_, theirs)| Value::Text(theirs.into())));
        let context = call.named("context").and_then(|e| self.number(e));
        self.say(context_of, context);
        if model != "model" {
            return;
        }
        let config = call.named("config").map(plain);
        self.say("config", config.filter(|config| matches!(config, Value::Map(_))));
    }

    fn adapters(&mut self, call: &Call<'a>) {
        for (fact, arg) in [("lora_rank", "rank"), ("lora_alpha", "alpha")] {
            let value = call.named(arg).and_then(|e| self.number(e));
            self.say(fact, value);
        }
        let Some(on) = call.named("on") else { return };
        let items = match &on.kind {
            ExprKind::List(items) => &items[..],
            _ => std::slice::from_ref(on),
        };
        let word = |e: &Expr| {
            let origin = Origin { by: SetBy::File, key: e.span, value: e.span, source: None };
            Some(Node { value: Value::Text(name_of(e)?.into()), origin })
        };
        let words = items.iter().map(word).collect::<Option<_>>();
        self.say("lora_on", words.map(Value::List));
    }

    fn optimizer(&mut self, call: &Call<'a>) {
        self.mark("opt");
        for fact in ["beta1", "beta2", "eps", "weight_decay", "clip_norm"] {
            let value = call.named(fact).and_then(|e| self.number(e));
            self.say(fact, value);
        }
        let Some(lr) = call.named("lr") else { return };
        let kind = |kind: &str| Some(Value::Text(kind.into()));
        if let Some(number) = self.number(lr) {
            self.say("schedule", kind("constant"));
            return self.say("lr", Some(number));
        }
        let Some(schedule) = calls(lr).into_iter().next() else { return };
        let arg = |at: usize, name: &str| {
            let plain = schedule.args.get(at).filter(|arg| arg.name.is_none());
            schedule.named(name).or(plain.map(|arg| &arg.value))
        };
        let peak = arg(0, "peak").or(arg(0, "lr")).and_then(|e| self.number(e));
        let callee = schedule.callee.trim_start_matches("optim.");
        match callee {
            "warmup" => {
                let over = arg(1, "over").and_then(|e| self.number(e));
                self.say("warmup", over);
                self.say("schedule", kind(callee));
            }
            "linear" | "cosine" => {
                for (at, fact) in [(1, "over"), (2, "warmup"), (3, "floor")] {
                    let value = arg(at, fact).and_then(|e| self.number(e));
                    self.say(fact, value.filter(|v| *v != Value::Int(0)));
                }
                self.say("schedule", kind(callee));
            }
            "constant" => self.say("schedule", kind(callee)),
            "from_settings" => {}
            other => self.lose(schedule.span, format!("the schedule `{other}` has no form yet")),
        }
        self.say("lr", peak);
    }

    fn data(&mut self, name: &str, call: &Call<'a>) {
        let value = call.args.first().and_then(|arg| text_of(&arg.value)).map(Value::Text);
        let held = self.roles.held == Some(name) || name == "held_out";
        let file = call.callee == "data.jsonl";
        match (held, file) {
            (true, true) => self.say("held_file", value),
            (true, false) => self.say("held_name", value),
            (false, _) if self.roles.data.is_some_and(|data| data != name) => {
                self.lose(call.span, format!("`{name}` is a second data set"));
            }
            (false, true) => {
                self.say("data_file", value);
                for (fact, arg) in [("prompt_key", "prompt"), ("answer_key", "answer")] {
                    self.say(fact, call.named(arg).and_then(text_of).map(Value::Text));
                }
            }
            (false, false) => self.say("data_name", value),
        }
    }
}
