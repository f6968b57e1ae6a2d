//! Pest's findings in the words of a user.
//!
//! In: where reading stopped and the rules that would have gone on. Out: one diagnostic that says
//! what was expected, what stands there, and, for the slips people make, what to type.

use nrl_base::{Diagnostic, Span, nearest};
use nrl_grammar::Rule;
use pest::error::{Error, ErrorVariant, InputLocation};

/// The piece of masked text that was read, and where it lies in the source.
pub(crate) struct Piece<'a> {
    pub span: Span,
    pub masked: &'a str,
    /// The source behind it, byte for byte.
    pub original: &'a str,
    /// What the piece should have been.
    pub place: Place,
}

/// What is read one at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Item,
    Statement,
    Member,
    Field,
    Variant,
    Rule,
    Signature,
    Arm,
    Expression,
    Type,
    Override,
    Setting,
}

impl Place {
    fn openers(self) -> &'static [&'static str] {
        match self {
            Place::Item => &[
                "use", "fn", "extern", "model", "record", "enum", "plan", "mesh", "pool", "view",
                "recipe", "rollout", "test", "type",
            ],
            Place::Statement => &[
                "run",
                "seed",
                "place",
                "freeze",
                "phase",
                "step",
                "every",
                "from",
                "halt",
                "require",
                "expect",
                "assert",
                "fails",
                "assume",
                "checkpoint",
                "update",
                "publish",
                "set",
                "append",
                "remove",
                "mesh",
                "pool",
                "view",
                "plan",
                "let",
            ],
            Place::Member => &["dim", "param", "fn", "let"],
            Place::Rule => &["recompute", "reduce", "state", "offload"],
            Place::Signature => &["fn"],
            _ => &[],
        }
    }
}

/// One diagnostic for a piece that could not be read.
pub(crate) fn explain(piece: &Piece<'_>, error: &Error<Rule>) -> Diagnostic {
    let at = match error.location {
        InputLocation::Pos(at) => at,
        InputLocation::Span((start, _)) => start,
    };
    let (at, found) = found(piece, at);
    let expected = expected(piece, error);
    habit(piece, at, &found).unwrap_or_else(|| plain(piece, at, &found, &expected))
}

/// What stands where reading stopped.
struct Found {
    text: String,
    length: usize,
}

impl Found {
    fn shown(&self) -> String {
        if self.text.is_empty() {
            String::from("the end of the line")
        } else {
            format!("`{}`", self.text)
        }
    }
}

fn found(piece: &Piece<'_>, at: usize) -> (usize, Found) {
    let rest = piece.masked.get(at..).unwrap_or("");
    let at = at + (rest.len() - rest.trim_start_matches(' ').len());
    let rest = piece.masked.get(at..).unwrap_or("");
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let length = match rest.chars().next() {
        None | Some('\n') => 0,
        Some('"') => rest[1..].find('"').map_or(1, |end| end + 2),
        Some(c) if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
        Some(_) => ["..=", "->", "==", "!=", "<=", ">=", "..", "//"]
            .iter()
            .find(|symbol| rest.starts_with(**symbol))
            .map_or(1, |symbol| symbol.len()),
    };
    let text = piece.original.get(at..at + length).unwrap_or("");
    (at, Found { text: text.to_string(), length })
}

