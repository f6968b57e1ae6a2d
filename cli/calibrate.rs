//! `nrlc calibrate`: measures this machine with the engine that runs recipes, and keeps what it found for plans.
//!
//! In: nothing but the machine. Out: a file that `nrlc plan` reads: what cores and memory do at best, rates that explain
//! the stages of small recipes that ran here, and how far they are off. The clock, the name of the processor and the user's
//! directory are looked up here; the compiler gets them as data.

mod best;
mod probe;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use nrl_base::{Diagnostic, SourceMap};
use nrl_planner::machine::{fitted, spread};
use nrl_sim::calibration::{Calibration, Line, VERSION};

use crate::report;

/// Measures this machine, for the predictions of `nrlc plan`
#[derive(clap::Args, Debug)]
pub struct CalibrateArgs {
    /// File to write instead of nrlc/calibration.json in your configuration directory
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Measures less, in about a third of the time
    #[arg(long)]
    pub quick: bool,
    /// Prints what was measured beside what the fitted rates say
    #[arg(short, long)]
    pub verbose: bool,
}

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> ExitCode {
    match calibrate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(d) => {
            report::print(&[d], &SourceMap::new());
            ExitCode::from(1)
        }
    }
}

/// Numbers of ranks that are measured: one with all cores, and one rank a core.
fn numbers_of_ranks(cores: usize) -> Vec<usize> {
    if cores > 1 { vec![1, cores] } else { vec![1] }
}

fn calibrate(args: &CalibrateArgs) -> Result<(), Diagnostic> {
    let out = match &args.out {
        Some(file) => file.clone(),
        None => home().ok_or_else(|| {
            Diagnostic::error("file-failed", "no configuration directory: HOME is not set")
                .help("say where to write: `nrlc calibrate --out FILE`")
        })?,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = Instant::now();
    let probes = probe::all(args.quick);
    let numbers = numbers_of_ranks(cores);
    let bar = ProgressBar::new((numbers.len() * (probes.len() + 1)) as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:<34} {bar:30} {pos} of {len}") {
        bar.set_style(style);
    }
    let mut ranks = vec![];
    let mut rows: Vec<Line> = vec![];
    let (name, memory) = (processor(), memory());
    for n in numbers {
        let threads = (cores / n).max(1);
        bar.set_message(format!("{n} x {threads} threads: cores and memory"));
        let best = best::measure(n, threads, args.quick);
        bar.inc(1);
        let mut measured = vec![];
        let mut host = nrl_sim::threads::Host { write: best::disk(&out), ..Default::default() };
        for p in &probes {
            bar.set_message(format!("{n} x {threads} threads: {}", p.what()));
            let found = probe::run(p, n, args.quick)?;
            host.job = found.job;
            host.reward = found.reward;
            measured.extend(found.stages);
            bar.inc(1);
        }
        let (one, lines) = fitted(&best, &name, memory, &host, &measured);
        ranks.push(one);
        rows.extend(lines);
    }
    bar.finish_and_clear();
    let calibration = Calibration {
        version: VERSION,
        machine: name,
        cores,
        memory,
        date: today(),
        engine: format!("nrlc {} cpu", env!("CARGO_PKG_VERSION")),
        ranks,
        rows,
    };
    write(&out, &calibration)?;
    print!("{}", text(&calibration, args.verbose));
    println!("\nwrote {} after {:.0} s", out.display(), begin.elapsed().as_secs_f64());
    Ok(())
}

/// What was found, as the user sees it.
fn text(c: &Calibration, every: bool) -> String {
    use std::fmt::Write;
    let mut out = format!("{}, {} cores\n", c.machine, c.cores);
    for r in &c.ranks {
        let _ = writeln!(
            out,
            "  {} x {} threads   {:6.1} GFLOP/s  {:5.1} GB/s memory  {:5.1} GB/s between ranks, each; off by {:.1} %, nine of ten within {:.1} %",
            r.ranks,
            r.threads,
            r.flops / 1e9,
            r.bandwidth / 1e9,
            r.link / 1e9,
            100.0 * r.median,
            100.0 * r.p90
        );
    }
    if every {
        for l in &c.rows {
            let _ = writeln!(
                out,
                "  {:>2} ranks  {:<44} {:<9} measured {:>9.2} ms  predicted {:>9.2} ms  {:>+6.1} %",
                l.ranks,
                l.what,
                l.stage,
                1e3 * l.measured,
                1e3 * l.predicted,
                100.0 * (l.predicted / l.measured - 1.0)
            );
        }
    }
    let (_, p90) = spread(&c.rows);
    if p90 > 0.3 {
        out += "  the stages do not repeat well: other programs are busy; measure again on a quiet machine\n";
    }
    out
}

fn write(path: &Path, c: &Calibration) -> Result<(), Diagnostic> {
    let failed = |why: String| {
        Diagnostic::error("file-failed", format!("cannot write {}: {why}", path.display()))
    };
    let json = serde_json::to_string_pretty(c).map_err(|e| failed(e.to_string()))?;
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(|e| failed(e.to_string()))?;
    }
    std::fs::write(path, json + "\n").map_err(|e| failed(e.to_string()))
}

/// `nrlc/calibration.json` in the user's configuration directory.
fn home() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|x| !x.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("nrlc").join("calibration.json"))
}

/// What was measured of this machine, if anything was. A file that cannot be read is left alone, with a note.
pub fn known() -> Option<Calibration> {
    let path = home()?;
    let text = std::fs::read_to_string(&path).ok()?;
    match Calibration::parse(&text) {
        Ok(c) => Some(c),
        Err(why) => {
            let said = format!("{} is left alone: {why}", path.display());
            let d = Diagnostic::warning("file-failed", said);
            report::print(&[d.help("measure again: `nrlc calibrate`")], &SourceMap::new());
            None
        }
    }
}

/// Name of the processor, as the system tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// Bytes of memory; 0 where the system does not tell.
fn memory() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(0.0, |k| k * 1024.0)
}

/// Today, as `2026-01-31`.
fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(now / 86_400)
}

/// Year, month and day of a day counted from 1 January 1970: eras of 400 years that begin on 1 March.
fn date(days: u64) -> String {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let m = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * m + 2) / 5 + 1, if m < 10 { m + 3 } else { m - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(11_017), "2000-03-01");
        assert_eq!(date(20_787), "2026-11-30");
    }
}
