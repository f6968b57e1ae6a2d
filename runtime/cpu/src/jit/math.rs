//! Elementary functions on four numbers at once, as cranelift instructions.
//!
//! In: a vector value. Out: the function's value within about two units in the last place, with the usual special
//! values: NaN stays NaN, `exp` overflows to infinity and underflows through the subnormals to 0, `log` of 0 is minus
//! infinity and of a negative number NaN. Polynomials are those of Cephes (S. Moshier, single precision). Multiply and
//! add are joined only here, never across instructions of a kernel, so that fusing changes no bits.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::types::{F32X4, I32, I32X4};
use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Value};
use cranelift_frontend::FunctionBuilder;
use nrl_ir::{BinaryOp, UnaryOp};

/// Builds vector code in a function.
pub(super) struct Math<'a, 'f> {
    pub b: &'a mut FunctionBuilder<'f>,
    /// The machine multiplies and adds in one instruction.
    pub fma: bool,
}

impl Math<'_, '_> {
    /// Four copies of a number.
    pub fn num(&mut self, x: f32) -> Value {
        self.bits(x.to_bits(), F32X4)
    }

    fn int(&mut self, x: i32) -> Value {
        self.bits(x as u32, I32X4)
    }

    fn bits(&mut self, x: u32, ty: cranelift_codegen::ir::Type) -> Value {
        let bytes: Vec<u8> = x.to_le_bytes().repeat(4);
        self.vector(bytes, ty)
    }

    /// All ones in the first `n` lanes.
    pub fn first(&mut self, n: usize) -> Value {
        let bytes = (0..4).flat_map(|i| if i < n { [0xff; 4] } else { [0; 4] }).collect();
        self.vector(bytes, I32X4)
    }

    fn vector(&mut self, bytes: Vec<u8>, ty: cranelift_codegen::ir::Type) -> Value {
        let c = self.b.func.dfg.constants.insert(ConstantData::from(bytes));
        self.b.ins().vconst(ty, c)
    }

    fn as_int(&mut self, x: Value) -> Value {
        self.b.ins().bitcast(I32X4, MemFlagsData::new(), x)
    }

    fn as_num(&mut self, x: Value) -> Value {
        self.b.ins().bitcast(F32X4, MemFlagsData::new(), x)
    }

    fn shift(
        &mut self,
        by: i64,
        x: Value,
        how: impl FnOnce(&mut FunctionBuilder, Value, Value) -> Value,
    ) -> Value {
        let by = self.b.ins().iconst(I32, by);
        how(self.b, x, by)
    }

    fn mul_add(&mut self, a: Value, b: Value, c: Value) -> Value {
        if self.fma {
            return self.b.ins().fma(a, b, c);
        }
        let p = self.b.ins().fmul(a, b);
        self.b.ins().fadd(p, c)
    }

    /// `x` times a number, plus `c`.
    fn scale_add(&mut self, x: Value, by: f32, c: Value) -> Value {
        let by = self.num(by);
        self.mul_add(x, by, c)
    }

    /// Horner's rule, highest power first.
    fn poly(&mut self, x: Value, coefs: &[f32]) -> Value {
        let mut y = self.num(coefs[0]);
        for c in &coefs[1..] {
            let c = self.num(*c);
            y = self.mul_add(y, x, c);
        }
        y
    }

    /// `a` where the mask is set, else `b`.
    pub fn pick(&mut self, mask: Value, a: Value, b: Value) -> Value {
        let mask = self.as_num(mask);
        self.b.ins().bitselect(mask, a, b)
    }

    fn compare(&mut self, how: FloatCC, a: Value, b: f32) -> Value {
        let b = self.num(b);
        self.b.ins().fcmp(how, a, b)
    }

    /// 1 where the mask is set, else 0.
    fn truth(&mut self, mask: Value) -> Value {
        let one = self.int(1.0f32.to_bits() as i32);
        let bits = self.b.ins().band(mask, one);
        self.as_num(bits)
    }

