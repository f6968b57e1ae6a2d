//! A session as it runs in a pipe, and plans of recipes in both languages.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nrl_planner::explain::explain;
use nrl_planner::input::{Input, Request};
use nrl_planner::report::{Made, Report, changes, screen};
use nrl_planner::session::Session;

const RECIPE: &str = r#"use std.{clusters, data, grpo, models, optim, plans, rewards}

recipe small(copies = 16 samples/prompt) {
  run 100 steps within 10 h, seed 1
  gpus       = clusters.h100(nodes: 2)
  mesh train = gpus axes (dp: rest, tp: 2)
  mesh roll  = gpus axes (rep: rest, tp: 1)
  policy = models.load("meta-llama/Llama-3.1-8B", dtype: bf16, context: 4096 tokens)
  ref    = frozen(policy)
  opt    = optim.adamw(lr: 1e-6, clip_norm: 1.0)
  place policy, ref on train by plans.megatron(sp: true)
  sampler  = generator(policy, on: roll, temperature: 1.0)
  problems = data.jsonl("p.jsonl", prompt: "question", answer: "answer")
  step {
    s   = sampler.generate(problems.take(64 prompts), copies, max_new: 3072 tokens)
    r   = rewards.boxed_answer(s)
    adv = grpo.advantages(r, baseline: leave_one_out, scale: std)
    old = logprob(policy, s)
    update policy by opt in 2 updates, 8192 tokens/microbatch, minimising {
      mean(grpo.clip(ratio(logprob(policy, s), old), adv, 0.2..0.28), over: tokens)
        + 0.01 * mean(k3(logprob(policy, s), logprob(ref, s)), over: tokens)
    }
  }
  every 10 steps {
    checkpoint keep 2, and the latest
  }
}
"#;

fn files() -> BTreeMap<String, String> {
    let lengths: String =
        (1..=100).map(|i| format!("{{\"response_length\": {}}}\n", i * 10)).collect();
    let metrics = "{\"seconds/step\": 900}\n{\"seconds/step\": 10, \"seconds/update\": 4}\n\
                   {\"seconds/step\": 30, \"seconds/update\": 6}\n{\"seconds/step\": 20, \"seconds/update\": 5}\n";
    BTreeMap::from([
        ("small.nrl".to_string(), RECIPE.to_string()),
        ("lengths.jsonl".to_string(), lengths),
        ("metrics.jsonl".to_string(), metrics.to_string()),
    ])
}

fn request(path: &str) -> Request {
    Request { path: path.into(), ..Request::default() }
}

fn open(files: &BTreeMap<String, String>) -> Session<'_> {
    match Session::new(files, &request("small.nrl")) {
        Ok((session, _)) => session,
        Err(found) => panic!("{:#?}", found.found),
    }
}

fn report(files: &BTreeMap<String, String>, path: &str) -> Report {
    let (input, found) = Input::open(files, &request(path));
    let input = input.unwrap_or_else(|| panic!("{:#?}", found.found));
    let (planned, found) = input.plan();
    let planned = planned.unwrap_or_else(|| panic!("{:#?}", found.found));
    let made = Made {
        compiled: &planned.compiled,
        forecast: planned.forecast.as_ref(),
        sources: &planned.sources,
        file: path,
    };
    let mut report = Report::of(&made);
    report.changes = changes(&input, &planned);
    report
}

