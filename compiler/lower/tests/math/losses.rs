//! Losses of `std.grpo` and the prelude, with gradients, against torch.

use serde_json::Value as Json;

use crate::support::{
    Batch, Tried, assert_close, close, fixture, graph, items, number, numbers, run, text,
};

const BOUND: f64 = 1e-6;

/// The objective that a row's `config` describes.
fn objective(config: &Json) -> String {
    let mut clip = format!(
        "grpo.clip(ratio(new, old, limit: {:?}), adv, {:?}..{:?}",
        number(&config["log_ratio_clamp"]),
        number(&config["clip_low"]),
        number(&config["clip_high"])
    );
    if let Some(dual) = config["dual"].as_f64() {
        clip += &format!(", dual: {dual:?}");
    }
    clip.push(')');
    let weight = match config["correction"]["kind"].as_str() {
        None => String::new(),
        Some("plain") => "weight(old, sampler) * ".to_string(),
        Some("tis") => {
            format!("tis(old, sampler, max: {:?}) * ", number(&config["correction"]["max"]))
        }
        Some(_) => format!(
            "icepop(old, sampler, {:?}..{:?}) * ",
            number(&config["correction"]["min"]),
            number(&config["correction"]["max"])
        ),
    };
    let kl = &config["kl"];
    let penalty = if kl.is_null() {
        String::new()
    } else {
        assert_eq!(number(&kl["log_ratio_clamp"]), 20.0, "the estimators' own clamp");
        let cut = kl["output_clamp"].as_f64();
        let kind = text(&kl["kind"]);
        let value = match (text(&kl["gradient"]), cut) {
            ("score", Some(c)) => format!("grpo.kl(new, reference, {kind}, cut: {c:?})"),
            ("score", None) => format!("grpo.kl(new, reference, {kind}, cut: none)"),
            (_, Some(c)) => format!("clamp({kind}(new, reference), -{c:?}, {c:?})"),
            (_, None) => format!("{kind}(new, reference)"),
        };
        format!(" + {:?} * {value}", number(&kl["weight"]))
    };
    let over = text(&config["over"]);
    module(&format!("mean({weight}{clip}{penalty}, over: {over})"))
}

/// A module whose function `objective` is `body`.
fn module(body: &str) -> String {
    format!(
        "use std.grpo\nfn objective(new: f32[tok], old: f32[tok], sampler: f32[tok], reference: f32[tok], adv: f32[seq]) -> loss {{\n  {body}\n}}\n"
    )
}

/// The trained values of `key` over all samples: masked tokens are no part of a batch.
fn trained(samples: &[Json], key: &str) -> Vec<f64> {
    let mut out = vec![];
    for s in samples {
        let of = |(m, x): (f64, f64)| (m != 0.0).then_some(x);
        out.extend(numbers(&s["mask"]).into_iter().zip(numbers(&s[key])).filter_map(of));
    }
    out
}

fn lengths(samples: &[Json]) -> Batch {
    let count = |s: &Json| numbers(&s["mask"]).iter().filter(|m| **m != 0.0).count();
    Batch::of(&samples.iter().map(count).collect::<Vec<_>>())
}

fn try_row(row: &Json, module: &str) -> Tried {
    let samples = items(&row["samples"]);
    let values = [
        ("new", trained(samples, "current")),
        ("old", trained(samples, "old")),
        ("sampler", trained(samples, "sampler")),
        ("reference", trained(samples, "reference")),
        ("adv", samples.iter().map(|s| number(&s["advantage"])).collect()),
    ];
    run(&graph(module, "objective", &["new"]), &lengths(samples), &values)
}

/// Gradient of a row by its trained tokens, in order; masked ones have none.
fn gradient(row: &Json) -> Vec<f64> {
    let mut out = vec![];
    for (s, g) in items(&row["samples"]).iter().zip(items(&row["gradient"])) {
        for (m, g) in numbers(&s["mask"]).into_iter().zip(numbers(g)) {
            if m != 0.0 {
                out.push(g);
            } else {
                assert_eq!(g, 0.0, "a masked token with a gradient");
            }
        }
    }
    out
}

/// Rows called `name`, by the objective their configuration describes.
fn check(names: &[&str]) -> usize {
    let all = fixture("losses");
    let rows = items(&all["losses"]);
    let mut seen = 0;
    for row in rows.iter().filter(|r| names.is_empty() || names.contains(&text(&r["name"]))) {
        let name = text(&row["name"]);
        let got = try_row(row, &objective(&row["config"]));
        assert_close(name, &[got.loss()], &[number(&row["loss"])], BOUND);
        assert_close(name, &got.grads["new"], &gradient(row), BOUND);
        seen += 1;
    }
    seen
}

#[test]
fn every_loss_of_torch() {
    assert_eq!(check(&[]), 40);
}

