//! Settings to the typed recipe that rules read.
//!
//! In: settings as they are after inheritance, overrides and interpolation. Out: a [`Recipe`] whose
//! facts carry the paths that users know. What is not there stays unknown; nothing is an error here.

mod budget;
mod history;
mod rows;
mod workers;

use nrl_base::Files;
use nrl_rules::Settings;
use nrl_rules::recipe::{
    Advantage, Algorithm, Batch, Engine, Fact, Generation, Keeping, Loss, Overlap, Reached, Recipe,
    Role, Seconds, Version,
};

/// The recipe that settings describe. `files` is asked for `config.json` of local models and for
/// local data.
pub fn recipe(settings: Settings, files: &dyn Files, version: Version) -> Recipe {
    let mut r = Recipe { version, settings: Some(settings), ..Recipe::default() };
    r.algorithm = algorithm(&r);
    let section = r.section().unwrap_or("grpo");
    r.batch = batch(&r, section, files);
    r.advantage = advantage(&r, section);
    r.loss = loss(&r);
    r.overlap = overlap(&r, section);
    r.keeping = keeping(&r, section);
    r.generation = generation(&r);
    r.cluster = budget::cluster(&r);
    r.workers = workers::workers(&r, files);
    budget::share(&mut r);
    r.history = history::history(&r, files);
    r
}

fn algorithm(r: &Recipe) -> Option<Fact<Algorithm>> {
    let of = |name: &str| match name {
        "eval" => Some(Algorithm::Eval),
        "ppo" => Some(Algorithm::Ppo),
        "dpo" => Some(Algorithm::Dpo),
        "rm" => Some(Algorithm::Reward),
        "sft" => Some(Algorithm::Sft),
        "distillation" if r.has("teachers") => Some(Algorithm::CrossTokenizer),
        "distillation" => Some(Algorithm::Distillation),
        "grpo" => Some(Algorithm::Grpo),
        _ => None,
    };
    ["eval", "ppo", "dpo", "rm", "sft", "distillation", "grpo"].into_iter().find_map(|name| {
        let node = r.node(name).filter(|node| !node.is_null())?;
        Some(Fact::set(name, of(name)?, node.origin))
    })
}

fn batch(r: &Recipe, section: &str, files: &dyn Files) -> Batch {
    let at = |name: &str| format!("{section}.{name}");
    let data = rows::read(r, files);
    Batch {
        prompts: r.int(&at("num_prompts_per_step")),
        group: r.int(&at("num_generations_per_prompt")),
        multiplier: r.num(&at("batch_multiplier")),
        dynamic_sampling: r.flag(&at("use_dynamic_sampling")),
        max_prompt: r.int("data.max_input_seq_length"),
        ..data
    }
}

fn advantage(r: &Recipe, section: &str) -> Advantage {
    let at = |name: &str| format!("{section}.adv_estimator.{name}");
    // Without an estimator of its own GRPO takes the top-level settings.
    let own = r.has(&format!("{section}.adv_estimator"));
    let twin = |name: &str| match own {
        true => r.flag(&at(name)),
        false => r.flag(&format!("{section}.{name}")),
    };
    Advantage {
        estimator: r.text(&at("name")),
        normalize: twin("normalize_rewards"),
        leave_one_out: twin("use_leave_one_out_baseline"),
        minus_baseline: r.flag(&at("minus_baseline")),
    }
}

fn loss(r: &Recipe) -> Loss {
    Loss {
        kl: r.num("loss_fn.reference_policy_kl_penalty"),
        kl_in_reward: r.flag("loss_fn.use_kl_in_reward"),
        corrected: r.flag("loss_fn.use_importance_sampling_correction"),
        on_policy: r.flag("loss_fn.force_on_policy_ratio"),
    }
}

fn overlap(r: &Recipe, section: &str) -> Overlap {
    let at = |name: &str| format!("{section}.async_{section}.{name}");
    Overlap { on: r.flag(&at("enabled")), max_age: r.int(&at("max_trajectory_age_steps")) }
}

fn keeping(r: &Recipe, section: &str) -> Keeping {
    let at = |name: &str| format!("{section}.{name}");
    Keeping {
        on: r.flag("checkpointing.enabled"),
        metric: r.text("checkpointing.metric_name"),
        save_period: r.int("checkpointing.save_period"),
        val_period: r.int(&at("val_period")),
        val_samples: r.int(&at("max_val_samples")),
        val_batch: r.int(&at("val_batch_size")),
        steps: r.int(&at("max_num_steps")),
        stops: stops(r),
        ..Keeping::default()
    }
}

/// When the run saves and stops by itself, if the time can be read.
fn stops(r: &Recipe) -> Option<Fact<Seconds>> {
    let time = r.text("checkpointing.checkpoint_must_save_by")?;
    let parts: Vec<u32> =
        time.value.split(':').map(|p| p.trim().parse().ok()).collect::<Option<_>>()?;
    let [days, hours, minutes, seconds] = parts[..] else { return None };
    let seconds = f64::from(days) * 86_400.0
        + f64::from(hours) * 3_600.0
        + f64::from(minutes) * 60.0
        + f64::from(seconds);
    Some(time.map(|_| Seconds(seconds)))
}

/// When the first checkpoint is predicted, where steps take `low` to `high` seconds, `likely` in the middle.
pub(crate) fn first_save(r: &Recipe, [low, likely, high]: [f64; 3]) -> Option<Reached> {
    let on = r.keeping.on.as_ref().is_some_and(|on| on.value);
    let saves = [r.keeping.save_period.clone(), r.int("checkpointing.ft_save_period")];
    let periods = saves.into_iter().flatten().filter(|n| n.value > 0 && on);
    let all = periods.chain(r.keeping.steps.clone().filter(|n| n.value > 0));
    let period = all.min_by_key(|n| n.value)?;
    let at = |each: f64| Seconds(period.value as f64 * each);
    let (after, low, high) = (at(likely), at(low), at(high));
    Some(Reached { step: period.value, period, after, low, high, each: Seconds(likely) })
}

