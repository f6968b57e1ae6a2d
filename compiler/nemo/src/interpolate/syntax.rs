//! The grammar of OmegaConf's interpolation: `${a.b}`, `${..x}`, `${mul:${a},2}`, texts around them.
//!
//! In: a text value. Out: its parts. Backslashes before `${` are halved, and an odd number of them
//! makes it plain text; inside arguments a backslash keeps the next sign from ending the argument.

/// A piece of a text.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Part {
    Plain(String),
    /// `${a.b[0]}`: dots in front, then the names.
    Path(usize, Vec<Name>),
    /// `${name:args}`
    Call(String, Vec<Arg>),
}

/// A step of a path: a word, or an interpolation that gives one.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Name {
    Word(String),
    Of(Box<Part>),
}

/// An argument of a resolver.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Arg {
    /// A bare word or several pieces; one plain piece is read as a number, flag or null.
    Bare(Vec<Part>),
    Quoted(Vec<Part>),
    List(Vec<Arg>),
    Map(Vec<(String, Arg)>),
}

/// The deepest nesting of one text.
const DEEPEST: usize = 32;

/// Whether a text holds an interpolation.
pub(crate) fn is_one(text: &str) -> bool {
    text.contains("${")
}

/// The parts of a text; what is wrong with it otherwise.
pub(super) fn parse(text: &str) -> Result<Vec<Part>, String> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.text_until(None)
}

