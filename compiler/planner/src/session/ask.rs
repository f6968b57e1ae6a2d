//! Questions about the plan as it is: why, legal, fits, price, explain, as nemo.

use std::fmt::Write;

use nrl_base::SourceMap;
use nrl_nemo::{ExportOptions, Loader};
use nrl_sim::Memory;

use super::{Answer, Session, told};
use crate::edit;
use crate::explain::{explain, memory};
use crate::input::Input;
use crate::report::words::{bytes, device_hours, gib, hours, percent, seconds, thousands};
use crate::report::{Phase, Report};

impl Session<'_> {
    pub(super) fn why(&self, rest: &str) -> Answer {
        let (what, of) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let of = of.trim();
        let found = match what {
            "memory" => memory(&self.planned, of),
            "time" => time(&self.report, of),
            "" => {
                return Answer::failed(
                    "write `why memory update`, `why time sample` or `why TERM`",
                );
            }
            "fits" | "verdict" => Some(crate::report::verdict(&self.report)),
            "host" | "hosts" => hosts(&self.report),
            _ => term(&self.report, rest),
        };
        match found {
            Some(text) => Answer::said(text),
            None => {
                let stages: Vec<&str> =
                    self.report.memory.stages.iter().map(|s| s.name.as_str()).collect();
                let said = format!(
                    "no number of the plan is called `{rest}`; stages are {}",
                    stages.join(", ")
                );
                Answer::failed(said)
            }
        }
    }

    pub(super) fn explain(&self, path: &str) -> Answer {
        match explain(&self.input, &self.planned, path) {
            Ok(text) => Answer::said(text),
            Err(why) => Answer::failed(why),
        }
    }

    /// Values of a path that compile, then those that do not with the first reason.
    pub(super) fn legal(&self, path: &str) -> Answer {
        let candidates = match self.candidates(path) {
            Ok(candidates) => candidates,
            Err(why) => return Answer::failed(why),
        };
        let (mut good, mut bad) = (vec![], vec![]);
        for value in candidates {
            let Some(text) = edit::set(&self.input, path, &value) else {
                return Answer::failed(format!("nothing here is called `{path}`"));
            };
            let (planned, found) = self.input.with_text(text).plan();
            match planned {
                Some(p) => {
                    let over = p.forecast.iter().flat_map(|f| &f.memory).any(|m| m.margin() < 0.0);
                    good.push(if over { format!("{value} (does not fit)") } else { value });
                }
                None => {
                    let why = found.found.iter().find(|d| d.is_error());
                    bad.push((value, why.map_or(String::new(), |d| d.message.clone())));
                }
            }
        }
        let mut out = good.join("  ");
        for (value, why) in bad.iter().take(2) {
            let _ = write!(out, "\n  not {value}: {why}");
        }
        if let Some(note) = self.leaves_node(path) {
            let _ = write!(out, "\n  {note}");
        }
        Answer::said(out)
    }

    fn candidates(&self, path: &str) -> Result<Vec<String>, String> {
        let mut sources = SourceMap::new();
        let all = self.input.paths(&mut sources);
        let written = all.iter().find(|n| n.path == path).and_then(|n| n.value);
        let text = written.map(|s| sources.text(s).to_string()).unwrap_or_default();
        let name = path.rsplit('.').next().unwrap_or(path);
        let p = &self.planned.compiled.program;
        let mesh = path.split_once('.').and_then(|(m, a)| {
            let (_, mesh) = p.meshes.iter().find(|(n, _)| n == m)?;
            mesh.axes.iter().any(|x| x.name == a).then_some(mesh)
        });
        if let Some(mesh) = mesh {
            let ranks = mesh.ranks().min(128);
            let powers = std::iter::successors(Some(1usize), |n| Some(n * 2));
            return Ok(powers.take_while(|n| *n <= ranks).map(|n| n.to_string()).collect());
        }
        let words = |all: &[&str]| Ok(all.iter().map(|w| (*w).to_string()).collect());
        match (name, text.as_str()) {
            ("recompute", _) => words(&["none", "selective", "full"]),
            (_, "true" | "false") | ("sp", _) => words(&["false", "true"]),
            _ => {
                let (number, unit) = text.split_once(' ').unwrap_or((text.as_str(), ""));
                let Ok(n) = number.replace('_', "").parse::<u64>() else {
                    return Err(match written {
                        Some(_) => format!("`{path}` is `{text}`, which is no number or choice"),
                        None => format!("nothing here is called `{path}`"),
                    });
                };
                let around = [n / 8, n / 4, n / 2, n, n * 2, n * 4, n * 8];
                let mut all: Vec<u64> = around.into_iter().filter(|x| *x > 0).collect();
                all.dedup();
                Ok(all.into_iter().map(|x| format!("{x} {unit}").trim().to_string()).collect())
            }
        }
    }

    /// A remark for an axis of tensor parallelism.
    fn leaves_node(&self, path: &str) -> Option<String> {
        let (mesh, axis) = path.split_once('.')?;
        if axis != "tp" && axis != "rtp" {
            return None;
        }
        let c = &self.planned.compiled;
        let i = c.program.meshes.iter().position(|(n, _)| n == mesh)?;
        let per = nrl_driver::machine_of(c, i)?.per_node;
        Some(format!("more than {per} leaves the node"))
    }

    /// `on 32 GPUs?`
    pub(super) fn fits(&self, rest: &str) -> Answer {
        let number = rest.split(|c: char| !c.is_ascii_digit()).find(|w| !w.is_empty());
        let Some(gpus) = number.and_then(|n| n.parse::<usize>().ok()) else {
            return Answer::said(crate::report::verdict(&self.report));
        };
        let mut out = match self.on(gpus) {
            Ok(all) => format!("{gpus} GPUs: {}\n", fit(&all)),
            Err(why) => format!("{gpus} GPUs: no, {why}\n"),
        };
        let step = self.smallest();
        let times = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
        let sizes = times.into_iter().map(|n| n * step).filter(|n| *n <= 32_768);
        let fitting =
            |n: &usize| self.on(*n).is_ok_and(|all| all.iter().all(|m| m.margin() >= 0.0));
        match { sizes }.find(fitting) {
            Some(n) => {
                let _ = writeln!(out, "with these axes it fits on {n} GPUs or more");
            }
            None => {
                let _ = writeln!(
                    out,
                    "no number of GPUs helps with these axes; `plan` lists what would"
                );
            }
        }
        Answer::said(out)
    }

    /// The number of GPUs that one copy of every model takes: a common multiple over the meshes.
    fn smallest(&self) -> usize {
        const COPIES: [&str; 3] = ["dp", "fsdp", "rep"];
        let meshes =
            self.planned.compiled.program.meshes.iter().zip(&self.planned.compiled.facts.meshes);
        let on_devices = meshes.filter(|(_, f)| f.cluster.is_some());
        let each = on_devices.map(|((_, m), _)| {
            let axes = m.axes.iter().filter(|a| !COPIES.contains(&a.name.as_str()));
            axes.map(|a| a.size).product::<usize>()
        });
        each.fold(1, |all, n| all / common(all, n) * n.max(1))
    }

    /// Memory on another number of devices.
    fn on(&self, gpus: usize) -> Result<Vec<Memory>, String> {
        let mut sources = SourceMap::new();
        let all = self.input.paths(&mut sources);
        let cluster = all
            .iter()
            .find(|n| n.call && n.value.is_some_and(|s| sources.text(s).starts_with("clusters.")));
        let Some(cluster) = cluster else { return Err("the recipe names no cluster".into()) };
        let facts = &self.planned.compiled.facts.clusters;
        let per = facts.iter().find(|c| c.part_of.is_none()).map_or(8, |c| c.per_node.max(1));
        let nodes = gpus.div_ceil(per);
        let mut input: Input<'_> = self.input.clone();
        if !gpus.is_multiple_of(per) || gpus < per {
            if gpus > per {
                return Err(format!("nodes have {per}"));
            }
            let text = edit::set(&input, &format!("{}.gpus", cluster.path), &gpus.to_string());
            input = input.with_text(text.ok_or("the cluster takes no number of GPUs")?);
        }
        let text = edit::set(&input, &format!("{}.nodes", cluster.path), &nodes.to_string());
        input = input.with_text(text.ok_or("the cluster takes no number of nodes")?);
        let (planned, found) = input.plan();
        match planned {
            Some(p) => Ok(p.forecast.map_or_else(|| nrl_driver::memory(&p.compiled), |f| f.memory)),
            None => {
                Err(told(&found.found, &found.sources).lines().next().unwrap_or("").to_string())
            }
        }
    }

    /// `500 steps`
    pub(super) fn price(&self, rest: &str) -> Answer {
        let number = rest.split(|c: char| !c.is_ascii_digit()).find(|w| !w.is_empty());
        let r = &self.report;
        let steps = number.and_then(|n| n.parse::<usize>().ok()).unwrap_or(r.run.steps);
        if r.steps.is_empty() || r.run.steps == 0 {
            return Answer::failed("no seconds are known: the recipe names no GPUs");
        }
        let scale = steps as f64 / r.run.steps as f64;
        let s = &r.run.seconds;
        let mut out = format!(
            "{} steps = {} ({} .. {}) = {} GPU-hours on {} GPUs",
            thousands(steps as f64),
            hours(s.value * scale),
            hours(s.low * scale),
            hours(s.high * scale),
            device_hours(r.run.device_hours * scale),
            thousands(r.run.devices as f64)
        );
        if r.run.checkpoint_bytes > 0.0 {
            let all = r.run.checkpoint_bytes * r.run.checkpoints_kept.max(1) as f64;
            let _ = write!(
                out,
                "\ncheckpoints {} each, {} kept = {} of disk",
                bytes(r.run.checkpoint_bytes),
                r.run.checkpoints_kept.max(1),
                bytes(all)
            );
        }
        if let Some(limit) = r.run.limit_seconds {
            let fits = (limit / (s.value / r.run.steps as f64)).floor();
            let _ = write!(
                out,
                "\n{} steps fit into the {} of the recipe",
                thousands(fits),
                hours(limit)
            );
        }
        Answer::said(out)
    }

    /// `nemo`
    pub(super) fn export(&self, rest: &str) -> Answer {
        if !rest.starts_with("nemo") {
            return Answer::failed("write `as nemo`");
        }
        let mut sources = SourceMap::new();
        let id = sources.add(&self.input.path, self.input.text.as_str());
        let (file, _) = nrl_syntax::parse(id, &self.input.text);
        let root = self.nemo_root.as_str();
        let options = ExportOptions {
            root,
            defaults: &|over| format!("{root}{over}"),
            config: &|name| format!("{name}.yaml"),
            recipe: self.input.options.recipe.as_deref(),
        };
        let mut loader = Loader::new(self.files);
        match nrl_nemo::export(&mut loader, &mut sources, &file, &options) {
            Ok(out) => {
                let mut text = out.yaml.clone();
                for lost in &out.lost {
                    let _ = writeln!(text, "# NeMo RL cannot say: {}", lost.what);
                }
                Answer::said(text)
            }
            Err(found) => {
                let mut text = told(&found, &sources);
                if found.iter().any(|d| d.code == "file-not-read") {
                    text += "\nhelp: start `nrlc repl` with `--nemo-rl DIR`, the directory that holds `examples`";
                }
                Answer::failed(text)
            }
        }
    }
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { common(b, a % b) }
}

