//! Data as prompts: read, rendered, tokenized and checked before anything runs.
//!
//! In: a data declaration, its model's text. Out: prompts in the order of a cursor that can be saved. Lengths are
//! judged after the chat template: rows over the limit are an error, dropped or cut, with their number; a prompt that
//! fills the context is an error.

use std::path::Path;
use std::sync::Arc;

use nrl_ir::host::{self, Func, Value};
use nrl_ir::program::{BadLines, Data, Source, TooLong};
use rayon::prelude::*;

use crate::data::cursor::{Cursor, Position};
use crate::data::jsonl::{self, Column, DataError, DataSet, Kind, Row};
use crate::rng::hash;
use crate::rollout::batch::{Batch, Prompt, Sample};
use crate::rollout::prompt_error;
use crate::run::error::{Outcome, RunError};
use crate::text::Text;

/// One data set of the program, ready to be taken from.
pub struct Prompts {
    pub name: String,
    rows: Rows,
    /// What the reader should know: lines skipped, prompts dropped or cut.
    pub notes: Vec<String>,
    set: DataSet,
    cursor: Cursor,
}

/// Rows that are there, or that a function makes when they are asked for.
enum Rows {
    Ready(Vec<Arc<Prompt>>),
    Made { data: Box<Data>, text: Arc<Text>, context: usize, count: usize },
}

/// Made rows that are looked at before a run starts.
const PROBED: usize = 256;

fn data_error(name: &str, e: &DataError) -> RunError {
    RunError::new(e.code(), format!("data `{name}`: {e}"))
}

impl Prompts {
    /// Reads `data` for a model of `context` tokens.
    pub fn open(data: &Data, text: &Arc<Text>, context: usize, seed: u64) -> Outcome<Prompts> {
        if let (Source::Made { rows, make }, None) = (&data.source, data.at_most) {
            return Prompts::made(data, text, context, seed, (*rows, make));
        }
        let mut set = read(data)?;
        let mut notes = vec![];
        if !set.skipped.is_empty() {
            let (n, first) = (set.skipped.len(), &set.skipped[0]);
            let lines = if n == 1 { "1 line".into() } else { format!("{n} lines") };
            notes.push(format!(
                "data `{}`: {lines} skipped, the first is line {}: {}",
                data.name, first.line, first.reason
            ));
        }
        let render = |row: &Row| prompt(data, text, row);
        let rows: Vec<Prompt> =
            set.rows.par_iter().with_min_len(64).map(render).collect::<Outcome<_>>()?;
        let rows = limit(data, text, rows, &mut notes)?;
        if let Some(p) = rows.iter().find(|p| p.ids.is_empty() || p.ids.len() >= context) {
            return Err(prompt_error(p, unit(data), context));
        }
        if rows.is_empty() {
            let (name, all) = (&data.name, set.rows.len());
            return Err(RunError::new(
                "empty-data",
                format!("data `{name}` is empty: all {all} prompts were dropped"),
            )
            .help("raise the limit of `at_most`"));
        }
        set.rows.truncate(rows.len());
        let cursor = Cursor::new(&set, seed, data.shuffled);
        let rows = Rows::Ready(rows.into_iter().map(Arc::new).collect());
        Ok(Prompts { name: data.name.clone(), rows, notes, set, cursor })
    }

