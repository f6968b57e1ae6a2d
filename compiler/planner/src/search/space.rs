//! Which layouts there are: what cuts the plans of a model, and what is put together around a cut.
//!
//! In: facts of a recipe, its own layout and pins. Out: cuts, each of which is compiled once, and for
//! a cut the numbers of stages, chunks, copies and tokens of a micro-batch that go with it. What cannot be is
//! left out by the divisors that the compiler asks for too, and by a lower bound of memory.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::layout::{Again, Family, Layout};
use super::sites::Sites;

/// Reasons why layouts were left out, with how many.
pub type Left = BTreeMap<&'static str, usize>;

/// What plans of a model depend on: layouts that agree in it share their plans, but for sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cut {
    pub family: Family,
    pub cp: usize,
    pub tp: usize,
    pub sp: bool,
    pub ep: usize,
    pub etp: usize,
    /// Layers are computed again, all of them.
    pub full: bool,
    /// Axes of one rank leave no trace in plans: which of `pp`, `dp`, `fsdp` and of the copies of experts
    /// have more.
    pub pp: bool,
    pub dp: bool,
    pub fsdp: bool,
    pub edp: bool,
}

impl Cut {
    /// The cut of a layout.
    pub fn of(l: &Layout) -> Cut {
        let folded = l.dp * l.fsdp * l.cp * l.tp;
        Cut {
            family: l.family,
            cp: l.cp,
            tp: l.tp,
            sp: l.sp,
            ep: l.ep,
            etp: l.etp,
            full: l.recompute == Again::Full,
            pp: l.pp > 1,
            dp: l.dp > 1,
            fsdp: l.fsdp > 1,
            edp: folded > l.ep * l.etp,
        }
    }
}

/// What of a model, a cluster and pins decides on layouts.
pub struct Space<'a> {
    pub facts: &'a Facts,
    pub sites: &'a Sites,
}

