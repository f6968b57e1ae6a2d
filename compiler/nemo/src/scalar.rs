//! What a plain scalar of a YAML file is: the rules of YAML 1.1 as OmegaConf's loader has them.
//!
//! In: the text of a plain scalar. Out: its value, and a warning where the value is not what the
//! text looks like: `no` is false, `010` is eight, `1:30` is ninety, `None` is a text.
//! `1e-6` is a number here, though not for YAML 1.1 alone: OmegaConf adds that form.

use nrl_rules::settings::Value;

/// The value of a plain scalar; an error says what is wrong with it.
pub(crate) fn read(text: &str) -> Result<Value, &'static str> {
    if matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        return Ok(Value::Null);
    }
    if let Some(flag) = flag(text) {
        return Ok(Value::Bool(flag));
    }
    if let Some(number) = special(text) {
        return Ok(Value::Float(number));
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return match text {
            "=" | "<<" => Err("a lone `=` or `<<` is not a value"),
            _ => Ok(Value::Text(text.to_string())),
        };
    }
    if let Some(number) = float(text) {
        return Ok(Value::Float(number));
    }
    match int(text) {
        Some(Ok(value)) => Ok(value),
        Some(Err(why)) => Err(why),
        None => Ok(Value::Text(text.to_string())),
    }
}

/// What is surprising about how a plain scalar is read.
pub(crate) fn surprise(text: &str, value: &Value) -> Option<(String, String)> {
    let digits = text.trim_start_matches(['+', '-']);
    match value {
        Value::Bool(flag) if !text.eq_ignore_ascii_case(if *flag { "true" } else { "false" }) => {
            let said = format!("`{text}` is the flag {flag}, not a word");
            Some((said, format!("write `{flag}`, or `\"{text}\"` for the word")))
        }
        Value::Int(n) if digits.contains(':') => Some(clock(text, *n as f64)),
        Value::Float(x) if digits.contains(':') => Some(clock(text, *x)),
        Value::Int(n) if octal(digits) && *n != 0 => {
            let plain = digits.trim_start_matches('0');
            let said = format!("`{text}` is {n}: a number that begins with 0 is octal");
            Some((said, format!("write `{plain}` for the decimal number, or `{n}`")))
        }
        Value::Text(_) if text == "None" => {
            let said = format!("`{text}` is a text of four letters, not an absent value");
            Some((said, String::from("write `null`, or `\"None\"` if the text is meant")))
        }
        Value::Text(_) => looks_like_number(text).map(|meant| {
            let said = format!("`{text}` is a text, though it looks like a number");
            (said, format!("write `{meant}`, or `\"{text}\"` if the text is meant"))
        }),
        _ => None,
    }
}

/// What to say of a number such as `5e-6`, which NeMo RL reads as one and other YAML readers as text.
pub(crate) fn undotted(text: &str, value: &Value) -> Option<(String, String)> {
    let Value::Float(_) = value else { return None };
    let (whole, power) = text.split_once(['e', 'E'])?;
    let digits = whole.trim_start_matches(['+', '-']);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let said = format!("`{text}` is written without a dot: other YAML readers take it for a text");
    Some((said, format!("write `{whole}.0e{power}`")))
}

fn clock(text: &str, value: f64) -> (String, String) {
    let said = format!("`{text}` is the number {value}: parts between colons count by sixty");
    (said, format!("write `\"{text}\"` for the text, or `{value}`"))
}

