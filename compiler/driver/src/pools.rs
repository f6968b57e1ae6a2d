//! Generators beside what else is on their devices, and what waits on the hosts meanwhile.
//!
//! In: a compiled program whose generators ask for memory. Out: an error where the pool of keys and values is
//! smaller than the longest sequence, where a generator asks for more than is free when it starts, and
//! where what leaves the devices while it samples is more than the hosts hold.

use nrl_base::{Diagnostic, Span};
use nrl_lower::facts::Asked;
use nrl_sim::generation::{Engine, Pool, SCRATCH};
use nrl_sim::host::{self, Host, Room};
use nrl_sim::{Device, Memory, stack};

use crate::{Compiled, fits, rules};

const GIB: f64 = 1_073_741_824.0;

/// Tokens per block of a pool, as paged engines have it.
const BLOCK: usize = 16;

/// A generator on devices.
struct Sampler<'a> {
    c: &'a Compiled,
    index: usize,
    device: Device,
    asked: Asked,
    /// Where it asks.
    at: Span,
    /// Bytes of its weights on a rank, and of a token in all layers.
    weights: f64,
    per_token: f64,
    /// The update that shares its devices, if any.
    beside: Option<Memory>,
}

/// What the generators of a program find.
pub(crate) fn findings(c: &Compiled) -> Vec<Diagnostic> {
    samplers(c)
        .iter()
        .filter_map(|s| s.too_much().or_else(|| s.too_small()).or_else(|| s.waiting()))
        .collect()
}

fn samplers(c: &Compiled) -> Vec<Sampler<'_>> {
    let stages = fits::memory(c);
    let mut out = vec![];
    for (index, (g, facts)) in c.program.generators.iter().zip(&c.facts.generators).enumerate() {
        let Some((asked, at)) = facts.memory else { continue };
        let name = format!("sample by {}", g.name);
        let Some(own) = stages.iter().find(|m| m.stage == name && m.mesh == g.mesh) else {
            continue;
        };
        let term = |t: &str| own.terms.iter().find(|x| x.name == t).map_or(0.0, |x| x.bytes);
        let cluster = |mesh: usize| c.facts.meshes.get(mesh).and_then(|m| m.cluster);
        let shares = |m: &Memory| m.mesh == g.mesh || cluster(m.mesh) == cluster(g.mesh);
        let width = if fits::is_bf16(c, g.model) { 2.0 } else { 4.0 };
        out.push(Sampler {
            c,
            index,
            device: own.device.clone(),
            asked,
            at,
            weights: term("weights"),
            per_token: nrl_sim::per_token(
                &c.plans[g.graph],
                c.framework.memory.engine.map_or(width, |(_, kept)| kept),
                c.program.models[g.model].context,
            ),
            beside: stages.iter().find(|m| m.is_update() && shares(m)).cloned(),
        });
    }
    out
}

