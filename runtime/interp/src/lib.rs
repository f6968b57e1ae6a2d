//! The reference evaluator in f64: one op, one obvious loop; it judges the fast engines.
//!
//! Evaluates a graph (before or after `shard`, fused or not) for all ranks of a mesh in lock step
//! in one thread: a collective simply reads the values of the other ranks. Weights, gradients and
//! results are f64; indices are whole numbers in the same tensors. Depends on `nrl-ir` alone.

mod attention;
mod batch;
mod collective;
mod fused;
mod logprob;
mod ops;
mod ssm;
mod tensor;

use std::collections::BTreeMap;
use std::fmt;

use nrl_ir::op::Scan;
use nrl_ir::{Block, DimId, Extent, Graph, Mesh, Node, Op, ParamId, ValueId};

pub use batch::run_batch;
pub use tensor::Tensor;

/// Weights or gradients by parameter and layer (0 outside any `repeat`). Under zero3 a tensor is
/// the rank's flat shard.
pub type Params = BTreeMap<(ParamId, usize), Tensor>;

/// Keys and values of earlier tokens by `(layer, slot)`, each `[tokens, kv, hd]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cache {
    pub keys: BTreeMap<(usize, usize), Vec<f64>>,
    pub values: BTreeMap<(usize, usize), Vec<f64>>,
}

/// What one rank binds for a run.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// One tensor per graph input.
    pub inputs: Vec<Tensor>,
    /// Segment offsets of each ragged dim, from 0 to its count; `[0, count]` without an owner.
    pub offsets: BTreeMap<DimId, Vec<usize>>,
    /// Per sequence: tokens already in the cache. Empty when nothing is cached.
    pub bases: Vec<usize>,
    /// Per sequence: its slot in the cache.
    pub slots: Vec<usize>,
}

/// State of one rank; a run adds to `grads` and appends to `cache`.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    pub bind: Bindings,
    pub params: Params,
    pub grads: Params,
    pub cache: Cache,
}

/// Why a run stopped: something was not bound, or a graph does not fit its bindings.
#[derive(Clone, Debug, PartialEq)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// A value during a run.
#[derive(Clone, Debug)]
enum Value {
    One(Tensor),
    /// One slice per iteration of the scan that made it.
    Stack(Vec<Option<Tensor>>),
}

/// Runs `graph` on all ranks of `mesh`; returns the graph's outputs per rank.
pub fn run(graph: &Graph, mesh: &Mesh, ranks: &mut [Rank]) -> Result<Vec<Vec<Tensor>>, Error> {
    if ranks.len() != mesh.ranks() {
        return Err(Error(format!("{} ranks bound for a mesh of {}", ranks.len(), mesh.ranks())));
    }
    let values = ranks.iter().map(|_| vec![None; graph.values.len()]).collect();
    let mut interp = Interp { graph, mesh, ranks, values, layers: vec![] };
    interp.block(&graph.body)?;
    let results =
        |r: usize| graph.body.results.iter().map(|v| interp.tensor(r, *v).cloned()).collect();
    (0..interp.ranks.len()).map(results).collect()
}

/// [`run`] on a mesh of one rank.
pub fn run_one(graph: &Graph, rank: &mut Rank) -> Result<Vec<Tensor>, Error> {
    let mut out = run(graph, &Mesh::default(), std::slice::from_mut(rank))?;
    Ok(out.remove(0))
}

struct Interp<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    ranks: &'a mut [Rank],
    /// `[rank][value]`.
    values: Vec<Vec<Option<Value>>>,
    /// Scans being run, outermost first: their group and current layer.
    layers: Vec<(String, usize)>,
}

