//! The recipe of a measured row: the same model, layout and machine as `.nrl`.
//!
//! In: a row. Out: the text of a recipe and of the files beside it, or why the row cannot be said. Cells that a
//! source leaves empty get the value that its framework would use.

use std::collections::BTreeMap;
use std::fmt::Write;

use nrl_facts::ModelFacts;
use nrl_sim::rates::Compute;
use serde_json::{Value, json};

use super::layer::Layer;
use super::names::{cluster, compute, stack};
use super::{Row, is_memory, metric};

/// What a row becomes.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `r.nrl` and a `config.json`.
    pub files: BTreeMap<String, String>,
    pub compute: Compute,
    /// `megatron-bridge 26.04`: family and version.
    pub stack: String,
    /// Global batch, in samples, and tokens of a sample.
    pub batch: f64,
    pub length: f64,
    pub devices: usize,
    /// The layout as the row states it, with what was filled in.
    pub layout: Layout,
}

/// Sizes of the axes, all at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    pub tp: usize,
    pub pp: usize,
    pub vpp: usize,
    pub cp: usize,
    pub ep: usize,
    /// Ranks that share one expert.
    pub etp: usize,
    /// Data parallel, with weights cut over `fsdp` of them.
    pub dp: usize,
    pub fsdp: usize,
    /// Weights are gathered layer by layer, from the ranks of `fsdp` and `cp`.
    pub gathers: bool,
    pub sp: bool,
    pub micro: f64,
    /// Forwards run beside backwards.
    pub paired: bool,
}

/// What DualPipe's all-to-alls send to other nodes, of what each expert's own copy would: a token goes to 4 of 8 nodes, once each, its own
/// among them half of the time (3.5 copies for 7); what is dispatched has 8 bits, what is combined 16 (DeepSeek-V3 report 2024,
/// sections 3.2.2 and 3.3.2).
pub(super) const CROSSING: f64 = 0.5 * 0.75;

/// The recipe of `row`.
pub fn recipe(row: &Row) -> Result<Asked, String> {
    let gpus = row.gpus.or_else(|| ranks(row)).ok_or("no number of GPUs")?;
    // Whether a recipe fits is reported without a length: the shortest that its examples use.
    let length =
        row.seq.or((row.metric == "fits").then_some(2048.0)).ok_or("no sequence length")?;
    // Bytes are the same on any device.
    let any = row.gpu == "unstated" && is_memory(&row.metric);
    let (cluster, per_node) = cluster(if any { "H100" } else { &row.gpu })?;
    let layout = layout(row, gpus)?;
    let ways = (layout.dp * layout.fsdp) as f64;
    let batch = row
        .gbs
        .or_else(|| noted(&row.note, "batch per dp group ").map(|n| n * ways))
        .or_else(|| row.mbs.map(|m| m * ways))
        .or((row.metric == "fits").then_some(ways))
        .ok_or("no batch size")?;
    let own = Layer::of(row).map(|layer| layer.model(length));
    let (config, call) = match &own {
        Some((_, call)) => (None, call.clone()),
        None => model(row, length)?,
    };
    let nodes = gpus.div_ceil(per_node);
    let mut r = String::new();
    let _ = writeln!(r, "use std.{{clusters, data, models, optim, plans, sft}}\n\nrecipe row {{");
    let _ = writeln!(r, "  run 1 step, seed 1");
    let _ = writeln!(
        r,
        "  gpus = clusters.{cluster}(nodes: {nodes}, gpus: {})",
        if nodes == 1 { gpus } else { per_node }
    );
    let mut axes = vec![];
    for (name, size) in [
        ("pp", layout.pp),
        ("dp", layout.dp),
        ("fsdp", layout.fsdp),
        ("cp", layout.cp),
        ("tp", layout.tp),
        ("ep", layout.ep),
        ("etp", layout.etp),
    ] {
        if size > 1 || (name == "dp" && layout.fsdp == 1) {
            axes.push(format!("{name}: {size}"));
        }
    }
    let _ = writeln!(r, "  mesh m = gpus axes ({})", axes.join(", "));
    if row.task.contains("lora") {
        let on = adapted(row);
        let _ = writeln!(r, "  base = {call}\n  policy = lora(base, rank: 16, on: [{on}])");
    } else {
        let _ = writeln!(r, "  policy = {call}");
    }
    let _ = writeln!(r, "  place policy on m by {}", plan(row, &layout));
    let _ = writeln!(r, "  adam = optim.adamw(lr: 1e-4)");
    let _ = writeln!(r, "  rows = data.made(1000000 rows, i -> {{prompt: \"a\", answer: \"b\"}})");
    let budget = (layout.micro * length).round().max(1.0);
    let _ = writeln!(r, "  step {{\n    b = rows.take({batch:.0} samples)");
    let _ = writeln!(
        r,
        "    update policy by adam in 1 update, {budget:.0} tokens/microbatch, minimising {{ sft.nll(policy, b) }}\n  }}"
    );
    let _ = writeln!(r, "  assume lengths = always({length:.0} tokens)\n}}");
    if let Some((text, _)) = &own {
        r.push_str(text);
    }
    let mut files = BTreeMap::from([("r.nrl".to_string(), r)]);
    if let Some(config) = config {
        files.insert("model/config.json".into(), config.to_string());
    }
    Ok(Asked {
        files,
        compute: compute(row),
        stack: stack(row),
        batch,
        length,
        devices: gpus,
        layout,
    })
}

