//! Stacks that sample, score and train: what they reach, by version.
//!
//! In: the table that ships (`calibration/steps.json`), or one of the user's. Out: for a stack's name and a device the rates of
//! its trainer, its serving engine, the paths of its refits, and what a step takes besides. A version says only what it
//! changed; one that nobody measured is like the nearest before it. Devices differ by their data sheets, by
//! how fast their hosts are, and by the share of the sheet that products reach.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::forecast::Source;
use crate::lengths::Lengths;
use crate::machine::Machine;
use crate::rates::{Compute, Rates};
use crate::refit::{Paths, Placement};
use crate::rollout::Engine;
use crate::tables::{Found, family};

/// What a device's data sheet does not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub device: String,
    /// The host takes so many times as long as that of an H100 node.
    pub host: f64,
    /// Products and attention reach so much of the share that they reach on an H100.
    pub product: f64,
}

impl Default for Node {
    /// An H100 node.
    fn default() -> Node {
        Node { device: "H100".into(), host: 1.0, product: 1.0 }
    }
}

/// How a trainer goes over samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packing {
    /// A pass without an update takes so many times the tokens of an update's micro-batch, for models that are
    /// not computed again.
    pub scored: f64,
    /// Seconds of a call that goes over a batch, for a pass or for all updates: data to the ranks and results back.
    pub call: f64,
    /// Seconds of a sample in every pass where sequences are cut over ranks.
    pub sequence: f64,
    /// Lengths are rounded up to this.
    pub rounded: u32,
}

/// Shares and seconds of a refit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moves {
    pub link: f64,
    pub network: f64,
    /// Bytes per second; seconds per tensor, and of a refit.
    pub broadcast: f64,
    pub copy: f64,
    pub host: f64,
    pub tensor: f64,
    pub fixed: f64,
    /// The same for samplers on devices of their own.
    pub apart_tensor: f64,
    pub apart_fixed: f64,
    /// Seconds per tensor of making weights of fewer bits.
    pub quantized: f64,
}

impl Default for Moves {
    /// What NeMo RL 0.7 reaches: fitted on the refits that its documentation and its pull requests publish.
    fn default() -> Moves {
        Moves {
            link: 0.6,
            network: 1.17,
            broadcast: 51.5e9,
            copy: 62.3e9,
            host: 20e9,
            tensor: 86.2e-6,
            fixed: 3.09,
            apart_tensor: 25.5e-6,
            apart_fixed: 0.562,
            // 13.1 s and 30.4 s for 18.6 k and 36.3 k tensors (NeMo RL, pull request 3294).
            quantized: 6.6e-4,
        }
    }
}

/// What a version changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// `0.5`.
    pub version: String,
    /// Seconds of routing, instead of the family's.
    pub routing: Option<f64>,
    /// Refits, instead of the family's.
    pub moves: Option<Moves>,
}

/// A stack, in a version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RlStack {
    /// `nemo-rl`; with its version where one was asked for: `nemo-rl 0.5`.
    pub stack: String,
    /// Measured steps that it was fitted on, and where they come from.
    pub rows: usize,
    pub from: String,
    /// Half of the steps are within this share of the prediction, nine of ten within the other.
    pub median: f64,
    pub p90: f64,
    /// Of its trainer on an H100.
    pub rates: Rates,
    pub packing: Packing,
    pub engine: Engine,
    pub moves: Moves,
    /// Seconds of a step that belong to no phase: data, rewards, advantages, processes that wait.
    pub other: f64,
    /// Tokens a step of a sampler that guesses keeps.
    pub accepted: f64,
    /// Ascending.
    pub versions: Vec<Version>,
}

/// How spread answers are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Part of a model's name.
    pub model: String,
    /// Standard deviation of the logarithm of lengths before the cap.
    pub sigma: f64,
}

/// Stacks and devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RlStacks {
    /// Share of samples that repeat themselves up to the cap.
    pub endless: f64,
    /// The first that matches a model counts.
    pub spreads: Vec<Spread>,
    pub nodes: Vec<Node>,
    pub stacks: Vec<RlStack>,
}

