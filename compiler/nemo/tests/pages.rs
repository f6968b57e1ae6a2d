//! The pages of what a loader finds tell the truth: the first `yaml` block of a page raises its
//! code and nothing else, the blocks after it are the fix and raise nothing.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::Path;

use nrl_base::{Diagnostic, SourceMap};

const CODES: &[&str] = &[
    "broken-inheritance",
    "duplicate-key",
    "idle-override-marker",
    "not-a-mapping",
    "unresolved-interpolation",
    "value-missing",
    "variable-not-set",
    "yaml-reads-otherwise",
    "yaml-syntax",
];

/// What loading a block finds: `# file: NAME` begins a file, `# override: SET` is one.
fn findings(block: &str) -> Vec<Diagnostic> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut name = String::from("recipe.yaml");
    let mut overrides = vec![];
    for line in block.lines() {
        if let Some(file) = line.strip_prefix("# file: ") {
            name = file.to_string();
        } else if let Some(set) = line.strip_prefix("# override: ") {
            overrides.push(set.to_string());
        } else {
            files.entry(name.clone()).or_default().push_str(&format!("{line}\n"));
        }
    }
    let (settings, found) =
        nrl_nemo::load(&files, &mut SourceMap::new(), "recipe.yaml", &overrides);
    assert_eq!(settings.is_none(), found.iter().any(Diagnostic::is_error), "{found:?}");
    found
}

#[test]
fn the_first_example_of_a_page_raises_its_code_and_the_fix_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    for code in CODES {
        let page = std::fs::read_to_string(folder.join(format!("{code}.md"))).expect(code);
        let blocks: Vec<_> = page.split("```yaml\n").skip(1).collect();
        assert!(blocks.len() >= 2, "{code} has an example and a fix");
        for (at, block) in blocks.into_iter().enumerate() {
            let found = findings(block.split("```").next().unwrap_or(""));
            let codes: Vec<_> = found.iter().map(|d| d.code).collect();
            let expected: &[&str] = if at == 0 { &[code] } else { &[] };
            assert_eq!(codes, expected, "{code}, block {at}: {found:?}");
            assert!(found.iter().all(|d| !d.labels.is_empty()), "{code} does not say where");
        }
    }
}
