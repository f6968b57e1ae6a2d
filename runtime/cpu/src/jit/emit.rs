//! One kernel to cranelift instructions.
//!
//! In: a [`Kernel`] and the number of its lanes. Out: a function `(args, first row, end row, scratch)`. Everything is
//! four numbers wide; a value that is one per row is held as four copies. Lane reductions cut a row into passes: pass
//! `p` computes what needs the reductions of the passes before it, and recomputes cheap lane values rather than storing
//! them. The order of a reduction depends on the number of lanes alone. Kernels without reductions whose operands all
//! run along with the result are *flat*: one loop over all numbers.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F32X4, I32, I64};
use cranelift_codegen::ir::{BlockArg, FuncRef, InstBuilder, MemFlagsData, Value};
use cranelift_frontend::{FunctionBuilder, Variable};
use nrl_ir::kernel::{Access, Instr, InstrId, Kernel, Output, RowIndex};
use nrl_ir::{BinaryOp, ReduceOp, UnaryOp};

use super::math::Math;

/// How a kernel's values fall into rows, lanes and passes.
pub(super) struct Form {
    /// One loop over all numbers.
    pub flat: bool,
    /// Numbers per row.
    pub lanes: usize,
    /// Per instruction: changes from lane to lane (in a flat kernel: from number to number).
    pub wide: Vec<bool>,
    /// Per instruction: the first pass that can use it.
    pub level: Vec<usize>,
    /// Per instruction: its place in the scratch rows, for dear lane values that later passes use again.
    pub spill: Vec<Option<usize>>,
    pub spills: usize,
}

const WIDTH: usize = 4;

impl Form {
    pub fn new(k: &Kernel, lanes: usize) -> Form {
        let flat = is_flat(k);
        let mut wide: Vec<bool> = vec![];
        let mut level: Vec<usize> = vec![];
        for instr in &k.code {
            let args = operands(instr);
            let any = args.iter().any(|a| wide[*a]);
            let deepest = args.iter().map(|a| level[*a]).max().unwrap_or(0);
            let (w, l) = match instr {
                Instr::Load { input } if flat => (k.inputs[*input].row != RowIndex::None, 0),
                Instr::Load { input } => (k.inputs[*input].lanes && !k.lanes.is_empty(), 0),
                Instr::Lanes { .. } => (false, deepest + usize::from(any)),
                _ => (any, deepest),
            };
            wide.push(w);
            level.push(l);
        }
        let mut form =
            Form { flat, lanes, wide, level, spill: vec![None; k.code.len()], spills: 0 };
        form.place_spills(k);
        form
    }

    /// Number of passes.
    pub fn passes(&self) -> usize {
        self.level.iter().max().map_or(1, |m| m + 1)
    }

    /// Is the output written by the lane loop?
    pub fn lane_output(&self, id: InstrId) -> bool {
        self.flat || self.wide[id]
    }

    /// Lane reductions and outputs of a pass.
    fn roots(&self, k: &Kernel, pass: usize) -> (Vec<InstrId>, Vec<usize>) {
        let reduces = |i: &InstrId| matches!(&k.code[*i], Instr::Lanes { x, .. } if self.wide[*x] && self.level[*x] == pass);
        let leaves =
            |o: &usize| self.lane_output(k.outputs[*o].0) && self.level[k.outputs[*o].0] == pass;
        ((0..k.code.len()).filter(reduces).collect(), (0..k.outputs.len()).filter(leaves).collect())
    }

    fn place_spills(&mut self, k: &Kernel) {
        let mut first = vec![None; k.code.len()];
        for pass in 0..self.passes() {
            let (reduces, leaves) = self.roots(k, pass);
            let mut stack: Vec<InstrId> =
                reduces.iter().flat_map(|r| operands(&k.code[*r])).collect();
            stack.extend(leaves.iter().map(|o| k.outputs[*o].0));
            while let Some(i) = stack.pop() {
                if !self.wide[i] {
                    continue;
                }
                if first[i].is_some_and(|f| f < pass) && is_dear(&k.code[i]) {
                    if self.spill[i].is_none() {
                        self.spill[i] = Some(self.spills);
                        self.spills += 1;
                    }
                    continue;
                }
                first[i] = first[i].or(Some(pass));
                stack.extend(operands(&k.code[i]));
            }
        }
    }
}

