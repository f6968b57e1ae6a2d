//! Search for a better layout of a recipe.
//!
//! In: a recipe, pins, what counts. Out: a ranked table of layouts with their seconds and bytes, the front of
//! time and memory, and the recipe's text with the best one. Every layout keeps to the compiler's rules, and the
//! numbers of every line shown are the forecast of the recipe with the layout written into it. Of many layouts that
//! share their plans one is compiled; the sizes of the others are put around it.

mod exact;
mod facts;
mod layout;
mod rank;
mod recipe;
mod screen;
mod sites;
mod space;
mod text;

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, SourceMap};
use nrl_sim::tables::Tables;
use serde::Serialize;

pub use exact::Line;
pub use layout::{Again, CHOICES, Family, Layout};
pub use screen::Seen;
pub use sites::Sites;

use crate::input::{Findings, Input};
use exact::Exact;
use facts::Facts;
use nrl_driver::each;
use recipe::Recipe;
use screen::Screen;
use space::{Cut, Left, Space};

/// What counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Seconds of a step.
    #[default]
    Time,
    /// Bytes of the fullest rank.
    Memory,
}

/// How to search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    pub goal: Goal,
    /// Only layouts that learn the same, rounding aside.
    pub keep_maths: bool,
    /// Lines of the table.
    pub top: usize,
    /// Choices to leave as they are: `train.tp`, `microbatch`.
    pub pins: Vec<String>,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions { goal: Goal::Time, keep_maths: false, top: 10, pins: vec![] }
    }
}

/// How many layouts there were.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Layouts that the rules of the compiler allow: their memory was computed.
    pub legal: usize,
    /// Those of them that fit: their time was computed too.
    pub fit: usize,
    /// Recipes that were compiled.
    pub compiled: usize,
    /// Layouts left out, by reason.
    pub left_out: BTreeMap<String, usize>,
}

/// What a search found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    pub recipe: String,
    pub device: String,
    pub devices: usize,
    /// Memory of a device, in bytes.
    pub memory: f64,
    pub goal: Goal,
    pub counts: Counts,
    /// Choices that were left as they are.
    pub pinned: Vec<String>,
    /// The recipe as it is.
    pub current: Line,
    /// The best first.
    pub ranked: Vec<Line>,
    /// Layouts that no other beats in both time and memory, the fastest first.
    pub front: Vec<Line>,
    /// Lines of the recipe that the best layout changes, as they are and as they would be.
    pub old_lines: Vec<String>,
    pub new_lines: Vec<String>,
    /// The whole text with the best layout.
    #[serde(skip)]
    pub text: String,
    /// All layouts that were evaluated, with what runs on the mesh that trains.
    #[serde(skip)]
    pub seen: Vec<Seen>,
}

/// Searches the layouts of a recipe.
pub fn search(input: &Input<'_>, how: &SearchOptions) -> Result<Found, Findings> {
    let recipe = Recipe::of(&settled(input));
    let relaxed = Sites::relaxed(&recipe.text, recipe.name());
    let base = recipe.compile(relaxed)?;
    let fail = |d: Box<Diagnostic>| Findings { found: vec![*d], sources: SourceMap::new() };
    let mut sites = Sites::of(&recipe.text, &base).map_err(fail)?;
    sites.pin(&how.pins).map_err(fail)?;
    let facts = Facts::of(&base, &sites).ok_or_else(|| {
        let what = "the model that is trained has no attention, or no machine";
        fail(Box::new(Diagnostic::error("not-supported", what)))
    })?;
    let space = Space { facts: &facts, sites: &sites };
    let screen = Screen {
        recipe: &recipe,
        sites: &sites,
        space: &space,
        tables: recipe.assume.tables.as_ref().unwrap_or_else(|| Tables::shipped()),
        first_that_fits: how.goal == Goal::Time,
    };
    let (seen, counts) = screened(&screen, &base.budgets);
    let exact = Exact { screen: &screen };
    let current = exact.line(&sites.current, &recipe.text).map_err(|why| {
        let what = format!("no forecast of this recipe: {why}");
        fail(Box::new(Diagnostic::error("not-supported", what)))
    })?;
    Ok(rank::found(&exact, how, &base, current, seen, counts))
}

/// The text of a recipe with a layout in the place of its own; `None` where the recipe has no layout to change.
pub fn written(input: &Input<'_>, l: &Layout) -> Option<String> {
    let recipe = Recipe::of(&settled(input));
    let base = recipe.compile(Sites::relaxed(&recipe.text, recipe.name())).ok()?;
    let sites = Sites::of(&recipe.text, &base).ok()?;
    let facts = Facts::of(&base, &sites)?;
    let split = Space { facts: &facts, sites: &sites }.split(l);
    Some(sites.apply(l, split.as_deref()))
}

/// The recipe with its overrides written into the text, where they have a place there.
fn settled<'f>(input: &Input<'f>) -> Input<'f> {
    let mut out = input.clone();
    let mut left = vec![];
    for set in std::mem::take(&mut out.options.sets) {
        let new = set.split_once('=').and_then(|(path, value)| crate::edit::set(&out, path, value));
        match new {
            Some(text) => out.text = text,
            None => left.push(set),
        }
    }
    out.options.sets = left;
    out
}

/// Time and memory of every layout on the mesh that trains, of those that fit.
fn screened(screen: &Screen<'_>, budgets: &[nrl_driver::Budget]) -> (Vec<Seen>, Counts) {
    let space = screen.space;
    let mut left = Left::new();
    let mut cuts: BTreeMap<Cut, Vec<Layout>> = BTreeMap::new();
    let whole = screen.sites.nodes();
    for nodes in space.pools() {
        let ranks = match (nodes, screen.sites.current.nodes, whole) {
            (Some(n), Some(own), Some(_)) => space.facts.ranks / own * n,
            _ => space.facts.ranks,
        };
        for l in space.layouts(ranks, nodes, &mut left) {
            cuts.entry(Cut::of(&l)).or_default().push(l);
        }
    }
    let groups: Vec<Vec<Layout>> = cuts.into_values().collect();
    let mut counts = Counts { compiled: groups.len(), ..Counts::default() };
    let most = exact::most_bytes(budgets, space.facts.memory);
    let mut seen = vec![];
    for (group, found) in groups.iter().zip(each(&groups, &|g: &Vec<Layout>| screen.cut(g, most))) {
        match found {
            Ok(all) => {
                counts.legal += group.len() * screen.ways();
                seen.extend(all);
            }
            Err(code) => *counts.left_out.entry(code).or_default() += group.len(),
        }
    }
    counts.fit = seen.len();
    if counts.legal > counts.fit {
        let why = "do not fit into the memory of a device";
        counts.left_out.insert(why.into(), counts.legal - counts.fit);
    }
    counts.left_out.extend(left.into_iter().map(|(why, n)| (why.to_string(), n)));
    (seen, counts)
}
