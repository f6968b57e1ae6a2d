//! Budgets of memory and time: held, broken, or said to be open.

use std::collections::BTreeMap;

use nrl_base::{Severity, SourceMap};
use nrl_driver::{Options, check};

/// Code, severity and headline of what a recipe with these budgets finds.
fn findings(budgets: &str, cluster: &str) -> Vec<(&'static str, Severity, String)> {
    let text = format!(
        "use std.{{clusters, data, models, optim, plans, sft}}\n\nrecipe tiny {{\n  run 10 steps\n  mesh m = {cluster} axes (dp: rest)\n  \
         policy = models.llama(\n    {{hidden_size: 64, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}},\n    \
         tokens: characters(\"0123456789+=$_\", end: \"$\", pad: \"_\"), context: 16 tokens)\n  place policy on m by plans.ddp()\n  \
         opt = optim.adamw(lr: 1e-3)\n  rows = data.made(100 rows, i -> {{prompt: \"1+1=\", answer: \"2\"}})\n  {budgets}\n  step {{\n    \
         b = rows.take(8 samples)\n    update policy by opt in 1 update, 128 tokens/microbatch, minimising {{ sft.nll(policy, b) }}\n  }}\n}}\n"
    );
    let files = BTreeMap::from([("a.nrl".to_string(), text)]);
    let (_, found) = check(&files, &mut SourceMap::new(), "a.nrl", &Options::default());
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
    let found = findings(
        "require step_time < 90 s, peak_memory <= 92 % of device",
        "clusters.cpu(ranks: 1)",
    );
    let [(code, severity, text)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (*code, *severity, text.as_str()),
        ("not-supported", Severity::Note, "a budget is not decided")
    );
}