/// GPUs of a layout that a row gives in full without their number.
fn ranks(row: &Row) -> Option<usize> {
    let ways = row.dp.unwrap_or(1).max(row.fsdp.unwrap_or(1));
    let given = row.dp.or(row.fsdp).is_some();
    let of = |x: Option<usize>| x.unwrap_or(1).max(1);
    given.then(|| ways * of(row.tp) * of(row.pp) * of(row.cp))
}

/// Parameters beside which adapters stand: the projections of attention alone in NeMo before Megatron-Bridge.
fn adapted(row: &Row) -> &'static str {
    match row.framework.strip_prefix("NeMo 2") {
        Some(_) => "wq, wk, wv",
        None => "wq, wk, wv, wo, gate, up, down",
    }
}

/// The number that follows `words` in a note.
fn noted(note: &str, words: &str) -> Option<f64> {
    note.split(words).nth(1)?.split_whitespace().next()?.parse().ok()
}

/// The row with the settings that its source does not repeat: the dims of a published model where it names one and gives none.
pub fn filled(row: &Row) -> Row {
    if let Some(layer) = Layer::of(row) {
        return layer.filled(row);
    }
    let mut row = row.clone();
    if row.framework.contains("verl") && row.metric == "fits" {
        // Its examples compute layers again and keep the optimizer on the host.
        row.recompute = "full".into();
        row.offload = "optimizer-cpu".into();
    }
    if row.unit == "ms" && metric::is_step(&row.metric) {
        (row.value, row.unit) = (row.value / 1e3, "s".into());
    }
    if row.model.starts_with("mixtral-8x2b") {
        // The README of mbridge lists its modules.
        (row.hidden, row.heads, row.kv_heads) = (Some(2048), Some(16), Some(8));
        (row.ffn, row.moe_ffn, row.vocab) = (Some(5440), Some(5440), Some(32000));
        row.head_dim = "128".into();
    }
    if row.layers.is_some() {
        return row;
    }
    if let Some(f) = hybrid(&row.model) {
        row.layers = Some(f.layers as usize);
        row.experts = f.experts.map(|e| e.number as usize);
        return row;
    }
    let wanted = row.model.split(" (").next().unwrap_or("").to_lowercase();
    let named = |f: &&ModelFacts| {
        let short = f.name.rsplit('/').next().unwrap_or("").to_lowercase();
        short == wanted || short == wanted.replace("qwen2-", "qwen2.5-").replace("-70b", "-72b")
    };
    let Some(f) = nrl_facts::models().iter().find(named) else { return row };
    let size = |n: u64| Some(n as usize);
    (row.layers, row.hidden, row.heads) = (size(f.layers), size(f.hidden), size(f.heads));
    (row.kv_heads, row.vocab) = (size(f.kv_heads), size(f.vocab));
    row.head_dim = f.head_dim.to_string();
    row.ffn = f.ffn.and_then(size);
    row
}

/// More ranks than any machine has.
const MOST: usize = 1_000_000;

