//! The table dim -> axes applied to one graph, with its divisibility checks.

use std::collections::{BTreeMap, BTreeSet};

use nrl_ir::plan::ParamLayout;
use nrl_ir::{DType, DimId, Graph, Mesh, Op, ParamId};

use super::{Rules, State};
use crate::report::{Problem, Split};

/// How each dim, and each dim of each parameter, is split. Axes of size 1 are left out.
pub(super) struct Layout {
    /// In values.
    pub dims: BTreeMap<DimId, Vec<String>>,
    /// In parameters.
    pub params: Vec<Vec<Vec<String>>>,
    /// Dims whose size is rounded up.
    pub padded: BTreeSet<DimId>,
}

impl Layout {
    /// The layout, and the rules that matched nothing.
    pub fn new(
        g: &Graph,
        mesh: &Mesh,
        rules: &Rules,
    ) -> Result<(Layout, Vec<String>), Vec<Problem>> {
        let mut problems = unknown_axes(mesh, rules);
        let live =
            |axes: &[String]| axes.iter().filter(|a| mesh.size(a) > 1).cloned().collect::<Vec<_>>();
        let by_name = |d: DimId| rules.dims.iter().find(|r| r.dim == g.dims.name(d));
        let mut params = vec![];
        let mut matched = BTreeSet::new();
        for decl in &g.params {
            params.push(param_axes(g, &decl.path(), &decl.dims, rules, &live, &mut matched));
        }
        let mut dims = BTreeMap::new();
        for d in used_dims(g) {
            let axes = match by_name(d) {
                Some(rule) => live(&rule.axes),
                None => agreed(g, &params, d),
            };
            if !axes.is_empty() && !g.dims.is_ragged(d) {
                dims.insert(d, axes);
            }
        }
        let mut layout = Layout { dims, params, padded: BTreeSet::new() };
        problems.extend(layout.heads(g, mesh));
        problems.extend(layout.divisibility(g, mesh, &problems));
        problems.extend(layout.whole_dims(g));
        let names: BTreeSet<&str> = g.dims.iter().map(|(_, d)| d.name.as_str()).collect();
        let mut unused: Vec<String> = vec![];
        for r in rules.dims.iter().filter(|r| !names.contains(r.dim.as_str())) {
            unused.push(format!("{}: @{}", r.dim, r.axes.join(" @")));
        }
        for (_, r) in rules.paths.iter().enumerate().filter(|(i, _)| !matched.contains(i)) {
            unused.push(format!("{}: {}@{}", r.path, r.dim, r.axes.join("@")));
        }
        if problems.is_empty() { Ok((layout, unused)) } else { Err(problems) }
    }

    fn axes(&self, d: DimId) -> &[String] {
        self.dims.get(&d).map_or(&[], Vec::as_slice)
    }

    /// Query and key/value heads must be split together, each evenly.
    fn heads(&self, g: &Graph, mesh: &Mesh) -> Vec<Problem> {
        let mut problems: Vec<Problem> = vec![];
        for (q, kv, origin) in head_dims(g) {
            let (nq, nkv) = (g.dims.bound(q), g.dims.bound(kv));
            if self.axes(q) != self.axes(kv) {
                let text = format!(
                    "query heads `{}` and key/value heads `{}` are not split over the same axes",
                    g.dims.name(q),
                    g.dims.name(kv)
                );
                problems.push(
                    Problem::new("heads-not-divisible", text, origin)
                        .help("give both the same axes in the plan"),
                );
                continue;
            }
            let n = mesh.size_over(self.axes(q));
            // Heads of keys and values that are fewer than ranks stand on several of them.
            if nq.is_multiple_of(n) && n > nkv && n.is_multiple_of(nkv) {
                continue;
            }
            for (dim, size, what) in [(q, nq, "attention heads"), (kv, nkv, "key/value heads")] {
                if size % n == 0 {
                    continue;
                }
                let fits = |s: &usize| nq % s == 0 && (nkv % s == 0 || s.is_multiple_of(nkv));
                let legal: Vec<usize> = nrl_base::divisors(nq).into_iter().filter(fits).collect();
                let mut p =
                    uneven("heads-not-divisible", what, g, dim, size, self.axes(q), n, legal);
                p.origin = origin;
                if !problems.iter().any(|x| x.split == p.split) {
                    problems.push(p);
                }
                // Sizes that suit the one suit the other.
                break;
            }
        }
        problems
    }

