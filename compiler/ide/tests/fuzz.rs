//! Fuzzing with a mutation loop of our own, some seconds in CI; `fuzz/README.md` says how to run it longer.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "tests read files and say how it went"
)]

#[path = "../../../fuzz/src/entry.rs"]
mod entry;
#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mutate::{Random, mutate};
use nrl_ide::words::{INSIDE, ITEMS, RESERVED, STATEMENTS};

/// Longest one execution may take, on a busy machine.
const SLOW: Duration = Duration::from_secs(5);

/// Most inputs that are kept.
const MOST: usize = 4000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files below a folder with one of the endings.
fn files(folder: &Path, ending: &str, out: &mut Vec<Vec<u8>>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, ending, out);
        } else if path.extension().is_some_and(|e| e == ending) {
            out.extend(std::fs::read(&path).ok());
        }
    }
}

fn seeds(yaml: bool) -> Vec<Vec<u8>> {
    let mut out = vec![];
    if yaml {
        files(&root().join("fuzz/seeds"), "yaml", &mut out);
    } else {
        for folder in ["examples", "stdlib", "tests/lang", "fuzz/seeds", "cli/new"] {
            files(&root().join(folder), "nrl", &mut out);
        }
        out.retain(|s| s.len() < 6000);
    }
    assert!(out.len() >= 2, "no seeds");
    let pieces: Vec<_> = out.iter().flat_map(|s| pieces(s)).collect();
    out.extend(pieces);
    out
}

/// What stands between empty lines. Small inputs give more executions, and each change weighs more.
fn pieces(text: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(text);
    text.split("\n\n").map(|p| format!("{p}\n").into_bytes()).collect()
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// What went wrong with an input, if anything did.
fn trial(f: fn(&[u8]) -> entry::Codes, input: &[u8]) -> Result<entry::Codes, String> {
    let start = Instant::now();
    let codes = catch_unwind(AssertUnwindSafe(|| f(input))).map_err(|e| {
        let text = e.downcast_ref::<String>().cloned();
        text.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
    })?;
    match start.elapsed() {
        spent if spent > SLOW => Err(format!("took {spent:?}")),
        _ => Ok(codes),
    }
}

/// Fewer lines that still fail.
fn cut(f: fn(&[u8]) -> entry::Codes, input: &[u8]) -> Vec<u8> {
    let mut best: Vec<Vec<u8>> =
        input.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    let mut size = best.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < best.len() {
            let mut fewer = best.clone();
            fewer.drain(at..(at + size).min(best.len()));
            if trial(f, &fewer.concat()).is_err() {
                best = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    best.concat()
}

/// Peak memory of this process in KiB, where the system tells.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn mutated_texts_break_nothing() {
    let seconds = number("NRLC_FUZZ_SECONDS", 4);
    let seed = number("NRLC_FUZZ_SEED", 1);
    let only = std::env::var("NRLC_FUZZ_ONLY").ok();
    let chosen = |name: &str| only.as_ref().is_none_or(|o| o.split(',').any(|n| n == name));
    let entries: Vec<_> = entry::ALL.iter().filter(|(name, _)| chosen(name)).collect();
    let words: Vec<&str> =
        RESERVED.iter().chain(&ITEMS).chain(&STATEMENTS).chain(&INSIDE).copied().collect();
    let mut failures = vec![];
    std::panic::set_hook(Box::new(|_| {}));
    for (name, f) in &entries {
        let yaml = matches!(*name, "yaml" | "import");
        let mut pool = seeds(yaml);
        let mut random = Random::new(seed);
        let mut seen = HashSet::new();
        let mut said: HashSet<String> = HashSet::new();
        let (mut runs, mut next) = (0u64, 0);
        let end = Instant::now() + Duration::from_secs(seconds) / entries.len() as u32;
        while Instant::now() < end {
            // Seeds first, as they are.
            let input = match pool.get(next).filter(|_| runs == next as u64) {
                Some(seed) => seed.clone(),
                None => mutate(&pool, if yaml { &[] } else { &words }, &mut random),
            };
            next += 1;
            runs += 1;
            match trial(*f, &input) {
                Ok(codes) => {
                    let mut hasher = DefaultHasher::new();
                    codes.hash(&mut hasher);
                    if seen.insert(hasher.finish()) && pool.len() < MOST && input.len() < 20_000 {
                        pool.push(input);
                    }
                }
                Err(why) => {
                    let brief: String = why.chars().take(60).collect();
                    if said.insert(brief) && said.len() <= 5 {
                        let small = cut(*f, &input);
                        let folder = root().join("target/fuzz");
                        let _ = std::fs::create_dir_all(&folder);
                        let file = folder.join(format!("{name}-{seed}-{runs}"));
                        let _ = std::fs::write(&file, &small);
                        let shown =
                            String::from_utf8_lossy(&small).chars().take(2000).collect::<String>();
                        let why: String = why.chars().take(1500).collect();
                        failures.push(format!("{name}: {why}\nin {}:\n{shown}", file.display()));
                    }
                }
            }
        }
        println!("{name}: {runs} executions, {} inputs kept", pool.len());
    }
    let _ = std::panic::take_hook();
    let peak = peak().unwrap_or(0);
    println!("peak memory {} MiB", peak / 1024);
    assert!(peak < 1 << 20, "more than 1 GiB: {peak} KiB");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
