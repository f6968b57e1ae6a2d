//! Lengths of samples from a file, in place of a guess.
//!
//! In: JSON lines of earlier samples, each with a number of tokens. Out: a histogram, and the recipe with a
//! lognormal law of the same mean and 99th percentile.

use std::fmt::Write;

use nrl_base::SourceId;

use super::{Answer, Session};
use crate::edit;
use crate::report::words::thousands;

/// Fields that hold the number of new tokens of a sample, or the tokens themselves.
const FIELDS: [&str; 8] = [
    "length",
    "response_length",
    "output_length",
    "generation_length",
    "completion_tokens",
    "num_tokens",
    "tokens",
    "response_tokens",
];

impl Session<'_> {
    /// `from FILE`
    pub(super) fn lengths(&mut self, rest: &str) -> Answer {
        let file = rest.strip_prefix("from").unwrap_or(rest).trim().trim_matches('"');
        if file.is_empty() {
            return Answer::failed("write `lengths from rollouts.jsonl`");
        }
        let text = match self.files.read(file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(why) => return Answer::failed(format!("cannot read {file}: {why}")),
        };
        let mut all: Vec<f64> = text.lines().filter_map(length).collect();
        if all.is_empty() {
            let said = format!("no line of {file} has a length: one of {}", FIELDS.join(", "));
            return Answer::failed(said);
        }
        all.sort_by(f64::total_cmp);
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let p99 = all[((all.len() - 1) as f64 * 0.99).round() as usize].max(mean);
        let law = format!("lognormal(mean: {mean:.0} tokens, p99: {p99:.0} tokens)");
        let out = format!(
            "{} samples, mean {mean:.0}, p99 {p99:.0}, most {:.0} tokens\n{}",
            thousands(all.len() as f64),
            all[all.len() - 1],
            histogram(&all)
        );
        let text = edit::set(&self.input, "lengths", &law).or_else(|| self.new_line(&law));
        let Some(text) = text else { return Answer::failed("the recipe has no place for a line") };
        let mut answer = self.change(text);
        if !answer.failed {
            answer.text = format!("{out}{}", answer.text);
        }
        answer
    }

    /// The recipe with an assumption where it had none.
    fn new_line(&self, law: &str) -> Option<String> {
        let (file, _) = nrl_syntax::parse(SourceId(0), &self.input.text);
        let recipe = edit::recipe(&file, self.input.options.recipe.as_deref())?;
        let end = self.input.text.get(..recipe.body.span.end as usize)?.rfind('}')?;
        let mut out = self.input.text.clone();
        out.insert_str(end, &format!("  assume lengths = {law}\n"));
        Some(nrl_syntax::print::format(&out).unwrap_or(out))
    }
}

/// The number of tokens that a line tells.
fn length(line: &str) -> Option<f64> {
    let row: serde_json::Value = serde_json::from_str(line).ok()?;
    if let Some(n) = row.as_f64() {
        return Some(n);
    }
    FIELDS.iter().find_map(|f| match row.get(f)? {
        serde_json::Value::Array(all) => Some(all.len() as f64),
        value => value.as_f64(),
    })
}

/// Eight bars of equal width.
fn histogram(sorted: &[f64]) -> String {
    const BARS: usize = 8;
    let most = sorted.last().copied().unwrap_or(1.0).max(1.0);
    let wide = (most / BARS as f64).ceil();
    let mut counts = [0usize; BARS];
    for x in sorted {
        counts[((x / wide) as usize).min(BARS - 1)] += 1;
    }
    let high = counts.iter().copied().max().unwrap_or(1).max(1);
    let mut out = String::new();
    for (i, n) in counts.iter().enumerate() {
        let bar = "#".repeat((n * 40).div_ceil(high));
        let to = (i + 1) as f64 * wide;
        let _ = writeln!(out, "  up to {:>7}  {bar} {}", thousands(to), thousands(*n as f64));
    }
    out
}