    /// Every other split dim must divide, or index something, so that padding has no effect.
    fn divisibility(&mut self, g: &Graph, mesh: &Mesh, earlier: &[Problem]) -> Vec<Problem> {
        let mut problems = vec![];
        let indices = index_dims(g);
        let heads: BTreeSet<DimId> = head_dims(g).into_iter().flat_map(|h| [h.0, h.1]).collect();
        let mut seen = BTreeSet::new();
        let in_params = g.params.iter().zip(&self.params).flat_map(|(p, axes)| {
            p.dims.iter().zip(axes).filter(|(_, a)| !a.is_empty()).map(|(d, a)| (*d, a.clone()))
        });
        let all: Vec<(DimId, Vec<String>)> =
            self.dims.iter().map(|(d, a)| (*d, a.clone())).chain(in_params).collect();
        for (d, axes) in all {
            let (size, n) = (g.dims.bound(d), mesh.size_over(&axes));
            if size % n == 0 || heads.contains(&d) || !seen.insert((d, axes.clone())) {
                continue;
            }
            if indices.contains(&d) && !reduced_over(g, d) {
                self.padded.insert(d);
                continue;
            }
            let legal = nrl_base::divisors(size);
            let p = uneven("dim-not-divisible", "items", g, d, size, &axes, n, legal);
            if !earlier.iter().any(|x| x.split == p.split) {
                problems.push(p);
            }
        }
        problems
    }

    /// Dims that an op reads whole.
    fn whole_dims(&self, g: &Graph) -> Vec<Problem> {
        let mut problems: Vec<Problem> = vec![];
        g.body.walk(&mut |node| {
            let whole: &[DimId] = match &node.op {
                Op::Rope { hd, .. } => &[*hd],
                Op::Attention { attn }
                | Op::AttentionGrad { attn }
                | Op::AttentionCached { attn } => &[attn.hd, attn.vd],
                Op::Conv { conv } | Op::ConvGrad { conv } => &[conv.taps],
                Op::Ssm { ssm } | Op::SsmGrad { ssm } => &[ssm.r, ssm.p, ssm.n],
                Op::TopK { dim, .. } => &[*dim],
                Op::Fit { from, to, .. } => &[*from, *to],
                Op::LogProbHead { d, .. } | Op::LogProbHeadGrad { d, .. } => &[*d],
                _ => &[],
            };
            let cut = |d: &&DimId| self.dims.contains_key(d) && g.dims.get(**d).routed.is_none();
            for d in whole.iter().filter(cut) {
                let text = format!(
                    "`{}` needs all of dim `{}`, which {} would split",
                    node.op.name(),
                    g.dims.name(*d),
                    self.axes(*d).join(", ")
                );
                if !problems.iter().any(|p| p.text == text) {
                    problems.push(
                        Problem::new("dim-kept-whole", text, node.origin)
                            .help("take the dim out of the plan's table"),
                    );
                }
            }
        });
        problems
    }

