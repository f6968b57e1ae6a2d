//! Reads JSON lines.
//!
//! In: the whole file as bytes, the columns that must be there. Out: the good rows with their line numbers, or one
//! error that lists the bad ones with number and reason. Under the policy `skip` bad lines are left out and counted;
//! they are never left out in silence.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::rng::hash;

/// What to do about bad lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BadLines {
    /// Refuse the file.
    #[default]
    Error,
    /// Leave them out; the data set says how many.
    Skip,
}

/// What a column must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text that is not empty.
    Text,
    /// Text that is not empty, or a list of chat messages.
    Prompt,
    /// Anything but null.
    Any,
}

/// A column that every row must have.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub key: String,
    pub kind: Kind,
}

impl Column {
    /// A column under its key in the file.
    pub fn new(key: impl Into<String>, kind: Kind) -> Column {
        Column { key: key.into(), kind }
    }
}

/// Why a line is bad.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    Blank,
    Utf8 { at: usize },
    Surrogate,
    Json(String),
    NotTable,
    Missing { key: String, has: String },
    NotText { key: String },
    Empty { key: String },
    Message { key: String, at: usize },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Blank => f.write_str("blank"),
            Reason::Utf8 { at } => write!(f, "invalid UTF-8 at byte {at}"),
            Reason::Surrogate => f.write_str("lone surrogate"),
            Reason::Json(why) => write!(f, "broken JSON: {why}"),
            Reason::NotTable => f.write_str("not a JSON object"),
            Reason::Missing { key, has } => write!(f, "missing key {key} (it has {has})"),
            Reason::NotText { key } => write!(f, "{key} is not text"),
            Reason::Empty { key } => write!(f, "empty {key}"),
            Reason::Message { key, at } => {
                write!(f, "message {at} of {key} lacks `role` or `content` as text")
            }
        }
    }
}

/// A bad line: its number, counted from 1, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct BadLine {
    pub line: usize,
    pub reason: Reason,
}

/// A data set that cannot be used.
#[derive(Debug, Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("cannot read the data {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// Some lines are bad.
    #[error("{} of {} lines of {path} cannot be used:{}\nmend them, or write `bad_lines: skip` to leave them out", bad.len(), lines, listed(bad))]
    Bad { path: PathBuf, lines: usize, bad: Vec<BadLine> },
    /// No rows.
    #[error("{path} has no rows{}", if *skipped == 0 { String::new() } else { format!(": all {skipped} lines are bad, the first ones:{}", listed(bad)) })]
    Empty { path: PathBuf, skipped: usize, bad: Vec<BadLine> },
    /// One step needs more rows than there are.
    #[error(
        "{path} has {rows} rows, and one step takes {needed}; take at most {rows}, or add data"
    )]
    TooFew { path: PathBuf, rows: usize, needed: usize },
    /// A saved position that belongs to other data.
    #[error(
        "the saved position belongs to other data: {path} has changed since (it had {saved} rows and has {rows}); start a new run"
    )]
    Changed { path: PathBuf, saved: usize, rows: usize },
}

impl DataError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            DataError::Read { .. } => "data-not-found",
            DataError::Bad { .. } => "bad-data-line",
            DataError::Empty { .. } => "empty-data",
            DataError::TooFew { .. } => "too-little-data",
            DataError::Changed { .. } => "data-changed",
        }
    }
}

/// Bad lines shown in a message.
const SHOWN: usize = 20;

fn listed(bad: &[BadLine]) -> String {
    let mut out = String::new();
    for b in bad.iter().take(SHOWN) {
        out += &format!("\n  line {}: {}", b.line, b.reason);
    }
    if bad.len() > SHOWN {
        out += &format!("\n  and {} more", bad.len() - SHOWN);
    }
    out
}

/// One good line.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its number in the file, counted from 1.
    pub line: usize,
    /// All fields, in the file's order.
    pub fields: Map<String, Value>,
}

impl Row {
    /// A field's text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key)?.as_str()
    }
}

/// A file's rows.
#[derive(Clone, Debug)]
pub struct DataSet {
    pub path: PathBuf,
    pub rows: Vec<Row>,
    /// Lines that were left out.
    pub skipped: Vec<BadLine>,
    /// Of the file's bytes: equal data has equal prints.
    pub fingerprint: u64,
}

