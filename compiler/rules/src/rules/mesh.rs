//! How models are cut over the GPUs of training.

use nrl_base::Severity;

use crate::arithmetic::{divisors, one_of};
use crate::recipe::{Backend, Fact, Recipe, Role, Shown, Version, Worker};
use crate::rule::{Findings, Rule, error, note, warning};

/// Meshes of training.
pub const RULES: &[Rule] = &[
    error("MESH-01", "backend-not-chosen", "both training backends are on", both_backends),
    error("MESH-02", "backend-not-chosen", "no training backend is on", no_backend),
    error(
        "MESH-03, MESH-04, MESH-06, MESH-11",
        "mesh-does-not-fill",
        "the GPUs of training are not a multiple of one copy of the model",
        |r, f| fill(r, f, &[Role::Policy, Role::Teacher, Role::Reward]),
    ),
    error(
        "MESH-54",
        "mesh-does-not-fill",
        "the GPUs of a teacher are not a multiple of one copy of it",
        |r, f| fill(r, f, &[Role::Scorer]),
    ),
    error(
        "MESH-56",
        "mesh-does-not-fill",
        "the GPUs of training are not a multiple of one copy of the critic",
        |r, f| fill(r, f, &[Role::Critic]),
    ),
    error("MESH-05", "mesh-does-not-fill", "the expert mesh does not fill the GPUs", expert_mesh),
    error(
        "MESH-07",
        "mesh-does-not-fill",
        "expert parallel size does not divide the ranks (Automodel)",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.is(Backend::Automodel)) {
                let (Some(gpus), Some(ep)) = (&w.gpus, &w.mesh.ep) else { continue };
                if ep.value > 1 && gpus.value % (ep.value * w.mesh.pp()).max(1) != 0 {
                    let text = format!(
                        "experts over {} ranks do not fill the {} GPUs of the {}",
                        ep.value, gpus.value, w.role
                    );
                    let may = one_of(&divisors(gpus.value, gpus.value));
                    f.found(text, &[ep, gpus]).help(format!("`expert_parallel_size` may be {may}"));
                }
            }
        },
    ),
    error("MESH-08", "mesh-does-not-fill", "replicas do not divide the data parallel size", hsdp),
    error(
        "MESH-09",
        "out-of-range",
        "as many replicas as data parallel ranks: nothing is sharded",
        |r, f| {
            for w in &r.workers {
                let (Some(rep), Some(dp)) = (&w.mesh.dp_replicate, w.dp()) else { continue };
                if rep.value > 1 && rep.value == dp.value {
                    let text = format!("{} replicas leave nothing to shard over", rep.value);
                    f.found(text, &[rep, &dp]).help(format!(
                        "`dp_replicate_size: 1`, or a divisor of {} below it",
                        dp.value
                    ));
                }
            }
        },
    ),
    error("MESH-10", "backend-cannot", "replicas need the Automodel worker", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Dtensor)) {
            if let Some(rep) = w.mesh.dp_replicate.as_ref().filter(|rep| rep.value > 1) {
                f.found("the first DTensor worker has no replicas", &[rep, &w.backend])
                    .help(format!("`{}._v2: true`", w.section));
            }
        }
    }),
    error("MESH-12", "heads-not-divisible", "attention heads cannot be split over tp", heads),
    error("MESH-13", "heads-not-divisible", "KV heads cannot be split over tp (DTensor)", kv_torch),
    error("MESH-14", "heads-not-divisible", "KV heads fit tp in no way (Megatron)", kv_megatron),
    error("MESH-20", "model-has-no-experts", "experts of a dense model are split", |r, f| {
        for w in &r.workers {
            let (Some(ep), Some(model)) = (&w.mesh.ep, &w.model) else { continue };
            if ep.value > 1 && !model.is_moe() {
                let text = format!("{} has no experts to split over {}", model.name, ep.value);
                f.found(text, &[ep]).help(format!("`{}: 1`", ep.name));
            }
        }
    }),
    error("MESH-21", "experts-not-divisible", "experts cannot be shared evenly", |r, f| {
        for w in &r.workers {
            let Some(experts) = w.model.as_ref().and_then(|m| m.experts) else { continue };
            let (Some(ep), number) = (&w.mesh.ep, experts.number as i64) else { continue };
            if ep.value > 1 && number % ep.value != 0 {
                let text =
                    format!("{number} experts cannot be shared evenly by {} ranks", ep.value);
                let name = w.model.as_ref().map_or("", |m| &m.name);
                f.found(text, &[ep, &Fact::model("experts", number, name)]).help(format!(
                    "expert parallel size may be {}",
                    one_of(&divisors(number, 512))
                ));
            }
        }
    }),
    note("MESH-22", "setting-has-no-effect", "sequence parallelism without tp", |r, f| {
        for w in &r.workers {
            if let Some(sp) = w.mesh.sp.as_ref().filter(|sp| sp.value && w.mesh.tp() == 1) {
                f.found(
                    "sequence parallelism does nothing without tensor parallelism",
                    &[sp, &w.mesh.tp],
                )
                .help("leave it out");
            }
        }
    }),
    error(
        "MESH-23",
        "sequence-parallel-needed",
        "experts with tp need sequence parallelism",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
                let moe = w.model.as_ref().map_or(w.mesh.ep() > 1, |m| m.is_moe());
                if moe && w.mesh.tp() > 1 && !w.mesh.sp() {
                    let text =
                        "a model with experts and tensor parallelism needs sequence parallelism";
                    f.found(text, &[&w.mesh.tp, &w.mesh.sp, &w.mesh.ep])
                        .help(format!("`{}: true`", w.cfg("sequence_parallel")));
                }
            }
        },
    ),
    error(
        "MESH-25",
        "heads-not-divisible",
        "gated-delta heads cannot be split over tp and cp",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
                let Some(model) = &w.model else { continue };
                let Some((keys, values)) = model.linear_heads else { continue };
                let over = w.mesh.tp() * w.mesh.cp();
                for (what, heads) in [("key", keys as i64), ("value", values as i64)] {
                    if over > 1 && heads % over != 0 {
                        let text =
                            format!("{heads} gated-delta {what} heads cannot be split {over} ways");
                        let fact =
                            Fact::model(format!("gated-delta {what} heads"), heads, &model.name);
                        f.found(text, &[&w.mesh.tp, &w.mesh.cp, &fact])
                            .help(format!("tp * cp may be {}", one_of(&divisors(heads, 64))));
                    }
                }
            }
        },
    ),
    error("MESH-41", "sequence-parallel-needed", "inference_optimized with tp needs it", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let path = w.cfg("transformer_impl");
            if r.says(&path, "inference_optimized") && w.mesh.tp() > 1 && !w.mesh.sp() {
                f.at(
                    "`inference_optimized` with tensor parallelism needs sequence parallelism",
                    &[&path, &w.cfg("sequence_parallel"), &w.cfg("tensor_model_parallel_size")],
                )
                .help(format!("`{}: true`", w.cfg("sequence_parallel")));
            }
        }
    }),
    error("MESH-59", "dim-not-divisible", "the vocabulary cannot be split over tp", |r, f| {
        let Some(g) = r.generation.as_ref().filter(|g| g.filters()) else { return };
        for w in r.workers.iter().filter(|w| w.role == Role::Policy) {
            let Some(model) = &w.model else { continue };
            let (tp, vocab) = (w.mesh.tp(), model.vocab as i64);
            // Megatron pads the vocabulary to a multiple of tp by itself.
            if tp > 1 && vocab % tp != 0 && w.is_torch() {
                let text = format!(
                    "top-p and top-k in training need a vocabulary of {vocab} that tp divides"
                );
                let fact = Fact::model("vocabulary", vocab, &model.name);
                f.found(text, &[&w.mesh.tp, &g.top_p, &g.top_k, &fact])
                    .help(format!("tp may be {}", one_of(&divisors(vocab, 16))));
            }
        }
    }),
    error("MESH-60", "dim-not-divisible", "the draft model cannot be split over tp", |r, f| {
        for w in r.workers.iter().filter(|w| r.on(&w.at("draft.enabled"))) {
            let name = r.text(&w.at("draft.model_name"));
            let Some(model) = name.as_ref().and_then(|n| nrl_facts::model(&n.value)) else {
                continue;
            };
            let (tp, heads) = (w.mesh.tp(), model.heads as i64);
            if tp > 1 && heads % tp != 0 {
                let text = format!("{heads} heads of the draft model cannot be split over tp {tp}");
                f.found(
                    text,
                    &[&w.mesh.tp, &name, &Fact::model("attention heads", heads, &model.name)],
                )
                .help(format!("tp may be {}", one_of(&divisors(heads, 64))));
            }
        }
    }),
    warning("MESH-61", "group-crosses-nodes", "a tensor parallel group spans nodes", |r, f| {
        let Some(node) = wide_node(r) else { return };
        for w in &r.workers {
            if let Some(tp) = w.mesh.tp.as_ref().filter(|tp| tp.value > node.value) {
                let text = format!(
                    "each tensor parallel group of {} spans nodes of {} GPUs",
                    tp.value, node.value
                );
                f.found(text, &[tp, node]).help(format!(
                    "tp {} with more pipeline stages stays inside a node",
                    node.value
                ));
            }
        }
    }),
    note("MESH-62", "group-crosses-nodes", "experts exchange tokens across nodes", |r, f| {
        let Some(node) = wide_node(r) else { return };
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let fast = r.says(&w.cfg("moe_token_dispatcher_type"), "flex")
                || r.on(&w.cfg("moe_enable_deepep"));
            if let Some(ep) = w.mesh.ep.as_ref().filter(|ep| ep.value > node.value && !fast) {
                let text = format!(
                    "experts over {} ranks exchange tokens across nodes of {} GPUs, without a dispatcher made for it",
                    ep.value, node.value
                );
                f.found(text, &[ep, node])
                    .help("`moe_token_dispatcher_type: flex` with DeepEP or HybridEP");
            }
        }
    }),
];

