//! Weights between a checkpoint and the ranks of a mesh.
//!
//! In: tensors in checkpoint order (`[q*hd, d]`), or a seed. Out: each rank's part in storage order (`[d, q, hd]`), cut
//! along the axes that split its dims, padded where they do not divide, and cut flat once more under zero3. The way
//! back puts the parts of any mesh together, so that a checkpoint made on four ranks resumes on two. A part depends on
//! the global tensor and the rank's coordinates alone.

use std::sync::Arc;

use nrl_ir::dim::Dims;
use nrl_ir::graph::ParamDecl;
use nrl_ir::mesh::Mesh;
use nrl_ir::plan::ParamLayout;
use nrl_ir::program::Model;

use crate::engine::ParamStore;
use crate::hf::weights::Checkpoint;
use crate::rng::{Stream, Use};
use crate::run::error::{Outcome, RunError};

/// Where the elements of one parameter lie on a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Global shape in storage order.
    pub shape: Vec<usize>,
    /// Per dim, the axes that split it.
    pub dims: Vec<Vec<String>>,
    /// Axes that cut the local tensor once more, flat.
    pub flat: Vec<String>,
}

impl Placement {
    /// Placement of the weights of `decl` (one layer of it).
    pub fn new(decl: &ParamDecl, dims: &Dims, layout: &ParamLayout) -> Placement {
        let shape = decl.dims.iter().map(|d| global_size(dims, *d)).collect();
        Placement { shape, dims: layout.dims.clone(), flat: layout.flat.clone() }
    }

    /// The same with the flat cut of optimizer state.
    pub fn of_state(&self, layout: &ParamLayout) -> Placement {
        let flat = if layout.flat.is_empty() { &layout.state } else { &layout.flat };
        Placement { flat: flat.clone(), ..self.clone() }
    }

    fn axes(&self, dim: usize) -> &[String] {
        self.dims.get(dim).map_or(&[], |a| a)
    }

    /// Shape of a rank's local tensor, before the flat cut.
    pub fn local_shape(&self, mesh: &Mesh) -> Vec<usize> {
        self.shape
            .iter()
            .enumerate()
            .map(|(i, n)| n.div_ceil(mesh.size_over(self.axes(i))))
            .collect()
    }

    /// Elements of a rank's local tensor, before the flat cut.
    pub fn local_len(&self, mesh: &Mesh) -> usize {
        self.local_shape(mesh).iter().product()
    }

    /// Elements that a rank stores.
    pub fn part_len(&self, mesh: &Mesh) -> usize {
        self.local_len(mesh).div_ceil(mesh.size_over(&self.flat))
    }

    /// All axes along which ranks hold different elements.
    pub fn split_axes(&self) -> Vec<String> {
        let mut axes: Vec<String> = self.dims.iter().flatten().chain(&self.flat).cloned().collect();
        axes.sort();
        axes.dedup();
        axes
    }

    /// Is `rank` the first of those that hold the same elements?
    pub fn is_first(&self, mesh: &Mesh, rank: usize) -> bool {
        let split = self.split_axes();
        mesh.axes.iter().all(|a| split.contains(&a.name) || mesh.coord(rank, &a.name) == 0)
    }

    /// Calls `copy(global offset, local offset, length)` for each run of elements that `rank` has.
    fn runs(&self, mesh: &Mesh, rank: usize, mut copy: impl FnMut(usize, usize, usize)) {
        let local = self.local_shape(mesh);
        let n = local.len();
        let starts: Vec<usize> =
            (0..n).map(|i| mesh.coord_over(rank, self.axes(i)) * local[i]).collect();
        let held: Vec<usize> =
            (0..n).map(|i| local[i].min(self.shape[i].saturating_sub(starts[i]))).collect();
        if held.contains(&0) {
            return;
        }
        // Dims from `inner` on are whole on this rank, so they are one run with the dim before them.
        let mut inner = n;
        while inner > 0 && local[inner - 1] == self.shape[inner - 1] {
            inner -= 1;
        }
        let cut = inner.saturating_sub(1);
        let row: usize = self.shape[inner..].iter().product();
        let run = if inner == 0 { row } else { held[cut] * row };
        let mut at = vec![0; cut];
        loop {
            let offset = |sizes: &[usize], base: &dyn Fn(usize) -> usize| {
                let outer = (0..cut).fold(0, |o, i| o * sizes[i] + at[i] + base(i));
                if inner == 0 { 0 } else { (outer * sizes[cut] + base(cut)) * row }
            };
            copy(offset(&self.shape, &|i| starts[i]), offset(&local, &|_| 0), run);
            let Some(i) = (0..cut).rev().find(|&i| at[i] + 1 < held[i]) else { return };
            at[i] += 1;
            at[i + 1..].fill(0);
        }
    }

