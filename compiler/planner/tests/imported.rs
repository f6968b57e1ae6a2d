//! A recipe of NeMo RL and what `nrlc import` makes of it have one plan: the same text, the same habits of the software, and
//! so the same seconds, bytes and layouts to choose from.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "tests read files and tell"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nrl_base::{Files, SourceMap};
use nrl_planner::input::{Input, Planned, Request};
use nrl_planner::report::{Made, Report, screen};

/// A folder, and texts that the test put over it.
struct Folder {
    below: PathBuf,
    written: BTreeMap<String, String>,
}

impl Files for Folder {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        match self.written.get(path) {
            Some(text) => Ok(text.clone().into_bytes()),
            None => std::fs::read(self.below.join(path)).map_err(|e| e.to_string()),
        }
    }
}

fn open<'f>(files: &'f Folder, path: &str) -> Result<Input<'f>, String> {
    let request = Request { path: path.into(), ..Request::default() };
    let (input, found) = Input::open(files, &request);
    input.ok_or_else(|| first(&found.found))
}

/// The first error, without the names in it.
fn first(found: &[nrl_base::Diagnostic]) -> String {
    let Some(d) = found.iter().find(|d| d.is_error()) else { return String::new() };
    let parts = d.message.split('`').enumerate();
    let words: Vec<&str> = parts.map(|(i, part)| if i % 2 == 0 { part } else { ".." }).collect();
    let words = words.concat();
    let words: Vec<&str> = words.split(' ').filter(|w| !w.contains('/')).collect();
    format!("{}: {}", d.code, words.join(" "))
}

/// Seconds and bytes of a plan, as they are shown.
fn told(planned: &Planned) -> Vec<String> {
    let Some(f) = &planned.forecast else { return vec![] };
    let mut out = vec![format!("{} {}", f.stack, f.rates.product)];
    for s in &f.steps {
        out.push(format!("{} {} {}", s.name, s.seconds.value, s.padding));
        out.extend(s.phases.iter().map(|p| format!("{} {}", p.name, p.seconds.value)));
        out.extend(s.every.iter().map(|e| format!("{} {}", e.name, e.seconds.value)));
    }
    for m in &f.memory {
        let terms = m.terms.iter().map(|t| format!("{} {}", t.name, t.bytes));
        out.push(format!("{} {}", m.stage, terms.collect::<Vec<_>>().join(", ")));
    }
    out
}

/// Compares the plans of a recipe and of its import; why there are none, if there are none.
fn compare(below: &Path, path: &str) -> Result<(), String> {
    let mut files = Folder { below: below.to_path_buf(), written: BTreeMap::new() };
    let (text, found) =
        nrl_nemo::import(&mut nrl_nemo::Loader::new(&files), &mut SourceMap::new(), path, &[]);
    let text = text.unwrap_or_else(|| panic!("{path}: {found:?}"));
    let beside = format!("{path}.imported.nrl");
    files.written.insert(beside.clone(), text);
    // What no plan is made of says why before anything is compared.
    let yaml = open(&files, path)?;
    let nrl = open(&files, &beside)?;
    assert_eq!(yaml.text, nrl.text, "{path}");
    for (a, b) in [(&yaml.assume, &nrl.assume), (&yaml.options.assume, &nrl.options.assume)] {
        assert_eq!(a.framework, b.framework, "{path}");
        assert_eq!((&a.stack, a.compute), (&b.stack, b.compute), "{path}");
    }
    let ((a, why), (b, _)) = (yaml.plan(), nrl.plan());
    let (Some(a), Some(b)) = (a, b) else { return Err(first(&why.found)) };
    assert_eq!(told(&a), told(&b), "{path}");
    Ok(())
}

