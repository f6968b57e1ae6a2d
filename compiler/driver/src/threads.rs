//! What a step takes where ranks are threads of this process: the engine that `nrlc run` uses.
//!
//! In: a compiled program, what was measured of this machine and seen of its data. Out: per stage, under the name that the
//! metrics of a run have for it, passes at their real sizes and what the host does beside them; and the forecast made of
//! them. Sizes follow the runtime: prompts are prefilled once for their group, sequences are fed without their last token,
//! micro-batches fill up to their budget.

mod forecast;
mod lengths;

use nrl_ir::plan::Plan;
use nrl_ir::program::{Binding, Source as Rows, Stage};
use nrl_ir::{Graph, Mesh};
use nrl_sim::forecast::Kind;
use nrl_sim::generate::Generated;
use nrl_sim::threads::Chore;
use nrl_sim::train::{Job, Update};
use nrl_sim::work::{Sizes, Work};
use nrl_sim::{Precision, machine, per_token};

use crate::forecast::{checkpoint_bytes, evaluated};
use crate::{Assume, Compiled};

pub(crate) use forecast::forecast;
use lengths::Lengths;
pub use lengths::Seen;

/// A stage as threads do it.
#[derive(Clone, Debug)]
pub struct Task {
    /// As in the metrics of a run: `generate`, `update`.
    pub stage: &'static str,
    pub kind: Kind,
    /// `update policy`.
    pub name: String,
    pub origin: Option<(u32, u32, u32)>,
    pub model: Option<usize>,
    pub mesh: usize,
    /// The reward that it waits for, by index.
    pub reward: Option<usize>,
    pub chore: Chore,
    /// Micro-batches of an update or a pass on one rank, and tokens in each.
    pub micro: usize,
    pub micro_tokens: f64,
    pub generated: Option<Generated>,
    /// Share by which the lengths of its samples may be off.
    pub spread: f64,
}

/// Are all ranks of the program threads of this process?
pub fn on_threads(c: &Compiled) -> bool {
    let gpu = |m: &nrl_lower::facts::MeshFacts| {
        m.cluster.and_then(|i| c.facts.clusters.get(i)).is_some_and(|x| x.device.gpu)
    };
    !c.facts.meshes.iter().any(gpu)
}

/// Ranks of the largest mesh.
pub fn ranks(c: &Compiled) -> usize {
    c.program.meshes.iter().map(|(_, m)| m.ranks()).max().unwrap_or(1).max(1)
}

/// The stages of a list, in order. Stages that share the run of a graph are one.
pub fn tasks(c: &Compiled, assume: &Assume, list: &[Binding]) -> Vec<Task> {
    let mut out = vec![];
    let mut ran = vec![];
    for b in list {
        if let Stage::Compute { graph, .. } | Stage::Forward { graph, .. } = &b.stage {
            if ran.contains(graph) {
                continue;
            }
            ran.push(*graph);
        }
        out.extend(Cast { c, assume }.task(list, b));
    }
    out
}

/// The samples of a stage.
struct Samples {
    /// All ranks together, and those of one prompt.
    count: f64,
    copies: f64,
    lengths: Lengths,
}

struct Cast<'a> {
    c: &'a Compiled,
    assume: &'a Assume,
}

