//! `nrlc validate`: measured runs beside what the planner says of them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use nrl_driver::{Assume, Options};
use nrl_planner::input::{Input, Request};
use nrl_planner::rows::{Row, Table, Verdict, calibrate, fit, read};
use nrl_planner::runs;
use nrl_planner::steps;
use nrl_sim::rl_stack::RlStacks;
use nrl_sim::tables::Tables;

use crate::disk::Disk;
use crate::{machine, report};

/// Predicts every row of a table of measured runs, and says how far it is off
#[derive(clap::Args, Debug)]
pub struct ValidateArgs {
    /// Tables of measured values, a row each (model, layout, machine, metric, value), or of whole steps;
    /// runs (`runs/3`), or JSON lines of metrics, ours or those of NeMo RL
    #[arg(value_name = "ROWS.csv", required = true)]
    pub files: Vec<PathBuf>,
    /// Prints text, or one JSON object
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    /// Recipe that metrics were measured with, instead of the one beside them
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<String>,
    /// Overrides a value of that recipe
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Prints every row, not only the summary
    #[arg(long)]
    pub all: bool,
    /// Takes only rows whose source contains this text
    #[arg(long, value_name = "TEXT")]
    pub source: Option<String>,
    /// Calibration tables to use instead of those that ship
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,
    /// Fits rates to the rows and writes them as a calibration table
    #[arg(long, value_name = "FILE")]
    pub fit: Option<PathBuf>,
    /// Fits rates to rows whose source contains this text ...
    #[arg(long, value_name = "TEXT", requires = "test_on")]
    pub fit_on: Option<String>,
    /// ... and predicts those whose source contains this one; no row is in both
    #[arg(long, value_name = "TEXT", requires = "fit_on")]
    pub test_on: Option<String>,
    /// Fits rates to every second run of each source and predicts the others
    #[arg(long, conflicts_with_all = ["fit", "fit_on"])]
    pub half: bool,
    /// Predicts the rows of each publisher with rates fitted to those of all others
    #[arg(long, conflicts_with_all = ["fit", "fit_on", "half", "tables"])]
    pub leave_one_out: bool,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Human,
    Json,
}

