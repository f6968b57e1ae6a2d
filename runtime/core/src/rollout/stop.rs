//! When a completion ends.
//!
//! Stop ids are the union of the tokenizer's, the checkpoint's and the recipe's. A stop text ends a completion as soon
//! as the decoded tail contains it, and is cut from the text, while its tokens stay: they were sampled.

use crate::text::Text;

/// The stop rules of one generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stop {
    ids: Vec<u32>,
    texts: Vec<String>,
    /// Tokens whose text may hold a whole stop text.
    tail: usize,
}

impl Stop {
    pub fn new(text: &Text, ids: &[u32], texts: &[String]) -> Stop {
        let mut ids: Vec<u32> = text.stop_ids().iter().chain(ids).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let texts: Vec<String> = texts.iter().filter(|t| !t.is_empty()).cloned().collect();
        // A token has at least one byte, but one character may take four tokens.
        let tail = texts.iter().map(String::len).max().map_or(0, |n| n + 4);
        Stop { ids, texts, tail }
    }

    /// Is the completion over with its last token?
    pub fn ends(&self, text: &Text, ids: &[u32]) -> bool {
        let Some(last) = ids.last() else { return false };
        if self.is_stop(*last) {
            return true;
        }
        if self.texts.is_empty() {
            return false;
        }
        let tail = text.decode(&ids[ids.len().saturating_sub(self.tail)..]);
        self.texts.iter().any(|t| tail.contains(t.as_str()))
    }

    /// Is `id` a stop token?
    pub fn is_stop(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// Takes the stop tokens out of a row of logits.
    pub fn mask(&self, row: &mut [f32]) {
        for id in &self.ids {
            if let Some(x) = row.get_mut(*id as usize) {
                *x = f32::NEG_INFINITY;
            }
        }
    }

    /// Text of a completion, without its stop token and from the first stop text on.
    pub fn text(&self, text: &Text, ids: &[u32]) -> String {
        let kept = match ids.split_last() {
            Some((last, rest)) if self.is_stop(*last) => rest,
            _ => ids,
        };
        let mut out = text.decode(kept);
        let cut = self.texts.iter().filter_map(|t| out.find(t.as_str())).min();
        if let Some(at) = cut {
            out.truncate(at);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::characters;

    /// Trap 6: the stop set is a union, its token is kept, and truncated samples have none.
    #[test]
    fn a_completion_ends_with_any_stop_token() {
        let text = characters(13).unwrap();
        let stop = Stop::new(&text, &[10], &[]);
        assert!(!stop.ends(&text, &[1, 2]) && !stop.ends(&text, &[]));
        assert!(stop.ends(&text, &[1, 11]) && stop.ends(&text, &[1, 10]));
        assert_eq!(stop.text(&text, &[1, 2, 11]), "12");
        assert_eq!(stop.text(&text, &[1, 2, 10]), "12");
        assert_eq!(stop.text(&text, &[1, 2]), "12");
        assert_eq!(stop.text(&text, &[]), "");
    }

    #[test]
    fn a_stop_text_may_span_tokens_and_is_cut() {
        let text = characters(13).unwrap();
        let stop = Stop::new(&text, &[], &["45".into(), "3>".into()]);
        assert!(!stop.ends(&text, &[3, 4]));
        assert!(stop.ends(&text, &[3, 4, 5]));
        assert_eq!(stop.text(&text, &[1, 3, 4, 5]), "13");
        assert_eq!(stop.text(&text, &[1, 3, 10, 4, 5]), "1");
    }
}
