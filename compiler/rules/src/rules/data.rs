//! Data sets, processors and environments.

use crate::recipe::{Algorithm, Fact, Recipe};
use crate::rule::{Findings, Rule, error, warning};

const NEEDS: &str = "needs-another-setting";

const RESPONSE: &[&str] = &[
    "audiomcq",
    "arrow_text",
    "avqa",
    "AIME2024",
    "AIME2025",
    "AIME2026",
    "clevr-cogent",
    "daily-omni",
    "general-conversation-jsonl",
    "DAPOMath17K",
    "DAPOMathAIME2024",
    "DeepScaler",
    "GSM8K",
    "gsm8k",
    "geometry3k",
    "mmpr-tiny",
    "HelpSteer3",
    "intent-train",
    "intent-bench",
    "open_assistant",
    "OpenMathInstruct-2",
    "NuminaMath-1.5",
    "OpenR1-Math-220k",
    "refcoco",
    "squad",
    "tulu3_sft_mixture",
    "Nemotron-Cascade-2-SFT-Math",
    "openai_format",
    "NemoGymDataset",
    "ResponseDataset",
];
/// Those of them that hold text alone.
pub(super) const TEXT: &[&str] = &[
    "AIME2024",
    "AIME2025",
    "AIME2026",
    "DAPOMath17K",
    "DAPOMathAIME2024",
    "DeepScaler",
    "GSM8K",
    "gsm8k",
    "HelpSteer3",
    "open_assistant",
    "OpenMathInstruct-2",
    "NuminaMath-1.5",
    "OpenR1-Math-220k",
    "squad",
    "tulu3_sft_mixture",
    "Nemotron-Cascade-2-SFT-Math",
];
const PREFERENCE: &[&str] =
    &["HelpSteer3", "Tulu3Preference", "BinaryPreferenceDataset", "PreferenceDataset"];
const PROCESSORS: &[&str] = &[
    "default",
    "helpsteer3_data_processor",
    "kd_data_processor",
    "math_data_processor",
    "math_hf_data_processor",
    "multichoice_qa_processor",
    "sft_processor",
    "vlm_hf_data_processor",
    "nemo_gym_data_processor",
];
const ENVIRONMENTS: &[&str] = &[
    "math_default",
    "math",
    "math_multi_reward",
    "code",
    "reward_model",
    "code_jaccard",
    "vlm",
    "nemo_gym",
];