    pub fn param_layouts(&self, g: &Graph, rules: &Rules, mesh: &Mesh) -> Vec<ParamLayout> {
        let live =
            |axes: &[String]| axes.iter().filter(|a| mesh.size(a) > 1).cloned().collect::<Vec<_>>();
        let (flat, grads, state) = match &rules.state {
            State::Whole => (vec![], vec![], vec![]),
            State::Zero1(axes) => (vec![], vec![], live(axes)),
            State::Zero2(axes) => (vec![], live(axes), live(axes)),
            State::Zero3(axes) => (live(axes), live(axes), live(axes)),
        };
        let apart = rules.apart(mesh);
        let copied = self.copied(g, mesh);
        let mut layouts = vec![];
        for (i, (p, dims)) in g.params.iter().zip(&self.params).enumerate() {
            // Ranks that share experts are told apart by the view's own axis.
            let experts = is_expert(g, mesh, &p.dims);
            let own = |axes: &[String]| match (experts, axes.is_empty()) {
                (true, false) => live(&["edp".to_string()]),
                _ => axes.to_vec(),
            };
            let (flat, grads, state) = (own(&flat), own(&grads), own(&state));
            let shared = if experts { live(&["edp".to_string()]) } else { apart.clone() };
            let owed = |a: &&String| p.trained && !grads.contains(a);
            let pending: Vec<String> = shared.iter().filter(owed).cloned().collect();
            let copies = p.dims.iter().filter_map(|d| copied.get(d)).copied().max().unwrap_or(1);
            let split: Vec<String> = p
                .dims
                .iter()
                .zip(dims)
                .filter(|(_, a)| !a.is_empty())
                .map(|(d, a)| format!("`{}` over {}", g.dims.name(*d), a.join(", ")))
                .collect();
            let mut reason = if split.is_empty() {
                "whole on every rank".into()
            } else {
                format!("splits {}", split.join(" and "))
            };
            if !flat.is_empty() {
                reason += &format!("; stored in flat parts over {}", flat.join(", "));
            }
            if copies > 1 {
                reason += &format!("; {copies} ranks hold the same heads");
            }
            if !pending.is_empty() && experts {
                reason += &format!(
                    "; {} tells ranks with the same experts apart, so its gradient is summed over them",
                    pending.join(", ")
                );
            } else if !pending.is_empty() {
                reason += &format!(
                    "; {} split the sequences, so its gradient is summed over them",
                    pending.join(", ")
                );
            }
            let state = if p.trained { state } else { flat.clone() };
            let grads = if p.trained { grads } else { flat.clone() };
            layouts.push(ParamLayout {
                param: ParamId(i as u32),
                dims: dims.clone(),
                flat,
                state,
                grads,
                pending,
                copies,
                reason,
            });
        }
        layouts
    }
}

impl Layout {
    /// Dims with fewer items than ranks that split them, and how many ranks hold each.
    fn copied(&self, g: &Graph, mesh: &Mesh) -> BTreeMap<DimId, usize> {
        let heads = head_dims(g).into_iter().map(|(_, kv, _)| kv);
        heads
            .filter_map(|kv| {
                let (n, ranks) = (g.dims.bound(kv), mesh.size_over(self.axes(kv)));
                (ranks > n).then(|| (kv, ranks / n))
            })
            .collect()
    }
}

/// Do experts own the parameter, on a mesh that has ranks of their own for them?
pub(super) fn is_expert(g: &Graph, mesh: &Mesh, dims: &[DimId]) -> bool {
    mesh.expert_view().is_some() && dims.iter().any(|d| g.dims.get(*d).routed.is_some())
}

/// Sizes that a message lists at least, if there are so many.
const SHOWN: usize = 6;

#[allow(clippy::too_many_arguments)]
fn uneven(
    code: &'static str,
    what: &str,
    g: &Graph,
    d: DimId,
    size: usize,
    axes: &[String],
    n: usize,
    legal: Vec<usize>,
) -> Problem {
    let dim = g.dims.name(d).to_string();
    let axis = axes.join(" x ");
    let text = match code {
        "heads-not-divisible" => format!("{size} {what} cannot be split over {axis} = {n}"),
        _ => format!("dim `{dim}` of size {size} cannot be split over {axis} = {n}"),
    };
    // A short list is whole, a long one ends near what was asked for.
    let shown = |s: &&usize| legal.len() <= SHOWN || **s <= 2 * n;
    let near: Vec<String> = legal.iter().filter(shown).map(usize::to_string).collect();
    let help = format!("{axis} may be {}", near.join(", "));
    let split = Some(Split { dim, size, axis, axis_size: n, legal });
    Problem { split, ..Problem::new(code, text, None) }.help(help)
}