impl Space<'_> {
    /// Every layout of training that is worth a look, on `ranks` ranks. Those that cannot be are counted in `left`.
    pub fn layouts(&self, ranks: usize, nodes: Option<usize>, left: &mut Left) -> Vec<Layout> {
        let mut out = vec![];
        for family in self.families() {
            for (tp, sp) in self.tensor() {
                for cp in self.context() {
                    for (ep, etp) in self.experts(tp) {
                        let base = Layout {
                            family,
                            tp,
                            sp,
                            cp,
                            ep,
                            etp,
                            paired: self.sites.current.paired,
                            nodes,
                            rtp: self.sites.current.rtp,
                            staleness: self.sites.current.staleness,
                            ..Layout::default()
                        };
                        self.stages(&base, ranks, left, &mut out);
                    }
                }
            }
        }
        out
    }

    fn stages(&self, base: &Layout, ranks: usize, left: &mut Left, out: &mut Vec<Layout>) {
        for pp in self.pipelines(base.family) {
            let cut = pp * base.cp * base.tp;
            if !ranks.is_multiple_of(cut) {
                *left.entry("ranks are no multiple of the axes").or_default() += 1;
                continue;
            }
            let copies = ranks / cut;
            if !(copies * base.cp * base.tp).is_multiple_of(base.ep * base.etp) {
                *left.entry("experts do not fold over the other axes").or_default() += 1;
                continue;
            }
            if copies > self.facts.samples {
                *left.entry("fewer samples in an update than copies of the model").or_default() +=
                    1;
                continue;
            }
            for (dp, fsdp) in self.copies(base.family, copies) {
                for chunks in self.chunks(pp) {
                    for recompute in [Again::None, Again::Selective, Again::Full] {
                        let one = Layout { pp, dp, fsdp, chunks, recompute, ..base.clone() };
                        let kept = self.kept(&one);
                        if !kept {
                            *left.entry("pinned choices").or_default() += 1;
                        } else if self.least(&one) > self.facts.memory {
                            *left.entry("weights and state alone are too large").or_default() += 1;
                        } else {
                            self.tokens(&one, out);
                        }
                    }
                }
            }
        }
    }

    fn tokens(&self, one: &Layout, out: &mut Vec<Layout>) {
        for microbatch in self.microbatches() {
            let l = Layout { microbatch, ..one.clone() };
            if !self.pinned("microbatch") || l.agrees(&self.sites.current, "microbatch") {
                out.push(l);
            }
        }
    }

    /// Whether the optimizer may be on hosts: what to try first, and what if that does not fit. Nothing gets faster by it.
    pub fn offloads(&self) -> Vec<bool> {
        match self.pinned("offload") {
            true => vec![self.sites.current.offload],
            false => vec![false, true],
        }
    }

    fn pinned(&self, choice: &str) -> bool {
        self.sites.pins.contains(choice)
    }

    /// Does a layout make every pinned choice?
    fn kept(&self, l: &Layout) -> bool {
        let here = |p: &&String| {
            !matches!(p.as_str(), "microbatch" | "rtp" | "pool" | "staleness" | "offload")
        };
        self.sites.pins.iter().filter(here).all(|p| l.agrees(&self.sites.current, p))
    }

    /// Values of a choice; the recipe's own alone if it is pinned.
    fn of(&self, choice: &str, own: usize, all: impl Iterator<Item = usize>) -> Vec<usize> {
        if self.pinned(choice) { vec![own] } else { all.collect() }
    }

    fn families(&self) -> Vec<Family> {
        let own = self.sites.current.family;
        match own == Family::Own || self.pinned("plan") {
            true => vec![own],
            false => vec![Family::Megatron, Family::Fsdp, Family::Hsdp],
        }
    }

    fn tensor(&self) -> Vec<(usize, bool)> {
        let own = &self.sites.current;
        let f = self.facts;
        let fits = |n: &usize| {
            f.heads.is_multiple_of(*n) && f.columns.is_none_or(|c| c.is_multiple_of(*n))
        };
        let sizes = self.of("tp", own.tp, nrl_base::divisors(f.per_node).into_iter().filter(fits));
        let mut out = vec![];
        for tp in sizes {
            if self.pinned("sp") {
                out.push((tp, own.sp));
                continue;
            }
            out.push((tp, tp > 1));
            // Without it experts would get each token `tp` times.
            if tp > 1 && f.experts.is_none() {
                out.push((tp, false));
            }
        }
        out
    }

    /// Ranks that share sequences: each keeps two thousand tokens of the longest.
    fn context(&self) -> Vec<usize> {
        let most = (self.facts.context / 2048).max(1);
        let sizes = powers().take_while(|n| *n <= most.min(self.facts.ranks));
        self.of("cp", self.sites.current.cp, sizes)
    }

    fn experts(&self, tp: usize) -> Vec<(usize, usize)> {
        let Some(n) = self.facts.experts else { return vec![(1, 1)] };
        let own = &self.sites.current;
        let most = self.facts.ranks;
        let sizes = powers().take_while(|e| *e <= most.min(n)).filter(|e| n.is_multiple_of(*e));
        let mut out = vec![];
        for ep in self.of("ep", own.ep, sizes) {
            let near = |etp: &usize| *etp == 1 || ep * etp <= self.facts.per_node;
            let columns =
                |etp: &usize| self.facts.expert_columns.is_none_or(|c| c.is_multiple_of(*etp));
            let mut both = vec![1, tp];
            both.dedup();
            let shares = both.into_iter().filter(near).filter(columns);
            out.extend(self.of("etp", own.etp, shares).into_iter().map(|etp| (ep, etp)));
        }
        out
    }

    fn pipelines(&self, family: Family) -> Vec<usize> {
        let own = self.sites.current.pp;
        if matches!(family, Family::Fsdp | Family::Hsdp) {
            return self.of("pp", own, std::iter::once(1));
        }
        let layers = self.facts.layers;
        // Uneven stages where no even ones are: each has two layers at least.
        let fits = |n: &usize| layers.is_multiple_of(*n) || *n * 2 <= layers;
        let most = self.facts.ranks.min(layers).min(64);
        self.of("pp", own, powers().take_while(|n| *n <= most).filter(fits))
    }

    fn chunks(&self, pp: usize) -> Vec<usize> {
        let layers = self.facts.layers;
        let even = |v: &usize| *v == 1 || pp > 1 && layers.is_multiple_of(pp * v);
        self.of("chunks", self.sites.current.chunks, [1, 2, 3, 4, 5, 6, 8].into_iter().filter(even))
    }

    /// Copies of the model, and ranks that share one.
    fn copies(&self, family: Family, all: usize) -> Vec<(usize, usize)> {
        let own = &self.sites.current;
        match family {
            Family::Megatron => vec![(all, 1)],
            Family::Fsdp => vec![(1, all)],
            Family::Own => {
                let one = (all / own.fsdp.max(1), own.fsdp);
                if own.fsdp > 1 && own.dp == 1 { vec![(1, all)] } else { vec![one] }
            }
            Family::Hsdp => {
                let within = powers().skip(1).take_while(|n| *n < all);
                within.filter(|n| all.is_multiple_of(*n)).map(|n| (all / n, n)).collect()
            }
        }
    }

    /// Tokens of a micro-batch: the longest sample at least.
    fn microbatches(&self) -> Vec<Option<usize>> {
        let own = self.sites.current.microbatch;
        if own.is_none() || self.pinned("microbatch") {
            return vec![own];
        }
        let context = self.facts.context;
        let mut sizes: Vec<usize> = [1, 2, 4, 8].iter().map(|n| n * context).collect();
        sizes.extend(own.filter(|n| *n >= context));
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().map(Some).collect()
    }

    /// Bytes that no rank of a layout can do without: weights and gradients of its share in 16 bits, and the
    /// state in 12 bytes per weight over all ranks where it cannot be on hosts.
    fn least(&self, l: &Layout) -> f64 {
        let f = self.facts;
        let hosts = self.offloads().contains(&true);
        let each = (f.dense + f.routed + f.outside) / l.ranks() as f64;
        if l.family != Family::Megatron {
            return each * if hosts { 4.0 } else { 12.0 };
        }
        let all = each * if hosts { 0.0 } else { 12.0 };
        let share = f.dense / (l.tp * l.pp) as f64 + f.routed / (l.ep * l.etp * l.pp) as f64;
        4.0 * share + all
    }

    /// Layers of each stage, where they cannot be equal.
    pub fn split(&self, l: &Layout) -> Option<Vec<usize>> {
        let layers = self.facts.layers;
        if l.pp == 1 || layers.is_multiple_of(l.pp * l.chunks) {
            return None;
        }
        let parts = l.pp * l.chunks;
        Some((0..parts).map(|i| layers / parts + usize::from(i < layers % parts)).collect())
    }

    /// Sizes of the generator's shared weights.
    pub fn sampling(&self) -> Vec<Option<usize>> {
        let own = self.sites.current.rtp;
        let (Some((heads, ranks)), false) = (self.facts.sampling, self.pinned("rtp")) else {
            return vec![own];
        };
        let sizes =
            powers().take_while(|n| *n <= ranks.min(64)).filter(|n| heads.is_multiple_of(*n));
        sizes.map(Some).collect()
    }

    /// Nodes of the pool that trains.
    pub fn pools(&self) -> Vec<Option<usize>> {
        let own = self.sites.current.nodes;
        let (Some(all), Some(own_nodes), false) = (self.sites.nodes(), own, self.pinned("pool"))
        else {
            return vec![own];
        };
        let mut sizes: Vec<usize> = if all <= 8 {
            (1..all).collect()
        } else {
            let half = powers().take_while(|n| *n <= all / 2);
            half.flat_map(|n| [n, all - n]).collect()
        };
        sizes.push(own_nodes);
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().map(Some).collect()
    }
}

/// 1, 2, 4, ..
fn powers() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |n| Some(n * 2))
}
