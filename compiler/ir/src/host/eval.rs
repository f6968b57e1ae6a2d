//! The evaluator of host expressions.

use super::{Builtin, Expr, Func, Value};

/// Why an evaluation has no value.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalError(pub String);

impl std::fmt::Display for EvalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EvalError {}

type Eval = Result<Value, EvalError>;

/// Most evaluations of one call in a run; more than seconds of work for one sample.
pub const MOST: u64 = 200_000_000;

/// How the error of a call that takes too long begins.
const TOO_MUCH: &str = "it takes more than ";

impl EvalError {
    /// Was the work more than allowed?
    pub fn is_too_much(&self) -> bool {
        self.0.starts_with(TOO_MUCH)
    }
}

/// Calls `f` with `args`.
pub fn call(f: &Func, args: &[Value]) -> Eval {
    call_within(f, args, &mut MOST.clone())
}

/// Calls `f` with at most `left` evaluations, and takes what it used away. An item of a list that
/// is made, and eight characters of a text, count as one.
pub fn call_within(f: &Func, args: &[Value], left: &mut u64) -> Eval {
    let mut locals = vec![Value::None; f.locals.max(args.len())];
    locals[..args.len()].clone_from_slice(args);
    let most = *left;
    let mut ctx = Ctx { locals, left: *left, most };
    let result = ctx.eval(&f.body);
    *left = ctx.left;
    result
}

struct Ctx {
    locals: Vec<Value>,
    left: u64,
    most: u64,
}

impl Ctx {
    fn spend(&mut self, cost: u64) -> Result<(), EvalError> {
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(EvalError(format!("{TOO_MUCH}{} evaluations", self.most)))
            }
        }
    }

    fn eval(&mut self, e: &Expr) -> Eval {
        self.spend(1)?;
        Ok(match e {
            Expr::Const(v) => v.clone(),
            Expr::Local(i) => self.locals[*i].clone(),
            Expr::Let { slot, value, body } => {
                self.locals[*slot] = self.eval(value)?;
                self.eval(body)?
            }
            Expr::If { cond, then, other } => {
                if bool_of(&self.eval(cond)?)? {
                    self.eval(then)?
                } else {
                    self.eval(other)?
                }
            }
            Expr::Field { of, name } => match self.eval(of)? {
                Value::Record(r) => r
                    .get(name)
                    .cloned()
                    .ok_or_else(|| EvalError(format!("there is no field `{name}`")))?,
                v => return Err(EvalError(format!("`{name}` is asked of a {}", v.kind()))),
            },
            Expr::List(items) => {
                Value::list(items.iter().map(|i| self.eval(i)).collect::<Result<_, _>>()?)
            }
            Expr::Record(fields) => {
                let mut out = Vec::with_capacity(fields.len());
                for (k, v) in fields {
                    out.push((k.clone(), self.eval(v)?));
                }
                Value::record(out)
            }
            Expr::Map { list, slot, body } => {
                let mut out = vec![];
                for item in items_of(&self.eval(list)?)?.iter() {
                    self.locals[*slot] = item.clone();
                    out.push(self.eval(body)?);
                }
                Value::list(out)
            }
            Expr::Filter { list, slot, body } => {
                let mut out = vec![];
                for item in items_of(&self.eval(list)?)?.iter() {
                    self.locals[*slot] = item.clone();
                    if bool_of(&self.eval(body)?)? {
                        out.push(item.clone());
                    }
                }
                Value::list(out)
            }
            Expr::Fold { list, init, acc, slot, body } => {
                let list = items_of(&self.eval(list)?)?;
                self.locals[*acc] = self.eval(init)?;
                for item in list.iter() {
                    self.locals[*slot] = item.clone();
                    self.locals[*acc] = self.eval(body)?;
                }
                self.locals[*acc].clone()
            }
            Expr::Call { f: Builtin::And, args } => {
                Value::Bool(bool_of(&self.eval(&args[0])?)? && bool_of(&self.eval(&args[1])?)?)
            }
            Expr::Call { f: Builtin::Or, args } => {
                Value::Bool(bool_of(&self.eval(&args[0])?)? || bool_of(&self.eval(&args[1])?)?)
            }
            Expr::Call { f, args } => {
                let args = args.iter().map(|a| self.eval(a)).collect::<Result<Vec<_>, _>>()?;
                self.spend(cost(*f, &args))?;
                apply(*f, &args)?
            }
        })
    }
}

