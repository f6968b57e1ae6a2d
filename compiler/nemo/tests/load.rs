//! What loading says: places, chains, bounds, and who set a value.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nrl_base::{Diagnostic, Files, SourceMap};
use nrl_rules::settings::{SetBy, Settings};

/// Files of a test; `r.yaml` is the recipe.
struct Case {
    files: BTreeMap<String, String>,
    sources: SourceMap,
    settings: Option<Settings>,
    found: Vec<Diagnostic>,
}

fn load(files: &[(&str, &str)], overrides: &[&str]) -> Case {
    let files = files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    let overrides: Vec<String> = overrides.iter().map(|s| s.to_string()).collect();
    let mut sources = SourceMap::new();
    let (settings, found) = nrl_nemo::load(&files, &mut sources, "r.yaml", &overrides);
    Case { files, sources, settings, found }
}

impl Case {
    /// Code, place and message of the only finding.
    fn only(&self) -> (&'static str, String, String) {
        assert_eq!(self.found.len(), 1, "{:?}", self.found);
        let found = &self.found[0];
        let place = found.labels.first().map_or(String::new(), |l| self.sources.place(l.span));
        (found.code, place, found.message.clone())
    }

    fn help(&self) -> &str {
        self.found[0].help.as_deref().unwrap_or("")
    }

    fn place(&self, path: &str) -> (SetBy, String, String) {
        let origin = self.settings.as_ref().expect("settings").get(path).expect(path).origin;
        let source = origin.source.map_or(String::new(), |span| self.sources.place(span));
        (origin.by, self.sources.place(origin.key), source)
    }
}

#[test]
fn a_value_knows_who_set_it_and_where() {
    let base = "policy:\n  lr: 1\n  n: 2\n  tokens: ${mul:${.n},2}\nname: é ${policy.n}\nref: ${policy.lr}\n";
    let own = "defaults: b/base.yaml\npolicy:\n  lr: 5\n";
    let case = load(&[("r.yaml", own), ("b/base.yaml", base)], &["++policy.new=[1, 2]"]);
    assert_eq!(case.found, []);
    assert_eq!(case.place("policy.lr"), (SetBy::File, "r.yaml:3:3".into(), String::new()));
    assert_eq!(case.place("policy.n"), (SetBy::Parent, "b/base.yaml:3:3".into(), String::new()));
    let (by, key, source) = case.place("ref");
    assert_eq!(
        (by, key.as_str(), source.as_str()),
        (SetBy::Parent, "b/base.yaml:6:1", "r.yaml:3:7")
    );
    assert_eq!(case.place("policy").1, "r.yaml:2:1");
    let new = case.place("policy.new.1");
    assert_eq!((new.0, new.1.as_str()), (SetBy::CommandLine, "the command line:1:18"));
    let settings = case.settings.as_ref().unwrap();
    let text = |path: &str| case.sources.text(settings.get(path).unwrap().origin.value);
    assert_eq!(text("policy.tokens"), "${mul:${.n},2}");
    assert_eq!(text("name"), "é ${policy.n}");
    assert_eq!(text("policy"), "lr: 5");
}

#[test]
fn spans_are_right_behind_a_byte_order_mark_and_with_other_line_ends() {
    let case = load(&[("r.yaml", "\u{feff}# ä\r\na: 1\r\nb: 'x'\r\n")], &[]);
    let settings = case.settings.as_ref().unwrap();
    assert_eq!(case.sources.text(settings.get("b").unwrap().origin.key), "b");
    assert_eq!(case.sources.text(settings.get("b").unwrap().origin.value), "'x'");
    assert_eq!(case.sources.text(settings.get("a").unwrap().origin.value), "1");
}