#[test]
fn our_own_recipes_and_their_imports_have_one_plan() {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nemo_rl");
    let mut planned = vec![];
    for name in [
        "async",
        "controller",
        "distillation",
        "dpo",
        "grpo",
        "gym",
        "megatron",
        "moe",
        "opd",
        "ppo",
        "ppom",
        "rm",
        "rows",
        "sft",
    ] {
        assert_eq!(compare(&below, &format!("{name}.yaml")), Ok(()), "{name} has no plan");
        planned.push(name);
    }
    assert_eq!(planned.len(), 14);
}

#[test]
fn shipped_recipes_and_their_imports_have_one_plan() {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo");
    let Ok(index) = std::fs::read_to_string(below.join("resolved/_index.json")) else {
        println!("skipped: the reference is not here");
        return;
    };
    let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    let paths = index.as_array().expect("a list").iter().filter_map(|e| e["recipe"].as_str());
    let below = below.join("recipes");
    let (mut all, mut planned) = (0, 0);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for path in paths {
        all += 1;
        match compare(&below, path) {
            Ok(()) => planned += 1,
            Err(why) => *reasons.entry(why).or_default() += 1,
        }
    }
    println!("{planned} of {all} recipes have a plan, the same from both sides");
    reasons.iter().for_each(|(why, n)| println!("{n:>4}  {why}"));
    assert!(planned > 140, "{planned} of {all}");
}

/// The plan of one of our own recipes with settings over it.
fn own(name: &str, overrides: &[&str]) -> Result<Planned, Vec<String>> {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nemo_rl");
    let files = Folder { below, written: BTreeMap::new() };
    let overrides = overrides.iter().map(|o| o.to_string()).collect();
    let request = Request { path: name.into(), overrides, ..Request::default() };
    let (input, found) = Input::open(&files, &request);
    let told = |found: &[nrl_base::Diagnostic]| found.iter().map(|d| d.message.clone()).collect();
    let (planned, found) = input.ok_or_else(|| told(&found.found))?.plan();
    planned.ok_or_else(|| told(&found.found))
}

#[test]
fn what_no_plan_is_made_of_says_why() {
    let told = |name: &str, overrides: &[&str]| match own(name, overrides) {
        Ok(_) => String::new(),
        Err(found) => found.join("\n"),
    };
    assert!(told("eval.yaml", &[]).contains("trains nothing"));
    let regression = ["policy.reward_model_cfg.reward_model_type=regression"];
    assert!(told("rm.yaml", &regression).contains("not one of Bradley and Terry"));
    assert!(told("xtoken.yaml", &[]).contains("across vocabularies"));
    let open = told("grpo.yaml", &["policy.model_name=null"]);
    assert_eq!(open, "`policy.model_name` is left open");
    let stands = told("distillation.yaml", &["teacher.model_name=/path/to/teacher"]);
    assert_eq!(stands, "`teacher.model_name` stands for a model of yours: `/path/to/teacher`");
    let alias = "on_policy_distillation.teacher_model_by_agent_name.math";
    let stands = told("opd.yaml", &[&format!("{alias}=/path/to/teacher")]);
    assert_eq!(stands, format!("`{alias}` stands for a model of yours: `/path/to/teacher`"));
}

/// A model that a recipe leaves open is named in NeMo RL's way or in that of the language.
#[test]
fn a_model_is_named_by_an_override_or_by_set() {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nemo_rl");
    let open = "defaults: grpo.yaml\npolicy: {model_name: null}\n".to_string();
    let files = Folder { below, written: BTreeMap::from([("open.yaml".to_string(), open)]) };
    let named = "policy.model_name=Qwen/Qwen3-8B".to_string();
    let told = |overrides: &[String], sets: &[String]| {
        let mut request = Request { path: "open.yaml".into(), ..Request::default() };
        request.overrides.extend_from_slice(overrides);
        request.options.sets.extend_from_slice(sets);
        let (input, found) = Input::open(&files, &request);
        let input = input.ok_or_else(|| first(&found.found))?;
        let (planned, found) = input.plan();
        planned.map(|planned| told(&planned)).ok_or_else(|| first(&found.found))
    };
    let said = told(&[], &[]);
    assert_eq!(said, Err("model-not-found: .. is left open".into()));
    let by_override = told(std::slice::from_ref(&named), &[]).expect("a plan");
    assert_eq!(told(&[], std::slice::from_ref(&named)), Ok(by_override.clone()));
    // What is no setting of the file is a value of the recipe in the language.
    let lr = "opt.lr=1e-6".to_string();
    assert_eq!(told(&[], &[named, lr]), Ok(by_override));
    let nothing = told(&[], &["policy.nothing=1".to_string()]);
    assert!(nothing.is_err(), "{nothing:?}");
}