/// `objective` over tokens for one sample.
fn one_sample(body: &str, new: &[f64], old: &[f64], adv: f64) -> Tried {
    let batch = Batch::of(&[new.len()]);
    let values = [
        ("new", new.to_vec()),
        ("old", old.to_vec()),
        ("sampler", old.to_vec()),
        ("reference", old.to_vec()),
        ("adv", vec![adv]),
    ];
    run(&graph(&module(body), "objective", &["new"]), &batch, &values)
}

const CLIP: &str = "mean(grpo.clip(ratio(new, old), adv, 0.2..0.28), over: tokens)";

#[test]
fn trap_08_loss_does_not_depend_on_micro_batches_or_order() {
    let rows = fixture("numeric");
    let plain = |over: &str| {
        graph(
            &format!("fn objective(x: f32[tok]) -> loss = mean(x, over: {over})"),
            "objective",
            &["x"],
        )
    };
    for row in items(&rows["normalisation"]) {
        let (sums, tokens) = (numbers(&row["sums"]), numbers(&row["tokens"]));
        let sizes: Vec<usize> = tokens.iter().map(|n| *n as usize).collect();
        // A sample's sum is spread evenly over its tokens.
        let x: Vec<f64> =
            sums.iter().zip(&tokens).flat_map(|(s, n)| vec![s / n; *n as usize]).collect();
        let counts = [
            ("count.tokens", vec![tokens.iter().sum::<f64>()]),
            ("count.samples", vec![tokens.iter().filter(|n| **n > 0.0).count() as f64]),
        ];
        for (over, want) in [("tokens", "over_tokens"), ("samples", "over_samples")] {
            let g = plain(over);
            let part = |of: &[usize], x: Vec<f64>| {
                let values = [("x", x), counts[0].clone(), counts[1].clone()];
                run(&g, &Batch::of(of), &values)
            };
            let whole = part(&sizes, x.clone());
            assert_close(want, &[whole.loss()], &[number(&row[want])], 1e-12);
            // One sample per micro-batch, last first.
            let mut sum = 0.0;
            let mut end = x.len();
            let mut grads = vec![];
            for n in sizes.iter().rev() {
                let piece = part(&[*n], x[end - n..end].to_vec());
                sum += piece.loss();
                grads.splice(0..0, piece.grads["x"].clone());
                end -= n;
            }
            assert_close(want, &[sum], &[whole.loss()], 1e-12);
            assert_close(want, &grads, &whole.grads["x"], 1e-12);
            // A fully masked sample more.
            let more = part(&[&sizes[..], &[0]].concat(), x.clone());
            assert_eq!(more.loss(), whole.loss());
            assert_eq!(more.grads["x"], whole.grads["x"]);
        }
    }
}

#[test]
fn trap_09_nothing_trained_is_loss_zero_and_gradient_zero() {
    assert_eq!(check(&["fully_masked_batch_over_tokens", "fully_masked_batch_over_samples"]), 2);
    let got = one_sample(CLIP, &[], &[], 1.0);
    assert_eq!(got.loss(), 0.0);
    assert!(got.grads["new"].is_empty());
}

#[test]
fn trap_10_a_log_ratio_of_100_is_no_nan_and_a_nan_stays_visible() {
    let names = [
        "zero_advantage_log_ratio_100",
        "negative_advantage_log_ratio_100",
        "negative_advantage_log_ratio_100_dual",
        "positive_advantage_log_ratio_100",
    ];
    assert_eq!(check(&names), 4);
    for far in [100.0, -100.0, 1e6, f64::INFINITY, f64::NEG_INFINITY] {
        let got = one_sample(CLIP, &[far, -1.0], &[0.0, -1.0], 0.0);
        assert_eq!(got.loss(), 0.0, "log-ratio {far}");
        assert!(got.grads["new"].iter().all(|g| *g == 0.0), "log-ratio {far}: {:?}", got.grads);
    }
    let got = one_sample(CLIP, &[f64::NAN, -1.0], &[0.0, -1.0], 0.0);
    assert!(got.loss().is_nan(), "a NaN must not be hidden");
}

#[test]
fn trap_11_clip_in_four_quadrants() {
    assert_eq!(check(&["four_quadrants", "bounds_are_not_swapped", "dual_clip"]), 3);
    // Ratios below, inside and above 0.8..1.28; the gradient is -A ratio where it lives.
    for (adv, ratio, lives) in [
        (1.0, 0.5, true),
        (1.0, 1.0, true),
        (1.0, 1.25, true),
        (1.0, 1.27, true),
        (1.0, 1.29, false),
        (1.0, 2.0, false),
        (-1.0, 0.5, false),
        (-1.0, 0.79, false),
        (-1.0, 0.81, true),
        (-1.0, 1.25, true),
        (-1.0, 2.0, true),
    ] {
        let got = one_sample(CLIP, &[f64::ln(ratio)], &[0.0], adv);
        let want = if lives { -adv * ratio } else { 0.0 };
        let at = if lives { ratio } else { ratio.clamp(0.8, 1.28) };
        assert_close("gradient", &got.grads["new"], &[want], 1e-12);
        assert_close("loss", &[got.loss()], &[-adv * at], 1e-12);
    }
    let dual = "mean(grpo.clip(ratio(new, old), adv, 0.2..0.28, dual: 3.0), over: tokens)";
    let cut = one_sample(dual, &[2.0], &[0.0], -1.0);
    assert_eq!((cut.loss(), cut.grads["new"][0]), (3.0, 0.0));
    // A positive advantage is never cut by the dual bound.
    let kept = one_sample(dual, &[-5.0], &[0.0], 1.0);
    assert_close("kept", &[kept.loss()], &[-f64::exp(-5.0)], 1e-12);
    assert_close("kept", &kept.grads["new"], &[-f64::exp(-5.0)], 1e-12);
}

