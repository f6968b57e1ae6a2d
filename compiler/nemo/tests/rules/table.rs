//! `docs/nemo-checks.md` says what is checked: generated from the rules, and kept equal to them.
//! `NRL_BLESS=1` writes it anew.

use std::fmt::Write as _;
use std::path::Path;

/// Checks that the loader and the schema make, without a rule of their own.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("LOAD-01", "not-a-mapping", "a recipe is a list, a single value or nothing"),
    ("LOAD-02", "broken-inheritance", "a parent is missing, or recipes inherit in a circle"),
    ("LOAD-03", "duplicate-key", "a key is written twice"),
    ("LOAD-04, LOAD-05", "unknown-path", "an override names what is not there, or adds what is"),
    ("LOAD-06, LOAD-11", "unresolved-interpolation", "an interpolation has no value"),
    ("LOAD-07", "value-missing", "a value that must be given is not"),
    ("LOAD-08", "idle-override-marker", "a marker below the top level does nothing"),
    ("LOAD-09", "worth-knowing", "a list that replaces a longer one"),
    ("LOAD-10, LOAD-14, LOAD-15", "wrong-type", "a value of another type"),
    ("LOAD-12, LOAD-16, BATCH-34, DATA-07", "unknown-name", "a name that does not exist"),
    ("GEN-51", "misplaced", "a name that belongs to another section"),
    ("LOAD-13, LOAD-17", "missing-field", "a setting that must be there is not"),
    ("BACK-29", "setting-has-no-effect", "a section that nobody reads with these choices"),
];

/// Checks of the catalogue that are not made, and why.
const NOT_MADE: &[(&str, &str)] = &[
    ("LOAD-24", "the mesh that a launcher completes is reported as it stands"),
    (
        "MESH-43, BACK-03, PREC-10, PREC-11, CKPT-20, CKPT-21",
        "depends on the machines or their environment variables",
    ),
    ("BATCH-14, GEN-39, ASYNC-12, ASYNC-16", "done by the trainer itself, nothing to change"),
    (
        "BATCH-30, BATCH-31, ALG-34, ASYNC-13, ASYNC-34, CKPT-15, CKPT-18, CKPT-22, MOE-18",
        "known only while a run goes on",
    ),
    (
        "DATA-16, DATA-17, DATA-18, DATA-26, DATA-30, DATA-31",
        "needs the data and the tokenizer; found when the data are read",
    ),
    ("DATA-02, DATA-33", "needs the Python of the recipe"),
    ("DATA-10, DATA-11, BACK-67", "files of the cluster, which this machine need not have"),
    (
        "BACK-15, BACK-19, BACK-45, BACK-64, BACK-71, GEN-28, GEN-32, GEN-33, GEN-45, PREC-07, PREC-18, LORA-09, MOE-19, VLM-03, VLM-04, VLM-05, VLM-06",
        "depends on the inside of another package or of a model's code",
    ),
    ("BACK-25", "there is always a plan to fall back to"),
    ("BACK-47, CKPT-11, CKPT-13, ASYNC-35", "cannot be reached through a recipe"),
    ("GEN-26", "a matter of taste, measured on one model family"),
    ("GEN-49", "the same as BATCH-36"),
    ("LORA-11", "about a tool, not a recipe"),
];

fn table() -> String {
    let mut out = String::from(
        "# Checks of NeMo RL recipes\n\n`nrlc check recipe.yaml [a.b=c ...]` makes these checks. Each has a number in a catalogue of what NeMo RL\nrefuses or does in silence; several numbers of one row are one mistake. `nrlc explain CODE` shows an example.\nThis page is generated from the rules (`NRL_BLESS=1 cargo test -p nrl-nemo --test rules table`).\n\n| check | code | | what is wrong |\n|---|---|---|---|\n",
    );
    let row = |out: &mut String, id: &str, code: &str, word: &str, about: &str| {
        let _ = writeln!(out, "| {id} | [{code}](errors/{code}.md) | {word} | {about} |");
    };
    for (id, code, about) in ELSEWHERE {
        row(&mut out, id, code, nrl_base::codes::severity(code).word(), about);
    }
    for rule in nrl_rules::TABLES.iter().copied().flatten() {
        row(&mut out, rule.id, rule.code, rule.severity.word(), rule.about);
    }
    out.push_str("\nA rule may be louder or quieter for some recipes than the table says; the page of its code tells.\n");
    out.push_str("\n## Not checked\n\n| check | why |\n|---|---|\n");
    for (ids, why) in NOT_MADE {
        let _ = writeln!(out, "| {ids} | {why} |");
    }
    out
}

#[test]
fn the_page_of_checks_is_that_of_the_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nemo-checks.md");
    let now = table();
    if std::env::var_os("NRL_BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == now, "docs/nemo-checks.md is old: run with NRL_BLESS=1");
}

/// Every check of the catalogue is made by a rule, elsewhere, or not, with a reason.
#[test]
fn no_check_of_the_catalogue_is_forgotten() {
    let path = crate::resolved::reference().join("checks.md");
    let Ok(catalogue) = std::fs::read_to_string(path) else {
        println!("the reference is not here: skipped");
        return;
    };
    let rules = nrl_rules::TABLES.iter().copied().flatten().map(|rule| rule.id);
    let named: Vec<&str> = rules
        .chain(ELSEWHERE.iter().map(|row| row.0))
        .chain(NOT_MADE.iter().map(|row| row.0))
        .flat_map(|ids| ids.split(", "))
        .collect();
    let is_id = |word: &str| {
        word.split_once('-').is_some_and(|(kind, number)| {
            kind.chars().all(|c| c.is_ascii_uppercase()) && number.parse::<u32>().is_ok()
        })
    };
    let cells = catalogue.lines().filter_map(|l| l.strip_prefix("| ")?.split(" | ").next());
    let ids: Vec<&str> = cells.filter(|cell| is_id(cell)).collect();
    let forgotten: Vec<&&str> = ids.iter().filter(|id| !named.contains(id)).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
    assert!(ids.len() > 470, "{}", ids.len());
}
