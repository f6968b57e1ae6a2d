//! `nrlc repl`: a recipe changed and planned again, line by line.
//!
//! In: lines, from a terminal with editing, history and completion, or from a pipe. Out: the answers of
//! `nrl_planner::session`. In a pipe there is no prompt, and an error does not end the session.

use std::cell::RefCell;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use nrl_driver::Options;
use nrl_planner::input::Request;
use nrl_planner::session::{Answer, Session};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};

use crate::disk::Disk;
use crate::plan::{painted, print_all};
use crate::{export, report};

/// Changes a recipe line by line and shows what that does to its plan
#[derive(clap::Args, Debug)]
pub struct ReplArgs {
    /// Recipe file: .nrl, or .yaml of NeMo RL
    #[arg(value_name = "RECIPE")]
    pub file: String,
    /// Overrides a value, such as `lr=1e-6`, `policy.path=DIR` or `m.tp=2`
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Recipe to take, if the file has several
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// Device that a YAML file stands for, such as `h200`: it names none
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Directory of NeMo RL, the one that holds `examples`, for settings and `as nemo`
    #[arg(long, value_name = "DIR")]
    pub nemo_rl: Option<PathBuf>,
}

type Shared = Rc<RefCell<Session<'static>>>;

/// Runs the command.
pub fn run(args: &ReplArgs) -> ExitCode {
    // Recipes of NeMo RL inherit by paths that start where the whole of it lies.
    let whole =
        std::fs::canonicalize(&args.file).ok().filter(|_| nrl_planner::input::is_yaml(&args.file));
    let path = whole.map_or_else(|| args.file.clone(), |p| p.display().to_string());
    let root = export::root_text(&path, args.nemo_rl.as_deref());
    let request = Request {
        path: path.clone(),
        environment: std::env::vars().collect(),
        nemo_root: root.clone(),
        gpu: args.gpu.clone(),
        options: Options {
            sets: args.sets.clone(),
            recipe: args.recipe.clone(),
            ..Options::default()
        },
        ..Request::default()
    };
    let request = crate::machine::prepared(request);
    let mut session = match Session::new(&Disk, &request) {
        Ok((session, found)) => {
            report::print(&found.found, &found.sources);
            session
        }
        Err(found) => {
            report::print(&found.found, &found.sources);
            return ExitCode::from(1);
        }
    };
    session.nemo_root = root;
    if std::io::stdin().is_terminal() {
        print_all(&session.greeting());
        return talk(Rc::new(RefCell::new(session)));
    }
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = session.line(&line);
        let quit = answer.quit;
        show(answer);
        if quit {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// Prints an answer, and writes its file.
fn show(answer: Answer) {
    print_all(&painted(answer.text));
    if let Some((path, text)) = answer.write {
        match std::fs::write(&path, text) {
            Ok(()) => print_all(&format!("wrote {path}\n")),
            Err(why) => print_all(&format!("error: cannot write {path}: {why}\n")),
        }
    }
}

/// A session at a terminal.
fn talk(session: Shared) -> ExitCode {
    let mut editor = match Editor::<Words, FileHistory>::new() {
        Ok(editor) => editor,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(1);
        }
    };
    editor.set_helper(Some(Words(session.clone())));
    let history = history();
    if let Some(path) = &history {
        // The first session has no history yet.
        let _ = editor.load_history(path);
    }
    loop {
        match editor.readline("nrl> ") {
            Ok(line) => {
                let _ = editor.add_history_entry(line.as_str());
                let answer = session.borrow_mut().line(&line);
                let quit = answer.quit;
                show(answer);
                if quit {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(_) => break,
        }
    }
    if let Some(path) = &history {
        // A history that cannot be kept is no reason to fail.
        let _ = path.parent().map(std::fs::create_dir_all);
        let _ = editor.save_history(path);
    }
    ExitCode::SUCCESS
}

/// Where lines of earlier sessions are kept.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("nrlc/history"))
}

/// Completion from the session.
struct Words(Shared);

impl Completer for Words {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.0.borrow().complete(line, at))
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Validator for Words {}

impl Helper for Words {}
