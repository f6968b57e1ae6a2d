//! Bytes of a row: which stack its framework is, and which bytes its metric counts.
//!
//! `peak_mem` is what the allocator reserved in torchtitan, prime-rl and DeepSpeed rows, `peak_alloc_mem` what was
//! allocated; activation figures are those of the first stage of the pipeline without embedding and logits.

use nrl_driver::{Compiled, updates};
use nrl_ir::program::Stage;
use nrl_sim::work::Sizes;
use nrl_sim::{Load, Offload, Peak, Precision, Stack};

use super::recipe::Asked;
use super::{Case, Row};

/// Bytes of an update, counted in the ways that sources do.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    pub peak: Peak,
    /// Kept by layers on the first stage.
    pub kept: f64,
    /// The same without sequence parallelism and without recomputation: what percentages refer to.
    pub baseline: f64,
    /// States of a stage with neither embedding nor head.
    pub inner: f64,
}

/// The stack that a row's framework is.
pub fn stack(row: &Row) -> Stack {
    let f = &row.framework;
    let examples = row.task.starts_with("sft");
    match () {
        () if f.contains("torchtitan 2024") && row.note.contains("AsyncTP") => Stack::fsdp_async(),
        () if f.contains("torchtitan 2024") => Stack::fsdp(),
        () if f.contains("torchtitan") => Stack::fsdp_compiled_loss(),
        () if f.contains("prime-rl") && examples => Stack::prime_examples(),
        () if f.contains("prime-rl") => Stack::prime(),
        () if f.contains("DeepSpeed ZeRO") => Stack::zero3(),
        () if f.contains("202") => Stack::megatron_2022(),
        () if f == "Megatron-Core" => Stack::megatron_plain_loss(),
        () if f.contains("FSDP") => Stack::fsdp(),
        () => Stack::megatron(),
    }
}

/// What rows of one recipe may differ in: the stack, what it offloads and what is computed again.
pub fn key(row: &Row) -> String {
    format!("{} {} {}", stack(row).name, row.offload, row.recompute)
}

/// Bytes of the first update of `c`, for `row`.
pub fn bytes(c: &Compiled, row: &Row, asked: &Asked) -> Option<Bytes> {
    let update = updates(c).into_iter().next()?;
    let (model, graph) =
        c.program.phases.iter().flat_map(|p| &p.step).find_map(|b| match &b.stage {
            Stage::Update { model, graph, .. } => Some((*model, *graph)),
            _ => None,
        })?;
    let plan = &c.plans[graph];
    let lora = row.task.contains("lora");
    let load = Load {
        plan,
        mesh: &c.program.meshes[c.program.models[model].mesh].1,
        precision: Precision::Bf16,
        sizes: Sizes::packed(update.tokens, asked.length),
        micro: update.job.micro,
        chunks: asked.layout.vpp,
        moments: 2.0,
        no_master: false,
        selective: row.recompute == "selective",
        offload: Offload {
            activations: row.offload == "act",
            optimizer: row.offload.starts_with("optimizer"),
            ..Offload::default()
        },
        adapters: lora.then_some(16.0),
    };
    let stack = stack(row);
    let memory = update.machine.memory;
    Some(Bytes {
        peak: load.peak(&stack, Some(memory)),
        kept: load.kept(&stack),
        baseline: 0.0,
        inner: load.inner_states(&stack),
    })
}

/// What the metric of `row` counts, in its unit.
pub fn says(row: &Row, case: &Case) -> Option<f64> {
    let b = case.bytes.get(&key(row))?;
    // One source counts all that is no state as activations.
    let table = row.source.starts_with("ISEEKYAN");
    let bytes = match row.metric.as_str() {
        "peak_alloc_mem" | "peak_mem" if table => b.peak.allocated(),
        "activation_mem" if table => b.peak.allocated() - b.peak.states(),
        "peak_mem" | "peak_reserved_mem" => b.peak.reserved(),
        "peak_alloc_mem" => b.peak.allocated(),
        "activation_mem" => b.kept,
        "activation_mem_pct_of_tp_baseline" => return Some(100.0 * b.kept / b.baseline),
        "param_opt_mem" if case.asked.layout.pp > 1 => b.inner,
        "param_opt_mem" | "model_state_mem" => b.peak.states(),
        "fits" => {
            let fits = b.peak.total() <= case.update.machine.memory;
            return Some(f64::from(u8::from(fits)));
        }
        _ => return None,
    };
    // The one source that writes GB means GiB.
    Some(bytes / 1_073_741_824.0)
}
