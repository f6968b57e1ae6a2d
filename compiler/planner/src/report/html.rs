//! A report as one page for browsers.
//!
//! In: a [`Report`], and another to compare it with. Out: a page that needs no network and no script: the timeline of
//! the step, the schedule of pipelines, the streams of a layer, memory by stage and term, a roofline, collectives, all as SVG and tables.
//! The numbers are in it once more as the JSON of the report. Colors follow the browser's light or dark.

use std::fmt::Write;

use super::compare::Comparison;
use super::data::*;
use super::lanes::{self, brief};
use super::words::{
    bytes, count, device_hours, difference, gib, hours, percent, seconds, thousands,
};
use super::{picture, verdict};

/// The page; with `against` also what the two differ in.
pub fn page(r: &Report, against: Option<&Report>) -> String {
    let mut body = String::new();
    head(r, &mut body);
    for step in &r.steps {
        time(r, step, &mut body);
    }
    pipelines(r, &mut body);
    layers(r, &mut body);
    memory(r, &mut body);
    roofline(r, &mut body);
    collectives(r, &mut body);
    changes(r, &mut body);
    let compared = against.map(|b| Comparison::of(r, b));
    if let (Some(b), Some(c)) = (against, &compared) {
        comparison(r, b, c, &mut body);
    }
    assumptions(r, &mut body);
    let data = |id: &str, json: String| {
        // `<` cannot end the script early when it is written so.
        let json = json.replace('<', "\\u003c");
        format!("<script type=\"application/json\" id=\"{id}\">{json}</script>\n")
    };
    body += &data("plan", serde_json::to_string(r).unwrap_or_default());
    if let Some(c) = &compared {
        body += &data("comparison", serde_json::to_string(c).unwrap_or_default());
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{} - nrlc plan</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(&r.recipe)
    )
}

const STYLE: &str = include_str!("page.css");

/// Text that stands in a page.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

fn head(r: &Report, out: &mut String) {
    let _ = write!(out, "<header><h1>{}</h1>", escaped(&r.recipe));
    let whole = r.clusters.iter().filter(|c| c.pool_of.is_none());
    let machines: Vec<String> =
        whole.map(|c| format!("{} x {}", thousands(c.devices as f64), c.device)).collect();
    let models = r.models.iter().filter(|m| !m.frozen).map(|m| {
        format!(
            "{} ({} parameters)",
            m.checkpoint.as_deref().unwrap_or(&m.family),
            count(m.parameters)
        )
    });
    let models: Vec<String> = models.collect();
    let _ = writeln!(
        out,
        "<p class=\"sub\">{} &middot; {} &middot; {}</p></header>",
        escaped(&models.join(", ")),
        escaped(&machines.join(", ")),
        escaped(&r.file)
    );
    if r.steps.is_empty() {
        return;
    }
    let mut tiles = vec![];
    for s in &r.steps {
        let of = if r.steps.len() < 2 { "step".to_string() } else { format!("step of {}", s.name) };
        tiles.push((
            of,
            seconds(s.seconds.value),
            format!("{} to {}", seconds(s.seconds.low), seconds(s.seconds.high)),
            Some(("step", s.seconds.value)),
        ));
    }
    let run = &r.run;
    tiles.push((
        "run".into(),
        hours(run.seconds.value),
        format!(
            "{} steps, {} GPU-hours",
            thousands(run.steps as f64),
            device_hours(run.device_hours)
        ),
        Some(("run", run.seconds.value)),
    ));
    if let Some(s) = r.memory.tightest.and_then(|i| r.memory.stages.get(i)) {
        let word = if r.memory.fits { "left" } else { "over" };
        tiles.push((
            "memory".into(),
            format!("{} GiB {word}", gib(s.margin_bytes.abs())),
            format!("{}: {} of {}", s.name, gib(s.bytes), gib(s.device_bytes)),
            Some(("margin", s.margin_bytes)),
        ));
    }
    if let Some(s) = r.steps.first() {
        tiles.push((
            "MFU".into(),
            percent(s.mfu),
            format!("{} tokens/s/GPU", thousands(s.tokens_per_second_per_device)),
            Some(("mfu", s.mfu)),
        ));
    }
    *out += "<section class=\"tiles\">\n";
    for (name, value, note, data) in tiles {
        let data =
            data.map_or(String::new(), |(k, v)| format!(" data-key=\"{k}\" data-value=\"{v}\""));
        let _ = writeln!(
            out,
            "<div class=\"tile\"><span>{}</span><b{data}>{}</b><small>{}</small></div>",
            escaped(&name),
            escaped(&value),
            escaped(&note)
        );
    }
    *out += "</section>\n";
    let class = if r.memory.fits { "good" } else { "bad" };
    let said = verdict(r);
    if !said.is_empty() {
        let word = if r.memory.fits { "Fits: " } else { "" };
        let _ = writeln!(out, "<p class=\"verdict {class}\">{word}{}</p>", escaped(&said));
    }
}

