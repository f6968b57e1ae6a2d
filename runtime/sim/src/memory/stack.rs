//! How training frameworks store numbers and what they hold beside them, as data.
//!
//! A plan says what is cut and what a backward pass reads. A framework decides the rest: how many
//! bytes a weight, its gradient and its optimizer state take, what is gathered at once, what the loss
//! copies, what the allocator keeps back. Each number has a meaning of its own and a source: the code of
//! the framework, or the published rows that it was fitted on (SimuMax B200 rows for Megatron-Core,
//! torchtitan and prime-rl benchmark tables for FSDP2, ml-engineering for ZeRO-3 with Liger).

use serde::{Deserialize, Serialize};

/// A way of storing and buffering.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    pub name: String,
    /// Bytes of a trained weight as it is stored when a model computes in 16 bits.
    pub weights: f64,
    /// Bytes of a frozen weight.
    pub frozen: f64,
    pub gradients: f64,
    /// Bytes of a copy of the weight in f32 beside the moments.
    pub master: f64,
    /// Bytes kept per score of attention; none where a fused kernel makes them again.
    pub scores: f64,
    /// Bytes of dropout masks per number of the residual stream.
    pub masks: f64,
    /// The result of attention is kept before and after it changes ranks (context parallel by all-to-all).
    pub twice: bool,
    /// What "selective" recomputation keeps.
    pub selective: Selective,
    /// Gradients and scratch in the backward pass of a layer, as multiples of what the layer keeps.
    pub backward: Scratch,
    /// One weight gradient per shape of weight is kept, in the compute type.
    pub dummies: bool,
    /// Layers whose weights are gathered at once, by the name of `zero3`.
    pub gathered: f64,
    /// Bytes per weight of the embedding or the head that stay beside the gathered layers.
    pub head_held: f64,
    /// Bytes per weight of a layer whose gradient is on its way: computed, and summed in f32.
    pub layer_gradient: f64,
    /// Bytes per weight of an embedding that is also the head, from the head's gradient to its own.
    pub tied_gradient: f64,
    /// Under a pipeline the weights of a stage stay gathered and its gradients whole, in f32.
    pub whole_stage: bool,
    /// Copies of the hidden states of all tokens in the backward pass of a layer, where ranks share tokens.
    pub shared_hidden: f64,
    pub loss: Loss,
    /// Held at all times: windows and buckets, in bytes.
    pub held: f64,
    /// Bytes per parameter of the whole model while it is made, if it is made on the device.
    pub made: f64,
    /// What the allocator keeps back, as a share.
    pub reserve: f64,
    /// The share is of states too, not of what comes and goes alone.
    pub reserve_of_states: bool,
    /// Adapters held per weight matrix, and bytes per parameter of each.
    pub adapters: (f64, f64),
}

/// What a loss holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Bytes per logit.
    pub each: f64,
    /// More bytes per logit where ranks share the vocabulary.
    pub cut: f64,
    /// Columns of the vocabulary at once; all if none.
    pub columns: Option<f64>,
    /// Bytes per weight of the head while its gradient is made.
    pub head: f64,
    /// Copies of the hidden states of all tokens.
    pub hidden: f64,
}

/// Gradients and scratch of a layer's backward pass, as multiples of the bytes it keeps of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scratch {
    /// Values as wide as the model.
    pub stream: f64,
    /// Values inside feed-forward blocks.
    pub inner: f64,
    /// Tokens on their way to experts.
    pub rows: f64,
}

/// What "selective" recomputation keeps of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selective {
    /// All but the scores of attention (Korthikanti et al. 2022).
    NoScores,
    /// The results of every second product and of attention (torchtitan).
    EverySecond,
}

/// Contexts of the driver on a device, in bytes: 0.8 GiB remain after everything is freed
/// (reported for trainers beside an engine, ovg-project/kvcached issue 29).
pub const CONTEXT: f64 = 0.8 * super::GIB;

/// Buffers of communicators, in bytes, assumed from runs on H100.
pub const COMMUNICATORS: f64 = 1.2 * super::GIB;

impl Stack {
    /// Megatron-Core with Transformer Engine and a fused loss; the distributed optimizer is the
    /// plan's `zero1`.
    pub fn megatron() -> Stack {
        Stack {
            name: "Megatron-Core".into(),
            weights: 2.0,
            frozen: 2.0,
            gradients: 4.0,
            master: 4.0,
            scores: 0.0,
            masks: 0.0,
            twice: true,
            selective: Selective::NoScores,
            backward: Scratch { stream: 0.5, inner: 1.0, rows: 2.0 },
            dummies: true,
            gathered: 0.0,
            head_held: 0.0,
            layer_gradient: 0.0,
            tied_gradient: 0.0,
            whole_stage: false,
            shared_hidden: 0.0,
            loss: Loss { each: 2.0, cut: 0.0, columns: None, head: 2.0, hidden: 2.0 },
            held: 0.0,
            made: 0.0,
            reserve: 0.055,
            reserve_of_states: true,
            adapters: (1.0, 16.0),
        }
    }

