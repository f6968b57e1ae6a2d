//! Conversations of several turns.

use nrl_base::Severity;

use crate::rule::{Rule, error};

/// Rules of conversations.
pub const RULES: &[Rule] = &[
    // Beyond the catalogue: what a template does is known from the template, or of its family.
    error(
        "DATA-40",
        "template-rewrites-history",
        "a template that changes earlier turns",
        |r, f| {
            let Some(history) = &r.history else { return };
            let Some(rewritten) = &history.rewritten else { return };
            let how = &rewritten.value;
            if history.kept {
                let text = format!(
                    "the chat template {how}; the tokens of a rollout stay as they were drawn"
                );
                f.found(text, &[&history.turns, rewritten])
                .severity(Severity::Note)
                .note("the policy learns with the whole history in view; served through the template it sees less")
                .help("nothing for training; serve it with a template that keeps earlier turns");
                return;
            }
            let text =
                format!("turn 2 rendered alone is not a prefix of turn 3: the template {how}");
            f.found(text, &[rewritten, &history.turns])
            .note("training would see tokens that were never there: what a turn adds is taken as the difference of two renderings")
            .help("a template that keeps earlier turns (`policy.tokenizer.chat_template`), or rows of one turn each");
        },
    ),
];
