//! Text to token ids and back.
//!
//! In: a model directory's tokenizer.json (read by the `tokenizers` crate, so exactly as Hugging Face reads it) with
//! tokenizer_config.json and special_tokens_map.json, or an alphabet for models trained from scratch. Out: ids and
//! text. Truncation and padding that the file may ask for are switched off: ids are never lost in silence, and a
//! character outside a built-in alphabet is an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use thiserror::Error;

/// A tokenizer that cannot be used, or text that it cannot write.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file is absent or unreadable.
    #[error(
        "cannot read {path}: {reason}; a model directory needs tokenizer.json (the fast tokenizer)"
    )]
    Read { path: PathBuf, reason: String },
    /// A companion file is broken.
    #[error("{path}: {reason}")]
    Config { path: PathBuf, reason: String },
    /// A special token that is not in the vocabulary.
    #[error("{path} names `{token}` as {role}, which the tokenizer does not have")]
    Special { path: PathBuf, role: String, token: String },
    /// A character outside the alphabet.
    #[error("character {found:?} at place {at} of {text:?} is not in the alphabet {alphabet:?}")]
    Character { found: char, at: usize, text: String, alphabet: String },
    /// An alphabet with a repeated character, or none.
    #[error("bad alphabet: {0}")]
    Alphabet(String),
    /// The tokenizer itself failed.
    #[error("the tokenizer failed on {text:?}: {reason}")]
    Encode { text: String, reason: String },
}

impl TokenizerError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        match self {
            TokenizerError::Character { .. } => "not-in-alphabet",
            TokenizerError::Alphabet(_) => "bad-alphabet",
            _ => "bad-tokenizer",
        }
    }
}

/// A loaded or built-in tokenizer; cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    alphabet: Option<Arc<Alphabet>>,
    len: usize,
    specials: Vec<Special>,
    config: Map<String, Value>,
}

/// The symbols of a built-in tokenizer in the order of their ids.
#[derive(Debug, PartialEq)]
struct Alphabet {
    symbols: Vec<String>,
    specials: Vec<usize>,
}

/// A special token and its role, such as `eos_token`.
#[derive(Clone, Debug, PartialEq)]
pub struct Special {
    pub role: String,
    pub text: String,
    pub id: u32,
}

const ROLES: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

