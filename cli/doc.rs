//! `nrlc doc`: the documentation that files hold in their `##` comments.
//!
//! In: files, or nothing for the standard library. Out: one page on standard output, or in a folder.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nrl_driver::docs::{self, ModuleDoc};
use nrl_runtime::files;

/// Writes the documentation of the standard library, or of files
#[derive(clap::Args, Debug)]
pub struct DocArgs {
    /// Files to document instead of the standard library
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Folder for the page instead of standard output
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Writes HTML instead of Markdown
    #[arg(long)]
    pub html: bool,
}

/// Runs the command; 1 if a file cannot be read or written.
pub fn run(args: &DocArgs) -> ExitCode {
    let (name, page) = match page(args) {
        Ok(made) => made,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(1);
        }
    };
    let Some(folder) = &args.out else {
        // A reader that has gone away is no error.
        let _ = std::io::stdout().lock().write_all(page.as_bytes());
        return ExitCode::SUCCESS;
    };
    let path = folder.join(format!("{name}.{}", if args.html { "html" } else { "md" }));
    let written = std::fs::create_dir_all(folder)
        .map_err(|e| e.to_string())
        .and_then(|()| files::write_file(&path, page.as_bytes()).map_err(|e| e.to_string()));
    match written {
        Ok(()) => {
            println!("wrote {}", path.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: cannot write {}: {why}", path.display());
            ExitCode::from(1)
        }
    }
}

/// The name of the page and its text.
fn page(args: &DocArgs) -> Result<(String, String), String> {
    if args.files.is_empty() {
        let page = match args.html {
            true => docs::html("The standard library", &docs::library()),
            false => docs::std_page(),
        };
        return Ok(("std".into(), page));
    }
    let modules = args.files.iter().map(|f| module(f)).collect::<Result<Vec<_>, _>>()?;
    let stem = args.files[0].file_stem().map_or_else(String::new, |s| s.to_string_lossy().into());
    let page = match args.html {
        true => docs::html(&stem, &modules),
        false => docs::markdown(&stem, "", &modules),
    };
    Ok((stem, page))
}

fn module(file: &Path) -> Result<ModuleDoc, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let name = file.file_name().map_or_else(String::new, |s| s.to_string_lossy().into());
    Ok(docs::module(&name, &text))
}
