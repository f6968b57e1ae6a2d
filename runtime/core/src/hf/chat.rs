//! Chat templates.
//!
//! In: a list of messages and the template of the model directory (`chat_template` of tokenizer_config.json, or the
//! file chat_template.jinja). Out: the text transformers would render, and its ids. Rendered text is encoded without
//! the tokenizer's own special tokens, since the template writes them: a probe at load makes sure that no prompt
//! begins with the begin token twice.

use std::path::{Path, PathBuf};

use minijinja::value::{Kwargs, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Value, json};
use thiserror::Error as ThisError;

use super::tokenizer::{Tokenizer, TokenizerError};

/// A template that cannot be used, or messages that it refuses.
#[derive(Debug, ThisError)]
pub enum ChatError {
    /// The template has a syntax error.
    #[error("the chat template of {path} is broken: {reason}")]
    Template { path: PathBuf, reason: String },
    /// Rendering failed; templates refuse some lists of messages by themselves.
    #[error("the chat template of {path} refuses these messages: {reason}")]
    Render { path: PathBuf, reason: String },
    /// The begin token comes twice.
    #[error(
        "the chat template of {path} makes every prompt begin with {token} (id {id}) twice; remove one of the two from \
         the template"
    )]
    DoubleBos { path: PathBuf, token: String, id: u32 },
    /// There is no template.
    #[error(
        "{path} has no chat template; use plain text prompts, or add chat_template.jinja to the directory"
    )]
    None { path: PathBuf },
    /// The rendered text has no ids.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl ChatError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            ChatError::DoubleBos { .. } => "double-bos",
            ChatError::None { .. } => "no-chat-template",
            ChatError::Render { .. } => "chat-template-refuses",
            ChatError::Template { .. } => "bad-chat-template",
            ChatError::Tokenizer(e) => e.code(),
        }
    }
}

/// One message as templates expect it.
pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// A compiled template with the special tokens it may write.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    specials: Vec<(String, String)>,
    path: PathBuf,
}

impl ChatTemplate {
    /// Reads the template of a model directory, if it has one, and probes it.
    pub fn open(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, ChatError> {
        let file = dir.join("chat_template.jinja");
        if let Ok(source) = std::fs::read_to_string(&file) {
            return ChatTemplate::new(source, None, &file, tokenizer).map(Some);
        }
        let path = dir.join("tokenizer_config.json");
        let named = |list: &[Value], name: &str| {
            let entry = list.iter().find(|t| t["name"] == name)?;
            entry["template"].as_str().map(String::from)
        };
        match tokenizer.config().get("chat_template") {
            Some(Value::String(source)) => {
                ChatTemplate::new(source.clone(), None, &path, tokenizer).map(Some)
            }
            Some(Value::Array(list)) => match named(list, "default") {
                Some(source) => {
                    ChatTemplate::new(source, named(list, "tool_use"), &path, tokenizer).map(Some)
                }
                None => Err(ChatError::Template {
                    path,
                    reason: "none of its templates is named `default`".into(),
                }),
            },
            _ => Ok(None),
        }
    }

    /// Compiles `source`; `path` is for messages.
    pub fn new(
        source: String,
        tool_use: Option<String>,
        path: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, ChatError> {
        let mut env = environment();
        let named = [("default", Some(source)), ("tool_use", tool_use)];
        for (name, source) in named.into_iter().filter_map(|(n, s)| Some((n, s?))) {
            env.add_template_owned(name, without_generation_tags(&source))
                .map_err(|e| ChatError::Template { path: path.into(), reason: describe(&e) })?;
        }
        let specials =
            tokenizer.specials().iter().map(|s| (s.role.clone(), s.text.clone())).collect();
        let template = ChatTemplate { env, specials, path: path.into() };
        template.probe(tokenizer)?;
        Ok(template)
    }

    /// The text of a conversation; `add_generation_prompt` opens the assistant's turn.
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with(messages, add_generation_prompt, None)
    }

    /// The text of a conversation in which `tools` (JSON schemas) may be called.
    pub fn render_with(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        tools: Option<&Value>,
    ) -> Result<String, ChatError> {
        let mut context = json!({
            "messages": messages, "tools": tools, "documents": null, "add_generation_prompt": add_generation_prompt
        });
        for (role, text) in &self.specials {
            context[role] = text.clone().into();
        }
        let failed = |e: Error| ChatError::Render { path: self.path.clone(), reason: describe(&e) };
        let name = if tools.is_some() && self.env.get_template("tool_use").is_ok() {
            "tool_use"
        } else {
            "default"
        };
        self.env.get_template(name).and_then(|t| t.render(&context)).map_err(failed)
    }

    /// The ids of a conversation: rendered, then encoded without special tokens of the tokenizer's own.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, ChatError> {
        Ok(tokenizer.encode(&self.render(messages, add_generation_prompt)?, false)?)
    }

