//! Models on ranks: load, freeze, gather, generate.
//!
//! In: a compiled program and an engine. Out: weights on every rank, whole tensors for checkpoints and exports, and
//! batches of samples. Where a generator's plan lays weights out otherwise than its model does, the generator has its
//! own copy, refreshed when the model has changed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use nrl_ir::mesh::Mesh;
use nrl_ir::plan::ParamLayout;
use nrl_ir::program::{Model, Program, Stage, Weights};

use crate::engine::Engine;
use crate::hf::weights::{AccountError, Checkpoint, WeightsError};
use crate::rank::{Compiled, Ranks, Worker};
use crate::rollout::batch::Batch;
use crate::rollout::{self, Job};
use crate::run::error::{Outcome, RunError};
use crate::run::optimizer::{OptimizerState, state_lengths};
use crate::text::Text;
use crate::weights::{self, Placement, Source, Stored, tensors};

/// Global tensors of a model in storage order, by slot.
pub type Whole = Vec<Arc<Vec<f32>>>;

/// A program on its ranks.
pub struct Machine {
    pub setup: Arc<Compiled>,
    pub ranks: Ranks,
    /// Per model.
    pub texts: Vec<Arc<Text>>,
    /// How often each model has changed, and at which change each generator copied it.
    versions: Vec<u64>,
    copied: Vec<Option<u64>>,
}

impl Machine {
    /// Starts the ranks and opens tokenizers; loads no weights.
    pub fn start(setup: Compiled, engine: &dyn Engine) -> Outcome<Machine> {
        let mut texts: Vec<Arc<Text>> = vec![];
        for model in &setup.program.models {
            texts.push(match model.weights {
                Weights::Frozen { of, .. } if of < texts.len() => texts[of].clone(),
                _ => Arc::new(Text::of(model)?),
            });
        }
        let setup = Arc::new(setup);
        let ranks = Ranks::start(&setup, engine)?;
        let (models, generators) = (setup.program.models.len(), setup.program.generators.len());
        Ok(Machine {
            setup,
            ranks,
            texts,
            versions: vec![0; models],
            copied: vec![None; generators],
        })
    }

    pub fn program(&self) -> &Program {
        &self.setup.program
    }

    fn mesh(&self, model: usize) -> &Mesh {
        &self.program().meshes[self.program().models[model].mesh].1
    }

    /// Loads every model that is not a copy, then copies those frozen before training.
    pub fn load_initial(&mut self) -> Outcome<()> {
        for m in 0..self.program().models.len() {
            let model = &self.program().models[m];
            let source = match &model.weights {
                Weights::Directory { path } => Source::Files(open(model, Path::new(path))?),
                Weights::Fresh { std } => Source::Fresh {
                    seed: self.program().seed,
                    model: model.name.clone(),
                    std: *std,
                    norms: if model.family == "gemma3" { 0.0 } else { 1.0 },
                },
                Weights::Frozen { .. } => continue,
            };
            self.load(m, source)?;
        }
        self.freeze(0)
    }

    /// Fills a model from `source`.
    pub fn load(&mut self, m: usize, source: Source) -> Outcome<()> {
        let (source, mesh) = (Arc::new(source), self.mesh(m).clone());
        self.ranks.all(move |w| {
            let setup = w.setup.clone();
            let model = &setup.program.models[m];
            let rank = w.rank.rank();
            if rank < mesh.ranks() {
                w.stores[m] = weights::load(model, &model.layouts, &mesh, rank, &source)?;
            }
            Ok(())
        })?;
        self.changed(m);
        Ok(())
    }

    /// Notes that a model's weights are new.
    pub fn changed(&mut self, model: usize) {
        self.versions[model] += 1;
    }

    /// Copies models that are frozen when `phase` starts.
    pub fn freeze(&mut self, phase: usize) -> Outcome<()> {
        for m in 0..self.program().models.len() {
            let model = &self.program().models[m];
            let Weights::Frozen { of, phase: at } = model.weights else { continue };
            if at != phase {
                continue;
            }
            let from = &self.program().models[of];
            if model.mesh == from.mesh && same_storage(&model.layouts, &from.layouts) {
                self.ranks.all(move |w| {
                    let (first, weights) =
                        (w.stores[of].first.clone(), w.stores[of].weights.clone());
                    let grads = vec![vec![]; weights.len()];
                    w.stores[m] = crate::engine::ParamStore { first, weights, grads };
                    Ok(())
                })?;
                self.changed(m);
            } else {
                let whole = self.whole(of)?;
                self.spread(m, whole)?;
            }
        }
        Ok(())
    }

    /// The whole tensors of a model.
    pub fn whole(&self, m: usize) -> Outcome<Whole> {
        let mesh = self.mesh(m).clone();
        let model = &self.program().models[m];
        let places = Arc::new(weights::placements(model, &model.layouts)?);
        let (for_ranks, on) = (places.clone(), mesh.clone());
        let parts = self.ranks.all(move |w| {
            let rank = w.rank.rank();
            if rank >= on.ranks() {
                return Ok(vec![]);
            }
            Ok(weights::share(
                &w.setup.program.models[m].params,
                &for_ranks,
                &on,
                rank,
                &w.stores[m].weights,
            ))
        })?;
        Ok(weights::join(&model.params, &places, &mesh, &parts))
    }

