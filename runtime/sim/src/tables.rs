//! Calibration tables: what stacks reach on devices, by version.
//!
//! In: the tables that ship, and those a user measured. Out: the rates that come nearest to a device, a stack and a number
//! type, with how near that is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::forecast::Source;
use crate::rates::{Compute, Rates};

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
    /// Logarithms of what versions, number types and models take more, by [`Traits::keys`].
    #[serde(default)]
    pub factors: BTreeMap<String, f64>,
}

/// What the factors of an entry hang on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traits {
    pub device: String,
    /// `26.04` of `megatron-bridge 26.04`.
    pub version: String,
    pub compute: Compute,
    /// Layers of experts.
    pub experts: bool,
    /// Name of the model; empty if it is none that was measured.
    pub model: String,
}

impl Traits {
    /// Keys of the factors that apply, a factor each.
    pub fn keys(&self) -> Vec<String> {
        let kind = if self.experts { "experts" } else { "dense" };
        let (device, version, model) = (&self.device, &self.version, &self.model);
        let mut keys = vec![
            format!("{:?}", self.compute).to_lowercase(),
            format!("{kind} {version}"),
            format!("{kind} on {device}"),
        ];
        if !model.is_empty() {
            keys.push(model.clone());
            keys.push(format!("{model} on {device}"));
            keys.push(format!("{model} on {device} {version}"));
        }
        keys
    }

    /// The logarithm of the product of the factors that apply.
    pub fn sum(&self, factors: &BTreeMap<String, f64>) -> f64 {
        self.keys().iter().filter_map(|k| factors.get(k)).sum()
    }
}

/// A version of the shipped tables, or a user's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    pub version: String,
    pub entries: Vec<Entry>,
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
}

const SHIPPED: &str = include_str!("../calibration/tables.json");
/// Trainers of reinforcement learning: the rates of pretraining on the same device, with the factor that published
/// steps ask for.
const STEPS: &str = include_str!("../calibration/steps.json");

impl Tables {
    /// The tables that ship with the program.
    pub fn shipped() -> Tables {
        let steps: Tables = serde_json::from_str(STEPS).unwrap_or_default();
        let tables: Tables = serde_json::from_str(SHIPPED).unwrap_or_default();
        tables.with(steps.entries)
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

    /// The rates for a stack whose model is not known.
    pub fn find(&self, device: &str, stack: &str, compute: Compute) -> Found {
        self.find_for(stack, &Traits { device: device.into(), compute, ..Traits::default() })
    }

    /// The nearest entry, with its factors: the device matters most, then the family of the stack, then the number
    /// type.
    pub fn find_for(&self, stack: &str, traits: &Traits) -> Found {
        let near = |e: &Entry| {
            let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
            let any = |x: &str| i32::from(x == "any");
            8 * i32::from(same(&e.device, &traits.device))
                + 4 * i32::from(same(family(&e.stack), family(stack)))
                + 2 * any(&e.stack)
                + any(&e.device)
                + i32::from(e.compute == traits.compute)
                + i32::from(same(&e.stack, stack))
        };
        // Of equals the first counts.
        let best = self.entries.iter().rev().max_by_key(|e| near(e));
        let Some(e) = best.filter(|e| near(e) >= 3) else {
            let entry = "the data sheet".to_string();
            return Found {
                rates: Rates::default(),
                source: Source::Roofline,
                spread: 0.35,
                entry,
            };
        };
        let (source, more) = match near(e) {
            12.. => (Source::Calibrated, 1.0),
            8.. => (Source::Interpolated, 1.5),
            _ => (Source::Interpolated, 2.0),
        };
        let spread = (e.p90 * more).clamp(0.05, 0.6);
        let entry = format!("{} on {} ({} rows of {})", e.stack, e.device, e.rows, e.from);
        let mut rates = e.rates.clone();
        let version = stack.split_whitespace().nth(1).unwrap_or("").to_string();
        rates.factor *= Traits { version, ..traits.clone() }.sum(&e.factors).exp();
        Found { rates, source, spread, entry }
    }
}

/// `megatron-bridge` of `megatron-bridge 26.04`.
pub fn family(stack: &str) -> &str {
    stack.split_whitespace().next().unwrap_or(stack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_tables_can_be_read() {
        let tables = Tables::parse(SHIPPED);
        assert!(tables.is_ok(), "{tables:?}");
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
            factors: BTreeMap::new(),
        };
        let entries =
            vec![entry("H100", "a 1", 0.5), entry("H100", "a 2", 0.6), entry("B200", "a 2", 0.7)];
        let tables = Tables { version: "1".into(), entries };
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