/// Whether all stages fit, by the fullest.
fn fit(all: &[Memory]) -> String {
    let Some(m) = all.iter().min_by(|a, b| a.margin().total_cmp(&b.margin())) else {
        return "memory is not counted".into();
    };
    let most = m.terms.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes));
    let term = most.map_or(String::new(), |t| format!(", of which {} {}", t.name, gib(t.bytes)));
    let (sum, has) = (gib(m.sum()), gib(m.device.memory));
    match m.margin() >= 0.0 {
        true => format!("yes; `{}` needs most, {sum} of {has} GiB{term}", m.stage),
        false => format!("no; `{}` needs {sum} GiB of {has}{term}", m.stage),
    }
}

/// What a phase takes, and what that is made of.
fn time(r: &Report, word: &str) -> Option<String> {
    let phases = r.steps.iter().flat_map(|s| &s.phases);
    let mut of: Vec<&Phase> = phases.filter(|p| word.is_empty() || p.name.contains(word)).collect();
    // `sample` is the phase, and not the refit of `sampler`.
    if of.iter().any(|p| p.name.split(' ').next() == Some(word)) {
        of.retain(|p| p.name.split(' ').next() == Some(word));
    }
    let mut out = String::new();
    for e in r.steps.iter().flat_map(|s| &s.every) {
        if !word.is_empty() && e.name.contains(word) {
            let _ = writeln!(
                out,
                "{}   {} ({} .. {}) every {} steps, {} of each in the mean, {}",
                e.name,
                seconds(e.seconds.value),
                seconds(e.seconds.low),
                seconds(e.seconds.high),
                e.period,
                seconds(e.per_step_seconds.value),
                e.seconds.word()
            );
        }
    }
    for p in &of {
        let line = p.line.map_or(String::new(), |l| format!(", line {l}"));
        let _ = writeln!(
            out,
            "{}   {} ({} .. {}), {} of the step, {}{line}",
            p.name,
            seconds(p.seconds.value),
            seconds(p.seconds.low),
            seconds(p.seconds.high),
            percent(p.share),
            p.seconds.word()
        );
        for x in &p.parts {
            let _ = writeln!(out, "  {:<28} {:>9}", x.name, seconds(x.seconds));
        }
        if let Some(m) = p.mfu {
            let _ = writeln!(
                out,
                "  MFU {}, {} micro-batches of {} tokens",
                percent(m),
                p.micro_batches,
                thousands(p.micro_batch_tokens)
            );
        }
        let layout = r.layouts.iter().find(|l| l.mesh == p.mesh);
        if let (Some(s), "sample") = (layout.and_then(|l| l.sample.as_ref()), p.kind.as_str()) {
            let _ = writeln!(
                out,
                "  {} replicas of {} GPUs, {} sequences each, room for {} of mean length",
                s.replicas,
                s.devices_per_replica,
                thousands(s.samples_per_replica),
                thousands(s.pool_sequences_mean)
            );
        }
    }
    if out.is_empty() {
        return None;
    }
    for a in r.assumptions.iter().filter(|a| a.what == "rates" || a.source == "guess") {
        let source = if a.source == "guess" { "GUESS" } else { &a.source };
        let _ = writeln!(out, "  rests on     {} = {} ({source})", a.what, a.value);
    }
    Some(out)
}

