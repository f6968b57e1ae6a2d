//! Models on their GPUs, from sections that look like `policy`.

use nrl_base::Files;
use nrl_facts::ModelFacts;
use nrl_rules::recipe::{Algorithm, Backend, Fact, Mesh, Recipe, Role, Worker};

use super::budget::counted;
use super::{environments, scorer_setting, scorers};

/// The policy and the models beside it.
pub fn workers(r: &Recipe, files: &dyn Files) -> Vec<Worker> {
    let mut all = vec![];
    let mut add = |role: Role, path: &str| {
        if r.has(path) {
            all.push(worker(r, files, role, path));
        }
    };
    if !r.is(Algorithm::Eval) {
        add(Role::Policy, "policy");
    }
    if r.is(Algorithm::Ppo) {
        add(Role::Critic, "value");
    }
    if r.is(Algorithm::Distillation) {
        add(Role::Teacher, "teacher");
    }
    if r.is(Algorithm::CrossTokenizer) {
        let teachers = r.node("teachers").map_or(0, |node| node.items().len());
        (0..teachers).for_each(|i| add(Role::Teacher, &format!("teachers.{i}")));
    }
    if environments(r).iter().any(|e| e.value == "reward_model") {
        add(Role::Reward, "env.reward_model");
    }
    all.extend(scorers(r).iter().map(|(alias, model)| scorer(r, files, alias, model)));
    all
}

fn facts(files: &dyn Files, name: &str) -> Option<ModelFacts> {
    let local = files.read(&format!("{name}/config.json")).ok();
    let text = local.and_then(|bytes| String::from_utf8(bytes).ok());
    let read = text.and_then(|text| ModelFacts::from_config(name, &text).ok());
    read.or_else(|| nrl_facts::model(name).cloned())
}

fn worker(r: &Recipe, files: &dyn Files, role: Role, path: &str) -> Worker {
    let mut w = Worker::new(role, path);
    w.backend = backend(r, &w);
    let cfg = if w.is(Backend::Megatron) { "megatron_cfg" } else { "dtensor_cfg" };
    w.section = w.at(cfg);
    if w.backend.is_some() {
        w.mesh = mesh(r, &w);
    }
    w.model = r.text(&w.at("model_name")).and_then(|name| facts(files, &name.value));
    if let Some(model) = &mut w.model
        && let Some(layers) = r.int(&format!("{path}.hf_config_overrides.num_hidden_layers"))
    {
        model.layers = layers.value.unsigned_abs();
    }
    w.global_batch = r.int(&w.at("train_global_batch_size"));
    w.micro_batch = r.int(&w.at("train_micro_batch_size"));
    w.logprob_batch = r.int(&w.at("logprob_batch_size"));
    w.max_length = r.int(&w.at("max_total_sequence_length"));
    w.multiple = r.int(&w.at("make_sequence_length_divisible_by"));
    w.packing = r.flag(&w.at("sequence_packing.enabled"));
    w.dynamic = r.flag(&w.at("dynamic_batching.enabled"));
    let tokens = if w.packs() { "sequence_packing" } else { "dynamic_batching" };
    w.train_tokens = r.int(&w.at(&format!("{tokens}.train_mb_tokens")));
    w.logprob_tokens = r.int(&w.at(&format!("{tokens}.logprob_mb_tokens")));
    w.precision = r.text(&w.at("precision"));
    (w.master, w.rate) = (master(r, &w), r.num(&w.cfg("optimizer.lr")));
    w.lora = match w.is(Backend::Megatron) {
        true => r.flag(&w.cfg("peft.enabled")),
        false => r.flag(&w.cfg("lora_cfg.enabled")),
    };
    w
}

/// Megatron adds updates to the weights of the model themselves where its optimizer neither knows that they are
/// in half precision nor keeps its own parts of them.
fn master(r: &Recipe, w: &Worker) -> Option<Fact<String>> {
    let half = w.precision.as_ref().filter(|p| p.value == "bfloat16")?;
    let (own, parts) = (w.cfg("optimizer.bf16"), w.cfg("optimizer.use_distributed_optimizer"));
    let off = |path: &str| r.flag(path).filter(|flag| !flag.value);
    let (own, parts) = (off(&own)?, off(&parts)?);
    if !w.is(Backend::Megatron) || !r.says(&w.cfg("optimizer.optimizer"), "adam") {
        return None;
    }
    let how = "no copies in f32 are kept".to_string();
    let name = "weights that updates are added to";
    Some(Fact::derived(name, "bfloat16".to_string(), how, &[&parts, &own, half]))
}

