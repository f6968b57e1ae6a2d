//! One mistake in a recipe that is right: the rule made for it must speak, with its code.

use std::collections::BTreeSet;

use nrl_base::{Severity, SourceMap};
use nrl_nemo::{Checked, Options};
use nrl_rules::recipe::Version;

use crate::base::{check, files, shown};

/// The rules, a small recipe, the overrides that break it, and the code to expect.
fn mutants() -> Vec<(String, String, Vec<String>, String)> {
    let text = include_str!("mutants.txt");
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split("  ").map(str::trim).filter(|w| !w.is_empty());
            let id = words.next().unwrap().to_string();
            let base = words.next().unwrap().to_string();
            let code = words.next().unwrap().to_string();
            (id, format!("{base}.yaml"), words.map(str::to_string).collect(), code)
        })
        .collect()
}

#[test]
fn the_small_recipes_are_right() {
    let files = files();
    let mut wrong = vec![];
    for name in files.keys().filter(|name| name.ends_with(".yaml")) {
        let found = check(&files, name, &[]).findings;
        if !found.is_empty() {
            wrong.push(format!("{name}:\n{}", shown(&found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_mistake_is_found_by_its_code() {
    let files = files();
    let all = mutants();
    let mut wrong = vec![];
    for (id, base, overrides, code) in &all {
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let checked = check(&files, base, &overrides);
        let found = &checked.findings;
        if !speaks(&checked, id, code) {
            wrong.push(format!("{id} {code}: {base} {overrides:?}\n{}", shown(found)));
        }
    }
    let right = all.len() - wrong.len();
    println!("{right} of {} mistakes found by their code", all.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(all.len() > 200, "only {} mistakes", all.len());
}

/// NeMo RL 0.3 takes Megatron where both backends are on; later versions refuse that.
#[test]
fn both_backends_are_a_warning_for_0_3() {
    let both = ["++policy.megatron_cfg.enabled=true".to_string()];
    let severity = |version: Version| {
        let mut sources = SourceMap::new();
        let options = Options { version };
        let checked = nrl_nemo::check(&files(), &mut sources, "grpo.yaml", &both, options);
        let mut found = checked.findings.into_iter().filter(|d| d.code == "backend-not-chosen");
        found.next().map(|d| d.severity)
    };
    assert_eq!(severity(Version::V0_3), Some(Severity::Warning));
    assert_eq!(severity(Version::Newest), Some(Severity::Error));
}

/// Whether the code is found, by the rule itself if it is one of the tables.
fn speaks(checked: &Checked, id: &str, code: &str) -> bool {
    let named = |rule: &str| rule.split(", ").any(|one| one == id);
    let ruled = nrl_rules::TABLES.iter().copied().flatten().any(|rule| named(rule.id));
    let raised = checked.findings.iter().any(|d| d.code == code);
    let by_rule = |r: &nrl_rules::Recipe| nrl_rules::check(r).iter().any(|f| named(f.id));
    // Text as a learning rate is judged by a rule, other types by the schema.
    raised && (!ruled || id == "LOAD-14" || checked.recipe.as_ref().is_some_and(by_rule))
}

/// A rule without a mistake of its own is a rule that nobody has seen speak.
#[test]
fn every_rule_has_a_mistake() {
    let tried: BTreeSet<String> = mutants()
        .iter()
        .flat_map(|m| m.0.split(',').map(|s| s.trim().to_string()).collect::<Vec<_>>())
        .collect();
    let rules = nrl_rules::TABLES.iter().copied().flatten();
    let silent: Vec<&str> = rules
        .filter(|rule| !rule.id.split(", ").any(|id| tried.contains(id)))
        .map(|rule| rule.id)
        .collect();
    assert!(silent.is_empty(), "{} rules without a mistake: {silent:?}", silent.len());
}
