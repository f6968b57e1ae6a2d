//! What a metric says: which number of a prediction it is compared with.
//!
//! FLOP conventions differ by source and are made explicit here. Megatron-Bridge counts causal attention (half of the square)
//! and two thirds for LoRA, which has no gradient of frozen weights; MosaicML counts the full square; `hw_tflops` counts
//! what is computed again.

use super::{Case, Row, memory};
use nrl_sim::machine::group;
use nrl_sim::rates::{Rates, Speed};
use nrl_sim::train::Took;
use nrl_sim::work::{Collective, Item, Kind};

/// A prediction in the unit of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Says {
    pub value: f64,
    /// Seconds of a step that the measured value stands for; `None` for bytes.
    pub seconds: Option<f64>,
}

/// Is the metric one of bytes?
pub fn is_memory(metric: &str) -> bool {
    metric.contains("mem") || metric == "fits" || metric.contains("alloc")
}

/// Is the metric the seconds of a step?
pub fn is_step(metric: &str) -> bool {
    matches!(metric, "iter_time" | "step_time" | "iteration_time") || is_sum(metric)
}

/// Is it the seconds in which ranks sum their gradients, beside nothing?
fn is_sum(metric: &str) -> bool {
    let name = metric.replace(['_', '-', ' '], "");
    ["allreduce", "gradsync", "gradreduce"].iter().any(|n| name.contains(n))
}

/// Can the metric be predicted?
pub fn known(row: &Row) -> Result<(), String> {
    if row.value == 0.0 && row.metric != "fits" {
        return Err("a measured value of 0".into());
    }
    match row.metric.as_str() {
        m if is_step(m) || is_memory(m) => Ok(()),
        "tokens_per_s"
        | "tokens_per_s_per_gpu"
        | "samples_per_s"
        | "samples_per_s_per_gpu"
        | "steps_per_s"
        | "tflops_per_gpu"
        | "model_tflops_per_gpu"
        | "hw_tflops_per_gpu"
        | "mfu"
        | "hfu"
        | "layer_fwd_time"
        | "layer_bwd_time" => Ok(()),
        m => Err(format!("nothing predicts `{m}`")),
    }
}

/// Seconds of a step that the measured value of `row` means.
pub fn measured_seconds(row: &Row, case: &Case) -> Option<f64> {
    let asked = &case.asked;
    let gpus = asked.devices as f64;
    let tokens = asked.batch * asked.length;
    let flops = || model_flops(row, case) * asked.batch;
    let peak = case.update.machine.flops;
    // A share is written as such, or in percent.
    let share = if row.unit == "%" || row.value > 1.0 { row.value / 100.0 } else { row.value };
    Some(match row.metric.as_str() {
        "iter_time" | "step_time" | "iteration_time" => row.value,
        "tokens_per_s" => tokens / row.value,
        "tokens_per_s_per_gpu" => tokens / (row.value * gpus),
        "samples_per_s" => asked.batch / row.value,
        "samples_per_s_per_gpu" => asked.batch / (row.value * gpus),
        "steps_per_s" => 1.0 / row.value,
        "tflops_per_gpu" | "model_tflops_per_gpu" => flops() / (row.value * 1e12 * gpus),
        "hw_tflops_per_gpu" => (flops() + again(row, case)) / (row.value * 1e12 * gpus),
        "mfu" => flops() / (share * peak * gpus),
        "hfu" => (flops() + again(row, case)) / (share * peak * gpus),
        _ => return None,
    })
}

/// Seconds in which ranks sum the gradients of an update, beside nothing.
fn summing(case: &Case, rates: &Rates) -> Option<f64> {
    let (job, machine) = (&case.update.job, &case.update.machine);
    let speed = Speed { machine, rates, compute: case.asked.compute };
    let all = job.update.as_ref()?.sums.iter().map(|s| {
        let g = group(&job.mesh, &s.axes, machine.per_node);
        speed.collective(Collective::AllReduce, s.gradients, g)
    });
    Some(all.sum())
}

/// What the planner says of a row whose update takes `took`.
pub fn says(row: &Row, case: &Case, took: &Took, rates: &Rates) -> Option<Says> {
    if let "layer_fwd_time" | "layer_bwd_time" = row.metric.as_str() {
        let (forward, backward) = case.layer(rates)?;
        let seconds = if row.metric == "layer_fwd_time" { forward } else { backward };
        return Some(Says { value: 1e3 * seconds, seconds: Some(row.value / 1e3) });
    }
    if is_memory(&row.metric) {
        return memory::says(row, case).map(|value| Says { value, seconds: None });
    }
    if is_sum(&row.metric) {
        let value = summing(case, rates)?;
        return Some(Says { value, seconds: Some(row.value) });
    }
    let measured = measured_seconds(row, case)?;
    let seconds = took.seconds;
    // Rates grow as seconds fall.
    let value = match row.metric.as_str() {
        m if is_step(m) => seconds,
        _ => row.value * measured / seconds,
    };
    Some(Says { value, seconds: Some(measured) })
}

/// Model FLOPs of one sample, forward and backward, by the convention of the row's source.
fn model_flops(row: &Row, case: &Case) -> f64 {
    let a = &case.asked;
    let full = full_square(row);
    let lora = row.task.contains("lora");
    let n = row_products(case);
    let attention = row_attention(case) * if full { 2.0 } else { 1.0 };
    let passes = if lora { 2.0 } else { 3.0 };
    passes * (n + attention) * a.length
}

/// Does the source count attention over the whole square?
fn full_square(row: &Row) -> bool {
    let half = ["megatron-bridge", "megatron bridge", "liger", "automodel", "prime-rl"];
    let framework = row.framework.to_lowercase();
    !half.iter().any(|h| framework.contains(h))
}

/// FLOPs of a batch that are computed again, where a metric counts them: layers, or their attention alone.
fn again(row: &Row, case: &Case) -> f64 {
    let tokens = case.asked.length * case.asked.batch;
    let square = if full_square(row) { 2.0 } else { 1.0 };
    let attention = row_attention(case) * square;
    match row.recompute.as_str() {
        "full" => {
            let (job, ways) = (&case.update.job, ways(case));
            let head = job.work.after.forward.iter().map(Item::flops).sum::<f64>() * ways;
            (row_products(case) - head / case.update.tokens + attention) * tokens
        }
        "selective" => attention * tokens,
        _ => 0.0,
    }
}

/// FLOPs per token of the forward products of the whole model.
fn row_products(case: &Case) -> f64 {
    forward(case, &|i| matches!(i.kind, Kind::Product { .. }))
}

/// FLOPs per token of causal attention, forward.
fn row_attention(case: &Case) -> f64 {
    forward(case, &|i| matches!(i.kind, Kind::Attention { .. }))
}

fn forward(case: &Case, want: &dyn Fn(&Item) -> bool) -> f64 {
    let job = &case.update.job;
    let sum: f64 = job
        .work
        .regions()
        .map(|(r, n)| n * r.forward.iter().filter(|i| want(i)).map(Item::flops).sum::<f64>())
        .sum();
    sum * ways(case) / case.update.tokens
}

/// Ranks that share the tokens of a micro-batch.
fn ways(case: &Case) -> f64 {
    let mesh = &case.update.job.mesh;
    (mesh.size("tp") * mesh.size("cp")) as f64
}
