//! The words of a model: its tokenizer, chat template and stop set.
//!
//! In: a model of the program. Out: ids of prompts and answers, text of completions. A rendered chat is encoded without
//! the tokenizer's own special tokens (one begin token, never two); plain text keeps them. The model's vocabulary may
//! be longer than the tokenizer: ids from [`Text::len`] on have no text and are never drawn.

use std::path::Path;

use nrl_ir::host::Value;
use nrl_ir::program::{Chat, Model, Tokens};

use crate::hf::chat::{ChatTemplate, message};
use crate::hf::config::ModelConfig;
use crate::hf::generation::Generation;
use crate::hf::tokenizer::Tokenizer;
use crate::run::error::{Outcome, RunError};

/// Tokenizer, template and stop ids of one model.
#[derive(Clone, Debug)]
pub struct Text {
    pub tokenizer: Tokenizer,
    chat: Option<ChatTemplate>,
    stops: Vec<u32>,
}

impl Text {
    /// Opens the files of `model`, or makes its tokenizer of characters.
    pub fn of(model: &Model) -> Outcome<Text> {
        let text = match &model.tokens {
            Tokens::Directory { path } => Text::open(Path::new(path))?,
            Tokens::Characters { alphabet, eos, pad } => {
                let tokenizer = Tokenizer::characters(alphabet, &eos.to_string(), &pad.to_string());
                let tokenizer = tokenizer.map_err(|e| RunError::new(e.code(), e.to_string()))?;
                let stops = tokenizer.eos().into_iter().collect();
                Text { tokenizer, chat: None, stops }
            }
            Tokens::Unknown => {
                let what = format!("model `{}` has no tokenizer", model.name);
                return Err(RunError::new("not-supported", what));
            }
        };
        let rows = vocabulary(model);
        if rows.is_some_and(|rows| text.len() > rows) {
            let (name, tokens, rows) = (&model.name, text.len(), rows.unwrap_or(0));
            return Err(RunError::new(
                "vocabulary-mismatch",
                format!(
                    "the tokenizer of `{name}` has {tokens} tokens, the model only {rows} rows"
                ),
            )
            .help("take the tokenizer that belongs to the model, or a larger `vocab_size`"));
        }
        Ok(text)
    }

    /// Opens the tokenizer, template and stop set of a model directory.
    pub fn open(dir: &Path) -> Outcome<Text> {
        let config = ModelConfig::open(dir).map_err(|e| RunError::new(e.code(), e.to_string()))?;
        let tokenizer = Tokenizer::open(dir).map_err(|e| RunError::new(e.code(), e.to_string()))?;
        let chat = ChatTemplate::open(dir, &tokenizer)
            .map_err(|e| RunError::new(e.code(), e.to_string()))?;
        let generation = Generation::open(dir, &tokenizer, &config)
            .map_err(|e| RunError::new(e.code(), e.to_string()))?;
        Ok(Text { tokenizer, chat, stops: generation.stop_ids() })
    }

    /// Number of ids that have text.
    pub fn len(&self) -> usize {
        self.tokenizer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokenizer.is_empty()
    }

    /// Ids that end a completion, in rising order.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    /// Text of `ids`, special tokens left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, true)
    }

    /// Ids of plain text with the tokenizer's own begin token.
    pub fn encode(&self, text: &str) -> Outcome<Vec<u32>> {
        self.tokenizer.encode(text, true).map_err(|e| RunError::new(e.code(), e.to_string()))
    }

    /// Ids of text that follows other text.
    pub fn encode_rest(&self, text: &str) -> Outcome<Vec<u32>> {
        self.tokenizer.encode(text, false).map_err(|e| RunError::new(e.code(), e.to_string()))
    }

    /// Text and ids of a prompt: text, or a list of chat messages.
    pub fn prompt(&self, prompt: &Value, chat: Option<&Chat>) -> Outcome<(String, Vec<u32>)> {
        let Some(chat) = chat else {
            let Value::Text(text) = prompt else {
                let what = format!("the prompt is a {}, not text", prompt.kind());
                return Err(
                    RunError::new("bad-prompt", what).help("render messages with `| chat(model)`")
                );
            };
            return Ok((text.to_string(), self.encode(text)?));
        };
        let template = self.chat.as_ref().ok_or_else(|| {
            RunError::new("no-chat-template", "the model has no chat template")
                .help("leave out `| chat(..)`, or take a model with chat_template in its tokenizer_config.json")
        })?;
        let text = template
            .render(&messages(prompt, chat)?, true)
            .map_err(|e| RunError::new(e.code(), e.to_string()))?;
        let ids = self.encode_rest(&text)?;
        Ok((text, ids))
    }
}

