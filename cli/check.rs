//! `nrlc check`: proves what can be proved before a run.
//!
//! In: recipes of any kind, several at once, what the project has accepted, and a format. Out: the findings
//! (human ones on standard error, all others on standard output) and an exit code: 0 if nothing is wrong, 1 if
//! something is, 2 if the command makes no sense or a file that it names cannot be read.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use nrl_base::{Diagnostic, Files};
use nrl_driver::Compiled;
use nrl_ide::checking::{Language, Options, check};
use nrl_ide::findings::{self, Baseline, Checked, Totals};
use nrl_planner::input::{Input, Request};
use nrl_rules::recipe::Version;
use nrl_runtime::files;

use crate::disk::Disk;
use crate::report::{self, Style};

/// Checks recipes without running anything
#[derive(clap::Args, Debug)]
pub struct CheckArgs {
    /// Recipes (.nrl), directories of them, NeMo RL recipes (.yaml), and overrides of the latter: a.b=c, +a.b=c, ++a.b=c, ~a.b
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Overrides a value of an `.nrl` recipe, such as `lr=1e-6`, `policy.path=DIR` or `m.tp=2`
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Number of ranks instead of the recipe's
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Recipe to check, if a file has several
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// Version of NeMo RL that YAML recipes are for: `0.3`, or the newest if left out
    #[arg(long, value_name = "VERSION", value_parser = nemo_version)]
    pub nemo_version: Option<Version>,
    /// Time after which the job that runs it is ended, as Slurm takes it: `4:00:00`, `1-12`, or `4h`
    #[arg(long, value_name = "TIME", value_parser = wall_time)]
    pub time: Option<f64>,
    /// Counts warnings as errors
    #[arg(long, value_name = "WHAT")]
    pub deny: Option<Deny>,
    /// How findings are written
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    /// File of findings that are accepted, with reasons
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Writes what is found into a baseline, to be given reasons
    #[arg(long, value_name = "FILE")]
    pub write_baseline: Option<PathBuf>,
}

/// What may not remain.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deny {
    Warnings,
}

/// How findings are written.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// With the lines they are about
    Human,
    /// One JSON object per line, see docs/check-output.md
    Json,
    /// One SARIF 2.1.0 log
    Sarif,
    /// Annotations of GitHub workflows
    Github,
}

const MISUSE: u8 = 2;

/// Runs the command.
pub fn run(args: &CheckArgs) -> ExitCode {
    let baseline = match args.baseline.as_deref().map(read_baseline).transpose() {
        Ok(baseline) => baseline,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(MISUSE);
        }
    };
    let (names, options) = match split(args) {
        Ok(split) => split,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(MISUSE);
        }
    };
    let mut misused = false;
    let mut checked: Vec<Checked> = names
        .iter()
        .map(|file| {
            let unreadable = Disk.read(file).err();
            misused |= unreadable.is_some();
            unreadable.map_or_else(|| one(&options, file), |why| missing(file, &why))
        })
        .collect();
    let about = findings::accept(&mut checked, baseline.as_ref());
    if let Some(path) = &args.write_baseline {
        return write_baseline(path, &checked, baseline.as_ref(), misused);
    }
    if !about.findings.is_empty() {
        checked.push(about);
    }
    let totals = Totals::sum(&checked);
    let denied = args.deny == Some(Deny::Warnings) && totals.warnings > 0;
    let exit = match (misused, totals.errors > 0 || denied) {
        (true, _) => MISUSE,
        (_, failed) => u8::from(failed),
    };
    match args.format {
        Format::Human => human(&checked, args),
        Format::Json => {
            let lines: String = checked.iter().map(findings::json_file).collect();
            print!("{lines}{}", findings::json_summary(&checked, exit));
        }
        Format::Sarif => print!("{}", findings::sarif(&checked, env!("CARGO_PKG_VERSION"))),
        Format::Github => checked.iter().for_each(|c| print!("{}", findings::github(c))),
    }
    ExitCode::from(exit)
}

fn read_baseline(path: &std::path::Path) -> Result<Baseline, String> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
    Baseline::read(&name, &text)
}

