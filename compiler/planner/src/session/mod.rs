//! A recipe that is changed and planned again, line by line.
//!
//! In: a recipe, then commands as people type them. Out: answers, short where little changed. A session knows no
//! terminal: what is to be written to a file is part of the answer. Changes are changes to the text of the recipe, so
//! `diff`, `write` and messages show lines that exist.

mod ask;
mod complete;
mod lengths;
mod measured;
mod types;

use nrl_base::{Diagnostic, Files, SourceMap};

use crate::edit::{self, Differs};
use crate::input::{Findings, Input, Planned, Request};
use crate::report::{Comparison, Made, Report, changes, screen, words};
use crate::search::{Goal, SearchOptions, search};

/// What a line is answered with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Lines that end in a line break, or nothing.
    pub text: String,
    /// Whether the line could not be done.
    pub failed: bool,
    /// A file to be written: its path and its text.
    pub write: Option<(String, String)>,
    pub quit: bool,
}

impl Answer {
    fn said(text: impl Into<String>) -> Answer {
        let mut text: String = text.into();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Answer { text, ..Answer::default() }
    }

    fn failed(text: impl Into<String>) -> Answer {
        Answer { failed: true, ..Answer::said(format!("error: {}", text.into())) }
    }
}

/// Columns of the screen.
const WIDTH: usize = 118;

/// A recipe under change.
pub struct Session<'f> {
    files: &'f dyn Files,
    input: Input<'f>,
    original: String,
    planned: Planned,
    report: Report,
    earlier: Vec<String>,
    /// The folder that holds NeMo RL's `examples`, empty or ending in `/`.
    pub nemo_root: String,
}

impl<'f> Session<'f> {
    /// Opens a recipe; one that does not compile is no session. Findings come along.
    pub fn new(
        files: &'f dyn Files,
        request: &Request,
    ) -> Result<(Session<'f>, Findings), Findings> {
        let (input, found) = Input::open(files, request);
        let Some(input) = input else { return Err(found) };
        let (planned, found) = input.plan();
        let Some(planned) = planned else { return Err(found) };
        let report = reported(&input, &planned);
        let session = Session {
            files,
            original: input.text.clone(),
            planned,
            report,
            earlier: vec![],
            nemo_root: String::new(),
            input,
        };
        Ok((session, found))
    }

    /// One line on what is open.
    pub fn greeting(&self) -> String {
        let text = screen(&self.report, WIDTH);
        let first =
            text.lines().next().unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{first}   `help` lists the commands\n")
    }

    /// The plan as it is now.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The text of the recipe as it is now.
    pub fn text(&self) -> &str {
        &self.input.text
    }

