//! Tests written in the language: those of the standard library hold, and a wrong one says why.

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_lower::lower_tests;

use super::support::shown;

/// `name: ok`, or what is wrong, a line each.
fn outcomes(text: &str) -> Vec<String> {
    outcomes_beside(text, &BTreeMap::new())
}

/// The same for a file that may use others.
fn outcomes_beside(text: &str, others: &BTreeMap<String, String>) -> Vec<String> {
    let mut files = others.clone();
    files.insert("a.nrl".to_string(), text.to_string());
    let mut sources = SourceMap::new();
    let (tests, problems) = lower_tests(&files, &mut sources, "a.nrl", None);
    let mut out = vec![];
    let problems = problems.into_sorted();
    if !problems.is_empty() {
        out.push(shown(&problems, &sources));
    }
    for t in tests {
        if !t.problems.is_empty() {
            out.push(format!("{}: {}", t.name, shown(&t.problems, &sources)));
            continue;
        }
        let outputs = t.graph.as_ref().map_or(vec![], |g| {
            nrl_interp::run_batch(g, &t.groups, &t.tokens, &t.values).expect("it runs")
        });
        let verdicts = t.verdicts(&outputs);
        if verdicts.is_empty() {
            out.push(format!("{}: ok", t.name));
        }
        for (span, text, why) in verdicts {
            out.push(format!("{}: {} {text}: {why}", t.name, sources.place(span)));
        }
    }
    out
}

#[test]
fn the_tests_of_the_library_hold() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../stdlib/tests");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("text");
        for line in outcomes(&text) {
            assert!(line.ends_with(": ok"), "{}: {line}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 20, "only {seen} tests found");
}

/// The tests in the blocks of a page; a block whose first line is `# NAME` is that file for later ones.
fn page_holds(name: &str, least: usize) {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).expect("the page is there");
    let mut files = BTreeMap::new();
    let mut seen = 0;
    for block in page.split("```nrl\n").skip(1).filter_map(|b| b.split("```").next()) {
        if let Some(file) = block.lines().next().and_then(|l| l.strip_prefix("# ")) {
            files.insert(file.to_string(), block.to_string());
        }
        if !block.contains("\ntest \"") {
            continue;
        }
        for line in outcomes_beside(block, &files) {
            assert!(line.ends_with(": ok"), "{line}");
            seen += 1;
        }
    }
    assert!(seen >= least, "only {seen} tests found in {name}");
}

#[test]
fn the_tests_of_the_pages_hold() {
    page_holds("language.md", 2);
    page_holds("tutorial.md", 4);
    page_holds("std.md", 20);
}

#[test]
fn what_does_not_hold_shows_both_values_and_its_place() {
    let text = "fn half(x: float in 0..10) -> float = x / 2\n\n\
        test \"right\" {\n  assert half(3) == 1.5\n  assert half(1) == 0.5001 within 1e-3\n}\n\n\
        test \"wrong\" {\n  assert half(3) == 1\n  assert half(1) > half(2)\n  assert \"a\" == \"b\"\n  \
        assert [1, 2] == [1, 3]\n  assert 1 > 2 or 2 > 3\n}\n\n\
        test \"tensors\" {\n  let x = per_token([1.0, 2.0])\n  assert 2.0 * x == [2, 5]\n  \
        assert x > 1\n  assert mean(x, over: tokens) == 1\n  assert x == [1, 2, 3]\n}\n\n\
        test \"errors\" {\n  fails out-of-range { half(11) }\n  fails wrong-type { half(11) }\n  \
        fails wrong-type { half(1) }\n}\n";
    let want = [
        "right: ok",
        "wrong: a.nrl:9:3 assert half(3) == 1: left is 1.5, right is 1 (apart by 0.5)",
        "wrong: a.nrl:10:3 assert half(1) > half(2): left is 0.5, right is 1 (apart by 0.5)",
        "wrong: a.nrl:11:3 assert \"a\" == \"b\": left is \"a\", right is \"b\"",
        "wrong: a.nrl:12:3 assert [1, 2] == [1, 3]: left is [1,2], right is [1,3]",
        "wrong: a.nrl:13:3 assert 1 > 2 or 2 > 3: it is false",
        "tensors: a.nrl:18:3 assert 2.0 * x == [2, 5]: item 1: left is 4, right is 5 (apart by 1)",
        "tensors: a.nrl:19:3 assert x > 1: item 0: left is 1, right is 1 (apart by 0)",
        "tensors: a.nrl:20:3 assert mean(x, over: tokens) == 1: left is 1.5, right is 1 (apart by 0.5)",
        "tensors: a.nrl:21:3 assert x == [1, 2, 3]: left has 2 numbers, right has 3",
        "errors: a.nrl:26:3 fails wrong-type: it fails otherwise: out-of-range (`x` is 11, outside 0..10)",
        "errors: a.nrl:27:3 fails wrong-type: nothing fails here",
    ];
    assert_eq!(outcomes(text), want);
}