impl DataSet {
    /// Reads a file.
    pub fn open(
        path: &Path,
        columns: &[Column],
        bad_lines: BadLines,
    ) -> Result<DataSet, DataError> {
        let bytes =
            std::fs::read(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        DataSet::parse(&bytes, path, columns, bad_lines)
    }

    /// Reads the bytes of a file; `path` is for messages.
    pub fn parse(
        bytes: &[u8],
        path: &Path,
        columns: &[Column],
        bad_lines: BadLines,
    ) -> Result<DataSet, DataError> {
        let body = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let body = body.strip_suffix(b"\n").unwrap_or(body);
        let lines: Vec<&[u8]> =
            if body.is_empty() { Vec::new() } else { body.split(|&b| b == b'\n').collect() };
        let (mut rows, mut bad) = (Vec::new(), Vec::new());
        for (i, line) in lines.iter().enumerate() {
            match read_line(line, columns) {
                Ok(fields) => rows.push(Row { line: i + 1, fields }),
                Err(reason) => bad.push(BadLine { line: i + 1, reason }),
            }
        }
        let path: PathBuf = path.into();
        if !bad.is_empty() && bad_lines == BadLines::Error {
            return Err(DataError::Bad { path, lines: lines.len(), bad });
        }
        if rows.is_empty() {
            return Err(DataError::Empty { path, skipped: bad.len(), bad });
        }
        Ok(DataSet { path, rows, skipped: bad, fingerprint: hash(bytes) })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Never, for a data set that was read; true after all rows were taken away.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Refuses a step that takes more rows than there are.
    pub fn check_step(&self, needed: usize) -> Result<(), DataError> {
        let rows = self.len();
        if needed <= rows {
            Ok(())
        } else {
            Err(DataError::TooFew { path: self.path.clone(), rows, needed })
        }
    }
}

fn read_line(line: &[u8], columns: &[Column]) -> Result<Map<String, Value>, Reason> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|e| Reason::Utf8 { at: e.valid_up_to() + 1 })?;
    if text.trim().is_empty() {
        return Err(Reason::Blank);
    }
    let value: Value = serde_json::from_str(text).map_err(|e| {
        if has_lone_surrogate(text) {
            Reason::Surrogate
        } else {
            Reason::Json(e.to_string().replace("line 1 ", ""))
        }
    })?;
    let Value::Object(fields) = value else { return Err(Reason::NotTable) };
    columns.iter().try_for_each(|c| check(&fields, c))?;
    Ok(fields)
}

fn check(fields: &Map<String, Value>, column: &Column) -> Result<(), Reason> {
    let key = column.key.clone();
    let Some(value) = fields.get(&key).filter(|v| !v.is_null()) else {
        let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
        let has = if keys.is_empty() { "none".into() } else { keys.join(", ") };
        return Err(Reason::Missing { key, has });
    };
    match (column.kind, value) {
        (Kind::Any, _) => Ok(()),
        (_, Value::String(text)) if text.trim().is_empty() => Err(Reason::Empty { key }),
        (_, Value::String(_)) => Ok(()),
        (Kind::Prompt, Value::Array(messages)) if messages.is_empty() => Err(Reason::Empty { key }),
        (Kind::Prompt, Value::Array(messages)) => {
            match messages.iter().position(|m| !is_message(m)) {
                Some(at) => Err(Reason::Message { key, at }),
                None => Ok(()),
            }
        }
        _ => Err(Reason::NotText { key }),
    }
}

fn is_message(value: &Value) -> bool {
    value["role"].is_string() && value["content"].is_string()
}

