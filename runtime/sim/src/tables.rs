//! Calibration tables: what stacks reach on devices, by version.
//!
//! In: the tables that ship, and those a user measured. Out: the rates that come nearest to a device, a stack and a number
//! type, with how near that is.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::effects::{self, Effects};
use crate::forecast::Source;
use crate::nearby::{Run, Setting, said};
use crate::rates::{Compute, Rates};
use crate::style::Style;
use crate::train::Job;

/// Rates of one stack on one kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// As in the cluster: `H100`.
    pub device: String,
    /// `megatron-bridge 26.04`: the first word is the family.
    pub stack: String,
    pub compute: Compute,
    /// Measured rows that it was fitted on, and where they come from.
    pub rows: usize,
    pub from: String,
    /// Half of the rows are within this share of the prediction, nine of ten within the other.
    pub median: f64,
    pub p90: f64,
    pub rates: Rates,
}

/// A version of the shipped tables, or a user's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    pub version: String,
    /// Stacks that were measured on a device. The rates of those whose stack is fitted with the effects below are a
    /// copy, to be read by people.
    pub entries: Vec<Entry>,
    /// What generations, kinds, kernels and families change; with it any stack on any device has rates.
    #[serde(default)]
    pub effects: Effects,
    /// Runs that were measured, by family of stacks: what they say of runs like them goes on top of rates.
    #[serde(default)]
    pub runs: BTreeMap<String, Vec<Run>>,
}

/// What was found for a device, a stack and a number type.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub rates: Rates,
    pub source: Source,
    /// Share by which nine of ten measurements are off at most.
    pub spread: f64,
    /// The entry, in words.
    pub entry: String,
    /// The stack and its number type; runs of its family that were measured.
    pub stack: String,
    pub compute: Compute,
    pub runs: Arc<[Run]>,
}

impl Found {
    /// The same for one job on a device, by the runs that were measured near it.
    pub fn near(&self, job: &Job, device: &str) -> Found {
        // What was measured are updates.
        if self.runs.is_empty() || job.update.is_none() {
            return self.clone();
        }
        let said = said(&self.runs, &Setting::of(job, device, &self.stack, self.compute));
        let mut found = self.clone();
        found.rates.factor *= said.log.exp();
        // Of a normal law, what is left once its other end, so much correlated, is known.
        let left = (1.0 - said.alike.powi(2)).max(0.0);
        found.spread = (AGAIN.powi(2) + left * (self.spread.powi(2) + APART.powi(2))).sqrt();
        if said.alike > ALIKE && found.source == Source::Interpolated {
            found.source = Source::Calibrated;
        }
        found
    }
}

/// Share by which nine of ten repetitions of a published run differ at most: twins in versions of Megatron-Bridge.
const AGAIN: f64 = 0.05;
/// Beyond the errors of rates on the runs that they were fitted to: the share by which nine of ten runs are off that are like none of
/// them. With it nine of ten published runs of one half are within what the other half says.
const APART: f64 = 0.19;
/// A run this much alike was measured, as good as.
const ALIKE: f64 = 0.9;

/// Share by which nine of ten runs of stacks that were never fitted are off at most (`nrlc validate --leave-one-out`
/// on the published rows).
const UNSEEN: f64 = 0.4;

const SHIPPED: &str = include_str!("../calibration/tables.json");