/// Writes what is left; the reasons are for people to fill in.
fn write_baseline(
    path: &std::path::Path,
    checked: &[Checked],
    old: Option<&Baseline>,
    misused: bool,
) -> ExitCode {
    let new = Baseline::of(&path.display().to_string(), checked, old);
    if let Err(e) = files::write_file(path, new.json().as_bytes()) {
        eprintln!("error: cannot write {}: {e}", path.display());
        return ExitCode::from(MISUSE);
    }
    let bare = new.entries.iter().filter(|e| e.reason.is_empty()).count();
    println!("{}: {} findings, {bare} without a reason", path.display(), new.entries.len());
    ExitCode::from(if misused { MISUSE } else { 0 })
}

fn missing(file: &str, why: &str) -> Checked {
    let d = Diagnostic::error("file-not-read", format!("cannot read {file}: {why}"));
    Checked { file: file.to_string(), findings: vec![d], ..Checked::default() }
}

/// The files, and how to check them. What looks like an override of NeMo RL, and is no file, is one.
fn split(args: &CheckArgs) -> Result<(Vec<String>, Options), String> {
    let (overrides, files): (Vec<String>, Vec<String>) =
        args.files.iter().cloned().partition(|a| is_override(a));
    let any = |language| files.iter().any(|f| Language::of(f) == language);
    if files.is_empty() {
        return Err("no file is named".into());
    }
    let given = files.len();
    let files = crate::walk::recipes(&files);
    if files.is_empty() {
        return Err(match given {
            1 => "the directory holds no .nrl file".into(),
            _ => "the directories hold no .nrl file".into(),
        });
    }
    if let (Some(first), false) = (overrides.first(), any(Language::Nemo)) {
        return Err(format!(
            "`{first}` overrides NeMo RL recipes; write `--set {first}` for an .nrl file"
        ));
    }
    if let (Some(first), false) = (args.sets.first(), any(Language::Nrl)) {
        return Err(format!("`--set` is for .nrl files; write `{first}` behind a YAML file"));
    }
    let options = Options {
        sets: args.sets.clone(),
        ranks: args.ranks,
        recipe: args.recipe.clone(),
        overrides,
        version: args.nemo_version.unwrap_or_default(),
        assume: crate::machine::assume(None).unwrap_or_default(),
        job: args.time,
        step: None,
    };
    Ok((files, options))
}

fn is_override(arg: &str) -> bool {
    let marked = arg.starts_with('+') || arg.starts_with('~') && !arg.contains('/');
    (marked || arg.contains('=')) && !std::path::Path::new(arg).exists()
}

/// Seconds of a time as Slurm takes it: `90` (minutes), `90:00`, `4:00:00`, `1-12`, `1-12:30`, `1-12:30:00`; or
/// `4h`, `90min`.
fn wall_time(text: &str) -> Result<f64, String> {
    let number = |t: &str| t.trim().parse::<u32>().ok().map(f64::from);
    let sum = |text: &str, scales: &[f64]| {
        let parts: Option<Vec<f64>> = text.split(':').map(number).collect();
        let parts = parts.filter(|p| p.len() <= scales.len())?;
        Some(parts.iter().zip(scales).map(|(n, s)| n * s).sum::<f64>())
    };
    let (minute, hour, day) = (60.0, 3_600.0, 86_400.0);
    let words = [("min", minute), ("h", hour), ("d", day), ("s", 1.0)];
    let word = words.iter().find_map(|(w, s)| {
        let n = text.strip_suffix(w)?.trim().parse::<f64>().ok().filter(|n| n.is_finite())?;
        Some(n * s)
    });
    let seconds = word.or_else(|| match text.split_once('-') {
        Some((days, rest)) => Some(number(days)? * day + sum(rest, &[hour, minute, 1.0])?),
        None if text.matches(':').count() == 2 => sum(text, &[hour, minute, 1.0]),
        None => sum(text, &[minute, 1.0]),
    });
    seconds
        .filter(|s| *s > 0.0)
        .ok_or_else(|| "a time is written as `4:00:00`, `1-12:00:00` (days), or `4h`".into())
}

/// What a step of a NeMo RL recipe is predicted to take, if it can be planned.
fn step_seconds(file: &str, options: &Options) -> Option<[f64; 3]> {
    let request = Request {
        path: file.to_string(),
        overrides: options.overrides.clone(),
        assume: options.assume.clone(),
        ..Request::default()
    };
    let (input, _) = Input::open(&Disk, &request);
    let planned = input?.plan().0?;
    let s = planned.forecast?.steps.first()?.seconds;
    Some([s.low, s.value, s.high])
}

