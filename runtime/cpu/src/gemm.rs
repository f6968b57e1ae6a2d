//! Matrix products with a fixed order of summation.
//!
//! In: strided views of `a [m, k]` and `b [k, n]`. Out: `a b` written to, or added to, a strided `[m, n]`. What must
//! hold: a row of the result has the same bits however many rows there are and however many threads work. The `gemm`
//! crate picks other orders for few rows and for long contractions; so the contraction is cut into blocks of 256 here
//! and rows are padded to `max(2, 256 / n + 1)`. With fewer than four columns plain dot products are faster. A head's
//! weights `[vocab, d]` under few rows would be packed at great cost; wide `b` stored this way has a kernel of its own,
//! for any number of rows. Few rows (decoding) with `b` stored contraction-major read it once, as a few streams, and add
//! in the order that `gemm` does within a block.

use std::cell::RefCell;

use gemm::Parallelism;

use crate::simd::{Level, Vector, at_level, fold, level};
use crate::threads::{Shared, Threads};

/// Length of a block of the contraction.
pub const BLOCK: usize = 256;

/// Columns below which products are plain dots.
const NARROW: usize = 4;

/// Columns from which `b` stored along the contraction is read where it is.
const WIDE: usize = 4096;

/// Rows up to which `b` stored contraction-major is streamed instead of packed.
const FEW: usize = 24;

/// Columns of a result that stay in the first-level cache meanwhile, and rows of `b` read side by side.
const STRIPE: usize = 528;
const STREAMS: usize = 8;

/// A matrix that is read: element `(i, j)` is `data[i * row + j * col]`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub col: usize,
}

/// Shape of a product: `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Where a product goes: element `(i, j)` is `data[i * row + j * col]`.
pub struct ViewMut<'a> {
    pub data: &'a mut [f32],
    pub row: usize,
    pub col: usize,
}

fn span(m: usize, n: usize, row: usize, col: usize) -> usize {
    if m == 0 || n == 0 { 0 } else { (m - 1) * row + (n - 1) * col + 1 }
}

/// `out = a b`, or `out += a b` when `add`.
pub fn gemm(threads: &Threads, shape: Shape, out: ViewMut, add: bool, a: View, b: View) {
    let Shape { m, n, k } = shape;
    assert!(out.data.len() >= span(m, n, out.row, out.col), "result of {shape:?} is too short");
    assert!(a.data.len() >= span(m, k, a.row, a.col), "left operand of {shape:?} is too short");
    assert!(b.data.len() >= span(k, n, b.row, b.col), "right operand of {shape:?} is too short");
    if m == 0 || n == 0 {
        return;
    }
    if n >= WIDE && k > 0 && b.row == 1 && b.col >= k {
        return wide(threads, shape, out, add, a, b);
    }
    // Without vectors of our own the sums would not be fused as the crate fuses them.
    let vectors = level() > Level::Plain;
    if vectors && m <= FEW && n >= 64 && k > 0 && b.col == 1 && out.col == 1 {
        return few(threads, shape, out, add, a, b);
    }
    let parts = parts(threads, shape);
    let by_rows = m >= n || n < 2 * 256;
    let (size, unit) = if by_rows { (m, 8) } else { (n, 64) };
    let step = size.div_ceil(parts).next_multiple_of(unit);
    let (row, col, out) = (out.row, out.col, Shared::new(out.data));
    threads.each(size.div_ceil(step), |i| {
        let (at, len) = (i * step, step.min(size - i * step));
        let part = if by_rows { Shape { m: len, ..shape } } else { Shape { n: len, ..shape } };
        let (oa, ob, oo) =
            if by_rows { (at * a.row, 0, at * row) } else { (0, at * b.col, at * col) };
        let a = View { data: a.data.get(oa..).unwrap_or(&[]), ..a };
        let b = View { data: b.data.get(ob..).unwrap_or(&[]), ..b };
        // SAFETY: the pieces' elements are disjoint rows or columns of one result that is borrowed here; no piece
        // makes a slice, elements are only reached through the pointer.
        let ptr = unsafe { out.at(oo) };
        product(part, ptr, (row, col), add, a, b);
    });
}