    /// Gives every rank its part of whole tensors.
    fn spread(&mut self, m: usize, whole: Whole) -> Outcome<()> {
        let mesh = self.mesh(m).clone();
        self.ranks.all(move |w| {
            let setup = w.setup.clone();
            let model = &setup.program.models[m];
            if w.rank.rank() < mesh.ranks() {
                w.stores[m] = part(model, &model.layouts, &mesh, w.rank.rank(), &whole)?;
            }
            Ok(())
        })?;
        self.changed(m);
        Ok(())
    }

    /// Whole tensors of one state of an optimizer of `model`, by slot; `None` before its first step.
    pub fn whole_state(&self, optimizer: usize, m: usize, state: usize) -> Outcome<Option<Whole>> {
        let mesh = self.mesh(m).clone();
        let model = &self.program().models[m];
        let places = Arc::new(state_places(model)?);
        let (for_ranks, on) = (places.clone(), mesh.clone());
        let parts = self.ranks.all(move |w| {
            let rank = w.rank.rank();
            let held = w.optimizers[optimizer].as_ref().and_then(|s| s.tensors.get(state));
            let params = &w.setup.program.models[m].params;
            Ok(held
                .filter(|_| rank < on.ranks())
                .map(|parts| weights::share(params, &for_ranks, &on, rank, parts)))
        })?;
        if parts[0].is_none() {
            return Ok(None);
        }
        let parts: Vec<_> = parts.into_iter().map(Option::unwrap_or_default).collect();
        let one = |(slot, (p, _, _)): (usize, (usize, usize, String))| match model.params[p].trained
        {
            true => Arc::new(places[p].join(&mesh, |r| &parts[r][slot])),
            false => Arc::new(vec![]),
        };
        Ok(Some(tensors(&model.params).enumerate().map(one).collect()))
    }

    /// Steps an optimizer has taken.
    pub fn updates(&self, optimizer: usize) -> Outcome<u64> {
        self.ranks.one(0, move |w| Ok(w.optimizers[optimizer].as_ref().map_or(0, |s| s.updates)))
    }

    /// Puts an optimizer of `model` where it was: steps taken and whole state tensors, `[state][slot]`.
    pub fn restore_optimizer(
        &self,
        optimizer: usize,
        m: usize,
        updates: u64,
        whole: Vec<Whole>,
    ) -> Outcome<()> {
        let mesh = self.mesh(m).clone();
        self.ranks.all(move |w| {
            let setup = w.setup.clone();
            let (model, rank) = (&setup.program.models[m], w.rank.rank());
            if rank >= mesh.ranks() {
                return Ok(());
            }
            let places = state_places(model)?;
            let lengths = state_lengths(model, &model.layouts, &mesh)?;
            let cut = |whole: &Whole| {
                let part = |(slot, (p, _, _)): (usize, (usize, usize, String))| match lengths[slot]
                {
                    0 => vec![],
                    _ => places[p].cut(&mesh, rank, &whole[slot]),
                };
                tensors(&model.params).enumerate().map(part).collect()
            };
            w.optimizers[optimizer] =
                Some(OptimizerState { updates, tensors: whole.iter().map(cut).collect() });
            Ok(())
        })?;
        Ok(())
    }

    /// Forgets what all optimizers remember.
    pub fn reset_optimizers(&self) -> Outcome<()> {
        self.ranks.all(|w| {
            w.optimizers.iter_mut().for_each(|o| *o = None);
            Ok(())
        })?;
        Ok(())
    }

    /// Draws samples; also how many prompts had less room than `max_new`.
    pub fn generate(&mut self, job: Job) -> Outcome<(Batch, usize)> {
        self.refresh(job.generator)?;
        let (prompts, temperature) = (job.prompts.to_vec(), job.options.temperature);
        let drawn = self.ranks.all(move |w| rollout::generate(w, &job))?;
        let capped = drawn.iter().map(|d| d.capped).sum();
        let mut samples: Vec<_> = drawn.into_iter().flat_map(|d| d.samples).collect();
        samples.sort_by_key(|s| (s.prompt, s.copy));
        let temperature = if temperature > 0.0 { temperature } else { 1.0 };
        Ok((Batch::new(prompts, samples, temperature), capped))
    }