/// Of four nodes one samples and one is the teacher's. Qwen3-4B has 4.022 G parameters (its `config.json`); in bf16 on
/// two ranks each that is 4.02 GB.
#[test]
fn teachers_have_nodes_of_their_own() {
    let ranks = |planned: &Planned| {
        let sizes = planned.compiled.program.meshes.iter().skip(1);
        sizes.map(|(_, m)| m.axes.iter().map(|a| a.size).product::<usize>()).collect::<Vec<_>>()
    };
    let shared = own("opd.yaml", &[]).expect("a plan");
    assert_eq!(ranks(&shared), [16, 8, 8]);
    let f = shared.forecast.as_ref().expect("a forecast");
    let score = f.memory.iter().find(|m| m.stage == "score by teacher").expect("a stage");
    let weights = score.terms.iter().find(|t| t.name == "weights").expect("a term").bytes;
    assert!((weights / 4.022e9 - 1.0).abs() < 0.01, "{weights}");

    // Another checkpoint is another teacher, with as many nodes.
    let more = ["on_policy_distillation.teacher_model_by_agent_name.code=Qwen/Qwen3-8B"];
    let two = own("opd.yaml", &more).expect("a plan");
    assert_eq!(ranks(&two), [8, 16, 8]);
    let said = |planned: &Planned, what: &str| {
        let notes = &planned.compiled.framework.notes;
        notes.iter().any(|n| n.contains(what))
    };
    assert!(said(&two, "2 teachers share `judges`") && !said(&shared, "teachers share"));

    // Nodes that are given to one teacher alone have no line.
    let key = "on_policy_distillation.non_colocated_teachers.teacher_overrides";
    let one = own("opd.yaml", &[&format!("+{key}={{math: {{num_nodes: 2}}}}")]);
    let told = "opd.yaml gives its teachers nodes that differ, of which no plan is made yet";
    assert_eq!(one.map(|_| ()), Err(vec![told.to_string()]));
}

/// Weights between two bounds, fewer tokens than the vocabulary, and an environment that evaluation alone asks.
#[test]
fn losses_and_rewards_of_recipes_plan() {
    let held = [
        "loss_fn.use_importance_sampling_correction=true",
        "loss_fn.truncated_importance_sampling_type=tis",
        "loss_fn.truncated_importance_sampling_ratio=5.0",
        "loss_fn.truncated_importance_sampling_ratio_min=0.2",
        "policy.generation.top_p=0.95",
        "policy.generation.top_k=50",
    ];
    assert!(own("grpo.yaml", &held).is_ok());
    assert!(own("distillation.yaml", &["data.default.env_name=nemo_gym"]).is_ok());
    let unknown = ["loss_fn.truncated_importance_sampling_type=other"];
    let said = own("grpo.yaml", &[&held[..1], &unknown[..]].concat());
    assert!(
        said.is_err_and(|found| found[0] == "the loss of grpo.yaml has no form in the language")
    );
}

/// Trainers go on with positions that a model was not made for (Qwen2.5-Math has 4,096).
#[test]
fn a_long_context_is_planned_where_nothing_samples() {
    let long = ["policy.model_name=Qwen/Qwen2.5-Math-7B", "policy.max_total_sequence_length=16384"];
    assert!(own("sft.yaml", &long).is_ok());
    assert!(own("grpo.yaml", &long).is_err_and(|found| found[0].contains("positions for 4096")));
}

