//! One layout of training and sampling over the ranks of a cluster.
//!
//! In: sizes of axes and choices of a plan. Out: the words that recipes write them with, and how they read in
//! tables. Every choice has a name, by which it can be pinned.

use std::fmt::Write;

use serde::Serialize;

/// What keeps the optimizer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `plans.megatron`: state cut over data parallel ranks, weights whole.
    #[default]
    Megatron,
    /// `plans.fsdp`: weights, gradients and state cut.
    Fsdp,
    /// `plans.hsdp`: the same inside groups of ranks.
    Hsdp,
    /// The recipe's own plan, which stays as it is.
    Own,
}

/// What is computed again in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Again {
    #[default]
    None,
    Selective,
    Full,
}

impl Again {
    /// The word in recipes.
    pub fn word(self) -> &'static str {
        match self {
            Again::None => "none",
            Again::Selective => "selective",
            Again::Full => "full",
        }
    }
}

/// Choices that a search makes. Sizes are at least 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Layout {
    pub family: Family,
    pub pp: usize,
    /// Parts of the model on each stage.
    pub chunks: usize,
    pub dp: usize,
    /// Ranks that share weights, where the family cuts them.
    pub fsdp: usize,
    pub cp: usize,
    pub tp: usize,
    /// Tokens between products are split over `tp` too.
    pub sp: bool,
    pub ep: usize,
    pub etp: usize,
    pub recompute: Again,
    /// Micro-batches run side by side wherever experts are split.
    pub paired: bool,
    /// The optimizer and its state are on hosts.
    pub offload: bool,
    /// Tokens of a micro-batch; none where the recipe does not say.
    pub microbatch: Option<usize>,
    /// Ranks that share a generator's weights; none where it has no mesh of its own.
    pub rtp: Option<usize>,
    /// Nodes of the pool that trains; none where nothing is split.
    pub nodes: Option<usize>,
    /// Most steps between the weights that sample and those that learn.
    pub staleness: Option<usize>,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            family: Family::Megatron,
            pp: 1,
            chunks: 1,
            dp: 1,
            fsdp: 1,
            cp: 1,
            tp: 1,
            sp: false,
            ep: 1,
            etp: 1,
            recompute: Again::None,
            paired: false,
            offload: false,
            microbatch: None,
            rtp: None,
            nodes: None,
            staleness: None,
        }
    }
}

/// Names of choices, as `--pin` and `# pinned:` take them.
pub const CHOICES: &[&str] = &[
    "plan",
    "pp",
    "chunks",
    "dp",
    "fsdp",
    "cp",
    "tp",
    "sp",
    "ep",
    "etp",
    "recompute",
    "offload",
    "microbatch",
    "rtp",
    "pool",
    "staleness",
];

impl Layout {
    /// Ranks of the mesh that trains.
    pub fn ranks(&self) -> usize {
        self.pp * self.dp * self.fsdp * self.cp * self.tp
    }

    /// Ranks that take samples of their own.
    pub fn ways(&self) -> usize {
        self.dp * self.fsdp
    }

    /// Axes of the mesh, the fastest last, then those of experts. Axes of size 1 are left out, but
    /// for the one of data parallel ranks.
    pub fn axes(&self) -> Vec<(&'static str, usize)> {
        let data = if self.family == Family::Fsdp { "fsdp" } else { "dp" };
        let all = [
            ("pp", self.pp),
            ("dp", self.dp),
            ("fsdp", self.fsdp),
            ("cp", self.cp),
            ("tp", self.tp),
            ("ep", self.ep),
            ("etp", self.etp),
        ];
        all.into_iter().filter(|(n, size)| *size > 1 || *n == data).collect()
    }

    /// Without experts apart there is nothing to hide.
    fn is_paired(&self) -> bool {
        self.paired && self.ep > 1
    }

