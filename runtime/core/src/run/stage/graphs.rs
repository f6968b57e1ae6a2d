//! Stages that run a graph: its inputs, outputs that several stages share, updates and what they report.

use nrl_ir::host::Func;
use nrl_ir::program::{Binding, GraphInput, Stage};

use super::{Pass, field_of};
use crate::run::compute::{self, Report, Update, add_gap, is_logprob};
use crate::run::error::{Outcome, RunError};
use crate::run::optimizer::number;
use crate::run::value::{Held, Inputs, Named, Tensor};

impl Pass<'_> {
    /// The tensor that a graph input is bound to.
    pub(super) fn tensor(&self, input: &GraphInput) -> Outcome<Tensor> {
        let unknown = || RunError::internal(format!("nothing to bind `{}` to", input.input));
        let held = self.held.get(input.from).ok_or_else(unknown)?;
        match (held, input.field.as_deref()) {
            (Held::Tensor(t), _) => Ok(t.clone()),
            (Held::Reward { valid, .. }, Some("valid")) => Ok(valid.clone()),
            (Held::Reward { values, .. }, None) => Ok(values.clone()),
            (Held::Samples(batch), Some(field)) => field_of(batch, field).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }

    pub(super) fn inputs(
        &self,
        inputs: &[GraphInput],
        scalars: &[Func],
        temperature: f64,
    ) -> Outcome<Inputs> {
        let named = |i: &GraphInput| Ok(Named { input: i.input.clone(), tensor: self.tensor(i)? });
        let (step, of) = (self.place.in_phase as f64, self.place.of_phase as f64);
        Ok(Inputs {
            tensors: inputs.iter().map(named).collect::<Outcome<_>>()?,
            scalars: scalars.iter().map(|f| number(f, &[step, of, 0.0])).collect::<Outcome<_>>()?,
            temperature,
        })
    }

    /// All outputs of a graph, over the whole batch on one rank or through a model.
    pub(super) fn outputs(
        &mut self,
        binding: &Binding,
        graph: usize,
        inputs: &[GraphInput],
        scalars: &[Func],
        temperature: f64,
        through: Option<(usize, usize)>,
    ) -> Outcome<Vec<Tensor>> {
        let same = |a: &[GraphInput]| {
            a.len() == inputs.len()
                && a.iter()
                    .zip(inputs)
                    .all(|(a, b)| (&a.input, a.from, &a.field) == (&b.input, b.from, &b.field))
        };
        if let Some((.., outputs)) = self.runs.iter().find(|(g, i, _)| *g == graph && same(i)) {
            return Ok(outputs.clone());
        }
        let batch = self.batch_of(binding);
        let bound = self.inputs(inputs, scalars, temperature)?;
        let machine = &self.shop.machine;
        let outputs = match through {
            None => compute::compute(&machine.ranks, &machine.setup, graph, &batch, bound)?,
            Some((model, tokens)) => {
                self.tokens += (0..batch.samples.len()).map(|s| batch.length(s)).sum::<usize>();
                compute::forward(
                    &machine.ranks,
                    &machine.setup,
                    (model, graph, tokens),
                    &batch,
                    bound,
                )?
            }
        };
        self.runs.push((graph, inputs.to_vec(), outputs.clone()));
        Ok(outputs)
    }

    /// Compares the log-probabilities of a model with those that its own generator drew at.
    pub(super) fn gap(
        &mut self,
        binding: &Binding,
        model: usize,
        graph: usize,
        output: usize,
        all: &[Tensor],
    ) -> Outcome<()> {
        let batch = self.batch_of(binding);
        let name = &self.shop.machine.program().graphs[graph].outputs[output];
        let sampler = self.list.iter().find_map(|b| match &b.stage {
            Stage::Generate { generator, .. } => {
                Some(self.shop.machine.program().generators[*generator].model)
            }
            _ => None,
        });
        if !is_logprob(name)
            || sampler != Some(model)
            || self.updated.contains(&model)
            || !batch.is_sampled()
        {
            return Ok(());
        }
        let samples: Vec<usize> = (0..batch.samples.len()).collect();
        let mut gap = None;
        add_gap(&mut gap, &batch, &samples, &all[output].data);
        self.report_gap(gap);
        Ok(())
    }

    pub(super) fn report_gap(&mut self, gap: Option<(f64, f64, usize)>) {
        if let Some((max, sum, n)) = gap {
            self.numbers.entry("logprob_gap/max".into()).or_insert(max);
            self.numbers.entry("logprob_gap/mean".into()).or_insert(sum / n.max(1) as f64);
        }
    }

    pub(super) fn update(&mut self, i: usize, binding: &Binding) -> Outcome<Held> {
        let Stage::Update {
            model,
            optimizer,
            graph,
            inputs,
            temperature,
            updates,
            epochs,
            tokens,
            scalars,
        } = &binding.stage
        else {
            return Ok(Held::Nothing);
        };
        let batch = self.batch_of(binding);
        let job = Update {
            model: *model,
            optimizer: *optimizer,
            graph: *graph,
            updates: *updates,
            epochs: *epochs,
            tokens: *tokens,
            order: self.stream("order").child(i as u64),
            inputs: self.inputs(inputs, scalars, *temperature)?,
        };
        let machine = &mut self.shop.machine;
        let reports = compute::update(&machine.ranks, &machine.setup, &batch, job)?;
        machine.changed(*model);
        self.tokens += (0..batch.samples.len()).map(|s| batch.length(s)).sum::<usize>() * epochs;
        self.updated.push(*model);
        self.runs.retain(|(g, ..)| !uses_model(self.list, *g, *model));
        let name = self.shop.machine.program().models[*model].name.clone();
        let several =
            self.list.iter().filter(|b| matches!(b.stage, Stage::Update { .. })).count() > 1;
        self.report(&reports, if several { format!("{name}/") } else { String::new() });
        Ok(Held::Nothing)
    }

    pub(super) fn report(&mut self, reports: &[Report], prefix: String) {
        let done: Vec<&Report> = reports.iter().filter(|r| !r.empty).collect();
        let skipped = done.iter().filter(|r| r.stats.skipped).count();
        self.skipped_updates += skipped as u64;
        if skipped > 0 {
            self.notes.push(format!("{skipped} updates skipped: the gradient norm is not finite"));
        }
        let n = done.len().max(1) as f64;
        let mean = |f: &dyn Fn(&Report) -> f64| done.iter().map(|r| f(r)).sum::<f64>() / n;
        let mut put = |name: &str, x: f64| self.numbers.insert(format!("{prefix}{name}"), x);
        let names: Vec<String> =
            done.first().map_or(vec![], |r| r.scalars.iter().map(|(n, _)| n.clone()).collect());
        for (j, name) in names.iter().enumerate() {
            put(
                &if name == "entropy" { "train_entropy".to_owned() } else { name.clone() },
                mean(&|r| r.scalars[j].1),
            );
        }
        put("grad_norm", mean(&|r| r.stats.grad_norm));
        put("lr", done.last().map_or(0.0, |r| r.stats.lr));
        put("update_to_weight_rms", mean(&|r| r.stats.update_rms / r.stats.weight_rms.max(1e-30)));
        put("updates_skipped", skipped as f64);
        put("updates_empty", (reports.len() - done.len()) as f64);
        self.report_gap(reports.first().and_then(|r| r.gap));
    }
}

/// Does a stage of `list` run `graph` through `model`?
fn uses_model(list: &[Binding], graph: usize, model: usize) -> bool {
    list.iter().any(|b| matches!(&b.stage, Stage::Forward { model: m, graph: g, .. } if *m == model && *g == graph))
}
