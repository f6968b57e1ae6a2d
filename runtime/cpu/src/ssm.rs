//! Convolutions along tokens and state-space models over packed segments, forward and backward.
//!
//! In: operands row major with the tokens first, and the segments of the tokens. Out: results or gradients.
//! One task is one segment and one head, or one group of heads where gradients are summed over it. Work grows with the
//! tokens; the backward pass keeps a state every `CHUNK` tokens and computes those between again. A token's bits depend
//! on its own sequence alone, but for sums over tokens (the gradient of filters).

use crate::threads::{Shared, Threads};

/// Tokens whose states the backward pass holds at once.
const CHUNK: usize = 64;

/// Sizes of a state-space model: groups, heads of a group, size of a head, size of the state of one number.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub g: usize,
    pub r: usize,
    pub p: usize,
    pub n: usize,
}

/// `u [tok, g, r, p]`, `a [tok, g, r]`, `b` and `c` `[tok, g, n]`.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    pub u: &'a [f32],
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
}

fn segments(offsets: &[u32]) -> usize {
    offsets.len().saturating_sub(1)
}

/// Filters `[channels, taps]` turned into `[taps, channels]`.
fn turned(w: &[f32], taps: usize) -> Vec<f32> {
    let width = w.len() / taps.max(1);
    let mut out = vec![0.0; w.len()];
    for (c, row) in w.chunks_exact(taps).enumerate() {
        for (tap, x) in row.iter().enumerate() {
            out[tap * width + c] = *x;
        }
    }
    out
}

/// `y[t] = sum over taps of w[tap] * x[t - taps + 1 + tap]` within each segment.
pub fn conv(threads: &Threads, taps: usize, offsets: &[u32], x: &[f32], w: &[f32], y: &mut [f32]) {
    let (w, width) = (turned(w, taps), w.len() / taps.max(1));
    let y = Shared::new(y);
    threads.each(segments(offsets), |seg| {
        let (from, to) = (offsets[seg] as usize, offsets[seg + 1] as usize);
        // SAFETY: the tokens of a segment belong to its task alone.
        let y = unsafe { y.slice(from * width, (to - from) * width) };
        y.fill(0.0);
        for (t, row) in y.chunks_exact_mut(width).enumerate() {
            for before in (0..taps.min(t + 1)).rev() {
                let x = &x[(from + t - before) * width..][..width];
                let w = &w[(taps - 1 - before) * width..][..width];
                for ((y, x), w) in row.iter_mut().zip(x).zip(w) {
                    *y += x * w;
                }
            }
        }
    });
}