    /// The elements that `rank` stores of the global tensor; padding is zero.
    pub fn cut(&self, mesh: &Mesh, rank: usize, global: &[f32]) -> Vec<f32> {
        let mut local = vec![0.0; self.local_len(mesh)];
        self.runs(mesh, rank, |g, l, n| local[l..l + n].copy_from_slice(&global[g..g + n]));
        if self.flat.is_empty() {
            return local;
        }
        let part = self.part_len(mesh);
        let start = (part * mesh.coord_over(rank, &self.flat)).min(local.len());
        let mut mine = local[start..(start + part).min(local.len())].to_vec();
        mine.resize(part, 0.0);
        mine
    }

    /// The global tensor from the ranks' parts.
    pub fn join<'a>(&self, mesh: &Mesh, part: impl Fn(usize) -> &'a [f32]) -> Vec<f32> {
        let mut global = vec![0.0; self.shape.iter().product()];
        let flat_first =
            |r: &usize| self.is_first(mesh, *r) && mesh.coord_over(*r, &self.flat) == 0;
        for rank in (0..mesh.ranks()).filter(flat_first) {
            let mut local: Vec<f32> = vec![];
            for r in mesh.group(rank, &self.flat) {
                local.extend_from_slice(part(r));
            }
            self.runs(mesh, rank, |g, l, n| global[g..g + n].copy_from_slice(&local[l..l + n]));
        }
        global
    }
}

/// Size of a dim before any cut.
fn global_size(dims: &Dims, d: nrl_ir::DimId) -> usize {
    let dim = dims.get(d);
    dim.shard.as_ref().map_or_else(|| dims.bound(d), |s| s.global)
}

/// How one parameter is written in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Shape in the file.
    pub shape: Vec<usize>,
    /// Sizes of the unmerged dims, in file order.
    sizes: Vec<usize>,
    /// Place in file order of each storage dim.
    order: Vec<usize>,
}

impl Stored {
    pub fn new(decl: &ParamDecl, dims: &Dims) -> Outcome<Stored> {
        let file: Vec<_> = decl.checkpoint_dims.iter().flatten().copied().collect();
        let place = |d| file.iter().position(|f| f == d);
        let order: Option<Vec<usize>> = decl.dims.iter().map(place).collect();
        let order = order.filter(|o| o.len() == file.len());
        let order = order.ok_or_else(|| {
            RunError::internal(format!("`{}` has other dims in its checkpoint", decl.name))
        })?;
        let sizes: Vec<usize> = file.iter().map(|d| global_size(dims, *d)).collect();
        let group = |g: &Vec<nrl_ir::DimId>| g.iter().map(|d| global_size(dims, *d)).product();
        Ok(Stored { shape: decl.checkpoint_dims.iter().map(group).collect(), sizes, order })
    }

    /// From file order to storage order.
    pub fn to_storage(&self, file: &[f32]) -> Vec<f32> {
        transpose(file, &self.sizes, &self.order)
    }

    /// From storage order to file order.
    pub fn to_file(&self, storage: &[f32]) -> Vec<f32> {
        let sizes: Vec<usize> = self.order.iter().map(|&i| self.sizes[i]).collect();
        let mut back = vec![0; self.order.len()];
        for (i, &o) in self.order.iter().enumerate() {
            back[o] = i;
        }
        transpose(storage, &sizes, &back)
    }
}

/// Reorders dims: dim `i` of the result is dim `order[i]` of `x`.
fn transpose(x: &[f32], sizes: &[usize], order: &[usize]) -> Vec<f32> {
    if order.is_sorted() || x.is_empty() {
        return x.to_vec();
    }
    let mut strides = vec![1; sizes.len()];
    for i in (0..sizes.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * sizes[i + 1];
    }
    let out: Vec<(usize, usize)> = order.iter().map(|&o| (sizes[o], strides[o])).collect();
    let Some((&(last, step), outer)) = out.split_last() else { return x.to_vec() };
    let mut result = Vec::with_capacity(x.len());
    let mut at = vec![0; outer.len()];
    loop {
        let base: usize = at.iter().zip(outer).map(|(a, (_, s))| a * s).sum();
        result.extend((0..last).map(|i| x[base + i * step]));
        let Some(i) = (0..at.len()).rev().find(|&i| at[i] + 1 < outer[i].0) else { return result };
        at[i] += 1;
        at[i + 1..].fill(0);
    }
}

/// A parameter that is a vector in its checkpoint: norm weights and biases.
pub fn is_vector(decl: &ParamDecl) -> bool {
    decl.checkpoint_dims.len() < 2
}

/// Name in a checkpoint of layer `layer`.
pub fn tensor_name(decl: &ParamDecl, layer: usize) -> String {
    decl.tensor(layer)
}