    /// Megatron-Core whose loss is not fused: logits in f32 beside those in 16 bits.
    pub fn megatron_plain_loss() -> Stack {
        Stack {
            name: "Megatron-Core, plain loss".into(),
            dummies: false,
            loss: Loss { each: 6.0, head: 0.0, hidden: 0.0, ..Stack::megatron().loss },
            ..Stack::megatron()
        }
    }

    /// Megatron-LM of 2022: scores of attention and dropout masks are kept.
    pub fn megatron_2022() -> Stack {
        Stack {
            name: "Megatron-LM 2022".into(),
            scores: 5.0,
            masks: 2.0,
            twice: false,
            ..Stack::megatron_plain_loss()
        }
    }

    /// FSDP2 as in torchtitan: shards in f32, compute in 16 bits, log-softmax and its gradient in f32.
    pub fn fsdp() -> Stack {
        Stack {
            name: "FSDP2".into(),
            weights: 4.0,
            frozen: 4.0,
            master: 0.0,
            twice: false,
            selective: Selective::EverySecond,
            backward: Scratch { stream: 0.5, inner: 11.0 / 6.0, rows: 8.5 },
            dummies: false,
            gathered: 2.0,
            head_held: 2.0,
            layer_gradient: 6.0,
            tied_gradient: 4.0,
            whole_stage: true,
            shared_hidden: 4.0,
            loss: Loss { each: 12.0, cut: 8.0, columns: None, head: 6.0, hidden: 2.0 },
            reserve_of_states: false,
            adapters: (1.0, 16.0),
            ..Stack::megatron()
        }
    }

    /// FSDP2 with a compiled loss: logits in 16 bits and their gradient.
    pub fn fsdp_compiled_loss() -> Stack {
        Stack {
            name: "FSDP2, compiled loss".into(),
            loss: Loss { each: 4.0, cut: 0.0, ..Stack::fsdp().loss },
            ..Stack::fsdp()
        }
    }

    /// FSDP2 whose products overlap the exchange of their operands (async tensor parallel).
    pub fn fsdp_async() -> Stack {
        let loss = Loss { hidden: 0.0, ..Stack::fsdp().loss };
        Stack {
            name: "FSDP2, async tensor parallel".into(),
            shared_hidden: 2.0,
            loss,
            ..Stack::fsdp()
        }
    }

    /// prime-rl training by rewards: the head works on 2,048 columns at a time, and four adapters are held.
    pub fn prime() -> Stack {
        let loss = Loss { each: 12.0, cut: 0.0, columns: Some(2048.0), ..Stack::fsdp().loss };
        Stack { name: "prime-rl".into(), loss, adapters: (4.0, 8.0), ..Stack::fsdp() }
    }

    /// prime-rl training on examples: the loss of Hugging Face, with a shifted copy of the logits.
    pub fn prime_examples() -> Stack {
        let loss = Loss { each: 17.0, cut: 0.0, ..Stack::fsdp().loss };
        Stack { name: "prime-rl, examples".into(), loss, ..Stack::prime() }
    }

    /// ZeRO-3 of DeepSpeed with the kernels of Liger and its defaults: a billion live parameters, two
    /// buckets of half a billion gradients; the model is made on the device.
    pub fn zero3() -> Stack {
        Stack {
            name: "DeepSpeed ZeRO-3".into(),
            weights: 2.0,
            gradients: 2.0,
            master: 4.0,
            backward: Scratch { stream: 0.5, inner: 0.5, rows: 8.5 },
            gathered: 0.0,
            head_held: 6.0,
            layer_gradient: 0.0,
            tied_gradient: 0.0,
            loss: Loss { each: 2.0, cut: 0.0, columns: Some(4096.0), head: 0.0, hidden: 6.0 },
            held: 2.0 * 1e9 + 2.0 * 2.0 * 5e8,
            made: 2.0,
            whole_stage: false,
            ..Stack::fsdp()
        }
    }

    /// The one that a plan's layout suggests: weights gathered layer by layer, or whole.
    pub fn of(plan: &nrl_ir::plan::Plan) -> Stack {
        let gathers = plan.params.iter().any(|l| !l.flat.is_empty());
        if gathers { Stack::fsdp() } else { Stack::megatron() }
    }

    /// All that ship.
    pub fn all() -> Vec<Stack> {
        vec![
            Stack::megatron(),
            Stack::megatron_plain_loss(),
            Stack::megatron_2022(),
            Stack::fsdp(),
            Stack::fsdp_compiled_loss(),
            Stack::fsdp_async(),
            Stack::prime(),
            Stack::prime_examples(),
            Stack::zero3(),
        ]
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Stack> {
        Stack::all().into_iter().find(|s| s.name == name)
    }
}
