//! One mistake in a recipe that is right: the rule made for it must speak, with its code.

use std::collections::{BTreeMap, BTreeSet};

use nrl_base::{Severity, SourceMap};
use nrl_nemo::{Checked, Options};
use nrl_rules::recipe::Version;

use crate::base::{check, files, shown};

/// The rules, a small recipe, the overrides that break it, and the code to expect.
pub fn mutants() -> Vec<(String, String, Vec<String>, String)> {
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

/// Overrides as the lines of a child, in YAML's flow style; none if they remove something.
fn as_child(base: &str, overrides: &[String]) -> Option<String> {
    let mut tree = Tree::default();
    for text in overrides {
        let (path, value) = text.strip_prefix("++")?.split_once('=')?;
        let mut at = &mut tree;
        for name in path.split('.') {
            if name.parse::<usize>().is_ok() {
                return None;
            }
            at = at.below.entry(name.to_string()).or_default();
        }
        at.value = Some(spaced(value));
    }
    let lines = tree.below.iter().map(|(name, tree)| format!("{name}: {}\n", tree.shown()));
    Some(format!("defaults: {base}\n{}", lines.collect::<String>()))
}

#[derive(Default)]
struct Tree {
    value: Option<String>,
    below: BTreeMap<String, Tree>,
}

impl Tree {
    fn shown(&self) -> String {
        if let Some(value) = &self.value {
            return value.clone();
        }
        let pairs = self.below.iter().map(|(name, tree)| format!("{name}: {}", tree.shown()));
        format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
    }
}

/// `{a:1}` of Hydra is `{a: 1}` in YAML.
fn spaced(value: &str) -> String {
    let (mut out, mut quoted, mut depth) = (String::new(), false, 0);
    for c in value.chars() {
        quoted ^= c == '"';
        depth += i32::from(c == '{') - i32::from(c == '}');
        out.push(c);
        if c == ':' && !quoted && depth > 0 {
            out.push(' ');
        }
    }
    out
}

/// The same mistakes written in a file that inherits, and in one that inherits from that.
#[test]
fn each_mistake_is_found_in_a_child_and_below_it() {
    let (mut tried, mut wrong) = (0, vec![]);
    for (id, base, overrides, code) in mutants() {
        let Some(child) = as_child(&base, &overrides) else { continue };
        // An override that is not one of YAML's, or that a child cannot make, is no mistake there.
        let mut files = files();
        files.insert("child.yaml".to_string(), child.clone());
        let below =
            "# what a user keeps\ndefaults: [child.yaml]\nlogger:\n  log_dir: &dir logs/x\n";
        files.insert("below.yaml".to_string(), below.to_string());
        for path in ["child.yaml", "below.yaml"] {
            tried += 1;
            let checked = check(&files, path, &[]);
            if !speaks(&checked, &id, &code) {
                wrong.push(format!("{id} {code}: {child}{}", shown(&checked.findings)));
            }
        }
    }
    println!("{} of {tried} mistakes found in files", tried - wrong.len());
    let share = wrong.len() as f64 / tried as f64;
    assert!(share <= 0.02, "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 700, "only {tried}");
}

/// Two mistakes that do not meet in one section: both are told.
#[test]
fn two_mistakes_are_both_found() {
    let files = files();
    let all: Vec<_> = mutants().into_iter().filter(|m| m.1 != "rows.yaml").collect();
    let sections = |overrides: &[String]| -> BTreeSet<String> {
        let path =
            |o: &String| o.trim_start_matches(['+', '~']).split('=').next().map(str::to_string);
        overrides.iter().filter_map(path).collect()
    };
    let meet = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        let inside = |x: &str, y: &str| x == y || x.starts_with(&format!("{y}."));
        a.iter().any(|x| b.iter().any(|y| inside(x, y) || inside(y, x)))
    };
    let (mut tried, mut wrong) = (0, vec![]);
    for (at, first) in all.iter().enumerate() {
        // Partners at several distances, so that a mistake meets others of its kind and of other kinds.
        for step in [1, 7, 31, 97] {
            let second = &all[(at + step) % all.len()];
            if first.1 != second.1 || meet(&sections(&first.2), &sections(&second.2)) {
                continue;
            }
            let both: Vec<&str> = first.2.iter().chain(&second.2).map(String::as_str).collect();
            let found = check(&files, &first.1, &both).findings;
            tried += 1;
            for (id, code) in [(&first.0, &first.3), (&second.0, &second.3)] {
                if !found.iter().any(|d| d.code == *code) {
                    wrong.push(format!("{id} {code} of {both:?}"));
                }
            }
        }
    }
    println!("{} of {tried} pairs told in full", tried - wrong.len());
    // One mistake can take the ground from the other: without a mesh there is no share of a batch.
    let share = wrong.len() as f64 / tried as f64;
    assert!(share <= 0.06, "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 400, "only {tried}");
}

/// NeMo RL 0.3 takes Megatron where both backends are on; later versions refuse that.
#[test]
fn both_backends_are_a_warning_for_0_3() {
    let both = ["++policy.megatron_cfg.enabled=true".to_string()];
    let severity = |version: Version| {
        let mut sources = SourceMap::new();
        let options = Options { version, ..Options::default() };
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
