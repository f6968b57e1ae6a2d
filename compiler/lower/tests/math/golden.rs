//! Values computed with the public loss and advantage code of NeMo RL (August 2026).
//!
//! They live beside the repository; where they are absent the tests say so and pass. What
//! `std.grpo` has no function for is written in this file's own `.nrl`.

use serde_json::Value as Json;

use crate::support::{Batch, assert_close, graph, items, json, number, numbers, run, text};

const BOUND: f64 = 1e-5;

fn golden() -> Option<Json> {
    let found = json("../shared/golden/losses.json");
    if found.is_none() {
        println!("skipped: ../shared/golden/losses.json is not there");
    }
    found
}

const LOSSES: &str = r#"
use std.grpo

fn grpo_clip(new: f32[tok], old: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(ratio(new, old), adv, 0.2..0.2), over: tokens)

fn with_kl(new: f32[tok], old: f32[tok], ref: f32[tok], adv: f32[seq], kind: grpo.Kl) -> loss =
  mean(grpo.clip(ratio(new, old), adv, 0.2..0.2) + 0.05 * grpo.kl(new, ref, kind), over: tokens)

fn grpo_kl_k1(new: f32[tok], old: f32[tok], ref: f32[tok], adv: f32[seq]) -> loss =
  with_kl(new, old, ref, adv, k1)

fn grpo_kl_k2(new: f32[tok], old: f32[tok], ref: f32[tok], adv: f32[seq]) -> loss =
  with_kl(new, old, ref, adv, k2)

fn grpo_kl_k3(new: f32[tok], old: f32[tok], ref: f32[tok], adv: f32[seq]) -> loss =
  with_kl(new, old, ref, adv, k3)

fn grpo_kl_onpolicy_approx(new: f32[tok], old: f32[tok], ref: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(ratio(new, old), adv, 0.2..0.2) + 0.05 * grpo.kl_on_policy(new, ref, sampler), over: tokens)

fn grpo_sequence_mean(new: f32[tok], old: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(ratio(new, old), adv, 0.2..0.2), over: samples)

fn dapo_clip_higher(new: f32[tok], old: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(ratio(new, old), adv, 0.2..0.28), over: tokens)

fn dual_clip(new: f32[tok], old: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(ratio(new, old), adv, 0.2..0.28, dual: 3.0), over: tokens)

fn force_on_policy(new: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(ratio(new, stop(new)), adv, 0.2..0.2), over: tokens)

fn is_plain(new: f32[tok], old: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss =
  mean(weight(old, sampler) * grpo.clip(ratio(new, old), adv, 0.2..0.2), over: tokens)

fn is_tis(new: f32[tok], old: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss =
  mean(tis(old, sampler, max: 1.5) * grpo.clip(ratio(new, old), adv, 0.2..0.2), over: tokens)

fn is_icepop(new: f32[tok], old: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss =
  mean(icepop(old, sampler, 0.5..1.5) * grpo.clip(ratio(new, old), adv, 0.2..0.2), over: tokens)

# What follows is not in the standard library.

fn token_mean(x: f32[tok]) -> f32[seq] = sum(x, over: tok) / max(sum(ones(x), over: tok), 1.0)

# One ratio per sample, repeated over its tokens.
fn sequence_ratio(new: f32[tok], old: f32[tok]) -> f32[tok] {
  let d = token_mean(new - old)
  exp(clamp(d, -20.0, 20.0)) * ones(new)
}

fn gspo(new: f32[tok], old: f32[tok], adv: f32[seq]) -> loss =
  mean(grpo.clip(sequence_ratio(new, old), adv, 0.0003..0.0004), over: samples)

fn gspo_is(new: f32[tok], old: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss {
  let w = stop(exp(sum(old - sampler, over: tok)))
  mean(w * grpo.clip(sequence_ratio(new, old), adv, 0.2..0.2), over: samples)
}

fn is_seq_mask_tis(new: f32[tok], old: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss {
  let s = exp(token_mean(old - sampler))
  let w = stop(weight(old, sampler) * (s >= 0.9) * (s <= 1.1))
  mean(w * grpo.clip(ratio(new, old), adv, 0.2..0.2), over: tokens)
}

fn cispo(new: f32[tok], old: f32[tok], adv: f32[seq]) -> loss =
  mean(-adv * stop(clamp(ratio(new, old), 0.8, 1.28)) * new, over: tokens)

fn reinforce(new: f32[tok], adv: f32[seq]) -> loss = mean(-adv * new, over: tokens)
"#;

/// The mask of each sample's tokens; all 0 for a sample that does not count.
fn masks(row: &Json) -> Vec<Vec<f64>> {
    let samples = numbers(&row["sample_mask"]);
    let of = |(m, on): (&Json, f64)| numbers(m).into_iter().map(|x| x * on).collect();
    items(&row["token_mask"]).iter().zip(samples).map(of).collect()
}

/// The trained values of a table `[sample][token]`.
fn trained(row: &Json, key: &str, masks: &[Vec<f64>]) -> Vec<f64> {
    let mut out = vec![];
    for (values, mask) in items(&row[key]).iter().zip(masks) {
        let of = |(x, m): (f64, &f64)| (*m != 0.0).then_some(x);
        out.extend(numbers(values).into_iter().zip(mask).filter_map(of));
    }
    out
}

#[test]
fn losses_of_the_peer() {
    let Some(all) = golden() else { return };
    let mut seen = 0;
    for row in items(&all["losses"]) {
        let name = text(&row["name"]);
        let masks = masks(row);
        let tokens: Vec<usize> =
            masks.iter().map(|m| m.iter().filter(|x| **x != 0.0).count()).collect();
        let values = [
            ("new", trained(row, "current", &masks)),
            ("old", trained(row, "old", &masks)),
            ("ref", trained(row, "reference", &masks)),
            ("sampler", trained(row, "generator", &masks)),
            ("adv", numbers(&row["advantages"])),
        ];
        let got = run(&graph(LOSSES, name, &["new"]), &Batch::of(&tokens), &values);
        assert_close(name, &[got.loss()], &[number(&row["loss"])], BOUND);
        assert_close(name, &got.grads["new"], &trained(row, "grad", &masks), BOUND);
        seen += 1;
    }
    assert_eq!(seen, 17);
}

#[test]
fn advantages_of_the_peer() {
    let Some(all) = golden() else { return };
    for row in items(&all["advantages"]) {
        let flag = |key: &str| row[key].as_bool().expect("a flag");
        let baseline = if flag("leave_one_out") { "leave_one_out" } else { "mean" };
        let scale = if flag("normalize") { "std" } else { "unscaled" };
        let module = format!(
            "use std.grpo\nfn adv(r: f32[seq]) -> f32[seq] = grpo.advantages(r, baseline: {baseline}, scale: {scale})\n"
        );
        let rewards = numbers(&row["rewards"]);
        let size = number(&row["group"]) as usize;
        let batch =
            Batch { groups: vec![size; rewards.len() / size], tokens: vec![1; rewards.len()] };
        let got = run(&graph(&module, "adv", &[]), &batch, &[("r", rewards)]);
        let what = format!("{baseline} {scale}");
        assert_close(&what, &got.outputs["out"], &numbers(&row["advantages"]), BOUND);
    }
    assert_eq!(items(&all["advantages"]).len(), 12);
}
