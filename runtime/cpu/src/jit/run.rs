//! Calls of compiled kernels.
//!
//! In: operands as slices, and for each operand or result that goes by segment a map from item to segment. Out: the
//! results. Rows are cut into chunks of 64: a sum over rows is summed within each chunk, then over the chunks in order,
//! whatever the number of threads.

use std::cell::RefCell;

use nrl_ir::kernel::{Kernel, Output, RowIndex};

use super::Code;
use super::emit::Form;
use crate::threads::Threads;

/// Rows per partial sum, and the least work given to a thread.
const CHUNK: usize = 64;

/// Numbers below which one thread does all.
const SMALL: usize = 1 << 15;

/// A kernel's code and what it needs to be called.
pub struct Compiled {
    code: Code,
    flat: bool,
    lanes: usize,
    inputs: Vec<(RowIndex, bool)>,
    outputs: Vec<(Output, bool)>,
    scratch: usize,
    weight: usize,
}

/// One operand of a call.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub data: &'a [f32],
    /// For operands read by segment: the segment of each item.
    pub map: &'a [u32],
}

/// A result of a call.
pub struct Place<'a> {
    pub data: &'a mut [f32],
    /// For sums by segment: the segment of each item.
    pub map: &'a [u32],
}

struct Address<T>(Vec<*const T>);

// SAFETY: the addresses are of data borrowed for the whole call; each task writes rows of its own.
unsafe impl Sync for Address<u8> {}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Compiled {
    pub(super) fn new(code: Code, k: &Kernel, form: &Form) -> Compiled {
        let lanes = form.lanes.max(1);
        let inputs = k.inputs.iter().map(|a| (a.row.clone(), a.lanes)).collect();
        // A single number per row is summed after the call.
        let outputs = k
            .outputs
            .iter()
            .map(|(i, o)| (o.clone(), !k.lanes.is_empty() && k.is_lane(*i)))
            .collect();
        let scratch = form.spills * lanes.next_multiple_of(4);
        Compiled {
            code,
            flat: form.flat,
            lanes,
            inputs,
            outputs,
            scratch,
            weight: lanes * k.code.len(),
        }
    }

    /// Length of result `output` over `rows` rows, or `None` if it has one item per segment.
    pub fn length(&self, output: usize, rows: usize) -> Option<usize> {
        let (how, lane) = &self.outputs[output];
        let lanes = if *lane { self.lanes } else { 1 };
        match how {
            Output::Store => Some(rows * lanes),
            Output::SumRows => Some(lanes),
            Output::SumSegments { .. } => None,
        }
    }

    /// Runs the kernel over `rows` rows.
    ///
    /// # Errors
    /// If an operand or a result is too short for what the rows reach.
    pub fn run(
        &self,
        threads: &Threads,
        rows: usize,
        inputs: &[Operand],
        outputs: &mut [Place],
    ) -> Result<(), String> {
        let raw: Vec<(*mut f32, usize)> =
            outputs.iter_mut().map(|p| (p.data.as_mut_ptr(), p.data.len())).collect();
        let maps: Vec<&[u32]> = outputs.iter().map(|p| p.map).collect();
        self.check(rows, inputs, &raw)?;
        // SAFETY: `check` holds every operand and result to the lengths that the code reaches.
        unsafe { self.call(threads, rows, inputs, &raw, &maps) };
        Ok(())
    }

    fn check(
        &self,
        rows: usize,
        inputs: &[Operand],
        outputs: &[(*mut f32, usize)],
    ) -> Result<(), String> {
        if inputs.len() != self.inputs.len() || outputs.len() != self.outputs.len() {
            return Err("a kernel was called with the wrong number of operands".into());
        }
        for (i, (x, (row, lane))) in inputs.iter().zip(&self.inputs).enumerate() {
            let items = match row {
                RowIndex::None => 1,
                _ if rows == 0 => 0,
                RowIndex::Row { div, modulo: 0 } => rows.div_ceil(*div),
                RowIndex::Row { div, modulo } => rows.div_ceil(*div).min(*modulo),
                RowIndex::Segment { div, .. } => {
                    let items = rows.div_ceil(*div);
                    let map = x.map.get(..items).ok_or("a segment map is too short")?;
                    map.iter().max().map_or(0, |m| *m as usize + 1)
                }
            };
            let need = items * if *lane { self.lanes } else { 1 };
            if x.data.len() < need {
                return Err(format!(
                    "operand {i} of a kernel has {} numbers, {need} are needed",
                    x.data.len()
                ));
            }
        }
        for (i, (_, len)) in outputs.iter().enumerate() {
            let need = self.length(i, rows).unwrap_or(0);
            if *len < need {
                return Err(format!(
                    "result {i} of a kernel has room for {len} numbers, {need} are needed"
                ));
            }
        }
        Ok(())
    }

