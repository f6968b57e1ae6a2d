//! The pages of `docs/errors` tell the truth about recipes in YAML: the first `yaml` block of a page
//! raises its code and no other, the blocks after it raise nothing. Blocks inherit from the small
//! recipes in `examples/nemo_rl`.

use std::path::Path;

use nrl_base::codes::CODES;

use crate::base::{check, files, shown};

#[test]
fn examples_raise_their_code_and_fixes_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let base = files();
    let (mut tested, mut wrong) = (0, vec![]);
    for (code, _) in CODES {
        let page = std::fs::read_to_string(folder.join(format!("{code}.md"))).expect(code);
        // Pages of what loading finds are tested with the loader.
        let blocks: Vec<&str> =
            page.split("```yaml\n").skip(1).map(|b| b.split("```").next().unwrap_or("")).collect();
        if !blocks.first().is_some_and(|b| b.starts_with("defaults: ")) {
            continue;
        }
        for (at, block) in blocks.iter().enumerate() {
            let mut files = base.clone();
            files.insert("example.yaml".to_string(), block.to_string());
            let found = check(&files, "example.yaml", &[]).findings;
            let right = match at {
                0 => !found.is_empty() && found.iter().all(|d| d.code == *code),
                _ => found.is_empty(),
            };
            let placed = found.iter().all(|d| !d.labels.is_empty());
            if !right || !placed {
                wrong.push(format!("{code}, block {at}:\n{}", shown(&found)));
            }
            tested += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tested > 100, "only {tested} blocks");
}

#[test]
fn every_rule_has_a_code_with_a_page_that_names_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let mut wrong = vec![];
    for rule in nrl_rules::TABLES.iter().copied().flatten() {
        match std::fs::read_to_string(folder.join(format!("{}.md", rule.code))) {
            Ok(page) => wrong.extend(
                rule.id
                    .split(", ")
                    .filter(|id| !page.contains(*id))
                    .map(|id| format!("{} does not name {id}", rule.code)),
            ),
            Err(_) => wrong.push(format!("{} has no page ({})", rule.code, rule.id)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
