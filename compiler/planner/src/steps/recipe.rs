//! The recipe of a measured step: the same model, layout, machine and lengths as `.nrl`, and what the software is told besides.
//!
//! In: a row. Out: files, with assumptions for the forecast, or why the row cannot be said. What a table does not state is what
//! NeMo RL's own recipes for these models say.

use std::collections::BTreeMap;
use std::fmt::Write;

use nrl_driver::{Assume, Framework};
use nrl_facts::ModelFacts;
use nrl_sim::Habits;
use nrl_sim::rates::Compute;

use super::row::{Backend, Row};

/// What a row becomes.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `r.nrl`.
    pub files: BTreeMap<String, String>,
    pub assume: Assume,
}

/// The recipe of `row`.
pub fn recipe(row: &Row) -> Result<Asked, String> {
    let facts = facts(&row.model)?;
    let (cluster, per_node) = cluster(&row.gpu)?;
    let call =
        format!("models.load(\"{}\", dtype: bf16, context: {} tokens)", facts.name, row.max_seq);
    let mut r = String::new();
    let _ = writeln!(
        r,
        "use std.{{clusters, data, grpo, models, optim, plans, rewards}}\n\nrecipe row {{"
    );
    let _ = writeln!(r, "  run 1 step, seed 1");
    let nodes = row.gpus.div_ceil(per_node);
    let each = if nodes == 1 { row.gpus } else { per_node };
    let _ = writeln!(r, "  gpus = clusters.{cluster}(nodes: {nodes}, gpus: {each})");
    let (trains, samples) = match row.colocated {
        true => ("gpus", "gpus"),
        false => ("trainers", "rollers"),
    };
    if !row.colocated {
        if !row.gen_gpus.is_multiple_of(each) || row.gen_gpus >= row.gpus {
            return Err(format!("{} of {} GPUs sample: no whole nodes", row.gen_gpus, row.gpus));
        }
        let nodes = row.gen_gpus / each;
        let noun = if nodes == 1 { "node" } else { "nodes" };
        let _ = writeln!(r, "  pool trainers, rollers = gpus split (rest, {nodes} {noun})");
    }
    let _ = writeln!(r, "  mesh train = {trains} axes ({})", axes(row));
    let tp = if row.gen_tp > 1 { format!(", rtp: {}", row.gen_tp) } else { String::new() };
    let _ = writeln!(r, "  mesh roll = {samples} axes (rep: rest{tp})");
    let _ = writeln!(r, "  policy = {call}");
    let reference = row.algorithm != "DAPO";
    let placed = if reference { "policy, ref" } else { "policy" };
    if reference {
        let _ = writeln!(r, "  ref = frozen(policy)");
    }
    let _ = writeln!(r, "  place {placed} on train by {}", plan(row, facts));
    let _ = writeln!(r, "  opt = optim.adamw(lr: 1e-6)");
    let share = if row.colocated { 60 } else { 80 };
    let _ = writeln!(
        r,
        "  sampler = generator(policy, on: roll, temperature: 1.0, memory: {share} % of device)"
    );
    let _ = writeln!(r, "  rows = data.made(1000000 rows, i -> {{prompt: \"a\", answer: \"b\"}})");
    r.push_str(&step(row, reference));
    r.push_str("}\n");
    let files = BTreeMap::from([("r.nrl".to_string(), r)]);
    Ok(Asked { files, assume: assume(row, facts) })
}

fn step(row: &Row, reference: bool) -> String {
    let mut s = format!(
        "  step {{\n    s = sampler.generate(rows.take({} prompts), {} samples/prompt, max_new: rest of context)",
        row.prompts, row.group
    );
    match row.delay {
        0 => {}
        1 => s.push_str(" with staleness <= 1 step, swap: in_flight"),
        n => {
            let _ = write!(s, " with staleness <= {n} steps, swap: in_flight");
        }
    }
    let updates = row.updates();
    let noun = if updates == 1 { "update" } else { "updates" };
    let budget = row.max_seq as usize * row.micro;
    s.push_str("\n    r = rewards.boxed_answer(s)\n");
    s.push_str("    gain = grpo.advantages(r, baseline: leave_one_out, scale: std)\n");
    s.push_str("    old = logprob(policy, s)\n    w = weight(old, s.logprob)\n");
    let _ = writeln!(
        s,
        "    update policy by opt in {updates} {noun}, {budget} tokens/microbatch, minimising {{"
    );
    s.push_str("      let now = logprob(policy, s)\n");
    s.push_str("      mean(w * grpo.clip(ratio(now, old), gain, 0.2..0.2), over: tokens)\n");
    if reference {
        s.push_str("        + 0.01 * mean(k3(now, logprob(ref, s)), over: tokens)\n");
    }
    s.push_str("    }\n  }\n");
    s
}

