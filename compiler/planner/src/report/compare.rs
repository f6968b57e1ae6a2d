//! What two plans differ in.
//!
//! In: two reports. Out: seconds by phase, bytes by stage and term, seconds by link class, side by side, as data and
//! as text. What only one of them has counts nothing on the other side.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::data::{Report, Step};
use super::words::{count, device_hours, difference, gib, hours, seconds, thousands};

/// Two plans side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub version: u32,
    /// Files of both.
    pub a: String,
    pub b: String,
    pub rows: Vec<Row>,
}

/// One number of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `step`, `phase`, `part`, `memory`, `term`, `link` or `run`.
    pub of: String,
    pub name: String,
    /// `s`, `bytes`, `devices` or `device-hours`.
    pub unit: String,
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// `b` minus `a`.
    pub difference: f64,
}

impl Comparison {
    /// Compares two reports.
    pub fn of(a: &Report, b: &Report) -> Comparison {
        let mut rows = vec![];
        let mut put = |of: &str, unit: &str, pairs: Vec<(String, Option<f64>, Option<f64>)>| {
            for (name, a, b) in pairs {
                let difference = b.unwrap_or(0.0) - a.unwrap_or(0.0);
                rows.push(Row { of: of.into(), name, unit: unit.into(), a, b, difference });
            }
        };
        put("run", "devices", vec![("GPUs".into(), some(a.run.devices), some(b.run.devices))]);
        let hours = |r: &Report| Some(r.run.device_hours);
        put("run", "device-hours", vec![("whole run".into(), hours(a), hours(b))]);
        put("run", "s", vec![("whole run".into(), total(a), total(b))]);
        put("step", "s", paired(&steps(a), &steps(b)));
        put("phase", "s", paired(&phases(a), &phases(b)));
        put("part", "s", paired(&parts(a), &parts(b)));
        put("memory", "bytes", paired(&stages(a), &stages(b)));
        put("term", "bytes", paired(&terms(a), &terms(b)));
        put("link", "s", paired(&links(a), &links(b)));
        Comparison { version: super::VERSION, a: a.file.clone(), b: b.file.clone(), rows }
    }

    /// As text; lines that are equal are left out.
    pub fn text(&self) -> String {
        let mut out = format!("{} against {}\n", self.a, self.b);
        let name = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).max(10);
        let blocks = [
            ("run", "RUN"),
            ("step", "TIME"),
            ("phase", "  by phase"),
            ("part", "  by part"),
            ("memory", "MEMORY, GiB on the fullest GPU"),
            ("term", "  by term"),
            ("link", "LINKS"),
        ];
        let mut same = true;
        for (of, head) in blocks {
            let rows: Vec<&Row> = self.rows.iter().filter(|r| r.of == of && r.matters()).collect();
            if rows.is_empty() {
                continue;
            }
            same = false;
            let _ = writeln!(out, "{head}");
            for r in rows {
                let (a, b, d) = (r.shown(r.a), r.shown(r.b), r.changed());
                let _ = writeln!(out, "    {:<name$}  {a:>10} -> {b:<10} {d:>10}", r.name);
            }
        }
        if same {
            out += "no difference\n";
        }
        out
    }
}

impl Row {
    /// Whether the difference is one that counts: more than a thousandth, a millisecond, 10 MB.
    pub fn matters(&self) -> bool {
        let most = self.a.unwrap_or(0.0).abs().max(self.b.unwrap_or(0.0).abs());
        let least = match self.unit.as_str() {
            "bytes" => 1e7,
            "s" => 1e-3,
            _ => 0.0,
        };
        self.difference.abs() > (1e-3 * most).max(least)
    }

    /// The two numbers and the difference, with units as text has them; bytes are in GiB.
    pub fn cells(&self) -> (String, String, String) {
        let unit = if self.unit == "bytes" { " GiB" } else { "" };
        let with = |x: Option<f64>| match x {
            Some(_) => format!("{}{unit}", self.shown(x)),
            None => "-".into(),
        };
        (with(self.a), with(self.b), format!("{}{unit}", self.changed()))
    }

