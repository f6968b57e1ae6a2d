//! Completions of prompts, drawn by continuous batching from the model that is being trained.
//!
//! In: prompts, sampling options, this rank's weights. Out: this rank's samples with per-token log-probabilities under
//! the distribution they were drawn from. Ranks along axes that split weights draw the same samples; along all others
//! each takes whole prompts. Noise is keyed by (seed, step, sample, position), so slots, ranks and batch order do not
//! matter. Tokens the tokenizer lacks are never drawn (padded vocabularies).

pub mod batch;
pub mod schedule;
pub mod stop;

use std::sync::Arc;

use nrl_ir::graph::Graph;
use nrl_ir::op::Op;
use nrl_ir::plan::{ParamLayout, Plan};
use nrl_ir::program::Sampling as Options;

use crate::comm::Reduce;
use crate::engine::{Bindings, Comm, HostTensor, KvCache, ParamStore};
use crate::rank::{Worker, free_axes};
use crate::rng::Stream;
use crate::rollout::batch::{Prompt, Sample};
use crate::rollout::schedule::{Feed, Limits, Schedule};
use crate::rollout::stop::Stop;
use crate::run::error::{Outcome, RunError};
use crate::sampling::{Draw, Sampling, Scratch};
use crate::text::Text;

/// Called with each token as it is drawn: sample and token.
pub type OnToken = Arc<dyn Fn(usize, u32) + Send + Sync>;

/// What to draw.
#[derive(Clone)]
pub struct Job {
    pub generator: usize,
    pub prompts: Arc<Vec<Arc<Prompt>>>,
    /// Samples of each prompt.
    pub copies: usize,
    /// Cut to what the context leaves.
    pub max_new: Option<usize>,
    pub options: Options,
    /// Noise of sample `i` is that of child `i`.
    pub stream: Stream,
    pub text: Arc<Text>,
    pub on_token: Option<OnToken>,
}

/// What one rank drew.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawn {
    /// Its samples, sorted; empty on ranks that repeat another's work.
    pub samples: Vec<Sample>,
    /// Prompts for which the context left less than `max_new`.
    pub capped: usize,
}

/// Draws this rank's share of a job.
pub fn generate(w: &mut Worker, job: &Job) -> Outcome<Drawn> {
    let setup = w.setup.clone();
    let generator = &setup.program.generators[job.generator];
    let model = &setup.program.models[generator.model];
    let plan = setup.plans[generator.graph].clone();
    let Some(comm) = w.comm(&plan.mesh)? else { return Ok(Drawn::default()) };
    let graph =
        &plan.classes.first().ok_or_else(|| RunError::internal("a plan without ranks"))?.graph;
    let free = free_axes(&plan);
    let (at, of) = (comm.coord(&free), comm.mesh().size_over(&free));
    let total = job.prompts.len();
    let mine = total * at / of..total * (at + 1) / of;

    let longest = job.prompts[mine.clone()].iter().map(|p| p.ids.len()).max().unwrap_or(0);
    if let Some(p) = job.prompts.iter().find(|p| p.ids.is_empty() || p.ids.len() >= model.context) {
        return Err(prompt_error(p, "row", model.context));
    }
    let room = job.max_new.map_or(model.context, |n| (longest + n).min(model.context));
    let limits = limits(graph, generator.slots, mine.len() * job.copies);
    reserve(w, job.generator, graph, limits.slots, room);

    let sampling = Sampling {
        temperature: job.options.temperature as f32,
        top_k: job.options.top_k,
        top_p: job.options.top_p.map(|p| p as f32),
    };
    let (store, viewed) = match w.views[job.generator].take() {
        Some(view) => (view, true),
        None => (std::mem::take(&mut w.stores[generator.model]), false),
    };
    let mut rollout = Rollout {
        job,
        sampling,
        stop: Stop::new(&job.text, &job.options.stop_ids, &job.options.stop),
        context: model.context,
        prompts: &job.prompts[mine.clone()],
        samples: vec![],
        streams: vec![],
        scratch: Scratch::default(),
        graph,
        sync: sync_axes(&plan),
        comm,
        store,
    };
    let result = rollout.run(w, mine.start, limits);
    let Rollout { samples, store, comm, .. } = rollout;
    match viewed {
        true => w.views[job.generator] = Some(store),
        false => w.stores[generator.model] = store,
    }
    result?;
    if !is_first(&comm, &free) {
        return Ok(Drawn::default());
    }
    let capped = |p: &&Arc<Prompt>| job.max_new.is_some_and(|n| p.ids.len() + n > model.context);
    Ok(Drawn { samples, capped: job.prompts[mine].iter().filter(capped).count() })
}

/// Is this rank the first of those that share `axes`' coordinates, so that its results count?
pub fn is_first(comm: &Comm, axes: &[String]) -> bool {
    let mesh = comm.mesh();
    mesh.axes.iter().all(|a| axes.contains(&a.name) || mesh.coord(comm.rank(), &a.name) == 0)
}