/// Can all numbers be one loop? All operands that are not single numbers run along with the result.
fn is_flat(k: &Kernel) -> bool {
    let lanes = !k.lanes.is_empty();
    let along = |a: &Access| match a.row {
        RowIndex::None => !a.lanes || !lanes,
        RowIndex::Row { div: 1, modulo: 0 } => a.lanes || !lanes,
        RowIndex::Row { .. } | RowIndex::Segment { .. } => false,
    };
    let stores = |(i, o): &(InstrId, Output)| !lanes || (*o == Output::Store && k.is_lane(*i));
    k.inputs.iter().all(along)
        && k.outputs.iter().all(stores)
        && !k.code.iter().any(|i| matches!(i, Instr::Lanes { .. }))
}

fn operands(instr: &Instr) -> Vec<InstrId> {
    match instr {
        Instr::Load { .. } | Instr::Const { .. } => vec![],
        Instr::Unary { x, .. } | Instr::RoundBf16 { x } | Instr::Lanes { x, .. } => vec![*x],
        Instr::Binary { a, b, .. } => vec![*a, *b],
        Instr::Select { cond, a, b } => vec![*cond, *a, *b],
    }
}

fn is_dear(instr: &Instr) -> bool {
    match instr {
        Instr::Unary { op, .. } => !matches!(
            op,
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::IsFinite | UnaryOp::Sign
        ),
        Instr::Binary { op, .. } => matches!(op, BinaryOp::Div | BinaryOp::Pow),
        Instr::Load { .. }
        | Instr::Const { .. }
        | Instr::Select { .. }
        | Instr::RoundBf16 { .. }
        | Instr::Lanes { .. } => false,
    }
}

/// Where in a row the code is.
#[derive(Clone, Copy)]
struct At {
    /// Bytes from the start of the row's lanes.
    off: Value,
    plus: i32,
    /// How many of the four numbers exist.
    count: usize,
}

/// Memory that is there and maybe not aligned to 16 bytes.
fn plain() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

pub(super) struct Emit<'a, 'f> {
    pub k: &'a Kernel,
    pub form: &'a Form,
    pub b: &'a mut FunctionBuilder<'f>,
    pub fma: bool,
    pub pow: FuncRef,
    inputs: Vec<Value>,
    maps: Vec<Option<Value>>,
    outputs: Vec<Value>,
    scratch: Value,
    /// Per input, the address of the current row.
    bases: Vec<Value>,
    /// Values that are one per row.
    rows: Vec<Option<Value>>,
    /// The pass whose code is being made, and per instruction the one that first computed it.
    pass: usize,
    made: Vec<Option<usize>>,
}

impl<'a, 'f> Emit<'a, 'f> {
    /// Emits the whole function into `b`.
    pub fn function(
        k: &'a Kernel,
        form: &'a Form,
        b: &'a mut FunctionBuilder<'f>,
        fma: bool,
        pow: FuncRef,
    ) {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let p: Vec<Value> = b.block_params(entry).to_vec();
        let mut slot = 0;
        let mut next = |b: &mut FunctionBuilder| {
            slot += 8;
            b.ins().load(I64, plain(), p[0], slot - 8)
        };
        let inputs: Vec<Value> = k.inputs.iter().map(|_| next(b)).collect();
        let maps = k
            .inputs
            .iter()
            .map(|a| matches!(a.row, RowIndex::Segment { .. }).then(|| next(b)))
            .collect();
        let outputs: Vec<Value> = k.outputs.iter().map(|_| next(b)).collect();
        let rows = vec![None; k.code.len()];
        let bases = inputs.clone();
        let mut e = Emit {
            k,
            form,
            b,
            fma,
            pow,
            inputs,
            maps,
            outputs,
            scratch: p[3],
            bases,
            rows,
            pass: 0,
            made: vec![None; k.code.len()],
        };
        if form.flat {
            e.flat(p[1], p[2]);
        } else {
            let one = 1;
            e.repeat(p[1], p[2], one, |e, row| e.row(row));
        }
        e.b.ins().return_(&[]);
        e.b.seal_all_blocks();
    }

    fn math(&mut self) -> Math<'_, 'f> {
        Math { b: &mut *self.b, fma: self.fma }
    }

