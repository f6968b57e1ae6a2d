//! The only way the compiler reads: a disk in the command line, a map in tests and editors.

/// Reads files by path.
pub trait Files {
    /// Bytes of the file at `path`, or why they cannot be had.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;
}

/// Files in memory.
impl Files for std::collections::BTreeMap<String, String> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        self.get(path).map(|s| s.as_bytes().to_vec()).ok_or_else(|| "there is no such file".into())
    }
}
