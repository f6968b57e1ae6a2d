//! The directory of a run: `runs/N` with metrics, event files and samples.
//!
//! In: numbers and samples of each step. Out: metrics.jsonl, TensorBoard events and rollouts.jsonl, followed by whoever
//! looks. A resumed run goes on in the same directory, from where its checkpoint was made.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::files::{FileError, check_writable, clean_partials, create_dir};
use crate::metrics::jsonl::JsonLines;
use crate::metrics::tensorboard::EventFile;
use crate::run::error::{Outcome, RunError};

/// An open run directory.
pub struct Output {
    pub dir: PathBuf,
    metrics: JsonLines,
    rollouts: JsonLines,
    events: EventFile,
}

/// Makes `root/N` with the next free number.
pub fn next_dir(root: &Path) -> Outcome<PathBuf> {
    create_dir(root)?;
    let mut n = numbered(root).last().map_or(1, |(n, _)| n + 1);
    loop {
        let dir = root.join(n.to_string());
        match std::fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
            Err(e) => return Err(FileError::new("make the directory", &dir, e).into()),
        }
    }
}

/// Runs of `root` by rising number.
pub fn numbered(root: &Path) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let number = |e: std::fs::DirEntry| Some((e.file_name().to_str()?.parse().ok()?, e.path()));
    let mut runs: Vec<(u64, PathBuf)> = entries.filter_map(number).collect();
    runs.sort();
    runs
}

impl Output {
    /// Opens `dir`; what was written after `resumed` steps is removed.
    pub fn open(dir: &Path, resumed: Option<u64>) -> Outcome<Output> {
        check_writable(dir).map_err(|e| match e.code() {
            "disk-full" => e.into(),
            _ => RunError::new("not-writable", e.to_string())
                .help("choose another directory with `--out DIR`"),
        })?;
        clean_partials(dir)?;
        let lines = |name: &str| match resumed {
            Some(step) => JsonLines::resume(&dir.join(name), step),
            None => JsonLines::create(&dir.join(name)),
        };
        let (metrics, rollouts) = (lines("metrics.jsonl")?, lines("rollouts.jsonl")?);
        Ok(Output { metrics, rollouts, events: EventFile::create(dir)?, dir: dir.into() })
    }

    /// Writes the numbers of one step.
    pub fn numbers(
        &mut self,
        step: u64,
        phase: &str,
        numbers: &IndexMap<String, f64>,
    ) -> Outcome<()> {
        let mut line = Map::new();
        line.insert("step".into(), step.into());
        line.insert("phase".into(), phase.into());
        for (name, x) in numbers {
            line.insert(name.clone(), Value::from(*x));
            self.events.scalar(name, step, *x as f32)?;
        }
        Ok(self.metrics.write(&line)?)
    }

    /// Writes one sample of a step.
    pub fn sample(&mut self, step: u64, fields: Map<String, Value>) -> Outcome<()> {
        let mut line = Map::new();
        line.insert("step".into(), step.into());
        line.extend(fields);
        Ok(self.rollouts.write(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_the_next_free_number() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("runs");
        assert_eq!(next_dir(&root).unwrap(), root.join("1"));
        std::fs::create_dir(root.join("9")).unwrap();
        std::fs::create_dir(root.join("notes")).unwrap();
        assert_eq!(next_dir(&root).unwrap(), root.join("10"));
        assert_eq!(numbered(&root).iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 9, 10]);
    }

    #[test]
    fn a_resumed_run_goes_on_after_its_step() {
        let dir = tempfile::tempdir().unwrap();
        let numbers = |x: f64| IndexMap::from([("loss".to_owned(), x)]);
        let mut out = Output::open(dir.path(), None).unwrap();
        (1..=3).for_each(|s| out.numbers(s, "rl", &numbers(s as f64)).unwrap());
        let mut out = Output::open(dir.path(), Some(2)).unwrap();
        out.numbers(3, "rl", &numbers(f64::NAN)).unwrap();
        let text = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"step":1,"phase":"rl","loss":1.0}"#);
        assert_eq!(lines[2], r#"{"step":3,"phase":"rl","loss":null}"#);
        assert_eq!(lines.len(), 3);
    }
}
