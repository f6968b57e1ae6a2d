//! The functions of interpolation: `add mul div max` of NeMo RL's run scripts and OmegaConf's own.
//!
//! Numbers behave as in Python: whole numbers stay whole, `div` gives a float. Unlike Python, a text
//! is never multiplied: `${mul:"8",2}` would be `"88"`, which no recipe means.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use nrl_base::did_you_mean;
use nrl_rules::settings::{Node, Value};

use super::syntax::{self, Arg, Part};
use super::{Here, Outcome, Resolver};
use crate::python;

const NAMES: &[&str] = &[
    "add",
    "mul",
    "div",
    "max",
    "oc.env",
    "oc.select",
    "oc.decode",
    "oc.create",
    "oc.dict.keys",
    "oc.dict.values",
];

/// The first variable that a part needs and the environment lacks.
pub(super) fn unset(part: &Part, environment: &BTreeMap<String, String>) -> Option<String> {
    let in_arg = |arg: &Arg| unset_arg(arg, environment);
    match part {
        Part::Call(name, args) => match args.as_slice() {
            [Arg::Bare(words) | Arg::Quoted(words)] if name == "oc.env" => match words.as_slice() {
                [Part::Plain(variable)] if !environment.contains_key(variable) => {
                    Some(variable.clone())
                }
                words => words.iter().find_map(|part| unset(part, environment)),
            },
            args => args.iter().find_map(in_arg),
        },
        Part::Path(_, names) => names.iter().find_map(|name| match name {
            syntax::Name::Of(part) => unset(part, environment),
            syntax::Name::Word(_) => None,
        }),
        Part::Plain(_) => None,
    }
}

fn unset_arg(arg: &Arg, environment: &BTreeMap<String, String>) -> Option<String> {
    match arg {
        Arg::Bare(parts) | Arg::Quoted(parts) => {
            parts.iter().find_map(|part| unset(part, environment))
        }
        Arg::List(items) => items.iter().find_map(|arg| unset_arg(arg, environment)),
        Arg::Map(pairs) => pairs.iter().find_map(|(_, arg)| unset_arg(arg, environment)),
    }
}