    /// Renders a probe chat; a template that refuses it is not judged.
    fn probe(&self, tokenizer: &Tokenizer) -> Result<(), ChatError> {
        let Some(bos) = tokenizer.special("bos_token") else { return Ok(()) };
        let Ok(ids) = self.encode(tokenizer, &[message("user", "x")], true) else { return Ok(()) };
        if ids.len() > 1 && ids[..2] == [bos.id; 2] {
            return Err(ChatError::DoubleBos {
                path: self.path.clone(),
                token: bos.text.clone(),
                id: bos.id,
            });
        }
        Ok(())
    }
}

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::None => write_text(out, "None"),
        ValueKind::Bool => write_text(out, if value.is_true() { "True" } else { "False" }),
        _ => minijinja::escape_formatter(out, state, value),
    });
    env.add_function("raise_exception", |text: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    env.add_function("strftime_now", |format: String| strftime(&format, now()));
    env.add_filter("tojson", tojson);
    env
}

fn write_text(out: &mut minijinja::Output, text: &str) -> Result<(), Error> {
    out.write_str(text).map_err(|e| Error::new(ErrorKind::WriteFailure, e.to_string()))
}

/// The deepest cause alone: what `raise_exception` was given, or what went wrong and where.
fn describe(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    error.line().map_or(what.clone(), |line| format!("{what} (line {line})"))
}

/// `{% generation %}` marks the assistant's tokens for transformers and writes nothing; both tags become a plain `if`.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|e| at + e + 2) else { break };
        let tag = &rest[at..end];
        let word = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        let replaced = match word {
            "generation" => tag.replacen("generation", "if true", 1),
            "endgeneration" => tag.replacen("endgeneration", "endif", 1),
            _ => tag.into(),
        };
        out.push_str(&rest[..at]);
        out.push_str(&replaced);
        rest = &rest[end..];
    }
    out + rest
}

/// `json.dumps` with the arguments that transformers' filter takes.
fn tojson(value: Jinja, kwargs: Kwargs) -> Result<String, Error> {
    let bad = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let value = if value.is_undefined() {
        Value::Null
    } else {
        serde_json::to_value(&value).map_err(bad)?
    };
    let indent: Option<usize> = kwargs.get("indent")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let pair = separators.filter(|s| s.len() == 2);
    let comma = if indent.is_some() { "," } else { ", " };
    let [comma, colon] =
        pair.map_or([comma.to_string(), ": ".to_string()], |s| [s[0].clone(), s[1].clone()]);
    let style = Style {
        indent,
        comma,
        colon,
        sort: sort_keys.unwrap_or(false),
        ascii: ascii.unwrap_or(false),
    };
    let mut out = String::new();
    style.write(&value, 0, &mut out);
    Ok(out)
}

