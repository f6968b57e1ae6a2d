//! Environments of NeMo Gym, and penalties that only they know.

use crate::recipe::{Algorithm, Engine, Recipe};
use crate::rule::{Findings, Rule, error};

const CANNOT: &str = "gym-cannot";
const NEEDS: &str = "needs-another-setting";
const GYM: &str = "env.should_use_nemo_gym";

/// Rules of NeMo Gym.
pub const RULES: &[Rule] = &[
    error("GEN-08", NEEDS, "NeMo Gym without the async engine", |r, f| {
        let Some(g) =
            r.generation.as_ref().filter(|g| r.on(GYM) && g.is(Engine::Vllm) && r.is_rl())
        else {
            return;
        };
        let path = g.at("vllm_cfg.async_engine");
        if !r.on(&path) {
            f.at("NeMo Gym needs the async engine", &[&path, GYM]).help(format!("`{path}: true`"));
        }
    }),
    error("GEN-09", NEEDS, "NeMo Gym without a server", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|_| r.on(GYM)) else { return };
        let section = match g.engine.as_ref().map(|e| e.value) {
            Some(Engine::Vllm) => "vllm_cfg",
            Some(Engine::Trtllm) => "trtllm_cfg",
            Some(Engine::Megatron) => "mcore_generation_config",
            _ => return,
        };
        let path = g.at(&format!("{section}.expose_http_server"));
        if !r.on(&path) {
            f.at("NeMo Gym asks the engine over HTTP", &[&path, GYM])
                .help(format!("`{path}: true`"));
        }
    }),
    error("GEN-10", CANNOT, "sampling that NeMo Gym steers itself", steered),
    error("GEN-11", NEEDS, "penalties without NeMo Gym", |r, f| {
        for path in r.under("reward_penalties").iter().filter(|p| r.on(p) && !r.on(GYM)) {
            f.at("penalties are for answers of NeMo Gym", &[path, GYM])
                .help(format!("`{path}: false`"));
        }
    }),
    error("GEN-12", NEEDS, "unwanted tokens that are not named", |r, f| {
        let (on, ids) =
            ("reward_penalties.penalize_unwanted_tokens", "reward_penalties.token_ids.unwanted");
        if r.on(on) && r.node(ids).is_none_or(|n| n.items().is_empty()) {
            f.at("no token is said to be unwanted", &[ids, on]).help(format!("`{ids}: [2]`"));
        }
    }),
    error("GEN-13", NEEDS, "half of a think tag", |r, f| {
        let (on, ids) =
            ("reward_penalties.penalize_malformed_think_tag", "reward_penalties.token_ids");
        let (open, close) = (format!("{ids}.think_open"), format!("{ids}.think_close"));
        if r.on(on) && r.has(&open) != r.has(&close) {
            f.at("both think tags are needed, one is given", &[&open, &close])
                .help("give both token ids, or neither");
        }
    }),
    error("GEN-14", NEEDS, "advantages of calls without NeMo Gym", |r, f| {
        for path in OVERWRITES.into_iter().filter(|p| r.has(p) && !r.on(GYM)) {
            f.at("tool calls and thoughts are known to NeMo Gym only", &[path, GYM])
                .help(format!("`{path}: null`"));
        }
    }),
    error("GEN-15", CANNOT, "advantages of calls with a data plane", |r, f| {
        for path in OVERWRITES.into_iter().filter(|p| r.has(p) && r.on("data_plane.enabled")) {
            f.at("advantages are not overwritten with a data plane", &[path, "data_plane.enabled"])
                .help(format!("`{path}: null`"));
        }
    }),
];

const OVERWRITES: [&str; 2] =
    ["grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage"];

fn steered(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = r.generation.as_ref().filter(|_| r.on(GYM)) else { return };
    for name in ["stop_strings", "stop_token_ids"] {
        // The trainer fills in the end token where nothing is given.
        if r.node(&g.at(name)).is_some_and(|n| !n.items().is_empty()) && name == "stop_strings" {
            f.at("NeMo Gym decides where an answer ends", &[&g.at(name), GYM])
                .help(format!("`{}: null`", g.at(name)));
        }
    }
    if let Some(k) = g.top_k.as_ref().filter(|k| k.value > 0) {
        f.found("NeMo Gym takes no top-k", &[k]).help(format!("`{}: null`", k.name));
    }
    let turns = r.section().map(|s| format!("{s}.max_rollout_turns"));
    if let Some(n) =
        turns.and_then(|t| r.int(&t)).filter(|n| n.value != 1 && !r.is(Algorithm::Eval))
    {
        f.found(format!("NeMo Gym counts turns itself, not {}", n.value), &[&n, &r.flag(GYM)])
            .help(format!("`{}: 1`", n.name));
    }
}
