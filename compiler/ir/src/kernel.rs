//! A fused group: pointwise ops and reductions over one iteration space, `rows x lanes`.
//!
//! Rows are the leading dims of the space (ragged or static), lanes the trailing static ones.
//! Instructions are in order; an instruction is *lane*-valued if any operand is, else *row*-valued.
//! Lane reductions make row values, which later instructions may use: `rms_norm` is
//! `load, mul, sum_lanes, .., rsqrt, mul, mul`. The code depends on `lanes` and the instructions,
//! never on the number of rows.

use serde::{Deserialize, Serialize};

use crate::dim::DimId;
use crate::op::{BinaryOp, ReduceOp, UnaryOp};

/// Which element of an operand a row reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowIndex {
    /// The operand has no row dims.
    None,
    /// `(row / div) % modulo`; `modulo` 0 means no modulo.
    Row { div: usize, modulo: usize },
    /// The segment of ragged dim `of` that item `row / div` lies in, counted at `owner` (one or
    /// more levels up): `[seq]` read from `[tok]`.
    Segment { div: usize, of: DimId, owner: DimId },
}

/// How a kernel reads an operand or writes a result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    pub row: RowIndex,
    /// Has the lanes too; otherwise one number per row.
    pub lanes: bool,
}

/// Index of an instruction in [`Kernel::code`].
pub type InstrId = usize;

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Instr {
    /// Reads operand `input`.
    Load {
        input: usize,
    },
    Const {
        value: f64,
    },
    Unary {
        op: UnaryOp,
        x: InstrId,
    },
    Binary {
        op: BinaryOp,
        a: InstrId,
        b: InstrId,
    },
    Select {
        cond: InstrId,
        a: InstrId,
        b: InstrId,
    },
    /// Rounds to bf16.
    RoundBf16 {
        x: InstrId,
    },
    /// Combines over the lanes of a row.
    Lanes {
        op: ReduceOp,
        x: InstrId,
    },
}

/// What becomes of a value that leaves the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Output {
    /// One number per row and lane, or per row if the value is row-valued.
    Store,
    /// Summed over all rows, one number per lane (or one number if row-valued), in a fixed order.
    SumRows,
    /// Row-valued, summed over the rows of each segment of `of` at level `owner`.
    SumSegments { of: DimId, owner: DimId },
}

/// A fused group. `Op::Fused` has one operand per input and one result per output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Row dims of the space, major first.
    pub rows: Vec<DimId>,
    /// Lane dims of the space, major first; all static.
    pub lanes: Vec<DimId>,
    pub inputs: Vec<Access>,
    pub code: Vec<Instr>,
    pub outputs: Vec<(InstrId, Output)>,
    /// Why these nodes were put together.
    pub reason: String,
}

impl Kernel {
    /// Is instruction `id` one number per lane (else one per row)?
    pub fn is_lane(&self, id: InstrId) -> bool {
        match &self.code[id] {
            Instr::Load { input } => self.inputs[*input].lanes,
            Instr::Const { .. } | Instr::Lanes { .. } => false,
            Instr::Unary { x, .. } | Instr::RoundBf16 { x } => self.is_lane(*x),
            Instr::Binary { a, b, .. } => self.is_lane(*a) || self.is_lane(*b),
            Instr::Select { cond, a, b } => {
                self.is_lane(*cond) || self.is_lane(*a) || self.is_lane(*b)
            }
        }
    }
}
