//! Clusters, pools, meshes and views: which ranks there are and how they are arranged.
//!
//! In: `gpus = clusters.h100(nodes: 2)`, `pool`, `mesh` and `view` lines. Out: meshes of the program
//! and [`Facts`](crate::facts::Facts). Sizes multiply to the ranks there are; pools of one cluster
//! are disjoint and use all of it.

use nrl_base::{Diagnostic, Span, divisors, listed};
use nrl_ir::host::Value;
use nrl_ir::{Axis, Mesh, View};
use nrl_syntax::ast;

use crate::elab::{El, Elab};
use crate::facts::{ClusterFacts, Device, MeshFacts, ViewFacts};
use crate::intrinsic::Args;
use crate::units::Unit;
use crate::value::{Env, Val};

/// Axes that split the ranks of a mesh.
const DENSE: &[&str] = &["dp", "fsdp", "tp", "pp", "cp", "rep", "rtp"];
/// Axes of the experts: they fold the others.
const EXPERT: &[&str] = &["ep", "etp"];
/// Axes that an engine of this version runs on.
const RUNS: &[&str] = &["dp", "fsdp", "tp", "rep", "rtp"];

impl<'a> Elab<'a, '_> {
    /// `cpu_cluster(ranks)` and `gpu_cluster(device, nodes, gpus)`.
    pub fn cluster(&mut self, mut a: Args<'a>) -> El<Val<'a>> {
        let span = self.user_span(a.span);
        if a.which.name == "cpu_cluster" {
            let (n, s) = a.need("ranks");
            let ranks = self.whole(&n, s, "`ranks`")?.max(1);
            let device = Device { name: "cpu".into(), ..Device::default() };
            return Ok(self.push_cluster(device, ranks, ranks, span));
        }
        let (device, sd) = a.need("device");
        let device = self.device(&device, sd)?;
        let (n, sn) = a.need("nodes");
        let nodes = self.whole(&n, sn, "`nodes`")?;
        let (g, sg) = a.need("gpus");
        let per_node = self.whole(&g, sg, "`gpus`")?;
        if nodes * per_node == 0 {
            let what = "a cluster without a GPU";
            return self.error("out-of-range", span, what, "at least 1 node of 1 GPU");
        }
        self.rated(&device, (nodes, per_node), sd)?;
        let count = nodes * per_node;
        let what = format!("{count} {} GPUs", device.name);
        let d = Diagnostic::error(
            "not-supported",
            format!("this version runs on CPU ranks, and this recipe is for {what}"),
        );
        let d = d.label(span, what).help(
            "to try it here, put `clusters.cpu(ranks: 2)` in place of this cluster, and take a small model",
        );
        self.out.not_yet.push(d);
        Ok(self.push_cluster(device, self.ranks.unwrap_or(count), per_node, span))
    }

    /// What a plan divides by is above 0; links between GPUs where there are several, the network where there are nodes.
    fn rated(&mut self, d: &Device, (nodes, per_node): (usize, usize), span: Span) -> El<()> {
        let needed = [
            ("memory", d.memory_bytes, "80 GiB", true),
            ("compute", d.flops, "989 TFLOP/s", true),
            ("bandwidth", d.bandwidth, "3.35 TB/s", true),
            ("link", d.link, "450 GB/s", per_node > 1),
            ("network", d.network, "50 GB/s", nodes > 1),
        ];
        let none = |x: f64| x.is_nan() || x <= 0.0;
        let Some((name, _, such, _)) = needed.into_iter().find(|(_, x, _, of)| *of && none(*x))
        else {
            return Ok(());
        };
        let what = format!("`{name}` of `{}` is not above 0", d.name);
        let help = format!("write what its data sheet says, such as `{name}: {such}`");
        let d = Diagnostic::error("out-of-range", what).label(self.user_span(span), "this device");
        self.fail(d.help(help))
    }

    fn push_cluster(
        &mut self,
        device: Device,
        ranks: usize,
        per_node: usize,
        span: Span,
    ) -> Val<'a> {
        let ranks = if device.gpu { ranks } else { self.ranks.unwrap_or(ranks) };
        let per_node = if device.gpu { per_node } else { ranks };
        self.out.facts.clusters.push(ClusterFacts {
            name: String::new(),
            device,
            ranks,
            per_node,
            part_of: None,
            span,
        });
        Val::Cluster(self.out.facts.clusters.len() - 1)
    }

    fn device(&mut self, v: &Val<'a>, span: Span) -> El<Device> {
        let Val::Record(r) = v else {
            return self.error("wrong-type", span, "a device is a record", "this value");
        };
        let r = r.clone();
        let byte = Unit::of("byte");
        let second = Unit::of("second").inverse();
        let mut optional = |name: &str| match r.get(name) {
            None => Ok(None),
            Some(Val::Const(Value::Num(x), u)) if u == &Unit::none() => Ok(Some(*x)),
            Some(v) => {
                let what = format!("`{name}` of a device is a number, not {}", v.kind());
                self.error("unit-mismatch", span, what, "this device")
            }
        };
        let (fp8, fp4, domain) = (optional("fp8")?, optional("fp4")?, optional("domain")?);
        let mut get = |name: &str, unit: &Unit| match r.get(name) {
            Some(Val::Const(Value::Num(x), u)) if u == unit => Ok(*x),
            Some(v) => {
                let (kind, what) = (v.kind(), format!("`{name}` of a device is in {unit}"));
                self.error("unit-mismatch", span, format!("{what}, not {kind}"), "this device")
            }
            None => {
                let what = format!("a device needs `{name}`");
                self.error("missing-field", span, what, "not given here")
            }
        };
        Ok(Device {
            fp8: fp8.unwrap_or(1.0),
            fp4: fp4.or(fp8).unwrap_or(1.0),
            domain: domain.map(|n| n as usize),
            memory_bytes: get("memory", &byte)?,
            host_bytes: get("host", &byte)?,
            flops: get("compute", &Unit::of("flop").times(&second))?,
            bandwidth: get("bandwidth", &byte.times(&second))?,
            link: get("link", &byte.times(&second))?,
            network: get("network", &byte.times(&second))?,
            gpu: true,
            name: match r.get("name") {
                Some(v) => self.text_of(&v.clone(), span, "`name`")?,
                None => "unnamed".into(),
            },
        })
    }

    /// `pool a, b = gpus split (4 nodes, rest)`: a cluster for each name.
    pub fn pool(&mut self, env: &mut Env<'a>, p: &'a ast::Pool) -> El<()> {
        let of = self.cluster_of(env, &p.cluster, "a pool is split off a cluster")?;
        let whole = self.out.facts.clusters[of].clone();
        let (Some(first), Some(last)) = (p.parts.first(), p.parts.last()) else { return Ok(()) };
        let at = first.span.to(last.span);
        if p.parts.len() != p.names.len() {
            let (n, m) = (p.names.len(), p.parts.len());
            let what = format!("{n} pools are named and {m} sizes given");
            return self.error("wrong-arguments", at, what, "one size for each name");
        }
        let mut sizes: Vec<Option<usize>> = vec![];
        for part in &p.parts {
            sizes.push(match self.expr(env, part)? {
                Val::Rest => None,
                v => Some(self.ranks_of(&v, part.span, whole.per_node)?),
            });
        }
        let given: usize = sizes.iter().flatten().sum();
        let rests = sizes.iter().filter(|s| s.is_none()).count();
        let share = whole.ranks.saturating_sub(given) / rests.max(1);
        let fits = if rests == 0 {
            given == whole.ranks
        } else {
            given < whole.ranks && (whole.ranks - given).is_multiple_of(rests)
        };
        if !fits {
            let kind = if whole.device.gpu { "GPUs" } else { "ranks" };
            let what = format!("these pools take {given} {kind}, the cluster has {}", whole.ranks);
            let help = if rests == 0 {
                "write `rest` for one of them".to_string()
            } else {
                format!("leave something for `rest`: less than {} {kind} in all", whole.ranks)
            };
            return self.fail(
                Diagnostic::error("pools-do-not-fit", what)
                    .label(at, format!("{given} {kind} are given"))
                    .label(p.cluster.span, format!("{} {kind}", whole.ranks))
                    .help(help),
            );
        }
        let mut start = 0;
        for (name, size) in p.names.iter().zip(sizes) {
            let ranks = size.unwrap_or(share);
            self.out.facts.clusters.push(ClusterFacts {
                name: name.text.clone(),
                ranks,
                part_of: Some((of, start)),
                span: name.span,
                ..whole.clone()
            });
            start += ranks;
            env.bind(&name.text, Val::Cluster(self.out.facts.clusters.len() - 1));
        }
        if !whole.device.gpu {
            self.later(at, "pools of ranks do not run yet", "these pools");
        }
        Ok(())
    }

    /// `4 nodes`, `8 gpus` or `2 ranks` as ranks.
    fn ranks_of(&mut self, v: &Val<'a>, span: Span, per_node: usize) -> El<usize> {
        let n = self.whole(v, span, "the size of a pool")?;
        match v {
            Val::Const(_, u) if *u == Unit::of("node") => Ok(n * per_node),
            Val::Const(_, u) if *u == Unit::of("gpu") || *u == Unit::of("rank") => Ok(n),
            v => {
                let kind = v.kind();
                let d = Diagnostic::error(
                    "unit-mismatch",
                    format!("a pool is counted in nodes, gpus or ranks, this is {kind}"),
                );
                self.fail(
                    d.label(span, format!("this is {kind}")).help(format!("write `{n} nodes`")),
                )
            }
        }
    }

    fn cluster_of(&mut self, env: &Env<'a>, e: &'a ast::Expr, what: &str) -> El<usize> {
        match self.expr(env, e)? {
            Val::Cluster(c) => Ok(c),
            v => {
                let kind = v.kind();
                let text = format!("{what}, not {kind}");
                self.error("wrong-type", e.span, text, format!("this is {kind}"))
            }
        }
    }

    /// `mesh m = cluster axes (dp: rest, tp: 2)`.
    pub fn mesh(&mut self, env: &Env<'a>, m: &'a ast::Mesh) -> El<Val<'a>> {
        let cluster = self.cluster_of(env, &m.cluster, "a mesh is made of a cluster")?;
        let ranks = self.out.facts.clusters[cluster].ranks;
        let mut axes = vec![];
        let mut experts: Vec<(Axis, Span)> = vec![];
        for a in &m.axes {
            let name = a.name.text.as_str();
            self.known_axis(&a.name, a.span)?;
            let twice = axes.iter().any(|(n, ..): &(String, Option<usize>, Span)| n == name);
            if twice || experts.iter().any(|(x, _)| x.name == name) {
                let what = format!("axis `{name}` is given twice");
                return self.error("duplicate-name", a.span, what, "second size");
            }
            let size = self.axis_size(env, a)?;
            if !EXPERT.contains(&name) {
                axes.push((name.to_string(), size, a.span));
                continue;
            }
            let Some(size) = size else {
                let what = format!("`{name}` folds other axes, so that it needs a size");
                return self.error("mesh-does-not-fill", a.span, what, "not `rest`");
            };
            experts.push((Axis { name: name.into(), size }, a.span));
        }
        let span = m
            .axes
            .first()
            .map_or(m.name.span, |a| a.span.to(m.axes.last().map_or(a.span, |b| b.span)));
        let solved = self.fill(&m.name.text, &axes, (ranks, m.cluster.span), span)?;
        for (axis, (name, _, at)) in solved.iter().zip(&axes) {
            if axis.size > 1 && !RUNS.contains(&name.as_str()) {
                self.later(
                    *at,
                    format!("axis `{name}` of {} does not run yet", axis.size),
                    "this axis",
                );
            }
        }
        let mut mesh = Mesh { axes: solved, views: vec![] };
        let index = self.out.program.meshes.len();
        self.out.facts.meshes.resize_with(index, MeshFacts::default);
        let view = self.expert_view(&m.name.text, index, &mesh, &experts)?;
        mesh.views.extend(view.map(|v| self.view_facts(v)));
        self.out.facts.meshes.push(MeshFacts { cluster: Some(cluster), experts: view, span });
        self.out.program.meshes.push((m.name.text.clone(), mesh));
        Ok(Val::Mesh(index))
    }

    fn known_axis(&mut self, name: &ast::Name, span: Span) -> El<()> {
        if DENSE.contains(&name.text.as_str()) || EXPERT.contains(&name.text.as_str()) {
            return Ok(());
        }
        let known: Vec<&str> = DENSE.iter().chain(EXPERT).copied().collect();
        let help = match name.text.as_str() {
            "sp" => {
                "sequence parallelism is an option of a plan: `plans.megatron(sp: true)`".into()
            }
            text => nrl_base::did_you_mean(text, known.iter().copied())
                .unwrap_or_else(|| format!("axes are {}", known.join(", "))),
        };
        let what = format!("there is no axis `{}`", name.text);
        self.fail(Diagnostic::error("unknown-name", what).label(span, "this axis").help(help))
    }

    /// A size, none for `rest`.
    fn axis_size(&mut self, env: &Env<'a>, a: &'a ast::Axis) -> El<Option<usize>> {
        let name = &a.name.text;
        let size = match self.expr(env, &a.size)? {
            Val::Rest => return Ok(None),
            v => self.whole(&v, a.size.span, &format!("axis `{name}`"))?,
        };
        if size == 0 {
            let what = format!("axis `{name}` has size 0");
            return self.error("out-of-range", a.span, what, "at least 1");
        }
        Ok(Some(size))
    }

    /// Solves `rest` so that the sizes multiply to the ranks.
    fn fill(
        &mut self,
        mesh: &str,
        axes: &[(String, Option<usize>, Span)],
        (ranks, of): (usize, Span),
        span: Span,
    ) -> El<Vec<Axis>> {
        let product: usize = axes.iter().filter_map(|(_, s, _)| *s).product();
        let rests = axes.iter().filter(|(_, s, _)| s.is_none()).count();
        let written = axes
            .iter()
            .map(|(n, s, _)| format!("{n} {}", s.map_or("rest".into(), |s| s.to_string())))
            .collect::<Vec<_>>()
            .join(" * ");
        if rests > 1 {
            return self.error("mesh-does-not-fill", span, "only one axis can be `rest`", written);
        }
        let fits = if rests == 0 { product == ranks } else { ranks.is_multiple_of(product) };
        if !fits {
            let help = if rests == 1 {
                format!(
                    "{product} must divide {ranks}; sizes that do: {}",
                    listed(&divisors(ranks))
                )
            } else {
                format!("make the product {ranks}, or write `rest` for one axis")
            };
            let what = format!("mesh `{mesh}` needs {written} ranks, the cluster has {ranks}");
            return self.fail(
                Diagnostic::error("mesh-does-not-fill", what)
                    .label(span, format!("the sizes given make {product}"))
                    .label(of, format!("{ranks} ranks"))
                    .help(help),
            );
        }
        let solve = |(name, s, _): &(String, Option<usize>, Span)| Axis {
            name: name.clone(),
            size: s.unwrap_or(ranks / product.max(1)),
        };
        Ok(axes.iter().map(solve).collect())
    }

    /// The view that `ep` and `etp` make of a mesh: `pp` stays outside, the others are folded.
    fn expert_view(
        &mut self,
        name: &str,
        mesh: usize,
        dense: &Mesh,
        experts: &[(Axis, Span)],
    ) -> El<Option<usize>> {
        let Some((_, first)) = experts.first() else { return Ok(None) };
        let span = experts.iter().fold(*first, |s, (_, e)| s.to(*e));
        let size = |n: &str| experts.iter().find(|(a, _)| a.name == n).map_or(1, |(a, _)| a.size);
        let (pp, ep, etp) = (dense.size("pp"), size("ep"), size("etp"));
        let all = dense.ranks();
        let need = pp * ep * etp;
        if !all.is_multiple_of(need) {
            let folded = all / pp;
            let mut legal = divisors(folded);
            legal.retain(|n| folded.is_multiple_of(n * etp));
            let shown = listed(&legal);
            let what = format!(
                "the expert mesh needs pp {pp} * ep {ep} * etp {etp} = {need} ranks, `{name}` has {all}"
            );
            let sizes: Vec<String> =
                dense.axes.iter().map(|a| format!("{} {}", a.name, a.size)).collect();
            return self.fail(
                Diagnostic::error("mesh-does-not-fill", what)
                    .label(span, format!("ep {ep} * etp {etp} folds {folded} ranks"))
                    .note(format!("the dense mesh is fine: {} = {all}", sizes.join(" * ")))
                    .help(format!("`ep` may be {}", shown)),
            );
        }
        if ep * etp > 1 {
            self.later(span, "experts split over ranks do not run yet", "these axes");
        }
        let axes = [("edp", all / need), ("ep", ep), ("etp", etp)];
        self.out.facts.views.push(ViewFacts {
            name: String::new(),
            mesh,
            folds: dense.axes.iter().map(|a| a.name.clone()).filter(|a| a != "pp").collect(),
            axes: axes.map(|(n, size)| Axis { name: n.into(), size }).to_vec(),
            span,
        });
        Ok(Some(self.out.facts.views.len() - 1))
    }

    /// `view x of m(dp, tp) = (edp: rest, ep: 4)`: the same ranks under other axes.
    pub fn view(&mut self, env: &mut Env<'a>, v: &'a ast::View) -> El<()> {
        let path = v.mesh.text();
        let mesh = match self.name(env, &path, v.mesh.span)? {
            Val::Mesh(m) => m,
            other => {
                let kind = other.kind();
                let what = format!("a view is of a mesh, not of {kind}");
                return self.error("wrong-type", v.mesh.span, what, format!("this is {kind}"));
            }
        };
        let dense = self.out.program.meshes[mesh].1.clone();
        let mut ranks = 1;
        for f in &v.folds {
            match dense.axes.iter().find(|a| a.name == f.text) {
                Some(a) => ranks *= a.size,
                None => {
                    let known: Vec<&str> = dense.axes.iter().map(|a| a.name.as_str()).collect();
                    let help = format!("its axes are {}", known.join(", "));
                    let what = format!("mesh `{path}` has no axis `{}`", f.text);
                    let d =
                        Diagnostic::error("unknown-axis", what).label(f.span, "not an axis of it");
                    return self.fail(d.help(help));
                }
            }
        }
        let mut axes = vec![];
        for a in &v.axes {
            let size = self.axis_size(env, a)?;
            axes.push((a.name.text.clone(), size, a.span));
        }
        let span = v
            .axes
            .first()
            .map_or(v.name.span, |a| a.span.to(v.axes.last().map_or(a.span, |b| b.span)));
        let of = v
            .folds
            .first()
            .map_or(v.mesh.span, |f| f.span.to(v.folds.last().map_or(f.span, |l| l.span)));
        let solved = self.fill(&v.name.text, &axes, (ranks, of), span)?;
        if solved.iter().any(|a| a.size > 1 && a.name != "edp") {
            self.later(span, "views of a mesh do not run yet", "this view");
        }
        self.out.facts.views.push(ViewFacts {
            name: v.name.text.clone(),
            mesh,
            folds: v.folds.iter().map(|f| f.text.clone()).collect(),
            axes: solved,
            span,
        });
        let index = self.out.facts.views.len() - 1;
        self.out.facts.meshes.resize_with(self.out.program.meshes.len(), MeshFacts::default);
        self.out.facts.meshes[mesh].experts.get_or_insert(index);
        let made = self.view_facts(index);
        self.out.program.meshes[mesh].1.views.push(made);
        env.bind(&v.name.text, Val::View(index));
        Ok(())
    }

    fn view_facts(&self, view: usize) -> View {
        let v = &self.out.facts.views[view];
        View { folds: v.folds.clone(), axes: v.axes.clone() }
    }

    /// Size of an axis of a mesh or of a view of it; 1 if there is none.
    pub fn axis_of(&self, mesh: usize, axis: &str) -> usize {
        self.out.program.meshes[mesh].1.size(axis)
    }
}
