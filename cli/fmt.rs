//! `nrlc fmt`: files in the one layout that the language has.
//!
//! In: files, folders (every `.nrl` below them), or `-` for standard input. Out: the files rewritten where their layout
//! differs, written aside and renamed. A file with syntax errors is left as it is. The meaning never changes.

use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nrl_base::{Diagnostic, SourceMap};
use nrl_runtime::files;
use nrl_syntax::{print::format_source, utf8};

use crate::report;

/// Rewrites files in the standard layout
#[derive(clap::Args, Debug)]
pub struct FmtArgs {
    /// Files, folders, or `-` to read standard input and write standard output
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Changes nothing; lists files whose layout differs and ends with 1 if there are any
    #[arg(long)]
    pub check: bool,
}

/// What became of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    Kept,
    Changed,
}

/// Runs the command; 1 if a file cannot be formatted or, with `--check`, differs.
pub fn run(args: &FmtArgs) -> ExitCode {
    if args.files == [Path::new("-")] {
        return standard_input(args.check);
    }
    let mut failed = false;
    for path in &args.files {
        let found = match nrl_files(path) {
            Ok(found) => found,
            Err(why) => {
                eprintln!("error: cannot read {}: {why}", path.display());
                failed = true;
                continue;
            }
        };
        for file in found {
            match one(&file, args.check) {
                Ok(Layout::Kept) => {}
                Ok(Layout::Changed) if args.check => {
                    println!("{} is not in the standard layout", file.display());
                    failed = true;
                }
                Ok(Layout::Changed) => println!("formatted {}", file.display()),
                Err(()) => failed = true,
            }
        }
    }
    if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

fn standard_input(check: bool) -> ExitCode {
    let mut bytes = vec![];
    if let Err(e) = std::io::stdin().read_to_end(&mut bytes) {
        eprintln!("error: cannot read standard input: {e}");
        return ExitCode::from(1);
    }
    match formatted("standard input", &bytes) {
        Ok(text) if check => ExitCode::from(u8::from(text.as_bytes() != bytes)),
        Ok(text) => {
            // A reader that has gone away is no error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(()) => ExitCode::from(1),
    }
}

/// `path` itself, or every `.nrl` file below it, sorted; hidden folders are left out.
fn nrl_files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    entries.sort();
    let mut out = vec![];
    for entry in entries {
        let hidden = entry.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if entry.is_dir() && !hidden {
            out.extend(nrl_files(&entry)?);
        } else if entry.extension().is_some_and(|e| e == "nrl") {
            out.push(entry);
        }
    }
    Ok(out)
}

/// Formats one file; what is wrong with it has been printed if it fails.
fn one(path: &Path, check: bool) -> Result<Layout, ()> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| eprintln!("error: cannot read {name}: {e}"))?;
    let text = formatted(&name, &bytes)?;
    if text.as_bytes() == bytes {
        return Ok(Layout::Kept);
    }
    if !check {
        // A link stays one: the file that it names is replaced.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        files::write_file(&target, text.as_bytes())
            .map_err(|e| eprintln!("error[{}]: {e}", e.code()))?;
    }
    Ok(Layout::Changed)
}

fn formatted(name: &str, bytes: &[u8]) -> Result<String, ()> {
    let mut sources = SourceMap::new();
    let id = sources.add(name, String::from_utf8_lossy(bytes).into_owned());
    let result = match utf8(id, bytes) {
        Ok(text) => format_source(id, text),
        Err(d) => Err(vec![*d]),
    };
    result.map_err(|found: Vec<Diagnostic>| report::print(&found, &sources))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_rewritten_once_and_a_broken_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.nrl");
        std::fs::write(&path, "x   =  1  # one\n").unwrap();
        assert_eq!(one(&path, true), Ok(Layout::Changed));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x   =  1  # one\n");
        assert_eq!(one(&path, false), Ok(Layout::Changed));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x = 1  # one\n");
        assert_eq!(one(&path, false), Ok(Layout::Kept));
        std::fs::write(&path, "x = (1\n").unwrap();
        assert_eq!(one(&path, false), Err(()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x = (1\n");
    }

    #[test]
    fn a_folder_stands_for_the_nrl_files_below_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/c.nrl", "a.nrl", "a.txt", ".git/x.nrl"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = nrl_files(dir.path()).unwrap();
        let found: Vec<_> = found.iter().map(|p| p.strip_prefix(dir.path()).unwrap()).collect();
        assert_eq!(found, [Path::new("a.nrl"), Path::new("b/c.nrl")]);
    }
}