/// What a builtin adds to its own evaluation: the size of what it reads and makes.
fn cost(f: Builtin, args: &[Value]) -> u64 {
    let size = |v: &Value| match v {
        Value::Text(t) => t.len() as u64 / 8,
        Value::List(l) => l.len() as u64,
        _ => 0,
    };
    match (f, args) {
        (Builtin::Range, [Value::Num(n)]) | (Builtin::RandomText, [_, Value::Num(n), _]) => {
            (*n).clamp(0.0, LIMIT as f64) as u64
        }
        (Builtin::EditDistance, [Value::Text(a), Value::Text(b)]) => {
            (a.len() as u64).saturating_mul(b.len() as u64) / 8
        }
        (Builtin::At | Builtin::First | Builtin::Last | Builtin::ListLen | Builtin::IsNone, _) => 0,
        // A short text put in place of each character of a long one.
        (Builtin::Replace, [Value::Text(a), _, Value::Text(b)]) => {
            (a.len() as u64).saturating_mul(b.len() as u64 + 1) / 8
        }
        (Builtin::Join, [Value::List(l), Value::Text(t)]) => {
            l.iter().map(size).sum::<u64>() + l.len() as u64 * (t.len() as u64 / 8 + 1)
        }
        (_, args) => args.iter().map(size).sum(),
    }
}

fn bool_of(v: &Value) -> Result<bool, EvalError> {
    match v {
        Value::Bool(b) => Ok(*b),
        v => Err(EvalError(format!("a condition is a {}, not a bool", v.kind()))),
    }
}

fn items_of(v: &Value) -> Result<std::sync::Arc<Vec<Value>>, EvalError> {
    match v {
        Value::List(l) => Ok(l.clone()),
        v => Err(EvalError(format!("a {} is not a list", v.kind()))),
    }
}

fn num(v: &Value) -> Result<f64, EvalError> {
    match v {
        Value::Num(x) => Ok(*x),
        v => Err(EvalError(format!("a {} is not a number", v.kind()))),
    }
}

fn text(v: &Value) -> Result<&str, EvalError> {
    match v {
        Value::Text(s) => Ok(s),
        v => Err(EvalError(format!("a {} is not text", v.kind()))),
    }
}

fn maybe_text(s: Option<&str>) -> Value {
    s.map_or(Value::None, Value::text)
}

fn texts<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    Value::list(items.into_iter().map(Value::text).collect())
}

/// Longest list or text that a builtin makes.
const LIMIT: usize = 1_000_000;

