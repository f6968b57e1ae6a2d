//! From a group of nodes to a kernel.

use std::collections::BTreeMap;

use nrl_ir::kernel::{Instr, InstrId, Kernel, Output};
use nrl_ir::{Graph, Node, Op, ValueId};

use super::Group;
use super::space::{self, Rows};
use crate::report::Problem;

struct Build<'a> {
    g: &'a Graph,
    kernel: Kernel,
    operands: Vec<ValueId>,
    /// Instruction of each value of the group.
    at: BTreeMap<ValueId, InstrId>,
    consts: &'a BTreeMap<ValueId, f64>,
    lanes: usize,
}

/// The node that computes every result of `group` that somebody outside reads.
pub(super) fn kernel(
    g: &Graph,
    group: &Group,
    consts: &BTreeMap<ValueId, f64>,
) -> Result<Node, Problem> {
    let lanes = group.lanes.widest();
    let (rows, lane_dims) = group.space.split_at(group.space.len() - lanes);
    let names: Vec<&str> = group.members.iter().map(|n| n.op.name()).collect();
    let kernel = Kernel {
        rows: rows.to_vec(),
        lanes: lane_dims.to_vec(),
        inputs: vec![],
        code: vec![],
        outputs: vec![],
        reason: format!("over {}: {}", nrl_ir::infer::show_dims(g, &group.space), names.join(", ")),
    };
    let mut b = Build { g, kernel, operands: vec![], at: BTreeMap::new(), consts, lanes };
    let mut outs = vec![];
    for node in &group.members {
        let output = b.member(node)?;
        let out = node.outs[0];
        if group.outs.get(&out).is_some_and(|n| *n > 0) {
            let id = b.at[&out];
            b.kernel.outputs.push((id, output));
            outs.push(out);
        }
    }
    Ok(Node {
        op: Op::Fused { kernel: Box::new(b.kernel) },
        args: b.operands,
        outs,
        origin: group.members[0].origin,
    })
}

impl Build<'_> {
    /// Appends the instructions of one node; says how its result would leave.
    fn member(&mut self, node: &Node) -> Result<Output, Problem> {
        let x = node
            .args
            .iter()
            .map(|v| self.operand(*v))
            .collect::<Result<Vec<InstrId>, Problem>>()?;
        let mut output = Output::Store;
        let id = match &node.op {
            Op::Unary { op } => self.push(Instr::Unary { op: *op, x: x[0] }),
            Op::Binary { op } => self.push(Instr::Binary { op: *op, a: x[0], b: x[1] }),
            Op::Select => self.push(Instr::Select { cond: x[0], a: x[1], b: x[2] }),
            Op::Cast { .. } => self.push(Instr::RoundBf16 { x: x[0] }),
            Op::Reduce { op, over } => {
                let dims = self.g.dims_of(node.args[0]);
                match space::fold(self.g, dims, *op, over) {
                    Some(fold) => {
                        let folded = match fold.over_lanes {
                            Some(_) => self.push(Instr::Lanes { op: *op, x: x[0] }),
                            None => x[0],
                        };
                        output = match fold.rows {
                            Rows::Keep => Output::Store,
                            Rows::All { .. } => Output::SumRows,
                            Rows::Segments { of, owner, .. } => Output::SumSegments { of, owner },
                        };
                        folded
                    }
                    None => x[0],
                }
            }
            _ => x[0],
        };
        self.at.insert(node.outs[0], id);
        Ok(output)
    }

    fn operand(&mut self, v: ValueId) -> Result<InstrId, Problem> {
        if let Some(id) = self.at.get(&v) {
            return Ok(*id);
        }
        let instr = match self.consts.get(&v) {
            Some(value) => Instr::Const { value: *value },
            None => {
                let space: Vec<_> =
                    self.kernel.rows.iter().chain(&self.kernel.lanes).copied().collect();
                let access = space::access(self.g, self.g.dims_of(v), &space, self.lanes);
                let access = access.ok_or_else(|| {
                    Problem::internal("a kernel reads what it cannot reach", None)
                })?;
                self.kernel.inputs.push(access);
                self.operands.push(v);
                Instr::Load { input: self.operands.len() - 1 }
            }
        };
        let id = self.push(instr);
        self.at.insert(v, id);
        Ok(id)
    }

    fn push(&mut self, instr: Instr) -> InstrId {
        self.kernel.code.push(instr);
        self.kernel.code.len() - 1
    }
}