impl Resolver<'_> {
    /// What a function gives.
    pub(super) fn call(&mut self, name: &str, args: &[Arg], here: Here) -> Outcome<Value> {
        let values = args.iter().map(|arg| self.argument(arg, here));
        let values = values.collect::<Outcome<Vec<_>>>()?;
        let values: Vec<Value> = values.into_iter().map(|node| node.value).collect();
        match (name, values.as_slice()) {
            ("add" | "mul" | "div" | "max", [a, b]) => match arithmetic(name, a, b) {
                Ok(value) => Ok(value),
                Err(why) => self.no_value(here, why),
            },
            ("oc.env", [Value::Text(variable)]) => match self.environment.get(variable) {
                Some(value) => Ok(Value::Text(value.clone())),
                None => self.no_value(here, format!("the environment has no {variable}")),
            },
            ("oc.env", [Value::Text(variable), default]) => {
                Ok(match (self.environment.get(variable), default) {
                    (Some(value), _) => Value::Text(value.clone()),
                    (None, Value::Null) => Value::Null,
                    (None, default) => Value::Text(python::text(default)),
                })
            }
            ("oc.select", [Value::Text(key)]) => self.selected(key, None, here),
            ("oc.select", [Value::Text(key), default]) => {
                self.selected(key, Some(default.clone()), here)
            }
            ("oc.decode", [Value::Null]) => Ok(Value::Null),
            ("oc.decode", [Value::Text(text)]) => match syntax::parse_element(text) {
                Ok(arg) => self.argument(&arg, here).map(|node| node.value),
                Err(why) => self.no_value(here, why),
            },
            ("oc.create", [value]) => Ok(value.clone()),
            ("oc.dict.keys" | "oc.dict.values", [of]) => self.entries(name, of, here),
            (known, _) if NAMES.contains(&known) => {
                let given: Vec<_> = values.iter().map(python::repr).collect();
                self.no_value(here, format!("`{known}` cannot take ({})", given.join(", ")))
            }
            (unknown, _) => {
                let said = format!(
                    "`{}` is `{}`: there is no function `{unknown}`",
                    here.name(),
                    here.text
                );
                let close = did_you_mean(unknown, NAMES.iter().copied());
                let all = || format!("there are {}", NAMES.join(", "));
                self.wrong(here, said, Some(close.unwrap_or_else(all)))
            }
        }
    }

    fn no_value<T>(&mut self, here: Here, why: String) -> Outcome<T> {
        let said = format!("`{}` is `{}`: {why}", here.name(), here.text);
        self.wrong(here, said, None)
    }

    fn argument(&mut self, arg: &Arg, here: Here) -> Outcome<Node> {
        let value = match arg {
            Arg::Bare(parts) => match parts.as_slice() {
                [] => Value::Text(String::new()),
                [Part::Plain(word)] => python::literal(word),
                [part] => return self.part(part, here),
                parts => Value::Text(self.joined(parts, here)?),
            },
            Arg::Quoted(parts) => match parts.as_slice() {
                [part @ (Part::Path(..) | Part::Call(..))] => {
                    Value::Text(python::text(&self.part(part, here)?.value))
                }
                parts => Value::Text(self.joined(parts, here)?),
            },
            Arg::List(items) => {
                let items = items.iter().map(|item| self.argument(item, here));
                Value::List(items.collect::<Outcome<_>>()?)
            }
            Arg::Map(pairs) => {
                let pairs =
                    pairs.iter().map(|(key, arg)| Ok((key.clone(), self.argument(arg, here)?)));
                Value::Map(pairs.collect::<Outcome<IndexMap<_, _>>>()?)
            }
        };
        Ok(Node { value, origin: here.origin })
    }

    /// `oc.select`: a value or a default, null without one.
    fn selected(&mut self, key: &str, default: Option<Value>, here: Here) -> Outcome<Value> {
        let path = self.key(key, here)?;
        let found = self.select(&path, Some(here))?;
        Ok(found.map(|node| node.value).or(default).unwrap_or(Value::Null))
    }

    fn key(&mut self, key: &str, here: Here) -> Outcome<Vec<String>> {
        match syntax::parse(&format!("${{{key}}}")).as_deref() {
            Ok([Part::Path(dots, names)]) => self.path(*dots, names, here),
            _ => self.no_value(here, format!("`{key}` is no path")),
        }
    }

    fn entries(&mut self, name: &str, of: &Value, here: Here) -> Outcome<Value> {
        let Value::Text(key) = of else {
            let why = format!("`{name}` takes the path of a mapping, not {}", python::repr(of));
            return self.no_value(here, why);
        };
        let path = self.key(key, here)?;
        let Some(node) = self.select(&path, Some(here))? else {
            return self.nothing_there(&path, here);
        };
        let Value::Map(map) = &node.value else {
            return self.no_value(here, format!("`{key}` is no mapping"));
        };
        let text = |key: &String| Node { value: Value::Text(key.clone()), origin: here.origin };
        Ok(Value::List(match name {
            "oc.dict.keys" => map.keys().map(text).collect(),
            _ => map.values().cloned().collect(),
        }))
    }
}

fn arithmetic(name: &str, a: &Value, b: &Value) -> Result<Value, String> {
    let whole = |v: &Value| match v {
        Value::Int(n) => Some(*n),
        Value::Bool(flag) => Some(i64::from(*flag)),
        _ => None,
    };
    let number = |v: &Value| match v {
        Value::Float(x) => Some(*x),
        v => whole(v).map(|n| n as f64),
    };
    if let ("add", Value::Text(a), Value::Text(b)) = (name, a, b) {
        return Ok(Value::Text(format!("{a}{b}")));
    }
    let (Some(x), Some(y)) = (number(a), number(b)) else {
        let wrong = if number(a).is_none() { a } else { b };
        return Err(format!("`{name}` takes numbers, and {} is none", python::repr(wrong)));
    };
    let both = whole(a).zip(whole(b));
    let too_large = || format!("{x} and {y} give more than 64 bits");
    match (name, both) {
        ("div", _) if y == 0.0 => Err(format!("{x} is divided by zero")),
        ("div", _) => Ok(Value::Float(x / y)),
        ("max", _) => Ok(if y > x { b.clone() } else { a.clone() }),
        ("mul", Some((a, b))) => a.checked_mul(b).map(Value::Int).ok_or_else(too_large),
        ("mul", None) => Ok(Value::Float(x * y)),
        (_, Some((a, b))) => a.checked_add(b).map(Value::Int).ok_or_else(too_large),
        (_, None) => Ok(Value::Float(x + y)),
    }
}