/// Runs the command.
pub fn run(args: &ValidateArgs) -> ExitCode {
    match verdict(args) {
        Ok(v) => {
            match args.format {
                Format::Human => print!("{}", v.text(args.all)),
                Format::Json => match serde_json::to_string_pretty(&v) {
                    Ok(s) => println!("{s}"),
                    Err(e) => return fail(&e.to_string()),
                },
            }
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(1)
}

fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// The metrics that a run directory stands for, or a file of them.
fn metrics(file: &Path) -> Option<PathBuf> {
    if file.is_dir() {
        return Some(file.join("metrics.jsonl"));
    }
    let lines = file.extension().is_some_and(|e| e == "jsonl");
    let named = |text: String| runs::is_metrics(&text);
    (lines || text(file).is_ok_and(named)).then(|| file.to_path_buf())
}

/// A run beside the forecast of its recipe.
fn measured(args: &ValidateArgs, file: &Path, metrics: &Path) -> Result<Verdict, String> {
    let told = |e: String| format!("{}: {e}", metrics.display());
    let run = runs::read(&text(metrics)?).map_err(told)?;
    let beside = metrics.with_file_name("recipe.nrl");
    let recipe = match &args.recipe {
        Some(recipe) => recipe.clone(),
        None if beside.is_file() => beside.display().to_string(),
        None => {
            let beside = metrics.display();
            return Err(format!(
                "{beside} has no recipe.nrl beside it; name the recipe with `--recipe FILE`"
            ));
        }
    };
    let assume = machine::assume(args.tables.as_deref())?;
    let options = Options { sets: args.sets.clone(), ..Options::default() };
    let request = Request { path: recipe.clone(), options, assume, ..Request::default() };
    let (input, found) = Input::open(&Disk, &request);
    report::print(&found.found, &found.sources);
    let mut input = input.ok_or_else(|| format!("{recipe} cannot be read"))?;
    let (planned, found) = input.plan();
    report::print(&found.found, &found.sources);
    let planned = planned.ok_or_else(|| format!("{recipe} does not compile"))?;
    machine::look(&planned.compiled, &mut input.assume);
    let plan = |lengths| {
        let assume = Assume { lengths, ..input.assume.clone() };
        nrl_driver::forecast(&planned.compiled, &assume)
    };
    Ok(runs::verdict(&file.display().to_string(), &run, &plan))
}

/// A table of whole steps: predicted, or fitted on some of its rows and predicted on the others.
fn whole_steps(args: &ValidateArgs, table: &str) -> Result<steps::Report, String> {
    let given = args.tables.as_deref().map(text).transpose()?;
    let given = given.map(|t| RlStacks::parse(&t)).transpose()?;
    let stacks = given.as_ref().unwrap_or(RlStacks::shipped());
    let table = steps::Table::new(table)?;
    if args.half {
        let fitted = table.fit(&|c| c.line % 2 == 0, stacks);
        return Ok(table.report(&fitted.stacks, &|c| c.line % 2 == 1));
    }
    if let (Some(on), Some(test)) = (&args.fit_on, &args.test_on) {
        let of = |c: &steps::Case, text: &str| {
            format!("{} {}", c.row.version, c.row.source).contains(text)
        };
        let fitted = table.fit(&|c| of(c, on) && !of(c, test), stacks);
        return Ok(table.report(&fitted.stacks, &|c| of(c, test)));
    }
    let Some(file) = &args.fit else { return Ok(table.report(stacks, &|_| true)) };
    let fitted = table.fit(&|_| true, stacks).stacks;
    let json = serde_json::to_string_pretty(&fitted).map_err(|e| e.to_string())?;
    std::fs::write(file, json + "\n")
        .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    Ok(table.report(&fitted, &|_| true))
}

fn verdict(args: &ValidateArgs) -> Result<Verdict, String> {
    let mut rows = vec![];
    let mut steps = Verdict::default();
    for file in &args.files {
        if let Some(metrics) = metrics(file) {
            steps = steps.join(measured(args, file, &metrics)?);
            continue;
        }
        let text = text(file)?;
        let told = |e: String| format!("{}: {e}", file.display());
        if steps::is_steps(&text) {
            let report = whole_steps(args, &text).map_err(told)?;
            steps = steps.join(steps::verdict(&report, args.source.as_deref()));
        } else {
            rows.extend(read(&text).map_err(told)?);
        }
    }
    if !steps.lines.is_empty() && args.leave_one_out {
        return Err("sources are left out one by one in tables of single values".into());
    }
    if rows.is_empty() && !steps.lines.is_empty() {
        return Ok(steps);
    }
    if let Some(only) = &args.source {
        rows.retain(|r| r.source.contains(only.as_str()));
    }
    if rows.is_empty() {
        return Err("no row is left to predict".into());
    }
    let tables = match &args.tables {
        Some(file) => {
            Tables::parse(&text(file)?).map_err(|e| format!("{}: {e}", file.display()))?
        }
        None => Tables::shipped().clone(),
    };
    if args.half {
        let all = Table::new(rows.clone());
        let odd = |r: &Row| fit::half(r);
        let fitted = calibrate::tables(&all, "half", &odd);
        let rest = Table::new(rows.into_iter().filter(|r| !fit::half(r)).collect());
        return Ok(Verdict::of(&rest, &fitted));
    }
    if args.leave_one_out {
        return Ok(Verdict::left_out(&Table::new(rows)));
    }
    if let (Some(on), Some(test)) = (&args.fit_on, &args.test_on) {
        let tested = |r: &Row| r.source.contains(test.as_str());
        let known: Vec<Row> =
            rows.iter().filter(|r| r.source.contains(on.as_str()) && !tested(r)).cloned().collect();
        if known.is_empty() {
            return Err(format!(
                "no row to fit on: none has a source with `{on}` and without `{test}`"
            ));
        }
        let fitted = calibrate::tables(&Table::new(known), on, &|_| true);
        let rest = Table::new(rows.into_iter().filter(tested).collect());
        return Ok(Verdict::of(&rest, &fitted));
    }
    let table = Table::new(rows);
    let Some(file) = &args.fit else { return Ok(Verdict::of(&table, &tables).join(steps)) };
    let fitted = calibrate::tables(&table, env!("CARGO_PKG_VERSION"), &|_| true);
    let json = serde_json::to_string_pretty(&fitted).map_err(|e| e.to_string())?;
    std::fs::write(file, json + "\n")
        .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    Ok(Verdict::of(&table, &fitted))
}
