//! `nrlc test`: the `test` blocks of files.
//!
//! Tensors are computed by the f64 evaluator that judges the engines, everything else by the
//! elaborator. Exit code 1 if a test fails, or if there is none.

use std::process::ExitCode;

use nrl_base::{Problems, SourceMap};
use nrl_driver::trial::Tested;
use nrl_interp::run_batch;

use crate::disk::Disk;
use crate::report;

/// Runs the tests that files hold
#[derive(clap::Args, Debug)]
pub struct TestArgs {
    /// Files with `test` blocks
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Runs only the tests whose names hold this text
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
}

/// How many tests went how.
#[derive(Default)]
struct Counts {
    ok: usize,
    failed: usize,
    broken: usize,
}

/// Runs the command.
pub fn run(args: &TestArgs) -> ExitCode {
    let mut counts = Counts::default();
    for file in &args.files {
        one(file, args.filter.as_deref(), &mut counts);
    }
    let n = counts.ok + counts.failed;
    let tests = if n == 1 { "test" } else { "tests" };
    println!("{n} {tests}: {} ok, {} failed", counts.ok, counts.failed);
    if n == 0 && counts.broken == 0 {
        let which =
            args.filter.as_ref().map_or(String::new(), |f| format!(" whose name holds `{f}`"));
        eprintln!(
            "error: there is no test{which}; write `test \"what holds\" {{ assert a == b }}`"
        );
    }
    if counts.failed + counts.broken == 0 && n > 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn one(file: &str, filter: Option<&str>, counts: &mut Counts) {
    let mut sources = SourceMap::new();
    let (tests, problems) = nrl_driver::lower_tests(&Disk, &mut sources, file, filter);
    counts.broken += usize::from(problems.has_errors());
    report::print(&problems.into_sorted(), &sources);
    if !tests.is_empty() {
        println!("{file}");
    }
    for t in tests {
        let mut problems = Problems::new();
        problems.extend(t.problems.iter().cloned());
        let wrong = problems.has_errors();
        let lines = if wrong { vec![] } else { failures(&t, &sources) };
        if !wrong && lines.is_empty() {
            counts.ok += 1;
            println!("  ok      {}", t.name);
            continue;
        }
        counts.failed += 1;
        println!("  FAILED  {}", t.name);
        lines.iter().for_each(|l| println!("          {l}"));
        report::print(&problems.into_sorted(), &sources);
    }
}

/// A line for the place and one for the values of each claim that does not hold.
fn failures(t: &Tested, sources: &SourceMap) -> Vec<String> {
    let outputs = match &t.graph {
        None => vec![],
        Some(g) => match run_batch(g, &t.groups, &t.tokens, &t.values) {
            Ok(outputs) => outputs,
            Err(e) => return vec![format!("it cannot be computed: {e}")],
        },
    };
    let wrong = t.verdicts(&outputs).into_iter();
    wrong.flat_map(|(span, text, why)| [format!("{}: {text}", sources.place(span)), why]).collect()
}