fn layout(row: &Row, gpus: usize) -> Result<Layout, String> {
    let one = |x: Option<usize>| x.unwrap_or(1).max(1);
    let (tp, pp, cp, ep) = (one(row.tp), one(row.pp), one(row.cp), one(row.ep));
    let unsaid = [row.tp, row.pp, row.dp, row.fsdp].iter().all(Option::is_none);
    if unsaid && gpus > 8 && row.framework.starts_with("Megatron") {
        return Err("no layout".into());
    }
    let vpp = if row.framework.contains("Meta") { 8 } else { one(row.vpp) };
    let many = [("gpus", gpus), ("tp", tp), ("pp", pp), ("vpp", vpp), ("cp", cp), ("ep", ep)];
    if let Some((name, n)) = many.iter().find(|(_, n)| *n == 0 || *n > MOST) {
        return Err(format!("`{name}` is {n}"));
    }
    let cut = tp * pp * cp;
    if !gpus.is_multiple_of(cut) {
        return Err(format!("{gpus} GPUs are not a multiple of tp {tp} x pp {pp} x cp {cp}"));
    }
    let all = gpus / cut;
    let gathers = ["torchtitan", "prime-rl", "full_shard", "zero-3", "fsdp", "automodel"];
    let gathers = gathers.iter().any(|f| row.framework.to_lowercase().contains(f));
    let fsdp = match row.fsdp {
        // Its weights stay whole between micro-batches.
        _ if row.framework.contains("Meta") => 1,
        Some(n) if n > 1 => n.min(all),
        None if gathers => all,
        _ => 1,
    };
    let gathers = fsdp > 1 || (gathers && cp > 1);
    // Megatron-Core cuts experts as it cuts the rest, where nothing says otherwise; recipes that spread them say otherwise.
    let etp = if row.experts.is_some() && row.ep.is_none() && !gathers { tp } else { 1 };
    let sp = match row.sp.as_str() {
        "True" => true,
        "False" => false,
        // Off by default in the Megatron of 2021 and in Megatron-DeepSpeed.
        _ => tp > 1 && !row.framework.contains("DeepSpeed") && !row.framework.contains("2021"),
    };
    let mut micro = row.mbs.unwrap_or(1.0);
    if pp > 1 && row.framework.contains("torchtitan") {
        // The column is the batch of a rank, cut into as many parts as there are stages.
        micro = (micro / (pp * vpp) as f64).max(1.0);
    }
    let paired = row.framework.contains("DualPipe") && ep > 1;
    Ok(Layout { tp, pp, vpp, cp, ep, etp, dp: all / fsdp, fsdp, gathers, sp, micro, paired })
}

fn plan(row: &Row, l: &Layout) -> String {
    let recompute = match row.recompute.as_str() {
        "full" => "full",
        "selective" => "selective",
        _ => "none",
    };
    let mut megatron = format!("plans.megatron(sp: {}, recompute: {recompute}", l.sp);
    if l.vpp > 1 {
        let _ = write!(megatron, ", chunks: {}", l.vpp);
    }
    if l.paired {
        megatron.push_str(", paired: true");
    }
    if let Some(split) = split(row.layers.unwrap_or(0), l.pp * l.vpp) {
        let _ = write!(megatron, ", split: {split:?}");
    }
    megatron.push(')');
    if !l.gathers {
        return megatron;
    }
    let base = if l.dp > 1 { "plans.hsdp()" } else { "plans.fsdp()" };
    let again = match recompute {
        "none" => String::new(),
        what => format!(" * plans.recomputed({what})"),
    };
    match (l.tp, l.pp, l.ep, l.cp) {
        (1, 1, 1, 1) => format!("{base}{again}"),
        _ => format!("{base}{again} * {megatron}"),
    }
}

/// Layers of each part where they do not divide: the parts with the head and the embedding get one less, as
/// frameworks do that count those as layers, then the others from the end.
fn split(layers: usize, parts: usize) -> Option<Vec<usize>> {
    if parts <= 1 || parts > 2 * layers || layers.is_multiple_of(parts) {
        return None;
    }
    let mut split = vec![layers.div_ceil(parts); parts];
    let missing = parts * split[0] - layers;
    let order = std::iter::once(parts - 1).chain(0..1).chain((1..parts - 1).rev());
    for part in order.take(missing) {
        split[part] -= 1;
    }
    Some(split)
}

/// Families whose feed-forward has no gate.
const PLAIN: &[&str] = &[
    "gpt",
    "mpt",
    "opt",
    "bloom",
    "pythia",
    "neox",
    "megatron",
    "mt-nlg",
    "turing",
    "cerebras",
    "nemotron",
    "starcoder",
    "falcon",
];

/// Models whose head is their embedding.
const TIED: &[&str] = &[
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "llama3.2-1b",
    "llama3.2-3b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "smollm",
];

