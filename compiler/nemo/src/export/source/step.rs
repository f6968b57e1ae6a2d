//! What the lines of a step say.

use nrl_base::Span;
use nrl_rules::settings::Value;
use nrl_syntax::ast::{self, BinaryOp, Expr, ExprKind, StmtKind};

use super::calls::{Call, calls, name_of, path_of, unit_of, units_of};
use super::{GRADERS, Reader};
use crate::export::loss;
use crate::native::Algorithm;

impl<'a> Reader<'a> {
    pub(super) fn step(&mut self, body: &'a ast::Block) {
        for stmt in &body.stmts {
            match &stmt.kind {
                StmtKind::Bind(bind) => self.step_bind(bind),
                StmtKind::Update(update) => self.update(update),
                StmtKind::From(timed) => {
                    self.lose(stmt.span, "`from step` is set in the settings block");
                    self.step(&timed.body);
                }
                _ => self.lose(stmt.span, "this line of the step has no form"),
            }
        }
    }

    fn step_bind(&mut self, bind: &'a ast::Bind) {
        if let ExprKind::Collect(collect) = &bind.value.kind {
            return self.collected(collect, bind.value.span);
        }
        let name = bind.names.first().map(|name| name.text.as_str());
        if name.is_some() && name == self.roles.reward {
            let known = |call: &Call| {
                let callee = call.callee.as_str();
                GRADERS.contains(&callee) || self.environments.contains_key(callee)
            };
            let graded = shaped(&bind.value).map_or(&bind.value, |(graded, _)| graded);
            let alone = matches!(graded.kind, ExprKind::Call { .. });
            if !calls(graded).first().is_some_and(|call| alone && known(call)) {
                return self.lose(bind.value.span, "a reward of your own has no form");
            }
        }
        for call in calls(&bind.value) {
            let callee = call.callee.as_str();
            match callee {
                _ if callee.ends_with(".generate") => self.generate(&bind.value, &call),
                _ if callee.ends_with(".take") => {
                    let unit = call.args.first().and_then(|arg| unit_of(&arg.value));
                    let count = call.args.first().and_then(|arg| self.number(&arg.value));
                    match unit.unwrap_or("") {
                        "prompt" | "prompts" => self.say("prompts", count),
                        "pair" | "pairs" => {
                            self.found = Some(Algorithm::Dpo);
                            self.say("batch", count);
                        }
                        _ => {
                            self.found = self.found.or(Some(Algorithm::Sft));
                            self.say("batch", count);
                        }
                    }
                }
                _ if GRADERS.contains(&callee) => {
                    self.say("reward", Some(Value::Text("math".into())));
                }
                _ if self.environments.contains_key(callee) => {
                    let name = self.environments[callee].to_string();
                    self.say("reward", Some(Value::Text(name)));
                }
                "gdpo.part" => self.compared(&call),
                "rewards.overlong" => self.overlong(&call),
                _ if callee.ends_with(".advantages") => self.advantages(&bind.value, &call),
                "weight" if held(&bind.value).is_some() => self.held(&bind.value),
                "tis" | "icepop" | "seq_mask_tis" | "weight" => self.correction(&call),
                "ppo.gae" | "gae" => {
                    self.found = Some(Algorithm::Ppo);
                    self.mark("gae");
                    for fact in ["gamma", "lambda"] {
                        let value = call.named(fact).and_then(|e| self.number(e));
                        self.say(fact, value);
                    }
                }
                "topk" => {
                    self.found = Some(Algorithm::Distillation);
                    let k = call.args.get(1).and_then(|arg| self.number(&arg.value));
                    self.say("topk", k);
                }
                _ => {}
            }
        }
    }

    /// Dynamic sampling: groups that are all alike are sampled again.
    fn collected(&mut self, collect: &'a ast::Collect, span: Span) {
        let differ = |e: &Expr| match &e.kind {
            ExprKind::Binary { op: BinaryOp::Gt, lhs, rhs, .. } => {
                let zero = matches!(self.number(rhs), Some(Value::Int(0)))
                    || matches!(self.number(rhs), Some(Value::Float(x)) if x == 0.0);
                let call = calls(lhs).into_iter().next();
                zero && call.is_some_and(|c| matches!(c.callee.as_str(), "std" | "spread"))
            }
            _ => false,
        };
        if !collect.cond.as_ref().is_some_and(differ) {
            self.lose(span, "only groups that differ in their reward are collected");
        }
        let Some(ExprKind::Tuple(given)) = collect.body.value.as_ref().map(|e| &e.kind) else {
            return self.lose(span, "what is collected are samples and their reward");
        };
        if let [_, reward] = &given[..] {
            let (graded, overlong) = shaped(reward).map_or((reward, None), |(g, o)| (g, Some(o)));
            self.roles.reward = name_of(graded);
            if let Some(call) = overlong.and_then(|e| calls(e).into_iter().next()) {
                self.overlong(&call);
            }
        }
        for stmt in &collect.body.stmts {
            match &stmt.kind {
                StmtKind::Bind(bind) => self.step_bind(bind),
                _ => self.lose(stmt.span, "this line of `collect` has no form"),
            }
        }
        let tried = self.facts.get("prompts").cloned();
        self.say("tried", tried);
        let groups = self.number(&collect.count);
        self.say("prompts", groups);
        match &collect.within {
            Some(rounds) => {
                let rounds = self.number(rounds);
                self.say("rounds", rounds);
            }
            None => self.lose(span, "sampling again takes a number of rounds: `within 10 rounds`"),
        }
    }

