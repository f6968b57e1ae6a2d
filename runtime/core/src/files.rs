//! Files that are replaced, never overwritten.
//!
//! In: a path and its new content. Out: the old content or the new one at that path, never half of either.
//! Content is written beside its target under a name that starts with `.` and contains `.partial-`, synced to
//! disk, then renamed. On any failure (a full disk above all) the partial is removed and what was there stays.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// A file operation that failed, told with its path.
#[derive(Debug, Error)]
pub enum FileError {
    /// The volume is full.
    #[error(
        "no space left on the volume of {path} while writing ({free} free); what was there before is intact: free \
         some space or choose another directory"
    )]
    NoSpace { path: PathBuf, free: Size },
    /// The place cannot be written.
    #[error("cannot write {path}: permission denied; choose a directory that you may write to")]
    Denied { path: PathBuf },
    /// Any other failure of the system.
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl FileError {
    /// Wraps an error of the system, telling a full disk and a missing permission apart.
    pub fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                FileError::NoSpace { path: path.into(), free: Size(free_space(path).unwrap_or(0)) }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                FileError::Denied { path: path.into() }
            }
            _ => FileError::Io { action, path: path.into(), source },
        }
    }

    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            FileError::NoSpace { .. } => "disk-full",
            FileError::Denied { .. } => "not-writable",
            FileError::Io { .. } => "file-failed",
        }
    }
}

/// A number of bytes, shown in the unit that suits it (10^9 bytes are a GB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{:.1} GB", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.1} MB", n as f64 / 1e6),
            n if n >= 1_000 => write!(f, "{:.1} kB", n as f64 / 1e3),
            n => write!(f, "{n} bytes"),
        }
    }
}

/// Bytes that an ordinary user may still write on the volume of `path`, or of its nearest existing parent.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let place = existing_parent(path);
    let stat = rustix::fs::statvfs(&place)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes `dir` and proves that a file can be written in it.
pub fn check_writable(dir: &Path) -> Result<(), FileError> {
    create_dir(dir)?;
    let probe = aside(&dir.join("probe"));
    let result = File::create(&probe).and_then(|mut f| f.write_all(b"x"));
    fs::remove_file(&probe).ok();
    result.map_err(|e| FileError::new("write to", dir, e))
}

/// Makes a directory with all its parents.
pub fn create_dir(dir: &Path) -> Result<(), FileError> {
    fs::create_dir_all(dir).map_err(|e| FileError::new("make the directory", dir, e))
}

/// Replaces the file at `path` by `bytes`.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace_file(path, |file| file.write_all(bytes))
}

/// Replaces the file at `path` by what `fill` writes.
pub fn replace_file(
    path: &Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), FileError> {
    let partial = aside(path);
    let result = (|| {
        let mut file = File::create(&partial)?;
        fill(&mut file)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&partial, path)?;
        sync_dir(parent(path))
    })();
    result.map_err(|e| {
        fs::remove_file(&partial).ok();
        FileError::new("write", path, e)
    })
}

/// Replaces the directory at `path` by one that `fill` writes into; `fill` gets the path of the partial directory.
pub fn replace_dir<E: From<FileError>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let above = parent(path);
    create_dir(above)?;
    let partial = aside(path);
    let result = (|| {
        fs::create_dir(&partial).map_err(|e| FileError::new("make the directory", &partial, e))?;
        fill(&partial)?;
        sync_tree(&partial).map_err(|e| FileError::new("write", path, e))?;
        swap_in(&partial, path).map_err(|e| FileError::new("replace", path, e))?;
        Ok(())
    })();
    if result.is_err() {
        fs::remove_dir_all(&partial).ok();
    }
    result
}

