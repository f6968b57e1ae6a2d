//! Declared types: records, enums, what may be none, ranges and conditions, units.

use super::support::of_lines;

const TYPES: &str = r#"enum Recompute { none, full }

type Probability = float where it >= 0 and it <= 1

type Even = int where it % 2 == 0

record Settings {
  factor: float = 2.0
  keep: Probability
  mode: Recompute = none
  limit: int? = none
}

fn size(s: Settings) -> float = s.factor * s.keep

fn half(n: Even) -> int = n // 2

fn cost(mode: Recompute) -> float = match mode {
  none -> 0.0
  full -> 1.0
}

fn maybe(n: int?) -> int = match n {
  none   -> -1
  some x -> x
}

fn sure(n: int) -> int = n
"#;

fn ok(lines: &str) {
    assert_eq!(of_lines(TYPES, lines), "");
}

fn fails(lines: &str, parts: &[&str]) {
    let found = of_lines(TYPES, lines);
    for p in parts {
        assert!(found.contains(p), "{p:?} is not in\n{found}");
    }
    let headlines = found.lines().filter(|l| !l.starts_with(' ')).count();
    assert_eq!(headlines, 1, "{found}");
}

#[test]
fn records_are_closed() {
    ok("  a = size({keep: 0.5})\n  require a == 1.0\n  b = size({factor: 3, keep: 1, mode: full})");
    fails(
        "  a = size({keep: 0.5, facto: 3})",
        &[
            "unknown-name: `Settings` has no field `facto`",
            "`facto: 3`: given here",
            "did you mean `factor`?",
        ],
    );
    fails("  a = size({factor: 3})", &["missing-field: `Settings` needs `keep`", "declared here"]);
    fails(
        "  a = size({keep: 1, keep: 0.5})",
        &["duplicate-name: field `keep` is given twice", "second value", "first value"],
    );
    fails(
        "  a = size({keep: 1, factor: \"x\"})",
        &[
            "wrong-type: `factor` must be a plain number, not a text",
            "`factor: \"x\"`: this is a text",
        ],
    );
}

#[test]
fn enums_are_matched_as_a_whole() {
    ok("  require cost(none) == 0, cost(full) == 1");
    fails("  a = cost(fll)", &["unknown-name: `Recompute` has no `fll`", "did you mean `full`?"]);
    let partial = TYPES.replace("  full -> 1.0\n", "");
    let found = of_lines(&partial, "  a = cost(none)");
    assert!(found.starts_with("no-match: this `match` does not take full\n"), "{found}");
    let late = TYPES.replace("  none -> 0.0\n", "  _ -> 0.0\n  none -> 0.0\n");
    let found = of_lines(&late, "  a = cost(none)");
    assert!(found.starts_with("unreachable-arm: "), "{found}");
    fails("  a = cost(3)", &["wrong-type: `mode` must be one of none, full, not a number"]);
}

#[test]
fn none_is_taken_by_optional_types_alone() {
    ok("  require maybe(none) == -1, maybe(3) == 3");
    fails(
        "  a = sure(none)",
        &[
            "wrong-type: `n` must be a whole number, not none",
            "help: declare it `int?` if it may be left out",
        ],
    );
    fails("  a: int = none", &["wrong-type: `a` must be a whole number, not none"]);
    fails("  a = 1 + none", &["wrong-type"]);
    let partial = TYPES.replace("  none   -> -1\n", "");
    let found = of_lines(&partial, "  a = maybe(3)");
    assert!(found.starts_with("no-match: this `match` does not take none\n"), "{found}");
}

#[test]
fn conditions_name_the_value_and_the_declaration() {
    ok("  require half(4) == 2\n  p: Probability = 0.5");
    fails(
        "  a = half(3)",
        &[
            "out-of-range: `n` is 3, and `it % 2 == 0` does not hold of it",
            "`3`: this value",
            "declared here",
        ],
    );
    fails("  a = half(2.5)", &["wrong-type: `n` must be a whole number"]);
    fails(
        "  a = size({keep: 1.5})",
        &["out-of-range: `keep` is 1.5", "it <= 1", "`keep: 1.5`: this value"],
    );
    fails("  p: Probability = 7", &["out-of-range: `p` is 7"]);
    fails("  p: float in 0..1 = 7", &["out-of-range: `p` is 7, outside 0..1", "declared here"]);
}

#[test]
fn recipe_parameters_have_their_types() {
    let text = |p: &str| {
        super::support::recipe(TYPES, "  a = 1")
            .replace("recipe tiny", &format!("recipe tiny({p})"))
    };
    let found = |p: &str, sets: &[&str]| super::support::findings(&[("a.nrl", &text(p))], sets);
    assert_eq!(
        found(
            "p: Probability = 0.5, mode: Recompute = full, k: int? = none",
            &["k=3", "mode=none"]
        ),
        ""
    );
    assert!(found("p: Probability = 0.5", &["p=2"]).starts_with("out-of-range: `p` is 2"));
    assert!(found("p: Probability = 2", &[]).starts_with("out-of-range: `p` is 2"));
    assert_eq!(found("group: samples/prompt = 4 samples/prompt", &["group=8 samples/prompt"]), "");
    let wrong = found("group: samples/prompt = 4 tokens", &[]);
    assert!(
        wrong.starts_with("unit-mismatch: `group` is counted in samples/prompt, not in tokens"),
        "{wrong}"
    );
    assert!(found("mode: Recompute = full", &["mode=fll"]).contains("did you mean `full`?"));
}