#[test]
fn chains_are_named() {
    let missing = load(
        &[("r.yaml", "defaults: a/p.yaml\n"), ("a/p.yaml", "x: 1\ndefaults: [q.yaml]\n")],
        &[],
    );
    let (code, place, message) = missing.only();
    assert_eq!((code, place.as_str()), ("broken-inheritance", "a/p.yaml:2:12"));
    assert_eq!(message, "cannot read a/q.yaml, which `defaults` names: there is no such file");
    assert_eq!(missing.found[0].notes, ["inherited through r.yaml -> a/p.yaml -> a/q.yaml"]);
    assert_eq!(missing.help(), "the path is taken from the folder of a/p.yaml");

    let circle = [
        ("r.yaml", "defaults: p.yaml\n"),
        ("p.yaml", "defaults: q.yaml\n"),
        ("q.yaml", "defaults: p.yaml\n"),
    ];
    let (code, place, message) = load(&circle, &[]).only();
    assert_eq!((code, place.as_str()), ("broken-inheritance", "q.yaml:1:11"));
    assert_eq!(message, "a recipe inherits from itself: p.yaml -> q.yaml -> p.yaml");

    let diamond = [
        ("r.yaml", "defaults: [p.yaml, q.yaml]\n"),
        ("p.yaml", "defaults: o.yaml\nx: 1\n"),
        ("q.yaml", "defaults: o.yaml\n"),
        ("o.yaml", "x: 0\n"),
    ];
    assert_eq!(load(&diamond, &[]).settings.unwrap().int("x").unwrap().value, 0);
}

#[test]
fn mistakes_are_told_where_they_are_written_with_the_nearest_name() {
    let base = "policy:\n  max_len: 1\n  mb: ${mul:${policy.max_lne},2}\n  again: ${policy.mb}\n";
    let case = load(&[("r.yaml", "defaults: b.yaml\n"), ("b.yaml", base)], &[]);
    let (code, place, message) = case.only();
    assert_eq!((code, place.as_str()), ("unresolved-interpolation", "b.yaml:3:7"));
    assert_eq!(
        message,
        "`policy.mb` is `${mul:${policy.max_lne},2}`, but there is no `policy.max_lne`"
    );
    assert_eq!(case.help(), "did you mean `policy.max_len`?");

    let circle = load(&[("r.yaml", "a: ${b}\nb: x${c}\nc: ${a}\n")], &[]);
    assert_eq!(circle.only().2, "`a` refers to itself: a -> b -> c -> a");

    let text = load(&[("r.yaml", "a: ${mul:'8',2}\n")], &[]);
    assert_eq!(text.only().2, "`a` is `${mul:'8',2}`: `mul` takes numbers, and '8' is none");

    let function = load(&[("r.yaml", "a: ${mull:8,2}\n")], &[]);
    assert_eq!(function.help(), "did you mean `mul`?");

    let twice = load(&[("r.yaml", "a:\n  b: 1\n  c: 2\n  b: 3\n")], &[]);
    assert_eq!(
        twice.only(),
        (
            "duplicate-key",
            "r.yaml:4:3".into(),
            "`b` is given twice in one mapping: lines 2 and 4".into()
        )
    );

    let kinds = load(
        &[("r.yaml", "defaults: b.yaml\nx:\n  y: [1]\n"), ("b.yaml", "x: {y: {z: 1}}\n")],
        &[],
    );
    assert_eq!(kinds.only().0, "wrong-type");
    assert_eq!(kinds.found[0].labels.len(), 2);
}

#[test]
fn overrides_say_what_to_type() {
    let recipe = [("r.yaml", "policy:\n  generation: {temperature: 1.0}\n  lr: 1\n")];
    let told = |set: &str| {
        let case = load(&recipe, &[set]);
        let (code, _, message) = case.only();
        (code, message, case.help().to_string())
    };
    let (code, message, help) = told("policy.generaton.temperature=0.8");
    assert_eq!(
        (code, message.as_str()),
        ("unknown-path", "there is no `policy.generaton.temperature` in the recipe")
    );
    assert_eq!(
        help,
        "did you mean `policy.generation.temperature`? write `++policy.generaton.temperature=0.8` to add it"
    );
    assert!(told("temperature=1").2.starts_with("did you mean `policy.generation.temperature`?"));
    assert_eq!(told("+policy.lr=2").2, "write `policy.lr=2` to change it");
    assert_eq!(told("~policy.lrr").2, "did you mean `~policy.lr`?");
    assert!(told("policy.lr=1,2").1.contains("sweep"));
    assert!(told("policy/lr=1").1.contains("config group"));
    assert_eq!(told("policy.lr").2, "write `policy.lr=VALUE`");
    assert!(told("policy.lr=a&b").2.starts_with("quote the value"));
}