#[test]
fn a_report_adds_up() {
    let r = report(&files(), "small.nrl");
    // 8,030,261,248 weights of the published checkpoint; 2 + 12 bytes of each are saved.
    assert_eq!(r.models[0].parameters, 8_030_261_248.0);
    assert_eq!(r.run.checkpoint_bytes, 14.0 * 8_030_261_248.0);
    assert_eq!((r.run.devices, r.run.steps), (16, 100));
    for s in &r.steps {
        let sum: f64 = s.phases.iter().map(|p| p.seconds.value).sum();
        assert!(sum >= s.seconds.value * 0.999, "{sum} {}", s.seconds.value);
        assert!(s.seconds.low < s.seconds.value && s.seconds.value < s.seconds.high);
        assert_eq!(s.every.len(), 1, "{:?}", s.every);
        let more = s.every[0].per_step_seconds.value;
        assert!((s.average_seconds.value - s.seconds.value - more).abs() < 1e-9);
        let hours = s.average_seconds.value * 100.0 * 16.0 / 3600.0;
        assert!((r.run.device_hours / hours - 1.0).abs() < 1e-9);
    }
    for m in &r.memory.stages {
        let sum: f64 = m.terms.iter().map(|t| t.bytes).sum();
        assert!((sum / m.bytes - 1.0).abs() < 1e-9, "{}: {sum} {}", m.name, m.bytes);
        assert_eq!(m.margin_bytes, m.device_bytes - m.bytes);
    }
    let text = screen(&r, 118);
    for want in
        ["8.03 B", "16 x H100 (2 nodes x 8)", "LAYOUT", "TIME", "MEMORY", "GUESS", "not modelled"]
    {
        assert!(text.contains(want), "no {want} in\n{text}");
    }
}

/// Runs near a layout correct all that is shown of it, not its sum alone.
#[test]
fn what_is_drawn_takes_what_the_phase_takes() {
    // Of published runs on Megatron-Bridge: Llama 3 70B on 64 H100, interleaved.
    let text = r#"use std.{clusters, data, models, optim, plans, sft}

recipe seventy {
  run 10 steps
  gpus   = clusters.h100(nodes: 8)
  mesh m = gpus axes (pp: 8, dp: 2, tp: 4)
  policy = models.load("meta-llama/Llama-3.1-70B", dtype: bf16, context: 8192 tokens)
  place policy on m by plans.megatron(sp: true, chunks: 5)
  opt  = optim.adamw(lr: 1e-5)
  rows = data.made(100000 rows, i -> {prompt: "a", answer: "b"})
  step {
    b = rows.take(256 samples)
    update policy by opt in 1 update, 8192 tokens/microbatch, minimising { sft.nll(policy, b) }
  }
  assume lengths = always(8192 tokens)
}
"#;
    let files = BTreeMap::from([("r.nrl".to_string(), text.to_string())]);
    let r = report(&files, "r.nrl");
    let (phase, line) = (&r.steps[0].phases[0], &r.pipelines[0]);
    let part =
        |name: &str| phase.parts.iter().filter(|p| p.name == name).map(|p| p.seconds).sum::<f64>();
    let beside = part("gradients and weights") + part("optimizer") + part("fixed");
    let share = (line.seconds + beside) / phase.seconds.value;
    assert!((share - 1.0).abs() < 1e-6, "{share} {:?}", phase.parts);
}

#[test]
fn changes_are_compiled_and_say_whether_the_mathematics_stays() {
    let r = report(&files(), "small.nrl");
    assert!(r.changes.len() >= 3, "{:#?}", r.changes);
    for c in &r.changes {
        let maths = ["updates", "max_new", "without"].iter().any(|w| c.change.contains(w));
        assert_eq!(c.same_mathematics, !maths, "{}", c.change);
        for set in &c.set {
            let mut changed = request("small.nrl");
            changed.options.sets.push(set.clone());
            let files = files();
            let (input, _) = Input::open(&files, &changed);
            let planned = input.and_then(|i| i.plan().0).expect("a variant that compiles");
            let forecast = planned.forecast.expect("a forecast");
            let seconds = forecast.steps[0].seconds.value;
            assert!((seconds / c.step_seconds - 1.0).abs() < 1e-12, "{set}: {seconds}");
        }
    }
}