impl Interp<'_> {
    fn block(&mut self, block: &Block) -> Result<(), Error> {
        block.nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &Node) -> Result<(), Error> {
        if let Op::Scan { scan } = &node.op {
            return self.scan(scan, node);
        }
        if self.between_ranks(node)? {
            return Ok(());
        }
        for r in 0..self.ranks.len() {
            let outs = self.local(r, node)?;
            for (v, t) in node.outs.iter().zip(outs) {
                self.set(r, *v, t);
            }
        }
        Ok(())
    }

    fn scan(&mut self, scan: &Scan, node: &Node) -> Result<(), Error> {
        let (carries, stacks) = node.args.split_at(scan.carries);
        for r in 0..self.ranks.len() {
            for (p, a) in scan.body.params.iter().zip(carries) {
                let t = self.tensor(r, *a)?.clone();
                self.set(r, *p, t);
            }
            for out in &node.outs[scan.carries..] {
                self.values[r][out.0 as usize] = Some(Value::Stack(vec![None; scan.count]));
            }
        }
        for step in 0..scan.count {
            let i = if scan.reverse { scan.count - 1 - step } else { step };
            for r in 0..self.ranks.len() {
                for (p, s) in scan.body.params[scan.carries..].iter().zip(stacks) {
                    let t = self.slice(r, *s, i)?;
                    self.set(r, *p, t);
                }
            }
            self.layers.push((scan.group.clone(), scan.first + i));
            self.block(&scan.body)?;
            self.layers.pop();
            for r in 0..self.ranks.len() {
                self.iteration_results(r, scan, node, i)?;
            }
        }
        for r in 0..self.ranks.len() {
            for (p, out) in scan.body.params.iter().zip(&node.outs[..scan.carries]) {
                let t = self.tensor(r, *p)?.clone();
                self.set(r, *out, t);
            }
        }
        Ok(())
    }

    /// Moves the results of iteration `i` to the carries and the new stacks.
    fn iteration_results(
        &mut self,
        r: usize,
        scan: &Scan,
        node: &Node,
        i: usize,
    ) -> Result<(), Error> {
        let results: Vec<Tensor> = scan
            .body
            .results
            .iter()
            .map(|v| self.tensor(r, *v).cloned())
            .collect::<Result<_, _>>()?;
        for (j, t) in results.into_iter().enumerate() {
            if j < scan.carries {
                self.set(r, scan.body.params[j], t);
            } else if let Some(Value::Stack(s)) = &mut self.values[r][node.outs[j].0 as usize] {
                s[i] = Some(t);
            }
        }
        Ok(())
    }

    fn slice(&self, r: usize, v: ValueId, i: usize) -> Result<Tensor, Error> {
        match &self.values[r][v.0 as usize] {
            Some(Value::Stack(s)) => {
                s[i].clone().ok_or_else(|| Error(format!("%{} has no slice {i}", v.0)))
            }
            _ => Err(Error(format!("%{} is not a stack", v.0))),
        }
    }

    fn set(&mut self, r: usize, v: ValueId, t: Tensor) {
        self.values[r][v.0 as usize] = Some(Value::One(t));
    }

    fn tensor(&self, r: usize, v: ValueId) -> Result<&Tensor, Error> {
        match &self.values[r][v.0 as usize] {
            Some(Value::One(t)) => Ok(t),
            Some(Value::Stack(_)) => Err(Error(format!("%{} is a stack", v.0))),
            None => Err(Error(format!("%{} is not computed yet", v.0))),
        }
    }

    fn dims(&self, v: ValueId) -> &[DimId] {
        self.graph.dims_of(v)
    }

    /// Items of a dim on rank `r`.
    fn size(&self, r: usize, d: DimId) -> Result<usize, Error> {
        match &self.graph.dims.get(d).extent {
            Extent::Static(n) => Ok(*n),
            Extent::Ragged { .. } if let Some(whole) = self.graph.dims.whole(d) => {
                let axes = self.graph.dims.get(d).shard.iter().flat_map(|s| s.axes.clone());
                let ranks = self.mesh.size_over(&axes.collect::<Vec<_>>());
                Ok(self.size(r, whole)?.div_ceil(ranks))
            }
            Extent::Ragged { .. } => {
                let last = self.ranks[r].bind.offsets.get(&d).and_then(|o| o.last());
                last.copied()
                    .ok_or_else(|| Error(format!("no offsets for `{}`", self.graph.dims.name(d))))
            }
        }
    }

    fn shape(&self, r: usize, dims: &[DimId]) -> Result<Vec<usize>, Error> {
        dims.iter().map(|d| self.size(r, *d)).collect()
    }

    fn zeros(&self, r: usize, dims: &[DimId]) -> Result<Tensor, Error> {
        Ok(Tensor::filled(self.shape(r, dims)?, 0.0))
    }

    /// For each item of `of`, the segment it lies in at level `owner`.
    fn segments(&self, r: usize, of: DimId, owner: DimId) -> Result<Vec<usize>, Error> {
        let mut segment: Vec<usize> = (0..self.size(r, of)?).collect();
        let mut level = of;
        while level != owner {
            let up = self
                .graph
                .dims
                .owner(level)
                .ok_or_else(|| Error("a segment above the last owner".into()))?;
            let offsets = &self.ranks[r].bind.offsets[&level];
            let mut of_item = vec![0; self.size(r, level)?];
            for (s, range) in offsets.windows(2).enumerate() {
                of_item[range[0]..range[1]].fill(s);
            }
            for s in &mut segment {
                *s = of_item[*s];
            }
            level = up;
        }
        Ok(segment)
    }

    /// Which layer of `param` an op reads here.
    fn layer(&self, param: ParamId) -> usize {
        let Some((group, _)) = &self.graph.param(param).repeat else { return 0 };
        self.layers.iter().rev().find(|(g, _)| g == group).map_or(0, |(_, l)| *l)
    }

    fn weight(&self, r: usize, param: ParamId) -> Result<&Tensor, Error> {
        let layer = self.layer(param);
        let found = self.ranks[r].params.get(&(param, layer));
        found.ok_or_else(|| {
            Error(format!("no weights for `{}`, layer {layer}", self.graph.param(param).name))
        })
    }

    /// First global index of rank `r`'s part of `d`, and the global size.
    fn part(&self, r: usize, d: DimId) -> Result<(usize, usize), Error> {
        let local = self.size(r, d)?;
        Ok(match &self.graph.dims.get(d).shard {
            Some(s) => (self.mesh.coord_over(r, &s.axes) * local, s.global),
            None => (0, local),
        })
    }
}