#[test]
fn an_unset_variable_is_a_warning_and_the_text_stays() {
    let case = load(&[("r.yaml", "a: ${oc.env:NO_SUCH}/x\nb: ${a}\n")], &[]);
    assert_eq!(case.only().0, "variable-not-set");
    assert_eq!(case.settings.unwrap().text("b").unwrap().value, "${oc.env:NO_SUCH}/x");
}

#[test]
fn warnings_are_those_of_the_file_itself() {
    let files = [("r.yaml", "defaults: b.yaml\nx: no\n"), ("b.yaml", "y: no\n")];
    assert_eq!(load(&files, &[]).only().1, "r.yaml:2:4");
}

/// Loads within a second: one error of this code.
fn bounded(code: &str, text: &str) {
    let begun = Instant::now();
    let case = load(&[("r.yaml", text)], &[]);
    let seconds = begun.elapsed();
    assert_eq!(case.only().0, code, "{:.60}", text);
    assert!(case.settings.is_none());
    assert!(seconds < Duration::from_secs(10), "{code} took {seconds:?}");
    assert!(case.files.len() == 1);
}

#[test]
fn bombs_end_with_one_error() {
    let levels =
        (1..12).map(|i| format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", ")));
    bounded("too-much-work", &format!("a0: &a0 [1, 2]\n{}", levels.collect::<String>()));
    let maps = (1..40).map(|i| format!("m{i}: {{x: '${{m{}}}', y: '${{m{}}}'}}\n", i - 1, i - 1));
    bounded("too-much-work", &format!("m0: {{a: 1}}\n{}", maps.collect::<String>()));
    let texts = (1..60).map(|i| format!("t{i}: ${{t{}}}${{t{}}}\n", i - 1, i - 1));
    bounded("too-much-work", &format!("t0: abc\n{}", texts.collect::<String>()));
    let chain = (1..5000).map(|i| format!("c{i}: ${{c{}}}\n", i + 1));
    bounded("too-much-work", &format!("{}c5000: 1\n", chain.collect::<String>()));
    bounded("nesting-too-deep", &format!("a: {}", "[".repeat(200)));
    bounded(
        "nesting-too-deep",
        &(0..300).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>(),
    );
    bounded("nesting-too-deep", &format!("{} 1\n", "- ".repeat(100_000)));
    bounded("unresolved-interpolation", &format!("a: '{}'\n", "${a.".repeat(100_000)));
    bounded("file-too-large", &"a: 1\n".repeat(10_000_000));
    bounded("yaml-syntax", "a: 1\n---\nb: 2\n");
    bounded("yaml-syntax", "a: *nothing\n");
    bounded("yaml-syntax", "a:\n\tb: 1\n");
    bounded("not-a-mapping", "just words\n");
}

#[test]
fn bytes_that_are_no_text_are_one_error() {
    struct Bytes;
    impl Files for Bytes {
        fn read(&self, _: &str) -> Result<Vec<u8>, String> {
            Ok(b"a: 1\nb: \xff\xfe\n".to_vec())
        }
    }
    let (settings, found) = nrl_nemo::load(&Bytes, &mut SourceMap::new(), "r.yaml", &[]);
    assert!(settings.is_none());
    assert_eq!(found[0].message, "r.yaml is not UTF-8 text: line 2 has a byte that is none");
}
