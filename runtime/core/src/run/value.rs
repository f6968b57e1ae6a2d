//! What the bindings of a step hold, and how they become inputs of a tensor graph.
//!
//! A tensor of a step is dense over the whole batch: one number per trained token, sample or prompt, or one in all. A
//! run of a graph takes the part that belongs to its samples. Sequences are fed without their last token, whose logits
//! nobody reads; samples without trained tokens are not fed at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use nrl_ir::graph::Graph;
use nrl_ir::types::Type;

use crate::engine::{Bindings, HostTensor};
use crate::rollout::batch::{Batch, Prompt};
use crate::run::error::{Outcome, RunError};

/// What a tensor has one number per.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Scalar,
    Group,
    Sample,
    Token,
}

impl Level {
    /// Level of a value of type `ty` in `graph`.
    pub fn of(graph: &Graph, ty: &Type) -> Outcome<Level> {
        match ty.dims.first().map(|d| graph.dims.name(*d)) {
            None => Ok(Level::Scalar),
            Some("group") if ty.dims.len() == 1 => Ok(Level::Group),
            Some("seq") if ty.dims.len() == 1 => Ok(Level::Sample),
            Some("act") if ty.dims.len() == 1 => Ok(Level::Token),
            Some(d) => {
                Err(RunError::internal(format!("`{}` gives a value over `{d}`", graph.name)))
            }
        }
    }
}

/// A tensor over a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub level: Level,
    pub data: Arc<Vec<f32>>,
}

impl Tensor {
    pub fn new(level: Level, data: Vec<f32>) -> Tensor {
        Tensor { level, data: Arc::new(data) }
    }

    /// The numbers that belong to `samples`, whose prompts are `groups`.
    pub(crate) fn pick(&self, batch: &Batch, samples: &[usize], groups: &[usize]) -> Vec<f32> {
        match self.level {
            Level::Scalar => self.data.to_vec(),
            Level::Group => groups.iter().map(|g| self.data[*g]).collect(),
            Level::Sample => samples.iter().map(|s| self.data[*s]).collect(),
            Level::Token => {
                let tokens =
                    |s: &usize| self.data[batch.offsets[*s]..batch.offsets[s + 1]].iter().copied();
                samples.iter().flat_map(tokens).collect()
            }
        }
    }
}

/// What one binding of a step holds.
#[derive(Clone, Debug)]
pub enum Held {
    Prompts(Arc<Vec<Arc<Prompt>>>),
    Samples(Arc<Batch>),
    /// Rewards, 0 where they failed, and 1 where they did not.
    Reward {
        values: Tensor,
        valid: Tensor,
    },
    Tensor(Tensor),
    /// Numbers by name: of an evaluation.
    Numbers(BTreeMap<String, f64>),
    Nothing,
}

/// Counts over a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub tokens: usize,
    pub samples: usize,
    pub groups: usize,
}

impl Counts {
    /// Everything in `batch`.
    pub fn of(batch: &Batch) -> Counts {
        Counts { tokens: batch.tokens(), samples: batch.samples.len(), groups: batch.prompts.len() }
    }

    /// What is trained among `samples`: those without a trained token do not count.
    pub fn trained(batch: &Batch, samples: &[usize]) -> Counts {
        let mut counts = Counts::default();
        let mut groups: Vec<usize> = vec![];
        for &s in samples.iter().filter(|s| !batch.samples[**s].ids.is_empty()) {
            counts.tokens += batch.samples[s].ids.len();
            counts.samples += 1;
            groups.push(batch.samples[s].prompt);
        }
        groups.sort_unstable();
        groups.dedup();
        Counts { groups: groups.len(), ..counts }
    }
}

/// A tensor bound to an input by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub input: String,
    pub tensor: Tensor,
}

/// Everything a run of a graph needs besides its samples.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    pub tensors: Vec<Named>,
    /// `host.N`.
    pub scalars: Vec<f64>,
    pub temperature: f64,
}

/// Tokens of sample `i` that are fed to a model.
pub fn fed(batch: &Batch, i: usize) -> usize {
    if batch.samples[i].ids.is_empty() { 0 } else { batch.length(i) - 1 }
}

