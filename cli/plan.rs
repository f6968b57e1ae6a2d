//! `nrlc plan`: what a recipe will cost, as a screen, as JSON or as a page, and against another one; and the text of
//! every phase of the compiler.
//!
//! In: a `.nrl` file, or YAML of NeMo RL, which is imported in memory. Out: the report of `nrl_planner`; colors are added
//! here, on terminals alone.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use nrl_base::{Diagnostic, SourceMap};
use nrl_driver::{Assume, Options, Phase};
use nrl_planner::input::{Input, Planned, Request};
use nrl_planner::report::{Comparison, Made, Report, changes, page, screen};
use nrl_rules::recipe::Version;

use crate::disk::Disk;
use crate::search::{self, SearchArgs};
use crate::{machine, report};

/// Shows what a recipe will cost: seconds, memory, and what would make it cheaper
#[derive(clap::Args, Debug)]
pub struct PlanArgs {
    /// Recipe file: .nrl, or .yaml of NeMo RL
    #[arg(value_name = "RECIPE")]
    pub file: String,
    /// Overrides of a YAML file as NeMo RL takes them
    #[arg(value_name = "OVERRIDE")]
    pub overrides: Vec<String>,
    /// Prints the program after this phase instead: lower, simplify, grad, shard, fuse or schedule
    #[arg(long, value_name = "PHASE", value_parser = phase)]
    pub emit: Option<Phase>,
    /// Overrides a value, such as `lr=1e-6`, `policy.path=DIR` or `m.tp=2`
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Number of ranks instead of the recipe's
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Recipe to take, if the file has several
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// How the plan is written; docs/plan-json.md describes the JSON
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    /// Writes a page for browsers, which needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Shows what differs from the plan of another recipe
    #[arg(long, value_name = "RECIPE")]
    pub against: Option<String>,
    /// Device that a YAML file stands for, such as `h200`: it names none
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Directory of NeMo RL, the one that holds `examples`, for a .nrl file with a block of its settings
    #[arg(long, value_name = "DIR")]
    pub nemo_rl: Option<PathBuf>,
    /// Version of NeMo RL that settings are for: `0.3`, or the newest if left out
    #[arg(long, value_name = "VERSION", value_parser = crate::check::nemo_version)]
    pub nemo_version: Option<Version>,
    /// Software whose rates count, such as `megatron`; by the layout if left out
    #[arg(long, value_name = "NAME")]
    pub stack: Option<String>,
    /// What was measured of this machine (`nrlc calibrate`), or rates of stacks, instead of those that are known
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,
    /// Prints the plans that engines run, as JSON
    #[arg(long, conflicts_with_all = ["format", "html", "against", "emit"])]
    pub plans: bool,
    /// Prints how long each phase of the compiler took
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// How a plan is written.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One screen
    Human,
    /// One JSON object
    Json,
}

fn phase(s: &str) -> Result<Phase, String> {
    Phase::find(s).ok_or_else(|| format!("phases are {}", Phase::ALL.map(Phase::name).join(", ")))
}

/// Columns of the screen: those of the terminal where `COLUMNS` says so.
fn width() -> usize {
    std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).unwrap_or(118)
}

impl PlanArgs {
    fn request(&self, file: &str) -> Result<Request, ExitCode> {
        let assume = Assume { stack: self.stack.clone(), ..self.measured()? };
        Ok(Request {
            path: file.to_string(),
            overrides: self.overrides.clone(),
            environment: std::env::vars().collect(),
            nemo_root: crate::export::root_text(file, self.nemo_rl.as_deref()),
            gpu: self.gpu.clone(),
            version: self.nemo_version.unwrap_or_default(),
            options: Options {
                sets: self.sets.clone(),
                ranks: self.ranks,
                recipe: self.recipe.clone(),
                emit: self.emit,
                assume: assume.clone(),
                ..Options::default()
            },
            assume,
        })
    }

    /// What was measured, of this machine or of others.
    fn measured(&self) -> Result<Assume, ExitCode> {
        machine::assume(self.tables.as_deref()).map_err(|why| {
            report::print(&[Diagnostic::error("file-not-read", why)], &SourceMap::new());
            ExitCode::from(1)
        })
    }
}