fn section(title: &str, note: &str, out: &mut String) {
    let _ = writeln!(out, "<h2>{}</h2>", escaped(title));
    if !note.is_empty() {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(note));
    }
}

fn time(r: &Report, s: &Step, out: &mut String) {
    let of = if r.steps.len() < 2 { String::new() } else { format!(" of {}", s.name) };
    let note = format!(
        "{} samples, {} tokens; padding {}, bubble {} of updates. Each row is a mesh: all its GPUs do the same.",
        thousands(s.samples),
        count(s.tokens),
        percent(s.padding),
        percent(s.bubble)
    );
    section(&format!("A step{of}"), &note, out);
    *out += &picture::timeline(s);
    *out += "<div class=\"wide\"><table><thead><tr><th>phase<th>seconds<th>interval<th>share<th>MFU<th class=\"text\">spent on<th>source</tr></thead><tbody>\n";
    for p in &s.phases {
        let parts: Vec<String> =
            p.parts.iter().map(|x| format!("{} {}", x.name, seconds(x.seconds))).collect();
        let _ = writeln!(
            out,
            "<tr><td>{}<td data-key=\"phase\" data-name=\"{}\" data-value=\"{}\">{}<td>{} to {}<td>{}<td>{}<td class=\"text\">{}<td class=\"{}\">{}</tr>",
            escaped(&p.name),
            escaped(&p.name),
            p.seconds.value,
            seconds(p.seconds.value),
            seconds(p.seconds.low),
            seconds(p.seconds.high),
            percent(p.share),
            p.mfu.map_or("-".into(), percent),
            escaped(&parts.join(", ")),
            escaped(&p.seconds.source),
            escaped(&p.seconds.word())
        );
    }
    for e in &s.every {
        let share = e.per_step_seconds.value / s.average_seconds.value.max(f64::MIN_POSITIVE);
        let _ = writeln!(
            out,
            "<tr><td>{}<td data-key=\"every\" data-name=\"{}\" data-value=\"{}\">{}<td>{} to {}<td>{}<td>-<td class=\"text\">every {} steps: {} of each in the mean<td class=\"{}\">{}</tr>",
            escaped(&e.name),
            escaped(&e.name),
            e.seconds.value,
            seconds(e.seconds.value),
            seconds(e.seconds.low),
            seconds(e.seconds.high),
            percent(share),
            e.period,
            seconds(e.per_step_seconds.value),
            escaped(&e.seconds.source),
            escaped(&e.seconds.word())
        );
    }
    *out += "</tbody></table></div>\n";
}

fn pipelines(r: &Report, out: &mut String) {
    for p in &r.pipelines {
        let more = match p.drawn < p.micro_batches {
            true => format!(", the first {} drawn", p.drawn),
            false => String::new(),
        };
        let note = format!(
            "{} stages, {} chunk{} each, {} micro-batches{more}; {} per update, stages wait {} of it.",
            p.stages,
            p.chunks,
            if p.chunks == 1 { "" } else { "s" },
            p.micro_batches,
            seconds(p.seconds),
            percent(p.bubble)
        );
        section(&format!("Pipeline of {}", p.phase), &note, out);
        *out += &picture::pipeline(p);
    }
}