impl Sampler<'_> {
    fn name(&self) -> &str {
        &self.c.program.generators[self.index].name
    }

    fn context(&self) -> usize {
        self.c.program.models[self.c.program.generators[self.index].model].context
    }

    fn engine(&self) -> Engine {
        let share = match self.asked {
            Asked::Share(x) => x,
            Asked::Bytes(b) => b / self.device.memory,
            Asked::Tokens(n) => (n * self.per_token + self.weights + SCRATCH) / self.device.memory,
        };
        // Trainers that left their tensors on the host keep a context and communicators.
        let resident =
            if self.beside.is_some() { stack::CONTEXT + stack::COMMUNICATORS } else { 0.0 };
        Engine {
            device: self.device.memory,
            resident,
            share,
            weights: self.weights,
            scratch: SCRATCH,
        }
    }

    fn pool(&self) -> Pool {
        Pool { bytes: self.engine().pool(), per_token: self.per_token, block: BLOCK }
    }

    /// It asks for a share of the whole device, and others hold a part of it.
    fn too_much(&self) -> Option<Diagnostic> {
        let e = self.engine();
        if e.starts() {
            return None;
        }
        let text = format!(
            "`{}` asks for {:.2} GiB, and {:.2} GiB of {} are free when it starts",
            self.name(),
            e.wanted() / GIB,
            e.free() / GIB,
            self.device.name
        );
        let most = (100.0 * e.most()).floor();
        let mut d = Diagnostic::error("engine-over-memory", text).label(self.at, "asked for here");
        if let Some(span) = self.beside.as_ref().and_then(|m| rules::place_of(m.origin)) {
            d = d.label(span, "this update leaves its context on the device");
        }
        Some(d.help(format!("write `memory: {most:.0} % of device`")))
    }

    /// The longest sequence does not fit into the pool.
    fn too_small(&self) -> Option<Diagnostic> {
        let (pool, longest) = (self.pool(), self.context());
        if self.per_token <= 0.0 || pool.tokens() >= longest {
            return None;
        }
        let text = format!(
            "`{}` has room for {} tokens of keys and values, and one sequence may have {longest}",
            self.name(),
            pool.tokens()
        );
        let e = self.engine();
        let note = format!(
            "{:.2} GiB asked for - weights {:.2} - scratch {:.2} (assumed) = {:.2} GiB, {} blocks of {BLOCK} \
             tokens of {:.0} bytes; one sequence takes {:.4} GiB",
            e.wanted() / GIB,
            e.weights / GIB,
            e.scratch / GIB,
            pool.bytes / GIB,
            pool.blocks(),
            pool.per_token,
            pool.of(longest) / GIB
        );
        let needed = (pool.of(longest) + e.weights + e.scratch) / e.device;
        let mut ways = vec![];
        if pool.tokens() > 0 {
            ways.push(format!("`context: {} tokens` on the model", pool.tokens()));
        }
        if needed <= e.most() {
            ways.push(format!("`memory: {:.0} % of device`", (100.0 * needed).ceil()));
        }
        ways.push("a larger `tp` on its mesh".into());
        let d = Diagnostic::error("kv-pool-too-small", text).label(self.at, "asked for here");
        Some(d.note(note).help(ways.join(", or ")))
    }

    /// Models that are updated on its cluster.
    fn trained(&self) -> Vec<usize> {
        let cluster = |mesh: usize| self.c.facts.meshes.get(mesh).and_then(|m| m.cluster);
        let own = self.beside.as_ref().and_then(|m| cluster(m.mesh));
        let all = fits::memory(self.c);
        let here = all.iter().filter(|m| m.is_update() && cluster(m.mesh) == own);
        let mut models: Vec<usize> = here.map(|m| m.model).collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// What the trainer beside it keeps on the hosts while it samples.
    fn waiting(&self) -> Option<Diagnostic> {
        let beside = self.beside.as_ref()?;
        let term = |names: &[&str]| -> f64 {
            beside.terms.iter().filter(|t| names.contains(&t.name)).map(|t| t.bytes).sum()
        };
        let (weights, state) = (term(&["weights"]), term(&["gradients", "optimizer"]));
        let free =
            self.device.memory - self.engine().wanted() - stack::CONTEXT - stack::COMMUNICATORS;
        if weights + state <= free {
            return None;
        }
        let facts = &self.c.facts;
        let cluster = &facts.clusters[facts.meshes[beside.mesh].cluster?];
        let parameters: f64 =
            self.trained().iter().map(|m| parameters(&self.c.program.models[*m])).sum();
        let nodes = cluster.ranks.div_ceil(cluster.per_node.max(1));
        let host = Host {
            parameters,
            nodes,
            ranks: cluster.per_node,
            optimizer: true,
            weights: true,
            ..Host::default()
        };
        let (all, has) = (host.sum(), cluster.device.host_bytes);
        if has <= 0.0 || host::room(all, has) != Room::TooLittle {
            return None;
        }
        let names: Vec<String> = self
            .trained()
            .iter()
            .map(|m| format!("`{}`", self.c.program.models[*m].name))
            .collect();
        let text = format!(
            "{} must wait on the hosts while `{}` samples: {:.0} GB per node, a node has {:.0}",
            names.join(" and "),
            self.name(),
            all / 1e9,
            has / 1e9
        );
        let terms: Vec<String> = host
            .terms()
            .iter()
            .map(|t| format!("{} {:.0} GB ({})", t.name, t.bytes / 1e9, t.how))
            .collect();
        let d = Diagnostic::error("host-memory", text)
            .label(cluster.span, format!("{nodes} nodes"))
            .label(self.at, "asks for memory that the trainer must leave");
        let enough = (host.sum() * nodes as f64 / has).ceil();
        Some(
            d.note(terms.join(" + "))
                .help(format!("{enough:.0} nodes hold it, or sample on a mesh of its own")),
        )
    }
}

/// Numbers in the weights of a model.
fn parameters(m: &nrl_ir::program::Model) -> f64 {
    let each = |p: &nrl_ir::ParamDecl| {
        let layers = p.repeat.as_ref().map_or(1, |(_, n)| *n);
        (layers * p.dims.iter().map(|d| m.dims.bound(*d)).product::<usize>()) as f64
    };
    m.params.iter().map(each).sum()
}
