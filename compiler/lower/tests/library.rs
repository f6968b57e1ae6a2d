//! `docs/std.md` is what the standard library says of itself: module headers, signatures, comments.
//!
//! `NRL_BLESS=1 cargo test -p nrl-lower --test library` writes the page anew.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::path::Path;

#[test]
fn the_page_of_the_standard_library_is_up_to_date() {
    let page = nrl_lower::docs::std_page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/std.md");
    if std::env::var_os("NRL_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "run `NRL_BLESS=1 cargo test -p nrl-lower --test library` and read the difference";
    assert!(found == page, "docs/std.md is not what stdlib/ says; {how}");
}

#[test]
fn every_file_of_tests_is_an_example() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../stdlib/tests");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut known: Vec<String> =
        nrl_lower::docs::EXAMPLES.iter().map(|(n, _)| n.replace("std.", "")).collect();
    known.sort();
    assert_eq!(names, known);
}

#[test]
fn a_page_of_a_file_has_its_items_in_both_forms() {
    use nrl_lower::docs::{html, markdown, module};
    let text = "## Scores.\n\n## A share, `0..1`.\ntype Share = float in 0..1\n\n## 1 & more.\nfn f(\n  x: Share,\n) -> list(int) = [1]\n";
    let modules = [module("s.nrl", text)];
    let want = "# s\n\n## s.nrl\n\nScores.\n\n- `type Share = float in 0..1`\n  A share, `0..1`.\n- `fn f(x: Share,) -> list(int)`\n  1 & more.\n";
    assert_eq!(markdown("s", "", &modules), want);
    let page = html("s", &modules);
    assert!(page.contains("<dd>A share, <code>0..1</code>.</dd>"), "{page}");
    assert!(
        page.contains(
            "<dt><code>fn f(x: Share,) -&gt; list(int)</code></dt>\n<dd>1 &amp; more.</dd>"
        ),
        "{page}"
    );
}

#[test]
fn the_library_and_the_examples_are_in_the_standard_layout() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let examples = std::fs::read_dir(folder).unwrap().filter_map(|e| {
        let path = e.unwrap().path();
        let nrl = path.extension().is_some_and(|x| x == "nrl");
        nrl.then(|| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()))
    });
    let library = nrl_lower::STD.iter().chain(nrl_lower::docs::EXAMPLES);
    let library = library.map(|(name, text)| (name.to_string(), text.to_string()));
    for (name, text) in library.chain(examples) {
        let formatted = nrl_syntax::print::format(&text).unwrap();
        assert!(formatted == text, "{name} is not in the standard layout: run `nrlc fmt`");
    }
}
