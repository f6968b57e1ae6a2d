//! Values as Python prints and parses them, since NeMo RL joins texts and reads arguments so.

use nrl_rules::settings::Value;

/// `str(value)`.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => repr(other),
    }
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> String {
    match value {
        Value::Null => String::from("None"),
        Value::Bool(true) => String::from("True"),
        Value::Bool(false) => String::from("False"),
        Value::Int(n) => n.to_string(),
        Value::Float(x) => float(*x),
        Value::Text(text) if text.contains('\'') && !text.contains('"') => format!("\"{text}\""),
        Value::Text(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::List(items) => {
            let items: Vec<_> = items.iter().map(|item| repr(&item.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let pairs = map
                .iter()
                .map(|(k, v)| format!("{}: {}", repr(&Value::Text(k.clone())), repr(&v.value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A float: the fewest digits that give it back, an exponent below 1e-4 and from 1e16.
pub(crate) fn float(x: f64) -> String {
    if x.is_nan() {
        return String::from("nan");
    }
    if x.is_infinite() {
        return String::from(if x > 0.0 { "inf" } else { "-inf" });
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let short = format!("{x:e}");
        let (mantissa, exponent) = short.split_once('e').unwrap_or((&short, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let short = x.to_string();
    if short.contains('.') { short } else { short + ".0" }
}

/// The value of an unquoted word of OmegaConf's and Hydra's grammars: null, a flag, a number, a text.
pub(crate) fn literal(text: &str) -> Value {
    if text.eq_ignore_ascii_case("null") {
        return Value::Null;
    }
    if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
        return Value::Bool(text.eq_ignore_ascii_case("true"));
    }
    number(text).unwrap_or_else(|| Value::Text(text.to_string()))
}

fn number(text: &str) -> Option<Value> {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let word = body.to_ascii_lowercase();
    if word == "inf" || word == "nan" {
        return text.parse().ok().map(Value::Float);
    }
    if !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if is_whole(body) {
        let digits = text.replace('_', "");
        let whole = digits.parse::<i64>().map(Value::Int);
        return whole.or_else(|_| digits.parse().map(Value::Float)).ok();
    }
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (body, None),
    };
    let point = match mantissa.split_once('.') {
        Some((head, tail)) => {
            (head.is_empty() || is_whole(head))
                && (is_run(tail) || (tail.is_empty() && !head.is_empty()))
        }
        None => exponent.is_some() && is_whole(mantissa),
    };
    let power = exponent.is_none_or(|e| is_run(e.strip_prefix(['+', '-']).unwrap_or(e)));
    (point && power).then(|| text.replace('_', "").parse().ok().map(Value::Float)).flatten()
}

/// Digits with single underscores between them.
fn is_run(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    ends(text.chars().next())
        && ends(text.chars().last())
        && !text.contains("__")
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// A whole number without leading zeros.
fn is_whole(text: &str) -> bool {
    is_run(text) && (text == "0" || !text.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Right values: `str()` of CPython 3.11.
    #[test]
    fn floats_are_printed_as_python_prints_them() {
        let cases = [(1.0, "1.0"), (1e-6, "1e-06"), (0.0001, "0.0001"), (1.5e-5, "1.5e-05")];
        for (x, said) in cases.into_iter().chain([(1e16, "1e+16"), (123456.5, "123456.5")]) {
            assert_eq!(float(x), said);
        }
    }

    #[test]
    fn words_are_read_as_hydra_reads_them() {
        assert_eq!(literal("1_000"), Value::Int(1000));
        assert_eq!(literal("0123"), Value::Text(String::from("0123")));
        assert_eq!(literal("1e-6"), Value::Float(1e-6));
        assert_eq!(literal("-inf"), Value::Float(f64::NEG_INFINITY));
        assert_eq!(literal("TRUE"), Value::Bool(true));
        assert_eq!(literal("1."), Value::Float(1.0));
        assert_eq!(literal("yes"), Value::Text(String::from("yes")));
    }
}