/// A prompt that leaves no room, or is no prompt; `unit` is what its data set counts.
pub fn prompt_error(p: &Prompt, unit: &str, context: usize) -> RunError {
    let (at, n) = (p.number + 1, p.ids.len());
    if n == 0 {
        return RunError::new("empty-prompt", format!("the prompt of {unit} {at} has no tokens"));
    }
    RunError::new(
        "prompt-fills-context",
        format!(
            "the prompt of {unit} {at} has {n} tokens and the context {context}, which leaves none to generate"
        ),
    )
    .help(format!("add `| at_most({} tokens, else: drop)` to the data, or raise `context`", context / 2))
}

/// One rank's generation.
struct Rollout<'a> {
    job: &'a Job,
    sampling: Sampling,
    stop: Stop,
    context: usize,
    /// This rank's prompts.
    prompts: &'a [Arc<Prompt>],
    samples: Vec<Sample>,
    streams: Vec<Stream>,
    scratch: Scratch,
    graph: &'a Graph,
    /// Axes along which every rank must run as often as the others.
    sync: Vec<String>,
    comm: Arc<Comm>,
    store: ParamStore,
}

impl Rollout<'_> {
    fn run(&mut self, w: &mut Worker, first: usize, limits: Limits) -> Outcome<()> {
        let setup = w.setup.clone();
        let plan = w.prepare(setup.program.generators[self.job.generator].graph)?;
        self.start(first);
        let prompts = self.prompts;
        let mut schedule =
            Schedule::new(prompts.iter().map(|p| &p.ids[..]), self.job.copies, limits);
        let mut cache = w.caches[self.job.generator].take().unwrap_or_default();
        loop {
            let feed = schedule.next_feed();
            if !self.anyone(feed.is_some())? {
                break;
            }
            // Others still have work that this rank must take part in.
            let feed = feed.unwrap_or_default();
            let bind = bind(self.graph, &feed)?;
            let outputs =
                w.device.run(plan, &mut self.store, Some(&mut cache), &bind, &self.comm)?;
            let Some(HostTensor::F32(logits)) = outputs.into_iter().next() else {
                return Err(RunError::internal("a generator without logits"));
            };
            let next = self.draw(&feed, logits)?;
            copy_prompts(&mut cache, &feed, &next);
            schedule.drawn(&feed, next.into_iter());
        }
        w.caches[self.job.generator] = Some(cache);
        for s in &mut self.samples {
            s.text = self.stop.text(&self.job.text, &s.ids);
        }
        Ok(())
    }

    fn start(&mut self, first: usize) {
        let copies = self.job.copies;
        for i in 0..self.prompts.len() {
            for copy in 0..copies {
                let prompt = first + i;
                self.samples.push(Sample { prompt, copy, ..Sample::default() });
                self.streams.push(self.job.stream.child((prompt * copies + copy) as u64));
            }
        }
    }

    /// Does any rank of the ones that run in step with this one have work?
    fn anyone(&self, mine: bool) -> Outcome<bool> {
        let Some(group) = self.comm.along(&self.sync) else { return Ok(mine) };
        let mut flag = [u32::from(mine)];
        group.all_reduce(&mut flag, Reduce::Max)?;
        Ok(flag[0] > 0)
    }

    /// Draws for every row; per draw the token to feed next, or `None` where the sample has ended.
    fn draw(&mut self, feed: &Feed, mut logits: Vec<f32>) -> Outcome<Vec<Option<u32>>> {
        let rows = feed.pieces.iter().filter(|p| !p.draws.is_empty()).count();
        if rows == 0 {
            return Ok(vec![]);
        }
        let (width, words) = (logits.len() / rows, self.job.text.len());
        if width < words {
            return Err(RunError::internal(format!(
                "logits of {width} tokens for a tokenizer of {words}"
            )));
        }
        let mut next = vec![];
        for (piece, row) in
            feed.pieces.iter().filter(|p| !p.draws.is_empty()).zip(logits.chunks_exact_mut(width))
        {
            row[words..].fill(f32::NEG_INFINITY);
            // All draws of a row are equally far: a prompt's first, or one sample's next.
            let drawn = piece.draws.first().map_or(0, |(s, _)| self.samples[*s].ids.len());
            if drawn < self.job.options.min_new {
                self.stop.mask(row);
            }
            let position = u64::from(piece.base) + piece.ids.len() as u64;
            for &(sample, _) in &piece.draws {
                let draw =
                    self.sampling.draw(row, &self.streams[sample], position, &mut self.scratch)?;
                next.push(self.take(sample, draw));
            }
        }
        Ok(next)
    }

    fn take(&mut self, sample: usize, draw: Draw) -> Option<u32> {
        let room = self.context - self.prompts[sample / self.job.copies].ids.len();
        let most = self.job.max_new.map_or(room, |n| n.min(room));
        let s = &mut self.samples[sample];
        // An answer of no tokens at all is legal.
        if most == 0 {
            return None;
        }
        s.ids.push(draw.id);
        s.logprobs.push(draw.logprob);
        s.entropies.push(draw.entropy);
        if let Some(tell) = &self.job.on_token {
            tell(sample, draw.id);
        }
        s.finished = self.stop.ends(&self.job.text, &s.ids);
        (!s.finished && s.ids.len() < most).then_some(draw.id)
    }
}