    fn overlong(&mut self, call: &Call<'a>) {
        for (fact, arg) in [
            ("overlong_limit", "limit"),
            ("overlong_buffer", "buffer"),
            ("overlong_penalty", "penalty"),
        ] {
            let value = call.named(arg).and_then(|e| self.number(e));
            self.say(fact, value);
        }
    }

    fn generate(&mut self, value: &'a Expr, call: &Call<'a>) {
        self.found = self.found.or(Some(Algorithm::Grpo));
        let group = call.args.get(1).and_then(|arg| self.number(&arg.value));
        self.say("group", group);
        if let Some(new) = call.named("max_new") {
            let rest = matches!(new.kind, ExprKind::Of { .. } | ExprKind::Rest);
            let new = if rest { Some(Value::Text("rest".into())) } else { self.number(new) };
            self.say("max_new", new);
        }
        let ExprKind::With { args, .. } = &value.kind else { return };
        for arg in args {
            match (&arg.name, &arg.value.kind) {
                (None, ExprKind::Binary { op: BinaryOp::Le, lhs, rhs, .. })
                    if name_of(lhs) == Some("staleness") =>
                {
                    let age = self.number(rhs);
                    self.say("staleness", age);
                }
                (Some(name), _) if name.text == "swap" => {
                    let swap = name_of(&arg.value) == Some("in_flight");
                    self.say("in_flight", Some(Value::Bool(swap)));
                }
                _ => self.lose(arg.span, "this part of `with` has no form"),
            }
        }
    }

    fn advantages(&mut self, value: &'a Expr, call: &Call<'a>) {
        self.mark("advantages");
        let module = call.callee.trim_end_matches(".advantages");
        self.say("estimator", Some(Value::Text(module.into())));
        match module {
            "grpo" => self.compared(call),
            "gdpo" if calls(value).iter().filter(|c| c.callee == "gdpo.part").count() > 1 => {
                self.lose(call.span, "several rewards come from one environment");
            }
            "reinforce_plus_plus" => match call.named("baseline").and_then(name_of) {
                Some("mean") => self.say("minus_baseline", Some(Value::Bool(true))),
                Some("zero") => self.say("minus_baseline", Some(Value::Bool(false))),
                Some(other) => self.lose(call.span, format!("the baseline `{other}` has no form")),
                None => {}
            },
            _ => {}
        }
    }

    /// What a reward is compared with, and what the difference is divided by.
    fn compared(&mut self, call: &Call<'a>) {
        match call.named("baseline").and_then(name_of) {
            Some("leave_one_out") => self.say("leave_one_out", Some(Value::Bool(true))),
            Some("mean") => self.say("leave_one_out", Some(Value::Bool(false))),
            Some(other) => self.lose(call.span, format!("the baseline `{other}` has no form")),
            None => {}
        }
        match call.named("scale").and_then(name_of) {
            Some("std") => self.say("scaled", Some(Value::Bool(true))),
            Some("unscaled") => self.say("scaled", Some(Value::Bool(false))),
            Some(other) => self.lose(call.span, format!("the scale `{other}` has no form")),
            None => {}
        }
    }

    fn correction(&mut self, call: &Call<'a>) {
        self.say("correction", Some(Value::Text(call.callee.clone())));
        let max = call.named("max").and_then(|e| self.number(e));
        self.say("correction_max", max);
        if let Some(ExprKind::Range { start: Some(low), end: Some(high), .. }) =
            call.args.get(2).map(|arg| &arg.value.kind)
        {
            let (low, high) = (self.number(low), self.number(high));
            self.say("correction_min", low);
            self.say("correction_max", high);
        }
    }

    /// `clamp(weight(..), 0.2, 5.0)`: `tis` with a least weight.
    fn held(&mut self, value: &'a Expr) {
        let Some((low, high)) = held(value) else { return };
        let (low, high) = (self.number(low), self.number(high));
        self.say("correction", Some(Value::Text("tis".into())));
        self.say("correction_min", low);
        self.say("correction_max", high);
    }

    fn update(&mut self, update: &'a ast::Update) {
        let critic = name_of(&update.model) == Some("critic");
        if let Some(epochs) = &update.epochs {
            let epochs = self.number(epochs);
            self.say("epochs", epochs);
        }
        if !critic {
            self.mark("update");
            let updates = update.updates.as_ref().and_then(|e| self.number(e));
            self.say("updates", updates);
            if let Some(size) = &update.microbatch {
                match units_of(size).first().copied() {
                    Some("token" | "tokens") => {
                        let size = self.number(size);
                        self.say("microbatch", size);
                    }
                    _ => self.lose(size.span, "micro-batches are measured in tokens"),
                }
            }
        }
        loss::read(self, &update.loss, critic);
    }
}

/// The bounds that a weight is held in.
fn held(e: &Expr) -> Option<(&Expr, &Expr)> {
    let ExprKind::Call { callee, args } = &e.kind else { return None };
    let [weight, low, high] = &args[..] else { return None };
    let ExprKind::Call { callee: inner, .. } = &weight.value.kind else { return None };
    let is = name_of(callee) == Some("clamp") && name_of(inner) == Some("weight");
    is.then_some((&low.value, &high.value))
}

/// A reward and the penalty for length that is added to it.
fn shaped(e: &Expr) -> Option<(&Expr, &Expr)> {
    let ExprKind::Binary { op: BinaryOp::Add, lhs, rhs, .. } = &e.kind else { return None };
    let ExprKind::Call { callee, .. } = &rhs.kind else { return None };
    (path_of(callee)? == "rewards.overlong").then_some((lhs, rhs))
}
