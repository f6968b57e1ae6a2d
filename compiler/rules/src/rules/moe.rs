//! Mixtures of experts in Megatron and Automodel.

use crate::arithmetic::{divisors, one_of};
use crate::recipe::{Backend, Fact, Recipe, Role, Worker};
use crate::rule::{Findings, Rule, error, note};

const CODE: &str = "moe-options";

/// Rules of experts.
pub const RULES: &[Rule] = &[
    error("MOE-01", CODE, "DeepEP with another dispatcher", |r, f| {
        for w in moes(r) {
            let (on, kind) = (w.cfg("moe_enable_deepep"), w.cfg("moe_token_dispatcher_type"));
            if r.on(&on) && !r.says(&kind, "flex") {
                f.at("DeepEP needs the dispatcher `flex`", &[&kind, &on])
                    .help(format!("`{kind}: flex`, or `{on}: false`"));
            }
        }
    }),
    error("MOE-02", CODE, "two backends of one dispatcher", |r, f| {
        for w in moes(r) {
            let (on, kind) = (w.cfg("moe_enable_deepep"), w.cfg("moe_flex_dispatcher_backend"));
            if r.on(&on) && r.says(&kind, "hybridep") {
                f.at("tokens go by DeepEP or by HybridEP", &[&on, &kind])
                    .help(format!("`{on}: false`"));
            }
        }
    }),
    error("MOE-03", CODE, "overlapped shared experts", |r, f| {
        for w in moes(r) {
            let (on, kind) =
                (w.cfg("moe_shared_expert_overlap"), w.cfg("moe_token_dispatcher_type"));
            if !r.on(&on) {
                continue;
            }
            if r.says(&kind, "allgather") {
                f.at(
                    "shared experts do not overlap with the dispatcher `allgather`",
                    &[&on, &kind],
                )
                .help(format!("`{kind}: alltoall`"));
            }
            if r.on(&w.cfg("moe_enable_deepep")) {
                f.at(
                    "shared experts do not overlap with DeepEP",
                    &[&on, &w.cfg("moe_enable_deepep")],
                )
                .help(format!("`{on}: false`"));
            }
        }
    }),
    error("MOE-04", CODE, "DeepEP with padded capacity", |r, f| {
        for w in moes(r) {
            let pad = own(r, w, "moe_pad_expert_input_to_capacity");
            if r.on(&pad) && r.on(&w.cfg("moe_enable_deepep")) {
                f.at("DeepEP does not pad to a capacity", &[&pad, &w.cfg("moe_enable_deepep")])
                    .help(format!("`{pad}: false`"));
            }
        }
    }),
    error("MOE-05", CODE, "a backend of the dispatcher `flex` without it", |r, f| {
        for w in moes(r) {
            let (kind, back) =
                (w.cfg("moe_token_dispatcher_type"), w.cfg("moe_flex_dispatcher_backend"));
            if r.says(&back, "ncclep") && !r.says(&kind, "flex") {
                f.at("this is a backend of the dispatcher `flex`", &[&back, &kind])
                    .help(format!("`{kind}: flex`"));
            }
        }
    }),
    error("MOE-06", CODE, "capacities", |r, f| {
        for w in moes(r) {
            let (pad, factor) = (
                own(r, w, "moe_pad_expert_input_to_capacity"),
                own(r, w, "moe_expert_capacity_factor"),
            );
            if r.on(&pad) && !r.has(&factor) {
                f.at("padding to a capacity needs a capacity", &[&factor, &pad])
                    .help(format!("`{factor}: 1.0`"));
            }
            let kind = w.cfg("moe_router_load_balancing_type");
            let may = ["aux_loss", "seq_aux_loss", "global_aux_loss", "none"];
            if r.has(&factor) && r.text(&kind).is_some_and(|k| !may.contains(&k.value.as_str())) {
                f.at("experts have no capacity with this balancing", &[&factor, &kind])
                    .help(format!("`{kind}: aux_loss`"));
            }
        }
    }),
    error("MOE-07", "experts-not-divisible", "groups of experts", |r, f| {
        for w in moes(r) {
            let (groups, top) =
                (own(r, w, "moe_router_num_groups"), own(r, w, "moe_router_group_topk"));
            let (n, k) = (r.int(&groups), r.int(&top));
            if let Some(k) = &k
                && n.is_none()
            {
                f.found(format!("the best {} groups of no groups", k.value), &[k])
                    .help(format!("set `{groups}`, or `{top}: null`"));
            }
            if let (Some(n), Some(k)) = (&n, &k)
                && k.value > n.value
            {
                f.found(format!("the best {} of {} groups", k.value, n.value), &[k, n])
                    .help(format!("`{top}: {}` or less", n.value));
            }
            let experts = w.model.as_ref().and_then(|m| m.experts).map(|e| e.number as i64);
            if let (Some(n), Some(experts)) = (&n, experts)
                && (n.value < 1 || experts % n.value != 0)
            {
                let name = w.model.as_ref().map_or("", |m| &m.name);
                f.found(
                    format!("{experts} experts do not form {} groups", n.value),
                    &[n, &Fact::model("experts", experts, name)],
                )
                .help(format!("`{groups}` may be {}", one_of(&divisors(experts, 64))));
            }
        }
    }),
    error("MOE-08", CODE, "coefficients of balancing", |r, f| {
        for w in moes(r) {
            let (kinds, weights) =
                (own(r, w, "moe_router_load_balancing_type"), own(r, w, "moe_aux_loss_coeff"));
            let count = |p: &str| r.node(p).map(|n| n.items().len()).filter(|n| *n > 0);
            if let (Some(a), Some(b)) = (count(&kinds), count(&weights))
                && a != b
            {
                f.at(format!("{a} kinds of balancing and {b} weights"), &[&weights, &kinds])
                    .help("one weight for each kind");
            }
        }
    }),
    error("MOE-09", CODE, "one expert and a softmax after the choice", |r, f| {
        for w in moes(r) {
            let (top, pre) = (own(r, w, "moe_router_topk"), own(r, w, "moe_router_pre_softmax"));
            let one = r.int(&top).is_some_and(|n| n.value == 1)
                || w.model.as_ref().and_then(|m| m.experts).is_some_and(|e| e.top_k == 1);
            let softmax = r
                .text(&own(r, w, "moe_router_score_function"))
                .is_none_or(|s| s.value == "softmax");
            if one && softmax && r.off(&pre) {
                f.at("the weight of a single expert would always be 1", &[&pre])
                    .help(format!("`{pre}: true`"));
            }
        }
    }),
    error("MOE-10", CODE, "biased experts with another score", |r, f| {
        for w in moes(r) {
            let (bias, score) = (
                w.cfg("model_overrides.moe_router_enable_expert_bias"),
                own(r, w, "moe_router_score_function"),
            );
            if r.on(&bias)
                && r.text(&score).is_some_and(|s| s.value != "sigmoid" && s.value != "sqrtsoftplus")
            {
                f.at("biases of experts need a sigmoid", &[&bias, &score])
                    .help(format!("`{score}: sigmoid`"));
            }
        }
    }),
    error("MOE-11", CODE, "biases in cut experts", |r, f| {
        for w in moes(r) {
            let path = w.cfg("model_overrides.add_bias_linear");
            if let Some(etp) = w.mesh.etp.as_ref().filter(|e| e.value > 1 && r.on(&path)) {
                f.found("experts with biases are not cut", &[etp, &r.flag(&path)])
                    .help(format!("`{}: 1`", etp.name));
            }
        }
    }),
    error("MOE-21", "not-a-choice", "unknown dispatcher", |r, f| {
        for w in moes(r) {
            f.choice(&w.cfg("moe_token_dispatcher_type"), &["alltoall", "allgather", "flex"]);
            f.choice(&w.cfg("moe_router_dtype"), &["fp32", "fp64"]);
        }
    }),
    note("MOE-13", "worth-knowing", "variables of HybridEP", |r, f| {
        for w in moes(r) {
            let path = w.cfg("moe_flex_dispatcher_backend");
            let ep = w.mesh.ep();
            if r.says(&path, "hybridep") && ep > 1 {
                let text = format!(
                    "HybridEP takes domains of {} ranks, and links across nodes if there are more than 4",
                    ep.min(64)
                );
                f.found(text, &[&r.text(&path), &w.mesh.ep])
                    .help("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN and USE_MNNVL say otherwise");
            }
        }
    }),
    note("MOE-14", "setting-has-no-effect", "experts of a dense model", |r, f| {
        for w in r
            .workers
            .iter()
            .filter(|w| w.is(Backend::Megatron) && w.model.as_ref().is_some_and(|m| !m.is_moe()))
        {
            for name in [
                "moe_enable_deepep",
                "moe_shared_expert_overlap",
                "moe_grouped_gemm",
                "moe_per_layer_logging",
            ] {
                if r.on(&w.cfg(name)) {
                    let model = w.model.as_ref().map_or("", |m| &m.name);
                    f.at(format!("{model} has no experts"), &[&w.cfg(name)])
                        .help(format!("remove `{}`", w.cfg(name)));
                }
            }
        }
    }),
    note("MOE-15", CODE, "a trained router without balance", |r, f| {
        for w in moes(r).filter(|w| w.role == Role::Policy && r.is_rl()) {
            let path = w.cfg("freeze_moe_router");
            if w.model.as_ref().is_some_and(|m| m.is_moe())
                && r.off(&path)
                && r.says(&w.cfg("moe_router_load_balancing_type"), "none")
                && r.num(&w.cfg("moe_router_bias_update_rate")).is_some_and(|n| n.value == 0.0)
                && !r.on("policy.router_replay.enabled")
            {
                f.at(
                    "the router is trained and nothing balances it",
                    &[&path, &w.cfg("moe_router_load_balancing_type")],
                )
                .help(format!("`{path}: true`"));
            }
        }
    }),
    note("MOE-16", "worth-knowing", "all experts on every rank", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Automodel) && w.role == Role::Policy) {
            let many = w.gpus.as_ref().is_some_and(|g| g.value > 1);
            if w.model.as_ref().is_some_and(|m| m.is_moe()) && w.mesh.ep.is_none() && many {
                f.at(
                    "every rank gathers all experts of a layer",
                    &[&w.cfg("expert_parallel_size")],
                )
                .help(format!("`{}: 8`", w.cfg("expert_parallel_size")));
            }
        }
    }),
    note("MOE-17", "renamed-setting", "the old name of a dispatcher", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Automodel)) {
            let path = w.cfg("automodel_kwargs.backend.enable_deepep");
            if r.has(&path) {
                f.at("`enable_deepep` is an old name", &[&path]).help("`dispatcher: deepep`");
            }
        }
    }),
    error("MOE-20", "refit-cannot", "experts that move with parts of weights", eplb),
];

fn moes(r: &Recipe) -> impl Iterator<Item = &Worker> {
    // Dense models ignore settings of experts.
    let dense = |w: &&Worker| w.model.as_ref().is_some_and(|m| !m.is_moe());
    r.workers.iter().filter(|w| w.is(Backend::Megatron)).filter(move |w| !dense(w))
}

/// Where a setting of the model is: its own place, or among the overrides.
fn own(r: &Recipe, w: &Worker, name: &str) -> String {
    let direct = w.cfg(name);
    if r.has(&direct) { direct } else { w.cfg(&format!("model_overrides.{name}")) }
}

fn eplb(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = &r.generation else { return };
    let (path, way) = (g.at("vllm_kwargs.enable_eplb"), g.at("refit_transport"));
    if r.on(&path) && r.says(&way, "nixl") && r.on(&g.at("refit_cfg.nixl.shard_expert_weights")) {
        f.at("experts that move cannot be sent in parts", &[&path, &way])
            .help(format!("`{path}: false`"));
    }
}
