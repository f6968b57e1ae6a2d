//! Log-probabilities of labels, their log-sums and entropies, without ever storing `[tok, vocab]`.
//!
//! In: `h [row, d]` and the head's weights (or logits), labels, and the inverse temperature. Out: `lp`, `lse` and
//! `entropy` per row; or the gradients. Logits are made in pieces of some rows by 1024 ids; the forward pass keeps a
//! running maximum, `s = sum exp(x - max)` and `t = sum exp(x - max) (x - max)`, the backward pass makes the pieces again.
//! If ids are split over ranks, the maximum and then the sums are combined, once per call.

use nrl_runtime::comm::{CommError, Group, Reduce};

use crate::gemm::{Shape, View, ViewMut, gemm};
use crate::simd::{Vector, at_level, exp, fold};
use crate::threads::{Shared, Threads};

/// Ids per piece of logits.
const IDS: usize = 1024;
/// Rows per piece of logits.
const ROWS: usize = 256;

/// Labels and the ids that this rank holds.
#[derive(Clone, Copy)]
pub struct Labels<'a> {
    /// Ids counted over all ranks.
    pub ids: &'a [u32],
    /// The first id that this rank holds.
    pub first: usize,
    /// How many ids it holds, and how many of them have a probability.
    pub local: usize,
    pub valid: usize,
    /// How many ids of all ranks have a probability.
    pub all: usize,
    pub inv_temperature: f32,
}

impl Labels<'_> {
    /// Place of a row's label among this rank's ids.
    fn place(&self, row: usize) -> Option<usize> {
        let at = (self.ids[row] as usize).checked_sub(self.first)?;
        (at < self.valid).then_some(at)
    }
}

/// The weights `[vocab, d]` with their strides, whichever is stored major.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    pub data: &'a [f32],
    pub vocab: usize,
    pub d: usize,
}

/// What the forward pass makes, one number per row each.
pub struct Results<'a> {
    pub lp: &'a mut [f32],
    pub lse: &'a mut [f32],
    pub entropy: &'a mut [f32],
}

/// What the backward pass reads, one number per row each.
#[derive(Clone, Copy)]
pub struct Grads<'a> {
    pub lse: &'a [f32],
    pub entropy: &'a [f32],
    pub d_lp: &'a [f32],
    pub d_entropy: &'a [f32],
}

/// Running sums of one row.
#[derive(Clone, Copy)]
struct Sums {
    max: f32,
    s: f32,
    t: f32,
    label: f32,
}

const NOTHING: Sums = Sums { max: f32::NEG_INFINITY, s: 0.0, t: 0.0, label: 0.0 };

impl Sums {
    /// Moves the sums to a maximum that is at least as large.
    fn raise(&mut self, max: f32) {
        if self.s != 0.0 {
            let shift = self.max - max;
            let keep = shift.exp();
            self.t = if keep == 0.0 { 0.0 } else { keep * (self.t + self.s * shift) };
            self.s *= keep;
        }
        self.max = max;
    }
}

at_level! {
    /// Adds a piece of a row's logits to its sums.
    fn absorb(x: &[f32], inv_temperature: f32, sums: &mut Sums) = absorb_at
}

#[inline(always)]
fn absorb_at<V: Vector>(x: &[f32], inv_temperature: f32, sums: &mut Sums) {
    let factor = V::splat(inv_temperature);
    let mut top = V::splat(f32::NEG_INFINITY);
    let mut odd = false;
    for c in x.chunks_exact(V::N) {
        // SAFETY: the chunk is one vector.
        top = top.max(unsafe { V::load(c.as_ptr()) }.mul(factor));
    }
    let mut max = top.lanes()[..V::N].iter().copied().fold(sums.max, f32::max);
    for c in x.chunks_exact(V::N).remainder() {
        max = max.max(c * inv_temperature);
    }
    if max == f32::NEG_INFINITY {
        odd = x.iter().any(|v| v.is_nan());
        if !odd {
            return;
        }
        max = 0.0;
    }
    sums.raise(max);
    let (shift, floor) = (V::splat(-max), V::splat(-87.0));
    let (mut s, mut t) = (V::splat(0.0), V::splat(0.0));
    for c in x.chunks(V::N) {
        let mut lanes = [f32::NEG_INFINITY; 16];
        // SAFETY: whole chunks are one vector; a shorter one is padded to a vector by minus infinity.
        let y = unsafe {
            if c.len() == V::N {
                V::load(c.as_ptr())
            } else {
                lanes[..c.len()].copy_from_slice(c);
                V::load(lanes.as_ptr())
            }
        };
        let (y, padded) = (y.mul(factor).add(shift), c.len() < V::N);
        let p = exp(y);
        let (p, q) = (p, y.zero_below(floor, p.mul(y)));
        if padded {
            let (mut p, mut q) = (p.lanes(), q.lanes());
            p[c.len()..].fill(0.0);
            q[c.len()..].fill(0.0);
            // SAFETY: the arrays hold at least a vector.
            unsafe {
                s = s.add(V::load(p.as_ptr()));
                t = t.add(V::load(q.as_ptr()));
            }
        } else {
            (s, t) = (s.add(p), t.add(q));
        }
    }
    sums.s += fold::<V>(s, |x, y| x + y);
    sums.t += fold::<V>(t, |x, y| x + y);
    if odd {
        sums.s = f32::NAN;
    }
}