const SHIPPED: &str = include_str!("../calibration/steps.json");

impl RlStacks {
    /// The table that ships.
    pub fn shipped() -> &'static RlStacks {
        static READ: OnceLock<RlStacks> = OnceLock::new();
        READ.get_or_init(|| RlStacks::parse(SHIPPED).unwrap_or_default())
    }

    /// Reads a table.
    pub fn parse(text: &str) -> Result<RlStacks, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// The stack called `name`, with what its version changed: the last that is not after it, or the latest if
    /// `name` has none.
    pub fn find(&self, name: &str) -> Option<RlStack> {
        let of = self.stacks.iter().find(|s| s.stack.eq_ignore_ascii_case(family(name)))?;
        let mut stack = of.clone();
        let wanted = name.split_whitespace().nth(1).map(number);
        let before = |v: &&Version| wanted.is_none_or(|w| number(&v.version) <= w);
        let version = of.versions.iter().rfind(before).or(of.versions.first());
        let Some(v) = version else { return Some(stack) };
        stack.stack = format!("{} {}", of.stack, v.version);
        stack.rates.routing = v.routing.unwrap_or(stack.rates.routing);
        stack.moves = v.moves.clone().unwrap_or(stack.moves);
        Some(stack)
    }

    /// How devices of this name differ from an H100, where steps were measured on them.
    pub fn node(&self, device: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.device.eq_ignore_ascii_case(device))
    }

    /// Lengths of which only the mean is known, of answers of a model with this name.
    pub fn law(&self, model: &str, mean: f64) -> Lengths {
        let spread = self.spreads.iter().find(|s| model.contains(&s.model));
        let sigma = spread.map_or(0.8, |s| s.sigma);
        Lengths::Capped { mean, sigma, endless: self.endless }
    }
}

impl RlStack {
    /// The rates of its trainer on devices like `node`.
    pub fn on(&self, node: &Node) -> Rates {
        let r = &self.rates;
        Rates {
            product: r.product * node.product,
            attention: r.attention * node.product,
            launch: r.launch * node.host,
            routing: r.routing * node.host,
            ..r.clone()
        }
    }

    /// What is said of its trainer on a device: nobody measured it there where `node` is not known.
    pub fn found(&self, device: &str, node: Option<&Node>) -> Found {
        let (source, more) = match node {
            Some(_) => (Source::Calibrated, 1.0),
            None => (Source::Interpolated, 2.0),
        };
        Found {
            rates: self.on(&node.cloned().unwrap_or_default()),
            source,
            spread: (self.p90 * more).clamp(0.05, 0.6),
            entry: format!("{} on {device} ({} rows of {})", self.stack, self.rows, self.from),
            stack: self.stack.clone(),
            compute: Compute::default(),
            runs: [].into(),
        }
    }

    /// Paths of a refit on `machine`.
    pub fn paths(
        &self,
        machine: &Machine,
        node: &Node,
        placement: Placement,
        quantized: bool,
    ) -> Paths {
        let moves = &self.moves;
        let apart = placement == Placement::Disaggregated;
        let tensor = if apart { moves.apart_tensor } else { moves.tensor };
        Paths {
            link: machine.link * moves.link,
            domain: machine.per_node,
            network: machine.network * moves.network,
            broadcast: moves.broadcast,
            copy: moves.copy,
            host: moves.host,
            tensor: node.host * (tensor + if quantized { moves.quantized } else { 0.0 }),
            fixed: node.host * if apart { moves.apart_fixed } else { moves.fixed },
        }
    }
}

