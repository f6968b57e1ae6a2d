//! A report as one screen of plain text.
//!
//! In: a [`Report`] and the columns there are. Out: title, assumptions, layout, time, memory, verdict, links, what
//! could be changed, what no number takes into account. Guesses are in capitals; nothing is colored here.

use std::fmt::Write;

use super::data::*;
use super::words::{
    axes, bytes, count, device_hours, difference, gib, hours, percent, seconds, thousands, wrapped,
};

/// Fewest and most columns that a screen is laid out for.
const NARROW: usize = 100;
const WIDE: usize = 120;
/// Column at which blocks begin.
const MARGIN: usize = 10;

/// The screen.
pub fn screen(r: &Report, width: usize) -> String {
    let width = width.clamp(NARROW, WIDE);
    let mut out = title(r, width);
    out += &assumed(r, width);
    if r.steps.is_empty() {
        out += &memory(r, width);
        out += &graphs(r);
        return out;
    }
    out += &layout(r, width);
    for step in &r.steps {
        out += &time(r, step, width);
    }
    out += &run(r, width);
    out += &memory(r, width);
    out += &links(r, width);
    out += &dominant(r, width);
    out += &changes(r, width);
    out += &block("settings", &r.settings.join("; "), width);
    out += &block("not modelled", &r.not_modelled.join("; "), width);
    out
}

/// What ranks are: devices, or threads of one process.
fn device(r: &Report) -> &'static str {
    let threads = r.clusters.iter().all(|c| c.device == super::build::THREADS);
    if threads { "rank" } else { "GPU" }
}

/// A block of text behind its name, with lines that go on below each other.
fn block(name: &str, text: &str, width: usize) -> String {
    if text.is_empty() {
        return String::new();
    }
    let margin = MARGIN.max(name.len() + 2);
    let mut out = String::new();
    for (i, line) in wrapped(text, width - margin).iter().enumerate() {
        let head = if i == 0 { name } else { "" };
        let _ = writeln!(out, "{head:<margin$}{line}");
    }
    out
}

fn title(r: &Report, width: usize) -> String {
    let trained = r.models.iter().find(|m| !m.frozen).or(r.models.first());
    let mut left = format!("plan {}", r.recipe);
    if let Some(m) = trained {
        let name = m
            .checkpoint
            .as_deref()
            .map_or(m.family.as_str(), |c| c.trim_end_matches('/').rsplit('/').next().unwrap_or(c));
        let _ = write!(left, "   {name}  {}  {} layers", count(m.parameters), m.layers);
        if let (Some(q), Some(kv)) = (m.heads, m.kv_heads) {
            let _ = write!(left, "  {q}/{kv} heads");
        }
    }
    let whole = r.clusters.iter().filter(|c| c.pool_of.is_none());
    let machines: Vec<String> = whole
        .map(|c| match c.memory_bytes > 0.0 {
            true => {
                let nodes = c.devices.div_ceil(c.per_node.max(1));
                let (per, s) = (c.per_node.min(c.devices), if nodes == 1 { "" } else { "s" });
                format!("{} x {} ({nodes} node{s} x {per})", thousands(c.devices as f64), c.device)
            }
            false => format!("{} {}", c.devices, c.device),
        })
        .collect();
    let right = machines.join(", ");
    let gap = width.saturating_sub(left.chars().count() + right.chars().count()).max(3);
    format!("{left}{}{right}\n", " ".repeat(gap))
}

fn assumed(r: &Report, width: usize) -> String {
    let one = |a: &Assumption| match a.source.as_str() {
        "guess" => format!("{} {} (A GUESS: {})", a.what, a.value, a.help),
        source => format!("{} {} ({source})", a.what, a.value),
    };
    let all: Vec<String> = r.assumptions.iter().map(one).collect();
    block("assume", &all.join("   "), width)
}