    /// # Safety
    /// Operands and results must be as long as [`Compiled::check`] wants.
    unsafe fn call(
        &self,
        threads: &Threads,
        rows: usize,
        inputs: &[Operand],
        outputs: &[(*mut f32, usize)],
        maps: &[&[u32]],
    ) {
        let chunks = rows.div_ceil(CHUNK);
        // Sums over rows: one row of lanes per chunk, or one number per row, added up at the end.
        let mut partial: Vec<Vec<f32>> = self
            .outputs
            .iter()
            .map(|o| match o {
                (Output::Store, _) => vec![],
                (_, true) => vec![0.0; chunks * self.lanes],
                (_, false) => vec![0.0; rows],
            })
            .collect();
        let mut args: Vec<*const u8> = inputs.iter().map(|x| x.data.as_ptr().cast()).collect();
        let by_segment = inputs
            .iter()
            .zip(&self.inputs)
            .filter(|(_, (row, _))| matches!(row, RowIndex::Segment { .. }));
        args.extend(by_segment.map(|(x, _)| x.map.as_ptr().cast::<u8>()));
        let first = args.len();
        let places = self.outputs.iter().zip(outputs).zip(&mut partial);
        args.extend(places.map(|(((how, _), out), part)| match how {
            Output::Store => out.0.cast::<u8>().cast_const(),
            _ => part.as_mut_ptr().cast::<u8>().cast_const(),
        }));
        let args = Address(args);
        let args = &args;
        let summed = self.outputs.iter().any(|(o, lane)| *lane && *o == Output::SumRows);
        let step = if threads.count() > 1 && rows * self.weight > SMALL {
            rows.div_ceil(4 * threads.count()).next_multiple_of(CHUNK)
        } else {
            rows.max(1)
        };
        threads.each(rows.div_ceil(step), |i| {
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.resize(scratch.len().max(self.scratch), 0.0);
                let (start, end) = (i * step, rows.min((i + 1) * step));
                let mut run = |start: usize, end: usize| {
                    let mut args = args.0.clone();
                    for (o, (how, lane)) in self.outputs.iter().enumerate() {
                        if *lane && *how == Output::SumRows {
                            let skip = 4 * (start / CHUNK) * self.lanes;
                            args[first + o] = args[first + o].wrapping_add(skip);
                        }
                    }
                    // Flat code counts numbers, other code rows.
                    let unit = if self.flat { self.lanes } else { 1 };
                    let (from, to) = ((start * unit) as i64, (end * unit) as i64);
                    // SAFETY: all addresses are valid for the rows of this call, by this function's contract; rows of
                    // different tasks are disjoint.
                    unsafe { (self.code)(args.as_ptr(), from, to, scratch.as_mut_ptr()) };
                };
                if summed {
                    (start..end).step_by(CHUNK).for_each(|s| run(s, end.min(s + CHUNK)));
                } else {
                    run(start, end);
                }
            });
        });
        for (((how, lane), out), (part, map)) in
            self.outputs.iter().zip(outputs).zip(partial.iter().zip(maps))
        {
            if *how != Output::Store {
                // SAFETY: the address and length are those of the caller's result.
                let out = unsafe { std::slice::from_raw_parts_mut(out.0, out.1) };
                finish(how, *lane, part, self.lanes, rows, map, out);
            }
        }
    }
}

/// Adds partial sums up, in order.
fn finish(
    how: &Output,
    lane: bool,
    part: &[f32],
    lanes: usize,
    rows: usize,
    map: &[u32],
    out: &mut [f32],
) {
    out.fill(0.0);
    match how {
        Output::Store => {}
        Output::SumRows if lane => {
            for chunk in part.chunks_exact(lanes) {
                out.iter_mut().zip(chunk).for_each(|(o, x)| *o += x);
            }
        }
        Output::SumRows => {
            for chunk in part.chunks(CHUNK) {
                out[0] += chunk.iter().sum::<f32>();
            }
        }
        Output::SumSegments { .. } => {
            let div = if map.is_empty() { 1 } else { (rows / map.len()).max(1) };
            for (r, x) in part.iter().enumerate() {
                if let Some(o) = map.get(r / div).and_then(|s| out.get_mut(*s as usize)) {
                    *o += x;
                }
            }
        }
    }
}
