//! The tensor graph: nodes in topological order, with nested regions for loops.
//!
//! Values live in one arena per graph; a node lists operands and results by id. A graph is built
//! through [`Graph::push`], which applies the op's shape rule, so types always follow from ops.

use serde::{Deserialize, Serialize};

use crate::dim::{DimId, Dims};
use crate::infer::{self, ShapeError};
use crate::op::Op;
use crate::types::{DType, Type};

/// Index of a value in a graph's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// Index of a parameter in [`Graph::params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ParamId(pub u32);

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub args: Vec<ValueId>,
    pub outs: Vec<ValueId>,
    /// Byte range in the source it comes from (`source id, start, end`), for messages.
    pub origin: Option<(u32, u32, u32)>,
}

/// A list of nodes with parameters and results: the body of a graph or of a scan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    pub params: Vec<ValueId>,
    pub nodes: Vec<Node>,
    pub results: Vec<ValueId>,
}

/// A named tensor of weights. Its `dims` are those of one layer when it is in a repeated group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamDecl {
    /// Path in the model: `embed`, `layers.wq`.
    pub name: String,
    /// Storage order: contraction-major (`[d, q, hd]`) unless the parameter is indexed by rows.
    pub dims: Vec<DimId>,
    /// The `repeat` it belongs to and how many layers that has.
    pub repeat: Option<(String, usize)>,
    /// Tensor name in the checkpoint, `{i}` standing for the layer; `{i*7+3}` where a turn of the loop
    /// has several. `x.weight[4..8]` are some rows of a tensor.
    pub checkpoint: String,
    /// Shape in the checkpoint, major first: each entry is a group of dims merged into one, such
    /// as `[[q, hd], [d]]` for a `q_proj.weight` of `[q*hd, d]`.
    pub checkpoint_dims: Vec<Vec<DimId>>,
    pub trained: bool,
}

impl ParamDecl {
    /// Layers in one turn of the loop it belongs to: 1, or as many as the numbers in its checkpoint
    /// names are apart, `{i*7+3}` in place of `{i}`.
    pub fn apart(&self) -> usize {
        self.number().map_or(1, |(_, apart, _)| apart)
    }

    /// Name in the checkpoint at turn `turn` of its loop.
    pub fn tensor(&self, turn: usize) -> String {
        match self.number() {
            Some((text, apart, first)) => {
                self.checkpoint.replace(text, &(turn * apart + first).to_string())
            }
            None => self.checkpoint.replace("{i}", &turn.to_string()),
        }
    }

    /// `{i*7+3}` in the checkpoint's name, with both numbers.
    fn number(&self) -> Option<(&str, usize, usize)> {
        let start = self.checkpoint.find("{i*")?;
        let end = start + self.checkpoint[start..].find('}')?;
        let (apart, first) = self.checkpoint[start + 3..end].split_once('+')?;
        Some((&self.checkpoint[start..=end], apart.parse().ok()?, first.parse().ok()?))
    }

    /// If it is some rows of a tensor, `x.weight[4..8]`: the tensor's name and the rows.
    pub fn rows(&self) -> Option<(&str, std::ops::Range<usize>)> {
        rows_of(&self.checkpoint)
    }

    /// The name that recipes use: without the numbers of runs and layers, `layers.wq` for
    /// `layers.2.0.wq`.
    pub fn path(&self) -> String {
        let number = |s: &&str| s.bytes().all(|b| b.is_ascii_digit());
        self.name.split('.').filter(|s| !number(s)).collect::<Vec<_>>().join(".")
    }
}

/// The name of a tensor and some of its rows, `x.weight[4..8]`.
pub fn rows_of(name: &str) -> Option<(&str, std::ops::Range<usize>)> {
    let (base, range) = name.strip_suffix(']')?.rsplit_once('[')?;
    let (start, end) = range.split_once("..")?;
    Some((base, start.parse().ok()?..end.parse().ok()?))
}

/// A value the host binds before each run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    pub ty: Type,
}

/// What one stage computes on one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    pub name: String,
    pub dims: Dims,
    pub params: Vec<ParamDecl>,
    pub inputs: Vec<Input>,
    pub values: Vec<Type>,
    pub body: Block,
    /// Names of `body.results`, in the same order.
    pub outputs: Vec<String>,
}

impl Graph {
    /// Layers in one turn of the loops over `group`.
    pub fn layers_of_turn(&self, group: &str) -> usize {
        let own = self.params.iter().filter(|p| p.repeat.as_ref().is_some_and(|(g, _)| g == group));
        own.map(ParamDecl::apart).max().unwrap_or(1)
    }

    pub fn new(name: &str) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    pub fn ty(&self, v: ValueId) -> &Type {
        &self.values[v.0 as usize]
    }

    /// Dims of a value.
    pub fn dims_of(&self, v: ValueId) -> &[DimId] {
        &self.ty(v).dims
    }

    /// A new value of type `ty` that no node defines yet (scan params).
    pub fn fresh(&mut self, ty: Type) -> ValueId {
        self.values.push(ty);
        ValueId(self.values.len() as u32 - 1)
    }

    /// Appends a node to `block`, with the result types its shape rule gives.
    pub fn push(
        &mut self,
        block: &mut Block,
        op: Op,
        args: &[ValueId],
        origin: Option<(u32, u32, u32)>,
    ) -> Result<Vec<ValueId>, ShapeError> {
        let types = infer::infer(self, &op, args)?;
        let outs: Vec<ValueId> = types.into_iter().map(|t| self.fresh(t)).collect();
        block.nodes.push(Node { op, args: args.to_vec(), outs: outs.clone(), origin });
        Ok(outs)
    }

    /// [`Graph::push`] for ops with one result.
    pub fn push1(
        &mut self,
        block: &mut Block,
        op: Op,
        args: &[ValueId],
        origin: Option<(u32, u32, u32)>,
    ) -> Result<ValueId, ShapeError> {
        Ok(self.push(block, op, args, origin)?[0])
    }

    /// Declares a host input and appends the node that reads it.
    pub fn input(&mut self, block: &mut Block, name: &str, ty: Type) -> ValueId {
        let index = match self.inputs.iter().position(|i| i.name == name) {
            Some(i) => i,
            None => {
                self.inputs.push(Input { name: name.into(), ty: ty.clone() });
                self.inputs.len() - 1
            }
        };
        let v = self.fresh(ty);
        let op = Op::Input { index };
        block.nodes.push(Node { op, args: vec![], outs: vec![v], origin: None });
        v
    }

    /// A scalar constant.
    pub fn constant(&mut self, block: &mut Block, value: f64) -> ValueId {
        let v = self.fresh(Type::f32([]));
        block.nodes.push(Node {
            op: Op::Const { value },
            args: vec![],
            outs: vec![v],
            origin: None,
        });
        v
    }

    pub fn param(&self, id: ParamId) -> &ParamDecl {
        &self.params[id.0 as usize]
    }

    /// Is the value an index?
    pub fn id_of(&self, v: ValueId) -> Option<DimId> {
        match self.ty(v).dtype {
            DType::Id(d) => Some(d),
            _ => None,
        }
    }
}

impl Block {
    /// Calls `f` on every node, inner blocks included, outer node first.
    pub fn walk<'a>(&'a self, f: &mut dyn FnMut(&'a Node)) {
        for node in &self.nodes {
            f(node);
            if let Op::Scan { scan } = &node.op {
                scan.body.walk(f);
            }
        }
    }
}