fn layout(r: &Report, width: usize) -> String {
    let mut lines = vec![];
    let name = r.layouts.iter().map(|l| l.mesh.len()).max().unwrap_or(0).max(6);
    for l in &r.layouts {
        let head = format!("{:<name$}  {}", l.mesh, axes(&l.axes));
        let mut put = |text: String| lines.push((head.clone(), text));
        if let Some(t) = &l.train {
            let per_gpu = format!(
                "{} layers, {} GiB weights per {}",
                t.layers_per_stage,
                gib(t.weight_bytes),
                device(r)
            );
            let each = t.samples / t.updates.max(1) as f64;
            let n = if t.updates == 1 { "update" } else { "updates" };
            put(format!(
                "{per_gpu}   {} samples = {} {n} x {}; {} micro-batches of {} tokens per rank",
                thousands(t.samples),
                t.updates,
                thousands(each),
                t.micro_batches,
                thousands(t.micro_batch_tokens)
            ));
        }
        if let Some(s) = &l.sample {
            put(format!(
                "{} replicas, {} sequences each   KV {} tokens = {} mean or {} full-length sequences",
                s.replicas,
                thousands(s.samples_per_replica),
                count(s.pool_tokens),
                thousands(s.pool_sequences_mean),
                thousands(s.pool_sequences_longest)
            ));
        }
        if l.train.is_none() && l.sample.is_none() {
            put(format!("{} {}s", l.devices, device(r)));
        }
    }
    let column = lines.iter().map(|(h, _)| h.chars().count()).max().unwrap_or(0) + 3;
    let mut out = String::from("\n");
    let mut last = String::new();
    for (i, (head, text)) in lines.iter().enumerate() {
        let name = if i == 0 { "LAYOUT" } else { "" };
        let head = if *head == last { "" } else { head.as_str() };
        for (k, part) in wrapped(text, width - MARGIN - column).iter().enumerate() {
            let (name, head) = if k == 0 { (name, head) } else { ("", "") };
            let _ = writeln!(out, "{name:<MARGIN$}{head:<column$}{part}");
        }
        last = lines[i].0.clone();
    }
    out
}

fn time(r: &Report, step: &Step, width: usize) -> String {
    let name = step.phases.iter().map(|p| p.name.chars().count()).max().unwrap_or(0).max(8);
    let of = if r.steps.len() < 2 { String::new() } else { format!("{} ", step.name) };
    let (low, high) = (seconds(step.seconds.low), seconds(step.seconds.high));
    let span = format!("{of}step {}   ({low} .. {high})", seconds(step.seconds.value));
    let mut out = String::from("\n");
    let source = 13;
    let head = format!("{:<MARGIN$}{span}", "TIME");
    let _ = writeln!(out, "{head:<w$}{:>source$}", "source", w = width - source);
    // `  name  seconds  share  |bar and note|  source`
    let left = 2 + name + 9 + 6 + 2;
    let field = width.saturating_sub(left + source);
    let total = step.phases.iter().map(|p| p.start_seconds + p.seconds.value).fold(0.0, f64::max);
    for p in &step.phases {
        let (bar, rest) = bar(p, total, field, &note(r, p));
        let share = percent(p.share);
        let _ = writeln!(
            out,
            "  {:<name$}{:>9}{share:>6}  {bar:<field$}{:>source$}",
            p.name,
            seconds(p.seconds.value),
            p.seconds.word()
        );
        for line in rest {
            let _ = writeln!(out, "{:left$}{line}", "");
        }
    }
    let mut facts = vec![
        format!("{} samples, {} tokens", thousands(step.samples), count(step.tokens)),
        format!("{} tokens/s/{}", thousands(step.tokens_per_second_per_device), device(r)),
        format!("MFU {} over the step", percent(step.mfu)),
    ];
    if step.bubble > 0.0 {
        facts.push(format!("bubble {} of updates", percent(step.bubble)));
    }
    facts.push(format!("padding {}", percent(step.padding)));
    for line in wrapped(&facts.join("   "), width - 2) {
        let _ = writeln!(out, "  {line}");
    }
    out += &every(step, width);
    out
}

/// What runs now and then, and what that makes of a step in the mean.
fn every(step: &Step, width: usize) -> String {
    let mut all: Vec<String> = vec![];
    let mut last = 0;
    for e in &step.every {
        let each = format!("{} {}", e.name, seconds(e.seconds.value));
        match all.last_mut().filter(|_| e.period == last) {
            Some(text) => *text += &format!(" + {each}"),
            None if e.period == 1 => all.push(format!("every step {each}")),
            None => all.push(format!("every {} steps {each}", thousands(e.period as f64))),
        }
        last = e.period;
    }
    if all.is_empty() {
        return String::new();
    }
    let (mean, one) = (&step.average_seconds, step.seconds.value);
    let text = format!(
        "{}   = {} more per step, {} in the mean   {}",
        all.join(", "),
        seconds(mean.value - one),
        seconds(mean.value),
        mean.word()
    );
    block("  beside", &text, width)
}

