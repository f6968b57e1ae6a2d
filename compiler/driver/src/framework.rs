//! What the software that runs a recipe does with memory and time, where the language has no word for it.
//!
//! In: settings of a framework, as its own files have them. Out: plain data that forecasts read. The default is what the
//! runtime of this project does.

use nrl_sim::{Habits, Stack};

/// Habits of a framework.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Framework {
    /// What stays where.
    pub memory: Habits,
    /// How updates store and buffer; by the layout if none.
    pub stack: Option<Stack>,
    /// Samples of a micro-batch of updates, and of passes that score, each padded to the longest of the step;
    /// none where samples are packed.
    pub padded: Option<(usize, usize)>,
    /// A model is not kept for reference, since nothing weighs it.
    pub unused_reference: bool,
    /// The ratio is held at 1: with one update per batch, scores before it are those of the update itself.
    pub on_policy: bool,
    /// The optimizer's state leaves devices while samples are scored.
    pub scores_without_state: bool,
    /// Rows that a validation by the loss takes; those of its data set if none.
    pub validated: Option<usize>,
    /// Samplers guess tokens with a head of the model.
    pub guesses: bool,
    /// Settings and what they do here, or that they do nothing.
    pub notes: Vec<String>,
}

impl Framework {
    /// Tokens of a micro-batch of a pass that scores, where the recipe says `tokens`.
    pub(crate) fn scored(&self, tokens: usize) -> usize {
        self.memory.score_tokens.unwrap_or(tokens)
    }
}