/// How many pieces to cut the result into.
fn parts(threads: &Threads, shape: Shape) -> usize {
    let work = shape.m * shape.n * shape.k.max(1);
    if work < 1 << 19 { 1 } else { threads.count() }
}

/// Rows that make the order of summation independent of the number of rows.
fn least_rows(n: usize) -> usize {
    (256 / n + 1).max(2)
}

fn product(shape: Shape, out: *mut f32, strides: (usize, usize), add: bool, a: View, b: View) {
    let Shape { m, n, k } = shape;
    if n < NARROW || k == 0 {
        return dots(shape, out, strides, add, a, b);
    }
    let least = least_rows(n);
    if m >= least {
        return blocks(shape, out, strides, add, a, b);
    }
    PADDED.with_borrow_mut(|(left, res)| {
        left.clear();
        left.resize(least * k, 0.0);
        res.clear();
        res.resize(least * n, 0.0);
        for (i, row) in left.chunks_exact_mut(k).take(m).enumerate() {
            for (p, x) in row.iter_mut().enumerate() {
                *x = a.data[i * a.row + p * a.col];
            }
        }
        let elements =
            || (0..m).flat_map(|i| (0..n).map(move |j| (i * n + j, i * strides.0 + j * strides.1)));
        if add {
            for (r, o) in elements() {
                // SAFETY: `o` is an element of the caller's result.
                res[r] = unsafe { *out.add(o) };
            }
        }
        let padded = Shape { m: least, ..shape };
        blocks(padded, res.as_mut_ptr(), (n, 1), add, View { data: left, row: k, col: 1 }, b);
        for (r, o) in elements() {
            // SAFETY: `o` is an element of the caller's result.
            unsafe { *out.add(o) = res[r] };
        }
    });
}

