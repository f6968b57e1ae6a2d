//! A compiled program as values by name.
//!
//! In: a program with its plans. Out: what people set and see, by the names that they gave; what graphs
//! compute as text without places, so that moving lines changes nothing.

use nrl_driver::Compiled;
use nrl_ir::host::{self, Func};
use nrl_ir::program::{
    Binding, Model, Program, RewardKind, Sampling, Source, Stage, Tokens, Weights,
};
use serde_json::Value;

use super::{DERIVED, Told, Values};

/// Updates at which schedules are compared.
const UPDATES: [f64; 7] = [1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0];

struct Writer<'c> {
    program: &'c Program,
    out: Values,
}

/// All values of a program.
pub fn values(c: &Compiled) -> Values {
    let mut w = Writer { program: &c.program, out: Values::new() };
    w.whole();
    for m in &c.program.models {
        w.model(m);
    }
    w.parts();
    for p in &c.program.phases {
        let at = format!("{}.", p.name);
        w.put(format!("{at}steps"), p.steps);
        w.lines(&format!("{at}step"), &p.step);
        for e in &p.every {
            w.lines(&format!("{at}every {}", e.period), &e.stages);
        }
        for h in &p.halts {
            w.put(format!("{at}halt when {}", h.text), format!("for {} steps", h.steps));
        }
    }
    for plan in c.plans.iter().filter(|p| !p.params.is_empty()) {
        let name = format!("{DERIVED}{} activations, MiB", plan.name);
        w.put(name, (plan.peak_bytes / 1_048_576.0).round());
        w.put(format!("{DERIVED}{} collectives", plan.name), plan.collectives.len());
    }
    w.out
}