#[test]
fn a_test_with_an_error_says_what_and_where() {
    let one = |text: &str| {
        let found = outcomes(text);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    let found = one("test \"a\" {\n  assert per_token([1]) == per_sample([1, 2])\n}\n");
    assert!(found.contains("dim-mismatch: the numbers of a test are of one batch"), "{found}");
    let found = one("test \"a\" {\n  assert 3\n}\n");
    assert!(found.contains("wrong-type: `assert` takes a bool or a comparison"), "{found}");
    let found = one("test \"a\" {\n  assert 3 s == 3 tokens\n}\n");
    assert!(found.contains("unit-mismatch: `==` of seconds and tokens"), "{found}");
    let found = one("test \"a\" {\n  assert 1 + x == 2\n}\n");
    assert!(found.contains("unknown-name: there is no `x` here"), "{found}");
    let found = one("test \"a\" {\n  fails wrong-tpe { 1 }\n  assert 1 == 1\n}\n");
    assert!(
        found.contains("there is no error `wrong-tpe`") && found.contains("wrong-type"),
        "{found}"
    );
    let found = one("test \"a\" {\n  run 3 steps\n}\n");
    assert!(found.contains("misplaced: this line has no meaning in a test"), "{found}");
    let found = outcomes("test \"a\" {\n  assert 1 == 1\n}\n\ntest \"a\" {\n  assert 1 == 1\n}\n");
    assert!(found[0].contains("duplicate-name: there are two tests `a`"), "{found:?}");
    let outside = super::support::of_lines("fn f() -> int = 1", "  a = per_token([1.0])");
    assert!(outside.contains("misplaced: `per_token` gives numbers to a test"), "{outside}");
}

/// By hand: the margins differ by 0.5 and by -1; -log(sigmoid(x)) is log(1 + exp(-x)).
#[test]
fn numbers_per_pair_are_given_to_losses_of_pairs() {
    let text = "use std.dpo\n\ntest \"pairs\" {\n  \
                let own = per_pair([1.5, -0.5])\n  let ref = per_pair([1.0, 0.5])\n  \
                let loss = dpo.preference(own, ref, beta: 1.0)\n  \
                assert loss == [log(1 + exp(-0.5)), log(1 + exp(1.0))] within 1e-12\n  \
                assert dpo.accuracy(own, ref) == 0.5\n  \
                assert mean(loss, over: pairs) == 0.5 * (log(1 + exp(-0.5)) + log(1 + exp(1.0))) within 1e-12\n}\n";
    assert_eq!(outcomes(text), ["pairs: ok"]);
    let text = "test \"pairs\" {\n  assert per_pair([1, 2]) == per_pair([1, 2, 3])\n}\n";
    let found = outcomes(text);
    assert!(
        found[0].contains("dim-mismatch") && found[0].contains("3 groups or pairs here"),
        "{found:?}"
    );
}