/// GPUs of a node, where a node is as far as the fast links go. Nodes of four GPUs are parts of racks
/// whose links go further.
fn wide_node(r: &Recipe) -> Option<&Fact<i64>> {
    r.cluster.gpus_per_node.as_ref().filter(|n| n.value >= 8)
}

fn both_backends(r: &Recipe, f: &mut Findings<'_>) {
    for w in &r.workers {
        let (one, two) = (w.at("megatron_cfg.enabled"), w.at("dtensor_cfg.enabled"));
        if r.on(&one) && r.on(&two) {
            let found = f.at(format!("the {} has two training backends", w.role), &[&one, &two]);
            match r.version {
                Version::V0_3 => found
                    .severity(Severity::Warning)
                    .note("NeMo RL 0.3 takes Megatron; later versions refuse both")
                    .help(format!("`{two}: false`")),
                Version::Newest => {
                    found.help(format!("`{two}: false` to train with Megatron, or `{one}: false`"))
                }
            };
        }
    }
}

fn no_backend(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| w.role != Role::Scorer && w.role != Role::Reward) {
        let (one, two) = (w.at("megatron_cfg.enabled"), w.at("dtensor_cfg.enabled"));
        if r.node(&w.path).is_some() && w.backend.is_none() && !r.on(&one) && !r.on(&two) {
            f.at(format!("the {} has no training backend", w.role), &[&two, &one])
                .help(format!("`{two}: true`, or `{one}: true`"));
        }
    }
}