/// 0 and 5 of `0.5`, of `v0.5` and of `v0.5-rerun`.
fn number(version: &str) -> (u32, u32) {
    let digits = version.trim_start_matches('v');
    let mut parts = digits.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Samples packed into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packed {
    /// Micro-batches of one update, or pass, on one rank.
    pub micro: usize,
    /// Tokens in one, padding included, and samples.
    pub tokens: f64,
    pub sequences: f64,
    /// Tokens before a token in its sample, in the mean over tokens.
    pub context: f64,
}

impl Packed {
    /// `samples` in `updates` equal parts on `ranks` ranks, packed first fit by falling length into micro-batches of `budget`
    /// tokens. Ranks have as many each. A pipeline pads every micro-batch to the budget, since stages hand over one
    /// shape; lengths are rounded up to `rounded`.
    pub fn of(
        samples: &[u32],
        updates: usize,
        ranks: usize,
        budget: usize,
        pads: bool,
        rounded: u32,
    ) -> Packed {
        let step = rounded.max(1);
        let samples: Vec<u32> = samples.iter().map(|t| t.div_ceil(step) * step).collect();
        let per = samples.len().div_ceil(updates.max(1)).max(1);
        let parts = samples.chunks(per);
        let each = |part: &[u32]| bins(part, budget).max(ranks).div_ceil(ranks.max(1));
        let all: usize = parts.clone().map(each).sum();
        let micro = (all as f64 / parts.len().max(1) as f64).round().max(1.0);
        let sum: f64 = samples.iter().map(|t| f64::from(*t)).sum();
        let squares: f64 = samples.iter().map(|t| f64::from(*t).powi(2)).sum();
        let batches = micro * (updates.max(1) * ranks.max(1)) as f64;
        let tokens = if pads { (budget as f64).max(sum / batches) } else { sum / batches };
        // Scores of the padding are not computed.
        let context = squares / 2.0 / batches / tokens.max(1.0);
        let sequences = (samples.len() as f64 / batches).max(1.0);
        Packed { micro: micro as usize, tokens, sequences, context }
    }
}

/// Bins of `budget` that first fit by falling length needs.
fn bins(samples: &[u32], budget: usize) -> usize {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    // Room left in every bin, ascending.
    let mut room: Vec<usize> = vec![];
    for t in sorted.into_iter().rev() {
        let t = t as usize;
        let left = match room.partition_point(|r| *r < t) {
            i if i < room.len() => room.remove(i) - t,
            _ => budget.saturating_sub(t),
        };
        room.insert(room.partition_point(|r| *r < left), left);
    }
    room.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_share_bins_that_have_room() {
        assert_eq!(bins(&[6, 5, 4, 5], 10), 2);
        assert_eq!(bins(&[6, 6, 6], 10), 3);
        assert_eq!(bins(&[20], 10), 1);
        assert_eq!(bins(&[], 10), 0);
    }

    /// Eight samples of 6 on two ranks in two updates: two each, no two fit into ten tokens.
    #[test]
    fn ranks_have_as_many_micro_batches_each() {
        let p = Packed::of(&[6; 8], 2, 2, 10, false, 1);
        assert_eq!((p.micro, p.tokens, p.sequences, p.context), (2, 6.0, 1.0, 3.0));
        let padded = Packed::of(&[6; 8], 2, 2, 10, true, 1);
        assert_eq!((padded.micro, padded.tokens), (2, 10.0));
        // Scores are those of 6 tokens: 18 in all.
        assert_eq!(padded.context * padded.tokens, 18.0);
        // Rounded to 8 they are longer.
        assert_eq!(Packed::of(&[6; 8], 2, 2, 10, false, 8).tokens, 8.0);
    }

    #[test]
    fn a_version_says_what_it_changed() {
        let stacks = RlStacks::shipped();
        let of = |name: &str| stacks.find(name).unwrap();
        assert_eq!(of("nemo-rl").stack, of("nemo-rl 9.1").stack);
        assert_eq!(of("nemo-rl v0.4-rerun").stack, "nemo-rl 0.4");
        assert_eq!(of("nemo-rl 0.1").stack, "nemo-rl 0.3");
        // Dispatch of experts became faster with every version (`perf_notes`: the same recipe over releases).
        assert!(of("nemo-rl 0.4").rates.routing > of("nemo-rl 0.7").rates.routing);
        assert!(stacks.find("verl").is_none());
    }
}