/// Removes partials that a killed run left in `dir` and brings back a directory whose replacement was cut short.
pub fn clean_partials(dir: &Path) -> Result<usize, FileError> {
    let entries = fs::read_dir(dir).map_err(|e| FileError::new("list", dir, e))?;
    let mut removed = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if let Some((target, _)) = name.strip_prefix('.').and_then(|n| n.split_once(".old-")) {
            let target = dir.join(target);
            if !target.exists() {
                fs::rename(&path, &target).map_err(|e| FileError::new("restore", &target, e))?;
                continue;
            }
        } else if !(name.starts_with('.') && name.contains(".partial-")) {
            continue;
        }
        let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        gone.map_err(|e| FileError::new("remove", &path, e))?;
        removed += 1;
    }
    Ok(removed)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

fn existing_parent(path: &Path) -> PathBuf {
    let mut place = path;
    while !place.exists() {
        let above = parent(place);
        if above == place || above == Path::new(".") {
            return ".".into();
        }
        place = above;
    }
    place.into()
}

/// A fresh hidden name beside `path`.
fn beside(path: &Path, kind: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    parent(path).join(format!(".{name}.{kind}-{}-{n}", std::process::id()))
}

fn aside(path: &Path) -> PathBuf {
    beside(path, "partial")
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_dir(dir)
}

/// Puts the finished `partial` at `path`. The old directory steps aside first and is removed last.
fn swap_in(partial: &Path, path: &Path) -> io::Result<()> {
    if !path.exists() {
        fs::rename(partial, path)?;
        return sync_dir(parent(path));
    }
    let old = beside(path, "old");
    fs::rename(path, &old)?;
    if let Err(e) = fs::rename(partial, path) {
        fs::rename(&old, path)?;
        return Err(e);
    }
    sync_dir(parent(path))?;
    fs::remove_dir_all(&old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(dir.path()), ["a.txt"]);
    }

    #[test]
    fn a_full_disk_keeps_the_previous_file_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        write_file(&path, b"one").unwrap();
        let full = replace_file(&path, |f| {
            f.write_all(b"half")?;
            let mut full = File::options().write(true).open("/dev/full")?;
            full.write_all(b"rest")
        });
        let error = full.unwrap_err();
        assert_eq!(error.code(), "disk-full");
        assert!(error.to_string().starts_with("no space left on the volume of"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(names(dir.path()), ["a.txt"]);
    }

    #[test]
    fn a_full_disk_keeps_the_previous_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("step-1");
        let fill = |content: &'static str| {
            move |d: &Path| {
                write_file(&d.join("weights"), content.as_bytes()).and(create_dir(&d.join("sub")))
            }
        };
        replace_dir(&path, fill("good")).unwrap();
        let failed: Result<(), FileError> = replace_dir(&path, |d| {
            write_file(&d.join("weights"), b"half")?;
            Err(FileError::new("write", d, io::ErrorKind::StorageFull.into()))
        });
        assert_eq!(failed.unwrap_err().code(), "disk-full");
        assert_eq!(fs::read(path.join("weights")).unwrap(), b"good");
        assert_eq!(names(dir.path()), ["step-1"]);
        replace_dir(&path, fill("better")).unwrap();
        assert_eq!(fs::read(path.join("weights")).unwrap(), b"better");
        assert_eq!(names(dir.path()), ["step-1"]);
    }

    #[test]
    fn leftovers_of_a_killed_run_are_cleaned() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".step-2.partial-1-0")).unwrap();
        fs::write(dir.path().join(".a.partial-1-1"), "x").unwrap();
        fs::create_dir(dir.path().join(".step-1.old-1-2")).unwrap();
        fs::write(dir.path().join(".hidden"), "mine").unwrap();
        assert_eq!(clean_partials(dir.path()).unwrap(), 2);
        assert_eq!(names(dir.path()), [".hidden", "step-1"]);
    }

    #[test]
    fn free_space_looks_at_the_nearest_parent() {
        let dir = tempfile::tempdir().unwrap();
        let here = free_space(dir.path()).unwrap();
        let below = free_space(&dir.path().join("not/yet/there")).unwrap();
        assert!(here > 0 && below > 0);
    }

    #[test]
    fn a_place_that_cannot_hold_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let error = check_writable(&file.join("sub")).unwrap_err();
        assert!(error.to_string().contains("cannot make the directory"), "{error}");
        check_writable(&dir.path().join("new")).unwrap();
    }
}