impl Tokenizer {
    /// Reads the tokenizer of a model directory.
    pub fn open(dir: &Path) -> Result<Tokenizer, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let read = |reason: String| TokenizerError::Read { path: path.clone(), reason };
        let bytes = std::fs::read(&path).map_err(|e| read(e.to_string()))?;
        let mut config = table(&dir.join("tokenizer_config.json"))?;
        if let Some(Value::Object(built_in)) = config.get("nrl_characters") {
            let part = |key: &str| built_in.get(key).and_then(Value::as_str);
            if let (Some(symbols), Some(eos)) = (part("symbols"), part("eos")) {
                return Tokenizer::characters(symbols, eos, part("pad").unwrap_or(eos));
            }
        }
        for (role, value) in table(&dir.join("special_tokens_map.json"))? {
            if config.get(&role).is_none_or(Value::is_null) {
                config.insert(role, value);
            }
        }
        let inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| read(e.to_string()))?;
        Tokenizer::finish(inner, config, None, &dir.join("tokenizer_config.json"))
    }

    /// One id per character of `symbols`, in that order; `eos` and `pad` follow if they are not among them.
    pub fn characters(symbols: &str, eos: &str, pad: &str) -> Result<Tokenizer, TokenizerError> {
        let bad = TokenizerError::Alphabet;
        let mut list: Vec<String> = symbols.chars().map(String::from).collect();
        if list.is_empty() {
            return Err(bad("it has no characters".into()));
        }
        if let Some((i, c)) = list.iter().enumerate().find(|(i, c)| list[..*i].contains(c)) {
            return Err(bad(format!("{c:?} occurs again at place {i}")));
        }
        for (role, token) in [("eos", eos), ("pad", pad)] {
            if token.is_empty() {
                return Err(bad(format!("the {role} token is empty")));
            }
            if !list.iter().any(|s| s == token) {
                list.push(token.into());
            }
        }
        let place = |token: &str| list.iter().position(|s| s == token).unwrap_or(0);
        let mut specials = vec![place(eos), place(pad)];
        specials.dedup();
        let built_in = json!({"symbols": symbols, "eos": eos, "pad": pad});
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "pad_token": pad,
            "clean_up_tokenization_spaces": false, "nrl_characters": built_in
        });
        let Value::Object(config) = config else { return Err(bad("it cannot be written".into())) };
        let alphabet = Alphabet { symbols: list, specials };
        let inner = tokenizers::Tokenizer::from_bytes(alphabet.to_json().to_string())
            .map_err(|e| bad(e.to_string()))?;
        Tokenizer::finish(inner, config, Some(Arc::new(alphabet)), Path::new("characters"))
    }

    fn finish(
        mut inner: tokenizers::Tokenizer,
        config: Map<String, Value>,
        alphabet: Option<Arc<Alphabet>>,
        path: &Path,
    ) -> Result<Tokenizer, TokenizerError> {
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| TokenizerError::Config { path: path.into(), reason: e.to_string() })?;
        let len = inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        let mut specials = Vec::new();
        for role in ROLES {
            let Some(text) = config.get(role).and_then(token_text) else { continue };
            let unknown = || TokenizerError::Special {
                path: path.into(),
                role: role.into(),
                token: text.into(),
            };
            let id = inner.token_to_id(text).ok_or_else(unknown)?;
            specials.push(Special { role: role.into(), text: text.into(), id });
        }
        Ok(Tokenizer { inner: Arc::new(inner), alphabet, len, specials, config })
    }

    /// One more than the largest id; the model's vocabulary may be larger.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this is the built-in tokenizer of characters.
    pub fn is_built_in(&self) -> bool {
        self.alphabet.is_some()
    }

    /// The special token of a role such as `bos_token`.
    pub fn special(&self, role: &str) -> Option<&Special> {
        self.specials.iter().find(|s| s.role == role)
    }

    /// All special tokens with a role.
    pub fn specials(&self) -> &[Special] {
        &self.specials
    }

    /// Id of the begin token.
    pub fn bos(&self) -> Option<u32> {
        Some(self.special("bos_token")?.id)
    }

    /// Id of the end token.
    pub fn eos(&self) -> Option<u32> {
        Some(self.special("eos_token")?.id)
    }

    /// Id of the padding token.
    pub fn pad(&self) -> Option<u32> {
        Some(self.special("pad_token")?.id)
    }

    /// What tokenizer_config.json says.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// Id of a token by its exact text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Ids of `text`; `add_special` lets the tokenizer add its own begin or end token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        if let Some(alphabet) = &self.alphabet {
            return alphabet.encode(text);
        }
        let encoding = self.inner.encode_fast(text, add_special);
        let failed = |e: tokenizers::Error| TokenizerError::Encode {
            text: shorten(text),
            reason: e.to_string(),
        };
        Ok(encoding.map_err(failed)?.get_ids().to_vec())
    }

    /// Text of `ids`; ids beyond the tokenizer have none. Spaces are not cleaned up.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        match &self.alphabet {
            Some(alphabet) => alphabet.decode(ids, skip_special),
            None => self.inner.decode(ids, skip_special).unwrap_or_default(),
        }
    }

    /// The files that make a directory's tokenizer: (name, content). Empty unless the tokenizer is built in.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let Some(alphabet) = &self.alphabet else { return Vec::new() };
        let pretty = |v: &Value| serde_json::to_string_pretty(v).unwrap_or_default() + "\n";
        vec![
            ("tokenizer.json", pretty(&alphabet.to_json())),
            ("tokenizer_config.json", pretty(&Value::Object(self.config.clone()))),
        ]
    }
}

impl Alphabet {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(found) = rest.chars().next() {
            let starts = |i: &usize| rest.starts_with(&self.symbols[*i]);
            let special = self.specials.iter().copied().find(starts);
            let Some(id) = special.or_else(|| (0..self.symbols.len()).find(starts)) else {
                let at = text[..text.len() - rest.len()].chars().count();
                let alphabet = self.symbols.concat();
                return Err(TokenizerError::Character { found, at, text: shorten(text), alphabet });
            };
            ids.push(id as u32);
            rest = &rest[self.symbols[id].len()..];
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = |id: &&u32| !(skip_special && self.specials.contains(&(**id as usize)));
        ids.iter()
            .filter(shown)
            .filter_map(|&id| self.symbols.get(id as usize))
            .map(String::as_str)
            .collect()
    }

    /// tokenizer.json: pairs are never merged, so each character is its own token.
    fn to_json(&self) -> Value {
        let added: Vec<Value> = self
            .specials
            .iter()
            .map(|&i| {
                json!({"id": i, "content": self.symbols[i], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true})
            })
            .collect();
        let vocab: Map<String, Value> =
            self.symbols.iter().enumerate().map(|(i, s)| (s.clone(), i.into())).collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
        })
    }
}