/// Every tensor of a model: parameter, layer and name, in slot order.
pub fn tensors(params: &[ParamDecl]) -> impl Iterator<Item = (usize, usize, String)> + '_ {
    params.iter().enumerate().flat_map(|(p, decl)| {
        let layers = decl.repeat.as_ref().map_or(1, |(_, n)| *n);
        (0..layers).map(move |layer| (p, layer, tensor_name(decl, layer)))
    })
}

/// Gives a tensor by name, in file order.
pub type Reader = Box<dyn Fn(&str) -> Outcome<Vec<f32>> + Send + Sync>;

/// Where initial weights come from.
pub enum Source {
    Files(Checkpoint),
    /// Normal draws keyed by (seed, model and parameter, index).
    Fresh {
        seed: u64,
        model: String,
        std: f64,
        /// What norms start at: 1, or 0 where a model takes `1 + weight`.
        norms: f32,
    },
    /// Tensors in file order by name, as a checkpoint of a run holds them.
    Read(Reader),
}

impl Source {
    /// One global tensor in storage order.
    pub fn tensor(&self, decl: &ParamDecl, dims: &Dims, layer: usize) -> Outcome<Vec<f32>> {
        let stored = Stored::new(decl, dims)?;
        let name = tensor_name(decl, layer);
        let count: usize = stored.shape.iter().product();
        let file = match self {
            Source::Files(checkpoint) => {
                checkpoint.read_f32(&name).map_err(|e| RunError::new(e.code(), e.to_string()))?
            }
            Source::Read(read) => read(&name)?,
            Source::Fresh { seed, model, std, norms } => {
                fresh((*seed, model), decl, &name, (*std, *norms), count)
            }
        };
        if file.len() != count {
            let (shape, found) = (&stored.shape, file.len());
            return Err(RunError::new(
                "checkpoint-mismatch",
                format!("`{name}` has {found} values, the model wants {shape:?}"),
            ));
        }
        Ok(stored.to_storage(&file))
    }
}

fn fresh(
    (seed, model): (u64, &str),
    decl: &ParamDecl,
    name: &str,
    (std, norms): (f64, f32),
    count: usize,
) -> Vec<f32> {
    if is_vector(decl) {
        let still = ["bias", "sinks"].iter().any(|end| name.ends_with(end));
        return vec![if still { 0.0 } else { norms }; count];
    }
    let mut out = vec![0.0; count];
    Stream::param(seed, &format!("{model}/{name}")).fill_normal(Use::Init, 0, &mut out);
    out.iter_mut().for_each(|x| *x *= std as f32);
    out
}

/// Placements of a model's parameters under `layouts`.
pub fn placements(model: &Model, layouts: &[ParamLayout]) -> Outcome<Vec<Placement>> {
    let place = |(i, decl): (usize, &ParamDecl)| {
        let layout = layouts.iter().find(|l| l.param.0 as usize == i);
        let layout =
            layout.ok_or_else(|| RunError::internal(format!("`{}` has no layout", decl.name)))?;
        Ok(Placement::new(decl, &model.dims, layout))
    };
    model.params.iter().enumerate().map(place).collect()
}

/// The store of one rank, filled from `source`.
pub fn load(
    model: &Model,
    layouts: &[ParamLayout],
    mesh: &Mesh,
    rank: usize,
    source: &Source,
) -> Outcome<ParamStore> {
    let places = placements(model, layouts)?;
    let mut store = empty_store(&model.params);
    for (p, layer, _) in tensors(&model.params) {
        let global = source.tensor(&model.params[p], &model.dims, layer)?;
        store.weights.push(places[p].cut(mesh, rank, &global));
        store.grads.push(vec![]);
    }
    Ok(store)
}

/// A store with its slots counted and no weights.
pub fn empty_store(params: &[ParamDecl]) -> ParamStore {
    let mut first = vec![];
    let mut total = 0;
    for p in params {
        first.push(total);
        total += p.repeat.as_ref().map_or(1, |(_, n)| *n);
    }
    ParamStore { first, weights: Vec::with_capacity(total), grads: Vec::with_capacity(total) }
}

/// Per rank and slot, the part a rank stores; empty where another rank holds the same.
pub type Parts = Vec<Vec<Vec<f32>>>;

/// What `rank` hands over for [`join`]: its parts, without those that an earlier rank holds too.
pub fn share(
    params: &[ParamDecl],
    places: &[Placement],
    mesh: &Mesh,
    rank: usize,
    parts: &[Vec<f32>],
) -> Vec<Vec<f32>> {
    let give = |((p, _, _), part): ((usize, usize, String), &Vec<f32>)| {
        if places[p].is_first(mesh, rank) { part.clone() } else { vec![] }
    };
    tensors(params).zip(parts).map(give).collect()
}