#[test]
fn trap_12_first_update_has_ratio_one_and_a_live_gradient() {
    assert_eq!(check(&["first_update_over_tokens", "first_update_over_samples"]), 2);
    let lp = [-0.123456789, -7.7, -1e-9];
    let got = one_sample(CLIP, &lp, &lp, 1.5);
    assert_eq!(got.loss(), -1.5);
    assert_close("gradient", &got.grads["new"], &[-0.5; 3], 1e-15);
}

#[test]
fn trap_14_kl_values_and_gradients() {
    let rows = fixture("numeric");
    let values = |row: &Json| (number(&row["policy"]), number(&row["reference"]));
    for kind in ["k1", "k2", "k3"] {
        let plain = format!("mean({kind}(new, old), over: tokens)");
        let score = format!("mean(grpo.kl(new, old, {kind}, cut: none), over: tokens)");
        for row in items(&rows["kl"]) {
            let (policy, reference) = values(row);
            let value = number(&row[kind]);
            let slope = number(&row[&format!("{kind}_gradient")]);
            let got = one_sample(&plain, &[policy], &[reference], 0.0);
            assert_close(kind, &[got.loss(), got.grads["new"][0]], &[value, slope], BOUND);
            // The score form has the same value; its gradient is larger by the value.
            let got = one_sample(&score, &[policy], &[reference], 0.0);
            assert_close(kind, &[got.loss(), got.grads["new"][0]], &[value, slope + value], BOUND);
        }
        // Finite differences on a grid, far from the clamp and on both sides of zero.
        let at = |x: f64| one_sample(&plain, &[x], &[-1.5], 0.0);
        for step in -8..=8 {
            let x = -1.5 + 0.37 * f64::from(step);
            let slope = (at(x + 1e-6).loss() - at(x - 1e-6).loss()) / 2e-6;
            assert_close(kind, &at(x).grads["new"], &[slope], 1e-6);
            assert!(kind != "k3" || at(x).loss() >= 0.0, "k3 is never negative");
        }
    }
    let names = ["k1_plain", "k1_score", "k2_plain", "k2_score", "k3_plain", "k3_score"];
    assert_eq!(check(&names), 6);
}

#[test]
fn trap_15_correction_weights_carry_no_gradient() {
    assert_eq!(check(&["correction_plain", "correction_tis", "correction_icepop"]), 3);
    let text = "use std.grpo\n\
        fn objective(new: f32[tok], sampler: f32[tok], adv: f32[seq]) -> loss = \
        mean(WEIGHT * (-adv * new), over: tokens)\n";
    let (new, sampler) = (vec![-1.0, -2.0, -0.5], vec![-1.0, -3.0, -4.0]);
    let e = f64::exp;
    for (weight, want) in [
        ("weight(new, sampler)", [1.0, e(1.0), e(3.5)]),
        ("tis(new, sampler, max: 2.0)", [1.0, 2.0, 2.0]),
        ("icepop(new, sampler, 0.5..5.0)", [1.0, e(1.0), 0.0]),
    ] {
        let g = graph(&text.replace("WEIGHT", weight), "objective", &["new"]);
        let values = [("new", new.clone()), ("sampler", sampler.clone()), ("adv", vec![3.0])];
        let got = run(&g, &Batch::of(&[3]), &values);
        // -A w / 3: a token whose weight is 0 stays in the count of three.
        assert_close(weight, &got.grads["new"], &want.map(|w| -w), 1e-12);
    }
    // The share that IcePop drops can be asked for.
    let text = "fn share_out(a: f32[tok], b: f32[tok]) -> f32 = outside(a, b, 0.5..5.0)";
    let g = graph(text, "share_out", &[]);
    let got = run(&g, &Batch::of(&[3]), &[("a", new), ("b", sampler)]);
    assert!(close(got.outputs["out"][0], 1.0 / 3.0, 1e-12), "{:?}", got.outputs);
}

#[test]
fn trap_21_a_sum_over_many_tokens_keeps_its_digits() {
    // 0.1 a million times is 100000.00000133288 in f64 and 100958 in f32.
    let n = 1_000_000;
    let g = graph("fn objective(x: f32[tok]) -> loss = mean(x, over: tokens)", "objective", &["x"]);
    let got = run(&g, &Batch::of(&[n]), &[("x", vec![0.1; n])]);
    assert!(close(got.loss(), 0.1, 1e-10), "{}", got.loss());
}
