//! `nrlc plan RECIPE --search`: a better layout, found and maybe written.

use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use nrl_planner::input::{Input, is_yaml};
use nrl_planner::search::{Goal, SearchOptions, search};

use crate::report;

/// Which layouts to look for
#[derive(clap::Args, Debug)]
pub struct SearchArgs {
    /// Looks for a better layout: sizes of meshes, stages, experts, micro-batches, recomputation
    #[arg(long)]
    pub search: bool,
    /// Writes the best layout into the recipe, and shows the lines that change
    #[arg(long, requires = "search")]
    pub apply: bool,
    /// Only layouts that learn the same, rounding aside
    #[arg(long, requires = "search")]
    pub keep_maths: bool,
    /// What counts
    #[arg(long = "for", value_name = "GOAL", default_value = "time")]
    pub goal: What,
    /// Lines of the table
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Leaves a choice as it is, such as `train.tp`, `microbatch` or `plan`; the comment `# pinned` does
    /// so in the recipe
    #[arg(long = "pin", value_name = "CHOICE", requires = "search")]
    pub pins: Vec<String>,
}

/// What a search is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    Time,
    Memory,
}

/// Searches, and prints what was found.
pub fn run(args: &SearchArgs, input: &Input<'_>, json: bool) -> ExitCode {
    let how = SearchOptions {
        goal: if args.goal == What::Time { Goal::Time } else { Goal::Memory },
        keep_maths: args.keep_maths,
        top: args.top,
        pins: args.pins.clone(),
    };
    let start = Instant::now();
    let found = match search(input, &how) {
        Ok(found) => found,
        Err(f) => {
            report::print(&f.found, &f.sources);
            return ExitCode::from(1);
        }
    };
    if json {
        match serde_json::to_string_pretty(&found) {
            Ok(text) => println!("{text}"),
            Err(e) => return fail(&e.to_string()),
        }
    } else {
        print!("{}", found.text());
        println!("\nsearched for {:.1} s", start.elapsed().as_secs_f64());
    }
    if !args.apply || found.new_lines.is_empty() {
        return ExitCode::SUCCESS;
    }
    if is_yaml(&input.file) {
        return fail("a layout is written into recipes; import this file first: `nrlc import`");
    }
    if let Err(e) = std::fs::write(&input.file, &found.text) {
        return fail(&format!("cannot write {}: {e}", input.file));
    }
    if !json {
        print!("\nwritten into {}\n{}", input.file, found.diff());
    }
    ExitCode::SUCCESS
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(1)
}
