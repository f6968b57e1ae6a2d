//! Fused kernels as machine code.
//!
//! In: a [`Kernel`]. Out: a [`Compiled`] function that runs it over any number of rows. The code depends on the
//! kernel's instructions, accesses and number of lanes, never on the number of rows, so the number of functions is
//! fixed when planning. One [`Jit`] serves all ranks of a process.

mod emit;
mod math;
mod run;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use cranelift_codegen::ir::types::{F32, I64};
use cranelift_codegen::ir::{AbiParam, FuncRef, Signature};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, default_libcall_names};
use nrl_ir::Dims;
use nrl_ir::kernel::{Kernel, RowIndex};

pub use run::{Compiled, Operand, Place};

/// `(args, first row, end row, scratch)`; `args` are the addresses of inputs, segment maps and outputs.
type Code = unsafe extern "C" fn(*const *const u8, i64, i64, *mut f32);

/// Compiles kernels, each once.
pub struct Jit {
    state: Mutex<State>,
}

struct State {
    module: JITModule,
    pow: FuncId,
    fma: bool,
    ready: HashMap<String, Arc<Compiled>>,
}

extern "C" fn pow(x: f32, y: f32) -> f32 {
    f64::from(x).powf(f64::from(y)) as f32
}

impl Jit {
    /// A compiler for this machine; the error says why there is none.
    pub fn new() -> Result<Jit, String> {
        let mut flags = settings::builder();
        let checked = if cfg!(debug_assertions) { "true" } else { "false" };
        let options = [
            ("use_colocated_libcalls", "false"),
            ("is_pic", "false"),
            ("opt_level", "speed"),
            ("enable_verifier", checked),
            ("unwind_info", "false"),
        ];
        for (name, value) in options {
            flags.set(name, value).map_err(|e| e.to_string())?;
        }
        let native = cranelift_native::builder()?;
        let isa = native.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())?;
        let fma = isa
            .isa_flags()
            .iter()
            .find(|f| f.name == "has_fma")
            .map_or(cfg!(target_arch = "aarch64"), |f| f.as_bool() == Some(true));
        let mut builder = JITBuilder::with_isa(isa, default_libcall_names());
        builder.symbol("pow", pow as *const u8);
        let mut module = JITModule::new(builder);
        let mut sig = module.make_signature();
        sig.params = vec![AbiParam::new(F32); 2];
        sig.returns = vec![AbiParam::new(F32)];
        let pow =
            module.declare_function("pow", Linkage::Import, &sig).map_err(|e| e.to_string())?;
        Ok(Jit { state: Mutex::new(State { module, pow, fma, ready: HashMap::new() }) })
    }

    /// The code of `kernel`, whose lanes have the sizes in `dims`.
    pub fn get(&self, kernel: &Kernel, dims: &Dims) -> Result<Arc<Compiled>, String> {
        let sizes: Option<Vec<usize>> = kernel.lanes.iter().map(|d| dims.size(*d)).collect();
        let lanes: usize =
            sizes.ok_or("the lanes of a kernel have no fixed size")?.iter().product();
        check(kernel)?;
        let key = key(kernel, lanes);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(done) = state.ready.get(&key) {
            return Ok(done.clone());
        }
        let done = Arc::new(state.compile(kernel, lanes)?);
        state.ready.insert(key, done.clone());
        Ok(done)
    }

    /// How many kernels have been compiled.
    pub fn kernels(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ready.len()
    }
}

/// Everything the code depends on.
fn key(k: &Kernel, lanes: usize) -> String {
    let mut key = format!("{lanes} {}", k.lanes.is_empty());
    for a in &k.inputs {
        let _ = match a.row {
            RowIndex::None => write!(key, " none {}", a.lanes),
            RowIndex::Row { div, modulo } => write!(key, " row {div} {modulo} {}", a.lanes),
            RowIndex::Segment { div, .. } => write!(key, " seg {div} {}", a.lanes),
        };
    }
    let _ = write!(key, "{:?}", k.code);
    for (i, o) in &k.outputs {
        let _ = match o {
            nrl_ir::kernel::Output::Store => write!(key, " {i} store"),
            nrl_ir::kernel::Output::SumRows => write!(key, " {i} rows"),
            nrl_ir::kernel::Output::SumSegments { .. } => write!(key, " {i} segments"),
        };
    }
    key
}

/// Refuses kernels that refer to what they lack.
fn check(k: &Kernel) -> Result<(), String> {
    use nrl_ir::kernel::Instr;
    for (at, instr) in k.code.iter().enumerate() {
        let fine = match instr {
            Instr::Load { input } => *input < k.inputs.len(),
            Instr::Const { .. } => true,
            Instr::Unary { x, .. } | Instr::RoundBf16 { x } | Instr::Lanes { x, .. } => *x < at,
            Instr::Binary { a, b, .. } => *a < at && *b < at,
            Instr::Select { cond, a, b } => *cond < at && *a < at && *b < at,
        };
        if !fine {
            return Err(format!("instruction {at} of a kernel reads what is not there"));
        }
    }
    let fine = k.outputs.iter().all(|(i, _)| *i < k.code.len());
    let divides = |a: &nrl_ir::kernel::Access| match a.row {
        RowIndex::None => true,
        RowIndex::Row { div, .. } | RowIndex::Segment { div, .. } => div > 0,
    };
    if fine && k.inputs.iter().all(divides) {
        Ok(())
    } else {
        Err("a kernel's outputs or accesses are not valid".into())
    }
}

impl State {
    fn compile(&mut self, kernel: &Kernel, lanes: usize) -> Result<Compiled, String> {
        let form = emit::Form::new(kernel, lanes);
        let mut sig: Signature = self.module.make_signature();
        sig.params = vec![AbiParam::new(I64); 4];
        let name = format!("kernel{}", self.ready.len());
        let id =
            self.module.declare_function(&name, Linkage::Local, &sig).map_err(|e| e.to_string())?;
        let mut ctx = self.module.make_context();
        ctx.func.signature = sig;
        let pow: FuncRef = self.module.declare_func_in_func(self.pow, &mut ctx.func);
        let mut frontend = FunctionBuilderContext::new();
        let mut builder = FunctionBuilder::new(&mut ctx.func, &mut frontend);
        emit::Emit::function(kernel, &form, &mut builder, self.fma, pow);
        builder.finalize(self.module.target_config());
        self.module.define_function(id, &mut ctx).map_err(|e| format!("{e:?}"))?;
        self.module.finalize_definitions().map_err(|e| e.to_string())?;
        let address = self.module.get_finalized_function(id);
        // SAFETY: the code was emitted with exactly this signature, and the module is never freed.
        let code = unsafe { std::mem::transmute::<*const u8, Code>(address) };
        Ok(Compiled::new(code, kernel, &form))
    }
}

#[cfg(test)]
mod tests;
