//! How generation engines are cut over their GPUs.

use crate::arithmetic::{divisors, one_of};
use crate::recipe::{Engine, Fact, Generation, Recipe};
use crate::rule::{Findings, Rule, error, note};
use crate::rules::mesh::legal;

/// Meshes of generation.
pub const RULES: &[Rule] = &[
    error(
        "MESH-26",
        "mesh-does-not-fill",
        "the GPUs of generation are not whole engines",
        |r, f| {
            let Some(g) = of(r, &[Engine::Vllm, Engine::Dynamo]) else { return };
            let (Some(gpus), Some(tp)) = (&g.gpus, &g.tp) else { return };
            let pp = g.pp.as_ref().map_or(1, |pp| pp.value);
            let copy = tp.value.saturating_mul(pp);
            if copy > 0 && gpus.value > 0 && gpus.value % copy != 0 {
                let text = format!(
                    "one engine needs tp {} * pp {pp} = {copy} GPUs; generation has {}",
                    tp.value, gpus.value
                );
                f.found(text, &[tp, &g.pp, gpus])
                    .help(format!("tp * pp may be {}", one_of(&divisors(gpus.value, gpus.value))));
            }
        },
    ),
    error("MESH-27", "engine-cannot", "vLLM pipelines need the async engine", |r, f| {
        let Some(g) = of(r, &[Engine::Vllm]) else { return };
        if let Some(pp) = g.pp.as_ref().filter(|pp| pp.value > 1)
            && !g.asynchronous.as_ref().is_some_and(|a| a.value)
        {
            let path = g.at("vllm_cfg.async_engine");
            f.found("vLLM runs pipeline stages only with its async engine", &[pp, &g.asynchronous])
                .help(format!("`{path}: true`"));
        }
    }),
    error("MESH-28", "mesh-does-not-fill", "experts of vLLM must span whole tp groups", |r, f| {
        let Some(g) = of(r, &[Engine::Vllm]) else { return };
        let (Some(ep), Some(tp)) = (&g.ep, &g.tp) else { return };
        if ep.value > 1 && tp.value > 0 && ep.value % tp.value != 0 {
            let text = format!(
                "vLLM spreads experts over whole tensor parallel groups: {} is no multiple of tp {}",
                ep.value, tp.value
            );
            f.found(text, &[ep, tp]).help(format!("`{}: {}`", ep.name, tp.value));
        }
    }),
    error(
        "MESH-29",
        "engine-cannot",
        "the async engine cannot spread experts beyond tp",
        |r, f| {
            let Some(g) = of(r, &[Engine::Vllm]) else { return };
            let (Some(ep), Some(tp)) = (&g.ep, &g.tp) else { return };
            if ep.value > 1
                && ep.value != tp.value
                && g.asynchronous.as_ref().is_some_and(|a| a.value)
            {
                let text = format!(
                    "the async engine cannot spread experts over {} ranks with tp {}",
                    ep.value, tp.value
                );
                f.found(text, &[ep, tp, &g.asynchronous])
                    .help(format!("`{}: {}`, or `async_engine: false`", ep.name, tp.value));
            }
        },
    ),
    error("MESH-30", "mesh-does-not-fill", "engines do not fit the nodes", |r, f| {
        let Some(g) = of(r, &[Engine::Vllm]) else { return };
        let (Some(gpus), Some(node)) = (&g.gpus, &r.cluster.gpus_per_node) else { return };
        let copy = g.tp.as_ref().map_or(1, |t| t.value) * g.pp.as_ref().map_or(1, |p| p.value);
        if gpus.value > node.value
            && node.value > 0
            && copy > 0
            && gpus.value % copy == 0
            && node.value % copy != 0
            && copy % node.value != 0
        {
            let text = format!("engines of {copy} GPUs do not fit nodes of {}", node.value);
            f.found(text, &[&g.tp, &g.pp, node]).help(format!(
                "tp * pp may be {}, or whole nodes",
                one_of(&divisors(node.value, node.value))
            ));
        }
    }),
    error(
        "MESH-31",
        "heads-not-divisible",
        "attention heads cannot be split over the engine's tp",
        |r, f| {
            let Some(g) = &r.generation else { return };
            let model = r.policy().and_then(|w| w.model.as_ref());
            let (Some(tp), Some(model)) = (&g.tp, model) else { return };
            let (heads, kv) = (model.heads as i64, (model.kv_heads as i64).max(1));
            if tp.value > 1 && heads % tp.value != 0 {
                let text = format!("{heads} attention heads cannot be split over tp {}", tp.value);
                f.found(text, &[tp, &Fact::model("attention heads", heads, &model.name)])
                    .help(legal(r, heads, |tp| heads % tp == 0));
            } else if tp.value > 1
                && kv % tp.value != 0
                && tp.value % kv != 0
                && !model.latent_attention
            {
                let text = format!(
                    "{kv} KV heads can neither be split over tp {} nor copied evenly",
                    tp.value
                );
                f.found(text, &[tp, &Fact::model("KV heads", kv, &model.name)]).help(legal(
                    r,
                    heads,
                    |tp| kv % tp == 0 || tp % kv == 0,
                ));
            }
        },
    ),
    error("MESH-32", "engine-cannot", "TensorRT-LLM has no pipelines here", |r, f| {
        let Some(g) = of(r, &[Engine::Trtllm]) else { return };
        if let Some(pp) = r.int(&g.at("trtllm_cfg.pipeline_parallel_size")).filter(|p| p.value != 1)
        {
            f.found("TensorRT-LLM generates without pipeline stages", &[&pp])
                .help(format!("`{}: 1`", pp.name));
        }
    }),
    error("MESH-33", "engine-cannot", "colocated TensorRT-LLM stays inside a node", |r, f| {
        let Some(g) = of(r, &[Engine::Trtllm]) else { return };
        let (Some(tp), Some(node)) = (&g.tp, &r.cluster.gpus_per_node) else { return };
        if !g.apart() && tp.value > node.value {
            let text = format!(
                "tp {} spans nodes of {} GPUs, which colocated TensorRT-LLM cannot",
                tp.value, node.value
            );
            f.found(text, &[tp, node, &g.colocated])
                .help(format!("`{}: {}`, or nodes of its own for generation", tp.name, node.value));
        }
    }),
    error(
        "MESH-34",
        "mesh-does-not-fill",
        "the GPUs of TensorRT-LLM are not whole engines",
        |r, f| {
            let Some(g) = of(r, &[Engine::Trtllm]) else { return };
            let (Some(tp), Some(gpus)) = (&g.tp, &g.gpus) else { return };
            if tp.value > 0 && gpus.value > 0 && gpus.value % tp.value != 0 {
                let text = format!(
                    "{} GPUs of generation are not whole engines of tp {}",
                    gpus.value, tp.value
                );
                f.found(text, &[tp, gpus])
                    .help(format!("tp may be {}", one_of(&divisors(gpus.value, gpus.value))));
            }
        },
    ),
    error("MESH-35", "mesh-does-not-fill", "the expert mesh of TensorRT-LLM is not tp", |r, f| {
        let Some(g) = of(r, &[Engine::Trtllm]) else { return };
        let etp = r.int(&g.at("trtllm_cfg.moe_tensor_parallel_size"));
        let ep = r.int(&g.at("trtllm_cfg.moe_expert_parallel_size"));
        let Some(tp) = &g.tp else { return };
        if let (Some(etp), Some(ep)) = (&etp, &ep)
            && etp.value > 0
            && ep.value > 0
            && etp.value * ep.value != tp.value
        {
            let text = format!(
                "the expert mesh of {} * {} ranks is not the tp of {}",
                etp.value, ep.value, tp.value
            );
            f.found(text, &[etp, ep, tp]).help(format!("their product must be {}", tp.value));
        }
    }),
    error("MESH-36", "mesh-does-not-fill", "an SGLang engine's GPUs are not tp * pp", |r, f| {
        let Some(g) = of(r, &[Engine::Sglang]) else { return };
        let Some(each) = r.int(&g.at("sglang_cfg.sglang_server_config.num_gpus_per_engine")) else {
            return;
        };
        let Some(tp) = &g.tp else { return };
        let pp = g.pp.as_ref().map_or(1, |pp| pp.value).max(1);
        if each.value % pp != 0 || tp.value != each.value / pp {
            let text = format!(
                "an SGLang engine of {} GPUs with pp {pp} has tp {}, not {}",
                each.value,
                each.value / pp,
                tp.value
            );
            f.found(text, &[tp, &g.pp, &each]).help(format!("`{}: {}`", tp.name, each.value / pp));
        }
    }),
    error("MESH-37", "mesh-does-not-fill", "SGLang engines leave GPUs idle", |r, f| {
        let Some(g) = of(r, &[Engine::Sglang]) else { return };
        let each = r.int(&g.at("sglang_cfg.sglang_server_config.num_gpus_per_engine"));
        let (Some(each), Some(gpus)) = (each, &g.gpus) else { return };
        if each.value > 0 && gpus.value > 0 && gpus.value % each.value != 0 {
            let idle = gpus.value % each.value;
            let text =
                format!("engines of {} GPUs leave {idle} of {} idle", each.value, gpus.value);
            f.found(text, &[&each, gpus]).help(format!(
                "`{}` may be {}",
                each.name,
                one_of(&divisors(gpus.value, gpus.value))
            ));
        }
    }),
    error("MESH-38", "engine-cannot", "a mesh that Dynamo cannot have", |r, f| {
        let Some(g) = of(r, &[Engine::Dynamo]) else { return };
        let tp = g.tp.as_ref().map_or(1, |t| t.value);
        let pp = g.pp.as_ref().map_or(1, |p| p.value);
        if let Some(ep) = g.ep.as_ref().filter(|ep| ep.value != 1 && ep.value != tp) {
            let text = format!(
                "Dynamo spreads experts over all of tp {tp} or not at all, not over {}",
                ep.value
            );
            f.found(text, &[ep, &g.tp]).help(format!("`{}: 1` or `{tp}`", ep.name));
        }
        if let Some(node) = r.cluster.gpus_per_node.as_ref().filter(|n| tp * pp > n.value) {
            let text =
                format!("Dynamo engines of {} GPUs do not fit nodes of {}", tp * pp, node.value);
            f.found(text, &[&g.tp, &g.pp, node]).help(format!("tp * pp of at most {}", node.value));
        }
        for key in ["data_parallel_size", "vllm_cfg.data_parallel_size"] {
            if let Some(dp) = r.int(&g.at(key)).filter(|d| d.value != 1) {
                f.found("Dynamo counts its replicas itself", &[&dp])
                    .help(format!("remove `{}`", dp.name));
            }
        }
    }),
    error("MESH-58", "dim-not-divisible", "FP8 blocks do not divide the dims", blocks),
    note("GEN-25", "worth-knowing", "a colocated engine asks for most of the memory", |r, f| {
        let Some(g) = of(r, &[Engine::Vllm]) else { return };
        let path = g.at("vllm_cfg.gpu_memory_utilization");
        if let Some(share) = r.num(&path).filter(|s| s.value > 0.9 && !g.apart() && s.value <= 1.0)
        {
            let text = format!(
                "generation takes {:.0} % of GPUs that training shares",
                share.value * 100.0
            );
            f.found(text, &[&share, &g.colocated])
                .help(format!("`{path}: 0.6` leaves room for what training keeps"));
        }
    }),
];