/// Opens and plans a recipe; findings go to standard error.
pub fn opened(request: &Request) -> Result<(Input<'static>, Planned), ExitCode> {
    let (input, found) = Input::open(&Disk, request);
    let failed = || ExitCode::from(1);
    report::print(&found.found, &found.sources);
    let mut input = input.ok_or_else(failed)?;
    let (planned, found) = input.plan();
    report::print(&found.found, &found.sources);
    let mut planned = planned.ok_or_else(failed)?;
    if machine::look(&planned.compiled, &mut input.assume) {
        planned.forecast = input.forecast(&planned.compiled);
    }
    Ok((input, planned))
}

fn reported(input: &Input<'_>, planned: &Planned) -> Report {
    let mut report = Report::of(&Made {
        compiled: &planned.compiled,
        forecast: planned.forecast.as_ref(),
        sources: &planned.sources,
        file: &input.file,
    });
    report.changes = changes(input, planned);
    report
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> ExitCode {
    if !args.overrides.is_empty() && !nrl_planner::input::is_yaml(&args.file) {
        let said = format!("`{}` overrides a YAML file", args.overrides[0]);
        let d = Diagnostic::error("bad-override", said).help("write `--set path=value`");
        report::print(&[d], &SourceMap::new());
        return ExitCode::from(2);
    }
    if args.search.search {
        return searched(args);
    }
    match shown(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => code,
    }
}

/// Looks for a better layout instead.
fn searched(args: &PlanArgs) -> ExitCode {
    let request = match args.request(&args.file) {
        Ok(request) => request,
        Err(code) => return code,
    };
    let (input, found) = Input::open(&Disk, &request);
    report::print(&found.found, &found.sources);
    match input {
        Some(input) => search::run(&args.search, &input, args.format == Format::Json),
        None => ExitCode::from(1),
    }
}

fn shown(args: &PlanArgs) -> Result<(), ExitCode> {
    let (input, planned) = opened(&args.request(&args.file)?)?;
    let c = &planned.compiled;
    if args.emit.is_some() {
        print_all(&(c.emitted.join("\n") + "\n"));
    } else if args.plans {
        print_all(&(json(&c.plans)? + "\n"));
    } else {
        reports(args, &input, &planned)?;
    }
    if args.verbose {
        for (name, t) in &c.timings {
            println!("{name:>10} {:8.2} ms", t.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

fn reports(args: &PlanArgs, input: &Input<'_>, planned: &Planned) -> Result<(), ExitCode> {
    let own = reported(input, planned);
    let other = match &args.against {
        Some(file) => {
            let (input, planned) = opened(&Request { gpu: None, ..args.request(file)? })?;
            Some(reported(&input, &planned))
        }
        None => None,
    };
    if let Some(path) = &args.html {
        write(path, &page(&own, other.as_ref()))?;
        eprintln!("wrote {}", path.display());
    }
    match (args.format, &other) {
        (Format::Json, Some(other)) => print_all(&(json(&Comparison::of(&own, other))? + "\n")),
        (Format::Json, None) => print_all(&(json(&own)? + "\n")),
        (Format::Human, Some(other)) => print_all(&Comparison::of(&own, other).text()),
        (Format::Human, None) if args.html.is_some() => {}
        (Format::Human, None) => print_all(&painted(screen(&own, width()))),
    }
    Ok(())
}

fn json(value: &impl serde::Serialize) -> Result<String, ExitCode> {
    serde_json::to_string_pretty(value).map_err(|why| {
        eprintln!("error: {why}");
        ExitCode::from(1)
    })
}

fn write(path: &std::path::Path, text: &str) -> Result<(), ExitCode> {
    std::fs::write(path, text).map_err(|why| {
        let said = format!("cannot write {}: {why}", path.display());
        report::print(&[Diagnostic::error("file-failed", said)], &SourceMap::new());
        ExitCode::from(1)
    })
}

/// Writes to standard output; a reader that has gone away is no error.
pub fn print_all(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Headings in bold, guesses and what does not fit in red, on terminals alone.
pub fn painted(text: String) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain || !std::io::stdout().is_terminal() {
        return text;
    }
    let loud = ["DOES NOT FIT", "does not fit", "GUESS", "FAILS", "MORE THAN", "<- tightest"];
    let mut out = String::new();
    for line in text.lines() {
        let first: &str = line.split("  ").next().unwrap_or("");
        let heading =
            !first.is_empty() && first.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
        let mut line = match heading {
            true => format!("\u{1b}[1m{first}\u{1b}[0m{}", &line[first.len()..]),
            false => line.to_string(),
        };
        for word in loud {
            line = line.replace(word, &format!("\u{1b}[31m{word}\u{1b}[0m"));
        }
        out += &line;
        out.push('\n');
    }
    out
}