struct Style {
    indent: Option<usize>,
    comma: String,
    colon: String,
    sort: bool,
    ascii: bool,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Array(list) => {
                let items = list.iter().map(|v| (None, v)).collect();
                self.write_items(('[', ']'), items, depth, out);
            }
            Value::Object(table) => {
                let mut items: Vec<_> = table.iter().map(|(k, v)| (Some(k.as_str()), v)).collect();
                if self.sort {
                    items.sort_by_key(|i| i.0);
                }
                self.write_items(('{', '}'), items, depth, out);
            }
            Value::String(text) => self.write_string(text, out),
            Value::Number(n) => out.push_str(&python_number(&n.to_string())),
            other => out.push_str(&other.to_string()),
        }
    }

    fn write_items(
        &self,
        ends: (char, char),
        items: Vec<(Option<&str>, &Value)>,
        depth: usize,
        out: &mut String,
    ) {
        out.push(ends.0);
        let empty = items.is_empty();
        for (i, (key, value)) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            self.line(depth + 1, out);
            if let Some(key) = key {
                self.write_string(key, out);
                out.push_str(&self.colon);
            }
            self.write(value, depth + 1, out);
        }
        if !empty {
            self.line(depth, out);
        }
        out.push(ends.1);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(width) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        for c in Value::from(text).to_string().chars() {
            if self.ascii && !c.is_ascii() {
                let mut units = [0; 2];
                out.extend(c.encode_utf16(&mut units).iter().map(|u| format!("\\u{u:04x}")));
            } else {
                out.push(c);
            }
        }
    }
}

