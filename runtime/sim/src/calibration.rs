//! What was measured of one machine whose ranks are threads: the file that `nrlc calibrate` writes.
//!
//! In: the text of such a file, or nothing. Out: for a number of ranks, a rank's part of the machine, the rates of the
//! engine on it and the host's; with how sure they are. Numbers of ranks that were not measured take those of the nearest
//! that was, and share the machine out.

use serde::{Deserialize, Serialize};

use crate::forecast::Source;
use crate::machine::Machine;
use crate::rates::Rates;
use crate::threads::{Host, Pace};

/// Version of the format.
pub const VERSION: u32 = 1;

/// A machine that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub version: u32,
    /// Name of the processor.
    pub machine: String,
    pub cores: usize,
    /// Bytes of memory; 0 where the system does not tell.
    pub memory: f64,
    /// `2026-01-31`.
    pub date: String,
    /// `nrlc 0.1.0 cpu`.
    pub engine: String,
    /// By number of ranks.
    pub ranks: Vec<Ranks>,
    /// What was measured and what the fitted rates say of it.
    pub rows: Vec<Line>,
}

/// One rank of so many, while the others work as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranks {
    pub ranks: usize,
    /// Threads of each.
    pub threads: usize,
    /// FLOP/s of a large product, bytes/s of a long copy (read and written), bytes/s that a rank hands to another.
    pub flops: f64,
    pub bandwidth: f64,
    pub link: f64,
    pub rates: Rates,
    pub host: Host,
    /// Half of the rows are within this share of the prediction, nine of ten within the other.
    pub median: f64,
    pub p90: f64,
}

/// One measured stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub ranks: usize,
    /// The model and the samples.
    pub what: String,
    /// `update`, `generate`, `forward`.
    pub stage: String,
    pub measured: f64,
    pub predicted: f64,
}

/// What is known of ranks that are threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Threads {
    pub machine: Machine,
    pub rates: Rates,
    pub host: Host,
    pub source: Source,
    /// Share by which nine of ten stages are off at most.
    pub spread: f64,
    /// Where it comes from, in words.
    pub entry: String,
}

impl Threads {
    pub fn pace(&self) -> Pace<'_> {
        Pace { machine: &self.machine, rates: &self.rates, host: &self.host }
    }

    /// What a core of a server reaches, about: for machines that nobody has measured, and to start a fit from.
    pub fn typical(ranks: usize) -> Threads {
        let machine = Machine {
            name: "a core".into(),
            flops: 60e9,
            bandwidth: 10e9,
            link: 4e9,
            per_node: ranks.max(1),
            ..Machine::default()
        };
        Threads {
            machine,
            rates: Threads::rates(),
            host: Host::default(),
            source: Source::Roofline,
            spread: 0.8,
            entry: "a core of 60 GFLOP/s".into(),
        }
    }

    /// Rates of an engine of threads: nothing runs beside anything else, numbers have four bytes.
    pub fn rates() -> Rates {
        Rates {
            product: 0.8,
            half: 60e3,
            attention: 0.2,
            memory: 0.8,
            launch: 4e-6,
            link: 0.8,
            link_latency: 5e-6,
            overlap: 0.0,
            update: 1.5,
            fixed: 0.0,
            operand: 4.0,
            inline: true,
            ..Rates::default()
        }
    }
}

impl Calibration {
    /// Reads a file; one of another version is refused.
    pub fn parse(text: &str) -> Result<Calibration, String> {
        let c: Calibration = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if c.version != VERSION {
            return Err(format!(
                "it has version {}, this program reads version {VERSION}",
                c.version
            ));
        }
        if c.ranks.is_empty() {
            return Err("it has no measured ranks".into());
        }
        Ok(c)
    }

    /// A rank of `ranks`.
    pub fn find(&self, ranks: usize) -> Threads {
        let ranks = ranks.max(1);
        // The most that were measured and are not more; else the fewest.
        let most = self.ranks.iter().filter(|r| r.ranks <= ranks).max_by_key(|r| r.ranks);
        let Some(r) = most.or_else(|| self.ranks.iter().min_by_key(|r| r.ranks)) else {
            return Threads::typical(ranks);
        };
        // More ranks than were measured share the same cores and the same memory.
        let share = (r.ranks as f64 / ranks as f64).min(1.0);
        let machine = Machine {
            name: self.machine.clone(),
            memory: self.memory / ranks as f64,
            host: self.memory,
            flops: r.flops * share,
            bandwidth: r.bandwidth * share,
            link: r.link * share,
            per_node: ranks,
            ..Machine::default()
        };
        let (source, more) = match r.ranks == ranks {
            true => (Source::Calibrated, 1.0),
            false => (Source::Interpolated, 2.0),
        };
        let (n, threads) = (r.ranks, r.threads);
        let each = match (n, threads) {
            (1, 1) => "1 rank of 1 thread".to_string(),
            (1, t) => format!("1 rank of {t} threads"),
            (n, 1) => format!("{n} ranks of 1 thread"),
            (n, t) => format!("{n} ranks of {t} threads"),
        };
        Threads {
            machine,
            rates: r.rates.clone(),
            host: r.host.clone(),
            source,
            spread: (r.p90 * more).clamp(0.05, 0.8),
            entry: format!("{} on {}, {each}, measured {}", self.engine, self.machine, self.date),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Calibration {
        let one = |ranks: usize, flops: f64| Ranks {
            ranks,
            threads: 4 / ranks,
            flops,
            bandwidth: 8e9 / ranks as f64,
            link: 1e9,
            rates: Threads::rates(),
            host: Host::default(),
            median: 0.03,
            p90: 0.1,
        };
        Calibration {
            version: VERSION,
            machine: "a box".into(),
            cores: 4,
            memory: 16e9,
            date: "2026-01-31".into(),
            engine: "nrlc 0.1.0 cpu".into(),
            ranks: vec![one(1, 200e9), one(4, 60e9)],
            rows: vec![],
        }
    }

    #[test]
    fn ranks_share_the_machine() {
        let c = measured();
        let four = c.find(4);
        assert_eq!((four.machine.flops, four.source), (60e9, Source::Calibrated));
        assert_eq!(four.machine.memory, 4e9);
        // Eight threads on four cores.
        let eight = c.find(8);
        assert_eq!((eight.machine.flops, eight.source), (30e9, Source::Interpolated));
        assert_eq!(eight.machine.bandwidth, 1e9);
        // Two are at least as fast as one of one rank's halves; nobody measured them.
        assert_eq!(c.find(2).machine.flops, 100e9);
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let text = serde_json::to_string(&Calibration { version: 9, ..measured() }).unwrap();
        assert_eq!(
            Calibration::parse(&text).unwrap_err(),
            "it has version 9, this program reads version 1"
        );
        let c = measured();
        let text = serde_json::to_string(&c).unwrap();
        assert_eq!(Calibration::parse(&text).unwrap(), c);
        assert!(Calibration::parse("{}").is_err());
    }
}