fn fill(r: &Recipe, f: &mut Findings<'_>, roles: &[Role]) {
    for w in r.workers.iter().filter(|w| roles.contains(&w.role)) {
        let Some(gpus) = w.gpus.as_ref().filter(|g| g.value > 0) else { continue };
        let (copy, m) = (w.mesh.copy(), &w.mesh);
        if copy < 1 || gpus.value % copy == 0 {
            continue;
        }
        let what = if gpus.value < copy { "more than" } else { "not a divisor of" };
        let text = format!(
            "one copy of the {} needs {} = {copy} GPUs, {what} the {} that it has",
            w.role,
            m.product(),
            gpus.value
        );
        let size = |s: &Option<Fact<i64>>| s.clone().filter(|s| s.value != 1);
        let (tp, cp, pp) = (size(&m.tp), size(&m.cp), size(&m.pp));
        let facts: [&dyn Shown; 4] = [&tp, &cp, &pp, gpus];
        f.found(text, &facts).help(fill_help(r, w, gpus.value));
    }
}

/// Values of one size that fill the GPUs, and numbers of nodes that one copy fills.
fn fill_help(r: &Recipe, w: &Worker, gpus: i64) -> String {
    let m = &w.mesh;
    let mut ways = vec![];
    for (name, size) in [("tp", m.tp()), ("pp", m.pp()), ("cp", m.cp())] {
        let rest = m.copy() / size.max(1);
        if size > 1 && rest > 0 && gpus % rest == 0 {
            let fits = divisors(gpus / rest, gpus / rest);
            ways.push(format!("{name} may be {}", one_of(&fits)));
        }
    }
    if let Some(node) = r.cluster.gpus_per_node.as_ref().filter(|n| n.value > 0) {
        let nodes = (1..=4096).find(|n| (n * node.value) % m.copy() == 0);
        ways.extend(nodes.map(|n| format!("or train on {n} nodes (or a multiple)")));
    }
    ways.join("; ")
}