/// Whether a `\uD800`-`\uDFFF` escape stands without its partner, which no text can hold.
fn has_lone_surrogate(text: &str) -> bool {
    let bytes = text.as_bytes();
    let unit = |at: usize| {
        let hex = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
    };
    let mut i = 0;
    while i < bytes.len() {
        match unit(i) {
            Some(0xD800..=0xDBFF) if matches!(unit(i + 6), Some(0xDC00..=0xDFFF)) => i += 12,
            Some(0xD800..=0xDFFF) => return true,
            Some(_) => i += 6,
            None if bytes[i] == b'\\' => i += 2,
            None => i += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt() -> [Column; 1] {
        [Column::new("prompt", Kind::Prompt)]
    }

    fn parse(text: &[u8], bad_lines: BadLines) -> Result<DataSet, DataError> {
        DataSet::parse(text, Path::new("d.jsonl"), &prompt(), bad_lines)
    }

    const CASE: [&str; 7] = [
        r#"{"prompt": "a", "answer": "1"}"#,
        "",
        r#"{"prompt": "b", "answer": "#,
        r#"{"prompt": 5, "answer": "2"}"#,
        r#"{"question": "c"}"#,
        r#"{"prompt": "\ud83d\ude00", "answer": "3"}"#,
        r#"{"prompt": "\ud83d", "answer": "4"}"#,
    ];

    /// Case c88.
    #[test]
    fn every_bad_line_is_told_with_number_and_reason() {
        let text = CASE.join("\n");
        let error = parse(text.as_bytes(), BadLines::Error).unwrap_err();
        assert_eq!(error.code(), "bad-data-line");
        assert_eq!(
            error.to_string(),
            "5 of 7 lines of d.jsonl cannot be used:\
             \n  line 2: blank\
             \n  line 3: broken JSON: EOF while parsing a value at column 26\
             \n  line 4: prompt is not text\
             \n  line 5: missing key prompt (it has question)\
             \n  line 7: lone surrogate\
             \nmend them, or write `bad_lines: skip` to leave them out"
        );
        let data = parse(text.as_bytes(), BadLines::Skip).unwrap();
        assert_eq!(data.rows.iter().map(|r| r.line).collect::<Vec<_>>(), [1, 6]);
        assert_eq!(
            (data.rows[1].text("prompt"), data.rows[1].text("answer")),
            (Some("\u{1F600}"), Some("3"))
        );
        assert_eq!(data.skipped.len(), 5);
    }

    #[test]
    fn other_bad_lines() {
        let bad = |line: &[u8]| {
            parse(line, BadLines::Skip).unwrap_err().to_string().lines().nth(1).unwrap().to_string()
        };
        assert_eq!(bad(b"{\"prompt\": \"\xff\"}\n"), "  line 1: invalid UTF-8 at byte 13");
        assert_eq!(bad(b"[1]"), "  line 1: not a JSON object");
        assert_eq!(bad(b"{\"prompt\": \" \"}"), "  line 1: empty prompt");
        assert_eq!(bad(b"{\"prompt\": null}"), "  line 1: missing key prompt (it has prompt)");
        assert_eq!(bad(b"{\"prompt\": []}"), "  line 1: empty prompt");
        assert_eq!(
            bad(br#"{"prompt": [{"role": "user", "content": "x"}, {"role": "user"}]}"#),
            "  line 1: message 1 of prompt lacks `role` or `content` as text"
        );
        assert_eq!(
            bad(br#"{"prompt": "\\ud83d}"#),
            "  line 1: broken JSON: EOF while parsing a string at column 20"
        );
    }

    #[test]
    fn line_ends_and_marks_of_other_systems_are_read() {
        let data = parse(b"\xef\xbb\xbf{\"prompt\": \"a\"}\r\n{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}]}\r\n", BadLines::Error);
        assert_eq!(data.unwrap().len(), 2);
    }

    #[test]
    fn many_bad_lines_are_cut_short() {
        let text = "{}\n".repeat(25);
        let e = parse(text.as_bytes(), BadLines::Error).unwrap_err().to_string();
        assert!(e.contains("\n  line 20: missing key prompt (it has none)\n  and 5 more\n"), "{e}");
    }

    #[test]
    fn no_rows_is_an_error() {
        let e = parse(b"", BadLines::Skip).unwrap_err();
        assert_eq!((e.code(), e.to_string().as_str()), ("empty-data", "d.jsonl has no rows"));
        let e = parse(b"{}\n", BadLines::Skip).unwrap_err();
        assert!(e.to_string().starts_with("d.jsonl has no rows: all 1 lines are bad"), "{e}");
        let e = DataSet::open(Path::new("none.jsonl"), &prompt(), BadLines::Error).unwrap_err();
        assert!(e.to_string().starts_with("cannot read the data none.jsonl"), "{e}");
    }

    #[test]
    fn a_step_cannot_take_more_than_there_is() {
        let data = parse(b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n", BadLines::Error).unwrap();
        data.check_step(2).unwrap();
        let e = data.check_step(3).unwrap_err();
        assert_eq!(
            e.to_string(),
            "d.jsonl has 2 rows, and one step takes 3; take at most 2, or add data"
        );
    }
}