thread_local! {
    static PADDED: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// The product, the contraction cut into blocks of 256.
fn blocks(shape: Shape, out: *mut f32, (row, col): (usize, usize), add: bool, a: View, b: View) {
    let Shape { m, n, k } = shape;
    for at in (0..k).step_by(BLOCK) {
        // SAFETY: every element that the shape and strides reach was checked to lie in its slice by `gemm`, or is in
        // the padded copies whose sizes are made from the same numbers; the result does not overlap the operands
        // since it is borrowed mutably.
        unsafe {
            gemm::gemm(
                m,
                n,
                BLOCK.min(k - at),
                out,
                col as isize,
                row as isize,
                add || at > 0,
                a.data.as_ptr().add(at * a.col),
                a.col as isize,
                a.row as isize,
                b.data.as_ptr().add(at * b.row),
                b.col as isize,
                b.row as isize,
                1.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// Products with few columns: eight partial sums per element, added in a fixed order.
fn dots(shape: Shape, out: *mut f32, (row, col): (usize, usize), add: bool, a: View, b: View) {
    const WAYS: usize = 8;
    for i in 0..shape.m {
        for j in 0..shape.n {
            let mut sums = [0.0f32; WAYS];
            for p in 0..shape.k {
                sums[p % WAYS] += a.data[i * a.row + p * a.col] * b.data[p * b.row + j * b.col];
            }
            let sum = ((sums[0] + sums[4]) + (sums[2] + sums[6]))
                + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
            // SAFETY: the element lies in the caller's result, checked by `gemm`.
            let o = unsafe { &mut *out.add(i * row + j * col) };
            *o = if add { *o + sum } else { sum };
        }
    }
}

/// Products of few rows with rows of `b` contiguous, in stripes of columns.
fn few(threads: &Threads, shape: Shape, out: ViewMut, add: bool, a: View, b: View) {
    let Shape { m, n, k } = shape;
    // Even stripes of whole vectors, so that no thread is left with a sliver.
    let stripes = n.div_ceil(STRIPE).next_multiple_of(parts(threads, shape));
    let step = n.div_ceil(stripes).next_multiple_of(16);
    let (row, out) = (out.row, Shared::new(out.data));
    threads.each(n.div_ceil(step), |i| {
        let (from, len) = (i * step, step.min(n - i * step));
        // SAFETY: each task has columns of its own, inside the result by the checks in `gemm`.
        let out = unsafe { out.at(from) };
        let b = View { data: &b.data[from..], ..b };
        let mut held = STRIPES.take();
        stripe(Shape { m, n: len, k }, out, row, add, a, b, &mut held);
        STRIPES.set(held);
    });
}

at_level! {
    fn stripe(shape: Shape, out: *mut f32, row: usize, add: bool, a: View<'_>, b: View<'_>, held: &mut Held) = stripe_at
}

/// Running sums, and the numbers of `a` for the rows of `b` at hand.
type Held = (Vec<f32>, Vec<f32>);

/// One stripe: per block of the contraction its sums start at zero, in order, and are then added to the result.
/// Everything here is compiled for the vector's instruction set, so nothing may hide in a closure that is handed away.
#[inline(always)]
fn stripe_at<V: Vector>(
    Shape { m, n, k }: Shape,
    out: *mut f32,
    row: usize,
    add: bool,
    a: View,
    b: View,
    (sums, left): &mut Held,
) {
    for at in (0..k).step_by(BLOCK) {
        let len = BLOCK.min(k - at);
        sums.clear();
        sums.resize(m * STRIPE, 0.0);
        for p in (at..at + len).step_by(STREAMS) {
            let streams = STREAMS.min(at + len - p);
            left.clear();
            for i in 0..m {
                for s in 0..streams {
                    left.push(a.data[i * a.row + (p + s) * a.col]);
                }
            }
            let right = &b.data[p * b.row..][..(streams - 1) * b.row + n];
            match streams {
                STREAMS => stream::<V, STREAMS>(m, n, sums, left, right, b.row),
                4 => stream::<V, 4>(m, n, sums, left, right, b.row),
                _ => {
                    for s in 0..streams {
                        stream_one::<V>(m, n, sums, &left[s..], streams, &right[s * b.row..]);
                    }
                }
            }
        }
        for (i, sums) in sums.chunks_exact(STRIPE).enumerate() {
            for (j, x) in sums[..n].iter().enumerate() {
                // SAFETY: the element lies in the caller's result, checked by `gemm`.
                let o = unsafe { &mut *out.add(i * row + j) };
                *o = if add || at > 0 { *o + x } else { *x };
            }
        }
    }
}

thread_local! {
    static STRIPES: std::cell::Cell<Held> = const { std::cell::Cell::new((Vec::new(), Vec::new())) };
}

/// Adds `S` rows of `b`, times the `S` numbers that each row of the result has for them, to the running sums.
#[inline(always)]
fn stream<V: Vector, const S: usize>(
    m: usize,
    n: usize,
    sums: &mut [f32],
    left: &[f32],
    right: &[f32],
    stride: usize,
) {
    let whole = n / V::N * V::N;
    assert!(left.len() >= m * S && sums.len() >= m * STRIPE && right.len() >= (S - 1) * stride + n);
    let mut j = 0;
    while j < whole {
        let mut rows = [V::splat(0.0); S];
        // SAFETY: `right` holds `S` rows of `n` at this stride, `left` `m` rows of `S`, `sums` `m` rows of `STRIPE`.
        unsafe {
            for (s, y) in rows.iter_mut().enumerate() {
                *y = V::load(right.as_ptr().add(s * stride + j));
                // The rows after these: weights come from memory, and each row is on a page of its own.
                prefetch(right.as_ptr().wrapping_add((S + s) * stride + j));
            }
            for i in 0..m {
                let to = sums.as_mut_ptr().add(i * STRIPE + j);
                let from = left.as_ptr().add(i * S);
                let mut sum = V::load(to);
                for (s, y) in rows.iter().enumerate() {
                    sum = V::splat(*from.add(s)).mul_add(*y, sum);
                }
                sum.store(to);
            }
        }
        j += V::N;
    }
    for j in whole..n {
        for i in 0..m {
            let mut sum = sums[i * STRIPE + j];
            for s in 0..S {
                sum = left[i * S + s].mul_add(right[s * stride + j], sum);
            }
            sums[i * STRIPE + j] = sum;
        }
    }
}

/// Asks for the cache line at `p`, which need not be readable.
#[inline(always)]
fn prefetch(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// [`stream`] for one row of `b`; the numbers for it are `step` apart.
#[inline(always)]
fn stream_one<V: Vector>(
    m: usize,
    n: usize,
    sums: &mut [f32],
    left: &[f32],
    step: usize,
    right: &[f32],
) {
    let whole = n / V::N * V::N;
    for i in 0..m {
        let x = left[i * step];
        let sums = &mut sums[i * STRIPE..][..n];
        let mut j = 0;
        while j < whole {
            // SAFETY: both slices hold `n` numbers.
            unsafe {
                let to = sums.as_mut_ptr().add(j);
                V::splat(x).mul_add(V::load(right.as_ptr().add(j)), V::load(to)).store(to);
            }
            j += V::N;
        }
        for j in whole..n {
            sums[j] = x.mul_add(right[j], sums[j]);
        }
    }
}

/// Products with many columns of `b`, each contiguous: dot products in tiles of four by four.
fn wide(threads: &Threads, shape: Shape, out: ViewMut, add: bool, a: View, b: View) {
    let Shape { m, n, k } = shape;
    let copy: Vec<f32>;
    let a = if a.col == 1 {
        a
    } else {
        copy = (0..m * k).map(|i| a.data[i / k * a.row + i % k * a.col]).collect();
        View { data: &copy, row: k, col: 1 }
    };
    const PART: usize = 512;
    let (row, col, out) = (out.row, out.col, Shared::new(out.data));
    threads.each(n.div_ceil(PART), |part| {
        let (from, to) = (part * PART, n.min((part + 1) * PART));
        // SAFETY: each task has columns of its own, inside the result by the checks in `gemm`.
        let out = unsafe { out.at(from * col) };
        let b = View { data: &b.data[from * b.col..], ..b };
        columns(Shape { m, n: to - from, k }, out, (row, col), add, a, b);
    });
}

at_level! {
    fn columns(shape: Shape, out: *mut f32, strides: (usize, usize), add: bool, a: View<'_>, b: View<'_>) = columns_at
}

#[inline(always)]
fn columns_at<V: Vector>(
    shape: Shape,
    out: *mut f32,
    (row, col): (usize, usize),
    add: bool,
    a: View,
    b: View,
) {
    let mut j = 0;
    while j < shape.n {
        let wide = if shape.n - j >= 4 { 4 } else { 1 };
        let right = &b.data[j * b.col..][..(wide - 1) * b.col + shape.k];
        let mut i = 0;
        while i < shape.m {
            let tall = if shape.m - i >= 4 { 4 } else { 1 };
            let left = &a.data[i * a.row..][..(tall - 1) * a.row + shape.k];
            // SAFETY: the slices hold `tall` and `wide` rows of `k` numbers, and the result has these elements.
            unsafe {
                let to = Tile { out: out.add(i * row + j * col), row, col, add };
                let (p, q, strides) = (left.as_ptr(), right.as_ptr(), (a.row, b.col));
                match (tall, wide) {
                    (4, 4) => to.dots::<V, 4, 4>(shape.k, p, q, strides),
                    (4, _) => to.dots::<V, 4, 1>(shape.k, p, q, strides),
                    (_, 4) => to.dots::<V, 1, 4>(shape.k, p, q, strides),
                    _ => to.dots::<V, 1, 1>(shape.k, p, q, strides),
                }
            }
            i += tall;
        }
        j += wide;
    }
}

/// Part of a result.
struct Tile {
    out: *mut f32,
    row: usize,
    col: usize,
    add: bool,
}

impl Tile {
    /// Dot products of `R` rows with `C` rows, one running vector each, whatever `R` and `C` are.
    ///
    /// # Safety
    /// `p` and `q` have `R` and `C` rows of `k` numbers at these strides; the result has `R` by `C` elements.
    #[inline(always)]
    unsafe fn dots<V: Vector, const R: usize, const C: usize>(
        self,
        k: usize,
        p: *const f32,
        q: *const f32,
        strides: (usize, usize),
    ) {
        let mut sums = [[V::splat(0.0); C]; R];
        let whole = k / V::N * V::N;
        let mut at = 0;
        // SAFETY: whole vectors below `k`, then one of the rest; elements as the caller says.
        unsafe {
            while at < whole {
                let right: [V; C] = std::array::from_fn(|j| V::load(q.add(j * strides.1 + at)));
                for (i, sums) in sums.iter_mut().enumerate() {
                    let x = V::load(p.add(i * strides.0 + at));
                    for (sum, y) in sums.iter_mut().zip(right) {
                        *sum = x.mul_add(y, *sum);
                    }
                }
                at += V::N;
            }
            if at < k {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let x = V::load_n(p.add(i * strides.0 + at), k - at);
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = x.mul_add(V::load_n(q.add(j * strides.1 + at), k - at), *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    let o = &mut *self.out.add(i * self.row + j * self.col);
                    let dot = fold::<V>(*sum, |x, y| x + y);
                    *o = if self.add { *o + dot } else { dot };
                }
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
            (s >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| next()).collect()
    }

    fn run(threads: &Threads, s: Shape, a: &[f32], b: &[f32], b_kn: bool) -> Vec<f32> {
        let mut out = vec![f32::NAN; s.m * s.n];
        let (row, col) = if b_kn { (s.n, 1) } else { (1, s.k) };
        let o = ViewMut { data: &mut out, row: s.n, col: 1 };
        gemm(threads, s, o, false, View { data: a, row: s.k, col: 1 }, View { data: b, row, col });
        out
    }

    #[test]
    fn rows_do_not_depend_on_how_many_there_are_nor_on_threads() {
        let (one, two) = (Threads::new(1), Threads::new(2));
        let shapes = [
            (40, 96, 96),
            (33, 24, 256),
            (70, 576, 640),
            (65, 1, 300),
            (50, 5, 257),
            (31, 193, 64),
            (300, 768, 96),
            (37, 4099, 50),
        ];
        for (i, (m, n, k)) in shapes.into_iter().enumerate() {
            let (a, b) = (numbers(i as u64 + 1, m * k), numbers(i as u64 + 99, k * n));
            for b_kn in [true, false] {
                let whole = run(&one, Shape { m, n, k }, &a, &b, b_kn);
                assert_eq!(
                    whole,
                    run(&two, Shape { m, n, k }, &a, &b, b_kn),
                    "threads, {m}x{n}x{k}"
                );
                for (from, rows) in [(0, 1), (3, 1), (5, 2), (1, 7), (8, 16), (2, 29)] {
                    let part = run(
                        &one,
                        Shape { m: rows, n, k },
                        &a[from * k..(from + rows) * k],
                        &b,
                        b_kn,
                    );
                    assert_eq!(
                        part,
                        whole[from * n..(from + rows) * n],
                        "rows {from}+{rows} of {m}x{n}x{k}, kn {b_kn}"
                    );
                }
            }
        }
    }

    #[test]
    fn agrees_with_f64_for_any_strides_and_adds() {
        let threads = Threads::new(2);
        for (m, n, k) in [
            (1, 1, 1),
            (1, 7, 300),
            (5, 3, 9),
            (17, 33, 513),
            (64, 96, 24),
            (2, 600, 70),
            (6, 4097, 21),
            (3, 4, 0),
        ] {
            for layout in 0..8 {
                let strides = |bit: usize, r: usize, c: usize| {
                    if layout >> bit & 1 == 0 { (c, 1) } else { (1, r) }
                };
                let (a, b, c) = (numbers(7, m * k), numbers(8, k * n), numbers(9, m * n));
                let ((ar, ac), (br, bc), (cr, cc)) =
                    (strides(0, m, k), strides(1, k, n), strides(2, m, n));
                for add in [false, true] {
                    let mut out = c.clone();
                    let view = ViewMut { data: &mut out, row: cr, col: cc };
                    let (av, bv) =
                        (View { data: &a, row: ar, col: ac }, View { data: &b, row: br, col: bc });
                    gemm(&threads, Shape { m, n, k }, view, add, av, bv);
                    for i in 0..m {
                        for j in 0..n {
                            let term =
                                |p| f64::from(a[i * ar + p * ac]) * f64::from(b[p * br + j * bc]);
                            let sum: f64 = (0..k).map(term).sum();
                            let expected =
                                sum + if add { f64::from(c[i * cr + j * cc]) } else { 0.0 };
                            let got = f64::from(out[i * cr + j * cc]);
                            assert!(
                                (got - expected).abs() < 1e-5 * (k as f64).sqrt() + 1e-6,
                                "{m}x{n}x{k} {layout} {add}"
                            );
                        }
                    }
                }
            }
        }
    }
}