/// Binds `graph` to `samples` (whole prompts next to each other).
pub fn bind(
    graph: &Graph,
    batch: &Batch,
    samples: &[usize],
    inputs: &Inputs,
    counts: Counts,
) -> Outcome<Bindings> {
    let mut groups: Vec<usize> = vec![];
    let mut sizes: Vec<usize> = vec![];
    for &s in samples {
        let prompt = batch.samples[s].prompt;
        if groups.last() != Some(&prompt) {
            groups.push(prompt);
            sizes.push(0);
        }
        if let Some(n) = sizes.last_mut() {
            *n += 1;
        }
    }
    let mut bind = Bindings::default();
    for (id, dim) in graph.dims.iter().filter(|(id, _)| graph.dims.is_ragged(*id)) {
        let offsets = match dim.name.as_str() {
            "tok" => running(samples.iter().map(|s| fed(batch, *s))),
            "act" => running(samples.iter().map(|s| batch.samples[*s].ids.len())),
            "seq" if graph.dims.owner(id).is_some() => running(sizes.iter().copied()),
            "seq" => vec![0, samples.len() as u32],
            "group" => vec![0, groups.len() as u32],
            // A dim that no value has needs no count.
            _ => continue,
        };
        bind.offsets.insert(id, offsets);
    }
    for input in &graph.inputs {
        let one = |x: f64| HostTensor::F32(vec![x as f32]);
        bind.inputs.push(match input.name.as_str() {
            "ids" => HostTensor::Id(packed_ids(batch, samples)),
            "act" => HostTensor::Id(packed_positions(batch, samples)),
            "labels" => HostTensor::Id(
                samples.iter().flat_map(|s| &batch.samples[*s].ids).copied().collect(),
            ),
            "inv_temperature" => {
                one(if inputs.temperature > 0.0 { 1.0 / inputs.temperature } else { 1.0 })
            }
            "count.tokens" => one(counts.tokens as f64),
            "count.samples" => one(counts.samples as f64),
            "count.groups" => one(counts.groups as f64),
            name => match (inputs.tensors.iter().find(|t| t.input == name), host_number(name)) {
                (Some(named), _) => HostTensor::F32(named.tensor.pick(batch, samples, &groups)),
                (None, Some(n)) if n < inputs.scalars.len() => one(inputs.scalars[n]),
                _ => {
                    return Err(RunError::internal(format!(
                        "nothing is bound to `{name}` of `{}`",
                        graph.name
                    )));
                }
            },
        });
    }
    Ok(bind)
}

fn host_number(name: &str) -> Option<usize> {
    name.strip_prefix("host.")?.parse().ok()
}

fn running(sizes: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut offsets = vec![0u32];
    for n in sizes {
        offsets.push(offsets[offsets.len() - 1] + n as u32);
    }
    offsets
}

fn packed_ids(batch: &Batch, samples: &[usize]) -> Vec<u32> {
    let one = |&s: &usize| {
        let sample = &batch.samples[s];
        batch.prompts[sample.prompt].ids.iter().chain(&sample.ids).copied().take(fed(batch, s))
    };
    samples.iter().flat_map(one).collect()
}

/// The position whose logits predict each trained token: the one before it.
fn packed_positions(batch: &Batch, samples: &[usize]) -> Vec<u32> {
    let mut start = 0;
    let mut out = vec![];
    for &s in samples {
        let sample = &batch.samples[s];
        let first = start + batch.prompts[sample.prompt].ids.len();
        out.extend((0..sample.ids.len()).map(|j| (first + j - 1) as u32));
        start += fed(batch, s);
    }
    out
}

/// Puts what runs over `parts` gave, in their order, in the order of the batch.
pub fn unpack(batch: &Batch, level: Level, parts: &[(Vec<usize>, Vec<f32>)]) -> Outcome<Tensor> {
    let size = match level {
        Level::Token => batch.tokens(),
        Level::Sample => batch.samples.len(),
        Level::Group => batch.prompts.len(),
        Level::Scalar => {
            return Err(RunError::internal(
                "a number of a whole batch cannot come from micro-batches",
            ));
        }
    };
    let mut data = vec![0.0; size];
    for (samples, values) in parts {
        let mut at = 0;
        let mut last = None;
        for &s in samples {
            let range = match level {
                Level::Token => batch.offsets[s]..batch.offsets[s + 1],
                Level::Sample => s..s + 1,
                _ if last == Some(batch.samples[s].prompt) => continue,
                _ => batch.samples[s].prompt..batch.samples[s].prompt + 1,
            };
            last = Some(batch.samples[s].prompt);
            let n = range.len();
            let part = values
                .get(at..at + n)
                .ok_or_else(|| RunError::internal("a run gave too few numbers"))?;
            data[range].copy_from_slice(part);
            at += n;
        }
    }
    Ok(Tensor::new(level, data))
}

#[cfg(test)]
pub(crate) mod tests {
    use nrl_ir::host::Value;
    use nrl_ir::types::Type;

    use super::*;
    use crate::rollout::batch::Sample;

    /// Prompts of the given lengths, each with completions of the given lengths.
    pub(crate) fn batch(prompts: &[(usize, &[usize])]) -> Batch {
        let mut samples = vec![];
        let mut next = 100;
        let prompt = |(i, (n, _)): (usize, &(usize, &[usize]))| {
            let ids = (0..*n as u32).map(|t| 10 * (i as u32 + 1) + t).collect();
            Arc::new(Prompt {
                number: i,
                ids,
                text: String::new(),
                answer: Value::None,
                row: Value::None,
            })
        };
        for (prompt, (_, completions)) in prompts.iter().enumerate() {
            for (copy, n) in completions.iter().enumerate() {
                let ids = (next..next + *n as u32).collect();
                next += *n as u32;
                samples.push(Sample { prompt, copy, ids, ..Sample::default() });
            }
        }
        Batch::new(prompts.iter().enumerate().map(prompt).collect(), samples, 1.0)
    }

