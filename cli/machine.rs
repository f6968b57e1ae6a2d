//! What a plan needs to know of this machine and of the data that is on it.
//!
//! In: a file of calibration if the user names one, a compiled recipe. Out: assumptions for the driver: what `nrlc calibrate`
//! measured, tables of stacks, and how long prompts and reference answers are. Data that is not there leaves a guess in
//! the plan, and is no error: a plan needs no data.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nrl_driver::threads::{Seen, on_threads};
use nrl_driver::{Assume, Compiled};
use nrl_ir::program::{Data, Source, Stage};
use nrl_planner::input::{Input, Request};
use nrl_runtime::run::source::{Prompts, complete};
use nrl_runtime::text::Text;
use nrl_sim::calibration::Calibration;
use nrl_sim::rl_stack::RlStacks;
use nrl_sim::tables::Tables;

use crate::disk::Disk;

/// Rows that are looked at.
const ROWS: usize = 512;
/// Bytes of the largest file that is read for its lengths.
const LARGEST: u64 = 64 << 20;

/// Assumptions with what was measured of this machine, or with what `file` holds: a calibration, or tables of stacks.
pub fn assume(file: Option<&Path>) -> Result<Assume, String> {
    let Some(path) = file else {
        return Ok(Assume { calibration: crate::calibrate::known(), ..Assume::default() });
    };
    let failed = |why: String| format!("cannot read {}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    // Each kind has a list of its own; what is wrong is said of the kind that it is.
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
    let has = |list: &str| value.get(list).is_some();
    let mut assume = Assume { calibration: crate::calibrate::known(), ..Assume::default() };
    if has("ranks") {
        assume.calibration = Some(Calibration::parse(&text).map_err(failed)?);
    } else if has("entries") {
        assume.tables = Some(Tables::parse(&text).map_err(failed)?);
    } else if has("stacks") {
        assume.stacks = Some(RlStacks::parse(&text).map_err(failed)?);
    } else {
        return Err(failed(
            "it has neither `ranks` (of `nrlc calibrate`) nor `entries` or `stacks` (of `nrlc validate --fit`)".into(),
        ));
    }
    Ok(assume)
}

/// Looks up the lengths of prompts and answers, where ranks are threads of this process: there the data is, too. Was
/// there anything to look up?
pub fn look(c: &Compiled, assume: &mut Assume) -> bool {
    if !on_threads(c) {
        return false;
    }
    let program = &c.program;
    let every = program.phases.iter().flat_map(|p| p.every.iter().flat_map(|e| &e.stages));
    let stages = program.phases.iter().flat_map(|p| &p.step).chain(every);
    let mut texts: BTreeMap<usize, Option<Arc<Text>>> = BTreeMap::new();
    for b in stages {
        let (Stage::Take { data, .. } | Stage::Evaluate { data, .. }) = &b.stage else { continue };
        if assume.seen.contains_key(data) {
            continue;
        }
        let d = &program.data[*data];
        let model = &program.models[d.model];
        let text = texts.entry(d.model).or_insert_with(|| Text::of(model).ok().map(Arc::new));
        if let Some(seen) = text.as_ref().and_then(|t| seen(d, t, model.context, program.seed)) {
            assume.seen.insert(*data, seen);
        }
    }
    !assume.seen.is_empty()
}

/// Assumptions for a recipe that will be planned again and again.
pub fn prepared(mut request: Request) -> Request {
    // A file that cannot be read has been told of; plans do without it.
    request.assume = assume(None).unwrap_or_default();
    if let (Some(input), _) = Input::open(&Disk, &request)
        && let (Some(planned), _) = input.plan()
    {
        look(&planned.compiled, &mut request.assume);
    }
    request
}

fn seen(data: &Data, text: &Arc<Text>, context: usize, seed: u64) -> Option<Seen> {
    if let Source::JsonLines { path } = &data.source
        && std::fs::metadata(path).ok()?.len() > LARGEST
    {
        return None;
    }
    let prompts = Prompts::open(data, text, context, seed).ok()?;
    let rows = prompts.first(ROWS).ok()?;
    let n = rows.len().max(1) as f64;
    let prompt = rows.iter().map(|p| p.ids.len() as f64).sum::<f64>() / n;
    // Rows without answers, or with some that do not fit, say nothing of answers.
    let answer = complete(rows, None, text, context).ok().map(|b| b.tokens() as f64 / n);
    Some(Seen { rows: prompts.len(), prompt, answer })
}
