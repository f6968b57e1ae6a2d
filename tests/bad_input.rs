//! Bad input gets one clear error that says what to type: never a panic, a hang, or silence.

use std::time::{Duration, Instant};

use crate::support::{Bench, DATA, Ran, recipe};

fn tiny(change: &[(&str, &str)]) -> Bench {
    let b = Bench::new();
    b.model("llama", "model").write("data.jsonl", DATA).write("r.nrl", recipe(change));
    b
}

#[test]
fn an_unknown_name_suggests_the_nearest() {
    tiny(&[("grpo.advantages", "grpo.advantagse")])
        .run(&["check", "r.nrl"])
        .fails("unknown-name", &["`advantagse`", "did you mean `advantages`?"]);
}

#[test]
fn dims_that_do_not_match_name_both() {
    let b = tiny(&[("adv, 0.2..0.28), over", "s.logprob, 0.2..0.28), over")]);
    b.run(&["check", "r.nrl"]).fails("dim-mismatch", &["[seq]", "[act]"]);
}

#[test]
fn heads_must_divide_by_tp() {
    let b = Bench::new();
    b.model("llama-9-heads", "model")
        .write("data.jsonl", DATA)
        .write("r.nrl", recipe(&[("ranks: 1", "ranks: 2"), ("tp: 1", "tp: 2")]));
    b.run(&["check", "r.nrl"]).fails("heads-not-divisible", &["9", "tp = 2", "tp may be 1, 3"]);
}

#[test]
fn a_mesh_must_fill_its_cluster() {
    let b = tiny(&[("dp: rest, tp: 1", "dp: 2, tp: 2")]);
    b.run(&["check", "r.nrl"]).fails("mesh-does-not-fill", &["dp 2 * tp 2", "the cluster has 1"]);
}

#[test]
fn a_batch_must_divide_by_its_updates_and_ranks() {
    tiny(&[("in 1 update", "in 3 updates")])
        .run(&["check", "r.nrl"])
        .fails("batch-not-divisible", &["3 updates", "8"]);
    tiny(&[("ranks: 1", "ranks: 3")])
        .run(&["check", "r.nrl"])
        .fails("batch-not-divisible", &["8 samples", "3 data-parallel ranks"]);
}

#[test]
fn a_prompt_that_fills_the_context_is_an_error_before_training() {
    let long = format!(
        "{{\"question\": \"{}\", \"answer\": \"a\"}}\n",
        "the mill stood at the river ".repeat(40)
    );
    let b = tiny(&[]);
    b.write("data.jsonl", format!("{DATA}{long}"));
    b.run(&["run", "r.nrl"]).fails("prompt-fills-context", &["line 3", "64"]);
}

#[test]
fn a_missing_shard_is_named() {
    let b = Bench::new();
    b.model("qwen3", "model").write("data.jsonl", DATA).write("r.nrl", recipe(&[]));
    let shard = std::fs::read_dir(b.path("model"))
        .expect("the model")
        .filter_map(|e| Some(e.ok()?.path()))
        .find(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .expect("a shard");
    let name = shard.file_name().expect("a name").to_string_lossy().into_owned();
    std::fs::remove_file(shard).expect("removed");
    b.run(&["run", "r.nrl"]).fails("missing-shard", &[&name]);
}

#[test]
fn a_truncated_checkpoint_is_an_error() {
    let b = tiny(&[]);
    let file = b.path("model/model.safetensors");
    let bytes = std::fs::read(&file).expect("weights");
    std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("cut");
    b.run(&["run", "r.nrl"]).fails("truncated-safetensors", &["model.safetensors"]);
}

#[test]
fn an_unsupported_architecture_lists_those_that_are() {
    let b = tiny(&[]);
    let config = std::fs::read_to_string(b.path("model/config.json")).expect("config");
    b.write("model/config.json", config.replace("LlamaForCausalLM", "GPT2LMHeadModel"));
    b.run(&["check", "r.nrl"])
        .fails("unsupported-architecture", &["GPT2LMHeadModel", "LlamaForCausalLM"]);
}

#[test]
fn a_tokenizer_larger_than_the_model_is_an_error() {
    let b = tiny(&[]);
    let config = std::fs::read_to_string(b.path("model/config.json")).expect("config");
    b.write("model/config.json", config.replace("\"vocab_size\": 108", "\"vocab_size\": 100"));
    b.run(&["check", "r.nrl"]).fails("vocabulary-mismatch", &["108", "100"]);
}

#[test]
fn an_empty_data_set_is_an_error() {
    let b = tiny(&[]);
    b.write("data.jsonl", "");
    b.run(&["run", "r.nrl"]).fails("empty-data", &["data.jsonl"]);
}

#[test]
fn a_malformed_line_is_reported_with_its_number_or_skipped_and_counted() {
    let bad = format!("{DATA}{{\"question\": \"x\", \"answer\": \n");
    let b = tiny(&[]);
    b.write("data.jsonl", &bad);
    b.run(&["run", "r.nrl"]).fails("bad-data-line", &["line 3"]);
    let b = tiny(&[("answer: \"answer\"", "answer: \"answer\", bad_lines: skip")]);
    b.write("data.jsonl", &bad);
    let ran = b.run(&["run", "r.nrl"]);
    ran.succeeds();
    assert!(
        ran.err.contains("1 line") || ran.out.contains("1 line"),
        "the skipped line is counted:\n{}{}",
        ran.out,
        ran.err
    );
}

#[test]
fn a_reward_that_raises_every_time_is_an_error_at_step_1() {
    let b = tiny(&[(
        "fn short(s: Sample) -> float = 1.0 / (1.0 + len(s.completion))",
        "extern fn short(s: Sample) -> float from \"sh grade.sh\" timeout 5 s",
    )]);
    b.write("grade.sh", "while read line; do exit 3; done\n");
    b.run(&["run", "r.nrl"]).fails("reward-failed", &["short", "step 1"]);
}

#[test]
fn a_reward_that_hangs_is_killed_at_its_deadline() {
    let b = tiny(&[(
        "fn short(s: Sample) -> float = 1.0 / (1.0 + len(s.completion))",
        "extern fn short(s: Sample) -> float from \"sh grade.sh\", 8 workers, timeout 1 s",
    )]);
    b.write("grade.sh", "while read line; do sleep 1000; done\n");
    let start = Instant::now();
    b.run(&["run", "r.nrl"]).fails("reward-failed", &["short"]);
    assert!(start.elapsed() < Duration::from_secs(60), "took {:?}", start.elapsed());
}

#[test]
fn a_reward_that_is_nan_is_a_failed_reward() {
    let b = tiny(&[("1.0 / (1.0 + len(s.completion))", "log(0.0 - 1.0 - len(s.completion))")]);
    b.run(&["run", "r.nrl"]).fails("reward-failed", &["short"]);
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_the_previous_checkpoint() {
    let b = tiny(&[]);
    b.run(&["run", "r.nrl", "--out", "out"]).succeeds();
    let before = listing(&b);
    // Files may not grow past 50 KiB from here on, as on a disk that is nearly full.
    let line = format!(
        "trap '' XFSZ; ulimit -f 50; exec '{}' run r.nrl --out out --resume latest --set run.steps=4",
        env!("CARGO_BIN_EXE_nrlc")
    );
    let out = std::process::Command::new("bash")
        .args(["-c", &line])
        .current_dir(b.dir.path())
        .env("NO_COLOR", "1")
        .output()
        .expect("bash runs");
    let ran = Ran::of(out);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("error["), "{}", ran.err);
    assert_eq!(listing(&b), before, "the checkpoints of the first run are as they were");
    b.run(&["run", "r.nrl", "--out", "out", "--resume", "latest", "--set", "run.steps=3"])
        .succeeds();
}

fn listing(b: &Bench) -> Vec<(String, u64)> {
    let mut found = vec![];
    let mut folders = vec![b.path("out/checkpoints")];
    while let Some(f) = folders.pop() {
        for e in std::fs::read_dir(&f).into_iter().flatten().flatten() {
            let path = e.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.display().to_string(), e.metadata().expect("metadata").len()));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "there are checkpoints");
    found
}

