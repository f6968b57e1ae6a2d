//! Values along tokens, and preference pairs: advantages with a critic, whitening, deviations.
//!
//! All numbers are worked out by hand; law 16 of the numeric traps.

use std::collections::BTreeMap;

use crate::support::{Batch, assert_close, graph, problems, refusal, run};

/// Two samples of one group, of two tokens and of one.
fn batch() -> Batch {
    Batch::of(&[2, 1])
}

fn tried(text: &str, values: &[(&str, Vec<f64>)]) -> BTreeMap<String, Vec<f64>> {
    let g = graph(&format!("use std.{{dpo, ppo}}\n{text}\n"), "f", &[]);
    run(&g, &batch(), values).outputs
}

#[test]
fn trap_16_generalized_advantages() {
    let text = "fn f(r: f32[seq], v: f32[tok]) -> (f32[tok], f32[tok]) = ppo.gae(ppo.at_last_token(r, v), v, gamma: 1.0, lambda: 0.95)";
    let values = [("r", vec![1.0, 0.5]), ("v", vec![0.2, 0.4, 0.1])];
    let out = tried(text, &values);
    // 1 - 0.4 = 0.6 at the last token, (0.4 - 0.2) + 0.95 * 0.6 before it; 0.5 - 0.1 alone.
    assert_close("advantages", &out["out.0"], &[0.77, 0.6, 0.4], 1e-12);
    assert_close("returns", &out["out.1"], &[0.97, 1.0, 0.5], 1e-12);
    // With gamma and lambda 1 an advantage is the return less the value.
    let out = tried(&text.replace("0.95", "1.0"), &values);
    assert_close("advantages", &out["out.0"], &[0.8, 0.6, 0.4], 1e-12);
    assert_close("returns", &out["out.1"], &[1.0, 1.0, 0.5], 1e-12);
    // Discounted: 0.9 * (0.9 * 0 + 1 - 0.4) and so on.
    let out = tried(&text.replace("gamma: 1.0, lambda: 0.95", "gamma: 0.5, lambda: 0.5"), &values);
    assert_close("advantages", &out["out.0"], &[0.5 * 0.4 - 0.2 + 0.25 * 0.6, 0.6, 0.4], 1e-12);
}

#[test]
fn a_failed_reward_pays_nothing() {
    let text = "fn f(r: f32[seq], v: f32[tok]) -> f32[tok] = ppo.at_last_token(r, v)";
    let values = [("r", vec![1.0, 7.0]), ("r.valid", vec![1.0, 0.0]), ("v", vec![0.0; 3])];
    assert_eq!(tried(text, &values)["out"], [0.0, 1.0, 0.0]);
}

#[test]
fn scans_go_both_ways_and_restart() {
    let values = [("x", vec![1.0, 2.0, 4.0])];
    let scan = |body: &str| {
        tried(&format!("fn f(x: f32[tok]) -> f32[tok] = {body}"), &values)["out"].clone()
    };
    assert_eq!(scan("scan x carrying a = 0 { x + 0.5 * a }"), [1.0, 2.5, 4.0]);
    assert_eq!(scan("scan back x carrying a = 0 { x + 0.5 * a }"), [2.0, 2.0, 4.0]);
    // Any form that is linear in what is carried.
    assert_eq!(scan("scan back x carrying a = 0 { a / 2 - x * (1 - a) }"), [-4.0, -2.0, -4.0]);
    assert_eq!(scan("scan back x carrying a = 0 { -(a - x) }"), [-1.0, 2.0, 4.0]);
    assert_eq!(scan("next(x, else: -1.0)"), [2.0, -1.0, -1.0]);
    for body in ["a * a + x", "exp(a) + x", "x / a"] {
        let text = format!("fn f(x: f32[tok]) -> f32[tok] = scan x carrying a = 0 {{ {body} }}");
        let found = refusal(&text, "f", &[]);
        assert!(
            found.len() == 1 && found[0].starts_with("not-supported: `a` is carried"),
            "{found:?}"
        );
    }
}

#[test]
fn trap_16_whitening_is_over_the_batch_and_finite() {
    let text = "fn f(x: f32[tok]) -> f32[tok] = ppo.whiten(x)";
    let root = (14.0_f64 / 3.0).sqrt();
    let out = tried(text, &[("x", vec![1.0, 2.0, 6.0])]);
    assert_close("whitened", &out["out"], &[-2.0 / root, -1.0 / root, 3.0 / root], 1e-8);
    assert_eq!(tried(text, &[("x", vec![5.0; 3])])["out"], [0.0; 3]);
}

#[test]
fn value_losses_take_the_larger_of_free_and_held() {
    let text = "fn f(v: f32[tok], t: f32[tok], o: f32[tok]) -> f32[tok] = ppo.value_loss(v, t, o, clip: 0.2)";
    let values = [("v", vec![1.0, 1.0, 0.1]), ("t", vec![0.0, 2.0, 0.0]), ("o", vec![0.0; 3])];
    // Free 1, held 0.04; free 1, held (0.2 - 2)^2; inside the clip both are 0.01.
    assert_close("loss", &tried(text, &values)["out"], &[1.0, 3.24, 0.01], 1e-12);
}

#[test]
fn deviations_of_groups() {
    let text = "fn f(r: f32[seq]) -> f32[group] = std(r)";
    let g = graph(text, "f", &[]);
    let batch = Batch { groups: vec![4, 2, 2], tokens: vec![1; 8] };
    let r = vec![1.0, 0.0, 0.0, 0.0, 5.0, 5.0, 3.0, 9.0];
    let valid = vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
    let out = run(&g, &batch, &[("r", r), ("r.valid", valid)]).outputs["out"].clone();
    assert_close("deviations", &out, &[0.5, 0.0, 0.0], 1e-12);
}

#[test]
fn preferences_start_at_the_logarithm_of_two() {
    let text = "fn f(p: f32[pair], q: f32[pair]) -> f32[pair] = dpo.preference(p, q, beta: 0.5)";
    let g = graph(&format!("use std.{{dpo}}\n{text}\n"), "f", &[]);
    let batch = Batch { groups: vec![2, 2], tokens: vec![1; 4] };
    let out =
        run(&g, &batch, &[("p", vec![3.0, 5.0]), ("q", vec![3.0, 1.0])]).outputs["out"].clone();
    // -log(sigmoid(0)) and -log(sigmoid(0.5 * 4)).
    assert_close("loss", &out, &[2.0_f64.ln(), (1.0 + (-2.0_f64).exp()).ln()], 1e-12);
}

#[test]
fn a_loss_sees_one_micro_batch() {
    let step = "update p by o in 1 update, minimising { mean(-logprob(p, b) * sum(logprob(p, b), over: all), over: tokens) }";
    let lines = "p = models.llama({hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2}, tokens: characters(\"01$_\", end: \"$\", pad: \"_\"), context: 8 tokens)\n  o = optim.sgd(0.1)";
    let found = problems("models, optim", lines, step);
    assert!(found.len() == 1 && found[0].starts_with("loss-depends-on-layout"), "{found:?}");
}