/// Global tensors in storage order, by slot, from what all ranks shared.
pub fn join(
    params: &[ParamDecl],
    places: &[Placement],
    mesh: &Mesh,
    parts: &Parts,
) -> Vec<Arc<Vec<f32>>> {
    let one = |(slot, (p, _, _)): (usize, (usize, usize, String))| {
        Arc::new(places[p].join(mesh, |r| &parts[r][slot]))
    };
    tensors(params).enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(axes: &[&str]) -> Vec<String> {
        axes.iter().map(|a| a.to_string()).collect()
    }

    fn iota(n: usize) -> Vec<f32> {
        (0..n).map(|i| i as f32).collect()
    }

    #[test]
    fn a_vocabulary_that_does_not_divide_is_padded_with_zeros() {
        let place =
            Placement { shape: vec![5, 2], dims: vec![names(&["tp"]), vec![]], flat: vec![] };
        let mesh = Mesh::new(&[("dp", 1), ("tp", 2)]);
        let global = iota(10);
        assert_eq!(place.cut(&mesh, 0, &global), [0., 1., 2., 3., 4., 5.]);
        assert_eq!(place.cut(&mesh, 1, &global), [6., 7., 8., 9., 0., 0.]);
    }

    #[test]
    fn ten_elements_over_four_ranks_are_three_three_three_one() {
        let place = Placement { shape: vec![10], dims: vec![vec![]], flat: names(&["dp"]) };
        let mesh = Mesh::new(&[("dp", 4)]);
        let parts: Vec<_> = (0..4).map(|r| place.cut(&mesh, r, &iota(10))).collect();
        assert_eq!(parts[2], [6., 7., 8.]);
        assert_eq!(parts[3], [9., 0., 0.]);
        assert_eq!(place.join(&mesh, |r| &parts[r]), iota(10));
    }

    #[test]
    fn a_projection_is_stored_contraction_major() {
        // q_proj.weight of [q*hd, d] = [2*3, 2] is stored as [d, q, hd].
        let stored = Stored { shape: vec![6, 2], sizes: vec![2, 3, 2], order: vec![2, 0, 1] };
        let storage = stored.to_storage(&iota(12));
        assert_eq!(storage, [0., 2., 4., 6., 8., 10., 1., 3., 5., 7., 9., 11.]);
        assert_eq!(stored.to_file(&storage), iota(12));
    }

    #[test]
    fn fresh_weights_depend_on_their_name_alone() {
        let decl = |repeat| ParamDecl {
            name: "w".into(),
            dims: vec![],
            repeat,
            checkpoint: "l.{i}.w".into(),
            checkpoint_dims: vec![vec![], vec![]],
            trained: true,
        };
        let of = |seed, decl: &ParamDecl, name: &str| {
            fresh((seed, "policy"), decl, name, (0.02, 1.0), 64)
        };
        let one = of(3, &decl(None), "l.0.w");
        assert_eq!(one, of(3, &decl(Some(("layers".into(), 4))), "l.0.w"));
        assert_ne!(one, of(3, &decl(None), "l.1.w"));
        assert_ne!(one, of(4, &decl(None), "l.0.w"));
        let norm = ParamDecl { checkpoint_dims: vec![vec![]], ..decl(None) };
        assert_eq!(of(3, &norm, "norm.weight"), [1.0; 64]);
        assert_eq!(of(3, &norm, "q_proj.bias"), [0.0; 64]);
        let around_one = fresh((3, "policy"), &norm, "norm.weight", (0.02, 0.0), 2);
        assert_eq!(around_one, [0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn what_is_cut_on_one_mesh_joins_and_cuts_on_another(
            shape in proptest::collection::vec(1usize..6, 1..4),
            split in 0usize..4, flat in any::<bool>(), dp in 1usize..4, tp in 1usize..4,
        ) {
            let mesh = Mesh::new(&[("dp", dp), ("tp", tp)]);
            let dims = (0..shape.len()).map(|i| if i == split { names(&["tp"]) } else { vec![] }).collect();
            let place = Placement { shape: shape.clone(), dims, flat: if flat { names(&["dp"]) } else { vec![] } };
            let global: Vec<f32> = iota(shape.iter().product()).iter().map(|x| x + 1.0).collect();
            let parts: Vec<_> = (0..mesh.ranks()).map(|r| place.cut(&mesh, r, &global)).collect();
            for part in &parts {
                prop_assert_eq!(part.len(), place.part_len(&mesh));
            }
            // Ranks that are not the first of their kind hand over nothing.
            let shared: Vec<_> = (0..mesh.ranks())
                .map(|r| if place.is_first(&mesh, r) { parts[r].clone() } else { vec![] })
                .collect();
            prop_assert_eq!(place.join(&mesh, |r| &shared[r]), global);
        }
    }
}
