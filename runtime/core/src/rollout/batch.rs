//! Prompts, and the samples drawn for them.
//!
//! A batch holds the samples of one stage in a fixed order: prompt by prompt, copy by copy, whatever ranks or slots
//! they came from. `act`, `seq` and `group` of the tensor graphs are its trained tokens, samples and prompts.

use std::sync::Arc;

use nrl_ir::host::Value;

/// A row of data, rendered and tokenized.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Row of the data set, counted from 0.
    pub number: usize,
    pub ids: Vec<u32>,
    pub text: String,
    /// The reference answer, or none.
    pub answer: Value,
    /// The whole record.
    pub row: Value,
}

/// A prompt and one completion of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Index into [`Batch::prompts`].
    pub prompt: usize,
    pub copy: usize,
    /// Trained tokens, with the stop token if one was drawn.
    pub ids: Vec<u32>,
    /// Log-probability of each token under the sampling distribution; empty if the tokens were not sampled.
    pub logprobs: Vec<f32>,
    /// Entropy of that distribution at each token; empty likewise.
    pub entropies: Vec<f32>,
    /// A stop token was drawn or a stop text written.
    pub finished: bool,
    /// The completion without its stop token or stop text.
    pub text: String,
}

/// The samples of one stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub prompts: Vec<Arc<Prompt>>,
    /// Sorted by prompt, then copy.
    pub samples: Vec<Sample>,
    /// First trained token of each sample, and their number.
    pub offsets: Vec<usize>,
    /// Temperature they were sampled at; 1 if they were not.
    pub temperature: f64,
}

impl Batch {
    pub fn new(prompts: Vec<Arc<Prompt>>, samples: Vec<Sample>, temperature: f64) -> Batch {
        let mut offsets = vec![0];
        for s in &samples {
            offsets.push(offsets[offsets.len() - 1] + s.ids.len());
        }
        Batch { prompts, samples, offsets, temperature }
    }

    /// Number of trained tokens.
    pub fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Tokens of the prompt and completion of sample `i`.
    pub fn length(&self, i: usize) -> usize {
        self.prompts[self.samples[i].prompt].ids.len() + self.samples[i].ids.len()
    }

    /// Samples of each prompt, as ranges.
    pub fn groups(&self) -> Vec<std::ops::Range<usize>> {
        let mut groups: Vec<std::ops::Range<usize>> = vec![];
        for (i, s) in self.samples.iter().enumerate() {
            match groups.last_mut() {
                Some(g) if self.samples[g.start].prompt == s.prompt => g.end = i + 1,
                _ => groups.push(i..i + 1),
            }
        }
        groups
    }

    /// Were the tokens drawn by a generator?
    pub fn is_sampled(&self) -> bool {
        self.samples.iter().any(|s| !s.logprobs.is_empty())
    }
}