/// A bar of a phase at its place in the step, its note behind or before it, and what found no room.
fn bar(p: &Phase, total: f64, field: usize, note: &str) -> (String, Vec<String>) {
    let room = field.min(60);
    let scale = room as f64 / total.max(f64::MIN_POSITIVE);
    let long = ((p.seconds.value * scale).round() as usize).max(1);
    let from = ((p.start_seconds * scale).round() as usize).min(room.saturating_sub(long));
    let end = from + long;
    let wide = note.chars().count();
    let marks = "#".repeat(long);
    if note.is_empty() {
        (format!("{}{marks}", " ".repeat(from)), vec![])
    } else if end + 1 + wide <= field {
        (format!("{}{marks} {note}", " ".repeat(from)), vec![])
    } else if wide < from {
        (format!("{}{note} {marks}", " ".repeat(from - wide - 1)), vec![])
    } else {
        (format!("{}{marks}", " ".repeat(from)), wrapped(note, field))
    }
}

/// What is most worth to know of a phase.
fn note(r: &Report, p: &Phase) -> String {
    let mut said = vec![];
    if let Some(m) = p.mfu {
        said.push(format!("MFU {}", percent(m)));
    }
    if p.bubble > 0.0005 {
        said.push(format!("bubble {}", percent(p.bubble)));
    }
    if let Some(s) = r.layouts.iter().filter_map(|l| l.sample.as_ref()).next()
        && p.kind == "sample"
    {
        let many = s.samples_per_replica.min(s.pool_sequences_mean.max(1.0));
        said.push(format!("{} sequences at once per replica", thousands(many)));
    }
    if p.kind != "sample"
        && let Some(x) = p.parts.first().filter(|_| p.parts.len() > 1)
    {
        said.push(format!("{} {}", x.name, seconds(x.seconds)));
    }
    said.join(", ")
}

fn run(r: &Report, width: usize) -> String {
    let run = &r.run;
    let total = &run.seconds;
    let mut text = format!(
        "{} steps = {} ({} .. {}) = {} {}-hours",
        thousands(run.steps as f64),
        hours(total.value),
        hours(total.low),
        hours(total.high),
        device_hours(run.device_hours),
        device(r)
    );
    if let Some(limit) = run.limit_seconds {
        let over = total.value > limit;
        let word = if over { "MORE THAN" } else { "within" };
        let _ = write!(text, ", {word} the {} that the recipe allows", hours(limit));
    }
    if run.checkpoint_bytes > 0.0 {
        let _ = write!(text, "   checkpoints {} each", bytes(run.checkpoint_bytes));
        if run.checkpoints_kept > 0 {
            let all = run.checkpoint_bytes * run.checkpoints_kept as f64;
            let _ = write!(text, ", {} kept = {}", run.checkpoints_kept, bytes(all));
        }
    }
    block("  run", &text, width)
}

/// Short headings of terms that every stage may have.
fn heading(name: &str) -> &str {
    match name {
        "gradients" => "grads",
        "optimizer" => "optim",
        "activations" => "activ.",
        "kv, one sequence" => "kv",
        other => other.split([',', ' ']).next().unwrap_or(other),
    }
}

/// Terms that have a column of their own while there is room for any.
const MAIN: &[&str] = &[
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "kv",
    "kv, one sequence",
    "loss",
    "logits",
];

/// Terms of all stages in the order they come in, each with its heading; the smallest ones share a column
/// where there is no room.
fn columns(r: &Report, room: usize) -> (Vec<String>, bool) {
    let mut names: Vec<(String, f64)> = vec![];
    for t in r.memory.stages.iter().flat_map(|s| &s.terms) {
        match names.iter_mut().find(|(n, _)| *n == t.name) {
            Some((_, most)) => *most = most.max(t.bytes),
            None => names.push((t.name.clone(), t.bytes)),
        }
    }
    // The part that is always there comes last.
    names.sort_by_key(|(n, _)| n == "fixed");
    let wide = |all: &[(String, f64)]| -> usize {
        all.iter().map(|(n, _)| heading(n).chars().count().max(6) + 2).sum()
    };
    let mut folded = false;
    while wide(&names) + if folded { 8 } else { 0 } > room && names.len() > 1 {
        folded = true;
        // What trainers and engines are made of stays as long as there is anything else, weights to the end.
        let rank = |n: &str| usize::from(MAIN.contains(&n)) + usize::from(n == "weights");
        let least = names
            .iter()
            .enumerate()
            .min_by(|(_, (n, x)), (_, (m, y))| rank(n).cmp(&rank(m)).then(x.total_cmp(y)));
        let Some((at, _)) = least else { break };
        names.remove(at);
    }
    (names.into_iter().map(|(n, _)| n).collect(), folded)
}

/// ` /10` behind what happens every 10 steps.
fn short(s: &Stage) -> String {
    if s.is_now_and_then() && s.period > 0 { format!(" /{}", s.period) } else { String::new() }
}