/// Rules of data.
pub const RULES: &[Rule] = &[
    error("DATA-01", "not-a-choice", "unknown data set", |r, f| {
        let pairs = r.is(Algorithm::Dpo) || r.is(Algorithm::Reward);
        if r.is(Algorithm::Eval) {
            return;
        }
        for part in parts(r) {
            let path = format!("{part}.dataset_name");
            if r.text(&path)
                .is_some_and(|n| !n.value.contains('.') || RESPONSE.contains(&n.value.as_str()))
            {
                f.choice(&path, if pairs { PREFERENCE } else { RESPONSE });
            }
        }
    }),
    error("DATA-03", "not-a-choice", "unknown processor", |r, f| {
        for part in parts(r).into_iter().filter(|_| !r.is(Algorithm::Eval)) {
            f.choice(&format!("{part}.processor"), PROCESSORS);
        }
    }),
    error("DATA-24", "not-a-choice", "a text data set with the processor of images", |r, f| {
        let usual = r.text("data.default.processor");
        for part in parts(r).into_iter().filter(|p| !p.ends_with("default")) {
            let processor = r.text(&format!("{part}.processor")).or_else(|| usual.clone());
            let (Some(name), Some(processor)) =
                (r.text(&format!("{part}.dataset_name")), processor)
            else {
                continue;
            };
            if processor.value.starts_with("vlm_") && TEXT.contains(&name.value.as_str()) {
                f.found(
                    format!("`{}` has no images, and `{}` reads them", name.value, processor.value),
                    &[&name, &processor],
                )
                .help(format!("`{}: math_hf_data_processor`", processor.name));
            }
        }
    }),
    error("DATA-04", "environment-missing", "unknown environment", |r, f| {
        for name in environments(r) {
            let known = ENVIRONMENTS.contains(&name.value.as_str());
            let near = nrl_base::nearest(&name.value, ENVIRONMENTS.iter().copied());
            let section = r.has(&format!("env.{}", name.value));
            if let (false, Some(near), false) = (known, near, section) {
                f.found(format!("there is no environment `{}`", name.value), &[&name])
                    .help(format!("did you mean `{near}`?"));
            }
        }
    }),
    error("DATA-05", "environment-missing", "an environment without section", |r, f| {
        for name in environments(r) {
            let path = format!("env.{}", name.value);
            let near = nrl_base::nearest(&name.value, ENVIRONMENTS.iter().copied());
            let spelled = ENVIRONMENTS.contains(&name.value.as_str()) || near.is_none();
            if r.node(&path).is_none() && r.node("env").is_some() && spelled {
                f.found(format!("the environment `{}` has no section", name.value), &[&name])
                    .help(format!("add `{path}`, such as `{path}: {{num_workers: 8}}`"));
            }
        }
    }),
    error("DATA-06, DATA-27", "environment-missing", "data without environment", |r, f| {
        if !r.is_rl() || r.text("data.default.env_name").is_some() {
            return;
        }
        for part in parts(r).into_iter().filter(|p| p.starts_with("data.train")) {
            let named = r.has(&format!("{part}.env_name"));
            let list = r.node(&part).is_some_and(|n| !n.items().is_empty());
            if r.node(&part).is_some() && !named && !list {
                f.at(
                    "nothing gives rewards for this data",
                    &[&format!("{part}.env_name"), "data.default.env_name"],
                )
                .help("`data.default.env_name: math`");
            }
        }
    }),
    error("DATA-08", "options-exclude-each-other", "a subset of a local file", |r, f| {
        for part in parts(r) {
            let (subset, path) = (format!("{part}.subset"), format!("{part}.data_path"));
            if r.has(&subset)
                && r.text(&path)
                    .is_some_and(|p| p.value.contains(".json") || p.value.contains(".parquet"))
            {
                f.at("a local file has no subsets", &[&subset, &path])
                    .help(format!("`{subset}: null`"));
            }
        }
    }),
    error("DATA-12", "bad-data-line", "rows without what the recipe reads", |r, f| {
        let path = r.text("data.train.data_path");
        if let Some(line) = r.batch.broken_line {
            f.found(format!("line {line} of the data is no JSON object"), &[&path])
                .help("a row is one object on one line, such as `{\"input\": \"..\", \"output\": \"..\"}`");
        }
        if !r.says("data.train.dataset_name", "ResponseDataset") {
            return;
        }
        for (key, usual) in [("input_key", "input"), ("output_key", "output")] {
            let given = r
                .text(&format!("data.train.{key}"))
                .or_else(|| r.text(&format!("data.default.{key}")));
            let wanted = given
                .unwrap_or_else(|| Fact::default(format!("data.train.{key}"), usual.to_string()));
            let lacks = |(_, names): &&(usize, Vec<String>)| !names.contains(&wanted.value);
            let Some((at, names)) = r.batch.shapes.iter().find(lacks) else { continue };
            let first = r.batch.shapes.first().is_some_and(|(first, _)| first == at);
            let row = if first { "the first row".into() } else { format!("line {at} of the data") };
            let near = nrl_base::did_you_mean(&wanted.value, names.iter().map(String::as_str));
            f.found(format!("{row} has no `{}`", wanted.value), &[&path, &wanted])
                .help(near.unwrap_or_else(|| format!("it has {}", names.join(", "))));
        }
    }),
    error("DATA-13", "bad-data-line", "pairs that do not say which answer is better", |r, f| {
        if let Some((line, why)) = &r.batch.bad_pair {
            f.found(
                format!("line {line} of the data is no pair: {why}"),
                &[&r.text("data.train.data_path"), &r.text("data.train.dataset_name")],
            )
            .help("two completions with ranks that differ, the smaller rank for the better one");
        }
    }),
    error("DATA-28", "not-a-choice", "a loader that is no import path", |r, f| {
        let path = "data.custom_dataloader";
        if let Some(loader) = r.text(path).filter(|l| !l.value.contains('.')) {
            f.found(format!("\"{}\" is no path to import a loader from", loader.value), &[&loader])
                .help(format!("`{path}: my_package.my_module.my_loader`, or null"));
        }
    }),
    error("DATA-14", "wrong-type", "paths of validation data", |r, f| {
        let path = "data.val_data_paths";
        if r.has(path) && r.node(path).is_some_and(|n| n.entries().next().is_none()) {
            f.at("validation data are named: a section of names and paths", &[path])
                .help(format!("`{path}: {{main: FILE}}`"));
        }
    }),
    warning("DATA-15", "duplicate-name", "the same data set twice", |r, f| {
        for list in ["data.train", "data.validation"] {
            let count = r.node(list).map_or(0, |n| n.items().len());
            let names: Vec<Fact<String>> =
                (0..count).filter_map(|i| r.text(&format!("{list}.{i}.dataset_name"))).collect();
            for (at, name) in names.iter().enumerate() {
                let generic = matches!(
                    name.value.as_str(),
                    "ResponseDataset"
                        | "NemoGymDataset"
                        | "PreferenceDataset"
                        | "BinaryPreferenceDataset"
                        | "openai_format"
                );
                if let Some(first) = names[..at].iter().find(|n| n.value == name.value && !generic)
                {
                    f.found(
                        format!(
                            "`{}` is listed twice: the second one's settings are used for both",
                            name.value
                        ),
                        &[name, first],
                    )
                    .help("keep one");
                }
            }
        }
    }),
    error("LOAD-18", NEEDS, "the old layout of data", |r, f| {
        if r.node("data").is_some()
            && r.node("data.train").is_none()
            && r.algorithm.is_some()
            && !r.is(Algorithm::Eval)
        {
            let old = ["data.dataset_name", "data.train_data_path", "data.prompt_file"]
                .into_iter()
                .find(|p| r.has(p));
            if let Some(old) = old {
                f.at("data are given per use now: `data.train`, `data.validation`", &[old])
                    .help("`data.train: {dataset_name: ...}`");
            }
        }
    }),
    error("DATA-19", "not-a-choice", "unknown way to verify mathematics", |_, f| {
        f.choice("env.math.math_verify_impl", &["hf_math_verify", "dapo_math_verify"]);
        f.choice("env.math_multi_reward.math_verify_impl", &["hf_math_verify"]);
    }),
    error("DATA-20", "wrong-type", "the kind of a verifier", |r, f| {
        let path = "env.math.verifier_type";
        if r.has(path) && r.text(path).is_none() {
            f.at("the kind of a verifier is a text", &[path]).help(format!("`{path}: math`"));
        }
        if r.on("env.code.return_extracted_answer") {
            f.at("the code environment extracts no answers", &["env.code.return_extracted_answer"])
                .help("remove it");
        }
    }),
    error("DATA-21", "reward-model-cannot", "what a scoring reward model excludes", reward_model),
    error("DATA-22", "missing-field", "a reward model without resources", |r, f| {
        let path = "env.reward_model.resources";
        if uses(r, "reward_model") && !r.has(path) && r.has("env.reward_model") {
            f.at("it is not said on which GPUs the reward model runs", &[path])
                .help(format!("`{path}: {{num_nodes: 1, gpus_per_node: 2}}`"));
        }
    }),
    error("DATA-23", "not-a-choice", "rewards for images", |r, f| {
        for env in r.under("env") {
            let list = format!("{env}.reward_functions");
            let count = r.node(&list).map_or(0, |n| n.items().len());
            for i in 0..count {
                f.choice(
                    &format!("{list}.{i}.name"),
                    &["format", "exact_alnum", "math_expr", "bbox_giou", "geo3k"],
                );
            }
            if r.node(&list).is_some() && count == 0 {
                f.at("no reward is given for images", &[&list])
                    .help(format!("`{list}: [{{name: exact_alnum, weight: 1.0}}]`"));
            }
        }
    }),
    error("DATA-25", "wrong-type", "options of the chat template", |r, f| {
        for path in ["policy.tokenizer.chat_template_kwargs", "tokenizer.chat_template_kwargs"] {
            let map =
                r.node(path).is_some_and(|n| matches!(n.value, crate::settings::Value::Map(_)));
            if r.has(path) && !map {
                f.at("options of a chat template are a section", &[path])
                    .help(format!("`{path}: {{enable_thinking: true}}`"));
            }
        }
    }),
    warning("DATA-32", "worth-knowing", "samples repeated twice over", |r, f| {
        let many = r.int("grpo.val_num_generations_per_prompt").filter(|n| n.value > 1);
        for part in parts(r).into_iter().filter(|p| p.starts_with("data.validation")) {
            let repeat = r.int(&format!("{part}.repeat")).filter(|n| n.value > 1);
            if let (Some(repeat), Some(many)) = (repeat, &many) {
                f.found(
                    format!("every problem is answered {} * {} times", repeat.value, many.value),
                    &[&repeat, many],
                )
                .help(format!("`{}: 1`, or `{}: 1`", repeat.name, many.name));
            }
        }
    }),
    error("DATA-34", "out-of-range", "ports in the wrong order", |r, f| {
        for (low, high) in [
            ("cluster.master_port_range_low", "cluster.master_port_range_high"),
            ("policy.generation.port_range_low", "policy.generation.port_range_high"),
        ] {
            let (Some(a), Some(b)) = (r.int(low), r.int(high)) else { continue };
            if a.value >= b.value {
                f.found(format!("there are no ports from {} to {}", a.value, b.value), &[&a, &b])
                    .help(format!("`{high}` above {}", a.value));
            }
        }
    }),
    error("DATA-09", "out-of-range", "a part of the data for validation", |r, f| {
        for part in parts(r) {
            let path = format!("{part}.split_validation_size");
            // A share below 1, or a whole number of rows.
            let wrong = |x: f64| x < 0.0 || x > 1.0 && x.fract() != 0.0;
            if let Some(x) = r.num(&path).filter(|x| wrong(x.value)) {
                f.found(format!("validation cannot take {} of the data", x.value), &[&x])
                    .help(format!("`{path}: 0.05`"));
            }
        }
    }),
];

