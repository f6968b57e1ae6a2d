//! Pipeline stages, context parallelism and the generation mesh that Megatron builds for itself.

use crate::arithmetic::{divisors, multiples, one_of};
use crate::recipe::{Backend, Engine, Fact, Recipe, Role, Worker};
use crate::rule::{Findings, Rule, error};

/// Rules of pipelines.
pub const RULES: &[Rule] = &[
    error("MESH-15", "layers-not-divisible", "layers do not split evenly over stages", |r, f| {
        for (w, pp, layers, name) in staged(r) {
            let keys = [
                "num_layers_in_first_pipeline_stage",
                "num_layers_in_last_pipeline_stage",
                "pipeline_model_parallel_layout",
            ];
            if keys.iter().any(|key| r.has(&w.cfg(key))) {
                continue;
            }
            let embedding = r.on(&w.cfg("account_for_embedding_in_pipeline_split"));
            let loss = r.on(&w.cfg("account_for_loss_in_pipeline_split"));
            let counted = layers + i64::from(embedding) + i64::from(loss);
            if counted % pp.value != 0 {
                let rest = counted % pp.value;
                let text = format!(
                    "{layers} layers do not split evenly over pp = {} (remainder {rest})",
                    pp.value
                );
                f.found(text, &[&pp, &Fact::model("layers", layers, &name)])
                    .help(stages_help(layers, pp.value));
            }
        }
    }),
    error(
        "MESH-16",
        "layers-not-divisible",
        "first or last stage leave a rest that does not split",
        uneven,
    ),
    error("MESH-17", "options-exclude-each-other", "stage sizes given in two ways", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let sizes = ["num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"];
            let Some(size) = sizes.iter().map(|s| w.cfg(s)).find(|s| r.has(s)) else { continue };
            for other in [
                "account_for_embedding_in_pipeline_split",
                "account_for_loss_in_pipeline_split",
                "pipeline_model_parallel_layout",
            ] {
                let other = w.cfg(other);
                if r.has(&other) && !r.off(&other) {
                    f.at("the layers of pipeline stages are given in two ways", &[&size, &other])
                        .help(format!("keep one: `{size}: null` or `{other}: null`"));
                }
            }
        }
    }),
    error("MESH-18", "layers-not-divisible", "pieces of stages do not split the layers", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let Some(vpp) = w.mesh.vpp.as_ref().filter(|vpp| vpp.value > 1) else { continue };
            let pp = w.mesh.pp();
            if pp == 1 {
                f.found("a pipeline of one stage has no pieces", &[vpp, &w.mesh.pp])
                    .help(format!("`{}: null`", vpp.name));
                continue;
            }
            let Some(model) = &w.model else { continue };
            let layers = model.layers as i64;
            let layout = r.has(&w.cfg("pipeline_model_parallel_layout"))
                || r.has(&w.cfg("num_layers_in_first_pipeline_stage"))
                || r.has(&w.cfg("num_layers_in_last_pipeline_stage"));
            if !layout && pp > 0 && layers % (pp * vpp.value) != 0 && layers % pp == 0 {
                let text = format!(
                    "{layers} layers do not split over {pp} stages of {} pieces",
                    vpp.value
                );
                let fits = divisors(layers / pp, layers / pp);
                f.found(text, &[vpp, &w.mesh.pp, &Fact::model("layers", layers, &model.name)])
                    .help(format!("pieces per stage may be {}", one_of(&fits)));
            }
        }
    }),
    error("MESH-19", "missing-field", "a pipeline needs a dtype for what stages send", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.mesh.pp() > 1) {
            let path = w.cfg("pipeline_dtype");
            if !r.has(&path) && w.role != Role::Scorer {
                f.at(
                    "a pipeline needs the dtype of what its stages send each other",
                    &[&path, &w.cfg("pipeline_model_parallel_size")],
                )
                .help(format!("`{path}: ${{policy.precision}}`"));
            }
        }
    }),
    error(
        "MESH-24",
        "bad-padding-multiple",
        "the longest sequence does not split over cp",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.mesh.cp() > 1) {
                let Some(max) = &w.max_length else { continue };
                let unit = 2 * w.mesh.cp();
                if max.value % unit != 0 {
                    let text = format!(
                        "sequences of {} tokens do not split over cp {}: a multiple of {unit} is needed",
                        max.value,
                        w.mesh.cp()
                    );
                    f.found(text, &[max, &w.mesh.cp]).help(format!(
                        "`{}: {}`",
                        max.name,
                        one_of(&multiples(max.value, unit))
                    ));
                }
            }
        },
    ),
    error(
        "MESH-39",
        "mesh-does-not-fill",
        "the mesh of Megatron generation does not fill",
        |r, f| {
            let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Megatron)) else { return };
            let (Some(gpus), Some(tp), Some(pp)) = (&g.gpus, &g.tp, &g.pp) else { return };
            let copy = tp.value * pp.value;
            if copy > 0 && gpus.value > 0 && gpus.value % copy != 0 {
                let text = format!(
                    "one generating copy needs tp {} * pp {} = {copy} GPUs; {} do not hold whole copies",
                    tp.value, pp.value, gpus.value
                );
                f.found(text, &[tp, pp, gpus])
                    .help(format!("tp * pp may be {}", one_of(&divisors(gpus.value, gpus.value))));
                return;
            }
            if let Some(ep) = g.ep.as_ref().filter(|ep| ep.value > 1) {
                let need = (ep.value * pp.value).max(1);
                if gpus.value % need != 0 {
                    let text = format!(
                        "the expert mesh of generation needs pp {} * ep {} = {need} ranks, it has {}",
                        pp.value, ep.value, gpus.value
                    );
                    f.found(text, &[ep, pp, gpus])
                        .help(format!("ep * pp must divide {}", gpus.value));
                }
            }
        },
    ),
    error(
        "MESH-40, LORA-08",
        "engine-cannot",
        "another layout for colocated Megatron generation",
        reshard,
    ),
];