fn memory(r: &Report, width: usize) -> String {
    let m = &r.memory;
    let mut out = String::new();
    if let Some(first) = m.stages.first() {
        let saves = m.stages.iter().filter(|s| s.name.starts_with("checkpoint ")).count();
        let shown = |s: &Stage| match s.name.starts_with("checkpoint ") && saves == 1 {
            true => format!("checkpoint{}", short(s)),
            false => format!("{}{}", s.name, short(s)),
        };
        let name = m.stages.iter().map(|s| shown(s).chars().count()).max().unwrap_or(0).max(8) + 2;
        let tail = 29 + 14;
        let (names, folded) = columns(r, width.saturating_sub(2 + name + tail));
        let head = |n: &str| heading(n).chars().count().max(6) + 2;
        let same = m.stages.iter().all(|s| s.device_bytes == first.device_bytes);
        let on = if same {
            format!("worst {}, GiB of {}", device(r), gib(first.device_bytes))
        } else {
            format!("worst {}, GiB", device(r))
        };
        let _ = writeln!(out, "\n{:<MARGIN$}{on}", "MEMORY");
        let mut line = format!("  {:name$}", "");
        for n in &names {
            let _ = write!(line, "{:>w$}", heading(n), w = head(n));
        }
        if folded {
            let _ = write!(line, "{:>8}", "rest");
        }
        let _ = writeln!(out, "{line} |{:>7}  {:>5}  {:>7}", "sum", "", "margin");
        for (i, s) in m.stages.iter().enumerate() {
            let mut line = format!("  {:<name$}", shown(s));
            let mut shown = 0.0;
            for n in &names {
                let all: Vec<&Term> = s.terms.iter().filter(|t| t.name == *n).collect();
                let sum: f64 = all.iter().map(|t| t.bytes).sum();
                shown += sum;
                let text = if all.is_empty() { "-".to_string() } else { gib(sum) };
                let _ = write!(line, "{text:>w$}", w = head(n));
            }
            if folded {
                let _ = write!(line, "{:>8}", gib(s.bytes - shown));
            }
            let mark = if m.tightest == Some(i) { "   <- tightest" } else { "" };
            let _ = writeln!(
                out,
                "{line} |{:>7}  {:>5}  {:>7}{mark}",
                gib(s.bytes),
                percent(s.share),
                gib(s.margin_bytes)
            );
        }
        for h in &m.hosts {
            out += &block("  host", &host(h), width);
        }
        out += &block("  fits", &verdict(r), width).replacen(
            "  fits",
            if m.fits { "  fits" } else { "  FAILS" },
            1,
        );
    }
    out
}

/// `per node: optimizer of policy 106 GB + .. = 247 GB of 2,048`.
pub(super) fn host(h: &Host) -> String {
    let giga = |b: f64| thousands(b / 1e9);
    let terms: Vec<String> =
        h.terms.iter().map(|t| format!("{} {}", t.name, giga(t.bytes))).collect();
    let has = match h.room.as_str() {
        "" => String::new(),
        "enough" => format!(" of {}", giga(h.node_bytes)),
        room => format!(" of {}: {}", giga(h.node_bytes), room.to_uppercase()),
    };
    format!("per node at most: {} = {} GB{has}", terms.join(" + "), giga(h.bytes))
}

/// Whether it fits, by how much, and which term decides.
pub fn verdict(r: &Report) -> String {
    let m = &r.memory;
    let Some(s) = m.tightest.and_then(|i| m.stages.get(i)) else { return String::new() };
    let most = s.terms.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes));
    let term = most.map_or(String::new(), |t| {
        format!("; {} are most of it: {} GiB ({})", t.name, gib(t.bytes), t.how)
    });
    let (sum, all, left) = (gib(s.bytes), gib(s.device_bytes), s.margin_bytes);
    match left >= 0.0 {
        true => format!(
            "yes, with {} GiB ({}) to spare in `{}`{}, {sum} of {all}{term}",
            gib(left),
            percent(left / s.device_bytes),
            s.name,
            at(s)
        ),
        false => format!(
            "`{}`{} DOES NOT FIT: it needs {sum} GiB, {} more than the {all} of {}{term}{}",
            s.name,
            at(s),
            gib(-left),
            s.device,
            fewer(s)
        ),
    }
}

/// How many tokens at once would fit, where fewer do: all of them is a bound that short samples do not reach.
fn fewer(s: &Stage) -> String {
    let grows = ["activations", "backward", "loss", "logits"];
    let grown = s.terms.iter().filter(|t| grows.contains(&t.name.as_str()));
    let bytes: f64 = grown.map(|t| t.bytes).sum();
    let share = 1.0 + s.margin_bytes / bytes.max(f64::MIN_POSITIVE);
    match share > 0.05 {
        true => format!("; with {:.0} % of its tokens at once it fits", (100.0 * share).floor()),
        false => String::new(),
    }
}

