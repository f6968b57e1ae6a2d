//! The weights of a model directory.
//!
//! In: model.safetensors, or the shards that model.safetensors.index.json lists. Out: tensors by name, and an account
//! of them: what a model wants and what the files hold must agree exactly, and all differences come in one error.
//! A head that is stored although it is tied must equal the embedding bit for bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use nrl_ir::graph::rows_of;
use serde_json::Value;
use thiserror::Error;

use super::abbreviate;
use super::tensor_file::{TensorFile, TensorFileError};

/// Weights that cannot be used.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// One file is broken.
    #[error(transparent)]
    File(#[from] TensorFileError),
    /// No weights at all.
    #[error(
        "{dir} holds no safetensors weights{found}; expected model.safetensors or model.safetensors.index.json"
    )]
    None { dir: PathBuf, found: String },
    /// Shards of the index that are not there.
    #[error("{index} lists files that are missing: {missing}; fetch them into {dir}", dir = index.parent().unwrap_or(index).display())]
    MissingFiles { index: PathBuf, missing: String },
    /// An index that cannot be read.
    #[error("{index} is not an index of weights: {reason}")]
    Index { index: PathBuf, reason: String },
    /// Tensors that the index promises and the shards lack.
    #[error("{index} promises tensors that its files do not hold: {missing}")]
    NotInShard { index: PathBuf, missing: String },
    /// No such tensor.
    #[error("{dir} has no tensor {name}")]
    Missing { dir: PathBuf, name: String },
    /// What the model wants and what the files hold differ.
    #[error(transparent)]
    Account(#[from] AccountError),
}

impl WeightsError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            WeightsError::File(e) => e.code(),
            WeightsError::MissingFiles { .. } => "missing-shard",
            WeightsError::Account(AccountError::Tied { .. }) => "tied-head-differs",
            WeightsError::Account(_) => "checkpoint-mismatch",
            _ => "bad-checkpoint",
        }
    }
}

/// How a checkpoint differs from the model that wants it.
#[derive(Debug, PartialEq, Error)]
pub enum AccountError {
    /// Names or shapes differ.
    #[error(
        "the weights in {dir} do not fit the model: {}",
        differences(missing, unexpected, shapes)
    )]
    Differs { dir: PathBuf, missing: Vec<String>, unexpected: Vec<String>, shapes: Vec<String> },
    /// A stored head that should be the embedding is not.
    #[error(
        "config.json ties {head} to {embed}, but in {dir} they differ, first at row {row}; set `tie_word_embeddings` \
         to false to keep the stored head, or remove {head} from the weights"
    )]
    Tied { dir: PathBuf, head: String, embed: String, row: usize },
    /// A tensor could not be compared.
    #[error("{0}")]
    Unreadable(String),
}

