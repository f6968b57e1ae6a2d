//! A recipe as rules see it, whatever language it was written in.
//!
//! Every field is optional: what is not known is not checked. Shared notions are typed; options
//! that only NeMo RL has are read by path from `settings`.

mod access;
mod fact;
mod history;
mod time;
mod worker;

use std::fmt;

pub use access::shown;
pub use fact::{Cause, Fact, Shown, Whence};
pub use history::History;
pub use time::{Reached, Seconds};
pub use worker::{Backend, Mesh, Role, Worker};

use crate::settings::Settings;

/// The version of NeMo RL that a recipe is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Version {
    /// 0.3: with both backends on, Megatron wins.
    V0_3,
    /// The newest that is known.
    #[default]
    Newest,
}

/// What a recipe trains with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    Grpo,
    Ppo,
    Dpo,
    Sft,
    Reward,
    Distillation,
    /// Distillation between models of different vocabularies, without sampling.
    CrossTokenizer,
    Eval,
}

/// What generates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    Vllm,
    Sglang,
    Trtllm,
    Megatron,
    Dynamo,
}

/// The machines.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cluster {
    pub nodes: Option<Fact<i64>>,
    pub gpus_per_node: Option<Fact<i64>>,
    /// GPUs of the nodes that train or generate: all but those of reward models and teachers.
    pub policy_nodes: Option<Fact<i64>>,
    /// Nodes for reward models.
    pub reward_nodes: Option<Fact<i64>>,
    /// GPUs for reward models, if all live on one node.
    pub reward_gpus: Option<Fact<i64>>,
    /// Nodes for teachers that score what the policy generates.
    pub teacher_nodes: Option<Fact<i64>>,
}

/// How samples are made.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Generation {
    /// Path of the section, such as `policy.generation`.
    pub path: String,
    pub engine: Option<Fact<Engine>>,
    /// Whether it shares the GPUs of training.
    pub colocated: Option<Fact<bool>>,
    pub gpus: Option<Fact<i64>>,
    pub tp: Option<Fact<i64>>,
    pub pp: Option<Fact<i64>>,
    pub ep: Option<Fact<i64>>,
    pub asynchronous: Option<Fact<bool>>,
    pub max_length: Option<Fact<i64>>,
    pub max_new: Option<Fact<i64>>,
    pub temperature: Option<Fact<f64>>,
    pub top_p: Option<Fact<f64>>,
    pub top_k: Option<Fact<i64>>,
    pub precision: Option<Fact<String>>,
}

/// Prompts and samples of a step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    pub prompts: Option<Fact<i64>>,
    pub group: Option<Fact<i64>>,
    /// Prompts are drawn so many times over, for dynamic sampling.
    pub multiplier: Option<Fact<f64>>,
    pub dynamic_sampling: Option<Fact<bool>>,
    /// Rows of the training data, if they are known.
    pub rows: Option<Fact<i64>>,
    /// Names in the first row of the training data, if they are known.
    pub fields: Option<Fact<Vec<String>>>,
    /// The names that rows of the training data have, each set with the first line that has it.
    pub shapes: Vec<(usize, Vec<String>)>,
    /// The first line of the training data that is no JSON object.
    pub broken_line: Option<usize>,
    /// The first line of preference data that does not say which answer is better, and why not.
    pub bad_pair: Option<(usize, String)>,
    /// Longest prompt.
    pub max_prompt: Option<Fact<i64>>,
}

/// From rewards to advantages.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Advantage {
    pub estimator: Option<Fact<String>>,
    pub normalize: Option<Fact<bool>>,
    pub leave_one_out: Option<Fact<bool>>,
    pub minus_baseline: Option<Fact<bool>>,
}

/// The loss of a policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Loss {
    /// Weight of the divergence from the reference.
    pub kl: Option<Fact<f64>>,
    pub kl_in_reward: Option<Fact<bool>>,
    /// Samples are weighted by trainer over generator probability.
    pub corrected: Option<Fact<bool>>,
    /// The ratio is one by definition.
    pub on_policy: Option<Fact<bool>>,
}

/// How training and generation overlap.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Overlap {
    pub on: Option<Fact<bool>>,
    /// How many steps old a trained sample may be.
    pub max_age: Option<Fact<i64>>,
}