/// Python writes `1e-07` and `1e+16` where Rust writes `1e-7` and `1e16`.
fn python_number(text: &str) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else { return text.into() };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(d) => ('-', d),
        None => ('+', exponent.trim_start_matches('+')),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Date and time in UTC by the codes that templates use; unknown codes stay as they are.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (weekday, name) = (DAYS[(days % 7) as usize], MONTHS[month - 1]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('b') => out.push_str(&name[..3]),
            Some('B') => out.push_str(name),
            Some('a') => out.push_str(&weekday[..3]),
            Some('A') => out.push_str(weekday),
            Some('H') => out.push_str(&format!("{:02}", rest / 3600)),
            Some('M') => out.push_str(&format!("{:02}", rest / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", rest % 60)),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month (1-12) and day of a number of days since 1970-01-01.
fn civil(mut days: u64) -> (u64, usize, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tests::write_small;
    use super::*;

    fn tokenizer(config: Value) -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        write_small(dir.path(), config);
        let tokenizer = Tokenizer::open(dir.path()).unwrap();
        (dir, tokenizer)
    }

    fn template(source: &str) -> Result<ChatTemplate, ChatError> {
        let (_dir, t) = tokenizer(json!({"bos_token": "<s>", "eos_token": "</s>"}));
        ChatTemplate::new(source.into(), None, Path::new("m/tokenizer_config.json"), &t)
    }

    fn render(source: &str, messages: &[Value]) -> String {
        template(source).unwrap().render(messages, true).unwrap()
    }

    /// Case c59.
    #[test]
    fn one_bos_in_a_chat_and_one_in_plain_text() {
        let source = "{{ bos_token }}U:{{ messages[0].content }}A:";
        let (dir, t) =
            tokenizer(json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": source}));
        let chat = ChatTemplate::open(dir.path(), &t).unwrap().unwrap();
        let ids = chat.encode(&t, &[message("user", "x")], true).unwrap();
        assert_eq!(ids, [0, 6, 8, 9, 7, 8]);
        assert_eq!(t.encode("x", true).unwrap(), [0, 9]);
        let e =
            template("{{ bos_token }}{{ bos_token }}U:{{ messages[0].content }}A:").unwrap_err();
        assert_eq!(e.code(), "double-bos");
        assert!(e.to_string().contains("begin with <s> (id 0) twice"), "{e}");
    }

    #[test]
    fn templates_come_from_three_places() {
        let list =
            json!([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]);
        let (dir, t) = tokenizer(json!({"chat_template": list}));
        let chat = ChatTemplate::open(dir.path(), &t).unwrap().unwrap();
        assert_eq!(chat.render(&[], true).unwrap(), "D");
        assert_eq!(chat.render_with(&[], true, Some(&json!([]))).unwrap(), "T");
        std::fs::write(dir.path().join("chat_template.jinja"), "F\n").unwrap();
        let chat = ChatTemplate::open(dir.path(), &t).unwrap().unwrap();
        assert_eq!(chat.render(&[], true).unwrap(), "F");
        let (dir, t) = tokenizer(json!({}));
        assert!(ChatTemplate::open(dir.path(), &t).unwrap().is_none());
    }

    #[test]
    fn whitespace_and_loops_follow_transformers() {
        let source = "{% for m in messages %}\n  {% if loop.first and m.role != 'system' %}\nS\n{% endif %}\n\
            {% generation %}{{ m['role'] + ':' + m['content'].strip() }}{% endgeneration %}\n{% endfor %}\n\
            {% if add_generation_prompt %}\nA:{% endif %}";
        let messages = [message("user", " a "), message("assistant", "b")];
        assert_eq!(render(source, &messages), "S\nuser:aassistant:bA:");
        let source = "{%- for m in messages[::-1] %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}";
        assert_eq!(render(source, &messages), "assistant");
        let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}\
            {{ ns.n }} {{ true }} {{ none }} {{ undefined_thing }}|{{ messages[0].get('x') }}";
        assert_eq!(render(source, &messages), "2 True None |None");
    }

    /// Expected text from Python's `json.dumps(x, ensure_ascii=False, ...)`.
    #[test]
    fn tojson_writes_what_python_writes() {
        let message = json!({"role": "user", "content": {"b": [1, 2.5, 1e-7, 1e16], "a": {"é\n": null, "t": true}, "e": []}});
        let dump = |args: &str| {
            render(
                &format!("{{{{ messages[0].content | tojson{args} }}}}"),
                std::slice::from_ref(&message),
            )
        };
        assert_eq!(
            dump(""),
            r#"{"b": [1, 2.5, 1e-07, 1e+16], "a": {"é\n": null, "t": true}, "e": []}"#
        );
        assert_eq!(
            dump("(indent=2, sort_keys=true)"),
            "{\n  \"a\": {\n    \"t\": true,\n    \"é\\n\": null\n  },\n  \"b\": [\n    1,\n    2.5,\n    1e-07,\n    1e+16\n  ],\n  \"e\": []\n}"
        );
        assert_eq!(
            dump("(separators=(',', ':'), ensure_ascii=true)"),
            r#"{"b":[1,2.5,1e-07,1e+16],"a":{"\u00e9\n":null,"t":true},"e":[]}"#
        );
    }

    #[test]
    fn a_template_that_refuses_says_why() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('the first message must be of the user') }}{% endif %}x";
        let e = template(source).unwrap().render(&[message("system", "s")], true).unwrap_err();
        assert!(
            e.to_string()
                .contains("refuses these messages: the first message must be of the user (line 1)"),
            "{e}"
        );
        let e = template("{% for m in messages %}").unwrap_err();
        assert_eq!(e.code(), "bad-chat-template");
        assert!(
            e.to_string().starts_with("the chat template of m/tokenizer_config.json is broken:"),
            "{e}"
        );
    }

    #[test]
    fn dates_are_written_in_utc() {
        // date -u -d @1721989845
        assert_eq!(
            strftime("%d %b %Y, %A %H:%M:%S 100%% %q", 1_721_989_845),
            "26 Jul 2024, Friday 10:30:45 100% %q"
        );
        assert_eq!(strftime("%Y-%m-%d %B %a %y", 951_782_400), "2000-02-29 February Tue 00");
        assert_eq!(strftime("%Y-%m-%d", 0), "1970-01-01");
    }
}
