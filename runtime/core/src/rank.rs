//! The ranks of a run: one thread each, told by the driver thread what to do.
//!
//! In: a [`Compiled`] program, an engine, and jobs. A job is one closure that every rank runs on its own [`Worker`]
//! (single program, multiple data): a whole generation or a whole update, so that messages are few. Out: one result per
//! rank. The first failure stops all ranks and is the one error that comes out; no wait is without a deadline.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nrl_ir::mesh::Mesh;
use nrl_ir::plan::{ParamLayout, Plan};
use nrl_ir::program::Program;

use crate::comm::{Rank, World};
use crate::engine::{Comm, Device, Engine, KvCache, ParamStore, Prepared};
use crate::run::error::{Outcome, RunError};
use crate::run::optimizer::OptimizerState;

/// What the compiler hands over: a program and, for each of its graphs, the plan of the same index.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    pub program: Program,
    pub plans: Vec<Arc<Plan>>,
}

impl Compiled {
    /// The number of ranks that the largest mesh asks for.
    pub fn ranks(&self) -> usize {
        let meshes =
            self.program.meshes.iter().map(|(_, m)| m).chain(self.plans.iter().map(|p| &p.mesh));
        meshes.map(Mesh::ranks).max().unwrap_or(1).max(1)
    }
}

/// How long one rank waits for another inside a collective.
const COMM_DEADLINE: Duration = Duration::from_secs(600);
/// How long the driver waits for the slowest rank of one job.
const JOB_DEADLINE: Duration = Duration::from_secs(6 * 3600);

/// What one rank owns.
pub struct Worker {
    pub rank: Rank,
    pub device: Box<dyn Device>,
    pub setup: Arc<Compiled>,
    /// Weights per model; empty before they are loaded.
    pub stores: Vec<ParamStore>,
    /// State per optimizer; `None` before its first update.
    pub optimizers: Vec<Option<OptimizerState>>,
    /// Weights in another layout than the model's own, per generator whose plan asks for it.
    pub views: Vec<Option<ParamStore>>,
    /// Cache per generator.
    pub caches: Vec<Option<KvCache>>,
    comms: Vec<(Mesh, Arc<Comm>)>,
    prepared: Vec<Option<Prepared>>,
}

impl Worker {
    fn new(rank: Rank, device: Box<dyn Device>, setup: Arc<Compiled>) -> Worker {
        let program = &setup.program;
        Worker {
            stores: program.models.iter().map(|_| ParamStore::default()).collect(),
            optimizers: program.optimizers.iter().map(|_| None).collect(),
            views: program.generators.iter().map(|_| None).collect(),
            caches: program.generators.iter().map(|_| None).collect(),
            comms: vec![],
            prepared: vec![None; program.graphs.len()],
            rank,
            device,
            setup,
        }
    }

    /// This rank's place in `mesh`; `None` if it has none.
    pub fn comm(&mut self, mesh: &Mesh) -> Outcome<Option<Arc<Comm>>> {
        if self.rank.rank() >= mesh.ranks() {
            return Ok(None);
        }
        if let Some((_, comm)) = self.comms.iter().find(|(m, _)| m == mesh) {
            return Ok(Some(comm.clone()));
        }
        let comm = Arc::new(Comm::new(&self.rank, mesh)?);
        self.comms.push((mesh.clone(), comm.clone()));
        Ok(Some(comm))
    }

    /// Plan `graph`, prepared by this rank's device.
    pub fn prepare(&mut self, graph: usize) -> Outcome<Prepared> {
        if let Some(ready) = self.prepared[graph] {
            return Ok(ready);
        }
        let ready = self.device.prepare(&self.setup.plans[graph])?;
        self.prepared[graph] = Some(ready);
        Ok(ready)
    }
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The threads of all ranks.
pub struct Ranks {
    senders: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    world: World,
    deadline: Duration,
}

impl Ranks {
    /// Starts one thread per rank; cores are shared out evenly.
    pub fn start(setup: &Arc<Compiled>, engine: &dyn Engine) -> Outcome<Ranks> {
        let count = setup.ranks();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let world = World::new(count, COMM_DEADLINE);
        let mut ranks = Ranks { senders: vec![], threads: vec![], world, deadline: JOB_DEADLINE };
        for r in 0..count {
            let device = engine.device(r, count, (cores / count).max(1));
            let mut worker = Worker::new(ranks.world.rank(r), device, setup.clone());
            let (send, receive) = channel::<Job>();
            let thread = std::thread::Builder::new()
                .name(format!("rank-{r}"))
                .stack_size(16 << 20)
                .spawn(move || {
                    while let Ok(job) = receive.recv() {
                        job(&mut worker);
                    }
                });
            let thread = thread
                .map_err(|e| RunError::new("no-thread", format!("cannot start rank {r}: {e}")))?;
            ranks.senders.push(send);
            ranks.threads.push(thread);
        }
        Ok(ranks)
    }

