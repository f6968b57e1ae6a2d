//! Shipped recipes run, so no rule may call them wrong.

use std::collections::BTreeMap;

use nrl_base::Severity;
use nrl_rules::Finding;
use nrl_rules::recipe::Version;

use crate::resolved;

/// Recipes that break a rule and that the reference lists as broken, with the reason.
const BROKEN: &[(&str, &str, &str)] = &[
    ("examples__nemo_gym__grpo_qwen3_30ba3b_instruct", "BATCH-13", "the shipped recipe breaks it"),
    ("nemotron-3-ultra", "MESH-42", "the launcher gives the nodes"),
    ("nemotron-3-ultra", "MESH-03", "the launcher gives the nodes"),
];

/// Whether the recipe is known to break a rule of this code.
pub fn broken(name: &str, code: &str) -> bool {
    let rules = nrl_rules::TABLES.iter().copied().flatten();
    let of = |id: &str| rules.clone().any(|r| r.id.contains(id) && r.code == code);
    BROKEN.iter().any(|(n, id, _)| name.contains(n) && of(id))
}

fn training(json: &serde_json::Value) -> bool {
    json.get("cluster").is_some() && (json.get("policy").is_some() || json.get("eval").is_some())
}

#[test]
fn shipped_recipes_have_no_errors() {
    let nothing: BTreeMap<String, String> = BTreeMap::new();
    let all = resolved::all();
    if all.is_empty() {
        println!("the reference is not here: skipped");
        return;
    }
    let mut wrong = vec![];
    let mut counts: BTreeMap<(Severity, &str, &str), Vec<String>> = BTreeMap::new();
    let mut tested = 0;
    for (name, json) in all.iter().filter(|(_, json)| training(json)) {
        tested += 1;
        let recipe = nrl_nemo::model::recipe(resolved::settings(json), &nothing, Version::Newest);
        let schema = nrl_nemo::schema::check(&recipe);
        let named = schema.into_iter().map(|diagnostic| Finding { id: "LOAD", diagnostic });
        for finding in nrl_rules::check(&recipe).into_iter().chain(named) {
            let d = &finding.diagnostic;
            let line = format!("{name}: {} [{}] {} {:?}", d.code, finding.id, d.message, d.notes);
            counts.entry((d.severity, d.code, finding.id)).or_default().push(line.clone());
            let known = BROKEN.iter().any(|(n, id, _)| name.contains(n) && finding.id.contains(id));
            if d.is_error() && !known {
                wrong.push(line);
            }
        }
    }
    for ((severity, code, id), lines) in &counts {
        println!("{:>5} {} {code} [{id}] e.g. {}", lines.len(), severity.word(), lines[0]);
    }
    println!("{tested} recipes");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tested > 150, "only {tested} recipes");
}
