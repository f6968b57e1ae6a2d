//! Files of the language below directories.
//!
//! In: paths of the command line. Out: the files among them, and for a directory all `.nrl` files below it, in
//! the order of their names. Hidden directories, builds and runs are left out; links are not followed.

use std::path::Path;

/// Directories that hold what is made, not what is written.
const MADE: &[&str] = &["target", "runs", "node_modules"];

/// How deep directories are searched.
const DEPTH: usize = 32;

/// The files that `paths` name; whether a path is a directory decides what it stands for.
pub fn recipes(paths: &[String]) -> Vec<String> {
    let mut all = vec![];
    for path in paths {
        if Path::new(path).is_dir() {
            below(Path::new(path), DEPTH, &mut all);
        } else {
            all.push(path.clone());
        }
    }
    all
}

fn below(folder: &Path, depth: usize, all: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(kind) = entry.file_type() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() && depth > 0 && !name.starts_with('.') && !MADE.contains(&name.as_str()) {
            below(&entry.path(), depth - 1, all);
        } else if kind.is_file() && name.ends_with(".nrl") {
            all.push(entry.path().display().to_string());
        }
    }
}
