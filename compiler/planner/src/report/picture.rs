//! The pictures of a page, as SVG.
//!
//! In: parts of a [`Report`]. Out: SVG text whose colors come from the page's style. Every shape has a title that
//! browsers show under the pointer.

use std::fmt::Write;

use super::data::*;
use super::html::escaped;
use super::words::{bytes, count, gib, percent, seconds};

/// Width of all pictures, in their own units.
pub(super) const W: f64 = 1040.0;
/// Colors of terms in the style of the page.
const COLORS: usize = 14;
/// Room for names on the left.
pub(super) const LEFT: f64 = 150.0;
pub(super) const RIGHT: f64 = 20.0;

pub(super) fn svg(height: f64, name: &str, body: &str) -> String {
    format!(
        "<div class=\"wide picture\"><svg viewBox=\"0 0 {W} {height}\" role=\"img\" aria-label=\"{}\">\n{body}</svg></div>\n",
        escaped(name)
    )
}

pub(super) fn text(x: f64, y: f64, class: &str, anchor: &str, said: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>\n",
        escaped(said)
    )
}

pub(super) fn rect(at: [f64; 4], class: &str, title: &str) -> String {
    let [x, y, w, h] = at;
    format!(
        "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{h:.2}\" class=\"{class}\" rx=\"1.5\"><title>{}</title></rect>\n",
        w.max(0.4),
        escaped(title)
    )
}

/// Characters that a width holds.
pub(super) fn holds(width: f64) -> usize {
    (width / 7.2) as usize
}

/// A round step for an axis up to `most`.
pub(super) fn tick(most: f64, about: f64) -> f64 {
    let raw = (most / about).max(f64::MIN_POSITIVE);
    let base = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * base).into_iter().find(|t| *t >= raw).unwrap_or(raw)
}

fn seconds_axis(most: f64, top: f64, bottom: f64) -> String {
    let scale = (W - LEFT - RIGHT) / most;
    let step = tick(most, 8.0);
    let mut out = String::new();
    let mut at = 0.0;
    while at <= most * 1.0001 {
        let x = LEFT + at * scale;
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" class=\"axis\"/>"
        );
        out += &text(x, bottom + 16.0, "soft", "middle", &seconds(at));
        at += step;
    }
    out
}

/// Phases of a step, a row per mesh.
pub fn timeline(s: &Step) -> String {
    let mut meshes: Vec<&str> = vec![];
    for p in &s.phases {
        if !meshes.contains(&p.mesh.as_str()) {
            meshes.push(&p.mesh);
        }
    }
    let most = s.phases.iter().map(|p| p.start_seconds + p.seconds.value).fold(1e-9, f64::max);
    let row = 46.0;
    let bottom = 14.0 + row * meshes.len() as f64;
    let scale = (W - LEFT - RIGHT) / most;
    let mut out = seconds_axis(most, 10.0, bottom);
    for (i, mesh) in meshes.iter().enumerate() {
        let y = 14.0 + row * i as f64;
        let devices = s.phases.iter().find(|p| p.mesh == *mesh).map_or(0, |p| p.devices);
        out += &text(12.0, y + 18.0, "", "start", mesh);
        out += &text(12.0, y + 33.0, "soft", "start", &format!("{devices} GPUs"));
        for p in s.phases.iter().filter(|p| p.mesh == *mesh) {
            let (x, w) = (LEFT + p.start_seconds * scale, p.seconds.value * scale);
            let share = percent(p.share);
            let title = format!("{}: {} ({share})", p.name, seconds(p.seconds.value));
            out += &rect([x, y + 6.0, w, row - 14.0], &p.kind, &title);
            let label = if p.name.len() + 1 < holds(w) { p.name.as_str() } else { p.kind.as_str() };
            if label.len() < holds(w) {
                out += &text(x + 6.0, y + 26.0, "on", "start", label);
            }
        }
    }
    svg(bottom + 26.0, "phases of a step", &out)
}