fn expert_mesh(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
        let (Some(gpus), Some(ep)) = (&w.gpus, &w.mesh.ep) else { continue };
        let (pp, etp) = (w.mesh.pp(), w.mesh.etp());
        let need = pp.saturating_mul(ep.value).saturating_mul(etp);
        if need < 1 || gpus.value < 1 || gpus.value % need == 0 || w.dp().is_none() {
            continue;
        }
        let text = format!(
            "the expert mesh needs pp {pp} * ep {} * etp {etp} = {need} ranks, the {} has {}",
            ep.value, w.role, gpus.value
        );
        let fits: Vec<i64> = divisors(ep.value, ep.value)
            .into_iter()
            .filter(|ep| gpus.value % pp.saturating_mul(*ep).saturating_mul(etp).max(1) == 0)
            .collect();
        let help = match fits.last() {
            Some(best) => format!("`{}: {best}`", ep.name),
            None => format!("pp * ep * etp must divide {}", gpus.value),
        };
        f.found(text, &[ep, &w.mesh.etp, &w.mesh.pp, gpus])
            .note(format!("the dense mesh is fine: {}", w.mesh.product()))
            .help(help);
    }
}

fn hsdp(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| w.is(Backend::Automodel)) {
        let (Some(rep), Some(dp)) = (&w.mesh.dp_replicate, w.dp()) else { continue };
        if rep.value <= 1 {
            continue;
        }
        // The driver divides by ep too, the library that builds the mesh does not.
        let driver = dp.value / w.mesh.ep().max(1);
        if dp.value % rep.value != 0 || driver % rep.value != 0 {
            let text = format!("{} replicas do not divide the data parallel size", rep.value);
            f.found(text, &[rep, &dp, &w.mesh.ep])
                .note(format!("the driver counts dp as {driver}, the library as {}", dp.value))
                .help(format!("`dp_replicate_size` may be {}", one_of(&divisors(driver, driver))));
        }
    }
}

fn heads(r: &Recipe, f: &mut Findings<'_>) {
    for w in &r.workers {
        let (Some(tp), Some(model)) = (&w.mesh.tp, &w.model) else { continue };
        let heads = model.heads as i64;
        if tp.value > 1 && heads % tp.value != 0 {
            let text = format!("{heads} attention heads cannot be split over tp {}", tp.value);
            let kv = model.kv_heads.max(1) as i64;
            // Megatron copies the heads of keys and values where tp is a multiple of them.
            let fits = |tp: i64| kv % tp == 0 || w.is(Backend::Megatron) && tp % kv == 0;
            let help = legal(r, heads, |tp| heads % tp == 0 && fits(tp));
            f.found(text, &[tp, &Fact::model("attention heads", heads, &model.name)]).help(help);
        }
    }
}

/// The legal tensor parallel sizes, and those inside a node.
pub fn legal(r: &Recipe, heads: i64, fits: impl Fn(i64) -> bool) -> String {
    let all: Vec<i64> = divisors(heads, heads).into_iter().filter(|tp| fits(*tp)).collect();
    let node = r.cluster.gpus_per_node.as_ref().map(|n| n.value).filter(|n| *n > 0);
    let inside: Vec<i64> =
        all.iter().copied().filter(|tp| node.is_some_and(|n| n % tp == 0)).collect();
    let may = format!("tp may be {}", one_of(&all));
    if inside.is_empty() || inside.len() == all.len() {
        return may;
    }
    format!("{may}; of these {} fit {} GPUs per node", one_of(&inside), node.unwrap_or(0))
}

fn kv_torch(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| w.is_torch()) {
        let (Some(tp), Some(model)) = (&w.mesh.tp, &w.model) else { continue };
        let (heads, kv) = (model.heads as i64, model.kv_heads as i64);
        let whole = heads % tp.value.max(1) == 0;
        if tp.value > 1 && whole && kv % tp.value != 0 && !model.latent_attention {
            let text = format!("{kv} KV heads cannot be split over tp {} by DTensor", tp.value);
            f.found(text, &[tp, &Fact::model("KV heads", kv, &model.name)])
                .note("Megatron may keep copies of KV heads, DTensor may not")
                .help(legal(r, heads, |tp| kv % tp == 0));
        }
    }
}

fn kv_megatron(r: &Recipe, f: &mut Findings<'_>) {
    for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
        let (Some(tp), Some(model)) = (&w.mesh.tp, &w.model) else { continue };
        let (heads, kv) = (model.heads as i64, (model.kv_heads as i64).max(1));
        let size = tp.value.max(1);
        let fits = kv % size == 0 || size % kv == 0;
        if heads % size == 0 && !fits && !model.latent_attention {
            let text =
                format!("{kv} KV heads can neither be split over tp {size} nor copied evenly");
            f.found(text, &[tp, &Fact::model("KV heads", kv, &model.name)]).help(legal(
                r,
                heads,
                |tp| kv % tp == 0 || tp % kv == 0,
            ));
        }
    }
}
