//! Plots of a series as text.
//!
//! In: numbers in their order; those that are not finite leave a gap. Out: a sparkline of one row, or a plot of braille
//! dots with axes. Series longer than the plot are averaged in equal stretches, shorter ones are joined by lines.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A row of at most `width` bars from the smallest to the largest value; gaps are blank.
pub fn sparkline(values: &[f64], width: usize) -> String {
    let values = resample(values, width.min(values.len()));
    let Some((low, high)) = range(&values) else { return " ".repeat(values.len()) };
    let bar = |v: &f64| {
        if !v.is_finite() {
            ' '
        } else if high > low {
            BARS[(((v - low) / (high - low)) * 7.0).round() as usize]
        } else {
            BARS[3]
        }
    };
    values.iter().map(bar).collect()
}

/// What a plot shows.
#[derive(Clone, Debug)]
pub struct Plot<'a> {
    pub title: &'a str,
    /// Values at steps `first..`.
    pub values: &'a [f64],
    pub first: u64,
    /// Columns and rows of the drawing, without the axes.
    pub width: usize,
    pub height: usize,
}

impl Plot<'_> {
    /// The plot as lines, each ended by a newline. Nothing to draw is said in words.
    pub fn draw(&self) -> String {
        let (width, height) = (self.width.max(8), self.height.max(2));
        let Some((low, high)) = range(self.values) else {
            return format!("{}: no values yet\n", self.title);
        };
        let (low, high) = if high > low { (low, high) } else { (low - 0.5, high + 0.5) };
        let mut dots = Dots { width, height, cells: vec![0; width * height] };
        dots.line(&resample(self.values, (2 * width).min(self.values.len())), low, high);
        let labels: Vec<String> = (0..height)
            .map(|row| match row {
                0 => label(high, high - low),
                r if r == height - 1 => label(low, high - low),
                r if r == height / 2 => {
                    label(high - (high - low) * r as f64 / (height - 1) as f64, high - low)
                }
                _ => String::new(),
            })
            .collect();
        let margin = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        let mut out = format!("{:margin$} {}\n", "", self.title);
        for (row, text) in labels.iter().enumerate() {
            let tick = if text.is_empty() { '│' } else { '┤' };
            out += &format!("{text:>margin$} {tick}{}\n", dots.row(row));
        }
        out += &format!("{:margin$} └{}\n", "", "─".repeat(width));
        let (left, right) =
            (self.first.to_string(), (self.first + self.values.len() as u64 - 1).to_string());
        let gap = width.saturating_sub(left.len() + right.len());
        out += &format!("{:margin$}  {left}{}{right}\n", "", " ".repeat(gap.max(1)));
        out
    }
}

/// Braille cells of two by four dots.
struct Dots {
    width: usize,
    height: usize,
    cells: Vec<u8>,
}

impl Dots {
    /// Draws a series over the whole width and joins neighbours.
    fn line(&mut self, values: &[f64], low: f64, high: f64) {
        let (columns, rows) = (2 * self.width - 1, 4 * self.height - 1);
        let span = values.len().saturating_sub(1).max(1) as f64;
        let place = |i: usize, v: f64| {
            let x = i as f64 / span * columns as f64;
            (x, (1.0 - (v - low) / (high - low)) * rows as f64)
        };
        let mut last: Option<(f64, f64)> = None;
        for (i, &v) in values.iter().enumerate() {
            if !v.is_finite() {
                last = None;
                continue;
            }
            let (x, y) = place(i, v);
            let (from_x, from_y) = last.unwrap_or((x, y));
            let steps = (x - from_x).abs().max((y - from_y).abs()).ceil().max(1.0);
            for s in 0..=steps as usize {
                let t = s as f64 / steps;
                self.set(
                    (from_x + (x - from_x) * t).round() as usize,
                    (from_y + (y - from_y) * t).round() as usize,
                );
            }
            last = Some((x, y));
        }
    }

    fn set(&mut self, x: usize, y: usize) {
        const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
        self.cells[y / 4 * self.width + x / 2] |= BITS[x % 2][y % 4];
    }