    /// Answers one line.
    pub fn line(&mut self, line: &str) -> Answer {
        let line = line.split('#').next().unwrap_or("").trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "" => Answer::default(),
            "help" | "?" => Answer::said(HELP),
            "quit" | "exit" => Answer { quit: true, ..Answer::default() },
            "set" => self.set(rest),
            "undo" => self.undo(),
            "diff" => Answer::said(difference(&self.original, &self.input.text)),
            "write" => self.write(rest),
            "plan" => self.plan(),
            "why" => self.why(rest),
            "explain" => self.explain(rest),
            "legal" => self.legal(rest),
            "fits" => self.fits(rest),
            "search" => self.search(rest),
            "price" => self.price(rest),
            "compare" => self.compare(rest),
            "lengths" => self.lengths(rest),
            "as" => self.export(rest),
            "types" => self.types(rest),
            _ => self.otherwise(line, word),
        }
    }

    /// A line without a command: an assignment, or an expression whose type is wanted.
    fn otherwise(&mut self, line: &str, word: &str) -> Answer {
        let path = |p: &str| p.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if let Some((left, right)) = line.split_once('=')
            && path(left.trim())
            && !right.starts_with('=')
        {
            return self.set(line);
        }
        let near = nrl_base::nearest(word, COMMANDS.iter().copied());
        match (near, self.types(line)) {
            (Some(near), answer) if answer.failed && word != near => {
                Answer::failed(format!("there is no command `{word}`; did you mean `{near}`?"))
            }
            (_, answer) => answer,
        }
    }

    fn set(&mut self, rest: &str) -> Answer {
        let Some((path, value)) = rest.split_once('=') else {
            return Answer::failed("write `set PATH = VALUE`, such as `set train.tp = 4`");
        };
        let (path, value) = (path.trim(), value.trim());
        match edit::set(&self.input, path, value) {
            Some(text) => self.change(text),
            None => {
                // The compiler knows what is near to a path that does not exist.
                let sets = [format!("{path}={value}")];
                let (planned, found) = self.input.with_sets(&sets).plan();
                match planned {
                    Some(_) => Answer::failed(format!(
                        "`{path}` can be given to `--set`, and has no line here that could be changed"
                    )),
                    None => Answer::failed(told(&found.found, &found.sources)),
                }
            }
        }
    }

    /// `search`, `search memory`, `search apply tp`: a better layout; further words are choices to leave.
    fn search(&mut self, rest: &str) -> Answer {
        let mut how = SearchOptions::default();
        let mut apply = false;
        for word in rest.split_whitespace() {
            match word {
                // `search for time keep maths` reads as it is said.
                "for" | "maths" | "mathematics" => {}
                "keep" => how.keep_maths = true,
                "time" => how.goal = Goal::Time,
                "memory" => how.goal = Goal::Memory,
                "apply" => apply = true,
                choice => how.pins.push(choice.to_string()),
            }
        }
        match search(&self.input, &how) {
            Ok(found) if apply && !found.new_lines.is_empty() => self.change(found.text),
            Ok(found) => Answer::said(found.text()),
            Err(f) => Answer::failed(told(&f.found, &f.sources)),
        }
    }

    /// Takes a new text if it compiles, and says what changed.
    fn change(&mut self, text: String) -> Answer {
        let input = self.input.with_text(text);
        let (planned, found) = input.plan();
        let Some(planned) = planned else {
            return Answer::failed(told(&found.found, &found.sources));
        };
        self.earlier.push(self.input.text.clone());
        self.take(input, planned)
    }

    fn take(&mut self, input: Input<'f>, planned: Planned) -> Answer {
        let report = reported(&input, &planned);
        let text = changed(&self.report, &report);
        (self.input, self.planned, self.report) = (input, planned, report);
        Answer::said(text)
    }

    fn undo(&mut self) -> Answer {
        let Some(text) = self.earlier.pop() else {
            return Answer::failed("nothing was changed");
        };
        let input = self.input.with_text(text);
        match input.plan() {
            (Some(planned), _) => self.take(input, planned),
            (None, found) => Answer::failed(told(&found.found, &found.sources)),
        }
    }

    fn write(&mut self, rest: &str) -> Answer {
        let path = if rest.is_empty() { self.input.path.clone() } else { rest.to_string() };
        if rest.is_empty() && self.original == self.input.text && self.input.path == self.input.file
        {
            return Answer::said("nothing changed");
        }
        let text = self.input.text.clone();
        self.original.clone_from(&text);
        Answer { write: Some((path, text)), ..Answer::default() }
    }

    fn plan(&mut self) -> Answer {
        let mut report = self.report.clone();
        report.changes = changes(&self.input, &self.planned);
        Answer::said(screen(&report, WIDTH))
    }
}

/// The report of a plan without what could be changed.
fn reported(input: &Input<'_>, planned: &Planned) -> Report {
    Report::of(&Made {
        compiled: &planned.compiled,
        forecast: planned.forecast.as_ref(),
        sources: &planned.sources,
        file: &input.file,
    })
}