at_level! {
    /// Logits of a row to their gradients.
    fn turn_back(x: &mut [f32], inv_temperature: f32, lse: f32, entropy: f32, d_lp: f32, d_entropy: f32) = turn_back_at
}

#[inline(always)]
fn turn_back_at<V: Vector>(
    x: &mut [f32],
    inv_temperature: f32,
    lse: f32,
    entropy: f32,
    d_lp: f32,
    d_entropy: f32,
) {
    let (factor, shift, floor) = (V::splat(inv_temperature), V::splat(-lse), V::splat(-87.0));
    // d = -p (d_lp + d_entropy (logp + entropy)) inv_temperature
    let (a, b) = (
        V::splat(-d_entropy * inv_temperature),
        V::splat(-(d_lp + d_entropy * entropy) * inv_temperature),
    );
    for c in x.chunks_mut(V::N) {
        let n = c.len();
        // SAFETY: the chunk is at most one vector.
        unsafe {
            let y = V::load_n(c.as_ptr(), n).mul(factor).add(shift);
            let d = y.zero_below(floor, exp(y).mul(y.mul_add(a, b)));
            d.store_n(c.as_mut_ptr(), n);
        }
    }
}

/// Rows `from..` of a piece: their logits go into the sums.
fn gather(
    threads: &Threads,
    l: &Labels,
    at: usize,
    width: usize,
    x: &[f32],
    stride: usize,
    sums: &mut [Sums],
    from: usize,
) {
    let used = l.valid.saturating_sub(at).min(width);
    let one = |i: usize, s: &mut Sums| {
        let row = &x[i * stride..i * stride + used];
        absorb(row, l.inv_temperature, s);
        if let Some(p) = l.place(from + i).filter(|p| (at..at + used).contains(p)) {
            s.label = row[p - at] * l.inv_temperature;
        }
    };
    if threads.count() == 1 || sums.len() * width < 1 << 15 {
        sums.iter_mut().enumerate().for_each(|(i, s)| one(i, s));
        return;
    }
    let part = sums.len().div_ceil(4 * threads.count());
    let parts: Vec<std::sync::Mutex<&mut [Sums]>> =
        sums.chunks_mut(part).map(std::sync::Mutex::new).collect();
    threads.each(parts.len(), |p| {
        let mut rows = parts[p].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        rows.iter_mut().enumerate().for_each(|(i, s)| one(p * part + i, s));
    });
}

/// Sums of all ranks to results.
fn conclude(
    l: &Labels,
    mut sums: Vec<Sums>,
    group: Option<&Group>,
    out: Results,
) -> Result<(), CommError> {
    if let Some(group) = group {
        let mut max: Vec<f32> = sums.iter().map(|s| s.max).collect();
        group.all_reduce(&mut max, Reduce::Max)?;
        sums.iter_mut().zip(&max).for_each(|(s, m)| s.raise(*m));
        let mut all: Vec<f32> = sums.iter().flat_map(|s| [s.s, s.t, s.label]).collect();
        group.all_reduce(&mut all, Reduce::Sum)?;
        for (s, x) in sums.iter_mut().zip(all.chunks_exact(3)) {
            (s.s, s.t, s.label) = (x[0], x[1], x[2]);
        }
    }
    for (i, s) in sums.iter().enumerate() {
        let log = s.s.ln();
        out.lse[i] = s.max + log;
        // Written so that a certain label has exactly 0.
        let label = if (l.ids[i] as usize) < l.all { s.label } else { f32::NEG_INFINITY };
        out.lp[i] = (label - s.max) - log;
        out.entropy[i] = log - s.t / s.s;
    }
    Ok(())
}

