//! Field reports of layouts, batches and settings, as recipes: what went wrong there is found here,
//! with the numbers that the reports needed. Ids are those of `docs/dev/cases.md`.

use nrl_base::{Diagnostic, Severity};

use crate::base::{check, files, shown};

/// A `config.json` with these dims.
fn config(heads: u32, kv: u32, layers: u32, positions: u32, experts: u32) -> String {
    let moe = match experts {
        0 => String::new(),
        n => format!(
            r#", "num_experts": {n}, "num_experts_per_tok": 8, "moe_intermediate_size": 768"#
        ),
    };
    let class = if experts == 0 { "Qwen2ForCausalLM" } else { "Qwen3MoeForCausalLM" };
    let kind = if experts == 0 { "qwen2" } else { "qwen3_moe" };
    format!(
        r#"{{"architectures": ["{class}"], "model_type": "{kind}", "hidden_size": {}, "num_attention_heads": {heads},
        "num_key_value_heads": {kv}, "head_dim": 128, "num_hidden_layers": {layers}, "intermediate_size": 18944,
        "vocab_size": 152064, "max_position_embeddings": {positions}, "rope_theta": 10000.0,
        "tie_word_embeddings": false{moe}}}"#,
        heads * 128
    )
}

/// What a child of a small recipe says with a model of these dims.
fn findings(base: &str, model: String, child: &str) -> Vec<Diagnostic> {
    let mut files = files();
    files.insert("model/config.json".to_string(), model);
    files.insert("case.yaml".to_string(), format!("defaults: {base}\n{child}"));
    check(&files, "case.yaml", &["++policy.model_name=model"]).findings
}

fn plain() -> String {
    config(12, 2, 28, 32768, 0)
}

/// The one finding with the code: it is an error, says the words, and sets them in place.
fn finds(found: &[Diagnostic], code: &str, words: &[&str]) {
    let all: Vec<&Diagnostic> = found.iter().filter(|d| d.code == code).collect();
    let said = |d: &Diagnostic| format!("{} {:?} {:?} {:?}", d.message, d.notes, d.help, d.labels);
    let right = all.iter().any(|d| {
        let text = said(d);
        d.severity == Severity::Error && words.iter().all(|w| text.contains(w))
    });
    assert!(right, "no {code} with {words:?} in\n{}", shown(found));
}

#[test]
fn c01_heads_of_the_model_and_tp_of_the_engine() {
    let child = "policy: {generation: {vllm_cfg: {tensor_parallel_size: 8}}}";
    let found = findings("grpo.yaml", config(28, 4, 28, 32768, 0), child);
    finds(
        &found,
        "heads-not-divisible",
        &["28", "tensor_parallel_size", "1, 2, 4, 7, 14 or 28", "1, 2 or 4"],
    );
}

#[test]
fn c05_layers_that_no_pipeline_may_lose() {
    let child = "policy: {megatron_cfg: {pipeline_model_parallel_size: 4}}";
    let found = findings("megatron.yaml", config(12, 2, 30, 32768, 0), child);
    finds(
        &found,
        "layers-not-divisible",
        &["30 layers", "remainder 2", "1, 2, 3, 5, 6, 10, 15 or 30"],
    );
    let uneven = "policy: {megatron_cfg: {pipeline_model_parallel_size: 4, num_layers_in_first_pipeline_stage: 7, num_layers_in_last_pipeline_stage: 7}}";
    let found = findings("megatron.yaml", config(12, 2, 30, 32768, 0), uneven);
    assert!(found.is_empty(), "{}", shown(&found));
}

#[test]
fn c07_few_kv_heads_are_copied_evenly_or_not_at_all() {
    let child = "policy: {megatron_cfg: {tensor_model_parallel_size: 8}, generation: {vllm_cfg: {tensor_parallel_size: 8}}}";
    let two = findings("megatron.yaml", config(32, 2, 32, 32768, 0), child);
    assert!(two.is_empty(), "{}", shown(&two));
    let three = findings("megatron.yaml", config(24, 3, 32, 32768, 0), child);
    finds(&three, "heads-not-divisible", &["3 KV heads", "tp 8"]);
}

