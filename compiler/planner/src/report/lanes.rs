//! The streams of a rank while one layer goes by: the numbers, and the picture of them.
//!
//! In: the job of a phase and the speed of its machine; then a [`Layer`] of the report. Out: what the layer takes, by what it is
//! spent on, with the tasks of each stream; an SVG with a row per stream.

use nrl_sim::forecast::Phase;
use nrl_sim::rates::{Seconds, Speed};
use nrl_sim::streams::{Ran, Stream};
use nrl_sim::train::{self, Job};

use super::data::{Layer, Part, StreamTask};
use super::picture::{LEFT, RIGHT, W, holds, rect, svg, text, tick};

/// Layers of a phase, forward and backward.
pub(super) fn layers(p: &Phase, job: &Job, speed: &Speed<'_>) -> Vec<Layer> {
    // One that never ends has no picture.
    let some = job.streams(speed).into_iter().filter(|l| l.seconds.sum().is_finite());
    some.map(|l| layer(p, l)).collect()
}

fn layer(p: &Phase, l: train::Layer) -> Layer {
    Layer {
        phase: p.name.clone(),
        backward: l.backward,
        group: l.group,
        layers: l.count,
        seconds: l.seconds.sum(),
        parts: parts(&l.seconds),
        tasks: l.tasks.iter().filter(|t| t.end > t.start).map(task).collect(),
    }
}

fn parts(s: &Seconds) -> Vec<Part> {
    let some = s.named().into_iter().filter(|(_, x)| *x > 0.0);
    some.map(|(name, seconds)| Part { name: name.into(), seconds }).collect()
}

fn task(t: &Ran) -> StreamTask {
    StreamTask {
        stream: t.stream.name().into(),
        what: t.what.into(),
        link: t.link.name().into(),
        start_seconds: t.start,
        end_seconds: t.end,
    }
}

/// `1.25 ms`: layers are short.
pub(super) fn brief(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        a if a < 0.995e-3 => format!("{:.0} us", x * 1e6),
        a if a < 9.95e-3 => format!("{:.2} ms", x * 1e3),
        a if a < 0.995 => format!("{:.0} ms", x * 1e3),
        _ => format!("{x:.1} s"),
    }
}

/// How a task is colored.
fn class(t: &StreamTask) -> &'static str {
    match (t.link.as_str(), t.what.as_str()) {
        ("node", _) => "refit",
        ("network", _) => "t3",
        (_, "attention") => "score",
        (_, "experts") => "t5",
        (_, "passes over memory") => "t6",
        _ if t.stream == Stream::Host.name() => "other",
        _ => "sample",
    }
}

/// Rows of streams, from the beginning of the layer to its end.
pub(super) fn picture(l: &Layer) -> String {
    let all = [Stream::Compute, Stream::Exchange, Stream::Weights, Stream::Host].map(Stream::name);
    let rows: Vec<&str> =
        all.into_iter().filter(|s| l.tasks.iter().any(|t| t.stream == *s)).collect();
    let row = 28.0;
    let bottom = 12.0 + row * rows.len() as f64;
    let scale = (W - LEFT - RIGHT) / l.seconds.max(1e-9);
    let mut out = String::new();
    let step = tick(l.seconds, 8.0);
    let mut at = 0.0;
    while at <= l.seconds * 1.0001 {
        let x = LEFT + at * scale;
        out += &format!(
            "<line x1=\"{x:.1}\" y1=\"10\" x2=\"{x:.1}\" y2=\"{bottom}\" class=\"axis\"/>\n"
        );
        out += &text(x, bottom + 16.0, "soft", "middle", &brief(at));
        at += step;
    }
    for (i, name) in rows.iter().enumerate() {
        let y = 12.0 + row * i as f64;
        out += &text(12.0, y + 18.0, "", "start", name);
        for t in l.tasks.iter().filter(|t| t.stream == *name) {
            let x = LEFT + t.start_seconds * scale;
            let w = (t.end_seconds - t.start_seconds) * scale;
            let over = match t.link.as_str() {
                "node" => " in the node",
                "network" => " across nodes",
                _ => "",
            };
            let title = format!(
                "{}{over}: {}, from {} to {}",
                t.what,
                brief(t.end_seconds - t.start_seconds),
                brief(t.start_seconds),
                brief(t.end_seconds)
            );
            out += &rect([x, y + 3.0, w - 0.6, row - 6.0], class(t), &title);
            if t.what.len() + 1 < holds(w) {
                out += &text(x + 5.0, y + 18.5, "on", "start", &t.what);
            }
        }
    }
    let y = bottom + 38.0;
    let classes = [("refit", "links of the node"), ("t3", "network")];
    let links = ["node", "network"];
    let mut x = LEFT;
    for ((class, said), link) in classes.into_iter().zip(links) {
        if l.tasks.iter().any(|t| t.link == link) {
            out += &rect([x, y - 10.0, 12.0, 12.0], class, said);
            out += &text(x + 18.0, y, "", "start", said);
            x += 150.0;
        }
    }
    out += &text(x, y, "soft", "start", "nothing in the first two rows: the device waits");
    svg(y + 12.0, "streams of a layer", &out)
}