/// Forwards and backwards of the stages of a pipeline.
pub fn pipeline(p: &Pipeline) -> String {
    let most = p.tasks.iter().map(|t| t.end_seconds).fold(1e-9, f64::max);
    let row = if p.stages > 12 { 16.0 } else { 24.0 };
    let bottom = 12.0 + row * p.stages as f64;
    let scale = (W - LEFT - RIGHT) / most;
    let mut out = seconds_axis(most, 10.0, bottom);
    for stage in 0..p.stages {
        let y = 12.0 + row * stage as f64;
        out += &text(12.0, y + row * 0.68, "", "start", &format!("stage {stage}"));
    }
    let both = p.tasks.iter().any(|t| t.backward && t.end_seconds > t.start_seconds);
    for t in p.tasks.iter().filter(|t| t.end_seconds > t.start_seconds) {
        let y = 12.0 + row * t.stage as f64;
        let (x, w) = (LEFT + t.start_seconds * scale, (t.end_seconds - t.start_seconds) * scale);
        let class = if t.backward { "backward" } else { "forward" };
        let chunk = if p.chunks > 1 { format!(", chunk {}", t.chunk) } else { String::new() };
        let title = format!(
            "{class} of micro-batch {}{chunk}: {} to {}",
            t.micro_batch,
            seconds(t.start_seconds),
            seconds(t.end_seconds)
        );
        out += &rect([x + 0.3, y + 2.0, w - 0.6, row - 4.0], class, &title);
        let number = t.micro_batch.to_string();
        if number.len() < holds(w) && row > 20.0 {
            out += &text(x + w / 2.0, y + 16.5, "on", "middle", &number);
        }
    }
    let y = bottom + 38.0;
    let kinds = ["forward", "backward"];
    for (i, class) in kinds.iter().take(1 + usize::from(both)).enumerate() {
        let x = LEFT + 110.0 * i as f64;
        out += &rect([x, y - 10.0, 12.0, 12.0], class, class);
        out += &text(x + 18.0, y, "", "start", class);
    }
    out += &text(LEFT + 220.0, y, "soft", "start", "empty: the stage waits");
    svg(y + 12.0, "schedule of a pipeline", &out)
}

/// Terms of all stages, in the order they come in.
fn terms(r: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = vec![];
    for t in r.memory.stages.iter().flat_map(|s| &s.terms) {
        if !names.contains(&t.name.as_str()) {
            names.push(&t.name);
        }
    }
    names
}

/// What the fullest GPU of the meshes `on` holds while a step goes by, by term.
pub fn memory_over_time(r: &Report, s: &Step, on: &[&str]) -> String {
    let names = terms(r);
    let phases: Vec<&Phase> = s.phases.iter().filter(|p| on.contains(&p.mesh.as_str())).collect();
    let most = s.phases.iter().map(|p| p.start_seconds + p.seconds.value).fold(1e-9, f64::max);
    let stage = |p: &Phase| r.memory.stages.iter().find(|m| m.name == p.name && m.mesh == p.mesh);
    let all = || phases.iter().filter_map(|p| stage(p));
    let limit = all().map(|m| m.device_bytes).fold(0.0, f64::max);
    let high = all().map(|m| m.bytes).fold(limit, f64::max) * 1.08;
    if limit == 0.0 {
        return String::new();
    }
    let (top, bottom) = (14.0, 204.0);
    let scale = (W - LEFT - RIGHT) / most;
    let y = |b: f64| bottom - b / high * (bottom - top);
    let mut out = seconds_axis(most, top, bottom);
    out += &text(12.0, top + 14.0, "", "start", &on.join(", "));
    out += &text(12.0, top + 30.0, "soft", "start", "GiB");
    out += &text(LEFT - 8.0, y(limit) + 4.0, "soft", "end", &gib(limit));
    for p in phases.iter() {
        let Some(m) = stage(p) else { continue };
        let (x, w) = (LEFT + p.start_seconds * scale, p.seconds.value * scale);
        let mut sum = 0.0;
        for t in &m.terms {
            let class = names.iter().position(|n| *n == t.name).unwrap_or(0) % COLORS;
            let title = format!("{}, {}: {} GiB ({})", m.name, t.name, gib(t.bytes), t.how);
            let from = y(sum + t.bytes);
            out += &rect([x, from, w, y(sum) - from], &format!("t{class}"), &title);
            sum += t.bytes;
        }
        if holds(w) > 5 {
            out += &text(x + w / 2.0, y(sum) - 5.0, "", "middle", &gib(m.bytes));
        }
    }
    let line = y(limit);
    let end = W - RIGHT;
    let _ = writeln!(
        out,
        "<line x1=\"{LEFT}\" y1=\"{line:.1}\" x2=\"{end}\" y2=\"{line:.1}\" class=\"limit\"/>"
    );
    svg(bottom + 26.0, "memory over a step", &out)
}

