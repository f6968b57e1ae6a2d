//! `nrlc diff`: what two recipes mean differently, whatever their texts look like.
//!
//! In: two files, each `.nrl` or YAML of NeMo RL. Out: the values that differ, on standard output; 0 if they mean
//! the same, 1 if not, 2 if one of them cannot be compared.

use std::process::ExitCode;

use nrl_ide::checking::{Meaning, Options, check};
use nrl_ide::diff;
use nrl_ide::findings::Checked;

use crate::disk::Disk;
use crate::report;

/// Shows what two recipes mean differently
#[derive(clap::Args, Debug)]
pub struct DiffArgs {
    /// A recipe: .nrl, or .yaml of NeMo RL
    #[arg(value_name = "LEFT")]
    pub left: String,
    /// Another recipe, of the same kind or not
    #[arg(value_name = "RIGHT")]
    pub right: String,
    /// How differences are written
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
}

/// How differences are written.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A line per value
    Human,
    /// One JSON object
    Json,
}

/// Longest value on one line.
const LONGEST: usize = 60;

/// Runs the command.
pub fn run(args: &DiffArgs) -> ExitCode {
    let (left, right) = (read(&args.left), read(&args.right));
    let (Some(left), Some(right)) = (left, right) else { return ExitCode::from(2) };
    let found = diff::diff((&left.1, &left.0.sources), (&right.1, &right.0.sources));
    let Some(mut found) = found else {
        eprintln!("error: {} and {} have nothing to compare by", args.left, args.right);
        return ExitCode::from(2);
    };
    match args.format {
        Format::Json => print!("{}", diff::json(&found, &args.left, &args.right)),
        Format::Human => {
            shorten(&mut found);
            print!("{}", diff::human(&found));
            match found.changes.len() {
                0 => println!(
                    "{} and {} mean the same, by {}",
                    args.left,
                    args.right,
                    found.by.word()
                ),
                1 => println!("1 difference, by {}", found.by.word()),
                n => println!("{n} differences, by {}", found.by.word()),
            }
        }
    }
    ExitCode::from(u8::from(!found.changes.is_empty()))
}

/// A file and what it means; its errors are shown where it means nothing.
fn read(file: &str) -> Option<(Checked, Meaning)> {
    let (checked, meaning) = check(&Disk, file, &Options::default());
    if meaning.compiled.is_none() && meaning.settings.is_none() {
        report::print(&checked.findings, &checked.sources);
        return None;
    }
    Some((checked, meaning))
}

/// Long values, such as what a loss computes, become their first line that differs.
fn shorten(found: &mut diff::Difference) {
    for c in &mut found.changes {
        let (Some(l), Some(r)) = (&mut c.left, &mut c.right) else {
            for side in [&mut c.left, &mut c.right].into_iter().flatten() {
                side.value = cut(&side.value);
            }
            continue;
        };
        let lines = l.value.lines().zip(r.value.lines());
        let first = lines.into_iter().find(|(a, b)| a != b);
        let (a, b) = first.map_or((l.value.clone(), r.value.clone()), |(a, b)| {
            (a.trim().into(), b.trim().into())
        });
        (l.value, r.value) = apart(&a, &b);
    }
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or("");
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_string(),
    }
}

/// Two long lines from a little before where they part.
fn apart(a: &str, b: &str) -> (String, String) {
    let same = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count();
    let skip = if a.len().max(b.len()) > LONGEST { same.saturating_sub(20) } else { 0 };
    let from = |t: &str| {
        let rest: String = t.chars().skip(skip).collect();
        let dots = if skip > 0 { "..." } else { "" };
        format!("{dots}{}", cut(&rest))
    };
    (from(a), from(b))
}