#[test]
fn types_are_named_once_and_lead_somewhere() {
    let found = of_lines("type A = B\n\ntype B = A\n\nfn f(x: A) -> int = 1", "  a = f(1)");
    assert!(found.contains("recursion"), "{found}");
    let found = of_lines("fn f(x: Probabilty) -> int = 1\n\ntype Probability = float in 0..1", "");
    assert!(
        found.contains("there is no type `Probabilty`") && found.contains("`Probability`"),
        "{found}"
    );
    let found = of_lines("fn f() -> text = 3", "  a = f()");
    assert!(
        found.starts_with("wrong-type: `the result of f` must be text, not a number"),
        "{found}"
    );
}

#[test]
fn units_meet_their_like() {
    ok(
        "  a = 8 prompts * 16 samples/prompt\n  require a == 128 samples, 2 min == 120 s, 50 % == 0.5\n  \
        require 1 GiB > 1 GB, 4 tokens/sample * a == 512 tokens",
    );
    fails(
        "  a = 1 GB + 1 s",
        &["unit-mismatch: `+` of bytes and seconds", "`1 GB`: bytes", "`1 s`: seconds"],
    );
    fails("  a = 8 prompts < 9 samples", &["unit-mismatch: `<` of prompts and samples"]);
    fails("  a = 3 tkens", &["unknown-unit: `tkens` is not a unit", "did you mean `tokens`?"]);
    fails("  a = 0 tokens..5", &["unit-mismatch: a range is of plain numbers, not of tokens"]);
    fails(
        "  a = match 5 tokens {\n    5 -> 1\n    _ -> 2\n  }",
        &["unit-mismatch: this `match` is of tokens, the pattern of a plain number"],
    );
}

#[test]
fn definitions_that_nothing_uses_are_checked_too() {
    let one = |above: &str| of_lines(above, "");
    let found = one("enum E { a, b }\n\nfn f(e: E) -> int = match e {\n  a -> 1\n}");
    assert!(found.starts_with("no-match: this `match` does not take b\n"), "{found}");
    let found = one("enum E { a, b(list(txt)) }");
    assert!(found.starts_with("unknown-name: there is no type `txt`"), "{found}");
    let found = one("enum E { a, b(int) }\n\nfn f(e: E) -> int = match e {\n  b(n) -> n\n}");
    assert!(found.starts_with("no-match: this `match` does not take a\n"), "{found}");
    let found = one("enum E { a, b(int) }\n\nfn f(e: E) -> int = match e {\n  a -> 1\n}");
    assert!(found.starts_with("no-match: this `match` does not take b(_)\n"), "{found}");
    let found = one("type text = float in 0..1");
    assert!(found.starts_with("duplicate-name: `text` is a type of the language"), "{found}");
    let found = one("record R {\n  a: flot\n}");
    assert!(found.starts_with("unknown-name: there is no type `flot`"), "{found}");
    assert!(found.contains("did you mean `float`?"), "{found}");
    let found = one("type T = int where its > 0");
    assert!(found.starts_with("unknown-name: there is no `its` here"), "{found}");
}

const DECAY: &str = r#"enum Decay { never, halved(int), over(int, float in 0..1) }