    fn row(&self, row: usize) -> String {
        let cells = &self.cells[row * self.width..(row + 1) * self.width];
        let shown = |&c: &u8| {
            if c == 0 { ' ' } else { char::from_u32(0x2800 + u32::from(c)).unwrap_or(' ') }
        };
        let text: String = cells.iter().map(shown).collect();
        text.trim_end().into()
    }
}

/// A number with as many decimals as tell the axis's marks apart.
fn label(value: f64, span: f64) -> String {
    let value = if value.abs() < span * 1e-9 { 0.0 } else { value };
    if value.abs() >= 1e6 || span < 1e-4 {
        return format!("{value:.1e}");
    }
    let decimals = (1.0 - span.log10().floor()).clamp(0.0, 5.0) as usize;
    format!("{value:.decimals$}")
}

fn range(values: &[f64]) -> Option<(f64, f64)> {
    let finite = values.iter().copied().filter(|v| v.is_finite());
    finite.fold(None, |r, v| Some(r.map_or((v, v), |(a, b): (f64, f64)| (a.min(v), b.max(v)))))
}

/// Means of `n` equal stretches; a stretch without finite values is NaN.
fn resample(values: &[f64], n: usize) -> Vec<f64> {
    let stretch = |i: usize| {
        let part = &values[i * values.len() / n..(i + 1) * values.len() / n];
        let finite: Vec<f64> = part.iter().copied().filter(|v| v.is_finite()).collect();
        finite.iter().sum::<f64>() / finite.len() as f64
    };
    (0..n).map(stretch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_span_the_range_and_show_gaps() {
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 7.0], 10), "▁▂▃█");
        assert_eq!(sparkline(&[0.0, f64::NAN, 1.0], 10), "▁ █");
        assert_eq!(sparkline(&[3.0; 4], 10), "▄▄▄▄");
        assert_eq!(sparkline(&[0.0, 2.0, 6.0, 8.0], 2), "▁█");
        assert_eq!(sparkline(&[], 10), "");
        assert_eq!(sparkline(&[f64::NAN; 3], 10), "   ");
    }

    #[test]
    fn a_plot_has_axes_and_a_joined_line() {
        let values: Vec<f64> = (0..=15).map(f64::from).collect();
        let plot = Plot { title: "reward", values: &values, first: 1, width: 8, height: 4 }.draw();
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[0], "   reward");
        assert!(lines[1].starts_with("15 ┤") && lines[4].starts_with(" 0 ┤"), "{plot}");
        assert!(lines[2].starts_with("   │"), "{plot}");
        assert_eq!(lines[5], "   └────────");
        assert_eq!(lines[6], "    1     16");
        // A rising line: each row of cells holds a quarter of it, from the lower left; a join may touch one cell more.
        let cells = |line: &str| line.chars().skip(4).filter(|c| *c != ' ').count();
        assert!(
            [1, 2, 3, 4].map(|i| cells(lines[i])).iter().all(|n| (2..=3).contains(n)),
            "{plot}"
        );
        assert!(lines[4].chars().nth(4).is_some_and(|c| c != ' '), "{plot}");
    }

    #[test]
    fn flat_empty_and_broken_series_can_be_drawn() {
        let draw =
            |values: &[f64]| Plot { title: "x", values, first: 0, width: 10, height: 3 }.draw();
        assert_eq!(draw(&[]), "x: no values yet\n");
        assert_eq!(draw(&[f64::NAN]), "x: no values yet\n");
        assert!(draw(&[2.0; 5]).contains("2.5") && draw(&[2.0]).contains("1.5"));
        let gap = draw(&[0.0, 0.0, f64::INFINITY, 1.0, 1.0]);
        assert!(
            !gap.lines().nth(2).unwrap().contains(|c: char| ('\u{2801}'..='\u{28ff}').contains(&c)),
            "{gap}"
        );
    }

    #[test]
    fn labels_tell_marks_apart() {
        assert_eq!(label(0.5, 1.0), "0.5");
        assert_eq!(label(0.123, 0.01), "0.123");
        assert_eq!(label(1500.0, 1000.0), "1500");
        assert_eq!(label(1e7, 1e7), "1.0e7");
        assert_eq!(label(2e-6, 1e-5), "2.0e-6");
    }
}
