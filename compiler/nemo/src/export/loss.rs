//! The facts that a loss says: its terms are means with a weight.

use nrl_rules::settings::Value;
use nrl_syntax::ast::{BinaryOp, Block, Expr, ExprKind};

use super::source::Reader;
use super::source::calls::{Call, calls, name_of};
use crate::native::Algorithm;

/// Reads the loss of an update of the policy, or of the critic.
pub(super) fn read<'a>(reader: &mut Reader<'a>, block: &'a Block, critic: bool) {
    for stmt in &block.stmts {
        reader.lose(stmt.span, "a name inside `minimising` has no form");
    }
    let Some(value) = &block.value else { return };
    let mut terms = vec![];
    split(value, &mut terms);
    for term in terms {
        let (weight, body) = weighted(reader, term);
        one(reader, weight, body, critic);
    }
}

/// The summands of a loss.
fn split<'a>(e: &'a Expr, terms: &mut Vec<&'a Expr>) {
    match &e.kind {
        ExprKind::Binary { op: BinaryOp::Add, lhs, rhs, .. } => {
            split(lhs, terms);
            split(rhs, terms);
        }
        _ => terms.push(e),
    }
}

/// A number before a product, if there is one.
fn weighted<'a>(reader: &Reader<'a>, e: &'a Expr) -> (Option<Value>, &'a Expr) {
    match &e.kind {
        ExprKind::Binary { op: BinaryOp::Mul, lhs, rhs, .. } => match reader.number(lhs) {
            Some(weight) => (Some(weight), rhs),
            None => (None, e),
        },
        _ => (None, e),
    }
}

fn one<'a>(reader: &mut Reader<'a>, weight: Option<Value>, body: &'a Expr, critic: bool) {
    let inside = calls(body);
    let has = |name: &str| inside.iter().find(|call| call.callee == name);
    if critic {
        return value_loss(reader, weight, &inside);
    }
    let over = has("mean").and_then(|mean| mean.named("over")).and_then(name_of);
    let actor = ["grpo.clip", "ppo.clip", "grpo.cispo"].iter().find_map(|name| has(name));
    if let Some(call) = actor {
        mark(reader, "loss");
        clip(reader, call, over, has("sequence_ratio").is_some());
    } else if let Some(call) = kl_call(&inside) {
        reader.say("kl", Some(weight.unwrap_or(Value::Float(1.0))));
        let kind = match call.callee.as_str() {
            "k1" | "k2" | "k3" => Some(call.callee.as_str()),
            _ => call.named("kind").and_then(name_of).or(Some("k3")),
        };
        reader.say("kl_kind", kind.map(|kind| Value::Text(kind.into())));
        if call.callee == "grpo.kl_on_policy" {
            reader.say("on_policy_kl", Some(Value::Bool(true)));
        }
    } else if let Some(call) = has("dpo.preference") {
        reader.found = Some(Algorithm::Dpo);
        mark(reader, "loss");
        let beta = call.named("beta").or(call.args.get(2).map(|arg| &arg.value));
        let beta = beta.and_then(|e| reader.number(e));
        reader.say("beta", beta);
        reader.say("preference", weight);
    } else if has("log_sigmoid").is_some() && has("value").or(has("score")).is_some() {
        reader.found = Some(Algorithm::Rm);
        mark(reader, "loss");
    } else if let Some(call) = has("log_sigmoid") {
        reader.found = Some(Algorithm::Dpo);
        mark(reader, "loss");
        let argument = call.args.first().map(|arg| &arg.value.kind);
        if let Some(ExprKind::Binary { op: BinaryOp::Mul, lhs, .. }) = argument {
            let beta = reader.number(lhs);
            reader.say("beta", beta);
        }
        reader.say("preference", weight);
    } else if has("settings.loss").is_some() {
        // The settings block says it.
    } else if has("sft.nll").is_some() {
        reader.found = Some(Algorithm::Sft);
    } else if has("dist").is_some() || has("kl").is_some() {
        distilled(reader, weight, body);
    } else if has("logprob").is_some() && name_in(body, "adv") {
        mark(reader, "loss");
        reader.say("no_ratio", Some(Value::Bool(true)));
        reader.say("over_tokens", over.map(|over| Value::Bool(over == "tokens")));
    } else if has("logprob").is_some() && reader.found == Some(Algorithm::Dpo) {
        reader.say("nll", weight);
    } else {
        reader.lose(body.span, "this term of the loss has no form");
    }
}

