//! Appending nodes to a list that will become a block, each expression once.

use nrl_ir::{BinaryOp, DimId, Graph, Node, Op, ReduceOp, UnaryOp, ValueId, infer};

use crate::report::{Origin, Problem};
use crate::values::Values;

/// Nodes being made.
#[derive(Default)]
pub(crate) struct Emit {
    pub nodes: Vec<Node>,
    /// Given to the nodes that follow.
    pub origin: Origin,
    /// Nodes that may be used again, by their first operand.
    readers: Values<Vec<usize>>,
    /// Those without operands.
    leaves: Vec<usize>,
    /// Nodes not made because an equal one was there.
    pub shared: usize,
}

impl Emit {
    /// Results of `op` on `args`; an equal node made before is used again.
    pub fn all(
        &mut self,
        g: &mut Graph,
        op: Op,
        args: &[ValueId],
    ) -> Result<Vec<ValueId>, Problem> {
        let once = !op.is_sink() && !matches!(op, Op::Scan { .. } | Op::AttentionCached { .. });
        if once && let Some(made) = self.made(&op, args) {
            self.shared += 1;
            return Ok(self.nodes[made].outs.clone());
        }
        let types = infer::infer(g, &op, args)
            .map_err(|e| Problem { origin: self.origin, ..Problem::from(e) })?;
        let outs: Vec<ValueId> = types.into_iter().map(|t| g.fresh(t)).collect();
        if once {
            let like = match args {
                [] => &mut self.leaves,
                [first, ..] => self.readers.of(*first),
            };
            like.push(self.nodes.len());
        }
        self.nodes.push(Node { op, args: args.to_vec(), outs: outs.clone(), origin: self.origin });
        Ok(outs)
    }

    /// The node that is `op` on `args`, if there is one. Constants are told apart by their bits.
    fn made(&self, op: &Op, args: &[ValueId]) -> Option<usize> {
        let like = match args {
            [] => &self.leaves,
            [first, ..] => self.readers.get(first)?,
        };
        let same = |made: &Op| match (made, op) {
            (Op::Const { value: a }, Op::Const { value: b }) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        };
        like.iter().copied().find(|i| self.nodes[*i].args == args && same(&self.nodes[*i].op))
    }

    /// [`Emit::all`] for ops with one result.
    pub fn one(&mut self, g: &mut Graph, op: Op, args: &[ValueId]) -> Result<ValueId, Problem> {
        Ok(self.all(g, op, args)?[0])
    }

    pub fn constant(&mut self, g: &mut Graph, value: f64) -> Result<ValueId, Problem> {
        self.one(g, Op::Const { value }, &[])
    }

    pub fn unary(&mut self, g: &mut Graph, op: UnaryOp, x: ValueId) -> Result<ValueId, Problem> {
        self.one(g, Op::Unary { op }, &[x])
    }

    pub fn binary(
        &mut self,
        g: &mut Graph,
        op: BinaryOp,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, Problem> {
        self.one(g, Op::Binary { op }, &[a, b])
    }

    pub fn select(
        &mut self,
        g: &mut Graph,
        cond: ValueId,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, Problem> {
        self.one(g, Op::Select, &[cond, a, b])
    }

    /// `value` everywhere over `dims`.
    pub fn splat(&mut self, g: &mut Graph, value: f64, dims: &[DimId]) -> Result<ValueId, Problem> {
        let c = self.constant(g, value)?;
        self.arrange(g, c, dims)
    }

    /// `x` over exactly `dims`, in that order: repeated or permuted where needed.
    pub fn arrange(
        &mut self,
        g: &mut Graph,
        x: ValueId,
        dims: &[DimId],
    ) -> Result<ValueId, Problem> {
        if g.dims_of(x) == dims {
            return Ok(x);
        }
        self.one(g, Op::Broadcast { dims: dims.to_vec() }, &[x])
    }

    /// Sums `x` over the dims that `to` lacks: what broadcasting from `to` demands of a gradient.
    pub fn sum_to(&mut self, g: &mut Graph, x: ValueId, to: &[DimId]) -> Result<ValueId, Problem> {
        let mut over: Vec<DimId> = vec![];
        for d in g.dims_of(x) {
            for level in g.dims.owners(*d).take_while(|o| !to.contains(o)) {
                if !over.contains(&level) {
                    over.push(level);
                }
            }
        }
        let summed = match over.is_empty() {
            true => x,
            false => self.one(g, Op::Reduce { op: ReduceOp::Sum, over }, &[x])?,
        };
        self.arrange(g, summed, to)
    }
}