/// Rows of the model's vocabulary.
fn vocabulary(model: &Model) -> Option<usize> {
    model.config.get("vocab_size").and_then(serde_json::Value::as_u64).map(|n| n as usize)
}

fn messages(prompt: &Value, chat: &Chat) -> Outcome<Vec<serde_json::Value>> {
    let mut list = match prompt {
        Value::Text(text) => vec![message("user", text)],
        Value::List(items) => items.iter().map(Value::to_json).collect(),
        v => {
            return Err(RunError::new(
                "bad-prompt",
                format!("the prompt is a {}, not text or messages", v.kind()),
            ));
        }
    };
    if let Some(system) = &chat.system
        && list.first().is_none_or(|m| m["role"] != "system")
    {
        list.insert(0, message("system", system));
    }
    Ok(list)
}

#[cfg(test)]
pub(crate) mod tests {
    use nrl_ir::dim::Dims;
    use nrl_ir::program::Weights;

    use super::*;

    /// Digits, `>`, the end token `$` and the padding token `_`, for a model of `rows` rows.
    pub(crate) fn characters(rows: usize) -> Outcome<Text> {
        Text::of(&Model {
            name: "m".into(),
            family: "llama".into(),
            weights: Weights::Fresh { std: 0.02 },
            tokens: Tokens::Characters { alphabet: "0123456789>$_".into(), eos: '$', pad: '_' },
            config: serde_json::json!({"vocab_size": rows}),
            context: 8,
            dims: Dims::default(),
            params: vec![],
            mesh: 0,
            layouts: vec![],
        })
    }

    #[test]
    fn a_model_with_fewer_rows_than_tokens_is_refused() {
        assert_eq!(characters(16).unwrap().len(), 13);
        let e = characters(12).unwrap_err();
        assert_eq!(e.code, "vocabulary-mismatch");
        assert_eq!(e.message, "the tokenizer of `m` has 13 tokens, the model only 12 rows");
    }

    #[test]
    fn a_prompt_is_text_and_messages_need_a_template() {
        let text = characters(13).unwrap();
        let (shown, ids) = text.prompt(&Value::text("12>"), None).unwrap();
        assert_eq!((shown.as_str(), ids), ("12>", vec![1, 2, 10]));
        assert_eq!(text.prompt(&Value::text("x"), None).unwrap_err().code, "not-in-alphabet");
        assert_eq!(text.prompt(&Value::list(vec![]), None).unwrap_err().code, "bad-prompt");
        let chat = Chat { system: None };
        assert_eq!(
            text.prompt(&Value::text("1"), Some(&chat)).unwrap_err().code,
            "no-chat-template"
        );
    }

    #[test]
    fn the_recipe_s_system_message_comes_first_once() {
        let chat = Chat { system: Some("be brief".into()) };
        let list = messages(&Value::text("hi"), &chat).unwrap();
        assert_eq!(list, [message("system", "be brief"), message("user", "hi")]);
        let own = Value::from_json(&serde_json::json!([{"role": "system", "content": "own"}]));
        assert_eq!(messages(&own, &chat).unwrap(), [message("system", "own")]);
    }
}
