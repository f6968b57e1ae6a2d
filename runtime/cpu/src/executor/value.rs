//! What the executor knows during a run: values, sizes of dims, segments.

use std::collections::BTreeMap;
use std::sync::Arc;

use nrl_ir::{DimId, Extent, Graph, Mesh, ValueId};
use nrl_runtime::engine::{Bindings, EngineError, HostTensor};

use super::pool::Buffer;

/// A tensor, row major over the dims of its type.
#[derive(Clone)]
pub enum Value {
    Numbers(Arc<Buffer>),
    Ids(Arc<Vec<u32>>),
    /// An input of the run, by index.
    Input(usize),
    /// A slot of the parameter store.
    Weight(usize),
    /// One slice per layer.
    Stack(Vec<Option<Value>>),
}

/// An input as the run borrows it.
#[derive(Clone, Copy)]
pub enum Given<'a> {
    F32(&'a [f32]),
    Id(&'a [u32]),
}

impl<'a> Given<'a> {
    pub fn of(t: &'a HostTensor) -> Given<'a> {
        match t {
            HostTensor::F32(x) => Given::F32(x),
            HostTensor::Id(x) => Given::Id(x),
        }
    }

    pub fn len(self) -> usize {
        match self {
            Given::F32(x) => x.len(),
            Given::Id(x) => x.len(),
        }
    }
}

/// All values of a run.
pub struct Values<'a> {
    pub slots: Vec<Option<Value>>,
    pub inputs: Vec<Given<'a>>,
    pub weights: &'a [Vec<f32>],
}

pub fn failed<T>(text: impl Into<String>) -> Result<T, EngineError> {
    Err(EngineError::Failed(text.into()))
}

impl Values<'_> {
    pub fn get(&self, v: ValueId) -> Result<&Value, EngineError> {
        match self.slots.get(v.0 as usize).and_then(Option::as_ref) {
            Some(x) => Ok(x),
            None => failed(format!("value %{} is read before it is computed", v.0)),
        }
    }

    pub fn numbers(&self, v: ValueId) -> Result<&[f32], EngineError> {
        match self.get(v)? {
            Value::Numbers(b) => Ok(b),
            Value::Input(i) => match self.inputs[*i] {
                Given::F32(x) => Ok(x),
                Given::Id(_) => failed(format!("value %{} is an index, numbers are needed", v.0)),
            },
            Value::Weight(slot) => match self.weights.get(*slot) {
                Some(w) => Ok(w),
                None => failed(format!("there are no weights in slot {slot}")),
            },
            Value::Ids(_) | Value::Stack(_) => {
                failed(format!("value %{} does not hold numbers", v.0))
            }
        }
    }

    pub fn ids(&self, v: ValueId) -> Result<&[u32], EngineError> {
        match self.get(v)? {
            Value::Ids(x) => Ok(x),
            Value::Input(i) => match self.inputs[*i] {
                Given::Id(x) => Ok(x),
                Given::F32(_) => {
                    failed(format!("value %{} holds numbers, an index is needed", v.0))
                }
            },
            Value::Numbers(_) | Value::Weight(_) | Value::Stack(_) => {
                failed(format!("value %{} is not an index", v.0))
            }
        }
    }

    pub fn scalar(&self, v: ValueId) -> Result<f32, EngineError> {
        match self.numbers(v)? {
            [x, ..] => Ok(*x),
            [] => failed(format!("value %{} is empty, one number is needed", v.0)),
        }
    }
}

/// Sizes and segments of the dims in this run.
pub struct Space<'a> {
    pub graph: &'a Graph,
    sizes: Vec<Option<usize>>,
    offsets: BTreeMap<DimId, &'a [u32]>,
    pub bases: &'a [u32],
    pub slots: &'a [u32],
    maps: BTreeMap<(DimId, DimId), Arc<Vec<u32>>>,
}