/// What waits on hosts, by term.
fn hosts(r: &Report) -> Option<String> {
    let mut out = String::new();
    for h in &r.memory.hosts {
        let giga = |b: f64| thousands(b / 1e9);
        let _ = writeln!(
            out,
            "each of {} nodes of {}: {} GB at most",
            h.nodes,
            h.cluster,
            giga(h.bytes)
        );
        for t in &h.terms {
            let _ = writeln!(out, "  {:<28} {:>8} GB   {}", t.name, giga(t.bytes), t.how);
        }
        let room = if h.room.is_empty() { "nobody says how much a node has" } else { &h.room };
        let _ = writeln!(out, "  {:<28} {:>8} GB   {room}", "a node has", giga(h.node_bytes));
    }
    (!out.is_empty()).then_some(out)
}

/// A term of memory or a part of the time, wherever it stands.
fn term(r: &Report, word: &str) -> Option<String> {
    let mut out = String::new();
    for s in &r.memory.stages {
        for t in s.terms.iter().filter(|t| t.name.contains(word)) {
            let _ =
                writeln!(out, "{:<22} {:<14} {:>8} GiB   {}", s.name, t.name, gib(t.bytes), t.how);
        }
    }
    for p in r.steps.iter().flat_map(|s| &s.phases) {
        for x in p.parts.iter().filter(|x| x.name.contains(word)) {
            let _ = writeln!(
                out,
                "{:<22} {:<24} {:>8}   {}",
                p.name,
                x.name,
                seconds(x.seconds),
                p.seconds.word()
            );
        }
    }
    for a in r.assumptions.iter().filter(|a| a.what.contains(word)) {
        let _ = writeln!(out, "{}: {} ({}); {}", a.what, a.value, a.source, a.help);
    }
    if out.is_empty() { time(r, word) } else { Some(out) }
}