/// Saving and validation.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Keeping {
    pub on: Option<Fact<bool>>,
    pub metric: Option<Fact<String>>,
    pub save_period: Option<Fact<i64>>,
    pub val_period: Option<Fact<i64>>,
    pub val_samples: Option<Fact<i64>>,
    pub val_batch: Option<Fact<i64>>,
    pub steps: Option<Fact<i64>>,
    /// When the run saves and stops by itself, counted from its start.
    pub stops: Option<Fact<Seconds>>,
    /// When the job that it runs in is ended from outside.
    pub job: Option<Fact<Seconds>>,
    /// When the first checkpoint of its own schedule is predicted.
    pub first: Option<Reached>,
}

/// A recipe.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recipe {
    pub version: Version,
    pub algorithm: Option<Fact<Algorithm>>,
    pub cluster: Cluster,
    /// The policy first, then critics, teachers and reward models.
    pub workers: Vec<Worker>,
    pub generation: Option<Generation>,
    pub batch: Batch,
    pub advantage: Advantage,
    pub loss: Loss,
    pub overlap: Overlap,
    pub keeping: Keeping,
    /// What becomes of the earlier turns of a conversation.
    pub history: Option<History>,
    /// The settings that it was read from.
    pub settings: Option<Settings>,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::Grpo => "GRPO",
            Algorithm::Ppo => "PPO",
            Algorithm::Dpo => "DPO",
            Algorithm::Sft => "SFT",
            Algorithm::Reward => "reward model training",
            Algorithm::Distillation => "distillation",
            Algorithm::CrossTokenizer => "cross-tokenizer distillation",
            Algorithm::Eval => "evaluation",
        })
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
            Engine::Trtllm => "trtllm",
            Engine::Megatron => "megatron",
            Engine::Dynamo => "dynamo",
        })
    }
}

impl Algorithm {
    /// Whether it learns from its own samples by rewards.
    pub fn is_rl(self) -> bool {
        matches!(self, Algorithm::Grpo | Algorithm::Ppo)
    }

    /// Whether it generates.
    pub fn samples(self) -> bool {
        self.is_rl() || matches!(self, Algorithm::Distillation | Algorithm::Eval)
    }
}

impl Generation {
    /// The full path of one of its settings.
    pub fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// Whether this engine generates.
    pub fn is(&self, engine: Engine) -> bool {
        self.engine.as_ref().is_some_and(|e| e.value == engine)
    }

    /// Whether it has GPUs of its own.
    pub fn apart(&self) -> bool {
        self.colocated.as_ref().is_some_and(|c| !c.value)
    }

    /// Whether samples are drawn from a part of the vocabulary only.
    pub fn filters(&self) -> bool {
        self.top_p.as_ref().is_some_and(|p| p.value < 1.0)
            || self.top_k.as_ref().is_some_and(|k| k.value > 0)
    }
}

impl Recipe {
    /// The trained policy.
    pub fn policy(&self) -> Option<&Worker> {
        self.workers.iter().find(|w| w.role == Role::Policy)
    }

    /// The critic.
    pub fn critic(&self) -> Option<&Worker> {
        self.workers.iter().find(|w| w.role == Role::Critic)
    }

    /// Whether this is its algorithm.
    pub fn is(&self, algorithm: Algorithm) -> bool {
        self.algorithm.as_ref().is_some_and(|a| a.value == algorithm)
    }

    /// Whether it learns from its own samples by rewards.
    pub fn is_rl(&self) -> bool {
        self.algorithm.as_ref().is_some_and(|a| a.value.is_rl())
    }

    /// Whether training and generation overlap.
    pub fn overlaps(&self) -> bool {
        self.overlap.on.as_ref().is_some_and(|on| on.value)
    }

    /// The name of the section of its algorithm.
    pub fn section(&self) -> Option<&'static str> {
        Some(match self.algorithm.as_ref()?.value {
            Algorithm::Grpo => "grpo",
            Algorithm::Ppo => "ppo",
            Algorithm::Dpo => "dpo",
            Algorithm::Sft => "sft",
            Algorithm::Reward => "rm",
            Algorithm::Distillation | Algorithm::CrossTokenizer => "distillation",
            Algorithm::Eval => "eval",
        })
    }

    /// Samples of a step.
    pub fn samples(&self) -> Option<Fact<i64>> {
        let (prompts, group) = (self.batch.prompts.as_ref()?, self.batch.group.as_ref()?);
        let how = format!("{} prompts * {} samples", prompts.value, group.value);
        let value = prompts.value.checked_mul(group.value)?;
        Some(Fact::derived("samples of a step", value, how, &[prompts, group]))
    }
}