impl Tables {
    /// The tables that ship with the program, read once.
    pub fn shipped() -> &'static Tables {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(|| serde_json::from_str(SHIPPED).unwrap_or_default())
    }

    /// Reads a table.
    pub fn parse(text: &str) -> Result<Tables, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// The same tables with entries that go before the others.
    pub fn with(mut self, first: Vec<Entry>) -> Tables {
        self.entries.splice(0..0, first);
        self
    }

    /// The entry of the stack on the device. Without one: what the effects say of a stack like it, or, in
    /// tables without effects, the nearest entry: the device matters most, then the family, then the number type.
    pub fn find(&self, device: &str, stack: &str, compute: Compute) -> Found {
        let runs = self.runs.get(&family(stack).to_lowercase()).map_or(&[][..], |r| r);
        let (rates, source, spread, entry) = self.rates(device, stack, compute);
        Found { rates, source, spread, entry, stack: stack.into(), compute, runs: runs.into() }
    }

    fn rates(&self, device: &str, stack: &str, compute: Compute) -> (Rates, Source, f64, String) {
        let style = Style::of(stack, device);
        let name = style.name();
        let near = |e: &Entry| {
            let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
            let any = |x: &str| i32::from(x == "any");
            16 * i32::from(same(&e.device, device))
                + 8 * i32::from(same(family(&e.stack), family(stack)))
                + 4 * any(&e.stack)
                + 2 * any(&e.device)
                + i32::from(e.compute == compute)
                + 2 * i32::from(same(&Style::of(&e.stack, &e.device).name(), &name))
                + i32::from(same(&e.stack, stack))
        };
        // Of equals the first counts.
        let best = self.entries.iter().rev().max_by_key(|e| near(e));
        let own = best.filter(|e| near(e) >= 24);
        if own.is_none() && !self.effects.is_empty() {
            return self.resembling(&style);
        }
        let Some(e) = own.or(best.filter(|e| near(e) >= 6)) else {
            return (Rates::default(), Source::Roofline, 0.35, "the data sheet".into());
        };
        let (source, more) = match near(e) {
            24.. => (Source::Calibrated, 1.0),
            16.. => (Source::Interpolated, 1.5),
            _ => (Source::Interpolated, 2.0),
        };
        let spread = (e.p90 * more).clamp(0.05, 0.6);
        let entry = format!("{} on {} ({} rows of {})", e.stack, e.device, e.rows, e.from);
        let marks = Style::of(&e.stack, &e.device).marks;
        let rates = match self.effects.is_empty() || marks == style.marks {
            true => e.rates.clone(),
            // Measured with other kernels: the same family, its marks.
            false => effects::rates(&style, &self.effects),
        };
        (rates, source, spread, entry)
    }

    /// Rates of a stack that was not measured on the device.
    fn resembling(&self, style: &Style) -> (Rates, Source, f64, String) {
        let rates = effects::rates(style, &self.effects);
        let other = self.entries.iter().find(|e| family(&e.stack) == style.family);
        let kind = format!("{} stacks on {} devices", style.kind.name(), style.generation);
        let (spread, entry) = match other {
            Some(e) => (1.5 * e.p90, format!("{} on other devices, as {kind}", style.family)),
            None => (UNSEEN, kind),
        };
        (rates, Source::Interpolated, spread.clamp(0.15, 0.6), entry)
    }
}

pub use crate::style::family;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_tables_can_be_read() {
        let tables = Tables::parse(SHIPPED);
        assert!(tables.is_ok(), "{tables:?}");
    }

    #[test]
    fn effects_serve_stacks_without_an_entry() {
        let tables = Tables::shipped();
        let known = tables.find("H100", "torchtitan", Compute::Bf16);
        assert_eq!(known.source, Source::Calibrated);
        // Never measured, on a device that others were measured on; and on one that nobody was.
        for (device, stack) in [("H100", "somebody 1"), ("H20", "torchtitan"), ("Z9", "x")] {
            let found = tables.find(device, stack, Compute::Bf16);
            assert_eq!(found.source, Source::Interpolated, "{device} {stack}");
            assert!(found.rates.product > 0.4 && found.rates.product < 0.95, "{found:?}");
        }
        // What computes an operation at a time moves more bytes.
        let (eager, fused) = (
            tables.find("H100", "transformers", Compute::Bf16).rates,
            tables.find("H100", "somebody", Compute::Bf16).rates,
        );
        assert!(eager.memory < fused.memory);
    }

    #[test]
    fn the_device_matters_more_than_the_version() {
        let entry = |device: &str, stack: &str, product: f64| Entry {
            device: device.into(),
            stack: stack.into(),
            compute: Compute::Bf16,
            rows: 10,
            from: "here".into(),
            median: 0.03,
            p90: 0.1,
            rates: Rates { product, ..Rates::default() },
        };
        let entries =
            vec![entry("H100", "a 1", 0.5), entry("H100", "a 2", 0.6), entry("B200", "a 2", 0.7)];
        let tables = Tables { version: "1".into(), entries, ..Tables::default() };
        let found = |d: &str, s: &str| {
            let f = tables.find(d, s, Compute::Bf16);
            (f.rates.product, f.source)
        };
        assert_eq!(found("H100", "a 2"), (0.6, Source::Calibrated));
        assert_eq!(found("H100", "a 3"), (0.5, Source::Calibrated));
        assert_eq!(found("H100", "b"), (0.5, Source::Interpolated));
        assert_eq!(found("GB200", "a"), (0.5, Source::Interpolated));
        assert_eq!(found("GB200", "b"), (Rates::default().product, Source::Roofline));
    }
}
