//! Published steps of reinforcement learning beside what the planner says of them.
//!
//! In: rows of a table of whole steps (model, devices, layout, lengths, seconds by phase), tables of stacks. Out: seconds by phase for
//! every row, errors, and the rows that cannot be said, each with the reason. Each row goes the way of a
//! recipe: text, compiler, plan, forecast; nothing is known of a row but its columns.

pub mod fit;
mod recipe;
mod row;
#[cfg(test)]
mod tests;
mod verdict;

use nrl_base::SourceMap;
use nrl_driver::{Assume, Compiled, Options};
use nrl_sim::forecast::{Kind, Source, Step};
use nrl_sim::rl_stack::RlStacks;
use serde::Serialize;

pub use recipe::{Asked, facts, recipe, split};
pub use row::{Backend, Mesh, Row, read};
pub use verdict::verdict;

/// One number beside its measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub phase: &'static str,
    pub predicted: f64,
    pub measured: f64,
}

impl Compared {
    /// Share by which the prediction is above the measurement.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// A row, compiled: it can be forecast again and again.
pub struct Case {
    /// Line of the table.
    pub line: usize,
    pub row: Row,
    asked: Asked,
    compiled: Compiled,
}

/// A row and what was said of it.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Line of the table.
    pub line: usize,
    pub row: Row,
    pub source: Source,
    pub step: Step,
    /// `step`, then the phases that the row states.
    pub compared: Vec<Compared>,
}

/// A table of rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub judged: Vec<Judged>,
    /// Line of the table, and why nothing is said of it.
    pub left_out: Vec<(usize, String)>,
}

impl Report {
    /// Errors of `phase`, as shares, without sign, the smallest first.
    pub fn errors(&self, phase: &str) -> Vec<f64> {
        let all = self.judged.iter().flat_map(|j| &j.compared);
        let mut errors: Vec<f64> =
            all.filter(|c| c.phase == phase).map(|c| c.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors
    }
}

/// Whether `text` is a table of steps: one that is has a column for the seconds of one.
pub fn is_steps(text: &str) -> bool {
    text.lines().next().is_some_and(|header| header.split(',').any(|name| name == "step_s"))
}

/// A row that is not said: its line, and why.
pub type LeftOut = (usize, String);

/// A table, compiled.
pub struct Table {
    pub cases: Vec<Case>,
    pub left_out: Vec<LeftOut>,
}

impl Table {
    /// Compiles every row of `text`, on all cores.
    pub fn new(text: &str) -> Result<Table, String> {
        let rows = read(text)?;
        let made = nrl_driver::each(&rows, &|(line, row)| {
            row.clone().and_then(|row| case(*line, row)).map_err(|why| (*line, why))
        });
        let mut table = Table { cases: vec![], left_out: vec![] };
        for case in made {
            match case {
                Ok(c) => table.cases.push(c),
                Err(why) => table.left_out.push(why),
            }
        }
        Ok(table)
    }

    /// The rows that `take` accepts, predicted with the rates of `stacks`.
    pub fn report(&self, stacks: &RlStacks, take: &dyn Fn(&Case) -> bool) -> Report {
        let mut report = Report { judged: vec![], left_out: self.left_out.clone() };
        let cases: Vec<&Case> = self.cases.iter().filter(|c| take(c)).collect();
        for (line, judged) in nrl_driver::each(&cases, &|c| (c.line, c.judge(stacks))) {
            match judged {
                Ok(judged) => report.judged.push(judged),
                Err(why) => report.left_out.push((line, why)),
            }
        }
        report.left_out.sort();
        report
    }

    /// Stacks fitted to the rows that `take` accepts, from `stacks`.
    pub fn fit(&self, take: &dyn Fn(&Case) -> bool, stacks: &RlStacks) -> fit::Fitted {
        fit::fit(&self.cases, take, stacks, fit::STAY)
    }
}

fn case(line: usize, row: Row) -> Result<Case, String> {
    let asked = recipe(&row)?;
    let options = Options { assume: asked.assume.clone(), ..Options::default() };
    let (compiled, found) =
        nrl_driver::compile(&asked.files, &mut SourceMap::new(), "r.nrl", &options);
    let compiled = compiled.ok_or_else(|| {
        let first = found.iter().find(|d| d.is_error());
        first.map_or("it does not compile".to_string(), |d| d.message.clone())
    })?;
    Ok(Case { line, row, asked, compiled })
}

/// Predicts every row of `text`.
pub fn validate(text: &str, stacks: &RlStacks) -> Result<Report, String> {
    Ok(Table::new(text)?.report(stacks, &|_| true))
}

impl Case {
    /// What the forecast takes for granted.
    pub fn assume(&self) -> &Assume {
        &self.asked.assume
    }

    /// The row beside its forecast with the rates of `stacks`.
    pub fn judge(&self, stacks: &RlStacks) -> Result<Judged, String> {
        let (row, step) = (&self.row, self.step(stacks)?);
        let of = |kind: Kind| -> f64 {
            step.phases.iter().filter(|p| p.kind == kind).map(|p| p.seconds.value).sum()
        };
        let pairs = [
            ("step", step.seconds.value, Some(row.step_s)),
            ("sample", of(Kind::Sample), row.gen_s),
            ("logprob", of(Kind::Score), row.logprob_s),
            ("update", of(Kind::Update), row.train_s),
            ("refit", of(Kind::Refit), row.refit_s),
        ];
        let compared = pairs
            .into_iter()
            .filter_map(|(phase, predicted, m)| {
                m.map(|measured| Compared { phase, predicted, measured })
            })
            .collect();
        let known = stacks.node(&row.gpu).is_some();
        let source = if known { Source::Calibrated } else { Source::Interpolated };
        Ok(Judged { line: self.line, row: row.clone(), source, step, compared })
    }

    /// The forecast of its step.
    pub fn step(&self, stacks: &RlStacks) -> Result<Step, String> {
        let mut assume = self.asked.assume.clone();
        assume.stacks = Some(stacks.clone());
        let forecast = nrl_driver::forecast(&self.compiled, &assume).ok_or("no machine")?;
        let step = forecast.steps.into_iter().next().ok_or("no step")?;
        if !step.phases.iter().any(|p| p.kind == Kind::Sample) {
            return Err(
                "its sampler keeps no sample: the pool of keys and values is too small".into()
            );
        }
        Ok(step)
    }
}
