//! Vectors of f32 at the width of the machine, and a small matrix product on them.
//!
//! Code is written once over [`Vector`] and compiled for AVX-512, for AVX2 with FMA, and for any machine; [`level`]
//! picks at run time. [`Mm`] is the product inside attention: each result is one chain of multiply-adds in the order of
//! the contraction, so its bits depend on neither the number of rows nor of columns.

use std::sync::OnceLock;

/// Instruction sets the code is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Plain,
    Avx2,
    Avx512,
}

/// The best level of this machine; `NRL_SIMD=avx2` or `plain` keeps to a lower one, as tests of it do.
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let most = match std::env::var("NRL_SIMD").as_deref() {
            Ok("plain") => Level::Plain,
            Ok("avx2") => Level::Avx2,
            _ => Level::Avx512,
        };
        most.min(machine())
    })
}

fn machine() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Level::Avx2;
        }
    }
    Level::Plain
}

/// Defines `pub fn $name`, which runs `$body::<V>` compiled for the machine's level.
macro_rules! at_level {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body::<std::arch::x86_64::__m512>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body::<std::arch::x86_64::__m256>($($arg),*)
                }
                match $crate::simd::level() {
                    // SAFETY: `level` found these instructions on this machine.
                    $crate::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::simd::Level::Plain => {}
                }
            }
            $body::<[f32; 4]>($($arg),*)
        }
    };
}
pub(crate) use at_level;

/// A vector of f32. Methods are called only in code compiled for the vector's instruction set.
pub trait Vector: Copy {
    const N: usize;
    /// Vectors side by side in a product's tile.
    const COLS: usize;
    fn splat(x: f32) -> Self;
    /// # Safety
    /// `N` numbers are readable at `p`.
    unsafe fn load(p: *const f32) -> Self;
    /// # Safety
    /// `N` numbers are writable at `p`.
    unsafe fn store(self, p: *mut f32);
    /// Loads the first `n` numbers, zeros behind them.
    ///
    /// # Safety
    /// `n` numbers are readable at `p`.
    unsafe fn load_n(p: *const f32, n: usize) -> Self;
    /// Stores the first `n` numbers.
    ///
    /// # Safety
    /// `n` numbers are writable at `p`.
    unsafe fn store_n(self, p: *mut f32, n: usize);
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    /// `self * b + c`.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// The larger; `o` if either is NaN.
    fn max(self, o: Self) -> Self;
    /// 2 to the power of these whole numbers between -126 and 127.
    fn power_of_two(self) -> Self;
    /// 0 where `self < bound`, else `x`.
    fn zero_below(self, bound: Self, x: Self) -> Self;
    /// The numbers themselves.
    fn lanes(self) -> [f32; 16];
}