#[test]
fn c10_the_expert_mesh_is_a_mesh_of_its_own() {
    let child = "cluster: {num_nodes: 1}\npolicy: {megatron_cfg: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, expert_model_parallel_size: 8}}";
    let found = findings("moe.yaml", config(32, 4, 48, 32768, 64), child);
    finds(
        &found,
        "mesh-does-not-fill",
        &["pp 2 * ep 8 * etp 1 = 16", "has 8", "expert_model_parallel_size: 4"],
    );
}

#[test]
fn c12_experts_with_tp_need_sequence_parallelism() {
    let child = "policy: {megatron_cfg: {expert_model_parallel_size: 4, sequence_parallel: false}}";
    let found = findings("moe.yaml", config(32, 4, 48, 32768, 128), child);
    finds(&found, "sequence-parallel-needed", &["policy.megatron_cfg.sequence_parallel: true"]);
}

#[test]
fn c15_an_engine_larger_than_the_cluster() {
    let child =
        "cluster: {gpus_per_node: 1}\npolicy: {generation: {vllm_cfg: {tensor_parallel_size: 2}}}";
    let found = findings("grpo.yaml", plain(), child);
    finds(&found, "mesh-does-not-fill", &["tp 2", "generation has 1", "tp * pp may be 1"]);
}

#[test]
fn c16_generation_apart_says_its_gpus() {
    let child = "cluster: {num_nodes: 2}\npolicy: {generation: {colocated: {resources: {num_nodes: 1, gpus_per_node: null}}}}";
    let found = findings("async.yaml", plain(), child);
    finds(
        &found,
        "node-budget",
        &["policy.generation.colocated.resources.gpus_per_node", "8 GPUs are left to train"],
    );
}

#[test]
fn c18_samples_of_a_step_are_whole_groups() {
    let child = "cluster: {gpus_per_node: 3}\ngrpo: {num_prompts_per_step: 1, num_generations_per_prompt: 8}\npolicy: {train_global_batch_size: 3, train_micro_batch_size: 1, logprob_batch_size: 1}";
    let found = findings("grpo.yaml", plain(), child);
    finds(
        &found,
        "batch-not-divisible",
        &["a step of 8 samples", "updates of 3", "num_prompts_per_step: 3`, with updates of 3 "],
    );
}

#[test]
fn c20_an_update_smaller_than_the_ranks() {
    let child = "cluster: {num_nodes: 2}\ngrpo: {num_prompts_per_step: 4, num_generations_per_prompt: 2}\npolicy: {train_global_batch_size: 8, train_micro_batch_size: 1, logprob_batch_size: 1}";
    let found = findings("grpo.yaml", plain(), child);
    finds(&found, "batch-not-divisible", &["an update of 8 samples", "dp = 16"]);
}

#[test]
fn c21_validation_batches_are_shared_too() {
    let child = "dpo: {val_global_batch_size: 16, val_micro_batch_size: 8}\npolicy: {train_global_batch_size: 256, train_micro_batch_size: 8}";
    let found = findings("dpo.yaml", plain(), child);
    finds(
        &found,
        "batch-not-divisible",
        &["2 validation pairs per rank", "4 rows", "micro-batches of 8"],
    );
    assert_eq!(found.len(), 1, "training is right: {}", shown(&found));
}

#[test]
fn c23_less_data_than_a_step() {
    let mut files = files();
    let row = "{\"messages\": []}\n";
    files.insert("small.jsonl".to_string(), row.repeat(128));
    let child = "defaults: sft.yaml\ndata:\n  train: {dataset_name: openai_format, data_path: small.jsonl}\npolicy: {train_global_batch_size: 1024}";
    files.insert("case.yaml".to_string(), child.to_string());
    let found = check(&files, "case.yaml", &[]).findings;
    finds(&found, "epoch-is-empty", &["128 rows", "1024", "policy.train_global_batch_size"]);
}