impl Writer<'_> {
    fn put(&mut self, name: String, value: impl ToString) {
        let mut name = name;
        // Two things of one name are told apart by their order.
        while self.out.contains_key(&name) {
            name.push('\'');
        }
        self.out.insert(name, Told { value: value.to_string(), from: None });
    }

    fn whole(&mut self) {
        let p = self.program;
        self.put("seed".into(), p.seed);
        if let Some(s) = p.wall_limit_s {
            self.put("within".into(), format!("{s} s"));
        }
        for (name, mesh) in p.meshes.iter().skip(1) {
            let axes: Vec<String> =
                mesh.axes.iter().map(|a| format!("{}: {}", a.name, a.size)).collect();
            self.put(name.clone(), axes.join(", "));
        }
    }

    fn model(&mut self, m: &Model) {
        let at = |name: &str| format!("{}.{name}", m.name);
        self.put(at("family"), &m.family);
        self.put(
            at("weights"),
            match &m.weights {
                Weights::Directory { path } => path.clone(),
                Weights::Fresh { std } => format!("drawn with deviation {std}"),
                Weights::Frozen { of, phase } => {
                    format!("those of {} when phase {phase} starts", self.program.models[*of].name)
                }
            },
        );
        self.put(
            at("tokens"),
            match &m.tokens {
                Tokens::Directory { path } => format!("of {path}"),
                Tokens::Characters { alphabet, eos, pad } => {
                    format!("{alphabet:?}, end {eos:?}, pad {pad:?}")
                }
                Tokens::Unknown => "none".into(),
            },
        );
        self.put(at("context"), m.context);
        self.put(at("mesh"), &self.program.meshes[m.mesh].0);
        if let Value::Object(config) = &m.config {
            for (key, value) in config {
                self.put(at(key), value);
            }
        }
        for (param, layout) in m.params.iter().zip(&m.layouts) {
            let dims = param.dims.iter().zip(&layout.dims).map(|(d, axes)| {
                let marks: String = axes.iter().map(|a| format!("@{a}")).collect();
                format!("{}{marks}", m.dims.name(*d))
            });
            let mut text = format!("[{}]", dims.collect::<Vec<_>>().join(", "));
            for (word, axes) in [("weights", &layout.flat), ("state", &layout.state)] {
                if !axes.is_empty() {
                    text.push_str(&format!(", {word} cut over {}", axes.join(", ")));
                }
            }
            self.put(at(&param.name), text);
        }
    }

    fn parts(&mut self) {
        let p = self.program;
        for d in &p.data {
            let at = |name: &str| format!("{}.{name}", d.name);
            self.put(
                at("source"),
                match &d.source {
                    Source::JsonLines { path } => path.clone(),
                    Source::Made { rows, make } => {
                        format!("{rows} rows made by {}", function(make))
                    }
                },
            );
            self.put(at("prompt"), &d.prompt);
            self.put(at("answer"), d.answer.as_deref().unwrap_or("none"));
            self.put(at("rejected"), d.rejected.as_deref().unwrap_or("none"));
            self.put(at("chat"), format!("{:?}", d.chat));
            self.put(at("at_most"), format!("{:?}", d.at_most));
            self.put(at("shuffled"), d.shuffled);
            self.put(at("bad_lines"), format!("{:?}", d.bad_lines));
        }
        for o in &p.optimizers {
            let at = |name: &str| format!("{}.{name}", o.name);
            let lr = UPDATES.map(|t| format!("{} at {t}", called(&o.lr, t)));
            self.put(at("lr"), lr.join(", "));
            self.put(at("clip_norm"), format!("{:?}", o.clip_norm));
            self.put(at("state"), o.state.join(", "));
            let scalars: Vec<String> = o.scalars.iter().map(function).collect();
            self.put(at("rule"), graph(p, o.graph) + &scalars.join("\n"));
        }
        for g in &p.generators {
            let at = |name: &str| format!("{}.{name}", g.name);
            self.put(at("of"), &p.models[g.model].name);
            self.put(at("on"), &p.meshes[g.mesh].0);
            self.put(at("sampling"), sampling(&g.sampling));
            self.put(at("slots"), g.slots);
        }
        for r in &p.rewards {
            let text = match &r.kind {
                RewardKind::Host(f) => function(f),
                RewardKind::Extern { command, workers, deadline_s, on_timeout } => {
                    format!("{command:?}, {workers} workers, {deadline_s} s, {on_timeout:?}")
                }
            };
            self.put(r.name.clone(), format!("{text} in {:?}", r.range));
        }
    }

    fn lines(&mut self, at: &str, lines: &[Binding]) {
        let p = self.program;
        for b in lines {
            // Lines without a name are called after what they do.
            let name = match b.name.starts_with('%') {
                true => format!("{at}.{}", stage_word(&b.stage)),
                false => format!("{at}.{}", b.name),
            };
            let args: Vec<&str> =
                b.args.iter().filter_map(|a| lines.get(*a)).map(|a| &*a.name).collect();
            let args: Vec<&str> =
                args.into_iter().map(|n| if n.starts_with('%') { "_" } else { n }).collect();
            self.put(format!("{name}.reads"), args.join(", "));
            if b.from > 0 {
                self.put(format!("{name}.from"), format!("step {}", b.from));
            }
            for (part, value) in stage(p, &b.stage) {
                self.put(format!("{name}.{part}"), value);
            }
        }
    }
}

fn stage_word(s: &Stage) -> &'static str {
    match s {
        Stage::Take { .. } => "take",
        Stage::Generate { .. } => "generate",
        Stage::Reward { .. } => "reward",
        Stage::Compute { .. } => "compute",
        Stage::Forward { .. } => "forward",
        Stage::Update { .. } => "update",
        Stage::Evaluate { .. } => "evaluate",
        Stage::Checkpoint { .. } => "checkpoint",
        Stage::Collect { .. } => "collect",
    }
}