fn apply(f: Builtin, a: &[Value]) -> Eval {
    use Builtin as B;
    let n = |i: usize| num(&a[i]);
    let t = |i: usize| text(&a[i]);
    Ok(match f {
        B::Add => Value::Num(n(0)? + n(1)?),
        B::Sub => Value::Num(n(0)? - n(1)?),
        B::Mul => Value::Num(n(0)? * n(1)?),
        B::Div => Value::Num(n(0)? / n(1)?),
        B::Mod => Value::Num(n(0)? - n(1)? * (n(0)? / n(1)?).floor()),
        B::Pow => Value::Num(n(0)?.powf(n(1)?)),
        B::Neg => Value::Num(-n(0)?),
        B::Eq => Value::Bool(a[0] == a[1]),
        B::Lt => Value::Bool(n(0)? < n(1)?),
        B::Le => Value::Bool(n(0)? <= n(1)?),
        B::And => Value::Bool(bool_of(&a[0])? && bool_of(&a[1])?),
        B::Or => Value::Bool(bool_of(&a[0])? || bool_of(&a[1])?),
        B::Not => Value::Bool(!bool_of(&a[0])?),
        B::Abs => Value::Num(n(0)?.abs()),
        B::Min => Value::Num(n(0)?.min(n(1)?)),
        B::Max => Value::Num(n(0)?.max(n(1)?)),
        B::Floor => Value::Num(n(0)?.floor()),
        B::Ceil => Value::Num(n(0)?.ceil()),
        B::Round => Value::Num(n(0)?.round_ties_even()),
        B::Sqrt => Value::Num(n(0)?.sqrt()),
        B::Exp => Value::Num(n(0)?.exp()),
        B::Log => Value::Num(n(0)?.ln()),
        B::Cos => Value::Num(n(0)?.cos()),
        B::Sin => Value::Num(n(0)?.sin()),
        B::Number => Value::Num(f64::from(bool_of(&a[0])?)),
        B::Concat => Value::text(&format!("{}{}", t(0)?, t(1)?)),
        B::TextLen => Value::Num(t(0)?.chars().count() as f64),
        B::ListLen => Value::Num(items_of(&a[0])?.len() as f64),
        B::Lower => Value::text(&t(0)?.to_lowercase()),
        B::Upper => Value::text(&t(0)?.to_uppercase()),
        B::Trim => Value::text(t(0)?.trim()),
        B::Split if t(1)?.is_empty() => return Err(EvalError("`split` needs a separator".into())),
        B::Split => texts(t(0)?.split(t(1)?)),
        B::Words => texts(t(0)?.split_whitespace()),
        B::Lines => texts(t(0)?.lines()),
        B::Join => {
            let parts = items_of(&a[0])?;
            let parts = parts.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            Value::text(&parts.join(t(1)?))
        }
        B::Contains => Value::Bool(t(0)?.contains(t(1)?)),
        B::StartsWith => Value::Bool(t(0)?.starts_with(t(1)?)),
        B::EndsWith => Value::Bool(t(0)?.ends_with(t(1)?)),
        B::Replace => Value::text(&t(0)?.replace(t(1)?, t(2)?)),
        B::Chars => {
            Value::list(t(0)?.chars().map(|c| Value::text(c.encode_utf8(&mut [0; 4]))).collect())
        }
        B::Slice => {
            let from = n(1)?.max(0.0) as usize;
            let to = n(2)?.max(0.0) as usize;
            Value::text(&t(0)?.chars().skip(from).take(to.saturating_sub(from)).collect::<String>())
        }
        B::Between => maybe_text(
            t(0)?
                .split_once(t(1)?)
                .and_then(|(_, rest)| Some(rest.split_once(text(&a[2]).ok()?)?.0)),
        ),
        B::AfterLast => maybe_text(t(0)?.rsplit_once(t(1)?).map(|(_, rest)| rest)),
        B::Boxed => maybe_text(boxed(t(0)?)),
        B::Matches => Value::Bool(regex(t(1)?)?.is_match(t(0)?)),
        B::Capture => {
            let re = regex(t(1)?)?;
            maybe_text(re.captures(t(0)?).and_then(|c| Some(c.get(1).or(c.get(0))?.as_str())))
        }
        B::Captures => {
            let re = regex(t(1)?)?;
            texts(re.captures_iter(t(0)?).filter_map(|c| Some(c.get(1).or(c.get(0))?.as_str())))
        }
        B::ParseNumber => parse_number(t(0)?).map_or(Value::None, Value::Num),
        B::Numbers => {
            let re = regex(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")?;
            Value::list(
                re.find_iter(t(0)?)
                    .filter_map(|m| Some(Value::Num(parse_number(m.as_str())?)))
                    .collect(),
            )
        }
        B::ShowNumber => Value::text(&format!("{}", n(0)?)),
        B::At => {
            let list = items_of(&a[0])?;
            let i = n(1)?;
            let i = if i < 0.0 { i + list.len() as f64 } else { i };
            if i < 0.0 { Value::None } else { list.get(i as usize).cloned().unwrap_or(Value::None) }
        }
        B::First => items_of(&a[0])?.first().cloned().unwrap_or(Value::None),
        B::Last => items_of(&a[0])?.last().cloned().unwrap_or(Value::None),
        B::Sort => {
            let mut items = items_of(&a[0])?.to_vec();
            items.sort_by(order);
            Value::list(items)
        }
        B::Reverse => Value::list(items_of(&a[0])?.iter().rev().cloned().collect()),
        B::Zip => {
            let (x, y) = (items_of(&a[0])?, items_of(&a[1])?);
            let pair = |(p, q): (&Value, &Value)| {
                Value::record([("a".to_owned(), p.clone()), ("b".to_owned(), q.clone())])
            };
            Value::list(x.iter().zip(y.iter()).map(pair).collect())
        }
        B::Range => {
            let count = n(0)?;
            if !(0.0..=LIMIT as f64).contains(&count) {
                return Err(EvalError(format!("`range({count})` is outside 0 to {LIMIT}")));
            }
            Value::list((0..count as usize).map(|i| Value::Num(i as f64)).collect())
        }
        B::Sum => {
            let mut total = 0.0;
            for x in items_of(&a[0])?.iter() {
                total += num(x)?;
            }
            Value::Num(total)
        }
        B::Append => {
            let mut x = items_of(&a[0])?.to_vec();
            x.extend(items_of(&a[1])?.iter().cloned());
            if x.len() > LIMIT {
                return Err(EvalError(format!("a list grew past {LIMIT} items")));
            }
            Value::list(x)
        }
        B::IsNone => Value::Bool(a[0] == Value::None),
        B::OrElse | B::TextOr | B::NumberOr => {
            if a[0] == Value::None {
                a[1].clone()
            } else {
                a[0].clone()
            }
        }
        B::Get => match &a[0] {
            Value::Record(r) => r.get(t(1)?).cloned().unwrap_or(Value::None),
            v => return Err(EvalError(format!("`get` is asked of a {}", v.kind()))),
        },
        B::RandomInt => {
            let (low, high) = (n(0)?, n(1)?);
            if high < low {
                return Err(EvalError(format!("`random_int` from {low} to {high} is empty")));
            }
            Value::Num(low + (mix(n(2)?.to_bits()) % ((high - low) as u64 + 1)) as f64)
        }
        B::RandomText => {
            let alphabet: Vec<char> = t(0)?.chars().collect();
            let count = n(1)?;
            if alphabet.is_empty() || !(0.0..=LIMIT as f64).contains(&count) {
                return Err(EvalError(
                    "`random_text` needs an alphabet and a length of 0 to 1,000,000".into(),
                ));
            }
            let key = mix(n(2)?.to_bits());
            let draw = |i: u64| alphabet[(mix(key ^ mix(i + 1)) % alphabet.len() as u64) as usize];
            Value::text(&(0..count as u64).map(draw).collect::<String>())
        }
        B::EditDistance => Value::Num(edit_distance(t(0)?, t(1)?) as f64),
    })
}

/// SplitMix64 (Steele, Lea and Flood 2014): a bijection that scatters its input.
fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A total order: by kind, then by value; records compare equal.
fn order(a: &Value, b: &Value) -> std::cmp::Ordering {
    let rank = |v: &Value| match v {
        Value::None => 0,
        Value::Bool(_) => 1,
        Value::Num(_) => 2,
        Value::Text(_) => 3,
        Value::List(_) => 4,
        Value::Record(_) => 5,
    };
    match (a, b) {
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Num(x), Value::Num(y)) => x.total_cmp(y),
        (Value::Text(x), Value::Text(y)) => x.cmp(y),
        (Value::List(x), Value::List(y)) => x
            .iter()
            .zip(y.iter())
            .map(|(p, q)| order(p, q))
            .find(|o| o.is_ne())
            .unwrap_or(x.len().cmp(&y.len())),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Compiled expressions are kept: a reward uses the same few for every sample.
fn regex(pattern: &str) -> Result<regex::Regex, EvalError> {
    use std::cell::RefCell;
    thread_local! {
        static SEEN: RefCell<Vec<(String, regex::Regex)>> = const { RefCell::new(vec![]) };
    }
    SEEN.with(|seen| {
        let mut seen = seen.borrow_mut();
        if let Some((_, re)) = seen.iter().find(|(p, _)| p == pattern) {
            return Ok(re.clone());
        }
        let re = regex::Regex::new(pattern)
            .map_err(|e| EvalError(format!("bad regular expression `{pattern}`: {e}")))?;
        if seen.len() >= 64 {
            seen.remove(0);
        }
        seen.push((pattern.into(), re.clone()));
        Ok(re)
    })
}

/// `1,024`, `-3.5`, `1e-3`, `3/4`, `50 %`, `$7`; none if anything else is in the text.
fn parse_number(s: &str) -> Option<f64> {
    let s = s.trim().trim_start_matches('$').trim_end_matches('.');
    let (s, percent) = s.strip_suffix('%').map_or((s, false), |s| (s.trim_end(), true));
    let x = match s.split_once('/') {
        Some((p, q)) => {
            let q = parse_decimal(q.trim_start())?;
            (q != 0.0).then_some(parse_decimal(p.trim_end())? / q)?
        }
        None => parse_decimal(s)?,
    };
    Some(if percent { x / 100.0 } else { x })
}

/// Digits with a sign, a fraction, an exponent, and commas anywhere.
fn parse_decimal(s: &str) -> Option<f64> {
    let plain: String = s.chars().filter(|c| *c != ',').collect();
    let ok = !plain.is_empty() && plain.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    if ok { plain.parse().ok() } else { None }
}

fn boxed(s: &str) -> Option<&str> {
    let start = s.rfind("\\boxed{")? + "\\boxed{".len();
    let mut depth = 1;
    for (i, c) in s[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&s[start..start + i]);
        }
    }
    None
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(f: Builtin, args: &[Value]) -> Value {
        apply(f, args).unwrap()
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (s, x) in [
            ("1,024", 1024.0),
            ("-3.5", -3.5),
            ("1e-3", 1e-3),
            ("3/4", 0.75),
            ("50 %", 0.5),
            ("$7.", 7.0),
        ] {
            assert_eq!(run(Builtin::ParseNumber, &[Value::text(s)]), Value::Num(x), "{s}");
        }
        assert_eq!(run(Builtin::ParseNumber, &[Value::text("seven")]), Value::None);
        assert_eq!(run(Builtin::ParseNumber, &[Value::text("1/0")]), Value::None);
        let all = run(Builtin::Numbers, &[Value::text("12+34 is 46, or 1,046.")]);
        assert_eq!(all, Value::list([12.0, 34.0, 46.0, 1046.0].map(Value::Num).to_vec()));
    }

    #[test]
    fn the_last_box_counts_and_braces_nest() {
        let s = Value::text(r"\boxed{1} then \boxed{\frac{1}{2}} done");
        assert_eq!(run(Builtin::Boxed, &[s]), Value::text(r"\frac{1}{2}"));
        assert_eq!(run(Builtin::Boxed, &[Value::text(r"\boxed{1")]), Value::None);
    }

    #[test]
    fn random_text_depends_on_its_key_alone() {
        let draw = |k: f64| {
            run(Builtin::RandomText, &[Value::text("0123456789"), Value::Num(5.0), Value::Num(k)])
        };
        assert_eq!(draw(7.0), draw(7.0));
        assert_ne!(draw(7.0), draw(8.0));
    }

    #[test]
    fn edit_distance_of_the_textbook() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
    }
}
