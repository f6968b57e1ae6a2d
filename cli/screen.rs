//! What a run looks like: progress while it lasts, a summary at its end.
//!
//! On a terminal two lines are kept up to date; in a pipe a plain line comes every few seconds, so that logs stay short.
//! The summary is text, so that tests can read it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nrl_runtime::metrics::plot::{Plot, sparkline};
use nrl_runtime::run::watch::{Event, Shown, StepReport, Summary, Watch};

/// Seconds between lines in a pipe.
const EVERY: Duration = Duration::from_secs(5);
/// Bars of the sparkline.
const BARS: usize = 32;

/// Shows a run as it happens.
pub struct Screen {
    quiet: bool,
    name: String,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
    rewards: Vec<f64>,
    losses: Vec<f64>,
    /// When this phase started here, and its steps since.
    phase: (Instant, usize),
}

impl Screen {
    pub fn new(quiet: bool, name: &str) -> Screen {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) =
                ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len}  {elapsed} {msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        let (rewards, losses) = (vec![], vec![]);
        Screen {
            quiet,
            name: name.into(),
            bar,
            last_line: None,
            rewards,
            losses,
            phase: (Instant::now(), 0),
        }
    }

    /// Clears the live lines.
    pub fn close(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    fn step(&mut self, report: &StepReport) {
        self.rewards.extend(report.numbers.get("reward/mean"));
        self.losses.extend(report.numbers.get("loss"));
        let left = self.left(report);
        let text = match self.rewards.is_empty() {
            true => status(report, ("loss", &self.losses), left),
            false => status(report, ("reward", &self.rewards), left),
        };
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(report.phase.clone());
                bar.set_length(report.of_phase as u64);
                bar.set_position(report.in_phase as u64);
                bar.set_message(format!("\n  {text}"));
            }
            None => {
                let due = self.last_line.is_none_or(|t| t.elapsed() >= EVERY)
                    || report.in_phase == report.of_phase;
                if due {
                    eprintln!("{} {}/{}  {text}", report.phase, report.in_phase, report.of_phase);
                    self.last_line = Some(Instant::now());
                }
            }
        }
    }

    /// Seconds that the rest of the phase will take at its mean pace so far.
    fn left(&self, report: &StepReport) -> Option<f64> {
        let (start, seen) = self.phase;
        let each = start.elapsed().as_secs_f64() / seen.max(1) as f64;
        (seen > 1).then(|| each * (report.of_phase - report.in_phase) as f64)
    }
}

