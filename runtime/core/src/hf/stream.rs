//! Text that grows token by token.
//!
//! In: ids one at a time. Out: the text that is certain so far, whole characters only: a token may end in the middle
//! of one, and a decoder may join tokens, so the newest ids are decoded with a few before them. Stop strings are
//! found although they may begin and end inside tokens.

use super::tokenizer::Tokenizer;

/// Decodes one completion as it is made. Special tokens have no text.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    ids: Vec<u32>,
    /// Ids before this are needed no more.
    start: usize,
    /// Ids before this have their text in `text`.
    shown: usize,
    text: String,
}

impl TextStream {
    /// Takes one id and returns the text that became certain by it.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        self.ids.push(id);
        self.advance(tokenizer, false)
    }

    /// Returns what was held back: a broken character becomes U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> &str {
        self.advance(tokenizer, true)
    }

    /// All certain text.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn advance(&mut self, tokenizer: &Tokenizer, last: bool) -> &str {
        let before = tokenizer.decode(&self.ids[self.start..self.shown], true);
        let now = tokenizer.decode(&self.ids[self.start..], true);
        let from = self.text.len();
        let whole = last || !now.ends_with('\u{FFFD}');
        if whole && let Some(new) = now.get(before.len()..).filter(|n| !n.is_empty()) {
            self.text.push_str(new);
            self.start = self.shown;
            self.shown = self.ids.len();
        }
        &self.text[from..]
    }
}

/// Strings at which a completion ends.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    longest: usize,
}

impl StopStrings {
    /// Empty strings are left out.
    pub fn new(strings: impl IntoIterator<Item = String>) -> StopStrings {
        let strings: Vec<String> = strings.into_iter().filter(|s| !s.is_empty()).collect();
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        StopStrings { strings, longest }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Where the earliest stop string begins, given that only the last `new` bytes of `text` have not been searched.
    pub fn find(&self, text: &str, new: usize) -> Option<usize> {
        let mut from = text.len().saturating_sub(new + self.longest);
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        self.strings.iter().filter_map(|s| text[from..].find(s.as_str())).min().map(|at| at + from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// A byte-level tokenizer whose tokens are single bytes of "é" and "ok", as GPT-2 spells bytes.
    fn bytes() -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        let symbols = ["Ã", "©", "o", "k", "Ġ"];
        let vocab: Map<String, Value> =
            symbols.iter().enumerate().map(|(i, s)| (s.to_string(), i.into())).collect();
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": level, "post_processor": null, "decoder": level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
        });
        std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        let tokenizer = Tokenizer::open(dir.path()).unwrap();
        (dir, tokenizer)
    }

    #[test]
    fn characters_come_whole() {
        let (_dir, t) = bytes();
        let ids = t.encode("oké é", false).unwrap();
        assert_eq!(ids, [2, 3, 0, 1, 4, 0, 1]);
        let mut stream = TextStream::default();
        let pieces: Vec<String> = ids.iter().map(|&id| stream.push(&t, id).to_string()).collect();
        assert_eq!(pieces, ["o", "k", "", "é", " ", "", "é"]);
        assert_eq!(stream.text(), "oké é");
        assert_eq!(stream.push(&t, 0), "");
        assert_eq!(stream.finish(&t), "\u{FFFD}");
        assert_eq!(stream.finish(&t), "");
    }

    #[test]
    fn stop_strings_are_found_across_tokens() {
        let stops = StopStrings::new(["</code>".to_string(), "\n\n".into(), String::new()]);
        assert_eq!(stops.find("a </co", 2), None);
        assert_eq!(stops.find("a </code> b", 5), Some(2));
        assert_eq!(stops.find("x\n\n</code>", 100), Some(1));
        assert_eq!(stops.find("ééé\n\n", 1), Some(6));
        assert!(StopStrings::new([String::new()]).is_empty());
        assert_eq!(StopStrings::default().find("abc", 3), None);
    }
}
