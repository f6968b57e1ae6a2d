//! Causal softmax attention over packed segments, forward, backward and with a cache.
//!
//! In: `q [tok, q, hd]`, `k` and `v` `[tok, kv, hd]` and the segments of `tok`. Out: `o`, and `lse [tok, q]`, the logarithm
//! of each row's sum; or the gradients. One task is one segment and one key/value head with all query heads that read
//! it. Keys come in blocks of 256 counted from position 0, with the online softmax of Milakov and Gimelshein; a row's
//! bits depend on its own keys alone, so that decoding with a cache equals the full forward pass.

use std::cell::RefCell;

use crate::simd::{Mm, Vector, at_level, exp, fold};
use crate::threads::{Shared, Threads};

/// Keys per block.
const BLOCK: usize = 256;
/// Numbers from row to row of a tile. Not a power of two, which would put all rows into the same few cache sets.
const LINE: usize = BLOCK + 16;
/// Rows per tile of scores.
const ROWS: usize = 24;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub q: usize,
    /// Key/value heads; divides `q`.
    pub kv: usize,
    pub hd: usize,
    pub scale: f32,
    /// How many tokens back a token sees, itself included; all of them if `None`.
    pub window: Option<usize>,
}

impl Heads {
    fn group(&self) -> usize {
        self.q / self.kv
    }

    /// Keys that the row at position `at` sees.
    #[inline(always)]
    fn seen(&self, at: usize) -> std::ops::Range<usize> {
        self.window.map_or(0, |w| (at + 1).saturating_sub(w))..at + 1
    }
}

/// Where the keys and values of one sequence and head lie: row `p` starts at `start + p * stride`.
#[derive(Clone, Copy)]
struct Keys<'a> {
    k: &'a [f32],
    v: &'a [f32],
    stride: usize,
}

#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    o: Vec<f32>,
    d_o: Vec<f32>,
    dq: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    delta: Vec<f32>,
    turned_k: Vec<f32>,
    turned_v: Vec<f32>,
    scores: Vec<f32>,
    grads: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn segments(offsets: &[u32]) -> usize {
    offsets.len().saturating_sub(1)
}

/// `o` and `lse` of packed sequences; `offsets` cut the tokens into sequences. `exp(sink)` of a query head stands in the
/// sum of its rows.
pub fn forward(
    threads: &Threads,
    h: Heads,
    offsets: &[u32],
    [q, k, v]: [&[f32]; 3],
    sink: Option<&[f32]>,
    o: &mut [f32],
    lse: &mut [f32],
) {
    let (o, lse) = (Shared::new(o), Shared::new(lse));
    threads.each(segments(offsets) * h.kv, |task| {
        let (seg, head) = (task / h.kv, task % h.kv);
        let (from, to) = (offsets[seg] as usize, offsets[seg + 1] as usize);
        let at = (from * h.kv + head) * h.hd;
        let keys = Keys { k: &k[at.min(k.len())..], v: &v[at.min(v.len())..], stride: h.kv * h.hd };
        let rows = Rows { from, count: to - from, head, base: 0 };
        SCRATCH.with_borrow_mut(|s| attend(h, rows, q, keys, sink, s));
        SCRATCH.with_borrow(|s| rows.give(h, s, o, Some(lse)));
    });
}

/// Offsets, tokens already cached and slot of each sequence.
pub struct Cached<'a> {
    pub offsets: &'a [u32],
    pub bases: &'a [u32],
    pub slots: &'a [u32],
    /// Tokens per slot.
    pub context: usize,
}

