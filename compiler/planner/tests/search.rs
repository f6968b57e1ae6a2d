//! Searches of the layouts of four models: what is published is among what is looked at, numbers are those of the
//! edited recipe, and what a recipe keeps stays.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use nrl_base::SourceMap;
use nrl_driver::{Assume, Options};
use nrl_planner::input::{Input, Request};
use nrl_planner::search::{Found, Goal, Layout, SearchOptions, Seen, search, written};

const LLAMA8: &str = include_str!("search/llama8.nrl");
const QWEN30: &str = include_str!("search/qwen30.nrl");
const LLAMA70: &str = include_str!("search/llama70.nrl");
const DEEPSEEK: &str = include_str!("search/deepseek.nrl");

fn files(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("r.nrl".to_string(), text.to_string())])
}

fn searched(text: &str, how: &SearchOptions) -> Found {
    let files = files(text);
    let (input, found) =
        Input::open(&files, &Request { path: "r.nrl".into(), ..Request::default() });
    let input = input.unwrap_or_else(|| panic!("{:?}", found.found));
    search(&input, how).unwrap_or_else(|f| panic!("{:?}", f.found))
}

fn once(cell: &'static OnceLock<Found>, text: &str) -> &'static Found {
    cell.get_or_init(|| searched(text, &SearchOptions::default()))
}

fn llama8() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    once(&FOUND, LLAMA8)
}

fn qwen30() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    once(&FOUND, QWEN30)
}

fn llama70() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    once(&FOUND, LLAMA70)
}

fn deepseek() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    once(&FOUND, DEEPSEEK)
}

/// Seconds of passes and bytes of updates on the mesh that trains, by the forecast of the recipe with `l` written into it.
fn forecast(text: &str, l: &Layout) -> (f64, f64) {
    let base = files(text);
    let (input, _) = Input::open(&base, &Request { path: "r.nrl".into(), ..Request::default() });
    let text = input.and_then(|i| written(&i, l)).expect("a place for every choice");
    let (c, found) =
        nrl_driver::compile(&files(&text), &mut SourceMap::new(), "r.nrl", &Options::default());
    let c = c.unwrap_or_else(|| panic!("{}: {found:?}", l.name()));
    let f = nrl_driver::forecast(&c, &Assume::default()).expect("machines");
    let train = c.program.meshes.iter().position(|(name, _)| name == "train").expect("a mesh");
    let passes = |p: &&nrl_sim::forecast::Phase| p.mesh == train && p.forward.sum() > 0.0;
    let phases = f.steps.iter().flat_map(|s| &s.phases).filter(passes);
    let stages = f.memory.iter().filter(|m| m.mesh == train && m.is_update());
    (phases.map(|p| p.seconds.value).sum(), stages.map(|m| m.sum()).fold(0.0, f64::max))
}

fn same(text: &str, found: &Found, number: usize) {
    let all = &found.seen;
    assert!(all.len() >= number, "{} layouts", all.len());
    for s in all.iter().step_by(all.len() / number) {
        let (seconds, bytes) = forecast(text, &s.layout);
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
        let name = s.layout.name();
        assert!(near(s.seconds, seconds), "{name}: {} s, the recipe says {seconds}", s.seconds);
        assert!(near(s.bytes, bytes), "{name}: {} bytes, the recipe says {bytes}", s.bytes);
    }
}

#[test]
fn numbers_are_those_of_the_edited_recipe() {
    same(LLAMA8, llama8(), 12);
    same(QWEN30, qwen30(), 12);
    same(LLAMA70, llama70(), 12);
    same(DEEPSEEK, deepseek(), 8);
}

/// The published layout is looked at, and what was found is no slower than 0.95 of it.
fn published(found: &Found, wanted: impl Fn(&Layout) -> bool) {
    let seen: Vec<&Seen> = found.seen.iter().filter(|s| wanted(&s.layout)).collect();
    let fastest = seen.iter().map(|s| s.seconds).fold(f64::INFINITY, f64::min);
    assert!(fastest.is_finite(), "it is not among those that fit:\n{}", found.text());
    let best = found.seen.iter().find(|s| {
        Layout { rtp: None, ..s.layout.clone() }
            == Layout { rtp: None, ..found.ranked[0].layout.clone() }
    });
    let best = best.map_or(f64::INFINITY, |s| s.seconds);
    assert!(best <= fastest / 0.95, "found {best} s, published {fastest} s:\n{}", found.text());
}