fn expected(piece: &Piece<'_>, error: &Error<Rule>) -> Vec<String> {
    let ErrorVariant::ParsingError { positives, .. } = &error.variant else { return Vec::new() };
    let operand = positives.contains(&Rule::neg_op) && positives.contains(&Rule::number);
    let mut words: Vec<String> = Vec::new();
    for rule in positives {
        let word = match (rule.keyword(), rule.describe()) {
            _ if operand && starts_operand(*rule) => String::from("an expression"),
            (Some(keyword), _) => format!("`{keyword}`"),
            (None, Some(text)) => text.to_string(),
            (None, None) => continue,
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let operator = words.iter().any(|word| word == OPERATOR);
    let first = piece.masked.split_whitespace().next().unwrap_or("");
    let keyword = piece.place == Place::Statement && piece.place.openers().contains(&first);
    let minor = |word: &String| match word.as_str() {
        OPERATOR | END => true,
        "a unit" | "`from`" | "`with`" | "`of`" | "`->`" => operator,
        "`=`" | "`:`" => keyword,
        _ => false,
    };
    if words.iter().all(minor) {
        let sign = |word: &&String| matches!(word.as_str(), "`=`" | "`:`");
        let signs: Vec<String> = words.iter().filter(sign).cloned().collect();
        if !signs.is_empty() {
            return signs;
        }
        let rest = if operator { OPERATOR } else { END };
        return match words.as_slice() {
            [_] => words,
            _ if operator || words.iter().any(|word| word == END) => vec![rest.to_string()],
            _ => words,
        };
    }
    words.retain(|word| !minor(word));
    words
}

/// Whether the rule is one of the many ways an expression starts.
fn starts_operand(found: Rule) -> bool {
    matches!(
        found,
        Rule::name
            | Rule::number
            | Rule::text
            | Rule::kw_collect
            | Rule::kw_for
            | Rule::kw_if
            | Rule::kw_match
            | Rule::kw_rest
            | Rule::kw_scan
            | Rule::neg_op
            | Rule::not_op
            | Rule::some_op
            | Rule::bool_lit
            | Rule::none_lit
            | Rule::lambda
            | Rule::tuple
            | Rule::list
            | Rule::record
            | Rule::block
            | Rule::block_expr
            | Rule::name_expr
    )
}

const OPERATOR: &str = "an operator";
const END: &str = "the end of the line";

fn plain(piece: &Piece<'_>, at: usize, found: &Found, expected: &[String]) -> Diagnostic {
    let shown = found.shown();
    let goes_on = matches!(expected, [only] if only == OPERATOR || only == END);
    let message = match expected {
        [] => format!("{shown} cannot stand here"),
        _ if goes_on && found.length == 0 => String::from("this line is not complete"),
        _ if goes_on => format!("{shown} cannot follow here"),
        [one] => format!("expected {one}, found {shown}"),
        [start @ .., last] if expected.len() <= 5 => {
            format!("expected {} or {last}, found {shown}", start.join(", "))
        }
        _ => format!("{shown} cannot stand here"),
    };
    let label = match expected {
        _ if goes_on => format!("expected {}", what_may_follow(piece, at)),
        _ if found.length == 0 => String::from("the line ends here"),
        _ => String::from("unexpected"),
    };
    Diagnostic::error("syntax", message)
        .label(span(piece, at, found.length), label)
        .help_opt(advice(piece, at, found, expected))
}

/// What may stand behind a complete expression, by the bracket around it.
fn what_may_follow(piece: &Piece<'_>, at: usize) -> &'static str {
    let mut open = Vec::new();
    for byte in piece.masked.bytes().take(at) {
        match byte {
            b'(' | b'[' | b'{' => open.push(byte),
            b')' | b']' | b'}' => {
                open.pop();
            }
            _ => {}
        }
    }
    match open.last() {
        Some(b'(') => "an operator, `,` or `)`",
        Some(b'[') => "an operator, `,` or `]`",
        _ => "an operator or a new line",
    }
}

/// A near word if there is one, else the form of the statement.
fn advice(piece: &Piece<'_>, at: usize, found: &Found, expected: &[String]) -> Option<String> {
    if let Some(missing) = missing(piece, at, found, expected) {
        return Some(missing);
    }
    let quoted = expected.iter().filter_map(|word| word.strip_prefix('`')?.strip_suffix('`'));
    let words = quoted.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    if let Some(known) = nearest(&found.text, words) {
        return Some(format!("did you mean `{known}`?"));
    }
    let first = piece.masked.get(..at).unwrap_or("").split_whitespace().next().unwrap_or("");
    let word = if first.is_empty() { found.text.as_str() } else { first };
    let openers = piece.place.openers();
    match nearest(word, openers.iter().copied()) {
        Some(known) if !openers.contains(&word) => Some(format!("did you mean `{known}`?")),
        _ => form(piece.place, first).map(|form| format!("the form is `{form}`")),
    }
}

/// A sign that was left out between two words, or a value where a type stands.
fn missing(piece: &Piece<'_>, at: usize, found: &Found, expected: &[String]) -> Option<String> {
    let before = piece.masked.get(..at)?.trim_end();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = before.rsplit(|c: char| !word(c)).next().filter(|n| !n.is_empty());
    match expected {
        [only] if only == "`:`" && found.text.starts_with(word) => {
            let behind = piece.masked.get(at + found.length..)?.trim_start();
            let name = name?;
            Some(match behind.starts_with(':') {
                true => format!("write a comma: `{name}, {}: ..`", found.text),
                false => format!("write `{name}: {}`", found.text),
            })
        }
        [only] if only == "a type" && found.text.starts_with(|c: char| c.is_ascii_digit()) => {
            let name = before.strip_suffix(':')?.trim_end();
            let name = name.rsplit(|c: char| !word(c)).next()?;
            Some(format!("a value stands behind `=`: `{name} = ..`"))
        }
        _ => None,
    }
}

fn span(piece: &Piece<'_>, at: usize, length: usize) -> Span {
    let (source, start) = (piece.span.source, piece.span.start as usize);
    let text = piece.original.trim_end();
    if at < text.len() {
        let end = (at + length.max(1)).min(text.len());
        return Span::new(source, start + at, start + end);
    }
    // Nothing is left to point at: point at the last character instead.
    let last = text.chars().next_back().map_or(0, char::len_utf8);
    Span::new(source, start + text.len() - last, start + text.len())
}

/// What people write who come from other languages.
fn habit(piece: &Piece<'_>, at: usize, found: &Found) -> Option<Diagnostic> {
    let first = piece.masked.split_whitespace().next().unwrap_or("");
    let (message, help) = match (piece.place, first) {
        (Place::Item, "import") => ("a library is taken in with `use`", "write `use std.{grpo}`"),
        (_, "def" | "function" | "func") => ("a function is written `fn`", "write `fn`"),
        (Place::Item, "struct" | "class" | "type")
            if first != "type" || piece.masked.split_whitespace().nth(2) == Some("{") =>
        {
            ("a record is written `record`", "write `record Name { field: type }`")
        }
        (Place::Item | Place::Statement, "const" | "var") => {
            ("a name is bound with `=` alone", "write `name = value`")
        }
        (Place::Statement, "return") => {
            ("there is no `return`: the last line is the value", "remove `return`")
        }
        (Place::Statement, "each" | "foreach") => {
            ("what happens every so often begins with `every`", "write `every 5 steps { ... }`")
        }
        (Place::Statement, "while" | "loop") => {
            ("there are no unbounded loops", "write `for x in a..b { ... }`")
        }
        (Place::Item, "step" | "run" | "every" | "place" | "phase" | "halt") => {
            ("this belongs inside a recipe", "put it into `recipe name { ... }`")
        }
        _ => return assigned(piece, at, found),
    };
    let start = piece.masked.len() - piece.masked.trim_start().len();
    Some(
        Diagnostic::error("syntax", message)
            .label(span(piece, start, first.len()), "cannot start a line here")
            .help(help),
    )
}

fn assigned(piece: &Piece<'_>, at: usize, found: &Found) -> Option<Diagnostic> {
    let (message, help) = match found.text.as_str() {
        "=" if piece.place == Place::Statement => {
            ("only a name can stand before `=`", "write `name = value`, or `==` to compare")
        }
        "=" => {
            ("`=` cannot stand here", "write `name: value` in calls and records, `==` to compare")
        }
        "elif" | "elsif" => ("a second condition is written `else if`", "write `else if`"),
        "lambda" => ("a function value is written `x -> value`", "write `x -> value`"),
        "..." => ("`...` leaves something out", "write the missing part"),
        _ => return None,
    };
    let label = "not understood here";
    Some(
        Diagnostic::error("syntax", message).label(span(piece, at, found.length), label).help(help),
    )
}

/// The usual form of what starts with a word.
fn form(place: Place, word: &str) -> Option<&'static str> {
    let statement = matches!(place, Place::Statement | Place::Item);
    Some(match word {
        "run" if statement => "run 500 steps within 13 h, seed 42",
        "place" if statement => "place policy on train by plans.fsdp()",
        "mesh" => "mesh train = gpus axes (dp: rest, tp: 2)",
        "pool" => "pool a, b = gpus split (4 nodes, rest)",
        "view" => "view x of m(dp, tp) = (edp: rest, ep: 4)",
        "phase" if statement => "phase sft for 300 steps { ... }",
        "step" if statement => "step { ... }",
        "every" if statement => "every 10 steps { ... }",
        "from" if statement => "from step 20 { ... }",
        "halt" if statement => "halt when r.std == 0 for 5 steps",
        "require" if statement => "require peak_memory <= 92 % of device",
        "assume" if statement => "assume lengths = lognormal(mean: 700 tokens, p99: 2400 tokens)",
        "checkpoint" if statement => "checkpoint keep 3 by test.accuracy, and the latest",
        "update" if statement => {
            "update policy by opt in 2 updates, 8192 tokens/microbatch, minimising { ... }"
        }
        "set" if statement => "set step.s.max_new = 512 tokens",
        "use" => "use std.{grpo, optim}",
        "fn" => "fn name(x: f32[tok]) -> f32[tok] { ... }",
        "extern" => "extern fn name(s: Sample) -> float from \"python my.py\" timeout 2 s",
        "model" => "model name(cfg: Config) { ... }",
        "record" => "record Name { field: type = default }",
        "enum" => "enum Name { one, two }",
        "plan" => "plan name(sp: bool) { ... }",
        "recipe" => "recipe name { ... }",
        "dim" => "dim d = cfg.hidden_size, f = 4 * d",
        "param" => "param wq: [q, hd, d] from \"model.layers.{i}.q.weight\"",
        _ if place == Place::Rule => "tok: @tp if sp",
        "type" if place == Place::Item => "type Share = float in 0..1",
        "assert" if statement => "assert a == b within 1e-6",
        "fails" if statement => "fails wrong-type { f(x) }",
        "test" if place == Place::Item => "test \"what holds\" { assert a == b }",
        _ => return None,
    })
}
