//! Advantages of `std.grpo` and statistics of rewards, against values worked out in Python.

use serde_json::Value as Json;

use crate::support::{Batch, assert_close, fixture, graph, items, number, run, text};

const BOUND: f64 = 1e-6;

/// Advantages of groups of rewards; `None` is a failed one.
fn advantages(call: &str, groups: &[Vec<Option<f64>>]) -> Vec<f64> {
    let module = format!("use std.grpo\nfn adv(r: f32[seq]) -> f32[seq] = grpo.{call}\n");
    let g = graph(&module, "adv", &[]);
    run(&g, &shape(groups), &values(groups)).outputs["out"].clone()
}

fn shape(groups: &[Vec<Option<f64>>]) -> Batch {
    let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    Batch { tokens: vec![1; sizes.iter().sum()], groups: sizes }
}

/// A failed reward is 0 with validity 0.
fn values(groups: &[Vec<Option<f64>>]) -> [(&'static str, Vec<f64>); 2] {
    let flat: Vec<Option<f64>> = groups.iter().flatten().copied().collect();
    let r = flat.iter().map(|r| r.unwrap_or(0.0)).collect();
    let valid = flat.iter().map(|r| f64::from(r.is_some())).collect();
    [("r", r), ("r.valid", valid)]
}

fn groups(v: &Json) -> Vec<Vec<Option<f64>>> {
    items(v).iter().map(|g| items(g).iter().map(Json::as_f64).collect()).collect()
}

fn check(names: &[&str]) -> usize {
    let all = fixture("losses");
    let mut seen = 0;
    for row in items(&all["advantages"]) {
        let name = text(&row["name"]);
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        let baseline = match text(&row["baseline"]) {
            "none" => "zero",
            b => b,
        };
        let scale = match text(&row["scale"]) {
            "none" => "unscaled",
            "sample" => "std",
            s => s,
        };
        let call = format!(
            "advantages(r, baseline: {baseline}, scale: {scale}, eps: {:?})",
            number(&row["eps"])
        );
        let want: Vec<f64> =
            items(&row["advantages"]).iter().flat_map(|g| items(g).iter().map(number)).collect();
        let got = advantages(&call, &groups(&row["rewards"]));
        assert_close(&format!("{name} {call}"), &got, &want, BOUND);
        seen += 1;
    }
    seen
}

#[test]
fn every_advantage_of_python() {
    assert_eq!(check(&[]), 81);
}

#[test]
fn trap_13_leave_one_out() {
    let names = [
        "one_against_all",
        "zero_spread",
        "equal_but_not_exact_in_binary",
        "two",
        "failed_rewards",
    ];
    assert_eq!(check(&names), 5 * 9);
    let some = |r: &[f64]| r.iter().map(|x| Some(*x)).collect::<Vec<_>>();
    let call = "advantages(r)";
    let got = advantages(call, &[some(&[1.0, 0.0, 0.0, 0.0])]);
    assert_close("one against all", &got, &[1.0, -0.57735, -0.57735, -0.57735], 1e-5);
    // Equal rewards are exactly 0, also those that have no exact binary form.
    for (x, n) in [(0.35, 3), (0.1, 7), (1.0 / 3.0, 16), (1e-9, 5), (1e9, 5), (-0.7, 11)] {
        for scale in ["std", "population", "unscaled"] {
            let got = advantages(&format!("advantages(r, scale: {scale})"), &[some(&vec![x; n])]);
            assert!(got.iter().all(|a| *a == 0.0), "{n} times {x}, {scale}: {got:?}");
        }
    }
    // All others equal: the odd one keeps its difference, the rest are scaled.
    let got = advantages(call, &[some(&[0.35, 0.35, 0.35, 0.0])]);
    assert_close("odd one", &got[3..], &[-0.35], 1e-12);
    let got = advantages(call, &[some(&[0.35, 0.35, 0.35, 0.7])]);
    assert_close("odd one", &got[3..], &[0.35], 1e-12);
    // A failed reward leaves the group; a zero stays in it.
    let failed = advantages(call, &[vec![Some(1.0), None, Some(0.0), Some(0.0)]]);
    let without = advantages(call, &[some(&[1.0, 0.0, 0.0])]);
    let zero = advantages(call, &[some(&[1.0, 0.0, 0.0, 0.0])]);
    assert_eq!([failed[0], failed[2], failed[3]], without[..]);
    assert_eq!(failed[1], 0.0);
    assert_ne!(zero[2], without[2]);
}

#[test]
fn trap_13_small_spreads_are_spreads() {
    // Differences far below the rewards are no rounding: two exact multiples of 2^-30 at 1000.
    let step = f64::powi(2.0, -30);
    let r: Vec<Option<f64>> =
        [0.0, 1.0, 2.0, 3.0].iter().map(|i| Some(1000.0 + i * step)).collect();
    let got = advantages("advantages(r, baseline: mean, eps: 0.0)", &[r]);
    // Of 0, 1, 2, 3: mean 1.5, standard deviation 1.2909944.
    let want = [-1.5, -0.5, 0.5, 1.5].map(|d| d / f64::sqrt(5.0 / 3.0));
    assert_close("spread of 3e-9", &got, &want, 1e-6);
}

#[test]
fn a_group_split_over_no_batch_is_legal() {
    assert!(advantages("advantages(r)", &[]).is_empty());
    assert_eq!(advantages("advantages(r)", &[vec![], vec![Some(1.0)]]), [0.0]);
    assert_eq!(advantages("advantages(r, baseline: zero)", &[vec![], vec![Some(1.0)]]), [1.0]);
}

#[test]
fn trap_21_variance_of_large_rewards_keeps_its_digits() {
    // The same spread around 0 and around a million: sums of squares of the latter lose it in f32.
    let at = |x: f64| {
        let r = [0.0, 1.0, 2.0, 4.0].iter().map(|d| Some(x + d)).collect();
        advantages("advantages(r)", &[r])
    };
    assert_close("shifted", &at(1e6), &at(0.0), 1e-9);
}

#[test]
fn trap_27_metrics_leave_failed_samples_out() {
    let groups =
        [vec![Some(1.0), None, Some(0.0)], vec![None, None], vec![Some(0.5), Some(0.5), None]];
    let try_one = |name: &str, body: &str| {
        let g = graph(&format!("fn {name}(r: f32[seq]) -> {body}\n"), name, &[]);
        run(&g, &shape(&groups), &values(&groups)).outputs["out"].clone()
    };
    assert_eq!(try_one("metric", "f32 = average(r)"), [0.5]);
    assert_eq!(try_one("metric", "f32[group] = spread(r)"), [1.0, 0.0, 0.0]);
    assert_eq!(try_one("metric", "f32 = share(spread(r) == 0)"), [2.0 / 3.0]);
    // How many failed can be said too.
    assert_eq!(try_one("metric", "f32 = sum(1.0 - valid(r), over: all)"), [4.0]);
    let none = [vec![None, None]];
    let g = graph("fn metric(r: f32[seq]) -> f32 = average(r)\n", "metric", &[]);
    assert_eq!(run(&g, &shape(&none), &values(&none)).outputs["out"], [0.0]);
}
