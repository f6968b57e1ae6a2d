//! Rules of recipes on `.nrl` files: what they find, and that they find nothing in the examples.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::Path;

use nrl_base::{Diagnostic, Severity, SourceMap};
use nrl_driver::{Options, check};

const RECIPE: &str = r#"use std.{clusters, data, grpo, models, optim, plans, rewards}

recipe r(prompts = 16 prompts, copies = 8 samples/prompt) {
  run 10 steps
  gpus   = clusters.h100(nodes: 2)
  mesh m = gpus axes (dp: rest, tp: 2)
  policy = models.load("meta-llama/Llama-3.1-8B-Instruct", dtype: bf16, context: 4096 tokens)
  place policy on m by plans.megatron(sp: true)
  opt     = optim.adamw(lr: 1e-6)
  sampler = generator(policy)
  rows    = data.jsonl("rows.jsonl", prompt: "q", answer: "a") | at_most(1024 tokens, else: drop)
  step {
    s   = sampler.generate(rows.take(prompts), copies, max_new: 1024 tokens)
    adv = grpo.advantages(rewards.exact(s), baseline: leave_one_out, scale: std)
    update policy by opt in 1 update, 8192 tokens/microbatch, minimising {
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.28), over: tokens)
    }
  }
}
"#;

fn all_findings(changes: &[(&str, &str)]) -> (Vec<Diagnostic>, SourceMap) {
    let mut text = RECIPE.to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "`{from}` is not in the recipe");
        text = text.replace(from, to);
    }
    let files = BTreeMap::from([("r.nrl".to_string(), text)]);
    let mut sources = SourceMap::new();
    let found = check(&files, &mut sources, "r.nrl", &Options::default()).1;
    (found, sources)
}

/// Errors and warnings.
fn findings(changes: &[(&str, &str)]) -> (Vec<Diagnostic>, SourceMap) {
    let (mut found, sources) = all_findings(changes);
    found.retain(|d| d.severity != Severity::Note);
    (found, sources)
}

fn codes(changes: &[(&str, &str)]) -> Vec<&'static str> {
    findings(changes).0.iter().map(|d| d.code).collect()
}

#[test]
fn a_good_recipe_has_no_findings() {
    assert_eq!(codes(&[]), [""; 0], "{:#?}", findings(&[]).0);
}

#[test]
fn a_pool_may_be_a_part_of_a_node() {
    let pools =
        "gpus   = clusters.h100(nodes: 1)\n  pool learn, speak = gpus split (rest, 4 ranks)";
    let apart = [
        ("gpus   = clusters.h100(nodes: 2)", pools),
        ("mesh m = gpus axes", "mesh m = learn axes"),
        (
            "sampler = generator(policy)",
            "mesh g = speak axes (rep: rest)\n  sampler = generator(policy, on: g)",
        ),
    ];
    assert_eq!(codes(&apart), [""; 0], "{:#?}", findings(&apart).0);
}

#[test]
fn one_sample_of_each_prompt_cannot_teach() {
    let (found, sources) = findings(&[("copies = 8 samples", "copies = 1 samples")]);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].code, "no-learning-signal");
    assert_eq!(
        found[0].message,
        "every advantage is 0: with 1 sample/prompt the baseline is the sample's own reward"
    );
    let at = sources.text(found[0].labels[0].span);
    assert!(at.starts_with("sampler.generate("), "{at}");
}

#[test]
fn a_tensor_parallel_group_over_two_nodes_is_told() {
    let model = ("meta-llama/Llama-3.1-8B-Instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct");
    let (found, _) = all_findings(&[("tp: 2", "tp: 16"), model]);
    let told: Vec<_> = found.iter().filter(|d| d.code == "group-crosses-nodes").collect();
    assert_eq!(told.len(), 1, "{found:#?}");
    let (found, _) = all_findings(&[("tp: 2", "tp: 8"), model]);
    assert!(!found.iter().any(|d| d.code == "group-crosses-nodes"), "{found:#?}");
}

#[test]
fn a_sequence_over_the_budget_of_a_micro_batch_is_told() {
    let (found, _) = findings(&[("8192 tokens/microbatch", "1536 tokens/microbatch")]);
    assert_eq!(found.iter().map(|d| d.code).collect::<Vec<_>>(), ["sequence-over-budget"]);
    let text = format!("{:?}", found[0]);
    assert!(text.contains("2048") && text.contains("1536"), "{text}");
}

