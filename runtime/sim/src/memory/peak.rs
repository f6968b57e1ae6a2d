//! The most that a rank holds while a model is updated, by term.
//!
//! In: a plan, the sizes and number of micro-batches, and a [`Stack`]. Out: terms of the fullest stage of the
//! pipeline, at the fuller of two moments: the loss, when all layers have been kept and logits stand, and
//! the backward pass of the last layer. States follow the layouts of the plan (ZeRO: Rajbhandari et
//! al. 2020); what is kept in flight follows 1F1B, plain or interleaved (Narayanan et al. 2021).

use nrl_ir::plan::{ParamLayout, Plan};
use nrl_ir::{Graph, Mesh, ParamDecl};
use serde::Serialize;

use super::profile::{Group, Profile, experts};
use super::stack::{COMMUNICATORS, CONTEXT, Selective, Stack};
use super::{GIB, Precision, Term};
use crate::work::Sizes;

/// An update whose memory is asked for.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub plan: &'a Plan,
    /// The mesh with its axes; the plan's own, or one that differs in `dp` and `pp` alone.
    pub mesh: &'a Mesh,
    pub precision: Precision,
    /// Of one micro-batch on one data-parallel rank.
    pub sizes: Sizes,
    /// Micro-batches of one update on one rank.
    pub micro: usize,
    /// Chunks of layers per stage of the pipeline.
    pub chunks: usize,
    /// State tensors of the optimizer; two for Adam.
    pub moments: f64,
    /// Weights in 16 bits are updated in place, without a copy in f32.
    pub no_master: bool,
    /// Layers keep what the stack calls selective, whatever the plan stacks.
    pub selective: bool,
    pub offload: Offload,
    /// Rank of low-rank adapters on every matrix; weights are frozen then.
    pub adapters: Option<f64>,
}

/// What stays on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Offload {
    /// What layers keep for the backward pass.
    pub activations: bool,
    /// Gradients and all of the optimizer's state.
    pub optimizer: bool,
    /// Share of the optimizer's state, with gradients left on the device.
    pub state: f64,
}

impl Offload {
    /// Share of the optimizer's state that is on the host.
    pub fn of_state(&self) -> f64 {
        if self.optimizer { 1.0 } else { self.state.clamp(0.0, 1.0) }
    }
}

/// Where weights stand in the model.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Layer,
    Before,
    After,
    /// An embedding that is also the head.
    Both,
}

/// What the fullest rank holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Peak {
    /// Stage of the pipeline, from 0.
    pub stage: usize,
    pub terms: Vec<Term>,
}

impl Peak {
    /// Bytes of the terms with these names.
    pub fn of(&self, names: &[&str]) -> f64 {
        self.terms.iter().filter(|t| names.contains(&t.name)).map(|t| t.bytes).sum()
    }

    /// Weights, gradients, optimizer state, adapters.
    pub fn states(&self) -> f64 {
        self.of(&["weights", "gradients", "optimizer", "adapters"])
    }

    /// What an allocator has given out at most.
    pub fn allocated(&self) -> f64 {
        self.reserved() - self.of(&["reserve"])
    }

    /// What an allocator has taken from the driver at most.
    pub fn reserved(&self) -> f64 {
        self.total() - self.of(&["context"])
    }

    /// All that is gone from the device.
    pub fn total(&self) -> f64 {
        self.terms.iter().map(|t| t.bytes).sum()
    }
}

