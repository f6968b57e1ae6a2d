//! Fused kernels, instruction by instruction.

use nrl_ir::kernel::{Access, Instr, Kernel, Output, RowIndex};
use nrl_ir::{ReduceOp, ValueId};

use crate::ops::{combine, round_bf16};
use crate::{Error, Interp, Tensor};

impl Interp<'_> {
    pub(crate) fn fused(
        &self,
        r: usize,
        kernel: &Kernel,
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        let rows: usize = self.shape(r, &kernel.rows)?.iter().product();
        let lanes: usize = self.shape(r, &kernel.lanes)?.iter().product();
        let inputs = args.iter().map(|a| self.tensor(r, *a)).collect::<Result<Vec<_>, _>>()?;
        let mut maps = vec![];
        for access in &kernel.inputs {
            maps.push(self.row_map(r, access, rows)?);
        }
        let mut outs = vec![];
        let mut targets = vec![];
        for (id, output) in &kernel.outputs {
            let shape = self.output_shape(r, kernel, *id, output)?;
            outs.push(Tensor::filled(shape, 0.0));
            targets.push(match output {
                Output::Store => (0..rows).collect(),
                Output::SumRows => vec![0; rows],
                // The rows are those of `of` alone: one number per item.
                Output::SumSegments { of, owner } => self.segments(r, *of, *owner)?,
            });
        }
        for row in 0..rows {
            let values = self.row_values(kernel, &inputs, &maps, row, lanes);
            for ((out, target), (id, _)) in outs.iter_mut().zip(&targets).zip(&kernel.outputs) {
                let value = &values[*id];
                let at = target[row] * value.len();
                out.data[at..at + value.len()].iter_mut().zip(value).for_each(|(o, x)| *o += x);
            }
        }
        Ok(outs)
    }

    fn output_shape(
        &self,
        r: usize,
        k: &Kernel,
        id: usize,
        output: &Output,
    ) -> Result<Vec<usize>, Error> {
        let mut dims = match output {
            Output::Store => k.rows.clone(),
            Output::SumRows => vec![],
            Output::SumSegments { owner, .. } => vec![*owner],
        };
        if k.is_lane(id) {
            dims.extend(&k.lanes);
        }
        self.shape(r, &dims)
    }

    /// Which row of the operand each row of the space reads.
    fn row_map(&self, r: usize, access: &Access, rows: usize) -> Result<Vec<usize>, Error> {
        Ok(match &access.row {
            RowIndex::None => vec![0; rows],
            RowIndex::Row { div, modulo: 0 } => (0..rows).map(|i| i / div).collect(),
            RowIndex::Row { div, modulo } => (0..rows).map(|i| i / div % modulo).collect(),
            RowIndex::Segment { div, of, owner } => {
                let segments = self.segments(r, *of, *owner)?;
                (0..rows).map(|i| segments[i / div]).collect()
            }
        })
    }

    /// Every instruction's value in one row: one number, or one per lane.
    fn row_values(
        &self,
        k: &Kernel,
        inputs: &[&Tensor],
        maps: &[Vec<usize>],
        row: usize,
        lanes: usize,
    ) -> Vec<Vec<f64>> {
        let mut values: Vec<Vec<f64>> = vec![];
        for (id, instr) in k.code.iter().enumerate() {
            let width = if k.is_lane(id) { lanes } else { 1 };
            let at = |v: &Vec<Vec<f64>>, i: usize, l: usize| {
                if k.is_lane(i) { v[i][l] } else { v[i][0] }
            };
            let value = match instr {
                Instr::Load { input } => {
                    let first = maps[*input][row] * width;
                    inputs[*input].data[first..first + width].to_vec()
                }
                Instr::Const { value } => vec![*value],
                Instr::Unary { op, x } => (0..width).map(|l| op.eval(at(&values, *x, l))).collect(),
                Instr::Binary { op, a, b } => {
                    (0..width).map(|l| op.eval(at(&values, *a, l), at(&values, *b, l))).collect()
                }
                Instr::Select { cond, a, b } => (0..width)
                    .map(|l| {
                        if at(&values, *cond, l) != 0.0 {
                            at(&values, *a, l)
                        } else {
                            at(&values, *b, l)
                        }
                    })
                    .collect(),
                Instr::RoundBf16 { x } => {
                    (0..width).map(|l| round_bf16(at(&values, *x, l))).collect()
                }
                Instr::Lanes { op, x } => {
                    let start = if *op == ReduceOp::Sum { 0.0 } else { f64::NEG_INFINITY };
                    vec![(0..lanes).fold(start, |s, l| combine(*op, s, at(&values, *x, l)))]
                }
            };
            values.push(value);
        }
        values
    }
}