    fn shown(&self, x: Option<f64>) -> String {
        let Some(x) = x else { return "-".into() };
        match self.unit.as_str() {
            "bytes" => gib(x),
            "s" if self.of == "run" => hours(x),
            "s" => seconds(x),
            "device-hours" => device_hours(x),
            _ => thousands(x),
        }
    }

    fn changed(&self) -> String {
        let d = self.difference;
        let sign = if d > 0.0 { "+" } else { "" };
        match self.unit.as_str() {
            "bytes" => format!("{sign}{}", gib(d)),
            "s" if self.of == "run" => {
                format!("{}{}", if d > 0.0 { "+" } else { "-" }, hours(d.abs()))
            }
            "s" => difference(d),
            "device-hours" if d < 0.0 => format!("-{}", device_hours(-d)),
            "device-hours" => format!("{sign}{}", device_hours(d)),
            _ if d.abs() < 1e6 => format!("{sign}{}", thousands(d)),
            _ => format!("{sign}{}", count(d)),
        }
    }
}

type Named = Vec<(String, f64)>;

fn some(x: usize) -> Option<f64> {
    Some(x as f64)
}

fn total(r: &Report) -> Option<f64> {
    (!r.steps.is_empty()).then_some(r.run.seconds.value)
}

/// Numbers of both by name, in the order of the first.
fn paired(a: &Named, b: &Named) -> Vec<(String, Option<f64>, Option<f64>)> {
    let of = |all: &Named, name: &str| all.iter().find(|(n, _)| n == name).map(|(_, x)| *x);
    let own = a.iter().map(|(n, x)| (n.clone(), Some(*x), of(b, n)));
    let more = b.iter().filter(|(n, _)| of(a, n).is_none());
    own.chain(more.map(|(n, x)| (n.clone(), None, Some(*x)))).collect()
}

/// Adds up what has the same name.
fn summed(all: impl Iterator<Item = (String, f64)>) -> Named {
    let mut out: Named = vec![];
    for (name, x) in all {
        match out.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => *sum += x,
            None => out.push((name, x)),
        }
    }
    out
}

fn of_step(r: &Report, step: &str, name: &str) -> String {
    if r.steps.len() < 2 { name.to_string() } else { format!("{step}: {name}") }
}

fn steps(r: &Report) -> Named {
    let steps = r.steps.iter().map(|s| (of_step(r, &s.name, "step"), s.seconds.value));
    let every = r.steps.iter().filter(|s| !s.every.is_empty());
    let mean = |s: &Step| (of_step(r, &s.name, "step in the mean"), s.average_seconds.value);
    summed(steps.chain(every.map(mean)))
}

fn phases(r: &Report) -> Named {
    let all = r.steps.iter().flat_map(|s| s.phases.iter().map(move |p| (s, p)));
    summed(all.map(|(s, p)| (of_step(r, &s.name, &p.name), p.seconds.value)))
}

fn parts(r: &Report) -> Named {
    let all = r.steps.iter().flat_map(|s| s.phases.iter().map(move |p| (s, p)));
    summed(all.flat_map(|(s, p)| {
        p.parts
            .iter()
            .map(move |x| (of_step(r, &s.name, &format!("{}: {}", p.name, x.name)), x.seconds))
    }))
}

fn stages(r: &Report) -> Named {
    summed_most(r.memory.stages.iter().map(|s| (s.name.clone(), s.bytes)))
}

fn terms(r: &Report) -> Named {
    summed_most(
        r.memory.stages.iter().flat_map(|s| {
            s.terms.iter().map(move |t| (format!("{}: {}", s.name, t.name), t.bytes))
        }),
    )
}

/// The largest of what has the same name: stages of several phases do not add up.
fn summed_most(all: impl Iterator<Item = (String, f64)>) -> Named {
    let mut out: Named = vec![];
    for (name, x) in all {
        match out.iter_mut().find(|(n, _)| *n == name) {
            Some((_, most)) => *most = most.max(x),
            None => out.push((name, x)),
        }
    }
    out
}

fn links(r: &Report) -> Named {
    summed(
        r.collectives
            .iter()
            .map(|c| (format!("{}: {} over {}", c.link, c.kind, c.axes.join("+")), c.seconds)),
    )
}