/// `config.json` of the model, if it has one, and the call that makes it.
fn model(row: &Row, length: f64) -> Result<(Option<Value>, String), String> {
    if let Some(f) = hybrid(&row.model) {
        let length = format!("{length:.0} tokens");
        return Ok((None, format!("models.load(\"{}\", dtype: bf16, context: {length})", f.name)));
    }
    let need = |x: Option<usize>, what: &str| x.ok_or_else(|| format!("no {what}"));
    let layers = need(row.layers, "number of layers")?;
    let hidden = need(row.hidden, "hidden size")?;
    let heads = need(row.heads, "number of heads")?;
    let mut ffn = need(row.ffn, "feed-forward size")?;
    let kv = row.kv_heads.unwrap_or(heads);
    let vocab = row.vocab.unwrap_or(51200);
    let name = row.model.to_lowercase();
    let tied = TIED.iter().any(|t| name.contains(t));
    let plain = PLAIN.iter().any(|p| name.starts_with(p)) && row.experts.is_none();
    if plain && kv != heads {
        // Groups of heads and no gate: a gated feed-forward of the same FLOPs.
        ffn = ffn * 2 / 3;
    }
    let mut config = json!({
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": (length as usize).max(4096),
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
    });
    if name.starts_with("gpt-oss") || row.experts.is_some() {
        let experts = need(row.experts, "number of experts")?;
        let topk = need(row.topk, "number of experts per token")?;
        let moe = need(row.moe_ffn, "size of an expert")?;
        if row.head_dim == "mla" {
            return Ok((Some(deepseek(&config, row, experts, topk, moe)), load(length)));
        }
        let glm = name.contains("glm-4.5");
        let (class, kind, count) = match (name.starts_with("gpt-oss"), glm) {
            (true, _) => ("GptOssForCausalLM", "gpt_oss", "num_local_experts"),
            (_, true) => ("Glm4MoeForCausalLM", "glm4_moe", "n_routed_experts"),
            _ => ("Qwen3MoeForCausalLM", "qwen3_moe", "num_experts"),
        };
        set(&mut config, "architectures", json!([class]));
        set(&mut config, "model_type", json!(kind));
        set(&mut config, count, json!(experts));
        set(&mut config, "num_experts_per_tok", json!(topk));
        set(&mut config, "moe_intermediate_size", json!(moe));
        set(&mut config, "norm_topk_prob", json!(true));
        if glm {
            // config.json of GLM-4.5-Air.
            set(&mut config, "attention_bias", json!(true));
            set(&mut config, "partial_rotary_factor", json!(0.5));
        }
    } else if plain && kv == heads {
        return Ok((None, gpt(row, layers, hidden, heads, ffn, vocab, length)));
    } else {
        let llama = name.starts_with("llama") || name.contains("qwen2");
        let (class, kind) =
            if llama { ("LlamaForCausalLM", "llama") } else { ("Qwen3ForCausalLM", "qwen3") };
        set(&mut config, "architectures", json!([class]));
        set(&mut config, "model_type", json!(kind));
    }
    if let Ok(n) = row.head_dim.parse::<usize>() {
        set(&mut config, "head_dim", json!(n));
    }
    Ok((Some(config), load(length)))
}

/// The published hybrid of state spaces and attention that a row names.
fn hybrid(name: &str) -> Option<&'static ModelFacts> {
    let name = name.to_lowercase();
    let bare = |m: &ModelFacts| {
        let last = m.name.rsplit('/').next().unwrap_or("").to_lowercase();
        last.trim_start_matches("nvidia-").to_string()
    };
    let mut all = nrl_facts::models().iter().filter(|m| m.hybrid.is_some());
    all.find(|m| bare(m).starts_with(&name))
}

fn set(config: &mut Value, key: &str, value: Value) {
    if let Some(map) = config.as_object_mut() {
        map.insert(key.into(), value);
    }
}

fn load(length: f64) -> String {
    format!("models.load(\"model\", dtype: bf16, context: {length:.0} tokens)")
}

fn gpt(
    row: &Row,
    layers: usize,
    hidden: usize,
    heads: usize,
    ffn: usize,
    vocab: usize,
    length: f64,
) -> String {
    let bare = row.model.starts_with("mpt");
    format!(
        "models.gpt({{hidden_size: {hidden}, intermediate_size: {ffn}, num_hidden_layers: {layers}, \
         num_attention_heads: {heads}, vocab_size: {vocab}, max_position_embeddings: {length:.0}{}}}, \
         dtype: bf16, context: {length:.0} tokens)",
        if bare { ", no_bias: true" } else { "" }
    )
}

/// Sizes of latent attention are those of DeepSeek-V2 and V3 (their `config.json`); Kimi K2 shares V3's.
fn deepseek(base: &Value, row: &Row, experts: usize, topk: usize, moe: usize) -> Value {
    let mut config = base.clone();
    let v2 = row.model.contains("v2");
    let layers = row.layers.unwrap_or(61);
    let kimi = row.model.contains("kimi");
    for (key, value) in [
        ("architectures", json!(["DeepseekV3ForCausalLM"])),
        ("model_type", json!("deepseek_v3")),
        ("q_lora_rank", json!(1536)),
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("n_routed_experts", json!(experts)),
        ("num_experts_per_tok", json!(topk)),
        ("moe_intermediate_size", json!(moe)),
        ("n_shared_experts", json!(if v2 { 2 } else { 1 })),
        // Layer-reduced runs keep one dense layer.
        ("first_k_dense_replace", json!(if v2 || kimi || layers < 8 { 1 } else { 3 })),
        ("norm_topk_prob", json!(true)),
        ("routed_scaling_factor", json!(2.5)),
        ("scoring_func", json!("sigmoid")),
        ("n_group", json!(1)),
        ("topk_group", json!(1)),
    ] {
        set(&mut config, key, value);
    }
    config
}