/// Log-probabilities from logits `[row, vocab]`.
pub fn forward(
    threads: &Threads,
    l: &Labels,
    logits: &[f32],
    group: Option<&Group>,
    out: Results,
) -> Result<(), CommError> {
    let mut sums = vec![NOTHING; l.ids.len()];
    for at in (0..l.local).step_by(IDS) {
        gather(
            threads,
            l,
            at,
            IDS.min(l.local - at),
            &logits[at.min(logits.len())..],
            l.local,
            &mut sums,
            0,
        );
    }
    conclude(l, sums, group, out)
}

/// Gradients of logits `[row, vocab]`.
pub fn backward(threads: &Threads, l: &Labels, logits: &[f32], g: &Grads, d_logits: &mut [f32]) {
    let out = Shared::new(d_logits);
    threads.each(l.ids.len(), |i| {
        // SAFETY: each task has its row.
        let row = unsafe { out.slice(i * l.local, l.local) };
        row.copy_from_slice(&logits[i * l.local..(i + 1) * l.local]);
        row_back(l, g, i, 0, row);
    });
}

/// Turns a piece of row `i`, whose first id is `at`, into gradients.
fn row_back(l: &Labels, g: &Grads, i: usize, at: usize, row: &mut [f32]) {
    let used = l.valid.saturating_sub(at).min(row.len());
    row[used..].fill(0.0);
    let (d_lp, d_entropy) = (g.d_lp[i], g.d_entropy[i]);
    if d_lp == 0.0 && d_entropy == 0.0 {
        row.fill(0.0);
        return;
    }
    turn_back(&mut row[..used], l.inv_temperature, g.lse[i], g.entropy[i], d_lp, d_entropy);
    if let Some(p) = l.place(i).filter(|p| (at..at + used).contains(p)) {
        row[p - at] += d_lp * l.inv_temperature;
    }
}

/// Log-probabilities of `h @ w` for `h [row, d]`; `piece` is scratch.
pub fn head_forward(
    threads: &Threads,
    l: &Labels,
    (h, d): (&[f32], usize),
    w: Weights,
    piece: &mut Vec<f32>,
    group: Option<&Group>,
    out: Results,
) -> Result<(), CommError> {
    let rows = l.ids.len();
    let mut sums = vec![NOTHING; rows];
    room(piece, rows);
    for at in (0..l.valid).step_by(IDS) {
        let width = IDS.min(l.local - at);
        for from in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - from);
            logits(threads, (h, d), w, (from, count), (at, width), piece);
            gather(threads, l, at, width, piece, IDS, &mut sums[from..from + count], from);
        }
    }
    conclude(l, sums, group, out)
}

/// Room for a piece of logits; its old numbers do not matter.
fn room(piece: &mut Vec<f32>, rows: usize) {
    let need = ROWS.min(rows) * IDS;
    if piece.len() < need {
        piece.resize(need, 0.0);
    }
}

fn logits(
    threads: &Threads,
    (h, d): (&[f32], usize),
    w: Weights,
    (from, count): (usize, usize),
    (at, width): (usize, usize),
    piece: &mut [f32],
) {
    let a = View { data: &h[from * d..], row: d, col: 1 };
    let b = View { data: &w.data[at * w.vocab..], row: w.d, col: w.vocab };
    gemm(
        threads,
        Shape { m: count, n: width, k: d },
        ViewMut { data: piece, row: IDS, col: 1 },
        false,
        a,
        b,
    );
}

