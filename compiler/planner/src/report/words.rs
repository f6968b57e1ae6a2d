//! Numbers as reports write them.

const GIB: f64 = 1_073_741_824.0;

/// GiB with one decimal: `71.1`.
pub fn gib(x: f64) -> String {
    format!("{:.1}", x / GIB)
}

/// `1,307` of 1307.2.
pub fn thousands(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    if x < 0.0 && out != "0" { format!("-{out}") } else { out }
}

/// Hours of devices: `1,307`, `3.4`, `0.08`.
pub fn device_hours(x: f64) -> String {
    match x {
        x if x >= 9.95 => thousands(x),
        x if x >= 0.095 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// `147 s`, `3.4 s`, `20 ms`.
pub fn seconds(x: f64) -> String {
    match x.abs() {
        0.0 => "0 s".into(),
        a if a < 0.0995 => format!("{:.0} ms", x * 1e3),
        a if a < 9.95 => format!("{x:.1} s"),
        _ => format!("{} s", thousands(x)),
    }
}

/// `+12 s`, `-0.4 s`, `~0 s`.
pub fn difference(x: f64) -> String {
    match x.abs() < 0.005 {
        true => "~0 s".into(),
        false if x > 0.0 => format!("+{}", seconds(x)),
        false => seconds(x),
    }
}

/// `20.4 h`, `35 min`.
pub fn hours(x: f64) -> String {
    match x / 3600.0 {
        h if h >= 1000.0 => format!("{} h", thousands(h)),
        h if h >= 1.0 => format!("{h:.1} h"),
        h if h >= 1.0 / 60.0 => format!("{:.0} min", h * 60.0),
        _ => seconds(x),
    }
}

/// `70.6 B`, `8.03 B`, `494 M`: counts of parameters and tokens, FLOPs.
pub fn count(x: f64) -> String {
    for (unit, scale) in [("P", 1e15), ("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)] {
        if x >= scale {
            return three(x / scale, unit);
        }
    }
    format!("{x:.0}")
}

/// `988 GB`, `4.0 TB`: what disks and wires count in.
pub fn bytes(x: f64) -> String {
    for (unit, scale) in [("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)] {
        if x >= scale {
            return three(x / scale, unit);
        }
    }
    format!("{x:.0} B")
}

/// Three digits that count.
fn three(x: f64, unit: &str) -> String {
    match x {
        x if x < 9.995 => format!("{x:.2} {unit}"),
        x if x < 99.95 => format!("{x:.1} {unit}"),
        _ => format!("{x:.0} {unit}"),
    }
}

/// `57 %`.
pub fn percent(share: f64) -> String {
    match share.abs() {
        a if a > 0.0 && a < 0.00995 => format!("{:.1} %", 100.0 * share),
        _ => format!("{:.0} %", 100.0 * share),
    }
}

/// `dp 4  tp 2`; axes of one rank are left out unless all are.
pub fn axes(axes: &[super::data::Axis]) -> String {
    let live = |all: bool| {
        let kept = axes.iter().filter(|a| all || a.size > 1);
        kept.map(|a| format!("{} {}", a.name, a.size)).collect::<Vec<_>>().join("  ")
    };
    let shown = live(false);
    if shown.is_empty() { live(true) } else { shown }
}

/// Lines of at most `width` characters, broken at blanks.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |l| l.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(word.to_string());
        } else if let Some(line) = lines.last_mut() {
            if last > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.iter().map(|l| l.trim_end().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(-0.2), "0");
        assert_eq!([1307.2, 3.44, 0.081].map(device_hours), ["1,307", "3.4", "0.08"]);
        assert_eq!([seconds(0.02), seconds(3.44), seconds(147.3)], ["20 ms", "3.4 s", "147 s"]);
        assert_eq!(
            [difference(-31.0), difference(0.4), difference(1e-4)],
            ["-31 s", "+0.4 s", "~0 s"]
        );
        assert_eq!([hours(73_440.0), hours(2100.0)], ["20.4 h", "35 min"]);
        assert_eq!([count(70.6e9), count(8.03e9), count(494e6)], ["70.6 B", "8.03 B", "494 M"]);
        assert_eq!([bytes(988e9), bytes(3.95e12)], ["988 GB", "3.95 TB"]);
        assert_eq!([percent(0.57), percent(0.004), percent(0.0)], ["57 %", "0.4 %", "0 %"]);
        assert_eq!(wrapped("a bb ccc", 4), ["a bb", "ccc"]);
    }
}