fn differences(missing: &[String], unexpected: &[String], shapes: &[String]) -> String {
    let part = |what: &str, names: &[String]| {
        (!names.is_empty())
            .then(|| format!("{} {what} ({})", names.len(), abbreviate(&by_layer(names), 8)))
    };
    let parts = [
        part("missing", missing),
        part("unexpected", unexpected),
        part("of another shape", shapes),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Folds names that differ in the layer number alone: `model.layers.{0..3}.mlp.up_proj.weight`.
fn by_layer(names: &[String]) -> Vec<String> {
    let mut groups: IndexMap<(String, String), Vec<usize>> = IndexMap::new();
    for name in names {
        let split = name.split_once(".layers.").and_then(|(a, rest)| {
            let (number, tail) = rest.split_once('.')?;
            Some(((format!("{a}.layers."), format!(".{tail}")), number.parse().ok()?))
        });
        let (key, number) = split.unwrap_or(((name.clone(), String::new()), 0));
        groups.entry(key).or_default().push(number);
    }
    let show = |((head, tail), numbers): ((String, String), Vec<usize>)| match &numbers[..] {
        _ if tail.is_empty() => head,
        [one] => format!("{head}{one}{tail}"),
        many => format!("{head}{{{}}}{tail}", ranges(many)),
    };
    groups.into_iter().map(show).collect()
}

/// Whole numbers as ranges: 0..3, 7 stands for 0, 1, 2, 3 and 7.
fn ranges(numbers: &[usize]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for n in sorted {
        match runs.last_mut() {
            Some((_, last)) if n <= *last + 1 => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let show = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}..{b}") };
    runs.iter().map(show).collect::<Vec<_>>().join(",")
}

/// Tensors as files have them: rows of one, `x.weight[0..4]` and `x.weight[4..8]`, put together, with
/// the names of its parts in order.
pub fn joined(wanted: &[(String, Vec<usize>)]) -> Vec<(String, Vec<usize>, Vec<String>)> {
    let mut out: IndexMap<String, (Vec<usize>, Vec<String>)> = IndexMap::new();
    for (name, shape) in wanted {
        let base = rows_of(name).map_or(name.as_str(), |(base, _)| base);
        match out.get_mut(base) {
            Some((whole, parts)) => {
                if let (Some(a), Some(b)) = (whole.first_mut(), shape.first()) {
                    *a += b;
                }
                parts.push(name.clone());
            }
            None => {
                out.insert(base.into(), (shape.clone(), vec![name.clone()]));
            }
        }
    }
    out.into_iter().map(|(name, (shape, parts))| (name, shape, parts)).collect()
}

/// What the directory stores under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub name: String,
    pub shape: Vec<usize>,
    /// As the file names it: F32, BF16, F16.
    pub dtype: String,
}

/// All tensors of a model directory.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<TensorFile>,
    /// Name to file number.
    place: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens a directory; reads headers only.
    pub fn open(dir: &Path) -> Result<Checkpoint, WeightsError> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        if single.exists() {
            Ok(Checkpoint::of_files(dir, vec![TensorFile::open(&single)?]))
        } else if index.exists() {
            Checkpoint::open_index(dir, &index)
        } else {
            let others =
                ["pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.safetensors"];
            let found = others.iter().find(|f| dir.join(f).exists());
            let found =
                found.map_or(String::new(), |f| format!(" (it has {f}, which cannot be read)"));
            Err(WeightsError::None { dir: dir.into(), found })
        }
    }

    fn of_files(dir: &Path, files: Vec<TensorFile>) -> Checkpoint {
        let names = files
            .iter()
            .enumerate()
            .flat_map(|(i, f)| f.entries.keys().map(move |n| (n.clone(), i)));
        let place = names.collect();
        Checkpoint { dir: dir.into(), files, place }
    }

    fn open_index(dir: &Path, index: &Path) -> Result<Checkpoint, WeightsError> {
        let broken = |reason: String| WeightsError::Index { index: index.into(), reason };
        let text = std::fs::read(index)
            .map_err(|source| TensorFileError::Read { path: index.into(), source })?;
        let value: Value = serde_json::from_slice(&text).map_err(|e| broken(e.to_string()))?;
        let map = value["weight_map"]
            .as_object()
            .ok_or_else(|| broken("it has no `weight_map`".into()))?;
        let mut names = Vec::new();
        let mut wanted: Vec<String> = Vec::new();
        for (tensor, file) in map {
            let file =
                file.as_str().ok_or_else(|| broken(format!("the file of {tensor} is not text")))?;
            if Path::new(file).components().count() != 1 || file.starts_with('.') {
                return Err(broken(format!(
                    "the file of {tensor} is {file}, which is not a name in its directory"
                )));
            }
            names.push((tensor.clone(), file));
            if !wanted.iter().any(|w| w == file) {
                wanted.push(file.into());
            }
        }
        let missing: Vec<String> =
            wanted.iter().filter(|f| !dir.join(f).exists()).cloned().collect();
        if !missing.is_empty() {
            return Err(WeightsError::MissingFiles {
                index: index.into(),
                missing: abbreviate(&missing, 10),
            });
        }
        let files: Result<Vec<_>, _> =
            wanted.iter().map(|f| TensorFile::open(&dir.join(f))).collect();
        let files = files?;
        let held = |file: &str, tensor: &str| {
            wanted
                .iter()
                .position(|w| w == file)
                .is_some_and(|i| files[i].entries.contains_key(tensor))
        };
        let absent: Vec<String> =
            names.iter().filter(|(t, f)| !held(f, t)).map(|(t, f)| format!("{t} of {f}")).collect();
        if !absent.is_empty() {
            return Err(WeightsError::NotInShard {
                index: index.into(),
                missing: abbreviate(&absent, 10),
            });
        }
        Ok(Checkpoint::of_files(dir, files))
    }

    /// What is stored, by rising name.
    pub fn names(&self) -> Vec<Stored> {
        let stored = |(name, &i): (&String, &usize)| {
            let entry = &self.files[i].entries[name];
            Stored { name: name.clone(), shape: entry.shape.clone(), dtype: entry.dtype.clone() }
        };
        self.place.iter().map(stored).collect()
    }

    /// Whether a tensor of this name is stored.
    pub fn contains(&self, name: &str) -> bool {
        self.place.contains_key(name)
    }

    /// The shape stored under a name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.place.get(name).map(|&i| &self.files[i].entries[name].shape[..])
    }

    /// One tensor as f32 in storage order, or some of its rows, `x.weight[4..8]`.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        if let Some((base, rows)) = rows_of(name)
            && !self.contains(name)
        {
            let all = self.read_f32(base)?;
            let count = self.shape(base).and_then(|s| s.first()).copied().unwrap_or(0);
            let width = all.len() / count.max(1);
            let part = all.get(rows.start * width..rows.end * width);
            let missing = || WeightsError::Missing { dir: self.dir.clone(), name: name.into() };
            return part.map(<[f32]>::to_vec).ok_or_else(missing);
        }
        let missing = || WeightsError::Missing { dir: self.dir.clone(), name: name.into() };
        let &file = self.place.get(name).ok_or_else(missing)?;
        Ok(self.files[file].read_f32(name)?)
    }

    /// Compares what is stored with `wanted` (names and shapes); rotary buffers and `allowed_extra` may be stored besides.
    pub fn account(
        &self,
        wanted: &[(String, Vec<usize>)],
        allowed_extra: &[&str],
    ) -> Result<(), AccountError> {
        let mut missing = Vec::new();
        let mut shapes = Vec::new();
        let wanted = joined(wanted);
        for (name, shape, _) in &wanted {
            match self.shape(name) {
                None => missing.push(name.clone()),
                Some(found) if found != shape => {
                    shapes.push(format!("{name} {found:?} instead of {shape:?}"))
                }
                Some(_) => {}
            }
        }
        let expected: std::collections::HashSet<&str> =
            wanted.iter().map(|w| w.0.as_str()).collect();
        let buffer = |n: &str| n.ends_with("rotary_emb.inv_freq") || n.ends_with(".masked_bias");
        let extra = |n: &&String| {
            !expected.contains(n.as_str()) && !buffer(n) && !allowed_extra.contains(&n.as_str())
        };
        let unexpected: Vec<String> = self.place.keys().filter(extra).cloned().collect();
        if missing.is_empty() && shapes.is_empty() && unexpected.is_empty() {
            return Ok(());
        }
        Err(AccountError::Differs { dir: self.dir.clone(), missing, unexpected, shapes })
    }

    /// Refuses a stored `head` that differs from `embed`, to which config.json ties it.
    pub fn check_tied(&self, head: &str, embed: &str) -> Result<(), AccountError> {
        if !self.contains(head) || !self.contains(embed) {
            return Ok(());
        }
        let read = |name| self.read_f32(name).map_err(|e| AccountError::Unreadable(e.to_string()));
        let (a, b) = (read(head)?, read(embed)?);
        let width = self.shape(embed).and_then(|s| s.last()).copied().unwrap_or(1).max(1);
        let same = |(x, y): (&f32, &f32)| x.to_bits() == y.to_bits();
        let first =
            if a.len() == b.len() { a.iter().zip(&b).position(|p| !same(p)) } else { Some(0) };
        match first {
            None => Ok(()),
            Some(i) => Err(AccountError::Tied {
                dir: self.dir.clone(),
                head: head.into(),
                embed: embed.into(),
                row: i / width,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fs::{self, File};

    use serde_json::json;

    use super::super::tensor_file::{Dtype, TensorSpec, write_tensors};
    use super::*;

    type Tensors<'a> = [(&'a str, &'a [usize], Vec<f32>)];

    fn write(path: PathBuf, tensors: &Tensors) {
        let specs: Vec<_> = tensors.iter().map(|t| TensorSpec::new(t.0, t.1)).collect();
        let find = |name: &str| Ok(Cow::from(&tensors.iter().find(|t| t.0 == name).unwrap().2));
        write_tensors(&mut File::create(path).unwrap(), &specs, Dtype::F32, find).unwrap();
    }

    fn single(tensors: &Tensors) -> (tempfile::TempDir, Checkpoint) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path().join("model.safetensors"), tensors);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        (dir, checkpoint)
    }

    fn sharded() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path().join("a.safetensors"),
            &[("x", &[1], vec![1.0]), ("y", &[2], vec![2.0, 3.0])],
        );
        write(dir.path().join("b.safetensors"), &[("z", &[1], vec![4.0])]);
        let map = json!({"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}});
        fs::write(dir.path().join("model.safetensors.index.json"), map.to_string()).unwrap();
        dir
    }

    #[test]
    fn shards_read_as_one() {
        let dir = sharded();
        let c = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(c.names().iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["x", "y", "z"]);
        assert_eq!(c.read_f32("y").unwrap(), [2.0, 3.0]);
        assert_eq!(c.read_f32("z").unwrap(), [4.0]);
        assert!(c.read_f32("q").is_err());
    }

    #[test]
    fn missing_and_incomplete_shards_are_named() {
        let dir = sharded();
        fs::remove_file(dir.path().join("b.safetensors")).unwrap();
        let e = Checkpoint::open(dir.path()).unwrap_err();
        assert_eq!(e.code(), "missing-shard");
        assert!(
            e.to_string().contains("lists files that are missing: b.safetensors; fetch"),
            "{e}"
        );
        write(dir.path().join("b.safetensors"), &[("w", &[1], vec![4.0])]);
        let e = Checkpoint::open(dir.path()).unwrap_err();
        assert!(e.to_string().ends_with("do not hold: z of b.safetensors"), "{e}");
        fs::write(dir.path().join("b.safetensors"), b"abc").unwrap();
        assert_eq!(Checkpoint::open(dir.path()).unwrap_err().code(), "truncated-safetensors");
        fs::write(dir.path().join("model.safetensors.index.json"), "{}").unwrap();
        let e = Checkpoint::open(dir.path()).unwrap_err();
        assert!(e.to_string().ends_with("it has no `weight_map`"), "{e}");
    }

    #[test]
    fn an_index_never_leaves_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let map = json!({"weight_map": {"x": "../outside.safetensors"}});
        fs::write(dir.path().join("model.safetensors.index.json"), map.to_string()).unwrap();
        assert!(
            Checkpoint::open(dir.path())
                .unwrap_err()
                .to_string()
                .contains("not a name in its directory")
        );
    }

    #[test]
    fn a_directory_without_weights_says_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
        let e = Checkpoint::open(dir.path()).unwrap_err();
        assert!(e.to_string().contains("(it has pytorch_model.bin, which cannot be read)"), "{e}");
    }

    #[test]
    fn all_differences_come_in_one_error() {
        let one = || vec![0.0];
        let (_dir, c) = single(&[
            ("model.norm.weight", &[1], one()),
            ("model.layers.0.q.weight", &[1], one()),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", &[1], one()),
            ("model.layers.0.extra.bias", &[1], one()),
            ("model.layers.1.extra.bias", &[1], one()),
            ("lm_head.weight", &[1], one()),
        ]);
        let want = |n: &str, s: &[usize]| (n.to_string(), s.to_vec());
        let mut wanted = vec![want("model.norm.weight", &[2])];
        wanted.extend((0..5).map(|i| want(&format!("model.layers.{i}.q.weight"), &[1])));
        let e = c.account(&wanted, &["lm_head.weight"]).unwrap_err().to_string();
        assert!(
            e.ends_with(
                "do not fit the model: 4 missing (model.layers.{1..4}.q.weight); 2 unexpected \
                 (model.layers.{0..1}.extra.bias); 1 of another shape (model.norm.weight [1] instead of [2])"
            ),
            "{e}"
        );
        let fits = vec![want("model.norm.weight", &[1]), want("model.layers.0.q.weight", &[1])];
        let extra = ["lm_head.weight", "model.layers.0.extra.bias", "model.layers.1.extra.bias"];
        assert_eq!(c.account(&fits, &extra), Ok(()));
    }

    #[test]
    fn rows_of_one_tensor_are_read_and_counted_as_one() {
        let (_dir, c) = single(&[("a.weight", &[3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
        assert_eq!(c.read_f32("a.weight[1..3]").unwrap(), [3.0, 4.0, 5.0, 6.0]);
        assert!(c.read_f32("a.weight[1..4]").is_err());
        let part = |n: &str, rows| (format!("a.weight[{n}]"), vec![rows, 2]);
        assert_eq!(c.account(&[part("0..1", 1), part("1..3", 2)], &[]), Ok(()));
        assert!(c.account(&[part("0..1", 1)], &[]).is_err());
    }

    /// Case c71.
    #[test]
    fn a_tied_head_must_equal_the_embedding() {
        let embed = ("embed", &[2usize, 2][..], vec![1.0, 2.0, 3.0, 4.0]);
        let head = |last: f32| ("lm_head", &[2usize, 2][..], vec![1.0, 2.0, 3.0, last]);
        let (_dir, c) = single(&[embed.clone(), head(4.0)]);
        assert_eq!(c.check_tied("lm_head", "embed"), Ok(()));
        let (_dir, c) = single(&[embed, head(5.0)]);
        let e = c.check_tied("lm_head", "embed").unwrap_err();
        assert!(matches!(e, AccountError::Tied { row: 1, .. }), "{e}");
        assert!(
            e.to_string().contains("ties lm_head to embed")
                && e.to_string().contains("first at row 1"),
            "{e}"
        );
    }
}
