//! What a recipe of the language and one of NeMo RL both say, as facts by name.
//!
//! `take` finds the facts in settings; `edits` says which settings given facts mean. Import writes
//! facts as lines, export reads them from lines (`import`, `export`), and all that is not a fact
//! stays in the `settings` block. A fact is only used where its edits give exactly what the settings
//! said, so nothing is approximated. The table of `docs/nemo.md` lists them.

mod adapter;
mod beside;
mod edits;
mod hosts;
mod judges;
mod schedule;
mod table;
mod take;

pub(crate) use adapter::lost as lost_lists;
pub(crate) use beside::Beside;
pub(crate) use edits::{Edit, edits, judge, megatron as trains_with_megatron, own_bound};
pub(crate) use judges::teachers;
pub(crate) use table::{BETA1, BETA2, EPS};
pub(crate) use take::{dtype_word, percent, take};

use indexmap::IndexMap;
use nrl_rules::settings::{Node, Value};

/// Facts by name.
pub(crate) type Facts = IndexMap<&'static str, Value>;

/// What a run does, by the section of its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    Grpo,
    Ppo,
    Dpo,
    Sft,
    Rm,
    Distillation,
}

impl Algorithm {
    pub const ALL: &[Algorithm] = &[
        Algorithm::Grpo,
        Algorithm::Ppo,
        Algorithm::Dpo,
        Algorithm::Sft,
        Algorithm::Rm,
        Algorithm::Distillation,
    ];

    /// The name of its section.
    pub fn section(self) -> &'static str {
        match self {
            Algorithm::Grpo => "grpo",
            Algorithm::Ppo => "ppo",
            Algorithm::Dpo => "dpo",
            Algorithm::Sft => "sft",
            Algorithm::Rm => "rm",
            Algorithm::Distillation => "distillation",
        }
    }

    /// What a whole recipe does.
    pub fn of(root: &Node) -> Option<Algorithm> {
        let is = |a: &&Algorithm| matches!(root.child(a.section()), Some(node) if is_map(node));
        Algorithm::ALL.iter().find(is).copied()
    }

    /// Whether it samples from the policy.
    pub fn generates(self) -> bool {
        matches!(self, Algorithm::Grpo | Algorithm::Ppo | Algorithm::Distillation)
    }
}

fn is_map(node: &Node) -> bool {
    matches!(node.value, Value::Map(_))
}

/// Text facts.
pub(crate) fn text<'f>(facts: &'f Facts, name: &str) -> Option<&'f str> {
    match facts.get(name) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    }
}

/// Whole-number facts.
pub(crate) fn int(facts: &Facts, name: &str) -> Option<i64> {
    match facts.get(name) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    }
}

/// Whether a flag is among the facts and true.
pub(crate) fn on(facts: &Facts, name: &str) -> bool {
    facts.get(name) == Some(&Value::Bool(true))
}

/// Equality that keeps whole numbers and floats apart and ignores places.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.value, &b.value))
        }
        (Value::Map(a), Value::Map(b)) => {
            let has =
                |(name, x): (&String, &Node)| b.get(name).is_some_and(|y| same(&x.value, &y.value));
            a.len() == b.len() && a.iter().all(has)
        }
        (Value::Float(a), Value::Float(b)) => a == b || a.is_nan() && b.is_nan(),
        (a, b) => a == b,
    }
}