/// The parts of a stage, by name.
fn stage(p: &Program, s: &Stage) -> Vec<(&'static str, String)> {
    let functions = |all: &[Func]| all.iter().map(function).collect::<Vec<_>>().join("\n");
    match s {
        Stage::Take { data, count, complete } => {
            let what = if *complete { "samples" } else { "prompts" };
            vec![("takes", format!("{count} {what} of {}", p.data[*data].name))]
        }
        Stage::Generate { generator, copies, max_new, sampling: s } => vec![
            ("by", p.generators[*generator].name.clone()),
            ("samples per prompt", copies.to_string()),
            ("max_new", max_new.map_or("rest of context".into(), |n| n.to_string())),
            ("sampling", sampling(s)),
        ],
        Stage::Reward { reward } => vec![("reward", p.rewards[*reward].name.clone())],
        Stage::Compute { graph: g, output, scalars, .. } => {
            vec![("computes", format!("{}output {output}\n{}", graph(p, *g), functions(scalars)))]
        }
        Stage::Forward { model, graph: g, output, temperature, tokens, .. } => vec![
            ("through", p.models[*model].name.clone()),
            ("temperature", temperature.to_string()),
            ("tokens per micro-batch", tokens.to_string()),
            ("computes", format!("{}output {output}", graph(p, *g))),
        ],
        Stage::Update {
            model,
            optimizer,
            graph: g,
            temperature,
            updates,
            epochs,
            tokens,
            scalars,
            ..
        } => vec![
            ("of", p.models[*model].name.clone()),
            ("by", p.optimizers[*optimizer].name.clone()),
            ("updates", updates.to_string()),
            ("epochs", epochs.to_string()),
            ("temperature", temperature.to_string()),
            ("tokens per micro-batch", tokens.to_string()),
            ("loss", graph(p, *g) + &functions(scalars)),
        ],
        Stage::Evaluate {
            generator,
            data,
            limit,
            copies,
            sampling: s,
            max_new,
            reward,
            correct,
        } => vec![
            ("by", p.generators[*generator].name.clone()),
            ("data", p.data[*data].name.clone()),
            ("limit", format!("{limit:?}")),
            ("samples", copies.to_string()),
            ("sampling", sampling(s)),
            ("max_new", format!("{max_new:?}")),
            ("reward", p.rewards[*reward].name.clone()),
            ("correct", correct.to_string()),
        ],
        Stage::Collect { groups, rounds, .. } => {
            vec![("groups", groups.to_string()), ("rounds", rounds.to_string())]
        }
        Stage::Checkpoint { keep, by } => {
            vec![("keeps", format!("{keep} by {}", by.as_deref().unwrap_or("age")))]
        }
    }
}

fn sampling(s: &Sampling) -> String {
    let mut out = format!("temperature {}", s.temperature);
    s.top_k.iter().for_each(|k| out.push_str(&format!(", top_k {k}")));
    s.top_p.iter().for_each(|p| out.push_str(&format!(", top_p {p}")));
    if !s.stop.is_empty() || !s.stop_ids.is_empty() {
        out.push_str(&format!(", stop {:?} {:?}", s.stop, s.stop_ids));
    }
    if s.min_new > 0 {
        out.push_str(&format!(", min_new {}", s.min_new));
    }
    out
}

/// A function of the host, as text that is equal where the functions are.
fn function(f: &Func) -> String {
    serde_json::to_string(&f.body).unwrap_or_default()
}

fn called(f: &Func, t: f64) -> String {
    match host::call(f, &[host::Value::Num(t)]) {
        Ok(v) => v.to_json().to_string(),
        Err(e) => e.to_string(),
    }
}

/// What a graph computes, without its name and the places in the source.
fn graph(p: &Program, at: usize) -> String {
    let Some(g) = p.graphs.get(at) else { return String::new() };
    let mut g = g.clone();
    g.name = "g".into();
    let text = nrl_ir::text::print(&g);
    text.lines().fold(String::new(), |all, line| all + &placeless(line) + "\n")
}

/// A line without ` @0:12-34`.
fn placeless(line: &str) -> String {
    let place = |at: &usize| {
        let end = line[at + 2..].find(|c: char| !c.is_ascii_digit() && c != ':' && c != '-');
        let end = end.map_or(line.len(), |n| at + 2 + n);
        let inside = &line[at + 2..end];
        (inside.contains(':') && inside.contains('-')).then_some(end)
    };
    let found =
        line.match_indices(" @").map(|(at, _)| at).find_map(|at| place(&at).map(|end| (at, end)));
    match found {
        Some((at, end)) => placeless(&format!("{}{}", &line[..at], &line[end..])),
        None => line.to_string(),
    }
}