/// Gradients of [`conv`]: `dx`, and `dw` over `[channels, taps]`.
pub fn conv_grad(
    threads: &Threads,
    taps: usize,
    offsets: &[u32],
    [x, w, dy]: [&[f32]; 3],
    dx: &mut [f32],
    dw: &mut [f32],
) {
    let (w, width) = (turned(w, taps), w.len() / taps.max(1));
    let shared = Shared::new(dx);
    threads.each(segments(offsets), |seg| {
        let (from, to) = (offsets[seg] as usize, offsets[seg + 1] as usize);
        // SAFETY: the tokens of a segment belong to its task alone.
        let dx = unsafe { shared.slice(from * width, (to - from) * width) };
        dx.fill(0.0);
        for (t, row) in dx.chunks_exact_mut(width).enumerate() {
            for after in 0..taps.min(to - from - t) {
                let dy = &dy[(from + t + after) * width..][..width];
                let w = &w[(taps - 1 - after) * width..][..width];
                for ((dx, dy), w) in row.iter_mut().zip(dy).zip(w) {
                    *dx += dy * w;
                }
            }
        }
    });
    // One task per tap, so that its sum over tokens has one order.
    let mut sums = vec![0.0f32; w.len()];
    let shared = Shared::new(&mut sums);
    threads.each(taps, |tap| {
        // SAFETY: the sums of a tap belong to its task alone.
        let sums = unsafe { shared.slice(tap * width, width) };
        let before = taps - 1 - tap;
        for w in offsets.windows(2) {
            for t in w[0] as usize + before..(w[1] as usize).max(w[0] as usize + before) {
                let (x, dy) = (&x[(t - before) * width..][..width], &dy[t * width..][..width]);
                for ((s, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                    *s += x * dy;
                }
            }
        }
    });
    for (tap, row) in sums.chunks_exact(width.max(1)).enumerate() {
        for (c, s) in row.iter().enumerate() {
            dw[c * taps + tap] = *s;
        }
    }
}

impl Sizes {
    fn heads(&self) -> usize {
        self.g * self.r
    }

    /// The state after token `t` of head `head`, from the one before.
    fn step(&self, x: &Operands, t: usize, head: usize, state: &mut [f32]) {
        let row = t * self.heads() + head;
        let decay = x.a[row].exp();
        let u = &x.u[row * self.p..][..self.p];
        let b = &x.b[(t * self.g + head / self.r) * self.n..][..self.n];
        for (line, u) in state.chunks_exact_mut(self.n).zip(u) {
            for (s, b) in line.iter_mut().zip(b) {
                *s = decay * *s + u * b;
            }
        }
    }
}

/// `y [tok, g, r, p]`.
pub fn forward(threads: &Threads, z: Sizes, offsets: &[u32], x: Operands, y: &mut [f32]) {
    let y = Shared::new(y);
    threads.each(segments(offsets) * z.heads(), |task| {
        let (seg, head) = (task / z.heads(), task % z.heads());
        let mut state = vec![0.0; z.p * z.n];
        for t in offsets[seg] as usize..offsets[seg + 1] as usize {
            z.step(&x, t, head, &mut state);
            let c = &x.c[(t * z.g + head / z.r) * z.n..][..z.n];
            // SAFETY: a head of the tokens of a segment belongs to its task alone.
            let y = unsafe { y.slice((t * z.heads() + head) * z.p, z.p) };
            for (y, line) in y.iter_mut().zip(state.chunks_exact(z.n)) {
                *y = line.iter().zip(c).map(|(s, c)| s * c).sum();
            }
        }
    });
}

/// Gradients of `u`, `a`, `b` and `c`.
pub fn backward(
    threads: &Threads,
    z: Sizes,
    offsets: &[u32],
    x: Operands,
    dy: &[f32],
    grads: [&mut [f32]; 4],
) {
    let out = grads.map(|g| {
        g.fill(0.0);
        Shared::new(g)
    });
    threads.each(segments(offsets) * z.g, |task| {
        let (seg, group) = (task / z.g, task % z.g);
        let range = offsets[seg] as usize..offsets[seg + 1] as usize;
        for head in group * z.r..(group + 1) * z.r {
            back_head(z, range.clone(), head, &x, dy, &out);
        }
    });
}

/// The gradients of one head in one segment, added to what its group has.
fn back_head(
    z: Sizes,
    range: std::ops::Range<usize>,
    head: usize,
    x: &Operands,
    dy: &[f32],
    out: &[Shared; 4],
) {
    let size = z.p * z.n;
    let starts: Vec<usize> = range.clone().step_by(CHUNK).collect();
    let mut saved = vec![0.0; starts.len() * size];
    let mut state = vec![0.0; size];
    for (i, start) in starts.iter().enumerate() {
        saved[i * size..(i + 1) * size].copy_from_slice(&state);
        (*start..(start + CHUNK).min(range.end)).for_each(|t| z.step(x, t, head, &mut state));
    }
    let mut ds = vec![0.0; size];
    // The state before each token of a chunk, and after its last.
    let mut states = vec![0.0; (CHUNK + 1) * size];
    for (i, start) in starts.iter().enumerate().rev() {
        let end = (start + CHUNK).min(range.end);
        states[..size].copy_from_slice(&saved[i * size..(i + 1) * size]);
        for t in *start..end {
            let (before, after) = states[(t - start) * size..].split_at_mut(size);
            after[..size].copy_from_slice(before);
            z.step(x, t, head, &mut after[..size]);
        }
        for t in (*start..end).rev() {
            let (before, after) = states[(t - start) * size..].split_at(size);
            back_token(z, (t, head), x, dy, (before, &after[..size]), &mut ds, out);
        }
    }
}

fn back_token(
    z: Sizes,
    (t, head): (usize, usize),
    x: &Operands,
    dy: &[f32],
    (before, after): (&[f32], &[f32]),
    ds: &mut [f32],
    out: &[Shared; 4],
) {
    let (row, at) = (t * z.heads() + head, (t * z.g + head / z.r) * z.n);
    let (b, c) = (&x.b[at..at + z.n], &x.c[at..at + z.n]);
    let decay = x.a[row].exp();
    // SAFETY: the tokens of a segment and the heads of a group belong to one task, which takes them in turn.
    let [du, da, db, dc] = unsafe {
        [
            out[0].slice(row * z.p, z.p),
            out[1].slice(row, 1),
            out[2].slice(at, z.n),
            out[3].slice(at, z.n),
        ]
    };
    for i in 0..z.p {
        let (u, dy) = (x.u[row * z.p + i], dy[row * z.p + i]);
        let line = i * z.n..(i + 1) * z.n;
        let states = before[line.clone()].iter().zip(&after[line.clone()]);
        let shared = b.iter().zip(c).zip(db.iter_mut().zip(dc.iter_mut()));
        let (mut to_u, mut to_a) = (0.0, 0.0);
        for ((ds, (before, after)), ((b, c), (db, dc))) in
            ds[line].iter_mut().zip(states).zip(shared)
        {
            let d = *ds + dy * c;
            *dc += dy * after;
            *db += d * u;
            to_u += d * b;
            to_a += d * before;
            *ds = d * decay;
        }
        du[i] = to_u;
        da[0] += to_a * decay;
    }
}