    /// A loop from `start` while `i + step <= end`; returns where it stopped.
    fn repeat(
        &mut self,
        start: Value,
        end: Value,
        step: i64,
        body: impl FnOnce(&mut Self, Value),
    ) -> Value {
        let (head, inner, after) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let i = self.b.append_block_param(head, I64);
        self.b.ins().jump(head, &[BlockArg::Value(start)]);
        self.b.switch_to_block(head);
        let next = self.b.ins().iadd_imm_s(i, step);
        let more = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, next, end);
        self.b.ins().brif(more, inner, &[], after, &[]);
        self.b.switch_to_block(inner);
        body(self, i);
        self.b.ins().jump(head, &[BlockArg::Value(next)]);
        self.b.switch_to_block(after);
        i
    }

    fn flat(&mut self, start: Value, end: Value) {
        self.row_values(0);
        let outputs: Vec<usize> = (0..self.k.outputs.len()).collect();
        const UNROLL: i64 = 4;
        let by = |e: &mut Self, count: usize, vectors: i64, i: Value| {
            let off = e.b.ins().ishl_imm_s(i, 2);
            for v in 0..vectors {
                e.lanes(At { off, plus: 16 * v as i32, count }, &[], &outputs, &mut []);
            }
        };
        let at = self.repeat(start, end, WIDTH as i64 * UNROLL, |e, i| by(e, WIDTH, UNROLL, i));
        let at = self.repeat(at, end, WIDTH as i64, |e, i| by(e, WIDTH, 1, i));
        self.repeat(at, end, 1, |e, i| by(e, 1, 1, i));
    }

    /// One row: its passes, then what it leaves.
    fn row(&mut self, row: Value) {
        self.rows.fill(None);
        for i in 0..self.k.inputs.len() {
            self.bases[i] = self.base(i, row);
        }
        for pass in 0..self.form.passes() {
            self.pass = pass;
            self.row_values(pass);
            let (reduces, leaves) = self.form.roots(self.k, pass);
            if !reduces.is_empty() || !leaves.is_empty() {
                self.pass(row, &reduces, &leaves);
            }
        }
        for (o, (id, _)) in self.k.outputs.iter().enumerate() {
            if !self.form.lane_output(*id) {
                let off = self.b.ins().ishl_imm_s(row, 2);
                let at = self.b.ins().iadd(self.outputs[o], off);
                let x = self.row_value(*id);
                let x = self.b.ins().extractlane(x, 0);
                self.b.ins().store(plain(), x, at, 0);
            }
        }
    }

    /// Address of what row `row` reads of an input.
    fn base(&mut self, input: usize, row: Value) -> Value {
        let access = &self.k.inputs[input];
        let item = match access.row {
            RowIndex::None => return self.inputs[input],
            RowIndex::Row { div, modulo } => {
                let item = self.divided(row, div);
                if modulo == 0 { item } else { self.b.ins().urem_imm_s(item, modulo as i64) }
            }
            RowIndex::Segment { div, .. } => {
                let item = self.divided(row, div);
                let off = self.b.ins().ishl_imm_s(item, 2);
                let map = self.maps[input].unwrap_or(off);
                let at = self.b.ins().iadd(map, off);
                let owner = self.b.ins().load(I32, plain(), at, 0);
                self.b.ins().uextend(I64, owner)
            }
        };
        let size = if access.lanes { 4 * self.form.lanes } else { 4 };
        let off = self.b.ins().imul_imm_s(item, size as i64);
        self.b.ins().iadd(self.inputs[input], off)
    }

    fn divided(&mut self, row: Value, div: usize) -> Value {
        if div == 1 { row } else { self.b.ins().udiv_imm_s(row, div as i64) }
    }

    /// Emits the row values that become known before `pass`.
    fn row_values(&mut self, pass: usize) {
        for i in 0..self.k.code.len() {
            if !self.form.wide[i] && self.form.level[i] == pass && self.rows[i].is_none() {
                let x = self.value(i, None, &mut []);
                self.rows[i] = Some(x);
            }
        }
    }

    fn row_value(&mut self, id: InstrId) -> Value {
        match self.rows[id] {
            Some(x) => x,
            None => self.value(id, None, &mut []),
        }
    }

    /// The lane loop of a pass.
    fn pass(&mut self, row: Value, reduces: &[InstrId], leaves: &[usize]) {
        let vectors = self.form.lanes / WIDTH;
        let unroll = [4, 2, 1]
            .into_iter()
            .find(|u| vectors.is_multiple_of(*u))
            .unwrap_or(1)
            .min(vectors.max(1));
        let mut sums: Vec<Vec<Variable>> = vec![];
        for r in reduces {
            let start = self.start_of(*r);
            let vars = (0..unroll).map(|_| self.b.declare_var(F32X4)).collect::<Vec<_>>();
            for v in &vars {
                self.b.def_var(*v, start);
            }
            sums.push(vars);
        }
        // Results advance by whole rows.
        let size = self.b.ins().imul_imm_s(row, 4 * self.form.lanes as i64);
        let kept: Vec<Value> = self.outputs.clone();
        for o in leaves {
            if self.k.outputs[*o].1 == Output::Store {
                self.outputs[*o] = self.b.ins().iadd(kept[*o], size);
            }
        }
        let zero = self.b.ins().iconst(I64, 0);
        let body = |e: &mut Self, off: Value| {
            for u in 0..unroll {
                let at = At { off, plus: 16 * u as i32, count: WIDTH };
                let mut into: Vec<Variable> = sums.iter().map(|s| s[u]).collect();
                e.lanes(at, reduces, leaves, &mut into);
            }
        };
        if vectors == unroll && vectors > 0 {
            body(self, zero);
        } else if vectors > 0 {
            let end = self.b.ins().iconst(I64, 16 * vectors as i64);
            self.repeat(zero, end, 16 * unroll as i64, body);
        }
        let tail = self.form.lanes % WIDTH;
        if tail > 0 {
            let off = self.b.ins().iconst(I64, 16 * vectors as i64);
            let mut into: Vec<Variable> = sums.iter().map(|s| s[0]).collect();
            self.lanes(At { off, plus: 0, count: tail }, reduces, leaves, &mut into);
        }
        for (r, vars) in reduces.iter().zip(&sums) {
            self.rows[*r] = Some(self.joined(*r, vars));
        }
        self.outputs = kept;
    }

    fn how(&self, reduce: InstrId) -> ReduceOp {
        match self.k.code[reduce] {
            Instr::Lanes { op, .. } => op,
            _ => ReduceOp::Sum,
        }
    }

    fn start_of(&mut self, reduce: InstrId) -> Value {
        let start = if self.how(reduce) == ReduceOp::Sum { 0.0 } else { f32::NEG_INFINITY };
        self.math().num(start)
    }

    fn join(&mut self, how: ReduceOp, a: Value, b: Value) -> Value {
        match how {
            ReduceOp::Sum => self.b.ins().fadd(a, b),
            ReduceOp::Max => self.b.ins().fmax(a, b),
        }
    }

    /// All partial results of a reduction as one, in a fixed order.
    fn joined(&mut self, reduce: InstrId, vars: &[Variable]) -> Value {
        let how = self.how(reduce);
        let mut parts: Vec<Value> = vars.iter().map(|v| self.b.use_var(*v)).collect();
        while parts.len() > 1 {
            parts = parts
                .chunks(2)
                .map(|c| if c.len() == 2 { self.join(how, c[0], c[1]) } else { c[0] })
                .collect();
        }
        let lane: Vec<Value> = (0..4u8).map(|i| self.b.ins().extractlane(parts[0], i)).collect();
        let (even, odd) = (self.join(how, lane[0], lane[2]), self.join(how, lane[1], lane[3]));
        let all = self.join(how, even, odd);
        self.b.ins().splat(F32X4, all)
    }

    /// Four lanes: reductions into `sums`, results to memory.
    fn lanes(&mut self, at: At, reduces: &[InstrId], leaves: &[usize], sums: &mut [Variable]) {
        let mut memo: Vec<Option<Value>> = vec![None; self.k.code.len()];
        for (r, var) in reduces.iter().zip(sums) {
            let x = operands(&self.k.code[*r])[0];
            let mut v = self.value(x, Some(at), &mut memo);
            if at.count < WIDTH {
                let start = self.start_of(*r);
                let mut m = self.math();
                let mask = m.first(at.count);
                v = m.pick(mask, v, start);
            }
            let old = self.b.use_var(*var);
            let new = self.join(self.how(*r), old, v);
            self.b.def_var(*var, new);
        }
        for o in leaves {
            let (id, how) = &self.k.outputs[*o];
            let mut v = self.value(*id, Some(at), &mut memo);
            let to = self.b.ins().iadd(self.outputs[*o], at.off);
            if !self.form.flat && *how == Output::SumRows {
                let old = self.read(to, at);
                v = self.b.ins().fadd(old, v);
            }
            self.write(v, to, at);
        }
    }

    fn read(&mut self, address: Value, at: At) -> Value {
        if at.count == WIDTH {
            return self.b.ins().load(F32X4, plain(), address, at.plus);
        }
        let x = self.b.ins().load(F32, plain(), address, at.plus);
        let mut v = self.b.ins().scalar_to_vector(F32X4, x);
        for i in 1..at.count {
            let x = self.b.ins().load(F32, plain(), address, at.plus + 4 * i as i32);
            v = self.b.ins().insertlane(v, x, i as u8);
        }
        v
    }

    fn write(&mut self, v: Value, address: Value, at: At) {
        if at.count == WIDTH {
            self.b.ins().store(plain(), v, address, at.plus);
            return;
        }
        for i in 0..at.count {
            let x = self.b.ins().extractlane(v, i as u8);
            self.b.ins().store(plain(), x, address, at.plus + 4 * i as i32);
        }
    }

    /// Value of an instruction, at four lanes or (`at` none) for the row.
    fn value(&mut self, id: InstrId, at: Option<At>, memo: &mut [Option<Value>]) -> Value {
        if let Some(x) = self.rows[id] {
            return x;
        }
        if let Some(x) = memo.get(id).copied().flatten() {
            return x;
        }
        let spill = self.form.spill[id].zip(at);
        if let Some((slot, at)) = spill.filter(|_| self.made[id].is_some_and(|p| p < self.pass)) {
            let to = self.spill_at(slot, at);
            let x = self.read(to, at);
            memo[id] = Some(x);
            return x;
        }
        let x = self.compute(id, at, memo);
        self.made[id] = self.made[id].or(Some(self.pass));
        if let Some((slot, at)) = spill {
            let to = self.spill_at(slot, at);
            self.write(x, to, at);
        }
        if let Some(m) = memo.get_mut(id) {
            *m = Some(x);
        }
        x
    }

    fn spill_at(&mut self, slot: usize, at: At) -> Value {
        let row = self
            .b
            .ins()
            .iadd_imm_s(self.scratch, (slot * 4 * self.form.lanes.next_multiple_of(4)) as i64);
        self.b.ins().iadd(row, at.off)
    }

    fn compute(&mut self, id: InstrId, at: Option<At>, memo: &mut [Option<Value>]) -> Value {
        let code = &self.k.code[id];
        let args: Vec<Value> =
            operands(code).into_iter().map(|a| self.value(a, at, memo)).collect();
        match code {
            Instr::Load { input } => match at.filter(|_| self.form.wide[id]) {
                Some(at) => {
                    let from = self.b.ins().iadd(self.bases[*input], at.off);
                    self.read(from, at)
                }
                None => {
                    let x = self.b.ins().load(F32, plain(), self.bases[*input], 0);
                    self.b.ins().splat(F32X4, x)
                }
            },
            Instr::Const { value } => self.math().num(*value as f32),
            Instr::Unary { op, .. } => self.math().unary(*op, args[0]),
            Instr::Binary { op: BinaryOp::Pow, .. } => self.power(args[0], args[1]),
            Instr::Binary { op, .. } => {
                self.math().binary(*op, args[0], args[1], |m| m.num(f32::NAN))
            }
            Instr::Select { .. } => self.math().select(args[0], args[1], args[2]),
            Instr::RoundBf16 { .. } => self.math().round_bf16(args[0]),
            // Of a value that is the same in all lanes, or of rows without lanes.
            Instr::Lanes { op: ReduceOp::Sum, .. } if self.form.lanes != 1 => {
                let lanes = self.form.lanes as f32;
                let n = self.math().num(lanes);
                self.b.ins().fmul(args[0], n)
            }
            Instr::Lanes { .. } => args[0],
        }
    }

    fn power(&mut self, x: Value, y: Value) -> Value {
        let mut v = x;
        for i in 0..4u8 {
            let (a, b) = (self.b.ins().extractlane(x, i), self.b.ins().extractlane(y, i));
            let call = self.b.ins().call(self.pow, &[a, b]);
            let p = self.b.inst_results(call)[0];
            v = self.b.ins().insertlane(v, p, i);
        }
        v
    }
}
