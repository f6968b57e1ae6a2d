//! The command line: one file per command.
//!
//! Exit codes: 0 if all went well, 1 if the recipe or the run has an error, 2 for arguments that make no sense.

pub mod args;
pub mod calibrate;
pub mod check;
pub mod diff;
pub mod disk;
pub mod doc;
pub mod eval;
pub mod explain;
pub mod export;
pub mod fmt;
pub mod generate;
pub mod import;
pub mod load;
pub mod lsp;
pub mod machine;
pub mod new;
pub mod plan;
pub mod repl;
pub mod report;
pub mod run;
pub mod score;
pub mod screen;
pub mod search;
pub mod test;
pub mod validate;
pub mod walk;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Repl(args) => repl::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Doc(args) => doc::run(&args),
        Command::Fmt(args) => fmt::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::New(args) => new::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Lsp(args) => lsp::run(&args),
    }
}