fn mark(reader: &mut Reader<'_>, line: &'static str) {
    reader.facts.insert(line, Value::Bool(true));
}

fn kl_call<'c, 'a>(inside: &'c [Call<'a>]) -> Option<&'c Call<'a>> {
    let names = ["grpo.kl", "grpo.kl_on_policy", "k1", "k2", "k3"];
    inside.iter().find(|call| names.contains(&call.callee.as_str()))
}

fn clip<'a>(reader: &mut Reader<'a>, call: &Call<'a>, over: Option<&str>, sequence: bool) {
    // Advantages per token that are no critic's are clipped by `std.ppo` too.
    if call.callee == "ppo.clip" && !reader.facts.contains_key("estimator") {
        reader.found = Some(Algorithm::Ppo);
    }
    let range = call.args.iter().find_map(|arg| match &arg.value.kind {
        ExprKind::Range { start: Some(low), end: Some(high), .. } => Some((low, high)),
        _ => None,
    });
    if let Some((low, high)) = range {
        let (low, high) = (reader.number(low), reader.number(high));
        reader.say("clip_low", low);
        reader.say("clip_high", high);
    }
    let dual = call.named("dual").and_then(|e| reader.number(e));
    reader.say("dual", dual);
    if call.callee == "grpo.cispo" {
        reader.say("cispo", Some(Value::Bool(true)));
    }
    if sequence {
        reader.say("sequence_ratio", Some(Value::Bool(true)));
    }
    reader.say("over_tokens", over.map(|over| Value::Bool(over == "tokens")));
}

fn value_loss<'a>(reader: &mut Reader<'a>, weight: Option<Value>, inside: &[Call<'a>]) {
    mark(reader, "value_loss");
    reader.say("value_scale", Some(weight.unwrap_or(Value::Float(1.0))));
    let call = inside.iter().find(|call| call.callee == "ppo.value_loss");
    let clip = call.and_then(|call| call.named("clip")).and_then(|e| reader.number(e));
    reader.say("value_clip", clip.or(call.is_none().then_some(Value::Null)));
}

/// `kl(t, d)` is forward, `kl(d, t)` reverse, a weighted sum of both mixed.
fn distilled<'a>(reader: &mut Reader<'a>, weight: Option<Value>, body: &'a Expr) {
    reader.found = Some(Algorithm::Distillation);
    mark(reader, "loss");
    let _ = weight;
    let argument = match &body.kind {
        ExprKind::Call { args, .. } => args.first().map(|arg| &arg.value),
        _ => None,
    };
    let Some(argument) = argument else { return };
    let mut terms = vec![];
    split(argument, &mut terms);
    let mut forward = None;
    let mut reverse = false;
    for term in &terms {
        let (weight, body) = weighted(reader, term);
        let Some(call) = calls(body).into_iter().find(|call| call.callee == "kl") else { continue };
        if call.args.first().is_some_and(|arg| name_of(&arg.value) == Some("t")) {
            forward = Some(weight);
        } else {
            reverse = true;
        }
    }
    let direction = match (&forward, reverse) {
        (Some(_), true) => "mixed",
        (Some(_), false) => "forward",
        (None, _) => "reverse",
    };
    reader.say("kl_direction", Some(Value::Text(direction.into())));
    if direction == "mixed" {
        reader.say("mix", forward.flatten());
    }
}

fn name_in(e: &Expr, name: &str) -> bool {
    match &e.kind {
        ExprKind::Name(n) => n == name,
        ExprKind::Unary { operand, .. } => name_in(operand, name),
        ExprKind::Binary { lhs, rhs, .. } => name_in(lhs, name) || name_in(rhs, name),
        ExprKind::Call { args, .. } => args.iter().any(|arg| name_in(&arg.value, name)),
        _ => false,
    }
}