impl Watch for Screen {
    fn event(&mut self, event: Event) {
        if self.quiet {
            return;
        }
        match event {
            Event::Started { dir, ranks, parameters, resumed, steps } => {
                let of = format!(
                    "{:.2} M parameters, {ranks} rank{}",
                    parameters as f64 / 1e6,
                    plural(ranks)
                );
                let from = resumed.map_or(String::new(), |s| format!(", from step {s}"));
                self.line(&format!(
                    "{}: {of}, {steps} steps{from}; files in {}",
                    self.name,
                    dir.display()
                ));
            }
            Event::Note(text) => self.line(&format!("note: {text}")),
            Event::Phase { name, steps } => {
                self.phase = (Instant::now(), 0);
                if let Some(bar) = &self.bar {
                    bar.set_prefix(name.to_string());
                    bar.set_length(steps as u64);
                    bar.set_position(0);
                }
                self.last_line = None;
            }
            Event::Step(report) => {
                self.phase.1 += 1;
                self.step(report);
            }
            Event::Evaluated { name, numbers } => self.line(&evaluated(name, numbers)),
            Event::Saved { path } => {
                if self.bar.is_none() {
                    self.line(&format!("saved {}", path.display()));
                }
            }
        }
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// `reward ▁▂▅ 0.42  gap 3e-7  zero spread 12 %  8,120 tokens/s  14 s left`.
fn status(report: &StepReport, (name, series): (&str, &[f64]), left: Option<f64>) -> String {
    let mut out = String::new();
    let number = |key: &str| report.numbers.get(key).copied();
    if let Some(last) = series.last() {
        let from = series.len().saturating_sub(4 * BARS);
        write!(out, "{name} {} {last:.3}", sparkline(&series[from..], BARS)).ok();
    }
    if let Some(gap) = number("logprob_gap/max") {
        write!(out, "  log-prob gap {gap:.0e}").ok();
    }
    if let Some(share) = number("reward/zero_spread_share") {
        write!(out, "  zero spread {:.0} %", 100.0 * share).ok();
    }
    if let Some(speed) = number("tokens_per_second") {
        write!(out, "  {} tokens/s", thousands(speed)).ok();
    }
    if let Some(left) = left.filter(|s| *s >= 0.5) {
        write!(out, "  {} left", duration(left)).ok();
    }
    out
}

fn evaluated(name: &str, numbers: &BTreeMap<String, f64>) -> String {
    let of = |key: &str| numbers.get(key).copied().unwrap_or(f64::NAN);
    let (accuracy, reward) = (100.0 * of("accuracy"), of("reward"));
    format!("{name}: accuracy {accuracy:.1} %, reward {reward:.3}, {:.0} samples", of("samples"))
}

/// The end of a run as text; `go_on` is the command that goes on with it.
pub fn summary(name: &str, s: &Summary, go_on: &str) -> String {
    let mut out = String::new();
    writeln!(out, "\n{name}: {} steps in {}", s.steps, duration(s.seconds)).ok();
    if s.rewards.iter().filter(|r| r.is_finite()).count() > 1 {
        let title = "mean reward of each step, as sampled";
        out += &Plot { title, values: &s.rewards, first: 1, width: 60, height: 10 }.draw();
    }
    out += &samples(&s.before, &s.now);
    for (key, last) in &s.last_eval {
        if key.ends_with(".accuracy") || key.ends_with(".reward") {
            match s.first_eval.get(key).filter(|_| s.first_eval != s.last_eval) {
                Some(first) => writeln!(out, "{key}  {first:.3} -> {last:.3}").ok(),
                None => writeln!(out, "{key}  {last:.3}").ok(),
            };
        }
    }
    if s.failed_rewards > 0 {
        writeln!(out, "failed rewards: {} (left out, not counted as 0)", s.failed_rewards).ok();
    }
    if s.skipped_updates > 0 {
        writeln!(out, "skipped updates: {} (gradient norm not finite)", s.skipped_updates).ok();
    }
    writeln!(out, "files   {}", files(&s.dir)).ok();
    for model in &s.models {
        writeln!(out, "model   {} (loads in transformers)", model.display()).ok();
        writeln!(out, "        try it: nrlc generate --model {} --prompt TEXT", model.display())
            .ok();
    }
    if let Some(why) = &s.stopped {
        writeln!(out, "stopped after step {}: {why}", s.steps).ok();
        writeln!(out, "go on with: {go_on}").ok();
    }
    out
}

fn files(dir: &Path) -> String {
    format!("{}/{{metrics.jsonl, rollouts.jsonl, events.out.tfevents.*}}", dir.display())
}

/// Answers to the same prompts, before and now, side by side.
fn samples(before: &[Shown], now: &[Shown]) -> String {
    if before.is_empty() || now.is_empty() {
        return String::new();
    }
    let shown = |s: &Shown| {
        let mark = match s.reward {
            Some(r) if r >= 1.0 - 1e-6 => " ok".to_string(),
            Some(r) => format!(" ({r:.2})"),
            None => String::new(),
        };
        format!("{}{mark}", one_line(&s.completion, 36))
    };
    let rows: Vec<[String; 3]> = before
        .iter()
        .zip(now)
        .map(|(b, n)| [one_line(&b.prompt, 24), shown(b), shown(n)])
        .collect();
    let heads = ["prompt", "before", "now (most likely answer)"];
    let width = |i: usize| {
        rows.iter().map(|r| r[i].chars().count()).chain([heads[i].len()]).max().unwrap_or(0)
    };
    let (w0, w1) = (width(0), width(1));
    let mut out = format!("{:w0$}   {:w1$}   {}\n", heads[0], heads[1], heads[2]);
    for [prompt, b, n] in &rows {
        writeln!(out, "{prompt:w0$}   {b:w1$}   {n}").ok();
    }
    out
}

/// The end of a text, on one line.
fn one_line(text: &str, most: usize) -> String {
    let flat: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let flat = flat.trim();
    let n = flat.chars().count();
    if n <= most {
        flat.into()
    } else {
        format!("..{}", flat.chars().skip(n - most + 2).collect::<String>())
    }
}

/// `8,120`.
fn thousands(x: f64) -> String {
    let digits = format!("{x:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `8.2 s`, `3 min 5 s`, `2 h 10 min`.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{} min {} s", s as u64 / 60, s as u64 % 60),
        s => format!("{} h {} min", s as u64 / 3600, s as u64 % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(prompt: &str, completion: &str, reward: f64) -> Shown {
        Shown { prompt: prompt.into(), completion: completion.into(), reward: Some(reward) }
    }

    #[test]
    fn a_summary_says_what_happened_and_how_to_go_on() {
        let s = Summary {
            stopped: Some("interrupted".into()),
            dir: "runs/3".into(),
            steps: 12,
            seconds: 75.0,
            rewards: vec![0.1, 0.2, 0.4],
            before: vec![shown("40713>", "00413", 0.4)],
            now: vec![shown("40713>", "01347", 1.0)],
            models: vec!["runs/3/model".into()],
            ..Summary::default()
        };
        let text = summary("sort", &s, "nrlc run sort.nrl --resume runs/3");
        assert!(text.starts_with("\nsort: 12 steps in 1 min 15 s\n"), "{text}");
        assert!(text.contains("40713>   00413 (0.40)   01347 ok\n"), "{text}");
        assert!(text.ends_with("stopped after step 12: interrupted\ngo on with: nrlc run sort.nrl --resume runs/3\n"), "{text}");
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(
            [thousands(999.6), thousands(12345.0), thousands(7.0)],
            ["1,000", "12,345", "7"]
        );
        assert_eq!(
            [duration(8.25), duration(185.0), duration(7800.0)],
            ["8.2 s", "3 min 5 s", "2 h 10 min"]
        );
        assert_eq!(one_line("a\nb", 9), "a b");
        assert_eq!(one_line("0123456789", 6), "..6789");
    }

    #[test]
    fn a_status_shows_what_tells_a_healthy_run() {
        let numbers = [
            ("reward/mean", 0.5),
            ("logprob_gap/max", 3e-7),
            ("reward/zero_spread_share", 0.125),
            ("tokens_per_second", 8120.0),
        ];
        let report = StepReport {
            numbers: numbers.map(|(k, x)| (k.to_string(), x)).into(),
            ..StepReport::default()
        };
        let text = status(&report, ("reward", &[0.0, 0.5]), Some(14.0));
        assert_eq!(
            text,
            "reward ▁█ 0.500  log-prob gap 3e-7  zero spread 12 %  8,120 tokens/s  14.0 s left"
        );
    }
}
