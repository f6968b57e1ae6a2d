//! What the bindings before the step say: machines, models, optimizers, generators, data.

use nrl_rules::settings::Value;

use super::Reader;
use super::calls::{Call, calls, name_of, text_of};

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
        if call.named("head").is_some() {
            return self.say("critic", path);
        }
        if self.roles.policy.is_some_and(|policy| policy != name) {
            return self.say("teacher", path);
        }
        self.say("model", path);
        let dtype = call.named("dtype").and_then(name_of).and_then(|word| {
            let known = [("bf16", "bfloat16"), ("f32", "float32"), ("f16", "float16")];
            known.into_iter().find(|(ours, _)| *ours == word)
        });
        self.say("dtype", dtype.map(|(_, theirs)| Value::Text(theirs.into())));
        let context = call.named("context").and_then(|e| self.number(e));
        self.say("context", context);
    }

    fn optimizer(&mut self, call: &Call<'a>) {
        self.mark("opt");
        for fact in ["beta1", "beta2", "eps", "weight_decay", "clip_norm"] {
            let value = call.named(fact).and_then(|e| self.number(e));
            self.say(fact, value);
        }
        let Some(lr) = call.named("lr") else { return };
        if let Some(number) = self.number(lr) {
            return self.say("lr", Some(number));
        }
        let Some(schedule) = calls(lr).into_iter().next() else { return };
        let peak = schedule.args.first().and_then(|arg| self.number(&arg.value));
        match schedule.callee.as_str() {
            "optim.warmup" | "warmup" => {
                let over = schedule.args.get(1).and_then(|arg| self.number(&arg.value));
                self.say("warmup", over);
            }
            "optim.constant" | "constant" => {}
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