/// Copies of a prompt continue from its one prefill.
fn copy_prompts(cache: &mut KvCache, feed: &Feed, next: &[Option<u32>]) {
    if !feed.prefill {
        return;
    }
    let mut next = next.iter();
    for piece in &feed.pieces {
        for &(_, slot) in &piece.draws {
            if next.next().is_some_and(Option::is_some) && slot != piece.slot {
                cache.copy_slot(
                    piece.slot as usize,
                    slot as usize,
                    piece.base as usize + piece.ids.len(),
                );
            }
        }
    }
}

/// Bindings of one run: inputs `ids` and `last`, offsets of `tok`, `seq` and `row`.
fn bind(graph: &Graph, feed: &Feed) -> Outcome<Bindings> {
    let pieces = &feed.pieces;
    let mut offsets = vec![0u32];
    for p in pieces {
        offsets.push(offsets[offsets.len() - 1] + p.ids.len() as u32);
    }
    let last: Vec<u32> = pieces
        .iter()
        .zip(&offsets[1..])
        .filter(|(p, _)| !p.draws.is_empty())
        .map(|(_, end)| end - 1)
        .collect();
    let mut bind = Bindings {
        bases: pieces.iter().map(|p| p.base).collect(),
        slots: pieces.iter().map(|p| p.slot).collect(),
        ..Bindings::default()
    };
    for (id, dim) in graph.dims.iter().filter(|(id, _)| graph.dims.is_ragged(*id)) {
        let count = pieces.len() as u32;
        let offsets = match dim.name.as_str() {
            "tok" => offsets.clone(),
            "row" => vec![0, last.len() as u32],
            "seq" if graph.dims.owner(id).is_some() => (0..=count).collect(),
            "seq" | "group" => vec![0, count],
            // A dim that no value has needs no count.
            _ => continue,
        };
        bind.offsets.insert(id, offsets);
    }
    for input in &graph.inputs {
        bind.inputs.push(HostTensor::Id(match input.name.as_str() {
            "ids" => pieces.iter().flat_map(|p| &p.ids).copied().collect(),
            "last" => last.clone(),
            other => {
                return Err(RunError::internal(format!("a generator with the input `{other}`")));
            }
        }));
    }
    Ok(bind)
}

/// Bounds of one run, and as many slots as this job can use.
fn limits(graph: &Graph, slots: usize, samples: usize) -> Limits {
    let bound =
        |name: &str| graph.dims.find(name).map_or(usize::MAX, |d| graph.dims.bound(d)).max(1);
    Limits {
        tokens: bound("tok"),
        sequences: bound("seq").min(bound("row")),
        slots: slots.min(samples).max(1),
    }
}

/// Makes a cache of at least `slots` sequences of `context` tokens.
fn reserve(w: &mut Worker, generator: usize, graph: &Graph, slots: usize, context: usize) {
    let context = context.max(1).next_multiple_of(16);
    if w.caches[generator].as_ref().is_some_and(|c| c.slots >= slots && c.context >= context) {
        return;
    }
    // The old one goes first: both may not fit.
    let (slots, context) = w.caches[generator]
        .take()
        .map_or((slots, context), |c| (slots.max(c.slots), context.max(c.context)));
    let (layers, width) = cache_shape(graph);
    w.caches[generator] = Some(KvCache::new(layers, slots, context, width));
}

/// Layers with a cache, and this rank's numbers per token in each.
fn cache_shape(graph: &Graph) -> (usize, usize) {
    fn count(graph: &Graph, block: &nrl_ir::Block, times: usize, found: &mut (usize, usize)) {
        for node in &block.nodes {
            match &node.op {
                Op::Scan { scan } => count(graph, &scan.body, times * scan.count, found),
                Op::AttentionCached { attn } => {
                    found.0 += times;
                    found.1 = found.1.max(graph.dims.bound(attn.kv) * graph.dims.bound(attn.hd));
                }
                _ => {}
            }
        }
    }
    let mut found = (0, 0);
    count(graph, &graph.body, 1, &mut found);
    found
}

/// Axes along which weights are gathered during a run, so that all their ranks must run equally often.
fn sync_axes(plan: &Plan) -> Vec<String> {
    let mut axes: Vec<String> =
        plan.params.iter().flat_map(|p: &ParamLayout| &p.flat).cloned().collect();
    axes.sort();
    axes.dedup();
    axes
}
