//! `nrlc score`: log-probabilities of given tokens, line by line.
//!
//! In: lines `{"prompt", "completion"}` or `{"ids"}`. Out: lines `{"ids", "logprobs"}` in the same order; the first
//! token has none, since nothing predicts it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use nrl_ir::host::Value as Host;
use nrl_ir::program::Sampling;
use nrl_runtime::rollout::batch::{Batch, Prompt, Sample};
use nrl_runtime::run::compute::forward;
use nrl_runtime::run::error::RunError;
use nrl_runtime::run::machine::Machine;
use nrl_runtime::run::value::Inputs;
use nrl_runtime::text::Text;
use serde_json::{Value, json};

use crate::args::ScoreArgs;
use crate::load;

/// Lines that are scored together.
const LINES: usize = 64;
/// The graph that scores, and the tokens of one run of it.
const GRAPH: usize = 1;
const TOKENS: usize = 8192;

/// Runs the command.
pub fn run(args: &ScoreArgs) -> ExitCode {
    let sampling = Sampling {
        temperature: 1.0,
        top_k: None,
        top_p: None,
        stop: vec![],
        stop_ids: vec![],
        min_new: 0,
    };
    let compiled = match load::model(&args.model, args.context, sampling) {
        Ok(compiled) => compiled,
        Err(code) => return code,
    };
    match Machine::start(compiled, &load::engine()).and_then(|m| score(m, &args.file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => load::fail(&e),
    }
}

fn score(mut machine: Machine, file: &Path) -> Result<(), RunError> {
    let bytes = std::fs::read(file).map_err(|e| {
        RunError::new("data-not-found", format!("cannot read {}: {e}", file.display()))
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| RunError::new("not-utf8", format!("{} is not UTF-8 text", file.display())))?;
    let context = machine.program().models[0].context;
    let mut lines = vec![];
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let ids =
            ids(&machine.texts[0], line, machine.program().models[0].config["vocab_size"].as_u64());
        let ids = ids.and_then(|ids| check(ids, context));
        lines.push(ids.map_err(|e| {
            let message = format!("line {} of {}: {}", i + 1, file.display(), e.message);
            RunError { message, ..e }
        })?);
    }
    machine.load_initial()?;
    for part in lines.chunks(LINES) {
        for (ids, logprobs) in part.iter().zip(logprobs(&machine, part)?) {
            println!("{}", json!({"ids": ids, "logprobs": logprobs}));
        }
    }
    Ok(())
}

fn bad(message: impl Into<String>) -> RunError {
    RunError::new("bad-data-line", message)
}

fn check(ids: Vec<u32>, context: usize) -> Result<Vec<u32>, RunError> {
    match ids.len() {
        0 => Err(bad("it has no tokens")),
        n if n > context => Err(RunError::new(
            "sample-over-context",
            format!("it has {n} tokens and the context {context}"),
        )),
        _ => Ok(ids),
    }
}

/// The tokens that a line names.
fn ids(text: &Text, line: &str, rows: Option<u64>) -> Result<Vec<u32>, RunError> {
    let value: Value = serde_json::from_str(line).map_err(|e| bad(format!("broken JSON: {e}")))?;
    if let Some(ids) = value.get("ids") {
        let list = ids.as_array().ok_or_else(|| bad("`ids` is not a list"))?;
        let id = |v: &Value| v.as_u64().filter(|n| *n < rows.unwrap_or(u64::MAX)).map(|n| n as u32);
        return list
            .iter()
            .map(|v| id(v).ok_or_else(|| bad(format!("`ids` holds {v}, which is no token"))))
            .collect();
    }
    let part = |key: &str| {
        value[key].as_str().ok_or_else(|| bad(format!("`{key}` is missing or not text")))
    };
    let mut ids = text.encode(part("prompt")?)?;
    ids.extend(text.encode_rest(part("completion")?)?);
    Ok(ids)
}

/// Per line, one number per token; none for the first.
fn logprobs(machine: &Machine, lines: &[Vec<u32>]) -> Result<Vec<Vec<Option<f32>>>, RunError> {
    let mut prompts = vec![];
    let mut samples = vec![];
    for (prompt, ids) in lines.iter().enumerate() {
        let (first, rest) = (ids[..1].to_vec(), ids[1..].to_vec());
        let text = String::new();
        prompts.push(Arc::new(Prompt {
            number: prompt,
            ids: first,
            text,
            answer: Host::None,
            row: Host::None,
        }));
        samples.push(Sample { prompt, ids: rest, ..Sample::default() });
    }
    let batch = Arc::new(Batch::new(prompts, samples, 1.0));
    let inputs = Inputs { temperature: 1.0, ..Inputs::default() };
    let longest = (0..lines.len()).map(|i| batch.length(i)).max().unwrap_or(0);
    let job = (0, GRAPH, TOKENS.max(longest));
    let outputs = forward(&machine.ranks, &machine.setup, job, &batch, inputs)?;
    let all =
        outputs.first().ok_or_else(|| RunError::internal("a scoring graph without outputs"))?;
    let of = |i: usize| {
        let own = &all.data[batch.offsets[i]..batch.offsets[i + 1]];
        std::iter::once(None).chain(own.iter().map(|x| Some(*x))).collect()
    };
    Ok((0..lines.len()).map(of).collect())
}
