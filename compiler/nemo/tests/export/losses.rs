//! Losses whose lines depend on what the sampler keeps and on how weights are cut.

use super::{Files, OWN, exported, files, imported, resolved};

/// The recipe with a loss and with settings of the sampler.
fn with(loss: &str, generation: &str) -> (Files, String) {
    let own = OWN.replace("vllm_kwargs: {max_num_seqs: 256}", generation);
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), format!("{own}loss_fn: {{{loss}}}\n"));
    let text = imported(&files);
    (files, text)
}

const HELD: &str = "use_importance_sampling_correction: true, truncated_importance_sampling_type: tis, \
                    truncated_importance_sampling_ratio: 5.0, truncated_importance_sampling_ratio_min: 0.2";

#[test]
fn weights_between_two_bounds_are_a_line_and_come_back() {
    let (files, text) = with(HELD, "vllm_kwargs: {}");
    assert!(text.contains("  w   = clamp(weight(old, s.logprob), 0.2, 5.0)\n"), "{text}");
    assert!(text.contains("mean(w * grpo.clip(ratio(logprob(policy, s), old)"), "{text}");
    let out = exported(&files, &text.replace("0.2, 5.0)", "0.5, 2.0)"));
    assert_eq!(out.lost, []);
    let at = |key: &str| resolved(&files, &out.yaml, &format!("loss_fn.{key}"));
    assert_eq!(at("truncated_importance_sampling_type"), "Text(\"tis\")");
    assert_eq!(at("truncated_importance_sampling_ratio"), "Float(2.0)");
    assert_eq!(at("truncated_importance_sampling_ratio_min"), "Float(0.5)");
    // Without a least weight it is `tis` again, and its setting is taken away.
    let plain =
        text.replace("clamp(weight(old, s.logprob), 0.2, 5.0)", "tis(old, s.logprob, max: 5.0)");
    let out = exported(&files, &plain);
    assert!(!out.yaml.contains("ratio_min"), "{}", out.yaml);
}

/// NeMo RL puts `top_p` and `top_k` on the logits it trains with, but for the divergence from the reference.
#[test]
fn training_is_over_the_tokens_that_the_sampler_keeps() {
    let (files, text) = with(HELD, "top_p: 0.95");
    for line in [
        "top_p: 0.95,\n    record: [support],\n",
        "old = logprob(policy, s, on: s.support)\n",
        "grpo.clip(ratio(logprob(policy, s, on: s.support), old), adv, 0.2..0.2)",
        "grpo.kl(logprob(policy, s), logprob(ref, s), kind: k3)",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    let out = exported(&files, &text.replace("top_p: 0.95", "top_p: 0.9"));
    assert_eq!(out.lost, []);
    assert_eq!(resolved(&files, &out.yaml, "policy.generation.top_p"), "Float(0.9)");
    // All tokens are kept by 1.0, and by a `top_k` of -1.
    let (_, text) = with(HELD, "top_p: 1.0, top_k: -1");
    assert!(!text.contains("support") && !text.contains("top_k: "), "{text}");
}

#[test]
fn an_environment_that_evaluation_alone_asks_is_declared() {
    let own = OWN.replace(
        "grpo: {num_prompts_per_step: 64, max_num_steps: 500}",
        "grpo: null\ndistillation: {num_prompts_per_step: 64, num_generations_per_prompt: 8, \
         max_num_steps: 500, val_period: 10, topk_logits_k: 64}\nloss_fn: {_override_: true, kl_type: \
         forward}\nteacher: {model_name: Qwen/Qwen3-32B}\ndata: {default: {env_name: nemo_gym}}",
    );
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), own);
    let text = imported(&files);
    assert!(text.contains("  test = evaluate(sampler, held_out, environment)\n"), "{text}");
    let declared =
        "extern fn environment(s: Sample) -> float from \"nemo_rl environment nemo_gym\"\n";
    assert!(text.ends_with(declared), "{text}");
    let out = exported(&files, &text.replace("environment nemo_gym", "environment code"));
    assert_eq!(resolved(&files, &out.yaml, "data.default.env_name"), "Text(\"code\")");
}

#[test]
fn a_reward_model_scores_pairs_and_comes_back() {
    let own = OWN
        .replace("grpo: {num_prompts_per_step: 64, max_num_steps: 500}", "grpo: null\nloss_fn: null\nrm: {max_num_steps: 300, val_period: 10, seed: 7}")
        .replace("  model_name:", "  reward_model_cfg: {enabled: true, reward_model_type: bradley_terry}\n  train_global_batch_size: 64\n  model_name:")
        + "data: {_override_: true, train: {dataset_name: HelpSteer3}, validation: null}\n";
    let mut files = files();
    files.insert("examples/configs/own.yaml".into(), own);
    let text = imported(&files);
    for line in [
        "context: 4096 tokens, head: scalar)\n",
        "  pairs    = data.hub(\"HelpSteer3\", chosen: \"chosen\", rejected: \"rejected\")\n",
        "    b = pairs.take(64 pairs)\n",
        "mean(-log_sigmoid(score(policy, b.chosen) - score(policy, b.rejected)), over: pairs)\n",
        "\nfn score(m: Model, b: Samples) -> f32[pair] {\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    let out = exported(&files, &text.replace("take(64 pairs)", "take(32 pairs)"));
    assert_eq!(out.lost, []);
    assert_eq!(resolved(&files, &out.yaml, "policy.train_global_batch_size"), "Int(32)");
    assert_eq!(resolved(&files, &out.yaml, "rm.max_num_steps"), "Int(300)");
}