/// A forward pass is a third of the products of an update: `val_batches` x `val_global_batch_size` rows take between a
/// fifth and the whole of what an update of as many takes.
#[test]
fn validation_by_the_loss_is_a_forward_pass_over_its_rows() {
    let (batches, rows) = (8.0, 32.0);
    let sizes =
        [format!("++sft.val_batches={batches}"), format!("++sft.val_global_batch_size={rows}")];
    let planned = own("sft.yaml", &sizes.each_ref().map(String::as_str)).expect("a plan");
    let step = &planned.forecast.expect("a forecast").steps[0];
    let update = step.phases.iter().find(|p| p.name == "update policy").expect("an update");
    let per_row = update.seconds.value / step.samples;
    let validation = step.every.iter().find(|e| e.name.starts_with("validate ")).expect("one");
    let share = validation.seconds.value / (batches * rows * per_row);
    assert!((0.2..1.0).contains(&share), "{share}: {validation:?}");
}

/// Weights of 1.54 G parameters in four bytes, twice, and gradients in four: 18.5 GB over 8 ranks cross the link of a rank
/// in every micro-batch, 0.12 s at 20 GB/s. Computation hides some of it, and Adam on hosts takes longer than on devices.
#[test]
fn what_stays_on_hosts_takes_time() {
    let seconds = |overrides: &[&str]| {
        let planned = own("grpo.yaml", overrides).expect("a plan");
        let f = planned.forecast.expect("a forecast");
        let update = f.steps[0].phases.iter().find(|p| p.name == "update policy").expect("one");
        let links = f.assumed.iter().any(|a| a.what == "links to hosts");
        let optimizer = update.parts.iter().find(|p| p.name == "optimizer").expect("a part");
        (update.seconds.value, optimizer.seconds, links)
    };
    let (here, stepped_here, none) = seconds(&[]);
    let (away, stepped_away, links) = seconds(&["policy.dtensor_cfg.cpu_offload=true"]);
    assert!(!none && links);
    // 1.54 G / 8 x 1.6 ns = 0.31 s in each of two updates.
    assert!((stepped_away - 0.617).abs() < 0.01, "{stepped_away}");
    assert!(stepped_here < 0.1 * stepped_away && away > here + 0.5, "{here} {away}");
}

/// NVIDIA ships this one for 64 devices of 80 GB. At 4,096 tokens at once, 2 x 40 layers keep 117,760 bytes per token each (what
/// enters and the norms are whole, the rest is over tp 4), 36 GiB, and it does not fit; answers of its data are shorter.
#[test]
fn a_bound_that_short_samples_do_not_reach_is_told() {
    let below = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/nemo/recipes");
    let path = "examples/configs/recipes/llm/sft-llama3.1-70b-8n8g-tp4pp2-long-megatron.yaml";
    if !below.join(path).exists() {
        println!("skipped: the reference is not here");
        return;
    }
    let files = Folder { below, written: BTreeMap::new() };
    let planned = open(&files, path).expect("an input").plan().0.expect("a plan");
    let made = Made {
        compiled: &planned.compiled,
        forecast: planned.forecast.as_ref(),
        sources: &planned.sources,
        file: path,
    };
    let report = Report::of(&made);
    let update = report.memory.stages.iter().find(|s| s.name == "update policy").expect("one");
    let term = |name: &str| update.terms.iter().find(|t| t.name == name).expect("a term");
    let kept = 2.0 * 40.0 * 4096.0 * 117_760.0;
    assert!((term("activations").bytes / kept - 1.0).abs() < 0.02, "{}", term("activations").bytes);
    assert!(term("optimizer").how.contains("of 10 bytes"), "{}", term("optimizer").how);
    let text = screen(&report, 400);
    assert!(text.contains("% of its tokens at once it fits"), "{text}");
}