    fn graph() -> Graph {
        let mut g = Graph::new("g");
        let vocab = g.dims.add_static("vocab", 1000);
        let group = g.dims.add_ragged("group", None, 8);
        let seq = g.dims.add_ragged("seq", Some(group), 8);
        let tok = g.dims.add_ragged("tok", Some(seq), 64);
        let act = g.dims.add_ragged("act", Some(seq), 64);
        let mut block = nrl_ir::Block::default();
        g.input(&mut block, "ids", Type::id(vocab, [tok]));
        g.input(&mut block, "act", Type::id(tok, [act]));
        g.input(&mut block, "labels", Type::id(vocab, [act]));
        g.input(&mut block, "inv_temperature", Type::f32([]));
        g.input(&mut block, "count.tokens", Type::f32([]));
        g.input(&mut block, "adv", Type::f32([seq]));
        g.input(&mut block, "old", Type::f32([act]));
        g.input(&mut block, "base", Type::f32([group]));
        g.input(&mut block, "host.0", Type::f32([]));
        g
    }

    /// Trap 2: token t is scored by the logits of t - 1, the first of a completion by its prompt's last position.
    #[test]
    fn each_trained_token_is_scored_by_the_position_before_it() {
        let g = graph();
        let b = batch(&[(2, &[3, 0]), (1, &[1])]);
        let named = |input: &str, level, n: usize| Named {
            input: input.into(),
            tensor: Tensor::new(level, (0..n).map(|i| i as f32).collect()),
        };
        let tensors = vec![
            named("adv", Level::Sample, 3),
            named("old", Level::Token, 4),
            named("base", Level::Group, 2),
        ];
        let inputs = Inputs { tensors, scalars: vec![0.5], temperature: 0.5 };
        let bind = bind(&g, &b, &[0, 1, 2], &inputs, Counts::of(&b)).unwrap();
        let f = |x: &[f32]| HostTensor::F32(x.to_vec());
        assert_eq!(bind.inputs[0], HostTensor::Id(vec![10, 11, 100, 101, 20]));
        assert_eq!(bind.inputs[1], HostTensor::Id(vec![1, 2, 3, 4]));
        assert_eq!(bind.inputs[2], HostTensor::Id(vec![100, 101, 102, 103]));
        assert_eq!(bind.inputs[3..5], [f(&[2.0]), f(&[4.0])]);
        assert_eq!(
            bind.inputs[5..],
            [f(&[0., 1., 2.]), f(&[0., 1., 2., 3.]), f(&[0., 1.]), f(&[0.5])]
        );
        let offsets = |name: &str| &bind.offsets[&g.dims.find(name).unwrap()];
        assert_eq!(offsets("tok"), &[0, 4, 4, 5]);
        assert_eq!(offsets("act"), &[0, 3, 3, 4]);
        assert_eq!(offsets("seq"), &[0, 2, 3]);
        assert_eq!(offsets("group"), &[0, 2]);
    }

    #[test]
    fn no_samples_at_all_can_be_bound() {
        let g = graph();
        let b = batch(&[(2, &[3])]);
        let inputs = Inputs { scalars: vec![0.0], ..Inputs::default() };
        let tensors = ["adv", "old", "base"]
            .map(|n| Named { input: n.into(), tensor: Tensor::new(Level::Sample, vec![0.0]) })
            .to_vec();
        let bind = bind(&g, &b, &[], &Inputs { tensors, ..inputs }, Counts::of(&b)).unwrap();
        assert_eq!(bind.inputs[0], HostTensor::Id(vec![]));
        assert_eq!(bind.offsets[&g.dims.find("tok").unwrap()], [0]);
    }

    #[test]
    fn parts_come_back_in_the_order_of_the_batch() {
        let b = batch(&[(2, &[2, 1]), (1, &[1])]);
        let parts = [(vec![2], vec![9.0]), (vec![1], vec![8.0]), (vec![0], vec![6.0, 7.0])];
        assert_eq!(*unpack(&b, Level::Token, &parts).unwrap().data, [6., 7., 8., 9.]);
        let groups = [(vec![2], vec![5.0]), (vec![0, 1], vec![4.0])];
        assert_eq!(*unpack(&b, Level::Group, &groups).unwrap().data, [4., 5.]);
        assert!(unpack(&b, Level::Token, &[(vec![0], vec![1.0])]).is_err());
    }

    #[test]
    fn samples_without_trained_tokens_do_not_count() {
        let b = batch(&[(2, &[2, 0]), (1, &[0])]);
        assert_eq!(Counts::trained(&b, &[0, 1, 2]), Counts { tokens: 2, samples: 1, groups: 1 });
        assert_eq!(Counts::of(&b), Counts { tokens: 2, samples: 3, groups: 2 });
    }
}