/// `0.3`, `0.3.1`; later ones are like the newest.
pub fn nemo_version(text: &str) -> Result<Version, String> {
    let text = text.trim_start_matches('v');
    let mut parts = text.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(0)), Some(Ok(3))) => Ok(Version::V0_3),
        (Some(Ok(major)), Some(Ok(minor))) if major > 0 || minor > 3 => Ok(Version::Newest),
        (Some(Ok(0)), Some(Ok(_))) => Err("0.3 is the oldest that is known".into()),
        _ => Err("a version is written as `0.3`".into()),
    }
}

/// Checks one file. A defect of the checker is a finding like others, and the next file is checked.
fn one(options: &Options, file: &str) -> Checked {
    let start = Instant::now();
    let mut checked = std::panic::catch_unwind(|| {
        let mut options = options.clone();
        if options.job.is_some() && Language::of(file) == Language::Nemo {
            options.step = step_seconds(file, &options);
        }
        let (checked, meaning) = check(&Disk, file, &options);
        let summary = meaning.compiled.as_ref().map(summary).or(checked.summary);
        Checked { summary, ..checked }
    })
    .unwrap_or_else(|_| {
        let d = Diagnostic::error("internal", format!("the check of {file} has failed"))
            .note("this is a bug in the compiler; please report it with the recipe");
        Checked { file: file.to_string(), findings: vec![d], ..Checked::default() }
    });
    checked.milliseconds = start.elapsed().as_secs_f64() * 1e3;
    checked
}

/// Findings with their lines; one line for each file without an error.
fn human(checked: &[Checked], args: &CheckArgs) {
    let style = Style::of_stderr();
    for c in checked {
        eprint!("{}", report::render(&c.findings, &c.sources, style));
        let accepted = match c.accepted.len() {
            0 => String::new(),
            n => format!(" ({n} accepted)"),
        };
        match (&c.summary, c.failed()) {
            (Some(s), false) => {
                println!("{}: ok in {:.0} ms{accepted}: {s}", c.file, c.milliseconds)
            }
            (None, false) if !c.accepted.is_empty() => {
                println!("{}: {} accepted", c.file, c.accepted.len())
            }
            _ => {}
        }
    }
    let totals = Totals::sum(checked);
    if checked.len() > 1 {
        let failed = checked.iter().filter(|c| c.failed()).count();
        println!(
            "{} files, {failed} with errors: {} errors, {} warnings, {} accepted",
            checked.len(),
            totals.errors,
            totals.warnings,
            totals.accepted
        );
    }
    if args.deny.is_some() && totals.warnings > 0 && totals.errors == 0 {
        eprintln!("warnings are errors here: `--deny warnings`");
    }
}
/// `2 phases, 130 steps; policy 0.31 M parameters; 2 ranks`.
fn summary(c: &Compiled) -> String {
    let p = &c.program;
    let steps: usize = p.phases.iter().map(|x| x.steps).sum();
    let phases = if p.phases.len() == 1 {
        "1 phase".to_string()
    } else {
        format!("{} phases", p.phases.len())
    };
    let models: Vec<String> = p
        .models
        .iter()
        .map(|m| format!("{} {} parameters", m.name, millions(parameters(m))))
        .collect();
    let ranks = p.models.iter().map(|m| p.meshes[m.mesh].1.ranks()).max().unwrap_or(1);
    // Optimizers run over flat weights, whatever their length: their bound says nothing.
    let models_only = c.plans.iter().filter(|p| !p.params.is_empty());
    let peak = models_only.map(|p| p.peak_bytes).fold(0.0, f64::max);
    format!(
        "{phases}, {steps} steps; {}; {ranks} rank{}; largest activations {:.0} MiB",
        models.join(", "),
        if ranks == 1 { "" } else { "s" },
        peak / 1_048_576.0
    )
}

/// Number of weights of a model.
pub fn parameters(m: &nrl_ir::program::Model) -> usize {
    m.params
        .iter()
        .map(|p| {
            p.repeat.as_ref().map_or(1, |(_, n)| *n)
                * p.dims.iter().map(|d| m.dims.bound(*d)).product::<usize>()
        })
        .sum()
}

/// `0.31 M`, `134.5 M`, `8.03 G`.
pub fn millions(n: usize) -> String {
    let x = n as f64;
    if x >= 1e9 {
        format!("{:.2} G", x / 1e9)
    } else if x >= 1e7 {
        format!("{:.1} M", x / 1e6)
    } else {
        format!("{:.2} M", x / 1e6)
    }
}