#[test]
fn the_examples_have_no_findings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut tried, mut bad) = (0, vec![]);
    for folder in ["examples", "examples/recipes"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder of examples") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|e| e != "nrl") || path.ends_with("smollm2_grpo.nrl") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("an example");
            // Files beside an example are named and not read by a check.
            let mut files = BTreeMap::from([("r.nrl".to_string(), text)]);
            files.insert("tools.txt".to_string(), "Use the tools.".to_string());
            let mut found = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default()).1;
            found.retain(|d| d.severity != Severity::Note);
            bad.extend(found.iter().map(|d| {
                let notes = d.notes.join("; ");
                format!("{}: {}: {} ({notes})", path.display(), d.code, d.message)
            }));
            tried += 1;
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(tried >= 8, "{tried} examples");
}

/// A line of a parent in another file is shown there.
#[test]
fn findings_about_an_inherited_step_are_in_its_file() {
    let child =
        "use \"base.nrl\".{r}\n\nrecipe child extends r {\n  set copies = 1 samples/prompt\n}\n";
    let files = BTreeMap::from([
        ("base.nrl".to_string(), RECIPE.to_string()),
        ("child.nrl".to_string(), child.to_string()),
    ]);
    let mut sources = SourceMap::new();
    let found = check(&files, &mut sources, "child.nrl", &Options::default()).1;
    let zero = found.iter().find(|d| d.code == "no-learning-signal");
    let zero = zero.unwrap_or_else(|| panic!("{found:#?}"));
    let place = sources.place(zero.labels[0].span);
    assert!(place.starts_with("base.nrl:"), "{place}");
    assert!(sources.text(zero.labels[0].span).starts_with("sampler.generate"), "{place}");
}

/// 5e-7 changes no weight in bf16 above 2^-12; of a normal law of deviation 0.02 that is 99.03 %.
#[test]
fn updates_that_bf16_rounds_away_are_told() {
    let with = |opt: &str| findings(&[("optim.adamw(lr: 1e-6)", opt)]).0;
    let found = with("optim.adamw(lr: optim.warmup(5e-7, 10 updates), master: bf16)");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].code, found[0].severity), ("update-below-precision", Severity::Warning));
    assert_eq!(
        found[0].message,
        "bf16 weights without master copies: an update of 5e-7 rounds away for 99 % of weights (typical size 0.02)"
    );
    assert!(found[0].help.as_ref().is_some_and(|h| h.starts_with("`master: f32`")), "{found:#?}");
    assert_eq!(with("optim.adamw(lr: 5e-7, master: f32)"), []);
    assert_eq!(with("optim.adamw(lr: 1e-3, master: bf16)"), []);
}

/// What a gradient descent moves depends on its gradients, which nobody knows before the run.
#[test]
fn updates_of_unknown_size_are_not_judged() {
    let own = "optimizer(lr: t -> 5e-7, state: [], master: bf16, rule: (w, g, t, lr, decay) -> w - lr * g)";
    let (found, _) = findings(&[("optim.adamw(lr: 1e-6)", own)]);
    assert!(!found.iter().any(|d| d.code == "update-below-precision"), "{found:#?}");
}

const TURNS: &str = r#"extern env box from "python box.py", 4 workers, deadline 5 s {
  fn open(p: Row) -> Session
  fn grade(s: Session, answer: text) -> float in 0..1
}

rollout talk(p: Row, gen: Generator) -> Sample {
  session = box.open(p)
  words   = chat(user: p.prompt)
  for turn in 1..=3 carrying words until done {
    words = words + gen.reply(words, max_new: 64 tokens)
    words = words + user("go on")
  }
  Sample(words, reward: box.grade(session, words.last))
}

