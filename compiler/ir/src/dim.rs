//! Named dims: static, or ragged with an owner.
//!
//! A tensor is a set of dims. A ragged dim (`tok` of `seq`, `seq` of `group`) has its length and
//! its segment offsets at run time; everything else is a number known when planning. A dim that
//! `shard` has cut carries its global size, so that a rank's offset is `coord * local`. A cut ragged
//! dim has `ceil(items / ranks)` items of the whole one of its name.

use serde::{Deserialize, Serialize};

/// Index of a dim in the [`Dims`] of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DimId(pub u32);

/// How long a dim is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// Known when planning; after `shard` the local size.
    Static(usize),
    /// Known at run time, at most `bound`. Its items are cut into one segment per item of `owner`.
    Ragged { owner: Option<DimId>, bound: usize },
}

/// What `shard` did to a static dim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Mesh axes that split the dim, major first.
    pub axes: Vec<String>,
    /// Size before the split. `local * ranks >= global`; the surplus is padding.
    pub global: usize,
}

/// A dim whose items a router chooses from: of a value that has a ragged dim too, each of the
/// ragged items holds only some. Experts of a mixture: of `[tok, expert, d]` there are
/// `chosen * copies / over` rows of `d` per token on a rank, if the choice is balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routed {
    /// Items chosen per ragged item.
    pub chosen: usize,
    /// Ranks that work on each of the rows together.
    pub copies: usize,
    /// Ranks that hold the same ragged items and share the work on them.
    pub over: usize,
}

impl Routed {
    /// Rows per ragged item on a rank.
    pub fn rows(&self) -> f64 {
        (self.chosen * self.copies) as f64 / self.over.max(1) as f64
    }
}

/// One named dim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dim {
    pub name: String,
    pub extent: Extent,
    /// Factors of a product dim, major first (`q = kv * group`); empty otherwise.
    pub factors: Vec<DimId>,
    pub shard: Option<Shard>,
    pub routed: Option<Routed>,
}

/// The dims of one graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dims(Vec<Dim>);

impl Dims {
    /// Adds a dim and returns its id. Names need not be unique (`d` renamed keeps its own id).
    pub fn add(&mut self, dim: Dim) -> DimId {
        self.0.push(dim);
        DimId(self.0.len() as u32 - 1)
    }

    /// Adds a static dim of `size`.
    pub fn add_static(&mut self, name: &str, size: usize) -> DimId {
        self.add(Dim {
            name: name.into(),
            extent: Extent::Static(size),
            factors: vec![],
            shard: None,
            routed: None,
        })
    }

    /// Adds a ragged dim cut into segments of `owner`.
    pub fn add_ragged(&mut self, name: &str, owner: Option<DimId>, bound: usize) -> DimId {
        let extent = Extent::Ragged { owner, bound };
        self.add(Dim { name: name.into(), extent, factors: vec![], shard: None, routed: None })
    }

    /// The dim named `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<DimId> {
        self.0.iter().position(|d| d.name == name).map(|i| DimId(i as u32))
    }

    pub fn get(&self, id: DimId) -> &Dim {
        &self.0[id.0 as usize]
    }

    pub fn get_mut(&mut self, id: DimId) -> &mut Dim {
        &mut self.0[id.0 as usize]
    }

    pub fn name(&self, id: DimId) -> &str {
        &self.get(id).name
    }

    /// Size of a static dim; `None` when ragged.
    pub fn size(&self, id: DimId) -> Option<usize> {
        match self.get(id).extent {
            Extent::Static(n) => Some(n),
            Extent::Ragged { .. } => None,
        }
    }

    /// Largest size the dim may have.
    pub fn bound(&self, id: DimId) -> usize {
        match self.get(id).extent {
            Extent::Static(n) => n,
            Extent::Ragged { bound, .. } => bound,
        }
    }

    pub fn is_ragged(&self, id: DimId) -> bool {
        self.size(id).is_none()
    }

    /// For a ragged dim that `shard` has cut: the whole one.
    pub fn whole(&self, id: DimId) -> Option<DimId> {
        let part = self.get(id);
        let same = |d: &&(DimId, &Dim)| d.1.name == part.name && d.1.shard.is_none();
        let cut = part.shard.is_some() && self.is_ragged(id);
        if cut { self.iter().find(|d| same(&d)).map(|d| d.0) } else { None }
    }

    /// Owner of a ragged dim.
    pub fn owner(&self, id: DimId) -> Option<DimId> {
        match self.get(id).extent {
            Extent::Ragged { owner, .. } => owner,
            Extent::Static(_) => None,
        }
    }

    /// `id` and the chain of its owners: `tok`, `seq`, `group`.
    pub fn owners(&self, id: DimId) -> impl Iterator<Item = DimId> + '_ {
        std::iter::successors(Some(id), |d| self.owner(*d))
    }

    /// Does a value over `small` broadcast to `dims` by name? A ragged dim contains its owners.
    pub fn contains(&self, dims: &[DimId], small: &[DimId]) -> bool {
        small.iter().all(|s| dims.iter().any(|d| self.owners(*d).any(|o| o == *s)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (DimId, &Dim)> {
        self.0.iter().enumerate().map(|(i, d)| (DimId(i as u32), d))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