impl<'a> Space<'a> {
    /// Checks the offsets; `count` is the size of ragged dims that have none.
    pub fn new(
        graph: &'a Graph,
        bind: &'a Bindings,
        mesh: &Mesh,
        count: Option<usize>,
    ) -> Result<Space<'a>, EngineError> {
        let mut sizes = vec![];
        let mut offsets = BTreeMap::new();
        for (id, dim) in graph.dims.iter() {
            let Extent::Ragged { bound, .. } = dim.extent else {
                sizes.push(graph.dims.size(id));
                continue;
            };
            let Some(list) = bind.offsets.get(&id) else {
                sizes.push(count);
                continue;
            };
            if list.first() != Some(&0) || list.windows(2).any(|w| w[0] > w[1]) {
                return failed(format!("the offsets of `{}` do not rise from 0", dim.name));
            }
            let n = list.last().map_or(0, |n| *n as usize);
            if n > bound {
                return failed(format!("`{}` has {n} items, its bound is {bound}", dim.name));
            }
            sizes.push(Some(n));
            offsets.insert(id, &list[..]);
        }
        for (id, dim) in graph.dims.iter() {
            if let (Some(whole), Some(shard)) = (graph.dims.whole(id), &dim.shard) {
                let ranks = mesh.size_over(&shard.axes);
                sizes[id.0 as usize] = sizes[whole.0 as usize].map(|n| n.div_ceil(ranks));
            }
        }
        Ok(Space {
            graph,
            sizes,
            offsets,
            bases: &bind.bases,
            slots: &bind.slots,
            maps: BTreeMap::new(),
        })
    }

    pub fn size(&self, d: DimId) -> Result<usize, EngineError> {
        match self.sizes[d.0 as usize] {
            Some(n) => Ok(n),
            None => failed(format!("no offsets are bound for `{}`", self.graph.dims.name(d))),
        }
    }

    pub fn shape(&self, dims: &[DimId]) -> Result<Vec<usize>, EngineError> {
        dims.iter().map(|d| self.size(*d)).collect()
    }

    pub fn count(&self, dims: &[DimId]) -> Result<usize, EngineError> {
        Ok(self.shape(dims)?.iter().product())
    }

    /// Offsets that cut `d` into sequences; one sequence if it has no owner.
    pub fn offsets(&self, d: DimId) -> Result<&'a [u32], EngineError> {
        match self.offsets.get(&d) {
            Some(o) => Ok(o),
            None => failed(format!("no offsets are bound for `{}`", self.graph.dims.name(d))),
        }
    }

    /// For each item of `of`, the item of `owner` that it lies in.
    pub fn map(&mut self, of: DimId, owner: DimId) -> Result<Arc<Vec<u32>>, EngineError> {
        if let Some(map) = self.maps.get(&(of, owner)) {
            return Ok(map.clone());
        }
        let mut map: Vec<u32> = (0..self.size(of)? as u32).collect();
        let mut level = of;
        while level != owner {
            let Some(up) = self.graph.dims.owner(level) else {
                let name = |d| self.graph.dims.name(d);
                return failed(format!(
                    "`{}` is not cut into segments of `{}`",
                    name(of),
                    name(owner)
                ));
            };
            let mut of_item = vec![0; self.size(level)?];
            for (s, range) in self.offsets(level)?.windows(2).enumerate() {
                of_item[range[0] as usize..range[1] as usize].fill(s as u32);
            }
            map.iter_mut().for_each(|s| *s = of_item[*s as usize]);
            level = up;
        }
        let map = Arc::new(map);
        self.maps.insert((of, owner), map.clone());
        Ok(map)
    }

    /// Position of each token in its sequence, counting those already cached.
    pub fn positions(&self, tok: DimId) -> Result<Vec<u32>, EngineError> {
        let mut out = Vec::with_capacity(self.size(tok)?);
        for (s, range) in self.offsets(tok)?.windows(2).enumerate() {
            let base = self.bases.get(s).copied().unwrap_or(0);
            out.extend((0..range[1] - range[0]).map(|i| base + i));
        }
        Ok(out)
    }
}

/// Distances between neighbors along each dim of a row-major tensor.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i] * shape[i];
    }
    out
}