    /// The plan as an expression; `split` has the layers of each stage where they are uneven.
    pub fn plan(&self, prefix: &str, split: Option<&[usize]>) -> String {
        let mut given = vec![];
        if self.sp {
            given.push("sp: true".to_string());
        }
        if self.recompute != Again::None {
            given.push(format!("recompute: {}", self.recompute.word()));
        }
        if self.chunks > 1 {
            given.push(format!("chunks: {}", self.chunks));
        }
        if let Some(split) = split {
            given.push(format!("split: {split:?}"));
        }
        if self.is_paired() {
            given.push("paired: true".to_string());
        }
        let away = if self.offload { format!(" * {prefix}offloaded()") } else { String::new() };
        let megatron = format!("{prefix}megatron({})", given.join(", "));
        let base = match self.family {
            Family::Fsdp => "fsdp()",
            Family::Hsdp => "hsdp()",
            Family::Megatron | Family::Own => return megatron + &away,
        };
        let more = match (self.pp * self.cp * self.tp * self.ep * self.etp, self.recompute) {
            (1, Again::None) => String::new(),
            (1, again) => format!(" * {prefix}recomputed({})", again.word()),
            _ => format!(" * {megatron}"),
        };
        format!("{prefix}{base}{more}{away}")
    }

    /// `dp 4 tp 4 sp pp 4x2`, as tables show it.
    pub fn name(&self) -> String {
        let mut out = String::new();
        for (name, size) in self.axes() {
            let _ = match name {
                "pp" if self.chunks > 1 => write!(out, "pp {size}x{} ", self.chunks),
                "tp" if self.sp => write!(out, "tp {size} sp "),
                _ => write!(out, "{name} {size} "),
            };
        }
        if self.recompute != Again::None {
            let _ = write!(out, "{} ", self.recompute.word());
        }
        if self.is_paired() {
            out += "paired ";
        }
        if self.offload {
            out += "offload ";
        }
        if let Some(n) = self.microbatch {
            let _ = write!(out, "{n} tok ");
        }
        if let Some(n) = self.rtp {
            let _ = write!(out, "rtp {n} ");
        }
        if let Some(n) = self.nodes {
            let _ = write!(out, "{n} nodes train ");
        }
        if let Some(n) = self.staleness {
            let _ = write!(out, "stale {n} ");
        }
        out.trim_end().to_string()
    }

    /// Does `other` make the same choice of this name?
    pub fn agrees(&self, other: &Layout, choice: &str) -> bool {
        match choice {
            "plan" => self.family == other.family,
            "pp" => self.pp == other.pp,
            "chunks" => self.chunks == other.chunks,
            "dp" => self.dp == other.dp,
            "fsdp" => self.fsdp == other.fsdp,
            "cp" => self.cp == other.cp,
            "tp" => self.tp == other.tp,
            "sp" => self.sp == other.sp,
            "ep" => self.ep == other.ep,
            "etp" => self.etp == other.etp,
            "recompute" => self.recompute == other.recompute,
            "offload" => self.offload == other.offload,
            "microbatch" => self.microbatch == other.microbatch,
            "rtp" => self.rtp == other.rtp,
            "pool" => self.nodes == other.nodes,
            "staleness" => self.staleness == other.staleness,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_as_recipes_write_them() {
        let l = Layout { dp: 4, tp: 4, pp: 4, sp: true, chunks: 2, ..Layout::default() };
        assert_eq!(l.axes(), [("pp", 4), ("dp", 4), ("tp", 4)]);
        assert_eq!(l.plan("plans.", None), "plans.megatron(sp: true, chunks: 2)");
        assert_eq!(l.name(), "pp 4x2 dp 4 tp 4 sp");
        let l =
            Layout { family: Family::Fsdp, fsdp: 16, recompute: Again::Full, ..Layout::default() };
        assert_eq!(l.axes(), [("fsdp", 16)]);
        assert_eq!(l.plan("plans.", None), "plans.fsdp() * plans.recomputed(full)");
        let l = Layout { tp: 2, ..l };
        assert_eq!(l.plan("", None), "fsdp() * megatron(recompute: full)");
        let paired = Layout { dp: 2, ep: 8, paired: true, ..Layout::default() };
        assert_eq!(paired.plan("", None), "megatron(paired: true)");
        assert_eq!(Layout { ep: 1, ..paired }.plan("", None), "megatron()");
        let l = Layout { offload: true, ..l };
        assert_eq!(l.plan("", None), "fsdp() * megatron(recompute: full) * offloaded()");
        assert_eq!(l.name(), "fsdp 16 tp 2 full offload");
        let l = Layout { pp: 4, ..Layout::default() };
        let split = l.plan("plans.", Some(&[3, 2, 2, 2]));
        assert_eq!(split, "plans.megatron(split: [3, 2, 2, 2])");
    }
}