    /// Rows of a function need not all be made at once: each depends on its number alone.
    fn made(
        data: &Data,
        text: &Arc<Text>,
        context: usize,
        seed: u64,
        (count, make): (usize, &Func),
    ) -> Outcome<Prompts> {
        if count == 0 {
            return Err(RunError::new("empty-data", format!("data `{}` has no rows", data.name)));
        }
        let empty =
            (0..count).map(|i| Row { line: i + 1, fields: serde_json::Map::new() }).collect();
        let path = data.name.clone().into();
        let set =
            DataSet { path, rows: empty, skipped: vec![], fingerprint: fingerprint(count, make) };
        let cursor = Cursor::new(&set, seed, data.shuffled);
        let rows = Rows::Made { data: Box::new(data.clone()), text: text.clone(), context, count };
        let prompts = Prompts { name: data.name.clone(), rows, notes: vec![], set, cursor };
        (0..count.min(PROBED)).try_for_each(|i| prompts.row(i).map(|_| ()))?;
        Ok(prompts)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.rows {
            Rows::Ready(rows) => rows.len(),
            Rows::Made { count, .. } => *count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `n` rows, or all.
    pub fn first(&self, n: usize) -> Outcome<Vec<Arc<Prompt>>> {
        (0..n.min(self.len())).into_par_iter().with_min_len(64).map(|i| self.row(i)).collect()
    }

    fn row(&self, i: usize) -> Outcome<Arc<Prompt>> {
        match &self.rows {
            Rows::Ready(rows) => Ok(rows[i].clone()),
            Rows::Made { data, text, context, .. } => {
                let Source::Made { make, .. } = &data.source else {
                    return Err(RunError::internal("made data without a function"));
                };
                let p = prompt(data, text, &make_row(data, make, i)?)?;
                if p.ids.is_empty() || p.ids.len() >= *context {
                    return Err(prompt_error(&p, unit(data), *context));
                }
                Ok(Arc::new(p))
            }
        }
    }

    /// The next `count` prompts.
    pub fn take(&mut self, count: usize) -> Outcome<Vec<Arc<Prompt>>> {
        self.set.check_step(count).map_err(|e| data_error(&self.name, &e))?;
        let numbers = self.cursor.take(count);
        numbers.into_par_iter().with_min_len(64).map(|i| self.row(i)).collect()
    }

    /// Where the next row is.
    pub fn position(&self) -> &Position {
        self.cursor.position()
    }

    /// Goes back to a saved position.
    pub fn restore(&mut self, data: &Data, seed: u64, saved: &Position) -> Outcome<()> {
        self.cursor = Cursor::restore(&self.set, seed, data.shuffled, saved)
            .map_err(|e| data_error(&self.name, &e))?;
        Ok(())
    }
}

/// Prompts with their reference answers as completions: the answer's tokens and the end token are trained. Rows of
/// pairs give two samples, the chosen answer, then the one in the column `rejected`.
pub fn complete(
    prompts: Vec<Arc<Prompt>>,
    rejected: Option<&str>,
    text: &Text,
    context: usize,
) -> Outcome<Batch> {
    let mut samples = vec![];
    let answers = |p: &Prompt| {
        let other = rejected.map(|c| match &p.row {
            Value::Record(r) => r.get(c).cloned().unwrap_or(Value::None),
            _ => Value::None,
        });
        std::iter::once(p.answer.clone()).chain(other).enumerate().collect::<Vec<_>>()
    };
    let all = prompts
        .iter()
        .enumerate()
        .flat_map(|(i, p)| answers(p).into_iter().map(move |(copy, answer)| (i, p, copy, answer)));
    for (i, p, copy, answer) in all {
        let answer = answer_text(&answer).ok_or_else(|| {
            let which = if copy == 0 { "" } else { "rejected " };
            let what = format!("row {} has no {which}answer to train on", p.number + 1);
            RunError::new("bad-data-line", what)
        })?;
        let mut ids = text.encode_rest(&answer)?;
        ids.extend(text.tokenizer.eos());
        if p.ids.len() + ids.len() > context {
            let (row, n) = (p.number + 1, p.ids.len() + ids.len());
            return Err(RunError::new(
                "sample-over-context",
                format!("row {row} has {n} tokens and the context {context}"),
            )
            .help("raise `context`, or leave out rows that long"));
        }
        samples.push(Sample {
            prompt: i,
            copy,
            ids,
            finished: true,
            text: answer,
            ..Sample::default()
        });
    }
    Ok(Batch::new(prompts, samples, 1.0))
}

fn answer_text(answer: &Value) -> Option<String> {
    match answer {
        Value::Text(s) => Some(s.to_string()),
        Value::Num(_) | Value::Bool(_) => Some(answer.to_json().to_string()),
        _ => None,
    }
}

fn read(data: &Data) -> Outcome<DataSet> {
    match &data.source {
        Source::JsonLines { path } => {
            let mut columns = vec![Column::new(&data.prompt, Kind::Prompt)];
            let answers = data.answer.iter().chain(&data.rejected);
            columns.extend(answers.map(|a| Column::new(a, Kind::Any)));
            let bad = match data.bad_lines {
                BadLines::Error => jsonl::BadLines::Error,
                BadLines::Skip => jsonl::BadLines::Skip,
            };
            DataSet::open(Path::new(path), &columns, bad).map_err(|e| data_error(&data.name, &e))
        }
        Source::Made { rows, make } => {
            let made =
                (0..*rows).into_par_iter().with_min_len(256).map(|i| make_row(data, make, i));
            let made: Vec<Row> = made.collect::<Outcome<_>>()?;
            if made.is_empty() {
                return Err(RunError::new(
                    "empty-data",
                    format!("data `{}` has no rows", data.name),
                ));
            }
            let fingerprint = fingerprint(*rows, make);
            Ok(DataSet { path: data.name.clone().into(), rows: made, skipped: vec![], fingerprint })
        }
    }
}

fn make_row(data: &Data, make: &Func, i: usize) -> Outcome<Row> {
    match host::call(make, &[Value::Num(i as f64)]).map(|v| v.to_json()) {
        Ok(serde_json::Value::Object(fields)) => Ok(Row { line: i + 1, fields }),
        Ok(other) => Err(bad_row(data, i, format!("it is {other}, not a record"))),
        Err(e) => Err(bad_row(data, i, e.to_string())),
    }
}

/// The same function makes the same rows.
fn fingerprint(rows: usize, make: &Func) -> u64 {
    hash(format!("{rows} {}", serde_json::to_string(make).unwrap_or_default()).as_bytes())
}

fn bad_row(data: &Data, i: usize, why: String) -> RunError {
    RunError::new("bad-data-line", format!("row {i} of data `{}` cannot be made: {why}", data.name))
}

fn prompt(data: &Data, text: &Text, row: &Row) -> Outcome<Prompt> {
    let record = Value::from_json(&serde_json::Value::Object(row.fields.clone()));
    let get = |key: &str| match &record {
        Value::Record(r) => r.get(key).cloned().unwrap_or(Value::None),
        _ => Value::None,
    };
    let (shown, ids) = text.prompt(&get(&data.prompt), data.chat.as_ref()).map_err(|e| {
        let message = format!("line {} of data `{}`: {}", row.line, data.name, e.message);
        RunError { message, ..e }
    })?;
    let answer = data.answer.as_deref().map_or(Value::None, get);
    Ok(Prompt { number: row.line - 1, ids, text: shown, answer, row: record })
}

/// What a data set counts.
fn unit(data: &Data) -> &'static str {
    match data.source {
        Source::JsonLines { .. } => "line",
        Source::Made { .. } => "row",
    }
}

/// Applies `at_most`.
fn limit(
    data: &Data,
    text: &Text,
    mut rows: Vec<Prompt>,
    notes: &mut Vec<String>,
) -> Outcome<Vec<Prompt>> {
    let Some((most, policy)) = data.at_most else { return Ok(rows) };
    let over: Vec<usize> =
        rows.iter().filter(|p| p.ids.len() > most).map(|p| p.number + 1).collect();
    let Some(first) = over.first().copied() else { return Ok(rows) };
    let what = format!(
        "{} of {} prompts of data `{}` have more than {most} tokens",
        over.len(),
        rows.len(),
        data.name
    );
    match policy {
        TooLong::Error => {
            return Err(RunError::new(
                "prompt-too-long",
                format!("{what}, the first in row {first}"),
            )
            .help(format!(
                "write `at_most({most} tokens, else: drop)` to leave them out, or `else: truncate`"
            )));
        }
        TooLong::Drop => {
            rows.retain(|p| p.ids.len() <= most);
            notes.push(format!("{what}: dropped"));
        }
        TooLong::Truncate => {
            for p in rows.iter_mut().filter(|p| p.ids.len() > most) {
                p.ids.drain(..p.ids.len() - most);
                p.text = text.decode(&p.ids);
            }
            notes.push(format!("{what}: cut to their last {most} tokens"));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use nrl_ir::host::{Builtin, Expr};

    use super::*;

    fn characters() -> Arc<Text> {
        Arc::new(crate::text::tests::characters(13).unwrap())
    }

    /// Rows `{q: "00..", a: i}` of `i + 1` zeros.
    fn made(rows: usize, at_most: Option<(usize, TooLong)>) -> Data {
        let i = || Expr::Local(0);
        let call = |f, args| Expr::Call { f, args };
        let zeros = Expr::Const(Value::text("0000000000"));
        let length = call(Builtin::Add, vec![i(), Expr::Const(Value::Num(1.0))]);
        let question = call(Builtin::Slice, vec![zeros, Expr::Const(Value::Num(0.0)), length]);
        let body = Expr::Record(vec![("q".into(), question), ("a".into(), i())]);
        Data {
            name: "d".into(),
            source: Source::Made {
                rows,
                make: Func { name: "make".into(), params: 1, locals: 1, body },
            },
            prompt: "q".into(),
            answer: Some("a".into()),
            rejected: None,
            model: 0,
            chat: None,
            at_most,
            shuffled: true,
            bad_lines: BadLines::Error,
        }
    }

    #[test]
    fn rows_are_made_taken_and_taken_again_after_a_restore() {
        let (text, data) = (characters(), made(5, None));
        let mut p = Prompts::open(&data, &text, 8, 1).unwrap();
        p.take(3).unwrap();
        let saved = p.position().clone();
        let next = p.take(4).unwrap();
        let mut q = Prompts::open(&data, &text, 8, 1).unwrap();
        q.restore(&data, 1, &saved).unwrap();
        assert_eq!(q.take(4).unwrap(), next);
        assert_eq!(p.take(6).unwrap_err().code, "too-little-data");
        let other = made(4, None);
        assert_eq!(
            Prompts::open(&other, &text, 8, 1)
                .unwrap()
                .restore(&other, 1, &saved)
                .unwrap_err()
                .code,
            "data-changed"
        );
    }

    /// Case c85: a prompt that fills the context is an error before training, after the declared policy.
    #[test]
    fn long_prompts_meet_the_declared_policy() {
        let text = characters();
        let open = |rows, at_most| Prompts::open(&made(rows, at_most), &text, 8, 1);
        let e = open(10, None).err().unwrap();
        assert_eq!(e.code, "prompt-fills-context");
        assert!(e.message.starts_with("the prompt of row 8 has 8 tokens and the context 8"), "{e}");
        let e = open(10, Some((6, TooLong::Error))).err().unwrap();
        assert_eq!(
            e.message,
            "4 of 10 prompts of data `d` have more than 6 tokens, the first in row 7"
        );
        let dropped = open(10, Some((6, TooLong::Drop))).unwrap();
        assert_eq!(dropped.len(), 6);
        assert_eq!(dropped.notes, ["4 of 10 prompts of data `d` have more than 6 tokens: dropped"]);
        let cut = open(10, Some((6, TooLong::Truncate))).unwrap();
        assert_eq!((cut.len(), cut.first(10).unwrap()[9].ids.len()), (10, 6));
        assert_eq!(open(3, Some((0, TooLong::Drop))).err().unwrap().code, "empty-data");
        let open = Prompts::open(&made(2, None), &text, 8, 1).unwrap();
        assert_eq!(
            complete(open.first(2).unwrap(), None, &text, 2).unwrap_err().code,
            "sample-over-context"
        );
    }

    #[test]
    fn a_reference_answer_is_trained_with_its_end_token() {
        let text = characters();
        let p = Prompts::open(&made(3, None), &text, 8, 1).unwrap();
        let batch = complete(p.first(3).unwrap(), None, &text, 8).unwrap();
        let eos = text.tokenizer.eos().unwrap();
        assert_eq!(batch.samples[2].ids, [2, eos]);
        assert!(!batch.is_sampled());
    }
}