/// 40 query and 8 KV heads over the heads' parallel size: each divides, or is divided.
#[test]
fn c09_all_sizes_that_heads_allow() {
    let legal = |tp: u32| {
        let child = format!(
            "cluster: {{gpus_per_node: {tp}}}\npolicy: {{megatron_cfg: {{tensor_model_parallel_size: {tp}}}}}"
        );
        let found = findings("megatron.yaml", config(40, 8, 48, 32768, 0), &child);
        let of: Vec<_> = found
            .iter()
            .filter(|d| d.code == "heads-not-divisible" && format!("{d:?}").contains("megatron"))
            .collect();
        if let Some(d) = of.first() {
            let help = d.help.clone().unwrap_or_default();
            assert!(help.contains("1, 2, 4, 8 or 40"), "{tp}: {help}");
        }
        of.is_empty()
    };
    let tried = [1, 2, 4, 5, 8, 10, 16, 20, 40];
    let all: Vec<u32> = tried.into_iter().filter(|tp| legal(*tp)).collect();
    assert_eq!(all, [1, 2, 4, 8, 40]);
}

/// The longest sequence is compared with a bin as it is packed: rounded up to what it is padded to.
#[test]
fn c13_bins_hold_sequences_as_they_are_padded() {
    let child = |multiple: u32| {
        format!(
            "policy: {{max_total_sequence_length: 509, make_sequence_length_divisible_by: {multiple},\n  \
             sequence_packing: {{enabled: true, train_mb_tokens: 510, logprob_mb_tokens: 1024}},\n  \
             generation: {{max_new_tokens: 256, vllm_cfg: {{max_model_len: 509}}}}}}\ndata: {{max_input_seq_length: 253}}"
        )
    };
    let over = |multiple: u32| {
        let found = findings("grpo.yaml", plain(), &child(multiple));
        found.into_iter().find(|d| d.code == "sequence-over-budget").map(|d| d.message)
    };
    assert_eq!(over(1), None);
    assert_eq!(over(2), None);
    let told = "one sequence may reach 512 tokens, a micro-batch holds 510";
    assert_eq!(over(4).as_deref(), Some(told));
}

/// No round of dynamic sampling would end before it began; two rounds of two batches cannot be told from here.
#[test]
fn c95_a_limit_of_no_rounds() {
    let child = "grpo: {use_dynamic_sampling: true, dynamic_sampling_max_gen_batches: 0}";
    let found = findings("grpo.yaml", plain(), child);
    finds(&found, "out-of-range", &["0 rounds of dynamic sampling"]);
}

#[test]
fn c100_a_misspelt_name_is_told_with_its_neighbor() {
    let child = "policy: {max_total_sequence_lenght: 4096, train_micro_batchsize: 2}\ngrpo: {num_generation_per_prompt: 8}";
    let found = findings("grpo.yaml", plain(), child);
    for near in
        ["max_total_sequence_length", "train_micro_batch_size", "num_generations_per_prompt"]
    {
        finds(&found, "unknown-name", &[&format!("did you mean `{near}`")]);
    }
}

#[test]
fn c104_the_text_none() {
    let found = findings("grpo.yaml", plain(), "checkpointing: {metric_name: \"None\"}");
    finds(&found, "null-as-text", &["checkpointing.metric_name: null"]);
}

#[test]
fn c106_training_shorter_than_generation() {
    let child = "policy: {max_total_sequence_length: 2048, generation: {max_new_tokens: 4096, vllm_cfg: {max_model_len: 8192}}}";
    let found = findings("grpo.yaml", config(12, 2, 28, 4096, 0), child);
    finds(&found, "lengths-disagree", &["8192", "2048"]);
    finds(&found, "context-over-model", &["8192", "4096"]);
}

