//! Building one tensor graph: blocks, the well-known ragged dims, inputs bound to step values.

use std::collections::BTreeMap;

use nrl_ir::graph::{Block, Graph, Node, ValueId};
use nrl_ir::host;
use nrl_ir::infer::ShapeError;
use nrl_ir::op::{BinaryOp, Op, ReduceOp};
use nrl_ir::program::{BindingId, GraphInput};
use nrl_ir::{DimId, ParamId, Type};

use crate::value::Side;

/// Largest numbers of items of ragged dims when nothing better is known.
pub const GROUP_BOUND: usize = 4096;

/// A graph being built.
#[derive(Clone, Debug)]
pub struct Builder {
    pub graph: Graph,
    /// Open blocks, the innermost last.
    pub blocks: Vec<Block>,
    /// Well-known dims made so far.
    ragged: BTreeMap<&'static str, DimId>,
    /// Inputs bound to step values, in order of first use.
    pub inputs: Vec<GraphInput>,
    /// Host scalars `host.0`, `host.1`, ...
    pub scalars: Vec<host::Func>,
    /// Log-probability nodes by samples binding: `(lp, entropy)`.
    pub logprobs: BTreeMap<BindingId, (ValueId, ValueId)>,
    /// Value nodes by samples binding.
    pub values: BTreeMap<BindingId, ValueId>,
    /// Low-rank factors of parameters: `A`, `B`, their shared dim and what scales the product.
    pub factors: BTreeMap<ParamId, (ParamId, ParamId, DimId, f64)>,
    /// Values of which only one side of pairs counts.
    pub sides: BTreeMap<ValueId, Side>,
    /// Temperature of the log-probabilities, if they say one.
    pub temperature: Option<f64>,
    /// Bounds by dim name.
    pub bounds: BTreeMap<&'static str, usize>,
    /// The samples that the graph's `seq` counts.
    pub samples: Option<BindingId>,
    /// Outputs besides the value asked for.
    pub origin: Option<(u32, u32, u32)>,
}

impl Builder {
    pub fn new(name: &str) -> Builder {
        Builder {
            graph: Graph::new(name),
            blocks: vec![Block::default()],
            ragged: BTreeMap::new(),
            inputs: vec![],
            scalars: vec![],
            logprobs: BTreeMap::new(),
            values: BTreeMap::new(),
            factors: BTreeMap::new(),
            sides: BTreeMap::new(),
            temperature: None,
            bounds: BTreeMap::new(),
            samples: None,
            origin: None,
        }
    }

    /// One of the ragged dims every graph may have.
    pub fn dim(&mut self, name: &'static str) -> DimId {
        if let Some(d) = self.ragged.get(name) {
            return *d;
        }
        let owner = match name {
            "tok" | "act" => Some(self.dim("seq")),
            "seq" => Some(self.dim("group")),
            _ => None,
        };
        let bound = self.bounds.get(name).copied().unwrap_or(GROUP_BOUND);
        let d = self.graph.dims.add_ragged(name, owner, bound);
        self.ragged.insert(name, d);
        d
    }

    /// Has the graph this ragged dim already?
    pub fn has_dim(&self, name: &str) -> Option<DimId> {
        self.ragged.get(name).copied()
    }

    pub fn push(&mut self, op: Op, args: &[ValueId]) -> Result<Vec<ValueId>, ShapeError> {
        let Some(mut block) = self.blocks.pop() else { return Ok(vec![]) };
        let result = self.graph.push(&mut block, op, args, self.origin);
        self.blocks.push(block);
        result
    }

    pub fn push1(&mut self, op: Op, args: &[ValueId]) -> Result<ValueId, ShapeError> {
        Ok(self.push(op, args)?[0])
    }

    pub fn constant(&mut self, value: f64) -> ValueId {
        let v = self.graph.fresh(Type::f32([]));
        self.node(Op::Const { value }, vec![v])
    }

    fn node(&mut self, op: Op, outs: Vec<ValueId>) -> ValueId {
        let v = outs[0];
        if let Some(b) = self.blocks.last_mut() {
            b.nodes.push(Node { op, args: vec![], outs, origin: None });
        }
        v
    }

    /// A host input; always read in the outermost block, so that loops see it from outside.
    pub fn input(&mut self, name: &str, ty: Type) -> ValueId {
        if let Some(index) = self.graph.inputs.iter().position(|i| i.name == name) {
            let found = self.blocks[0]
                .nodes
                .iter()
                .find(|n| n.op == Op::Input { index })
                .map(|n| n.outs[0]);
            if let Some(v) = found {
                return v;
            }
        }
        let mut block = std::mem::take(&mut self.blocks[0]);
        let v = self.graph.input(&mut block, name, ty);
        // Inputs come first, so that a loop opened earlier still finds them defined.
        if let Some(node) = block.nodes.pop() {
            block.nodes.insert(0, node);
        }
        self.blocks[0] = block;
        v
    }

    pub fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Result<ValueId, ShapeError> {
        self.push1(Op::Binary { op }, &[a, b])
    }

    /// Sums over everything, down to a scalar.
    pub fn total(&mut self, x: ValueId) -> Result<ValueId, ShapeError> {
        let over = self.all_dims(x);
        if over.is_empty() {
            Ok(x)
        } else {
            self.push1(Op::Reduce { op: ReduceOp::Sum, over }, &[x])
        }
    }

    /// The dims of `x` and their owners.
    pub fn all_dims(&self, x: ValueId) -> Vec<DimId> {
        let mut over: Vec<DimId> = vec![];
        for d in self.graph.dims_of(x) {
            for o in self.graph.dims.owners(*d) {
                if !over.contains(&o) {
                    over.push(o);
                }
            }
        }
        over
    }

    /// Closes the graph with the given outputs.
    pub fn finish(mut self, outputs: &[(&str, ValueId)]) -> Graph {
        let mut body = self.blocks.pop().unwrap_or_default();
        body.results = outputs.iter().map(|(_, v)| *v).collect();
        self.graph.body = body;
        self.graph.outputs = outputs.iter().map(|(n, _)| (*n).to_string()).collect();
        self.graph
    }
}
