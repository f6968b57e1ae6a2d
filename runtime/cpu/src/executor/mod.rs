//! The engine: prepares plans and runs them on a rank's weights.
//!
//! In: a [`Plan`] of one rank class, weights, bindings. Out: the graph's outputs; gradients are added to the store, keys
//! and values to the cache. Nodes run in the graph's order; values die after their last reader; weights and inputs are
//! read where they are.

mod along;
mod code;
mod counted;
mod index;
mod pool;
mod product;
mod ranks;
mod run;
mod sequence;
mod single;
mod states;
mod value;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use nrl_ir::Mesh;
use nrl_ir::plan::Plan;
use nrl_runtime::engine::{
    Bindings, Comm, Device, Engine, EngineError, HostTensor, KvCache, ParamStore, Prepared,
};

use crate::jit::Jit;
use crate::threads::Threads;
use code::Ready;
pub use counted::{Counted, Counter};
use pool::Pool;
use run::{Run, Tools};
use value::{Given, failed};

/// Numbers of a flat tensor that are worked on at a time.
const PIECE: usize = 1 << 15;

/// Makes cpu devices; all share one cache of compiled kernels.
pub struct CpuEngine {
    jit: Result<Arc<Jit>, String>,
    counter: Option<Counter>,
}

impl CpuEngine {
    pub fn new() -> CpuEngine {
        CpuEngine { jit: Jit::new().map(Arc::new), counter: None }
    }

    /// An engine whose devices count what they do, and the totals.
    pub fn counting() -> (CpuEngine, Counter) {
        let counter = Counter::default();
        (CpuEngine { counter: Some(counter.clone()), ..CpuEngine::new() }, counter)
    }
}

impl Default for CpuEngine {
    fn default() -> CpuEngine {
        CpuEngine::new()
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device(&self, _rank: usize, _ranks: usize, threads: usize) -> Box<dyn Device> {
        Box::new(CpuDevice {
            jit: self.jit.clone(),
            tools: Tools {
                threads: Threads::new(threads),
                pool: Pool::default(),
                ropes: HashMap::new(),
                piece: vec![],
                counter: self.counter.clone(),
                multiplied: 0,
            },
            ready: vec![],
        })
    }
}

struct CpuDevice {
    jit: Result<Arc<Jit>, String>,
    tools: Tools,
    ready: Vec<Arc<Ready>>,
}

impl CpuDevice {
    fn ready(&self, plan: Prepared) -> Result<Arc<Ready>, EngineError> {
        match self.ready.get(plan.0) {
            Some(r) => Ok(r.clone()),
            None => failed("the plan was not prepared on this device"),
        }
    }
}

impl Device for CpuDevice {
    fn prepare(&mut self, plan: &Arc<Plan>) -> Result<Prepared, EngineError> {
        if let Some(i) = self.ready.iter().position(|r| Arc::ptr_eq(&r.plan, plan)) {
            return Ok(Prepared(i));
        }
        let jit = self.jit.as_ref().map_err(|e| EngineError::Unsupported(e.clone()))?;
        self.ready.push(Arc::new(code::ready(jit, plan)?));
        Ok(Prepared(self.ready.len() - 1))
    }

    fn run(
        &mut self,
        plan: Prepared,
        store: &mut ParamStore,
        cache: Option<&mut KvCache>,
        bind: &Bindings,
        comm: &Comm,
    ) -> Result<Vec<HostTensor>, EngineError> {
        let ready = self.ready(plan)?;
        let inputs = bind.inputs.iter().map(Given::of).collect();
        let mut run = Run::new(&ready, &mut self.tools, store, cache, bind, inputs, comm, None)?;
        run.block(&ready.graph().body, &ready.code)?;
        ready.graph().body.results.iter().map(|v| run.output(*v)).collect()
    }

    fn run_flat(
        &mut self,
        plan: Prepared,
        names: &[&str],
        tensors: &mut [&mut [f32]],
        scalars: &[(&str, f32)],
    ) -> Result<(), EngineError> {
        let ready = self.ready(plan)?;
        let g = ready.graph();
        if !ready.flat {
            return Err(EngineError::Unsupported(format!(
                "`{}` is not pointwise over flat weights",
                g.name
            )));
        }
        let len = tensors.first().map_or(0, |t| t.len());
        if names.len() != tensors.len() || tensors.iter().any(|t| t.len() != len) {
            return failed(format!("`{}` was given flat tensors of unlike lengths", g.name));
        }
        let place = |name: &str| names.iter().position(|n| *n == name);
        let mut targets = vec![];
        for name in &g.outputs {
            match place(name) {
                Some(t) => targets.push(t),
                None => return failed(format!("output `{name}` of `{}` has no tensor", g.name)),
            }
        }
        let comm = Comm::new(&alone(), &Mesh::default())?;
        let (mut store, bind) = (ParamStore::default(), Bindings::default());
        let piece = PIECE * self.tools.threads.count();
        for at in (0..len).step_by(piece) {
            let range = at..len.min(at + piece);
            let mut inputs = vec![];
            for input in &g.inputs {
                let scalar = scalars.iter().find(|(n, _)| *n == input.name);
                inputs.push(match (place(&input.name), scalar) {
                    (Some(t), _) => Given::F32(&tensors[t][range.clone()]),
                    (None, Some((_, x))) => Given::F32(std::slice::from_ref(x)),
                    (None, None) => {
                        return failed(format!(
                            "input `{}` of `{}` is not given",
                            input.name, g.name
                        ));
                    }
                });
            }
            let mut run = Run::new(
                &ready,
                &mut self.tools,
                &mut store,
                None,
                &bind,
                inputs,
                &comm,
                Some(range.len()),
            )?;
            run.block(&g.body, &ready.code)?;
            let results: Vec<pool::Buffer> =
                g.body.results.iter().map(|v| run.owned(*v)).collect::<Result<_, _>>()?;
            drop(run);
            for (t, result) in targets.iter().zip(&results) {
                let into = &mut tensors[*t][range.clone()];
                match result.len() {
                    1 => into.fill(result[0]),
                    _ => into.copy_from_slice(result),
                }
            }
        }
        Ok(())
    }
}

/// The only rank of a world of one.
fn alone() -> nrl_runtime::comm::Rank {
    nrl_runtime::comm::World::new(1, std::time::Duration::from_secs(1)).rank(0)
}
