//! A model on its GPUs: the policy, a critic, a teacher, a reward model.

use std::fmt;

use nrl_facts::ModelFacts;

use super::Fact;

/// What a model is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Policy,
    Critic,
    /// A teacher on the GPUs of training.
    Teacher,
    /// A teacher with nodes of its own, that scores what the policy generates.
    Scorer,
    Reward,
}

/// What trains or scores a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    Megatron,
    /// The first DTensor worker.
    Dtensor,
    Automodel,
}

/// How a model is cut. What is not given is one.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Mesh {
    pub tp: Option<Fact<i64>>,
    pub cp: Option<Fact<i64>>,
    pub pp: Option<Fact<i64>>,
    pub ep: Option<Fact<i64>>,
    pub etp: Option<Fact<i64>>,
    /// Pieces of a pipeline stage.
    pub vpp: Option<Fact<i64>>,
    pub dp_replicate: Option<Fact<i64>>,
    /// Whether activations are cut by sequence over tp.
    pub sp: Option<Fact<bool>>,
}

/// A model on its GPUs.
#[derive(Clone, PartialEq, Debug)]
pub struct Worker {
    pub role: Role,
    /// Path of its section, such as `policy`.
    pub path: String,
    pub backend: Option<Fact<Backend>>,
    /// Path of the section of its backend, such as `policy.megatron_cfg`.
    pub section: String,
    pub gpus: Option<Fact<i64>>,
    pub mesh: Mesh,
    pub model: Option<ModelFacts>,
    pub global_batch: Option<Fact<i64>>,
    pub micro_batch: Option<Fact<i64>>,
    pub logprob_batch: Option<Fact<i64>>,
    pub max_length: Option<Fact<i64>>,
    /// Each sequence is padded to a multiple of this.
    pub multiple: Option<Fact<i64>>,
    pub packing: Option<Fact<bool>>,
    pub dynamic: Option<Fact<bool>>,
    /// Tokens of a micro-batch of training, if packed or dynamic.
    pub train_tokens: Option<Fact<i64>>,
    pub logprob_tokens: Option<Fact<i64>>,
    pub precision: Option<Fact<String>>,
    /// The format of the weights that updates are added to, where it is the one of the model.
    pub master: Option<Fact<String>>,
    /// The largest learning rate of an optimizer that scales gradients away: the size of an update.
    pub rate: Option<Fact<f64>>,
    pub lora: Option<Fact<bool>>,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Megatron => "Megatron",
            Backend::Dtensor => "DTensor v1",
            Backend::Automodel => "Automodel",
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Policy => "policy",
            Role::Critic => "critic",
            Role::Teacher | Role::Scorer => "teacher",
            Role::Reward => "reward model",
        })
    }
}

fn or_one(size: &Option<Fact<i64>>) -> i64 {
    size.as_ref().map_or(1, |s| s.value)
}

impl Mesh {
    /// Tensor parallel size.
    pub fn tp(&self) -> i64 {
        or_one(&self.tp)
    }

    /// Context parallel size.
    pub fn cp(&self) -> i64 {
        or_one(&self.cp)
    }

    /// Pipeline stages.
    pub fn pp(&self) -> i64 {
        or_one(&self.pp)
    }

    /// Expert parallel size.
    pub fn ep(&self) -> i64 {
        or_one(&self.ep)
    }

    /// Tensor parallel size inside experts.
    pub fn etp(&self) -> i64 {
        or_one(&self.etp)
    }

    /// Whether activations are cut by sequence over tp.
    pub fn sp(&self) -> bool {
        self.sp.as_ref().is_some_and(|sp| sp.value)
    }

    /// Ranks that hold one copy of the model.
    pub fn copy(&self) -> i64 {
        self.tp().saturating_mul(self.cp()).saturating_mul(self.pp())
    }

    /// `tp 2 * cp 1 * pp 4` without the sizes that are one.
    pub fn product(&self) -> String {
        product(&[("tp", self.tp()), ("cp", self.cp()), ("pp", self.pp())])
    }
}

/// `tp 2 * pp 4`: the sizes that are not one.
pub fn product(sizes: &[(&str, i64)]) -> String {
    let parts: Vec<String> = sizes
        .iter()
        .filter(|(_, size)| *size != 1)
        .map(|(name, size)| format!("{name} {size}"))
        .collect();
    if parts.is_empty() { "1".to_string() } else { parts.join(" * ") }
}

impl Worker {
    /// A worker of which nothing is known yet.
    pub fn new(role: Role, path: impl Into<String>) -> Self {
        Worker {
            role,
            path: path.into(),
            backend: None,
            section: String::new(),
            gpus: None,
            mesh: Mesh::default(),
            model: None,
            global_batch: None,
            micro_batch: None,
            logprob_batch: None,
            max_length: None,
            multiple: None,
            packing: None,
            dynamic: None,
            train_tokens: None,
            logprob_tokens: None,
            precision: None,
            master: None,
            rate: None,
            lora: None,
        }
    }

    /// The full path of one of its settings.
    pub fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// The full path of a setting of its backend.
    pub fn cfg(&self, name: &str) -> String {
        format!("{}.{name}", self.section)
    }

    /// Whether this backend runs it.
    pub fn is(&self, backend: Backend) -> bool {
        self.backend.as_ref().is_some_and(|b| b.value == backend)
    }

    /// Whether one of the two DTensor workers runs it.
    pub fn is_torch(&self) -> bool {
        self.is(Backend::Dtensor) || self.is(Backend::Automodel)
    }

    /// Whether sequences are packed.
    pub fn packs(&self) -> bool {
        self.packing.as_ref().is_some_and(|p| p.value)
    }

    /// Whether micro-batches are filled by tokens, without packing.
    pub fn is_dynamic(&self) -> bool {
        self.dynamic.as_ref().is_some_and(|d| d.value)
    }

    /// Whether adapters are trained instead of the weights.
    pub fn adapts(&self) -> bool {
        self.lora.as_ref().is_some_and(|l| l.value)
    }

    /// Data parallel size, if the GPUs are a multiple of one copy of the model.
    pub fn dp(&self) -> Option<Fact<i64>> {
        let gpus = self.gpus.as_ref()?;
        let copy = self.mesh.copy();
        if copy < 1 || gpus.value < copy || gpus.value % copy != 0 {
            return None;
        }
        let m = &self.mesh;
        let how = match copy {
            1 => format!("{} GPUs, each with a whole copy", gpus.value),
            _ => format!("{} GPUs / ({})", gpus.value, m.product()),
        };
        let name = format!("dp of the {}", self.role);
        let size = |s: &Option<Fact<i64>>| s.clone().filter(|s| s.value != 1);
        let parts = (size(&m.tp), size(&m.cp), size(&m.pp));
        let value = gpus.value / copy;
        Some(Fact::derived(name, value, how, &[gpus, &parts.0, &parts.1, &parts.2]))
    }
}
