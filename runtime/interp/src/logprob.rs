//! Log-probabilities of labels, and their gradients. Over a split vocabulary a row is put together
//! from the parts of all ranks along the axes.

use nrl_ir::{DimId, ValueId};

use crate::attention::log_sum_exp;
use crate::tensor::each;
use crate::{Error, Interp, Tensor};

/// Logits of one rank: the tensor and its dims.
pub(crate) struct Logits {
    pub x: Tensor,
    pub dims: Vec<DimId>,
}

impl Interp<'_> {
    /// `h @ w` over `d`, on one rank.
    pub(crate) fn head_logits(
        &self,
        r: usize,
        d: DimId,
        vocab: DimId,
        h: ValueId,
        w: ValueId,
    ) -> Result<Logits, Error> {
        let mut dims: Vec<DimId> = self.dims(h).iter().filter(|x| **x != d).copied().collect();
        dims.push(vocab);
        Ok(Logits { x: self.contract(r, h, w, &[d], &dims)?, dims })
    }

    /// `(lp, lse, entropy)` on rank `r`, from the logits of every rank.
    pub(crate) fn log_prob(
        &self,
        r: usize,
        logits: &[Logits],
        vocab: DimId,
        valid: usize,
        axes: &[String],
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        let rows = self.dims(args[0]);
        let (labels, inv_t) = (self.tensor(r, args[0])?, self.tensor(r, args[1])?.data[0]);
        let mut columns: Vec<Vec<(usize, f64)>> = vec![vec![]; labels.data.len()];
        for member in self.mesh.group(r, axes) {
            let part = &logits[member];
            let loops: Vec<DimId> = rows.iter().copied().chain([vocab]).collect();
            let (first, _) = self.part(member, vocab)?;
            let tables = [
                self.table(member, &loops, rows)?,
                self.table(member, &loops, &part.dims)?,
                self.table(member, &loops, &[vocab])?,
            ];
            each(&self.shape(member, &loops)?, &[&tables[0], &tables[1], &tables[2]], |o| {
                if first + o[2] < valid {
                    columns[o[0]].push((first + o[2], part.x.data[o[1]] * inv_t));
                }
            });
        }
        let blank = Tensor::filled(labels.shape.clone(), 0.0);
        let (mut lp, mut lse, mut entropy) = (blank.clone(), blank.clone(), blank);
        for (row, column) in columns.iter().enumerate() {
            let z: Vec<f64> = column.iter().map(|(_, z)| *z).collect();
            let sum = log_sum_exp(&z);
            let label = labels.data[row] as usize;
            let chosen =
                column.iter().find(|(id, _)| *id == label).map_or(f64::NEG_INFINITY, |(_, z)| *z);
            lp.data[row] = chosen - sum;
            lse.data[row] = sum;
            entropy.data[row] = z
                .iter()
                .map(|z| (z - sum).exp() * (sum - z))
                .map(|x| if x.is_nan() { 0.0 } else { x })
                .sum();
        }
        Ok(vec![lp, lse, entropy])
    }

    pub(crate) fn log_prob_grad(
        &self,
        r: usize,
        vocab: DimId,
        valid: usize,
        args: &[ValueId],
    ) -> Result<Tensor, Error> {
        let logits =
            Logits { x: self.tensor(r, args[0])?.clone(), dims: self.dims(args[0]).to_vec() };
        self.logits_grad(r, &logits, vocab, valid, &args[1..])
    }

    /// Gradient by this rank's logits; `args` are labels, inv_temperature, lse, entropy, d_lp, d_entropy.
    fn logits_grad(
        &self,
        r: usize,
        logits: &Logits,
        vocab: DimId,
        valid: usize,
        args: &[ValueId],
    ) -> Result<Tensor, Error> {
        let rows = self.dims(args[0]);
        let t = args.iter().map(|a| self.tensor(r, *a)).collect::<Result<Vec<_>, _>>()?;
        let [labels, inv_t, lse, entropy, d_lp, d_entropy] = t[..] else {
            return Err(Error("log_prob_grad takes seven operands".into()));
        };
        let inv_t = inv_t.data[0];
        let (first, _) = self.part(r, vocab)?;
        let loops = &logits.dims;
        let tables = [
            self.table(r, loops, loops)?,
            self.table(r, loops, rows)?,
            self.table(r, loops, &[vocab])?,
        ];
        let mut out = Tensor::filled(logits.x.shape.clone(), 0.0);
        each(&logits.x.shape, &[&tables[0], &tables[1], &tables[2]], |o| {
            let (row, id) = (o[1], first + o[2]);
            if id >= valid {
                return;
            }
            let log_p = logits.x.data[o[0]] * inv_t - lse.data[row];
            let p = log_p.exp();
            let hit = f64::from(id == labels.data[row] as usize);
            let spread = if p > 0.0 { p * (log_p + entropy.data[row]) } else { 0.0 };
            out.data[o[0]] = inv_t * (d_lp.data[row] * (hit - p) - d_entropy.data[row] * spread);
        });
        Ok(out)
    }

    pub(crate) fn log_prob_head_grad(
        &self,
        r: usize,
        vocab: DimId,
        d: DimId,
        valid: usize,
        args: &[ValueId],
    ) -> Result<Vec<Tensor>, Error> {
        let (h, w) = (args[0], args[1]);
        let logits = self.head_logits(r, d, vocab, h, w)?;
        let g = self.logits_grad(r, &logits, vocab, valid, &args[2..])?;
        let mut loops = logits.dims.clone();
        loops.push(d);
        let tables = [
            self.table(r, &loops, &logits.dims)?,
            self.table(r, &loops, self.dims(h))?,
            self.table(r, &loops, self.dims(w))?,
        ];
        let (h, w) = (self.tensor(r, h)?, self.tensor(r, w)?);
        let (mut dh, mut dw) =
            (Tensor::filled(h.shape.clone(), 0.0), Tensor::filled(w.shape.clone(), 0.0));
        each(&self.shape(r, &loops)?, &[&tables[0], &tables[1], &tables[2]], |o| {
            dh.data[o[1]] += g.data[o[0]] * w.data[o[2]];
            dw.data[o[2]] += g.data[o[0]] * h.data[o[1]];
        });
        Ok(vec![dh, dw])
    }
}