/// Paths of the sections of data: those of lists one by one.
fn parts(r: &Recipe) -> Vec<String> {
    let mut all = vec![];
    for part in ["data.train", "data.validation", "data.default"] {
        let items = r.node(part).map_or(0, |n| n.items().len());
        if items == 0 {
            all.push(part.to_string());
        }
        all.extend((0..items).map(|i| format!("{part}.{i}")));
    }
    all
}

/// Environments that the data name.
fn environments(r: &Recipe) -> Vec<Fact<String>> {
    let named = parts(r).into_iter().filter_map(|p| r.text(&format!("{p}.env_name")));
    if r.is_rl() || r.is(Algorithm::Distillation) { named.collect() } else { vec![] }
}

fn uses(r: &Recipe, environment: &str) -> bool {
    environments(r).iter().any(|e| e.value == environment)
}

fn reward_model(r: &Recipe, f: &mut Findings<'_>) {
    if !uses(r, "reward_model") {
        return;
    }
    let at = |name: &str| format!("env.reward_model.{name}");
    let must = at("reward_model_cfg.enabled");
    if r.off(&must) {
        f.at("a reward model without its head", &[&must]).help(format!("`{must}: true`"));
    }
    let kind = at("reward_model_cfg.reward_model_type");
    if r.has(&kind) && !r.says(&kind, "bradley_terry") {
        f.at("a scoring reward model is a Bradley-Terry model", &[&kind])
            .help(format!("`{kind}: bradley_terry`"));
    }
    for name in [
        "dynamic_batching.enabled",
        "sequence_packing.enabled",
        "dtensor_cfg.cpu_offload",
        "dtensor_cfg.activation_checkpointing",
    ] {
        if r.on(&at(name)) {
            f.at(format!("a scoring reward model does not go with `{name}`"), &[&at(name)])
                .help(format!("`{}: false`", at(name)));
        }
    }
    if r.on(&at("megatron_cfg.enabled")) || r.off(&at("dtensor_cfg.enabled")) {
        f.at("a reward model scores on DTensor", &[&at("dtensor_cfg.enabled")])
            .help(format!("`{}: true`", at("dtensor_cfg.enabled")));
    }
    if r.has(&at("max_grad_norm")) {
        f.at("a scoring reward model is not trained", &[&at("max_grad_norm")])
            .help(format!("`{}: null`", at("max_grad_norm")));
    }
}