/// Megatron pads the vocabulary to a multiple of tp: 151,669 rows over 4 ranks are no error.
#[test]
fn c03_a_vocabulary_that_tp_does_not_divide_is_padded() {
    let model = config(32, 8, 36, 40960, 0).replace("152064", "151669");
    let child =
        "cluster: {gpus_per_node: 8}\npolicy: {megatron_cfg: {tensor_model_parallel_size: 4}}";
    let found = findings("megatron.yaml", model, child);
    assert!(!found.iter().any(|d| d.message.contains("151669")), "{}", shown(&found));
}

#[test]
fn c98_numbers_without_a_dot_are_numbers_and_that_is_said() {
    let child = "policy:\n  optimizer:\n    kwargs: {lr: 5e-6, weight_decay: 1.0e-2, eps: 1e8}";
    let found = findings("grpo.yaml", plain(), child);
    let said: Vec<&str> = found
        .iter()
        .filter(|d| d.code == "yaml-reads-otherwise" && d.severity == Severity::Note)
        .map(|d| d.message.split('`').nth(1).unwrap_or(""))
        .collect();
    assert_eq!(said, ["5e-6", "1e8"], "{}", shown(&found));
    let quoted = "policy: {optimizer: {kwargs: {lr: \"2e-5\"}}}";
    let found = findings("grpo.yaml", plain(), quoted);
    assert!(!found.iter().any(|d| d.code == "yaml-reads-otherwise"), "{}", shown(&found));
}

#[test]
fn c101_overrides_are_known_settings() {
    let mut files = files();
    files.insert("case.yaml".to_string(), "defaults: grpo.yaml".to_string());
    let with = |overrides: &[&str]| check(&files, "case.yaml", overrides);
    let gone = ["~grpo.val_period", "grpo.val_period=2"];
    let known = with(&gone);
    assert_eq!(known.settings.and_then(|s| s.int("grpo.val_period")).map(|n| n.value), Some(2));
    let told = known.findings.iter().any(|d| d.code == "unknown-path" && !d.is_error());
    assert!(told, "{}", shown(&known.findings));
    finds(&with(&["grpo.max_num_stepz=5"]).findings, "unknown-path", &["max_num_steps"]);
}

#[test]
fn c103_interpolations_that_lead_nowhere() {
    let child = "policy:\n  tokenizer: {name: \"${policy.model_nam}\"}\n  a: \"${policy.b}\"\n  b: \"${policy.a}\"";
    let found = findings("grpo.yaml", plain(), child);
    finds(&found, "unresolved-interpolation", &["policy.model_nam", "policy.model_name"]);
    finds(&found, "unresolved-interpolation", &["policy.a -> policy.b -> policy.a"]);
}

/// Numbers worked out by hand: 96 GPUs, tp 4 and pp 2 make dp 12, which no divisor of 2048 samples shares.
#[test]
fn an_update_that_no_rank_count_shares() {
    let child = "cluster: {num_nodes: 12}\ngrpo: {num_prompts_per_step: 64, num_generations_per_prompt: 32, val_batch_size: 64}\npolicy: {train_global_batch_size: 512, make_sequence_length_divisible_by: 1, megatron_cfg: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2}}";
    let found = findings("megatron.yaml", config(16, 4, 28, 32768, 0), child);
    finds(
        &found,
        "batch-not-divisible",
        &[
            "512",
            "dp = 12",
            "96 GPUs / (tp 4 * pp 2)",
            "2048 samples have no divisor",
            "63 or 66",
            "504 or 528",
            "8 nodes of training (dp 8)",
            "16 nodes of training (dp 16)",
        ],
    );
}

/// Two completions with ranks that differ say which is better; three hundred of them make an epoch.
#[test]
fn pairs_with_two_ranks_are_right() {
    let data = "++data.train={dataset_name:PreferenceDataset,data_path:pairs.jsonl}";
    let found = check(&files(), "dpo.yaml", &["~data.train", data]).findings;
    assert!(!found.iter().any(Diagnostic::is_error), "{}", shown(&found));
}