/// The backend that the flags choose; Megatron if both do.
fn backend(r: &Recipe, w: &Worker) -> Option<Fact<Backend>> {
    let chosen = |flag: &Fact<bool>, backend: Backend, how: String| {
        Fact::derived(format!("backend of the {}", w.role), backend, how, &[flag])
    };
    let said = |flag: &Fact<bool>| format!("`{}` is {}", flag.name, flag.value);
    let megatron = r.flag(&w.at("megatron_cfg.enabled")).filter(|on| on.value);
    if let Some(on) = megatron {
        return Some(chosen(&on, Backend::Megatron, said(&on)));
    }
    let on = r.flag(&w.at("dtensor_cfg.enabled")).filter(|on| on.value)?;
    let path = w.at("dtensor_cfg._v2");
    Some(match r.flag(&path) {
        Some(second) if second.value => chosen(&second, Backend::Automodel, said(&second)),
        Some(first) => chosen(&first, Backend::Dtensor, said(&first)),
        None => chosen(&on, Backend::Dtensor, format!("`{path}` is not set")),
    })
}

fn mesh(r: &Recipe, w: &Worker) -> Mesh {
    let size = |name: &str| r.int(&w.cfg(name));
    if w.is(Backend::Megatron) {
        return Mesh {
            tp: size("tensor_model_parallel_size"),
            cp: size("context_parallel_size"),
            pp: size("pipeline_model_parallel_size"),
            ep: size("expert_model_parallel_size"),
            etp: size("expert_tensor_parallel_size"),
            vpp: size("virtual_pipeline_model_parallel_size"),
            dp_replicate: None,
            sp: r.flag(&w.cfg("sequence_parallel")),
        };
    }
    Mesh {
        tp: size("tensor_parallel_size"),
        cp: size("context_parallel_size"),
        ep: size("expert_parallel_size"),
        dp_replicate: size("dp_replicate_size"),
        sp: r.flag(&w.cfg("sequence_parallel")),
        ..Mesh::default()
    }
}

/// A teacher with nodes of its own; always Megatron.
fn scorer(r: &Recipe, files: &dyn Files, alias: &str, model: &str) -> Worker {
    let base = "on_policy_distillation.non_colocated_teachers.default_teacher_cfg";
    let mut w = Worker::new(Role::Scorer, base);
    w.section = base.to_string();
    let path = format!("on_policy_distillation.teacher_model_by_agent_name.{alias}");
    w.backend = r.text(&path).map(|name| {
        let how = "teachers with nodes of their own".to_string();
        Fact::derived("backend of the teacher", Backend::Megatron, how, &[&name])
    });
    let size = |name: &str| scorer_setting(r, alias, name);
    w.mesh = Mesh {
        tp: size("tensor_model_parallel_size"),
        cp: size("context_parallel_size"),
        pp: size("pipeline_model_parallel_size"),
        ep: size("expert_model_parallel_size"),
        // What is not said for teachers is as for the policy.
        sp: r
            .flag(&format!("{base}.sequence_parallel"))
            .or_else(|| r.flag("policy.megatron_cfg.sequence_parallel")),
        ..Mesh::default()
    };
    w.model = facts(files, model);
    let (nodes, each) = (size("num_nodes"), size("gpus_per_node"));
    let (n, g) = (nodes.as_ref().map_or(1, |n| n.value), each.as_ref().map_or(8, |g| g.value));
    let how = format!("{} * {g} GPUs", counted(n));
    w.gpus = Some(Fact::derived("GPUs of the teacher", n * g, how, &[&nodes, &each]));
    // It packs as the policy does.
    w.packing = r.flag("policy.sequence_packing.enabled");
    w
}
