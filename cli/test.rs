//! `nrlc test`: the `test` blocks of files.
//!
//! Tensors are computed by the f64 evaluator that judges the engines, everything else by the
//! elaborator. Of a directory, the files that hold tests. Exit code 1 if a test fails, a file with tests is wrong,
//! or there is no test; 2 if a file or directory is not there.

use std::path::Path;
use std::process::ExitCode;

use nrl_base::{Problems, SourceMap};
use nrl_driver::trial::Tested;
use nrl_interp::run_batch;

use crate::disk::Disk;
use crate::{report, walk};

/// Runs the tests that files hold
#[derive(clap::Args, Debug)]
pub struct TestArgs {
    /// Files with `test` blocks, or directories of them
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
    if let Some(missing) = args.files.iter().find(|f| !Path::new(f).exists()) {
        eprintln!("error: cannot read {missing}: there is no such file or directory");
        return ExitCode::from(2);
    }
    let mut counts = Counts::default();
    let (named, folders): (Vec<String>, Vec<String>) =
        args.files.iter().cloned().partition(|f| !Path::new(f).is_dir());
    let mut files = named;
    files.extend(walk::recipes(&folders).into_iter().filter(|f| holds_tests(f)));
    for file in &files {
        one(file, args.filter.as_deref(), &mut counts);
    }
    let n = counts.ok + counts.failed;
    let of = match (files.len(), folders.is_empty()) {
        (1, true) => String::new(),
        (1, false) => "1 file, ".to_string(),
        (many, _) => format!("{many} files, "),
    };
    let tests = if n == 1 { "test" } else { "tests" };
    let broken = match counts.broken {
        0 => String::new(),
        1 => ", 1 file with errors".to_string(),
        many => format!(", {many} files with errors"),
    };
    println!("{of}{n} {tests}: {} ok, {} failed{broken}", counts.ok, counts.failed);
    if n == 0 && counts.broken == 0 {
        let which =
            args.filter.as_ref().map_or(String::new(), |f| format!(" whose name holds `{f}`"));
        eprintln!(
            "error: there is no test{which}; write `test \"what holds\" {{ assert a == b }}`"
        );
    }
    if counts.failed + counts.broken == 0 && n > 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Whether a test begins on some line of a file.
fn holds_tests(file: &str) -> bool {
    let begins =
        |line: &str| line.trim_start().strip_prefix("test").is_some_and(|r| r.starts_with(' '));
    std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(begins))
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