#[test]
fn an_output_folder_that_cannot_be_written_is_an_error_at_the_start() {
    let b = tiny(&[]);
    b.write("taken", "a file, not a folder");
    b.run(&["run", "r.nrl", "--out", "taken/run"]).fails("not-writable", &["taken"]);
}

#[test]
fn an_override_keeps_its_kind() {
    let b = tiny(&[]);
    b.run(&["check", "r.nrl", "--set", "lr=\"fast\""]).fails("wrong-type", &["`lr`", "text"]);
    b.run(&["check", "r.nrl", "--set", "lr=3 tokens"]).fails("unit-mismatch", &["`lr`", "tokens"]);
    b.run(&["check", "r.nrl", "--set", "lrr=1"])
        .fails("unknown-path", &["lrr", "did you mean `lr`?"]);
    b.run(&["check", "r.nrl", "--set", "policy.pth=\"x\""])
        .fails("unknown-name", &["pth", "did you mean `path`?"]);
    b.run(&["check", "r.nrl", "--set", "lr"]).fails("bad-override", &["--set path=value"]);
}

#[test]
fn ten_thousand_parentheses_are_one_error() {
    let b = Bench::new();
    b.write("r.nrl", format!("x = {}1{}\n", "(".repeat(10_000), ")".repeat(10_000)));
    b.run(&["check", "r.nrl"]).fails("nesting-too-deep", &[]);
}

#[test]
fn a_recipe_of_50_megabytes_is_refused_at_once() {
    let b = Bench::new();
    b.write("r.nrl", "x = 1\n".repeat(50_000_000 / 6));
    let start = Instant::now();
    b.run(&["check", "r.nrl"]).fails("file-too-large", &[]);
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
}

#[test]
fn bytes_that_are_not_utf8_are_one_error() {
    let b = Bench::new();
    b.write("r.nrl", b"recipe x {\n  seed 1 # \xff\xfe\n}\n");
    b.run(&["check", "r.nrl"]).fails("not-utf8", &[]);
}

#[test]
fn a_file_that_is_not_there_and_arguments_that_do_not_exist() {
    let b = Bench::new();
    let missing = b.run(&["check", "nothing.nrl"]);
    assert_eq!(missing.code, Some(2), "{}", missing.err);
    assert!(
        missing.err.contains("error[file-not-read]: cannot read nothing.nrl"),
        "{}",
        missing.err
    );
    assert_eq!(b.run(&["check"]).code, Some(2));
    assert_eq!(b.run(&["chekc"]).code, Some(2));
}

#[test]
fn yaml_where_a_recipe_of_the_language_is_needed_says_how_to_get_one() {
    let b = Bench::new();
    b.write("grpo.yaml", "grpo: {num_prompts_per_step: 32}\n");
    for command in ["run", "eval"] {
        b.run(&[command, "grpo.yaml"])
            .fails("not-supported", &["write `nrlc import grpo.yaml -o grpo.nrl` first"]);
    }
}
