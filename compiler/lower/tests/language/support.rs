//! Recipes from texts, and findings as text.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, SourceMap};
use nrl_lower::{Lowered, Options, lower, lower_every};

/// The first recipe of the first file, elaborated with overrides.
pub fn lowered(files: &[(&str, &str)], sets: &[&str], recipe: Option<&str>) -> Lowered {
    let (options, map) = (options(sets, recipe), map(files));
    let mut sources = SourceMap::new();
    let (out, problems) = lower(&map, &mut sources, files[0].0, &options);
    let found = problems.into_sorted();
    assert!(found.is_empty(), "{}", shown(&found, &sources));
    out
}

/// What every recipe of the first file finds.
pub fn findings(files: &[(&str, &str)], sets: &[&str]) -> String {
    let mut sources = SourceMap::new();
    let (_, problems) = lower_every(&map(files), &mut sources, files[0].0, &options(sets, None));
    // Whether a binding is used is no question of these tests.
    let mut found = problems.into_sorted();
    found.retain(|d| !d.message.ends_with("is never used"));
    shown(&found, &sources)
}

fn options(sets: &[&str], recipe: Option<&str>) -> Options {
    Options {
        sets: sets.iter().map(|s| (*s).to_string()).collect(),
        recipe: recipe.map(str::to_string),
        ..Options::default()
    }
}

fn map(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(n, t)| ((*n).to_string(), (*t).to_string())).collect()
}

/// `code: headline`, a line per label, note and help.
pub fn shown(found: &[Diagnostic], sources: &SourceMap) -> String {
    let mut out = String::new();
    for d in found {
        out += &format!("{}: {}\n", d.code, d.message);
        for l in &d.labels {
            out += &format!("  {} `{}`: {}\n", sources.place(l.span), sources.text(l.span), l.text);
        }
        for n in &d.notes {
            out += &format!("  note: {n}\n");
        }
        if let Some(h) = &d.help {
            out += &format!("  help: {h}\n");
        }
    }
    out
}

/// A recipe whose lines are `lines`, with data and a step of its own.
pub fn recipe(above: &str, lines: &str) -> String {
    format!(
        "use std.{{data}}\n\n{above}\n\nrecipe tiny {{\n  run 10 steps\n{lines}\n  \
         rows = data.made(100 rows, i -> {{prompt: \"1\", answer: \"2\"}})\n  \
         step {{\n    b = rows.take(8 prompts)\n  }}\n}}\n"
    )
}

/// What a recipe with these lines finds.
pub fn of_lines(above: &str, lines: &str) -> String {
    findings(&[("a.nrl", &recipe(above, lines))], &[])
}
