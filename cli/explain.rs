//! `nrlc explain`: the page of an error code, the source of a module of the standard library, or where a value of a
//! recipe comes from.
//!
//! In: a code such as `unit-mismatch`, a name such as `std.grpo`, or a recipe and a path in it. Out: its text on standard
//! output, headings and examples set off on a terminal. An unknown name is answered with the nearest one.

mod pages;

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use nrl_base::codes::{CODES, severity, summary};
use nrl_base::did_you_mean;
use nrl_driver::STD;

use pages::PAGES;

/// Explains an error code, shows a module of the standard library, or says where a value of a recipe comes from
#[derive(clap::Args, Debug)]
pub struct ExplainArgs {
    /// Error code such as `unit-mismatch`, module such as `std.grpo`, or a recipe file
    #[arg(value_name = "CODE", required_unless_present = "list")]
    pub name: Option<String>,
    /// What of the recipe: `policy.layers.wq`, `train.dp`, `opt.beta1`; all that there is if left out
    #[arg(value_name = "PATH")]
    pub path: Option<String>,
    /// Lists all codes with how bad they are, and all modules
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
}

/// Runs the command; 0 if there was something to show, else 2.
pub fn run(args: &ExplainArgs) -> ExitCode {
    let Some(name) = &args.name else {
        show(&list());
        return ExitCode::SUCCESS;
    };
    if [".nrl", ".yaml", ".yml"].iter().any(|end| name.ends_with(end)) {
        return recipe(name, args.path.as_deref());
    }
    match find(name) {
        Ok(text) => {
            let styled = std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            show(&if styled { set_off(text) } else { text.to_string() });
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

/// Where a value of a recipe comes from; without a path, what can be asked about.
fn recipe(file: &str, path: Option<&str>) -> ExitCode {
    let request = nrl_planner::input::Request {
        path: file.into(),
        environment: std::env::vars().collect(),
        nemo_root: crate::export::root_text(file, None),
        ..Default::default()
    };
    let (input, planned) = match crate::plan::opened(&request) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let Some(path) = path else {
        let paths = input.paths(&mut nrl_base::SourceMap::new());
        show(&(nrl_planner::explain::known(&planned, &paths).join("\n") + "\n"));
        return ExitCode::SUCCESS;
    };
    match nrl_planner::explain::explain(&input, &planned, path) {
        Ok(text) => {
            show(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

/// Writes to standard output; a reader that has gone away is no error.
fn show(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The page or module called `name`; `error[..]` around a code is taken off.
fn find(name: &str) -> Result<&'static str, String> {
    let bare =
        name.trim_start_matches("error[").trim_start_matches("warning[").trim_end_matches(']');
    let known = PAGES.iter().chain(STD.iter());
    if let Some((_, text)) = known.clone().find(|(n, _)| *n == bare) {
        return Ok(text);
    }
    let help = did_you_mean(bare, known.map(|(n, _)| *n))
        .unwrap_or_else(|| "`nrlc explain --list` lists all codes and modules".into());
    Err(format!("error: there is no code or module `{bare}`\n  help: {help}"))
}

/// All codes with their severity and summary, the rules over recipes, then the modules with the first line of their header.
fn list() -> String {
    let width = CODES.iter().map(|(code, _)| code.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (code, _) in PAGES {
        let rule = nrl_rules::TABLES.iter().copied().flatten().find(|r| r.code == *code);
        let word = rule.map_or_else(|| severity(code), |r| r.severity).word();
        let _ = writeln!(out, "{code:width$}  {word:7}  {}", summary(code).unwrap_or_default());
    }
    out.push('\n');
    for rule in nrl_rules::TABLES.iter().copied().flatten() {
        let (name, word) = (format!("{} ({})", rule.code, rule.id), rule.severity.word());
        let _ = writeln!(out, "{name:width$}  {word:7}  {}", rule.about);
    }
    out.push('\n');
    for (module, text) in STD {
        let header = text.lines().find_map(|l| l.strip_prefix("## ")).unwrap_or_default();
        let _ = writeln!(out, "{module:width$}  {:7}  {header}", "module");
    }
    out
}

/// Headings bold, fences gone, what stood between them in color.
fn set_off(text: &str) -> String {
    let mut out = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let _ = writeln!(out, "    \x1b[36m{line}\x1b[0m");
        } else if line.starts_with('#') {
            let _ = writeln!(out, "\x1b[1m{}\x1b[0m", line.trim_start_matches('#').trim_start());
        } else {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_page_and_no_page_is_left_over() {
        let pages: Vec<&str> = PAGES.iter().map(|(code, _)| *code).collect();
        let codes: Vec<&str> = CODES.iter().map(|(code, _)| *code).collect();
        assert_eq!(pages, codes);
    }

    #[test]
    fn codes_and_modules_are_found_as_written_in_messages() {
        assert!(find("unit-mismatch").unwrap().starts_with("# unit-mismatch\n"));
        assert_eq!(find("error[unit-mismatch]"), find("unit-mismatch"));
        assert!(find("std.grpo").unwrap().contains("fn advantages("));
        let why = find("unit-mismach").unwrap_err();
        assert_eq!(
            why,
            "error: there is no code or module `unit-mismach`\n  help: did you mean `unit-mismatch`?"
        );
    }

    #[test]
    fn the_list_names_everything_once() {
        let list = list();
        assert!(list.contains("unknown-name "), "{list}");
        assert!(list.contains("std.grpo  "), "{list}");
        let rules: usize = nrl_rules::TABLES.iter().map(|t| t.len()).sum();
        assert!(rules > 20);
        assert_eq!(list.lines().count(), PAGES.len() + 1 + rules + 1 + STD.len());
    }

    #[test]
    fn a_page_on_a_terminal_has_no_fences() {
        let shown = set_off("# x\n\n```nrl\na = 1\n```\n");
        assert_eq!(shown, "\x1b[1mx\x1b[0m\n\n    \x1b[36ma = 1\x1b[0m\n");
    }
}