fn layers(r: &Report, out: &mut String) {
    if r.layers.is_empty() {
        return;
    }
    let note = "One layer for one micro-batch on one rank, in the midst of the others. Seconds of collectives are those that nothing hides.";
    section("Streams of a layer", note, out);
    for l in &r.layers {
        let way = if l.backward { "backward" } else { "forward" };
        let parts: Vec<String> =
            l.parts.iter().map(|x| format!("{} {}", x.name, brief(x.seconds))).collect();
        let _ = writeln!(
            out,
            "<p class=\"note\"><b>{}, {way}</b>: <span data-key=\"layer\" data-name=\"{}, {way}\" data-value=\"{}\">{}</span> for one of {} layers: {}.</p>",
            escaped(&l.phase),
            escaped(&l.phase),
            l.seconds,
            brief(l.seconds),
            l.layers,
            escaped(&parts.join(", "))
        );
        *out += &lanes::picture(l);
    }
}

/// Meshes whose phases take turns on the same GPUs; those that run beside each other stand alone.
fn apart(s: &Step) -> Vec<Vec<&str>> {
    let mut meshes: Vec<&str> = vec![];
    for p in &s.phases {
        if !meshes.contains(&p.mesh.as_str()) {
            meshes.push(&p.mesh);
        }
    }
    let end = |p: &Phase| p.start_seconds + p.seconds.value;
    let apart = s.phases.windows(2).all(|w| w[1].start_seconds + 1e-9 >= end(&w[0]));
    if apart { vec![meshes] } else { meshes.into_iter().map(|m| vec![m]).collect() }
}

fn memory(r: &Report, out: &mut String) {
    if r.memory.stages.is_empty() {
        return;
    }
    let note = "Over the step, then stage by stage with its terms; the dashed line is what the device has.";
    section("Memory of the fullest GPU", note, out);
    for step in &r.steps {
        for on in apart(step) {
            *out += &picture::memory_over_time(r, step, &on);
        }
    }
    *out += &picture::memory(r);
    *out += "<div class=\"wide\"><table><thead><tr><th>stage<th>term<th>GiB<th class=\"text\">how</tr></thead><tbody>\n";
    for s in &r.memory.stages {
        for (i, t) in s.terms.iter().enumerate() {
            let when = s.when();
            let name = match (i, when.is_empty()) {
                (0, true) => escaped(&s.name),
                (0, false) => format!("{} <small>{}</small>", escaped(&s.name), escaped(&when)),
                _ => String::new(),
            };
            let _ = writeln!(
                out,
                "<tr><td>{name}<td>{}<td data-key=\"term\" data-name=\"{}: {}\" data-value=\"{}\">{}<td class=\"text\">{}</tr>",
                escaped(&t.name),
                escaped(&s.name),
                escaped(&t.name),
                t.bytes,
                gib(t.bytes),
                escaped(&t.how)
            );
        }
        let _ = writeln!(
            out,
            "<tr class=\"sum\"><td><td>sum<td>{}<td class=\"text\">{}, {} GiB left</tr>",
            gib(s.bytes),
            percent(s.share),
            gib(s.margin_bytes)
        );
    }
    *out += "</tbody></table></div>
";
    for h in &r.memory.hosts {
        let _ = writeln!(
            out,
            "<p class=\"note\" data-key=\"host\" data-value=\"{}\">Hosts, {}.</p>",
            h.bytes,
            escaped(&super::screen::host(h))
        );
    }
}

fn roofline(r: &Report, out: &mut String) {
    let Some(c) = r.clusters.iter().find(|c| c.flops_per_second > 0.0) else { return };
    if r.operations.iter().all(|o| o.flops == 0.0) {
        return;
    }
    let note = format!(
        "Operations of all passes by FLOPs per byte; the roof is {} of {}: {}FLOP/s, {}/s. The larger a circle, the more seconds of the step.",
        "one device",
        c.device,
        count(c.flops_per_second),
        bytes(c.memory_bytes_per_second)
    );
    section("Roofline", &note, out);
    *out += &picture::roofline(r, c);
    *out += "<details><summary>Operations</summary><div class=\"wide\"><table><thead><tr><th>phase<th>operation<th class=\"text\">shape<th>runs<th>FLOP<th>bytes<th>seconds</tr></thead><tbody>\n";
    for o in &r.operations {
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{}<td class=\"text\">{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(&o.phase),
            o.kind,
            escaped(&o.shape),
            count(o.count),
            count(o.flops),
            bytes(o.bytes),
            seconds(o.seconds)
        );
    }
    *out += "</tbody></table></div></details>\n";
}