/// ` at steps 5, 9, ..` of what not every step does.
fn at(s: &Stage) -> String {
    let when = s.when();
    if when.is_empty() { when } else { format!(" {when}") }
}

fn links(r: &Report, width: usize) -> String {
    let mut out = String::new();
    let step: f64 = r.steps.iter().map(|s| s.seconds.value).sum();
    for (i, class) in ["node", "network"].iter().enumerate() {
        let mut kinds: Vec<(String, f64, f64)> = vec![];
        for c in r.collectives.iter().filter(|c| c.link == *class) {
            let name = format!("{} over {}", c.kind, c.axes.join("+"));
            let moved = c.calls * c.bytes_per_call;
            match kinds.iter_mut().find(|(n, _, _)| *n == name) {
                Some((_, s, b)) => {
                    *s += c.seconds;
                    *b += moved;
                }
                None => kinds.push((name, c.seconds, moved)),
            }
        }
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        let sum: f64 = kinds.iter().map(|(_, s, _)| s).sum();
        let one = |(n, s, b): &(String, f64, f64)| format!("{n} {} ({})", seconds(*s), bytes(*b));
        let shown: Vec<String> = kinds.iter().take(4).map(one).collect();
        let text = match kinds.is_empty() {
            true => format!("{class} none"),
            false => format!(
                "{class} {} per step, {}: {}",
                seconds(sum),
                percent(sum / step.max(f64::MIN_POSITIVE)),
                shown.join(", ")
            ),
        };
        let name = if i == 0 { "\nLINKS" } else { "" };
        out += &match i {
            0 => format!("\n{}", block(&name[1..], &text, width)),
            _ => block(name, &text, width),
        };
    }
    out
}

fn dominant(r: &Report, width: usize) -> String {
    let mut out = String::new();
    for s in &r.steps {
        let Some(d) = &s.dominant else { continue };
        let of = if r.steps.len() < 2 { String::new() } else { format!("{}: ", s.name) };
        let text = format!(
            "{of}{} of `{}`, {} or {} of the step",
            d.part,
            d.phase,
            seconds(d.seconds),
            percent(d.share)
        );
        out += &block("most", &text, width);
    }
    out
}

fn changes(r: &Report, width: usize) -> String {
    if r.changes.is_empty() {
        return String::new();
    }
    let name = r.changes.iter().map(|c| c.change.chars().count()).max().unwrap_or(0).max(16) + 2;
    let mut out = format!(
        "\n{:<w$}{:>10}   {:<30} same mathematics?\n",
        "IF YOU CHANGE",
        "step",
        "memory, GiB",
        w = name + 2
    );
    for c in &r.changes {
        let memory = match (&c.memory[..], c.fits) {
            (_, false) => "does not fit".to_string(),
            ([], _) => "-".to_string(),
            ([m, ..], _) => {
                let stage = m.stage.split(' ').next().unwrap_or(&m.stage);
                format!("{stage} {} -> {}", gib(m.before_bytes), gib(m.after_bytes))
            }
        };
        let same = if c.same_mathematics { "yes" } else { "no" };
        let why = if c.why.is_empty() { String::new() } else { format!(": {}", c.why) };
        let head = format!(
            "  {:<name$}{:>10}   {memory:<30} ",
            c.change,
            difference(c.seconds_difference)
        );
        let column = head.chars().count();
        for (i, line) in wrapped(&format!("{same}{why}"), width.saturating_sub(column).max(24))
            .iter()
            .enumerate()
        {
            let head = if i == 0 { head.as_str() } else { "" };
            let _ = writeln!(out, "{head:<column$}{line}");
        }
    }
    out
}

/// What graphs do where no device is known: counted numbers alone.
fn graphs(r: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "\nGRAPHS    per run and rank, at the bounds");
    for g in &r.graphs {
        let _ = writeln!(
            out,
            "  {:<10} {:>9} FLOP  {:>9} moved  {:>9} live   {}",
            g.name,
            count(g.flops),
            bytes(g.moved_bytes),
            bytes(g.live_bytes),
            g.bounds
        );
        for x in &g.collectives {
            let _ = writeln!(
                out,
                "      {} over {} x{}  {} each  because {}",
                x.kind,
                x.axes.join(", "),
                x.count,
                bytes(x.bytes),
                x.reason
            );
        }
    }
    out
}