/// Appends `k` and `v` to the cache (`[slot, context, kv, hd]`) and attends over all that is in it.
pub fn cached(
    threads: &Threads,
    h: Heads,
    c: &Cached,
    [q, k, v]: [&[f32]; 3],
    sink: Option<&[f32]>,
    keys: &mut [f32],
    values: &mut [f32],
    o: &mut [f32],
) {
    let width = h.kv * h.hd;
    let base = |seg: usize| c.bases.get(seg).map_or(0, |b| *b as usize);
    for seg in 0..segments(c.offsets) {
        let (from, to) = (c.offsets[seg] as usize * width, c.offsets[seg + 1] as usize * width);
        let at = (c.slots[seg] as usize * c.context + base(seg)) * width;
        keys[at..at + to - from].copy_from_slice(&k[from..to]);
        values[at..at + to - from].copy_from_slice(&v[from..to]);
    }
    let (keys, values, o) = (&*keys, &*values, Shared::new(o));
    threads.each(segments(c.offsets) * h.kv, |task| {
        let (seg, head) = (task / h.kv, task % h.kv);
        let (from, to) = (c.offsets[seg] as usize, c.offsets[seg + 1] as usize);
        let at = c.slots[seg] as usize * c.context * width + head * h.hd;
        let keys = Keys { k: &keys[at..], v: &values[at..], stride: width };
        let rows = Rows { from, count: to - from, head, base: base(seg) };
        SCRATCH.with_borrow_mut(|s| attend(h, rows, q, keys, sink, s));
        SCRATCH.with_borrow(|s| rows.give(h, s, o, None));
    });
}

/// The query rows of a task: tokens `from..from + count` of key/value head `head`, at positions from `base`.
#[derive(Clone, Copy)]
struct Rows {
    from: usize,
    count: usize,
    head: usize,
    base: usize,
}

impl Rows {
    /// Start of the task's numbers of token `t` in a tensor `[tok, q, width]`.
    #[inline(always)]
    fn at(&self, h: Heads, t: usize, width: usize) -> usize {
        ((self.from + t) * h.q + self.head * h.group()) * width
    }

    /// Copies the task's rows out of `[tok, q, hd]`.
    fn take(&self, h: Heads, x: &[f32], into: &mut Vec<f32>) {
        into.clear();
        for t in 0..self.count {
            let at = self.at(h, t, h.hd);
            into.extend_from_slice(&x[at..at + h.group() * h.hd]);
        }
    }

    fn put(&self, h: Heads, x: &[f32], width: usize, into: Shared) {
        let size = h.group() * width;
        for t in 0..self.count {
            // SAFETY: rows of this segment and these heads belong to this task alone.
            unsafe { into.slice(self.at(h, t, width), size) }
                .copy_from_slice(&x[t * size..(t + 1) * size]);
        }
    }

    fn give(&self, h: Heads, s: &Scratch, o: Shared, lse: Option<Shared>) {
        self.put(h, &s.o, h.hd, o);
        if let Some(lse) = lse {
            self.put(h, &s.max, 1, lse);
        }
    }
}

