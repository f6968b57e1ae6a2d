//! TensorBoard event files.
//!
//! In: scalars and texts by tag and step. Out: a file `events.out.tfevents.*` of framed records: length, masked crc32c
//! of the length, an `Event` message in protobuf wire format, masked crc32c of the message (the TFRecord format).

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::files::{FileError, create_dir};

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a new event file in `dir`. When a run resumes, TensorBoard takes the newer of two values of one step.
    pub fn create(dir: &Path) -> Result<EventFile, FileError> {
        create_dir(dir)?;
        let seconds = now();
        // Several files may begin within one second.
        let mut n = 0;
        loop {
            let path = dir.join(format!("events.out.tfevents.{:010}.nrlc.{n}", seconds as u64));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let mut events = EventFile { path, file };
                    events.record(&event(seconds, None, |m| m.text(3, "brain.Event:2")))?;
                    return Ok(events);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
                Err(e) => return Err(FileError::new("create", &path, e)),
            }
        }
    }

    /// Writes one number.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f32) -> Result<(), FileError> {
        let value = |m: &mut Message| {
            m.text(1, tag);
            m.float(2, value);
        };
        self.summary(step, value)
    }

    /// Writes one text, shown as markdown.
    pub fn text(&mut self, tag: &str, step: u64, text: &str) -> Result<(), FileError> {
        let value = |m: &mut Message| {
            m.text(1, tag);
            // A string tensor without dims: DT_STRING, an empty shape, one string.
            m.message(8, |t| {
                t.varint(1, 7);
                t.message(2, |_| ());
                t.text(8, text);
            });
            m.message(9, |meta| meta.message(1, |plugin| plugin.text(1, "text")));
        };
        self.summary(step, value)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn summary(&mut self, step: u64, value: impl Fn(&mut Message)) -> Result<(), FileError> {
        let event =
            event(now(), Some(step), |m| m.message(5, |summary| summary.message(1, &value)));
        self.record(&event)
    }

    fn record(&mut self, data: &[u8]) -> Result<(), FileError> {
        let length = (data.len() as u64).to_le_bytes();
        let mut out = length.to_vec();
        out.extend(masked(&length).to_le_bytes());
        out.extend(data);
        out.extend(masked(data).to_le_bytes());
        self.file.write_all(&out).map_err(|e| FileError::new("write", &self.path, e))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn event(seconds: f64, step: Option<u64>, body: impl Fn(&mut Message)) -> Vec<u8> {
    let mut message = Message::default();
    message.double(1, seconds);
    if let Some(step) = step {
        message.varint(2, step);
    }
    body(&mut message);
    message.bytes
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn raw(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }

    /// Field number and wire type: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
    fn key(&mut self, field: u64, wire: u64) {
        self.raw(field << 3 | wire);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.raw(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.key(field, 2);
        self.raw(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn message(&mut self, field: u64, fill: impl Fn(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.key(field, 2);
        self.raw(inner.bytes.len() as u64);
        self.bytes.extend(inner.bytes);
    }
}

/// The checksum of the TFRecord format: crc32c, rotated and shifted so that a checksum of a checksum is harmless.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit-reversed polynomial 0x82f63b78.
pub fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut c = i as u32;
            let mut bit = 0;
            while bit < 8 {
                c = if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 };
                bit += 1;
            }
            table[i] = c;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc, &b| TABLE[((crc ^ u32::from(b)) & 0xff) as usize] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of RFC 3720, appendix B.4.
    #[test]
    fn crc32c_gives_the_published_values() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    /// Splits a file into its records and checks both checksums of each.
    fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut rest = bytes;
        let mut out = Vec::new();
        while !rest.is_empty() {
            let n = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked(&rest[..8]).to_le_bytes());
            let data = &rest[12..12 + n];
            assert_eq!(rest[12 + n..16 + n], masked(data).to_le_bytes());
            out.push(data.to_vec());
            rest = &rest[16 + n..];
        }
        out
    }

    /// Bytes after the time stamp, which are encoded by hand from the fields of event.proto and summary.proto.
    #[test]
    fn records_follow_the_wire_format() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(dir.path()).unwrap();
        file.scalar("a", 300, 1.5).unwrap();
        file.text("s", 1, "hi").unwrap();
        let records = records(&std::fs::read(file.path()).unwrap());
        assert_eq!(records.len(), 3);
        assert!(records.iter().all(|r| r[0] == 0x09));
        assert_eq!(records[0][9..], *b"\x1a\x0dbrain.Event:2");
        assert_eq!(records[1][9..], *b"\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\0\0\xc0\x3f");
        let text = b"\x10\x01\x2a\x19\x0a\x17\x0a\x01s\x42\x08\x08\x07\x12\0\x42\x02hi\x4a\x08\x0a\x06\x0a\x04text";
        assert_eq!(records[2][9..], *text);
        let second = EventFile::create(dir.path()).unwrap();
        assert_ne!(second.path(), file.path());
    }
}