/// A special token as the files spell it: text, or a table with `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// A JSON table from a file that may be absent.
fn table(path: &Path) -> Result<Map<String, Value>, TokenizerError> {
    let Ok(text) = std::fs::read(path) else { return Ok(Map::new()) };
    serde_json::from_slice(&text).map_err(|e| TokenizerError::Config {
        path: path.into(),
        reason: format!("it is not a JSON table: {e}"),
    })
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.into()
    } else {
        text.chars().take(57).collect::<String>() + "..."
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small tokenizer: characters of a few words, `<s>` added in front, one merge.
    pub(crate) fn small() -> Value {
        let symbols = ["<s>", "</s>", "h", "i", "hi", " ", "U", "A", ":", "x", "<|end|>"];
        let vocab: Map<String, Value> =
            symbols.iter().enumerate().map(|(i, s)| (s.to_string(), i.into())).collect();
        let added: Vec<Value> = [0, 1, 10]
            .iter()
            .map(|&i| {
                json!({"id": i, "content": symbols[i], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
            })
            .collect();
        json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "padding": null, "added_tokens": added, "normalizer": null, "pre_tokenizer": null,
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
            "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": ["h i"]}
        })
    }

    pub(crate) fn write_small(dir: &Path, config: Value) {
        std::fs::write(dir.join("tokenizer.json"), small().to_string()).unwrap();
        std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    }

    #[test]
    fn a_file_is_read_with_its_special_tokens() {
        let dir = tempfile::tempdir().unwrap();
        write_small(
            dir.path(),
            json!({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"}),
        );
        std::fs::write(
            dir.path().join("special_tokens_map.json"),
            r#"{"pad_token": "<|end|>", "eos_token": "h"}"#,
        )
        .unwrap();
        let t = Tokenizer::open(dir.path()).unwrap();
        assert_eq!((t.len(), t.bos(), t.eos(), t.pad()), (11, Some(0), Some(1), Some(10)));
        // Longer than the file's own truncation.
        assert_eq!(t.encode("hi hi hi</s>", true).unwrap(), [0, 4, 5, 4, 5, 4, 1]);
        assert_eq!(t.encode("hi", false).unwrap(), [4]);
        assert_eq!(t.decode(&[0, 4, 1, 99], true), "hi");
        assert_eq!(t.decode(&[0, 4, 1], false), "<s>hi</s>");
        assert!(t.files().is_empty());
    }

    #[test]
    fn broken_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = Tokenizer::open(dir.path()).unwrap_err();
        assert!(e.to_string().contains("tokenizer.json: "), "{e}");
        write_small(dir.path(), json!({"eos_token": "<eos>"}));
        let e = Tokenizer::open(dir.path()).unwrap_err();
        assert!(e.to_string().contains("names `<eos>` as eos_token"), "{e}");
        std::fs::write(dir.path().join("tokenizer_config.json"), "[1]").unwrap();
        assert!(Tokenizer::open(dir.path()).unwrap_err().to_string().contains("not a JSON table"));
        std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
        assert_eq!(Tokenizer::open(dir.path()).unwrap_err().code(), "bad-tokenizer");
    }

    #[test]
    fn characters_are_ids_in_order() {
        let t = Tokenizer::characters("0123456789+=>abcdefgh ?$_", "$", "_").unwrap();
        assert_eq!((t.len(), t.eos(), t.pad(), t.bos()), (25, Some(23), Some(24), None));
        assert_eq!(t.encode("40>a$", true).unwrap(), [4, 0, 12, 13, 23]);
        assert_eq!(t.decode(&[4, 0, 12, 13, 23, 24], true), "40>a");
        assert_eq!(t.decode(&[4, 23], false), "4$");
        let t = Tokenizer::characters("ab", "<end>", "<pad>").unwrap();
        assert_eq!((t.len(), t.encode("ab<end>", true).unwrap()), (4, vec![0, 1, 2]));
    }

    #[test]
    fn a_character_outside_the_alphabet_is_an_error() {
        let t = Tokenizer::characters("01", "$", "_").unwrap();
        let e = t.encode("0é1", false).unwrap_err();
        assert_eq!(
            e.to_string(),
            "character 'é' at place 1 of \"0é1\" is not in the alphabet \"01$_\""
        );
        let e = Tokenizer::characters("010", "$", "_").unwrap_err();
        assert_eq!(e.to_string(), "bad alphabet: \"0\" occurs again at place 2");
        assert!(Tokenizer::characters("", "$", "_").is_err());
    }

    #[test]
    fn the_built_in_tokenizer_survives_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let t = Tokenizer::characters("0123 \"\\é", "$", "_").unwrap();
        for (name, content) in t.files() {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        // What the `tokenizers` crate makes of tokenizer.json agrees with the direct path.
        let plain = tokenizers::Tokenizer::from_file(dir.path().join("tokenizer.json")).unwrap();
        let text = "30 1\"\\é$_0";
        let ids = t.encode(text, true).unwrap();
        assert_eq!(plain.encode(text, true).unwrap().get_ids(), ids);
        assert_eq!(plain.decode(&ids, true).unwrap(), t.decode(&ids, true));
        let again = Tokenizer::open(dir.path()).unwrap();
        assert_eq!(again.encode(text, true).unwrap(), ids);
        assert!(again.encode("q", true).is_err() && again.is_built_in());
    }
}
