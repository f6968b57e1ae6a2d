//! The safetensors format: eight bytes of header length, a JSON header, then the tensors' bytes.
//!
//! In: a file, or tensors as f32 rows. Out: the header with every range checked against the file's length, single
//! tensors as f32, or a file that any reader of the format accepts. Tensors are read by offset, so a file is never
//! held in memory as a whole.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use thiserror::Error;

/// A tensor file that cannot be used.
#[derive(Debug, Error)]
pub enum TensorFileError {
    /// The system failed.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// Shorter than its header says.
    #[error(
        "{path} is truncated: its header asks for {expected} bytes and it has {found}; fetch the file again"
    )]
    Truncated { path: PathBuf, expected: u64, found: u64 },
    /// Not this format.
    #[error("{path} is not a safetensors file: {reason}")]
    Header { path: PathBuf, reason: String },
    /// A number type that cannot be loaded.
    #[error(
        "tensor {name} of {path} is {dtype}; F32, BF16 and F16 can be loaded, so convert the checkpoint first"
    )]
    Dtype { path: PathBuf, name: String, dtype: String },
    /// No such tensor.
    #[error("{path} has no tensor {name}")]
    Missing { path: PathBuf, name: String },
}

impl TensorFileError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            TensorFileError::Truncated { .. } => "truncated-safetensors",
            TensorFileError::Dtype { .. } => "unsupported-dtype",
            _ => "bad-safetensors",
        }
    }
}

/// Number types of stored tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    Bf16,
    F16,
}

impl Dtype {
    /// The name in the file's header.
    pub fn tag(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "F16",
        }
    }

    /// The name in config.json.
    pub fn torch_name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::Bf16 => "bfloat16",
            Dtype::F16 => "float16",
        }
    }

    /// Bytes of one number.
    pub fn size(self) -> u64 {
        if self == Dtype::F32 { 4 } else { 2 }
    }

    fn of(tag: &str) -> Option<Dtype> {
        [Dtype::F32, Dtype::Bf16, Dtype::F16].into_iter().find(|d| d.tag() == tag)
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub shape: Vec<usize>,
    /// As the header names it; only F32, BF16 and F16 can be read.
    pub dtype: String,
    start: u64,
    end: u64,
}

/// A file whose header has been read and checked.
#[derive(Clone, Debug)]
pub struct TensorFile {
    pub path: PathBuf,
    pub entries: IndexMap<String, Entry>,
}