impl Load<'_> {
    /// The fullest stage on a stack, on a device of `memory` bytes if that is known.
    pub fn peak(&self, stack: &Stack, memory: Option<f64>) -> Peak {
        let profile = Profile::of(self.plan, &self.sizes, self.precision);
        self.of(&profile, stack, memory)
    }

    /// The same with the profile already at hand.
    pub fn of(&self, profile: &Profile, stack: &Stack, memory: Option<f64>) -> Peak {
        let pp = self.mesh.size("pp").max(1);
        let stages = (0..pp).filter(|s| *s < 2 || *s + 1 == pp);
        let all = stages.map(|s| self.stage(profile, stack, s, pp, memory));
        all.max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default()
    }

    /// Bytes kept by layers on the first stage: what published activation figures count.
    pub fn kept(&self, stack: &Stack) -> f64 {
        let profile = Profile::of(self.plan, &self.sizes, self.precision);
        let pp = self.mesh.size("pp").max(1);
        let at = Stage { load: self, stack, profile: &profile, stage: 0, pp };
        at.kept()
    }

    /// Bytes of states on a stage that holds neither embedding nor head.
    pub fn inner_states(&self, stack: &Stack) -> f64 {
        let profile = Profile::of(self.plan, &self.sizes, self.precision);
        let pp = self.mesh.size("pp").max(1);
        let at = Stage { load: self, stack, profile: &profile, stage: usize::MAX, pp };
        at.states().iter().map(|t| t.bytes).sum()
    }

    fn stage(
        &self,
        profile: &Profile,
        stack: &Stack,
        stage: usize,
        pp: usize,
        memory: Option<f64>,
    ) -> Peak {
        let at = Stage { load: self, stack, profile, stage, pp };
        let mut terms = at.states();
        let states: f64 = terms.iter().map(|t| t.bytes).sum();
        let moving = at.moving();
        let comes_and_goes: f64 = moving.iter().map(|t| t.bytes).sum();
        terms.extend(moving);
        let share = stack.reserve;
        let base = comes_and_goes + if stack.reserve_of_states { states } else { 0.0 };
        let allocated = states + comes_and_goes;
        let reserve = share * base;
        let made = at.made() - allocated - reserve;
        if made > 0.0 {
            let how = "the whole model stands on the device while it is made".into();
            terms.push(Term { name: "making", bytes: made, how });
        }
        // The allocator gives back what it holds before it fails.
        let room = memory.map_or(f64::INFINITY, |m| (0.965 * m - allocated).max(0.0));
        terms.push(Term {
            name: "reserve",
            bytes: reserve.min(room),
            how: format!("{:.1} % of what comes and goes: fitted", 100.0 * share),
        });
        let several = self.mesh.ranks() > 1;
        let context = CONTEXT + if several { COMMUNICATORS } else { 0.0 };
        let how = "driver and communicators: assumed".into();
        terms.push(Term { name: "context", bytes: context, how });
        terms.retain(|t| t.bytes > 0.0);
        Peak { stage, terms }
    }
}

/// One stage of the pipeline.
struct Stage<'a> {
    load: &'a Load<'a>,
    stack: &'a Stack,
    profile: &'a Profile,
    stage: usize,
    pp: usize,
}

