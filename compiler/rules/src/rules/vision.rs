//! Images, video and sound.

use crate::recipe::{Backend, Fact, Recipe, Role, Worker};
use crate::rule::{Rule, error, warning};
use crate::rules::backend::sees;
use crate::rules::data::TEXT;

const CODE: &str = "backend-cannot";

/// Rules of models that see and hear.
pub const RULES: &[Rule] = &[
    error("VLM-02", CODE, "what Nemotron Omni cannot have", |r, f| {
        for w in omni(r) {
            let attention = w.cfg("attention_backend");
            if r.says(&attention, "flash") {
                f.at("Nemotron Omni does not go with flash attention by name", &[&attention])
                    .help(format!("`{attention}: auto`"));
            }
            if let Some(vpp) = w.mesh.vpp.as_ref().filter(|v| v.value > 1) {
                f.found("Nemotron Omni has no pieces of pipeline stages", &[vpp])
                    .help(format!("`{}: null`", vpp.name));
            }
            let fused = w.cfg("use_fused_linear_logprobs");
            if r.on(&fused) {
                f.at("Nemotron Omni has no fused log-probs", &[&fused])
                    .help(format!("`{fused}: false`"));
            }
        }
    }),
    error("GEN-16", "needs-another-setting", "images without a tokenizer at the engine", |r, f| {
        let path = "policy.generation.vllm_cfg.skip_tokenizer_init";
        if r.policy().is_some_and(|w| sees(r, w)) && r.is_rl() && r.on(path) {
            f.at("the engine needs its tokenizer to place images", &[path])
                .help(format!("`{path}: false`"));
        }
    }),
    warning("VLM-07", "worth-knowing", "towers that are trained", |r, f| {
        for w in r.workers.iter().filter(|w| w.role == Role::Policy && w.is(Backend::Automodel)) {
            let many = w.model.as_ref().is_some_and(|m| m.multimodal);
            let path = w.cfg("automodel_kwargs.freeze_config");
            let text_only =
                r.text("data.train.dataset_name").is_some_and(|n| TEXT.contains(&n.value.as_str()));
            if many && text_only && !r.has(&path) {
                f.at(
                    "a model that sees is trained on text, and its other towers are not frozen",
                    &[&path],
                )
                .note("going on from a checkpoint would find other weights than it saved")
                .help(format!("`{path}: {{freeze_vision_tower: true}}`"));
            }
        }
    }),
    error("BACK-46", CODE, "towers that a model does not have", |r, f| {
        for w in r.workers.iter().filter(|w| w.is(Backend::Megatron)) {
            let Some(model) = w.model.as_ref().filter(|m| !m.multimodal) else { continue };
            for name in [
                "freeze_sound_encoder",
                "freeze_sound_projection",
                "freeze_vision_model",
                "freeze_vision_projection",
            ] {
                for path in [w.cfg(name), w.cfg(&format!("freeze_config.{name}"))] {
                    if r.on(&path) {
                        let model = Fact::model("model", model.name.clone(), &model.name);
                        f.found(
                            format!(
                                "{} is a model of text: it has no tower to freeze",
                                model.value
                            ),
                            &[&r.flag(&path), &model],
                        )
                        .help(format!("leave `{path}` out"));
                    }
                }
            }
        }
    }),
];

fn omni(r: &Recipe) -> impl Iterator<Item = &Worker> {
    let is = |w: &&Worker| {
        w.model
            .as_ref()
            .is_some_and(|m| m.architecture.contains("Omni") && m.architecture.contains("Nemotron"))
    };
    r.workers.iter().filter(|w| w.is(Backend::Megatron)).filter(is)
}