fn rate(d: Decay, t: int) -> float = match d {
  never        -> 1.0
  halved(0..1) -> 0.0
  halved(n)    -> 0.5 ^ (t // n)
  over(n, _)   -> 1.0 - t / n
}

record Falling { decay: Decay = halved(4) }

fn planned(p: Falling) -> float = rate(p.decay, 4)"#;

#[test]
fn variants_with_values_are_made_and_taken_apart() {
    let lines = "  a = rate(halved(3), 7)\n  b = rate(never, 7)\n  c = rate(Decay.over(14, 0.5), 7)\n  \
                 d = rate(halved(1), 7)\n  e = planned({})\n  f = planned({decay: over(8, 0.1)})\n  \
                 require a == 0.25, b == 1, c == 0.5, d == 0, e == 0.5, f == 0.5\n  \
                 require Decay.halved(3) == halved(3), Decay.halved(3) != halved(4), Decay.never != halved(3)";
    assert_eq!(of_lines(DECAY, lines), "");
}

#[test]
fn variants_with_values_say_what_is_wrong() {
    let fails = |line: &str, parts: &[&str]| {
        let found = of_lines(DECAY, line);
        for p in parts {
            assert!(found.contains(p), "{line}\n{found}");
        }
        let headlines = found.lines().filter(|l| !l.starts_with("  ")).count();
        assert_eq!(headlines, 1, "one mistake is one message:\n{found}");
    };
    fails(
        "  a = rate(halved, 7)",
        &[
            "wrong-arguments: `halved` holds 1 value, and none is given",
            "help: write `halved(int)`",
        ],
    );
    fails(
        "  a = rate(over(3), 7)",
        &[
            "wrong-arguments: `over` holds 2 values, and 1 is given",
            "write `over(int, float in 0..1)`",
        ],
    );
    fails(
        "  a = rate(never(1), 7)",
        &["wrong-arguments: `never` holds 0 values, and 1 is given", "help: write `never`"],
    );
    fails("  a = rate(halved(2.5), 7)", &["wrong-type: `halved(..)` must be a whole number"]);
    fails("  a = rate(over(3, 1.5), 7)", &["out-of-range: `over(..)` is 1.5, outside 0..1"]);
    fails(
        "  a = rate(halvd(2), 7)",
        &["unknown-name: `Decay` has no `halvd`", "did you mean `halved`?"],
    );
    fails(
        "  a = rate(halved(n: 2), 7)",
        &["wrong-arguments: the values of `halved` have no names"],
    );
    let of = |arms: &str| format!("  a: int = match Decay.halved(3) {{\n{arms}\n  }}");
    fails(
        &of("    halved -> 1\n    _ -> 2"),
        &[
            "wrong-arguments: `halved` holds values, which its pattern must name",
            "write `halved(_)`",
        ],
    );
    fails(
        &of("    halved(a, b) -> 1\n    _ -> 2"),
        &["wrong-arguments: `halved` holds 1 values, this pattern names 2", "write `halved(_)`"],
    );
    fails(
        &of("    halved(n) -> n\n    never -> 2"),
        &["no-match: this `match` does not take over(_, _)"],
    );
    fails(
        &of("    halved(n) -> n\n    halved(_) -> 1\n    _ -> 2"),
        &["unreachable-arm: this arm is never taken"],
    );
}

#[test]
fn units_of_ones_own_count_and_convert() {
    let units = "unit widget\nunit dozens = 12 widgets\nunit gross = 12 dozen\n\n\
                 fn price(n: widgets, each: float) -> float = n * each";
    let lines = "  per = 3 widgets/prompt\n  all = per * 8 prompts\n  \
                 require all == 2 dozens, 1 gross == 144 widgets, price(all, 0.5) == 12\n  \
                 n: widgets = 5 widgets\n  require n == 5 widget";
    assert_eq!(of_lines(units, lines), "");
    let fails = |above: &str, line: &str, parts: &[&str]| {
        let found = of_lines(above, line);
        for p in parts {
            assert!(found.contains(p), "{line}\n{found}");
        }
        let headlines = found.lines().filter(|l| !l.starts_with("  ")).count();
        assert_eq!(headlines, 1, "one mistake is one message:\n{found}");
    };
    fails(units, "  a = 3 widgets + 2 tokens", &["unit-mismatch", "widgets", "tokens"]);
    fails(
        units,
        "  a = price(3, 1.0)",
        &["unit-mismatch: `n` needs a unit: widgets", "write `3 widgets`"],
    );
    fails(
        units,
        "  a = price(3 tokens, 1.0)",
        &["unit-mismatch: `n` is counted in widgets, not in tokens"],
    );
    fails(
        units,
        "  a = 3 widgts",
        &["unknown-unit: `widgts` is not a unit", "did you mean `widget"],
    );
    fails("", "  a = 3 parsecs", &["unknown-unit", "declared above the recipe: `unit parsecs`"]);
    fails("unit token", "", &["duplicate-name: `token` is a unit of the language"]);
    fails("unit GB = 5 B", "", &["duplicate-name: `GB` is a unit of the language"]);
    fails(
        "unit a = 2 b\nunit b = 2 a",
        "  x = 1",
        &["recursion: the unit `a` is defined through itself"],
    );
    fails(
        "unit a = 2 tokns",
        "",
        &["unknown-unit: `tokns` is not a unit", "did you mean `tokens`?"],
    );
    fails("unit widget\nunit widget", "", &["duplicate-name: `widget` is defined twice"]);
    fails("unit a = 2 b\nunit b = 2 c\nunit c = 2 b", "  x = 3", &["recursion: the unit `b`"]);
    fails(units, "  a: dozens = 2 dozens", &["unknown-unit: the unit of a type is a whole one"]);
}

/// A unit is imported by its name; two files that declare the same one mean the same.
#[test]
fn units_come_from_other_files() {
    let shop = "unit widget\n\nfn price(n: widgets) -> float = 2.0 * n\n";
    let text = super::support::recipe(
        "use \"shop.nrl\".{widget, price}",
        "  a = price(3 widgets)\n  require a == 6",
    );
    let found = super::support::findings(&[("a.nrl", &text), ("shop.nrl", shop)], &[]);
    assert_eq!(found, "");
}
