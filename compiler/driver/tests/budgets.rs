//! Budgets of memory and time: held, broken, or said to be open.

use std::collections::BTreeMap;

use nrl_base::{Severity, SourceMap};
use nrl_driver::threads::Seen;
use nrl_driver::{Assume, Options, check};
use nrl_sim::calibration::{Calibration, Ranks};
use nrl_sim::rates::Rates;
use nrl_sim::threads::Host;

/// Code, severity and headline of what a recipe with these budgets finds.
fn findings(budgets: &str, cluster: &str) -> Vec<(&'static str, Severity, String)> {
    findings_with(budgets, cluster, Assume::default())
}

fn findings_with(
    budgets: &str,
    cluster: &str,
    assume: Assume,
) -> Vec<(&'static str, Severity, String)> {
    let text = format!(
        "use std.{{clusters, data, models, optim, plans, sft}}\n\nrecipe tiny {{\n  run 10 steps\n  mesh m = {cluster} axes (dp: rest)\n  \
         policy = models.llama(\n    {{hidden_size: 64, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}},\n    \
         tokens: characters(\"0123456789+=$_\", end: \"$\", pad: \"_\"), context: 16 tokens)\n  place policy on m by plans.ddp()\n  \
         opt = optim.adamw(lr: 1e-3)\n  rows = data.made(100 rows, i -> {{prompt: \"1+1=\", answer: \"2\"}})\n  {budgets}\n  step {{\n    \
         b = rows.take(8 samples)\n    update policy by opt in 1 update, 128 tokens/microbatch, minimising {{ sft.nll(policy, b) }}\n  }}\n}}\n"
    );
    let files = BTreeMap::from([("a.nrl".to_string(), text)]);
    let options = Options { assume, ..Options::default() };
    let (_, found) = check(&files, &mut SourceMap::new(), "a.nrl", &options);
    found.into_iter().map(|d| (d.code, d.severity, d.message)).collect()
}

#[test]
fn a_budget_is_decided_by_the_plans() {
    let cpu = "clusters.cpu(ranks: 1)";
    assert_eq!(findings("require peak_memory <= 1 GiB", cpu), []);
    let found = findings("require peak_memory <= 100 kB", cpu);
    let [(code, severity, text)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((*code, *severity), ("requirement-fails", Severity::Error));
    assert!(
        text.starts_with("`update policy` needs ") && text.contains(" MiB on a rank"),
        "{text}"
    );
    assert!(text.ends_with("the recipe requires `peak_memory <= 100 kB` (0.10 MiB)"), "{text}");
    let found = findings("expect peak_memory <= 100 kB", cpu);
    assert_eq!((found[0].0, found[0].1), ("requirement-fails", Severity::Warning));
}

#[test]
fn what_nothing_decides_is_one_note() {
    let found = findings("require peak_memory <= 92 % of device", "clusters.cpu(ranks: 1)");
    let [(code, severity, text)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (*code, *severity, text.as_str()),
        ("not-supported", Severity::Note, "a budget is not decided")
    );
}

/// A machine that multiplies 1e9 times a second and does nothing else that takes time.
fn slow(spread: f64) -> Assume {
    let rates = Rates {
        product: 1.0,
        half: 0.0,
        attention: 1e9,
        memory: 1e9,
        launch: 0.0,
        update: 0.0,
        fixed: 0.0,
        inline: true,
        ..Rates::default()
    };
    let host =
        Host { job: 0.0, run: 0.0, token: 0.0, logit: 0.0, sample: 0.0, reward: 0.0, write: 1e9 };
    let one = Ranks {
        ranks: 1,
        threads: 1,
        flops: 2e9,
        bandwidth: 1e9,
        link: 1e9,
        rates,
        host,
        median: 0.0,
        p90: spread,
    };
    let calibration =
        Calibration { machine: "a box".into(), ranks: vec![one], ..Default::default() };
    let seen = Seen { rows: 100, prompt: 4.0, answer: Some(2.0) };
    Assume {
        calibration: Some(calibration),
        seen: BTreeMap::from([(0, seen)]),
        ..Assume::default()
    }
}

/// 8 samples are fed 5 tokens each. Of a layer 64 wide: four projections of 64 x 64 and three of 64 x 64 feed-forward
/// weights, forward once and backward twice: 40 * 7 * 4096 * 3 multiplications; the head (64 x 15, tied) for 2 scored
/// tokens of each sample once forward and three times backward: 16 * 960 * 4.
const STEP: f64 = (40.0 * 7.0 * 4096.0 * 3.0 + 16.0 * 960.0 * 4.0) / 1e9;

#[test]
fn a_budget_of_time_is_decided_by_the_forecast() {
    let cpu = "clusters.cpu(ranks: 1)";
    let near = |share: f64| format!("{:.6} s", STEP * share);
    let with = |budget: &str, spread: f64| findings_with(budget, cpu, slow(spread));
    assert_eq!(with(&format!("require step_time < {}", near(1.01)), 0.05), []);
    let found = with(&format!("require step_time < {}", near(0.9)), 0.05);
    let [(code, severity, text)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((*code, *severity), ("requirement-fails", Severity::Error));
    assert!(
        text.starts_with("a step") && text.contains("takes 3.5 ms (3.3 ms to 3.7 ms)"),
        "{text}"
    );
    // What only the middle of the interval breaks is a warning, whatever the recipe says.
    let found = with(&format!("require step_time < {}", near(0.9)), 0.5);
    assert_eq!((found[0].0, found[0].1), ("requirement-fails", Severity::Warning));
    assert!(found[0].2.contains("may take"), "{}", found[0].2);
    let found = with(&format!("expect step_time < {}", near(0.5)), 0.05);
    assert_eq!((found[0].0, found[0].1), ("requirement-fails", Severity::Warning));
    // Nobody has measured the machine: a typical core is far from 90 s.
    assert_eq!(findings("require step_time < 90 s", cpu), []);
}
