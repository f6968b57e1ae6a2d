//! Host expressions: a small total language over numbers, text, lists and records.
//!
//! It runs rewards, data rows, schedules and constant folding. One evaluator (`eval`), used by
//! the compiler and by the runtime. There are no loops but `map`, `filter` and `fold` over lists,
//! and no I/O, so every evaluation ends.

mod builtin;
mod eval;

pub use builtin::{Builtin, HostType};
pub use eval::{EvalError, MOST, call, call_within};

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// A value of the host language.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    None,
    Bool(bool),
    Num(f64),
    Text(Arc<str>),
    List(Arc<Vec<Value>>),
    Record(Arc<IndexMap<String, Value>>),
}

impl Value {
    pub fn text(s: &str) -> Value {
        Value::Text(s.into())
    }

    pub fn list(items: Vec<Value>) -> Value {
        Value::List(Arc::new(items))
    }

    pub fn record(fields: impl IntoIterator<Item = (String, Value)>) -> Value {
        Value::Record(Arc::new(fields.into_iter().collect()))
    }

    /// A JSON value; integers beyond 2^53 lose digits.
    pub fn from_json(v: &serde_json::Value) -> Value {
        match v {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(b) => Value::Bool(*b),
            serde_json::Value::Number(n) => Value::Num(n.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(s) => Value::text(s),
            serde_json::Value::Array(a) => Value::list(a.iter().map(Value::from_json).collect()),
            serde_json::Value::Object(o) => {
                Value::record(o.iter().map(|(k, v)| (k.clone(), Value::from_json(v))))
            }
        }
    }

    /// The JSON form; NaN and infinities become null, whole numbers integers.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::None => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Num(x) if x.fract() == 0.0 && x.abs() < 9.0e15 => (*x as i64).into(),
            Value::Num(x) => (*x).into(),
            Value::Text(s) => s.to_string().into(),
            Value::List(l) => l.iter().map(Value::to_json).collect(),
            Value::Record(r) => r
                .iter()
                .map(|(k, v)| (k.clone(), v.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    /// Kind of value, in user words.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::None => "none",
            Value::Bool(_) => "bool",
            Value::Num(_) => "number",
            Value::Text(_) => "text",
            Value::List(_) => "list",
            Value::Record(_) => "record",
        }
    }
}

/// A function: parameters are locals `0..params`, `let`s and loop variables follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Func {
    pub name: String,
    pub params: usize,
    /// Number of locals in all.
    pub locals: usize,
    pub body: Expr,
}

/// An expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Expr {
    Const(Value),
    Local(usize),
    Let {
        slot: usize,
        value: Box<Expr>,
        body: Box<Expr>,
    },
    If {
        cond: Box<Expr>,
        then: Box<Expr>,
        other: Box<Expr>,
    },
    Field {
        of: Box<Expr>,
        name: String,
    },
    List(Vec<Expr>),
    Record(Vec<(String, Expr)>),
    Call {
        f: Builtin,
        args: Vec<Expr>,
    },
    /// `body` for each item of `list`, bound to `slot`.
    Map {
        list: Box<Expr>,
        slot: usize,
        body: Box<Expr>,
    },
    /// The items for which `body` is true.
    Filter {
        list: Box<Expr>,
        slot: usize,
        body: Box<Expr>,
    },
    /// `acc` starts as `init` and becomes `body` for each item.
    Fold {
        list: Box<Expr>,
        init: Box<Expr>,
        acc: usize,
        slot: usize,
        body: Box<Expr>,
    },
}