fn generation(r: &Recipe) -> Option<Generation> {
    let algorithm = r.algorithm.as_ref().map(|a| a.value);
    if algorithm.is_some_and(|a| !a.samples()) {
        return None;
    }
    let path = if algorithm == Some(Algorithm::Eval) { "generation" } else { "policy.generation" };
    if !r.has(path) {
        return None;
    }
    let at = |name: &str| format!("{path}.{name}");
    let backend = r.text(&at("backend"));
    let engine = backend.as_ref().and_then(|name| {
        let engine = match name.value.as_str() {
            "vllm" => Engine::Vllm,
            "sglang" => Engine::Sglang,
            "trtllm" => Engine::Trtllm,
            "megatron" => Engine::Megatron,
            "dynamo" => Engine::Dynamo,
            _ => return None,
        };
        Some(name.map(|_| engine))
    });
    let colocated = r.flag(&at("colocated.enabled"));
    let mut g = Generation {
        path: path.to_string(),
        colocated: Some(colocated.unwrap_or_else(|| Fact::default(at("colocated.enabled"), true))),
        max_new: r.int(&at("max_new_tokens")),
        temperature: r.num(&at("temperature")),
        top_p: r.num(&at("top_p")),
        top_k: r.int(&at("top_k")),
        ..Generation::default()
    };
    match engine.as_ref().map(|e| e.value) {
        Some(Engine::Vllm | Engine::Dynamo) => vllm(r, &mut g),
        Some(Engine::Trtllm) => {
            g.tp = r.int(&at("trtllm_cfg.tensor_parallel_size"));
            g.asynchronous = r.flag(&at("trtllm_cfg.async_engine"));
            g.max_length = r.int(&at("trtllm_cfg.max_model_len"));
            g.precision = r.text(&at("trtllm_cfg.precision"));
        }
        Some(Engine::Sglang) => {
            g.tp = r.int(&at("sglang_cfg.tp_size"));
            g.pp = r.int(&at("sglang_cfg.pp_size"));
            g.ep = r.int(&at("sglang_cfg.ep_size"));
            g.max_length = r.int(&at("sglang_cfg.context_length"));
        }
        Some(Engine::Megatron) => megatron(r, &mut g),
        None => {}
    }
    g.engine = engine;
    Some(g)
}

fn vllm(r: &Recipe, g: &mut Generation) {
    let size = |name: &str| r.int(&g.at(&format!("vllm_cfg.{name}")));
    let (tp, pp) = (size("tensor_parallel_size"), size("pipeline_parallel_size"));
    let (ep, longest) = (size("expert_parallel_size"), size("max_model_len"));
    (g.asynchronous, g.precision) =
        (r.flag(&g.at("vllm_cfg.async_engine")), r.text(&g.at("vllm_cfg.precision")));
    (g.tp, g.pp, g.ep, g.max_length) = (tp, pp, ep, longest);
}

/// Megatron generates with the layout of training, where its own section gives no other.
fn megatron(r: &Recipe, g: &mut Generation) {
    let size = |name: &str| {
        let own = r.int(&g.at(&format!("mcore_generation_config.{name}")));
        own.or_else(|| r.int(&format!("policy.megatron_cfg.{name}")))
    };
    let (tp, pp) = (size("tensor_model_parallel_size"), size("pipeline_model_parallel_size"));
    let ep = size("expert_model_parallel_size");
    g.max_length = r.int(&g.at("mcore_generation_config.max_model_len"));
    (g.tp, g.pp, g.ep) = (tp, pp, ep);
}

/// Environments that the data asks for.
pub(crate) fn environments(r: &Recipe) -> Vec<Fact<String>> {
    let mut all = vec![];
    for part in ["data", "data.train", "data.validation", "data.default"] {
        all.extend(r.text(&format!("{part}.env_name")));
        let items = r.node(part).map_or(0, |node| node.items().len());
        all.extend((0..items).filter_map(|i| r.text(&format!("{part}.{i}.env_name"))));
    }
    all
}

/// Teachers that score what the policy generates, as (alias, checkpoint), each checkpoint once
/// unless they are not to be shared.
pub(crate) fn scorers(r: &Recipe) -> Vec<(String, String)> {
    let base = "on_policy_distillation";
    if !r.on(&format!("{base}.enabled")) || r.off(&format!("{base}.non_colocated_teachers.enabled"))
    {
        return vec![];
    }
    let share = !r.off(&format!("{base}.deduplicate_shared_teacher_checkpoints"));
    let mut all: Vec<(String, String)> = vec![];
    for path in r.under(&format!("{base}.teacher_model_by_agent_name")) {
        let Some(checkpoint) = r.text(&path) else { continue };
        let alias = path.rsplit('.').next().unwrap_or_default().to_string();
        if !share || !all.iter().any(|(_, other)| *other == checkpoint.value) {
            all.push((alias, checkpoint.value));
        }
    }
    all
}

/// A setting of a teacher: its own, or that of all.
pub(crate) fn scorer_setting(r: &Recipe, alias: &str, name: &str) -> Option<Fact<i64>> {
    let base = "on_policy_distillation.non_colocated_teachers";
    r.int(&format!("{base}.teacher_overrides.{alias}.{name}"))
        .or_else(|| r.int(&format!("{base}.default_teacher_cfg.{name}")))
}

/// Whether a role shares the GPUs of training.
pub(crate) fn trains(role: Role) -> bool {
    matches!(role, Role::Policy | Role::Critic | Role::Teacher)
}