at_level! {
    /// Leaves the results in `s.o` and the log-sums in `s.max`.
    fn attend(h: Heads, rows: Rows, q: &[f32], keys: Keys<'_>, sink: Option<&[f32]>, s: &mut Scratch) = attend_at
}

#[inline(always)]
fn attend_at<V: Vector>(
    h: Heads,
    rows: Rows,
    q: &[f32],
    keys: Keys,
    sink: Option<&[f32]>,
    s: &mut Scratch,
) {
    let (g, hd) = (h.group(), h.hd);
    rows.take(h, q, &mut s.q);
    let n = rows.count * g;
    refill(&mut s.o, n * hd, 0.0);
    refill(&mut s.max, n, f32::NEG_INFINITY);
    refill(&mut s.sum, n, 0.0);
    s.scores.resize(ROWS * LINE, 0.0);
    let end = rows.base + rows.count;
    let first = h.seen(rows.base).start / BLOCK;
    for block in first..end.div_ceil(BLOCK) {
        let (from, to) = (block * BLOCK, end.min((block + 1) * BLOCK));
        turn(keys.k, keys.stride, from, to, hd, &mut s.turned_k);
        // The first row that sees this block.
        let skip = from.saturating_sub(rows.base) * g;
        for row in (skip..n).step_by(ROWS) {
            let count = ROWS.min(n - row);
            let (low, high) = (rows.base + row / g, rows.base + (row + count - 1) / g);
            if h.seen(low).start >= to {
                break;
            }
            let cols = (high + 1).min(to) - from;
            let scores = Mm { m: count, n: cols, k: hd, a: (hd, 1), b: LINE, c: LINE, add: false };
            scores.run(&s.q[row * hd..], &s.turned_k, &mut s.scores);
            for r in 0..count {
                let seen = h.seen(rows.base + (row + r) / g);
                let (a, b) = (
                    seen.start.clamp(from, from + cols) - from,
                    seen.end.clamp(from, from + cols) - from,
                );
                let line = &mut s.scores[r * LINE..(r + 1) * LINE];
                let o = &mut s.o[(row + r) * hd..(row + r + 1) * hd];
                soften::<V>(
                    line,
                    cols,
                    (a, b),
                    h.scale,
                    &mut s.max[row + r],
                    &mut s.sum[row + r],
                    o,
                );
            }
            let values =
                Mm { m: count, n: hd, k: cols, a: (LINE, 1), b: keys.stride, c: hd, add: true };
            values.run(&s.scores, &keys.v[from * keys.stride..], &mut s.o[row * hd..]);
        }
    }
    for r in 0..n {
        if let Some(sink) = sink {
            let logit = sink[rows.head * g + r % g];
            let top = s.max[r].max(logit);
            let keep = (s.max[r] - top).exp();
            s.sum[r] = s.sum[r] * keep + (logit - top).exp();
            s.o[r * hd..(r + 1) * hd].iter_mut().for_each(|x| *x *= keep);
            s.max[r] = top;
        }
        let inverse = 1.0 / s.sum[r];
        s.o[r * hd..(r + 1) * hd].iter_mut().for_each(|x| *x *= inverse);
        s.max[r] += s.sum[r].ln();
    }
}

fn refill(x: &mut Vec<f32>, n: usize, value: f32) {
    x.clear();
    x.resize(n, value);
}

/// Copies rows `from..to` of `[position, hd]` turned into `[hd, LINE]`.
fn turn(x: &[f32], stride: usize, from: usize, to: usize, hd: usize, into: &mut Vec<f32>) {
    if into.len() < hd * LINE {
        into.resize(hd * LINE, 0.0);
    }
    let n = to - from;
    let (whole, even) = (n / 4 * 4, hd / 4 * 4);
    for j in (0..whole).step_by(4) {
        for i in (0..even).step_by(4) {
            turn_block(&x[(from + j) * stride + i..], stride, &mut into[i * LINE + j..]);
        }
        for i in even..hd {
            for c in 0..4 {
                into[i * LINE + j + c] = x[(from + j + c) * stride + i];
            }
        }
    }
    for j in whole..n {
        for (i, v) in x[(from + j) * stride..][..hd].iter().enumerate() {
            into[i * LINE + j] = *v;
        }
    }
}

/// Four rows of four numbers to columns.
#[inline(always)]
fn turn_block(x: &[f32], stride: usize, into: &mut [f32]) {
    let (x, into) = (&x[..3 * stride + 4], &mut into[..3 * LINE + 4]);
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_loadu_ps, _mm_movehl_ps, _mm_movelh_ps, _mm_storeu_ps, _mm_unpackhi_ps,
            _mm_unpacklo_ps,
        };
        // SAFETY: SSE is part of every x86-64 machine; four rows and columns are inside the slices.
        unsafe {
            let (p, q) = (x.as_ptr(), into.as_mut_ptr());
            let (a, b) = (_mm_loadu_ps(p), _mm_loadu_ps(p.add(stride)));
            let (c, d) = (_mm_loadu_ps(p.add(2 * stride)), _mm_loadu_ps(p.add(3 * stride)));
            let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
            let (ef, gh) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
            _mm_storeu_ps(q, _mm_movelh_ps(ab, cd));
            _mm_storeu_ps(q.add(LINE), _mm_movehl_ps(cd, ab));
            _mm_storeu_ps(q.add(2 * LINE), _mm_movelh_ps(ef, gh));
            _mm_storeu_ps(q.add(3 * LINE), _mm_movehl_ps(gh, ef));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    for r in 0..4 {
        for c in 0..4 {
            into[r * LINE + c] = x[c * stride + r];
        }
    }
}

/// Scores to weights: `line[a..b]` becomes `exp(scale * score - max)`, the rest 0; earlier sums are scaled to the new
/// maximum. Vectors start at the block's first key, so that a row's sum does not depend on where its window begins;
/// `line` is a whole row of the tile, whose numbers behind `cols` are free to use.
#[inline(always)]
fn soften<V: Vector>(
    line: &mut [f32],
    cols: usize,
    (a, b): (usize, usize),
    scale: f32,
    max: &mut f32,
    sum: &mut f32,
    o: &mut [f32],
) {
    if a == b {
        line[..cols].fill(0.0);
        return;
    }
    if scale <= 0.0 {
        line[a..b].iter_mut().for_each(|x| *x *= scale);
    }
    let factor = V::splat(if scale > 0.0 { scale } else { 1.0 });
    let (start, end) = (a / V::N * V::N, b.next_multiple_of(V::N));
    line[start..a].fill(f32::NEG_INFINITY);
    line[b..end].fill(f32::NEG_INFINITY);
    line[..start].fill(0.0);
    if end < cols {
        line[end..cols].fill(0.0);
    }
    let (p, vectors) = (line[start..end].as_mut_ptr(), (end - start) / V::N);
    let mut top = V::splat(f32::NEG_INFINITY);
    for i in 0..vectors {
        // SAFETY: whole vectors inside `line[start..end]`.
        unsafe {
            let x = V::load(p.add(i * V::N)).mul(factor);
            x.store(p.add(i * V::N));
            top = top.max(x);
        }
    }
    let new = max.max(fold::<V>(top, f32::max));
    if new == f32::NEG_INFINITY {
        // All scores are minus infinity: no weight anywhere.
        line[..cols].fill(0.0);
        return;
    }
    if *max != new && *max != f32::NEG_INFINITY {
        let keep = (*max - new).exp();
        *sum *= keep;
        o.iter_mut().for_each(|x| *x *= keep);
    }
    *max = new;
    let shift = V::splat(-new);
    let mut total = V::splat(0.0);
    for i in 0..vectors {
        // SAFETY: whole vectors inside `line[start..end]`.
        unsafe {
            let x = exp(V::load(p.add(i * V::N)).add(shift));
            x.store(p.add(i * V::N));
            total = total.add(x);
        }
    }
    *sum += fold::<V>(total, |x, y| x + y);
}

/// `a . b` in a fixed order.
#[inline(always)]
fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = V::splat(0.0);
    for (x, y) in a.chunks(V::N).zip(b.chunks(V::N)) {
        // SAFETY: both pieces have the same length, at most a vector.
        unsafe {
            sum = V::load_n(x.as_ptr(), x.len()).mul_add(V::load_n(y.as_ptr(), y.len()), sum)
        };
    }
    fold::<V>(sum, |x, y| x + y)
}

