//! `nrlc export nemo-rl`: a recipe as a configuration of NeMo RL.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use nrl_base::{Diagnostic, SourceMap};
use nrl_driver::Files;
use nrl_nemo::{ExportOptions, Exported, Loader};

use crate::disk::Disk;
use crate::{import, report};

/// Writes a recipe for another system
#[derive(Args, Debug)]
#[command(override_usage = "nrlc export nemo-rl <RECIPE> [--nemo-rl <DIR>] [-o <DIR>]")]
pub struct ExportArgs {
    #[command(subcommand)]
    pub system: System,
}

/// Which system.
#[derive(Subcommand, Debug)]
pub enum System {
    NemoRl(NemoRlArgs),
}

/// A small YAML file over a recipe that NeMo RL ships, and how to start it
#[derive(Args, Debug)]
pub struct NemoRlArgs {
    /// Recipe file
    #[arg(value_name = "RECIPE")]
    pub file: String,
    /// Directory for the YAML file and the launch script; the terminal if left out
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Directory of NeMo RL, the one that holds `examples`
    #[arg(long, value_name = "DIR")]
    pub nemo_rl: Option<PathBuf>,
    /// Recipe to take, if the file has several
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> ExitCode {
    let System::NemoRl(args) = &args.system;
    let mut sources = SourceMap::new();
    match exported(args, &mut sources) {
        Ok(out) => {
            report::print(&lost(&out), &sources);
            show(args, &out)
        }
        Err(found) => {
            report::print(&found, &sources);
            ExitCode::from(1)
        }
    }
}

fn exported(args: &NemoRlArgs, sources: &mut SourceMap) -> Result<Exported, Vec<Diagnostic>> {
    let bytes = Disk.read(&args.file).map_err(|why| {
        vec![Diagnostic::error("file-not-read", format!("cannot read {}: {why}", args.file))]
    })?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let id = sources.add(&args.file, text.as_str());
    let (file, problems) = nrl_syntax::parse_bytes(id, &bytes);
    if problems.iter().any(Diagnostic::is_error) {
        return Err(problems);
    }
    let root = root(&args.file, args.nemo_rl.as_deref());
    let folder = args.out.clone().unwrap_or_default();
    let options = ExportOptions {
        root: &root_text(&args.file, args.nemo_rl.as_deref()),
        defaults: &|over| relative(&folder, &root.join(over)),
        config: &|name| folder.join(format!("{name}.yaml")).display().to_string(),
        recipe: args.recipe.as_deref(),
    };
    let mut loader = Loader::new(&Disk).environment(std::env::vars().collect());
    nrl_nemo::export(&mut loader, sources, &file, &options)
}

/// Where NeMo RL is: as told, or the nearest directory above the recipe or here that holds its
/// examples.
pub fn root(file: &str, given: Option<&Path>) -> PathBuf {
    if let Some(root) = given {
        return root.to_path_buf();
    }
    let beside = Path::new(file).parent().unwrap_or(Path::new(""));
    let here = std::env::current_dir().unwrap_or_default();
    let from = std::path::absolute(beside).unwrap_or_default();
    let above = from.ancestors().chain(here.ancestors());
    let found = above.map(Path::to_path_buf).find(|dir| dir.join("examples/configs").is_dir());
    found.unwrap_or_default()
}

/// The same as the start of a path: empty, or ending in `/`.
pub fn root_text(file: &str, given: Option<&Path>) -> String {
    let root = root(file, given);
    if root.as_os_str().is_empty() { String::new() } else { format!("{}/", root.display()) }
}

/// A file as seen from a directory.
fn relative(folder: &Path, file: &Path) -> String {
    let (Ok(folder), Ok(file)) = (std::path::absolute(folder.join(".")), std::path::absolute(file))
    else {
        return file.display().to_string();
    };
    let common = folder.components().zip(file.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(common).map(|_| "..".to_string());
    let down = file.components().skip(common).map(|c| c.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// What NeMo RL cannot say, as notes.
fn lost(out: &Exported) -> Vec<Diagnostic> {
    let note = |lost: &nrl_nemo::Lost| {
        let said = format!("NeMo RL cannot say this: {}", lost.what);
        Diagnostic::warning("lost-meaning", said).label(lost.span, "left out")
    };
    out.lost.iter().map(note).collect()
}

fn show(args: &NemoRlArgs, out: &Exported) -> ExitCode {
    let Some(folder) = &args.out else {
        print!("{}", out.yaml);
        println!("# Start it with:");
        out.launch.lines().for_each(|line| println!("#   {line}"));
        return ExitCode::SUCCESS;
    };
    if let Err(why) = std::fs::create_dir_all(folder) {
        let said = format!("cannot make {}: {why}", folder.display());
        report::print(&[Diagnostic::error("file-failed", said)], &SourceMap::new());
        return ExitCode::from(1);
    }
    let yaml = import::write(&folder.join(format!("{}.yaml", out.name)), &out.yaml);
    let script = format!("#!/bin/sh\n{}", out.launch);
    let launch = import::write(&folder.join(format!("{}.sh", out.name)), &script);
    if yaml == ExitCode::SUCCESS { launch } else { yaml }
}