// The layouts that NeMo RL's performance tables state for these models on H100 (docs/about/performance-summary.md, and
// the blog post of version 0.3 for 70B).

#[test]
fn llama_8b_on_16() {
    let plain = |l: &Layout| (l.pp, l.cp, l.fsdp) == (1, 1, 1);
    published(llama8(), |l| plain(l) && (l.dp, l.tp) == (16, 1));
    published(llama8(), |l| plain(l) && (l.dp, l.tp) == (8, 2));
    published(llama8(), |l| (l.pp, l.dp, l.tp, l.cp) == (2, 8, 1, 1));
}

#[test]
fn qwen3_30b_on_32() {
    let plain = |l: &Layout| (l.pp, l.cp, l.fsdp, l.ep, l.etp) == (1, 1, 1, 8, 1);
    published(qwen30(), |l| plain(l) && (l.dp, l.tp, l.sp) == (16, 2, true));
    published(qwen30(), |l| plain(l) && (l.dp, l.tp) == (32, 1));
}

#[test]
fn llama_70b_on_64() {
    published(llama70(), |l| (l.pp, l.dp, l.tp, l.cp) == (4, 4, 4, 1));
}

#[test]
fn deepseek_v3_on_256() {
    published(deepseek(), |l| (l.pp, l.dp, l.tp, l.ep) == (16, 16, 1, 16));
}

#[test]
fn layouts_keep_to_the_sizes_of_the_model() {
    // 48 layers, 32 heads, 128 experts.
    for s in &qwen30().seen {
        let l = &s.layout;
        assert_eq!(l.ranks(), 32, "{}", l.name());
        assert!(48 % (l.pp * l.chunks) == 0 || l.chunks == 1, "{}", l.name());
        assert!(128 % l.ep == 0 && 32 % l.tp == 0, "{}", l.name());
        assert_eq!((l.dp * l.fsdp * l.cp * l.tp) % (l.ep * l.etp), 0, "{}", l.name());
    }
}

#[test]
fn pins_are_kept() {
    let pinned = |text: &str, pins: &[&str]| {
        let pins = pins.iter().map(|p| p.to_string()).collect();
        searched(text, &SearchOptions { pins, ..SearchOptions::default() })
    };
    let found = pinned(LLAMA70, &["train.tp", "pp", "plan"]);
    assert!(!found.ranked.is_empty());
    assert!(found.seen.iter().all(|s| (s.layout.tp, s.layout.pp) == (4, 4)), "{}", found.text());
    let old = "axes (pp: 4, dp: rest, tp: 4)";
    assert!(LLAMA70.contains(old));
    let text = LLAMA70.replace(old, &format!("{old}  # pinned: tp, pp"));
    let written = pinned(&text, &["plan"]);
    assert_eq!(written.counts.legal, found.counts.legal);
    assert!(written.text.contains("# pinned: tp, pp"), "{}", written.text);
}

#[test]
fn budgets_are_kept() {
    let line = "  assume lengths";
    let text = LLAMA8.replace(line, &format!("  require peak_memory <= 65 % of device\n{line}"));
    let found = searched(&text, &SearchOptions { pins: vec!["pp".into()], ..Default::default() });
    assert!(!found.ranked.is_empty(), "{}", found.text());
    for l in found.ranked.iter().chain(&found.front) {
        assert!(l.bytes <= 0.65 * l.device, "{}: {} of {}", l.name, l.bytes, l.device);
    }
    assert!(found.text.contains("require peak_memory <= 65 % of device"));
}

#[test]
fn only_the_lines_of_the_layout_change() {
    let found = llama70();
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
    let (old, new) = (lines(LLAMA70), lines(&found.text));
    assert_eq!(old.len(), new.len());
    let changed = old.iter().zip(&new).filter(|(a, b)| a != b).count();
    assert_eq!(changed, found.new_lines.len());
    let words = ["mesh train", "mesh serve", "place policy", "update policy"];
    for l in &found.new_lines {
        assert!(words.iter().any(|w| l.contains(w)), "{l}");
    }
    // Searched again, it is the best.
    let again = searched(&found.text, &SearchOptions::default());
    assert!(again.new_lines.is_empty(), "{}\n{}", again.text(), again.diff());
}