/// What the backward pass reads.
pub struct Saved<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub o: &'a [f32],
    pub lse: &'a [f32],
    pub d_o: &'a [f32],
}

/// Gradients of `q`, `k` and `v`, summed over the query heads of a group.
pub fn backward(
    threads: &Threads,
    h: Heads,
    offsets: &[u32],
    x: &Saved,
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    dk.fill(0.0);
    dv.fill(0.0);
    let (size, width) = (h.kv * h.hd, h.hd);
    let (dq, dk, dv) = (Shared::new(dq), Shared::new(dk), Shared::new(dv));
    threads.each(segments(offsets) * h.kv, |task| {
        let (seg, head) = (task / h.kv, task % h.kv);
        let (from, to) = (offsets[seg] as usize, offsets[seg + 1] as usize);
        if from == to {
            return;
        }
        let rows = Rows { from, count: to - from, head, base: 0 };
        SCRATCH.with_borrow_mut(|s| {
            let at = from * size + head * width;
            let span = (to - from - 1) * size + width;
            // Tasks of one segment interleave in memory, so each collects its head's gradients apart.
            let (mut gk, mut gv) = (std::mem::take(&mut s.sum), std::mem::take(&mut s.max));
            refill(&mut gk, rows.count * width, 0.0);
            refill(&mut gv, rows.count * width, 0.0);
            let keys = Keys { k: &x.k[at..at + span], v: &x.v[at..at + span], stride: size };
            attend_back(h, rows, x, keys, s, (&mut gk, &mut gv));
            rows.put(h, &s.dq, width, dq);
            for (grad, into) in [(&gk, dk), (&gv, dv)] {
                for (t, g) in grad.chunks_exact(width).enumerate() {
                    // SAFETY: this head's rows of this segment belong to this task alone.
                    unsafe { into.slice(at + t * size, width) }.copy_from_slice(g);
                }
            }
            (s.sum, s.max) = (gk, gv);
        });
    });
}