/// The one element that a text holds, as `oc.decode` reads it.
pub(super) fn parse_element(text: &str) -> Result<Arg, String> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.blanks();
    let arg = reader.argument("")?;
    reader.blanks();
    match reader.rest().chars().next() {
        None => Ok(arg),
        Some(c) => Err(format!("`{c}` is left over")),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.eat(sign) {
            return Ok(());
        }
        Err(match self.peek() {
            Some(c) => format!("`{sign}` is needed where `{c}` stands"),
            None => format!("`{sign}` is missing at the end"),
        })
    }

    /// Text with interpolations: all of it, or up to a quote.
    fn text_until(&mut self, quote: Option<char>) -> Result<Vec<Part>, String> {
        let mut parts = vec![];
        let mut plain = String::new();
        loop {
            let slashes = self.rest().len() - self.rest().trim_start_matches('\\').len();
            self.at += slashes;
            let opens = self.rest().starts_with("${");
            let quoted = quote.is_some() && self.peek() == quote;
            let halves = opens || quoted;
            plain.push_str(&"\\".repeat(if halves { slashes / 2 } else { slashes }));
            let escaped = halves && slashes % 2 == 1;
            if opens && !escaped {
                flush(&mut plain, &mut parts);
                parts.push(self.interpolation()?);
                continue;
            }
            match self.peek() {
                Some(_) if quoted && !escaped => {
                    flush(&mut plain, &mut parts);
                    return Ok(parts);
                }
                Some(c) => {
                    plain.push(c);
                    self.at += c.len_utf8();
                    if opens {
                        self.at += 1;
                        plain.push('{');
                    }
                }
                None if quote.is_some() => return Err(String::from("a quote is not closed")),
                None => {
                    flush(&mut plain, &mut parts);
                    return Ok(parts);
                }
            }
        }
    }

    fn interpolation(&mut self) -> Result<Part, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("interpolations are nested deeper than {DEEPEST}"));
        }
        self.expect("${")?;
        self.blanks();
        let part = self.inside()?;
        self.blanks();
        self.expect("}")?;
        self.depth -= 1;
        Ok(part)
    }

    fn inside(&mut self) -> Result<Part, String> {
        let mut dots = 0;
        while self.eat(".") {
            dots += 1;
        }
        let mut names = vec![self.name()?];
        loop {
            if !self.eat(".") && !self.rest().starts_with('[') {
                break;
            }
            names.push(self.name()?);
        }
        self.blanks();
        if dots > 0 || !self.eat(":") {
            return Ok(Part::Path(dots, names));
        }
        let words = names.into_iter().map(|name| match name {
            Name::Word(word) => Ok(word),
            Name::Of(_) => Err(String::from("the name of a function is itself an interpolation")),
        });
        let name = words.collect::<Result<Vec<_>, _>>()?.join(".");
        Ok(Part::Call(name, self.arguments("}")?))
    }

    fn name(&mut self) -> Result<Name, String> {
        if self.eat("[") {
            let name = self.name()?;
            self.expect("]")?;
            return Ok(name);
        }
        if self.rest().starts_with("${") {
            return Ok(Name::Of(Box::new(self.interpolation()?)));
        }
        let ends = |c: char| "\\${}()[]:. \t'\"".contains(c);
        let rest = self.rest();
        // A `$` may stand in a name, but not before a brace.
        let length = rest
            .char_indices()
            .find(|(at, c)| if *c == '$' { rest[at + 1..].starts_with('{') } else { ends(*c) })
            .map_or(rest.len(), |(at, _)| at);
        if length == 0 {
            return Err(match self.peek() {
                Some(c) => format!("a name is needed where `{c}` stands"),
                None => String::from("`}` is missing at the end"),
            });
        }
        self.at += length;
        Ok(Name::Word(rest[..length].to_string()))
    }

    /// Arguments up to a closing sign, which stays.
    fn arguments(&mut self, close: &str) -> Result<Vec<Arg>, String> {
        let mut args = vec![];
        self.blanks();
        if self.rest().starts_with(close) {
            return Ok(args);
        }
        loop {
            self.blanks();
            args.push(self.argument(close)?);
            self.blanks();
            if !self.eat(",") {
                return Ok(args);
            }
        }
    }

    fn argument(&mut self, close: &str) -> Result<Arg, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("interpolations are nested deeper than {DEEPEST}"));
        }
        let arg = match self.peek() {
            Some(quote @ ('\'' | '"')) => {
                self.at += 1;
                let parts = self.text_until(Some(quote))?;
                self.at += 1;
                Arg::Quoted(parts)
            }
            Some('[') => {
                self.at += 1;
                let items = self.arguments("]")?;
                self.expect("]")?;
                Arg::List(items)
            }
            Some('{') => {
                self.at += 1;
                let pairs = self.pairs()?;
                self.expect("}")?;
                Arg::Map(pairs)
            }
            _ => Arg::Bare(self.bare(close)?),
        };
        self.depth -= 1;
        Ok(arg)
    }

    fn pairs(&mut self) -> Result<Vec<(String, Arg)>, String> {
        let mut pairs = vec![];
        self.blanks();
        while !self.rest().starts_with('}') {
            let Some(length) = self.rest().find(':') else {
                return Err(String::from("`:` is missing after a key"));
            };
            let key = self.rest()[..length].trim().to_string();
            self.at += length + 1;
            self.blanks();
            pairs.push((key, self.argument("}")?));
            self.blanks();
            if !self.eat(",") {
                break;
            }
            self.blanks();
        }
        Ok(pairs)
    }

    fn bare(&mut self, close: &str) -> Result<Vec<Part>, String> {
        let mut parts = vec![];
        let mut plain = String::new();
        loop {
            if self.rest().starts_with("${") {
                flush(&mut plain, &mut parts);
                parts.push(self.interpolation()?);
                continue;
            }
            match self.peek() {
                None if close.is_empty() => break,
                None => return Err(format!("`{close}` is missing at the end")),
                Some(',' | '}' | ']') => break,
                Some('\\') => {
                    let next = self.rest()[1..].chars().next();
                    let kept = next.filter(|c| "\\()[]{}:=, \t".contains(*c));
                    plain.push(kept.unwrap_or('\\'));
                    self.at += 1 + kept.map_or(0, char::len_utf8);
                }
                Some(c @ ('(' | ')' | '[' | '{' | '\'' | '"')) => {
                    return Err(format!("`{c}` must be quoted inside an argument"));
                }
                Some(c) => {
                    plain.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        let end = plain.trim_end().len();
        plain.truncate(end);
        flush(&mut plain, &mut parts);
        Ok(parts)
    }
}

fn flush(plain: &mut String, parts: &mut Vec<Part>) {
    if !plain.is_empty() {
        parts.push(Part::Plain(std::mem::take(plain)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(s: &str) -> Name {
        Name::Word(s.to_string())
    }

    #[test]
    fn paths_calls_and_escapes() {
        let path = |dots, names: &[&str]| Part::Path(dots, names.iter().map(|n| word(n)).collect());
        assert_eq!(parse("${a.b[0]}"), Ok(vec![path(0, &["a", "b", "0"])]));
        assert_eq!(parse("${..x}"), Ok(vec![path(2, &["x"])]));
        let plain = |s: &str| Part::Plain(s.to_string());
        assert_eq!(parse("x ${a} y"), Ok(vec![plain("x "), path(0, &["a"]), plain(" y")]));
        assert_eq!(parse(r"\${a}"), Ok(vec![plain("${a}")]));
        assert_eq!(parse(r"\\${a}"), Ok(vec![plain("\\"), path(0, &["a"])]));
        let two = Arg::Bare(vec![plain("2")]);
        let call = Part::Call(String::from("mul"), vec![Arg::Bare(vec![path(0, &["a"])]), two]);
        assert_eq!(parse("${mul:${a}, 2}"), Ok(vec![call]));
        let nested = Part::Path(0, vec![word("a"), Name::Of(Box::new(path(0, &["b"])))]);
        assert_eq!(parse("${a.${b}}"), Ok(vec![nested]));
        for wrong in ["${", "${}", "${a", "${a:", "${a:'x}", "${a b}", "${a:(}"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&"${a.".repeat(10_000)).is_err());
    }
}