recipe r("#;

/// A template as Qwen3's: what was thought before the last question is not written.
const FORGETS: &str = "{%- set ns = namespace(last=0) %}{%- for m in messages %}{% if m.role == 'user' %}\
    {% set ns.last = loop.index0 %}{% endif %}{% endfor %}{%- for m in messages %}[{{ m.role }}]\
    {% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] }}\
    {% else %}{{ m.content }}{% endif %}{% endfor %}";

#[test]
fn a_template_that_forgets_is_told_of_in_a_rollout() {
    let rollout = [
        ("recipe r(", TURNS),
        (
            "sampler.generate(rows.take(prompts), copies, max_new: 1024 tokens)",
            "talk(rows.take(prompts), sampler, copies)",
        ),
        ("grpo.advantages(rewards.exact(s), ", "grpo.advantages(s.reward, "),
    ];
    let told = |model: &str, template: Option<&str>| {
        let mut text = RECIPE.to_string();
        for (from, to) in rollout {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        text = text.replace("meta-llama/Llama-3.1-8B-Instruct", model);
        let mut files = BTreeMap::from([("r.nrl".to_string(), text)]);
        if let Some(template) = template {
            files.insert(format!("{model}/chat_template.jinja"), template.to_string());
        }
        let found = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default()).1;
        assert!(found.iter().all(|d| !d.is_error()), "{found:#?}");
        let mut of = found.into_iter().filter(|d| d.code == "template-rewrites-history");
        of.next().map(|d| (d.severity, d.message))
    };
    let (severity, message) = told("Qwen/Qwen3-8B", None).expect("a family that forgets");
    assert_eq!(severity, Severity::Note);
    assert_eq!(
        message,
        "the chat template drops earlier <think> blocks; the tokens of a rollout stay as they were drawn"
    );
    assert_eq!(told("Qwen/Qwen2.5-7B-Instruct", None), None);
    // The file counts, not the name.
    assert!(told("Qwen/Qwen2.5-7B-Instruct", Some(FORGETS)).is_some());
    let keeps = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_eq!(told("Qwen/Qwen3-8B", Some(keeps)), None);
}

/// The first checkpoint against the limit of the run, and against that of the job.
#[test]
fn a_first_checkpoint_behind_the_limit_is_told() {
    let told = |run: &str, every: &str, job: Option<f64>| {
        let text = RECIPE.replace("run 10 steps", run).replacen(
            "  step {",
            &format!("  {every}\n  step {{"),
            1,
        );
        let files = BTreeMap::from([("r.nrl".to_string(), text)]);
        let options = Options { job, ..Options::default() };
        let mut found = check(&files, &mut SourceMap::new(), "r.nrl", &options).1;
        found.retain(|d| d.severity != Severity::Note);
        found.iter().map(|d| (d.code, d.message.clone(), d.help.clone())).collect::<Vec<_>>()
    };
    let save = "every 5000 steps { checkpoint keep 2, and the latest }";
    let found = told("run 9000 steps within 4 h", save, None);
    let [(code, message, help)] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(*code, "no-checkpoint-in-time");
    assert!(
        message.starts_with(
            "the run ends after 4 h 00 min; the first checkpoint is at step 5000, predicted at "
        ),
        "{message}"
    );
    let help = help.as_ref().expect("what to type");
    assert!(help.starts_with("`every ") && help.contains("`within "), "{help}");
    let often = "every 2 steps { checkpoint keep 2, and the latest }";
    assert_eq!(told("run 9000 steps within 4 h", often, None), []);
    assert_eq!(told("run 9000 steps", save, None), []);
    // From outside: the job is killed; the run would have stopped later.
    let found = told("run 9000 steps", save, Some(14_400.0));
    assert!(found[0].1.starts_with("the job ends after 4 h 00 min; "), "{found:#?}");
    let found = told("run 9000 steps within 4 h", often, Some(12_600.0));
    assert_eq!(
        found[0].1,
        "the run saves and stops after 4 h 00 min, the job ends after 3 h 30 min"
    );
    assert_eq!(found[0].2.as_deref(), Some("`within 200 min`, which leaves time to save"));
    // Without a schedule everything is saved at the end, which the job does not see.
    let found = told("run 9000 steps", "", Some(3_600.0));
    assert!(found[0].1.contains("the first checkpoint is at step 9000"), "{found:#?}");
    assert_eq!(told("run 9000 steps within 50 min", "", Some(3_600.0)), []);
}

/// Megatron's plan has rules for experts and for axes that a dense model on two axes does not have.
#[test]
fn rules_of_the_library_that_can_do_nothing_are_named() {
    let files = BTreeMap::from([("r.nrl".to_string(), RECIPE.to_string())]);
    let compiled = check(&files, &mut SourceMap::new(), "r.nrl", &Options::default()).0;
    let inert = &compiled.expect("compiles").inert[0];
    assert!(inert.iter().any(|r| r == "`expert: @ep`: llama has no dim `expert`"), "{inert:?}");
    // What splits heads acts, since the mesh has tp.
    assert!(!inert.iter().any(|r| r.starts_with("`q: @tp`")), "{inert:?}");
}