at_level! {
    fn attend_back(h: Heads, rows: Rows, x: &Saved<'_>, keys: Keys<'_>, s: &mut Scratch, grads: (&mut [f32], &mut [f32])) = back_at
}

#[inline(always)]
fn back_at<V: Vector>(
    h: Heads,
    rows: Rows,
    x: &Saved,
    keys: Keys,
    s: &mut Scratch,
    (gk, gv): (&mut [f32], &mut [f32]),
) {
    let (g, hd) = (h.group(), h.hd);
    let n = rows.count * g;
    rows.take(h, x.q, &mut s.q);
    rows.take(h, x.d_o, &mut s.d_o);
    rows.take(h, x.o, &mut s.o);
    refill(&mut s.dq, n * hd, 0.0);
    s.delta.clear();
    for (a, b) in s.o.chunks_exact(hd).zip(s.d_o.chunks_exact(hd)) {
        s.delta.push(dot::<V>(a, b));
    }
    s.scores.resize(ROWS * LINE, 0.0);
    s.grads.resize(ROWS * LINE, 0.0);
    for from in (0..rows.count).step_by(BLOCK) {
        let to = rows.count.min(from + BLOCK);
        turn(keys.k, keys.stride, from, to, hd, &mut s.turned_k);
        turn(keys.v, keys.stride, from, to, hd, &mut s.turned_v);
        for row in (from * g..n).step_by(ROWS) {
            let count = ROWS.min(n - row);
            let (low, high) = (row / g, (row + count - 1) / g);
            if h.seen(low).start >= to {
                break;
            }
            let cols = (high + 1).min(to) - from;
            let scores = Mm { m: count, n: cols, k: hd, a: (hd, 1), b: LINE, c: LINE, add: false };
            scores.run(&s.q[row * hd..], &s.turned_k, &mut s.scores);
            scores.run(&s.d_o[row * hd..], &s.turned_v, &mut s.grads);
            for r in 0..count {
                let token = (row + r) / g;
                let seen = h.seen(token);
                let (a, b) = (
                    seen.start.clamp(from, from + cols) - from,
                    seen.end.clamp(from, from + cols) - from,
                );
                let lse = x.lse[rows.at(h, token, 1) + (row + r) % g];
                let line = r * LINE..r * LINE + cols;
                weigh::<V>(
                    &mut s.scores[line.clone()],
                    &mut s.grads[line],
                    a,
                    b,
                    h.scale,
                    lse,
                    s.delta[row + r],
                );
            }
            let keyed = Mm { m: cols, n: hd, k: count, a: (1, LINE), b: hd, c: hd, add: true };
            keyed.run(&s.scores, &s.d_o[row * hd..], &mut gv[from * hd..]);
            keyed.run(&s.grads, &s.q[row * hd..], &mut gk[from * hd..]);
            let queried =
                Mm { m: count, n: hd, k: cols, a: (LINE, 1), b: keys.stride, c: hd, add: true };
            queried.run(&s.grads, &keys.k[from * keys.stride..], &mut s.dq[row * hd..]);
        }
    }
}

/// Scores to weights `p`, and gradients of weights to gradients of scores `p (dp - delta) scale`, inside `a..b`.
#[inline(always)]
fn weigh<V: Vector>(
    line: &mut [f32],
    grad: &mut [f32],
    a: usize,
    b: usize,
    scale: f32,
    lse: f32,
    delta: f32,
) {
    for x in [&mut *line, &mut *grad] {
        x[..a].fill(0.0);
        x[b..].fill(0.0);
    }
    let (line, grad) = (&mut line[a..b], &mut grad[a..b]);
    let (factor, shift, delta) = (V::splat(scale), V::splat(-lse), V::splat(-delta));
    for (l, g) in line.chunks_mut(V::N).zip(grad.chunks_mut(V::N)) {
        let n = l.len();
        // SAFETY: both pieces have `n` numbers, at most a vector.
        unsafe {
            let p = exp(V::load_n(l.as_ptr(), n).mul_add(factor, shift));
            let d = V::load_n(g.as_ptr(), n).add(delta).mul(p).mul(factor);
            p.store_n(l.as_mut_ptr(), n);
            d.store_n(g.as_mut_ptr(), n);
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