/// Axes of each dim of one parameter: path rules, then rows of the table whose axes are free.
fn param_axes(
    g: &Graph,
    name: &str,
    dims: &[DimId],
    rules: &Rules,
    live: &dyn Fn(&[String]) -> Vec<String>,
    matched: &mut BTreeSet<usize>,
) -> Vec<Vec<String>> {
    let mut out = vec![None; dims.len()];
    let mut taken: Vec<String> = vec![];
    let at = |dim: &str| dims.iter().position(|d| g.dims.name(*d) == dim);
    for (i, r) in rules.paths.iter().enumerate() {
        if r.path.replace("[*]", "") != name {
            continue;
        }
        if let Some(at) = at(&r.dim) {
            matched.insert(i);
            taken.extend(r.axes.clone());
            out[at] = Some(live(&r.axes));
        }
    }
    for r in &rules.dims {
        let free = !r.axes.iter().any(|a| taken.contains(a));
        if let Some(at) = at(&r.dim).filter(|at| out[*at].is_none() && free) {
            taken.extend(r.axes.clone());
            out[at] = Some(live(&r.axes));
        }
    }
    out.into_iter().map(Option::unwrap_or_default).collect()
}

/// The split that every parameter with dim `d` has by its own rule; none if they differ.
fn agreed(g: &Graph, params: &[Vec<Vec<String>>], d: DimId) -> Vec<String> {
    let pairs = g.params.iter().zip(params).flat_map(|(p, axes)| p.dims.iter().zip(axes));
    let mut splits = pairs.filter(|(x, _)| **x == d).map(|(_, axes)| axes);
    let first = splits.next().cloned().unwrap_or_default();
    if splits.all(|s| *s == first) { first } else { vec![] }
}

fn unknown_axes(mesh: &Mesh, rules: &Rules) -> Vec<Problem> {
    let state: &[String] = match &rules.state {
        State::Whole => &[],
        State::Zero1(axes) | State::Zero2(axes) | State::Zero3(axes) => axes,
    };
    let dims =
        rules.dims.iter().flat_map(|r| &r.axes).chain(rules.paths.iter().flat_map(|r| &r.axes));
    let mut unknown: Vec<&String> = vec![];
    for a in dims.chain(&rules.batch).chain(&rules.ring).chain(state) {
        if !mesh.has(a) && !unknown.contains(&a) {
            unknown.push(a);
        }
    }
    let names: Vec<&str> = mesh.axes.iter().map(|a| a.name.as_str()).collect();
    let problem = |a: &String| {
        Problem::new("unknown-axis", format!("the mesh has no axis `{a}`"), None)
            .help(format!("its axes are {}", names.join(", ")))
    };
    unknown.into_iter().map(problem).collect()
}

fn used_dims(g: &Graph) -> BTreeSet<DimId> {
    let of_params = g.params.iter().flat_map(|p| &p.dims);
    of_params.chain(g.values.iter().flat_map(|t| &t.dims)).copied().collect()
}

fn head_dims(g: &Graph) -> Vec<(DimId, DimId, crate::report::Origin)> {
    let mut out: Vec<(DimId, DimId, crate::report::Origin)> = vec![];
    g.body.walk(&mut |node| {
        if let Op::Attention { attn } | Op::AttentionGrad { attn } | Op::AttentionCached { attn } =
            &node.op
            && !out.iter().any(|h| (h.0, h.1) == (attn.q, attn.kv))
        {
            out.push((attn.q, attn.kv, node.origin));
        }
    });
    out
}

/// Dims that values index into, or that log-probabilities run over.
fn index_dims(g: &Graph) -> BTreeSet<DimId> {
    g.values
        .iter()
        .filter_map(|t| if let DType::Id(d) = t.dtype { Some(d) } else { None })
        .collect()
}

fn reduced_over(g: &Graph, d: DimId) -> bool {
    let mut found = false;
    g.body.walk(&mut |n| found |= matches!(&n.op, Op::Reduce { over, .. } if over.contains(&d)));
    found
}