fn collectives(r: &Report, out: &mut String) {
    if r.collectives.is_empty() {
        return;
    }
    section("Collectives", "Per step on one rank; what computation hides is not taken off.", out);
    *out += "<div class=\"wide\"><table><thead><tr><th>phase<th>collective<th>axes<th>ranks<th>link<th>calls<th>each<th>seconds</tr></thead><tbody>\n";
    for c in &r.collectives {
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td data-key=\"collective\" data-value=\"{}\">{}</tr>",
            escaped(&c.phase),
            c.kind,
            escaped(&c.axes.join(", ")),
            c.ranks,
            c.link,
            thousands(c.calls),
            bytes(c.bytes_per_call),
            c.seconds,
            seconds(c.seconds)
        );
    }
    *out += "</tbody></table></div>\n";
}

fn changes(r: &Report, out: &mut String) {
    if r.changes.is_empty() {
        return;
    }
    section("If you change", "Each line was compiled and forecast.", out);
    *out += "<div class=\"wide\"><table><thead><tr><th class=\"text\">change<th>step<th class=\"text\">memory, GiB<th>fits<th class=\"text\">same mathematics?</tr></thead><tbody>\n";
    for c in &r.changes {
        let memory = c.memory.first().map_or("-".to_string(), |m| {
            format!("{} {} to {}", m.stage, gib(m.before_bytes), gib(m.after_bytes))
        });
        let same = if c.same_mathematics { "yes" } else { "no" };
        let why = if c.why.is_empty() { String::new() } else { format!(": {}", c.why) };
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}<td>{}<td class=\"text\">{}<td>{}<td class=\"text\">{same}{}</tr>",
            escaped(&c.change),
            difference(c.seconds_difference),
            escaped(&memory),
            if c.fits { "yes" } else { "no" },
            escaped(&why)
        );
    }
    *out += "</tbody></table></div>\n";
}

fn comparison(a: &Report, b: &Report, c: &Comparison, out: &mut String) {
    section(
        &format!("Against {}", b.file),
        "Both plans; what does not differ is left out. The first is this one.",
        out,
    );
    *out += &picture::side_by_side(a, b);
    *out += "<div class=\"wide\"><table><thead><tr><th>of<th class=\"text\">what<th>this<th>other<th>difference</tr></thead><tbody>\n";
    for row in c.rows.iter().filter(|r| r.matters()) {
        let (left, right, difference) = row.cells();
        let _ = writeln!(
            out,
            "<tr><td>{}<td class=\"text\">{}<td>{left}<td>{right}<td data-key=\"difference\" data-name=\"{} {}\" data-value=\"{}\">{difference}</tr>",
            row.of,
            escaped(&row.name),
            row.of,
            escaped(&row.name),
            row.difference
        );
    }
    *out += "</tbody></table></div>\n";
}

fn assumptions(r: &Report, out: &mut String) {
    section("Assumed", "", out);
    *out += "<div class=\"wide\"><table><thead><tr><th class=\"text\">what<th>value<th>source<th class=\"text\">to replace it</tr></thead><tbody>\n";
    for a in &r.assumptions {
        let _ = writeln!(
            out,
            "<tr><td>{}<td class=\"text\">{}<td class=\"{}\">{}<td class=\"text\">{}</tr>",
            escaped(&a.what),
            escaped(&a.value),
            a.source,
            if a.source == "guess" { "GUESS" } else { &a.source },
            escaped(&a.help)
        );
    }
    *out += "</tbody></table></div>\n";
    for said in &r.settings {
        let _ = writeln!(out, "<p class=\"note\">{}.</p>", escaped(said));
    }
    if !r.not_modelled.is_empty() {
        let _ = writeln!(
            out,
            "<p class=\"note\">Not modelled: {}.</p>",
            escaped(&r.not_modelled.join("; "))
        );
    }
}