/// Errors on a line each, with what to type.
fn told(found: &[Diagnostic], sources: &SourceMap) -> String {
    let one = |d: &Diagnostic| {
        let at = d.span().map(|s| sources.place(s)).filter(|at| !at.starts_with("--set"));
        let at = at.map_or(String::new(), |at| format!("   ({at})"));
        let help = d.help.as_ref().map_or(String::new(), |h| format!("\nhelp: {h}"));
        format!("{}{at}{help}", d.message)
    };
    let errors: Vec<String> = found.iter().filter(|d| d.is_error()).map(one).collect();
    if errors.is_empty() { "it does not compile".into() } else { errors.join("\n") }
}

/// Is it a moment beside the stages of a step, and the fullest of neither plan?
fn aside(a: &Report, b: &Report, stage: &str) -> bool {
    let fullest = |r: &Report| r.memory.tightest.is_some_and(|i| r.memory.stages[i].name == stage);
    let first = stage.split(' ').next().unwrap_or(stage);
    matches!(first, "refit" | "evaluate" | "checkpoint") && !fullest(a) && !fullest(b)
}

/// What two plans differ in: layouts, seconds, the fullest stages, and whether it fits.
fn changed(a: &Report, b: &Report) -> String {
    let mut lines = vec![];
    for l in &b.layouts {
        let old = a.layouts.iter().find(|o| o.mesh == l.mesh);
        if let Some(old) = old.filter(|o| o.axes != l.axes) {
            lines.push(format!(
                "{}   {} -> {}",
                l.mesh,
                words::axes(&old.axes),
                words::axes(&l.axes)
            ));
        }
    }
    let mut rows = Comparison::of(a, b).rows;
    // The step first, the whole run last.
    rows.sort_by_key(|r| r.of == "run");
    for row in rows.iter().filter(|r| r.matters()) {
        let name = match row.of.as_str() {
            "step" | "phase" => row.name.clone(),
            "memory" if aside(a, b, &row.name) => continue,
            "memory" => format!("memory of {}", row.name),
            "run" => format!("{} in {}", row.name, row.unit.replace("device", "GPU")),
            _ => continue,
        };
        let (left, right, difference) = row.cells();
        lines.push(format!("{name:<28} {left:>10} -> {right:<10} {difference:>10}"));
    }
    if a.memory.fits != b.memory.fits {
        lines.push(crate::report::verdict(b));
    }
    if lines.is_empty() { "nothing that the plan counts changed".into() } else { lines.join("\n") }
}

/// Lines that differ, with their numbers.
fn difference(old: &str, new: &str) -> String {
    let one = |line: Differs<'_>| match line {
        Differs::Gone(n, text) => format!("{n:>4} - {text}\n"),
        Differs::Come(n, text) => format!("{n:>4} + {text}\n"),
    };
    let out: String = edit::lines(old, new).into_iter().map(one).collect();
    if out.is_empty() { "nothing changed\n".into() } else { out }
}

/// All commands.
pub const COMMANDS: &[&str] = &[
    "set", "why", "legal", "search", "fits", "compare", "price", "lengths", "as", "undo", "diff",
    "write", "plan", "types", "explain", "help", "quit",
];

const HELP: &str = "\
set PATH = VALUE        changes the recipe and says what that changes in the plan
why memory update       the terms of a stage; also `why time sample`, or any term: `why activations`
search [for memory] [keep maths] [apply]
                        a better layout, and `apply` takes it; further words are choices to leave
legal PATH              values that compile, and what others fail on
fits on 32 GPUs?        whether it fits on so many, and the smallest number that it fits on
price 500 steps         hours, GPU-hours, checkpoints
lengths from FILE       takes the lengths of samples from a file in place of a guess
compare FILE            seconds of a run's metrics beside the predicted ones
types EXPR              type and dims of an expression; the expression alone does too
explain PATH            where a value or a layout comes from
as nemo                 the recipe as YAML for NeMo RL
plan                    the whole screen
diff, undo, write       lines that changed; takes the last change back; writes the file
quit                    ends
";
