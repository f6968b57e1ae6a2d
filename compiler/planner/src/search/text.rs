//! What a search found, as text.

use std::fmt::Write;

use super::exact::Line;
use super::{Found, Goal};
use crate::report::words;

const WIDTH: usize = 100;

impl Found {
    /// The table, the front and the lines to paste.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let c = &self.counts;
        let gib = words::gib(self.memory);
        let _ = writeln!(
            out,
            "search {}   {} {} of {gib} GiB, for {}",
            self.recipe,
            self.devices,
            self.device,
            match self.goal {
                Goal::Time => "the shortest step",
                Goal::Memory => "the least memory",
            }
        );
        let _ = writeln!(
            out,
            "{} layouts are legal, made from {} plans; {} fit and were timed",
            words::thousands(c.legal as f64),
            words::thousands(c.compiled as f64),
            words::thousands(c.fit as f64)
        );
        if !self.pinned.is_empty() {
            let _ = writeln!(out, "pinned: {}", self.pinned.join(", "));
        }
        let mut left: Vec<(&String, &usize)> = c.left_out.iter().collect();
        left.sort_by_key(|(why, n)| (std::cmp::Reverse(**n), (*why).clone()));
        for (why, n) in left {
            let _ = writeln!(out, "  left out {:>8}  {why}", words::thousands(*n as f64));
        }
        out += "\n";
        let width = self.shown().map(|l| l.name.chars().count()).max().unwrap_or(0).min(WIDTH / 2);
        let _ = writeln!(
            out,
            "      {:<width$}   {:>8}  {:>6}  {:>9}  {:<34}  same maths",
            "layout", "step", "change", "memory", "what dominates"
        );
        self.line(&mut out, "now", &self.current, width);
        for (i, l) in self.ranked.iter().enumerate() {
            self.line(&mut out, &format!("{}", i + 1), l, width);
        }
        if self.ranked.is_empty() {
            out += "\nno layout fits: more nodes, a shorter context, or a smaller model\n";
            return out;
        }
        out += "\nfront of time and memory\n";
        for l in &self.front {
            self.line(&mut out, "", l, width);
        }
        out + &self.paste()
    }

    fn shown(&self) -> impl Iterator<Item = &Line> {
        std::iter::once(&self.current).chain(&self.ranked).chain(&self.front)
    }

    fn line(&self, out: &mut String, mark: &str, l: &Line, width: usize) {
        let change = 100.0 * (l.seconds / self.current.seconds - 1.0);
        let change = if change.abs() < 0.05 { "".into() } else { format!("{change:+.0} %") };
        let what = format!("{} {:.0} %", l.dominates, 100.0 * l.share);
        let maths = match (l.fits, l.same_maths) {
            (false, _) => "does not fit",
            (_, true) => "yes",
            (_, false) => "NO",
        };
        let _ = writeln!(
            out,
            "{mark:>4}  {:<width$}   {:>8}  {change:>6}  {:>5} GiB  {what:<34}  {maths}",
            l.name,
            words::seconds(l.seconds),
            words::gib(l.bytes),
        );
    }

    /// Lines of the best layout.
    fn paste(&self) -> String {
        if self.new_lines.is_empty() {
            return "\nthe recipe has the best layout already\n".into();
        }
        format!("\nlines of the best\n{}\n", self.new_lines.join("\n"))
    }

    /// What changes in the recipe, line by line.
    pub fn diff(&self) -> String {
        let old = self.old_lines.iter().map(|l| format!("-{l}\n"));
        let new = self.new_lines.iter().map(|l| format!("+{l}\n"));
        old.chain(new).collect()
    }
}