impl Cast<'_> {
    fn task(&self, list: &[Binding], b: &Binding) -> Option<Task> {
        let program = &self.c.program;
        let one = |stage, kind, name: String, mesh, model| Task {
            stage,
            kind,
            name,
            origin: b.origin,
            model,
            // What runs on no mesh of its own stands with the first model.
            mesh: if model.is_some() { mesh } else { program.models.first().map_or(0, |m| m.mesh) },
            reward: None,
            chore: Chore::default(),
            micro: 1,
            micro_tokens: 0.0,
            generated: None,
            spread: 0.0,
        };
        match &b.stage {
            Stage::Take { data, count, .. } => {
                let made = matches!(program.data[*data].source, Rows::Made { .. });
                let mut t =
                    one("data", Kind::Other, format!("read {}", program.data[*data].name), 0, None);
                t.chore.rewards = if made { *count as f64 } else { 0.0 };
                Some(t)
            }
            Stage::Generate { generator, .. } => {
                let g = &program.generators[*generator];
                let s = self.samples(list, b)?;
                let name = format!("sample by {}", g.name);
                let mut t = one("generate", Kind::Sample, name, g.mesh, Some(g.model));
                self.sampling(&mut t, *generator, &s);
                Some(t)
            }
            Stage::Reward { reward } => {
                let s = self.samples(list, b)?;
                let mut t =
                    one("reward", Kind::Other, format!("reward {}", self.reward(*reward)), 0, None);
                t.reward = Some(*reward);
                t.chore.rewards = s.count;
                Some(t)
            }
            Stage::Compute { graph, .. } => {
                let s = self.samples(list, b)?;
                let mut t = one("compute", Kind::Other, format!("compute {}", b.name), 0, None);
                let plan = &self.c.plans[*graph];
                let work = Work::of(plan, &self.sizes(&s, s.count), Precision::F32);
                t.chore.passes.push((pass(work, &Mesh::default(), 1, None), 1.0));
                (t.chore.jobs, t.chore.runs) = (1.0, 1.0);
                Some(t)
            }
            Stage::Forward { model, graph, tokens, .. } => {
                let s = self.samples(list, b)?;
                let m = &program.models[*model];
                let name = format!("score by {}", m.name);
                let mut t = one("logprob", Kind::Score, name, m.mesh, Some(*model));
                self.passes(&mut t, (*graph, *tokens), &s, s.count, 1.0, None);
                Some(t)
            }
            Stage::Update { model, graph, optimizer, updates, epochs, tokens, .. } => {
                let s = self.samples(list, b)?;
                let m = &program.models[*model];
                let name = format!("update {}", m.name);
                let mut t = one("update", Kind::Update, name, m.mesh, Some(*model));
                let count = s.count / (*updates).max(1) as f64;
                let times = (updates * epochs) as f64;
                self.passes(&mut t, (*graph, *tokens), &s, count, times, Some(*optimizer));
                Some(t)
            }
            Stage::Evaluate { generator, data, limit, copies, max_new, reward, .. } => {
                let g = &program.generators[*generator];
                let rows = evaluated(self.c, self.assume, *data, *limit)?;
                let most = max_new.unwrap_or(program.models[g.model].context);
                let lengths = lengths::of(self.c, self.assume, *data, Some(most), false);
                let s = Samples { count: rows * *copies as f64, copies: *copies as f64, lengths };
                let name = format!("evaluate {} by {}", b.name, self.reward(*reward));
                let mut t = one("evaluate", Kind::Sample, name, g.mesh, Some(g.model));
                self.sampling(&mut t, *generator, &s);
                t.chore.rewards = s.count;
                Some(t)
            }
            Stage::Checkpoint { .. } => {
                let mut t = one("checkpoint", Kind::Other, "checkpoint".into(), 0, None);
                t.chore.written = checkpoint_bytes(self.c);
                Some(t)
            }
            Stage::Collect { .. } => None,
        }
    }

    fn reward(&self, reward: usize) -> &str {
        &self.c.program.rewards[reward].name
    }

    /// The samples that a stage works on: those its arguments come from.
    fn samples(&self, list: &[Binding], b: &Binding) -> Option<Samples> {
        match &b.stage {
            Stage::Take { data, count, complete } => {
                let answers = self.c.program.data[*data].answers() as f64;
                let copies = if *complete { answers } else { 1.0 };
                let lengths = lengths::of(self.c, self.assume, *data, None, *complete);
                Some(Samples { count: *count as f64 * copies, copies, lengths })
            }
            Stage::Generate { generator, copies, max_new, .. } => {
                let (data, rows) = b.args.iter().find_map(|a| match list.get(*a)?.stage {
                    Stage::Take { data, count, .. } => Some((data, count)),
                    _ => None,
                })?;
                let model = self.c.program.generators[*generator].model;
                let most = max_new.unwrap_or(self.c.program.models[model].context);
                let lengths = lengths::of(self.c, self.assume, data, Some(most), false);
                Some(Samples { count: (rows * copies) as f64, copies: *copies as f64, lengths })
            }
            _ => b.args.iter().find_map(|a| self.samples(list, list.get(*a)?)),
        }
    }

    /// Sizes of a run over `count` samples, which are fed without their last token.
    fn sizes(&self, s: &Samples, count: f64) -> Sizes {
        let fed = (s.lengths.prompt + s.lengths.mean - 1.0).max(1.0);
        Sizes {
            tokens: count * fed,
            scored: count * s.lengths.mean,
            sequences: count,
            groups: (count / s.copies).max(1.0),
            context: (fed + 1.0) / 2.0,
        }
    }

    /// Passes over `count` samples by micro-batches, `times` times; updates if there is an optimizer.
    fn passes(
        &self,
        t: &mut Task,
        (graph, budget): (usize, usize),
        s: &Samples,
        count: f64,
        times: f64,
        optimizer: Option<usize>,
    ) {
        let plan = &self.c.plans[graph];
        let Some(class) = plan.classes.first() else { return };
        let per_rank = (count / free(plan)).max(1.0);
        let whole = self.sizes(s, per_rank);
        let bound = |name: &str| bound(&class.graph, name);
        let budget = (budget as f64).min(bound("tok"));
        let fit = (budget / (whole.tokens / per_rank)).floor().min(bound("seq")).max(1.0);
        let micro = (per_rank / fit).ceil().max(1.0);
        let sizes = self.sizes(s, per_rank / micro);
        let update = optimizer.map(|o| {
            // Gradient, weight and moments read; weight and moments written; the gradient cleared.
            let moments = self.c.program.optimizers[o].state.len() as f64;
            Update::of(plan, &plan.mesh, 4.0, 4.0, 4.0 * (4.0 + 2.0 * moments))
        });
        let work = Work::of(plan, &sizes, Precision::F32);
        t.chore.passes.push((pass(work, &plan.mesh, micro as usize, update), times));
        t.chore.jobs = 1.0;
        t.chore.runs = micro * times;
        t.chore.samples = per_rank * times;
        (t.micro, t.micro_tokens) = (micro as usize, sizes.tokens);
        t.spread = s.lengths.spread;
    }

    /// Continuous batching on the busiest rank.
    fn sampling(&self, t: &mut Task, generator: usize, s: &Samples) {
        let g = &self.c.program.generators[generator];
        let plan = &self.c.plans[g.graph];
        let Some(class) = plan.classes.first() else { return };
        let bound = |name: &str| bound(&class.graph, name);
        let l = &s.lengths;
        let prompts = (s.count / s.copies / free(plan)).ceil().max(1.0);
        let n = prompts * s.copies;
        let slots = (g.slots as f64).min(n).max(1.0);
        let at_once = slots.min(bound("seq")).min(bound("row")).min(bound("tok"));
        // The first token comes with the prompt; the last one is not fed.
        let fed = n * (l.mean - 1.0).max(0.0);
        let tail = (l.most - l.mean).max(0.0);
        let steps = if n <= slots { (l.most - 1.0).max(0.0) } else { fed / slots + tail };
        let steps = steps.max(fed / at_once);
        let batch = if steps > 0.0 { fed / steps } else { 0.0 };
        let prefilled = prompts * (s.copies / slots).ceil();
        // Groups that wait for slots are prefilled as others end.
        let waves =
            if n <= slots { 1.0 } else { 1.0 + prefilled - (slots / s.copies).floor().max(1.0) };
        let prefills = waves.max(prefilled * l.prompt / bound("tok")).max(prefilled / bound("seq"));
        let sizes = |tokens: f64, sequences: f64, context: f64| Sizes {
            tokens,
            scored: sequences,
            sequences,
            groups: sequences,
            context,
        };
        let prefill =
            sizes(prefilled * l.prompt / prefills, prefilled / prefills, (l.prompt + 1.0) / 2.0);
        let decode = sizes(batch, batch, l.prompt + (l.mean + 1.0) / 2.0);
        let work = |sizes: &Sizes| Work::of(plan, sizes, Precision::F32);
        t.chore.passes.push((pass(work(&prefill), &plan.mesh, 1, None), prefills));
        if steps > 0.0 {
            t.chore.passes.push((pass(work(&decode), &plan.mesh, 1, None), steps));
        }
        let vocab = class.graph.dims.find("vocab");
        let vocab = vocab
            .map_or(0.0, |d| class.graph.dims.bound(class.graph.dims.whole(d).unwrap_or(d)) as f64);
        t.chore.jobs = 1.0;
        t.chore.runs = prefills + steps;
        t.chore.tokens = n * l.mean;
        t.chore.logits = n * l.mean * vocab;
        t.chore.samples = n;
        t.spread = l.spread;
        // These threads keep all tokens, also where a layer sees a window of them.
        let kept = per_token(plan, 4.0, 1);
        t.chore.copied = (n - prefilled).max(0.0) * l.prompt * kept;
        t.chore.gathered = self.gathered(g.model, plan);
        if t.chore.gathered.is_some() {
            t.chore.jobs += 1.0;
        }
        t.generated =
            Some(Generated { seconds: 0.0, batch: slots, pool: slots * (l.prompt + l.most) });
    }

    /// What a generator puts together before it starts: weights that its model keeps in parts.
    fn gathered(&self, model: usize, plan: &Plan) -> Option<(f64, machine::Group)> {
        let m = &self.c.program.models[model];
        let flat = m.layouts.iter().find(|l| !l.flat.is_empty())?.flat.clone();
        if plan.params.iter().any(|l| !l.flat.is_empty()) {
            return None;
        }
        let g = &plan.classes.first()?.graph;
        let mesh = &self.c.program.meshes[m.mesh].1;
        let bytes: f64 = g.params.iter().map(|p| 4.0 * numbers(g, p)).sum();
        Some((bytes, machine::group(mesh, &flat, mesh.ranks())))
    }
}

fn pass(work: Work, mesh: &Mesh, micro: usize, update: Option<Update>) -> Job {
    Job { micro, update, ..Job::alone(work, mesh.clone()) }
}

fn bound(g: &Graph, name: &str) -> f64 {
    g.dims.find(name).map_or(f64::INFINITY, |d| g.dims.bound(d) as f64).max(1.0)
}

/// Numbers of a parameter on a rank, in all layers.
fn numbers(g: &Graph, p: &nrl_ir::ParamDecl) -> f64 {
    let layers = p.repeat.as_ref().map_or(1.0, |(_, n)| *n as f64);
    layers * p.dims.iter().map(|d| g.dims.bound(*d) as f64).product::<f64>()
}

/// Ranks that share out samples: those along axes that cut no weights.
fn free(plan: &Plan) -> f64 {
    let cuts = |axis: &str| plan.params.iter().flat_map(|p| &p.dims).flatten().any(|a| a == axis);
    let free = plan.mesh.axes.iter().filter(|a| !cuts(&a.name));
    free.map(|a| a.size as f64).product()
}