macro_rules! x86_vector {
    ($ty:ident, $n:expr, $cols:expr, $p:ident, $mask:expr, $loadn:expr, $storen:expr, $pow:expr, $below:expr) => {
        impl Vector for $ty {
            const N: usize = $n;
            const COLS: usize = $cols;
            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: called in code compiled for this instruction set; so are all below.
                unsafe { $p::set1(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $p::loadu(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut f32) {
                // SAFETY: the caller's promise.
                unsafe { $p::storeu(p, self) }
            }
            #[inline(always)]
            unsafe fn load_n(p: *const f32, n: usize) -> Self {
                // SAFETY: the caller's promise; masked lanes are not touched.
                unsafe { $loadn($mask(n), p) }
            }
            #[inline(always)]
            unsafe fn store_n(self, p: *mut f32, n: usize) {
                // SAFETY: the caller's promise; masked lanes are not touched.
                unsafe { $storen(p, $mask(n), self) }
            }
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $p::add(self, o) }
            }
            #[inline(always)]
            fn sub(self, o: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $p::sub(self, o) }
            }
            #[inline(always)]
            fn mul(self, o: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $p::mul(self, o) }
            }
            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $p::fmadd(self, b, c) }
            }
            #[inline(always)]
            fn max(self, o: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $p::max(self, o) }
            }
            #[inline(always)]
            fn power_of_two(self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $pow(self) }
            }
            #[inline(always)]
            fn zero_below(self, bound: Self, x: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $below(self, bound, x) }
            }
            #[inline(always)]
            fn lanes(self) -> [f32; 16] {
                let mut out = [0.0; 16];
                // SAFETY: the array holds at least `N` numbers.
                unsafe { self.store(out.as_mut_ptr()) };
                out
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    mod v512 {
        pub use std::arch::x86_64::{
            _mm512_add_ps as add, _mm512_fmadd_ps as fmadd, _mm512_loadu_ps as loadu,
            _mm512_max_ps as max, _mm512_mul_ps as mul, _mm512_set1_ps as set1,
            _mm512_storeu_ps as storeu, _mm512_sub_ps as sub,
        };
    }

    mod v256 {
        pub use std::arch::x86_64::{
            _mm256_add_ps as add, _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as loadu,
            _mm256_max_ps as max, _mm256_mul_ps as mul, _mm256_set1_ps as set1,
            _mm256_storeu_ps as storeu, _mm256_sub_ps as sub,
        };
    }

    #[inline(always)]
    unsafe fn mask256(n: usize) -> __m256i {
        const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: `n` is at most 8, so eight numbers follow; called in AVX2 code.
        unsafe { _mm256_loadu_si256(BITS.as_ptr().add(8 - n.min(8)).cast()) }
    }

    x86_vector!(
        __m512,
        16,
        4,
        v512,
        |n: usize| ((1u32 << n) - 1) as __mmask16,
        |m, p| _mm512_maskz_loadu_ps(m, p),
        |p, m, x| _mm512_mask_storeu_ps(p, m, x),
        |x| {
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
        },
        |a, b, x| {
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b);
            _mm512_maskz_mov_ps(keep, x)
        }
    );

    x86_vector!(
        __m256,
        8,
        2,
        v256,
        |n: usize| mask256(n),
        |m, p| _mm256_maskload_ps(p, m),
        |p, m, x| _mm256_maskstore_ps(p, m, x),
        |x| {
            let n = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
        },
        |a, b, x| _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(a, b), x)
    );
}

