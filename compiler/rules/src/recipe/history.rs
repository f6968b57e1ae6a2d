//! Conversations of several turns, and the chat template that renders them.

use super::Fact;

/// What becomes of the earlier turns of a conversation.
#[derive(Clone, PartialEq, Debug)]
pub struct History {
    /// Where several turns come from: a rollout, an environment, a data file.
    pub turns: Fact<String>,
    /// Where it is known that the template changes earlier turns: how, and of which template.
    pub rewritten: Option<Fact<String>>,
    /// Whether tokens stay as they were drawn; otherwise each turn is rendered from the beginning.
    pub kept: bool,
}
