//! Texts that are open in the editor, over the disk; and what was understood of them.
//!
//! In: open, change and close. Out: [`Files`] for the compiler, and documents, made once per change. A path is
//! absolute, as its URI says.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::str::FromStr;

use lsp_types::{TextDocumentContentChangeEvent, Uri};
use nrl_base::Files;
use nrl_ide::document::Document;
use nrl_ide::sheet::Sheet;
use nrl_ide::utf16;

use super::convert;
use crate::disk::Disk;

#[derive(Debug)]
struct Buffer {
    uri: Uri,
    text: String,
    version: i32,
}

/// Open texts by path.
#[derive(Default)]
pub struct Buffers {
    buffers: BTreeMap<String, Buffer>,
    documents: BTreeMap<String, Rc<Document>>,
    sheets: BTreeMap<String, Rc<Sheet>>,
}

impl Files for Buffers {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        match self.buffers.get(path) {
            Some(buffer) => Ok(buffer.text.clone().into_bytes()),
            None => Disk.read(path),
        }
    }
}

impl Buffers {
    /// Opens a text.
    pub fn put(&mut self, uri: &Uri, text: String, version: i32) {
        self.buffers.insert(path(uri), Buffer { uri: uri.clone(), text, version });
    }

    /// Changes parts of a text, or all of it.
    pub fn change(
        &mut self,
        uri: &Uri,
        changes: Vec<TextDocumentContentChangeEvent>,
        version: i32,
    ) {
        let Some(buffer) = self.buffers.get_mut(&path(uri)) else { return };
        buffer.version = version;
        for change in changes {
            match change.range {
                None => buffer.text = change.text,
                Some(range) => {
                    let start = utf16::offset(&buffer.text, convert::from(range.start));
                    let end = utf16::offset(&buffer.text, convert::from(range.end)).max(start);
                    buffer.text.replace_range(start..end, &change.text);
                }
            }
        }
    }

    /// Closes a text; the file on disk counts again.
    pub fn close(&mut self, uri: &Uri) {
        self.buffers.remove(&path(uri));
    }

    /// Everything understood may be different now.
    pub fn forget(&mut self) {
        self.documents.clear();
        self.sheets.clear();
    }

    /// The open files.
    pub fn open(&self) -> Vec<Uri> {
        self.buffers.values().map(|b| b.uri.clone()).collect()
    }

    /// The version of an open text.
    pub fn version(&self, uri: &Uri) -> Option<i32> {
        self.buffers.get(&path(uri)).map(|b| b.version)
    }

    /// The text of a file, open or not.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(|b| String::from_utf8_lossy(&b).into_owned())
    }

    /// Paths of the open `.nrl` files.
    pub fn recipes(&self) -> Vec<&str> {
        self.buffers.keys().map(String::as_str).filter(|p| p.ends_with(".nrl")).collect()
    }

    /// An `.nrl` file, understood.
    pub fn document(&mut self, path: &str) -> Rc<Document> {
        if let Some(known) = self.documents.get(path) {
            return known.clone();
        }
        let made = Rc::new(Document::open(self, path, &self.recipes()));
        self.documents.insert(path.to_string(), made.clone());
        made
    }

    /// A NeMo RL recipe, loaded.
    pub fn sheet(&mut self, path: &str) -> Rc<Sheet> {
        if let Some(known) = self.sheets.get(path) {
            return known.clone();
        }
        let made = Rc::new(Sheet::open(self, path));
        self.sheets.insert(path.to_string(), made.clone());
        made
    }
}

/// The path of a `file:` URI; other URIs stand for themselves.
pub fn path(uri: &Uri) -> String {
    let text = uri.as_str();
    let Some(rest) = text.strip_prefix("file://") else { return text.to_string() };
    let rest = rest.strip_prefix("localhost").unwrap_or(rest);
    let mut bytes = vec![];
    let mut parts = rest.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or("").as_bytes());
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => bytes.extend_from_slice(format!("%{part}").as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The URI of a path.
pub fn uri(path: &str) -> Option<Uri> {
    let mut out = String::from(if path.starts_with('/') { "file://" } else { "" });
    for b in path.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                out.push(b as char)
            }
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    Uri::from_str(&out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_uris_are_each_others_inverse() {
        for p in ["/a/b.nrl", "/a b/é%.nrl", "/x/%41"] {
            assert_eq!(path(&uri(p).unwrap()), p);
        }
        assert_eq!(path(&Uri::from_str("file:///c%3A/x.nrl").unwrap()), "/c:/x.nrl");
    }
}