/// What NeMo RL is told that the language does not say.
fn assume(row: &Row, facts: &ModelFacts) -> Assume {
    let version = row.version.trim_start_matches('v');
    let family = match row.backend {
        Backend::Megatron => "nemo-rl",
        Backend::Dtensor => "nemo-rl-dtensor",
    };
    // Recipes of 0.7 hold the ratio at 1, and sample from DeepSeek-V3 with its own head for the token after the next.
    let late = row.at_least(0, 7);
    let memory = Habits {
        engine: row.fp8.then_some((1.0, 2.0)),
        score_tokens: Some(scored(row, facts)),
        ..Habits::default()
    };
    let framework = Framework {
        memory,
        on_policy: late,
        guesses: late && facts.architecture.starts_with("DeepseekV3"),
        unused_reference: row.algorithm == "DAPO",
        ..Framework::default()
    };
    Assume {
        stack: Some(format!("{family} {version}")),
        compute: if row.fp8 { Compute::Fp8 } else { Compute::Bf16 },
        framework,
        lengths: Some((row.avg_seq, f64::from(row.max_seq))),
        ..Assume::default()
    }
}

/// Tokens of a micro-batch of a pass that scores: `logprob_batch_size` of NeMo RL's recipes, by their models.
fn scored(row: &Row, facts: &ModelFacts) -> usize {
    let weights = facts.params_b.map_or(0.0, |(all, _)| all);
    let samples = match (weights, facts.experts.is_some()) {
        (w, _) if w > 100.0 => 1,
        (w, false) if (20.0..50.0).contains(&w) => 4,
        _ if row.max_seq >= 32_768 => 4,
        _ => 2,
    };
    row.max_seq as usize * samples
}

fn axes(row: &Row) -> String {
    let m = &row.mesh;
    let all = match row.backend {
        Backend::Megatron => "dp",
        Backend::Dtensor => "fsdp",
    };
    let mut axes = vec![];
    for (name, size) in [("pp", m.pp), (all, m.dp), ("cp", m.cp), ("tp", m.tp), ("ep", m.ep)] {
        if name == all {
            axes.push(format!("{name}: rest"));
        } else if size > 1 {
            axes.push(format!("{name}: {size}"));
        }
    }
    axes.join(", ")
}

fn plan(row: &Row, facts: &ModelFacts) -> String {
    let weights = facts.params_b.map_or(0.0, |(all, _)| all);
    // Layers are computed again for models that are large, samples that are long, and in the performance
    // recipes for 8 G weights.
    let small = row.at_least(0, 4) && facts.experts.is_none() && weights < 10.0;
    let again = weights > 100.0 || row.max_seq >= 32_768 || small;
    let recompute = if again { ", recompute: full" } else { "" };
    if row.backend == Backend::Dtensor {
        let again = if weights > 30.0 { ", recompute: full" } else { recompute };
        let tensor = if row.mesh.tp > 1 { " * plans.tensor_parallel()" } else { "" };
        let again = if again.is_empty() { "" } else { " * plans.recomputed()" };
        return format!("plans.fsdp(){tensor}{again}");
    }
    let split = match split(facts.layers as usize, row.mesh.pp) {
        Some(split) => format!(", split: {split:?}"),
        None => String::new(),
    };
    format!("plans.megatron(sp: {}{recompute}{split})", row.sp)
}

/// Layers of each stage where they do not divide: those in the middle have as many, the first one the larger part of the rest.
pub fn split(layers: usize, stages: usize) -> Option<Vec<usize>> {
    if stages < 2 || layers.is_multiple_of(stages) {
        return None;
    }
    let middle = layers.div_ceil(stages);
    let rest = layers.checked_sub(middle * (stages - 2))?;
    let mut split = vec![middle; stages];
    split[0] = rest.div_ceil(2);
    split[stages - 1] = rest / 2;
    Some(split)
}

/// Function of `std.clusters`, and GPUs of a node.
fn cluster(gpu: &str) -> Result<(String, usize), String> {
    let wanted = gpu.to_lowercase();
    if !crate::input::devices().contains(&wanted) {
        return Err(format!("no rates for the device `{gpu}`"));
    }
    let per_node = if wanted.starts_with("gb") { 4 } else { 8 };
    Ok((wanted, per_node))
}

/// The model called `name`: a checkpoint's name, or its last part, with or without `-Instruct` or `-Base`.
pub fn facts(name: &str) -> Result<&'static ModelFacts, String> {
    let plain = name.trim_end_matches("-Base").trim_end_matches("-Instruct");
    let last = |m: &'static ModelFacts| m.name.rsplit('/').next().unwrap_or(&m.name);
    let bare =
        |m: &'static ModelFacts| last(m).trim_start_matches("NVIDIA-").trim_end_matches("-BF16");
    let all = nrl_facts::models();
    let like = |w: &str| all.iter().find(|m| m.name == w || last(m) == w || bare(m) == w);
    // A base model whose checkpoint has no such ending in its name comes before its instructed one.
    let found = like(name).or_else(|| like(plain)).or_else(|| like(&format!("{plain}-Instruct")));
    found.ok_or_else(|| format!("nothing is known of the model `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `num_layers_in_first_pipeline_stage` and `.._last_..` of NeMo RL's recipes for Qwen3-235B and DeepSeek-V3.
    #[test]
    fn uneven_stages_are_those_of_the_recipes() {
        let ends = |layers, stages| split(layers, stages).map(|s| (s[0], s[1], s[stages - 1]));
        assert_eq!(ends(94, 8), Some((11, 12, 11)));
        assert_eq!(ends(94, 4), Some((23, 24, 23)));
        assert_eq!(ends(61, 16), Some((3, 4, 2)));
        assert_eq!(ends(61, 8), Some((7, 8, 6)));
        assert_eq!(ends(64, 4), None);
    }
}