impl Stage<'_> {
    fn graph(&self) -> Option<&Graph> {
        self.load.plan.classes.first().map(|c| &c.graph)
    }

    fn is_first(&self) -> bool {
        self.stage == 0
    }

    fn is_last(&self) -> bool {
        self.stage.checked_add(1) == Some(self.pp)
    }

    /// Layers of each group on this stage, as the plan deals them out, else in order.
    fn layers(&self) -> Vec<(usize, &Group)> {
        let stage = self.stage.min(self.pp - 1);
        if let Some(pipeline) = self.load.plan.pipeline.as_ref().filter(|p| p.ranks == self.pp) {
            let share = pipeline.stage(stage);
            let count = |g: &Group| {
                share.layers.iter().filter(|(name, _)| *name == g.name).map(|(_, n)| n).sum()
            };
            return self.profile.groups.iter().map(|g| (count(g), g)).collect();
        }
        let chunks = self.load.chunks.max(1);
        let parts = self.pp * chunks;
        let total: usize = self.profile.groups.iter().map(|g| g.count).sum();
        let (mut first, mut held) = (0, vec![false; total]);
        for part in 0..parts {
            let count = total / parts + usize::from(part < total % parts);
            if part % self.pp == stage {
                held[first..first + count].iter_mut().for_each(|h| *h = true);
            }
            first += count;
        }
        let mut start = 0;
        let mut out = vec![];
        for g in &self.profile.groups {
            out.push((held[start..start + g.count].iter().filter(|h| **h).count(), g));
            start += g.count;
        }
        out
    }

    /// Micro-batches whose layers are kept at once, as a multiple of this stage's own layers.
    fn in_flight(&self) -> f64 {
        // A forward runs beside a backward of another micro-batch.
        let beside = usize::from(self.load.plan.paired);
        if self.pp == 1 {
            return (1 + beside).min(self.load.micro.max(1)) as f64;
        }
        let (pp, chunks) = (self.pp, self.load.chunks.max(1));
        let later = self.pp - 1 - self.stage.min(self.pp - 1);
        let most = self.load.micro.saturating_mul(chunks);
        if chunks == 1 {
            // Paired, twice as many begin (`pipeline::warm`).
            return ((1 + beside) * (later + 1)).min(most) as f64;
        }
        let parts = ((chunks - 1) * pp + 2 * later + 1 + beside).min(most);
        parts as f64 / chunks as f64
    }

    /// Is it an adapter of the plan, beside frozen weights? They are counted by rank and slots.
    fn is_adapter(&self, p: &ParamDecl) -> bool {
        let frozen = || self.graph().is_some_and(|g| g.params.iter().any(|q| !q.trained));
        self.load.adapters.is_some() && p.trained && frozen()
    }

    fn is_trained(&self, p: &ParamDecl) -> bool {
        p.trained && self.load.adapters.is_none()
    }

    /// How often each parameter is held here, and where it stands.
    fn parameters(&self) -> Vec<(f64, &ParamDecl, &ParamLayout, Place)> {
        let Some(g) = self.graph() else { return vec![] };
        let (before, after) = super::uses(g);
        let layers = self.layers();
        let mut out = vec![];
        for (i, (p, layout)) in g.params.iter().zip(&self.load.plan.params).enumerate() {
            let (times, place) = match &p.repeat {
                Some((name, n)) => {
                    let here = layers.iter().find(|(_, g)| g.name == *name);
                    let even = (*n as f64 / self.pp as f64).ceil();
                    let turns = |n: usize| n as f64 / p.apart() as f64;
                    (here.map_or(even, |(n, _)| turns(*n)), Place::Layer)
                }
                None if before.contains(&i) && after.contains(&i) => {
                    (f64::from(u8::from(self.is_first() || self.is_last())), Place::Both)
                }
                None if before.contains(&i) => {
                    (f64::from(u8::from(self.is_first())), Place::Before)
                }
                None => (f64::from(u8::from(self.is_last())), Place::After),
            };
            out.push((times, p, layout, place));
        }
        out
    }

    fn local(&self, p: &ParamDecl) -> f64 {
        let Some(g) = self.graph() else { return 0.0 };
        p.dims.iter().map(|d| g.dims.bound(*d) as f64).product()
    }

    /// Bytes of a number where a model computes, over those in 16 bits.
    fn wide(&self) -> f64 {
        if self.load.precision == Precision::Bf16 { 1.0 } else { 2.0 }
    }

    fn states(&self) -> Vec<Term> {
        let s = self.stack;
        let half = self.load.precision == Precision::Bf16;
        let mesh = self.load.mesh;
        let over = |axes: &[String]| mesh.size_over(axes).max(1) as f64;
        let (mut held, mut frozen, mut gradients, mut state) = (0.0, 0.0, 0.0, 0.0);
        for (times, p, layout, _) in self.parameters().into_iter().filter(|x| !self.is_adapter(x.1))
        {
            let number = times * self.local(p);
            if self.is_trained(p) {
                held += number / over(&layout.flat);
                gradients += number / over(&layout.grads).max(over(&layout.flat));
                state += number / over(&layout.state).max(over(&layout.flat));
            } else {
                frozen += number / over(&layout.flat);
            }
        }
        let in_place = self.load.no_master;
        let weight = match half {
            true if in_place => 2.0,
            true => s.weights,
            false => 4.0,
        };
        let still = if half { s.frozen } else { 4.0 };
        let master = if half && !in_place { s.master } else { 0.0 };
        let each = 4.0 * self.load.moments + master;
        let gradient = if half { s.gradients } else { 4.0 };
        let away = self.load.offload;
        let gradient = if away.optimizer { 0.0 } else { gradient };
        let share = away.of_state();
        let rest = match share {
            0.0 => String::new(),
            _ => format!(", {:.0} % of it on the host", 100.0 * share),
        };
        let g = |n: f64| n / 1e9;
        let mut terms = vec![
            Term {
                name: "weights",
                bytes: held * weight + frozen * still,
                how: match frozen > 0.0 {
                    true if held == 0.0 => format!("{:.3} G frozen of {still} bytes", g(frozen)),
                    true => {
                        format!("{:.3} G of {weight} bytes, {:.3} G frozen", g(held), g(frozen))
                    }
                    false => format!("{:.3} G parameters of {weight} bytes", g(held)),
                },
            },
            Term {
                name: "gradients",
                bytes: gradients * gradient,
                how: format!("{:.3} G parameters of {gradient} bytes", g(gradients)),
            },
            Term {
                name: "optimizer",
                bytes: state * each * (1.0 - share),
                how: format!("{:.3} G parameters of {each} bytes{rest}", g(state)),
            },
        ];
        if let Some(rank) = self.load.adapters {
            terms.push(self.adapters(rank));
        }
        terms
    }

    /// Low-rank adapters beside every matrix of the layers; those of experts are cut as experts are, others whole
    /// on each rank.
    fn adapters(&self, rank: f64) -> Term {
        let (slots, bytes) = self.stack.adapters;
        let mut number = 0.0;
        for (times, p, layout, place) in self.parameters() {
            let Some(g) = self.graph() else { break };
            let of = experts(g, &p.dims);
            let other = p.checkpoint_dims.len() < 2 || is_router(g, p) || self.is_adapter(p);
            if place != Place::Layer || other {
                continue;
            }
            let side = |ds: &Vec<nrl_ir::DimId>| {
                ds.iter().map(|d| g.dims.bound(*d) as f64).product::<f64>()
            };
            let sides: Vec<f64> = p.checkpoint_dims.iter().map(side).collect();
            let one: f64 = sides.iter().rev().take(2).sum::<f64>() * rank * of;
            let cut = if of > 1.0 { self.load.mesh.size_over(&layout.flat).max(1) } else { 1 };
            number += times * one / cut as f64;
        }
        let how = format!("{slots} of rank {rank}, {:.3} G numbers of {bytes} bytes", number / 1e9);
        Term { name: "adapters", bytes: slots * bytes * number, how }
    }

    /// What layers keep for the backward pass, of all micro-batches in flight.
    fn kept(&self) -> f64 {
        if self.load.offload.activations {
            return 0.0;
        }
        let each: f64 = self.layers().iter().map(|(n, g)| *n as f64 * self.layer(g)).sum();
        each * self.in_flight()
    }

    /// What one layer keeps of one micro-batch.
    fn layer(&self, g: &Group) -> f64 {
        let s = self.stack;
        if self.load.selective && s.selective == Selective::EverySecond {
            return g.every_second;
        }
        let mut bytes = g.stacked;
        // A layer that is computed again keeps what enters alone.
        if bytes > 1.01 * g.boundary {
            bytes += s.masks * g.stream;
            if !self.load.selective {
                bytes += s.scores * g.score_rows * 2.0 * self.load.sizes.context;
            }
            if s.twice && self.load.mesh.size("cp") > 1 {
                bytes += 2.0 * self.wide() * g.mixed;
            }
        }
        bytes
    }

    /// Numbers of weights that stand before or after the layers here.
    fn ends(&self, trained: bool) -> f64 {
        let at = |p: Place| p == Place::Before || p == Place::After || p == Place::Both;
        let all = self.parameters();
        let matrices = all.iter().filter(|(n, p, _, place)| {
            *n > 0.0 && at(*place) && p.dims.len() > 1 && (!trained || self.is_trained(p))
        });
        matrices.map(|(_, p, _, _)| self.local(p)).fold(0.0, f64::max)
    }

    /// What comes and goes within an update.
    fn moving(&self) -> Vec<Term> {
        let (s, load) = (self.stack, self.load);
        let w = self.wide();
        let tokens = self.load.sizes.tokens;
        let mut terms = vec![];
        let layers = self.layers();
        let flight = self.in_flight();
        terms.push(Term {
            name: "activations",
            bytes: self.kept(),
            how: match flight > 1.0 {
                true => format!("{tokens:.0} tokens at once, {flight:.2} micro-batches in flight"),
                false => format!("{tokens:.0} tokens at once"),
            },
        });
        let here: Vec<&Group> = layers.iter().filter(|(n, _)| *n > 0).map(|(_, g)| *g).collect();
        let largest = here.iter().map(|g| g.weights).fold(0.0, f64::max);
        let ends = self.ends(false);
        let piped = self.pp > 1 && s.whole_stage;
        let own: f64 = self.parameters().iter().map(|(n, p, _, _)| n * self.local(p)).sum();
        let gathered = match piped {
            true => 2.0 * w * own,
            false => s.gathered * 2.0 * w * largest + s.head_held * ends,
        };
        terms.push(Term {
            name: "gathered",
            bytes: gathered + s.held,
            how: "weights put together".into(),
        });
        let trains = load.adapters.is_none();
        let mut sums = 0.0;
        if piped && trains {
            sums += 4.0 * own;
        }
        if s.dummies && trains {
            sums += 2.0 * w * here.iter().map(|g| g.shapes).sum::<f64>();
        }
        terms.push(Term {
            name: "weight gradients",
            bytes: sums,
            how: "before they are summed".into(),
        });
        let back = self.backward(&here, piped);
        let loss = if self.is_last() { self.loss() } else { 0.0 };
        terms.push(match loss > back {
            true => Term {
                name: "loss",
                bytes: loss,
                how: format!(
                    "{:.2} G logits of {} bytes ({:.2} GiB in f32), and beside them",
                    self.logits() / 1e9,
                    self.per_logit(),
                    4.0 * self.logits() / GIB
                ),
            },
            false => Term {
                name: "backward",
                bytes: back,
                how: match loss > 0.0 {
                    true => format!(
                        "gradients and scratch of one layer; the loss has {:.2} GiB of logits in f32",
                        4.0 * self.logits() / GIB
                    ),
                    false => "gradients and scratch of one layer".into(),
                },
            },
        });
        terms
    }

    /// The backward pass of one layer.
    fn backward(&self, here: &[&Group], piped: bool) -> f64 {
        let (s, trains) = (self.stack, self.load.adapters.is_none());
        let one = |g: &&Group| {
            let again = (g.kept.sum() - self.layer(g)).max(0.0);
            let k = &g.kept;
            again
                + s.backward.stream * k.stream
                + s.backward.inner * k.inner
                + s.backward.rows * k.rows
        };
        let layer = here.iter().map(one).fold(0.0, f64::max);
        let weights = here.iter().map(|g| g.weights).fold(0.0, f64::max);
        let tied = self.parameters().iter().any(|(n, _, _, p)| *n > 0.0 && *p == Place::Both);
        let mut bytes = layer;
        if trains && !piped {
            bytes += s.layer_gradient * weights;
            bytes += if tied { s.tied_gradient * self.ends(true) } else { 0.0 };
        }
        if self.profile.shared {
            bytes += s.shared_hidden * self.profile.hidden;
        }
        bytes
    }

    fn logits(&self) -> f64 {
        let h = &self.profile.head;
        h.rows * self.stack.loss.columns.map_or(h.columns, |c| c.min(h.columns))
    }

    fn per_logit(&self) -> f64 {
        let l = &self.stack.loss;
        l.each + if self.profile.head.cut { l.cut } else { 0.0 }
    }

    /// Logits, their gradient, and what the head needs for its own.
    fn loss(&self) -> f64 {
        let l = &self.stack.loss;
        let boundary = self.profile.groups.last().map_or(0.0, |g| g.boundary);
        self.logits() * self.per_logit()
            + l.head * self.ends(true)
            + l.hidden * self.profile.hidden
            + if self.stack.dummies { boundary } else { 0.0 }
    }

    /// The whole model, and the part of it that stays, where it is made on the device.
    fn made(&self) -> f64 {
        let over = |axes: &[String]| self.load.mesh.size_over(axes).max(1) as f64;
        let of = |(n, p, l, _): &(f64, &ParamDecl, &ParamLayout, Place)| {
            n * self.local(p) * (1.0 + 1.0 / over(&l.flat))
        };
        self.stack.made * self.parameters().iter().map(of).sum::<f64>()
    }
}

/// A matrix that scores experts: no adapter goes beside it.
fn is_router(g: &Graph, p: &ParamDecl) -> bool {
    let named = |d: &nrl_ir::DimId| matches!(g.dims.name(*d), "expert" | "choice");
    p.dims.len() == 2 && p.dims.iter().any(named)
}

impl std::fmt::Display for Peak {
    /// `58.1 GiB: weights 1.9 + activations 31.0 + ..`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let terms: Vec<String> =
            self.terms.iter().map(|t| format!("{} {:.2}", t.name, t.bytes / GIB)).collect();
        write!(f, "{:.2} GiB: {}", self.total() / GIB, terms.join(" + "))
    }
}