/// Stages of a step beside each other, each a column of its terms.
pub fn memory(r: &Report) -> String {
    let names = terms(r);
    let stages = &r.memory.stages;
    let limit = stages.iter().map(|s| s.device_bytes).fold(0.0, f64::max);
    let most = stages.iter().map(|s| s.bytes).fold(limit, f64::max) * 1.05;
    let (top, height, left) = (14.0, 260.0, 60.0);
    let bottom = top + height;
    let right = W - 210.0;
    let y = |b: f64| bottom - b / most * height;
    let mut out = String::new();
    let gibi = 1_073_741_824.0;
    let step = tick(most / gibi, 6.0);
    let mut at = 0.0;
    while at * gibi <= most {
        let v = y(at * gibi);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{v:.1}\" x2=\"{right}\" y2=\"{v:.1}\" class=\"axis\"/>"
        );
        out += &text(left - 8.0, v + 4.0, "soft", "end", &format!("{at:.0}"));
        at += step;
    }
    out += &text(8.0, top + 2.0, "soft", "start", "GiB");
    let slot = (right - left) / stages.len().max(1) as f64;
    for (i, s) in stages.iter().enumerate() {
        let x = left + slot * i as f64;
        let w = slot * 0.86;
        let mut sum = 0.0;
        for t in &s.terms {
            let class = names.iter().position(|n| *n == t.name).unwrap_or(0) % COLORS;
            let title = format!("{}, {}: {} GiB ({})", s.name, t.name, gib(t.bytes), t.how);
            let from = y(sum + t.bytes);
            out += &rect([x + slot * 0.07, from, w, y(sum) - from], &format!("t{class}"), &title);
            sum += t.bytes;
        }
        let middle = x + slot / 2.0;
        out += &text(middle, y(sum) - 5.0, "", "middle", &gib(s.bytes));
        let shown =
            if s.name.len() < holds(slot) { s.name.clone() } else { short(&s.name, holds(slot)) };
        out += &text(middle, bottom + 17.0, "", "middle", &shown);
    }
    let line = y(limit);
    let _ = writeln!(
        out,
        "<line x1=\"{left}\" y1=\"{line:.1}\" x2=\"{right}\" y2=\"{line:.1}\" class=\"limit\"/>"
    );
    let said = format!("{} has {}", device(r), gib(limit));
    out += &text(left + 4.0, line - 5.0, "soft", "start", &said);
    for (i, name) in names.iter().enumerate() {
        let v = top + 14.0 + 19.0 * i as f64;
        out += &rect([right + 24.0, v - 10.0, 12.0, 12.0], &format!("t{}", i % COLORS), name);
        out += &text(right + 42.0, v, "", "start", name);
    }
    let legend = top + 14.0 + 19.0 * names.len() as f64;
    svg((bottom + 28.0).max(legend), "memory by stage and term", &out)
}

fn device(r: &Report) -> &str {
    r.memory.stages.first().map_or("", |s| s.device.as_str())
}

/// The first letters that fit.
fn short(name: &str, most: usize) -> String {
    let most = most.max(3);
    if name.chars().count() <= most {
        return name.to_string();
    }
    format!("{}.", name.chars().take(most - 1).collect::<String>())
}