#[test]
fn a_session_answers_every_command() {
    let files = files();
    let mut session = open(&files);
    let ask = |session: &mut Session<'_>, line: &str| {
        let a = session.line(line);
        assert!(!a.failed, "{line}: {}", a.text);
        a.text
    };
    let has = |text: &str, want: &[&str]| {
        for w in want {
            assert!(text.contains(w), "no `{w}` in\n{text}");
        }
    };
    has(&ask(&mut session, "set train.tp = 4"), &["dp 8  tp 2 -> dp 4  tp 4", "update policy"]);
    has(&ask(&mut session, "diff"), &["-   mesh train = gpus axes (dp: rest, tp: 2)", "tp: 4"]);
    has(&ask(&mut session, "undo"), &["dp 4  tp 4 -> dp 8  tp 2"]);
    assert_eq!(session.text(), RECIPE, "undo leaves nothing behind");
    has(&ask(&mut session, "why memory update"), &["weights", "activations", "sum"]);
    has(&ask(&mut session, "why time update"), &["products", "MFU", "rests on"]);
    has(&ask(&mut session, "why weights"), &["update policy", "sample by sampler"]);
    has(&ask(&mut session, "why time checkpoint"), &["every 10 steps", "in the mean, GUESS"]);
    has(&ask(&mut session, "why memory checkpoint"), &["at steps 10, 20, ..", "optimizer"]);
    // Twelve bytes of each weight on two nodes.
    has(&ask(&mut session, "why host"), &["2 nodes of gpus", "optimizer of policy", "48 GB"]);
    assert!(!ask(&mut session, "why time sample").contains("refit"));
    // 8 key/value heads can be cut over 1, 2, 4 and 8 ranks.
    has(&ask(&mut session, "legal train.tp"), &["1", "2", "4", "8", "more than 8 leaves the node"]);
    has(&ask(&mut session, "legal place.policy.by.sp"), &["false", "true"]);
    has(&ask(&mut session, "fits on 8 GPUs?"), &["8 GPUs: "]);
    let kept = ask(&mut session, "search for time keep maths tp pp plan");
    has(&kept, &["for the shortest step", "same maths"]);
    assert!(!kept.contains(" no\n"), "layouts that learn another thing:\n{kept}");
    has(
        &ask(&mut session, "price 500 steps"),
        &["500 steps = ", "GPU-hours on 16 GPUs", "112 GB each"],
    );
    assert_eq!(ask(&mut session, "types adv"), "f32[seq]   seq ragged\n");
    assert_eq!(ask(&mut session, "ratio(logprob(policy, s), old)"), "f32[tok]   tok ragged\n");
    has(&ask(&mut session, "policy.layers.wq"), &["q@tp 32", "in 32 layers"]);
    // Lengths 10, 20 .. 1000 have the mean 505.
    has(&ask(&mut session, "lengths from lengths.jsonl"), &["100 samples, mean 505", "most 1000"]);
    has(session.text(), &["assume lengths = lognormal(mean: 505 tokens, p99: 990 tokens)"]);
    // The first step does not count; the medians of the others are 20 and 5.
    has(&ask(&mut session, "compare metrics.jsonl"), &["5.0 s", "20 s", "3 steps"]);
    has(&ask(&mut session, "plan"), &["IF YOU CHANGE"]);
    has(&ask(&mut session, "help"), &["set PATH = VALUE"]);
    let written = session.line("write");
    let (path, text) = written.write.expect("a file to write");
    assert_eq!((path.as_str(), text.as_str()), ("small.nrl", session.text()));
    assert_eq!(ask(&mut session, "diff"), "nothing changed\n");
    assert!(session.line("quit").quit);
}

#[test]
fn an_answer_that_fails_says_what_to_type_and_ends_nothing() {
    let files = files();
    let mut session = open(&files);
    for (line, want) in [
        ("set train.tp = 3", "3 must divide 16"),
        ("set train.pq = 4", "did you mean `train.dp`?"),
        ("set train.tp", "write `set PATH = VALUE`"),
        ("wriet", "did you mean `write`?"),
        ("types foo + 1", "there is no `foo` here"),
        ("why nonsense", "stages are sample by sampler"),
        ("lengths from nowhere.jsonl", "cannot read nowhere.jsonl"),
        ("undo", "nothing was changed"),
        ("explain policy.layers.wk2", "did you mean `policy.layers.wk`?"),
    ] {
        let a = session.line(line);
        assert!(a.failed && a.text.contains(want), "{line}: {}", a.text);
        assert_eq!(session.text(), RECIPE, "{line} changed something");
    }
    assert!(!session.line("plan").failed);
}

