//! What a row calls its framework, its number type and its device, and what those are here.
//!
//! In: a row. Out: the stack of `nrl_sim::style`, the number type of products, a function of `std.clusters`. Names that nobody
//! knows stay what they are, but for devices, whose numbers are needed.

use nrl_sim::rates::Compute;

use super::Row;

/// `megatron-bridge 26.04` of `Megatron-Bridge 26.04`: the family, its version, and what else is known of the run
/// (`nrl_sim::style`).
pub fn stack(row: &Row) -> String {
    let text = row.framework.to_lowercase();
    let known = [
        ("megatron-deepspeed", "megatron-deepspeed"),
        ("neox", "megatron-deepspeed"),
        ("sailor", "megatron-deepspeed"),
        ("megatron-bridge", "megatron-bridge"),
        ("megatron-lm 202", "megatron-2022"),
        ("metaseq", "megatron-2022"),
        ("megatron", "megatron"),
        ("automodel", "automodel"),
        ("nemo", "megatron"),
        ("megascale", "megatron"),
        ("llm-foundry", "llm-foundry"),
        ("mosaic", "llm-foundry"),
        ("composer", "llm-foundry"),
        ("torchtitan", "torchtitan"),
        ("torchtune", "torchtune"),
        ("prime-rl", "prime-rl"),
        ("internlm", "internlm"),
        ("internevo", "internlm"),
        ("lit-gpt", "lit-gpt"),
        ("litgpt", "lit-gpt"),
        ("colossal", "colossal-ai"),
        ("deepspeed", "deepspeed"),
        ("verl", "verl"),
        ("meta", "meta"),
        ("maxtext", "xla"),
        ("jax", "xla"),
        ("pax", "xla"),
        ("levanter", "xla"),
        ("transformers", "transformers"),
        ("hugging", "transformers"),
        ("trl", "transformers"),
        ("axolotl", "transformers"),
        ("openrlhf", "transformers"),
        ("factory", "transformers"),
        ("fsdp", "fsdp"),
        ("pytorch", "fsdp"),
    ];
    let family = known.iter().find(|(k, _)| text.contains(k)).map(|(_, f)| *f);
    // One that nobody knows is called as it calls itself, and takes after no other.
    let first = text.split_whitespace().next().unwrap_or("unnamed");
    let family = match family.unwrap_or(first) {
        // Its models with experts have kernels of their own, others are modules of Hugging Face.
        "automodel" if row.experts.is_none() => "automodel-hf",
        family => family,
    };
    let version = text.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
    let mut words = vec![family];
    words.extend(version);
    for (name, mark) in [("flash_attention_2", "fa2"), ("flash_attention_3", "fa3")] {
        if text.contains(name) {
            words.push(mark);
        }
    }
    if row.task.starts_with("rl-trainer") {
        words.push("rl");
    }
    let older = !text.contains("flash_attention_4");
    if family == "prime-rl" && row.gpu.contains("B200") && row.experts.is_some() && older {
        // Its grouped product asked for Hopper before it had FlashAttention 4.
        words.push("loop");
    }
    if row.offload.contains("optimizer") {
        words.push("host");
    }
    if row.gpu.contains("500W") {
        words.push("500w");
    }
    if row.task == "microbench" {
        words.push("burst");
    }
    if ["fp32", "tf32", "float32"].contains(&row.precision.to_lowercase().as_str()) {
        words.push("fp32");
    }
    words.join(" ")
}

pub fn compute(row: &Row) -> Compute {
    let p = row.precision.to_lowercase();
    if p.is_empty() && row.framework.starts_with("Megatron-Bridge") {
        // The first number of a cell with two is that of 8 bits.
        Compute::Fp8
    } else if p.contains("fp4") {
        Compute::Fp4
    } else if p.contains("fp8") {
        Compute::Fp8
    } else {
        Compute::Bf16
    }
}

/// What the name of a device has, without dashes; its function in `std.clusters`, GPUs per node, TFLOP/s.
type Known = (&'static [&'static str], &'static str, usize, f64);

/// Devices by name, those first whose names contain others.
const DEVICES: &[Known] = &[
    (&["A100", "PCIE"], "a100_pcie", 8, 312.0),
    (&["A100", "40"], "a100_40gb", 8, 312.0),
    (&["A100"], "a100", 8, 312.0),
    (&["A800"], "a800", 8, 312.0),
    (&["A6000"], "a6000", 8, 154.8),
    (&["A10"], "a10g", 8, 70.0),
    (&["GH"], "gh200", 4, 989.0),
    (&["H100", "PCIE"], "h100_pcie", 8, 756.0),
    (&["H100", "NVL"], "h100_nvl", 8, 835.0),
    (&["H100"], "h100", 8, 989.0),
    (&["H200"], "h200", 8, 989.0),
    (&["H800"], "h800", 8, 989.0),
    (&["H20"], "h20", 8, 148.0),
    (&["GB200"], "gb200", 4, 2500.0),
    (&["GB300"], "gb300", 4, 2500.0),
    (&["B200"], "b200", 8, 2250.0),
    (&["B300"], "b300", 8, 2250.0),
    (&["V100", "16"], "v100_16gb", 8, 125.0),
    (&["V100"], "v100", 8, 125.0),
    (&["TITAN"], "titan_rtx", 8, 130.5),
    (&["2080TI"], "rtx_2080_ti", 8, 53.8),
    (&["2080"], "rtx_2080", 8, 40.3),
    (&["3090"], "rtx_3090", 8, 71.0),
    (&["4090"], "rtx_4090", 8, 165.2),
    (&["L40"], "l40s", 8, 362.0),
    (&["L4"], "l4", 8, 121.0),
];

/// Function of `std.clusters`, and GPUs per node. Of several kinds that train together the slowest sets the pace.
pub fn cluster(gpu: &str) -> Result<(&'static str, usize), String> {
    let known = |part: &str| {
        let name: String = part.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = name.to_uppercase();
        DEVICES.iter().find(|(has, ..)| has.iter().all(|h| name.contains(h)))
    };
    gpu.split(['+', ',', '/', '&', ';'])
        .filter_map(known)
        .min_by(|a, b| a.3.total_cmp(&b.3))
        .map(|(_, f, n, _)| (*f, *n))
        .ok_or_else(|| format!("no cluster of `{gpu}`"))
}