fn of<'r>(r: &'r Recipe, engines: &[Engine]) -> Option<&'r Generation> {
    let g = r.generation.as_ref()?;
    engines.iter().any(|e| g.is(*e)).then_some(g)
}

/// Blockwise FP8 cuts hidden and intermediate dims in blocks of 128, MXFP8 in blocks of 32.
fn blocks(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = of(r, &[Engine::Vllm]) else { return };
    let Some(precision) = g.precision.as_ref().filter(|p| p.value == "fp8") else { return };
    let Some(model) = r.policy().and_then(|w| w.model.as_ref()) else { return };
    let mx = r.on(&g.at("vllm_cfg.is_mx"));
    let block = if mx { 32 } else { 128 };
    let tp = g.tp.as_ref().map_or(1, |t| t.value).max(1);
    let dims = [
        ("hidden size", Some(model.hidden as i64), 1),
        // Experts are spread, not cut.
        ("feed-forward size", model.ffn.filter(|_| !model.is_moe()).map(|n| n as i64), tp),
    ];
    for (what, size, over) in dims {
        let Some(size) = size else { continue };
        if size % over != 0 || (size / over) % block != 0 {
            let text = format!("{what} {size} over tp {over} is not whole blocks of {block}");
            let fact = Fact::model(what, size, &model.name);
            f.found(text, &[precision, &g.tp, &fact]).help(format!(
                "tp may be {}",
                one_of(
                    &divisors(size / block, 64)
                        .into_iter()
                        .filter(|t| (size / t) % block == 0)
                        .collect::<Vec<_>>()
                )
            ));
        }
    }
}