/// Megatron workers with several stages whose layers are known.
fn staged(r: &Recipe) -> Vec<(&Worker, Fact<i64>, i64, String)> {
    let known = |w: &'_ Worker| {
        let pp = w.mesh.pp.clone().filter(|pp| pp.value > 1)?;
        let model = w.model.as_ref()?;
        Some((pp, model.layers as i64, model.name.clone()))
    };
    let megatron = r.workers.iter().filter(|w| w.is(Backend::Megatron));
    megatron.filter_map(|w| known(w).map(|(pp, layers, name)| (w, pp, layers, name))).collect()
}

/// `pp may be 1, 2 or 4; or first 8, last 7`.
fn stages_help(layers: i64, pp: i64) -> String {
    let mut help = format!("pp may be {}", one_of(&divisors(layers, layers)));
    if pp > 2 {
        let each = (layers + pp - 1) / pp;
        let ends = layers - each * (pp - 2);
        if ends >= 2 {
            let (first, last) = ((ends + 1) / 2, ends / 2);
            help.push_str(&format!(
                "; or `num_layers_in_first_pipeline_stage: {first}` and `num_layers_in_last_pipeline_stage: {last}` with {each} in each stage between"
            ));
        }
    } else if pp == 2 {
        let (first, last) = ((layers + 1) / 2, layers / 2);
        help.push_str(&format!(
            "; or `num_layers_in_first_pipeline_stage: {first}` and `num_layers_in_last_pipeline_stage: {last}`"
        ));
    }
    help
}

fn uneven(r: &Recipe, f: &mut Findings<'_>) {
    for (w, pp, layers, name) in staged(r) {
        let first = r.int(&w.cfg("num_layers_in_first_pipeline_stage"));
        let last = r.int(&w.cfg("num_layers_in_last_pipeline_stage"));
        if first.is_none() && last.is_none() {
            continue;
        }
        let given: Vec<&Fact<i64>> = first.iter().chain(last.iter()).collect();
        if let Some(empty) = given.iter().find(|s| s.value <= 0) {
            f.found("a pipeline stage needs at least one layer", &[*empty])
                .help(format!("`{}: 1` or more, or null", empty.name));
            continue;
        }
        let left = layers - given.iter().map(|s| s.value).sum::<i64>();
        let stages = pp.value - given.len() as i64;
        let pieces = stages * w.mesh.vpp.as_ref().map_or(1, |v| v.value.max(1));
        let fits = if pieces == 0 { left == 0 } else { left >= 0 && left % pieces == 0 };
        if !fits {
            let text = format!(
                "{left} of {layers} layers are left for {stages} stages between: they do not split evenly"
            );
            let model = Fact::model("layers", layers, &name);
            f.found(text, &[&first, &last, &pp, &model]).help(stages_help(layers, pp.value));
        }
    }
}

fn reshard(r: &Recipe, f: &mut Findings<'_>) {
    let Some(g) = r.generation.as_ref().filter(|g| g.is(Engine::Megatron) && !g.apart()) else {
        return;
    };
    let Some(w) = r.policy().filter(|w| w.is(Backend::Megatron)) else { return };
    let differs =
        |own: &Option<Fact<i64>>, train: i64| own.as_ref().is_some_and(|o| o.value != train);
    let (tp, pp) = (differs(&g.tp, w.mesh.tp()), differs(&g.pp, w.mesh.pp()));
    if !(tp || pp || differs(&g.ep, w.mesh.ep())) {
        return;
    }
    let why = "colocated Megatron generation with a layout of its own cannot be combined with";
    if let Some(vpp) = w.mesh.vpp.as_ref().filter(|v| v.value > 1) {
        f.found(format!("{why} pieces of pipeline stages"), &[vpp, &g.tp, &g.pp, &g.ep])
            .help(format!("`{}: null`, or the layout of training for generation", vpp.name));
    }
    for (key, what) in [("peft.enabled", "adapters"), ("use_torch_fsdp2", "FSDP2")] {
        if r.on(&w.cfg(key)) {
            f.at(format!("{why} {what}"), &[&w.cfg(key), &g.at("mcore_generation_config")])
                .help("give generation the layout of training");
        }
    }
    if r.on(&w.at("draft.enabled")) {
        f.at(format!("{why} a draft model"), &[&w.at("draft.enabled")])
            .help("give generation the layout of training");
    }
}
