//! Learning-rate schedules, as lines say them and as the two backends hold them.
//!
//! In: settings, or the facts `schedule`, `warmup`, `over` and `floor`. Out: the one from the other. DTensor
//! holds a list of PyTorch's schedules and where they meet, Megatron a style with numbers of iterations.
//! A schedule that no line says is `settings`: it stays where it is, and no edit touches it.

use indexmap::IndexMap;
use nrl_rules::settings::{Node, Value};

use super::{Facts, int, text};

/// Where each backend holds the schedule.
const DTENSOR: &str = "policy.scheduler";
const MEGATRON: &str = "policy.megatron_cfg.scheduler";
const MEGATRON_FLOOR: &str = "policy.megatron_cfg.optimizer.min_lr";

/// How long the flat end of a schedule is in NeMo RL's own recipes.
const FOREVER: i64 = 10_000_000_000;

/// A learning rate over updates.
#[derive(Clone, PartialEq, Debug)]
struct Schedule {
    kind: &'static str,
    /// Updates of the rise; 0 if there is none.
    warmup: i64,
    /// The update at which the fall ends; 0 where nothing falls.
    over: i64,
    floor: Option<Value>,
}

impl Schedule {
    fn flat(warmup: i64) -> Schedule {
        let kind = if warmup > 0 { "warmup" } else { "constant" };
        Schedule { kind, warmup, over: 0, floor: None }
    }

    fn of(facts: &Facts) -> Option<Schedule> {
        let kind = ["constant", "warmup", "linear", "cosine"]
            .into_iter()
            .find(|kind| text(facts, "schedule") == Some(kind))?;
        Some(Schedule {
            kind,
            warmup: int(facts, "warmup").unwrap_or(0),
            over: int(facts, "over").unwrap_or(0),
            floor: facts.get("floor").cloned(),
        })
    }

    fn alike(&self, other: &Schedule) -> bool {
        let floors = match (&self.floor, &other.floor) {
            (Some(a), Some(b)) => number(a) == number(b),
            (None, Some(a)) | (Some(a), None) => number(a) == Some(0.0),
            (None, None) => true,
        };
        (self.kind, self.warmup, self.over) == (other.kind, other.warmup, other.over) && floors
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(n) => Some(*n as f64),
        Value::Float(x) if x.is_finite() => Some(*x),
        _ => None,
    }
}

/// The facts of a schedule.
pub(super) fn take(root: &Node, megatron: bool, steps: Option<i64>, facts: &mut Facts) {
    let Some(found) = read(root, megatron) else {
        facts.insert("schedule", Value::Text("settings".into()));
        return;
    };
    // PyTorch's cosine rises again where a recipe runs on after its end.
    let again = found.kind == "cosine" && !megatron && steps.is_none_or(|n| n > found.over);
    let kind = if again { "settings" } else { found.kind };
    facts.insert("schedule", Value::Text(kind.into()));
    if again {
        return;
    }
    for (fact, n) in [("warmup", found.warmup), ("over", found.over)] {
        if n > 0 {
            facts.insert(fact, Value::Int(n));
        }
    }
    if let Some(floor) = found.floor.filter(|floor| number(floor) != Some(0.0)) {
        facts.insert("floor", floor);
    }
}

