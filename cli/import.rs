//! `nrlc import`: a recipe of NeMo RL in the language.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use nrl_base::{Diagnostic, SourceMap};
use nrl_nemo::Loader;

use crate::disk::Disk;
use crate::report;

/// Writes a recipe of NeMo RL in the language
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// YAML file
    #[arg(value_name = "FILE.yaml")]
    pub file: String,
    /// Overrides as NeMo RL takes them, such as `policy.train_global_batch_size=256`
    #[arg(value_name = "OVERRIDE")]
    pub overrides: Vec<String>,
    /// File to write; the terminal if left out
    #[arg(short, long, value_name = "FILE.nrl")]
    pub out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> ExitCode {
    let mut sources = SourceMap::new();
    let mut loader = Loader::new(&Disk).environment(std::env::vars().collect());
    let (text, found) = nrl_nemo::import(&mut loader, &mut sources, &args.file, &args.overrides);
    report::print(&found, &sources);
    let Some(text) = text else { return ExitCode::from(1) };
    let Some(path) = &args.out else {
        print!("{text}");
        return ExitCode::SUCCESS;
    };
    write(path, &text)
}

/// Writes a file, or says why not.
pub fn write(path: &std::path::Path, text: &str) -> ExitCode {
    match std::fs::write(path, text) {
        Ok(()) => {
            println!("wrote {}", path.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            let said = format!("cannot write {}: {why}", path.display());
            report::print(&[Diagnostic::error("file-failed", said)], &SourceMap::new());
            ExitCode::from(1)
        }
    }
}
