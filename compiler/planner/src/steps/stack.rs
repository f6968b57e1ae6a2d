//! What versions of a stack reach, as data.
//!
//! In: the table that ships (`stacks.json`), or one of the user's. Out: the stack of a version and a backend, the
//! machine of a device's name. Versions that nobody measured get the rates of the nearest earlier one.

use nrl_sim::machine::Machine;
use nrl_sim::refit::{Paths, Placement};
use nrl_sim::rollout::Engine;
use serde::{Deserialize, Serialize};

use super::passes::Passes;
use super::row::Backend;

/// A kind of device, with how far stacks get on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub machine: Machine,
    /// The host takes so many times as long as that of an H100 node.
    pub host: f64,
    /// Products reach so much of the share that they reach on an H100.
    pub product: f64,
}

/// Shares and seconds of a refit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moves {
    pub link: f64,
    pub network: f64,
    /// Bytes per second, and seconds per tensor, and of a refit.
    pub broadcast: f64,
    pub copy: f64,
    pub host: f64,
    pub tensor: f64,
    pub fixed: f64,
    /// The same for samplers on devices of their own.
    pub apart_tensor: f64,
    pub apart_fixed: f64,
}

/// A version of a stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// `v0.5`.
    pub version: String,
    pub backend: Backend,
    pub engine: Engine,
    pub passes: Passes,
    pub moves: Moves,
    /// Seconds of a step that belong to no phase: data, rewards, advantages, processes.
    pub other: f64,
    /// With one update per batch the pass before it is left out.
    pub skips_old: bool,
    /// Running samples are waited for before weights are handed over.
    pub drains: bool,
    /// Models with a head that guesses use it, and so many tokens a step are kept.
    pub guesses: bool,
    pub accepted: f64,
}

/// How spread answers are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Part of a model's name.
    pub model: String,
    /// Standard deviation of the logarithm of lengths before the cap.
    pub sigma: f64,
}

/// Devices and stacks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stacks {
    /// Share of the variance of log lengths that samples of a prompt have in common.
    pub alike: f64,
    /// Share of samples that repeat themselves up to the cap.
    pub endless: f64,
    /// The first that matches a model counts.
    pub spreads: Vec<Spread>,
    pub devices: Vec<Device>,
    /// Ascending by version.
    pub stacks: Vec<Stack>,
}

impl Stacks {
    /// The table that ships.
    pub fn shipped() -> Result<Stacks, String> {
        serde_json::from_str(include_str!("stacks.json")).map_err(|e| e.to_string())
    }

    /// Spread of the lengths of `model`'s answers, assumed.
    pub fn sigma(&self, model: &str) -> f64 {
        self.spreads.iter().find(|s| model.contains(&s.model)).map_or(0.8, |s| s.sigma)
    }

    /// The device called `name`.
    pub fn device(&self, name: &str) -> Result<&Device, String> {
        let found = self.devices.iter().find(|d| d.machine.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("no rates for the device `{name}`"))
    }

    /// The stack of `version`, or of the nearest before it, or the first.
    pub fn find(&self, version: &str, backend: Backend) -> Result<&Stack, String> {
        let wanted = number(version);
        let of = || self.stacks.iter().filter(|s| s.backend == backend);
        let before = of().rfind(|s| number(&s.version) <= wanted);
        before.or_else(|| of().next()).ok_or_else(|| format!("no rates for {backend:?}"))
    }
}

impl Stack {
    /// Paths of a refit on `device`.
    pub fn paths(&self, device: &Device, placement: Placement) -> Paths {
        let (m, moves) = (&device.machine, &self.moves);
        let apart = placement == Placement::Disaggregated;
        Paths {
            link: m.link * moves.link,
            domain: m.per_node,
            network: m.network * moves.network,
            broadcast: moves.broadcast,
            copy: moves.copy,
            host: moves.host,
            tensor: device.host * if apart { moves.apart_tensor } else { moves.tensor },
            fixed: device.host * if apart { moves.apart_fixed } else { moves.fixed },
        }
    }
}

/// 0 and 5 of `v0.5-rerun`.
fn number(version: &str) -> (u32, u32) {
    let digits = version.trim_start_matches('v');
    let mut parts = digits.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
