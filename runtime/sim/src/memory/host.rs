//! Memory of hosts and room on disks.
//!
//! In: numbers of parameters and what is kept of them off the device. Out: bytes per node and per checkpoint,
//! by term, against what a node or a volume has.

use serde::Serialize;

use super::Term;

/// What a model keeps on the hosts of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Host {
    /// Parameters of the model.
    pub parameters: f64,
    /// Nodes that share it.
    pub nodes: usize,
    /// Ranks on a node.
    pub ranks: usize,
    /// Optimizer state stays on the host: a copy in f32 and two moments.
    pub optimizer: bool,
    /// Weights in 16 bits wait on the host while others use the device.
    pub weights: bool,
    /// Activations are sent to the host, bytes per rank.
    pub activations: f64,
    /// Pinned buffers between host and device, bytes per rank.
    pub pinned: f64,
}

impl Host {
    /// Bytes per node, by term.
    pub fn terms(&self) -> Vec<Term> {
        let share = self.parameters / self.nodes.max(1) as f64;
        let ranks = self.ranks.max(1) as f64;
        let term = |name, bytes: f64, how: String| Term { name, bytes, how };
        let billions = share / 1e9;
        let mut out = vec![
            term(
                "host optimizer",
                if self.optimizer { 12.0 * share } else { 0.0 },
                format!("{billions:.1} G parameters of 12 bytes"),
            ),
            term(
                "host weights",
                if self.weights { 2.0 * share } else { 0.0 },
                format!("{billions:.1} G parameters of 2 bytes"),
            ),
            term("host activations", ranks * self.activations, format!("{ranks} ranks")),
            term("pinned", ranks * self.pinned, format!("{ranks} ranks")),
        ];
        out.retain(|t| t.bytes > 0.0);
        out
    }

    /// Bytes per node.
    pub fn sum(&self) -> f64 {
        self.terms().iter().map(|t| t.bytes).sum()
    }
}

/// How much of a node's memory is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Room {
    Enough,
    /// More than four fifths, before what nobody counts: object stores, loaders, the page cache.
    Tight,
    TooLittle,
}

/// A verdict on `bytes` of `all`.
pub fn room(bytes: f64, all: f64) -> Room {
    match bytes / all {
        x if x > 1.0 => Room::TooLittle,
        x if x > 0.8 => Room::Tight,
        _ => Room::Enough,
    }
}

/// Bytes on a disk: weights in 2 bytes and optimizer state in 12, of each checkpoint that is kept and of the one
/// that is being written.
pub fn checkpoints(parameters: f64, kept: usize) -> f64 {
    14.0 * parameters * (kept + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adam on the host takes 12 bytes a parameter: 840 GB of a 70 B model on one node, and twice that
    /// for actor and critic on one node (OpenRLHF issue 198).
    #[test]
    fn adam_on_the_host() {
        let gigabytes = |nodes| {
            Host { parameters: 70e9, nodes, ranks: 8, optimizer: true, ..Host::default() }.sum()
                / 1e9
        };
        assert_eq!([gigabytes(1), gigabytes(2), gigabytes(4)], [840.0, 420.0, 210.0]);
        assert_eq!(2.0 * gigabytes(1), 1680.0);
        assert_eq!(room(840e9, 1000e9), Room::Tight);
        assert_eq!(room(420e9, 1000e9), Room::Enough);
        assert_eq!(room(1680e9, 1600e9), Room::TooLittle);
    }

    /// 7.616 G parameters: 106.6 GB a checkpoint; three kept and one in flight are 426.5 GB.
    #[test]
    fn checkpoints_on_a_disk() {
        let p = 7_615_616_512.0;
        assert_eq!((checkpoints(p, 0) / 1e8).round() / 10.0, 106.6);
        assert_eq!((checkpoints(p, 3) / 1e8).round() / 10.0, 426.5);
    }
}
