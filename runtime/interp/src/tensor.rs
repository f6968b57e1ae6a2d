//! Dense f64 tensors, and walking several of them by the names of their dims.

use nrl_ir::DimId;

use crate::{Error, Interp};

/// Row-major numbers; indices are whole numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Tensor {
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f64>) -> Tensor {
        let shape = shape.into();
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Tensor { shape, data }
    }

    pub fn filled(shape: Vec<usize>, x: f64) -> Tensor {
        let n = shape.iter().product();
        Tensor { shape, data: vec![x; n] }
    }

    pub fn scalar(x: f64) -> Tensor {
        Tensor { shape: vec![], data: vec![x] }
    }

    /// Distance between neighbours along each dim.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.shape.len()];
        for i in (1..self.shape.len()).rev() {
            strides[i - 1] = strides[i] * self.shape[i];
        }
        strides
    }
}

/// Offsets into one operand: `offset = sum over loop dims of table[dim][index]`.
pub(crate) type Table = Vec<Vec<usize>>;

/// Calls `f` with one offset per operand for every index over `sizes`, last dim fastest.
pub(crate) fn each(sizes: &[usize], tables: &[&Table], mut f: impl FnMut(&[usize])) {
    if sizes.contains(&0) {
        return;
    }
    let mut index = vec![0; sizes.len()];
    let mut offsets = vec![0; tables.len()];
    loop {
        for (o, t) in offsets.iter_mut().zip(tables) {
            *o = index.iter().zip(t.iter()).map(|(i, column)| column[*i]).sum();
        }
        f(&offsets);
        let mut d = sizes.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < sizes[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

impl Interp<'_> {
    /// How an operand over `dims` is read in a loop over `loops`: by the same dim, else by the
    /// segment of a dim it owns. Dims that the loop lacks stay at 0.
    pub(crate) fn table(&self, r: usize, loops: &[DimId], dims: &[DimId]) -> Result<Table, Error> {
        let mut table: Table = vec![];
        for l in loops {
            table.push(vec![0; self.size(r, *l)?]);
        }
        let strides = Tensor::filled(self.shape(r, dims)?, 0.0).strides();
        for (d, stride) in dims.iter().zip(strides) {
            let same = loops.iter().position(|l| l == d);
            let Some(at) = same
                .or_else(|| loops.iter().position(|l| self.graph.dims.owners(*l).any(|o| o == *d)))
            else {
                continue;
            };
            for (offset, segment) in table[at].iter_mut().zip(self.segments(r, loops[at], *d)?) {
                *offset += segment * stride;
            }
        }
        Ok(table)
    }

    /// `x` over `dims`, repeated or permuted to be over `to`.
    pub(crate) fn broadcast(
        &self,
        r: usize,
        x: &Tensor,
        dims: &[DimId],
        to: &[DimId],
    ) -> Result<Tensor, Error> {
        let mut out = Tensor { shape: self.shape(r, to)?, data: vec![] };
        let table = self.table(r, to, dims)?;
        each(&out.shape, &[&table], |o| out.data.push(x.data[o[0]]));
        Ok(out)
    }
}