/// What a schedule sets, where the settings below say another one.
pub(super) fn edits(
    facts: &Facts,
    below: &Node,
    megatron: bool,
    put: &mut impl FnMut(&'static str, &str, Value),
) {
    let Some(wanted) = Schedule::of(facts) else { return };
    if read(below, megatron).is_some_and(|old| old.alike(&wanted)) {
        return;
    }
    if !megatron {
        let old = below.get(DTENSOR).map(|n| &n.value);
        let lr = facts.get("lr").and_then(number);
        return put("schedule", DTENSOR, listed(old, &wanted, lr, below));
    }
    let at = |key: &str| format!("{MEGATRON}.{key}");
    let falls = matches!(wanted.kind, "linear" | "cosine");
    let style = if falls { wanted.kind } else { "constant" };
    let has = |key: &str| below.get(&at(key)).is_some();
    if falls || has("lr_decay_style") {
        put("schedule", &at("lr_decay_style"), Value::Text(style.into()));
    }
    put("schedule", &at("lr_warmup_iters"), Value::Int(wanted.warmup));
    if falls {
        put("schedule", &at("lr_decay_iters"), Value::Int(wanted.over));
        let floor = wanted.floor.unwrap_or(Value::Float(0.0));
        put("schedule", MEGATRON_FLOOR, floor);
    }
}

fn read(root: &Node, megatron: bool) -> Option<Schedule> {
    if megatron { of_megatron(root) } else { of_torch(root) }
}

fn of_megatron(root: &Node) -> Option<Schedule> {
    let get = |key: &str| {
        let node = root.get(&format!("{MEGATRON}.{key}")).map(|n| &n.value);
        node.filter(|v| **v != Value::Null)
    };
    let others = ["lr_warmup_fraction", "lr_warmup_samples", "lr_decay_samples"];
    if others.iter().any(|key| get(key).is_some_and(|v| number(v) != Some(0.0))) {
        return None;
    }
    let warmup = match get("lr_warmup_iters") {
        None => 0,
        Some(Value::Int(n)) if *n >= 0 => *n,
        Some(_) => return None,
    };
    let kind = match get("lr_decay_style") {
        Some(Value::Text(t)) if t == "constant" => return Some(Schedule::flat(warmup)),
        Some(Value::Text(t)) if t == "linear" => "linear",
        Some(Value::Text(t)) if t == "cosine" => "cosine",
        _ => return None,
    };
    let over = match get("lr_decay_iters") {
        Some(Value::Int(n)) if *n > warmup => *n,
        _ => return None,
    };
    let floor = root.get(MEGATRON_FLOOR).map(|n| n.value.clone()).filter(|v| number(v).is_some());
    Some(Schedule { kind, warmup, over, floor })
}

/// One of PyTorch's schedules, as far as lines say it.
enum Part {
    /// Rises to the whole rate.
    Rise(i64),
    Flat,
    /// Falls from the whole rate, to a part of it.
    Fall(i64, f64),
    Cosine(i64, Option<Value>),
}

fn part(node: &Node) -> Option<Part> {
    let name = match node.get("name").map(|n| &n.value) {
        Some(Value::Text(name)) => name.rsplit('.').next()?,
        _ => return None,
    };
    let at = |key: &str| node.get(&format!("kwargs.{key}")).map(|n| &n.value);
    let whole = |key: &str| match at(key) {
        Some(Value::Int(n)) if *n > 0 => Some(*n),
        _ => None,
    };
    let share = |key: &str, usual: f64| at(key).map_or(Some(usual), number);
    match name {
        "LinearLR" => {
            let (start, end) = (share("start_factor", 1.0 / 3.0)?, share("end_factor", 1.0)?);
            match (start, end) {
                (start, 1.0) if start < 1.0 => Some(Part::Rise(whole("total_iters")?)),
                (1.0, end) if (0.0..1.0).contains(&end) => {
                    Some(Part::Fall(whole("total_iters")?, end))
                }
                _ => None,
            }
        }
        "ConstantLR" => (share("factor", 1.0 / 3.0)? == 1.0).then_some(Part::Flat),
        "CosineAnnealingLR" => {
            let floor = at("eta_min").cloned();
            if floor.as_ref().is_some_and(|floor| number(floor).is_none()) {
                return None;
            }
            Some(Part::Cosine(whole("T_max")?, floor))
        }
        _ => None,
    }
}

fn of_torch(root: &Node) -> Option<Schedule> {
    let node = match root.get(DTENSOR) {
        None => return Some(Schedule::flat(0)),
        Some(node) => node,
    };
    let (parts, meet) = match &node.value {
        Value::Null => return Some(Schedule::flat(0)),
        Value::Map(_) => (vec![part(node)?], vec![]),
        Value::List(items) => {
            let is_meet = |n: &&Node| n.child("milestones").is_some();
            let meets = items.iter().filter(is_meet).collect::<Vec<_>>();
            let meet = match &meets[..] {
                [] => vec![],
                [one] => milestones(one)?,
                _ => return None,
            };
            let parts = items.iter().filter(|n| !is_meet(n)).map(part);
            (parts.collect::<Option<Vec<_>>>()?, meet)
        }
        _ => return None,
    };
    let lr = root.get("policy.optimizer.kwargs.lr").and_then(|n| number(&n.value));
    let to = |end: f64| match end == 0.0 {
        true => Some(Value::Float(0.0)),
        false => lr.map(|lr| Value::Float(lr * end)),
    };
    Some(match (&parts[..], &meet[..]) {
        ([Part::Flat], []) => Schedule::flat(0),
        ([Part::Rise(n)], []) => Schedule::flat(*n),
        ([Part::Rise(n), Part::Flat], [at]) if n == at => Schedule::flat(*n),
        ([Part::Cosine(n, floor)], []) => {
            Schedule { kind: "cosine", warmup: 0, over: *n, floor: floor.clone() }
        }
        ([Part::Rise(n), Part::Cosine(fall, floor)], [at]) if n == at => Schedule {
            kind: "cosine",
            warmup: *n,
            over: n.checked_add(*fall)?,
            floor: floor.clone(),
        },
        ([Part::Fall(n, end)], []) => {
            Schedule { kind: "linear", warmup: 0, over: *n, floor: Some(to(*end)?) }
        }
        ([Part::Rise(n), Part::Fall(fall, end)], [at]) if n == at => Schedule {
            kind: "linear",
            warmup: *n,
            over: n.checked_add(*fall)?,
            floor: Some(to(*end)?),
        },
        _ => return None,
    })
}

fn milestones(node: &Node) -> Option<Vec<i64>> {
    let Some(Value::List(items)) = node.child("milestones").map(|n| &n.value) else { return None };
    let whole = |n: &Node| match n.value {
        Value::Int(n) => Some(n),
        _ => None,
    };
    items.iter().map(whole).collect()
}

/// The list that a schedule is, with the rise of the old one where it has one.
fn listed(old: Option<&Value>, wanted: &Schedule, lr: Option<f64>, below: &Node) -> Value {
    let at = |value| Node { value, origin: below.origin };
    let map = |pairs: Vec<(&str, Value)>| {
        let pairs = pairs.into_iter().map(|(k, v)| (k.to_string(), at(v)));
        Value::Map(pairs.collect::<IndexMap<_, _>>())
    };
    let part = |name: &str, kwargs: Vec<(&str, Value)>| {
        let name = Value::Text(format!("torch.optim.lr_scheduler.{name}"));
        map(vec![("name", name), ("kwargs", map(kwargs))])
    };
    if wanted.kind == "constant" {
        return Value::Null;
    }
    let mut parts = vec![];
    if wanted.warmup > 0 {
        let kept = match old {
            Some(Value::List(items)) => items.first().filter(|n| named(n, "LinearLR")),
            _ => None,
        };
        let share = |key: &str, usual: f64| {
            let said = kept.and_then(|n| n.get(&format!("kwargs.{key}")));
            said.map_or(Value::Float(usual), |n| n.value.clone())
        };
        parts.push(part(
            "LinearLR",
            vec![
                ("start_factor", share("start_factor", 0.1)),
                ("end_factor", share("end_factor", 1.0)),
                ("total_iters", Value::Int(wanted.warmup)),
            ],
        ));
    }
    let fall = Value::Int(wanted.over - wanted.warmup);
    let floor = wanted.floor.clone().unwrap_or(Value::Float(0.0));
    match wanted.kind {
        "cosine" => {
            parts.push(part("CosineAnnealingLR", vec![("T_max", fall), ("eta_min", floor)]));
        }
        "linear" => {
            let lr = lr.or(below.get("policy.optimizer.kwargs.lr").and_then(|n| number(&n.value)));
            let share = match (number(&floor), lr) {
                (Some(floor), Some(lr)) if lr > 0.0 => floor / lr,
                _ => 0.0,
            };
            parts.push(part(
                "LinearLR",
                vec![
                    ("start_factor", Value::Float(1.0)),
                    ("end_factor", Value::Float(share)),
                    ("total_iters", fall),
                ],
            ));
        }
        _ => parts.push(flat(old, &part)),
    }
    if wanted.warmup > 0 {
        let meet = Value::List(vec![at(Value::Int(wanted.warmup))]);
        parts.push(map(vec![("milestones", meet)]));
    }
    Value::List(parts.into_iter().map(at).collect())
}

/// A flat end: that of the old schedule if it has one.
fn flat(old: Option<&Value>, part: &impl Fn(&str, Vec<(&str, Value)>) -> Value) -> Value {
    let usual = || {
        part(
            "ConstantLR",
            vec![("factor", Value::Float(1.0)), ("total_iters", Value::Int(FOREVER))],
        )
    };
    let Some(Value::List(items)) = old else { return usual() };
    items.iter().find(|n| named(n, "ConstantLR")).map_or_else(usual, |n| n.value.clone())
}

fn named(node: &Node, end: &str) -> bool {
    matches!(node.get("name").map(|n| &n.value), Some(Value::Text(t)) if t.rsplit('.').next() == Some(end))
}
