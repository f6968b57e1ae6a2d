//! Settings of a loss that another algorithm has.
//!
//! `loss_fn` of GRPO and PPO holds the clipped policy gradient, of distillation the divergence; SFT, DPO and reward
//! models have none. The trainer keeps what it does not know, so such a setting changes nothing.

use nrl_base::{Diagnostic, Severity};
use nrl_rules::recipe::{Algorithm, Recipe};
use nrl_rules::settings::SetBy;

use super::types::place;

/// What only the clipped policy gradient reads.
const POLICY: &[&str] = &[
    "disable_ppo_ratio",
    "force_on_policy_ratio",
    "kl_input_clamp_value",
    "kl_output_clamp_value",
    "positive_example_nll_weight",
    "ratio_clip_c",
    "ratio_clip_max",
    "ratio_clip_min",
    "reference_policy_kl_penalty",
    "reference_policy_kl_type",
    "sequence_level_importance_ratios",
    "token_level_loss",
    "truncated_importance_sampling_ratio",
    "truncated_importance_sampling_ratio_min",
    "truncated_importance_sampling_type",
    "use_cispo",
    "use_importance_sampling_correction",
    "use_kl_in_reward",
    "use_on_policy_kl_approximation",
];

/// What only distillation reads.
const DISTILLATION: &[&str] = &["kl_type", "mixed_kl_weight", "zero_outside_topk"];

/// Settings of `loss_fn` that this algorithm does not read.
pub fn foreign(r: &Recipe) -> Vec<Diagnostic> {
    let Some(algorithm) = r.algorithm.as_ref().map(|a| a.value) else { return vec![] };
    let (others, reader): (&[&str], &str) = match algorithm {
        Algorithm::Grpo | Algorithm::Ppo => (DISTILLATION, "distillation"),
        Algorithm::Distillation | Algorithm::CrossTokenizer => (POLICY, "GRPO and PPO"),
        Algorithm::Sft | Algorithm::Dpo | Algorithm::Reward => {
            let clipped = foreign_of(r, POLICY, &algorithm.to_string(), "GRPO and PPO");
            let more = foreign_of(r, DISTILLATION, &algorithm.to_string(), "distillation");
            return clipped.into_iter().chain(more).collect();
        }
        Algorithm::Eval => return vec![],
    };
    foreign_of(r, others, &algorithm.to_string(), reader)
}

fn foreign_of(r: &Recipe, names: &[&str], algorithm: &str, reader: &str) -> Vec<Diagnostic> {
    let mut found = vec![];
    for name in names {
        let path = format!("loss_fn.{name}");
        let Some(node) = r.node(&path) else { continue };
        let severity = match node.origin.by {
            SetBy::Parent => Severity::Note,
            SetBy::File | SetBy::CommandLine => Severity::Warning,
        };
        let text = format!("there is no `{path}` in {algorithm}: {reader} reads it");
        let found_one = place(Diagnostic::new("unknown-name", severity, text), &path, node);
        found.push(found_one.help("remove it"));
    }
    found
}