    /// Number of ranks.
    pub fn count(&self) -> usize {
        self.senders.len()
    }

    /// Runs `job` on every rank; results in rank order.
    pub fn all<T: Send + 'static>(
        &self,
        job: impl Fn(&mut Worker) -> Outcome<T> + Send + Sync + 'static,
    ) -> Outcome<Vec<T>> {
        let job = Arc::new(job);
        let (send, receive) = channel();
        for r in 0..self.count() {
            let job = job.clone();
            self.send(r, send.clone(), move |w| job(w))?;
        }
        drop(send);
        self.collect(self.count(), &receive)
    }

    /// Runs `job` on one rank.
    pub fn one<T: Send + 'static>(
        &self,
        rank: usize,
        job: impl FnOnce(&mut Worker) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let (send, receive) = channel();
        self.send(rank, send, job)?;
        let mut results = self.collect(1, &receive)?;
        results.pop().ok_or_else(|| RunError::internal("a rank gave no result"))
    }

    fn send<T: Send + 'static>(
        &self,
        rank: usize,
        results: Sender<(usize, Outcome<T>)>,
        job: impl FnOnce(&mut Worker) -> Outcome<T> + Send + 'static,
    ) -> Outcome<()> {
        let job: Job = Box::new(move |worker| {
            let result = catch_unwind(AssertUnwindSafe(|| job(worker)));
            let result = result.unwrap_or_else(|cause| {
                Err(RunError::internal(format!("rank {rank} panicked: {}", text(&*cause))))
            });
            if let Err(e) = &result {
                worker.rank.stop(&e.message);
            }
            // The driver stops listening after the first failure.
            results.send((rank, result)).ok();
        });
        self.senders[rank]
            .send(job)
            .map_err(|_| RunError::internal(format!("rank {rank} has ended")))
    }

    fn collect<T>(&self, count: usize, receive: &Receiver<(usize, Outcome<T>)>) -> Outcome<Vec<T>> {
        let start = Instant::now();
        let mut results: Vec<(usize, T)> = Vec::with_capacity(count);
        let mut failed: Vec<(usize, RunError)> = vec![];
        while results.len() + failed.len() < count {
            let left = self.deadline.saturating_sub(start.elapsed());
            match receive.recv_timeout(left) {
                Ok((rank, Ok(value))) => results.push((rank, value)),
                Ok((rank, Err(e))) => failed.push((rank, e)),
                Err(RecvTimeoutError::Timeout) => {
                    let hours = self.deadline.as_secs_f64() / 3600.0;
                    return Err(RunError::new(
                        "rank-stuck",
                        format!("a rank has not answered for {hours:.1} h"),
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RunError::internal("a rank ended without a result"));
                }
            }
        }
        if failed.is_empty() {
            results.sort_by_key(|(rank, _)| *rank);
            return Ok(results.into_iter().map(|(_, value)| value).collect());
        }
        let first = self.world.failure().map(|(rank, _)| rank);
        let at = failed.iter().position(|(rank, _)| Some(*rank) == first).unwrap_or(0);
        Err(failed.swap_remove(at).1)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.senders.clear();
        // A rank that is stuck is left behind: the process is about to end.
        if self.world.failure().is_none() {
            for thread in self.threads.drain(..) {
                thread.join().ok();
            }
        }
    }
}

fn text(cause: &(dyn std::any::Any + Send)) -> &str {
    let plain = cause.downcast_ref::<&str>().copied();
    plain.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Axes of `mesh` that split no dim of any parameter: ranks along them hold the same weights and share out sequences.
pub fn free_axes(plan: &Plan) -> Vec<String> {
    let splits = |axis: &str| plan.params.iter().flat_map(|p| &p.dims).flatten().any(|a| a == axis);
    plan.mesh.axes.iter().filter(|a| !splits(&a.name)).map(|a| a.name.clone()).collect()
}

/// Axes over which every trained parameter's gradient is summed: the data-parallel axes of an update.
pub fn data_axes(plan: &Plan) -> Vec<String> {
    let free = free_axes(plan);
    let trained =
        |p: &&ParamLayout| plan.classes.first().is_none_or(|c| c.graph.param(p.param).trained);
    let summed = |axis: &String| {
        plan.params
            .iter()
            .filter(trained)
            .all(|p| p.pending.contains(axis) || p.flat.contains(axis))
    };
    free.into_iter().filter(|a| plan.mesh.size(a) == 1 || summed(a)).collect()
}