#[test]
fn memory_can_be_what_counts() {
    let found = searched(LLAMA8, &SearchOptions { goal: Goal::Memory, ..Default::default() });
    let least = found.ranked[0].bytes;
    assert!(llama8().ranked.iter().all(|l| l.bytes >= least));
    // No line of the front beats another in both.
    for a in &found.front {
        let beats = |b: &&nrl_planner::search::Line| b.seconds < a.seconds && b.bytes < a.bytes;
        assert!(!found.front.iter().any(|b| beats(&b)), "{}", found.text());
    }
}

/// 70 B on eight devices of 80 GB: weights and gradients take 53 GB of each, Adam's state would take 105 more.
const LARGE: &str = r#"use std.{clusters, data, models, optim, plans, sft}

recipe large {
  run 10 steps, seed 1
  gpus       = clusters.h100(nodes: 1)
  mesh train = gpus axes (fsdp: rest)
  policy     = models.load("meta-llama/Llama-3.1-70B", dtype: bf16, context: 4096 tokens)
  place policy on train by plans.fsdp() * plans.recomputed()
  adam       = optim.adamw(lr: 1e-5)
  rows       = data.made(1000 rows, i -> {prompt: "a", answer: "b"})
  step {
    b = rows.take(64 samples)
    update policy by adam in 1 update, 4096 tokens/microbatch, minimising { sft.nll(policy, b) }
  }
  assume lengths = always(4096 tokens)
}
"#;

#[test]
fn the_optimizer_goes_to_hosts_where_nothing_else_fits() {
    let found = searched(LARGE, &SearchOptions::default());
    assert!(!found.current.fits, "{}", found.text());
    let best = &found.ranked[0];
    assert!(best.layout.offload, "{}", found.text());
    assert!(
        found.new_lines.iter().any(|l| l.contains("* plans.offloaded()")),
        "{:?}",
        found.new_lines
    );
    // Numbers of a screened layout are those of the recipe that says so.
    same(LARGE, &found, 3);
    // Nothing leaves the devices where there is room.
    assert!(llama8().ranked.iter().all(|l| !l.layout.offload));
    // As the recipe has it, with the choice pinned.
    let pins = SearchOptions { pins: vec!["offload".into()], ..Default::default() };
    assert!(searched(LARGE, &pins).ranked.is_empty());
    let away = LARGE.replace("plans.recomputed()", "plans.recomputed() * plans.offloaded()");
    assert!(searched(&away, &pins).ranked.iter().all(|l| l.layout.offload));
}

/// What is found is what the edited recipe says, also of pairs; without experts apart nothing pairs.
#[test]
fn a_plan_that_pairs_stays_so_where_experts_are_split() {
    let pins = ["tp", "sp", "cp", "pp", "chunks", "etp", "recompute", "microbatch", "rtp", "plan"];
    let pins = SearchOptions { pins: pins.map(String::from).to_vec(), ..Default::default() };
    let text = QWEN30.replace("sp: true)", "sp: true, paired: true)");
    let found = searched(&text, &pins);
    same(&text, &found, 2);
    let pairs = |ep: bool| {
        let of = found.seen.iter().filter(|s| (s.layout.ep > 1) == ep);
        of.map(|s| s.layout.plan("", None).contains("paired: true")).collect::<Vec<_>>()
    };
    assert!(!pairs(true).is_empty() && pairs(true).into_iter().all(|is| is));
    assert!(pairs(false).into_iter().all(|is| !is));
    for (text, offers) in [(QWEN30, true), (text.as_str(), false), (LLAMA8, false)] {
        let files = files(text);
        let (input, _) =
            Input::open(&files, &Request { path: "r.nrl".into(), ..Request::default() });
        let input = input.expect("a recipe");
        let planned = input.plan().0.expect("a plan");
        let tried = nrl_planner::report::variants(&input, &planned);
        assert_eq!(tried.iter().any(|v| v.name == "paired: true"), offers, "{tried:?}");
    }
}