/// Gradients of `h @ w`: `dh` is overwritten, `dw` (with the strides of `w`) is added to; `dh` is owed a sum over ranks
/// that hold other ids.
pub fn head_backward(
    threads: &Threads,
    l: &Labels,
    (h, d): (&[f32], usize),
    w: Weights,
    g: &Grads,
    piece: &mut Vec<f32>,
    dh: &mut [f32],
    mut dw: Option<&mut [f32]>,
) {
    let rows = l.ids.len();
    dh.fill(0.0);
    room(piece, rows);
    for at in (0..l.valid).step_by(IDS) {
        let width = IDS.min(l.local - at);
        for from in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - from);
            if (from..from + count).all(|i| g.d_lp[i] == 0.0 && g.d_entropy[i] == 0.0) {
                continue;
            }
            logits(threads, (h, d), w, (from, count), (at, width), piece);
            let shared = Shared::new(piece);
            let part = count.div_ceil(4 * threads.count());
            threads.each(count.div_ceil(part), |p| {
                for i in p * part..count.min((p + 1) * part) {
                    // SAFETY: each row belongs to one task.
                    row_back(l, g, from + i, at, unsafe { shared.slice(i * IDS, width) });
                }
            });
            let back = View { data: piece, row: IDS, col: 1 };
            let weights = View { data: &w.data[at * w.vocab..], row: w.vocab, col: w.d };
            let into = ViewMut { data: &mut dh[from * d..], row: d, col: 1 };
            gemm(threads, Shape { m: count, n: d, k: width }, into, true, back, weights);
            if let Some(dw) = dw.as_deref_mut() {
                let turned = View { data: piece, row: 1, col: IDS };
                let hidden = View { data: &h[from * d..], row: d, col: 1 };
                let into = ViewMut { data: &mut dw[at * w.vocab..], row: w.vocab, col: w.d };
                gemm(threads, Shape { m: width, n: d, k: count }, into, true, turned, hidden);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u64, n: usize) -> Vec<f32> {
        let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// By the definition in f64: `lp`, `lse`, `entropy` of one row.
    fn defined(x: &[f64], label: usize) -> (f64, f64, f64) {
        let top = x.iter().copied().fold(f64::MIN, f64::max);
        let lse = top + x.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
        (x[label] - lse, lse, x.iter().map(|v| -(v - lse).exp() * (v - lse)).sum())
    }

    #[test]
    fn the_head_agrees_with_the_definition_and_with_differences_of_it() {
        let (rows, d, vocab, valid, inv) = (300, 24, 2500, 2490, 1.25f32);
        let h = numbers(1, rows * d);
        let w: Vec<f32> = numbers(2, vocab * d).iter().map(|x| x * 2.0).collect();
        let ids: Vec<u32> = (0..rows as u32).map(|i| i * 97 % valid as u32).collect();
        let logit = |i: usize, v: usize| -> f64 {
            (0..d).map(|c| f64::from(h[i * d + c]) * f64::from(w[v * d + c])).sum::<f64>()
                * f64::from(inv)
        };
        let l =
            Labels { ids: &ids, first: 0, local: vocab, valid, all: valid, inv_temperature: inv };
        let (d_lp, d_entropy) = (numbers(3, rows), numbers(4, rows));
        let mut turned = vec![0.0; w.len()];
        for v in 0..vocab {
            for c in 0..d {
                turned[c * vocab + v] = w[v * d + c];
            }
        }
        let full: Vec<f32> = (0..rows)
            .flat_map(|i| (0..vocab).map(move |v| (i, v)))
            .map(|(i, v)| (logit(i, v) / f64::from(inv)) as f32)
            .collect();
        for (threads, stored) in [(Threads::new(1), 0), (Threads::new(2), 1)] {
            let weights = if stored == 0 {
                Weights { data: &w, vocab: d, d: 1 }
            } else {
                Weights { data: &turned, vocab: 1, d: vocab }
            };
            let mut out = [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]];
            let [lp, lse, entropy] = &mut out;
            let mut piece = vec![];
            head_forward(
                &threads,
                &l,
                (&h, d),
                weights,
                &mut piece,
                None,
                Results { lp, lse, entropy },
            )
            .unwrap();
            let mut plain = [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]];
            let [lp, lse, entropy] = &mut plain;
            forward(&threads, &l, &full, None, Results { lp, lse, entropy }).unwrap();
            for i in 0..rows {
                let x: Vec<f64> = (0..valid).map(|v| logit(i, v)).collect();
                let want = defined(&x, ids[i] as usize);
                for (got, want) in [(&out, want), (&plain, want)]
                    .into_iter()
                    .flat_map(|(o, w)| [(o[0][i], w.0), (o[1][i], w.1), (o[2][i], w.2)])
                {
                    assert!((f64::from(got) - want).abs() < 2e-5, "row {i}: {got} for {want}");
                }
            }
            let g = Grads { lse: &out[1], entropy: &out[2], d_lp: &d_lp, d_entropy: &d_entropy };
            let (mut dh, mut dw) = (vec![f32::NAN; h.len()], vec![1.0; w.len()]);
            head_backward(&threads, &l, (&h, d), weights, &g, &mut piece, &mut dh, Some(&mut dw));
            let mut d_logits = vec![f32::NAN; rows * vocab];
            backward(&threads, &l, &full, &g, &mut d_logits);
            // Central differences of the definition along single logits.
            for (i, v) in [(0, 0), (7, ids[7] as usize), (255, 2489), (299, 1024), (12, 2495)] {
                let mut x: Vec<f64> = (0..valid).map(|v| logit(i, v)).collect();
                let mut value = |by: f64| {
                    if v < valid {
                        x[v] += by * f64::from(inv);
                    }
                    let (lp, _, e) = defined(&x, ids[i] as usize);
                    f64::from(d_lp[i]) * lp + f64::from(d_entropy[i]) * e
                };
                let (up, down) = (value(1e-4), value(-2e-4));
                let want = (up - down) / 2e-4;
                assert!(
                    (f64::from(d_logits[i * vocab + v]) - want).abs() < 1e-5,
                    "row {i}, id {v}: {want}"
                );
            }
            // dh and dw follow from d_logits by the product rule.
            for (i, c) in [(0, 0), (299, 23), (100, 7)] {
                let want: f64 = (0..valid)
                    .map(|v| f64::from(d_logits[i * vocab + v]) * f64::from(w[v * d + c]))
                    .sum();
                assert!((f64::from(dh[i * d + c]) - want).abs() < 1e-4);
            }
            for (v, c) in [(0, 0), (2489, 23), (1500, 3), (2499, 1)] {
                let want: f64 = 1.0
                    + (0..rows)
                        .map(|i| f64::from(d_logits[i * vocab + v]) * f64::from(h[i * d + c]))
                        .sum::<f64>();
                let at = if stored == 0 { v * d + c } else { c * vocab + v };
                assert!((f64::from(dw[at]) - want).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn two_ranks_with_half_the_ids_each_give_the_same() {
        use nrl_runtime::comm::World;
        let (rows, vocab) = (9, 40);
        let logits: Vec<f32> = numbers(5, rows * vocab).iter().map(|x| x * 30.0).collect();
        let ids: Vec<u32> = (0..rows as u32).map(|i| i * 4).collect();
        let run = |logits: &[f32], first: usize, local: usize, group: Option<&Group>| {
            let valid = 37usize.saturating_sub(first).min(local);
            let l = Labels { ids: &ids, first, local, valid, all: 37, inv_temperature: 0.5 };
            let mut out = [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]];
            let [lp, lse, entropy] = &mut out;
            forward(&Threads::new(1), &l, logits, group, Results { lp, lse, entropy }).map(|()| out)
        };
        let whole = run(&logits, 0, vocab, None).unwrap();
        let halves =
            World::new(2, std::time::Duration::from_secs(20)).run::<_, CommError>(|rank| {
                let (first, half) = (rank.rank() * 20, 20);
                let mine: Vec<f32> = (0..rows)
                    .flat_map(|r| logits[r * vocab + first..r * vocab + first + half].to_vec())
                    .collect();
                run(&mine, first, half, Some(&rank.all()))
            });
        for got in halves.unwrap() {
            for (a, b) in got.iter().flatten().zip(whole.iter().flatten()) {
                assert!((a - b).abs() < 1e-5, "{a} {b}");
            }
        }
    }

    #[test]
    fn a_certain_label_has_log_probability_zero_and_a_huge_gap_stays_finite() {
        let l = Labels { ids: &[1, 0], first: 0, local: 3, valid: 3, all: 3, inv_temperature: 1.0 };
        let logits = [-200.0, 300.0, f32::NEG_INFINITY, -200.0, 300.0, -1e30];
        let mut out = [vec![0.0; 2], vec![0.0; 2], vec![0.0; 2]];
        let [lp, lse, entropy] = &mut out;
        forward(&Threads::new(1), &l, &logits, None, Results { lp, lse, entropy }).unwrap();
        assert_eq!(out, [vec![0.0, -500.0], vec![300.0, 300.0], vec![0.0, 0.0]]);
    }
}