/// FLOP/s over FLOPs per byte, both on scales of powers of ten.
pub fn roofline(r: &Report, c: &Cluster) -> String {
    let ops: Vec<&Operation> =
        r.operations.iter().filter(|o| o.flops > 0.0 && o.bytes > 0.0 && o.seconds > 0.0).collect();
    let (left, right, top, bottom) = (90.0, W - 30.0, 16.0, 330.0);
    let (x0, x1) = (0f64, 4f64);
    let peak = c.flops_per_second;
    let y1 = peak.log10().ceil();
    let y0 = y1 - 4.0;
    let x = |v: f64| left + (v.log10().clamp(x0, x1) - x0) / (x1 - x0) * (right - left);
    let y = |v: f64| bottom - (v.log10().clamp(y0, y1) - y0) / (y1 - y0) * (bottom - top);
    let mut out = String::new();
    for k in 0..=4 {
        let v = 10f64.powi(k);
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" y1=\"{top}\" x2=\"{0:.1}\" y2=\"{bottom}\" class=\"axis\"/>",
            x(v)
        );
        out += &text(x(v), bottom + 16.0, "soft", "middle", &format!("{v:.0}"));
        let v = 10f64.powf(y0 + f64::from(k));
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{0:.1}\" x2=\"{right}\" y2=\"{0:.1}\" class=\"axis\"/>",
            y(v)
        );
        out += &text(left - 8.0, y(v) + 4.0, "soft", "end", &format!("{}FLOP/s", flops(v)));
    }
    out += &text(right, bottom + 34.0, "soft", "end", "FLOPs per byte");
    let ridge = peak / c.memory_bytes_per_second;
    let start = c.memory_bytes_per_second * 10f64.powf(x0);
    let _ = writeln!(
        out,
        "<polyline class=\"roof\" points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\"/>",
        x(1.0),
        y(start),
        x(ridge),
        y(peak),
        right,
        y(peak)
    );
    out += &text(
        x(ridge) - 6.0,
        y(peak) - 6.0,
        "",
        "end",
        &format!("{} ridge at {ridge:.0}", c.device),
    );
    let longest = ops.iter().map(|o| o.seconds).fold(0.0, f64::max);
    let mut sorted = ops.clone();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    for o in sorted {
        let rate = o.flops * o.count / o.seconds;
        let radius = 3.0 + 17.0 * (o.seconds / longest.max(f64::MIN_POSITIVE)).sqrt();
        let class = if o.kind == "attention" { "score" } else { "update" };
        let title = format!(
            "{}, {} {}: {} of the step at {}FLOP/s, {} per run",
            o.phase,
            o.kind,
            o.shape,
            seconds(o.seconds),
            flops(rate),
            bytes(o.bytes)
        );
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" class=\"{class}\"><title>{}</title></circle>",
            x(o.flops / o.bytes),
            y(rate),
            escaped(&title)
        );
    }
    for (i, (class, name)) in [("update", "product"), ("score", "attention")].iter().enumerate() {
        let at = left + 110.0 * i as f64;
        out += &rect([at, bottom + 24.0, 12.0, 12.0], class, name);
        out += &text(at + 18.0, bottom + 34.0, "", "start", name);
    }
    svg(bottom + 46.0, "roofline", &out)
}

/// `989 T`.
fn flops(x: f64) -> String {
    count(x).replace('B', "G")
}

/// The steps of two plans below each other.
pub fn side_by_side(a: &Report, b: &Report) -> String {
    let of = |r: &Report| r.steps.iter().map(|s| s.seconds.value).sum::<f64>();
    let most = of(a).max(of(b)).max(1e-9);
    let scale = (W - LEFT - RIGHT) / most;
    let (row, bottom) = (40.0, 96.0);
    let mut out = seconds_axis(most, 10.0, bottom);
    for (i, (r, name)) in [(a, "this"), (b, "other")].iter().enumerate() {
        let y = 14.0 + row * i as f64;
        out += &text(12.0, y + 20.0, "", "start", name);
        let mut x = LEFT;
        for p in r.steps.iter().flat_map(|s| &s.phases) {
            let w = p.seconds.value * scale;
            let title = format!("{}: {}", p.name, seconds(p.seconds.value));
            out += &rect([x, y + 2.0, w, row - 10.0], &p.kind, &title);
            if p.kind.len() < holds(w) {
                out += &text(x + 6.0, y + 21.0, "on", "start", &p.kind);
            }
            x += w;
        }
    }
    svg(bottom + 26.0, "two plans", &out)
}