#[test]
fn words_are_completed_where_they_mean_something() {
    let files = files();
    let session = open(&files);
    let words = |line: &str| session.complete(line, line.len()).1;
    assert_eq!(words("und"), ["undo"]);
    assert_eq!(words("set train.t"), ["train.tp"]);
    assert!(words("explain policy.layers.w").contains(&"policy.layers.wq".to_string()));
    assert_eq!(words("as "), ["nemo"]);
    assert_eq!(session.complete("set train.t", 11).0, 4);
}

#[test]
fn values_say_where_they_come_from() {
    let files = files();
    let (input, _) = Input::open(&files, &request("small.nrl"));
    let input = input.expect("a recipe");
    let planned = input.plan().0.expect("a plan");
    let told = |path: &str| explain(&input, &planned, path).unwrap_or_else(|why| panic!("{why}"));
    let dp = told("train.dp");
    assert!(dp.contains("train.dp = 8") && dp.contains("16 ranks / (tp 2) = 8"), "{dp}");
    let wq = told("policy.layers.wq");
    assert!(
        wq.contains("model.layers.{i}.self_attn.q_proj.weight") && wq.contains("zero1"),
        "{wq}"
    );
    let beta = told("opt.beta1");
    assert!(beta.contains("opt.beta1 = 0.9") && beta.contains("std.optim.adamw"), "{beta}");
    assert!(told("policy.hidden_size").contains("table of published checkpoints"));
}

#[test]
fn yaml_of_nemo_rl_is_planned_for_a_device_that_is_guessed_or_given() {
    let yaml = include_str!("../../../examples/nemo_rl/megatron.yaml");
    let base = include_str!("../../../examples/nemo_rl/grpo.yaml");
    let files = BTreeMap::from([
        ("megatron.yaml".to_string(), yaml.to_string()),
        ("grpo.yaml".to_string(), base.to_string()),
    ]);
    let r = report(&files, "megatron.yaml");
    assert_eq!(r.clusters[0].device, "H100");
    let gpu = r.assumptions.iter().find(|a| a.what == "GPU").expect("a guess");
    assert_eq!((gpu.value.as_str(), gpu.source.as_str()), ("H100", "guess"));
    let mut given = request("megatron.yaml");
    given.gpu = Some("h200".into());
    let (input, _) = Input::open(&files, &given);
    let planned = input.and_then(|i| i.plan().0).expect("a plan");
    assert_eq!(planned.forecast.expect("a forecast").device, "H200");
    given.gpu = Some("h300".into());
    let (input, found) = Input::open(&files, &given);
    assert!(input.is_none() && found.found.iter().any(|d| d.message.contains("`h300`")));
}

/// A recipe of 405 G parameters on 16,128 devices.
#[test]
fn a_changed_axis_of_a_large_recipe_is_answered_at_once() {
    let large = RECIPE
        .replace("h100(nodes: 2)", "h100(nodes: 2016)")
        .replace("(dp: rest, tp: 2)", "(dp: rest, pp: 14, tp: 8)")
        .replace("(rep: rest, tp: 1)", "(rep: rest, tp: 8, pp: 2)")
        .replace("Llama-3.1-8B", "Llama-3.1-405B")
        .replace("64 prompts", "576 prompts");
    let files = BTreeMap::from([("small.nrl".to_string(), large)]);
    let mut session = open(&files);
    let mut best = Duration::MAX;
    for tp in [4, 8, 4, 8, 4, 8] {
        let start = Instant::now();
        let a = session.line(&format!("set train.tp = {tp}"));
        best = best.min(start.elapsed());
        assert!(!a.failed, "{}", a.text);
    }
    // Without optimization and beside other tests; a release build needs a fraction of it.
    assert!(best < Duration::from_millis(400), "{best:?}");
}
