//! Adapters.

use crate::recipe::{Backend, Recipe, Role};
use crate::rule::{Findings, Rule, error, warning};

const CODE: &str = "lora-options";

/// Rules of adapters.
pub const RULES: &[Rule] = &[
    error("LORA-01, BACK-02", "backend-cannot", "adapters on the first DTensor worker", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Dtensor) && w.adapts()) {
            f.found("the first DTensor worker trains no adapters", &[&w.lora, &w.backend])
                .help(format!("`{}: true`", w.cfg("_v2")));
        }
    }),
    error("LORA-02", "backend-cannot", "adapters by Triton with tensor parallelism", |r, f| {
        for w in
            r.workers.iter().filter(|w| w.is(Backend::Automodel) && w.adapts() && w.mesh.tp() > 1)
        {
            let path = w.cfg("lora_cfg.use_triton");
            if r.on(&path) {
                f.found(
                    "Triton's kernels for adapters do not go with tensor parallelism",
                    &[&r.flag(&path), &w.mesh.tp],
                )
                .help(format!("`{path}: false`"));
            }
        }
    }),
    error("LORA-03", "needs-another-setting", "adapters without size", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron) && w.adapts()) {
            for name in ["peft.dim", "peft.alpha"] {
                if !r.has(&w.cfg(name)) {
                    f.at(
                        format!("adapters need `{name}`"),
                        &[&w.cfg(name), &w.cfg("peft.enabled")],
                    )
                    .help(format!("`{}: 16`", w.cfg(name)));
                }
            }
        }
    }),
    error(
        "LORA-04",
        "setting-has-no-effect",
        "adapters of the backend that does not train",
        |r, f| {
            for w in r.workers.iter().filter(|w| w.role != Role::Scorer) {
                let (path, other) = match w.is(Backend::Megatron) {
                    true => (w.at("dtensor_cfg.lora_cfg.enabled"), w.cfg("peft")),
                    false => (w.at("megatron_cfg.peft.enabled"), w.cfg("lora_cfg")),
                };
                let Some(backend) = w.backend.as_ref().filter(|_| r.on(&path)) else { continue };
                let size = w
                    .model
                    .as_ref()
                    .and_then(|m| m.params_b)
                    .map(|(all, _)| format!("all {all} G parameters"));
                let found = f.found(
                    format!("`{path}` = true does nothing: {} trains", backend.value),
                    &[&r.flag(&path), backend],
                );
                found
                    .note(format!(
                        "{} would be trained",
                        size.unwrap_or_else(|| "all parameters".to_string())
                    ))
                    .help(format!("use `{other}`, or remove the line"));
            }
        },
    ),
    error("LORA-05", CODE, "what to adapt and what not", |r, f| {
        each(r, |section| {
            let (target, exclude) =
                (format!("{section}.target_modules"), format!("{section}.exclude_modules"));
            let filled = |p: &str| r.node(p).is_some_and(|n| !n.items().is_empty());
            if filled(&target) && filled(&exclude) {
                f.at("modules are left out only of all modules", &[&exclude, &target])
                    .help(format!("`{target}: []`, or `{exclude}: []`"));
            }
        });
    }),
    warning("LORA-06", CODE, "modules that are not asked for", |r, f| {
        each(r, |section| {
            let (target, all) =
                (format!("{section}.target_modules"), format!("{section}.match_all_linear"));
            if r.on(&all) && r.node(&target).is_some_and(|n| !n.items().is_empty()) {
                f.at("all linear layers get adapters: the list is not read", &[&target, &all])
                    .help(format!("`{all}: false`"));
            }
        });
    }),
    error("LORA-07", CODE, "modules in the other backend's words", |r, f| {
        let torch = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
        let megatron = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"];
        for w in r.workers.iter().filter(|w| w.adapts()) {
            let own = w.is(Backend::Megatron);
            let section = if own { w.cfg("peft") } else { w.cfg("lora_cfg") };
            let (wrong, right) = if own {
                (&torch[..], megatron.join(", "))
            } else {
                (&megatron[..], torch.join(", "))
            };
            for list in ["target_modules", "exclude_modules"] {
                for module in r.texts(&format!("{section}.{list}")) {
                    let name =
                        module.value.rsplit('.').next().unwrap_or_default().trim_start_matches('*');
                    if wrong.contains(&name) {
                        let backend =
                            w.backend.as_ref().map_or(String::new(), |b| b.value.to_string());
                        f.found(format!("{backend} has no module `{name}`"), &[&module])
                            .help(format!("its modules are {right}"));
                    }
                }
            }
        }
    }),
    error("LORA-10", "not-a-choice", "where adapters drop", |r, f| {
        for w in &r.workers {
            f.choice(&w.at("dtensor_cfg.lora_cfg.dropout_position"), &["pre", "post"]);
            f.choice(&w.at("megatron_cfg.peft.dropout_position"), &["pre", "post"]);
        }
    }),
    error("LORA-12", "out-of-range", "adapters of no size", sizes),
];

/// Sections of the adapters that are trained.
fn each(r: &Recipe, mut check: impl FnMut(String)) {
    for w in r.workers.iter().filter(|w| w.adapts()) {
        check(if w.is(Backend::Megatron) { w.cfg("peft") } else { w.cfg("lora_cfg") });
    }
}

fn sizes(r: &Recipe, f: &mut Findings<'_>) {
    each(r, |section| {
        if let Some(dim) = r.int(&format!("{section}.dim")).filter(|d| d.value < 1) {
            f.found(format!("adapters of rank {} train nothing", dim.value), &[&dim])
                .help(format!("`{}: 16`", dim.name));
        }
        if let Some(x) =
            r.num(&format!("{section}.dropout")).filter(|x| !(0.0..1.0).contains(&x.value))
        {
            f.found(format!("a dropout of {} leaves nothing", x.value), &[&x])
                .help(format!("`{}: 0`", x.name));
        }
    });
}