impl Vector for [f32; 4] {
    const N: usize = 4;
    const COLS: usize = 2;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise.
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        for (i, x) in self.into_iter().take(n).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *p.add(i) = x };
        }
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        std::array::from_fn(|i| self[i] + o[i])
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        std::array::from_fn(|i| self[i] - o[i])
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        std::array::from_fn(|i| self[i] * o[i])
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        std::array::from_fn(|i| self[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        std::array::from_fn(|i| if self[i] > o[i] { self[i] } else { o[i] })
    }
    #[inline(always)]
    fn power_of_two(self) -> Self {
        std::array::from_fn(|i| f32::from_bits(((self[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn zero_below(self, bound: Self, x: Self) -> Self {
        std::array::from_fn(|i| if self[i] < bound[i] { 0.0 } else { x[i] })
    }
    #[inline(always)]
    fn lanes(self) -> [f32; 16] {
        std::array::from_fn(|i| if i < 4 { self[i] } else { 0.0 })
    }
}

/// `exp(x)` for `x <= 88`, flushed to 0 below -87; NaN stays NaN.
#[inline(always)]
pub fn exp<V: Vector>(x: V) -> V {
    let floor = V::splat(-87.0);
    let y = floor.max(x);
    let magic = V::splat(12_582_912.0);
    let n = y.mul_add(V::splat(std::f32::consts::LOG2_E), magic).sub(magic);
    let r = n.mul_add(V::splat(-0.693_359_4), y);
    let r = n.mul_add(V::splat(2.121_944_4e-4), r);
    let mut p = V::splat(1.987_569_2e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, V::splat(c));
    }
    let p = p.mul_add(r.mul(r), r).add(V::splat(1.0));
    // NaN has no power; the polynomial carries it.
    x.zero_below(floor, p.mul(n.power_of_two()))
}

/// All lanes combined in a fixed order.
#[inline(always)]
pub fn fold<V: Vector>(x: V, how: impl Fn(f32, f32) -> f32) -> f32 {
    let mut parts = x.lanes();
    let mut width = V::N;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            parts[i] = how(parts[i], parts[i + width]);
        }
    }
    parts[0]
}

at_level! {
    fn product(mm: Mm, a: &[f32], b: &[f32], c: &mut [f32]) = product_at
}

#[inline(always)]
fn product_at<V: Vector>(mm: Mm, a: &[f32], b: &[f32], c: &mut [f32]) {
    mm.run_at::<V>(a, b, c);
}

/// A small product `c (+)= a b`: `a` is `[m, k]` with any strides, rows of `b` and `c` are contiguous.
#[derive(Clone, Copy)]
pub struct Mm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Strides of `a`: from row to row, and along the contraction.
    pub a: (usize, usize),
    /// From row to row.
    pub b: usize,
    pub c: usize,
    pub add: bool,
}

impl Mm {
    /// Runs the product.
    pub fn run(self, a: &[f32], b: &[f32], c: &mut [f32]) {
        product(self, a, b, c);
    }

    #[inline(always)]
    fn run_at<V: Vector>(self, a: &[f32], b: &[f32], c: &mut [f32]) {
        let Mm { m, n, k, .. } = self;
        if m == 0 || n == 0 {
            return;
        }
        assert!(
            k == 0 || a.len() > (m - 1) * self.a.0 + (k - 1) * self.a.1,
            "left operand is too short"
        );
        assert!(k == 0 || b.len() >= (k - 1) * self.b + n, "right operand is too short");
        assert!(c.len() >= (m - 1) * self.c + n, "result is too short");
        let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        let mut col = 0;
        while col < n {
            let width = (n - col).min(V::N * V::COLS);
            // SAFETY: rows and columns stay inside what was checked above.
            unsafe {
                match width.div_ceil(V::N) {
                    1 => self.column::<V, 1>(a, b.add(col), c.add(col), width),
                    3 if V::COLS > 2 => self.column::<V, 3>(a, b.add(col), c.add(col), width),
                    4 if V::COLS > 2 => self.column::<V, 4>(a, b.add(col), c.add(col), width),
                    _ => self.column::<V, 2>(a, b.add(col), c.add(col), width),
                }
            }
            col += width;
        }
    }

    #[inline(always)]
    unsafe fn column<V: Vector, const C: usize>(
        self,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        width: usize,
    ) {
        let mut row = 0;
        while row < self.m {
            // SAFETY: the tile's rows are below `m`.
            unsafe {
                let (a, c) = (a.add(row * self.a.0), c.add(row * self.c));
                row += match self.m - row {
                    1 => self.tile::<V, C, 1>(a, b, c, width),
                    2 | 3 => self.tile::<V, C, 2>(a, b, c, width),
                    4 | 5 => self.tile::<V, C, 4>(a, b, c, width),
                    _ => self.tile::<V, C, 6>(a, b, c, width),
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<V: Vector, const C: usize, const R: usize>(
        self,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        width: usize,
    ) -> usize {
        let last = width - (C - 1) * V::N;
        let mut sums = [[V::splat(0.0); C]; R];
        // SAFETY: `R` rows and `width` columns exist, by the callers' checks; the last vector is masked.
        unsafe {
            if self.add {
                for (i, row) in sums.iter_mut().enumerate() {
                    for (j, s) in row.iter_mut().enumerate() {
                        let p = c.add(i * self.c + j * V::N);
                        *s =
                            if j + 1 < C || last == V::N { V::load(p) } else { V::load_n(p, last) };
                    }
                }
            }
            if last == V::N {
                self.chain::<V, C, R>(a, b, &mut sums, |p| V::load(p));
            } else {
                self.chain::<V, C, R>(a, b, &mut sums, |p| V::load_n(p, last));
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, s) in row.iter().enumerate() {
                    let p = c.add(i * self.c + j * V::N);
                    if j + 1 < C || last == V::N { s.store(p) } else { s.store_n(p, last) }
                }
            }
        }
        R
    }

    #[inline(always)]
    unsafe fn chain<V: Vector, const C: usize, const R: usize>(
        self,
        a: *const f32,
        b: *const f32,
        sums: &mut [[V; C]; R],
        tail: impl Fn(*const f32) -> V,
    ) {
        let mut s = *sums;
        for p in 0..self.k {
            // SAFETY: `p` is below the contraction's length, rows and columns inside the tile.
            unsafe {
                let b = b.add(p * self.b);
                let mut row = [V::splat(0.0); C];
                for (j, x) in row.iter_mut().enumerate() {
                    *x = if j + 1 < C { V::load(b.add(j * V::N)) } else { tail(b.add(j * V::N)) };
                }
                for (i, sums) in s.iter_mut().enumerate() {
                    let x = V::splat(*a.add(i * self.a.0 + p * self.a.1));
                    for (sum, y) in sums.iter_mut().zip(row) {
                        *sum = x.mul_add(y, *sum);
                    }
                }
            }
        }
        *sums = s;
    }
}