fn octal(digits: &str) -> bool {
    digits.len() > 1
        && digits.starts_with('0')
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

fn looks_like_number(text: &str) -> Option<String> {
    let starts = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    let word = text.trim_start_matches(['+', '-']);
    if matches!(word, "inf" | "nan" | "Inf" | "NaN" | "infinity" | "Infinity") {
        let sign = if text.starts_with('-') { "-" } else { "" };
        return Some(format!("{sign}.{}", word.to_lowercase().get(..3)?));
    }
    if let Some(octal) = word.strip_prefix("0o") {
        return i64::from_str_radix(octal, 8).ok().map(|n| n.to_string());
    }
    let number = text.replace('_', "").parse::<f64>().ok().filter(|x| starts && x.is_finite())?;
    let as_whole = number.fract() == 0.0 && number.abs() < 1e15 && !text.contains(['.', 'e', 'E']);
    Some(if as_whole { format!("{}", number as i64) } else { crate::python::float(number) })
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn special(text: &str) -> Option<f64> {
    match text {
        ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Some(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// `text` without its sign, and the sign.
fn signed(text: &str) -> (&str, f64) {
    match text.strip_prefix('-') {
        Some(rest) => (rest, -1.0),
        None => (text.strip_prefix('+').unwrap_or(text), 1.0),
    }
}

/// Digits with underscores, beginning with a digit.
fn is_digits(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// Digits with single underscores between them.
fn is_strict(text: &str) -> bool {
    is_digits(text) && !text.ends_with('_') && !text.contains("__")
}

/// Parts behind colons: one or two digits below sixty.
fn is_sixtieth(part: &str) -> bool {
    let below = |n: u8| n < 60;
    matches!(part.len(), 1 | 2)
        && part.bytes().all(|b| b.is_ascii_digit())
        && part.parse::<u8>().is_ok_and(below)
}

fn float(text: &str) -> Option<f64> {
    let (body, sign) = signed(text);
    let plain = |s: &str| s.replace('_', "").parse::<f64>().ok();
    if let Some((head, tail)) = body.split_once('.')
        && head.contains(':')
    {
        let mut parts = head.split(':');
        let fits = parts.next().is_some_and(is_digits) && parts.all(is_sixtieth);
        let tail_fits = tail.bytes().all(|b| b.is_ascii_digit() || b == b'_');
        return (fits && tail_fits).then(|| sixty(body) * sign);
    }
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (body, None),
    };
    let unsigned_exponent = match exponent {
        Some(e) => {
            let digits = e.strip_prefix(['+', '-']);
            let all = digits.unwrap_or(e);
            if all.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            digits.is_none()
        }
        None => false,
    };
    let fits = match mantissa.split_once('.') {
        Some(("", tail)) => text.starts_with('.') && is_digits(tail) && !unsigned_exponent,
        Some((head, tail)) => {
            let tail_fits = tail.bytes().all(|b| b.is_ascii_digit() || b == b'_');
            tail_fits && is_digits(head) && (is_strict(head) || !unsigned_exponent)
        }
        None => exponent.is_some() && is_strict(mantissa),
    };
    if fits { plain(body).map(|x| x * sign) } else { None }
}

fn sixty(body: &str) -> f64 {
    let parts = body.split(':').map(|p| p.replace('_', "").parse::<f64>().unwrap_or(0.0));
    parts.fold(0.0, |sum, part| sum * 60.0 + part)
}

fn int(text: &str) -> Option<Result<Value, &'static str>> {
    let (body, sign) = signed(text);
    let empty = "a number without digits";
    let of_base = |digits: &str, base: u32| {
        let digits = digits.replace('_', "");
        if digits.is_empty() { Err(empty) } else { Ok(whole(&digits, base, sign)) }
    };
    let only = |s: &str, ok: fn(u8) -> bool| !s.is_empty() && s.bytes().all(|b| b == b'_' || ok(b));
    if let Some(digits) = body.strip_prefix("0b") {
        return only(digits, |b| matches!(b, b'0' | b'1')).then(|| of_base(digits, 2));
    }
    if let Some(digits) = body.strip_prefix("0x") {
        return only(digits, |b| b.is_ascii_hexdigit()).then(|| of_base(digits, 16));
    }
    if body == "0" {
        return Some(Ok(Value::Int(0)));
    }
    if body.starts_with('0') {
        return only(body, |b| matches!(b, b'0'..=b'7')).then(|| of_base(body, 8));
    }
    if is_digits(body) {
        return Some(of_base(body, 10));
    }
    let mut parts = body.split(':');
    let fits = parts.next().is_some_and(is_digits) && body.contains(':') && parts.all(is_sixtieth);
    fits.then(|| Ok(Value::Int((sixty(body) * sign) as i64)))
}

/// Digits of a base; a number beyond 64 bits becomes a float.
fn whole(digits: &str, base: u32, sign: f64) -> Value {
    let signed = if sign < 0.0 { format!("-{digits}") } else { digits.to_string() };
    match i64::from_str_radix(&signed, base) {
        Ok(n) => Value::Int(n),
        Err(_) => {
            let place = |sum: f64, c: char| {
                sum * f64::from(base) + f64::from(c.to_digit(base).unwrap_or(0))
            };
            Value::Float(digits.chars().fold(0.0, place) * sign)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Right values: what OmegaConf 2.3 with PyYAML 6 loads.
    #[test]
    fn scalars_are_read_as_omegaconf_reads_them() {
        let float = |x: f64| Value::Float(x);
        let text = |s: &str| Value::Text(s.to_string());
        let cases = [
            ("1e-6", float(1e-6)),
            ("1e6", float(1e6)),
            ("1.e3", float(1e3)),
            (".5e3", text(".5e3")),
            (".5e+3", float(500.0)),
            ("+.5", text("+.5")),
            ("1_000", Value::Int(1000)),
            ("0o17", text("0o17")),
            ("017", Value::Int(15)),
            ("08", text("08")),
            ("0x1F", Value::Int(31)),
            ("0b11", Value::Int(3)),
            ("1:30", Value::Int(90)),
            ("1:30.5", float(90.5)),
            ("00:03:00", text("00:03:00")),
            ("4:00:00", Value::Int(14400)),
            ("~", Value::Null),
            ("Null", Value::Null),
            ("nULL", text("nULL")),
            ("-.INF", float(f64::NEG_INFINITY)),
            ("yes", Value::Bool(true)),
            ("On", Value::Bool(true)),
            ("y", text("y")),
            ("2024-01-02", text("2024-01-02")),
            ("1__0", Value::Int(10)),
            ("1_", Value::Int(1)),
            ("-0", Value::Int(0)),
            ("1.", float(1.0)),
            ("1._5", float(1.5)),
            ("0.1_5", float(0.15)),
            ("1e_5", text("1e_5")),
            ("1_0e5", float(1e6)),
            ("_1", text("_1")),
            ("-0x_1", Value::Int(-1)),
        ];
        for (written, value) in cases {
            assert_eq!(read(written).as_ref(), Ok(&value), "{written}");
        }
        assert!(read("=").is_err() && read("0x_").is_err());
        assert_eq!(read("0777777777777777777777777"), Ok(Value::Float(4.722366482869645e21)));
    }

    #[test]
    fn what_looks_like_something_else_is_told() {
        let told = |text: &str| surprise(text, &read(text).unwrap()).map(|(_, help)| help);
        assert_eq!(told("no").unwrap(), "write `false`, or `\"no\"` for the word");
        assert_eq!(told("010").unwrap(), "write `10` for the decimal number, or `8`");
        assert_eq!(told("4:00:00").unwrap(), "write `\"4:00:00\"` for the text, or `14400`");
        assert_eq!(told(".5e3").unwrap(), "write `500.0`, or `\".5e3\"` if the text is meant");
        assert_eq!(told("-inf").unwrap(), "write `-.inf`, or `\"-inf\"` if the text is meant");
        for plain in ["true", "False", "0", "1e-6", "none", "2024-01-02", "a:b", "0x10", "qwen3"] {
            assert_eq!(told(plain), None, "{plain}");
        }
    }
}