impl TensorFile {
    /// Reads and checks the header.
    pub fn open(path: &Path) -> Result<TensorFile, TensorFileError> {
        let read = |source| TensorFileError::Read { path: path.into(), source };
        let header = |reason: String| TensorFileError::Header { path: path.into(), reason };
        let mut file = File::open(path).map_err(read)?;
        let found = file.metadata().map_err(read)?.len();
        let short = |expected| TensorFileError::Truncated { path: path.into(), expected, found };
        if found < 8 {
            return Err(short(8));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(read)?;
        let length = u64::from_le_bytes(length);
        if length > 1 << 30 {
            return Err(header(format!("its header would be {length} bytes long")));
        }
        if found < 8 + length {
            return Err(short(8 + length));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(read)?;
        let table: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|e| header(e.to_string()))?;
        let mut entries = IndexMap::new();
        let mut end = 8 + length;
        for (name, value) in table {
            if name != "__metadata__" {
                let entry = Entry::read(&value, 8 + length)
                    .map_err(|why| header(format!("{name}: {why}")))?;
                end = end.max(entry.end);
                entries.insert(name, entry);
            }
        }
        if found < end {
            return Err(short(end));
        }
        Ok(TensorFile { path: path.into(), entries })
    }

    /// Reads one tensor as f32, row by row in storage order.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, TensorFileError> {
        let read = |source| TensorFileError::Read { path: self.path.clone(), source };
        let missing = || TensorFileError::Missing { path: self.path.clone(), name: name.into() };
        let entry = self.entries.get(name).ok_or_else(missing)?;
        let dtype = Dtype::of(&entry.dtype).ok_or_else(|| TensorFileError::Dtype {
            path: self.path.clone(),
            name: name.into(),
            dtype: entry.dtype.clone(),
        })?;
        let mut file = File::open(&self.path).map_err(read)?;
        file.seek(SeekFrom::Start(entry.start)).map_err(read)?;
        let mut bytes = vec![0; (entry.end - entry.start) as usize];
        file.read_exact(&mut bytes).map_err(read)?;
        Ok(match dtype {
            Dtype::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Dtype::Bf16 => bytes
                .chunks_exact(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
                .collect(),
            Dtype::F16 => bytes
                .chunks_exact(2)
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
        })
    }
}

impl Entry {
    fn read(value: &Value, base: u64) -> Result<Entry, String> {
        let dtype = value["dtype"].as_str().ok_or("it has no dtype")?.to_string();
        let shape: Option<Vec<usize>> = value["shape"]
            .as_array()
            .and_then(|s| s.iter().map(|n| n.as_u64().map(|n| n as usize)).collect());
        let shape = shape.ok_or("it has no shape")?;
        let offset = |i: usize| value["data_offsets"][i].as_u64().ok_or("it has no data_offsets");
        let (start, end) = (offset(0)?, offset(1)?);
        if end < start || end > 1 << 50 {
            return Err(format!("its data_offsets {start}..{end} make no sense"));
        }
        let count = shape
            .iter()
            .try_fold(1u64, |n, &d| n.checked_mul(d as u64))
            .ok_or("its shape is too large")?;
        if let Some(d) = Dtype::of(&dtype)
            && count.checked_mul(d.size()) != Some(end - start)
        {
            return Err(format!(
                "shape {shape:?} of {dtype} does not fill its {} bytes",
                end - start
            ));
        }
        Ok(Entry { shape, dtype, start: base + start, end: base + end })
    }
}

/// A tensor to be written: its name and shape.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A name with its shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.into() }
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Writes tensors in the order given; `values` is asked for each in turn and must return `count` numbers.
pub fn write_tensors<'a>(
    file: &mut File,
    specs: &[TensorSpec],
    dtype: Dtype,
    mut values: impl FnMut(&str) -> io::Result<Cow<'a, [f32]>>,
) -> io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut end = 0;
    for spec in specs {
        let start = end;
        end += spec.count() as u64 * dtype.size();
        let entry =
            json!({"dtype": dtype.tag(), "shape": spec.shape, "data_offsets": [start, end]});
        header.insert(spec.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The tensors start at a multiple of eight, as other readers want it.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut bytes = Vec::new();
    for spec in specs {
        let row = values(&spec.name)?;
        if row.len() != spec.count() {
            let what = format!(
                "tensor {} has {} values, its shape {:?}",
                spec.name,
                row.len(),
                spec.shape
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        for piece in row.chunks(1 << 16) {
            bytes.clear();
            match dtype {
                Dtype::F32 => bytes.extend(piece.iter().flat_map(|x| x.to_le_bytes())),
                Dtype::Bf16 => {
                    bytes.extend(piece.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()))
                }
                Dtype::F16 => {
                    bytes.extend(piece.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()))
                }
            }
            out.write_all(&bytes)?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;

    use super::*;

    fn write(path: &Path, dtype: Dtype, tensors: &[(&str, &[usize], &[f32])]) {
        let specs: Vec<_> = tensors.iter().map(|t| TensorSpec::new(t.0, t.1)).collect();
        let find = |name: &str| Ok(Cow::from(tensors.iter().find(|t| t.0 == name).unwrap().2));
        write_tensors(&mut File::create(path).unwrap(), &specs, dtype, find).unwrap();
    }

    #[test]
    fn other_readers_read_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        write(
            &path,
            Dtype::F32,
            &[("b", &[2, 1], &[1.5, -2.0]), ("a", &[0, 3], &[]), ("c", &[], &[7.0])],
        );
        let bytes = std::fs::read(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let b = read.tensor("b").unwrap();
        assert_eq!((b.shape(), b.data()), (&[2, 1][..], &[0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0][..]));
        assert_eq!((read.len(), read.tensor("c").unwrap().shape()), (3, &[][..]));
        let own = TensorFile::open(&path).unwrap();
        assert_eq!(own.read_f32("b").unwrap(), [1.5, -2.0]);
        assert_eq!(own.read_f32("c").unwrap(), [7.0]);
        assert!(own.read_f32("d").unwrap_err().to_string().ends_with("has no tensor d"));
    }

    #[test]
    fn what_others_write_is_read_in_every_dtype() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let f16: Vec<u8> = [0x3c00u16, 0xc100].iter().flat_map(|x| x.to_le_bytes()).collect();
        let bf16: Vec<u8> = [0x3fc0u16, 0xc020].iter().flat_map(|x| x.to_le_bytes()).collect();
        let ids = [0u8; 16];
        let views = [
            ("h", TensorView::new(safetensors::Dtype::F16, vec![2], &f16).unwrap()),
            ("b", TensorView::new(safetensors::Dtype::BF16, vec![2], &bf16).unwrap()),
            ("i", TensorView::new(safetensors::Dtype::I64, vec![2], &ids).unwrap()),
        ];
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.read_f32("h").unwrap(), [1.0, -2.5]);
        assert_eq!(file.read_f32("b").unwrap(), [1.5, -2.5]);
        let e = file.read_f32("i").unwrap_err();
        assert_eq!(e.code(), "unsupported-dtype");
        assert!(e.to_string().contains("tensor i of") && e.to_string().contains("is I64"), "{e}");
    }

    #[test]
    fn half_precision_rounds_to_nearest_even() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        // 257/256 and 259/256 lie halfway between two bf16 numbers; the even ones are 1 and 260/256.
        let (low, high) = (257.0 / 256.0, 259.0 / 256.0);
        write(&path, Dtype::Bf16, &[("a", &[3], &[low, high, -3.0])]);
        assert_eq!(TensorFile::open(&path).unwrap().read_f32("a").unwrap(), [1.0, 1.015_625, -3.0]);
    }

    #[test]
    fn a_truncated_file_says_how_much_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        write(&path, Dtype::F32, &[("a", &[4], &[1.0; 4])]);
        let bytes = std::fs::read(&path).unwrap();
        for cut in [bytes.len() - 1, 20, 3] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let e = TensorFile::open(&path).unwrap_err();
            assert_eq!(e.code(), "truncated-safetensors");
            assert!(e.to_string().contains(&format!("and it has {cut}; fetch")), "{e}");
        }
        std::fs::write(&path, b"\x10\0\0\0\0\0\0\0not json at all!").unwrap();
        assert_eq!(TensorFile::open(&path).unwrap_err().code(), "bad-safetensors");
        std::fs::write(&path, [0xff; 32]).unwrap();
        assert_eq!(TensorFile::open(&path).unwrap_err().code(), "bad-safetensors");
    }

    #[test]
    fn a_shape_that_does_not_fill_its_bytes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let header = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 8]);
        std::fs::write(&path, bytes).unwrap();
        let e = TensorFile::open(&path).unwrap_err();
        assert!(e.to_string().ends_with("a: shape [3] of F32 does not fill its 8 bytes"), "{e}");
    }
}