    pub fn exp(&mut self, x: Value) -> Value {
        let (high, low) = (self.num(89.0), self.num(-104.0));
        let over = self.b.ins().fcmp(FloatCC::GreaterThan, x, high);
        let x = self.pick(over, high, x);
        let under = self.b.ins().fcmp(FloatCC::LessThan, x, low);
        let x = self.pick(under, low, x);
        // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
        const MAGIC: f32 = 12_582_912.0;
        let magic = self.num(MAGIC);
        let shifted = self.scale_add(x, std::f32::consts::LOG2_E, magic);
        let n = self.b.ins().fsub(shifted, magic);
        let r = self.scale_add(n, -0.693_359_4, x);
        let r = self.scale_add(n, 2.121_944_4e-4, r);
        let p = self.poly(
            r,
            &[1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5],
        );
        let r2 = self.b.ins().fmul(r, r);
        let p = self.mul_add(p, r2, r);
        let one = self.num(1.0);
        let p = self.b.ins().fadd(p, one);
        // 2^n in two factors, so that both are normal numbers.
        let bits = self.as_int(shifted);
        let offset = self.int(MAGIC.to_bits() as i32);
        let n = self.b.ins().isub(bits, offset);
        let half = self.shift(1, n, |b, x, by| b.ins().sshr(x, by));
        let rest = self.b.ins().isub(n, half);
        let (a, b) = (self.power_of_two(half), self.power_of_two(rest));
        let p = self.b.ins().fmul(p, a);
        self.b.ins().fmul(p, b)
    }

    fn power_of_two(&mut self, n: Value) -> Value {
        let bias = self.int(127);
        let n = self.b.ins().iadd(n, bias);
        let bits = self.shift(23, n, |b, x, by| b.ins().ishl(x, by));
        self.as_num(bits)
    }

    pub fn log(&mut self, x: Value) -> Value {
        let tiny = self.compare(FloatCC::LessThan, x, f32::MIN_POSITIVE);
        let up = self.num(8_388_608.0);
        let scaled = self.b.ins().fmul(x, up);
        let y = self.pick(tiny, scaled, x);
        let bits = self.as_int(y);
        // Mantissa in [sqrt(1/2), sqrt(2)).
        let base = self.int(0x3f35_04f3);
        let above = self.b.ins().isub(bits, base);
        let e = self.shift(23, above, |b, x, by| b.ins().sshr(x, by));
        let shift = self.shift(23, e, |b, x, by| b.ins().ishl(x, by));
        let m = self.b.ins().isub(bits, shift);
        let m = self.as_num(m);
        let twenty_three = self.int(23);
        let lost = self.b.ins().band(tiny, twenty_three);
        let e = self.b.ins().isub(e, lost);
        let e = self.b.ins().fcvt_from_sint(F32X4, e);
        let one = self.num(1.0);
        let r = self.b.ins().fsub(m, one);
        let r2 = self.b.ins().fmul(r, r);
        const LOG: [f32; 9] = [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ];
        let p = self.poly(r, &LOG);
        let p = self.b.ins().fmul(p, r);
        let p = self.b.ins().fmul(p, r2);
        let p = self.scale_add(e, -2.121_944_4e-4, p);
        let p = self.scale_add(r2, -0.5, p);
        let p = self.b.ins().fadd(p, r);
        let res = self.scale_add(e, 0.693_359_4, p);
        // Not finite, or not positive: x itself, minus infinity or NaN.
        let fine = self.compare(FloatCC::LessThan, x, f32::INFINITY);
        let res = self.pick(fine, res, x);
        let zero = self.compare(FloatCC::Equal, x, 0.0);
        let down = self.num(f32::NEG_INFINITY);
        let res = self.pick(zero, down, res);
        let negative = self.compare(FloatCC::LessThan, x, 0.0);
        let nan = self.num(f32::NAN);
        self.pick(negative, nan, res)
    }

    fn tanh(&mut self, x: Value) -> Value {
        let size = self.b.ins().fabs(x);
        let z = self.b.ins().fmul(x, x);
        let near = self.poly(
            z,
            &[-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1],
        );
        let near = self.b.ins().fmul(near, z);
        let near = self.mul_add(near, x, x);
        let twice = self.b.ins().fadd(size, size);
        let e = self.exp(twice);
        let (one, two) = (self.num(1.0), self.num(2.0));
        let e = self.b.ins().fadd(e, one);
        let e = self.b.ins().fdiv(two, e);
        let far = self.b.ins().fsub(one, e);
        let (bits, far, mask) = (self.as_int(x), self.as_int(far), self.int(i32::MIN));
        let side = self.b.ins().band(bits, mask);
        let far = self.b.ins().bor(far, side);
        let far = self.as_num(far);
        let small = self.compare(FloatCC::LessThan, size, 0.625);
        self.pick(small, near, far)
    }

