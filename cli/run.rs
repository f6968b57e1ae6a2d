//! `nrlc run`: runs a recipe, shows it, and says how to go on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nrl_runtime::run::watch::Summary;
use nrl_runtime::run::{self, Options};

use crate::args::RunArgs;
use crate::load;
use crate::screen::{self, Screen};

/// Runs the command.
pub fn run(args: &RunArgs) -> ExitCode {
    let compiled = match load::recipe(&args.recipe, args.exact) {
        Ok(compiled) => compiled,
        Err(code) => return code,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let mut screen = Screen::new(args.quiet, &compiled.program.name);
    catch_interrupt(stop.clone());
    let options = Options {
        out: args.out.clone(),
        root: PathBuf::from("runs"),
        resume: args.resume.clone(),
        recipe: std::fs::read_to_string(&args.recipe.file).unwrap_or_default(),
        overrides: args.recipe.sets.clone(),
        steps: args.steps,
        stop,
    };
    let name = compiled.program.name.clone();
    let result = run::run(compiled, &load::engine(), &options, &mut screen);
    screen.close();
    match result {
        Ok(summary) => {
            print!("{}", screen::summary(&name, &summary, &go_on(args, &summary)));
            ExitCode::SUCCESS
        }
        Err(e) => load::fail(&e),
    }
}

/// The first Ctrl-C asks for an end after the step, the second ends at once.
fn catch_interrupt(stop: Arc<AtomicBool>) {
    let handler = move || {
        if stop.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing this step, then saving; Ctrl-C again ends at once without saving");
    };
    // Without a handler Ctrl-C ends the run at once, as it would any program.
    ctrlc::set_handler(handler).ok();
}

/// The command that goes on with a run that was stopped.
fn go_on(args: &RunArgs, summary: &Summary) -> String {
    let mut words = vec!["nrlc run".to_string(), quoted(&args.recipe.file)];
    for set in &args.recipe.sets {
        words.push(format!("--set {}", quoted(set)));
    }
    words.extend(args.recipe.ranks.map(|n| format!("--ranks {n}")));
    words.extend(args.recipe.recipe.as_ref().map(|n| format!("--recipe {n}")));
    words.extend(args.recipe.seed.map(|n| format!("--seed {n}")));
    words.push(format!("--resume {}", quoted_path(&summary.dir)));
    words.join(" ")
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// As a shell wants it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c);
    if text.chars().all(plain) && !text.is_empty() {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("examples/quickstart.nrl"), "examples/quickstart.nrl");
        assert_eq!(quoted("a b's"), r"'a b'\''s'");
    }
}