    /// Copies the model's newest weights into its generator's own layout, if it has one.
    fn refresh(&mut self, g: usize) -> Outcome<()> {
        let generator = &self.program().generators[g];
        let (m, graph) = (generator.model, generator.graph);
        let plan = self.setup.plans[graph].clone();
        let model = &self.program().models[m];
        if plan.mesh == *self.mesh(m) && same_storage(&plan.params, &model.layouts) {
            return Ok(());
        }
        if self.copied[g] == Some(self.versions[m]) {
            return Ok(());
        }
        if plan.mesh == *self.mesh(m) && same_split(&plan.params, &model.layouts) {
            self.ranks.all(move |w| gather_view(w, g, m))?;
        } else {
            let whole = self.whole(m)?;
            self.ranks.all(move |w| {
                let setup = w.setup.clone();
                if w.rank.rank() < plan.mesh.ranks() {
                    let model = &setup.program.models[m];
                    w.views[g] =
                        Some(part(model, &plan.params, &plan.mesh, w.rank.rank(), &whole)?);
                }
                Ok(())
            })?;
        }
        self.copied[g] = Some(self.versions[m]);
        Ok(())
    }
}

/// Placements of optimizer state.
fn state_places(model: &Model) -> Outcome<Vec<Placement>> {
    let places = weights::placements(model, &model.layouts)?;
    let state = |(i, p): (usize, Placement)| {
        let layout = model.layouts.iter().find(|l| l.param.0 as usize == i);
        layout.map_or_else(|| p.clone(), |l| p.of_state(l))
    };
    Ok(places.into_iter().enumerate().map(state).collect())
}

fn part(
    model: &Model,
    layouts: &[ParamLayout],
    mesh: &Mesh,
    rank: usize,
    whole: &Whole,
) -> Outcome<crate::engine::ParamStore> {
    let places = weights::placements(model, layouts)?;
    let mut store = weights::empty_store(&model.params);
    for (slot, (p, _, _)) in tensors(&model.params).enumerate() {
        store.weights.push(places[p].cut(mesh, rank, &whole[slot]));
        store.grads.push(vec![]);
    }
    Ok(store)
}

/// Puts the flat parts of zero3 together for a generator that keeps whole weights.
fn gather_view(w: &mut Worker, generator: usize, m: usize) -> Outcome<()> {
    let setup = w.setup.clone();
    let model = &setup.program.models[m];
    let mesh = &setup.program.meshes[model.mesh].1;
    let Some(comm) = w.comm(mesh)? else { return Ok(()) };
    let places = weights::placements(model, &model.layouts)?;
    let mut view = w.views[generator].take().unwrap_or_else(|| weights::empty_store(&model.params));
    let store = &w.stores[m];
    view.weights.resize(store.weights.len(), vec![]);
    view.grads.resize(store.weights.len(), vec![]);
    for (slot, (p, _, _)) in tensors(&model.params).enumerate() {
        let (mine, out) = (&store.weights[slot], &mut view.weights[slot]);
        match comm.along(&places[p].flat) {
            Some(group) => {
                out.resize(mine.len() * group.size(), 0.0);
                group.all_gather(mine, out)?;
                out.truncate(places[p].local_len(mesh));
            }
            None => out.clone_from(mine),
        }
    }
    w.views[generator] = Some(view);
    Ok(())
}

/// Do two layouts split the same dims, whatever is cut flat? Only the first may lack the flat cut.
fn same_split(a: &[ParamLayout], b: &[ParamLayout]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.param == b.param && a.dims == b.dims && a.flat.is_empty())
}

/// Do two layouts store the same elements on the same ranks?
fn same_storage(a: &[ParamLayout], b: &[ParamLayout]) -> bool {
    let key = |l: &ParamLayout| (l.param, l.dims.clone(), l.flat.clone());
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| key(a) == key(b))
}

/// Opens the weights of a model directory and accounts for every tensor.
pub fn open(model: &Model, dir: &Path) -> Outcome<Checkpoint> {
    const HEAD: &str = "lm_head.weight";
    let fail = |e: WeightsError| RunError::new(e.code(), e.to_string());
    let checkpoint = Checkpoint::open(dir).map_err(fail)?;
    let wanted = wanted(model)?;
    // A head that the model does not have is tied to the embedding, and may be stored besides.
    let embed = wanted.iter().map(|(n, _)| n).find(|n| n.ends_with("embed_tokens.weight"));
    let tied = !wanted.iter().any(|(n, _)| n == HEAD);
    let allowed: &[&str] = if tied { &[HEAD] } else { &[] };
    let account = |e: AccountError| fail(WeightsError::Account(e));
    checkpoint.account(&wanted, allowed).map_err(account)?;
    if let (true, Some(embed)) = (tied, embed) {
        checkpoint.check_tied(HEAD, embed).map_err(account)?;
    }
    Ok(checkpoint)
}

/// Names and shapes of a model's tensors in its checkpoint.
pub fn wanted(model: &Model) -> Outcome<Vec<(String, Vec<usize>)>> {
    let one = |(p, _, name): (usize, usize, String)| {
        Ok((name, Stored::new(&model.params[p], &model.dims)?.shape))
    };
    tensors(&model.params).map(one).collect()
}

/// Models that a program trains.
pub fn trained_models(program: &Program) -> BTreeSet<usize> {
    let steps = program.phases.iter().flat_map(|p| &p.step);
    steps
        .filter_map(
            |b| if let Stage::Update { model, .. } = &b.stage { Some(*model) } else { None },
        )
        .collect()
}