    fn sigmoid(&mut self, x: Value) -> Value {
        let minus = self.b.ins().fneg(x);
        let e = self.exp(minus);
        let one = self.num(1.0);
        let e = self.b.ins().fadd(e, one);
        self.b.ins().fdiv(one, e)
    }

    fn sign(&mut self, x: Value) -> Value {
        let zero = self.num(0.0);
        let same = self.b.ins().fmul(x, zero);
        let (one, minus) = (self.num(1.0), self.num(-1.0));
        let up = self.compare(FloatCC::GreaterThan, x, 0.0);
        let down = self.compare(FloatCC::LessThan, x, 0.0);
        let res = self.pick(up, one, same);
        self.pick(down, minus, res)
    }

    pub fn unary(&mut self, op: UnaryOp, x: Value) -> Value {
        match op {
            UnaryOp::Neg => self.b.ins().fneg(x),
            UnaryOp::Exp => self.exp(x),
            UnaryOp::Log => self.log(x),
            UnaryOp::Sqrt => self.b.ins().sqrt(x),
            UnaryOp::Rsqrt => {
                let (one, root) = (self.num(1.0), self.b.ins().sqrt(x));
                self.b.ins().fdiv(one, root)
            }
            UnaryOp::Tanh => self.tanh(x),
            UnaryOp::Sigmoid => self.sigmoid(x),
            UnaryOp::Abs => self.b.ins().fabs(x),
            UnaryOp::Sign => self.sign(x),
            UnaryOp::Not => {
                let zero = self.compare(FloatCC::Equal, x, 0.0);
                self.truth(zero)
            }
            UnaryOp::IsFinite => {
                let size = self.b.ins().fabs(x);
                let finite = self.compare(FloatCC::LessThan, size, f32::INFINITY);
                self.truth(finite)
            }
        }
    }

    /// Every binary op but `pow`, which `pow` supplies.
    pub fn binary(
        &mut self,
        op: BinaryOp,
        a: Value,
        b: Value,
        pow: impl FnOnce(&mut Self) -> Value,
    ) -> Value {
        let compare = |m: &mut Self, how| {
            let mask = m.b.ins().fcmp(how, a, b);
            m.truth(mask)
        };
        match op {
            BinaryOp::Add => self.b.ins().fadd(a, b),
            BinaryOp::Sub => self.b.ins().fsub(a, b),
            BinaryOp::Mul => self.b.ins().fmul(a, b),
            BinaryOp::Div => self.b.ins().fdiv(a, b),
            BinaryOp::Min => self.b.ins().fmin(a, b),
            BinaryOp::Max => self.b.ins().fmax(a, b),
            BinaryOp::Pow => pow(self),
            BinaryOp::Lt => compare(self, FloatCC::LessThan),
            BinaryOp::Le => compare(self, FloatCC::LessThanOrEqual),
            BinaryOp::Eq => compare(self, FloatCC::Equal),
            BinaryOp::And | BinaryOp::Or => {
                let a = self.compare(FloatCC::NotEqual, a, 0.0);
                let b = self.compare(FloatCC::NotEqual, b, 0.0);
                let both = if op == BinaryOp::And {
                    self.b.ins().band(a, b)
                } else {
                    self.b.ins().bor(a, b)
                };
                self.truth(both)
            }
        }
    }

    /// `a` where `cond` is not 0, else `b`.
    pub fn select(&mut self, cond: Value, a: Value, b: Value) -> Value {
        let mask = self.compare(FloatCC::NotEqual, cond, 0.0);
        self.pick(mask, a, b)
    }

    /// Rounds to the nearest bf16, ties to even; NaN stays NaN.
    pub fn round_bf16(&mut self, x: Value) -> Value {
        let bits = self.as_int(x);
        let low = self.shift(16, bits, |b, x, by| b.ins().ushr(x, by));
        let (one, half, keep) = (self.int(1), self.int(0x7fff), self.int(0xffff_0000_u32 as i32));
        let odd = self.b.ins().band(low, one);
        let up = self.b.ins().iadd(half, odd);
        let sum = self.b.ins().iadd(bits, up);
        let cut = self.b.ins().band(sum, keep);
        let cut = self.as_num(cut);
        let ordered = self.b.ins().fcmp(FloatCC::Equal, x, x);
        self.pick(ordered, cut, x)
    }
}
