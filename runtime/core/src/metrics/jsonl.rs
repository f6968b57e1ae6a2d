//! Metrics as JSON lines: one object per line, appended and flushed at once.
//!
//! In: objects that carry a `step`. Out: a file that a script can follow. When a run resumes at step n, lines of later
//! steps are cut off first, as is a last line that a crash left incomplete, so no step occurs twice.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::files::{FileError, create_dir, write_file};

/// An open metrics file.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Begins a new file, replacing an old one.
    pub fn create(path: &Path) -> Result<JsonLines, FileError> {
        create_dir(path.parent().unwrap_or(Path::new(".")))?;
        write_file(path, b"")?;
        JsonLines::append(path)
    }

    /// Goes on with a file after `step` finished steps; lines whose `step` is larger are removed.
    pub fn resume(path: &Path, step: u64) -> Result<JsonLines, FileError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return JsonLines::create(path),
            Err(e) => return Err(FileError::new("read", path, e)),
        };
        let whole = |line: &&[u8]| {
            let value: Option<Value> =
                line.strip_suffix(b"\n").and_then(|l| serde_json::from_slice(l).ok());
            value.is_some_and(|v| v.get("step").and_then(Value::as_u64).is_none_or(|s| s <= step))
        };
        let kept: Vec<u8> =
            text.split_inclusive(|&b| b == b'\n').filter(whole).flatten().copied().collect();
        if kept.len() != text.len() {
            write_file(path, &kept)?;
        }
        JsonLines::append(path)
    }

    fn append(path: &Path) -> Result<JsonLines, FileError> {
        let file =
            File::options().append(true).open(path).map_err(|e| FileError::new("open", path, e))?;
        Ok(JsonLines { path: path.into(), file })
    }

    /// Writes one object. Numbers that are not finite are written as null.
    pub fn write(&mut self, object: &Map<String, Value>) -> Result<(), FileError> {
        let mut line = serde_json::to_vec(object).unwrap_or_default();
        line.push(b'\n');
        self.file.write_all(&line).map_err(|e| FileError::new("write", &self.path, e))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_resumed_file_has_each_step_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/metrics.jsonl");
        let mut m = JsonLines::create(&path).unwrap();
        for step in 1..=4 {
            m.write(&object(json!({"step": step, "loss": 0.5, "nan": f64::NAN}))).unwrap();
        }
        m.write(&object(json!({"note": "no step"}))).unwrap();
        drop(m);
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"step\": 2, \"lo")
            .unwrap();
        let mut m = JsonLines::resume(&path, 2).unwrap();
        m.write(&object(json!({"step": 3}))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "{\"step\":1,\"loss\":0.5,\"nan\":null}\n{\"step\":2,\"loss\":0.5,\"nan\":null}\n\
            {\"note\":\"no step\"}\n{\"step\":3}\n";
        assert_eq!(text, expected);
        assert!(JsonLines::resume(&dir.path().join("new.jsonl"), 9).is_ok());
        assert_eq!(JsonLines::create(&path).unwrap().path(), path);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
